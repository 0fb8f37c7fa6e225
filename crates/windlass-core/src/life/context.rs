//! What a running attempt can see and do: `JobContext`. Made by `run` for each attempt, used by handlers.
//! Never decides what becomes of the job.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::life::logs::{LOG_BYTES, LogLevel};
use crate::model::clock::Timestamp;
use crate::model::error::{Error, InvalidInput};
use crate::model::id::JobId;
use crate::model::job::{ClaimedJob, Progress};
use crate::model::payload::Payload;
use crate::model::tenant::{SecurityContext, TenantId};
use crate::operate::usage::Cost;
use crate::seal::{Kind, Sealer, Seals};
use crate::store::{AuditEntry, Fence, Finish, NodeId, Note, Noted, Store};

/// The attempt a handler runs in: who submitted the job, which attempt this is, and what the handler can report and save.
/// Cheap to clone.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use windlass_core::{HandlerOptions, HandlerRef, JobContext, JobError, JobService, MemoryStore, RetryPolicy};
///
/// const IMPORT: HandlerRef<u32, u32> = HandlerRef::new("rows.import");
///
/// /// Imports rows and returns how many the last attempt had to do.
/// async fn import(_state: (), ctx: JobContext, rows: u32) -> Result<u32, JobError> {
///     let first = ctx.checkpoint::<u32>()?.unwrap_or(0);
///     for row in first..rows {
///         if ctx.cancellation().is_cancelled() {
///             return Err(JobError::cancelled());
///         }
///         if row == 3 && ctx.attempt() == 1 {
///             return Err(JobError::retryable("the connection broke"));
///         }
///         ctx.save_checkpoint(&(row + 1)).await?; // the next attempt starts after this row
///         ctx.report_progress(100.0 * (row + 1) as f32 / rows as f32, format!("row {}", row + 1));
///     }
///     Ok(rows - first)
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), windlass_core::Error> {
/// let options = HandlerOptions::new().retry(RetryPolicy::fixed(2, Duration::from_millis(10)));
/// let store = Arc::new(MemoryStore::new());
/// let jobs = JobService::builder(store).function_with(IMPORT, options, (), import).start().await?;
/// let job = IMPORT.submit(&jobs, 5_u32).await?;
/// assert_eq!(job.wait(Duration::from_secs(5)).await?, 2, "the second attempt imported rows 4 and 5 only");
/// # jobs.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct JobContext(Arc<Attempt>);

/// Everything one attempt shares between its handler and the runtime.
pub(crate) struct Attempt {
    /// Apart, because it is large and was moved here from the claim.
    pub(crate) job: Box<ClaimedJob>,
    pub(crate) node: NodeId,
    pub(crate) keep: Duration,
    pub(crate) started: Instant,
    pub(crate) cancel: CancellationToken,
    stop: AtomicU8,
    stopped_at: OnceLock<Instant>,
    /// For an attempt that a worker outside this process carries out: how long that may be silent.
    checked_out: OnceLock<Mutex<Hold>>,
    pub(crate) link: Arc<dyn AttemptLink>,
    progress_sequence: AtomicU64,
    log_lines: AtomicU64,
    cost: Mutex<Option<Cost>>,
    checkpoint: Mutex<Option<Payload>>,
    /// Seals what the attempt hands to the store, if its job is sealed. What is here is open.
    pub(crate) sealer: Option<Sealer>,
    /// The span it runs in; none for jobs that are kept nowhere.
    pub(crate) span: tracing::Span,
}

/// How long the worker of a checked-out attempt may be silent, and when it was heard of.
#[derive(Clone, Copy, Default)]
struct Hold {
    silence: Option<Duration>,
    heard: Option<Instant>,
    /// The number of its last report that this process knows of.
    sequence: u64,
}

/// What a context needs from the runtime around it.
pub(crate) trait AttemptLink: Send + Sync {
    /// Where the job is kept; none for jobs that are kept nowhere.
    fn store(&self) -> Option<&Arc<dyn Store>>;
    /// What opens secrets that are kept sealed; none for jobs that are kept nowhere.
    fn seals(&self) -> Option<&Seals> {
        None
    }
    /// The store's time, as this process knows it.
    fn now(&self) -> Timestamp;
    /// Passes progress on. Must not wait.
    fn progress(&self, attempt: &Attempt, progress: Progress);
    /// Passes a log line on. Must not wait.
    fn log(&self, attempt: &Attempt, level: LogLevel, message: String);
    /// Saves what the attempt has reported so far.
    fn flush<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, ()>;
    /// The largest checkpoint.
    fn checkpoint_bytes(&self) -> usize;
    /// The finish of an attempt that succeeds with `output`, its callback included.
    fn success(&self, attempt: &Attempt, output: Payload) -> Finish;
}

/// Why an attempt was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stop {
    /// It was not.
    None = 0,
    /// The node shuts down.
    Interrupted = 1,
    /// The attempt took too long.
    TimedOut = 2,
    /// Somebody canceled the job.
    Canceled = 3,
    /// The job belongs to someone else now.
    LeaseLost = 4,
    /// The handler has completed the job inside its own transaction.
    Completed = 5,
}

