//! Runs one claimed job to its outcome. Called by `claim`, by born-leased submits and by `tick`; hands the outcome's
//! meaning on to `lifecycle` and the transition to `finish`. Never writes to the store itself.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use serde_json::value::RawValue;
use tracing::Instrument;

use crate::context::{Attempt, JobContext, Stop};
use crate::error::{JobError, Reason};
use crate::failures::sign;
use crate::finish::Ended;
use crate::handler::{CallbackInput, Registered};
use crate::id::JobId;
use crate::job::{Callback, ClaimedJob, JobSpec, NewJob, Start, Status};
use crate::lifecycle::{Outcome, Rules, after_attempt, before_attempt};
use crate::logs::in_job;
use crate::payload::Payload;
use crate::retry::RetryPolicy;
use crate::seal::{KeyError, Sealer};
use crate::store::{Fence, Finish, NodeId, Transition};
use crate::trace;
use crate::usage::Cost;
use crate::watch::{JobEvent, JobView};
use crate::worker::Worker;

impl Worker {
    /// Starts a job on the handlers' runtime. The caller has taken a slot for it, which is freed when it has ended.
    pub(crate) fn spawn_attempt(self: &Arc<Self>, job: ClaimedJob, node: NodeId) {
        let room = Room::take(self, &job);
        let worker = self.clone();
        self.handlers.spawn(async move {
            worker.work(job, node).await;
            drop(room);
        });
    }

    /// Starts jobs of one claim. If its answer came too late for that, they are released: others have them, or may, or
    /// everything was paused meanwhile.
    pub(crate) fn start_claimed(self: &Arc<Self>, jobs: Vec<ClaimedJob>, node: NodeId) {
        if self.may_start(node) && !self.all_paused() {
            jobs.into_iter().for_each(|job| self.spawn_attempt(job, node));
            return;
        }
        let worker = self.clone();
        let rooms: Vec<Room> = jobs.iter().map(|job| Room::take(self, job)).collect();
        self.handlers.spawn(async move {
            for job in &jobs {
                worker.finish(job, node, Duration::ZERO, Transition::Release, None, None).await;
            }
            drop(rooms);
        });
    }

    /// Runs a job to its end and hands the result over.
    pub(crate) async fn work(self: &Arc<Self>, mut job: ClaimedJob, node: NodeId) {
        let rules = self.rules(&job);
        let turned_away = self.turn_away(&job, &rules);
        let sealer = match self.open(&mut job, turned_away.as_ref()).await {
            Ok(sealer) => sealer,
            Err(transition) => return self.finish(&job, node, Duration::ZERO, transition, None, None).await,
        };
        if let Some(transition) = turned_away {
            return self.finish(&job, node, Duration::ZERO, transition, sealer.as_ref(), None).await;
        }
        let handler = self.registry.get(&job.handler).expect("jobs without a handler were turned away").clone();
        let ctx = self.begin(job, node, rules.keep, sealer);
        let attempt = ctx.attempt_state().clone();
        self.tell_started(&attempt);
        let outcome = self.attempt(&ctx, &handler).instrument(attempt.span.clone()).await;
        if !self.ended(&attempt) {
            // It overran its grace and was written off; whatever it returns now comes too late.
            // (Or the job runs here a second time, after this node was declared dead; then there is nothing to count.)
            let less = |overrun: usize| overrun.checked_sub(1);
            let _ = self.overrun.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
            return;
        }
        // What it reported last belongs to what is kept of it, and after its end nothing more is accepted.
        if self.has_unsaved_progress(attempt.job.id) || attempt.has_logged() {
            ctx.flush().await;
        }
        let Some(outcome) = outcome else { return self.tell_completed(&attempt) };
        self.conclude(&attempt, &rules, outcome).await;
    }

