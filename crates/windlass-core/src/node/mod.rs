//! The node: what this process holds and how much room it has. Owned by the service; `claim`, `run`, `finish` and
//! `maintenance` are its steps. Its parts are in files of their own: who it is (`membership`), how many jobs fit (`slots`),
//! what runs (`running`), the pauses in force (`pauses`), and jobs that killed others (`suspects`).

pub(crate) mod maintenance;
mod membership;
mod pauses;
mod running;
pub(crate) mod silence;
mod slots;
pub mod supervise;
pub mod suspect;
mod suspects;
pub(crate) mod unheard;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use foldhash::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::membership::Membership;
use self::pauses::Pauses;
use self::slots::Slots;
use crate::admin::access::KeyCheck;
use crate::config::Config;
use crate::flows::settle::Settler;
use crate::life::context::Attempt;
use crate::life::finish::Finisher;
use crate::life::handler::Registry;
use crate::life::logs::Unsaved;
use crate::life::submitter::{BornLeased, Elsewhere, Reservation, is_born_leased};
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::{ClaimedJob, NewJob};
use crate::model::priority::BandShares;
use crate::model::tenant::Scope;
use crate::node::supervise::Supervisor;
use crate::node::suspect::Isolation;
use crate::node::unheard::Unheard;
use crate::operate::activity::Tally;
use crate::operate::feed::Feeds;
use crate::operate::health::HeldSnapshot;
use crate::operate::observe::Seen;
use crate::operate::watch::Watchers;
use crate::seal::Seals;
use crate::store::{self, LeaseId, News, Note, Silent, Store};

pub(crate) use self::suspects::SuspectWatch;

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
    /// Keeps the loops of the node running.
    pub(crate) supervisor: Supervisor,
    /// Where handlers run.
    pub(crate) handlers: tokio::runtime::Handle,
    membership: RwLock<Arc<Membership>>,
    slots: Slots,
    /// Attempts that were written off and still have a slot.
    pub(crate) overrun: AtomicUsize,
    /// Jobs in use per handler that has a limit.
    in_use: HashMap<String, AtomicUsize>,
    running: Mutex<HashMap<JobId, Arc<Attempt>>>,
    progress: Mutex<HashMap<JobId, Note>>,
    /// What attempts have said that is not saved yet.
    pub(crate) logs: Unsaved,
    pauses: RwLock<Pauses>,
    /// Handlers and queues that workers outside take, to be written down.
    pub(crate) polled: Mutex<HashSet<String>>,
    /// Jobs here that nodes were lost with more than once.
    suspects: Mutex<Isolation>,
    pub(crate) bands: Mutex<BandShares>,
    /// Which queue comes first in the next claim.
    pub(crate) turn: AtomicUsize,
    /// Whether jobs may be waiting that this node could run. While it is set, nothing is born leased.
    pub(crate) backlog: AtomicBool,
    /// Whether the last claim found nothing, so that the node waits to be told.
    pub(crate) idle: AtomicBool,
    /// What the last looks found for maintenance to do.
    pub(crate) chores: Chores,
    /// What has ended that somebody may wait for.
    pub(crate) settler: Arc<Settler>,
    /// Nodes that are dead by this process's own clock, to be declared so.
    pub(crate) dead: Mutex<Vec<Silent>>,
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
    /// A node is dead.
    pub(crate) wake_recovery: Notify,
    /// A schedule may be due earlier than known.
    pub(crate) wake_scheduler: Notify,
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
    pub(crate) untidy: AtomicBool,
    /// Whether there are webhooks to tell of events.
    pub(crate) webhooks: AtomicBool,
    /// When the next schedule is due, by this process's own clock.
    pub(crate) schedule_due: Mutex<Option<Instant>>,
    /// What this process has fired of schedules.
    pub(crate) cron: Mutex<crate::flows::fire::CronTotals>,
    /// When this process last counted something that happened to a job.
    pub(crate) counted: Mutex<Option<Instant>>,
}

/// Names that workers outside take between two looks, far above what anyone has; more are noted at their next poll.
const POLLED_MOST: usize = 10_000;

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
            supervisor: Supervisor::default(),
            handlers,
            membership: RwLock::new(Arc::new(membership)),
            in_use,
            running: Mutex::default(),
            progress: Mutex::default(),
            logs: Unsaved::default(),
            pauses: RwLock::default(),
            polled: Mutex::default(),
            suspects: Mutex::default(),
            bands: Mutex::default(),
            turn: AtomicUsize::new(0),
            backlog: AtomicBool::new(true),
            idle: AtomicBool::new(false),
            chores: Chores::default(),
            settler: Arc::default(),
            dead: Mutex::default(),
            unheard: Unheard::default(),
            held: Mutex::default(),
            look_everywhere: AtomicBool::new(false),
            wake: Notify::new(),
            wake_maintenance: Notify::new(),
            wake_recovery: Notify::new(),
            wake_scheduler: Notify::new(),
            freed: Notify::new(),
            wake_heartbeat: Notify::new(),
            stopping: CancellationToken::new(),
            stopped: CancellationToken::new(),
        });
        worker.read_pauses().await?;
        Ok(worker)
    }

    pub(crate) fn finisher(&self) -> &Finisher {
        self.finisher.get().expect("the finisher starts before anything runs")
    }

    /// Notes that a worker outside takes jobs of this handler, or from this queue: then they are not missing theirs.
    /// Written down now and then.
    pub(crate) fn served(&self, name: &str) {
        let mut polled = self.polled.lock();
        if polled.len() < POLLED_MOST && !polled.contains(name) {
            polled.insert(name.to_owned());
        }
    }

    /// The names that workers outside have taken jobs by since the last call, as far as jobs wait by them now. Others need
    /// not be written down: nothing that waits could be given up because of them, and whoever polls chooses the names.
    pub(crate) async fn polled_of_waiting(&self) -> store::Result<Vec<String>> {
        let mut polled = std::mem::take(&mut *self.polled.lock());
        let queues = if polled.is_empty() { Vec::new() } else { self.store.waiting_queues().await? };
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        let mut waiting: HashSet<String> =
            queues.into_iter().map(|queue| store::queue_of(&queue.queue).to_owned()).collect();
        let backlog = self.store.backlog(Scope::ENGINE).await?;
        waiting.extend(backlog.into_iter().filter(|some| some.waiting > 0).map(|some| some.handler));
        polled.retain(|name| waiting.contains(name));
        Ok(polled.into_iter().collect())
    }
}

impl BornLeased for Worker {
    fn reserve(&self, jobs: &[NewJob]) -> Option<Reservation> {
        if !self.config.workers || self.backlog.load(Ordering::Acquire) || self.saves_nothing() {
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
        if !jobs.dependents.is_empty() {
            self.settler.born(jobs.dependents.into_iter());
        }
        if jobs.ready {
            self.jobs_are_ready();
        }
        if jobs.scheduled {
            self.wake_maintenance.notify_one();
            self.store.wake_others(News::Ready);
        }
    }
}

/// A job that starts the moment it is stored, or without being stored.
pub(crate) fn claimed(job: NewJob, lease: LeaseId, now: Timestamp) -> ClaimedJob {
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
        resumed: false,
        unreadable: None,
    }
}
