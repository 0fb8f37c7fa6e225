//! The program of chapter 4 of the guide (docs/guide/04-time.md): a job that starts later, a schedule, and the nights on
//! which clocks change.
//!
//! `cargo run -p windlass --example guide_04_time`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use futures_util::StreamExt;
use windlass::{
    HandlerRef, JobContext, JobError, JobService, Missed, Overlap, Page, Schedule, SecurityContext, SubmitOptions,
    TenantId, Timestamp,
};

const REMIND: HandlerRef<String, String> = HandlerRef::new("customer.remind");
const REPORT: HandlerRef<String, String> = HandlerRef::new("report.write");

async fn remind(_state: (), _ctx: JobContext, whom: String) -> Result<String, JobError> {
    Ok(format!("reminded {whom}"))
}

async fn write_report(_state: (), ctx: JobContext, kind: String) -> Result<String, JobError> {
    let of = ctx.nominal_at().ok_or_else(|| JobError::terminal("no_time", "a schedule starts this job"))?;
    Ok(format!("{kind} report of {of}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Every night at half past two in Berlin.
    let nightly = Schedule::cron("nightly", "30 2 * * *")
        .zone("Europe/Berlin")
        .missed(Missed::Once)
        .overlap(Overlap::Skip)
        .starts(REPORT, "sales");
    // Every second, so that this program need not wait until the night.
    let beat = Schedule::cron("beat", "* * * * * *").starts(REPORT, "traffic");

    let jobs = JobService::builder(windlass::open("memory:").await?)
        .function(REMIND, (), remind)
        .function(REPORT, (), write_report)
        .schedule(nightly.clone())
        .schedule(beat)
        .start()
        .await?;

    // Once, after a delay.
    let later = SubmitOptions::new().delay(Duration::from_millis(200));
    let job = REMIND.submit_with(&jobs, "Ada", later).await?;
    println!("{}", job.status().await?);
    println!("{}", job.wait(Duration::from_secs(5)).await?);

    // Again and again: the first job of the schedule that fires every second.
    let ctx = SecurityContext::new(TenantId::ROOT);
    let mut events = jobs.events(&ctx);
    let first = loop {
        if let Some(run) = jobs.schedules().runs(&ctx, "beat", Page::first(1)).await?.pop() {
            break run.id;
        }
        events.next().await;
    };
    println!("{}", REPORT.job(&jobs, first).wait(Duration::from_secs(5)).await?);

    // In the night to 28 March 2027, the clocks of Berlin skip from 02:00 to 03:00.
    let march = Timestamp::parse("2027-03-26T12:00:00Z").expect("a time");
    for at in nightly.next_runs(march, 3)? {
        println!("fires at {at}");
    }

    // An operator stops a schedule. When this returns, it fires no more.
    let paused = jobs.schedules().pause(&ctx, "beat").await?;
    println!("paused: {}", paused.paused);
    jobs.shutdown().await;
    Ok(())
}
