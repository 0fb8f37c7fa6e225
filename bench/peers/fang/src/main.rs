//! fang (asynk, Postgres): polling workers; no bulk API.
use std::ops::Range;
use std::time::Duration;

use fang::asynk::async_queue::{AsyncQueue, AsyncQueueable};
use fang::asynk::async_worker_pool::AsyncWorkerPool;
use fang::serde::{Deserialize, Serialize};
use fang::{AsyncRunnable, FangError, SleepParams, async_trait, typetag};
use windlass_bench::{Peer, Settings, hit, run_sql_dir};

#[derive(Serialize, Deserialize)]
#[serde(crate = "fang::serde")]
struct Noop {
    n: u64,
}

#[typetag::serde]
#[async_trait]
impl AsyncRunnable for Noop {
    async fn run(&self, _queue: &dyn AsyncQueueable) -> Result<(), FangError> {
        hit(self.n);
        Ok(())
    }
}

struct P {
    queue: AsyncQueue,
}

impl Peer for P {
    const NAME: &'static str = "fang";
    const HAS_BULK: bool = false;

    async fn setup(settings: &Settings) -> Self {
        run_sql_dir(&settings.url, env!("FANG_MIGRATION"), "up.sql").await;
        let mut queue = AsyncQueue::builder().uri(settings.url.clone()).max_pool_size(settings.connections()).build();
        queue.connect().await.unwrap();
        P { queue }
    }

    async fn enqueue(&self, n: u64) {
        self.queue.insert_task(&Noop { n } as &dyn AsyncRunnable).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        for n in range {
            self.enqueue(n).await;
        }
    }

    async fn start(&self, settings: &Settings) {
        // Defaults are 5 s growing to 15 s.
        let sleep = Duration::from_millis(settings.number("sleep_ms", 5000));
        let params = SleepParams {
            sleep_period: sleep,
            min_sleep_period: sleep,
            max_sleep_period: sleep * 3,
            sleep_step: sleep,
        };
        let mut pool: AsyncWorkerPool<AsyncQueue> = AsyncWorkerPool::builder()
            .number_of_workers(settings.concurrency() as u32)
            .sleep_params(params)
            .queue(self.queue.clone())
            .build();
        pool.start().await;
    }

    fn remaining_sql(&self) -> String {
        "select count(*) from fang_tasks".into()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
