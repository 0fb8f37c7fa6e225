//! Brings a file to the schema this version needs: numbered steps, forward only, one transaction each. Called when a
//! store is opened. Never touches tables of the application that shares the file, nor its `user_version`.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use windlass_core::store::{Error, Result};

use crate::ground::rows::{Fault, sql_error};

/// The schema version that this build reads and writes.
pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// In order; never edited after a release.
const MIGRATIONS: [(&str, &str); 9] = [
    ("0001_jobs", include_str!("../migrations/0001_jobs.sql")),
    ("0002_data_keys", include_str!("../migrations/0002_data_keys.sql")),
    ("0003_quotas", include_str!("../migrations/0003_quotas.sql")),
    ("0004_signatures", include_str!("../migrations/0004_signatures.sql")),
    ("0005_logs_usage", include_str!("../migrations/0005_logs_usage.sql")),
    ("0006_activity", include_str!("../migrations/0006_activity.sql")),
    ("0007_outside", include_str!("../migrations/0007_outside.sql")),
    ("0008_schedules", include_str!("../migrations/0008_schedules.sql")),
    ("0009_groups", include_str!("../migrations/0009_groups.sql")),
];

/// Returns the SQL of every migration, for people who want to read it before it runs.
pub fn migrations_sql() -> String {
    MIGRATIONS.iter().map(|(name, sql)| format!("-- {name}\n{sql}")).collect::<Vec<_>>().join("\n")
}

/// Returns the schema version of the file at `path`, 0 if it has none yet. Changes nothing.
pub fn schema_version(path: impl AsRef<Path>) -> Result<i64> {
    let path = path.as_ref();
    let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX);
    version(&conn.map_err(|e| sql_error(&e))?, &path.display().to_string())
}

/// Runs what is missing. Refuses a file that a newer version has written.
pub(crate) fn migrate(conn: &Connection, path: &str) -> Result<()> {
    let found = version(conn, path)?;
    for (step, (name, sql)) in (1..).zip(MIGRATIONS).skip(usize::try_from(found).unwrap_or(0)) {
        run(conn, step, sql)
            .map_err(|fault| Error::Internal(format!("migration {name} of {path} failed: {}", Error::from(fault))))?;
        tracing::info!(path, migration = name, "schema migrated");
    }
    Ok(())
}

/// Refuses a file that this version cannot read.
pub(crate) fn check(conn: &Connection, path: &str) -> Result<()> {
    let found = version(conn, path)?;
    if found < SCHEMA_VERSION {
        return Err(Error::Refused(format!(
            "{path} has schema version {found}, this Windlass needs {SCHEMA_VERSION}: run `windlass migrate`"
        )));
    }
    Ok(())
}

/// The version of the file, 0 for a new one.
fn version(conn: &Connection, path: &str) -> Result<i64> {
    let has_table = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'windlass_schema'";
    let has_table = conn.query_row(has_table, [], |_| Ok(())).optional().map_err(|e| sql_error(&e))?.is_some();
    let found = match has_table {
        true => conn
            .query_row("SELECT max(version) FROM windlass_schema", [], |row| row.get::<_, Option<i64>>(0))
            .map_err(|e| sql_error(&e))?
            .unwrap_or(0),
        false => 0,
    };
    if found > SCHEMA_VERSION {
        return Err(Error::Refused(format!(
            "{path} has schema version {found}, this Windlass supports at most {SCHEMA_VERSION}; use the version that wrote it, or a newer one"
        )));
    }
    Ok(found)
}

fn run(conn: &Connection, step: i64, sql: &str) -> std::result::Result<(), Fault> {
    let tx = conn.unchecked_transaction()?;
    tx.execute_batch("CREATE TABLE IF NOT EXISTS windlass_schema (version INTEGER PRIMARY KEY) STRICT")?;
    tx.execute_batch(sql)?;
    tx.execute("INSERT INTO windlass_schema (version) VALUES (?1)", [step])?;
    Ok(tx.commit()?)
}
