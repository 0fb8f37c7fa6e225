//! From a caller's input to a job that can be stored: the calls that submit, and `prepare`, which checks and fills in. What
//! is prepared goes to the `Submitter` (`life/submitter.rs`), which writes, or into memory (`life/spawn.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::config::{DEFAULT_QUEUE, DEFAULT_RETENTION, Limits, check_text};
use crate::life::handler::{JobHandler, Registered};
use crate::life::spawn::QUEUE as IN_MEMORY;
use crate::model::clock::Timestamp;
use crate::model::error::{BadItem, Error, InvalidInput};
use crate::model::id::JobId;
use crate::model::job::{BatchId, NewJob, Start, SubmitOptions, UniqueWithin};
use crate::model::payload::{MAX_DEPTH, Payload, dedupe_key, nesting};
use crate::model::priority::Priority;
use crate::model::tenant::{SecurityContext, TenantId};
use crate::seal::Sealer;
use crate::service::JobService;
use crate::store::{BatchAsk, SUSPECT_QUEUES, Submitted};
use crate::trace;

impl JobService {
    /// Stores a job for the handler `H` and returns its id. The job is durable when this returns.
    pub async fn submit<H: JobHandler>(&self, ctx: &SecurityContext, input: H::Input) -> Result<JobId, Error> {
        Ok(self.submit_with::<H>(ctx, input, SubmitOptions::new()).await?.id)
    }

    /// The same with options.
    pub async fn submit_with<H: JobHandler>(
        &self,
        ctx: &SecurityContext,
        input: H::Input,
        options: SubmitOptions,
    ) -> Result<Submitted, Error> {
        self.submit_named(ctx, H::ID, &input, options).await
    }

    /// Stores a job for a handler by its name: for plain functions and for handlers that only other nodes have.
    pub async fn submit_named<I: Serialize + ?Sized>(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        input: &I,
        options: SubmitOptions,
    ) -> Result<Submitted, Error> {
        let payload = self.encode_for(handler, input, &options)?;
        let job = self.prepare_payload(ctx, handler, payload, options).await?;
        let mut submitted = self.submit_prepared(handler, vec![job]).await?;
        Ok(submitted.pop().expect("one answer for one job"))
    }

    /// Stores a job that a person submits by hand: as [`JobService::submit_named`], with the entry `JOB_SUBMITTED` in the
    /// audit log. A job that already had its key leaves none.
    pub async fn submit_by_hand<I: Serialize + ?Sized>(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        input: &I,
        options: SubmitOptions,
    ) -> Result<Submitted, Error> {
        let submitted = self.submit_named(ctx, handler, input, options).await?;
        if !submitted.duplicate {
            self.audit_submit(ctx, &submitted.id.to_string(), format!("handler {handler}")).await?;
        }
        Ok(submitted)
    }

    /// Stores many jobs that a person submits by hand, all or none: as [`JobService::submit_payloads`], with one entry
    /// `JOB_SUBMITTED` in the audit log.
    pub async fn submit_many_by_hand(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        payloads: Vec<Result<Payload, InvalidInput>>,
        options: SubmitOptions,
    ) -> Result<Vec<Submitted>, Error> {
        let (batch, answers) = self.submit_payloads(ctx, handler, payloads, options, false).await?;
        let submitted: Vec<Submitted> = answers.into_iter().flatten().collect();
        let stored = submitted.iter().filter(|submitted| !submitted.duplicate).count();
        if stored > 0 {
            let detail = format!("handler {handler}, {stored} jobs");
            self.audit_submit(ctx, &format!("batch:{}", batch.0), detail).await?;
        }
        Ok(submitted)
    }

    async fn audit_submit(&self, ctx: &SecurityContext, target: &str, detail: String) -> Result<(), Error> {
        self.audit(ctx, "JOB_SUBMITTED", target, Some(detail)).await
    }

