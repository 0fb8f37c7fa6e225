//! Saves what attempts came to, many in one write. Called by `run`; writes when a writer is free, with no timer.
//! Repeats a write that failed until it is saved or the node has lost its jobs; others are saved meanwhile. Never decides
//! an outcome.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};
use futures_util::FutureExt;
use futures_util::future::{Fuse, FusedFuture, OptionFuture};
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use crate::flows::settle::Settler;
use crate::model::clock::Timestamp;
use crate::model::error::JobError;
use crate::model::id::JobId;
use crate::model::job::Status;
use crate::model::payload::Payload;
use crate::model::priority::Priority;
use crate::model::tenant::{Scope, TenantId};
use crate::node::SuspectWatch;
use crate::node::supervise::Supervisor;
use crate::operate::activity::{Counted, EndedAttempt, Tally};
use crate::operate::watch::{JobEvent, JobView, Watchers};
use crate::store::{self, Finish, Finished, LeaseId, News, NodeId, Store, Transition};

/// An ended attempt on its way to the store.
pub(crate) struct Ended {
    pub(crate) node: NodeId,
    pub(crate) finish: Finish,
    /// For a sealed job: what its transition was before it was sealed, for those who watch.
    pub(crate) open: Option<Box<Transition>>,
    pub(crate) tenant: TenantId,
    /// Whether it has an ordering key, so that its end lets the next job of the key go on.
    pub(crate) ordered: bool,
    pub(crate) handler: String,
    pub(crate) priority: Priority,
    pub(crate) at: Timestamp,
    /// For a job that came back from a lost node: ends the watch over it when this is saved or given up.
    #[expect(dead_code, reason = "held for its drop")]
    pub(crate) watch: Option<SuspectWatch>,
}

impl Ended {
    fn lease(&self) -> (NodeId, LeaseId) {
        (self.node, self.finish.fence.lease)
    }

    fn counted(&self) -> Counted<'_> {
        Counted { tenant: self.tenant, handler: &self.handler, priority: self.priority }
    }

    /// What is counted of it once its job is in `status`.
    fn attempt(&self, status: Status) -> EndedAttempt {
        let Finish { ran, transition, follow_up, .. } = &self.finish;
        // A job that was turned away before it began is a dead letter without a failed attempt.
        let failed = !ran.is_zero() && matches!(transition, Transition::Retry { .. } | Transition::DeadLetter { .. });
        // A cancel that came first leaves no callback.
        let follow_up = follow_up.is_some() && matches!(status, Status::Succeeded | Status::DeadLettered);
        EndedAttempt { status, failed, ran: *ran, follow_up }
    }
}

/// Takes ended attempts and saves them.
#[derive(Clone)]
pub(crate) struct Finisher {
    /// One way to each writer. The jobs of a lease all go the same way: two writers would wait for each other's commit.
    writers: Vec<mpsc::Sender<Ended>>,
    savers: Vec<Arc<Saver>>,
    unsaved: Arc<Unsaved>,
}

/// Which ends are on their way to the store for longer than one write takes.
pub(crate) enum Repeats {
    /// None: every write was answered.
    Nothing,
    /// Those of these leases.
    Leases(HashSet<LeaseId>),
    /// Perhaps those of any lease: a writer keeps the most it may aside and takes no new ends.
    Any,
}

/// Ended attempts that are not saved yet, and who waits until there are none.
struct Unsaved {
    jobs: AtomicUsize,
    none: Notify,
    /// Jobs whose write has failed and is being repeated.
    repeating: AtomicUsize,
    writes: Mutex<Writes>,
}

struct Writes {
    /// When the write began that each writer is at.
    begun: Vec<Option<Instant>>,
    /// Since when every write has failed; none while the last one was answered.
    failing_since: Option<Instant>,
}

impl Unsaved {
    fn new(writers: usize) -> Unsaved {
        Unsaved {
            jobs: AtomicUsize::new(0),
            none: Notify::new(),
            repeating: AtomicUsize::new(0),
            writes: Mutex::new(Writes { begun: vec![None; writers], failing_since: None }),
        }
    }

