//! Changes a job that waits: its row, and where it stands. Called by the store's `edit`, in the writer's
//! transaction, so that a claim comes before all of it or after. Never decides where a job goes (`edit` in the core does).

use std::borrow::Cow;

use rusqlite::{Connection, params};
use windlass_core::edit::{Edit, Move, after_edit, can_edit};
use windlass_core::store::{EditReply, Gate};
use windlass_core::{JobId, JobRecord, Priority, Scope, Status, Timestamp};

use crate::ground::place::{self, Event, Group, Turn, Wait, Waiting};
use crate::ground::rows::{Columns, Done, as_i64, internal, pack_ids, tenant_bytes, unpack_ids};
use crate::ground::writer::State;
use crate::reads::Reader;
use crate::records::audit;
use crate::tenancy::quota;

/// Changes a waiting job and puts it where it belongs from now on.
pub(crate) fn edit(
    conn: &Connection,
    state: &mut State,
    scope: Scope,
    id: JobId,
    by: &str,
    edit: &Edit,
) -> Done<EditReply> {
    let Some(record) = Reader::new(conn, state.now)?.one(scope, id)? else { return Ok(EditReply::NotFound) };
    if !can_edit(record.status) {
        return Ok(EditReply::NotWaiting(record.status));
    }
    let gate = record.reason.as_deref().filter(|_| record.status == Status::Blocked).and_then(Gate::parse);
    let to = edit.start.map(|start| after_edit(record.status, gate.as_ref(), start, state.now));
    if let (Some(Move::Refused), Some(gate)) = (to, gate) {
        return Ok(EditReply::Blocked(gate));
    }
    let status = put(conn, state, &record, edit.priority.unwrap_or(record.priority), to)?;
    change_row(conn, &record, edit, run_at(&record, to, state.now))?;
    let note = format!("edited by {by}: {edit}");
    let event = Event {
        job: id.as_i64(),
        status,
        attempt: record.attempt,
        failed: record.failed,
        recoveries: record.recoveries,
        node: None,
        started_at: None,
        error: None,
        note: Some(&note),
    };
    place::record(conn, state.now, &event)?;
    audit::audit_job(conn, state, &record, by, "JOB_EDITED", Some(&edit.to_string()))?;
    Ok(EditReply::Edited(status))
}

/// When a job is due from now on, if the edit says so.
fn run_at(record: &JobRecord, to: Option<Move>, now: Timestamp) -> Option<Timestamp> {
    match to {
        Some(Move::Ready) if record.status != Status::Pending => Some(now),
        Some(Move::Until(at)) => Some(at),
        Some(Move::Behind(due)) => Some(due.unwrap_or(now)),
        _ => None,
    }
}

/// Changes what the job itself says.
fn change_row(conn: &Connection, record: &JobRecord, edit: &Edit, run_at: Option<Timestamp>) -> Done<()> {
    let job = record.id.as_i64();
    if let Some(input) = &edit.input {
        let sql = "SELECT length(CAST(payload AS BLOB)) FROM windlass_job WHERE id = ?1";
        let before: i64 = conn.prepare_cached(sql)?.query_row([job], |row| row.get(0))?;
        let grown = as_i64(input.as_str().len()).saturating_sub(before);
        quota::grow(conn, record.tenant, usize::try_from(grown).unwrap_or(0))?;
        let mut update = conn.prepare_cached("UPDATE windlass_job SET payload = ?2 WHERE id = ?1")?;
        update.execute(params![job, input.as_str()])?;
    }
    let sql = "UPDATE windlass_job SET priority = coalesce(?2, priority), run_at = coalesce(?3, run_at) WHERE id = ?1";
    let priority = edit.priority.map(|priority| priority.0);
    conn.prepare_cached(sql)?.execute(params![job, priority, run_at.map(Timestamp::as_micros)])?;
    Ok(())
}

