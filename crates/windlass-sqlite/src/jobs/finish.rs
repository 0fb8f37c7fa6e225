//! Step 4: carries out what the lifecycle decided for ended attempts, each only if its fence is current. Called by the
//! store's `finish` and by `tx` for completions inside the application's transaction; also keeps progress and
//! checkpoints, which need the same fence. Never decides what becomes of a job.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use rusqlite::{Connection, params};
use windlass_core::store::{AuditEntry, Finish, Finished, LeaseId, NodeId, Transition};
use windlass_core::suspect::{self, Loss, note_losses};
use windlass_core::{JobError, Status, Timestamp, notes};

use crate::feed;
use crate::ground::place::{self, Audit, Ending, Event, Group, JobHead, SYSTEM, Turn, Waiting};
use crate::ground::rows::{Columns, Done, Leased, Lenient, internal, pack_leased, unpack_leased};
use crate::ground::writer::State;
use crate::groups;
use crate::jobs::submit;
use crate::tenancy::usage;

/// Carries out the transitions in order.
pub(crate) fn finish(conn: &Connection, state: &mut State, node: NodeId, finishes: &[Finish]) -> Done<Vec<Finished>> {
    let mut leases = HashMap::new();
    let mut moves = Moves::default();
    let mut answers = Vec::with_capacity(finishes.len());
    for finish in finishes {
        let held = match leases.entry(finish.fence.lease) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => new.insert(Held::load(conn, node, finish.fence.lease)?),
        };
        let Some(job) = held.as_mut().and_then(|held| held.give_up(finish.fence.job.as_i64())) else {
            answers.push(Finished::Fenced);
            continue;
        };
        let cancel = held.as_mut().and_then(|held| held.cancels.remove(&job.id));
        let status = carry_out(conn, state, node, finish, job, cancel, &mut moves)?;
        if let Some(cost) = finish.cost {
            usage::add(conn, state.now, job.id, cost, status.is_terminal())?;
        }
        feed::note(conn, state, job.id, status, finish.attempt)?;
        answers.push(Finished::Accepted(status));
    }
    for (lease, held) in leases {
        if let Some(held) = held {
            held.save(conn, lease)?;
        }
    }
    place::make_ready(conn, state, moves.front, Turn::Front)?;
    place::make_ready(conn, state, moves.next, Turn::Next)?;
    Ok(answers)
}

