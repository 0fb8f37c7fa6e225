//! Status events of jobs while somebody reads them, webhooks, and leads. Called by the service; the events are
//! written by the statements that change a job's status. Reads as the engine: whoever asks hands each tenant its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::store::{Error, FEED_EVENTS_KEPT, FEED_KEPT_FOR, Feed, FeedAsk, FeedJob, FeedRow, Result};
use windlass_core::{JobId, Status, TenantId};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::{Json, Time, column, counter, seconds, sequence};

#[async_trait]
impl Feed for PgStore {
    async fn want_feed(&self, time: Duration) -> Result<()> {
        want(self, time).await
    }

    async fn feed_end(&self) -> Result<u64> {
        end(self).await
    }

    async fn read_feed(&self, ask: &FeedAsk, limit: usize) -> Result<Vec<FeedRow>> {
        read(self, ask, limit).await
    }
}

/// Events that one statement removes at most, and how many statements follow one another: a node keeps up with 20,000
/// events a second, and no statement holds its locks for long.
const CLEAN_ROWS: i64 = 10_000;

const CLEAN_STEPS: usize = 20;

pub(crate) async fn want(store: &PgStore, time: Duration) -> Result<()> {
    let params: [Param<'_>; 1] = [(&seconds(time), Type::FLOAT8)];
    store.shared.pools.api.query(Access::Write, include_str!("sql/feed/want.sql"), &params).await?;
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
    let row = store.shared.pools.api.query_one(Access::Read, include_str!("sql/feed/end.sql"), &[]).await?;
    Ok(sequence(row.get(0)?))
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
    let rows = store.engine().query(include_str!("sql/feed/read.sql"), &params).await?;
    Ok(readable(&rows, event_of))
}

fn event_of(row: &Row) -> Result<FeedRow> {
    let status: i16 = row.get(2)?;
    let tenant: Option<Uuid> = row.get(5)?;
    let of = match tenant {
        Some(tenant) => Some(FeedJob {
            tenant: TenantId(tenant),
            handler: row.get(6)?,
            sealed: row.get(7)?,
            error: row.get::<_, Option<Json<'_>>>(8)?.map(Json::error),
        }),
        None => None,
    };
    Ok(FeedRow {
        sequence: sequence(row.get(0)?),
        job: JobId::from_i64(row.get(1)?),
        status: Status::from_code(status).ok_or_else(|| Error::Internal(format!("unknown status {status}")))?,
        attempt: counter(row.get(3)?),
        at: row.get::<_, Time>(4)?.0,
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
        let sql = include_str!("sql/feed/clean.sql");
        let row = store.shared.pools.maintain.query_one(Access::Write, sql, &params).await?;
        if let Some(last) = row.get::<_, Option<i64>>(1)? {
            store.shared.cursors.set_feed(last);
        }
        if row.get::<_, i64>(0)? < CLEAN_ROWS {
            break;
        }
    }
    Ok(())
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
