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

mod address;

use std::sync::Arc;

pub use address::Address;
pub use windlass_core::*;

/// The PostgreSQL store and its transactions.
#[cfg(feature = "postgres")]
pub use windlass_postgres as postgres;
/// The SQLite store and its transactions.
#[cfg(feature = "sqlite")]
pub use windlass_sqlite as sqlite;

/// Opens the store a URL names, and brings its schema up to date: `memory:`, `sqlite:PATH`, or `postgres://…`.
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

/// Names the schemes this build knows, but not the URL itself: it may hold a password.
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
