//! The store that lives and dies with its process: for tests, for work that may be lost, and the simplest reading of
//! what [`Store`] promises. Called by the service and the runtime. Never waits while its state is locked, and writes
//! nothing to disk.

mod access;
mod costs;
mod entry;
mod feed;
mod index;
mod past;
mod ready;

use std::any::Any;
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use foldhash::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};

use crate::access::ApiKey;
use crate::activity::{Addition, Resolution, Slice, Waiting};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::edit::{Edit, Move, after_edit, can_edit};
use crate::error::{JobError, Reason};
use crate::filter::JobFilter;
use crate::health::Vitals;
use crate::id::{JobId, MachineSlot};
use crate::job::{HistoryEntry, JobRecord, NewJob, Page, Replayed, Status, UniqueWithin};
use crate::logs::{KeptLine, LogLine, append};
use crate::payload::Payload;
use crate::priority::Band;
use crate::quota::{Amount, Bucket, Quota, Quotas, TenantUse, admit};
use crate::store::{
    ApiKeyRecord, AuditEntry, AuditFilter, Beat, CancelReply, Claim, Claimed, Counts, DataKeyRecord, EditReply, Error,
    FeedAsk, FeedRow, Fence, Finish, Finished, Gate, Lead, LeaseId, Limited, LogReport, NewNode, NodeId, NodeLease,
    NodeRecord, Pause, PauseTarget, ProgressReport, Promoted, Recovered, ReplayReply, Result, SLOT_QUARANTINE, Store,
    Submit, Submitted, Transition, WaitingQueue, WebhookRecord, Whereabouts, WrappedKey,
};
use crate::tenant::{Scope, TenantId};
use crate::usage::{Cost, UsageEvent, UsageRow};
use crate::webhook::Webhook;

use costs::Costs;
use entry::{Attempt, Entry, Job, KeyOf, Outcome, Place, UniqueHolder, due};
use index::{Index, Node, OrderingKey};
use past::Past;

/// Who acts in audit entries that nobody asked for.
const ENGINE: &str = "windlass";
/// How many audit entries are read where the filter does not say.
const DEFAULT_AUDIT_LIMIT: usize = 50;
/// Ids have room for so many slots; the last is the database's own.
const SLOTS: usize = MachineSlot::DATABASE.0 as usize + 1;