    /// Stores many jobs of one handler with one round trip and one batch id; ids come back in the order of the inputs.
    /// When any input is bad, nothing is stored, and the error names every bad one. With an idempotency
    /// key, input `i` has the key `key:i`, counted from 0, so that repeating the call returns the same ids. [`Limits::key_bytes`](crate::Limits::key_bytes)
    /// applies to the given key without the number.
    pub async fn submit_many<H: JobHandler>(
        &self,
        ctx: &SecurityContext,
        inputs: Vec<H::Input>,
        options: SubmitOptions,
    ) -> Result<Batch, Error> {
        let payloads = inputs.iter().map(|input| self.encode(input));
        let (batch, answers) = self.submit_payloads(ctx, H::ID, payloads.collect(), options, false).await?;
        Ok(Batch { batch, jobs: answers.into_iter().map(|answer| answer.expect("all are good")).collect() })
    }

    /// Like [`submit_many`](JobService::submit_many), but stores the valid inputs and returns a result for each input.
    pub async fn submit_partial<H: JobHandler>(
        &self,
        ctx: &SecurityContext,
        inputs: Vec<H::Input>,
        options: SubmitOptions,
    ) -> Result<Vec<Result<Submitted, InvalidInput>>, Error> {
        let payloads = inputs.iter().map(|input| self.encode(input));
        Ok(self.submit_payloads(ctx, H::ID, payloads.collect(), options, true).await?.1)
    }

    /// Stores many jobs whose inputs are JSON. With `partial`, valid ones are stored even if others are invalid.
    /// Idempotency keys work as in [`JobService::submit_many`].
    pub async fn submit_payloads(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        payloads: Vec<Result<Payload, InvalidInput>>,
        options: SubmitOptions,
        partial: bool,
    ) -> Result<(BatchId, Vec<Result<Submitted, InvalidInput>>), Error> {
        let max = self.limits().batch_jobs;
        if payloads.is_empty() || payloads.len() > max {
            let message = format!("{} jobs, 1 to {max} are allowed", payloads.len());
            return Err(InvalidInput::new("batch", message).into());
        }
        check_submit_unreserved(handler, &options)?;
        self.check_handler(handler).await?;
        self.check_parents(ctx, &options).await?;
        let batch = options.batch.unwrap_or_else(|| BatchId(self.worker().next_id()));
        let sealer = self.sealer(ctx, handler).await?;
        let mut prepared: Vec<Result<NewJob, InvalidInput>> = Vec::with_capacity(payloads.len());
        for (index, payload) in payloads.into_iter().enumerate() {
            let options = options.clone().batch(batch);
            let prepare = |payload| self.prepare_checked(ctx, handler, payload, options, sealer.as_ref());
            prepared.push(match payload.map_err(Error::from).and_then(prepare) {
                Ok(job) => Ok(number_key(job, index)),
                Err(Error::InvalidInput(bad)) => Err(bad),
                Err(error) => return Err(error),
            });
        }
        let bad = |(index, job): (usize, &Result<NewJob, InvalidInput>)| {
            job.as_ref().err().map(|error| BadItem { index, error: error.clone() })
        };
        let bad: Vec<BadItem> = prepared.iter().enumerate().filter_map(bad).collect();
        if !bad.is_empty() && !partial {
            return Err(Error::InvalidBatch(bad));
        }
        let good: Vec<NewJob> = prepared.iter().filter_map(|job| job.as_ref().ok().cloned()).collect();
        let stored = if good.is_empty() { Vec::new() } else { self.submit_prepared(handler, good).await? };
        let mut stored = stored.into_iter();
        let answers = prepared.into_iter().map(|job| job.map(|_| stored.next().expect("one answer for each job")));
        Ok((batch, answers.collect()))
    }

    /// Submits a job and waits for its typed result. A caller that restarts and repeats the call with the same idempotency
    /// key gets the result of the same job.
    pub async fn submit_and_wait<H: JobHandler>(
        &self,
        ctx: &SecurityContext,
        input: H::Input,
        options: SubmitOptions,
        at_most: Duration,
    ) -> Result<H::Output, Error> {
        let submitted = self.submit_with::<H>(ctx, input, options).await?;
        self.wait_for(ctx, submitted.id, at_most).await
    }

