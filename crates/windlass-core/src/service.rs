//! The service: the handle that programs hold, how it is put together, started and shut down. Its verbs are in the files
//! of what they do: `life/submit.rs`, `operate/look.rs`, `operate/steer.rs`, `admin/`.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument;

use crate::admin::webhook::{WEBHOOK_HANDLER, WebhookDelivery};
use crate::config::{Config, Limits};
use crate::flows::schedule::Schedule;
use crate::life::context::{JobContext, Stop};
use crate::life::finish::Finisher;
use crate::life::handler::{Function, HandlerOptions, JobHandler, Registered, Registry, Typed};
use crate::life::handler_ref::HandlerName;
use crate::life::spawn::LocalJobs;
use crate::life::submit::{check_name, check_unreserved};
use crate::life::submitter::{BornLeased, Submitter};
use crate::model::clock::Timestamp;
use crate::model::error::{Error, InvalidInput, JobError};
use crate::model::priority::BandPolicy;
use crate::node::Worker;
use crate::node::supervise::{LoopHealth, Supervisor};
use crate::operate::bulk::Bulks;
use crate::operate::health::HeldSnapshot;
use crate::operate::lookup::Lookups;
use crate::operate::watch::Watchers;
use crate::seal::Seals;
use crate::store::{self, Store};

/// Durable background jobs, in this process. Cheap to clone; dropping the last clone stops the workers without waiting
/// (call [`JobService::shutdown`] to let running jobs end).
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use windlass_core::{JobContext, JobError, JobHandler, JobService, MemoryStore, SecurityContext, Status, TenantId};
///
/// struct SendInvoice;
///
/// impl JobHandler for SendInvoice {
///     const ID: &'static str = "invoice.send";
///     type Input = u32;
///     type Output = String;
///
///     async fn execute(&self, _ctx: &JobContext, number: u32) -> Result<String, JobError> {
///         Ok(format!("invoice {number} sent"))
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), windlass_core::Error> {
/// let jobs = JobService::builder(Arc::new(MemoryStore::new())).handler(SendInvoice).start().await?;
///
/// let caller = SecurityContext::new(TenantId::ROOT).with_user("ada");
/// let id = jobs.submit::<SendInvoice>(&caller, 7).await?; // the job is stored when this returns
/// let sent: String = jobs.wait_for(&caller, id, Duration::from_secs(5)).await?;
/// assert_eq!(sent, "invoice 7 sent");
/// assert_eq!(jobs.status(&caller, id).await?, Status::Succeeded);
///
/// jobs.shutdown().await; // lets running jobs end
/// # Ok(())
/// # }
/// ```
///
/// [`HandlerRef`](crate::HandlerRef) is the shorter way for plain functions and for programs with one tenant.
#[derive(Clone)]
pub struct JobService(Arc<Inner>);

struct Inner {
    worker: Arc<Worker>,
    submitter: Submitter,
    lookups: Lookups,
    local: Arc<LocalJobs>,
    bulks: Bulks,
    remote_handlers: Vec<String>,
    runtimes: Mutex<Option<Runtimes>>,
}

/// Where the service's own work runs: apart from the caller's runtime, and handlers apart from the engine.
struct Runtimes {
    engine: tokio::runtime::Runtime,
    handlers: tokio::runtime::Runtime,
    heartbeat: Option<std::thread::JoinHandle<()>>,
}

/// Configures a service: handlers first, then settings, then [`start`](Builder::start), which also reports mistakes such as
/// two handlers with one name.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use windlass_core::{HandlerOptions, HandlerRef, JobContext, JobError, JobService, MemoryStore, RetryPolicy};
///
/// const RESIZE: HandlerRef<u32, u32> = HandlerRef::new("image.resize");
///
/// /// `factor` is the state of the handler; each call gets a clone.
/// async fn resize(factor: u32, _ctx: JobContext, width: u32) -> Result<u32, JobError> {
///     Ok(width / factor)
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), windlass_core::Error> {
/// let options = HandlerOptions::new()
///     .retry(RetryPolicy::fixed(3, Duration::from_secs(1)))
///     .timeout(Duration::from_secs(30))
///     .concurrency(4); // of this handler, on this node
/// let jobs = JobService::builder(Arc::new(MemoryStore::new()))
///     .function_with(RESIZE, options, 2, resize)
///     .concurrency(16) // of all handlers together, on this node
///     .configure(|config| config.shutdown_deadline = Duration::from_secs(10))
///     .start()
///     .await?;
/// assert_eq!(RESIZE.submit(&jobs, 640_u32).await?.wait(Duration::from_secs(5)).await?, 320);
/// # jobs.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Builder {
    store: Arc<dyn Store>,
    config: Config,
    registry: Registry,
    remote_handlers: Vec<String>,
    schedules: Vec<Schedule>,
    problem: Option<InvalidInput>,
    #[cfg(feature = "encryption")]
    encryption: Option<crate::seal::crypt::Encryption>,
}