    /// Opens a sealed job that is to run, or to end with a callback that carries its input. If it cannot be opened, what
    /// becomes of it instead.
    async fn open(&self, job: &mut ClaimedJob, turned_away: Option<&Transition>) -> Result<Option<Sealer>, Transition> {
        if !job.spec.sealed || !matches!(turned_away, None | Some(Transition::DeadLetter { .. })) {
            return Ok(None);
        }
        self.seals.open_job(job).await.map_err(|error| unopened(job, &error, self.config.key_retry, rand::random()))
    }

    /// Decides what an outcome means, and hands it over.
    pub(crate) async fn conclude(&self, attempt: &Attempt, rules: &Rules, outcome: Outcome) {
        let ran = attempt.started.elapsed();
        let transition = after_attempt(&attempt.job, outcome, rules, ran, self.now(), rand::random());
        let (status, failed) = trace::end_of(&transition);
        trace::record_end(&attempt.span, status, failed);
        let (sealer, cost) = (attempt.sealer.as_ref(), attempt.cost());
        self.finish(&attempt.job, attempt.node, ran, transition, sealer, cost).await;
    }

    /// Why a claimed job does not start here now, and what becomes of it instead.
    fn turn_away(&self, job: &ClaimedJob, rules: &Rules) -> Option<Transition> {
        if let Some(transition) = before_attempt(job, rules, self.now()) {
            return Some(transition);
        }
        let Some(handler) = self.registry.get(&job.handler) else {
            return Some(Transition::Route { queue: job.handler.clone() });
        };
        if let Some(gate) = self.paused(&job.handler, job.tenant) {
            return Some(Transition::Park { gate });
        }
        let own_queue_only = handler.options.concurrency.is_some() && job.recoveries == 0;
        if own_queue_only && job.queue != job.handler {
            return Some(Transition::Route { queue: job.handler.clone() });
        }
        if !self.watch_suspect(job) {
            return Some(Transition::Release);
        }
        None
    }

    /// The rules of a job: its own, else its handler's, else the service's.
    pub(crate) fn rules(&self, job: &ClaimedJob) -> Rules {
        let options = self.registry.get(&job.handler).map(|handler| &handler.options);
        let retry = match (&job.spec.callback, &job.spec.retry) {
            (Some(_), _) => RetryPolicy::never(),
            (None, Some(retry)) => retry.clone(),
            (None, None) => options.map(|options| options.retry.clone()).unwrap_or_default(),
        };
        let asked = job.spec.retention.or_else(|| options.and_then(|options| options.retention));
        let keep = asked.unwrap_or(self.config.retention).max(self.config.retention_floor);
        Rules { retry, keep, max_recoveries: self.config.max_recoveries }
    }

    /// Runs the handler until it returns, panics, overruns or is asked to stop. `None` if it has completed the job in a
    /// transaction of its own.
    async fn attempt(&self, ctx: &JobContext, handler: &Registered) -> Option<Outcome> {
        let attempt = ctx.attempt_state();
        let limit = self.time_limit(attempt, handler);
        let code = AssertUnwindSafe(async {
            let input = &attempt.job.payload;
            match attempt.job.spec.callback {
                Some(which) => handler.code.call_back(ctx, which, input).await.map(|()| Payload::null()),
                None => handler.code.run(ctx, input).await,
            }
        });
        let mut code = pin!(in_job(ctx, code.catch_unwind()));
        let result = tokio::select! {
            biased;
            result = &mut code => Some(result),
            () = attempt.cancel.cancelled() => None,
            () = tokio::time::sleep(limit) => {
                attempt.stop_for(Stop::TimedOut);
                None
            }
        };
        let result = match result {
            Some(result) => Some(result),
            // Asked to stop: it may tidy up for a while, then it is dropped.
            None => tokio::time::timeout(self.config.grace, code).await.ok(),
        };
        outcome_of(attempt.stop(), result, limit, self.config.limits.output_bytes)
    }

