//! Windlass as the benches see it, through its public API only: `store=postgres` (the default) or `store=sqlite`.
//! Outcomes are kept, as they are by default, and every commit waits for the disk.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use windlass::{
    JobContext, JobError, JobHandler, JobService, SecurityContext, Status, SubmitOptions, TenantId, store::Store,
};
use windlass_bench::{Peer, Settings, hit};

#[derive(Serialize, Deserialize)]
struct Input {
    n: u64,
}

struct Noop;

impl JobHandler for Noop {
    const ID: &'static str = "noop";
    type Input = Input;
    type Output = ();

    async fn execute(&self, _: &JobContext, input: Input) -> Result<(), JobError> {
        hit(input.n);
        Ok(())
    }
}

struct Windlass<const POSTGRES: bool> {
    store: std::sync::Arc<dyn Store>,
    /// Only submits, as a process without workers does.
    submitter: JobService,
    worker: OnceCell<JobService>,
    tenant: SecurityContext,
}

impl<const POSTGRES: bool> Peer for Windlass<POSTGRES> {
    const NAME: &'static str = if POSTGRES { "windlass-postgres" } else { "windlass-sqlite" };
    const POSTGRES: bool = POSTGRES;

    async fn setup(settings: &Settings) -> Self {
        let file = settings.directory.join("jobs.db");
        let url = if POSTGRES { settings.url.clone() } else { format!("sqlite:{}", file.display()) };
        let store = windlass::open(&url).await.expect("open the store");
        let submitter = JobService::builder(store.clone()).handler(Noop).without_workers();
        let submitter = submitter.start().await.expect("start the submitter");
        Windlass { store, submitter, worker: OnceCell::new(), tenant: SecurityContext::new(TenantId::ROOT) }
    }

    async fn enqueue(&self, n: u64) {
        // The service with workers, once there is one: one process has one service.
        let service = self.worker.get().unwrap_or(&self.submitter);
        service.submit::<Noop>(&self.tenant, Input { n }).await.expect("submit");
    }

    /// Always from the service without workers, so that the worker meets these jobs by claiming them.
    async fn bulk(&self, numbers: Range<u64>) {
        let inputs = numbers.map(|n| Input { n }).collect();
        self.submitter.submit_many::<Noop>(&self.tenant, inputs, SubmitOptions::new()).await.expect("submit in bulk");
    }

    async fn start(&self, settings: &Settings) {
        let at_once = settings.concurrency();
        let worker = JobService::builder(self.store.clone()).handler(Noop).concurrency(at_once);
        let worker = worker.start().await.expect("start the worker");
        self.worker.set(worker).expect("one worker");
    }

    async fn remaining(&self, submitted: u64) -> i64 {
        let counts = self.submitter.counts(&self.tenant).await.expect("count");
        submitted as i64 - counts.get(Status::Succeeded) as i64
    }
}

fn main() {
    if std::env::args().any(|word| word == "store=sqlite") {
        windlass_bench::run::<Windlass<false>>();
    } else {
        windlass_bench::run::<Windlass<true>>();
    }
}
