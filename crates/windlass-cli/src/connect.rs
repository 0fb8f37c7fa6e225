//! Finds and opens the store a command works on: read-only where reading is enough, so that it works beside a process
//! that holds the file. Called by every command. Only `up`, `migrate` and `serve --migrate` create a file or a schema.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::postgres::{PgOptions, PgStore};
use windlass::sqlite::{SqliteOptions, SqliteStore};
use windlass::store::Store;
use windlass::{Address, Builder, Encryption, EnvKeys, FileKeys, JobService, MemoryStore, Opener, SecurityContext};

use crate::args::Global;
use crate::error::{CliError, Result};
use crate::output::Out;

/// The directory that `up` makes, and the file in it.
pub(crate) const DATA_DIR: &str = "./windlass-data";
const DATA_FILE: &str = "windlass.db";

/// The schema of a place, beside what this binary works with.
pub(crate) struct Schema {
    /// Its version; 0 means there is none yet.
    pub(crate) found: i64,
    pub(crate) wanted: i64,
    /// How many files of functions differ from those of this binary, on PostgreSQL.
    pub(crate) functions: usize,
}

/// Where jobs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A file.
    Sqlite(PathBuf),
    /// A server, by its URL.
    Postgres(String),
    /// Nowhere: gone with the process.
    Memory,
}

impl Place {
    /// The place that the options name.
    pub(crate) fn of(global: &Global) -> Result<Place> {
        match &global.db {
            None => Ok(Place::in_directory(Path::new(DATA_DIR))),
            Some(url) => Place::parse(url),
        }
    }

    /// The file in a data directory.
    pub(crate) fn in_directory(directory: &Path) -> Place {
        Place::Sqlite(directory.join(DATA_FILE))
    }

    /// Reads a URL.
    pub(crate) fn parse(url: &str) -> Result<Place> {
        match Address::parse(url).map_err(|bad| CliError::invalid("db", bad.message))? {
            Address::Memory => Ok(Place::Memory),
            Address::Sqlite(path) => Ok(Place::Sqlite(path)),
            Address::Postgres(url) => Ok(Place::Postgres(url)),
            other => Err(CliError::invalid("db", format!("the command line cannot use {other}"))),
        }
    }

    /// For people, without the password.
    pub(crate) fn describe(&self) -> String {
        let address = match self {
            Place::Sqlite(path) => Address::Sqlite(path.clone()),
            Place::Memory => Address::Memory,
            Place::Postgres(url) => Address::Postgres(url.clone()),
        };
        address.to_string()
    }

    /// The SQL that makes the schema.
    pub(crate) fn schema_sql(&self) -> Result<String> {
        match self {
            Place::Sqlite(_) => Ok(windlass::sqlite::migrations_sql()),
            Place::Postgres(_) => Ok(windlass::postgres::migrations_sql()),
            Place::Memory => Err(CliError::invalid("db", "memory: has no schema")),
        }
    }

    /// How its schema compares with what this binary works with. Changes nothing.
    pub(crate) async fn schema(&self) -> Result<Schema> {
        match self {
            Place::Sqlite(path) => {
                let found = if path.exists() { windlass::sqlite::schema_version(path)? } else { 0 };
                Ok(Schema { found, wanted: windlass::sqlite::SCHEMA_VERSION, functions: 0 })
            }
            Place::Postgres(url) => {
                postgres_options(url)?;
                let schema = PgStore::schema_status(url).await?;
                let (found, wanted) = (schema.found.into(), schema.wanted.into());
                Ok(Schema { found, wanted, functions: schema.functions })
            }
            Place::Memory => Err(CliError::invalid("db", "memory: has no schema")),
        }
    }

    /// Says what other users of this machine may do with it, before it is served.
    pub(crate) fn warn_if_exposed(&self, out: &Out) {
        let Place::Sqlite(path) = self else { return };
        let found = windlass::sqlite::privacy(path);
        if let Some(fix) = found.fix {
            out.warn(format_args!("{}; {fix}", found.message));
        }
    }

    /// Opens it for reading. Makes and migrates nothing.
    pub(crate) async fn read(&self) -> Result<Arc<dyn Store>> {
        match self {
            Place::Sqlite(path) => {
                check_exists(path)?;
                Ok(Arc::new(SqliteStore::open_read_only(path)?))
            }
            _ => self.write().await,
        }
    }

    /// Opens it for writing. Creates nothing: a schema in the wrong database is hard to take back, and other processes
    /// may run on an older one.
    pub(crate) async fn write(&self) -> Result<Arc<dyn Store>> {
        match self {
            Place::Sqlite(path) => {
                check_exists(path)?;
                let options = SqliteOptions { migrate: false, ..SqliteOptions::default() };
                Ok(Arc::new(SqliteStore::open_with(path, options)?))
            }
            Place::Postgres(url) => {
                let options = postgres_options(url)?.migrate(false);
                Ok(Arc::new(PgStore::connect_with(options).await?))
            }
            Place::Memory => {
                Err(CliError::invalid("db", "memory: exists only in its own process, so only `up` can use it"))
            }
        }
    }

