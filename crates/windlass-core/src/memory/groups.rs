//! Batches and jobs that wait for others, in memory.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use foldhash::HashMap;

use super::entry::{Attempt, Job, Place};
use super::{MemoryStore, State};
use crate::flows::depend::Parent;
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::{BatchId, Status};
use crate::model::tenant::{Scope, TenantId};
use crate::store::{
    BATCH_KEPT, BATCHES_MAX, BatchAsk, BatchOpened, BatchRecord, Completion, Dependent, Dependents, Edge, Gate, Groups,
    NewBatch, NewPart, PartAdded, Result, Settlement, Submit,
};

/// Batches, and who waits for whom.
#[derive(Debug, Default)]
pub(super) struct Table {
    batches: BTreeMap<BatchId, Batch>,
    keys: HashMap<(TenantId, String), BatchId>,
    children: BTreeMap<JobId, BTreeSet<JobId>>,
}

#[derive(Debug)]
struct Batch {
    record: BatchRecord,
    /// How many jobs each part has.
    parts: BTreeMap<u32, u64>,
}

#[async_trait]
impl Groups for MemoryStore {
    async fn open_batch(&self, batch: NewBatch) -> Result<BatchOpened> {
        Ok(self.step(|state, now| state.groups.open(batch, now)))
    }

    async fn add_part(&self, part: NewPart) -> Result<PartAdded> {
        self.step(|state, now| state.add_part(part, now))
    }

    async fn seal_batch(&self, tenant: TenantId, batch: BatchId) -> Result<Option<BatchRecord>> {
        Ok(self.step(|state, now| {
            let found = state.groups.batches.get_mut(&batch).filter(|found| found.record.tenant == tenant)?;
            found.record.sealed_at.get_or_insert(now);
            Some(found.record.clone())
        }))
    }

    async fn batches(&self, scope: Scope, ask: &BatchAsk) -> Result<Vec<BatchRecord>> {
        Ok(self.step(|state, _| {
            let asked = |record: &&BatchRecord| {
                scope.covers(record.tenant)
                    && ask.ids.as_ref().is_none_or(|ids| ids.contains(&record.id))
                    && ask.before.is_none_or(|before| record.id < before)
            };
            let newest = state.groups.batches.values().rev().map(|batch| &batch.record);
            newest.filter(asked).take(ask.limit).cloned().collect()
        }))
    }

    async fn fold_batches(&self, batches: &[BatchId], limit: usize) -> Result<Vec<BatchRecord>> {
        Ok(self.step(|state, _| {
            let asked = |record: &&BatchRecord| batches.is_empty() || batches.contains(&record.id);
            let all = state.groups.batches.values().map(|batch| &batch.record);
            all.filter(|record| record.is_due()).filter(asked).take(limit).cloned().collect()
        }))
    }

    async fn complete_batch(&self, completion: Completion) -> Result<bool> {
        Ok(self.step(|state, now| state.complete_batch(completion, now)))
    }

    async fn dependents(&self, which: &Dependents, limit: usize) -> Result<Vec<Dependent>> {
        Ok(self.step(|state, _| state.dependents(which, limit)))
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Option<Status>>> {
        Ok(self.step(|state, now| settlements.into_iter().map(|settlement| state.settle(settlement, now)).collect()))
    }

    async fn edges(&self, of: &[JobId], limit: usize) -> Result<Vec<Edge>> {
        Ok(self.step(|state, _| {
            let of: BTreeSet<JobId> = of.iter().copied().collect();
            let edges =
                state.groups.children.iter().flat_map(|(parent, children)| {
                    children.iter().map(|child| Edge { parent: *parent, child: *child })
                });
            edges.filter(|edge| of.contains(&edge.parent) || of.contains(&edge.child)).take(limit).collect()
        }))
    }
}

impl Table {
    fn open(&mut self, batch: NewBatch, now: Timestamp) -> BatchOpened {
        let key = batch.key.clone().map(|key| (batch.tenant, key));
        if let Some(known) = key.as_ref().and_then(|key| self.keys.get(key)).and_then(|id| self.batches.get(id)) {
            return BatchOpened::Open(Box::new(known.record.clone()));
        }
        let unfinished = |known: &&Batch| known.record.tenant == batch.tenant && known.record.completed_at.is_none();
        if self.batches.values().filter(unfinished).count() >= BATCHES_MAX {
            return BatchOpened::TooMany;
        }
        let record = BatchRecord::new(batch, now);
        if let Some(key) = key {
            self.keys.insert(key, record.id);
        }
        self.batches.insert(record.id, Batch { record: record.clone(), parts: BTreeMap::new() });
        BatchOpened::Open(Box::new(record))
    }

    /// Whether any batch is to be completed.
    pub(super) fn is_due(&self) -> bool {
        self.batches.values().any(|batch| batch.record.is_due())
    }

    /// Counts jobs of a batch that have ended, or fewer.
    pub(super) fn count(&mut self, batch: BatchId, status: Status, n: i64) {
        if let Some(batch) = self.batches.get_mut(&batch) {
            batch.record.counts.add(status, n);
        }
    }

