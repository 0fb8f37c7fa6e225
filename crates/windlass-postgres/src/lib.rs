//! Windlass on PostgreSQL: a packed queue over an append-only log of jobs. [`PgStore`] implements
//! [`Store`](windlass_core::store::Store); each step of a job's life is a module, and its SQL is in `sql/` and
//! `migrations/`. Nothing here decides what becomes of a job.
//!
//! Everything works behind PgBouncer in transaction mode: statements are unnamed, nothing is kept in a session. The hot
//! statements are functions, so that the server keeps their plans although they are never prepared by name.

mod access;
mod activity;
mod claim;
mod connect;
mod examine;
mod feed;
mod finish;
mod keys;
mod logs;
mod maintain;
mod migrate;
mod quota;
mod read;
mod server;
mod steer;
mod submit;
mod tls;
mod tx;
mod types;
mod usage;
mod wake;
mod walls;

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use foldhash::HashMap;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_postgres::config::TargetSessionAttrs;
use uuid::Uuid;
use windlass_core::activity::{Addition, Resolution, Slice, Waiting};
use windlass_core::failures::Failing;
use windlass_core::fair::Line;
use windlass_core::health::{Checkup, Finding, HeldSnapshot, PoolUse, Vitals};
use windlass_core::store::{
    ApiKeyRecord, AuditEntry, AuditFilter, Beat, CancelReply, Claim, Claimed, Counts, DataKeyRecord, EditReply, Error,
    FeedAsk, FeedRow, Fence, Finish, Finished, Lead, LeaseId, Limited, LogReport, NewNode, NodeId, NodeLease,
    NodeRecord, Pause, PauseTarget, ProgressReport, Promoted, Recovered, ReplayReply, Result, Store, Submit, Submitted,
    Survey, Transition, WaitingQueue, WebhookRecord, Whereabouts, WrappedKey,
};
use windlass_core::{
    ApiKey, Cost, Edit, Found, HistoryEntry, JobFilter, JobId, JobRecord, LogLine, Page, Payload, Priority, Quota,
    Quotas, Scope, Status, TenantId, TenantUse, Timestamp, UsageEvent, UsageRow, Webhook,
};

use crate::claim::Lines;
use crate::connect::{Access, Pool};
use crate::finish::EndedKeys;
use crate::maintain::Cursors;
use crate::server::Servers;
use crate::tls::Route;
use crate::types::Time;
use crate::wake::Wake;

pub use crate::migrate::{SchemaStatus, migrations_sql};
#[cfg(feature = "seaorm")]
pub use crate::tx::submit_in_seaorm;
#[cfg(feature = "sqlx")]
pub use crate::tx::submit_in_sqlx;
pub use crate::tx::{HandlerTx, PgJobTx, submit_in, transaction};
pub use crate::walls::Walls;

/// How to connect.
///
/// ```
/// use windlass_postgres::PgOptions;
/// let options = PgOptions::new("postgres://app@localhost/app").unwrap().listen(false);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PgOptions {
    route: Route,
    migrate: bool,
    listen: bool,
    deadline: Duration,
    connections: usize,
    retention: Duration,
}

/// How long a call may take before its connection is given up: longer than a checkpoint stalls a healthy server, shorter
/// than people wait.
const DEADLINE: Duration = Duration::from_secs(15);
/// How long data may stay unacknowledged: a connection that a firewall dropped is noticed after this.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long ended jobs are kept by default (OPS-7): weeks older than that may be dropped.
const RETENTION: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// Connections for the API and for handlers' transactions, each.
const CONNECTIONS: usize = 4;
/// Submits, and finishes, under way at once: two fill a connection's gaps, more only split batches.
const WRITERS: usize = 2;
/// Threads that drive connections. They never run anyone's code, so two are enough for any number of connections.
const DRIVERS: usize = 2;

