//! The HTTP API, live events, metrics and dashboard of Windlass. Mounted in a program's own axum router or served by
//! `windlass serve`. Does nothing that the public Rust API cannot do, and writes no SQL.

#![allow(clippy::result_large_err, reason = "a problem ends its request, and is made at most once for each")]

mod auth;
mod config;
pub mod dashboard;
mod extract;
mod metrics;
mod model;
mod openapi;
mod places;
mod problem;
mod routes;
mod server;
mod state;
mod streams;
mod unstuck;
pub mod webhooks;

use std::net::SocketAddr;

pub use auth::{AuthMethod, Caller, Principal};
use axum::Router;
pub use config::{Auth, Config, HttpLimits, JwtConfig, JwtKeys, LocalKey};
pub use problem::{FieldError, Problem, QuotaProblem};
pub use server::Server;
pub(crate) use state::App;
use windlass_core::JobService;
pub use windlass_core::{Right, Rights};
pub use windlass_handlers::egress::{Blocked, Egress};

/// Returns the API and the dashboard as a router that you can mount in your own. The configured base path is part of
/// its routes: mount it with `merge`, or with `nest` at the same path and an empty base path.
///
/// Serve it with `into_make_service_with_connect_info::<SocketAddr>()`, so that rejected credentials are counted per
/// address. Streams end when the service ends.
pub fn router(service: JobService, config: Config) -> Result<Router, Error> {
    config.check()?;
    let app = App::new(service, config)?;
    Ok(routes::router(&app))
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Login links are only for users of the same machine. Configure keys or tokens, or listen on loopback.
    #[error("refusing to listen on {0} without required authentication")]
    NotLoopback(SocketAddr),
    /// A setting is invalid.
    #[error("{0}")]
    Config(String),
    /// The server could not listen on the address.
    #[error("could not listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
}

/// The README of this crate, compiled as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
