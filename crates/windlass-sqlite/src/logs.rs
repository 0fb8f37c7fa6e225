//! Log lines of jobs (BEY-7): kept under their fence, the newest only, and read back. Called by the store's methods of the
//! same names. What a line says is none of its business: it may be sealed.

use rusqlite::{Connection, params};
use windlass_core::store::{LogReport, NodeId};
use windlass_core::{JobId, LOG_LINES, LogLevel, LogLine, Scope, Timestamp};

use crate::finish::Held;
use crate::read::Reader;
use crate::rows::{Columns, Done, as_i64};

/// Keeps what is new of each report whose fence is current.
pub(crate) fn add(conn: &Connection, node: NodeId, reports: &[LogReport]) -> Done<Vec<bool>> {
    let mut answers = Vec::with_capacity(reports.len());
    for report in reports {
        let held = Held::load(conn, node, report.fence.lease)?;
        let held = held.is_some_and(|held| held.holds(report.fence.job.as_i64()));
        if held {
            append(conn, report)?;
        }
        answers.push(held);
    }
    Ok(answers)
}

/// The same as `append` in the core.
fn append(conn: &Connection, report: &LogReport) -> Done<()> {
    let (job, lease) = (report.fence.job.as_i64(), report.fence.lease.0);
    let sql = "SELECT coalesce(max(sequence), 0), coalesce(max(number) FILTER (WHERE lease = ?2), 0) \
               FROM windlass_job_log WHERE job = ?1";
    let (mut top, done): (i64, i64) =
        conn.prepare_cached(sql)?.query_row(params![job, lease], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let sql = "INSERT INTO windlass_job_log (job, sequence, lease, number, at, attempt, level, message) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let mut insert = conn.prepare_cached(sql)?;
    let before = top;
    for line in &report.lines {
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
            report.attempt,
            line.level.code(),
            line.message
        ])?;
    }
    let mut delete = conn.prepare_cached("DELETE FROM windlass_job_log WHERE job = ?1 AND sequence <= ?2")?;
    delete.execute(params![job, top.saturating_sub(as_i64(LOG_LINES))])?;
    Ok(())
}

/// The lines of a job that come after a sequence.
pub(crate) fn read(conn: &Connection, now: Timestamp, scope: Scope, id: JobId, after: u64) -> Done<Vec<LogLine>> {
    if Reader::new(conn, now)?.one(scope, id)?.is_none() {
        return Ok(Vec::new());
    }
    let sql = "SELECT sequence, at, attempt, level, message FROM windlass_job_log \
               WHERE job = ?1 AND sequence > ?2 ORDER BY sequence";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params![id.as_i64(), i64::try_from(after).unwrap_or(i64::MAX)])?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next()? {
        lines.push(LogLine {
            sequence: u64::try_from(row.get::<_, i64>(0)?).unwrap_or(0),
            at: row.time(1)?,
            attempt: row.small(2)?,
            level: LogLevel::from_code(row.get(3)?),
            message: row.text(4)?,
        });
    }
    Ok(lines)
}
