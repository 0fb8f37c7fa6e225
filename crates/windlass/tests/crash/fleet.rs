//! The processes of a test: started as further runs of this binary, signalled, and gone with the test however it ends.
//! Called by every test here. What a process did is read from the log it writes; nothing here talks to a store but
//! `Place`, which says where a test keeps its jobs.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use windlass::store::Store;
use windlass::{JobId, JobRecord, JobService, SecurityContext, Status, SubmitOptions, TenantId};

/// The variable that makes a run of this binary a process of a test.
pub(crate) const TASK_VAR: &str = "WINDLASS_CHILD";

/// How long anything may take that has no limit of its own: a busy machine of two cores, with room to spare.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// How often a state that nothing announces is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a process is started for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) url: String,
    /// Where the process writes what it does.
    pub(crate) log: PathBuf,
    /// Handlers that wait go on when this file is there.
    pub(crate) gate: PathBuf,
    pub(crate) role: Role,
    pub(crate) settings: Settings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Runs jobs until it is told to stop, by a line or by SIGTERM.
    Work,
    /// Submits one job after the other in `tasks` tasks until it is told to stop; with keys, repeats a submit of
    /// unknown outcome until it is acknowledged.
    Submit { tasks: usize, keys: bool },
    /// Each line of input is a key, submitted in `tasks` tasks at once.
    SubmitKeys { tasks: usize },
    /// Each line of input is a job and the time at which it is canceled.
    Cancel,
    /// Opens the store and ends.
    Open,
}

/// What differs from the defaults.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) lease: Option<Duration>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) grace: Option<Duration>,
    pub(crate) shutdown_deadline: Option<Duration>,
}

impl Settings {
    pub(crate) fn lease(lease: Duration) -> Settings {
        Settings { lease: Some(lease), ..Settings::default() }
    }
}

/// Where a test keeps its jobs, and its directory for everything else.
pub(crate) struct Place {
    pub(crate) url: String,
    dir: TempDir,
    started: AtomicUsize,
}

impl Place {
    pub(crate) fn at(url: String) -> Place {
        Place { url, dir: TempDir::new().expect("a temporary directory"), started: AtomicUsize::new(0) }
    }

    /// A fresh database on the server that the test run has started.
    pub(crate) async fn postgres() -> Place {
        let admin = windlass_testkit::servers::test_postgres_url();
        let name = format!("crash_{}", uuid::Uuid::new_v4().simple());
        let client = connect(&admin).await;
        client.batch_execute(&format!("create database {name}")).await.expect("create a database");
        let place = Place::at(with_database(&admin, &name));
        place.migrate().await;
        place
    }

    /// A fresh file.
    pub(crate) fn sqlite() -> Place {
        let mut place = Place::at(String::new());
        place.url = format!("sqlite:{}", place.file().display());
        place
    }

    /// The file of a SQLite store.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("jobs.db")
    }

    fn gate(&self) -> PathBuf {
        self.dir.path().join("gate")
    }

    /// Lets handlers go on that wait.
    pub(crate) fn open_gate(&self) {
        fs::write(self.gate(), "").expect("open the gate");
    }

    /// Brings the schema up to date before several processes would do so at once.
    pub(crate) async fn migrate(&self) {
        drop(open(&self.url).await);
    }

    /// A service that submits and looks, and neither runs nor recovers anything: that is left to the processes.
    pub(crate) async fn onlooker(&self) -> JobService {
        onlooker(open(&self.url).await).await
    }

    /// Submits one job for each input through a process that is gone afterwards.
    pub(crate) async fn submit<I: Serialize>(&self, jobs: &[(&str, I)]) -> Vec<JobId> {
        let service = self.onlooker().await;
        let mut ids = Vec::new();
        for (handler, input) in jobs {
            let submitted = service.submit_named(&root(), handler, input, SubmitOptions::new()).await;
            ids.push(submitted.expect("submit").id);
        }
        service.shutdown().await;
        ids
    }

    /// A store to look at, which a running process does not keep us from.
    pub(crate) async fn reader(&self) -> Arc<dyn Store> {
        match self.url.strip_prefix("sqlite:") {
            Some(path) => Arc::new(windlass::sqlite::SqliteStore::open_read_only(path).expect("open for reading")),
            None => open(&self.url).await,
        }
    }

    pub(crate) fn start(&self, role: Role, settings: Settings) -> Process {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let log = self.dir.path().join(format!("{number}.log"));
        fs::write(&log, "").expect("make the log");
        let task = Task { url: self.url.clone(), log: log.clone(), gate: self.gate(), role, settings };
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "child", "--nocapture"])
            .env(TASK_VAR, serde_json::to_string(&task).expect("a task is JSON"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("start a process");
        let stdin = child.stdin.take();
        Process { child, stdin, log: Log(log) }
    }

    /// Starts a process and waits until it says that it is ready.
    pub(crate) async fn start_ready(&self, role: Role, settings: Settings) -> Process {
        let mut process = self.start(role, settings);
        let (log, what) = (process.log.clone(), format!("{role:?} to be ready"));
        wait_for(&what, SOON, async || match process.exited() {
            Some(status) => panic!("{what}, but it ended: {status}; it wrote {:?}", log.lines()),
            None => log.has("ready"),
        })
        .await;
        process
    }
}

