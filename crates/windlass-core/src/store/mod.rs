//! What a store of jobs does, in rooms: one trait each, domain types in and out. Implemented by `memory`,
//! `windlass-sqlite` and `windlass-postgres`, each room in a file of the same name; called by the service and the runtime.
//! A store never decides what becomes of a job: it carries out transitions that `lifecycle` decided, and refuses every
//! write whose fence is not current.

mod base;
mod jobs;
mod nodes;
mod upkeep;
mod reads;
mod steering;
mod tenancy;
mod records;
mod leases;
mod schedules;
mod groups;
mod feed;
mod insight;

use crate::model::error::InvalidInput;
use crate::quota::QuotaExceeded;

pub use crate::life::lifecycle::{Gate, Transition};
pub use crate::model::id::{Fence, LeaseId, NodeId};
pub use base::{Base, Limited, News};
pub use feed::{FEED_EVENTS_KEPT, FEED_KEPT_FOR, Feed, FeedAsk, FeedJob, FeedRow};
pub use groups::{
    BATCH_KEPT, BATCHES_MAX, BatchAsk, BatchCounts, BatchOpened, BatchRecord, Completion, Dependent, Dependents, Edge,
    Groups, NewBatch, NewPart, PartAdded, Settlement,
};
pub use insight::Insight;
pub(crate) use jobs::queue_of;
pub use jobs::{
    CHUNK_JOBS, Claim, Claimed, Finish, Finished, Jobs, NewLine, Note, Noted, SUSPECT_QUEUES, Submit, Submitted,
    suspect_queue,
};
pub use leases::{HOLDERS_LISTED, Holder, Lease, Leases};
pub use nodes::{Beat, NewNode, NodeLease, NodeRecord, Nodes, SLOT_QUARANTINE};
pub use reads::{Counts, Reads, Whereabouts, count_by_pages};
pub use records::{
    API_KEYS_LISTED, ApiKeyRecord, AuditEntry, AuditFilter, DataKeyRecord, Records, WebhookRecord, WrappedKey,
};
pub use schedules::{
    DueSchedules, Fired, Firing, SCHEDULER, SCHEDULES_MAX, ScheduleAsk, ScheduleChange, ScheduleChanged,
    ScheduleContent, ScheduleRecord, ScheduleTo, Schedules,
};
pub use steering::{CancelReply, EditReply, Pause, PauseTarget, ReplayReply, ReplayedAs, Steering};
pub use tenancy::Tenancy;
pub use upkeep::{Promoted, Recovered, SERVED_KEPT, Silent, Survey, Upkeep, WaitingQueue, survey_by_lists};

/// The durable half of Windlass: everything a store offers. Implemented for whatever has all rooms; nobody implements it
/// by hand. Every method is atomic: it happened, or it did not, or the error says [`Error::Unknown`]. Times come from the
/// store's clock, never from the caller's.
pub trait Store:
    Base + Jobs + Nodes + Upkeep + Reads + Steering + Tenancy + Records + Leases + Schedules + Groups + Feed + Insight
{
}

impl<S> Store for S where
    S: Base
        + Jobs
        + Nodes
        + Upkeep
        + Reads
        + Steering
        + Tenancy
        + Records
        + Leases
        + Schedules
        + Groups
        + Feed
        + Insight
{
}

/// The rooms alone, for code that calls a store by its own type: `use windlass_core::store::rooms::*;`. Behind a
/// `dyn Store` nobody needs them.
pub mod rooms {
    pub use super::{
        Base, Feed, Groups, Insight, Jobs, Leases, Nodes, Reads, Records, Schedules, Steering, Tenancy, Upkeep,
    };
}

