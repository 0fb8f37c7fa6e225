//! The pages and forms of schedules: loads what the views show, and carries out what forms ask for by the calls that the
//! API's routes use. Called by the router. Works on the schedules of one tenant: the one that the viewer looks at.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use maud::Markup;
use serde::Deserialize;
use windlass_core::text::{parse_duration, parse_timeout};
use windlass_core::{Calendar, Keeping, Missed, NO_TIMEOUT, Overlap, Page, Payload, Schedule, ScheduleState};

use super::actions::{self, unless_confirmed};
use super::notices::Notice;
use super::request::{Fields, Form, PageRequest};
use super::views::schedules::{self, path};
use super::{format, strip};
use crate::extract::Path;
use crate::problem::Problem;

/// Schedules on a page.
const PAGE_SCHEDULES: usize = 50;

/// Next runs on the page of a schedule: what fits beside the week.
const NEXT_RUNS: usize = 10;

/// Last runs on the page of a schedule; the list of jobs has the others.
const LAST_RUNS: usize = 10;

/// How many missed runs are made up for where the form does not say.
const MISSED_ALL: u32 = 10;

#[derive(Deserialize)]
pub(crate) struct Named {
    name: String,
}

/// The schedules of a tenant.
pub(crate) async fn list(request: PageRequest) -> Result<Markup, Problem> {
    let after = request.query.given("after");
    // One more than the page has, to know whether another page follows.
    let mut found = request.app.service.schedules().list(&request.context(), after, PAGE_SCHEDULES + 1).await?;
    let more = found.len() > PAGE_SCHEDULES;
    found.truncate(PAGE_SCHEDULES);
    let now = request.app.service.now();
    let with_day = |state: ScheduleState| {
        let calendar = Calendar::new(&state.schedule.cron, &state.schedule.zone, now).ok();
        (state.into(), calendar.map(|calendar| strip::next_day(&calendar, now)))
    };
    let page = schedules::Schedules {
        next: found.last().filter(|_| more).map(|state| state.schedule.name.clone()),
        is_later: after.is_some(),
        form: schedules::Form {
            handlers: request.handlers().await?,
            input: Some(String::new()),
            ..schedules::Form::default()
        },
        schedules: found.into_iter().map(with_day).collect(),
    };
    Ok(schedules::list(&request.frame().await?, &page))
}

/// One schedule.
pub(crate) async fn one(request: PageRequest, Path(Named { name }): Path<Named>) -> Result<Markup, Problem> {
    let (service, ctx, now) = (&request.app.service, request.context(), request.app.service.now());
    let state = service.schedules().get(&ctx, &name).await?;
    let runs = service.schedules().runs(&ctx, &name, Page::first(LAST_RUNS)).await?;
    let schedule = &state.schedule;
    // What was stored could fire once; an expression that has run out has no next times.
    let calendar = Calendar::new(&schedule.cron, &schedule.zone, now).ok();
    let page = schedules::Schedule {
        days: calendar.map(|calendar| strip::week(&calendar, &schedule.zone, now)).unwrap_or_default(),
        next: schedule.next_runs(now, NEXT_RUNS).unwrap_or_default(),
        runs,
        schedule: state.into(),
    };
    Ok(schedules::one(&request.frame().await?, &page))
}

/// The form that changes a schedule. Who may see inputs sees that of its jobs, which the audit log notes.
pub(crate) async fn edit(request: PageRequest, Path(Named { name }): Path<Named>) -> Result<Markup, Problem> {
    let (schedules, ctx) = (request.app.service.schedules(), request.context());
    let shows_input = request.may().payload;
    let state = match shows_input {
        true => schedules.read_input(&ctx, &name).await?,
        false => schedules.get(&ctx, &name).await?,
    };
    let form = schedules::Form { handlers: request.handlers().await?, ..form_of(&state, shows_input) };
    Ok(schedules::form(&request.frame().await?, &form))
}

fn form_of(state: &ScheduleState, shows_input: bool) -> schedules::Form {
    let schedule = &state.schedule;
    let (missed, missed_all) = match schedule.missed {
        Missed::All(n) => ("all".to_owned(), n.to_string()),
        missed => (missed.to_string(), String::new()),
    };
    let timeout = |timeout: Duration| if timeout == NO_TIMEOUT { "none".to_owned() } else { format::typed(timeout) };
    schedules::Form {
        name: schedule.name.clone(),
        cron: schedule.cron.clone(),
        zone: schedule.zone.clone(),
        handler: schedule.handler.clone(),
        input: shows_input.then(|| format::pretty(schedule.input.as_str())),
        missed,
        missed_all,
        overlap: schedule.overlap.as_str().to_owned(),
        jitter: if schedule.jitter.is_zero() { String::new() } else { format::typed(schedule.jitter) },
        queue: schedule.queue.clone().unwrap_or_default(),
        priority: schedule.priority.map(|priority| priority.0.to_string()).unwrap_or_default(),
        tags: schedule.tags.join(", "),
        timeout: schedule.spec.timeout.map(timeout).unwrap_or_default(),
        version: state.version,
        ..schedules::Form::default()
    }
}

/// Creates a schedule, or changes the version that the form shows.
pub(crate) async fn put(request: PageRequest, Form(form): Form) -> Result<Response, Problem> {
    match stored(&request, &form).await {
        Ok(state) => {
            let notice = if state.version == 1 { Notice::ScheduleAdded } else { Notice::Edited };
            Ok(request.done(&request.urls.path(&path(&state.schedule.name, "")), notice, None))
        }
        Err(problem) if (400..500).contains(&problem.status) => {
            let again = schedules::Form {
                problem: Some(problem.detail.clone()),
                handlers: request.handlers().await?,
                ..sent(&form)
            };
            Ok((problem.status_code(), schedules::form(&request.frame().await?, &again)).into_response())
        }
        Err(problem) => Err(problem),
    }
}

