//! The errors of the public API, one type per boundary: [`Error`] for callers of the service, [`JobError`] for handlers,
//! [`store::Error`](crate::store::Error) for stores. Every one has a stable code.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::id::JobId;
use crate::model::job::{BatchId, Status};
use crate::operate::failures::Signature;
use crate::quota::QuotaExceeded;
use crate::seal::KeyError;
use crate::store;

/// Why a call on the service failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of the call is wrong; nothing was written. Correct it and call again.
    #[error(transparent)]
    InvalidInput(#[from] InvalidInput),
    /// Items of a batch are wrong; nothing was written.
    #[error("{} of the batch's items are invalid, first: item {}: {}", .0.len(), .0[0].index, .0[0].error)]
    InvalidBatch(Vec<BadItem>),
    /// Neither this process nor any registered node has this handler. Nothing was written.
    #[error("no handler `{0}` is registered")]
    HandlerNotFound(String),
    /// Nobody has or had this handler and no job is for it: its name may be misspelt. Nothing was written. Correct the name,
    /// or call [`Within::force_pause`](crate::Within::force_pause) for a handler that is still to come; a webhook is
    /// added once a node has the handler, or without one.
    #[error("unknown handler `{handler}`: no node has registered it and no job uses it; {}", live_names(.live))]
    HandlerUnknown {
        /// The unknown name.
        handler: String,
        /// The handlers that live nodes have, the first 20 by name.
        live: Vec<String>,
    },
    /// There is no such job in the caller's tenant.
    #[error("job {0} not found")]
    NotFound(JobId),
    /// There is no such schedule in the caller's tenant.
    #[error("schedule `{0}` not found")]
    ScheduleNotFound(String),
    /// The schedule was changed since it was read. Nothing was written; read it and decide again.
    #[error("schedule `{name}` was changed meanwhile: it has version {version} now")]
    ScheduleChanged {
        /// Its name.
        name: String,
        /// The version that it has now.
        version: u64,
    },
    /// There is no such batch in the caller's tenant.
    #[error("batch {} not found", .0.0)]
    BatchNotFound(BatchId),
    /// The batch is sealed: nothing can be added to it. Nothing was written.
    #[error("batch {} is sealed", .0.0)]
    BatchSealed(BatchId),
    /// The job has ended already.
    #[error("job {job} has already ended as {status}")]
    AlreadyFinished {
        /// The job.
        job: JobId,
        /// How it ended.
        status: Status,
    },
    /// The job is not in a state that allows the call.
    #[error("job {job}: {message}")]
    Conflict {
        /// The job.
        job: JobId,
        /// Why the call is not possible now.
        message: String,
    },
    /// A bounded queue is full. Try again after a moment, or slow down.
    #[error("{0} is full")]
    Backpressure(&'static str),
    /// The job that was waited for did not succeed.
    #[error("job {job} ended as {status}: {error}")]
    JobFailed {
        /// The job.
        job: JobId,
        /// How it ended.
        status: Status,
        /// Its last error.
        error: Box<JobError>,
    },
    /// The call took longer than allowed. After a wait that timed out, the job still runs.
    #[error("{0} did not finish in time")]
    Timeout(String),
    /// The attempt no longer owns the job: another node has it, or it was canceled. Stop; nothing was written.
    #[error("job {0}: lease lost")]
    LeaseLost(JobId),
    /// The job's output cannot be deserialized into the caller's type.
    #[error("job {job}: the output does not have the expected type")]
    Output {
        /// The job.
        job: JobId,
        /// The cause.
        source: serde_json::Error,
    },
    /// The job's data is encrypted and this process cannot decrypt it.
    #[error("job {job}: the encrypted payload cannot be read")]
    Sealed {
        /// The job.
        job: JobId,
        /// The cause; it also says whether a retry may help.
        source: KeyError,
    },
    /// The encryption keys are unavailable; nothing was written. Retry if [the error is transient](KeyError::is_transient).
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// It reaches beyond the caller's tenant, which takes [`JobService::operator`](crate::JobService::operator), or beyond
    /// its rights. Nothing was written.
    #[error("{0}")]
    Forbidden(String),
    /// The service has been shut down.
    #[error("the service is shut down")]
    ShutDown,
    /// The call would exceed the tenant's quota; nothing was written. Retry later, or submit less.
    #[error(transparent)]
    QuotaExceeded(#[from] QuotaExceeded),
    /// The store failed.
    #[error(transparent)]
    Store(store::Error),
}

/// Handlers that an error names: enough to see which one was meant.
pub(crate) const HANDLERS_NAMED: usize = 20;

fn live_names(handlers: &[String]) -> String {
    match handlers.is_empty() {
        true => "no live node has a handler".to_owned(),
        false => format!("live nodes have {}", handlers.join(", ")),
    }
}

impl Error {
    /// A stable name for programs: `invalid_input`, `job_not_found`, `backpressure`, …
    pub fn code(&self) -> &'static str {
        match self {
            Error::InvalidInput(_) | Error::InvalidBatch(_) => "invalid_input",
            Error::HandlerNotFound(_) | Error::HandlerUnknown { .. } => "handler_not_found",
            Error::NotFound(_) => "job_not_found",
            Error::ScheduleNotFound(_) => "schedule_not_found",
            Error::ScheduleChanged { .. } => "schedule_changed",
            Error::BatchNotFound(_) => "batch_not_found",
            Error::BatchSealed(_) => "batch_sealed",
            Error::AlreadyFinished { .. } => "already_finished",
            Error::Conflict { .. } => "conflict",
            Error::Backpressure(_) => "backpressure",
            Error::JobFailed { status: Status::Canceled, .. } => "job_canceled",
            Error::JobFailed { .. } => "handler_error",
            Error::Timeout(_) => "job_timeout",
            Error::LeaseLost(_) => "lease_lost",
            Error::Output { .. } => "output_mismatch",
            Error::Sealed { source, .. } | Error::Keys(source) => source.code(),
            Error::Forbidden(_) => "forbidden",
            Error::ShutDown => "shut_down",
            Error::QuotaExceeded(_) => "quota_exceeded",
            Error::Store(error) => error.code(),
        }
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::QuotaExceeded(error) => Error::QuotaExceeded(error),
            error => Error::Store(error),
        }
    }
}

