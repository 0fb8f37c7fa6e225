//! Routes for running jobs by hand (OPS-9) and for workers outside the process (OPS-10). A worker checks jobs out, says
//! that it is still at it, and reports; this node holds the leases for it and keeps every write fenced.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass_core::{CheckedOut, DEFAULT_QUEUE, JobError, JobId, JobService, Payload, Reason, TenantId, Timestamp};

use crate::App;
use crate::extract::{self, MaybeJson, Path};
use crate::model;
use crate::problem::Problem;

/// How many jobs to run.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tick {
    /// At most so many; 10 by default, 100 at most.
    max: Option<usize>,
}

/// How many jobs ran.
#[derive(Serialize, ToSchema)]
pub(crate) struct TickBody {
    ran: usize,
}

/// The most jobs of one tick or checkout: what one request can wait for.
const MOST: usize = 100;

fn at_most(max: Option<usize>, usual: usize) -> Result<usize, Problem> {
    match max.unwrap_or(usual) {
        n if (1..=MOST).contains(&n) => Ok(n),
        _ => Err(Problem::invalid("max", format!("must be 1 to {MOST}"))),
    }
}

/// Claims and runs ready jobs in this process, and answers when they have ended. For serverless hosts and for tests.
#[utoipa::path(post, path = "/tick", tag = "work", request_body = Option<Tick>,
    responses((status = 200, body = TickBody)))]
pub(crate) async fn tick(State(app): State<App>, MaybeJson(tick): MaybeJson<Tick>) -> Result<Json<TickBody>, Problem> {
    let max = at_most(tick.max, 10)?;
    Ok(Json(TickBody { ran: app.service.tick(max).await? }))
}

/// Jobs that workers outside the process hold through this server.
pub(crate) struct Checkouts {
    held: Arc<Mutex<HashMap<String, Held>>>,
    most: usize,
}

struct Held {
    job: CheckedOut,
    hold: Duration,
    until: Instant,
}

/// How long a worker may stay silent where it does not say.
const HOLD: Duration = Duration::from_secs(300);

/// The longest silence that is allowed.
const HOLD_MAX: Duration = Duration::from_secs(24 * 3600);

/// How often silent workers are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Checkouts {
    pub(crate) fn new(most: usize) -> Self {
        Checkouts { held: Arc::default(), most }
    }

    /// Gives jobs back whose workers have fallen silent, until the server is gone.
    pub(crate) fn look_after(&self, service: &JobService, ending: tokio_util::sync::CancellationToken) {
        let (held, service) = (Arc::downgrade(&self.held), service.clone());
        tokio::spawn(ending.run_until_cancelled_owned(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(held) = held.upgrade() else { return };
                let now = Instant::now();
                let lost: Vec<Held> = {
                    let mut held = held.lock();
                    held.extract_if(|_, held| held.until <= now).map(|(_, held)| held).collect()
                };
                for lost in lost {
                    let error = JobError::of(Reason::NodeUnavailable, "its worker did not report in time");
                    let job = lost.job.context().job_id();
                    if let Err(error) = service.mark_failure(lost.job, error).await {
                        tracing::warn!(%job, "a silent worker's job {job} could not be given back: {error}");
                    }
                }
            }
        }));
    }

    fn add(&self, job: CheckedOut, hold: Duration) -> String {
        let token = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 24]>());
        self.held.lock().insert(token.clone(), Held { job, hold, until: Instant::now() + hold });
        token
    }

    fn take(&self, token: &str) -> Result<CheckedOut, Problem> {
        self.held.lock().remove(token).map(|held| held.job).ok_or_else(unknown)
    }
}

fn unknown() -> Problem {
    Problem::not_found("there is no such checkout here; its worker was silent for too long, or has reported")
}

/// What a worker takes.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Checkout {
    /// From these queues; `default` unless given.
    queues: Vec<String>,
    /// At most so many; 1 by default, 100 at most.
    max: Option<usize>,
    /// How long the worker may stay silent; 5 minutes by default.
    hold_ms: Option<u64>,
}

