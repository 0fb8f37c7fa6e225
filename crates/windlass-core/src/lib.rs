//! The job model, its lifecycle and the runtime of Windlass. Users add the crate `windlass`, which re-exports this one;
//! stores implement [`store::Store`]. There is no SQL and no HTTP here, and no real clock outside `clock.rs`.
//!
//! Modules are listed in the order in which a job lives.

// What a job is.
mod clock;
mod error;
mod filter;
mod id;
mod job;
mod payload;
mod priority;
pub mod quota;
mod retry;
mod seal;
mod sensitive;
mod tenant;
pub mod text;

// Where it is kept.
pub mod activity;
pub mod fair;
pub mod health;
pub mod memory;
pub mod store;

// The steps of its life.
mod claim;
mod config;
mod context;
mod finish;
mod handler;
pub mod lifecycle;
mod logs;
mod maintenance;
mod run;
mod submit;
mod trace;
mod unheard;
mod worker;

// What keeps it from other eyes.
#[cfg(feature = "encryption")]
mod crypt;

// What people do with it.
mod access;
mod bulk;
pub mod edit;
pub mod failures;
mod feed;
mod lookup;
mod observe;
mod replay;
mod service;
mod spawn;
mod usage;
mod watch;
mod webhook;
mod why;

pub use access::{ApiKey, NewApiKey, Right, Rights, SecretHash, api_key_id};
pub use activity::{Activity, Backlog, Histogram, Point, Span, Sums, Totals};
#[cfg(feature = "encryption")]
pub use async_trait::async_trait;
pub use bulk::{Bulk, BulkAction, BulkId, BulkOptions, BulkProgress, BulkState, FailingLimit, Preview};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use config::{Config, DEFAULT_QUEUE, DEFAULT_RETENTION, Limits};
pub use context::JobContext;
#[cfg(feature = "encryption")]
pub use crypt::{DataKey, Encryption, EnvKeys, Envelope, FileKeys, KeyOf, KeyProvider, LocalKeys};
pub use edit::Edit;
pub use error::{BadItem, Error, ErrorKind, InvalidInput, JobError, Reason};
pub use failures::{FAILURES_LOOKED_AT, FailureGroup, Signature, normalise, signature};
pub use feed::{Feed, FeedEvent};
pub use filter::{InputTerm, JobFilter};
pub use handler::{HandlerOptions, JobHandler};
pub use health::{Health, NodeHealth, PoolUse, Vitals};
pub use id::{ID_EPOCH, IdGenerator, JobId, MachineSlot};
pub use job::{
    BatchId, Callback, ClaimedJob, Found, HistoryEntry, JobRecord, JobSpec, NewJob, Page, Progress, Replayed, Start,
    Status, SubmitOptions, Unique, UniqueWithin,
};
#[cfg(feature = "job-logs")]
pub use logs::JobLogs;
pub use logs::{LOG_BYTES, LOG_LINES, LogLevel, LogLine};
pub use memory::MemoryStore;
pub use payload::{MAX_DEPTH, Payload, dedupe_key};
pub use priority::{Band, BandPolicy, BandShares, Priority};
pub use quota::{Quota, QuotaExceeded, QuotaKind, Quotas, SubmitRate, TenantUse};
pub use replay::{Pace, ReplayReport};
pub use retry::{Phase, RetryPolicy};
pub use seal::KeyError;
#[cfg(feature = "encryption")]
pub use seal::Opener;
pub use sensitive::Sensitive;
pub use service::{Batch, Builder, CheckedOut, JobService, Operator, SEARCHED_JOBS};
pub use spawn::Spawned;
pub use tenant::{OperatorRight, Scope, SecurityContext, TenantId};
pub use tokio_util::sync::CancellationToken;
pub use usage::{Cost, USAGE_EVENTS_KEPT, USAGE_KEPT, USAGE_PAGE, UsageEvent, UsageRow, day_of};
pub use watch::{JobEvent, JobView};
pub use webhook::{NewWebhook, WEBHOOK_HANDLER, WEBHOOKS_MAX, Webhook, WebhookDelivery};
pub use why::{Why, explain};

/// Doors for tests of what comes from outside, which the service opens only behind a store.
#[doc(hidden)]
pub mod fuzzing {
    use crate::payload::Payload;
    use crate::{Error, InvalidInput, JobId, Limits, NewJob, SecurityContext, SubmitOptions, Timestamp};

    /// What the service makes of a submit.
    pub fn prepare(handler: &str, payload: Payload, options: SubmitOptions) -> Result<NewJob, InvalidInput> {
        let wanted = crate::submit::Wanted { handler, queue: crate::DEFAULT_QUEUE, payload, options };
        let now = Timestamp::from_millis(1_800_000_000_000);
        let content_key = |handler: &str, tenant, payload: &Payload| crate::dedupe_key(handler, Some(tenant), payload);
        let ctx = SecurityContext::system();
        crate::submit::prepare(&ctx, JobId::from_i64(1), wanted, &Limits::default(), now, content_key)
    }

    /// Reads JSON as a type, with the errors that users see.
    pub fn decode<T: serde::de::DeserializeOwned>(payload: &Payload, job: JobId) -> Result<T, Error> {
        payload.decode().map_err(|source| Error::Output { job, source })
    }
}
