//! Webhooks: who outside wants to be told of status events, and the dispatcher that makes a job of each telling. One node
//! at a time dispatches, by a lead with a term; it reads the feed from a kept cursor, and a key of hook and sequence lets
//! each telling be stored once. Never sends anything: the handler [`WEBHOOK_HANDLER`] does, in `windlass-server`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::access::{base62, random};
use crate::clock::Timestamp;
use crate::config::check_text;
use crate::context::JobContext;
use crate::error::{Error, InvalidInput};
use crate::feed::{Order, POLL_EVENTS, RENEW_EVERY, WANTED_FOR};
use crate::id::JobId;
use crate::job::{NewJob, Status, SubmitOptions};
use crate::payload::Payload;
use crate::seal::{Kind, SEALED, Seals};
use crate::service::{JobService, Operator};
use crate::store::{self, FeedRow, Submit, WebhookRecord};
use crate::submit::{Wanted, check_name, prepare};
use crate::tenant::{Scope, SecurityContext, TenantId};
use crate::watch::JobEvent;
use crate::worker::Worker;

/// The handler, and the queue, of the jobs that tell a webhook of an event. Its input is a [`WebhookDelivery`].
pub const WEBHOOK_HANDLER: &str = "windlass.webhook";

/// Webhooks of one tenant: each costs a job per event.
pub const WEBHOOKS_MAX: usize = 100;

/// Bytes of a webhook's address.
const URL_BYTES: usize = 2_048;

/// How long a telling is kept after its end, to be looked at.
const DELIVERY_KEPT: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// An address that is told of status events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Webhook {
    /// Its name in the store.
    pub id: String,
    /// Whose events it is told of.
    pub tenant: TenantId,
    /// Where it is told.
    pub url: String,
    /// Which events: those that lead to one of these.
    pub events: Vec<Status>,
    /// Only jobs of this handler.
    pub handler: Option<String>,
    /// Whether it is told nothing for now. What happens meanwhile it never hears of.
    pub paused: bool,
    /// When it was made.
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
            created_at: Timestamp::default(),
            created_by: String::new(),
        }
    }

    /// Whether it is to be told of an event. Never of tellings themselves: each would bring the next.
    pub fn wants(&self, event: &JobEvent) -> bool {
        !self.paused
            && self.tenant == event.tenant
            && self.created_at <= event.at
            && event.handler != WEBHOOK_HANDLER
            && self.events.contains(&event.status)
            && self.handler.as_ref().is_none_or(|handler| *handler == event.handler)
    }
}

/// A webhook to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NewWebhook {
    /// Where it is told: `https://…`, or `http://…` where the server allows it.
    pub url: String,
    /// Which events; how jobs end, unless set.
    pub events: Vec<Status>,
    /// Only jobs of this handler.
    pub handler: Option<String>,
}

impl NewWebhook {
    /// Told of every end of a job.
    pub fn new(url: impl Into<String>) -> NewWebhook {
        let events = Status::ALL.into_iter().filter(|status| status.is_terminal()).collect();
        NewWebhook { url: url.into(), events, handler: None }
    }

    /// Told of these events instead.
    #[must_use]
    pub fn events(mut self, events: impl IntoIterator<Item = Status>) -> Self {
        self.events = events.into_iter().collect();
        self
    }

    /// Told of jobs of one handler only.
    #[must_use]
    pub fn handler(mut self, handler: impl Into<String>) -> Self {
        self.handler = Some(handler.into());
        self
    }

    fn check(&self, name_bytes: usize) -> Result<(), InvalidInput> {
        check_text("url", &self.url, URL_BYTES)?;
        let rest = self.url.strip_prefix("https://").or_else(|| self.url.strip_prefix("http://"));
        let Some(rest) = rest else { return Err(InvalidInput::new("url", "does not begin with https:// or http://")) };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.is_empty() || authority.contains('@') {
            return Err(InvalidInput::new("url", "has no host, or a user in it"));
        }
        if self.url.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(InvalidInput::new("url", "has spaces or control characters in it"));
        }
        if self.events.is_empty() {
            return Err(InvalidInput::new("events", "are empty: it would never be told anything"));
        }
        match &self.handler {
            Some(handler) => check_name("handler", handler, name_bytes),
            None => Ok(()),
        }
    }
}

