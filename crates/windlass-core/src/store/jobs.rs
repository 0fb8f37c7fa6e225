//! The life of a job as its node writes it: submit, claim, finish, and what an attempt reports on its way.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::Result;
use super::base::Base;
use crate::life::lifecycle::Transition;
use crate::life::logs::LogLevel;
use crate::model::clock::Timestamp;
use crate::model::id::{Fence, JobId, LeaseId, NodeId};
use crate::model::job::{BatchId, ClaimedJob, NewJob, Progress, Status};
use crate::model::payload::Payload;
use crate::model::tenant::TenantId;
use crate::node::suspect::COHORTS_FROM;
use crate::operate::usage::Cost;

/// The life of a job as its node writes it: submit, claim, finish, and what an attempt reports on its way.
#[async_trait]
pub trait Jobs: Base {
    /// Stores the jobs, in order, all or none, and answers for each with its id or that of the job that has its key.
    /// Within the tenants' quotas: those of one tenant beyond its quota refuse the whole call.
    /// Jobs whose `start` is not ahead become ready (or blocked behind their ordering key); with `lease`, the plain
    /// ones are born leased to that node instead, with 0 failures, and are running.
    async fn submit(&self, submit: Submit) -> Result<Vec<Submitted>>;

    /// Takes at most `max` ready jobs under one new lease. First up to `quota[b]` of each band, then from the most
    /// urgent band on until `max`, and never more than a queue's own limit. Within a band: higher priority first, then
    /// each tenant in its turn, then oldest first. Jobs of a tenant that has as many running as it may are passed over,
    /// and do not count as more.
    async fn claim(&self, claim: Claim) -> Result<Claimed>;

    /// Carries out transitions, each only if the job is still in the lease it names (its fence). Answers in order.
    /// A job whose cancel was requested ends as canceled whatever its transition says.
    /// A job that goes back to ready or scheduled waits in its own queue, or in [`suspect_queue`] once a node was lost
    /// with it.
    async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>>;

    /// Keeps what attempts report on their way, each note under its own fence. Returns in order whether a note is kept:
    /// false means that its fence is lost. Of notes of one kind about one job, the last one counts. A checkpoint is
    /// durable when this returns; progress and lines are hints that the store may lose with a crash.
    async fn note(&self, node: NodeId, notes: Vec<Note>) -> Result<Vec<bool>>;

    /// The jobs that the node holds, in any order: what it has claimed or bore, and has not finished.
    async fn held(&self, node: NodeId) -> Result<Vec<Fence>>;
}

/// Jobs to store.
#[derive(Clone, Debug)]
pub struct Submit {
    /// In the order of the callers.
    pub jobs: Vec<NewJob>,
    /// Start the plain ones on this node, under this new lease.
    pub lease: Option<(NodeId, LeaseId)>,
}

/// What became of a submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    /// Its id, or that of the job that holds its key.
    pub id: JobId,
    /// Whether another job holds its key, so that nothing was stored.
    pub duplicate: bool,
}

/// What a node can take.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The node.
    pub node: NodeId,
    /// The lease the jobs get; new for each call.
    pub lease: LeaseId,
    /// Which queues, with how many jobs at most from each. In order of preference.
    pub queues: Vec<(String, usize)>,
    /// How many jobs at most in all.
    pub max: usize,
    /// The part of each band, by [`Band::index`](crate::Band::index).
    pub quota: [usize; 4],
    /// Only jobs of this tenant, in the order in which they stand among the others. Nodes that run jobs ask for all.
    pub tenant: Option<TenantId>,
}

/// What a claim returned.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The store's time.
    pub now: Timestamp,
    /// The jobs, in order of start.
    pub jobs: Vec<ClaimedJob>,
    /// Which bands may have more.
    pub more: [bool; 4],
}

