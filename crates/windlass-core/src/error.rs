//! The errors of the public API, one type per boundary: [`Error`] for callers of the service, [`JobError`] for handlers,
//! [`store::Error`](crate::store::Error) for stores. Every one has a stable code.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failures::Signature;
use crate::id::JobId;
use crate::job::Status;
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
    /// This process knows its handlers and this is not one of them.
    #[error("no handler `{0}` is registered")]
    HandlerNotFound(String),
    /// There is no such job in the caller's tenant.
    #[error("job {0} not found")]
    NotFound(JobId),
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
        /// What stands in the way.
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
    /// What was asked for did not happen in the time allowed. For a wait: the job goes on.
    #[error("{0} did not finish in time")]
    Timeout(String),
    /// The attempt no longer owns the job: another node has it, or it was canceled. Stop; nothing was written.
    #[error("job {0}: the lease is lost")]
    LeaseLost(JobId),
    /// The job's output is not what the caller's type expects.
    #[error("job {job}: the output could not be read")]
    Output {
        /// The job.
        job: JobId,
        /// Why not.
        source: serde_json::Error,
    },
    /// What the job carries is sealed and cannot be opened here.
    #[error("job {job} is sealed")]
    Sealed {
        /// The job.
        job: JobId,
        /// Why it cannot be opened, and whether trying again may help.
        source: KeyError,
    },
    /// The keys to seal with could not be had; nothing was written. Try again if it [may help](KeyError::is_transient).
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The service has been shut down.
    #[error("the service is shut down")]
    ShutDown,
    /// The tenant's quota does not allow it; nothing was written. Try again later, or submit less.
    #[error(transparent)]
    QuotaExceeded(#[from] QuotaExceeded),
    /// The store failed.
    #[error(transparent)]
    Store(store::Error),
}

impl Error {
    /// A stable name for programs: `invalid_input`, `job_not_found`, `backpressure`, …
    pub fn code(&self) -> &'static str {
        match self {
            Error::InvalidInput(_) | Error::InvalidBatch(_) => "invalid_input",
            Error::HandlerNotFound(_) => "handler_not_found",
            Error::NotFound(_) => "job_not_found",
            Error::AlreadyFinished { .. } => "already_finished",
            Error::Conflict { .. } => "conflict",
            Error::Backpressure(_) => "backpressure",
            Error::JobFailed { status: Status::Canceled, .. } => "job_canceled",
            Error::JobFailed { .. } => "handler_error",
            Error::Timeout(_) => "job_timeout",
            Error::LeaseLost(_) => "lease_lost",
            Error::Output { .. } => "output_mismatch",
            Error::Sealed { source, .. } | Error::Keys(source) => source.code(),
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
    /// What is wrong with it, and what would be right.
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
    /// Its place in the batch, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub error: InvalidInput,
}

/// Why an attempt of a job failed, as a handler returns it and as it is kept.
///
/// Any `std::error::Error` becomes a retryable one by `?`:
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
    /// A stable name for programs. The built-in ones are those of [`Reason`].
    pub code: String,
    /// For people: the error and its causes.
    pub message: String,
    /// Anything more, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
    /// What the handler wants to happen next.
    pub kind: ErrorKind,
    /// What groups it with its like (BEY-3). Set when the error is stored; what a handler sets is replaced.
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
    /// Retry, but not before this long.
    RetryAfter(Duration),
    /// Never retry: a dead letter at once.
    Terminal,
    /// Not a failure: run again after this long, without costing an attempt.
    Snooze(Duration),
    /// Not wanted any more: end as canceled, without a dead letter.
    Discard,
}

impl JobError {
    fn new(code: impl Into<String>, message: impl fmt::Display, kind: ErrorKind) -> Self {
        JobError { code: code.into(), message: message.to_string(), details: None, kind, signature: None }
    }

    /// A failure that may go away by itself.
    pub fn retryable(message: impl fmt::Display) -> Self {
        JobError::of(Reason::Processing, message)
    }

    /// A failure that no retry will cure; the job becomes a dead letter at once.
    pub fn terminal(code: impl Into<String>, message: impl fmt::Display) -> Self {
        JobError::new(code, message, ErrorKind::Terminal)
    }

    /// A failure with a built-in reason; whether it is retried follows from the reason.
    pub fn of(reason: Reason, message: impl fmt::Display) -> Self {
        let kind = if reason.retryable() { ErrorKind::Retryable } else { ErrorKind::Terminal };
        JobError::new(reason.as_str(), message, kind)
    }

    /// Run again after `delay`; costs no attempt (ERR-7).
    pub fn snooze(delay: Duration) -> Self {
        JobError::new("snoozed", "", ErrorKind::Snooze(delay))
    }

    /// Give up for good, without a dead letter (ERR-7).
    pub fn discard(message: impl fmt::Display) -> Self {
        JobError::new("discarded", message, ErrorKind::Discard)
    }

    /// Asks for a retry no earlier than `delay` from now, as a `Retry-After` header does.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.kind = ErrorKind::RetryAfter(delay);
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

/// The built-in reasons of failed attempts and ended jobs (ERR-2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// What the job works on does not exist.
    NotFound,
    /// What the job works on is done already.
    AlreadyFinished,
    /// No node had the handler for too long.
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
        }
    }

    /// Whether another attempt may cure it.
    pub fn retryable(self) -> bool {
        matches!(self, Reason::Processing | Reason::NodeUnavailable | Reason::Timeout | Reason::Panic)
    }
}