/// Keeps jobs in memory.
///
/// ```
/// use windlass_core::memory::MemoryStore;
/// use windlass_core::store::Store;
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
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    async fn register(&self, node: NewNode) -> Result<NodeLease> {
        self.step(|state, now| state.register(node, now))
    }

    async fn heartbeat(&self, node: NodeId, running: usize) -> Result<Beat> {
        Ok(self.step(|state, now| state.heartbeat(node, running, now)))
    }

    async fn held(&self, node: NodeId) -> Result<Vec<Fence>> {
        Ok(self.step(|state, _| {
            let fence = |id| Some(Fence { job: id, lease: state.lease_of(id)? });
            state.jobs_of(node).into_iter().filter_map(fence).collect()
        }))
    }

    async fn deregister(&self, node: NodeId) -> Result<()> {
        self.step(|state, now| state.deregister(node, now));
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        Ok(self.step(|state, _| state.node_records()))
    }

    async fn submit(&self, submit: Submit) -> Result<Vec<Submitted>> {
        self.step(|state, now| state.submit(submit, now))
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        self.step(|state, now| state.claim(&claim, now))
    }

    async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        self.step(|state, now| state.finish(node, finishes, now))
    }

    async fn report_progress(&self, node: NodeId, reports: Vec<ProgressReport>) -> Result<Vec<bool>> {
        Ok(self.step(|state, _| {
            let keep = |report: ProgressReport| match state.held(node, report.fence) {
                Some(entry) => {
                    entry.story_mut().progress = Some(report.progress);
                    true
                }
                None => false,
            };
            reports.into_iter().map(keep).collect()
        }))
    }

    async fn add_logs(&self, node: NodeId, reports: Vec<LogReport>) -> Result<Vec<bool>> {
        Ok(self.step(|state, _| {
            let keep = |report: LogReport| match state.held(node, report.fence) {
                Some(entry) => {
                    append(&mut entry.story_mut().lines, report);
                    true
                }
                None => false,
            };
            reports.into_iter().map(keep).collect()
        }))
    }

    async fn save_checkpoint(&self, node: NodeId, fence: Fence, data: Payload) -> Result<bool> {
        Ok(self.step(|state, _| match state.held(node, fence) {
            Some(entry) => {
                entry.story_mut().checkpoint = Some(data);
                true
            }
            None => false,
        }))
    }

    async fn get(&self, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>> {
        Ok(self
            .step(|state, now| ids.iter().filter_map(|id| state.visible(scope, *id, now)).map(Entry::record).collect()))
    }

    async fn input(&self, scope: Scope, id: JobId) -> Result<Option<Payload>> {
        Ok(self.step(|state, now| state.visible(scope, id, now).map(|entry| entry.job.payload.clone())))
    }

    async fn list(&self, scope: Scope, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>> {
        Ok(self.step(|state, now| state.list(scope, filter, page, now)))
    }

    async fn history(&self, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>> {
        Ok(self.step(|state, now| state.visible(scope, id, now).map(Entry::history).unwrap_or_default()))
    }

    async fn logs(&self, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>> {
        Ok(self.step(|state, now| {
            let lines = state.visible(scope, id, now).and_then(Entry::story).map(|story| &story.lines);
            let newer = |kept: &&KeptLine| kept.line.sequence > after;
            lines.into_iter().flatten().filter(newer).map(|kept| kept.line.clone()).collect()
        }))
    }

    async fn counts(&self, scope: Scope) -> Result<Counts> {
        Ok(self.step(|state, _| state.index.counts(scope)))
    }

    async fn waiting_queues(&self) -> Result<Vec<WaitingQueue>> {
        Ok(self.step(|state, _| state.index.ready.oldest()))
    }

    async fn whereabouts(&self, scope: Scope, id: JobId) -> Result<Option<Whereabouts>> {
        Ok(self.step(|state, now| state.whereabouts(scope, id, now)))
    }

    async fn cancel(&self, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply> {
        Ok(self.step(|state, now| state.cancel(scope, id, by, reason, now)))
    }

    async fn replay(&self, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply> {
        Ok(self.step(|state, now| state.replay(scope, id, by, now)))
    }

    async fn mark_replayed(&self, scope: Scope, id: JobId, by: &str, as_job: JobId, keep: Duration) -> Result<bool> {
        Ok(self.step(|state, now| {
            let replayed = Replayed { by: by.to_owned(), at: now, as_job };
            state.mark_replayed(scope, id, replayed, now + keep)
        }))
    }

    async fn edit(&self, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply> {
        Ok(self.step(|state, now| state.edit(scope, id, by, edit, now)))
    }

    async fn purge(&self, scope: Scope, id: JobId, by: &str) -> Result<bool> {
        Ok(self.step(|state, now| state.purge(scope, id, by, now)))
    }

    async fn pause(&self, target: &PauseTarget, by: &str, reason: &str) -> Result<()> {
        self.step(|state, now| state.pause(target, by, reason, now));
        Ok(())
    }

    async fn resume(&self, target: &PauseTarget, by: &str) -> Result<bool> {
        Ok(self.step(|state, now| state.resume(target, by, now)))
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        Ok(self.step(|state, _| state.pauses.values().cloned().collect()))
    }

    async fn audit(&self, entry: AuditEntry) -> Result<()> {
        self.step(|state, now| state.push_audit(AuditEntry { at: now, ..entry }));
        Ok(())
    }

    async fn audit_log(&self, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        Ok(self.step(|state, now| state.audit_log(scope, filter, now)))
    }

    async fn record_cost(&self, scope: Scope, id: JobId, by: &str, cost: Cost) -> Result<bool> {
        Ok(self.step(|state, now| state.record_cost(scope, id, by, cost, now)))
    }

    async fn usage_by_day(&self, scope: Scope, from: &str, to: &str) -> Result<Vec<UsageRow>> {
        Ok(self.step(|state, _| state.costs.by_day(scope, from, to)))
    }

    async fn usage_events(&self, scope: Scope, after: u64, limit: usize) -> Result<Vec<UsageEvent>> {
        Ok(self.step(|state, _| state.costs.events(scope, after, limit)))
    }

    async fn data_keys(&self, scope: Scope) -> Result<Vec<DataKeyRecord>> {
        let covered = |key: &&DataKeyRecord| scope.covers(key.tenant);
        Ok(self.step(|state, _| state.data_keys.values().filter(covered).cloned().collect()))
    }

    async fn add_data_key(&self, tenant: TenantId, version: u32, wrapped: WrappedKey) -> Result<bool> {
        Ok(self.step(|state, now| {
            let new = DataKeyRecord { tenant, version, wrapped: Some(wrapped), created_at: now };
            match state.data_keys.entry((tenant, version)) {
                btree_map::Entry::Vacant(place) => {
                    place.insert(new);
                    true
                }
                btree_map::Entry::Occupied(_) => false,
            }
        }))
    }

    async fn rewrap_data_key(&self, tenant: TenantId, version: u32, old: &WrappedKey, new: WrappedKey) -> Result<bool> {
        Ok(self.step(|state, _| match state.data_keys.get_mut(&(tenant, version)) {
            Some(key) if key.wrapped.as_ref() == Some(old) => {
                key.wrapped = Some(new);
                true
            }
            _ => false,
        }))
    }

    async fn destroy_data_keys(&self, tenant: TenantId) -> Result<usize> {
        let of_tenant = (tenant, 0)..=(tenant, u32::MAX);
        Ok(self.step(|state, _| state.data_keys.range_mut(of_tenant).filter_map(|(_, key)| key.wrapped.take()).count()))
    }

    async fn add_api_key(&self, record: ApiKeyRecord) -> Result<ApiKey> {
        self.step(|state, now| {
            let key = state.access.add(record, now)?;
            let (tenant, detail) = ((!key.all_tenants).then_some(key.tenant), key.summary());
            state.write_audit(now, &key.created_by, tenant, "KEY_CREATED", &key.id, Some(detail));
            Ok(key)
        })
    }

    async fn api_keys(&self, scope: Scope) -> Result<Vec<ApiKey>> {
        Ok(self.step(|state, _| state.access.list(scope)))
    }

    async fn find_api_keys(&self, ids: &[String]) -> Result<Vec<ApiKeyRecord>> {
        Ok(self.step(|state, _| state.access.find(ids)))
    }

    async fn revoke_api_key(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        Ok(self.step(|state, now| match state.access.revoke(scope, id, now) {
            Some(key) => {
                let tenant = (!key.all_tenants).then_some(key.tenant);
                state.write_audit(now, by, tenant, "KEY_REVOKED", id, Some(key.summary()));
                true
            }
            None => false,
        }))
    }

    async fn note_api_key_uses(&self, uses: &[(String, Timestamp)]) -> Result<()> {
        self.step(|state, _| state.access.note_uses(uses));
        Ok(())
    }

    async fn setting(&self, name: &str) -> Result<Option<String>> {
        Ok(self.step(|state, _| state.access.settings.get(name).cloned()))
    }

    async fn set_setting_if_absent(&self, name: &str, value: &str) -> Result<String> {
        Ok(self
            .step(|state, _| state.access.settings.entry(name.to_owned()).or_insert_with(|| value.to_owned()).clone()))
    }

    async fn want_feed(&self, time: Duration) -> Result<()> {
        self.step(|state, now| state.feed.want(now + time));
        Ok(())
    }

    async fn feed_end(&self) -> Result<u64> {
        Ok(self.step(|state, _| state.feed.end()))
    }

    async fn read_feed(&self, ask: &FeedAsk, limit: usize) -> Result<Vec<FeedRow>> {
        Ok(self.step(|state, _| state.feed.read(ask, limit, |id| state.jobs.get(&id).map(Box::as_ref))))
    }

    async fn add_webhook(&self, record: WebhookRecord) -> Result<Webhook> {
        self.step(|state, now| {
            let webhook = state.feed.add_webhook(record, now)?;
            state.audit_webhook(now, &webhook, &webhook.created_by, "WEBHOOK_ADDED");
            Ok(webhook)
        })
    }

    async fn webhooks(&self, scope: Scope) -> Result<Vec<WebhookRecord>> {
        Ok(self.step(|state, _| state.feed.webhooks(scope)))
    }

    async fn pause_webhook(&self, scope: Scope, id: &str, paused: bool, by: &str) -> Result<bool> {
        Ok(self.step(|state, now| {
            let Some((webhook, changed)) = state.feed.pause_webhook(scope, id, paused) else { return false };
            if changed {
                let action = if paused { "WEBHOOK_PAUSED" } else { "WEBHOOK_RESUMED" };
                state.audit_webhook(now, &webhook, by, action);
            }
            true
        }))
    }

    async fn remove_webhook(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        Ok(self.step(|state, now| {
            let Some(webhook) = state.feed.remove_webhook(scope, id) else { return false };
            state.audit_webhook(now, &webhook, by, "WEBHOOK_REMOVED");
            true
        }))
    }

    async fn lead(&self, name: &str, node: NodeId, time: Duration) -> Result<Option<Lead>> {
        Ok(self.step(|state, now| state.feed.lead(name, node, time, now)))
    }

    async fn advance_lead(&self, name: &str, term: u64, cursor: u64) -> Result<bool> {
        Ok(self.step(|state, _| state.feed.advance_lead(name, term, cursor)))
    }

    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>, by: &str) -> Result<()> {
        self.step(|state, now| {
            state.set_quota(of, quota, by, now);
            *self.quotas.write() = state.quotas.clone();
        });
        Ok(())
    }

    async fn quotas(&self) -> Result<Quotas> {
        Ok(self.step(|state, _| (*state.quotas).clone()))
    }

    async fn tenant_uses(&self, scope: Scope) -> Result<Vec<TenantUse>> {
        Ok(self.step(|state, _| state.tenant_uses(scope)))
    }

    fn limited(&self, tenant: TenantId) -> Limited {
        let quotas = self.quotas.read();
        match quotas.is_empty() {
            true => Limited::default(),
            false => Limited { submits: quotas.limiting(tenant).is_some(), running: quotas.cap(tenant).is_some() },
        }
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        Ok(self.step(|state, now| state.promote(limit, now)))
    }

    async fn recover(&self, lease: Duration) -> Result<Recovered> {
        Ok(self.step(|state, now| state.recover(lease, now)))
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        Ok(self.step(|state, now| state.expire(limit, now)))
    }

    async fn open_gates(&self, limit: usize) -> Result<usize> {
        Ok(self.step(|state, now| state.open_gates(limit, now)))
    }

    async fn clean(&self, limit: usize) -> Result<usize> {
        Ok(self.step(|state, now| state.clean(limit, now)))
    }

    async fn add_activity(&self, at: Timestamp, additions: Vec<Addition>) -> Result<()> {
        self.step(|state, _| state.past.add(at, additions));
        Ok(())
    }

    async fn activity(&self, scope: Scope, resolution: Resolution, from: Timestamp) -> Result<Vec<Slice>> {
        Ok(self.step(|state, _| state.past.slices(scope, resolution, from)))
    }

    async fn sample_depth(&self) -> Result<()> {
        self.step(|state, now| state.past.sample(now, state.index.counts(Scope::ENGINE)));
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
            let (oldest_due, dead_letters) = (state.oldest_due(now), state.dead_letters());
            Vitals { oldest_due, dead_letters, ..Vitals::default() }
        }))
    }

    fn as_any(&self) -> &dyn Any {
        self
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
    nodes_made: i64,
    slots: Slots,
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
        let slot = &mut self.0[usize::from(id.machine().0)];
        slot.newest = slot.newest.max(id.created());
    }

    fn release(&mut self, slot: MachineSlot, last_seen: Timestamp) {
        let slot = &mut self.0[usize::from(slot.0)];
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

// ---- nodes

impl State {
    fn register(&mut self, info: NewNode, now: Timestamp) -> Result<NodeLease> {
        let leasable = &mut self.slots.0[..usize::from(MachineSlot::DATABASE.0)];
        let Some(slot) = leasable.iter().position(|slot| !slot.taken && slot.free_from <= now) else {
            let slots = leasable.len();
            return Err(Error::Unavailable(format!("all {slots} machine slots are taken or in quarantine")));
        };
        leasable[slot].taken = true;
        // Ids carry milliseconds, so the first one must be made in a later millisecond.
        let start = now.max(leasable[slot].newest + Duration::from_millis(1));
        self.nodes_made += 1;
        let lease = NodeLease { node: NodeId(self.nodes_made), slot: MachineSlot(slot as u16), now: start };
        let record =
            NodeRecord { node: lease.node, slot: lease.slot, info, running: 0, started_at: now, heartbeat_at: now };
        self.index.nodes.insert(lease.node, Node { record, leases: Default::default(), cancels: Default::default() });
        Ok(lease)
    }

    fn heartbeat(&mut self, node: NodeId, running: usize, now: Timestamp) -> Beat {
        let Some(node) = self.index.nodes.get_mut(&node) else { return Beat::Fenced };
        node.record.running = running;
        node.record.heartbeat_at = now;
        Beat::Alive { cancels: node.cancels.iter().map(|&(lease, job)| Fence { job, lease }).collect() }
    }

    fn deregister(&mut self, node: NodeId, now: Timestamp) {
        for id in self.jobs_of(node) {
            if !self.cancel_if_requested(id, now) {
                self.make_ready(id, Join::Front, now);
                self.tell(id, now);
            }
        }
        if let Some(node) = self.index.nodes.remove(&node) {
            self.slots.release(node.record.slot, now);
        }
    }

    fn recover(&mut self, lease: Duration, now: Timestamp) -> Recovered {
        let is_dead = |node: &&Node| node.record.heartbeat_at + lease < now;
        let dead: Vec<NodeId> = self.index.nodes.values().filter(is_dead).map(|node| node.record.node).collect();
        let mut recovered = Recovered::default();
        for node in dead {
            for id in self.jobs_of(node) {
                if !self.cancel_if_requested(id, now) {
                    self.take_back(id, now);
                    recovered.jobs.push(id);
                }
            }
            if let Some(node) = self.index.nodes.remove(&node) {
                self.slots.release(node.record.slot, node.record.heartbeat_at);
                recovered.nodes.push(node.record.node);
            }
        }
        recovered
    }

    /// Makes a job ready whose node was lost.
    fn take_back(&mut self, id: JobId, now: Timestamp) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        let Some(attempt) = lost_attempt(entry) else { return };
        let error = JobError::of(Reason::NodeUnavailable, "the node that ran the job was lost");
        entry.note_attempt(now, Status::Pending, attempt, Some(error));
        entry.recoveries = entry.recoveries.saturating_add(1);
        self.make_ready(id, Join::Front, now);
        self.tell(id, now);
    }

    /// Ends a leased job whose cancel was requested, when its node is gone.
    fn cancel_if_requested(&mut self, id: JobId, now: Timestamp) -> bool {
        let Some(entry) = self.jobs.get(&id) else { return false };
        let (Some(attempt), Place::Leased { cancel: Some(reason), .. }) = (lost_attempt(entry), &entry.place) else {
            return false;
        };
        let outcome = Outcome {
            reason: Some(reason.clone()),
            ..Outcome::new(now, Status::Canceled, attempt, Some(now + entry.keep()))
        };
        self.end(id, outcome, None, now);
        self.tell(id, now);
        true
    }

    fn node_records(&self) -> Vec<NodeRecord> {
        self.index.nodes.values().rev().map(|node| node.record.clone()).collect()
    }

    /// The jobs that a node holds, in the order of its leases.
    fn jobs_of(&self, node: NodeId) -> Vec<JobId> {
        let Some(node) = self.index.nodes.get(&node) else { return Vec::new() };
        let mut held = Vec::new();
        for lease in &node.leases {
            let jobs = self.index.leases.get(lease).map(|row| row.jobs.as_slice()).unwrap_or_default();
            held.extend(jobs.iter().filter(|id| self.lease_of(**id) == Some(*lease)));
        }
        held
    }

    fn lease_of(&self, id: JobId) -> Option<LeaseId> {
        match self.jobs.get(&id)?.place {
            Place::Leased { lease, .. } => Some(lease),
            _ => None,
        }
    }
}

/// The attempt that a node which is gone had under way.
fn lost_attempt(entry: &Entry) -> Option<Attempt> {
    match entry.place {
        Place::Leased { node, at, .. } => {
            let number = entry.attempts().saturating_add(1);
            Some(Attempt { number, node: Some(node), started_at: Some(at) })
        }
        _ => None,
    }
}

/// How many jobs of each tenant run, while a claim takes more.
struct Room {
    quotas: Arc<Quotas>,
    running: HashMap<TenantId, u64>,
}

impl Room {
    /// Counts one more job in, if it may start.
    fn take(&mut self, tenant: TenantId) -> bool {
        let Some(cap) = self.quotas.cap(tenant) else { return true };
        let running = self.running.entry(tenant).or_default();
        let may = *running < cap;
        *running += u64::from(may);
        may
    }
}

// ---- the life of a job

impl State {
    fn submit(&mut self, submit: Submit, now: Timestamp) -> Result<Vec<Submitted>> {
        self.check_ids(submit.jobs.iter().map(|job| job.id))?;
        let lease = match submit.lease {
            Some((node, lease)) => {
                self.check_lease(node, lease)?;
                // What a node that is gone submits is kept for others.
                self.index.nodes.contains_key(&node).then_some((node, lease))
            }
            None => None,
        };
        self.check_quotas(&submit.jobs, now)?;
        Ok(submit.jobs.into_iter().map(|job| self.insert(job, lease, now)).collect())
    }

    /// Refuses jobs beyond a quota, and takes their tokens. What is stored already needs no room.
    fn check_quotas(&mut self, jobs: &[NewJob], now: Timestamp) -> Result<()> {
        if self.quotas.is_empty() {
            return Ok(());
        }
        let mut wanted: BTreeMap<TenantId, Amount> = BTreeMap::new();
        for job in jobs.iter().filter(|job| self.quotas.limiting(job.tenant).is_some()) {
            if job.is_plain() || self.holder_of_keys(&Job::from(job.clone()), now).is_none() {
                wanted.entry(job.tenant).or_default().add(job.payload.as_str().len());
            }
        }
        let quotas = self.quotas.clone();
        for (tenant, wanted) in &wanted {
            let Some(quota) = quotas.limiting(*tenant) else { continue };
            let in_use = self.index.in_use(*tenant);
            let bucket =
                quota.submit_rate.map(|rate| self.buckets.entry(*tenant).or_insert_with(|| Bucket::full(rate, now)));
            admit(*tenant, quota, in_use, bucket, *wanted, now)?;
        }
        for (tenant, wanted) in wanted {
            if let Some(bucket) = self.buckets.get_mut(&tenant) {
                bucket.take(wanted.jobs);
            }
        }
        Ok(())
    }

    fn set_quota(&mut self, of: Option<TenantId>, quota: Option<&Quota>, by: &str, now: Timestamp) {
        let mut quotas = (*self.quotas).clone();
        match (of, quota) {
            (None, quota) => quotas.default = quota.cloned(),
            (Some(tenant), Some(quota)) => drop(quotas.own.insert(tenant, quota.clone())),
            (Some(tenant), None) => drop(quotas.own.remove(&tenant)),
        }
        self.index.ready.set_shares(&quotas);
        self.quotas = Arc::new(quotas);
        let action = if quota.is_some() { "QUOTA_SET" } else { "QUOTA_CLEARED" };
        let target = of.map_or_else(|| "default".to_owned(), |tenant| format!("tenant:{tenant}"));
        let detail = quota.and_then(|quota| serde_json::to_string(quota).ok());
        self.write_audit(now, by, of, action, target, detail);
    }

    fn tenant_uses(&self, scope: Scope) -> Vec<TenantUse> {
        let mut tenants: Vec<TenantId> = self.index.tenants().chain(self.quotas.own.keys().copied()).collect();
        tenants.retain(|tenant| scope.covers(*tenant));
        tenants.sort_unstable();
        tenants.dedup();
        let used = |tenant: TenantId| {
            let in_use = self.index.in_use(tenant);
            let mut used = TenantUse::new(tenant, &self.quotas);
            used.queued = in_use.jobs;
            used.running = self.index.running(tenant);
            used.bytes = used.limits_bytes().then_some(in_use.bytes);
            used
        };
        tenants.into_iter().map(used).filter(|used| used.own || used.queued > 0).collect()
    }

    /// How many more jobs of a tenant may run; `None` without a limit.
    fn running_room(&self, tenant: TenantId) -> Option<u64> {
        Some(self.quotas.cap(tenant)?.saturating_sub(self.index.running(tenant)))
    }

    /// Stores one job, unless another one has its key.
    fn insert(&mut self, job: NewJob, lease: Option<(NodeId, LeaseId)>, now: Timestamp) -> Submitted {
        let run_at = due(job.start, now);
        let job = Job::from(job);
        let id = job.id;
        self.slots.note(id);
        if let Some(id) = self.holder_of_keys(&job, now) {
            return Submitted { id, duplicate: true };
        }
        self.take_keys(&job, now);
        let place = match (lease, run_at) {
            (Some((node, lease)), None) if job.is_plain() => Place::Leased { lease, node, at: now, cancel: None },
            _ => self.first_place(&job, run_at),
        };
        let entry = Box::new(Entry::new(job, place, run_at, now));
        self.index.add(&entry);
        self.jobs.insert(id, entry);
        Submitted { id, duplicate: false }
    }

    fn first_place(&mut self, job: &Job, run_at: Option<Timestamp>) -> Place {
        if let Some(key) = job.ordering_key()
            && !self.take_ordering_key(job.tenant, key, job.id)
        {
            return Place::Gated(Box::new(Gate::OrderingKey(key.clone())));
        }
        match run_at {
            Some(at) => Place::Scheduled { at, retrying: false },
            None => {
                let position = self.index.ready.turn(&job.queue, job.priority, job.tenant, 1);
                Place::Ready { queue: None, position }
            }
        }
    }

    fn claim(&mut self, claim: &Claim, now: Timestamp) -> Result<Claimed> {
        self.check_lease(claim.node, claim.lease)?;
        if !self.index.nodes.contains_key(&claim.node) {
            return Ok(Claimed { now, jobs: Vec::new(), more: [false; 4] });
        }
        let ids = self.take_ready(claim);
        let mut jobs = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(entry) = self.jobs.get_mut(&id) else { continue };
            jobs.push(entry.claimed(claim.lease));
            self.index.claim(entry, Place::Leased { lease: claim.lease, node: claim.node, at: now, cancel: None });
        }
        let mut more = [false; 4];
        for (queue, _) in &claim.queues {
            let capped = self.quotas.has_caps();
            let may =
                |id: JobId| !capped || self.jobs.get(&id).is_some_and(|e| self.running_room(e.job.tenant) != Some(0));
            let bands = self.index.ready.bands(queue, may);
            (0..4).for_each(|b| more[b] |= bands[b]);
        }
        Ok(Claimed { now, jobs, more })
    }

    /// Takes the jobs of a claim out of their lines: each band's part, then by urgency; most urgent first.
    fn take_ready(&mut self, claim: &Claim) -> Vec<JobId> {
        let mut limits: Vec<usize> = claim.queues.iter().map(|(_, limit)| *limit).collect();
        let mut by_band: [Vec<JobId>; 4] = Default::default();
        let mut left = claim.max;
        let mut room = self.quotas.has_caps().then(|| Room {
            quotas: self.quotas.clone(),
            running: self.index.tenants().map(|tenant| (tenant, self.index.running(tenant))).collect(),
        });
        for quota in [claim.quota, [usize::MAX; 4]] {
            for band in Band::ALL {
                let mut part = quota[band.index()].min(left);
                for ((queue, _), limit) in claim.queues.iter().zip(&mut limits) {
                    let (max, into) = (part.min(*limit), &mut by_band[band.index()]);
                    let taken = match &mut room {
                        None => self.index.ready.take(queue, band, max, into),
                        Some(room) => {
                            let jobs = &self.jobs;
                            // Called for one job after the other, and a job that may start is taken.
                            let may = |id| jobs.get(&id).is_some_and(|entry| room.take(entry.job.tenant));
                            self.index.ready.take_allowed(queue, band, max, into, may)
                        }
                    };
                    *limit -= taken;
                    part -= taken;
                    left -= taken;
                }
            }
        }
        by_band.concat()
    }

    fn finish(&mut self, node: NodeId, finishes: Vec<Finish>, now: Timestamp) -> Result<Vec<Finished>> {
        let held: Vec<&Finish> = finishes.iter().filter(|finish| self.holds(node, finish.fence)).collect();
        self.check_ids(held.iter().filter_map(|finish| finish.follow_up.as_ref()).map(|job| job.id))?;
        Ok(finishes.into_iter().map(|finish| self.finish_one(node, finish, now)).collect())
    }

    fn finish_one(&mut self, node: NodeId, finish: Finish, now: Timestamp) -> Finished {
        let Finish { fence, attempt, ran, transition, follow_up, cost } = finish;
        let Some(entry) = self.held(node, fence) else { return Finished::Fenced };
        let attempt = Attempt { number: attempt, node: Some(node), started_at: Some(now - ran) };
        let cancel = match &mut entry.place {
            Place::Leased { cancel, .. } => cancel.clone(),
            _ => None,
        };
        let wanted = status_after(&transition);
        match cancel {
            Some(reason) => self.end_as_canceled(fence.job, attempt, reason, transition, now),
            None => self.carry_out(fence.job, attempt, transition, now),
        }
        let status = self.jobs.get(&fence.job).map_or(wanted, |entry| entry.status());
        if let Some(cost) = cost {
            self.add_cost(fence.job, cost, status.is_terminal(), now);
        }
        self.feed.note(fence.job, status, attempt.number, now);
        if let Some(job) = follow_up
            && status == wanted
        {
            self.insert(*job, None, now);
        }
        Finished::Accepted(status)
    }

    /// Does what `lifecycle` decided about a job that is held.
    fn carry_out(&mut self, id: JobId, attempt: Attempt, transition: Transition, now: Timestamp) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        match transition {
            Transition::Succeed { output, keep } => {
                entry.forget(true, true);
                let outcome = Outcome::new(now, Status::Succeeded, attempt, Some(now + keep));
                self.end(id, Outcome { output, ..outcome }, None, now);
            }
            Transition::Retry { failed, delay, error } => {
                entry.failed = failed;
                entry.note_attempt(now, Status::Retrying, attempt, Some(error));
                self.schedule(id, now + delay, true);
            }
            Transition::DeadLetter { reason, error } => {
                let tenant = entry.job.tenant;
                if reason == Reason::MaxRetries.as_str() {
                    let detail = Some(error.code.clone());
                    self.write_audit(now, ENGINE, Some(tenant), "JOB_EXHAUSTED_RETRIES", id, detail);
                }
                let outcome = Outcome::new(now, Status::DeadLettered, attempt, None);
                self.end(id, Outcome { reason: Some(reason.into()), ..outcome }, Some(error), now);
            }
            Transition::Cancel { reason, keep } => {
                let outcome = Outcome::new(now, Status::Canceled, attempt, Some(now + keep));
                self.end(id, Outcome { reason: Some(reason.into()), ..outcome }, None, now);
            }
            Transition::Snooze { delay } => {
                let until = now + delay;
                let note = Some(format!("snoozed until {until}"));
                let story = entry.story_mut();
                story.events.push(attempt.entry(now, Status::Scheduled, None, note));
                story.last = Some(attempt);
                self.schedule(id, until, false);
            }
            Transition::Release => self.make_ready(id, Join::Front, now),
            Transition::Park { gate } => self.park(id, gate, now),
            Transition::Route { queue } => self.make_ready_in(id, Some(queue.into()), Join::Turn, now),
        }
    }

    /// Ends a held job whose cancel was requested, whatever its attempt came to.
    fn end_as_canceled(&mut self, id: JobId, attempt: Attempt, reason: Box<str>, came_to: Transition, now: Timestamp) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let (error, keep) = match came_to {
            Transition::Succeed { keep, .. } | Transition::Cancel { keep, .. } => (None, keep),
            Transition::Retry { error, .. } | Transition::DeadLetter { error, .. } => (Some(error), entry.keep()),
            _ => (None, entry.keep()),
        };
        let outcome = Outcome::new(now, Status::Canceled, attempt, Some(now + keep));
        self.end(id, Outcome { reason: Some(reason), ..outcome }, error, now);
    }

    /// Puts a job behind a gate. A gate that is open, or that the job itself holds, does not stop it.
    fn park(&mut self, id: JobId, gate: Gate, now: Timestamp) {
        let Some(entry) = self.jobs.get(&id) else { return };
        if let Gate::OrderingKey(key) = &gate {
            let holder = self.index.ordering.get(&(entry.job.tenant, key.clone())).map(|line| line.holder);
            if holder.is_none_or(|holder| holder == id) {
                return self.make_ready(id, Join::Front, now);
            }
        }
        self.relocate(id, Place::Gated(Box::new(gate)));
    }

    fn schedule(&mut self, id: JobId, at: Timestamp, retrying: bool) {
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.run_at = Some(at);
        }
        self.relocate(id, Place::Scheduled { at, retrying });
    }

    /// Makes a job ready in its own queue, or among the suspects once a node was lost with it.
    fn make_ready(&mut self, id: JobId, join: Join, now: Timestamp) {
        let Some(queue) = self.jobs.get(&id).map(|entry| entry.waits_in()) else { return };
        self.make_ready_in(id, queue, join, now);
    }

    fn make_ready_in(&mut self, id: JobId, queue: Option<Arc<str>>, join: Join, now: Timestamp) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        entry.ready_at = now;
        let name = queue.as_deref().unwrap_or(&entry.job.queue);
        let position = match join {
            Join::Front => self.index.ready.front(name, entry.job.priority),
            Join::Turn => self.index.ready.turn(name, entry.job.priority, entry.job.tenant, 1),
        };
        self.relocate(id, Place::Ready { queue, position });
    }

    /// Ends a job and gives its ordering key to the next.
    fn end(&mut self, id: JobId, outcome: Outcome, error: Option<JobError>, now: Timestamp) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        if error.is_some() {
            entry.story_mut().error = error;
        }
        if outcome.status != Status::DeadLettered {
            // Nobody will go on from there; a dead letter may be replayed in place.
            entry.forget(false, true);
        }
        let key = entry.job.ordering_key().cloned().map(|key| (entry.job.tenant, key));
        self.relocate(id, Place::Ended(Box::new(outcome)));
        if let Some(key) = key {
            self.pass_on(key, id, now);
        }
    }

    /// Moves a job to another place: the only way in which a stored job changes its status, besides a claim.
    fn relocate(&mut self, id: JobId, to: Place) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        self.index.remove(entry);
        entry.place = to;
        self.index.add(entry);
    }

    fn holds(&self, node: NodeId, fence: Fence) -> bool {
        self.jobs.get(&fence.job).is_some_and(|entry| is_held(entry, node, fence))
    }

    /// The job, if the fence is current.
    fn held(&mut self, node: NodeId, fence: Fence) -> Option<&mut Entry> {
        self.jobs.get_mut(&fence.job).map(Box::as_mut).filter(|entry| is_held(entry, node, fence))
    }

    /// Refuses ids that are in use: a second job under one id would take the first one's place.
    fn check_ids(&self, ids: impl Iterator<Item = JobId> + Clone) -> Result<()> {
        let newest = self.jobs.last_key_value().map(|(id, _)| *id);
        let mut previous = newest;
        let in_order = ids.clone().all(|id| Some(id) > previous.replace(id));
        if in_order {
            return Ok(());
        }
        let mut seen = HashSet::default();
        for id in ids {
            if !seen.insert(id) || self.jobs.contains_key(&id) {
                return Err(Error::Internal(format!("there is already a job {id}")));
            }
        }
        Ok(())
    }

    /// Refuses a lease id that another node has made.
    fn check_lease(&self, node: NodeId, lease: LeaseId) -> Result<()> {
        match self.index.leases.get(&lease) {
            Some(row) if row.node != node => {
                Err(Error::Internal(format!("lease {} belongs to node {}", lease.0, row.node.0)))
            }
            _ => Ok(()),
        }
    }
}

