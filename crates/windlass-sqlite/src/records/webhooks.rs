//! Webhooks, as rows. Never sends anything.

use rusqlite::{Connection, Row, params};
use windlass_core::store::WebhookRecord;
use windlass_core::{Payload, Scope, Webhook};

use crate::ground::place::{self, Audit};
use crate::ground::rows::{Columns, Done, from_json, readable, tenant_bytes, to_json};
use crate::ground::writer::State;

/// Keeps a webhook.
pub(crate) fn add_webhook(conn: &Connection, state: &State, record: WebhookRecord) -> Done<Webhook> {
    let WebhookRecord { mut webhook, secret, sealed } = record;
    (webhook.created_at, webhook.active_since) = (state.now, state.now);
    conn.prepare_cached(include_str!("../sql/webhook_add.sql"))?.execute(params![
        webhook.id,
        tenant_bytes(&webhook.tenant),
        webhook.url,
        to_json(&webhook.events)?,
        webhook.handler,
        secret.as_str(),
        sealed,
        webhook.created_at.as_micros(),
        webhook.created_by
    ])?;
    audit(conn, state, &webhook, &webhook.created_by, "WEBHOOK_ADDED")?;
    Ok(webhook)
}

/// The webhooks of a scope.
pub(crate) fn webhooks(conn: &Connection, scope: Scope) -> Done<Vec<WebhookRecord>> {
    let mut select = conn.prepare_cached(include_str!("../sql/webhook_list.sql"))?;
    let mut rows = select.query([scope.tenant().as_ref().map(tenant_bytes)])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        records.extend(readable(webhook_of(row))?);
    }
    Ok(records)
}

pub(crate) fn webhook_of(row: &Row<'_>) -> Done<WebhookRecord> {
    let mut webhook = Webhook::new(row.text(0)?, row.tenant(1)?, row.text(2)?);
    webhook.events = from_json(&row.text(3)?)?;
    webhook.handler = row.get(4)?;
    webhook.paused = row.get(7)?;
    webhook.created_at = row.time(8)?;
    webhook.created_by = row.text(9)?;
    webhook.active_since = row.time(10)?;
    Ok(WebhookRecord { webhook, secret: Payload::from_store(row.text(5)?), sealed: row.get(6)? })
}

/// Pauses a webhook or lets it go on.
pub(crate) fn pause_webhook(
    conn: &Connection,
    state: &State,
    scope: Scope,
    id: &str,
    paused: bool,
    by: &str,
) -> Done<bool> {
    let Some(webhook) = webhook(conn, scope, id)? else { return Ok(false) };
    if webhook.paused != paused {
        let active_since = if paused { webhook.active_since } else { state.now };
        let sql = "UPDATE windlass_webhook SET paused = ?2, active_since = ?3 WHERE id = ?1";
        conn.execute(sql, params![id, paused, active_since.as_micros()])?;
        let action = if paused { "WEBHOOK_PAUSED" } else { "WEBHOOK_RESUMED" };
        audit(conn, state, &webhook, by, action)?;
    }
    Ok(true)
}

/// Removes a webhook.
pub(crate) fn remove_webhook(conn: &Connection, state: &State, scope: Scope, id: &str, by: &str) -> Done<bool> {
    let Some(webhook) = webhook(conn, scope, id)? else { return Ok(false) };
    conn.execute("DELETE FROM windlass_webhook WHERE id = ?1", [id])?;
    audit(conn, state, &webhook, by, "WEBHOOK_REMOVED")?;
    Ok(true)
}

pub(crate) fn webhook(conn: &Connection, scope: Scope, id: &str) -> Done<Option<Webhook>> {
    let records = webhooks(conn, scope)?;
    Ok(records.into_iter().map(|record| record.webhook).find(|webhook| webhook.id == id))
}

pub(crate) fn audit(conn: &Connection, state: &State, webhook: &Webhook, by: &str, action: &str) -> Done<()> {
    let entry =
        Audit { actor: by, tenant: Some(webhook.tenant), action, target: &webhook.id, detail: Some(&webhook.url) };
    place::audit(conn, state.now, &entry)
}
