//! The job model, its lifecycle and the runtime of Windlass. Users add the crate `windlass`, which re-exports this one;
//! stores implement [`store::Store`]. There is no SQL and no HTTP here, and no real clock outside `model/clock.rs`.
//!
//! | feature | adds |
//! |---|---|
//! | `encryption` | payloads encrypted at rest with the tenant's keys: `Encryption`, `Builder::encryption` |
//! | `job-logs` | `JobLogs`, a layer for `tracing` that stores what handlers log with their jobs |
//! | `otel` | OpenTelemetry traces that follow a job from its submitter to its attempts, in any process |

mod service;
mod config;

// What a job is, where it is stored, the steps of its life, and the node that takes them.
mod model;
pub mod store;
mod life;
mod node;

// Work that is more than one job.
pub mod flows;

// What people do with jobs, and what stands beside them.
mod operate;
mod admin;

// What several of them need.
pub mod fair;
pub mod quota;
mod seal;
pub mod text;
mod trace;

// The store for tests.
pub mod memory;

pub use flows::batch::{BatchBuilder, BatchCalls, BatchDone, BatchHandle, BatchStatus, Part, batch_of};
pub use flows::calendar::{Calendar, Missed};
pub use flows::depend::{After, IfFailed};
pub use flows::fire::CronTotals;
pub use flows::graph::{Graph, GraphBuilder, graph_by};
pub use flows::schedule::{Keeping, Overlap, Schedule, ScheduleCalls, ScheduleState};
pub use life::{lifecycle, notes};
pub use model::filter;
pub use node::{supervise, suspect};
pub use operate::{activity, edit, failures, health};

pub use admin::access::{ApiKey, NewApiKey, Right, Rights, SecretHash, api_key_id};
pub use admin::webhook::{
    NewWebhook, WEBHOOK_HANDLER, WEBHOOK_SWITCHED_OFF, WEBHOOK_SWITCHED_OFF_BY, WEBHOOKS_MAX, Webhook, WebhookDelivery,
};
pub use async_trait::async_trait;
pub use config::{Config, DEFAULT_QUEUE, DEFAULT_RETENTION, Limits, NO_TIMEOUT};
pub use life::checkout::{CheckedOut, Ticket};
pub use life::context::JobContext;
pub use life::handler::{HandlerOptions, JobHandler};
pub use life::handler_ref::{Caller, HandlerName, HandlerRef, SubmittedJob, TenantJobs};
#[cfg(feature = "job-logs")]
pub use life::logs::JobLogs;
pub use life::logs::{LOG_BYTES, LOG_LINES, LogLevel, LogLine};
pub use life::spawn::Spawned;
pub use life::submit::Batch;
pub use memory::MemoryStore;
pub use model::clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use model::error::{BadItem, Error, ErrorKind, InvalidInput, JobError, Reason};
pub use model::filter::{InputTerm, JobFilter};
pub use model::id::{ID_EPOCH, IdGenerator, JobId, MachineSlot};
pub use model::job::{
    BatchId, Callback, ClaimedJob, Found, HistoryEntry, JobRecord, JobSpec, NewJob, Page, Progress, Replayed, Start,
    Status, SubmitOptions, Unique, UniqueWithin,
};
pub use model::payload::{MAX_DEPTH, Payload, dedupe_key};
pub use model::priority::{Band, BandPolicy, BandShares, Priority};
pub use model::retry::{Phase, RetryPolicy};
pub use model::sensitive::Sensitive;
pub use model::tenant::{OperatorRight, Scope, SecurityContext, TenantId};
pub use operate::activity::{Activity, Backlog, Histogram, Point, Span, Sums, Totals};
pub use operate::bulk::{Bulk, BulkAction, BulkId, BulkOptions, BulkProgress, BulkState, FailingLimit, Preview};
pub use operate::edit::Edit;
pub use operate::failures::{FAILURES_LOOKED_AT, FailureGroup, Signature, normalise, signature};
pub use operate::feed::{Feed, FeedEvent};
pub use operate::health::{Health, NodeHealth, PoolUse, Vitals};
pub use operate::look::SEARCHED_JOBS;
pub use operate::replay::{Pace, ReplayReport};
pub use operate::usage::{Cost, USAGE_EVENTS_KEPT, USAGE_KEPT, USAGE_PAGE, UsageEvent, UsageRow, day_of};
pub use operate::watch::{JobEvent, JobView};
pub use operate::why::{Why, explain};
pub use operate::within::Within;
pub use quota::{Quota, QuotaExceeded, QuotaKind, Quotas, SubmitRate, TenantUse};
pub use seal::KeyError;
#[cfg(feature = "encryption")]
pub use seal::Opener;
#[cfg(feature = "encryption")]
pub use seal::crypt::{DataKey, Encryption, EnvKeys, Envelope, FileKeys, KeyOf, KeyProvider, LocalKeys};
pub use service::{Builder, JobService};
pub use tokio_util::sync::CancellationToken;

/// Doors for tests of what comes from outside, which the service opens only behind a store.
#[doc(hidden)]
pub mod fuzzing {
    use crate::model::payload::Payload;
    use crate::{Error, InvalidInput, JobId, Limits, NewJob, SecurityContext, SubmitOptions, Timestamp};

    /// What the service makes of a submit.
    pub fn prepare(handler: &str, payload: Payload, options: SubmitOptions) -> Result<NewJob, InvalidInput> {
        let wanted = crate::life::submit::Wanted { handler, queue: crate::DEFAULT_QUEUE, payload, options };
        let now = Timestamp::from_millis(1_800_000_000_000);
        let content_key = |handler: &str, tenant, payload: &Payload| crate::dedupe_key(handler, Some(tenant), payload);
        let ctx = SecurityContext::system();
        crate::life::submit::prepare(&ctx, JobId::from_i64(1), wanted, &Limits::default(), now, content_key)
    }

    /// Reads JSON as a type, with the errors that users see.
    pub fn decode<T: serde::de::DeserializeOwned>(payload: &Payload, job: JobId) -> Result<T, Error> {
        payload.decode().map_err(|source| Error::Output { job, source })
    }
}

/// The README of this crate, compiled as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
