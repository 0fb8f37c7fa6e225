//! The dashboard of Grafana shows everything that `docs/metrics.md` explains, and nothing else (API-6).

use std::collections::BTreeSet;
use std::path::Path;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every string under a key, however deep.
fn texts<'a>(value: &'a serde_json::Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
            Some(text) if name == key => found.push(text),
            _ => texts(value, key, found),
        }),
        serde_json::Value::Array(values) => values.iter().for_each(|value| texts(value, key, found)),
        _ => {}
    }
}

/// The metrics that the dashboard asks for.
fn shown() -> BTreeSet<String> {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("deploy/grafana/windlass.json")).expect("the dashboard is JSON");
    let mut expressions = Vec::new();
    texts(&dashboard, "expr", &mut expressions);
    let words = expressions.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.filter(|word| is_metric(word)).map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

fn is_metric(word: &str) -> bool {
    ["jobs_", "job_", "windlass_"].iter().any(|prefix| word.starts_with(prefix))
}

/// API-6.
#[test]
fn every_metric_of_the_dashboard_is_explained() {
    let metrics = shown();
    assert!(metrics.len() > 20, "{metrics:?}");
    let page = read("docs/metrics.md");
    let unknown: Vec<_> = metrics.iter().filter(|metric| !page.contains(&format!("`{metric}`"))).collect();
    assert!(unknown.is_empty(), "not in docs/metrics.md: {unknown:?}");
}

/// What another metric shows as well: `jobs_backlog` without its queue.
const SHOWN_BY_ANOTHER: [&str; 1] = ["job_queue_depth"];

/// API-6: under its first name; the other names of a row have the same value.
#[test]
fn every_metric_that_is_explained_is_on_the_dashboard() {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let explained: BTreeSet<&str> = rows.flat_map(|cell| cell.split('`')).filter(|word| is_metric(word)).collect();
    assert!(explained.len() > 20, "{explained:?}");
    let shown = shown();
    let is_missing = |name: &&&str| !shown.contains(**name) && !SHOWN_BY_ANOTHER.contains(*name);
    let missing: Vec<_> = explained.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "not on the dashboard: {missing:?}");
}
