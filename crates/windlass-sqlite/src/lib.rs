//! Windlass on an embedded SQLite file: the store, how it is opened, and which thread a call runs on. Each step of a
//! job's life has a file of its own, named as in the other stores. Never decides what becomes of a job.
//!
//! One process at a time writes to a file; its own tables may live there too, and share transactions with jobs
//! ([`SqliteStore::transaction`], [`SqliteStore::complete_in`]).
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use windlass_core::store::Store;
//! use windlass_sqlite::SqliteStore;
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("jobs.db");
//! let store = SqliteStore::open(&path)?;
//! assert_eq!(store.counts(windlass_core::Scope::Tenant(windlass_core::TenantId::ROOT)).await?.unfinished(), 0);
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```

// Where it is kept, and who may touch it.
mod lock;
mod migrate;
mod readers;
mod rows;
mod writer;

// The life of a job.
mod claim;
mod finish;
mod place;
mod quota;
mod submit;

// Around it.
mod access;
mod activity;
mod edit;
mod examine;
mod feed;
mod keys;
mod logs;
mod maintain;
mod node;
mod read;
mod steer;
mod tx;
mod usage;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;
use rusqlite::Connection;
use tokio::sync::Notify;
use windlass_core::activity::{Addition, Resolution, Slice, Waiting};
use windlass_core::failures::Failing;
use windlass_core::health::{Checkup, Finding, Vitals};
use windlass_core::store::{
    ApiKeyRecord, AuditEntry, AuditFilter, Beat, CancelReply, Claim, Claimed, Counts, DataKeyRecord, EditReply, Error,
    FeedAsk, FeedRow, Fence, Finish, Finished, Lead, Limited, LogReport, NewNode, NodeId, NodeLease, NodeRecord, Pause,
    PauseTarget, ProgressReport, Promoted, Recovered, ReplayReply, Result, Store, Submit, Submitted, WaitingQueue,
    WebhookRecord, Whereabouts, WrappedKey,
};
use windlass_core::{
    ApiKey, Clock, Cost, Edit, Found, HistoryEntry, JobFilter, JobId, JobRecord, LogLine, Page, Payload, Quota, Quotas,
    Scope, SystemClock, TenantId, TenantUse, Timestamp, UsageEvent, UsageRow, Webhook,
};

pub use migrate::{SCHEMA_VERSION, migrations_sql, schema_version};
pub use rusqlite;
pub use tx::{SqliteTx, TxError, complete};

use lock::FileLock;
use read::Reader;
use readers::Readers;
use rows::{Done, same_error, sql_error};
use writer::{State, SteadyClock, Writer};

/// How long a statement waits for a lock of another connection: a reader or a backup, never another writer.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Prepared statements each connection keeps; more than there are, so that none is prepared twice.
pub(crate) const STATEMENTS_KEPT: usize = 160;

/// Before this version a second connection could corrupt a file in WAL mode while the log was reset, so everything runs
/// on one.
const SAFE_READERS: i32 = 3_051_003;

/// Pages in the log before it is written back: 16 MB, so that a busy writer syncs the file itself rarely.
const CHECKPOINT_PAGES: i64 = 4_000;

/// What a log that a long read made grow is cut back to.
const LOG_BYTES_KEPT: i64 = 64 << 20;

/// How a store is opened.
#[derive(Clone)]
pub struct SqliteOptions {
    /// What tells the time. The store never lets it step back.
    pub clock: Arc<dyn Clock>,
    /// How long a call may take. A write without an answer by then has an unknown outcome.
    pub deadline: Duration,
    /// Whether jobs that the file's last process held are ready again at once, because the lock proves that it is gone.
    /// Otherwise they come back when its lease expires, as on a store that several processes share.
    pub recover_on_open: bool,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        SqliteOptions { clock: Arc::new(SystemClock), deadline: Duration::from_secs(30), recover_on_open: true }
    }
}

impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("deadline", &self.deadline)
            .field("recover_on_open", &self.recover_on_open)
            .finish_non_exhaustive()
    }
}

/// A store of jobs in a SQLite file.
pub struct SqliteStore {
    path: PathBuf,
    /// None for a store that was opened read-only.
    writer: Option<Writer>,
    /// None where everything runs on the writer's connection.
    readers: Option<Readers>,
    clock: Arc<SteadyClock>,
    deadline: Duration,
    /// Rung when a transaction of the application has brought jobs, which the runtime did not see.
    wake: Arc<Notify>,
    /// What tenants may use, as committed.
    quotas: RwLock<Arc<Quotas>>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens a file, or makes it; migrates it if needed. Refused while another process has it open for writing. Jobs
    /// that a process held when it died with this file are ready again at once. Blocks for a moment.
    pub fn open(path: impl AsRef<Path>) -> Result<SqliteStore> {
        SqliteStore::open_with(path, SqliteOptions::default())
    }

    /// The same, with options.
    pub fn open_with(path: impl AsRef<Path>, options: SqliteOptions) -> Result<SqliteStore> {
        let path = real_path(path.as_ref())?;
        let lock = FileLock::take(&path)?;
        let conn = Connection::open(&path).map_err(|e| cannot_open(&path, &e))?;
        let store = SqliteStore::start(conn, path, options, Some(lock))?;
        let version = rusqlite::version_number();
        if version < SAFE_READERS {
            tracing::warn!(
                version = rusqlite::version(),
                "this SQLite can corrupt a file that two connections use (fixed in 3.51.3): reads share the writer's connection"
            );
            return Ok(store);
        }
        Ok(SqliteStore { readers: Some(Readers::open(&store.path)?), ..store })
    }

    /// A store that is gone when it is dropped, for tests.
    pub fn open_in_memory(options: SqliteOptions) -> Result<SqliteStore> {
        let conn = Connection::open_in_memory().map_err(|e| sql_error(&e))?;
        SqliteStore::start(conn, PathBuf::from(":memory:"), options, None)
    }

    /// Opens a file for reading only, also while another process writes to it. Every write is refused.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<SqliteStore> {
        let path = path.as_ref();
        let path = path.canonicalize().map_err(|e| Error::Unavailable(format!("{}: {e}", path.display())))?;
        let readers = Readers::open(&path)?;
        readers.check(&path.display().to_string())?;
        let options = SqliteOptions::default();
        Ok(SqliteStore {
            path,
            writer: None,
            readers: Some(readers),
            clock: Arc::new(SteadyClock::new(options.clock)),
            deadline: options.deadline,
            wake: Arc::new(Notify::new()),
            quotas: RwLock::default(),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` in a transaction on the store's file: its own SQL and the jobs it submits commit together when it
    /// returns `Ok`, or not at all. It runs on the writer thread, alone; keep it short, and never wait in it for a call
    /// on the same store.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use windlass_sqlite::{SqliteOptions, SqliteStore, rusqlite};
    /// # let store = SqliteStore::open_in_memory(SqliteOptions::default())?;
    /// # let jobs = Vec::new();
    /// store
    ///     .transaction(move |tx| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///         tx.execute_batch("CREATE TABLE IF NOT EXISTS invoice (number INTEGER)")?;
    ///         tx.execute("INSERT INTO invoice (number) VALUES (?1)", [7])?;
    ///         tx.submit(&jobs)?;
    ///         Ok(())
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn transaction<T, E, F>(&self, work: F) -> std::result::Result<T, TxError<E>>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce(&SqliteTx<'_>) -> std::result::Result<T, E> + Send + 'static,
    {
        let value = self.writer()?.call(self.deadline, true, move |conn, state| tx::run(conn, state, work)).await?;
        self.wake.notify_one();
        Ok(value)
    }

    /// Runs `work` in a transaction that also completes a job: both happen, or neither. If the attempt has lost the job,
    /// or its cancel was requested, everything is rolled back and the error says so.
    pub async fn complete_in<T, E, F>(
        &self,
        node: NodeId,
        finish: Finish,
        work: F,
    ) -> std::result::Result<T, TxError<E>>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce(&SqliteTx<'_>) -> std::result::Result<T, E> + Send + 'static,
    {
        let work = move |conn: &Connection, state: &mut State| tx::run_and_complete(conn, state, node, finish, work);
        let value = self.writer()?.call(self.deadline, true, work).await?;
        self.wake.notify_one();
        Ok(value)
    }

    /// Prepares the writing connection and starts its thread.
    fn start(conn: Connection, path: PathBuf, options: SqliteOptions, lock: Option<FileLock>) -> Result<SqliteStore> {
        let shown = path.display().to_string();
        prepare(&conn, &shown).map_err(|fault| name_file(&shown, fault.into()))?;
        migrate::migrate(&conn, &shown)?;
        let clock = Arc::new(SteadyClock::new(options.clock));
        let silent_since = if options.recover_on_open { FOR_EVER } else { Timestamp::MIN };
        let state = take_over(&conn, clock.now(), silent_since).map_err(|fault| name_file(&shown, fault.into()))?;
        let quotas = RwLock::new(state.quotas.clone());
        Ok(SqliteStore {
            quotas,
            path,
            writer: Some(Writer::start(conn, state, clock.clone(), lock)?),
            readers: None,
            clock,
            deadline: options.deadline,
            wake: Arc::new(Notify::new()),
        })
    }

    fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| {
            let path = self.path.display();
            Error::Refused(format!("{path} is open read-only: ask the process that has it open for writing"))
        })
    }

    /// Runs `work` in the writer's next transaction.
    async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, &mut State) -> Done<T> + Send + 'static,
    {
        let work = move |conn: &Connection, state: &mut State| {
            work(conn, state).map_err(|fault| {
                let error = Error::from(fault);
                state.failure = Some(same_error(&error));
                error
            })
        };
        self.writer()?.call(self.deadline, false, work).await
    }

    /// Runs `work` on a reader, or on the writer where there are none.
    async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, Timestamp) -> Done<T> + Send + 'static,
    {
        let now = self.clock.now();
        match &self.readers {
            Some(readers) => readers.call(self.deadline, move |conn| work(conn, now)).await,
            None => match self.write(move |conn, state| work(conn, state.now)).await {
                // A read that was not answered has changed nothing.
                Err(Error::Unknown(message)) => Err(Error::Unavailable(message)),
                result => result,
            },
        }
    }
}

