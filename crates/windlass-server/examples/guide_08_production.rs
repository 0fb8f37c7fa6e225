//! The program of chapter 8 of the guide (docs/guide/08-production.md): a worker with health, metrics and a graceful stop.
//! On the database that `DATABASE_URL` names, or on a SQLite file.
//!
//! `cargo run -p windlass-server --example guide_08_production`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use futures_util::StreamExt;
use windlass::{
    Error, HandlerOptions, HandlerRef, JobContext, JobError, JobId, JobService, NewApiKey, OperatorRight, Right,
    Rights, SecurityContext, TenantId,
};
use windlass_server::{Config, Server};

type Failure = Box<dyn std::error::Error>;

const EXPORT: HandlerRef<u32, String> = HandlerRef::new("orders.export");
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const SOON: Duration = Duration::from_secs(10);

/// Exports orders page by page. Where it was asked to stop, the next attempt goes on.
async fn export(_state: (), ctx: JobContext, pages: u32) -> Result<String, JobError> {
    let first = ctx.checkpoint::<u32>()?.unwrap_or(1);
    for page in first..=pages {
        tokio::select! {
            () = write_page() => {}
            () = ctx.cancellation().cancelled() => return Err(JobError::cancelled()),
        }
        ctx.save_checkpoint(&(page + 1)).await?;
        ctx.report_progress(100.0 * page as f32 / pages as f32, format!("page {page}"));
    }
    Ok(format!("pages {first} to {pages}, attempt {}", ctx.attempt()))
}

/// The work of one page.
async fn write_page() {
    tokio::time::sleep(Duration::from_millis(30)).await;
}

async fn start(url: &str) -> Result<JobService, Error> {
    let slow = HandlerOptions::new().timeout(Duration::from_secs(3600)).concurrency(4);
    JobService::builder(windlass::open(url).await?)
        .function_with(EXPORT, slow, (), export)
        .configure(|config| {
            config.service_id = Some("shop".into());
            config.concurrency = 50;
            config.retention = 3 * DAY;
            config.dead_letter_retention = Some(90 * DAY);
            // Less than the platform waits between SIGTERM and SIGKILL; here as short as the demonstration.
            config.shutdown_deadline = Duration::from_millis(100);
        })
        .start()
        .await
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let file = format!("sqlite:{}", directory.path().join("jobs.db").display());
    let url = std::env::var("DATABASE_URL").unwrap_or(file);

    let id = first_process(&url).await?;

    // The next process takes the job over where it was.
    let jobs = start(&url).await?;
    println!("{}", EXPORT.job(&jobs, id).wait(SOON).await?);
    jobs.shutdown().await;
    Ok(())
}

async fn first_process(url: &str) -> Result<JobId, Failure> {
    let jobs = start(url).await?;
    let server = Server::bind(jobs.clone(), Config::listen(([127, 0, 0, 1], 0).into())).await?;
    let address = format!("http://{}", server.address());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async { drop(stopped.await) }));

    println!("{}", EXPORT.submit(&jobs, 1_u32).await?.wait(SOON).await?);
    show_metrics(&jobs, &address).await?;

    // A deploy in the middle of a long job.
    let job = EXPORT.submit(&jobs, 20_u32).await?;
    tokio::try_join!(windlass::run_until_signal(&jobs), deploy(&jobs, job.id()))?;
    let _ = stop.send(()); // an error means that the server has ended already
    serving.await?;
    println!("stopped, the job waits");
    Ok(job.id())
}

/// What Kubernetes and Prometheus ask for.
async fn show_metrics(jobs: &JobService, address: &str) -> Result<(), Failure> {
    println!("GET /readyz: {}", reqwest::get(format!("{address}/readyz")).await?.status());
    let ctx = SecurityContext::new(TenantId::ROOT).with_user("admin");
    let key = NewApiKey::new("prometheus", Rights::of([Right::Read])).all_tenants();
    let (_, secret) = jobs.operator(OperatorRight::assume()).create_key(&ctx, key).await?;
    let scrape = reqwest::Client::new().get(format!("{address}/metrics")).bearer_auth(secret).send().await?;
    let metrics = scrape.error_for_status()?.text().await?;
    let completed = metrics.lines().find(|line| line.starts_with("jobs_completed_total{handler=\"orders.export\""));
    println!("{}", completed.ok_or("a job has ended")?);
    Ok(())
}

/// Sends this process what a platform sends, once the job has begun.
async fn deploy(jobs: &JobService, id: JobId) -> std::io::Result<()> {
    let ctx = SecurityContext::new(TenantId::ROOT);
    let mut views = jobs.watch(&ctx, id, 0).await.map_err(std::io::Error::other)?;
    while views.next().await.is_some_and(|view| view.progress.is_none()) {}
    println!("SIGTERM");
    let kill = std::process::Command::new("kill").arg(std::process::id().to_string()).status()?;
    assert!(kill.success());
    Ok(())
}
