//! Maintenance of the memory store: due jobs, lost nodes, expiry, gates, removal.

use std::time::Duration;

use async_trait::async_trait;

use super::entry::{Attempt, Entry, Outcome, Place};
use super::{Join, MemoryStore, State};
use crate::model::clock::Timestamp;
use crate::model::error::Reason;
use crate::model::id::JobId;
use crate::model::job::Status;
use crate::node::suspect::{Held, Loss, note_losses};
use crate::store::{
    NodeId, Promoted, Recovered, Result, SERVED_KEPT, Silent, Survey, Upkeep, WaitingQueue, survey_by_lists,
};

#[async_trait]
impl Upkeep for MemoryStore {
    async fn survey(&self, _: Duration, queues: &[String]) -> Result<Survey> {
        let survey = survey_by_lists(self, queues).await?;
        let (dependents, batches) = self.step(|state, _| (!state.index.dependents.is_empty(), state.groups.is_due()));
        Ok(Survey { dependents, batches, ..survey })
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        Ok(self.step(|state, now| state.promote(limit, now)))
    }

    async fn recover(&self, lease: Duration, silent: &[Silent]) -> Result<Recovered> {
        Ok(self.step(|state, now| state.recover(lease, silent, now)))
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        Ok(self.step(|state, now| state.expire(limit, now)))
    }

    async fn open_gates(&self, limit: usize) -> Result<usize> {
        Ok(self.step(|state, now| state.open_gates(limit, now)))
    }

    async fn clean(&self, limit: usize) -> Result<usize> {
        Ok(self.step(|state, now| state.clean(limit, now)))
    }

    async fn waiting_queues(&self) -> Result<Vec<WaitingQueue>> {
        Ok(self.step(|state, _| state.index.ready.oldest()))
    }

    async fn last_served(&self, served: &[String], asked: &[String]) -> Result<Vec<Option<Timestamp>>> {
        Ok(self.step(|state, now| state.last_served(served, asked, now)))
    }
}

impl State {
    pub(super) fn last_served(
        &mut self,
        served: &[String],
        asked: &[String],
        now: Timestamp,
    ) -> Vec<Option<Timestamp>> {
        self.served.retain(|_, at| *at + SERVED_KEPT > now);
        self.note_served(served, now);
        let is_live = |name: &String| self.index.nodes.values().any(|node| node.record.info.handlers.contains(name));
        asked.iter().map(|name| if is_live(name) { Some(now) } else { self.served.get(name).copied() }).collect()
    }

    pub(super) fn recover(&mut self, lease: Duration, silent: &[Silent], now: Timestamp) -> Recovered {
        let is_dead = |seen: &&Silent| {
            let node = self.index.nodes.get(&seen.node);
            let same = node.is_some_and(|node| node.record.heartbeat_at == seen.heartbeat_at);
            same && (seen.heartbeat_at + lease < now || seen.heartbeat_at > now)
        };
        let dead: Vec<NodeId> = silent.iter().filter(is_dead).map(|seen| seen.node).collect();
        let mut recovered = Recovered::default();
        for node in dead {
            let held = self.jobs_of(node);
            let losses = note_losses(&self.held_by(node, &held), lease);
            for (id, loss) in held.into_iter().zip(losses) {
                if !self.cancel_if_requested(id, now) {
                    self.take_back(id, &loss, now);
                    recovered.jobs.push(id);
                }
            }
            if let Some(node) = self.index.nodes.remove(&node) {
                self.slots.release(node.record.slot, node.record.heartbeat_at);
                self.note_served(&node.record.info.handlers, node.record.heartbeat_at);
                recovered.nodes.push(node.record.node);
            }
        }
        recovered
    }

