//! The service: what a program calls to submit, watch and steer jobs, and what runs them in its process. Everything
//! here is a thin call into the steps of a job's life (`submit`, `claim`, `run`, `finish`) or into the store.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{Stream, unfold};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument;

use crate::bulk::Bulks;
use crate::clock::Timestamp;
use crate::config::{Config, DEFAULT_QUEUE, Limits};
use crate::context::{JobContext, Stop};
use crate::error::{BadItem, Error, InvalidInput, JobError};
use crate::filter::JobFilter;
use crate::finish::Finisher;
use crate::handler::{Function, HandlerOptions, JobHandler, Registry, Typed};
use crate::health::HeldSnapshot;
use crate::id::JobId;
use crate::job::{BatchId, ClaimedJob, Found, HistoryEntry, JobRecord, NewJob, Page, Status, SubmitOptions};
use crate::lifecycle::Outcome;
use crate::lookup::Lookups;
use crate::payload::{Payload, dedupe_key};
use crate::priority::BandPolicy;
use crate::quota::{Quota, Quotas, TenantUse};
use crate::seal::{Kind, Sealer, Seals, looks_sealed};
use crate::spawn::{LocalJobs, Spawned};
use crate::store::{
    self, AuditEntry, AuditFilter, CancelReply, Counts, NodeRecord, Pause, PauseTarget, ReplayReply, Store, Submitted,
};
use crate::submit::{BornLeased, Submitter, Wanted, check_name, prepare};
use crate::tenant::{OperatorRight, Scope, SecurityContext, TenantId};
use crate::trace;
use crate::watch::{JobEvent, JobView, Watchers};
use crate::webhook::WEBHOOK_HANDLER;
use crate::why::{Why, explain};
use crate::worker::Worker;

/// Durable background jobs, in this process. Cheap to clone; the last clone to go stops the workers without waiting
/// (call [`JobService::shutdown`] to let jobs end).
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

/// Puts a service together.
#[must_use]
pub struct Builder {
    store: Arc<dyn Store>,
    config: Config,
    registry: Registry,
    remote_handlers: Vec<String>,
    problem: Option<InvalidInput>,
    #[cfg(feature = "encryption")]
    encryption: Option<crate::crypt::Encryption>,
}

