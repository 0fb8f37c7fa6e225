//! Live routes: one job's status and progress and the feed of all status changes, as server-sent events
//! that go on after the last event a client has seen.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::{self, Stream, StreamExt};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::{FeedEvent, JobEvent, JobId, JobView, Status, TenantId, Timestamp};

use crate::App;
use crate::auth::Caller;
use crate::extract::{PathJob, Query};
use crate::model::{ErrorBody, ProgressBody, StatusName};
use crate::problem::Problem;
use crate::streams;

/// Where a stream continues.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct After {
    /// The id of the last event seen, if the header `Last-Event-ID` cannot be set.
    after: Option<u64>,
}

/// A status change of a job.
#[derive(Serialize, ToSchema)]
pub(crate) struct StatusEvent {
    #[schema(value_type = StatusName)]
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
}

/// Follows one job: `status` and `progress` events from now on, `end` when it has ended. A slow reader gets only the
/// latest events.
#[utoipa::path(get, path = "/jobs/{id}/events", tag = "live",
    params(("id" = String, Path), After, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, content_type = "text/event-stream", body = StatusEvent)))]
pub(crate) async fn job(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    PathJob(id): PathJob,
    Query(query): Query<After>,
) -> Result<Response, Problem> {
    let after = last_seen(&headers)?.or(query.after).unwrap_or(0);
    let ctx = caller.context_of(&app, id).await?;
    let place = app.streams.enter(&caller.principal)?;
    let views = app.service.watch(&ctx, id, after).await?;
    Ok(streams::respond(&app, place, &caller.principal, job_events(views, after)))
}

/// The id of the last event that a client has seen, which browsers send when they come back.
pub(crate) fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(id) = headers.get("last-event-id") else { return Ok(None) };
    let read = id.to_str().ok().and_then(|id| id.parse().ok());
    read.map(Some).ok_or_else(|| Problem::invalid("Last-Event-ID", "expected the id of an event"))
}

/// The events of one job: its status when it changes, its progress when there is more of it, and an end.
fn job_events(views: impl Stream<Item = JobView> + Send + 'static, after: u64) -> impl Stream<Item = Event> + Send {
    let mut told = Told { status: None, sequence: after };
    let events = views.flat_map(move |view| stream::iter(told.next(view)));
    events.chain(stream::iter([Event::default().event("end").data("{}")]))
}

/// What a client has been told.
struct Told {
    status: Option<Status>,
    sequence: u64,
}

impl Told {
    fn next(&mut self, view: JobView) -> Vec<Event> {
        let mut events = Vec::new();
        let progress = view.progress.filter(|progress| progress.sequence > self.sequence);
        if let Some(progress) = &progress {
            self.sequence = progress.sequence;
        }
        let progress = progress.map(ProgressBody::from);
        if self.status != Some(view.status) {
            self.status = Some(view.status);
            let error = view.error.map(ErrorBody::from);
            events.push(event("status", self.sequence, &StatusEvent { status: view.status, progress, error }));
        } else if let Some(progress) = &progress {
            events.push(event("progress", self.sequence, progress));
        }
        events
    }
}

/// One event with an id that a client can come back with.
pub(crate) fn event(name: &str, id: u64, data: &impl Serialize) -> Event {
    let text = serde_json::to_string(data).expect("an event is plain data");
    Event::default().event(name).id(id.to_string()).data(text)
}

/// Which events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FeedQuery {
    /// The id of the last event seen, if the header `Last-Event-ID` cannot be set.
    after: Option<u64>,
    /// Only jobs of this handler.
    handler_id: Option<String>,
    /// Only changes to one of these statuses, separated by commas.
    status: Option<String>,
}

/// A status change of a job.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobEventBody {
    #[schema(value_type = String)]
    job: JobId,
    #[schema(value_type = String)]
    tenant: TenantId,
    handler: String,
    #[schema(value_type = StatusName)]
    status: Status,
    attempt: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
}

impl From<JobEvent> for JobEventBody {
    fn from(event: JobEvent) -> Self {
        let JobEvent { job, tenant, handler, status, attempt, error, at, .. } = event;
        JobEventBody { job, tenant, handler, status, attempt, error: error.map(ErrorBody::from), at }
    }
}

/// Follows every status change on every node: `job` events, each at least once, from now on or after the last one seen.
#[utoipa::path(get, path = "/events", tag = "live", params(FeedQuery, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, content_type = "text/event-stream", body = JobEventBody)))]
pub(crate) async fn feed(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<FeedQuery>,
) -> Result<Response, Problem> {
    let after = last_seen(&headers)?.or(query.after);
    let names = query.status.iter().flat_map(|names| names.split(',')).filter(|name| !name.is_empty());
    let statuses = names.map(Status::parse).collect::<Result<Vec<_>, _>>()?;
    let place = app.streams.enter(&caller.principal)?;
    let feed = caller.within(&app).feed(after).await?;
    let handler = query.handler_id;
    let events = feed.filter_map(move |FeedEvent { sequence, event: told, .. }| {
        let wanted = handler.as_ref().is_none_or(|handler| *handler == told.handler)
            && (statuses.is_empty() || statuses.contains(&told.status));
        std::future::ready(wanted.then(|| event("job", sequence, &JobEventBody::from(told))))
    });
    Ok(streams::respond(&app, place, &caller.principal, events))
}
