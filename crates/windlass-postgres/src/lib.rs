//! Windlass on PostgreSQL: a packed queue over an append-only log of jobs. [`PgStore`] implements
//! [`Store`](windlass_core::store::Store); each step of a job's life is a module, and its SQL is in the folder of its
//! room in `sql/`. Nothing here decides what becomes of a job.
//!
//! Everything works behind PgBouncer in transaction mode: statements are unnamed, and nothing is stored in a session.
//! The hot statements are functions, so that the server caches their plans although they are never prepared by name.

mod ground;

mod jobs;
mod nodes;
mod upkeep;
mod weeks;
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
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::store::Base;

use async_trait::async_trait;
use foldhash::HashMap;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_postgres::config::TargetSessionAttrs;
use uuid::Uuid;
use windlass_core::fair::Line;
use windlass_core::health::PoolUse;
use windlass_core::store::{Error, Fence, Finish, Finished, LeaseId, Limited, News, Result, Transition};
use windlass_core::supervise::LoopHealth;
use windlass_core::{DEFAULT_RETENTION, JobId, Priority, Status, TenantId, Timestamp};

use crate::ground::connect::{Access, Pool};
use crate::ground::server::Servers;
use crate::ground::tls::Route;
use crate::ground::types::Time;
use crate::ground::wake::Wake;
use crate::jobs::claim::Lines;
use crate::jobs::finish::EndedKeys;
use crate::upkeep::Cursors;

pub use crate::ground::migrate::{SchemaStatus, migrations_sql};
#[cfg(feature = "seaorm")]
pub use crate::ground::tx::submit_in_seaorm;
#[cfg(feature = "sqlx")]
pub use crate::ground::tx::submit_in_sqlx;
pub use crate::ground::tx::{HandlerTx, PgJobTx, submit_in, transaction};
pub use crate::ground::walls::Walls;

/// How to connect to PostgreSQL.
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
    handler_idle: Duration,
}

/// How long a call may take before its connection is given up: longer than a checkpoint stalls a healthy server, shorter
/// than people wait.
const DEADLINE: Duration = Duration::from_secs(15);
/// How long data may stay unacknowledged: a connection that a firewall dropped is noticed after this.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a handler's transaction may be silent: as long as an attempt takes by default.
const HANDLER_IDLE: Duration = Duration::from_secs(300);
/// When an idle connection is asked whether its other end is there, how often then, and how often in vain.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections for the API and for handlers' transactions, each.
const CONNECTIONS: usize = 4;
/// Submits, and finishes, under way at once: two fill a connection's gaps, more only split batches.
const WRITERS: usize = 2;
/// Connections for finishes: one for each writer's new ends, one for those it tries again, which may wait for a lock.
const FINISHERS: usize = 2 * WRITERS;
/// Steps of maintenance under way at once. Those that find work do not wait for them: they have connections of their own.
const MAINTAINERS: usize = 2;
/// The survey and the promotion of due jobs, one each: what starts jobs waits for no other step.
const LOOKERS: usize = 2;
/// Threads that drive connections. They never run anyone's code, so two are enough for any number of connections.
const DRIVERS: usize = 2;

impl PgOptions {
    /// Options for a URL (`postgres://…`, also with a Unix socket) or a `key=value` string. A URL may say how the
    /// connection is secured, with the same names as in PostgreSQL's own clients: `sslmode` (`disable`, `prefer`,
    /// `require`, `verify-ca`, `verify-full`), `sslrootcert` (a file, or `system`), `sslcert` and `sslkey`. By default
    /// the connection is encrypted if the server offers it. The files are read here.
    pub fn new(url: &str) -> Result<Self> {
        let mut route = Route::parse(url)?;
        let config = &mut route.config;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(TCP_USER_TIMEOUT);
        }
        if config.get_keepalives_interval().is_none() {
            config.keepalives(true);
            config.keepalives_idle(KEEPALIVE_IDLE).keepalives_interval(KEEPALIVE_EVERY);
            config.keepalives_retries(KEEPALIVE_TRIES);
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
            retention: DEFAULT_RETENTION,
            handler_idle: HANDLER_IDLE,
        })
    }

    /// Whether to migrate the schema first; otherwise a schema of another version is an error. On by default.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Whether to use LISTEN and NOTIFY. On by default; otherwise jobs from other processes are found by polling.
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

    /// The number of connections for reads and control calls, and the same number for handlers' transactions.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How long a handler's transaction may be idle between two statements before the server ends it and releases its
    /// locks. Five minutes by default, as long as an attempt may take.
    #[must_use]
    pub fn handler_idle(mut self, idle: Duration) -> Self {
        self.handler_idle = idle;
        self
    }

    /// The longest usual retention of ended jobs: older weekly partitions are dropped as a whole, and jobs that must
    /// stay are moved.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }
}