fn is_held(entry: &Entry, by: NodeId, fence: Fence) -> bool {
    matches!(entry.place, Place::Leased { lease, node, .. } if lease == fence.lease && node == by)
}

/// The status a transition leads to by itself.
fn status_after(transition: &Transition) -> Status {
    match transition {
        Transition::Succeed { .. } => Status::Succeeded,
        Transition::Retry { .. } => Status::Retrying,
        Transition::DeadLetter { .. } => Status::DeadLettered,
        Transition::Cancel { .. } => Status::Canceled,
        Transition::Snooze { .. } => Status::Scheduled,
        Transition::Release | Transition::Route { .. } => Status::Pending,
        Transition::Park { .. } => Status::Blocked,
    }
}

// ---- keys

impl State {
    /// The job that has an idempotency or unique key of `job`.
    fn holder_of_keys(&self, job: &Job, now: Timestamp) -> Option<JobId> {
        self.idempotency_holder(job, now).or_else(|| self.unique_holder(job, now))
    }

    fn idempotency_holder(&self, job: &Job, now: Timestamp) -> Option<JobId> {
        let key = job.idempotency_key()?;
        let holder = *self.idempotency.get(&key)?;
        self.jobs.get(&holder).is_some_and(|entry| !entry.is_hidden(now)).then_some(holder)
    }

