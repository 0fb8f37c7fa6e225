//! A job that exists exactly if the caller's own transaction commits, and one whose effect and success commit together.
//! On SQLite; on PostgreSQL if `DATABASE_URL` names a server, with the same outcome.
//!
//! `cargo run -p windlass --example transactional_submit --features postgres`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::time::Duration;

use windlass::sqlite::{SqliteStore, TxError, complete};
use windlass::{JobContext, JobError, JobService, SecurityContext, SubmitOptions, TenantId};

type Failure = Box<dyn std::error::Error>;

/// Books the payment in the same transaction in which its job succeeds: exactly once, whatever crashes.
async fn book(_: (), ctx: JobContext, cents: i64) -> Result<i64, JobError> {
    complete(&ctx, &cents, move |tx| tx.execute("INSERT INTO booking (cents) VALUES (?1)", [cents])).await?;
    Ok(cents)
}

async fn on_sqlite() -> Result<(), Failure> {
    let store = Arc::new(SqliteStore::open("payments.db")?);
    let tables =
        "CREATE TABLE IF NOT EXISTS payment (cents INTEGER); CREATE TABLE IF NOT EXISTS booking (cents INTEGER)";
    store.transaction(move |tx| tx.execute_batch(tables)).await?;
    let jobs = JobService::builder(store.clone()).function("payment.book", (), book).start().await?;
    let ctx = SecurityContext::new(TenantId::ROOT);

    // The payment and its job are one transaction.
    let job = jobs.prepare_named(&ctx, "payment.book", &1_250, SubmitOptions::new()).await?;
    let id = job.id;
    let pay = move |tx: &windlass::sqlite::SqliteTx<'_>| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        tx.execute("INSERT INTO payment (cents) VALUES (1250)", [])?;
        tx.submit(&[job])?;
        Ok(())
    };
    store.transaction(pay).await?;
    jobs.wake();
    let booked: i64 = jobs.wait_for(&ctx, id, Duration::from_secs(10)).await?;
    println!("SQLite: booked {booked} cents");

    // A transaction that fails takes its job with it.
    let job = jobs.prepare_named(&ctx, "payment.book", &9_999, SubmitOptions::new()).await?;
    let id = job.id;
    let refused = store.transaction(move |tx| {
        tx.submit(&[job]).map_err(|e| e.to_string())?;
        Err::<(), _>("the card was refused".to_owned())
    });
    assert!(matches!(refused.await, Err(TxError::Rejected(_))));
    assert!(jobs.get(&ctx, id).await.is_err());
    println!("SQLite: no payment, no job");
    jobs.shutdown().await;
    Ok(())
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::*;
    use windlass::postgres::{PgStore, submit_in, transaction};

    async fn book(_: (), ctx: JobContext, cents: i64) -> Result<i64, JobError> {
        let tx = transaction(&ctx).await?;
        tx.execute("insert into booking (cents) values ($1)", &[&cents]).await?;
        tx.complete(&cents).await?;
        Ok(cents)
    }

    pub(super) async fn run(url: &str) -> Result<(), Failure> {
        let store = Arc::new(PgStore::connect(url).await?);
        let (mut client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        let tables =
            "create table if not exists payment (cents bigint); create table if not exists booking (cents bigint)";
        client.batch_execute(tables).await?;
        let jobs = JobService::builder(store).function("payment.book", (), book).start().await?;
        let ctx = SecurityContext::new(TenantId::ROOT);

        let job = jobs.prepare_named(&ctx, "payment.book", &1_250, SubmitOptions::new()).await?;
        let tx = client.transaction().await?;
        tx.execute("insert into payment (cents) values (1250)", &[]).await?;
        let submitted = submit_in(&tx, &[job]).await?;
        tx.commit().await?;
        jobs.wake();
        let booked: i64 = jobs.wait_for(&ctx, submitted[0].id, Duration::from_secs(10)).await?;
        println!("PostgreSQL: booked {booked} cents");

        let job = jobs.prepare_named(&ctx, "payment.book", &9_999, SubmitOptions::new()).await?;
        let id = job.id;
        let tx = client.transaction().await?;
        submit_in(&tx, &[job]).await?;
        tx.rollback().await?;
        assert!(jobs.get(&ctx, id).await.is_err());
        println!("PostgreSQL: no payment, no job");

        // The same from plain SQL: psql, a trigger, any language.
        let id: i64 = client.query_one("select windlass.submit('payment.book', '77')", &[]).await?.get(0);
        jobs.wake();
        let booked: i64 = jobs.wait_for(&ctx, windlass::JobId::from_i64(id), Duration::from_secs(10)).await?;
        println!("PostgreSQL: booked {booked} cents, submitted by SQL");
        jobs.shutdown().await;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    on_sqlite().await?;
    #[cfg(feature = "postgres")]
    match std::env::var("DATABASE_URL") {
        Ok(url) => on_postgres::run(&url).await?,
        Err(_) => println!("set DATABASE_URL to run it on PostgreSQL too"),
    }
    Ok(())
}
