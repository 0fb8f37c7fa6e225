//! What tenants may use, and what their jobs cost.

pub(crate) mod quota;
pub(crate) mod usage;

use crate::PgStore;
use async_trait::async_trait;
use windlass_core::store::{Result, Tenancy};
use windlass_core::{Cost, JobId, Quota, Quotas, Scope, TenantId, TenantUse, UsageEvent, UsageRow};

#[async_trait]
impl Tenancy for PgStore {
    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>, by: &str) -> Result<()> {
        quota::set(self, of, quota, by).await
    }

    async fn quotas(&self) -> Result<Quotas> {
        Ok((*quota::refresh(self).await?).clone())
    }

    async fn tenant_uses(&self, scope: Scope) -> Result<Vec<TenantUse>> {
        quota::uses(self, scope).await
    }

    async fn record_cost(&self, scope: Scope, id: JobId, by: &str, cost: Cost) -> Result<bool> {
        usage::record(self, scope, id, by, cost).await
    }

    async fn usage_by_day(&self, scope: Scope, from: &str, to: &str) -> Result<Vec<UsageRow>> {
        usage::by_day(self, scope, from, to).await
    }

    async fn usage_events(&self, scope: Scope, after: u64, limit: usize) -> Result<Vec<UsageEvent>> {
        usage::events(self, scope, after, limit).await
    }
}
