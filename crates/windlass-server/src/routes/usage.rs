//! Routes of log lines and of what jobs cost, and of what happens over time.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use windlass_core::{Backlog, Cost, JobId, LogLine, Span, TenantId, Timestamp, UsageEvent, UsageRow};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, PathJob, Query};
use crate::problem::Problem;

/// Which log lines to read.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogsQuery {
    /// Only entries after this sequence number.
    after: Option<u64>,
}

/// One line that a job has logged.
#[derive(Serialize, ToSchema)]
pub(crate) struct LogLineBody {
    /// Counts the lines of the job; lines with missing numbers were dropped.
    sequence: u64,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    attempt: u16,
    /// `trace`, `debug`, `info`, `warn` or `error`.
    level: &'static str,
    message: String,
}

impl From<LogLine> for LogLineBody {
    fn from(line: LogLine) -> Self {
        let LogLine { sequence, at, attempt, level, message, .. } = line;
        LogLineBody { sequence, at, attempt, level: level.as_str(), message }
    }
}

/// The log of a job.
#[derive(Serialize, ToSchema)]
pub(crate) struct LogsBody {
    /// Oldest first.
    lines: Vec<LogLineBody>,
}

/// Returns the log lines of a job's attempts, oldest first.
#[utoipa::path(get, path = "/jobs/{id}/logs", tag = "jobs", params(("id" = String, Path), LogsQuery),
    responses((status = 200, body = LogsBody)))]
pub(crate) async fn logs(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
    Query(query): Query<LogsQuery>,
) -> Result<Json<LogsBody>, Problem> {
    let ctx = caller.context_of(&app, id).await?;
    let lines = app.service.logs(&ctx, id, query.after.unwrap_or(0)).await?;
    Ok(Json(LogsBody { lines: lines.into_iter().map(LogLineBody::from).collect() }))
}

/// The cost of a job; negative for a refund.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewCost {
    /// Money, in cents.
    #[serde(default)]
    cents: i64,
    /// Any other unit.
    #[serde(default)]
    units: i64,
}

/// Records a cost of a job, whatever its status.
#[utoipa::path(post, path = "/jobs/{id}/cost", tag = "jobs", params(("id" = String, Path)),
    request_body = NewCost, responses((status = 204)))]
pub(crate) async fn record(
    State(app): State<App>,
    caller: Caller,
    PathJob(id): PathJob,
    extract::Json(new): extract::Json<NewCost>,
) -> Result<StatusCode, Problem> {
    for (field, amount) in [("cents", new.cents), ("units", new.units)] {
        if !(-Cost::MAX..=Cost::MAX).contains(&amount) {
            return Err(Problem::invalid(field, format!("must be from -{0} to {0}", Cost::MAX)));
        }
    }
    let ctx = caller.context_of(&app, id).await?;
    app.service.record_cost(&ctx, id, Cost::new(new.cents, new.units)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which days.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DaysQuery {
    /// The first day, as `2026-11-16`; 30 days ago by default.
    from: Option<String>,
    /// The last day; today by default.
    to: Option<String>,
}

/// The cost of the jobs of one tenant and handler on one day, in UTC.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageRowBody {
    #[schema(value_type = String)]
    tenant: TenantId,
    handler: String,
    day: String,
    jobs: u64,
    cents: i64,
    units: i64,
}

impl From<UsageRow> for UsageRowBody {
    fn from(row: UsageRow) -> Self {
        let UsageRow { tenant, handler, day, jobs, cents, units } = row;
        UsageRowBody { tenant, handler, day, jobs, cents, units }
    }
}

/// The cost of jobs.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageBody {
    usage: Vec<UsageRowBody>,
}

/// How many days are shown where the caller does not say.
const USUAL_DAYS: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);

/// Returns the cost of jobs by tenant, handler and day.
#[utoipa::path(get, path = "/usage", tag = "look", params(DaysQuery), responses((status = 200, body = UsageBody)))]
pub(crate) async fn usage(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<DaysQuery>,
) -> Result<Json<UsageBody>, Problem> {
    let now = app.service.now();
    let from = query.from.map(|day| read_day("from", &day)).transpose()?.unwrap_or(now - USUAL_DAYS);
    let to = query.to.map(|day| read_day("to", &day)).transpose()?.unwrap_or(now);
    let rows = caller.within(&app).usage_by_day(from, to).await?;
    Ok(Json(UsageBody { usage: rows.into_iter().map(UsageRowBody::from).collect() }))
}

