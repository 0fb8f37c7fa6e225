//! The past, for charts, and what waits, for autoscalers. Called by nodes that have counted and by those who show
//! it; the adding up is in `0011_activity.sql`. Nothing depends on it: losing some costs a chart.

use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::activity::{Addition, BLOCKED_LOOKED_AT, Resolution, Slice, Sums, Waiting};
use windlass_core::store::{Counts, Result};
use windlass_core::{Scope, Status, Timestamp};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::tenant;
use crate::ground::types::{Time, seconds};

/// Chunks that are counted for a backlog: up to four million jobs, read in some ten milliseconds. Beyond, it is what an
/// autoscaler calls too much in any case.
const CHUNKS_COUNTED: i64 = 30_000;
/// Jobs of a queue whose handlers are looked up for a backlog. Enough to tell a handler that has a hundredth of them.
const JOBS_LOOKED_UP: i64 = 500;
/// Running jobs that are looked up for a backlog; more than a large cluster runs at once.
const RUNNING_LOOKED_UP: i64 = 20_000;

fn resolutions() -> Vec<i16> {
    Resolution::ALL.map(Resolution::seconds).to_vec()
}

/// Adds what happened at $1 to the buckets of resolutions $2: `sql/insight/add_activity.sql`; activity_key.
const ADD_ACTIVITY: &str = "select windlass.add_activity($1, $2, $3, $4, $5)";

pub(crate) async fn add(store: &PgStore, at: Timestamp, additions: Vec<Addition>) -> Result<()> {
    if additions.is_empty() {
        return Ok(());
    }
    let tenants: Vec<Option<Uuid>> = additions.iter().map(|addition| addition.tenant.map(|tenant| tenant.0)).collect();
    let sums: Vec<i64> = additions.iter().flat_map(|addition| addition.sums.values()).collect();
    let handlers: Vec<String> = additions.into_iter().map(|addition| addition.handler).collect();
    let params: [Param<'_>; 5] = [
        (&Time(at), Type::TIMESTAMPTZ),
        (&resolutions(), Type::INT2_ARRAY),
        (&tenants, Type::UUID_ARRAY),
        (&handlers, Type::TEXT_ARRAY),
        (&sums, Type::INT8_ARRAY),
    ];
    store.shared.pools.maintain.query(Access::Write, ADD_ACTIVITY, &params).await?;
    Ok(())
}

pub(crate) async fn slices(
    store: &PgStore,
    scope: Scope,
    resolution: Resolution,
    from: Timestamp,
) -> Result<Vec<Slice>> {
    let params: [Param<'_>; 3] =
        [(&resolution.seconds(), Type::INT2), (&tenant(scope), Type::UUID), (&Time(from), Type::TIMESTAMPTZ)];
    let rows = store.within(scope).query(include_str!("../sql/insight/activity.sql"), &params).await?;
    let slice = |row: &Row| {
        let (at, handler) = (row.get::<_, Time>(0)?.0, row.get(1)?);
        Ok(Slice { at, handler, sums: Sums::from_values(&row.get::<_, Vec<i64>>(2)?) })
    };
    Ok(readable(&rows, slice))
}

/// Counts jobs by status for the present buckets: `sql/insight/sample_depth.sql`.
const SAMPLE_DEPTH: &str = "select windlass.sample_depth($1)";

pub(crate) async fn sample_depth(store: &PgStore) -> Result<()> {
    let params: [Param<'_>; 1] = [(&resolutions(), Type::INT2_ARRAY)];
    store.shared.pools.maintain.query(Access::Write, SAMPLE_DEPTH, &params).await?;
    Ok(())
}

/// An operator's: it counts every tenant's jobs.
pub(crate) async fn depths(
    store: &PgStore,
    resolution: Resolution,
    from: Timestamp,
) -> Result<Vec<(Timestamp, Counts)>> {
    let params: [Param<'_>; 2] = [(&resolution.seconds(), Type::INT2), (&Time(from), Type::TIMESTAMPTZ)];
    let rows = store.engine().query(include_str!("../sql/insight/depths.sql"), &params).await?;
    let depth = |row: &Row| {
        let mut counts = Counts::default();
        for (status, n) in Status::ALL.into_iter().zip(row.get::<_, Vec<i64>>(1)?) {
            counts.add(status, n.max(0) as u64);
        }
        Ok((row.get::<_, Time>(0)?.0, counts))
    };
    Ok(readable(&rows, depth))
}

/// Removes buckets whose time is over: `sql/insight/clean_activity.sql`; activity_at.
const CLEAN_ACTIVITY: &str = "select windlass.clean_activity($1, $2, $3)";

pub(crate) async fn clean(store: &PgStore, limit: usize) -> Result<usize> {
    let keep: Vec<f64> = Resolution::ALL.iter().map(|resolution| seconds(resolution.keep())).collect();
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let params: [Param<'_>; 3] =
        [(&resolutions(), Type::INT2_ARRAY), (&keep, Type::FLOAT8_ARRAY), (&limit, Type::INT4)];
    let row = store.shared.pools.maintain.query_one(Access::Write, CLEAN_ACTIVITY, &params).await?;
    Ok(row.get::<_, i32>(0)?.max(0) as usize)
}

/// What waits and runs by queue and handler, of tenant $1 (null for all): `sql/insight/backlog.sql`.
const BACKLOG: &str =
    "select o_queue, o_handler, o_waiting, o_since, o_running, o_blocked from windlass.backlog($1, $2, $3, $4, $5)";

pub(crate) async fn backlog(store: &PgStore, scope: Scope) -> Result<Vec<Waiting>> {
    let params: [Param<'_>; 5] = [
        (&tenant(scope), Type::UUID),
        (&CHUNKS_COUNTED, Type::INT8),
        (&JOBS_LOOKED_UP, Type::INT8),
        (&RUNNING_LOOKED_UP, Type::INT8),
        (&(BLOCKED_LOOKED_AT as i64), Type::INT8),
    ];
    let rows = store.within(scope).query(BACKLOG, &params).await?;
    let waiting = |row: &Row| {
        Ok(Waiting {
            queue: row.get(0)?,
            handler: row.get(1)?,
            waiting: row.get::<_, i64>(2)?.max(0) as u64,
            since: row.get::<_, Option<Time>>(3)?.map(|time| time.0),
            running: row.get::<_, i64>(4)?.max(0) as u64,
            blocked: row.get::<_, i64>(5)?.max(0) as u64,
        })
    };
    Ok(readable(&rows, waiting))
}
