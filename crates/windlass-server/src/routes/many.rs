//! Routes for many jobs at once: previews, bulk actions, failure groups, paced replays (BEY-2, BEY-3, BEY-6). What is
//! acted on has to be confirmed with the count that the preview gave, so that a filter cannot mean more than was seen.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::failures::{FailureGroup, Signature};
use windlass_core::{
    Bulk, BulkAction, BulkId, BulkOptions, BulkProgress, BulkState, JobFilter, JobId, Preview, Status, TenantId,
    Timestamp,
};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, Path, Query};
use crate::model::{self, Job, PriorityBody};
use crate::problem::Problem;
use crate::routes::jobs::allow_filter;

/// Which jobs to count.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PreviewOf {
    /// Which jobs, such as `handler:mail.send status:dead`.
    #[serde(default)]
    filter: String,
    /// What would be done, to count only jobs to which it can be done.
    action: Option<String>,
    /// Count no further than this; 1,000 by default, 100,000 at most.
    cap: Option<usize>,
}

/// What a bulk action would act on.
#[derive(Serialize, ToSchema)]
pub(crate) struct PreviewBody {
    /// How many jobs pass, up to the cap: the `confirm` of the action.
    jobs: u64,
    /// Whether there are more than the cap.
    more: bool,
    /// The newest of them.
    sample: Vec<Job>,
}

/// Counts the jobs that a filter means, and shows some. Changes nothing.
#[utoipa::path(post, path = "/jobs/bulk/preview", tag = "many", request_body = PreviewOf,
    responses((status = 200, body = PreviewBody)))]
pub(crate) async fn preview(
    State(app): State<App>,
    caller: Caller,
    extract::Json(of): extract::Json<PreviewOf>,
) -> Result<Json<PreviewBody>, Problem> {
    let mut filter = read_filter(&app, &caller, &of.filter)?;
    if let Some(action) = &of.action {
        filter = read_action(action, String::new(), Some(windlass_core::Priority::NORMAL))?.narrow(&filter)?;
    }
    let cap = of.cap.unwrap_or(BulkOptions::default().cap);
    let Preview { jobs, more, sample, .. } = preview_of(&app, &caller, &filter, cap).await?;
    Ok(Json(PreviewBody { jobs, more, sample: sample.into_iter().map(Job::from).collect() }))
}

fn read_filter(app: &App, caller: &Caller, text: &str) -> Result<JobFilter, Problem> {
    let filter = model::parse_filter(Some(text), app.service.now())?;
    allow_filter(caller, &filter)?;
    Ok(filter)
}

async fn preview_of(app: &App, caller: &Caller, filter: &JobFilter, cap: usize) -> Result<Preview, Problem> {
    Ok(match caller.operator() {
        Some(right) => app.service.operator(right).preview(filter, cap).await?,
        None => app.service.preview(&caller.context(), filter, cap).await?,
    })
}

/// What to do to which jobs, how fast, and when to stop.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBulk {
    /// `cancel`, `replay`, `purge`, `run_now`, `retry` or `reprioritise`.
    action: String,
    /// Which jobs, such as `handler:mail.send status:dead`.
    filter: String,
    /// How many the preview said. More than that are not touched.
    confirm: u64,
    /// At most so many; as many as confirmed unless given.
    cap: Option<usize>,
    /// So many per second; as fast as it goes unless given.
    per_second: Option<f64>,
    /// For actions that make jobs run: stop when more than this part fails again, 0 to 1.
    stop_when_failing: Option<f64>,
    /// Judged only once so many have ended; 5 by default.
    judge_after: Option<usize>,
    /// Why, for a cancel.
    #[serde(default)]
    reason: String,
    /// For `reprioritise`.
    priority: Option<PriorityBody>,
}

/// A bulk action and how far it has come.
#[derive(Serialize, ToSchema)]
pub(crate) struct BulkBody {
    #[schema(value_type = String)]
    id: JobId,
    action: String,
    filter: String,
    by: String,
    /// Whose jobs; absent for every tenant's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    /// `running`, `finished`, `stopped` or `failed`.
    #[schema(value_type = String)]
    state: BulkState,
    /// Jobs it was done to.
    done: u64,
    /// Jobs it could not be done to, because of an error.
    failed: u64,
    /// Jobs that had moved on.
    skipped: u64,
    /// How many passed when it began.
    total: u64,
    /// Of those put back to work, how many have failed again.
    failed_again: u64,
    /// Why it ended, if not because it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl From<BulkProgress> for BulkBody {
    fn from(progress: BulkProgress) -> Self {
        BulkBody {
            id: progress.id.0,
            action: progress.action,
            filter: progress.filter,
            by: progress.by,
            tenant: progress.tenant,
            started_at: progress.started_at,
            ended_at: progress.ended_at,
            state: progress.state,
            done: progress.done,
            failed: progress.failed,
            skipped: progress.skipped,
            total: progress.total,
            failed_again: progress.failed_again,
            error: progress.error,
        }
    }
}

