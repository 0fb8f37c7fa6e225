//! What the processes of a run do: run jobs, and carry out orders that come as lines of input. Each writes what it does
//! into its own file of events. Started by `fleet` as further runs of this binary; never decides which fault comes next.

mod timing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use uuid::Uuid;
use windlass::postgres::{PgOptions, PgStore};
use windlass::sqlite::{SqliteOptions, SqliteStore};
use windlass::store::{CancelReply, PauseTarget, Store};
use windlass::{
    Error, HandlerOptions, JobContext, JobError, JobFilter, JobId, JobService, OperatorRight, Page, Payload, Priority,
    RetryPolicy, SecurityContext, SubmitOptions, TenantId, UniqueWithin,
};
use windlass_testkit::hostile::hostile_payloads;

use crate::event::{Asked, End, FinishEnd, TransactionEnd, What};
use crate::log::Log;
use crate::recorder::{Gates, Recorder};
pub use timing::Timed;

/// The variable that makes a run of this binary a process of a run.
pub const TASK_VAR: &str = "WINDLASS_FAULTS_CHILD";

/// The handler that does whatever its input says.
pub const HANDLER: &str = "work";
/// The same in a queue of its own, at most [`LIMIT`] at once on each node.
pub const LIMITED: &str = "limited";
/// How many jobs of [`LIMITED`] a node runs at once.
pub const LIMIT: usize = 2;

/// What a process notes when it has carried out a [`Command::Cancel`] or [`Command::Replay`].
pub const STEERED: &str = "all were steered";

/// The table that callers write in the transactions in which they submit.
pub const SIDE_TABLE: &str = "faults_side";
/// The table that handlers write in the transactions in which they end their jobs.
pub const EFFECT_TABLE: &str = "faults_effect";
/// What a handler says in its transaction before it waits.
pub const WAITING: &str = "select 'a handler waits'";

/// What a process is started for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Its number in the run.
    pub proc: u32,
    /// The store.
    pub url: String,
    /// Where it writes what it does.
    pub events: PathBuf,
    /// What differs from the defaults.
    pub settings: Settings,
}

/// The settings of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Whether it runs jobs, and how many at once; none only submits.
    pub concurrency: Option<usize>,
    /// The lease.
    pub lease: Duration,
    /// How long a handler that was asked to stop may go on.
    pub grace: Duration,
    /// How long running jobs may go on at shutdown.
    pub shutdown_deadline: Duration,
    /// How long a call of the store may take.
    pub deadline: Duration,
    /// Whether LISTEN is used.
    pub listen: bool,
    /// Connections for reading, and for handlers' transactions.
    pub connections: usize,
    /// Threads of handlers.
    pub worker_threads: usize,
    /// How long a snapshot may be held before a node warns of it.
    pub held_snapshot_after: Duration,
    /// How long a handler's transaction may be silent before the server ends it.
    pub handler_idle: Duration,
    /// How long ended jobs are kept, where the clock of a row goes on by weeks.
    pub retention: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            concurrency: Some(20),
            lease: Duration::from_secs(3),
            grace: Duration::from_secs(1),
            shutdown_deadline: Duration::from_secs(2),
            deadline: Duration::from_secs(3),
            listen: true,
            connections: 4,
            worker_threads: 2,
            held_snapshot_after: Duration::from_secs(15),
            handler_idle: Duration::from_secs(300),
            retention: None,
        }
    }
}

impl Settings {
    /// A process that only submits and looks.
    pub fn producer() -> Settings {
        Settings { concurrency: None, ..Settings::default() }
    }
}

