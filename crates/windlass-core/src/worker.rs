//! The node: what this process holds and how much room it has. Owned by the service; `claim`, `run`, `finish` and
//! `maintenance` are its parts. Here are membership and heartbeats, slots, the running attempts, and the pauses in
//! force.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::access::KeyCheck;
use crate::activity::Tally;
use crate::clock::Timestamp;
use crate::config::{Config, DEFAULT_QUEUE};
use crate::context::{Attempt, AttemptLink, JobContext, Stop};
use crate::feed::Feeds;
use crate::finish::Finisher;
use crate::handler::Registry;
use crate::health::HeldSnapshot;
use crate::id::{IdGenerator, JobId};
use crate::job::{ClaimedJob, NewJob, Progress};
use crate::logs::{LogLevel, Unsaved};
use crate::observe::Seen;
use crate::payload::Payload;
use crate::priority::BandShares;
use crate::run::cut_output;
use crate::seal::{Sealer, Seals};
use crate::store::{
    self, Beat, Fence, Finish, Gate, LeaseId, NewNode, NodeId, Pause, PauseTarget, ProgressReport, Store, Transition,
};
use crate::submit::{BornLeased, Elsewhere, Reservation, is_born_leased};
use crate::unheard::Unheard;
use crate::watch::Watchers;

/// This process as a node of the cluster.
pub(crate) struct Worker {
    this: std::sync::Weak<Worker>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: Config,
    pub(crate) registry: Registry,
    pub(crate) seals: Seals,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) api_keys: KeyCheck,
    /// What this process has done.
    pub(crate) tally: Arc<Tally>,
    /// How the installation was, as last seen; whoever asks meanwhile waits for the same look.
    pub(crate) seen: tokio::sync::Mutex<Option<Seen>>,
    pub(crate) feeds: Feeds,
    pub(crate) finisher: OnceLock<Finisher>,
    /// Where handlers run.
    pub(crate) handlers: tokio::runtime::Handle,
    membership: RwLock<Arc<Membership>>,
    slots: Slots,
    /// Attempts that were written off and still have a slot.
    pub(crate) overrun: AtomicUsize,
    /// Jobs in use per handler that has a limit.
    in_use: HashMap<String, AtomicUsize>,
    running: Mutex<HashMap<JobId, Arc<Attempt>>>,
    progress: Mutex<HashMap<JobId, ProgressReport>>,
    /// What attempts have said that is not saved yet.
    pub(crate) logs: Unsaved,
    pauses: RwLock<Pauses>,
    /// The suspect that is being watched, if any: no other suspect starts meanwhile.
    suspect: Mutex<Option<(JobId, Instant)>>,
    pub(crate) bands: Mutex<BandShares>,
    /// Which queue comes first in the next claim.
    pub(crate) turn: AtomicUsize,
    /// Whether jobs may be waiting that this node could run. While it is set, nothing is born leased.
    pub(crate) backlog: AtomicBool,
    /// Whether the last claim found nothing, so that the node waits to be told.
    pub(crate) idle: AtomicBool,
    /// What the last looks found for maintenance to do.
    pub(crate) chores: Chores,
    /// What was asked for and not answered.
    pub(crate) unheard: Unheard,
    /// What holds an old snapshot in the store, as last seen.
    pub(crate) held: Mutex<Vec<HeldSnapshot>>,
    /// Whether the next claim looks at all queues: something is known to be in one that is looked at now and then.
    pub(crate) look_everywhere: AtomicBool,
    /// Something may be ready.
    pub(crate) wake: Notify,
    /// Something may be scheduled earlier than known, or a gate may have opened.
    pub(crate) wake_maintenance: Notify,
    /// A slot is free, or an attempt has ended.
    pub(crate) freed: Notify,
    wake_heartbeat: Notify,
    /// Fires when no further jobs may be taken.
    pub(crate) stopping: CancellationToken,
    /// Fires when everything ends.
    pub(crate) stopped: CancellationToken,
}

