//! The dashboard: pages rendered on the server, one small script, no request to any other host. Mounted by the server's
//! router. Does nothing that the API cannot do, and asks the same service for it.
//!
//! `views` are pure functions from data to HTML; everything around them is small.

mod assets;
mod chart;
mod parts;
mod shell;
mod urls;
mod views;
mod words;

use axum::Router;
use axum::routing::get;

use crate::App;

/// The pages, each behind what it needs.
pub(crate) fn router(_app: &App) -> Router<App> {
    Router::new().route("/assets/{name}", get(assets::serve))
}