    fn done(&self, jobs: usize) {
        if self.jobs.fetch_sub(jobs, Ordering::AcqRel) == jobs {
            self.none.notify_waiters();
        }
    }
}

/// Ended attempts that may wait for one writer: the next two writes. When they are full, workers wait, and so claim no
/// more.
const WAITING_FINISHES: usize = 2 * FINISHES_PER_WRITE;

/// Finishes in one write.
const FINISHES_PER_WRITE: usize = 2_000;

/// Ends whose write has failed that a writer keeps aside while it goes on with others. Beyond that it only repeats.
const KEPT_ASIDE: usize = FINISHES_PER_WRITE;

/// Waits between tries to save; the first is short because most outages are a lost connection.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// A write that takes longer is stuck: healthy ones take milliseconds.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// Calls of the store that an end may wait for before its own write has failed: the channel holds two writes before it,
/// each perhaps followed by the question whether the store answers at all, and then its own comes.
pub(crate) const CALLS_BEFORE_REPEAT: u32 = 5;

/// How often an end is tried alone that the store can make nothing of, or panics at.
const HOPELESS_TRIES: u32 = 3;

impl Finisher {
    /// Starts the writers on the current runtime. `is_current` says whether a node is still this process's own.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        watchers: Arc<Watchers>,
        tally: Arc<Tally>,
        settler: Arc<Settler>,
        supervisor: &Supervisor,
        is_current: impl Fn(NodeId) -> bool + Send + Sync + 'static,
        on_ready: impl Fn(News) + Send + Sync + 'static,
    ) -> Self {
        let count = store.writers().max(1);
        let unsaved = Arc::new(Unsaved::new(count));
        let is_current: Arc<IsCurrent> = Arc::new(is_current);
        let on_ready: Arc<OnReady> = Arc::new(on_ready);
        let (mut writers, mut savers) = (Vec::new(), Vec::new());
        for number in 0..count {
            let (ended, waiting) = mpsc::channel(WAITING_FINISHES);
            let saver = Arc::new(Saver {
                number,
                store: store.clone(),
                watchers: watchers.clone(),
                tally: tally.clone(),
                settler: settler.clone(),
                supervisor: supervisor.clone(),
                is_current: is_current.clone(),
                on_ready: on_ready.clone(),
                unsaved: unsaved.clone(),
                waiting: tokio::sync::Mutex::new(waiting),
                aside: Mutex::default(),
                trying: Mutex::default(),
            });
            savers.push(saver.clone());
            supervisor.spawn_here("finish", move || saver.clone().run());
            writers.push(ended);
        }
        Finisher { writers, savers, unsaved }
    }

    /// Hands an ended attempt over. Where the store is far behind, what is returned waits until there is room; else it is
    /// over at once, and holds nothing: every job that runs has room for it.
    pub(crate) fn finish(&self, ended: Ended) -> impl Future<Output = ()> + Send + '_ {
        self.unsaved.jobs.fetch_add(1, Ordering::AcqRel);
        let writer = self.writer_for(ended.finish.fence.lease);
        let waits = match writer.try_send(ended) {
            Ok(()) => None,
            Err(TrySendError::Full(ended)) => Some(ended),
            // The receiver lives as long as the runtime; after that there is nobody to tell.
            Err(TrySendError::Closed(_)) => {
                self.unsaved.done(1);
                None
            }
        };
        let wait = waits.map(|ended| {
            Box::pin(async move {
                if writer.send(ended).await.is_err() {
                    self.unsaved.done(1);
                }
            })
        });
        OptionFuture::from(wait).map(drop)
    }

    /// Saves one ended attempt by itself, once: for a caller who has to know whether it was saved.
    pub(crate) async fn save_now(&self, ended: Ended) -> store::Result<Finished> {
        let node = ended.node;
        let saver = &self.savers[0];
        let answers = saver.store.finish(node, vec![ended.finish.clone()]).await?;
        let answer = answers.first().cloned().unwrap_or(Finished::Fenced);
        saver.tell(node, vec![ended], answers, false).await;
        Ok(answer)
    }

    fn writer_for(&self, lease: LeaseId) -> &mpsc::Sender<Ended> {
        &self.writers[way_of(lease, self.writers.len())]
    }

    /// Whether a write failed that is being repeated.
    pub(crate) fn is_repeating(&self) -> bool {
        self.unsaved.repeating.load(Ordering::Acquire) > 0
    }

    /// Which ends wait for a write that is being repeated.
    pub(crate) fn repeats(&self) -> Repeats {
        if !self.is_repeating() {
            return Repeats::Nothing;
        }
        let mut leases = HashSet::default();
        for saver in &self.savers {
            let aside = saver.aside.lock();
            if kept(&aside) >= KEPT_ASIDE {
                return Repeats::Any;
            }
            leases.extend(aside.iter().flat_map(|group| &group.ends).map(|ended| ended.finish.fence.lease));
            leases.extend(saver.trying.lock().iter().map(|(_, lease)| *lease));
        }
        Repeats::Leases(leases)
    }

    /// How many ends wait to be saved while a write fails or hangs; nothing while saving works.
    pub(crate) fn stuck(&self) -> usize {
        let hangs = |begun: &Option<Instant>| begun.is_some_and(|at| at.elapsed() >= STUCK_AFTER);
        match self.is_repeating() || self.unsaved.writes.lock().begun.iter().any(hangs) {
            true => self.unsaved.jobs.load(Ordering::Acquire),
            false => 0,
        }
    }

    /// How many ends wait to be saved, whatever the reason.
    pub(crate) fn unsaved(&self) -> usize {
        self.unsaved.jobs.load(Ordering::Acquire)
    }

    /// How long every write has failed.
    pub(crate) fn failing_for(&self) -> Duration {
        self.unsaved.writes.lock().failing_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Waits until everything handed over is saved or given up.
    pub(crate) async fn flush(&self) {
        loop {
            // Subscribe before looking, so that the last save in between is not missed.
            let none = self.unsaved.none.notified();
            if self.unsaved.jobs.load(Ordering::Acquire) == 0 {
                return;
            }
            none.await;
        }
    }
}

