//! `/metrics` in the text format of Prometheus: what this process has counted, and how the installation is (API-6,
//! API-8). The names are those of docs/metrics.md, both families. Pure but for the three questions it asks the service.

use std::fmt::{Display, Write};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use windlass_core::{Backlog, Band, Health, Histogram, OperatorRight, Status, Totals};

use crate::App;
use crate::problem::Problem;

/// What Prometheus asks for.
pub(crate) async fn serve(State(app): State<App>) -> Result<Response, Problem> {
    let health = app.service.health().await?;
    // The route lets only operators of the whole installation pass, or is open on loopback by configuration.
    let backlog = app.service.operator(OperatorRight::assume()).backlog().await?;
    let text = render(&app.service.totals(), app.service.total_cleaned(), &health, &backlog);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

/// The whole answer. Pure.
fn render(totals: &[Totals], cleaned: u64, health: &Health, backlog: &[Backlog]) -> String {
    let mut text = Text::default();
    counters(&mut text, totals);
    text.family("jobs_cleaned_total", "counter", "Ended jobs removed because their retention was over.");
    text.sample("jobs_cleaned_total", &[], cleaned);
    for (name, help, of) in HISTOGRAMS {
        text.family(name, "histogram", help);
        for total in totals {
            text.histogram(name, &[("handler", &total.handler), ("priority", band(total.priority))], of(total));
        }
    }
    waiting(&mut text, backlog);
    installation(&mut text, health);
    text.0
}

type Count = fn(&Totals) -> u64;

/// Counters by handler and priority. Names that mean the same always have the same value.
const COUNTERS: [(&str, &str, Count); 7] = [
    ("jobs_submitted_total", "Jobs stored.", |t| t.submitted),
    ("jobs_started_total", "Attempts begun.", |t| t.started),
    ("jobs_failed_total", "Attempts that failed.", |t| t.failed),
    ("jobs_retried_total", "Failed attempts that are tried again.", |t| t.retried),
    ("job_retries_total", "Failed attempts that are tried again.", |t| t.retried),
    ("jobs_cancelled_total", "Jobs that ended as canceled.", |t| t.canceled),
    ("jobs_dead_lettered_total", "Jobs that became dead letters.", |t| t.dead_lettered),
];

type Times = for<'a> fn(&'a Totals) -> &'a Histogram;

const HISTOGRAMS: [(&str, &str, Times); 3] = [
    ("jobs_wait_duration_seconds", "From when a job could run until its first attempt began.", |t| &t.sums.wait),
    ("jobs_processing_seconds", "How long attempts ran.", |t| &t.sums.run),
    ("jobs_duration_seconds", "How long attempts ran.", |t| &t.sums.run),
];

fn counters(text: &mut Text, totals: &[Totals]) {
    for (name, help, of) in COUNTERS {
        text.family(name, "counter", help);
        for total in totals {
            text.sample(name, &[("handler", &total.handler), ("priority", band(total.priority))], of(total));
        }
    }
    text.family("jobs_completed_total", "counter", "Jobs that have ended.");
    for total in totals {
        let ends =
            [("succeeded", total.succeeded), ("canceled", total.canceled), ("dead_lettered", total.dead_lettered)];
        for (status, count) in ends {
            let labels = [("handler", total.handler.as_str()), ("priority", band(total.priority)), ("status", status)];
            text.sample("jobs_completed_total", &labels, count);
        }
    }
}

fn waiting(text: &mut Text, backlog: &[Backlog]) {
    type Gauge = fn(&Backlog) -> f64;
    let gauges: [(&str, &str, Gauge); 4] = [
        ("jobs_backlog", "Jobs that are ready and wait for a worker.", |b| b.waiting as f64),
        ("jobs_backlog_wait_seconds", "How long the oldest of them has waited.", |b| b.oldest_wait.as_secs_f64()),
        ("jobs_running", "Jobs that run.", |b| b.running as f64),
        ("jobs_per_second", "Attempts that ended per second, over the last minute.", |b| b.per_second),
    ];
    for (name, help, of) in gauges {
        text.family(name, "gauge", help);
        for line in backlog {
            text.sample(name, &[("handler", &line.handler), ("queue", &line.queue)], of(line));
        }
    }
}

