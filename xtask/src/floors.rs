//! `cargo xtask bench --check`: measures the release build with `windlass bench` and compares its ratios to the raw
//! statements with the floors in `bench/floors.json`. Called by people and by the full tier of `test`. Ratios, because
//! both sides are measured in one run: a slow machine slows both.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use windlass_testkit::servers::{PostgresOptions, PostgresServer};

/// The lowest ratio that is accepted, by store and scenario.
type Floors = BTreeMap<String, BTreeMap<String, f64>>;

/// What a report of `windlass bench --json` says about one scenario, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Report {
    scenario: String,
    store: String,
    jobs_per_second: Option<f64>,
    ratio_to_raw: Option<f64>,
}

/// Builds, measures and compares; false if a ratio is below its floor.
pub(crate) fn check(root: &Path) -> Result<bool> {
    let floors: Floors = serde_json::from_str(&std::fs::read_to_string(root.join("bench/floors.json"))?)
        .context("read bench/floors.json")?;
    let program = build(root)?;
    // A server as users have it: what the disk costs is part of both sides.
    let server = PostgresServer::start(PostgresOptions::new().setting("max_connections", "100"))?;
    let directory = tempfile::tempdir().context("make a directory for SQLite")?;
    let mut passed = true;
    for (store, floors) in &floors {
        let url = match store.as_str() {
            "postgres" => server.admin_url(),
            _ => format!("sqlite:{}", directory.path().join("check.db").display()),
        };
        let scenarios: Vec<&str> = floors.keys().map(String::as_str).collect();
        for report in measure(&program, &url, &scenarios)? {
            passed &= judge(&report, floors)?;
        }
    }
    Ok(passed)
}

/// Builds the program users get, and says where it is.
fn build(root: &Path) -> Result<std::path::PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let built = cargo.current_dir(root).args(["build", "--release", "--package", "windlass-cli"]).status()?;
    ensure!(built.success(), "the release build failed");
    let own = std::env::current_exe().context("find the path of xtask")?;
    let target = own.parent().and_then(Path::parent).context("xtask lies in a target directory")?;
    Ok(target.join("release/windlass"))
}

fn measure(program: &Path, url: &str, scenarios: &[&str]) -> Result<Vec<Report>> {
    let mut command = Command::new(program);
    command.args(["bench", "--json", "--store", url, "--scenario", &scenarios.join(",")]);
    let output = command.stderr(Stdio::inherit()).output().context("start windlass bench")?;
    ensure!(output.status.success(), "windlass bench failed ({})", output.status);
    let lines = String::from_utf8(output.stdout).context("read what windlass bench says")?;
    lines.lines().map(|line| serde_json::from_str(line).with_context(|| format!("not a report: {line}"))).collect()
}

/// Prints how a scenario did; false if it is below its floor.
fn judge(report: &Report, floors: &BTreeMap<String, f64>) -> Result<bool> {
    let Report { scenario, store, jobs_per_second, ratio_to_raw } = report;
    let floor = *floors.get(scenario).with_context(|| format!("no floor for {scenario}"))?;
    let ratio = ratio_to_raw.with_context(|| format!("no raw statements were measured for {scenario} on {store}"))?;
    let verdict = if ratio >= floor { "ok" } else { "BELOW ITS FLOOR" };
    let rate = jobs_per_second.unwrap_or_default();
    println!("{store:<10} {scenario:<12} {rate:>9.0} jobs/s, {ratio:>5.2} of raw, floor {floor:.2}: {verdict}");
    Ok(ratio >= floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ratio: Option<f64>) -> Option<bool> {
        let report = Report { scenario: "drain".into(), store: "s".into(), jobs_per_second: None, ratio_to_raw: ratio };
        judge(&report, &BTreeMap::from([("drain".to_owned(), 0.5)])).ok()
    }

    #[test]
    fn a_ratio_below_its_floor_fails_and_one_on_it_passes() {
        assert_eq!([judged(Some(0.49)), judged(Some(0.5))], [Some(false), Some(true)]);
    }

    #[test]
    fn a_scenario_that_was_not_compared_is_an_error() {
        assert_eq!(judged(None), None);
    }
}
