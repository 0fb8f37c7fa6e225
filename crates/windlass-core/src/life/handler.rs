//! What runs a job: the `JobHandler` trait, plain async functions, and the registry of both. Called by the service when
//! it is built and by `run` for every attempt. Never touches a store.

use std::any::TypeId;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use foldhash::HashMap;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::admin::webhook::WEBHOOK_HANDLER;
use crate::config::{DEFAULT_QUEUE, NO_TIMEOUT};
use crate::life::context::JobContext;
use crate::model::error::{InvalidInput, JobError, Reason};
use crate::model::job::{Callback, ClaimedJob};
use crate::model::payload::{Payload, decode_redacted};
use crate::model::retry::RetryPolicy;
use crate::store::Transition;

/// Typed code that runs a kind of job.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use windlass_core::{JobContext, JobError, JobHandler};
///
/// #[derive(Serialize, Deserialize)]
/// struct Resize { picture: String, width: u32 }
///
/// struct Resizer;
///
/// impl JobHandler for Resizer {
///     const ID: &'static str = "pictures.resize";
///     type Input = Resize;
///     type Output = u64;
///
///     async fn execute(&self, ctx: &JobContext, input: Resize) -> Result<u64, JobError> {
///         ctx.report_progress(50.0, format!("resizing {}", input.picture));
///         Ok(u64::from(input.width))
///     }
/// }
/// ```
pub trait JobHandler: Send + Sync + 'static {
    /// The handler id jobs are addressed to, such as `reports.generate`.
    const ID: &'static str;
    /// The input of its jobs.
    type Input: Serialize + DeserializeOwned + Send + 'static;
    /// The output of its jobs.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// Runs one attempt.
    fn execute(
        &self,
        ctx: &JobContext,
        input: Self::Input,
    ) -> impl Future<Output = Result<Self::Output, JobError>> + Send;

    /// Timeout, retries, retention and more; read once, when it is registered.
    fn options(&self) -> HandlerOptions {
        HandlerOptions::default()
    }

    /// Checks input when it is submitted, beyond its type.
    fn validate(&self, _input: &Self::Input) -> Result<(), InvalidInput> {
        Ok(())
    }

    /// Runs once after a job has succeeded, as a separate job that is stored with the outcome. A failure here is recorded
    /// and does not change the outcome. Costs nothing for handlers that do not implement it.
    fn on_success(
        &self,
        _ctx: &JobContext,
        _input: Self::Input,
        _output: Self::Output,
    ) -> impl Future<Output = Result<(), JobError>> + Send {
        NoCallback
    }

    /// Runs once after a job has become a dead letter, like [`on_success`](JobHandler::on_success).
    fn on_failure(
        &self,
        _ctx: &JobContext,
        _input: Self::Input,
        _error: JobError,
    ) -> impl Future<Output = Result<(), JobError>> + Send {
        NoCallback
    }
}

/// What a callback returns that a handler does not have. By this type, and by no setting that could be forgotten, the
/// registry knows which callbacks there are.
struct NoCallback;

impl Future for NoCallback {
    type Output = Result<(), JobError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(()))
    }
}

/// Which callbacks a handler has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Callbacks {
    pub(crate) on_success: bool,
    pub(crate) on_failure: bool,
}

impl Callbacks {
    fn of<H: JobHandler>() -> Self {
        Callbacks {
            on_success: is_written(
                |handler: &'static H, ctx: &'static JobContext, input: H::Input, output: H::Output| {
                    handler.on_success(ctx, input, output)
                },
            ),
            on_failure: is_written(
                |handler: &'static H, ctx: &'static JobContext, input: H::Input, error: JobError| {
                    handler.on_failure(ctx, input, error)
                },
            ),
        }
    }
}

/// Whether a callback is more than the trait's own. It is never called: the type of what it would return says it.
fn is_written<A, B, C, D, F: Future + 'static>(_: impl FnOnce(A, B, C, D) -> F) -> bool {
    TypeId::of::<F>() != TypeId::of::<NoCallback>()
}

/// How a handler's jobs run; [`SubmitOptions`](crate::SubmitOptions) can override some of it for one job.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HandlerOptions {
    /// When failed attempts are repeated.
    pub retry: RetryPolicy,
    /// How long an attempt may take, or [`NO_TIMEOUT`]; the service's default if absent (300 s).
    pub timeout: Option<Duration>,
    /// How long ended jobs are kept; the service's default if absent (14 days).
    pub retention: Option<Duration>,
    /// How long dead letters are kept that are neither replayed nor purged; the service's default if absent (forever).
    pub dead_letter_retention: Option<Duration>,
    /// Whether each success writes an audit entry that outlives the job; false by default. Permanent failures always write
    /// one. Stored jobs only.
    pub audit_success: bool,
    /// The maximum number that run at once on a node.
    pub concurrency: Option<usize>,
    /// The queue its jobs wait in.
    pub queue: Option<String>,
    /// Whether its jobs are stored, so that they survive the process; true by default. If false, they run in the
    /// process that submits them, like [spawned](crate::JobService::spawn) closures: nothing is written, and the submit
    /// fails with [`Error::Backpressure`](crate::Error::Backpressure) when too many wait.
    pub restartable: bool,
}

