//! Step 1: stores jobs. Plain ones go through one statement with their ready chunks; those with a key, an ordering key
//! or an expiry through the function that is behind the one of SQL users. Never decides whether a job is acceptable.

use foldhash::HashMap;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::fair::Line;
use windlass_core::store::{CHUNK_JOBS, Error, LeaseId, NodeId, Result, Submit, Submitted};
use windlass_core::{JobId, NewJob, Priority, Start};

use crate::ground::connect::{Access, Conn, ENGINE_IDLE, Failure, Param, begin, is_known_job};
use crate::ground::rows::Row;
use crate::ground::types::{Json, JsonText, Time, micros};
use crate::tenancy::quota::{self, Wanted};
use crate::{Held, PgStore};

/// Stores the jobs, in order, all or none.
pub(crate) async fn submit(store: &PgStore, submit: Submit) -> Result<Vec<Submitted>> {
    let Submit { jobs, lease } = submit;
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    match store_new(store, &jobs, lease).await {
        Err(error) if is_known_job(&error) => store_unknown(store, jobs, lease).await,
        answers => answers,
    }
}

/// Stores those of the jobs whose ids are not there yet: a submit of unknown outcome may be repeated.
async fn store_unknown(store: &PgStore, jobs: Vec<NewJob>, lease: Option<(NodeId, LeaseId)>) -> Result<Vec<Submitted>> {
    let ids: Vec<i64> = jobs.iter().map(|job| job.id.as_i64()).collect();
    let params: [Param<'_>; 1] = [(&ids, Type::INT8_ARRAY)];
    let rows =
        store.shared.pools.submit.query(Access::Read, include_str!("../sql/jobs/submit_known.sql"), &params).await?;
    let known = rows.iter().map(|row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))));
    let mut known = known.collect::<Result<HashMap<i64, (Uuid, String)>>>()?;
    let mut new = Vec::new();
    let mut answers = Vec::with_capacity(jobs.len());
    for job in jobs {
        match known.get(&job.id.as_i64()) {
            Some((tenant, handler)) if *tenant != job.tenant.0 || *handler != job.handler => {
                return Err(Error::Internal(format!("another job with the id {} already exists", job.id)));
            }
            Some(_) => answers.push(Some(Submitted { id: job.id, duplicate: true })),
            None => {
                known.insert(job.id.as_i64(), (job.tenant.0, job.handler.clone()));
                answers.push(None);
                new.push(job);
            }
        }
    }
    let mut stored = match new.is_empty() {
        true => Vec::new(),
        false => store_new(store, &new, lease).await?,
    }
    .into_iter();
    Ok(answers.into_iter().filter_map(|answer| answer.or_else(|| stored.next())).collect())
}

async fn store_new(store: &PgStore, jobs: &[NewJob], lease: Option<(NodeId, LeaseId)>) -> Result<Vec<Submitted>> {
    let pool = &store.shared.pools.submit;
    let plain: Vec<&NewJob> = jobs.iter().filter(|job| job.is_plain()).collect();
    let keyed: Vec<&NewJob> = jobs.iter().filter(|job| !job.is_plain()).collect();
    let batch = PlainBatch::new(store, &plain, lease);
    let wanted = Wanted::of(store, &plain);
    let within = !Wanted::of(store, &keyed).is_empty();
    let answers = if keyed.is_empty() {
        within_quota(pool.query(Access::Write, plain_sql(&wanted), &batch.params_within(&wanted)).await?, &wanted)?;
        Vec::new()
    } else if plain.is_empty() {
        let json = to_json(&keyed)?;
        let json = Json(&json);
        let (sql, params) = keyed_sql(&json, within);
        answers(pool.query(Access::Write, sql, &params).await?)?
    } else {
        submit_mixed(store, &batch, &wanted, &keyed, within).await?
    };
    store.know_lines(jobs);
    store.hold(batch.held());
    store.refresh_lines_if_old();
    Ok(in_order(jobs, answers))
}

/// Stores plain jobs: job rows, and ready chunks, schedule rows or one lease row. Insert only:
/// `sql/jobs/submit_plain.sql`; it reads `line` by its primary key.
const PLAIN: &str = "select windlass.submit_plain(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, \
    $16, $17, $18, $19, $20, $21)";

