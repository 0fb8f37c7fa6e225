//! graphile_worker (Rust port): `lq=<size>` turns the local queue on,
//! `batch_ms=<ms>` batches completions. Without the local queue each poll tick
//! runs at most `conc` jobs, so `poll_ms` bounds the drain rate.
use std::ops::Range;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};
use windlass_bench::{Peer, Settings, hit};

#[derive(Clone, Serialize, Deserialize)]
struct Noop {
    n: u64,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";
    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        hit(self.n);
        Ok::<(), String>(())
    }
}

struct P {
    pool: PgPool,
    utils: WorkerUtils,
}

impl Peer for P {
    const NAME: &'static str = "graphile_worker";

    async fn setup(settings: &Settings) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(settings.connections())
            .test_before_acquire(false)
            .connect(&settings.url)
            .await
            .unwrap();
        let utils = WorkerUtils::new(pool.clone(), "graphile_worker");
        utils.migrate().await.unwrap();
        P { pool, utils }
    }

    async fn enqueue(&self, n: u64) {
        self.utils.add_job(Noop { n }, JobSpec::default()).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        let spec = JobSpec::default();
        let jobs: Vec<_> = range.map(|n| (Noop { n }, &spec)).collect();
        self.utils.add_jobs::<Noop>(&jobs).await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let mut options = WorkerOptions::default()
            .pg_pool(self.pool.clone())
            .schema("graphile_worker")
            .concurrency(settings.concurrency())
            .poll_interval(Duration::from_millis(settings.number("poll_ms", 1000)))
            .define_job::<Noop>();
        if settings.number("lq", 0) > 0 {
            options = options.local_queue(LocalQueueConfig::default().with_size(settings.number("lq", 0) as usize));
        }
        if settings.number("batch_ms", 0) > 0 {
            options = options.complete_job_batch_delay(Duration::from_millis(settings.number("batch_ms", 0)));
        }
        let worker = options.init().await.unwrap();
        tokio::spawn(async move { worker.run().await.unwrap() });
    }

    fn remaining_sql(&self) -> String {
        "select count(*) from graphile_worker._private_jobs".into()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
