//! From the runs of a peer to the figures of the table: medians over repeats, and ratios to Windlass. Pure; called by
//! `report` and `plot`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::plan::{Bench, Peer, Store};

/// One run: its figures, or why there are none.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) peer: &'static str,
    #[serde(serialize_with = "by_name")]
    pub(crate) bench: Bench,
    pub(crate) repeat: usize,
    pub(crate) words: String,
    pub(crate) figures: Option<Value>,
    pub(crate) failure: Option<String>,
}

fn by_name<S: serde::Serializer>(bench: &Bench, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(bench.name())
}

/// What the repeats of one bench of one peer come to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// The median of each metric.
    pub(crate) medians: BTreeMap<&'static str, f64>,
    /// The lowest and the highest value of the first metric.
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
    /// How many runs gave figures.
    pub(crate) runs: usize,
    /// Jobs of a run.
    pub(crate) jobs: u64,
    /// Jobs that were not done at the cap, and starts of jobs that had started before: the most of any run.
    pub(crate) unfinished: u64,
    pub(crate) repeated: u64,
}

/// The metrics of a bench; the first is the one it is known by.
pub(crate) fn metrics(bench: Bench) -> &'static [&'static str] {
    match bench {
        Bench::Bulk | Bench::Enqueue16 | Bench::Enqueue64 | Bench::Drain => &["jobs_per_second"],
        Bench::Latency => &["p50_ms", "p99_ms"],
        Bench::Held => &["ratio", "free_per_second", "held_per_second"],
    }
}

/// The summary of a peer's bench, or why there is none: the reason the peer gave, or that of the last failure.
pub(crate) fn summarise(runs: &[Run], peer: &str, bench: Bench) -> Result<Summary, String> {
    let mine: Vec<&Run> = runs.iter().filter(|run| run.peer == peer && run.bench == bench).collect();
    let figures: Vec<&Value> = mine.iter().filter_map(|run| run.figures.as_ref()).collect();
    if let Some(reason) = figures.iter().find_map(|figures| figures["skipped"].as_str()) {
        return Err(reason.to_owned());
    }
    let values = |metric: &str| -> Vec<f64> { figures.iter().filter_map(|run| run[metric].as_f64()).collect() };
    let medians: BTreeMap<&'static str, f64> =
        metrics(bench).iter().filter_map(|metric| Some((*metric, median(&values(metric))?))).collect();
    let known_by = values(metrics(bench)[0]);
    if known_by.is_empty() {
        let failure = mine.iter().rev().find_map(|run| run.failure.clone());
        return Err(failure.unwrap_or_else(|| "was not run".to_owned()));
    }
    let most = |key: &str| figures.iter().filter_map(|run| run[key].as_u64()).max().unwrap_or(0);
    Ok(Summary {
        medians,
        lowest: known_by.iter().copied().fold(f64::INFINITY, f64::min),
        highest: known_by.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        runs: known_by.len(),
        jobs: most("n"),
        unfinished: most("unfinished"),
        repeated: most("repeated"),
    })
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// How many times better Windlass does than a peer: above one, Windlass is ahead. None where that means nothing.
pub(crate) fn times_better(bench: Bench, windlass: f64, peer: f64) -> Option<f64> {
    let ratio = match bench {
        Bench::Latency => peer / windlass,
        Bench::Held => return None,
        _ => windlass / peer,
    };
    ratio.is_finite().then_some(ratio)
}

/// The name of Windlass on the same kind of store.
pub(crate) fn windlass_on(store: Store) -> &'static str {
    match store {
        Store::Postgres => "windlass-postgres",
        Store::File => "windlass-sqlite",
    }
}

pub(crate) fn is_windlass(peer: &Peer) -> bool {
    peer.name == windlass_on(peer.store)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(bench: Bench, figures: Value) -> Run {
        Run { peer: "p", bench, repeat: 1, words: String::new(), figures: Some(figures), failure: None }
    }

    fn failed(reason: &str) -> Run {
        let failure = Some(reason.to_owned());
        Run { peer: "p", bench: Bench::Drain, repeat: 1, words: String::new(), figures: None, failure }
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_summary_keeps_the_range_and_the_worst_flaws() {
        let runs = [
            run(Bench::Drain, json!({"n": 10, "jobs_per_second": 100.0, "unfinished": 0, "repeated": 0})),
            run(Bench::Drain, json!({"n": 10, "jobs_per_second": 300.0, "unfinished": 2, "repeated": 1})),
            failed("was killed after 9 s"),
            run(Bench::Drain, json!({"n": 10, "jobs_per_second": 250.0})),
            run(Bench::Bulk, json!({"n": 10, "jobs_per_second": 9.0})),
        ];
        let summary = summarise(&runs, "p", Bench::Drain).expect("three runs have figures");
        assert_eq!(summary.medians["jobs_per_second"], 250.0);
        assert_eq!((summary.lowest, summary.highest, summary.runs), (100.0, 300.0, 3));
        assert_eq!((summary.jobs, summary.unfinished, summary.repeated), (10, 2, 1));
    }

    #[test]
    fn where_there_are_no_figures_there_is_a_reason() {
        let check = |runs: &[Run], reason: &str| {
            assert_eq!(summarise(runs, "p", Bench::Drain), Err(reason.to_owned()));
        };
        check(&[failed("first"), failed("last")], "last");
        check(&[run(Bench::Drain, json!({"skipped": "has no bulk call"}))], "has no bulk call");
        check(&[], "was not run");
    }

    #[test]
    fn above_one_windlass_is_ahead() {
        assert_eq!(times_better(Bench::Drain, 300.0, 100.0), Some(3.0));
        assert_eq!(times_better(Bench::Latency, 2.0, 1.0), Some(0.5));
        assert_eq!(times_better(Bench::Drain, 300.0, 0.0), None);
        assert_eq!(times_better(Bench::Held, 1.0, 0.5), None);
    }
}
