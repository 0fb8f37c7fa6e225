//! What attempts report on their way: progress, log lines and checkpoints, each kept under its fence. Also reads
//! lines back. What a line says is none of its business: it may be sealed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::{Connection, params};
use windlass_core::store::{Fence, LeaseId, NewLine, NodeId, Note, Noted};
use windlass_core::{JobId, LOG_LINES, LogLevel, LogLine, Payload, Progress, Scope, Timestamp};

use crate::ground::rows::{Columns, Done, as_i64};
use crate::jobs::finish::Held;
use crate::reads::Reader;

/// Keeps each note whose fence is current.
pub(crate) fn note(conn: &Connection, node: NodeId, notes: &[Note]) -> Done<Vec<bool>> {
    let mut leases: HashMap<LeaseId, Option<Held>> = HashMap::new();
    let mut kept = Vec::with_capacity(notes.len());
    for Note { fence, what } in notes {
        if let Entry::Vacant(new) = leases.entry(fence.lease) {
            new.insert(Held::load(conn, node, fence.lease)?);
        }
        let held = leases.get(&fence.lease).and_then(Option::as_ref);
        let held = held.is_some_and(|held| held.holds(fence.job.as_i64()));
        if held {
            match what {
                Noted::Progress(progress) => keep_progress(conn, fence.job, progress)?,
                Noted::Log { attempt, lines } => append(conn, *fence, *attempt, lines)?,
                Noted::Checkpoint(data) => keep_checkpoint(conn, fence.job, data)?,
            }
        }
        kept.push(held);
    }
    Ok(kept)
}

fn keep_progress(conn: &Connection, job: JobId, progress: &Progress) -> Done<()> {
    let sql = "INSERT INTO windlass_progress (job, sequence, percent, message, updated_at) \
               VALUES (?1, ?2, ?3, ?4, ?5) \
               ON CONFLICT (job) DO UPDATE SET sequence = excluded.sequence, percent = excluded.percent, \
               message = excluded.message, updated_at = excluded.updated_at";
    let sequence = i64::try_from(progress.sequence).unwrap_or(i64::MAX);
    // SQLite keeps no NaN; a report that says nothing is 0.
    let percent = if progress.percent.is_nan() { 0.0 } else { f64::from(progress.percent) };
    let updated_at = progress.updated_at.as_micros();
    conn.prepare_cached(sql)?.execute(params![job.as_i64(), sequence, percent, progress.message, updated_at])?;
    Ok(())
}

fn keep_checkpoint(conn: &Connection, job: JobId, data: &Payload) -> Done<()> {
    let sql = "INSERT INTO windlass_checkpoint (job, data) VALUES (?1, ?2) \
               ON CONFLICT (job) DO UPDATE SET data = excluded.data";
    conn.prepare_cached(sql)?.execute(params![job.as_i64(), data.as_str()])?;
    Ok(())
}

/// The same as `append` in the core.
fn append(conn: &Connection, fence: Fence, attempt: u16, lines: &[NewLine]) -> Done<()> {
    let (job, lease) = (fence.job.as_i64(), fence.lease.0);
    let sql = "SELECT coalesce(max(sequence), 0), coalesce(max(number) FILTER (WHERE lease = ?2), 0) \
               FROM windlass_job_log WHERE job = ?1";
    let (mut top, done): (i64, i64) =
        conn.prepare_cached(sql)?.query_row(params![job, lease], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let sql = "INSERT INTO windlass_job_log (job, sequence, lease, number, at, attempt, level, message) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let mut insert = conn.prepare_cached(sql)?;
    let before = top;
    for line in lines {
        let number = i64::try_from(line.number).unwrap_or(i64::MAX);
        if number <= done {
            continue;
        }
        top = before.saturating_add(number - done);
        insert.execute(params![
            job,
            top,
            lease,
            number,
            line.at.as_micros(),
            attempt,
            line.level.code(),
            line.message
        ])?;
    }
    let mut delete = conn.prepare_cached("DELETE FROM windlass_job_log WHERE job = ?1 AND sequence <= ?2")?;
    delete.execute(params![job, top.saturating_sub(as_i64(LOG_LINES))])?;
    Ok(())
}

/// The lines of a job that come after a sequence.
pub(crate) fn lines(conn: &Connection, now: Timestamp, scope: Scope, id: JobId, after: u64) -> Done<Vec<LogLine>> {
    if Reader::new(conn, now)?.one(scope, id)?.is_none() {
        return Ok(Vec::new());
    }
    let sql = "SELECT sequence, at, attempt, level, message FROM windlass_job_log \
               WHERE job = ?1 AND sequence > ?2 ORDER BY sequence";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params![id.as_i64(), i64::try_from(after).unwrap_or(i64::MAX)])?;
    let mut read = Vec::new();
    while let Some(row) = rows.next()? {
        read.push(LogLine {
            sequence: u64::try_from(row.get::<_, i64>(0)?).unwrap_or(0),
            at: row.time(1)?,
            attempt: row.small(2)?,
            level: LogLevel::from_code(row.get(3)?),
            message: row.text(4)?,
        });
    }
    Ok(read)
}