/// Steps of maintenance that may have something to do.
#[derive(Default)]
pub(crate) struct Chores {
    pub(crate) lost: AtomicBool,
    pub(crate) untidy: AtomicBool,
    /// Whether there are webhooks to tell of events.
    pub(crate) webhooks: AtomicBool,
}

/// Who this process is in the store. A node that was declared dead becomes another one.
pub(crate) struct Membership {
    pub(crate) node: NodeId,
    pub(crate) ids: IdGenerator,
    time: StoreTime,
    renewed: Mutex<Instant>,
}

/// The watch over a suspect. Lasts until its end is saved: were the next one started before, and were that one the
/// killer, this one would be lost a second time with its result.
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

/// The store's clock, carried on with monotonic time since it was last read.
struct StoreTime(Mutex<(Timestamp, Instant)>);

/// A suspect that has run this long is not what kills its process at once, so the next one may start.
const SUSPECT_WATCH: Duration = Duration::from_secs(5);

/// The pauses in force, as last read.
#[derive(Default)]
struct Pauses {
    all: bool,
    targets: HashSet<PauseTarget>,
}

impl Worker {
    /// Registers this process and makes its node. Nothing runs yet.
    pub(crate) async fn register(
        store: Arc<dyn Store>,
        config: Config,
        registry: Registry,
        seals: Seals,
        handlers: tokio::runtime::Handle,
    ) -> store::Result<Arc<Worker>> {
        let membership = Membership::register(&*store, &config, &registry).await?;
        let limited = registry.iter().filter(|(_, handler)| handler.options.concurrency.is_some());
        let in_use = limited.map(|(id, _)| (id.to_owned(), AtomicUsize::new(0))).collect();
        let tally = Arc::new(Tally::new(&registry.ids()));
        let worker = Arc::new_cyclic(|this| Worker {
            this: this.clone(),
            slots: Slots(AtomicUsize::new(config.concurrency)),
            overrun: AtomicUsize::new(0),
            store,
            registry,
            seals,
            config,
            watchers: Watchers::new(),
            api_keys: KeyCheck::default(),
            tally,
            seen: tokio::sync::Mutex::default(),
            feeds: Feeds::default(),
            finisher: OnceLock::new(),
            handlers,
            membership: RwLock::new(Arc::new(membership)),
            in_use,
            running: Mutex::default(),
            progress: Mutex::default(),
            logs: Unsaved::default(),
            pauses: RwLock::default(),
            suspect: Mutex::default(),
            bands: Mutex::default(),
            turn: AtomicUsize::new(0),
            backlog: AtomicBool::new(true),
            idle: AtomicBool::new(false),
            chores: Chores::default(),
            unheard: Unheard::default(),
            held: Mutex::default(),
            look_everywhere: AtomicBool::new(false),
            wake: Notify::new(),
            wake_maintenance: Notify::new(),
            freed: Notify::new(),
            wake_heartbeat: Notify::new(),
            stopping: CancellationToken::new(),
            stopped: CancellationToken::new(),
        });
        worker.read_pauses().await?;
        Ok(worker)
    }

    pub(crate) fn membership(&self) -> Arc<Membership> {
        self.membership.read().clone()
    }

    /// The store's time, as this process knows it.
    pub(crate) fn now(&self) -> Timestamp {
        self.membership.read().time.now()
    }

    pub(crate) fn saw_time(&self, now: Timestamp) {
        self.membership.read().time.set(now);
    }

    pub(crate) fn next_id(&self) -> JobId {
        self.membership.read().ids.next()
    }

    pub(crate) fn finisher(&self) -> &Finisher {
        self.finisher.get().expect("the finisher starts before anything runs")
    }

    // ---- room

    /// Takes up to `want` slots.
    pub(crate) fn take_slots(&self, want: usize) -> usize {
        self.slots.take(want)
    }

    /// Gives slots back.
    pub(crate) fn free_slots(&self, slots: usize) {
        if slots > 0 {
            self.slots.give(slots);
            self.freed.notify_one();
        }
    }

