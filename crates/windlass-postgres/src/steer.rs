//! What people do to jobs: cancel, replay, edit, purge, pause, resume, and the audit log of it. Called by the service. Never
//! waits for a running job: its lease row is marked, and its node carries the cancel out.

use std::time::Duration;

use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::edit::{Edit, can_edit};
use windlass_core::fair::Line;
use windlass_core::store::{
    AuditEntry, AuditFilter, CancelReply, EditReply, Error, Gate, Pause, PauseTarget, ReplayReply, Result,
};
use windlass_core::{JobId, Scope, Start, Status, TenantId};

use crate::PgStore;
use crate::connect::{Access, Param};
use crate::finish::{ended, pass_on, storable};
use crate::types::{Json, Time, micros};

/// What the functions of migrations 5 and 11 answer besides a status.
mod code {
    pub(super) const NOT_FOUND: i32 = -1;
    pub(super) const TOO_FAST: i32 = -2;
    pub(super) const CANCELED: i32 = -3;
    pub(super) const REQUESTED: i32 = -4;
    pub(super) const NOT_ENDED: i32 = -5;
    pub(super) const BLOCKED: i32 = -6;
}

/// How many audit entries are read where the caller does not say.
const AUDIT_PAGE: i64 = 50;
/// How many jobs a resume makes ready itself; the rest follows in maintenance.
const RESUMED_AT_ONCE: i32 = 10_000;

