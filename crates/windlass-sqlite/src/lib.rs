//! Windlass on an embedded SQLite file: the store, how it is opened, and which thread a call runs on. Each step of a
//! job's life has its own file, named as in the other stores. Never decides what becomes of a job.
//!
//! One process at a time writes to a file; its own tables may live there too, and share transactions with jobs
//! ([`SqliteStore::transaction`], [`SqliteStore::complete_in`]).
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use windlass_core::store::Reads;
//! use windlass_sqlite::SqliteStore;
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("jobs.db");
//! let store = SqliteStore::open(&path)?;
//! assert_eq!(store.counts(windlass_core::Scope::Tenant(windlass_core::TenantId::ROOT)).await?.unfinished(), 0);
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```

mod ground;

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
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use windlass_core::store::Base;

use async_trait::async_trait;
use parking_lot::RwLock;
use rusqlite::Connection;
use tokio::sync::Notify;
use windlass_core::store::{Error, Finish, Limited, News, NodeId, Recovered, Result};
use windlass_core::supervise::LoopHealth;
use windlass_core::{Clock, Config, Quotas, SystemClock, TenantId, Timestamp};

pub use crate::ground::backup::backup;
pub use crate::ground::migrate::{SCHEMA_VERSION, migrations_sql, schema_version};
pub use crate::ground::private::{privacy, read_beside};
use crate::ground::tx::SqliteTransactions;
pub use crate::ground::tx::{SqliteTx, TxError, complete};
pub use rusqlite;

use crate::ground::lock::FileLock;
use crate::ground::readers::Readers;
use crate::ground::rows::{Done, same_error, sql_error};
use crate::ground::secrets::Secrets;
use crate::ground::writer::{State, SteadyClock, Writer};

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
    /// The clock. The store never lets it go backwards.
    pub clock: Arc<dyn Clock>,
    /// How long a call may take. A write that has not returned by then has an unknown outcome.
    pub deadline: Duration,
    /// Whether jobs that the file's last process held become ready at once, because the lock proves that this process
    /// has ended. Otherwise they become ready when its lease expires, as on a store that several processes share.
    pub recover_on_open: bool,
    /// Whether to create a missing file and migrate an older schema. Otherwise both are errors.
    pub migrate: bool,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        SqliteOptions {
            clock: Arc::new(SystemClock),
            deadline: Duration::from_secs(30),
            recover_on_open: true,
            migrate: true,
        }
    }
}

impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("deadline", &self.deadline)
            .field("recover_on_open", &self.recover_on_open)
            .field("migrate", &self.migrate)
            .finish_non_exhaustive()
    }
}

/// A job store in a SQLite file.
pub struct SqliteStore {
    path: PathBuf,
    /// None where everything runs on the writer's connection. Before the writer, because fields are dropped in order: the
    /// last connection writes the log back and removes it, which a reader cannot.
    readers: Option<Readers>,
    /// None for a store that was opened read-only.
    writer: Option<Arc<Writer>>,
    clock: Arc<SteadyClock>,
    deadline: Duration,
    /// Rung when a transaction of the application has brought jobs, which the runtime did not see.
    wake: Arc<Notify>,
    /// What tenants may use, as committed.
    quotas: RwLock<Arc<Quotas>>,
    secrets: Arc<Secrets>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens or creates a file, and migrates it if needed. Fails while another process has it open for writing. Jobs
    /// that a dead process held in this file become ready at once. Blocks for a moment.
    pub fn open(path: impl AsRef<Path>) -> Result<SqliteStore> {
        SqliteStore::open_with(path, SqliteOptions::default())
    }

    /// The same, with options.
    pub fn open_with(path: impl AsRef<Path>, options: SqliteOptions) -> Result<SqliteStore> {
        let path = real_path(path.as_ref(), options.migrate)?;
        let lock = FileLock::take(&path)?;
        let conn = Connection::open(&path).map_err(|e| cannot_open(&path, &e))?;
        let store = SqliteStore::start(conn, path, options, Some(lock))?;
        let version = rusqlite::version_number();
        if version < SAFE_READERS {
            tracing::warn!(
                version = rusqlite::version(),
                "this SQLite version can corrupt a file when two connections use it (fixed in 3.51.3): reads share the writer's connection"
            );
            return Ok(store);
        }
        Ok(SqliteStore { readers: Some(Readers::open(&store.path)?), ..store })
    }

    /// Opens a store that is lost when it is dropped, for tests.
    pub fn open_in_memory(options: SqliteOptions) -> Result<SqliteStore> {
        let conn = Connection::open_in_memory().map_err(|e| sql_error(&e))?;
        SqliteStore::start(conn, PathBuf::from(":memory:"), options, None)
    }

    /// Opens a file read-only, also while another process writes to it. Every write fails.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<SqliteStore> {
        let path = path.as_ref();
        let path = path.canonicalize().map_err(|e| Error::Unavailable(format!("{}: {e}", path.display())))?;
        let readers = Readers::open(&path)?;
        readers.check(&path.display().to_string())?;
        let options = SqliteOptions::default();
        Ok(SqliteStore {
            secrets: Arc::new(Secrets::of(&path)),
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
        let value = self
            .writer()?
            .call(self.deadline, true, move |conn, state| crate::ground::tx::run(conn, state, work))
            .await?;
        self.wake.notify_one();
        Ok(value)
    }

    /// Runs `work` in a transaction that also completes a job: both happen, or neither. If the attempt has lost the
    /// job, or its cancel was requested, everything is rolled back and the error says which.
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
        self.own_transactions()?.complete_in(node, finish, work).await
    }

    fn own_transactions(&self) -> Result<SqliteTransactions> {
        Ok(SqliteTransactions { writer: self.writer()?.clone(), deadline: self.deadline, wake: self.wake.clone() })
    }

    /// Prepares the writing connection and starts its thread.
    fn start(conn: Connection, path: PathBuf, options: SqliteOptions, lock: Option<FileLock>) -> Result<SqliteStore> {
        let shown = path.display().to_string();
        if !options.migrate {
            crate::ground::migrate::check(&conn, &shown)?;
        }
        prepare(&conn, &shown).map_err(|fault| name_file(&shown, fault.into()))?;
        crate::ground::migrate::migrate(&conn, &shown)?;
        let clock = Arc::new(SteadyClock::new(options.clock));
        let state =
            take_over(&conn, clock.now(), options.recover_on_open).map_err(|fault| name_file(&shown, fault.into()))?;
        let quotas = RwLock::new(state.quotas.clone());
        Ok(SqliteStore {
            quotas,
            secrets: Arc::new(Secrets::of(&path)),
            path,
            writer: Some(Arc::new(Writer::start(conn, state, clock.clone(), lock)?)),
            readers: None,
            clock,
            deadline: options.deadline,
            wake: Arc::new(Notify::new()),
        })
    }

    fn writer(&self) -> Result<&Arc<Writer>> {
        self.writer.as_ref().ok_or_else(|| {
            let path = self.path.display();
            Error::Refused(format!("{path} is open read-only; use the process that has it open for writing"))
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

/// The path without links, so that two names of one file are one lock. Creates the file, for its owner alone, if it is
/// wanted and not there; SQLite gives its own files beside it the same mode.
fn real_path(path: &Path, create: bool) -> Result<PathBuf> {
    let open = || {
        if create {
            crate::ground::private::open_private(path)?;
        }
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

/// Reads the state of a file, and frees what earlier processes held if asked to.
fn take_over(conn: &Connection, now: Timestamp, recover: bool) -> Done<State> {
    let tx = conn.unchecked_transaction()?;
    let mut state = State::load(&tx, now)?;
    let recovered = match recover {
        true => crate::nodes::bury_all(&tx, &mut state, Config::default().lease)?,
        false => Recovered::default(),
    };
    tx.commit()?;
    if !recovered.nodes.is_empty() {
        tracing::info!(
            nodes = recovered.nodes.len(),
            jobs = recovered.jobs.len(),
            "released the jobs of ended processes"
        );
    }
    Ok(state)
}

#[async_trait]
impl Base for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    /// Two: one batch gathers while the other is committed.
    fn writers(&self) -> usize {
        2
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn limited(&self, tenant: TenantId) -> Limited {
        let quotas = self.quotas.read();
        match quotas.is_empty() {
            true => Limited::default(),
            false => Limited { submits: quotas.limiting(tenant).is_some(), running: quotas.cap(tenant).is_some() },
        }
    }

    /// No other process writes to the file, so this tells only of jobs that a transaction of the application brought.
    async fn wait_for_wake(&self) -> News {
        self.wake.notified().await;
        News::Ready
    }

    /// There are none: one process has the file.
    fn wake_others(&self, _: News) {}

    fn loops(&self) -> Vec<LoopHealth> {
        self.writer.as_ref().map(|writer| writer.loops()).unwrap_or_default()
    }

    fn transactions(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::new(self.own_transactions().ok()?))
    }
}

/// The README of this crate, compiled as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
