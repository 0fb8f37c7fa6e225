//! Looks at jobs: list, show, why. Called by `commands::run`. Never writes.

use comfy_table::{Cell, Row};
use console::Style;
use serde_json::json;
use windlass::{HistoryEntry, JobFilter, JobId, JobRecord, NO_TIMEOUT, Page, Payload, Status, Timestamp};

use crate::args::{Global, ListArgs, PageArgs, ShowArgs};
use crate::backend::{Backend, Why};
use crate::commands::many::parse_filter;
use crate::error::{CliError, Result};
use crate::output::{Out, duration, number, plain, status_style};
use windlass::text::{show_duration, show_time};

/// Lists jobs, newest first.
pub(crate) async fn list(global: &Global, backend: &dyn Backend, args: &ListArgs, out: &Out) -> Result {
    let now = backend.now().await?;
    let mut filter = parse_filter(backend, args.filter.as_deref()).await?;
    narrow(&mut filter, args, now);
    let jobs = backend.list(&filter, args.page.page()).await?;
    print_jobs(global, &jobs, args.page, now, out)
}

/// What the options of `list` add to a filter; where both say something, the option counts.
fn narrow(filter: &mut JobFilter, args: &ListArgs, now: Timestamp) {
    fn set<T: Clone>(to: &mut Option<T>, from: &Option<T>) {
        if from.is_some() {
            to.clone_from(from);
        }
    }
    if !args.statuses.is_empty() {
        filter.statuses.clone_from(&args.statuses);
    }
    set(&mut filter.handler, &args.handler);
    set(&mut filter.tag, &args.tag);
    set(&mut filter.batch, &args.batch);
    set(&mut filter.correlation_id, &args.correlation_id);
    set(&mut filter.created_after, &args.created_after.map(|when| when.at(now)));
    set(&mut filter.created_before, &args.created_before.map(|when| when.at(now)));
}

