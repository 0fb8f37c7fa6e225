//! Batches: many jobs that are added in parts, counted as they end, and followed by one job when all have. The types users
//! write and the calls of the service; `settle.rs` completes them.

use std::time::Duration;

use futures_util::Stream;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::life::handler_ref::{Caller, HandlerRef};
use crate::life::submit::{Wanted, check_name, check_submit_unreserved, check_unreserved, number_key, prepare};
use crate::model::clock::Timestamp;
use crate::model::error::{BadItem, Error, InvalidInput};
use crate::model::id::JobId;
use crate::model::job::{BatchId, NewJob, SubmitOptions};
use crate::model::payload::Payload;
use crate::model::tenant::{SecurityContext, TenantId};
use crate::node::Worker;
use crate::operate::bulk::{Bulk, BulkAction, BulkOptions};
use crate::seal::Kind;
use crate::service::JobService;
use crate::store::{
    self, BATCHES_MAX, BatchAsk, BatchCounts, BatchOpened, BatchRecord, NewBatch, NewPart, PartAdded, Submitted,
};
use crate::{DEFAULT_QUEUE, JobFilter};

/// How many batches a page has at most.
pub const BATCHES_LISTED: usize = 200;

/// How often a watched batch is looked at: people see a bar move, and a store is asked twice a second for each watcher.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// The service that callbacks of batches are submitted by.
const SERVICE: &str = "windlass";

/// What the callback of a batch gets as its input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BatchDone<T> {
    /// What was given with the callback when the batch was opened.
    pub of: T,
    /// The batch.
    pub batch: BatchId,
    /// Its name.
    pub name: String,
    /// How its jobs ended.
    pub counts: BatchCounts,
}

/// What is stored of a callback. The input is JSON, or an envelope if it is sealed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredCallback {
    handler: String,
    #[serde(default)]
    sealed: bool,
    input: Payload,
}

/// A batch and where it stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BatchStatus {
    /// Its id.
    pub id: BatchId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// What it was opened with, to find it again.
    pub key: Option<String>,
    /// How many parts were added.
    pub parts: u64,
    /// How many jobs it has and how they ended: exact whenever it is read.
    pub counts: BatchCounts,
    /// When it was opened.
    pub created_at: Timestamp,
    /// When it was sealed.
    pub sealed_at: Option<Timestamp>,
    /// When all its jobs had ended and its callback was stored.
    pub completed_at: Option<Timestamp>,
    /// What runs when it is complete.
    pub callback: Option<String>,
    /// That job, once it is stored.
    pub callback_job: Option<JobId>,
}

impl From<BatchRecord> for BatchStatus {
    fn from(record: BatchRecord) -> Self {
        let callback = record.callback.as_ref().and_then(|stored| stored.decode::<StoredCallback>().ok());
        BatchStatus {
            id: record.id,
            tenant: record.tenant,
            name: record.name,
            key: record.key,
            parts: record.parts,
            counts: record.counts,
            created_at: record.created_at,
            sealed_at: record.sealed_at,
            completed_at: record.completed_at,
            callback: callback.map(|callback| callback.handler),
            callback_job: record.callback_job,
        }
    }
}

/// What became of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// How many jobs it has.
    pub jobs: u64,
    /// Whether it had been added before, so that nothing was stored.
    pub repeated: bool,
    /// The jobs that were stored, in the order of their inputs.
    pub stored: Vec<Submitted>,
}

/// A batch to open: [`JobService::batch`].
#[must_use = "a batch is created by `open`"]
pub struct BatchBuilder<'a, C> {
    by: &'a C,
    name: String,
    key: Option<String>,
    callback: Option<Result<(String, Payload), InvalidInput>>,
}

