//! What jobs cost: operators' records, sums by day, and the feed of single costs. Called by the store's methods
//! about usage and by `clean`; what attempts cost comes with their finish (`finish`).

use tokio_postgres::types::Type;
use windlass_core::store::Result;
use windlass_core::{Cost, JobId, Scope, TenantId, USAGE_EVENTS_KEPT, USAGE_KEPT, USAGE_PAGE, UsageEvent, UsageRow};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::{Time, micros, tenant};
use crate::jobs::finish::storable;

/// Costs that get their sequence in one go: more than a page, so that a reader that is behind comes nearer.
const PUBLISHED_AT_ONCE: i32 = 4 * USAGE_PAGE as i32;

/// Records a cost of job $2 of tenant $1 (null for all): `sql/tenancy/record_cost.sql`.
const RECORD_COST: &str = "select windlass.record_cost($1, $2, $3, $4, $5)";

/// Records a cost on someone's behalf. False if the job is not there.
pub(crate) async fn record(store: &PgStore, scope: Scope, id: JobId, by: &str, cost: Cost) -> Result<bool> {
    let params: [Param<'_>; 5] = [
        (&tenant(scope), Type::UUID),
        (&id.as_i64(), Type::INT8),
        (&storable(by), Type::TEXT),
        (&cost.cents, Type::INT8),
        (&cost.units, Type::INT8),
    ];
    let row = store.within(scope).write(id, RECORD_COST, &params).await?;
    row.map_or(Ok(false), |row| row.get(0))
}

/// The sums from one day to another.
pub(crate) async fn by_day(store: &PgStore, scope: Scope, from: &str, to: &str) -> Result<Vec<UsageRow>> {
    let params: [Param<'_>; 3] = [(&tenant(scope), Type::UUID), (&from, Type::TEXT), (&to, Type::TEXT)];
    let rows = store.within(scope).query(include_str!("../sql/tenancy/usage_by_day.sql"), &params).await?;
    let usage = |row: &Row| {
        Ok(UsageRow {
            tenant: TenantId(row.get(0)?),
            handler: row.get(1)?,
            day: row.get(2)?,
            jobs: row.get::<_, i64>(3)?.max(0) as u64,
            cents: row.get(4)?,
            units: row.get(5)?,
        })
    };
    Ok(readable(&rows, usage))
}

/// Gives a sequence to costs that have none: `sql/tenancy/publish_usage.sql`; usage_event_new.
const PUBLISH_USAGE: &str = "select windlass.publish_usage($1)";

/// The costs one by one. The engine gives those a sequence that have none, whoever reads.
pub(crate) async fn events(store: &PgStore, scope: Scope, after: u64, limit: usize) -> Result<Vec<UsageEvent>> {
    let params: [Param<'_>; 1] = [(&PUBLISHED_AT_ONCE, Type::INT4)];
    store.shared.pools.api.query(Access::Write, PUBLISH_USAGE, &params).await?;
    let (after, limit) = (i64::try_from(after).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    let params: [Param<'_>; 3] = [(&tenant(scope), Type::UUID), (&after, Type::INT8), (&limit, Type::INT8)];
    let rows = store.within(scope).query(include_str!("../sql/tenancy/usage_events.sql"), &params).await?;
    let event = |row: &Row| {
        Ok(UsageEvent {
            sequence: row.get::<_, i64>(0)? as u64,
            job: JobId::from_i64(row.get(1)?),
            tenant: TenantId(row.get(2)?),
            handler: row.get(3)?,
            cents: row.get(4)?,
            units: row.get(5)?,
            at: row.get::<_, Time>(6)?.0,
        })
    };
    Ok(readable(&rows, event))
}

/// Forgets costs that are too old: `sql/tenancy/clean_usage.sql`; usage_event_at, usage_pkey.
const CLEAN_USAGE: &str = "select windlass.clean_usage($1, $2, $3)";

/// Forgets what is too old.
pub(crate) async fn clean(store: &PgStore, limit: usize) -> Result<()> {
    let days = (USAGE_KEPT.as_secs() / (24 * 60 * 60)) as i32;
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let params: [Param<'_>; 3] = [(&micros(USAGE_EVENTS_KEPT), Type::INT8), (&days, Type::INT4), (&limit, Type::INT4)];
    store.shared.pools.maintain.query(Access::Write, CLEAN_USAGE, &params).await?;
    Ok(())
}