    /// Checks a submit and creates the job without storing it. Pass it to the store's `submit_in` to store it inside your
    /// own transaction.
    pub async fn prepare<H: JobHandler>(
        &self,
        ctx: &SecurityContext,
        input: H::Input,
        options: SubmitOptions,
    ) -> Result<NewJob, Error> {
        self.prepare_named(ctx, H::ID, &input, options).await
    }

    /// Like [`prepare`](JobService::prepare), for a handler by its name.
    pub async fn prepare_named<I: Serialize + ?Sized>(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        input: &I,
        options: SubmitOptions,
    ) -> Result<NewJob, Error> {
        let payload = self.encode_for(handler, input, &options)?;
        if self.in_memory(handler).is_some() {
            let message = format!("`{handler}` is not restartable: its jobs run in memory and cannot be stored");
            return Err(InvalidInput::new("handler", message).into());
        }
        self.prepare_payload(ctx, handler, payload, options).await
    }

    /// The input of a job, as it is stored, for a handler and with options that may be anybody's.
    fn encode_for<I: Serialize + ?Sized>(
        &self,
        handler: &str,
        input: &I,
        options: &SubmitOptions,
    ) -> Result<Payload, InvalidInput> {
        let payload = self.encode(input)?;
        check_submit_unreserved(handler, options)?;
        Ok(payload)
    }

    /// The input of a job, as it is stored.
    pub(crate) fn encode<I: Serialize + ?Sized>(&self, input: &I) -> Result<Payload, InvalidInput> {
        Payload::encode("input", input, self.limits().payload_bytes)
    }

    pub(crate) async fn prepare_payload(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        payload: Payload,
        options: SubmitOptions,
    ) -> Result<NewJob, Error> {
        self.check_handler(handler).await?;
        self.check_parents(ctx, &options).await?;
        let sealer = self.sealer(ctx, handler).await?;
        self.prepare_checked(ctx, handler, payload, options, sealer.as_ref())
    }

    /// What seals the input of a handler's jobs; nothing of those that run in memory is written anywhere.
    pub(crate) async fn sealer(&self, ctx: &SecurityContext, handler: &str) -> Result<Option<Sealer>, Error> {
        match self.in_memory(handler) {
            Some(_) => Ok(None),
            None => Ok(self.worker().seals.sealer(ctx.tenant).await?),
        }
    }

    /// The handler of this process with this id, if its jobs run in memory.
    pub(crate) fn in_memory(&self, handler: &str) -> Option<&Arc<Registered>> {
        self.worker().registry.get(handler).filter(|registered| !registered.options.restartable)
    }

    /// Stores jobs of one handler, or takes them into memory.
    pub(crate) async fn submit_prepared(&self, handler: &str, jobs: Vec<NewJob>) -> Result<Vec<Submitted>, Error> {
        match self.in_memory(handler) {
            Some(registered) => self.local().submit(registered, jobs),
            None => self.submitter().submit(jobs).await,
        }
    }

    /// What a job waits for must be there, and be the caller's own: what is another tenant's looks like what is not there.
    async fn check_parents(&self, ctx: &SecurityContext, options: &SubmitOptions) -> Result<(), Error> {
        let Some(after) = &options.spec.after else { return Ok(()) };
        after.check()?;
        let store = &self.worker().store;
        let mut known: Vec<JobId> = store.get(ctx.scope(), &after.of).await?.iter().map(|job| job.id).collect();
        if known.len() < after.of.len() {
            let ids = after.of.iter().copied().map(BatchId).collect();
            let ask = BatchAsk { ids: Some(ids), before: None, limit: after.of.len() };
            known.extend(store.batches(ctx.scope(), &ask).await?.iter().map(|batch| batch.id.0));
        }
        match after.of.iter().find(|parent| !known.contains(parent)) {
            Some(parent) => Err(InvalidInput::new("after", format!("there is no job or batch {parent}")).into()),
            None => Ok(()),
        }
    }

