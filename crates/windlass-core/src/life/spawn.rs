//! Non-restartable work: closures that cannot be stored, and jobs of handlers that say so, run in this
//! process, a bounded number waiting and a bounded number at once. Called by the service, which answers for them by the
//! same calls as for stored jobs. What an outcome means is decided by `lifecycle`, as for those. Nothing here is written
//! anywhere, and nothing survives the process.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::config::NO_TIMEOUT;
use crate::life::context::{Attempt, AttemptLink, JobContext, Stop};
use crate::life::handler::{Registered, encode};
use crate::life::lifecycle::{Outcome, Rules, after_attempt, before_attempt};
use crate::life::logs::LogLevel;
use crate::life::run::{callback_of, run_code};
use crate::life::submit::{Wanted, check_submit_unreserved, prepare};
use crate::model::clock::Timestamp;
use crate::model::error::{Error, InvalidInput, JobError, Reason};
use crate::model::id::JobId;
use crate::model::job::{ClaimedJob, JobRecord, NewJob, Progress, Start, Status, SubmitOptions};
use crate::model::payload::Payload;
use crate::model::retry::RetryPolicy;
use crate::model::tenant::{Scope, SecurityContext, TenantId};
use crate::node::{Worker, claimed};
use crate::operate::activity::{Counted, EndedAttempt, Tally, Totals};
use crate::operate::usage::Cost;
use crate::operate::watch::{JobEvent, JobView};
use crate::service::JobService;
use crate::store::{CancelReply, Finish, LeaseId, NodeId, Store, Submitted, Transition};
use crate::trace;

impl JobService {
    /// Runs a closure as a job that is not stored. In this process, `get`, `status`, `result`, `wait`, `watch` and `cancel`
    /// work as for stored jobs, while it runs and for a while after; lists, counts and history do not include it. Fails
    /// with [`Error::Backpressure`] at once if too many wait.
    pub fn spawn<T, F, Fut>(&self, ctx: &SecurityContext, name: &str, code: F) -> Result<Spawned<T>, Error>
    where
        T: Serialize + Send + 'static,
        F: FnOnce(JobContext) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, JobError>> + Send + 'static,
    {
        self.spawn_with(ctx, name, SubmitOptions::new(), code)
    }

    /// The same with options: a timeout, a deadline, a delay, an idempotency key against jobs in memory that run or ended
    /// lately, labels. A closure is not retried; for that, and for a limit, register a handler that is not
    /// [`restartable`](crate::HandlerOptions::restartable).
    pub fn spawn_with<T, F, Fut>(
        &self,
        ctx: &SecurityContext,
        name: &str,
        options: SubmitOptions,
        code: F,
    ) -> Result<Spawned<T>, Error>
    where
        T: Serialize + Send + 'static,
        F: FnOnce(JobContext) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, JobError>> + Send + 'static,
    {
        let job = self.prepare_local(ctx, name, options)?;
        self.local().spawn(job, code)
    }

    /// The job that a closure is.
    pub(crate) fn prepare_local(
        &self,
        ctx: &SecurityContext,
        name: &str,
        options: SubmitOptions,
    ) -> Result<NewJob, Error> {
        check_submit_unreserved(name, &options)?;
        let worker = self.worker();
        let wanted = Wanted { handler: name, queue: QUEUE, payload: Payload::null(), options };
        let mut job = prepare(ctx, worker.next_id(), wanted, self.limits(), worker.now(), |_, _, _| String::new())?;
        trace::carry(&mut job.spec.headers);
        Ok(job)
    }
}

/// A spawned job: its id, for every call of the service that takes one, and its result.
#[derive(Debug)]
pub struct Spawned<T> {
    /// The job.
    pub id: JobId,
    /// Whether another job holds the key, so that the closure was dropped; `id` is the id of that job.
    pub duplicate: bool,
    value: Arc<Mutex<Option<T>>>,
    views: watch::Receiver<Option<JobView>>,
}