/// A line of input.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Submit as the load says, until told that it is enough.
    Load(Load),
    /// No more.
    EndLoad,
    /// Submit these, in `tasks` tasks at once.
    Submit {
        /// What.
        orders: Vec<Order>,
        /// How many at a time.
        tasks: usize,
    },
    /// Cancel jobs of a tenant.
    Cancel {
        /// Whose.
        tenant: u8,
        /// Which.
        jobs: Vec<i64>,
    },
    /// Replay dead letters of a tenant.
    Replay {
        /// Whose.
        tenant: u8,
        /// Which.
        jobs: Vec<i64>,
    },
    /// Pause.
    Pause(String),
    /// Resume.
    Resume(String),
    /// Submit every hostile input there is, and so many changed at random.
    Hostile {
        /// Where the changes come from.
        seed: u64,
        /// How many.
        changed: usize,
    },
    /// Store these schedules, one after the other.
    PutSchedules(Vec<Timed>),
    /// Pause these schedules of a tenant, each at a time of chance.
    PauseSchedules {
        /// Whose.
        tenant: u8,
        /// Which.
        names: Vec<String>,
        /// Within this time.
        within_ms: u64,
        /// Where the times come from.
        seed: u64,
    },
    /// Resume these schedules of a tenant.
    ResumeSchedules {
        /// Whose.
        tenant: u8,
        /// Which.
        names: Vec<String>,
    },
    /// Hold calls of a kind back before the store is asked.
    HoldBack(String),
    /// Let them go on.
    LetGo(String),
    /// End in good order.
    Stop,
}

/// A job to submit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Order {
    /// Of which tenant, by number.
    pub tenant: u8,
    /// What its handler does.
    pub todo: Todo,
    /// Runs in the queue of its own.
    pub limited: bool,
    /// Idempotency key.
    pub key: Option<String>,
    /// Unique key.
    pub unique: Option<String>,
    /// Ordering key.
    pub ordering: Option<String>,
    /// Priority.
    pub priority: i16,
    /// How long its start lies ahead.
    pub delay_ms: u64,
    /// The most failures.
    pub max_attempts: Option<u16>,
    /// How long an attempt may take.
    pub timeout_ms: Option<u64>,
    /// In a transaction of the caller's, which commits or rolls back.
    pub commits: Option<bool>,
    /// How long that transaction stays open.
    pub hold_ms: u64,
    /// Another handler than [`HANDLER`].
    pub handler: Option<String>,
    /// Fields that the input has besides, or instead.
    pub fields: BTreeMap<String, Value>,
    /// Cancel it so long after it was acknowledged.
    pub cancel_after_ms: Option<u64>,
    /// Drop the call after so many microseconds.
    pub drop_after_us: Option<u64>,
    /// Repeat until it is acknowledged; needs a key.
    pub until_acknowledged: bool,
}

/// A job's input: what its handler does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Todo {
    /// The call that submitted it.
    pub call: u64,
    /// The tenant that submitted it.
    pub canary: Option<Uuid>,
    /// How long it takes.
    pub ms: u64,
    /// Fails in the first so many attempts.
    pub fails: u16,
    /// Fails for ever.
    pub hopeless: bool,
    /// Wants to run later, once.
    pub snoozes: bool,
    /// Saves a checkpoint and reports progress.
    pub writes: bool,
    /// Goes on when it is asked to stop.
    pub deaf: bool,
    /// Blocks its thread instead of waiting.
    pub blocks: bool,
    /// Works inside a transaction that it opens in the job's own store.
    pub holds: bool,
    /// Ends itself in a transaction of its own, together with a row of [`EFFECT_TABLE`].
    pub completes: bool,
    /// Says [`WAITING`] in that transaction before, and waits for its time.
    pub idles: bool,
    /// Kills its process when its time is over: `abort`, `overflow` or `memory`.
    pub kills: Option<String>,
}

/// Jobs without end, of every kind that a seed brings up.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Where the kinds come from.
    pub seed: u64,
    /// Callers at once.
    pub tasks: usize,
    /// How long each waits after a submit, on average.
    pub pause_ms: u64,
    /// Tenants.
    pub tenants: u8,
    /// How long jobs take at most.
    pub job_ms: u64,
    /// Whether callers also submit in transactions of their own.
    pub transactions: bool,
    /// Whether calls are dropped at random.
    pub drops: bool,
    /// Whether all jobs are plain.
    pub plain: bool,
}

