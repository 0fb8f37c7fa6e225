//! A long job that continues where it stopped: the process is shut down in the middle of it and started again.
//!
//! `cargo run -p windlass --example resume_from_checkpoint`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use windlass::{JobContext, JobError, JobService, SecurityContext, SubmitOptions, TenantId};

const ROWS: u64 = 40;

/// Imports rows one by one and saves its position. Returns the row at which this attempt started.
async fn import(_: (), ctx: JobContext, (): ()) -> Result<u64, JobError> {
    let from = ctx.checkpoint::<u64>()?.unwrap_or(0);
    for row in from..ROWS {
        if ctx.cancellation().is_cancelled() {
            // The node shuts down: what comes back now costs no attempt.
            return Err(JobError::retryable("stopped"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        ctx.save_checkpoint(&(row + 1)).await?;
        ctx.report_progress(100.0 * (row + 1) as f32 / ROWS as f32, format!("row {}", row + 1));
    }
    Ok(from)
}

async fn start() -> Result<JobService, Box<dyn std::error::Error>> {
    let store = windlass::open("sqlite:resume.db").await?;
    let impatient = |config: &mut windlass::Config| config.shutdown_deadline = Duration::ZERO;
    Ok(JobService::builder(store).function("import", (), import).configure(impatient).start().await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ctx = SecurityContext::new(TenantId::ROOT);
    let jobs = start().await?;
    let job = jobs.submit_named(&ctx, "import", &(), SubmitOptions::new()).await?;
    // Stop once it has begun.
    while jobs.get(&ctx, job.id).await?.progress.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    jobs.shutdown().await;
    drop(jobs);
    println!("stopped in the middle of job {}", job.id);

    let jobs = start().await?;
    let from: u64 = jobs.wait_for(&ctx, job.id, Duration::from_secs(20)).await?;
    let attempt = jobs.get(&ctx, job.id).await?.attempt;
    println!("after the restart it continued at row {from} of {ROWS}, still in attempt {attempt}");
    assert!(from > 0 && attempt == 1);
    jobs.shutdown().await;
    Ok(())
}
