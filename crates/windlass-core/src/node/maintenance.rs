//! What keeps a store in order, on every node that runs: promotes due jobs, recovers those of lost nodes, opens gates,
//! expires, cleans, saves progress. Each step is bounded, repeatable and safe beside the same step elsewhere.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::flows::fire::AHEAD;
use crate::life::finish::{CALLS_BEFORE_REPEAT, Repeats};
use crate::life::lifecycle::never_began;
use crate::life::submit::RESERVED;
use crate::model::clock::Timestamp;
use crate::model::error::{JobError, Reason};
use crate::model::tenant::Scope;
use crate::node::Worker;
use crate::node::silence::Silence;
use crate::operate::activity::Waiting;
use crate::operate::observe::DEPTH_EVERY;
use crate::service::keep;
use crate::store::{self, Claim, Fence, Finish, LeaseId, News, Silent, Survey, Transition};

/// Jobs that one step of maintenance touches at most, so that none of them holds the store up.
const STEP: usize = 5_000;

/// How often the store is asked whether there is anything to do, at least: recovery takes the lease plus at most a
/// second, and so does a job that nobody was told of.
const LOOK_EVERY: Duration = Duration::from_millis(800);

/// After this long a step is taken whatever the looks said.
const REGARDLESS: Duration = Duration::from_secs(30);

/// How long after a node was lost its leases are looked for again and again: a claim of its that was under way may leave
/// some, and a transaction of its that has fallen silent may hold one until the database ends it.
const RECOVER_FOR: Duration = Duration::from_secs(120);

/// How often slow-moving things are looked at: gates that a crash left closed, expired jobs, blocked handlers.
const TIDY_EVERY: Duration = Duration::from_secs(2);

/// How often ended jobs are removed.
const CLEAN_EVERY: Duration = Duration::from_secs(10);

/// How often it is looked who holds an old snapshot.
const HELD_EVERY: Duration = Duration::from_secs(10);

/// How often this machine's clock is compared with the store's.
const CLOCK_EVERY: Duration = Duration::from_secs(30);

/// A process in which nothing has happened for so long is dormant. Longer than it takes to hand over what was counted.
const DORMANT_AFTER: Duration = Duration::from_secs(20);