    pub(crate) fn prepare_checked(
        &self,
        ctx: &SecurityContext,
        handler: &str,
        payload: Payload,
        options: SubmitOptions,
        sealer: Option<&Sealer>,
    ) -> Result<NewJob, Error> {
        let worker = self.worker();
        let registered = worker.registry.get(handler);
        if let Some(registered) = registered {
            registered.code.check(&payload)?;
        }
        let queue = match registered {
            Some(registered) if registered.options.restartable => registered.queue(handler),
            Some(_) => IN_MEMORY,
            None => DEFAULT_QUEUE,
        };
        let mut options = options;
        options.spec.service =
            options.spec.service.or_else(|| ctx.service.clone().or_else(|| worker.config.service_id.clone()));
        // Written down here: a store that ends a waiting job by itself, canceled or expired, knows nothing of handlers.
        if registered.is_some() {
            let keep = worker.keep_of(handler, options.spec.retention);
            let says = options.spec.retention.is_some() || keep != DEFAULT_RETENTION;
            options.spec.retention = says.then_some(keep);
        }
        let wanted = Wanted { handler, queue, payload, options };
        let Some(sealer) = sealer else {
            let content_key = |handler: &str, tenant, payload: &Payload| dedupe_key(handler, Some(tenant), payload);
            let mut job = prepare(ctx, worker.next_id(), wanted, self.limits(), worker.now(), content_key)?;
            trace::carry(&mut job.spec.headers);
            return Ok(job);
        };
        let mut keyed = Ok(());
        let content_key = |handler: &str, tenant: TenantId, payload: &Payload| {
            let content = sealer.content_key(&dedupe_key(handler, Some(tenant), payload));
            let content = content.unwrap_or_else(|error| {
                keyed = Err(error);
                String::new()
            });
            format!("{handler}::{tenant}::hmac-sha256:{content}")
        };
        let mut job = prepare(ctx, worker.next_id(), wanted, self.limits(), worker.now(), content_key)?;
        keyed?;
        trace::carry(&mut job.spec.headers);
        sealer.seal_new(&mut job);
        Ok(job)
    }

    /// A process that has handlers knows them; others may be on other nodes. One that has none of the users' knows nothing:
    /// a server must take jobs also while the nodes that run them start anew.
    pub(crate) async fn check_handler(&self, handler: &str) -> Result<(), Error> {
        check_name("handler", handler, self.limits().name_bytes)?;
        let registry = &self.worker().registry;
        let known = registry.get(handler).is_some() || !registry.has_users();
        if known || self.remote_handlers().iter().any(|remote| remote == handler) {
            return Ok(());
        }
        let nodes = self.worker().store.nodes().await?;
        match nodes.iter().any(|node| node.info.handlers.iter().any(|id| id == handler)) {
            true => Ok(()),
            false => Err(Error::HandlerNotFound(handler.to_owned())),
        }
    }
}

/// The jobs of one bulk submit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Batch {
    /// What they have in common.
    pub batch: BatchId,
    /// One entry for each input, in order.
    pub jobs: Vec<Submitted>,
}

/// What a caller wants done.
pub(crate) struct Wanted<'a> {
    pub(crate) handler: &'a str,
    /// Where it waits unless the options say otherwise.
    pub(crate) queue: &'a str,
    pub(crate) payload: Payload,
    pub(crate) options: SubmitOptions,
}

/// Checks a submit and makes the job it asks for. Pure. The tenant is the caller's, whatever the options say.
/// `content_key` makes the key of a job that is unique by content.
pub(crate) fn prepare(
    ctx: &SecurityContext,
    id: JobId,
    wanted: Wanted<'_>,
    limits: &Limits,
    now: Timestamp,
    content_key: impl FnOnce(&str, TenantId, &Payload) -> String,
) -> Result<NewJob, InvalidInput> {
    check(ctx, &wanted, limits, now)?;
    Ok(fill_in(ctx, id, wanted, now, content_key))
}

