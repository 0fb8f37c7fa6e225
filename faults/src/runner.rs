//! Runs rows: several at once, each on a thread and a database of its own, and judges what they leave. Called by the
//! command; the faults themselves are in `rows`, the judgement in `check`.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use windlass::sqlite::SqliteStore;
use windlass_testkit::servers::{PostgresOptions, PostgresServer};

use crate::check;
use crate::report::{self, Report, RowResult};
use crate::rig::Rig;
use crate::rows::{Need, ROWS, Row, State, Tier};
use crate::sabotage::Sabotage;
use crate::{Profile, StoreKind, undone};

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Everything left to chance follows from it.
    pub seed: u64,
    /// How much.
    pub profile: Profile,
    /// Only these rows; all of the profile's where it is empty.
    pub only: Vec<String>,
    /// Only this store.
    pub store: Option<StoreKind>,
    /// Rows at once.
    pub at_once: usize,
    /// Where everything is left.
    pub dir: PathBuf,
    /// What is broken on purpose.
    pub sabotage: Option<Sabotage>,
}

/// Runs every row of the plan. `told` hears of each as it ends.
pub fn run(plan: &Plan, told: impl Fn(&RowResult) + Sync) -> Result<Report> {
    let started = Instant::now();
    let (mut rows, mut runs) = (Vec::new(), Vec::new());
    for row in chosen(plan)? {
        match row.state {
            State::Waits(reason) => rows.push(RowResult { waiting: Some(reason.to_owned()), ..head(row) }),
            State::Runs(_) => {
                let stores = row.stores.iter().filter(|store| plan.store.is_none_or(|only| only == **store));
                runs.extend(stores.map(|store| (row, *store)));
            }
        }
    }
    rows.iter().for_each(&told);
    let (alone, together): (Vec<_>, Vec<_>) = runs.into_iter().partition(|(row, _)| row.needs.contains(&Need::Alone));
    let shared = Shared::start(alone.iter().chain(&together).any(|(row, store)| shares_server(row, *store)))?;
    for (runs, at_once) in [(together, plan.at_once.max(1)), (alone, 1)] {
        rows.extend(run_at_once(plan, &shared, runs, at_once, &told));
    }
    rows.sort_by(|a, b| (&a.id, &a.store).cmp(&(&b.id, &b.store)));
    let profile = format!("{:?}", plan.profile).to_lowercase();
    let report = Report { seed: plan.seed, profile, duration_ms: millis(started.elapsed()), rows };
    report.write(&plan.dir)?;
    Ok(report)
}

/// The rows of a plan.
fn chosen(plan: &Plan) -> Result<Vec<&'static Row>> {
    for id in &plan.only {
        if !ROWS.iter().any(|row| row.id.eq_ignore_ascii_case(id)) {
            let known: Vec<&str> = ROWS.iter().map(|row| row.id).collect();
            bail!("there is no row `{id}`; there are {}", known.join(", "));
        }
    }
    let deepest = match plan.profile {
        Profile::Short => Tier::P,
        Profile::Full => Tier::N,
        Profile::Soak => Tier::W,
    };
    let wanted = |row: &&Row| match plan.only.is_empty() {
        true => row.tier <= deepest,
        false => plan.only.iter().any(|id| row.id.eq_ignore_ascii_case(id)),
    };
    Ok(ROWS.iter().filter(wanted).collect())
}

fn shares_server(row: &Row, store: StoreKind) -> bool {
    store == StoreKind::Postgres && !row.needs.contains(&Need::OwnServer)
}

/// What rows share: one server, on which each has a database of its own.
struct Shared {
    server: Option<PostgresServer>,
}

impl Shared {
    fn start(wanted: bool) -> Result<Shared> {
        // No row that shares it kills it, so it need not wait for the disk.
        let options = || PostgresOptions::new().setting("fsync", "off").setting("max_connections", "600");
        Ok(Shared { server: wanted.then(|| PostgresServer::start(options())).transpose()? })
    }
}

fn run_at_once(
    plan: &Plan,
    shared: &Shared,
    runs: Vec<(&'static Row, StoreKind)>,
    at_once: usize,
    told: &(impl Fn(&RowResult) + Sync),
) -> Vec<RowResult> {
    let runs = Arc::new(Mutex::new(VecDeque::from(runs)));
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = runs.lock().expect("no thread panics while it holds this").pop_front();
                    let Some((row, store)) = next else { return };
                    let judged = run_row(plan, shared, row, store);
                    told(&judged);
                    results.lock().expect("no thread panics while it holds this").push(judged);
                }
            });
        }
    });
    results.into_inner().expect("every thread has ended well")
}

