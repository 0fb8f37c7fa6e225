//! Checks that an installation is in order and says what to do where it is not. Called by `commands::run`. Only looks:
//! it can be run at any time, beside anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use serde_json::json;
use windlass::health::{Checkup, Finding, Level};
use windlass::store::Store;
use windlass::{Config, JobFilter, Page, Status, Timestamp};

use crate::args::{DoctorArgs, Global};
use crate::backend::{self, Backend, Backlog, Condition, Loop};
use crate::connect::{Place, Schema};
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
        Some(_) => server(global, &mut report).await?,
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
    let everyone = everyone(global);
    let backend = backend::on(place, &everyone);
    let checks = [
        ("schema", schema(place, report).await),
        ("clock", clock(&*store, report).await),
        ("examine", examine(&*store, args, report).await),
        ("nodes", nodes(&*backend, report).await),
        ("ready", holder(place, &everyone, report).await),
        ("pauses", pauses(&*backend, report).await),
        ("queues", queues(&*store, report).await),
        ("handlers", handlers(&*backend, report).await),
        ("dead", dead_letters(&*backend, report).await),
    ];
    told(checks, report);
}

/// Who looks after an installation wants to see everyone's jobs.
fn everyone(global: &Global) -> Global {
    Global { tenant: None, all_tenants: true, ..global.clone() }
}

/// Looks at a server, as far as its key lets us.
async fn server(global: &Global, report: &mut Report) -> Result {
    let mut backend = backend::open(&everyone(global))?;
    let mut counts = backend.counts().await;
    if counts.as_ref().is_err_and(|error| error.code() == "unauthorized") {
        // A key of one tenant sees that one.
        backend = backend::open(global)?;
        counts = backend.counts().await;
    }
    match counts {
        Ok(counts) => {
            let (waiting, running) = (counts.unfinished() - counts.get(Status::Running), counts.get(Status::Running));
            report.ok("server", format!("{} responds; {waiting} jobs wait, {running} run", backend.describe()));
        }
        Err(error) => {
            report.fail("server", error.to_string(), advice(&error));
            return Ok(());
        }
    }
    let checks = [
        ("ready", process(&*backend, report).await),
        ("nodes", nodes(&*backend, report).await),
        ("pauses", pauses(&*backend, report).await),
        ("handlers", handlers(&*backend, report).await),
        ("dead", dead_letters(&*backend, report).await),
    ];
    told(checks, report);
    Ok(())
}

/// Looks at the process that holds a SQLite file, if it serves it. Nodes on PostgreSQL write nothing down of their loops:
/// what of their trouble shows in the database is found by `examine`, the rest by asking each with --url.
async fn holder(place: &Place, global: &Global, report: &mut Report) -> Result {
    match backend::serving(place, global)? {
        Some(server) => process(&*server, report).await,
        None => Ok(()),
    }
}

/// Whether the process that answers does its work: its probe, its loops, and whether it saves what its jobs come to.
async fn process(backend: &dyn Backend, report: &mut Report) -> Result {
    let probed = backend.not_ready().await?;
    let Condition { loops, troubles } = backend.condition().await?.unwrap_or_default();
    let down: Vec<&Loop> = loops.iter().filter(|health| health.down).collect();
    let is_of_loop = |why: &str| down.iter().any(|health| why.contains(&format!("`{}`", health.name)));
    let whys: BTreeSet<String> = troubles.into_iter().chain(probed).collect();
    let is_ready = whys.is_empty();
    for why in whys.into_iter().filter(|why| !is_of_loop(why)) {
        let fix = "check its log and its database; if both are fine, restart it: its jobs are released";
        report.fail("ready", format!("the process is not ready: {why}"), fix);
    }
    if is_ready {
        report.ok("ready", "the process accepts work and saves results".to_owned());
    }
    let panicked: Vec<&Loop> = loops.iter().filter(|health| health.panics > 0 || health.down).collect();
    if panicked.is_empty() {
        report.ok("loops", "no loop of the process has panicked".to_owned());
    }
    for Loop { name, panics, down, message } in panicked {
        let times = if *panics == 1 { "once".to_owned() } else { format!("{panics} times") };
        let last = message.as_ref().map_or_else(String::new, |message| format!(": {message}"));
        match down {
            true => {
                let message = format!("the loop `{name}` is down; it has panicked {times}{last}");
                report.fail("loops", message, "restart the process, and report the panic: it is a bug");
            }
            false => {
                let message = format!("the loop `{name}` has panicked {times} and was restarted{last}");
                report.warn("loops", message, "report the panic: it is a bug");
            }
        }
    }
    Ok(())
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
        "unauthorized" | "forbidden" => "put a key with the right to read this into WINDLASS_API_KEY or a profile",
        "not_found" => "start one with `windlass up`, or name another with --db",
        "refused" => "stop the process that holds it, or run `windlass migrate` with the newest version",
        "unavailable" => "check that the server runs, that its address is right and that this machine may connect",
        "invalid_input" => "correct --db",
        _ => "run the command again with -v and read the log",
    }
}