/// Checks everything that a caller may choose against the limits.
fn check(ctx: &SecurityContext, wanted: &Wanted<'_>, limits: &Limits, now: Timestamp) -> Result<(), InvalidInput> {
    let Wanted { handler, queue, payload, options } = wanted;
    check_name("handler", handler, limits.name_bytes)?;
    let queue = options.queue.as_deref().unwrap_or(queue);
    check_name("queue", queue, limits.name_bytes)?;
    check_no_suspects(queue)?;
    check_input(payload, limits)?;
    let unique_key = options.unique.as_ref().and_then(|unique| unique.key.as_ref());
    let names = [
        ("idempotency_key", options.idempotency_key.as_ref()),
        ("ordering_key", options.ordering_key.as_ref()),
        ("unique_key", unique_key),
        ("correlation_id", options.correlation_id.as_ref().or(ctx.correlation_id.as_ref())),
    ];
    for (field, name) in names {
        name.map_or(Ok(()), |name| check_name(field, name, limits.key_bytes))?;
    }
    let window = options.unique.as_ref().map(|unique| &unique.within);
    if matches!(window, Some(UniqueWithin::Window(window)) if *window > limits.max_delay) {
        return Err(InvalidInput::new("unique", "the window is longer than ten years"));
    }
    check_tags(&options.tags, limits)?;
    check_headers(&options.spec.headers, limits)?;
    check_start(options.start, now, limits)?;
    check_retry(&options.spec.retry)?;
    options.spec.after.as_ref().map_or(Ok(()), |after| after.check())?;
    let spec = &options.spec;
    for (field, text) in [
        ("user", spec.user.as_ref().or(ctx.user.as_ref())),
        ("service", spec.service.as_ref().or(ctx.service.as_ref())),
    ] {
        text.map_or(Ok(()), |text| check_text(field, text, limits.key_bytes))?;
    }
    Ok(())
}

/// The job that a checked submit asks for.
fn fill_in(
    ctx: &SecurityContext,
    id: JobId,
    wanted: Wanted<'_>,
    now: Timestamp,
    content_key: impl FnOnce(&str, TenantId, &Payload) -> String,
) -> NewJob {
    let Wanted { handler, queue, payload, options } = wanted;
    let unique = options.unique.map(|mut unique| {
        unique.key = Some(match unique.key {
            // Scoped like a content key, so that handlers do not get in one another's way.
            Some(key) => format!("{handler}::{}::{key}", ctx.tenant),
            // A content key may be as long as the payload; what is stored is bounded by the payload's limit.
            None => content_key(handler, ctx.tenant, &payload),
        });
        unique
    });
    let mut spec = options.spec;
    spec.user = spec.user.or_else(|| ctx.user.clone());
    spec.service = spec.service.or_else(|| ctx.service.clone());
    spec.idempotency_key = options.idempotency_key.clone();
    (spec.sealed, spec.part) = (false, None);
    NewJob {
        id,
        tenant: ctx.tenant,
        handler: handler.to_owned(),
        queue: options.queue.unwrap_or_else(|| queue.to_owned()),
        priority: options.priority.unwrap_or(Priority::NORMAL),
        start: match options.start {
            Start::After(delay) if delay.is_zero() => Start::Now,
            Start::At(at) if at <= now => Start::Now,
            start => start,
        },
        payload,
        idempotency_key: options.idempotency_key,
        unique,
        ordering_key: options.ordering_key,
        batch: options.batch,
        tags: options.tags,
        correlation_id: options.correlation_id.or_else(|| ctx.correlation_id.clone()),
        spec,
    }
}

/// What begins names and keys of the engine's own: handlers such as [`WEBHOOK_HANDLER`](crate::WEBHOOK_HANDLER), their
/// queues, and the keys of their jobs. Were they anybody's, a caller could forge the engine's jobs, or suppress them by
/// taking their keys.
pub(crate) const RESERVED: &str = "windlass.";

/// Names and keys of callers: not the engine's.
pub(crate) fn check_unreserved(field: &str, name: &str) -> Result<(), InvalidInput> {
    match name.starts_with(RESERVED) {
        true => {
            let message = format!("names that begin with `{RESERVED}` are reserved for Windlass; choose another one");
            Err(InvalidInput::new(field, message))
        }
        false => Ok(()),
    }
}

/// Queues of callers: not those of suspects, which belong to the queue whose jobs were lost.
pub(crate) fn check_no_suspects(queue: &str) -> Result<(), InvalidInput> {
    match SUSPECT_QUEUES.iter().find(|kept| queue.starts_with(*kept)) {
        Some(kept) => {
            let message = format!("names that begin with `{kept}` are reserved for recovered jobs; choose another one");
            Err(InvalidInput::new("queue", message))
        }
        None => Ok(()),
    }
}

