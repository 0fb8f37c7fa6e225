//! What jobs cost: added up by day, kept one by one for a while, and read back. Called by `finish` for attempts that
//! carry a cost and by the store's methods about usage, inside the writer's transaction.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::{Cost, JobId, Scope, Timestamp, USAGE_EVENTS_KEPT, USAGE_KEPT, UsageEvent, UsageRow, day_of};

use crate::ground::place;
use crate::ground::rows::{Columns, Done, as_i64, job_id, tenant_bytes};
use crate::ground::writer::State;
use crate::reads::Reader;
use crate::records::audit;

/// Records a cost on someone's behalf. False if the job is not there.
pub(crate) fn record(conn: &Connection, state: &State, scope: Scope, id: JobId, by: &str, cost: Cost) -> Done<bool> {
    let Some(job) = Reader::new(conn, state.now)?.one(scope, id)? else { return Ok(false) };
    add(conn, state.now, id.as_i64(), cost, false)?;
    let detail = format!("{} cents, {} units", cost.cents, cost.units);
    audit::audit_job(conn, state, &job, by, "COST_RECORDED", Some(&detail))?;
    Ok(true)
}

/// Adds what a job has cost. `ended` says that it came with the end of its job.
pub(crate) fn add(conn: &Connection, now: Timestamp, job: i64, cost: Cost, ended: bool) -> Done<()> {
    let Some(head) = place::head(conn, job)? else { return Ok(()) };
    let handler: String =
        conn.prepare_cached("SELECT handler FROM windlass_job WHERE id = ?1")?.query_row([job], |row| row.get(0))?;
    let (day, tenant) = (day_of(now), tenant_bytes(&head.tenant));
    let sql = "SELECT jobs, cents, units FROM windlass_usage WHERE day = ?1 AND tenant = ?2 AND handler = ?3";
    let found: Option<(i64, i64, i64)> = conn
        .prepare_cached(sql)?
        .query_row(params![day, tenant, handler], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let (jobs, cents, units) = found.unwrap_or_default();
    // Added up here: SQLite makes a float of a sum that is too large, which the column refuses.
    let sql = "INSERT OR REPLACE INTO windlass_usage (day, tenant, handler, jobs, cents, units) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    conn.prepare_cached(sql)?.execute(params![
        day,
        tenant,
        handler,
        jobs + i64::from(ended),
        cents.saturating_add(cost.cents),
        units.saturating_add(cost.units)
    ])?;
    let sql =
        "INSERT INTO windlass_usage_event (job, tenant, handler, cents, units, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let mut insert = conn.prepare_cached(sql)?;
    insert.execute(params![job, tenant, handler, cost.cents, cost.units, now.as_micros()])?;
    add_to_job(conn, job, cost)
}

/// Adds to what is shown with the job.
fn add_to_job(conn: &Connection, job: i64, cost: Cost) -> Done<()> {
    let sum = conn
        .prepare_cached("SELECT cents, units FROM windlass_job_cost WHERE job = ?1")?
        .query_row([job], |row| Ok(Cost { cents: row.get(0)?, units: row.get(1)? }))
        .optional()?;
    let sum = sum.unwrap_or_default().plus(cost);
    let sql = "INSERT OR REPLACE INTO windlass_job_cost (job, cents, units) VALUES (?1, ?2, ?3)";
    conn.prepare_cached(sql)?.execute(params![job, sum.cents, sum.units])?;
    Ok(())
}

/// The sums from one day to another.
pub(crate) fn by_day(conn: &Connection, scope: Scope, from: &str, to: &str) -> Done<Vec<UsageRow>> {
    let sql = "SELECT tenant, handler, day, jobs, cents, units FROM windlass_usage \
               WHERE day BETWEEN ?1 AND ?2 AND (?3 IS NULL OR tenant = ?3) ORDER BY day, tenant, handler";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params![from, to, scope.tenant().as_ref().map(tenant_bytes)])?;
    let mut usage = Vec::new();
    while let Some(row) = rows.next()? {
        usage.push(UsageRow {
            tenant: row.tenant(0)?,
            handler: row.text(1)?,
            day: row.text(2)?,
            jobs: u64::try_from(row.get::<_, i64>(3)?).unwrap_or(0),
            cents: row.get(4)?,
            units: row.get(5)?,
        });
    }
    Ok(usage)
}

/// The costs one by one.
pub(crate) fn events(conn: &Connection, scope: Scope, after: u64, limit: usize) -> Done<Vec<UsageEvent>> {
    let sql = match scope.tenant() {
        Some(_) => {
            "SELECT sequence, job, tenant, handler, cents, units, at FROM windlass_usage_event \
             WHERE tenant = ?3 AND sequence > ?1 ORDER BY sequence LIMIT ?2"
        }
        None => {
            "SELECT sequence, job, tenant, handler, cents, units, at FROM windlass_usage_event \
             WHERE ?3 IS NULL AND sequence > ?1 ORDER BY sequence LIMIT ?2"
        }
    };
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params![after, as_i64(limit), scope.tenant().as_ref().map(tenant_bytes)])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        events.push(UsageEvent {
            sequence: u64::try_from(row.get::<_, i64>(0)?).unwrap_or(0),
            job: job_id(row.get(1)?),
            tenant: row.tenant(2)?,
            handler: row.text(3)?,
            cents: row.get(4)?,
            units: row.get(5)?,
            at: row.time(6)?,
        });
    }
    Ok(events)
}

/// Forgets what is too old, at most `limit` of each.
pub(crate) fn clean(conn: &Connection, now: Timestamp, limit: usize) -> Done<()> {
    // By sequence, which is the order of time: the scan ends at the first that stays.
    let sql = "DELETE FROM windlass_usage_event WHERE sequence IN \
               (SELECT sequence FROM (SELECT sequence, at FROM windlass_usage_event ORDER BY sequence LIMIT ?2) WHERE at <= ?1)";
    conn.prepare_cached(sql)?.execute(params![(now - USAGE_EVENTS_KEPT).as_micros(), as_i64(limit)])?;
    let sql = "DELETE FROM windlass_usage WHERE (day, tenant, handler) IN \
               (SELECT day, tenant, handler FROM windlass_usage WHERE day < ?1 ORDER BY day LIMIT ?2)";
    conn.prepare_cached(sql)?.execute(params![day_of(now - USAGE_KEPT), as_i64(limit)])?;
    Ok(())
}