impl JobService {
    /// A batch of the root tenant: many jobs that are counted together. For another tenant, [`batch_of`] takes what
    /// [`JobService::of`] returns.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use windlass_core::{BatchDone, HandlerRef, JobContext, JobError, JobService, MemoryStore};
    ///
    /// const ROW: HandlerRef<u32, ()> = HandlerRef::new("import.row");
    /// const SUMMARY: HandlerRef<BatchDone<String>, ()> = HandlerRef::new("import.summary");
    /// # async fn row(_: (), _: JobContext, _: u32) -> Result<(), JobError> { Ok(()) }
    ///
    /// async fn summary(_: (), _: JobContext, done: BatchDone<String>) -> Result<(), JobError> {
    ///     println!("{}: {} of {} rows", done.of, done.counts.succeeded, done.counts.total);
    ///     Ok(())
    /// }
    ///
    /// # let jobs = JobService::builder(Arc::new(MemoryStore::new())).function(ROW, (), row);
    /// # let jobs = jobs.function(SUMMARY, (), summary).start().await?;
    /// // With the same key, a program that was cut off finds its batch again; a repeated part adds nothing.
    /// let batch = jobs.batch("import").key("people.csv").then(SUMMARY, "people.csv").open().await?;
    /// for (part, rows) in [[1, 2], [3, 4]].into_iter().enumerate() {
    ///     batch.add(part as u32, ROW, rows).await?;
    /// }
    /// batch.seal().await?;
    /// let done = batch.wait(Duration::from_secs(5)).await?;
    /// assert_eq!((done.counts.total, done.counts.succeeded), (4, 4));
    /// # jobs.shutdown().await;
    /// # Ok::<_, windlass_core::Error>(()) }).unwrap();
    /// ```
    pub fn batch(&self, name: impl Into<String>) -> BatchBuilder<'_, JobService> {
        batch_of(self, name)
    }

    /// The batches of the service.
    pub fn batches(&self) -> BatchCalls<'_> {
        BatchCalls(self)
    }
}

/// A batch of a tenant.
pub fn batch_of<C: Caller>(by: &C, name: impl Into<String>) -> BatchBuilder<'_, C> {
    BatchBuilder { by, name: name.into(), key: None, callback: None }
}

impl<C: Caller> BatchBuilder<'_, C> {
    /// Opening a batch with the same key again returns the one that is there.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The job that is stored once when all jobs of the batch have ended, however they did.
    pub fn then<T: Serialize, O>(mut self, handler: HandlerRef<BatchDone<T>, O>, of: impl Into<T>) -> Self {
        let input = Payload::encode("then", &of.into(), usize::MAX);
        self.callback = Some(input.map(|input| (handler.id().to_owned(), input)));
        self
    }

    /// The same for a handler by its name and JSON to give it.
    pub fn then_named(mut self, handler: impl Into<String>, of: Payload) -> Self {
        self.callback = Some(Ok((handler.into(), of)));
        self
    }

    /// Creates the batch.
    pub async fn open(self) -> Result<BatchHandle, Error> {
        let (jobs, ctx) = (self.by.jobs(), self.by.context());
        let callback = self.callback.transpose()?;
        let status = jobs.batches().open(&ctx, &self.name, self.key, callback).await?;
        Ok(BatchHandle { jobs: jobs.clone(), ctx, id: status.id })
    }
}

/// An open batch.
#[derive(Clone)]
pub struct BatchHandle {
    jobs: JobService,
    ctx: SecurityContext,
    id: BatchId,
}

impl BatchHandle {
    /// Its id, to find it again in any process.
    pub fn id(&self) -> BatchId {
        self.id
    }

    /// Adds a part: all its jobs or none. A part that was added before adds nothing, whatever its inputs are.
    pub async fn add<I: Serialize, O>(
        &self,
        part: u32,
        handler: HandlerRef<I, O>,
        inputs: impl IntoIterator<Item = I>,
    ) -> Result<Part, Error> {
        self.add_with(part, handler, inputs, SubmitOptions::new()).await
    }

