//! The charts of the overview, from what the store has kept of the past. Pure.

use std::time::Duration;

use windlass_core::store::Counts;
use windlass_core::{Activity, Status, Sums, Timestamp};

use super::chart::{self, Chart, Kind, Series, Unit};
use super::views::overview::Busy;

/// Handlers that the overview names.
const BUSIEST: usize = 8;

/// Neighbouring points put together.
struct Step {
    at: Timestamp,
    sums: Sums,
    depth: Option<Counts>,
}

/// Throughput, waits, run times, depth and failures.
pub(crate) fn charts(activity: &Activity, now: Timestamp) -> Vec<Chart> {
    let fold = chart::fold_by(activity.points.len());
    let length = activity.step.saturating_mul(fold as u32);
    let steps = fold_points(activity, fold);
    let base = |id, title, unit, kind, series| Chart {
        id,
        title,
        unit,
        kind,
        times: steps.iter().map(|step| step.at).collect(),
        step: length,
        series,
    };
    let rate = |name, class, of: fn(&Sums) -> u64| Series {
        name,
        class,
        values: steps.iter().map(|step| Some(of(&step.sums) as f64 / seconds_so_far(step.at, length, now)?)).collect(),
    };
    let jobs = |name, class, of: fn(&Sums) -> u64| Series {
        name,
        class,
        values: steps.iter().map(|step| Some(of(&step.sums) as f64)).collect(),
    };
    let depth = |name, class, status| Series {
        name,
        class,
        values: steps.iter().map(|step| step.depth.map(|depth| depth.get(status) as f64)).collect(),
    };
    let part = |name, class, q: f64, of: fn(&Sums, f64) -> Option<Duration>| Series {
        name,
        class,
        values: steps.iter().map(|step| of(&step.sums, q).map(|d| d.as_secs_f64())).collect(),
    };
    let wait = |sums: &Sums, q| sums.wait.quantile(q);
    let run = |sums: &Sums, q| sums.run.quantile(q);
    let percentiles =
        |of| vec![part("p50", "k-p50", 0.5, of), part("p95", "k-p95", 0.95, of), part("p99", "k-p99", 0.99, of)];
    let mut charts = vec![
        base(
            "throughput",
            "Throughput",
            Unit::PerSecond,
            Kind::Lines,
            vec![
                rate("succeeded", "k-succeeded", |sums| sums.succeeded),
                rate("submitted", "k-submitted", |sums| sums.submitted),
                rate("failed", "k-failed", |sums| sums.failed),
            ],
        ),
        base("wait", "Wait until the start", Unit::Seconds, Kind::Lines, percentiles(wait)),
        base("run", "Run time", Unit::Seconds, Kind::Lines, percentiles(run)),
    ];
    // How many jobs are where is kept for all tenants together only.
    if steps.iter().any(|step| step.depth.is_some()) {
        charts.push(base(
            "depth",
            "Depth",
            Unit::Jobs,
            Kind::Stacked,
            vec![
                depth("running", "k-running", Status::Running),
                depth("pending", "k-pending", Status::Pending),
                depth("retrying", "k-retrying", Status::Retrying),
                depth("scheduled", "k-scheduled", Status::Scheduled),
                depth("blocked", "k-blocked", Status::Blocked),
            ],
        ));
    }
    charts.push(base(
        "failures",
        "Failures",
        Unit::Jobs,
        Kind::Bars,
        vec![
            jobs("retried", "k-retried", |sums| sums.retried),
            jobs("dead", "k-dead", |sums| sums.dead_lettered),
            jobs("canceled", "k-canceled", |sums| sums.canceled),
        ],
    ));
    charts
}

/// How long a step has lasted. The last one is not over; it says nothing before half of it is.
fn seconds_so_far(at: Timestamp, length: Duration, now: Timestamp) -> Option<f64> {
    let so_far = now.since(at).min(length);
    (so_far * 2 >= length).then_some(so_far.as_secs_f64())
}

fn fold_points(activity: &Activity, fold: usize) -> Vec<Step> {
    let together = |points: &[windlass_core::Point]| {
        let mut sums = Sums::default();
        points.iter().for_each(|point| sums.merge(&point.sums));
        Step { at: points[0].at, sums, depth: points.iter().rev().find_map(|point| point.depth) }
    };
    activity.points.chunks(fold).map(together).collect()
}

/// The handlers that ran most.
pub(crate) fn busiest(activity: &Activity) -> Vec<Busy> {
    let busy = |(handler, sums): &(String, Sums)| Busy {
        handler: handler.clone(),
        succeeded: sums.succeeded,
        failed: sums.failed,
        run_p95: sums.run.quantile(0.95),
        wait_p95: sums.wait.quantile(0.95),
    };
    activity.by_handler.iter().take(BUSIEST).map(busy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_counts_as_long_as_it_has_lasted() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let seconds = |ago: u64| seconds_so_far(now - Duration::from_secs(ago), Duration::from_secs(10), now);
        assert_eq!([seconds(2), seconds(5), seconds(10), seconds(60)], [None, Some(5.0), Some(10.0), Some(10.0)]);
    }
}