/// Implements a room for a store that wraps another: each call goes to the store in a field.
///
/// ```
/// use std::sync::Arc;
/// use windlass_core::store::Store;
/// use windlass_core::{forward_base, forward_calls};
///
/// struct Recorder {
///     store: Arc<dyn Store>,
/// }
///
/// forward_base!(Recorder => store);
/// windlass_core::reads_calls!(forward_calls! Recorder => store,);
/// windlass_core::steering_calls!(forward_calls! Recorder => store,);
/// ```
#[macro_export]
macro_rules! forward_calls {
    ($wrapper:ty => $store:ident, $room:ident: $($call:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[$crate::async_trait]
        impl $crate::store::$room for $wrapper {
            $(
                async fn $call(&self $(, $argument: $type)*) -> $answer {
                    self.$store.$call($($argument),*).await
                }
            )*
        }
    };
}

/// Implements [`Base`](crate::store::Base) for a store that wraps another; see [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! forward_base {
    ($wrapper:ty => $store:ident) => {
        #[$crate::async_trait]
        impl $crate::store::Base for $wrapper {
            fn name(&self) -> &'static str {
                self.$store.name()
            }
            async fn now(&self) -> $crate::store::Result<$crate::Timestamp> {
                self.$store.now().await
            }
            fn writers(&self) -> usize {
                self.$store.writers()
            }
            fn deadline(&self) -> ::std::time::Duration {
                self.$store.deadline()
            }
            fn limited(&self, tenant: $crate::TenantId) -> $crate::store::Limited {
                self.$store.limited(tenant)
            }
            async fn wait_for_wake(&self) -> $crate::store::News {
                self.$store.wait_for_wake().await
            }
            fn wake_others(&self, news: $crate::store::News) {
                self.$store.wake_others(news)
            }
            fn loops(&self) -> Vec<$crate::supervise::LoopHealth> {
                self.$store.loops()
            }
            fn transactions(&self) -> Option<::std::sync::Arc<dyn ::std::any::Any + Send + Sync>> {
                self.$store.transactions()
            }
        }
    };
}

/// The result of a store call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a store call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store could not be reached or was too slow, and nothing was written. Safe to repeat.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The connection was lost while a write was under way: it may have happened. Safe to repeat with a key.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
    /// The store has no room left. Nothing was written.
    #[error("the store is full: {0}")]
    Full(String),
    /// A tenant's quota does not allow the submit. Nothing was written.
    #[error(transparent)]
    QuotaExceeded(#[from] QuotaExceeded),
    /// A field cannot be stored.
    #[error(transparent)]
    InvalidInput(#[from] InvalidInput),
    /// The file or database belongs to another process or to a version of Windlass that is newer, the login may not do
    /// this, or a failover has left the server behind. Nothing was written; someone has to see to it.
    #[error("{0}")]
    Refused(String),
    /// A row holds what no version of Windlass writes: someone else has changed it. Nothing else is the matter with the
    /// store.
    #[error("cannot read column `{column}` of a stored row: {why}")]
    Unreadable {
        /// The column.
        column: String,
        /// What is wrong with what it holds.
        why: String,
    },
    /// A bug, or a store that someone else has changed.
    #[error("unexpected response from the store: {0}")]
    Internal(String),
}

impl Error {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Unavailable(_) => "unavailable",
            Error::Unknown(_) => "unknown_outcome",
            Error::Full(_) => "storage_full",
            Error::QuotaExceeded(_) => "quota_exceeded",
            Error::InvalidInput(_) => "invalid_input",
            Error::Refused(_) => "refused",
            Error::Unreadable { .. } => "unreadable",
            Error::Internal(_) => "internal_error",
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Unavailable(_) | Error::Unknown(_) | Error::Full(_))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Base;
    use crate::memory::MemoryStore;

    struct Wrapper {
        store: Arc<MemoryStore>,
    }

    forward_base!(Wrapper => store);
    crate::reads_calls!(forward_calls! Wrapper => store,);

    /// The macros must compile in a crate that has switched on no feature of this one: they name only what is always here.
    #[test]
    fn a_wrapper_forwards_whatever_features_are_on() {
        let wrapper = Wrapper { store: Arc::new(MemoryStore::new()) };
        assert_eq!(wrapper.name(), wrapper.store.name());
    }
}