/// A job for a worker.
#[derive(Serialize, ToSchema)]
pub(crate) struct CheckoutBody {
    /// What the worker reports with.
    token: String,
    #[schema(value_type = String)]
    id: JobId,
    #[schema(value_type = String)]
    tenant: TenantId,
    handler: String,
    attempt: u16,
    #[schema(value_type = serde_json::Value)]
    input: Payload,
    headers: std::collections::BTreeMap<String, String>,
    #[schema(value_type = String, format = DateTime)]
    hold_until: Timestamp,
}

/// Jobs for a worker.
#[derive(Serialize, ToSchema)]
pub(crate) struct CheckoutsBody {
    jobs: Vec<CheckoutBody>,
}

/// Queues of one checkout.
const QUEUES: usize = 32;

/// Claims ready jobs for a worker outside the process, which must report on each.
#[utoipa::path(post, path = "/checkout", tag = "work", request_body = Option<Checkout>,
    responses((status = 200, body = CheckoutsBody)))]
pub(crate) async fn checkout(
    State(app): State<App>,
    MaybeJson(wanted): MaybeJson<Checkout>,
) -> Result<Json<CheckoutsBody>, Problem> {
    let max = at_most(wanted.max, 1)?;
    let hold = wanted.hold_ms.map(|ms| model::duration("hold_ms", ms)).transpose()?.unwrap_or(HOLD);
    if hold > HOLD_MAX || hold < Duration::from_secs(1) {
        return Err(Problem::invalid("hold_ms", "must be a second to a day"));
    }
    if wanted.queues.len() > QUEUES || wanted.queues.iter().any(|q| q.is_empty() || q.len() > 200 || q.contains('\0')) {
        return Err(Problem::invalid("queues", format!("at most {QUEUES} names of 1 to 200 bytes")));
    }
    let room = app.checkouts.most.saturating_sub(app.checkouts.held.lock().len());
    if room < max {
        let detail = "workers hold as many jobs through this server as they may";
        return Err(Problem::slow_down("backpressure", detail, Duration::from_secs(5)));
    }
    let app = app.clone();
    // On a task of its own: a caller that hangs up must not leave jobs that nobody holds a token for.
    let jobs = tokio::spawn(async move {
        let queues: Vec<&str> = wanted.queues.iter().map(String::as_str).collect();
        let queues = if queues.is_empty() { vec![DEFAULT_QUEUE] } else { queues };
        let claimed = app.service.checkout(&queues, max).await?;
        let hold_until = app.service.now() + hold;
        Ok::<_, Problem>(claimed.into_iter().map(|job| hand_over(&app, job, hold, hold_until)).collect())
    });
    let jobs = jobs.await.map_err(|_| Problem::internal())??;
    Ok(Json(CheckoutsBody { jobs }))
}

fn hand_over(app: &App, job: CheckedOut, hold: Duration, hold_until: Timestamp) -> CheckoutBody {
    let context = job.context().clone();
    let input = job.input().clone();
    CheckoutBody {
        token: app.checkouts.add(job, hold),
        id: context.job_id(),
        tenant: context.tenant(),
        handler: context.handler().to_owned(),
        attempt: context.attempt(),
        input,
        headers: context.headers().clone(),
        hold_until,
    }
}

/// A checkout by the token that its worker got.
#[derive(Deserialize)]
pub(crate) struct Token {
    token: String,
}

/// How far a worker has come.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerProgress {
    /// 0 to 100.
    percent: f32,
    /// What it is doing.
    #[serde(default)]
    message: String,
}

/// Until when a worker may stay silent.
#[derive(Serialize, ToSchema)]
pub(crate) struct HoldBody {
    #[schema(value_type = String, format = DateTime)]
    hold_until: Timestamp,
}

