//! The past, for charts, and what waits, for autoscalers (BEY-14). Called by nodes that have counted and by those who show
//! it; the adding up is in `0011_activity.sql`. Nothing depends on it: losing some costs a chart.

use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::activity::{Addition, Resolution, Slice, Sums, Waiting};
use windlass_core::store::{Counts, Result};
use windlass_core::{Scope, Status, Timestamp};

use crate::PgStore;
use crate::connect::{Access, Param};
use crate::steer::tenant;
use crate::types::{Time, seconds};

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
    store.shared.pools.maintain.query(Access::Write, include_str!("sql/add_activity.sql"), &params).await?;
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
    let rows = store.within(scope).query(include_str!("sql/activity.sql"), &params).await?;
    let slice = |row: &tokio_postgres::Row| Slice {
        at: row.get::<_, Time>(0).0,
        handler: row.get(1),
        sums: Sums::from_values(&row.get::<_, Vec<i64>>(2)),
    };
    Ok(rows.iter().map(slice).collect())
}

pub(crate) async fn sample_depth(store: &PgStore) -> Result<()> {
    let params: [Param<'_>; 1] = [(&resolutions(), Type::INT2_ARRAY)];
    store.shared.pools.maintain.query(Access::Write, include_str!("sql/sample_depth.sql"), &params).await?;
    Ok(())
}

/// An operator's: it counts every tenant's jobs.
pub(crate) async fn depths(
    store: &PgStore,
    resolution: Resolution,
    from: Timestamp,
) -> Result<Vec<(Timestamp, Counts)>> {
    let params: [Param<'_>; 2] = [(&resolution.seconds(), Type::INT2), (&Time(from), Type::TIMESTAMPTZ)];
    let rows = store.engine().query(include_str!("sql/depths.sql"), &params).await?;
    let depth = |row: &tokio_postgres::Row| {
        let mut counts = Counts::default();
        for (status, n) in Status::ALL.into_iter().zip(row.get::<_, Vec<i64>>(1)) {
            counts.add(status, n.max(0) as u64);
        }
        (row.get::<_, Time>(0).0, counts)
    };
    Ok(rows.iter().map(depth).collect())
}

pub(crate) async fn clean(store: &PgStore, limit: usize) -> Result<usize> {
    let keep: Vec<f64> = Resolution::ALL.iter().map(|resolution| seconds(resolution.keep())).collect();
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let params: [Param<'_>; 3] =
        [(&resolutions(), Type::INT2_ARRAY), (&keep, Type::FLOAT8_ARRAY), (&limit, Type::INT4)];
    let sql = include_str!("sql/clean_activity.sql");
    let row = store.shared.pools.maintain.query_one(Access::Write, sql, &params).await?;
    Ok(row.get::<_, i32>(0).max(0) as usize)
}

pub(crate) async fn backlog(store: &PgStore, scope: Scope) -> Result<Vec<Waiting>> {
    let params: [Param<'_>; 4] = [
        (&tenant(scope), Type::UUID),
        (&CHUNKS_COUNTED, Type::INT8),
        (&JOBS_LOOKED_UP, Type::INT8),
        (&RUNNING_LOOKED_UP, Type::INT8),
    ];
    let rows = store.within(scope).query(include_str!("sql/backlog.sql"), &params).await?;
    let waiting = |row: &tokio_postgres::Row| Waiting {
        queue: row.get(0),
        handler: row.get(1),
        waiting: row.get::<_, i64>(2).max(0) as u64,
        since: row.get::<_, Option<Time>>(3).map(|time| time.0),
        running: row.get::<_, i64>(4).max(0) as u64,
    };
    Ok(rows.iter().map(waiting).collect())
}
