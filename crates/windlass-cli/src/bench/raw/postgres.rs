//! The raw statements on PostgreSQL, over as many connections as the store uses: two that submit, one that claims, two
//! that finish. Prepared by name and written against the tables, not the functions: nothing faster keeps the same rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};
use windlass::IdGenerator;

use super::{CHUNK, CLAIM, RawLoad, check_count, ids};
use crate::bench::load::Work;
use crate::bench::place::{connect, failed};
use crate::error::{CliError, Result};

/// Connections that submit, and connections that finish.
const WRITERS: usize = 2;

/// $1 ids, $2 payloads, $3 batch, $4 the position of the first chunk.
const SUBMIT_READY: &str = "
with j as (
    insert into windlass.job (id, handler, payload, batch_id)
    select u.id, 'bench.noop', u.payload::json, $3::bigint from unnest($1::bigint[], $2::text[]) u(id, payload))
insert into windlass.ready (queue, rank, position, first, tenant_id, ids)
select 'default', 0, $4::bigint + k * 128, ($1::bigint[])[k * 128 + 1], '00000000-0000-0000-0000-000000000000',
       ($1::bigint[])[k * 128 + 1:(k + 1) * 128]
from generate_series(0, (cardinality($1::bigint[]) - 1) / 128) k";

/// $1 ids, $2 payloads, $3 batch, $4 the lease.
const SUBMIT_LEASED: &str = "
with j as (
    insert into windlass.job (id, handler, payload, batch_id)
    select u.id, 'bench.noop', u.payload::json, $3::bigint from unnest($1::bigint[], $2::text[]) u(id, payload))
insert into windlass.lease (lease_id, part, node_id, failed, recoveries, ids)
select $4::bigint, k, 0, 0, 0, ($1::bigint[])[k * 128 + 1:(k + 1) * 128]
from generate_series(0, (cardinality($1::bigint[]) - 1) / 128) k";

/// $1 the lease, $2 chunks, $3 a position below which nothing waits any more.
const CLAIM_CHUNKS: &str = "
with c as materialized (
    select r.ctid, r.ids from windlass.ready r
    where r.queue = 'default' and r.rank = 0 and r.position >= $3::bigint
    order by r.position, r.first limit $2::bigint for update skip locked),
d as (delete from windlass.ready r where r.ctid = any (array(select c.ctid from c))),
l as (insert into windlass.lease (lease_id, part, node_id, failed, recoveries, ids)
      select $1::bigint, row_number() over () - 1, 0, 0, 0, c.ids from c)
select j.id, j.handler, j.priority, j.payload::text, j.created_at::text from windlass.job j
where j.id = any (array(select unnest(c.ids) from c))
  and j.id between (select min(x) from c, unnest(c.ids) x) and (select max(x) from c, unnest(c.ids) x)";

/// $1 the lease, $2 ids.
const FINISH: &str = "
with l as (delete from windlass.lease where lease_id = $1::bigint),
o as (insert into windlass.outcome (id, finished_at, started_at, purge_at, node_id, status, attempt, failed, recoveries,
                                    output)
      select id, now(), now(), now() + interval '14 days', 0, 6, 1, 0, 0, 'null' from unnest($2::bigint[]) id)
insert into windlass.counter_delta (tenants, statuses, counts)
values (array['00000000-0000-0000-0000-000000000000'::uuid], array[6::smallint], array[cardinality($2::bigint[])::bigint])";

/// A lease and its jobs.
type Held = (i64, Vec<i64>);

/// Writes jobs and their ready chunks.
pub(super) async fn submit(url: &str, load: &RawLoad) -> Result<Duration> {
    let writers = Writers::new(load);
    let clients = prepared(url, SUBMIT_READY, WRITERS).await?;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for (client, statement) in clients {
        let writers = writers.clone();
        tasks.spawn(async move {
            while let Some(Rows { ids, payloads, batch, position }) = writers.next() {
                let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&ids, &payloads, &batch, &position];
                client.execute(&statement, &params).await.map_err(failed)?;
            }
            Ok(())
        });
    }
    all(tasks).await?;
    let took = begun.elapsed();
    counted(url, "job", load.jobs).await?;
    Ok(took)
}

/// Claims chunks on one connection and ends their jobs on two others.
pub(super) async fn drain(url: &str, load: &RawLoad) -> Result<Duration> {
    let chunks = (load.workers.min(CLAIM) / CHUNK).max(1) as i64;
    let (claimer, claim) = prepared(url, CLAIM_CHUNKS, 1).await?.pop().expect("one was asked for");
    // As the store does: a claim that a crash undoes leaves its jobs ready.
    claimer.batch_execute("set synchronous_commit = off").await.map_err(failed)?;
    let finishers = prepared(url, FINISH, WRITERS).await?;
    let begun = Instant::now();
    let (mut tasks, held) = finish_all(finishers);
    tasks.spawn(async move {
        let ids = ids();
        let mut claimed = 0;
        loop {
            let lease = ids.next().as_i64();
            let rows = claimer.query(&claim, &[&lease, &chunks, &claimed]).await.map_err(failed)?;
            if rows.is_empty() {
                return Ok(());
            }
            claimed += rows.len() as i64;
            let jobs = rows.iter().map(|row| row.get(0)).collect();
            if held.send((lease, jobs)).await.is_err() {
                return Ok(()); // The finishers have failed and say why themselves.
            }
        }
    });
    all(tasks).await?;
    let took = begun.elapsed();
    counted(url, "outcome", load.jobs).await?;
    Ok(took)
}

