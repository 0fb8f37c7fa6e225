//! The application's own transactions on the store's file: submit jobs with business writes, or complete a job
//! with them, all or nothing. Runs the application's closure on the writer thread, alone in its transaction.
//! Never lets a closure that fails, panics or ends the transaction itself leave half of its work as accepted.

use std::cell::RefCell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Notify;
use windlass_core::store::{self, Finish, Finished, NodeId, Submitted};
use windlass_core::supervise::panic_message;
use windlass_core::{JobContext, JobId, NewJob, Status, Timestamp};

use crate::ground::rows::Fault;
use crate::ground::writer::{State, Writer};
use crate::jobs::finish::{self, Held};
use crate::jobs::submit;

/// Completes the job of a running handler together with the handler's own writes: `work` and the job's success
/// with `output` commit in one transaction, or neither happens. Return `output` from the handler afterwards; the
/// runtime knows that the job has already ended.
///
/// ```
/// use windlass_core::{JobContext, JobError};
/// use windlass_sqlite::complete;
///
/// async fn charge(_: (), ctx: JobContext, cents: i64) -> Result<i64, JobError> {
///     complete(&ctx, &cents, move |tx| tx.execute("INSERT INTO charge (cents) VALUES (?1)", [cents])).await?;
///     Ok(cents)
/// }
/// # let _ = charge;
/// ```
pub async fn complete<T, E, F, O>(ctx: &JobContext, output: &O, work: F) -> Result<T, TxError<E>>
where
    T: Send + 'static,
    E: Send + 'static,
    F: FnOnce(&SqliteTx<'_>) -> Result<T, E> + Send + 'static,
    O: serde::Serialize + ?Sized,
{
    let transactions = ctx.transactions().and_then(|transactions| transactions.downcast::<SqliteTransactions>().ok());
    let transactions = transactions.ok_or_else(|| store::Error::Refused("the job is not stored in SQLite".into()))?;
    let finish = ctx.success(output).map_err(store::Error::from)?;
    // With the end of the job its lease goes, and what was said under it would be refused.
    ctx.flush().await;
    let value = transactions.complete_in(ctx.node(), finish, work).await.inspect_err(|error| {
        if matches!(error, TxError::LeaseLost(_)) {
            ctx.fence_refused();
        }
    })?;
    ctx.completed_in_transaction();
    Ok(value)
}

/// What handlers complete jobs with. All that leaves this crate of a store: nobody else can name it or look inside.
pub(crate) struct SqliteTransactions {
    pub(crate) writer: Arc<Writer>,
    pub(crate) deadline: Duration,
    pub(crate) wake: Arc<Notify>,
}

impl SqliteTransactions {
    /// Runs `work` and completes a job in one transaction, all or nothing.
    pub(crate) async fn complete_in<T, E, F>(&self, node: NodeId, finish: Finish, work: F) -> Result<T, TxError<E>>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce(&SqliteTx<'_>) -> Result<T, E> + Send + 'static,
    {
        let work = move |conn: &Connection, state: &mut State| run_and_complete(conn, state, node, finish, work);
        let value = self.writer.call(self.deadline, true, work).await?;
        self.wake.notify_one();
        Ok(value)
    }
}

/// A transaction on the store's file. Use it as a [`rusqlite::Connection`] for your own tables (names that begin with
/// `windlass_` belong to the store), and [`submit`](SqliteTx::submit) jobs that exist exactly if it commits.
///
/// The store commits when the closure returns `Ok` and rolls back when it returns `Err` or panics. Do not run `BEGIN`,
/// `COMMIT` or `ROLLBACK` yourself: the store detects it and rejects the closure's result, but cannot undo what such a
/// statement has committed. All other writes wait for the transaction, so keep it short.
pub struct SqliteTx<'a> {
    conn: &'a Connection,
    state: RefCell<&'a mut State>,
}

impl std::fmt::Debug for SqliteTx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteTx").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl SqliteTx<'_> {
    /// The store's time in this transaction.
    pub fn now(&self) -> Timestamp {
        self.state.borrow().now
    }

    /// Stores jobs, in order, all or none; they become visible when the transaction commits.
    pub fn submit(&self, jobs: &[NewJob]) -> store::Result<Vec<Submitted>> {
        jobs.iter().try_for_each(NewJob::check_unreserved)?;
        // The closure may go on after an error, so a submit that fails halfway must leave nothing by itself.
        let submit = || -> Result<Vec<Submitted>, Fault> {
            self.conn.execute_batch("SAVEPOINT windlass_submit")?;
            let stored = submit::submit(self.conn, &mut self.state.borrow_mut(), jobs, None, submit::Quota::Enforced);
            let end = match &stored {
                Ok(_) => "RELEASE windlass_submit",
                Err(_) => "ROLLBACK TO windlass_submit; RELEASE windlass_submit",
            };
            self.conn.execute_batch(end)?;
            stored
        };
        submit().map_err(store::Error::from)
    }
}

