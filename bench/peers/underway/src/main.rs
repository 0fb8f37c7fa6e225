//! underway: LISTEN/NOTIFY worker; each wake-up adds one processing loop, so
//! `poll_ms` (run_every) decides how fast concurrency ramps up over a backlog.
use std::ops::Range;
use std::sync::Arc;

use jiff::ToSpan;
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Postgres, Transaction};
use underway::{Queue, Task, Worker, task::Result as TaskResult};
use windlass_bench::{Peer, Settings, hit};

#[derive(Serialize, Deserialize)]
struct Input {
    n: u64,
}

struct Noop;

impl Task for Noop {
    type Input = Input;
    type Output = ();
    async fn execute(&self, _tx: Transaction<'_, Postgres>, input: Input) -> TaskResult<()> {
        hit(input.n);
        Ok(())
    }
}

struct P {
    pool: PgPool,
    queue: Arc<Queue<Noop>>,
}

impl Peer for P {
    const NAME: &'static str = "underway";

    async fn setup(settings: &Settings) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(settings.connections())
            .test_before_acquire(false)
            .connect(&settings.url)
            .await
            .unwrap();
        underway::run_migrations(&pool).await.unwrap();
        let queue = Queue::builder().name("bench").pool(pool.clone()).build().await.unwrap();
        P { pool, queue: Arc::new(queue) }
    }

    async fn enqueue(&self, n: u64) {
        self.queue.enqueue(&self.pool, &Noop, &Input { n }).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        let inputs: Vec<_> = range.map(|n| Input { n }).collect();
        self.queue.enqueue_multi(&self.pool, &Noop, &inputs).await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let mut worker = Worker::new(self.queue.clone(), Noop);
        worker.set_concurrency_limit(settings.concurrency());
        let poll = settings.number("poll_ms", 60_000) as i64;
        tokio::spawn(async move { worker.run_every(poll.milliseconds()).await.unwrap() });
    }

    fn remaining_sql(&self) -> String {
        "select count(*) from underway.task where state <> 'succeeded'".into()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
