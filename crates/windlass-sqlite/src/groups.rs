//! Batches and jobs that wait for others. There is one writer, so counts change in the transaction that ends a job, and
//! nothing has to be added up later.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use windlass_core::flows::depend::Parent;
use windlass_core::store::{
    AuditEntry, BATCH_KEPT, BATCHES_MAX, BatchAsk, BatchCounts, BatchOpened, BatchRecord, Completion, Dependent,
    Dependents, Edge, Gate, Groups, NewBatch, NewPart, PartAdded, Result, Settlement, Transition,
};
use windlass_core::{BatchId, JobId, JobSpec, Scope, Status, TenantId, Timestamp, notes};

use crate::SqliteStore;
use crate::feed;
use crate::ground::place::{self, Audit, Ending, SYSTEM, Turn, Wait, Waiting};
use crate::ground::rows::{Columns, Done, Lenient, as_i64, job_id, json_ids, readable, sequence, tenant_bytes};
use crate::ground::writer::State;
use crate::jobs::submit::{self, Quota};

/// Reads batches by tenant, ids and page.
const LIST: &str = include_str!("sql/batch_list.sql");

#[async_trait]
impl Groups for SqliteStore {
    async fn open_batch(&self, batch: NewBatch) -> Result<BatchOpened> {
        self.write(move |conn, state| open_batch(conn, state, &batch)).await
    }

    async fn add_part(&self, part: NewPart) -> Result<PartAdded> {
        self.write(move |conn, state| add_part(conn, state, &part)).await
    }

    async fn seal_batch(&self, tenant: TenantId, batch: BatchId) -> Result<Option<BatchRecord>> {
        self.write(move |conn, state| {
            let seal = "UPDATE windlass_batch SET sealed_at = coalesce(sealed_at, ?3) WHERE id = ?1 AND tenant = ?2";
            conn.execute(seal, params![batch.0.as_i64(), tenant_bytes(&tenant), state.now.as_micros()])?;
            Ok(find(conn, batch)?.filter(|record| record.tenant == tenant))
        })
        .await
    }

    async fn batches(&self, scope: Scope, ask: &BatchAsk) -> Result<Vec<BatchRecord>> {
        let ask = ask.clone();
        self.read(move |conn, _| {
            let of = scope.tenant();
            let ids = ask.ids.map(|ids| json_ids(&ids.iter().map(|id| id.0.as_i64()).collect::<Vec<_>>()));
            let before = ask.before.map(|before| before.0.as_i64());
            let tenant = of.as_ref().map(tenant_bytes);
            records(conn, LIST, params![tenant, ids, before, as_i64(ask.limit)])
        })
        .await
    }

    async fn fold_batches(&self, batches: &[BatchId], limit: usize) -> Result<Vec<BatchRecord>> {
        let ids: Vec<i64> = batches.iter().map(|id| id.0.as_i64()).collect();
        self.read(move |conn, _| {
            let ids = (!ids.is_empty()).then(|| json_ids(&ids));
            let found = records(conn, include_str!("sql/batch_due.sql"), params![ids, as_i64(limit)])?;
            Ok(found.into_iter().filter(BatchRecord::is_due).collect())
        })
        .await
    }

    async fn complete_batch(&self, completion: Completion) -> Result<bool> {
        self.write(move |conn, state| complete_batch(conn, state, &completion)).await
    }

