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

/// An address that is told of status events.
#[derive(Serialize, ToSchema)]
pub(crate) struct WebhookBody {
    id: String,
    #[schema(value_type = String)]
    tenant: TenantId,
    url: String,
    /// Told of jobs that come to one of these.
    events: Vec<&'static str>,
    /// Only jobs of this handler.
    #[serde(skip_serializing_if = "Option::is_none")]
    handler: Option<String>,
    paused: bool,
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
    let webhooks = match caller.operator() {
        Some(right) => app.service.operator(right).webhooks().await?,
        None => app.service.webhooks(&caller.context()).await?,
    };
    Ok(Json(WebhooksBody { webhooks: webhooks.into_iter().map(WebhookBody::from).collect() }))
}

/// A webhook to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewHook {
    /// Where it is told.
    url: String,
    /// Told of jobs that come to one of these; of every end unless given.
    events: Option<Vec<String>>,
    /// Only jobs of this handler.
    handler: Option<String>,
}

/// A webhook that was made.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedHook {
    webhook: WebhookBody,
    /// What signs each message. It cannot be shown again.
    secret: String,
}

/// Tells an address of the tenant's status events from now on.
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

/// Ends a webhook.
#[utoipa::path(delete, path = "/webhooks/{id}", tag = "keys", params(("id" = String, Path)), responses((status = 204)))]
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(HookName { id }): Path<HookName>,
) -> Result<StatusCode, Problem> {
    let ctx = caller.context();
    let removed = match caller.operator() {
        Some(right) => app.service.operator(right).remove_webhook(&ctx, &id).await?,
        None => app.service.remove_webhook(&ctx, &id).await?,
    };
    match removed {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("there is no such webhook")),
    }
}
