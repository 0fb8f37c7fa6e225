//! The dashboard: pages for people, rendered on the server.

use axum::Router;

use crate::App;

/// The pages, each behind what it needs.
pub(crate) fn router(_app: &App) -> Router<App> {
    Router::new()
}
