//! Nodes, and the steps of maintenance: promote, recover, expire, open gates, clean. Each is bounded and safe on several
//! nodes at once. Keeps in memory only where its rolling scans stand; losing that costs a longer look.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::store::{
    NodeId, Pause, PauseTarget, Promoted, Recovered, Result, SERVED_KEPT, SLOT_QUARANTINE, Silent, Survey, Upkeep,
    WaitingQueue,
};
use windlass_core::{JobId, Timestamp};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::types::{Time, seconds};
use crate::weeks::look_after_weeks;

#[async_trait]
impl Upkeep for PgStore {
    async fn survey(&self, lease: Duration, queues: &[String]) -> Result<Survey> {
        survey(self, lease, queues).await
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        promote(self, limit).await
    }

    async fn recover(&self, lease: Duration, silent: &[Silent]) -> Result<Recovered> {
        recover(self, lease, silent).await
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        expire(self, limit).await
    }

    async fn open_gates(&self, limit: usize) -> Result<usize> {
        open_gates(self, limit).await
    }

    async fn clean(&self, limit: usize) -> Result<usize> {
        clean(self, limit).await
    }

    async fn waiting_queues(&self) -> Result<Vec<WaitingQueue>> {
        crate::reads::waiting_queues(self).await
    }

    async fn last_served(&self, served: &[String], asked: &[String]) -> Result<Vec<Option<Timestamp>>> {
        last_served(self, served, asked).await
    }
}

/// Where rolling scans stand.
#[derive(Default)]
pub(crate) struct Cursors(pub(crate) Mutex<CursorState>);