    /// Whether nothing is under way: no claim, no leased submit, no attempt that has begun or is about to. Attempts that
    /// were written off do not count; nobody knows when they end.
    pub(crate) fn is_quiet(&self) -> bool {
        let in_use = self.config.concurrency.saturating_sub(self.slots.free());
        in_use <= self.overrun.load(Ordering::Acquire)
    }

    /// How many more jobs of a handler may run here; `None` without a limit.
    pub(crate) fn handler_room(&self, handler: &str) -> Option<usize> {
        let limit = self.registry.get(handler)?.options.concurrency?;
        Some(limit.saturating_sub(self.in_use.get(handler)?.load(Ordering::Acquire)))
    }

    /// Counts a job of a limited handler in or out.
    pub(crate) fn count_handler(&self, handler: &str, by: isize) {
        if let Some(in_use) = self.in_use.get(handler) {
            if by > 0 {
                in_use.fetch_add(by as usize, Ordering::AcqRel);
            } else {
                in_use.fetch_sub(by.unsigned_abs(), Ordering::AcqRel);
            }
        }
    }

    /// The queues with what may be taken from each. The common ones, and now and then (`all`) also those where jobs are
    /// put that others could not run, or that came back from a lost node.
    pub(crate) fn queues(&self, room: usize, all: bool) -> Vec<(String, usize)> {
        let mut queues: Vec<(String, usize)> = vec![(DEFAULT_QUEUE.to_owned(), room)];
        let add = |queues: &mut Vec<(String, usize)>, queue: &str, room: usize| {
            if room > 0 && !queues.iter().any(|(known, _)| known == queue) {
                queues.push((queue.to_owned(), room));
            }
        };
        for queue in &self.config.queues {
            add(&mut queues, queue, room);
        }
        for (id, handler) in self.registry.iter() {
            match self.handler_room(id) {
                Some(limit) => add(&mut queues, id, limit.min(room)),
                None => {
                    add(&mut queues, handler.queue(id), room);
                    if all {
                        add(&mut queues, id, room);
                    }
                }
            }
        }
        if all && self.may_start_suspect() {
            // One suspect in all, whichever queue it is from; the claimer takes no second one.
            let suspects: Vec<String> = queues.iter().map(|(queue, _)| store::suspect_queue(queue)).collect();
            suspects.iter().for_each(|queue| add(&mut queues, queue, 1));
        }
        queues
    }

    fn may_start_suspect(&self) -> bool {
        let suspect = self.suspect.lock();
        suspect.is_none_or(|(_, since)| since.elapsed() >= SUSPECT_WATCH)
    }

    /// Whether a job that came back from a lost node may start now. If so, it is the one that is watched.
    pub(crate) fn watch_suspect(&self, job: &ClaimedJob) -> bool {
        if job.recoveries == 0 {
            return true;
        }
        let mut suspect = self.suspect.lock();
        match *suspect {
            Some((watched, _)) if watched == job.id => true,
            Some((_, since)) if since.elapsed() < SUSPECT_WATCH => false,
            _ => {
                *suspect = Some((job.id, Instant::now()));
                true
            }
        }
    }

    /// The watch over a job that came back from a lost node, to be dropped when its end is saved.
    pub(crate) fn suspect_watch(&self, job: &ClaimedJob) -> Option<SuspectWatch> {
        (job.recoveries > 0).then(|| SuspectWatch { worker: self.this.clone(), job: job.id })
    }

    fn suspect_survived(&self, job: JobId) {
        let mut suspect = self.suspect.lock();
        if suspect.is_some_and(|(watched, _)| watched == job) {
            *suspect = None;
            drop(suspect);
            self.look_everywhere.store(true, Ordering::Release);
            self.wake.notify_one();
        }
    }

    // ---- pauses

    /// Reads the pauses in force.
    pub(crate) async fn read_pauses(&self) -> store::Result<()> {
        self.set_pauses(self.store.pauses().await?);
        Ok(())
    }

    pub(crate) fn set_pauses(&self, pauses: Vec<Pause>) {
        let targets: HashSet<PauseTarget> = pauses.into_iter().map(|pause| pause.target).collect();
        let mut pauses = self.pauses.write();
        let was_paused = pauses.all;
        *pauses = Pauses { all: targets.contains(&PauseTarget::All), targets };
        if was_paused && !pauses.all {
            self.wake.notify_one();
        }
    }