    fn time_limit(&self, attempt: &Attempt, handler: &Registered) -> Duration {
        let limit = attempt.job.spec.timeout.or(handler.options.timeout).unwrap_or(self.config.timeout);
        match attempt.job.spec.deadline_at {
            Some(at) => limit.min(at.since(self.now())),
            None => limit,
        }
    }

    /// Writes off attempts that neither returned nor yielded within their grace: their threads are blocked.
    pub(crate) async fn write_off_overdue(&self) {
        let grace = self.config.grace + WRITE_OFF_AFTER;
        for attempt in self.running_attempts().into_iter().filter(|attempt| !attempt.checked_out()) {
            let Some(handler) = self.registry.get(&attempt.job.handler) else { continue };
            let limit = self.time_limit(&attempt, handler);
            if attempt.started.elapsed() > limit {
                attempt.stop_for(Stop::TimedOut);
            }
            let overdue = attempt.stopped_since().is_some_and(|since: Instant| since.elapsed() > grace);
            if overdue && self.ended(&attempt) {
                self.overrun.fetch_add(1, Ordering::AcqRel);
                tracing::warn!(job = %attempt.job.id, "job {}: its handler blocks its thread and is written off", attempt.job.id);
                if let Some(outcome) = outcome_of(attempt.stop(), None, limit, 0) {
                    self.conclude(&attempt, &self.rules(&attempt.job), outcome).await;
                }
            }
        }
    }

    pub(crate) async fn finish(
        &self,
        job: &ClaimedJob,
        node: NodeId,
        ran: Duration,
        transition: Transition,
        sealer: Option<&Sealer>,
        cost: Option<Cost>,
    ) {
        let transition = sign(&job.handler, job.spec.sealed, sealer, transition);
        let open = sealer.map(|_| transition.clone());
        let finish = self.finish_of(job, ran, transition, sealer, cost);
        let watch = self.suspect_watch(job);
        let (tenant, handler) = (job.tenant, job.handler.clone());
        let (ordered, priority, at) = (job.ordering_key.is_some(), job.priority, self.now());
        let ended = Ended { node, finish, open, tenant, ordered, handler, priority, at, watch };
        self.finisher().finish(ended).await;
    }

    /// A transition with the job's fence and the callback it asks for; both sealed if the job is.
    pub(crate) fn finish_of(
        &self,
        job: &ClaimedJob,
        ran: Duration,
        transition: Transition,
        sealer: Option<&Sealer>,
        cost: Option<Cost>,
    ) -> Finish {
        let mut follow_up = self.follow_up(job, &transition, sealer);
        let transition = match sealer {
            Some(sealer) => {
                follow_up.as_deref_mut().into_iter().for_each(|callback| sealer.seal_new(callback));
                sealer.seal_transition(job.id, transition)
            }
            None => transition,
        };
        let fence = Fence { job: job.id, lease: job.lease };
        Finish { fence, attempt: job.attempt(), ran, transition, follow_up, cost }
    }

    /// The callback that an outcome asks for, as a job stored with it (ERR-5).
    fn follow_up(&self, job: &ClaimedJob, transition: &Transition, sealer: Option<&Sealer>) -> Option<Box<NewJob>> {
        let handler = self.registry.get(&job.handler)?;
        // Without its keys, a sealed job has no input that a callback could be given.
        let unreadable = job.spec.sealed && sealer.is_none();
        if !handler.options.callbacks || job.spec.callback.is_some() || unreadable {
            return None;
        }
        let queue = handler.queue(&job.handler).to_owned();
        callback_of(job, transition, self.next_id(), queue).map(Box::new)
    }

    fn tell_started(&self, attempt: &Attempt) {
        let job = &attempt.job;
        self.watchers.event(|| JobEvent {
            job: job.id,
            tenant: job.tenant,
            handler: job.handler.clone(),
            status: Status::Running,
            attempt: job.attempt(),
            error: None,
            at: self.now(),
        });
        self.watchers.show(job.id, || JobView { status: Status::Running, progress: None, output: None, error: None });
    }

