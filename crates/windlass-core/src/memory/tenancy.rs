//! Quotas and costs of tenants in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use foldhash::HashMap;

use super::entry::Job;
use super::{MemoryStore, State};
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::NewJob;
use crate::model::tenant::{Scope, TenantId};
use crate::operate::usage::{Cost, UsageEvent, UsageRow};
use crate::quota::{Amount, Bucket, Quota, Quotas, TenantUse, admit};
use crate::store::{Result, Tenancy};

#[async_trait]
impl Tenancy for MemoryStore {
    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>, by: &str) -> Result<()> {
        self.step(|state, now| {
            state.set_quota(of, quota, by, now);
            *self.quotas.write() = state.quotas.clone();
        });
        Ok(())
    }

    async fn quotas(&self) -> Result<Quotas> {
        Ok(self.step(|state, _| (*state.quotas).clone()))
    }

    async fn tenant_uses(&self, scope: Scope) -> Result<Vec<TenantUse>> {
        Ok(self.step(|state, _| state.tenant_uses(scope)))
    }

    async fn record_cost(&self, scope: Scope, id: JobId, by: &str, cost: Cost) -> Result<bool> {
        Ok(self.step(|state, now| state.record_cost(scope, id, by, cost, now)))
    }

    async fn usage_by_day(&self, scope: Scope, from: &str, to: &str) -> Result<Vec<UsageRow>> {
        Ok(self.step(|state, _| state.costs.by_day(scope, from, to)))
    }

    async fn usage_events(&self, scope: Scope, after: u64, limit: usize) -> Result<Vec<UsageEvent>> {
        Ok(self.step(|state, _| state.costs.events(scope, after, limit)))
    }
}

impl State {
    /// Refuses jobs beyond a quota, and takes their tokens. What is stored already needs no room.
    pub(super) fn check_quotas(&mut self, jobs: &[NewJob], now: Timestamp) -> Result<()> {
        if self.quotas.is_empty() {
            return Ok(());
        }
        let mut wanted: BTreeMap<TenantId, Amount> = BTreeMap::new();
        for job in jobs.iter().filter(|job| self.quotas.limiting(job.tenant).is_some()) {
            let stored = self.jobs.contains_key(&job.id);
            if !stored && (job.is_plain() || self.holder_of_keys(&Job::from(job.clone()), now).is_none()) {
                wanted.entry(job.tenant).or_default().add(job.payload.as_str().len());
            }
        }
        let quotas = self.quotas.clone();
        for (tenant, wanted) in &wanted {
            let Some(quota) = quotas.limiting(*tenant) else { continue };
            let in_use = self.index.in_use(*tenant);
            let bucket =
                quota.submit_rate.map(|rate| self.buckets.entry(*tenant).or_insert_with(|| Bucket::full(rate, now)));
            admit(*tenant, quota, in_use, bucket, *wanted, now)?;
        }
        for (tenant, wanted) in wanted {
            if let Some(bucket) = self.buckets.get_mut(&tenant) {
                bucket.take(wanted.jobs);
            }
        }
        Ok(())
    }

    pub(super) fn set_quota(&mut self, of: Option<TenantId>, quota: Option<&Quota>, by: &str, now: Timestamp) {
        let mut quotas = (*self.quotas).clone();
        match (of, quota) {
            (None, quota) => quotas.default = quota.cloned(),
            (Some(tenant), Some(quota)) => drop(quotas.own.insert(tenant, quota.clone())),
            (Some(tenant), None) => drop(quotas.own.remove(&tenant)),
        }
        self.index.ready.set_shares(&quotas);
        self.quotas = Arc::new(quotas);
        let action = if quota.is_some() { "QUOTA_SET" } else { "QUOTA_CLEARED" };
        let target = of.map_or_else(|| "default".to_owned(), |tenant| format!("tenant:{tenant}"));
        let detail = quota.and_then(|quota| serde_json::to_string(quota).ok());
        self.write_audit(now, by, of, action, target, detail);
    }

    pub(super) fn tenant_uses(&self, scope: Scope) -> Vec<TenantUse> {
        let mut tenants: Vec<TenantId> = self.index.tenants().chain(self.quotas.own.keys().copied()).collect();
        tenants.retain(|tenant| scope.covers(*tenant));
        tenants.sort_unstable();
        tenants.dedup();
        let used = |tenant: TenantId| {
            let in_use = self.index.in_use(tenant);
            let mut used = TenantUse::new(tenant, &self.quotas);
            used.queued = in_use.jobs;
            used.running = self.index.running(tenant);
            used.bytes = used.limits_bytes().then_some(in_use.bytes);
            used
        };
        tenants.into_iter().map(used).filter(|used| used.own || used.queued > 0).collect()
    }

    /// How many more jobs of a tenant may run; `None` without a limit.
    pub(super) fn running_room(&self, tenant: TenantId) -> Option<u64> {
        Some(self.quotas.cap(tenant)?.saturating_sub(self.index.running(tenant)))
    }

    pub(super) fn record_cost(&mut self, scope: Scope, id: JobId, by: &str, cost: Cost, now: Timestamp) -> bool {
        let Some(entry) = self.visible(scope, id, now) else { return false };
        let (tenant, Cost { cents, units }) = (entry.job.tenant, cost);
        self.add_cost(id, cost, false, now);
        self.write_audit(now, by, Some(tenant), "COST_RECORDED", id, Some(format!("{cents} cents, {units} units")));
        true
    }

    /// Adds what a job has cost.
    pub(super) fn add_cost(&mut self, id: JobId, cost: Cost, ended: bool, now: Timestamp) {
        if let Some(entry) = self.jobs.get_mut(&id) {
            self.costs.add(entry.job.tenant, &entry.job.handler, id, cost, ended, now);
            let sum = &mut entry.story_mut().cost;
            *sum = Some(sum.unwrap_or_default().plus(cost));
        }
    }
}

/// How many jobs of each tenant run, while a claim takes more.
pub(super) struct Caps {
    pub(super) quotas: Arc<Quotas>,
    pub(super) running: HashMap<TenantId, u64>,
}

impl Caps {
    /// Counts one more job in, if it may start.
    pub(super) fn take(&mut self, tenant: TenantId) -> bool {
        let Some(cap) = self.quotas.cap(tenant) else { return true };
        let running = self.running.entry(tenant).or_default();
        let may = *running < cap;
        *running += u64::from(may);
        may
    }
}
