//! Brings a schema up to date, or prints it. Called by `commands::run`. Only `windlass-sqlite` and `windlass-postgres`
//! know what the steps are.

use serde_json::json;

use crate::args::MigrateArgs;
use crate::connect::Place;
use crate::error::Result;
use crate::output::Out;

/// Migrates, and says from which version to which.
pub(crate) async fn migrate(place: &Place, args: &MigrateArgs, out: &Out) -> Result {
    if args.sql {
        let sql = place.schema_sql()?;
        return if out.wants_json() { out.json(&json!({ "sql": sql })) } else { out.line(sql.trim_end()) };
    }
    let (from, _) = place.schema_versions().await?;
    drop(place.make().await?);
    let (to, _) = place.schema_versions().await?;
    if out.wants_json() {
        return out.json(&json!({ "database": place.describe(), "from": from, "to": to }));
    }
    match from == to {
        true => out.line(format_args!("{} is up to date, at schema version {to}", place.describe())),
        false => out.line(format_args!("{} is migrated from schema version {from} to {to}", place.describe())),
    }
}
