//! Compares two builds: `bench --against OTHER`. Called by `bench::measure` in place of a plain measurement. Each turn
//! starts both programs with the same scenario, one after the other and each first in every other turn, so that what the
//! machine does meanwhile meets both. Never reads a figure that only one of the two builds reports.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;
use windlass::Address;

use crate::args::{BenchArgs, Scenario};
use crate::bench::figures::{Figure, Figures, Report};
use crate::bench::{Bench, STORE_VARIABLE, Target};
use crate::error::{CliError, Result};

/// Turns where the command line does not say: those that take longest here are over in a second or two.
const TURNS: usize = 9;

/// Measures a scenario with this program and another one; the medians of the turns count.
pub(crate) async fn report(bench: &Bench, args: &BenchArgs, other: &Path) -> Result<Report> {
    let own = std::env::current_exe()?;
    let figure = compared(bench);
    let mut turns = Vec::new();
    for turn in 0..args.repeats.unwrap_or(TURNS) {
        let first = if turn % 2 == 0 { own.as_path() } else { other };
        let second = if turn % 2 == 0 { other } else { own.as_path() };
        let (first, second) = (measure(first, bench, figure).await?, measure(second, bench, figure).await?);
        let (ours, theirs) = if turn % 2 == 0 { (first, second) } else { (second, first) };
        let mut figures = Figures::default();
        figures.set(figure, ours);
        figures.set(Figure::Other, theirs);
        figures.ratio(Figure::RatioToOther, figure, Figure::Other);
        turns.push(figures);
    }
    let mut figures = Figures::median(&turns);
    figures.set(Figure::RatioSpread, Figures::spread(&turns, Figure::RatioToOther));
    let jobs = if bench.scenario.counts_jobs() { bench.jobs } else { 0 };
    let (scenario, store) = (bench.scenario.name(), bench.target.name());
    Ok(Report { scenario, store, jobs, figures, goal: None, windows: Vec::new() })
}

/// The figure that a scenario is about. It must be one that the store has.
fn compared(bench: &Bench) -> Figure {
    match bench.scenario {
        Scenario::Latency => Figure::P50,
        Scenario::Idle if matches!(bench.target, Target::Postgres(_)) => Figure::QueriesPerSecond,
        Scenario::Idle => Figure::CpuPerSecond,
        Scenario::Start => Figure::StartMs,
        Scenario::Waiting | Scenario::Sleepers => Figure::Memory,
        Scenario::Tenants | Scenario::Bands => Figure::P99,
        _ => Figure::JobsPerSecond,
    }
}

/// Whether a URL holds what is left out when it is shown: a password, or options.
fn hides_something(url: &str) -> bool {
    Address::parse(url).map_or(true, |address| address.to_string() != url)
}

/// One turn of one program.
async fn measure(program: &Path, bench: &Bench, figure: Figure) -> Result<f64> {
    let mut command = Command::new(program);
    command.args(["bench", "--quiet", "--json", "--no-raw", "--repeats", "1"]);
    command.args(["--scenario", bench.scenario.name()]);
    match &bench.target {
        // Others can read what stands on a command line, so a password does not. Builds that do not know the variable yet
        // can be compared where there is none.
        Target::Postgres(url) if hides_something(url) => command.env(STORE_VARIABLE, url),
        target => command.args(["--store", &target.to_string()]),
    };
    let numbers = [
        ("--jobs", bench.jobs),
        ("--submitters", bench.submitters as u64),
        ("--workers", bench.workers as u64),
        ("--nodes", bench.nodes as u64),
        ("--payload-bytes", bench.payload_bytes as u64),
        ("--batch", bench.batch),
        ("--seconds", bench.seconds.as_secs()),
    ];
    numbers.iter().for_each(|(name, value)| {
        command.args([name.to_string(), value.to_string()]);
    });
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).output().await?;
    let unreadable = || {
        let said = String::from_utf8_lossy(&output.stderr);
        CliError::Failed(format!("{} did not measure {}: {}", program.display(), bench.scenario.name(), said.trim()))
    };
    // A missed pass line is exit code 1, with a report all the same.
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|_| unreadable())?;
    if report["store"] != bench.target.name() {
        let (program, store) = (program.display(), bench.target.name());
        let message = format!(
            "{program} does not read {STORE_VARIABLE}, so it did not measure {store}; give a URL without a password, or \
             build it anew"
        );
        return Err(CliError::Failed(message));
    }
    report[figure.key()].as_f64().ok_or_else(unreadable)
}
