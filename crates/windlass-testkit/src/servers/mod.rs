//! Throwaway servers for tests, made from the system's own binaries, and what tests are told about the ones that
//! `cargo xtask test` has started. Called by `xtask`, by tests and by benchmarks. Speaks to servers through their
//! commands only, never through a client library, and never touches a server it did not start.

mod binaries;
mod chromium;
mod pgbouncer;
mod postgres;
mod process;

use std::path::PathBuf;

pub use binaries::{POSTGRES_BIN_VAR, install_package};
pub use chromium::ChromeDriver;
pub use pgbouncer::{PgBouncer, PgBouncerOptions};
pub use postgres::{Backup, PostgresOptions, PostgresServer, StopMode};
pub use process::free_port;

/// The variable with the URL of a PostgreSQL server on which tests may create databases.
pub const POSTGRES_VAR: &str = "WINDLASS_TEST_POSTGRES";
/// The variable with the URL of a PgBouncer in transaction mode in front of that server.
pub const PGBOUNCER_VAR: &str = "WINDLASS_TEST_PGBOUNCER";
/// The variable with the path of the `windlass` binary, for tests that start processes of it.
pub const BIN_VAR: &str = "WINDLASS_BIN";
/// The variable with the tier: `short` or `full`.
pub const TIER_VAR: &str = "WINDLASS_TIER";

/// The variable with the directory for pictures of the dashboard; set by `cargo xtask screenshots`.
pub const SCREENSHOTS_VAR: &str = "WINDLASS_SCREENSHOTS";

/// The URL of the server on which tests may create databases.
///
/// # Panics
/// When no server has been named: a test that needs one must not pass without it.
pub fn test_postgres_url() -> String {
    required(POSTGRES_VAR, "the URL of a server on which tests may create databases")
}

/// The URL of a PgBouncer in transaction mode in front of [`test_postgres_url`].
///
/// # Panics
/// When no pooler has been named: a test that needs one must not pass without it.
pub fn test_pgbouncer_url() -> String {
    required(PGBOUNCER_VAR, "the URL of a PgBouncer in transaction mode in front of that server")
}

/// The `windlass` binary.
///
/// # Panics
/// When it has not been named.
pub fn windlass_bin() -> PathBuf {
    required(BIN_VAR, "the path of the `windlass` binary").into()
}

/// Whether the long tests run too.
pub fn is_full_tier() -> bool {
    given(TIER_VAR).is_some_and(|tier| tier == "full")
}

/// Where pictures of the dashboard go, if anywhere.
pub fn screenshots_dir() -> Option<PathBuf> {
    given(SCREENSHOTS_VAR).map(PathBuf::from)
}

fn required(variable: &str, what: &str) -> String {
    given(variable).unwrap_or_else(|| panic!("run `cargo xtask test`, or set {variable} to {what}"))
}

fn given(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}