    /// Forgets batches whose time is over.
    pub(super) fn clean(&mut self, now: Timestamp) {
        self.batches.retain(|_, batch| batch.record.completed_at.is_none_or(|at| at + BATCH_KEPT > now));
        let batches = &self.batches;
        self.keys.retain(|_, id| batches.contains_key(id));
    }

    /// Notes what a new job waits for.
    pub(super) fn add_edges(&mut self, job: &Job) {
        let after = job.spec().and_then(|spec| spec.after.as_deref());
        for parent in after.into_iter().flat_map(|after| &after.of) {
            self.children.entry(*parent).or_default().insert(job.id);
        }
    }

    /// Forgets what a job waited for that is removed.
    pub(super) fn remove_edges(&mut self, job: &Job) {
        let after = job.spec().and_then(|spec| spec.after.as_deref());
        for parent in after.into_iter().flat_map(|after| &after.of) {
            if let Some(children) = self.children.get_mut(parent) {
                children.remove(&job.id);
                if children.is_empty() {
                    self.children.remove(parent);
                }
            }
        }
    }
}

impl State {
    fn add_part(&mut self, part: NewPart, now: Timestamp) -> Result<PartAdded> {
        let Some(batch) = self.groups.batches.get(&part.batch).filter(|found| found.record.tenant == part.tenant)
        else {
            return Ok(PartAdded::NotFound);
        };
        if let Some(jobs) = batch.parts.get(&part.part) {
            return Ok(PartAdded::Repeated(*jobs));
        }
        if batch.record.sealed_at.is_some() {
            return Ok(PartAdded::Sealed);
        }
        let stored = self.submit(Submit { jobs: part.jobs, lease: None }, now)?;
        let jobs = stored.iter().filter(|job| !job.duplicate).count() as u64;
        if let Some(batch) = self.groups.batches.get_mut(&part.batch) {
            batch.parts.insert(part.part, jobs);
            batch.record.parts += 1;
            batch.record.counts.total += jobs;
        }
        Ok(PartAdded::Added(stored))
    }

    fn complete_batch(&mut self, completion: Completion, now: Timestamp) -> bool {
        let Some(batch) = self.groups.batches.get_mut(&completion.batch) else { return false };
        if !batch.record.is_due() {
            return false;
        }
        batch.record.completed_at = Some(now);
        if let Some(job) = completion.job {
            let stored = self.insert(*job, None, now).id;
            if let Some(batch) = self.groups.batches.get_mut(&completion.batch) {
                batch.record.callback_job = Some(stored);
            }
        }
        true
    }

    fn dependents(&self, which: &Dependents, limit: usize) -> Vec<Dependent> {
        let waiting = &self.index.dependents;
        let jobs: BTreeSet<JobId> = match which {
            Dependents::Of(parents) => {
                let children = parents.iter().filter_map(|parent| self.groups.children.get(parent));
                children.flatten().filter(|child| waiting.contains(child)).copied().collect()
            }
            Dependents::These(jobs) => jobs.iter().filter(|job| waiting.contains(job)).copied().collect(),
            Dependents::After(job) => {
                let after = (std::ops::Bound::Excluded(*job), std::ops::Bound::Unbounded);
                waiting.range(after).take(limit).copied().collect()
            }
        };
        jobs.into_iter().take(limit).filter_map(|id| self.dependent(id)).collect()
    }

    fn dependent(&self, id: JobId) -> Option<Dependent> {
        let job = &self.jobs.get(&id)?.job;
        let spec = job.spec().cloned().unwrap_or_default();
        let of = spec.after.as_deref().map(|after| after.of.as_slice()).unwrap_or_default();
        let parents = of.iter().map(|parent| self.parent(*parent)).collect();
        Some(Dependent { job: id, tenant: job.tenant, handler: job.handler.clone(), spec, parents })
    }

    fn parent(&self, id: JobId) -> Parent {
        if let Some(entry) = self.jobs.get(&id) {
            return Parent::of(entry.status());
        }
        self.groups.batches.get(&BatchId(id)).map_or(Parent::Gone, |batch| batch.record.as_parent())
    }

    fn settle(&mut self, settlement: Settlement, now: Timestamp) -> Option<Status> {
        let id = settlement.job;
        let entry = self.jobs.get(&id)?;
        if !matches!(&entry.place, Place::Gated(gate) if **gate == Gate::Parents) {
            return None;
        }
        match settlement.end {
            Some(end) => {
                let attempt = Attempt { number: entry.attempts(), node: None, started_at: None };
                self.carry_out(id, attempt, end, now);
                self.tell(id, now);
                if let Some(job) = settlement.follow_up {
                    self.insert(*job, None, now);
                }
            }
            None => self.open_parents(id, now),
        }
        self.jobs.get(&id).map(|entry| entry.status())
    }

    /// Lets a job go on that has waited for others: behind its ordering key, until its time, or ready.
    fn open_parents(&mut self, id: JobId, now: Timestamp) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let (tenant, key) = (entry.job.tenant, entry.job.ordering_key().cloned());
        match key {
            Some(key) if !self.take_ordering_key(tenant, &key, id) => {
                self.relocate(id, Place::Gated(Box::new(Gate::OrderingKey(key))));
            }
            _ => self.unblock(id, now),
        }
    }
}