impl Default for HandlerOptions {
    fn default() -> Self {
        HandlerOptions {
            retry: RetryPolicy::default(),
            timeout: None,
            retention: None,
            dead_letter_retention: None,
            audit_success: false,
            concurrency: None,
            queue: None,
            restartable: true,
        }
    }
}

impl HandlerOptions {
    /// The defaults.
    pub fn new() -> Self {
        HandlerOptions::default()
    }

    /// Sets when failed attempts are repeated.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Sets the timeout of each attempt; `None` for no timeout.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = Some(timeout.into().unwrap_or(NO_TIMEOUT));
        self
    }

    /// Sets how long ended jobs are kept.
    #[must_use]
    pub fn retention(mut self, keep: Duration) -> Self {
        self.retention = Some(keep);
        self
    }

    /// Sets how long dead letters are kept that are neither replayed nor purged.
    #[must_use]
    pub fn dead_letter_retention(mut self, keep: Duration) -> Self {
        self.dead_letter_retention = Some(keep);
        self
    }

    /// Sets whether each success writes an audit entry that outlives the job.
    #[must_use]
    pub fn audit_success(mut self, audit: bool) -> Self {
        self.audit_success = audit;
        self
    }

    /// Sets the maximum number that run at once on a node.
    #[must_use]
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.concurrency = Some(jobs.max(1));
        self
    }

    /// Chooses the queue.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Sets whether jobs are stored and survive the process.
    #[must_use]
    pub fn restartable(mut self, restartable: bool) -> Self {
        self.restartable = restartable;
        self
    }
}

/// The handlers a process has.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    handlers: HashMap<String, Arc<Registered>>,
}

/// A handler with its types erased, and its options.
pub(crate) struct Registered {
    pub(crate) options: HandlerOptions,
    pub(crate) callbacks: Callbacks,
    pub(crate) code: Box<dyn ErasedHandler>,
}

impl Registered {
    /// Whether an outcome of a job has a callback.
    pub(crate) fn has_callback(&self, job: &ClaimedJob, transition: &Transition) -> bool {
        let written = match transition {
            Transition::Succeed { .. } => self.callbacks.on_success,
            Transition::DeadLetter { .. } => self.callbacks.on_failure,
            _ => false,
        };
        // A callback has none itself.
        written && job.spec.callback.is_none()
    }

    /// Whether any outcome of its jobs has a callback.
    pub(crate) fn has_callbacks(&self) -> bool {
        self.callbacks.on_success || self.callbacks.on_failure
    }

    /// The queue its jobs wait in. A handler with a limit has a queue of its own, so that its waiting jobs never stand
    /// in front of others that could run.
    pub(crate) fn queue<'a>(&'a self, id: &'a str) -> &'a str {
        match (&self.options.concurrency, &self.options.queue) {
            (Some(_), _) => id,
            (None, Some(queue)) => queue,
            (None, None) => DEFAULT_QUEUE,
        }
    }
}

impl Registry {
    /// Adds a handler; false if its id is taken.
    pub(crate) fn add(&mut self, id: &str, options: HandlerOptions, code: Box<dyn ErasedHandler>) -> bool {
        let registered = Arc::new(Registered { options, callbacks: code.callbacks(), code });
        self.handlers.insert(id.to_owned(), registered).is_none()
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Arc<Registered>> {
        self.handlers.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Arc<Registered>)> {
        self.handlers.iter().map(|(id, handler)| (id.as_str(), handler))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.handlers.is_empty()
    }

    /// Whether there are handlers of users: calls of webhooks are the engine's own.
    pub(crate) fn has_users(&self) -> bool {
        self.handlers.keys().any(|id| id != WEBHOOK_HANDLER)
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.handlers.keys().cloned().collect();
        ids.sort_unstable();
        ids
    }

    /// Those whose jobs other processes can store for this one.
    pub(crate) fn ids_of_stored(&self) -> Vec<String> {
        let mut ids = self.ids();
        ids.retain(|id| self.handlers[id].options.restartable);
        ids
    }
}

/// A handler whose input and output are JSON.
pub(crate) trait ErasedHandler: Send + Sync {
    /// Runs one attempt.
    fn run<'a>(&'a self, ctx: &'a JobContext, input: &'a Payload) -> BoxFuture<'a, Result<Payload, JobError>>;
    /// Runs a callback whose input is a [`CallbackInput`].
    fn call_back<'a>(
        &'a self,
        ctx: &'a JobContext,
        which: Callback,
        input: &'a Payload,
    ) -> BoxFuture<'a, Result<(), JobError>>;
    /// Checks input when it is submitted.
    fn check(&self, input: &Payload) -> Result<(), InvalidInput>;
    /// Which callbacks it has.
    fn callbacks(&self) -> Callbacks {
        Callbacks::default()
    }
}

