//! Routes that look at the installation as a whole: counts, nodes, handlers and the audit log.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::store::{AuditEntry, AuditFilter, Counts, PauseTarget};
use windlass_core::{Status, TenantId, Timestamp};

use crate::App;
use crate::auth::Caller;
use crate::extract::Query;
use crate::problem::Problem;

/// The number of jobs in each status, the same number as a list shows.
#[derive(Serialize, ToSchema)]
pub(crate) struct CountsBody {
    pending: u64,
    scheduled: u64,
    retrying: u64,
    blocked: u64,
    suspended: u64,
    running: u64,
    succeeded: u64,
    canceled: u64,
    dead_lettered: u64,
}

impl From<Counts> for CountsBody {
    fn from(counts: Counts) -> Self {
        CountsBody {
            pending: counts.get(Status::Pending),
            scheduled: counts.get(Status::Scheduled),
            retrying: counts.get(Status::Retrying),
            blocked: counts.get(Status::Blocked),
            suspended: counts.get(Status::Suspended),
            running: counts.get(Status::Running),
            succeeded: counts.get(Status::Succeeded),
            canceled: counts.get(Status::Canceled),
            dead_lettered: counts.get(Status::DeadLettered),
        }
    }
}

/// Returns the number of jobs in each status.
#[utoipa::path(get, path = "/counts", tag = "look", responses((status = 200, body = CountsBody)))]
pub(crate) async fn counts(State(app): State<App>, caller: Caller) -> Result<Json<CountsBody>, Problem> {
    let counts = caller.within(&app).counts().await?;
    Ok(Json(counts.into()))
}

/// A registered process.
#[derive(Serialize, ToSchema)]
pub(crate) struct NodeBody {
    /// Its identity, which is never reused.
    node: i64,
    /// Its part of job ids.
    slot: u16,
    host: String,
    pid: u32,
    version: String,
    /// The handlers it has.
    handlers: Vec<String>,
    /// The maximum number of jobs it runs at once.
    capacity: usize,
    /// The number of jobs it ran at its last heartbeat.
    running: usize,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    heartbeat_at: Timestamp,
    /// The age of that heartbeat.
    age_ms: u64,
}

/// The registered processes.
#[derive(Serialize, ToSchema)]
pub(crate) struct NodesBody {
    nodes: Vec<NodeBody>,
}

/// Lists the registered processes, newest first.
#[utoipa::path(get, path = "/nodes", tag = "look", responses((status = 200, body = NodesBody)))]
pub(crate) async fn nodes(State(app): State<App>) -> Result<Json<NodesBody>, Problem> {
    let now = app.service.now();
    let node = |node: windlass_core::store::NodeRecord| NodeBody {
        node: node.node.0,
        slot: node.slot.get(),
        host: node.info.host,
        pid: node.info.pid,
        version: node.info.version,
        handlers: node.info.handlers,
        capacity: node.info.capacity,
        running: node.running,
        started_at: node.started_at,
        heartbeat_at: node.heartbeat_at,
        age_ms: now.since(node.heartbeat_at).as_millis() as u64,
    };
    Ok(Json(NodesBody { nodes: app.service.nodes().await?.into_iter().map(node).collect() }))
}

/// A handler that some node has.
#[derive(Serialize, ToSchema)]
pub(crate) struct HandlerBody {
    handler: String,
    /// Nodes that have it.
    nodes: usize,
    /// Whether it is paused.
    paused: bool,
}

/// The handlers that nodes have.
#[derive(Serialize, ToSchema)]
pub(crate) struct HandlersBody {
    handlers: Vec<HandlerBody>,
}

/// Lists the handlers that live nodes have, by name.
#[utoipa::path(get, path = "/handlers", tag = "look", responses((status = 200, body = HandlersBody)))]
pub(crate) async fn handlers(State(app): State<App>, caller: Caller) -> Result<Json<HandlersBody>, Problem> {
    let pauses = app.service.pauses(&caller.context()).await?;
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for node in app.service.nodes().await? {
        node.info.handlers.into_iter().for_each(|handler| *counts.entry(handler).or_insert(0) += 1);
    }
    let handler = |(handler, nodes): (String, usize)| {
        let paused = pauses.iter().any(|pause| pause.target == PauseTarget::Handler(handler.clone()));
        HandlerBody { handler, nodes, paused }
    };
    Ok(Json(HandlersBody { handlers: counts.into_iter().map(handler).collect() }))
}

/// Which audit entries to read.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// Only this action, such as `JOB_CANCELED`.
    action: Option<String>,
    /// Only this target: a job id, a pause target.
    target: Option<String>,
    /// The `next` of the previous page.
    before: Option<String>,
    /// Maximum number of entries: 50 by default, at most 200.
    #[param(minimum = 1)]
    limit: Option<usize>,
}

/// One line of the audit log.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditLine {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    actor: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    action: String,
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl From<AuditEntry> for AuditLine {
    fn from(entry: AuditEntry) -> Self {
        let AuditEntry { at, actor, tenant, action, target, detail, .. } = entry;
        AuditLine { at, actor, tenant, action, target, detail }
    }
}

/// The audit log.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditBody {
    /// Newest first.
    entries: Vec<AuditLine>,
    /// Pass it as `before` to get more, if there may be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Lists who did what, newest first.
#[utoipa::path(get, path = "/audit", tag = "look", params(AuditQuery), responses((status = 200, body = AuditBody)))]
pub(crate) async fn audit(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditBody>, Problem> {
    let mut filter = AuditFilter::default();
    filter.action = query.action;
    filter.target = query.target;
    filter.limit = query.limit.unwrap_or(50).clamp(1, 200);
    let number = |before: &str| {
        before.parse().map_err(|_| Problem::invalid("before", "must be the `next` of the previous page"))
    };
    filter.before = query.before.as_deref().map(number).transpose()?;
    let texts = [("action", &filter.action), ("target", &filter.target)];
    for (field, text) in texts {
        if text.as_ref().is_some_and(|text| text.len() > 256 || text.contains('\0')) {
            return Err(Problem::invalid(field, "must be at most 256 bytes, without NUL"));
        }
    }
    let entries = caller.within(&app).audit_log(&filter).await?;
    let next = entries.last().filter(|_| entries.len() == filter.limit).map(|entry| entry.sequence.to_string());
    Ok(Json(AuditBody { entries: entries.into_iter().map(AuditLine::from).collect(), next }))
}
