//! Jobs and the application's own transactions, through the service: submits with `tokio-postgres`, `sqlx` and SeaORM
//! (SUB-3), and handlers that complete in their own transaction (RUN-8, RUN-9).

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Database;
use windlass_core::store::Store;
use windlass_core::store::rooms::*;
use windlass_core::{
    Cost, Error, HandlerOptions, JobContext, JobError, JobId, JobService, LogLevel, NewJob, RetryPolicy,
    SecurityContext, Status, SubmitOptions, TenantId,
};
use windlass_postgres::{PgStore, transaction};

const SOON: Duration = Duration::from_secs(20);

async fn service(database: &Database) -> JobService {
    let store = Arc::new(PgStore::connect(&database.url).await.expect("connects"));
    let once = HandlerOptions::new().retry(RetryPolicy::fixed(2, Duration::from_millis(10)));
    JobService::builder(store).function_with("book", once, (), book).start().await.expect("starts")
}

fn ctx() -> SecurityContext {
    SecurityContext::new(TenantId(uuid::Uuid::from_u128(7)))
}

async fn prepared(jobs: &JobService, cents: i64) -> NewJob {
    jobs.prepare_named(&ctx(), "book", &cents, SubmitOptions::new()).await.expect("accepted")
}

/// Books an amount under the tenant that the transaction is set to. An odd amount fails after its write,
/// once.
async fn book(_: (), ctx: JobContext, cents: i64) -> Result<i64, JobError> {
    let tx = transaction(&ctx).await?;
    let insert = "insert into booking (cents, tenant) values ($1, current_setting('app.tenant_id'))";
    tx.execute(insert, &[&cents]).await?;
    ctx.log(LogLevel::Info, format!("booked {cents}"));
    ctx.record_cost(Cost::new(cents, 1));
    if cents % 2 == 1 && ctx.attempt() == 1 {
        return Err(JobError::retryable("failed after the write"));
    }
    tx.complete(&cents).await?;
    Ok(cents)
}

