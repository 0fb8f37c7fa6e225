//! `/metrics` in the text format of Prometheus: what this process has counted, and how the installation is.
//! The names are those of docs/metrics.md, both families. Pure but for the three questions it asks the service.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{Display, Write};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use windlass_core::activity::OTHER;
use windlass_core::store::SUSPECT_QUEUES;
use windlass_core::supervise::LoopHealth;
use windlass_core::{Backlog, Band, CronTotals, DEFAULT_QUEUE, Health, Histogram, OperatorRight, Status, Totals};

use crate::App;
use crate::problem::Problem;

/// What Prometheus asks for.
pub(crate) async fn serve(State(app): State<App>) -> Result<Response, Problem> {
    let health = app.service.health().await?;
    // The route lets only operators of the whole installation pass, or is open on loopback by configuration.
    let backlog = app.service.operator(OperatorRight::assume()).backlog().await?;
    let (totals, backlog) = {
        let mut names = app.names.lock();
        names.handlers.extend(health.nodes.iter().flat_map(|node| node.record.info.handlers.iter().cloned()));
        names.queues.extend(app.service.config().queues.iter().cloned());
        (names.of_totals(app.service.totals()), names.of_backlog(backlog))
    };
    let (cleaned, cron) = (app.service.total_cleaned(), app.service.cron_totals());
    let text = render(&totals, cleaned, &cron, &app.service.loops(), &health, &backlog);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

/// The names that labels may hold. Whoever may submit can name as many handlers and queues as it likes, and each would be
/// a series for ever; what has no name here is summed under [`OTHER`].
#[derive(Default)]
pub(crate) struct Names {
    /// Handlers that a node has or had since this server started.
    handlers: HashSet<String>,
    /// Queues that this process is configured with, and the first [`QUEUES_SEEN`] others that were seen.
    queues: HashSet<String>,
    /// How many of the queues were only seen.
    seen: usize,
}

/// Queues that have a label because jobs wait in them. Nodes do not say which queues they take from, so names of callers
/// cannot be told from names of operators: more than an installation has, and few enough for a metrics database.
const QUEUES_SEEN: usize = 100;

impl Names {
    fn of_totals(&self, totals: Vec<Totals>) -> Vec<Totals> {
        let mut by_name: Vec<Totals> = Vec::new();
        for mut total in totals {
            if !self.handlers.contains(total.handler.as_str()) {
                total.handler = OTHER.to_owned();
            }
            match by_name.iter_mut().find(|sum| (&sum.handler, sum.priority) == (&total.handler, total.priority)) {
                Some(sum) => sum.sums.merge(&total.sums),
                None => by_name.push(total),
            }
        }
        by_name
    }

    fn of_backlog(&mut self, backlog: Vec<Backlog>) -> Vec<Backlog> {
        let mut lines: Vec<Backlog> = Vec::new();
        let mut unknown: Option<Backlog> = None;
        for mut line in backlog {
            if self.handlers.contains(line.handler.as_str()) {
                line.queue = self.queue(line.queue);
                lines.push(line);
                continue;
            }
            (line.handler, line.queue) = (OTHER.to_owned(), OTHER.to_owned());
            match &mut unknown {
                Some(sum) => add(sum, &line),
                None => unknown = Some(line),
            }
        }
        lines.extend(unknown);
        lines
    }

    /// The label of a queue where jobs of a known handler wait.
    fn queue(&mut self, queue: String) -> String {
        // The engine's own queues of suspects are named after another.
        let of = SUSPECT_QUEUES.iter().find_map(|start| queue.strip_prefix(start)).unwrap_or(&queue);
        if of == DEFAULT_QUEUE || self.handlers.contains(of) || self.queues.contains(of) {
            return queue;
        }
        if self.seen >= QUEUES_SEEN {
            return OTHER.to_owned();
        }
        self.seen += 1;
        self.queues.insert(of.to_owned());
        queue
    }
}

/// Adds what waits for one handler to what waits for others.
fn add(sum: &mut Backlog, line: &Backlog) {
    sum.waiting += line.waiting;
    sum.blocked += line.blocked;
    sum.running += line.running;
    sum.per_second += line.per_second;
    sum.oldest_wait = sum.oldest_wait.max(line.oldest_wait);
}

/// The whole answer. Pure.
fn render(
    totals: &[Totals],
    cleaned: u64,
    cron: &CronTotals,
    loops: &[LoopHealth],
    health: &Health,
    backlog: &[Backlog],
) -> String {
    let mut text = Text::default();
    counters(&mut text, totals);
    text.family("jobs_cleaned_total", "counter", "Ended jobs removed because their retention had passed.");
    text.sample("jobs_cleaned_total", &[], cleaned);
    text.family("cron_fired_total", "counter", "Jobs that schedules have started at their times.");
    text.sample("cron_fired_total", &[], cron.fired);
    text.family("cron_missed_total", "counter", "Due schedules that skipped times.");
    text.sample("cron_missed_total", &[], cron.missed);
    text.family("cron_late_seconds", "histogram", "From the nominal time of a schedule until its job was stored.");
    text.histogram("cron_late_seconds", &[], &cron.late);
    text.family("windlass_loop_panics_total", "counter", "Panics of the process's permanent loops.");
    for health in loops {
        text.sample("windlass_loop_panics_total", &[("loop", health.name)], health.panics);
    }
    text.family("windlass_loop_up", "gauge", "Whether a loop runs; the process is not ready while one is down.");
    for health in loops {
        text.sample("windlass_loop_up", &[("loop", health.name)], u8::from(!health.down));
    }
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
const COUNTERS: [(&str, &str, Count); 8] = [
    ("jobs_submitted_total", "Jobs stored.", |t| t.submitted),
    ("jobs_enqueued_total", "Jobs stored.", |t| t.submitted),
    ("jobs_started_total", "Attempts started.", |t| t.started),
    ("jobs_failed_total", "Attempts that failed.", |t| t.failed),
    ("jobs_retried_total", "Failed attempts that are retried.", |t| t.retried),
    ("job_retries_total", "Failed attempts that are retried.", |t| t.retried),
    ("jobs_cancelled_total", "Jobs that ended as canceled.", |t| t.canceled),
    ("jobs_dead_lettered_total", "Jobs that became dead letters.", |t| t.dead_lettered),
];

type Times = for<'a> fn(&'a Totals) -> &'a Histogram;

const HISTOGRAMS: [(&str, &str, Times); 4] = [
    ("jobs_wait_duration_seconds", "From when a job became ready until its first attempt started.", |t| &t.sums.wait),
    ("jobs_processing_seconds", "How long attempts ran.", |t| &t.sums.run),
    ("jobs_duration_seconds", "How long attempts ran.", |t| &t.sums.run),
    ("job_duration_seconds", "How long attempts ran.", |t| &t.sums.run),
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
    let gauges: [(&str, &str, Gauge); 5] = [
        ("jobs_backlog", "Jobs that are ready and wait for a worker.", |b| b.waiting as f64),
        ("jobs_backlog_wait_seconds", "How long the oldest of them has waited.", |b| b.oldest_wait.as_secs_f64()),
        ("jobs_blocked", "Jobs behind a pause or an earlier job of their key.", |b| b.blocked as f64),
        ("jobs_running", "Jobs that run.", |b| b.running as f64),
        ("jobs_per_second", "Attempts that ended per second, over the last minute.", |b| b.per_second),
    ];
    for (name, help, of) in gauges {
        text.family(name, "gauge", help);
        for line in backlog {
            text.sample(name, &[("handler", &line.handler), ("queue", &line.queue)], of(line));
        }
    }
    text.family("job_queue_depth", "gauge", "Jobs that are ready and wait for a worker, by handler.");
    let mut by_handler: BTreeMap<&str, u64> = BTreeMap::new();
    backlog.iter().for_each(|line| *by_handler.entry(&line.handler).or_default() += line.waiting);
    for (handler, waiting) in by_handler {
        text.sample("job_queue_depth", &[("handler", handler)], waiting);
    }
}

fn installation(text: &mut Text, health: &Health) {
    text.family("jobs_queue_depth", "gauge", "Jobs in each status; ended ones until they are removed.");
    for status in Status::ALL {
        text.sample("jobs_queue_depth", &[("status", status.as_str())], health.depth.get(status));
    }
    let stale = health.nodes.iter().filter(|node| node.stale).count();
    let ones = [
        ("windlass_active_jobs", "Jobs that run.", Some(health.active as f64)),
        ("windlass_stale_jobs", "Jobs of silent nodes, about to be recovered.", Some(health.stale as f64)),
        (
            "windlass_oldest_due_seconds",
            "How long the oldest job that has not started has been due.",
            Some(health.oldest_due.map_or(0.0, |due| due.as_secs_f64())),
        ),
        ("windlass_clock_skew_seconds", "How far the store's clock is ahead.", Some(health.skew_ms as f64 / 1e3)),
        ("jobs_dlq_size", "Dead letters that were neither replayed nor purged.", Some(health.dead_letters as f64)),
        ("windlass_dead_rows", "Dead rows in the queue tables.", health.dead_rows.map(|n| n as f64)),
        ("windlass_notify_queue_use", "The fraction of the notification queue in use.", health.notify_use),
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
    text.family(
        "windlass_held_snapshot_seconds",
        "gauge",
        "How long something has kept the database from removing dead rows.",
    );
    for held in &health.held {
        let seconds = held.held.map_or(0.0, |held| held.as_secs_f64());
        text.sample("windlass_held_snapshot_seconds", &[("kind", &held.kind), ("name", &held.name)], seconds);
    }
    for (name, help, max) in [
        ("windlass_pool_connections_used", "Connections in use.", false),
        ("windlass_pool_connections_max", "The maximum number of connections.", true),
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
        ("windlass_node_heartbeat_age_seconds", "Time since the last heartbeat of a node.", |n| n.age.as_secs_f64()),
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

    fn line(handler: &str, queue: &str, n: u64) -> Backlog {
        let mut line = Backlog::default();
        (line.handler, line.queue) = (handler.to_owned(), queue.to_owned());
        (line.waiting, line.blocked, line.running) = (n, 10 * n, 100 * n);
        (line.per_second, line.oldest_wait) = (n as f64, std::time::Duration::from_secs(n));
        line
    }

    fn names() -> Names {
        Names { handlers: HashSet::from(["known".to_owned()]), ..Names::default() }
    }

    /// API-6: whatever waits for handlers without a name is in the sum, field by field.
    #[test]
    fn unknown_handlers_are_summed_whole() {
        let backlog = vec![line("known", "default", 1), line("x", "a", 2), line("y", "b", 3)];
        assert_eq!(
            names().of_backlog(backlog),
            vec![line("known", "default", 1), {
                let mut sum = line(OTHER, OTHER, 5);
                sum.oldest_wait = std::time::Duration::from_secs(3);
                sum
            }]
        );
    }

    /// API-6: callers name queues as they like, and only so many become labels, ever.
    #[test]
    fn queues_of_callers_have_bounded_labels() {
        let mut names = names();
        names.queues.insert("configured".to_owned());
        let mut label = |queue: &str| names.of_backlog(vec![line("known", queue, 1)])[0].queue.clone();
        let labels: HashSet<String> = (0..QUEUES_SEEN * 2).map(|n| label(&format!("q{n}"))).collect();
        assert_eq!(labels.len(), QUEUES_SEEN + 1, "{labels:?}");
        assert!(labels.contains(OTHER));
        for kept in ["default", "known", "configured", "q0", "suspect:default", "suspect-again:known"] {
            assert_eq!(label(kept), kept, "has its label whatever callers name");
        }
        assert_eq!(label("suspect:q9999"), OTHER);
    }

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
