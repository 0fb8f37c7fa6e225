//! Log lines of jobs (BEY-7): kept under their fence, the newest only, and read back. Called by the store's methods of the
//! same names. What a line says is none of its business: it may be sealed.

use std::collections::BTreeSet;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use windlass_core::store::{LogReport, NodeId, Result};
use windlass_core::{JobId, LOG_LINES, LogLevel, LogLine, Scope};

use crate::PgStore;
use crate::connect::{Access, Param};
use crate::finish::storable;
use crate::steer::tenant;
use crate::types::{Time, counter};

/// Keeps what is new of each report whose fence is current. Answers in order.
pub(crate) async fn add(store: &PgStore, node: NodeId, reports: Vec<LogReport>) -> Result<Vec<bool>> {
    if reports.is_empty() {
        return Ok(Vec::new());
    }
    let leases: BTreeSet<i64> = reports.iter().map(|report| report.fence.lease.0).collect();
    let leases: Vec<i64> = leases.into_iter().collect();
    let lease: Vec<i64> = reports.iter().map(|report| report.fence.lease.0).collect();
    let id: Vec<i64> = reports.iter().map(|report| report.fence.job.as_i64()).collect();
    let attempt: Vec<i32> = reports.iter().map(|report| i32::from(report.attempt)).collect();
    let lines = || (1_i32..).zip(&reports).flat_map(|(of, report)| report.lines.iter().map(move |line| (of, line)));
    let of: Vec<i32> = lines().map(|(of, _)| of).collect();
    let number: Vec<i64> = lines().map(|(_, line)| line.number as i64).collect();
    let at: Vec<Time> = lines().map(|(_, line)| Time(line.at)).collect();
    let level: Vec<i16> = lines().map(|(_, line)| line.level.code()).collect();
    let message: Vec<String> = lines().map(|(_, line)| storable(&line.message)).collect();
    let params: [Param<'_>; 11] = [
        (&node.0, Type::INT8),
        (&leases, Type::INT8_ARRAY),
        (&lease, Type::INT8_ARRAY),
        (&id, Type::INT8_ARRAY),
        (&attempt, Type::INT4_ARRAY),
        (&of, Type::INT4_ARRAY),
        (&number, Type::INT8_ARRAY),
        (&at, Type::TIMESTAMPTZ_ARRAY),
        (&level, Type::INT2_ARRAY),
        (&message, Type::TEXT_ARRAY),
        (&(LOG_LINES as i32), Type::INT4),
    ];
    let sql = include_str!("sql/add_logs.sql");
    let row = store.shared.pools.finish.query_one(Access::Write, sql, &params).await?;
    let mut kept = vec![false; reports.len()];
    for place in row.get::<_, Vec<i32>>(0) {
        kept[place as usize - 1] = true;
    }
    Ok(kept)
}

/// The lines of a job that come after a sequence.
pub(crate) async fn read(store: &PgStore, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>> {
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let params: [Param<'_>; 3] = [(&id.as_i64(), Type::INT8), (&tenant(scope), Type::UUID), (&after, Type::INT8)];
    let rows = store.within(scope).query(include_str!("sql/logs.sql"), &params).await?;
    let line = |row: &Row| LogLine {
        sequence: row.get::<_, i64>(0) as u64,
        at: row.get::<_, Time>(1).0,
        attempt: counter(row.get(2)),
        level: LogLevel::from_code(row.get(3)),
        message: row.get(4),
    };
    Ok(rows.iter().map(line).collect())
}
