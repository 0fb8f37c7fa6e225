//! The command behind `cargo xtask faults`, and the processes it starts: the same program with a task in its
//! environment.

#![expect(clippy::print_stdout, reason = "a command that people run speaks on its standard output")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use windlass_faults::report::{RowResult, docs};
use windlass_faults::runner::{Plan, run};
use windlass_faults::sabotage::{OUTDATED, Sabotage};
use windlass_faults::{Profile, StoreKind, check, child, undone};

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
    /// Run nothing; judge the `history.json` that a row has left once more.
    #[arg(long, value_name = "FILE")]
    judge: Vec<PathBuf>,
    /// Also write the results into this page.
    #[arg(long)]
    docs: Option<PathBuf>,
    /// Break a promise on purpose, and succeed if the rows that should notice do: the name of one, or `all`.
    #[arg(long, value_parser = sabotages)]
    sabotage: Option<Sabotages>,
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

/// What to break, one after the other.
#[derive(Clone)]
struct Sabotages(Vec<Sabotage>);

fn sabotages(name: &str) -> Result<Sabotages, String> {
    match name {
        "all" => Ok(Sabotages(Sabotage::ALL.to_vec())),
        one => Sabotage::from_str(one, true).map(|sabotage| Sabotages(vec![sabotage])),
    }
}

/// Runs the matrix; false if a row failed, or, with sabotage, if none did.
fn faults(arguments: Arguments) -> Result<bool> {
    if !arguments.judge.is_empty() {
        return judge(&arguments.judge);
    }
    let seed = arguments.seed.unwrap_or_else(new_seed);
    let plan = Plan {
        seed,
        profile: arguments.profile,
        only: arguments.only,
        store: arguments.store,
        at_once: arguments.at_once,
        dir: arguments.out.join(format!("seed-{seed}")),
        sabotage: None,
    };
    println!("seed {seed}, profile {:?}", plan.profile);
    match arguments.sabotage {
        None => matrix(&plan, arguments.docs.as_deref()),
        Some(Sabotages(sabotages)) => {
            let mut missed = 0;
            for sabotage in sabotages {
                for store in [StoreKind::Postgres, StoreKind::Sqlite] {
                    let wanted = sabotage.is_for(store) && plan.store.is_none_or(|only| only == store);
                    missed += usize::from(wanted && !is_noticed(&plan, sabotage, store)?);
                }
            }
            Ok(missed == 0)
        }
    }
}

/// Judges saved histories once more; false if something is wrong with one.
fn judge(files: &[PathBuf]) -> Result<bool> {
    let mut good = true;
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let history = serde_json::from_str(&text).with_context(|| format!("read {}", file.display()))?;
        let verdict = check::check(&undone::without(history));
        println!("{}: {} violations", file.display(), verdict.violations.len());
        for violation in &verdict.violations {
            println!("       {} {}", violation.invariant, violation.text);
        }
        good &= verdict.violations.is_empty();
    }
    Ok(good)
}

/// Runs the rows of a plan; false if one failed.
fn matrix(plan: &Plan, page: Option<&Path>) -> Result<bool> {
    clear(plan)?;
    page.map_or(Ok(()), docs::check)?;
    let report = run(plan, say)?;
    page.map_or(Ok(()), |page| docs::update(page, &report))?;
    let count = |which: fn(&RowResult) -> bool| report.rows.iter().filter(|row| which(row)).count();
    let (passed, failed, facts) = (count(|row| row.passed), count(RowResult::failed), report.facts());
    println!(
        "{} faults, {} jobs submitted, {} lost, {} accepted from stale fences, longest recovery {:.1} s; see {}",
        report.rows.iter().map(|row| row.faults).sum::<u64>(),
        facts.submitted,
        facts.lost,
        facts.accepted_stale,
        facts.longest_recovery_us as f64 / 1e6,
        plan.dir.join("report.md").display()
    );
    println!("{} s", report.duration_ms / 1_000);
    println!("{passed} passed, {failed} failed");
    Ok(report.passed())
}

/// Runs the rows that must notice a sabotage of a store; true if one of them does.
fn is_noticed(plan: &Plan, sabotage: Sabotage, store: StoreKind) -> Result<bool> {
    let mut plan = plan.clone();
    plan.sabotage = Some(sabotage);
    plan.store = Some(store);
    plan.dir = plan.dir.with_file_name(format!("sabotage-{sabotage:?}-{}", store.name()));
    if plan.only.is_empty() {
        plan.only = sabotage.rows().iter().map(|row| (*row).to_owned()).collect();
    }
    clear(&plan)?;
    let report = run(&plan, |_| {})?;
    if let Some(error) =
        report.rows.iter().filter_map(|row| row.error.as_deref()).find(|error| error.contains(OUTDATED))
    {
        bail!("{sabotage:?} could not be applied: {error}");
    }
    let noticed: Vec<String> = report.rows.iter().filter(|row| row.failed()).map(noticed).collect();
    match noticed.is_empty() {
        true => println!("{sabotage:?} on {}: MISSED by {}", store.name(), plan.only.join(", ")),
        false => println!("{sabotage:?} on {}: noticed by {}", store.name(), noticed.join("; ")),
    }
    Ok(!noticed.is_empty())
}

/// Which row noticed, and by what.
fn noticed(row: &RowResult) -> String {
    let mut by: Vec<&str> = row.violations.iter().map(|violation| violation.invariant).collect();
    by.sort_unstable();
    by.dedup();
    by.extend(row.criteria.iter().filter(|criterion| !criterion.met).map(|criterion| criterion.what.as_str()));
    by.extend(row.error.as_deref());
    format!("{} ({})", row.id, by.join(", "))
}

fn clear(plan: &Plan) -> Result<()> {
    match plan.dir.exists() {
        true => std::fs::remove_dir_all(&plan.dir).with_context(|| format!("clear {}", plan.dir.display())),
        false => Ok(()),
    }
}

fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map(|time| time.as_secs());
    now.unwrap_or_default() % 1_000_000
}

/// One line for a row that has ended, and the reasons where it failed.
fn say(row: &RowResult) {
    /// More of them say no more; all are in the report.
    const SHOWN: usize = 5;
    let verdict = match (&row.waiting, row.passed) {
        (Some(reason), _) => format!("waits: {reason}"),
        (None, true) => format!("passed, {} faults, {} s", row.faults, row.duration_ms / 1_000),
        (None, false) => "FAILED".to_owned(),
    };
    println!("{:4} {:8} {}: {verdict}", row.id, row.store, row.title);
    if let Some(error) = &row.error {
        println!("       could not be run to its end: {error}");
    }
    for criterion in row.criteria.iter().filter(|criterion| !criterion.met) {
        println!("       wanted: {}; found: {}", criterion.what, criterion.found);
    }
    for violation in row.violations.iter().take(SHOWN) {
        println!("       {} {}", violation.invariant, violation.text);
    }
}
