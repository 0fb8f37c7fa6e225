//! Status events of jobs while somebody reads them (OPS-8), webhooks, and leads. Called by the store's methods, and by
//! every step that changes a job's status, inside its transaction. Never tells anybody anything.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::store::{FEED_EVENTS_KEPT, FEED_KEPT_FOR, FeedAsk, FeedJob, FeedRow, Lead, NodeId, WebhookRecord};
use windlass_core::{JobSpec, Payload, Scope, Status, Timestamp, Webhook};

use crate::place::{self, Audit};
use crate::rows::{Columns, Done, as_i64, from_json, job_id, tenant_bytes, to_json};
use crate::writer::State;

/// Until when events are wanted, as the file says.
pub(crate) fn wanted_until(conn: &Connection) -> Done<Timestamp> {
    let until = conn.query_row("SELECT until FROM windlass_feed_reader", [], |row| row.get(0)).optional()?;
    Ok(until.map_or(Timestamp::MIN, Timestamp::from_micros))
}

/// Wants events for a time.
pub(crate) fn want(conn: &Connection, state: &mut State, time: Duration) -> Done<()> {
    let sql = "INSERT INTO windlass_feed_reader (one, until) VALUES (1, ?1) \
               ON CONFLICT (one) DO UPDATE SET until = max(until, excluded.until)";
    conn.prepare_cached(sql)?.execute([(state.now + time).as_micros()])?;
    state.feed_until = wanted_until(conn)?;
    Ok(())
}

/// Keeps an event if somebody wants it. One process writes to a file, so what its writer remembers is current; where a
/// transaction that wanted events was undone, a few are kept for nobody.
pub(crate) fn note(conn: &Connection, state: &State, job: i64, status: Status, attempt: u16) -> Done<()> {
    if state.now >= state.feed_until {
        return Ok(());
    }
    let sql = "INSERT INTO windlass_feed (job, status, attempt, at) VALUES (?1, ?2, ?3, ?4)";
    conn.prepare_cached(sql)?.execute(params![job, status.code(), attempt, state.now.as_micros()])?;
    Ok(())
}

/// The largest sequence that was given out.
pub(crate) fn end(conn: &Connection) -> Done<u64> {
    let sql = "SELECT seq FROM sqlite_sequence WHERE name = 'windlass_feed'";
    let last: Option<i64> = conn.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    Ok(last.map_or(0, sequence))
}

/// The events that are asked for.
pub(crate) fn read(conn: &Connection, ask: &FeedAsk, limit: usize) -> Done<Vec<FeedRow>> {
    let mut select = conn.prepare_cached(include_str!("sql/feed_read.sql"))?;
    let mut rows = select.query(params![column(ask.after), to_json(&ask.gaps)?, as_i64(limit)])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        let handler: Option<String> = row.get(6)?;
        let of = match handler {
            Some(handler) => Some(FeedJob {
                tenant: row.tenant(5)?,
                handler,
                sealed: row.json_or_default::<JobSpec>(7)?.sealed,
                error: row.error(8)?,
            }),
            None => None,
        };
        events.push(FeedRow {
            sequence: sequence(row.get(0)?),
            job: job_id(row.get(1)?),
            status: row.status(2)?,
            attempt: row.small(3)?,
            at: row.time(4)?,
            of,
        });
    }
    Ok(events)
}

/// Removes events that are too old or too many, at most `limit`.
pub(crate) fn clean(conn: &Connection, now: Timestamp, limit: usize) -> Done<()> {
    let oldest = end(conn)?.saturating_sub(FEED_EVENTS_KEPT);
    let mut delete = conn.prepare_cached(include_str!("sql/feed_clean.sql"))?;
    delete.execute(params![(now - FEED_KEPT_FOR).as_micros(), column(oldest), as_i64(limit)])?;
    Ok(())
}

/// Keeps a webhook.
pub(crate) fn add_webhook(conn: &Connection, state: &State, record: WebhookRecord) -> Done<Webhook> {
    let WebhookRecord { mut webhook, secret, sealed } = record;
    webhook.created_at = state.now;
    conn.prepare_cached(include_str!("sql/webhook_add.sql"))?.execute(params![
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
    let mut select = conn.prepare_cached(include_str!("sql/webhook_list.sql"))?;
    let mut rows = select.query([scope.tenant().as_ref().map(tenant_bytes)])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let mut webhook = Webhook::new(row.text(0)?, row.tenant(1)?, row.text(2)?);
        webhook.events = from_json(&row.text(3)?)?;
        webhook.handler = row.get(4)?;
        webhook.paused = row.get(7)?;
        webhook.created_at = row.time(8)?;
        webhook.created_by = row.text(9)?;
        records.push(WebhookRecord { webhook, secret: Payload::from_store(row.text(5)?), sealed: row.get(6)? });
    }
    Ok(records)
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
        conn.execute("UPDATE windlass_webhook SET paused = ?2 WHERE id = ?1", params![id, paused])?;
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

fn webhook(conn: &Connection, scope: Scope, id: &str) -> Done<Option<Webhook>> {
    let records = webhooks(conn, scope)?;
    Ok(records.into_iter().map(|record| record.webhook).find(|webhook| webhook.id == id))
}

/// Takes or renews a lead.
pub(crate) fn lead(conn: &Connection, state: &State, name: &str, node: NodeId, time: Duration) -> Done<Option<Lead>> {
    let mut statement = conn.prepare_cached(include_str!("sql/lead.sql"))?;
    let until = (state.now + time).as_micros();
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?));
    let found = statement.query_row(params![name, node.0, state.now.as_micros(), until], read).optional()?;
    Ok(found.map(|(term, cursor)| Lead { term: sequence(term), cursor: cursor.map(sequence) }))
}

/// Keeps how far a lead has come.
pub(crate) fn advance_lead(conn: &Connection, name: &str, term: u64, cursor: u64) -> Done<bool> {
    let mut update = conn.prepare_cached("UPDATE windlass_lead SET cursor = ?3 WHERE name = ?1 AND term = ?2")?;
    Ok(update.execute(params![name, column(term), column(cursor)])? == 1)
}

fn audit(conn: &Connection, state: &State, webhook: &Webhook, by: &str, action: &str) -> Done<()> {
    let entry =
        Audit { actor: by, tenant: Some(webhook.tenant), action, target: &webhook.id, detail: Some(&webhook.url) };
    place::audit(conn, state.now, &entry)
}

/// Sequences and terms count up from 1; a file that was changed may say anything.
fn sequence(column: i64) -> u64 {
    u64::try_from(column).unwrap_or(0)
}

fn column(sequence: u64) -> i64 {
    i64::try_from(sequence).unwrap_or(i64::MAX)
}
