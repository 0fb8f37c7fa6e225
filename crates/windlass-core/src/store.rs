//! What a store of jobs does: one trait, domain types in and out. Implemented by `memory`, `windlass-sqlite` and
//! `windlass-postgres`; called by the service and the runtime. A store never decides what becomes of a job: it carries
//! out transitions that `lifecycle` decided, and refuses every write whose fence is not current.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::access::{ApiKey, SecretHash};
use crate::activity::{Addition, Resolution, Slice, Waiting};
use crate::clock::Timestamp;
use crate::edit::Edit;
use crate::error::{InvalidInput, JobError};
use crate::failures::{Failing, failing_by_lists};
use crate::filter::JobFilter;
use crate::health::{Checkup, Finding, HeldSnapshot, Vitals};
use crate::id::{JobId, MachineSlot};
use crate::job::{ClaimedJob, Found, HistoryEntry, JobRecord, NewJob, Page, Progress, Status};
use crate::logs::{LogLevel, LogLine};
use crate::payload::Payload;
use crate::quota::{Quota, QuotaExceeded, Quotas, TenantUse};
use crate::tenant::{Scope, TenantId};
use crate::usage::{Cost, UsageEvent, UsageRow};
use crate::webhook::Webhook;

/// The durable half of Windlass. Every method is atomic: it happened, or it did not, or the error says
/// [`Error::Unknown`]. Times come from the store's clock, never from the caller's.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// A short name for people: `memory`, `sqlite`, `postgres`.
    fn name(&self) -> &'static str;

    /// The store's time.
    async fn now(&self) -> Result<Timestamp>;

    /// How many submits (and how many finishes) the runtime may have under way at once. 1 where one writer takes all.
    fn writers(&self) -> usize {
        1
    }

    /// After how long every call has been answered, if only with an error.
    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }

    // ---- nodes

    /// Gives a process an identity of its own and a machine slot that no live process has, and none had in the last
    /// [`SLOT_QUARANTINE`]. The time in the reply is later than that of every id the slot made before.
    async fn register(&self, node: NewNode) -> Result<NodeLease>;

    /// Renews the node. A node that was declared dead gets [`Beat::Fenced`] and must stop its jobs.
    async fn heartbeat(&self, node: NodeId, running: usize) -> Result<Beat>;

    /// The jobs that the node holds, in any order: what it has claimed or bore, and has not finished.
    async fn held(&self, node: NodeId) -> Result<Vec<Fence>>;

    /// Ends the node: what it still holds is released without cost, its slot goes into quarantine.
    async fn deregister(&self, node: NodeId) -> Result<()>;

    /// Every registered process, newest first.
    async fn nodes(&self) -> Result<Vec<NodeRecord>>;

    // ---- the life of a job

    /// Stores the jobs, in order, all or none, and answers for each with its id or that of the job that has its key.
    /// Within the tenants' quotas: those of one tenant beyond its quota refuse the whole call.
    /// Jobs whose `start` is not ahead become ready (or blocked behind their ordering key); with `lease`, the plain
    /// ones are born leased to that node instead, with 0 failures, and are running.
    async fn submit(&self, submit: Submit) -> Result<Vec<Submitted>>;

    /// Takes at most `max` ready jobs under one new lease. First up to `quota[b]` of each band, then from the most
    /// urgent band on until `max`, and never more than a queue's own limit. Within a band: higher priority first, then
    /// each tenant in its turn, then oldest first. Jobs of a tenant that has as many running as it may are passed over,
    /// and do not count as more.
    async fn claim(&self, claim: Claim) -> Result<Claimed>;

    /// Carries out transitions, each only if the job is still in the lease it names (its fence). Answers in order.
    /// A job whose cancel was requested ends as canceled whatever its transition says.
    /// A job that goes back to ready or scheduled waits in its own queue, or in [`suspect_queue`] once a node was lost
    /// with it.
    async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>>;

    /// Keeps the latest progress of each job, fenced. Answers in order: false means the fence is lost.
    async fn report_progress(&self, node: NodeId, reports: Vec<ProgressReport>) -> Result<Vec<bool>>;

    /// Keeps log lines of each job, fenced; of a job the newest [`LOG_LINES`](crate::LOG_LINES). A line whose number
    /// under its lease is kept already is not kept twice. Answers in order: false means the fence is lost.
    async fn add_logs(&self, node: NodeId, reports: Vec<LogReport>) -> Result<Vec<bool>>;

    /// Keeps a checkpoint, fenced. False means the fence is lost.
    async fn save_checkpoint(&self, node: NodeId, fence: Fence, data: Payload) -> Result<bool>;

    // ---- reading

    /// The jobs with these ids that the scope covers, in any order.
    async fn get(&self, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>>;

    /// A job's input.
    async fn input(&self, scope: Scope, id: JobId) -> Result<Option<Payload>>;

    /// Jobs that pass the filter, newest first.
    async fn list(&self, scope: Scope, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>>;

    /// The same, but looks only at the newest `look_at` candidates, so that a page for something rare costs as much as
    /// any other. Candidates are the jobs of the scope, or those in a wanted status where these are kept apart. The
    /// page's offset does not count.
    async fn search(&self, scope: Scope, filter: &JobFilter, page: Page, look_at: usize) -> Result<Found> {
        let _ = look_at;
        let jobs = self.list(scope, filter, Page { offset: 0, ..page }).await?;
        Ok(Found::new(jobs, page.limit, None))
    }

    /// How many jobs pass the filter, counted up to `cap`: for previews, so never more than someone asked for.
    async fn count(&self, scope: Scope, filter: &JobFilter, cap: usize) -> Result<u64> {
        let (mut page, mut counted) = (Page::first(Page::MAX), 0);
        while counted < cap {
            page.limit = (cap - counted).min(Page::MAX);
            let records = self.list(scope, filter, page).await?;
            counted += records.len();
            page.before = records.last().map(|record| record.id);
            if records.len() < page.limit {
                break;
            }
        }
        Ok(counted as u64)
    }

    /// Of the jobs that pass the filter, the `newest` dead letters that nobody has replayed, and as many of those that
    /// wait for a retry (BEY-3); in any order.
    async fn failing(&self, scope: Scope, filter: &JobFilter, newest: usize) -> Result<Vec<Failing>> {
        failing_by_lists(self, scope, filter, newest).await
    }

    /// Everything that happened to a job, oldest first; empty if there is none.
    async fn history(&self, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>>;

    /// The log lines of a job that come after a sequence, oldest first; none if it is not there.
    async fn logs(&self, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>>;

    /// How many jobs are in each status. Ended ones are counted as they end and stay counted after they are purged.
    async fn counts(&self, scope: Scope) -> Result<Counts>;

    /// What `why` needs to know about a job.
    async fn whereabouts(&self, scope: Scope, id: JobId) -> Result<Option<Whereabouts>>;

    /// Queues that have ready jobs, with the oldest of each (the lowest id of its first chunks; a hint, not exact).
    async fn waiting_queues(&self) -> Result<Vec<WaitingQueue>>;

    // ---- steering

    /// Cancels a job: at once while it waits; by a request that its node carries out while it runs.
    async fn cancel(&self, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply>;

    /// Puts a dead letter back to work in place, with no failures and no recoveries counted. Marks it replayed.
    async fn replay(&self, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply>;

    /// Marks a dead letter as replayed by another job (which the caller has submitted); it is purged after `keep`.
    async fn mark_replayed(&self, scope: Scope, id: JobId, by: &str, as_job: JobId, keep: Duration) -> Result<bool>;

    /// Changes a waiting job: input, priority and start, as [`after_edit`](crate::edit::after_edit) decides, with an
    /// entry in its history and `JOB_EDITED` in the audit log. Under the lock of its place: a claim has the job before,
    /// or all of the edit. Larger input is counted against a quota, never refused.
    async fn edit(&self, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply>;

    /// Removes an ended job now. False if it is not there or has not ended.
    async fn purge(&self, scope: Scope, id: JobId, by: &str) -> Result<bool>;

    /// Stops starting jobs of `target`, until it is resumed. Running ones go on. Pausing twice keeps the first.
    async fn pause(&self, target: &PauseTarget, by: &str, reason: &str) -> Result<()>;

    /// Ends a pause; false if there was none. Jobs it parked become ready again (also by [`Store::open_gates`]).
    async fn resume(&self, target: &PauseTarget, by: &str) -> Result<bool>;

    /// The pauses in force.
    async fn pauses(&self) -> Result<Vec<Pause>>;

    /// Adds an entry to the audit log.
    async fn audit(&self, entry: AuditEntry) -> Result<()>;

    /// The audit log, newest first.
    async fn audit_log(&self, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>>;

    /// Sets or clears (`None`) the policy of a tenant, or the default one (`of` is `None`), with an audit entry
    /// `QUOTA_SET` or `QUOTA_CLEARED`. Other processes follow within about a second.
    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>, by: &str) -> Result<()>;

    /// The policies in force.
    async fn quotas(&self) -> Result<Quotas>;

    /// What the scope's tenants use: those that have unfinished jobs or a policy of their own, in order of tenant.
    /// Reads all live jobs: for people, not for every submit.
    async fn tenant_uses(&self, scope: Scope) -> Result<Vec<TenantUse>>;

    /// What of a tenant is limited. Asked for every submitted job: answered from memory, as last heard.
    fn limited(&self, tenant: TenantId) -> Limited;

    // ---- what jobs cost (OPS-6); attempts record it with their finish

    /// Records a cost of a job, whatever its status, with an audit entry `COST_RECORDED`. False if it is not there.
    async fn record_cost(&self, scope: Scope, id: JobId, by: &str, cost: Cost) -> Result<bool>;

    /// The costs from one day to another (as `2026-11-16`), both included; by day, tenant and handler.
    async fn usage_by_day(&self, scope: Scope, from: &str, to: &str) -> Result<Vec<UsageRow>>;

    /// The costs one by one, with a sequence above `after`, in its order, at most `limit`. What was committed before an
    /// answer is in it or has a higher sequence than all of it.
    async fn usage_events(&self, scope: Scope, after: u64, limit: usize) -> Result<Vec<UsageEvent>>;

    // ---- keys of sealed jobs (SEC-2); a store sees only wrapped ones

    /// The data keys of the scope's tenants, destroyed ones included.
    async fn data_keys(&self, scope: Scope) -> Result<Vec<DataKeyRecord>> {
        let _ = scope;
        Err(Error::Refused("this store keeps no keys".into()))
    }

    /// Keeps a new version of a tenant's data key. False if that version has been there, destroyed or not.
    async fn add_data_key(&self, tenant: TenantId, version: u32, wrapped: WrappedKey) -> Result<bool> {
        let _ = (tenant, version, wrapped);
        Err(Error::Refused("this store keeps no keys".into()))
    }

    /// Replaces the wrapping `old` of a data key by `new`. False if that is not its wrapping any more.
    async fn rewrap_data_key(&self, tenant: TenantId, version: u32, old: &WrappedKey, new: WrappedKey) -> Result<bool> {
        let _ = (tenant, version, old, new);
        Err(Error::Refused("this store keeps no keys".into()))
    }

    /// Removes the data keys of a tenant for good, and keeps only that there were such versions. Answers how many.
    async fn destroy_data_keys(&self, tenant: TenantId) -> Result<usize> {
        let _ = tenant;
        Err(Error::Refused("this store keeps no keys".into()))
    }

    // ---- callers from outside (API-3); a store sees hashes of secrets only

    /// Keeps a new API key, made now by its `created_by`, with an audit entry `KEY_CREATED` in the same step. Answers
    /// with the key as it is kept.
    async fn add_api_key(&self, record: ApiKeyRecord) -> Result<ApiKey> {
        let _ = record;
        Err(Error::Refused("this store keeps no API keys".into()))
    }

    /// The API keys of the scope, also revoked and expired ones, newest first, at most [`API_KEYS_LISTED`]. Those for
    /// all tenants are in [`Scope::All`] only.
    async fn api_keys(&self, scope: Scope) -> Result<Vec<ApiKey>> {
        let _ = scope;
        Err(Error::Refused("this store keeps no API keys".into()))
    }

    /// The API keys with these ids, of every tenant, with their hashes; in any order.
    async fn find_api_keys(&self, ids: &[String]) -> Result<Vec<ApiKeyRecord>> {
        let _ = ids;
        Err(Error::Refused("this store keeps no API keys".into()))
    }

    /// Revokes an API key for good, with an audit entry `KEY_REVOKED` in the same step. False if the scope has none
    /// with this id, or it was revoked before.
    async fn revoke_api_key(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        let _ = (scope, id, by);
        Err(Error::Refused("this store keeps no API keys".into()))
    }

    /// Notes when API keys were used. A time that is not later than the one kept changes nothing.
    async fn note_api_key_uses(&self, uses: &[(String, Timestamp)]) -> Result<()> {
        let _ = uses;
        Err(Error::Refused("this store keeps no API keys".into()))
    }

    /// A small value that all processes share, such as the secret of a server's cookies.
    async fn setting(&self, name: &str) -> Result<Option<String>> {
        let _ = name;
        Err(Error::Refused("this store keeps no settings".into()))
    }

    /// Keeps a value unless there is one. Answers with the one that is kept: of many who call at once, all get the same.
    async fn set_setting_if_absent(&self, name: &str, value: &str) -> Result<String> {
        let _ = (name, value);
        Err(Error::Refused("this store keeps no settings".into()))
    }

    // ---- status events of every node (OPS-8), and who is told of them

    /// Has status events kept for so long from now on: every change that [`Store::finish`], a cancel, a replay, a
    /// recovery or an expiry brings, with the change itself. Other processes follow within about a second. While nobody
    /// wants them, none are kept and nothing is done.
    async fn want_feed(&self, time: Duration) -> Result<()> {
        let _ = time;
        Err(Error::Refused("this store keeps no status events".into()))
    }

    /// The largest sequence that was given out, 0 if none was.
    async fn feed_end(&self) -> Result<u64> {
        Err(Error::Refused("this store keeps no status events".into()))
    }

    /// The first `limit` status events that are asked for, in order. They are kept for an hour, the newest
    /// [`FEED_EVENTS_KEPT`] at most. A change may be seen before one of a lower sequence; a sequence may stay without one.
    async fn read_feed(&self, ask: &FeedAsk, limit: usize) -> Result<Vec<FeedRow>> {
        let _ = (ask, limit);
        Err(Error::Refused("this store keeps no status events".into()))
    }

    /// Keeps a webhook, made now by its `created_by`, with an audit entry `WEBHOOK_ADDED`.
    async fn add_webhook(&self, record: WebhookRecord) -> Result<Webhook> {
        let _ = record;
        Err(Error::Refused("this store keeps no webhooks".into()))
    }

    /// The webhooks of the scope, oldest first.
    async fn webhooks(&self, scope: Scope) -> Result<Vec<WebhookRecord>> {
        let _ = scope;
        Ok(Vec::new())
    }

    /// Pauses a webhook or lets it go on, with an audit entry `WEBHOOK_PAUSED` or `WEBHOOK_RESUMED` where that changes
    /// anything. False if the scope has none with this id.
    async fn pause_webhook(&self, scope: Scope, id: &str, paused: bool, by: &str) -> Result<bool> {
        let _ = (scope, id, paused, by);
        Err(Error::Refused("this store keeps no webhooks".into()))
    }

    /// Removes a webhook, with an audit entry `WEBHOOK_REMOVED`. False if the scope has none with this id.
    async fn remove_webhook(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        let _ = (scope, id, by);
        Err(Error::Refused("this store keeps no webhooks".into()))
    }

    /// Takes the lead called `name` for so long, or renews it; `None` while another node has it. Each node that takes it
    /// from another begins a new term.
    async fn lead(&self, name: &str, node: NodeId, time: Duration) -> Result<Option<Lead>> {
        let _ = (name, node, time);
        Ok(None)
    }

    /// Keeps how far a lead has come, if its term is still the last. False if it is not.
    async fn advance_lead(&self, name: &str, term: u64, cursor: u64) -> Result<bool> {
        let _ = (name, term, cursor);
        Ok(false)
    }

    // ---- maintenance: every step is bounded, repeatable, and safe on several nodes at once

    /// What there is to do, in one look: so that an idle node asks one question instead of one per step. A wrong yes
    /// costs a step that finds nothing; a wrong no delays the step until the next look. `lease` is as in
    /// [`Store::recover`]; `queues` are those an idle node waits on, empty if it does not wait. Without a quick way to
    /// tell, everything may have work.
    async fn survey(&self, lease: Duration, queues: &[String]) -> Result<Survey> {
        let _ = lease;
        let webhooks = !self.webhooks(Scope::ENGINE).await?.is_empty();
        let pauses = self.pauses().await?;
        Ok(Survey { pauses, ready: !queues.is_empty(), due: true, lost: true, untidy: true, webhooks })
    }

    /// Makes due jobs ready, at most `limit`.
    async fn promote(&self, limit: usize) -> Result<Promoted>;

    /// Declares nodes dead that have not been renewed for `lease`; their jobs become ready again, with one more recovery
    /// and in the queue [`suspect_queue`], or canceled where a cancel was requested.
    async fn recover(&self, lease: Duration) -> Result<Recovered>;

    /// Cancels waiting jobs whose `expires_at` has passed, with the reason `expired`; at most `limit`.
    async fn expire(&self, limit: usize) -> Result<usize>;

    /// Makes jobs ready whose gate has opened: the next of an ordering key whose holder has ended, those parked by a
    /// pause that is over. Repairs what a crash between finish and release left behind. At most `limit`.
    async fn open_gates(&self, limit: usize) -> Result<usize>;

    /// Removes ended jobs whose time is over, at most `limit`, and their side rows. Answers how many. Also old costs:
    /// [`USAGE_EVENTS_KEPT`](crate::USAGE_EVENTS_KEPT), [`USAGE_KEPT`](crate::USAGE_KEPT).
    async fn clean(&self, limit: usize) -> Result<usize>;

    /// What keeps the store from removing dead rows, longer than this. Nothing where there is no such thing.
    async fn held_snapshots(&self, longer_than: Duration) -> Result<Vec<HeldSnapshot>> {
        let _ = longer_than;
        Ok(Vec::new())
    }

    /// Looks at the store itself: its settings, its schema, its room (BEY-10). Changes nothing.
    async fn examine(&self, checkup: &Checkup) -> Result<Vec<Finding>> {
        let _ = checkup;
        Ok(Vec::new())
    }

    // ---- the past, for charts: counts that nodes add up, kept in buckets. Losing some costs a chart, never a job

    /// Adds what happened at `at` to the bucket of each [`Resolution`].
    async fn add_activity(&self, at: Timestamp, additions: Vec<Addition>) -> Result<()> {
        let _ = (at, additions);
        Ok(())
    }

    /// What is kept in buckets that begin at `from` or later: of a tenant's own jobs, or of all tenants' together. In any
    /// order.
    async fn activity(&self, scope: Scope, resolution: Resolution, from: Timestamp) -> Result<Vec<Slice>> {
        let _ = (scope, resolution, from);
        Ok(Vec::new())
    }

    /// Counts all jobs by status for the present bucket of each [`Resolution`], unless somebody has, or nothing has
    /// changed for less than [`DEPTH_HOLDS`](crate::activity::DEPTH_HOLDS). Several nodes may ask at once. Reads what
    /// waits and runs, no ended job.
    async fn sample_depth(&self) -> Result<()> {
        Ok(())
    }

    /// What [`Store::sample_depth`] saw since `from`, oldest first.
    async fn depths(&self, resolution: Resolution, from: Timestamp) -> Result<Vec<(Timestamp, Counts)>> {
        let _ = (resolution, from);
        Ok(Vec::new())
    }

    /// Removes buckets whose time is over ([`Resolution::keep`]), at most `limit` rows. Answers how many.
    async fn clean_activity(&self, limit: usize) -> Result<usize> {
        let _ = limit;
        Ok(0)
    }

    /// What waits and runs by queue and handler (BEY-14): exact while few jobs wait, and estimated from a sample of
    /// chunks where they are many. One handler may be there once for each queue.
    async fn backlog(&self, scope: Scope) -> Result<Vec<Waiting>> {
        let _ = scope;
        Ok(Vec::new())
    }

    /// How the store is: what people watch while it works. Cheap enough for every few seconds.
    async fn vitals(&self) -> Result<Vitals> {
        Ok(Vitals::default())
    }

    /// Waits until something may have become ready through another process, or for ever. A hint: it may be late or
    /// early, and nothing depends on it.
    async fn wait_for_wake(&self) {
        std::future::pending::<()>().await;
    }

    /// Tells other processes that jobs may be ready in this store. Cheap to call often; coalesced by the store.
    fn wake_others(&self) {}

    /// Store-specific abilities, such as handing out transactions.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A slot stays unused this long after its holder's last sign of life, so that ids which the holder borrowed from the
/// future cannot be made again.
pub const SLOT_QUARANTINE: Duration = Duration::from_secs(30);

/// The queue of jobs whose node was lost while it held them. Nodes take them one at a time, so that a job that kills its
/// process takes no other suspect along.
pub fn suspect_queue(queue: &str) -> String {
    format!("suspect:{queue}")
}

/// How many jobs one ready chunk holds at most.
pub const CHUNK_JOBS: usize = 128;

/// The result of a store call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a store call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store could not be reached or was too slow, and nothing was written. Safe to repeat.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The connection was lost while a write was under way: it may have happened. Safe to repeat with a key.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
    /// The store has no room left. Nothing was written.
    #[error("the store is full: {0}")]
    Full(String),
    /// A tenant's quota does not allow the submit. Nothing was written.
    #[error(transparent)]
    QuotaExceeded(#[from] QuotaExceeded),
    /// A field cannot be stored.
    #[error(transparent)]
    InvalidInput(#[from] InvalidInput),
    /// The file or database belongs to another process or to a version of Windlass that is newer, the login may not do
    /// this, or a failover has left the server behind. Nothing was written; someone has to see to it.
    #[error("{0}")]
    Refused(String),
    /// A bug, or a store that someone else has changed.
    #[error("the store answered unexpectedly: {0}")]
    Internal(String),
}

impl Error {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Unavailable(_) => "unavailable",
            Error::Unknown(_) => "unknown_outcome",
            Error::Full(_) => "storage_full",
            Error::QuotaExceeded(_) => "quota_exceeded",
            Error::InvalidInput(_) => "invalid_input",
            Error::Refused(_) => "refused",
            Error::Internal(_) => "internal_error",
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Unavailable(_) | Error::Unknown(_) | Error::Full(_))
    }
}

/// One incarnation of a process. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub i64);

/// One claimed batch: the fence of its jobs. Made by the node, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub i64);

/// What a write to a running job must name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The job.
    pub job: JobId,
    /// The lease it is held under.
    pub lease: LeaseId,
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

/// What of a tenant is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limited {
    /// What it may submit.
    pub submits: bool,
    /// How many of its jobs run: then none may be born leased, because a claim decides which of them may start.
    pub running: bool,
}

/// Jobs to store.
#[derive(Clone, Debug)]
pub struct Submit {
    /// In the order of the callers.
    pub jobs: Vec<NewJob>,
    /// Start the plain ones on this node, under this new lease.
    pub lease: Option<(NodeId, LeaseId)>,
}

/// What became of a submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    /// Its id, or that of the job that holds its key.
    pub id: JobId,
    /// Whether another job holds its key, so that nothing was stored.
    pub duplicate: bool,
}

/// What maintenance and an idle node may find to do ([`Store::survey`]).
#[derive(Clone, Debug)]
pub struct Survey {
    /// The pauses in force.
    pub pauses: Vec<Pause>,
    /// Whether jobs may be ready in the queues asked for.
    pub ready: bool,
    /// Whether scheduled jobs may be due.
    pub due: bool,
    /// Whether a node may be lost.
    pub lost: bool,
    /// Whether jobs may have expired, or gates may be open.
    pub untidy: bool,
    /// Whether there are webhooks to tell of events.
    pub webhooks: bool,
}

/// What a node can take.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The node.
    pub node: NodeId,
    /// The lease the jobs get; new for each call.
    pub lease: LeaseId,
    /// Which queues, with how many jobs at most from each. In order of preference.
    pub queues: Vec<(String, usize)>,
    /// How many jobs at most in all.
    pub max: usize,
    /// The part of each band, by [`Band::index`](crate::Band::index).
    pub quota: [usize; 4],
}

/// What a claim returned.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The store's time.
    pub now: Timestamp,
    /// The jobs, in order of start.
    pub jobs: Vec<ClaimedJob>,
    /// Which bands may have more.
    pub more: [bool; 4],
}

/// One ended attempt, as `lifecycle` decided.
#[derive(Clone, Debug)]
pub struct Finish {
    /// The job and the lease.
    pub fence: Fence,
    /// The number of the attempt.
    pub attempt: u16,
    /// How long the attempt ran, by the node's monotonic clock; the store derives when it started.
    pub ran: Duration,
    /// What becomes of the job.
    pub transition: Transition,
    /// A job to store in the same transaction, if this one is accepted: a callback (ERR-5).
    pub follow_up: Option<Box<NewJob>>,
    /// What the attempt has cost, recorded in the same transaction if this is accepted, whatever becomes of the job.
    pub cost: Option<Cost>,
}

/// What becomes of a job after an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Transition {
    /// It is done. Removed `keep` later.
    Succeed {
        /// What it returned.
        output: Option<Payload>,
        /// How long it is kept.
        keep: Duration,
    },
    /// It runs again after `delay`, as [`Status::Retrying`].
    Retry {
        /// The failures counted from now on.
        failed: u16,
        /// How long it waits, by the store's clock.
        delay: Duration,
        /// Why.
        error: JobError,
    },
    /// It will not run again by itself. Kept until replayed or purged. The store also writes the audit entry
    /// `JOB_EXHAUSTED_RETRIES` when the reason is `max_retries`.
    DeadLetter {
        /// Why: `max_retries`, or the code of a terminal error.
        reason: String,
        /// The last error.
        error: JobError,
    },
    /// It ends as canceled. Removed `keep` later.
    Cancel {
        /// Why: `canceled`, `expired`, `discarded`.
        reason: String,
        /// How long it is kept.
        keep: Duration,
    },
    /// It runs again after `delay`, as [`Status::Scheduled`]; nothing is charged (ERR-7).
    Snooze {
        /// How long it waits, by the store's clock.
        delay: Duration,
    },
    /// It is ready again at once, in front; nothing is charged (RUN-10).
    Release,
    /// It waits behind a gate, as [`Status::Blocked`]; nothing is charged.
    Park {
        /// Which.
        gate: Gate,
    },
    /// It is ready in another queue; nothing is charged.
    Route {
        /// Which.
        queue: String,
    },
}

/// What a job waits for, other than time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Gate {
    /// A pause of its handler or tenant.
    Pause(PauseTarget),
    /// An earlier job of its tenant with the same ordering key.
    OrderingKey(String),
}

