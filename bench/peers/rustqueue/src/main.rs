//! rustqueue: `store=redb` is its default store, with write coalescing every `flush_ms` (each call still waits for its
//! commit; 0 is without), `store=postgres` the one it offers for many nodes. Its managed worker runs one job at a time and looks every 500 ms,
//! so the worker is the loop that its documentation gives for more: pull `fetch` jobs, handle them, acknowledge them
//! together, look again after `poll_ms` when there were none. `conc` loops.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustqueue::engine::queue::{BatchAckItem, BatchPushItem};
use rustqueue::storage::{BufferedRedbConfig, BufferedRedbStorage, PostgresStorage, RedbStorage};
use rustqueue::{QueueManager, StorageBackend};
use serde_json::json;
use windlass_bench::{Peer, Settings, hit};

const QUEUE: &str = "bench";

struct P<const POSTGRES: bool> {
    queue: Arc<QueueManager>,
}

impl<const POSTGRES: bool> Peer for P<POSTGRES> {
    const NAME: &'static str = if POSTGRES { "rustqueue-postgres" } else { "rustqueue" };
    const POSTGRES: bool = POSTGRES;

    async fn setup(settings: &Settings) -> Self {
        let store: Arc<dyn StorageBackend> = if POSTGRES {
            Arc::new(PostgresStorage::new(&settings.url).await.unwrap())
        } else {
            let redb = Arc::new(RedbStorage::new(settings.directory.join("jobs.redb")).unwrap());
            match settings.number("flush_ms", 10) {
                0 => redb,
                interval_ms => {
                    let config = BufferedRedbConfig { interval_ms, ..BufferedRedbConfig::default() };
                    Arc::new(BufferedRedbStorage::new(redb, config))
                }
            }
        };
        P { queue: Arc::new(QueueManager::new(store)) }
    }

    async fn enqueue(&self, n: u64) {
        self.queue.push(QUEUE, "noop", json!({ "n": n }), None).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        let items = range.map(|n| BatchPushItem { name: "noop".into(), data: json!({ "n": n }), options: None });
        self.queue.push_batch(QUEUE, items.collect()).await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let fetch = settings.number("fetch", 100) as u32;
        let poll = Duration::from_millis(settings.number("poll_ms", 5));
        for _ in 0..settings.concurrency() {
            let queue = self.queue.clone();
            tokio::spawn(async move {
                loop {
                    let jobs = queue.pull(QUEUE, fetch).await.unwrap();
                    if jobs.is_empty() {
                        tokio::time::sleep(poll).await;
                        continue;
                    }
                    jobs.iter().for_each(|job| hit(job.data["n"].as_u64().unwrap()));
                    let done = jobs.iter().map(|job| BatchAckItem { id: job.id, result: None }).collect();
                    queue.ack_batch(done).await.unwrap();
                }
            });
        }
    }

    async fn remaining(&self, submitted: u64) -> i64 {
        let counts = self.queue.get_queue_stats(QUEUE).await.unwrap();
        submitted as i64 - counts.completed as i64
    }
}

fn main() {
    if std::env::args().any(|word| word == "store=postgres") {
        windlass_bench::run::<P<true>>();
    } else {
        windlass_bench::run::<P<false>>();
    }
}
