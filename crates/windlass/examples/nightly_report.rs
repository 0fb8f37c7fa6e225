//! A report for each night, written once however many processes plan it and however late it runs. The job carries the time
//! it stands for (`nominal_at`), and its idempotency key names the night, so planning it again stores nothing.
//!
//! Windlass has no schedules yet: this program computes the next run itself, and every process that runs it plans every
//! night. With cron schedules `plan` goes, and the time zone is a setting instead of arithmetic in UTC.
//!
//! `cargo run --example nightly_report`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use windlass::{
    Error, HandlerRef, JobContext, JobError, JobService, Status, SubmitOptions, SubmittedJob, Timestamp, day_of,
};

const REPORT: HandlerRef<String, String> = HandlerRef::new("report.nightly");

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Reports are written at 03:00 UTC.
const AT: Duration = Duration::from_secs(3 * 60 * 60);

async fn write_report(_state: (), ctx: JobContext, kind: String) -> Result<String, JobError> {
    // The night it stands for, not the time it runs: a report that is late by hours is still the same report.
    let night = ctx.nominal_at().ok_or_else(|| JobError::terminal("no_night", "submit it with a nominal time"))?;
    Ok(format!("{kind} of {}", day_of(night)))
}

/// The first 03:00 UTC after `now`.
fn next_night(now: Timestamp) -> Timestamp {
    let day = DAY.as_micros() as i64;
    let midnight = Timestamp::from_micros(now.as_micros().div_euclid(day) * day);
    if midnight + AT > now { midnight + AT } else { midnight + DAY + AT }
}

async fn plan(jobs: &JobService, kind: &str, night: Timestamp) -> Result<SubmittedJob<String>, Error> {
    let key = format!("{kind}:{}", day_of(night));
    let options = SubmitOptions::new().nominal_at(night).run_at(night).idempotency_key(key);
    REPORT.submit_with(jobs, kind, options).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = windlass::open("memory:").await?;
    let jobs = JobService::builder(store).function(REPORT, (), write_report).start().await?;

    let tonight = next_night(jobs.now());
    let planned = plan(&jobs, "sales", tonight).await?;
    let again = plan(&jobs, "sales", tonight).await?;
    assert_eq!((again.id(), again.is_duplicate()), (planned.id(), true));
    assert_eq!(planned.status().await?, Status::Scheduled);
    println!("job {} will write the report of {tonight}", planned.id());

    // Last night's was missed: it starts at once and still stands for last night.
    let last_night = tonight - DAY;
    let missed = plan(&jobs, "sales", last_night).await?.wait(Duration::from_secs(10)).await?;
    println!("{missed}");
    assert_eq!(missed, format!("sales of {}", day_of(last_night)));

    jobs.shutdown().await;
    Ok(())
}