    fn unique_holder(&self, job: &Job, now: Timestamp) -> Option<JobId> {
        let holder = self.unique.get(&job.unique_key()?)?;
        let holds = match holder.until {
            Some(until) => now < until,
            None => self.jobs.get(&holder.id).is_some_and(|entry| !entry.status().is_terminal()),
        };
        holds.then_some(holder.id)
    }

    fn take_keys(&mut self, job: &Job, now: Timestamp) {
        if let Some(key) = job.idempotency_key() {
            self.idempotency.insert(key, job.id);
        }
        if let (Some(key), Some(unique)) = (job.unique_key(), job.unique()) {
            let until = match unique.within {
                UniqueWithin::Unfinished => None,
                UniqueWithin::Window(window) => Some(now + window),
            };
            self.unique.insert(key, UniqueHolder { id: job.id, until });
        }
    }

    /// Frees the keys of a job that is removed. A window outlives its job.
    fn free_keys(&mut self, job: &Job, now: Timestamp) {
        if let Some(key) = job.idempotency_key()
            && self.idempotency.get(&key) == Some(&job.id)
        {
            self.idempotency.remove(&key);
        }
        if let Some(key) = job.unique_key()
            && let Some(holder) = self.unique.get(&key).filter(|holder| holder.id == job.id)
        {
            match holder.until {
                Some(until) if now < until => {
                    self.unique_orphans.insert((until, job.id), key);
                }
                _ => {
                    self.unique.remove(&key);
                }
            }
        }
    }