#[derive(Default)]
pub(crate) struct CursorState {
    /// The last outcome that `clean` looked at.
    outcome: Option<i64>,
    /// The last ordering key that `open_gates` looked at.
    key: (Uuid, String),
    /// The latest due time that was promoted, and when everything was last looked at.
    due: Option<Timestamp>,
    due_swept: Option<Instant>,
    folded: Option<Instant>,
    folding: bool,
    /// Whether there was nothing to fold then.
    folded_none: bool,
    corrected: Option<Instant>,
    pub(crate) weeks: Option<Instant>,
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

/// The same after a time in which there were none: nobody submits and nothing ends.
const FOLD_EVERY_QUIET: Duration = Duration::from_secs(30);

/// How often the counts of limited tenants are compared with what is there.
const CORRECT_EVERY: Duration = Duration::from_secs(30);

/// How many delta rows at once.
const FOLD_ROWS: i32 = 10_000;

/// Outcomes looked at for each one that may be removed, in one call of `clean`.
const SCAN_FACTOR: usize = 8;

/// The fewest outcomes looked at, so that small stores are cleaned in one call.
const SCAN_LEAST: usize = 5_000;

/// When handlers and queues $2 were last served, after noting that $1 are; kept for $3 seconds:
/// `sql/upkeep/last_served.sql`.
const LAST_SERVED: &str = "select at from windlass.last_served($1, $2, make_interval(secs => $3)) s(at)";

pub(crate) async fn last_served(
    store: &PgStore,
    served: &[String],
    asked: &[String],
) -> Result<Vec<Option<Timestamp>>> {
    let params: [Param<'_>; 3] =
        [(&served, Type::TEXT_ARRAY), (&asked, Type::TEXT_ARRAY), (&seconds(SERVED_KEPT), Type::FLOAT8)];
    let rows = store.shared.pools.maintain.query(Access::Write, LAST_SERVED, &params).await?;
    rows.iter().map(|row| Ok(row.get::<_, Option<Time>>(0)?.map(|time| time.0))).collect()
}

/// Makes due jobs ready: `sql/upkeep/promote.sql`; scheduled_due from the hint on.
const PROMOTE: &str = "select o_jobs, o_next_us, o_last from windlass.promote($1, $2)";

pub(crate) async fn promote(store: &PgStore, limit: usize) -> Result<Promoted> {
    let from = due_from(store, true);
    let params: [Param<'_>; 2] = [(&Time(from), Type::TIMESTAMPTZ), (&bounded(limit), Type::INT4)];
    let row = store.shared.pools.look.query_one(Access::Write, PROMOTE, &params).await?;
    let last: Option<Time> = row.get(2)?;
    if let Some(last) = last {
        store.shared.cursors.0.lock().due = Some(last.0 - DUE_LAG);
    }
    let next: Option<i64> = row.get(1)?;
    Ok(Promoted {
        jobs: row.get::<_, i32>(0)? as usize,
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
    fold_if_due(store);
    let params: [Param<'_>; 3] = [
        (&seconds(lease), Type::FLOAT8),
        (&queues, Type::TEXT_ARRAY),
        (&Time(due_from(store, false)), Type::TIMESTAMPTZ),
    ];
    let row = store.shared.pools.look.query_one(Access::Read, include_str!("sql/upkeep/survey.sql"), &params).await?;
    if store.shared.quotas.is_old(row.get::<_, Option<i64>>(9)?.unwrap_or(0)) {
        crate::tenancy::quota::refresh(store).await?;
    }
    store.shared.feed_wanted.heard(row.get(10)?);
    let targets: Vec<String> = row.get(0)?;
    let bys: Vec<String> = row.get(1)?;
    let reasons: Vec<String> = row.get(2)?;
    let ats: Vec<Time> = row.get(3)?;
    let pause = |((target, by), (reason, Time(at))): ((String, String), (String, Time))| {
        Some(Pause { target: PauseTarget::parse(&target)?, by, reason, at })
    };
    let (nodes, beats): (Vec<i64>, Vec<Time>) = (row.get(6)?, row.get(7)?);
    let silent = |(node, Time(heartbeat_at))| Silent { node: NodeId(node), heartbeat_at };
    Ok(Survey {
        pauses: targets.into_iter().zip(bys).zip(reasons.into_iter().zip(ats)).filter_map(pause).collect(),
        ready: row.get(4)?,
        due: row.get(5)?,
        silent: nodes.into_iter().zip(beats).map(silent).collect(),
        untidy: row.get(8)?,
        webhooks: row.get(11)?,
        schedule_in: row.get::<_, Option<f64>>(12)?.map(|left| Duration::from_secs_f64(left.clamp(0.0, 1e9))),
        dependents: row.get(13)?,
        batches: row.get(14)?,
    })
}

/// Takes back the jobs of lost nodes: `sql/upkeep/recover.sql`; lease_node.
const RECOVER: &str =
    "select o_nodes, o_jobs from windlass.recover(make_interval(secs => $1), make_interval(secs => $2), $3, $4)";

pub(crate) async fn recover(store: &PgStore, lease: Duration, silent: &[Silent]) -> Result<Recovered> {
    let (nodes, beats): (Vec<i64>, Vec<Time>) =
        silent.iter().map(|silent| (silent.node.0, Time(silent.heartbeat_at))).unzip();
    let params: [Param<'_>; 4] = [
        (&seconds(lease), Type::FLOAT8),
        (&SLOT_QUARANTINE.as_secs_f64(), Type::FLOAT8),
        (&nodes, Type::INT8_ARRAY),
        (&beats, Type::TIMESTAMPTZ_ARRAY),
    ];
    let row = store.shared.pools.maintain.query_one(Access::Write, RECOVER, &params).await?;
    Ok(Recovered {
        nodes: row.get::<_, Vec<i64>>(0)?.into_iter().map(NodeId).collect(),
        jobs: row.get::<_, Vec<Option<i64>>>(1)?.into_iter().flatten().map(JobId::from_i64).collect(),
    })
}

/// Cancels waiting jobs that have expired: `sql/upkeep/expire.sql`; expiry_at.
const EXPIRE: &str = "select windlass.expire($1)";

pub(crate) async fn expire(store: &PgStore, limit: usize) -> Result<usize> {
    let params: [Param<'_>; 1] = [(&bounded(limit), Type::INT4)];
    let row = store.shared.pools.maintain.query_one(Access::Write, EXPIRE, &params).await?;
    Ok(row.get::<_, i32>(0)? as usize)
}

/// Makes jobs ready that a pause parked which is over: `sql/upkeep/open_pauses.sql`; gated_gate.
pub(crate) const OPEN_PAUSES: &str = "select windlass.open_pauses($1)";

pub(crate) async fn open_gates(store: &PgStore, limit: usize) -> Result<usize> {
    let params: [Param<'_>; 1] = [(&bounded(limit), Type::INT4)];
    let opened: i32 = store.shared.pools.maintain.query_one(Access::Write, OPEN_PAUSES, &params).await?.get(0)?;
    let keys = pass_on_ended(store, limit.saturating_sub(opened as usize)).await?;
    Ok(opened as usize + keys)
}

/// Ordering keys whose holder has ended, among the next $3: `sql/upkeep/ended_holders.sql`; key_holder_pkey.
const ENDED_HOLDERS: &str =
    "select o_tenants, o_keys, o_last_tenant, o_last_key, o_scanned from windlass.ended_holders($1, $2, $3)";

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
        let row = store.shared.pools.maintain.query_one(Access::Read, ENDED_HOLDERS, &params).await?;
        let tenants: Option<Vec<Uuid>> = row.get(0)?;
        let keys: Option<Vec<String>> = row.get(1)?;
        let last: (Option<Uuid>, Option<String>) = (row.get(2)?, row.get(3)?);
        let at_end = row.get::<_, i32>(4)? < scan;
        if let (Some(tenants), Some(keys)) = (tenants, keys) {
            let params: [Param<'_>; 2] = [(&tenants, Type::UUID_ARRAY), (&keys, Type::TEXT_ARRAY)];
            let row = store
                .shared
                .pools
                .maintain
                .query_one(Access::Write, crate::jobs::finish::PASS_ON_KEYS, &params)
                .await?;
            opened += row.get::<_, i32>(0)? as usize;
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

/// Removes ended jobs whose time is over among the next $2 outcomes: `sql/upkeep/clean.sql`.
const CLEAN: &str = "select o_removed, o_last, o_scanned from windlass.clean($1, $2, $3)";

pub(crate) async fn clean(store: &PgStore, limit: usize) -> Result<usize> {
    fold_if_due(store);
    correct_use_if_due(store).await;
    look_after_weeks(store).await;
    // Each by itself: what cannot be removed of one kind keeps none of another.
    if let Err(error) = crate::tenancy::usage::clean(store, limit).await {
        tracing::warn!(%error, "could not remove old costs; will try again");
    }
    if let Err(error) = crate::groups::clean(store, limit).await {
        tracing::warn!(%error, "could not remove old batches; will try again");
    }
    if let Err(error) = crate::feed::clean(store).await {
        tracing::warn!(%error, "could not remove old status events; will try again");
    }
    let mut budget = limit.saturating_mul(SCAN_FACTOR).max(SCAN_LEAST);
    let mut removed = 0;
    let mut wrapped = store.shared.cursors.0.lock().outcome.is_none();
    while removed < limit && budget > 0 {
        let from = store.shared.cursors.0.lock().outcome.unwrap_or(i64::MIN);
        let scan = budget.min(SCAN_LEAST);
        let params: [Param<'_>; 3] =
            [(&from, Type::INT8), (&bounded(scan), Type::INT4), (&bounded(limit - removed), Type::INT4)];
        let row = store.shared.pools.maintain.query_one(Access::Write, CLEAN, &params).await?;
        let scanned = row.get::<_, i32>(2)?.max(0) as usize;
        removed += row.get::<_, i32>(0)?.max(0) as usize;
        budget = budget.saturating_sub(scanned.max(1));
        let at_end = scanned < scan;
        let last: Option<i64> = row.get(1)?;
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

/// Folds counter deltas into counters: `sql/upkeep/fold_counters.sql`; counter_pkey.
const FOLD_COUNTERS: &str = "select windlass.fold_counters($1)";

/// Folds counter deltas every few seconds, in the background: a fold that takes long holds up nobody. What fails is folded
/// the next time.
fn fold_if_due(store: &PgStore) {
    {
        let mut cursors = store.shared.cursors.0.lock();
        let every = if cursors.folded_none { FOLD_EVERY_QUIET } else { FOLD_EVERY };
        if cursors.folding || cursors.folded.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        (cursors.folding, cursors.folded) = (true, Some(Instant::now()));
    }
    let fold = Folding(store.clone());
    store.runtime().spawn(async move {
        let params: [Param<'_>; 1] = [(&FOLD_ROWS, Type::INT4)];
        let shared = &fold.0.shared;
        let folded = shared.pools.maintain.query_one(Access::Write, FOLD_COUNTERS, &params).await;
        match folded.and_then(|row| row.get::<_, i32>(0)) {
            Ok(rows) => shared.cursors.0.lock().folded_none = rows == 0,
            Err(error) => tracing::debug!(%error, "could not fold counters; will try again"),
        }
    });
}

/// A fold under way, until it is dropped.
struct Folding(PgStore);

impl Drop for Folding {
    fn drop(&mut self) {
        self.0.shared.cursors.0.lock().folding = false;
    }
}

/// Puts the counts of limited tenants right: `sql/upkeep/correct_use.sql`. Reads all live tables.
const CORRECT_USE: &str = "select windlass.correct_use()";

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
    if let Err(error) = store.shared.pools.maintain.query(Access::Write, CORRECT_USE, &[]).await {
        tracing::debug!(%error, "could not check the use of quotas; will try again");
    }
}
