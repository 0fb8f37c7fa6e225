//! The job model, its lifecycle and the runtime of Windlass. Users add the crate `windlass`, which re-exports this one;
//! stores implement [`store::Store`]. There is no SQL and no HTTP here, and no real clock outside `clock.rs`.
//!
//! Modules are listed in the order in which a job lives.

// What a job is.
mod clock;
mod error;
mod id;
mod job;
mod payload;
mod priority;
pub mod quota;
mod retry;
mod seal;
mod sensitive;
mod tenant;

// Where it is kept.
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
mod maintenance;
mod run;
mod submit;
mod worker;

// What keeps it from other eyes.
#[cfg(feature = "encryption")]
mod crypt;

// What people do with it.
mod lookup;
mod replay;
mod service;
mod spawn;
mod watch;
mod why;

#[cfg(feature = "encryption")]
pub use async_trait::async_trait;
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use config::{Config, DEFAULT_QUEUE, DEFAULT_RETENTION, Limits};
pub use context::JobContext;
#[cfg(feature = "encryption")]
pub use crypt::{DataKey, Encryption, EnvKeys, Envelope, FileKeys, KeyOf, KeyProvider, LocalKeys};
pub use error::{BadItem, Error, ErrorKind, InvalidInput, JobError, Reason};
pub use handler::{HandlerOptions, JobHandler};
pub use id::{ID_EPOCH, IdGenerator, JobId, MachineSlot};
pub use job::{
    BatchId, Callback, ClaimedJob, HistoryEntry, JobFilter, JobRecord, JobSpec, NewJob, Page, Progress, Replayed,
    Start, Status, SubmitOptions, Unique, UniqueWithin,
};
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
pub use service::{Batch, Builder, CheckedOut, JobService, Operator};
pub use spawn::Spawned;
pub use tenant::{OperatorRight, Scope, SecurityContext, TenantId};
pub use tokio_util::sync::CancellationToken;
pub use watch::{JobEvent, JobView};
pub use why::{Why, explain};