impl Gate {
    /// The text stores keep: `pause:…` or `key:…`.
    pub fn name(&self) -> String {
        match self {
            Gate::Pause(target) => format!("pause:{}", target.name()),
            Gate::OrderingKey(key) => format!("key:{key}"),
        }
    }

    /// From the text stores keep.
    pub fn parse(name: &str) -> Option<Gate> {
        match name.split_once(':')? {
            ("pause", target) => PauseTarget::parse(target).map(Gate::Pause),
            ("key", key) => Some(Gate::OrderingKey(key.to_owned())),
            _ => None,
        }
    }
}

/// Whether a finish was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The job is now in this status ([`Status::Canceled`] where a cancel came first).
    Accepted(Status),
    /// The fence is not current: the job belongs to someone else. Nothing was written.
    Fenced,
}

/// The latest progress of a running job.
#[derive(Clone, Debug)]
pub struct ProgressReport {
    /// The job and the lease.
    pub fence: Fence,
    /// What to keep.
    pub progress: Progress,
}

/// What an attempt has said since its last report.
#[derive(Clone, Debug)]
pub struct LogReport {
    /// The job and the lease.
    pub fence: Fence,
    /// The number of the attempt.
    pub attempt: u16,
    /// In the order of their numbers.
    pub lines: Vec<NewLine>,
}