/// Jobs that are made ready when all finishes are through, so that they share chunks.
#[derive(Default)]
struct Moves {
    front: Vec<(Group<'static>, i64)>,
    next: Vec<(Group<'static>, i64)>,
}

/// A lease as it is now: who is in it holds the fence.
pub(crate) struct Held {
    pub(crate) claimed_at: Timestamp,
    pub(crate) jobs: Vec<Leased>,
    pub(crate) cancels: HashMap<i64, Cancel>,
    changed: bool,
}

/// A cancel that was requested while the job ran.
pub(crate) struct Cancel {
    pub(crate) reason: String,
}

impl Held {
    /// The lease, if the node has it.
    pub(crate) fn load(conn: &Connection, node: NodeId, lease: LeaseId) -> Done<Option<Held>> {
        let mut select = conn.prepare_cached(include_str!("../sql/finish_lease.sql"))?;
        let mut rows = select.query(params![lease.0, node.0])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let (claimed_at, jobs) = (row.time(0)?, unpack_leased(row.blob(1)?));
        Ok(Some(Held { claimed_at, jobs, cancels: cancels(conn, lease)?, changed: false }))
    }

    /// Takes a job out of the lease, if it is in.
    fn give_up(&mut self, job: i64) -> Option<Leased> {
        let at = self.jobs.iter().position(|leased| leased.id == job)?;
        self.changed = true;
        Some(self.jobs.swap_remove(at))
    }

    pub(crate) fn holds(&self, job: i64) -> bool {
        self.jobs.iter().any(|leased| leased.id == job)
    }

    fn save(&self, conn: &Connection, lease: LeaseId) -> Done<()> {
        if !self.changed {
            return Ok(());
        }
        match self.jobs.is_empty() {
            true => conn.prepare_cached("DELETE FROM windlass_lease WHERE lease = ?1")?.execute([lease.0])?,
            false => {
                let mut update = conn.prepare_cached("UPDATE windlass_lease SET jobs = ?2 WHERE lease = ?1")?;
                update.execute(params![lease.0, pack_leased(&self.jobs)])?
            }
        };
        Ok(())
    }
}

/// The cancels requested for jobs of a lease.
pub(crate) fn cancels(conn: &Connection, lease: LeaseId) -> Done<HashMap<i64, Cancel>> {
    let mut select = conn.prepare_cached("SELECT job, reason FROM windlass_cancel WHERE lease = ?1")?;
    let mut rows = select.query([lease.0])?;
    let mut cancels = HashMap::new();
    while let Some(row) = rows.next()? {
        // A cancel counts although nobody can read why it was asked for.
        cancels.insert(row.get(0)?, Cancel { reason: Lenient::default().or(String::new(), row.text(1)) });
    }
    Ok(cancels)
}

/// Carries out one transition of a job that has been taken out of its lease. Answers with its new status.
fn carry_out(
    conn: &Connection,
    state: &mut State,
    node: NodeId,
    finish: &Finish,
    job: Leased,
    cancel: Option<Cancel>,
    moves: &mut Moves,
) -> Done<Status> {
    let head = place::head(conn, job.id)?.ok_or_else(|| internal(format!("the leased job {} has no row", job.id)))?;
    let attempt = Attempt { node, finish, job, head: &head, started_at: state.now - finish.ran };
    if let Some(cancel) = cancel {
        return attempt.end_canceled(conn, state, &cancel);
    }
    let status = match &finish.transition {
        Transition::Succeed { output, keep } => {
            let ending = Ending { output: output.as_ref(), ..attempt.ending(Status::Succeeded, Some(*keep)) };
            place::end(conn, state, &ending)?;
            if finish.audit {
                attempt.audit(conn, state.now, AuditEntry::SUCCEEDED, None)?;
            }
            Status::Succeeded
        }
        Transition::Retry { failed, delay, error } => {
            attempt.record(conn, state.now, Status::Retrying, *failed, Some(error), None)?;
            let waiting = Waiting { failed: *failed, ..attempt.waiting() };
            place::schedule(conn, &waiting, state.now + *delay, Status::Retrying)?;
            Status::Retrying
        }
        Transition::DeadLetter { failed, reason, error, keep } => {
            let mut ending = Ending { failed: *failed, ..attempt.ending(Status::DeadLettered, *keep) };
            (ending.reason, ending.error) = (Some(reason.as_str()), Some(error));
            place::end(conn, state, &ending)?;
            let action = AuditEntry::action_of_dead_letter(reason);
            attempt.audit(conn, state.now, action, Some(notes::exhausted(error)))?;
            Status::DeadLettered
        }
        Transition::Cancel { reason, keep } => {
            let ending = Ending { reason: Some(reason.as_str()), ..attempt.ending(Status::Canceled, Some(*keep)) };
            place::end(conn, state, &ending)?;
            Status::Canceled
        }
        Transition::Snooze { delay } => {
            let due = state.now + *delay;
            let note = format!("snoozed until {due}");
            attempt.record(conn, state.now, Status::Scheduled, job.failed, None, Some(&note))?;
            place::schedule(conn, &attempt.waiting(), due, Status::Scheduled)?;
            Status::Scheduled
        }
        Transition::Release => {
            moves.front.push((attempt.waiting().group(), job.id));
            Status::Pending
        }
        Transition::Park { gate } => {
            place::gate(conn, &attempt.waiting(), gate, None)?;
            Status::Blocked
        }
        Transition::Route { queue } => {
            let group = Group { queue: Cow::Owned(queue.clone()), ..attempt.waiting().group() };
            moves.next.push((group, job.id));
            Status::Pending
        }
    };
    if finish.resumed && !status.is_terminal() {
        place::forget_expiry(conn, job.id)?;
    }
    if let Some(follow_up) = &finish.follow_up {
        submit::submit(conn, state, std::slice::from_ref(&**follow_up), None, submit::Quota::Counted)?;
    }
    Ok(status)
}

/// One attempt that has ended.
struct Attempt<'a> {
    node: NodeId,
    finish: &'a Finish,
    job: Leased,
    head: &'a JobHead,
    started_at: Timestamp,
}

impl Attempt<'_> {
    fn waiting(&self) -> Waiting<'_> {
        Waiting {
            id: self.job.id,
            tenant: self.head.tenant,
            queue: &self.head.queue,
            priority: self.head.priority,
            failed: self.job.failed,
            recoveries: self.job.recoveries,
            resumed: self.finish.resumed,
        }
    }

    fn ending(&self, status: Status, keep: Option<Duration>) -> Ending<'_> {
        Ending {
            job: self.job.id,
            tenant: self.head.tenant,
            ordering_key: self.head.ordering_key.as_deref(),
            batch: self.finish.batch.map(|batch| batch.0.as_i64()),
            status,
            keep,
            attempt: self.finish.attempt,
            failed: self.job.failed,
            recoveries: self.job.recoveries,
            node: Some(self.node),
            started_at: Some(self.started_at),
            reason: None,
            note: None,
            error: None,
            output: None,
        }
    }

    /// A cancel came first, so no other end is accepted.
    fn end_canceled(&self, conn: &Connection, state: &mut State, cancel: &Cancel) -> Done<Status> {
        remove_cancel(conn, self.job.id)?;
        let own = || place::retention(conn, self.job.id);
        let (keep, error) = match &self.finish.transition {
            Transition::Succeed { keep, .. } | Transition::Cancel { keep, .. } => (*keep, None),
            Transition::Retry { error, .. } | Transition::DeadLetter { error, .. } => (own()?, Some(error)),
            _ => (own()?, None),
        };
        let mut ending = self.ending(Status::Canceled, Some(keep));
        (ending.reason, ending.error) = (Some(cancel.reason.as_str()), error);
        place::end(conn, state, &ending)?;
        Ok(Status::Canceled)
    }

    fn record(
        &self,
        conn: &Connection,
        at: Timestamp,
        status: Status,
        failed: u16,
        error: Option<&JobError>,
        note: Option<&str>,
    ) -> Done<()> {
        let event = Event {
            job: self.job.id,
            status,
            attempt: self.finish.attempt,
            failed,
            recoveries: self.job.recoveries,
            node: Some(self.node),
            started_at: Some(self.started_at),
            error,
            note,
        };
        place::record(conn, at, &event)
    }

    fn audit(&self, conn: &Connection, at: Timestamp, action: &str, detail: Option<&str>) -> Done<()> {
        let target = place::target(self.job.id);
        let entry = Audit { actor: SYSTEM, tenant: Some(self.head.tenant), action, target: &target, detail };
        place::audit(conn, at, &entry)
    }
}