impl PgOptions {
    /// Options for a URL (`postgres://…`, also with a Unix socket) or a `key=value` string. A URL may say how the way to
    /// the server is secured, by the names that PostgreSQL's own clients use: `sslmode` (`disable`, `prefer`, `require`,
    /// `verify-ca`, `verify-full`), `sslrootcert` (a file, or `system`), `sslcert` and `sslkey`. Without, it is encrypted
    /// if the server offers it. The files are read here.
    pub fn new(url: &str) -> Result<Self> {
        let mut route = Route::parse(url)?;
        let config = &mut route.config;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(TCP_USER_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("windlass");
        }
        // Never decide anything by what a replica says.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        Ok(PgOptions {
            route,
            migrate: true,
            listen: true,
            deadline: DEADLINE,
            connections: CONNECTIONS,
            retention: RETENTION,
        })
    }

    /// Whether to bring the schema up to date first; else a schema of another version is refused. On by default.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Whether to use LISTEN and NOTIFY. On by default; without, other processes' jobs are found by polling.
    #[must_use]
    pub fn listen(mut self, listen: bool) -> Self {
        self.listen = listen;
        self
    }

    /// How long a call may take.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Connections for reading and steering, and as many for handlers' transactions.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// The longest time that ended jobs are usually kept: older weeks are dropped whole, what must stay is moved.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }
}

/// A store of jobs in a PostgreSQL database. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct PgStore {
    shared: Arc<Inner>,
}

/// What the clones of a store share.
struct Inner {
    pub(crate) options: PgOptions,
    pub(crate) pools: Pools,
    pub(crate) lines: Mutex<Lines>,
    pub(crate) cursors: Cursors,
    pub(crate) wake: Wake,
    pub(crate) walls: Walls,
    pub(crate) quotas: quota::Known,
    pub(crate) feed_wanted: feed::Wanted,
    /// What this process knows of the jobs it holds, so that a finish need not look it up.
    held: Mutex<HashMap<i64, Held>>,
    runtime: Option<Runtime>,
}

/// Connections by role.
struct Pools {
    pub(crate) submit: Pool,
    pub(crate) claim: Pool,
    pub(crate) finish: Pool,
    pub(crate) heartbeat: Pool,
    pub(crate) maintain: Pool,
    pub(crate) api: Pool,
    pub(crate) tx: Pool,
}

impl Pools {
    /// How many connections of each role are in use.
    pub(crate) fn uses(&self) -> Vec<PoolUse> {
        let Pools { submit, claim, finish, heartbeat, maintain, api, tx } = self;
        let pools = [
            ("submit", submit),
            ("claim", claim),
            ("finish", finish),
            ("heartbeat", heartbeat),
            ("maintain", maintain),
            ("api", api),
            ("tx", tx),
        ];
        pools.into_iter().map(|(name, pool)| pool.in_use(name)).collect()
    }
}

/// What is known of a job that this process holds.
pub(crate) struct Held {
    pub(crate) lease: LeaseId,
    /// The part of the lease that it is in, and its place there.
    pub(crate) part: i16,
    pub(crate) place: i16,
    pub(crate) tenant: Uuid,
    pub(crate) priority: Priority,
    pub(crate) ordering_key: Option<String>,
}