impl JobService {
    /// Starts to configure a service on `store`.
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        Builder {
            store,
            config: Config::default(),
            registry: Registry::default(),
            remote_handlers: Vec::new(),
            schedules: Vec::new(),
            problem: None,
            #[cfg(feature = "encryption")]
            encryption: None,
        }
    }

    /// Runs code on a task of its own, so that a caller who goes away leaves nothing half done. What it returns is dropped
    /// then. A panic is counted under `name` and returned as what it is.
    pub(crate) async fn apart<T: Send + 'static>(
        &self,
        runtime: &tokio::runtime::Handle,
        name: &'static str,
        code: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let supervisor = self.0.worker.supervisor.clone();
        let (done, answer) = tokio::sync::oneshot::channel();
        let task = async move {
            let result = supervisor.run_once(name, code).await;
            drop(done.send(result.unwrap_or_else(|panic| Err(panicked(name, &panic)))));
        };
        runtime.spawn(task.in_current_span());
        answer.await.map_err(|_| Error::ShutDown)?
    }

    /// The store, for calls that only the store offers.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.worker.store
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.0.worker.config
    }

    /// The handlers of this process that have a concurrency limit, with the limit per node.
    pub fn handler_limits(&self) -> Vec<(String, usize)> {
        let limit = |(id, registered): (&str, &Arc<Registered>)| {
            registered.options.concurrency.map(|limit| (id.to_owned(), limit))
        };
        self.0.worker.registry.iter().filter_map(limit).collect()
    }

    /// Database sessions that keep the store from removing dead rows, as of the last ten seconds.
    pub fn held_snapshots(&self) -> Vec<HeldSnapshot> {
        self.0.worker.held.lock().clone()
    }

    /// The health of the background loops of this process. If one is down, the process is not ready.
    pub fn loops(&self) -> Vec<LoopHealth> {
        self.0.worker.loops()
    }

    /// Runs background loops of your own program and includes them in [`JobService::loops`].
    pub fn supervisor(&self) -> &Supervisor {
        &self.0.worker.supervisor
    }

    /// Why this process should not get work: a loop is down, or it cannot save the results of its attempts.
    pub fn troubles(&self) -> Vec<String> {
        self.0.worker.troubles()
    }

    /// The store's time, as this process knows it.
    pub fn now(&self) -> Timestamp {
        self.0.worker.now()
    }

    /// The number of jobs that run in this process.
    pub fn running(&self) -> usize {
        self.0.worker.running() + self.0.local.unfinished()
    }

    /// Wakes this and other processes to look for ready jobs. Call it after you commit a transaction that submitted jobs;
    /// otherwise nodes find them at their next poll.
    pub fn wake(&self) {
        self.0.worker.jobs_are_ready();
        self.0.worker.wake_maintenance.notify_one();
    }

    /// Stops taking jobs, lets running jobs end until the deadline, returns the rest to the queue without using up an
    /// attempt, and deregisters the node.
    pub async fn shutdown(&self) {
        let Some(runtimes) = self.0.runtimes.lock().take() else { return };
        let worker = &self.0.worker;
        worker.stopping.cancel();
        let drained = self.drain(worker.config.shutdown_deadline).await;
        if !drained {
            worker.running_attempts().iter().for_each(|attempt| attempt.stop_for(Stop::Interrupted));
            self.0.local.stop();
            self.drain(worker.config.grace + Duration::from_millis(500)).await;
        }
        let last_writes = async {
            worker.save_progress().await;
            worker.save_logs().await;
            worker.finisher().flush().await;
        };
        if tokio::time::timeout(LAST_WRITES, last_writes).await.is_err() {
            let jobs = worker.finisher().unsaved();
            tracing::error!(
                jobs,
                "the store did not take the last ends in time: other nodes will run {jobs} jobs again"
            );
        }
        worker.stopped.cancel();
        worker.save_activity_before_the_end().await;
        // What still runs (a blocked thread) is released with the node, which costs it nothing.
        let node = worker.membership().node;
        let _ = tokio::time::timeout(LEAVE_WITHIN, worker.leave(node)).await;
        runtimes.end().await;
        // A heartbeat that was under way may have made another node of this process meanwhile; it has ended now.
        if worker.membership().node != node {
            let _ = tokio::time::timeout(LEAVE_WITHIN, worker.leave(worker.membership().node)).await;
        }
    }

    /// Waits until nothing runs or is about to, or for `at_most`. A claim under way counts: were its node to leave
    /// meanwhile, its jobs would be recovered as if it had crashed.
    async fn drain(&self, at_most: Duration) -> bool {
        let quiet = async {
            while self.running() > 0 || !self.0.worker.is_quiet() {
                let freed = self.0.worker.freed.notified();
                tokio::select! {
                    () = freed => {}
                    () = tokio::time::sleep(Duration::from_millis(20)) => {}
                }
            }
        };
        tokio::time::timeout(at_most, quiet).await.is_ok()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.worker.config.limits
    }

    pub(crate) fn local(&self) -> &Arc<LocalJobs> {
        &self.0.local
    }

    pub(crate) fn bulk_list(&self) -> &Bulks {
        &self.0.bulks
    }

    pub(crate) fn submitter(&self) -> &Submitter {
        &self.0.submitter
    }

    pub(crate) fn lookups(&self) -> &Lookups {
        &self.0.lookups
    }

    pub(crate) fn remote_handlers(&self) -> &[String] {
        &self.0.remote_handlers
    }

    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.0.worker
    }
}

