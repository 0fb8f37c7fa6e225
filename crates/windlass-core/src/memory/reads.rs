//! Reading jobs of the memory store. Changes nothing.

use async_trait::async_trait;

use super::entry::{Entry, Place};
use super::{MemoryStore, State};
use crate::life::logs::{KeptLine, LogLine};
use crate::model::clock::Timestamp;
use crate::model::filter::JobFilter;
use crate::model::id::JobId;
use crate::model::job::{Found, HistoryEntry, JobRecord, Page};
use crate::model::payload::Payload;
use crate::model::tenant::Scope;
use crate::operate::failures::{Failing, failing_by_lists};
use crate::store::{Counts, Gate, Pause, PauseTarget, Reads, Result, Whereabouts, count_by_pages};

#[async_trait]
impl Reads for MemoryStore {
    async fn get(&self, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>> {
        Ok(self
            .step(|state, now| ids.iter().filter_map(|id| state.visible(scope, *id, now)).map(Entry::record).collect()))
    }

    async fn input(&self, scope: Scope, id: JobId) -> Result<Option<Payload>> {
        Ok(self.step(|state, now| state.visible(scope, id, now).map(|entry| entry.job.payload.clone())))
    }

    async fn find(&self, scope: Scope, filter: &JobFilter, page: Page, look_at: Option<usize>) -> Result<Found> {
        // Looking at everything costs no more here.
        let page = if look_at.is_some() { Page { offset: 0, ..page } } else { page };
        let jobs = self.step(|state, now| state.list(scope, filter, page, now));
        Ok(Found::new(jobs, page.limit, None))
    }

    async fn count(&self, scope: Scope, filter: &JobFilter, cap: usize) -> Result<u64> {
        count_by_pages(self, scope, filter, cap).await
    }

    async fn failing(&self, scope: Scope, filter: &JobFilter, newest: usize) -> Result<Vec<Failing>> {
        failing_by_lists(self, scope, filter, newest).await
    }

    async fn history(&self, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>> {
        Ok(self.step(|state, now| state.visible(scope, id, now).map(Entry::history).unwrap_or_default()))
    }

    async fn logs(&self, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>> {
        Ok(self.step(|state, now| {
            let lines = state.visible(scope, id, now).and_then(Entry::story).map(|story| &story.lines);
            let newer = |kept: &&KeptLine| kept.line.sequence > after;
            lines.into_iter().flatten().filter(newer).map(|kept| kept.line.clone()).collect()
        }))
    }

    async fn counts(&self, scope: Scope) -> Result<Counts> {
        Ok(self.step(|state, now| state.counts(scope, now)))
    }

    async fn whereabouts(&self, scope: Scope, id: JobId) -> Result<Option<Whereabouts>> {
        Ok(self.step(|state, now| state.whereabouts(scope, id, now)))
    }
}

impl State {
    /// The job, if the scope covers it and its time is not over.
    pub(super) fn visible(&self, scope: Scope, id: JobId, now: Timestamp) -> Option<&Entry> {
        let entry = self.jobs.get(&id)?;
        (scope.covers(entry.job.tenant) && !entry.is_hidden(now)).then_some(entry)
    }

    pub(super) fn list(&self, scope: Scope, filter: &JobFilter, page: Page, now: Timestamp) -> Vec<JobRecord> {
        let upper = page.before.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let newest_first = self.jobs.range((std::ops::Bound::Unbounded, upper)).rev().map(|(_, entry)| entry.as_ref());
        let conditions = filter.conditions();
        // What is cheap to see comes first: a record is only made of jobs that are likely to pass.
        let may_pass = |entry: &&Entry| {
            scope.covers(entry.job.tenant)
                && !entry.is_hidden(now)
                && (filter.statuses.is_empty() || filter.statuses.contains(&entry.status()))
                && filter.handler.as_ref().is_none_or(|handler| *handler == entry.job.handler)
                && conditions.iter().all(|condition| condition.matches_input(&entry.job.payload))
        };
        newest_first
            .filter(may_pass)
            .map(|entry| entry.record())
            .filter(|record| conditions.iter().all(|condition| condition.matches(record)))
            .skip(page.offset)
            .take(page.limit.clamp(1, Page::MAX))
            .collect()
    }

    /// How many jobs of the scope are in each status. Those whose time is over wait to be removed, and are not seen.
    pub(super) fn counts(&self, scope: Scope, now: Timestamp) -> Counts {
        let mut counts = self.index.counts(scope);
        let over = self.index.purges.iter().take_while(|(at, _)| *at <= now);
        for entry in over.filter_map(|(_, id)| self.jobs.get(id)).filter(|entry| scope.covers(entry.job.tenant)) {
            counts.remove(entry.status(), 1);
        }
        counts
    }

    pub(super) fn whereabouts(&self, scope: Scope, id: JobId, now: Timestamp) -> Option<Whereabouts> {
        let entry = self.visible(scope, id, now)?;
        let job = &entry.job;
        let ahead = match &entry.place {
            Place::Ready { queue, position } => {
                let queue = queue.as_deref().unwrap_or(&job.queue);
                Some(self.index.ready.ahead(queue, job.priority, *position, id))
            }
            _ => None,
        };
        let key_holder = match &entry.place {
            Place::Gated(gate) => match gate.as_ref() {
                Gate::OrderingKey(key) => self.index.ordering.get(&(job.tenant, key.clone())).map(|line| line.holder),
                Gate::Pause(_) | Gate::Parents => None,
            },
            _ => None,
        };
        // Only those that stop this job: a tenant must not learn of another one's pause.
        let stops = |pause: &&Pause| match &pause.target {
            PauseTarget::All => true,
            PauseTarget::Handler(handler) => *handler == job.handler,
            PauseTarget::Tenant(tenant) => *tenant == job.tenant,
        };
        let pauses = self.pauses.values().filter(stops).cloned().collect();
        let cap = self.quotas.cap(job.tenant).filter(|_| ahead.is_some());
        let cap = cap.map(|cap| (self.index.running(job.tenant), cap));
        let nodes = self.node_records();
        Some(Whereabouts { now, record: entry.record(), ahead, key_holder, pauses, nodes, cap })
    }
}
