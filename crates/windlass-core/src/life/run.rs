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

use crate::config::NO_TIMEOUT;
use crate::life::context::{Attempt, JobContext, Stop};
use crate::life::finish::Ended;
use crate::life::handler::{CallbackInput, Registered};
use crate::life::lifecycle::{Outcome, Rules, after_attempt, before_attempt, never_began};
use crate::life::logs::in_job;
use crate::model::error::{JobError, Reason};
use crate::model::id::JobId;
use crate::model::job::{Callback, ClaimedJob, JobSpec, NewJob, Start, Status};
use crate::model::payload::Payload;
use crate::model::retry::RetryPolicy;
use crate::node::Worker;
use crate::node::supervise::panic_message;
use crate::node::suspect::Loss;
use crate::operate::failures::sign;
use crate::operate::usage::Cost;
use crate::operate::watch::{JobEvent, JobView};
use crate::seal::{KeyError, Sealer};
use crate::store::{Fence, Finish, NodeId, Transition, suspect_queue};
use crate::trace;

impl Worker {
    /// Starts a job on the handlers' runtime. The caller has taken a slot for it, which is freed when it has ended.
    pub(crate) fn spawn_attempt(self: &Arc<Self>, job: ClaimedJob, node: NodeId) {
        let slot = SlotGuard::take(self, &job);
        self.handlers.spawn(self.clone().work_to_end(Box::new(job), node, slot));
    }

