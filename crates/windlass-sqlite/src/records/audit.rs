//! The audit log: entries of what people do, written in the transaction that does it.

use rusqlite::{Connection, params};
use windlass_core::store::{AuditEntry, AuditFilter};
use windlass_core::{JobId, JobRecord, Scope, Timestamp};

use crate::ground::place::{self, Audit, SYSTEM};
use crate::ground::rows::{Columns, Done, as_i64, job_id, readable, tenant_bytes};
use crate::ground::writer::State;

/// Adds a line of the caller's to the audit log.
pub(crate) fn audit(conn: &Connection, state: &State, entry: &AuditEntry) -> Done<()> {
    let line = Audit {
        actor: &entry.actor,
        tenant: entry.tenant,
        action: &entry.action,
        target: &entry.target,
        detail: entry.detail.as_deref(),
    };
    place::audit(conn, state.now, &line)
}

/// Adds a line about a job to the audit log.
pub(crate) fn audit_job(
    conn: &Connection,
    state: &State,
    record: &JobRecord,
    by: &str,
    action: &str,
    detail: Option<&str>,
) -> Done<()> {
    let target = record.id.to_string();
    let entry = Audit { actor: by, tenant: Some(record.tenant), action, target: &target, detail };
    place::audit(conn, state.now, &entry)
}

/// Audit entries in an answer that asks for no number.
pub(crate) const AUDIT_DEFAULT: usize = 50;

/// The audit log, newest first.
pub(crate) fn audit_log(
    conn: &Connection,
    now: Timestamp,
    scope: Scope,
    filter: &AuditFilter,
) -> Done<Vec<AuditEntry>> {
    let limit = as_i64(if filter.limit == 0 { AUDIT_DEFAULT } else { filter.limit });
    let tenant = scope.tenant();
    let tenant = tenant.as_ref().map(tenant_bytes);
    let before = filter.before.map(|before| i64::try_from(before).unwrap_or(i64::MAX));
    let mut entries = Vec::new();
    if filter.action.as_deref() == Some(AuditEntry::SUCCEEDED) {
        let job = match filter.target.as_deref().map(str::parse::<JobId>) {
            None => None,
            Some(Ok(id)) => Some(id.as_i64()),
            Some(Err(_)) => return Ok(entries),
        };
        let mut select = conn.prepare_cached(include_str!("../sql/read_audit_succeeded.sql"))?;
        let mut rows = select.query(params![tenant, job, now.as_micros(), limit, before])?;
        while let Some(row) = rows.next()? {
            entries.push(AuditEntry {
                sequence: row.get::<_, i64>(2)? as u64,
                at: row.time(0)?,
                actor: SYSTEM.into(),
                tenant: Some(row.tenant(1)?),
                action: AuditEntry::SUCCEEDED.into(),
                target: job_id(row.get(2)?).to_string(),
                detail: None,
            });
        }
        return Ok(entries);
    }
    let mut select = conn.prepare_cached(include_str!("../sql/read_audit.sql"))?;
    let mut rows = select.query(params![tenant, filter.action, filter.target, limit, before])?;
    while let Some(row) = rows.next()? {
        let has_tenant = !matches!(row.get_ref(2)?, rusqlite::types::ValueRef::Null);
        let entry = || {
            Ok(AuditEntry {
                sequence: row.get::<_, i64>(6)? as u64,
                at: row.time(0)?,
                actor: row.text(1)?,
                tenant: if has_tenant { Some(row.tenant(2)?) } else { None },
                action: row.text(3)?,
                target: row.text(4)?,
                detail: row.get(5)?,
            })
        };
        entries.extend(readable(entry())?);
    }
    Ok(entries)
}