pub(crate) async fn cancel(store: &PgStore, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply> {
    let params: [Param<'_>; 4] = [
        (&tenant(scope), Type::UUID),
        (&id.as_i64(), Type::INT8),
        (&storable(by), Type::TEXT),
        (&storable(reason), Type::TEXT),
    ];
    let Some(row) = store.within(scope).write(id, include_str!("sql/cancel.sql"), &params).await? else {
        return Ok(CancelReply::NotFound);
    };
    match row.get::<_, i32>(0) {
        code::NOT_FOUND => Ok(CancelReply::NotFound),
        code::CANCELED => {
            pass_on(store, ended([id])).await;
            Ok(CancelReply::Canceled)
        }
        code::REQUESTED => Ok(CancelReply::Requested),
        code::TOO_FAST => Err(Error::Unavailable(format!("job {id} changes its place too fast to be canceled"))),
        status => Ok(CancelReply::AlreadyFinished(status_of(status)?)),
    }
}

pub(crate) async fn replay(store: &PgStore, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply> {
    let params: [Param<'_>; 3] =
        [(&tenant(scope), Type::UUID), (&id.as_i64(), Type::INT8), (&storable(by), Type::TEXT)];
    let Some(row) = store.within(scope).write(id, include_str!("sql/replay.sql"), &params).await? else {
        return Ok(ReplayReply::NotFound);
    };
    match row.get::<_, i32>(0) {
        code::NOT_FOUND => Ok(ReplayReply::NotFound),
        code::NOT_ENDED => {
            let records = crate::read::get(store, scope, &[id]).await?;
            Ok(records.first().map_or(ReplayReply::NotFound, |record| ReplayReply::NotDead(record.status)))
        }
        status => match status_of(status)? {
            Status::DeadLettered => Ok(ReplayReply::Replayed),
            status => Ok(ReplayReply::NotDead(status)),
        },
    }
}

pub(crate) async fn mark_replayed(
    store: &PgStore,
    scope: Scope,
    id: JobId,
    by: &str,
    as_job: JobId,
    keep: Duration,
) -> Result<bool> {
    let params: [Param<'_>; 5] = [
        (&tenant(scope), Type::UUID),
        (&id.as_i64(), Type::INT8),
        (&storable(by), Type::TEXT),
        (&as_job.as_i64(), Type::INT8),
        (&micros(keep), Type::INT8),
    ];
    let row = store.within(scope).write(id, include_str!("sql/mark_replayed.sql"), &params).await?;
    Ok(row.is_some_and(|row| row.get(0)))
}

pub(crate) async fn edit(store: &PgStore, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply> {
    let (at, delay) = match edit.start {
        Some(Start::At(at)) => (Some(Time(at)), None),
        Some(Start::After(delay)) => (None, Some(micros(delay))),
        Some(Start::Now) | None => (None, None),
    };
    let input = edit.input.as_ref().map(|input| Json(input.as_str()));
    let params: [Param<'_>; 9] = [
        (&tenant(scope), Type::UUID),
        (&id.as_i64(), Type::INT8),
        (&storable(by), Type::TEXT),
        (&edit.to_string(), Type::TEXT),
        (&input, Type::JSON),
        (&edit.priority.map(|priority| priority.0), Type::INT2),
        (&(edit.start == Some(Start::Now)), Type::BOOL),
        (&at, Type::TIMESTAMPTZ),
        (&delay, Type::INT8),
    ];
    let Some(row) = store.within(scope).write(id, include_str!("sql/edit.sql"), &params).await? else {
        return Ok(EditReply::NotFound);
    };
    let gate = || Gate::parse(&row.get::<_, Option<String>>(1)?);
    match row.get::<_, i32>(0) {
        code::NOT_FOUND => Ok(EditReply::NotFound),
        code::TOO_FAST => Err(Error::Unavailable(format!("job {id} changes its place too fast to be edited"))),
        code::BLOCKED => match gate() {
            Some(gate) => Ok(EditReply::Blocked(gate)),
            None => Err(Error::Internal(format!("job {id} waits behind an unknown gate"))),
        },
        status => match status_of(status)? {
            status if can_edit(status) => {
                // Nobody may have submitted anything there with its priority.
                let queue: Option<String> = row.get(2);
                if let (Some(queue), Some(priority)) = (queue, edit.priority) {
                    store.shared.lines.lock().know(&Line { queue, priority });
                }
                Ok(EditReply::Edited(status))
            }
            status => Ok(EditReply::NotWaiting(status)),
        },
    }
}

pub(crate) async fn purge(store: &PgStore, scope: Scope, id: JobId, by: &str) -> Result<bool> {
    let params: [Param<'_>; 3] =
        [(&tenant(scope), Type::UUID), (&id.as_i64(), Type::INT8), (&storable(by), Type::TEXT)];
    let row = store.within(scope).write(id, include_str!("sql/purge.sql"), &params).await?;
    Ok(row.is_some_and(|row| row.get(0)))
}

pub(crate) async fn pause(store: &PgStore, target: &PauseTarget, by: &str, reason: &str) -> Result<()> {
    let params: [Param<'_>; 4] = [
        (&target.name(), Type::TEXT),
        (&tenant_of(target), Type::UUID),
        (&storable(by), Type::TEXT),
        (&storable(reason), Type::TEXT),
    ];
    store.shared.pools.api.query(Access::Write, include_str!("sql/pause.sql"), &params).await?;
    Ok(())
}

pub(crate) async fn resume(store: &PgStore, target: &PauseTarget, by: &str) -> Result<bool> {
    let params: [Param<'_>; 3] =
        [(&target.name(), Type::TEXT), (&tenant_of(target), Type::UUID), (&storable(by), Type::TEXT)];
    let resumed: bool =
        store.shared.pools.api.query_one(Access::Write, include_str!("sql/resume.sql"), &params).await?.get(0);
    if resumed {
        // In a transaction of its own: the pause is over whether or not its jobs are released at once.
        let params: [Param<'_>; 1] = [(&RESUMED_AT_ONCE, Type::INT4)];
        let sql = include_str!("sql/open_pauses.sql");
        if let Err(error) = store.shared.pools.api.query(Access::Write, sql, &params).await {
            tracing::warn!(%error, "jobs of a pause that is over were not released; maintenance will do it");
        }
    }
    Ok(resumed)
}

pub(crate) async fn pauses(store: &PgStore) -> Result<Vec<Pause>> {
    let rows = store.shared.pools.api.query(Access::Read, include_str!("sql/pauses.sql"), &[]).await?;
    Ok(pauses_of(rows))
}

/// The pauses that may hold jobs of a scope.
pub(crate) async fn pauses_within(store: &PgStore, scope: Scope) -> Result<Vec<Pause>> {
    Ok(pauses_of(store.within(scope).query(include_str!("sql/pauses.sql"), &[]).await?))
}

fn pauses_of(rows: Vec<tokio_postgres::Row>) -> Vec<Pause> {
    let pause = |row: &tokio_postgres::Row| {
        let target = PauseTarget::parse(row.get(0))?;
        Some(Pause { target, by: row.get(1), reason: row.get(2), at: row.get::<_, Time>(3).0 })
    };
    rows.iter().filter_map(pause).collect()
}

pub(crate) async fn audit(store: &PgStore, entry: AuditEntry) -> Result<()> {
    let params: [Param<'_>; 5] = [
        (&entry.tenant.map(|tenant| tenant.0), Type::UUID),
        (&storable(&entry.actor), Type::TEXT),
        (&storable(&entry.action), Type::TEXT),
        (&storable(&entry.target), Type::TEXT),
        (&entry.detail.as_deref().map(storable), Type::TEXT),
    ];
    store.shared.pools.api.query(Access::Write, include_str!("sql/audit.sql"), &params).await?;
    Ok(())
}

pub(crate) async fn audit_log(store: &PgStore, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
    let limit = match filter.limit {
        0 => AUDIT_PAGE,
        limit => i64::try_from(limit).unwrap_or(i64::MAX),
    };
    if filter.action.as_deref() == Some("JOB_SUCCEEDED") {
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
    let rows = store.within(scope).query(include_str!("sql/audit_log.sql"), &params).await?;
    let entry = |row: &tokio_postgres::Row| AuditEntry {
        at: row.get::<_, Time>(0).0,
        tenant: row.get::<_, Option<Uuid>>(1).map(TenantId),
        actor: row.get(2),
        action: row.get(3),
        target: row.get(4),
        detail: row.get(5),
        sequence: row.get::<_, i64>(6) as u64,
    };
    Ok(rows.iter().map(entry).collect())
}

/// Audit entries of jobs that ended well, from their outcomes.
async fn successes(store: &PgStore, scope: Scope, filter: &AuditFilter, limit: i64) -> Result<Vec<AuditEntry>> {
    let id = match filter.target.as_deref().map(str::parse::<JobId>) {
        None => None,
        Some(Ok(id)) => Some(id.as_i64()),
        Some(Err(_)) => return Ok(Vec::new()),
    };
    let before = before(filter);
    let params: [Param<'_>; 4] =
        [(&tenant(scope), Type::UUID), (&id, Type::INT8), (&limit, Type::INT8), (&before, Type::INT8)];
    let rows = store.within(scope).query(include_str!("sql/audit_successes.sql"), &params).await?;
    let entry = |row: &tokio_postgres::Row| AuditEntry {
        sequence: row.get::<_, i64>(2) as u64,
        at: row.get::<_, Time>(0).0,
        actor: "windlass".to_owned(),
        tenant: Some(TenantId(row.get(1))),
        action: "JOB_SUCCEEDED".to_owned(),
        target: JobId::from_i64(row.get(2)).to_string(),
        detail: None,
    };
    Ok(rows.iter().map(entry).collect())
}

/// The number before which a page of the audit log ends. Larger ones than there are mean the first page.
fn before(filter: &AuditFilter) -> Option<i64> {
    filter.before.map(|before| i64::try_from(before).unwrap_or(i64::MAX))
}

pub(crate) fn tenant(scope: Scope) -> Option<Uuid> {
    scope.tenant().map(|tenant| tenant.0)
}

fn tenant_of(target: &PauseTarget) -> Option<Uuid> {
    match target {
        PauseTarget::Tenant(tenant) => Some(tenant.0),
        _ => None,
    }
}

fn status_of(code: i32) -> Result<Status> {
    i16::try_from(code)
        .ok()
        .and_then(Status::from_code)
        .ok_or_else(|| Error::Internal(format!("unknown status {code}")))
}
