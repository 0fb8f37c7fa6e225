//! The weeks that jobs and outcomes are partitioned by: made ahead, dropped when they are empty.

use std::time::{Duration, Instant};

use tokio_postgres::types::Type;
use windlass_core::store::Result;

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::types::seconds;

/// Weeks made ahead of need, so that a fortnight without maintenance does no harm.
pub(crate) const WEEKS_AHEAD: i32 = 2;

/// Makes weeks ahead and drops old ones. Nothing depends on when: rows without a week go to the default partition.
pub(crate) async fn look_after_weeks(store: &PgStore) {
    {
        let mut cursors = store.shared.cursors.0.lock();
        if cursors.weeks.is_some_and(|at| at.elapsed() < WEEKS_EVERY) {
            return;
        }
        cursors.weeks = Some(Instant::now());
    }
    if let Err(error) = make_weeks(store).await {
        tracing::warn!(%error, "could not create the partitions of the next weeks; will try again");
    }
    if let Err(error) = drop_old_weeks(store).await {
        tracing::warn!(%error, "could not drop old partitions; will try again");
        // Under load the tables may not be free for a moment; the next call of `clean` tries again.
        store.shared.cursors.0.lock().weeks = None;
    }
}

/// Makes the partitions of this week and the next ones: `sql/upkeep/weeks.sql`.
const MAKE_WEEKS: &str = "select windlass.make_weeks($1)";

pub(crate) async fn make_weeks(store: &PgStore) -> Result<()> {
    let params: [Param<'_>; 1] = [(&WEEKS_AHEAD, Type::INT4)];
    store.shared.pools.maintain.query(Access::Write, MAKE_WEEKS, &params).await?;
    Ok(())
}

/// The weeks that ended so many seconds ago or more: `sql/upkeep/weeks.sql`.
const OLD_WEEKS: &str =
    "select to_char(day, 'YYYYMMDD') as day from windlass.old_weeks(clock_timestamp() - make_interval(secs => $1)) day";

/// Drops an old week; its survivors move to the default partition: `sql/upkeep/weeks.sql`.
const DROP_WEEK: &str = "select windlass.drop_week(to_date($1, 'YYYYMMDD'), $2)";

pub(crate) async fn drop_old_weeks(store: &PgStore) -> Result<()> {
    let keep = seconds(store.shared.options.retention);
    let params: [Param<'_>; 1] = [(&keep, Type::FLOAT8)];
    let rows = store.shared.pools.maintain.query(Access::Read, OLD_WEEKS, &params).await?;
    for row in rows {
        let day: String = row.get(0)?;
        let params: [Param<'_>; 2] = [(&day, Type::TEXT), (&SURVIVORS, Type::INT4)];
        if store.shared.pools.maintain.query_one(Access::Write, DROP_WEEK, &params).await?.get(0)? {
            tracing::info!(week = day, "dropped the jobs of an old week");
        }
    }
    Ok(())
}

/// How often partitions are looked after.
pub(crate) const WEEKS_EVERY: Duration = Duration::from_secs(600);

/// A week with more survivors is cleaned row by row: moving them would hold locks for too long.
pub(crate) const SURVIVORS: i32 = 10_000;