/// Prints a page of jobs and how to get the next one.
pub(crate) fn print_jobs(global: &Global, jobs: &[JobRecord], page: PageArgs, now: Timestamp, out: &Out) -> Result {
    let next = jobs.last().filter(|_| jobs.len() == page.limit).map(|job| job.id);
    if out.wants_json() {
        return out.json(&json!({ "jobs": jobs, "next_before": next }));
    }
    if jobs.is_empty() {
        out.say(format_args!("no jobs found{}", global.whose()));
        return Ok(());
    }
    type Column = (&'static str, usize, fn(&JobRecord, Timestamp, &Out) -> Cell);
    // Each with the width it needs the output to have: the least telling go first where room is scarce.
    let columns: [Column; 9] = [
        ("ID", 0, |job, _, _| Cell::new(job.id)),
        ("TENANT", 0, |job, _, out| Cell::new(out.tenant(job.tenant))),
        ("HANDLER", 0, |job, _, _| Cell::new(plain(&job.handler))),
        ("STATUS", 0, |job, _, out| out.status(job.status)),
        ("ATTEMPT", 100, |job, _, _| number(job.attempt)),
        ("PRIORITY", 110, |job, _, _| number(job.priority.0)),
        ("CREATED", 100, |job, now, out| Cell::new(out.time(job.created_at, now))),
        ("TOOK/AGE", 0, |job, now, _| duration(took_or_age(job, now))),
        ("REASON", 0, |job, _, _| Cell::new(remark(job))),
    ];
    let width = out.width();
    let wanted = |(name, needs, _): &Column| width >= *needs && (*name != "TENANT" || global.all_tenants);
    let columns: Vec<Column> = columns.into_iter().filter(wanted).collect();
    let mut table = out.table(&columns.iter().map(|(name, ..)| *name).collect::<Vec<_>>());
    for job in jobs {
        let mut row = Row::from(columns.iter().map(|(_, _, cell)| cell(job, now, out)));
        // Several lines per job would hide the list behind one long error.
        row.max_height(1);
        table.add_row(row);
    }
    out.print_table(table, columns.len() - 1)?;
    if let Some(next) = next {
        out.say(format_args!("for the next page add --before {next}"));
    }
    Ok(())
}

/// How long the last attempt took or has taken; for a job that waits, how long ago it was submitted.
fn took_or_age(job: &JobRecord, now: Timestamp) -> std::time::Duration {
    match (job.started_at, job.finished_at) {
        (Some(started), Some(finished)) => finished.since(started),
        (Some(started), None) if job.status == Status::Running => now.since(started),
        _ => now.since(job.created_at),
    }
}

/// What is worth knowing about a job in a list: why it ended or waits, or what went wrong last.
fn remark(job: &JobRecord) -> String {
    let progress = job.progress.as_ref().filter(|_| job.status == Status::Running);
    let text = match (progress, &job.reason, &job.error) {
        (Some(progress), ..) => format!("{:.0} % {}", progress.percent, progress.message),
        (None, Some(reason), Some(error)) if !job.status.is_terminal() || *reason != error.code => {
            format!("{reason} ({error})")
        }
        (None, _, Some(error)) => error.to_string(),
        (None, Some(reason), None) => reason.clone(),
        (None, None, None) => String::new(),
    };
    console::truncate_str(&plain(&text), REMARK_COLUMNS, "…").into_owned()
}

/// An error in a list is cut here; `show` has all of it.
const REMARK_COLUMNS: usize = 80;

/// Shows one job.
pub(crate) async fn show(backend: &dyn Backend, args: &ShowArgs, out: &Out) -> Result {
    let (job, why) = (backend.job(args.id).await?, backend.why(args.id).await?);
    let input = if args.input { Some(opened(backend.input(args.id).await)?) } else { None };
    let history = if args.history { Some(backend.history(args.id).await?) } else { None };
    if out.wants_json() {
        let mut shown = json!({ "job": job, "why": why });
        match &input {
            None => {}
            Some(Ok(input)) => shown["input"] = json!(input),
            Some(Err(error)) => {
                shown["input"] = json!(null);
                shown["sealed"] = json!({ "code": error.code(), "message": error.to_string() });
            }
        }
        if let Some(history) = history {
            shown["history"] = json!(history);
        }
        return out.json(&shown);
    }
    print_job(&job, &why, out)?;
    match &input {
        None => {}
        Some(Ok(input)) => print_field("input", plain(input.as_str()), out)?,
        Some(Err(error)) => print_field("input", sealed(error), out)?,
    }
    if let Some(history) = history {
        out.line("")?;
        print_history(&history, out)?;
    }
    Ok(())
}

/// An input, or why its seal keeps it; any other failure is one of the command.
fn opened(input: Result<Payload>) -> Result<Result<Payload>> {
    match input {
        Err(error) if SEALS.contains(&error.code()) => Ok(Err(error)),
        Err(error) => Err(error),
        Ok(input) => Ok(Ok(input)),
    }
}

/// The codes of what a seal keeps from being read.
const SEALS: [&str; 4] = ["sealed", "key_unavailable", "key_destroyed", "seal_broken"];

/// Says why a job is not running now; of a dead letter also what went wrong and what to do.
pub(crate) async fn why(global: &Global, backend: &dyn Backend, id: JobId, out: &Out) -> Result {
    let (why, job) = (backend.why(id).await?, backend.job(id).await?);
    let all = if global.all_tenants { " --all-tenants" } else { "" };
    let next = match (job.status, &job.replayed) {
        (Status::DeadLettered, None) => Some(format!("windlass{all} dead replay {id}")),
        _ => None,
    };
    if out.wants_json() {
        let mut shown = json!(why);
        if job.status == Status::DeadLettered {
            shown["error"] = json!(job.error);
            shown["next"] = json!(next);
        }
        return out.json(&shown);
    }
    out.line(explain(&job, &why))?;
    if let Some(error) = job.error.as_ref().filter(|_| job.status == Status::DeadLettered) {
        out.line(format_args!("last error: {}", plain(&error.to_string())))?;
    }
    if let Some(next) = next {
        out.line(format_args!("when the cause is fixed, retry it with `{next}`"))?;
    }
    Ok(())
}

/// Why in a sentence: of a dead letter what made it one, which the time of its end alone does not say.
fn explain(job: &JobRecord, why: &Why) -> String {
    let (Status::DeadLettered, Some(at)) = (job.status, job.finished_at) else { return plain(why.text()) };
    let reason = job.reason.as_deref().map(|reason| format!(": {}", plain(reason))).unwrap_or_default();
    let attempts = if job.attempt == 1 { "1 attempt".to_owned() } else { format!("{} attempts", job.attempt) };
    let replayed = job.replayed.as_ref().map(|as_what| format!("; replayed as {}", as_what.as_job)).unwrap_or_default();
    format!("it has been a dead letter since {}{reason}, after {attempts}{replayed}", show_time(at))
}

fn print_job(job: &JobRecord, why: &Why, out: &Out) -> Result {
    print_field("job", job.id, out)?;
    print_field("handler", plain(&job.handler), out)?;
    print_field("status", out.paint(&status_style(job.status), job.status), out)?;
    print_field("why", explain(job, why), out)?;
    print_field("tenant", job.tenant, out)?;
    print_field("queue", plain(&job.queue), out)?;
    print_field("priority", job.priority.0, out)?;
    print_field("attempt", attempts(job), out)?;
    print_field("created", show_time(job.created_at), out)?;
    let times = [("due", job.run_at), ("started", job.started_at), ("finished", job.finished_at)];
    for (name, time) in times {
        if let Some(time) = time {
            print_field(name, show_time(time), out)?;
        }
    }
    if let (Some(started), Some(finished)) = (job.started_at, job.finished_at) {
        print_field("took", show_duration(finished.since(started)), out)?;
    }
    if let Some(node) = job.node {
        print_field("node", node.0, out)?;
    }
    if let Some(progress) = &job.progress {
        print_field("progress", format_args!("{:.0} % {}", progress.percent, plain(&progress.message)), out)?;
    }
    let texts = [
        ("reason", job.reason.clone()),
        ("error", job.error.as_ref().map(ToString::to_string)),
        ("output", job.output.as_ref().map(shown_output)),
        ("batch", job.batch.map(|batch| batch.0.to_string())),
        ("tags", Some(job.tags.join(", ")).filter(|tags| !tags.is_empty())),
        ("correlation", job.correlation_id.clone()),
        ("ordering key", job.ordering_key.clone()),
        ("key", job.spec.idempotency_key.clone()),
        ("cost", job.cost.map(|cost| cost.to_string())),
        (
            "timeout",
            job.spec.timeout.map(|limit| if limit == NO_TIMEOUT { "none".to_owned() } else { show_duration(limit) }),
        ),
        ("expires", job.spec.expires_at.map(show_time)),
        ("deadline", job.spec.deadline_at.map(show_time)),
        ("nominal time", job.spec.nominal_at.map(show_time)),
        ("submitted by", job.spec.user.clone()),
        ("service", job.spec.service.clone()),
        ("parent", job.spec.parent.map(|parent| parent.to_string())),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            print_field(name, plain(&text), out)?;
        }
    }
    if let Some(replayed) = &job.replayed {
        let by = plain(&replayed.by);
        print_field("replayed", format_args!("as {} by {by} at {}", replayed.as_job, show_time(replayed.at)), out)?;
    }
    Ok(())
}

