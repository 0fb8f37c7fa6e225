//! Durable background jobs in your own process: on an embedded SQLite file, on PostgreSQL by changing one URL, or in
//! memory for tests. This crate re-exports [`windlass_core`] and the stores its features name; it holds no logic.
//!
//! ```
//! use windlass::{JobContext, JobError, JobService, SecurityContext, SubmitOptions, TenantId};
//!
//! async fn greet(_state: (), ctx: JobContext, name: String) -> Result<String, JobError> {
//!     ctx.report_progress(100.0, "done");
//!     Ok(format!("Hello, {name}!"))
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = windlass::open("memory:").await?; // or "sqlite:jobs.db", or "postgres://…"
//! let jobs = JobService::builder(store).function("greet", (), greet).start().await?;
//!
//! let ctx = SecurityContext::new(TenantId::ROOT);
//! let job = jobs.submit_named(&ctx, "greet", "world", SubmitOptions::new()).await?;
//! let hello: String = jobs.wait_for(&ctx, job.id, std::time::Duration::from_secs(5)).await?;
//! assert_eq!(hello, "Hello, world!");
//! jobs.shutdown().await;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

pub use windlass_core::*;

/// The PostgreSQL store and its transactions.
#[cfg(feature = "postgres")]
pub use windlass_postgres as postgres;
/// The SQLite store and its transactions.
#[cfg(feature = "sqlite")]
pub use windlass_sqlite as sqlite;

/// Opens the store a URL names, and brings its schema up to date: `memory:`, `sqlite:PATH`, or `postgres://…`.
pub async fn open(url: &str) -> Result<Arc<dyn store::Store>, Error> {
    match url.split_once(':') {
        Some(("memory", _)) => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) => Ok(Arc::new(sqlite::SqliteStore::open(path.trim_start_matches("//"))?)),
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => Ok(Arc::new(postgres::PgStore::connect(url).await?)),
        _ => Err(InvalidInput::new("url", unknown_url(url)).into()),
    }
}

/// Names the schemes this build knows, but not the URL itself: it may hold a password.
fn unknown_url(url: &str) -> String {
    let scheme = url.split(':').next().unwrap_or_default();
    let mut known = vec!["memory:"];
    if cfg!(feature = "sqlite") {
        known.push("sqlite:PATH");
    }
    if cfg!(feature = "postgres") {
        known.push("postgres://…");
    }
    format!("unknown scheme `{}`; this build knows {}", scheme.escape_debug(), known.join(", "))
}
