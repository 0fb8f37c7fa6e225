//! What a job is: its states, the options it is submitted with, and how it is read back.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::NO_TIMEOUT;
use crate::flows::depend::After;
use crate::life::submit::check_unreserved;
use crate::model::clock::Timestamp;
use crate::model::error::{InvalidInput, JobError};
use crate::model::id::JobId;
use crate::model::payload::Payload;
use crate::model::priority::Priority;
use crate::model::retry::RetryPolicy;
use crate::model::retry::{millis, option_millis};
use crate::model::tenant::TenantId;
use crate::operate::usage::Cost;
use crate::store::{LeaseId, NodeId};

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// Waits for a worker.
    Pending,
    /// Waits for its start time.
    Scheduled,
    /// Failed, and waits for its backoff.
    Retrying,
    /// Waits for something other than time: an ordering key, a pause, other jobs.
    Blocked,
    /// Reserved for flows: waits for a timer or an external event.
    Suspended,
    /// A node holds it.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended on request, or because it was not wanted any more.
    Canceled,
    /// Failed permanently; kept with its errors until it is replayed or purged.
    DeadLettered,
}

impl Status {
    /// All, in the order of a life.
    pub const ALL: [Status; 9] = [
        Status::Pending,
        Status::Scheduled,
        Status::Retrying,
        Status::Blocked,
        Status::Suspended,
        Status::Running,
        Status::Succeeded,
        Status::Canceled,
        Status::DeadLettered,
    ];

    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Scheduled => "scheduled",
            Status::Retrying => "retrying",
            Status::Blocked => "blocked",
            Status::Suspended => "suspended",
            Status::Running => "running",
            Status::Succeeded => "succeeded",
            Status::Canceled => "canceled",
            Status::DeadLettered => "dead_lettered",
        }
    }

    /// Reads a name or one of the aliases other systems use.
    pub fn parse(text: &str) -> Result<Status, InvalidInput> {
        let status = match text.to_ascii_lowercase().as_str() {
            "pending" | "queued" | "available" | "waiting" => Status::Pending,
            "scheduled" | "delayed" => Status::Scheduled,
            "retrying" | "retryable" => Status::Retrying,
            "blocked" => Status::Blocked,
            "suspended" => Status::Suspended,
            "running" | "processing" | "executing" => Status::Running,
            "succeeded" | "success" | "complete" | "completed" => Status::Succeeded,
            "canceled" | "cancelled" => Status::Canceled,
            // For those whose `failed` is tried again, there is `retrying`.
            "dead_lettered" | "deadlettered" | "dead" | "failed" | "exhausted" => Status::DeadLettered,
            _ => {
                let known = Status::ALL.map(Status::as_str).join(", ");
                let message = format!("unknown status `{}`; known are {known}", text.escape_debug());
                return Err(InvalidInput::new("status", message));
            }
        };
        Ok(status)
    }

    /// Whether the job has ended.
    pub fn is_terminal(self) -> bool {
        matches!(self, Status::Succeeded | Status::Canceled | Status::DeadLettered)
    }

    /// The number that stores save.
    pub fn code(self) -> i16 {
        self as i16
    }

    /// From the number that stores save.
    pub fn from_code(code: i16) -> Option<Status> {
        Status::ALL.into_iter().find(|s| s.code() == code)
    }

    /// Whether a job may go from here to `next` in one step. Everything else is impossible in every store.
    pub fn may_become(self, next: Status) -> bool {
        use Status::*;
        match (self, next) {
            (Running, Running) => false,
            (Pending | Scheduled | Retrying | Blocked | Suspended, Canceled | Pending | Blocked) => self != next,
            // Given a start that lies ahead.
            (Pending | Blocked, Scheduled) => true,
            (Pending, Running) => true,
            (Running, _) => true,
            // Replay in place.
            (DeadLettered, Pending | Blocked) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Groups the jobs of one bulk submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchId(pub JobId);

/// How a job is submitted. By default it starts at once, with normal priority and the retry policy of its handler.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use windlass_core::{HandlerRef, JobContext, JobError, JobService, MemoryStore, Priority, Status, SubmitOptions};
///
/// const REMIND: HandlerRef<String, ()> = HandlerRef::new("invoice.remind");
/// # async fn remind(_: (), _: JobContext, _: String) -> Result<(), JobError> { Ok(()) }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), windlass_core::Error> {
/// # let store = Arc::new(MemoryStore::new());
/// # let jobs = JobService::builder(store).function(REMIND, (), remind).start().await?;
/// let options = SubmitOptions::new()
///     .idempotency_key("invoice-7") // repeating the submit returns the same job
///     .priority(Priority::HIGH)
///     .delay(Duration::from_secs(60))
///     .tag("billing");
/// let first = REMIND.submit_with(&jobs, "ada@example.org", options.clone()).await?;
/// let again = REMIND.submit_with(&jobs, "ada@example.org", options).await?;
/// assert_eq!((again.id(), again.is_duplicate()), (first.id(), true));
/// assert_eq!(first.status().await?, Status::Scheduled);
/// # jobs.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SubmitOptions {
    /// Unique per tenant and handler for the life of the job.
    pub idempotency_key: Option<String>,
    /// Unique by content while queued or running, or for a time.
    pub unique: Option<Unique>,
    /// How urgent it is.
    pub priority: Option<Priority>,
    /// When it starts.
    pub start: Start,
    /// Jobs of one tenant with the same key run one at a time, in order of submission.
    pub ordering_key: Option<String>,
    /// The batch it belongs to.
    pub batch: Option<BatchId>,
    /// Labels to find it by.
    pub tags: Vec<String>,
    /// Overrides the caller's correlation id.
    pub correlation_id: Option<String>,
    /// The queue it waits in; the handler's own by default.
    pub queue: Option<String>,
    /// What the job carries along.
    pub spec: JobSpec,
}

/// When a job starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// This long after the store accepted it.
    After(#[serde(with = "millis")] Duration),
    /// At this time of the store's clock.
    At(Timestamp),
}

/// Uniqueness by content, or by a key that the caller chooses.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unique {
    /// The key; `None` means the [`dedupe_key`](crate::dedupe_key) of handler, tenant and input.
    pub key: Option<String>,
    /// How long it holds.
    pub within: UniqueWithin,
}

