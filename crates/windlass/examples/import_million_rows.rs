//! A file of many rows, imported in parts by many workers. Each part has a key, so an import that is started again after a
//! crash adds only the parts that are missing. `ROWS=1000000` imports a million; the default is smaller.
//!
//! Windlass has no batches with a callback yet: the program waits for every part and adds up the counts itself. With
//! batches the last part starts the summary, and nobody has to wait.
//!
//! `cargo run -p windlass --example import_million_rows`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::ops::Range;
use std::time::Duration;

use windlass::{BatchId, Error, HandlerRef, JobContext, JobError, JobService, SubmitOptions, SubmittedJob};

const PART: HandlerRef<Range<u64>, u64> = HandlerRef::new("import.part");

/// Rows in one job: enough that storing the job costs little beside its work.
const PART_ROWS: u64 = 1_000;
/// Parts stored with one call; the service allows more, but memory for inputs is bounded by this.
const PARTS_AT_ONCE: usize = 100;
const PATIENCE: Duration = Duration::from_secs(50);

async fn import_part(_state: (), ctx: JobContext, rows: Range<u64>) -> Result<u64, JobError> {
    ctx.report_progress(100.0, format!("rows {} to {}", rows.start, rows.end));
    Ok(rows.end - rows.start)
}

/// Stores a job for each part of the file. Parts that an earlier call stored are found by their keys.
async fn submit_parts(jobs: &JobService, file: &str, rows: u64) -> Result<Vec<SubmittedJob<u64>>, Error> {
    let parts: Vec<Range<u64>> =
        (0..rows).step_by(PART_ROWS as usize).map(|first| first..rows.min(first + PART_ROWS)).collect();
    let mut batch: Option<BatchId> = None;
    let mut stored = Vec::with_capacity(parts.len());
    for (number, chunk) in parts.chunks(PARTS_AT_ONCE).enumerate() {
        // Input i of a call has the key `FILE:NUMBER:i`.
        let mut options = SubmitOptions::new().idempotency_key(format!("{file}:{number}")).tag("import");
        options.batch = batch;
        let (id, jobs) = PART.submit_many(jobs, chunk.iter().cloned(), options).await?;
        batch = Some(id);
        stored.extend(jobs);
    }
    Ok(stored)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows = match std::env::var("ROWS") {
        Ok(rows) => rows.parse()?,
        Err(_) => 250_000,
    };
    let store = windlass::open("memory:").await?; // with "sqlite:import.db" a crashed import continues
    let jobs = JobService::builder(store).function(PART, (), import_part).start().await?;

    let parts = submit_parts(&jobs, "customers.csv", rows).await?;
    let again = submit_parts(&jobs, "customers.csv", rows).await?;
    assert!(again.iter().zip(&parts).all(|(again, first)| again.is_duplicate() && again.id() == first.id()));

    let mut imported = 0;
    for part in &parts {
        imported += part.wait(PATIENCE).await?;
    }
    println!("{imported} rows in {} parts", parts.len());
    assert_eq!(imported, rows);
    jobs.shutdown().await;
    Ok(())
}
