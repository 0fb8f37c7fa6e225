//! Status events of jobs while somebody reads them (OPS-8), webhooks, and leads. Called by the service; the events are
//! written by the statements that change a job's status. Reads as the engine: whoever asks hands each tenant its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::store::{
    Error, FEED_EVENTS_KEPT, FEED_KEPT_FOR, FeedAsk, FeedJob, FeedRow, Lead, NodeId, Result, WebhookRecord,
};
use windlass_core::{JobId, Scope, Status, TenantId, Webhook};

use crate::PgStore;
use crate::connect::{Access, Param};
use crate::finish::storable;
use crate::steer::tenant;
use crate::types::{Json, Time, counter, seconds};

/// Events that one statement removes at most, and how many statements follow one another: a node keeps up with 20,000
/// events a second, and no statement holds its locks for long.
const CLEAN_ROWS: i64 = 10_000;
const CLEAN_STEPS: usize = 20;

pub(crate) async fn want(store: &PgStore, time: Duration) -> Result<()> {
    let params: [Param<'_>; 1] = [(&seconds(time), Type::FLOAT8)];
    store.shared.pools.api.query(Access::Write, include_str!("sql/feed_want.sql"), &params).await?;
    store.shared.feed_wanted.asked(Instant::now() + time);
    Ok(())
}

/// Whether somebody wants status events, as far as this process knows.
#[derive(Default)]
pub(crate) struct Wanted {
    /// As the last survey said.
    heard: AtomicBool,
    /// Until when this process wants them itself: a survey that was under way when it asked does not know of that.
    own: Mutex<Option<Instant>>,
}

impl Wanted {
    fn asked(&self, until: Instant) {
        let mut own = self.own.lock();
        *own = Some(own.map_or(until, |before| before.max(until)));
    }

    pub(crate) fn heard(&self, wanted: bool) {
        self.heard.store(wanted, Ordering::Relaxed);
    }

    /// Whether events are to be written now.
    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        self.heard.load(Ordering::Relaxed) || self.own.lock().is_some_and(|until| now < until)
    }
}

pub(crate) async fn end(store: &PgStore) -> Result<u64> {
    let row = store.shared.pools.api.query_one(Access::Read, include_str!("sql/feed_end.sql"), &[]).await?;
    Ok(sequence(row.get(0)))
}

pub(crate) async fn read(store: &PgStore, ask: &FeedAsk, limit: usize) -> Result<Vec<FeedRow>> {
    let firsts: Vec<i64> = ask.gaps.iter().map(|(first, _)| column(*first)).collect();
    let lasts: Vec<i64> = ask.gaps.iter().map(|(_, last)| column(*last)).collect();
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let params: [Param<'_>; 4] = [
        (&column(ask.after), Type::INT8),
        (&firsts, Type::INT8_ARRAY),
        (&lasts, Type::INT8_ARRAY),
        (&limit, Type::INT8),
    ];
    let rows = store.shared.pools.api.query(Access::Read, include_str!("sql/feed_read.sql"), &params).await?;
    rows.iter().map(event_of).collect()
}

fn event_of(row: &Row) -> Result<FeedRow> {
    let status: i16 = row.get(2);
    let tenant: Option<Uuid> = row.get(5);
    let of = tenant.map(|tenant| FeedJob {
        tenant: TenantId(tenant),
        handler: row.get(6),
        sealed: row.get(7),
        error: row.get::<_, Option<Json<'_>>>(8).map(Json::error),
    });
    Ok(FeedRow {
        sequence: sequence(row.get(0)),
        job: JobId::from_i64(row.get(1)),
        status: Status::from_code(status).ok_or_else(|| Error::Internal(format!("unknown status {status}")))?,
        attempt: counter(row.get(3)),
        at: row.get::<_, Time>(4).0,
        of,
    })
}

/// Removes events that are too old or too many. Goes on from where it was, so that it does not read over rows that are
/// dead but still there.
pub(crate) async fn clean(store: &PgStore) -> Result<()> {
    for _ in 0..CLEAN_STEPS {
        let after = store.shared.cursors.feed();
        let params: [Param<'_>; 4] = [
            (&after, Type::INT8),
            (&CLEAN_ROWS, Type::INT8),
            (&seconds(FEED_KEPT_FOR), Type::FLOAT8),
            (&column(FEED_EVENTS_KEPT), Type::INT8),
        ];
        let sql = include_str!("sql/feed_clean.sql");
        let row = store.shared.pools.maintain.query_one(Access::Write, sql, &params).await?;
        if let Some(last) = row.get::<_, Option<i64>>(1) {
            store.shared.cursors.set_feed(last);
        }
        if row.get::<_, i64>(0) < CLEAN_ROWS {
            break;
        }
    }
    Ok(())
}

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
    let sql = include_str!("sql/webhook_add.sql");
    let row = store.shared.pools.api.query_one(Access::Write, sql, &params).await?;
    webhook.created_at = row.get::<_, Time>(0).0;
    Ok(webhook)
}