/// A log line on its way into a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLine {
    /// The how manieth line under its lease, from 1. Numbers that are missing are lines that were dropped.
    pub number: u64,
    /// When it was said.
    pub at: Timestamp,
    /// How serious it is.
    pub level: LogLevel,
    /// What it says.
    pub message: String,
}

/// How many jobs are in each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; 9]);

impl Counts {
    /// The count of one status.
    pub fn get(&self, status: Status) -> u64 {
        self.0[status.code() as usize]
    }

    /// Adds to the count of one status.
    pub fn add(&mut self, status: Status, n: u64) {
        self.0[status.code() as usize] += n;
    }

    /// Jobs that have not ended.
    pub fn unfinished(&self) -> u64 {
        Status::ALL.iter().filter(|s| !s.is_terminal()).map(|s| self.get(*s)).sum()
    }
}

/// Where a job is, with what decides when it runs.
#[derive(Clone, Debug)]
pub struct Whereabouts {
    /// The store's time.
    pub now: Timestamp,
    /// The job.
    pub record: JobRecord,
    /// For a ready job: how many ready jobs of its queue come before it, at most.
    pub ahead: Option<u64>,
    /// For a job behind an ordering key: who holds the key.
    pub key_holder: Option<JobId>,
    /// The pauses in force.
    pub pauses: Vec<Pause>,
    /// The registered nodes.
    pub nodes: Vec<NodeRecord>,
    /// For a ready job of a tenant whose running jobs are limited: how many run, and how many may.
    pub cap: Option<(u64, u64)>,
}