impl<T> Spawned<T> {
    /// Waits for the result. Fails with [`Error::Conflict`] if another job holds the key; read that job's result by its id
    /// ([`JobService::result`](crate::JobService::result)).
    pub async fn join(mut self) -> Result<T, Error> {
        let ended = |view: &Option<JobView>| view.as_ref().is_some_and(|view| view.status.is_terminal());
        let view = self.views.wait_for(ended).await.map_err(|_| Error::ShutDown)?.clone();
        let view = view.expect("an ended view is a view");
        if view.status != Status::Succeeded {
            let error = view.error.unwrap_or_else(|| JobError::of(Reason::Canceled, "it was canceled"));
            return Err(Error::JobFailed { job: self.id, status: view.status, error: Box::new(error) });
        }
        let value = self.value.lock().take();
        value.ok_or_else(|| Error::Conflict {
            job: self.id,
            message: "its result is returned only to the task that spawned it".into(),
        })
    }
}

/// Ended jobs that can still be asked for; the oldest are forgotten first.
const REMEMBERED: usize = 10_000;

/// Bytes of outputs that are remembered: a few hundred of the largest.
const REMEMBERED_BYTES: usize = 32 * 1024 * 1024;

/// The queue that jobs in memory are shown with.
pub(crate) const QUEUE: &str = "memory";

/// The jobs of this process that are kept nowhere.
pub(crate) struct LocalJobs {
    worker: Arc<Worker>,
    /// Room for those that have not ended: a job keeps its place from when it is taken until its last attempt, and its
    /// callback, have ended. However often jobs are retried, no more of them are in memory.
    unfinished: Arc<Semaphore>,
    /// Room for those that run; who waits for it is served in turn.
    slots: Arc<Semaphore>,
    /// Room of handlers with a limit of their own.
    limits: Mutex<HashMap<String, Arc<Semaphore>>>,
    jobs: [Mutex<Known>; SHARDS],
    /// Who holds an idempotency key of a handler in a tenant, until the job is forgotten.
    keys: Mutex<HashMap<(TenantId, String, String), JobId>>,
    /// What they did: apart from the sums that are saved, because nothing of them is.
    tally: Tally,
}

/// Parts that the jobs are kept in, so that callers and workers seldom wait for one another.
const SHARDS: usize = 16;

#[derive(Default)]
struct Known {
    by_id: HashMap<JobId, Arc<LocalJob>>,
    ended: VecDeque<(JobId, usize)>,
    bytes: usize,
}

struct LocalJob {
    /// As its first attempt gets it.
    job: ClaimedJob,
    rules: Rules,
    timeout: Duration,
    /// What runs it and is told of its end; none for a closure.
    handler: Option<Arc<Registered>>,
    link: Arc<LocalLink>,
    /// Ends its waiting: for its start, for a slot, for its next attempt.
    canceled: CancellationToken,
    state: Mutex<State>,
}

struct State {
    status: Status,
    failed: u16,
    /// The number of the last attempt that began.
    number: u16,
    /// The attempt that runs.
    attempt: Option<Arc<Attempt>>,
    /// What an attempt saved for the next one.
    checkpoint: Option<Payload>,
    run_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    output: Option<Payload>,
    error: Option<JobError>,
    reason: Option<String>,
    cost: Option<Cost>,
}

/// What attempts of one job tell, and who listens.
struct LocalLink {
    worker: Arc<Worker>,
    progress: Mutex<Option<Progress>>,
    views: watch::Sender<Option<JobView>>,
}

impl LocalLink {
    /// Shows watchers where the job is. What comes after its end is shown to nobody.
    fn show(&self, status: Status, output: Option<Payload>, error: Option<JobError>) {
        let progress = self.progress.lock().clone();
        self.views.send_if_modified(|shown| {
            if shown.as_ref().is_some_and(|view| view.status.is_terminal()) {
                return false;
            }
            *shown = Some(JobView { status, progress, output, error });
            true
        });
    }
}

impl AttemptLink for LocalLink {
    fn store(&self) -> Option<&Arc<dyn Store>> {
        None
    }

    fn now(&self) -> Timestamp {
        self.worker.now()
    }

    fn progress(&self, _: &Attempt, progress: Progress) {
        *self.progress.lock() = Some(progress);
        self.show(Status::Running, None, None);
    }

