//! Transactions that span the user's data and the job: submitting inside the user's own, and completing a job in
//! the transaction its handler worked in. Nothing here commits on its own account.

use std::ops::Deref;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};
use windlass_core::store::{Error, Fence, Finish, Finished, NodeId, Result, Submitted};
use windlass_core::{JobContext, NewJob, TenantId};

use crate::PgStore;
use crate::ground::connect::{Access, Conn, ENGINE_IDLE, Failure, Param, begin, limit_idle};
use crate::ground::rows::Row;
use crate::ground::types::Json;
use crate::jobs::finish::{Batch, Successes};
use crate::jobs::submit::{answers, to_json};

/// A transaction for the handler of one job. Run statements on it as on a [`Client`]; do not send `BEGIN` or `COMMIT`.
/// `app.tenant_id` is set to the job's tenant until it ends. Dropping it without `complete` or `commit` rolls it back.
pub struct PgJobTx {
    conn: Conn,
    store: PgStore,
    node: NodeId,
    fence: Fence,
}

impl std::fmt::Debug for PgJobTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgJobTx").field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl Deref for PgJobTx {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.conn.client()
    }
}

/// What handlers begin transactions with. All that leaves this crate of a store: nobody else can name it or look inside.
pub(crate) struct PgTransactions(PgStore);

impl PgTransactions {
    pub(crate) fn of(store: &PgStore) -> Self {
        PgTransactions(store.clone())
    }
}

impl PgStore {
    /// Opens a transaction for the handler of the job that `fence` names, with the tenant set for row-level security.
    pub async fn begin_job_tx(&self, node: NodeId, fence: Fence, tenant: TenantId) -> Result<PgJobTx> {
        let mut conn = self.shared.pools.tx.get().await?;
        conn.in_doubt();
        conn.run(Access::Read, &begin(self.shared.options.handler_idle)).await?;
        let tenant = tenant.to_string();
        let params: [Param<'_>; 1] = [(&tenant, Type::TEXT)];
        conn.query_inside(Access::Read, "select set_config('app.tenant_id', $1, true)", &params).await?;
        Ok(PgJobTx { conn, store: self.clone(), node, fence })
    }
}

impl PgJobTx {
    /// Ends the job as succeeded and commits, all or nothing. Returns false if the fence is lost or a cancel came
    /// first: then everything is rolled back, and this attempt can no longer end the job.
    pub async fn complete(mut self, finish: Finish) -> Result<bool> {
        let finishes = [finish];
        let mut finished = [Finished::Fenced];
        match Successes::pick(&self.store, self.node, &finishes) {
            (Some(success), _) => {
                let row = self.answer(&success.sql(), &success.params()).await?;
                // What is not accepted was canceled or is not held: either way the handler's writes must go.
                success.answers(&row, &mut finished)?;
            }
            (None, places) => {
                let batch = Batch::new(&self.store, self.node, &finishes, places)?;
                batch.answers(&self.answer(&batch.sql(), &batch.params()).await?, &mut finished)?;
            }
        }
        if finished != [Finished::Accepted(windlass_core::Status::Succeeded)] {
            self.conn.run(Access::Read, "rollback").await?;
            self.conn.settled();
            return Ok(false);
        }
        self.conn.run(Access::Write, "commit").await?;
        self.conn.settled();
        let keys = self.store.let_go(&finishes, &finished);
        crate::jobs::finish::pass_on(&self.store, keys).await;
        Ok(true)
    }