/// A queue that has ready jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingQueue {
    /// Its name.
    pub queue: String,
    /// About the oldest job in it.
    pub oldest: JobId,
}

/// What a cancel did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReply {
    /// It waited and is canceled now.
    Canceled,
    /// It runs; its node has been asked, and no completion is accepted any more.
    Requested,
    /// It had ended before.
    AlreadyFinished(Status),
    /// There is no such job in the scope.
    NotFound,
}

/// What a replay did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayReply {
    /// The job waits again.
    Replayed,
    /// It is not a dead letter.
    NotDead(Status),
    /// There is no such job in the scope.
    NotFound,
}

/// What an edit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditReply {
    /// The job waits as edited, in this status.
    Edited(Status),
    /// It was to start now but waits behind this gate. Nothing was written.
    Blocked(Gate),
    /// It runs or has ended. Nothing was written.
    NotWaiting(Status),
    /// There is no such job in the scope.
    NotFound,
}

/// What can be paused (OPS-4).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseTarget {
    /// Everything: the online gate.
    All,
    /// One handler.
    Handler(String),
    /// One tenant.
    Tenant(TenantId),
}

impl PauseTarget {
    /// The text stores keep: `all`, `handler:…`, `tenant:…`.
    pub fn name(&self) -> String {
        match self {
            PauseTarget::All => "all".to_owned(),
            PauseTarget::Handler(handler) => format!("handler:{handler}"),
            PauseTarget::Tenant(tenant) => format!("tenant:{tenant}"),
        }
    }