impl fmt::Debug for Unique {
    /// Only the size of the key: one made of content is the input itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.as_ref().map(|key| format!("{} bytes", key.len()));
        f.debug_struct("Unique").field("key", &key).field("within", &self.within).finish()
    }
}

/// How long a unique key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UniqueWithin {
    /// Until the job has ended.
    Unfinished,
    /// This long after the submit, regardless of the job's status.
    Window(#[serde(with = "millis")] Duration),
}

/// The parts of a job that only its attempts read. Stored as one JSON value; absent for a plain job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct JobSpec {
    /// The timeout of an attempt, or [`NO_TIMEOUT`]; the handler's timeout if absent.
    #[serde(skip_serializing_if = "Option::is_none", with = "option_millis")]
    pub timeout: Option<Duration>,
    /// When it is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Canceled as `expired` if it has not started by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// No attempt starts or continues after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// How long it is kept after it has ended.
    #[serde(skip_serializing_if = "Option::is_none", with = "option_millis")]
    pub retention: Option<Duration>,
    /// Headers stored with the job.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The user who submitted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The service that submitted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The time the job stands for, such as the night of a report; it may start later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominal_at: Option<Timestamp>,
    /// The key it was submitted with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// The dead letter this job is a replay of, or the job this one follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<JobId>,
    /// Set on jobs that carry a callback of their parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
    /// What it waits for before it starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Box<After>>,
    /// The part of its batch it was added with. Set by the service; a value set by the caller is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// Whether the job's data is encrypted. Set by the service; a value set by the caller is ignored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
}

impl JobSpec {
    /// Whether nothing is set, so that nothing needs to be stored.
    pub fn is_default(&self) -> bool {
        *self == JobSpec::default()
    }
}

/// Which callback a follow-up job carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Callback {
    /// The parent succeeded.
    OnSuccess,
    /// The parent became a dead letter.
    OnFailure,
}

impl SubmitOptions {
    /// The default options.
    pub fn new() -> Self {
        SubmitOptions::default()
    }

    /// A second submit with this key returns the first job's id.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// At most one job with this handler, tenant and input is queued or running.
    #[must_use]
    pub fn unique(mut self, within: UniqueWithin) -> Self {
        self.unique = Some(Unique { key: None, within });
        self
    }

