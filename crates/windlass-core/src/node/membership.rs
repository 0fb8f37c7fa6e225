//! Who this process is in the store: it registers, renews its node by heartbeats, stops its jobs before the store can give
//! them away, and becomes another node when it was declared dead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Worker;
use crate::config::Config;
use crate::life::context::Stop;
use crate::life::handler::Registry;
use crate::model::clock::Timestamp;
use crate::model::id::{IdGenerator, JobId};
use crate::store::{self, Beat, Fence, NewNode, NodeId, Store};

/// Who this process is in the store. A node that was declared dead becomes another one.
pub(crate) struct Membership {
    pub(crate) node: NodeId,
    pub(crate) ids: IdGenerator,
    time: StoreTime,
    renewed: Mutex<Instant>,
}

/// The store's clock, carried on with monotonic time since it was last read.
struct StoreTime(Mutex<(Timestamp, Instant)>);

impl Worker {
    pub(crate) fn membership(&self) -> Arc<Membership> {
        self.membership.read().clone()
    }

    /// The store's time, as this process knows it.
    pub(crate) fn now(&self) -> Timestamp {
        self.membership.read().time.now()
    }

    pub(crate) fn saw_time(&self, now: Timestamp) {
        self.membership.read().time.set(now);
    }

    pub(crate) fn next_id(&self) -> JobId {
        self.membership.read().ids.next()
    }

