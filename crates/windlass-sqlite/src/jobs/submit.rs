//! Step 1: stores new jobs. Called by the store's `submit`, by transactions of the application, and by `finish` for
//! follow-ups. Never starts a transaction of its own.

use std::borrow::Cow;

use rusqlite::{Connection, params};
use windlass_core::store::{Gate, LeaseId, NodeId, Submitted};
use windlass_core::{NewJob, Start, Status, Timestamp, UniqueWithin};

use crate::ground::place::{self, Group, Turn, Waiting};
use crate::ground::rows::{Done, Leased, internal, job_id, pack_leased, tenant_bytes, to_json};
use crate::ground::writer::State;
use crate::groups;
use crate::nodes;
use crate::tenancy::quota;

/// Kinds of keys in `windlass_job_key`.
const IDEMPOTENCY: i64 = 0;
const UNIQUE: i64 = 1;

/// Whether quotas are kept to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    /// What does not fit is refused.
    Enforced,
    /// What follows from accepted work is counted, not refused.
    Counted,
}

/// Stores the jobs in order; those whose key is taken are answered with the job that has it.
pub(crate) fn submit(
    conn: &Connection,
    state: &mut State,
    jobs: &[NewJob],
    lease: Option<(NodeId, LeaseId)>,
    quota: Quota,
) -> Done<Vec<Submitted>> {
    if state.quotas.is_empty() {
        return store_all(conn, state, jobs, lease);
    }
    let quotas = state.quotas.clone();
    if quota == Quota::Enforced {
        let mut new = Vec::with_capacity(jobs.len());
        for job in jobs {
            // What is stored already needs no room.
            if job.is_plain() || key_holder(conn, state.now, job)?.is_none() {
                new.push(job);
            }
        }
        quota::check(conn, state, &quota::wanted(&quotas, new.into_iter()))?;
    }
    let answers = store_all(conn, state, jobs, lease)?;
    let stored = jobs.iter().zip(&answers).filter(|(_, answer)| !answer.duplicate).map(|(job, _)| job);
    quota::count(conn, state, &quota::wanted(&quotas, stored))?;
    Ok(answers)
}

fn store_all(
    conn: &Connection,
    state: &mut State,
    jobs: &[NewJob],
    lease: Option<(NodeId, LeaseId)>,
) -> Done<Vec<Submitted>> {
    // A node that was declared dead would never finish them, so they wait for another.
    let lease = match lease {
        Some((node, lease)) if nodes::is_alive(conn, node)? => Some((node, lease)),
        _ => None,
    };
    let mut ready = Vec::new();
    let mut leased = Vec::new();
    let mut answers = Vec::with_capacity(jobs.len());
    for job in jobs {
        if let Some(holder) = key_holder(conn, state.now, job)? {
            answers.push(Submitted { id: job_id(holder), duplicate: true });
            continue;
        }
        let due = due(job.start, state.now);
        let stored = match store(conn, state.now, job, due)? {
            Some(place) => place,
            None => {
                check_same(conn, job)?;
                answers.push(Submitted { id: job.id, duplicate: true });
                continue;
            }
        };
        if stored == Status::Pending {
            match lease {
                Some(_) if job.is_plain() => leased.push(Leased { id: job.id.as_i64(), failed: 0, recoveries: 0 }),
                _ => ready.push((fresh(job), job.id.as_i64())),
            }
        }
        answers.push(Submitted { id: job.id, duplicate: false });
    }
    place::make_ready(conn, state, ready, Turn::Next)?;
    if let (Some((node, lease)), false) = (lease, leased.is_empty()) {
        let mut insert = conn.prepare_cached(include_str!("../sql/claim_lease.sql"))?;
        insert.execute(params![lease.0, node.0, state.now.as_micros(), pack_leased(&leased)])?;
    }
    Ok(answers)
}

/// Refuses a job whose id belongs to another one; the same one again is a submit that is repeated.
fn check_same(conn: &Connection, job: &NewJob) -> Done<()> {
    let mut same = conn.prepare_cached("SELECT 1 FROM windlass_job WHERE id = ?1 AND tenant = ?2 AND handler = ?3")?;
    match same.exists(params![job.id.as_i64(), tenant_bytes(&job.tenant), job.handler])? {
        true => Ok(()),
        false => Err(internal(format!("another job with the id {} already exists", job.id))),
    }
}

/// When a job starts, if that lies ahead.
fn due(start: Start, now: Timestamp) -> Option<Timestamp> {
    let at = match start {
        Start::Now => return None,
        Start::After(delay) => now + delay,
        Start::At(at) => at,
    };
    (at > now).then_some(at)
}