/// Does one thing to every job that passes a filter, in the background of this server.
#[utoipa::path(post, path = "/jobs/bulk", tag = "many", request_body = NewBulk,
    responses((status = 202, body = BulkBody)))]
pub(crate) async fn bulk(
    State(app): State<App>,
    caller: Caller,
    extract::Json(new): extract::Json<NewBulk>,
) -> Result<(StatusCode, Json<BulkBody>), Problem> {
    let filter = read_filter(&app, &caller, &new.filter)?;
    let priority = new.priority.as_ref().map(PriorityBody::read).transpose()?;
    let action = read_action(&new.action, new.reason, priority)?;
    let pace = Pace {
        confirm: new.confirm,
        cap: new.cap,
        per_second: new.per_second,
        stop_when_failing: new.stop_when_failing,
        judge_after: new.judge_after,
    };
    begin(&app, &caller, &filter, action, pace).await
}

fn read_action(name: &str, reason: String, priority: Option<windlass_core::Priority>) -> Result<BulkAction, Problem> {
    match (name, priority) {
        ("cancel", _) => Ok(BulkAction::Cancel { reason }),
        ("replay", _) => Ok(BulkAction::Replay),
        ("purge", _) => Ok(BulkAction::Purge),
        ("run_now", _) => Ok(BulkAction::RunNow),
        ("retry", _) => Ok(BulkAction::Retry),
        ("reprioritise", Some(priority)) => Ok(BulkAction::Reprioritise(priority)),
        ("reprioritise", None) => Err(Problem::invalid("priority", "is needed to reprioritise")),
        _ => {
            let known = "cancel, replay, purge, run_now, retry or reprioritise";
            Err(Problem::invalid("action", format!("expected {known}")))
        }
    }
}

/// How fast, how far, and when to stop.
struct Pace {
    confirm: u64,
    cap: Option<usize>,
    per_second: Option<f64>,
    stop_when_failing: Option<f64>,
    judge_after: Option<usize>,
}

/// Jobs that are judged by before a replay stops, where the caller does not say.
const JUDGE_AFTER: usize = 5;

/// Looks once more at how many jobs are meant, and begins if they are not more than were confirmed.
async fn begin(
    app: &App,
    caller: &Caller,
    filter: &JobFilter,
    action: BulkAction,
    pace: Pace,
) -> Result<(StatusCode, Json<BulkBody>), Problem> {
    let confirmed = usize::try_from(pace.confirm).unwrap_or(usize::MAX).min(BulkOptions::MAX_CAP);
    if confirmed == 0 {
        return Err(Problem::invalid("confirm", "how many jobs the preview said; nothing is done to none"));
    }
    let cap = pace.cap.unwrap_or(confirmed);
    let found = preview_of(app, caller, &action.narrow(filter)?, cap).await?;
    if found.jobs > pace.confirm || (found.more && pace.cap.is_none()) {
        let detail = "more jobs match now than were confirmed; look at the preview again";
        return Err(Problem::new(StatusCode::CONFLICT, "count_changed", detail));
    }
    let mut options = BulkOptions::default().cap(cap);
    options.per_second = pace.per_second;
    if let Some(part) = pace.stop_when_failing {
        options = options.stop_when_failing(part, pace.judge_after.unwrap_or(JUDGE_AFTER).max(1));
    }
    let bulk: Bulk = match caller.operator() {
        Some(right) => app.service.operator(right).bulk(&caller.context(), filter, action, options).await?,
        None => app.service.bulk(&caller.context(), filter, action, options).await?,
    };
    Ok((StatusCode::ACCEPTED, Json(bulk.progress().into())))
}

/// Bulk actions of this server.
#[derive(Serialize, ToSchema)]
pub(crate) struct BulksBody {
    /// Newest first.
    bulks: Vec<BulkBody>,
}

/// The bulk actions that this server runs, and the last that have ended.
#[utoipa::path(get, path = "/bulks", tag = "many", responses((status = 200, body = BulksBody)))]
pub(crate) async fn bulks(State(app): State<App>, caller: Caller) -> Json<BulksBody> {
    let bulks = match caller.operator() {
        Some(right) => app.service.operator(right).bulks(),
        None => app.service.bulks(&caller.context()),
    };
    Json(BulksBody { bulks: bulks.into_iter().map(BulkBody::from).collect() })
}

#[derive(Deserialize)]
pub(crate) struct BulkName {
    id: String,
}

/// Ends a bulk action before its next job.
#[utoipa::path(post, path = "/bulks/{id}/stop", tag = "many", params(("id" = String, Path)), responses((status = 204)))]
pub(crate) async fn stop(
    State(app): State<App>,
    caller: Caller,
    Path(BulkName { id }): Path<BulkName>,
) -> Result<StatusCode, Problem> {
    let id = BulkId(model::job_id("id", &id)?);
    let stopped = match caller.operator() {
        Some(right) => app.service.operator(right).bulk_stop(id),
        None => app.service.bulk_stop(&caller.context(), id),
    };
    match stopped {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("this server knows no such bulk action")),
    }
}

