//! Handlers that are plain async functions with typed state and input.
//!
//! `cargo run -p windlass --example plain_function_handlers`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{
    HandlerOptions, JobContext, JobError, JobService, RetryPolicy, SecurityContext, SubmitOptions, TenantId,
};

/// Shared by all calls of a handler, such as a connection pool.
#[derive(Clone, Default)]
struct Mailer {
    sent: Arc<AtomicU32>,
}

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
}

async fn send(mailer: Mailer, ctx: JobContext, mail: Mail) -> Result<u32, JobError> {
    if !mail.to.contains('@') {
        // No retry will make this an address: a dead letter at once.
        return Err(JobError::terminal("bad_address", format!("`{}` is not an address", mail.to)));
    }
    if ctx.attempt() == 1 {
        return Err(JobError::retryable("the mail server is busy"));
    }
    Ok(mailer.sent.fetch_add(1, Ordering::Relaxed) + 1)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mailer = Mailer::default();
    let options = HandlerOptions::new().retry(RetryPolicy::fixed(3, Duration::from_millis(50)));
    let jobs = JobService::builder(windlass::open("memory:").await?)
        .function_with("mail.send", options, mailer.clone(), send)
        .start()
        .await?;

    let ctx = SecurityContext::new(TenantId::ROOT);
    let good = Mail { to: "ada@example.org".into() };
    let good = jobs.submit_named(&ctx, "mail.send", &good, SubmitOptions::new()).await?;
    let number: u32 = jobs.wait_for(&ctx, good.id, Duration::from_secs(10)).await?;
    println!("mail number {number} was sent by attempt {}", jobs.get(&ctx, good.id).await?.attempt);

    let bad = jobs.submit_named(&ctx, "mail.send", &Mail { to: "nowhere".into() }, SubmitOptions::new()).await?;
    let error = jobs.wait_for::<u32>(&ctx, bad.id, Duration::from_secs(10)).await.expect_err("a dead letter");
    println!("{error}");

    assert_eq!(mailer.sent.load(Ordering::Relaxed), 1);
    jobs.shutdown().await;
    Ok(())
}
