//! apalis + apalis-sqlite. `sync=off` is what its `setup()` leaves on the pool's
//! connection; `sync=full|normal` sets it back so that commits are durable.
//! `hook=1` uses its update-hook listener (and its own ten-connection pool).
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use apalis::prelude::*;
use apalis_sqlite::callback::HookCallbackListener;
use apalis_sqlite::{Config, SqliteStorage};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
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
    pool: SqlitePool,
    storage: SqliteStorage<Noop>,
    listener: Mutex<Option<HookCallbackListener>>,
}

impl Peer for P {
    const NAME: &'static str = "apalis-sqlite";
    const POSTGRES: bool = false;

    async fn setup(settings: &Settings) -> Self {
        let options = SqliteConnectOptions::new()
            .filename(&settings.directory.join("jobs.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal);
        let (pool, listener) = if settings.number("hook", 0) == 1 {
            let url = format!("sqlite://{}?mode=rwc", settings.directory.join("jobs.db").display());
            let (pool, listener) = SqliteStorage::connect_with_callback(&url).unwrap();
            (pool, Some(listener))
        } else {
            // One connection: SQLite has one writer anyway, and pragmas apply per connection.
            let pool = SqlitePoolOptions::new()
                .max_connections(settings.number("pool", 1) as u32)
                .test_before_acquire(false)
                .connect_with(options)
                .await
                .unwrap();
            (pool, None)
        };
        SqliteStorage::setup(&pool).await.unwrap();
        let pragma = match settings.text("sync", "off").as_str() {
            "full" => "PRAGMA synchronous = FULL",
            "normal" => "PRAGMA synchronous = NORMAL",
            _ => "PRAGMA synchronous = OFF",
        };
        sqlx::query(pragma).execute(&pool).await.unwrap();
        let config = Config::default()
            .queue("bench")
            .batch_size(settings.number("fetch", 10) as usize)
            .lock_tasks(settings.number("lock", 1) == 1);
        let storage = SqliteStorage::new(&pool).with_config(config);
        P { pool, storage, listener: Mutex::new(listener) }
    }

    async fn enqueue(&self, n: u64) {
        self.storage.clone().push(Noop { n }).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        self.storage.clone().push_bulk(range.map(|n| Noop { n }).collect()).await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let poll = Duration::from_millis(settings.number("poll_ms", 500));
        let mut strategy = Strategy::new();
        if let Some(listener) = self.listener.lock().unwrap().take() {
            strategy = strategy.stream(listener);
        }
        let backend = self.storage.clone().poll_with_strategy(strategy.interval(poll));
        let conc = settings.concurrency();
        tokio::spawn(async move {
            WorkerBuilder::new("bench").backend(backend).concurrency(conc).build(noop).run().await.unwrap()
        });
    }

    async fn remaining(&self, _: u64) -> i64 {
        sqlx::query_scalar("select count(*) from Jobs where status <> 'Done'").fetch_one(&self.pool).await.unwrap()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
