//! What people do to jobs: cancel, replay, purge, pause, resume. Called by the store's methods of the same names, inside
//! a transaction; each leaves a line in the audit log. Never touches a job outside the caller's scope.

use std::time::Duration;

use rusqlite::{Connection, params};
use windlass_core::store::{AuditEntry, CancelReply, Gate, PauseTarget, ReplayReply};
use windlass_core::{JobId, JobRecord, Scope, Status};

use crate::feed;
use crate::finish::cancel_note;
use crate::maintain;
use crate::place::{self, Audit, DEFAULT_KEEP, Ending, Event, Turn, Wait, Waiting};
use crate::read::{self, Reader};
use crate::rows::{Done, tenant_bytes};
use crate::writer::State;

/// Parked jobs that a resume makes ready itself; maintenance does the rest, so that no resume blocks the writer.
const RESUMED_AT_ONCE: usize = 1_000;

/// Cancels a waiting job at once, or asks the node of a running one.
pub(crate) fn cancel(
    conn: &Connection,
    state: &mut State,
    scope: Scope,
    id: JobId,
    by: &str,
    reason: &str,
) -> Done<CancelReply> {
    let reader = Reader::new(conn, state.now)?;
    let Some(record) = reader.one(scope, id)? else { return Ok(CancelReply::NotFound) };
    if record.status.is_terminal() {
        return Ok(CancelReply::AlreadyFinished(record.status));
    }
    if let Some(running) = reader.running(id.as_i64()) {
        let sql = "INSERT INTO windlass_cancel (job, lease, actor, reason) VALUES (?1, ?2, ?3, ?4) \
                   ON CONFLICT (job) DO NOTHING";
        if conn.execute(sql, params![id.as_i64(), running.lease.0, by, reason])? == 1 {
            let note = match reason.is_empty() {
                true => format!("cancel requested by {by}"),
                false => format!("cancel requested by {by}: {reason}"),
            };
            let event = Event {
                job: id.as_i64(),
                status: Status::Running,
                attempt: running.job.attempt(),
                failed: running.job.failed,
                recoveries: running.job.recoveries,
                node: Some(running.node),
                started_at: None,
                error: None,
                note: Some(&note),
            };
            place::record(conn, state.now, &event)?;
            audit_job(conn, state, &record, by, "JOB_CANCELED", Some(&format!("requested: {reason}")))?;
        }
        return Ok(CancelReply::Requested);
    }
    end_waiting(conn, state, &record, reason, &cancel_note(by, reason))?;
    audit_job(conn, state, &record, by, "JOB_CANCELED", Some(reason))?;
    Ok(CancelReply::Canceled)
}

/// Takes a job out of where it waits and ends it as canceled.
pub(crate) fn end_waiting(
    conn: &Connection,
    state: &mut State,
    record: &JobRecord,
    reason: &str,
    note: &str,
) -> Done<()> {
    let job = record.id.as_i64();
    match record.status {
        Status::Scheduled | Status::Retrying => drop(place::remove_waiting(conn, Wait::Scheduled, job)?),
        Status::Blocked => drop(place::remove_waiting(conn, Wait::Gated, job)?),
        _ => {
            // Its chunk may stand anywhere in a long line; the claim that meets it drops it.
            let mut insert = conn.prepare_cached("INSERT INTO windlass_withdrawn (job, tenant) VALUES (?1, ?2)")?;
            insert.execute(params![job, tenant_bytes(&record.tenant)])?;
            state.withdrawn.insert(job);
        }
    }
    let ending = Ending {
        job,
        tenant: record.tenant,
        ordering_key: record.ordering_key.as_deref(),
        status: Status::Canceled,
        keep: Some(record.spec.retention.unwrap_or(DEFAULT_KEEP)),
        attempt: record.attempt,
        failed: record.failed,
        recoveries: record.recoveries,
        node: None,
        started_at: None,
        reason: Some(reason),
        note: Some(note),
        error: None,
        output: None,
    };
    place::end(conn, state, &ending)?;
    feed::note(conn, state, job, Status::Canceled, record.attempt)
}