/// Which of some writers the ends of a lease go to. Pure. The low bits of an id count within a millisecond, in which a node
/// rarely claims twice, and the bits above them are the same for all ids of a node: all bits decide.
fn way_of(lease: LeaseId, writers: usize) -> usize {
    /// Spreads consecutive numbers evenly over the upper half (2^64 divided by the golden ratio).
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (lease.0.cast_unsigned().wrapping_mul(SPREAD) >> 32) as usize % writers
}

type IsCurrent = dyn Fn(NodeId) -> bool + Send + Sync;
type OnReady = dyn Fn(News) + Send + Sync;

struct Saver {
    number: usize,
    store: Arc<dyn Store>,
    watchers: Arc<Watchers>,
    tally: Arc<Tally>,
    settler: Arc<Settler>,
    supervisor: Supervisor,
    is_current: Arc<IsCurrent>,
    on_ready: Arc<OnReady>,
    unsaved: Arc<Unsaved>,
    /// Outlives a restart of the loop, as `aside` does: ends that were handed over must be saved.
    waiting: tokio::sync::Mutex<mpsc::Receiver<Ended>>,
    /// What could not be saved and is tried again, while others go on.
    aside: Mutex<VecDeque<Group>>,
    /// The leases of the group that is being tried again now.
    trying: Mutex<HashSet<(NodeId, LeaseId)>>,
}

/// Ends of one node that are saved in one write.
struct Group {
    node: NodeId,
    ends: Vec<Ended>,
    /// Whether an earlier try may have saved them.
    maybe_saved: bool,
    tries: u32,
    due: Instant,
}

impl Group {
    /// How long to wait after so many tries.
    fn wait(&self) -> Duration {
        (FIRST_RETRY * 2_u32.saturating_pow(self.tries.min(10).saturating_sub(1))).min(LAST_RETRY)
    }

