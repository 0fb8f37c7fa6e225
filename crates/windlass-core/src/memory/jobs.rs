//! The life of a job in memory: submit, claim, finish, and what attempts report. Called through [`Jobs`](crate::store::Jobs) and
//! by the other rooms. Decides nothing: it carries out transitions.

use std::sync::Arc;

use async_trait::async_trait;
use foldhash::HashMap;

use super::entry::{Attempt, Entry, Job, Outcome, Place, due};
use super::tenancy::Caps;
use super::{ENGINE, Join, MemoryStore, State};
use crate::life::logs::append;
use crate::life::notes;
use crate::model::clock::Timestamp;
use crate::model::error::JobError;
use crate::model::id::JobId;
use crate::model::job::{NewJob, Status};
use crate::model::priority::Band;
use crate::store::{
    AuditEntry, Claim, Claimed, Error, Fence, Finish, Finished, Gate, Jobs, LeaseId, NodeId, Note, Noted, Result,
    Submit, Submitted, Transition,
};

#[async_trait]
impl Jobs for MemoryStore {
    async fn submit(&self, submit: Submit) -> Result<Vec<Submitted>> {
        self.step(|state, now| state.submit(submit, now))
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        self.step(|state, now| state.claim(&claim, now))
    }

    async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        self.step(|state, now| state.finish(node, finishes, now))
    }

    async fn note(&self, node: NodeId, notes: Vec<Note>) -> Result<Vec<bool>> {
        Ok(self.step(|state, _| {
            let keep = |Note { fence, what }: Note| {
                let Some(entry) = state.held(node, fence) else { return false };
                let story = entry.story_mut();
                match what {
                    Noted::Progress(progress) => story.progress = Some(progress),
                    Noted::Log { attempt, lines } => append(&mut story.lines, fence.lease, attempt, lines),
                    Noted::Checkpoint(data) => story.checkpoint = Some(data),
                }
                true
            };
            notes.into_iter().map(keep).collect()
        }))
    }

    async fn held(&self, node: NodeId) -> Result<Vec<Fence>> {
        Ok(self.step(|state, _| {
            let fence = |id| Some(Fence { job: id, lease: state.lease_of(id)? });
            state.jobs_of(node).into_iter().filter_map(fence).collect()
        }))
    }
}

impl State {
    pub(super) fn submit(&mut self, submit: Submit, now: Timestamp) -> Result<Vec<Submitted>> {
        let repeats = self.check_ids(&submit.jobs)?;
        let lease = match submit.lease {
            Some((node, lease)) => {
                self.check_lease(node, lease)?;
                // What a node that is gone submits is kept for others.
                self.index.nodes.contains_key(&node).then_some((node, lease))
            }
            None => None,
        };
        self.check_quotas(&submit.jobs, now)?;
        let store = |job: NewJob| match repeats && self.jobs.contains_key(&job.id) {
            true => Submitted { id: job.id, duplicate: true },
            false => self.insert(job, lease, now),
        };
        Ok(submit.jobs.into_iter().map(store).collect())
    }

    /// Stores one job, unless another one has its key.
    pub(super) fn insert(&mut self, job: NewJob, lease: Option<(NodeId, LeaseId)>, now: Timestamp) -> Submitted {
        let run_at = due(job.start, now);
        let job = Job::from(job);
        let id = job.id;
        self.slots.note(id);
        if let Some(id) = self.holder_of_keys(&job, now) {
            return Submitted { id, duplicate: true };
        }
        self.take_keys(&job, now);
        let place = match (lease, run_at) {
            (Some((node, lease)), None) if job.is_plain() => Place::Leased { lease, node, at: now, cancel: None },
            _ => self.first_place(&job, run_at),
        };
        let entry = Box::new(Entry::new(job, place, run_at, now));
        self.index.add(&entry);
        self.jobs.insert(id, entry);
        Submitted { id, duplicate: false }
    }

    pub(super) fn first_place(&mut self, job: &Job, run_at: Option<Timestamp>) -> Place {
        if job.spec().is_some_and(|spec| spec.after.is_some()) {
            self.groups.add_edges(job);
            return Place::Gated(Box::new(Gate::Parents));
        }
        if let Some(key) = job.ordering_key()
            && !self.take_ordering_key(job.tenant, key, job.id)
        {
            return Place::Gated(Box::new(Gate::OrderingKey(key.clone())));
        }
        match run_at {
            Some(at) => Place::Scheduled { at, retrying: false },
            None => {
                let position = self.index.ready.turn(&job.queue, job.priority, job.tenant, 1);
                Place::Ready { queue: None, position }
            }
        }
    }