/// A running process; killed when dropped.
pub(crate) struct Process {
    child: Child,
    /// A process whose input ends stops, so that none outlives a test that was killed.
    stdin: Option<ChildStdin>,
    pub(crate) log: Log,
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, "--", &self.pid().to_string()]).status();
        assert!(status.expect("run kill").success(), "SIG{name} was not sent");
    }

    /// Kills it as `kill -9` does and waits until it is gone.
    pub(crate) fn kill_9(&mut self) {
        self.signal("KILL");
        self.child.wait().expect("wait for a process that was killed");
    }

    /// Sends a line to its input.
    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("the input is open until the process is stopped");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).expect("write to a process");
    }

    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("look at a process")
    }

    /// Tells it to end in good order, and waits until it has.
    pub(crate) async fn stop(&mut self) {
        self.stdin = None;
        self.ends_well().await;
    }

    pub(crate) async fn ends_well(&mut self) {
        let what = format!("process {} to end", self.pid());
        wait_for(&what, SOON, async || self.exited().is_some()).await;
        let status = self.exited().expect("it has ended");
        assert!(status.success(), "process {}: {status}; it wrote {:?}", self.pid(), self.log.lines());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process has written: lines of words, the first of which says what happened.
#[derive(Clone, Debug)]
pub(crate) struct Log(PathBuf);

impl Log {
    /// The lines it has finished; a kill may leave half of one.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.0).expect("read a log");
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(str::to_owned).collect()
    }

    pub(crate) fn has(&self, line: &str) -> bool {
        self.lines().iter().any(|written| written == line)
    }

    /// The rest of each line that starts with `word`.
    pub(crate) fn said(&self, word: &str) -> Vec<String> {
        let rest = |line: String| line.strip_prefix(word)?.strip_prefix(' ').map(str::to_owned);
        self.lines().into_iter().filter_map(rest).collect()
    }
}

/// Waits until `condition` holds. Fails with `what` after `at_most`. Answers how long it took.
pub(crate) async fn wait_for(what: &str, at_most: Duration, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < at_most, "waited {at_most:?} for {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    started.elapsed()
}

/// Waits until every job has `status`, and returns their records in order.
pub(crate) async fn wait_until_all(store: &dyn Store, ids: &[JobId], status: Status, at_most: Duration) {
    let started = Instant::now();
    loop {
        let records = records(store, ids).await;
        if records.len() == ids.len() && records.iter().all(|record| record.status == status) {
            return;
        }
        if started.elapsed() >= at_most {
            let others: Vec<_> = records.iter().filter(|record| record.status != status).take(5).collect();
            panic!(
                "waited {at_most:?} for {} jobs to be {status}; {} are there, such as {others:#?}",
                ids.len(),
                records.len()
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The records of these jobs, by id. While a server is away there are none.
pub(crate) async fn records(store: &dyn Store, ids: &[JobId]) -> Vec<JobRecord> {
    let mut records = Vec::new();
    // As many as a page shows.
    for ids in ids.chunks(200) {
        records.extend(store.get(root().scope(), ids).await.unwrap_or_default());
    }
    records.sort_by_key(|record| record.id);
    records
}

pub(crate) async fn record(store: &dyn Store, id: JobId) -> JobRecord {
    records(store, &[id]).await.pop().expect("the job is there")
}

/// The caller of all tests: each has a store of its own.
pub(crate) fn root() -> SecurityContext {
    SecurityContext::new(TenantId::ROOT)
}

pub(crate) async fn onlooker(store: Arc<dyn Store>) -> JobService {
    let idle = |config: &mut windlass::Config| {
        config.workers = false;
        config.maintenance = false;
    };
    JobService::builder(store).configure(idle).start().await.expect("start a service")
}

/// Opens a store. One that is just being closed by another process, or by this one, is waited for.
pub(crate) async fn open(url: &str) -> Arc<dyn Store> {
    let started = Instant::now();
    loop {
        match windlass::open(url).await {
            Ok(store) => return store,
            Err(windlass::Error::Store(
                windlass::store::Error::Refused(_) | windlass::store::Error::Unavailable(_),
            )) if started.elapsed() < SOON => {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Err(error) => panic!("open the store: {error}"),
        }
    }
}

/// A connection of the test's own to PostgreSQL.
pub(crate) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// The same server, another database.
fn with_database(url: &str, database: &str) -> String {
    let (url, options) = url.split_once('?').map_or((url, None), |(url, options)| (url, Some(options)));
    let server = url.rsplit_once('/').expect("a URL names a database").0;
    let options = options.map(|options| format!("?{options}")).unwrap_or_default();
    format!("{server}/{database}{options}")
}
