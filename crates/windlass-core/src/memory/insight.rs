//! The past and the state of the memory store.

use std::time::Duration;

use async_trait::async_trait;

use super::MemoryStore;
use crate::model::clock::Timestamp;
use crate::model::tenant::Scope;
use crate::operate::activity::{Addition, Resolution, Slice, Waiting};
use crate::operate::health::{Checkup, Finding, HeldSnapshot, Vitals};
use crate::store::{Counts, Insight, Result};

#[async_trait]
impl Insight for MemoryStore {
    async fn add_activity(&self, at: Timestamp, additions: Vec<Addition>) -> Result<()> {
        self.step(|state, _| state.past.add(at, additions));
        Ok(())
    }

    async fn activity(&self, scope: Scope, resolution: Resolution, from: Timestamp) -> Result<Vec<Slice>> {
        Ok(self.step(|state, _| state.past.slices(scope, resolution, from)))
    }

    async fn sample_depth(&self) -> Result<()> {
        self.step(|state, now| state.past.sample(now, state.counts(Scope::ENGINE, now)));
        Ok(())
    }

    async fn depths(&self, resolution: Resolution, from: Timestamp) -> Result<Vec<(Timestamp, Counts)>> {
        Ok(self.step(|state, _| state.past.depths(resolution, from)))
    }

    async fn clean_activity(&self, limit: usize) -> Result<usize> {
        Ok(self.step(|state, now| state.past.clean(now, limit)))
    }

    async fn backlog(&self, scope: Scope) -> Result<Vec<Waiting>> {
        Ok(self.step(|state, _| state.backlog(scope)))
    }

    async fn vitals(&self) -> Result<Vitals> {
        Ok(self.step(|state, now| {
            let (oldest_due, dead_letters) = (state.oldest_due(now), state.dead_letters(now));
            Vitals { oldest_due, dead_letters, ..Vitals::default() }
        }))
    }

    async fn held_snapshots(&self, longer_than: Duration) -> Result<Vec<HeldSnapshot>> {
        let _ = longer_than;
        Ok(Vec::new())
    }

    async fn examine(&self, checkup: &Checkup) -> Result<Vec<Finding>> {
        let _ = checkup;
        Ok(Vec::new())
    }
}