fn read_day(field: &str, day: &str) -> Result<Timestamp, Problem> {
    let at = (day.len() == 10).then(|| Timestamp::parse(&format!("{day}T00:00:00Z"))).flatten();
    at.ok_or_else(|| Problem::invalid(field, "expected a day such as 2026-11-16"))
}

/// Which costs.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Only entries after this sequence number.
    after: Option<u64>,
    /// Maximum number of entries: 100 by default, at most 1,000.
    #[param(minimum = 1)]
    limit: Option<usize>,
}

/// One recorded cost.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageEventBody {
    /// Increases with each entry: pass the last one as `after`.
    sequence: u64,
    #[schema(value_type = String)]
    job: JobId,
    #[schema(value_type = String)]
    tenant: TenantId,
    handler: String,
    cents: i64,
    units: i64,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
}

impl From<UsageEvent> for UsageEventBody {
    fn from(event: UsageEvent) -> Self {
        let UsageEvent { sequence, job, tenant, handler, cents, units, at } = event;
        UsageEventBody { sequence, job, tenant, handler, cents, units, at }
    }
}

/// Costs one by one.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageEventsBody {
    events: Vec<UsageEventBody>,
}

/// Lists recorded costs, so that other systems can continue reading where they stopped.
#[utoipa::path(get, path = "/usage/events", tag = "look", params(EventsQuery),
    responses((status = 200, body = UsageEventsBody)))]
pub(crate) async fn events(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<EventsQuery>,
) -> Result<Json<UsageEventsBody>, Problem> {
    let (after, limit) = (query.after.unwrap_or(0), query.limit.unwrap_or(100));
    let events = caller.within(&app).usage_events(after, limit).await?;
    Ok(Json(UsageEventsBody { events: events.into_iter().map(UsageEventBody::from).collect() }))
}

/// Which span.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SpanQuery {
    /// `5m`, `1h`, `24h` or `7d`; `1h` by default.
    span: Option<String>,
}

/// Returns the activity over a span of time: `step_ms`, evenly spaced `points`, and sums `by_handler`.
#[utoipa::path(get, path = "/activity", tag = "look", params(SpanQuery), responses((status = 200, body = Value)))]
pub(crate) async fn activity(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<SpanQuery>,
) -> Result<Json<Value>, Problem> {
    let span = Span::parse(query.span.as_deref().unwrap_or("1h"))?;
    let activity = caller.within(&app).activity(span).await?;
    let by_handler = activity.by_handler.iter().map(|(handler, sums)| {
        let mut sums = serde_json::to_value(sums).unwrap_or_default();
        sums["handler"] = handler.as_str().into();
        sums
    });
    let by_handler: Vec<Value> = by_handler.collect();
    let step_ms = activity.step.as_millis() as u64;
    Ok(Json(serde_json::json!({ "step_ms": step_ms, "points": activity.points, "by_handler": by_handler })))
}

/// Which handler.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct BacklogQuery {
    /// Only this handler, which is listed even if none of its jobs wait.
    handler: Option<String>,
}

/// Returns the waiting and running jobs of each handler, for autoscalers: `backlog`, with `waiting`, `oldest_wait_ms`,
/// `blocked`, `running` and `per_second` of each.
#[utoipa::path(get, path = "/backlog", tag = "look", params(BacklogQuery), responses((status = 200, body = Value)))]
pub(crate) async fn backlog(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<BacklogQuery>,
) -> Result<Json<Value>, Problem> {
    let mut backlog = caller.within(&app).backlog().await?;
    if let Some(handler) = query.handler {
        backlog.retain(|of| of.handler == handler);
        // A place that is missing would be an error to an autoscaler, which waits for a number.
        if backlog.is_empty() {
            let mut nothing = Backlog::default();
            nothing.handler = handler;
            backlog.push(nothing);
        }
    }
    Ok(Json(serde_json::json!({ "backlog": backlog })))
}

/// Returns the health of the installation: depth, active and stale jobs, nodes, and the vitals of the store.
#[utoipa::path(get, path = "/health", tag = "look", responses((status = 200, body = Value)))]
pub(crate) async fn health(State(app): State<App>) -> Result<Json<Value>, Problem> {
    let health = app.service.health().await?;
    Ok(Json(serde_json::to_value(&health).unwrap_or_default()))
}
