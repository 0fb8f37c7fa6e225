//! A few read-only connections, so that people looking at jobs do not wait for the writer nor hold it up. Called by
//! `lib` with closures, each run in a short transaction of its own. Never writes and never checkpoints.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;
use windlass_core::store::{Error, Result};

use crate::ground::rows::{Done, sql_error};

/// Connections for reading. Two, so that one slow list does not hold up every look at a job.
const READERS: usize = 2;

pub(crate) struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    free: Arc<Semaphore>,
}

impl Readers {
    pub(crate) fn open(path: &Path) -> Result<Readers> {
        let connections = (0..READERS).map(|_| open_reader(path)).collect::<Result<Vec<_>>>()?;
        Ok(Readers { idle: Arc::new(Mutex::new(connections)), free: Arc::new(Semaphore::new(READERS)) })
    }

    /// Refuses a file whose schema this version does not read.
    pub(crate) fn check(&self, path: &str) -> Result<()> {
        self.idle.lock().first().map_or(Ok(()), |conn| crate::ground::migrate::check(conn, path))
    }

    /// Runs `work` on a connection of its own. At the deadline the query is interrupted.
    pub(crate) async fn call<T, F>(&self, deadline: Duration, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Done<T> + Send + 'static,
    {
        let until = tokio::time::Instant::now() + deadline;
        let too_slow = || Error::Unavailable(format!("the read took longer than {deadline:?}"));
        let free = tokio::time::timeout_at(until, self.free.clone().acquire_owned()).await;
        let permit = free.map_err(|_| too_slow())?.map_err(|_| Error::Unavailable("the store is closed".into()))?;
        let conn =
            self.idle.lock().pop().ok_or_else(|| Error::Unavailable("no connection is free for reading".into()))?;
        let interrupt = conn.get_interrupt_handle();
        // Given back also when `work` panics, and before the permit is.
        let lent = Lent { conn: Some(conn), idle: self.idle.clone() };
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let lent = lent;
            read(lent.conn.as_ref().expect("lent until dropped"), work)
        });
        match tokio::time::timeout_at(until, reading).await {
            Ok(Ok(result)) => result.map_err(Error::from),
            Ok(Err(panic)) => Err(Error::Internal(format!("a read failed: {panic}"))),
            Err(_) => {
                interrupt.interrupt();
                Err(too_slow())
            }
        }
    }
}

struct Lent {
    conn: Option<Connection>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.idle.lock().extend(self.conn.take());
    }
}

/// One transaction, so that all statements of a read see the same moment.
fn read<T>(conn: &Connection, work: impl FnOnce(&Connection) -> Done<T>) -> Done<T> {
    let tx = conn.unchecked_transaction()?;
    let result = work(&tx);
    tx.rollback()?;
    result
}

fn open_reader(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || -> rusqlite::Result<Connection> {
        let conn = Connection::open_with_flags(path, flags)?;
        conn.busy_timeout(crate::BUSY_TIMEOUT)?;
        conn.set_prepared_statement_cache_capacity(crate::STATEMENTS_KEPT);
        Ok(conn)
    };
    open().map_err(|e| match sql_error(&e) {
        Error::Unavailable(message) => Error::Unavailable(format!("cannot open {}: {message}", path.display())),
        other => other,
    })
}
