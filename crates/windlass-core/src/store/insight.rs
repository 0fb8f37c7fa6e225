//! The past for charts, the backlog for autoscalers, and the state of the store itself. Losing some of it costs a chart,
//! never a job.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use super::base::Base;
use super::reads::Counts;
use crate::model::clock::Timestamp;
use crate::model::tenant::Scope;
use crate::operate::activity::{Addition, Resolution, Slice, Waiting};
use crate::operate::health::{Checkup, Finding, HeldSnapshot, Vitals};

/// The past for charts, the backlog for autoscalers, and the state of the store itself. Losing some of it costs a chart,
/// never a job.
#[async_trait]
pub trait Insight: Base {
    /// Adds what happened at `at` to the bucket of each [`Resolution`].
    async fn add_activity(&self, at: Timestamp, additions: Vec<Addition>) -> Result<()>;

    /// What is kept in buckets that begin at `from` or later: of a tenant's own jobs, or of all tenants' together. In any
    /// order.
    async fn activity(&self, scope: Scope, resolution: Resolution, from: Timestamp) -> Result<Vec<Slice>>;

    /// Counts all jobs by status for the present bucket of each [`Resolution`], unless somebody has, or nothing has
    /// changed for less than [`DEPTH_HOLDS`](crate::operate::activity::DEPTH_HOLDS). Several nodes may ask at once. Reads what
    /// waits and runs, no ended job.
    async fn sample_depth(&self) -> Result<()>;

    /// What [`super::Store::sample_depth`] saw since `from`, oldest first.
    async fn depths(&self, resolution: Resolution, from: Timestamp) -> Result<Vec<(Timestamp, Counts)>>;

    /// Removes buckets whose time is over ([`Resolution::keep`]), at most `limit` rows. Answers how many.
    async fn clean_activity(&self, limit: usize) -> Result<usize>;

    /// What waits, is blocked and runs by queue and handler: exact while few jobs wait, and estimated from a sample of
    /// chunks where they are many. One handler may be there once for each queue.
    async fn backlog(&self, scope: Scope) -> Result<Vec<Waiting>>;

    /// How the store is: what people watch while it works. Cheap enough for every few seconds.
    async fn vitals(&self) -> Result<Vitals>;

    /// What keeps the store from removing dead rows, longer than this. Nothing where there is no such thing.
    async fn held_snapshots(&self, longer_than: Duration) -> Result<Vec<HeldSnapshot>>;

    /// Looks at the store itself: its settings, its schema, its room. Changes nothing.
    async fn examine(&self, checkup: &Checkup) -> Result<Vec<Finding>>;
}

/// The calls of [`Insight`](crate::store::Insight), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! insight_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Insight:
            add_activity(at: $crate::Timestamp, additions: Vec<$crate::activity::Addition>) -> $crate::store::Result<()>;
            activity(scope: $crate::Scope, resolution: $crate::activity::Resolution, from: $crate::Timestamp) -> $crate::store::Result<Vec<$crate::activity::Slice>>;
            sample_depth() -> $crate::store::Result<()>;
            depths(resolution: $crate::activity::Resolution, from: $crate::Timestamp) -> $crate::store::Result<Vec<($crate::Timestamp, $crate::store::Counts)>>;
            clean_activity(limit: usize) -> $crate::store::Result<usize>;
            backlog(scope: $crate::Scope) -> $crate::store::Result<Vec<$crate::activity::Waiting>>;
            vitals() -> $crate::store::Result<$crate::health::Vitals>;
            held_snapshots(longer_than: ::std::time::Duration) -> $crate::store::Result<Vec<$crate::health::HeldSnapshot>>;
            examine(checkup: &$crate::health::Checkup) -> $crate::store::Result<Vec<$crate::health::Finding>>;
        }
    };
}