    /// What is known of jobs whose node was lost.
    pub(super) fn held_by(&self, node: NodeId, jobs: &[JobId]) -> Vec<Held> {
        let beat = self.index.nodes.get(&node).map_or(Timestamp::MIN, |node| node.record.heartbeat_at);
        let held = |id: &JobId| {
            let entry = self.jobs.get(id)?;
            let since = lost_attempt(entry)?.started_at?;
            let before = entry.story().and_then(|story| story.error.as_ref()).and_then(Loss::of);
            Some(Held { recoveries: entry.recoveries, ran_ms: beat.since(since).as_millis() as u64, before })
        };
        jobs.iter().map(|id| held(id).expect("a node holds jobs that run")).collect()
    }

    /// Makes a job ready whose node was lost.
    pub(super) fn take_back(&mut self, id: JobId, loss: &Loss, now: Timestamp) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        let Some(attempt) = lost_attempt(entry) else { return };
        entry.note_attempt(now, Status::Pending, attempt, Some(loss.error()));
        entry.recoveries = entry.recoveries.saturating_add(1);
        entry.resumed = true;
        self.make_ready(id, Join::Front, now);
        self.tell(id, now);
    }

    /// Ends a leased job whose cancel was requested, when its node is gone.
    pub(super) fn cancel_if_requested(&mut self, id: JobId, now: Timestamp) -> bool {
        let Some(entry) = self.jobs.get(&id) else { return false };
        let (Some(attempt), Place::Leased { cancel: Some(reason), .. }) = (lost_attempt(entry), &entry.place) else {
            return false;
        };
        let outcome = Outcome {
            reason: Some(reason.clone()),
            ..Outcome::new(now, Status::Canceled, attempt, Some(now + entry.keep()))
        };
        self.end(id, outcome, None, now);
        self.tell(id, now);
        true
    }

    pub(super) fn promote(&mut self, limit: usize, now: Timestamp) -> Promoted {
        let due: Vec<JobId> =
            self.index.scheduled.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect();
        due.iter().for_each(|id| self.make_ready(*id, Join::Turn, now));
        let next_in = self.index.scheduled.first().map(|(at, _)| at.since(now));
        Promoted { jobs: due.len(), next_in }
    }

    pub(super) fn expire(&mut self, limit: usize, now: Timestamp) -> usize {
        let expired: Vec<JobId> =
            self.index.expiries.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect();
        expired.iter().for_each(|id| self.cancel_waiting(*id, Reason::Expired.as_str(), None, now));
        expired.len()
    }

    /// Ordering keys are passed on by the step that ends their holder, so only pauses can leave jobs behind.
    pub(super) fn open_gates(&mut self, limit: usize, now: Timestamp) -> usize {
        let over = self.index.parked.iter().filter(|(target, _)| !self.pauses.contains_key(target));
        let parked: Vec<JobId> = over.flat_map(|(_, jobs)| jobs).take(limit).copied().collect();
        parked.iter().for_each(|id| self.make_ready(*id, Join::Turn, now));
        parked.len()
    }

    pub(super) fn clean(&mut self, limit: usize, now: Timestamp) -> usize {
        self.feed.clean(now);
        self.groups.clean(now);
        let over: Vec<JobId> =
            self.index.purges.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect();
        over.iter().for_each(|id| self.remove(*id, now));
        self.costs.clean(limit, now);
        for _ in 0..limit {
            let Some(orphan) = self.unique_orphans.first_entry().filter(|orphan| orphan.key().0 <= now) else { break };
            let ((_, id), key) = orphan.remove_entry();
            if self.unique.get(&key).is_some_and(|holder| holder.id == id) {
                self.unique.remove(&key);
            }
        }
        over.len()
    }
}

/// The attempt that a node which is gone had under way.
pub(super) fn lost_attempt(entry: &Entry) -> Option<Attempt> {
    match entry.place {
        Place::Leased { node, at, .. } => {
            let number = entry.attempts().saturating_add(1);
            Some(Attempt { number, node: Some(node), started_at: Some(at) })
        }
        _ => None,
    }
}
