//! The schema: numbered migrations, applied forward only, and the functions of `functions`, applied when their text
//! differs, all in one transaction under a lock. Called when a store connects and by `windlass migrate`. Never changes a
//! schema that is newer than this binary.

use windlass_core::store::{Error, Result};

use crate::ground::connect::{Access, Conn, ENGINE_IDLE, Failure, Pool, begin};
use crate::ground::functions::{self, Noted};
use crate::ground::rows::Row;

/// One step of the schema.
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

macro_rules! migration {
    ($version:literal, $name:literal) => {
        Migration { version: $version, name: $name, sql: include_str!(concat!("../sql/tables/", $name, ".sql")) }
    };
}

const MIGRATIONS: &[Migration] = &[
    migration!(1, "0001_jobs"),
    migration!(2, "0002_data_keys"),
    migration!(3, "0003_quotas"),
    migration!(4, "0004_signatures"),
    migration!(5, "0005_logs_usage"),
    migration!(6, "0006_activity"),
    migration!(7, "0007_outside"),
    migration!(8, "0008_schedules"),
    migration!(9, "0009_groups"),
];

/// Where the versions are kept, and the digests of what the schema is made of (`sql/ground/schema.sql`). Created before the
/// first migration, so that both are there to be asked.
const BOOTSTRAP: &str = "create schema if not exists windlass;
create table if not exists windlass.schema_version (
    version integer not null primary key,
    name text not null,
    applied_at timestamptz not null default clock_timestamp()
);
create table if not exists windlass.schema_object (
    name text not null primary key,
    digest text not null
);";

/// The version that a database has.
const FOUND: &str = "select coalesce(max(version), 0) from windlass.schema_version";

/// The lock that lets one process migrate at a time. It ends with its transaction, so PgBouncer cannot leak it.
const LOCK: &str = "select pg_advisory_xact_lock(7238934417284650001)";

/// Creates the partitions of this week and the next ones, without which the default partition would take their jobs.
const MAKE_WEEKS: &str = "select windlass.make_weeks(2)";

/// Puts what is new behind the walls between tenants. Answers `up`, or why there are none.
const RAISE_WALLS: &str = "select windlass.raise_walls()";

/// Remembers the schema as it is, so that `windlass doctor` can tell what someone changes from then on. Always in the
/// transaction that made the schema so: a process that dies between the two would leave a warning for ever.
const NOTE_SCHEMA: &str = "select windlass.note_schema()";

/// How often that is tried: on a busy database its locks may lose to a node's, or a node's to it.
const RAISE_TRIES: u32 = 5;

/// The schema version of a database and of this binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaStatus {
    /// The version in the database; 0 if it has no schema.
    pub found: i32,
    /// The version that this binary needs.
    pub wanted: i32,
    /// How many files of functions the database has in another text than this binary, which is not a newer release's.
    pub functions: usize,
}

impl SchemaStatus {
    /// Whether there is nothing to migrate.
    pub fn is_current(&self) -> bool {
        self.found == self.wanted && self.functions == 0
    }
}

/// The newest version this binary knows.
fn wanted() -> i32 {
    MIGRATIONS.last().expect("there are migrations").version
}

/// Returns the SQL of the whole schema, for people who run it by hand (`windlass migrate --sql`).
pub fn migrations_sql() -> String {
    let mut text = format!("begin;\n{BOOTSTRAP}\n{LOCK};\n");
    for migration in MIGRATIONS {
        text.push_str(&format!(
            "\n-- {name}\n{sql}\ninsert into windlass.schema_version (version, name) values ({version}, '{name}');\n",
            name = migration.name,
            sql = migration.sql.trim_end(),
            version = migration.version,
        ));
    }
    text.push_str(&format!("\n{};\n", functions::UNCHECKED));
    for (file, note) in Noted::default().outdated() {
        text.push_str(&format!("\n-- {}\n{}\n{note};\n", file.name, file.sql.trim_end()));
    }
    text.push_str(&format!(
        "\n{};\n{MAKE_WEEKS};\n{NOTE_SCHEMA};\n{RAISE_WALLS};\n{NOTE_SCHEMA};\ncommit;\n",
        functions::note_release()
    ));
    text
}

pub(crate) async fn status(pool: &Pool) -> Result<SchemaStatus> {
    let there = "select to_regclass('windlass.schema_version') is not null";
    if !pool.query_one(Access::Read, there, &[]).await?.get::<_, bool>(0)? {
        return Ok(SchemaStatus { found: 0, wanted: wanted(), functions: functions::FILES.len() });
    }
    let found = pool.query_one(Access::Read, FOUND, &[]).await?.get(0)?;
    let noted = noted(pool.query(Access::Read, functions::NOTED, &[]).await?)?;
    Ok(SchemaStatus { found, wanted: wanted(), functions: noted.outdated().len() })
}

fn noted(rows: Vec<Row>) -> Result<Noted> {
    let mut noted = Noted::default();
    for row in rows {
        noted.note(row.get(0)?, row.get(1)?);
    }
    Ok(noted)
}

