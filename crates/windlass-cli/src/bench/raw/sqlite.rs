//! The raw statements on SQLite: one connection and one thread, as the store has one writer, with the same settings of
//! durability. Reads nothing it does not need and keeps the same rows.

use std::path::Path;
use std::time::{Duration, Instant};

use windlass::sqlite::rusqlite::{Connection, params};
use windlass::store;

use super::{CHUNK, CLAIM, RawLoad, check_count, ids};
use crate::bench::load::Work;
use crate::error::{CliError, Result};

type Sql<T = ()> = windlass::sqlite::rusqlite::Result<T>;

const TENANT: [u8; 16] = [0; 16];
const JOB: &str = "INSERT INTO windlass_job (id, tenant, handler, queue, priority, created_at, born, batch, payload)
    VALUES (?1, ?2, 'bench.noop', 'default', 0, ?3, 0, ?4, ?5)";
const READY: &str = "INSERT INTO windlass_ready (queue, rank, position, tenant, jobs, failed, recoveries, resumed,
    ready_at, ids) VALUES ('default', 0, ?1, ?2, ?3, 0, 0, 0, ?4, ?5)";
const LEASE: &str = "INSERT INTO windlass_lease (lease, node, claimed_at, jobs) VALUES (?1, 0, ?2, ?3)";
const CLAIM_CHUNKS: &str =
    "SELECT n, ids FROM windlass_ready WHERE queue = 'default' AND rank = 0 ORDER BY position, n LIMIT ?1";
const READ_JOB: &str = "SELECT handler, queue, priority, created_at, payload FROM windlass_job WHERE id = ?1";
const OUTCOME: &str = "INSERT INTO windlass_outcome (job, status, at, purge_at, attempt, failed, recoveries, node,
    started_at, output) VALUES (?1, 6, ?2, ?3, 1, 0, 0, 0, ?2, 'null')";
const COUNTER: &str = "INSERT INTO windlass_counter (tenant, status, jobs) VALUES (?1, 6, ?2)
    ON CONFLICT (tenant, status) DO UPDATE SET jobs = jobs + excluded.jobs";

/// Writes jobs and their ready chunks.
pub(super) fn submit(file: &Path, load: &RawLoad) -> Result<Duration> {
    run(|| {
        let mut conn = open(file)?;
        let begun = Instant::now();
        for_each_write(load, |ids, batch, payload| {
            let tx = conn.transaction()?;
            insert_jobs(&tx, ids, batch, payload)?;
            for chunk in ids.chunks(CHUNK) {
                let params = params![chunk[0], TENANT, chunk.len() as i64, now(), pack(chunk)];
                tx.prepare_cached(READY)?.execute(params)?;
            }
            tx.commit()
        })?;
        let took = begun.elapsed();
        Ok((took, count(&conn, "windlass_job")?))
    })
    .and_then(|(took, found)| checked("jobs", took, found, load))
}

/// Claims and ends jobs that wait, each in a transaction of its own.
pub(super) fn drain(file: &Path, load: &RawLoad) -> Result<Duration> {
    let chunks = (load.workers.min(CLAIM) / CHUNK).max(1) as i64;
    run(|| {
        let mut conn = open(file)?;
        let ids = ids();
        let begun = Instant::now();
        loop {
            let lease = ids.next().as_i64();
            let tx = conn.transaction()?;
            let jobs = claim(&tx, lease, chunks)?;
            tx.commit()?;
            if jobs.is_empty() {
                let took = begun.elapsed();
                return Ok((took, count(&conn, "windlass_outcome")?));
            }
            finish(&mut conn, lease, &jobs)?;
        }
    })
    .and_then(|(took, found)| checked("outcomes", took, found, load))
}

/// Writes jobs under a lease, then ends them.
pub(super) fn end_to_end(file: &Path, load: &RawLoad) -> Result<Duration> {
    run(|| {
        let mut conn = open(file)?;
        let begun = Instant::now();
        for_each_write(load, |ids, batch, payload| {
            let tx = conn.transaction()?;
            insert_jobs(&tx, ids, batch, payload)?;
            tx.prepare_cached(LEASE)?.execute(params![ids[0], now(), pack_leased(ids)])?;
            tx.commit()?;
            finish(&mut conn, ids[0], ids)
        })?;
        let took = begun.elapsed();
        Ok((took, count(&conn, "windlass_outcome")?))
    })
    .and_then(|(took, found)| checked("outcomes", took, found, load))
}