/// Stores plain jobs within the quotas $1 to $3 (tenants, jobs, bytes), or answers what is exceeded:
/// `sql/jobs/submit_plain.sql`; tenant_use by its primary key.
const PLAIN_WITHIN: &str = "select windlass.submit_plain_within(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, \
    $16, $17, $18, $19, $20, $21, $22, $23, $24)";

/// Stores jobs of any kind, given as JSON: `sql/jobs/store_jobs.sql`. Keys are served by job_key_pkey and
/// key_holder_pkey.
const JOBS: &str = "select id, duplicate from windlass.store_jobs($1)";

/// Stores jobs of any kind, given as JSON, within the quotas; $2: exactly, by holding the tenants' rows:
/// `sql/jobs/store_jobs.sql`.
const JOBS_WITHIN: &str = "select id, duplicate from windlass.store_jobs_within($1, $2, true)";

/// Only tenants that are limited pay for it.
fn plain_sql(wanted: &Wanted) -> &'static str {
    if wanted.is_empty() { PLAIN } else { PLAIN_WITHIN }
}

/// The statement for keyed jobs, with the tenants' rows held if one of them is limited.
fn keyed_sql<'a>(json: &'a Json<'a>, within: bool) -> (&'static str, Vec<Param<'a>>) {
    let json: Param<'a> = (json, Type::JSON);
    match within {
        true => (JOBS_WITHIN, vec![json, (&true, Type::BOOL)]),
        false => (JOBS, vec![json]),
    }
}

/// The refusal that a write of plain jobs answered with, if it did.
fn within_quota(rows: Vec<Row>, wanted: &Wanted) -> Result<()> {
    let over = match wanted.is_empty() {
        true => None,
        false => rows.first().map_or(Ok(None), |row| row.get::<_, Option<Json<'_>>>(0))?,
    };
    over.map_or(Ok(()), |over| Err(quota::exceeded(over.0)))
}

/// Jobs in one part of a lease, as `submit_plain` cuts them.
const LEASE_PART: usize = 128;

/// Jobs of both kinds, in one transaction.
async fn submit_mixed(
    store: &PgStore,
    batch: &PlainBatch<'_>,
    wanted: &Wanted,
    keyed: &[&NewJob],
    within: bool,
) -> Result<Vec<Submitted>> {
    /// Losing a deadlock is repeated this often; see `connect`.
    const RETRIES: u32 = 8;
    let json = to_json(keyed)?;
    let mut conflicts = 0;
    loop {
        let mut conn = store.shared.pools.submit.get().await?;
        conn.in_doubt();
        match submit_both(&conn, batch, wanted, &json, within).await {
            Ok(answers) => {
                conn.settled();
                return answers;
            }
            Err(Failure::Conflict(_)) if conflicts < RETRIES => conflicts += 1,
            // The connection is dropped in doubt, which ends its transaction.
            Err(failure) => return Err(failure.into()),
        }
    }
}

/// Both kinds, or what a quota says against it.
async fn submit_both(
    conn: &Conn,
    batch: &PlainBatch<'_>,
    wanted: &Wanted,
    json: &str,
    within: bool,
) -> std::result::Result<Result<Vec<Submitted>>, Failure> {
    conn.run(Access::Read, &begin(ENGINE_IDLE)).await?;
    let json = Json(json);
    let (sql, params) = keyed_sql(&json, within);
    let rows = conn.query_inside(Access::Read, sql, &params).await?;
    let stored = conn.query_inside(Access::Read, plain_sql(wanted), &batch.params_within(wanted)).await?;
    if let Err(over) = within_quota(stored, wanted) {
        conn.run(Access::Read, "rollback").await?;
        return Ok(Err(over));
    }
    conn.run(Access::Write, "commit").await?;
    Ok(answers(rows))
}

/// The jobs as the SQL surface takes them.
pub(crate) fn to_json(jobs: &[&NewJob]) -> Result<String> {
    serde_json::to_string(jobs).map_err(|error| Error::Internal(format!("cannot write a job: {error}")))
}

pub(crate) fn answers(rows: Vec<Row>) -> Result<Vec<Submitted>> {
    rows.iter().map(|row| Ok(Submitted { id: JobId::from_i64(row.get(0)?), duplicate: row.get(1)? })).collect()
}

/// Puts the answers for keyed jobs back between the plain ones, which always have their own ids.
fn in_order(jobs: &[NewJob], keyed: Vec<Submitted>) -> Vec<Submitted> {
    let mut keyed = keyed.into_iter();
    jobs.iter()
        .map(|job| match job.is_plain() {
            true => Submitted { id: job.id, duplicate: false },
            false => keyed.next().unwrap_or(Submitted { id: job.id, duplicate: false }),
        })
        .collect()
}

/// Whether a job is due whatever the store's clock says.
fn is_now(job: &NewJob) -> bool {
    match job.start {
        Start::Now => true,
        Start::After(delay) => delay.is_zero(),
        Start::At(_) => false,
    }
}

/// The rank of a priority; the lowest priority has no negative counterpart.
pub(crate) fn rank_of(priority: Priority) -> i16 {
    (-i32::from(priority.0)).min(i32::from(i16::MAX)) as i16
}

/// Plain jobs as parallel arrays, those of one chunk side by side, those with a start time last.
struct PlainBatch<'a> {
    node: Option<i64>,
    lease: Option<i64>,
    now: i32,
    ids: Vec<i64>,
    tenants: Vec<Uuid>,
    handlers: Vec<&'a str>,
    queues: Vec<&'a str>,
    priorities: Vec<i16>,
    payloads: Vec<Json<'a>>,
    run_at: Vec<Option<Time>>,
    delays: Vec<Option<i64>>,
    batches: Vec<Option<i64>>,
    correlations: Vec<Option<&'a str>>,
    tags: Vec<Option<JsonText>>,
    specs: Vec<Option<JsonText>>,
    chunks: Chunks<'a>,
}