    /// Lets a job hold an ordering key if nobody else does.
    fn take_ordering_key(&mut self, tenant: TenantId, key: &str, id: JobId) -> bool {
        let new = || OrderingKey { holder: id, waiting: Default::default() };
        self.index.ordering.entry((tenant, key.to_owned())).or_insert_with(new).holder == id
    }

    /// Gives the ordering key that `ended` held to the next job by arrival.
    fn pass_on(&mut self, key: KeyOf, ended: JobId, now: Timestamp) {
        loop {
            let Some(line) = self.index.ordering.get_mut(&key).filter(|line| line.holder == ended) else { return };
            let Some((_, next)) = line.waiting.pop_first() else {
                self.index.ordering.remove(&key);
                return;
            };
            // A job may have been parked behind a key that is not its own: it goes on without holding it.
            let holds = self.jobs.get(&next).is_some_and(|entry| entry.job.ordering_key() == Some(&key.1));
            if holds {
                line.holder = next;
            }
            self.unblock(next, now);
            if holds {
                return;
            }
        }
    }

    /// Makes a job ready whose gate has opened, or scheduled if its time has not come.
    fn unblock(&mut self, id: JobId, now: Timestamp) {
        match self.jobs.get(&id).and_then(|entry| entry.run_at).filter(|at| *at > now) {
            Some(at) => self.relocate(id, Place::Scheduled { at, retrying: false }),
            None => self.make_ready(id, Join::Turn, now),
        }
    }
}