impl Default for Load {
    fn default() -> Self {
        Load {
            seed: 0,
            tasks: 4,
            pause_ms: 10,
            tenants: 3,
            job_ms: 40,
            transactions: false,
            drops: false,
            plain: false,
        }
    }
}

/// The tenant with a number.
pub fn tenant(number: u8) -> TenantId {
    TenantId(Uuid::from_u128(0xfa01_7500_0000_4000_8000_0000_0000_0000 + u128::from(number)))
}

/// Does what `task` says, until the input ends or a signal comes.
pub fn run(task: Task) -> Result<()> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(async {
        let process = Process::start(&task).await?;
        process.serve().await;
        Ok(())
    });
    // A thread may still wait for a line of input.
    runtime.shutdown_background();
    done
}

/// This process.
#[derive(Clone)]
struct Process {
    service: JobService,
    log: Log,
    url: String,
    calls: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
    gates: Gates,
}

impl Process {
    async fn start(task: &Task) -> Result<Process> {
        let log = Log::open(&task.events, task.proc)?;
        let gates = Gates::default();
        let store = open(&task.url, &task.settings).await?;
        let store: Arc<dyn Store> = Arc::new(Recorder::new(store, log.clone(), gates.clone()));
        let settings = task.settings.clone();
        let mut builder = JobService::builder(store).configure(move |config| {
            config.lease = settings.lease;
            config.grace = settings.grace;
            config.shutdown_deadline = settings.shutdown_deadline;
            config.worker_threads = settings.worker_threads;
            config.held_snapshot_after = settings.held_snapshot_after;
            config.workers = settings.concurrency.is_some();
            config.maintenance = settings.concurrency.is_some();
            config.concurrency = settings.concurrency.unwrap_or(1);
            config.retention = settings.retention.unwrap_or(config.retention);
        });
        if task.settings.concurrency.is_some() {
            let retry = RetryPolicy::fixed(3, Duration::from_millis(50));
            let options = HandlerOptions::new().retry(retry.clone());
            builder = builder.function_with(HANDLER, options.clone(), log.clone(), work);
            builder = builder.function_with(LIMITED, options.concurrency(LIMIT), log.clone(), work);
        }
        let service = builder.start().await.context("start the service")?;
        let role = if task.settings.concurrency.is_some() { "worker" } else { "producer" };
        log.note(What::Up { pid: std::process::id(), role: role.into() });
        // The number of the process in the upper half: calls are unique within the run.
        let calls = Arc::new(AtomicU64::new(u64::from(task.proc) << 32));
        Ok(Process { service, log, url: task.url.clone(), calls, enough: Arc::default(), gates })
    }

    async fn serve(self) {
        let mut terminate = signal(SignalKind::terminate()).expect("signals can be listened for");
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let mut tasks = JoinSet::new();
        loop {
            let line = tokio::select! {
                line = lines.next_line() => line,
                _ = terminate.recv() => break,
            };
            let Ok(Some(line)) = line else { break };
            match serde_json::from_str(&line).expect("a command") {
                Command::Stop => break,
                Command::EndLoad => self.enough.store(true, Ordering::Release),
                Command::HoldBack(call) => self.gates.hold_back(call),
                Command::LetGo(call) => self.gates.let_go(&call),
                command => drop(tasks.spawn(self.clone().carry_out(command))),
            }
        }
        self.enough.store(true, Ordering::Release);
        // Callers that wait for an answer of a store that is away are not waited for.
        let callers = async { while tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(5), callers).await;
        self.service.shutdown().await;
        self.log.note(What::Down);
    }

