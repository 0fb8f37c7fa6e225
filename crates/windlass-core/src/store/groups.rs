//! Jobs that belong together: batches that are counted as their jobs end, and jobs that wait for others. The end of a
//! job changes the count of its batch in its own transaction ([`Finish::batch`](super::Finish::batch)); what follows from
//! that is settled after it, by whoever looks next.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::Result;
use super::base::Base;
use super::jobs::Submitted;
use crate::flows::depend::Parent;
use crate::life::lifecycle::Transition;
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::{BatchId, JobSpec, NewJob, Status};
use crate::model::payload::Payload;
use crate::model::tenant::{Scope, TenantId};

/// Batches that are counted as their jobs end, and jobs that wait for others.
#[async_trait]
pub trait Groups: Base {
    /// Creates a batch, or returns the one of the tenant that has its key.
    async fn open_batch(&self, batch: NewBatch) -> Result<BatchOpened>;

    /// Stores the jobs of one part of a batch, all or none, unless the part was added before or the batch is sealed.
    /// Tenants' quotas hold as for a submit. The total of the batch grows by the jobs that are stored.
    async fn add_part(&self, part: NewPart) -> Result<PartAdded>;

    /// Seals a batch of the tenant: nothing can be added from now on. Returns it, or `None` if there is none.
    async fn seal_batch(&self, tenant: TenantId, batch: BatchId) -> Result<Option<BatchRecord>>;

    /// Batches in the scope with exact counts, newest first.
    async fn batches(&self, scope: Scope, ask: &BatchAsk) -> Result<Vec<BatchRecord>>;

    /// Of these batches, or of all whose counts have changed if there are none, those that are complete and have not been
    /// [completed](Groups::complete_batch); at most `limit`. A store that keeps changes of counts apart adds them up here.
    async fn fold_batches(&self, batches: &[BatchId], limit: usize) -> Result<Vec<BatchRecord>>;

    /// Completes a batch once: if it is sealed, all its jobs have ended, and nobody has completed it, notes the time and
    /// stores the callback, in one transaction. False if nothing was written.
    async fn complete_batch(&self, completion: Completion) -> Result<bool>;

    /// Jobs that wait for others, with how those stand; by id, at most `limit`.
    async fn dependents(&self, which: &Dependents, limit: usize) -> Result<Vec<Dependent>>;

    /// Carries out what was decided about jobs that wait for others, each only if it still does. Returns in order the
    /// status it has now, or `None` if it did not wait any more.
    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Option<Status>>>;

    /// Who waits or waited for whom: every edge from or to one of these jobs and batches, at most `limit`, by parent and
    /// child. An edge goes with the job that waited.
    async fn edges(&self, of: &[JobId], limit: usize) -> Result<Vec<Edge>>;
}

/// How many batches of one tenant may be open or unfinished at a time: a loop that opens batches and forgets them is
/// stopped before it fills the table.
pub const BATCHES_MAX: usize = 10_000;

/// How long a batch is kept after it was completed; as long as a job by default.
pub const BATCH_KEPT: Duration = Duration::from_secs(14 * 24 * 3600);

/// A batch to create.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// Made by the service.
    pub id: BatchId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// Opening a batch with the same key again returns the first one.
    pub key: Option<String>,
    /// What the service stores of the callback, as JSON.
    pub callback: Option<Payload>,
}

/// What became of opening a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchOpened {
    /// It is new, or has the key that was given.
    Open(Box<BatchRecord>),
    /// The tenant has [`BATCHES_MAX`] that are not completed. Nothing was written.
    TooMany,
}

/// A part of a batch.
#[derive(Clone, Debug)]
pub struct NewPart {
    /// The tenant of the batch and of its jobs.
    pub tenant: TenantId,
    /// The batch.
    pub batch: BatchId,
    /// The number of the part.
    pub part: u32,
    /// Its jobs; each names the batch and the part.
    pub jobs: Vec<NewJob>,
}

/// What became of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartAdded {
    /// Its jobs are stored; one answer for each.
    Added(Vec<Submitted>),
    /// It was added before, with this many jobs. Nothing was written.
    Repeated(u64),
    /// The batch is sealed. Nothing was written.
    Sealed,
    /// The tenant has no such batch.
    NotFound,
}

/// Which batches to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchAsk {
    /// Only these.
    pub ids: Option<Vec<BatchId>>,
    /// Those before this one.
    pub before: Option<BatchId>,
    /// How many at most.
    pub limit: usize,
}

/// How many jobs of a batch have ended, by how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchCounts {
    /// All its jobs.
    pub total: u64,
    /// Those that succeeded.
    pub succeeded: u64,
    /// Those that were canceled.
    pub canceled: u64,
    /// Those that are dead letters now.
    pub dead: u64,
}

