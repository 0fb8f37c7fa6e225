//! Routes about the server itself: whether it lives, whether it is ready, and who asks.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::Right;

use crate::App;
use crate::auth::Caller;

/// Whether the process lives: always, if it can answer.
pub(crate) async fn live() -> &'static str {
    "ok\n"
}

/// How long the store may take to say what time it is before the server counts as not ready.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// Whether requests should be sent here: the store answers, and the server is not about to end.
pub(crate) async fn ready(State(app): State<App>) -> (StatusCode, &'static str) {
    if app.ending.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "ending\n");
    }
    match tokio::time::timeout(READY_WITHIN, app.service.store().now()).await {
        Ok(Ok(_)) => (StatusCode::OK, "ready\n"),
        Ok(Err(_)) => (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the store is slow\n"),
    }
}

/// Who asks.
#[derive(Serialize, ToSchema)]
pub(crate) struct Me {
    /// Its tenant.
    tenant: String,
    /// Whether it operates the whole installation.
    all_tenants: bool,
    /// Its name.
    user: String,
    /// What it may do.
    rights: Vec<&'static str>,
    /// How it has shown who it is.
    method: &'static str,
    /// Whether the server refuses changes.
    read_only: bool,
}

/// Who asks, and what they may do.
#[utoipa::path(get, path = "/me", tag = "system", responses((status = 200, body = Me)))]
pub(crate) async fn me(State(app): State<App>, caller: Caller) -> Json<Me> {
    let principal = &caller.principal;
    Json(Me {
        tenant: caller.context().tenant.to_string(),
        all_tenants: principal.all_tenants,
        user: principal.user.clone(),
        rights: Right::ALL.into_iter().filter(|right| principal.may(*right)).map(Right::as_str).collect(),
        method: principal.method.as_str(),
        read_only: app.config.read_only,
    })
}
