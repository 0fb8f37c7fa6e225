//! Checks that an installation is in order and says what to do where it is not. Called by `commands::run`. Only looks:
//! it can be run at any time, beside anything.

use std::time::{Duration, SystemTime};

use serde_json::json;
use windlass::health::{Checkup, Finding, Level};
use windlass::postgres::{PgStore, Walls};
use windlass::store::Store;
use windlass::{Config, JobFilter, Page, Status, Timestamp};

use crate::args::{DoctorArgs, Global};
use crate::backend::{self, Backend};
use crate::connect::Place;
use crate::error::{CliError, Result};
use crate::output::{Out, plain};
use windlass::text::{show_duration, show_time};

/// A clock that is off by more than this makes times in logs and jobs hard to compare.
const CLOCK_SKEW: Duration = Duration::from_secs(1);
/// A ready job should not wait this long while anything could run it.
const STUCK_AFTER: Duration = Duration::from_secs(600);

/// Runs every check; fails if one of them does.
pub(crate) async fn run(global: &Global, args: &DoctorArgs, out: &Out) -> Result {
    let mut report = Report::default();
    match global.url {
        Some(_) => server(&*backend::open(global)?, &mut report).await,
        None => database(global, &Place::of(global)?, args, &mut report).await,
    }
    report.print(out)?;
    match report.failed() {
        0 => Ok(()),
        1 => Err(CliError::Failed("1 check failed".to_owned())),
        n => Err(CliError::Failed(format!("{n} checks failed"))),
    }
}

/// What the checks found.
#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn ok(&mut self, check: &str, message: String) {
        self.0.push(Finding::ok(check, message));
    }

    fn warn(&mut self, check: &str, message: String, fix: impl Into<String>) {
        self.0.push(Finding::warn(check, message, fix));
    }

    fn fail(&mut self, check: &str, message: String, fix: impl Into<String>) {
        self.0.push(Finding::fail(check, message, fix));
    }

    fn failed(&self) -> usize {
        self.0.iter().filter(|finding| finding.level == Level::Fail).count()
    }

    fn print(&self, out: &Out) -> Result {
        if out.wants_json() {
            return out.json(&json!({ "ok": self.failed() == 0, "checks": self.0 }));
        }
        for finding in &self.0 {
            let style = console::Style::new();
            let level = match finding.level {
                Level::Ok => out.paint(&style.green(), "ok  "),
                Level::Warn => out.paint(&style.yellow(), "warn"),
                Level::Fail => out.paint(&style.red().bold(), "fail"),
            };
            out.line(format_args!("{level}  {:<11} {}", finding.check, plain(&finding.message)))?;
            if let Some(fix) = &finding.fix {
                out.line(format_args!("                  {}", out.paint(&console::Style::new().dim(), plain(fix))))?;
            }
        }
        Ok(())
    }
}

/// Looks at a database itself.
async fn database(global: &Global, place: &Place, args: &DoctorArgs, report: &mut Report) {
    let store = match place.read().await {
        Ok(store) => store,
        Err(error) => return report.fail("store", error.to_string(), advice(&error)),
    };
    report.ok("store", format!("{} opens", place.describe()));
    // Who looks after an installation wants to see everyone's.
    let everyone = Global { tenant: None, all_tenants: true, ..global.clone() };
    let backend = backend::on(place, &everyone);
    let checks = [
        ("schema", schema(place, report).await),
        ("walls", walls(&*store, report)),
        ("clock", clock(&*store, report).await),
        ("examine", examine(&*store, args, report).await),
        ("nodes", nodes(&*backend, report).await),
        ("pauses", pauses(&*backend, report).await),
        ("queues", queues(&*store, report).await),
        ("dead", dead_letters(&*backend, report).await),
    ];
    told(checks, report);
}

/// Looks at a server, as far as its key lets us.
async fn server(backend: &dyn Backend, report: &mut Report) {
    match backend.counts().await {
        Ok(counts) => {
            let (waiting, running) = (counts.unfinished() - counts.get(Status::Running), counts.get(Status::Running));
            report.ok("server", format!("{} answers; {waiting} jobs wait, {running} run", backend.describe()));
        }
        Err(error) => return report.fail("server", error.to_string(), advice(&error)),
    }
    let checks = [
        ("nodes", nodes(backend, report).await),
        ("pauses", pauses(backend, report).await),
        ("dead", dead_letters(backend, report).await),
    ];
    told(checks, report);
}

/// A check that cannot be made is a failure of its own and does not keep the others.
fn told<const N: usize>(checks: [(&str, Result); N], report: &mut Report) {
    for (check, result) in checks {
        if let Err(error) = result {
            report.fail(check, error.to_string(), advice(&error));
        }
    }
}

fn advice(error: &CliError) -> &'static str {
    match error.code() {
        "unauthorized" | "forbidden" => "give a key that may look at this, in WINDLASS_API_KEY or a profile",
        "not_found" => "start one with `windlass up`, or name another with --db",
        "refused" => "stop the process that holds it, or run `windlass migrate` with the newest version",
        "unavailable" => "check that the server runs, that its address is right and that this machine may connect",
        "invalid_input" => "correct --db",
        _ => "run the command again with -v and look at the log",
    }
}

