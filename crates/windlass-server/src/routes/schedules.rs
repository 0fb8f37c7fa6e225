//! Routes of schedules: what starts jobs again and again. A caller reaches the schedules of one tenant: its own, or the
//! one that an operator of all tenants has selected. The input of a schedule's jobs has a route of its own, as a job's has.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use windlass_core::flows::calendar::local_time;
use windlass_core::flows::schedule::NEXT_RUNS_MAX;
use windlass_core::{
    Error, InvalidInput, Keeping, Missed, Overlap, Page, Payload, Priority, RetryPolicy, Schedule, ScheduleState,
    TenantId, Timestamp,
};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, Path, Query};
use crate::model::{self, JobPage, PriorityBody, RetryBody};
use crate::problem::Problem;
use crate::routes::jobs::{InputBody, SubmittedBody, payload};

/// Schedules on a page, unless the caller wants fewer or more.
const PAGE_SCHEDULES: usize = 50;

/// Next runs in a preview, unless the caller wants fewer or more.
const NEXT_RUNS: usize = 10;

/// A schedule, without the input of its jobs.
#[derive(Serialize, ToSchema)]
pub(crate) struct ScheduleBody {
    name: String,
    #[schema(value_type = String, format = Uuid)]
    tenant: TenantId,
    /// Grows with every change; send it with the next change to be refused if somebody else was faster.
    version: u64,
    /// Whether it fires nothing until it is resumed.
    paused: bool,
    /// Five or six fields, or a nickname such as `@daily`.
    cron: String,
    /// The IANA name of its time zone.
    zone: String,
    missed: MissedBody,
    /// While an earlier job has not ended: `allow` another beside it, `skip` this time, or `queue` behind it.
    #[schema(value_type = OverlapName)]
    overlap: &'static str,
    /// Each job starts up to this long after its nominal time.
    jitter_ms: u64,
    /// The handler that runs its jobs.
    handler: String,
    /// The queue of its jobs; the handler's own if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i16>)]
    priority: Option<Priority>,
    /// The labels of its jobs, besides `schedule:NAME`.
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    retry: Option<RetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_ms: Option<u64>,
    /// The service whose code defines it; its next start undoes changes made here.
    #[serde(skip_serializing_if = "Option::is_none")]
    defined_by: Option<String>,
    /// Its next nominal time; absent while it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_at: Option<Timestamp>,
    /// The last nominal time that it fired.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    last_at: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    changed_at: Timestamp,
}

/// What happens while an earlier job has not ended.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code)]
pub(crate) enum OverlapName {
    Allow,
    Skip,
    Queue,
}

/// What becomes of times at which no node was there to fire.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum MissedBody {
    /// `skip` them, or run the latest of them `once`.
    Name(String),
    /// Run the latest ones.
    All {
        /// At most this many, from 1 to 100.
        all: u32,
    },
}

impl From<Missed> for MissedBody {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::All(all) => MissedBody::All { all },
            missed => MissedBody::Name(missed.to_string()),
        }
    }
}

impl MissedBody {
    fn read(self) -> Result<Missed, InvalidInput> {
        match self {
            MissedBody::All { all } => Ok(Missed::All(all)),
            MissedBody::Name(name) if name == "skip" => Ok(Missed::Skip),
            MissedBody::Name(name) if name == "once" => Ok(Missed::Once),
            MissedBody::Name(_) => {
                Err(InvalidInput::new("missed", "expected `skip`, `once` or an object such as {\"all\": 5}"))
            }
        }
    }
}

impl From<ScheduleState> for ScheduleBody {
    fn from(state: ScheduleState) -> Self {
        let schedule = state.schedule;
        ScheduleBody {
            tenant: state.tenant,
            version: state.version,
            paused: state.paused,
            missed: schedule.missed.into(),
            overlap: schedule.overlap.as_str(),
            jitter_ms: model::millis(schedule.jitter),
            defined_by: schedule.defined_by().map(str::to_owned),
            name: schedule.name,
            cron: schedule.cron,
            zone: schedule.zone,
            handler: schedule.handler,
            queue: schedule.queue,
            priority: schedule.priority,
            tags: schedule.tags,
            timeout_ms: schedule.spec.timeout.map(model::millis),
            retry: schedule.spec.retry,
            retention_ms: schedule.spec.retention.map(model::millis),
            next_at: state.next_at.filter(|_| !state.paused),
            last_at: state.last_at,
            created_at: state.created_at,
            changed_at: state.changed_at,
        }
    }
}

