//! What only one node does at a time: dispatching webhooks today. A name is held for a time and renewed; its epoch is the
//! fence of whoever holds it. Not the leases of jobs, which are in [`Jobs`](super::Jobs).

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use super::base::Base;
use crate::model::clock::Timestamp;
use crate::model::id::NodeId;

/// What only one node does at a time.
#[async_trait]
pub trait Leases: Base {
    /// Takes the lease called `name` for this time from now, or renews it; `None` while another node holds it. Each
    /// change of holder, also from none, begins a higher epoch; a renewal keeps the epoch.
    async fn hold(&self, name: &str, node: NodeId, time: Duration) -> Result<Option<Lease>>;

    /// Frees a lease at once, if it is still held under this epoch; its position stays for the next holder. False if
    /// it is not.
    async fn let_go(&self, name: &str, epoch: u64) -> Result<bool>;

    /// Stores how far the holder has come, if the lease has not been let go or changed holder since this epoch began.
    /// False if it has: someone else goes on from the position that is stored.
    async fn advance(&self, name: &str, epoch: u64, position: u64) -> Result<bool>;

    /// The leases that are held now and whose names begin with `prefix`, by name, at most [`HOLDERS_LISTED`].
    async fn holders(&self, prefix: &str) -> Result<Vec<Holder>>;
}

/// What a node holds under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Grows with every change of holder. What the holder writes elsewhere is fenced by it.
    pub epoch: u64,
    /// How far the holders have come; `None` before the first [`Leases::advance`].
    pub position: Option<u64>,
}

/// Who holds a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name of the lease.
    pub name: String,
    /// The node that holds it.
    pub node: NodeId,
    /// When it runs out unless it is renewed, by the store's clock.
    pub until: Timestamp,
    /// Its epoch and position.
    pub lease: Lease,
}

/// How many holders a list shows at most: sixteen groups of 256 shards.
pub const HOLDERS_LISTED: usize = 4_096;

/// The calls of [`Leases`](crate::store::Leases), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! leases_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Leases:
            hold(name: &str, node: $crate::store::NodeId, time: ::std::time::Duration) -> $crate::store::Result<Option<$crate::store::Lease>>;
            let_go(name: &str, epoch: u64) -> $crate::store::Result<bool>;
            advance(name: &str, epoch: u64, position: u64) -> $crate::store::Result<bool>;
            holders(prefix: &str) -> $crate::store::Result<Vec<$crate::store::Holder>>;
        }
    };
}
