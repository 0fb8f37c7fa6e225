//! The row that mixes every fault the rig has, at random and at the same time, for as long as the profile says. Called by
//! `runner` through the matrix. Measures at the end that processes and tables are no larger than they have to be.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::RngExt;
use rusqlite::{Connection, OpenFlags};
use rustix::process::Signal;
use tokio_postgres::Client;
use windlass_testkit::servers::StopMode;

use crate::Profile;
use crate::StoreKind::{Postgres, Sqlite};
use crate::child::{Command, Load, Settings, tenant};
use crate::fleet::Under;
use crate::history::Bound;
use crate::log::mono;
use crate::proxy::{self, Direction, Then};
use crate::rig::{Rig, SOON};

/// F52: everything, at random.
pub(super) async fn soup(rig: &mut Rig) -> Result<()> {
    let load = load(rig);
    match rig.store {
        Postgres => behind_proxies(rig, load).await?,
        Sqlite => drop(rig.fleet(1, load).await?),
    }
    let time = Duration::from_secs(match rig.profile {
        Profile::Short => 30,
        Profile::Full => 10 * 60,
        Profile::Soak => 6 * 60 * 60,
    });
    let (started, mut grown) = (Instant::now(), None);
    let mut kettle = Kettle::default();
    while started.elapsed() < time {
        rig.go_on_for(100..1_200).await;
        kettle.cure(rig, Instant::now()).await?;
        kettle.season(rig).await?;
        // What a process needs it has by now; from here on it must not grow.
        if grown.is_none() && started.elapsed() > time / 4 {
            grown = Some(memory_kib(rig.processes[ELDER].pid())?);
        }
    }
    kettle.cure_all(rig).await?;
    rig.quiet(Duration::from_secs(120)).await?;
    stays_small(rig, grown.context("the row takes time")?).await
}

/// The process that is never killed, so that what leaks adds up. On SQLite there is only one, and each restart starts anew.
const ELDER: usize = 0;
/// The last of the processes on PostgreSQL, which only submits.
const PRODUCER: usize = 3;

fn load(rig: &mut Rig) -> Load {
    // The book of a soak must fit into memory: about ten jobs a second instead of hundreds.
    let pause_ms = if rig.profile == Profile::Soak { 400 } else { 15 };
    Load { seed: rig.seed(), transactions: rig.store == Postgres, job_ms: 200, pause_ms, ..Load::default() }
}

/// Three nodes and a producer, each behind a proxy of its own; one of the nodes submits too.
async fn behind_proxies(rig: &mut Rig, load: Load) -> Result<()> {
    for n in 0..=PRODUCER {
        let proxy = rig.proxy().await?;
        ensure!(proxy == n, "each process has the proxy of its number");
        let concurrency = if n == PRODUCER { None } else { rig.settings.concurrency };
        let settings = Settings { concurrency, ..rig.settings.clone() };
        let at = rig.start(settings, rig.url_through(proxy), Under::default()).await?;
        if at == 1 {
            let seed = rig.seed();
            rig.load(at, Load { seed, tasks: 2, transactions: false, ..load.clone() });
        }
    }
    rig.load(PRODUCER, load);
    Ok(())
}

/// Faults that are under way, and when they end.
#[derive(Default)]
struct Kettle {
    ill: Vec<(Instant, Ill)>,
}

/// What is wrong, and can be put right.
enum Ill {
    /// The weather of a proxy.
    Weather(usize),
    /// A process that is stopped.
    Stopped(usize),
    /// A session that holds a snapshot; it ends when this is dropped.
    Snapshot { _holder: Client },
    /// A reader of a file.
    Reader(Connection),
    /// A pause.
    Paused(String),
}

impl Kettle {
    /// Brings about one more fault.
    async fn season(&mut self, rig: &mut Rig) -> Result<()> {
        match rig.store {
            Sqlite => self.season_file(rig).await,
            Postgres => self.season_server(rig).await,
        }
    }