// ---- reading

impl State {
    /// The job, if the scope covers it and its time is not over.
    fn visible(&self, scope: Scope, id: JobId, now: Timestamp) -> Option<&Entry> {
        let entry = self.jobs.get(&id)?;
        (scope.covers(entry.job.tenant) && !entry.is_hidden(now)).then_some(entry)
    }

    fn list(&self, scope: Scope, filter: &JobFilter, page: Page, now: Timestamp) -> Vec<JobRecord> {
        let upper = page.before.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let newest_first = self.jobs.range((std::ops::Bound::Unbounded, upper)).rev().map(|(_, entry)| entry.as_ref());
        // What is cheap to see comes first: a record is only made of jobs that are likely to pass.
        let may_pass = |entry: &&Entry| {
            scope.covers(entry.job.tenant)
                && !entry.is_hidden(now)
                && (filter.statuses.is_empty() || filter.statuses.contains(&entry.status()))
                && filter.handler.as_ref().is_none_or(|handler| *handler == entry.job.handler)
                && filter.matches_input(&entry.job.payload)
        };
        newest_first
            .filter(may_pass)
            .map(|entry| entry.record())
            .filter(|record| filter.matches(record))
            .skip(page.offset)
            .take(page.limit.clamp(1, Page::MAX))
            .collect()
    }

    fn whereabouts(&self, scope: Scope, id: JobId, now: Timestamp) -> Option<Whereabouts> {
        let entry = self.visible(scope, id, now)?;
        let job = &entry.job;
        let ahead = match &entry.place {
            Place::Ready { queue, position } => {
                let queue = queue.as_deref().unwrap_or(&job.queue);
                Some(self.index.ready.ahead(queue, job.priority, *position, id))
            }
            _ => None,
        };
        let key_holder = match &entry.place {
            Place::Gated(gate) => match gate.as_ref() {
                Gate::OrderingKey(key) => self.index.ordering.get(&(job.tenant, key.clone())).map(|line| line.holder),
                Gate::Pause(_) => None,
            },
            _ => None,
        };
        // Only those that stop this job: a tenant must not learn of another one's pause.
        let stops = |pause: &&Pause| match &pause.target {
            PauseTarget::All => true,
            PauseTarget::Handler(handler) => *handler == job.handler,
            PauseTarget::Tenant(tenant) => *tenant == job.tenant,
        };
        let pauses = self.pauses.values().filter(stops).cloned().collect();
        let cap = self.quotas.cap(job.tenant).filter(|_| ahead.is_some());
        let cap = cap.map(|cap| (self.index.running(job.tenant), cap));
        let nodes = self.node_records();
        Some(Whereabouts { now, record: entry.record(), ahead, key_holder, pauses, nodes, cap })
    }