/// The form as it came.
fn sent(form: &Fields) -> schedules::Form {
    let text = |name: &str| form.get(name).to_owned();
    let version = form.number("version").ok().flatten().unwrap_or(0);
    let shows_input = version == 0 || form.0.iter().any(|(name, _)| name == "input");
    schedules::Form {
        name: text("name"),
        cron: text("cron"),
        zone: text("zone"),
        handler: text("handler"),
        input: shows_input.then(|| text("input")),
        missed: text("missed"),
        missed_all: text("missed_all"),
        overlap: text("overlap"),
        jitter: text("jitter"),
        queue: text("queue"),
        priority: text("priority"),
        tags: text("tags"),
        timeout: text("timeout"),
        version,
        ..schedules::Form::default()
    }
}

async fn stored(request: &PageRequest, form: &Fields) -> Result<ScheduleState, Problem> {
    let (schedules, ctx) = (request.app.service.schedules(), request.context());
    let version: u64 = form.number("version")?.unwrap_or(0);
    let was = match version {
        0 => None,
        _ => Some(schedules.get(&ctx, form.get("name")).await?.schedule),
    };
    let typed = actions::input(request, form)?;
    // The form shows the input with line breaks: what reads the same is the same.
    let is_same =
        |was: &Schedule, typed: &Payload| format::pretty(was.input.as_str()) == format::pretty(typed.as_str());
    let typed = typed.filter(|typed| !was.as_ref().is_some_and(|was| is_same(was, typed)));
    let keeping = Keeping { version: Some(version), input: typed.is_none(), headers: true };
    let mut schedule = read(form, typed.unwrap_or_else(Payload::null))?;
    if let Some(was) = was {
        // What the form has no field for stays.
        schedule.spec.retry = was.spec.retry;
        schedule.spec.retention = was.spec.retention;
    }
    Ok(schedules.put_keeping(&ctx, schedule, keeping).await?)
}

/// The schedule that a form describes.
fn read(form: &Fields, input: Payload) -> Result<Schedule, Problem> {
    let missed = match form.given("missed").unwrap_or("skip") {
        "all" => Missed::All(form.number("missed_all")?.unwrap_or(MISSED_ALL)),
        name => Missed::parse(name).ok_or_else(|| Problem::invalid("missed", "must be skip, once or all"))?,
    };
    let overlap = Overlap::parse(form.given("overlap").unwrap_or("allow"));
    let overlap = overlap.ok_or_else(|| Problem::invalid("overlap", "must be allow, skip or queue"))?;
    let mut schedule = Schedule::cron(form.get("name"), form.get("cron"))
        .zone(form.given("zone").unwrap_or("UTC"))
        .missed(missed)
        .overlap(overlap)
        .starts_named(form.get("handler"), input);
    if let Some(jitter) = form.given("jitter") {
        schedule = schedule.jitter(parse_duration(jitter).map_err(|message| Problem::invalid("jitter", message))?);
    }
    schedule.queue = form.given("queue").map(str::to_owned);
    schedule.priority = actions::priority(form)?;
    schedule.tags = actions::tags(form);
    if let Some(timeout) = form.given("timeout") {
        let timeout = parse_timeout(timeout).map_err(|message| Problem::invalid("timeout", message))?;
        schedule.spec.timeout = Some(timeout);
    }
    Ok(schedule)
}

pub(crate) async fn pause(
    request: PageRequest,
    Path(Named { name }): Path<Named>,
    Form(form): Form,
) -> Result<Response, Problem> {
    if let Some(question) = unless_confirmed(&request, &form, &path(&name, "/pause")).await? {
        return Ok(question);
    }
    request.app.service.schedules().pause(&request.context(), &name).await?;
    Ok(request.done(&request.back(&form), Notice::SchedulePaused, None))
}

pub(crate) async fn resume(
    request: PageRequest,
    Path(Named { name }): Path<Named>,
    Form(form): Form,
) -> Result<Response, Problem> {
    if let Some(question) = unless_confirmed(&request, &form, &path(&name, "/resume")).await? {
        return Ok(question);
    }
    request.app.service.schedules().resume(&request.context(), &name).await?;
    Ok(request.done(&request.back(&form), Notice::ScheduleResumed, None))
}

/// Starts a job now, and goes to it.
pub(crate) async fn trigger(
    request: PageRequest,
    Path(Named { name }): Path<Named>,
    Form(form): Form,
) -> Result<Response, Problem> {
    if let Some(question) = unless_confirmed(&request, &form, &path(&name, "/trigger")).await? {
        return Ok(question);
    }
    let submitted = request.app.service.schedules().trigger(&request.context(), &name).await?;
    let notice = if submitted.duplicate { Notice::ScheduleSkipped } else { Notice::Submitted };
    Ok(request.done(&request.urls.job(submitted.id), notice, None))
}

pub(crate) async fn remove(
    request: PageRequest,
    Path(Named { name }): Path<Named>,
    Form(form): Form,
) -> Result<Response, Problem> {
    if let Some(question) = unless_confirmed(&request, &form, &path(&name, "/remove")).await? {
        return Ok(question);
    }
    request.app.service.schedules().remove(&request.context(), &name).await?;
    Ok(request.done(&request.urls.path("/schedules"), Notice::ScheduleRemoved, None))
}