/// Writes jobs under a lease on two connections and ends them on two others.
pub(super) async fn end_to_end(url: &str, load: &RawLoad) -> Result<Duration> {
    let writers = Writers::new(load);
    let submitters = prepared(url, SUBMIT_LEASED, WRITERS).await?;
    let finishers = prepared(url, FINISH, WRITERS).await?;
    let begun = Instant::now();
    let (mut tasks, held) = finish_all(finishers);
    for (client, statement) in submitters {
        let (writers, held) = (writers.clone(), held.clone());
        tasks.spawn(async move {
            while let Some(Rows { ids, payloads, batch, .. }) = writers.next() {
                let lease = ids[0];
                let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&ids, &payloads, &batch, &lease];
                client.execute(&statement, &params).await.map_err(failed)?;
                if held.send((lease, ids)).await.is_err() {
                    return Ok(());
                }
            }
            Ok(())
        });
    }
    drop(held);
    all(tasks).await?;
    let took = begun.elapsed();
    counted(url, "outcome", load.jobs).await?;
    Ok(took)
}

/// Ends what is sent, each lease in one statement.
fn finish_all(finishers: Vec<(Client, Statement)>) -> (JoinSet<Result>, mpsc::Sender<Held>) {
    // One that waits for each finisher: more would only be claimed earlier than it can be ended.
    let (held, waiting) = mpsc::channel::<Held>(WRITERS);
    let waiting = Arc::new(Mutex::new(waiting));
    let mut tasks = JoinSet::new();
    for (client, statement) in finishers {
        let waiting = waiting.clone();
        tasks.spawn(async move {
            loop {
                let next = waiting.lock().await.recv().await;
                let Some((lease, jobs)) = next else { return Ok(()) };
                client.execute(&statement, &[&lease, &jobs]).await.map_err(failed)?;
            }
        });
    }
    (tasks, held)
}

/// What writers take from, one after another.
#[derive(Clone)]
struct Writers {
    load: RawLoad,
    /// Jobs in one statement: what so many callers have waiting while the other writer writes.
    jobs: u64,
    ids: Arc<IdGenerator>,
    taken: Arc<AtomicU64>,
    payload: String,
}

struct Rows {
    ids: Vec<i64>,
    payloads: Vec<String>,
    batch: Option<i64>,
    position: i64,
}

impl Writers {
    fn new(load: &RawLoad) -> Writers {
        let jobs = match load.batch {
            1 => (load.submitters / WRITERS).max(1) as u64,
            batch => batch,
        };
        let payload = serde_json::to_string(&Work::now(load.payload_bytes)).expect("numbers and text are JSON");
        Writers { load: load.clone(), jobs, ids: Arc::new(ids()), taken: Arc::default(), payload }
    }

    fn next(&self) -> Option<Rows> {
        let first = self.taken.fetch_add(self.jobs, Ordering::AcqRel);
        let jobs = self.load.jobs.saturating_sub(first).min(self.jobs);
        if jobs == 0 {
            return None;
        }
        let ids: Vec<i64> = (0..jobs).map(|_| self.ids.next().as_i64()).collect();
        let batch = (self.load.batch > 1).then(|| ids[0]);
        Some(Rows { payloads: vec![self.payload.clone(); ids.len()], ids, batch, position: first as i64 })
    }
}

/// Connections with a statement each, with the settings that the store's functions carry.
async fn prepared(url: &str, sql: &str, connections: usize) -> Result<Vec<(Client, Statement)>> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let client = connect(url).await?;
        let settings = "set windlass.packed = 'on'; set enable_seqscan = off; set jit = off;
                        set plan_cache_mode = force_generic_plan";
        client.batch_execute(settings).await.map_err(failed)?;
        let statement = client.prepare(sql).await.map_err(failed)?;
        clients.push((client, statement));
    }
    Ok(clients)
}

async fn all(mut tasks: JoinSet<Result>) -> Result {
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| CliError::Failed(format!("the raw statements panicked: {error}")))??;
    }
    Ok(())
}

async fn counted(url: &str, table: &str, jobs: u64) -> Result {
    let client = connect(url).await?;
    let row = client.query_one(&format!("select count(*) from windlass.{table}"), &[]).await.map_err(failed)?;
    check_count(table, row.get(0), jobs)
}

/// One committed INSERT after another, for the limit of latency.
pub(crate) struct Inserts {
    client: Client,
    statement: Statement,
    ids: IdGenerator,
    payload: String,
}

impl Inserts {
    /// Connects. The jobs it writes wait nowhere, so nobody runs them.
    pub(crate) async fn open(url: &str, payload_bytes: usize) -> Result<Inserts> {
        let sql = "insert into windlass.job (id, handler, payload) values ($1, 'bench.raw', $2::text::json)";
        let (client, statement) = prepared(url, sql, 1).await?.pop().expect("one was asked for");
        let payload = serde_json::to_string(&Work::now(payload_bytes)).expect("numbers and text are JSON");
        Ok(Inserts { client, statement, ids: ids(), payload })
    }

    /// Writes one job; answers how long that took.
    pub(crate) async fn one(&self) -> Result<Duration> {
        let begun = Instant::now();
        self.client.execute(&self.statement, &[&self.ids.next().as_i64(), &self.payload]).await.map_err(failed)?;
        Ok(begun.elapsed())
    }
}