/// One ended attempt, as `lifecycle` decided.
#[derive(Clone, Debug)]
pub struct Finish {
    /// The job and the lease.
    pub fence: Fence,
    /// The number of the attempt.
    pub attempt: u16,
    /// How long the attempt ran, by the node's monotonic clock; the store derives when it started.
    pub ran: Duration,
    /// What becomes of the job.
    pub transition: Transition,
    /// A job to store in the same transaction, if this one is accepted: a callback.
    pub follow_up: Option<Box<NewJob>>,
    /// What the attempt has cost, recorded in the same transaction if this is accepted, whatever becomes of the job.
    pub cost: Option<Cost>,
    /// Whether a success is written into the audit log, in the same transaction if this is accepted: an entry
    /// `JOB_SUCCEEDED` that stays whatever becomes of the job's row.
    pub audit: bool,
    /// The batch whose count the end of the job changes, in the same transaction.
    pub batch: Option<BatchId>,
    /// Whether an attempt at the job has begun, this one or an earlier one. A job that comes back is then
    /// [resumed](ClaimedJob::resumed): it may have a checkpoint, and expires no more.
    pub resumed: bool,
}

/// Whether a finish was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The job is now in this status ([`Status::Canceled`] where a cancel came first).
    Accepted(Status),
    /// The fence is not current: the job belongs to someone else. Nothing was written.
    Fenced,
}

/// What an attempt reports on its way.
#[derive(Clone, Debug)]
pub struct Note {
    /// The job and the lease.
    pub fence: Fence,
    /// What to keep.
    pub what: Noted,
}

/// What a note says.
#[derive(Clone, Debug)]
pub enum Noted {
    /// How far the job has come; the latest is kept.
    Progress(Progress),
    /// What the attempt has said since its last note; of a job the newest [`LOG_LINES`](crate::LOG_LINES) are kept. A
    /// line whose number under its lease is kept already is not kept twice. One note of a job in a call has its lines.
    Log {
        /// The number of the attempt.
        attempt: u16,
        /// In the order of their numbers.
        lines: Vec<NewLine>,
    },
    /// Where the next attempt resumes.
    Checkpoint(Payload),
}

/// A log line on its way into a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLine {
    /// The line's number within its lease, counted from 1. Numbers that are missing are lines that were dropped.
    pub number: u64,
    /// When it was said.
    pub at: Timestamp,
    /// How serious it is.
    pub level: LogLevel,
    /// What it says.
    pub message: String,
}

/// The queue of jobs of `queue` that so many nodes were lost with while they held them. Apart from the others, so that
/// nodes can take those of the second kind in cohorts ([`suspect`](crate::node::suspect)).
pub fn suspect_queue(queue: &str, recoveries: u16) -> String {
    let [first, again] = SUSPECT_QUEUES;
    format!("{}{queue}", if recoveries < COHORTS_FROM { first } else { again })
}

/// The queue that the jobs of a queue belong to: itself, or where suspects were before their node was lost.
pub(crate) fn queue_of(queue: &str) -> &str {
    SUSPECT_QUEUES.iter().find_map(|kept| queue.strip_prefix(kept)).unwrap_or(queue)
}

/// How the names of the queues of suspects begin: of jobs that were lost once, and of those that were lost again.
pub const SUSPECT_QUEUES: [&str; 2] = ["suspect:", "suspect-again:"];

/// How many jobs one ready chunk holds at most.
pub const CHUNK_JOBS: usize = 128;

/// The calls of [`Jobs`](crate::store::Jobs), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! jobs_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Jobs:
            submit(submit: $crate::store::Submit) -> $crate::store::Result<Vec<$crate::store::Submitted>>;
            claim(claim: $crate::store::Claim) -> $crate::store::Result<$crate::store::Claimed>;
            finish(node: $crate::store::NodeId, finishes: Vec<$crate::store::Finish>) -> $crate::store::Result<Vec<$crate::store::Finished>>;
            note(node: $crate::store::NodeId, notes: Vec<$crate::store::Note>) -> $crate::store::Result<Vec<bool>>;
            held(node: $crate::store::NodeId) -> $crate::store::Result<Vec<$crate::store::Fence>>;
        }
    };
}
