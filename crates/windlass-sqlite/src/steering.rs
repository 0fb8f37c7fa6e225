//! What people do to jobs: cancel, replay, purge, pause, resume. Called by the store's methods of the same names, inside
//! a transaction; each leaves a line in the audit log. Never touches a job outside the caller's scope.

pub(crate) mod edit;

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, params};
use windlass_core::store::{
    CancelReply, EditReply, Gate, Pause, PauseTarget, ReplayReply, ReplayedAs, Result, Steering,
};
use windlass_core::{DEFAULT_RETENTION, Edit, JobId, JobRecord, NewJob, Scope, Status, notes};

use crate::ground::place::{self, Audit, Ending, Event, Turn, Wait, Waiting};
use crate::ground::rows::{Columns, Done, Lenient, readable, tenant_bytes};
use crate::ground::writer::State;
use crate::jobs::submit;
use crate::reads::{self, Reader};
use crate::records::audit::audit_job;
use crate::{SqliteStore, feed, groups, upkeep};

#[async_trait]
impl Steering for SqliteStore {
    async fn cancel(&self, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        self.write(move |conn, state| cancel(conn, state, scope, id, &by, &reason)).await
    }

    async fn replay(&self, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply> {
        let by = by.to_owned();
        self.write(move |conn, state| replay(conn, state, scope, id, &by)).await
    }

    async fn replay_as(&self, scope: Scope, id: JobId, by: &str, job: NewJob, keep: Duration) -> Result<ReplayedAs> {
        let by = by.to_owned();
        self.write(move |conn, state| replay_as(conn, state, scope, id, &by, &job, keep)).await
    }

    async fn edit(&self, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply> {
        let (by, edit) = (by.to_owned(), edit.clone());
        self.write(move |conn, state| edit::edit(conn, state, scope, id, &by, &edit)).await
    }

    async fn purge(&self, scope: Scope, id: JobId, by: &str) -> Result<bool> {
        let by = by.to_owned();
        self.write(move |conn, state| purge(conn, state, scope, id, &by)).await
    }

    async fn pause(&self, target: &PauseTarget, by: &str, reason: &str) -> Result<()> {
        let (target, by, reason) = (target.clone(), by.to_owned(), reason.to_owned());
        self.write(move |conn, state| pause(conn, state, &target, &by, &reason)).await
    }

    async fn resume(&self, target: &PauseTarget, by: &str) -> Result<bool> {
        let (target, by) = (target.clone(), by.to_owned());
        self.write(move |conn, state| resume(conn, state, &target, &by)).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        self.read(|conn, _| crate::steering::pauses(conn)).await
    }
}

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
        let sql = "INSERT INTO windlass_cancel (job, lease, reason) VALUES (?1, ?2, ?3) ON CONFLICT (job) DO NOTHING";
        if conn.execute(sql, params![id.as_i64(), running.lease.0, reason])? == 1 {
            let note = notes::cancel_requested(by, reason);
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
    end_waiting(conn, state, &record, reason, Some(&notes::canceled(by, reason)))?;
    audit_job(conn, state, &record, by, "JOB_CANCELED", Some(reason))?;
    Ok(CancelReply::Canceled)
}

/// Takes a job out of where it waits and ends it as canceled.
pub(crate) fn end_waiting(
    conn: &Connection,
    state: &mut State,
    record: &JobRecord,
    reason: &str,
    note: Option<&str>,
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
        batch: counted_batch(record),
        status: Status::Canceled,
        keep: Some(record.spec.retention.unwrap_or(DEFAULT_RETENTION)),
        attempt: record.attempt,
        failed: record.failed,
        recoveries: record.recoveries,
        node: None,
        started_at: None,
        reason: Some(reason),
        note,
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
    // An ended job keeps its row until its time; this one has started, and goes on.
    place::forget_expiry(conn, job)?;
    place::count(conn, record.tenant, Status::DeadLettered, -1)?;
    if let Some(batch) = counted_batch(&record) {
        groups::count(conn, batch, Status::DeadLettered, -1)?;
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

/// The batch that a job's end is counted in.
fn counted_batch(record: &JobRecord) -> Option<i64> {
    record.batch.filter(|_| record.spec.part.is_some()).map(|batch| batch.0.as_i64())
}

/// How it had ended stays known after the outcome is gone.
fn keep_outcome_in_history(conn: &Connection, job: i64, record: &JobRecord) -> Done<()> {
    let Some((entry, error)) = reads::outcome_entry(conn, job)? else { return Ok(()) };
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

/// Stores a job in place of a dead letter, which has a time to live from now on. Happens once.
pub(crate) fn replay_as(
    conn: &Connection,
    state: &mut State,
    scope: Scope,
    id: JobId,
    by: &str,
    job: &NewJob,
    keep: Duration,
) -> Done<ReplayedAs> {
    let Some(record) = Reader::new(conn, state.now)?.one(scope, id)? else { return Ok(ReplayedAs::NotFound) };
    if let Some(replayed) = &record.replayed {
        return Ok(ReplayedAs::Before(replayed.as_job));
    }
    if record.status != Status::DeadLettered {
        return Ok(ReplayedAs::NotDead(record.status));
    }
    let stored = submit::submit(conn, state, std::slice::from_ref(job), None, submit::Quota::Enforced)?;
    let as_job = stored[0].id;
    let sql = "UPDATE windlass_dead_letter SET replayed_by = ?2, replayed_at = ?3, replayed_as = ?4 WHERE job = ?1";
    conn.execute(sql, params![id.as_i64(), by, state.now.as_micros(), as_job.as_i64()])?;
    let purge_at = (state.now + keep).as_micros();
    conn.execute("UPDATE windlass_outcome SET purge_at = ?2 WHERE job = ?1", params![id.as_i64(), purge_at])?;
    audit_job(conn, state, &record, by, "JOB_REPLAYED", Some(&notes::replayed_as(as_job)))?;
    Ok(ReplayedAs::New(as_job))
}

/// Removes an ended job now.
pub(crate) fn purge(conn: &Connection, state: &mut State, scope: Scope, id: JobId, by: &str) -> Done<bool> {
    let Some(record) = Reader::new(conn, state.now)?.one(scope, id)? else { return Ok(false) };
    if !record.status.is_terminal() {
        return Ok(false);
    }
    upkeep::remove_jobs(conn, state.now, &[id.as_i64()])?;
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
    upkeep::free_parked(conn, state, RESUMED_AT_ONCE)?;
    Ok(true)
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

/// The pauses in force.
pub(crate) fn pauses(conn: &Connection) -> Done<Vec<Pause>> {
    let mut select = conn.prepare_cached("SELECT target, actor, reason, at FROM windlass_pause ORDER BY at, target")?;
    let mut rows = select.query([])?;
    let mut pauses = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(target) = readable(row.text(0))?.as_deref().and_then(PauseTarget::parse) else { continue };
        // A pause counts although nobody can read who made it and why.
        let lenient = Lenient::default();
        let (by, reason) = (lenient.or(String::new(), row.text(1)), lenient.or(String::new(), row.text(2)));
        pauses.push(Pause { target, by, reason, at: row.time(3)? });
    }
    Ok(pauses)
}