async fn schema(place: &Place, report: &mut Report) -> Result {
    let Schema { found, wanted, functions } = place.schema().await?;
    match (found == wanted, functions) {
        (true, 0) => report.ok("schema", format!("version {found}, which is current")),
        (true, _) => {
            let message = format!("version {found}, but {functions} functions differ from those of this windlass");
            report.fail("schema", message, "run `windlass migrate`");
        }
        (false, _) => {
            let message = format!("version {found}, but this windlass needs {wanted}");
            report.fail("schema", message, "run `windlass migrate`");
        }
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
        report.warn("clock", message, "synchronise the clocks with NTP; Windlass itself uses the store's clock");
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
        let message = format!(
            "node {} (process {} on {}) has been silent for {heard}",
            node.node.0, node.info.pid, node.info.host
        );
        report.warn("nodes", message, "if it is dead, a live node takes over its jobs automatically");
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
        let message = format!("{name} has been paused by {} since {}{why}", pause.by, show_time(pause.at));
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
        report.warn("queues", message, format!("see why with `windlass --all-tenants why {}`", queue.oldest));
    }
    Ok(())
}

/// Whether somebody could run what waits, also later: a typo in a submit, or a deploy that took a handler away.
async fn handlers(backend: &dyn Backend, report: &mut Report) -> Result {
    let known: BTreeSet<String> = backend.handlers().await?.into_iter().map(|handler| handler.handler).collect();
    let mut missing = BTreeMap::<String, Missing>::new();
    for Backlog { handler, waiting, blocked, .. } in backend.backlog().await? {
        let of = missing.entry(handler).or_default();
        (of.ready, of.blocked) = (of.ready + waiting, of.blocked + blocked);
    }
    let later = not_due(backend).await?;
    let is_all = later.len() < LATER_LOOKED_AT;
    for handler in later {
        missing.entry(handler).or_default().later += 1;
    }
    missing.retain(|handler, of| !known.contains(handler) && of.jobs() > 0);
    if missing.is_empty() {
        let only = if is_all { String::new() } else { format!(" (of those not due, the {LATER_LOOKED_AT} newest)") };
        report.ok("handlers", format!("a live node has the handler of every job that waits{only}"));
    }
    for (handler, of) in missing {
        let noun = if of.jobs() == 1 { "job waits" } else { "jobs wait" };
        let message = format!("{} {noun} for `{handler}`, which no live node has ({})", of.jobs(), of.kinds());
        // Workers that poll over HTTP are no nodes, so this may be as it should be.
        let fix = format!(
            "start a process or a worker that has it, or: windlass --all-tenants cancel --filter 'handler:{handler}'"
        );
        report.warn("handlers", message, fix);
    }
    Ok(())
}

/// Jobs that nobody can run, by why they wait.
#[derive(Default)]
struct Missing {
    ready: u64,
    blocked: u64,
    later: u64,
}

impl Missing {
    fn jobs(&self) -> u64 {
        self.ready + self.blocked + self.later
    }

    fn kinds(&self) -> String {
        let kinds = [(self.ready, "ready"), (self.blocked, "blocked"), (self.later, "not due")];
        let kinds = kinds.iter().filter(|(jobs, _)| *jobs > 0).map(|(jobs, kind)| format!("{jobs} {kind}"));
        kinds.collect::<Vec<_>>().join(", ")
    }
}

/// Jobs that are not due whose handlers are looked at, newest first: what a deploy or a typo of today has done is among
/// them, and no check of a million scheduled jobs takes long.
const LATER_LOOKED_AT: usize = 10 * Page::MAX;

/// The handlers of the newest jobs whose time has not come.
async fn not_due(backend: &dyn Backend) -> Result<Vec<String>> {
    let mut filter = JobFilter::all();
    filter.statuses = vec![Status::Scheduled, Status::Retrying];
    let mut handlers = Vec::new();
    let mut page = Page::first(Page::MAX);
    loop {
        let jobs = backend.list(&filter, page).await?;
        let last = jobs.last().map(|job| job.id);
        let is_last = jobs.len() < Page::MAX;
        handlers.extend(jobs.into_iter().map(|job| job.handler));
        match last {
            Some(last) if !is_last && handlers.len() < LATER_LOOKED_AT => page.before = Some(last),
            _ => return Ok(handlers),
        }
    }
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
            let advice = "list them with `windlass --all-tenants dead list`, then replay or purge them";
            report.warn("dead", format!("{n}{more} {noun} for a decision"), advice);
        }
    }
    Ok(())
}
