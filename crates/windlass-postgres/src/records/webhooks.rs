//! Webhooks, as rows of a table with a wall between tenants. Never sends anything.

use tokio_postgres::types::Type;
use windlass_core::store::{Result, WebhookRecord};
use windlass_core::{Scope, Status, TenantId, Webhook};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::{Json, Time, tenant};
use crate::jobs::finish::storable;

pub(crate) async fn add_webhook(store: &PgStore, record: WebhookRecord) -> Result<Webhook> {
    let WebhookRecord { mut webhook, secret, sealed } = record;
    let events: Vec<i16> = webhook.events.iter().map(|status| status.code()).collect();
    let params: [Param<'_>; 8] = [
        (&webhook.id, Type::TEXT),
        (&webhook.tenant.0, Type::UUID),
        (&storable(&webhook.url), Type::TEXT),
        (&events, Type::INT2_ARRAY),
        (&webhook.handler, Type::TEXT),
        (&Json(secret.as_str()), Type::JSON),
        (&sealed, Type::BOOL),
        (&storable(&webhook.created_by), Type::TEXT),
    ];
    let sql = include_str!("../sql/records/webhook_add.sql");
    let row = store.shared.pools.api.query_one(Access::Write, sql, &params).await?;
    webhook.created_at = row.get::<_, Time>(0)?.0;
    webhook.active_since = row.get::<_, Time>(1)?.0;
    Ok(webhook)
}

/// The engine's statement also for a tenant: the secret is in it, which nobody behind the wall may read.
pub(crate) async fn webhooks(store: &PgStore, scope: Scope) -> Result<Vec<WebhookRecord>> {
    let params: [Param<'_>; 1] = [(&tenant(scope), Type::UUID)];
    let rows =
        store.shared.pools.api.query(Access::Read, include_str!("../sql/records/webhook_list.sql"), &params).await?;
    let record = |row: &Row| {
        let mut webhook = Webhook::new(row.get::<_, String>(0)?, TenantId(row.get(1)?), row.get::<_, String>(2)?);
        webhook.events = row.get::<_, Vec<i16>>(3)?.into_iter().filter_map(Status::from_code).collect();
        webhook.handler = row.get(4)?;
        webhook.paused = row.get(7)?;
        webhook.created_at = row.get::<_, Time>(8)?.0;
        webhook.created_by = row.get(9)?;
        webhook.active_since = row.get::<_, Time>(10)?.0;
        Ok(WebhookRecord { webhook, secret: row.get::<_, Json<'_>>(5)?.payload(), sealed: row.get(6)? })
    };
    Ok(readable(&rows, record))
}

pub(crate) async fn pause_webhook(store: &PgStore, scope: Scope, id: &str, paused: bool, by: &str) -> Result<bool> {
    let params: [Param<'_>; 4] =
        [(&tenant(scope), Type::UUID), (&storable(id), Type::TEXT), (&paused, Type::BOOL), (&storable(by), Type::TEXT)];
    let sql = include_str!("../sql/records/webhook_pause.sql");
    Ok(store.shared.pools.api.query_one(Access::Write, sql, &params).await?.get::<_, i64>(0)? == 1)
}

pub(crate) async fn remove_webhook(store: &PgStore, scope: Scope, id: &str, by: &str) -> Result<bool> {
    let params: [Param<'_>; 3] =
        [(&tenant(scope), Type::UUID), (&storable(id), Type::TEXT), (&storable(by), Type::TEXT)];
    let sql = include_str!("../sql/records/webhook_remove.sql");
    Ok(store.shared.pools.api.query_one(Access::Write, sql, &params).await?.get::<_, i64>(0)? == 1)
}