/// Says how far the job has come, and that its worker is still at it.
#[utoipa::path(post, path = "/checkouts/{token}/progress", tag = "work", params(("token" = String, Path)),
    request_body = WorkerProgress, responses((status = 200, body = HoldBody)))]
pub(crate) async fn progress(
    State(app): State<App>,
    Path(Token { token }): Path<Token>,
    extract::Json(progress): extract::Json<WorkerProgress>,
) -> Result<Json<HoldBody>, Problem> {
    let (context, hold) = {
        let mut held = app.checkouts.held.lock();
        let held = held.get_mut(&token).ok_or_else(unknown)?;
        held.until = Instant::now() + held.hold;
        (held.job.context().clone(), held.hold)
    };
    if context.cancellation().is_cancelled() {
        app.checkouts.held.lock().remove(&token);
        return Err(windlass_core::Error::LeaseLost(context.job_id()).into());
    }
    context.report_progress(progress.percent, progress.message);
    Ok(Json(HoldBody { hold_until: app.service.now() + hold }))
}

/// What a worker made.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Success {
    /// What the job returns.
    #[schema(value_type = Option<serde_json::Value>)]
    output: Option<Box<RawValue>>,
}

/// Reports that a job is done.
#[utoipa::path(post, path = "/checkouts/{token}/success", tag = "work", params(("token" = String, Path)),
    request_body = Option<Success>, responses((status = 204)))]
pub(crate) async fn success(
    State(app): State<App>,
    Path(Token { token }): Path<Token>,
    MaybeJson(success): MaybeJson<Success>,
) -> Result<StatusCode, Problem> {
    let max = app.service.config().limits.output_bytes;
    // Before the token is used up: a worker may correct an output that is too large.
    let output = success.output.map(|output| Payload::check("output", output.get(), max)).transpose()?;
    let job = app.checkouts.take(&token)?;
    app.service.mark_success(job, &output.unwrap_or_else(Payload::null)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What went wrong.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failure {
    /// For people.
    message: String,
    /// A stable name for programs.
    code: Option<String>,
    /// Anything more, for programs.
    details: Option<serde_json::Value>,
    /// Whether another attempt may cure it; yes unless said otherwise.
    retryable: Option<bool>,
    /// Not before so long.
    retry_after_ms: Option<u64>,
}

/// The longest text of a failure; more is cut off by nobody, so it is refused.
const FAILURE_BYTES: usize = 16 * 1024;

/// Reports that a job has failed; it is retried by its policy.
#[utoipa::path(post, path = "/checkouts/{token}/failure", tag = "work", params(("token" = String, Path)),
    request_body = Failure, responses((status = 204)))]
pub(crate) async fn failure(
    State(app): State<App>,
    Path(Token { token }): Path<Token>,
    extract::Json(failure): extract::Json<Failure>,
) -> Result<StatusCode, Problem> {
    let details = failure.details.as_ref().map(|details| details.to_string()).unwrap_or_default();
    let code = failure.code.unwrap_or_else(|| Reason::Processing.as_str().to_owned());
    let too_long = failure.message.len() + details.len() > FAILURE_BYTES || code.is_empty() || code.len() > 100;
    if too_long
        || [&failure.message, &details, &code].iter().any(|text| text.contains(['\0']) || text.contains("\\u0000"))
    {
        return Err(Problem::invalid(
            "message",
            "at most 16 KiB with its details, and a code of 1 to 100 bytes, without NUL",
        ));
    }
    let mut error = match failure.retryable {
        Some(false) => JobError::terminal(code, failure.message),
        _ => JobError::retryable(failure.message).with_code(code),
    };
    if let Some(details) = failure.details {
        error = error.with_details(details);
    }
    if let Some(ms) = failure.retry_after_ms {
        error = error.retry_after(model::duration("retry_after_ms", ms)?);
    }
    let job = app.checkouts.take(&token)?;
    app.service.mark_failure(job, error).await?;
    Ok(StatusCode::NO_CONTENT)
}