/// Which failures to group.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FailuresQuery {
    /// Only jobs that pass.
    filter: Option<String>,
    /// At most so many groups; 50 by default, more than 200 is 200.
    #[param(minimum = 1)]
    limit: Option<usize>,
}

/// Jobs that fail in the same way.
#[derive(Serialize, ToSchema)]
pub(crate) struct FailureBody {
    /// What they have in common, 16 hexadecimal digits.
    signature: String,
    handler: String,
    code: String,
    /// The message without what differs.
    message: String,
    /// The message of the latest.
    sample: String,
    jobs: u64,
    dead: u64,
    retrying: u64,
    #[schema(value_type = String, format = DateTime)]
    first_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    last_at: Timestamp,
    #[schema(value_type = String)]
    latest: JobId,
}

impl From<FailureGroup> for FailureBody {
    fn from(group: FailureGroup) -> Self {
        FailureBody {
            signature: group.signature.to_string(),
            handler: group.handler,
            code: group.code,
            message: group.message,
            sample: group.sample,
            jobs: group.jobs,
            dead: group.dead,
            retrying: group.retrying,
            first_at: group.first_at,
            last_at: group.last_at,
            latest: group.latest,
        }
    }
}

/// Failing jobs by what is wrong with them.
#[derive(Serialize, ToSchema)]
pub(crate) struct FailuresBody {
    /// The largest first.
    groups: Vec<FailureBody>,
}

/// Dead letters that nobody has replayed and jobs that wait for a retry, grouped by what is wrong with them.
#[utoipa::path(get, path = "/failures", tag = "many", params(FailuresQuery),
    responses((status = 200, body = FailuresBody)))]
pub(crate) async fn failures(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<FailuresQuery>,
) -> Result<Json<FailuresBody>, Problem> {
    let filter = read_filter(&app, &caller, query.filter.as_deref().unwrap_or_default())?;
    let limit = query.limit.unwrap_or(50).min(200);
    let groups = match caller.operator() {
        Some(right) => app.service.operator(right).failures(&filter, limit).await?,
        None => app.service.failures(&caller.context(), &filter, limit).await?,
    };
    Ok(Json(FailuresBody { groups: groups.into_iter().map(FailureBody::from).collect() }))
}

#[derive(Deserialize)]
pub(crate) struct SignatureName {
    signature: String,
}

/// How a group is put back to work.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryGroup {
    /// How many jobs the group has. More than that are not touched.
    confirm: u64,
    /// At most so many.
    cap: Option<usize>,
    /// So many per second.
    per_second: Option<f64>,
}

/// Puts the jobs of a failure group back to work.
#[utoipa::path(post, path = "/failures/{signature}/retry", tag = "many", params(("signature" = String, Path)),
    request_body = RetryGroup, responses((status = 202, body = BulkBody)))]
pub(crate) async fn retry_group(
    State(app): State<App>,
    caller: Caller,
    Path(SignatureName { signature }): Path<SignatureName>,
    extract::Json(retry): extract::Json<RetryGroup>,
) -> Result<(StatusCode, Json<BulkBody>), Problem> {
    let signature: Signature =
        signature.parse().map_err(|_| Problem::invalid("signature", "expected 16 hexadecimal digits"))?;
    let filter = JobFilter::all().signature(signature);
    let RetryGroup { confirm, cap, per_second } = retry;
    let pace = Pace { confirm, cap, per_second, stop_when_failing: None, judge_after: None };
    begin(&app, &caller, &filter, BulkAction::Retry, pace).await
}

/// Which dead letters to replay, how fast, and when to stop.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayMany {
    /// Which of them; all unless given.
    #[serde(default)]
    filter: String,
    /// How many the preview said. More than that are not touched.
    confirm: u64,
    /// So many first.
    limit: Option<usize>,
    /// So many per second.
    per_second: Option<f64>,
    /// Stop when more than this part fails again, 0 to 1.
    stop_when_failing: Option<f64>,
    /// Judged only once so many have ended; 5 by default.
    judge_after: Option<usize>,
}

/// Replays dead letters at a pace: so many, so many per second, and no further when too many fail again.
#[utoipa::path(post, path = "/dead-letters/replay", tag = "many", request_body = ReplayMany,
    responses((status = 202, body = BulkBody)))]
pub(crate) async fn replay(
    State(app): State<App>,
    caller: Caller,
    extract::Json(replay): extract::Json<ReplayMany>,
) -> Result<(StatusCode, Json<BulkBody>), Problem> {
    let mut filter = read_filter(&app, &caller, &replay.filter)?;
    filter.statuses = vec![Status::DeadLettered];
    let pace = Pace {
        confirm: replay.confirm,
        cap: replay.limit,
        per_second: replay.per_second,
        stop_when_failing: replay.stop_when_failing,
        judge_after: replay.judge_after,
    };
    begin(&app, &caller, &filter, BulkAction::Replay, pace).await
}
