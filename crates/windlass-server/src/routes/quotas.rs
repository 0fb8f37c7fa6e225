//! Routes of tenants and what they may use: their quotas, and how much of them is used.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::{OperatorRight, Quota, SubmitRate, TenantId, TenantUse};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, Path};
use crate::problem::Problem;

/// The limits of a tenant. Omitted fields are not limited.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotaBody {
    /// Its scheduling weight relative to other tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    /// Maximum number of unfinished jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queued: Option<u64>,
    /// Maximum rate of submits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    submit_rate: Option<RateBody>,
    /// Maximum number of running jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    running: Option<u64>,
    /// Maximum bytes of the inputs of unfinished jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// A token bucket: each submitted job takes one token.
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

/// A tenant's usage and limits.
#[derive(Serialize, ToSchema)]
pub(crate) struct TenantBody {
    /// The tenant; absent for the default policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// The policy that applies to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<QuotaBody>,
    /// Whether the policy is its own, not the default.
    own: bool,
    /// Unfinished jobs.
    queued: u64,
    /// Jobs running now.
    running: u64,
    /// Bytes of inputs of unfinished jobs, if they are limited.
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

/// Lists every tenant with unfinished jobs or its own policy.
#[utoipa::path(get, path = "/tenants", tag = "look", responses((status = 200, body = TenantsBody)))]
pub(crate) async fn tenants(State(app): State<App>, caller: Caller) -> Result<Json<TenantsBody>, Problem> {
    caller.require_all()?;
    let tenants = caller.within(&app).tenants().await?;
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

/// Returns a tenant's policy and usage.
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
    if !caller.scope().covers(tenant) {
        return Err(Problem::not_found("there is no such tenant"));
    }
    Ok(Json(app.service.usage(&caller.in_tenant(tenant)).await?.into()))
}

/// Sets the limits of a tenant. Every node applies them within about a second.
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

/// Removes a policy: the default applies to the tenant again.
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