    /// Two halves, by lease as far as there are several: ends of one lease wait for the same lock. Pure.
    fn halves(mut self) -> [Group; 2] {
        self.ends.sort_by_key(|ended| ended.finish.fence.lease);
        let (first, last) = (self.ends[0].finish.fence.lease, self.ends[self.ends.len() - 1].finish.fence.lease);
        let middle = self.ends.len() / 2;
        let at = match first == last {
            true => middle,
            // The border between two leases that is nearest to the middle, from below or from above.
            false => {
                let lease = self.ends[middle].finish.fence.lease;
                match self.ends.partition_point(|ended| ended.finish.fence.lease < lease) {
                    0 => self.ends.partition_point(|ended| ended.finish.fence.lease <= lease),
                    at => at,
                }
            }
        };
        let rest = self.ends.split_off(at);
        // One try counts: the half that has the trouble is halved again at its next failure.
        let other = Group { node: self.node, ends: rest, maybe_saved: self.maybe_saved, tries: 1, due: self.due };
        [Group { tries: 1, ..self }, other]
    }
}

impl Saver {
    /// New ends are saved as they come, and beside them those that could not be saved are tried again, a group at a time:
    /// a lock on one lease must not keep the ends of others.
    async fn run(self: Arc<Self>) {
        let mut waiting = self.waiting.lock().await;
        let mut repeat = pin!(Fuse::terminated());
        let mut over = false;
        loop {
            let kept = self.kept_aside();
            if repeat.is_terminated() && kept > 0 && self.next_due_in().is_zero() {
                repeat.set(self.repeat_one().fuse());
                continue;
            }
            let rests = repeat.is_terminated();
            if over && kept == 0 && rests {
                return;
            }
            let mut batch = Vec::new();
            tokio::select! {
                biased;
                received = waiting.recv_many(&mut batch, FINISHES_PER_WRITE), if kept < KEPT_ASIDE && !over => {
                    over = received == 0;
                }
                () = &mut repeat, if !rests => {}
                () = tokio::time::sleep(self.next_due_in()), if rests && kept > 0 => {}
            }
            for group in by_node(self.without_troubled(batch)) {
                let writing = Writing::new(&self.unsaved, self.number);
                if self.save(group).await {
                    writing.succeeded();
                }
            }
        }
    }

    /// Keeps ends aside whose lease could not be written a moment ago, with those that wait for it: tried among others they
    /// would keep them all. Returns the others.
    fn without_troubled(&self, batch: Vec<Ended>) -> Vec<Ended> {
        let (mut aside, trying) = (self.aside.lock(), self.trying.lock());
        if aside.is_empty() && trying.is_empty() {
            return batch;
        }
        let mut groups: HashMap<(NodeId, LeaseId), usize> = HashMap::default();
        for (at, group) in aside.iter().enumerate() {
            groups.extend(group.ends.iter().map(|ended| (ended.lease(), at)));
        }
        let mut others = Vec::new();
        for ended in batch {
            let lease = ended.lease();
            let group = groups.get(&lease).copied();
            match group.filter(|at| aside[*at].ends.len() < FINISHES_PER_WRITE) {
                Some(at) => aside[at].ends.push(ended),
                None if group.is_some() || trying.contains(&lease) => {
                    groups.insert(lease, aside.len());
                    let due = Instant::now() + FIRST_RETRY;
                    aside.push_back(Group { node: ended.node, ends: vec![ended], maybe_saved: false, tries: 1, due });
                }
                None => {
                    others.push(ended);
                    continue;
                }
            }
            self.unsaved.repeating.fetch_add(1, Ordering::AcqRel);
        }
        others
    }

    fn kept_aside(&self) -> usize {
        kept(&self.aside.lock())
    }

