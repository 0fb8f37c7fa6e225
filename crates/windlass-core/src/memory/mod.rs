//! The store that lives and dies with its process: for tests, for work that may be lost, and the simplest reading of
//! what [`Store`] promises. Called by the service and the runtime. Never waits while its state is locked, and writes
//! nothing to disk.

mod entry;
mod index;
mod keys;
mod ready;
mod access;
mod costs;
mod past;

mod jobs;
mod nodes;
mod upkeep;
mod reads;
mod steering;
mod tenancy;
mod records;
mod leases;
mod schedules;
mod groups;
mod feed;
mod insight;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use foldhash::HashMap;
use parking_lot::{Mutex, RwLock};

use crate::model::clock::{Clock, SystemClock, Timestamp};
use crate::model::id::{JobId, MachineSlot};
use crate::model::tenant::TenantId;
use crate::node::supervise::LoopHealth;
use crate::quota::{Bucket, Quotas};
use crate::store::{AuditEntry, Base, DataKeyRecord, Limited, News, Pause, PauseTarget, Result, SLOT_QUARANTINE};

use costs::Costs;
use entry::{Entry, KeyOf, UniqueHolder};
use index::Index;
use past::Past;

/// Who acts in audit entries that nobody asked for.
const ENGINE: &str = "windlass";
/// How many audit entries are read where the filter does not say.
const DEFAULT_AUDIT_LIMIT: usize = 50;
/// Ids have room for so many slots; the last is the database's own.
const SLOTS: usize = MachineSlot::DATABASE.get() as usize + 1;

/// Keeps jobs in memory.
///
/// ```
/// use windlass_core::memory::MemoryStore;
/// use windlass_core::store::Base;
/// assert_eq!(MemoryStore::new().name(), "memory");
/// ```
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// A copy of the state's, for questions that must not wait for a step.
    quotas: RwLock<Arc<Quotas>>,
}

impl MemoryStore {
    /// An empty store that goes by the clock of this machine.
    pub fn new() -> Self {
        MemoryStore::with_clock(Arc::new(SystemClock))
    }

    /// An empty store that goes by `clock`.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        MemoryStore { clock, state: Mutex::new(State::default()), quotas: RwLock::default() }
    }

    /// Does one step: with the state to itself, at one point in time.
    fn step<T>(&self, step: impl FnOnce(&mut State, Timestamp) -> T) -> T {
        let mut state = self.state.lock();
        step(&mut state, self.clock.now())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("jobs", &self.state.lock().jobs.len()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Base for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    fn writers(&self) -> usize {
        1
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn limited(&self, tenant: TenantId) -> Limited {
        let quotas = self.quotas.read();
        match quotas.is_empty() {
            true => Limited::default(),
            false => Limited { submits: quotas.limiting(tenant).is_some(), running: quotas.cap(tenant).is_some() },
        }
    }

    async fn wait_for_wake(&self) -> News {
        std::future::pending().await
    }

    fn wake_others(&self, news: News) {
        let _ = news;
    }

    fn loops(&self) -> Vec<LoopHealth> {
        Vec::new()
    }

    fn transactions(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// Everything the store knows.
#[derive(Default)]
struct State {
    /// By id, because lists are by id. Boxed, so that the tree's nodes stay small.
    jobs: BTreeMap<JobId, Box<Entry>>,
    index: Index,
    idempotency: HashMap<(TenantId, String, String), JobId>,
    unique: HashMap<KeyOf, UniqueHolder>,
    /// Unique keys whose job is gone before their time is over.
    unique_orphans: BTreeMap<(Timestamp, JobId), KeyOf>,
    pauses: BTreeMap<PauseTarget, Pause>,
    audit: Vec<AuditEntry>,
    past: Past,
    data_keys: BTreeMap<(TenantId, u32), DataKeyRecord>,
    access: access::Access,
    costs: Costs,
    feed: feed::Feed,
    holdings: leases::Holdings,
    schedules: schedules::Table,
    groups: groups::Table,
    nodes_made: i64,
    slots: Slots,
    /// When handlers were last served whose nodes are gone, and what workers outside take.
    served: BTreeMap<String, Timestamp>,
    quotas: Arc<Quotas>,
    /// Tokens for submits, of tenants whose rate is limited.
    buckets: HashMap<TenantId, Bucket>,
}

/// Which machine slots are in use, and what is known of their ids.
struct Slots(Box<[Slot; SLOTS]>);

#[derive(Clone, Copy)]
struct Slot {
    taken: bool,
    free_from: Timestamp,
    /// The time of the newest id of this slot.
    newest: Timestamp,
}

impl Default for Slots {
    fn default() -> Self {
        Slots(Box::new([Slot { taken: false, free_from: Timestamp::MIN, newest: Timestamp::MIN }; SLOTS]))
    }
}

impl Slots {
    fn note(&mut self, id: JobId) {
        let slot = &mut self.0[usize::from(id.machine().get())];
        slot.newest = slot.newest.max(id.created());
    }

    fn release(&mut self, slot: MachineSlot, last_seen: Timestamp) {
        let slot = &mut self.0[usize::from(slot.get())];
        slot.taken = false;
        slot.free_from = last_seen + SLOT_QUARANTINE;
    }
}

/// Where in its line a job is put that becomes ready.
#[derive(Clone, Copy)]
enum Join {
    /// Ahead of those that have not been claimed before.
    Front,
    /// When its tenant's turn comes.
    Turn,
}

#[cfg(test)]
mod tests;