    fn audit_log(&self, scope: Scope, filter: &AuditFilter, now: Timestamp) -> Vec<AuditEntry> {
        let limit = if filter.limit == 0 { DEFAULT_AUDIT_LIMIT } else { filter.limit };
        if filter.action.as_deref() == Some("JOB_SUCCEEDED") {
            return self.successes(scope, filter, limit, now);
        }
        let passes = |entry: &&AuditEntry| {
            entry.tenant.map_or(scope.tenant().is_none(), |tenant| scope.covers(tenant))
                && filter.action.as_ref().is_none_or(|action| *action == entry.action)
                && filter.target.as_ref().is_none_or(|target| *target == entry.target)
                && filter.before.is_none_or(|before| entry.sequence < before)
        };
        self.audit.iter().rev().filter(passes).take(limit).cloned().collect()
    }

    /// Audit entries of jobs that ended well, from their outcomes.
    fn successes(&self, scope: Scope, filter: &AuditFilter, limit: usize, now: Timestamp) -> Vec<AuditEntry> {
        let success = |entry: &Entry| {
            let outcome = entry.outcome().filter(|outcome| outcome.status == Status::Succeeded)?;
            Some(AuditEntry {
                sequence: entry.job.id.as_i64() as u64,
                at: outcome.at,
                actor: ENGINE.to_owned(),
                tenant: Some(entry.job.tenant),
                action: "JOB_SUCCEEDED".to_owned(),
                target: entry.job.id.to_string(),
                detail: None,
            })
        };
        let ids: Vec<JobId> = match filter.target.as_deref() {
            Some(target) => target.parse().into_iter().collect(),
            None => self.jobs.keys().rev().copied().collect(),
        };
        let older = |entry: &AuditEntry| filter.before.is_none_or(|before| entry.sequence < before);
        let visible = ids.into_iter().filter_map(|id| self.visible(scope, id, now));
        visible.filter_map(success).filter(older).take(limit).collect()
    }
}

// ---- steering

impl State {
    fn cancel(&mut self, scope: Scope, id: JobId, by: &str, reason: &str, now: Timestamp) -> CancelReply {
        let Some(entry) = self.visible(scope, id, now) else { return CancelReply::NotFound };
        match &entry.place {
            Place::Ended(outcome) => CancelReply::AlreadyFinished(outcome.status),
            Place::Leased { cancel: Some(_), .. } => CancelReply::Requested,
            Place::Leased { .. } => {
                self.request_cancel(id, by, reason, now);
                CancelReply::Requested
            }
            _ => {
                self.write_audit(now, by, Some(entry.job.tenant), "JOB_CANCELED", id, Some(reason.to_owned()));
                self.cancel_waiting(id, reason, Some(format!("canceled by {by}")), now);
                CancelReply::Canceled
            }
        }
    }

