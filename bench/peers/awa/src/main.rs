//! awa: `claimers=<n>` dispatcher loops, `claim=<n>` jobs per claim.
use std::ops::Range;
use std::time::Duration;

use awa::{InsertOpts, InsertParams, JobArgs, JobResult, QueueConfig};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};
use windlass_bench::{Peer, Settings, hit};

#[derive(Serialize, Deserialize, JobArgs)]
struct Noop {
    n: u64,
}

struct P {
    pool: PgPool,
}

fn opts() -> InsertOpts {
    InsertOpts { queue: "noop".into(), ..Default::default() }
}

impl Peer for P {
    const NAME: &'static str = "awa";

    async fn setup(settings: &Settings) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(settings.connections())
            .test_before_acquire(false)
            .connect(&settings.url)
            .await
            .unwrap();
        awa::migrations::run(&pool).await.unwrap();
        P { pool }
    }

    async fn enqueue(&self, n: u64) {
        awa::insert_with(&self.pool, &Noop { n }, opts()).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        let jobs: Vec<_> = range
            .map(|n| InsertParams { kind: Noop::kind().to_string(), args: serde_json::json!({ "n": n }), opts: opts() })
            .collect();
        awa::insert_many_copy_from_pool(&self.pool, &jobs).await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let client = awa::Client::builder(self.pool.clone())
            .queue(
                "noop",
                QueueConfig {
                    max_workers: settings.concurrency() as u32,
                    claimers: settings.number("claimers", 1) as u16,
                    claim_batch_size: settings.number("claim", QueueConfig::default().claim_batch_size as u64) as usize,
                    poll_interval: Duration::from_millis(settings.number("poll_ms", 200)),
                    ..Default::default()
                },
            )
            .register::<Noop, _, _>(|args: Noop, _ctx| async move {
                hit(args.n);
                Ok(JobResult::Completed)
            })
            .build()
            .unwrap();
        client.start().await.unwrap();
        std::mem::forget(client);
    }

    fn remaining_sql(&self) -> String {
        "select count(*) from awa.jobs where state not in ('completed', 'cancelled', 'failed')".into()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