    /// The same with options for its jobs.
    pub async fn add_with<I: Serialize, O>(
        &self,
        part: u32,
        handler: HandlerRef<I, O>,
        inputs: impl IntoIterator<Item = I>,
        options: SubmitOptions,
    ) -> Result<Part, Error> {
        let payloads = inputs.into_iter().map(|input| self.jobs.encode(&input)).collect();
        self.jobs.batches().add(&self.ctx, self.id, part, handler.id(), payloads, options).await
    }

    /// Says that no part follows. The batch is complete when all its jobs have ended.
    pub async fn seal(&self) -> Result<BatchStatus, Error> {
        self.jobs.batches().seal(&self.ctx, self.id).await
    }

    /// Where it stands now.
    pub async fn status(&self) -> Result<BatchStatus, Error> {
        self.jobs.batches().get(&self.ctx, self.id).await
    }

    /// Waits until it is complete. Fails with [`Error::Timeout`] if that takes longer.
    pub async fn wait(&self, at_most: Duration) -> Result<BatchStatus, Error> {
        self.jobs.batches().wait(&self.ctx, self.id, at_most).await
    }
}

/// The batches of a service: [`JobService::batches`].
#[derive(Clone, Copy)]
pub struct BatchCalls<'a>(&'a JobService);

impl BatchCalls<'_> {
    /// Creates a batch of the caller's tenant, or returns the one with this key. `callback` is a handler with what it is
    /// given.
    pub async fn open(
        &self,
        ctx: &SecurityContext,
        name: &str,
        key: Option<String>,
        callback: Option<(String, Payload)>,
    ) -> Result<BatchStatus, Error> {
        let (node, limits) = (self.0.worker(), self.0.limits());
        check_name("name", name, limits.name_bytes)?;
        if let Some(key) = &key {
            check_name("key", key, limits.key_bytes)?;
        }
        let id = BatchId(node.next_id());
        let callback = match callback {
            Some((handler, input)) => Some(self.stored_callback(ctx, id, handler, input).await?),
            None => None,
        };
        let batch = NewBatch { id, tenant: ctx.tenant, name: name.to_owned(), key, callback };
        match node.store.open_batch(batch).await? {
            BatchOpened::Open(record) => Ok((*record).into()),
            BatchOpened::TooMany => {
                let message = format!("the tenant already has the maximum of {BATCHES_MAX} unfinished batches");
                Err(InvalidInput::new("batch", message).into())
            }
        }
    }

    async fn stored_callback(
        &self,
        ctx: &SecurityContext,
        id: BatchId,
        handler: String,
        input: Payload,
    ) -> Result<Payload, Error> {
        check_unreserved("then", &handler)?;
        self.0.check_handler(&handler).await?;
        let max = self.0.limits().payload_bytes;
        if input.as_str().len() > max {
            let message = format!("{} bytes, at most {max} are allowed", input.as_str().len());
            return Err(InvalidInput::new("then", message).into());
        }
        let stored = match self.0.worker().seals.sealer(ctx.tenant).await? {
            Some(sealer) => StoredCallback { handler, sealed: true, input: sealer.seal(id.0, Kind::Batch, &input) },
            None => StoredCallback { handler, sealed: false, input },
        };
        Ok(Payload::encode("then", &stored, usize::MAX)?)
    }

    /// Adds a part of a batch: all its jobs or none; when any input is bad, the error names every bad one. With an
    /// idempotency key, input `i` has the key `key:i`.
    pub async fn add(
        &self,
        ctx: &SecurityContext,
        batch: BatchId,
        part: u32,
        handler: &str,
        payloads: Vec<Result<Payload, InvalidInput>>,
        options: SubmitOptions,
    ) -> Result<Part, Error> {
        let jobs = self.part_jobs(ctx, batch, part, handler, payloads, options).await?;
        let (count, node) = (jobs.len() as u64, self.0.worker());
        let added = node.store.add_part(NewPart { tenant: ctx.tenant, batch, part, jobs }).await?;
        match added {
            PartAdded::Added(stored) => {
                node.jobs_are_ready();
                Ok(Part { jobs: count, repeated: false, stored })
            }
            PartAdded::Repeated(jobs) => Ok(Part { jobs, repeated: true, stored: Vec::new() }),
            PartAdded::Sealed => Err(Error::BatchSealed(batch)),
            PartAdded::NotFound => Err(Error::BatchNotFound(batch)),
        }
    }

    async fn part_jobs(
        &self,
        ctx: &SecurityContext,
        batch: BatchId,
        part: u32,
        handler: &str,
        payloads: Vec<Result<Payload, InvalidInput>>,
        options: SubmitOptions,
    ) -> Result<Vec<NewJob>, Error> {
        let max = self.0.limits().batch_jobs;
        if payloads.is_empty() || payloads.len() > max {
            let message = format!("{} jobs, 1 to {max} are allowed", payloads.len());
            return Err(InvalidInput::new("part", message).into());
        }
        check_submit_unreserved(handler, &options)?;
        self.0.check_handler(handler).await?;
        if self.0.in_memory(handler).is_some() {
            let message = format!("`{handler}` is not restartable: its jobs run in memory and are not counted");
            return Err(InvalidInput::new("handler", message).into());
        }
        let sealer = self.0.sealer(ctx, handler).await?;
        let (mut jobs, mut bad) = (Vec::with_capacity(payloads.len()), Vec::new());
        for (index, payload) in payloads.into_iter().enumerate() {
            let options = options.clone().batch(batch);
            let prepare = |payload| self.0.prepare_checked(ctx, handler, payload, options, sealer.as_ref());
            match payload.map_err(Error::from).and_then(prepare) {
                Ok(mut job) => {
                    job.spec.part = Some(part);
                    jobs.push(number_key(job, index));
                }
                Err(Error::InvalidInput(error)) => bad.push(BadItem { index, error }),
                Err(error) => return Err(error),
            }
        }
        if bad.is_empty() { Ok(jobs) } else { Err(Error::InvalidBatch(bad)) }
    }

    /// Says that no part follows. Sealing twice is the same as once.
    pub async fn seal(&self, ctx: &SecurityContext, batch: BatchId) -> Result<BatchStatus, Error> {
        let node = self.0.worker();
        let record = node.store.seal_batch(ctx.tenant, batch).await?.ok_or(Error::BatchNotFound(batch))?;
        node.settler.batch_changed(batch);
        Ok(record.into())
    }

    /// A batch of the caller's tenant with its counts.
    pub async fn get(&self, ctx: &SecurityContext, batch: BatchId) -> Result<BatchStatus, Error> {
        let ask = BatchAsk { ids: Some(vec![batch]), before: None, limit: 1 };
        let found = self.0.worker().store.batches(ctx.scope(), &ask).await?.pop();
        found.map(BatchStatus::from).ok_or(Error::BatchNotFound(batch))
    }

    /// The batches of the caller's tenant, newest first, before the one given.
    pub async fn list(
        &self,
        ctx: &SecurityContext,
        before: Option<BatchId>,
        limit: usize,
    ) -> Result<Vec<BatchStatus>, Error> {
        let ask = BatchAsk { ids: None, before, limit: limit.min(BATCHES_LISTED) };
        Ok(self.0.worker().store.batches(ctx.scope(), &ask).await?.into_iter().map(BatchStatus::from).collect())
    }

    /// Where a batch stands, now and whenever that changes, until it is complete. Ends after an error.
    pub fn watch(
        &self,
        ctx: &SecurityContext,
        batch: BatchId,
    ) -> impl Stream<Item = Result<BatchStatus, Error>> + Send + use<> {
        let state = Some((self.0.clone(), ctx.clone(), None::<BatchStatus>));
        futures_util::stream::unfold(state, move |state| async move {
            let (jobs, ctx, last) = state?;
            if last.as_ref().is_some_and(|last| last.completed_at.is_some()) {
                return None;
            }
            loop {
                let status = match jobs.batches().get(&ctx, batch).await {
                    Ok(status) => status,
                    Err(error) => return Some((Err(error), None)),
                };
                if last.as_ref() != Some(&status) {
                    return Some((Ok(status.clone()), Some((jobs, ctx, Some(status)))));
                }
                tokio::time::sleep(WATCH_EVERY).await;
            }
        })
    }

    /// Waits until a batch is complete.
    pub async fn wait(&self, ctx: &SecurityContext, batch: BatchId, at_most: Duration) -> Result<BatchStatus, Error> {
        let complete = async {
            let mut every = Duration::from_millis(5);
            loop {
                let status = self.get(ctx, batch).await?;
                if status.completed_at.is_some() {
                    return Ok(status);
                }
                tokio::time::sleep(every).await;
                every = (every * 2).min(WATCH_EVERY);
            }
        };
        match tokio::time::timeout(at_most, complete).await {
            Ok(status) => status,
            Err(_) => Err(Error::Timeout(format!("batch {}", batch.0))),
        }
    }

    /// Seals a batch and cancels its jobs that have not ended, as a bulk action in the background: the newest
    /// [`BulkOptions::MAX_CAP`]; for a larger batch call it again. The callback runs when all have ended.
    pub async fn cancel(&self, ctx: &SecurityContext, batch: BatchId, reason: &str) -> Result<Bulk, Error> {
        self.seal(ctx, batch).await?;
        let filter = JobFilter { batch: Some(batch), ..JobFilter::all() };
        let action = BulkAction::Cancel { reason: reason.to_owned() };
        self.0.bulk(ctx, &filter, action, BulkOptions::default().cap(BulkOptions::MAX_CAP)).await
    }
}

