//! Webhooks: who outside wants to be told of status events, and the dispatcher that makes a job of each telling. One node
//! at a time dispatches, by a lease with an epoch; it reads the feed from a stored position, and a key of hook and sequence lets
//! each telling be stored once. Never sends anything: the handler [`WEBHOOK_HANDLER`] does, in `windlass-server`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::admin::access::{base62, random};
use crate::config::check_text;
use crate::life::context::JobContext;
use crate::life::submit::{Wanted, check_name, prepare};
use crate::model::clock::Timestamp;
use crate::model::error::{Error, InvalidInput};
use crate::model::id::JobId;
use crate::model::job::{NewJob, Status, SubmitOptions};
use crate::model::payload::Payload;
use crate::model::tenant::{Scope, SecurityContext, TenantId};
use crate::node::Worker;
use crate::operate::feed::{Order, POLL_EVENTS, RENEW_EVERY, WANTED_FOR};
use crate::operate::watch::JobEvent;
use crate::operate::within::Within;
use crate::seal::{Kind, SEALED, Seals};
use crate::service::JobService;
use crate::store::{self, AuditEntry, FeedRow, Submit, WebhookRecord};

/// The handler, and the queue, of delivery jobs. Its input is a [`WebhookDelivery`].
pub const WEBHOOK_HANDLER: &str = "windlass.webhook";

/// The audit action when Windlass itself switches a webhook off because deliveries cannot succeed; its detail is the
/// reason. The resulting pause is the next entry, `WEBHOOK_PAUSED`, by [`WEBHOOK_SWITCHED_OFF_BY`].
pub const WEBHOOK_SWITCHED_OFF: &str = "WEBHOOK_SWITCHED_OFF";

/// The actor in the audit log when Windlass itself switches a webhook off.
pub const WEBHOOK_SWITCHED_OFF_BY: &str = "windlass";

/// The maximum number of webhooks of one tenant: each costs a job per event.
pub const WEBHOOKS_MAX: usize = 100;

/// Bytes of a webhook's address.
const URL_BYTES: usize = 2_048;

/// How long a delivery is kept after its end.
const DELIVERY_KEPT: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// An address that receives status events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Webhook {
    /// Its name in the store.
    pub id: String,
    /// The tenant whose events it receives.
    pub tenant: TenantId,
    /// The URL that events are sent to.
    pub url: String,
    /// The statuses that cause an event.
    pub events: Vec<Status>,
    /// Only jobs of this handler.
    pub handler: Option<String>,
    /// Whether it is paused. Events that happen during a pause are never delivered.
    pub paused: bool,
    /// Since when it receives events: since it was created or last resumed.
    #[serde(default)]
    pub active_since: Timestamp,
    /// When it was created.
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: String,
}

impl Webhook {
    /// A webhook with nothing but its names. Stores fill in the rest.
    pub fn new(id: impl Into<String>, tenant: TenantId, url: impl Into<String>) -> Webhook {
        Webhook {
            id: id.into(),
            tenant,
            url: url.into(),
            events: Vec::new(),
            handler: None,
            paused: false,
            active_since: Timestamp::default(),
            created_at: Timestamp::default(),
            created_by: String::new(),
        }
    }

    /// Whether it receives an event. Deliveries themselves cause none: each would cause the next.
    pub fn wants(&self, event: &JobEvent) -> bool {
        !self.paused
            && self.tenant == event.tenant
            && self.active_since <= event.at
            && event.handler != WEBHOOK_HANDLER
            && self.events.contains(&event.status)
            && self.handler.as_ref().is_none_or(|handler| *handler == event.handler)
    }
}

/// A webhook to create.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NewWebhook {
    /// The URL: `https://…`, or `http://…` where the server allows it.
    pub url: String,
    /// The statuses that cause an event; by default every way in which a job ends.
    pub events: Vec<Status>,
    /// Only jobs of this handler.
    pub handler: Option<String>,
}

impl NewWebhook {
    /// A webhook for every end of a job.
    pub fn new(url: impl Into<String>) -> NewWebhook {
        let events = Status::ALL.into_iter().filter(|status| status.is_terminal()).collect();
        NewWebhook { url: url.into(), events, handler: None }
    }

