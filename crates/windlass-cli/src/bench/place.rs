//! The throwaway place a measurement runs in: a database of its own on the given server, a file that was not there
//! before, or memory. Made by every scenario and gone when dropped, whatever ended the run. Never touches data that
//! was there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};
use windlass::postgres::{PgOptions, PgStore};
use windlass::sqlite::SqliteStore;
use windlass::store::{self, Store};
use windlass::{InvalidInput, MemoryStore};

use crate::error::{CliError, Result};

/// Where to measure, as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// In this process.
    Memory,
    /// In this file, which must not exist.
    Sqlite(PathBuf),
    /// On the server of this URL, in a database made for it.
    Postgres(String),
}

impl Target {
    /// Reads `memory`, `sqlite:PATH` or `postgres://…`.
    pub(crate) fn parse(text: &str) -> std::result::Result<Target, String> {
        let known = "write memory, sqlite:PATH or postgres://USER@HOST";
        match text.split_once(':') {
            None if text == "memory" => Ok(Target::Memory),
            Some(("memory", "")) => Ok(Target::Memory),
            Some(("sqlite", path)) if path.trim_start_matches("//").is_empty() => {
                Err("the path is empty; write sqlite:PATH".to_owned())
            }
            Some(("sqlite", path)) => Ok(Target::Sqlite(path.trim_start_matches("//").into())),
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => match PgOptions::new(text) {
                Ok(_) => Ok(Target::Postgres(text.to_owned())),
                Err(error) => Err(error.to_string()),
            },
            // The URL itself stays out of the message: it may hold a password.
            Some((scheme, _)) => Err(format!("unknown store `{}`; {known}", scheme.escape_debug())),
            None => Err(format!("unknown store `{}`; {known}", text.escape_debug())),
        }
    }

    /// The kind of store, for reports.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Target::Memory => "memory",
            Target::Sqlite(_) => "sqlite",
            Target::Postgres(_) => "postgres",
        }
    }

    /// Makes a place to measure in, with the schema in it.
    pub(crate) async fn make(&self) -> Result<Throwaway> {
        let place = match self {
            Target::Memory => Throwaway(Kind::Memory(Arc::new(MemoryStore::new()))),
            Target::Sqlite(path) => {
                refuse_existing(path)?;
                Throwaway(Kind::Sqlite(path.clone()))
            }
            Target::Postgres(url) => {
                let name = format!("windlass_bench_{:016x}", rand::random::<u64>());
                create_database(url, &name).await?;
                Throwaway(Kind::Postgres { server: url.clone(), url: with_database(url, &name), name })
            }
        };
        // The first store makes the schema, so that no measurement pays for it.
        drop(place.open().await?);
        place.settle().await?;
        Ok(place)
    }
}

impl std::fmt::Display for Target {
    /// As [`Target::parse`] reads it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Memory => write!(f, "memory"),
            Target::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Target::Postgres(url) => write!(f, "{url}"),
        }
    }
}

/// A place that is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Throwaway(Kind);

#[derive(Debug)]
enum Kind {
    Memory(Arc<MemoryStore>),
    Sqlite(PathBuf),
    Postgres { server: String, url: String, name: String },
}

/// How long the connections of a store that was dropped may take to end.
const SETTLE: Duration = Duration::from_secs(10);

impl Throwaway {
    /// Opens a store on it, as a process would.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>> {
        Ok(match &self.0 {
            Kind::Memory(store) => store.clone(),
            Kind::Sqlite(path) => Arc::new(SqliteStore::open(path)?),
            Kind::Postgres { url, .. } => Arc::new(PgStore::connect(url).await?),
        })
    }

    /// Waits until every store on it is closed: only then has the server counted what they did.
    pub(crate) async fn settle(&self) -> Result {
        let Kind::Postgres { server, name, .. } = &self.0 else { return Ok(()) };
        let client = connect(server).await?;
        let begun = Instant::now();
        let open = "select count(*) from pg_stat_activity where datname = $1 and backend_type = 'client backend'";
        while begun.elapsed() < SETTLE {
            if client.query_one(open, &[&name]).await.map_err(failed)?.get::<_, i64>(0) == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(CliError::Failed(format!("connections to {name} are still open after {SETTLE:?}")))
    }

    /// Leaves nothing for the server's own cleaning to do.
    pub(crate) async fn vacuum(&self) -> Result {
        let Kind::Postgres { url, .. } = &self.0 else { return Ok(()) };
        connect(url).await?.batch_execute("vacuum (analyze)").await.map_err(failed)?;
        self.settle().await
    }

    /// The URL that another process opens it by.
    pub(crate) fn url(&self) -> String {
        match &self.0 {
            Kind::Memory(_) => "memory:".to_owned(),
            Kind::Sqlite(path) => format!("sqlite:{}", path.display()),
            Kind::Postgres { url, .. } => url.clone(),
        }
    }

    /// The file, where it is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.0 {
            Kind::Sqlite(path) => Some(path),
            _ => None,
        }
    }

    /// The server and the database, where it is one.
    pub(crate) fn database(&self) -> Option<Database<'_>> {
        match &self.0 {
            Kind::Postgres { server, url, name } => Some(Database { server, url, name }),
            _ => None,
        }
    }

    fn remove(&self) -> Result {
        match &self.0 {
            Kind::Memory(_) => Ok(()),
            Kind::Sqlite(path) => {
                for file in files_of(path) {
                    match std::fs::remove_file(&file) {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                        _ => {}
                    }
                }
                Ok(())
            }
            Kind::Postgres { server, name, .. } => on_own_thread(drop_database(server.clone(), name.clone())),
        }
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(%error, "could not remove the temporary files or databases of the measurement: {:?}", self.0.leftover());
        }
    }
}

