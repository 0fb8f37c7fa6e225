//! Routes of single jobs: submit, look, steer. Each is a thin call into the service, in the tenant of the
//! caller or, for who operates all tenants, in that of the job.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass_core::store::{CancelReply, Submitted};
use windlass_core::{BatchId, Error, JobFilter, JobId, Page, Payload, Right, Status, SubmitOptions};

use crate::App;
use crate::auth::Caller;
use crate::extract::{Json, MaybeJson, PathJob, Query};
use crate::model::{ErrorBody, HistoryLine, Job, JobPage, ListQuery, Options, StatusName};
use crate::problem::{FieldError, Problem};
use crate::routes::conditional;

/// One job to submit.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewJob {
    /// The handler that runs it.
    handler: String,
    /// Its input: any JSON, stored digit by digit.
    #[schema(value_type = serde_json::Value)]
    input: Box<RawValue>,
    /// The submit options.
    #[serde(default)]
    options: Options,
}

/// The result of a submit.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubmittedBody {
    /// Its id, or the id of the job that already has its key.
    #[schema(value_type = String)]
    id: JobId,
    /// Whether another job already has its key, so that nothing was stored.
    duplicate: bool,
}

impl From<Submitted> for SubmittedBody {
    fn from(submitted: Submitted) -> Self {
        SubmittedBody { id: submitted.id, duplicate: submitted.duplicate }
    }
}

/// Submits a job. It is durable when this returns.
#[utoipa::path(post, path = "/jobs", tag = "jobs", request_body = NewJob,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the request safe.")),
    responses((status = 201, body = SubmittedBody, description = "Stored."),
        (status = 200, body = SubmittedBody, description = "A job with this key already existed.")))]
pub(crate) async fn submit(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Json(new): Json<NewJob>,
) -> Result<Response, Problem> {
    let options = traced(new.options.read(idempotency_key(&headers)?)?, &headers);
    let submitted = app.service.submit_named(&caller.context(), &new.handler, &*new.input, options).await?;
    let status = if submitted.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    let mut response = (status, axum::Json(SubmittedBody::from(submitted))).into_response();
    let location = format!("{}{}/jobs/{}", app.config.base_path, super::API, submitted.id);
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_str(&location).expect("a path is plain text"));
    Ok(response)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match key.to_str() {
        Ok(key) if !key.is_empty() => Ok(Some(key.to_owned())),
        _ => Err(Problem::invalid("Idempotency-Key", "must be plain text")),
    }
}

/// Lets the trace of the request go on in the job, unless the job names one itself.
fn traced(mut options: SubmitOptions, headers: &HeaderMap) -> SubmitOptions {
    let given = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).filter(|v| v.len() <= 512);
    if let Some(parent) = given("traceparent").filter(|parent| is_traceparent(parent))
        && !options.spec.headers.contains_key("traceparent")
    {
        options.spec.headers.insert("traceparent".to_owned(), parent.to_owned());
        if let Some(state) = given("tracestate") {
            options.spec.headers.insert("tracestate".to_owned(), state.to_owned());
        }
    }
    options
}

/// Whether a text is a W3C trace context: version, trace id, span id and flags in hexadecimal.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &&str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    parts.len() == 4 && parts.iter().map(|part| part.len()).eq([2, 32, 16, 2]) && parts.iter().all(hex)
}

/// Many jobs of one handler to submit.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBatch {
    /// The handler that runs them.
    handler: String,
    /// One input per job.
    #[schema(value_type = Vec<serde_json::Value>)]
    inputs: Vec<Box<RawValue>>,
    /// The submit options of all jobs.
    #[serde(default)]
    options: Options,
    /// Store the valid jobs even if others are invalid.
    #[serde(default)]
    partial: bool,
}

/// The jobs of one bulk submit, in the order of the inputs.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchBody {
    /// The id of the batch.
    #[schema(value_type = String)]
    batch: JobId,
    /// One result per input.
    jobs: Vec<BatchItem>,
}

