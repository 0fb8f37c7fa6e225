//! Reading: jobs, lists, history, counts, and what `why` needs. Called by the service. Never writes, and never counts
//! rows of `job` or `outcome`.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;
use windlass_core::failures::{Failing, Signature, failing_filter};
use windlass_core::store::{Counts, Gate, NodeId, PauseTarget, Result, WaitingQueue, Whereabouts};
use windlass_core::{
    BatchId, Found, HistoryEntry, ID_EPOCH, JobFilter, JobId, JobRecord, MachineSlot, Page, Payload, Priority,
    Progress, Replayed, Scope, Status, TenantId, Timestamp,
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
    let Some(query) = Query::plan(store, scope, filter, page.before, false).await? else { return Ok(Vec::new()) };
    let limit = page.limit.clamp(1, Page::MAX) as i64;
    let ids = find(store, scope, query.ids(limit, i64::try_from(page.offset).unwrap_or(i64::MAX))).await?;
    passing(store, scope, filter, &ids).await
}

/// The same among the newest `look_at` candidates.
pub(crate) async fn search(
    store: &PgStore,
    scope: Scope,
    filter: &JobFilter,
    page: Page,
    look_at: usize,
) -> Result<Found> {
    let limit = page.limit.clamp(1, Page::MAX);
    let Some(mut query) = Query::plan(store, scope, filter, page.before, false).await? else {
        return Ok(Found { jobs: Vec::new(), next: None });
    };
    let nth = match query.nth_candidate(i64::try_from(look_at).unwrap_or(i64::MAX)) {
        Some(nth) => find(store, scope, nth).await?.first().copied(),
        None => None,
    };
    // What is older than the filter allows need not be looked at on another page.
    let floor = nth.filter(|nth| query.floor.is_none_or(|oldest| nth.as_i64() > oldest));
    query.floor = floor.map(JobId::as_i64).or(query.floor);
    let ids = find(store, scope, query.ids(limit as i64, 0)).await?;
    let jobs = passing(store, scope, filter, &ids).await?;
    // By the ids and not by the jobs, because some may have moved on meanwhile.
    let next = if ids.len() >= limit { ids.last().copied() } else { floor };
    Ok(Found { jobs, next })
}

async fn find(store: &PgStore, scope: Scope, (sql, params): (String, Params)) -> Result<Vec<JobId>> {
    let rows = store.within(scope).query(&sql, &params.list()).await?;
    Ok(rows.iter().filter_map(|row| row.get::<_, Option<i64>>(0)).map(JobId::from_i64).collect())
}

/// The records of ids that were found, in their order.
async fn passing(store: &PgStore, scope: Scope, filter: &JobFilter, ids: &[JobId]) -> Result<Vec<JobRecord>> {
    let mut records = get(store, scope, ids).await?;
    // A job may have moved on between the two statements.
    records.retain(|record| filter.matches(record));
    let place: std::collections::HashMap<&JobId, usize> = ids.iter().enumerate().map(|(n, id)| (id, n)).collect();
    records.sort_by_key(|record| place.get(&record.id).copied());
    Ok(records)
}

/// How many jobs pass the filter, up to `cap`.
pub(crate) async fn count(store: &PgStore, scope: Scope, filter: &JobFilter, cap: usize) -> Result<u64> {
    let Some(query) = Query::plan(store, scope, filter, None, false).await? else { return Ok(0) };
    let (sql, params) = query.count(i64::try_from(cap).unwrap_or(i64::MAX));
    let rows = store.within(scope).query(&sql, &params.list()).await?;
    Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).max(0) as u64))
}

