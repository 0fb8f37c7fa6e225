//! The past for charts, and the state of the store itself.

pub(crate) mod activity;
pub(crate) mod doctor;

use crate::SqliteStore;
use async_trait::async_trait;
use std::time::Duration;
use windlass_core::activity::{Addition, Resolution, Slice, Waiting};
use windlass_core::health::{Checkup, Finding, HeldSnapshot, Vitals};
use windlass_core::store::{Counts, Insight, Result};
use windlass_core::{Scope, Timestamp};

#[async_trait]
impl Insight for SqliteStore {
    async fn add_activity(&self, at: Timestamp, additions: Vec<Addition>) -> Result<()> {
        self.write(move |conn, _| activity::add(conn, at, &additions)).await
    }

    async fn activity(&self, scope: Scope, resolution: Resolution, from: Timestamp) -> Result<Vec<Slice>> {
        self.read(move |conn, _| activity::slices(conn, scope, resolution, from)).await
    }

    async fn sample_depth(&self) -> Result<()> {
        // Counted by a reader, because the writer has better things to do.
        match self.read(activity::unknown_depth).await? {
            Some(counts) => self.write(move |conn, state| activity::keep_depth(conn, state.now, &counts)).await,
            None => Ok(()),
        }
    }

    async fn depths(&self, resolution: Resolution, from: Timestamp) -> Result<Vec<(Timestamp, Counts)>> {
        self.read(move |conn, _| activity::depths(conn, resolution, from)).await
    }

    async fn clean_activity(&self, limit: usize) -> Result<usize> {
        self.write(move |conn, state| activity::clean(conn, state.now, limit)).await
    }

    async fn backlog(&self, scope: Scope) -> Result<Vec<Waiting>> {
        self.read(move |conn, _| activity::backlog(conn, scope)).await
    }

    async fn vitals(&self) -> Result<Vitals> {
        self.read(activity::vitals).await
    }

    async fn held_snapshots(&self, _: Duration) -> Result<Vec<HeldSnapshot>> {
        Ok(Vec::new())
    }

    async fn examine(&self, _: &Checkup) -> Result<Vec<Finding>> {
        let path = self.path.clone();
        self.read(move |conn, _| doctor::examine(conn, &path)).await
    }
}
