//! The figures of a measurement: their stable names, how several runs become one, and how they are shown. Filled by the
//! scenarios, printed by `bench::run`. Never measures.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::Cell;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::output::{Out, number};

/// One measured number. The order is the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Figure {
    JobsPerSecond,
    RawJobsPerSecond,
    RawP50,
    RatioToRaw,
    RatioSpread,
    Other,
    RatioToOther,
    BaselineJobsPerSecond,
    RatioToBaseline,
    BaselineP50,
    BaselineP99,
    P99RatioToBaseline,
    WorstSecond,
    LeftOver,
    P50,
    P95,
    P99,
    Max,
    SubmitP50,
    SubmitP95,
    SubmitP99,
    SubmitMax,
    ReadsPerSecond,
    ReadP50,
    ReadP95,
    ReadP99,
    ReadMax,
    Watchers,
    Errors,
    CpuPerJob,
    ServerCpuPerJob,
    WalPerJob,
    CommitsPerJob,
    DeadTuples,
    BytesPerFinishedJob,
    QueriesPerSecond,
    CpuPerSecond,
    MemoryBefore,
    Memory,
    StartMs,
    OtherCpu,
}

impl Figure {
    /// Every figure, in the order of the table.
    pub(crate) const ALL: [Figure; 41] = [
        Figure::JobsPerSecond,
        Figure::RawJobsPerSecond,
        Figure::RawP50,
        Figure::RatioToRaw,
        Figure::RatioSpread,
        Figure::Other,
        Figure::RatioToOther,
        Figure::BaselineJobsPerSecond,
        Figure::RatioToBaseline,
        Figure::BaselineP50,
        Figure::BaselineP99,
        Figure::P99RatioToBaseline,
        Figure::WorstSecond,
        Figure::LeftOver,
        Figure::P50,
        Figure::P95,
        Figure::P99,
        Figure::Max,
        Figure::SubmitP50,
        Figure::SubmitP95,
        Figure::SubmitP99,
        Figure::SubmitMax,
        Figure::ReadsPerSecond,
        Figure::ReadP50,
        Figure::ReadP95,
        Figure::ReadP99,
        Figure::ReadMax,
        Figure::Watchers,
        Figure::Errors,
        Figure::CpuPerJob,
        Figure::ServerCpuPerJob,
        Figure::WalPerJob,
        Figure::CommitsPerJob,
        Figure::DeadTuples,
        Figure::BytesPerFinishedJob,
        Figure::QueriesPerSecond,
        Figure::CpuPerSecond,
        Figure::MemoryBefore,
        Figure::Memory,
        Figure::StartMs,
        Figure::OtherCpu,
    ];

