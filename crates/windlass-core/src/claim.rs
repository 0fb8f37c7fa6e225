//! Takes ready jobs for this node, as many as it has room for, and starts them. One loop per node; wakes when told that
//! something may be ready, and looks by itself once per poll. Never decides what becomes of a job.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::priority::BandPolicy;
use crate::run::Room;
use crate::store::{self, Claim, Claimed, LeaseId, NodeId};
use crate::worker::Worker;

/// How often the queues are looked at too where jobs end up that others could not run. Shorter than any poll of an idle
/// node, so that each of its looks is one at everything.
const RARE_QUEUES_EVERY: Duration = Duration::from_millis(800);

/// The most one claim asks for: beyond this, a larger claim only makes its jobs wait for one another.
const JOBS_PER_CLAIM: usize = 2_000;

/// How long an idle node waits without being told of anything before it looks all the same.
const LOOK_REGARDLESS: Duration = Duration::from_secs(30);

/// Wait after a failed claim, growing to the poll interval.
const FIRST_RETRY: Duration = Duration::from_millis(100);

impl Worker {
    /// Claims and starts jobs until the node stops.
    pub(crate) async fn claim_and_start(self: Arc<Self>) {
        let mut busy = [true; 4];
        let mut rare_since = None;
        let mut retry = FIRST_RETRY;
        while !self.stopping.is_cancelled() {
            // Subscribe before looking: a job stored between the two would otherwise wait for the next poll.
            let wake = self.wake.notified();
            let freed = self.freed.notified();
            if self.all_paused() || !self.is_renewed() {
                self.wait_until(wake, self.config.poll).await;
                continue;
            }
            let room = self.take_slots(JOBS_PER_CLAIM);
            if room == 0 {
                tokio::select! {
                    () = freed => {}
                    () = self.stopping.cancelled() => {}
                }
                continue;
            }
            if self.stopping.is_cancelled() {
                // Asked again with the slots taken: whoever ends the node waits for slots, then no claim is missed.
                self.free_slots(room);
                return;
            }
            let told = self.look_everywhere.swap(false, Ordering::AcqRel);
            let rare = told || rare_since.is_none_or(|since: Instant| since.elapsed() >= RARE_QUEUES_EVERY);
            // Cleared before the look, so that a submit during the look sets it again.
            self.backlog.store(false, Ordering::Release);
            match self.claim_some(room, &mut busy, rare).await {
                Ok((node, claimed)) => {
                    retry = FIRST_RETRY;
                    let found_rare = claimed.jobs.iter().any(|job| job.recoveries > 0 || job.queue == job.handler);
                    rare_since = if rare && !found_rare { Some(Instant::now()) } else { rare_since };
                    let nothing = claimed.jobs.is_empty();
                    let more = claimed.more.contains(&true);
                    self.free_slots(room - claimed.jobs.len());
                    self.start_claimed(claimed.jobs, node);
                    if more {
                        self.backlog.store(true, Ordering::Release);
                    }
                    self.idle.store(nothing, Ordering::Release);
                    if nothing {
                        // A survey tells if something becomes ready that nobody told this node of.
                        self.wait_until(wake, jittered(LOOK_REGARDLESS.max(self.config.poll))).await;
                    }
                }
                Err(error) => {
                    self.free_slots(room);
                    self.backlog.store(true, Ordering::Release);
                    self.look_everywhere.fetch_or(told, Ordering::AcqRel);
                    tracing::warn!(%error, "could not claim jobs");
                    self.wait_until(wake, retry).await;
                    retry = (retry * 2).min(self.config.poll);
                }
            }
        }
    }

    /// Claims up to `n` jobs that are ready or due, runs them to their end, and returns how many.
    pub(crate) async fn claim_and_run(self: Arc<Self>, n: usize) -> store::Result<usize> {
        if self.all_paused() {
            return Ok(0);
        }
        self.store.promote(n).await?;
        let room = self.take_slots(n);
        let claimed = self.claim_some(room, &mut [true; 4], true).await;
        self.free_slots(room - claimed.as_ref().map_or(0, |(_, claimed)| claimed.jobs.len()));
        let (node, claimed) = claimed?;
        let ran = claimed.jobs.len();
        let attempts = claimed.jobs.into_iter().map(|job| {
            let room = Room::take(&self, &job);
            let worker = &self;
            async move {
                worker.work(job, node).await;
                drop(room);
            }
        });
        futures_util::future::join_all(attempts).await;
        self.finisher().flush().await;
        Ok(ran)
    }

    /// One claim for up to `room` jobs, shared between the bands that have work.
    pub(crate) async fn claim_some(
        &self,
        room: usize,
        busy: &mut [bool; 4],
        rare: bool,
    ) -> store::Result<(NodeId, Claimed)> {
        let quota = match self.config.bands {
            BandPolicy::Strict => [0; 4],
            weighted => self.bands.lock().split(weighted, *busy, room),
        };
        let membership = self.membership();
        let mut queues = self.queues(room, rare);
        // Stores serve queues in the order they are named, and a deep one fills whole claims: each comes first in its
        // turn, so that none waits until another is empty.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % queues.len().max(1);
        queues.rotate_left(turn);
        let lease = LeaseId(membership.ids.next().as_i64());
        let claim = Claim { node: membership.node, lease, queues, max: room, quota };
        let claimed = self.store.claim(claim).await.inspect_err(|error| self.unheard.report(lease, error))?;
        self.saw_time(claimed.now);
        // At once, not when it starts: the next claim must not take another one meanwhile.
        for job in &claimed.jobs {
            self.watch_suspect(job);
        }
        *busy = claimed.more;
        Ok((membership.node, claimed))
    }

    async fn wait_until(&self, wake: tokio::sync::futures::Notified<'_>, at_most: Duration) {
        tokio::select! {
            () = wake => {}
            () = tokio::time::sleep(at_most) => {}
            () = self.stopping.cancelled() => {}
        }
    }

    /// Passes wake-ups from other processes on, as long as the node lives.
    pub(crate) async fn hear_others(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.store.wait_for_wake() => {
                    self.backlog.store(true, Ordering::Release);
                    self.wake.notify_one();
                    self.wake_maintenance.notify_one();
                    self.hear_cancels();
                }
                () = self.stopped.cancelled() => return,
            }
        }
    }
}

/// Up to a tenth shorter, so that nodes started together do not poll together.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(1.0 - 0.1 * rand::random::<f64>())
}