    pub(crate) fn all_paused(&self) -> bool {
        self.pauses.read().all
    }

    /// The gate that stands before a job because of a pause.
    pub(crate) fn paused(&self, handler: &str, tenant: crate::tenant::TenantId) -> Option<Gate> {
        let pauses = self.pauses.read();
        if pauses.targets.is_empty() {
            return None;
        }
        let targets = [PauseTarget::Handler(handler.to_owned()), PauseTarget::Tenant(tenant)];
        targets.into_iter().find(|target| pauses.targets.contains(target)).map(Gate::Pause)
    }

    // ---- running attempts

    /// Makes the context of an attempt and keeps track of it until `ended`.
    pub(crate) fn begin(
        self: &Arc<Self>,
        job: ClaimedJob,
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

    /// Whether an attempt of this job runs here under this lease.
    pub(crate) fn runs(&self, fence: Fence) -> bool {
        self.running.lock().get(&fence.job).is_some_and(|attempt| attempt.job.lease == fence.lease)
    }

    fn stop_all(&self, node: NodeId, why: Stop) {
        for attempt in self.running_attempts().iter().filter(|attempt| attempt.node == node) {
            attempt.stop_for(why);
        }
    }

    // ---- heartbeats

    /// Renews the node until everything ends. Runs on a thread of its own that no handler can block.
    pub(crate) async fn keep_alive(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            self.beat().await;
            let next = next_beat(self.config.lease, self.membership().unrenewed(), self.running() > 0);
            tokio::select! {
                () = tokio::time::sleep(next) => {}
                () = self.wake_heartbeat.notified() => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    /// Looks at once for cancels that other nodes have asked for.
    pub(crate) fn hear_cancels(&self) {
        if self.running() > 0 {
            self.wake_heartbeat.notify_one();
        }
    }

    async fn beat(&self) {
        let membership = self.membership();
        let asked = Instant::now();
        let late = late_in(self.config.lease, membership.unrenewed());
        let beat = self.store.heartbeat(membership.node, self.running());
        let mut beat = std::pin::pin!(tokio::time::timeout(self.config.lease / 3, beat));
        let answer = tokio::select! {
            biased;
            answer = &mut beat => answer,
            // Before the store can give the jobs away, they are stopped here, by this process's own clock.
            () = tokio::time::sleep(late) => {
                self.stop_all(membership.node, Stop::LeaseLost);
                beat.await
            }
        };
        match answer {
            Ok(Ok(Beat::Alive { cancels })) => {
                *membership.renewed.lock() = asked;
                for Fence { job, lease } in cancels {
                    self.stop_attempt(job, Some(lease), Stop::Canceled);
                }
            }
            Ok(Ok(Beat::Fenced)) => self.rejoin(&membership).await,
            failed => {
                if let Ok(Err(error)) = failed {
                    tracing::warn!(%error, "the heartbeat failed");
                } else {
                    tracing::warn!("the heartbeat timed out");
                }
                if is_late(self.config.lease, membership.unrenewed()) {
                    self.stop_all(membership.node, Stop::LeaseLost);
                }
            }
        }
    }

    /// Whether the node was renewed lately enough to take jobs.
    pub(crate) fn is_renewed(&self) -> bool {
        !is_late(self.config.lease, self.membership().unrenewed())
    }

    /// Whether jobs that were claimed for `node` may start: it is still this process, and was renewed lately. A claim
    /// may have been answered late.
    pub(crate) fn may_start(&self, node: NodeId) -> bool {
        self.membership().node == node && self.is_renewed()
    }

    /// The store has given this node's jobs to others: stops them and becomes a new node.
    async fn rejoin(&self, old: &Membership) {
        if self.stopped.is_cancelled() {
            // It has left by itself; coming back would leave a node behind that nobody renews.
            return;
        }
        tracing::warn!(node = old.node.0, "this node was declared dead; its jobs belong to others now");
        self.stop_all(old.node, Stop::LeaseLost);
        match Membership::register(&*self.store, &self.config, &self.registry).await {
            Ok(membership) => {
                *self.membership.write() = Arc::new(membership);
                // Once more, for what began while it registered.
                self.stop_all(old.node, Stop::LeaseLost);
                self.wake.notify_one();
            }
            Err(error) => tracing::warn!(%error, "could not register again, trying at the next heartbeat"),
        }
    }

    /// Ends a node of this process: what it still holds is released.
    pub(crate) async fn leave(&self, node: NodeId) {
        if let Err(error) = self.store.deregister(node).await {
            tracing::warn!(%error, "could not leave the cluster; the lease will run out");
        }
    }

    // ---- progress

    pub(crate) fn has_unsaved_progress(&self, job: JobId) -> bool {
        self.progress.lock().contains_key(&job)
    }

    /// Saves the latest progress of each job that has reported.
    pub(crate) async fn save_progress(&self) {
        let reports: Vec<ProgressReport> = self.progress.lock().drain().map(|(_, report)| report).collect();
        if reports.is_empty() {
            return;
        }
        let fences: Vec<Fence> = reports.iter().map(|report| report.fence).collect();
        let node = self.membership().node;
        match self.store.report_progress(node, reports).await {
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

    fn progress(&self, attempt: &Attempt, progress: Progress) {
        self.watchers.progress(attempt.job.id, &progress);
        let progress = match &attempt.sealer {
            Some(sealer) => sealer.seal_progress(attempt.job.id, progress),
            None => progress,
        };
        self.progress.lock().insert(attempt.job.id, ProgressReport { fence: attempt.fence(), progress });
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

impl BornLeased for Worker {
    fn reserve(&self, jobs: &[NewJob]) -> Option<Reservation> {
        if !self.config.workers || self.backlog.load(Ordering::Acquire) {
            return None;
        }
        let here = jobs.iter().filter(|job| is_born_leased(job));
        let mut wanted = 0;
        for job in here {
            let handler = self.registry.get(&job.handler)?;
            let held_back = self.paused(&job.handler, job.tenant).is_some() || self.store.limited(job.tenant).running;
            if handler.options.concurrency.is_some() || held_back {
                return None;
            }
            wanted += 1;
        }
        if wanted == 0 || self.all_paused() || !self.is_renewed() {
            return None;
        }
        let slots = self.take_slots(wanted);
        // Asked with the slots taken: whoever ends the node waits for slots, then no leased submit is missed.
        if slots < wanted || self.stopping.is_cancelled() {
            self.free_slots(slots);
            return None;
        }
        let membership = self.membership();
        Some(Reservation { node: membership.node, lease: LeaseId(membership.ids.next().as_i64()), slots })
    }

    fn start(&self, reservation: Reservation, jobs: Vec<NewJob>) {
        self.free_slots(reservation.slots - jobs.len());
        let now = self.now();
        let this = self.this.upgrade().expect("a worker that starts jobs is alive");
        let jobs = jobs.into_iter().map(|job| claimed(job, reservation.lease, now));
        this.start_claimed(jobs.collect(), reservation.node);
    }

    fn failed(&self, reservation: Reservation, error: &store::Error) {
        self.free_slots(reservation.slots);
        self.unheard.report(reservation.lease, error);
    }

    fn stored(&self, jobs: Elsewhere) {
        if jobs.ready {
            self.backlog.store(true, Ordering::Release);
            self.wake.notify_one();
            self.store.wake_others();
        }
        if jobs.scheduled {
            self.wake_maintenance.notify_one();
            self.store.wake_others();
        }
    }
}

/// Whether a node that has not been renewed for so long must not start jobs and must stop those it runs.
fn is_late(lease: Duration, unrenewed: Duration) -> bool {
    unrenewed >= lease * 2 / 3
}

/// How long a node may wait for the answer to a heartbeat before it stops its jobs. One that is late already, because
/// its process stood still, still has a moment for an answer: it may well be in time.
fn late_in(lease: Duration, unrenewed: Duration) -> Duration {
    (lease * 2 / 3).saturating_sub(unrenewed).max(lease / 10)
}

/// How long after a heartbeat the next one follows. With jobs running, cancels from other nodes should be heard of soon;
/// and a node that is about to be late does not sleep through that moment.
fn next_beat(lease: Duration, unrenewed: Duration, busy: bool) -> Duration {
    let calm = lease / 3;
    let every = if busy { calm.min(Duration::from_secs(1)) } else { calm };
    match (lease * 2 / 3).saturating_sub(unrenewed) {
        Duration::ZERO => every,
        left => every.min(left),
    }
}

/// A job that starts the moment it is stored.
fn claimed(job: NewJob, lease: LeaseId, now: Timestamp) -> ClaimedJob {
    ClaimedJob {
        id: job.id,
        lease,
        tenant: job.tenant,
        handler: job.handler,
        queue: job.queue,
        priority: job.priority,
        payload: job.payload,
        failed: 0,
        recoveries: 0,
        created_at: now,
        ready_at: now,
        ordering_key: job.ordering_key,
        batch: job.batch,
        correlation_id: job.correlation_id,
        tags: job.tags,
        spec: job.spec,
        checkpoint: None,
    }
}

impl Membership {
    async fn register(store: &dyn Store, config: &Config, registry: &Registry) -> store::Result<Membership> {
        let asked = Instant::now();
        let lease = store
            .register(NewNode {
                host: host_name(),
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                handlers: registry.ids(),
                capacity: if config.workers { config.concurrency } else { 0 },
            })
            .await?;
        Ok(Membership {
            node: lease.node,
            ids: IdGenerator::new(lease.slot, lease.now),
            time: StoreTime(Mutex::new((lease.now, asked))),
            renewed: Mutex::new(asked),
        })
    }
}

impl Membership {
    /// How long ago the last heartbeat was asked for that was answered.
    fn unrenewed(&self) -> Duration {
        self.renewed.lock().elapsed()
    }
}

impl StoreTime {
    fn now(&self) -> Timestamp {
        let (time, at) = *self.0.lock();
        time + at.elapsed()
    }

    fn set(&self, now: Timestamp) {
        *self.0.lock() = (now, Instant::now());
    }
}

/// How many more jobs fit.
struct Slots(AtomicUsize);

impl Slots {
    fn take(&self, want: usize) -> usize {
        let mut taken = 0;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            taken = free.min(want);
            Some(free - taken)
        });
        taken
    }

    fn free(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    fn give(&self, slots: usize) {
        self.0.fetch_add(slots, Ordering::AcqRel);
    }
}

/// The machine's name, for people.
fn host_name() -> String {
    std::env::var("HOSTNAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/etc/hostname").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a node stops its jobs that is renewed at 0 and never again; `hangs` says of each heartbeat whether it is
    /// refused at once or never answered.
    fn stops_at(lease: Duration, busy: bool, hangs: &[bool]) -> Duration {
        let mut now = Duration::ZERO;
        for hang in hangs {
            now += next_beat(lease, now, busy);
            let late = late_in(lease, now);
            if *hang && late < lease / 3 {
                return now + late;
            }
            now += if *hang { lease / 3 } else { Duration::ZERO };
            if is_late(lease, now) {
                return now;
            }
        }
        panic!("{lease:?}: still running its jobs at {now:?}");
    }

    #[test]
    fn however_heartbeats_fail_jobs_are_stopped_before_the_lease_ends() {
        for lease in [500, 1_000, 3_000, 10_000, 60_000].map(Duration::from_millis) {
            for (busy, pattern) in [true, false].into_iter().flat_map(|busy| (0..1_u32 << 10).map(move |p| (busy, p))) {
                let hangs: Vec<bool> = (0..200).map(|n| pattern & (1 << (n % 10)) != 0).collect();
                let stopped = stops_at(lease, busy, &hangs);
                assert!(stopped < lease * 9 / 10, "lease {lease:?}, pattern {pattern:b}: stopped at {stopped:?}");
            }
        }
    }
}
