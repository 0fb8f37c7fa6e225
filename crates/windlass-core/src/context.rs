//! What a running attempt can see and do: `JobContext`. Made by `run` for each attempt, used by handlers.
//! Never decides what becomes of the job.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, InvalidInput};
use crate::id::JobId;
use crate::job::{ClaimedJob, Progress};
use crate::logs::{LOG_BYTES, LogLevel};
use crate::payload::Payload;
use crate::seal::{Kind, Sealer, Seals};
use crate::store::{Fence, Finish, NodeId, Store};
use crate::tenant::{SecurityContext, TenantId};
use crate::usage::Cost;

/// The attempt a handler runs in (RUN-8). Cheap to clone.
#[derive(Clone)]
pub struct JobContext(Arc<Attempt>);

/// Everything one attempt shares between its handler and the runtime.
pub(crate) struct Attempt {
    pub(crate) job: ClaimedJob,
    pub(crate) node: NodeId,
    pub(crate) keep: Duration,
    pub(crate) started: Instant,
    pub(crate) cancel: CancellationToken,
    stop: AtomicU8,
    stopped_at: OnceLock<Instant>,
    checked_out: AtomicBool,
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

/// What a context needs from the runtime around it.
pub(crate) trait AttemptLink: Send + Sync {
    /// Where the job is kept; none for jobs that are kept nowhere.
    fn store(&self) -> Option<&Arc<dyn Store>>;
    /// What opens secrets that are kept sealed; none for jobs that are kept nowhere.
    fn seals(&self) -> Option<&Seals> {
        None
    }
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
        job: ClaimedJob,
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
            checked_out: AtomicBool::new(false),
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

    /// Who submitted it.
    pub fn user(&self) -> Option<&str> {
        self.0.job.spec.user.as_deref()
    }

    /// What ties it to the request it came from.
    pub fn correlation_id(&self) -> Option<&str> {
        self.0.job.correlation_id.as_deref()
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u16 {
        self.0.job.attempt()
    }

    /// The handler id.
    pub fn handler(&self) -> &str {
        &self.0.job.handler
    }

    /// What travels with the job.
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

    /// A caller of the job's tenant, for submitting further jobs.
    pub fn security(&self) -> SecurityContext {
        let mut ctx = SecurityContext::new(self.tenant());
        ctx.user = self.0.job.spec.user.clone();
        ctx.correlation_id = self.0.job.correlation_id.clone();
        ctx
    }

    /// Fires when the attempt should stop: canceled, timed out, lease lost or node shutting down. A handler that goes on
    /// is aborted after a grace period.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.cancel
    }

    /// Whether the job has been given to another node, so that nothing this attempt writes is accepted any more.
    pub fn lease_lost(&self) -> bool {
        self.0.stop() == Stop::LeaseLost
    }

    /// What an earlier attempt saved, or this one.
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, serde_json::Error> {
        self.0.checkpoint.lock().as_ref().map(Payload::decode).transpose()
    }

    /// Saves a point to resume from. Durable when it returns; [`Error::LeaseLost`] when the job belongs to someone else.
    pub async fn save_checkpoint<T: Serialize + Sync>(&self, data: &T) -> Result<(), Error> {
        let data = Payload::encode("checkpoint", data, self.0.link.checkpoint_bytes())?;
        let kept = match &self.0.sealer {
            Some(sealer) => sealer.seal(self.job_id(), Kind::Checkpoint, &data),
            None => data.clone(),
        };
        if let Some(store) = self.0.link.store()
            && (self.lease_lost() || !store.save_checkpoint(self.0.node, self.fence(), kept).await?)
        {
            self.0.stop_for(Stop::LeaseLost);
            return Err(Error::LeaseLost(self.job_id()));
        }
        *self.0.checkpoint.lock() = Some(data);
        Ok(())
    }

    /// Tells watchers how far the job has come, 0 to 100. Never waits: a value that comes too fast replaces the one
    /// before it.
    pub fn report_progress(&self, percent: f32, message: impl Into<String>) {
        let sequence = self.0.progress_sequence.fetch_add(1, Ordering::Relaxed) + 1;
        // Each attempt starts a new thousand-million, so that sequences of later attempts are always higher.
        let sequence = u64::from(self.attempt()) * 1_000_000_000 + sequence;
        let percent = if percent.is_finite() { percent.clamp(0.0, 100.0) } else { 0.0 };
        let message = cut(message.into(), PROGRESS_MESSAGE_BYTES);
        self.0.link.progress(&self.0, Progress { sequence, percent, message });
    }

    /// Keeps a line with the job, for people who look at it (BEY-7). Never waits: of too many lines the newest are kept,
    /// and of a long line its first [`LOG_BYTES`].
    pub fn log(&self, level: LogLevel, message: impl Into<String>) {
        self.0.link.log(&self.0, level, cut(message.into(), LOG_BYTES));
    }

    /// Adds to what this attempt costs (OPS-6). Recorded once, with the end of the attempt, whatever becomes of the job;
    /// not if the lease is lost.
    pub fn record_cost(&self, cost: Cost) {
        let mut sum = self.0.cost.lock();
        *sum = Some(sum.unwrap_or_default().plus(cost));
    }

    /// Saves what the attempt has reported so far, which otherwise follows within moments. Called by the stores'
    /// transactions, which end the job: afterwards nothing more is accepted.
    pub async fn flush(&self) {
        self.0.link.flush(&self.0).await;
    }

    /// What writes of this attempt must name. For store-specific transactions.
    pub fn fence(&self) -> Fence {
        Fence { job: self.0.job.id, lease: self.0.job.lease }
    }

    /// The node this attempt runs on. For store-specific transactions.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// How long the attempt has run.
    pub fn elapsed(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// What ends this job as succeeded with `output`. For store-specific transactions (RUN-9).
    pub fn success<T: Serialize + ?Sized>(&self, output: &T) -> Result<Finish, InvalidInput> {
        let output = Payload::encode("output", output, usize::MAX)?;
        Ok(self.0.link.success(&self.0, output))
    }

    /// The store the job is kept in, for its store-specific abilities; none for a spawned job.
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.0.link.store()
    }

    /// Takes note that the handler has completed the job inside its own transaction (RUN-9), so that the runtime does
    /// not do it again. Called by the stores' transactions.
    pub fn completed_in_transaction(&self) {
        self.0.stop_for(Stop::Completed);
    }

    /// Takes note that a write of this attempt was refused. Called by the stores' transactions.
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
        self.checked_out.store(true, Ordering::Release);
    }

    pub(crate) fn checked_out(&self) -> bool {
        self.checked_out.load(Ordering::Acquire)
    }

    pub(crate) fn fence(&self) -> Fence {
        Fence { job: self.job.id, lease: self.job.lease }
    }

    /// What it has cost so far, if its handler has said so.
    pub(crate) fn cost(&self) -> Option<Cost> {
        *self.cost.lock()
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

/// Progress messages are for people; a line or two is enough.
const PROGRESS_MESSAGE_BYTES: usize = 512;