/// A page of schedules, by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct SchedulesBody {
    schedules: Vec<ScheduleBody>,
    /// Pass it as `after` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Which schedules a list shows.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SchedulesQuery {
    /// Only schedules after this name: the `next` of the previous page.
    after: Option<String>,
    /// Maximum number of schedules: 50 by default, at most 200.
    #[param(minimum = 1)]
    limit: Option<usize>,
}

/// Lists schedules by name.
#[utoipa::path(get, path = "/schedules", tag = "schedules", params(SchedulesQuery),
    responses((status = 200, body = SchedulesBody)))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<SchedulesQuery>,
) -> Result<Json<SchedulesBody>, Problem> {
    let limit = counted("limit", query.limit, PAGE_SCHEDULES, Page::MAX)?;
    // One more than the page has, to know whether another page follows.
    let mut found = app.service.schedules().list(&caller.context(), query.after.as_deref(), limit + 1).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|state| state.schedule.name.clone());
    Ok(Json(SchedulesBody { schedules: found.into_iter().map(ScheduleBody::from).collect(), next }))
}

fn counted(field: &str, wanted: Option<usize>, default: usize, max: usize) -> Result<usize, Problem> {
    match wanted.unwrap_or(default) {
        count if (1..=max).contains(&count) => Ok(count),
        _ => Err(Problem::invalid(field, format!("must be 1 to {max}"))),
    }
}

/// What a schedule does. Omitted fields get their defaults; only an omitted `input` or `headers` stays as it was.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSchedule {
    /// Five or six fields, or a nickname such as `@daily`.
    cron: String,
    /// The IANA name of its time zone [default: UTC].
    zone: Option<String>,
    /// What becomes of times at which no node was there to fire [default: `skip`].
    missed: Option<MissedBody>,
    /// While an earlier job has not ended: `allow`, `skip` or `queue` [default: `allow`].
    #[schema(value_type = Option<OverlapName>)]
    overlap: Option<String>,
    /// Each job starts up to this long after its nominal time, at most an hour.
    jitter_ms: Option<u64>,
    /// The handler that runs its jobs.
    handler: String,
    /// The input of its jobs: any JSON. Omitted: as it was, or `null` for a new schedule.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
    /// The queue of its jobs [default: the handler's own].
    queue: Option<String>,
    /// The priority of its jobs.
    priority: Option<PriorityBody>,
    /// The labels of its jobs, besides `schedule:NAME`.
    #[serde(default)]
    tags: Vec<String>,
    /// The time limit of each attempt; 0 means no limit.
    timeout_ms: Option<u64>,
    /// Overrides the handler's retry policy.
    retry: Option<RetryBody>,
    /// How long ended jobs are stored.
    retention_ms: Option<u64>,
    /// Headers that are stored with its jobs. Omitted: as they were.
    headers: Option<BTreeMap<String, String>>,
    /// The version that the schedule must have, or 0 if it must not exist. Omitted: whatever it has.
    version: Option<u64>,
}

/// Tells `null`, which is an input, from nothing.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