impl std::fmt::Debug for PgStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgStore").finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In the background: waiting for threads here could block whoever drops the last clone.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl PgStore {
    /// Connects to a URL and brings the schema up to date.
    pub async fn connect(url: &str) -> Result<PgStore> {
        PgStore::connect_with(PgOptions::new(url)?).await
    }

    /// Connects with options.
    pub async fn connect_with(options: PgOptions) -> Result<PgStore> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(DRIVERS)
            .thread_name("windlass-pg")
            .enable_all()
            .build()
            .map_err(|error| Error::Unavailable(format!("no threads for connections: {error}")))?;
        let handle = runtime.handle();
        let servers = Servers::default();
        let pool = |size| Pool::new(options.route.clone(), handle.clone(), size, options.deadline, servers.clone());
        let pools = Pools {
            submit: pool(WRITERS),
            claim: pool(1),
            finish: pool(WRITERS),
            heartbeat: pool(1),
            maintain: pool(1),
            api: pool(options.connections),
            tx: pool(options.connections),
        };
        let wake = Wake::start(handle, pool(1), options.route.clone(), options.listen);
        let mut shared = Inner {
            options,
            pools,
            lines: Mutex::default(),
            cursors: Cursors::default(),
            wake,
            walls: Walls::Down("nobody has looked yet".into()),
            quotas: quota::Known::default(),
            feed_wanted: feed::Wanted::default(),
            held: Mutex::default(),
            runtime: Some(runtime),
        };
        if shared.options.migrate {
            migrate::migrate(&shared.pools.api).await?;
        } else {
            migrate::check(migrate::status(&shared.pools.api).await?)?;
        }
        shared.walls = walls::look(&shared.pools.api).await?;
        let store = PgStore { shared: Arc::new(shared) };
        if store.shared.options.migrate {
            maintain::make_weeks(&store).await?;
        }
        store.sync_lines().await?;
        quota::refresh(&store).await?;
        Ok(store)
    }

    /// How the schema of a database compares with this binary; changes nothing.
    pub async fn schema_status(url: &str) -> Result<SchemaStatus> {
        let options = PgOptions::new(url)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| Error::Unavailable(format!("no thread for a connection: {error}")))?;
        let pool = Pool::new(options.route, runtime.handle().clone(), 1, options.deadline, Servers::default());
        let status = migrate::status(&pool).await;
        runtime.shutdown_background();
        status
    }

    /// Whether row-level security keeps tenants apart, as it was when this store connected.
    pub fn walls(&self) -> &Walls {
        &self.shared.walls
    }

    pub(crate) fn runtime(&self) -> &Handle {
        self.shared.runtime.as_ref().expect("the runtime lives as long as the store").handle()
    }

    pub(crate) async fn store_time(&self) -> Result<Timestamp> {
        let row = self.shared.pools.api.query_one(Access::Read, include_str!("sql/now.sql"), &[]).await?;
        Ok(row.get::<_, Time>(0).0)
    }

    /// Whether status events are kept with ends of attempts.
    pub(crate) fn feed_wanted(&self) -> bool {
        self.shared.feed_wanted.is_wanted(Instant::now())
    }

    /// Remembers jobs that this process holds now.
    pub(crate) fn hold(&self, jobs: impl Iterator<Item = (JobId, Held)>) {
        self.shared.held.lock().extend(jobs.map(|(id, held)| (id.as_i64(), held)));
    }

    /// Takes note of where routed jobs wait now: nobody has submitted anything there with their priority.
    pub(crate) fn know_routes(&self, finishes: &[Finish]) {
        for finish in finishes {
            let Transition::Route { queue } = &finish.transition else { continue };
            let priority = self.shared.held.lock().get(&finish.fence.job.as_i64()).map(|held| held.priority);
            if let Some(priority) = priority {
                self.shared.lines.lock().know(&Line { queue: queue.clone(), priority });
            }
        }
    }

    /// The part, the place and the tenant of held jobs, where they are known.
    pub(crate) fn places_of(&self, fences: impl Iterator<Item = Fence>) -> Vec<Option<(i16, i16, Uuid)>> {
        let held = self.shared.held.lock();
        let known = |fence: Fence| held.get(&fence.job.as_i64()).filter(|held| held.lease == fence.lease);
        fences.map(|fence| known(fence).map(|held| (held.part, held.place, held.tenant))).collect()
    }

    /// Forgets jobs that are not held any more. Answers the ordering keys of those that have ended.
    pub(crate) fn let_go(&self, finishes: &[Finish], answers: &[Finished]) -> EndedKeys {
        let mut ended = EndedKeys::default();
        let mut held = self.shared.held.lock();
        for (finish, answer) in finishes.iter().zip(answers) {
            let id = finish.fence.job.as_i64();
            let known = match held.get(&id) {
                Some(held) if held.lease == finish.fence.lease => true,
                Some(_) => continue,
                None => false,
            };
            let known = if known { held.remove(&id) } else { None };
            if !matches!(answer, Finished::Accepted(status) if Status::is_terminal(*status)) {
                continue;
            }
            match known {
                Some(Held { tenant, ordering_key: Some(key), .. }) => {
                    ended.tenants.push(tenant);
                    ended.keys.push(key);
                }
                Some(_) => {}
                None => ended.unknown.push(id),
            }
        }
        ended
    }

    /// Forgets everything held, because a node is gone. If others share this store, their jobs are looked up instead.
    fn let_go_all(&self) {
        self.shared.held.lock().clear();
    }
}

