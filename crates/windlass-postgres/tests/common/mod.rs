//! A fresh database for each test, on the server that `WINDLASS_TEST_POSTGRES` names. Used by every test file here.
//! Never skips: a test run without a server fails and says so. Tests connect as a login that is no superuser, because
//! row-level security does not bind superusers and would not be tested.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio_postgres::{Client, Config, NoTls};
use windlass_postgres::PgStore;

/// A database of its own, dropped when the test ends. Its owner is [`LOGIN`].
pub(crate) struct Database {
    pub(crate) url: String,
    /// The same database as the server's administrator.
    #[allow(dead_code)]
    pub(crate) admin_url: String,
    admin: String,
    #[allow(dead_code)]
    pub(crate) name: String,
}

/// A plain login, with its password for servers that want one.
#[allow(dead_code)]
pub(crate) const LOGIN: &str = "windlass_test";
const PASSWORD: &str = "windlass_test";

/// What an administrator does once for a server: the roles, and a login that is a member. Several test processes do it at
/// the same time.
const ROLES: &str = "do $$
declare
    v_sql text;
begin
    foreach v_sql in array array['create role windlass_app nologin', 'create role windlass_engine nologin',
        'create role windlass_test login password ''windlass_test''', 'grant windlass_app, windlass_engine to windlass_test'] loop
        begin
            execute v_sql;
        exception when duplicate_object or unique_violation or internal_error then
            null;
        end;
    end loop;
end $$";

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Database {
    /// With nothing in it.
    #[allow(dead_code)]
    pub(crate) async fn fresh() -> Database {
        Database::made_by(|name| format!("create database {name} owner {LOGIN}")).await
    }

    /// With the schema in it: a copy of a database that is migrated once, which takes longer than most tests.
    #[allow(dead_code)]
    pub(crate) async fn migrated() -> Database {
        let template = template().await;
        Database::made_by(|name| format!("create database {name} owner {LOGIN} template {template}")).await
    }

    async fn made_by(create: impl FnOnce(&str) -> String) -> Database {
        let admin = admin_url();
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("windlass_test_{}_{n}", std::process::id());
        let client = client(&admin).await;
        client.batch_execute(ROLES).await.expect("the role may create roles");
        client.batch_execute(&create(&name)).await.expect("the role may create databases");
        let admin_url = with_database(&admin, &name);
        Database { url: as_login(&admin_url), admin_url, admin, name }
    }

    /// A connection of the test's own.
    #[allow(dead_code)]
    pub(crate) async fn client(&self) -> Client {
        client(&self.url).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin, name) = (self.admin.clone(), self.name.clone());
        // A thread and a runtime of their own: the test's runtime may be about to end.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let client = client(&admin).await;
                // Forced: connections of the store may still be closing.
                let _ = client.batch_execute(&format!("drop database if exists {name} with (force)")).await;
            });
            runtime.shutdown_timeout(Duration::from_millis(100));
        });
        let _ = dropped.join();
    }
}

fn admin_url() -> String {
    let admin = std::env::var("WINDLASS_TEST_POSTGRES").unwrap_or_default();
    assert!(
        !admin.is_empty(),
        "set WINDLASS_TEST_POSTGRES to the URL of a PostgreSQL server whose role may create databases, \
         for example postgres://postgres@localhost:5432/postgres"
    );
    admin
}

/// The database to copy, named after the schema that it has. The first process that wants it makes it, the others wait; it
/// stays on the server for the next.
#[allow(dead_code)]
async fn template() -> String {
    let mut hash = DefaultHasher::new();
    windlass_postgres::migrations_sql().hash(&mut hash);
    let name = format!("windlass_template_{:016x}", hash.finish());
    let admin = admin_url();
    let client = client(&admin).await;
    client.batch_execute("select pg_advisory_lock(5218330001)").await.expect("the lock is free in the end");
    let ready = "select exists (select from pg_database where datname = $1 and datistemplate)";
    if !client.query_one(ready, &[&name]).await.expect("the server answers").get::<_, bool>(0) {
        client.batch_execute(ROLES).await.expect("the role may create roles");
        for sql in [format!("drop database if exists {name}"), format!("create database {name} owner {LOGIN}")] {
            client.batch_execute(&sql).await.expect("the role may create databases");
        }
        let url = as_login(&with_database(&admin, &name));
        drop(PgStore::connect(&url).await.expect("a fresh database can be migrated"));
        // A copy waits for sessions that are ending; one that started meanwhile would make it fail.
        let done = format!("alter database {name} with is_template true allow_connections false");
        client.batch_execute(&done).await.expect("the administrator may");
    }
    name
}

async fn client(url: &str) -> Client {
    let config: Config = url.parse().expect("a database URL");
    let (client, connection) = config.connect(NoTls).await.expect("the test server answers");
    tokio::spawn(connection);
    client
}

/// The URL for the plain login.
fn as_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL with a scheme");
    let authority_ends = rest.find('/').unwrap_or(rest.len());
    let place = rest[..authority_ends].rfind('@').map_or(rest, |at| &rest[at + 1..]);
    format!("{scheme}://{LOGIN}:{PASSWORD}@{place}")
}

/// The URL with another database name: the path of a `postgres://` URL.
#[allow(dead_code)]
pub(crate) fn with_database(url: &str, name: &str) -> String {
    let (base, query) = match url.split_once('?') {
        Some((base, query)) => (base, format!("?{query}")),
        None => (url, String::new()),
    };
    let authority_ends = base.find("://").map_or(0, |at| at + 3);
    let base = match base[authority_ends..].find('/') {
        Some(slash) => &base[..authority_ends + slash],
        None => base,
    };
    format!("{base}/{name}{query}")
}