/// The result for one input of a batch.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum BatchItem {
    /// The job is stored.
    Stored(SubmittedBody),
    /// The input is invalid.
    Bad {
        /// The reason.
        error: FieldError,
    },
}

/// Submits many jobs of one handler with one write: all, or with `partial` the valid ones. With an idempotency key,
/// input `i` has the key `key:i`, counted from 0: repeating the request returns the same jobs.
#[utoipa::path(post, path = "/jobs/batch", tag = "jobs", request_body = NewBatch,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the request safe.")),
    responses((status = 201, body = BatchBody)))]
pub(crate) async fn submit_batch(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Json(new): Json<NewBatch>,
) -> Result<(StatusCode, axum::Json<BatchBody>), Problem> {
    let options = traced(new.options.read(idempotency_key(&headers)?)?, &headers);
    let max = app.service.config().limits.payload_bytes;
    let inputs = new.inputs.iter().map(|input| Payload::check("input", input.get(), max)).collect();
    let (BatchId(batch), answers) =
        app.service.submit_payloads(&caller.context(), &new.handler, inputs, options, new.partial).await?;
    let item = |(index, answer): (usize, Result<Submitted, windlass_core::InvalidInput>)| match answer {
        Ok(submitted) => BatchItem::Stored(submitted.into()),
        Err(bad) => BatchItem::Bad { error: FieldError { field: bad.field, message: bad.message, index: Some(index) } },
    };
    let jobs = answers.into_iter().enumerate().map(item).collect();
    Ok((StatusCode::CREATED, axum::Json(BatchBody { batch, jobs })))
}

/// Lists jobs, newest first.
#[utoipa::path(get, path = "/jobs", tag = "jobs", params(ListQuery), responses((status = 200, body = JobPage)))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<JobPage>, Problem> {
    let (filter, page) = query.read(app.service.now())?;
    Ok(axum::Json(read_page(&app, &caller, &filter, page).await?))
}

/// Lists dead letters, newest first.
#[utoipa::path(get, path = "/dead-letters", tag = "many", params(ListQuery), responses((status = 200, body = JobPage)))]
pub(crate) async fn dead_letters(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<JobPage>, Problem> {
    let (mut filter, page) = query.read(app.service.now())?;
    filter.statuses = vec![Status::DeadLettered];
    Ok(axum::Json(read_page(&app, &caller, &filter, page).await?))
}

/// A page at a bounded cost. Only who insists on an offset has everything before it read and thrown away.
async fn read_page(app: &App, caller: &Caller, filter: &JobFilter, page: Page) -> Result<JobPage, Problem> {
    allow_filter(caller, filter)?;
    if page.offset > 0 {
        let records = caller.within(app).list(filter, page).await?;
        let next = records.last().filter(|_| records.len() == page.limit).map(|last| last.id);
        return Ok(JobPage::new(records, next));
    }
    let found = caller.within(app).search(filter, page).await?;
    Ok(JobPage::new(found.jobs, found.next))
}

/// Conditions on inputs tell what inputs hold, so they need the right to see them.
pub(crate) fn allow_filter(caller: &Caller, filter: &JobFilter) -> Result<(), Problem> {
    match filter.asks_input() {
        true => caller.require(Right::Payload),
        false => Ok(()),
    }
}

/// Returns one job: status, progress, last error. Never its input or output.
#[utoipa::path(get, path = "/jobs/{id}", tag = "jobs",
    params(("id" = String, Path), ("If-None-Match" = Option<String>, Header)),
    responses((status = 200, body = Job), (status = 304, description = "Nothing has changed.")))]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    PathJob(id): PathJob,
) -> Result<Response, Problem> {
    let record = find(&app, &caller, id).await?;
    Ok(conditional(&headers, StatusCode::OK, &Job::from(record)))
}

/// A job that the caller may see, by the one look that all concurrent callers share.
async fn find(app: &App, caller: &Caller, id: JobId) -> Result<windlass_core::JobRecord, Problem> {
    Ok(caller.within(app).get(id).await?)
}