    /// Its key in JSON, which scripts rely on; its words for people; how many decimals are worth showing.
    fn about(self) -> (&'static str, &'static str, usize) {
        match self {
            Figure::JobsPerSecond => ("jobs_per_second", "jobs/s", 0),
            Figure::RawJobsPerSecond => ("raw_jobs_per_second", "raw statements, jobs/s", 0),
            Figure::RawP50 => ("raw_p50_ms", "raw INSERT p50, ms", 3),
            Figure::RatioToRaw => ("ratio_to_raw", "ratio to raw", 3),
            Figure::RatioSpread => ("ratio_spread", "spread of that ratio, ±", 3),
            Figure::Other => ("other_build", "the other build, same figure", 2),
            Figure::RatioToOther => ("ratio_to_other_build", "ratio to the other build", 3),
            Figure::BaselineJobsPerSecond => ("baseline_jobs_per_second", "without stress, jobs/s", 0),
            Figure::RatioToBaseline => ("ratio_to_baseline", "ratio to without", 2),
            Figure::BaselineP50 => ("baseline_p50_ms", "without stress, wait p50, ms", 3),
            Figure::BaselineP99 => ("baseline_p99_ms", "without stress, wait p99, ms", 3),
            Figure::P99RatioToBaseline => ("p99_ratio_to_baseline", "wait p99, ratio to without", 2),
            Figure::WorstSecond => ("worst_second_ratio_to_baseline", "worst second, ratio to without", 2),
            Figure::LeftOver => ("left_over", "jobs not removed in time", 0),
            Figure::P50 => ("p50_ms", "wait p50, ms", 3),
            Figure::P95 => ("p95_ms", "wait p95, ms", 3),
            Figure::P99 => ("p99_ms", "wait p99, ms", 3),
            Figure::Max => ("max_ms", "wait max, ms", 3),
            Figure::SubmitP50 => ("submit_p50_ms", "submit p50, ms", 3),
            Figure::SubmitP95 => ("submit_p95_ms", "submit p95, ms", 3),
            Figure::SubmitP99 => ("submit_p99_ms", "submit p99, ms", 3),
            Figure::SubmitMax => ("submit_max_ms", "submit max, ms", 3),
            Figure::ReadsPerSecond => ("reads_per_second", "status reads/s", 0),
            Figure::ReadP50 => ("read_p50_ms", "status read p50, ms", 3),
            Figure::ReadP95 => ("read_p95_ms", "status read p95, ms", 3),
            Figure::ReadP99 => ("read_p99_ms", "status read p99, ms", 3),
            Figure::ReadMax => ("read_max_ms", "status read max, ms", 3),
            Figure::Watchers => ("watchers", "watchers with events", 0),
            Figure::Errors => ("errors", "requests that failed", 0),
            Figure::CpuPerJob => ("cpu_us_per_job", "CPU per job, µs", 1),
            Figure::ServerCpuPerJob => ("server_cpu_us_per_job", "server CPU per job, µs", 1),
            Figure::WalPerJob => ("wal_bytes_per_job", "WAL per job, bytes", 0),
            Figure::CommitsPerJob => ("commits_per_job", "commits per job", 4),
            Figure::DeadTuples => ("dead_tuples", "dead tuples", 0),
            Figure::BytesPerFinishedJob => ("bytes_per_finished_job", "bytes per finished job", 0),
            Figure::QueriesPerSecond => ("queries_per_second", "queries/s", 2),
            Figure::CpuPerSecond => ("cpu_ms_per_second", "CPU per second, ms", 2),
            Figure::MemoryBefore => ("baseline_memory_bytes", "memory without, bytes", 0),
            Figure::Memory => ("memory_bytes", "memory, bytes", 0),
            Figure::StartMs => ("start_ms", "start, ms", 1),
            Figure::OtherCpu => ("other_cpu_ratio", "machine busy with other work", 2),
        }
    }

    pub(crate) fn key(self) -> &'static str {
        self.about().0
    }

    /// Whether more of it is better; not asked of ratios, which go as what they compare.
    fn is_rate(self) -> bool {
        matches!(self, Figure::JobsPerSecond | Figure::ReadsPerSecond)
    }
}

/// Which way a ratio is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Better {
    Higher,
    Lower,
}

impl Better {
    /// As it stands beside a ratio in the table.
    fn arrow(self) -> &'static str {
        match self {
            Better::Higher => "↑",
            Better::Lower => "↓",
        }
    }
}

/// The figures of one run. One that was tried and could not be had is there without a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures(BTreeMap<Figure, Option<f64>>);

impl Figures {
    /// Writes a figure down.
    pub(crate) fn set(&mut self, figure: Figure, value: impl Into<Option<f64>>) {
        self.0.insert(figure, value.into().filter(|value| value.is_finite()));
    }

    pub(crate) fn get(&self, figure: Figure) -> Option<f64> {
        self.0.get(&figure).copied().flatten()
    }

    /// The rate of so many jobs in such a time.
    pub(crate) fn rate(&mut self, jobs: u64, took: Duration) {
        self.set(Figure::JobsPerSecond, jobs as f64 / took.as_secs_f64());
    }

