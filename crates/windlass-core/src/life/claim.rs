//! Takes ready jobs for this node, as many as it has room for, and starts them. One loop per node; wakes when told that
//! something may be ready, and looks by itself once per poll. Never decides what becomes of a job.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::life::run::SlotGuard;
use crate::model::error::Error;
use crate::model::priority::BandPolicy;
use crate::model::tenant::{SecurityContext, TenantId};
use crate::node::Worker;
use crate::operate::within::Within;
use crate::service::JobService;
use crate::store::{self, Claim, Claimed, LeaseId, News, NodeId};

/// How often the queues are looked at too where jobs end up that others could not run. Shorter than any poll of an idle
/// node, so that each of its looks is one at everything.
const RARE_QUEUES_EVERY: Duration = Duration::from_millis(800);

/// The most one claim asks for: beyond this, a larger claim only makes its jobs wait for one another.
const JOBS_PER_CLAIM: usize = 2_000;

/// How long an idle node waits without being told of anything before it looks all the same.
const LOOK_REGARDLESS: Duration = Duration::from_secs(30);

/// How soon a node looks again whether ends are saved.
const UNSAVED_AGAIN: Duration = Duration::from_millis(100);

/// Wait after a failed claim, growing to the poll interval.
const FIRST_RETRY: Duration = Duration::from_millis(100);

impl JobService {
    /// Claims and runs at most `n` ready jobs of the caller's tenant on the caller's runtime, and returns how many ran. Due
    /// jobs are promoted first. For serverless hosts and tests; works with and without the node's own workers. Claimed jobs
    /// run to their end even if the caller drops the future.
    pub async fn tick(&self, ctx: &SecurityContext, n: usize) -> Result<usize, Error> {
        self.within(ctx.scope()).tick(n).await
    }
}

impl Within {
    /// Claims and runs at most `n` ready jobs of the scope, as [`JobService::tick`].
    pub async fn tick(&self, n: usize) -> Result<usize, Error> {
        let (worker, of) = (self.worker().clone(), self.scope().tenant());
        // Were it dropped in the middle, its jobs would seem to run as long as this node lives.
        let ticking = async move { Ok(worker.claim_and_run(of, n).await?) };
        self.service().apart(&tokio::runtime::Handle::current(), "tick", ticking).await
    }
}

/// What the claim loop remembers from one look to the next.
struct Looks {
    /// The bands that had more than was taken.
    busy: [bool; 4],
    /// Since when nothing was in the queues that are looked at now and then.
    rare_since: Option<Instant>,
    /// How long to wait after the next failure.
    retry: Duration,
}

/// A wait between two claims, unless something is told before.
struct Wait {
    at_most: Duration,
    /// Whether the claim after it looks at all queues.
    then_everywhere: bool,
}

impl Worker {
    /// Claims and starts jobs until the node stops.
    pub(crate) async fn claim_and_start(self: Arc<Self>) {
        let mut looks = Looks { busy: [true; 4], rare_since: None, retry: FIRST_RETRY };
        while !self.stopping.is_cancelled() {
            // Subscribe before looking: a job stored between the two would otherwise wait for the next poll.
            let wake = self.wake.notified();
            let freed = self.freed.notified();
            if let Some(again) = self.must_not_claim() {
                self.wait_until(wake, again).await;
                continue;
            }
            let mut slots = Taken::new(&self, JOBS_PER_CLAIM);
            if slots.0 == 0 {
                tokio::select! {
                    () = freed => {}
                    () = self.stopping.cancelled() => {}
                }
                continue;
            }
            if self.stopping.is_cancelled() {
                // Asked again with the slots taken: whoever ends the node waits for slots, then no claim is missed.
                return;
            }
            let wait = self.claim_once(&mut slots, &mut looks).await;
            drop(slots);
            if let Some(wait) = wait {
                self.wait_until(wake, wait.at_most).await;
                self.look_everywhere.fetch_or(wait.then_everywhere, Ordering::AcqRel);
            }
        }
    }

    /// How soon to look again whether this node may claim, while it must not.
    fn must_not_claim(&self) -> Option<Duration> {
        if self.all_paused() || !self.is_renewed() {
            return Some(self.config.poll);
        }
        self.saves_nothing().then_some(UNSAVED_AGAIN)
    }

