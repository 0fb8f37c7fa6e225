//! Works on a database that this process opens itself. Reads from a store that is read-only where it can be, so that it
//! works beside a process that holds the file; starts a service only for what has to be written, and ends it in `close`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use serde_json::value::RawValue;
use tokio::sync::{Mutex, OnceCell};
use windlass::store::{AuditEntry, AuditFilter, CancelReply, Counts, NodeRecord, Pause, PauseTarget, Store, Submitted};
use windlass::{
    ApiKey, Bulk, BulkAction, BulkId, BulkOptions, BulkProgress, Edit, FailureGroup, HistoryEntry, JobFilter, JobId,
    JobRecord, JobService, Keeping, LogLine, NewApiKey, OperatorRight, Page, Payload, Preview, Quota, Schedule, Scope,
    SecurityContext, Status, SubmitOptions, TenantId, TenantUse, Timestamp, UsageRow, Webhook, Within, explain,
};

use super::schedules::{NextRuns, SchedulePage, ScheduleView, next_runs};
use super::{Answers, Backend, Backlog, Condition, ENDED_OVER, Ended, Event, Handler, Policy, View, Wanted, Why};
use crate::args::Global;
use crate::connect::{Place, caller, opener, start_service};
use crate::error::{CliError, Result};

/// How often a watched job is looked at: soon enough for the eye, seldom enough for the store.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A database.
pub(super) struct Direct {
    global: Global,
    place: Place,
    store: OnceCell<Arc<dyn Store>>,
    service: Mutex<Option<JobService>>,
}

impl Direct {
    pub(super) fn new(place: Place, global: Global) -> Direct {
        Direct { global, place, store: OnceCell::new(), service: Mutex::default() }
    }

    /// The store, for reading.
    async fn store(&self) -> Result<Arc<dyn Store>> {
        if let Some(service) = &*self.service.lock().await {
            return Ok(service.store().clone());
        }
        self.store.get_or_try_init(|| self.place.read()).await.cloned()
    }

    /// A service that submits and steers but runs nothing. It is a node of the cluster until `close`.
    async fn service(&self) -> Result<JobService> {
        let mut kept = self.service.lock().await;
        if let Some(service) = &*kept {
            return Ok(service.clone());
        }
        let store = match &self.place {
            // A server takes readers and writers alike; one set of connections is enough.
            Place::Postgres(_) => self.store.get_or_try_init(|| self.place.read()).await?.clone(),
            place => place.write().await?,
        };
        Ok(kept.insert(start_service(&self.global, store).await?).clone())
    }

    /// The service within the scope that was asked for.
    async fn within(&self) -> Result<Within> {
        Ok(self.service().await?.within(self.scope()))
    }

