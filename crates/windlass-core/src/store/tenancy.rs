//! What tenants may use, and what their jobs cost.

use async_trait::async_trait;

use super::Result;
use super::base::Base;
use crate::model::id::JobId;
use crate::model::tenant::{Scope, TenantId};
use crate::operate::usage::{Cost, UsageEvent, UsageRow};
use crate::quota::{Quota, Quotas, TenantUse};

/// What tenants may use, and what their jobs cost.
#[async_trait]
pub trait Tenancy: Base {
    /// Sets or clears (`None`) the policy of a tenant, or the default one (`of` is `None`), with an audit entry
    /// `QUOTA_SET` or `QUOTA_CLEARED`. Other processes follow within about a second.
    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>, by: &str) -> Result<()>;

    /// All quotas.
    async fn quotas(&self) -> Result<Quotas>;

    /// What the scope's tenants use: those that have unfinished jobs or a policy of their own, in order of tenant.
    /// Reads all live jobs: for people, not for every submit.
    async fn tenant_uses(&self, scope: Scope) -> Result<Vec<TenantUse>>;

    /// Records a cost of a job, whatever its status, with an audit entry `COST_RECORDED`. False if it is not there.
    async fn record_cost(&self, scope: Scope, id: JobId, by: &str, cost: Cost) -> Result<bool>;

    /// The costs from one day to another (as `2026-11-16`), both included; by day, tenant and handler.
    async fn usage_by_day(&self, scope: Scope, from: &str, to: &str) -> Result<Vec<UsageRow>>;

    /// The costs one by one, with a sequence above `after`, in its order, at most `limit`. What was committed before an
    /// answer is in it or has a higher sequence than all of it.
    async fn usage_events(&self, scope: Scope, after: u64, limit: usize) -> Result<Vec<UsageEvent>>;
}

/// The calls of [`Tenancy`](crate::store::Tenancy), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! tenancy_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Tenancy:
            set_quota(of: Option<$crate::TenantId>, quota: Option<&$crate::Quota>, by: &str) -> $crate::store::Result<()>;
            quotas() -> $crate::store::Result<$crate::Quotas>;
            tenant_uses(scope: $crate::Scope) -> $crate::store::Result<Vec<$crate::TenantUse>>;
            record_cost(scope: $crate::Scope, id: $crate::JobId, by: &str, cost: $crate::Cost) -> $crate::store::Result<bool>;
            usage_by_day(scope: $crate::Scope, from: &str, to: &str) -> $crate::store::Result<Vec<$crate::UsageRow>>;
            usage_events(scope: $crate::Scope, after: u64, limit: usize) -> $crate::store::Result<Vec<$crate::UsageEvent>>;
        }
    };
}
