//! Puts jobs where they wait or end: into a ready line, behind a time, behind a gate, or into the outcomes; and writes
//! what their history and the audit log say about it. Called by every step that moves a job, inside its transaction.
//! Never decides where a job goes.

use std::borrow::Cow;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::fair::Line;
use windlass_core::store::{CHUNK_JOBS, Gate, NodeId};
use windlass_core::{
    DEFAULT_QUEUE, DEFAULT_RETENTION, JobError, JobId, JobSpec, Payload, Priority, Status, TenantId, Timestamp,
};

use crate::ground::rows::{Columns, Done, Lenient, as_i64, home_queue, pack_ids, tenant_bytes, to_json};
use crate::ground::writer::State;
use crate::groups;

/// Who does what nobody asked for.
pub(crate) const SYSTEM: &str = "windlass";

/// What jobs of one chunk have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group<'a> {
    /// Where they wait, which is not always their own queue.
    pub(crate) queue: Cow<'a, str>,
    pub(crate) priority: Priority,
    pub(crate) tenant: TenantId,
    pub(crate) failed: u16,
    pub(crate) recoveries: u16,
    /// They ran before and may have a checkpoint.
    pub(crate) resumed: bool,
}

/// Where in its line a chunk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// In its tenant's turn.
    Next,
    /// Before everyone, because its jobs have had their turn.
    Front,
}

/// Makes jobs ready, packed into chunks, each group in the order given.
pub(crate) fn make_ready(conn: &Connection, state: &mut State, jobs: Vec<(Group<'_>, i64)>, turn: Turn) -> Done<()> {
    let mut groups: Vec<(Group<'_>, Vec<i64>)> = Vec::new();
    for (group, id) in jobs {
        // Jobs of one batch mostly belong together, so the last group is nearly always the one.
        match groups.iter_mut().rev().find(|(known, _)| *known == group) {
            Some((_, ids)) => ids.push(id),
            None => groups.push((group, vec![id])),
        }
    }
    let mut insert = conn.prepare_cached(include_str!("../sql/submit_ready.sql"))?;
    for (group, ids) in groups {
        // Suspects stand alone, so that a job that kills its process takes no other along.
        let size = if group.recoveries > 0 { 1 } else { CHUNK_JOBS };
        let line = Line { queue: group.queue.into_owned(), priority: group.priority };
        for chunk in ids.chunks(size) {
            let position = match turn {
                Turn::Next => state.positions.place(&line, group.tenant, chunk.len()),
                // One before where service is: the rest of a split chunk may stand exactly there.
                Turn::Front => state.positions.front(&line).saturating_sub(1),
            };
            insert.execute(params![
                line.queue,
                -i64::from(group.priority.0),
                position,
                tenant_bytes(&group.tenant),
                as_i64(chunk.len()),
                group.failed,
                group.recoveries,
                group.resumed,
                state.now.as_micros(),
                pack_ids(chunk)
            ])?;
        }
    }
    Ok(())
}

/// A job that has to wait for a time or a gate.
pub(crate) struct Waiting<'a> {
    pub(crate) id: i64,
    pub(crate) tenant: TenantId,
    /// Its own queue.
    pub(crate) queue: &'a str,
    pub(crate) priority: Priority,
    pub(crate) failed: u16,
    pub(crate) recoveries: u16,
    pub(crate) resumed: bool,
}

impl Waiting<'_> {
    /// The chunk it joins when it is ready.
    pub(crate) fn group(&self) -> Group<'static> {
        Group {
            queue: Cow::Owned(home_queue(self.queue, self.recoveries)),
            priority: self.priority,
            tenant: self.tenant,
            failed: self.failed,
            recoveries: self.recoveries,
            resumed: self.resumed,
        }
    }
}

/// Lets a job wait until `due`, as scheduled or retrying.
pub(crate) fn schedule(conn: &Connection, job: &Waiting<'_>, due: Timestamp, kind: Status) -> Done<()> {
    conn.prepare_cached(include_str!("../sql/submit_scheduled.sql"))?.execute(params![
        job.id,
        due.as_micros(),
        kind.code(),
        tenant_bytes(&job.tenant),
        job.queue,
        job.priority.0,
        job.failed,
        job.recoveries,
        job.resumed
    ])?;
    Ok(())
}

/// Lets a job wait behind a gate, and until `due` after that.
pub(crate) fn gate(conn: &Connection, job: &Waiting<'_>, gate: &Gate, due: Option<Timestamp>) -> Done<()> {
    conn.prepare_cached(include_str!("../sql/submit_gated.sql"))?.execute(params![
        job.id,
        gate.name(),
        tenant_bytes(&job.tenant),
        job.queue,
        job.priority.0,
        due.map(Timestamp::as_micros),
        job.failed,
        job.recoveries,
        job.resumed
    ])?;
    Ok(())
}

