//! sqlxmq: no bulk API in Rust; a batch here is many spawns in one transaction.
use std::error::Error;
use std::ops::Range;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlxmq::{CurrentJob, JobRegistry, JobRunnerHandle, job};
use windlass_bench::{Peer, Settings, hit, run_sql_dir};

#[derive(Serialize, Deserialize)]
struct Input {
    n: u64,
}

#[job(channel_name = "bench")]
async fn noop(mut job: CurrentJob) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
    let input: Input = job.json()?.unwrap();
    hit(input.n);
    job.complete().await?;
    Ok(())
}

struct P {
    pool: PgPool,
    runner: Mutex<Option<JobRunnerHandle>>,
}

impl Peer for P {
    const NAME: &'static str = "sqlxmq";
    const HAS_BULK: bool = false;

    async fn setup(settings: &Settings) -> Self {
        run_sql_dir(&settings.url, env!("SQLXMQ_MIGRATIONS"), ".up.sql").await;
        let pool = PgPoolOptions::new()
            .max_connections(settings.connections())
            .test_before_acquire(false)
            .connect(&settings.url)
            .await
            .unwrap();
        P { pool, runner: Mutex::new(None) }
    }

    async fn enqueue(&self, n: u64) {
        noop.builder().set_json(&Input { n }).unwrap().spawn(&self.pool).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        let mut tx = self.pool.begin().await.unwrap();
        for n in range {
            noop.builder().set_json(&Input { n }).unwrap().spawn(&mut *tx).await.unwrap();
        }
        tx.commit().await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let registry = JobRegistry::new(&[noop]);
        let conc = settings.concurrency();
        let runner = registry
            .runner(&self.pool)
            .set_concurrency(settings.number("min", conc as u64 / 2).max(1) as usize, conc)
            .run()
            .await
            .unwrap();
        *self.runner.lock().unwrap() = Some(runner);
    }

    fn remaining_sql(&self) -> String {
        "select count(*) from mq_msgs where id <> uuid_nil()".into()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
