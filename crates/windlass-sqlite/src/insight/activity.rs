//! The past, for charts, and what waits, for autoscalers. Called by the store with what nodes have counted, and by
//! those who show it. Nothing depends on it: losing some costs a chart.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::activity::{Addition, BLOCKED_LOOKED_AT, DEPTH_HOLDS, Resolution, Slice, Sums, Waiting};
use windlass_core::health::{DEAD_LETTERS_COUNTED, Vitals};
use windlass_core::store::Counts;
use windlass_core::{Scope, Status, TenantId, Timestamp};

use crate::ground::rows::{Columns, Done, as_i64, pack_ids, readable, tenant_bytes, unpack_ids, unpack_leased};
use crate::reads;
use crate::upkeep;

/// Chunks of a queue that are counted for a backlog: beyond, it is what an autoscaler calls too much in any case.
const CHUNKS_COUNTED: usize = 30_000;
/// Jobs of a queue whose handlers are looked up for a backlog. Enough to tell a handler that has a hundredth of them.
const JOBS_LOOKED_UP: usize = 500;

/// The key of rows that are of all tenants together.
const EVERYONE: &[u8] = b"";

fn key(tenant: Option<&TenantId>) -> &[u8] {
    tenant.map_or(EVERYONE, tenant_bytes)
}

pub(crate) fn add(conn: &Connection, at: Timestamp, additions: &[Addition]) -> Done<()> {
    let sql = "SELECT sums FROM windlass_activity WHERE resolution = ?1 AND tenant = ?2 AND at = ?3 AND handler = ?4";
    let mut find = conn.prepare_cached(sql)?;
    let sql =
        "INSERT OR REPLACE INTO windlass_activity (resolution, tenant, at, handler, sums) VALUES (?1, ?2, ?3, ?4, ?5)";
    let mut keep = conn.prepare_cached(sql)?;
    for Addition { tenant, handler, sums } in additions {
        for resolution in Resolution::ALL {
            let bucket = resolution.bucket(at).as_micros();
            let place = params![resolution.seconds(), key(tenant.as_ref()), bucket, handler];
            let known: Option<Vec<u8>> = find.query_row(place, |row| row.get(0)).optional()?;
            let mut sums = sums.clone();
            if let Some(known) = known {
                sums.merge(&Sums::from_values(&unpack_ids(&known)));
            }
            let sums = pack_ids(&sums.values());
            keep.execute(params![resolution.seconds(), key(tenant.as_ref()), bucket, handler, sums])?;
        }
    }
    Ok(())
}

pub(crate) fn slices(conn: &Connection, scope: Scope, resolution: Resolution, from: Timestamp) -> Done<Vec<Slice>> {
    let sql = "SELECT at, handler, sums FROM windlass_activity WHERE resolution = ?1 AND tenant = ?2 AND at >= ?3";
    let mut select = conn.prepare_cached(sql)?;
    let tenant = scope.tenant();
    let mut rows = select.query(params![resolution.seconds(), key(tenant.as_ref()), from.as_micros()])?;
    let mut slices = Vec::new();
    while let Some(row) = rows.next()? {
        let sums = Sums::from_values(&unpack_ids(row.blob(2)?));
        slices.push(Slice { at: row.time(0)?, handler: row.text(1)?, sums });
    }
    Ok(slices)
}

/// How many jobs are in each status, unless that is known for the present bucket of the finest resolution, or has not
/// changed for a while: a file that nobody uses is not written to.
pub(crate) fn unknown_depth(conn: &Connection, now: Timestamp) -> Done<Option<Counts>> {
    let finest = Resolution::Seconds10;
    let last = depths(conn, finest, now - DEPTH_HOLDS)?.pop();
    if last.as_ref().is_some_and(|(at, _)| *at >= finest.bucket(now)) {
        return Ok(None);
    }
    let counts = reads::counts(conn, now, upkeep::ENGINE)?;
    Ok(Some(counts).filter(|counts| last.is_none_or(|(_, known)| known != *counts)))
}

/// Keeps a count for buckets that have none.
pub(crate) fn keep_depth(conn: &Connection, now: Timestamp, counts: &Counts) -> Done<()> {
    let sql = "INSERT OR IGNORE INTO windlass_depth (resolution, at, counts) VALUES (?1, ?2, ?3)";
    let mut insert = conn.prepare_cached(sql)?;
    let counts = pack_ids(&Status::ALL.map(|status| i64::try_from(counts.get(status)).unwrap_or(i64::MAX)));
    for resolution in Resolution::ALL {
        insert.execute(params![resolution.seconds(), resolution.bucket(now).as_micros(), counts])?;
    }
    Ok(())
}

