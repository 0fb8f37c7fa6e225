//! The command behind `cargo xtask faults`, and the processes it starts: the same program with a task in its
//! environment.

#![expect(clippy::print_stdout, reason = "a command that people run speaks on its standard output")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Parser;
use windlass_faults::runner::{End, Judged, Plan, run};
use windlass_faults::sabotage::Sabotage;
use windlass_faults::{Profile, StoreKind, child};

/// Brings faults about on real processes and databases, and checks what happened.
#[derive(Parser)]
#[command(name = "cargo xtask faults")]
struct Arguments {
    /// Decides everything that is left to chance; a new one by default.
    #[arg(long)]
    seed: Option<u64>,
    /// How much: minutes, an hour, or hours.
    #[arg(long, value_enum, default_value_t = Profile::Short)]
    profile: Profile,
    /// Only these rows, such as F17,F18.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only `postgres` or `sqlite`.
    #[arg(long, value_parser = store)]
    store: Option<StoreKind>,
    /// Rows at once. Most of them wait most of the time.
    #[arg(long, default_value_t = 6)]
    at_once: usize,
    /// Where the report and everything the rows leave goes.
    #[arg(long, default_value = "target/faults")]
    out: PathBuf,
    /// Break a promise on purpose; the command then succeeds if the matrix notices.
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,
}

fn main() -> ExitCode {
    let done = match std::env::var(child::TASK_VAR) {
        Ok(task) => serde_json::from_str(&task).context("read the task").and_then(child::run).map(|()| true),
        Err(_) => faults(Arguments::parse()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn store(name: &str) -> Result<StoreKind, String> {
    match name {
        "postgres" => Ok(StoreKind::Postgres),
        "sqlite" => Ok(StoreKind::Sqlite),
        _ => Err("known are postgres and sqlite".into()),
    }
}

/// Runs the matrix; false if a row failed, or, with sabotage, if none did.
fn faults(arguments: Arguments) -> Result<bool> {
    let seed = arguments.seed.unwrap_or_else(new_seed);
    let plan = Plan {
        seed,
        profile: arguments.profile,
        only: arguments.only,
        store: arguments.store,
        at_once: arguments.at_once,
        dir: arguments.out.join(format!("seed-{seed}")),
        sabotage: arguments.sabotage,
    };
    if plan.dir.exists() {
        std::fs::remove_dir_all(&plan.dir).with_context(|| format!("clear {}", plan.dir.display()))?;
    }
    println!("seed {seed}, profile {:?}", plan.profile);
    let started = Instant::now();
    let rows = run(&plan, say)?;
    let failed = rows.iter().filter(|row| row.failed()).count();
    let passed = rows.iter().filter(|row| row.passed()).count();
    println!("{passed} passed, {failed} failed in {:.0} s", started.elapsed().as_secs_f64());
    Ok(match plan.sabotage {
        None => failed == 0,
        Some(_) => failed > 0,
    })
}

fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map(|time| time.as_secs());
    now.unwrap_or_default() % 1_000_000
}

/// One line for a row that has ended, and the reasons where it failed.
fn say(row: &Judged) {
    let store = row.store.map_or("", StoreKind::name);
    let took = row.took.as_secs_f64();
    let head = format!("{:4} {store:8}", row.id);
    match &row.end {
        End::Waits(reason) => println!("{head} waits     {} ({reason})", row.title),
        End::Skipped(reason) => println!("{head} skipped   {} ({reason})", row.title),
        End::Broke(error) => println!("{head} BROKE     {} after {took:.0} s: {error}", row.title),
        End::Ran(ran) if row.passed() => {
            println!("{head} passed    {} ({took:.0} s, {} faults)", row.title, ran.faults);
        }
        End::Ran(ran) => {
            println!("{head} FAILED    {} ({took:.0} s), see {}", row.title, row.dir.display());
            for criterion in ran.criteria.iter().filter(|criterion| !criterion.met) {
                println!("       not met: {}: {}", criterion.what, criterion.found);
            }
            for violation in ran.violations.iter().take(5) {
                println!("       {violation:?}");
            }
        }
    }
}