    /// Sets the statuses that cause an event.
    #[must_use]
    pub fn events(mut self, events: impl IntoIterator<Item = Status>) -> Self {
        self.events = events.into_iter().collect();
        self
    }

    /// Limits it to jobs of one handler.
    #[must_use]
    pub fn handler(mut self, handler: impl Into<String>) -> Self {
        self.handler = Some(handler.into());
        self
    }

    fn check(&self, name_bytes: usize) -> Result<(), InvalidInput> {
        check_text("url", &self.url, URL_BYTES)?;
        let rest = self.url.strip_prefix("https://").or_else(|| self.url.strip_prefix("http://"));
        let Some(rest) = rest else { return Err(InvalidInput::new("url", "must begin with https:// or http://")) };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.is_empty() || authority.contains('@') {
            return Err(InvalidInput::new("url", "must have a host and no user name"));
        }
        if self.url.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(InvalidInput::new("url", "must not contain spaces or control characters"));
        }
        if self.events.is_empty() {
            return Err(InvalidInput::new(
                "events",
                "must contain at least one event; an empty list would deliver nothing",
            ));
        }
        match self.handler.as_deref() {
            Some(WEBHOOK_HANDLER) => Err(InvalidInput::new("handler", "webhook deliveries cause no events")),
            Some(handler) => check_name("handler", handler, name_bytes),
            None => Ok(()),
        }
    }
}

/// The input of the handler [`WEBHOOK_HANDLER`]: a webhook and an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WebhookDelivery {
    /// The webhook's id.
    pub webhook: String,
    /// The event's place in the feed; the same for every try.
    pub sequence: u64,
    /// What happened.
    pub event: JobEvent,
}

impl JobService {
    /// Sends the tenant's status events to an address from now on. Returns the secret that signs deliveries, which is not
    /// shown again. Audited as `WEBHOOK_ADDED`. Fails with [`Error::HandlerUnknown`] for a handler that no node had lately
    /// and that none of the tenant's newest [`SEARCHED_JOBS`](crate::SEARCHED_JOBS) jobs uses, because such a webhook would
    /// receive nothing.
    pub async fn add_webhook(&self, ctx: &SecurityContext, new: NewWebhook) -> Result<(Webhook, String), Error> {
        let worker = self.worker();
        new.check(worker.config.limits.name_bytes)?;
        if let Some(handler) = &new.handler {
            self.check_known(ctx.scope(), handler).await?;
        }
        if worker.store.webhooks(ctx.scope()).await?.len() >= WEBHOOKS_MAX {
            return Err(InvalidInput::new(
                "webhooks",
                format!("the tenant already has the maximum of {WEBHOOKS_MAX} webhooks"),
            )
            .into());
        }
        let id = worker.next_id();
        // Base 62 is also valid base 64, which verifiers of signatures expect after the prefix.
        let secret = format!("whsec_{}", base62::<44>(&random::<32>()?));
        let kept = Payload::from_store(format!("\"{secret}\""));
        let sealer = worker.seals.sealer(ctx.tenant).await?;
        let (kept, sealed) = match &sealer {
            Some(sealer) => (sealer.seal(id, Kind::Secret, &kept), true),
            None => (kept, false),
        };
        let mut webhook = Webhook::new(id.to_string(), ctx.tenant, new.url);
        webhook.events = new.events;
        webhook.handler = new.handler;
        webhook.created_by = ctx.actor().to_owned();
        let webhook = worker.store.add_webhook(WebhookRecord { webhook, secret: kept, sealed }).await?;
        self.begin_telling().await?;
        Ok((webhook, secret))
    }

    /// The tenant's webhooks.
    pub async fn webhooks(&self, ctx: &SecurityContext) -> Result<Vec<Webhook>, Error> {
        self.within(ctx.scope()).webhooks().await
    }

    /// Removes a webhook of the tenant. Returns false if no such webhook exists. Audited as `WEBHOOK_REMOVED`.
    pub async fn remove_webhook(&self, ctx: &SecurityContext, id: &str) -> Result<bool, Error> {
        self.within(ctx.scope()).remove_webhook(ctx, id).await
    }

