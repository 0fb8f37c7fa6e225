//! The one thread that writes: it owns the one writing connection and puts everything that waits into the next
//! transaction, so that many callers share one sync of the disk. Called by `lib` with closures; answers only after the
//! commit. Never knows what a request does.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, ffi};
use tokio::sync::{mpsc, oneshot};
use windlass_core::fair::{Line, Positions};
use windlass_core::store::{Error, Result};
use windlass_core::supervise::{LoopHealth, Supervisor, panic_message};
use windlass_core::{Clock, Quotas, Timestamp};

use crate::feed;
use crate::ground::lock::FileLock;
use crate::ground::rows::{Columns, Done, readable, same_error, sql_error};
use crate::tenancy::quota::{self, BytesCounts};

/// Requests that may wait for the writer. Callers beyond it wait to get in, and give up at their deadline.
const WAITING_MAX: usize = 1_024;

/// Requests in one transaction: enough to share a sync of the disk, few enough that the first is answered soon.
const GROUP_MAX: usize = 256;

/// How long readers in other processes are waited for when the log is written back at the end: a second look at a list,
/// not a program that reads for minutes.
const CLOSING: Duration = Duration::from_secs(1);

/// What the writer knows besides the file. Everything here can be rebuilt from it.
pub(crate) struct State {
    /// Where new chunks go.
    pub(crate) positions: Positions,
    /// Ready jobs that have ended; their ids are still in a chunk.
    pub(crate) withdrawn: HashSet<i64>,
    /// Whether ordering keys without a holder have been looked for since the file was opened.
    pub(crate) keys_checked: bool,
    /// The time of the request that runs.
    pub(crate) now: Timestamp,
    /// Why the last request failed, for those that were undone with it.
    pub(crate) failure: Option<Error>,
    /// What tenants may use, as committed.
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) bytes_counts: BytesCounts,
    /// Until when status events are wanted.
    pub(crate) feed_until: Timestamp,
}

impl State {
    /// Reads what the file says.
    pub(crate) fn load(conn: &Connection, now: Timestamp) -> Done<State> {
        let mut state = State {
            positions: Positions::default(),
            withdrawn: HashSet::new(),
            keys_checked: false,
            now,
            failure: None,
            quotas: Arc::new(quota::load(conn)?),
            bytes_counts: BytesCounts::default(),
            feed_until: feed::wanted_until(conn)?,
        };
        state.positions.set_shares(&state.quotas);
        let mut chunks =
            conn.prepare("SELECT queue, -rank, tenant, position, jobs FROM windlass_ready ORDER BY position DESC")?;
        let mut rows = chunks.query([])?;
        let mut lowest = std::collections::HashMap::new();
        while let Some(row) = rows.next()? {
            let chunk = || {
                let line = Line { queue: row.text(0)?, priority: row.priority(1)? };
                Ok((line, row.tenant(2)?, row.get::<_, i64>(3)?, row.get::<_, i64>(4)?))
            };
            let Some((line, tenant, position, jobs)) = readable(chunk())? else { continue };
            state.positions.seen(&line, tenant, position, usize::try_from(jobs).unwrap_or(0));
            lowest.insert(line, position);
        }
        for (line, position) in lowest {
            state.positions.served(&line, position);
        }
        state.load_withdrawn(conn)?;
        Ok(state)
    }

    fn load_withdrawn(&mut self, conn: &Connection) -> Done<()> {
        let mut withdrawn = conn.prepare_cached("SELECT job FROM windlass_withdrawn")?;
        let mut rows = withdrawn.query([])?;
        self.withdrawn.clear();
        while let Some(row) = rows.next()? {
            self.withdrawn.extend(readable(row.get::<_, i64>(0).map_err(Into::into))?);
        }
        Ok(())
    }
}

/// The store's time: the clock's, but it never steps back.
pub(crate) struct SteadyClock {
    clock: Arc<dyn Clock>,
    last: AtomicI64,
}

impl SteadyClock {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        SteadyClock { clock, last: AtomicI64::new(i64::MIN) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let now = self.clock.now().as_micros();
        Timestamp::from_micros(self.last.fetch_max(now, Ordering::Relaxed).max(now))
    }
}