/// How a job ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResultBody {
    /// The status of the job.
    #[schema(value_type = StatusName)]
    status: Status,
    /// Its output, once it has succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    output: Option<Payload>,
    /// Its error, once it has ended without success: with the code `job_canceled`, `job_timeout` or `handler_error` if
    /// the handler gave no code.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
}

/// Returns the output or the error of a job; 202 while it has not ended.
#[utoipa::path(get, path = "/jobs/{id}/result", tag = "jobs",
    params(("id" = String, Path), ("If-None-Match" = Option<String>, Header)),
    responses((status = 200, body = ResultBody), (status = 202, body = ResultBody, description = "It has not ended yet."),
        (status = 304, description = "Nothing has changed.")))]
pub(crate) async fn result(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    PathJob(id): PathJob,
) -> Result<Response, Problem> {
    let record = find(&app, &caller, id).await?;
    let status = record.status;
    if !status.is_terminal() {
        return Ok(conditional(&headers, StatusCode::ACCEPTED, &ResultBody { status, output: None, error: None }));
    }
    if let Some(output) = &record.output
        && output.is_sealed()
    {
        let source = windlass_core::KeyError::NotConfigured;
        return Err(Error::Sealed { job: id, source }.into());
    }
    let (output, error) = match status {
        Status::Succeeded => (Some(record.output.unwrap_or_else(Payload::null)), None),
        _ => (None, Some(ended_badly(status, record.error, record.reason))),
    };
    Ok(conditional(&headers, StatusCode::OK, &ResultBody { status, output, error }))
}

/// The error of a job that did not succeed, with the error code that the HTTP API documents.
fn ended_badly(status: Status, error: Option<windlass_core::JobError>, reason: Option<String>) -> ErrorBody {
    let reason = reason.unwrap_or_else(|| status.to_string());
    let mut error = error.unwrap_or_else(|| windlass_core::JobError::terminal(reason.clone(), &reason));
    if status == Status::Canceled {
        error.code = "job_canceled".to_owned();
    } else if matches!(error.code.as_str(), "processing" | "panic" | "max_retries") {
        error.code = "handler_error".to_owned();
    }
    error.into()
}

/// A job's input and headers.
#[derive(Serialize, ToSchema)]
pub(crate) struct InputBody {
    /// The input.
    #[schema(value_type = serde_json::Value)]
    pub(crate) input: Payload,
    /// The headers that are stored with the job.
    pub(crate) headers: std::collections::BTreeMap<String, String>,
}

/// Returns a job's input. The access is recorded in the audit log.
#[utoipa::path(get, path = "/jobs/{id}/input", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, body = InputBody)))]
pub(crate) async fn input(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
) -> Result<axum::Json<InputBody>, Problem> {
    let ctx = caller.context_of(&app, id).await?;
    let record = app.service.get(&ctx, id).await?;
    let input = app.service.read_input(&ctx, id).await?;
    Ok(axum::Json(InputBody { input, headers: record.spec.headers }))
}

/// The history of a job.
#[derive(Serialize, ToSchema)]
pub(crate) struct HistoryBody {
    /// Oldest first.
    history: Vec<HistoryLine>,
}

/// Returns every status change and every attempt of a job, oldest first.
#[utoipa::path(get, path = "/jobs/{id}/history", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, body = HistoryBody)))]
pub(crate) async fn history(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
) -> Result<axum::Json<HistoryBody>, Problem> {
    let ctx = caller.context_of(&app, id).await?;
    let history = app.service.history(&ctx, id).await?.into_iter().map(HistoryLine::from).collect();
    Ok(axum::Json(HistoryBody { history }))
}

/// Returns why a job is not running now, and when it will: the `reason`, its facts, and a sentence (`text`).
#[utoipa::path(get, path = "/jobs/{id}/why", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, body = serde_json::Value)))]
pub(crate) async fn why(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
) -> Result<axum::Json<serde_json::Value>, Problem> {
    let ctx = caller.context_of(&app, id).await?;
    let why = app.service.why(&ctx, id).await?;
    let mut body = serde_json::to_value(&why).unwrap_or_default();
    body["text"] = why.to_string().into();
    Ok(axum::Json(body))
}