fn run_row(plan: &Plan, shared: &Shared, row: &'static Row, store: StoreKind) -> RowResult {
    let started = Instant::now();
    let dir = plan.dir.join(format!("{}-{}", row.id, store.name()));
    let mut result = RowResult { store: store.name().into(), seed: seed_of(plan.seed, row.id, store), ..head(row) };
    if let Some(lack) = lack(row) {
        result.waiting = Some(lack);
        return result;
    }
    let body = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let done = runtime.block_on(bring_about(plan, shared, row, store, &dir, &mut result));
        runtime.shutdown_background();
        done
    };
    // A row that panics has failed; the others go on.
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    result.error = match done {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some("it panicked; the message is above".into()),
    };
    result.duration_ms = millis(started.elapsed());
    let result = result.judged();
    if result.failed() {
        // A picture says more; without one the rest of the report still stands.
        let history = std::fs::File::open(dir.join("history.json")).ok();
        let history = history.and_then(|file| serde_json::from_reader(std::io::BufReader::new(file)).ok());
        let _ = history.map(|history| report::draw(&plan.dir, &result, &history));
    }
    result
}

/// Runs a row and fills in what it came to.
async fn bring_about(
    plan: &Plan,
    shared: &Shared,
    row: &'static Row,
    store: StoreKind,
    dir: &Path,
    result: &mut RowResult,
) -> Result<()> {
    let State::Runs(run) = row.state else { bail!("it waits") };
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let (url, server) = place(shared, row, store, dir)?;
    let mut rig = Rig::new(store, plan.profile, result.seed, dir.to_owned(), url, server).await?;
    if let Some(sabotage) = plan.sabotage {
        match store {
            StoreKind::Postgres => sabotage.apply(&rig.sql().await?).await?,
            StoreKind::Sqlite => {
                // Makes the tables, and lets go of the file.
                drop(SqliteStore::open(rig.file()).context("make the file")?);
                sabotage.apply_to_file(&rig.file())?;
            }
        }
        rig.sabotage = Some(sabotage);
    }
    let at_most = match plan.profile {
        Profile::Short => Duration::from_secs(150),
        Profile::Full => Duration::from_secs(40 * 60),
        Profile::Soak => Duration::from_secs(8 * 60 * 60),
    };
    let brought_about = match tokio::time::timeout(at_most, run(&mut rig)).await {
        Ok(done) => done,
        Err(_) => Err(anyhow::anyhow!("it did not end within {at_most:?}")),
    };
    let history = rig.conclude().await;
    (result.faults, result.schedule, result.criteria) = (rig.faults, rig.schedule.clone(), rig.criteria.clone());
    if let Ok(history) = &history {
        keep(dir, history)?;
        let verdict = check::check(&undone::without(history.clone()));
        (result.violations, result.facts) = (verdict.violations, verdict.facts);
    }
    brought_about?;
    history.map(drop)
}

/// The history as the checker got it, so that a judgement can be repeated.
fn keep(dir: &Path, history: &crate::history::History) -> Result<()> {
    let file = std::fs::File::create(dir.join("history.json")).context("keep the history")?;
    serde_json::to_writer(std::io::BufWriter::new(file), history).context("keep the history")
}

/// A database of the row's own.
fn place(shared: &Shared, row: &Row, store: StoreKind, dir: &Path) -> Result<(String, Option<PostgresServer>)> {
    if store == StoreKind::Sqlite {
        return Ok((format!("sqlite:{}", dir.join("jobs.db").display()), None));
    }
    let name = format!("{}_{}", row.id.to_ascii_lowercase(), std::process::id());
    if row.needs.contains(&Need::OwnServer) {
        let server = PostgresServer::start(PostgresOptions::new().setting("max_connections", "200"))?;
        server.create_database(&name)?;
        return Ok((server.url(&name), Some(server)));
    }
    let server = shared.server.as_ref().context("a server is started for rows that share it")?;
    server.create_database(&name)?;
    Ok((server.url(&name), None))
}

/// Each row has a seed of its own, so that it does the same alone as among others.
fn seed_of(seed: u64, id: &str, store: StoreKind) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, id, store.name()).hash(&mut hasher);
    hasher.finish()
}

/// What this machine lacks for a row.
fn lack(row: &Row) -> Option<String> {
    row.needs.iter().find_map(|need| match need {
        Need::Root if !rustix::process::geteuid().is_root() => Some("needs root, to mount file systems".to_owned()),
        Need::Groups => crate::cgroup::lack(),
        Need::FakeTime => crate::faketime::library().err().map(|error| format!("{error:#}")),
        _ => None,
    })
}

fn head(row: &Row) -> RowResult {
    RowResult { id: row.id.into(), title: row.title.into(), tier: format!("{:?}", row.tier), ..RowResult::default() }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