    async fn carry_out(self, command: Command) {
        match command {
            Command::Load(load) => self.load(load).await,
            Command::Submit { orders, tasks } => self.submit_all(orders, tasks).await,
            Command::Cancel { tenant, jobs } => {
                for job in jobs {
                    self.cancel(&caller(tenant), job, 0).await;
                }
                self.log.note(What::Note { text: STEERED.into() });
            }
            Command::Replay { tenant, jobs } => {
                for job in jobs {
                    match self.service.replay(&caller(tenant), JobId::from_i64(job)).await {
                        Ok(()) => self.log.note(What::Replayed { job }),
                        Err(error) => self.log.note(What::Note { text: format!("replay: {}", error.code()) }),
                    }
                }
                self.log.note(What::Note { text: STEERED.into() });
            }
            Command::Pause(target) => {
                let parsed = PauseTarget::parse(&target).expect("a target");
                match self.service.operator(OperatorRight::assume()).pause(&caller(0), &parsed, "a fault test").await {
                    Ok(()) => self.log.note(What::Paused { target }),
                    Err(error) => self.log.note(What::Note { text: format!("pause: {error}") }),
                }
            }
            Command::Resume(target) => {
                let parsed = PauseTarget::parse(&target).expect("a target");
                self.log.note(What::Resuming { target });
                if let Err(error) = self.service.operator(OperatorRight::assume()).resume(&caller(0), &parsed).await {
                    self.log.note(What::Note { text: format!("resume: {error}") });
                }
            }
            Command::Hostile { seed, changed } => self.submit_hostile(seed, changed).await,
            Command::PutSchedules(schedules) => self.put_schedules(schedules).await,
            Command::PauseSchedules { tenant, names, within_ms, seed } => {
                self.pause_schedules(tenant, names, within_ms, seed).await;
            }
            Command::ResumeSchedules { tenant, names } => self.resume_schedules(tenant, names).await,
            Command::Stop | Command::EndLoad | Command::HoldBack(_) | Command::LetGo(_) => {}
        }
    }

