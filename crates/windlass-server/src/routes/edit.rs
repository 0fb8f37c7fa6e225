//! Routes that change one job that waits (BEY-5): its input, its priority, its start; and that make another of it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass_core::{Edit, Error, InvalidInput, Status, Timestamp};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, MaybeJson, PathJob};
use crate::model::{self, PriorityBody};
use crate::problem::Problem;
use crate::routes::jobs::{IdBody, payload};

/// Runs a retrying job now, or puts a dead letter back to work.
#[utoipa::path(post, path = "/jobs/{id}/retry", tag = "jobs", params(("id" = String, Path)),
    responses((status = 200, body = IdBody)))]
pub(crate) async fn retry(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
) -> Result<Json<IdBody>, Problem> {
    let ctx = caller.context_of(&app, id).await?;
    match app.service.get(&ctx, id).await?.status {
        Status::DeadLettered => app.service.replay(&ctx, id).await?,
        Status::Retrying => app.service.run_now(&ctx, id).await?,
        status => {
            let message = format!("only retrying jobs and dead letters are retried, it is {status}");
            return Err(Error::Conflict { job: id, message }.into());
        }
    }
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

/// When a job starts: one of the two.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewStart {
    /// At this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// This long from now.
    delay_ms: Option<u64>,
}

/// Gives a waiting job another start.
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

/// How urgent a job is from now on.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPriority {
    priority: PriorityBody,
}

/// Gives a waiting job another priority.
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

/// What is to change about a waiting job; what is left out stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Changes {
    /// Another input.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
    /// Another priority.
    priority: Option<PriorityBody>,
    /// Another start, at this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// Another start, this long from now.
    delay_ms: Option<u64>,
}

/// Changes a job that waits: all of it before a node takes it, or nothing.
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
    /// Another input; that of the job unless given.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
}

/// Submits a job like this one, whatever has become of it.
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
