//! Routes that look at the installation and steer it as a whole: counts, handlers, nodes, pauses, audit, tenants and
//! their quotas.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::store::{AuditEntry, AuditFilter, Counts, Pause, PauseTarget};
use windlass_core::{OperatorRight, Quota, Status, SubmitRate, TenantId, TenantUse, Timestamp};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, Path, Query};
use crate::problem::Problem;

/// How many jobs are in each status. Ended ones are counted as they end.
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

/// How many jobs are in each status.
#[utoipa::path(get, path = "/counts", tag = "look", responses((status = 200, body = CountsBody)))]
pub(crate) async fn counts(State(app): State<App>, caller: Caller) -> Result<Json<CountsBody>, Problem> {
    let counts = match caller.operator() {
        Some(right) => app.service.operator(right).counts().await?,
        None => app.service.counts(&caller.context()).await?,
    };
    Ok(Json(counts.into()))
}

/// A registered process.
#[derive(Serialize, ToSchema)]
pub(crate) struct NodeBody {
    /// Its identity, never used again.
    node: i64,
    /// Its part of job ids.
    slot: u16,
    host: String,
    pid: u32,
    version: String,
    /// What it can run.
    handlers: Vec<String>,
    /// How many jobs it runs at once.
    capacity: usize,
    /// How many it ran at its last heartbeat.
    running: usize,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    heartbeat_at: Timestamp,
    /// How long ago that was.
    age_ms: u64,
}

/// The registered processes.
#[derive(Serialize, ToSchema)]
pub(crate) struct NodesBody {
    nodes: Vec<NodeBody>,
}

/// The registered processes, newest first.
#[utoipa::path(get, path = "/nodes", tag = "look", responses((status = 200, body = NodesBody)))]
pub(crate) async fn nodes(State(app): State<App>) -> Result<Json<NodesBody>, Problem> {
    let now = app.service.now();
    let node = |node: windlass_core::store::NodeRecord| NodeBody {
        node: node.node.0,
        slot: node.slot.0,
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

/// The handlers that live nodes have, by name.
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

/// A pause in force.
#[derive(Serialize, ToSchema)]
pub(crate) struct PauseBody {
    /// `all`, `handler:ID` or `tenant:UUID`.
    target: String,
    by: String,
    reason: String,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
}

impl From<Pause> for PauseBody {
    fn from(pause: Pause) -> Self {
        PauseBody { target: pause.target.name(), by: pause.by, reason: pause.reason, at: pause.at }
    }
}

/// The pauses in force.
#[derive(Serialize, ToSchema)]
pub(crate) struct PausesBody {
    pauses: Vec<PauseBody>,
}

/// The pauses in force that may hold the caller's jobs.
#[utoipa::path(get, path = "/pauses", tag = "look", responses((status = 200, body = PausesBody)))]
pub(crate) async fn pauses(State(app): State<App>, caller: Caller) -> Result<Json<PausesBody>, Problem> {
    let pauses = match caller.operator() {
        Some(right) => app.service.operator(right).pauses().await?,
        None => app.service.pauses(&caller.context()).await?,
    };
    Ok(Json(PausesBody { pauses: pauses.into_iter().map(PauseBody::from).collect() }))
}

/// What to pause.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPause {
    /// `all`, `handler:ID` or `tenant:UUID`.
    target: String,
    /// Why, for people.
    #[serde(default)]
    reason: String,
}

/// Stops starting jobs of a handler, of a tenant or of all, on every node within a second. Running ones go on.
#[utoipa::path(post, path = "/pauses", tag = "look", request_body = NewPause, responses((status = 204)))]
pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    extract::Json(new): extract::Json<NewPause>,
) -> Result<StatusCode, Problem> {
    let target = pause_target(&caller, &new.target)?;
    app.service.pause(&caller.context(), &target, &new.reason).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a pause.
#[utoipa::path(delete, path = "/pauses/{target}", tag = "look", params(("target" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Path(PauseName { target }): Path<PauseName>,
) -> Result<StatusCode, Problem> {
    let target = pause_target(&caller, &target)?;
    match app.service.resume(&caller.context(), &target).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("there is no such pause")),
    }
}

#[derive(Deserialize)]
pub(crate) struct PauseName {
    target: String,
}

/// What a caller may pause: its own tenant, or everything where it operates the whole installation.
fn pause_target(caller: &Caller, text: &str) -> Result<PauseTarget, Problem> {
    let expected = || Problem::invalid("target", "expected `all`, `handler:ID` or `tenant:UUID`");
    let target = PauseTarget::parse(text).ok_or_else(expected)?;
    match &target {
        PauseTarget::Tenant(tenant) if *tenant == caller.context().tenant => {}
        _ => caller.require_all()?,
    }
    Ok(target)
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
    /// Where the page before ended, as its `next` says.
    before: Option<String>,
    /// At most so many; 50 by default, more than 200 is 200.
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
    /// For `before`, where there may be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// What was done, by whom, newest first.
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
    let number = |before: &str| before.parse().map_err(|_| Problem::invalid("before", "is what `next` said"));
    filter.before = query.before.as_deref().map(number).transpose()?;
    let texts = [("action", &filter.action), ("target", &filter.target)];
    for (field, text) in texts {
        if text.as_ref().is_some_and(|text| text.len() > 256 || text.contains('\0')) {
            return Err(Problem::invalid(field, "at most 256 bytes, without NUL"));
        }
    }
    let entries = match caller.operator() {
        Some(right) => app.service.operator(right).audit_log(&filter).await?,
        None => app.service.audit_log(&caller.context(), &filter).await?,
    };
    let next = entries.last().filter(|_| entries.len() == filter.limit).map(|entry| entry.sequence.to_string());
    Ok(Json(AuditBody { entries: entries.into_iter().map(AuditLine::from).collect(), next }))
}