    /// Runs a job to its end, and frees its slot. A panic that is not the handler's, which is caught where it runs, ends
    /// nothing else: the job is missed soon, and given back. Written without `async`: each block of it around another would
    /// hold the job once more, and a node starts hundreds of thousands a second.
    pub(crate) fn work_to_end(
        self: Arc<Self>,
        job: Box<ClaimedJob>,
        node: NodeId,
        slot: SlotGuard,
    ) -> impl Future<Output = ()> + Send + 'static {
        let fence = Fence { job: job.id, lease: job.lease };
        let worker = self.clone();
        AssertUnwindSafe(self.work(job, node)).catch_unwind().map(move |end| {
            if let Err(panic) = end {
                worker.supervisor.note_panic("attempt", &*panic);
                worker.forget(fence);
            }
            drop(slot);
        })
    }

    /// Starts jobs of one claim. If its answer came too late for that, they are released: others have them, or may, or
    /// everything was paused meanwhile.
    pub(crate) fn start_claimed(self: &Arc<Self>, jobs: Vec<ClaimedJob>, node: NodeId) {
        if self.may_start(node) && !self.all_paused() {
            jobs.into_iter().for_each(|job| self.spawn_attempt(job, node));
            return;
        }
        let worker = self.clone();
        let slots: Vec<SlotGuard> = jobs.iter().map(|job| SlotGuard::take(self, job)).collect();
        self.handlers.spawn(async move {
            for job in &jobs {
                worker.hand_back(job, node, Transition::Release, None).await;
            }
            drop(slots);
        });
    }

    /// Runs a job to its end and hands the result over.
    pub(crate) async fn work(self: Arc<Self>, mut job: Box<ClaimedJob>, node: NodeId) {
        let rules = self.rules(&job);
        let turned_away = self.turn_away(&job, &rules);
        let sealer = match self.open(&mut job, &rules, turned_away.as_ref()).await {
            Ok(sealer) => sealer,
            Err(transition) => return self.hand_back(&job, node, transition, None).await,
        };
        if let Some(transition) = turned_away {
            return self.hand_back(&job, node, transition, sealer.as_ref()).await;
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
    pub(crate) async fn open(
        &self,
        job: &mut ClaimedJob,
        rules: &Rules,
        turned_away: Option<&Transition>,
    ) -> Result<Option<Sealer>, Transition> {
        if !job.spec.sealed || !matches!(turned_away, None | Some(Transition::DeadLetter { .. })) {
            return Ok(None);
        }
        let opened = self.seals.open_job(job).await;
        opened.map_err(|error| unopened(job, rules, &error, self.config.key_retry, rand::random()))
    }

    /// Decides what an outcome means, and hands it over.
    pub(crate) fn conclude(
        &self,
        attempt: &Attempt,
        rules: &Rules,
        outcome: Outcome,
    ) -> impl Future<Output = ()> + Send + use<'_> {
        let ran = attempt.started.elapsed();
        let transition = after_attempt(&attempt.job, outcome, rules, ran, self.now(), rand::random());
        let (status, failed) = trace::end_of(&transition);
        trace::record_end(&attempt.span, status, failed);
        self.hand_in(attempt, ran, transition)
    }

    /// Why a claimed job must not start now, whoever runs it, and what becomes of it instead. `loss` is what was noted when
    /// its node was lost, of a job that was lost more than once.
    pub(crate) fn hold_back(&self, job: &ClaimedJob, rules: &Rules, loss: Option<&Loss>) -> Option<Transition> {
        let decided = before_attempt(job, rules, self.now(), loss);
        decided.or_else(|| self.paused(&job.handler, job.tenant).map(|gate| Transition::Park { gate }))
    }

    /// Why a claimed job does not start here now, and what becomes of it instead.
    fn turn_away(&self, job: &ClaimedJob, rules: &Rules) -> Option<Transition> {
        let Some((loss, may_start)) = self.judgement(job) else { return Some(Transition::Release) };
        if let Some(transition) = self.hold_back(job, rules, loss.as_ref()) {
            return Some(transition);
        }
        let Some(handler) = self.registry.get(&job.handler) else {
            return Some(Transition::Route { queue: job.handler.clone() });
        };
        if handler.options.concurrency.is_some() {
            let queue = match job.recoveries {
                0 => job.handler.clone(),
                recoveries => suspect_queue(&job.handler, recoveries),
            };
            if job.queue != queue {
                return Some(Transition::Route { queue });
            }
        }
        if !may_start {
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
        let keep = self.keep_of(&job.handler, job.spec.retention);
        let keep_dead = self.keep_dead_of(&job.handler);
        Rules { retry, keep, keep_dead, max_recoveries: self.config.max_recoveries }
    }

    /// How long an ended job is kept: as it asks itself, else its handler, else the service; not below the floor.
    pub(crate) fn keep_of(&self, handler: &str, asked: Option<Duration>) -> Duration {
        let registered = self.registry.get(handler);
        let asked = asked.or_else(|| registered.and_then(|handler| handler.options.retention));
        asked.unwrap_or(self.config.retention).max(self.config.retention_floor)
    }

    /// How long a dead letter of a handler is kept; `None` for good.
    pub(crate) fn keep_dead_of(&self, handler: &str) -> Option<Duration> {
        let own = self.registry.get(handler).and_then(|handler| handler.options.dead_letter_retention);
        let keep = own.or(self.config.dead_letter_retention);
        keep.map(|keep| keep.max(self.config.retention_floor))
    }

    /// Runs the handler until it returns, panics, overruns or is asked to stop. `None` if it has completed the job in a
    /// transaction of its own.
    async fn attempt(&self, ctx: &JobContext, handler: &Registered) -> Option<Outcome> {
        let attempt = ctx.attempt_state();
        let code = async {
            let input = &attempt.job.payload;
            match attempt.job.spec.callback {
                Some(which) => handler.code.call_back(ctx, which, input).await.map(|()| Payload::null()),
                None => handler.code.run(ctx, input).await,
            }
        };
        let (limit, max_bytes) = (self.time_limit(attempt, handler), self.config.limits.output_bytes);
        run_code(ctx, limit, self.config.grace, max_bytes, code).await
    }

    /// How long an attempt may take; none if it may take as long as it likes.
    fn time_limit(&self, attempt: &Attempt, handler: &Registered) -> Option<Duration> {
        let limit = attempt.job.spec.timeout.or(handler.options.timeout).unwrap_or(self.config.timeout);
        let limit = Some(limit).filter(|limit| *limit != NO_TIMEOUT);
        // Counted from the start, whenever it is asked for: what is left of a deadline shrinks while the attempt runs.
        let started = self.now() - attempt.started.elapsed();
        let until_deadline = attempt.job.spec.deadline_at.map(|at| at.since(started));
        [limit, until_deadline].into_iter().flatten().min()
    }

    /// Writes off attempts that neither returned nor yielded within their grace: their threads are blocked.
    pub(crate) async fn write_off_overdue(&self) {
        let grace = self.config.grace + WRITE_OFF_AFTER;
        for attempt in self.running_attempts().into_iter().filter(|attempt| !attempt.checked_out()) {
            let Some(handler) = self.registry.get(&attempt.job.handler) else { continue };
            let limit = self.time_limit(&attempt, handler);
            if limit.is_some_and(|limit| attempt.started.elapsed() > limit) {
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

    /// Hands over what becomes of a job of which no attempt has run. What is returned only waits, where the store is far
    /// behind.
    pub(crate) fn hand_back(
        &self,
        job: &ClaimedJob,
        node: NodeId,
        transition: Transition,
        sealer: Option<&Sealer>,
    ) -> impl Future<Output = ()> + Send + use<'_> {
        let ended = self.ended_with(job, node, Duration::ZERO, transition, sealer, None);
        self.finisher().finish(ended)
    }

    /// Hands over what becomes of a job after an attempt. What is returned only waits, as above.
    fn hand_in(
        &self,
        attempt: &Attempt,
        ran: Duration,
        transition: Transition,
    ) -> impl Future<Output = ()> + Send + use<'_> {
        let (sealer, cost) = (attempt.sealer.as_ref(), attempt.cost());
        let ended = self.ended_with(&attempt.job, attempt.node, ran, transition, sealer, cost);
        self.finisher().finish(ended)
    }

    /// An ended attempt, on its way to the store.
    pub(crate) fn ended_with(
        &self,
        job: &ClaimedJob,
        node: NodeId,
        ran: Duration,
        transition: Transition,
        sealer: Option<&Sealer>,
        cost: Option<Cost>,
    ) -> Ended {
        let transition = sign(&job.handler, job.spec.sealed, sealer, transition);
        let open = sealer.map(|_| Box::new(transition.clone()));
        let finish = self.finish_of(job, ran, transition, sealer, cost);
        let watch = self.suspect_watch(job);
        let (tenant, handler) = (job.tenant, job.handler.clone());
        let (ordered, priority, at) = (job.ordering_key.is_some(), job.priority, self.now());
        Ended { node, finish, open, tenant, ordered, handler, priority, at, watch }
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
        let is_success = matches!(transition, Transition::Succeed { .. });
        let audit = is_success && self.registry.get(&job.handler).is_some_and(|handler| handler.options.audit_success);
        let resumed = job.resumed || !ran.is_zero();
        let batch = job.counted_batch();
        Finish { fence, attempt: job.attempt(), ran, transition, follow_up, cost, audit, batch, resumed }
    }

    /// The callback that an outcome asks for, as a job stored with it.
    pub(crate) fn follow_up(
        &self,
        job: &ClaimedJob,
        transition: &Transition,
        sealer: Option<&Sealer>,
    ) -> Option<Box<NewJob>> {
        let handler = self.registry.get(&job.handler)?;
        // Without its keys, a sealed job has no input that a callback could be given.
        let unreadable = job.spec.sealed && sealer.is_none();
        let unreadable = unreadable || job.unreadable.is_some();
        if unreadable || !handler.has_callback(job, transition) {
            return None;
        }
        let queue = handler.queue(&job.handler).to_owned();
        callback_of(job, transition, self.next_id(), queue).map(Box::new)
    }

    pub(crate) fn tell_started(&self, attempt: &Attempt) {
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
pub(crate) fn unopened(job: &ClaimedJob, rules: &Rules, error: &KeyError, retry: Duration, random: f64) -> Transition {
    if error.is_transient() {
        tracing::warn!(job = %job.id, %error, "job {}: it is sealed and waits for its key", job.id);
        return Transition::Snooze { delay: retry.mul_f64(1.0 + random) };
    }
    never_began(job, rules, JobError::terminal(error.code(), error))
}

/// Runs the code of one attempt until it returns, panics, overruns its limit or is asked to stop.
pub(crate) async fn run_code(
    ctx: &JobContext,
    limit: Option<Duration>,
    grace: Duration,
    max_bytes: usize,
    code: impl Future<Output = Result<Payload, JobError>>,
) -> Option<Outcome> {
    let attempt = ctx.attempt_state();
    let running = async {
        let mut code = pin!(in_job(ctx, AssertUnwindSafe(code).catch_unwind()));
        let result = tokio::select! {
            biased;
            result = &mut code => Some(result),
            () = attempt.cancel.cancelled() => None,
            () = after(limit) => {
                attempt.stop_for(Stop::TimedOut);
                None
            }
        };
        match result {
            Some(result) => Some(result),
            // Asked to stop: it may tidy up for a while, then it is dropped.
            None => tokio::time::timeout(grace, code).await.ok(),
        }
    };
    // What the handler holds is dropped inside: should that panic, it is the handler's panic like any other.
    let result = AssertUnwindSafe(running).catch_unwind().await.unwrap_or_else(|panic| Some(Err(panic)));
    outcome_of(attempt.stop(), result, limit, max_bytes)
}

/// Waits for the end of a limit, or for ever.
async fn after(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// How long after its grace an attempt is written off, so that one that just ended is not.
const WRITE_OFF_AFTER: Duration = Duration::from_secs(1);

/// A slot and a place among the handler's jobs; given back when dropped.
pub(crate) struct SlotGuard {
    worker: Arc<Worker>,
    handler: String,
}

impl SlotGuard {
    /// Takes over a slot the caller holds.
    pub(crate) fn take(worker: &Arc<Worker>, job: &ClaimedJob) -> SlotGuard {
        worker.count_handler(&job.handler, 1);
        SlotGuard { worker: worker.clone(), handler: job.handler.clone() }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.worker.count_handler(&self.handler, -1);
        self.worker.free_slots(1);
    }
}

type HandlerResult = Result<Result<Payload, JobError>, Box<dyn Any + Send>>;

/// What an attempt came to. Pure. `None` if the handler has completed the job itself; `result` is `None` if it was
/// dropped.
fn outcome_of(stop: Stop, result: Option<HandlerResult>, limit: Option<Duration>, max_bytes: usize) -> Option<Outcome> {
    let outcome = match (stop, result) {
        (Stop::Completed, _) => return None,
        (Stop::Canceled, _) => Outcome::Canceled,
        (Stop::TimedOut, _) => {
            let message = format!("the attempt took longer than {} ms", limit.unwrap_or_default().as_millis());
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
pub(crate) fn callback_of(job: &ClaimedJob, transition: &Transition, id: JobId, queue: String) -> Option<NewJob> {
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
        assert_eq!(outcome_of(stop, result, Some(Duration::from_secs(1)), 100), expected);
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
        let Some(Outcome::Failed(error)) = outcome_of(Stop::None, Some(panicked), None, 100) else {
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
