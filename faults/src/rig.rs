//! What a row of the matrix works with: a fresh database, the processes on it, proxies between them, a seeded source of
//! chance, and the book of what was done. Made for each row by `runner`; knows no fault by itself, only the means.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rustix::process::Signal;
use tokio_postgres::{Client, NoTls};
use windlass::health::{Checkup, Finding};
use windlass::postgres::{PgOptions, PgStore};
use windlass::store::Insight as _;
use windlass_testkit::servers::{PgBouncer, PostgresServer};

use crate::child::{Command, EFFECT_TABLE, Load, Order, SIDE_TABLE, Settings, Task};
use crate::dump::{self, Progress};
use crate::event::{Event, What};
use crate::fleet::{LOOK_EVERY, Process, Under};
use crate::history::{History, Reader, Rules};
use crate::log::{Log, mono};
use crate::proxy::{Protocol, Proxy};
use crate::report::Criterion;
use crate::sabotage::Sabotage;
use crate::{Profile, StoreKind};

/// How long anything may take that has no limit of its own: a busy machine of two cores, with room to spare.
pub const SOON: Duration = Duration::from_secs(30);

/// The means of one row.
pub struct Rig {
    /// What the jobs are kept in.
    pub store: StoreKind,
    /// How long rows take.
    pub profile: Profile,
    /// Decides everything that is left to chance.
    pub rng: StdRng,
    /// Everything the row leaves behind.
    pub dir: PathBuf,
    /// The book of the process that brings the faults about.
    pub log: Log,
    /// What processes are started with, unless a row says otherwise.
    pub settings: Settings,
    /// What the checker goes by.
    pub rules: Rules,
    /// What the row itself demands, besides the invariants.
    pub criteria: Vec<Criterion>,
    /// What was done, with the second in which it was.
    pub schedule: Vec<String>,
    /// Faults brought about.
    pub faults: u64,
    /// The processes, by the order in which they were first started; a restart takes the place of the one before.
    pub processes: Vec<Process>,
    /// Between processes and the database.
    pub proxies: Vec<Proxy>,
    /// A pooler, where the row wants one.
    pub bouncer: Option<PgBouncer>,
    /// A server of the row's own, where it wants one.
    pub server: Option<PostgresServer>,
    /// What is broken on purpose.
    pub sabotage: Option<Sabotage>,
    /// Where the jobs are, without anything in between, for the processes: on PostgreSQL a login without special rights.
    pub url: String,
    /// The same for the harness, which may do anything.
    pub admin_url: String,
    /// What must live as long as the server, such as the disk under it. Dropped after it.
    pub kept: Vec<Box<dyn std::any::Any>>,
    reader: Mutex<Reader>,
    next_proc: u32,
    started: Instant,
}

impl Rig {
    /// A rig on the database that `url` names, which is migrated first.
    pub async fn new(
        store: StoreKind,
        profile: Profile,
        seed: u64,
        dir: PathBuf,
        url: String,
        server: Option<PostgresServer>,
    ) -> Result<Rig> {
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let log = Log::open(&dir.join("0.events"), 0)?;
        let reader = Mutex::new(Reader::new(&dir));
        let settings = Settings::default();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        let rules = Rules {
            lease_us: micros(settings.lease),
            wall_minus_mono_us: i64::try_from(wall.as_micros())? - i64::try_from(mono())?,
            ..Rules::default()
        };
        let rig = Rig {
            store,
            profile,
            rng: StdRng::seed_from_u64(seed),
            dir,
            log,
            settings,
            rules,
            criteria: Vec::new(),
            schedule: Vec::new(),
            faults: 0,
            processes: Vec::new(),
            proxies: Vec::new(),
            bouncer: None,
            server,
            sabotage: None,
            url: as_node(&url),
            admin_url: url,
            kept: Vec::new(),
            reader,
            next_proc: 1,
            started: Instant::now(),
        };
        if store == StoreKind::Postgres {
            drop(PgStore::connect(&rig.admin_url).await.context("migrate")?);
            rig.sql().await?.batch_execute(&prepare_database()).await?;
        }
        Ok(rig)
    }