/// How many times rarer a dormant process looks for what jobs leave behind: an idle installation asks its store for little,
/// and what others leave there waits a minute at most.
const DORMANT_PACE: u32 = 6;

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
        let mut silence = Silence::default();
        // Often enough for short leases too: who is dead must have been seen several times.
        let every = LOOK_EVERY.min(self.config.poll).min(self.config.lease / 4);
        while !self.stopped.is_cancelled() {
            let queues = match self.idle.load(Ordering::Acquire) {
                true => self.queues(1, true).into_iter().map(|(queue, _)| queue).collect(),
                false => Vec::new(),
            };
            let (asked, pauses_read) = (Instant::now(), self.pauses_read());
            match self.store.survey(self.config.lease, &queues).await {
                Ok(survey) => {
                    let dead = silence.look(&survey.silent, asked, Instant::now(), self.config.lease);
                    if !dead.is_empty() {
                        *self.dead.lock() = dead;
                        self.wake_recovery.notify_one();
                    }
                    self.act_on(survey, pauses_read);
                }
                Err(error) => tracing::warn!(%error, "could not look for work"),
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    fn act_on(&self, survey: Survey, pauses_read: u64) {
        self.set_pauses(survey.pauses, pauses_read);
        if survey.ready {
            self.wake.notify_one();
        }
        if survey.due {
            self.wake_maintenance.notify_one();
        }
        self.chores.untidy.fetch_or(survey.untidy, Ordering::AcqRel);
        self.chores.webhooks.store(survey.webhooks, Ordering::Release);
        self.settler.surveyed(survey.dependents, survey.batches);
        let due = survey.schedule_in.map(|left| Instant::now() + left);
        *self.chores.schedule_due.lock() = due;
        if survey.schedule_in.is_some_and(|left| left <= AHEAD) {
            self.wake_scheduler.notify_one();
        }
    }

    /// Starts everything else that keeps the store in order. Each step has a loop of its own: one that waits for the store,
    /// or fails, holds up no other.
    pub(crate) fn start_maintenance(self: &Arc<Self>) {
        keep(self, "recover", Worker::recover_when_lost);
        keep(self, "return", Worker::return_forgotten);
        keep(self, "tidy", Worker::tidy_now_and_then);
        keep(self, "clean", Worker::clean_now_and_then);
        keep(self, "missing", Worker::look_for_missing_handlers);
        keep(self, "snapshots", Worker::look_for_snapshots);
        keep(self, "clock", Worker::compare_clocks_now_and_then);
        keep(self, "depth", Worker::sample_depth_now_and_then);
    }

    async fn recover_when_lost(self: Arc<Self>) {
        let (mut looked, mut lost_lately, mut again_soon) = (None::<Instant>, None::<Instant>, false);
        while !self.stopped.is_cancelled() {
            let again = again_soon || lost_lately.is_some_and(|at| at.elapsed() < RECOVER_FOR);
            let regardless = looked.is_none_or(|at| at.elapsed() >= REGARDLESS);
            // Who could not be recovered is listed again by the next survey.
            let dead = std::mem::take(&mut *self.dead.lock());
            if !dead.is_empty() || again || regardless {
                looked = Some(Instant::now());
                let recovered = self.recover(&dead).await;
                again_soon = recovered.is_err();
                if let Some(true) = noted("recover jobs of lost nodes", recovered) {
                    lost_lately = Some(Instant::now());
                }
            }
            tokio::select! {
                () = self.wake_recovery.notified() => {}
                () = self.rest(LOOK_EVERY) => {}
            }
        }
    }

    async fn return_forgotten(self: Arc<Self>) {
        let (mut forgotten, mut compared) = (HashMap::new(), None::<Instant>);
        while !self.stopped.is_cancelled() {
            // What a dormant node holds without knowing came by a call whose failure it would have heard of.
            let pace = if self.is_dormant() && forgotten.is_empty() { DORMANT_PACE } else { 1 };
            if compared.is_none_or(|at| at.elapsed() >= self.config.lease / 2 * pace) || !self.unheard.is_empty() {
                compared = Some(Instant::now());
                noted("give back jobs that nobody here knows of", self.give_back_forgotten(&mut forgotten).await);
            }
            self.rest(LOOK_EVERY).await;
        }
    }

    async fn tidy_now_and_then(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            self.tidy().await;
            self.rest(TIDY_EVERY).await;
        }
    }

    async fn clean_now_and_then(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            match noted("remove old counts", self.clean().await) {
                Some(0) => self.rest_while_dormant(CLEAN_EVERY).await,
                // There may be more.
                _ => self.rest(CLEAN_EVERY).await,
            }
        }
    }

    async fn look_for_missing_handlers(self: Arc<Self>) {
        let every = (self.config.handler_missing_after / 10).clamp(LOOK_EVERY, Duration::from_secs(60));
        let mut overdue = HashMap::new();
        while !self.stopped.is_cancelled() {
            noted("look for jobs whose handler is missing", self.give_up_on_missing_handlers(&mut overdue).await);
            self.rest(every).await;
        }
    }

    async fn look_for_snapshots(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            noted("look for held snapshots", self.look_for_held_snapshots().await);
            self.rest_while_dormant(HELD_EVERY.min(self.config.held_snapshot_after)).await;
        }
    }

    async fn compare_clocks_now_and_then(self: Arc<Self>) {
        let mut is_off = false;
        while !self.stopped.is_cancelled() {
            noted("compare clocks", self.compare_clocks(&mut is_off).await);
            self.rest(CLOCK_EVERY).await;
        }
    }

    async fn sample_depth_now_and_then(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            let next = noted("count jobs by status", self.sample_depth().await);
            // A count holds for those after it, so a chart has no gaps.
            self.rest_while_dormant(next.unwrap_or(DEPTH_EVERY)).await;
        }
    }

    /// Whether nothing runs here, and nothing has happened for a while.
    fn is_dormant(&self) -> bool {
        self.running() == 0 && self.chores.counted.lock().is_none_or(|at| at.elapsed() >= DORMANT_AFTER)
    }

    /// Rests between two steps, and longer while the process is dormant.
    async fn rest_while_dormant(&self, usual: Duration) {
        for _ in 0..DORMANT_PACE {
            self.rest(usual).await;
            if !self.is_dormant() || self.stopped.is_cancelled() {
                return;
            }
        }
    }

    /// Whether nodes were lost.
    async fn recover(&self, dead: &[Silent]) -> store::Result<bool> {
        if !self.config.maintenance {
            return Ok(false);
        }
        let recovered = self.store.recover(self.config.lease, dead).await?;
        for node in &recovered.nodes {
            tracing::warn!(
                node = node.0,
                jobs = recovered.jobs.len(),
                "node {} was lost, its jobs are ready again",
                node.0
            );
        }
        if !recovered.jobs.is_empty() {
            self.tell_ready(News::ReadyElsewhere);
        }
        Ok(!recovered.nodes.is_empty())
    }

    /// Gives jobs back that the store says this node holds, and that nobody here knows of: the answer of their claim, or
    /// of the submit they were born with, was lost. While this node lives, nobody else would take them. `forgotten` is
    /// since when each of them has been missed.
    async fn give_back_forgotten(&self, forgotten: &mut HashMap<Fence, Instant>) -> store::Result<()> {
        let node = self.membership().node;
        let outside: Vec<_> = self.running_attempts().into_iter().filter(|attempt| attempt.checked_out()).collect();
        let held = self.store.held(node).await?;
        self.forget_checkouts(&outside, &held);
        let leases: HashSet<LeaseId> = held.iter().map(|fence| fence.lease).collect();
        let missed: HashSet<Fence> = held.into_iter().filter(|fence| !self.runs(*fence)).collect();
        forgotten.retain(|fence, _| missed.contains(fence));
        for fence in missed {
            forgotten.entry(fence).or_insert_with(Instant::now);
        }
        let (deadline, lease) = (self.store.deadline(), self.config.lease);
        // A failed call brings none: what it has left can go back at once.
        let unheard = self.unheard.leases(deadline + lease, &leases);
        let repeats = self.finisher().repeats();
        let is_over = |fence: &Fence, since: &Instant| {
            let patience = patience_with(fence.lease, &repeats, deadline, lease);
            unheard.contains(&fence.lease) || patience.is_some_and(|patience| since.elapsed() >= patience)
        };
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
            audit: false,
            batch: None,
            resumed: true,
        };
        if let Err(error) = self.store.finish(node, overdue.iter().map(release).collect()).await {
            if overdue.len() == 1 || !error.is_transient() {
                return Err(error);
            }
            // One lease that something else has locked must not keep the others.
            let mut leases: Vec<LeaseId> = overdue.iter().map(|fence| fence.lease).collect();
            leases.sort_unstable();
            leases.dedup();
            for lease in leases {
                let of = overdue.iter().filter(|fence| fence.lease == lease);
                noted("give back jobs of a lease", self.store.finish(node, of.map(release).collect()).await);
            }
        }
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

    /// Each by itself: what keeps one of them from being done keeps none of the others.
    async fn tidy(&self) {
        self.write_off_overdue().await;
        noted("look after jobs that are checked out", self.look_after_checkouts().await);
        if !self.config.maintenance || !self.chores.untidy.swap(false, Ordering::AcqRel) {
            return;
        }
        if let Some(expired) = noted("expire jobs", self.store.expire(STEP).await) {
            self.count_expired(expired);
        }
        if noted("open gates", self.store.open_gates(STEP).await).is_some_and(|opened| opened > 0) {
            self.jobs_are_ready();
        }
    }

    /// Removes what is over; returns how many jobs.
    async fn clean(&self) -> store::Result<usize> {
        if !self.config.maintenance {
            return Ok(0);
        }
        let mut removed = 0;
        for _ in 0..CLEAN_STEPS {
            // What cannot be removed here keeps nothing of another kind.
            let jobs = noted("remove ended jobs", self.store.clean(STEP).await).unwrap_or(0);
            removed += jobs;
            if jobs < STEP {
                break;
            }
        }
        if removed > 0 {
            tracing::debug!(jobs = removed, "removed ended jobs");
            self.tally.cleaned(removed);
        }
        self.clean_activity().await?;
        Ok(removed)
    }

    /// Makes dead letters of jobs that have waited too long while nobody has their handler, and writes
    /// down what workers outside take. `overdue` is since when this process has seen that each handler is.
    async fn give_up_on_missing_handlers(&self, overdue: &mut HashMap<String, Instant>) -> store::Result<()> {
        let polled = self.polled_of_waiting().await?;
        let unserved = if self.config.maintenance { self.unserved().await? } else { Vec::new() };
        if polled.is_empty() && unserved.is_empty() {
            overdue.clear();
            return Ok(());
        }
        let names_of = |w: &Waiting| [w.handler.clone(), w.queue.clone(), missed(&w.handler)];
        let mut names: Vec<String> = unserved.iter().flat_map(names_of).collect();
        names.sort_unstable();
        names.dedup();
        let served = self.store.last_served(&polled, &names).await?;
        let served: HashMap<String, Option<Timestamp>> = names.into_iter().zip(served).collect();
        let (now, limit) = (self.now(), self.config.handler_missing_after);
        let of_handler = |w: &Waiting| served[&w.handler].max(served[&missed(&w.handler)]);
        let is_known = |w: &&Waiting| of_handler(w).is_some();
        let new: Vec<String> = unserved.iter().filter(|w| !is_known(w)).map(|w| missed(&w.handler)).collect();
        if !new.is_empty() {
            // Missed for the first time: their time runs from now on.
            self.store.last_served(&new, &[]).await?;
        }
        let last = |waiting: &Waiting| of_handler(waiting).max(served[&waiting.queue]);
        let is_overdue = |w: &Waiting| is_known(&w) && is_missing_too_long(now, last(w), w.since, limit);
        let late: HashSet<&str> = unserved.iter().filter(|w| is_overdue(w)).map(|w| w.handler.as_str()).collect();
        overdue.retain(|handler, _| late.contains(handler.as_str()));
        for handler in late {
            overdue.entry(handler.to_owned()).or_insert_with(Instant::now);
        }
        let patience = patience_of(limit);
        let is_over = |w: &Waiting| overdue.get(&w.handler).is_some_and(|since| since.elapsed() >= patience);
        // What shares its queue with others is left to whoever takes them.
        let mut queues: Vec<&str> = unserved.iter().map(|waiting| waiting.queue.as_str()).collect();
        queues.dedup();
        queues.retain(|queue| unserved.iter().filter(|w| w.queue == *queue).all(|w| is_overdue(w) && is_over(w)));
        for queue in queues {
            self.give_up_on(queue, overdue).await?;
        }
        Ok(())
    }

    /// What waits in queues that this node does not serve, by queue.
    async fn unserved(&self) -> store::Result<Vec<Waiting>> {
        let own = self.queues(1, true);
        let is_own = |queue: &str| {
            let queue = store::queue_of(queue);
            own.iter().any(|(own, _)| own == queue)
        };
        if self.store.waiting_queues().await?.iter().all(|waiting| is_own(&waiting.queue)) {
            return Ok(Vec::new());
        }
        let mut waiting = self.store.backlog(Scope::ENGINE).await?;
        waiting.retain(|waiting| waiting.waiting > 0 && !is_own(&waiting.queue));
        waiting.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
        Ok(waiting)
    }

    async fn give_up_on(&self, queue: &str, overdue: &HashMap<String, Instant>) -> store::Result<()> {
        let membership = self.membership();
        let lease = LeaseId(membership.ids.next().as_i64());
        let quota = [STEP; 4];
        let queues = vec![(queue.to_owned(), STEP)];
        let claim = Claim { node: membership.node, lease, queues, max: STEP, quota, tenant: None };
        let claimed = self.claim(claim).await?;
        for job in claimed.jobs {
            let has_waited = claimed.now.since(job.ready_at) >= self.config.handler_missing_after;
            let transition = if overdue.contains_key(&job.handler) && has_waited {
                let error = JobError::of(Reason::HandlerMissing, "no live node has the handler");
                never_began(&job, &self.rules(&job), error)
            } else {
                Transition::Release
            };
            self.hand_back(&job, membership.node, transition, None).await;
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
        self.tell_ready(News::Ready);
    }

    /// Tells this node and others that jobs may be ready.
    pub(crate) fn tell_ready(&self, news: News) {
        self.hear_ready(news);
        self.store.wake_others(news);
    }
}

