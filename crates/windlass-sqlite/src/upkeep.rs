//! What has to happen by itself: due jobs become ready, expired ones end, opened gates let jobs through, old jobs go.
//! Called by the store's maintenance methods, inside a transaction; every step is bounded and may be repeated.
//! Never decides when it runs.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, Rows, params};
use windlass_core::store::{Promoted, Recovered, Result, Silent, Survey, Upkeep, WaitingQueue, survey_by_lists};
use windlass_core::{DEFAULT_QUEUE, OperatorRight, Priority, Reason, Scope, TenantId, Timestamp};

use crate::ground::place::{self, Turn, Wait, Waiting};
use crate::ground::rows::{Columns, Done, Lenient, as_i64, job_id, json_ids, readable};
use crate::ground::writer::State;
use crate::reads::Reader;
use crate::tenancy::usage;
use crate::{SqliteStore, feed, groups, steering};

#[async_trait]
impl Upkeep for SqliteStore {
    async fn survey(&self, _: Duration, queues: &[String]) -> Result<Survey> {
        let survey = survey_by_lists(self, queues).await?;
        let (dependents, batches) = self.read(|conn, _| groups::look(conn)).await?;
        Ok(Survey { dependents, batches, ..survey })
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        self.write(move |conn, state| promote(conn, state, limit)).await
    }

    async fn recover(&self, lease: Duration, silent: &[Silent]) -> Result<Recovered> {
        if silent.is_empty() {
            // Leases of nodes that are gone do not exist here: a node's leases go with it.
            return Ok(Recovered::default());
        }
        let silent = silent.to_vec();
        self.write(move |conn, state| crate::nodes::recover(conn, state, lease, &silent)).await
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        self.write(move |conn, state| expire(conn, state, limit)).await
    }

    async fn open_gates(&self, limit: usize) -> Result<usize> {
        self.write(move |conn, state| open_gates(conn, state, limit)).await
    }

    async fn clean(&self, limit: usize) -> Result<usize> {
        self.write(move |conn, state| clean(conn, state, limit)).await
    }

    async fn waiting_queues(&self) -> Result<Vec<WaitingQueue>> {
        self.read(|conn, _| crate::reads::waiting_queues(conn)).await
    }

    async fn last_served(&self, served: &[String], asked: &[String]) -> Result<Vec<Option<Timestamp>>> {
        let (served, asked) = (served.to_vec(), asked.to_vec());
        self.write(move |conn, state| crate::nodes::last_served(conn, state, &served, &asked)).await
    }
}

/// Maintenance is the engine's, which looks after everyone's jobs.
pub(crate) const ENGINE: Scope = Scope::All(OperatorRight::assume());

/// Makes due jobs ready.
pub(crate) fn promote(conn: &Connection, state: &mut State, limit: usize) -> Done<Promoted> {
    let mut due = conn.prepare_cached(include_str!("sql/maintain_due.sql"))?;
    let rows = due.query(params![state.now.as_micros(), as_i64(limit)])?;
    let jobs = let_in(conn, state, rows, Wait::Scheduled)?;
    let next: Option<i64> =
        conn.prepare_cached("SELECT min(due) FROM windlass_scheduled")?.query_row([], |row| row.get(0))?;
    Ok(Promoted { jobs, next_in: next.map(|due| Timestamp::from_micros(due).since(state.now)) })
}

