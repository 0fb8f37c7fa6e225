//! Nodes, and the steps of maintenance: promote, recover, expire, open gates, clean. Each is bounded and safe on several
//! nodes at once. Keeps in memory only where its rolling scans stand; losing that costs a longer look.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::store::{
    Beat, Error, Fence, LeaseId, NewNode, NodeId, NodeLease, NodeRecord, Pause, PauseTarget, Promoted, Recovered,
    Result, SLOT_QUARANTINE, Survey,
};
use windlass_core::{JobId, MachineSlot, Timestamp};

use crate::PgStore;
use crate::connect::{Access, Param};
use crate::types::{Json, JsonText, Time, seconds};

/// Where rolling scans stand.
#[derive(Default)]
pub(crate) struct Cursors(Mutex<CursorState>);

#[derive(Default)]
struct CursorState {
    /// The last outcome that `clean` looked at.
    outcome: Option<i64>,
    /// The last ordering key that `open_gates` looked at.
    key: (Uuid, String),
    /// The latest due time that was promoted, and when everything was last looked at.
    due: Option<Timestamp>,
    due_swept: Option<Instant>,
    folded: Option<Instant>,
    corrected: Option<Instant>,
    weeks: Option<Instant>,
    /// The last status event that was removed.
    feed: i64,
}

impl Cursors {
    pub(crate) fn feed(&self) -> i64 {
        self.0.lock().feed
    }

    pub(crate) fn set_feed(&self, last: i64) {
        self.0.lock().feed = last;
    }
}

/// How often promotion looks at the very front again: for rows that committed after their due time had passed.
const DUE_SWEEP: Duration = Duration::from_secs(2);
/// How far the hint of promotion stays behind.
const DUE_LAG: Duration = Duration::from_secs(5);
/// How often counter deltas are folded, so that counts read few rows.
const FOLD_EVERY: Duration = Duration::from_secs(5);
/// How often the counts of limited tenants are compared with what is there.
const CORRECT_EVERY: Duration = Duration::from_secs(30);
/// How many delta rows at once.
const FOLD_ROWS: i32 = 10_000;
/// How often partitions are looked after.
const WEEKS_EVERY: Duration = Duration::from_secs(600);
/// Weeks made ahead of need, so that a fortnight without maintenance does no harm.
pub(crate) const WEEKS_AHEAD: i32 = 2;
/// A week with more survivors is cleaned row by row: moving them would hold locks for too long.
const SURVIVORS: i32 = 10_000;
/// Outcomes looked at for each one that may be removed, in one call of `clean`.
const SCAN_FACTOR: usize = 8;
/// The fewest outcomes looked at, so that small stores are cleaned in one call.
const SCAN_LEAST: usize = 5_000;

