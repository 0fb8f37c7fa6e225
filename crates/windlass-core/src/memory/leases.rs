//! What one node holds at a time, in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use super::MemoryStore;
use crate::model::clock::Timestamp;
use crate::store::{HOLDERS_LISTED, Holder, Lease, Leases, NodeId, Result};

#[async_trait]
impl Leases for MemoryStore {
    async fn hold(&self, name: &str, node: NodeId, time: Duration) -> Result<Option<Lease>> {
        Ok(self.step(|state, now| state.holdings.hold(name, node, time, now)))
    }

    async fn let_go(&self, name: &str, epoch: u64) -> Result<bool> {
        let let_go = |holding: &mut Holding| holding.by = None;
        Ok(self.step(|state, _| state.holdings.held(name, epoch).map(let_go).is_some()))
    }

    async fn advance(&self, name: &str, epoch: u64, position: u64) -> Result<bool> {
        let advance = |holding: &mut Holding| holding.lease.position = Some(position);
        Ok(self.step(|state, _| state.holdings.held(name, epoch).map(advance).is_some()))
    }

    async fn holders(&self, prefix: &str) -> Result<Vec<Holder>> {
        Ok(self.step(|state, now| state.holdings.holders(prefix, now)))
    }
}

/// The leases by name. One that nobody holds stays, so that its epoch is never used again.
#[derive(Default)]
pub(super) struct Holdings(BTreeMap<String, Holding>);

pub(super) struct Holding {
    by: Option<NodeId>,
    until: Timestamp,
    lease: Lease,
}

impl Holdings {
    fn hold(&mut self, name: &str, node: NodeId, time: Duration, now: Timestamp) -> Option<Lease> {
        let new = || Holding { by: None, until: now, lease: Lease { epoch: 0, position: None } };
        let holding = self.0.entry(name.to_owned()).or_insert_with(new);
        if holding.by != Some(node) {
            if holding.by.is_some() && now < holding.until {
                return None;
            }
            holding.by = Some(node);
            holding.lease.epoch += 1;
        }
        holding.until = now + time;
        Some(holding.lease)
    }

    pub(super) fn held(&mut self, name: &str, epoch: u64) -> Option<&mut Holding> {
        self.0.get_mut(name).filter(|holding| holding.by.is_some() && holding.lease.epoch == epoch)
    }

    fn holders(&self, prefix: &str, now: Timestamp) -> Vec<Holder> {
        let holder = |(name, holding): (&String, &Holding)| {
            let node = holding.by.filter(|_| now < holding.until)?;
            Some(Holder { name: name.clone(), node, until: holding.until, lease: holding.lease })
        };
        let named = self.0.range(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
        named.filter_map(holder).take(HOLDERS_LISTED).collect()
    }
}
