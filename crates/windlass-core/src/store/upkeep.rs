//! Maintenance: every step is bounded, repeatable, and safe on several nodes at once.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use super::base::Base;
use super::nodes::{NodeRecord, Nodes};
use super::records::Records;
use super::schedules::Schedules;
use super::steering::Pause;
use super::steering::Steering;
use crate::model::clock::Timestamp;
use crate::model::id::{JobId, NodeId};
use crate::model::tenant::Scope;

/// Maintenance: every step is bounded, repeatable, and safe on several nodes at once.
#[async_trait]
pub trait Upkeep: Base {
    /// What there is to do, in one look: so that an idle node asks one question instead of one per step. A wrong yes
    /// costs a step that finds nothing; a wrong no delays the step until the next look. `lease` is as in
    /// [`Upkeep::recover`]; `queues` are those an idle node waits on, empty if it does not wait. Without a quick way to
    /// tell, everything may have work.
    async fn survey(&self, lease: Duration, queues: &[String]) -> Result<Survey>;

    /// Makes due jobs ready, at most `limit`.
    async fn promote(&self, limit: usize) -> Result<Promoted>;

    /// Declares those of `silent` dead that still have the heartbeat they were seen with, and that have not been renewed for
    /// `lease` or have a heartbeat in the future; nobody else. Their jobs, and those held for nodes that are gone already,
    /// become ready again, with one more recovery and in the queue [`suspect_queue`], or canceled where a cancel was
    /// requested.
    async fn recover(&self, lease: Duration, silent: &[Silent]) -> Result<Recovered>;

    /// Cancels waiting jobs whose `expires_at` has passed, with the reason `expired`; at most `limit`.
    async fn expire(&self, limit: usize) -> Result<usize>;

    /// Makes jobs ready whose gate has opened: the next of an ordering key whose holder has ended, those parked by a
    /// pause that is over. Repairs what a crash between finish and release left behind. At most `limit`.
    async fn open_gates(&self, limit: usize) -> Result<usize>;

    /// Removes ended jobs whose time is over, at most `limit`, and their side rows. Nobody has seen them since their time
    /// was over. A store may keep jobs up to 1/32 longer than they ask, so that many are gone at one time. Answers how many. Also old costs:
    /// [`USAGE_EVENTS_KEPT`](crate::USAGE_EVENTS_KEPT), [`USAGE_KEPT`](crate::USAGE_KEPT).
    async fn clean(&self, limit: usize) -> Result<usize>;

    /// Queues that have ready jobs, with the oldest of each (the lowest id of its first chunks; a hint, not exact).
    async fn waiting_queues(&self) -> Result<Vec<WaitingQueue>>;

    /// When somebody last ran what bears these names, handlers or queues: now for a handler that a registered node
    /// has, else when the last node that had it left or was last heard of, or when it was last noted; `None` if never.
    /// First notes `served`: what workers outside take, or what is missed for the first time. Forgotten after
    /// [`SERVED_KEPT`].
    async fn last_served(&self, served: &[String], asked: &[String]) -> Result<Vec<Option<Timestamp>>>;
}

/// What maintenance and an idle node may find to do ([`super::Store::survey`]).
#[derive(Clone, Debug)]
pub struct Survey {
    /// The pauses in force.
    pub pauses: Vec<Pause>,
    /// Whether jobs may be ready in the queues asked for.
    pub ready: bool,
    /// Whether scheduled jobs may be due.
    pub due: bool,
    /// Nodes that may be lost: not renewed for a tenth of the lease, or with a heartbeat that a clock which was set back has
    /// left in the future. Who of them is dead is for the observer's own clock to say as well.
    pub silent: Vec<Silent>,
    /// Whether jobs may have expired, or gates may be open.
    pub untidy: bool,
    /// Whether there are webhooks to tell of events.
    pub webhooks: bool,
    /// How long until the next schedule is due; `None` if there is none.
    pub schedule_in: Option<Duration>,
    /// Whether jobs wait for others.
    pub dependents: bool,
    /// Whether the counts of a batch have changed, or one may be complete.
    pub batches: bool,
}

/// A node that has not been renewed for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// The node.
    pub node: NodeId,
    /// When it was last renewed, by the store's clock.
    pub heartbeat_at: Timestamp,
}

/// What a promotion did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promoted {
    /// How many jobs became ready.
    pub jobs: usize,
    /// How long until the next one is due; `None` if there is none.
    pub next_in: Option<Duration>,
}

/// What a recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Nodes declared dead.
    pub nodes: Vec<NodeId>,
    /// Their jobs that are ready again.
    pub jobs: Vec<JobId>,
}

/// A queue that has ready jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingQueue {
    /// Its name.
    pub queue: String,
    /// About the oldest job in it.
    pub oldest: JobId,
}

/// How long it is kept when a name was last served: far longer than anyone lets jobs wait for a handler.
pub const SERVED_KEPT: Duration = Duration::from_secs(366 * 24 * 3600);

/// What a store says without a quick way to tell: everything may have work.
pub async fn survey_by_lists<S: Nodes + Steering + Records + Schedules + ?Sized>(
    store: &S,
    queues: &[String],
) -> Result<Survey> {
    let webhooks = !store.webhooks(Scope::ENGINE).await?.is_empty();
    let pauses = store.pauses().await?;
    let silent = |node: NodeRecord| Silent { node: node.node, heartbeat_at: node.heartbeat_at };
    let silent = store.nodes().await?.into_iter().map(silent).collect();
    Ok(Survey {
        pauses,
        ready: !queues.is_empty(),
        due: true,
        silent,
        untidy: true,
        webhooks,
        schedule_in: store.due_schedules(0).await?.next_in,
        dependents: true,
        batches: true,
    })
}

/// The calls of [`Upkeep`](crate::store::Upkeep), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! upkeep_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Upkeep:
            survey(lease: ::std::time::Duration, queues: &[String]) -> $crate::store::Result<$crate::store::Survey>;
            promote(limit: usize) -> $crate::store::Result<$crate::store::Promoted>;
            recover(lease: ::std::time::Duration, silent: &[$crate::store::Silent]) -> $crate::store::Result<$crate::store::Recovered>;
            expire(limit: usize) -> $crate::store::Result<usize>;
            open_gates(limit: usize) -> $crate::store::Result<usize>;
            clean(limit: usize) -> $crate::store::Result<usize>;
            waiting_queues() -> $crate::store::Result<Vec<$crate::store::WaitingQueue>>;
            last_served(served: &[String], asked: &[String]) -> $crate::store::Result<Vec<Option<$crate::Timestamp>>>;
        }
    };
}
