//! `windlass bench`: how fast a store is, on the machine it is run on. Called by `commands::run`. Each scenario runs in a
//! throwaway place and through the public API; only `probe` speaks SQL, to read what it cost.

mod figures;
mod load;
mod place;
mod probe;
mod progress;
mod quiet;
mod rates;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::args::{BenchArgs, Global, Scenario};
use crate::bench::figures::{Figures, Report};
use crate::bench::load::Submits;
use crate::bench::progress::Progress;
use crate::error::{CliError, Result};
use crate::output::Out;

pub(crate) use crate::bench::place::Target;

/// Measures what was asked for and prints it.
pub(crate) async fn run(global: &Global, args: &BenchArgs, out: &Out) -> Result {
    // Dropping what runs removes what it has made.
    let reports = tokio::select! {
        reports = measure(global, args) => reports?,
        () = crate::up::asked_to_stop() => return Err(CliError::Failed("stopped; nothing is left behind".to_owned())),
    };
    figures::print(&reports, out)
}

async fn measure(global: &Global, args: &BenchArgs) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    for scenario in &args.scenarios {
        reports.push(Bench::new(global, args, *scenario).report(*scenario).await?);
    }
    Ok(reports)
}

/// One scenario with its settings.
pub(crate) struct Bench {
    pub(crate) target: Target,
    pub(crate) jobs: u64,
    pub(crate) submitters: usize,
    pub(crate) workers: usize,
    pub(crate) payload_bytes: usize,
    pub(crate) batch: u64,
    pub(crate) seconds: Duration,
    pub(crate) progress: Progress,
    repeats: usize,
}

impl Bench {
    fn new(global: &Global, args: &BenchArgs, scenario: Scenario) -> Bench {
        let usual = scenario.usual();
        Bench {
            target: args.store.clone(),
            jobs: args.jobs.unwrap_or(usual.jobs),
            submitters: args.submitters.unwrap_or(usual.submitters),
            workers: args.workers,
            payload_bytes: args.payload_bytes,
            batch: args.batch,
            seconds: Duration::from_secs(args.seconds.unwrap_or(usual.seconds)),
            progress: Progress::new(scenario.name(), global.quiet),
            repeats: args.repeats.unwrap_or(usual.repeats),
        }
    }

    /// Runs a scenario as often as wanted; the medians count.
    async fn report(&self, scenario: Scenario) -> Result<Report> {
        let mut runs = Vec::new();
        for _ in 0..self.repeats {
            runs.push(self.once(scenario).await?);
        }
        let jobs = if scenario == Scenario::Idle { 0 } else { self.jobs };
        Ok(Report { scenario: scenario.name(), store: self.target.name(), jobs, figures: Figures::median(&runs) })
    }

    async fn once(&self, scenario: Scenario) -> Result<Figures> {
        match scenario {
            Scenario::Submit => rates::submit(self, 1).await,
            Scenario::SubmitBulk => rates::submit(self, self.batch).await,
            Scenario::Drain => rates::drain(self).await,
            Scenario::EndToEnd => rates::end_to_end(self).await,
            Scenario::Latency => quiet::latency(self).await,
            Scenario::Spawn => rates::spawn(self).await,
            Scenario::Idle => quiet::idle(self).await,
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
        }
    }

    fn usual(self) -> Usual {
        let usual = Usual { jobs: 100_000, submitters: 64, seconds: 20, repeats: 3 };
        match self {
            Scenario::Submit | Scenario::EndToEnd => usual,
            Scenario::SubmitBulk => Usual { jobs: 200_000, submitters: 2, ..usual },
            Scenario::Drain => Usual { jobs: 200_000, ..usual },
            Scenario::Latency => Usual { jobs: 200, submitters: 1, repeats: 1, ..usual },
            Scenario::Spawn => Usual { jobs: 1_000_000, submitters: 2, ..usual },
            Scenario::Idle => Usual { repeats: 1, ..usual },
        }
    }
}