#[derive(Default)]
struct Chunks<'a> {
    queues: Vec<&'a str>,
    ranks: Vec<i16>,
    tenants: Vec<Uuid>,
    positions: Vec<i64>,
    from: Vec<i32>,
    to: Vec<i32>,
}

impl<'a> PlainBatch<'a> {
    fn new(store: &PgStore, jobs: &[&'a NewJob], lease: Option<(NodeId, LeaseId)>) -> Self {
        let (order, now, chunks) = pack(store, jobs, lease.is_some());
        let jobs: Vec<&NewJob> = order.into_iter().map(|n| jobs[n]).collect();
        PlainBatch {
            node: lease.map(|(node, _)| node.0),
            lease: lease.map(|(_, lease)| lease.0),
            now: now as i32,
            ids: jobs.iter().map(|job| job.id.as_i64()).collect(),
            tenants: jobs.iter().map(|job| job.tenant.0).collect(),
            handlers: jobs.iter().map(|job| job.handler.as_str()).collect(),
            queues: jobs.iter().map(|job| job.queue.as_str()).collect(),
            priorities: jobs.iter().map(|job| job.priority.0).collect(),
            payloads: jobs.iter().map(|job| Json(job.payload.as_str())).collect(),
            run_at: sparse(&jobs, |job| match job.start {
                Start::At(at) => Some(Time(at)),
                _ => None,
            }),
            delays: sparse(&jobs, |job| match job.start {
                Start::After(delay) if !delay.is_zero() => Some(micros(delay)),
                _ => None,
            }),
            batches: sparse(&jobs, |job| job.batch.map(|batch| batch.0.as_i64())),
            correlations: sparse(&jobs, |job| job.correlation_id.as_deref()),
            tags: sparse(&jobs, |job| match job.tags.is_empty() {
                true => None,
                false => serde_json::to_string(&job.tags).ok().map(JsonText),
            }),
            specs: sparse(&jobs, |job| match job.spec.is_default() {
                true => None,
                false => serde_json::to_string(&job.spec).ok().map(JsonText),
            }),
            chunks,
        }
    }

    /// The jobs that this process holds once they are stored.
    fn held(&self) -> impl Iterator<Item = (JobId, Held)> {
        let leased = self.lease.map_or(0, |_| self.now as usize);
        (0..leased).map(|n| {
            let held = Held {
                lease: LeaseId(self.lease.unwrap_or_default()),
                part: (n / LEASE_PART) as i16,
                place: (n % LEASE_PART) as i16,
                tenant: self.tenants[n],
                priority: Priority(self.priorities[n]),
                ordering_key: None,
            };
            (JobId::from_i64(self.ids[n]), held)
        })
    }

    /// The same behind what it wants of quotas, where it wants anything.
    fn params_within<'b>(&'b self, wanted: &'b Wanted) -> Vec<Param<'b>> {
        match wanted.is_empty() {
            true => self.params(),
            false => wanted.params().into_iter().chain(self.params()).collect(),
        }
    }

    fn params(&self) -> Vec<Param<'_>> {
        vec![
            (&self.node, Type::INT8),
            (&self.lease, Type::INT8),
            (&self.now, Type::INT4),
            (&self.ids, Type::INT8_ARRAY),
            (&self.tenants, Type::UUID_ARRAY),
            (&self.handlers, Type::TEXT_ARRAY),
            (&self.queues, Type::TEXT_ARRAY),
            (&self.priorities, Type::INT2_ARRAY),
            (&self.payloads, Type::JSON_ARRAY),
            (&self.run_at, Type::TIMESTAMPTZ_ARRAY),
            (&self.delays, Type::INT8_ARRAY),
            (&self.batches, Type::INT8_ARRAY),
            (&self.correlations, Type::TEXT_ARRAY),
            (&self.tags, Type::JSON_ARRAY),
            (&self.specs, Type::JSON_ARRAY),
            (&self.chunks.queues, Type::TEXT_ARRAY),
            (&self.chunks.ranks, Type::INT2_ARRAY),
            (&self.chunks.tenants, Type::UUID_ARRAY),
            (&self.chunks.positions, Type::INT8_ARRAY),
            (&self.chunks.from, Type::INT4_ARRAY),
            (&self.chunks.to, Type::INT4_ARRAY),
        ]
    }
}