    /// From the text stores keep.
    pub fn parse(name: &str) -> Option<PauseTarget> {
        match name.split_once(':') {
            None if name == "all" => Some(PauseTarget::All),
            Some(("handler", handler)) if !handler.is_empty() => Some(PauseTarget::Handler(handler.to_owned())),
            Some(("tenant", tenant)) => TenantId::parse(tenant).ok().map(PauseTarget::Tenant),
            _ => None,
        }
    }
}

/// A pause in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// What is paused.
    pub target: PauseTarget,
    /// By whom.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub at: Timestamp,
}

/// One line of the audit log (OPS-5).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its place in the log, set by the store when it is written: larger is newer. What is read from the outcome of a job
    /// has the job's id.
    #[serde(default, skip_serializing)]
    pub sequence: u64,
    /// When; set by the store when it is written.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// In which tenant; none for the whole installation.
    pub tenant: Option<TenantId>,
    /// What: `JOB_SUBMITTED`, `JOB_EDITED`, `JOB_CANCELED`, `JOB_EXHAUSTED_RETRIES`, `JOB_REPLAYED`, `JOB_PURGED`,
    /// `PAUSED`, `RESUMED`, `QUOTA_SET`, `QUOTA_CLEARED`, `COST_RECORDED`, `JOB_SUCCEEDED`, `KEY_CREATED`,
    /// `KEY_REVOKED`, `WEBHOOK_ADDED`, `WEBHOOK_PAUSED`, `WEBHOOK_RESUMED`, `WEBHOOK_REMOVED`, …
    pub action: String,
    /// On what: a job id, a pause target, a filter.
    pub target: String,
    /// Anything more.
    pub detail: Option<String>,
}