    /// How long jobs waited, from the call to submit to the start of their handler.
    pub(crate) fn waits(&mut self, waits: &Histogram<u64>) {
        self.percentiles(waits, [Figure::P50, Figure::P95, Figure::P99, Figure::Max]);
    }

    /// How long calls to submit took.
    pub(crate) fn submits(&mut self, submits: &Histogram<u64>) {
        self.percentiles(submits, [Figure::SubmitP50, Figure::SubmitP95, Figure::SubmitP99, Figure::SubmitMax]);
    }

    /// How long reads of a status took.
    pub(crate) fn reads(&mut self, reads: &Histogram<u64>) {
        self.percentiles(reads, [Figure::ReadP50, Figure::ReadP95, Figure::ReadP99, Figure::ReadMax]);
    }

    fn percentiles(&mut self, times: &Histogram<u64>, [p50, p95, p99, max]: [Figure; 4]) {
        let ms = |nanos: u64| (!times.is_empty()).then_some(nanos as f64 / 1e6);
        self.set(p50, ms(times.value_at_quantile(0.50)));
        self.set(p95, ms(times.value_at_quantile(0.95)));
        self.set(p99, ms(times.value_at_quantile(0.99)));
        self.set(max, ms(times.max()));
    }

    /// The ratio of two figures, as a third.
    pub(crate) fn ratio(&mut self, ratio: Figure, of: Figure, to: Figure) {
        let value = self.get(of).zip(self.get(to)).map(|(of, to)| of / to);
        self.set(ratio, value);
    }

    /// Whether a figure belongs to the run, known or not.
    pub(crate) fn has(&self, figure: Figure) -> bool {
        self.0.contains_key(&figure)
    }

    /// The median of each figure over several runs; of two, their mean.
    pub(crate) fn median(runs: &[Figures]) -> Figures {
        let mut medians = Figures::default();
        for figure in Figure::ALL {
            if runs.iter().any(|run| run.0.contains_key(&figure)) {
                medians.set(figure, median(runs.iter().filter_map(|run| run.get(figure)).collect()));
            }
        }
        medians
    }
}

impl Figures {
    /// How far the ratios of single turns lie from their median: half of them at most this far.
    pub(crate) fn spread(runs: &[Figures], figure: Figure) -> Option<f64> {
        let values: Vec<f64> = runs.iter().filter_map(|run| run.get(figure)).collect();
        let middle = median(values.clone())?;
        median(values.into_iter().map(|value| (value - middle).abs()).collect())
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// A histogram of times in nanoseconds, to about a microsecond and with three digits.
pub(crate) fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, LONGEST.as_nanos() as u64, 3).expect("the bounds are in order")
}

/// Longer than any time measured here; what takes longer still counts as this.
const LONGEST: Duration = Duration::from_secs(3_600);

/// What a scenario found.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) scenario: &'static str,
    pub(crate) store: &'static str,
    pub(crate) jobs: u64,
    pub(crate) figures: Figures,
    /// The pass line, where the scenario has one, and whether it was reached.
    pub(crate) goal: Option<(&'static str, bool)>,
    /// How it went over time, where that is worth knowing.
    pub(crate) windows: Vec<Window>,
}

/// A part of a run.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Window {
    /// Whether the stress was on.
    pub(crate) stressed: bool,
    /// Seconds since the load began.
    pub(crate) second: u64,
    pub(crate) jobs_per_second: f64,
    pub(crate) p99_ms: Option<f64>,
}

impl Report {
    /// Which way its ratio is good: a ratio of rates when it is high, one of times or costs when it is low.
    fn better(&self, ratio: Figure) -> Option<Better> {
        let has = |figure| self.figures.has(figure);
        let is_high_good = match ratio {
            Figure::RatioToRaw => !has(Figure::RawP50),
            // The figure that was compared is the only other one.
            Figure::RatioToOther => Figure::ALL.into_iter().any(|figure| figure.is_rate() && has(figure)),
            Figure::RatioToBaseline | Figure::WorstSecond => true,
            Figure::P99RatioToBaseline => false,
            _ => return None,
        };
        has(ratio).then_some(if is_high_good { Better::Higher } else { Better::Lower })
    }