impl BatchCounts {
    /// Jobs that have ended.
    pub fn ended(&self) -> u64 {
        self.succeeded + self.canceled + self.dead
    }

    /// Jobs that have not ended.
    pub fn left(&self) -> u64 {
        self.total.saturating_sub(self.ended())
    }

    /// Counts `n` more jobs that ended in this way, or fewer if one was replayed.
    pub fn add(&mut self, status: Status, n: i64) {
        let count = match status {
            Status::Succeeded => &mut self.succeeded,
            Status::Canceled => &mut self.canceled,
            Status::DeadLettered => &mut self.dead,
            _ => return,
        };
        *count = count.saturating_add_signed(n);
    }
}

/// A batch as a store has it.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchRecord {
    /// Its id.
    pub id: BatchId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// See [`NewBatch::key`].
    pub key: Option<String>,
    /// See [`NewBatch::callback`].
    pub callback: Option<Payload>,
    /// How many parts were added.
    pub parts: u64,
    /// How far it is.
    pub counts: BatchCounts,
    /// When it was created, by the store's clock.
    pub created_at: Timestamp,
    /// When it was sealed.
    pub sealed_at: Option<Timestamp>,
    /// When it was completed.
    pub completed_at: Option<Timestamp>,
    /// The callback, once it is stored.
    pub callback_job: Option<JobId>,
}

impl BatchRecord {
    /// A batch without parts.
    pub fn new(batch: NewBatch, created_at: Timestamp) -> Self {
        let NewBatch { id, tenant, name, key, callback } = batch;
        BatchRecord {
            id,
            tenant,
            name,
            key,
            callback,
            parts: 0,
            counts: BatchCounts::default(),
            created_at,
            sealed_at: None,
            completed_at: None,
            callback_job: None,
        }
    }

    /// Whether it is to be completed: sealed, all its jobs have ended, and nobody has. Pure: every store decides by this.
    pub fn is_due(&self) -> bool {
        self.sealed_at.is_some() && self.completed_at.is_none() && self.counts.left() == 0
    }

    /// How it stands for a job that waits for it.
    pub fn as_parent(&self) -> Parent {
        match (self.completed_at, self.counts.succeeded == self.counts.total) {
            (None, _) => Parent::Unfinished,
            (Some(_), true) => Parent::Succeeded,
            (Some(_), false) => Parent::Failed,
        }
    }
}

/// A batch to complete.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The batch.
    pub batch: BatchId,
    /// What to store when it is.
    pub job: Option<Box<NewJob>>,
}

/// Which jobs that wait for others to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dependents {
    /// Those that wait for one of these.
    Of(Vec<JobId>),
    /// These.
    These(Vec<JobId>),
    /// All after this one.
    After(JobId),
}

/// A job that waits for others.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependent {
    /// The job.
    pub job: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What runs it.
    pub handler: String,
    /// What it carries along: with what it waits for. The default one if it cannot be read.
    pub spec: JobSpec,
    /// How each of [`After::of`](crate::flows::depend::After::of) stands, in order.
    pub parents: Vec<Parent>,
}

/// What becomes of a job that waited for others.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The job.
    pub job: JobId,
    /// [`Transition::Cancel`] or [`Transition::DeadLetter`]; `None` if it goes on: behind its ordering key, until its
    /// time, or ready.
    pub end: Option<Transition>,
    /// A job to store in the same transaction, if this is carried out: a callback.
    pub follow_up: Option<Box<NewJob>>,
}

/// One job that waits or waited for another, or for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Edge {
    /// What ends first.
    pub parent: JobId,
    /// What waits.
    pub child: JobId,
}

/// The calls of [`Groups`](crate::store::Groups), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! groups_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Groups:
            open_batch(batch: $crate::store::NewBatch) -> $crate::store::Result<$crate::store::BatchOpened>;
            add_part(part: $crate::store::NewPart) -> $crate::store::Result<$crate::store::PartAdded>;
            seal_batch(tenant: $crate::TenantId, batch: $crate::BatchId) -> $crate::store::Result<Option<$crate::store::BatchRecord>>;
            batches(scope: $crate::Scope, ask: &$crate::store::BatchAsk) -> $crate::store::Result<Vec<$crate::store::BatchRecord>>;
            fold_batches(batches: &[$crate::BatchId], limit: usize) -> $crate::store::Result<Vec<$crate::store::BatchRecord>>;
            complete_batch(completion: $crate::store::Completion) -> $crate::store::Result<bool>;
            dependents(which: &$crate::store::Dependents, limit: usize) -> $crate::store::Result<Vec<$crate::store::Dependent>>;
            settle(settlements: Vec<$crate::store::Settlement>) -> $crate::store::Result<Vec<Option<$crate::Status>>>;
            edges(of: &[$crate::JobId], limit: usize) -> $crate::store::Result<Vec<$crate::store::Edge>>;
        }
    };
}
