//! Steering: cancel, pause, resume, replay, retry, clone and purge, each with its line in the audit log. Called by the service's
//! users and by `bulk`, job by job. What changes a waiting job is in `operate/edit.rs`.

use std::collections::BTreeSet;

use crate::life::context::Stop;
use crate::life::submit::{RESERVED, check_name};
use crate::model::error::{Error, HANDLERS_NAMED};
use crate::model::filter::JobFilter;
use crate::model::id::JobId;
use crate::model::job::{JobRecord, NewJob, Page, Status, SubmitOptions};
use crate::model::payload::Payload;
use crate::model::tenant::{Scope, SecurityContext, TenantId};
use crate::operate::activity::Counted;
use crate::operate::look::SEARCHED_JOBS;
use crate::operate::watch::JobView;
use crate::operate::within::Within;
use crate::quota::{Quota, Quotas};
use crate::service::JobService;
use crate::store::{AuditEntry, CancelReply, News, Pause, PauseTarget, ReplayReply, ReplayedAs};

impl JobService {
    /// Cancels a job: at once if it waits; if it runs, the handler is asked to stop and aborted after a grace period.
    /// Repeating the call is safe.
    pub async fn cancel(&self, ctx: &SecurityContext, id: JobId, reason: &str) -> Result<CancelReply, Error> {
        self.limits().check_note("reason", reason)?;
        if let Some(reply) = self.local().cancel(ctx.scope(), id) {
            return match reply {
                CancelReply::AlreadyFinished(status) if status != Status::Canceled => {
                    Err(Error::AlreadyFinished { job: id, status })
                }
                reply => Ok(reply),
            };
        }
        let worker = self.worker();
        let reply = worker.store.cancel(ctx.scope(), id, ctx.actor(), reason).await?;
        match reply {
            CancelReply::Requested => {
                if !worker.stop_attempt(id, None, Stop::Canceled) {
                    worker.store.wake_others(News::Ready);
                }
            }
            CancelReply::Canceled => {
                self.count_canceled(ctx, id).await;
                worker.watchers.show(id, || JobView {
                    status: Status::Canceled,
                    progress: None,
                    output: None,
                    error: None,
                });
                // It may have held an ordering key.
                worker.jobs_are_ready();
            }
            CancelReply::AlreadyFinished(Status::Canceled) => {}
            CancelReply::AlreadyFinished(status) => return Err(Error::AlreadyFinished { job: id, status }),
            CancelReply::NotFound => return Err(Error::NotFound(id)),
        }
        Ok(reply)
    }

    /// Counts a waiting job that was canceled, under its handler.
    async fn count_canceled(&self, ctx: &SecurityContext, id: JobId) {
        let record = self.lookups().get(ctx.scope(), id).await.ok().flatten();
        self.worker().count_canceled(ctx.tenant, record.as_ref());
    }

    /// Stops starting the caller's jobs, on every node within a second, until they are resumed. `target` is the
    /// caller's own tenant; anything else takes the scope of all tenants and is [`Error::Forbidden`] here.
    pub async fn pause(&self, ctx: &SecurityContext, target: &PauseTarget, reason: &str) -> Result<(), Error> {
        self.within(ctx.scope()).pause(ctx, target, reason).await
    }

    /// Ends a pause of the caller's own tenant. Returns false if it was not paused.
    pub async fn resume(&self, ctx: &SecurityContext, target: &PauseTarget) -> Result<bool, Error> {
        self.within(ctx.scope()).resume(ctx, target).await
    }

    /// Refuses a handler that nobody has or had and that no job of the scope is for: what was meant would be missed.
    pub(crate) async fn check_known(&self, scope: Scope, handler: &str) -> Result<(), Error> {
        let worker = self.worker();
        if worker.registry.get(handler).is_some() || self.remote_handlers().iter().any(|remote| remote == handler) {
            return Ok(());
        }
        let nodes = worker.store.nodes().await?;
        let live: BTreeSet<String> = nodes.into_iter().flat_map(|node| node.info.handlers).collect();
        if live.contains(handler) {
            return Ok(());
        }
        let handler = handler.to_owned();
        if worker.store.last_served(&[], std::slice::from_ref(&handler)).await?.iter().any(Option::is_some) {
            return Ok(());
        }
        let filter = JobFilter { handler: Some(handler.clone()), ..JobFilter::all() };
        let found = worker.store.find(scope, &filter, Page::first(1), Some(SEARCHED_JOBS)).await?;
        match found.jobs.is_empty() {
            false => Ok(()),
            true => Err(Error::HandlerUnknown { handler, live: live.into_iter().take(HANDLERS_NAMED).collect() }),
        }
    }

    /// The active pauses that may affect the caller's jobs: its own, those of handlers, and the global one.
    pub async fn pauses(&self, ctx: &SecurityContext) -> Result<Vec<Pause>, Error> {
        self.within(ctx.scope()).pauses().await
    }