impl JobService {
    /// Begins a service on `store`.
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        Builder {
            store,
            config: Config::default(),
            registry: Registry::default(),
            remote_handlers: Vec::new(),
            problem: None,
            #[cfg(feature = "encryption")]
            encryption: None,
        }
    }

    // ---- submitting

    /// Stores a job for the handler `H` and returns its id; durable when it returns (SUB-1).
    pub async fn submit<H: JobHandler>(&self, ctx: &SecurityContext, input: H::Input) -> Result<JobId, Error> {
        Ok(self.submit_with::<H>(ctx, input, SubmitOptions::new()).await?.id)
    }

    /// The same with options (SUB-2).
    pub async fn submit_with<H: JobHandler>(
        &self,
        ctx: &SecurityContext,
        input: H::Input,
        options: SubmitOptions,
    ) -> Result<Submitted, Error> {
        self.submit_named(ctx, H::ID, &input, options).await
    }

    /// Stores a job for a handler by its id, for plain functions and for handlers that only other nodes have.
    pub async fn submit_named<I: Serialize + ?Sized>(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        input: &I,
        options: SubmitOptions,
    ) -> Result<Submitted, Error> {
        let payload = Payload::encode("input", input, self.limits().payload_bytes)?;
        let job = self.prepare_payload(ctx, handler, payload, options).await?;
        let mut submitted = self.0.submitter.submit(vec![job]).await?;
        Ok(submitted.pop().expect("one answer for one job"))
    }

    /// Stores many jobs of one handler with one round trip and one batch id; ids come back in the order of the inputs
    /// (SUB-4). When any input is bad, nothing is stored, and the error names every bad one (SUB-5).
    pub async fn submit_many<H: JobHandler>(
        &self,
        ctx: &SecurityContext,
        inputs: Vec<H::Input>,
        options: SubmitOptions,
    ) -> Result<Batch, Error> {
        let payloads = inputs.iter().map(|input| Payload::encode("input", input, self.limits().payload_bytes));
        let (batch, answers) = self.submit_payloads(ctx, H::ID, payloads.collect(), options, false).await?;
        Ok(Batch { batch, jobs: answers.into_iter().map(|answer| answer.expect("all are good")).collect() })
    }

    /// The same, but stores what is good and answers for each input by itself (SUB-5).
    pub async fn submit_partial<H: JobHandler>(
        &self,
        ctx: &SecurityContext,
        inputs: Vec<H::Input>,
        options: SubmitOptions,
    ) -> Result<Vec<Result<Submitted, InvalidInput>>, Error> {
        let payloads = inputs.iter().map(|input| Payload::encode("input", input, self.limits().payload_bytes));
        Ok(self.submit_payloads(ctx, H::ID, payloads.collect(), options, true).await?.1)
    }

    /// Stores many jobs given as JSON, as they come from outside. With `partial`, good ones are stored although others
    /// are bad.
    pub async fn submit_payloads(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        payloads: Vec<Result<Payload, InvalidInput>>,
        options: SubmitOptions,
        partial: bool,
    ) -> Result<(BatchId, Vec<Result<Submitted, InvalidInput>>), Error> {
        let max = self.limits().batch_jobs;
        if payloads.is_empty() || payloads.len() > max {
            let message = format!("{} jobs, 1 to {max} are allowed", payloads.len());
            return Err(InvalidInput::new("batch", message).into());
        }
        self.check_handler(handler).await?;
        let batch = options.batch.unwrap_or_else(|| BatchId(self.0.worker.next_id()));
        let sealer = self.0.worker.seals.sealer(ctx.tenant).await?;
        let mut prepared: Vec<Result<NewJob, InvalidInput>> = Vec::with_capacity(payloads.len());
        for payload in payloads {
            let prepare =
                |payload| self.prepare_checked(ctx, handler, payload, options.clone().batch(batch), sealer.as_ref());
            prepared.push(match payload.map_err(Error::from).and_then(prepare) {
                Ok(job) => Ok(job),
                Err(Error::InvalidInput(bad)) => Err(bad),
                Err(error) => return Err(error),
            });
        }
        let bad = |(index, job): (usize, &Result<NewJob, InvalidInput>)| {
            job.as_ref().err().map(|error| BadItem { index, error: error.clone() })
        };
        let bad: Vec<BadItem> = prepared.iter().enumerate().filter_map(bad).collect();
        if !bad.is_empty() && !partial {
            return Err(Error::InvalidBatch(bad));
        }
        let good: Vec<NewJob> = prepared.iter().filter_map(|job| job.as_ref().ok().cloned()).collect();
        let stored = if good.is_empty() { Vec::new() } else { self.0.submitter.submit(good).await? };
        let mut stored = stored.into_iter();
        let answers = prepared.into_iter().map(|job| job.map(|_| stored.next().expect("one answer for each job")));
        Ok((batch, answers.collect()))
    }

    /// Checks a submit and makes the job without storing it, to store it inside a transaction of the caller's (SUB-3):
    /// pass it to the store's `submit_in`.
    pub async fn prepare<H: JobHandler>(
        &self,
        ctx: &SecurityContext,
        input: H::Input,
        options: SubmitOptions,
    ) -> Result<NewJob, Error> {
        let payload = Payload::encode("input", &input, self.limits().payload_bytes)?;
        self.prepare_payload(ctx, H::ID, payload, options).await
    }

    /// The same for a handler by its id.
    pub async fn prepare_named<I: Serialize + ?Sized>(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        input: &I,
        options: SubmitOptions,
    ) -> Result<NewJob, Error> {
        let payload = Payload::encode("input", input, self.limits().payload_bytes)?;
        self.prepare_payload(ctx, handler, payload, options).await
    }

    async fn prepare_payload(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        payload: Payload,
        options: SubmitOptions,
    ) -> Result<NewJob, Error> {
        self.check_handler(handler).await?;
        let sealer = self.0.worker.seals.sealer(ctx.tenant).await?;
        self.prepare_checked(ctx, handler, payload, options, sealer.as_ref())
    }

    fn prepare_checked(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        payload: Payload,
        options: SubmitOptions,
        sealer: Option<&Sealer>,
    ) -> Result<NewJob, Error> {
        let worker = &self.0.worker;
        let registered = worker.registry.get(handler);
        if let Some(registered) = registered {
            registered.code.check(&payload)?;
        }
        let queue = registered.map_or(DEFAULT_QUEUE, |registered| registered.queue(handler));
        let wanted = Wanted { handler, queue, payload, options };
        let Some(sealer) = sealer else {
            let content_key = |handler: &str, tenant, payload: &Payload| dedupe_key(handler, Some(tenant), payload);
            let mut job = prepare(ctx, worker.next_id(), wanted, self.limits(), worker.now(), content_key)?;
            trace::carry(&mut job.spec.headers);
            return Ok(job);
        };
        let mut keyed = Ok(());
        let content_key = |handler: &str, tenant: TenantId, payload: &Payload| {
            let content = sealer.content_key(&dedupe_key(handler, Some(tenant), payload));
            let content = content.unwrap_or_else(|error| {
                keyed = Err(error);
                String::new()
            });
            format!("{handler}::{tenant}::hmac-sha256:{content}")
        };
        let mut job = prepare(ctx, worker.next_id(), wanted, self.limits(), worker.now(), content_key)?;
        keyed?;
        trace::carry(&mut job.spec.headers);
        sealer.seal_new(&mut job);
        Ok(job)
    }

    /// A process that has handlers knows them; others may be on other nodes. One that has none of the users' knows nothing:
    /// a server must take jobs also while the nodes that run them start anew (SUB-10).
    async fn check_handler(&self, handler: &str) -> Result<(), Error> {
        check_name("handler", handler, self.limits().name_bytes)?;
        let registry = &self.0.worker.registry;
        let known = registry.get(handler).is_some() || registry.ids().iter().all(|id| id == WEBHOOK_HANDLER);
        if known || self.0.remote_handlers.iter().any(|remote| remote == handler) {
            return Ok(());
        }
        let nodes = self.0.worker.store.nodes().await?;
        match nodes.iter().any(|node| node.info.handlers.iter().any(|id| id == handler)) {
            true => Ok(()),
            false => Err(Error::HandlerNotFound(handler.to_owned())),
        }
    }

    /// Submits and waits for the typed result (SUB-12). A waiter that restarts and calls again with the same
    /// idempotency key gets the result of the same job.
    pub async fn submit_and_wait<H: JobHandler>(
        &self,
        ctx: &SecurityContext,
        input: H::Input,
        options: SubmitOptions,
        at_most: Duration,
    ) -> Result<H::Output, Error> {
        let submitted = self.submit_with::<H>(ctx, input, options).await?;
        self.wait_for(ctx, submitted.id, at_most).await
    }

    /// Waits until a job has ended and returns its typed output.
    pub async fn wait_for<T: DeserializeOwned>(
        &self,
        ctx: &SecurityContext,
        id: JobId,
        at_most: Duration,
    ) -> Result<T, Error> {
        let view = self.wait(ctx, id, at_most).await?;
        if view.status != Status::Succeeded {
            let error = view.error.unwrap_or_else(|| JobError::terminal(view.status.as_str(), "it did not succeed"));
            return Err(Error::JobFailed { job: id, status: view.status, error: Box::new(error) });
        }
        let output = view.output.unwrap_or_else(Payload::null);
        if output.is_sealed() {
            let opened = self.0.worker.seals.open(ctx.tenant, id, Kind::Output, &output).await;
            let opened = opened.map_err(|source| Error::Sealed { job: id, source })?;
            return opened.decode().map_err(|source| Error::Output { job: id, source });
        }
        output.decode().map_err(|source| Error::Output { job: id, source })
    }

    /// Waits until a job has ended. Waiters of one process share one look at the store.
    pub async fn wait(&self, ctx: &SecurityContext, id: JobId, at_most: Duration) -> Result<JobView, Error> {
        // Watch before looking: an end between the two would otherwise be missed until the next look.
        let mut views = self.0.worker.watchers.watch(id);
        let record = self.get(ctx, id).await?;
        if record.status.is_terminal() {
            return Ok(crate::watch::view_of(&record));
        }
        let ended = views.wait_for(|view| view.as_ref().is_some_and(|view| view.status.is_terminal()));
        match tokio::time::timeout(at_most, ended).await {
            Ok(Ok(view)) => Ok(view.clone().expect("an ended view is a view")),
            Ok(Err(_)) => Err(Error::ShutDown),
            Err(_) => Err(Error::Timeout(format!("job {id}"))),
        }
    }

    /// Runs a closure that cannot be stored, with the same context, status, timeout and cancel as a stored job. A full
    /// channel answers [`Error::Backpressure`] at once (SUB-11).
    pub fn spawn<T, F, Fut>(&self, ctx: &SecurityContext, name: &str, code: F) -> Result<Spawned<T>, Error>
    where
        T: Send + 'static,
        F: FnOnce(JobContext) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, JobError>> + Send + 'static,
    {
        check_name("name", name, self.limits().name_bytes)?;
        let worker = self.0.worker.clone();
        self.0.local.spawn(ctx, worker.next_id(), name, move || worker.now(), code)
    }

    // ---- watching

    /// A job, without its input (OPS-1). Concurrent calls share one query.
    pub async fn get(&self, ctx: &SecurityContext, id: JobId) -> Result<JobRecord, Error> {
        self.get_within(ctx.scope(), id).await
    }

    async fn get_within(&self, scope: Scope, id: JobId) -> Result<JobRecord, Error> {
        if let Some(record) = self.0.local.get(scope, id) {
            return Ok(record);
        }
        let mut record = self.0.lookups.get(scope, id).await?.ok_or(Error::NotFound(id))?;
        self.0.worker.seals.open_record(&mut record).await;
        Ok(record)
    }

    /// Where a job is in its life.
    pub async fn status(&self, ctx: &SecurityContext, id: JobId) -> Result<Status, Error> {
        Ok(self.get(ctx, id).await?.status)
    }

    /// What a job returned: `None` while it has not ended; [`Error::JobFailed`] if it ended badly.
    pub async fn result<T: DeserializeOwned>(&self, ctx: &SecurityContext, id: JobId) -> Result<Option<T>, Error> {
        match self.get(ctx, id).await?.status {
            status if status.is_terminal() => self.wait_for(ctx, id, Duration::ZERO).await.map(Some),
            _ => Ok(None),
        }
    }

    /// A job's input, for those who may see it. [`Error::Sealed`] where it cannot be opened.
    pub async fn input(&self, ctx: &SecurityContext, id: JobId) -> Result<Payload, Error> {
        let worker = &self.0.worker;
        let input = worker.store.input(ctx.scope(), id).await?.ok_or(Error::NotFound(id))?;
        // Only sealed input can look sealed, but what looks sealed need not be: the job itself says.
        if !looks_sealed(input.as_str()) || !self.get(ctx, id).await?.spec.sealed {
            return Ok(input);
        }
        let opened = worker.seals.open(ctx.tenant, id, Kind::Input, &input).await;
        opened.map_err(|source| Error::Sealed { job: id, source })
    }

    /// Every status change and every attempt of a job, oldest first (ERR-3).
    pub async fn history(&self, ctx: &SecurityContext, id: JobId) -> Result<Vec<HistoryEntry>, Error> {
        let worker = &self.0.worker;
        let mut history = worker.store.history(ctx.scope(), id).await?;
        if history.is_empty() {
            return Err(Error::NotFound(id));
        }
        let texts = history.iter().filter_map(|entry| entry.error.as_ref()?.details.as_ref()?.as_str());
        if texts.into_iter().any(looks_sealed) && self.get(ctx, id).await?.spec.sealed {
            worker.seals.open_history(ctx.tenant, id, &mut history).await;
        }
        Ok(history)
    }

    /// The caller's jobs, newest first.
    pub async fn list(&self, ctx: &SecurityContext, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>, Error> {
        self.limits().check_page(page)?;
        self.limits().check_filter(filter)?;
        let mut records = self.0.worker.store.list(ctx.scope(), filter, page).await?;
        self.0.worker.seals.open_records(&mut records).await;
        Ok(records)
    }

    /// A page of the caller's jobs, newest first, for people and other callers who wait: of however many jobs, only the
    /// newest [`SEARCHED_JOBS`] candidates are looked at, and the answer says where to go on. Pages by keyset only.
    pub async fn search(&self, ctx: &SecurityContext, filter: &JobFilter, page: Page) -> Result<Found, Error> {
        self.search_within(ctx.scope(), filter, page).await
    }

    async fn search_within(&self, scope: Scope, filter: &JobFilter, page: Page) -> Result<Found, Error> {
        self.limits().check_page(page)?;
        self.limits().check_filter(filter)?;
        if page.offset > 0 {
            return Err(InvalidInput::new("offset", "a search pages by keyset only").into());
        }
        let mut found = self.0.worker.store.search(scope, filter, page, SEARCHED_JOBS).await?;
        self.0.worker.seals.open_records(&mut found.jobs).await;
        Ok(found)
    }

    /// How many of the caller's jobs are in each status.
    pub async fn counts(&self, ctx: &SecurityContext) -> Result<Counts, Error> {
        Ok(self.0.worker.store.counts(ctx.scope()).await?)
    }

    /// Follows one job: every change of status and progress from now on, the latest only for a slow watcher; ends when
    /// the job has ended. With `after`, progress up to that sequence is left out (OPS-2).
    pub async fn watch(
        &self,
        ctx: &SecurityContext,
        id: JobId,
        after: u64,
    ) -> Result<Pin<Box<dyn Stream<Item = JobView> + Send>>, Error> {
        let views = self.0.worker.watchers.watch(id);
        let first = crate::watch::view_of(&self.get(ctx, id).await?);
        let state = Watching { views, first: Some(first), after, ended: false };
        Ok(Box::pin(unfold(state, |mut state| async { state.next().await.map(|view| (view, state)) })))
    }

    /// Status events of the caller's tenant caused by this process, from now on (OPS-8).
    pub fn events(&self, ctx: &SecurityContext) -> Pin<Box<dyn Stream<Item = JobEvent> + Send>> {
        self.0.worker.watchers.events(ctx.scope())
    }

    /// Why a job is not running now, and when it will (BEY-1).
    pub async fn why(&self, ctx: &SecurityContext, id: JobId) -> Result<Why, Error> {
        let facts = self.0.worker.store.whereabouts(ctx.scope(), id).await?.ok_or(Error::NotFound(id))?;
        Ok(explain(&facts))
    }

    // ---- steering

    /// Cancels a job: at once while it waits, cooperatively and then by force while it runs (OPS-3). Twice is the same
    /// as once.
    pub async fn cancel(&self, ctx: &SecurityContext, id: JobId, reason: &str) -> Result<CancelReply, Error> {
        self.limits().check_note("reason", reason)?;
        if let Some(reply) = self.0.local.cancel(ctx.scope(), id) {
            return Ok(reply);
        }
        let worker = &self.0.worker;
        let reply = worker.store.cancel(ctx.scope(), id, ctx.actor(), reason).await?;
        match reply {
            CancelReply::Requested => {
                if !worker.stop_attempt(id, None, Stop::Canceled) {
                    worker.store.wake_others();
                }
            }
            CancelReply::Canceled => {
                self.count_canceled(ctx, id).await;
                worker.watchers.show(id, || JobView {
                    status: Status::Canceled,
                    progress: None,
                    output: None,
                    error: None,
                });
                // It may have held an ordering key.
                worker.jobs_are_ready();
            }
            CancelReply::AlreadyFinished(Status::Canceled) => {}
            CancelReply::AlreadyFinished(status) => return Err(Error::AlreadyFinished { job: id, status }),
            CancelReply::NotFound => return Err(Error::NotFound(id)),
        }
        Ok(reply)
    }

    /// Stops starting jobs of `target`, on every node within a second, until it is resumed (OPS-4).
    pub async fn pause(&self, ctx: &SecurityContext, target: &PauseTarget, reason: &str) -> Result<(), Error> {
        self.limits().check_note("reason", reason)?;
        if let PauseTarget::Handler(handler) = target {
            check_name("handler", handler, self.limits().name_bytes)?;
        }
        let worker = &self.0.worker;
        worker.store.pause(target, ctx.actor(), reason).await?;
        worker.read_pauses().await?;
        worker.store.wake_others();
        Ok(())
    }

    /// Ends a pause; false if there was none.
    pub async fn resume(&self, ctx: &SecurityContext, target: &PauseTarget) -> Result<bool, Error> {
        let worker = &self.0.worker;
        let resumed = worker.store.resume(target, ctx.actor()).await?;
        worker.read_pauses().await?;
        worker.jobs_are_ready();
        Ok(resumed)
    }

    /// The pauses in force that may hold the caller's jobs: its own, and those of handlers and of everything.
    pub async fn pauses(&self, ctx: &SecurityContext) -> Result<Vec<Pause>, Error> {
        let mut pauses = self.0.worker.store.pauses().await?;
        pauses.retain(|pause| !matches!(pause.target, PauseTarget::Tenant(tenant) if tenant != ctx.tenant));
        Ok(pauses)
    }

    /// The caller's dead letters, newest first (ERR-4).
    pub async fn dead_letters(
        &self,
        ctx: &SecurityContext,
        filter: JobFilter,
        page: Page,
    ) -> Result<Vec<JobRecord>, Error> {
        let filter = JobFilter { statuses: vec![Status::DeadLettered], ..filter };
        self.list(ctx, &filter, page).await
    }

    /// Puts a dead letter back to work, with a clean count.
    pub async fn replay(&self, ctx: &SecurityContext, id: JobId) -> Result<(), Error> {
        let worker = &self.0.worker;
        match worker.store.replay(ctx.scope(), id, ctx.actor()).await? {
            ReplayReply::Replayed => {
                worker.jobs_are_ready();
                Ok(())
            }
            ReplayReply::NotDead(status) => {
                Err(Error::Conflict { job: id, message: format!("only dead letters are replayed, it is {status}") })
            }
            ReplayReply::NotFound => Err(Error::NotFound(id)),
        }
    }

    /// Submits a dead letter again as a new job linked to it, with its own or another input. The dead letter is marked
    /// and goes after 30 days.
    pub async fn replay_as_new(
        &self,
        ctx: &SecurityContext,
        id: JobId,
        input: Option<Payload>,
    ) -> Result<JobId, Error> {
        let record = self.get(ctx, id).await?;
        if record.status != Status::DeadLettered {
            let message = format!("only dead letters are replayed, it is {}", record.status);
            return Err(Error::Conflict { job: id, message });
        }
        let new = self.submit_again(ctx, record, input).await?;
        let worker = &self.0.worker;
        let keep = worker.config.replayed_retention;
        worker.store.mark_replayed(ctx.scope(), id, ctx.actor(), new, keep).await?;
        Ok(new)
    }

    /// Submits a job again as a new one linked to it, whatever its status, with its own or another input (BEY-5). The
    /// first is left as it is. The new job starts now, and has neither its idempotency key nor its unique key.
    pub async fn clone_job(&self, ctx: &SecurityContext, id: JobId, input: Option<Payload>) -> Result<JobId, Error> {
        let record = self.get(ctx, id).await?;
        if record.spec.callback.is_some() {
            let message = "it is a callback, which belongs to the job it follows".to_owned();
            return Err(Error::Conflict { job: id, message });
        }
        self.submit_again(ctx, record, input).await
    }

    /// A new job like another one, which it names as its parent.
    async fn submit_again(
        &self,
        ctx: &SecurityContext,
        record: JobRecord,
        input: Option<Payload>,
    ) -> Result<JobId, Error> {
        let input = match input {
            Some(input) => input,
            None => self.input(ctx, record.id).await?,
        };
        let mut options = SubmitOptions::new().priority(record.priority);
        options.ordering_key = record.ordering_key;
        options.tags = record.tags;
        options.batch = record.batch;
        options.correlation_id = record.correlation_id;
        options.spec = record.spec;
        options.spec.parent = Some(record.id);
        // The first started long ago; its expiry and a deadline that is over would end the new job before it starts.
        options.spec.expires_at = None;
        options.spec.deadline_at = options.spec.deadline_at.filter(|at| *at > self.now());
        let job = self.prepare_payload(ctx, &record.handler, input, options).await?;
        Ok(self.0.submitter.submit(vec![job]).await?.pop().expect("one answer for one job").id)
    }

    /// Removes an ended job now.
    pub async fn purge(&self, ctx: &SecurityContext, id: JobId) -> Result<(), Error> {
        if self.0.worker.store.purge(ctx.scope(), id, ctx.actor()).await? {
            return Ok(());
        }
        let record = self.get(ctx, id).await?;
        Err(Error::Conflict { job: id, message: format!("only ended jobs are purged, it is {}", record.status) })
    }

    /// The audit log of the caller's tenant, newest first (OPS-5).
    pub async fn audit_log(&self, ctx: &SecurityContext, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
        Ok(self.0.worker.store.audit_log(ctx.scope(), filter).await?)
    }

    /// Writes an entry of the caller's own into the audit log.
    pub async fn audit(
        &self,
        ctx: &SecurityContext,
        action: &str,
        target: &str,
        detail: Option<String>,
    ) -> Result<(), Error> {
        let limits = self.limits();
        limits.check_note("action", action)?;
        limits.check_note("target", target)?;
        limits.check_note("detail", detail.as_deref().unwrap_or(""))?;
        let entry = AuditEntry {
            sequence: 0,
            at: self.0.worker.now(),
            actor: ctx.actor().to_owned(),
            tenant: Some(ctx.tenant),
            action: action.to_owned(),
            target: target.to_owned(),
            detail,
        };
        Ok(self.0.worker.store.audit(entry).await?)
    }

    /// The policy that holds for the caller's tenant, with what it uses (BEY-8).
    pub async fn usage(&self, ctx: &SecurityContext) -> Result<TenantUse, Error> {
        let store = &self.0.worker.store;
        let used = store.tenant_uses(ctx.scope()).await?.into_iter().find(|used| used.tenant == ctx.tenant);
        match used {
            Some(used) => Ok(used),
            None => Ok(TenantUse::new(ctx.tenant, &store.quotas().await?)),
        }
    }

    /// The registered processes.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, Error> {
        Ok(self.0.worker.store.nodes().await?)
    }

    // ---- running by hand

    /// Claims and runs at most `n` ready jobs on the caller's runtime, and returns how many (OPS-9). Due jobs are promoted
    /// first. For serverless hosts and tests; works beside the node's own workers and without them. Jobs that have been
    /// claimed run to their end although the caller drops the call.
    pub async fn tick(&self, n: usize) -> Result<usize, Error> {
        let worker = self.0.worker.clone();
        // A task of its own: were it dropped in the middle, its jobs would seem to run as long as this node lives.
        let (done, ran) = tokio::sync::oneshot::channel();
        tokio::spawn(async move { drop(done.send(worker.claim_and_run(n).await)) }.in_current_span());
        Ok(ran.await.map_err(|_| Error::ShutDown)??)
    }

    /// Claims at most `n` ready jobs of `queues` for a worker outside this process, which must report with
    /// [`JobService::mark_success`] or [`JobService::mark_failure`] (OPS-10). They are held as long as this node lives.
    pub async fn checkout(&self, queues: &[&str], n: usize) -> Result<Vec<CheckedOut>, Error> {
        let worker = &self.0.worker;
        let membership = worker.membership();
        let lease = store::LeaseId(membership.ids.next().as_i64());
        let queues = queues.iter().map(|queue| ((*queue).to_owned(), n)).collect();
        let claim = store::Claim { node: membership.node, lease, queues, max: n, quota: [0; 4] };
        let claimed = worker.store.claim(claim).await.inspect_err(|error| worker.unheard.report(lease, error))?;
        let mut checked_out = Vec::with_capacity(claimed.jobs.len());
        for mut job in claimed.jobs {
            let rules = worker.rules(&job);
            match worker.seals.open_job(&mut job).await {
                Ok(sealer) => {
                    let context = worker.begin(job, membership.node, rules.keep, sealer);
                    context.attempt_state().check_out();
                    checked_out.push(CheckedOut { context });
                }
                Err(error) => {
                    let transition = crate::run::unopened(&job, &error, worker.config.key_retry, rand::random());
                    worker.finish(&job, membership.node, Duration::ZERO, transition, None, None).await;
                }
            }
        }
        Ok(checked_out)
    }

    /// Reports that a checked-out job is done.
    pub async fn mark_success<T: Serialize>(&self, job: CheckedOut, output: &T) -> Result<(), Error> {
        let output = Payload::encode("output", output, self.limits().output_bytes)?;
        self.report(job, Outcome::Done(Some(output))).await
    }

    /// Reports that a checked-out job has failed; it is retried by its policy.
    pub async fn mark_failure(&self, job: CheckedOut, error: JobError) -> Result<(), Error> {
        self.report(job, Outcome::Failed(error)).await
    }

    async fn report(&self, job: CheckedOut, outcome: Outcome) -> Result<(), Error> {
        let worker = &self.0.worker;
        let attempt = job.context.attempt_state().clone();
        if !worker.ended(&attempt) {
            return Err(Error::LeaseLost(attempt.job.id));
        }
        job.context.flush().await;
        let mut views = worker.watchers.watch(attempt.job.id);
        worker.conclude(&attempt, &worker.rules(&attempt.job), outcome).await;
        worker.finisher().flush().await;
        let accepted = views.borrow_and_update().as_ref().is_some_and(|view| view.status != Status::Running);
        if accepted { Ok(()) } else { Err(Error::LeaseLost(attempt.job.id)) }
    }

    // ---- the service itself

    /// The store, for its own abilities.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.worker.store
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.0.worker.config
    }

    /// The handlers of this process that have a limit, with how many of their jobs a node of its kind runs at once.
    pub fn handler_limits(&self) -> Vec<(String, usize)> {
        let limit = |(id, registered): (&str, &Arc<crate::handler::Registered>)| {
            registered.options.concurrency.map(|limit| (id.to_owned(), limit))
        };
        self.0.worker.registry.iter().filter_map(limit).collect()
    }

    /// Who keeps the store from removing dead rows, as this node saw last (within the last ten seconds).
    pub fn held_snapshots(&self) -> Vec<HeldSnapshot> {
        self.0.worker.held.lock().clone()
    }

    /// The store's time, as this process knows it.
    pub fn now(&self) -> Timestamp {
        self.0.worker.now()
    }

    /// Jobs that run here now.
    pub fn running(&self) -> usize {
        self.0.worker.running() + self.0.local.unfinished()
    }

    /// Tells this and other processes that jobs may be ready; to be called after a commit of the caller's own
    /// transaction that submitted some. Without it they are found at the next poll.
    pub fn wake(&self) {
        self.0.worker.jobs_are_ready();
        self.0.worker.wake_maintenance.notify_one();
    }

    /// Stops taking jobs, lets running ones end up to the deadline, hands the rest back without costing an attempt, and
    /// leaves the cluster (RUN-10).
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
        worker.save_progress().await;
        worker.save_logs().await;
        worker.finisher().flush().await;
        worker.stopped.cancel();
        worker.save_activity_before_the_end().await;
        // What still runs (a blocked thread) is released with the node, which costs it nothing.
        let node = worker.membership().node;
        worker.leave(node).await;
        runtimes.end().await;
        // A heartbeat that was under way may have made another node of this process meanwhile; it has ended now.
        if worker.membership().node != node {
            worker.leave(worker.membership().node).await;
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

    pub(crate) fn bulk_list(&self) -> &Bulks {
        &self.0.bulks
    }

    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.0.worker
    }

    /// Counts a waiting job that was canceled, under its handler.
    async fn count_canceled(&self, ctx: &SecurityContext, id: JobId) {
        let record = self.0.lookups.get(ctx.scope(), id).await.ok().flatten();
        self.0.worker.count_canceled(ctx.tenant, record.as_ref());
    }
}

