//! A report for each night, written once however many processes have the schedule and however late it runs. The schedule
//! is part of the code: every start of the program keeps the stored one in step with it. Its jobs know the night they
//! stand for (`nominal_at`).
//!
//! `cargo run -p windlass --example nightly_report`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use windlass::{
    HandlerRef, JobContext, JobError, JobService, Missed, Overlap, Page, Schedule, SecurityContext, TenantId, day_of,
};

const REPORT: HandlerRef<String, String> = HandlerRef::new("report.nightly");

async fn write_report(_state: (), ctx: JobContext, kind: String) -> Result<String, JobError> {
    // The night it stands for, not the time it runs: a report that is late by hours is still the same report.
    let night = ctx.nominal_at().ok_or_else(|| JobError::terminal("no_night", "a schedule starts this job"))?;
    Ok(format!("{kind} of {}", day_of(night)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // After a night without any process, the report is written as soon as one starts. A report that takes longer than a
    // day is not joined by a second one.
    let nightly = Schedule::cron("nightly", "0 3 * * *")
        .zone("Europe/Berlin")
        .missed(Missed::Once)
        .overlap(Overlap::Skip)
        .starts(REPORT, "sales");
    let store = windlass::open("memory:").await?;
    let jobs = JobService::builder(store).function(REPORT, (), write_report).schedule(nightly).start().await?;

    let ctx = SecurityContext::new(TenantId::ROOT);
    for night in jobs.schedules().next(&ctx, "nightly", 3).await? {
        println!("a report will be written at {night}");
    }

    // Tonight's now, for whoever cannot wait.
    let started = jobs.schedules().trigger(&ctx, "nightly").await?;
    let report = REPORT.job(&jobs, started.id).wait(Duration::from_secs(10)).await?;
    println!("{report}");
    let runs = jobs.schedules().runs(&ctx, "nightly", Page::first(10)).await?;
    let nominal = runs[0].spec.nominal_at.ok_or("a run has a nominal time")?;
    assert_eq!((runs.len(), runs[0].id), (1, started.id));
    assert_eq!(report, format!("sales of {}", day_of(nominal)));

    jobs.shutdown().await;
    Ok(())
}
