//! Works on a database that this process opens itself. Reads from a store that is read-only where it can be, so that it
//! works beside a process that holds the file; starts a service only for what has to be written, and ends it in `close`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use serde_json::value::RawValue;
use tokio::sync::OnceCell;
use windlass::store::{AuditEntry, AuditFilter, CancelReply, Counts, NodeRecord, Pause, PauseTarget, Store, Submitted};
use windlass::{
    ApiKey, Bulk, BulkAction, BulkId, BulkOptions, BulkProgress, Edit, FailureGroup, HistoryEntry, JobFilter, JobId,
    JobRecord, JobService, LogLine, NewApiKey, Operator, OperatorRight, Page, Payload, Preview, Quota, Scope,
    SecurityContext, Status, SubmitOptions, TenantId, TenantUse, Timestamp, UsageRow, Webhook, explain,
};

use super::{Answers, Backend, Backlog, Event, Handler, Policy, View, Wanted, Why};
use crate::args::Global;
use crate::connect::{Place, actor, caller, opener, start_service};
use crate::error::{CliError, Result};

/// How often a watched job is looked at: soon enough for the eye, seldom enough for the store.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A database.
pub(super) struct Direct {
    global: Global,
    place: Place,
    store: OnceCell<Arc<dyn Store>>,
    service: OnceCell<JobService>,
}

impl Direct {
    pub(super) fn new(place: Place, global: Global) -> Direct {
        Direct { global, place, store: OnceCell::new(), service: OnceCell::new() }
    }

    /// The store, for reading.
    async fn store(&self) -> Result<Arc<dyn Store>> {
        if let Some(service) = self.service.get() {
            return Ok(service.store().clone());
        }
        self.store.get_or_try_init(|| self.place.read()).await.cloned()
    }

    /// A service that submits and steers but runs nothing.
    async fn service(&self) -> Result<&JobService> {
        let start = async || {
            let store = match &self.place {
                // A server takes readers and writers alike; one set of connections is enough.
                Place::Postgres(_) => self.store().await?,
                place => place.write().await?,
            };
            start_service(&self.global, store).await
        };
        self.service.get_or_try_init(start).await
    }

    /// The same, where the file may still have to be made.
    async fn service_for_submit(&self) -> Result<&JobService> {
        let start = async || start_service(&self.global, self.place.make().await?).await;
        self.service.get_or_try_init(start).await
    }

    async fn operator(&self) -> Result<Operator> {
        Ok(self.service().await?.operator(OperatorRight::assume()))
    }

    /// The bulk actions of this process.
    async fn bulks(&self) -> Result<Vec<BulkProgress>> {
        Ok(match self.global.all_tenants {
            true => self.operator().await?.bulks(),
            false => self.service().await?.bulks(&caller(&self.global)),
        })
    }

    fn scope(&self) -> Scope {
        self.global.scope()
    }

    /// A job as it is kept.
    async fn find(&self, id: JobId) -> Result<JobRecord> {
        let found = self.store().await?.get(self.scope(), &[id]).await?;
        Ok(found.into_iter().next().ok_or(windlass::Error::NotFound(id))?)
    }

    /// The service, and the caller as one of the job's own tenant, which the scope must cover.
    async fn caller_of(&self, id: JobId) -> Result<(&JobService, SecurityContext)> {
        let service = self.service().await?;
        if !self.global.all_tenants {
            return Ok((service, caller(&self.global)));
        }
        let tenant = self.find(id).await?.tenant;
        Ok((service, SecurityContext::new(tenant).with_user(actor())))
    }
}