    /// The service for the whole installation, whichever tenant was named.
    async fn operator(&self) -> Result<Within> {
        Ok(self.service().await?.operator(OperatorRight::assume()))
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
    async fn caller_of(&self, id: JobId) -> Result<(JobService, SecurityContext)> {
        let within = self.within().await?;
        Ok((self.service().await?, within.caller_of(&caller(&self.global), id).await?))
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
        let service = self.service.lock().await.take();
        if let Some(service) = service {
            service.shutdown().await;
        }
    }

    async fn submit(&self, handler: &str, input: Box<RawValue>, options: SubmitOptions) -> Result<Submitted> {
        if self.place == Place::Memory {
            return Err(CliError::invalid(
                "db",
                "memory: exists only in its own process; the job would be lost at once",
            ));
        }
        Ok(self.service().await?.submit_by_hand(&caller(&self.global), handler, &*input, options).await?)
    }

    async fn submit_many(
        &self,
        handler: &str,
        inputs: Vec<Box<RawValue>>,
        options: SubmitOptions,
    ) -> Result<Vec<Submitted>> {
        if self.place == Place::Memory {
            return Err(CliError::invalid(
                "db",
                "memory: exists only in its own process; the jobs would be lost at once",
            ));
        }
        let service = self.service().await?;
        let max = service.config().limits.payload_bytes;
        let inputs = inputs.iter().map(|input| Payload::check("input", input.get(), max)).collect();
        Ok(service.submit_many_by_hand(&caller(&self.global), handler, inputs, options).await?)
    }

    async fn list(&self, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>> {
        let store = self.store().await?;
        let mut jobs = store.find(self.scope(), filter, page, None).await?.jobs;
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
        service.retry(&ctx, id).await?;
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
        Ok(self.within().await?.preview(filter, cap).await?)
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
        let bulk: Bulk = self.within().await?.bulk(&ctx, filter, action, options).await?;
        Ok(bulk.progress())
    }

    async fn bulk_progress(&self, id: BulkId) -> Result<BulkProgress> {
        let found = self.within().await?.bulk_progress(id).await?;
        found.ok_or_else(|| CliError::NotFound(format!("there is no bulk action {id}")))
    }

    async fn bulk_stop(&self, id: BulkId) -> Result {
        self.within().await?.bulk_stop(id).await?;
        Ok(())
    }

    async fn failures(&self, filter: &JobFilter, limit: usize) -> Result<Vec<FailureGroup>> {
        let store = self.store().await?;
        Ok(opener(&self.global, &store)?.failures(&*store, self.scope(), filter, limit).await?)
    }

    async fn schedules(&self, after: Option<&str>, limit: usize) -> Result<SchedulePage> {
        let service = self.service().await?;
        // One more than the page has, to know whether another page follows.
        let mut found = service.schedules().list(&caller(&self.global), after, limit + 1).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|state| state.schedule.name.clone());
        Ok(SchedulePage { schedules: found.into_iter().map(ScheduleView::from).collect(), next })
    }

    async fn schedule(&self, name: &str) -> Result<ScheduleView> {
        Ok(self.service().await?.schedules().get(&caller(&self.global), name).await?.into())
    }

    async fn schedule_input(&self, name: &str) -> Result<Payload> {
        Ok(self.service().await?.schedules().read_input(&caller(&self.global), name).await?.schedule.input)
    }

    async fn put_schedule(&self, schedule: Schedule, keeping: Keeping) -> Result<ScheduleView> {
        Ok(self.service().await?.schedules().put_keeping(&caller(&self.global), schedule, keeping).await?.into())
    }

    async fn remove_schedule(&self, name: &str) -> Result {
        Ok(self.service().await?.schedules().remove(&caller(&self.global), name).await?)
    }

    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView> {
        let (service, ctx) = (self.service().await?, caller(&self.global));
        let state = match paused {
            true => service.schedules().pause(&ctx, name).await?,
            false => service.schedules().resume(&ctx, name).await?,
        };
        Ok(state.into())
    }

    async fn trigger_schedule(&self, name: &str) -> Result<Submitted> {
        Ok(self.service().await?.schedules().trigger(&caller(&self.global), name).await?)
    }

    async fn next_runs(&self, name: &str, count: usize, zone: Option<&str>) -> Result<NextRuns> {
        let (service, ctx) = (self.service().await?, caller(&self.global));
        let state = service.schedules().get(&ctx, name).await?;
        let times = service.schedules().next(&ctx, name, count).await?;
        next_runs(state.schedule.zone, zone.map(ToOwned::to_owned), times)
    }

    async fn schedule_runs(&self, name: &str, page: Page) -> Result<Vec<JobRecord>> {
        Ok(self.service().await?.schedules().runs(&caller(&self.global), name, page).await?)
    }

    async fn events(&self, wanted: Wanted) -> Result<Answers<Event>> {
        let feed = self.within().await?.feed(wanted.after).await?;
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
        let (now, nodes, pauses) = (self.now().await?, self.nodes().await?, self.pauses().await?);
        let lease = windlass::Config::default().lease;
        let live = nodes.into_iter().filter(|node| now.since(node.heartbeat_at) <= lease);
        let mut counts = BTreeMap::<String, usize>::new();
        for handler in live.flat_map(|node| node.info.handlers) {
            *counts.entry(handler).or_default() += 1;
        }
        let paused = |handler: &str| {
            pauses.iter().any(|pause| matches!(&pause.target, PauseTarget::Handler(paused) if paused == handler))
        };
        Ok(counts.into_iter().map(|(handler, nodes)| Handler { paused: paused(&handler), handler, nodes }).collect())
    }

    async fn backlog(&self) -> Result<Vec<Backlog>> {
        let store = self.store().await?;
        let backlog = opener(&self.global, &store)?.backlog(&*store, self.scope()).await?;
        let shape = |backlog: windlass::Backlog| Backlog {
            handler: backlog.handler,
            queue: backlog.queue,
            waiting: backlog.waiting,
            oldest_wait_ms: backlog.oldest_wait.as_millis() as u64,
            blocked: backlog.blocked,
            running: backlog.running,
            per_second: backlog.per_second,
        };
        Ok(backlog.into_iter().map(shape).collect())
    }

    async fn ended(&self) -> Result<Vec<Ended>> {
        let store = self.store().await?;
        let now = store.now().await?;
        let slices = store.activity(self.scope(), ENDED_OVER.resolution(), ENDED_OVER.from(now)).await?;
        let points = windlass::activity::arrange(slices, &[], ENDED_OVER, now).points;
        let shape = |point: &windlass::Point| Ended {
            succeeded: point.succeeded,
            canceled: point.canceled,
            dead_lettered: point.dead_lettered,
        };
        Ok(points.iter().map(shape).collect())
    }

    async fn usage(&self, from: jiff::civil::Date, to: jiff::civil::Date) -> Result<Vec<UsageRow>> {
        Ok(self.store().await?.usage_by_day(self.scope(), &from.to_string(), &to.to_string()).await?)
    }

    async fn create_key(&self, new: NewApiKey) -> Result<(ApiKey, String)> {
        Ok(self.operator().await?.create_key(&caller(&self.global), new).await?)
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>> {
        Ok(self.within().await?.api_keys().await?)
    }

    async fn revoke_key(&self, id: &str) -> Result<bool> {
        let ctx = caller(&self.global);
        Ok(self.within().await?.revoke_key(&ctx, id).await?)
    }

    async fn add_webhook(&self, url: &str, events: &[Status], handler: Option<&str>) -> Result<(Webhook, String)> {
        // What the deliverer of `serve` and `up` would refuse is refused while it can still be corrected.
        if let Err(blocked) = windlass_server::Egress::default().check(url) {
            let message = format!("{blocked}; webhooks need https and a public address");
            return Err(windlass::Error::from(windlass::InvalidInput::new("url", message)).into());
        }
        let mut new = windlass::NewWebhook::new(url);
        if !events.is_empty() {
            new.events = events.to_vec();
        }
        new.handler = handler.map(ToOwned::to_owned);
        Ok(self.service().await?.add_webhook(&caller(&self.global), new).await?)
    }

    async fn webhooks(&self) -> Result<Vec<Webhook>> {
        Ok(self.within().await?.webhooks().await?)
    }

    async fn pause_webhook(&self, id: &str, paused: bool) -> Result<bool> {
        let ctx = caller(&self.global);
        Ok(self.within().await?.pause_webhook(&ctx, id, paused).await?)
    }

    async fn remove_webhook(&self, id: &str) -> Result<bool> {
        let ctx = caller(&self.global);
        Ok(self.within().await?.remove_webhook(&ctx, id).await?)
    }

    async fn counts(&self) -> Result<Counts> {
        Ok(self.store().await?.counts(self.scope()).await?)
    }

    async fn pause(&self, target: &PauseTarget, reason: &str, force: bool) -> Result {
        let (operator, ctx) = (self.operator().await?, caller(&self.global));
        match force {
            true => operator.force_pause(&ctx, target, reason).await?,
            false => operator.pause(&ctx, target, reason).await?,
        }
        Ok(())
    }

    async fn resume(&self, target: &PauseTarget) -> Result<bool> {
        Ok(self.operator().await?.resume(&caller(&self.global), target).await?)
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        Ok(self.store().await?.pauses().await?)
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        Ok(self.store().await?.nodes().await?)
    }

    async fn not_ready(&self) -> Result<Option<String>> {
        Ok(None)
    }

    async fn condition(&self) -> Result<Option<Condition>> {
        Ok(None)
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