/// Why a call has no other answer: a fault of ours.
fn panicked(name: &str, message: &str) -> Error {
    store::Error::Internal(format!("`{name}` panicked: {message}")).into()
}

impl Builder {
    /// Adds a handler.
    pub fn handler<H: JobHandler>(mut self, handler: H) -> Self {
        let options = handler.options();
        self.add(H::ID, options, Box::new(Typed(handler)));
        self
    }

    /// Adds a plain async function as the handler `id`. Each call gets a clone of `state`.
    pub fn function<S, I, O, F, Fut>(self, id: impl HandlerName<I, O>, state: S, function: F) -> Self
    where
        F: Fn(S, JobContext, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, JobError>> + Send + 'static,
        S: Clone + Send + Sync + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
    {
        self.function_with(id, HandlerOptions::default(), state, function)
    }

    /// The same with options.
    pub fn function_with<S, I, O, F, Fut>(
        mut self,
        id: impl HandlerName<I, O>,
        options: HandlerOptions,
        state: S,
        function: F,
    ) -> Self
    where
        F: Fn(S, JobContext, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, JobError>> + Send + 'static,
        S: Clone + Send + Sync + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
    {
        self.add(id.name(), options, Box::new(Function { function, state, types: PhantomData }));
        self
    }

    /// Adds the handler that delivers to webhooks, [`WEBHOOK_HANDLER`], which no other call can add. Its jobs wait in the
    /// queue of that name. `windlass-server` has one that signs and sends.
    pub fn webhook_handler<S, O, F, Fut>(mut self, options: HandlerOptions, state: S, function: F) -> Self
    where
        F: Fn(S, JobContext, WebhookDelivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, JobError>> + Send + 'static,
        S: Clone + Send + Sync + 'static,
        O: Serialize + Send + 'static,
    {
        let code = Box::new(Function { function, state, types: PhantomData });
        self.add_unchecked(WEBHOOK_HANDLER, options.queue(WEBHOOK_HANDLER), code);
        self
    }

    fn add(&mut self, id: &str, options: HandlerOptions, code: Box<dyn crate::life::handler::ErasedHandler>) {
        let reserved = |queue: &String| check_unreserved("queue", queue).err();
        let bad = check_unreserved("handler", id).err().or_else(|| options.queue.as_ref().and_then(reserved));
        match bad {
            Some(_) => self.problem = self.problem.take().or(bad),
            None => self.add_unchecked(id, options, code),
        }
    }

    fn add_unchecked(&mut self, id: &str, options: HandlerOptions, code: Box<dyn crate::life::handler::ErasedHandler>) {
        let bad = check_name("handler", id, self.config.limits.name_bytes).err();
        let taken = || InvalidInput::new("handler", format!("`{id}` is registered twice"));
        let problem = bad.or_else(|| (!self.registry.add(id, options, code)).then(taken));
        self.problem = self.problem.take().or(problem);
    }

    /// Declares that other nodes have this handler, so that jobs for it are accepted even while none of them runs.
    pub fn remote_handler(mut self, id: impl Into<String>) -> Self {
        self.remote_handlers.push(id.into());
        self
    }

    /// Adds a schedule of the root tenant. The store keeps it in step with the code: starting creates or changes it, and
    /// removes those that an earlier start of the same [`service_id`](Config::service_id) defined and that are gone from
    /// the code. A service without any schedule in its code looks for none.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedules.push(schedule);
        self
    }

    /// Changes settings of [`Config`].
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Sets the maximum number of jobs this node runs at once.
    pub fn concurrency(self, jobs: usize) -> Self {
        self.configure(|config| config.concurrency = jobs.max(1))
    }

    /// Sets how priority bands share capacity.
    pub fn bands(self, policy: BandPolicy) -> Self {
        self.configure(|config| config.bands = policy)
    }

    /// Sets how long the store waits for a silent node before other nodes take over its jobs.
    pub fn lease(self, lease: Duration) -> Self {
        self.configure(|config| config.lease = lease.max(MIN_LEASE))
    }

    /// Encrypts what jobs carry before the store sees it (feature `encryption`). Every node that submits or runs jobs
    /// needs the same keys.
    #[cfg(feature = "encryption")]
    pub fn encryption(mut self, encryption: crate::seal::crypt::Encryption) -> Self {
        self.encryption = Some(encryption);
        self
    }

    /// Runs no jobs: for processes that only submit, or that call `tick`.
    pub fn without_workers(self) -> Self {
        self.configure(|config| config.workers = false)
    }

    /// Registers the process as a node and starts its workers.
    pub async fn start(self) -> Result<JobService, Error> {
        if let Some(problem) = self.problem {
            return Err(problem.into());
        }
        self.config.limits.check()?;
        let mut runtimes = Runtimes::start(self.config.worker_threads)?;
        let handlers = runtimes.handlers.handle().clone();
        #[cfg(feature = "encryption")]
        let seals =
            Seals::new(self.encryption.map(|options| crate::seal::crypt::Vault::new(self.store.clone(), options)));
        #[cfg(not(feature = "encryption"))]
        let seals = Seals::default();
        let worker = Worker::register(self.store, self.config, self.registry, seals, handlers.clone()).await?;
        let _engine = runtimes.engine.enter();
        runtimes.heartbeat = Some(start_engine(&worker)?);
        let local = LocalJobs::start(&worker);
        let inner = Inner {
            submitter: Submitter::start(
                worker.store.clone(),
                worker.clone() as Arc<dyn BornLeased>,
                worker.tally.clone(),
                &worker.supervisor,
            ),
            lookups: Lookups::start(worker.store.clone(), &worker.supervisor),
            local,
            bulks: Bulks::default(),
            remote_handlers: self.remote_handlers,
            worker,
            runtimes: Mutex::new(None),
        };
        drop(_engine);
        *inner.runtimes.lock() = Some(runtimes);
        let service = JobService(Arc::new(inner));
        if !self.schedules.is_empty()
            && let Err(error) = service.schedules().keep_in_step(self.schedules).await
        {
            service.shutdown().await;
            return Err(error);
        }
        Ok(service)
    }
}

/// How long the end of a service waits for the store to take what its last attempts came to. A healthy store needs
/// milliseconds; one that takes nothing must not keep a process from ending.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// How long it waits for the store to take note of its leaving: without, its lease runs out.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// How long threads that handlers block are waited for when a service ends.
const BLOCKED_THREADS: Duration = Duration::from_secs(1);

/// A lease shorter than this would be lost to an ordinary pause of a busy machine.
const MIN_LEASE: Duration = Duration::from_millis(500);

/// Starts the loops of a node on the current runtime, and its heartbeat on a thread of its own.
fn start_engine(worker: &Arc<Worker>) -> Result<std::thread::JoinHandle<()>, Error> {
    let (is_current, on_ready) = (Arc::downgrade(worker), Arc::downgrade(worker));
    let finisher = Finisher::start(
        worker.store.clone(),
        worker.watchers.clone(),
        worker.tally.clone(),
        worker.settler.clone(),
        &worker.supervisor,
        move |node| is_current.upgrade().is_some_and(|worker| worker.membership().node == node),
        move |news| {
            if let Some(worker) = on_ready.upgrade() {
                worker.tell_ready(news);
                worker.wake_maintenance.notify_one();
            }
        },
    );
    let _ = worker.finisher.set(finisher);
    let (watchers, store, seals) = (Arc::downgrade(&worker.watchers), worker.store.clone(), worker.seals.clone());
    worker.supervisor.spawn_here("watch", move || Watchers::look(watchers.clone(), store.clone(), seals.clone()));
    keep(worker, "survey", Worker::survey_now_and_then);
    keep(worker, "progress", Worker::save_progress_now_and_then);
    keep(worker, "activity", Worker::save_activity_now_and_then);
    keep(worker, "wake", Worker::hear_others);
    keep(worker, "keys", Worker::save_key_uses);
    keep(worker, "feed", Worker::read_feed_when_wanted);
    worker.start_maintenance();
    if worker.config.maintenance {
        keep(worker, "promote", Worker::promote_when_due);
        keep(worker, "webhooks", Worker::dispatch_webhooks);
        keep(worker, "schedules", Worker::fire_schedules);
        keep(worker, "settle", Worker::settle_groups);
    }
    if worker.config.workers && !worker.registry.is_empty() {
        keep(worker, "claim", Worker::claim_and_start);
    }
    let heartbeat = worker.clone();
    let thread = worker.supervisor.spawn_thread("heartbeat", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime with only a timer can be built").block_on(heartbeat.clone().keep_alive());
    });
    Ok(thread.map_err(|error| store::Error::Internal(format!("could not start a thread: {error}")))?)
}

/// Runs a loop of a node on the current runtime, also after a panic.
pub(crate) fn keep<Fut>(worker: &Arc<Worker>, name: &'static str, run: impl Fn(Arc<Worker>) -> Fut + Send + 'static)
where
    Fut: Future<Output = ()> + Send + 'static,
{
    let of = worker.clone();
    worker.supervisor.spawn_here(name, move || run(of.clone()));
}

impl Runtimes {
    fn start(worker_threads: usize) -> Result<Runtimes, Error> {
        let build = |name: &str, threads: usize| {
            tokio::runtime::Builder::new_multi_thread()
                .thread_name(name)
                .worker_threads(threads.max(1))
                .enable_all()
                .build()
                .map_err(|error| store::Error::Internal(format!("could not start a runtime: {error}")))
        };
        let (engine, handlers) = (build("windlass-engine", 1)?, build("windlass-worker", worker_threads)?);
        Ok(Runtimes { engine, handlers, heartbeat: None })
    }

    /// Ends, and waits until nothing of the service holds its store any more: then a SQLite file can be opened again.
    /// A handler that blocks its thread is waited for only so long.
    async fn end(self) {
        let (ended, waited_for) = tokio::sync::oneshot::channel();
        // On a thread of its own: a runtime must not be waited for inside another one.
        std::thread::spawn(move || {
            self.engine.shutdown_timeout(BLOCKED_THREADS);
            self.handlers.shutdown_timeout(BLOCKED_THREADS);
            if let Some(heartbeat) = self.heartbeat {
                let _ = heartbeat.join();
            }
            let _ = ended.send(());
        });
        let _ = waited_for.await;
    }

    /// Ends without waiting: whoever drops a service may be inside a runtime, where waiting is not allowed.
    fn stop(self) {
        self.engine.shutdown_background();
        self.handlers.shutdown_background();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.worker.stopping.cancel();
        self.worker.stopped.cancel();
        if let Some(runtimes) = self.runtimes.lock().take() {
            runtimes.stop();
        }
    }
}

impl std::fmt::Debug for JobService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobService").field("store", &self.0.worker.store.name()).finish()
    }
}