/// What a tenant may use. What is left out is not limited.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotaBody {
    /// Turns it gets where others get one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    /// Unfinished jobs at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queued: Option<u64>,
    /// Jobs submitted over time at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    submit_rate: Option<RateBody>,
    /// Jobs running at once at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    running: Option<u64>,
    /// Bytes of the inputs of unfinished jobs at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// A bucket of tokens: each submitted job takes one.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateBody {
    per_second: f64,
    burst: u64,
}

impl From<Quota> for QuotaBody {
    fn from(quota: Quota) -> Self {
        let rate = |rate: SubmitRate| RateBody { per_second: rate.per_second, burst: rate.burst };
        QuotaBody {
            weight: quota.weight,
            queued: quota.queued,
            submit_rate: quota.submit_rate.map(rate),
            running: quota.running,
            bytes: quota.bytes,
        }
    }
}

impl From<QuotaBody> for Quota {
    fn from(body: QuotaBody) -> Self {
        let mut quota = Quota::new();
        quota.weight = body.weight;
        quota.queued = body.queued;
        quota.submit_rate = body.submit_rate.map(|r| SubmitRate { per_second: r.per_second, burst: r.burst });
        quota.running = body.running;
        quota.bytes = body.bytes;
        quota
    }
}

/// What a tenant uses, beside what it may.
#[derive(Serialize, ToSchema)]
pub(crate) struct TenantBody {
    /// Who; absent for the default policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// The policy that holds for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<QuotaBody>,
    /// Whether the policy is its own, not the default.
    own: bool,
    /// Unfinished jobs.
    queued: u64,
    /// Jobs running now.
    running: u64,
    /// Bytes of inputs of unfinished jobs, where they are limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

impl From<TenantUse> for TenantBody {
    fn from(used: TenantUse) -> Self {
        TenantBody {
            tenant: Some(used.tenant),
            quota: used.quota.map(QuotaBody::from),
            own: used.own,
            queued: used.queued,
            running: used.running,
            bytes: used.bytes,
        }
    }
}

/// Tenants.
#[derive(Serialize, ToSchema)]
pub(crate) struct TenantsBody {
    tenants: Vec<TenantBody>,
}

/// Every tenant that has unfinished jobs or a policy of its own.
#[utoipa::path(get, path = "/tenants", tag = "look", responses((status = 200, body = TenantsBody)))]
pub(crate) async fn tenants(State(app): State<App>, caller: Caller) -> Result<Json<TenantsBody>, Problem> {
    let mut tenants = app.service.operator(operator(&caller)?).tenants().await?;
    if caller.operator().is_none() {
        let one = caller.context().tenant;
        tenants.retain(|used| used.tenant == one);
    }
    Ok(Json(TenantsBody { tenants: tenants.into_iter().map(TenantBody::from).collect() }))
}

/// The right of a caller whose route lets only operators of the whole installation pass, also while it names a tenant.
fn operator(caller: &Caller) -> Result<OperatorRight, Problem> {
    caller.require_all()?;
    Ok(OperatorRight::assume())
}

/// A tenant by its UUID, or `default` for the policy of those without one of their own.
#[derive(Deserialize)]
pub(crate) struct TenantName {
    tenant: String,
}

impl TenantName {
    fn read(&self) -> Result<Option<TenantId>, Problem> {
        match self.tenant.as_str() {
            "default" => Ok(None),
            tenant => Ok(Some(TenantId::parse(tenant)?)),
        }
    }
}

/// A tenant's policy, and what it uses of it.
#[utoipa::path(get, path = "/tenants/{tenant}/quota", tag = "look",
    params(("tenant" = String, Path, description = "A UUID, or `default`.")),
    responses((status = 200, body = TenantBody)))]
pub(crate) async fn quota(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<TenantName>,
) -> Result<Json<TenantBody>, Problem> {
    let Some(tenant) = name.read()? else {
        let quotas = app.service.operator(operator(&caller)?).quotas().await?;
        let quota = quotas.default.map(QuotaBody::from);
        return Ok(Json(TenantBody { tenant: None, quota, own: false, queued: 0, running: 0, bytes: None }));
    };
    let ctx = caller.context();
    if caller.operator().is_none() && tenant != ctx.tenant {
        return Err(Problem::not_found("there is no such tenant"));
    }
    Ok(Json(app.service.usage(&caller.in_tenant(tenant)).await?.into()))
}

/// Sets what a tenant may use. Every node follows within about a second.
#[utoipa::path(put, path = "/tenants/{tenant}/quota", tag = "look", request_body = QuotaBody,
    params(("tenant" = String, Path, description = "A UUID, or `default`.")), responses((status = 204)))]
pub(crate) async fn set_quota(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<TenantName>,
    extract::Json(body): extract::Json<QuotaBody>,
) -> Result<StatusCode, Problem> {
    let operator = app.service.operator(operator(&caller)?);
    operator.set_quota(&caller.context(), name.read()?, &body.into()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Takes a policy back: the default holds for the tenant again.
#[utoipa::path(delete, path = "/tenants/{tenant}/quota", tag = "look",
    params(("tenant" = String, Path, description = "A UUID, or `default`.")), responses((status = 204)))]
pub(crate) async fn clear_quota(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<TenantName>,
) -> Result<StatusCode, Problem> {
    let operator = app.service.operator(operator(&caller)?);
    operator.clear_quota(&caller.context(), name.read()?).await?;
    Ok(StatusCode::NO_CONTENT)
}