/// Stores one job with its side rows. Answers with the place it has (a pending one is still to be made ready), or
/// nothing if its id is there already.
fn store(conn: &Connection, now: Timestamp, job: &NewJob, due: Option<Timestamp>) -> Done<Option<Status>> {
    let id = job.id.as_i64();
    let after = job.spec.after.as_deref();
    let behind = match &job.ordering_key {
        Some(key) if after.is_none() => has_other_holder(conn, job, key)?,
        _ => false,
    };
    let born = match (behind || after.is_some(), due) {
        (true, _) => Status::Blocked,
        (false, Some(_)) => Status::Scheduled,
        (false, None) => Status::Pending,
    };
    let inserted = conn.prepare_cached(include_str!("../sql/submit_job.sql"))?.execute(params![
        id,
        tenant_bytes(&job.tenant),
        job.handler,
        job.queue,
        job.priority.0,
        now.as_micros(),
        born.code(),
        due.map(Timestamp::as_micros),
        job.ordering_key,
        job.batch.map(|batch| batch.0.as_i64()),
        job.correlation_id,
        if job.tags.is_empty() { None } else { Some(to_json(&job.tags)?) },
        if job.spec.is_default() { None } else { Some(to_json(&job.spec)?) },
        job.payload.as_str()
    ])?;
    if inserted == 0 {
        return Ok(None);
    }
    if !job.tags.is_empty() {
        add_tags(conn, job)?;
    }
    if !job.is_plain() {
        take_keys(conn, now, job)?;
    }
    let waiting = Waiting {
        id,
        tenant: job.tenant,
        queue: &job.queue,
        priority: job.priority,
        failed: 0,
        recoveries: 0,
        resumed: false,
    };
    if let Some(after) = after {
        groups::add_edges(conn, id, &after.of)?;
        place::gate(conn, &waiting, &Gate::Parents, due)?;
        return Ok(Some(born));
    }
    match (&job.ordering_key, due) {
        (Some(key), due) if behind => place::gate(conn, &waiting, &Gate::OrderingKey(key.clone()), due)?,
        (_, Some(due)) => place::schedule(conn, &waiting, due, Status::Scheduled)?,
        (_, None) => {}
    }
    Ok(Some(born))
}

fn add_tags(conn: &Connection, job: &NewJob) -> Done<()> {
    let sql = "INSERT INTO windlass_job_tag (tag, job) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    let mut insert = conn.prepare_cached(sql)?;
    for tag in &job.tags {
        insert.execute(params![tag, job.id.as_i64()])?;
    }
    Ok(())
}

/// Whether another job has the ordering key. Nobody takes it here: the job may turn out to be stored already.
fn has_other_holder(conn: &Connection, job: &NewJob, key: &str) -> Done<bool> {
    let mut find =
        conn.prepare_cached("SELECT 1 FROM windlass_key_holder WHERE tenant = ?1 AND key = ?2 AND job <> ?3")?;
    Ok(find.exists(params![tenant_bytes(&job.tenant), key, job.id.as_i64()])?)
}

/// Takes the keys that have been found free, and notes the expiry.
fn take_keys(conn: &Connection, now: Timestamp, job: &NewJob) -> Done<()> {
    let id = job.id.as_i64();
    let tenant = tenant_bytes(&job.tenant);
    let mut take = conn.prepare_cached(include_str!("../sql/submit_key_take.sql"))?;
    if let Some(key) = &job.idempotency_key {
        take.execute(params![IDEMPOTENCY, tenant, job.handler, key, id, None::<i64>])?;
    }
    if let Some((key, within)) = job.unique.as_ref().and_then(|u| u.key.as_ref().map(|key| (key, u.within))) {
        let until = match within {
            UniqueWithin::Unfinished => None,
            UniqueWithin::Window(window) => Some((now + window).as_micros()),
        };
        take.execute(params![UNIQUE, tenant, "", key, id, until])?;
    }
    // One that waits for others takes its turn when they have ended.
    if let Some(key) = job.ordering_key.as_ref().filter(|_| job.spec.after.is_none()) {
        place::take_key(conn, job.tenant, key, id)?;
    }
    if let Some(at) = job.spec.expires_at {
        place::watch_expiry(conn, id, at)?;
    }
    Ok(())
}

/// The job that has one of the new job's keys, if one still holds.
fn key_holder(conn: &Connection, now: Timestamp, job: &NewJob) -> Done<Option<i64>> {
    if let Some(key) = &job.idempotency_key
        && let Some(found) = find_key(conn, IDEMPOTENCY, job, &job.handler, key)?
        // Free again once the job is purged, or hidden because its time is over.
        && found.exists
        && found.purge_at.is_none_or(|at| at > now)
    {
        return Ok(Some(found.job));
    }
    if let Some(key) = job.unique.as_ref().and_then(|unique| unique.key.as_ref())
        && let Some(found) = find_key(conn, UNIQUE, job, "", key)?
    {
        let holds = match found.until {
            Some(until) => until > now,
            None => found.exists && !found.ended,
        };
        if holds {
            return Ok(Some(found.job));
        }
    }
    Ok(None)
}

struct FoundKey {
    job: i64,
    until: Option<Timestamp>,
    exists: bool,
    ended: bool,
    purge_at: Option<Timestamp>,
}

fn find_key(conn: &Connection, kind: i64, job: &NewJob, handler: &str, key: &str) -> Done<Option<FoundKey>> {
    let mut find = conn.prepare_cached(include_str!("../sql/submit_key_find.sql"))?;
    let mut rows = find.query(params![kind, tenant_bytes(&job.tenant), handler, key])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let found = FoundKey {
        job: row.get(0)?,
        until: row.get::<_, Option<i64>>(1)?.map(Timestamp::from_micros),
        exists: row.get(2)?,
        ended: row.get::<_, Option<i64>>(3)?.is_some(),
        purge_at: row.get::<_, Option<i64>>(4)?.map(Timestamp::from_micros),
    };
    Ok(Some(found))
}

/// The chunk a job that never ran joins.
fn fresh(job: &NewJob) -> Group<'_> {
    Group {
        queue: Cow::Borrowed(&job.queue),
        priority: job.priority,
        tenant: job.tenant,
        failed: 0,
        recoveries: 0,
        resumed: false,
    }
}
