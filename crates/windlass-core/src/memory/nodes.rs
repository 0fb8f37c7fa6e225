//! The processes that share the memory store, and the machine slots of their ids.

use std::time::Duration;

use async_trait::async_trait;

use super::entry::Place;
use super::index::Node;
use super::{Join, MemoryStore, State};
use crate::model::clock::Timestamp;
use crate::model::id::{JobId, MachineSlot};
use crate::store::{Beat, Error, Fence, LeaseId, NewNode, NodeId, NodeLease, NodeRecord, Nodes, Result};

#[async_trait]
impl Nodes for MemoryStore {
    async fn register(&self, node: NewNode) -> Result<NodeLease> {
        self.step(|state, now| state.register(node, now))
    }

    async fn heartbeat(&self, node: NodeId, running: usize) -> Result<Beat> {
        Ok(self.step(|state, now| state.heartbeat(node, running, now)))
    }

    async fn deregister(&self, node: NodeId) -> Result<()> {
        self.step(|state, now| state.deregister(node, now));
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        Ok(self.step(|state, _| state.node_records()))
    }
}

impl State {
    pub(super) fn register(&mut self, info: NewNode, now: Timestamp) -> Result<NodeLease> {
        let leasable = &mut self.slots.0[..usize::from(MachineSlot::DATABASE.get())];
        let Some(slot) = leasable.iter().position(|slot| !slot.taken && slot.free_from <= now) else {
            let slots = leasable.len();
            return Err(Error::Unavailable(format!("all {slots} machine slots are taken or in quarantine")));
        };
        leasable[slot].taken = true;
        // Ids carry milliseconds, so the first one must be made in a later millisecond.
        let start = now.max(leasable[slot].newest + Duration::from_millis(1));
        self.nodes_made += 1;
        let slot = MachineSlot::new(slot as u16).expect("only leasable slots were looked at");
        let lease = NodeLease { node: NodeId(self.nodes_made), slot, now: start };
        let record =
            NodeRecord { node: lease.node, slot: lease.slot, info, running: 0, started_at: now, heartbeat_at: now };
        self.index.nodes.insert(lease.node, Node { record, leases: Default::default(), cancels: Default::default() });
        Ok(lease)
    }

    pub(super) fn heartbeat(&mut self, node: NodeId, running: usize, now: Timestamp) -> Beat {
        let Some(node) = self.index.nodes.get_mut(&node) else { return Beat::Fenced };
        node.record.running = running;
        node.record.heartbeat_at = now;
        Beat::Alive { cancels: node.cancels.iter().map(|&(lease, job)| Fence { job, lease }).collect() }
    }

    pub(super) fn deregister(&mut self, node: NodeId, now: Timestamp) {
        for id in self.jobs_of(node) {
            if !self.cancel_if_requested(id, now) {
                if let Some(entry) = self.jobs.get_mut(&id) {
                    entry.resumed = true;
                }
                self.make_ready(id, Join::Front, now);
                self.tell(id, now);
            }
        }
        if let Some(node) = self.index.nodes.remove(&node) {
            self.slots.release(node.record.slot, now);
            self.note_served(&node.record.info.handlers, now);
        }
    }

    pub(super) fn note_served(&mut self, names: &[String], at: Timestamp) {
        for name in names {
            let last = self.served.entry(name.clone()).or_insert(at);
            *last = at.max(*last);
        }
    }

    pub(super) fn node_records(&self) -> Vec<NodeRecord> {
        self.index.nodes.values().rev().map(|node| node.record.clone()).collect()
    }

    /// The jobs that a node holds, in the order of its leases.
    pub(super) fn jobs_of(&self, node: NodeId) -> Vec<JobId> {
        let Some(node) = self.index.nodes.get(&node) else { return Vec::new() };
        let mut held = Vec::new();
        for lease in &node.leases {
            let jobs = self.index.leases.get(lease).map(|row| row.jobs.as_slice()).unwrap_or_default();
            held.extend(jobs.iter().filter(|id| self.lease_of(**id) == Some(*lease)));
        }
        held
    }

    pub(super) fn lease_of(&self, id: JobId) -> Option<LeaseId> {
        match self.jobs.get(&id)?.place {
            Place::Leased { lease, .. } => Some(lease),
            _ => None,
        }
    }
}