    /// Renews the node until everything ends. Runs on a thread of its own that no handler can block.
    pub(crate) async fn keep_alive(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            self.beat().await;
            let next = next_beat(self.config.lease, self.membership().unrenewed(), self.running() > 0);
            tokio::select! {
                () = tokio::time::sleep(next) => {}
                () = self.wake_heartbeat.notified() => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    /// Looks at once for cancels that other nodes have asked for.
    pub(crate) fn hear_cancels(&self) {
        if self.running() > 0 {
            self.wake_heartbeat.notify_one();
        }
    }

    async fn beat(&self) {
        let membership = self.membership();
        let asked = Instant::now();
        let late = late_in(self.config.lease, membership.unrenewed());
        let beat = self.store.heartbeat(membership.node, self.running());
        let mut beat = std::pin::pin!(tokio::time::timeout(self.config.lease / 3, beat));
        let answer = tokio::select! {
            biased;
            answer = &mut beat => answer,
            // Before the store can give the jobs away, they are stopped here, by this process's own clock.
            () = tokio::time::sleep(late) => {
                self.stop_all(membership.node, Stop::LeaseLost);
                beat.await
            }
        };
        match answer {
            Ok(Ok(Beat::Alive { cancels })) => {
                *membership.renewed.lock() = asked;
                for Fence { job, lease } in cancels {
                    self.stop_attempt(job, Some(lease), Stop::Canceled);
                }
            }
            Ok(Ok(Beat::Fenced)) => self.rejoin(&membership).await,
            failed => {
                if let Ok(Err(error)) = failed {
                    tracing::warn!(%error, "the heartbeat failed");
                } else {
                    tracing::warn!("the heartbeat timed out");
                }
                if is_late(self.config.lease, membership.unrenewed()) {
                    self.stop_all(membership.node, Stop::LeaseLost);
                }
            }
        }
    }

    /// Whether so many ends wait to be saved, while saving fails or hangs, that the node must take no more jobs: what it
    /// ran would be run again elsewhere should it be lost now. However few they are, once every write has failed
    /// for a lease.
    pub(crate) fn saves_nothing(&self) -> bool {
        let stuck = self.finisher().stuck();
        let for_long = || self.finisher().failing_for() >= self.config.lease;
        stuck >= self.config.concurrency.max(1) || stuck > 0 && for_long()
    }

    /// Whether the node was renewed lately enough to take jobs.
    pub(crate) fn is_renewed(&self) -> bool {
        !is_late(self.config.lease, self.membership().unrenewed())
    }

    /// Whether jobs that were claimed for `node` may start: it is still this process, and was renewed lately. A claim
    /// may have been answered late.
    pub(crate) fn may_start(&self, node: NodeId) -> bool {
        self.membership().node == node && self.is_renewed()
    }

    /// The store has given this node's jobs to others: stops them and becomes a new node.
    async fn rejoin(&self, old: &Membership) {
        if self.stopped.is_cancelled() {
            // It has left by itself; coming back would leave a node behind that nobody renews.
            return;
        }
        tracing::warn!(node = old.node.0, "this node was declared dead; its jobs belong to others now");
        self.stop_all(old.node, Stop::LeaseLost);
        match Membership::register(&*self.store, &self.config, &self.registry).await {
            Ok(membership) => {
                *self.membership.write() = Arc::new(membership);
                // Once more, for what began while it registered.
                self.stop_all(old.node, Stop::LeaseLost);
                self.wake.notify_one();
            }
            Err(error) => tracing::warn!(%error, "could not register again, trying at the next heartbeat"),
        }
    }

    /// Ends a node of this process: what it still holds is released.
    pub(crate) async fn leave(&self, node: NodeId) {
        if let Err(error) = self.store.deregister(node).await {
            tracing::warn!(%error, "could not leave the cluster; the lease will run out");
        }
    }
}

/// Whether a node that has not been renewed for so long must not start jobs and must stop those it runs.
fn is_late(lease: Duration, unrenewed: Duration) -> bool {
    unrenewed >= lease * 2 / 3
}

/// How long a node may wait for the answer to a heartbeat before it stops its jobs. One that is late already, because
/// its process stood still, still has a moment for an answer: it may well be in time.
fn late_in(lease: Duration, unrenewed: Duration) -> Duration {
    (lease * 2 / 3).saturating_sub(unrenewed).max(lease / 10)
}

/// How long after a heartbeat the next one follows. With jobs running, cancels from other nodes should be heard of soon;
/// and a node that is about to be late does not sleep through that moment.
fn next_beat(lease: Duration, unrenewed: Duration, busy: bool) -> Duration {
    let calm = lease / 3;
    let every = if busy { calm.min(Duration::from_secs(1)) } else { calm };
    match (lease * 2 / 3).saturating_sub(unrenewed) {
        Duration::ZERO => every,
        left => every.min(left),
    }
}

impl Membership {
    pub(super) async fn register(store: &dyn Store, config: &Config, registry: &Registry) -> store::Result<Membership> {
        let asked = Instant::now();
        let lease = store
            .register(NewNode {
                host: host_name(),
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                handlers: registry.ids_of_stored(),
                capacity: if config.workers { config.concurrency } else { 0 },
            })
            .await?;
        Ok(Membership {
            node: lease.node,
            ids: IdGenerator::new(lease.slot, lease.now),
            time: StoreTime(Mutex::new((lease.now, asked))),
            renewed: Mutex::new(asked),
        })
    }
}

impl Membership {
    /// How long ago the last heartbeat was asked for that was answered.
    fn unrenewed(&self) -> Duration {
        self.renewed.lock().elapsed()
    }
}

impl StoreTime {
    fn now(&self) -> Timestamp {
        let (time, at) = *self.0.lock();
        time + at.elapsed()
    }

    fn set(&self, now: Timestamp) {
        *self.0.lock() = (now, Instant::now());
    }
}

/// The machine's name, for people.
fn host_name() -> String {
    std::env::var("HOSTNAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/etc/hostname").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a node stops its jobs that is renewed at 0 and never again; `hangs` says of each heartbeat whether it is
    /// refused at once or never answered.
    fn stops_at(lease: Duration, busy: bool, hangs: &[bool]) -> Duration {
        let mut now = Duration::ZERO;
        for hang in hangs {
            now += next_beat(lease, now, busy);
            let late = late_in(lease, now);
            if *hang && late < lease / 3 {
                return now + late;
            }
            now += if *hang { lease / 3 } else { Duration::ZERO };
            if is_late(lease, now) {
                return now;
            }
        }
        panic!("{lease:?}: still running its jobs at {now:?}");
    }

    #[test]
    fn however_heartbeats_fail_jobs_are_stopped_before_the_lease_ends() {
        for lease in [500, 1_000, 3_000, 10_000, 60_000].map(Duration::from_millis) {
            for (busy, pattern) in [true, false].into_iter().flat_map(|busy| (0..1_u32 << 10).map(move |p| (busy, p))) {
                let hangs: Vec<bool> = (0..200).map(|n| pattern & (1 << (n % 10)) != 0).collect();
                let stopped = stops_at(lease, busy, &hangs);
                assert!(stopped < lease * 9 / 10, "lease {lease:?}, pattern {pattern:b}: stopped at {stopped:?}");
            }
        }
    }
}