    /// Pauses a webhook of the tenant, or resumes it. Returns false if no such webhook exists. Audited as
    /// `WEBHOOK_PAUSED` or `WEBHOOK_RESUMED`.
    pub async fn pause_webhook(&self, ctx: &SecurityContext, id: &str, paused: bool) -> Result<bool, Error> {
        self.within(ctx.scope()).pause_webhook(ctx, id, paused).await
    }

    /// Lets nodes write events for webhooks from now on; events before they learn of it are not delivered.
    async fn begin_telling(&self) -> Result<(), Error> {
        self.worker().chores.webhooks.store(true, Ordering::Release);
        Ok(self.worker().store.want_feed(WANTED_FOR).await?)
    }

    /// A webhook with its secret, for the handler that signs. Never for a caller from outside.
    pub async fn webhook(&self, ctx: &SecurityContext, id: &str) -> Result<Option<(Webhook, String)>, Error> {
        let worker = self.worker();
        with_secret(&worker.seals, worker.store.webhooks(ctx.scope()).await?, id).await
    }
}

impl JobContext {
    /// A webhook of the job's tenant with its secret, for the handler [`WEBHOOK_HANDLER`] that signs with it. For any
    /// other handler there is none.
    pub async fn webhook(&self, id: &str) -> Result<Option<(Webhook, String)>, Error> {
        let link = &self.attempt_state().link;
        let (Some(store), Some(seals)) = (self.delivers_by(), link.seals()) else { return Ok(None) };
        with_secret(seals, store.webhooks(Scope::Tenant(self.tenant())).await?, id).await
    }

    /// Switches a webhook of the job's tenant off, for the handler [`WEBHOOK_HANDLER`] that cannot tell it anything; any
    /// other handler switches nothing off. The audit log says who (`windlass`) and why, before the webhook is off: if the
    /// store fails between the two, it is told of the next event and switched off then.
    pub async fn switch_off_webhook(&self, id: &str, why: &str) -> Result<(), Error> {
        let Some(store) = self.delivers_by() else { return Ok(()) };
        let hooks = store.webhooks(Scope::Tenant(self.tenant())).await?;
        if hooks.iter().all(|record| record.webhook.id != id || record.webhook.paused) {
            return Ok(());
        }
        let entry = AuditEntry {
            sequence: 0,
            at: Timestamp::default(),
            actor: WEBHOOK_SWITCHED_OFF_BY.to_owned(),
            tenant: Some(self.tenant()),
            action: WEBHOOK_SWITCHED_OFF.to_owned(),
            target: id.to_owned(),
            detail: Some(format!("{why} (job {})", self.job_id())),
        };
        store.audit(entry).await?;
        store.pause_webhook(Scope::Tenant(self.tenant()), id, true, WEBHOOK_SWITCHED_OFF_BY).await?;
        tracing::warn!(webhook = id, tenant = %self.tenant(), "webhook {id} is switched off: {why}");
        Ok(())
    }

    /// The store, for an attempt of the engine's own handler.
    fn delivers_by(&self) -> Option<&Arc<dyn store::Store>> {
        self.attempt_state().link.store().filter(|_| self.handler() == WEBHOOK_HANDLER)
    }
}

async fn with_secret(seals: &Seals, hooks: Vec<WebhookRecord>, id: &str) -> Result<Option<(Webhook, String)>, Error> {
    let Some(record) = hooks.into_iter().find(|record| record.webhook.id == id) else { return Ok(None) };
    let kept = match (record.sealed, id.parse::<JobId>()) {
        (true, Ok(id)) => seals.open(record.webhook.tenant, id, Kind::Secret, &record.secret).await?,
        _ => record.secret,
    };
    let secret = kept.decode::<String>();
    let secret = secret.map_err(|_| store::Error::Internal(format!("the secret of webhook {id} cannot be read")))?;
    Ok(Some((record.webhook, secret)))
}

