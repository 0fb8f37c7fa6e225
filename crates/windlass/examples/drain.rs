//! How fast a store is drained: submits no-op jobs in bulk, then runs them all on one node, and prints both rates.
//!
//! `cargo run --release -p windlass --example drain --features postgres -- sqlite:drain.db 100000 2000`
//! (store URL, jobs, jobs run at once; each has a default)

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass::{
    Config, JobContext, JobError, JobHandler, JobService, SecurityContext, Status, SubmitOptions, TenantId,
};

/// Does nothing but count its calls.
#[derive(Default)]
struct Nothing {
    ran: Arc<AtomicU64>,
}

impl JobHandler for Nothing {
    const ID: &'static str = "nothing";
    type Input = u64;
    type Output = ();

    async fn execute(&self, _: &JobContext, _: u64) -> Result<(), JobError> {
        self.ran.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Jobs in one bulk submit: the maximum allowed.
const BULK: u64 = 1_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "memory:".into());
    let count: u64 = args.next().map_or(Ok(10_000), |n| n.parse())?;
    let at_once: usize = args.next().map_or(Ok(2_000), |n| n.parse())?;
    let ctx = SecurityContext::new(TenantId::ROOT);
    let store = windlass::open(&url).await?;

    let submitter = JobService::builder(store.clone()).handler(Nothing::default()).without_workers().start().await?;
    let before = submitter.counts(&ctx).await?.get(Status::Succeeded);
    let begun = Instant::now();
    for first in (0..count).step_by(BULK as usize) {
        let inputs = (first..count.min(first + BULK)).collect();
        submitter.submit_many::<Nothing>(&ctx, inputs, SubmitOptions::new()).await?;
    }
    let submitted = begun.elapsed();
    submitter.shutdown().await;

    let many = |config: &mut Config| config.concurrency = at_once;
    let ran = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let runner = JobService::builder(store).handler(Nothing { ran: ran.clone() }).configure(many).start().await?;
    // Counting what waits is work for the store: not before the last handler has run.
    while ran.load(Ordering::Relaxed) < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while runner.counts(&ctx).await?.get(Status::Succeeded) < before + count {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let drained = begun.elapsed();
    let rate = |time: Duration| count as f64 / time.as_secs_f64();
    println!(
        "{} jobs on {}: submitted {:.0}/s, drained {:.0}/s",
        count,
        runner.store().name(),
        rate(submitted),
        rate(drained)
    );
    runner.shutdown().await;
    Ok(())
}
