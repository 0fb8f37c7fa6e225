//! Routes of API keys: who may call, as whom, with which rights. A secret is shown once, in the answer that makes it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass_core::{ApiKey, NewApiKey, OperatorRight, Right, Rights, Scope, TenantId, Timestamp};

use crate::App;
use crate::auth::Caller;
use crate::extract::{self, Path};
use crate::problem::Problem;

/// An API key, without its secret.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyBody {
    /// Its public part, which is also part of the secret.
    id: String,
    /// Its name, for people.
    name: String,
    #[schema(value_type = String)]
    tenant: TenantId,
    /// Whether it is for the whole installation.
    all_tenants: bool,
    /// The user name of its calls.
    user: String,
    rights: Vec<&'static str>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    created_by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Timestamp>,
    /// About when it was last used.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Timestamp>,
}

impl From<ApiKey> for KeyBody {
    fn from(key: ApiKey) -> Self {
        KeyBody {
            id: key.id,
            name: key.name,
            tenant: key.tenant,
            all_tenants: key.all_tenants,
            user: key.user,
            rights: key.rights.iter().map(Right::as_str).collect(),
            created_at: key.created_at,
            created_by: key.created_by,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            last_used_at: key.last_used_at,
        }
    }
}

/// API keys.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeysBody {
    /// Newest first.
    keys: Vec<KeyBody>,
}

/// Lists the API keys, newest first.
#[utoipa::path(get, path = "/keys", tag = "keys", responses((status = 200, body = KeysBody)))]
pub(crate) async fn list(State(app): State<App>, caller: Caller) -> Result<Json<KeysBody>, Problem> {
    let keys = caller.within(&app).api_keys().await?;
    Ok(Json(KeysBody { keys: keys.into_iter().map(KeyBody::from).collect() }))
}

/// A key to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewKey {
    /// Its name, for people.
    name: String,
    /// `read`, `submit`, `operate`, `admin`, `payload`; never more than the caller's own rights.
    rights: Vec<String>,
    /// The user name of its calls [default: the key's name].
    user: Option<String>,
    /// When it expires.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// Its tenant. Only operators of the whole installation may choose another tenant than their own.
    tenant: Option<String>,
    /// For the whole installation.
    #[serde(default)]
    all_tenants: bool,
}

/// A new key.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedKey {
    key: KeyBody,
    /// The secret that its calls send. It is not shown again.
    secret: String,
}

/// Creates an API key. Its secret is only in this response.
#[utoipa::path(post, path = "/keys", tag = "keys", request_body = NewKey, responses((status = 201, body = CreatedKey)))]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    extract::Json(new): extract::Json<NewKey>,
) -> Result<(StatusCode, Json<CreatedKey>), Problem> {
    let rights = new.rights.iter().map(|name| Right::parse(name)).collect::<Result<Vec<_>, _>>()?;
    let mut ctx = caller.context();
    if let Some(tenant) = &new.tenant {
        let tenant = TenantId::parse(tenant)?;
        if tenant != ctx.tenant {
            caller.require_all()?;
        }
        ctx = caller.in_tenant(tenant);
    }
    let mut key = NewApiKey::new(new.name, Rights::of(rights)).environment(app.config.environment.clone());
    key.user = new.user;
    key.expires_at = new.expires_at;
    key.all_tenants = new.all_tenants;
    let scope = match new.all_tenants {
        true => {
            caller.require_all()?;
            Scope::All(OperatorRight::assume())
        }
        false => ctx.scope(),
    };
    let (key, secret) = app.service.within(scope).create_key_as(&ctx, caller.principal.rights, key).await?;
    Ok((StatusCode::CREATED, Json(CreatedKey { key: key.into(), secret })))
}

#[derive(Deserialize)]
pub(crate) struct KeyName {
    id: String,
}

/// Revokes an API key: here at once, on every node within 5 seconds.
#[utoipa::path(delete, path = "/keys/{id}", tag = "keys", params(("id" = String, Path)), responses((status = 204)))]
pub(crate) async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Path(KeyName { id }): Path<KeyName>,
) -> Result<StatusCode, Problem> {
    let ctx = caller.context();
    let revoked = caller.within(&app).revoke_key(&ctx, &id).await?;
    match revoked {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("there is no such key, or it is already revoked")),
    }
}