impl Within {
    /// The webhooks of the scope.
    pub async fn webhooks(&self) -> Result<Vec<Webhook>, Error> {
        Ok(without_secrets(self.store().webhooks(self.scope()).await?))
    }

    /// Ends a webhook of the scope, as [`JobService::remove_webhook`].
    pub async fn remove_webhook(&self, by: &SecurityContext, id: &str) -> Result<bool, Error> {
        check_text("id", id, self.limits().key_bytes)?;
        Ok(self.store().remove_webhook(self.scope(), id, by.actor()).await?)
    }

    /// Stops telling a webhook of the scope, or goes on, as [`JobService::pause_webhook`].
    pub async fn pause_webhook(&self, by: &SecurityContext, id: &str, paused: bool) -> Result<bool, Error> {
        check_text("id", id, self.limits().key_bytes)?;
        let found = self.store().pause_webhook(self.scope(), id, paused, by.actor()).await?;
        if found && !paused {
            self.service().begin_telling().await?;
        }
        Ok(found)
    }
}

fn without_secrets(records: Vec<WebhookRecord>) -> Vec<Webhook> {
    records.into_iter().map(|record| record.webhook).collect()
}

// ---- the dispatcher

/// The name of the dispatcher's lease.
const DISPATCHER: &str = "webhooks";

/// How long the dispatcher's lease holds: for this long nobody dispatches after a dispatcher was lost.
const HELD_FOR: Duration = Duration::from_secs(10);

/// How often the lease is renewed, or asked for by nodes that do not hold it.
const HOLD_EVERY: Duration = Duration::from_secs(3);

/// How often the feed is read for webhooks.
const DISPATCH_EVERY: Duration = Duration::from_millis(500);

/// How far a dispatcher has come.
struct Dispatch {
    epoch: u64,
    order: Order<FeedRow>,
    /// The position as it is stored.
    kept: u64,
    wanted: Instant,
}

impl Worker {
    /// Makes jobs of what webhooks want to be told, on one node at a time, until the node stops.
    pub(crate) async fn dispatch_webhooks(self: Arc<Self>) {
        let mut dispatch: Option<Dispatch> = None;
        let mut asked: Option<Instant> = None;
        while !self.stopped.is_cancelled() {
            if !self.chores.webhooks.load(Ordering::Acquire) {
                (dispatch, asked) = (None, None);
                self.rest(DISPATCH_EVERY).await;
                continue;
            }
            if asked.is_none_or(|at| at.elapsed() >= HOLD_EVERY) {
                asked = Some(Instant::now());
                dispatch = match self.hold_webhooks(dispatch.take()).await {
                    Ok(dispatch) => dispatch,
                    Err(error) => {
                        tracing::warn!(%error, "could not ask who dispatches webhooks");
                        None
                    }
                };
            }
            if let Some(mut current) = dispatch.take() {
                match self.dispatch_on(&mut current).await {
                    Ok(true) => dispatch = Some(current),
                    Ok(false) => tracing::info!("another node dispatches webhooks now"),
                    // From the stored position again, as soon as the lease is asked for: what is stored already is not again.
                    Err(error) => tracing::warn!(%error, "could not dispatch webhooks, trying again"),
                }
            }
            self.rest(DISPATCH_EVERY).await;
        }
    }

    /// Takes or renews the lease. Returns where to go on, if this node holds it.
    async fn hold_webhooks(&self, current: Option<Dispatch>) -> store::Result<Option<Dispatch>> {
        let Some(lease) = self.store.hold(DISPATCHER, self.membership().node, HELD_FOR).await? else { return Ok(None) };
        if let Some(current) = current.filter(|current| current.epoch == lease.epoch) {
            return Ok(Some(current));
        }
        self.store.want_feed(WANTED_FOR).await?;
        // The first dispatcher begins with what is kept: each webhook is told only of what happened since it is active.
        let position = lease.position.unwrap_or(0);
        Ok(Some(Dispatch {
            epoch: lease.epoch,
            order: Order::starting_after(position),
            kept: position,
            wanted: Instant::now(),
        }))
    }

