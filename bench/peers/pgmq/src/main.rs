//! pgmq (SQL-only install from the crate): a message queue, so the worker loop
//! is ours: `conc` loops of read_batch(fetch) -> handle -> delete_batch|archive_batch.
//! An empty read sleeps `poll_ms`; `wait=server` uses read_with_poll instead.
use std::ops::Range;
use std::time::Duration;

use pgmq::{Message, PGMQueueExt};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use windlass_bench::{Peer, Settings, hit};

#[derive(Serialize, Deserialize)]
struct Input {
    n: u64,
}

struct P {
    queue: PGMQueueExt,
}

impl Peer for P {
    const NAME: &'static str = "pgmq";

    async fn setup(settings: &Settings) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(settings.connections())
            .test_before_acquire(false)
            .connect(&settings.url)
            .await
            .unwrap();
        let queue = PGMQueueExt::new_with_pool(pool).await;
        queue.install_sql_from_embedded().await.unwrap();
        queue.create("bench").await.unwrap();
        P { queue }
    }

    async fn enqueue(&self, n: u64) {
        self.queue.send("bench", &Input { n }).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        let messages: Vec<_> = range.map(|n| Input { n }).collect();
        self.queue.send_batch("bench", &messages).await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let archive = settings.text("done", "delete") == "archive";
        let fetch = settings.number("fetch", 100) as i32;
        let poll = Duration::from_millis(settings.number("poll_ms", 100));
        let server = settings.text("wait", "sleep") == "server";
        for _ in 0..settings.concurrency() {
            let queue = self.queue.clone();
            tokio::spawn(async move {
                loop {
                    let batch: Vec<Message<Input>> = if server {
                        let (limit, step) = (Some(Duration::from_secs(5)), Some(poll));
                        queue.read_batch_with_poll("bench", 300, fetch, limit, step).await.unwrap()
                    } else {
                        queue.read_batch("bench", 300, fetch).await.unwrap()
                    };
                    if batch.is_empty() && !server {
                        tokio::time::sleep(poll).await;
                    }
                    let ids: Vec<i64> = batch.iter().map(|m| m.msg_id).collect();
                    batch.iter().for_each(|m| hit(m.message.n));
                    match (ids.is_empty(), archive) {
                        (true, _) => {}
                        (_, true) => drop(queue.archive_batch("bench", &ids).await.unwrap()),
                        (_, false) => drop(queue.delete_batch("bench", &ids).await.unwrap()),
                    }
                }
            });
        }
    }

    fn remaining_sql(&self) -> String {
        "select count(*) from pgmq.q_bench".into()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