    /// Tells watchers of a job that its handler has completed in its own transaction. The output is in the store.
    fn tell_completed(&self, attempt: &Attempt) {
        let job = &attempt.job;
        drop(self.suspect_watch(job));
        if job.ordering_key.is_some() {
            self.jobs_are_ready();
        }
        self.count_completed(attempt);
        trace::record_end(&attempt.span, Status::Succeeded, false);
        self.watchers.event(|| JobEvent {
            job: job.id,
            tenant: job.tenant,
            handler: job.handler.clone(),
            status: Status::Succeeded,
            attempt: job.attempt(),
            error: None,
            at: self.now(),
        });
        self.wake_maintenance.notify_one();
    }
}

/// What becomes of a sealed job that cannot be opened: it waits where that may change, at no cost, and is a dead letter
/// where it cannot. `random` is in 0..1.
pub(crate) fn unopened(job: &ClaimedJob, error: &KeyError, retry: Duration, random: f64) -> Transition {
    if error.is_transient() {
        tracing::warn!(job = %job.id, %error, "job {}: it is sealed and waits for its key", job.id);
        return Transition::Snooze { delay: retry.mul_f64(1.0 + random) };
    }
    Transition::DeadLetter { reason: error.code().to_owned(), error: JobError::terminal(error.code(), error) }
}

/// How long after its grace an attempt is written off, so that one that just ended is not.
const WRITE_OFF_AFTER: Duration = Duration::from_secs(1);

/// A slot and a place among the handler's jobs; given back when dropped.
pub(crate) struct Room {
    worker: Arc<Worker>,
    handler: String,
}

impl Room {
    /// Takes over a slot the caller holds.
    pub(crate) fn take(worker: &Arc<Worker>, job: &ClaimedJob) -> Room {
        worker.count_handler(&job.handler, 1);
        Room { worker: worker.clone(), handler: job.handler.clone() }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.worker.count_handler(&self.handler, -1);
        self.worker.free_slots(1);
    }
}

type HandlerResult = Result<Result<Payload, JobError>, Box<dyn Any + Send>>;