    /// A job that is kept nowhere keeps no lines.
    fn log(&self, _: &Attempt, _: LogLevel, _: String) {}

    fn flush<'a>(&'a self, _: &'a Attempt) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn checkpoint_bytes(&self) -> usize {
        usize::MAX
    }

    fn success(&self, attempt: &Attempt, output: Payload) -> Finish {
        let transition = Transition::Succeed { output: Some(output), keep: Duration::ZERO };
        let ran = attempt.started.elapsed();
        Finish {
            fence: attempt.fence(),
            attempt: attempt.job.attempt(),
            ran,
            transition,
            follow_up: None,
            cost: None,
            audit: false,
            batch: None,
            resumed: true,
        }
    }
}

/// What a job runs: each call is one attempt.
type Code = Box<dyn FnMut(JobContext) -> BoxFuture<'static, Result<Payload, JobError>> + Send>;

/// Which of the jobs in memory a job becomes.
struct Taken {
    new: NewJob,
    handler: Option<Arc<Registered>>,
    code: Code,
    /// None for a duplicate that turned up late, which needs none.
    place: Option<OwnedSemaphorePermit>,
}

impl LocalJobs {
    /// Nothing runs yet; what is taken will run on the handlers' runtime.
    pub(crate) fn start(worker: &Arc<Worker>) -> Arc<LocalJobs> {
        let room = |jobs: usize| Arc::new(Semaphore::new(jobs.clamp(1, Semaphore::MAX_PERMITS)));
        let (waiting, running) = (worker.config.spawn_capacity.max(1), worker.config.spawn_concurrency.max(1));
        Arc::new(LocalJobs {
            unfinished: room(waiting.saturating_add(running)),
            slots: room(running),
            limits: Mutex::default(),
            jobs: Default::default(),
            keys: Mutex::default(),
            tally: Tally::new(&worker.registry.ids()),
            worker: worker.clone(),
        })
    }

    fn shard(&self, id: JobId) -> &Mutex<Known> {
        // Milliseconds and sequence: one of them differs from job to job.
        let id = id.as_i64().unsigned_abs() as usize;
        &self.jobs[((id >> 22) + (id & 0xfff)) % SHARDS]
    }

    // ---- taking

    /// Takes a closure, or answers `Backpressure` at once when too many wait.
    pub(crate) fn spawn<T, F, Fut>(self: &Arc<Self>, new: NewJob, code: F) -> Result<Spawned<T>, Error>
    where
        T: Serialize + Send + 'static,
        F: FnOnce(JobContext) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, JobError>> + Send + 'static,
    {
        check_local(&new)?;
        let value = Arc::new(Mutex::new(None));
        let (kept, mut code) = (value.clone(), Some(code));
        let code: Code = Box::new(move |ctx| {
            let (kept, code) = (kept.clone(), code.take());
            Box::pin(async move {
                let code = code.ok_or_else(|| JobError::terminal("spawned_once", "a closure runs once"))?;
                let value = code(ctx).await?;
                let output = encode(&value)?;
                *kept.lock() = Some(value);
                Ok(output)
            })
        });
        let (job, duplicate) = match self.holder(&new) {
            Some(holder) => (holder, true),
            None => {
                let place = Some(self.places(1)?);
                self.take(Taken { new, handler: None, code, place })
            }
        };
        Ok(Spawned { id: job.job.id, duplicate, value, views: job.link.views.subscribe() })
    }

