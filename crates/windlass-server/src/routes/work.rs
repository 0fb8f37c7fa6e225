//! Routes for running jobs by hand and for workers outside the process. A worker checks jobs out of its
//! key's tenant, says that it is still at it, and reports, each at any server of the installation: its token is the
//! signed ticket of the checkout, and the fence of the lease decides what is accepted. Nothing is kept here.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::Sha256;
use utoipa::ToSchema;
use windlass_core::{CheckedOut, DEFAULT_QUEUE, JobError, JobId, Payload, Reason, TenantId, Ticket, Timestamp};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, MaybeJson, Path};
use crate::model;
use crate::places::Held;
use crate::problem::Problem;

/// How many jobs to run.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tick {
    /// Maximum number of jobs: 10 by default, at most 100.
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

/// Claims and runs ready jobs of the caller's tenant in this process, and returns when they have ended. For serverless
/// hosts and for tests.
#[utoipa::path(post, path = "/tick", tag = "work", request_body = Option<Tick>,
    responses((status = 200, body = TickBody)))]
pub(crate) async fn tick(
    State(app): State<App>,
    caller: Caller,
    MaybeJson(tick): MaybeJson<Tick>,
) -> Result<Json<TickBody>, Problem> {
    let max = at_most(tick.max, 10)?;
    let ran = caller.within(&app).tick(max).await?;
    Ok(Json(TickBody { ran }))
}

/// How long a worker may stay silent where it does not say.
const HOLD: Duration = Duration::from_secs(300);

/// The longest silence that is allowed.
const HOLD_MAX: Duration = Duration::from_secs(24 * 3600);

/// The token of a checkout: its ticket, signed with what all servers of the installation share. Not hidden: there is no
/// secret in it.
fn token_of(secret: &[u8; 32], ticket: &Ticket) -> String {
    let text = URL_SAFE_NO_PAD.encode(serde_json::to_vec(ticket).expect("a ticket is plain data"));
    let signature = URL_SAFE_NO_PAD.encode(mac(secret, &text).finalize().into_bytes());
    format!("{text}.{signature}")
}

fn ticket_of(secret: &[u8; 32], token: &str) -> Option<Ticket> {
    let (text, signature) = token.split_once('.')?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    mac(secret, text).verify_slice(&signature).ok()?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

fn mac(secret: &[u8; 32], text: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("any length of key is allowed");
    mac.update(b"windlass checkout 1\0");
    mac.update(text.as_bytes());
    mac
}

/// The ticket behind a token that was given out for a job the caller may act on.
async fn read_ticket(app: &App, caller: &Caller, token: &str) -> Result<Ticket, Problem> {
    let ticket = ticket_of(app.sessions.secret(app).await?, token);
    let covers = |ticket: &Ticket| caller.scope().covers(ticket.tenant);
    ticket.filter(covers).ok_or_else(|| Problem::not_found("there is no such checkout"))
}

/// What a worker asks for.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Checkout {
    /// Only from these queues [default: `default`].
    queues: Vec<String>,
    /// Maximum number of jobs: 1 by default, at most 100.
    max: Option<usize>,
    /// How long the worker may stay silent; 5 minutes by default.
    hold_ms: Option<u64>,
}

/// A job for a worker.
#[derive(Serialize, ToSchema)]
pub(crate) struct CheckoutBody {
    /// The token for the worker's reports.
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

/// Claims ready jobs of the caller's tenant for an external worker, which must report on each. Does not hand out jobs
/// that are paused, expired or past their deadline. If the worker disconnects during the claim, the jobs return to
/// their queue at once.
#[utoipa::path(post, path = "/checkout", tag = "work", request_body = Option<Checkout>,
    responses((status = 200, body = CheckoutsBody)))]
pub(crate) async fn checkout(
    State(app): State<App>,
    caller: Caller,
    MaybeJson(wanted): MaybeJson<Checkout>,
) -> Result<Json<CheckoutsBody>, Problem> {
    let max = at_most(wanted.max, 1)?;
    let hold = wanted.hold_ms.map(|ms| model::duration("hold_ms", ms)).transpose()?.unwrap_or(HOLD);
    if hold > HOLD_MAX || hold < Duration::from_secs(1) {
        return Err(Problem::invalid("hold_ms", "must be from one second to one day"));
    }
    if wanted.queues.len() > QUEUES || wanted.queues.iter().any(|q| q.is_empty() || q.len() > 200 || q.contains('\0')) {
        return Err(Problem::invalid("queues", format!("must be at most {QUEUES} names of 1 to 200 bytes")));
    }
    let (own, others) = app.service.checked_out(caller.context().tenant);
    let held = Held { own, others };
    if !held.leaves_room(max, app.config.limits.checkouts, caller.principal.all_tenants) {
        let detail = "external workers already hold the maximum number of jobs through this server";
        return Err(Problem::slow_down("backpressure", detail, Duration::from_secs(5)));
    }
    // Before anything is claimed: without it no token could be given out.
    let secret = *app.sessions.secret(&app).await?;
    let queues: Vec<&str> = wanted.queues.iter().map(String::as_str).collect();
    let queues = if queues.is_empty() { vec![DEFAULT_QUEUE] } else { queues };
    let claimed = caller.within(&app).checkout(&queues, max).await?;
    let hold_until = app.service.now() + hold;
    let jobs = claimed.into_iter().map(|job| hand_over(&secret, &job, hold, hold_until)).collect();
    Ok(Json(CheckoutsBody { jobs }))
}

