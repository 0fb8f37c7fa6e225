//! Typed references to handlers, and the callers that use them: what most programs submit and wait with. Thin: every call
//! goes on to `service`. Never names a tenant by itself but the root.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::error::Error;
use crate::model::id::JobId;
use crate::model::job::{BatchId, JobRecord, Status, SubmitOptions};
use crate::model::payload::Payload;
use crate::model::tenant::{SecurityContext, TenantId};
use crate::service::JobService;
use crate::store::{CancelReply, Submitted};

/// The name of a handler with the types of its input and output, so that the compiler checks that submitters and
/// the function agree on them. Declare it as a constant and use it on both sides.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use windlass_core::{HandlerRef, JobContext, JobError, JobService, MemoryStore};
///
/// const DOUBLE: HandlerRef<u32, u32> = HandlerRef::new("math.double");
///
/// async fn double(_state: (), _ctx: JobContext, n: u32) -> Result<u32, JobError> {
///     Ok(2 * n)
/// }
///
/// let store = Arc::new(MemoryStore::new());
/// let jobs = JobService::builder(store).function(DOUBLE, (), double).start().await?;
/// let job = DOUBLE.submit(&jobs, 21_u32).await?;
/// assert_eq!(job.wait(Duration::from_secs(5)).await?, 42);
/// # jobs.shutdown().await;
/// # Ok::<_, windlass_core::Error>(()) }).unwrap();
/// ```
pub struct HandlerRef<I, O> {
    id: &'static str,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> HandlerRef<I, O> {
    /// A reference to the handler `id`.
    pub const fn new(id: &'static str) -> Self {
        HandlerRef { id, types: PhantomData }
    }

    /// The name of the handler.
    pub const fn id(&self) -> &'static str {
        self.id
    }
}

impl<I: Serialize, O: DeserializeOwned> HandlerRef<I, O> {
    /// Stores a job; durable when this returns. Submitted through a [`JobService`] the job belongs to the root tenant;
    /// through [`JobService::of`] to another.
    pub async fn submit(self, by: &impl Caller, input: impl Into<I>) -> Result<SubmittedJob<O>, Error> {
        self.submit_with(by, input, SubmitOptions::new()).await
    }

    /// The same with options.
    pub async fn submit_with(
        self,
        by: &impl Caller,
        input: impl Into<I>,
        options: SubmitOptions,
    ) -> Result<SubmittedJob<O>, Error> {
        let input: I = input.into();
        let (jobs, ctx) = (by.jobs(), by.context());
        let submitted = jobs.submit_named(&ctx, self.id, &input, options).await?;
        Ok(SubmittedJob::new(jobs, ctx, submitted))
    }

    /// Stores many jobs with one round trip and one batch id, in the order of their inputs: all of them, or none and an
    /// error that names every bad input.
    pub async fn submit_many(
        self,
        by: &impl Caller,
        inputs: impl IntoIterator<Item = I>,
        options: SubmitOptions,
    ) -> Result<(BatchId, Vec<SubmittedJob<O>>), Error> {
        let (jobs, ctx) = (by.jobs(), by.context());
        let limit = jobs.config().limits.payload_bytes;
        let payloads = inputs.into_iter().map(|input| Payload::encode("input", &input, limit)).collect();
        let (batch, stored) = jobs.submit_payloads(&ctx, self.id, payloads, options, false).await?;
        let job = |submitted| SubmittedJob::new(jobs, ctx.clone(), submitted);
        Ok((batch, stored.into_iter().flatten().map(job).collect()))
    }

    /// A job of this handler that was submitted before, by its id.
    pub fn job(self, by: &impl Caller, id: JobId) -> SubmittedJob<O> {
        SubmittedJob::new(by.jobs(), by.context(), Submitted { id, duplicate: true })
    }
}

impl<I, O> Clone for HandlerRef<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for HandlerRef<I, O> {}

impl<I, O> fmt::Debug for HandlerRef<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandlerRef").field(&self.id).finish()
    }
}

/// What a handler can be added under: a plain name, or a [`HandlerRef`] whose types the function must have.
pub trait HandlerName<I, O> {
    /// The name.
    fn name(&self) -> &str;
}

