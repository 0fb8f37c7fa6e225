//! The node and the jobs that other nodes were lost with: which it takes, which may start, and until when each is watched.
//! Called by `claim` and `run`. What is decided is decided by `suspect`, which is pure.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::Worker;
use super::suspect::{COHORTS_FROM, Loss};
use crate::model::id::JobId;
use crate::model::job::ClaimedJob;
use crate::model::tenant::Scope;
use crate::store;

/// Suspects that one claim takes at most: those that may not start yet go back.
const SUSPECTS_PER_CLAIM: usize = 256;

/// Records that one look at suspects reads.
const RECORDS_PER_LOOK: usize = 200;

/// The watch over a suspect. Lasts until its end is saved: were the next one started before, and were that one the
/// killer, this one would be lost once more with its result.
pub(crate) struct SuspectWatch {
    worker: std::sync::Weak<Worker>,
    job: JobId,
}

impl Drop for SuspectWatch {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.upgrade() {
            worker.suspect_survived(self.job);
        }
    }
}

impl Worker {
    /// Adds the queues of suspects. Those of a handler with a limit share what it may take with its other jobs.
    pub(super) fn add_suspects(&self, queues: &mut Vec<(String, usize)>) {
        let again = self.suspects.lock().room(Instant::now());
        let mut suspects = Vec::new();
        for (queue, room) in queues.iter_mut() {
            let limited = self.handler_room(queue).is_some();
            let part = match (limited, *room) {
                (false, room) => room,
                // The only slot goes to one or the other; were it kept for suspects, its own jobs would never start here.
                (true, 1) => usize::from(rand::random::<f64>() < 0.25),
                (true, room) => room.div_ceil(4),
            };
            let mut kinds = [(1, part), (COHORTS_FROM, part.min(again).min(SUSPECTS_PER_CLAIM))];
            if rand::random::<f64>() < 0.5 {
                // Where there is room for one of them only, each has its turn.
                kinds.reverse();
            }
            for (recoveries, part) in kinds {
                let part = part.min(*room);
                if part > 0 {
                    suspects.push((store::suspect_queue(queue, recoveries), part));
                }
                if limited {
                    *room -= part;
                }
            }
        }
        queues.retain(|(_, room)| *room > 0);
        queues.append(&mut suspects);
    }

    /// Judges which of the jobs of a claim may start that nodes were lost with more than once. At once, not when they
    /// start: the next claim must not take others meanwhile.
    pub(crate) async fn judge_suspects(&self, jobs: &[ClaimedJob]) {
        if jobs.iter().all(|job| job.recoveries < COHORTS_FROM) {
            return;
        }
        let losses = self.losses(jobs).await;
        let mut suspects = self.suspects.lock();
        for job in jobs.iter().filter(|job| job.recoveries >= COHORTS_FROM) {
            match losses.get(&job.id) {
                Some(loss) => suspects.judge(job.id, *loss, self.config.lease, Instant::now()),
                None => suspects.refuse(Instant::now()),
            }
        }
        drop(suspects);
        // How long they have run is told by heartbeats.
        self.wake_heartbeat.notify_one();
        // The others of their cohort follow at once.
        self.look_everywhere.store(true, Ordering::Release);
    }

    /// What was noted when nodes were lost with jobs of a claim, of those that were lost more than once. One that could not
    /// be looked at is missing: it goes back.
    pub(crate) async fn losses(&self, jobs: &[ClaimedJob]) -> HashMap<JobId, Option<Loss>> {
        let again: Vec<JobId> = jobs.iter().filter(|job| job.recoveries >= COHORTS_FROM).map(|job| job.id).collect();
        let mut losses = HashMap::default();
        for ids in again.chunks(RECORDS_PER_LOOK) {
            match self.store.get(Scope::ENGINE, ids).await {
                Ok(records) => {
                    // Of one that is not found nothing is known that speaks for it.
                    losses.extend(ids.iter().map(|id| (*id, None)));
                    losses.extend(records.iter().map(|record| (record.id, Loss::after(record.error.as_ref()))));
                }
                Err(error) => tracing::warn!(%error, "could not look at suspects"),
            }
        }
        losses
    }

    /// What was noted when the node of a suspect was lost, and whether it may start now. `None` if it was not judged.
    pub(crate) fn judgement(&self, job: &ClaimedJob) -> Option<(Option<Loss>, bool)> {
        if job.recoveries < COHORTS_FROM {
            return Some((None, true));
        }
        self.suspects.lock().judgement(job.id)
    }

    /// When to look for suspects again, if some wait for others to outlive their watch.
    pub(crate) fn next_suspect(&self) -> Option<Duration> {
        self.suspects.lock().next_change(Instant::now())
    }

    /// The watch over a suspect, to be dropped when its end is saved.
    pub(crate) fn suspect_watch(&self, job: &ClaimedJob) -> Option<SuspectWatch> {
        (job.recoveries >= COHORTS_FROM).then(|| SuspectWatch { worker: self.this.clone(), job: job.id })
    }

    fn suspect_survived(&self, job: JobId) {
        let mut suspects = self.suspects.lock();
        if suspects.forget(job) && suspects.room(Instant::now()) > 0 {
            drop(suspects);
            self.look_everywhere.store(true, Ordering::Release);
            self.wake.notify_one();
        }
    }
}
