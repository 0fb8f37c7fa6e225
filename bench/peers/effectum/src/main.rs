//! effectum: embedded, SQLite, one writer thread that groups operations.
use std::ops::Range;
use std::sync::Mutex;

use effectum::{Error, Job, JobRunner, Queue, RunningJob, Worker};
use serde::{Deserialize, Serialize};
use windlass_bench::{Peer, Settings, hit};

#[derive(Serialize, Deserialize)]
struct Input {
    n: u64,
}

async fn noop(job: RunningJob, _ctx: ()) -> Result<(), Error> {
    let input: Input = job.json_payload()?;
    hit(input.n);
    Ok(())
}

fn job(n: u64) -> Job {
    Job::builder("noop").json_payload(&Input { n }).unwrap().build()
}

struct P {
    queue: Queue,
    path: std::path::PathBuf,
    worker: Mutex<Option<Worker>>,
}

impl Peer for P {
    const NAME: &'static str = "effectum";
    const POSTGRES: bool = false;

    async fn setup(settings: &Settings) -> Self {
        let queue = Queue::new(&settings.directory.join("jobs.db")).await.unwrap();
        P { queue, path: settings.directory.join("jobs.db"), worker: Mutex::new(None) }
    }

    async fn enqueue(&self, n: u64) {
        self.queue.add_job(job(n)).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        self.queue.add_jobs(range.map(job).collect()).await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let conc = settings.concurrency() as u16;
        let worker = Worker::builder(&self.queue, ())
            .jobs([JobRunner::builder("noop", noop).build()])
            .min_concurrency(settings.number("min", conc as u64 / 2).max(1) as u16)
            .max_concurrency(conc)
            .build()
            .await
            .unwrap();
        *self.worker.lock().unwrap() = Some(worker);
    }

    async fn remaining(&self, _: u64) -> i64 {
        let conn = rusqlite::Connection::open(&self.path).unwrap();
        conn.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
        conn.query_row("select count(*) from active_jobs", [], |r| r.get(0)).unwrap()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
