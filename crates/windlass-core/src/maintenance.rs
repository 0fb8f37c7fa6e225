//! What keeps a store in order, on every node that runs: promotes due jobs, recovers those of lost nodes, opens gates,
//! expires, cleans, saves progress. Each step is bounded, repeatable and safe beside the same step elsewhere.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::{JobError, Reason};
use crate::observe::DEPTH_EVERY;
use crate::store::{self, Claim, Fence, Finish, LeaseId, Survey, Transition};
use crate::worker::Worker;

/// Jobs that one step of maintenance touches at most, so that none of them holds the store up.
const STEP: usize = 5_000;

/// How often the store is asked whether there is anything to do, at least: recovery takes the lease plus at most a
/// second, and so does a job that nobody was told of.
const LOOK_EVERY: Duration = Duration::from_millis(800);

/// After this long a step is taken whatever the looks said.
const REGARDLESS: Duration = Duration::from_secs(30);

/// How often slow-moving things are looked at: gates that a crash left closed, expired jobs, blocked handlers.
const TIDY_EVERY: Duration = Duration::from_secs(2);

/// How often ended jobs are removed.
const CLEAN_EVERY: Duration = Duration::from_secs(10);

/// How often it is looked who holds an old snapshot.
const HELD_EVERY: Duration = Duration::from_secs(10);

/// How often this machine's clock is compared with the store's.
const CLOCK_EVERY: Duration = Duration::from_secs(30);

/// How far the two may be apart: beyond it, times in logs and times that callers give mean something else than they say.
const CLOCK_OFF: Duration = Duration::from_secs(2);

/// Steps of cleaning in a row while there is more: a node removes up to 10,000 jobs a second, and other maintenance
/// still gets its turn.
const CLEAN_STEPS: usize = 20;

/// How often progress and log lines are saved. A watcher in this process sees it at once.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