/// Puts a dead letter back to work in place.
pub(crate) fn replay(conn: &Connection, state: &mut State, scope: Scope, id: JobId, by: &str) -> Done<ReplayReply> {
    let Some(record) = Reader::new(conn, state.now)?.one(scope, id)? else { return Ok(ReplayReply::NotFound) };
    if record.status != Status::DeadLettered {
        return Ok(ReplayReply::NotDead(record.status));
    }
    let job = id.as_i64();
    keep_outcome_in_history(conn, job, &record)?;
    conn.execute("DELETE FROM windlass_outcome WHERE job = ?1", [job])?;
    conn.execute("DELETE FROM windlass_dead_letter WHERE job = ?1", [job])?;
    place::count(conn, record.tenant, Status::DeadLettered, -1)?;
    if let Some(at) = record.spec.expires_at {
        // It counts as not started again, and its row went when it had ended.
        place::watch_expiry(conn, job, at)?;
    }
    let waiting = Waiting {
        id: job,
        tenant: record.tenant,
        queue: &record.queue,
        priority: record.priority,
        failed: 0,
        recoveries: 0,
        resumed: true,
    };
    let behind = match &record.ordering_key {
        Some(key) if !place::take_key(conn, record.tenant, key, job)? => Some(Gate::OrderingKey(key.clone())),
        _ => None,
    };
    let note = format!("replayed by {by}");
    let event = Event {
        job,
        status: if behind.is_some() { Status::Blocked } else { Status::Pending },
        attempt: 0,
        failed: 0,
        recoveries: 0,
        node: None,
        started_at: None,
        error: None,
        note: Some(&note),
    };
    place::record(conn, state.now, &event)?;
    feed::note(conn, state, job, event.status, 0)?;
    match behind {
        Some(gate) => place::gate(conn, &waiting, &gate, None)?,
        None => place::make_ready(conn, state, vec![(waiting.group(), job)], Turn::Next)?,
    }
    audit_job(conn, state, &record, by, "JOB_REPLAYED", None)?;
    Ok(ReplayReply::Replayed)
}

/// How it had ended stays known after the outcome is gone.
fn keep_outcome_in_history(conn: &Connection, job: i64, record: &JobRecord) -> Done<()> {
    let Some((entry, error)) = read::outcome_entry(conn, job)? else { return Ok(()) };
    let event = Event {
        job,
        status: entry.status,
        attempt: entry.attempt,
        failed: record.failed,
        recoveries: record.recoveries,
        node: entry.node,
        started_at: entry.started_at,
        error: error.as_ref(),
        note: entry.note.as_deref(),
    };
    place::record(conn, entry.at, &event)
}

/// Marks a dead letter as replayed by another job; from now on it has a time to live.
pub(crate) fn mark_replayed(
    conn: &Connection,
    state: &mut State,
    scope: Scope,
    id: JobId,
    by: &str,
    as_job: JobId,
    keep: Duration,
) -> Done<bool> {
    let Some(record) = Reader::new(conn, state.now)?.one(scope, id)? else { return Ok(false) };
    if record.status != Status::DeadLettered {
        return Ok(false);
    }
    let sql = "UPDATE windlass_dead_letter SET replayed_by = ?2, replayed_at = ?3, replayed_as = ?4 WHERE job = ?1";
    conn.execute(sql, params![id.as_i64(), by, state.now.as_micros(), as_job.as_i64()])?;
    let purge_at = (state.now + keep).as_micros();
    conn.execute("UPDATE windlass_outcome SET purge_at = ?2 WHERE job = ?1", params![id.as_i64(), purge_at])?;
    audit_job(conn, state, &record, by, "JOB_REPLAYED", Some(&format!("as {as_job}")))?;
    Ok(true)
}

/// Removes an ended job now.
pub(crate) fn purge(conn: &Connection, state: &mut State, scope: Scope, id: JobId, by: &str) -> Done<bool> {
    let Some(record) = Reader::new(conn, state.now)?.one(scope, id)? else { return Ok(false) };
    if !record.status.is_terminal() {
        return Ok(false);
    }
    maintain::remove_jobs(conn, state.now, &[id.as_i64()])?;
    audit_job(conn, state, &record, by, "JOB_PURGED", None)?;
    Ok(true)
}

/// Stops starting jobs of a target.
pub(crate) fn pause(conn: &Connection, state: &State, target: &PauseTarget, by: &str, reason: &str) -> Done<()> {
    let sql = "INSERT INTO windlass_pause (target, actor, reason, at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
    if conn.execute(sql, params![target.name(), by, reason, state.now.as_micros()])? == 1 {
        audit_pause(conn, state, target, by, "PAUSED", Some(reason))?;
    }
    Ok(())
}

/// Ends a pause and frees the first of the jobs it parked.
pub(crate) fn resume(conn: &Connection, state: &mut State, target: &PauseTarget, by: &str) -> Done<bool> {
    if conn.execute("DELETE FROM windlass_pause WHERE target = ?1", [target.name()])? == 0 {
        return Ok(false);
    }
    audit_pause(conn, state, target, by, "RESUMED", None)?;
    maintain::free_parked(conn, state, RESUMED_AT_ONCE)?;
    Ok(true)
}

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

fn audit_pause(
    conn: &Connection,
    state: &State,
    target: &PauseTarget,
    by: &str,
    action: &str,
    detail: Option<&str>,
) -> Done<()> {
    let tenant = match target {
        PauseTarget::Tenant(tenant) => Some(*tenant),
        _ => None,
    };
    place::audit(conn, state.now, &Audit { actor: by, tenant, action, target: &target.name(), detail })
}