    async fn dependents(&self, which: &Dependents, limit: usize) -> Result<Vec<Dependent>> {
        let which = which.clone();
        self.read(move |conn, _| dependents(conn, &which, limit)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Option<Status>>> {
        self.write(move |conn, state| settlements.iter().map(|one| settle(conn, state, one)).collect()).await
    }

    async fn edges(&self, of: &[JobId], limit: usize) -> Result<Vec<Edge>> {
        let ids: Vec<i64> = of.iter().map(|id| id.as_i64()).collect();
        self.read(move |conn, _| {
            let mut select = conn.prepare_cached(include_str!("sql/edge_list.sql"))?;
            let edge = |row: &Row<'_>| Ok(Edge { parent: job_id(row.get(0)?), child: job_id(row.get(1)?) });
            Ok(select.query_map(params![json_ids(&ids), as_i64(limit)], edge)?.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }
}

fn open_batch(conn: &Connection, state: &State, batch: &NewBatch) -> Done<BatchOpened> {
    let tenant = tenant_bytes(&batch.tenant);
    if let Some(key) = &batch.key {
        let known = "SELECT id FROM windlass_batch WHERE tenant = ?1 AND key = ?2";
        let known: Option<i64> = conn.query_row(known, params![tenant, key], |row| row.get(0)).optional()?;
        if let Some(known) = known.map(|id| find(conn, BatchId(job_id(id)))).transpose()?.flatten() {
            return Ok(BatchOpened::Open(Box::new(known)));
        }
    }
    let unfinished =
        "SELECT count(*) FROM (SELECT 1 FROM windlass_batch WHERE tenant = ?1 AND completed_at IS NULL LIMIT ?2)";
    let unfinished: i64 = conn.query_row(unfinished, params![tenant, as_i64(BATCHES_MAX)], |row| row.get(0))?;
    if unfinished >= as_i64(BATCHES_MAX) {
        return Ok(BatchOpened::TooMany);
    }
    let insert =
        "INSERT INTO windlass_batch (id, tenant, name, key, callback, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let callback = batch.callback.as_ref().map(|callback| callback.as_str());
    conn.execute(insert, params![batch.id.0.as_i64(), tenant, batch.name, batch.key, callback, state.now.as_micros()])?;
    Ok(BatchOpened::Open(Box::new(BatchRecord::new(batch.clone(), state.now))))
}

fn add_part(conn: &Connection, state: &mut State, part: &NewPart) -> Done<PartAdded> {
    let batch = part.batch.0.as_i64();
    let Some(record) = find(conn, part.batch)?.filter(|record| record.tenant == part.tenant) else {
        return Ok(PartAdded::NotFound);
    };
    let known = "SELECT jobs FROM windlass_batch_part WHERE batch = ?1 AND part = ?2";
    let known: Option<i64> = conn.query_row(known, params![batch, part.part], |row| row.get(0)).optional()?;
    if let Some(jobs) = known {
        return Ok(PartAdded::Repeated(sequence(jobs)));
    }
    if record.sealed_at.is_some() {
        return Ok(PartAdded::Sealed);
    }
    let stored = submit::submit(conn, state, &part.jobs, None, Quota::Enforced)?;
    let jobs = as_i64(stored.iter().filter(|job| !job.duplicate).count());
    let insert = "INSERT INTO windlass_batch_part (batch, part, jobs) VALUES (?1, ?2, ?3)";
    conn.execute(insert, params![batch, part.part, jobs])?;
    conn.execute(
        "UPDATE windlass_batch SET parts = parts + 1, total = total + ?2 WHERE id = ?1",
        params![batch, jobs],
    )?;
    Ok(PartAdded::Added(stored))
}

fn complete_batch(conn: &Connection, state: &mut State, completion: &Completion) -> Done<bool> {
    if !find(conn, completion.batch)?.is_some_and(|record| record.is_due()) {
        return Ok(false);
    }
    let callback = match &completion.job {
        Some(job) => submit::submit(conn, state, std::slice::from_ref(&**job), None, Quota::Counted)?.pop(),
        None => None,
    };
    let complete = "UPDATE windlass_batch SET completed_at = ?2, callback_job = ?3 WHERE id = ?1";
    let callback = callback.map(|stored| stored.id.as_i64());
    conn.execute(complete, params![completion.batch.0.as_i64(), state.now.as_micros(), callback])?;
    Ok(true)
}

/// Counts jobs of a batch that have ended, or fewer.
pub(crate) fn count(conn: &Connection, batch: i64, status: Status, jobs: i64) -> Done<()> {
    let sql = match status {
        Status::Succeeded => "UPDATE windlass_batch SET succeeded = succeeded + ?2 WHERE id = ?1",
        Status::Canceled => "UPDATE windlass_batch SET canceled = canceled + ?2 WHERE id = ?1",
        Status::DeadLettered => "UPDATE windlass_batch SET dead = dead + ?2 WHERE id = ?1",
        _ => return Ok(()),
    };
    conn.prepare_cached(sql)?.execute(params![batch, jobs])?;
    Ok(())
}

/// The batch that a job's end is counted in.
pub(crate) fn counted_batch(conn: &Connection, job: i64) -> Done<Option<i64>> {
    let mut select = conn.prepare_cached("SELECT batch, spec FROM windlass_job WHERE id = ?1")?;
    let mut rows = select.query([job])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let spec: JobSpec = Lenient::default().or(JobSpec::default(), row.json_or_default(1));
    Ok(row.get::<_, Option<i64>>(0)?.filter(|_| spec.part.is_some()))
}

/// Removes batches whose time is over, at most `limit`, with their parts.
pub(crate) fn clean(conn: &Connection, now: Timestamp, limit: usize) -> Done<()> {
    let old = "SELECT id FROM windlass_batch WHERE completed_at <= ?1 ORDER BY completed_at LIMIT ?2";
    let mut select = conn.prepare_cached(old)?;
    let params = params![(now - BATCH_KEPT).as_micros(), as_i64(limit)];
    let old = select.query_map(params, |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
    if !old.is_empty() {
        let ids = json_ids(&old);
        conn.execute("DELETE FROM windlass_batch_part WHERE batch IN (SELECT value FROM json_each(?1))", [&ids])?;
        conn.execute("DELETE FROM windlass_batch WHERE id IN (SELECT value FROM json_each(?1))", [&ids])?;
    }
    Ok(())
}

/// Notes what a new job waits for.
pub(crate) fn add_edges(conn: &Connection, job: i64, parents: &[JobId]) -> Done<()> {
    let sql = "INSERT INTO windlass_edge (parent, child) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    let mut insert = conn.prepare_cached(sql)?;
    for parent in parents {
        insert.execute(params![parent.as_i64(), job])?;
    }
    Ok(())
}

/// Whether jobs wait for others, and whether a batch is to be completed.
pub(crate) fn look(conn: &Connection) -> Done<(bool, bool)> {
    let dependents = "SELECT EXISTS (SELECT 1 FROM windlass_gated WHERE gate = 'parents:')";
    let dependents = conn.prepare_cached(dependents)?.query_row([], |row| row.get(0))?;
    let due = "SELECT EXISTS (SELECT 1 FROM windlass_batch WHERE sealed_at IS NOT NULL AND completed_at IS NULL \
               AND total - succeeded - canceled - dead <= 0)";
    let due = conn.prepare_cached(due)?.query_row([], |row| row.get(0))?;
    Ok((dependents, due))
}

fn dependents(conn: &Connection, which: &Dependents, limit: usize) -> Done<Vec<Dependent>> {
    let ids = |jobs: &[JobId]| json_ids(&jobs.iter().map(|job| job.as_i64()).collect::<Vec<_>>());
    let (sql, key): (_, Box<dyn ToSql>) = match which {
        Dependents::Of(parents) => (include_str!("sql/edge_dependents_of.sql"), Box::new(ids(parents))),
        Dependents::These(jobs) => (include_str!("sql/edge_dependents_these.sql"), Box::new(ids(jobs))),
        Dependents::After(job) => (include_str!("sql/edge_dependents_after.sql"), Box::new(job.as_i64())),
    };
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params![key, as_i64(limit)])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        // One that cannot be read goes on, so that the node that claims it finds out.
        let lenient = Lenient::default();
        let spec: JobSpec = lenient.or(JobSpec::default(), row.json_or_default(3));
        let of = spec.after.as_deref().map(|after| after.of.clone()).unwrap_or_default();
        found.push(Dependent {
            job: job_id(row.get(0)?),
            tenant: lenient.or(TenantId::ROOT, row.tenant(1)),
            handler: lenient.or(String::new(), row.text(2)),
            parents: of.into_iter().map(|id| parent(conn, id)).collect::<Done<_>>()?,
            spec,
        });
    }
    Ok(found)
}

/// How a job or batch stands that another one waits for.
fn parent(conn: &Connection, id: JobId) -> Done<Parent> {
    let sql = "SELECT o.status, j.id FROM (SELECT ?1 AS id) p LEFT JOIN windlass_outcome o ON o.job = p.id \
               LEFT JOIN windlass_job j ON j.id = p.id";
    let mut select = conn.prepare_cached(sql)?;
    let (status, job): (Option<i64>, Option<i64>) =
        select.query_row([id.as_i64()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if job.is_some() {
        let status = status.and_then(|code| i16::try_from(code).ok()).and_then(Status::from_code);
        return Ok(status.map_or(Parent::Unfinished, Parent::of));
    }
    Ok(find(conn, BatchId(id))?.map_or(Parent::Gone, |batch| batch.as_parent()))
}

fn settle(conn: &Connection, state: &mut State, settlement: &Settlement) -> Done<Option<Status>> {
    let job = settlement.job.as_i64();
    let gate = "SELECT due FROM windlass_gated WHERE job = ?1 AND gate = ?2";
    let waits: Option<Option<i64>> =
        conn.query_row(gate, params![job, Gate::Parents.name()], |row| row.get(0)).optional()?;
    let Some(due) = waits else { return Ok(None) };
    place::remove_waiting(conn, Wait::Gated, job)?;
    match &settlement.end {
        Some(end) => end_dependent(conn, state, settlement, end).map(Some),
        None => open_dependent(conn, state, job, due.map(Timestamp::from_micros)).map(Some),
    }
}

/// Lets a job go on: behind its ordering key, until its time, or ready.
fn open_dependent(conn: &Connection, state: &mut State, job: i64, due: Option<Timestamp>) -> Done<Status> {
    let Some(head) = place::head(conn, job)? else { return Ok(Status::Canceled) };
    let waiting = Waiting {
        id: job,
        tenant: head.tenant,
        queue: &head.queue,
        priority: head.priority,
        failed: 0,
        recoveries: 0,
        resumed: false,
    };
    let due = due.filter(|due| *due > state.now);
    if let Some(key) = &head.ordering_key
        && !place::take_key(conn, head.tenant, key, job)?
    {
        place::gate(conn, &waiting, &Gate::OrderingKey(key.clone()), due)?;
        return Ok(Status::Blocked);
    }
    match due {
        Some(due) => {
            place::schedule(conn, &waiting, due, Status::Scheduled)?;
            Ok(Status::Scheduled)
        }
        None => {
            place::make_ready(conn, state, vec![(waiting.group(), job)], Turn::Next)?;
            Ok(Status::Pending)
        }
    }
}

/// Ends a job that never ran because of what it waited for.
fn end_dependent(conn: &Connection, state: &mut State, of: &Settlement, end: &Transition) -> Done<Status> {
    let job = of.job.as_i64();
    let Some(head) = place::head(conn, job)? else { return Ok(Status::Canceled) };
    let (status, reason, error, keep) = match end {
        Transition::DeadLetter { reason, error, keep, .. } => (Status::DeadLettered, reason, Some(error), *keep),
        Transition::Cancel { reason, keep } => (Status::Canceled, reason, None, Some(*keep)),
        other => return Err(crate::ground::rows::internal(format!("{other:?} does not end a job"))),
    };
    let ending = Ending {
        job,
        tenant: head.tenant,
        ordering_key: head.ordering_key.as_deref(),
        batch: counted_batch(conn, job)?,
        status,
        keep,
        attempt: 0,
        failed: 0,
        recoveries: 0,
        node: None,
        started_at: None,
        reason: Some(reason),
        note: None,
        error,
        output: None,
    };
    place::end(conn, state, &ending)?;
    if let Some(error) = error {
        let (action, target) = (AuditEntry::action_of_dead_letter(reason), place::target(job));
        let detail = Some(notes::exhausted(error));
        let entry = Audit { actor: SYSTEM, tenant: Some(head.tenant), action, target: &target, detail };
        place::audit(conn, state.now, &entry)?;
    }
    feed::note(conn, state, job, status, 0)?;
    if let Some(follow_up) = &of.follow_up {
        submit::submit(conn, state, std::slice::from_ref(&**follow_up), None, Quota::Counted)?;
    }
    Ok(status)
}

fn find(conn: &Connection, batch: BatchId) -> Done<Option<BatchRecord>> {
    let none = None::<&[u8]>;
    let ids = json_ids(&[batch.0.as_i64()]);
    Ok(records(conn, LIST, params![none, ids, None::<i64>, 1])?.pop())
}

fn records(conn: &Connection, sql: &str, params: &[&dyn ToSql]) -> Done<Vec<BatchRecord>> {
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params)?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        records.extend(readable(record(row))?);
    }
    Ok(records)
}

fn record(row: &Row<'_>) -> Done<BatchRecord> {
    Ok(BatchRecord {
        id: BatchId(job_id(row.get(0)?)),
        tenant: row.tenant(1)?,
        name: row.text(2)?,
        key: row.get(3)?,
        callback: row.payload_opt(4)?,
        parts: sequence(row.get(5)?),
        counts: BatchCounts {
            total: sequence(row.get(6)?),
            succeeded: sequence(row.get(7)?),
            canceled: sequence(row.get(8)?),
            dead: sequence(row.get(9)?),
        },
        created_at: row.time(10)?,
        sealed_at: row.time_opt(11)?,
        completed_at: row.time_opt(12)?,
        callback_job: row.get::<_, Option<i64>>(13)?.map(job_id),
    })
}
