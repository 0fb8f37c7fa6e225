//! What tenants may use, and what their jobs cost.

pub(crate) mod quota;
pub(crate) mod usage;

use crate::SqliteStore;
use async_trait::async_trait;
use std::sync::Arc;
use windlass_core::store::{Result, Tenancy};
use windlass_core::{Cost, JobId, Quota, Quotas, Scope, TenantId, TenantUse, UsageEvent, UsageRow};

#[async_trait]
impl Tenancy for SqliteStore {
    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>, by: &str) -> Result<()> {
        let (quota, by) = (quota.cloned(), by.to_owned());
        let quotas = self.write(move |conn, state| quota::set(conn, state.now, of, quota.as_ref(), &by)).await?;
        // Only what is committed: a policy that was rolled back must not hold.
        let quotas = Arc::new(quotas);
        *self.quotas.write() = quotas.clone();
        self.write(move |_, state| {
            state.positions.set_shares(&quotas);
            state.quotas = quotas;
            Ok(())
        })
        .await
    }

    async fn quotas(&self) -> Result<Quotas> {
        self.read(|conn, _| quota::load(conn)).await
    }

    async fn tenant_uses(&self, scope: Scope) -> Result<Vec<TenantUse>> {
        self.read(move |conn, now| quota::uses(conn, now, scope)).await
    }

    async fn record_cost(&self, scope: Scope, id: JobId, by: &str, cost: Cost) -> Result<bool> {
        let by = by.to_owned();
        self.write(move |conn, state| usage::record(conn, state, scope, id, &by, cost)).await
    }

    async fn usage_by_day(&self, scope: Scope, from: &str, to: &str) -> Result<Vec<UsageRow>> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.read(move |conn, _| usage::by_day(conn, scope, &from, &to)).await
    }

    async fn usage_events(&self, scope: Scope, after: u64, limit: usize) -> Result<Vec<UsageEvent>> {
        self.read(move |conn, _| usage::events(conn, scope, after, limit)).await
    }
}
