//! Looks for a secret where it must not be (SEC-2): in every log line at the most talkative level, the drivers' included,
//! in error texts and `Debug` output, and, where jobs are sealed, in every byte of the database.

use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;
use windlass::store::{Claim, LeaseId, NewNode, Store, Submit};
use windlass::*;

/// In every secret, and nowhere else.
const CANARY: &str = "kanarienvogel";
const SECRET: &str = "kanarienvogel 4711";
const SOON: Duration = Duration::from_secs(20);

/// Everything that was logged in this process.
fn logs() -> &'static std::sync::Mutex<Vec<u8>> {
    static LOGS: OnceLock<&'static std::sync::Mutex<Vec<u8>>> = OnceLock::new();
    LOGS.get_or_init(|| {
        let lines: &'static std::sync::Mutex<Vec<u8>> = Box::leak(Box::default());
        // This also takes what the drivers say through `log`.
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::TRACE);
        subscriber.with_ansi(false).with_writer(move || Lines(lines)).init();
        lines
    })
}

struct Lines(&'static std::sync::Mutex<Vec<u8>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic while logging").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Texts that people and programs get to see.
#[derive(Default)]
struct Seen(Vec<String>);

impl Seen {
    fn debug(&mut self, value: &impl Debug) {
        self.0.push(format!("{value:?} {value:#?}"));
    }

    /// The error, its causes, and how it looks in a panic.
    fn error<E: std::error::Error>(&mut self, error: &E) {
        self.debug(error);
        let mut cause: Option<&dyn std::error::Error> = Some(error);
        while let Some(error) = cause {
            self.0.push(error.to_string());
            cause = error.source();
        }
    }

    fn check(&self) {
        assert!(!self.0.is_empty());
        for text in &self.0 {
            assert!(!text.contains(CANARY), "seen: {text}");
        }
    }
}

fn check_logs() {
    tracing::trace!("the log is taken");
    let logged = String::from_utf8_lossy(&logs().lock().expect("no panic while logging")).into_owned();
    assert!(logged.contains("the log is taken"), "at the most talkative level");
    let found: Vec<&str> = logged.lines().filter(|line| line.contains(CANARY)).collect();
    assert!(found.is_empty(), "logged: {found:#?}");
}

#[derive(Debug, Serialize, Deserialize)]
struct Charge {
    card: String,
    cents: u64,
    pin: Sensitive<String>,
}

fn charge() -> Charge {
    Charge { card: SECRET.into(), cents: 7, pin: SECRET.to_owned().into() }
}

/// Says nothing of what it is given.
async fn careful(_: (), ctx: JobContext, charge: Charge) -> Result<String, JobError> {
    ctx.report_progress(10.0, "charging");
    ctx.save_checkpoint(&charge.card).await?;
    let finish = ctx.success(&charge.card)?;
    assert!(!format!("{finish:?} {ctx:?}").contains(CANARY));
    match ctx.attempt() {
        1 => Err(JobError::retryable("the bank is closed")),
        _ => Ok(charge.card),
    }
}

/// Says everything.
async fn reckless(_: (), ctx: JobContext, charge: Charge) -> Result<String, JobError> {
    ctx.report_progress(10.0, format!("charging {}", charge.card));
    ctx.save_checkpoint(&charge.card).await?;
    match ctx.attempt() {
        1 => Err(JobError::retryable(format!("{} is refused", charge.card)).with_details(charge.card.into())),
        2 if charge.cents == 0 => panic!("nothing to charge on {}", charge.card),
        _ => Ok(charge.card),
    }
}

fn service(store: &Arc<dyn Store>) -> Builder {
    let options = || HandlerOptions::new().retry(RetryPolicy::fixed(2, Duration::from_millis(1)));
    JobService::builder(store.clone()).function_with("careful", options(), (), careful).function_with(
        "reckless",
        options(),
        (),
        reckless,
    )
}

/// A whole life with failures of every kind; everything that can be shown is looked at.
async fn look_at_everything(store: Arc<dyn Store>) {
    logs();
    let mut seen = Seen::default();
    let jobs = service(&store).start().await.expect("starts");
    let ctx = SecurityContext::new(TenantId::ROOT);
    let events = jobs.events(&ctx);
    let unique = || SubmitOptions::new().unique(UniqueWithin::Unfinished);

    seen.error(&jobs.submit_named(&ctx, "careful", SECRET, SubmitOptions::new()).await.expect_err("no charge"));
    let bad = serde_json::json!({ "card": 1, "cents": SECRET, "pin": SECRET });
    seen.error(&jobs.submit_named(&ctx, "careful", &bad, SubmitOptions::new()).await.expect_err("no charge"));
    let payloads = vec![Payload::check("input", format!("{{\"{SECRET}\":"), 1_000)];
    let batch = jobs.submit_payloads(&ctx, "careful", payloads, SubmitOptions::new(), false).await;
    seen.error(&batch.expect_err("not JSON"));

    let prepared = jobs.prepare_named(&ctx, "careful", &charge(), unique()).await.expect("prepared");
    seen.debug(&prepared);
    seen.debug(&charge().pin);
    let done = jobs.submit_named(&ctx, "careful", &charge(), unique()).await.expect("accepted").id;
    seen.debug(&jobs.wait(&ctx, done, SOON).await.expect("ends"));
    seen.debug(&jobs.get(&ctx, done).await.expect("kept"));
    seen.debug(&jobs.history(&ctx, done).await.expect("kept"));
    seen.debug(&jobs.input(&ctx, done).await.expect("kept"));
    seen.error(&jobs.wait_for::<u64>(&ctx, done, SOON).await.expect_err("not a number"));
    seen.debug(&events.take(2).collect::<Vec<_>>().await);

    // Input that a handler cannot read, from somebody who does not check.
    let mut unreadable = prepared.clone();
    unreadable.unique = None;
    unreadable.id = jobs.prepare_named(&ctx, "careful", &charge(), SubmitOptions::new()).await.expect("prepared").id;
    unreadable.payload = Payload::from_store(format!("{{\"card\":7,\"pin\":\"{SECRET}\",\"cents\":\"{SECRET}\"}}"));
    let id = unreadable.id;
    store.submit(Submit { jobs: vec![unreadable], lease: None }).await.expect("stored");
    jobs.wake();
    seen.debug(&jobs.wait(&ctx, id, SOON).await.expect("ends"));
    let letter = jobs.get(&ctx, id).await.expect("kept");
    assert_eq!(letter.reason.as_deref(), Some("validation"));
    seen.0.push(letter.error.expect("kept").to_string());
    seen.error(&jobs.wait_for::<u64>(&ctx, id, SOON).await.expect_err("failed"));
    jobs.shutdown().await;

    // What a store says of text that it cannot keep, and what it hands out.
    let node = store.register(NewNode::default()).await.expect("registered");
    let mut broken = prepared.clone();
    broken.id = JobId::from_i64(prepared.id.as_i64() + 1);
    broken.payload = Payload::from_store(format!("{SECRET} is no JSON"));
    if let Err(error) = store.submit(Submit { jobs: vec![broken], lease: None }).await {
        seen.error(&error);
    }
    let mut waiting = prepared;
    (waiting.id, waiting.unique) = (JobId::from_i64(waiting.id.as_i64() + 2), None);
    store.submit(Submit { jobs: vec![waiting], lease: None }).await.expect("stored");
    let queues = vec![("default".to_owned(), 9)];
    let claim = Claim { node: node.node, lease: LeaseId(1), queues, max: 9, quota: [9; 4], tenant: None };
    let claimed = store.claim(claim).await.expect("claimed");
    assert!(!claimed.jobs.is_empty());
    seen.debug(&claimed);
    seen.check();
    check_logs();
}

/// A whole life of sealed jobs whose handler hides nothing.
async fn live_sealed(store: Arc<dyn Store>) {
    logs();
    let keys = LocalKeys::parse("first:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").expect("a key");
    let jobs = service(&store).encryption(Encryption::new(keys)).start().await.expect("starts");
    let ctx = SecurityContext::new(TenantId::ROOT);
    let unique = SubmitOptions::new().unique(UniqueWithin::Window(Duration::from_secs(3_600)));
    let good = jobs.submit_named(&ctx, "reckless", &charge(), unique).await.expect("accepted").id;
    let worthless = Charge { cents: 0, ..charge() };
    let bad = jobs.submit_named(&ctx, "reckless", &worthless, SubmitOptions::new()).await.expect("accepted").id;
    let later = SubmitOptions::new().delay(Duration::from_secs(3_600)).idempotency_key("later");
    jobs.submit_named(&ctx, "reckless", &charge(), later).await.expect("accepted");
    assert_eq!(jobs.wait_for::<String>(&ctx, good, SOON).await.expect("succeeds"), SECRET);
    let letter = jobs.wait(&ctx, bad, SOON).await.expect("ends");
    assert_eq!(letter.status, Status::DeadLettered);
    jobs.replay_as_new(&ctx, bad, None).await.expect("replayed");
    jobs.rotate_keys(&ctx).await.expect("rotated");
    jobs.shutdown().await;
    check_logs();
}

/// The files of a directory that hold the secret.
fn files_with_the_secret(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut bytes = 0;
    for file in std::fs::read_dir(directory).expect("a directory") {
        let path = file.expect("an entry").path();
        let content = std::fs::read(&path).expect("a file");
        bytes += content.len();
        if content.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()) {
            found.push(path);
        }
    }
    assert!(bytes > 10_000, "there is a database: {bytes} bytes");
    found
}