    /// Takes jobs of a handler that is not restartable, all or none.
    pub(crate) fn submit(
        self: &Arc<Self>,
        handler: &Arc<Registered>,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Submitted>, Error> {
        jobs.iter().try_for_each(check_local)?;
        let new = jobs.iter().filter(|new| self.holder(new).is_none()).count();
        let mut places = self.places(new)?;
        let mut taken = Vec::with_capacity(jobs.len());
        for new in jobs {
            let (job, duplicate) = match self.holder(&new) {
                Some(holder) => (holder, true),
                None => self.take_of(handler, new, places.split(1)),
            };
            taken.push(Submitted { id: job.job.id, duplicate });
        }
        Ok(taken)
    }

    fn places(&self, jobs: usize) -> Result<OwnedSemaphorePermit, Error> {
        let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
        self.unfinished.clone().try_acquire_many_owned(jobs).map_err(|full| match full {
            TryAcquireError::NoPermits => Error::Backpressure("the line of jobs in memory"),
            TryAcquireError::Closed => Error::ShutDown,
        })
    }

    /// The job that holds the key of a new one.
    fn holder(&self, new: &NewJob) -> Option<Arc<LocalJob>> {
        let key = new.idempotency_key.clone()?;
        let holder = *self.keys.lock().get(&(new.tenant, new.handler.clone(), key))?;
        self.known(holder)
    }

    /// Takes a job of a handler, or a callback of one.
    fn take_of(
        self: &Arc<Self>,
        handler: &Arc<Registered>,
        new: NewJob,
        place: Option<OwnedSemaphorePermit>,
    ) -> (Arc<LocalJob>, bool) {
        let (runs, input, callback) = (handler.clone(), new.payload.clone(), new.spec.callback);
        let code: Code = Box::new(move |ctx| {
            let (runs, input) = (runs.clone(), input.clone());
            Box::pin(async move {
                match callback {
                    Some(which) => runs.code.call_back(&ctx, which, &input).await.map(|()| Payload::null()),
                    None => runs.code.run(&ctx, &input).await,
                }
            })
        });
        self.take(Taken { new, handler: Some(handler.clone()), code, place })
    }

    /// Makes a job known and starts it; or finds that another one has its key.
    fn take(self: &Arc<Self>, taken: Taken) -> (Arc<LocalJob>, bool) {
        let Taken { new, handler, code, place } = taken;
        let now = self.worker.now();
        let delay = match new.start {
            Start::Now => None,
            Start::After(delay) => Some(delay),
            Start::At(at) => Some(at.since(now)),
        };
        let key = new.idempotency_key.clone().map(|key| (new.tenant, new.handler.clone(), key));
        let mut keys = key.as_ref().map(|_| self.keys.lock());
        let holder = key.as_ref().zip(keys.as_ref()).and_then(|(key, keys)| keys.get(key).copied());
        if let Some(holder) = holder.and_then(|holder| self.known(holder)) {
            return (holder, true);
        }
        let job = Arc::new(self.local_job(new, handler, delay.map(|delay| now + delay)));
        let id = job.job.id;
        self.shard(id).lock().by_id.insert(id, job.clone());
        // Only now: whoever finds the key must find the job.
        if let (Some(key), Some(keys)) = (key, &mut keys) {
            keys.insert(key, id);
        }
        drop(keys);
        self.tally.submitted(std::iter::once(job.counted()));
        let (jobs, of) = (self.clone(), job.clone());
        self.worker.handlers.spawn(async move {
            let run = jobs.run_to_end(&of, code, place, delay);
            jobs.ended_at_last(&of, run).await;
        });
        (job, false)
    }

    fn local_job(&self, new: NewJob, handler: Option<Arc<Registered>>, run_at: Option<Timestamp>) -> LocalJob {
        let lease = LeaseId(new.id.as_i64());
        let job = claimed(new, lease, self.worker.now());
        let rules = match &handler {
            Some(_) => self.worker.rules(&job),
            // A closure is used up by its attempt.
            None => Rules { retry: RetryPolicy::never(), ..self.worker.rules(&job) },
        };
        let of_handler = handler.as_ref().and_then(|handler| handler.options.timeout);
        let timeout = job.spec.timeout.or(of_handler).unwrap_or(self.worker.config.timeout);
        let status = if run_at.is_some() { Status::Scheduled } else { Status::Pending };
        let views = watch::Sender::new(Some(JobView { status, progress: None, output: None, error: None }));
        let link = Arc::new(LocalLink { worker: self.worker.clone(), progress: Mutex::default(), views });
        let state = State {
            status,
            failed: 0,
            number: 0,
            attempt: None,
            checkpoint: None,
            run_at,
            started_at: None,
            finished_at: None,
            output: None,
            error: None,
            reason: None,
            cost: None,
        };
        let (canceled, state) = (CancellationToken::new(), Mutex::new(state));
        LocalJob { job, rules, timeout, handler, link, canceled, state }
    }

    // ---- running

    /// Whatever becomes of the task of a job, nobody is left waiting: a panic that is not the code's own ends it, and so
    /// does the end of the runtime.
    async fn ended_at_last(self: &Arc<Self>, job: &LocalJob, run: impl Future<Output = ()>) {
        let _end = EndedAtLast { jobs: self, job };
        if let Err(panic) = self.worker.supervisor.run_once("spawn", run).await {
            let error = JobError::of(Reason::Panic, format!("Windlass panicked over it: {panic}"));
            let reason = Some(Reason::Panic.as_str().to_owned());
            self.ended(job, Status::DeadLettered, None, Some(error), reason);
        }
    }

    /// Runs a job to its end: waits for its time and for room, and again before each retry. It keeps its place until then.
    async fn run_to_end(
        self: &Arc<Self>,
        job: &LocalJob,
        mut code: Code,
        place: Option<OwnedSemaphorePermit>,
        mut delay: Option<Duration>,
    ) {
        loop {
            if let Some(delay) = delay.take() {
                tokio::select! {
                    () = job.canceled.cancelled() => return,
                    () = tokio::time::sleep(delay) => job.is_ready(),
                }
            }
            let Some(_room) = self.room(job).await else { return };
            let transition = match self.begin(job) {
                Begun::Ended => return,
                Begun::TurnedAway(transition) => transition,
                Begun::Attempt(ctx) => self.attempt(job, ctx, &mut code).await,
            };
            match transition {
                Transition::Retry { failed, delay: wait, error } => {
                    self.waits(job, Status::Retrying, failed, Some(error), wait);
                    delay = Some(wait);
                }
                Transition::Snooze { delay: wait } => {
                    let failed = job.state.lock().failed;
                    self.waits(job, Status::Scheduled, failed, None, wait);
                    delay = Some(wait);
                }
                transition => return self.end(job, transition, place),
            }
        }
    }

    /// Room to run, of the process and of the handler; none if the job is canceled meanwhile.
    async fn room(&self, job: &LocalJob) -> Option<(Option<OwnedSemaphorePermit>, OwnedSemaphorePermit)> {
        let limit = job.handler.as_ref().and_then(|handler| handler.options.concurrency);
        let own = limit.map(|limit| {
            let mut limits = self.limits.lock();
            limits.entry(job.job.handler.clone()).or_insert_with(|| Arc::new(Semaphore::new(limit))).clone()
        });
        let room = async {
            let own = match own {
                Some(own) => Some(own.acquire_owned().await.ok()?),
                None => None,
            };
            Some((own, self.slots.clone().acquire_owned().await.ok()?))
        };
        tokio::select! {
            biased;
            () = job.canceled.cancelled() => None,
            room = room => room,
        }
    }

    /// Begins an attempt, unless the job has ended or must not start.
    fn begin(&self, job: &LocalJob) -> Begun {
        let now = self.worker.now();
        let mut state = job.state.lock();
        if state.status.is_terminal() || job.canceled.is_cancelled() {
            return Begun::Ended;
        }
        let mut claimed = job.job.clone();
        (claimed.failed, claimed.checkpoint) = (state.failed, state.checkpoint.clone());
        claimed.resumed = state.started_at.is_some();
        if let Some(transition) = before_attempt(&claimed, &job.rules, now, None) {
            return Begun::TurnedAway(transition);
        }
        let number = claimed.attempt();
        let waited = (number == 1).then(|| now.since(state.run_at.unwrap_or(claimed.created_at)));
        let span = trace::span_of(&claimed);
        let ctx = JobContext::new(Box::new(claimed), NodeId(0), Duration::ZERO, job.link.clone(), None, span);
        (state.status, state.number, state.started_at) = (Status::Running, number, Some(now));
        state.attempt = Some(ctx.attempt_state().clone());
        drop(state);
        self.tally.started(job.counted(), waited);
        self.tell(job, Status::Running, number, None);
        job.link.show(Status::Running, None, None);
        Begun::Attempt(ctx)
    }

    /// Runs one attempt and decides what it means.
    async fn attempt(&self, job: &LocalJob, ctx: JobContext, code: &mut Code) -> Transition {
        let config = &self.worker.config;
        let attempt = ctx.attempt_state().clone();
        let until_deadline = job.job.spec.deadline_at.map(|at| at.since(self.worker.now()));
        let timeout = Some(job.timeout).filter(|timeout| *timeout != NO_TIMEOUT);
        let limit = [timeout, until_deadline].into_iter().flatten().min();
        let code = async { code(ctx.clone()).await };
        let outcome = run_code(&ctx, limit, config.grace, config.limits.output_bytes, code);
        let outcome = outcome.instrument(attempt.span.clone()).await;
        let (ran, now) = (attempt.started.elapsed(), self.worker.now());
        // Only a stored job can be completed in a transaction.
        let outcome = outcome.unwrap_or(Outcome::Interrupted);
        let mut transition = after_attempt(&attempt.job, outcome, &job.rules, ran, now, rand::random());
        {
            let mut state = job.state.lock();
            state.attempt = None;
            if attempt.stop() == Stop::Canceled {
                // Asked for after the attempt had returned: a job whose cancel was accepted never succeeds.
                transition = Transition::Cancel { reason: Reason::Canceled.as_str().to_owned(), keep: Duration::ZERO };
            }
            if let Transition::DeadLetter { failed, .. } = &transition {
                state.failed = *failed;
            }
            state.checkpoint = attempt.saved_checkpoint();
            if let Some(cost) = attempt.cost() {
                state.cost = Some(state.cost.unwrap_or_default().plus(cost));
            }
        }
        let (status, failed) = trace::end_of(&transition);
        trace::record_end(&attempt.span, status, failed);
        let ended = EndedAttempt { status, failed, ran, follow_up: false };
        self.tally.ended(std::iter::once((job.counted(), ended)));
        transition
    }

    /// Puts a job off.
    fn waits(&self, job: &LocalJob, status: Status, failed: u16, error: Option<JobError>, wait: Duration) {
        let number = {
            let mut state = job.state.lock();
            if state.status.is_terminal() {
                return;
            }
            (state.status, state.failed, state.run_at) = (status, failed, Some(self.worker.now() + wait));
            state.error = error.clone().or(state.error.take());
            state.number
        };
        self.tell(job, status, number, error.clone());
        job.link.show(status, None, error);
    }

    /// Ends a job as its transition says, and calls its callback, which has the job's place.
    fn end(self: &Arc<Self>, job: &LocalJob, transition: Transition, place: Option<OwnedSemaphorePermit>) {
        let callback = job.handler.as_ref().filter(|handler| handler.has_callback(&job.job, &transition));
        let callback = callback.and_then(|handler| {
            let new = callback_of(&job.job, &transition, self.worker.next_id(), QUEUE.to_owned())?;
            Some((handler.clone(), new))
        });
        let ended = match transition {
            Transition::Succeed { output, .. } => self.ended(job, Status::Succeeded, output, None, None),
            Transition::DeadLetter { reason, error, .. } => {
                self.ended(job, Status::DeadLettered, None, Some(error), Some(reason))
            }
            Transition::Cancel { reason, .. } => self.ended(job, Status::Canceled, None, None, Some(reason)),
            _ => self.interrupted(job),
        };
        if let Some((handler, new)) = callback.filter(|_| ended) {
            self.take_of(&handler, new, place);
        }
    }

    /// Ends a job that its process does not finish. False if it has ended before.
    fn interrupted(&self, job: &LocalJob) -> bool {
        let error = JobError::of(Reason::Canceled, "the process shuts down");
        self.ended(job, Status::Canceled, None, Some(error), Some(Reason::Canceled.as_str().to_owned()))
    }

    /// Takes note of an end, and forgets the oldest ends. False if it has ended before.
    fn ended(
        &self,
        job: &LocalJob,
        status: Status,
        output: Option<Payload>,
        error: Option<JobError>,
        reason: Option<String>,
    ) -> bool {
        self.ended_from(job.state.lock(), job, status, output, error, reason)
    }

    /// The same, as it is found by who holds its state.
    fn ended_from(
        &self,
        mut state: impl DerefMut<Target = State>,
        job: &LocalJob,
        status: Status,
        output: Option<Payload>,
        error: Option<JobError>,
        reason: Option<String>,
    ) -> bool {
        if state.status.is_terminal() {
            return false;
        }
        let number = state.number;
        (state.status, state.attempt, state.finished_at) = (status, None, Some(self.worker.now()));
        (state.output, state.error, state.reason) = (output.clone(), error.clone(), reason);
        drop(state);
        self.remember(job.job.id, output.as_ref().map_or(0, |output| output.as_str().len()));
        self.tell(job, status, number, error.clone());
        job.link.show(status, output, error);
        true
    }

    /// Keeps an ended job to be asked for, and forgets the oldest beyond the bounds.
    fn remember(&self, id: JobId, bytes: usize) {
        let mut forgotten = Vec::new();
        {
            let mut known = self.shard(id).lock();
            known.ended.push_back((id, bytes));
            known.bytes += bytes;
            while known.ended.len() > REMEMBERED / SHARDS || known.bytes > REMEMBERED_BYTES / SHARDS {
                let Some((oldest, bytes)) = known.ended.pop_front() else { break };
                known.bytes -= bytes;
                forgotten.extend(known.by_id.remove(&oldest));
            }
        }
        for job in forgotten.iter().filter(|job| job.job.spec.idempotency_key.is_some()) {
            let key = job.job.spec.idempotency_key.clone().unwrap_or_default();
            let key = (job.job.tenant, job.job.handler.clone(), key);
            let mut keys = self.keys.lock();
            if keys.get(&key) == Some(&job.job.id) {
                keys.remove(&key);
            }
        }
    }

    fn tell(&self, job: &LocalJob, status: Status, attempt: u16, error: Option<JobError>) {
        let of = &job.job;
        self.worker.watchers.event(|| JobEvent {
            job: of.id,
            tenant: of.tenant,
            handler: of.handler.clone(),
            status,
            attempt,
            error,
            at: self.worker.now(),
        });
    }

    // ---- asking

    fn known(&self, id: JobId) -> Option<Arc<LocalJob>> {
        self.shard(id).lock().by_id.get(&id).cloned()
    }

    fn within(&self, scope: Scope, id: JobId) -> Option<Arc<LocalJob>> {
        self.known(id).filter(|job| scope.covers(job.job.tenant))
    }

    /// A job in memory, if it is one and in the scope.
    pub(crate) fn get(&self, scope: Scope, id: JobId) -> Option<JobRecord> {
        self.within(scope, id).map(|job| job.record())
    }

    /// Follows a job in memory, if it is one and in the scope.
    pub(crate) fn watch(&self, scope: Scope, id: JobId) -> Option<watch::Receiver<Option<JobView>>> {
        self.within(scope, id).map(|job| job.link.views.subscribe())
    }

    /// Cancels a job in memory, if it is one and in the scope: at once while it waits, cooperatively while it runs.
    pub(crate) fn cancel(&self, scope: Scope, id: JobId) -> Option<CancelReply> {
        let job = self.within(scope, id)?;
        let state = job.state.lock();
        if state.status.is_terminal() {
            return Some(CancelReply::AlreadyFinished(state.status));
        }
        if let Some(attempt) = &state.attempt {
            attempt.stop_for(Stop::Canceled);
            return Some(CancelReply::Requested);
        }
        // Under the same lock: it can neither begin meanwhile nor be ended by its own task, which is told after.
        let reason = Some(Reason::Canceled.as_str().to_owned());
        self.ended_from(state, &job, Status::Canceled, None, None, reason);
        job.canceled.cancel();
        self.tally.canceled(job.counted(), 1);
        Some(CancelReply::Canceled)
    }

    /// What they did since this process started.
    pub(crate) fn totals(&self) -> Vec<Totals> {
        self.tally.totals()
    }

    /// Jobs that wait or run.
    pub(crate) fn unfinished(&self) -> usize {
        let unfinished = |jobs: &Mutex<Known>| {
            let jobs = jobs.lock();
            jobs.by_id.len() - jobs.ended.len()
        };
        self.jobs.iter().map(unfinished).sum()
    }

    /// Asks everything that runs to stop, and ends what waits.
    pub(crate) fn stop(&self) {
        let jobs: Vec<_> =
            self.jobs.iter().flat_map(|jobs| jobs.lock().by_id.values().cloned().collect::<Vec<_>>()).collect();
        for job in jobs {
            let running = job.state.lock().attempt.clone();
            match running {
                Some(attempt) => attempt.stop_for(Stop::Interrupted),
                None => {
                    self.interrupted(&job);
                    job.canceled.cancel();
                }
            }
        }
    }
}

/// What came of beginning an attempt.
enum Begun {
    Attempt(JobContext),
    /// It must not start: expired, or beyond its deadline.
    TurnedAway(Transition),
    /// It was canceled while it waited.
    Ended,
}

/// Ends a job whose task is dropped before its end, because the runtime is. Does nothing to one that has ended.
struct EndedAtLast<'a> {
    jobs: &'a Arc<LocalJobs>,
    job: &'a LocalJob,
}

