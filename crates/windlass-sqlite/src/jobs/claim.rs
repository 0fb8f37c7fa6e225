//! Step 2: hands ready jobs to a node under a new lease. Called by the store's `claim`. Never decides how many jobs a
//! band gets (`BandShares` in the core does) nor whether a job may start (`lifecycle` does).

use rusqlite::{Connection, Row, params};
use windlass_core::fair::Line;
use windlass_core::store::{Claim, Claimed, LeaseId};
use windlass_core::{BatchId, ClaimedJob, JobSpec, Payload, Priority, TenantId, Timestamp};

use crate::ground::rows::{
    Columns, Done, Leased, Lenient, as_i64, job_id, pack_ids, pack_leased, readable, tenant_bytes, unpack_ids,
};
use crate::ground::writer::State;
use crate::nodes;
use crate::tenancy::quota::Caps;

/// The ranks (negated priorities) of each band, most urgent first.
const BAND_RANKS: [(i64, i64); 4] = [(i64::MIN, -20), (-19, -10), (-9, 0), (1, i64::MAX)];

/// Takes jobs: each band's quota first, then from the most urgent band on until there is enough.
pub(crate) fn claim(conn: &Connection, state: &mut State, claim: &Claim) -> Done<Claimed> {
    let nothing = Claimed { now: state.now, jobs: Vec::new(), more: [false; 4] };
    if !nodes::is_alive(conn, claim.node)? {
        return Ok(nothing); // Its next heartbeat tells it.
    }
    let mut taking = Taking {
        limits: claim.queues.iter().map(|(_, limit)| *limit).collect(),
        left: claim.max,
        dry: [false; 4],
        taken: Vec::new(),
        caps: Caps::look(conn, state)?,
    };
    for band in 0..4 {
        taking.take(conn, state, claim, band, claim.quota[band])?;
    }
    for band in 0..4 {
        taking.take(conn, state, claim, band, usize::MAX)?;
    }
    let mut more = [false; 4];
    for band in (0..4).filter(|band| !taking.dry[*band]) {
        more[band] = has_ready(conn, claim, band)?;
    }
    let leased: Vec<Leased> = taking.taken.iter().map(|job| job.leased).collect();
    let jobs = load(conn, claim.lease, taking.taken)?;
    if !leased.is_empty() {
        let mut insert = conn.prepare_cached(include_str!("../sql/claim_lease.sql"))?;
        insert.execute(params![claim.lease.0, claim.node.0, state.now.as_micros(), pack_leased(&leased)])?;
    }
    Ok(Claimed { now: state.now, jobs, more })
}

/// What is left to take, and what has been taken.
struct Taking {
    limits: Vec<usize>,
    left: usize,
    /// Bands in which nothing more was found.
    dry: [bool; 4],
    taken: Vec<Taken>,
    /// What is left of the tenants' caps.
    caps: Caps,
}

struct Taken {
    queue: String,
    leased: Leased,
    resumed: bool,
    ready_at: Timestamp,
}

/// A chunk as it was found; the jobs of it that were withdrawn are kept apart.
struct Chunk {
    n: i64,
    queue: usize,
    tenant: TenantId,
    rank: i64,
    position: i64,
    failed: u16,
    recoveries: u16,
    resumed: bool,
    ready_at: Timestamp,
    ids: Vec<i64>,
    withdrawn: Vec<i64>,
}

impl Taking {
    fn take(&mut self, conn: &Connection, state: &mut State, claim: &Claim, band: usize, quota: usize) -> Done<()> {
        let mut want = quota.min(self.left);
        if want == 0 || self.dry[band] {
            return Ok(());
        }
        let mut chunks = Vec::new();
        for (queue, (name, _)) in claim.queues.iter().enumerate() {
            let want = want.min(self.limits[queue]);
            find(conn, state, &self.caps, claim.tenant, name, queue, band, want, &mut chunks)?;
        }
        // Higher priority first; the sort is stable, so queues keep their order of preference and chunks their line's.
        chunks.sort_by_key(|chunk| chunk.rank);
        for chunk in chunks {
            let count = chunk.ids.len().min(want).min(self.limits[chunk.queue]).min(self.caps.of(chunk.tenant));
            if count == 0 && !chunk.ids.is_empty() {
                continue;
            }
            let line = Line { queue: claim.queues[chunk.queue].0.clone(), priority: priority(chunk.rank) };
            // Whoever takes one tenant's jobs out of the line has not served those before them.
            if claim.tenant.is_none() {
                state.positions.served(&line, chunk.position);
            }
            drop_from_line(conn, state, &chunk, count)?;
            self.limits[chunk.queue] -= count;
            self.caps.take(chunk.tenant, count);
            self.left -= count;
            want -= count;
            self.taken.extend(chunk.ids[..count].iter().map(|id| Taken {
                queue: claim.queues[chunk.queue].0.clone(),
                leased: Leased { id: *id, failed: chunk.failed, recoveries: chunk.recoveries },
                resumed: chunk.resumed,
                ready_at: chunk.ready_at,
            }));
        }
        self.dry[band] = want > 0 && self.limits.iter().all(|limit| *limit > 0);
        Ok(())
    }
}

