//! What starts jobs again and again: list, show, put, remove, pause, resume, trigger, next, runs. Called by `commands::run`.
//! Works on the schedules of one tenant.

use comfy_table::Cell;
use serde_json::json;
use windlass::text::{show_duration, show_time};
use windlass::{Keeping, Page, Payload, Schedule};

use crate::args::{Global, PageArgs, ScheduleArgs, SchedulesCommand};
use crate::backend::{Backend, ScheduleView};
use crate::commands::jobs::print_jobs;
use crate::commands::submit::read_input;
use crate::error::{CliError, Result};
use crate::output::{Out, plain};

/// Carries out one of the commands.
pub(crate) async fn run(global: &Global, backend: &dyn Backend, command: SchedulesCommand, out: &Out) -> Result {
    if global.all_tenants {
        return Err(CliError::invalid("all_tenants", "a schedule belongs to one tenant; name it with --tenant"));
    }
    match command {
        SchedulesCommand::List { limit, after } => list(global, backend, limit, after.as_deref(), out).await,
        SchedulesCommand::Show { name, input } => show(backend, &name, input, out).await,
        SchedulesCommand::Put(args) => put(backend, *args, out).await,
        SchedulesCommand::Remove { name } => remove(backend, &name, out).await,
        SchedulesCommand::Pause { name } => set_paused(backend, &name, true, out).await,
        SchedulesCommand::Resume { name } => set_paused(backend, &name, false, out).await,
        SchedulesCommand::Trigger { name } => trigger(backend, &name, out).await,
        SchedulesCommand::Next { name, count, zone } => next(backend, &name, count, zone, out).await,
        SchedulesCommand::Runs { name, limit, before } => {
            let page = PageArgs { limit, before, offset: 0 };
            let jobs = backend.schedule_runs(&name, Page { limit, before, offset: 0 }).await?;
            print_jobs(global, &jobs, page, backend.now().await?, out)
        }
    }
}

async fn list(global: &Global, backend: &dyn Backend, limit: usize, after: Option<&str>, out: &Out) -> Result {
    let page = backend.schedules(after, limit).await?;
    if out.wants_json() {
        return out.json(&page);
    }
    if page.schedules.is_empty() {
        out.say(format_args!("no schedules{}", global.whose()));
        return Ok(());
    }
    let mut table = out.table(&["NAME", "CRON", "ZONE", "HANDLER", "NEXT", "LAST", "STATE"]);
    for schedule in &page.schedules {
        table.add_row(vec![
            Cell::new(plain(&schedule.name)),
            Cell::new(plain(&schedule.cron)),
            Cell::new(plain(&schedule.zone)),
            Cell::new(plain(&schedule.handler)),
            Cell::new(schedule.next_at.map(show_time).unwrap_or_default()),
            Cell::new(schedule.last_at.map(show_time).unwrap_or_default()),
            Cell::new(state(schedule)),
        ]);
    }
    out.print_table(table, 0)?;
    if let Some(next) = page.next {
        out.say(format_args!("for the next page add --after '{}'", plain(&next)));
    }
    Ok(())
}

fn state(schedule: &ScheduleView) -> &'static str {
    match (schedule.paused, schedule.next_at) {
        (true, _) => "paused",
        (false, Some(_)) => "on",
        (false, None) => "never fires again",
    }
}

async fn show(backend: &dyn Backend, name: &str, input: bool, out: &Out) -> Result {
    let schedule = backend.schedule(name).await?;
    let input = if input { Some(backend.schedule_input(name).await?) } else { None };
    if out.wants_json() {
        let mut shown = json!({ "schedule": schedule });
        if let Some(input) = &input {
            shown["input"] = json!(input);
        }
        return out.json(&shown);
    }
    for (field, value) in fields(&schedule).into_iter().chain(input.map(|input| ("input", plain(input.as_str())))) {
        out.line(format_args!("{field:<11} {value}"))?;
    }
    Ok(())
}

