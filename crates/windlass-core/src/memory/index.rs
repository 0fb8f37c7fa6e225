//! What the memory store finds jobs by: ready lines, due times, gates, leases, expiry, purge times and counts. All of it
//! follows from the places of jobs and changes only when `memory` moves one. Never decides where a job goes.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::Status;
use crate::model::tenant::{Scope, TenantId};
use crate::quota::Amount;
use crate::store::{Counts, Gate, LeaseId, NodeId, NodeRecord, PauseTarget};

use super::entry::{Entry, KeyOf, Place};
use super::ready::Ready;

/// Every way to find a job but by its id.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) ready: Ready,
    pub(super) scheduled: BTreeSet<(Timestamp, JobId)>,
    pub(super) parked: BTreeMap<PauseTarget, BTreeSet<JobId>>,
    /// Those that wait for others.
    pub(super) dependents: BTreeSet<JobId>,
    pub(super) ordering: HashMap<KeyOf, OrderingKey>,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) leases: HashMap<LeaseId, Lease>,
    pub(super) expiries: BTreeSet<(Timestamp, JobId)>,
    pub(super) purges: BTreeSet<(Timestamp, JobId)>,
    counts: HashMap<TenantId, Counted>,
}

/// What is counted for a tenant.
#[derive(Debug, Default)]
struct Counted {
    by_status: [u64; Status::ALL.len()],
    /// Payload bytes of unfinished jobs.
    bytes: u64,
}

/// An ordering key of a tenant that some job holds.
#[derive(Debug)]
pub(super) struct OrderingKey {
    pub(super) holder: JobId,
    /// By arrival at the store: ids of different machines do not tell who came first within a millisecond.
    pub(super) waiting: BTreeSet<(Timestamp, JobId)>,
}

/// A registered process with what it holds.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) record: NodeRecord,
    pub(super) leases: BTreeSet<LeaseId>,
    /// Its jobs whose cancel has been requested.
    pub(super) cancels: BTreeSet<(LeaseId, JobId)>,
}

/// One claimed batch.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) node: NodeId,
    /// Every job it ever held: those that have left are found by their place, so that leaving costs no search.
    pub(super) jobs: Vec<JobId>,
    pub(super) held: usize,
}

impl Index {
    /// Adds a job that came to its place.
    pub(super) fn add(&mut self, entry: &Entry) {
        let id = entry.job.id;
        match &entry.place {
            Place::Ready { queue, position } => {
                let queue = queue.as_deref().unwrap_or(&entry.job.queue);
                self.ready.insert(queue, entry.job.priority, *position, std::iter::once(id));
            }
            Place::Scheduled { at, .. } => {
                self.scheduled.insert((*at, id));
            }
            Place::Gated(gate) => match gate.as_ref() {
                Gate::Pause(target) => {
                    self.parked.entry(target.clone()).or_default().insert(id);
                }
                Gate::OrderingKey(key) => {
                    if let Some(line) = self.ordering.get_mut(&(entry.job.tenant, key.clone())) {
                        line.waiting.insert((entry.created_at, id));
                    }
                }
                Gate::Parents => {
                    self.dependents.insert(id);
                }
            },
            Place::Leased { lease, node, .. } => self.add_to_lease(*lease, *node, id),
            Place::Ended(outcome) => {
                if let Some(at) = outcome.purge_at {
                    self.purges.insert((at, id));
                }
            }
        }
        self.add_expiry(entry);
        let (status, bytes) = (entry.status(), entry.job.payload.as_str().len() as u64);
        self.count(entry.job.tenant, status);
        if !status.is_terminal() {
            self.counts.entry(entry.job.tenant).or_default().bytes += bytes;
        }
    }

