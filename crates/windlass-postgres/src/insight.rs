//! The past for charts, and the state of the store itself.

pub(crate) mod activity;
pub(crate) mod doctor;

use crate::PgStore;
use async_trait::async_trait;
use std::time::Duration;
use windlass_core::activity::{Addition, Resolution, Slice, Waiting};
use windlass_core::health::{Checkup, Finding, HeldSnapshot, Vitals};
use windlass_core::store::{Counts, Insight, Result};
use windlass_core::{Scope, Timestamp};

#[async_trait]
impl Insight for PgStore {
    async fn add_activity(&self, at: Timestamp, additions: Vec<Addition>) -> Result<()> {
        activity::add(self, at, additions).await
    }

    async fn activity(&self, scope: Scope, resolution: Resolution, from: Timestamp) -> Result<Vec<Slice>> {
        activity::slices(self, scope, resolution, from).await
    }

    async fn sample_depth(&self) -> Result<()> {
        activity::sample_depth(self).await
    }

    async fn depths(&self, resolution: Resolution, from: Timestamp) -> Result<Vec<(Timestamp, Counts)>> {
        activity::depths(self, resolution, from).await
    }

    async fn clean_activity(&self, limit: usize) -> Result<usize> {
        activity::clean(self, limit).await
    }

    async fn backlog(&self, scope: Scope) -> Result<Vec<Waiting>> {
        activity::backlog(self, scope).await
    }

    async fn vitals(&self) -> Result<Vitals> {
        doctor::vitals(self).await
    }

    async fn held_snapshots(&self, longer_than: Duration) -> Result<Vec<HeldSnapshot>> {
        doctor::held_snapshots(self, longer_than).await
    }

    async fn examine(&self, checkup: &Checkup) -> Result<Vec<Finding>> {
        doctor::examine(self, checkup).await
    }
}