/// Moves a job to where it waits from now on. Answers with the status it has there.
fn put(conn: &Connection, state: &mut State, record: &JobRecord, priority: Priority, to: Option<Move>) -> Done<Status> {
    let job = record.id.as_i64();
    match (record.status, to) {
        (Status::Pending, Some(Move::Until(at))) => {
            let found = take_ready(conn, record)?;
            place::schedule(conn, &found.waiting(record, priority), at, Status::Scheduled)?;
            Ok(Status::Scheduled)
        }
        (Status::Pending, _) => {
            if priority != record.priority {
                let found = take_ready(conn, record)?;
                let group = Group { queue: Cow::Owned(found.queue.clone()), ..found.waiting(record, priority).group() };
                place::make_ready(conn, state, vec![(group, job)], Turn::Next)?;
            }
            Ok(Status::Pending)
        }
        (Status::Blocked, Some(Move::Until(at))) => {
            let found = take_waiting(conn, Wait::Gated, job)?;
            place::schedule(conn, &found.waiting(record, priority), at, Status::Scheduled)?;
            Ok(Status::Scheduled)
        }
        (Status::Blocked, to) => {
            let (again, due) = match to {
                Some(Move::Behind(due)) => (true, due),
                _ => (false, None),
            };
            let sql = "UPDATE windlass_gated SET priority = ?2, due = CASE WHEN ?3 THEN ?4 ELSE due END WHERE job = ?1";
            let mut update = conn.prepare_cached(sql)?;
            update.execute(params![job, priority.0, again, due.map(Timestamp::as_micros)])?;
            Ok(Status::Blocked)
        }
        (_, Some(Move::Ready)) => {
            let found = take_waiting(conn, Wait::Scheduled, job)?;
            place::make_ready(conn, state, vec![(found.waiting(record, priority).group(), job)], Turn::Next)?;
            Ok(Status::Pending)
        }
        (status, to) => {
            let due = match to {
                Some(Move::Until(at)) => Some(at.as_micros()),
                _ => None,
            };
            let sql = "UPDATE windlass_scheduled SET priority = ?2, due = coalesce(?3, due) WHERE job = ?1";
            conn.prepare_cached(sql)?.execute(params![job, priority.0, due])?;
            Ok(status)
        }
    }
}

/// A job as it waited.
struct Found {
    /// Where it waited, which for a ready job is not always its own queue.
    queue: String,
    failed: u16,
    recoveries: u16,
    resumed: bool,
}

impl Found {
    fn waiting<'a>(&self, record: &'a JobRecord, priority: Priority) -> Waiting<'a> {
        Waiting {
            id: record.id.as_i64(),
            tenant: record.tenant,
            queue: &record.queue,
            priority,
            failed: self.failed,
            recoveries: self.recoveries,
            resumed: self.resumed,
        }
    }
}

/// Takes a job out of the table it waits in.
fn take_waiting(conn: &Connection, wait: Wait, job: i64) -> Done<Found> {
    let sql = match wait {
        Wait::Scheduled => "SELECT queue, failed, recoveries, resumed FROM windlass_scheduled WHERE job = ?1",
        Wait::Gated => "SELECT queue, failed, recoveries, resumed FROM windlass_gated WHERE job = ?1",
    };
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query([job])?;
    let row = rows.next()?.ok_or_else(|| internal(format!("waiting job {job} has no row in its table")))?;
    let found = Found { queue: row.text(0)?, failed: row.small(1)?, recoveries: row.small(2)?, resumed: row.get(3)? };
    drop(rows);
    place::remove_waiting(conn, wait, job)?;
    Ok(found)
}

/// Takes a ready job out of its chunk. Reads the tenant's chunks: no index leads from a job to its chunk, and an edit is
/// rare.
fn take_ready(conn: &Connection, record: &JobRecord) -> Done<Found> {
    let job = record.id.as_i64();
    let sql = "SELECT n, queue, failed, recoveries, resumed, ids FROM windlass_ready \
               WHERE tenant = ?1 AND instr(ids, ?2) > 0";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params![tenant_bytes(&record.tenant), pack_ids(&[job])])?;
    while let Some(row) = rows.next()? {
        let mut ids = unpack_ids(row.blob(5)?);
        // The bytes of one id may be found across two others.
        let Some(at) = ids.iter().position(|id| *id == job) else { continue };
        ids.remove(at);
        let n: i64 = row.get(0)?;
        let found =
            Found { queue: row.text(1)?, failed: row.small(2)?, recoveries: row.small(3)?, resumed: row.get(4)? };
        drop(rows);
        match ids.is_empty() {
            true => conn.prepare_cached("DELETE FROM windlass_ready WHERE n = ?1")?.execute([n])?,
            false => {
                let mut update = conn.prepare_cached("UPDATE windlass_ready SET jobs = ?2, ids = ?3 WHERE n = ?1")?;
                update.execute(params![n, as_i64(ids.len()), pack_ids(&ids)])?
            }
        };
        return Ok(found);
    }
    Err(internal(format!("ready job {job} is in no chunk")))
}