    /// Runs the statement that ends the job. From it on the transaction holds the lease, which others wait for; only the
    /// commit follows, so the server gives it up soon should this process fall silent. Both go out in one piece.
    async fn answer(&self, sql: &str, params: &[Param<'_>]) -> Result<Row> {
        let soon = limit_idle(ENGINE_IDLE);
        let (limited, rows) =
            futures_util::join!(self.conn.run(Access::Read, &soon), self.conn.query_inside(Access::Read, sql, params));
        limited?;
        let rows = rows?;
        rows.into_iter().next().ok_or_else(|| Error::Internal("no response to a finish".into()))
    }

    /// Commits the handler's writes and leaves the job running.
    pub async fn commit(mut self) -> Result<()> {
        self.conn.run(Access::Write, "commit").await?;
        self.conn.settled();
        Ok(())
    }

    /// Rolls back the handler's writes.
    pub async fn rollback(mut self) -> Result<()> {
        self.conn.run(Access::Read, "rollback").await?;
        self.conn.settled();
        Ok(())
    }
}

/// Opens a transaction for a running handler: `app.tenant_id` is set to the job's tenant until it ends, and
/// [`HandlerTx::complete`] ends the job together with the handler's writes.
///
/// ```
/// use windlass_core::{JobContext, JobError};
/// use windlass_postgres::transaction;
///
/// async fn charge(_: (), ctx: JobContext, cents: i64) -> Result<i64, JobError> {
///     let tx = transaction(&ctx).await?;
///     tx.execute("insert into charge (cents) values ($1)", &[&cents]).await?;
///     tx.complete(&cents).await?; // the row and the job's success commit together, or neither does
///     Ok(cents)
/// }
/// # let _ = charge;
/// ```
pub async fn transaction(ctx: &JobContext) -> std::result::Result<HandlerTx, windlass_core::Error> {
    let transactions = ctx.transactions().and_then(|transactions| transactions.downcast::<PgTransactions>().ok());
    let transactions = transactions.ok_or_else(|| Error::Refused("the job is not stored in PostgreSQL".into()))?;
    let tx = transactions.0.begin_job_tx(ctx.node(), ctx.fence(), ctx.tenant()).await?;
    Ok(HandlerTx { tx, ctx: ctx.clone() })
}

/// The transaction of a running handler. Run statements on it as on a [`Client`]; dropping it rolls it back.
#[derive(Debug)]
pub struct HandlerTx {
    tx: PgJobTx,
    ctx: JobContext,
}

impl Deref for HandlerTx {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.tx
    }
}

impl HandlerTx {
    /// Ends the job as succeeded with `output` and commits, all or nothing; return `output` from the handler
    /// afterwards. Fails with [`windlass_core::Error::LeaseLost`] if this attempt no longer holds the job or the job
    /// was canceled: everything is rolled back.
    pub async fn complete<T>(self, output: &T) -> std::result::Result<(), windlass_core::Error>
    where
        T: serde::Serialize + ?Sized,
    {
        let finish = self.ctx.success(output)?;
        // With the end of the job its lease goes, and what was said under it would be refused.
        self.ctx.flush().await;
        if !self.tx.complete(finish).await? {
            self.ctx.fence_refused();
            return Err(windlass_core::Error::LeaseLost(self.ctx.job_id()));
        }
        self.ctx.completed_in_transaction();
        Ok(())
    }

    /// Commits the handler's writes and leaves the job running.
    pub async fn commit(self) -> Result<()> {
        self.tx.commit().await
    }

