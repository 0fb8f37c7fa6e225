//! `windlass bench`: how fast a store is, on the machine it is run on, and whether it stays so under stress. Called by
//! `commands::run`. Each scenario runs in a throwaway place and through the public API; only `raw`, `probe` and the
//! stress itself speak SQL.

mod against;
mod figures;
mod http;
mod load;
mod node;
mod place;
mod probe;
mod process;
mod progress;
mod quiet;
mod rates;
mod raw;
mod stress;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::args::{BenchArgs, Global, Scenario};
use crate::bench::figures::{Figure, Figures, Report, Window};
use crate::bench::load::Submits;
use crate::bench::node::Orders;
use crate::bench::progress::Progress;
use crate::error::{CliError, Result};
use crate::output::Out;

pub(crate) use crate::bench::node::run as run_node;
pub(crate) use crate::bench::place::Target;

/// Names the store where the command line does not: a URL with a password belongs in no command line.
pub(crate) const STORE_VARIABLE: &str = "WINDLASS_BENCH_STORE";

/// The store to measure: as the command line says, else the variable, else memory.
fn target(args: &BenchArgs) -> Result<Target> {
    if let Some(store) = &args.store {
        return Ok(store.clone());
    }
    match std::env::var(STORE_VARIABLE).ok().filter(|store| !store.is_empty()) {
        Some(store) => Target::parse(&store).map_err(|message| CliError::invalid("store", message)),
        None => Ok(Target::Memory),
    }
}

/// Measures what was asked for and prints it. Fails if a pass line is missed.
pub(crate) async fn run(global: &Global, args: &BenchArgs, out: &Out) -> Result {
    let target = target(args)?;
    let bench = |scenario: &Scenario| Bench::new(global, args, target.clone(), *scenario);
    let benches: Vec<Bench> = args.scenarios.iter().map(bench).collect();
    benches.iter().try_for_each(Bench::check)?;
    // Dropping what runs removes what it has made.
    let reports = tokio::select! {
        reports = measure(&benches, args) => reports?,
        () = crate::up::asked_to_stop() => return Err(CliError::Failed("stopped; nothing is left behind".to_owned())),
    };
    figures::print(&reports, out)?;
    let missed = |report: &&Report| report.goal.is_some_and(|(_, passed)| !passed);
    let missed: Vec<&str> = reports.iter().filter(missed).map(|report| report.scenario).collect();
    if missed.is_empty() {
        return Ok(());
    }
    Err(CliError::Failed(format!("the pass line was missed: {}", missed.join(", "))))
}

async fn measure(benches: &[Bench], args: &BenchArgs) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    for bench in benches {
        reports.push(match &args.against {
            Some(other) => against::report(bench, args, other).await?,
            None => bench.report().await?,
        });
    }
    Ok(reports)
}

/// One scenario with its settings.
pub(crate) struct Bench {
    pub(crate) scenario: Scenario,
    pub(crate) target: Target,
    pub(crate) jobs: u64,
    pub(crate) submitters: usize,
    pub(crate) workers: usize,
    pub(crate) nodes: usize,
    pub(crate) payload_bytes: usize,
    pub(crate) batch: u64,
    pub(crate) seconds: Duration,
    pub(crate) progress: Progress,
    repeats: usize,
    raw: bool,
}

/// What one run of a scenario found.
pub(crate) struct Outcome {
    pub(crate) figures: Figures,
    pub(crate) goal: Option<(&'static str, bool)>,
    pub(crate) windows: Vec<Window>,
}

impl From<Figures> for Outcome {
    fn from(figures: Figures) -> Outcome {
        Outcome { figures, goal: None, windows: Vec::new() }
    }
}

impl Outcome {
    /// Figures with a pass line.
    fn judged(figures: Figures, goal: &'static str, passed: bool) -> Outcome {
        Outcome { figures, goal: Some((goal, passed)), windows: Vec::new() }
    }
}

impl Bench {
    fn new(global: &Global, args: &BenchArgs, target: Target, scenario: Scenario) -> Bench {
        let usual = scenario.usual(args.full);
        Bench {
            scenario,
            target,
            jobs: args.jobs.unwrap_or(usual.jobs),
            submitters: args.submitters.unwrap_or(usual.submitters),
            workers: args.workers,
            nodes: args.nodes,
            payload_bytes: args.payload_bytes,
            batch: args.batch,
            seconds: Duration::from_secs(args.seconds.unwrap_or(usual.seconds)),
            progress: Progress::new(scenario.name(), global.quiet),
            repeats: args.repeats.unwrap_or(usual.repeats),
            raw: !args.no_raw,
        }
    }