impl Drop for EndedAtLast<'_> {
    fn drop(&mut self) {
        self.jobs.interrupted(self.job);
    }
}

impl LocalJob {
    /// Its time has come; it waits for room.
    fn is_ready(&self) {
        let mut state = self.state.lock();
        if !state.status.is_terminal() {
            state.status = Status::Pending;
        }
    }

    fn counted(&self) -> Counted<'_> {
        Counted { tenant: self.job.tenant, handler: &self.job.handler, priority: self.job.priority }
    }

    fn record(&self) -> JobRecord {
        let (job, state) = (&self.job, self.state.lock());
        let mut record = JobRecord::new(job.id, job.tenant, job.handler.clone(), job.queue.clone(), job.created_at);
        record.status = state.status;
        record.priority = job.priority;
        record.attempt = state.number;
        record.failed = state.failed;
        record.run_at = state.run_at;
        record.started_at = state.started_at;
        record.finished_at = state.finished_at;
        record.cancel_requested = state.attempt.as_ref().is_some_and(|attempt| attempt.stop() == Stop::Canceled);
        record.output.clone_from(&state.output);
        record.error.clone_from(&state.error);
        record.reason.clone_from(&state.reason);
        record.progress = self.link.progress.lock().clone();
        record.cost = state.cost.or_else(|| state.attempt.as_ref()?.cost());
        record.batch = job.batch;
        record.tags.clone_from(&job.tags);
        record.correlation_id.clone_from(&job.correlation_id);
        record.spec.clone_from(&job.spec);
        record
    }
}