    fn next_due_in(&self) -> Duration {
        let due = self.aside.lock().iter().map(|group| group.due).min();
        due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()))
    }

    /// Tries what has waited longest once more, if its time has come.
    async fn repeat_one(&self) {
        let group = {
            let mut aside = self.aside.lock();
            let now = Instant::now();
            let at = aside.iter().position(|group| group.due <= now);
            let group = at.and_then(|at| aside.remove(at));
            // Under the same lock: nobody finds the group in neither place.
            *self.trying.lock() = group.iter().flat_map(|group| &group.ends).map(Ended::lease).collect();
            group
        };
        let Some(group) = group else { return };
        // Until the store has answered: while it hangs, the node must take no more jobs, and none is taken for forgotten.
        let _repeating = Repeating(&self.unsaved, group.ends.len());
        if self.save(group).await {
            self.unsaved.writes.lock().failing_since = None;
        }
        self.trying.lock().clear();
    }

    /// Saves a group. What cannot be saved is kept aside, unless its node is not ours any more. Returns whether nothing of
    /// it is left to save.
    async fn save(&self, mut group: Group) -> bool {
        let error = match self.try_to_save(&group).await {
            Ok(answers) => {
                let jobs = group.ends.len();
                let telling = self.tell(group.node, group.ends, answers, group.maybe_saved);
                // Saved is saved, whatever becomes of the telling.
                let _ = self.supervisor.run_once("finish", telling).await;
                self.unsaved.done(jobs);
                return true;
            }
            Err(error) => error,
        };
        let jobs = group.ends.len();
        // One that panicked may have been carried out before it did.
        group.maybe_saved |= matches!(error, store::Error::Unknown(_) | store::Error::Internal(_));
        group.tries += 1;
        tracing::warn!(jobs, tries = group.tries, %error, "could not save ended attempts, trying again");
        // A refusal ends when someone sees to the database; until then the jobs are this node's and nobody else can run
        // them.
        let hopeless = !error.is_transient() && !matches!(error, store::Error::Refused(_));
        let alone = hopeless && jobs == 1 && group.tries >= HOPELESS_TRIES;
        if alone || !(self.is_current)(group.node) {
            tracing::error!(jobs, "gave up saving ended attempts: other nodes will run them");
            self.unsaved.done(jobs);
            return true;
        }
        self.unsaved.writes.lock().failing_since.get_or_insert_with(Instant::now);
        group.due = Instant::now() + group.wait();
        // A store that answers others is not down: one of these jobs, or a lock on one of their leases, is the trouble.
        let split = jobs > 1 && (hopeless || group.tries > 1) && self.store_answers().await;
        self.unsaved.repeating.fetch_add(jobs, Ordering::AcqRel);
        let mut aside = self.aside.lock();
        match split {
            true => aside.extend(group.halves()),
            false => aside.push_back(group),
        }
        false
    }

    /// Whether the store answers at all. What panics does not: the ends at hand must outlive it.
    async fn store_answers(&self) -> bool {
        matches!(self.supervisor.run_once("finish", self.store.now()).await, Ok(Ok(_)))
    }

    async fn try_to_save(&self, group: &Group) -> store::Result<Vec<Finished>> {
        let finishes: Vec<Finish> = group.ends.iter().map(|ended| ended.finish.clone()).collect();
        let saved = self.supervisor.run_once("finish", self.store.finish(group.node, finishes)).await;
        saved.unwrap_or_else(|panic| Err(store::Error::Internal(format!("saving panicked: {panic}"))))
    }

    /// Counts what was saved, and tells watchers.
    async fn tell(&self, node: NodeId, group: Vec<Ended>, answers: Vec<Finished>, maybe_saved_before: bool) {
        let mut statuses = Vec::with_capacity(group.len());
        for (ended, answer) in group.iter().zip(answers) {
            statuses.push(match answer {
                Finished::Accepted(status) => Some(status),
                Finished::Fenced => self.saved_before(node, ended, maybe_saved_before).await,
            });
        }
        let saved = group.iter().zip(&statuses).filter_map(|(ended, status)| Some((ended, (*status)?)));
        let ended = saved.clone().filter(|(_, status)| status.is_terminal());
        self.settler.ended(ended.map(|(ended, _)| (ended.finish.fence.job, ended.finish.batch)));
        self.tally.ended(saved.map(|(ended, status)| (ended.counted(), ended.attempt(status))));
        let (mut ready, mut elsewhere) = (false, false);
        for (ended, status) in group.into_iter().zip(statuses) {
            let job = ended.finish.fence.job;
            let Some(status) = status else {
                tracing::warn!(%job, attempt = ended.finish.attempt, "job {job}: the lease was lost, its result is dropped");
                continue;
            };
            // Where a tenant may only have so many running, the next of its jobs may start now.
            ready |= !status.is_terminal()
                || ended.ordered
                || ended.finish.follow_up.is_some()
                || self.store.limited(ended.tenant).running;
            // Nodes that have its handler look at that queue only now and then.
            elsewhere |= matches!(ended.finish.transition, Transition::Route { .. });
            let (output, error) = result_of(ended.open.map_or(ended.finish.transition, |open| *open), status);
            self.watchers.event(|| JobEvent {
                job,
                tenant: ended.tenant,
                handler: ended.handler,
                status,
                attempt: ended.finish.attempt,
                error: error.clone(),
                at: ended.at,
            });
            self.watchers.show(job, || JobView { status, progress: None, output, error });
        }
        if ready {
            (self.on_ready)(if elsewhere { News::ReadyElsewhere } else { News::Ready });
        }
    }

    /// A write whose outcome was unknown may have happened: then the repeat is refused although the result is ours.
    async fn saved_before(&self, node: NodeId, ended: &Ended, maybe: bool) -> Option<Status> {
        if !maybe {
            return None;
        }
        let job: JobId = ended.finish.fence.job;
        let record = self.store.get(Scope::ENGINE, &[job]).await.ok()?.pop()?;
        let ours = record.node == Some(node) && record.attempt == ended.finish.attempt;
        (ours && record.status.is_terminal()).then_some(record.status)
    }
}