async fn schema(place: &Place, report: &mut Report) -> Result {
    let (found, wanted) = place.schema_versions().await?;
    match found == wanted {
        true => report.ok("schema", format!("version {found}, which is current")),
        false => {
            let message = format!("version {found}, and this windlass wants {wanted}");
            report.fail("schema", message, "run `windlass migrate`");
        }
    }
    Ok(())
}

/// Whether the database itself keeps tenants apart. Only PostgreSQL can.
fn walls(store: &dyn Store, report: &mut Report) -> Result {
    match store.as_any().downcast_ref::<PgStore>().map(PgStore::walls) {
        Some(Walls::Up) => report.ok("walls", "row-level security keeps tenants apart".to_owned()),
        Some(Walls::Down(reason)) => {
            let message = format!("no row-level security between tenants: {reason}");
            report.warn("walls", message, "run `windlass migrate` as a login that may create roles (docs/security.md)");
        }
        None => {}
    }
    Ok(())
}

async fn clock(store: &dyn Store, report: &mut Report) -> Result {
    let before = Timestamp::from(SystemTime::now());
    let theirs = store.now().await?;
    let after = Timestamp::from(SystemTime::now());
    // The answer was made somewhere in between, so only what lies outside counts.
    let skew = theirs.since(after).max(before.since(theirs));
    if skew <= CLOCK_SKEW {
        report.ok("clock", format!("the store's clock and this machine's agree ({} apart)", show_duration(skew)));
    } else {
        let direction = if theirs > after { "ahead of" } else { "behind" };
        let message = format!("the store's clock is {} {direction} this machine's", show_duration(skew));
        report.warn("clock", message, "set the clocks with NTP; Windlass itself goes by the store's");
    }
    Ok(())
}

/// What the store finds by looking at itself.
async fn examine(store: &dyn Store, args: &DoctorArgs, report: &mut Report) -> Result {
    let mut checkup = Checkup::default();
    checkup.held_after = args.held_after;
    report.0.extend(store.examine(&checkup).await?);
    Ok(())
}

async fn nodes(backend: &dyn Backend, report: &mut Report) -> Result {
    let (now, nodes) = (backend.now().await?, backend.nodes().await?);
    let lease = Config::default().lease;
    let (live, silent): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| now.since(node.heartbeat_at) <= lease);
    for node in &silent {
        let heard = show_duration(now.since(node.heartbeat_at));
        let message =
            format!("node {} (process {} on {}) is silent for {heard}", node.node.0, node.info.pid, node.info.host);
        report.warn("nodes", message, "if it is gone, the next live node takes its jobs over by itself");
    }
    let (running, capacity) =
        live.iter().fold((0, 0), |(running, capacity), node| (running + node.running, capacity + node.info.capacity));
    if capacity == 0 {
        report.warn("nodes", "no live node runs jobs".to_owned(), "start a process that has your handlers");
    } else {
        report.ok("nodes", format!("{} live, {running} of {capacity} slots in use", live.len()));
    }
    Ok(())
}

async fn pauses(backend: &dyn Backend, report: &mut Report) -> Result {
    let pauses = backend.pauses().await?;
    if pauses.is_empty() {
        report.ok("pauses", "nothing is paused".to_owned());
    }
    for pause in pauses {
        let name = pause.target.name();
        let why = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
        let message = format!("{name} is paused by {} since {}{why}", pause.by, show_time(pause.at));
        report.warn("pauses", message, format!("end it with `windlass resume {}`", name.replacen(':', " ", 1)));
    }
    Ok(())
}

async fn queues(store: &dyn Store, report: &mut Report) -> Result {
    let (now, waiting) = (store.now().await?, store.waiting_queues().await?);
    let stuck: Vec<_> = waiting.iter().filter(|queue| now.since(queue.oldest.created()) > STUCK_AFTER).collect();
    if stuck.is_empty() {
        let limit = show_duration(STUCK_AFTER);
        report.ok("queues", format!("{} with ready jobs, none older than {limit}", waiting.len()));
    }
    for queue in stuck {
        let age = show_duration(now.since(queue.oldest.created()));
        let message = format!("the oldest ready job of queue `{}` was submitted {age} ago", queue.queue);
        report.warn("queues", message, format!("ask with `windlass --all-tenants why {}`", queue.oldest));
    }
    Ok(())
}

async fn dead_letters(backend: &dyn Backend, report: &mut Report) -> Result {
    let mut filter = JobFilter::all().status(Status::DeadLettered);
    filter.replayed = Some(false);
    let letters = backend.list(&filter, Page::first(Page::MAX)).await?.len();
    match letters {
        0 => report.ok("dead", "no dead letters".to_owned()),
        n => {
            let more = if n == Page::MAX { " or more" } else { "" };
            let noun = if n == 1 { "dead letter waits" } else { "dead letters wait" };
            let advice = "look at them with `windlass --all-tenants dead list`, then replay or purge them";
            report.warn("dead", format!("{n}{more} {noun} for a decision"), advice);
        }
    }
    Ok(())
}
