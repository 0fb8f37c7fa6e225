//! The charts of the overview, from what the store has kept of the past. Pure.

use std::time::Duration;

use windlass_core::store::Counts;
use windlass_core::{Activity, Status, Sums, Timestamp};

use super::chart::{self, Chart, Kind, LeadsTo, Series, Unit};
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
    let drawn = Drawn { steps: fold_points(activity, fold), length, now };
    let mut charts = vec![drawn.throughput(), drawn.wait(), drawn.run()];
    // How many jobs are where is kept for all tenants together only.
    if drawn.steps.iter().any(|step| step.depth.is_some()) {
        charts.push(drawn.depth());
    }
    charts.push(drawn.failures());
    charts
}

/// What charts are drawn of.
struct Drawn {
    steps: Vec<Step>,
    length: Duration,
    now: Timestamp,
}

impl Drawn {
    fn throughput(&self) -> Chart {
        let rate = |name, class, leads_to, of: fn(&Sums) -> u64| Series {
            name,
            class,
            leads_to,
            values: self.values(|step| Some(of(&step.sums) as f64 / seconds_so_far(step.at, self.length, self.now)?)),
        };
        let series = vec![
            rate("succeeded", "k-succeeded", Some(LeadsTo::EndedAs(Status::Succeeded)), |sums| sums.succeeded),
            rate("submitted", "k-submitted", None, |sums| sums.submitted),
            rate("failed", "k-failed", Some(LeadsTo::EndedAs(Status::DeadLettered)), |sums| sums.failed),
        ];
        self.chart("throughput", "Throughput", Unit::PerSecond, Kind::Lines, LeadsTo::Submitted, series)
    }

    fn wait(&self) -> Chart {
        let series = self.percentiles(|sums, q| sums.wait.quantile(q));
        self.chart("wait", "Wait before the start", Unit::Seconds, Kind::Lines, LeadsTo::Submitted, series)
    }

    fn run(&self) -> Chart {
        let series = self.percentiles(|sums, q| sums.run.quantile(q));
        self.chart("run", "Run time", Unit::Seconds, Kind::Lines, LeadsTo::Ended, series)
    }

    fn depth(&self) -> Chart {
        let depth = |name, class, status| Series {
            name,
            class,
            leads_to: None,
            values: self.values(|step| step.depth.map(|depth| depth.get(status) as f64)),
        };
        let series = vec![
            depth("running", "k-running", Status::Running),
            depth("pending", "k-pending", Status::Pending),
            depth("retrying", "k-retrying", Status::Retrying),
            depth("scheduled", "k-scheduled", Status::Scheduled),
            depth("blocked", "k-blocked", Status::Blocked),
        ];
        self.chart("depth", "Depth", Unit::Jobs, Kind::Stacked, LeadsTo::Submitted, series)
    }

    fn failures(&self) -> Chart {
        let jobs = |name, class, leads_to, of: fn(&Sums) -> u64| Series {
            name,
            class,
            leads_to,
            values: self.values(|step| Some(of(&step.sums) as f64)),
        };
        let series = vec![
            jobs("retried", "k-retried", None, |sums| sums.retried),
            jobs("dead", "k-dead", Some(LeadsTo::EndedAs(Status::DeadLettered)), |sums| sums.dead_lettered),
            jobs("canceled", "k-canceled", Some(LeadsTo::EndedAs(Status::Canceled)), |sums| sums.canceled),
        ];
        self.chart("failures", "Failures", Unit::Jobs, Kind::Bars, LeadsTo::EndedBadly, series)
    }

    fn percentiles(&self, of: fn(&Sums, f64) -> Option<Duration>) -> Vec<Series> {
        let part = |name, class, q: f64| Series {
            name,
            class,
            leads_to: None,
            values: self.values(|step| of(&step.sums, q).map(|d| d.as_secs_f64())),
        };
        vec![part("p50", "k-p50", 0.5), part("p95", "k-p95", 0.95), part("p99", "k-p99", 0.99)]
    }

    fn values(&self, of: impl Fn(&Step) -> Option<f64>) -> Vec<Option<f64>> {
        self.steps.iter().map(of).collect()
    }

    fn chart(
        &self,
        id: &'static str,
        title: &'static str,
        unit: Unit,
        kind: Kind,
        leads_to: LeadsTo,
        series: Vec<Series>,
    ) -> Chart {
        let times = self.steps.iter().map(|step| step.at).collect();
        Chart { id, title, unit, kind, leads_to, now: self.now, times, step: self.length, series }
    }
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
    use windlass_core::activity::{Span, arrange};

    use super::super::urls::Urls;
    use super::*;

    /// API-5: what a series leads to are jobs of its step, and no older ones. When an attempt failed that was tried again is
    /// no condition of a filter: what was retried leads where its step does.
    #[test]
    fn a_series_leads_to_jobs_of_its_step_alone() {
        let (now, from) = (Timestamp::from_millis(1_800_000_000_000), Timestamp::from_millis(1_799_999_000_000));
        let to = from + Duration::from_secs(10);
        let mut links = Vec::new();
        for chart in charts(&arrange(Vec::new(), &[], Span::Hour, now), now) {
            for series in &chart.series {
                let Some(leads_to) = series.leads_to else { continue };
                let address = leads_to.address(&Urls::new(""), from, to, now);
                let filter = address.split("q=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default();
                let filter = filter.replace("%3E", ">").replace("%3C", "<").replace("%3A", ":").replace("%20", " ");
                links.push(format!("{} {}: {filter}", chart.id, series.name));
            }
        }
        let ended = |status: &str| format!("ended>{from} ended<{to} status:{status}");
        let expected = [
            format!("throughput succeeded: {}", ended("succeeded")),
            format!("throughput failed: {}", ended("dead_lettered")),
            format!("failures dead: {}", ended("dead_lettered")),
            format!("failures canceled: {}", ended("canceled")),
        ];
        assert_eq!(links, expected);
    }

    #[test]
    fn the_last_step_counts_as_long_as_it_has_lasted() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let seconds = |ago: u64| seconds_so_far(now - Duration::from_secs(ago), Duration::from_secs(10), now);
        assert_eq!([seconds(2), seconds(5), seconds(10), seconds(60)], [None, Some(5.0), Some(10.0), Some(10.0)]);
    }
}