/// What an attempt came to. Pure. `None` if the handler has completed the job itself; `result` is `None` if it was
/// dropped.
fn outcome_of(stop: Stop, result: Option<HandlerResult>, limit: Duration, max_bytes: usize) -> Option<Outcome> {
    let outcome = match (stop, result) {
        (Stop::Completed, _) => return None,
        (Stop::Canceled, _) => Outcome::Canceled,
        (Stop::TimedOut, _) => {
            let message = format!("the attempt took longer than {} ms", limit.as_millis());
            Outcome::Failed(JobError::of(Reason::Timeout, message))
        }
        (_, Some(Ok(Ok(output)))) => Outcome::Done(Some(cut_output(output, max_bytes))),
        // A failure of a handler that was asked to stop is not its own.
        (Stop::Interrupted | Stop::LeaseLost, _) => Outcome::Interrupted,
        (Stop::None, Some(Ok(Err(error)))) => Outcome::Failed(cut_error(error, max_bytes)),
        (Stop::None, Some(Err(panic))) => {
            let message = format!("the handler panicked: {}", panic_message(&*panic));
            Outcome::Failed(cut_error(JobError::of(Reason::Panic, message), max_bytes))
        }
        (Stop::None, None) => Outcome::Interrupted,
    };
    Some(outcome)
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Outputs that are too long are replaced by a mark, not stored by half.
pub(crate) fn cut_output(output: Payload, max_bytes: usize) -> Payload {
    let bytes = output.as_str().len();
    if bytes <= max_bytes {
        return output;
    }
    Payload::from_store(serde_json::json!({ "truncated": true, "bytes": bytes, "max_bytes": max_bytes }).to_string())
}

fn cut_error(mut error: JobError, max_bytes: usize) -> JobError {
    error.code.retain(|c| c != '\0');
    error.code.truncate(error.code.char_indices().nth(200).map_or(error.code.len(), |(at, _)| at));
    if error.message.len() > max_bytes {
        let at = (0..=max_bytes).rev().find(|&at| error.message.is_char_boundary(at)).unwrap_or(0);
        let bytes = error.message.len();
        error.message.truncate(at);
        error.message.push_str(&format!("… [cut, {bytes} bytes]"));
    }
    if error.details.as_ref().is_some_and(|details| details.to_string().len() > max_bytes) {
        error.details = Some(serde_json::json!({ "truncated": true }));
    }
    error
}

/// The callback job of an outcome, if the outcome is one that has a callback. Pure.
fn callback_of(job: &ClaimedJob, transition: &Transition, id: JobId, queue: String) -> Option<NewJob> {
    let raw = |payload: &Payload| RawValue::from_string(payload.as_str().to_owned()).ok();
    let (which, output, error) = match transition {
        Transition::Succeed { output, .. } => (Callback::OnSuccess, output.as_ref().and_then(raw), None),
        Transition::DeadLetter { error, .. } => (Callback::OnFailure, None, Some(error.clone())),
        _ => return None,
    };
    let input = CallbackInput { input: raw(&job.payload)?, output, error };
    let payload = Payload::from_store(serde_json::to_string(&input).ok()?);
    let user = job.spec.user.clone();
    let headers = trace::inherited(&job.spec.headers);
    let spec = JobSpec { parent: Some(job.id), callback: Some(which), user, headers, ..JobSpec::default() };
    Some(NewJob {
        id,
        tenant: job.tenant,
        handler: job.handler.clone(),
        queue,
        priority: job.priority,
        start: Start::Now,
        payload,
        idempotency_key: None,
        unique: None,
        ordering_key: None,
        batch: None,
        tags: Vec::new(),
        correlation_id: job.correlation_id.clone(),
        spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stop: Stop, result: Option<HandlerResult>, expected: Option<Outcome>) {
        assert_eq!(outcome_of(stop, result, Duration::from_secs(1), 100), expected);
    }

    #[test]
    fn a_result_counts_unless_the_attempt_was_stopped_for_good() {
        let done = || Some(Ok(Ok(Payload::null())));
        check(Stop::None, done(), Some(Outcome::Done(Some(Payload::null()))));
        check(Stop::Interrupted, done(), Some(Outcome::Done(Some(Payload::null()))));
        check(Stop::Canceled, done(), Some(Outcome::Canceled));
        check(Stop::Completed, done(), None);
    }

    #[test]
    fn a_failure_after_an_interruption_costs_nothing() {
        let failed = || Some(Ok(Err(JobError::retryable("stopped"))));
        check(Stop::Interrupted, failed(), Some(Outcome::Interrupted));
        check(Stop::LeaseLost, None, Some(Outcome::Interrupted));
        check(Stop::None, failed(), Some(Outcome::Failed(JobError::retryable("stopped"))));
    }

    #[test]
    fn a_panic_is_a_failed_attempt_with_its_message() {
        let panicked: HandlerResult = Err(Box::new("boom"));
        let Some(Outcome::Failed(error)) = outcome_of(Stop::None, Some(panicked), Duration::ZERO, 100) else {
            panic!("a panic fails the attempt")
        };
        assert_eq!((error.code.as_str(), error.is_retryable()), ("panic", true));
        assert!(error.message.contains("boom"));
    }

    #[test]
    fn outputs_and_errors_over_the_limit_are_cut_and_marked() {
        let long = Payload::from_store(format!("\"{}\"", "x".repeat(200)));
        assert!(cut_output(long, 100).as_str().contains("\"truncated\":true"));
        let error = cut_error(JobError::retryable("ä".repeat(200)), 101);
        assert!(error.message.ends_with("… [cut, 400 bytes]"));
    }
}