impl JobContext {
    pub(crate) fn new(
        job: Box<ClaimedJob>,
        node: NodeId,
        keep: Duration,
        link: Arc<dyn AttemptLink>,
        sealer: Option<Sealer>,
        span: tracing::Span,
    ) -> Self {
        let checkpoint = Mutex::new(job.checkpoint.clone());
        JobContext(Arc::new(Attempt {
            job,
            node,
            keep,
            started: Instant::now(),
            cancel: CancellationToken::new(),
            stop: AtomicU8::new(Stop::None as u8),
            stopped_at: OnceLock::new(),
            checked_out: OnceLock::new(),
            link,
            progress_sequence: AtomicU64::new(0),
            log_lines: AtomicU64::new(0),
            cost: Mutex::new(None),
            checkpoint,
            sealer,
            span,
        }))
    }

    pub(crate) fn attempt_state(&self) -> &Arc<Attempt> {
        &self.0
    }

    /// The job.
    pub fn job_id(&self) -> JobId {
        self.0.job.id
    }

    /// Whose job it is.
    pub fn tenant(&self) -> TenantId {
        self.0.job.tenant
    }

    /// The user who submitted it.
    pub fn user_id(&self) -> Option<&str> {
        self.0.job.spec.user.as_deref()
    }

    /// The service that submitted it, if it has a name ([`Config::service_id`](crate::Config::service_id)).
    pub fn service_id(&self) -> Option<&str> {
        self.0.job.spec.service.as_deref()
    }

    /// The time the job stands for, if its submitter set one ([`SubmitOptions::nominal_at`](crate::SubmitOptions::nominal_at)).
    pub fn nominal_at(&self) -> Option<Timestamp> {
        self.0.job.spec.nominal_at
    }

    /// The correlation id of the request it came from.
    pub fn correlation_id(&self) -> Option<&str> {
        self.0.job.correlation_id.as_deref()
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u16 {
        self.0.job.attempt()
    }

    /// How many attempts have failed before this one. Attempts lost with their node do not count here, unlike in
    /// [`attempt`](JobContext::attempt). Retry policies use this number.
    pub fn failed(&self) -> u16 {
        self.0.job.failed
    }

    /// The handler id.
    pub fn handler(&self) -> &str {
        &self.0.job.handler
    }

    /// The headers stored with the job.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.0.job.spec.headers
    }

    /// The job's labels.
    pub fn tags(&self) -> &[String] {
        &self.0.job.tags
    }

    /// For a callback or a replay: the job it follows.
    pub fn parent(&self) -> Option<JobId> {
        self.0.job.spec.parent
    }

    /// A security context of the job's tenant, for submitting further jobs.
    pub fn security(&self) -> SecurityContext {
        let mut ctx = SecurityContext::new(self.tenant());
        ctx.user = self.0.job.spec.user.clone();
        ctx.service = self.0.job.spec.service.clone();
        ctx.correlation_id = self.0.job.correlation_id.clone();
        ctx
    }