/// The reason of an action.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Because {
    /// For the history and the audit log.
    reason: String,
}

/// What a cancel did.
#[derive(Serialize, ToSchema)]
pub(crate) struct CancelBody {
    /// `canceled`: it was waiting and is canceled now; `requested`: it is running, and its node was asked to stop it;
    /// `already_finished`: it was already canceled.
    outcome: &'static str,
}

/// Cancels a job: at once while it waits, cooperatively and then by force while it runs. Repeating it changes nothing.
#[utoipa::path(post, path = "/jobs/{id}/cancel", tag = "jobs", params(("id" = String, Path)),
    request_body = Option<Because>, responses((status = 200, body = CancelBody)))]
pub(crate) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
    MaybeJson(because): MaybeJson<Because>,
) -> Result<axum::Json<CancelBody>, Problem> {
    let ctx = caller.context_of(&app, id).await?;
    let outcome = match app.service.cancel(&ctx, id, &because.reason).await? {
        CancelReply::Canceled => "canceled",
        CancelReply::Requested => "requested",
        CancelReply::AlreadyFinished(_) => "already_finished",
        CancelReply::NotFound => return Err(Error::NotFound(id).into()),
    };
    Ok(axum::Json(CancelBody { outcome }))
}

/// How a dead letter is replayed.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Replay {
    /// Replays it as a new job that refers to the dead letter, which stays unchanged.
    as_new: bool,
    /// Another input; implies `as_new`.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
}

/// A job.
#[derive(Serialize, ToSchema)]
pub(crate) struct IdBody {
    /// Its id.
    #[schema(value_type = String)]
    pub(crate) id: JobId,
}

/// Runs a dead letter again, with its attempts reset. Returns the job that will run.
#[utoipa::path(post, path = "/jobs/{id}/replay", tag = "jobs", params(("id" = String, Path)),
    request_body = Option<Replay>, responses((status = 200, body = IdBody)))]
pub(crate) async fn replay(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
    MaybeJson(replay): MaybeJson<Replay>,
) -> Result<axum::Json<IdBody>, Problem> {
    let ctx = caller.context_of(&app, id).await?;
    if !replay.as_new && replay.input.is_none() {
        app.service.replay(&ctx, id).await?;
        return Ok(axum::Json(IdBody { id }));
    }
    caller.require(Right::Submit)?;
    let input = replay.input.map(|input| payload(&app, &input)).transpose()?;
    Ok(axum::Json(IdBody { id: app.service.replay_as_new(&ctx, id, input).await? }))
}

/// An input from outside, checked.
pub(crate) fn payload(app: &App, input: &RawValue) -> Result<Payload, Problem> {
    Ok(Payload::check("input", input.get(), app.service.config().limits.payload_bytes)?)
}

/// Removes an ended job now.
#[utoipa::path(delete, path = "/jobs/{id}", tag = "jobs", params(("id" = String, Path)), responses((status = 204)))]
pub(crate) async fn purge(State(app): State<App>, caller: Caller, PathJob(id): PathJob) -> Result<StatusCode, Problem> {
    let ctx = caller.context_of(&app, id).await?;
    app.service.purge(&ctx, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_trace_contexts_travel_on() {
        assert!(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        for bad in ["", "00-x-y-01", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", "00-0-0-0-0"] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }

    /// API-1: how a job ended badly has one of the documented codes.
    #[test]
    fn the_result_of_a_failed_job_has_a_documented_code() {
        use windlass_core::{JobError, Reason};
        let code = |status, error| ended_badly(status, error, None).code;
        let failed = |reason| Some(JobError::of(reason, "no"));
        assert_eq!(code(Status::DeadLettered, failed(Reason::Processing)), "handler_error");
        assert_eq!(code(Status::DeadLettered, failed(Reason::Panic)), "handler_error");
        assert_eq!(code(Status::DeadLettered, failed(Reason::Timeout)), "job_timeout");
        assert_eq!(code(Status::Canceled, None), "job_canceled");
        assert_eq!(code(Status::DeadLettered, Some(JobError::terminal("bad_address", "x"))), "bad_address");
    }
}
