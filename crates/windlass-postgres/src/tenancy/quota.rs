//! What tenants may use: the policies as this process knows them, and what a submit has to say about the tenants
//! that are limited. Called by `submit`, `claim` and `maintain`; the counting and deciding is in `0009_quotas.sql`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use serde::Deserialize;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::quota::Amount;
use windlass_core::store::{Error, Limited, Result};
use windlass_core::{NewJob, Quota, QuotaExceeded, QuotaKind, Quotas, Scope, SubmitRate, TenantId, TenantUse};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::JsonText;

/// The key of the default policy.
const DEFAULT: Uuid = Uuid::max();

/// The policies as last read.
#[derive(Default)]
pub(crate) struct Known {
    quotas: RwLock<Arc<Quotas>>,
    version: AtomicI64,
}

impl Known {
    pub(crate) fn quotas(&self) -> Arc<Quotas> {
        self.quotas.read().clone()
    }

    /// Whether what was read is not what the database has now.
    pub(crate) fn is_old(&self, version: i64) -> bool {
        self.version.load(Ordering::Acquire) != version
    }

    pub(crate) fn limited(&self, tenant: TenantId) -> Limited {
        let quotas = self.quotas.read();
        match quotas.is_empty() {
            true => Limited::default(),
            false => Limited { submits: quotas.limiting(tenant).is_some(), running: quotas.cap(tenant).is_some() },
        }
    }
}

/// Reads the policies and goes by them from now on.
pub(crate) async fn refresh(store: &PgStore) -> Result<Arc<Quotas>> {
    let rows = store.shared.pools.api.query(Access::Read, include_str!("../sql/tenancy/quotas.sql"), &[]).await?;
    let mut quotas = Quotas::default();
    let of = |row: &Row| match row.get::<_, Option<Uuid>>(1)? {
        Some(tenant) => Ok(Some((tenant, policy(row)?))),
        None => Ok(None),
    };
    for (tenant, policy) in readable(&rows, of).into_iter().flatten() {
        match tenant {
            DEFAULT => quotas.default = Some(policy),
            tenant => drop(quotas.own.insert(TenantId(tenant), policy)),
        }
    }
    let version: i64 = rows.first().map_or(Ok(0), |row| row.get(0))?;
    let known = &store.shared.quotas;
    let mut current = known.quotas.write();
    // Answers may come in another order than they were made: an older one must not undo a newer one.
    if version >= known.version.load(Ordering::Acquire) {
        store.shared.lines.lock().positions.set_shares(&quotas);
        *current = Arc::new(quotas);
        known.version.store(version, Ordering::Release);
    }
    Ok(current.clone())
}

fn policy(row: &Row) -> Result<Quota> {
    let count = |column: usize| Ok::<_, Error>(row.get::<_, Option<i64>>(column)?.map(|n| n.max(0) as u64));
    let mut quota = Quota::new();
    quota.weight = row.get::<_, Option<i32>>(2)?.map(|weight| weight.max(1) as u32);
    quota.queued = count(3)?;
    quota.submit_rate =
        row.get::<_, Option<f64>>(4)?.zip(count(5)?).map(|(per_second, burst)| SubmitRate { per_second, burst });
    quota.running = count(6)?;
    quota.bytes = count(7)?;
    Ok(quota)
}

/// Sets or clears (null) the policy of a tenant, or the default one (null): `sql/tenancy/set_quota.sql`.
const SET_QUOTA: &str = "select windlass.set_quota($1, $2, $3)";