/// Notes when a job expires if it has not started by then.
pub(crate) fn watch_expiry(conn: &Connection, job: i64, at: Timestamp) -> Done<()> {
    let mut insert = conn.prepare_cached("INSERT OR REPLACE INTO windlass_expiry (job, at) VALUES (?1, ?2)")?;
    insert.execute(params![job, at.as_micros()])?;
    Ok(())
}

/// A job that has started expires no more.
pub(crate) fn forget_expiry(conn: &Connection, job: i64) -> Done<()> {
    conn.prepare_cached("DELETE FROM windlass_expiry WHERE job = ?1")?.execute([job])?;
    Ok(())
}

/// Gives an ordering key to a job if nobody has it; false if somebody else does.
pub(crate) fn take_key(conn: &Connection, tenant: TenantId, key: &str, job: i64) -> Done<bool> {
    let sql = "INSERT INTO windlass_key_holder (tenant, key, job) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    Ok(conn.prepare_cached(sql)?.execute(params![tenant_bytes(&tenant), key, job])? == 1)
}

/// Takes an ordering key from a job that has ended and gives it to the next one, if there is one.
pub(crate) fn pass_key(conn: &Connection, state: &mut State, tenant: TenantId, key: &str, job: i64) -> Done<()> {
    let sql = "DELETE FROM windlass_key_holder WHERE tenant = ?1 AND key = ?2 AND job = ?3";
    if conn.prepare_cached(sql)?.execute(params![tenant_bytes(&tenant), key, job])? == 0 {
        return Ok(()); // It was behind the key, not in front.
    }
    give_key(conn, state, tenant, key).map(drop)
}

/// Gives a free ordering key to the first job behind it. False if there is none.
pub(crate) fn give_key(conn: &Connection, state: &mut State, tenant: TenantId, key: &str) -> Done<bool> {
    let name = Gate::OrderingKey(key.to_owned()).name();
    let mut next = conn.prepare_cached(include_str!("../sql/gate_next.sql"))?;
    let mut rows = next.query(params![name, tenant_bytes(&tenant)])?;
    let Some(row) = rows.next()? else { return Ok(false) };
    // One whose row cannot be read must not keep the key, nor the end of the job that had it.
    let queue = Lenient::default().or(DEFAULT_QUEUE.to_owned(), row.text(1));
    let waiting = Waiting {
        id: row.get(0)?,
        tenant,
        queue: &queue,
        priority: row.priority(2)?,
        failed: row.small(4)?,
        recoveries: row.small(5)?,
        resumed: row.get(6)?,
    };
    let due = row.time_opt(3)?.filter(|due| *due > state.now);
    drop(rows);
    take_key(conn, tenant, key, waiting.id)?;
    remove_waiting(conn, Wait::Gated, waiting.id)?;
    match due {
        Some(due) => schedule(conn, &waiting, due, Status::Scheduled)?,
        None => make_ready(conn, state, vec![(waiting.group(), waiting.id)], Turn::Next)?,
    }
    Ok(true)
}

/// A table of waiting jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Scheduled,
    Gated,
}

/// Takes a job out of the table it waits in; false if it was not there.
pub(crate) fn remove_waiting(conn: &Connection, wait: Wait, job: i64) -> Done<bool> {
    let sql = match wait {
        Wait::Scheduled => "DELETE FROM windlass_scheduled WHERE job = ?1",
        Wait::Gated => "DELETE FROM windlass_gated WHERE job = ?1",
    };
    Ok(conn.prepare_cached(sql)?.execute([job])? == 1)
}

/// How a job ended.
pub(crate) struct Ending<'a> {
    pub(crate) job: i64,
    pub(crate) tenant: TenantId,
    pub(crate) ordering_key: Option<&'a str>,
    /// The batch that counts it.
    pub(crate) batch: Option<i64>,
    pub(crate) status: Status,
    /// How long it is kept; `None` means until someone replays or purges it.
    pub(crate) keep: Option<Duration>,
    pub(crate) attempt: u16,
    pub(crate) failed: u16,
    pub(crate) recoveries: u16,
    pub(crate) node: Option<NodeId>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) reason: Option<&'a str>,
    pub(crate) note: Option<&'a str>,
    pub(crate) error: Option<&'a JobError>,
    pub(crate) output: Option<&'a Payload>,
}