    pub(super) fn claim(&mut self, claim: &Claim, now: Timestamp) -> Result<Claimed> {
        self.check_lease(claim.node, claim.lease)?;
        if !self.index.nodes.contains_key(&claim.node) {
            return Ok(Claimed { now, jobs: Vec::new(), more: [false; 4] });
        }
        let ids = self.take_ready(claim);
        let mut jobs = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(entry) = self.jobs.get_mut(&id) else { continue };
            jobs.push(entry.claimed(claim.lease));
            self.index.claim(entry, Place::Leased { lease: claim.lease, node: claim.node, at: now, cancel: None });
        }
        let mut more = [false; 4];
        for (queue, _) in &claim.queues {
            let (capped, only) = (self.quotas.has_caps(), claim.tenant);
            let free = |tenant| !capped || self.running_room(tenant) != Some(0);
            let asked = |tenant| only.is_none_or(|only| only == tenant) && free(tenant);
            let any = !capped && only.is_none();
            let may = |id: JobId| any || self.jobs.get(&id).is_some_and(|entry| asked(entry.job.tenant));
            let bands = self.index.ready.bands(queue, may);
            (0..4).for_each(|b| more[b] |= bands[b]);
        }
        Ok(Claimed { now, jobs, more })
    }

    /// Takes the jobs of a claim out of their lines: each band's part, then by urgency; most urgent first.
    pub(super) fn take_ready(&mut self, claim: &Claim) -> Vec<JobId> {
        let mut limits: Vec<usize> = claim.queues.iter().map(|(_, limit)| *limit).collect();
        let mut by_band: [Vec<JobId>; 4] = Default::default();
        let mut left = claim.max;
        let mut caps = self.quotas.has_caps().then(|| Caps {
            quotas: self.quotas.clone(),
            running: self.index.tenants().map(|tenant| (tenant, self.index.running(tenant))).collect(),
        });
        for quota in [claim.quota, [usize::MAX; 4]] {
            for band in Band::ALL {
                let mut part = quota[band.index()].min(left);
                for ((queue, _), limit) in claim.queues.iter().zip(&mut limits) {
                    let (max, into) = (part.min(*limit), &mut by_band[band.index()]);
                    let taken = match (&mut caps, claim.tenant) {
                        (None, None) => self.index.ready.take(queue, band, max, into),
                        (caps, only) => {
                            let jobs = &self.jobs;
                            let mut start = |tenant| {
                                only.is_none_or(|only| only == tenant)
                                    && caps.as_mut().is_none_or(|caps| caps.take(tenant))
                            };
                            // Called for one job after the other, and a job that may start is taken.
                            let may = |id| jobs.get(&id).is_some_and(|entry| start(entry.job.tenant));
                            self.index.ready.take_allowed(queue, band, max, into, only.is_none(), may)
                        }
                    };
                    *limit -= taken;
                    part -= taken;
                    left -= taken;
                }
            }
        }
        by_band.concat()
    }

    pub(super) fn finish(&mut self, node: NodeId, finishes: Vec<Finish>, now: Timestamp) -> Result<Vec<Finished>> {
        let held = finishes.iter().filter(|finish| self.holds(node, finish.fence));
        self.check_ids(held.filter_map(|finish| finish.follow_up.as_deref()))?;
        Ok(finishes.into_iter().map(|finish| self.finish_one(node, finish, now)).collect())
    }

    pub(super) fn finish_one(&mut self, node: NodeId, finish: Finish, now: Timestamp) -> Finished {
        let Finish { fence, attempt, ran, transition, follow_up, cost, audit, batch: _, resumed } = finish;
        let Some(entry) = self.held(node, fence) else { return Finished::Fenced };
        entry.resumed = resumed;
        let attempt = Attempt { number: attempt, node: Some(node), started_at: Some(now - ran) };
        let cancel = match &mut entry.place {
            Place::Leased { cancel, .. } => cancel.clone(),
            _ => None,
        };
        let wanted = status_after(&transition);
        match cancel {
            Some(reason) => self.end_as_canceled(fence.job, attempt, reason, transition, now),
            None => self.carry_out(fence.job, attempt, transition, now),
        }
        let status = self.jobs.get(&fence.job).map_or(wanted, |entry| entry.status());
        if let Some(cost) = cost {
            self.add_cost(fence.job, cost, status.is_terminal(), now);
        }
        if audit && status == Status::Succeeded {
            let tenant = self.jobs.get(&fence.job).map(|entry| entry.job.tenant);
            self.write_audit(now, ENGINE, tenant, AuditEntry::SUCCEEDED, fence.job, None);
        }
        self.feed.note(fence.job, status, attempt.number, now);
        if let Some(job) = follow_up
            && status == wanted
            && !self.jobs.contains_key(&job.id)
        {
            self.insert(*job, None, now);
        }
        Finished::Accepted(status)
    }

    /// Does what `lifecycle` decided about a job that is held.
    pub(super) fn carry_out(&mut self, id: JobId, attempt: Attempt, transition: Transition, now: Timestamp) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        match transition {
            Transition::Succeed { output, keep } => {
                entry.forget(true, true);
                let outcome = Outcome::new(now, Status::Succeeded, attempt, Some(now + keep));
                self.end(id, Outcome { output, ..outcome }, None, now);
            }
            Transition::Retry { failed, delay, error } => {
                entry.failed = failed;
                entry.note_attempt(now, Status::Retrying, attempt, Some(error));
                self.schedule(id, now + delay, true);
            }
            Transition::DeadLetter { failed, reason, error, keep } => {
                entry.failed = failed;
                let tenant = entry.job.tenant;
                let detail = Some(notes::exhausted(&error).to_owned());
                self.write_audit(now, ENGINE, Some(tenant), AuditEntry::action_of_dead_letter(&reason), id, detail);
                let outcome = Outcome::new(now, Status::DeadLettered, attempt, keep.map(|keep| now + keep));
                self.end(id, Outcome { reason: Some(reason.into()), ..outcome }, Some(error), now);
            }
            Transition::Cancel { reason, keep } => {
                let outcome = Outcome::new(now, Status::Canceled, attempt, Some(now + keep));
                self.end(id, Outcome { reason: Some(reason.into()), ..outcome }, None, now);
            }
            Transition::Snooze { delay } => {
                let until = now + delay;
                let note = Some(format!("snoozed until {until}"));
                let story = entry.story_mut();
                story.events.push(attempt.entry(now, Status::Scheduled, None, note));
                story.last = Some(attempt);
                self.schedule(id, until, false);
            }
            Transition::Release => self.make_ready(id, Join::Front, now),
            Transition::Park { gate } => self.park(id, gate, now),
            Transition::Route { queue } => self.make_ready_in(id, Some(queue.into()), Join::Turn, now),
        }
    }

    /// Ends a held job whose cancel was requested, whatever its attempt came to.
    pub(super) fn end_as_canceled(
        &mut self,
        id: JobId,
        attempt: Attempt,
        reason: Box<str>,
        came_to: Transition,
        now: Timestamp,
    ) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let (error, keep) = match came_to {
            Transition::Succeed { keep, .. } | Transition::Cancel { keep, .. } => (None, keep),
            Transition::Retry { error, .. } | Transition::DeadLetter { error, .. } => (Some(error), entry.keep()),
            _ => (None, entry.keep()),
        };
        let outcome = Outcome::new(now, Status::Canceled, attempt, Some(now + keep));
        self.end(id, Outcome { reason: Some(reason), ..outcome }, error, now);
    }

    /// Puts a job behind a gate. A gate that is open, or that the job itself holds, does not stop it.
    pub(super) fn park(&mut self, id: JobId, gate: Gate, now: Timestamp) {
        let Some(entry) = self.jobs.get(&id) else { return };
        if let Gate::OrderingKey(key) = &gate {
            let holder = self.index.ordering.get(&(entry.job.tenant, key.clone())).map(|line| line.holder);
            if holder.is_none_or(|holder| holder == id) {
                return self.make_ready(id, Join::Front, now);
            }
        }
        self.relocate(id, Place::Gated(Box::new(gate)));
    }

    pub(super) fn schedule(&mut self, id: JobId, at: Timestamp, retrying: bool) {
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.run_at = Some(at);
        }
        self.relocate(id, Place::Scheduled { at, retrying });
    }

    /// Makes a job ready in its own queue, or among the suspects once a node was lost with it.
    pub(super) fn make_ready(&mut self, id: JobId, join: Join, now: Timestamp) {
        let Some(queue) = self.jobs.get(&id).map(|entry| entry.waits_in()) else { return };
        self.make_ready_in(id, queue, join, now);
    }

    pub(super) fn make_ready_in(&mut self, id: JobId, queue: Option<Arc<str>>, join: Join, now: Timestamp) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        entry.ready_at = now;
        let name = queue.as_deref().unwrap_or(&entry.job.queue);
        let position = match join {
            Join::Front => self.index.ready.front(name, entry.job.priority),
            Join::Turn => self.index.ready.turn(name, entry.job.priority, entry.job.tenant, 1),
        };
        self.relocate(id, Place::Ready { queue, position });
    }

    /// Ends a job and gives its ordering key to the next.
    pub(super) fn end(&mut self, id: JobId, outcome: Outcome, error: Option<JobError>, now: Timestamp) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        if error.is_some() {
            entry.story_mut().error = error;
        }
        if outcome.status != Status::DeadLettered {
            // Nobody will go on from there; a dead letter may be replayed in place.
            entry.forget(false, true);
        }
        let key = entry.job.ordering_key().cloned().map(|key| (entry.job.tenant, key));
        if let Some(batch) = entry.job.counted_batch() {
            self.groups.count(batch, outcome.status, 1);
        }
        self.relocate(id, Place::Ended(Box::new(outcome)));
        if let Some(key) = key {
            self.pass_on(key, id, now);
        }
    }

    /// Moves a job to another place: the only way in which a stored job changes its status, besides a claim.
    pub(super) fn relocate(&mut self, id: JobId, to: Place) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        self.index.remove(entry);
        entry.place = to;
        self.index.add(entry);
    }

    pub(super) fn holds(&self, node: NodeId, fence: Fence) -> bool {
        self.jobs.get(&fence.job).is_some_and(|entry| is_held(entry, node, fence))
    }

    /// The job, if the fence is current.
    pub(super) fn held(&mut self, node: NodeId, fence: Fence) -> Option<&mut Entry> {
        self.jobs.get_mut(&fence.job).map(Box::as_mut).filter(|entry| is_held(entry, node, fence))
    }

    /// Whether ids may be in use. Refuses those of other jobs, whose place a second one would take; the same job again is
    /// a submit that is repeated.
    pub(super) fn check_ids<'a>(&self, jobs: impl IntoIterator<Item = &'a NewJob> + Clone) -> Result<bool> {
        let mut previous = self.jobs.last_key_value().map(|(id, _)| *id);
        let in_order = jobs.clone().into_iter().all(|job| Some(job.id) > previous.replace(job.id));
        if in_order {
            return Ok(false);
        }
        let mut seen: HashMap<JobId, &NewJob> = HashMap::default();
        for job in jobs {
            let id = job.id;
            let known = self.jobs.get(&id).map(|entry| (entry.job.tenant, entry.job.handler.as_str()));
            let known = known.or_else(|| seen.insert(id, job).map(|first| (first.tenant, first.handler.as_str())));
            if known.is_some_and(|known| known != (job.tenant, job.handler.as_str())) {
                return Err(Error::Internal(format!("another job with the id {id} already exists")));
            }
        }
        Ok(true)
    }

    /// Refuses a lease id that another node has made.
    pub(super) fn check_lease(&self, node: NodeId, lease: LeaseId) -> Result<()> {
        match self.index.leases.get(&lease) {
            Some(row) if row.node != node => {
                Err(Error::Internal(format!("lease {} belongs to node {}", lease.0, row.node.0)))
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn is_held(entry: &Entry, by: NodeId, fence: Fence) -> bool {
    matches!(entry.place, Place::Leased { lease, node, .. } if lease == fence.lease && node == by)
}

/// The status a transition leads to by itself.
pub(super) fn status_after(transition: &Transition) -> Status {
    match transition {
        Transition::Succeed { .. } => Status::Succeeded,
        Transition::Retry { .. } => Status::Retrying,
        Transition::DeadLetter { .. } => Status::DeadLettered,
        Transition::Cancel { .. } => Status::Canceled,
        Transition::Snooze { .. } => Status::Scheduled,
        Transition::Release | Transition::Route { .. } => Status::Pending,
        Transition::Park { .. } => Status::Blocked,
    }
}