fn installation(text: &mut Text, health: &Health) {
    text.family("jobs_queue_depth", "gauge", "Jobs in each status; ended ones stay counted.");
    for status in Status::ALL {
        text.sample("jobs_queue_depth", &[("status", status.as_str())], health.depth.get(status));
    }
    let stale = health.nodes.iter().filter(|node| node.stale).count();
    let ones = [
        ("windlass_active_jobs", "Jobs that run.", Some(health.active as f64)),
        ("windlass_stale_jobs", "Jobs of silent nodes, about to be recovered.", Some(health.stale as f64)),
        (
            "windlass_oldest_due_seconds",
            "How long the oldest job has been due that has not started.",
            Some(health.oldest_due.map_or(0.0, |due| due.as_secs_f64())),
        ),
        ("windlass_clock_skew_seconds", "How far the store's clock is ahead.", Some(health.skew_ms as f64 / 1e3)),
        ("jobs_dlq_size", "Dead letters that nobody has replayed or purged.", Some(health.dead_letters as f64)),
        ("windlass_dead_rows", "Dead rows in the tables of the queue.", health.dead_rows.map(|n| n as f64)),
        ("windlass_notify_queue_use", "The part of the notification queue in use.", health.notify_use),
        ("windlass_database_bytes", "The size of the database.", health.bytes.map(|n| n as f64)),
    ];
    for (name, help, value) in ones {
        if let Some(value) = value {
            text.family(name, "gauge", help);
            text.sample(name, &[], value);
        }
    }
    text.family("windlass_nodes", "gauge", "Registered processes.");
    text.sample("windlass_nodes", &[("state", "alive")], health.nodes.len() - stale);
    text.sample("windlass_nodes", &[("state", "stale")], stale);
    nodes(text, health);
    text.family("windlass_held_snapshot_seconds", "gauge", "How long dead rows have been kept from being removed.");
    for held in &health.held {
        let seconds = held.held.map_or(0.0, |held| held.as_secs_f64());
        text.sample("windlass_held_snapshot_seconds", &[("kind", &held.kind), ("name", &held.name)], seconds);
    }
    for (name, help, max) in [
        ("windlass_pool_connections_used", "Connections in use.", false),
        ("windlass_pool_connections_max", "Connections there may be.", true),
    ] {
        text.family(name, "gauge", help);
        for pool in &health.pools {
            text.sample(name, &[("pool", &pool.name)], if max { pool.max } else { pool.used });
        }
    }
}

fn nodes(text: &mut Text, health: &Health) {
    type Gauge = fn(&windlass_core::NodeHealth) -> f64;
    let gauges: [(&str, &str, Gauge); 3] = [
        ("windlass_node_running", "Jobs that a node runs.", |n| n.record.running as f64),
        ("windlass_node_capacity", "Jobs that a node can run.", |n| n.record.info.capacity as f64),
        ("windlass_node_heartbeat_age_seconds", "Since a node was last heard of.", |n| n.age.as_secs_f64()),
    ];
    for (name, help, of) in gauges {
        text.family(name, "gauge", help);
        for node in &health.nodes {
            let id = node.record.node.0.to_string();
            text.sample(name, &[("node", &id), ("host", &node.record.info.host)], of(node));
        }
    }
}

fn band(band: Band) -> &'static str {
    match band {
        Band::Critical => "critical",
        Band::High => "high",
        Band::Normal => "normal",
        Band::Low => "low",
    }
}

/// The text format: families with their samples.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        self.labels(labels);
        let _ = writeln!(self.0, " {value}");
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], times: &Histogram) {
        let bucket = format!("{name}_bucket");
        for (bound, count) in times.cumulative() {
            let bound = bound.to_string();
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), count);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), times.count());
        self.sample(&format!("{name}_sum"), labels, times.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, times.count());
    }

    fn labels(&mut self, labels: &[(&str, &str)]) {
        for (n, (name, value)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{name}=\"", if n == 0 { '{' } else { ',' });
            for c in value.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_break_out_of_their_quotes() {
        let mut text = Text::default();
        text.sample("x", &[("handler", "a\"} 1\nb\\")], 2);
        assert_eq!(text.0, "x{handler=\"a\\\"} 1\\nb\\\\\"} 2\n");
    }

    #[test]
    fn a_histogram_ends_with_all_it_has_counted() {
        let mut times = Histogram::default();
        times.record(std::time::Duration::from_millis(3));
        times.record(std::time::Duration::from_secs(7_200));
        let mut text = Text::default();
        text.histogram("h", &[("a", "b")], &times);
        assert!(text.0.contains("h_bucket{a=\"b\",le=\"0.005\"} 1\n"), "{}", text.0);
        assert!(text.0.contains("h_bucket{a=\"b\",le=\"3600\"} 1\n"), "{}", text.0);
        assert!(text.0.contains("h_bucket{a=\"b\",le=\"+Inf\"} 2\n"), "{}", text.0);
        assert!(text.0.contains("h_sum{a=\"b\"} 7200.003\n"), "{}", text.0);
        assert!(text.0.ends_with("h_count{a=\"b\"} 2\n"), "{}", text.0);
    }
}