    /// Runs a dead letter again, with its attempts counted from zero.
    pub async fn replay(&self, ctx: &SecurityContext, id: JobId) -> Result<(), Error> {
        let worker = self.worker();
        match worker.store.replay(ctx.scope(), id, ctx.actor()).await? {
            ReplayReply::Replayed => {
                worker.jobs_are_ready();
                Ok(())
            }
            ReplayReply::NotDead(status) => Err(not_dead(id, status)),
            ReplayReply::NotFound => Err(Error::NotFound(id)),
        }
    }

    /// Puts a failing job back to work: replays a dead letter, runs a retrying job now. [`Error::Conflict`] in any other
    /// status.
    pub async fn retry(&self, ctx: &SecurityContext, id: JobId) -> Result<(), Error> {
        let status = self.status(ctx, id).await?;
        self.retry_from(ctx, id, status).await
    }

    /// The same for a job whose status was just read.
    pub(crate) async fn retry_from(&self, ctx: &SecurityContext, id: JobId, status: Status) -> Result<(), Error> {
        match status {
            Status::DeadLettered => self.replay(ctx, id).await,
            Status::Retrying => self.run_now(ctx, id).await,
            status => {
                let message = format!("only retrying jobs and dead letters can be retried; the job is {status}");
                Err(Error::Conflict { job: id, message })
            }
        }
    }

    /// Submits a dead letter again as a new, linked job, with the same or another input. The dead letter is marked and removed
    /// after 30 days. This happens once: later calls return the id of the first new job.
    pub async fn replay_as_new(
        &self,
        ctx: &SecurityContext,
        id: JobId,
        input: Option<Payload>,
    ) -> Result<JobId, Error> {
        let record = self.get(ctx, id).await?;
        if let Some(replayed) = &record.replayed {
            return Ok(replayed.as_job);
        }
        if record.status != Status::DeadLettered {
            return Err(not_dead(id, record.status));
        }
        if self.in_memory(&record.handler).is_some() {
            // Stored, nobody would ever claim it; in memory, it would not be one step with the mark.
            let message = format!(
                "`{}` is not restartable any more, so that its jobs cannot be stored; replay it in place, or clone it",
                record.handler
            );
            return Err(Error::Conflict { job: id, message });
        }
        let job = self.prepare_again(ctx, record, input).await?;
        let worker = self.worker();
        let keep = worker.config.replayed_retention;
        let (handler, priority) = (job.handler.clone(), job.priority);
        match worker.store.replay_as(ctx.scope(), id, ctx.actor(), job, keep).await? {
            ReplayedAs::New(new) => {
                let counted = Counted { tenant: ctx.tenant, handler: &handler, priority };
                worker.tally.submitted(std::iter::once(counted));
                worker.jobs_are_ready();
                Ok(new)
            }
            ReplayedAs::Before(first) => Ok(first),
            ReplayedAs::NotDead(status) => Err(not_dead(id, status)),
            ReplayedAs::NotFound => Err(Error::NotFound(id)),
        }
    }

    /// Submits a job in any status again as a new, linked job, with the same or another input. The original stays as it is.
    /// The new job starts now, without the original's idempotency and unique keys.
    pub async fn clone_job(&self, ctx: &SecurityContext, id: JobId, input: Option<Payload>) -> Result<JobId, Error> {
        let record = self.get(ctx, id).await?;
        if record.spec.callback.is_some() {
            let message = "it is a callback, which belongs to the job it follows".to_owned();
            return Err(Error::Conflict { job: id, message });
        }
        let job = self.prepare_again(ctx, record, input).await?;
        let handler = job.handler.clone();
        Ok(self.submit_prepared(&handler, vec![job]).await?.pop().expect("one answer for one job").id)
    }

    /// A new job like another one, which it names as its parent.
    async fn prepare_again(
        &self,
        ctx: &SecurityContext,
        record: JobRecord,
        input: Option<Payload>,
    ) -> Result<NewJob, Error> {
        let input = match input {
            Some(_) if record.handler.starts_with(RESERVED) => return Err(engines_own(record.id)),
            Some(input) => input,
            None => self.input(ctx, record.id).await?,
        };
        let mut options = SubmitOptions::new().priority(record.priority);
        options.ordering_key = record.ordering_key;
        options.tags = record.tags;
        options.batch = record.batch;
        options.correlation_id = record.correlation_id;
        options.spec = record.spec;
        options.spec.parent = Some(record.id);
        // The first started long ago; its expiry and a deadline that is over would end the new job before it starts.
        options.spec.expires_at = None;
        options.spec.deadline_at = options.spec.deadline_at.filter(|at| *at > self.now());
        self.prepare_payload(ctx, &record.handler, input, options).await
    }

    /// Removes an ended job.
    pub async fn purge(&self, ctx: &SecurityContext, id: JobId) -> Result<(), Error> {
        if self.worker().store.purge(ctx.scope(), id, ctx.actor()).await? {
            return Ok(());
        }
        let record = self.get(ctx, id).await?;
        Err(Error::Conflict {
            job: id,
            message: format!("only ended jobs can be purged; the job is {}", record.status),
        })
    }