/// The names and keys of a submit: not the engine's.
pub(crate) fn check_submit_unreserved(handler: &str, options: &SubmitOptions) -> Result<(), InvalidInput> {
    check_unreserved("handler", handler)?;
    let names = [
        ("queue", &options.queue),
        ("idempotency_key", &options.idempotency_key),
        ("ordering_key", &options.ordering_key),
    ];
    let mut given = names.into_iter().filter_map(|(field, name)| Some((field, name.as_deref()?)));
    given.try_for_each(|(field, name)| check_unreserved(field, name))?;
    match options.unique.as_ref().and_then(|unique| unique.key.as_deref()) {
        Some(key) => check_unreserved("unique_key", key),
        None => Ok(()),
    }
}

/// Input: not too long, not too deep.
pub(crate) fn check_input(payload: &Payload, limits: &Limits) -> Result<(), InvalidInput> {
    if payload.as_str().len() > limits.payload_bytes {
        let message = format!("{} bytes, at most {} are allowed", payload.as_str().len(), limits.payload_bytes);
        return Err(InvalidInput::new("input", message));
    }
    // What a payload was checked for before is deep enough for most; only a lower limit needs another look.
    if limits.json_depth < MAX_DEPTH && nesting(payload.as_str()) > limits.json_depth {
        return Err(InvalidInput::new("input", format!("nested deeper than {} levels", limits.json_depth)));
    }
    Ok(())
}

/// Tags: not too many, not too long.
fn check_tags(tags: &[String], limits: &Limits) -> Result<(), InvalidInput> {
    if tags.len() > limits.tags {
        return Err(InvalidInput::new("tags", format!("{} tags, at most {}", tags.len(), limits.tags)));
    }
    tags.iter().try_for_each(|tag| check_name("tags", tag, limits.tag_bytes))
}

/// Headers: not too long together, with names, no NUL.
fn check_headers(headers: &BTreeMap<String, String>, limits: &Limits) -> Result<(), InvalidInput> {
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > limits.header_bytes {
        return Err(InvalidInput::new("headers", format!("{bytes} bytes, at most {}", limits.header_bytes)));
    }
    if headers.iter().any(|(name, value)| name.is_empty() || name.contains('\0') || value.contains('\0')) {
        return Err(InvalidInput::new("headers", "a name is empty or contains a NUL character"));
    }
    Ok(())
}

/// Starts: not too far ahead.
pub(crate) fn check_start(start: Start, now: Timestamp, limits: &Limits) -> Result<(), InvalidInput> {
    let ahead = match start {
        Start::Now => return Ok(()),
        Start::After(delay) => delay,
        Start::At(at) => at.since(now),
    };
    match ahead > limits.max_delay {
        true => Err(InvalidInput::new("start", "must be at most ten years ahead")),
        false => Ok(()),
    }
}

/// Names and keys: not empty, not too long, no NUL.
pub(crate) fn check_name(field: &str, name: &str, max_bytes: usize) -> Result<(), InvalidInput> {
    if name.is_empty() {
        return Err(InvalidInput::new(field, "must not be empty"));
    }
    if name.len() > max_bytes {
        return Err(InvalidInput::new(field, format!("{} bytes, at most {max_bytes} are allowed", name.len())));
    }
    if name.contains('\0') {
        return Err(InvalidInput::new(field, "contains a NUL character"));
    }
    Ok(())
}

fn check_retry(policy: &Option<crate::model::retry::RetryPolicy>) -> Result<(), InvalidInput> {
    match policy {
        Some(policy) if !policy.multiplier.is_finite() || !policy.jitter.is_finite() => {
            Err(InvalidInput::new("retry", "multiplier and jitter must be numbers"))
        }
        _ => Ok(()),
    }
}

