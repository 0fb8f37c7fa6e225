//! A service with the dashboard mounted in its own axum router, and demo jobs that move: some succeed, some fail, some
//! wait.
//!
//!     cargo run -p windlass-server --example dashboard            # an in-memory store
//!     cargo run -p windlass-server --example dashboard sqlite:jobs.db
//!
//! Open the address it prints and log in with the key it prints. `PORT` chooses the port.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use serde::{Deserialize, Serialize};
use windlass::{
    HandlerOptions, JobContext, JobError, JobService, LogLevel, NewApiKey, OperatorRight, Priority, Quota, RetryPolicy,
    Rights, SecurityContext, SubmitOptions, TenantId,
};
use windlass_server::Config;

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
    template: String,
}

#[derive(Serialize, Deserialize)]
struct Report {
    month: String,
    rows: u32,
}

async fn send_mail(_: (), ctx: JobContext, mail: Mail) -> Result<String, JobError> {
    ctx.log(LogLevel::Info, format!("rendering {}", mail.template));
    tokio::time::sleep(Duration::from_millis(20 + u64::from(dice(60)))).await;
    match dice(40) {
        0 => Err(JobError::retryable(format!("could not send: mx{}.example.net: connection refused", dice(9)))),
        1 if mail.to.contains('0') => Err(JobError::terminal("bad_address", format!("no mailbox \"{}\"", mail.to))),
        _ => Ok(format!("250 2.0.0 queued as {:08x}", dice(u32::MAX))),
    }
}

async fn build_report(_: (), ctx: JobContext, report: Report) -> Result<Report, JobError> {
    ctx.log(LogLevel::Info, format!("reading {} rows of {}", report.rows, report.month));
    for part in 1..=20 {
        ctx.report_progress(part as f32 * 5.0, format!("{} of {} rows", report.rows * part / 20, report.rows));
        if part % 5 == 0 {
            ctx.log(LogLevel::Debug, format!("page {part} written"));
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(900)) => {}
            () = ctx.cancellation().cancelled() => return Err(JobError::discard("canceled while reading")),
        }
    }
    ctx.log(LogLevel::Warn, "3 rows had no customer");
    Ok(report)
}

async fn charge(_: (), ctx: JobContext, invoice: u64) -> Result<(), JobError> {
    tokio::time::sleep(Duration::from_millis(u64::from(dice(200)))).await;
    ctx.log(LogLevel::Info, format!("charging invoice {invoice}"));
    if invoice.is_multiple_of(7) {
        ctx.log(LogLevel::Error, "the bank said no");
        return Err(JobError::retryable(format!("bank.charge invoice {invoice}: HTTP 503 from 10.0.4.{}", dice(250))));
    }
    Ok(())
}

async fn resize(_: (), _ctx: JobContext, image: String) -> Result<(), JobError> {
    tokio::time::sleep(Duration::from_millis(5 + u64::from(dice(30)))).await;
    if image.ends_with("13.png") {
        panic!("image has no pixels");
    }
    Ok(())
}

async fn sync_crm(_: (), _ctx: JobContext, _customer: u64) -> Result<(), JobError> {
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(())
}

/// A number below `sides`, good enough for a demo.
fn dice(sides: u32) -> u32 {
    uuid::Uuid::new_v4().as_u128() as u32 % sides.max(1)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let port = std::env::var("PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(7979);
    let store = windlass::open(&url).await?;
    let slow = HandlerOptions::new().retry(RetryPolicy::default().attempts(2));
    let jobs = JobService::builder(store)
        .function("mail.send", (), send_mail)
        .function("report.build", (), build_report)
        .function_with("invoice.charge", slow, (), charge)
        .function("image.resize", (), resize)
        .function_with("crm.sync", HandlerOptions::new().concurrency(2), (), sync_crm)
        .remote_handler("ledger.close")
        .concurrency(16)
        .start()
        .await?;

    let ctx = SecurityContext::new(TenantId::ROOT).with_user("demo");
    let operator = jobs.operator(OperatorRight::assume());
    let tenant = TenantId(uuid::Uuid::from_u128(0x0190_b3a2_7c1e_7000_8000_0000_0000_0001));
    operator.set_quota(&ctx, Some(tenant), &Quota::new().weight(3).queued(400).running(4)).await?;
    let key = NewApiKey::new("demo", Rights::ALL).user("ada").all_tenants();
    let (_, secret) = operator.create_key(&ctx, key).await?;
    tokio::spawn(submit_for_ever(jobs.clone(), tenant));

    let mut config = Config::default();
    config.base_path = "/ops".to_owned();
    let dashboard = windlass_server::router(jobs.clone(), config)?;
    let app = Router::new().route("/", get(async || "the service itself; its jobs are at /ops/")).merge(dashboard);
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    eprintln!("http://{}/ops/login", listener.local_addr()?);
    eprintln!("{secret}");
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) }).await?;
    jobs.shutdown().await;
    Ok(())
}

/// Jobs of two tenants, as a shop would submit them.
async fn submit_for_ever(jobs: JobService, tenant: TenantId) {
    let shops = [TenantId::ROOT, tenant].map(|tenant| SecurityContext::new(tenant).with_user("shop"));
    for round in 0u64.. {
        let ctx = &shops[usize::from(round % 3 == 0)];
        if let Err(error) = submit_some(&jobs, ctx, round).await {
            eprintln!("could not submit: {error}");
        }
        tokio::time::sleep(Duration::from_millis(150 + u64::from(dice(200)))).await;
    }
}

async fn submit_some(jobs: &JobService, ctx: &SecurityContext, round: u64) -> Result<(), windlass::Error> {
    let later = |seconds| SubmitOptions::new().delay(Duration::from_secs(seconds));
    for n in 0..1 + dice(5) {
        let mail = Mail { to: format!("user{}@example.com", dice(500)), template: format!("welcome-{n}") };
        jobs.submit_named(ctx, "mail.send", &mail, SubmitOptions::new().tag("welcome")).await?;
    }
    for _ in 0..dice(8) {
        jobs.submit_named(
            ctx,
            "image.resize",
            &format!("upload/{}.png", dice(400)),
            SubmitOptions::new().priority(Priority::LOW),
        )
        .await?;
    }
    jobs.submit_named(
        ctx,
        "invoice.charge",
        &round,
        SubmitOptions::new()
            .ordering_key(format!("customer-{}", round % 5))
            .idempotency_key(format!("invoice-{round}-{}", ctx.tenant)),
    )
    .await?;
    if round.is_multiple_of(20) {
        let report = Report { month: "2026-11".into(), rows: 10_000 + dice(90_000) };
        jobs.submit_named(
            ctx,
            "report.build",
            &report,
            SubmitOptions::new().priority(Priority::HIGH).tag("finance").correlation_id(format!("req-{round}")),
        )
        .await?;
    }
    if round.is_multiple_of(15) {
        jobs.submit_named(ctx, "crm.sync", &round, later(60 + u64::from(dice(3_000)))).await?;
    }
    if round.is_multiple_of(60) {
        jobs.submit_named(ctx, "ledger.close", &round, SubmitOptions::new()).await?;
    }
    Ok(())
}