/// SEC-2 (S18).
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_payload_is_shown_in_memory() {
    look_at_everything(Arc::new(MemoryStore::new())).await;
}

/// SEC-2 (S18).
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_payload_is_shown_on_sqlite() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = sqlite::SqliteStore::open(directory.path().join("jobs.db")).expect("opens");
    look_at_everything(Arc::new(store)).await;
}

/// SEC-2 (S18).
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_payload_is_shown_on_postgres() {
    let database = Database::fresh("plain").await;
    let store = postgres::PgStore::connect(&database.url).await.expect("opens");
    look_at_everything(Arc::new(store)).await;
    database.drop().await;
}

/// SEC-2: neither the file nor its log holds a byte of what sealed jobs carry, while it is open and after.
#[tokio::test(flavor = "multi_thread")]
async fn sealed_jobs_leave_nothing_in_a_sqlite_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let store: Arc<dyn Store> = Arc::new(sqlite::SqliteStore::open(directory.path().join("jobs.db")).expect("opens"));
    live_sealed(store.clone()).await;
    assert_eq!(files_with_the_secret(directory.path()), Vec::<PathBuf>::new());
    drop(store);
    assert_eq!(files_with_the_secret(directory.path()), Vec::<PathBuf>::new());
}

/// The same look finds the secret where nothing is sealed: it would not miss it elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_look_into_files_finds_what_is_not_sealed() {
    let directory = tempfile::tempdir().expect("a directory");
    let store: Arc<dyn Store> = Arc::new(sqlite::SqliteStore::open(directory.path().join("jobs.db")).expect("opens"));
    let jobs = service(&store).without_workers().start().await.expect("starts");
    let ctx = SecurityContext::new(TenantId::ROOT);
    jobs.submit_named(&ctx, "careful", &charge(), SubmitOptions::new()).await.expect("accepted");
    jobs.shutdown().await;
    assert!(!files_with_the_secret(directory.path()).is_empty());
}