#[async_trait]
impl Backend for Direct {
    fn describe(&self) -> String {
        self.place.describe()
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.store().await?.now().await?)
    }

    async fn close(&self) {
        if let Some(service) = self.service.get() {
            service.shutdown().await;
        }
    }

    async fn submit(&self, handler: &str, input: Box<RawValue>, options: SubmitOptions) -> Result<Submitted> {
        if self.place == Place::Memory {
            return Err(CliError::invalid("db", "memory: is gone with its process, and the job with it"));
        }
        let service = self.service_for_submit().await?;
        let ctx = caller(&self.global);
        let submitted = service.submit_named(&ctx, handler, &*input, options).await?;
        if !submitted.duplicate {
            let detail = Some(format!("handler {handler}"));
            service.audit(&ctx, "JOB_SUBMITTED", &submitted.id.to_string(), detail).await?;
        }
        Ok(submitted)
    }

    async fn list(&self, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>> {
        let store = self.store().await?;
        let mut jobs = store.list(self.scope(), filter, page).await?;
        for job in &mut jobs {
            job.output = None;
        }
        opener(&self.global, &store)?.open_records(&mut jobs).await;
        Ok(jobs)
    }

    async fn job(&self, id: JobId) -> Result<JobRecord> {
        let mut job = self.find(id).await?;
        opener(&self.global, &self.store().await?)?.open_records(std::slice::from_mut(&mut job)).await;
        Ok(job)
    }

    async fn why(&self, id: JobId) -> Result<Why> {
        if let Some(facts) = self.store().await?.whereabouts(self.scope(), id).await? {
            return Ok((&explain(&facts)).into());
        }
        // Says that it is not there.
        let job = self.find(id).await?;
        Ok((&windlass::Why::Finished { status: job.status, at: job.finished_at }).into())
    }

    async fn input(&self, id: JobId) -> Result<Payload> {
        let (store, job) = (self.store().await?, self.find(id).await?);
        let Some(kept) = store.input(self.scope(), id).await? else { return Ok(Payload::null()) };
        let opened = opener(&self.global, &store)?.open_input(&job, kept).await;
        Ok(opened.map_err(|source| windlass::Error::Sealed { job: id, source })?)
    }

    async fn history(&self, id: JobId) -> Result<Vec<HistoryEntry>> {
        let (store, job) = (self.store().await?, self.find(id).await?);
        let mut history = store.history(self.scope(), id).await?;
        opener(&self.global, &store)?.open_history(&job, &mut history).await;
        Ok(history)
    }

    async fn watch(&self, id: JobId) -> Result<Answers<View>> {
        // Says that it is not there before anything is watched.
        let first = self.job(id).await?;
        let store = self.store().await?;
        let watching = Watching { opener: opener(&self.global, &store)?, scope: self.scope(), store, id, seen: None };
        Ok(Box::pin(stream::try_unfold((watching, Some(first)), |(mut watching, first)| async {
            Ok(watching.next(first).await?.map(|view| (view, (watching, None))))
        })))
    }

    async fn cancel(&self, id: JobId, reason: &str) -> Result<CancelReply> {
        let (service, ctx) = self.caller_of(id).await?;
        Ok(service.cancel(&ctx, id, reason).await?)
    }

    async fn replay(&self, id: JobId, as_new: bool) -> Result<JobId> {
        let (service, ctx) = self.caller_of(id).await?;
        if as_new {
            return Ok(service.replay_as_new(&ctx, id, None).await?);
        }
        service.replay(&ctx, id).await?;
        Ok(id)
    }

    async fn purge(&self, id: JobId) -> Result {
        let (service, ctx) = self.caller_of(id).await?;
        Ok(service.purge(&ctx, id).await?)
    }

    async fn retry(&self, id: JobId) -> Result<JobId> {
        let (service, ctx) = self.caller_of(id).await?;
        match service.status(&ctx, id).await? {
            Status::DeadLettered => service.replay(&ctx, id).await?,
            Status::Retrying => service.run_now(&ctx, id).await?,
            status => {
                let message = format!("only retrying jobs and dead letters are retried, it is {status}");
                return Err(windlass::Error::Conflict { job: id, message }.into());
            }
        }
        Ok(id)
    }

    async fn edit(&self, id: JobId, edit: &Edit) -> Result {
        let (service, ctx) = self.caller_of(id).await?;
        Ok(service.edit(&ctx, id, edit.clone()).await?)
    }

    async fn clone_job(&self, id: JobId, input: Option<Payload>) -> Result<JobId> {
        let (service, ctx) = self.caller_of(id).await?;
        Ok(service.clone_job(&ctx, id, input).await?)
    }

    async fn logs(&self, id: JobId, after: u64) -> Result<Vec<LogLine>> {
        if self.find(id).await?.spec.sealed {
            let (service, ctx) = self.caller_of(id).await?;
            return Ok(service.logs(&ctx, id, after).await?);
        }
        Ok(self.store().await?.logs(self.scope(), id, after).await?)
    }

    async fn preview(&self, filter: &JobFilter, cap: usize) -> Result<Preview> {
        Ok(match self.global.all_tenants {
            true => self.operator().await?.preview(filter, cap).await?,
            false => self.service().await?.preview(&caller(&self.global), filter, cap).await?,
        })
    }

    async fn bulk(
        &self,
        action: &BulkAction,
        filter: &JobFilter,
        options: &BulkOptions,
        confirmed: u64,
    ) -> Result<BulkProgress> {
        // Never more than were confirmed, also if there are more by now.
        let options = options.clone().cap(options.cap.min(usize::try_from(confirmed).unwrap_or(usize::MAX)));
        let (ctx, action) = (caller(&self.global), action.clone());
        let bulk: Bulk = match self.global.all_tenants {
            true => self.operator().await?.bulk(&ctx, filter, action, options).await?,
            false => self.service().await?.bulk(&ctx, filter, action, options).await?,
        };
        Ok(bulk.progress())
    }

    async fn bulk_progress(&self, id: BulkId) -> Result<BulkProgress> {
        let found = self.bulks().await?.into_iter().find(|bulk| bulk.id == id);
        found.ok_or_else(|| CliError::NotFound(format!("there is no bulk action {id}")))
    }

    async fn bulk_stop(&self, id: BulkId) -> Result {
        match self.global.all_tenants {
            true => self.operator().await?.bulk_stop(id),
            false => self.service().await?.bulk_stop(&caller(&self.global), id),
        };
        Ok(())
    }

    async fn failures(&self, filter: &JobFilter, limit: usize) -> Result<Vec<FailureGroup>> {
        Ok(match self.global.all_tenants {
            true => self.operator().await?.failures(filter, limit).await?,
            false => self.service().await?.failures(&caller(&self.global), filter, limit).await?,
        })
    }

    async fn events(&self, wanted: Wanted) -> Result<Answers<Event>> {
        let feed = match self.global.all_tenants {
            true => self.operator().await?.feed(wanted.after).await?,
            false => self.service().await?.feed(&caller(&self.global), wanted.after).await?,
        };
        let events = feed.map(|fed| Event {
            sequence: fed.sequence,
            job: fed.event.job,
            tenant: fed.event.tenant,
            handler: fed.event.handler,
            status: fed.event.status,
            error: fed.event.error,
            at: fed.event.at,
        });
        Ok(Box::pin(events.filter(move |event| std::future::ready(wanted.matches(event))).map(Ok)))
    }

    async fn handlers(&self) -> Result<Vec<Handler>> {
        let (nodes, pauses) = (self.nodes().await?, self.pauses().await?);
        let mut counts = BTreeMap::<String, usize>::new();
        for handler in nodes.into_iter().flat_map(|node| node.info.handlers) {
            *counts.entry(handler).or_default() += 1;
        }
        let paused = |handler: &str| {
            pauses.iter().any(|pause| matches!(&pause.target, PauseTarget::Handler(paused) if paused == handler))
        };
        Ok(counts.into_iter().map(|(handler, nodes)| Handler { paused: paused(&handler), handler, nodes }).collect())
    }

    async fn backlog(&self) -> Result<Vec<Backlog>> {
        let backlog = match self.global.all_tenants {
            true => self.operator().await?.backlog().await?,
            false => self.service().await?.backlog(&caller(&self.global)).await?,
        };
        let shape = |backlog: windlass::Backlog| Backlog {
            handler: backlog.handler,
            queue: backlog.queue,
            waiting: backlog.waiting,
            oldest_wait_ms: backlog.oldest_wait.as_millis() as u64,
            running: backlog.running,
            per_second: backlog.per_second,
        };
        Ok(backlog.into_iter().map(shape).collect())
    }

    async fn usage(&self, from: jiff::civil::Date, to: jiff::civil::Date) -> Result<Vec<UsageRow>> {
        Ok(self.store().await?.usage_by_day(self.scope(), &from.to_string(), &to.to_string()).await?)
    }

    async fn create_key(&self, new: NewApiKey) -> Result<(ApiKey, String)> {
        let ctx = caller(&self.global);
        // A key may be made before anything else is: the server that asks for it comes after.
        let service = self.service_for_submit().await?;
        Ok(match new.all_tenants {
            true => service.operator(OperatorRight::assume()).create_key(&ctx, new).await?,
            false => service.create_key(&ctx, new).await?,
        })
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>> {
        Ok(match self.global.all_tenants {
            true => self.operator().await?.api_keys().await?,
            false => self.service().await?.api_keys(&caller(&self.global)).await?,
        })
    }

    async fn revoke_key(&self, id: &str) -> Result<bool> {
        let ctx = caller(&self.global);
        Ok(match self.global.all_tenants {
            true => self.operator().await?.revoke_key(&ctx, id).await?,
            false => self.service().await?.revoke_key(&ctx, id).await?,
        })
    }

    async fn add_webhook(&self, url: &str, events: &[Status], handler: Option<&str>) -> Result<(Webhook, String)> {
        let mut new = windlass::NewWebhook::new(url);
        if !events.is_empty() {
            new.events = events.to_vec();
        }
        new.handler = handler.map(ToOwned::to_owned);
        Ok(self.service().await?.add_webhook(&caller(&self.global), new).await?)
    }

    async fn webhooks(&self) -> Result<Vec<Webhook>> {
        Ok(match self.global.all_tenants {
            true => self.operator().await?.webhooks().await?,
            false => self.service().await?.webhooks(&caller(&self.global)).await?,
        })
    }

    async fn remove_webhook(&self, id: &str) -> Result<bool> {
        let ctx = caller(&self.global);
        Ok(match self.global.all_tenants {
            true => self.operator().await?.remove_webhook(&ctx, id).await?,
            false => self.service().await?.remove_webhook(&ctx, id).await?,
        })
    }

    async fn counts(&self) -> Result<Counts> {
        Ok(self.store().await?.counts(self.scope()).await?)
    }

    async fn pause(&self, target: &PauseTarget, reason: &str) -> Result {
        Ok(self.service().await?.pause(&caller(&self.global), target, reason).await?)
    }

    async fn resume(&self, target: &PauseTarget) -> Result<bool> {
        Ok(self.service().await?.resume(&caller(&self.global), target).await?)
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        Ok(self.store().await?.pauses().await?)
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        Ok(self.store().await?.nodes().await?)
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        Ok(self.store().await?.audit_log(self.scope(), filter).await?)
    }

    async fn tenants(&self) -> Result<Vec<TenantUse>> {
        // Without a tenant named, an operator wants to see all of them.
        let everyone = Scope::All(OperatorRight::assume());
        let scope = self.global.tenant.map_or(everyone, Scope::Tenant);
        Ok(self.store().await?.tenant_uses(scope).await?)
    }

    async fn quota(&self, of: Option<TenantId>) -> Result<Policy> {
        let quotas = self.store().await?.quotas().await?;
        Ok(match of {
            None => Policy { quota: quotas.default, own: false },
            Some(tenant) => Policy { quota: quotas.of(tenant).cloned(), own: quotas.own.contains_key(&tenant) },
        })
    }

    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>) -> Result {
        let (operator, ctx) = (self.operator().await?, caller(&self.global));
        match quota {
            Some(quota) => operator.set_quota(&ctx, of, quota).await?,
            None => operator.clear_quota(&ctx, of).await?,
        }
        Ok(())
    }
}

/// One job that is looked at again and again. No service: watching must not need the right to write.
struct Watching {
    opener: windlass::Opener,
    scope: Scope,
    store: Arc<dyn Store>,
    id: JobId,
    seen: Option<View>,
}

impl Watching {
    /// The next change; none once it has ended.
    async fn next(&mut self, first: Option<JobRecord>) -> Result<Option<View>> {
        if self.seen.as_ref().is_some_and(|seen| seen.status.is_terminal()) {
            return Ok(None);
        }
        let mut job = first;
        loop {
            let looked = match job.take() {
                Some(job) => job,
                None => {
                    tokio::time::sleep(LOOK_EVERY).await;
                    let found = self.store.get(self.scope, &[self.id]).await?;
                    let mut job = found.into_iter().next().ok_or(windlass::Error::NotFound(self.id))?;
                    self.opener.open_records(std::slice::from_mut(&mut job)).await;
                    job
                }
            };
            let view = View::from(&looked);
            if self.seen.as_ref() != Some(&view) {
                self.seen = Some(view.clone());
                return Ok(Some(view));
            }
        }
    }
}