/// Refuses what only stored jobs can have.
fn check_local(new: &NewJob) -> Result<(), InvalidInput> {
    let given =
        [("ordering_key", new.ordering_key.is_some()), ("unique", new.unique.is_some()), ("queue", new.queue != QUEUE)];
    match given.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => {
            let message = format!("is for jobs that are stored; `{}` runs in memory", new.handler);
            Err(InvalidInput::new(field, message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JobService, SecurityContext, SubmitOptions};

    /// RUN-7, SUB-11: a fault of ours is not taken for a shutdown, and is shown.
    #[tokio::test]
    async fn a_job_in_memory_whose_task_panics_says_so() {
        let service = JobService::builder(Arc::new(crate::MemoryStore::new())).start().await.expect("starts");
        let jobs = LocalJobs::start(service.worker());
        let ctx = SecurityContext::new(TenantId::ROOT);
        let new = service.prepare_local(&ctx, "closure", SubmitOptions::new()).expect("accepted");
        let job = jobs.local_job(new, None, None);
        jobs.ended_at_last(&job, async { panic!("the ledger is gone") }).await;
        let record = job.record();
        let error = record.error.expect("why");
        assert_eq!((record.status, error.code.as_str()), (Status::DeadLettered, "panic"));
        assert!(error.message.contains("the ledger is gone"), "{error}");
        let shown = service.loops().into_iter().find(|health| health.name == "spawn").expect("counted");
        assert_eq!(shown.panics, 1);
        service.shutdown().await;
    }
}