/// SEC-2: no table of Windlass holds what sealed jobs carry.
#[tokio::test(flavor = "multi_thread")]
async fn sealed_jobs_leave_nothing_in_postgres() {
    let database = Database::fresh("sealed").await;
    let store = postgres::PgStore::connect(&database.url).await.expect("opens");
    live_sealed(Arc::new(store)).await;
    let client = connect(&database.url).await;
    let tables = "select schemaname || '.' || tablename from pg_tables where schemaname not in ('pg_catalog', 'information_schema')";
    let mut rows = 0;
    for table in client.query(tables, &[]).await.expect("tables") {
        let table: String = table.get(0);
        for row in client.query(&format!("select t::text from {table} t"), &[]).await.expect("rows") {
            let text: String = row.get(0);
            assert!(!text.contains(CANARY), "{table} has the secret: {text}");
            rows += 1;
        }
    }
    assert!(rows > 10, "there are rows: {rows}");
    drop(client);
    database.drop().await;
}

/// A database of the test's own.
struct Database {
    url: String,
    admin: String,
    name: String,
}

impl Database {
    async fn fresh(purpose: &str) -> Database {
        let admin = std::env::var(windlass_testkit::servers::POSTGRES_VAR).unwrap_or_default();
        assert!(!admin.is_empty(), "set WINDLASS_TEST_POSTGRES to the URL of a server whose role may create databases");
        let name = format!("windlass_canary_{purpose}_{}", std::process::id());
        let client = connect(&admin).await;
        client.batch_execute(&format!("drop database if exists {name} with (force)")).await.expect("dropped");
        client.batch_execute(&format!("create database {name}")).await.expect("the role may create databases");
        let server = admin.rsplit_once('/').expect("a URL with a database").0;
        Database { url: format!("{server}/{name}"), admin: admin.clone(), name }
    }

    async fn drop(self) {
        let client = connect(&self.admin).await;
        client.batch_execute(&format!("drop database if exists {} with (force)", self.name)).await.expect("dropped");
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the test server answers");
    tokio::spawn(connection);
    client
}