/// Orders jobs by chunk and gives each chunk its position: the order, how many are due now, and the chunks.
fn pack<'a>(store: &PgStore, jobs: &[&'a NewJob], leased: bool) -> (Vec<usize>, usize, Chunks<'a>) {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut by_line: HashMap<(&str, Priority, Uuid), usize> = HashMap::default();
    let mut timed = Vec::new();
    for (n, job) in jobs.iter().enumerate() {
        if !is_now(job) {
            timed.push(n);
            continue;
        }
        let group = *by_line.entry((&job.queue, job.priority, job.tenant.0)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(n);
    }
    let mut order = Vec::with_capacity(jobs.len());
    let mut chunks = Chunks::default();
    let mut lines = store.shared.lines.lock();
    for group in groups {
        let job = jobs[group[0]];
        let line = Line { queue: job.queue.clone(), priority: job.priority };
        for chunk in group.chunks(CHUNK_JOBS) {
            // Born leased, they wait nowhere; a chunk is only a fallback for a node that was declared dead meanwhile.
            let position = match leased {
                true => lines.positions.front(&line),
                false => lines.positions.place(&line, job.tenant, chunk.len()),
            };
            chunks.queues.push(&job.queue);
            chunks.ranks.push(rank_of(job.priority));
            chunks.tenants.push(job.tenant.0);
            chunks.positions.push(position);
            chunks.from.push(order.len() as i32 + 1);
            order.extend_from_slice(chunk);
            chunks.to.push(order.len() as i32);
        }
    }
    let now = order.len();
    order.extend(timed);
    (order, now, chunks)
}

/// A column that is empty where no job has a value: the server fills in nulls.
fn sparse<'a, T>(jobs: &[&'a NewJob], value: impl Fn(&'a NewJob) -> Option<T>) -> Vec<Option<T>> {
    let column: Vec<Option<T>> = jobs.iter().map(|job| value(job)).collect();
    if column.iter().all(Option::is_none) { Vec::new() } else { column }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_priority_has_a_rank_and_higher_ones_come_first() {
        assert_eq!(rank_of(Priority(i16::MIN)), i16::MAX);
        assert_eq!(rank_of(Priority(i16::MAX)), -i16::MAX);
        assert!(rank_of(Priority::CRITICAL) < rank_of(Priority::LOW));
    }
}
