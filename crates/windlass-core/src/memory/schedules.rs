//! Schedules in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::{MemoryStore, State};
use crate::model::clock::Timestamp;
use crate::model::tenant::{Scope, TenantId};
use crate::store::{
    DueSchedules, Fired, Firing, Result, SCHEDULER, SCHEDULES_MAX, ScheduleAsk, ScheduleChange, ScheduleChanged,
    ScheduleRecord, ScheduleTo, Schedules, Submit,
};

/// By tenant and name.
pub(super) type Table = BTreeMap<(TenantId, String), ScheduleRecord>;

#[async_trait]
impl Schedules for MemoryStore {
    async fn schedules(&self, scope: Scope, ask: ScheduleAsk) -> Result<Vec<ScheduleRecord>> {
        Ok(self.step(|state, _| {
            let asked = |record: &&ScheduleRecord| {
                scope.tenant().is_none_or(|tenant| tenant == record.tenant)
                    && ask.name.as_ref().is_none_or(|name| *name == record.name)
                    && ask.after.as_ref().is_none_or(|after| (record.tenant, &record.name) > (after.0, &after.1))
            };
            state.schedules.values().filter(asked).take(ask.limit).cloned().collect()
        }))
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChanged> {
        Ok(self.step(|state, now| state.change_schedule(change, now)))
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        Ok(self.step(|state, now| {
            let waiting = state.schedules.values().filter(|record| !record.paused);
            let mut waiting: Vec<(Timestamp, &ScheduleRecord)> =
                waiting.filter_map(|record| Some((record.next_at?, record))).collect();
            waiting.sort_by_key(|(at, record)| (*at, record.id));
            let due = waiting.iter().take_while(|(at, _)| *at <= now).take(limit);
            let due: Vec<ScheduleRecord> = due.map(|(_, record)| (*record).clone()).collect();
            let next_in = waiting.get(due.len()).map(|(at, _)| at.since(now));
            DueSchedules { now, due, next_in }
        }))
    }

    async fn fire(&self, epoch: u64, firings: Vec<Firing>) -> Result<Option<Vec<Fired>>> {
        self.step(|state, now| state.fire(epoch, firings, now))
    }
}

impl State {
    fn change_schedule(&mut self, change: ScheduleChange, now: Timestamp) -> ScheduleChanged {
        let key = (change.tenant, change.name.clone());
        let found = self.schedules.get(&key).cloned();
        let of_tenant = self.schedules.keys().filter(|(tenant, _)| *tenant == change.tenant).count();
        if found.is_none() && matches!(change.to, ScheduleTo::Put(_)) && of_tenant >= SCHEDULES_MAX {
            return ScheduleChanged::TooMany;
        }
        let Some(changed) = change.apply(found.as_ref(), now) else {
            return ScheduleChanged::Differs(found.map(Box::new));
        };
        match change.to {
            ScheduleTo::Removed => self.schedules.remove(&key),
            _ => self.schedules.insert(key, changed.clone()),
        };
        self.push_audit(change.audit(found.is_some(), now));
        ScheduleChanged::Done(Box::new(changed))
    }

    fn fire(&mut self, epoch: u64, firings: Vec<Firing>, now: Timestamp) -> Result<Option<Vec<Fired>>> {
        if self.holdings.held(SCHEDULER, epoch).is_none() {
            return Ok(None);
        }
        let fits = |firing: &Firing| {
            let record = self.schedules.get(&(firing.tenant, firing.name.clone()));
            record.is_some_and(|record| {
                !record.paused && record.version == firing.version && record.next_at == Some(firing.due)
            })
        };
        let fits: Vec<bool> = firings.iter().map(fits).collect();
        let jobs = firings.iter().zip(&fits).filter(|(_, fits)| **fits).flat_map(|(firing, _)| firing.jobs.clone());
        let mut submitted = self.submit(Submit { jobs: jobs.collect(), lease: None }, now)?.into_iter();
        let mut fired = Vec::with_capacity(firings.len());
        for (firing, fits) in firings.into_iter().zip(fits) {
            if !fits {
                fired.push(Fired::Changed);
                continue;
            }
            fired.push(Fired::Stored(submitted.by_ref().take(firing.jobs.len()).collect()));
            if let Some(record) = self.schedules.get_mut(&(firing.tenant, firing.name)) {
                record.next_at = firing.next_at;
                record.last_at = firing.last_at.or(record.last_at);
            }
        }
        Ok(Some(fired))
    }
}