/// The engine's statement also for a tenant: the secret is in it, which nobody behind the wall may read.
pub(crate) async fn webhooks(store: &PgStore, scope: Scope) -> Result<Vec<WebhookRecord>> {
    let params: [Param<'_>; 1] = [(&tenant(scope), Type::UUID)];
    let rows = store.shared.pools.api.query(Access::Read, include_str!("sql/webhook_list.sql"), &params).await?;
    let record = |row: &Row| {
        let mut webhook = Webhook::new(row.get::<_, String>(0), TenantId(row.get(1)), row.get::<_, String>(2));
        webhook.events = row.get::<_, Vec<i16>>(3).into_iter().filter_map(Status::from_code).collect();
        webhook.handler = row.get(4);
        webhook.paused = row.get(7);
        webhook.created_at = row.get::<_, Time>(8).0;
        webhook.created_by = row.get(9);
        WebhookRecord { webhook, secret: row.get::<_, Json<'_>>(5).payload(), sealed: row.get(6) }
    };
    Ok(rows.iter().map(record).collect())
}

pub(crate) async fn pause_webhook(store: &PgStore, scope: Scope, id: &str, paused: bool, by: &str) -> Result<bool> {
    let params: [Param<'_>; 4] =
        [(&tenant(scope), Type::UUID), (&storable(id), Type::TEXT), (&paused, Type::BOOL), (&storable(by), Type::TEXT)];
    let sql = include_str!("sql/webhook_pause.sql");
    Ok(store.shared.pools.api.query_one(Access::Write, sql, &params).await?.get::<_, i64>(0) == 1)
}

pub(crate) async fn remove_webhook(store: &PgStore, scope: Scope, id: &str, by: &str) -> Result<bool> {
    let params: [Param<'_>; 3] =
        [(&tenant(scope), Type::UUID), (&storable(id), Type::TEXT), (&storable(by), Type::TEXT)];
    let sql = include_str!("sql/webhook_remove.sql");
    Ok(store.shared.pools.api.query_one(Access::Write, sql, &params).await?.get::<_, i64>(0) == 1)
}

pub(crate) async fn lead(store: &PgStore, name: &str, node: NodeId, time: Duration) -> Result<Option<Lead>> {
    let params: [Param<'_>; 3] = [(&name, Type::TEXT), (&node.0, Type::INT8), (&seconds(time), Type::FLOAT8)];
    let rows = store.shared.pools.maintain.query(Access::Write, include_str!("sql/lead.sql"), &params).await?;
    let lead = |row: &Row| Lead { term: sequence(row.get(0)), cursor: row.get::<_, Option<i64>>(1).map(sequence) };
    Ok(rows.first().map(lead))
}

pub(crate) async fn advance_lead(store: &PgStore, name: &str, term: u64, cursor: u64) -> Result<bool> {
    let params: [Param<'_>; 3] = [(&name, Type::TEXT), (&column(term), Type::INT8), (&column(cursor), Type::INT8)];
    let rows = store.shared.pools.maintain.query(Access::Write, include_str!("sql/lead_advance.sql"), &params).await?;
    Ok(!rows.is_empty())
}

/// Sequences and terms count up from 1; a row that someone has changed may say anything.
fn sequence(column: i64) -> u64 {
    u64::try_from(column).unwrap_or(0)
}

fn column(sequence: u64) -> i64 {
    i64::try_from(sequence).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OPS-8: what a webhook was promised from its making on is written, whatever a look says that began before.
    #[test]
    fn a_survey_that_was_under_way_does_not_undo_a_wish() {
        let (wanted, now) = (Wanted::default(), Instant::now());
        assert!(!wanted.is_wanted(now));
        wanted.asked(now + Duration::from_secs(60));
        wanted.heard(false);
        assert!(wanted.is_wanted(now));
        assert!(!wanted.is_wanted(now + Duration::from_secs(60)), "it ends");
        wanted.heard(true);
        assert!(wanted.is_wanted(now + Duration::from_secs(61)), "others want them");
    }
}
