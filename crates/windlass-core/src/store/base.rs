//! What every room stands on: who the store is, its clock, and how processes wake each other. Everything here but `now` is
//! known without asking the database.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use crate::model::clock::Timestamp;
use crate::model::tenant::TenantId;
use crate::node::supervise::LoopHealth;

/// What every room stands on: who the store is, its clock, and how processes wake each other. Everything here but `now` is
/// known without asking the database.
#[async_trait]
pub trait Base: Send + Sync + 'static {
    /// A short name for people: `memory`, `sqlite`, `postgres`.
    fn name(&self) -> &'static str;

    /// The store's time.
    async fn now(&self) -> Result<Timestamp>;

    /// How many submits (and how many finishes) the runtime may have under way at once. 1 where one writer takes all.
    fn writers(&self) -> usize;

    /// After how long every call has been answered, if only with an error.
    fn deadline(&self) -> Duration;

    /// What of a tenant is limited. Asked for every submitted job: answered from memory, as last heard.
    fn limited(&self, tenant: TenantId) -> Limited;

    /// Waits until something may have become ready through another process, or for ever. A hint: it may be late or
    /// early, and nothing depends on it.
    async fn wait_for_wake(&self) -> News;

    /// Tells other processes that jobs may be ready in this store. Cheap to call often; coalesced by the store.
    fn wake_others(&self, news: News);

    /// How the loops of the store are; none where it has none.
    fn loops(&self) -> Vec<LoopHealth>;

    /// What handlers begin transactions with, through the functions of the store's own crate; none where it has no
    /// transactions. Its type is private to that crate, so that a handler that holds the value can do nothing else with it.
    fn transactions(&self) -> Option<Arc<dyn Any + Send + Sync>>;
}

/// What processes tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Jobs may be ready, or due earlier than known.
    Ready,
    /// Also in queues that nodes look at only now and then: of jobs that another node could not run, and of suspects.
    ReadyElsewhere,
}

/// What of a tenant is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limited {
    /// What it may submit.
    pub submits: bool,
    /// How many of its jobs run: then none may be born leased, because a claim decides which of them may start.
    pub running: bool,
}