/// What a callback job carries: the parent's input and how it ended.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct CallbackInput {
    pub(crate) input: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<JobError>,
}

/// A [`JobHandler`] behind JSON.
pub(crate) struct Typed<H>(pub(crate) H);

impl<H: JobHandler> ErasedHandler for Typed<H> {
    fn run<'a>(&'a self, ctx: &'a JobContext, input: &'a Payload) -> BoxFuture<'a, Result<Payload, JobError>> {
        Box::pin(async move {
            let output = self.0.execute(ctx, decode(input.as_str())?).await?;
            encode(&output)
        })
    }

    fn call_back<'a>(
        &'a self,
        ctx: &'a JobContext,
        which: Callback,
        input: &'a Payload,
    ) -> BoxFuture<'a, Result<(), JobError>> {
        Box::pin(async move {
            let parts: CallbackInput = decode(input.as_str())?;
            let input = decode(parts.input.get())?;
            match which {
                Callback::OnSuccess => {
                    let output = parts.output.as_deref().map_or("null", RawValue::get);
                    self.0.on_success(ctx, input, decode(output)?).await
                }
                Callback::OnFailure => {
                    let error = parts.error.unwrap_or_else(|| JobError::retryable("unknown"));
                    self.0.on_failure(ctx, input, error).await
                }
            }
        })
    }

    fn check(&self, input: &Payload) -> Result<(), InvalidInput> {
        let input: H::Input = input.decode().map_err(|e| InvalidInput::new("input", e.to_string()))?;
        self.0.validate(&input)
    }

    fn callbacks(&self) -> Callbacks {
        Callbacks::of::<H>()
    }
}

/// A plain async function with its state.
pub(crate) struct Function<F, S, I, O> {
    pub(crate) function: F,
    pub(crate) state: S,
    pub(crate) types: PhantomData<fn(I) -> O>,
}

impl<F, Fut, S, I, O> ErasedHandler for Function<F, S, I, O>
where
    F: Fn(S, JobContext, I) -> Fut + Send + Sync,
    Fut: Future<Output = Result<O, JobError>> + Send,
    S: Clone + Send + Sync,
    I: DeserializeOwned + Send,
    O: Serialize + Send,
{
    fn run<'a>(&'a self, ctx: &'a JobContext, input: &'a Payload) -> BoxFuture<'a, Result<Payload, JobError>> {
        Box::pin(async move {
            let input = decode(input.as_str())?;
            let output = (self.function)(self.state.clone(), ctx.clone(), input).await?;
            encode(&output)
        })
    }

    fn call_back<'a>(&'a self, _: &'a JobContext, _: Callback, _: &'a Payload) -> BoxFuture<'a, Result<(), JobError>> {
        Box::pin(async { Ok(()) })
    }

    fn check(&self, input: &Payload) -> Result<(), InvalidInput> {
        input.decode::<I>().map(drop).map_err(|e| InvalidInput::new("input", e.to_string()))
    }
}

/// Input that cannot be read will not become readable by a retry.
fn decode<T: DeserializeOwned>(text: &str) -> Result<T, JobError> {
    decode_redacted(text).map_err(|e| JobError::of(Reason::Validation, format!("the input could not be read: {e}")))
}

pub(crate) fn encode<T: Serialize>(output: &T) -> Result<Payload, JobError> {
    match serde_json::to_string(output) {
        Ok(text) => Ok(Payload::from_store(text)),
        Err(e) => Err(JobError::of(Reason::Validation, format!("the output could not be written: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handler with the callbacks that are given.
    macro_rules! handler {
        ($name:ident { $($callback:item)* }) => {
            struct $name;
            impl JobHandler for $name {
                const ID: &'static str = "h";
                type Input = i64;
                type Output = i64;
                async fn execute(&self, _: &JobContext, n: i64) -> Result<i64, JobError> {
                    Ok(n)
                }
                $($callback)*
            }
        };
    }

    handler!(Plain {});
    handler!(Glad {
        async fn on_success(&self, _: &JobContext, _: i64, _: i64) -> Result<(), JobError> {
            Ok(())
        }
    });
    handler!(Sorry {
        fn on_failure(&self, _: &JobContext, _: i64, _: JobError) -> impl Future<Output = Result<(), JobError>> + Send {
            std::future::ready(Ok(()))
        }
    });

    /// OPS-12: which callbacks a handler has is known by its type, and nobody has to say so.
    #[test]
    fn callbacks_are_known_by_the_type() {
        let callbacks = |on_success, on_failure| Callbacks { on_success, on_failure };
        assert_eq!(Typed(Plain).callbacks(), callbacks(false, false), "and pays nothing");
        assert_eq!(Typed(Glad).callbacks(), callbacks(true, false));
        assert_eq!(Typed(Sorry).callbacks(), callbacks(false, true));
    }
}