    /// Goes to a server that the row has set up itself, before any process is started.
    pub async fn move_to(&mut self, server: PostgresServer) -> Result<()> {
        let name = format!("own_{}", std::process::id());
        server.create_database(&name)?;
        self.stay_on(server, &name);
        drop(PgStore::connect(&self.admin_url).await.context("migrate")?);
        self.sql().await?.batch_execute(&prepare_database()).await?;
        Ok(())
    }

    /// Goes to a server that has the row's database already, such as a copy. Processes are not told.
    pub fn stay_on(&mut self, server: PostgresServer, database: &str) -> Option<PostgresServer> {
        self.admin_url = server.url(database);
        self.url = as_node(&self.admin_url);
        self.server.replace(server)
    }

    /// The name of the row's database.
    pub fn database(&self) -> &str {
        self.url.rsplit_once('/').map_or("", |(_, name)| name)
    }

    /// Another lease than the default, for the processes and for the checker.
    pub fn set_lease(&mut self, lease: Duration) {
        self.settings.lease = lease;
        self.rules.lease_us = micros(lease);
    }

    // ---- processes

    /// Starts a process that runs jobs. On SQLite it is the one that also submits.
    pub async fn worker(&mut self) -> Result<usize> {
        self.start(self.settings.clone(), self.url.clone(), Under::default()).await
    }

    /// Starts a process that only submits; on SQLite, where a file belongs to one process, answers with that one.
    pub async fn producer(&mut self) -> Result<usize> {
        if self.store == StoreKind::Sqlite {
            return match self.processes.is_empty() {
                true => self.worker().await,
                false => Ok(0),
            };
        }
        let settings = Settings { concurrency: None, ..self.settings.clone() };
        self.start(settings, self.url.clone(), Under::default()).await
    }

    /// `n` workers and a producer with a load; on SQLite one process that is all of them. Answers with the producer.
    pub async fn fleet(&mut self, n: usize, load: Load) -> Result<usize> {
        let workers = if self.store == StoreKind::Sqlite { 1 } else { n };
        for _ in 0..workers {
            self.worker().await?;
        }
        let producer = self.producer().await?;
        self.load(producer, load);
        Ok(producer)
    }

    /// Starts any process and waits until it is there.
    pub async fn start(&mut self, settings: Settings, url: String, under: Under) -> Result<usize> {
        let mut process = self.spawn(settings, url, under)?;
        process.up().await?;
        self.processes.push(process);
        Ok(self.processes.len() - 1)
    }

    /// Starts a process without waiting for it.
    pub fn spawn(&mut self, settings: Settings, url: String, under: Under) -> Result<Process> {
        let proc = self.next_proc;
        self.next_proc += 1;
        let events = self.dir.join(format!("{proc}.events"));
        Process::start(Task { proc, url, events, settings }, under)
    }

    /// Starts a process in the place of one that has ended, with its settings and its load.
    pub async fn restart(&mut self, at: usize) -> Result<()> {
        let old = &self.processes[at];
        let (task, under, load) = (old.task.clone(), old.under.clone(), old.load.clone());
        let mut process = self.spawn(task.settings, task.url, under)?;
        process.up().await?;
        self.processes[at] = process;
        if let Some(load) = load {
            self.load(at, load);
        }
        Ok(())
    }

    /// Lets a process submit until told otherwise.
    pub fn load(&mut self, at: usize, load: Load) {
        let process = &mut self.processes[at];
        process.tell(&Command::Load(load.clone()));
        process.load = Some(load);
    }

    /// Lets a process submit these.
    pub fn submit(&mut self, at: usize, orders: Vec<Order>, tasks: usize) {
        self.processes[at].tell(&Command::Submit { orders, tasks });
    }

    /// Stops all loads.
    pub fn end_loads(&mut self) {
        for process in &mut self.processes {
            if process.load.take().is_some() {
                process.tell(&Command::EndLoad);
            }
        }
    }

    /// The workers among the processes.
    pub fn workers(&self) -> Vec<usize> {
        let runs = |at: &usize| self.processes[*at].task.settings.concurrency.is_some();
        (0..self.processes.len()).filter(runs).collect()
    }