/// What the handler [`WEBHOOK_HANDLER`] is given: which webhook to tell of what.
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
    /// Tells an address of the tenant's status events from now on, and answers with the secret that signs what it is
    /// told, which nobody is shown again. Audited as `WEBHOOK_ADDED`.
    pub async fn add_webhook(&self, ctx: &SecurityContext, new: NewWebhook) -> Result<(Webhook, String), Error> {
        let worker = self.worker();
        new.check(worker.config.limits.name_bytes)?;
        if worker.store.webhooks(ctx.scope()).await?.len() >= WEBHOOKS_MAX {
            return Err(
                InvalidInput::new("webhooks", format!("the tenant has {WEBHOOKS_MAX}, as many as it may")).into()
            );
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
        worker.chores.webhooks.store(true, Ordering::Release);
        // So that other nodes begin to write events; what happens before they know is not told.
        worker.store.want_feed(WANTED_FOR).await?;
        Ok((webhook, secret))
    }

    /// The tenant's webhooks.
    pub async fn webhooks(&self, ctx: &SecurityContext) -> Result<Vec<Webhook>, Error> {
        Ok(without_secrets(self.worker().store.webhooks(ctx.scope()).await?))
    }

    /// Ends a webhook of the tenant. False if there is none with this id. Audited as `WEBHOOK_REMOVED`.
    pub async fn remove_webhook(&self, ctx: &SecurityContext, id: &str) -> Result<bool, Error> {
        check_text("id", id, self.worker().config.limits.key_bytes)?;
        Ok(self.worker().store.remove_webhook(ctx.scope(), id, ctx.actor()).await?)
    }

    /// Stops telling a webhook of the tenant, or goes on. False if there is none with this id. Audited as
    /// `WEBHOOK_PAUSED` or `WEBHOOK_RESUMED`.
    pub async fn pause_webhook(&self, ctx: &SecurityContext, id: &str, paused: bool) -> Result<bool, Error> {
        check_text("id", id, self.worker().config.limits.key_bytes)?;
        Ok(self.worker().store.pause_webhook(ctx.scope(), id, paused, ctx.actor()).await?)
    }

    /// A webhook with its secret, for the handler that signs. Never for a caller from outside.
    pub async fn webhook(&self, ctx: &SecurityContext, id: &str) -> Result<Option<(Webhook, String)>, Error> {
        let worker = self.worker();
        with_secret(&worker.seals, worker.store.webhooks(ctx.scope()).await?, id).await
    }
}

impl JobContext {
    /// A webhook of the job's tenant with its secret, for the handler [`WEBHOOK_HANDLER`] that signs with it.
    pub async fn webhook(&self, id: &str) -> Result<Option<(Webhook, String)>, Error> {
        let link = &self.attempt_state().link;
        let (Some(store), Some(seals)) = (link.store(), link.seals()) else { return Ok(None) };
        with_secret(seals, store.webhooks(Scope::Tenant(self.tenant())).await?, id).await
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

impl Operator {
    /// Every tenant's webhooks.
    pub async fn webhooks(&self) -> Result<Vec<Webhook>, Error> {
        Ok(without_secrets(self.0.worker().store.webhooks(self.1).await?))
    }

    /// Ends any tenant's webhook.
    pub async fn remove_webhook(&self, ctx: &SecurityContext, id: &str) -> Result<bool, Error> {
        check_text("id", id, self.0.worker().config.limits.key_bytes)?;
        Ok(self.0.worker().store.remove_webhook(self.1, id, ctx.actor()).await?)
    }
}

fn without_secrets(records: Vec<WebhookRecord>) -> Vec<Webhook> {
    records.into_iter().map(|record| record.webhook).collect()
}

// ---- the dispatcher

/// The name of the dispatchers' lead.
const DISPATCHER: &str = "webhooks";

/// How long a lead holds: so long nobody dispatches after a dispatcher was lost.
const LEAD_FOR: Duration = Duration::from_secs(10);

/// How often the lead is renewed, or asked for by those who do not have it.
const LEAD_EVERY: Duration = Duration::from_secs(3);

/// How often the feed is read for webhooks.
const DISPATCH_EVERY: Duration = Duration::from_millis(500);

/// How far a dispatcher has come.
struct Dispatch {
    term: u64,
    order: Order<FeedRow>,
    /// The cursor as it is kept.
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
            if asked.is_none_or(|at| at.elapsed() >= LEAD_EVERY) {
                asked = Some(Instant::now());
                dispatch = match self.lead_webhooks(dispatch.take()).await {
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
                    // From the kept cursor again, as soon as the lead is asked for: what is stored already is not again.
                    Err(error) => tracing::warn!(%error, "could not dispatch webhooks, trying again"),
                }
            }
            self.rest(DISPATCH_EVERY).await;
        }
    }

    /// Takes or renews the lead. Answers where to go on, if this node has it.
    async fn lead_webhooks(&self, current: Option<Dispatch>) -> store::Result<Option<Dispatch>> {
        let Some(lead) = self.store.lead(DISPATCHER, self.membership().node, LEAD_FOR).await? else { return Ok(None) };
        if let Some(current) = current.filter(|current| current.term == lead.term) {
            return Ok(Some(current));
        }
        self.store.want_feed(WANTED_FOR).await?;
        // The first dispatcher begins with what is kept: each webhook is told only of what happened since it was made.
        let cursor = lead.cursor.unwrap_or(0);
        Ok(Some(Dispatch {
            term: lead.term,
            order: Order::starting_after(cursor),
            kept: cursor,
            wanted: Instant::now(),
        }))
    }

    /// Dispatches what is new. False if the lead is lost.
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
                if !self.store.advance_lead(DISPATCHER, dispatch.term, settled).await? {
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
            let key = format!("webhook:{}:{}", delivery.webhook, delivery.sequence);
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
        let made_later = Webhook { created_at: Timestamp::from_millis(11), ..hook.clone() };
        assert!(!made_later.wants(&event(Status::DeadLettered, "a")));
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
        assert_eq!(check(NewWebhook::new("https://a").handler("")).as_deref(), Some("handler"));
    }
}
