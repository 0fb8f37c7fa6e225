//! The audit log. Entries of jobs are written by the statements that change them; this adds the others and reads them all.

use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::store::{AuditEntry, AuditFilter, Result};
use windlass_core::{JobId, Scope, TenantId};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::{Time, tenant};
use crate::jobs::finish::storable;

/// How many audit entries are read where the caller does not say.
pub(crate) const AUDIT_PAGE: i64 = 50;

pub(crate) async fn audit(store: &PgStore, entry: AuditEntry) -> Result<()> {
    let params: [Param<'_>; 5] = [
        (&entry.tenant.map(|tenant| tenant.0), Type::UUID),
        (&storable(&entry.actor), Type::TEXT),
        (&storable(&entry.action), Type::TEXT),
        (&storable(&entry.target), Type::TEXT),
        (&entry.detail.as_deref().map(storable), Type::TEXT),
    ];
    store.shared.pools.api.query(Access::Write, include_str!("../sql/records/audit.sql"), &params).await?;
    Ok(())
}

pub(crate) async fn audit_log(store: &PgStore, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
    let limit = match filter.limit {
        0 => AUDIT_PAGE,
        limit => i64::try_from(limit).unwrap_or(i64::MAX),
    };
    if filter.action.as_deref() == Some(AuditEntry::SUCCEEDED) {
        return successes(store, scope, filter, limit).await;
    }
    let before = before(filter);
    let params: [Param<'_>; 5] = [
        (&tenant(scope), Type::UUID),
        (&filter.action, Type::TEXT),
        (&filter.target, Type::TEXT),
        (&limit, Type::INT8),
        (&before, Type::INT8),
    ];
    let rows = store.within(scope).query(include_str!("../sql/records/audit_log.sql"), &params).await?;
    let entry = |row: &Row| {
        Ok(AuditEntry {
            at: row.get::<_, Time>(0)?.0,
            tenant: row.get::<_, Option<Uuid>>(1)?.map(TenantId),
            actor: row.get(2)?,
            action: row.get(3)?,
            target: row.get(4)?,
            detail: row.get(5)?,
            sequence: row.get::<_, i64>(6)? as u64,
        })
    };
    Ok(readable(&rows, entry))
}

/// Audit entries of jobs that ended well, from their outcomes and from the log, by job.
pub(crate) async fn successes(
    store: &PgStore,
    scope: Scope,
    filter: &AuditFilter,
    limit: i64,
) -> Result<Vec<AuditEntry>> {
    let id = match filter.target.as_deref().map(str::parse::<JobId>) {
        None => None,
        Some(Ok(id)) => Some(id.as_i64()),
        Some(Err(_)) => return Ok(Vec::new()),
    };
    let before = before(filter);
    let params: [Param<'_>; 4] =
        [(&tenant(scope), Type::UUID), (&id, Type::INT8), (&limit, Type::INT8), (&before, Type::INT8)];
    let rows = store.within(scope).query(include_str!("../sql/records/audit_successes.sql"), &params).await?;
    let entry = |row: &Row| {
        Ok(AuditEntry {
            sequence: row.get::<_, i64>(2)? as u64,
            at: row.get::<_, Time>(0)?.0,
            actor: "windlass".to_owned(),
            tenant: Some(TenantId(row.get(1)?)),
            action: AuditEntry::SUCCEEDED.to_owned(),
            target: JobId::from_i64(row.get(2)?).to_string(),
            detail: None,
        })
    };
    Ok(readable(&rows, entry))
}

/// The number before which a page of the audit log ends. Larger ones than there are mean the first page.
pub(crate) fn before(filter: &AuditFilter) -> Option<i64> {
    filter.before.map(|before| i64::try_from(before).unwrap_or(i64::MAX))
}
