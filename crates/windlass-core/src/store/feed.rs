//! Status events of every node, written with the change itself and only while somebody wants them.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use super::base::Base;
use crate::model::clock::Timestamp;
use crate::model::error::JobError;
use crate::model::id::JobId;
use crate::model::job::Status;
use crate::model::tenant::TenantId;

/// Status events of every node, written with the change itself and only while somebody wants them.
#[async_trait]
pub trait Feed: Base {
    /// Has status events kept for so long from now on: every change that [`super::Store::finish`], a cancel, a replay, a
    /// recovery or an expiry brings, with the change itself. Other processes follow within about a second. While nobody
    /// wants them, none are kept and nothing is done.
    async fn want_feed(&self, time: Duration) -> Result<()>;

    /// The largest sequence that was given out, 0 if none was.
    async fn feed_end(&self) -> Result<u64>;

    /// The first `limit` status events that are asked for, in order. They are kept for an hour, the newest
    /// [`FEED_EVENTS_KEPT`] at most. A change may be seen before one of a lower sequence; a sequence may stay without one.
    async fn read_feed(&self, ask: &FeedAsk, limit: usize) -> Result<Vec<FeedRow>>;
}

/// Status events kept at most: a quarter of an hour of a hundred a second.
pub const FEED_EVENTS_KEPT: u64 = 100_000;

/// How long status events are kept.
pub const FEED_KEPT_FOR: Duration = Duration::from_secs(3_600);

/// Which status events to read: those after a sequence, and those in gaps below it (first and last of each).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedAsk {
    /// After this one.
    pub after: u64,
    /// And these, both ends included.
    pub gaps: Vec<(u64, u64)>,
}

impl FeedAsk {
    /// Whether a sequence is asked for.
    pub fn covers(&self, sequence: u64) -> bool {
        sequence > self.after || self.gaps.iter().any(|(first, last)| (*first..=*last).contains(&sequence))
    }
}

/// A status event as a store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedRow {
    /// Its place in the feed.
    pub sequence: u64,
    /// The job.
    pub job: JobId,
    /// Where it came to be.
    pub status: Status,
    /// The number of the attempt that ended, or of those before where none did.
    pub attempt: u16,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// What the job is; `None` if it is gone.
    pub of: Option<FeedJob>,
}

/// What a status event tells of its job.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedJob {
    /// Whose it is.
    pub tenant: TenantId,
    /// What runs it.
    pub handler: String,
    /// Whether its error is sealed.
    pub sealed: bool,
    /// What went wrong, for a retry or a dead letter.
    pub error: Option<JobError>,
}

/// The calls of [`Feed`](crate::store::Feed), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! feed_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Feed:
            want_feed(time: ::std::time::Duration) -> $crate::store::Result<()>;
            feed_end() -> $crate::store::Result<u64>;
            read_feed(ask: &$crate::store::FeedAsk, limit: usize) -> $crate::store::Result<Vec<$crate::store::FeedRow>>;
        }
    };
}