/// Candidates that a search looks at for one page: some ten milliseconds of a database's time.
pub const SEARCHED_JOBS: usize = 10_000;

/// The jobs of one bulk submit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Batch {
    /// What they have in common.
    pub batch: BatchId,
    /// One answer for each input, in order.
    pub jobs: Vec<Submitted>,
}

/// A job claimed for a worker outside this process.
#[derive(Debug)]
pub struct CheckedOut {
    context: JobContext,
}

impl CheckedOut {
    /// The attempt, with the means to report progress and save checkpoints.
    pub fn context(&self) -> &JobContext {
        &self.context
    }

    /// The job's input.
    pub fn input(&self) -> &Payload {
        &self.job().payload
    }

    fn job(&self) -> &ClaimedJob {
        &self.context.attempt_state().job
    }
}

struct Watching {
    views: tokio::sync::watch::Receiver<Option<JobView>>,
    first: Option<JobView>,
    after: u64,
    ended: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<JobView> {
        while !self.ended {
            let mut view = match self.first.take() {
                Some(view) => view,
                None => {
                    self.views.changed().await.ok()?;
                    let Some(view) = self.views.borrow_and_update().clone() else { continue };
                    view
                }
            };
            self.ended = view.status.is_terminal();
            match &view.progress {
                Some(progress) if progress.sequence <= self.after => view.progress = None,
                Some(progress) => self.after = progress.sequence,
                None => {}
            }
            return Some(view);
        }
        None
    }
}