/// Refuses a schema that this binary cannot work with.
pub(crate) fn check(status: SchemaStatus) -> Result<()> {
    let SchemaStatus { found, wanted, functions } = status;
    if found > wanted {
        return Err(Error::Refused(format!(
            "the database has schema version {found}, this binary supports at most version {wanted}: \
             run a newer Windlass, or restore the database from before the upgrade"
        )));
    }
    if found < wanted {
        return Err(Error::Refused(format!(
            "the database has schema version {found}, this binary needs version {wanted}: run `windlass migrate`"
        )));
    }
    if functions > 0 {
        return Err(Error::Refused(format!(
            "the database has {functions} functions in another text than this binary needs: run `windlass migrate`"
        )));
    }
    Ok(())
}

/// Applies what is missing or differs, and raises the walls where they are down and this login can. Several processes may
/// call it at once.
pub(crate) async fn migrate(pool: &Pool) -> Result<SchemaStatus> {
    let before = status(pool).await?;
    if before.found > before.wanted {
        check(before)?;
    }
    if !before.is_current() {
        let mut conn = pool.get().await?;
        conn.in_doubt();
        apply(&conn).await?;
        conn.settled();
    }
    let walls: String = pool.query_one(Access::Read, "select windlass.walls()", &[]).await?.get(0)?;
    if !before.is_current() || walls != "up" {
        raise_walls(pool).await?;
    }
    Ok(SchemaStatus { found: wanted(), wanted: wanted(), functions: 0 })
}

async fn raise_walls(pool: &Pool) -> Result<()> {
    let mut tries = 1;
    loop {
        let mut conn = pool.get().await?;
        conn.in_doubt();
        match raised(&conn).await {
            Ok(walls) => {
                conn.settled();
                match walls.as_str() {
                    "up" => tracing::info!("row-level security now separates tenants"),
                    reason => tracing::warn!(reason, "row-level security is off: only query scopes separate tenants"),
                }
                return Ok(());
            }
            Err(Failure::Conflict(_)) if tries < RAISE_TRIES => tries += 1,
            Err(failure) => return Err(failure.into()),
        }
    }
}

async fn raised(conn: &Conn) -> std::result::Result<String, Failure> {
    conn.run(Access::Write, &begin(ENGINE_IDLE)).await?;
    conn.run(Access::Write, LOCK).await?;
    // What someone else has changed stays to be told.
    let drifted = "select exists (select 1 from windlass.schema_drift())";
    let rows = conn.query_inside(Access::Read, drifted, &[]).await?;
    let drifted = rows.first().map(|row| row.get(0)).transpose().map_err(Failure::Answered)?.unwrap_or(true);
    let rows = conn.query_inside(Access::Write, RAISE_WALLS, &[]).await?;
    if !drifted {
        conn.run(Access::Write, NOTE_SCHEMA).await?;
    }
    conn.run(Access::Write, "commit").await?;
    let walls = rows.first().map(|row| row.get(0)).transpose().map_err(Failure::Answered)?;
    Ok(walls.unwrap_or_default())
}

/// Asks again under the lock what is missing: another process may have been here.
async fn apply(conn: &Conn) -> Result<()> {
    conn.run(Access::Write, &begin(ENGINE_IDLE)).await?;
    // The schema first needs the lock too: two processes that create it at once would collide in the catalog.
    conn.run(Access::Write, LOCK).await?;
    conn.run(Access::Write, BOOTSTRAP).await?;
    let rows = conn.query_inside(Access::Read, FOUND, &[]).await?;
    let found: i32 = rows.first().map_or(Ok(0), |row| row.get(0))?;
    let missing = MIGRATIONS.iter().filter(|migration| migration.version > found);
    for &Migration { version, name, sql } in missing.clone() {
        conn.run(Access::Write, sql).await?;
        let note = format!("insert into windlass.schema_version (version, name) values ({version}, '{name}')");
        conn.run(Access::Write, &note).await?;
        tracing::info!(version, name, "migrated the Windlass schema");
    }
    let noted = noted(conn.query_inside(Access::Read, functions::NOTED, &[]).await?)?;
    let outdated = noted.outdated();
    if !outdated.is_empty() {
        conn.run(Access::Write, functions::UNCHECKED).await?;
        for (file, note) in &outdated {
            tracing::debug!(file = file.name, "applies functions");
            conn.run(Access::Write, file.sql).await?;
            conn.run(Access::Write, note).await?;
        }
        conn.run(Access::Write, &functions::note_release()).await?;
        tracing::info!(files = outdated.len(), "replaced functions of the Windlass schema");
    }
    if missing.count() > 0 || !outdated.is_empty() {
        conn.run(Access::Write, MAKE_WEEKS).await?;
        conn.run(Access::Write, NOTE_SCHEMA).await?;
    }
    conn.run(Access::Write, "commit").await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_up_by_one() {
        for (n, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version, n as i32 + 1);
            assert!(migration.name.starts_with(&format!("{:04}_", migration.version)));
        }
    }

    #[test]
    fn a_newer_schema_is_refused_with_both_versions() {
        let error = check(SchemaStatus { found: 99, wanted: wanted(), functions: 0 }).expect_err("refused").to_string();
        assert!(error.contains("99") && error.contains(&wanted().to_string()), "{error}");
    }
}