/// A job store in a PostgreSQL database. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct PgStore {
    shared: Arc<Inner>,
}

/// What the clones of a store share.
struct Inner {
    pub(crate) options: PgOptions,
    pub(crate) pools: Pools,
    pub(crate) lines: Arc<Mutex<Lines>>,
    pub(crate) cursors: Cursors,
    pub(crate) wake: Wake,
    pub(crate) walls: Walls,
    pub(crate) quotas: crate::tenancy::quota::Known,
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
    pub(crate) look: Pool,
    pub(crate) maintain: Pool,
    pub(crate) api: Pool,
    pub(crate) tx: Pool,
}

impl Pools {
    /// How many connections of each role are in use.
    pub(crate) fn uses(&self) -> Vec<PoolUse> {
        let Pools { submit, claim, finish, heartbeat, look, maintain, api, tx } = self;
        let pools = [
            ("submit", submit),
            ("claim", claim),
            ("finish", finish),
            ("heartbeat", heartbeat),
            ("look", look),
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
    /// Connects to a URL and migrates the schema.
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
            .map_err(|error| Error::Unavailable(format!("cannot start the threads for connections: {error}")))?;
        let handle = runtime.handle();
        let servers = Servers::default();
        let pool = |size| Pool::new(options.route.clone(), handle.clone(), size, options.deadline, servers.clone());
        let pools = Pools {
            submit: pool(WRITERS),
            claim: pool(1),
            finish: pool(FINISHERS),
            heartbeat: pool(1),
            look: pool(LOOKERS),
            maintain: pool(MAINTAINERS),
            api: pool(options.connections),
            tx: pool(options.connections),
        };
        let wake = Wake::start(handle, pool(1), options.route.clone(), options.listen);
        let mut shared = Inner {
            options,
            pools,
            lines: Arc::default(),
            cursors: Cursors::default(),
            wake,
            walls: Walls::Down("not checked yet".into()),
            quotas: crate::tenancy::quota::Known::default(),
            feed_wanted: feed::Wanted::default(),
            held: Mutex::default(),
            runtime: Some(runtime),
        };
        if shared.options.migrate {
            crate::ground::migrate::migrate(&shared.pools.api).await?;
        } else {
            crate::ground::migrate::check(crate::ground::migrate::status(&shared.pools.api).await?)?;
        }
        shared.walls = crate::ground::walls::look(&shared.pools.api).await?;
        let store = PgStore { shared: Arc::new(shared) };
        if store.shared.options.migrate {
            crate::weeks::make_weeks(&store).await?;
        }
        // What somebody holds of it is learnt by a later exchange; sweeps make up for it until then.
        if let Err(error) = store.sync_lines().await {
            match error {
                Error::Unavailable(_) => tracing::debug!(%error, "could not exchange positions at the start"),
                other => return Err(other),
            }
        }
        crate::tenancy::quota::refresh(&store).await?;
        Ok(store)
    }

    /// Compares the schema of a database with this binary; changes nothing.
    pub async fn schema_status(url: &str) -> Result<SchemaStatus> {
        let options = PgOptions::new(url)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| Error::Unavailable(format!("cannot start a thread for a connection: {error}")))?;
        let pool = Pool::new(options.route, runtime.handle().clone(), 1, options.deadline, Servers::default());
        let status = crate::ground::migrate::status(&pool).await;
        runtime.shutdown_background();
        status
    }

    /// Whether row-level security separates tenants, as of when this store connected.
    pub fn walls(&self) -> &Walls {
        &self.shared.walls
    }

    pub(crate) fn runtime(&self) -> &Handle {
        self.shared.runtime.as_ref().expect("the runtime lives as long as the store").handle()
    }

    pub(crate) async fn store_time(&self) -> Result<Timestamp> {
        let row = self.shared.pools.api.query_one(Access::Read, include_str!("sql/ground/now.sql"), &[]).await?;
        Ok(row.get::<_, Time>(0)?.0)
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
impl Base for PgStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn now(&self) -> Result<Timestamp> {
        self.store_time().await
    }

    fn writers(&self) -> usize {
        WRITERS
    }

    fn deadline(&self) -> Duration {
        // To get a connection, and to get its answer.
        self.shared.options.deadline * 2
    }

    fn limited(&self, tenant: TenantId) -> Limited {
        self.shared.quotas.limited(tenant)
    }

    async fn wait_for_wake(&self) -> News {
        self.shared.wake.wait().await
    }

    fn wake_others(&self, news: News) {
        self.shared.wake.wake_others(news);
    }

    fn loops(&self) -> Vec<LoopHealth> {
        self.shared.wake.loops()
    }

    fn transactions(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::new(crate::ground::tx::PgTransactions::of(self)))
    }
}

/// The README of this crate, compiled as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