/// Collects chunks of a queue and band until they hold `want` jobs.
#[allow(clippy::too_many_arguments)]
fn find(
    conn: &Connection,
    state: &State,
    caps: &Caps,
    only: Option<TenantId>,
    name: &str,
    queue: usize,
    band: usize,
    want: usize,
    chunks: &mut Vec<Chunk>,
) -> Done<()> {
    if want == 0 {
        return Ok(());
    }
    let (from, to) = BAND_RANKS[band];
    let mut select = conn.prepare_cached(include_str!("../sql/claim_ready.sql"))?;
    let mut rows = select.query(params![name, from, to])?;
    let mut found = 0;
    while found < want
        && let Some(row) = rows.next()?
    {
        let Some(mut chunk) = readable(chunk_of(row, queue))? else { continue };
        if only.is_some_and(|only| only != chunk.tenant) {
            continue;
        }
        if !state.withdrawn.is_empty() {
            (chunk.withdrawn, chunk.ids) = chunk.ids.into_iter().partition(|id| state.withdrawn.contains(id));
        }
        let (ids, tenant) = (&chunk.ids, chunk.tenant);
        // What may not start is passed over; a chunk of which only withdrawn jobs are left is taken away.
        let may_start = if caps.is_endless() { ids.len() } else { ids.len().min(caps.of(tenant)) };
        if may_start == 0 && !ids.is_empty() {
            continue;
        }
        found += may_start;
        chunks.push(chunk);
    }
    Ok(())
}

fn chunk_of(row: &Row<'_>, queue: usize) -> Done<Chunk> {
    Ok(Chunk {
        n: row.get(0)?,
        queue,
        rank: row.get(1)?,
        position: row.get(2)?,
        tenant: row.tenant(3)?,
        failed: row.small(4)?,
        recoveries: row.small(5)?,
        resumed: row.get(6)?,
        ready_at: row.time(7)?,
        ids: unpack_ids(row.blob(8)?),
        withdrawn: Vec::new(),
    })
}

/// Takes the first `count` jobs of a chunk out of its line, and those that were withdrawn.
fn drop_from_line(conn: &Connection, state: &mut State, chunk: &Chunk, count: usize) -> Done<()> {
    let rest = &chunk.ids[count..];
    if rest.is_empty() {
        conn.prepare_cached("DELETE FROM windlass_ready WHERE n = ?1")?.execute([chunk.n])?;
    } else {
        let position = chunk.position.saturating_add(as_i64(count));
        let mut split = conn.prepare_cached(include_str!("../sql/claim_split.sql"))?;
        split.execute(params![chunk.n, position, as_i64(rest.len()), pack_ids(rest)])?;
    }
    if !chunk.withdrawn.is_empty() {
        let mut delete = conn.prepare_cached("DELETE FROM windlass_withdrawn WHERE job = ?1")?;
        for id in &chunk.withdrawn {
            delete.execute([id])?;
            state.withdrawn.remove(id);
        }
    }
    Ok(())
}

fn has_ready(conn: &Connection, claim: &Claim, band: usize) -> Done<bool> {
    let (from, to) = BAND_RANKS[band];
    let sql = "SELECT 1 FROM windlass_ready \
               WHERE queue = ?1 AND rank BETWEEN ?2 AND ?3 AND (?4 IS NULL OR tenant = ?4) LIMIT 1";
    let mut find = conn.prepare_cached(sql)?;
    let only = claim.tenant.as_ref().map(tenant_bytes);
    for (queue, _) in claim.queues.iter().filter(|(_, limit)| *limit > 0) {
        if find.exists(params![queue, from, to, only])? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads what attempts need to know of the jobs.
fn load(conn: &Connection, lease: LeaseId, taken: Vec<Taken>) -> Done<Vec<ClaimedJob>> {
    let mut select = conn.prepare_cached(include_str!("../sql/claim_job.sql"))?;
    let mut checkpoint = conn.prepare_cached("SELECT data FROM windlass_checkpoint WHERE job = ?1")?;
    let mut jobs = Vec::with_capacity(taken.len());
    for job in taken {
        let id = job.leased.id;
        // What cannot be read is empty and marked: such a job must not run, and the others of its claim must.
        let lenient = Lenient::default();
        let checkpoint = match job.resumed {
            true => {
                let mut rows = checkpoint.query([id])?;
                let saved = rows.next()?.map(|row| row.text(0).map(Payload::from_store));
                saved.and_then(|saved| lenient.or(None, saved.map(Some)))
            }
            false => None,
        };
        let mut rows = select.query([id])?;
        let Some(row) = rows.next()? else {
            tracing::error!(job = id, "a ready job has no row and is skipped");
            continue;
        };
        let batch: Option<i64> = lenient.or(None, row.get(6).map_err(Into::into));
        let mut claimed = ClaimedJob {
            id: job_id(id),
            lease,
            tenant: lenient.or(TenantId::ROOT, row.tenant(0)),
            handler: lenient.or(String::new(), row.text(1)),
            queue: job.queue,
            priority: lenient.or(Priority::NORMAL, row.priority(3)),
            payload: lenient.or(Payload::null(), row.text(10).map(Payload::from_store)),
            failed: job.leased.failed,
            recoveries: job.leased.recoveries,
            created_at: lenient.or(job.ready_at, row.time(4)),
            ready_at: job.ready_at,
            ordering_key: lenient.or(None, row.get(5).map_err(Into::into)),
            batch: batch.map(|id| BatchId(job_id(id))),
            correlation_id: lenient.or(None, row.get(7).map_err(Into::into)),
            tags: lenient.or(Vec::new(), row.json_or_default(8)),
            spec: lenient.or(JobSpec::default(), row.json_or_default(9)),
            checkpoint,
            resumed: job.resumed,
            unreadable: None,
        };
        claimed.unreadable = lenient.failure().map(|error| error.to_string());
        jobs.push(claimed);
    }
    Ok(jobs)
}

fn priority(rank: i64) -> Priority {
    Priority(rank.saturating_neg().clamp(i64::from(i16::MIN), i64::from(i16::MAX)) as i16)
}