impl Deref for SqliteTx<'_> {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        self.conn
    }
}

/// Why a transaction of the application was not committed. `E` is the closure's own error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxError<E> {
    /// The closure returned this; everything was rolled back.
    #[error("the transaction was rolled back")]
    Rejected(E),
    /// The closure panicked with this message; everything was rolled back.
    #[error("the transaction's closure panicked: {0}")]
    Panicked(String),
    /// This attempt no longer holds the job: another node has it, or it has ended. Everything was rolled back.
    #[error("job {0}: lease lost")]
    LeaseLost(JobId),
    /// The job's cancel was requested, so no completion is accepted. Everything was rolled back.
    #[error("job {0}: cancel requested")]
    CancelRequested(JobId),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Runs the application's closure inside the transaction under way.
pub(crate) fn run<T, E>(
    conn: &Connection,
    state: &mut State,
    work: impl FnOnce(&SqliteTx<'_>) -> Result<T, E>,
) -> Result<T, TxError<E>> {
    // If the closure ends the transaction, even to begin another, this savepoint is gone.
    conn.execute_batch("SAVEPOINT windlass_application").map_err(fault)?;
    let tx = SqliteTx { conn, state: RefCell::new(state) };
    let result = catch_unwind(AssertUnwindSafe(|| work(&tx)));
    let value = match result {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => return Err(TxError::Rejected(error)),
        Err(panic) => return Err(TxError::Panicked(panic_message(&*panic).to_owned())),
    };
    let ours = !conn.is_autocommit() && conn.execute_batch("RELEASE windlass_application").is_ok();
    if !ours {
        let message = "the closure ended the store's transaction; it must not run BEGIN, COMMIT or ROLLBACK";
        return Err(store::Error::Refused(message.into()).into());
    }
    Ok(value)
}

/// Runs the application's closure and completes the job, if the attempt still owns it.
fn run_and_complete<T, E>(
    conn: &Connection,
    state: &mut State,
    node: NodeId,
    finish: Finish,
    work: impl FnOnce(&SqliteTx<'_>) -> Result<T, E>,
) -> Result<T, TxError<E>> {
    let fence = finish.fence;
    // Looked at first, so that the closure does not run for nothing.
    let held = Held::load(conn, node, fence.lease).map_err(store::Error::from)?;
    let Some(held) = held.filter(|held| held.holds(fence.job.as_i64())) else {
        return Err(TxError::LeaseLost(fence.job));
    };
    if held.cancels.contains_key(&fence.job.as_i64()) {
        return Err(TxError::CancelRequested(fence.job));
    }
    let value = run(conn, state, work)?;
    match finish::finish(conn, state, node, &[finish]).map_err(store::Error::from)?.pop() {
        Some(Finished::Accepted(Status::Succeeded)) => Ok(value),
        Some(Finished::Accepted(_)) => Err(TxError::CancelRequested(fence.job)),
        _ => Err(TxError::LeaseLost(fence.job)),
    }
}

fn fault<E>(error: rusqlite::Error) -> TxError<E> {
    TxError::Store(store::Error::from(Fault::from(error)))
}