/// The newest dead letters that nobody has replayed, and retrying jobs, that pass the filter.
pub(crate) async fn failing(store: &PgStore, scope: Scope, filter: &JobFilter, newest: usize) -> Result<Vec<Failing>> {
    let mut failing = Vec::new();
    for status in [Status::DeadLettered, Status::Retrying] {
        let Some(filter) = failing_filter(filter, status) else { continue };
        let Some(query) = Query::plan(store, scope, &filter, None, true).await? else { continue };
        let (sql, params) = query.failing(i64::try_from(newest).unwrap_or(i64::MAX));
        let rows = store.within(scope).query(&sql, &params.list()).await?;
        failing.extend(rows.iter().map(|row| Failing {
            job: JobId::from_i64(row.get(0)),
            handler: row.get(1),
            status,
            at: row.get::<_, Option<Time>>(2).map(|time| time.0).unwrap_or_default(),
            signature: row.get::<_, Option<&str>>(3).and_then(|text| text.parse().ok()),
            error: row.get::<_, Option<Json<'_>>>(4).map(Json::error),
        }));
    }
    Ok(failing)
}

/// The statement of a list. Where the statuses asked for live in small tables, those lead; else the jobs do, newest
/// first: by the primary keys of their weeks, or of one tenant by `job_tenant`.
struct Query {
    leads: Option<Vec<Lead>>,
    tenant: Option<Uuid>,
    /// Only ids from here on.
    floor: Option<i64>,
    /// Only ids below this.
    before: Option<i64>,
    joins: String,
    conditions: Vec<String>,
    params: Params,
}

/// The values of a statement, in the order of their numbers.
#[derive(Default)]
struct Params(Vec<(Box<dyn ToSql + Sync + Send>, Type)>);

impl Params {
    /// Takes a value, and answers with what stands for it in the statement.
    fn bind(&mut self, value: impl ToSql + Sync + Send + 'static, of: Type) -> String {
        self.0.push((Box::new(value), of));
        format!("${}", self.0.len())
    }

    fn list(&self) -> Vec<Param<'_>> {
        self.0.iter().map(|(value, of)| (value.as_ref() as &(dyn ToSql + Sync), of.clone())).collect()
    }
}

/// An id that was made at a time, if ids reach so far.
fn id_at(at: Timestamp) -> Option<i64> {
    let latest = ID_EPOCH + Duration::from_millis(1 << 40);
    (ID_EPOCH..latest).contains(&at).then(|| JobId::from_parts(at, MachineSlot(0), 0).as_i64())
}

/// How far the time in a job's id may be from the time of its submit. Ids are made for a submit that follows; a day is
/// longer than any transaction it may be part of.
const ID_SLACK: Duration = Duration::from_secs(24 * 3_600);

/// A computed status, the same as `record` computes: what has no other place is ready.
const STATUS: &str = "coalesce(o.status, s.kind, case when g.id is not null then 3::smallint end, \
    case when r.id is not null then 5::smallint end, 0::smallint)";

/// The last error, the same as `record` finds, but for the successful, which have none.
const ERROR: &str = "coalesce(o.error, f.error)";

/// The part of a last error called `name`. As the index `outcome_signature` has it, migration 12.
fn part_of(error: &str, name: &str) -> String {
    format!("(case when strpos({error}::text, '\\u0000') = 0 then {error} ->> '{name}' end)")
}

impl Query {
    /// Decides where to look first. `None` if the filter is of another tenant than the scope, so that nothing passes.
    async fn plan(
        store: &PgStore,
        scope: Scope,
        filter: &JobFilter,
        before: Option<JobId>,
        wants_past: bool,
    ) -> Result<Option<Query>> {
        if filter.tenant.is_some_and(|tenant| !scope.covers(tenant)) {
            return Ok(None);
        }
        let by_place = match filter.statuses.contains(&Status::Pending) {
            // A deep backlog leads nowhere: taking its chunks apart takes longer than meeting its jobs on the way.
            true => !is_deep(store, scope).await?,
            false => true,
        };
        Ok(Some(Query::new(scope, filter, before, by_place, wants_past)))
    }