/// The path without links, so that two names of one file are one lock. Makes the file if it is not there.
fn real_path(path: &Path) -> Result<PathBuf> {
    let open = || {
        std::fs::OpenOptions::new().append(true).create(true).open(path)?;
        path.canonicalize()
    };
    open().map_err(|e| Error::Unavailable(format!("cannot open {}: {e}", path.display())))
}

fn cannot_open(path: &Path, error: &rusqlite::Error) -> Error {
    name_file(&path.display().to_string(), sql_error(error))
}

/// The same error with the file's name in it.
fn name_file(path: &str, error: Error) -> Error {
    match error {
        Error::Unavailable(message) => Error::Unavailable(format!("{path}: {message}")),
        Error::Full(message) => Error::Full(format!("{path}: {message}")),
        Error::Refused(message) => Error::Refused(format!("{path}: {message}")),
        Error::Internal(message) => Error::Internal(format!("{path}: {message}")),
        other => other,
    }
}

/// Sets what decides about durability, and refuses a file system on which it does not hold.
fn prepare(conn: &Connection, path: &str) -> Done<()> {
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" && path != ":memory:" {
        let message = format!("the file system does not allow a write-ahead log (journal mode is `{mode}`)");
        return Err(Error::Refused(message).into());
    }
    // FULL: a commit that was acknowledged survives a loss of power.
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    conn.query_row(&format!("PRAGMA journal_size_limit = {LOG_BYTES_KEPT}"), [], |_| Ok(()))?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(())
}