/// A field that cannot be accepted. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("invalid {field}: {message}")]
pub struct InvalidInput {
    /// The field's name, as in the API.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl InvalidInput {
    /// `field` is wrong because of `message`.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        InvalidInput { field: field.into(), message: message.into() }
    }
}

/// An item of a batch that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadItem {
    /// Its index in the batch, counted from 0.
    pub index: usize,
    /// What is wrong with it.
    pub error: InvalidInput,
}

/// Why an attempt of a job failed, as the handler returns it and as the store keeps it. It decides what happens next: a
/// retry, a dead letter, a snooze or a cancellation ([`ErrorKind`]).
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use windlass_core::{Error, HandlerRef, JobContext, JobError, JobService, MemoryStore, Status};
///
/// const MAIL: HandlerRef<String, ()> = HandlerRef::new("mail.send");
///
/// async fn send(_state: (), _ctx: JobContext, to: String) -> Result<(), JobError> {
///     match to.contains('@') {
///         true => Err(JobError::snooze(Duration::from_secs(60))), // the mail server is down: later, costs no attempt
///         false => Err(JobError::terminal("bad_address", format!("`{to}` is not an address"))), // no retry can help
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Error> {
/// let jobs = JobService::builder(Arc::new(MemoryStore::new())).function(MAIL, (), send).start().await?;
/// let ended = MAIL.submit(&jobs, "nowhere").await?.wait(Duration::from_secs(5)).await;
/// let Err(Error::JobFailed { status, error, .. }) = ended else { panic!("it fails") };
/// assert_eq!((status, error.code.as_str()), (Status::DeadLettered, "bad_address"));
/// # jobs.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// With a code of your own, details, and whether a retry may help:
///
/// ```
/// use windlass_core::JobError;
/// let error = JobError::new("quota", "the mailbox is full").with_details(serde_json::json!({ "bytes": 1_048_576 }));
/// assert!(error.is_retryable() && !error.with_retryable(false).is_retryable());
/// ```
///
/// Your own error type can set the code when `?` converts it. It must not implement `std::error::Error`:
///
/// ```
/// use windlass_core::{JobContext, JobError};
///
/// enum MailError { Busy, NoMailbox(String) }
///
/// impl From<MailError> for JobError {
///     fn from(error: MailError) -> Self {
///         match error {
///             MailError::Busy => JobError::new("busy", "the server is busy"),
///             MailError::NoMailbox(to) => JobError::terminal("no_mailbox", format!("there is no mailbox {to}")),
///         }
///     }
/// }
///
/// fn send(to: &str) -> Result<(), MailError> { Err(MailError::NoMailbox(to.to_owned())) }
///
/// async fn handler(_: (), ctx: JobContext, to: String) -> Result<(), JobError> {
///     if ctx.cancellation().is_cancelled() {
///         return Err(JobError::cancelled());
///     }
///     send(&to)?;
///     Ok(())
/// }
/// # let _ = handler;
/// # fn convert() -> Result<(), JobError> { Ok(send("ada")?) }
/// # assert_eq!(convert().unwrap_err().code, "no_mailbox");
/// ```
///
/// `?` converts any `std::error::Error` into a retryable error with the code `processing`:
///
/// ```
/// use windlass_core::JobError;
/// fn read() -> Result<String, JobError> {
///     Ok(std::fs::read_to_string("/nowhere/at/all")?)
/// }
/// let error = read().unwrap_err();
/// assert_eq!((error.code.as_str(), error.is_retryable()), ("processing", true));
/// assert!(!JobError::terminal("bad_address", "no such mailbox").is_retryable());
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobError {
    /// A stable code for programs. [`Reason`] lists the built-in ones.
    pub code: String,
    /// The error and its causes, for people.
    pub message: String,
    /// Structured details for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
    /// What the handler wants to happen next.
    pub kind: ErrorKind,
    /// Groups similar errors. Set when the error is stored; a value set by a handler is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// Retry after the policy's delay while attempts are left.
    Retryable,
    /// Retry, but not before this delay has passed.
    RetryAfter(Duration),
    /// Never retry: a dead letter at once.
    Terminal,
    /// Not a failure: run again after this delay, without using up an attempt.
    Snooze(Duration),
    /// The job is no longer needed: end as canceled, without a dead letter.
    Discard,
}

impl JobError {
    /// A failure with a code for programs and a message for people; retried by the policy unless
    /// [`with_retryable`](JobError::with_retryable) is set to false.
    pub fn new(code: impl Into<String>, message: impl fmt::Display) -> Self {
        JobError::of_kind(code, message, ErrorKind::Retryable)
    }

    fn of_kind(code: impl Into<String>, message: impl fmt::Display, kind: ErrorKind) -> Self {
        JobError { code: code.into(), message: message.to_string(), details: None, kind, signature: None }
    }

    /// A temporary failure; retried by the policy.
    pub fn retryable(message: impl fmt::Display) -> Self {
        JobError::of(Reason::Processing, message)
    }

    /// A permanent failure: the job becomes a dead letter at once.
    pub fn terminal(code: impl Into<String>, message: impl fmt::Display) -> Self {
        JobError::of_kind(code, message, ErrorKind::Terminal)
    }

    /// A failure with a built-in reason; whether it is retried follows from the reason.
    pub fn of(reason: Reason, message: impl fmt::Display) -> Self {
        let kind = if reason.retryable() { ErrorKind::Retryable } else { ErrorKind::Terminal };
        JobError::of_kind(reason.as_str(), message, kind)
    }

    /// Runs the job again after `delay`; uses up no attempt.
    pub fn snooze(delay: Duration) -> Self {
        JobError::of_kind("snoozed", "", ErrorKind::Snooze(delay))
    }

    /// Ends the job as canceled, without a dead letter.
    pub fn discard(message: impl fmt::Display) -> Self {
        JobError::of_kind("discarded", message, ErrorKind::Discard)
    }

    /// The handler stopped because it was asked to. The job ends as canceled; where it was asked to stop for another
    /// reason (a timeout, a shutdown), that one counts.
    pub fn cancelled() -> Self {
        JobError::of_kind(Reason::Canceled.as_str(), "stopped on request", ErrorKind::Discard)
    }

    /// Asks for a retry no earlier than `delay` from now, as a `Retry-After` header does.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.kind = ErrorKind::RetryAfter(delay);
        self
    }

    /// Sets whether another attempt may help; if not, the job becomes a dead letter at once.
    #[must_use]
    pub fn with_retryable(mut self, retryable: bool) -> Self {
        self.kind = if retryable { ErrorKind::Retryable } else { ErrorKind::Terminal };
        self
    }

    /// Adds details for programs.
    #[must_use]
    pub fn with_details(mut self, details: serde_json::Value) -> Self {
        self.details = Some(details);
        self
    }

    /// Names the failure for programs.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = code.into();
        self
    }

    /// Whether another attempt may cure it.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Retryable | ErrorKind::RetryAfter(_))
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl<E: std::error::Error> From<E> for JobError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            message.push_str(": ");
            message.push_str(&source.to_string());
            cause = source.source();
        }
        JobError::retryable(message)
    }
}