    fn new(scope: Scope, filter: &JobFilter, before: Option<JobId>, by_place: bool, wants_past: bool) -> Query {
        let mut params = Params::default();
        let leads = filter.statuses.iter().map(|status| lead(*status, filter.signature)).collect::<Option<Vec<_>>>();
        let leads = leads.filter(|leads| by_place && !leads.is_empty());
        let tenant = scope.tenant().or(filter.tenant).map(|tenant| tenant.0);
        let mut conditions = vec!["(o.purge_at is null or o.purge_at > clock_timestamp())".to_owned()];
        let texts = [
            ("j.handler =", &filter.handler),
            ("j.queue =", &filter.queue),
            ("j.correlation_id =", &filter.correlation_id),
            ("coalesce(o.reason, g.gate) =", &filter.reason),
        ];
        for (condition, text) in texts {
            if let Some(text) = text {
                conditions.push(format!("{condition} {}", params.bind(text.clone(), Type::TEXT)));
            }
        }
        if let Some(tag) = &filter.tag {
            conditions.push(format!("{} = any (j.tags)", params.bind(tag.clone(), Type::TEXT)));
        }
        if let Some(after) = filter.created_after {
            conditions.push(format!("j.created_at >= {}", params.bind(Time(after), Type::TIMESTAMPTZ)));
        }
        if let Some(before) = filter.created_before {
            conditions.push(format!("j.created_at < {}", params.bind(Time(before), Type::TIMESTAMPTZ)));
        }
        if let Some(batch) = filter.batch {
            conditions.push(format!("j.batch_id = {}", params.bind(batch.0.as_i64(), Type::INT8)));
        }
        if let Some(band) = filter.priority {
            let (lowest, highest) = band.priorities();
            let (lowest, highest) = (params.bind(lowest.0, Type::INT2), params.bind(highest.0, Type::INT2));
            conditions.push(format!("j.priority between {lowest} and {highest}"));
        }
        if let Some(key) = &filter.key {
            let key = params.bind(key.clone(), Type::TEXT);
            conditions.push(format!("(j.ordering_key = {key} or j.spec ->> 'idempotency_key' = {key})"));
        }
        // A single place of its own says all there is to say about the status.
        let is_told = matches!(leads.as_deref(), Some([lead]) if lead.is_ordered);
        let asks_status = !filter.statuses.is_empty() && !is_told;
        if asks_status {
            let codes: Vec<i16> = filter.statuses.iter().map(|status| status.code()).collect();
            conditions.push(format!("{STATUS} = any ({})", params.bind(codes, Type::INT2_ARRAY)));
        }
        match filter.replayed {
            Some(true) => conditions.push("o.replayed_at is not null".to_owned()),
            Some(false) => conditions.push("o.replayed_at is null".to_owned()),
            None => {}
        }
        if let Some(node) = filter.node {
            let node = params.bind(node.0, Type::INT8);
            conditions.push(format!("coalesce(o.node_id, r.node_id, a.node_id) = {node}"));
        }
        if let Some(signature) = filter.signature {
            let signature = params.bind(signature.to_string(), Type::TEXT);
            conditions.push(format!("o.status is distinct from 6 and {} = {signature}", part_of(ERROR, "signature")));
        }
        if let Some(text) = &filter.error {
            // Under the collation C only a to z have cases, as in the other stores.
            let text = params.bind(text.to_ascii_lowercase(), Type::TEXT);
            let has = |name| format!("position({text} in lower({} collate \"C\")) > 0", part_of(ERROR, name));
            conditions.push(format!("o.status is distinct from 6 and ({} or {})", has("code"), has("message")));
        }
        for term in &filter.inputs {
            let path = params.bind(term.path.clone(), Type::TEXT_ARRAY);
            let value = params.bind(term.value.clone(), Type::TEXT);
            // In this order: what has an escaped NUL in it cannot be taken apart.
            conditions.push(format!(
                "case when strpos(j.payload::text, '\\u0000') > 0 then false
                      when json_typeof(j.payload #> {path}) in ('string', 'number', 'boolean')
                      then j.payload #>> {path} = {value} else false end"
            ));
        }
        let asks_past = filter.error.is_some() || filter.signature.is_some() || filter.node.is_some();
        let joins = joins(filter, asks_status, asks_past || wants_past);
        let floor = filter.created_after.and_then(|after| id_at(after - ID_SLACK));
        let newest = filter.created_before.and_then(|before| id_at(before + ID_SLACK));
        let before = before.map(JobId::as_i64).into_iter().chain(newest).min();
        Query { leads, tenant, floor, before, joins, conditions, params }
    }

    /// The ids of a page.
    fn ids(mut self, limit: i64, offset: i64) -> (String, Params) {
        let (limit, offset) = (self.params.bind(limit, Type::INT8), self.params.bind(offset, Type::INT8));
        let order = self.order();
        let sql = format!(
            "-- Jobs that pass a filter, newest first.
             select j.id {} order by {order} limit {limit} offset {offset}",
            self.body(),
        );
        (sql, self.params)
    }

    /// How many there are, up to a cap.
    fn count(mut self, cap: i64) -> (String, Params) {
        let cap = self.params.bind(cap, Type::INT8);
        let sql = format!(
            "-- How many jobs pass a filter, at most so many.
             select count(*) from (select 1 {} limit {cap}) x",
            self.body()
        );
        (sql, self.params)
    }

    /// Failing jobs with what groups them; the whole error only where it is not signed.
    fn failing(mut self, newest: i64) -> (String, Params) {
        let newest = self.params.bind(newest, Type::INT8);
        let (order, signature) = (self.order(), part_of("y.error", "signature"));
        let sql = format!(
            "-- The newest failing jobs that pass a filter, with the signature of their last error.
             select y.id, y.handler, y.at, {signature}, case when {signature} is null then y.error end
             from (select j.id, j.handler, coalesce(o.finished_at, a.started_at, j.created_at) as at,
                          {ERROR} as error {} order by {order} limit {newest}) y",
            self.body(),
        );
        (sql, self.params)
    }

    /// The last of the newest `look_at` candidates: where the search for a page ends. Of several places each has its own,
    /// and the search ends where the first of them does. `None` where all there is can be looked at.
    fn nth_candidate(&self, look_at: i64) -> Option<(String, Params)> {
        let mut params = Params::default();
        let nth = params.bind(look_at.saturating_sub(1).max(0), Type::INT8);
        let below = params.bind(self.before.unwrap_or(i64::MAX), Type::INT8);
        let last = |ids: &str, id: &str| format!("({ids} and {id} < {below} order by {id} desc offset {nth} limit 1)");
        let places: Vec<String> = match (&self.leads, self.tenant) {
            (Some(leads), _) => {
                let ordered = leads.iter().filter(|lead| lead.is_ordered);
                let of =
                    |lead: &Lead| last(&format!("select l.id from ({}) l where true", lead.sql(&mut params)), "l.id");
                ordered.map(of).collect()
            }
            (None, Some(tenant)) => {
                let tenant = params.bind(tenant, Type::UUID);
                vec![last(&format!("select j.id from windlass.job j where j.tenant_id = {tenant}"), "(j.id + 0)")]
            }
            (None, None) => vec![last("select j.id from windlass.job j where true", "j.id")],
        };
        let sql = format!("-- Where a search for jobs ends.\nselect greatest({})", places.join(", "));
        (!places.is_empty()).then_some((sql, params))
    }

    fn order(&self) -> &'static str {
        match (&self.leads, self.tenant) {
            (Some(_), _) => "x.id desc",
            // The expression of job_tenant: one tenant's jobs by id.
            (None, Some(_)) => "(j.id + 0) desc",
            (None, None) => "j.id desc",
        }
    }

