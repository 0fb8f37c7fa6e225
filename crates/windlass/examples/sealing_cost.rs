//! What sealing costs: the same jobs submitted in bulk and run, with and without encryption, in turn.
//! `cargo run --release -p windlass --features encryption --example sealing_cost -- [JOBS] [BYTES] [URL]`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass::store::Store;
use windlass::{Encryption, JobContext, JobError, JobService, LocalKeys, Payload, SecurityContext, TenantId};

/// How often each is measured; the best of each counts, because the noise of a machine only adds.
const ROUNDS: usize = 5;

/// For measuring only: this key is public.
const KEYS: &str = "example:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

async fn length(_: (), _: JobContext, text: String) -> Result<usize, JobError> {
    Ok(text.len())
}

/// Seconds to submit the jobs, and to run them.
async fn measure(store: Arc<dyn Store>, jobs: usize, bytes: usize, sealed: bool) -> Result<[f64; 2], windlass::Error> {
    let keys = || LocalKeys::parse(KEYS).expect("a key");
    let builder = || match (JobService::builder(store.clone()), sealed) {
        (builder, true) => builder.encryption(Encryption::new(keys())),
        (builder, false) => builder,
    };
    let ctx = SecurityContext::new(TenantId::ROOT);
    let submitter = builder().without_workers().remote_handler("length").start().await?;
    let payload = Payload::encode("input", &"x".repeat(bytes), bytes + 2)?;
    let begun = Instant::now();
    for done in (0..jobs).step_by(1_000) {
        let batch = vec![Ok(payload.clone()); 1_000.min(jobs - done)];
        submitter.submit_payloads(&ctx, "length", batch, Default::default(), false).await?;
    }
    let submitted = begun.elapsed();
    submitter.shutdown().await;
    let begun = Instant::now();
    let worker = builder().function("length", (), length).concurrency(2_000).start().await?;
    while worker.counts(&ctx).await?.unfinished() > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let ran = begun.elapsed();
    worker.shutdown().await;
    Ok([submitted.as_secs_f64(), ran.as_secs_f64()])
}

#[tokio::main]
async fn main() -> Result<(), windlass::Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default| arguments.get(n).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (jobs, bytes) = (number(0, 2_000), number(1, 100));
    let url = arguments.get(2).map_or("memory:", String::as_str);
    let mut best = [[f64::MAX; 2]; 2];
    for _ in 0..ROUNDS {
        for (sealed, best) in [false, true].into_iter().zip(&mut best) {
            let took = measure(windlass::open(url).await?, jobs, bytes, sealed).await?;
            best.iter_mut().zip(took).for_each(|(best, took)| *best = best.min(took));
        }
    }
    let [plain, sealed] = best;
    for (step, plain, sealed) in [("submit", plain[0], sealed[0]), ("run", plain[1], sealed[1])] {
        let per_job = (sealed - plain) * 1e6 / jobs as f64;
        println!(
            "{step:<7} plain {:>9.0}/s, sealed {:>9.0}/s, {:.2} times, {per_job:+.1} us per job",
            jobs as f64 / plain,
            jobs as f64 / sealed,
            sealed / plain
        );
    }
    Ok(())
}
