//! Routes of webhooks: who outside is told of status events. A secret is shown once, in the answer that makes it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::{NewWebhook, Status, TenantId, Timestamp, Webhook};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, Path};
use crate::problem::Problem;

/// A URL that receives status events.
#[derive(Serialize, ToSchema)]
pub(crate) struct WebhookBody {
    id: String,
    #[schema(value_type = String)]
    tenant: TenantId,
    url: String,
    /// Receives an event when a job reaches one of these statuses.
    events: Vec<&'static str>,
    /// Only jobs of this handler.
    #[serde(skip_serializing_if = "Option::is_none")]
    handler: Option<String>,
    /// Receives nothing until it is resumed: a person paused it, or the server switched it off because deliveries
    /// failed.
    paused: bool,
    /// Receives events since this time: when it was created, or last resumed.
    #[schema(value_type = String, format = DateTime)]
    active_since: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    created_by: String,
}

impl From<Webhook> for WebhookBody {
    fn from(hook: Webhook) -> Self {
        WebhookBody {
            id: hook.id,
            tenant: hook.tenant,
            url: hook.url,
            events: hook.events.into_iter().map(Status::as_str).collect(),
            handler: hook.handler,
            paused: hook.paused,
            active_since: hook.active_since,
            created_at: hook.created_at,
            created_by: hook.created_by,
        }
    }
}

/// Webhooks.
#[derive(Serialize, ToSchema)]
pub(crate) struct WebhooksBody {
    webhooks: Vec<WebhookBody>,
}

/// The webhooks.
#[utoipa::path(get, path = "/webhooks", tag = "keys", responses((status = 200, body = WebhooksBody)))]
pub(crate) async fn list(State(app): State<App>, caller: Caller) -> Result<Json<WebhooksBody>, Problem> {
    let webhooks = caller.within(&app).webhooks().await?;
    Ok(Json(WebhooksBody { webhooks: webhooks.into_iter().map(WebhookBody::from).collect() }))
}

/// A webhook to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewHook {
    /// The URL that receives the events.
    url: String,
    /// Receives an event when a job reaches one of these statuses [default: every end].
    events: Option<Vec<String>>,
    /// Only jobs of this handler.
    handler: Option<String>,
}

/// A new webhook.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedHook {
    webhook: WebhookBody,
    /// The secret that signs each message. It is not shown again.
    secret: String,
}

/// Sends the tenant's status events to a URL from now on.
#[utoipa::path(post, path = "/webhooks", tag = "keys", request_body = NewHook,
    responses((status = 201, body = CreatedHook)))]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    extract::Json(new): extract::Json<NewHook>,
) -> Result<(StatusCode, Json<CreatedHook>), Problem> {
    // Delivery checks again, when names are resolved; this tells who made a mistake while they can still correct it.
    app.config.webhook_egress.check(&new.url).map_err(|error| Problem::invalid("url", error.to_string()))?;
    let mut hook = NewWebhook::new(new.url);
    if let Some(events) = new.events {
        hook.events = events.iter().map(|name| Status::parse(name)).collect::<Result<_, _>>()?;
    }
    hook.handler = new.handler;
    let (webhook, secret) = app.service.add_webhook(&caller.context(), hook).await?;
    Ok((StatusCode::CREATED, Json(CreatedHook { webhook: webhook.into(), secret })))
}

#[derive(Deserialize)]
pub(crate) struct HookName {
    id: String,
}

/// Removes a webhook.
#[utoipa::path(delete, path = "/webhooks/{id}", tag = "keys", params(("id" = String, Path)), responses((status = 204)))]
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(HookName { id }): Path<HookName>,
) -> Result<StatusCode, Problem> {
    let ctx = caller.context();
    let removed = caller.within(&app).remove_webhook(&ctx, &id).await?;
    match removed {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("there is no such webhook")),
    }
}

/// Sends nothing to a webhook until it is resumed. Deliveries that become due until then are canceled.
#[utoipa::path(post, path = "/webhooks/{id}/pause", tag = "keys", params(("id" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Path(HookName { id }): Path<HookName>,
) -> Result<StatusCode, Problem> {
    set_paused(&app, &caller, &id, true).await
}

/// Sends events to a webhook again from now on, also if the server had switched it off.
#[utoipa::path(post, path = "/webhooks/{id}/resume", tag = "keys", params(("id" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Path(HookName { id }): Path<HookName>,
) -> Result<StatusCode, Problem> {
    set_paused(&app, &caller, &id, false).await
}

async fn set_paused(app: &App, caller: &Caller, id: &str, paused: bool) -> Result<StatusCode, Problem> {
    let ctx = caller.context();
    let found = caller.within(app).pause_webhook(&ctx, id, paused).await?;
    match found {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("there is no such webhook")),
    }
}
