//! The handlers of the demo: one for each thing worth seeing. Registered by `up`, fed by `producer`. Real handlers in
//! every respect but their purpose; read them as examples.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Builder, Cost, HandlerOptions, JobContext, JobError, JobHandler, LogLevel, RetryPolicy};

/// How long ended demo jobs are kept: some minutes to look at them, and the file stays small however long it runs.
const KEEP: Duration = Duration::from_secs(300);

/// Adds the handlers, and lets their jobs go as early as they ask for.
pub(super) fn register(builder: Builder) -> Builder {
    builder
        .configure(|config| {
            config.retention_floor = KEEP;
            // Replayed demo letters too.
            config.replayed_retention = KEEP;
        })
        .handler(Thumbnail)
        .handler(Report)
        .handler(Flaky)
        .handler(Reminder)
        .handler(Invoice)
}

fn options() -> HandlerOptions {
    HandlerOptions::new().retention(KEEP)
}

/// Short and plain: most jobs are like this.
pub(super) struct Thumbnail;

#[derive(Serialize, Deserialize)]
pub(super) struct Picture {
    pub(super) picture: String,
    pub(super) width: u32,
}

impl JobHandler for Thumbnail {
    const ID: &'static str = "demo.thumbnail";
    type Input = Picture;
    type Output = String;

    async fn execute(&self, _ctx: &JobContext, input: Picture) -> Result<String, JobError> {
        tokio::time::sleep(Duration::from_millis(15 + u64::from(input.width % 60))).await;
        Ok(format!("{}-{}.webp", input.picture, input.width))
    }

    fn options(&self) -> HandlerOptions {
        options()
    }
}

/// Long: says how far it is, saves where it is, and goes on from there after a restart. Logs, and says what it cost.
pub(super) struct Report;

#[derive(Serialize, Deserialize)]
pub(super) struct ReportInput {
    pub(super) month: String,
    pub(super) pages: u32,
}

#[derive(Default, Serialize, Deserialize)]
struct Written {
    pages: u32,
}

impl JobHandler for Report {
    const ID: &'static str = "demo.report";
    type Input = ReportInput;
    type Output = u32;

    async fn execute(&self, ctx: &JobContext, input: ReportInput) -> Result<u32, JobError> {
        let mut written: Written = ctx.checkpoint()?.unwrap_or_default();
        while written.pages < input.pages {
            let percent = 100.0 * written.pages as f32 / input.pages.max(1) as f32;
            ctx.report_progress(percent, format!("{}, page {} of {}", input.month, written.pages + 1, input.pages));
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(500)) => {}
                // What it has written is saved; whoever goes on does so from there.
                () = ctx.cancellation().cancelled() => return Err(JobError::retryable("asked to stop")),
            }
            written.pages += 1;
            ctx.save_checkpoint(&written).await?;
            ctx.log(LogLevel::Info, format!("wrote page {} of {}", written.pages, input.pages));
        }
        ctx.report_progress(100.0, format!("{}, done", input.month));
        ctx.record_cost(Cost { cents: 2 * i64::from(input.pages), units: i64::from(input.pages) });
        Ok(written.pages)
    }

    fn options(&self) -> HandlerOptions {
        options()
    }
}

/// Fails as often as its input says, then succeeds; after three failures it is a dead letter.
pub(super) struct Flaky;

#[derive(Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) service: String,
    pub(super) failures: u16,
}

impl JobHandler for Flaky {
    const ID: &'static str = "demo.flaky";
    type Input = Call;
    type Output = u16;

    async fn execute(&self, ctx: &JobContext, input: Call) -> Result<u16, JobError> {
        tokio::time::sleep(Duration::from_millis(40)).await;
        if ctx.attempt() <= input.failures {
            // No two messages are the same, and yet it is one failure: see `windlass failures list`.
            let request = rand::random_range(10_000..100_000);
            let message = format!("{} answered 503 to request {request}", input.service);
            ctx.log(LogLevel::Warn, format!("attempt {}: {message}", ctx.attempt()));
            return Err(JobError::retryable(message).with_code("upstream"));
        }
        Ok(ctx.attempt())
    }

    fn options(&self) -> HandlerOptions {
        options().retry(RetryPolicy::default().first_delay(Duration::from_millis(800)))
    }
}

/// Submitted ahead of its time.
pub(super) struct Reminder;

#[derive(Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) note: String,
}

impl JobHandler for Reminder {
    const ID: &'static str = "demo.reminder";
    type Input = Note;
    type Output = String;

    async fn execute(&self, _ctx: &JobContext, input: Note) -> Result<String, JobError> {
        Ok(format!("reminded of {}", input.note))
    }

    fn options(&self) -> HandlerOptions {
        options()
    }
}

/// In order: invoices of one customer are written one after the other.
pub(super) struct Invoice;

#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) customer: String,
    pub(super) cents: u64,
}

impl JobHandler for Invoice {
    const ID: &'static str = "demo.invoice";
    type Input = Order;
    type Output = String;

    async fn execute(&self, _ctx: &JobContext, input: Order) -> Result<String, JobError> {
        tokio::time::sleep(Duration::from_millis(120)).await;
        Ok(format!("{} owes {}.{:02}", input.customer, input.cents / 100, input.cents % 100))
    }

    fn options(&self) -> HandlerOptions {
        options()
    }
}