/// Calls `write` with the ids of each transaction: all callers' jobs together, because there is one writer.
fn for_each_write(load: &RawLoad, mut write: impl FnMut(&[i64], Option<i64>, &str) -> Sql) -> Sql {
    let size = if load.batch == 1 { load.submitters as u64 } else { load.batch };
    let payload = payload(load.payload_bytes);
    let ids = ids();
    let mut left = load.jobs;
    while left > 0 {
        let jobs: Vec<i64> = (0..left.min(size)).map(|_| ids.next().as_i64()).collect();
        write(&jobs, (load.batch > 1).then(|| jobs[0]), &payload)?;
        left -= jobs.len() as u64;
    }
    Ok(())
}

fn insert_jobs(conn: &Connection, ids: &[i64], batch: Option<i64>, payload: &str) -> Sql {
    let mut insert = conn.prepare_cached(JOB)?;
    for id in ids {
        insert.execute(params![id, TENANT, now(), batch, payload])?;
    }
    Ok(())
}

fn claim(conn: &Connection, lease: i64, chunks: i64) -> Sql<Vec<i64>> {
    let mut select = conn.prepare_cached(CLAIM_CHUNKS)?;
    let found = select.query_map([chunks], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
    let found: Vec<(i64, Vec<u8>)> = found.collect::<Sql<_>>()?;
    let mut jobs = Vec::new();
    for (n, ids) in found {
        conn.prepare_cached("DELETE FROM windlass_ready WHERE n = ?1")?.execute([n])?;
        jobs.extend(ids.chunks_exact(8).map(|id| i64::from_le_bytes(id.try_into().expect("eight bytes"))));
    }
    if jobs.is_empty() {
        return Ok(jobs);
    }
    conn.prepare_cached(LEASE)?.execute(params![lease, now(), pack_leased(&jobs)])?;
    let mut read = conn.prepare_cached(READ_JOB)?;
    for id in &jobs {
        std::hint::black_box(read.query_row([id], |row| row.get::<_, String>(4))?);
    }
    Ok(jobs)
}

fn finish(conn: &mut Connection, lease: i64, jobs: &[i64]) -> Sql {
    let tx = conn.transaction()?;
    {
        let (at, mut insert) = (now(), tx.prepare_cached(OUTCOME)?);
        for id in jobs {
            insert.execute(params![id, at, at + 14 * 86_400_000_000])?;
        }
        tx.prepare_cached("DELETE FROM windlass_lease WHERE lease = ?1")?.execute([lease])?;
        tx.prepare_cached(COUNTER)?.execute(params![TENANT, jobs.len() as i64])?;
    }
    tx.commit()
}

fn open(file: &Path) -> Sql<Connection> {
    let conn = Connection::open(file)?;
    conn.set_prepared_statement_cache_capacity(32);
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", 4_000)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(conn)
}

fn count(conn: &Connection, table: &str) -> Sql<i64> {
    conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
}

fn checked(what: &str, took: Duration, found: i64, load: &RawLoad) -> Result<Duration> {
    check_count(what, found, load.jobs)?;
    Ok(took)
}

fn run<T>(work: impl FnOnce() -> Sql<T>) -> Result<T> {
    work().map_err(|error| CliError::from(store::Error::Internal(error.to_string())))
}

fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_micros() as i64)
}

fn payload(bytes: usize) -> String {
    serde_json::to_string(&Work::now(bytes)).expect("numbers and text are JSON")
}

fn pack(ids: &[i64]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Each job with its failures and recoveries, of which there are none.
fn pack_leased(ids: &[i64]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes().into_iter().chain([0; 4])).collect()
}

/// One committed INSERT after another, for the limit of latency.
pub(crate) struct Inserts {
    conn: Connection,
    ids: windlass::IdGenerator,
    payload: String,
}

impl Inserts {
    /// Opens the file beside the store, which allows it within one process. The jobs it writes wait nowhere.
    pub(crate) fn open(file: &Path, payload_bytes: usize) -> Result<Inserts> {
        let conn = run(|| open(file))?;
        run(|| conn.busy_timeout(Duration::from_secs(5)))?;
        Ok(Inserts { conn, ids: ids(), payload: payload(payload_bytes) })
    }

    /// Writes one job; answers how long that took.
    pub(crate) fn one(&self) -> Result<Duration> {
        let begun = Instant::now();
        run(|| insert_jobs(&self.conn, &[self.ids.next().as_i64()], None, &self.payload))?;
        Ok(begun.elapsed())
    }
}
