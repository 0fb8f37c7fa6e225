//! Routes of pauses: which are in force, stop starting jobs, go on. Anyone may pause the own tenant; the rest is for
//! operators of the whole installation.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::Timestamp;
use windlass_core::store::{Pause, PauseTarget};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, Path};
use crate::problem::Problem;

/// An active pause.
#[derive(Serialize, ToSchema)]
pub(crate) struct PauseBody {
    /// `all`, `handler:ID` or `tenant:UUID`.
    target: String,
    by: String,
    reason: String,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
}

impl From<Pause> for PauseBody {
    fn from(pause: Pause) -> Self {
        PauseBody { target: pause.target.name(), by: pause.by, reason: pause.reason, at: pause.at }
    }
}

/// The active pauses.
#[derive(Serialize, ToSchema)]
pub(crate) struct PausesBody {
    pauses: Vec<PauseBody>,
}

/// Lists the active pauses that may affect the caller's jobs.
#[utoipa::path(get, path = "/pauses", tag = "look", responses((status = 200, body = PausesBody)))]
pub(crate) async fn pauses(State(app): State<App>, caller: Caller) -> Result<Json<PausesBody>, Problem> {
    let pauses = caller.within(&app).pauses().await?;
    Ok(Json(PausesBody { pauses: pauses.into_iter().map(PauseBody::from).collect() }))
}

/// What to pause.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPause {
    /// `all`, `handler:ID` or `tenant:UUID`.
    target: String,
    /// The reason, for people.
    #[serde(default)]
    reason: String,
    /// Also pause a handler that no node has or had and no job uses; otherwise this is 404 `handler_not_found`.
    #[serde(default)]
    force: bool,
}

/// Stops starting jobs of a handler, of a tenant or of all, on every node within a second. Running jobs continue.
#[utoipa::path(post, path = "/pauses", tag = "look", request_body = NewPause, responses((status = 204)))]
pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    extract::Json(new): extract::Json<NewPause>,
) -> Result<StatusCode, Problem> {
    let target = pause_target(&new.target)?;
    let (within, ctx) = (caller.within_reach(&app), caller.context());
    match new.force {
        true => within.force_pause(&ctx, &target, &new.reason).await?,
        false => within.pause(&ctx, &target, &new.reason).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a pause.
#[utoipa::path(delete, path = "/pauses/{target}", tag = "look", params(("target" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Path(PauseName { target }): Path<PauseName>,
) -> Result<StatusCode, Problem> {
    let target = pause_target(&target)?;
    match caller.within_reach(&app).resume(&caller.context(), &target).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("there is no such pause")),
    }
}

#[derive(Deserialize)]
pub(crate) struct PauseName {
    target: String,
}

fn pause_target(text: &str) -> Result<PauseTarget, Problem> {
    let expected = || Problem::invalid("target", "expected `all`, `handler:ID` or `tenant:UUID`");
    PauseTarget::parse(text).ok_or_else(expected)
}
