//! apalis + apalis-postgres: batch fetch, batched acks, LISTEN/NOTIFY wake-up
//! (`with_pubsub`) plus an interval poll as its examples do.
use std::ops::Range;
use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};
use windlass_bench::{Peer, Settings, hit};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Noop {
    n: u64,
}

async fn noop(job: Noop) -> Result<(), BoxDynError> {
    hit(job.n);
    Ok(())
}

struct P {
    pool: PgPool,
    storage: PostgresStorage<Noop>,
}

impl Peer for P {
    const NAME: &'static str = "apalis-postgres";

    async fn setup(settings: &Settings) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(settings.connections())
            .test_before_acquire(false)
            .connect(&settings.url)
            .await
            .unwrap();
        PostgresStorage::setup(&pool).await.unwrap();
        let config = Config::default()
            .queue("bench")
            .batch_size(settings.number("fetch", 10) as usize)
            .lock_tasks(settings.number("lock", 1) == 1);
        let storage = PostgresStorage::new(&pool).with_config(config);
        P { pool, storage }
    }

    async fn enqueue(&self, n: u64) {
        self.storage.clone().push(Noop { n }).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        self.storage.clone().push_bulk(range.map(|n| Noop { n }).collect()).await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let poll = Duration::from_millis(settings.number("poll_ms", 500));
        for w in 0..settings.number("workers", 1) {
            let config = self.storage.config().clone();
            let conc = settings.concurrency();
            let base = PostgresStorage::<Noop>::new(&self.pool).with_config(config);
            let backend = base.with_pubsub().poll_with_interval(poll);
            tokio::spawn(async move {
                WorkerBuilder::new(format!("bench-{w}"))
                    .backend(backend)
                    .concurrency(conc)
                    .build(noop)
                    .run()
                    .await
                    .unwrap()
            });
        }
    }

    fn remaining_sql(&self) -> String {
        "select count(*) from apalis.jobs where status <> 'Done'".into()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
