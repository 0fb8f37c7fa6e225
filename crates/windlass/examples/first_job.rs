//! The smallest program that does something durable: one handler, one job, one result.
//!
//! `cargo run -p windlass --example first_job`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{JobContext, JobError, JobHandler, JobService, SecurityContext, SubmitOptions, TenantId};

#[derive(Serialize, Deserialize)]
struct Report {
    pages: u32,
}

struct Printer;

impl JobHandler for Printer {
    const ID: &'static str = "reports.print";
    type Input = Report;
    type Output = String;

    async fn execute(&self, ctx: &JobContext, report: Report) -> Result<String, JobError> {
        for page in 1..=report.pages {
            ctx.report_progress(100.0 * page as f32 / report.pages as f32, format!("page {page}"));
        }
        Ok(format!("{} pages printed in attempt {}", report.pages, ctx.attempt()))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = windlass::open("sqlite:first_job.db").await?; // change the URL, and it runs on PostgreSQL
    let jobs = JobService::builder(store).handler(Printer).start().await?;

    let ctx = SecurityContext::new(TenantId::ROOT);
    let options = SubmitOptions::new().tag("example");
    let job = jobs.submit_with::<Printer>(&ctx, Report { pages: 3 }, options).await?;
    let printed: String = jobs.wait_for(&ctx, job.id, Duration::from_secs(10)).await?;
    println!("job {}: {printed}", job.id);
    assert_eq!(printed, "3 pages printed in attempt 1");

    jobs.shutdown().await;
    Ok(())
}
