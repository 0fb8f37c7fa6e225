//! Non-restartable work (SUB-11): closures that cannot be stored run in this process, a bounded number waiting and a bounded
//! number at once, with the same context, status, cancel and timeout as stored jobs. Called by the service. Nothing here
//! is written anywhere, and nothing survives the process.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, TryAcquireError, oneshot};

use crate::clock::Timestamp;
use crate::config::Config;
use crate::context::{Attempt, AttemptLink, JobContext, Stop};
use crate::error::{Error, JobError, Reason};
use crate::id::JobId;
use crate::job::{ClaimedJob, JobRecord, JobSpec, Progress, Status};
use crate::logs::LogLevel;
use crate::payload::Payload;
use crate::priority::Priority;
use crate::store::{CancelReply, Finish, LeaseId, NodeId, Store, Transition};
use crate::tenant::{Scope, SecurityContext};

/// A spawned job: its id, for status and cancel, and its result.
#[derive(Debug)]
pub struct Spawned<T> {
    /// The job.
    pub id: JobId,
    result: oneshot::Receiver<Result<T, JobError>>,
}

impl<T> Spawned<T> {
    /// Waits for the result.
    pub async fn join(self) -> Result<T, Error> {
        match self.result.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                let canceled = error.code == Reason::Canceled.as_str();
                let status = if canceled { Status::Canceled } else { Status::DeadLettered };
                Err(Error::JobFailed { job: self.id, status, error: Box::new(error) })
            }
            Err(_) => Err(Error::ShutDown),
        }
    }
}

/// Ended jobs that can still be asked for; the oldest are forgotten first.
const REMEMBERED: usize = 10_000;

/// The spawned jobs of this process.
pub(crate) struct LocalJobs {
    /// Room for those that wait, and for those that run; who waits for the second is served in turn.
    waiting: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    handlers: tokio::runtime::Handle,
    jobs: [Mutex<Known>; SHARDS],
    timeout: Duration,
    grace: Duration,
}

/// Parts that the jobs are kept in, so that callers and workers seldom wait for one another.
const SHARDS: usize = 16;

#[derive(Default)]
struct Known {
    by_id: HashMap<JobId, Arc<LocalJob>>,
    ended: VecDeque<JobId>,
}

struct LocalJob {
    context: JobContext,
    link: Arc<LocalLink>,
    state: Mutex<State>,
}

struct State {
    status: Status,
    error: Option<JobError>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
}

/// Keeps the latest progress of one spawned job.
#[derive(Default)]
struct LocalLink(Mutex<Option<Progress>>);

impl AttemptLink for LocalLink {
    fn store(&self) -> Option<&Arc<dyn Store>> {
        None
    }

    fn progress(&self, _: &Attempt, progress: Progress) {
        *self.0.lock() = Some(progress);
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
        Finish { fence: attempt.fence(), attempt: attempt.job.attempt(), ran, transition, follow_up: None, cost: None }
    }
}

impl LocalJobs {
    /// Nothing runs yet; what is spawned will run on the handlers' runtime.
    pub(crate) fn start(config: &Config, handlers: &tokio::runtime::Handle) -> Arc<LocalJobs> {
        Arc::new(LocalJobs {
            waiting: Arc::new(Semaphore::new(config.spawn_capacity.clamp(1, Semaphore::MAX_PERMITS))),
            slots: Arc::new(Semaphore::new(config.spawn_concurrency.clamp(1, Semaphore::MAX_PERMITS))),
            handlers: handlers.clone(),
            jobs: Default::default(),
            timeout: config.timeout,
            grace: config.grace,
        })
    }

    fn shard(&self, id: JobId) -> &Mutex<Known> {
        // Milliseconds and sequence: one of them differs from job to job.
        let id = id.as_i64().unsigned_abs() as usize;
        &self.jobs[((id >> 22) + (id & 0xfff)) % SHARDS]
    }

    /// Takes a closure, or answers `Backpressure` at once when too many wait.
    pub(crate) fn spawn<T, F, Fut>(
        self: &Arc<Self>,
        ctx: &SecurityContext,
        id: JobId,
        name: &str,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
        code: F,
    ) -> Result<Spawned<T>, Error>
    where
        T: Send + 'static,
        F: FnOnce(JobContext) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, JobError>> + Send + 'static,
    {
        let place = self.waiting.clone().try_acquire_owned().map_err(|full| match full {
            TryAcquireError::NoPermits => Error::Backpressure("the line of spawned jobs"),
            TryAcquireError::Closed => Error::ShutDown,
        })?;
        let link = Arc::new(LocalLink::default());
        // Nothing of it is written anywhere, so nothing is sealed.
        let job = local_job(ctx, id, name, now());
        let context = JobContext::new(job, NodeId(0), Duration::ZERO, link.clone(), None, tracing::Span::none());
        let state = State { status: Status::Pending, error: None, started_at: None, finished_at: None };
        let job = Arc::new(LocalJob { context, link, state: Mutex::new(state) });
        self.shard(id).lock().by_id.insert(id, job.clone());
        let (reply, result) = oneshot::channel();
        let this = self.clone();
        self.handlers.spawn(async move {
            let Ok(_slot) = this.slots.acquire().await else { return };
            drop(place);
            let ended = this.run(&job, &now, code).await;
            this.ended(&job, now(), ended.as_ref().err());
            let _ = reply.send(ended);
        });
        Ok(Spawned { id, result })
    }

