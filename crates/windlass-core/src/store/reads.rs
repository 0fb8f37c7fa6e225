//! Reading jobs: one, many, counted, with their history.

use async_trait::async_trait;

use super::Result;
use super::base::Base;
use super::nodes::NodeRecord;
use super::steering::Pause;
use crate::life::logs::LogLine;
use crate::model::clock::Timestamp;
use crate::model::filter::JobFilter;
use crate::model::id::JobId;
use crate::model::job::{Found, HistoryEntry, JobRecord, Page, Status};
use crate::model::payload::Payload;
use crate::model::tenant::Scope;
use crate::operate::failures::Failing;

/// Reading jobs: one, many, counted, with their history.
#[async_trait]
pub trait Reads: Base {
    /// The jobs with these ids that the scope covers, in any order.
    async fn get(&self, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>>;

    /// A job's input.
    async fn input(&self, scope: Scope, id: JobId) -> Result<Option<Payload>>;

    /// Jobs that pass the filter, newest first, and where the next page begins. With `look_at`, looks only at that many
    /// of the newest candidates, so that a page for something rare costs as much as any other: candidates are the jobs
    /// of the scope, or those in a wanted status where these are kept apart, and the page's offset does not count.
    async fn find(&self, scope: Scope, filter: &JobFilter, page: Page, look_at: Option<usize>) -> Result<Found>;

    /// How many jobs pass the filter, counted up to `cap`: for previews, so never more than someone asked for.
    async fn count(&self, scope: Scope, filter: &JobFilter, cap: usize) -> Result<u64>;

    /// Of the jobs that pass the filter, the `newest` dead letters that nobody has replayed, and as many of those that
    /// wait for a retry; in any order.
    async fn failing(&self, scope: Scope, filter: &JobFilter, newest: usize) -> Result<Vec<Failing>>;

    /// Everything that happened to a job, oldest first; empty if there is none.
    async fn history(&self, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>>;

    /// The log lines of a job that come after a sequence, oldest first; none if it is not there.
    async fn logs(&self, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>>;

    /// How many jobs are in each status: as many as a list of them would show, at all times. Counts no ended jobs one by
    /// one: they are counted as they end, and when they are gone.
    async fn counts(&self, scope: Scope) -> Result<Counts>;

    /// What `why` needs to know about a job.
    async fn whereabouts(&self, scope: Scope, id: JobId) -> Result<Option<Whereabouts>>;
}

/// How many jobs are in each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; 9]);

impl Counts {
    /// The count of one status.
    pub fn get(&self, status: Status) -> u64 {
        self.0[status.code() as usize]
    }

    /// Adds to the count of one status.
    pub fn add(&mut self, status: Status, n: u64) {
        self.0[status.code() as usize] += n;
    }

    /// Takes from the count of one status.
    pub(crate) fn remove(&mut self, status: Status, n: u64) {
        let count = &mut self.0[status.code() as usize];
        *count = count.saturating_sub(n);
    }

    /// Jobs that have not ended.
    pub fn unfinished(&self) -> u64 {
        Status::ALL.iter().filter(|s| !s.is_terminal()).map(|s| self.get(*s)).sum()
    }
}

/// Where a job is, with what decides when it runs.
#[derive(Clone, Debug)]
pub struct Whereabouts {
    /// The store's time.
    pub now: Timestamp,
    /// The job.
    pub record: JobRecord,
    /// For a ready job: how many ready jobs of its queue come before it, at most.
    pub ahead: Option<u64>,
    /// For a job behind an ordering key: who holds the key.
    pub key_holder: Option<JobId>,
    /// The pauses in force.
    pub pauses: Vec<Pause>,
    /// The registered nodes.
    pub nodes: Vec<NodeRecord>,
    /// For a ready job of a tenant whose running jobs are limited: how many run, and how many may.
    pub cap: Option<(u64, u64)>,
}

/// How many jobs pass the filter, by pages of them: for stores without a quicker way.
pub async fn count_by_pages<S: Reads + ?Sized>(store: &S, scope: Scope, filter: &JobFilter, cap: usize) -> Result<u64> {
    let (mut page, mut counted) = (Page::first(Page::MAX), 0);
    while counted < cap {
        page.limit = (cap - counted).min(Page::MAX);
        let records = store.find(scope, filter, page, None).await?.jobs;
        counted += records.len();
        page.before = records.last().map(|record| record.id);
        if records.len() < page.limit {
            break;
        }
    }
    Ok(counted as u64)
}

/// The calls of [`Reads`](crate::store::Reads), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! reads_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Reads:
            get(scope: $crate::Scope, ids: &[$crate::JobId]) -> $crate::store::Result<Vec<$crate::JobRecord>>;
            input(scope: $crate::Scope, id: $crate::JobId) -> $crate::store::Result<Option<$crate::Payload>>;
            find(scope: $crate::Scope, filter: &$crate::JobFilter, page: $crate::Page, look_at: Option<usize>) -> $crate::store::Result<$crate::Found>;
            count(scope: $crate::Scope, filter: &$crate::JobFilter, cap: usize) -> $crate::store::Result<u64>;
            failing(scope: $crate::Scope, filter: &$crate::JobFilter, newest: usize) -> $crate::store::Result<Vec<$crate::failures::Failing>>;
            history(scope: $crate::Scope, id: $crate::JobId) -> $crate::store::Result<Vec<$crate::HistoryEntry>>;
            logs(scope: $crate::Scope, id: $crate::JobId, after: u64) -> $crate::store::Result<Vec<$crate::LogLine>>;
            counts(scope: $crate::Scope) -> $crate::store::Result<$crate::store::Counts>;
            whereabouts(scope: $crate::Scope, id: $crate::JobId) -> $crate::store::Result<Option<$crate::store::Whereabouts>>;
        }
    };
}
