//! Durable background jobs in your own process: on an embedded SQLite file, on PostgreSQL by changing one URL, or in
//! memory for tests. This crate re-exports [`windlass_core`] and the stores that its features enable; it contains no
//! logic.
//!
//! ```
//! use std::time::Duration;
//! use windlass::{HandlerRef, JobContext, JobError, JobService};
//!
//! const GREET: HandlerRef<String, String> = HandlerRef::new("greet");
//!
//! async fn greet(_state: (), ctx: JobContext, name: String) -> Result<String, JobError> {
//!     ctx.report_progress(100.0, "done");
//!     Ok(format!("Hello, {name}!"))
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = windlass::open("memory:").await?; // or "sqlite:jobs.db", or "postgres://…" with the feature `postgres`
//! let jobs = JobService::builder(store).function(GREET, (), greet).start().await?;
//!
//! let job = GREET.submit(&jobs, "world").await?;
//! assert_eq!(job.wait(Duration::from_secs(5)).await?, "Hello, world!");
//! jobs.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! | feature | adds |
//! |---|---|
//! | `sqlite` (default) | the store for `sqlite:PATH`, and its transactions: `windlass::sqlite` |
//! | `postgres` | the store for `postgres://…`, and transactions of `tokio-postgres`: `windlass::postgres` |
//! | `postgres-tls` | encrypted connections to PostgreSQL |
//! | `sqlx`, `seaorm` | submits inside transactions of `sqlx` 0.9 and SeaORM 2 |
//! | `encryption` | payloads encrypted at rest with the tenant's keys: `Builder::encryption` |
//! | `job-logs` | `JobLogs`, a layer for `tracing` that stores what handlers log with their jobs |
//! | `otel` | OpenTelemetry traces that follow a job from its submitter to its attempts, in any process |

mod address;
mod signal;

use std::sync::Arc;

pub use address::Address;
pub use signal::run_until_signal;
pub use windlass_core::*;

/// The PostgreSQL store and its transactions (feature `postgres`).
#[cfg(feature = "postgres")]
pub use windlass_postgres as postgres;
/// The SQLite store and its transactions (feature `sqlite`, on by default).
#[cfg(feature = "sqlite")]
pub use windlass_sqlite as sqlite;

/// Opens the store that a URL names and migrates its schema: `memory:`, `sqlite:PATH`, or `postgres://…` (feature
/// `postgres`). Fails with [`Error::InvalidInput`] if this build has no store for the URL.
pub async fn open(url: &str) -> Result<Arc<dyn store::Store>, Error> {
    match Address::parse(url)? {
        Address::Memory => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        Address::Sqlite(path) => Ok(Arc::new(sqlite::SqliteStore::open(path)?)),
        #[cfg(feature = "postgres")]
        Address::Postgres(url) => Ok(Arc::new(postgres::PgStore::connect(&url).await?)),
        #[cfg(not(all(feature = "sqlite", feature = "postgres")))]
        _ => Err(InvalidInput::new("url", not_in_this_build()).into()),
    }
}

/// Names the schemes that this build supports, but not the URL itself, because it may contain a password.
#[cfg(not(all(feature = "sqlite", feature = "postgres")))]
fn not_in_this_build() -> String {
    let mut known = vec!["memory:"];
    if cfg!(feature = "sqlite") {
        known.push("sqlite:PATH");
    }
    if cfg!(feature = "postgres") {
        known.push("postgres://…");
    }
    format!("this build knows only {}; others need a feature of the crate `windlass`", known.join(", "))
}

/// The first program of the README, compiled as it stands there.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The README of this crate, which says the same in short.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeOfCrate;