/// Gives one job of many that have an idempotency key together a key of its own. After the check, so that how
/// long the caller's key may be does not depend on how many jobs there are.
pub(crate) fn number_key(mut job: NewJob, index: usize) -> NewJob {
    job.idempotency_key = job.idempotency_key.map(|key| format!("{key}:{index}"));
    job.spec.idempotency_key = job.idempotency_key.clone();
    job
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use uuid::Uuid;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    /// The job that these options make.
    pub(crate) fn prepared(options: SubmitOptions) -> Result<NewJob, InvalidInput> {
        let ctx = SecurityContext::new(TenantId(Uuid::from_u128(7))).with_user("u").with_correlation_id("c");
        let wanted = Wanted { handler: "h", queue: "default", payload: Payload::from_store("{}"), options };
        let content_key = |handler: &str, tenant, payload: &Payload| dedupe_key(handler, Some(tenant), payload);
        prepare(&ctx, JobId::from_i64(1), wanted, &Limits::default(), NOW, content_key)
    }

    fn refused(options: SubmitOptions) -> String {
        prepared(options).expect_err("refused").field
    }

    #[test]
    fn options_and_caller_end_up_in_the_job() {
        let options = SubmitOptions::new().idempotency_key("k").batch(BatchId(JobId::from_i64(5))).tag("t");
        let job = prepared(options).expect("accepted");
        assert_eq!(job.tenant, TenantId(Uuid::from_u128(7)));
        assert_eq!((job.spec.user.as_deref(), job.correlation_id.as_deref()), (Some("u"), Some("c")));
        assert_eq!(job.spec.idempotency_key.as_deref(), Some("k"));
        assert!(!job.is_plain());
    }

    #[test]
    fn each_bad_field_is_named() {
        assert_eq!(refused(SubmitOptions::new().idempotency_key("x".repeat(257))), "idempotency_key");
        assert_eq!(refused(SubmitOptions::new().idempotency_key("")), "idempotency_key");
        assert_eq!(refused(SubmitOptions::new().ordering_key("a\0b")), "ordering_key");
        assert_eq!(refused(SubmitOptions::new().tag("x".repeat(65))), "tags");
        assert_eq!(refused((0..33).fold(SubmitOptions::new(), |o, n| o.tag(n.to_string()))), "tags");
        assert_eq!(refused(SubmitOptions::new().header("h", "x".repeat(17_000))), "headers");
        assert_eq!(refused(SubmitOptions::new().delay(Duration::from_secs(u64::MAX / 2))), "start");
        assert_eq!(refused(SubmitOptions::new().queue("")), "queue");
        assert_eq!(refused(SubmitOptions::new().queue("suspect:x")), "queue");
        assert_eq!(refused(SubmitOptions::new().queue("suspect-again:x")), "queue");
        let endless = crate::model::retry::RetryPolicy { multiplier: f64::INFINITY, ..Default::default() };
        assert_eq!(refused(SubmitOptions::new().retry(endless)), "retry");
    }

    #[test]
    fn names_of_the_engine_are_refused_by_field() {
        let refused = |handler: &str, options: SubmitOptions| {
            check_submit_unreserved(handler, &options).err().map(|bad| bad.field).unwrap_or_default()
        };
        let new = SubmitOptions::new;
        assert_eq!(refused("windlass.webhook", new()), "handler");
        assert_eq!(refused("h", new().queue("windlass.webhook")), "queue");
        assert_eq!(refused("h", new().idempotency_key("windlass.webhook:1:2")), "idempotency_key");
        assert_eq!(refused("h", new().ordering_key("windlass.")), "ordering_key");
        assert_eq!(refused("h", new().unique_key("windlass.x", UniqueWithin::Unfinished)), "unique_key");
        assert_eq!(refused("windlass", new().queue("windlass").idempotency_key("my.windlass.x")), "");
    }

    #[test]
    fn the_limits_themselves_are_accepted() {
        assert!(prepared(SubmitOptions::new().idempotency_key("x".repeat(256))).is_ok());
        assert!(prepared((0..32).fold(SubmitOptions::new(), |o, _| o.tag("x".repeat(64)))).is_ok());
    }

    #[test]
    fn a_start_in_the_past_is_now() {
        assert_eq!(prepared(SubmitOptions::new().run_at(NOW - Duration::from_secs(1))).expect("ok").start, Start::Now);
        assert_eq!(prepared(SubmitOptions::new().delay(Duration::ZERO)).expect("ok").start, Start::Now);
    }
}