    /// Refuses what cannot be measured before anything is made.
    fn check(&self) -> Result {
        use Scenario::{Drain, EndToEnd, Latency, Submit, SubmitBulk};
        if self.nodes == 1 {
            return Ok(());
        }
        if !matches!(self.target, Target::Postgres(_)) {
            return Err(CliError::invalid("nodes", "several processes need PostgreSQL"));
        }
        match self.scenario {
            Submit | SubmitBulk | Drain | EndToEnd | Latency => Ok(()),
            other => {
                Err(CliError::invalid("nodes", format!("{} chooses the number of processes itself", other.name())))
            }
        }
    }

    /// Measures a scenario as often as wanted; the medians count.
    async fn report(&self) -> Result<Report> {
        let (mut runs, mut windows, mut goal) = (Vec::new(), Vec::new(), None);
        for turn in 0..self.repeats {
            let outcome = self.beside_raw(turn).await?;
            runs.push(outcome.figures);
            windows = outcome.windows;
            // Every run must reach the pass line.
            goal = match (goal, outcome.goal) {
                (Some((goal, before)), Some((_, passed))) => Some((goal, before && passed)),
                (_, first) => first,
            };
        }
        let mut figures = Figures::median(&runs);
        if figures.has(Figure::RatioToRaw) && runs.len() > 1 {
            figures.set(Figure::RatioSpread, Figures::spread(&runs, Figure::RatioToRaw));
        }
        let jobs = if self.scenario.counts_jobs() { self.jobs } else { 0 };
        Ok(Report { scenario: self.scenario.name(), store: self.target.name(), jobs, figures, goal, windows })
    }

    /// One run of a scenario right beside one of its raw statements, each first in every other turn: what the machine
    /// does meanwhile then meets both, and their ratio says something although each rate alone goes up and down.
    async fn beside_raw(&self, turn: usize) -> Result<Outcome> {
        let (mut outcome, raw) = if turn.is_multiple_of(2) {
            let outcome = self.once().await?;
            (outcome, self.raw().await?)
        } else {
            let raw = self.raw().await?;
            (self.once().await?, raw)
        };
        if let Some(raw) = raw {
            outcome.figures.set(Figure::RawJobsPerSecond, raw);
            outcome.figures.ratio(Figure::RatioToRaw, Figure::JobsPerSecond, Figure::RawJobsPerSecond);
        }
        Ok(outcome)
    }

    async fn raw(&self) -> Result<Option<f64>> {
        if self.raw { rates::raw(self).await } else { Ok(None) }
    }

    async fn once(&self) -> Result<Outcome> {
        match self.scenario {
            Scenario::Submit => rates::submit(self, 1).await.map(Into::into),
            Scenario::SubmitBulk => rates::submit(self, self.batch).await.map(Into::into),
            Scenario::Drain => rates::drain(self).await.map(Into::into),
            Scenario::EndToEnd => rates::end_to_end(self).await.map(Into::into),
            Scenario::Latency => quiet::latency(self).await.map(Into::into),
            Scenario::Spawn => rates::spawn(self).await.map(Into::into),
            Scenario::Idle => quiet::idle(self).await.map(Into::into),
            Scenario::HeldSnapshot => stress::held_snapshot(self).await,
            Scenario::Backlog => stress::backlog(self).await,
            Scenario::Unanalysed => stress::unanalysed(self).await,
            Scenario::Tenants => stress::tenants(self).await,
            Scenario::Bands => stress::bands(self).await,
            Scenario::Notify => stress::notify(self).await,
            Scenario::Retention => stress::retention(self).await,
            Scenario::Waiting => process::waiting(self).await,
            Scenario::Sleepers => process::sleepers(self).await,
            Scenario::Start => process::start(self).await,
            Scenario::Http => http::http(self).await,
        }
    }

