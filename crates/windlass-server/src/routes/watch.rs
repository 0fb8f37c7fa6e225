//! Live routes: one job's status and progress (OPS-2) and the feed of all status changes (OPS-8), as server-sent events
//! that go on after the last event a client has seen.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::{self, Stream, StreamExt};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::{JobView, Status};

use crate::App;
use crate::auth::Caller;
use crate::extract::{PathJob, Query};
use crate::model::{ErrorBody, ProgressBody, StatusName};
use crate::problem::Problem;
use crate::streams;

/// Where a stream goes on.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct After {
    /// The id of the last event seen, where the header `Last-Event-ID` cannot be set.
    after: Option<u64>,
}

/// A change of a job's status.
#[derive(Serialize, ToSchema)]
pub(crate) struct StatusEvent {
    #[schema(value_type = StatusName)]
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
}

/// Follows one job: `status` and `progress` events from now on, `end` when it has ended. A slow reader gets the latest
/// only.
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
    Ok(streams::respond(&app, place, job_events(views, after)))
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