    async fn season_file(&mut self, rig: &mut Rig) -> Result<()> {
        match rig.rng.random_range(0..8) {
            0 | 1 => self.kill(rig, 0).await,
            2 => self.terminate(rig, 0).await,
            3 | 4 => {
                self.stop(rig, 0);
                Ok(())
            }
            5 if !self.ill.iter().any(|(_, ill)| matches!(ill, Ill::Reader(_))) => {
                let reader = Connection::open_with_flags(rig.file(), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
                reader.busy_timeout(Duration::from_secs(5))?;
                reader.execute_batch("begin; select count(*) from windlass_job")?;
                rig.fault("a reader holds the file");
                self.until(rig, 500..5_000, Ill::Reader(reader));
                Ok(())
            }
            6 => {
                self.pause(rig, 0);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn season_server(&mut self, rig: &mut Rig) -> Result<()> {
        let at = rig.rng.random_range(0..=PRODUCER);
        match rig.rng.random_range(0..100) {
            0..15 if at != ELDER => self.kill(rig, at).await?,
            15..25 if at != ELDER => self.terminate(rig, at).await?,
            25..35 => self.stop(rig, at),
            35..60 => self.weather(rig, at),
            60..70 => {
                let n = rig.rng.random_range(1..4);
                let hold = Duration::from_millis(rig.rng.random_range(20..1_500));
                let then = rig.any(&[Then::Reset, Then::Reset, Then::Release]);
                rig.fault(format!("{n} answers of commits are held, then {then:?}, process {at}"));
                rig.proxies[at].hold_next(n, proxy::What::Commit, hold, then);
            }
            70..80 => end_sessions(rig).await?,
            80..84 => restart_server(rig).await?,
            84..88 if !self.ill.iter().any(|(_, ill)| matches!(ill, Ill::Snapshot { .. })) => {
                let holder = rig.sql().await?;
                holder.batch_execute("begin isolation level repeatable read; select 1").await?;
                rig.fault("a session holds a snapshot");
                self.until(rig, 1_000..8_000, Ill::Snapshot { _holder: holder });
            }
            88..92 => self.pause(rig, PRODUCER),
            92..98 => steer(rig).await?,
            _ => {}
        }
        Ok(())
    }

    fn until(&mut self, rig: &mut Rig, millis: std::ops::Range<u64>, ill: Ill) {
        let time = Duration::from_millis(rig.rng.random_range(millis));
        self.ill.push((Instant::now() + time, ill));
    }

    /// A new process starts in fair weather: what it does when it cannot start is not what this row is about.
    async fn kill(&mut self, rig: &mut Rig, at: usize) -> Result<()> {
        rig.kill_9(at);
        self.cure_process(rig, at);
        rig.restart(at).await
    }

    async fn terminate(&mut self, rig: &mut Rig, at: usize) -> Result<()> {
        self.cure_process(rig, at);
        rig.fault(format!("SIGTERM to process {}", rig.processes[at].proc()));
        rig.processes[at].signal(Signal::TERM);
        rig.processes[at].ended(SOON).await?;
        rig.restart(at).await
    }

    fn stop(&mut self, rig: &mut Rig, at: usize) {
        if self.ill.iter().any(|(_, ill)| matches!(ill, Ill::Stopped(of) if *of == at)) {
            return;
        }
        rig.fault(format!("process {} is stopped", rig.processes[at].proc()));
        rig.processes[at].signal(Signal::STOP);
        self.until(rig, 100..8_000, Ill::Stopped(at));
    }

    fn weather(&mut self, rig: &mut Rig, at: usize) {
        let millis = |rig: &mut Rig, most| Duration::from_millis(rig.rng.random_range(0..most));
        let proxy = rig.proxies[at].handle();
        let what = match rig.rng.random_range(0..7) {
            0 => {
                let direction = rig.any(&[Direction::Both, Direction::ToServer, Direction::ToClient]);
                proxy.blackhole(direction);
                format!("blackhole {direction:?}")
            }
            1 => {
                proxy.cut();
                "cut".into()
            }
            2 => {
                proxy.reset();
                "all connections reset".into()
            }
            3 => {
                let mean = millis(rig, 200);
                proxy.latency(mean, mean / 2);
                format!("{mean:?} of latency")
            }
            4 => {
                proxy.reset_share(0.3);
                "connections reset at random".into()
            }
            5 => {
                proxy.split(rig.rng.random_range(1..200));
                "small packets".into()
            }
            _ => {
                proxy.bandwidth(rig.rng.random_range(20_000..500_000));
                "little bandwidth".into()
            }
        };
        rig.fault(format!("weather of process {}: {what}", rig.processes[at].proc()));
        self.until(rig, 200..6_000, Ill::Weather(at));
    }

    fn pause(&mut self, rig: &mut Rig, by: usize) {
        let target = rig.any(&["handler:work", "handler:limited", "all"]).to_owned();
        rig.fault(format!("pause of {target}"));
        rig.processes[by].tell(&Command::Pause(target.clone()));
        self.until(rig, 300..3_000, Ill::Paused(target));
    }

    /// Puts right what was wrong with one process.
    fn cure_process(&mut self, rig: &mut Rig, at: usize) {
        let of_process = |ill: &Ill| matches!(ill, Ill::Weather(of) | Ill::Stopped(of) if *of == at);
        self.ill.retain(|(_, ill)| !of_process(ill));
        rig.processes[at].signal(Signal::CONT);
        if let Some(proxy) = rig.proxies.get(at) {
            proxy.heal();
        }
    }

    /// Ends what has lasted long enough.
    async fn cure(&mut self, rig: &mut Rig, now: Instant) -> Result<()> {
        let (over, still): (Vec<_>, Vec<_>) = std::mem::take(&mut self.ill).into_iter().partition(|(at, _)| *at <= now);
        self.ill = still;
        for (_, ill) in over {
            match ill {
                Ill::Weather(at) => {
                    rig.proxies[at].heal();
                    rig.healed(format!("weather of process {}", rig.processes[at].proc()));
                }
                Ill::Stopped(at) => {
                    rig.processes[at].signal(Signal::CONT);
                    rig.healed(format!("process {} is stopped", rig.processes[at].proc()));
                }
                Ill::Snapshot { .. } => rig.healed("a session holds a snapshot"),
                Ill::Reader(reader) => {
                    reader.execute_batch("rollback")?;
                    rig.healed("a reader holds the file");
                }
                Ill::Paused(target) => {
                    rig.processes.last_mut().context("there are processes")?.tell(&Command::Resume(target.clone()));
                    rig.healed(format!("pause of {target}"));
                }
            }
        }
        Ok(())
    }

    /// Ends everything, and repeats what a process may not have got.
    async fn cure_all(&mut self, rig: &mut Rig) -> Result<()> {
        for at in 0..rig.processes.len() {
            self.cure_process(rig, at);
        }
        let last = Instant::now() + Duration::from_secs(3_600);
        self.cure(rig, last).await?;
        rig.healed("everything");
        let began = Instant::now();
        while pauses(rig).await? > 0 {
            ensure!(began.elapsed() < SOON, "a pause cannot be ended");
            for target in ["handler:work", "handler:limited", "all"] {
                rig.processes.last_mut().context("there are processes")?.tell(&Command::Resume(target.into()));
            }
            rig.go_on(Duration::from_millis(500)).await;
        }
        Ok(())
    }
}

async fn pauses(rig: &Rig) -> Result<i64> {
    match rig.store {
        Postgres => Ok(rig.sql().await?.query_one("select count(*) from windlass.pause", &[]).await?.get(0)),
        Sqlite => {
            let file = Connection::open_with_flags(rig.file(), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            file.busy_timeout(Duration::from_secs(5))?;
            Ok(file.query_row("select count(*) from windlass_pause", [], |row| row.get(0))?)
        }
    }
}

/// Ends a few sessions, whatever they do.
async fn end_sessions(rig: &mut Rig) -> Result<()> {
    let few = rig.rng.random_range(1..6_i64);
    rig.fault(format!("{few} sessions are ended"));
    let sql = "select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
               order by random() limit $1";
    rig.sql().await?.query(sql, &[&few]).await?;
    Ok(())
}

async fn restart_server(rig: &mut Rig) -> Result<()> {
    let mode = rig.any(&[Some(StopMode::Immediate), Some(StopMode::Fast), None]);
    rig.fault(match mode {
        Some(mode) => format!("the server stops ({mode:?})"),
        None => "the server is killed".into(),
    });
    rig.rules.crashes.push(mono());
    let server = rig.server.as_mut().context("the row has a server of its own")?;
    tokio::task::block_in_place(|| match mode {
        Some(mode) => server.stop(mode),
        None => {
            server.kill_9();
            Ok(())
        }
    })?;
    rig.rules.crashes.push(mono());
    rig.go_on_for(0..2_000).await;
    let server = rig.server.as_mut().context("the row has a server of its own")?;
    tokio::task::block_in_place(|| server.start_again())?;
    rig.healed("the server is back");
    Ok(())
}

/// Cancels and replays some of a tenant's newest jobs, whatever state they are in.
async fn steer(rig: &mut Rig) -> Result<()> {
    let number = rig.rng.random_range(0..3);
    let newest = "select id from windlass.job where tenant_id = $1 order by id desc limit 30";
    let rows = rig.sql().await?.query(newest, &[&tenant(number).0]).await?;
    let jobs: Vec<i64> = rows.iter().map(|row| row.get(0)).filter(|_| rig.rng.random_bool(0.3)).collect();
    rig.fault(format!("{} jobs are canceled or replayed", jobs.len()));
    let command = match rig.rng.random_bool(0.5) {
        true => Command::Cancel { tenant: number, jobs },
        false => Command::Replay { tenant: number, jobs },
    };
    rig.processes[PRODUCER].tell(&command);
    Ok(())
}

/// Bounds what is left when all is quiet.
async fn stays_small(rig: &mut Rig, early_kib: u64) -> Result<()> {
    /// What an allocator may keep for bursts that it has seen.
    const SLACK_KIB: u64 = 48 << 10;
    let pid = rig.processes[ELDER].pid();
    let bound = |what: &str, measured: u64, at_most: u64| Bound {
        what: what.into(),
        measured: measured as f64,
        at_most: at_most as f64,
    };
    let mut bounds = vec![
        bound("memory of the oldest process, KiB", memory_kib(pid)?, early_kib * 3 / 2 + SLACK_KIB),
        bound("open files of the oldest process", open_files(pid)?, 100),
    ];
    if rig.store == Postgres {
        bounds.extend(table_sizes(rig).await?);
    }
    for bound in &bounds {
        let found = format!("{:.0} of at most {:.0}", bound.measured, bound.at_most);
        rig.demand(format!("bounded: {}", bound.what), found, bound.measured <= bound.at_most);
    }
    rig.rules.bounds.extend(bounds);
    Ok(())
}

/// Tables that hold only what is under way are nearly empty once cleaned up; the others grow with the jobs that are kept.
async fn table_sizes(rig: &Rig) -> Result<Vec<Bound>> {
    const EMPTY_BYTES: i64 = 16 << 20;
    const BYTES_A_JOB: i64 = 6_000;
    let sql = rig.sql().await?;
    let mut bounds = Vec::new();
    for table in ["ready", "lease", "scheduled", "gated", "node", "counter_delta", "checkpoint", "progress"] {
        let name = format!("windlass.{table}");
        sql.batch_execute(&format!("vacuum {name}")).await?;
        let size = format!("select pg_total_relation_size('{name}')");
        let bytes: i64 = sql.query_one(&size, &[]).await?.get(0);
        bounds.push(Bound { what: format!("bytes of {name}"), measured: bytes as f64, at_most: EMPTY_BYTES as f64 });
    }
    let jobs: i64 = sql.query_one("select count(*) from windlass.job", &[]).await?.get(0);
    let all = "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c
               where c.relnamespace = 'windlass'::regnamespace and c.relkind = 'r'";
    let bytes: i64 = sql.query_one(all, &[]).await?.get(0);
    let at_most = (EMPTY_BYTES + jobs * BYTES_A_JOB) as f64;
    bounds.push(Bound { what: format!("bytes of all tables with {jobs} jobs"), measured: bytes as f64, at_most });
    Ok(bounds)
}

fn memory_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("look at a process")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("a process has memory")?;
    Ok(line.split_whitespace().next().context("a number")?.parse()?)
}

fn open_files(pid: u32) -> Result<u64> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd")).context("look at a process")?.count() as u64)
}
