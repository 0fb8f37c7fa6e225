//! Schedules, and what they start. A change reads the schedule, lets core decide, and writes only if nobody else has
//! changed it in between.

use async_trait::async_trait;
use serde_json::json;
use tokio_postgres::types::Type;
use windlass_core::store::{
    DueSchedules, Error, Fired, Firing, Result, SCHEDULES_MAX, ScheduleAsk, ScheduleChange, ScheduleChanged,
    ScheduleRecord, ScheduleTo, Schedules, Submitted,
};
use windlass_core::{JobId, NewJob, Scope, TenantId, Timestamp};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::{Json, Time, column, sequence, tenant};
use crate::jobs::finish::storable;

/// How often a change is tried that others get ahead of: people change schedules, and rarely the same one at once.
const CHANGE_TRIES: usize = 5;

#[async_trait]
impl Schedules for PgStore {
    async fn schedules(&self, scope: Scope, ask: ScheduleAsk) -> Result<Vec<ScheduleRecord>> {
        Ok(list(self, scope, &ask).await?)
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChanged> {
        for _ in 0..CHANGE_TRIES {
            if let Some(changed) = try_change(self, &change).await? {
                return Ok(changed);
            }
        }
        Err(Error::Unavailable(format!("schedule {} is being changed by others, again and again", change.name)))
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params: [Param<'_>; 1] = [(&limit, Type::INT8)];
        let due = include_str!("sql/schedules/due.sql");
        let rows = self.shared.pools.maintain.query(Access::Read, due, &params).await?;
        let Some(first) = rows.first() else { return Err(Error::Internal("no time".to_owned())) };
        let (Time(now), next) = (first.get(12)?, first.get::<_, Option<Time>>(13)?);
        let next_in = next.map(|Time(at)| at.since(now));
        // A row without a schedule only says what time it is.
        let due = if first.get::<_, Option<i64>>(2)?.is_some() { readable(&rows, record) } else { Vec::new() };
        Ok(DueSchedules { now, due, next_in })
    }

    async fn fire(&self, epoch: u64, firings: Vec<Firing>) -> Result<Option<Vec<Fired>>> {
        fire(self, epoch, firings).await
    }
}

async fn list(store: &PgStore, scope: Scope, ask: &ScheduleAsk) -> Result<Vec<ScheduleRecord>> {
    let limit = i64::try_from(ask.limit).unwrap_or(i64::MAX);
    let (after_tenant, after_name) = match &ask.after {
        Some((tenant, name)) => (Some(tenant.0), Some(storable(name))),
        None => (None, None),
    };
    let name = ask.name.as_deref().map(storable);
    let params: [Param<'_>; 5] = [
        (&tenant(scope), Type::UUID),
        (&name, Type::TEXT),
        (&after_tenant, Type::UUID),
        (&after_name, Type::TEXT),
        (&limit, Type::INT8),
    ];
    let list = include_str!("sql/schedules/list.sql");
    let rows = store.shared.pools.api.query(Access::Read, list, &params).await?;
    Ok(readable(&rows, record))
}

/// `None` if somebody else was faster.
async fn try_change(store: &PgStore, change: &ScheduleChange) -> Result<Option<ScheduleChanged>> {
    let now = windlass_core::store::Base::now(store).await?;
    let mut found = list(store, Scope::Tenant(change.tenant), &ScheduleAsk::named(change.name.clone())).await?;
    let found = found.pop();
    let Some(changed) = change.apply(found.as_ref(), now) else {
        return Ok(Some(ScheduleChanged::Differs(found.map(Box::new))));
    };
    let entry = change.audit(found.is_some(), now);
    let (actor, max) = (storable(&entry.actor), SCHEDULES_MAX as i64);
    let version = found.as_ref().map(|record| column(record.version));
    let (name, next, last) = (storable(&changed.name), changed.next_at.map(Time), changed.last_at.map(Time));
    let (created, changed_at) = (Time(changed.created_at), Time(changed.changed_at));
    let (spec, input) = (Json(changed.spec.as_str()), Json(changed.input.as_str()));
    let (id, new_version) = (changed.id.as_i64(), column(changed.version));
    let key: [Param<'_>; 2] = [(&changed.tenant.0, Type::UUID), (&name, Type::TEXT)];
    let audit: [Param<'_>; 2] = [(&actor, Type::TEXT), (&entry.action, Type::TEXT)];
    let content: [Param<'_>; 10] = [
        (&id, Type::INT8),
        (&new_version, Type::INT8),
        (&spec, Type::JSON),
        (&input, Type::JSON),
        (&changed.sealed, Type::BOOL),
        (&changed.paused, Type::BOOL),
        (&next, Type::TIMESTAMPTZ),
        (&last, Type::TIMESTAMPTZ),
        (&created, Type::TIMESTAMPTZ),
        (&changed_at, Type::TIMESTAMPTZ),
    ];
    let (sql, params): (_, Vec<Param<'_>>) = match (&version, &change.to) {
        (Some(version), ScheduleTo::Removed) => {
            let version: [Param<'_>; 1] = [(version, Type::INT8)];
            (include_str!("sql/schedules/remove.sql"), key.into_iter().chain(version).chain(audit).collect())
        }
        (Some(version), _) => {
            let version: [Param<'_>; 1] = [(version, Type::INT8)];
            let params = key.into_iter().chain(content).chain(version).chain(audit).collect();
            (include_str!("sql/schedules/change.sql"), params)
        }
        (None, _) => {
            let max: [Param<'_>; 1] = [(&max, Type::INT8)];
            let params = key.into_iter().chain(content).chain(max).chain(audit).collect();
            (include_str!("sql/schedules/create.sql"), params)
        }
    };
    let written = store.shared.pools.api.query_one(Access::Write, sql, &params).await?.get::<_, i64>(0)? == 1;
    if written {
        return Ok(Some(ScheduleChanged::Done(Box::new(changed))));
    }
    if version.is_some() {
        return Ok(None);
    }
    // Nothing was created: somebody else has, or there are too many.
    let others = list(store, Scope::Tenant(change.tenant), &ScheduleAsk::page(SCHEDULES_MAX)).await?;
    let is_there = others.iter().any(|record| record.name == change.name);
    Ok((!is_there && others.len() >= SCHEDULES_MAX).then_some(ScheduleChanged::TooMany))
}

/// Fires $2 for the holder under epoch $1: `sql/schedules/fire.sql`.
const FIRE: &str = "select firing, id, duplicate from windlass.fire($1, $2)";

async fn fire(store: &PgStore, epoch: u64, firings: Vec<Firing>) -> Result<Option<Vec<Fired>>> {
    let text = firings_json(&firings)?;
    let params: [Param<'_>; 2] = [(&column(epoch), Type::INT8), (&Json(&text), Type::JSON)];
    let rows = store.shared.pools.maintain.query(Access::Write, FIRE, &params).await?;
    let mut fired = vec![Fired::Changed; firings.len()];
    for row in &rows {
        let Ok(place) = usize::try_from(row.get::<_, i32>(0)?) else { return Ok(None) };
        let Some(fired) = fired.get_mut(place) else { continue };
        if *fired == Fired::Changed {
            *fired = Fired::Stored(Vec::new());
        }
        if let (Some(id), Fired::Stored(jobs)) = (row.get::<_, Option<i64>>(1)?, fired) {
            let duplicate = row.get::<_, Option<bool>>(2)?.unwrap_or_default();
            jobs.push(Submitted { id: JobId::from_i64(id), duplicate });
        }
    }
    let jobs: Vec<NewJob> = firings.into_iter().flat_map(|firing| firing.jobs).collect();
    store.know_lines(&jobs);
    Ok(Some(fired))
}

fn firings_json(firings: &[Firing]) -> Result<String> {
    let firing = |firing: &Firing| {
        json!({
            "tenant": firing.tenant.0,
            "name": storable(&firing.name),
            "version": firing.version,
            "due": firing.due.as_micros(),
            "last": firing.last_at.map(Timestamp::as_micros),
            "next": firing.next_at.map(Timestamp::as_micros),
            "jobs": firing.jobs,
        })
    };
    let firings: Vec<_> = firings.iter().map(firing).collect();
    serde_json::to_string(&firings).map_err(|error| Error::Internal(format!("cannot write firings: {error}")))
}

fn record(row: &Row) -> Result<ScheduleRecord> {
    let time = |at: Option<Time>| at.map(|Time(at)| at);
    Ok(ScheduleRecord {
        tenant: TenantId(row.get(0)?),
        name: row.get(1)?,
        id: JobId::from_i64(row.get(2)?),
        version: sequence(row.get(3)?),
        spec: row.get::<_, Json<'_>>(4)?.payload(),
        input: row.get::<_, Json<'_>>(5)?.payload(),
        sealed: row.get(6)?,
        paused: row.get(7)?,
        next_at: time(row.get(8)?),
        last_at: time(row.get(9)?),
        created_at: row.get::<_, Time>(10)?.0,
        changed_at: row.get::<_, Time>(11)?.0,
    })
}