/// Jobs whose repeated write is under way, until it has been answered. What fails again is counted anew before.
struct Repeating<'a>(&'a Unsaved, usize);

impl Drop for Repeating<'_> {
    fn drop(&mut self) {
        self.0.repeating.fetch_sub(self.1, Ordering::AcqRel);
    }
}

/// Says since when a writer is at a write of new ends, while it is.
struct Writing<'a> {
    unsaved: &'a Unsaved,
    number: usize,
    succeeded: bool,
}

impl<'a> Writing<'a> {
    fn new(unsaved: &'a Unsaved, number: usize) -> Self {
        unsaved.writes.lock().begun[number] = Some(Instant::now());
        Writing { unsaved, number, succeeded: false }
    }

    fn succeeded(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut writes = self.unsaved.writes.lock();
        writes.begun[self.number] = None;
        if self.succeeded {
            writes.failing_since = None;
        }
    }
}

/// How many ends these groups hold.
fn kept(groups: &VecDeque<Group>) -> usize {
    groups.iter().map(|group| group.ends.len()).sum()
}

/// The ends of each node: a process that was declared dead has ends of two.
fn by_node(batch: Vec<Ended>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for ended in batch {
        match groups.iter_mut().find(|group| group.node == ended.node) {
            Some(group) => group.ends.push(ended),
            None => groups.push(Group {
                node: ended.node,
                ends: vec![ended],
                maybe_saved: false,
                tries: 0,
                due: Instant::now(),
            }),
        }
    }
    groups
}

fn result_of(transition: Transition, status: Status) -> (Option<Payload>, Option<JobError>) {
    match transition {
        Transition::Succeed { output, .. } if status == Status::Succeeded => (output, None),
        Transition::Retry { error, .. } | Transition::DeadLetter { error, .. } => (None, Some(error)),
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::{IdGenerator, MachineSlot};

    /// RUN-4: a node claims less than once in a millisecond, so its leases differ in the bits of the time alone.
    #[test]
    fn leases_of_a_node_are_shared_between_its_writers() {
        let slot = MachineSlot::new(7).expect("a slot");
        let claimed_at = |ms: i64| IdGenerator::new(slot, Timestamp::from_millis(1_800_000_000_000 + ms)).next();
        for (writers, every) in [(2, 1), (2, 5), (2, 800), (3, 1), (4, 10)] {
            let mut leases = vec![0; writers];
            for n in 0..1_000 {
                leases[way_of(LeaseId(claimed_at(n * every).as_i64()), writers)] += 1;
            }
            let fair = 1_000 / writers;
            assert!(leases.iter().all(|n| *n > fair / 2), "{writers} writers, a claim every {every} ms: {leases:?}");
        }
    }
}