    /// Writes an entry into the audit log in the caller's name.
    pub async fn audit(
        &self,
        ctx: &SecurityContext,
        action: &str,
        target: &str,
        detail: Option<String>,
    ) -> Result<(), Error> {
        let limits = self.limits();
        limits.check_note("action", action)?;
        limits.check_note("target", target)?;
        limits.check_note("detail", detail.as_deref().unwrap_or(""))?;
        let entry = AuditEntry {
            sequence: 0,
            at: self.worker().now(),
            actor: ctx.actor().to_owned(),
            tenant: Some(ctx.tenant),
            action: action.to_owned(),
            target: target.to_owned(),
            detail,
        };
        Ok(self.worker().store.audit(entry).await?)
    }
}

impl Within {
    /// Stops starting jobs of a tenant, or with the scope of all tenants also those of a handler or of everyone, on every
    /// node within a second, until they are resumed. Running ones go on. A handler that no node has or had lately
    /// and that none of the newest [`SEARCHED_JOBS`] jobs is for is [`Error::HandlerUnknown`].
    pub async fn pause(&self, by: &SecurityContext, target: &PauseTarget, reason: &str) -> Result<(), Error> {
        self.check_pause(target)?;
        if let PauseTarget::Handler(handler) = target {
            self.service().check_known(self.scope(), handler).await?;
        }
        self.force_pause(by, target, reason).await
    }

    /// Like [`pause`](Operator::pause), also for a handler that no node has yet.
    pub async fn force_pause(&self, by: &SecurityContext, target: &PauseTarget, reason: &str) -> Result<(), Error> {
        self.limits().check_note("reason", reason)?;
        self.check_pause(target)?;
        let worker = self.worker();
        worker.store.pause(target, by.actor(), reason).await?;
        worker.read_pauses().await?;
        worker.store.wake_others(News::Ready);
        Ok(())
    }

    /// Ends a pause. Returns false if there was none.
    pub async fn resume(&self, by: &SecurityContext, target: &PauseTarget) -> Result<bool, Error> {
        self.check_pause(target)?;
        let worker = self.worker();
        let resumed = worker.store.resume(target, by.actor()).await?;
        worker.read_pauses().await?;
        worker.jobs_are_ready();
        Ok(resumed)
    }

    /// The pauses in force that may hold jobs of the scope: its own, and those of handlers and of everything.
    pub async fn pauses(&self) -> Result<Vec<Pause>, Error> {
        let mut pauses = self.store().pauses().await?;
        pauses.retain(|pause| !matches!(pause.target, PauseTarget::Tenant(tenant) if !self.scope().covers(tenant)));
        Ok(pauses)
    }

    /// A tenant pauses itself only: a handler's pause holds every tenant's jobs.
    fn check_pause(&self, target: &PauseTarget) -> Result<(), Error> {
        match target {
            PauseTarget::Tenant(tenant) if self.scope().covers(*tenant) => return Ok(()),
            target => self.check_all(&format!("pausing or resuming {}", target.name()))?,
        }
        match target {
            PauseTarget::Handler(handler) => Ok(check_name("handler", handler, self.limits().name_bytes)?),
            _ => Ok(()),
        }
    }

    /// Sets what a tenant may use, or every tenant that has no policy of its own (`None`). Every node follows within
    /// about a second; what is stored already stays. Needs the scope of all tenants.
    pub async fn set_quota(&self, by: &SecurityContext, of: Option<TenantId>, quota: &Quota) -> Result<(), Error> {
        quota.check()?;
        self.put_quota(by, of, Some(quota)).await
    }

    /// Takes a policy back: the default holds for the tenant again, or nothing is limited by default. Needs the scope of
    /// all tenants.
    pub async fn clear_quota(&self, by: &SecurityContext, of: Option<TenantId>) -> Result<(), Error> {
        self.put_quota(by, of, None).await
    }

    async fn put_quota(&self, by: &SecurityContext, of: Option<TenantId>, quota: Option<&Quota>) -> Result<(), Error> {
        self.check_all("setting quotas")?;
        self.store().set_quota(of, quota, by.actor()).await?;
        self.worker().jobs_are_ready();
        Ok(())
    }

    /// The policies in force. Needs the scope of all tenants.
    pub async fn quotas(&self) -> Result<Quotas, Error> {
        self.check_all("reading the quotas of all tenants")?;
        Ok(self.store().quotas().await?)
    }
}

fn not_dead(job: JobId, status: Status) -> Error {
    Error::Conflict { job, message: format!("only dead letters can be replayed; the job is {status}") }
}

/// Why nobody gives a job of the engine's own another input: it would be forged.
pub(crate) fn engines_own(job: JobId) -> Error {
    Error::Conflict { job, message: "it belongs to Windlass itself, and its input cannot be changed".to_owned() }
}