impl NewSchedule {
    /// The schedule as the service knows it, and what of it stays as it was.
    fn read(self, name: &str, app: &App) -> Result<(Schedule, Keeping), Problem> {
        let keeping = Keeping { version: self.version, input: self.input.is_none(), headers: self.headers.is_none() };
        let input = self.input.map(|input| payload(app, &input)).transpose()?.unwrap_or_else(Payload::null);
        let mut schedule = Schedule::cron(name, self.cron).starts_named(self.handler, input);
        if let Some(zone) = self.zone {
            schedule = schedule.zone(zone);
        }
        if let Some(missed) = self.missed {
            schedule = schedule.missed(missed.read()?);
        }
        if let Some(overlap) = self.overlap {
            let expected = || InvalidInput::new("overlap", "expected `allow`, `skip` or `queue`");
            schedule = schedule.overlap(Overlap::parse(&overlap).ok_or_else(expected)?);
        }
        schedule = schedule.jitter(Duration::from_millis(self.jitter_ms.unwrap_or(0)));
        schedule.queue = self.queue;
        schedule.priority = self.priority.map(|priority| priority.read()).transpose()?;
        schedule.tags = self.tags;
        schedule.spec.timeout = model::optional("timeout_ms", self.timeout_ms)?;
        schedule.spec.retry = self.retry.map(RetryBody::read).transpose()?;
        schedule.spec.retention = model::optional("retention_ms", self.retention_ms)?;
        schedule.spec.headers = self.headers.unwrap_or_default();
        Ok((schedule, keeping))
    }
}

#[derive(Deserialize)]
pub(crate) struct ScheduleName {
    name: String,
}

/// Creates a schedule, or changes the one with this name. What it fires next is counted from now.
#[utoipa::path(put, path = "/schedules/{name}", tag = "schedules", request_body = NewSchedule,
    params(("name" = String, Path)),
    responses((status = 200, body = ScheduleBody, description = "Changed."),
        (status = 201, body = ScheduleBody, description = "Created.")))]
pub(crate) async fn put(
    State(app): State<App>,
    caller: Caller,
    Path(ScheduleName { name }): Path<ScheduleName>,
    extract::Json(new): extract::Json<NewSchedule>,
) -> Result<(StatusCode, Json<ScheduleBody>), Problem> {
    let (schedule, keeping) = new.read(&name, &app)?;
    let put = app.service.schedules().put_keeping(&caller.context(), schedule, keeping).await;
    let state = put.map_err(as_sent)?;
    let status = if state.version == 1 { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(state.into())))
}

/// Names the field of an error as the body of the request does.
fn as_sent(error: Error) -> Problem {
    match error {
        Error::InvalidInput(bad) if bad.field == "jitter" => Problem::invalid("jitter_ms", bad.message),
        error => error.into(),
    }
}

/// Returns one schedule.
#[utoipa::path(get, path = "/schedules/{name}", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = ScheduleBody)))]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(ScheduleName { name }): Path<ScheduleName>,
) -> Result<Json<ScheduleBody>, Problem> {
    Ok(Json(app.service.schedules().get(&caller.context(), &name).await?.into()))
}

/// Returns the input and the headers that a schedule's jobs get. The access is recorded in the audit log.
#[utoipa::path(get, path = "/schedules/{name}/input", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = InputBody)))]
pub(crate) async fn input(
    State(app): State<App>,
    caller: Caller,
    Path(ScheduleName { name }): Path<ScheduleName>,
) -> Result<Json<InputBody>, Problem> {
    let schedule = app.service.schedules().read_input(&caller.context(), &name).await?.schedule;
    Ok(Json(InputBody { input: schedule.input, headers: schedule.spec.headers }))
}

/// Removes a schedule. Jobs that it has started stay.
#[utoipa::path(delete, path = "/schedules/{name}", tag = "schedules", params(("name" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(ScheduleName { name }): Path<ScheduleName>,
) -> Result<StatusCode, Problem> {
    app.service.schedules().remove(&caller.context(), &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pauses a schedule: after the response it fires nothing until it is resumed.
#[utoipa::path(post, path = "/schedules/{name}/pause", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = ScheduleBody)))]
pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Path(ScheduleName { name }): Path<ScheduleName>,
) -> Result<Json<ScheduleBody>, Problem> {
    Ok(Json(app.service.schedules().pause(&caller.context(), &name).await?.into()))
}

/// Lets a paused schedule fire again from its next time on. Times that passed meanwhile do not run.
#[utoipa::path(post, path = "/schedules/{name}/resume", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = ScheduleBody)))]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Path(ScheduleName { name }): Path<ScheduleName>,
) -> Result<Json<ScheduleBody>, Problem> {
    Ok(Json(app.service.schedules().resume(&caller.context(), &name).await?.into()))
}

