//! Status events and webhooks of the memory store. Used by `memory`, which says what happened to which job and
//! writes the audit entries. Keeps no event while nobody wants them.

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;

use super::entry::Entry;
use super::{MemoryStore, State};
use crate::admin::webhook::Webhook;
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::Status;
use crate::model::tenant::Scope;
use crate::store::{self, Error, FEED_EVENTS_KEPT, FEED_KEPT_FOR, FeedAsk, FeedJob, FeedRow, Result, WebhookRecord};

pub(super) struct Feed {
    wanted_until: Timestamp,
    last: u64,
    kept: VecDeque<Kept>,
    webhooks: Vec<WebhookRecord>,
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

impl Default for Feed {
    fn default() -> Self {
        let (kept, webhooks) = Default::default();
        Feed { wanted_until: Timestamp::MIN, last: 0, kept, webhooks }
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
            return Err(Error::Internal(format!("a webhook with the id {} already exists", record.webhook.id)));
        }
        (record.webhook.created_at, record.webhook.active_since) = (now, now);
        self.webhooks.push(record.clone());
        Ok(record.webhook)
    }

    pub(super) fn webhooks(&self, scope: Scope) -> Vec<WebhookRecord> {
        self.webhooks.iter().filter(|record| scope.covers(record.webhook.tenant)).cloned().collect()
    }

    /// The webhook, and whether that changed it.
    pub(super) fn pause_webhook(
        &mut self,
        scope: Scope,
        id: &str,
        paused: bool,
        now: Timestamp,
    ) -> Option<(Webhook, bool)> {
        let webhook = &mut self.webhooks.iter_mut().find(|record| is(record, scope, id))?.webhook;
        let changed = std::mem::replace(&mut webhook.paused, paused) != paused;
        if changed && !paused {
            webhook.active_since = now;
        }
        Some((webhook.clone(), changed))
    }

    pub(super) fn remove_webhook(&mut self, scope: Scope, id: &str) -> Option<Webhook> {
        let at = self.webhooks.iter().position(|record| is(record, scope, id))?;
        Some(self.webhooks.remove(at).webhook)
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

#[async_trait]
impl store::Feed for MemoryStore {
    async fn want_feed(&self, time: Duration) -> Result<()> {
        self.step(|state, now| state.feed.want(now + time));
        Ok(())
    }

    async fn feed_end(&self) -> Result<u64> {
        Ok(self.step(|state, _| state.feed.end()))
    }

    async fn read_feed(&self, ask: &FeedAsk, limit: usize) -> Result<Vec<FeedRow>> {
        Ok(self.step(|state, _| state.feed.read(ask, limit, |id| state.jobs.get(&id).map(Box::as_ref))))
    }
}

impl State {
    /// Keeps a status event of a job as it is now, if somebody wants it.
    pub(super) fn tell(&mut self, id: JobId, now: Timestamp) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let attempt = entry.outcome().map_or(entry.attempts(), |outcome| outcome.attempt.number);
        self.feed.note(id, entry.status(), attempt, now);
    }
}
