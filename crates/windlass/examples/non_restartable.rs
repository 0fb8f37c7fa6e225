//! Work that cannot be stored: closures with anything in them, run from a bounded channel, with status, progress and
//! cancel like any other job. It is lost when the process ends.
//!
//! `cargo run -p windlass --example non_restartable`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use windlass::{Error, JobService, SecurityContext, Status, TenantId};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let small = |config: &mut windlass::Config| {
        config.spawn_capacity = 4;
        config.spawn_concurrency = 1;
    };
    let jobs = JobService::builder(windlass::open("memory:").await?).configure(small).start().await?;
    let ctx = SecurityContext::new(TenantId::ROOT);

    // A closure may own what no database can hold.
    let (hang_up, line) = tokio::sync::oneshot::channel::<()>();
    let call = jobs.spawn(&ctx, "call", |ctx| async move {
        ctx.report_progress(50.0, "talking");
        line.await.map_err(|_| windlass::JobError::retryable("cut off"))?;
        Ok("a nice chat")
    })?;
    while jobs.status(&ctx, call.id).await? != Status::Running {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    // When the channel is full, the caller hears of it at once.
    let mut taken = Vec::new();
    let full = loop {
        match jobs.spawn(&ctx, "wait", |_| async { Ok(()) }) {
            Ok(spawned) => taken.push(spawned),
            Err(error) => break error,
        }
    };
    println!("{} wait; then: {full}", taken.len());
    assert!(matches!(full, Error::Backpressure(_)));

    let unwanted = taken.pop().expect("some wait");
    jobs.cancel(&ctx, unwanted.id, "not needed any more").await?;
    hang_up.send(()).expect("the call goes on");
    println!("the call was {}", call.join().await?);
    println!("and the unwanted one: {}", unwanted.join().await.expect_err("canceled"));
    jobs.shutdown().await;
    Ok(())
}
