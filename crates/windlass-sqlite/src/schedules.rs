//! Schedules, and what they start.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use windlass_core::store::{
    DueSchedules, Fired, Firing, Result, SCHEDULER, SCHEDULES_MAX, ScheduleAsk, ScheduleChange, ScheduleChanged,
    ScheduleRecord, ScheduleTo, Schedules,
};
use windlass_core::{NewJob, Payload, Scope, TenantId, Timestamp};

use crate::SqliteStore;
use crate::ground::place::{self, Audit};
use crate::ground::rows::{Columns, Done, as_i64, column, job_id, readable, sequence, tenant_bytes};
use crate::ground::writer::State;
use crate::jobs::submit::{Quota, submit};

/// Reads schedules by tenant and name.
const LIST: &str = include_str!("sql/schedule_list.sql");

#[async_trait]
impl Schedules for SqliteStore {
    async fn schedules(&self, scope: Scope, ask: ScheduleAsk) -> Result<Vec<ScheduleRecord>> {
        self.read(move |conn, _| {
            let of = scope.tenant();
            let tenant = of.as_ref().map(tenant_bytes);
            let (after, after_name) = ask.after.as_ref().map(|(tenant, name)| (tenant_bytes(tenant), name)).unzip();
            records(conn, LIST, params![tenant, ask.name, after, after_name, as_i64(ask.limit)])
        })
        .await
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChanged> {
        self.write(move |conn, state| change_schedule(conn, state, &change)).await
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        self.read(move |conn, now| due_schedules(conn, now, limit)).await
    }

    async fn fire(&self, epoch: u64, firings: Vec<Firing>) -> Result<Option<Vec<Fired>>> {
        self.write(move |conn, state| fire(conn, state, epoch, &firings)).await
    }
}

fn change_schedule(conn: &Connection, state: &State, change: &ScheduleChange) -> Done<ScheduleChanged> {
    let found = find(conn, change.tenant, &change.name)?;
    if found.is_none() && matches!(change.to, ScheduleTo::Put(_)) {
        let of_tenant = "SELECT count(*) FROM windlass_schedule WHERE tenant = ?1";
        let known: i64 = conn.query_row(of_tenant, [tenant_bytes(&change.tenant)], |row| row.get(0))?;
        if known >= as_i64(SCHEDULES_MAX) {
            return Ok(ScheduleChanged::TooMany);
        }
    }
    let Some(changed) = change.apply(found.as_ref(), state.now) else {
        return Ok(ScheduleChanged::Differs(found.map(Box::new)));
    };
    match change.to {
        ScheduleTo::Removed => {
            let remove = "DELETE FROM windlass_schedule WHERE tenant = ?1 AND name = ?2";
            conn.execute(remove, params![tenant_bytes(&change.tenant), change.name])?;
        }
        _ => put(conn, &changed)?,
    }
    let entry = change.audit(found.is_some(), state.now);
    let audit = Audit {
        actor: &entry.actor,
        tenant: entry.tenant,
        action: &entry.action,
        target: &entry.target,
        detail: entry.detail.as_deref(),
    };
    place::audit(conn, state.now, &audit)?;
    Ok(ScheduleChanged::Done(Box::new(changed)))
}

fn due_schedules(conn: &Connection, now: Timestamp, limit: usize) -> Done<DueSchedules> {
    let due = records(conn, include_str!("sql/schedule_due.sql"), params![now.as_micros(), as_i64(limit)])?;
    let next = "SELECT next_at FROM windlass_schedule WHERE NOT paused AND next_at IS NOT NULL
                ORDER BY next_at, id LIMIT 1 OFFSET ?1";
    let next: Option<i64> = conn.query_row(next, [as_i64(due.len())], |row| row.get(0)).optional()?;
    Ok(DueSchedules { now, due, next_in: next.map(|at| Timestamp::from_micros(at).since(now)) })
}

fn fire(conn: &Connection, state: &mut State, epoch: u64, firings: &[Firing]) -> Done<Option<Vec<Fired>>> {
    let held = "SELECT 1 FROM windlass_holding WHERE name = ?1 AND epoch = ?2 AND node IS NOT NULL";
    if !conn.prepare_cached(held)?.exists(params![SCHEDULER, column(epoch)])? {
        return Ok(None);
    }
    let mut moved = Vec::with_capacity(firings.len());
    for firing in firings {
        let mut update = conn.prepare_cached(include_str!("sql/schedule_fire.sql"))?;
        let changed = update.execute(params![
            tenant_bytes(&firing.tenant),
            firing.name,
            column(firing.version),
            firing.due.as_micros(),
            firing.next_at.map(Timestamp::as_micros),
            firing.last_at.map(Timestamp::as_micros)
        ])?;
        moved.push(changed == 1);
    }
    let jobs: Vec<NewJob> =
        firings.iter().zip(&moved).filter(|(_, moved)| **moved).flat_map(|(firing, _)| firing.jobs.clone()).collect();
    let mut stored = submit(conn, state, &jobs, None, Quota::Enforced)?.into_iter();
    let fired = |(firing, moved): (&Firing, bool)| match moved {
        true => Fired::Stored(stored.by_ref().take(firing.jobs.len()).collect()),
        false => Fired::Changed,
    };
    Ok(Some(firings.iter().zip(moved).map(fired).collect()))
}

fn find(conn: &Connection, tenant: TenantId, name: &str) -> Done<Option<ScheduleRecord>> {
    let none = None::<&str>;
    let params = params![tenant_bytes(&tenant), name, none, none, 1];
    Ok(records(conn, LIST, params)?.pop())
}

fn put(conn: &Connection, record: &ScheduleRecord) -> Done<()> {
    conn.prepare_cached(include_str!("sql/schedule_put.sql"))?.execute(params![
        tenant_bytes(&record.tenant),
        record.name,
        record.id.as_i64(),
        column(record.version),
        record.spec.as_str(),
        record.input.as_str(),
        record.sealed,
        record.paused,
        record.next_at.map(Timestamp::as_micros),
        record.last_at.map(Timestamp::as_micros),
        record.created_at.as_micros(),
        record.changed_at.as_micros()
    ])?;
    Ok(())
}

fn records(conn: &Connection, sql: &str, params: &[&dyn ToSql]) -> Done<Vec<ScheduleRecord>> {
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params)?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        records.extend(readable(record(row))?);
    }
    Ok(records)
}

fn record(row: &Row<'_>) -> Done<ScheduleRecord> {
    let time = |at: Option<i64>| at.map(Timestamp::from_micros);
    Ok(ScheduleRecord {
        tenant: row.tenant(0)?,
        name: row.text(1)?,
        id: job_id(row.get(2)?),
        version: sequence(row.get(3)?),
        spec: Payload::from_store(row.text(4)?),
        input: Payload::from_store(row.text(5)?),
        sealed: row.get(6)?,
        paused: row.get(7)?,
        next_at: time(row.get(8)?),
        last_at: time(row.get(9)?),
        created_at: row.time(10)?,
        changed_at: row.time(11)?,
    })
}
