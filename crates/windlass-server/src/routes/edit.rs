//! Routes that change one job that waits: its input, its priority, its start; and that make another of it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass_core::{Edit, InvalidInput, Timestamp};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, MaybeJson, PathJob};
use crate::model::{self, PriorityBody};
use crate::problem::Problem;
use crate::routes::jobs::{IdBody, payload};

/// Runs a retrying job now, or replays a dead letter.
#[utoipa::path(post, path = "/jobs/{id}/retry", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, body = IdBody)))]
pub(crate) async fn retry(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
) -> Result<Json<IdBody>, Problem> {
    let ctx = caller.context_of(&app, id).await?;
    app.service.retry(&ctx, id).await?;
    Ok(Json(IdBody { id }))
}

/// Starts a waiting job as soon as a worker is free.
#[utoipa::path(post, path = "/jobs/{id}/run-now", tag = "jobs", params(("id" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn run_now(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
) -> Result<StatusCode, Problem> {
    let ctx = caller.context_of(&app, id).await?;
    app.service.run_now(&ctx, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// When a job starts: give one of the two.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewStart {
    /// At this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// After this delay.
    delay_ms: Option<u64>,
}

/// Changes when a waiting job starts.
#[utoipa::path(post, path = "/jobs/{id}/reschedule", tag = "jobs", params(("id" = String, Path)),
    request_body = NewStart, responses((status = 204)))]
pub(crate) async fn reschedule(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
    extract::Json(new): extract::Json<NewStart>,
) -> Result<StatusCode, Problem> {
    let start = model::start(new.run_at, new.delay_ms)?;
    let start = start.ok_or_else(|| InvalidInput::new("run_at", "give `run_at` or `delay_ms`"))?;
    let ctx = caller.context_of(&app, id).await?;
    app.service.reschedule(&ctx, id, start).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The new priority of a job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPriority {
    priority: PriorityBody,
}

/// Changes the priority of a waiting job.
#[utoipa::path(post, path = "/jobs/{id}/priority", tag = "jobs", params(("id" = String, Path)),
    request_body = NewPriority, responses((status = 204)))]
pub(crate) async fn priority(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
    extract::Json(new): extract::Json<NewPriority>,
) -> Result<StatusCode, Problem> {
    let priority = new.priority.read()?;
    let ctx = caller.context_of(&app, id).await?;
    app.service.reprioritise(&ctx, id, priority).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The changes of a waiting job; omitted fields stay the same.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Changes {
    /// The new input.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
    /// The new priority.
    priority: Option<PriorityBody>,
    /// The new start, as a time.
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// The new start, as a delay from now.
    delay_ms: Option<u64>,
}

/// Changes a waiting job. Applies all changes before a node takes the job, or none.
#[utoipa::path(patch, path = "/jobs/{id}", tag = "jobs", params(("id" = String, Path)),
    request_body = Changes, responses((status = 204)))]
pub(crate) async fn change(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
    extract::Json(changes): extract::Json<Changes>,
) -> Result<StatusCode, Problem> {
    let mut edit = Edit::new();
    edit.input = changes.input.map(|input| payload(&app, &input)).transpose()?;
    edit.priority = changes.priority.map(|priority| priority.read()).transpose()?;
    edit.start = model::start(changes.run_at, changes.delay_ms)?;
    let ctx = caller.context_of(&app, id).await?;
    app.service.edit(&ctx, id, edit).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How a job is cloned.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewClone {
    /// Another input [default: the job's input].
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
}

/// Submits a copy of this job, whatever its status.
#[utoipa::path(post, path = "/jobs/{id}/clone", tag = "jobs", params(("id" = String, Path)),
    request_body = Option<NewClone>, responses((status = 201, body = IdBody)))]
pub(crate) async fn clone(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
    MaybeJson(new): MaybeJson<NewClone>,
) -> Result<(StatusCode, Json<IdBody>), Problem> {
    let input = new.input.map(|input| payload(&app, &input)).transpose()?;
    let ctx = caller.context_of(&app, id).await?;
    let id = app.service.clone_job(&ctx, id, input).await?;
    Ok((StatusCode::CREATED, Json(IdBody { id })))
}