/// Forgets a cancel that has been carried out.
pub(crate) fn remove_cancel(conn: &Connection, job: i64) -> Done<()> {
    conn.prepare_cached("DELETE FROM windlass_cancel WHERE job = ?1")?.execute([job])?;
    Ok(())
}

/// Takes every job from a node that is gone and ends or frees it. `lost` tells that it was not a clean end, which costs
/// each job a recovery: when it was last heard of, and how long the lease is. Answers with the jobs that are ready again.
pub(crate) fn free_node(
    conn: &Connection,
    state: &mut State,
    node: NodeId,
    lost: Option<(Timestamp, Duration)>,
) -> Done<Vec<i64>> {
    let mut freed = Vec::new();
    let mut ready = Vec::new();
    let leases = leases_of(conn, node)?;
    let mut losses = match lost {
        Some((beat, lease)) => losses_of(conn, &leases, beat, lease)?.into_iter(),
        None => Vec::new().into_iter(),
    };
    for (lease, held) in leases {
        for job in &held.jobs {
            let loss = losses.next();
            let Some(head) = place::head(conn, job.id)? else { continue };
            if let Some(cancel) = held.cancels.get(&job.id) {
                end_without_finish(conn, state, node, &held, *job, &head, cancel)?;
                continue;
            }
            place::forget_expiry(conn, job.id)?;
            let mut waiting = Waiting {
                id: job.id,
                tenant: head.tenant,
                queue: &head.queue,
                priority: head.priority,
                failed: job.failed,
                recoveries: job.recoveries,
                resumed: true,
            };
            if let Some(loss) = loss {
                waiting.recoveries = job.recoveries.saturating_add(1);
                let error = loss.error();
                let event = Event {
                    job: job.id,
                    status: Status::Pending,
                    attempt: job.attempt(),
                    failed: job.failed,
                    recoveries: waiting.recoveries,
                    node: Some(node),
                    started_at: Some(held.claimed_at),
                    error: Some(&error),
                    note: None,
                };
                place::record(conn, state.now, &event)?;
            }
            let attempts = waiting.failed.saturating_add(waiting.recoveries);
            feed::note(conn, state, job.id, Status::Pending, attempts)?;
            ready.push((waiting.group(), job.id));
            freed.push(job.id);
        }
        conn.prepare_cached("DELETE FROM windlass_lease WHERE lease = ?1")?.execute([lease.0])?;
    }
    place::make_ready(conn, state, ready, Turn::Front)?;
    Ok(freed)
}