    /// Opens it for writing, makes what is missing and brings the schema up to date.
    pub(crate) async fn make(&self) -> Result<Arc<dyn Store>> {
        match self {
            Place::Sqlite(path) => {
                if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                    create_private_directory(parent).map_err(|error| {
                        CliError::Failed(format!("cannot create the directory {}: {error}", parent.display()))
                    })?;
                }
                Ok(Arc::new(SqliteStore::open(path)?))
            }
            Place::Postgres(url) => Ok(Arc::new(PgStore::connect_with(postgres_options(url)?).await?)),
            Place::Memory => Ok(Arc::new(MemoryStore::new())),
        }
    }
}

/// Creates a directory that only its owner may enter, and those it is in where they are missing.
fn create_private_directory(path: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Reads the URL. One that cannot be read is wrong input, whatever a store calls it.
fn postgres_options(url: &str) -> Result<PgOptions> {
    PgOptions::new(url).map_err(|error| CliError::invalid("db", error.to_string()))
}

/// Refuses a file that is not there, with what to do.
pub(crate) fn check_exists(path: &Path) -> Result {
    if path.exists() {
        return Ok(());
    }
    Err(CliError::NotFound(format!(
        "there is no database {}; create it with `windlass migrate`, try a demo with `windlass up`, or name another with --db",
        path.display()
    )))
}

/// A service that submits and steers but runs nothing.
pub(crate) async fn start_service(global: &Global, store: Arc<dyn Store>) -> Result<JobService> {
    let builder = JobService::builder(store).without_workers().configure(|config| {
        config.maintenance = false;
        config.worker_threads = 1;
    });
    Ok(with_keys(builder, global)?.start().await?)
}

/// Runs `act` with such a service, and leaves the cluster whatever `act` returns.
pub(crate) async fn with_service<T>(
    global: &Global,
    store: Arc<dyn Store>,
    act: impl AsyncFnOnce(&JobService) -> Result<T>,
) -> Result<T> {
    let service = start_service(global, store).await?;
    let result = act(&service).await;
    service.shutdown().await;
    result
}

/// The keys of sealed jobs, where any are given.
pub(crate) fn encryption(global: &Global) -> Result<Option<Encryption>> {
    if let Some(path) = &global.key_file {
        let keys = FileKeys::new(path);
        keys.check()?;
        return Ok(Some(Encryption::new(keys)));
    }
    match std::env::var_os(KEYS_VARIABLE).is_some_and(|keys| !keys.is_empty()) {
        true => Ok(Some(Encryption::new(EnvKeys::new(KEYS_VARIABLE)?))),
        false => Ok(None),
    }
}

/// Keys as the value of a variable, for places where a file is awkward.
const KEYS_VARIABLE: &str = "WINDLASS_KEYS";

/// A service that seals and opens, where keys are given.
pub(crate) fn with_keys(builder: Builder, global: &Global) -> Result<Builder> {
    Ok(match encryption(global)? {
        Some(encryption) => builder.encryption(encryption),
        None => builder,
    })
}

/// Opens what commands read from a store without a service.
pub(crate) fn opener(global: &Global, store: &Arc<dyn Store>) -> Result<Opener> {
    Ok(Opener::new(store.clone(), encryption(global)?))
}

/// Who acts, for the audit log: the user and the machine, `ann@build-7`.
pub(crate) fn actor() -> String {
    let first = |names: &[&str]| names.iter().find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
    let user = first(&["USER", "LOGNAME", "USERNAME"]).unwrap_or_else(|| "operator".to_owned());
    // As nodes name their machine.
    let host = first(&["HOSTNAME"]).or_else(|| std::fs::read_to_string("/etc/hostname").ok());
    let host = host.map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
    format!("{user}@{}", host.as_deref().unwrap_or("localhost"))
}

/// The caller as one of the chosen tenant.
pub(crate) fn caller(global: &Global) -> SecurityContext {
    SecurityContext::new(global.tenant()).with_user(actor())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_place() {
        let sqlite = |path: &str| Place::Sqlite(path.into());
        assert_eq!(Place::parse("sqlite:jobs.db").expect("good"), sqlite("jobs.db"));
        assert_eq!(Place::parse("sqlite:///tmp/jobs.db").expect("good"), sqlite("/tmp/jobs.db"));
        assert!(matches!(Place::parse("postgres://localhost/app"), Ok(Place::Postgres(_))));
        for bad in ["jobs.db", "sqlite:", "mysql://localhost", ""] {
            assert_eq!(Place::parse(bad).expect_err(bad).field(), Some("db"));
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let shown = |url: &str| Place::Postgres(url.to_owned()).describe();
        assert_eq!(shown("postgres://ann:s3cret@db.example:5432/app"), "postgres://ann@db.example:5432/app");
        assert_eq!(shown("postgres://ann:p@ss@db/app?password=x"), "postgres://ann@db/app");
        assert_eq!(shown("postgres://db/app"), "postgres://db/app");
        assert!(!Place::parse("pg://u:hunter2@h/d").expect_err("unknown").to_string().contains("hunter2"));
    }
}