/// The callers' end of the writer.
pub(crate) struct Writer {
    requests: Option<mpsc::Sender<Box<dyn Request>>>,
    thread: Option<JoinHandle<()>>,
    supervisor: Supervisor,
}

impl Writer {
    /// Starts the thread. The lock is given back when the connection has been closed.
    pub(crate) fn start(
        conn: Connection,
        state: State,
        clock: Arc<SteadyClock>,
        lock: Option<FileLock>,
    ) -> Result<Writer> {
        let (requests, waiting) = mpsc::channel(WAITING_MAX);
        let mut thread = WriterThread { conn, state, clock, waiting, _lock: lock };
        let supervisor = Supervisor::default();
        let thread = supervisor
            .spawn_thread("sqlite", move || thread.serve())
            .map_err(|e| Error::Unavailable(format!("cannot start the writer thread: {e}")))?;
        Ok(Writer { requests: Some(requests), thread: Some(thread), supervisor })
    }

    /// How the thread is.
    pub(crate) fn loops(&self) -> Vec<LoopHealth> {
        self.supervisor.loops()
    }

    /// Runs `work` in the next transaction, or in one of its own. Nothing has happened if it fails, unless the error
    /// says the outcome is unknown.
    pub(crate) async fn call<T, E, F>(&self, deadline: Duration, alone: bool, work: F) -> std::result::Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        F: FnOnce(&Connection, &mut State) -> std::result::Result<T, E> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let call = Call { work: Some(work), result: None, reply, alone };
        let until = tokio::time::Instant::now() + deadline;
        let requests = self.requests.as_ref().expect("the sender is there until the store is dropped");
        match tokio::time::timeout_at(until, requests.reserve()).await {
            Ok(Ok(permit)) => permit.send(Box::new(call)),
            Ok(Err(_)) => return Err(Error::Unavailable("the writer has stopped".into()).into()),
            Err(_) => return Err(Error::Unavailable(format!("the writer was busy for {deadline:?}")).into()),
        }
        match tokio::time::timeout_at(until, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Error::Unknown("the writer stopped before it returned a result".into()).into()),
            Err(_) => Err(Error::Unknown(format!("no result within {deadline:?}")).into()),
        }
    }
}

impl Drop for Writer {
    /// Waits for what is under way, so that the file is closed and free when the store is gone.
    fn drop(&mut self) {
        self.requests = None;
        let Some(thread) = self.thread.take() else { return };
        // A closure of the application may own the last handle and be dropped on the writer itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the writer thread of a SQLite store panicked");
        }
    }
}

/// Something to do in a transaction.
trait Request: Send {
    /// Whether it must not share its transaction.
    fn alone(&self) -> bool;
    /// Does it and keeps the result; false if what it did must be undone.
    fn run(&mut self, conn: &Connection, state: &mut State) -> bool;
    /// Answers, with `failure` instead of the result where the transaction failed.
    fn answer(self: Box<Self>, failure: Option<&Error>);
}

struct Call<T, E, F> {
    work: Option<F>,
    result: Option<std::result::Result<T, E>>,
    reply: oneshot::Sender<std::result::Result<T, E>>,
    alone: bool,
}

impl<T, E, F> Request for Call<T, E, F>
where
    T: Send,
    E: From<Error> + Send,
    F: FnOnce(&Connection, &mut State) -> std::result::Result<T, E> + Send,
{
    fn alone(&self) -> bool {
        self.alone
    }

    fn run(&mut self, conn: &Connection, state: &mut State) -> bool {
        let work = self.work.take().expect("a request runs once");
        let result = catch_unwind(AssertUnwindSafe(|| work(conn, state))).unwrap_or_else(|panic| {
            Err(Error::Internal(format!("a store request panicked: {}", panic_message(&*panic))).into())
        });
        let keep = result.is_ok();
        self.result = Some(result);
        keep
    }

    fn answer(self: Box<Self>, failure: Option<&Error>) {
        let result = match (self.result, failure) {
            // Its own failure says more than the group's.
            (Some(Err(own)), _) => Err(own),
            (_, Some(failure)) => Err(same_error(failure).into()),
            (Some(ok), None) => ok,
            (None, None) => Err(Error::Internal("a request was not run".into()).into()),
        };
        // A caller that has gone does not want to know.
        let _ = self.reply.send(result);
    }
}

