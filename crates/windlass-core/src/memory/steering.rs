//! What people do to jobs of the memory store, with its audit entries.

use std::time::Duration;

use async_trait::async_trait;

use super::entry::{Attempt, Outcome, Place};
use super::{Join, MemoryStore, State};
use crate::life::notes;
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::{HistoryEntry, NewJob, Replayed, Status};
use crate::model::tenant::{Scope, TenantId};
use crate::operate::edit::{Edit, Move, after_edit, can_edit};
use crate::store::{
    CancelReply, EditReply, Gate, Pause, PauseTarget, ReplayReply, ReplayedAs, Result, Steering, Submit,
};

#[async_trait]
impl Steering for MemoryStore {
    async fn cancel(&self, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply> {
        Ok(self.step(|state, now| state.cancel(scope, id, by, reason, now)))
    }

    async fn replay(&self, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply> {
        Ok(self.step(|state, now| state.replay(scope, id, by, now)))
    }

    async fn replay_as(&self, scope: Scope, id: JobId, by: &str, job: NewJob, keep: Duration) -> Result<ReplayedAs> {
        self.step(|state, now| state.replay_as(scope, id, by, job, keep, now))
    }

    async fn edit(&self, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply> {
        Ok(self.step(|state, now| state.edit(scope, id, by, edit, now)))
    }

    async fn purge(&self, scope: Scope, id: JobId, by: &str) -> Result<bool> {
        Ok(self.step(|state, now| state.purge(scope, id, by, now)))
    }

    async fn pause(&self, target: &PauseTarget, by: &str, reason: &str) -> Result<()> {
        self.step(|state, now| state.pause(target, by, reason, now));
        Ok(())
    }

    async fn resume(&self, target: &PauseTarget, by: &str) -> Result<bool> {
        Ok(self.step(|state, now| state.resume(target, by, now)))
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        Ok(self.step(|state, _| state.pauses.values().cloned().collect()))
    }
}

impl State {
    pub(super) fn cancel(&mut self, scope: Scope, id: JobId, by: &str, reason: &str, now: Timestamp) -> CancelReply {
        let Some(entry) = self.visible(scope, id, now) else { return CancelReply::NotFound };
        match &entry.place {
            Place::Ended(outcome) => CancelReply::AlreadyFinished(outcome.status),
            Place::Leased { cancel: Some(_), .. } => CancelReply::Requested,
            Place::Leased { .. } => {
                self.request_cancel(id, by, reason, now);
                CancelReply::Requested
            }
            _ => {
                self.write_audit(now, by, Some(entry.job.tenant), "JOB_CANCELED", id, Some(reason.to_owned()));
                self.cancel_waiting(id, reason, Some(notes::canceled(by, reason)), now);
                CancelReply::Canceled
            }
        }
    }

    pub(super) fn request_cancel(&mut self, id: JobId, by: &str, reason: &str, now: Timestamp) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        let number = entry.attempts().saturating_add(1);
        let Place::Leased { lease, node, cancel, .. } = &mut entry.place else { return };
        *cancel = Some(reason.into());
        let attempt = Attempt { number, node: Some(*node), started_at: None };
        if let Some(node) = self.index.nodes.get_mut(node) {
            node.cancels.insert((*lease, id));
        }
        let note = notes::cancel_requested(by, reason);
        entry.story_mut().events.push(attempt.entry(now, Status::Running, None, Some(note)));
        let tenant = entry.job.tenant;
        self.write_audit(now, by, Some(tenant), "JOB_CANCELED", id, Some(format!("requested: {reason}")));
    }

    pub(super) fn cancel_waiting(&mut self, id: JobId, reason: &str, note: Option<String>, now: Timestamp) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let attempt = Attempt { number: entry.attempts(), node: None, started_at: None };
        let outcome = Outcome::new(now, Status::Canceled, attempt, Some(now + entry.keep()));
        self.end(id, Outcome { reason: Some(reason.into()), note: note.map(String::into), ..outcome }, None, now);
        self.tell(id, now);
    }

    pub(super) fn replay(&mut self, scope: Scope, id: JobId, by: &str, now: Timestamp) -> ReplayReply {
        let Some(entry) = self.visible(scope, id, now) else { return ReplayReply::NotFound };
        let Some(outcome) = entry.outcome().filter(|outcome| outcome.status == Status::DeadLettered) else {
            return ReplayReply::NotDead(entry.status());
        };
        let died = entry.last_entry(outcome);
        let last = outcome.attempt;
        let (tenant, key) = (entry.job.tenant, entry.job.ordering_key().cloned());
        if let Some(batch) = entry.job.counted_batch() {
            self.groups.count(batch, Status::DeadLettered, -1);
        }
        let blocked_by = key.filter(|key| !self.take_ordering_key(tenant, key, id));
        let Some(entry) = self.jobs.get_mut(&id) else { return ReplayReply::NotFound };
        let status = if blocked_by.is_some() { Status::Blocked } else { Status::Pending };
        let replayed = HistoryEntry { note: Some(format!("replayed by {by}")), ..HistoryEntry::new(now, status, 0) };
        let story = entry.story_mut();
        story.events.extend([died, replayed]);
        story.last = Some(last);
        story.error = None;
        (entry.failed, entry.recoveries, entry.resumed) = (0, 0, true);
        match blocked_by {
            Some(key) => self.relocate(id, Place::Gated(Box::new(Gate::OrderingKey(key)))),
            None => self.make_ready(id, Join::Turn, now),
        }
        self.write_audit(now, by, Some(tenant), "JOB_REPLAYED", id, None);
        self.tell(id, now);
        ReplayReply::Replayed
    }

    pub(super) fn replay_as(
        &mut self,
        scope: Scope,
        id: JobId,
        by: &str,
        job: NewJob,
        keep: Duration,
        now: Timestamp,
    ) -> Result<ReplayedAs> {
        let Some(entry) = self.visible(scope, id, now) else { return Ok(ReplayedAs::NotFound) };
        match entry.outcome() {
            Some(Outcome { replayed: Some(replayed), .. }) => return Ok(ReplayedAs::Before(replayed.as_job)),
            Some(outcome) if outcome.status == Status::DeadLettered => {}
            _ => return Ok(ReplayedAs::NotDead(entry.status())),
        }
        let tenant = entry.job.tenant;
        let as_job = self.submit(Submit { jobs: vec![job], lease: None }, now)?[0].id;
        let Some(entry) = self.jobs.get_mut(&id) else { return Ok(ReplayedAs::NotFound) };
        self.index.remove(entry);
        if let Place::Ended(outcome) = &mut entry.place {
            outcome.replayed = Some(Box::new(Replayed { at: now, by: by.to_owned(), as_job }));
            outcome.purge_at = Some(now + keep);
        }
        self.index.add(entry);
        self.write_audit(now, by, Some(tenant), "JOB_REPLAYED", id, Some(notes::replayed_as(as_job)));
        Ok(ReplayedAs::New(as_job))
    }

    pub(super) fn edit(&mut self, scope: Scope, id: JobId, by: &str, edit: &Edit, now: Timestamp) -> EditReply {
        let Some(entry) = self.visible(scope, id, now) else { return EditReply::NotFound };
        let (before, tenant) = (entry.status(), entry.job.tenant);
        if !can_edit(before) {
            return EditReply::NotWaiting(before);
        }
        let gate = match &entry.place {
            Place::Gated(gate) => Some(gate.as_ref().clone()),
            _ => None,
        };
        let to = edit.start.map(|start| after_edit(before, gate.as_ref(), start, now));
        if let (Some(Move::Refused), Some(gate)) = (to, gate) {
            return EditReply::Blocked(gate);
        }
        self.change(id, edit);
        match to {
            Some(Move::Ready) if before != Status::Pending => {
                self.set_run_at(id, now);
                self.make_ready(id, Join::Turn, now);
            }
            Some(Move::Until(at)) => self.schedule(id, at, before == Status::Retrying),
            Some(Move::Behind(due)) => self.set_run_at(id, due.unwrap_or(now)),
            Some(Move::Ready | Move::Refused) | None => {}
        }
        let Some(entry) = self.jobs.get_mut(&id) else { return EditReply::NotFound };
        let (status, attempt) = (entry.status(), entry.attempts());
        let note = Some(format!("edited by {by}: {edit}"));
        entry.story_mut().events.push(HistoryEntry { note, ..HistoryEntry::new(now, status, attempt) });
        self.write_audit(now, by, Some(tenant), "JOB_EDITED", id, Some(edit.to_string()));
        EditReply::Edited(status)
    }

    /// Gives a waiting job another input or priority; a ready one takes its turn in the other line.
    pub(super) fn change(&mut self, id: JobId, edit: &Edit) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        // Out of every index while that changes by which it is found there.
        self.index.remove(entry);
        if let Some(input) = &edit.input {
            entry.job.payload = input.clone();
        }
        if let Some(priority) = edit.priority.filter(|priority| *priority != entry.job.priority) {
            entry.job.priority = priority;
            if let Place::Ready { queue, position } = &mut entry.place {
                let queue = queue.as_deref().unwrap_or(&entry.job.queue);
                *position = self.index.ready.turn(queue, priority, entry.job.tenant, 1);
            }
        }
        self.index.add(entry);
    }

