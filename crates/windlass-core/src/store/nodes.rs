//! The processes of an installation: their identity, heartbeat and leave.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::Result;
use super::base::Base;
use crate::model::clock::Timestamp;
use crate::model::id::{Fence, MachineSlot, NodeId};

/// The processes of an installation: their identity, heartbeat and leave.
#[async_trait]
pub trait Nodes: Base {
    /// Gives a process an identity of its own and a machine slot that no live process has, and none had in the last
    /// [`SLOT_QUARANTINE`]. The time in the reply is later than that of every id the slot made before.
    async fn register(&self, node: NewNode) -> Result<NodeLease>;

    /// Renews the node. A node that was declared dead gets [`Beat::Fenced`] and must stop its jobs.
    async fn heartbeat(&self, node: NodeId, running: usize) -> Result<Beat>;

    /// Ends the node: what it still holds is released without cost, its slot goes into quarantine.
    async fn deregister(&self, node: NodeId) -> Result<()>;

    /// Every registered process, newest first.
    async fn nodes(&self) -> Result<Vec<NodeRecord>>;
}

/// A process that asks to be registered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NewNode {
    /// The machine's name.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The version of Windlass.
    pub version: String,
    /// What it can run; empty for a process that only submits.
    pub handlers: Vec<String>,
    /// How many jobs it runs at once; 0 for a process that only submits.
    pub capacity: usize,
}

/// What a registered process gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLease {
    /// Its identity.
    pub node: NodeId,
    /// Its part of ids.
    pub slot: MachineSlot,
    /// The store's time, where its ids start.
    pub now: Timestamp,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Still alive; jobs of this node whose cancel has been requested.
    Alive {
        /// Cancels to carry out, also ones told before.
        cancels: Vec<Fence>,
    },
    /// Declared dead: its jobs belong to others.
    Fenced,
}

/// A registered process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its identity.
    pub node: NodeId,
    /// Its part of ids.
    pub slot: MachineSlot,
    /// What it said of itself.
    pub info: NewNode,
    /// How many jobs it ran at its last heartbeat.
    pub running: usize,
    /// When it registered.
    pub started_at: Timestamp,
    /// When it was last heard of.
    pub heartbeat_at: Timestamp,
}

/// A slot stays unused this long after its holder's last sign of life, so that ids which the holder borrowed from the
/// future cannot be made again.
pub const SLOT_QUARANTINE: Duration = Duration::from_secs(30);

/// The calls of [`Nodes`](crate::store::Nodes), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! nodes_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Nodes:
            register(node: $crate::store::NewNode) -> $crate::store::Result<$crate::store::NodeLease>;
            heartbeat(node: $crate::store::NodeId, running: usize) -> $crate::store::Result<$crate::store::Beat>;
            deregister(node: $crate::store::NodeId) -> $crate::store::Result<()>;
            nodes() -> $crate::store::Result<Vec<$crate::store::NodeRecord>>;
        }
    };
}