/// What to note of each job of a lost node, in the order of its leases.
fn losses_of(conn: &Connection, leases: &[(LeaseId, Held)], beat: Timestamp, lease: Duration) -> Done<Vec<Loss>> {
    let sql = "SELECT error FROM windlass_event WHERE job = ?1 AND error IS NOT NULL ORDER BY n DESC LIMIT 1";
    let mut last = conn.prepare_cached(sql)?;
    let mut facts = Vec::new();
    for (_, held) in leases {
        let ran_ms = beat.since(held.claimed_at).as_millis() as u64;
        for job in &held.jobs {
            let mut before = None;
            if job.recoveries > 0 {
                let mut rows = last.query([job.id])?;
                if let Some(row) = rows.next()? {
                    // One that cannot be read says nothing of a loss.
                    before = Lenient::default().or(None, row.error(0)).as_ref().and_then(Loss::of);
                }
            }
            facts.push(suspect::Held { recoveries: job.recoveries, ran_ms, before });
        }
    }
    Ok(note_losses(&facts, lease))
}

/// Ends a canceled job whose node will not finish it.
fn end_without_finish(
    conn: &Connection,
    state: &mut State,
    node: NodeId,
    held: &Held,
    job: Leased,
    head: &JobHead,
    cancel: &Cancel,
) -> Done<()> {
    remove_cancel(conn, job.id)?;
    let ending = Ending {
        job: job.id,
        tenant: head.tenant,
        ordering_key: head.ordering_key.as_deref(),
        batch: groups::counted_batch(conn, job.id)?,
        status: Status::Canceled,
        keep: Some(place::retention(conn, job.id)?),
        attempt: job.attempt(),
        failed: job.failed,
        recoveries: job.recoveries,
        node: Some(node),
        started_at: Some(held.claimed_at),
        reason: Some(&cancel.reason),
        note: None,
        error: None,
        output: None,
    };
    place::end(conn, state, &ending)?;
    feed::note(conn, state, job.id, Status::Canceled, job.attempt())
}

/// The leases of a node, oldest first.
pub(crate) fn leases_of(conn: &Connection, node: NodeId) -> Done<Vec<(LeaseId, Held)>> {
    let mut select =
        conn.prepare_cached("SELECT lease FROM windlass_lease WHERE node = ?1 ORDER BY claimed_at, lease")?;
    let leases = select.query_map([node.0], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut held = Vec::with_capacity(leases.len());
    for lease in leases.into_iter().map(LeaseId) {
        held.extend(Held::load(conn, node, lease)?.map(|found| (lease, found)));
    }
    Ok(held)
}
