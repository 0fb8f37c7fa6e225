//! `cargo xtask bench --check`: measures the build of the profile `dist` with `windlass bench` and compares it with the bounds in
//! `bench/floors.json`: a floor of the ratio to the raw statements, or ceilings of other figures. Called by people and by the
//! full tier of `test`. Ratios and counts, because a slow machine changes neither.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use windlass_testkit::servers::{PostgresOptions, PostgresServer};

/// What is accepted, by store and scenario.
type Bounds = BTreeMap<String, BTreeMap<String, Bound>>;

/// What is accepted of one scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Bound {
    /// The lowest ratio to the raw statements.
    Floor(f64),
    /// The highest value of each of these figures, by their keys in a report.
    Ceilings(BTreeMap<String, f64>),
}

/// Builds, measures and compares; false if a bound is not kept.
pub(crate) fn check(root: &Path) -> Result<bool> {
    let bounds: Bounds = serde_json::from_str(&std::fs::read_to_string(root.join("bench/floors.json"))?)
        .context("read bench/floors.json")?;
    let program = crate::dist::build(root)?;
    // A server as users have it: what the disk costs is part of both sides.
    let server = PostgresServer::start(PostgresOptions::new().setting("max_connections", "100"))?;
    let directory = tempfile::tempdir().context("make a directory for SQLite")?;
    let mut passed = true;
    for (store, bounds) in &bounds {
        let url = match store.as_str() {
            "postgres" => server.admin_url(),
            _ => format!("sqlite:{}", directory.path().join("check.db").display()),
        };
        let scenarios: Vec<&str> = bounds.keys().map(String::as_str).collect();
        for report in measure(&program, &url, &scenarios)? {
            passed &= judge(&report, bounds)?;
        }
    }
    Ok(passed)
}

fn measure(program: &Path, url: &str, scenarios: &[&str]) -> Result<Vec<Value>> {
    let mut command = Command::new(program);
    command.args(["bench", "--json", "--store", url, "--scenario", &scenarios.join(",")]);
    let output = command.stderr(Stdio::inherit()).output().context("start windlass bench")?;
    ensure!(output.status.success(), "windlass bench failed ({})", output.status);
    let lines = String::from_utf8(output.stdout).context("read what windlass bench says")?;
    lines.lines().map(|line| serde_json::from_str(line).with_context(|| format!("not a report: {line}"))).collect()
}

/// Prints how a scenario did; false if a bound is not kept.
fn judge(report: &Value, bounds: &BTreeMap<String, Bound>) -> Result<bool> {
    let (scenario, store) = (report["scenario"].as_str().unwrap_or("?"), report["store"].as_str().unwrap_or("?"));
    let figure =
        |key: &str| report[key].as_f64().with_context(|| format!("no {key} was measured for {scenario} on {store}"));
    match bounds.get(scenario).with_context(|| format!("no bound for {scenario}"))? {
        Bound::Floor(floor) => {
            let (ratio, rate) = (figure("ratio_to_raw")?, figure("jobs_per_second").unwrap_or_default());
            let kept = ratio >= *floor;
            let verdict = if kept { "ok" } else { "BELOW ITS FLOOR" };
            println!("{store:<10} {scenario:<12} {rate:>9.0} jobs/s, {ratio:>5.2} of raw, floor {floor:.2}: {verdict}");
            Ok(kept)
        }
        Bound::Ceilings(ceilings) => {
            ensure!(!ceilings.is_empty(), "no figure is named for {scenario} on {store}");
            let mut all_kept = true;
            for (key, ceiling) in ceilings {
                let value = figure(key)?;
                let kept = value <= *ceiling;
                let verdict = if kept { "ok" } else { "ABOVE ITS CEILING" };
                println!("{store:<10} {scenario:<12} {value:>9.2} {key}, ceiling {ceiling:.2}: {verdict}");
                all_kept &= kept;
            }
            Ok(all_kept)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a report comes to beside a bound as it stands in the file; none if it cannot be judged.
    fn judged(report: Value, bound: Value) -> Option<bool> {
        let mut report = report;
        (report["scenario"], report["store"]) = ("drain".into(), "s".into());
        let bound = serde_json::from_value(bound).expect("a bound");
        judge(&report, &BTreeMap::from([("drain".to_owned(), bound)])).ok()
    }

    #[test]
    fn a_ratio_below_its_floor_fails_and_one_on_it_passes() {
        let judged = |ratio: f64| judged(json!({ "ratio_to_raw": ratio }), json!(0.5));
        assert_eq!([judged(0.49), judged(0.5)], [Some(false), Some(true)]);
    }

    #[test]
    fn a_figure_above_its_ceiling_fails_and_one_on_it_passes() {
        let judged =
            |queries: f64| judged(json!({ "queries_per_second": queries }), json!({ "queries_per_second": 2 }));
        assert_eq!([judged(2.01), judged(2.0)], [Some(false), Some(true)]);
    }

    #[test]
    fn a_scenario_that_was_not_measured_is_an_error() {
        assert_eq!(judged(json!({ "ratio_to_raw": null }), json!(0.5)), None);
        assert_eq!(judged(json!({}), json!({ "queries_per_second": 2 })), None);
        assert_eq!(judged(json!({}), json!({})), None);
    }

    /// The file that `check` reads: every store has the scenarios that people feel, and an idle node its ceiling.
    #[test]
    fn the_bounds_of_this_repository_can_be_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/floors.json");
        let bounds: Bounds = serde_json::from_str(&std::fs::read_to_string(path).expect("is there")).expect("bounds");
        for store in ["postgres", "sqlite"] {
            for scenario in ["submit", "submit-bulk", "drain", "end-to-end"] {
                assert!(matches!(bounds[store][scenario], Bound::Floor(_)), "{store} {scenario}");
            }
        }
        let Bound::Ceilings(idle) = &bounds["postgres"]["idle"] else { panic!("no ceiling") };
        assert!(idle["queries_per_second"] <= 2.0, "{idle:?}");
    }
}