    fn body(&mut self) -> String {
        let id = match (&self.leads, self.tenant) {
            (Some(_), _) => "l.id",
            (None, Some(_)) => "(j.id + 0)",
            (None, None) => "j.id",
        };
        let mut span = Vec::new();
        span.extend(self.before.map(|before| format!("{id} < {}", self.params.bind(before, Type::INT8))));
        span.extend(self.floor.map(|floor| format!("{id} >= {}", self.params.bind(floor, Type::INT8))));
        if let Some(tenant) = self.tenant {
            self.conditions.push(format!("j.tenant_id = {}", self.params.bind(tenant, Type::UUID)));
        }
        let from = match &self.leads {
            Some(leads) => from_places(leads, &span, &mut self.params),
            None => {
                self.conditions.append(&mut span);
                "windlass.job j".to_owned()
            }
        };
        format!("from {from} {} where {}", self.joins, self.conditions.join(" and "))
    }
}

/// What tells where a job is and what happened to it, as far as the filter asks. Each by its index.
fn joins(filter: &JobFilter, asks_status: bool, asks_past: bool) -> String {
    let mut joins = "left join lateral (select status, purge_at, reason, replayed_at, node_id, error, finished_at
                                        from windlass.outcome where outcome.id = j.id offset 0) o on true"
        .to_owned();
    let mut when = |asked: bool, join: &str| {
        if asked {
            joins.push_str(join);
        }
    };
    when(
        asks_status,
        " left join lateral (select kind from windlass.scheduled where scheduled.id = j.id offset 0) s on true",
    );
    when(
        asks_status || filter.reason.is_some(),
        " left join lateral (select id, gate from windlass.gated where gated.id = j.id offset 0) g on true",
    );
    when(
        asks_status || filter.node.is_some(),
        " left join (select u.id, min(u.node_id) as node_id from windlass.running() u group by u.id) r on r.id = j.id",
    );
    when(asks_past, PAST);
    joins
}

