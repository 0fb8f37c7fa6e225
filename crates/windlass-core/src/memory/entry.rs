//! One job as the memory store keeps it: where it is, what happened to it, and how it is read back. Used by `memory`,
//! which moves jobs from place to place. Never looks at other jobs or at a clock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::config::DEFAULT_RETENTION;
use crate::life::logs::KeptLine;
use crate::model::clock::Timestamp;
use crate::model::error::JobError;
use crate::model::id::JobId;
use crate::model::job::{
    BatchId, ClaimedJob, HistoryEntry, JobRecord, JobSpec, NewJob, Progress, Replayed, Start, Status, Unique,
};
use crate::model::payload::Payload;
use crate::model::priority::Priority;
use crate::model::tenant::TenantId;
use crate::operate::usage::Cost;
use crate::store::{Gate, LeaseId, NodeId, suspect_queue};

/// A job with everything that is known of it. What most jobs do not have is boxed: touching fresh memory is what a
/// submit costs most.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) job: Job,
    pub(super) created_at: Timestamp,
    /// When it is due, if that lay ahead when it was last set.
    pub(super) run_at: Option<Timestamp>,
    /// Since when it could run.
    pub(super) ready_at: Timestamp,
    pub(super) failed: u16,
    pub(super) recoveries: u16,
    /// Whether an attempt at it has begun.
    pub(super) resumed: bool,
    pub(super) place: Place,
    /// The status it was submitted into.
    pub(super) born: Status,
    story: Option<Box<Story>>,
}

/// What was submitted.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) tenant: TenantId,
    pub(super) handler: String,
    pub(super) queue: String,
    pub(super) priority: Priority,
    pub(super) payload: Payload,
    options: Option<Box<Options>>,
}

/// What was submitted with a job that is not a bare one.
#[derive(Debug, Default, PartialEq)]
struct Options {
    idempotency_key: Option<String>,
    unique: Option<Unique>,
    ordering_key: Option<String>,
    batch: Option<BatchId>,
    tags: Vec<String>,
    correlation_id: Option<String>,
    spec: JobSpec,
}

/// What happened to a job that did not just run and end well.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// The last attempt that ended.
    pub(super) last: Option<Attempt>,
    pub(super) error: Option<JobError>,
    pub(super) progress: Option<Progress>,
    pub(super) cost: Option<Cost>,
    pub(super) checkpoint: Option<Payload>,
    /// What its attempts have said, oldest first.
    pub(super) lines: VecDeque<KeptLine>,
    /// What happened between its submit and where it is now; those two are not repeated here.
    pub(super) events: Vec<HistoryEntry>,
}

/// Where a job is. The place decides its status.
#[derive(Debug)]
pub(super) enum Place {
    Ready {
        /// Where it waits, if that is not its own queue.
        queue: Option<Arc<str>>,
        position: i64,
    },
    Scheduled {
        at: Timestamp,
        retrying: bool,
    },
    Gated(Box<Gate>),
    Leased {
        lease: LeaseId,
        node: NodeId,
        at: Timestamp,
        /// The reason of a requested cancel.
        cancel: Option<Box<str>>,
    },
    Ended(Box<Outcome>),
}

/// One execution of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) number: u16,
    pub(super) node: Option<NodeId>,
    pub(super) started_at: Option<Timestamp>,
}

/// How a job ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) at: Timestamp,
    pub(super) status: Status,
    pub(super) attempt: Attempt,
    pub(super) output: Option<Payload>,
    pub(super) reason: Option<Box<str>>,
    pub(super) note: Option<Box<str>>,
    /// When it becomes invisible; none for a dead letter that nobody has replayed.
    pub(super) purge_at: Option<Timestamp>,
    pub(super) replayed: Option<Box<Replayed>>,
}

impl Entry {
    /// A job that is submitted now, in its first place.
    pub(super) fn new(job: Job, place: Place, run_at: Option<Timestamp>, now: Timestamp) -> Self {
        let born = match place.status() {
            // A job that is born leased was pending for no time at all.
            Status::Running => Status::Pending,
            status => status,
        };
        Entry {
            job,
            created_at: now,
            run_at,
            ready_at: now,
            failed: 0,
            recoveries: 0,
            resumed: false,
            place,
            born,
            story: None,
        }
    }

    pub(super) fn story(&self) -> Option<&Story> {
        self.story.as_deref()
    }

    pub(super) fn story_mut(&mut self) -> &mut Story {
        self.story.get_or_insert_default()
    }

    /// Forgets the last error and, unless it may go on from there, the checkpoint.
    pub(super) fn forget(&mut self, error: bool, checkpoint: bool) {
        if let Some(story) = &mut self.story {
            story.error = story.error.take().filter(|_| !error);
            story.checkpoint = story.checkpoint.take().filter(|_| !checkpoint);
        }
    }

    pub(super) fn status(&self) -> Status {
        self.place.status()
    }