/// Cancels waiting jobs that were not started in time. A job that has started once is not bound by its expiry.
pub(crate) fn expire(conn: &Connection, state: &mut State, limit: usize) -> Done<usize> {
    let reader = Reader::new(conn, state.now)?;
    // Those of running jobs stay: such a job may yet come back without having begun.
    let sql = "SELECT job FROM windlass_expiry \
               WHERE at <= ?1 AND job NOT IN (SELECT value FROM json_each(?2)) ORDER BY at, job LIMIT ?3";
    let mut select = conn.prepare_cached(sql)?;
    let late = select
        .query_map(params![state.now.as_micros(), json_ids(&reader.running_ids()), as_i64(limit)], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut expired = 0;
    for job in late {
        // The row has done its work either way. A job that has started has none.
        place::forget_expiry(conn, job)?;
        let Some(record) = reader.one(ENGINE, job_id(job))?.filter(|record| !record.status.is_terminal()) else {
            continue;
        };
        steering::end_waiting(conn, state, &record, Reason::Expired.as_str(), None)?;
        expired += 1;
    }
    Ok(expired)
}

/// Lets jobs through whose gate has opened.
pub(crate) fn open_gates(conn: &Connection, state: &mut State, limit: usize) -> Done<usize> {
    let freed = free_parked(conn, state, limit)?;
    // A key is passed on in the transaction that ends its holder, so only a file that someone else has changed can
    // have one without a holder. Looking once after opening is enough, and spares a walk over every blocked job.
    if state.keys_checked || freed >= limit {
        return Ok(freed);
    }
    let mut select = conn.prepare_cached(include_str!("sql/gate_open_keys.sql"))?;
    let mut rows = select.query([as_i64(limit - freed)])?;
    let mut free_keys = Vec::new();
    while let Some(row) = rows.next()? {
        free_keys.extend(readable((|| Ok((row.tenant(0)?, row.text(1)?)))())?);
    }
    drop(rows);
    state.keys_checked = free_keys.len() < limit - freed;
    let mut given = 0;
    for (tenant, key) in free_keys {
        given += usize::from(place::give_key(conn, state, tenant, &key)?);
    }
    Ok(freed + given)
}

/// Makes jobs ready that were parked by a pause that is over.
pub(crate) fn free_parked(conn: &Connection, state: &mut State, limit: usize) -> Done<usize> {
    let mut select = conn.prepare_cached(include_str!("sql/gate_open_pauses.sql"))?;
    let rows = select.query([as_i64(limit)])?;
    let_in(conn, state, rows, Wait::Gated)
}

/// Makes the jobs of `rows` ready and takes them out of the table they wait in. Answers how many.
fn let_in(conn: &Connection, state: &mut State, mut rows: Rows<'_>, from: Wait) -> Done<usize> {
    let mut ready = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, lenient) = (row.get(0)?, Lenient::default());
        let queue = lenient.or(DEFAULT_QUEUE.to_owned(), row.text(2));
        let waiting = Waiting {
            id,
            tenant: lenient.or(TenantId::ROOT, row.tenant(1)),
            queue: &queue,
            priority: lenient.or(Priority::NORMAL, row.priority(3)),
            failed: lenient.or(0, row.small(4)),
            recoveries: lenient.or(0, row.small(5)),
            resumed: lenient.or(true, row.get(6).map_err(Into::into)),
        };
        ready.push((waiting.group(), waiting.id));
    }
    drop(rows);
    let jobs = ready.len();
    for (_, id) in &ready {
        place::remove_waiting(conn, from, *id)?;
    }
    place::make_ready(conn, state, ready, Turn::Next)?;
    Ok(jobs)
}

/// Removes ended jobs whose time is over.
pub(crate) fn clean(conn: &Connection, state: &State, limit: usize) -> Done<usize> {
    let now = state.now.as_micros();
    let sql = "SELECT job FROM windlass_outcome WHERE purge_at <= ?1 ORDER BY purge_at LIMIT ?2";
    let mut select = conn.prepare_cached(sql)?;
    let old =
        select.query_map(params![now, as_i64(limit)], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
    remove_jobs(conn, state.now, &old)?;
    feed::clean(conn, state.now, limit)?;
    // Keys that held for a time outlive their jobs.
    let sql = "DELETE FROM windlass_job_key WHERE n IN \
               (SELECT n FROM windlass_job_key WHERE until <= ?1 ORDER BY until LIMIT ?2)";
    conn.prepare_cached(sql)?.execute(params![now, as_i64(limit)])?;
    usage::clean(conn, state.now, limit)?;
    groups::clean(conn, state.now, limit)?;
    Ok(old.len())
}

/// Removes jobs and every row that belongs to them, one statement per table.
pub(crate) fn remove_jobs(conn: &Connection, now: Timestamp, jobs: &[i64]) -> Done<()> {
    let Some(largest) = jobs.iter().max() else { return Ok(()) };
    conn.prepare_cached(include_str!("sql/maintain_mark.sql"))?.execute(params!["job", largest])?;
    let ids = json_ids(jobs);
    conn.prepare_cached(include_str!("sql/maintain_gone.sql"))?.execute([&ids])?;
    const SIDE_ROWS: [&str; 11] = [
        "DELETE FROM windlass_outcome WHERE job IN (SELECT value FROM json_each(?1))",
        "DELETE FROM windlass_dead_letter WHERE job IN (SELECT value FROM json_each(?1))",
        "DELETE FROM windlass_event WHERE job IN (SELECT value FROM json_each(?1))",
        "DELETE FROM windlass_checkpoint WHERE job IN (SELECT value FROM json_each(?1))",
        "DELETE FROM windlass_progress WHERE job IN (SELECT value FROM json_each(?1))",
        "DELETE FROM windlass_job_log WHERE job IN (SELECT value FROM json_each(?1))",
        "DELETE FROM windlass_job_cost WHERE job IN (SELECT value FROM json_each(?1))",
        "DELETE FROM windlass_expiry WHERE job IN (SELECT value FROM json_each(?1))",
        "DELETE FROM windlass_edge WHERE child IN (SELECT value FROM json_each(?1))",
        "DELETE FROM windlass_job_tag WHERE job IN (SELECT value FROM json_each(?1))",
        "DELETE FROM windlass_job WHERE id IN (SELECT value FROM json_each(?1))",
    ];
    for sql in SIDE_ROWS {
        conn.prepare_cached(sql)?.execute([&ids])?;
    }
    // A unique key with a window holds for its time whatever becomes of the job.
    let sql = "DELETE FROM windlass_job_key \
               WHERE job IN (SELECT value FROM json_each(?1)) AND (until IS NULL OR until <= ?2)";
    conn.prepare_cached(sql)?.execute(params![ids, now.as_micros()])?;
    Ok(())
}
