//! The attempts that run here, and what they report while they do: progress, log lines, completion in a transaction of the
//! handler's own. Called by `run` and by the context of each attempt.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::Worker;
use crate::life::context::{Attempt, AttemptLink, JobContext, Stop};
use crate::life::logs::LogLevel;
use crate::life::run::cut_output;
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::{ClaimedJob, Progress};
use crate::model::payload::Payload;
use crate::seal::{Sealer, Seals};
use crate::store::{Fence, Finish, LeaseId, NodeId, Note, Noted, Store, Transition};

impl Worker {
    /// Makes the context of an attempt and keeps track of it until `ended`.
    pub(crate) fn begin(
        self: &Arc<Self>,
        job: Box<ClaimedJob>,
        node: NodeId,
        keep: Duration,
        sealer: Option<Sealer>,
    ) -> JobContext {
        self.count_started(&job);
        let span = crate::trace::span_of(&job);
        let ctx = JobContext::new(job, node, keep, self.clone(), sealer, span);
        self.running.lock().insert(ctx.job_id(), ctx.attempt_state().clone());
        ctx
    }

    /// Forgets an attempt. False if it was forgotten before, because it overran its grace.
    pub(crate) fn ended(&self, attempt: &Arc<Attempt>) -> bool {
        let mut running = self.running.lock();
        match running.get(&attempt.job.id) {
            Some(current) if Arc::ptr_eq(current, attempt) => {
                running.remove(&attempt.job.id);
                true
            }
            _ => false,
        }
    }

    /// Forgets whatever runs under a fence, because its task is gone.
    pub(crate) fn forget(&self, fence: Fence) {
        let mut running = self.running.lock();
        if running.get(&fence.job).is_some_and(|attempt| attempt.job.lease == fence.lease) {
            running.remove(&fence.job);
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.lock().len()
    }

    pub(crate) fn running_attempts(&self) -> Vec<Arc<Attempt>> {
        self.running.lock().values().cloned().collect()
    }

    /// Asks the attempt of a job to stop, if it runs here.
    pub(crate) fn stop_attempt(&self, job: JobId, lease: Option<LeaseId>, why: Stop) -> bool {
        let running = self.running.lock();
        match running.get(&job) {
            Some(attempt) if lease.is_none_or(|lease| attempt.job.lease == lease) => {
                attempt.stop_for(why);
                true
            }
            _ => false,
        }
    }

    /// The attempt that runs here under this lease.
    pub(crate) fn attempt_under(&self, fence: Fence) -> Option<Arc<Attempt>> {
        self.running.lock().get(&fence.job).filter(|attempt| attempt.job.lease == fence.lease).cloned()
    }

    /// Whether an attempt of this job runs here under this lease.
    pub(crate) fn runs(&self, fence: Fence) -> bool {
        self.running.lock().get(&fence.job).is_some_and(|attempt| attempt.job.lease == fence.lease)
    }

    pub(super) fn stop_all(&self, node: NodeId, why: Stop) {
        for attempt in self.running_attempts().iter().filter(|attempt| attempt.node == node) {
            attempt.stop_for(why);
        }
    }

    pub(crate) fn has_unsaved_progress(&self, job: JobId) -> bool {
        self.progress.lock().contains_key(&job)
    }

    /// Saves the latest progress of each job that has reported.
    pub(crate) async fn save_progress(&self) {
        let notes: Vec<Note> = self.progress.lock().drain().map(|(_, note)| note).collect();
        if notes.is_empty() {
            return;
        }
        let fences: Vec<Fence> = notes.iter().map(|note| note.fence).collect();
        let node = self.membership().node;
        match self.store.note(node, notes).await {
            Ok(kept) => {
                for (fence, kept) in fences.into_iter().zip(kept) {
                    if !kept {
                        self.stop_attempt(fence.job, Some(fence.lease), Stop::LeaseLost);
                    }
                }
            }
            // Progress is a hint for people; the next report replaces it.
            Err(error) => tracing::debug!(%error, "progress could not be saved"),
        }
    }
}

impl AttemptLink for Worker {
    fn store(&self) -> Option<&Arc<dyn Store>> {
        Some(&self.store)
    }

    fn seals(&self) -> Option<&Seals> {
        Some(&self.seals)
    }

    fn now(&self) -> Timestamp {
        Worker::now(self)
    }

    fn progress(&self, attempt: &Attempt, progress: Progress) {
        self.watchers.progress(attempt.job.id, &progress);
        let progress = match &attempt.sealer {
            Some(sealer) => sealer.seal_progress(attempt.job.id, progress),
            None => progress,
        };
        let note = Note { fence: attempt.fence(), what: Noted::Progress(progress) };
        self.progress.lock().insert(attempt.job.id, note);
    }

    fn log(&self, attempt: &Attempt, level: LogLevel, message: String) {
        let message = match &attempt.sealer {
            Some(sealer) => sealer.seal_line(attempt.job.id, &message),
            None => message,
        };
        self.logs.push(attempt, self.now(), level, message);
    }

    fn flush<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, ()> {
        Box::pin(async {
            if self.has_unsaved_progress(attempt.job.id) {
                self.save_progress().await;
            }
            self.save_logs_of(attempt.fence()).await;
        })
    }

    fn checkpoint_bytes(&self) -> usize {
        self.config.limits.payload_bytes
    }

    fn success(&self, attempt: &Attempt, output: Payload) -> Finish {
        let output = Some(cut_output(output, self.config.limits.output_bytes));
        let transition = Transition::Succeed { output, keep: attempt.keep };
        let (sealer, cost) = (attempt.sealer.as_ref(), attempt.cost());
        self.finish_of(&attempt.job, attempt.started.elapsed(), transition, sealer, cost)
    }
}