    fn request_cancel(&mut self, id: JobId, by: &str, reason: &str, now: Timestamp) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        let number = entry.attempts().saturating_add(1);
        let Place::Leased { lease, node, cancel, .. } = &mut entry.place else { return };
        *cancel = Some(reason.into());
        let attempt = Attempt { number, node: Some(*node), started_at: None };
        if let Some(node) = self.index.nodes.get_mut(node) {
            node.cancels.insert((*lease, id));
        }
        let note = format!("cancel requested by {by}: {reason}");
        entry.story_mut().events.push(attempt.entry(now, Status::Running, None, Some(note)));
        let tenant = entry.job.tenant;
        self.write_audit(now, by, Some(tenant), "JOB_CANCELED", id, Some(format!("requested: {reason}")));
    }

    fn cancel_waiting(&mut self, id: JobId, reason: &str, note: Option<String>, now: Timestamp) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let attempt = Attempt { number: entry.attempts(), node: None, started_at: None };
        let outcome = Outcome::new(now, Status::Canceled, attempt, Some(now + entry.keep()));
        self.end(id, Outcome { reason: Some(reason.into()), note: note.map(String::into), ..outcome }, None, now);
        self.tell(id, now);
    }

    fn replay(&mut self, scope: Scope, id: JobId, by: &str, now: Timestamp) -> ReplayReply {
        let Some(entry) = self.visible(scope, id, now) else { return ReplayReply::NotFound };
        let Some(outcome) = entry.outcome().filter(|outcome| outcome.status == Status::DeadLettered) else {
            return ReplayReply::NotDead(entry.status());
        };
        let died = entry.last_entry(outcome);
        let last = outcome.attempt;
        let (tenant, key) = (entry.job.tenant, entry.job.ordering_key().cloned());
        let blocked_by = key.filter(|key| !self.take_ordering_key(tenant, key, id));
        let Some(entry) = self.jobs.get_mut(&id) else { return ReplayReply::NotFound };
        let status = if blocked_by.is_some() { Status::Blocked } else { Status::Pending };
        let replayed = HistoryEntry { note: Some(format!("replayed by {by}")), ..HistoryEntry::new(now, status, 0) };
        let story = entry.story_mut();
        story.events.extend([died, replayed]);
        story.last = Some(last);
        story.error = None;
        (entry.failed, entry.recoveries) = (0, 0);
        match blocked_by {
            Some(key) => self.relocate(id, Place::Gated(Box::new(Gate::OrderingKey(key)))),
            None => self.make_ready(id, Join::Turn, now),
        }
        self.write_audit(now, by, Some(tenant), "JOB_REPLAYED", id, None);
        self.tell(id, now);
        ReplayReply::Replayed
    }

    fn mark_replayed(&mut self, scope: Scope, id: JobId, replayed: Replayed, purge_at: Timestamp) -> bool {
        let now = replayed.at;
        let dead = self.visible(scope, id, now).is_some_and(|entry| entry.status() == Status::DeadLettered);
        let Some(entry) = self.jobs.get_mut(&id).filter(|_| dead) else { return false };
        self.index.remove(entry);
        let (tenant, by, detail) = (entry.job.tenant, replayed.by.clone(), format!("as {}", replayed.as_job));
        if let Place::Ended(outcome) = &mut entry.place {
            outcome.replayed = Some(Box::new(replayed));
            outcome.purge_at = Some(purge_at);
        }
        self.index.add(entry);
        self.write_audit(now, &by, Some(tenant), "JOB_REPLAYED", id, Some(detail));
        true
    }

    fn edit(&mut self, scope: Scope, id: JobId, by: &str, edit: &Edit, now: Timestamp) -> EditReply {
        let Some(entry) = self.visible(scope, id, now) else { return EditReply::NotFound };
        let (before, tenant) = (entry.status(), entry.job.tenant);
        if !can_edit(before) {
            return EditReply::NotWaiting(before);
        }
        let gate = match &entry.place {
            Place::Gated(gate) => Some(gate.as_ref().clone()),
            _ => None,
        };
        let to = edit.start.map(|start| after_edit(before, gate.as_ref(), start, now));
        if let (Some(Move::Refused), Some(gate)) = (to, gate) {
            return EditReply::Blocked(gate);
        }
        self.change(id, edit);
        match to {
            Some(Move::Ready) if before != Status::Pending => {
                self.set_run_at(id, now);
                self.make_ready(id, Join::Turn, now);
            }
            Some(Move::Until(at)) => self.schedule(id, at, before == Status::Retrying),
            Some(Move::Behind(due)) => self.set_run_at(id, due.unwrap_or(now)),
            Some(Move::Ready | Move::Refused) | None => {}
        }
        let Some(entry) = self.jobs.get_mut(&id) else { return EditReply::NotFound };
        let (status, attempt) = (entry.status(), entry.attempts());
        let note = Some(format!("edited by {by}: {edit}"));
        entry.story_mut().events.push(HistoryEntry { note, ..HistoryEntry::new(now, status, attempt) });
        self.write_audit(now, by, Some(tenant), "JOB_EDITED", id, Some(edit.to_string()));
        EditReply::Edited(status)
    }

    /// Gives a waiting job another input or priority; a ready one takes its turn in the other line.
    fn change(&mut self, id: JobId, edit: &Edit) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        // Out of every index while that changes by which it is found there.
        self.index.remove(entry);
        if let Some(input) = &edit.input {
            entry.job.payload = input.clone();
        }
        if let Some(priority) = edit.priority.filter(|priority| *priority != entry.job.priority) {
            entry.job.priority = priority;
            if let Place::Ready { queue, position } = &mut entry.place {
                let queue = queue.as_deref().unwrap_or(&entry.job.queue);
                *position = self.index.ready.turn(queue, priority, entry.job.tenant, 1);
            }
        }
        self.index.add(entry);
    }

    fn set_run_at(&mut self, id: JobId, at: Timestamp) {
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.run_at = Some(at);
        }
    }

    fn record_cost(&mut self, scope: Scope, id: JobId, by: &str, cost: Cost, now: Timestamp) -> bool {
        let Some(entry) = self.visible(scope, id, now) else { return false };
        let (tenant, Cost { cents, units }) = (entry.job.tenant, cost);
        self.add_cost(id, cost, false, now);
        self.write_audit(now, by, Some(tenant), "COST_RECORDED", id, Some(format!("{cents} cents, {units} units")));
        true
    }

    /// Adds what a job has cost.
    fn add_cost(&mut self, id: JobId, cost: Cost, ended: bool, now: Timestamp) {
        if let Some(entry) = self.jobs.get(&id) {
            self.costs.add(entry.job.tenant, &entry.job.handler, id, cost, ended, now);
        }
    }

    fn purge(&mut self, scope: Scope, id: JobId, by: &str, now: Timestamp) -> bool {
        let Some(entry) = self.visible(scope, id, now).filter(|entry| entry.status().is_terminal()) else {
            return false;
        };
        let tenant = entry.job.tenant;
        self.remove(id, now);
        self.write_audit(now, by, Some(tenant), "JOB_PURGED", id, None);
        true
    }

    /// Removes an ended job for good. It stays counted.
    fn remove(&mut self, id: JobId, now: Timestamp) {
        let Some(entry) = self.jobs.remove(&id) else { return };
        self.index.remove(&entry);
        self.index.count(entry.job.tenant, entry.status(), 1);
        self.free_keys(&entry.job, now);
    }

    fn pause(&mut self, target: &PauseTarget, by: &str, reason: &str, now: Timestamp) {
        if self.pauses.contains_key(target) {
            return;
        }
        let pause = Pause { target: target.clone(), by: by.to_owned(), reason: reason.to_owned(), at: now };
        self.pauses.insert(target.clone(), pause);
        self.write_audit(now, by, tenant_of(target), "PAUSED", target.name(), Some(reason.to_owned()));
    }

    fn resume(&mut self, target: &PauseTarget, by: &str, now: Timestamp) -> bool {
        if self.pauses.remove(target).is_none() {
            return false;
        }
        self.write_audit(now, by, tenant_of(target), "RESUMED", target.name(), None);
        let parked: Vec<JobId> = self.index.parked.get(target).into_iter().flatten().copied().collect();
        parked.into_iter().for_each(|id| self.make_ready(id, Join::Turn, now));
        true
    }

    /// Keeps a status event of a job as it is now, if somebody wants it.
    fn tell(&mut self, id: JobId, now: Timestamp) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let attempt = entry.outcome().map_or(entry.attempts(), |outcome| outcome.attempt.number);
        self.feed.note(id, entry.status(), attempt, now);
    }

    fn audit_webhook(&mut self, now: Timestamp, webhook: &Webhook, by: &str, action: &str) {
        self.write_audit(now, by, Some(webhook.tenant), action, &webhook.id, Some(webhook.url.clone()));
    }

    fn write_audit(
        &mut self,
        now: Timestamp,
        actor: &str,
        tenant: Option<TenantId>,
        action: &str,
        target: impl fmt::Display,
        detail: Option<String>,
    ) {
        let (actor, action, target) = (actor.to_owned(), action.to_owned(), target.to_string());
        self.push_audit(AuditEntry { sequence: 0, at: now, actor, tenant, action, target, detail });
    }

    fn push_audit(&mut self, entry: AuditEntry) {
        let sequence = self.audit.len() as u64 + 1;
        self.audit.push(AuditEntry { sequence, ..entry });
    }
}

fn tenant_of(target: &PauseTarget) -> Option<TenantId> {
    match target {
        PauseTarget::Tenant(tenant) => Some(*tenant),
        _ => None,
    }
}

// ---- maintenance

impl State {
    fn promote(&mut self, limit: usize, now: Timestamp) -> Promoted {
        let due: Vec<JobId> =
            self.index.scheduled.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect();
        due.iter().for_each(|id| self.make_ready(*id, Join::Turn, now));
        let next_in = self.index.scheduled.first().map(|(at, _)| at.since(now));
        Promoted { jobs: due.len(), next_in }
    }

    fn expire(&mut self, limit: usize, now: Timestamp) -> usize {
        let expired: Vec<JobId> =
            self.index.expiries.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect();
        expired.iter().for_each(|id| self.cancel_waiting(*id, Reason::Expired.as_str(), None, now));
        expired.len()
    }

    /// Ordering keys are passed on by the step that ends their holder, so only pauses can leave jobs behind.
    fn open_gates(&mut self, limit: usize, now: Timestamp) -> usize {
        let over = self.index.parked.iter().filter(|(target, _)| !self.pauses.contains_key(target));
        let parked: Vec<JobId> = over.flat_map(|(_, jobs)| jobs).take(limit).copied().collect();
        parked.iter().for_each(|id| self.make_ready(*id, Join::Turn, now));
        parked.len()
    }

    fn clean(&mut self, limit: usize, now: Timestamp) -> usize {
        self.feed.clean(now);
        let over: Vec<JobId> =
            self.index.purges.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect();
        over.iter().for_each(|id| self.remove(*id, now));
        self.costs.clean(limit, now);
        for _ in 0..limit {
            let Some(orphan) = self.unique_orphans.first_entry().filter(|orphan| orphan.key().0 <= now) else { break };
            let ((_, id), key) = orphan.remove_entry();
            if self.unique.get(&key).is_some_and(|holder| holder.id == id) {
                self.unique.remove(&key);
            }
        }
        over.len()
    }
}

#[cfg(test)]
mod tests;