/// Whether jobs have waited too long for a handler: `limit` since somebody last had it, and since they could run. Pure.
fn is_missing_too_long(
    now: Timestamp,
    last_served: Option<Timestamp>,
    waiting_since: Option<Timestamp>,
    limit: Duration,
) -> bool {
    now.since(last_served.max(waiting_since).unwrap_or(now)) >= limit
}

/// The name under which it is noted when a handler was first missed: not its own, because nobody has served it.
fn missed(handler: &str) -> String {
    format!("{RESERVED}missed:{handler}")
}

/// How long a process itself must have seen that a handler has been missing for too long: when everything was down for days, the
/// first process to start must not give up on what the next one brings.
fn patience_of(limit: Duration) -> Duration {
    (limit / 10).min(Duration::from_secs(600))
}

/// How long a job may be missed before it goes back; `None` while its end is on its way to the store. Pure. A call under
/// way may still bring a job, or end one; after the store's deadline each has been answered. A write that is repeated
/// keeps the jobs of its own lease: it may go on for as long as something holds a lock, and the jobs of other leases must
/// not wait for that.
fn patience_with(of: LeaseId, repeats: &Repeats, deadline: Duration, lease: Duration) -> Option<Duration> {
    match repeats {
        Repeats::Nothing => Some(deadline + lease),
        Repeats::Leases(leases) if !leases.contains(&of) => Some(deadline * CALLS_BEFORE_REPEAT + lease),
        Repeats::Leases(_) | Repeats::Any => None,
    }
}

