//! The program of chapter 3 of the guide (docs/guide/03-transactions.md): a job that exists exactly if your rows do, and
//! rows that exist exactly if their job succeeds. On SQLite; also on PostgreSQL if `DATABASE_URL` names a database.
//!
//! `cargo run -p windlass --features postgres --example guide_03_transactions`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::time::Duration;

use windlass::sqlite::{SqliteStore, SqliteTx, complete};
use windlass::{HandlerRef, JobContext, JobError, JobService, SecurityContext, SubmitOptions, TenantId};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PAY: HandlerRef<i64, i64> = HandlerRef::new("order.pay");
const TABLES: &str = "create table orders (cents bigint); create table payments (cents bigint)";
const SOON: Duration = Duration::from_secs(5);

/// The payment and the job's success are one commit.
async fn pay(_state: (), ctx: JobContext, cents: i64) -> Result<i64, JobError> {
    complete(&ctx, &cents, move |tx| tx.execute("insert into payments values (?1)", [cents])).await?;
    Ok(cents)
}

async fn on_sqlite() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let store = Arc::new(SqliteStore::open(directory.path().join("shop.db"))?);
    store.transaction(|tx| tx.execute_batch(TABLES)).await?;
    let jobs = JobService::builder(store.clone()).function(PAY, (), pay).start().await?;
    let ctx = SecurityContext::new(TenantId::ROOT);

    // The order and its job are one commit.
    let job = jobs.prepare_named(&ctx, PAY.id(), &1_250, SubmitOptions::new()).await?;
    let id = job.id;
    let order = move |tx: &SqliteTx<'_>| -> Result<(), Failure> {
        tx.execute("insert into orders values (1250)", [])?;
        tx.submit(&[job])?;
        Ok(())
    };
    store.transaction(order).await?;
    jobs.wake();
    println!("SQLite: paid {} cents", PAY.job(&jobs, id).wait(SOON).await?);

    // The order fails after the job was submitted: both are undone.
    let job = jobs.prepare_named(&ctx, PAY.id(), &9_999, SubmitOptions::new()).await?;
    let id = job.id;
    let refused = move |tx: &SqliteTx<'_>| -> Result<(), Failure> {
        tx.execute("insert into orders values (9999)", [])?;
        tx.submit(&[job])?;
        Err("the card was refused".into())
    };
    let error = store.transaction(refused).await.expect_err("it was refused");
    println!("SQLite: {error}");
    println!("SQLite: {}", jobs.get(&ctx, id).await.expect_err("no order, no job").code());

    let count = |table| move |tx: &SqliteTx<'_>| tx.query_row(table, [], |row| row.get::<_, i64>(0));
    let orders = store.transaction(count("select count(*) from orders")).await?;
    let payments = store.transaction(count("select count(*) from payments")).await?;
    println!("SQLite: orders {orders}, payments {payments}");
    jobs.shutdown().await;
    Ok(())
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::{Failure, PAY, SOON, TABLES};
    use std::sync::Arc;
    use windlass::postgres::{PgStore, submit_in, transaction};
    use windlass::{JobContext, JobError, JobService, SecurityContext, SubmitOptions, TenantId};

    async fn pay(_state: (), ctx: JobContext, cents: i64) -> Result<i64, JobError> {
        let tx = transaction(&ctx).await?;
        tx.execute("insert into payments values ($1)", &[&cents]).await?;
        tx.complete(&cents).await?;
        Ok(cents)
    }

    pub(super) async fn run(url: &str) -> Result<(), Failure> {
        let (mut client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(TABLES).await?;
        let store = Arc::new(PgStore::connect(url).await?);
        let jobs = JobService::builder(store).function(PAY, (), pay).start().await?;
        let ctx = SecurityContext::new(TenantId::ROOT);

        let job = jobs.prepare_named(&ctx, PAY.id(), &1_250, SubmitOptions::new()).await?;
        let tx = client.transaction().await?;
        tx.execute("insert into orders values (1250)", &[]).await?;
        let submitted = submit_in(&tx, &[job]).await?;
        tx.commit().await?;
        jobs.wake();
        println!("PostgreSQL: paid {} cents", PAY.job(&jobs, submitted[0].id).wait(SOON).await?);

        let row = client.query_one("select windlass.submit('order.pay', '77')", &[]).await?;
        let id = windlass::JobId::from_i64(row.get(0));
        println!("PostgreSQL: paid {} cents, submitted by SQL", PAY.job(&jobs, id).wait(SOON).await?);
        jobs.shutdown().await;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    on_sqlite().await?;
    #[cfg(feature = "postgres")]
    if let Ok(url) = std::env::var("DATABASE_URL") {
        on_postgres::run(&url).await?;
    }
    Ok(())
}