    /// Inputs that are no JSON, too large, too deep, or hard to keep. What is accepted must come back byte by byte.
    async fn submit_hostile(&self, seed: u64, changed: usize) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut inputs: Vec<Vec<u8>> = hostile_payloads().into_iter().map(|hostile| hostile.bytes).collect();
        for _ in 0..changed {
            let mut input = inputs[rng.random_range(0..inputs.len())].clone();
            input.truncate(10_000);
            for _ in 0..rng.random_range(1..8) {
                if !input.is_empty() {
                    let at = rng.random_range(0..input.len());
                    input[at] = rng.random();
                }
            }
            inputs.push(input);
        }
        let (ctx, limit) = (caller(0), self.service.config().limits.payload_bytes);
        for input in inputs {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            let canary = ctx.tenant;
            let mut text = format!("{{\"call\":{call},\"canary\":\"{canary}\",\"hostile\":").into_bytes();
            text.extend(&input);
            text.push(b'}');
            self.log.note(What::SubmitCall { call, asked: asked(&Order::default(), HANDLER) });
            let payload = Payload::check_bytes("input", &text, limit);
            let answer = self.service.submit_payloads(&ctx, HANDLER, vec![payload], SubmitOptions::new(), false).await;
            match answer.as_ref().map(|(_, submitted)| submitted.first()) {
                Ok(Some(Ok(submitted))) => {
                    let job = submitted.id.as_i64();
                    self.log.note(What::SubmitOk { call, job, duplicate: submitted.duplicate });
                    let kept = self.service.input(&ctx, submitted.id).await;
                    if kept.as_ref().map(|kept| kept.as_str().as_bytes()).ok() != Some(&text[..]) {
                        self.log.note(What::Note { text: format!("job {job} did not keep its input") });
                    }
                }
                Ok(_) => self.log.note(What::SubmitRefused { call, code: "invalid_input".into() }),
                Err(error) => {
                    let code = error.code().to_owned();
                    self.log.note(match nothing_written(error) || matches!(error, Error::InvalidBatch(_)) {
                        true => What::SubmitRefused { call, code },
                        false => What::SubmitUnknown { call, code },
                    });
                }
            }
        }
        self.log.note(What::Note { text: "all hostile inputs were answered".into() });
    }

    // ---- submitting

    async fn load(&self, load: Load) {
        let mut callers = JoinSet::new();
        for n in 0..load.tasks {
            let (this, load) = (self.clone(), load.clone());
            callers.spawn(async move {
                let mut rng = StdRng::seed_from_u64(load.seed ^ (u64::from(this.log.proc()) << 32) ^ n as u64);
                for count in 0_u64.. {
                    if this.enough.load(Ordering::Acquire) {
                        return;
                    }
                    let name = format!("{}-{n}-{count}", this.log.proc());
                    this.submit(invent(&mut rng, &load, &name)).await;
                    if rng.random_ratio(1, 20) {
                        this.look(rng.random_range(0..load.tenants.max(1))).await;
                    }
                    let pause = rng.random_range(0..=2 * load.pause_ms);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            });
        }
        callers.join_all().await;
    }

    async fn submit_all(&self, orders: Vec<Order>, tasks: usize) {
        let orders = Arc::new(tokio::sync::Mutex::new(orders.into_iter()));
        let mut callers = JoinSet::new();
        for _ in 0..tasks.max(1) {
            let (this, orders) = (self.clone(), orders.clone());
            callers.spawn(async move {
                loop {
                    let next = orders.lock().await.next();
                    let Some(order) = next else { return };
                    this.submit(order).await;
                }
            });
        }
        callers.join_all().await;
    }

    async fn submit(&self, order: Order) {
        /// As any caller would: not as fast as possible while the store is away.
        const AGAIN_AFTER: Duration = Duration::from_millis(50);
        while !self.submit_once(&order).await && order.until_acknowledged {
            if self.enough.load(Ordering::Acquire) {
                return;
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    /// One call; true if it was acknowledged.
    async fn submit_once(&self, order: &Order) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let ctx = caller(order.tenant);
        let todo = Todo { call, canary: Some(ctx.tenant.0), ..order.todo.clone() };
        let handler = order.handler.as_deref().unwrap_or(if order.limited { LIMITED } else { HANDLER });
        let todo = with_fields(&todo, &order.fields);
        self.log.note(What::SubmitCall { call, asked: asked(order, handler) });
        if let Some(commits) = order.commits {
            return self.submit_in_transaction(call, order, todo, commits).await;
        }
        let submit = self.service.submit_named(&ctx, handler, &todo, options(order));
        let answer = match order.drop_after_us {
            None => submit.await,
            Some(after) => match tokio::time::timeout(Duration::from_micros(after), submit).await {
                Ok(answer) => answer,
                Err(_) => {
                    self.log.note(What::SubmitUnknown { call, code: "dropped".into() });
                    return false;
                }
            },
        };
        match answer {
            Ok(submitted) => {
                let job = submitted.id.as_i64();
                self.log.note(What::SubmitOk { call, job, duplicate: submitted.duplicate });
                if let Some(after) = order.cancel_after_ms.filter(|_| !submitted.duplicate) {
                    self.cancel(&ctx, job, after).await;
                }
                true
            }
            Err(error) => {
                let code = error.code().to_owned();
                self.log.note(match nothing_written(&error) {
                    true => What::SubmitRefused { call, code },
                    false => What::SubmitUnknown { call, code },
                });
                false
            }
        }
    }

    /// A submit together with a row of the caller's own.
    async fn submit_in_transaction(&self, call: u64, order: &Order, todo: Value, commits: bool) -> bool {
        let end = |end| self.log.note(What::TransactionEnd { call, end });
        let job = match self.service.prepare_named(&caller(order.tenant), HANDLER, &todo, options(order)).await {
            Ok(job) => job,
            Err(error) => {
                self.log.note(What::SubmitRefused { call, code: error.code().into() });
                return false;
            }
        };
        // A connection of the caller's own, as an application has it.
        let deadline = Duration::from_secs(3);
        let submit = async {
            let (mut client, connection) = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await?;
            let connection = tokio::spawn(connection);
            let tx = client.transaction().await?;
            let sql = format!("insert into {SIDE_TABLE} (call) values ($1)");
            tx.execute(&sql, &[&i64::try_from(call).expect("calls are small")]).await?;
            let submitted = windlass::postgres::submit_in(&tx, std::slice::from_ref(&job)).await?;
            let submitted = submitted.first().context("an answer for each job")?;
            self.log.note(What::SubmitOk { call, job: submitted.id.as_i64(), duplicate: submitted.duplicate });
            tokio::time::sleep(Duration::from_millis(order.hold_ms)).await;
            if !commits {
                tx.rollback().await?;
                end(TransactionEnd::RolledBack);
                return Ok(());
            }
            match tokio::time::timeout(deadline, tx.commit()).await {
                Ok(Ok(())) => end(TransactionEnd::Committed),
                _ => end(TransactionEnd::Unknown),
            }
            connection.abort();
            anyhow::Ok(())
        };
        match tokio::time::timeout(deadline * 2 + Duration::from_millis(order.hold_ms), submit).await {
            Ok(Ok(())) => true,
            // It never came to the commit.
            Ok(Err(_)) | Err(_) => {
                end(TransactionEnd::RolledBack);
                false
            }
        }
    }

    // ---- steering and looking

    async fn cancel(&self, ctx: &SecurityContext, job: i64, after_ms: u64) {
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        self.log.note(What::CancelCall { job });
        let reply = match self.service.cancel(ctx, JobId::from_i64(job), "not wanted").await {
            Ok(CancelReply::Canceled) => "canceled".to_owned(),
            Ok(CancelReply::Requested) => "requested".to_owned(),
            Ok(CancelReply::NotFound) | Err(Error::NotFound(_)) => "not_found".to_owned(),
            Ok(CancelReply::AlreadyFinished(_)) | Err(Error::AlreadyFinished { .. }) => "finished".to_owned(),
            Err(error) => error.code().to_owned(),
        };
        self.log.note(What::CancelReply { job, reply });
    }

    /// What one tenant is shown.
    async fn look(&self, number: u8) {
        let ctx = caller(number);
        let page = Page { limit: 20, ..Page::default() };
        let Ok(records) = self.service.list(&ctx, &JobFilter::default(), page).await else { return };
        for record in records {
            let (job, tenant, status) = (record.id.as_i64(), record.tenant.0, record.status.to_string());
            self.log.note(What::Seen { scope: Some(ctx.tenant.0), job, tenant, status });
        }
    }
}

async fn open(url: &str, settings: &Settings) -> Result<Arc<dyn Store>> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        let options = SqliteOptions { deadline: settings.deadline, ..SqliteOptions::default() };
        return Ok(Arc::new(SqliteStore::open_with(path, options).context("open the file")?));
    }
    let options = PgOptions::new(url)?
        .deadline(settings.deadline)
        .listen(settings.listen)
        .connections(settings.connections)
        .handler_idle(settings.handler_idle)
        .migrate(false);
    Ok(Arc::new(PgStore::connect_with(options).await.context("connect")?))
}