impl<I, O> HandlerName<I, O> for &str {
    fn name(&self) -> &str {
        self
    }
}

impl<I, O> HandlerName<I, O> for &String {
    fn name(&self) -> &str {
        self
    }
}

impl<I, O> HandlerName<I, O> for HandlerRef<I, O> {
    fn name(&self) -> &str {
        self.id
    }
}

/// The caller of a submit: a [`JobService`] for the root tenant, or a [`TenantJobs`].
pub trait Caller: Sync {
    /// The service that stores and runs.
    fn jobs(&self) -> &JobService;
    /// The tenant and user that submitted jobs belong to.
    fn context(&self) -> SecurityContext;
}

impl Caller for JobService {
    fn jobs(&self) -> &JobService {
        self
    }

    fn context(&self) -> SecurityContext {
        SecurityContext::new(TenantId::ROOT)
    }
}

/// A service as one tenant, or one user of it, uses it: [`JobService::of`].
#[derive(Clone)]
pub struct TenantJobs {
    jobs: JobService,
    ctx: SecurityContext,
}

impl Caller for TenantJobs {
    fn jobs(&self) -> &JobService {
        &self.jobs
    }

    fn context(&self) -> SecurityContext {
        self.ctx.clone()
    }
}

impl fmt::Debug for TenantJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TenantJobs").field(&self.ctx.tenant).finish()
    }
}

impl JobService {
    /// The service for one tenant, or for one user of it. Jobs submitted through it belong to that tenant, and no other
    /// tenant sees them. Programs with one tenant do not need it.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use std::sync::Arc;
    /// use windlass_core::{HandlerRef, JobService, MemoryStore, TenantId};
    /// const MAIL: HandlerRef<String, ()> = HandlerRef::new("mail.send");
    /// # let jobs = JobService::builder(Arc::new(MemoryStore::new())).remote_handler("mail.send").start().await?;
    /// let acme = jobs.of(TenantId::parse("0199a1a0-0000-7000-8000-000000000001").expect("a UUID"));
    /// let job = MAIL.submit(&acme, "ada@example.org").await?;
    /// assert!(MAIL.job(&jobs, job.id()).record().await.is_err(), "the root tenant does not see it");
    /// # jobs.shutdown().await;
    /// # Ok::<_, windlass_core::Error>(()) }).unwrap();
    /// ```
    pub fn of(&self, caller: impl Into<SecurityContext>) -> TenantJobs {
        TenantJobs { jobs: self.clone(), ctx: caller.into() }
    }
}

/// A stored job whose output has a type.
#[must_use = "the job is stored; call `wait` for its output, or `id` to find it again"]
pub struct SubmittedJob<O> {
    jobs: JobService,
    ctx: SecurityContext,
    submitted: Submitted,
    output: PhantomData<fn() -> O>,
}

impl<O: DeserializeOwned> SubmittedJob<O> {
    fn new(jobs: &JobService, ctx: SecurityContext, submitted: Submitted) -> Self {
        SubmittedJob { jobs: jobs.clone(), ctx, submitted, output: PhantomData }
    }

    /// Its id, to find it again in any process.
    pub fn id(&self) -> JobId {
        self.submitted.id
    }

    /// Whether an earlier submit with the same key had stored it already.
    pub fn is_duplicate(&self) -> bool {
        self.submitted.duplicate
    }

    /// Waits until the job has ended and returns its output, or the error it ended with.
    pub async fn wait(&self, at_most: Duration) -> Result<O, Error> {
        self.jobs.wait_for(&self.ctx, self.id(), at_most).await
    }

    /// Its status now.
    pub async fn status(&self) -> Result<Status, Error> {
        self.jobs.status(&self.ctx, self.id()).await
    }

    /// The job's record.
    pub async fn record(&self) -> Result<JobRecord, Error> {
        self.jobs.get(&self.ctx, self.id()).await
    }

    /// Cancels it.
    pub async fn cancel(&self, reason: &str) -> Result<CancelReply, Error> {
        self.jobs.cancel(&self.ctx, self.id(), reason).await
    }
}

impl<O> fmt::Debug for SubmittedJob<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SubmittedJob").field(&self.submitted.id).finish()
    }
}