impl Worker {
    /// Promotes jobs when they are due, until the node stops.
    pub(crate) async fn promote_when_due(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            let wake = self.wake_maintenance.notified();
            let next = match self.store.promote(STEP).await {
                Ok(promoted) => {
                    if promoted.jobs > 0 {
                        self.jobs_are_ready();
                    }
                    // What comes up earlier meanwhile is heard of, or found by a survey.
                    promoted.next_in.unwrap_or(REGARDLESS).min(REGARDLESS)
                }
                Err(error) => {
                    tracing::warn!(%error, "could not promote due jobs");
                    self.config.poll
                }
            };
            tokio::select! {
                () = tokio::time::sleep(next.max(Duration::from_millis(1))) => {}
                () = wake => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    /// Asks the store now and then whether there is anything to do, and starts it, until the node stops.
    pub(crate) async fn survey_now_and_then(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            let queues = match self.idle.load(Ordering::Acquire) {
                true => self.queues(1, true).into_iter().map(|(queue, _)| queue).collect(),
                false => Vec::new(),
            };
            match self.store.survey(self.config.lease, &queues).await {
                Ok(survey) => self.act_on(survey),
                Err(error) => tracing::warn!(%error, "could not look for work"),
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY.min(self.config.poll)) => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    fn act_on(&self, survey: Survey) {
        self.set_pauses(survey.pauses);
        if survey.ready {
            self.wake.notify_one();
        }
        if survey.due {
            self.wake_maintenance.notify_one();
        }
        self.chores.lost.fetch_or(survey.lost, Ordering::AcqRel);
        self.chores.untidy.fetch_or(survey.untidy, Ordering::AcqRel);
        self.chores.webhooks.store(survey.webhooks, Ordering::Release);
    }

    /// Recovers, opens gates, expires, cleans and counts, until the node stops.
    pub(crate) async fn look_after(self: Arc<Self>) {
        let (mut recovered, mut tidied, mut cleaned, mut missing) = (None, None, None, None);
        let (mut compared, mut held, mut sampled, mut clock) = (None, None, None, None);
        let mut clock_is_off = false;
        let mut sample_every = DEPTH_EVERY;
        let mut forgotten = HashMap::new();
        let missing_every = (self.config.handler_missing_after / 10).clamp(LOOK_EVERY, Duration::from_secs(60));
        let due = |last: &mut Option<Instant>, every: Duration| {
            let due = last.is_none_or(|at| at.elapsed() >= every);
            if due {
                *last = Some(Instant::now());
            }
            due
        };
        while !self.stopped.is_cancelled() {
            let mut steps = Ok(());
            if self.chores.lost.swap(false, Ordering::AcqRel) || due(&mut recovered, REGARDLESS) {
                steps = self.recover().await;
            }
            if steps.is_ok() && due(&mut tidied, TIDY_EVERY) {
                steps = self.tidy().await;
            }
            if steps.is_ok() && due(&mut cleaned, CLEAN_EVERY) {
                steps = self.clean().await;
            }
            if steps.is_ok() && (due(&mut compared, self.config.lease / 2) || !self.unheard.is_empty()) {
                steps = self.give_back_forgotten(&mut forgotten).await;
            }
            if steps.is_ok() && due(&mut missing, missing_every) {
                steps = self.give_up_on_missing_handlers().await;
            }
            if steps.is_ok() && due(&mut held, HELD_EVERY.min(self.config.held_snapshot_after)) {
                steps = self.look_for_held_snapshots().await;
            }
            if steps.is_ok() && due(&mut clock, CLOCK_EVERY) {
                steps = self.compare_clocks(&mut clock_is_off).await;
            }
            if steps.is_ok() && due(&mut sampled, sample_every) {
                steps = self.sample_depth().await.map(|next| sample_every = next);
            }
            if let Err(error) = steps {
                tracing::warn!(%error, "maintenance failed, trying again");
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    async fn recover(&self) -> store::Result<()> {
        if !self.config.maintenance {
            return Ok(());
        }
        let recovered = self.store.recover(self.config.lease).await?;
        for node in &recovered.nodes {
            tracing::warn!(
                node = node.0,
                jobs = recovered.jobs.len(),
                "node {} was lost, its jobs are ready again",
                node.0
            );
        }
        if !recovered.nodes.is_empty() {
            // Once more soon: a claim of theirs that was under way may have left jobs after this look.
            self.chores.lost.store(true, Ordering::Release);
        }
        if !recovered.jobs.is_empty() {
            self.look_everywhere.store(true, Ordering::Release);
            self.jobs_are_ready();
        }
        Ok(())
    }

    /// Gives jobs back that the store says this node holds, and that nobody here knows of: the answer of their claim, or
    /// of the submit they were born with, was lost. While this node lives, nobody else would take them. `forgotten` is
    /// since when each of them has been missed.
    async fn give_back_forgotten(&self, forgotten: &mut HashMap<Fence, Instant>) -> store::Result<()> {
        let node = self.membership().node;
        let held = self.store.held(node).await?;
        let missed: HashSet<Fence> = held.into_iter().filter(|fence| !self.runs(*fence)).collect();
        forgotten.retain(|fence, _| missed.contains(fence));
        for fence in missed {
            forgotten.entry(fence).or_insert_with(Instant::now);
        }
        // A call under way may still bring a job, or end one; after this long each has been answered.
        let patience = self.store.deadline() + self.config.lease;
        // A failed call brings none: what it has left can go back at once.
        let unheard = self.unheard.leases(patience);
        let waits = self.finisher().is_repeating();
        let is_over =
            |fence: &Fence, since: &Instant| unheard.contains(&fence.lease) || (!waits && since.elapsed() >= patience);
        let overdue: Vec<Fence> =
            forgotten.iter().filter(|(fence, since)| is_over(fence, since)).map(|(fence, _)| *fence).collect();
        if overdue.is_empty() {
            return Ok(());
        }
        tracing::warn!(jobs = overdue.len(), "gave jobs back that this node held without knowing");
        let release = |fence: &Fence| Finish {
            fence: *fence,
            attempt: 1,
            ran: Duration::ZERO,
            transition: Transition::Release,
            follow_up: None,
            cost: None,
        };
        self.store.finish(node, overdue.iter().map(release).collect()).await?;
        self.jobs_are_ready();
        Ok(())
    }

    /// Warns of whoever keeps the store from removing dead rows, once for each of them.
    async fn look_for_held_snapshots(&self) -> store::Result<()> {
        if !self.config.maintenance {
            return Ok(());
        }
        let found = self.store.held_snapshots(self.config.held_snapshot_after).await?;
        let known = std::mem::replace(&mut *self.held.lock(), found.clone());
        for held in found {
            if !known.iter().any(|known| (&known.kind, &known.name) == (&held.kind, &held.name)) {
                tracing::warn!(
                    kind = held.kind,
                    name = held.name,
                    "{held}: dead rows cannot be removed until it ends ({})",
                    held.fix()
                );
            }
        }
        Ok(())
    }

    /// Warns when this machine's clock is off, once each time it gets off. Leases and due times go by the store's clock
    /// alone, so nothing runs early or twice.
    async fn compare_clocks(&self, is_off: &mut bool) -> store::Result<()> {
        let skew = self.clock_skew_ms().await?;
        let was_off = std::mem::replace(is_off, skew.unsigned_abs() > CLOCK_OFF.as_millis() as u64);
        if *is_off && !was_off {
            let seconds = skew as f64 / 1_000.0;
            tracing::warn!(
                skew_ms = skew,
                "the clock of the store is {seconds:+.1} s off the clock of this machine: times that this process logs or \
                 passes on are wrong by as much (check its time synchronisation)"
            );
        }
        Ok(())
    }

    async fn tidy(&self) -> store::Result<()> {
        self.write_off_overdue().await;
        if !self.config.maintenance || !self.chores.untidy.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let expired = self.store.expire(STEP).await?;
        self.count_expired(expired);
        if self.store.open_gates(STEP).await? > 0 {
            self.jobs_are_ready();
        }
        Ok(())
    }

    async fn clean(&self) -> store::Result<()> {
        if !self.config.maintenance {
            return Ok(());
        }
        let mut removed = 0;
        for _ in 0..CLEAN_STEPS {
            let jobs = self.store.clean(STEP).await?;
            removed += jobs;
            if jobs < STEP {
                break;
            }
        }
        if removed > 0 {
            tracing::debug!(jobs = removed, "removed ended jobs");
            self.tally.cleaned(removed);
        }
        self.clean_activity().await
    }

    /// Makes dead letters of jobs that have waited too long while no live node has their handler (RUN-12).
    async fn give_up_on_missing_handlers(&self) -> store::Result<()> {
        if !self.config.maintenance {
            return Ok(());
        }
        let too_old = self.now() - self.config.handler_missing_after;
        let waiting = self.store.waiting_queues().await?;
        let mut queues: Vec<String> =
            waiting.into_iter().filter(|queue| queue.oldest.created() <= too_old).map(|queue| queue.queue).collect();
        if queues.is_empty() {
            return Ok(());
        }
        let live: HashSet<String> = self.store.nodes().await?.into_iter().flat_map(|node| node.info.handlers).collect();
        // Jobs of a handler nobody has were put into a queue of the handler's name by the first node that met them.
        queues.retain(|queue| !live.contains(queue) && !self.queues(1, true).iter().any(|(own, _)| own == queue));
        for queue in queues {
            let membership = self.membership();
            let lease = LeaseId(membership.ids.next().as_i64());
            let quota = [STEP; 4];
            let claim = Claim { node: membership.node, lease, queues: vec![(queue, STEP)], max: STEP, quota };
            let claimed = self.store.claim(claim).await.inspect_err(|error| self.unheard.report(lease, error))?;
            for job in claimed.jobs {
                let give_up = !live.contains(&job.handler) && job.created_at <= too_old;
                let transition = if give_up {
                    let error = JobError::of(Reason::HandlerMissing, "no live node has the handler");
                    Transition::DeadLetter { reason: Reason::HandlerMissing.as_str().into(), error }
                } else {
                    Transition::Release
                };
                self.finish(&job, membership.node, Duration::ZERO, transition, None, None).await;
            }
        }
        Ok(())
    }

    /// Saves progress and log lines now and then, until the node stops.
    pub(crate) async fn save_progress_now_and_then(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            self.save_progress().await;
            self.save_logs().await;
            tokio::select! {
                () = tokio::time::sleep(PROGRESS_EVERY) => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    pub(crate) fn jobs_are_ready(&self) {
        self.backlog.store(true, Ordering::Release);
        self.wake.notify_one();
        self.store.wake_others();
    }
}