/// Which audit entries to read.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct AuditFilter {
    /// Only this action. `JOB_SUCCEEDED` is answered from the jobs' outcomes: a success writes no entry of its own.
    pub action: Option<String>,
    /// Only this target.
    pub target: Option<String>,
    /// Only what is older than the entry with this [sequence](AuditEntry::sequence): the next page.
    pub before: Option<u64>,
    /// At most so many; 0 means 50.
    pub limit: usize,
}

/// A data key, encrypted by a key that the store never sees.
#[derive(Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// The name of the key that wraps it.
    pub kek: String,
    /// What only the key provider understands.
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for WrappedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WrappedKey({:?}, {} bytes)", self.kek, self.bytes.len())
    }
}

/// One version of a tenant's data key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataKeyRecord {
    /// Whose it is.
    pub tenant: TenantId,
    /// Counts from 1 and is never used again.
    pub version: u32,
    /// The key; `None` once it is destroyed.
    pub wrapped: Option<WrappedKey>,
    /// When it was made.
    pub created_at: Timestamp,
}

/// How many API keys a list shows at most: far more than people look after, and few enough for one answer.
pub const API_KEYS_LISTED: usize = 1_000;

/// An API key as a store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiKeyRecord {
    /// The key.
    pub key: ApiKey,
    /// The hash of its secret.
    pub hash: SecretHash,
}