impl Builder {
    /// Adds a handler.
    pub fn handler<H: JobHandler>(mut self, handler: H) -> Self {
        let options = handler.options();
        self.add(H::ID, options, Box::new(Typed(handler)));
        self
    }

    /// Adds a plain async function as the handler `id`, with state that each call gets a clone of.
    pub fn function<S, I, O, F, Fut>(mut self, id: &str, state: S, function: F) -> Self
    where
        F: Fn(S, JobContext, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, JobError>> + Send + 'static,
        S: Clone + Send + Sync + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
    {
        self.add(id, HandlerOptions::default(), Box::new(Function { function, state, types: PhantomData }));
        self
    }

    /// The same with options.
    pub fn function_with<S, I, O, F, Fut>(mut self, id: &str, options: HandlerOptions, state: S, function: F) -> Self
    where
        F: Fn(S, JobContext, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, JobError>> + Send + 'static,
        S: Clone + Send + Sync + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
    {
        self.add(id, options, Box::new(Function { function, state, types: PhantomData }));
        self
    }

    fn add(&mut self, id: &str, options: HandlerOptions, code: Box<dyn crate::handler::ErasedHandler>) {
        let bad = check_name("handler", id, self.config.limits.name_bytes).err();
        let taken = || InvalidInput::new("handler", format!("`{id}` is registered twice"));
        let problem = bad.or_else(|| (!self.registry.add(id, options, code)).then(taken));
        self.problem = self.problem.take().or(problem);
    }

    /// Says that other nodes have this handler, so that jobs for it are accepted although none of them is up.
    pub fn remote_handler(mut self, id: impl Into<String>) -> Self {
        self.remote_handlers.push(id.into());
        self
    }

    /// Changes any setting.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Jobs this node runs at once.
    pub fn concurrency(self, jobs: usize) -> Self {
        self.configure(|config| config.concurrency = jobs.max(1))
    }

    /// How bands share capacity.
    pub fn bands(self, policy: BandPolicy) -> Self {
        self.configure(|config| config.bands = policy)
    }

    /// How long the store waits for a silent node.
    pub fn lease(self, lease: Duration) -> Self {
        self.configure(|config| config.lease = lease.max(MIN_LEASE))
    }

    /// Seals what jobs carry before the store sees it (SEC-2). Every node that submits or runs jobs needs the same keys.
    #[cfg(feature = "encryption")]
    pub fn encryption(mut self, encryption: crate::crypt::Encryption) -> Self {
        self.encryption = Some(encryption);
        self
    }

    /// Runs no jobs by itself: for processes that only submit, or that call `tick`.
    pub fn without_workers(self) -> Self {
        self.configure(|config| config.workers = false)
    }

    /// Registers the process and starts its workers.
    pub async fn start(self) -> Result<JobService, Error> {
        if let Some(problem) = self.problem {
            return Err(problem.into());
        }
        self.config.limits.check()?;
        let mut runtimes = Runtimes::start(self.config.worker_threads)?;
        let handlers = runtimes.handlers.handle().clone();
        #[cfg(feature = "encryption")]
        let seals = Seals::new(self.encryption.map(|options| crate::crypt::Vault::new(self.store.clone(), options)));
        #[cfg(not(feature = "encryption"))]
        let seals = Seals::default();
        let worker = Worker::register(self.store, self.config, self.registry, seals, handlers.clone()).await?;
        let _engine = runtimes.engine.enter();
        runtimes.heartbeat = Some(start_engine(&worker));
        let local = LocalJobs::start(&worker.config, &handlers);
        let inner = Inner {
            submitter: Submitter::start(
                worker.store.clone(),
                worker.clone() as Arc<dyn BornLeased>,
                worker.tally.clone(),
            ),
            lookups: Lookups::start(worker.store.clone()),
            local,
            bulks: Bulks::default(),
            remote_handlers: self.remote_handlers,
            worker,
            runtimes: Mutex::new(None),
        };
        drop(_engine);
        *inner.runtimes.lock() = Some(runtimes);
        Ok(JobService(Arc::new(inner)))
    }
}

/// How long threads that handlers block are waited for when a service ends.
const BLOCKED_THREADS: Duration = Duration::from_secs(1);

/// A lease shorter than this would be lost to an ordinary pause of a busy machine.
const MIN_LEASE: Duration = Duration::from_millis(500);

/// Starts the loops of a node on the current runtime, and its heartbeat on a thread of its own.
fn start_engine(worker: &Arc<Worker>) -> std::thread::JoinHandle<()> {
    let (is_current, on_ready) = (Arc::downgrade(worker), Arc::downgrade(worker));
    let finisher = Finisher::start(
        worker.store.clone(),
        worker.watchers.clone(),
        worker.tally.clone(),
        move |node| is_current.upgrade().is_some_and(|worker| worker.membership().node == node),
        move || {
            if let Some(worker) = on_ready.upgrade() {
                worker.jobs_are_ready();
                worker.wake_maintenance.notify_one();
            }
        },
    );
    let _ = worker.finisher.set(finisher);
    tokio::spawn(Watchers::look(Arc::downgrade(&worker.watchers), worker.store.clone(), worker.seals.clone()));
    tokio::spawn(worker.clone().survey_now_and_then());
    tokio::spawn(worker.clone().look_after());
    tokio::spawn(worker.clone().save_progress_now_and_then());
    tokio::spawn(worker.clone().save_activity_now_and_then());
    tokio::spawn(worker.clone().hear_others());
    tokio::spawn(worker.clone().save_key_uses());
    tokio::spawn(worker.clone().read_feed_when_wanted());
    if worker.config.maintenance {
        tokio::spawn(worker.clone().promote_when_due());
        tokio::spawn(worker.clone().dispatch_webhooks());
    }
    if worker.config.workers {
        tokio::spawn(worker.clone().claim_and_start());
    }
    let heartbeat = worker.clone();
    let thread = std::thread::Builder::new().name("windlass-heartbeat".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime with only a timer can be built").block_on(heartbeat.keep_alive());
    });
    thread.expect("the system can start a thread")
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

/// The scope of an operator of the whole installation: every tenant's jobs. Kept apart from [`JobService`], so that no
/// tenant's call can reach it by accident.
#[derive(Clone, Debug)]
pub struct Operator(pub(crate) JobService, pub(crate) Scope);

impl JobService {
    /// Acts on every tenant's jobs, for who has the right to.
    pub fn operator(&self, right: OperatorRight) -> Operator {
        Operator(self.clone(), Scope::All(right))
    }
}

impl Operator {
    pub(crate) fn service(&self) -> &JobService {
        &self.0
    }

    pub(crate) fn scope(&self) -> Scope {
        self.1
    }

    /// Any tenant's job, as [`JobService::get`].
    pub async fn get(&self, id: JobId) -> Result<JobRecord, Error> {
        self.0.get_within(self.1, id).await
    }

    /// Every tenant's jobs, newest first.
    pub async fn list(&self, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>, Error> {
        self.0.limits().check_page(page)?;
        self.0.limits().check_filter(filter)?;
        let mut records = self.0.worker().store.list(self.1, filter, page).await?;
        self.0.worker().seals.open_records(&mut records).await;
        Ok(records)
    }

    /// A page of every tenant's jobs, as [`JobService::search`].
    pub async fn search(&self, filter: &JobFilter, page: Page) -> Result<Found, Error> {
        self.0.search_within(self.1, filter, page).await
    }

    /// How many jobs are in each status.
    pub async fn counts(&self) -> Result<Counts, Error> {
        Ok(self.0.worker().store.counts(self.1).await?)
    }

    /// Sets what a tenant may use, or every tenant that has no policy of its own (`None`). Every node follows within
    /// about a second; what is stored already stays (BEY-8).
    pub async fn set_quota(&self, ctx: &SecurityContext, of: Option<TenantId>, quota: &Quota) -> Result<(), Error> {
        quota.check()?;
        self.0.worker().store.set_quota(of, Some(quota), ctx.actor()).await?;
        self.0.worker().jobs_are_ready();
        Ok(())
    }

    /// Takes a policy back: the default holds for the tenant again, or nothing is limited by default.
    pub async fn clear_quota(&self, ctx: &SecurityContext, of: Option<TenantId>) -> Result<(), Error> {
        self.0.worker().store.set_quota(of, None, ctx.actor()).await?;
        self.0.worker().jobs_are_ready();
        Ok(())
    }

    /// The policies in force.
    pub async fn quotas(&self) -> Result<Quotas, Error> {
        Ok(self.0.worker().store.quotas().await?)
    }

    /// What every tenant uses of what it may: those that have unfinished jobs or a policy of their own.
    pub async fn tenants(&self) -> Result<Vec<TenantUse>, Error> {
        Ok(self.0.worker().store.tenant_uses(self.1).await?)
    }

    /// Status events of every tenant.
    pub fn events(&self) -> Pin<Box<dyn Stream<Item = JobEvent> + Send>> {
        self.0.worker().watchers.events(self.1)
    }

    /// Every pause in force.
    pub async fn pauses(&self) -> Result<Vec<Pause>, Error> {
        Ok(self.0.worker().store.pauses().await?)
    }

    /// The whole audit log.
    pub async fn audit_log(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
        Ok(self.0.worker().store.audit_log(self.1, filter).await?)
    }
}

/// The keys of sealed jobs (SEC-2).
#[cfg(feature = "encryption")]
impl JobService {
    /// Makes a new version of the tenant's data key, which seals from now on; on other nodes within
    /// [`refresh_after`](crate::Encryption::refresh_after). Older versions still open what they have sealed. Answers the
    /// new version.
    pub async fn rotate_keys(&self, ctx: &SecurityContext) -> Result<u32, Error> {
        let version = self.0.worker.seals.vault()?.rotate(ctx.tenant).await?;
        self.audit(ctx, "KEYS_ROTATED", &ctx.tenant.to_string(), Some(format!("version {version}"))).await?;
        Ok(version)
    }

    /// Destroys the tenant's data keys: nobody can ever read again what its jobs carried, here at once and on other
    /// nodes within [`refresh_after`](crate::Encryption::refresh_after). Jobs that are still to run become dead letters
    /// with the reason `key_destroyed`; new ones get a new key. Answers how many keys there were.
    pub async fn destroy_keys(&self, ctx: &SecurityContext) -> Result<usize, Error> {
        let worker = &self.0.worker;
        let destroyed = worker.store.destroy_data_keys(ctx.tenant).await?;
        if let Ok(vault) = worker.seals.vault() {
            vault.forget(ctx.tenant);
        }
        self.audit(ctx, "KEYS_DESTROYED", &ctx.tenant.to_string(), Some(format!("{destroyed} keys"))).await?;
        Ok(destroyed)
    }

    /// The versions of the tenant's data key, with what wraps them.
    pub async fn keys(&self, ctx: &SecurityContext) -> Result<Vec<store::DataKeyRecord>, Error> {
        Ok(self.0.worker.store.data_keys(ctx.scope()).await?)
    }
}

#[cfg(feature = "encryption")]
impl Operator {
    /// Wraps every tenant's data keys anew that are not wrapped by the provider's current key, without touching a job.
    /// When it has returned without an error, older key-encryption keys are no longer needed. Answers how many.
    pub async fn rewrap_keys(&self, ctx: &SecurityContext) -> Result<usize, Error> {
        let worker = self.0.worker();
        let rewrapped = worker.seals.vault()?.rewrap().await?;
        let entry = AuditEntry {
            sequence: 0,
            at: worker.now(),
            actor: ctx.actor().to_owned(),
            tenant: None,
            action: "KEYS_REWRAPPED".to_owned(),
            target: "all".to_owned(),
            detail: Some(format!("{rewrapped} keys")),
        };
        worker.store.audit(entry).await?;
        Ok(rewrapped)
    }

    /// The data keys of every tenant.
    pub async fn keys(&self) -> Result<Vec<store::DataKeyRecord>, Error> {
        Ok(self.0.worker().store.data_keys(self.1).await?)
    }
}
