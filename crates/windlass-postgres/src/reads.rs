//! Reading: jobs, lists, history, counts, and what `why` needs. Called by the service. Never writes, and never counts
//! rows of `job` or `outcome`.

use std::cmp::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;
use windlass_core::failures::{Failing, Signature, failing_filter};
use windlass_core::filter::{Test, Text, Took};
use windlass_core::store::{Counts, Gate, NodeId, PauseTarget, Reads, Result, WaitingQueue, Whereabouts};
use windlass_core::{
    BatchId, Cost, Found, HistoryEntry, ID_EPOCH, JobError, JobFilter, JobId, JobRecord, LogLine, MachineSlot, Page,
    Payload, Priority, Progress, Replayed, Scope, Status, TenantId, Timestamp,
};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Lenient, Row, readable};
use crate::ground::types::{Json, Time, counter, tenant};

#[async_trait]
impl Reads for PgStore {
    async fn get(&self, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>> {
        get(self, scope, ids).await
    }

    async fn input(&self, scope: Scope, id: JobId) -> Result<Option<Payload>> {
        input(self, scope, id).await
    }

    async fn find(&self, scope: Scope, filter: &JobFilter, page: Page, look_at: Option<usize>) -> Result<Found> {
        find(self, scope, filter, page, look_at).await
    }

    async fn count(&self, scope: Scope, filter: &JobFilter, cap: usize) -> Result<u64> {
        count(self, scope, filter, cap).await
    }

    async fn failing(&self, scope: Scope, filter: &JobFilter, newest: usize) -> Result<Vec<Failing>> {
        failing(self, scope, filter, newest).await
    }

    async fn history(&self, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>> {
        history(self, scope, id).await
    }

    async fn logs(&self, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>> {
        crate::jobs::note::lines(self, scope, id, after).await
    }

    async fn counts(&self, scope: Scope) -> Result<Counts> {
        counts(self, scope).await
    }

    async fn whereabouts(&self, scope: Scope, id: JobId) -> Result<Option<Whereabouts>> {
        whereabouts(self, scope, id).await
    }
}

pub(crate) async fn get(store: &PgStore, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = ids.iter().map(|id| id.as_i64()).collect();
    let params: [Param<'_>; 2] = [(&ids, Type::INT8_ARRAY), (&tenant(scope), Type::UUID)];
    let rows = store.within(scope).query(include_str!("sql/reads/records.sql"), &params).await?;
    Ok(rows.iter().map(record).collect())
}

/// A job from a row of `records.sql`. Its place decides its status. What cannot be read of it is empty, and its error says
/// so: a job that someone else has spoilt can still be found, canceled and purged.
fn record(row: &Row) -> JobRecord {
    let row = Lenient::new(row);
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
        updated_at: time("p_updated_at").unwrap_or_default(),
    });
    let replayed = time("replayed_at").map(|at| Replayed {
        by: row.get::<_, Option<String>>("replayed_by").unwrap_or_default(),
        at,
        as_job: JobId::from_i64(row.get::<_, Option<i64>>("replayed_as").unwrap_or_default()),
    });
    let mut record = JobRecord {
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
        cost: row.get::<_, Option<i64>>("c_cents").map(|cents| Cost { cents, units: row.get("c_units") }),
        batch: row.get::<_, Option<i64>>("batch_id").map(|id| BatchId(JobId::from_i64(id))),
        tags: row.get::<_, Option<Vec<String>>>("tags").unwrap_or_default(),
        correlation_id: row.get("correlation_id"),
        ordering_key: row.get("ordering_key"),
        spec: json("spec").map(Json::spec).unwrap_or_default(),
        replayed,
    };
    if let Some(unreadable) = row.failure() {
        record.error = Some(JobError::terminal(unreadable.code(), unreadable));
    }
    record
}

pub(crate) async fn input(store: &PgStore, scope: Scope, id: JobId) -> Result<Option<Payload>> {
    let params: [Param<'_>; 2] = [(&id.as_i64(), Type::INT8), (&tenant(scope), Type::UUID)];
    let rows = store.within(scope).query(include_str!("sql/reads/input.sql"), &params).await?;
    rows.first().map(|row| Ok(row.get::<_, Json<'_>>(0)?.payload())).transpose()
}

/// Jobs that pass the filter, newest first: first their ids, then their records.
pub(crate) async fn find(
    store: &PgStore,
    scope: Scope,
    filter: &JobFilter,
    page: Page,
    look_at: Option<usize>,
) -> Result<Found> {
    let limit = page.limit.clamp(1, Page::MAX);
    let Some(mut query) = Query::plan(store, scope, filter, page.before, false).await? else {
        return Ok(Found { jobs: Vec::new(), next: None });
    };
    let nth = match look_at.and_then(|look_at| query.nth_candidate(i64::try_from(look_at).unwrap_or(i64::MAX))) {
        Some(nth) => ids_of(store, scope, nth).await?.first().copied(),
        None => None,
    };
    // What is older than the filter allows need not be looked at on another page.
    let floor = nth.filter(|nth| query.floor.is_none_or(|oldest| nth.as_i64() > oldest));
    query.floor = floor.map(JobId::as_i64).or(query.floor);
    let offset = if look_at.is_some() { 0 } else { i64::try_from(page.offset).unwrap_or(i64::MAX) };
    let ids = ids_of(store, scope, query.ids(limit as i64, offset)).await?;
    let jobs = passing(store, scope, filter, &ids).await?;
    // By the ids and not by the jobs, because some may have moved on meanwhile.
    let next = if ids.len() >= limit { ids.last().copied() } else { floor };
    Ok(Found { jobs, next })
}

async fn ids_of(store: &PgStore, scope: Scope, (sql, params): (String, Params)) -> Result<Vec<JobId>> {
    let rows = store.within(scope).query(&sql, &params.list()).await?;
    Ok(readable(&rows, |row| row.get::<_, Option<i64>>(0)).into_iter().flatten().map(JobId::from_i64).collect())
}

/// The records of ids that were found, in their order.
async fn passing(store: &PgStore, scope: Scope, filter: &JobFilter, ids: &[JobId]) -> Result<Vec<JobRecord>> {
    let mut records = get(store, scope, ids).await?;
    // A job may have moved on between the two statements.
    let conditions = filter.conditions();
    records.retain(|record| conditions.iter().all(|condition| condition.matches(record)));
    let place: std::collections::HashMap<&JobId, usize> = ids.iter().enumerate().map(|(n, id)| (id, n)).collect();
    records.sort_by_key(|record| place.get(&record.id).copied());
    Ok(records)
}

/// How many jobs pass the filter, up to `cap`.
pub(crate) async fn count(store: &PgStore, scope: Scope, filter: &JobFilter, cap: usize) -> Result<u64> {
    let Some(query) = Query::plan(store, scope, filter, None, false).await? else { return Ok(0) };
    let (sql, params) = query.count(i64::try_from(cap).unwrap_or(i64::MAX));
    let rows = store.within(scope).query(&sql, &params.list()).await?;
    rows.first().map_or(Ok(0), |row| Ok(row.get::<_, i64>(0)?.max(0) as u64))
}

/// The newest dead letters that nobody has replayed, and retrying jobs, that pass the filter.
pub(crate) async fn failing(store: &PgStore, scope: Scope, filter: &JobFilter, newest: usize) -> Result<Vec<Failing>> {
    let mut failing = Vec::new();
    for status in [Status::DeadLettered, Status::Retrying] {
        let Some(filter) = failing_filter(filter, status) else { continue };
        let Some(query) = Query::plan(store, scope, &filter, None, true).await? else { continue };
        let (sql, params) = query.failing(i64::try_from(newest).unwrap_or(i64::MAX));
        let rows = store.within(scope).query(&sql, &params.list()).await?;
        failing.extend(readable(&rows, |row| {
            Ok(Failing {
                job: JobId::from_i64(row.get(0)?),
                handler: row.get(1)?,
                status,
                at: row.get::<_, Option<Time>>(2)?.map(|time| time.0).unwrap_or_default(),
                signature: row.get::<_, Option<&str>>(3)?.and_then(|text| text.parse().ok()),
                error: row.get::<_, Option<Json<'_>>>(4)?.map(Json::error),
            })
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
    /// The filter names one job: there is nothing to walk through.
    is_one: bool,
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
    (ID_EPOCH..latest).contains(&at).then(|| JobId::from_parts(at, MachineSlot::FIRST, 0).as_i64())
}

/// How far the time in a job's id may be from the time of its submit. Ids are made for a submit that follows; a day is
/// longer than any transaction it may be part of.
const ID_SLACK: Duration = Duration::from_secs(24 * 3_600);

/// A computed status, the same as `record` computes: what has no other place is ready.
const STATUS: &str = "coalesce(o.status, s.kind, case when g.id is not null then 3::smallint end, \
    case when r.id is not null then 5::smallint end, 0::smallint)";

/// The last error, the same as `record` finds, but for the successful, which have none.
const ERROR: &str = "coalesce(o.error, f.error)";

/// The part of a last error called `name`. As the index `outcome_signature` has it, `sql/tables/0004_signatures.sql`.
fn part_of(error: &str, name: &str) -> String {
    format!("windlass.json_text({error}, '{name}')")
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
        // A single place of its own says all there is to say about the status.
        let is_told = matches!(leads.as_deref(), Some([lead]) if lead.is_ordered);
        let mut needs = Needs { past: wants_past, ..Needs::default() };
        for condition in filter.conditions() {
            let said = match (condition.is_negated, &condition.test) {
                (true, _) => false,
                (false, Test::Status(statuses)) => is_told && *statuses == filter.statuses,
                // `body` asks for it, by its index.
                (false, Test::Tenant(tenant)) => filter.tenant == Some(*tenant),
                _ => false,
            };
            if said {
                continue;
            }
            let passes = passes(&condition.test, &mut params, &mut needs);
            conditions.push(match condition.is_negated {
                true => format!("({passes}) is not true"),
                false => passes,
            });
        }
        let joins = joins(needs);
        let floor = filter.created_after.and_then(|after| id_at(after - ID_SLACK));
        let newest = filter.submitted_before().and_then(|before| id_at(before + ID_SLACK));
        let before = before.map(JobId::as_i64).into_iter().chain(newest).min();
        let Some(only) = filter.only_id().map(JobId::as_i64) else {
            return Query { leads, tenant, floor, before, is_one: false, joins, conditions, params };
        };
        let (floor, before) = (Some(only), before.into_iter().chain([only.saturating_add(1)]).min());
        Query { leads, tenant, floor, before, is_one: true, joins, conditions, params }
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
        if self.is_one {
            return None;
        }
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

/// What a filter asks for beyond the job and its outcome.
#[derive(Clone, Copy, Default)]
struct Needs {
    /// In which state it is.
    status: bool,
    /// What gate it waits behind.
    gate: bool,
    /// Which lease holds it.
    lease: bool,
    /// Its last attempt and its last error.
    past: bool,
    /// What its last event counted.
    counts: bool,
}

/// A test in SQL. Must agree with `Condition::matches`; null counts as not passed.
fn passes(test: &Test, params: &mut Params, needs: &mut Needs) -> String {
    let mut like = |column: &str, text: &Text| match text {
        Text::Is(text) => format!("{column} = {}", params.bind(text.clone(), Type::TEXT)),
        Text::StartsWith(start) => format!("starts_with({column}, {})", params.bind(start.clone(), Type::TEXT)),
    };
    match test {
        Test::Id(id) => format!("j.id = {}", params.bind(id.as_i64(), Type::INT8)),
        Test::Handler(text) => like("j.handler", text),
        Test::Queue(text) => like("j.queue", text),
        Test::Correlation(text) => like("j.correlation_id", text),
        Test::Reason(text) => {
            needs.gate = true;
            like("coalesce(o.reason, g.gate)", text)
        }
        Test::Key(text) => {
            let key = like("windlass.json_text(j.spec, 'idempotency_key')", text);
            format!("({} or {key})", like("j.ordering_key", text))
        }
        Test::Tag(Text::Is(tag)) => format!("{} = any (j.tags)", params.bind(tag.clone(), Type::TEXT)),
        Test::Tag(text) => format!("exists (select 1 from unnest(j.tags) t(tag) where {})", like("t.tag", text)),
        Test::Tenant(tenant) => format!("j.tenant_id = {}", params.bind(tenant.0, Type::UUID)),
        Test::Batch(batch) => format!("j.batch_id = {}", params.bind(batch.0.as_i64(), Type::INT8)),
        Test::CreatedFrom(at) => format!("j.created_at >= {}", params.bind(Time(*at), Type::TIMESTAMPTZ)),
        Test::CreatedBefore(at) => format!("j.created_at < {}", params.bind(Time(*at), Type::TIMESTAMPTZ)),
        Test::EndedFrom(at) => format!("o.finished_at >= {}", params.bind(Time(*at), Type::TIMESTAMPTZ)),
        Test::EndedBefore(at) => format!("o.finished_at < {}", params.bind(Time(*at), Type::TIMESTAMPTZ)),
        Test::Priority(band) => {
            let (lowest, highest) = band.priorities();
            let (lowest, highest) = (params.bind(lowest.0, Type::INT2), params.bind(highest.0, Type::INT2));
            format!("j.priority between {lowest} and {highest}")
        }
        Test::Status(statuses) => {
            needs.status = true;
            let codes: Vec<i16> = statuses.iter().map(|status| status.code()).collect();
            format!("{STATUS} = any ({})", params.bind(codes, Type::INT2_ARRAY))
        }
        Test::Replayed(true) => "o.replayed_at is not null".to_owned(),
        Test::Replayed(false) => "o.replayed_at is null".to_owned(),
        Test::Node(node) => {
            (needs.lease, needs.past) = (true, true);
            format!("coalesce(o.node_id, r.node_id, a.node_id) = {}", params.bind(node.0, Type::INT8))
        }
        Test::Signature(signature) => {
            needs.past = true;
            let signature = params.bind(signature.to_string(), Type::TEXT);
            format!("o.status is distinct from 6 and {} = {signature}", part_of(ERROR, "signature"))
        }
        Test::Error(text) => {
            needs.past = true;
            // Under the collation C only a to z have cases, as in the other stores.
            let text = params.bind(text.to_ascii_lowercase(), Type::TEXT);
            let has = |name| format!("position({text} in lower({} collate \"C\")) > 0", part_of(ERROR, name));
            format!("o.status is distinct from 6 and ({} or {})", has("code"), has("message"))
        }
        Test::Attempt(is, than) => {
            (needs.status, needs.counts) = (true, true);
            format!("{ATTEMPT} {} {}", sign(*is), params.bind(i32::from(*than), Type::INT4))
        }
        Test::Ran(took) => {
            (needs.status, needs.past) = (true, true);
            let as_of = params.bind(Time(took.as_of), Type::TIMESTAMPTZ);
            let ran = between(STARTED, &format!("case when {STATUS} = 5 then {as_of} else o.finished_at end"));
            compared(&ran, took, params)
        }
        Test::Waited(took) => {
            (needs.status, needs.counts, needs.past) = (true, true, true);
            let as_of = params.bind(Time(took.as_of), Type::TIMESTAMPTZ);
            let since_ready =
                |at: &str| between(&format!("case when {DUE} <= {at} then {DUE} else j.created_at end"), at);
            let (started, waits) = (since_ready(STARTED), since_ready(&as_of));
            let waited = format!(
                "(case when {STARTED} is not null then case when {ATTEMPT} <= 1 then {started} end
                       when {STATUS} = 0 then {waits} end)"
            );
            compared(&waited, took, params)
        }
        Test::Input(term) => {
            let path = params.bind(term.path.clone(), Type::TEXT_ARRAY);
            let value = params.bind(term.value.clone(), Type::TEXT);
            // In this order: what has an escaped NUL or half of a surrogate pair in it cannot be taken apart, and then no
            // name of it can be looked up either.
            format!(
                "case when strpos(j.payload::text, '\\u') > 0 and not windlass.is_open(j.payload) then false
                      when json_typeof(j.payload #> {path}) in ('string', 'number', 'boolean')
                      then j.payload #>> {path} = {value} else false end"
            )
        }
    }
}

/// When the last attempt started, the same as `record` finds.
const STARTED: &str = "coalesce(o.started_at, r.claimed_at, a.started_at)";

/// When it is or was due, likewise.
const DUE: &str = "coalesce(s.run_at, j.run_at)";

/// The number of the last attempt, likewise.
const ATTEMPT: &str = "(case when o.status is not null then coalesce(o.attempt, 0) \
    else coalesce(s.failed + s.recoveries, g.failed + g.recoveries, r.failed + r.recoveries + 1, \
                  e.failed + e.recoveries, 0) end)";

/// How long it is from one time to another; not known where a row holds a time without an end.
fn between(from: &str, to: &str) -> String {
    format!("(case when isfinite({from}) and isfinite({to}) then ({to}) - ({from}) end)")
}

/// An interval compared with a duration; one that is not known passes neither way, and none is below zero.
fn compared(interval: &str, took: &Took, params: &mut Params) -> String {
    let micros = i64::try_from(took.than.as_micros()).unwrap_or(i64::MAX);
    let than = format!("{} * interval '1 microsecond'", params.bind(micros as f64, Type::FLOAT8));
    format!("{interval} is not null and greatest({interval}, interval '0') {} {than}", sign(took.is))
}

fn sign(is: Ordering) -> &'static str {
    match is {
        Ordering::Less => "<",
        Ordering::Equal => "=",
        Ordering::Greater => ">",
    }
}

/// What tells where a job is and what happened to it, as far as the filter asks. Each by its index.
fn joins(needs: Needs) -> String {
    let mut joins =
        "left join lateral (select status, purge_at, reason, replayed_at, node_id, error, attempt, started_at,
                                               finished_at
                                        from windlass.outcome where outcome.id = j.id offset 0) o on true"
            .to_owned();
    let mut when = |asked: bool, join: &str| {
        if asked {
            joins.push_str(join);
        }
    };
    when(
        needs.status,
        " left join lateral (select kind, run_at, failed, recoveries from windlass.scheduled
                             where scheduled.id = j.id offset 0) s on true",
    );
    when(
        needs.status || needs.gate,
        " left join lateral (select id, gate, failed, recoveries from windlass.gated
                             where gated.id = j.id offset 0) g on true",
    );
    when(
        needs.status || needs.lease,
        " left join (select u.id, min(u.node_id) as node_id, min(u.claimed_at) as claimed_at, min(u.failed) as failed,
                            min(u.recoveries) as recoveries
                     from windlass.running() u group by u.id) r on r.id = j.id",
    );
    when(needs.past, PAST);
    when(
        needs.counts,
        " left join lateral (select failed, recoveries from windlass.event where event.id = j.id
                             order by event.id, seq desc limit 1) e on true",
    );
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
    let rows = store.within(scope).query(include_str!("sql/reads/ready_chunks.sql"), &params).await?;
    rows.first().map_or(Ok(false), |row| Ok(row.get::<_, i64>(0)? >= SHALLOW_CHUNKS))
}

/// Chunks that are taken apart to find ready jobs: up to some ten thousand jobs, which takes milliseconds.
const SHALLOW_CHUNKS: i64 = 256;

pub(crate) async fn history(store: &PgStore, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>> {
    let Some(record) = get(store, scope, &[id]).await?.into_iter().next() else { return Ok(Vec::new()) };
    let params: [Param<'_>; 1] = [(&id.as_i64(), Type::INT8)];
    let events = store.within(scope).query(include_str!("sql/reads/history.sql"), &params).await?;
    let mut events: Vec<HistoryEntry> = readable(&events, entry);
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
        let ends = store.within(scope).query(include_str!("sql/reads/end_of.sql"), &params).await?;
        history.extend(readable(&ends, entry));
    }
    Ok(history)
}

/// Whether a job had a start time ahead when it was submitted.
async fn born_scheduled(store: &PgStore, scope: Scope, id: JobId) -> Result<bool> {
    let params: [Param<'_>; 1] = [(&id.as_i64(), Type::INT8)];
    let rows = store.within(scope).query(include_str!("sql/reads/born_scheduled.sql"), &params).await?;
    rows.first().map_or(Ok(false), |row| row.get(0))
}

/// A line of history from a row of `history.sql` or `end_of.sql`.
fn entry(row: &Row) -> Result<HistoryEntry> {
    let status = Status::from_code(row.get("status")?).unwrap_or(Status::Pending);
    let at = row.get::<_, Option<Time>>(0)?.map(|time| time.0).unwrap_or_default();
    let mut entry = HistoryEntry::new(at, status, counter(row.get("attempt")?));
    entry.node = row.get::<_, Option<i64>>("node_id")?.map(NodeId);
    entry.started_at = row.get::<_, Option<Time>>("started_at")?.map(|time| time.0);
    entry.error = row.get::<_, Option<Json<'_>>>("error")?.map(Json::error);
    entry.note = row.get("note")?;
    Ok(entry)
}

pub(crate) async fn counts(store: &PgStore, scope: Scope) -> Result<Counts> {
    let params: [Param<'_>; 1] = [(&tenant(scope), Type::UUID)];
    let mut counts = Counts::default();
    for sql in [include_str!("sql/reads/counts_live.sql"), include_str!("sql/reads/counts_ended.sql")] {
        for row in store.within(scope).query(sql, &params).await? {
            if let Some(status) = Status::from_code(row.get(0)?) {
                counts.add(status, row.get::<_, i64>(1)?.max(0) as u64);
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
        let rows = store.shared.pools.api.query(Access::Read, include_str!("sql/reads/ahead.sql"), &params).await?;
        ahead = rows.first().map(|row| row.get::<_, i64>(1)).transpose()?.map(|jobs| jobs.max(0) as u64);
    }
    let mut key_holder = None;
    if let Some(Gate::OrderingKey(key)) = record.reason.as_deref().and_then(Gate::parse) {
        let params: [Param<'_>; 2] = [(&record.tenant.0, Type::UUID), (&key, Type::TEXT)];
        let rows = store.within(scope).query(include_str!("sql/reads/key_holder.sql"), &params).await?;
        key_holder = rows.first().map(|row| row.get(0)).transpose()?.map(JobId::from_i64);
    }
    let mut pauses = crate::steering::pauses_within(store, scope).await?;
    // Only those that stop this job: a tenant must not learn of another one's pause.
    pauses.retain(|pause| match &pause.target {
        PauseTarget::All => true,
        PauseTarget::Handler(handler) => *handler == record.handler,
        PauseTarget::Tenant(tenant) => *tenant == record.tenant,
    });
    let nodes = crate::nodes::nodes(store).await?;
    let now = store.store_time().await?;
    let cap = if ahead.is_some() { crate::tenancy::quota::cap(store, record.tenant).await? } else { None };
    Ok(Some(Whereabouts { now, record, ahead, key_holder, pauses, nodes, cap }))
}

pub(crate) async fn waiting_queues(store: &PgStore) -> Result<Vec<WaitingQueue>> {
    let rows = store.shared.pools.api.query(Access::Read, include_str!("sql/reads/waiting_queues.sql"), &[]).await?;
    Ok(readable(&rows, |row| Ok(WaitingQueue { queue: row.get(0)?, oldest: JobId::from_i64(row.get(1)?) })))
}