pub(crate) fn depths(conn: &Connection, resolution: Resolution, from: Timestamp) -> Done<Vec<(Timestamp, Counts)>> {
    let sql = "SELECT at, counts FROM windlass_depth WHERE resolution = ?1 AND at >= ?2 ORDER BY at";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params![resolution.seconds(), from.as_micros()])?;
    let mut depths = Vec::new();
    while let Some(row) = rows.next()? {
        let mut counts = Counts::default();
        for (status, n) in Status::ALL.into_iter().zip(unpack_ids(row.blob(1)?)) {
            counts.add(status, n.max(0) as u64);
        }
        depths.push((row.time(0)?, counts));
    }
    Ok(depths)
}

pub(crate) fn clean(conn: &Connection, now: Timestamp, limit: usize) -> Done<usize> {
    let mut removed = 0;
    for resolution in Resolution::ALL {
        let before = (now - resolution.keep()).as_micros();
        let mut sums = conn.prepare_cached(include_str!("../sql/activity_clean.sql"))?;
        removed += sums.execute(params![resolution.seconds(), before, as_i64(limit - removed)])?;
        // One row for each bucket: few.
        let mut depths = conn.prepare_cached("DELETE FROM windlass_depth WHERE resolution = ?1 AND at < ?2")?;
        depths.execute(params![resolution.seconds(), before])?;
    }
    Ok(removed)
}

/// What is found of one handler in one queue.
#[derive(Default)]
struct Found {
    jobs: f64,
    since: Option<i64>,
    blocked: f64,
    running: u64,
}

/// Adds the jobs behind gates: those that are looked at, spread evenly over all of them, stand for the others.
fn blocked(conn: &Connection, scope: Scope, found: &mut HashMap<(String, String), Found>) -> Done<()> {
    let tenant = scope.tenant();
    let tenant = tenant.as_ref().map(tenant_bytes);
    let sql = "SELECT count(*) FROM windlass_gated WHERE ?1 IS NULL OR tenant = ?1";
    let all: i64 = conn.prepare_cached(sql)?.query_row([tenant], |row| row.get(0))?;
    if all == 0 {
        return Ok(());
    }
    // Every so manieth: the first ones would be those of one key or of the oldest handler.
    let every = (all - 1) / as_i64(BLOCKED_LOOKED_AT) + 1;
    let sql = "SELECT j.queue, j.handler, count(*) \
               FROM (SELECT job, row_number() OVER (ORDER BY job) AS n FROM windlass_gated \
                     WHERE ?1 IS NULL OR tenant = ?1) g \
               JOIN windlass_job j ON j.id = g.job WHERE g.n % ?2 = 0 GROUP BY j.queue, j.handler";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params![tenant, every])?;
    let mut sample = Vec::new();
    while let Some(row) = rows.next()? {
        sample.extend(readable((|| Ok(((row.text(0)?, row.text(1)?), row.get::<_, i64>(2)? as f64)))())?);
    }
    let looked_at: f64 = sample.iter().map(|(_, jobs)| jobs).sum();
    for (of, jobs) in sample {
        found.entry(of).or_default().blocked += jobs * all as f64 / looked_at;
    }
    Ok(())
}

pub(crate) fn backlog(conn: &Connection, scope: Scope) -> Done<Vec<Waiting>> {
    let mut found: HashMap<(String, String), Found> = HashMap::new();
    for queue in reads::queues(conn)? {
        for (handler, (jobs, since)) in waiting_in(conn, scope, &queue)? {
            let seen = found.entry((queue.clone(), handler)).or_default();
            seen.jobs += jobs;
            seen.since = Some(since);
        }
    }
    let mut leases = conn.prepare_cached("SELECT jobs FROM windlass_lease")?;
    let mut of_job = conn.prepare_cached("SELECT queue, handler, tenant FROM windlass_job WHERE id = ?1")?;
    let mut rows = leases.query([])?;
    while let Some(row) = rows.next()? {
        for job in unpack_leased(row.blob(0)?) {
            let mut rows = of_job.query([job.id])?;
            let Some(row) = rows.next()? else { continue };
            let of = readable((|| Ok((row.tenant(2)?, row.text(0)?, row.text(1)?)))())?;
            if let Some((_, queue, handler)) = of.filter(|(tenant, ..)| scope.covers(*tenant)) {
                found.entry((queue, handler)).or_default().running += 1;
            }
        }
    }
    blocked(conn, scope, &mut found)?;
    let waiting = |((queue, handler), found): ((String, String), Found)| Waiting {
        queue,
        handler,
        waiting: found.jobs.round() as u64,
        since: found.since.map(Timestamp::from_micros),
        blocked: found.blocked.round() as u64,
        running: found.running,
    };
    Ok(found.into_iter().map(waiting).collect())
}