    /// Submits of all jobs, so many in a call.
    fn submits(&self, batch: u64) -> Submits {
        Submits {
            jobs: self.jobs,
            submitters: self.submitters,
            batch,
            payload_bytes: self.payload_bytes,
            taken: Arc::new(AtomicU64::new(0)),
        }
    }

    /// What another process of this scenario is to be.
    fn orders(&self, batch: u64, work: bool) -> Orders {
        Orders {
            url: String::new(),
            submitters: self.submitters,
            batch,
            payload_bytes: self.payload_bytes,
            workers: self.workers,
            work,
        }
    }
}

/// What a scenario does where the command line does not say: enough to measure, short enough to wait for.
struct Usual {
    jobs: u64,
    submitters: usize,
    seconds: u64,
    repeats: usize,
}

impl Scenario {
    /// Its name on the command line and in reports.
    fn name(self) -> &'static str {
        match self {
            Scenario::Submit => "submit",
            Scenario::SubmitBulk => "submit-bulk",
            Scenario::Drain => "drain",
            Scenario::EndToEnd => "end-to-end",
            Scenario::Latency => "latency",
            Scenario::Spawn => "spawn",
            Scenario::Idle => "idle",
            Scenario::HeldSnapshot => "held-snapshot",
            Scenario::Backlog => "backlog",
            Scenario::Unanalysed => "unanalysed",
            Scenario::Tenants => "tenants",
            Scenario::Bands => "bands",
            Scenario::Notify => "notify",
            Scenario::Retention => "retention",
            Scenario::Waiting => "waiting",
            Scenario::Sleepers => "sleepers",
            Scenario::Start => "start",
            Scenario::Http => "http",
        }
    }

    /// Whether it is a number of jobs that is measured, and not a time.
    fn counts_jobs(self) -> bool {
        use Scenario::{Bands, HeldSnapshot, Idle, Start, Tenants};
        !matches!(self, Idle | HeldSnapshot | Tenants | Bands | Start)
    }

    fn usual(self, full: bool) -> Usual {
        // Many short turns: a moment of a busy machine then spoils one of them and not the median.
        let usual = Usual { jobs: 50_000, submitters: 64, seconds: 20, repeats: 9 };
        let once = Usual { jobs: 100_000, repeats: 1, ..usual };
        match self {
            Scenario::Submit | Scenario::EndToEnd => usual,
            Scenario::SubmitBulk => Usual { jobs: 100_000, submitters: 2, ..usual },
            Scenario::Drain => Usual { jobs: 100_000, ..usual },
            Scenario::Latency => Usual { jobs: 200, submitters: 1, ..once },
            Scenario::Spawn => Usual { jobs: 1_000_000, submitters: 2, repeats: 3, ..usual },
            Scenario::Idle => once,
            Scenario::HeldSnapshot => Usual { seconds: if full { 600 } else { 60 }, ..once },
            Scenario::Backlog => Usual { jobs: if full { 5_000_000 } else { 500_000 }, ..once },
            Scenario::Unanalysed => Usual { jobs: if full { 1_000_000 } else { 200_000 }, ..once },
            Scenario::Tenants | Scenario::Bands => Usual { submitters: 8, ..once },
            Scenario::Notify => once,
            Scenario::Retention => Usual { jobs: if full { 1_000_000 } else { 200_000 }, seconds: 30, ..once },
            Scenario::Waiting => Usual { jobs: 1_000_000, ..once },
            Scenario::Sleepers => once,
            Scenario::Start => Usual { repeats: 5, ..usual },
            Scenario::Http => Usual { submitters: 4, seconds: 10, ..once },
        }
    }
}