#[async_trait]
impl Store for PgStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn deadline(&self) -> Duration {
        // To get a connection, and to get its answer.
        self.shared.options.deadline * 2
    }

    async fn now(&self) -> Result<Timestamp> {
        self.store_time().await
    }

    fn writers(&self) -> usize {
        WRITERS
    }

    async fn register(&self, node: NewNode) -> Result<NodeLease> {
        maintain::register(self, node).await
    }

    async fn heartbeat(&self, node: NodeId, running: usize) -> Result<Beat> {
        let beat = maintain::heartbeat(self, node, running).await?;
        if beat == Beat::Fenced {
            self.let_go_all();
        }
        Ok(beat)
    }

    async fn held(&self, node: NodeId) -> Result<Vec<Fence>> {
        maintain::held(self, node).await
    }

    async fn deregister(&self, node: NodeId) -> Result<()> {
        maintain::deregister(self, node).await?;
        self.let_go_all();
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        maintain::nodes(self).await
    }

    async fn submit(&self, submit: Submit) -> Result<Vec<Submitted>> {
        submit::submit(self, submit).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        claim::claim(self, claim).await
    }

    async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        finish::finish(self, node, finishes).await
    }

    async fn report_progress(&self, node: NodeId, reports: Vec<ProgressReport>) -> Result<Vec<bool>> {
        finish::report_progress(self, node, reports).await
    }

    async fn add_logs(&self, node: NodeId, reports: Vec<LogReport>) -> Result<Vec<bool>> {
        logs::add(self, node, reports).await
    }

    async fn save_checkpoint(&self, node: NodeId, fence: Fence, data: Payload) -> Result<bool> {
        finish::save_checkpoint(self, node, fence, data).await
    }

    async fn get(&self, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>> {
        read::get(self, scope, ids).await
    }

    async fn input(&self, scope: Scope, id: JobId) -> Result<Option<Payload>> {
        read::input(self, scope, id).await
    }

    async fn logs(&self, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>> {
        logs::read(self, scope, id, after).await
    }

    async fn list(&self, scope: Scope, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>> {
        read::list(self, scope, filter, page).await
    }

    async fn search(&self, scope: Scope, filter: &JobFilter, page: Page, look_at: usize) -> Result<Found> {
        read::search(self, scope, filter, page, look_at).await
    }

    async fn count(&self, scope: Scope, filter: &JobFilter, cap: usize) -> Result<u64> {
        read::count(self, scope, filter, cap).await
    }

    async fn failing(&self, scope: Scope, filter: &JobFilter, newest: usize) -> Result<Vec<Failing>> {
        read::failing(self, scope, filter, newest).await
    }

    async fn history(&self, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>> {
        read::history(self, scope, id).await
    }

    async fn counts(&self, scope: Scope) -> Result<Counts> {
        read::counts(self, scope).await
    }

    async fn whereabouts(&self, scope: Scope, id: JobId) -> Result<Option<Whereabouts>> {
        read::whereabouts(self, scope, id).await
    }

    async fn waiting_queues(&self) -> Result<Vec<WaitingQueue>> {
        read::waiting_queues(self).await
    }

    async fn cancel(&self, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply> {
        steer::cancel(self, scope, id, by, reason).await
    }

    async fn replay(&self, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply> {
        steer::replay(self, scope, id, by).await
    }

    async fn mark_replayed(&self, scope: Scope, id: JobId, by: &str, as_job: JobId, keep: Duration) -> Result<bool> {
        steer::mark_replayed(self, scope, id, by, as_job, keep).await
    }

    async fn edit(&self, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply> {
        steer::edit(self, scope, id, by, edit).await
    }

    async fn purge(&self, scope: Scope, id: JobId, by: &str) -> Result<bool> {
        steer::purge(self, scope, id, by).await
    }

    async fn pause(&self, target: &PauseTarget, by: &str, reason: &str) -> Result<()> {
        steer::pause(self, target, by, reason).await
    }

    async fn resume(&self, target: &PauseTarget, by: &str) -> Result<bool> {
        steer::resume(self, target, by).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        steer::pauses(self).await
    }

    async fn audit(&self, entry: AuditEntry) -> Result<()> {
        steer::audit(self, entry).await
    }

    async fn audit_log(&self, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        steer::audit_log(self, scope, filter).await
    }

    async fn record_cost(&self, scope: Scope, id: JobId, by: &str, cost: Cost) -> Result<bool> {
        usage::record(self, scope, id, by, cost).await
    }

    async fn usage_by_day(&self, scope: Scope, from: &str, to: &str) -> Result<Vec<UsageRow>> {
        usage::by_day(self, scope, from, to).await
    }

    async fn usage_events(&self, scope: Scope, after: u64, limit: usize) -> Result<Vec<UsageEvent>> {
        usage::events(self, scope, after, limit).await
    }

    async fn data_keys(&self, scope: Scope) -> Result<Vec<DataKeyRecord>> {
        keys::list(self, scope).await
    }

    async fn add_data_key(&self, tenant: TenantId, version: u32, wrapped: WrappedKey) -> Result<bool> {
        keys::add(self, tenant, version, wrapped).await
    }

    async fn rewrap_data_key(&self, tenant: TenantId, version: u32, old: &WrappedKey, new: WrappedKey) -> Result<bool> {
        keys::rewrap(self, tenant, version, old, new).await
    }

    async fn destroy_data_keys(&self, tenant: TenantId) -> Result<usize> {
        keys::destroy(self, tenant).await
    }

    async fn add_api_key(&self, record: ApiKeyRecord) -> Result<ApiKey> {
        access::add(self, record).await
    }

    async fn api_keys(&self, scope: Scope) -> Result<Vec<ApiKey>> {
        access::list(self, scope).await
    }

    async fn find_api_keys(&self, ids: &[String]) -> Result<Vec<ApiKeyRecord>> {
        access::find(self, ids).await
    }

    async fn revoke_api_key(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        access::revoke(self, scope, id, by).await
    }

    async fn note_api_key_uses(&self, uses: &[(String, Timestamp)]) -> Result<()> {
        access::note_uses(self, uses).await
    }

    async fn setting(&self, name: &str) -> Result<Option<String>> {
        access::setting(self, name).await
    }

    async fn set_setting_if_absent(&self, name: &str, value: &str) -> Result<String> {
        access::set_setting_if_absent(self, name, value).await
    }

    async fn want_feed(&self, time: Duration) -> Result<()> {
        feed::want(self, time).await
    }

    async fn feed_end(&self) -> Result<u64> {
        feed::end(self).await
    }

    async fn read_feed(&self, ask: &FeedAsk, limit: usize) -> Result<Vec<FeedRow>> {
        feed::read(self, ask, limit).await
    }

    async fn add_webhook(&self, record: WebhookRecord) -> Result<Webhook> {
        feed::add_webhook(self, record).await
    }

    async fn webhooks(&self, scope: Scope) -> Result<Vec<WebhookRecord>> {
        feed::webhooks(self, scope).await
    }

    async fn pause_webhook(&self, scope: Scope, id: &str, paused: bool, by: &str) -> Result<bool> {
        feed::pause_webhook(self, scope, id, paused, by).await
    }

    async fn remove_webhook(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        feed::remove_webhook(self, scope, id, by).await
    }

    async fn lead(&self, name: &str, node: NodeId, time: Duration) -> Result<Option<Lead>> {
        feed::lead(self, name, node, time).await
    }

    async fn advance_lead(&self, name: &str, term: u64, cursor: u64) -> Result<bool> {
        feed::advance_lead(self, name, term, cursor).await
    }

    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>, by: &str) -> Result<()> {
        quota::set(self, of, quota, by).await
    }

    async fn quotas(&self) -> Result<Quotas> {
        Ok((*quota::refresh(self).await?).clone())
    }

    async fn tenant_uses(&self, scope: Scope) -> Result<Vec<TenantUse>> {
        quota::uses(self, scope).await
    }

    fn limited(&self, tenant: TenantId) -> Limited {
        self.shared.quotas.limited(tenant)
    }

    async fn survey(&self, lease: Duration, queues: &[String]) -> Result<Survey> {
        maintain::survey(self, lease, queues).await
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        maintain::promote(self, limit).await
    }

    async fn recover(&self, lease: Duration) -> Result<Recovered> {
        maintain::recover(self, lease).await
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        maintain::expire(self, limit).await
    }

    async fn open_gates(&self, limit: usize) -> Result<usize> {
        maintain::open_gates(self, limit).await
    }

    async fn clean(&self, limit: usize) -> Result<usize> {
        maintain::clean(self, limit).await
    }

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
        examine::vitals(self).await
    }

    async fn held_snapshots(&self, longer_than: Duration) -> Result<Vec<HeldSnapshot>> {
        examine::held_snapshots(self, longer_than).await
    }

    async fn examine(&self, checkup: &Checkup) -> Result<Vec<Finding>> {
        examine::examine(self, checkup).await
    }

    async fn wait_for_wake(&self) {
        self.shared.wake.wait().await;
    }

    fn wake_others(&self) {
        self.shared.wake.wake_others();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
