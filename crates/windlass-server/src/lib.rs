//! The HTTP API, live events, metrics and dashboard of Windlass. Mounted in a program's own axum router or served by
//! `windlass serve`. Does nothing that the public Rust API cannot do, and writes no SQL.

#![allow(clippy::result_large_err, reason = "a problem ends its request, and is made at most once for each")]

mod auth;
mod config;
pub mod dashboard;
mod egress;
mod extract;
mod metrics;
mod model;
mod openapi;
mod problem;
mod routes;
mod server;
mod state;
mod streams;
pub mod webhooks;

use std::net::SocketAddr;

pub use auth::{AuthMethod, Caller, Principal};
use axum::Router;
pub use config::{Auth, Config, HttpLimits, JwtConfig, JwtKeys};
pub use egress::{Blocked, Egress};
pub use problem::{FieldError, Problem, QuotaProblem};
pub use server::Server;
pub(crate) use state::App;
use windlass_core::JobService;
pub use windlass_core::{Right, Rights};

/// The API and the dashboard as a router, to be mounted in a program's own. The base path of the configuration is part
/// of its routes: mount it with `merge`, or with `nest` at the same path and an empty base path.
///
/// Serve it with `into_make_service_with_connect_info::<SocketAddr>()`, so that refused credentials are counted by
/// address. Streams end when the service does.
pub fn router(service: JobService, config: Config) -> Result<Router, Error> {
    config.check()?;
    let app = App::new(service, config)?;
    Ok(routes::router(&app))
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Only who is on the machine may be let in by a login link. Configure keys or tokens, or listen on loopback.
    #[error("refusing to listen on {0} without required authentication")]
    NotLoopback(SocketAddr),
    /// A setting makes no sense.
    #[error("{0}")]
    Config(String),
    /// The address could not be listened on.
    #[error("could not listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
}