impl Worker {
    /// The callback of a complete batch. One that cannot be made is reported and not stored, and the batch is complete all
    /// the same.
    pub(crate) async fn batch_callback(&self, record: &BatchRecord) -> Option<NewJob> {
        let callback = record.callback.as_ref()?;
        match self.make_callback(record, callback).await {
            Ok(job) => Some(job),
            Err(error) => {
                tracing::error!(batch = %record.id.0, %error, "the callback of batch {} cannot be stored", record.id.0);
                None
            }
        }
    }

    async fn make_callback(&self, record: &BatchRecord, callback: &Payload) -> Result<NewJob, Error> {
        let unreadable = |error| store::Error::Internal(format!("the callback of a batch cannot be read: {error}"));
        let StoredCallback { handler, sealed, input } = callback.decode().map_err(unreadable)?;
        let input = match sealed {
            true => self.seals.open(record.tenant, record.id.0, Kind::Batch, &input).await?,
            false => input,
        };
        let done = BatchDone { of: input, batch: record.id, name: record.name.clone(), counts: record.counts };
        let payload = Payload::encode("then", &done, usize::MAX)?;
        let queue = self.registry.get(&handler).map_or(DEFAULT_QUEUE, |registered| registered.queue(&handler));
        // Whatever completes it, there is one callback.
        let options = SubmitOptions::new().idempotency_key(format!("windlass.batch:{}", record.id.0)).batch(record.id);
        let ctx = SecurityContext::new(record.tenant).with_service(SERVICE);
        let wanted = Wanted { handler: &handler, queue, payload, options };
        let limits = crate::Limits { payload_bytes: usize::MAX, ..self.config.limits.clone() };
        let mut job = prepare(&ctx, self.next_id(), wanted, &limits, self.now(), |_, _, _| String::new())?;
        if let Some(sealer) = self.seals.sealer(record.tenant).await? {
            sealer.seal_new(&mut job);
        }
        Ok(job)
    }
}

impl<T: DeserializeOwned> BatchDone<T> {
    /// What the callback of a batch gets, for tests of handlers that are one.
    pub fn new(of: T, batch: BatchId, name: impl Into<String>, counts: BatchCounts) -> Self {
        BatchDone { of, batch, name: name.into(), counts }
    }
}