/// How often it was tried, and what became of it.
pub(crate) fn attempts(job: &JobRecord) -> String {
    let lost = match job.recoveries {
        0 => String::new(),
        1 => ", 1 node lost with it".to_owned(),
        n => format!(", {n} nodes lost with it"),
    };
    format!("{} ({} failed{lost})", job.attempt, job.failed)
}

/// An output for people, or that it is sealed.
pub(crate) fn shown_output(output: &Payload) -> String {
    if output.is_sealed() { NEEDS_KEYS.to_owned() } else { output.as_str().to_owned() }
}

/// What is shown in place of a text that cannot be opened.
fn sealed(error: &CliError) -> String {
    if error.code() == "sealed" { NEEDS_KEYS.to_owned() } else { format!("[sealed] {error}") }
}

const NEEDS_KEYS: &str = "[sealed] name the key file with --key-file";

fn print_field(name: &str, value: impl std::fmt::Display, out: &Out) -> Result {
    out.line(format_args!("{} {value}", out.paint(&Style::new().dim(), format_args!("{name:<13}"))))
}

fn print_history(history: &[HistoryEntry], out: &Out) -> Result {
    let mut table = out.table(&["WHEN", "STATUS", "ATTEMPT", "NODE", "TOOK", "WHAT"]);
    for entry in history {
        let what = match (&entry.error, &entry.note) {
            (Some(error), Some(note)) => format!("{error} ({note})"),
            (Some(error), None) => error.to_string(),
            (None, note) => note.clone().unwrap_or_default(),
        };
        table.add_row(vec![
            Cell::new(show_time(entry.at)),
            out.status(entry.status),
            number(entry.attempt),
            number(entry.node.map(|node| node.0.to_string()).unwrap_or_default()),
            number(entry.started_at.map(|at| show_duration(entry.at.since(at))).unwrap_or_default()),
            Cell::new(plain(&what)),
        ]);
    }
    out.print_table(table, 5)
}

impl PageArgs {
    /// As stores want it.
    pub(crate) fn page(self) -> Page {
        Page { limit: self.limit, before: self.before, offset: self.offset }
    }
}