/// The last attempt that ended and the last error, the same as `records.sql` finds.
const PAST: &str = " left join lateral (select started_at, node_id from windlass.event
                                       where event.id = j.id and started_at is not null
                                       order by event.id, seq desc limit 1) a on true
                    left join lateral (select error from windlass.event where event.id = j.id
                                       and (error is not null or (attempt = 0 and note is not null))
                                       order by event.id, seq desc limit 1) f on true";

/// Where the ids of a status are, if that is a small table or index.
fn lead(status: Status, signature: Option<Signature>) -> Option<Lead> {
    let (ids, is_ordered) = match status {
        Status::Pending => ("select u.id from windlass.ready q, unnest(q.ids) u(id)", false),
        Status::Scheduled => ("select id from windlass.scheduled where kind = 1", true),
        Status::Retrying => ("select id from windlass.scheduled where kind = 2", true),
        Status::Blocked => ("select id from windlass.gated", true),
        Status::Running => ("select u.id from windlass.running() u", false),
        Status::DeadLettered => ("select id from windlass.outcome where status = 8", true),
        Status::Suspended => ("select null::bigint as id where false", false),
        _ => return None,
    };
    Some(Lead { ids, is_ordered, signature: signature.filter(|_| status == Status::DeadLettered) })
}

/// A place where the ids of jobs in one status are.
struct Lead {
    ids: &'static str,
    /// Whether an index gives them by id, each once: then a page reads only as far as it is full.
    is_ordered: bool,
    /// Only dead letters with this one, by `outcome_signature`.
    signature: Option<Signature>,
}

impl Lead {
    fn sql(&self, params: &mut Params) -> String {
        match self.signature {
            Some(signature) => {
                let (own, signature) = (part_of("error", "signature"), params.bind(signature.to_string(), Type::TEXT));
                format!("{} and {own} = {signature}", self.ids)
            }
            None => self.ids.to_owned(),
        }
    }
}

/// Jobs found by the places where they are, within a span of ids.
fn from_places(leads: &[Lead], span: &[String], params: &mut Params) -> String {
    let within = if span.is_empty() { String::new() } else { format!("where {}", span.join(" and ")) };
    let parts: Vec<String> =
        leads.iter().map(|lead| format!("select l.id from ({}) l {within}", lead.sql(params))).collect();
    let ids = match leads {
        [lead] if lead.is_ordered => parts.join(""),
        _ => format!("select distinct id from ({}) l", parts.join(" union all ")),
    };
    format!("({ids}) x cross join lateral (select * from windlass.job where job.id = x.id offset 0) j")
}

/// Whether so many jobs are ready that their chunks are no short way to them.
async fn is_deep(store: &PgStore, scope: Scope) -> Result<bool> {
    let params: [Param<'_>; 1] = [(&SHALLOW_CHUNKS, Type::INT8)];
    let rows = store.within(scope).query(include_str!("sql/ready_chunks.sql"), &params).await?;
    Ok(rows.first().is_some_and(|row| row.get::<_, i64>(0) >= SHALLOW_CHUNKS))
}

/// Chunks that are taken apart to find ready jobs: up to some ten thousand jobs, which takes milliseconds.
const SHALLOW_CHUNKS: i64 = 256;

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
