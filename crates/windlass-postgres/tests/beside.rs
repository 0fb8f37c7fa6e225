//! What processes with different handlers do to each other's jobs. Only here are there several processes, each with its
//! own connections and wake-ups.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Database;
use windlass_core::{
    HandlerOptions, JobContext, JobError, JobService, SecurityContext, SubmitOptions, TenantId, WebhookDelivery,
};
use windlass_postgres::PgStore;

/// How long anything that should happen soon is waited for.
const SOON: Duration = Duration::from_secs(20);

/// How often a node looks by itself at queues in which jobs are put that others could not run.
const LOOK_EVERY: Duration = Duration::from_millis(800);

/// How many jobs are measured, one after the other: of forty, two slow commits do not move the 95th percentile.
const JOBS: usize = 40;

/// Nineteen of twenty jobs start sooner than this half of [`LOOK_EVERY`]. Where only every fifth of them waits for a look,
/// the slowest ones wait for most of it.
const SOONER: Duration = Duration::from_millis(400);

async fn nothing(_: (), _: JobContext, (): ()) -> Result<(), JobError> {
    Ok(())
}

/// A process of its own: no connection and no wake-up is shared.
async fn process(database: &Database) -> windlass_core::Builder {
    JobService::builder(Arc::new(PgStore::connect(&database.url).await.expect("opens")))
}

/// The 95th percentile of the time from a submit by `from` to the start, by the database's clock, of jobs submitted one
/// after the other.
async fn p95_wait(from: &JobService, handler: &str) -> Duration {
    let ctx = SecurityContext::new(TenantId::ROOT);
    let mut waits = Vec::new();
    for n in 0..JOBS {
        let job = from.submit_named(&ctx, handler, &(), SubmitOptions::new()).await.expect("accepted").id;
        from.wait_for::<()>(&ctx, job, SOON).await.expect("runs");
        let record = from.get(&ctx, job).await.expect("is kept");
        waits.push(record.started_at.expect("it ran").since(record.created_at));
        // Out of step with every poll, so that the waits are spread over its interval.
        tokio::time::sleep(Duration::from_millis(37 * (n as u64 % 5))).await;
    }
    waits.sort_unstable();
    waits[waits.len() * 95 / 100 - 1]
}

/// API-10: a server beside a worker leaves its jobs to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_beside_a_worker_does_not_delay_its_jobs() {
    let database = Database::migrated().await;
    let deliver = |_: (), _, _: WebhookDelivery| async { Ok::<_, JobError>(()) };
    let server = process(&database).await.webhook_handler(HandlerOptions::new().concurrency(4), (), deliver);
    let server = server.start().await.expect("starts");
    let worker = process(&database).await.function("own", (), nothing).start().await.expect("starts");
    let p95 = p95_wait(&server, "own").await;
    assert!(p95 < SOONER, "one job in twenty waited {p95:?}, as if it were looked for every {LOOK_EVERY:?}");
    server.shutdown().await;
    worker.shutdown().await;
}

/// API-10, RUN-12: a job that a node without its handler has taken first starts at once on a node that has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_put_aside_starts_at_once_where_its_handler_is() {
    let database = Database::migrated().await;
    let one =
        process(&database).await.function("one", (), nothing).remote_handler("two").start().await.expect("starts");
    let two = process(&database).await.function("two", (), nothing).start().await.expect("starts");
    let p95 = p95_wait(&one, "two").await;
    assert!(p95 < SOONER, "one job in twenty waited {p95:?}, as if it were looked for every {LOOK_EVERY:?}");
    one.shutdown().await;
    two.shutdown().await;
}
