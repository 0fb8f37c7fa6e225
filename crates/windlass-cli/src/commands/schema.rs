//! Brings a schema up to date, prints it, or copies a whole database. Called by `commands::run`. Only `windlass-sqlite`
//! and `windlass-postgres` know what the steps are.

use std::path::Path;

use serde_json::json;

use crate::args::MigrateArgs;
use crate::connect::{Place, check_exists};
use crate::error::{CliError, Result};
use crate::output::Out;

/// Migrates, and says from which version to which.
pub(crate) async fn migrate(place: &Place, args: &MigrateArgs, out: &Out) -> Result {
    if args.sql {
        let sql = place.schema_sql()?;
        return if out.wants_json() { out.json(&json!({ "sql": sql })) } else { out.line(sql.trim_end()) };
    }
    let before = place.schema().await?;
    drop(place.make().await?);
    let (from, to, functions) = (before.found, place.schema().await?.found, before.functions);
    let database = place.describe();
    if out.wants_json() {
        return out.json(&json!({ "database": database, "from": from, "to": to, "functions": functions }));
    }
    match (from == to, functions) {
        (true, 0) => out.line(format_args!("{database} is up to date with schema version {to}")),
        (true, _) => out.line(format_args!("replaced {functions} functions of {database}, schema version {to}")),
        (false, _) => out.line(format_args!("migrated {database} from schema version {from} to {to}")),
    }
}

/// Copies the database, whoever has it open.
pub(crate) fn backup(place: &Place, file: &Path, out: &Out) -> Result {
    let path = match place {
        Place::Sqlite(path) => path,
        Place::Postgres(_) => {
            let file = file.display();
            return Err(CliError::Usage(format!(
                "back up PostgreSQL with its own tools: pg_dump --format=custom --file={file} \"$DATABASE_URL\" (docs/operations.md)"
            )));
        }
        Place::Memory => return Err(CliError::invalid("db", "memory: exists only in its own process")),
    };
    check_exists(path)?;
    let bytes = windlass::sqlite::backup(path, file)?;
    if out.wants_json() {
        return out.json(&json!({ "database": place.describe(), "backup": file, "bytes": bytes }));
    }
    out.line(format_args!("copied {} to {}, {} MB", place.describe(), file.display(), bytes.div_ceil(1 << 20)))
}