struct WriterThread {
    conn: Connection,
    state: State,
    clock: Arc<SteadyClock>,
    /// Outlives a panic, so that whoever waits is served by the next start.
    waiting: mpsc::Receiver<Box<dyn Request>>,
    /// Given back last, when the connection has been closed.
    _lock: Option<FileLock>,
}

impl WriterThread {
    fn serve(&mut self) {
        // What a panic has left open was answered to nobody.
        if !self.conn.is_autocommit() {
            self.roll_back();
        }
        let mut next = self.waiting.blocking_recv();
        while let Some(first) = next.take() {
            let mut group = vec![first];
            while group.len() < GROUP_MAX && !group[0].alone() {
                match self.waiting.try_recv() {
                    Ok(request) if request.alone() => {
                        next = Some(request);
                        break;
                    }
                    Ok(request) => group.push(request),
                    Err(_) => break,
                }
            }
            let failure = self.commit(&mut group).err();
            for request in group {
                request.answer(failure.as_ref());
            }
            if next.is_none() {
                next = self.waiting.blocking_recv();
            }
        }
        self.write_log_back();
    }

    /// Leaves everything in the one file that people copy, also where another process still reads and closing the
    /// connection would not do it.
    fn write_log_back(&self) {
        let truncate = || -> rusqlite::Result<()> {
            self.conn.busy_timeout(CLOSING)?;
            self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        };
        if let Err(error) = truncate() {
            tracing::warn!(%error, "could not write back the log of a SQLite file; the next open does it");
        }
    }

    /// Runs a group in one transaction. A request that fails is undone alone; an error here undoes all.
    fn commit(&mut self, group: &mut [Box<dyn Request>]) -> Result<()> {
        self.execute("BEGIN IMMEDIATE").map_err(|e| sql_error(&e))?;
        let undo_one_by_one = group.len() > 1;
        let mut undone = false;
        for request in group.iter_mut() {
            self.state.now = self.clock.now();
            self.state.failure = None;
            if undo_one_by_one {
                self.execute("SAVEPOINT request").map_err(|e| self.abandon(&e))?;
            }
            let keep = request.run(&self.conn, &mut self.state);
            if self.conn.is_autocommit() {
                // A full disk or a failed read or write makes SQLite undo the whole transaction by itself.
                self.forget();
                let cause = self.state.failure.take();
                return Err(cause.unwrap_or_else(|| Error::Unavailable("SQLite undid the transaction".into())));
            }
            undone |= !keep;
            if undo_one_by_one {
                let end = if keep { "RELEASE request" } else { "ROLLBACK TO request; RELEASE request" };
                self.conn.execute_batch(end).map_err(|e| self.abandon(&e))?;
            }
        }
        if undone && !undo_one_by_one {
            let rolled_back = self.execute("ROLLBACK");
            self.forget();
            return rolled_back.map_err(|e| sql_error(&e));
        }
        if let Err(error) = self.execute("COMMIT") {
            let error = commit_error(&error);
            self.roll_back();
            return Err(error);
        }
        if undone {
            self.forget();
        }
        Ok(())
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql)?.execute([]).map(drop)
    }

    fn abandon(&mut self, error: &rusqlite::Error) -> Error {
        self.roll_back();
        sql_error(error)
    }

    fn roll_back(&mut self) {
        if !self.conn.is_autocommit()
            && let Err(error) = self.execute("ROLLBACK")
        {
            tracing::error!(%error, "could not roll back a SQLite transaction");
        }
        self.forget();
    }

    /// Takes what was undone out of memory, too. Positions are only hints and may stay.
    fn forget(&mut self) {
        if let Err(fault) = self.state.load_withdrawn(&self.conn) {
            tracing::error!(error = %Error::from(fault), "could not read withdrawn jobs");
        }
    }
}

/// What a failed commit means: after a failed write to the disk nobody knows what a crash would bring back.
fn commit_error(error: &rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ffi::ErrorCode::SystemIoFailure) => Error::Unknown(format!("the commit failed: {error}")),
        _ => sql_error(error),
    }
}