pub(crate) async fn register(store: &PgStore, node: NewNode) -> Result<NodeLease> {
    let info = serde_json::to_string(&node).map_err(|e| Error::Internal(format!("a node cannot be written: {e}")))?;
    let info = JsonText(info.replace("\\u0000", ""));
    let params: [Param<'_>; 2] = [(&info, Type::JSON), (&SLOT_QUARANTINE.as_secs_f64(), Type::FLOAT8)];
    let rows = store.shared.pools.api.query(Access::Write, include_str!("sql/register.sql"), &params).await?;
    let Some(row) = rows.first() else {
        return Err(Error::Unavailable("all 1023 machine slots are in use or in quarantine".into()));
    };
    let registered_at = row.get::<_, Time>(2).0;
    // The caller counts on from this time: asked for by itself it is only a round trip old, whatever registering took.
    let now = store.store_time().await.unwrap_or(registered_at).max(registered_at);
    Ok(NodeLease { node: NodeId(row.get(0)), slot: MachineSlot(row.get::<_, i16>(1) as u16), now })
}

pub(crate) async fn heartbeat(store: &PgStore, node: NodeId, running: usize) -> Result<Beat> {
    let running = i32::try_from(running).unwrap_or(i32::MAX);
    let params: [Param<'_>; 2] = [(&node.0, Type::INT8), (&running, Type::INT4)];
    let rows = store.shared.pools.heartbeat.query(Access::Write, include_str!("sql/heartbeat.sql"), &params).await?;
    if rows.is_empty() {
        return Ok(Beat::Fenced);
    }
    let cancel = |row: &tokio_postgres::Row| {
        let lease: Option<i64> = row.get(1);
        let job: Option<i64> = row.get(2);
        Some(Fence { job: JobId::from_i64(job?), lease: LeaseId(lease?) })
    };
    Ok(Beat::Alive { cancels: rows.iter().filter_map(cancel).collect() })
}

pub(crate) async fn held(store: &PgStore, node: NodeId) -> Result<Vec<Fence>> {
    let params: [Param<'_>; 1] = [(&node.0, Type::INT8)];
    let rows = store.shared.pools.maintain.query(Access::Read, include_str!("sql/held.sql"), &params).await?;
    Ok(rows.iter().map(|row| Fence { job: JobId::from_i64(row.get(1)), lease: LeaseId(row.get(0)) }).collect())
}

pub(crate) async fn deregister(store: &PgStore, node: NodeId) -> Result<()> {
    let params: [Param<'_>; 2] = [(&node.0, Type::INT8), (&SLOT_QUARANTINE.as_secs_f64(), Type::FLOAT8)];
    store.shared.pools.api.query(Access::Write, include_str!("sql/deregister.sql"), &params).await?;
    Ok(())
}

pub(crate) async fn nodes(store: &PgStore) -> Result<Vec<NodeRecord>> {
    let rows = store.shared.pools.api.query(Access::Read, include_str!("sql/nodes.sql"), &[]).await?;
    let record = |row: &tokio_postgres::Row| NodeRecord {
        node: NodeId(row.get(0)),
        slot: MachineSlot(row.get::<_, i16>(1) as u16),
        info: serde_json::from_str(row.get::<_, Json<'_>>(2).0).unwrap_or_default(),
        running: row.get::<_, i32>(3).max(0) as usize,
        started_at: row.get::<_, Time>(4).0,
        heartbeat_at: row.get::<_, Time>(5).0,
    };
    Ok(rows.iter().map(record).collect())
}

pub(crate) async fn promote(store: &PgStore, limit: usize) -> Result<Promoted> {
    let from = due_from(store, true);
    let params: [Param<'_>; 2] = [(&Time(from), Type::TIMESTAMPTZ), (&bounded(limit), Type::INT4)];
    let row = store.shared.pools.maintain.query_one(Access::Write, include_str!("sql/promote.sql"), &params).await?;
    let last: Option<Time> = row.get(2);
    if let Some(last) = last {
        store.shared.cursors.0.lock().due = Some(last.0 - DUE_LAG);
    }
    let next: Option<i64> = row.get(1);
    Ok(Promoted {
        jobs: row.get::<_, i32>(0) as usize,
        next_in: next.map(|micros| Duration::from_micros(micros.max(0) as u64)),
    })
}

/// From when on due jobs are looked for: mostly from where promotion stands, now and then from the very front.
fn due_from(store: &PgStore, promoting: bool) -> Timestamp {
    let mut cursors = store.shared.cursors.0.lock();
    let sweep = cursors.due_swept.is_none_or(|at| at.elapsed() >= DUE_SWEEP);
    if sweep && promoting {
        cursors.due_swept = Some(Instant::now());
    }
    cursors.due.filter(|_| !sweep).unwrap_or(Timestamp::MIN)
}

pub(crate) async fn survey(store: &PgStore, lease: Duration, queues: &[String]) -> Result<Survey> {
    fold_if_due(store).await;
    let params: [Param<'_>; 3] = [
        (&seconds(lease), Type::FLOAT8),
        (&queues, Type::TEXT_ARRAY),
        (&Time(due_from(store, false)), Type::TIMESTAMPTZ),
    ];
    let row = store.shared.pools.maintain.query_one(Access::Read, include_str!("sql/survey.sql"), &params).await?;
    if store.shared.quotas.is_old(row.get::<_, Option<i64>>(8).unwrap_or(0)) {
        crate::quota::refresh(store).await?;
    }
    store.shared.feed_wanted.heard(row.get(9));
    let targets: Vec<String> = row.get(0);
    let bys: Vec<String> = row.get(1);
    let reasons: Vec<String> = row.get(2);
    let ats: Vec<Time> = row.get(3);
    let pause = |((target, by), (reason, Time(at))): ((String, String), (String, Time))| {
        Some(Pause { target: PauseTarget::parse(&target)?, by, reason, at })
    };
    Ok(Survey {
        pauses: targets.into_iter().zip(bys).zip(reasons.into_iter().zip(ats)).filter_map(pause).collect(),
        ready: row.get(4),
        due: row.get(5),
        lost: row.get(6),
        untidy: row.get(7),
        webhooks: row.get(10),
    })
}

pub(crate) async fn recover(store: &PgStore, lease: Duration) -> Result<Recovered> {
    let params: [Param<'_>; 2] = [(&seconds(lease), Type::FLOAT8), (&SLOT_QUARANTINE.as_secs_f64(), Type::FLOAT8)];
    let row = store.shared.pools.maintain.query_one(Access::Write, include_str!("sql/recover.sql"), &params).await?;
    Ok(Recovered {
        nodes: row.get::<_, Vec<i64>>(0).into_iter().map(NodeId).collect(),
        jobs: row.get::<_, Vec<i64>>(1).into_iter().map(JobId::from_i64).collect(),
    })
}

pub(crate) async fn expire(store: &PgStore, limit: usize) -> Result<usize> {
    let params: [Param<'_>; 1] = [(&bounded(limit), Type::INT4)];
    let row = store.shared.pools.maintain.query_one(Access::Write, include_str!("sql/expire.sql"), &params).await?;
    Ok(row.get::<_, i32>(0) as usize)
}

pub(crate) async fn open_gates(store: &PgStore, limit: usize) -> Result<usize> {
    let params: [Param<'_>; 1] = [(&bounded(limit), Type::INT4)];
    let sql = include_str!("sql/open_pauses.sql");
    let opened: i32 = store.shared.pools.maintain.query_one(Access::Write, sql, &params).await?.get(0);
    let keys = pass_on_ended(store, limit.saturating_sub(opened as usize)).await?;
    Ok(opened as usize + keys)
}

/// Passes on keys whose holder has ended, rolling through all keys.
async fn pass_on_ended(store: &PgStore, limit: usize) -> Result<usize> {
    let from = store.shared.cursors.0.lock().key.clone();
    let scan = bounded(limit.clamp(1, SCAN_LEAST));
    let mut rounds = vec![from.clone()];
    if from != CursorState::default().key {
        // The end of the list is soon reached; then the look goes on at its start.
        rounds.push(CursorState::default().key);
    }
    let mut opened = 0;
    for (tenant, key) in rounds {
        let params: [Param<'_>; 3] = [(&tenant, Type::UUID), (&key, Type::TEXT), (&scan, Type::INT4)];
        let sql = include_str!("sql/ended_holders.sql");
        let row = store.shared.pools.maintain.query_one(Access::Read, sql, &params).await?;
        let tenants: Option<Vec<Uuid>> = row.get(0);
        let keys: Option<Vec<String>> = row.get(1);
        let last: (Option<Uuid>, Option<String>) = (row.get(2), row.get(3));
        let at_end = row.get::<_, i32>(4) < scan;
        if let (Some(tenants), Some(keys)) = (tenants, keys) {
            let params: [Param<'_>; 2] = [(&tenants, Type::UUID_ARRAY), (&keys, Type::TEXT_ARRAY)];
            let sql = include_str!("sql/pass_on_keys.sql");
            let row = store.shared.pools.maintain.query_one(Access::Write, sql, &params).await?;
            opened += row.get::<_, i32>(0) as usize;
        }
        let mut cursors = store.shared.cursors.0.lock();
        cursors.key = match last {
            (Some(tenant), Some(key)) if !at_end => (tenant, key),
            _ => CursorState::default().key,
        };
        if !at_end {
            break;
        }
    }
    Ok(opened)
}

pub(crate) async fn clean(store: &PgStore, limit: usize) -> Result<usize> {
    fold_if_due(store).await;
    correct_use_if_due(store).await;
    look_after_weeks(store).await;
    crate::usage::clean(store, limit).await?;
    crate::feed::clean(store).await?;
    let mut budget = limit.saturating_mul(SCAN_FACTOR).max(SCAN_LEAST);
    let mut removed = 0;
    let mut wrapped = store.shared.cursors.0.lock().outcome.is_none();
    while removed < limit && budget > 0 {
        let from = store.shared.cursors.0.lock().outcome.unwrap_or(i64::MIN);
        let scan = budget.min(SCAN_LEAST);
        let params: [Param<'_>; 3] =
            [(&from, Type::INT8), (&bounded(scan), Type::INT4), (&bounded(limit - removed), Type::INT4)];
        let row = store.shared.pools.maintain.query_one(Access::Write, include_str!("sql/clean.sql"), &params).await?;
        let scanned = row.get::<_, i32>(2).max(0) as usize;
        removed += row.get::<_, i32>(0).max(0) as usize;
        budget = budget.saturating_sub(scanned.max(1));
        let at_end = scanned < scan;
        let last: Option<i64> = row.get(1);
        // A call that stopped at its limit goes on from there; only one that saw the end starts again.
        let resume = last.filter(|_| !at_end || removed >= limit);
        store.shared.cursors.0.lock().outcome = resume;
        if at_end && resume.is_none() {
            if wrapped {
                break;
            }
            wrapped = true;
        }
    }
    Ok(removed)
}

fn bounded(limit: usize) -> i32 {
    i32::try_from(limit).unwrap_or(i32::MAX)
}

/// Folds counter deltas every few seconds. What fails is folded the next time.
async fn fold_if_due(store: &PgStore) {
    {
        let mut cursors = store.shared.cursors.0.lock();
        if cursors.folded.is_some_and(|at| at.elapsed() < FOLD_EVERY) {
            return;
        }
        cursors.folded = Some(Instant::now());
    }
    let params: [Param<'_>; 1] = [(&FOLD_ROWS, Type::INT4)];
    let sql = include_str!("sql/fold_counters.sql");
    if let Err(error) = store.shared.pools.maintain.query(Access::Write, sql, &params).await {
        tracing::debug!(%error, "counters were not folded; it will be tried again");
    }
}

/// Compares the counts of limited tenants with what is there now and then.
async fn correct_use_if_due(store: &PgStore) {
    if store.shared.quotas.quotas().is_empty() {
        return;
    }
    {
        let mut cursors = store.shared.cursors.0.lock();
        if cursors.corrected.is_some_and(|at| at.elapsed() < CORRECT_EVERY) {
            return;
        }
        cursors.corrected = Some(Instant::now());
    }
    let sql = include_str!("sql/correct_use.sql");
    if let Err(error) = store.shared.pools.maintain.query(Access::Write, sql, &[]).await {
        tracing::debug!(%error, "the use of quotas was not looked at; it will be tried again");
    }
}

/// Makes weeks ahead and drops old ones. Nothing depends on when: rows without a week go to the default partition.
async fn look_after_weeks(store: &PgStore) {
    {
        let mut cursors = store.shared.cursors.0.lock();
        if cursors.weeks.is_some_and(|at| at.elapsed() < WEEKS_EVERY) {
            return;
        }
        cursors.weeks = Some(Instant::now());
    }
    if let Err(error) = make_weeks(store).await {
        tracing::warn!(%error, "the partitions of the next weeks were not made; it will be tried again");
    }
    if let Err(error) = drop_old_weeks(store).await {
        tracing::warn!(%error, "old partitions were not dropped; it will be tried again");
        // Under load the tables may not be free for a moment; the next call of `clean` tries again.
        store.shared.cursors.0.lock().weeks = None;
    }
}

pub(crate) async fn make_weeks(store: &PgStore) -> Result<()> {
    let params: [Param<'_>; 1] = [(&WEEKS_AHEAD, Type::INT4)];
    store.shared.pools.maintain.query(Access::Write, include_str!("sql/make_weeks.sql"), &params).await?;
    Ok(())
}

async fn drop_old_weeks(store: &PgStore) -> Result<()> {
    let keep = seconds(store.shared.options.retention);
    let params: [Param<'_>; 1] = [(&keep, Type::FLOAT8)];
    let rows = store.shared.pools.maintain.query(Access::Read, include_str!("sql/old_weeks.sql"), &params).await?;
    for row in rows {
        let day: String = row.get(0);
        let params: [Param<'_>; 2] = [(&day, Type::TEXT), (&SURVIVORS, Type::INT4)];
        let sql = include_str!("sql/drop_week.sql");
        if store.shared.pools.maintain.query_one(Access::Write, sql, &params).await?.get(0) {
            tracing::info!(week = day, "dropped the jobs of an old week");
        }
    }
    Ok(())
}