fn hand_over(secret: &[u8; 32], job: &CheckedOut, hold: Duration, hold_until: Timestamp) -> CheckoutBody {
    let context = job.context();
    CheckoutBody {
        token: token_of(secret, &job.hold_for(hold)),
        id: context.job_id(),
        tenant: context.tenant(),
        handler: context.handler().to_owned(),
        attempt: context.attempt(),
        input: job.input().clone(),
        headers: context.headers().clone(),
        hold_until,
    }
}

/// A checkout by the token that its worker got.
#[derive(Deserialize)]
pub(crate) struct Token {
    token: String,
}

/// The progress of a worker.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerProgress {
    /// 0 to 100.
    percent: f32,
    /// What it is doing, for people.
    #[serde(default)]
    message: String,
}

/// Until when a worker may stay silent.
#[derive(Serialize, ToSchema)]
pub(crate) struct HoldBody {
    #[schema(value_type = String, format = DateTime)]
    hold_until: Timestamp,
}

/// Reports the progress of a job and renews the hold of its worker.
#[utoipa::path(post, path = "/checkouts/{token}/progress", tag = "work", params(("token" = String, Path)),
    request_body = WorkerProgress, responses((status = 200, body = HoldBody)))]
pub(crate) async fn progress(
    State(app): State<App>,
    caller: Caller,
    Path(Token { token }): Path<Token>,
    extract::Json(progress): extract::Json<WorkerProgress>,
) -> Result<Json<HoldBody>, Problem> {
    let ticket = read_ticket(&app, &caller, &token).await?;
    app.service.renew(ticket, progress.percent, &progress.message).await?;
    Ok(Json(HoldBody { hold_until: app.service.now() + Duration::from_millis(ticket.hold_ms) }))
}

/// The result of a worker.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Success {
    /// The output of the job.
    #[schema(value_type = Option<serde_json::Value>)]
    output: Option<Box<RawValue>>,
}

/// Reports that a job has succeeded. Repeating a saved report returns the same result.
#[utoipa::path(post, path = "/checkouts/{token}/success", tag = "work", params(("token" = String, Path)),
    request_body = Option<Success>, responses((status = 204)))]
pub(crate) async fn success(
    State(app): State<App>,
    caller: Caller,
    Path(Token { token }): Path<Token>,
    MaybeJson(success): MaybeJson<Success>,
) -> Result<StatusCode, Problem> {
    let max = app.service.config().limits.output_bytes;
    let output = success.output.map(|output| Payload::check("output", output.get(), max)).transpose()?;
    let ticket = read_ticket(&app, &caller, &token).await?;
    app.service.report_success(ticket, output.unwrap_or_else(Payload::null)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The error of a job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failure {
    /// For people.
    message: String,
    /// A stable name for programs.
    code: Option<String>,
    /// More data, for programs.
    details: Option<serde_json::Value>,
    /// Whether another attempt may succeed [default: true].
    retryable: Option<bool>,
    /// The minimum delay before the next attempt.
    retry_after_ms: Option<u64>,
}

/// The longest text of a failure; more is cut off by nobody, so it is refused.
const FAILURE_BYTES: usize = 16 * 1024;

/// Reports that a job has failed; it is retried according to its policy.
#[utoipa::path(post, path = "/checkouts/{token}/failure", tag = "work", params(("token" = String, Path)),
    request_body = Failure, responses((status = 204)))]
pub(crate) async fn failure(
    State(app): State<App>,
    caller: Caller,
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
            "must be at most 16 KiB with its details, with a code of 1 to 100 bytes, without NUL",
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
    let ticket = read_ticket(&app, &caller, &token).await?;
    app.service.report_failure(ticket, error).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// API-3: a token that was changed, or signed by another installation, names nothing.
    #[test]
    fn a_token_is_good_only_as_it_was_signed() {
        let ticket = serde_json::json!({
            "job": "1", "lease": 2, "node": 3, "attempt": 1, "tenant": TenantId::ROOT, "hold_ms": 1000
        });
        let ticket: Ticket = serde_json::from_value(ticket).expect("a ticket");
        let token = token_of(&[7; 32], &ticket);
        assert_eq!(ticket_of(&[7; 32], &token), Some(ticket));
        assert_eq!(ticket_of(&[8; 32], &token), None);
        let (text, signature) = token.split_once('.').expect("two parts");
        for forged in [text.to_owned(), format!("{text}."), format!("{}.{signature}", &text[1..]), String::new()] {
            assert_eq!(ticket_of(&[7; 32], &forged), None, "{forged}");
        }
    }
}
