//! Routes for many jobs at once: previews, bulk actions, failure groups, paced replays. What is
//! acted on has to be confirmed with the count that the preview gave, so that a filter cannot mean more than was seen.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::failures::{FailureGroup, Signature};
use windlass_core::store::NodeId;
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
    /// The action; counts only jobs that it can be applied to.
    action: Option<String>,
    /// Stop counting at this number: 1,000 by default, at most 100,000.
    cap: Option<usize>,
}

/// What a bulk action would act on.
#[derive(Serialize, ToSchema)]
pub(crate) struct PreviewBody {
    /// The number of matching jobs, up to the cap: the `confirm` of the action.
    jobs: u64,
    /// Whether there are more than the cap.
    more: bool,
    /// The newest of them.
    sample: Vec<Job>,
}

/// Counts the jobs that match a filter, and returns some of them. Changes nothing.
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
    Ok(caller.within(app).preview(filter, cap).await?)
}

/// A bulk action: what to do, to which jobs, how fast, and when to stop.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBulk {
    /// `cancel`, `replay`, `purge`, `run_now`, `retry` or `reprioritise`.
    action: String,
    /// Which jobs, such as `handler:mail.send status:dead`.
    filter: String,
    /// The count from the preview. No more jobs than this are changed.
    confirm: u64,
    /// Maximum number of jobs [default: `confirm`].
    cap: Option<usize>,
    /// Maximum rate in jobs per second [default: no limit].
    per_second: Option<f64>,
    /// For actions that run jobs: stop when more than this fraction fails again, 0 to 1.
    stop_when_failing: Option<f64>,
    /// Check the fraction only after this number of jobs has ended; 5 by default.
    judge_after: Option<usize>,
    /// The reason of a cancel.
    #[serde(default)]
    reason: String,
    /// The new priority, for `reprioritise`.
    priority: Option<PriorityBody>,
}

/// A bulk action and its progress.
#[derive(Serialize, ToSchema)]
pub(crate) struct BulkBody {
    #[schema(value_type = String)]
    id: JobId,
    action: String,
    filter: String,
    by: String,
    /// The tenant of the jobs; absent for all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// The node that runs it, as in the list of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>)]
    node: Option<NodeId>,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    /// `running`, `finished`, `stopped` or `failed`.
    #[schema(value_type = String)]
    state: BulkState,
    /// Number of jobs it was applied to.
    done: u64,
    /// Number of jobs with an error.
    failed: u64,
    /// Number of jobs skipped because their state had changed.
    skipped: u64,
    /// Number of matching jobs at its start.
    total: u64,
    /// Number of jobs that ran again and failed again.
    failed_again: u64,
    /// Why it ended early.
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
            node: progress.node,
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

/// Applies one action to every job that matches a filter, in the background of this server. Every server of the
/// installation can show and stop it.
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
        ("reprioritise", None) => Err(Problem::invalid("priority", "is required to reprioritise")),
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
        return Err(Problem::invalid("confirm", "pass the count from the preview; it must not be 0"));
    }
    let cap = pace.cap.unwrap_or(confirmed);
    let found = preview_of(app, caller, &action.narrow(filter)?, cap).await?;
    if found.jobs > pace.confirm || (found.more && pace.cap.is_none()) {
        let detail = "more jobs match now than were confirmed; request the preview again";
        return Err(Problem::new(StatusCode::CONFLICT, "count_changed", detail));
    }
    let mut options = BulkOptions::default().cap(cap);
    options.per_second = pace.per_second;
    if let Some(part) = pace.stop_when_failing {
        options = options.stop_when_failing(part, pace.judge_after.unwrap_or(JUDGE_AFTER).max(1));
    }
    let bulk: Bulk = caller.within(app).bulk(&caller.context(), filter, action, options).await?;
    Ok((StatusCode::ACCEPTED, Json(bulk.progress().into())))
}

/// Bulk actions.
#[derive(Serialize, ToSchema)]
pub(crate) struct BulksBody {
    /// Newest first.
    bulks: Vec<BulkBody>,
}

/// Lists the bulk actions that run on any server, and those that ended within a day.
#[utoipa::path(get, path = "/bulks", tag = "many", responses((status = 200, body = BulksBody)))]
pub(crate) async fn bulks(State(app): State<App>, caller: Caller) -> Result<Json<BulksBody>, Problem> {
    let bulks = caller.within(&app).bulks().await?;
    Ok(Json(BulksBody { bulks: bulks.into_iter().map(BulkBody::from).collect() }))
}

#[derive(Deserialize)]
pub(crate) struct BulkName {
    id: String,
}

/// Stops a bulk action before its next job, within about a second if another server runs it.
#[utoipa::path(post, path = "/bulks/{id}/stop", tag = "many", params(("id" = String, Path)), responses((status = 204)))]
pub(crate) async fn stop(
    State(app): State<App>,
    caller: Caller,
    Path(BulkName { id }): Path<BulkName>,
) -> Result<StatusCode, Problem> {
    let id = BulkId(model::job_id("id", &id)?);
    let stopped = caller.within(&app).bulk_stop(id).await?;
    match stopped {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("there is no such bulk action")),
    }
}

/// Which failures to group.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FailuresQuery {
    /// Only jobs that match.
    filter: Option<String>,
    /// Maximum number of groups: 50 by default, at most 200.
    #[param(minimum = 1)]
    limit: Option<usize>,
}

/// Jobs that fail in the same way.
#[derive(Serialize, ToSchema)]
pub(crate) struct FailureBody {
    /// The signature of the group, 16 hexadecimal digits.
    signature: String,
    handler: String,
    code: String,
    /// The message without the parts that vary.
    message: String,
    /// The message of the latest failure.
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

/// Failing jobs, grouped by cause.
#[derive(Serialize, ToSchema)]
pub(crate) struct FailuresBody {
    /// The largest first.
    groups: Vec<FailureBody>,
}

/// Lists dead letters that were not replayed and jobs that wait for a retry, grouped by cause.
#[utoipa::path(get, path = "/failures", tag = "many", params(FailuresQuery),
    responses((status = 200, body = FailuresBody)))]
pub(crate) async fn failures(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<FailuresQuery>,
) -> Result<Json<FailuresBody>, Problem> {
    let filter = read_filter(&app, &caller, query.filter.as_deref().unwrap_or_default())?;
    let limit = query.limit.unwrap_or(50).min(200);
    let groups = caller.within(&app).failures(&filter, limit).await?;
    Ok(Json(FailuresBody { groups: groups.into_iter().map(FailureBody::from).collect() }))
}

#[derive(Deserialize)]
pub(crate) struct SignatureName {
    signature: String,
}

/// How a group is retried.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryGroup {
    /// The number of jobs in the group. No more jobs than this are changed.
    confirm: u64,
    /// Maximum number of jobs.
    cap: Option<usize>,
    /// Maximum rate in jobs per second.
    per_second: Option<f64>,
}

/// Retries the jobs of a failure group.
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
    /// A filter for dead letters [default: all].
    #[serde(default)]
    filter: String,
    /// The count from the preview. No more jobs than this are changed.
    confirm: u64,
    /// Maximum number of dead letters.
    limit: Option<usize>,
    /// Maximum rate in jobs per second.
    per_second: Option<f64>,
    /// Stop when more than this fraction fails again, 0 to 1.
    stop_when_failing: Option<f64>,
    /// Check the fraction only after this number of jobs has ended; 5 by default.
    judge_after: Option<usize>,
}

/// Replays dead letters up to a limit and at a maximum rate, and stops when too many fail again.
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