/// The built-in reasons of failed attempts and ended jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// What the job works on does not exist.
    NotFound,
    /// What the job works on is done already.
    AlreadyFinished,
    /// No node had the handler for longer than allowed.
    HandlerMissing,
    /// The input is not what the handler expects.
    Validation,
    /// The handler failed.
    Processing,
    /// The last allowed attempt failed.
    MaxRetries,
    /// The node that ran the job was lost.
    NodeUnavailable,
    /// The attempt took longer than its timeout.
    Timeout,
    /// Canceled on request.
    Canceled,
    /// Not started before it expired.
    Expired,
    /// The handler panicked.
    Panic,
    /// A job that it waited for did not succeed.
    ParentFailed,
    /// The job's row holds what cannot be read: something other than Windlass wrote it.
    Unreadable,
}

impl Reason {
    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::NotFound => "not_found",
            Reason::AlreadyFinished => "already_finished",
            Reason::HandlerMissing => "handler_missing",
            Reason::Validation => "validation",
            Reason::Processing => "processing",
            Reason::MaxRetries => "max_retries",
            Reason::NodeUnavailable => "node_unavailable",
            Reason::Timeout => "job_timeout",
            Reason::Canceled => "canceled",
            Reason::Expired => "expired",
            Reason::Panic => "panic",
            Reason::ParentFailed => "parent_failed",
            Reason::Unreadable => "unreadable",
        }
    }

    /// Whether another attempt may cure it.
    pub fn retryable(self) -> bool {
        matches!(self, Reason::Processing | Reason::NodeUnavailable | Reason::Timeout | Reason::Panic)
    }
}