    /// Removes a job that is about to leave its place.
    pub(super) fn remove(&mut self, entry: &Entry) {
        let id = entry.job.id;
        match &entry.place {
            Place::Ready { queue, position } => {
                let queue = queue.as_deref().unwrap_or(&entry.job.queue);
                self.ready.remove(queue, entry.job.priority, *position, id);
            }
            Place::Scheduled { at, .. } => {
                self.scheduled.remove(&(*at, id));
            }
            Place::Gated(gate) => match gate.as_ref() {
                Gate::Pause(target) => {
                    if let Some(jobs) = self.parked.get_mut(target) {
                        jobs.remove(&id);
                        if jobs.is_empty() {
                            self.parked.remove(target);
                        }
                    }
                }
                Gate::OrderingKey(key) => {
                    if let Some(line) = self.ordering.get_mut(&(entry.job.tenant, key.clone())) {
                        line.waiting.remove(&(entry.created_at, id));
                    }
                }
                Gate::Parents => {
                    self.dependents.remove(&id);
                }
            },
            Place::Leased { lease, node, cancel, .. } => {
                self.remove_from_lease(*lease, *node);
                if cancel.is_some()
                    && let Some(node) = self.nodes.get_mut(node)
                {
                    node.cancels.remove(&(*lease, id));
                }
            }
            Place::Ended(outcome) => {
                if let Some(at) = outcome.purge_at {
                    self.purges.remove(&(at, id));
                }
            }
        }
        self.remove_expiry(entry);
        let (status, bytes) = (entry.status(), entry.job.payload.as_str().len() as u64);
        self.uncount(entry.job.tenant, status);
        if !status.is_terminal() {
            self.counts.entry(entry.job.tenant).or_default().bytes -= bytes;
        }
    }

    /// Moves jobs that `Ready::take` has taken out of their lines already; all the rest of `remove` and `add`.
    pub(super) fn claim(&mut self, entry: &mut Entry, to: Place) {
        self.remove_expiry(entry);
        self.uncount(entry.job.tenant, entry.status());
        entry.place = to;
        if let Place::Leased { lease, node, .. } = entry.place {
            self.add_to_lease(lease, node, entry.job.id);
        }
        self.count(entry.job.tenant, entry.status());
    }

    /// How many jobs of the scope are in each status.
    pub(super) fn counts(&self, scope: Scope) -> Counts {
        let mut counts = Counts::default();
        for (_, own) in self.counts.iter().filter(|(tenant, _)| scope.covers(**tenant)) {
            for status in Status::ALL {
                counts.add(status, own.by_status[status.code() as usize]);
            }
        }
        counts
    }

    /// What a tenant has in unfinished jobs.
    pub(super) fn in_use(&self, tenant: TenantId) -> Amount {
        let Some(own) = self.counts.get(&tenant) else { return Amount::default() };
        let unfinished = Status::ALL.into_iter().filter(|status| !status.is_terminal());
        Amount { jobs: unfinished.map(|status| own.by_status[status.code() as usize]).sum(), bytes: own.bytes }
    }

    /// How many jobs of a tenant run.
    pub(super) fn running(&self, tenant: TenantId) -> u64 {
        self.counts.get(&tenant).map_or(0, |own| own.by_status[Status::Running.code() as usize])
    }

    /// The tenants that ever had a job.
    pub(super) fn tenants(&self) -> impl Iterator<Item = TenantId> {
        self.counts.keys().copied()
    }

    fn count(&mut self, tenant: TenantId, status: Status) {
        self.counts.entry(tenant).or_default().by_status[status.code() as usize] += 1;
    }

    fn uncount(&mut self, tenant: TenantId, status: Status) {
        let count = &mut self.counts.entry(tenant).or_default().by_status[status.code() as usize];
        *count = count.saturating_sub(1);
    }

    fn add_expiry(&mut self, entry: &Entry) {
        if let Some(at) = entry.expires_at() {
            self.expiries.insert((at, entry.job.id));
        }
    }

    fn remove_expiry(&mut self, entry: &Entry) {
        if let Some(at) = entry.job.expires_at() {
            self.expiries.remove(&(at, entry.job.id));
        }
    }

    fn add_to_lease(&mut self, lease: LeaseId, node: NodeId, id: JobId) {
        let row = self.leases.entry(lease).or_insert_with(|| {
            if let Some(node) = self.nodes.get_mut(&node) {
                node.leases.insert(lease);
            }
            Lease { node, jobs: Vec::new(), held: 0 }
        });
        row.jobs.push(id);
        row.held += 1;
    }

    fn remove_from_lease(&mut self, lease: LeaseId, node: NodeId) {
        let Some(row) = self.leases.get_mut(&lease) else { return };
        row.held = row.held.saturating_sub(1);
        if row.held == 0 {
            self.leases.remove(&lease);
            if let Some(node) = self.nodes.get_mut(&node) {
                node.leases.remove(&lease);
            }
        }
    }
}
