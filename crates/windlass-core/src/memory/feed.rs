//! Status events, webhooks and leads of the memory store. Used by `memory`, which says what happened to which job and
//! writes the audit entries. Keeps no event while nobody wants them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::entry::Entry;
use crate::clock::Timestamp;
use crate::id::JobId;
use crate::job::Status;
use crate::store::{
    Error, FEED_EVENTS_KEPT, FEED_KEPT_FOR, FeedAsk, FeedJob, FeedRow, Lead, NodeId, Result, WebhookRecord,
};
use crate::tenant::Scope;
use crate::webhook::Webhook;

pub(super) struct Feed {
    wanted_until: Timestamp,
    last: u64,
    kept: VecDeque<Kept>,
    webhooks: Vec<WebhookRecord>,
    leads: BTreeMap<String, Led>,
}

/// An event without what is read from its job.
#[derive(Clone, Copy)]
struct Kept {
    sequence: u64,
    job: JobId,
    status: Status,
    attempt: u16,
    at: Timestamp,
}

struct Led {
    node: NodeId,
    until: Timestamp,
    lead: Lead,
}

impl Default for Feed {
    fn default() -> Self {
        let (kept, webhooks, leads) = Default::default();
        Feed { wanted_until: Timestamp::MIN, last: 0, kept, webhooks, leads }
    }
}

impl Feed {
    pub(super) fn want(&mut self, until: Timestamp) {
        self.wanted_until = self.wanted_until.max(until);
    }

    pub(super) fn end(&self) -> u64 {
        self.last
    }

    /// Keeps an event if somebody wants it.
    pub(super) fn note(&mut self, job: JobId, status: Status, attempt: u16, at: Timestamp) {
        if at >= self.wanted_until {
            return;
        }
        self.last += 1;
        self.kept.push_back(Kept { sequence: self.last, job, status, attempt, at });
        while self.kept.len() as u64 > FEED_EVENTS_KEPT {
            self.kept.pop_front();
        }
    }

    pub(super) fn clean(&mut self, now: Timestamp) {
        while self.kept.front().is_some_and(|kept| kept.at + FEED_KEPT_FOR < now) {
            self.kept.pop_front();
        }
    }

    pub(super) fn read<'a>(
        &self,
        ask: &FeedAsk,
        limit: usize,
        job: impl Fn(JobId) -> Option<&'a Entry>,
    ) -> Vec<FeedRow> {
        let row = |kept: &Kept| {
            let Kept { sequence, job: id, status, attempt, at } = *kept;
            FeedRow { sequence, job: id, status, attempt, at, of: job(id).map(|entry| of(entry, kept)) }
        };
        self.kept.iter().filter(|kept| ask.covers(kept.sequence)).take(limit).map(row).collect()
    }

    pub(super) fn add_webhook(&mut self, mut record: WebhookRecord, now: Timestamp) -> Result<Webhook> {
        if self.webhooks.iter().any(|known| known.webhook.id == record.webhook.id) {
            return Err(Error::Internal(format!("there is already a webhook {}", record.webhook.id)));
        }
        record.webhook.created_at = now;
        self.webhooks.push(record.clone());
        Ok(record.webhook)
    }

    pub(super) fn webhooks(&self, scope: Scope) -> Vec<WebhookRecord> {
        self.webhooks.iter().filter(|record| scope.covers(record.webhook.tenant)).cloned().collect()
    }

    /// The webhook, and whether that changed it.
    pub(super) fn pause_webhook(&mut self, scope: Scope, id: &str, paused: bool) -> Option<(Webhook, bool)> {
        let webhook = &mut self.webhooks.iter_mut().find(|record| is(record, scope, id))?.webhook;
        let changed = std::mem::replace(&mut webhook.paused, paused) != paused;
        Some((webhook.clone(), changed))
    }

    pub(super) fn remove_webhook(&mut self, scope: Scope, id: &str) -> Option<Webhook> {
        let at = self.webhooks.iter().position(|record| is(record, scope, id))?;
        Some(self.webhooks.remove(at).webhook)
    }

    pub(super) fn lead(&mut self, name: &str, node: NodeId, time: Duration, now: Timestamp) -> Option<Lead> {
        let new = || Led { node, until: now, lead: Lead { term: 1, cursor: None } };
        let led = self.leads.entry(name.to_owned()).or_insert_with(new);
        if led.node != node {
            if now < led.until {
                return None;
            }
            led.node = node;
            led.lead.term += 1;
        }
        led.until = now + time;
        Some(led.lead)
    }

    pub(super) fn advance_lead(&mut self, name: &str, term: u64, cursor: u64) -> bool {
        let led = self.leads.get_mut(name).filter(|led| led.lead.term == term);
        led.map(|led| led.lead.cursor = Some(cursor)).is_some()
    }
}

fn is(record: &WebhookRecord, scope: Scope, id: &str) -> bool {
    record.webhook.id == id && scope.covers(record.webhook.tenant)
}

/// What the event tells of its job.
fn of(entry: &Entry, kept: &Kept) -> FeedJob {
    let failed = matches!(kept.status, Status::Retrying | Status::DeadLettered);
    let history = if failed { entry.history() } else { Vec::new() };
    let same = history.into_iter().rev().find(|line| (line.status, line.attempt) == (kept.status, kept.attempt));
    FeedJob {
        tenant: entry.job.tenant,
        handler: entry.job.handler.clone(),
        sealed: entry.job.spec().is_some_and(|spec| spec.sealed),
        error: same.and_then(|line| line.error),
    }
}