/// Starts a job of the schedule now, whether it is paused or not. `duplicate` means that its overlap policy is `skip` and
/// an earlier job, whose id is returned, has not ended.
#[utoipa::path(post, path = "/schedules/{name}/trigger", tag = "schedules", params(("name" = String, Path)),
    responses((status = 201, body = SubmittedBody, description = "Stored."),
        (status = 200, body = SubmittedBody, description = "An earlier job has not ended.")))]
pub(crate) async fn trigger(
    State(app): State<App>,
    caller: Caller,
    Path(ScheduleName { name }): Path<ScheduleName>,
) -> Result<(StatusCode, Json<SubmittedBody>), Problem> {
    let submitted = app.service.schedules().trigger(&caller.context(), &name).await?;
    let status = if submitted.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(submitted.into())))
}

/// Which next runs to show.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NextQuery {
    /// Number of runs: 10 by default, at most 1,000.
    #[param(minimum = 1)]
    count: Option<usize>,
    /// The viewer's time zone, an IANA name: adds `viewer` to each run.
    zone: Option<String>,
}

/// The next runs of a schedule.
#[derive(Serialize, ToSchema)]
pub(crate) struct NextRunsBody {
    /// The schedule's zone.
    zone: String,
    /// The viewer's zone, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    viewer_zone: Option<String>,
    /// The soonest first, also while the schedule is paused.
    runs: Vec<NextRun>,
}

/// One time at which a schedule fires.
#[derive(Serialize, ToSchema)]
pub(crate) struct NextRun {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// The same time by the clocks of the schedule's zone.
    #[schema(format = DateTime)]
    local: String,
    /// The same time by the clocks of the viewer's zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    viewer: Option<String>,
}

/// Returns the next times at which a schedule fires, in UTC, in its zone and in the viewer's.
#[utoipa::path(get, path = "/schedules/{name}/next", tag = "schedules", params(("name" = String, Path), NextQuery),
    responses((status = 200, body = NextRunsBody)))]
pub(crate) async fn next(
    State(app): State<App>,
    caller: Caller,
    Path(ScheduleName { name }): Path<ScheduleName>,
    Query(query): Query<NextQuery>,
) -> Result<Json<NextRunsBody>, Problem> {
    let count = counted("count", query.count, NEXT_RUNS, NEXT_RUNS_MAX)?;
    let ctx = caller.context();
    let zone = app.service.schedules().get(&ctx, &name).await?.schedule.zone;
    let times = app.service.schedules().next(&ctx, &name, count).await?;
    let viewer_zone = query.zone;
    let in_zone = |at, zone: &str| local_time(at, zone).map_err(|bad| Problem::invalid("zone", bad.to_string()));
    let run = |at: Timestamp| {
        let viewer = viewer_zone.as_deref().map(|zone| in_zone(at, zone)).transpose()?;
        Ok(NextRun { at, local: in_zone(at, &zone)?, viewer })
    };
    let runs = times.into_iter().map(run).collect::<Result<_, Problem>>()?;
    Ok(Json(NextRunsBody { zone, viewer_zone, runs }))
}

/// Which runs to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunsQuery {
    /// Maximum number of jobs: 50 by default, at most 200.
    #[param(minimum = 1)]
    limit: Option<usize>,
    /// Only jobs older than this one: the `next` of the previous page.
    before: Option<String>,
}

/// Lists the jobs that a schedule has started, newest first.
#[utoipa::path(get, path = "/schedules/{name}/runs", tag = "schedules", params(("name" = String, Path), RunsQuery),
    responses((status = 200, body = JobPage)))]
pub(crate) async fn runs(
    State(app): State<App>,
    caller: Caller,
    Path(ScheduleName { name }): Path<ScheduleName>,
    Query(query): Query<RunsQuery>,
) -> Result<Json<JobPage>, Problem> {
    let limit = counted("limit", query.limit, Page::default().limit, Page::MAX)?;
    let before = query.before.map(|id| model::job_id("before", &id)).transpose()?;
    let jobs = app.service.schedules().runs(&caller.context(), &name, Page { limit, before, offset: 0 }).await?;
    let next = jobs.last().filter(|_| jobs.len() == limit).map(|last| last.id);
    Ok(Json(JobPage::new(jobs, next)))
}