/// What a step came to; a failure is logged, and the step is taken again when its time comes.
fn noted<T>(step: &str, done: store::Result<T>) -> Option<T> {
    done.inspect_err(|error| tracing::warn!(%error, "could not {step}, trying again: {error}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ERR-10.
    #[test]
    fn a_handler_is_missing_from_when_it_was_last_served_and_never_from_the_age_of_a_job() {
        let at = |minutes: i64| Some(Timestamp::from_millis(1_800_000_000_000 + minutes * 60_000));
        let now = at(1_000).expect("a time");
        let limit = Duration::from_secs(24 * 60);
        let check = |served, since, expected| assert_eq!(is_missing_too_long(now, served, since, limit), expected);
        check(at(999), at(0), false);
        check(at(977), at(0), false);
        check(at(976), at(0), true);
        check(at(0), at(999), false);
        check(None, at(0), true);
        check(None, None, false);
    }

    /// RUN-5, RUN-10.
    #[test]
    fn a_repeated_write_keeps_missed_jobs_of_its_own_lease_only() {
        let (deadline, lease) = (Duration::from_secs(2), Duration::from_secs(10));
        let check = |repeats: Repeats, expected: Option<u64>| {
            let patience = patience_with(LeaseId(1), &repeats, deadline, lease);
            assert_eq!(patience, expected.map(Duration::from_secs));
        };
        check(Repeats::Nothing, Some(12));
        check(Repeats::Leases([LeaseId(2)].into_iter().collect()), Some(20));
        check(Repeats::Leases([LeaseId(1), LeaseId(2)].into_iter().collect()), None);
        check(Repeats::Any, None);
    }

    #[test]
    fn a_process_that_has_just_started_gives_the_next_one_time() {
        assert_eq!(patience_of(Duration::from_secs(24 * 3_600)), Duration::from_secs(600));
        assert_eq!(patience_of(Duration::from_millis(300)), Duration::from_millis(30));
    }
}