    /// The queue it is ready in.
    fn waiting_queue(&self) -> &str {
        match &self.place {
            Place::Ready { queue: Some(queue), .. } => queue,
            _ => &self.job.queue,
        }
    }

    /// The queue in which it waits when it is put back: its own, or that of suspects; `None` is its own.
    pub(super) fn waits_in(&self) -> Option<Arc<str>> {
        (self.recoveries > 0).then(|| suspect_queue(&self.job.queue, self.recoveries).into())
    }

    /// Whether its time is over, so that nobody may see it any more.
    pub(super) fn is_hidden(&self, now: Timestamp) -> bool {
        self.outcome().is_some_and(|outcome| outcome.purge_at.is_some_and(|at| at <= now))
    }

    pub(super) fn outcome(&self) -> Option<&Outcome> {
        match &self.place {
            Place::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// When it must be canceled if it still waits and no attempt at it has begun.
    pub(super) fn expires_at(&self) -> Option<Timestamp> {
        let waits = !matches!(self.place, Place::Leased { .. } | Place::Ended(_));
        self.job.expires_at().filter(|_| waits && !self.resumed)
    }

    /// How long it is kept if nothing else is said.
    pub(super) fn keep(&self) -> Duration {
        self.job.spec().and_then(|spec| spec.retention).unwrap_or(DEFAULT_RETENTION)
    }

    /// The number of attempts that failed or were lost.
    pub(super) fn attempts(&self) -> u16 {
        self.failed.saturating_add(self.recoveries)
    }

    /// Adds the end of an attempt to the history.
    pub(super) fn note_attempt(&mut self, now: Timestamp, status: Status, attempt: Attempt, error: Option<JobError>) {
        let story = self.story_mut();
        story.error = error.clone();
        story.events.push(attempt.entry(now, status, error, None));
        story.last = Some(attempt);
    }

    /// The job for an attempt under `lease`.
    pub(super) fn claimed(&self, lease: LeaseId) -> ClaimedJob {
        let job = &self.job;
        let options = job.options.as_deref();
        ClaimedJob {
            id: job.id,
            lease,
            tenant: job.tenant,
            handler: job.handler.clone(),
            queue: self.waiting_queue().to_owned(),
            priority: job.priority,
            payload: job.payload.clone(),
            failed: self.failed,
            recoveries: self.recoveries,
            created_at: self.created_at,
            ready_at: self.ready_at,
            ordering_key: job.ordering_key().cloned(),
            batch: options.and_then(|o| o.batch),
            correlation_id: options.and_then(|o| o.correlation_id.clone()),
            tags: options.map(|o| o.tags.clone()).unwrap_or_default(),
            spec: job.spec().cloned().unwrap_or_default(),
            checkpoint: self.story().and_then(|story| story.checkpoint.clone()),
            resumed: self.resumed,
            unreadable: None,
        }
    }

    /// The job as it is read back.
    pub(super) fn record(&self) -> JobRecord {
        let job = &self.job;
        let options = job.options.as_deref();
        let last = self.story().and_then(|story| story.last);
        let mut record = JobRecord {
            id: job.id,
            tenant: job.tenant,
            handler: job.handler.clone(),
            queue: job.queue.clone(),
            status: self.status(),
            priority: job.priority,
            attempt: self.attempts(),
            failed: self.failed,
            recoveries: self.recoveries,
            created_at: self.created_at,
            run_at: self.run_at,
            started_at: last.and_then(|attempt| attempt.started_at),
            finished_at: None,
            node: last.and_then(|attempt| attempt.node),
            cancel_requested: false,
            output: None,
            error: self.story().and_then(|story| story.error.clone()),
            reason: None,
            progress: self.story().and_then(|story| story.progress.clone()),
            cost: self.story().and_then(|story| story.cost),
            batch: options.and_then(|o| o.batch),
            tags: options.map(|o| o.tags.clone()).unwrap_or_default(),
            correlation_id: options.and_then(|o| o.correlation_id.clone()),
            ordering_key: job.ordering_key().cloned(),
            spec: job.spec().cloned().unwrap_or_default(),
            replayed: None,
        };
        match &self.place {
            Place::Ready { .. } | Place::Scheduled { .. } => {}
            Place::Gated(gate) => record.reason = Some(gate.name()),
            Place::Leased { node, at, cancel, .. } => {
                record.attempt = self.attempts().saturating_add(1);
                record.node = Some(*node);
                record.started_at = Some(*at);
                record.cancel_requested = cancel.is_some();
            }
            Place::Ended(outcome) => {
                record.attempt = outcome.attempt.number;
                record.node = outcome.attempt.node.or(record.node);
                record.started_at = outcome.attempt.started_at.or(record.started_at);
                record.finished_at = Some(outcome.at);
                record.output = outcome.output.clone();
                record.reason = outcome.reason.as_deref().map(str::to_owned);
                record.replayed = outcome.replayed.as_deref().cloned();
            }
        }
        record
    }

    /// Everything that happened, oldest first.
    pub(super) fn history(&self) -> Vec<HistoryEntry> {
        let mut entries = vec![HistoryEntry::new(self.created_at, self.born, 0)];
        entries.extend(self.story().into_iter().flat_map(|story| &story.events).cloned());
        match &self.place {
            Place::Leased { node, at, .. } => {
                let number = self.attempts().saturating_add(1);
                let running = Attempt { number, node: Some(*node), started_at: None };
                entries.push(running.entry(*at, Status::Running, None, None));
                // A cancel may have been requested since it was claimed.
                entries.sort_by_key(|entry| entry.at);
            }
            Place::Ended(outcome) => entries.push(self.last_entry(outcome)),
            _ => {}
        }
        entries
    }

    /// The entry of its end.
    pub(super) fn last_entry(&self, outcome: &Outcome) -> HistoryEntry {
        // A job that is canceled while it waits ends no attempt: the error of an earlier one has its own entry.
        let error = self.story().and_then(|story| story.error.clone());
        let error = error.filter(|_| outcome.attempt.started_at.is_some());
        outcome.attempt.entry(outcome.at, outcome.status, error, outcome.note.as_deref().map(str::to_owned))
    }
}

impl From<NewJob> for Job {
    fn from(new: NewJob) -> Self {
        let NewJob { id, tenant, handler, queue, priority, start: _, payload, .. } = new;
        let NewJob { idempotency_key, unique, ordering_key, batch, tags, correlation_id, spec, .. } = new;
        let options = Options { idempotency_key, unique, ordering_key, batch, tags, correlation_id, spec };
        let options = (options != Options::default()).then(|| Box::new(options));
        Job { id, tenant, handler, queue, priority, payload, options }
    }
}

impl Job {
    pub(super) fn spec(&self) -> Option<&JobSpec> {
        self.options.as_deref().map(|options| &options.spec)
    }

    /// See [`NewJob::counted_batch`].
    pub(super) fn counted_batch(&self) -> Option<BatchId> {
        let options = self.options.as_deref()?;
        options.batch.filter(|_| options.spec.part.is_some())
    }

    pub(super) fn expires_at(&self) -> Option<Timestamp> {
        self.spec().and_then(|spec| spec.expires_at)
    }

    pub(super) fn ordering_key(&self) -> Option<&String> {
        self.options.as_deref().and_then(|options| options.ordering_key.as_ref())
    }

    pub(super) fn unique(&self) -> Option<&Unique> {
        self.options.as_deref().and_then(|options| options.unique.as_ref())
    }

    /// What its idempotency key is unique by.
    pub(super) fn idempotency_key(&self) -> Option<(TenantId, String, String)> {
        let key = self.options.as_deref()?.idempotency_key.clone()?;
        Some((self.tenant, self.handler.clone(), key))
    }

    /// What its unique key is unique by.
    pub(super) fn unique_key(&self) -> Option<KeyOf> {
        let key = self.unique()?.key.clone()?;
        Some((self.tenant, key))
    }

    /// See [`NewJob::is_plain`].
    pub(super) fn is_plain(&self) -> bool {
        self.options.as_deref().is_none_or(|options| {
            options.idempotency_key.is_none()
                && options.unique.is_none()
                && options.ordering_key.is_none()
                && options.spec.expires_at.is_none()
                && options.spec.after.is_none()
        })
    }
}

impl Place {
    pub(super) fn status(&self) -> Status {
        match self {
            Place::Ready { .. } => Status::Pending,
            Place::Scheduled { retrying: false, .. } => Status::Scheduled,
            Place::Scheduled { retrying: true, .. } => Status::Retrying,
            Place::Gated(_) => Status::Blocked,
            Place::Leased { .. } => Status::Running,
            Place::Ended(outcome) => outcome.status,
        }
    }
}

impl Attempt {
    pub(super) fn entry(
        self,
        at: Timestamp,
        status: Status,
        error: Option<JobError>,
        note: Option<String>,
    ) -> HistoryEntry {
        let (node, started_at) = (self.node, self.started_at);
        HistoryEntry { node, started_at, error, note, ..HistoryEntry::new(at, status, self.number) }
    }
}

impl Outcome {
    /// An end without output, reason or note, kept until `purge_at`.
    pub(super) fn new(at: Timestamp, status: Status, attempt: Attempt, purge_at: Option<Timestamp>) -> Self {
        Outcome { at, status, attempt, output: None, reason: None, note: None, purge_at, replayed: None }
    }
}

/// When a job is due, if that lies ahead.
pub(super) fn due(start: Start, now: Timestamp) -> Option<Timestamp> {
    let at = match start {
        Start::Now => return None,
        Start::After(delay) => now + delay,
        Start::At(at) => at,
    };
    (at > now).then_some(at)
}

/// What names a job that a tenant may have only one of.
pub(super) type KeyOf = (TenantId, String);

/// Who has a unique key, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct UniqueHolder {
    pub(super) id: JobId,
    /// When it is free whatever became of the job; none means when the job has ended.
    pub(super) until: Option<Timestamp>,
}