    /// At most one job with this key is queued or running.
    #[must_use]
    pub fn unique_key(mut self, key: impl Into<String>, within: UniqueWithin) -> Self {
        self.unique = Some(Unique { key: Some(key.into()), within });
        self
    }

    /// Sets the priority.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Starts this long after the submit.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.start = Start::After(delay);
        self
    }

    /// Starts at this time.
    #[must_use]
    pub fn run_at(mut self, at: Timestamp) -> Self {
        self.start = Start::At(at);
        self
    }

    /// Runs after every earlier job of the tenant with this key.
    #[must_use]
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// Puts the job into a batch.
    #[must_use]
    pub fn batch(mut self, batch: BatchId) -> Self {
        self.batch = Some(batch);
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Sets the correlation id.
    #[must_use]
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// Chooses the queue.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Sets the timeout of each attempt; `None` for no timeout. A deadline applies in any case.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.spec.timeout = Some(timeout.into().unwrap_or(NO_TIMEOUT));
        self
    }

    /// Overrides the handler's retry policy.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.spec.retry = Some(policy);
        self
    }

    /// Cancels the job if it has not started by then.
    #[must_use]
    pub fn expires_at(mut self, at: Timestamp) -> Self {
        self.spec.expires_at = Some(at);
        self
    }

    /// Ends the job if it has not succeeded by then.
    #[must_use]
    pub fn deadline_at(mut self, at: Timestamp) -> Self {
        self.spec.deadline_at = Some(at);
        self
    }

    /// Sets the time the job stands for; it does not affect when the job starts.
    #[must_use]
    pub fn nominal_at(mut self, at: Timestamp) -> Self {
        self.spec.nominal_at = Some(at);
        self
    }

    /// Sets how long the job is kept after it has ended.
    #[must_use]
    pub fn retention(mut self, keep: Duration) -> Self {
        self.spec.retention = Some(keep);
        self
    }

    /// Adds a header that travels with the job.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.headers.insert(name.into(), value.into());
        self
    }
}

/// A job on its way into a store: checked, with its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewJob {
    /// Created by the submitter.
    pub id: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What runs it.
    pub handler: String,
    /// Where it waits.
    pub queue: String,
    /// How urgent it is.
    pub priority: Priority,
    /// When it starts.
    pub start: Start,
    /// Its input.
    pub payload: Payload,
    /// See [`SubmitOptions::idempotency_key`].
    pub idempotency_key: Option<String>,
    /// See [`SubmitOptions::unique`]; the key is always set here.
    pub unique: Option<Unique>,
    /// See [`SubmitOptions::ordering_key`].
    pub ordering_key: Option<String>,
    /// Its batch.
    pub batch: Option<BatchId>,
    /// Its labels.
    pub tags: Vec<String>,
    /// Ties together what happens for one request.
    pub correlation_id: Option<String>,
    /// What only its attempts read.
    pub spec: JobSpec,
}

impl NewJob {
    /// Rejects names and keys that begin with `windlass.`, which are reserved. For jobs submitted inside a caller's own
    /// transaction, which may not come from [`JobService::prepare`](crate::JobService::prepare).
    pub fn check_unreserved(&self) -> Result<(), InvalidInput> {
        check_unreserved("handler", &self.handler)?;
        check_unreserved("queue", &self.queue)?;
        let keys = [("idempotency_key", &self.idempotency_key), ("ordering_key", &self.ordering_key)];
        keys.into_iter().try_for_each(|(field, key)| key.as_deref().map_or(Ok(()), |key| check_unreserved(field, key)))
    }

    /// Whether it takes the short way through a store: no key, no gate, no expiry to watch.
    pub fn is_plain(&self) -> bool {
        self.idempotency_key.is_none()
            && self.unique.is_none()
            && self.ordering_key.is_none()
            && self.spec.expires_at.is_none()
            && self.spec.after.is_none()
    }

    /// The batch that is counted by its end.
    pub fn counted_batch(&self) -> Option<BatchId> {
        self.batch.filter(|_| self.spec.part.is_some())
    }
}