async fn bookings(client: &tokio_postgres::Client) -> Vec<(i64, String)> {
    let rows = client.query("select cents, tenant from booking order by cents", &[]).await.expect("reads");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// RUN-8, RUN-9: the write of a failed attempt is gone, that of the successful one is there once, under its tenant.
#[tokio::test]
async fn a_handlers_writes_happen_exactly_once_under_its_tenant() {
    let database = Database::fresh().await;
    let client = database.client().await;
    client.batch_execute("create table booking (cents bigint, tenant text)").await.expect("creates");
    let jobs = service(&database).await;
    for cents in [100_i64, 101] {
        let id = jobs.submit_named(&ctx(), "book", &cents, SubmitOptions::new()).await.expect("accepted").id;
        assert_eq!(jobs.wait_for::<i64>(&ctx(), id, SOON).await.expect("succeeds"), cents);
        let record = jobs.get(&ctx(), id).await.expect("kept");
        assert_eq!((record.status, record.failed), (Status::Succeeded, (cents % 2) as u16));
    }
    let tenant = ctx().tenant.to_string();
    assert_eq!(bookings(&client).await, [(100, tenant.clone()), (101, tenant)]);
    jobs.shutdown().await;
}

/// RUN-9, OPS-6, BEY-7: what the attempt has cost is recorded in the handler's own transaction, and what it said before
/// that is kept.
#[tokio::test]
async fn costs_and_lines_of_a_job_that_ends_in_its_own_transaction_are_kept() {
    let database = Database::fresh().await;
    let client = database.client().await;
    client.batch_execute("create table booking (cents bigint, tenant text)").await.expect("creates");
    let jobs = service(&database).await;
    let id = jobs.submit_named(&ctx(), "book", &101_i64, SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait_for::<i64>(&ctx(), id, SOON).await.expect("succeeds");
    let lines = jobs.logs(&ctx(), id, 0).await.expect("reads");
    let said: Vec<(u16, &str)> = lines.iter().map(|line| (line.attempt, line.message.as_str())).collect();
    assert_eq!(said, [(1, "booked 101"), (2, "booked 101")]);
    let costs = jobs.usage_events(&ctx(), 0, 10).await.expect("reads");
    assert_eq!(costs.iter().map(|cost| (cost.job, cost.cents)).collect::<Vec<_>>(), [(id, 101), (id, 101)]);
    jobs.shutdown().await;
}

/// SEC-1, RUN-8: what a handler begins transactions with leads to no call of the store that knows no tenant.
#[tokio::test]
async fn a_handler_cannot_reach_the_store() {
    async fn reach(_: (), ctx: JobContext, (): ()) -> Result<bool, JobError> {
        let transactions =
            ctx.transactions().ok_or_else(|| JobError::terminal("none", "PostgreSQL has transactions"))?;
        let shared = transactions.is::<Arc<PgStore>>() || transactions.is::<Arc<dyn Store>>();
        Ok(transactions.is::<PgStore>() || shared)
    }
    let database = Database::fresh().await;
    let store = Arc::new(PgStore::connect(&database.url).await.expect("connects"));
    let jobs = JobService::builder(store).function("reach", (), reach).start().await.expect("starts");
    let id = jobs.submit_named(&ctx(), "reach", &(), SubmitOptions::new()).await.expect("accepted").id;
    assert!(!jobs.wait_for::<bool>(&ctx(), id, SOON).await.expect("succeeds"), "it has the store");
    jobs.shutdown().await;
}

async fn runs(jobs: &JobService, id: JobId) -> bool {
    jobs.wake();
    match jobs.wait_for::<i64>(&ctx(), id, SOON).await {
        Ok(_) => true,
        Err(Error::NotFound(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// SUB-3: with a transaction of `sqlx`.
#[cfg(feature = "sqlx")]
#[tokio::test]
async fn a_job_exists_exactly_if_a_transaction_of_sqlx_commits() {
    let database = Database::fresh().await;
    let client = database.client().await;
    client.batch_execute("create table booking (cents bigint, tenant text)").await.expect("creates");
    let jobs = service(&database).await;
    let pool = sqlx::PgPool::connect(&database.url).await.expect("connects");
    let (kept, dropped) = (prepared(&jobs, 2).await, prepared(&jobs, 4).await);
    let ids = [kept.id, dropped.id];

    let mut tx = pool.begin().await.expect("begins");
    let submitted = windlass_postgres::submit_in_sqlx(&mut *tx, &[kept]).await.expect("submits");
    assert_eq!((submitted[0].id, submitted[0].duplicate), (ids[0], false));
    tx.commit().await.expect("commits");
    let mut tx = pool.begin().await.expect("begins");
    windlass_postgres::submit_in_sqlx(&mut *tx, &[dropped]).await.expect("submits");
    tx.rollback().await.expect("rolls back");

    assert!(runs(&jobs, ids[0]).await && !runs(&jobs, ids[1]).await);
    jobs.shutdown().await;
}

/// SUB-3, BEY-8: a quota that is exceeded says so through `sqlx` and SeaORM as it does elsewhere.
#[cfg(all(feature = "sqlx", feature = "seaorm"))]
#[tokio::test]
async fn a_quota_that_is_exceeded_has_its_own_code_in_every_driver() {
    let database = Database::fresh().await;
    let jobs = service(&database).await;
    let store = PgStore::connect(&database.url).await.expect("connects");
    let quota = windlass_core::Quota::new().queued(0);
    store.set_quota(Some(ctx().tenant), Some(&quota), "op").await.expect("sets");
    let job = prepared(&jobs, 2).await;
    let pool = sqlx::PgPool::connect(&database.url).await.expect("connects");
    let refused = windlass_postgres::submit_in_sqlx(&pool, std::slice::from_ref(&job)).await.expect_err("refused");
    assert_eq!(refused.code(), "quota_exceeded", "{refused}");
    let orm = sea_orm::Database::connect(&database.url).await.expect("connects");
    let refused = windlass_postgres::submit_in_seaorm(&orm, std::slice::from_ref(&job)).await.expect_err("refused");
    assert_eq!(refused.code(), "quota_exceeded", "{refused}");
    let bad = NewJob { handler: String::new(), ..job };
    let refused = windlass_postgres::submit_in_sqlx(&pool, &[bad]).await.expect_err("refused");
    assert_eq!(refused.code(), "invalid_input", "{refused}");
    jobs.shutdown().await;
}

/// SUB-3: with a transaction of SeaORM.
#[cfg(feature = "seaorm")]
#[tokio::test]
async fn a_job_exists_exactly_if_a_transaction_of_seaorm_commits() {
    use sea_orm::TransactionTrait;
    let database = Database::fresh().await;
    let client = database.client().await;
    client.batch_execute("create table booking (cents bigint, tenant text)").await.expect("creates");
    let jobs = service(&database).await;
    let orm = sea_orm::Database::connect(&database.url).await.expect("connects");
    let (kept, dropped) = (prepared(&jobs, 2).await, prepared(&jobs, 4).await);
    let ids = [kept.id, dropped.id];

    let tx = orm.begin().await.expect("begins");
    let submitted = windlass_postgres::submit_in_seaorm(&tx, &[kept]).await.expect("submits");
    assert_eq!((submitted[0].id, submitted[0].duplicate), (ids[0], false));
    tx.commit().await.expect("commits");
    let tx = orm.begin().await.expect("begins");
    windlass_postgres::submit_in_seaorm(&tx, &[dropped]).await.expect("submits");
    tx.rollback().await.expect("rolls back");

    assert!(runs(&jobs, ids[0]).await && !runs(&jobs, ids[1]).await);
    jobs.shutdown().await;
}