/// What people see of a schedule, line by line.
fn fields(schedule: &ScheduleView) -> Vec<(&'static str, String)> {
    let millis = |ms: u64| show_duration(std::time::Duration::from_millis(ms));
    let mut fields = vec![
        ("name", plain(&schedule.name)),
        ("cron", format!("{} ({})", plain(&schedule.cron), plain(&schedule.zone))),
        ("handler", plain(&schedule.handler)),
        ("state", state(schedule).to_owned()),
        ("missed", schedule.missed.to_string()),
        ("overlap", schedule.overlap.as_str().to_owned()),
    ];
    let optional = [
        ("next", schedule.next_at.map(show_time)),
        ("last", schedule.last_at.map(show_time)),
        ("jitter", Some(schedule.jitter_ms).filter(|ms| *ms > 0).map(millis)),
        ("queue", schedule.queue.as_deref().map(plain)),
        ("priority", schedule.priority.map(|priority| priority.to_string())),
        ("tags", (!schedule.tags.is_empty()).then(|| plain(&schedule.tags.join(", ")))),
        ("timeout", schedule.timeout_ms.map(millis)),
        ("defined by", schedule.defined_by.as_deref().map(plain)),
    ];
    fields.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    fields.push(("version", format!("{}, changed {}", schedule.version, show_time(schedule.changed_at))));
    fields
}

async fn put(backend: &dyn Backend, args: ScheduleArgs, out: &Out) -> Result {
    let keeping = Keeping { version: args.expect, input: args.input.is_none(), headers: true };
    let input = match &args.input {
        None => Payload::null(),
        Some(given) => {
            let max = windlass::Limits::default().payload_bytes;
            Payload::check("input", read_input(Some(given))?.get(), max)?
        }
    };
    let mut schedule = Schedule::cron(args.name, args.cron)
        .zone(args.zone)
        .missed(args.missed)
        .overlap(args.overlap)
        .jitter(args.jitter.unwrap_or_default())
        .starts_named(args.handler, input);
    schedule.queue = args.queue;
    schedule.priority = args.priority;
    schedule.tags = args.tags;
    schedule.spec.timeout = args.timeout;
    let stored = backend.put_schedule(schedule, keeping).await?;
    if out.wants_json() {
        return out.json(&stored);
    }
    let what = if stored.version == 1 { "created" } else { "changed" };
    let next = stored.next_at.map_or_else(|| state(&stored).to_owned(), |at| format!("fires next {}", show_time(at)));
    out.line(format_args!("{} is {what}; {next}", plain(&stored.name)))
}

async fn remove(backend: &dyn Backend, name: &str, out: &Out) -> Result {
    backend.remove_schedule(name).await?;
    if out.wants_json() {
        return out.json(&json!({ "removed": name }));
    }
    out.line(format_args!("{} is removed", plain(name)))
}

async fn set_paused(backend: &dyn Backend, name: &str, paused: bool, out: &Out) -> Result {
    let schedule = backend.pause_schedule(name, paused).await?;
    if out.wants_json() {
        return out.json(&schedule);
    }
    out.line(format_args!("{} is {}", plain(name), if paused { "paused" } else { "resumed" }))
}

async fn trigger(backend: &dyn Backend, name: &str, out: &Out) -> Result {
    let submitted = backend.trigger_schedule(name).await?;
    if out.wants_json() {
        return out.json(&submitted);
    }
    if submitted.duplicate {
        out.say("an earlier job of this schedule has not ended; nothing was started");
    }
    out.line(submitted.id)
}

async fn next(backend: &dyn Backend, name: &str, count: usize, zone: Option<String>, out: &Out) -> Result {
    let zone = zone.or_else(own_zone);
    let next = backend.next_runs(name, count, zone.as_deref()).await?;
    if out.wants_json() {
        return out.json(&next);
    }
    let mut columns = vec![next.zone.clone()];
    columns.extend(next.viewer_zone.clone().filter(|zone| *zone != next.zone));
    let mut table = out.table(&columns.iter().map(String::as_str).collect::<Vec<_>>());
    for run in next.runs {
        let shown = [Some(run.local), run.viewer];
        table.add_row(shown.into_iter().flatten().take(columns.len()).map(|at| Cell::new(readable(&at))));
    }
    out.print_table(table, 0)
}

/// A local time as people read it: without the letter between date and time.
fn readable(at: &str) -> String {
    plain(at).replacen('T', " ", 1)
}

/// The zone of this machine, if it is one that has a name.
fn own_zone() -> Option<String> {
    jiff::tz::TimeZone::system().iana_name().map(ToOwned::to_owned)
}