/// After every sign of life.
const FOR_EVER: Timestamp = Timestamp::from_micros(i64::MAX);

/// Reads the state of a file and frees what processes held that were last heard of at `silent_since` or before.
fn take_over(conn: &Connection, now: Timestamp, silent_since: Timestamp) -> Done<State> {
    let tx = conn.unchecked_transaction()?;
    let mut state = State::load(&tx, now)?;
    let recovered = node::recover(&tx, &mut state, silent_since)?;
    tx.commit()?;
    if !recovered.nodes.is_empty() {
        tracing::info!(nodes = recovered.nodes.len(), jobs = recovered.jobs.len(), "freed the jobs of ended processes");
    }
    Ok(state)
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    /// Two: one batch gathers while the other is committed.
    fn writers(&self) -> usize {
        2
    }

    async fn register(&self, node: NewNode) -> Result<NodeLease> {
        self.write(move |conn, state| node::register(conn, state, &node)).await
    }

    async fn heartbeat(&self, node: NodeId, running: usize) -> Result<Beat> {
        self.write(move |conn, state| node::heartbeat(conn, state, node, running)).await
    }

    async fn held(&self, node: NodeId) -> Result<Vec<Fence>> {
        self.read(move |conn, _| node::held(conn, node)).await
    }

    async fn deregister(&self, node: NodeId) -> Result<()> {
        self.write(move |conn, state| node::deregister(conn, state, node)).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.read(|conn, _| node::nodes(conn)).await
    }

    async fn submit(&self, submit: Submit) -> Result<Vec<Submitted>> {
        self.write(move |conn, state| submit::submit(conn, state, &submit.jobs, submit.lease, submit::Quota::Enforced))
            .await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        self.write(move |conn, state| claim::claim(conn, state, &claim)).await
    }

    async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        self.write(move |conn, state| finish::finish(conn, state, node, &finishes)).await
    }

    async fn report_progress(&self, node: NodeId, reports: Vec<ProgressReport>) -> Result<Vec<bool>> {
        self.write(move |conn, _| finish::report_progress(conn, node, &reports)).await
    }

    async fn add_logs(&self, node: NodeId, reports: Vec<LogReport>) -> Result<Vec<bool>> {
        self.write(move |conn, _| logs::add(conn, node, &reports)).await
    }

    async fn save_checkpoint(&self, node: NodeId, fence: Fence, data: Payload) -> Result<bool> {
        self.write(move |conn, _| finish::save_checkpoint(conn, node, fence, &data)).await
    }

    async fn get(&self, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>> {
        let ids = ids.to_vec();
        self.read(move |conn, now| Reader::new(conn, now)?.get(scope, &ids)).await
    }

    async fn input(&self, scope: Scope, id: JobId) -> Result<Option<Payload>> {
        self.read(move |conn, now| Reader::new(conn, now)?.input(scope, id)).await
    }

    async fn list(&self, scope: Scope, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>> {
        let filter = filter.clone();
        self.read(move |conn, now| Reader::new(conn, now)?.list(scope, &filter, page)).await
    }

    async fn search(&self, scope: Scope, filter: &JobFilter, page: Page, look_at: usize) -> Result<Found> {
        let filter = filter.clone();
        self.read(move |conn, now| Reader::new(conn, now)?.search(scope, &filter, page, look_at)).await
    }

    async fn count(&self, scope: Scope, filter: &JobFilter, cap: usize) -> Result<u64> {
        let filter = filter.clone();
        self.read(move |conn, now| Reader::new(conn, now)?.count(scope, &filter, cap)).await
    }

    async fn failing(&self, scope: Scope, filter: &JobFilter, newest: usize) -> Result<Vec<Failing>> {
        let filter = filter.clone();
        self.read(move |conn, now| Reader::new(conn, now)?.failing(scope, &filter, newest)).await
    }

    async fn history(&self, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>> {
        self.read(move |conn, now| Reader::new(conn, now)?.history(scope, id)).await
    }

    async fn logs(&self, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>> {
        self.read(move |conn, now| logs::read(conn, now, scope, id, after)).await
    }

    async fn counts(&self, scope: Scope) -> Result<Counts> {
        self.read(move |conn, _| read::counts(conn, scope)).await
    }

    async fn waiting_queues(&self) -> Result<Vec<WaitingQueue>> {
        self.read(|conn, _| read::waiting_queues(conn)).await
    }

    async fn whereabouts(&self, scope: Scope, id: JobId) -> Result<Option<Whereabouts>> {
        self.read(move |conn, now| Reader::new(conn, now)?.whereabouts(scope, id)).await
    }

    async fn cancel(&self, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        self.write(move |conn, state| steer::cancel(conn, state, scope, id, &by, &reason)).await
    }

    async fn replay(&self, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply> {
        let by = by.to_owned();
        self.write(move |conn, state| steer::replay(conn, state, scope, id, &by)).await
    }

    async fn mark_replayed(&self, scope: Scope, id: JobId, by: &str, as_job: JobId, keep: Duration) -> Result<bool> {
        let by = by.to_owned();
        self.write(move |conn, state| steer::mark_replayed(conn, state, scope, id, &by, as_job, keep)).await
    }

    async fn edit(&self, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply> {
        let (by, edit) = (by.to_owned(), edit.clone());
        self.write(move |conn, state| edit::edit(conn, state, scope, id, &by, &edit)).await
    }

    async fn purge(&self, scope: Scope, id: JobId, by: &str) -> Result<bool> {
        let by = by.to_owned();
        self.write(move |conn, state| steer::purge(conn, state, scope, id, &by)).await
    }

    async fn pause(&self, target: &PauseTarget, by: &str, reason: &str) -> Result<()> {
        let (target, by, reason) = (target.clone(), by.to_owned(), reason.to_owned());
        self.write(move |conn, state| steer::pause(conn, state, &target, &by, &reason)).await
    }

    async fn resume(&self, target: &PauseTarget, by: &str) -> Result<bool> {
        let (target, by) = (target.clone(), by.to_owned());
        self.write(move |conn, state| steer::resume(conn, state, &target, &by)).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        self.read(|conn, _| read::pauses(conn)).await
    }

    async fn audit(&self, entry: AuditEntry) -> Result<()> {
        self.write(move |conn, state| steer::audit(conn, state, &entry)).await
    }

    async fn audit_log(&self, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        let filter = filter.clone();
        self.read(move |conn, now| read::audit_log(conn, now, scope, &filter)).await
    }

    async fn record_cost(&self, scope: Scope, id: JobId, by: &str, cost: Cost) -> Result<bool> {
        let by = by.to_owned();
        self.write(move |conn, state| usage::record(conn, state, scope, id, &by, cost)).await
    }

    async fn usage_by_day(&self, scope: Scope, from: &str, to: &str) -> Result<Vec<UsageRow>> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.read(move |conn, _| usage::by_day(conn, scope, &from, &to)).await
    }

    async fn usage_events(&self, scope: Scope, after: u64, limit: usize) -> Result<Vec<UsageEvent>> {
        self.read(move |conn, _| usage::events(conn, scope, after, limit)).await
    }

    async fn data_keys(&self, scope: Scope) -> Result<Vec<DataKeyRecord>> {
        self.read(move |conn, _| keys::list(conn, scope)).await
    }

    async fn add_data_key(&self, tenant: TenantId, version: u32, wrapped: WrappedKey) -> Result<bool> {
        self.write(move |conn, state| keys::add(conn, state, tenant, version, &wrapped)).await
    }

    async fn rewrap_data_key(&self, tenant: TenantId, version: u32, old: &WrappedKey, new: WrappedKey) -> Result<bool> {
        let old = old.clone();
        self.write(move |conn, _| keys::rewrap(conn, tenant, version, &old, &new)).await
    }

    async fn destroy_data_keys(&self, tenant: TenantId) -> Result<usize> {
        self.write(move |conn, _| keys::destroy(conn, tenant)).await
    }

    async fn add_api_key(&self, record: ApiKeyRecord) -> Result<ApiKey> {
        self.write(move |conn, state| access::add(conn, state, record)).await
    }

    async fn api_keys(&self, scope: Scope) -> Result<Vec<ApiKey>> {
        self.read(move |conn, _| access::list(conn, scope)).await
    }

    async fn find_api_keys(&self, ids: &[String]) -> Result<Vec<ApiKeyRecord>> {
        let ids = ids.to_vec();
        self.read(move |conn, _| access::find(conn, &ids)).await
    }

    async fn revoke_api_key(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        let (id, by) = (id.to_owned(), by.to_owned());
        self.write(move |conn, state| access::revoke(conn, state, scope, &id, &by)).await
    }

    async fn note_api_key_uses(&self, uses: &[(String, Timestamp)]) -> Result<()> {
        let uses = uses.to_vec();
        self.write(move |conn, _| access::note_uses(conn, &uses)).await
    }

    async fn setting(&self, name: &str) -> Result<Option<String>> {
        let name = name.to_owned();
        self.read(move |conn, _| access::setting(conn, &name)).await
    }

    async fn set_setting_if_absent(&self, name: &str, value: &str) -> Result<String> {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.write(move |conn, _| access::set_setting_if_absent(conn, &name, &value)).await
    }

    async fn want_feed(&self, time: Duration) -> Result<()> {
        self.write(move |conn, state| feed::want(conn, state, time)).await
    }

    async fn feed_end(&self) -> Result<u64> {
        self.read(|conn, _| feed::end(conn)).await
    }

    async fn read_feed(&self, ask: &FeedAsk, limit: usize) -> Result<Vec<FeedRow>> {
        let ask = ask.clone();
        self.read(move |conn, _| feed::read(conn, &ask, limit)).await
    }

    async fn add_webhook(&self, record: WebhookRecord) -> Result<Webhook> {
        self.write(move |conn, state| feed::add_webhook(conn, state, record)).await
    }

    async fn webhooks(&self, scope: Scope) -> Result<Vec<WebhookRecord>> {
        self.read(move |conn, _| feed::webhooks(conn, scope)).await
    }

    async fn pause_webhook(&self, scope: Scope, id: &str, paused: bool, by: &str) -> Result<bool> {
        let (id, by) = (id.to_owned(), by.to_owned());
        self.write(move |conn, state| feed::pause_webhook(conn, state, scope, &id, paused, &by)).await
    }

    async fn remove_webhook(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        let (id, by) = (id.to_owned(), by.to_owned());
        self.write(move |conn, state| feed::remove_webhook(conn, state, scope, &id, &by)).await
    }

    async fn lead(&self, name: &str, node: NodeId, time: Duration) -> Result<Option<Lead>> {
        let name = name.to_owned();
        self.write(move |conn, state| feed::lead(conn, state, &name, node, time)).await
    }

    async fn advance_lead(&self, name: &str, term: u64, cursor: u64) -> Result<bool> {
        let name = name.to_owned();
        self.write(move |conn, _| feed::advance_lead(conn, &name, term, cursor)).await
    }

    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>, by: &str) -> Result<()> {
        let (quota, by) = (quota.cloned(), by.to_owned());
        let quotas = self.write(move |conn, state| quota::set(conn, state.now, of, quota.as_ref(), &by)).await?;
        // Only what is committed: a policy that was rolled back must not hold.
        let quotas = Arc::new(quotas);
        *self.quotas.write() = quotas.clone();
        self.write(move |_, state| {
            state.positions.set_shares(&quotas);
            state.quotas = quotas;
            Ok(())
        })
        .await
    }

    async fn quotas(&self) -> Result<Quotas> {
        self.read(|conn, _| quota::load(conn)).await
    }

    async fn tenant_uses(&self, scope: Scope) -> Result<Vec<TenantUse>> {
        self.read(move |conn, now| quota::uses(conn, now, scope)).await
    }

    fn limited(&self, tenant: TenantId) -> Limited {
        let quotas = self.quotas.read();
        match quotas.is_empty() {
            true => Limited::default(),
            false => Limited { submits: quotas.limiting(tenant).is_some(), running: quotas.cap(tenant).is_some() },
        }
    }

    async fn examine(&self, _: &Checkup) -> Result<Vec<Finding>> {
        let path = self.path.clone();
        self.read(move |conn, _| examine::examine(conn, &path)).await
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        self.write(move |conn, state| maintain::promote(conn, state, limit)).await
    }

    async fn recover(&self, lease: Duration) -> Result<Recovered> {
        self.write(move |conn, state| {
            let silent_since = state.now - lease;
            node::recover(conn, state, silent_since)
        })
        .await
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        self.write(move |conn, state| maintain::expire(conn, state, limit)).await
    }

    async fn open_gates(&self, limit: usize) -> Result<usize> {
        self.write(move |conn, state| maintain::open_gates(conn, state, limit)).await
    }

    async fn clean(&self, limit: usize) -> Result<usize> {
        self.write(move |conn, state| maintain::clean(conn, state, limit)).await
    }

    async fn add_activity(&self, at: Timestamp, additions: Vec<Addition>) -> Result<()> {
        self.write(move |conn, _| activity::add(conn, at, &additions)).await
    }

    async fn activity(&self, scope: Scope, resolution: Resolution, from: Timestamp) -> Result<Vec<Slice>> {
        self.read(move |conn, _| activity::slices(conn, scope, resolution, from)).await
    }

    async fn sample_depth(&self) -> Result<()> {
        // Counted by a reader, because the writer has better things to do.
        match self.read(activity::unknown_depth).await? {
            Some(counts) => self.write(move |conn, state| activity::keep_depth(conn, state.now, &counts)).await,
            None => Ok(()),
        }
    }

    async fn depths(&self, resolution: Resolution, from: Timestamp) -> Result<Vec<(Timestamp, Counts)>> {
        self.read(move |conn, _| activity::depths(conn, resolution, from)).await
    }

    async fn clean_activity(&self, limit: usize) -> Result<usize> {
        self.write(move |conn, state| activity::clean(conn, state.now, limit)).await
    }

    async fn backlog(&self, scope: Scope) -> Result<Vec<Waiting>> {
        self.read(move |conn, _| activity::backlog(conn, scope)).await
    }

    async fn vitals(&self) -> Result<Vitals> {
        self.read(activity::vitals).await
    }

    /// No other process writes to the file, so this tells only of jobs that a transaction of the application brought.
    async fn wait_for_wake(&self) {
        self.wake.notified().await;
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
