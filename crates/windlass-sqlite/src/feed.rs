//! Status events of jobs while somebody reads them, webhooks, and leads. Called by the store's methods, and by
//! every step that changes a job's status, inside its transaction. Never tells anybody anything.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::store::{FEED_EVENTS_KEPT, FEED_KEPT_FOR, Feed, FeedAsk, FeedJob, FeedRow, Result};
use windlass_core::{JobSpec, Status, Timestamp};

use crate::SqliteStore;
use crate::ground::rows::{Columns, Done, as_i64, column, job_id, readable, sequence, to_json};
use crate::ground::writer::State;

#[async_trait]
impl Feed for SqliteStore {
    async fn want_feed(&self, time: Duration) -> Result<()> {
        self.write(move |conn, state| want(conn, state, time)).await
    }

    async fn feed_end(&self) -> Result<u64> {
        self.read(|conn, _| end(conn)).await
    }

    async fn read_feed(&self, ask: &FeedAsk, limit: usize) -> Result<Vec<FeedRow>> {
        let ask = ask.clone();
        self.read(move |conn, _| read(conn, &ask, limit)).await
    }
}

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
        events.extend(readable(event_of(row))?);
    }
    Ok(events)
}

fn event_of(row: &Row<'_>) -> Done<FeedRow> {
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
    Ok(FeedRow {
        sequence: sequence(row.get(0)?),
        job: job_id(row.get(1)?),
        status: row.status(2)?,
        attempt: row.small(3)?,
        at: row.time(4)?,
        of,
    })
}

/// Removes events that are too old or too many, at most `limit`.
pub(crate) fn clean(conn: &Connection, now: Timestamp, limit: usize) -> Done<()> {
    let oldest = end(conn)?.saturating_sub(FEED_EVENTS_KEPT);
    let mut delete = conn.prepare_cached(include_str!("sql/feed_clean.sql"))?;
    delete.execute(params![(now - FEED_KEPT_FOR).as_micros(), column(oldest), as_i64(limit)])?;
    Ok(())
}
