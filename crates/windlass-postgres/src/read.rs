//! Reading: jobs, lists, history, counts, and what `why` needs. Called by the service. Never writes, and never counts
//! rows of `job` or `outcome`.

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::store::{Counts, Gate, NodeId, PauseTarget, Result, WaitingQueue, Whereabouts};
use windlass_core::{
    BatchId, HistoryEntry, JobFilter, JobId, JobRecord, Page, Payload, Priority, Progress, Replayed, Scope, Status,
    TenantId,
};

use crate::PgStore;
use crate::connect::{Access, Param};
use crate::steer::tenant;
use crate::types::{Json, Time, counter};

pub(crate) async fn get(store: &PgStore, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = ids.iter().map(|id| id.as_i64()).collect();
    let params: [Param<'_>; 2] = [(&ids, Type::INT8_ARRAY), (&tenant(scope), Type::UUID)];
    let rows = store.within(scope).query(include_str!("sql/records.sql"), &params).await?;
    Ok(rows.iter().map(record).collect())
}

/// A job from a row of `records.sql`. Its place decides its status.
fn record(row: &Row) -> JobRecord {
    let ended = row.get::<_, Option<i16>>("status").and_then(Status::from_code);
    let retrying: Option<i16> = row.get("s_kind");
    let gate: Option<String> = row.get("g_gate");
    let claimed_at = row.get::<_, Option<Time>>("r_claimed_at").map(|time| time.0);
    let status = match (ended, retrying, &gate, claimed_at) {
        (Some(status), ..) => status,
        (_, Some(kind), ..) if kind == Status::Retrying.code() => Status::Retrying,
        (_, Some(_), ..) => Status::Scheduled,
        (_, _, Some(_), _) => Status::Blocked,
        (.., Some(_)) => Status::Running,
        _ => Status::Pending,
    };
    let counted = |prefix: &str| {
        let read = |column: &str| row.get::<_, Option<i32>>(format!("{prefix}{column}").as_str());
        Some((counter(read("failed")?), counter(read("recoveries")?)))
    };
    // The place of a ready job is not looked for: its last event says the same.
    let place = ["", "s_", "g_", "r_", "e_"].into_iter().find_map(counted);
    let (failed, recoveries) = place.unwrap_or((0, 0));
    let attempt = match status {
        Status::Running => failed.saturating_add(recoveries).saturating_add(1),
        _ if ended.is_some() => counter(row.get::<_, Option<i32>>("attempt").unwrap_or(0)),
        _ => failed.saturating_add(recoveries),
    };
    let time = |column: &str| row.get::<_, Option<Time>>(column).map(|time| time.0);
    let json = |column: &str| row.get::<_, Option<Json<'_>>>(column);
    let node = |column: &str| row.get::<_, Option<i64>>(column).map(NodeId);
    let error = match status {
        Status::Succeeded => None,
        _ => json("error").or_else(|| json("f_error")).map(Json::error),
    };
    let progress = row.get::<_, Option<i64>>("p_sequence").map(|sequence| Progress {
        sequence: sequence as u64,
        percent: row.get("p_percent"),
        message: row.get("p_message"),
    });
    let replayed = time("replayed_at").map(|at| Replayed {
        by: row.get::<_, Option<String>>("replayed_by").unwrap_or_default(),
        at,
        as_job: JobId::from_i64(row.get::<_, Option<i64>>("replayed_as").unwrap_or_default()),
    });
    JobRecord {
        id: JobId::from_i64(row.get("id")),
        tenant: TenantId(row.get("tenant_id")),
        handler: row.get("handler"),
        queue: row.get("queue"),
        status,
        priority: Priority(row.get("priority")),
        attempt,
        failed,
        recoveries,
        created_at: row.get::<_, Time>("created_at").0,
        run_at: time("s_run_at").or_else(|| time("run_at")),
        started_at: time("started_at").or(claimed_at).or_else(|| time("a_started_at")),
        finished_at: time("finished_at"),
        node: node("node_id").or_else(|| node("r_node_id")).or_else(|| node("a_node_id")),
        cancel_requested: row.get::<_, Option<bool>>("r_canceled").unwrap_or(false),
        output: json("output").map(Json::payload),
        error,
        reason: row.get::<_, Option<String>>("reason").or(gate),
        progress,
        batch: row.get::<_, Option<i64>>("batch_id").map(|id| BatchId(JobId::from_i64(id))),
        tags: row.get::<_, Option<Vec<String>>>("tags").unwrap_or_default(),
        correlation_id: row.get("correlation_id"),
        ordering_key: row.get("ordering_key"),
        spec: json("spec").map(Json::spec).unwrap_or_default(),
        replayed,
    }
}

pub(crate) async fn input(store: &PgStore, scope: Scope, id: JobId) -> Result<Option<Payload>> {
    let params: [Param<'_>; 2] = [(&id.as_i64(), Type::INT8), (&tenant(scope), Type::UUID)];
    let rows = store.within(scope).query(include_str!("sql/input.sql"), &params).await?;
    Ok(rows.first().map(|row| row.get::<_, Json<'_>>(0).payload()))
}

/// Jobs that pass the filter, newest first: first their ids, then their records.
pub(crate) async fn list(store: &PgStore, scope: Scope, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>> {
    let query = ListQuery::new(scope, filter, page);
    let rows = store.within(scope).query(&query.sql, &query.params()).await?;
    let ids: Vec<JobId> = rows.iter().map(|row| JobId::from_i64(row.get(0))).collect();
    let mut records = get(store, scope, &ids).await?;
    // A job may have moved on between the two statements.
    records.retain(|record| filter.matches(record));
    let place: std::collections::HashMap<JobId, usize> = ids.into_iter().enumerate().map(|(n, id)| (id, n)).collect();
    records.sort_by_key(|record| place.get(&record.id).copied());
    Ok(records)
}

/// The statement of a list. Where the statuses asked for live in small tables, those lead; else the jobs do, newest
/// first: by the primary keys of their weeks, or of one tenant by `job_tenant`.
struct ListQuery {
    sql: String,
    tenant: Option<Uuid>,
    handler: Option<String>,
    created_after: Option<Time>,
    created_before: Option<Time>,
    batch: Option<i64>,
    tag: Option<String>,
    correlation_id: Option<String>,
    reason: Option<String>,
    statuses: Vec<i16>,
    before: Option<i64>,
    limit: i64,
    offset: i64,
}

/// A computed status, the same as `record` computes: what has no other place is ready.
const STATUS: &str = "coalesce(o.status, s.kind, case when g.id is not null then 3::smallint end, \
    case when r.id is not null then 5::smallint end, 0::smallint)";

impl ListQuery {
    fn new(scope: Scope, filter: &JobFilter, page: Page) -> Self {
        let leads = filter.statuses.iter().map(|status| lead(*status)).collect::<Option<Vec<_>>>();
        let leads = leads.filter(|leads| !leads.is_empty());
        let from = match &leads {
            Some(leads) => format!(
                "(select distinct id from ({}) l) x cross join lateral \
                 (select * from windlass.job where job.id = x.id offset 0) j",
                leads.join(" union all ")
            ),
            None => "windlass.job j".to_owned(),
        };
        let (order, before) = match leads.is_none() && scope.tenant().is_some() {
            // The expression of job_tenant: one tenant's jobs by id.
            true => ("(j.id + 0) desc", "(j.id + 0) < $10"),
            false => ("j.id desc", "j.id < $10"),
        };
        let mut conditions = vec!["(o.purge_at is null or o.purge_at > clock_timestamp())".to_owned()];
        let mut when = |given: bool, condition: &str| {
            if given {
                conditions.push(condition.to_owned());
            }
        };
        when(scope.tenant().is_some(), "j.tenant_id = $1");
        when(filter.handler.is_some(), "j.handler = $2");
        when(filter.created_after.is_some(), "j.created_at >= $3");
        when(filter.created_before.is_some(), "j.created_at < $4");
        when(filter.batch.is_some(), "j.batch_id = $5");
        when(filter.tag.is_some(), "$6 = any (j.tags)");
        when(filter.correlation_id.is_some(), "j.correlation_id = $7");
        when(filter.reason.is_some(), "coalesce(o.reason, g.gate) = $8");
        when(!filter.statuses.is_empty(), &format!("{STATUS} = any ($9)"));
        when(page.before.is_some(), before);
        when(filter.replayed == Some(true), "o.replayed_at is not null");
        when(filter.replayed == Some(false), "o.replayed_at is null");
        let sql = format!(
            "-- Jobs that pass a filter, newest first.
             with p as (select $1::uuid, $2::text, $3::timestamptz, $4::timestamptz, $5::bigint, $6::text, $7::text, $8::text,
                               $9::smallint[], $10::bigint)
             select j.id from {from}
             left join lateral (select status, purge_at, reason, replayed_at from windlass.outcome
                                where outcome.id = j.id offset 0) o on true
             left join lateral (select kind from windlass.scheduled where scheduled.id = j.id offset 0) s on true
             left join lateral (select id, gate from windlass.gated where gated.id = j.id offset 0) g on true
             {running}
             where {conditions} order by {order} limit $11 offset $12",
            running = match filter.statuses.is_empty() {
                // Only a list by status needs to know who runs.
                true => "",
                false => "left join (select distinct u.id from windlass.running() u) r on r.id = j.id",
            },
            conditions = conditions.join(" and "),
        );
        ListQuery {
            sql,
            tenant: tenant(scope),
            handler: filter.handler.clone(),
            created_after: filter.created_after.map(Time),
            created_before: filter.created_before.map(Time),
            batch: filter.batch.map(|batch| batch.0.as_i64()),
            tag: filter.tag.clone(),
            correlation_id: filter.correlation_id.clone(),
            reason: filter.reason.clone(),
            statuses: filter.statuses.iter().map(|status| status.code()).collect(),
            before: page.before.map(JobId::as_i64),
            limit: page.limit.clamp(1, Page::MAX) as i64,
            offset: i64::try_from(page.offset).unwrap_or(i64::MAX),
        }
    }

    fn params(&self) -> [Param<'_>; 12] {
        [
            (&self.tenant, Type::UUID),
            (&self.handler, Type::TEXT),
            (&self.created_after, Type::TIMESTAMPTZ),
            (&self.created_before, Type::TIMESTAMPTZ),
            (&self.batch, Type::INT8),
            (&self.tag, Type::TEXT),
            (&self.correlation_id, Type::TEXT),
            (&self.reason, Type::TEXT),
            (&self.statuses, Type::INT2_ARRAY),
            (&self.before, Type::INT8),
            (&self.limit, Type::INT8),
            (&self.offset, Type::INT8),
        ]
    }
}

/// Where the ids of a status are, if that is a small table or index.
fn lead(status: Status) -> Option<&'static str> {
    match status {
        Status::Pending => Some("select u.id from windlass.ready q, unnest(q.ids) u(id)"),
        Status::Scheduled => Some("select id from windlass.scheduled where kind = 1"),
        Status::Retrying => Some("select id from windlass.scheduled where kind = 2"),
        Status::Blocked => Some("select id from windlass.gated"),
        Status::Running => Some("select u.id from windlass.running() u"),
        Status::DeadLettered => Some("select id from windlass.outcome where status = 8"),
        Status::Suspended => Some("select null::bigint as id where false"),
        _ => None,
    }
}

pub(crate) async fn history(store: &PgStore, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>> {
    let Some(record) = get(store, scope, &[id]).await?.into_iter().next() else { return Ok(Vec::new()) };
    let params: [Param<'_>; 1] = [(&id.as_i64(), Type::INT8)];
    let events = store.within(scope).query(include_str!("sql/history.sql"), &params).await?;
    let mut events: Vec<HistoryEntry> = events.iter().map(entry).collect();
    let mut history = Vec::with_capacity(events.len() + 2);
    // A job that was born behind a gate, or whose start was edited, has an event of its own for its birth.
    let is_birth = |event: &HistoryEntry| event.at == record.created_at && event.attempt == 0 && event.note.is_none();
    match events.iter().position(is_birth) {
        Some(birth) => history.push(events.remove(birth)),
        None => {
            let first = match born_scheduled(store, scope, id).await? {
                true => Status::Scheduled,
                false => Status::Pending,
            };
            history.push(HistoryEntry::new(record.created_at, first, 0));
        }
    }
    history.extend(events);
    if record.status == Status::Running {
        let mut running =
            HistoryEntry::new(record.started_at.unwrap_or(record.created_at), record.status, record.attempt);
        running.node = record.node;
        history.push(running);
        // A cancel may have been requested since it was claimed.
        history.sort_by_key(|entry| entry.at);
    }
    if record.status.is_terminal() {
        let ends = store.within(scope).query(include_str!("sql/end_of.sql"), &params).await?;
        history.extend(ends.iter().map(entry));
    }
    Ok(history)
}

/// Whether a job had a start time ahead when it was submitted.
async fn born_scheduled(store: &PgStore, scope: Scope, id: JobId) -> Result<bool> {
    let params: [Param<'_>; 1] = [(&id.as_i64(), Type::INT8)];
    let rows = store.within(scope).query(include_str!("sql/born_scheduled.sql"), &params).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// A line of history from a row of `history.sql` or `end_of.sql`.
fn entry(row: &Row) -> HistoryEntry {
    let status = Status::from_code(row.get("status")).unwrap_or(Status::Pending);
    let at = row.get::<_, Option<Time>>(0).map(|time| time.0).unwrap_or_default();
    let mut entry = HistoryEntry::new(at, status, counter(row.get("attempt")));
    entry.node = row.get::<_, Option<i64>>("node_id").map(NodeId);
    entry.started_at = row.get::<_, Option<Time>>("started_at").map(|time| time.0);
    entry.error = row.get::<_, Option<Json<'_>>>("error").map(Json::error);
    entry.note = row.get("note");
    entry
}

pub(crate) async fn counts(store: &PgStore, scope: Scope) -> Result<Counts> {
    let params: [Param<'_>; 1] = [(&tenant(scope), Type::UUID)];
    let mut counts = Counts::default();
    for sql in [include_str!("sql/counts_live.sql"), include_str!("sql/counts_ended.sql")] {
        for row in store.within(scope).query(sql, &params).await? {
            if let Some(status) = Status::from_code(row.get(0)) {
                counts.add(status, row.get::<_, i64>(1).max(0) as u64);
            }
        }
    }
    Ok(counts)
}

pub(crate) async fn whereabouts(store: &PgStore, scope: Scope, id: JobId) -> Result<Option<Whereabouts>> {
    let Some(record) = get(store, scope, &[id]).await?.into_iter().next() else { return Ok(None) };
    let mut ahead = None;
    if record.status == Status::Pending {
        let params: [Param<'_>; 2] = [(&id.as_i64(), Type::INT8), (&record.tenant.0, Type::UUID)];
        // The engine's: how many wait before a job is a fact of the line, which all tenants share.
        let rows = store.shared.pools.api.query(Access::Read, include_str!("sql/ahead.sql"), &params).await?;
        ahead = rows.first().map(|row| row.get::<_, i64>(1).max(0) as u64);
    }
    let mut key_holder = None;
    if let Some(Gate::OrderingKey(key)) = record.reason.as_deref().and_then(Gate::parse) {
        let params: [Param<'_>; 2] = [(&record.tenant.0, Type::UUID), (&key, Type::TEXT)];
        let rows = store.within(scope).query(include_str!("sql/key_holder.sql"), &params).await?;
        key_holder = rows.first().map(|row| JobId::from_i64(row.get(0)));
    }
    let mut pauses = crate::steer::pauses_within(store, scope).await?;
    // Only those that stop this job: a tenant must not learn of another one's pause.
    pauses.retain(|pause| match &pause.target {
        PauseTarget::All => true,
        PauseTarget::Handler(handler) => *handler == record.handler,
        PauseTarget::Tenant(tenant) => *tenant == record.tenant,
    });
    let nodes = crate::maintain::nodes(store).await?;
    let now = store.store_time().await?;
    let cap = if ahead.is_some() { crate::quota::cap(store, record.tenant).await? } else { None };
    Ok(Some(Whereabouts { now, record, ahead, key_holder, pauses, nodes, cap }))
}

pub(crate) async fn waiting_queues(store: &PgStore) -> Result<Vec<WaitingQueue>> {
    let rows = store.shared.pools.api.query(Access::Read, include_str!("sql/waiting_queues.sql"), &[]).await?;
    Ok(rows.iter().map(|row| WaitingQueue { queue: row.get(0), oldest: JobId::from_i64(row.get(1)) }).collect())
}
