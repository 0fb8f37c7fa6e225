//! `/metrics` against its documentation: every name with its labels, in both directions.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde_json::json;

use crate::rig::Rig;

const DOCUMENTED: &str = include_str!("../../../../docs/metrics.md");

/// What only some stores have, as the page says.
const MAY_BE_ABSENT: [&str; 3] = ["windlass_dead_rows", "windlass_notify_queue_use", "windlass_database_bytes"];

/// The names that other systems' dashboards ask for (API-6, API-9).
const ASKED_FOR: [&str; 16] = [
    "jobs_cancelled_total",
    "jobs_completed_total",
    "jobs_dead_lettered_total",
    "jobs_dlq_size",
    "jobs_duration_seconds",
    "jobs_enqueued_total",
    "jobs_failed_total",
    "jobs_processing_seconds",
    "jobs_queue_depth",
    "jobs_retried_total",
    "jobs_wait_duration_seconds",
    "jobs_submitted_total",
    "job_duration_seconds",
    "job_queue_depth",
    "job_retries_total",
    "jobs_cleaned_total",
];

type Names = BTreeMap<String, BTreeSet<String>>;

/// API-6, API-9: what is served is what docs/metrics.md lists, each name with its labels, and nothing else.
pub(crate) async fn metrics_are_exactly_those_documented(rig: &Rig) {
    let id = rig.submit("echo", json!(1), json!({})).await;
    rig.wait_for(&id, "succeeded").await;
    let request = rig.client.request(Method::GET, format!("{}/metrics", rig.url)).bearer_auth(&rig.operator);
    let text = request.send().await.expect("an answer").text().await.expect("text");
    let (served, documented) = (served(&text), documented());
    for (name, labels) in &served {
        let listed = documented.get(name).unwrap_or_else(|| panic!("{name} is served and not documented"));
        assert!(labels.is_empty() || labels == listed, "{name} has the labels {labels:?}, documented are {listed:?}");
    }
    for name in documented.keys().filter(|name| !MAY_BE_ABSENT.contains(&name.as_str())) {
        assert!(served.contains_key(name), "{name} is documented and not served");
    }
    for name in ASKED_FOR {
        assert!(documented.contains_key(name), "{name} is not documented");
    }
    let value = |name: &str| text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(' ').nth(1));
    let labels = "{handler=\"echo\",priority=\"normal\"}";
    assert_eq!(value(&format!("jobs_enqueued_total{labels}")), Some("1"), "{text}");
    assert_eq!(value(&format!("job_duration_seconds_count{labels}")), Some("1"), "{text}");
}

/// Every family of an answer, with the labels of its samples.
fn served(text: &str) -> Names {
    let mut names = Names::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().expect("a name").to_owned();
            names.entry(family.clone()).or_default();
        } else if let Some((_, labels)) = line.split_once('{')
            && !line.starts_with('#')
        {
            let labels = labels.split("\",").map(|label| label.split('=').next().unwrap_or_default().to_owned());
            names.get_mut(&family).expect("a type before its samples").extend(labels.filter(|label| label != "le"));
        }
    }
    names
}

/// Every name of the page's tables, with its labels.
fn documented() -> Names {
    let mut names = Names::new();
    let mut has_aliases = false;
    for line in DOCUMENTED.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match cells[0] {
            "name" => has_aliases = cells[1] == "also as",
            first if first.starts_with("`job") || first.starts_with("`cron_") || first.starts_with("`windlass_") => {
                let (aliases, labels) = if has_aliases { (cells[1], cells[2]) } else { ("", cells[1]) };
                let labels: BTreeSet<String> =
                    labels.split(", ").filter(|label| !label.is_empty()).map(str::to_owned).collect();
                let all = first.split('`').chain(aliases.split('`')).filter(|name| name.contains('_'));
                all.for_each(|name| drop(names.insert(name.to_owned(), labels.clone())));
            }
            _ => {}
        }
    }
    names
}