/// A job as an attempt gets it.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
    /// The job.
    pub id: JobId,
    /// The lease under which this node holds it: the fence of every write.
    pub lease: LeaseId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What runs it.
    pub handler: String,
    /// The queue it was claimed from, which is not the one it was submitted to after a `Route` or a recovery.
    pub queue: String,
    /// How urgent it is.
    pub priority: Priority,
    /// Its input.
    pub payload: Payload,
    /// Failed attempts so far.
    pub failed: u16,
    /// Nodes lost while they held it.
    pub recoveries: u16,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// Since when it could run.
    pub ready_at: Timestamp,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// Its batch.
    pub batch: Option<BatchId>,
    /// Its correlation id.
    pub correlation_id: Option<String>,
    /// Its labels.
    pub tags: Vec<String>,
    /// What only its attempts read.
    pub spec: JobSpec,
    /// Whether an attempt has begun before, including one that was snoozed or released and does not count.
    pub resumed: bool,
    /// What an earlier attempt saved.
    pub checkpoint: Option<Payload>,
    /// The columns of its row that could not be read and are empty here; such a job never runs.
    pub unreadable: Option<String>,
}

impl ClaimedJob {
    /// The number of this attempt, from 1. A graceful release does not use one up.
    pub fn attempt(&self) -> u16 {
        self.failed.saturating_add(self.recoveries).saturating_add(1)
    }

    /// The batch that is counted by its end.
    pub fn counted_batch(&self) -> Option<BatchId> {
        self.batch.filter(|_| self.spec.part.is_some())
    }
}

/// A job as reads return it. Its input is read separately (`input`), because that needs another right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The job.
    pub id: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What runs it.
    pub handler: String,
    /// Where it waits.
    pub queue: String,
    /// Where it is in its life.
    pub status: Status,
    /// How urgent it is.
    pub priority: Priority,
    /// Attempts begun or failed so far; for an ended job, the number of its last attempt.
    pub attempt: u16,
    /// Failed attempts.
    pub failed: u16,
    /// Nodes lost while they held it.
    pub recoveries: u16,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it is due, if that lies ahead or lay ahead at the submit or at an edit.
    pub run_at: Option<Timestamp>,
    /// When its last attempt started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The node that holds it or ran it last.
    pub node: Option<NodeId>,
    /// Whether a cancel has been asked for and not yet been carried out.
    pub cancel_requested: bool,
    /// What it returned.
    pub output: Option<Payload>,
    /// Its last error.
    pub error: Option<JobError>,
    /// Why it ended or what it waits for: `max_retries`, `expired`, `key:…`, `pause:…`.
    pub reason: Option<String>,
    /// The last progress it reported.
    pub progress: Option<Progress>,
    /// The recorded cost so far, of all attempts and of later records; none if no cost was recorded.
    pub cost: Option<Cost>,
    /// Its batch.
    pub batch: Option<BatchId>,
    /// Its labels.
    pub tags: Vec<String>,
    /// Its correlation id.
    pub correlation_id: Option<String>,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// What only its attempts read.
    pub spec: JobSpec,
    /// For a dead letter that was replayed: by whom, when and as which job.
    pub replayed: Option<Replayed>,
}

impl JobRecord {
    /// A record with what every job has; the rest is empty and filled in by the store.
    pub fn new(id: JobId, tenant: TenantId, handler: String, queue: String, created_at: Timestamp) -> Self {
        JobRecord {
            id,
            tenant,
            handler,
            queue,
            status: Status::Pending,
            priority: Priority::NORMAL,
            attempt: 0,
            failed: 0,
            recoveries: 0,
            created_at,
            run_at: None,
            started_at: None,
            finished_at: None,
            node: None,
            cancel_requested: false,
            output: None,
            error: None,
            reason: None,
            progress: None,
            cost: None,
            batch: None,
            tags: Vec::new(),
            correlation_id: None,
            ordering_key: None,
            spec: JobSpec::default(),
            replayed: None,
        }
    }

    /// How long its last attempt ran, or has been running as of a time. Nothing for a job that waits.
    pub fn ran(&self, as_of: Timestamp) -> Option<Duration> {
        let ended = if self.status == Status::Running { Some(as_of) } else { self.finished_at };
        Some(ended?.since(self.started_at?))
    }