    pub(super) fn set_run_at(&mut self, id: JobId, at: Timestamp) {
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.run_at = Some(at);
        }
    }

    pub(super) fn purge(&mut self, scope: Scope, id: JobId, by: &str, now: Timestamp) -> bool {
        let Some(entry) = self.visible(scope, id, now).filter(|entry| entry.status().is_terminal()) else {
            return false;
        };
        let tenant = entry.job.tenant;
        self.remove(id, now);
        self.write_audit(now, by, Some(tenant), "JOB_PURGED", id, None);
        true
    }

    /// Removes an ended job for good.
    pub(super) fn remove(&mut self, id: JobId, now: Timestamp) {
        let Some(entry) = self.jobs.remove(&id) else { return };
        self.index.remove(&entry);
        self.free_keys(&entry.job, now);
        self.groups.remove_edges(&entry.job);
    }

    pub(super) fn pause(&mut self, target: &PauseTarget, by: &str, reason: &str, now: Timestamp) {
        if self.pauses.contains_key(target) {
            return;
        }
        let pause = Pause { target: target.clone(), by: by.to_owned(), reason: reason.to_owned(), at: now };
        self.pauses.insert(target.clone(), pause);
        self.write_audit(now, by, tenant_of(target), "PAUSED", target.name(), Some(reason.to_owned()));
    }

    pub(super) fn resume(&mut self, target: &PauseTarget, by: &str, now: Timestamp) -> bool {
        if self.pauses.remove(target).is_none() {
            return false;
        }
        self.write_audit(now, by, tenant_of(target), "RESUMED", target.name(), None);
        let parked: Vec<JobId> = self.index.parked.get(target).into_iter().flatten().copied().collect();
        parked.into_iter().for_each(|id| self.make_ready(id, Join::Turn, now));
        true
    }
}

pub(super) fn tenant_of(target: &PauseTarget) -> Option<TenantId> {
    match target {
        PauseTarget::Tenant(tenant) => Some(*tenant),
        _ => None,
    }
}
