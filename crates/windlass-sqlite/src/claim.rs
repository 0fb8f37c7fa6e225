//! Step 2: hands ready jobs to a node under a new lease. Called by the store's `claim`. Never decides how many jobs a
//! band gets (`BandShares` in the core does) nor whether a job may start (`lifecycle` does).

use rusqlite::{Connection, params};
use windlass_core::fair::Line;
use windlass_core::store::{Claim, Claimed, LeaseId};
use windlass_core::{BatchId, ClaimedJob, Payload, Priority, TenantId, Timestamp};

use crate::node;
use crate::quota::Room;
use crate::rows::{Columns, Done, Leased, as_i64, job_id, pack_ids, pack_leased, unpack_ids};
use crate::writer::State;

/// The ranks (negated priorities) of each band, most urgent first.
const BAND_RANKS: [(i64, i64); 4] = [(i64::MIN, -20), (-19, -10), (-9, 0), (1, i64::MAX)];

/// Takes jobs: each band's quota first, then from the most urgent band on until there is enough.
pub(crate) fn claim(conn: &Connection, state: &mut State, claim: &Claim) -> Done<Claimed> {
    let nothing = Claimed { now: state.now, jobs: Vec::new(), more: [false; 4] };
    if !node::is_alive(conn, claim.node)? {
        return Ok(nothing); // Its next heartbeat tells it.
    }
    let mut taking = Taking {
        limits: claim.queues.iter().map(|(_, limit)| *limit).collect(),
        left: claim.max,
        dry: [false; 4],
        taken: Vec::new(),
        room: Room::look(conn, state)?,
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
        let mut insert = conn.prepare_cached(include_str!("sql/claim_lease.sql"))?;
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
    room: Room,
}

struct Taken {
    queue: String,
    leased: Leased,
    resumed: bool,
    ready_at: Timestamp,
}

/// A chunk as it was found, without the jobs that were withdrawn.
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
            find(conn, state, &self.room, name, queue, band, want.min(self.limits[queue]), &mut chunks)?;
        }
        // Higher priority first; the sort is stable, so queues keep their order of preference and chunks their line's.
        chunks.sort_by_key(|chunk| chunk.rank);
        for chunk in chunks {
            let count = chunk.ids.len().min(want).min(self.limits[chunk.queue]).min(self.room.of(chunk.tenant));
            if count == 0 && !chunk.ids.is_empty() {
                continue;
            }
            let line = Line { queue: claim.queues[chunk.queue].0.clone(), priority: priority(chunk.rank) };
            state.positions.served(&line, chunk.position);
            drop_from_line(conn, state, &chunk, count)?;
            self.limits[chunk.queue] -= count;
            self.room.take(chunk.tenant, count);
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
    room: &Room,
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
    let mut select = conn.prepare_cached(include_str!("sql/claim_ready.sql"))?;
    let mut rows = select.query(params![name, from, to])?;
    let mut found = 0;
    while found < want
        && let Some(row) = rows.next()?
    {
        let (withdrawn, ids): (Vec<i64>, Vec<i64>) = match state.withdrawn.is_empty() {
            true => (Vec::new(), unpack_ids(row.blob(8)?)),
            false => unpack_ids(row.blob(8)?).into_iter().partition(|id| state.withdrawn.contains(id)),
        };
        let tenant = row.tenant(3)?;
        // What may not start is passed over; a chunk of which only withdrawn jobs are left is taken away.
        let may_start = if room.is_endless() { ids.len() } else { ids.len().min(room.of(tenant)) };
        if may_start == 0 && !ids.is_empty() {
            continue;
        }
        found += may_start;
        chunks.push(Chunk {
            n: row.get(0)?,
            queue,
            tenant,
            rank: row.get(1)?,
            position: row.get(2)?,
            failed: row.small(4)?,
            recoveries: row.small(5)?,
            resumed: row.get(6)?,
            ready_at: row.time(7)?,
            ids,
            withdrawn,
        });
    }
    Ok(())
}

/// Takes the first `count` jobs of a chunk out of its line, and those that were withdrawn.
fn drop_from_line(conn: &Connection, state: &mut State, chunk: &Chunk, count: usize) -> Done<()> {
    let rest = &chunk.ids[count..];
    if rest.is_empty() {
        conn.prepare_cached("DELETE FROM windlass_ready WHERE n = ?1")?.execute([chunk.n])?;
    } else {
        let position = chunk.position.saturating_add(as_i64(count));
        let mut split = conn.prepare_cached(include_str!("sql/claim_split.sql"))?;
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
    let mut find =
        conn.prepare_cached("SELECT 1 FROM windlass_ready WHERE queue = ?1 AND rank BETWEEN ?2 AND ?3 LIMIT 1")?;
    for (queue, _) in claim.queues.iter().filter(|(_, limit)| *limit > 0) {
        if find.exists(params![queue, from, to])? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads what attempts need to know of the jobs.
fn load(conn: &Connection, lease: LeaseId, taken: Vec<Taken>) -> Done<Vec<ClaimedJob>> {
    let mut select = conn.prepare_cached(include_str!("sql/claim_job.sql"))?;
    let mut checkpoint = conn.prepare_cached("SELECT data FROM windlass_checkpoint WHERE job = ?1")?;
    let mut jobs = Vec::with_capacity(taken.len());
    for job in taken {
        let id = job.leased.id;
        let checkpoint = match job.resumed {
            true => {
                let mut rows = checkpoint.query([id])?;
                rows.next()?.map(|row| row.text(0)).transpose()?.map(Payload::from_store)
            }
            false => None,
        };
        let mut rows = select.query([id])?;
        let Some(row) = rows.next()? else {
            tracing::error!(job = id, "a ready job has no row and is skipped");
            continue;
        };
        jobs.push(ClaimedJob {
            id: job_id(id),
            lease,
            tenant: row.tenant(0)?,
            handler: row.text(1)?,
            queue: job.queue,
            priority: row.priority(3)?,
            payload: Payload::from_store(row.text(10)?),
            failed: job.leased.failed,
            recoveries: job.leased.recoveries,
            created_at: row.time(4)?,
            ready_at: job.ready_at,
            ordering_key: row.get(5)?,
            batch: row.get::<_, Option<i64>>(6)?.map(|id| BatchId(job_id(id))),
            correlation_id: row.get(7)?,
            tags: row.json_or_default(8)?,
            spec: row.json_or_default(9)?,
            checkpoint,
        });
    }
    Ok(jobs)
}

fn priority(rank: i64) -> Priority {
    Priority(rank.saturating_neg().clamp(i64::from(i16::MIN), i64::from(i16::MAX)) as i16)
}