    /// How long it was ready before its first attempt, or has been ready as of a time where none has begun. After a second
    /// attempt that is not known any more.
    pub fn waited(&self, as_of: Timestamp) -> Option<Duration> {
        let until = match self.started_at {
            Some(started) => Some(started).filter(|_| self.attempt <= 1)?,
            None => Some(as_of).filter(|_| self.status == Status::Pending)?,
        };
        Some(until.since(self.run_at.filter(|due| *due <= until).unwrap_or(self.created_at)))
    }
}

/// A mark on a dead letter that has been replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// By whom.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// As which job; the same one if it was replayed in place.
    pub as_job: JobId,
}

/// How far a job has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The report's sequence number, so that a watcher can resume after it.
    pub sequence: u64,
    /// 0 to 100.
    pub percent: f32,
    /// What it is doing.
    pub message: String,
    /// When it was reported, by the store's clock as the node knows it.
    pub updated_at: Timestamp,
}

/// One line of a job's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// When it happened.
    pub at: Timestamp,
    /// The status it led to.
    pub status: Status,
    /// The attempt it belongs to, 0 before the first.
    pub attempt: u16,
    /// The node, where one was involved.
    pub node: Option<NodeId>,
    /// When the attempt started, for entries that end one.
    pub started_at: Option<Timestamp>,
    /// The error, for entries that end an attempt badly.
    pub error: Option<JobError>,
    /// Details: who canceled or edited the job, which job replayed it, until when it is snoozed.
    pub note: Option<String>,
}

impl HistoryEntry {
    /// An entry with nothing but time, status and attempt.
    pub fn new(at: Timestamp, status: Status, attempt: u16) -> Self {
        HistoryEntry { at, status, attempt, node: None, started_at: None, error: None, note: None }
    }
}

/// Which part of a list: newest first, by keyset (`before`) or offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The maximum number of jobs, 1 to [`Page::MAX`].
    pub limit: usize,
    /// Only jobs with ids below this one: the last id of the page before.
    pub before: Option<JobId>,
    /// The number of jobs to skip.
    pub offset: usize,
}

impl Page {
    /// The maximum number of jobs on a page.
    pub const MAX: usize = 200;

    /// The first page of `limit` jobs.
    pub fn first(limit: usize) -> Self {
        Page { limit, before: None, offset: 0 }
    }

    /// The page after the one that ended with `last`.
    #[must_use]
    pub fn after(mut self, last: JobId) -> Self {
        self.before = Some(last);
        self
    }
}

/// A page of a search, which examines a bounded number of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The matching jobs, newest first. May be fewer than the page size although older jobs match.
    pub jobs: Vec<JobRecord>,
    /// Where to continue ([`Page::after`]); none if every job has been examined.
    pub next: Option<JobId>,
}

impl Found {
    /// The result of a page of `limit` jobs; `floor` is the last examined job, if older ones exist.
    pub fn new(jobs: Vec<JobRecord>, limit: usize, floor: Option<JobId>) -> Self {
        let next = match jobs.last() {
            Some(last) if jobs.len() >= limit.clamp(1, Page::MAX) => Some(last.id),
            _ => floor,
        };
        Found { jobs, next }
    }
}

impl Default for Page {
    fn default() -> Self {
        Page::first(50)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases_of_a_status_parse() {
        for status in Status::ALL {
            assert_eq!(Status::parse(status.as_str()), Ok(status));
            assert_eq!(Status::from_code(status.code()), Some(status));
        }
        assert_eq!(Status::parse("queued"), Ok(Status::Pending));
        assert_eq!(Status::parse("processing"), Ok(Status::Running));
        assert_eq!(Status::parse("failed"), Ok(Status::DeadLettered), "the permanent failure");
        let error = Status::parse("paused-ish").expect_err("unknown");
        assert_eq!(error.field, "status");
        assert!(error.message.contains("dead_lettered"));
    }

    #[test]
    fn nothing_leaves_a_terminal_status_but_a_replay() {
        for from in [Status::Succeeded, Status::Canceled] {
            assert!(Status::ALL.iter().all(|to| !from.may_become(*to)), "{from} is final");
        }
        assert!(!Status::Canceled.may_become(Status::Succeeded));
        assert!(!Status::Pending.may_become(Status::Succeeded), "only a running job succeeds");
    }
}
