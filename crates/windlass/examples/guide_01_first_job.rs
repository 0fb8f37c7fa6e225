//! The program of chapter 1 of the guide (docs/guide/01-first-job.md): a job that outlives the process that submitted it.
//!
//! `cargo run -p windlass --example guide_01_first_job`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{HandlerRef, JobContext, JobError, JobService, SubmitOptions};

const WELCOME: HandlerRef<Customer, String> = HandlerRef::new("mail.welcome");

#[derive(Serialize, Deserialize)]
struct Customer {
    id: u64,
    name: String,
}

async fn welcome(_state: (), ctx: JobContext, customer: Customer) -> Result<String, JobError> {
    println!("the worker writes to customer {}, attempt {}", customer.id, ctx.attempt());
    Ok(format!("Welcome, {}!", customer.name))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("jobs.db").display());

    // The web process accepts a customer. It runs no jobs.
    let store = windlass::open(&url).await?;
    let web = JobService::builder(store).remote_handler(WELCOME.id()).without_workers().start().await?;
    let ada = || Customer { id: 42, name: "Ada".into() };
    let once = || SubmitOptions::new().idempotency_key("welcome-42");
    let job = WELCOME.submit_with(&web, ada(), once()).await?;
    println!("the job is stored: {}", job.status().await?);

    // The customer clicks twice, or the first response got lost.
    let again = WELCOME.submit_with(&web, ada(), once()).await?;
    println!("the same job again: {}", again.is_duplicate() && again.id() == job.id());
    let id = job.id();
    web.shutdown().await;
    drop((web, job, again));

    // Another process, later: it finds the job in the file.
    let store = windlass::open(&url).await?;
    let worker = JobService::builder(store).function(WELCOME, (), welcome).start().await?;
    let text = WELCOME.job(&worker, id).wait(Duration::from_secs(5)).await?;
    println!("the result: {text}");
    worker.shutdown().await;
    Ok(())
}
