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

/// Whether requests should be sent here: the store answers, every loop runs, what attempts come to is saved, and the
/// server is not about to end.
pub(crate) async fn ready(State(app): State<App>) -> (StatusCode, String) {
    let not = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    if app.ending.is_cancelled() {
        return not("ending");
    }
    if let Some(trouble) = app.service.troubles().first() {
        return not(trouble);
    }
    match tokio::time::timeout(READY_WITHIN, app.service.store().now()).await {
        Ok(Ok(_)) => (StatusCode::OK, "ready\n".to_owned()),
        Ok(Err(_)) => not("the store does not respond"),
        Err(_) => not("the store is slow"),
    }
}

/// The caller.
#[derive(Serialize, ToSchema)]
pub(crate) struct Me {
    /// Its tenant.
    tenant: String,
    /// Whether it operates the whole installation.
    all_tenants: bool,
    /// Its name.
    user: String,
    /// Its rights.
    rights: Vec<&'static str>,
    /// How it authenticated.
    method: &'static str,
    /// Whether the server rejects changes.
    read_only: bool,
}

/// Returns the caller and its rights.
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