/// Status events kept at most: a quarter of an hour of a hundred a second.
pub const FEED_EVENTS_KEPT: u64 = 100_000;

/// How long status events are kept.
pub const FEED_KEPT_FOR: Duration = Duration::from_secs(3_600);

/// Which status events to read: those after a sequence, and those in gaps below it (first and last of each).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedAsk {
    /// After this one.
    pub after: u64,
    /// And these, both ends included.
    pub gaps: Vec<(u64, u64)>,
}

impl FeedAsk {
    /// Whether a sequence is asked for.
    pub fn covers(&self, sequence: u64) -> bool {
        sequence > self.after || self.gaps.iter().any(|(first, last)| (*first..=*last).contains(&sequence))
    }
}

/// A status event as a store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedRow {
    /// Its place in the feed.
    pub sequence: u64,
    /// The job.
    pub job: JobId,
    /// Where it came to be.
    pub status: Status,
    /// The number of the attempt that ended, or of those before where none did.
    pub attempt: u16,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// What the job is; `None` if it is gone.
    pub of: Option<FeedJob>,
}

/// What a status event tells of its job.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedJob {
    /// Whose it is.
    pub tenant: TenantId,
    /// What runs it.
    pub handler: String,
    /// Whether its error is sealed.
    pub sealed: bool,
    /// What went wrong, for a retry or a dead letter.
    pub error: Option<JobError>,
}

/// A webhook as a store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookRecord {
    /// The webhook.
    pub webhook: Webhook,
    /// The secret that signs, as a JSON string or its envelope.
    pub secret: Payload,
    /// Whether the secret is sealed.
    pub sealed: bool,
}

/// The lead of one node in something that only one may do at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// Counts up with every change of node.
    pub term: u64,
    /// How far it has come; `None` before the first [`Store::advance_lead`].
    pub cursor: Option<u64>,
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
