//! The dashboard of Grafana asks for nothing that `docs/metrics.md` does not explain (API-6).

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

/// API-6.
#[test]
fn every_metric_of_the_dashboard_is_explained() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("deploy/grafana/windlass.json")).expect("the dashboard is JSON");
    let mut expressions = Vec::new();
    texts(&dashboard, "expr", &mut expressions);
    let words = expressions.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let metrics: BTreeSet<&str> = words
        .filter(|word| ["jobs_", "job_", "windlass_"].iter().any(|prefix| word.starts_with(prefix)))
        .map(|word| word.trim_end_matches("_bucket"))
        .collect();
    assert!(metrics.len() > 20, "{metrics:?}");
    let page = read("docs/metrics.md");
    let unknown: Vec<_> = metrics.iter().filter(|metric| !page.contains(&format!("`{metric}`"))).collect();
    assert!(unknown.is_empty(), "not in docs/metrics.md: {unknown:?}");
}