pub(crate) async fn set(store: &PgStore, of: Option<TenantId>, quota: Option<&Quota>, by: &str) -> Result<()> {
    let json = quota.map(serde_json::to_string).transpose();
    let json = json.map_err(|error| Error::Internal(format!("cannot write a quota: {error}")))?.map(JsonText);
    let params: [Param<'_>; 3] =
        [(&of.map(|tenant| tenant.0), Type::UUID), (&json, Type::JSON), (&by.replace('\0', ""), Type::TEXT)];
    store.shared.pools.api.query(Access::Write, SET_QUOTA, &params).await?;
    refresh(store).await.map(drop)
}

pub(crate) async fn uses(store: &PgStore, scope: Scope) -> Result<Vec<TenantUse>> {
    let quotas = refresh(store).await?;
    let count_bytes = quotas.default.iter().chain(quotas.own.values()).any(|quota| quota.bytes.is_some());
    let sql = match count_bytes {
        true => include_str!("../sql/tenancy/tenant_uses_bytes.sql"),
        false => include_str!("../sql/tenancy/tenant_uses.sql"),
    };
    let params: [Param<'_>; 1] = [(&crate::ground::types::tenant(scope), Type::UUID)];
    let rows = store.engine().query(sql, &params).await?;
    let mut uses: BTreeMap<TenantId, TenantUse> = quotas
        .own
        .keys()
        .filter(|tenant| scope.covers(**tenant))
        .map(|tenant| (*tenant, TenantUse::new(*tenant, &quotas)))
        .collect();
    for row in &rows {
        let tenant = TenantId(row.get(0)?);
        let used = uses.entry(tenant).or_insert_with(|| TenantUse::new(tenant, &quotas));
        used.queued = row.get::<_, i64>(1)? as u64;
        used.running = row.get::<_, i64>(2)? as u64;
        used.bytes = row.get::<_, Option<i64>>(3)?.map(|bytes| bytes as u64);
    }
    for used in uses.values_mut() {
        used.bytes = used.limits_bytes().then(|| used.bytes.unwrap_or(0));
    }
    Ok(uses.into_values().collect())
}

/// How many jobs of a tenant run, and how many may, where that is limited.
pub(crate) async fn cap(store: &PgStore, tenant: TenantId) -> Result<Option<(u64, u64)>> {
    let Some(cap) = store.shared.quotas.quotas().cap(tenant) else { return Ok(None) };
    let params: [Param<'_>; 1] = [(&tenant.0, Type::UUID)];
    let row =
        store.shared.pools.api.query_one(Access::Read, include_str!("../sql/tenancy/running_of.sql"), &params).await?;
    Ok(Some((row.get::<_, i64>(0)?.max(0) as u64, cap)))
}

/// What a submit says about the tenants that are limited.
#[derive(Default)]
pub(crate) struct Wanted {
    tenants: Vec<Uuid>,
    jobs: Vec<i64>,
    bytes: Vec<i64>,
}

impl Wanted {
    pub(crate) fn of(store: &PgStore, jobs: &[&NewJob]) -> Wanted {
        let quotas = store.shared.quotas.quotas();
        if quotas.is_empty() {
            return Wanted::default();
        }
        let mut amounts: BTreeMap<TenantId, Amount> = BTreeMap::new();
        for job in jobs.iter().filter(|job| quotas.limiting(job.tenant).is_some()) {
            amounts.entry(job.tenant).or_default().add(job.payload.as_str().len());
        }
        let mut wanted = Wanted::default();
        for (tenant, amount) in amounts {
            wanted.tenants.push(tenant.0);
            wanted.jobs.push(amount.jobs as i64);
            wanted.bytes.push(amount.bytes as i64);
        }
        wanted
    }

    /// Whether no tenant is limited.
    pub(crate) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    pub(crate) fn params(&self) -> [Param<'_>; 3] {
        [(&self.tenants, Type::UUID_ARRAY), (&self.jobs, Type::INT8_ARRAY), (&self.bytes, Type::INT8_ARRAY)]
    }
}

/// What the database says of a quota that is exceeded.
#[derive(Deserialize)]
struct Over {
    tenant: TenantId,
    quota: QuotaKind,
    limit: u64,
    room: u64,
    #[serde(default)]
    retry_after_us: Option<u64>,
}

/// The refusal in a text that `windlass.admit` made.
pub(crate) fn exceeded(json: &str) -> Error {
    match serde_json::from_str::<Over>(json) {
        Ok(over) => {
            let after = over.retry_after_us.map(Duration::from_micros);
            QuotaExceeded::new(over.tenant, over.quota, over.limit, over.room, after).into()
        }
        Err(error) => Error::Internal(format!("a quota is exceeded, but its details cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_database_is_read_whole() {
        let json = r#"{"tenant":"00000000-0000-0000-0000-00000000000a","quota":"submit_rate","limit":5,"room":1,
                       "retry_after_us":1500000}"#;
        let Error::QuotaExceeded(over) = exceeded(json) else { panic!("not read") };
        assert_eq!((over.quota, over.limit, over.room), (QuotaKind::SubmitRate, 5, 1));
        assert_eq!(over.retry_after, Some(Duration::from_millis(1_500)));
    }
}
