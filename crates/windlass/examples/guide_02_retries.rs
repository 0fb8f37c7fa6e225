//! The program of chapter 2 of the guide (docs/guide/02-retries.md): failures that go away, failures that do not, and
//! dead letters that run again after a repair.
//!
//! `cargo run -p windlass --example guide_02_retries`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass::{
    HandlerOptions, HandlerRef, JobContext, JobError, JobFilter, JobService, Pace, Page, RetryPolicy, SecurityContext,
    TenantId,
};

const INVOICE: HandlerRef<String, String> = HandlerRef::new("invoice.send");
const SOON: Duration = Duration::from_secs(5);

/// The service that takes invoices. It is down until someone repairs it.
#[derive(Clone, Default)]
struct Billing {
    is_up: Arc<AtomicBool>,
}

async fn send(billing: Billing, ctx: JobContext, to: String) -> Result<String, JobError> {
    if !to.contains('@') {
        // No retry turns this into an address.
        return Err(JobError::terminal("bad_address", format!("`{to}` is not an address")));
    }
    if to.starts_with("slow") && ctx.attempt() < 3 {
        return Err(JobError::retryable("the mail server is busy"));
    }
    if to.starts_with("down") && !billing.is_up.load(Ordering::Relaxed) {
        return Err(JobError::new("billing_down", "connection refused"));
    }
    Ok(format!("sent to {to} by attempt {}", ctx.attempt()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let billing = Billing::default();
    let three = RetryPolicy::fixed(3, Duration::from_millis(20));
    let jobs = JobService::builder(windlass::open("memory:").await?)
        .function_with(INVOICE, HandlerOptions::new().retry(three), billing.clone(), send)
        .start()
        .await?;

    // Fails twice, then works.
    let job = INVOICE.submit(&jobs, "slow@example.org").await?;
    println!("{}", job.wait(SOON).await?);

    // Never works: one attempt, and no retry.
    let job = INVOICE.submit(&jobs, "nowhere").await?;
    let error = job.wait(SOON).await.expect_err("a dead letter");
    println!("{error}");

    // Would work if the other side did: all attempts, then a dead letter.
    let job = INVOICE.submit(&jobs, "down@example.org").await?;
    let error = job.wait(SOON).await.expect_err("a dead letter");
    println!("{error}");

    // What happened, attempt by attempt.
    let ctx = SecurityContext::new(TenantId::ROOT);
    for entry in jobs.history(&ctx, job.id()).await? {
        let error = entry.error.map_or(String::new(), |error| format!(", {error}"));
        println!("  attempt {}: {}{error}", entry.attempt, entry.status);
    }

    // The operator's view: what is dead, and why.
    for dead in jobs.dead_letters(&ctx, JobFilter::all(), Page::first(10)).await? {
        println!("dead: {}", dead.reason.unwrap_or_default());
    }

    // The other side is repaired: run those again that failed because of it, ten a second, and stop if most fail again.
    billing.is_up.store(true, Ordering::Relaxed);
    let down = JobFilter::parse("error:billing_down", jobs.now())?;
    let pace = Pace::default().per_second(10.0).stop_when_failing(0.5, 5);
    let report = jobs.replay_many(&ctx, &down, pace).await?;
    println!("replayed: {}", report.replayed.len());
    println!("{}", job.wait(SOON).await?);
    jobs.shutdown().await;
    Ok(())
}
