//! The schema: numbered migrations, applied forward only, each in a transaction under a lock. Called when a store
//! connects and by `windlass migrate`. Never changes a schema that is newer than this binary.

use windlass_core::store::{Error, Result};

use crate::connect::{Access, Conn, Failure, Pool};

/// One step of the schema.
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

macro_rules! migration {
    ($version:literal, $name:literal) => {
        Migration { version: $version, name: $name, sql: include_str!(concat!("migrations/", $name, ".sql")) }
    };
}

const MIGRATIONS: &[Migration] = &[
    migration!(1, "0001_tables"),
    migration!(2, "0002_submit"),
    migration!(3, "0003_claim"),
    migration!(4, "0004_finish"),
    migration!(5, "0005_steer"),
    migration!(6, "0006_maintain"),
    migration!(7, "0007_walls"),
    migration!(8, "0008_keys"),
    migration!(9, "0009_quotas"),
    migration!(10, "0010_health"),
    migration!(11, "0011_signatures"),
    migration!(12, "0012_edit_logs_usage"),
    migration!(13, "0013_activity"),
    migration!(14, "0014_outside"),
];

/// Where the versions are kept. Made before the first migration, so that it is there to be asked.
const BOOTSTRAP: &str = "create schema if not exists windlass;
create table if not exists windlass.schema_version (
    version integer not null primary key,
    name text not null,
    applied_at timestamptz not null default clock_timestamp()
);";

/// The lock that lets one process migrate at a time. It ends with its transaction, so PgBouncer cannot leak it.
const LOCK: &str = "select pg_advisory_xact_lock(7238934417284650001)";

/// Puts what is new behind the walls between tenants. Answers `up`, or why there are none.
const RAISE_WALLS: &str = "select windlass.raise_walls()";

/// How often that is tried: on a busy database its locks may lose to a node's, or a node's to it.
const RAISE_TRIES: u32 = 5;

/// How a schema compares with this binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaStatus {
    /// The version in the database; 0 if there is none.
    pub found: i32,
    /// The version this binary works with.
    pub wanted: i32,
}

impl SchemaStatus {
    /// Whether nothing is to be done.
    pub fn is_current(&self) -> bool {
        self.found == self.wanted
    }
}

/// The newest version this binary knows.
fn wanted() -> i32 {
    MIGRATIONS.last().expect("there are migrations").version
}

/// The SQL of all migrations, for those who run it by hand (`windlass migrate --sql`).
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
    text.push_str(&format!("\n{RAISE_WALLS};\ncommit;\n"));
    text
}

pub(crate) async fn status(pool: &Pool) -> Result<SchemaStatus> {
    let there = "select to_regclass('windlass.schema_version') is not null";
    let found = match pool.query_one(Access::Read, there, &[]).await?.get(0) {
        true => {
            let version = "select coalesce(max(version), 0) from windlass.schema_version";
            pool.query_one(Access::Read, version, &[]).await?.get(0)
        }
        false => 0,
    };
    Ok(SchemaStatus { found, wanted: wanted() })
}

/// Refuses a schema that this binary cannot work with.
pub(crate) fn check(status: SchemaStatus) -> Result<()> {
    let SchemaStatus { found, wanted } = status;
    if found > wanted {
        return Err(Error::Refused(format!(
            "the database has schema version {found}, this binary knows version {wanted}: \
             run a newer Windlass, or restore the database from before the upgrade"
        )));
    }
    if found < wanted {
        return Err(Error::Refused(format!(
            "the database has schema version {found}, this binary needs version {wanted}: run `windlass migrate`"
        )));
    }
    Ok(())
}

/// Applies what is missing, and raises the walls where they are down and this login can. Several processes may call it
/// at once.
pub(crate) async fn migrate(pool: &Pool) -> Result<SchemaStatus> {
    let before = status(pool).await?;
    if before.found > before.wanted {
        check(before)?;
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > before.found) {
        let mut conn = pool.get().await?;
        conn.in_doubt();
        apply(&conn, migration).await?;
        conn.settled();
    }
    let walls: String = pool.query_one(Access::Read, "select windlass.walls()", &[]).await?.get(0);
    if !before.is_current() || walls != "up" {
        raise_walls(pool).await?;
    }
    if before.found < before.wanted {
        // So that `windlass doctor` can tell what someone changes from now on.
        pool.query(Access::Write, "select windlass.note_schema()", &[]).await?;
    }
    Ok(SchemaStatus { found: wanted(), wanted: wanted() })
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
                    "up" => tracing::info!("raised the walls between tenants"),
                    reason => tracing::warn!(reason, "no row-level security between tenants; scopes and predicates do"),
                }
                return Ok(());
            }
            Err(Failure::Conflict(_)) if tries < RAISE_TRIES => tries += 1,
            Err(failure) => return Err(failure.into()),
        }
    }
}

async fn raised(conn: &Conn) -> std::result::Result<String, Failure> {
    conn.run(Access::Write, "begin").await?;
    conn.run(Access::Write, LOCK).await?;
    let rows = conn.query_inside(Access::Write, RAISE_WALLS, &[]).await?;
    conn.run(Access::Write, "commit").await?;
    Ok(rows.first().map(|row| row.get(0)).unwrap_or_default())
}

async fn apply(conn: &Conn, migration: &Migration) -> Result<()> {
    conn.run(Access::Write, "begin").await?;
    // The schema first needs the lock too: two processes that create it at once would collide in the catalog.
    conn.run(Access::Write, LOCK).await?;
    conn.run(Access::Write, BOOTSTRAP).await?;
    let found = "select coalesce(max(version), 0) from windlass.schema_version";
    let rows = conn.query_inside(Access::Read, found, &[]).await?;
    let found: i32 = rows.first().map_or(0, |row| row.get(0));
    if found < migration.version {
        conn.run(Access::Write, migration.sql).await?;
        let (version, name) = (migration.version, migration.name);
        let note = format!("insert into windlass.schema_version (version, name) values ({version}, '{name}')");
        conn.run(Access::Write, &note).await?;
        tracing::info!(version, name, "migrated the schema of Windlass");
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
        let error = check(SchemaStatus { found: 99, wanted: wanted() }).expect_err("refused").to_string();
        assert!(error.contains("99") && error.contains(&wanted().to_string()), "{error}");
    }
}
