//! What the benches do on PostgreSQL besides the peer's own work: a fresh database, rest before a drain, a held
//! snapshot. Called by `benches` and by peers that bring their schema as files.

use tokio_postgres::{Client, NoTls};

use crate::DATABASE_VAR;

/// The database of every run: one name for all, so that the last run's is gone before the next begins.
const DATABASE: &str = "windlass_bench_run";

/// A connection that lives as long as its client.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect to PostgreSQL");
    tokio::spawn(connection);
    client
}

/// Executes every file of `directory` whose name ends in `suffix`, in the order of names.
pub async fn run_sql_dir(url: &str, directory: &str, suffix: &str) {
    let entries = std::fs::read_dir(directory).expect("list the SQL files of a peer");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("list the SQL files of a peer").path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(suffix));
    files.sort();
    let client = connect(url).await;
    for file in files {
        let sql = std::fs::read_to_string(&file).expect("read an SQL file of a peer");
        client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

/// Makes a new server fit to be measured: until it has files of its log to use again, it makes each one anew in the
/// middle of a run. Writes about a gigabyte of log and lets the server keep the files.
pub fn warm_up(url: &str) {
    execute(
        url,
        &[
            "create table warm_up (filler text)",
            "insert into warm_up select repeat(md5(n::text), 30) from generate_series(1, 1000000) n",
            "checkpoint",
            "drop table warm_up",
            "checkpoint",
        ],
    );
}

/// Removes what the last run has left on the server, before the next one: removing gigabytes in the first second of a
/// run would slow its commits down.
pub fn clean_up(url: &str) {
    execute(url, &[&drop_database(), "checkpoint"]);
}

fn execute(url: &str, statements: &[&str]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("start the runtime");
    runtime.block_on(async {
        let admin = connect(url).await;
        for statement in statements {
            admin.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
    });
}

fn drop_database() -> String {
    format!("drop database if exists {DATABASE} with (force)")
}

/// The URL of an empty database. Whatever was written before is on disk when this returns.
pub(crate) async fn fresh_database() -> String {
    let base = std::env::var(DATABASE_VAR).unwrap_or_else(|_| panic!("{DATABASE_VAR} is not set"));
    let admin = connect(&base).await;
    for statement in [drop_database(), format!("create database {DATABASE}"), "checkpoint".to_owned()] {
        admin.batch_execute(&statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let cut = base.rfind('/').unwrap_or_else(|| panic!("{DATABASE_VAR} does not end in /NAME"));
    format!("{}/{DATABASE}", &base[..cut])
}

/// Everything vacuumed, analysed and on disk: peers differ in how much rest their tables need, and a drain of a table
/// that was filled a moment ago would measure that.
pub(crate) async fn rest(admin: &Client) {
    for statement in ["vacuum analyze", "checkpoint"] {
        admin.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

pub(crate) async fn count(admin: &Client, sql: &str) -> i64 {
    admin.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error}")).get(0)
}

pub(crate) async fn version(url: &str) -> String {
    let row = connect(url).await.query_one("show server_version", &[]).await.expect("ask for the version");
    row.get(0)
}

/// A transaction that does nothing but keep its snapshot, as a long report or a forgotten session does: until this is
/// dropped, no row that dies can be removed.
pub(crate) struct HeldSnapshot(Client);

impl HeldSnapshot {
    pub(crate) async fn take(url: &str) -> Self {
        let client = connect(url).await;
        // The snapshot is taken by the first statement, not by `begin`.
        client.batch_execute("begin isolation level repeatable read; select 1").await.expect("take a snapshot");
        HeldSnapshot(client)
    }

    /// Whether the session is still there: a server may end idle transactions.
    pub(crate) async fn is_held(&self) -> bool {
        self.0.batch_execute("select 1").await.is_ok()
    }
}
