//! What runs a job: the `JobHandler` trait, plain async functions, and the registry of both. Called by the service when
//! it is built and by `run` for every attempt. Never touches a store.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::config::DEFAULT_QUEUE;
use crate::context::JobContext;
use crate::error::{InvalidInput, JobError, Reason};
use crate::job::Callback;
use crate::payload::{Payload, decode_redacted};
use crate::retry::RetryPolicy;

/// Typed code that runs a kind of job (RUN-1).
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
    /// What it is given.
    type Input: Serialize + DeserializeOwned + Send + 'static;
    /// What it returns.
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

    /// Checks input when it is submitted, beyond its type (SUB-9).
    fn validate(&self, _input: &Self::Input) -> Result<(), InvalidInput> {
        Ok(())
    }

    /// Runs once after a job has succeeded, if [`HandlerOptions::callbacks`] is set. A failure here is recorded and
    /// changes nothing.
    fn on_success(
        &self,
        _ctx: &JobContext,
        _input: Self::Input,
        _output: Self::Output,
    ) -> impl Future<Output = Result<(), JobError>> + Send {
        async { Ok(()) }
    }

    /// Runs once after a job has become a dead letter, if [`HandlerOptions::callbacks`] is set.
    fn on_failure(
        &self,
        _ctx: &JobContext,
        _input: Self::Input,
        _error: JobError,
    ) -> impl Future<Output = Result<(), JobError>> + Send {
        async { Ok(()) }
    }
}

/// How a handler's jobs are run, unless a job says otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HandlerOptions {
    /// When failed attempts are repeated.
    pub retry: RetryPolicy,
    /// How long an attempt may take; the service's default if absent (300 s).
    pub timeout: Option<Duration>,
    /// How long ended jobs are kept; the service's default if absent (14 days).
    pub retention: Option<Duration>,
    /// How many run at once on a node (RUN-11).
    pub concurrency: Option<usize>,
    /// The queue its jobs wait in.
    pub queue: Option<String>,
    /// Whether `on_success` and `on_failure` are wanted. They are jobs of their own, stored with the outcome, so that
    /// each happens exactly once; handlers that do not ask pay nothing.
    pub callbacks: bool,
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

    /// Limits each attempt.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how long ended jobs are kept.
    #[must_use]
    pub fn retention(mut self, keep: Duration) -> Self {
        self.retention = Some(keep);
        self
    }

    /// Limits how many run at once on a node.
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

    /// Asks for `on_success` and `on_failure`.
    #[must_use]
    pub fn callbacks(mut self) -> Self {
        self.callbacks = true;
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
    pub(crate) code: Box<dyn ErasedHandler>,
}

impl Registered {
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
        let registered = Arc::new(Registered { options, code });
        self.handlers.insert(id.to_owned(), registered).is_none()
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Arc<Registered>> {
        self.handlers.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Arc<Registered>)> {
        self.handlers.iter().map(|(id, handler)| (id.as_str(), handler))
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.handlers.keys().cloned().collect();
        ids.sort_unstable();
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

fn encode<T: Serialize>(output: &T) -> Result<Payload, JobError> {
    match serde_json::to_string(output) {
        Ok(text) => Ok(Payload::from_store(text)),
        Err(e) => Err(JobError::of(Reason::Validation, format!("the output could not be written: {e}"))),
    }
}