    async fn run<T, F, Fut>(
        &self,
        job: &LocalJob,
        now: &(impl Fn() -> Timestamp + Sync),
        code: F,
    ) -> Result<T, JobError>
    where
        F: FnOnce(JobContext) -> Fut + Send,
        Fut: Future<Output = Result<T, JobError>> + Send,
    {
        let attempt = job.context.attempt_state();
        if attempt.stop() == Stop::Canceled {
            return Err(JobError::of(Reason::Canceled, "canceled before it started"));
        }
        {
            let mut state = job.state.lock();
            state.status = Status::Running;
            state.started_at = Some(now());
        }
        // The closure itself may panic before it returns its future.
        let guarded = AssertUnwindSafe(async { code(job.context.clone()).await }).catch_unwind();
        let mut guarded = std::pin::pin!(guarded);
        let result = tokio::select! {
            biased;
            result = &mut guarded => Some(result),
            () = attempt.cancel.cancelled() => None,
            () = tokio::time::sleep(self.timeout) => {
                attempt.stop_for(Stop::TimedOut);
                None
            }
        };
        let result = match result {
            Some(result) => Some(result),
            None => tokio::time::timeout(self.grace, guarded).await.ok(),
        };
        match (attempt.stop(), result) {
            (Stop::Canceled, _) => Err(JobError::of(Reason::Canceled, "canceled on request")),
            (Stop::TimedOut, _) => Err(JobError::of(Reason::Timeout, "took longer than its timeout")),
            (_, Some(Ok(result))) => result,
            (_, Some(Err(_))) => Err(JobError::of(Reason::Panic, "the closure panicked")),
            (_, None) => Err(JobError::of(Reason::Canceled, "the process shuts down")),
        }
    }

    fn ended(&self, job: &LocalJob, now: Timestamp, error: Option<&JobError>) {
        {
            let mut state = job.state.lock();
            state.status = match error {
                None => Status::Succeeded,
                Some(error) if error.code == Reason::Canceled.as_str() => Status::Canceled,
                Some(_) => Status::DeadLettered,
            };
            state.error = error.cloned();
            state.finished_at = Some(now);
        }
        let id = job.context.job_id();
        let mut jobs = self.shard(id).lock();
        jobs.ended.push_back(id);
        if jobs.ended.len() > REMEMBERED / SHARDS
            && let Some(oldest) = jobs.ended.pop_front()
        {
            jobs.by_id.remove(&oldest);
        }
    }

    /// A spawned job, if it is one and in the scope.
    pub(crate) fn get(&self, scope: Scope, id: JobId) -> Option<JobRecord> {
        let job = self.shard(id).lock().by_id.get(&id).cloned()?;
        scope.covers(job.context.tenant()).then(|| job.record())
    }

    /// Cancels a spawned job, if it is one and in the scope.
    pub(crate) fn cancel(&self, scope: Scope, id: JobId) -> Option<CancelReply> {
        let job = self.shard(id).lock().by_id.get(&id).cloned()?;
        if !scope.covers(job.context.tenant()) {
            return None;
        }
        let status = job.state.lock().status;
        if status.is_terminal() {
            return Some(CancelReply::AlreadyFinished(status));
        }
        job.context.attempt_state().stop_for(Stop::Canceled);
        Some(CancelReply::Requested)
    }

    /// Jobs that wait or run.
    pub(crate) fn unfinished(&self) -> usize {
        let unfinished = |jobs: &Mutex<Known>| {
            let jobs = jobs.lock();
            jobs.by_id.len() - jobs.ended.len()
        };
        self.jobs.iter().map(unfinished).sum()
    }

    /// Asks everything to stop.
    pub(crate) fn stop(&self) {
        let jobs: Vec<_> =
            self.jobs.iter().flat_map(|jobs| jobs.lock().by_id.values().cloned().collect::<Vec<_>>()).collect();
        jobs.iter().for_each(|job| job.context.attempt_state().stop_for(Stop::Interrupted));
    }
}

impl LocalJob {
    fn record(&self) -> JobRecord {
        let attempt = self.context.attempt_state();
        let state = self.state.lock();
        JobRecord {
            id: attempt.job.id,
            tenant: attempt.job.tenant,
            handler: attempt.job.handler.clone(),
            queue: attempt.job.queue.clone(),
            status: state.status,
            priority: Priority::NORMAL,
            attempt: u16::from(state.started_at.is_some()),
            failed: u16::from(state.status == Status::DeadLettered),
            recoveries: 0,
            created_at: attempt.job.created_at,
            run_at: None,
            started_at: state.started_at,
            finished_at: state.finished_at,
            node: None,
            cancel_requested: attempt.stop() == Stop::Canceled && !state.status.is_terminal(),
            output: None,
            error: state.error.clone(),
            reason: state.error.as_ref().map(|error| error.code.clone()),
            progress: self.link.0.lock().clone(),
            batch: None,
            tags: Vec::new(),
            correlation_id: attempt.job.correlation_id.clone(),
            ordering_key: None,
            spec: attempt.job.spec.clone(),
            replayed: None,
        }
    }
}

fn local_job(ctx: &SecurityContext, id: JobId, name: &str, now: Timestamp) -> ClaimedJob {
    let spec = JobSpec { user: ctx.user.clone(), ..JobSpec::default() };
    ClaimedJob {
        id,
        lease: LeaseId(id.as_i64()),
        tenant: ctx.tenant,
        handler: name.to_owned(),
        queue: "memory".to_owned(),
        priority: Priority::NORMAL,
        payload: Payload::null(),
        failed: 0,
        recoveries: 0,
        created_at: now,
        ready_at: now,
        ordering_key: None,
        batch: None,
        correlation_id: ctx.correlation_id.clone(),
        tags: Vec::new(),
        spec,
        checkpoint: None,
    }
}