/// The ready jobs of a queue by handler, with since when the oldest of them has been ready: all of them where they are
/// few, else what one job of each of some chunks tells.
fn waiting_in(conn: &Connection, scope: Scope, queue: &str) -> Done<HashMap<String, (f64, i64)>> {
    let tenant = scope.tenant();
    let mut chunks = conn.prepare_cached(include_str!("../sql/activity_chunks.sql"))?;
    let wanted = params![queue, tenant.as_ref().map(tenant_bytes), as_i64(CHUNKS_COUNTED)];
    let sizes: Vec<(i64, usize)> = chunks
        .query_map(wanted, |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.max(0) as usize)))?
        .collect::<rusqlite::Result<_>>()?;
    let all: usize = sizes.iter().map(|(_, jobs)| jobs).sum();
    let few = all <= JOBS_LOOKED_UP;
    let every = if few { 1 } else { sizes.len() / JOBS_LOOKED_UP + 1 };

    let mut chunk = conn.prepare_cached("SELECT ready_at, ids FROM windlass_ready WHERE n = ?1")?;
    let sql = "SELECT handler FROM windlass_job \
               WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM windlass_withdrawn WHERE job = ?1)";
    let mut handler_of = conn.prepare_cached(sql)?;
    let mut found: HashMap<String, (f64, i64)> = HashMap::new();
    let mut stood_for = 0.0;
    for (n, jobs) in sizes.iter().step_by(every) {
        let mut rows = chunk.query([n])?;
        let Some(row) = rows.next()? else { continue };
        let (ready_at, ids): (i64, Vec<i64>) = (row.get(0)?, unpack_ids(row.blob(1)?));
        let (looked_at, weight) = match few {
            true => (ids.as_slice(), 1.0),
            // Another place in each chunk, because jobs of one batch may take turns.
            false => (&ids[(*n as usize % ids.len().max(1)).min(ids.len())..], *jobs as f64),
        };
        for id in looked_at.iter().take(if few { usize::MAX } else { 1 }) {
            let mut rows = handler_of.query([id])?;
            let handler = rows.next()?.map(|row| readable(row.text(0))).transpose()?.flatten();
            let Some(handler) = handler else { continue };
            let seen = found.entry(handler).or_insert((0.0, ready_at));
            *seen = (seen.0 + weight, seen.1.min(ready_at));
            stood_for += weight;
        }
    }
    if !few && stood_for > 0.0 {
        found.values_mut().for_each(|(jobs, _)| *jobs *= all as f64 / stood_for);
    }
    Ok(found)
}

pub(crate) fn vitals(conn: &Connection, now: Timestamp) -> Done<Vitals> {
    let mut heads = conn.prepare_cached(include_str!("../sql/activity_heads.sql"))?;
    let ready = heads.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<Option<i64>>>>()?;
    let due: Option<i64> =
        conn.prepare_cached("SELECT min(due) FROM windlass_scheduled")?.query_row([], |row| row.get(0))?;
    let due = due.filter(|due| *due <= now.as_micros());
    let mut vitals = Vitals::default();
    vitals.oldest_due =
        ready.into_iter().flatten().chain(due).min().map(|since| now.since(Timestamp::from_micros(since)));
    let sql = "SELECT count(*) FROM (SELECT 1 FROM windlass_dead_letter d JOIN windlass_outcome o ON o.job = d.job \
               WHERE d.replayed_at IS NULL AND (o.purge_at IS NULL OR o.purge_at > ?2) LIMIT ?1)";
    let wanted = params![as_i64(DEAD_LETTERS_COUNTED), now.as_micros()];
    let dead: i64 = conn.prepare_cached(sql)?.query_row(wanted, |row| row.get(0))?;
    vitals.dead_letters = dead.max(0) as u64;
    let pages: i64 = conn.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    let page: i64 = conn.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    vitals.bytes = u64::try_from(pages.saturating_mul(page)).ok();
    Ok(vitals)
}