    /// Fires when the attempt should stop: canceled, timed out, lease lost or node shutting down. A handler that continues
    /// is aborted after a grace period.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.cancel
    }

    /// Whether the lease is lost: another node has the job, and no write of this attempt is accepted any more.
    pub fn lease_lost(&self) -> bool {
        self.0.stop() == Stop::LeaseLost
    }

    /// The last checkpoint, saved by this attempt or an earlier one.
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, serde_json::Error> {
        self.0.checkpoint.lock().as_ref().map(Payload::decode).transpose()
    }

    /// Saves a checkpoint to resume from. It is durable when this returns. Fails with [`Error::LeaseLost`] if another node
    /// has the job.
    pub async fn save_checkpoint<T: Serialize + Sync>(&self, data: &T) -> Result<(), Error> {
        let data = Payload::encode("checkpoint", data, self.0.link.checkpoint_bytes())?;
        let kept = match &self.0.sealer {
            Some(sealer) => sealer.seal(self.job_id(), Kind::Checkpoint, &data),
            None => data.clone(),
        };
        let note = Note { fence: self.fence(), what: Noted::Checkpoint(kept) };
        if let Some(store) = self.0.link.store()
            && (self.lease_lost() || store.note(self.0.node, vec![note]).await? != [true])
        {
            self.0.stop_for(Stop::LeaseLost);
            return Err(Error::LeaseLost(self.job_id()));
        }
        *self.0.checkpoint.lock() = Some(data);
        Ok(())
    }

    /// Reports progress to watchers, 0 to 100. Never waits: of values that come too fast, only the last is saved.
    pub fn report_progress(&self, percent: f32, message: impl Into<String>) {
        let sequence = self.0.progress_sequence.fetch_add(1, Ordering::Relaxed) + 1;
        // Each attempt starts a new thousand-million, so that sequences of later attempts are always higher.
        let sequence = u64::from(self.attempt()) * PROGRESS_PER_ATTEMPT + sequence;
        let percent = if percent.is_finite() { percent.clamp(0.0, 100.0) } else { 0.0 };
        let message = progress_message(message.into());
        let updated_at = self.0.link.now();
        self.0.link.progress(&self.0, Progress { sequence, percent, message, updated_at });
    }

    /// Stores a log line with the job. Never waits. Of too many lines the newest are kept, and of a long line the first
    /// [`LOG_BYTES`] bytes.
    pub fn log(&self, level: LogLevel, message: impl Into<String>) {
        self.0.link.log(&self.0, level, cut(message.into(), LOG_BYTES));
    }

    /// Adds to the cost of this attempt. Recorded once, when the attempt ends, whether it succeeds or fails; not recorded
    /// if the lease is lost.
    pub fn record_cost(&self, cost: Cost) {
        let mut sum = self.0.cost.lock();
        *sum = Some(sum.unwrap_or_default().plus(cost));
    }

    /// Writes an entry about this job into its tenant's audit log, for something that happened outside and cannot be
    /// undone, such as `EMAIL_SENT`. It stays whatever becomes of the job. An attempt that has lost its lease may
    /// still write one: what it did, it did. `action` is in capitals, and none of the engine's own.
    pub async fn audit(&self, action: &str, detail: &str) -> Result<(), Error> {
        check_action(action)?;
        let Some(store) = self.0.link.store() else { return Ok(()) };
        let entry = AuditEntry {
            sequence: 0,
            at: Timestamp::default(),
            actor: self.user_id().unwrap_or_else(|| self.handler()).to_owned(),
            tenant: Some(self.tenant()),
            action: action.to_owned(),
            target: self.job_id().to_string(),
            detail: Some(cut(detail.to_owned(), AUDIT_BYTES)),
        };
        Ok(store.audit(entry).await?)
    }

    /// Saves progress and log lines reported so far, which otherwise happens within moments. Stores call it before a
    /// transaction ends the job, because afterwards no report is accepted.
    pub async fn flush(&self) {
        self.0.link.flush(&self.0).await;
    }

    /// The fence that every write of this attempt must name. For stores.
    pub fn fence(&self) -> Fence {
        Fence { job: self.0.job.id, lease: self.0.job.lease }
    }

    /// The node this attempt runs on. For stores.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// How long the attempt has run.
    pub fn elapsed(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// The write that ends this job as succeeded with `output`. For stores.
    pub fn success<T: Serialize + ?Sized>(&self, output: &T) -> Result<Finish, InvalidInput> {
        let output = Payload::encode("output", output, usize::MAX)?;
        Ok(self.0.link.success(&self.0, output))
    }

    /// The handle with which the crate of the job's store begins a transaction; none for a spawned job and for the memory
    /// store. Handlers call `transaction` or `complete` of that crate. The store itself is not reachable from here, because
    /// its calls are not bound to a tenant:
    ///
    /// ```compile_fail,E0599
    /// # async fn handler(ctx: windlass_core::JobContext) {
    /// ctx.store();
    /// # }
    /// ```
    pub fn transactions(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.0.link.store()?.transactions()
    }

    /// Records that the handler has completed the job inside its own transaction, so that the runtime does not complete it
    /// again. For stores.
    pub fn completed_in_transaction(&self) {
        self.0.stop_for(Stop::Completed);
    }

    /// Records that the store rejected a write of this attempt because its lease is lost. For stores.
    pub fn fence_refused(&self) {
        self.0.stop_for(Stop::LeaseLost);
    }
}

impl std::fmt::Debug for JobContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobContext").field("job", &self.job_id()).field("attempt", &self.attempt()).finish()
    }
}

impl Attempt {
    /// Why it was asked to stop.
    pub(crate) fn stop(&self) -> Stop {
        match self.stop.load(Ordering::Acquire) {
            1 => Stop::Interrupted,
            2 => Stop::TimedOut,
            3 => Stop::Canceled,
            4 => Stop::LeaseLost,
            5 => Stop::Completed,
            _ => Stop::None,
        }
    }