    /// Rolls back the handler's writes.
    pub async fn rollback(self) -> Result<()> {
        self.tx.rollback().await
    }
}

/// Submits jobs of any kind, given as JSON, within the quotas, in a transaction of the caller's own:
/// `sql/jobs/submit_jobs.sql`.
const SUBMIT_JOBS_WITHIN: &str = "select id, duplicate from windlass.submit_jobs_within($1)";

/// Submits inside a transaction of `tokio-postgres`: the jobs exist exactly if it commits.
pub async fn submit_in<C: GenericClient + Sync>(transaction: &C, jobs: &[NewJob]) -> Result<Vec<Submitted>> {
    let json = checked_json(jobs)?;
    // Without holding the tenants' rows: the transaction may take as long as it likes.
    let params: [Param<'_>; 1] = [(&Json(&json), Type::JSON)];
    match transaction.query_typed(SUBMIT_JOBS_WITHIN, &params).await {
        Ok(rows) => answers(rows.into_iter().map(Row).collect()),
        Err(error) => Err(Failure::of(error, Access::Read).into()),
    }
}

/// Jobs as JSON, none of which is the engine's own: only the engine submits those.
fn checked_json(jobs: &[NewJob]) -> Result<String> {
    jobs.iter().try_for_each(NewJob::check_unreserved)?;
    to_json(&jobs.iter().collect::<Vec<_>>())
}

/// The statement of [`submit_in`] for drivers that bind JSON as text.
#[cfg(any(feature = "sqlx", feature = "seaorm"))]
const JOBS_FROM_TEXT: &str = "select id, duplicate from windlass.submit_jobs_within($1::text::json)";

/// What an error of `sqlx` means: the same as one of our own connections, so that a quota that is exceeded says so.
#[cfg(any(feature = "sqlx", feature = "seaorm"))]
fn of_sqlx(error: &driver::Error) -> Error {
    let driver::Error::Database(db) = error else { return Error::Unavailable(error.to_string()) };
    let code = tokio_postgres::error::SqlState::from_code(&db.code().unwrap_or_default());
    let detail = db.try_downcast_ref::<driver::postgres::PgDatabaseError>().and_then(|db| db.detail());
    Failure::answered(&code, db.message(), detail, Access::Read).into()
}

#[cfg(all(feature = "seaorm", not(feature = "sqlx")))]
use sea_orm::sqlx as driver;
#[cfg(feature = "sqlx")]
use sqlx as driver;

/// Submits inside a transaction of `sqlx` 0.9 (feature `sqlx`): the jobs exist exactly if it commits.
#[cfg(feature = "sqlx")]
pub async fn submit_in_sqlx<'e, E>(executor: E, jobs: &[NewJob]) -> Result<Vec<Submitted>>
where
    E: sqlx::PgExecutor<'e>,
{
    let json = checked_json(jobs)?;
    let rows: Vec<(i64, bool)> = sqlx::query_as(JOBS_FROM_TEXT)
        .bind(json)
        // Unnamed, so that it works behind PgBouncer.
        .persistent(false)
        .fetch_all(executor)
        .await
        .map_err(|error| of_sqlx(&error))?;
    let submitted = |(id, duplicate)| Submitted { id: windlass_core::JobId::from_i64(id), duplicate };
    Ok(rows.into_iter().map(submitted).collect())
}

/// Submits inside a transaction of SeaORM 2 (feature `seaorm`): the jobs exist exactly if it commits.
#[cfg(feature = "seaorm")]
pub async fn submit_in_seaorm<C>(transaction: &C, jobs: &[NewJob]) -> Result<Vec<Submitted>>
where
    C: sea_orm::ConnectionTrait,
{
    let json = checked_json(jobs)?;
    let statement =
        sea_orm::Statement::from_sql_and_values(sea_orm::DbBackend::Postgres, JOBS_FROM_TEXT, [json.into()]);
    let internal = |error: sea_orm::DbErr| Error::Internal(error.to_string());
    let rows = transaction.query_all_raw(statement).await.map_err(|error| match &error {
        sea_orm::DbErr::Query(sea_orm::RuntimeErr::SqlxError(error))
        | sea_orm::DbErr::Exec(sea_orm::RuntimeErr::SqlxError(error)) => of_sqlx(error),
        sea_orm::DbErr::Conn(_) | sea_orm::DbErr::ConnectionAcquire(_) => Error::Unavailable(error.to_string()),
        _ => internal(error),
    })?;
    let submitted = |row: &sea_orm::QueryResult| {
        let id: i64 = row.try_get_by_index(0).map_err(internal)?;
        let duplicate: bool = row.try_get_by_index(1).map_err(internal)?;
        Ok(Submitted { id: windlass_core::JobId::from_i64(id), duplicate })
    };
    rows.iter().map(submitted).collect()
}