    /// Claims once and starts what it got. Answers how to wait before the next claim, if it should.
    async fn claim_once(self: &Arc<Self>, slots: &mut Taken<'_>, looks: &mut Looks) -> Option<Wait> {
        let told = self.look_everywhere.swap(false, Ordering::AcqRel);
        let rare = told || looks.rare_since.is_none_or(|since| since.elapsed() >= RARE_QUEUES_EVERY);
        // Cleared before the look, so that a submit during the look sets it again.
        self.backlog.store(false, Ordering::Release);
        match self.claim_some(None, slots.0, &mut looks.busy, rare).await {
            Ok((node, claimed)) => {
                looks.retry = FIRST_RETRY;
                let found_rare = claimed.jobs.iter().any(|job| job.recoveries > 0 || job.queue == job.handler);
                looks.rare_since = if rare && !found_rare { Some(Instant::now()) } else { looks.rare_since };
                let (nothing, more) = (claimed.jobs.is_empty(), claimed.more.contains(&true));
                slots.hand_on(claimed.jobs.len());
                self.start_claimed(claimed.jobs, node);
                if more {
                    self.backlog.store(true, Ordering::Release);
                }
                self.idle.store(nothing, Ordering::Release);
                nothing.then(|| self.wait_for_more())
            }
            Err(error) => {
                self.backlog.store(true, Ordering::Release);
                self.look_everywhere.fetch_or(told, Ordering::AcqRel);
                tracing::warn!(%error, "could not claim jobs");
                let at_most = looks.retry;
                looks.retry = (looks.retry * 2).min(self.config.poll);
                Some(Wait { at_most, then_everywhere: false })
            }
        }
    }

    /// How an idle node waits. A survey tells if something becomes ready that nobody told this node of.
    fn wait_for_more(&self) -> Wait {
        let regardless = jittered(LOOK_REGARDLESS.max(self.config.poll));
        let suspect = self.next_suspect();
        let at_most = suspect.map_or(regardless, |after| after.min(regardless));
        Wait { at_most, then_everywhere: suspect.is_some() }
    }

    /// Claims up to `n` jobs that are ready or due, of one tenant or of all, runs them to their end, and returns how many.
    pub(crate) async fn claim_and_run(self: Arc<Self>, of: Option<TenantId>, n: usize) -> store::Result<usize> {
        if self.all_paused() || self.saves_nothing() {
            return Ok(0);
        }
        self.store.promote(n).await?;
        let mut slots = Taken::new(&self, n);
        let (node, claimed) = self.claim_some(of, slots.0, &mut [true; 4], true).await?;
        slots.hand_on(claimed.jobs.len());
        let ran = claimed.jobs.len();
        let attempts = claimed.jobs.into_iter().map(|job| {
            let slot = SlotGuard::take(&self, &job);
            self.clone().work_to_end(Box::new(job), node, slot)
        });
        futures_util::future::join_all(attempts).await;
        self.finisher().flush().await;
        Ok(ran)
    }

    /// One claim for up to `room` jobs, shared between the bands that have work.
    pub(crate) async fn claim_some(
        &self,
        of: Option<TenantId>,
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
        if queues.is_empty() {
            *busy = [false; 4];
            return Ok((membership.node, Claimed { now: self.now(), jobs: Vec::new(), more: *busy }));
        }
        // Stores serve queues in the order they are named, and a deep one fills whole claims: each comes first in its
        // turn, so that none waits until another is empty.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % queues.len();
        queues.rotate_left(turn);
        let lease = LeaseId(membership.ids.next().as_i64());
        let claim = Claim { node: membership.node, lease, queues, max: room, quota, tenant: of };
        let claimed = self.claim(claim).await?;
        self.saw_time(claimed.now);
        self.judge_suspects(&claimed.jobs).await;
        *busy = claimed.more;
        Ok((membership.node, claimed))
    }

    /// One call of the store. Whatever becomes of it, jobs that it took and that nobody hears of are given back.
    pub(crate) async fn claim(&self, claim: Claim) -> store::Result<Claimed> {
        let lease = claim.lease;
        let claiming = self.supervisor.run_once("claim", self.store.claim(claim)).await;
        let claimed =
            claiming.unwrap_or_else(|panic| Err(store::Error::Unknown(format!("claiming panicked: {panic}"))));
        claimed.inspect_err(|error| self.unheard.report(lease, error))
    }

    async fn wait_until(&self, wake: tokio::sync::futures::Notified<'_>, at_most: Duration) {
        tokio::select! {
            () = wake => {}
            () = tokio::time::sleep(at_most) => {}
            () = self.stopping.cancelled() => {}
        }
    }

    /// Makes the next claim look for jobs that may be ready.
    pub(crate) fn hear_ready(&self, news: News) {
        if news == News::ReadyElsewhere {
            self.look_everywhere.store(true, Ordering::Release);
        }
        self.backlog.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Passes wake-ups from other processes on, as long as the node lives.
    pub(crate) async fn hear_others(self: Arc<Self>) {
        loop {
            tokio::select! {
                news = self.store.wait_for_wake() => {
                    self.hear_ready(news);
                    self.wake_maintenance.notify_one();
                    self.hear_cancels();
                }
                () = self.stopped.cancelled() => return,
            }
        }
    }
}

/// Slots that were taken and are given back, but for those that are handed on.
struct Taken<'a>(usize, &'a Worker);

impl<'a> Taken<'a> {
    fn new(worker: &'a Worker, want: usize) -> Self {
        Taken(worker.take_slots(want), worker)
    }

    fn hand_on(&mut self, slots: usize) {
        self.1.free_slots(self.0.saturating_sub(slots));
        self.0 = 0;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.1.free_slots(self.0);
    }
}

/// Up to a tenth shorter, so that nodes started together do not poll together.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(1.0 - 0.1 * rand::random::<f64>())
}
