//! pgqrs: managed producers and consumers, batch handlers (`fetch` messages a dequeue, archived together). Its default
//! limit of 1,000 submits a second is switched off. `conc` consumers, each looking every `poll_ms` when idle.

use std::ops::Range;
use std::time::Duration;

use pgqrs::store::AnyStore;
use pgqrs::{Config, Producer, QueueMessage};
use serde_json::{Value, json};
use windlass_bench::{Peer, Settings, hit};

const QUEUE: &str = "bench";

struct P {
    store: AnyStore,
    producer: Producer,
}

impl Peer for P {
    const NAME: &'static str = "pgqrs";

    async fn setup(settings: &Settings) -> Self {
        let mut config = Config::from_dsn(&settings.url).with_max_connections(settings.connections());
        config.validation_config.max_enqueue_per_second = None;
        let store = pgqrs::connect_with_config(&config).await.unwrap();
        pgqrs::admin(&store).install().await.unwrap();
        pgqrs::admin(&store).create_queue(QUEUE).await.unwrap();
        let producer = pgqrs::producer("producer", QUEUE).create(&store).await.unwrap();
        P { store, producer }
    }

    async fn enqueue(&self, n: u64) {
        self.producer.enqueue(&json!({ "n": n })).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        let payloads: Vec<Value> = range.map(|n| json!({ "n": n })).collect();
        self.producer.batch_enqueue(&payloads).await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let fetch = settings.number("fetch", 100) as usize;
        let poll = Duration::from_millis(settings.number("poll_ms", 100));
        for number in 0..settings.concurrency() {
            let consumer = pgqrs::consumer(&format!("consumer-{number}"), QUEUE).create(&self.store).await.unwrap();
            let store = self.store.clone();
            tokio::spawn(async move {
                pgqrs::dequeue()
                    .worker(&consumer)
                    .batch(fetch)
                    .poll_interval(poll)
                    .handle_batch(|batch: Vec<QueueMessage>| async move {
                        batch.iter().for_each(|message| hit(message.payload["n"].as_u64().unwrap()));
                        Ok(())
                    })
                    .poll(&store)
                    .await
                    .unwrap();
            });
        }
    }

    fn remaining_sql(&self) -> String {
        "select count(*) from pgqrs_messages where archived_at is null".into()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