    /// Dispatches what is new. False if the lease is lost.
    async fn dispatch_on(&self, dispatch: &mut Dispatch) -> store::Result<bool> {
        if dispatch.wanted.elapsed() >= RENEW_EVERY {
            self.store.want_feed(WANTED_FOR).await?;
            dispatch.wanted = Instant::now();
        }
        loop {
            let rows = self.store.read_feed(&dispatch.order.ask(), POLL_EVENTS).await?;
            let is_full = rows.len() >= POLL_EVENTS;
            for row in rows {
                dispatch.order.take_in(row.sequence, row, Instant::now());
            }
            let released = dispatch.order.release(Instant::now());
            if !released.is_empty() {
                self.dispatch_rows(released).await?;
            }
            let settled = dispatch.order.settled();
            if settled != dispatch.kept {
                if !self.store.advance(DISPATCHER, dispatch.epoch, settled).await? {
                    return Ok(false);
                }
                dispatch.kept = settled;
            }
            if !is_full || self.stopped.is_cancelled() {
                return Ok(true);
            }
        }
    }

    async fn dispatch_rows(&self, rows: Vec<FeedRow>) -> store::Result<()> {
        let hooks = without_secrets(self.store.webhooks(Scope::ENGINE).await?);
        let mut by_tenant: BTreeMap<TenantId, Vec<WebhookDelivery>> = BTreeMap::new();
        for row in rows {
            let sequence = row.sequence;
            let Some(event) = self.event_of(row).await else { continue };
            for hook in hooks.iter().filter(|hook| hook.wants(&event)) {
                let delivery = WebhookDelivery { webhook: hook.id.clone(), sequence, event: event.clone() };
                by_tenant.entry(event.tenant).or_default().push(delivery);
            }
        }
        let mut stored = false;
        for (tenant, deliveries) in by_tenant {
            let jobs = self.jobs_of_deliveries(tenant, deliveries).await;
            for jobs in jobs.chunks(self.config.limits.batch_jobs.max(1)) {
                match self.store.submit(Submit { jobs: jobs.to_vec(), lease: None }).await {
                    Ok(_) => stored = true,
                    // One tenant's quota must not hold up the others' webhooks.
                    Err(store::Error::QuotaExceeded(error)) => {
                        tracing::warn!(%tenant, tellings = jobs.len(), %error, "webhooks are not told: the tenant is over its quota");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if stored {
            self.jobs_are_ready();
        }
        Ok(())
    }

    async fn jobs_of_deliveries(&self, tenant: TenantId, deliveries: Vec<WebhookDelivery>) -> Vec<NewJob> {
        let ctx = SecurityContext::new(tenant).with_user("windlass");
        let sealer = self.seals.sealer(tenant).await;
        let mut jobs = Vec::with_capacity(deliveries.len());
        for mut delivery in deliveries {
            if sealer.is_err() {
                // Without the tenant's key nothing of what its job said may be kept.
                if let Some(error) = &mut delivery.event.error {
                    (error.message, error.details) = (SEALED.to_owned(), None);
                }
            }
            let key = format!("{WEBHOOK_HANDLER}:{}:{}", delivery.webhook, delivery.sequence);
            let made = Payload::encode("input", &delivery, self.config.limits.payload_bytes).and_then(|payload| {
                let mut options = SubmitOptions::new().idempotency_key(key);
                options.spec.retention = Some(DELIVERY_KEPT);
                let wanted = Wanted { handler: WEBHOOK_HANDLER, queue: WEBHOOK_HANDLER, payload, options };
                prepare(&ctx, self.next_id(), wanted, &self.config.limits, self.now(), |_, _, _| String::new())
            });
            match made {
                Ok(mut job) => {
                    if let Ok(Some(sealer)) = &sealer {
                        sealer.seal_new(&mut job);
                    }
                    jobs.push(job);
                }
                Err(error) => {
                    tracing::warn!(%tenant, webhook = delivery.webhook, %error, "a webhook is not told of an event")
                }
            }
        }
        jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(status: Status, handler: &str) -> JobEvent {
        let (job, at) = (JobId::from_i64(1), Timestamp::from_millis(10));
        JobEvent { job, tenant: TenantId::ROOT, handler: handler.into(), status, attempt: 1, error: None, at }
    }

    #[test]
    fn a_webhook_is_told_of_what_it_asked_for() {
        let mut hook = Webhook::new("1", TenantId::ROOT, "https://example.com/hook");
        hook.events = vec![Status::DeadLettered];
        assert!(hook.wants(&event(Status::DeadLettered, "a")));
        assert!(!hook.wants(&event(Status::Succeeded, "a")));
        assert!(!hook.wants(&event(Status::DeadLettered, WEBHOOK_HANDLER)), "or it would be told of its own failures");
        assert!(!Webhook { handler: Some("b".into()), ..hook.clone() }.wants(&event(Status::DeadLettered, "a")));
        assert!(!Webhook { paused: true, ..hook.clone() }.wants(&event(Status::DeadLettered, "a")));
        let resumed_later = Webhook { active_since: Timestamp::from_millis(11), ..hook.clone() };
        assert!(!resumed_later.wants(&event(Status::DeadLettered, "a")));
        let others = TenantId(uuid::Uuid::from_u128(1));
        assert!(!Webhook { tenant: others, ..hook }.wants(&event(Status::DeadLettered, "a")));
    }

    #[test]
    fn a_bad_webhook_is_refused_by_field() {
        let check = |new: NewWebhook| new.check(200).err().map(|bad| bad.field);
        assert_eq!(check(NewWebhook::new("https://example.com/a?b#c")), None);
        for url in
            ["", "example.com", "ftp://a", "https://", "https:///x", "https://a:b@c/", "https://a b", "http://a\n"]
        {
            assert_eq!(check(NewWebhook::new(url)).as_deref(), Some("url"), "{url}");
        }
        assert_eq!(check(NewWebhook::new("https://a").events([])).as_deref(), Some("events"));
        for handler in ["", WEBHOOK_HANDLER] {
            assert_eq!(check(NewWebhook::new("https://a").handler(handler)).as_deref(), Some("handler"), "{handler}");
        }
    }

    /// OPS-8: that a webhook is switched off is an event of the process that does it, kept with the delivery as well.
    #[cfg(feature = "job-logs")]
    #[test]
    fn switching_off_is_an_event() {
        use tracing_subscriber::layer::SubscriberExt;

        const SOON: Duration = Duration::from_secs(20);
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(crate::JobLogs::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (hook, lines) = runtime.block_on(async {
            let nothing = |_: (), _: JobContext, _: ()| async { Ok::<_, crate::JobError>(()) };
            let deliver = |_: (), ctx: JobContext, delivery: WebhookDelivery| async move {
                ctx.switch_off_webhook(&delivery.webhook, "nobody is there").await?;
                Err::<(), _>(crate::JobError::discard("nobody is there"))
            };
            let jobs = JobService::builder(Arc::new(crate::MemoryStore::new())).function("a", (), nothing);
            let jobs = jobs.webhook_handler(crate::HandlerOptions::new(), (), deliver).without_workers();
            let jobs = jobs.start().await.expect("starts");
            let ctx = SecurityContext::new(TenantId::ROOT);
            let (hook, _) = jobs.add_webhook(&ctx, NewWebhook::new("https://example.com/hook")).await.expect("added");
            let deliveries = crate::JobFilter::all().handler(WEBHOOK_HANDLER).status(Status::Canceled);
            jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted");
            let delivered = async {
                loop {
                    jobs.tick(&ctx, 10).await.expect("runs");
                    let ended = jobs.list(&ctx, &deliveries, crate::Page::default()).await.expect("lists");
                    if let Some(delivery) = ended.first() {
                        return delivery.id;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let delivery = tokio::time::timeout(SOON, delivered).await.expect("a delivery comes soon");
            let lines = jobs.logs(&ctx, delivery, 0).await.expect("reads");
            jobs.shutdown().await;
            (hook.id, lines)
        });
        let warned = format!("webhook {hook} is switched off: nobody is there");
        let found = lines.iter().any(|line| line.level == crate::LogLevel::Warn && line.message.contains(&warned));
        assert!(found, "{lines:?}");
    }
}