    /// The events of all processes so far.
    pub fn events(&self) -> Result<Arc<Vec<Event>>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).events()
    }

    /// How many events there are of a kind.
    pub fn count(&self, wanted: impl Fn(&What) -> bool) -> Result<usize> {
        Ok(self.events()?.iter().filter(|event| wanted(&event.what)).count())
    }

    /// Waits until the events of all processes are as wanted; answers how long it took.
    pub async fn until(&self, what: &str, at_most: Duration, wanted: impl Fn(&[Event]) -> bool) -> Result<Duration> {
        let started = Instant::now();
        while !wanted(&self.events()?) {
            ensure!(started.elapsed() < at_most, "waited {at_most:?} for {what}");
            tokio::time::sleep(LOOK_EVERY * 2).await;
        }
        Ok(started.elapsed())
    }

    // ---- the database

    /// A connection of the harness's own, with nothing in between.
    pub async fn sql(&self) -> Result<Client> {
        connect(&self.admin_url).await
    }

    /// What `windlass doctor` finds when it looks at the database.
    pub async fn findings(&self) -> Result<Vec<Finding>> {
        let store = PgStore::connect_with(PgOptions::new(&self.admin_url)?.migrate(false)).await?;
        let mut checkup = Checkup::default();
        checkup.held_after = Duration::from_secs(1);
        checkup.lease = self.settings.lease;
        Ok(store.examine(&checkup).await?)
    }

    /// The file of a SQLite store.
    pub fn file(&self) -> PathBuf {
        PathBuf::from(self.url.trim_start_matches("sqlite:"))
    }

    /// Puts a proxy in front of the server; answers with its number.
    pub async fn proxy(&mut self) -> Result<usize> {
        let seed = self.seed();
        let upstream = server_address(&self.url)?;
        self.proxies.push(Proxy::start(&upstream, Protocol::Postgres, seed).await?);
        Ok(self.proxies.len() - 1)
    }

    /// The URL through a proxy.
    pub fn url_through(&self, proxy: usize) -> String {
        self.proxies[proxy].url(&self.url)
    }

    /// How many jobs have not ended.
    pub async fn unfinished(&self) -> Result<i64> {
        match self.store {
            StoreKind::Postgres => dump::unfinished_in_postgres(&self.sql().await?).await,
            StoreKind::Sqlite => dump::unfinished_in_sqlite(&self.file()),
        }
    }

    /// How far schedules have come.
    pub async fn progress(&self) -> Result<Progress> {
        match self.store {
            StoreKind::Postgres => dump::progress_in_postgres(&self.sql().await?).await,
            StoreKind::Sqlite => dump::progress_in_sqlite(&self.file()),
        }
    }

    // ---- the book

    /// Waits while processes work.
    pub async fn go_on(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Waits for a time of chance, in milliseconds.
    pub async fn go_on_for(&mut self, millis: std::ops::Range<u64>) {
        let millis = rand::RngExt::random_range(&mut self.rng, millis);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    /// One of these by chance.
    pub fn any<T: Copy>(&mut self, of: &[T]) -> T {
        of[rand::RngExt::random_range(&mut self.rng, 0..of.len())]
    }

    /// A seed that follows from the row's own.
    pub fn seed(&mut self) -> u64 {
        rand::RngExt::random(&mut self.rng)
    }

    /// Writes down that a fault is about to be brought about.
    pub fn fault(&mut self, fault: impl Into<String>) {
        let fault = fault.into();
        self.faults += 1;
        self.schedule.push(format!("{:6.2} s  {fault}", self.started.elapsed().as_secs_f64()));
        self.log.note(What::Fault { fault });
    }

    /// Writes down that a fault is over.
    pub fn healed(&mut self, fault: impl Into<String>) {
        let fault = fault.into();
        self.schedule.push(format!("{:6.2} s  healed: {fault}", self.started.elapsed().as_secs_f64()));
        self.log.note(What::Healed { fault });
    }

    /// Demands that something is as it should be.
    pub fn demand(&mut self, what: impl Into<String>, found: impl std::fmt::Display, met: bool) {
        self.criteria.push(Criterion { what: what.into(), found: found.to_string(), met });
    }

    /// Demands a time.
    pub fn demand_within(&mut self, what: impl Into<String>, took: Duration, at_most: Duration) {
        let what = format!("{} within {:.1} s", what.into(), at_most.as_secs_f64());
        self.demand(what, format!("{:.2} s", took.as_secs_f64()), took <= at_most);
    }

    // ---- faults that many rows share

    /// Kills a process as `kill -9` does.
    pub fn kill_9(&mut self, at: usize) {
        self.fault(format!("kill -9 process {}", self.processes[at].proc()));
        self.processes[at].kill_9();
    }

    /// Stops a process for a while, as a paging machine or a debugger does.
    pub async fn freeze(&mut self, at: usize, time: Duration) {
        let name = format!("process {} is stopped", self.processes[at].proc());
        self.fault(name.clone());
        self.processes[at].signal(Signal::STOP);
        tokio::time::sleep(time).await;
        self.processes[at].signal(Signal::CONT);
        self.healed(name);
    }

    // ---- the end

    /// Ends the loads and waits until every job has ended. Demands that it does.
    pub async fn quiet(&mut self, at_most: Duration) -> Result<()> {
        self.end_loads();
        let started = Instant::now();
        let mut left = i64::MAX;
        // Callers repeat what was not acknowledged for a moment longer; so nothing must be left twice in a row.
        let mut quiet = 0;
        while quiet < 3 && started.elapsed() < at_most {
            left = self.unfinished().await.unwrap_or(i64::MAX);
            quiet = if left == 0 { quiet + 1 } else { 0 };
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.rules.quiet = quiet >= 3;
        let found = if left == 0 { "all ended".to_owned() } else { format!("{left} have not") };
        self.demand(format!("all jobs end within {} s of healing", at_most.as_secs()), found, quiet >= 3);
        Ok(())
    }

    /// Ends all processes in good order and reads what is left: the whole history.
    pub async fn conclude(&mut self) -> Result<History> {
        self.end_loads();
        for process in &mut self.processes {
            process.signal(Signal::CONT);
        }
        for mut process in std::mem::take(&mut self.processes) {
            if process.exited()?.is_some() {
                continue;
            }
            if let Err(error) = process.stop(SOON).await {
                self.demand("processes end when told to", error, false);
            }
        }
        let dump = match self.store {
            StoreKind::Sqlite => dump::of_sqlite(&self.file())?,
            StoreKind::Postgres => {
                let client = self.sql().await?;
                let at_most = Duration::from_secs(10);
                let sessions = sessions_end(&client, at_most).await?;
                self.demand("no session outlives its process", format!("{sessions} left"), sessions == 0);
                dump::of_postgres(&client).await?
            }
        };
        Ok(History { events: self.events()?.to_vec(), dump, rules: self.rules.clone() })
    }
}

/// The login of the processes.
const LOGIN: &str = "faults_node";

/// Makes the login, which other rows may do at the same time, and the tables that callers and handlers write to.
fn prepare_database() -> String {
    format!(
        "do $$ begin create role {LOGIN} login; exception when duplicate_object or unique_violation then null; end $$;
         do $$ begin grant windlass_app, windlass_engine, pg_read_all_stats to {LOGIN};
         exception when unique_violation or internal_error then null; end $$;
         create table {SIDE_TABLE} (call bigint primary key);
         create table {EFFECT_TABLE} (job bigint not null);
         grant select, insert on {SIDE_TABLE}, {EFFECT_TABLE} to {LOGIN};"
    )
}

/// The same database for the login of the processes.
fn as_node(url: &str) -> String {
    match (url.split_once("://"), url.split_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{LOGIN}@{place}"),
        _ => url.to_owned(),
    }
}

/// Waits until no session of others is left in the database; answers how many are.
async fn sessions_end(client: &Client, at_most: Duration) -> Result<i64> {
    let sql = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
               and backend_type = 'client backend'";
    let started = Instant::now();
    loop {
        let left: i64 = client.query_one(sql, &[]).await?.get(0);
        if left == 0 || started.elapsed() > at_most {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A connection, made again and again while a server starts.
pub async fn connect(url: &str) -> Result<Client> {
    let started = Instant::now();
    loop {
        match tokio_postgres::connect(url, NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                return Ok(client);
            }
            Err(error) if started.elapsed() > SOON => return Err(error).context("connect to the server"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn server_address(url: &str) -> Result<String> {
    let config: tokio_postgres::Config = url.parse()?;
    let port = config.get_ports().first().copied().context("the URL has a port")?;
    Ok(format!("127.0.0.1:{port}"))
}

/// In whole microseconds.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