    /// Asks it to stop. A stronger reason replaces a weaker one, never the other way round.
    pub(crate) fn stop_for(&self, why: Stop) {
        self.stop.fetch_max(why as u8, Ordering::AcqRel);
        if why != Stop::Completed {
            let _ = self.stopped_at.set(Instant::now());
            self.cancel.cancel();
        }
    }

    /// Since when it has been asked to stop.
    pub(crate) fn stopped_since(&self) -> Option<Instant> {
        self.stopped_at.get().copied()
    }

    /// Marks an attempt that a worker outside this process carries out: nothing here can stop it.
    pub(crate) fn check_out(&self) {
        let _ = self.checked_out.set(Mutex::default());
    }

    pub(crate) fn checked_out(&self) -> bool {
        self.checked_out.get().is_some()
    }

    /// Its worker may be silent for so long from now on.
    pub(crate) fn hold(&self, silence: Duration) {
        if let Some(hold) = self.checked_out.get() {
            let mut hold = hold.lock();
            (hold.silence, hold.heard) = (Some(silence), Some(Instant::now()));
        }
    }

    /// Its worker was heard of, by the report of this number.
    pub(crate) fn renewed(&self, sequence: u64) {
        if let Some(hold) = self.checked_out.get() {
            let mut hold = hold.lock();
            (hold.heard, hold.sequence) = (Some(Instant::now()), hold.sequence.max(sequence));
        }
    }

    /// Whether its worker was heard of elsewhere since; then it may be silent again for as long as before.
    pub(crate) fn heard_of(&self, sequence: u64) -> bool {
        let new = self.checked_out.get().is_some_and(|hold| sequence > hold.lock().sequence);
        if new {
            self.renewed(sequence);
        }
        new
    }

    /// Whether its worker has been silent for longer than it may.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        let Some(hold) = self.checked_out.get() else { return false };
        let Hold { silence, heard, .. } = *hold.lock();
        matches!((silence, heard), (Some(silence), Some(heard)) if now.saturating_duration_since(heard) >= silence)
    }

    pub(crate) fn fence(&self) -> Fence {
        Fence { job: self.job.id, lease: self.job.lease }
    }

    /// What it has cost so far, if its handler has said so.
    pub(crate) fn cost(&self) -> Option<Cost> {
        *self.cost.lock()
    }

    /// What was saved, by this attempt or before.
    pub(crate) fn saved_checkpoint(&self) -> Option<Payload> {
        self.checkpoint.lock().clone()
    }

    /// Whether its handler has said anything.
    pub(crate) fn has_logged(&self) -> bool {
        self.log_lines.load(Ordering::Relaxed) > 0
    }

    /// The number of the next log line.
    pub(crate) fn next_log_line(&self) -> u64 {
        self.log_lines.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// At most so many bytes of a text, without the NUL that PostgreSQL does not keep.
fn cut(mut text: String, max_bytes: usize) -> String {
    if text.len() > max_bytes {
        let cut = (0..=max_bytes).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        text.truncate(cut);
    }
    text.retain(|c| c != '\0');
    text
}

/// The numbers of progress reports that an attempt has for itself.
pub(crate) const PROGRESS_PER_ATTEMPT: u64 = 1_000_000_000;

/// As much of a progress message as is kept.
pub(crate) fn progress_message(message: String) -> String {
    cut(message, PROGRESS_MESSAGE_BYTES)
}

/// Progress messages are for people; a line or two is enough.
const PROGRESS_MESSAGE_BYTES: usize = 512;
/// The longest detail of an audit entry that a handler writes.
const AUDIT_BYTES: usize = 1024;
/// The longest action.
const ACTION_BYTES: usize = 64;
/// How actions of the engine begin. What they say must be true of the engine.
const ENGINE_ACTIONS: [&str; 7] = ["JOB_", "KEY_", "WEBHOOK_", "QUOTA_", "COST_", "PAUSED", "RESUMED"];

fn check_action(action: &str) -> Result<(), InvalidInput> {
    let plain = action.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    let own = ENGINE_ACTIONS.iter().any(|prefix| action.starts_with(prefix));
    match plain && !own && (1..=ACTION_BYTES).contains(&action.len()) {
        true => Ok(()),
        false => {
            let message = "it must have 1 to 64 capitals, digits and `_`, and not be an action of the engine";
            Err(InvalidInput::new("action", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OPS-11: a handler cannot write what only the engine may say.
    #[test]
    fn actions_of_the_engine_are_not_a_handlers() {
        assert!(check_action("EMAIL_SENT").is_ok() && check_action("X2").is_ok());
        for action in ["", "email", "A B", "JOB_SUCCEEDED", "KEY_CREATED", "PAUSED", "É", &"X".repeat(65)] {
            assert!(check_action(action).is_err(), "{action}");
        }
    }
}