    /// For scripts. Every key is always there; what is not known is null.
    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("scenario".into(), json!(self.scenario));
        object.insert("store".into(), json!(self.store));
        object.insert("jobs".into(), json!(self.jobs));
        for figure in Figure::ALL {
            object.insert(figure.key().into(), json!(self.figures.get(figure)));
        }
        let better = |figure: Figure| Some((figure.key().to_owned(), json!(self.better(figure)?)));
        object.insert("better".into(), Value::Object(Figure::ALL.into_iter().filter_map(better).collect()));
        object.insert("goal".into(), json!(self.goal.map(|(goal, _)| goal)));
        object.insert("passed".into(), json!(self.goal.map(|(_, passed)| passed)));
        object.insert("windows".into(), json!(self.windows));
        Value::Object(object)
    }
}

/// Prints the reports: an object per line for scripts, a column per scenario for people.
pub(crate) fn print(reports: &[Report], out: &Out) -> Result {
    if out.wants_json() {
        return reports.iter().try_for_each(|report| out.json(&report.json()));
    }
    let mut columns = vec!["FIGURE"];
    columns.extend(reports.iter().map(|report| report.scenario));
    let mut table = out.table(&columns);
    let texts = |name: &str, value: &dyn Fn(&Report) -> String| {
        let mut row = vec![Cell::new(name)];
        row.extend(reports.iter().map(|report| number(value(report))));
        row
    };
    table.add_row(texts("store", &|report| report.store.to_owned()));
    table.add_row(texts("jobs", &|report| with_separators(report.jobs as f64, 0)));
    for figure in Figure::ALL {
        if reports.iter().any(|report| report.figures.0.contains_key(&figure)) {
            let (_, words, digits) = figure.about();
            table.add_row(texts(words, &|report| match report.figures.0.get(&figure) {
                None => String::new(),
                Some(None) => "–".to_owned(),
                Some(Some(value)) => match report.better(figure) {
                    Some(better) => format!("{} {}", with_separators(*value, digits), better.arrow()),
                    None => with_separators(*value, digits),
                },
            }));
        }
    }
    if reports.iter().any(|report| report.goal.is_some()) {
        table.add_row(texts("passed", &|report| match report.goal {
            None => String::new(),
            Some((_, true)) => "yes".to_owned(),
            Some((_, false)) => "NO".to_owned(),
        }));
    }
    out.print_table(table, 0)?;
    if reports.iter().any(|report| Figure::ALL.into_iter().any(|figure| report.better(figure).is_some())) {
        out.say("ratios: ↑ higher is better, ↓ lower is better");
    }
    for report in reports {
        if let Some((goal, _)) = report.goal {
            out.say(format_args!("{}: passes if {goal}", report.scenario));
        }
    }
    Ok(())
}