fn caller(number: u8) -> SecurityContext {
    SecurityContext::new(tenant(number)).with_user("faults")
}

/// The input, with fields that are not its own.
fn with_fields(todo: &Todo, fields: &BTreeMap<String, Value>) -> Value {
    let mut value = serde_json::to_value(todo).expect("an input is JSON");
    if let Value::Object(object) = &mut value {
        object.extend(fields.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    value
}

/// Whether an error says that nothing was stored.
fn nothing_written(error: &Error) -> bool {
    use windlass::store::Error as StoreError;
    match error {
        Error::Store(error) => {
            use StoreError::{Full, InvalidInput, Refused, Unavailable};
            matches!(error, Unavailable(_) | Full(_) | InvalidInput(_) | Refused(_))
        }
        Error::InvalidInput(_) | Error::Backpressure(_) | Error::HandlerNotFound(_) => true,
        _ => false,
    }
}

fn asked(order: &Order, handler: &str) -> Asked {
    Asked {
        tenant: tenant(order.tenant).0,
        handler: handler.into(),
        key: order.key.clone(),
        unique: order.unique.clone(),
        ordering: order.ordering.clone(),
        priority: order.priority,
        delay_us: order.delay_ms * 1_000,
        max_attempts: order.max_attempts,
        in_transaction: order.commits.is_some(),
    }
}

fn options(order: &Order) -> SubmitOptions {
    let mut options = SubmitOptions::new().priority(Priority(order.priority));
    options.idempotency_key = order.key.clone();
    options.ordering_key = order.ordering.clone();
    if let Some(unique) = &order.unique {
        options = options.unique_key(unique, UniqueWithin::Unfinished);
    }
    if order.delay_ms > 0 {
        options = options.delay(Duration::from_millis(order.delay_ms));
    }
    if let Some(ms) = order.timeout_ms {
        options = options.timeout(Duration::from_millis(ms));
    }
    if let Some(attempts) = order.max_attempts {
        options = options.retry(RetryPolicy::fixed(attempts, Duration::from_millis(50)));
    }
    options
}

/// A job of a load.
fn invent(rng: &mut StdRng, load: &Load, name: &str) -> Order {
    let todo = Todo { ms: rng.random_range(0..=load.job_ms), ..Todo::default() };
    let mut order = Order { tenant: rng.random_range(0..load.tenants.max(1)), todo, ..Order::default() };
    if load.drops {
        order.drop_after_us = Some(rng.random_range(0..2_000));
    }
    if load.plain {
        return order;
    }
    match rng.random_range(0..100) {
        0..30 => {}
        30..45 => {
            order.key = Some(name.to_owned());
            order.until_acknowledged = !load.drops;
        }
        // A few names, so that several callers ask for the same.
        45..52 => order.key = Some(format!("shared-{}", rng.random_range(0..40))),
        52..60 => order.ordering = Some(format!("line-{}", rng.random_range(0..3))),
        60..66 => order.delay_ms = rng.random_range(1..1_500),
        66..72 => order.unique = Some(format!("one-{}", rng.random_range(0..5))),
        72..78 => order.priority = [-10, 0, 10, 20][rng.random_range(0..4)],
        78..84 => order.todo.fails = rng.random_range(1..=2),
        84..86 => {
            order.todo.hopeless = true;
            order.max_attempts = Some(2);
        }
        86..89 => order.todo.snoozes = true,
        89..93 => order.todo.writes = true,
        93..96 => order.cancel_after_ms = Some(rng.random_range(0..60)),
        96..98 => order.limited = true,
        _ if load.transactions => order.commits = Some(rng.random_ratio(2, 3)),
        _ => {}
    }
    order
}

// ---- running

/// Does what its input says, and writes down that it did.
async fn work(log: Log, ctx: JobContext, todo: Todo) -> Result<u64, JobError> {
    let (job, lease, attempt) = (ctx.job_id().as_i64(), ctx.fence().lease.0, ctx.attempt());
    log.note(What::Start { job, lease, attempt, tenant: ctx.tenant().0, canary: todo.canary });
    let end = |how| log.note(What::End { job, lease, attempt, how });
    if let Some(how) = &todo.kills {
        tokio::time::sleep(Duration::from_millis(todo.ms)).await;
        kill(how);
    }
    if todo.completes {
        return complete(&log, &ctx, &todo).await;
    }
    if todo.writes {
        ctx.report_progress(10.0, "begun");
        ctx.save_checkpoint(&attempt).await?;
    }
    let held = match todo.holds {
        true => {
            let tx = windlass::postgres::transaction(&ctx).await?;
            tx.batch_execute("select 1").await.map_err(JobError::retryable)?;
            Some(tx)
        }
        false => None,
    };
    if todo.blocks {
        std::thread::sleep(Duration::from_millis(todo.ms));
    } else if todo.deaf {
        tokio::time::sleep(Duration::from_millis(todo.ms)).await;
    } else {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(todo.ms)) => {}
            () = ctx.cancellation().cancelled() => {
                log.note(What::Told { job, lease, lease_lost: ctx.lease_lost() });
                end(End::Stopped);
                return Err(JobError::retryable("asked to stop"));
            }
        }
    }
    if let Some(tx) = held {
        tx.rollback().await.map_err(JobError::retryable)?;
    }
    if todo.deaf && ctx.cancellation().is_cancelled() {
        log.note(What::Told { job, lease, lease_lost: ctx.lease_lost() });
    }
    if todo.snoozes && ctx.checkpoint::<u16>()?.is_none() {
        ctx.save_checkpoint(&attempt).await?;
        end(End::Snoozed);
        return Err(JobError::snooze(Duration::from_millis(100)));
    }
    if todo.hopeless || attempt <= todo.fails {
        end(End::Failed);
        return Err(JobError::retryable("as it was told to"));
    }
    log.note(What::Effect { job, lease, attempt });
    end(End::Succeeded);
    Ok(todo.call)
}