/// Ends a job that has been taken from where it was: keeps the outcome, counts it, and passes its ordering key on.
pub(crate) fn end(conn: &Connection, state: &mut State, ending: &Ending<'_>) -> Done<()> {
    conn.prepare_cached(include_str!("../sql/finish_outcome.sql"))?.execute(params![
        ending.job,
        ending.status.code(),
        state.now.as_micros(),
        ending.keep.map(|keep| (state.now + keep).as_micros()),
        ending.attempt,
        ending.failed,
        ending.recoveries,
        ending.node.map(|node| node.0),
        ending.started_at.map(Timestamp::as_micros),
        ending.reason,
        ending.note,
        ending.error.map(to_json).transpose()?,
        ending.output.map(Payload::as_str)
    ])?;
    count(conn, ending.tenant, ending.status, 1)?;
    if let Some(batch) = ending.batch {
        groups::count(conn, batch, ending.status, 1)?;
    }
    if ending.status == Status::DeadLettered {
        conn.prepare_cached("INSERT INTO windlass_dead_letter (job) VALUES (?1)")?.execute([ending.job])?;
    }
    match ending.ordering_key {
        Some(key) => pass_key(conn, state, ending.tenant, key, ending.job),
        None => Ok(()),
    }
}

/// Counts ended jobs of a tenant.
pub(crate) fn count(conn: &Connection, tenant: TenantId, status: Status, jobs: i64) -> Done<()> {
    let mut add = conn.prepare_cached(include_str!("../sql/finish_counter.sql"))?;
    add.execute(params![tenant_bytes(&tenant), status.code(), jobs])?;
    Ok(())
}

/// What happened to a job that goes on.
pub(crate) struct Event<'a> {
    pub(crate) job: i64,
    pub(crate) status: Status,
    pub(crate) attempt: u16,
    /// The counts from now on.
    pub(crate) failed: u16,
    pub(crate) recoveries: u16,
    pub(crate) node: Option<NodeId>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) error: Option<&'a JobError>,
    pub(crate) note: Option<&'a str>,
}

/// Adds a line to a job's history.
pub(crate) fn record(conn: &Connection, at: Timestamp, event: &Event<'_>) -> Done<()> {
    conn.prepare_cached(include_str!("../sql/finish_event.sql"))?.execute(params![
        event.job,
        at.as_micros(),
        event.status.code(),
        event.attempt,
        event.failed,
        event.recoveries,
        event.node.map(|node| node.0),
        event.started_at.map(Timestamp::as_micros),
        event.error.map(to_json).transpose()?,
        event.note
    ])?;
    Ok(())
}

/// A line of the audit log, without its time.
pub(crate) struct Audit<'a> {
    pub(crate) actor: &'a str,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) action: &'a str,
    pub(crate) target: &'a str,
    pub(crate) detail: Option<&'a str>,
}

/// Adds a line to the audit log.
pub(crate) fn audit(conn: &Connection, at: Timestamp, entry: &Audit<'_>) -> Done<()> {
    conn.prepare_cached(include_str!("../sql/steer_audit.sql"))?.execute(params![
        at.as_micros(),
        entry.actor,
        entry.tenant.as_ref().map(tenant_bytes),
        entry.action,
        entry.target,
        entry.detail
    ])?;
    Ok(())
}

/// What every step that moves a job needs to know of it.
pub(crate) struct JobHead {
    pub(crate) tenant: TenantId,
    pub(crate) queue: String,
    pub(crate) priority: Priority,
    pub(crate) ordering_key: Option<String>,
}

/// Reads the head of a job.
pub(crate) fn head(conn: &Connection, job: i64) -> Done<Option<JobHead>> {
    let mut select =
        conn.prepare_cached("SELECT tenant, queue, priority, ordering_key FROM windlass_job WHERE id = ?1")?;
    let mut rows = select.query([job])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    // Also of a job that someone else has spoilt: it must be possible to end it.
    let lenient = Lenient::default();
    Ok(Some(JobHead {
        tenant: lenient.or(TenantId::ROOT, row.tenant(0)),
        queue: lenient.or(DEFAULT_QUEUE.to_owned(), row.text(1)),
        priority: lenient.or(Priority::NORMAL, row.priority(2)),
        ordering_key: lenient.or(None, row.get(3).map_err(Into::into)),
    }))
}

/// How long a job asks to be kept after its end.
pub(crate) fn retention(conn: &Connection, job: i64) -> Done<Duration> {
    let spec = conn
        .prepare_cached("SELECT spec FROM windlass_job WHERE id = ?1")?
        .query_row([job], |row| row.get::<_, Option<String>>(0))
        .optional()?
        .flatten();
    let kept = spec.and_then(|text| serde_json::from_str::<JobSpec>(&text).ok()).and_then(|spec| spec.retention);
    Ok(kept.unwrap_or(DEFAULT_RETENTION))
}

/// The text of a job id, as audit entries name it.
pub(crate) fn target(job: i64) -> String {
    JobId::from_i64(job).to_string()
}