impl Kind {
    fn leftover(&self) -> String {
        match self {
            Kind::Memory(_) => String::new(),
            Kind::Sqlite(path) => path.display().to_string(),
            Kind::Postgres { name, .. } => format!("database {name}"),
        }
    }
}

/// A database made for a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Database<'a> {
    /// The URL that was given.
    pub(crate) server: &'a str,
    /// The URL of the database itself.
    pub(crate) url: &'a str,
    pub(crate) name: &'a str,
}

/// A file and what SQLite and the store put beside it.
fn files_of(path: &Path) -> [PathBuf; 4] {
    ["", "-wal", "-shm", ".lock"].map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    })
}

fn refuse_existing(path: &Path) -> Result {
    match files_of(path).into_iter().find(|file| file.exists()) {
        None => Ok(()),
        Some(file) => Err(CliError::Service(
            store::Error::Refused(format!(
                "{} exists; name a new file, because it is removed after the measurement",
                file.display()
            ))
            .into(),
        )),
    }
}

/// Connects for a statement or two; the connection ends with the client.
pub(crate) async fn connect(url: &str) -> Result<Client> {
    let mut config: tokio_postgres::Config =
        url.parse().map_err(|error| InvalidInput::new("store", format!("cannot be read: {error}")))?;
    config.application_name("windlass-bench");
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    let (client, connection) = config.connect(NoTls).await.map_err(unavailable)?;
    tokio::spawn(connection);
    Ok(client)
}

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

async fn create_database(url: &str, name: &str) -> Result {
    let client = connect(url).await?;
    // From the empty template: the other one may be in use, and may hold anything.
    let created = client.batch_execute(&format!("create database {name} template template0")).await;
    created.map_err(|error| match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => CliError::NotAllowed(
            "the role may not create databases, and each measurement runs in one of its own; \
             name a role that may (`alter role NAME createdb`)"
                .to_owned(),
        ),
        _ => failed(error),
    })
}

async fn drop_database(server: String, name: String) -> Result {
    let client = connect(&server).await?;
    client.batch_execute(&format!("drop database if exists {name} with (force)")).await.map_err(failed)
}

/// Runs `work` to its end wherever the caller is, also inside a runtime that is being stopped.
fn on_own_thread(work: impl Future<Output = Result> + Send + 'static) -> Result {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(work)
    });
    thread.join().unwrap_or_else(|_| Err(CliError::Failed("the clean-up panicked".to_owned())))
}

/// The same URL with another database.
fn with_database(url: &str, name: &str) -> String {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let path = url[after_scheme..].find(['/', '?']).map_or(url.len(), |at| after_scheme + at);
    let query = url[path..].find('?').map_or("", |at| &url[path + at..]);
    format!("{}/{name}{query}", &url[..path])
}

/// What a server answers to a statement that should work.
pub(crate) fn failed(error: tokio_postgres::Error) -> CliError {
    if error.is_closed() {
        return unavailable(error);
    }
    let said = error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    store::Error::Internal(said).into()
}

fn unavailable(error: tokio_postgres::Error) -> CliError {
    let said = match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    store::Error::Unavailable(said).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_of_the_same_server_keeps_everything_else() {
        let cases = [
            ("postgres://ann:pw@h:5432/app?sslmode=disable", "postgres://ann:pw@h:5432/x?sslmode=disable"),
            ("postgres://h", "postgres://h/x"),
            ("postgres://h?user=ann", "postgres://h/x?user=ann"),
            ("postgres:///app?host=/run/postgresql", "postgres:///x?host=/run/postgresql"),
        ];
        for (given, expected) in cases {
            assert_eq!(with_database(given, "x"), expected);
        }
    }

    #[test]
    fn stores_are_named_as_in_the_help() {
        assert_eq!(Target::parse("memory"), Ok(Target::Memory));
        assert_eq!(Target::parse("memory:"), Ok(Target::Memory));
        assert_eq!(Target::parse("sqlite:///tmp/a.db"), Ok(Target::Sqlite("/tmp/a.db".into())));
        for bad in ["", "sqlite:", "mysql://u:hunter2@h/d", "postgres://h:port/d", "jobs.db"] {
            let said = Target::parse(bad).expect_err(bad);
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}