/// Ends the job in a transaction of the handler's own, and writes down what the store said, as the recorder does for other
/// ends.
async fn complete(log: &Log, ctx: &JobContext, todo: &Todo) -> Result<u64, JobError> {
    /// Apart from the numbers that the recorder gives to its own.
    static BATCHES: AtomicU64 = AtomicU64::new(1 << 40);
    let (job, lease, attempt) = (ctx.job_id().as_i64(), ctx.fence().lease.0, ctx.attempt());
    let tx = windlass::postgres::transaction(ctx).await?;
    let insert = format!("insert into {EFFECT_TABLE} (job) values ($1)");
    tx.execute(&insert, &[&job]).await.map_err(JobError::retryable)?;
    if todo.idles {
        tx.batch_execute(WAITING).await.map_err(JobError::retryable)?;
        tokio::time::sleep(Duration::from_millis(todo.ms)).await;
        tx.batch_execute("select 1").await.map_err(JobError::retryable)?;
    }
    log.note(What::Effect { job, lease, attempt });
    let batch = BATCHES.fetch_add(1, Ordering::Relaxed);
    let ends = vec![FinishEnd { job, lease, attempt, transition: "succeed".into() }];
    log.note(What::FinishCall { batch, ends });
    let completed = tx.complete(&todo.call).await;
    log.note(match &completed {
        Ok(()) => What::FinishReply { batch, replies: vec![Some("succeeded".into())] },
        Err(Error::LeaseLost(_)) => What::FinishReply { batch, replies: vec![None] },
        Err(error) => What::FinishFailed { batch, code: error.code().into(), unknown: true },
    });
    let how = if completed.is_ok() { End::Succeeded } else { End::Failed };
    log.note(What::End { job, lease, attempt, how });
    completed?;
    Ok(todo.call)
}

/// Takes the whole process along.
fn kill(how: &str) {
    match how {
        "overflow" => drop(deeper(0)),
        "memory" => {
            // More than any limit under which a process of a run is started.
            let mut hoard: Vec<Vec<u8>> = Vec::new();
            for _ in 0..1_024 {
                hoard.push(vec![1; 64 << 20]);
            }
        }
        _ => {}
    }
    std::process::abort();
}

/// Uses up the stack.
#[expect(unconditional_recursion, reason = "that is what it is for")]
fn deeper(depth: u64) -> [u64; 512] {
    let mut page = [depth; 512];
    page[1] = deeper(std::hint::black_box(depth + 1))[0];
    page
}