/// `1234567.8` as `1,234,567.8`.
fn with_separators(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut grouped = String::new();
    for (at, c) in text.char_indices() {
        if at > 0 && at < whole && (whole - at) % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(c);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_for_reading() {
        let shown = [(0.0, 0), (999.0, 0), (1000.0, 0), (1_234_567.89, 1), (-1234.0, 0), (0.1234, 3)];
        let shown = shown.map(|(value, digits)| with_separators(value, digits));
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567.9", "-1,234", "0.123"]);
    }

    #[test]
    fn the_median_leaves_outliers_and_gaps_alone() {
        let run = |rate: Option<f64>| {
            let mut figures = Figures::default();
            figures.set(Figure::JobsPerSecond, rate);
            figures
        };
        let of = |rates: &[Option<f64>]| {
            Figures::median(&rates.iter().copied().map(run).collect::<Vec<_>>()).get(Figure::JobsPerSecond)
        };
        assert_eq!(of(&[Some(3.0), Some(900.0), Some(1.0)]), Some(3.0));
        assert_eq!(of(&[Some(1.0), Some(2.0)]), Some(1.5));
        assert_eq!(of(&[None, Some(2.0)]), Some(2.0));
        assert_eq!(of(&[None]), None);
    }

    #[test]
    fn one_turn_that_was_disturbed_changes_neither_the_ratio_nor_its_spread() {
        let turn = |ours: f64, raw: f64| {
            let mut figures = Figures::default();
            figures.set(Figure::JobsPerSecond, ours);
            figures.set(Figure::RawJobsPerSecond, raw);
            figures.ratio(Figure::RatioToRaw, Figure::JobsPerSecond, Figure::RawJobsPerSecond);
            figures
        };
        // The machine halves its pace for two turns, which both sides feel, and once for one side alone.
        let turns = [turn(50.0, 100.0), turn(26.0, 50.0), turn(24.0, 50.0), turn(51.0, 100.0), turn(20.0, 100.0)];
        assert_eq!(Figures::median(&turns).get(Figure::RatioToRaw), Some(0.5));
        assert_eq!(Figures::spread(&turns, Figure::RatioToRaw).map(|spread| (spread * 100.0).round()), Some(2.0));
        assert_eq!(Figures::spread(&turns, Figure::P50), None, "nothing was measured");
    }

    #[test]
    fn every_key_is_in_the_report_and_is_there_once() {
        let report = Report {
            scenario: "submit",
            store: "memory",
            jobs: 1,
            figures: Figures::default(),
            goal: None,
            windows: Vec::new(),
        };
        let json = report.json();
        let keys: std::collections::BTreeSet<&str> = Figure::ALL.iter().map(|figure| figure.key()).collect();
        assert_eq!(keys.len(), Figure::ALL.len());
        assert!(keys.iter().all(|key| json.get(key) == Some(&Value::Null)), "{json}");
    }

    #[test]
    fn each_ratio_says_which_way_is_better() {
        let check = |set: &[Figure], ratio: Figure, expected: &str| {
            let mut figures = Figures::default();
            set.iter().chain([&ratio]).for_each(|figure| figures.set(*figure, 1.0));
            let (scenario, store) = ("submit", "postgres");
            let report = Report { scenario, store, jobs: 1, figures, goal: None, windows: Vec::new() };
            assert_eq!(report.json()["better"], json!({ ratio.key(): expected }), "{set:?}");
        };
        check(&[Figure::JobsPerSecond, Figure::RawJobsPerSecond], Figure::RatioToRaw, "higher");
        check(&[Figure::P50, Figure::RawP50], Figure::RatioToRaw, "lower");
        check(&[Figure::JobsPerSecond, Figure::Other], Figure::RatioToOther, "higher");
        for cost in
            [Figure::P50, Figure::P99, Figure::QueriesPerSecond, Figure::CpuPerSecond, Figure::Memory, Figure::StartMs]
        {
            check(&[cost, Figure::Other], Figure::RatioToOther, "lower");
        }
        check(&[Figure::JobsPerSecond], Figure::RatioToBaseline, "higher");
        check(&[Figure::P99], Figure::P99RatioToBaseline, "lower");
    }

    #[test]
    fn percentiles_are_in_milliseconds() {
        let mut waits = times();
        (1..=100).for_each(|ms| waits.saturating_record(ms * 1_000_000));
        let mut figures = Figures::default();
        figures.waits(&waits);
        let shown = [Figure::P50, Figure::P99, Figure::Max].map(|figure| figures.get(figure).map(f64::round));
        assert_eq!(shown, [Some(50.0), Some(99.0), Some(100.0)]);
        figures.waits(&times());
        assert_eq!(figures.get(Figure::P50), None, "nothing was measured");
    }

    #[test]
    fn a_value_that_is_no_number_is_absent() {
        let mut figures = Figures::default();
        figures.rate(0, Duration::ZERO);
        assert_eq!(figures.get(Figure::JobsPerSecond), None);
    }
}
