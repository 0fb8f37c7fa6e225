//! Reads jobs back: records, lists, histories, counts, and what `why` needs. Called by the store's reading methods, on a
//! connection of the readers or on the writer's. Never writes. What is past its time is invisible here at once.

use std::collections::HashMap;

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};
use windlass_core::failures::{Failing, failing_filter};
use windlass_core::store::{
    AuditEntry, AuditFilter, Counts, Gate, LeaseId, NodeId, Pause, PauseTarget, WaitingQueue, Whereabouts,
    suspect_queue,
};
use windlass_core::{
    BatchId, Found, HistoryEntry, JobError, JobFilter, JobId, JobRecord, Page, Payload, Progress, Replayed, Scope,
    Status, TenantId, Timestamp,
};

use crate::node;
use crate::place::SYSTEM;
use crate::quota;
use crate::rows::{Columns, Done, Leased, as_i64, job_id, json_ids, tenant_bytes, unpack_ids, unpack_leased};

/// Audit entries in an answer that asks for no number.
const AUDIT_DEFAULT: usize = 50;

/// The action of audit entries that are read from outcomes.
const JOB_SUCCEEDED: &str = "JOB_SUCCEEDED";

/// A view of the store at one moment.
pub(crate) struct Reader<'a> {
    conn: &'a Connection,
    now: Timestamp,
    running: HashMap<i64, Running>,
}

/// Under which lease a job runs.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub(crate) lease: LeaseId,
    pub(crate) node: NodeId,
    pub(crate) claimed_at: Timestamp,
    pub(crate) job: Leased,
}

impl<'a> Reader<'a> {
    /// Reads which jobs run; there are as many as workers, so reading all is cheaper than an index on them.
    pub(crate) fn new(conn: &'a Connection, now: Timestamp) -> Done<Self> {
        let mut running = HashMap::new();
        let mut select = conn.prepare_cached("SELECT lease, node, claimed_at, jobs FROM windlass_lease")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let (lease, node, claimed_at) = (LeaseId(row.get(0)?), NodeId(row.get(1)?), row.time(2)?);
            let jobs = unpack_leased(row.blob(3)?);
            running.extend(jobs.into_iter().map(|job| (job.id, Running { lease, node, claimed_at, job })));
        }
        Ok(Reader { conn, now, running })
    }

    /// Where a job runs.
    pub(crate) fn running(&self, job: i64) -> Option<Running> {
        self.running.get(&job).copied()
    }

    /// Every job that runs.
    pub(crate) fn running_ids(&self) -> Vec<i64> {
        self.running.keys().copied().collect()
    }

    /// The jobs with these ids that the scope covers.
    pub(crate) fn get(&self, scope: Scope, ids: &[JobId]) -> Done<Vec<JobRecord>> {
        let sql = format!("{} WHERE j.id = ?1 AND {VISIBLE_AT_2}", include_str!("sql/read_job.sql"));
        let mut select = self.conn.prepare_cached(&sql)?;
        let mut records = Vec::with_capacity(ids.len());
        for id in ids {
            let mut rows = select.query(params![id.as_i64(), self.now.as_micros()])?;
            if let Some(row) = rows.next()? {
                records.push(self.record(row)?);
            }
        }
        records.retain(|record| scope.covers(record.tenant));
        Ok(records)
    }

    /// One job that the scope covers.
    pub(crate) fn one(&self, scope: Scope, id: JobId) -> Done<Option<JobRecord>> {
        Ok(self.get(scope, &[id])?.pop())
    }

    /// A job's input.
    pub(crate) fn input(&self, scope: Scope, id: JobId) -> Done<Option<Payload>> {
        if self.one(scope, id)?.is_none() {
            return Ok(None);
        }
        let mut select = self.conn.prepare_cached("SELECT payload FROM windlass_job WHERE id = ?1")?;
        let mut rows = select.query([id.as_i64()])?;
        rows.next()?.map(|row| row.text(0).map(Payload::from_store)).transpose()
    }

    /// Jobs that pass the filter, newest first.
    pub(crate) fn list(&self, scope: Scope, filter: &JobFilter, page: Page) -> Done<Vec<JobRecord>> {
        let limit = page.limit.clamp(1, Page::MAX);
        let (mut skip, mut records) = (page.offset, Vec::new());
        self.each(scope, filter, Span::below(page.before), |row| {
            match skip.checked_sub(1) {
                Some(left) => skip = left,
                None => records.push(self.record(row)?),
            }
            Ok(records.len() < limit)
        })?;
        Ok(records)
    }

    /// The same among the newest `look_at` candidates.
    pub(crate) fn search(&self, scope: Scope, filter: &JobFilter, page: Page, look_at: usize) -> Done<Found> {
        let limit = page.limit.clamp(1, Page::MAX);
        let floor = self.floor(scope, filter, page.before, look_at)?;
        let mut records = Vec::new();
        self.each(scope, filter, Span { floor, ..Span::below(page.before) }, |row| {
            records.push(self.record(row)?);
            Ok(records.len() < limit)
        })?;
        Ok(Found::new(records, limit, floor.map(job_id)))
    }

    /// The last of the newest `look_at` candidates, if there are so many.
    fn floor(&self, scope: Scope, filter: &JobFilter, before: Option<JobId>, look_at: usize) -> Done<Option<i64>> {
        let (below, nth) = (before.map_or(i64::MAX, JobId::as_i64), as_i64(look_at.saturating_sub(1)));
        let ask = |places: &str, value: Option<Value>| -> Done<Option<i64>> {
            let sql = format!("{places} ORDER BY 1 DESC LIMIT 1 OFFSET ?");
            let values = value.into_iter().chain([Value::from(below), Value::from(nth)]);
            let mut select = self.conn.prepare(&sql)?;
            let mut rows = select.query(params_from_iter(values))?;
            Ok(rows.next()?.map(|row| row.get(0)).transpose()?)
        };
        if let Some(places) = sparse_places(filter) {
            let mut floor = None;
            for place in places {
                floor = floor.max(ask(&format!("{} AND job < ?", place.sql), place.signature.map(Value::from))?);
            }
            return Ok(floor);
        }
        match scope.tenant().or(filter.tenant) {
            Some(tenant) => {
                let tenant = Value::from(tenant_bytes(&tenant).to_vec());
                ask("SELECT id FROM windlass_job WHERE tenant = ? AND id < ?", Some(tenant))
            }
            None => ask("SELECT id FROM windlass_job WHERE id < ?", None),
        }
    }

    /// How many jobs pass the filter, up to `cap`.
    pub(crate) fn count(&self, scope: Scope, filter: &JobFilter, cap: usize) -> Done<u64> {
        let mut counted = 0;
        self.each(scope, filter, Span::default(), |_| {
            counted += 1;
            Ok(counted < cap)
        })?;
        Ok(counted.min(cap) as u64)
    }

    /// The newest dead letters that nobody has replayed, and retrying jobs, that pass the filter.
    pub(crate) fn failing(&self, scope: Scope, filter: &JobFilter, newest: usize) -> Done<Vec<Failing>> {
        let mut failing = Vec::new();
        for status in [Status::DeadLettered, Status::Retrying] {
            let Some(filter) = failing_filter(filter, status) else { continue };
            let until = failing.len() + newest;
            self.each(scope, &filter, Span::default(), |row| {
                failing.push(match status {
                    Status::DeadLettered => letter(row)?,
                    _ => self.record(row)?.into(),
                });
                Ok(failing.len() < until)
            })?;
        }
        Ok(failing)
    }

    /// Visits the rows of jobs that pass the filter, newest first, until `visit` has enough. What SQL cannot say as the
    /// other stores do is asked of each row here, as it comes.
    fn each(
        &self,
        scope: Scope,
        filter: &JobFilter,
        span: Span,
        mut visit: impl FnMut(&Row<'_>) -> Done<bool>,
    ) -> Done<()> {
        let (conditions, values) = self.conditions(scope, filter, span);
        let sql = format!("{} WHERE {conditions} ORDER BY j.id DESC", include_str!("sql/read_job.sql"));
        // Not kept: there are as many texts as filters, and they would push out the statements that matter.
        let mut select = self.conn.prepare(&sql)?;
        let mut rows = select.query(params_from_iter(values))?;
        let asks_past = filter.error.is_some() || filter.signature.is_some() || filter.node.is_some();
        while let Some(row) = rows.next()? {
            let passes = (filter.inputs.is_empty() || filter.matches_input(&self.payload(row.get(0)?)?))
                && (!asks_past || filter.matches(&self.record(row)?));
            if passes && !visit(row)? {
                break;
            }
        }
        Ok(())
    }

    fn payload(&self, job: i64) -> Done<Payload> {
        let mut select = self.conn.prepare_cached("SELECT payload FROM windlass_job WHERE id = ?1")?;
        let mut rows = select.query([job])?;
        Ok(rows.next()?.map(|row| row.text(0).map(Payload::from_store)).transpose()?.unwrap_or_else(Payload::null))
    }

    /// The filter in SQL, as far as SQL can say it. Agrees with [`JobFilter::matches`].
    fn conditions(&self, scope: Scope, filter: &JobFilter, span: Span) -> (String, Vec<Value>) {
        let mut all = Conditions::default();
        all.add("(o.purge_at IS NULL OR o.purge_at > ?)", self.now.as_micros());
        for tenant in scope.tenant().into_iter().chain(filter.tenant) {
            all.add("j.tenant = ?", tenant_bytes(&tenant).to_vec());
        }
        if let Some(below) = span.below {
            all.add("j.id < ?", below);
        }
        if let Some(floor) = span.floor {
            all.add("j.id >= ?", floor);
        }
        if let Some(handler) = &filter.handler {
            all.add("j.handler = ?", handler.clone());
        }
        if let Some(after) = filter.created_after {
            all.add("j.created_at >= ?", after.as_micros());
        }
        if let Some(before) = filter.created_before {
            all.add("j.created_at < ?", before.as_micros());
        }
        if let Some(batch) = filter.batch {
            all.add("j.batch = ?", batch.0.as_i64());
        }
        if let Some(tag) = &filter.tag {
            all.add("j.id IN (SELECT job FROM windlass_job_tag WHERE tag = ?)", tag.clone());
        }
        if let Some(id) = &filter.correlation_id {
            all.add("j.correlation_id = ?", id.clone());
        }
        if let Some(reason) = &filter.reason {
            all.add("coalesce(o.reason, g.gate) = ?", reason.clone());
        }
        match filter.replayed {
            Some(true) => all.parts.push("d.replayed_at IS NOT NULL".into()),
            Some(false) => all.parts.push("d.replayed_at IS NULL".into()),
            None => {}
        }
        if let Some(queue) = &filter.queue {
            all.add("j.queue = ?", queue.clone());
        }
        if let Some(band) = filter.priority {
            let (lowest, highest) = band.priorities();
            all.add("j.priority >= ?", i64::from(lowest.0));
            all.add("j.priority <= ?", i64::from(highest.0));
        }
        if let Some(key) = &filter.key {
            all.add("? IN (j.ordering_key, j.spec ->> 'idempotency_key')", key.clone());
        }
        self.ask_past(filter, &mut all);
        if !filter.statuses.is_empty() {
            let leased = self.running_ids();
            let codes: Vec<String> = filter.statuses.iter().map(|status| status.code().to_string()).collect();
            if let Some(places) = sparse_places(filter) {
                let mut all_places = vec!["SELECT value FROM json_each(?)".to_owned()];
                all.values.push(json_ids(&leased).into());
                for place in places {
                    // Within the span already here, because all that the places have is read before the first job.
                    all_places.push(format!("{} AND job < ? AND job >= ?", place.sql));
                    all.values.extend(place.signature.map(Value::from));
                    let (below, floor) = (span.below.unwrap_or(i64::MAX), span.floor.unwrap_or(i64::MIN));
                    all.values.extend([Value::from(below), Value::from(floor)]);
                }
                all.parts.push(format!("j.id IN ({})", all_places.join(" UNION ALL ")));
            }
            all.add(&format!("{STATUS} IN ({})", codes.join(",")), json_ids(&leased));
        }
        (all.parts.join(" AND "), all.values)
    }

    /// Leaves out jobs whose past cannot pass; what is left is asked one by one.
    fn ask_past(&self, filter: &JobFilter, all: &mut Conditions) {
        let past = "EXISTS (SELECT 1 FROM windlass_event e WHERE e.job = j.id AND";
        if filter.error.is_some() {
            all.parts.push(format!("(o.error IS NOT NULL OR {past} e.error IS NOT NULL))"));
        }
        if let Some(signature) = filter.signature {
            let part = format!("(o.error ->> 'signature' = ? OR {past} e.error ->> 'signature' = ?))");
            all.add(&part, signature.to_string());
            all.values.push(signature.to_string().into());
        }
        if let Some(node) = filter.node {
            let held: Vec<i64> = self.running.iter().filter(|(_, at)| at.node == node).map(|(id, _)| *id).collect();
            let part = format!("(o.node = ? OR {past} e.node = ?) OR j.id IN (SELECT value FROM json_each(?)))");
            all.add(&part, node.0);
            all.values.extend([Value::from(node.0), Value::from(json_ids(&held))]);
        }
    }

    /// Everything that happened to a job, oldest first.
    pub(crate) fn history(&self, scope: Scope, id: JobId) -> Done<Vec<HistoryEntry>> {
        let sql = format!("{} WHERE j.id = ?1 AND {VISIBLE_AT_2}", include_str!("sql/read_job.sql"));
        let mut select = self.conn.prepare_cached(&sql)?;
        let mut rows = select.query(params![id.as_i64(), self.now.as_micros()])?;
        let Some(row) = rows.next()? else { return Ok(Vec::new()) };
        if !scope.covers(row.tenant(1)?) {
            return Ok(Vec::new());
        }
        let mut entries = vec![HistoryEntry::new(row.time(5)?, row.status(6)?, 0)];
        entries.extend(events(self.conn, id.as_i64())?.into_iter().map(|event| event.entry));
        if row.get::<_, Option<i64>>(13)?.is_some() {
            let mut end = HistoryEntry::new(row.time(14)?, row.status(13)?, row.small(15)?);
            end.node = row.get::<_, Option<i64>>(18)?.map(NodeId);
            end.started_at = row.time_opt(19)?;
            end.note = row.get(21)?;
            end.error = row.error(22)?;
            entries.push(end);
        } else if let Some(running) = self.running(id.as_i64()) {
            let mut entry = HistoryEntry::new(running.claimed_at, Status::Running, running.job.attempt());
            (entry.node, entry.started_at) = (Some(running.node), Some(running.claimed_at));
            entries.push(entry);
        }
        Ok(entries)
    }

    /// What `why` needs to know about a job.
    pub(crate) fn whereabouts(&self, scope: Scope, id: JobId) -> Done<Option<Whereabouts>> {
        let Some(record) = self.one(scope, id)? else { return Ok(None) };
        let ahead = match record.status {
            Status::Pending => Some(self.ahead(&record)?),
            _ => None,
        };
        let key_holder = match record.reason.as_deref().and_then(Gate::parse) {
            Some(Gate::OrderingKey(key)) if record.status == Status::Blocked => self.key_holder(record.tenant, &key)?,
            _ => None,
        };
        let (pauses, nodes) = (pauses(self.conn)?, node::nodes(self.conn)?);
        let quotas = quota::load(self.conn)?;
        let cap = match quotas.cap(record.tenant).filter(|_| ahead.is_some()) {
            Some(cap) => {
                let running = quota::running(self.conn, &quotas, self.now)?;
                Some((running.get(&record.tenant).copied().unwrap_or(0), cap))
            }
            None => None,
        };
        Ok(Some(Whereabouts { now: self.now, record, ahead, key_holder, pauses, nodes, cap }))
    }

    /// How many ready jobs come before one, at most: those that were withdrawn still stand in line.
    fn ahead(&self, record: &JobRecord) -> Done<u64> {
        let own = [record.queue.clone(), suspect_queue(&record.queue)];
        let routed = queues(self.conn)?.into_iter().filter(|queue| !own.contains(queue));
        for queue in own.iter().cloned().chain(routed) {
            let mut line = self.conn.prepare_cached(include_str!("sql/read_line.sql"))?;
            let mut rows = line.query([queue])?;
            let mut before = 0;
            while let Some(row) = rows.next()? {
                let ids = unpack_ids(row.blob(0)?);
                if let Some(place) = ids.iter().position(|id| *id == record.id.as_i64()) {
                    return Ok(before + place as u64);
                }
                before += ids.len() as u64;
            }
        }
        Ok(0)
    }

    fn key_holder(&self, tenant: TenantId, key: &str) -> Done<Option<JobId>> {
        let sql = "SELECT job FROM windlass_key_holder WHERE tenant = ?1 AND key = ?2";
        let mut select = self.conn.prepare_cached(sql)?;
        let mut rows = select.query(params![tenant_bytes(&tenant), key])?;
        Ok(rows.next()?.map(|row| row.get(0)).transpose()?.map(job_id))
    }

    /// A record from a row of `read_job.sql`.
    fn record(&self, row: &Row<'_>) -> Done<JobRecord> {
        let id: i64 = row.get(0)?;
        let mut record = JobRecord::new(job_id(id), row.tenant(1)?, row.text(2)?, row.text(3)?, row.time(5)?);
        record.priority = row.priority(4)?;
        record.run_at = row.time_opt(7)?;
        record.ordering_key = row.get(8)?;
        record.batch = row.get::<_, Option<i64>>(9)?.map(|id| BatchId(job_id(id)));
        record.correlation_id = row.get(10)?;
        record.tags = row.json_or_default(11)?;
        record.spec = row.json_or_default(12)?;
        if let Some(sequence) = row.get::<_, Option<i64>>(28)? {
            let percent = row.get::<_, f64>(29)? as f32;
            let sequence = u64::try_from(sequence).unwrap_or(0);
            record.progress = Some(Progress { sequence, percent, message: row.text(30)? });
        }
        if let Some(by) = row.get::<_, Option<String>>(31)? {
            record.replayed = Some(Replayed { by, at: row.time(32)?, as_job: job_id(row.get(33)?) });
        }
        self.tell_past(id, &mut record)?;
        self.tell_place(id, row, &mut record)?;
        Ok(record)
    }

    /// What earlier attempts left: counts, the last node and the last error.
    fn tell_past(&self, id: i64, record: &mut JobRecord) -> Done<()> {
        for event in events(self.conn, id)? {
            (record.failed, record.recoveries) = (event.failed, event.recoveries);
            // A replay starts the job anew: what went wrong before is history.
            let earlier = record.error.take().filter(|_| event.entry.attempt > 0 || event.entry.note.is_none());
            record.error = event.entry.error.or(earlier);
            record.node = event.entry.node.or(record.node);
            record.started_at = event.entry.started_at.or(record.started_at);
        }
        record.attempt = record.failed.saturating_add(record.recoveries);
        Ok(())
    }

    /// Where the job is now; that decides its status.
    fn tell_place(&self, id: i64, row: &Row<'_>, record: &mut JobRecord) -> Done<()> {
        if row.get::<_, Option<i64>>(13)?.is_some() {
            record.status = row.status(13)?;
            record.finished_at = Some(row.time(14)?);
            (record.attempt, record.failed, record.recoveries) = (row.small(15)?, row.small(16)?, row.small(17)?);
            record.node = row.get::<_, Option<i64>>(18)?.map(NodeId).or(record.node);
            record.started_at = row.time_opt(19)?.or(record.started_at);
            record.reason = row.get(20)?;
            record.output = row.payload_opt(23)?;
            // An error that a later attempt overcame is history.
            let earlier = record.error.take().filter(|_| record.status != Status::Succeeded);
            record.error = row.error(22)?.or(earlier);
        } else if let Some(due) = row.time_opt(24)? {
            record.status = row.status(25)?;
            record.run_at = Some(due);
        } else if let Some(gate) = row.get::<_, Option<String>>(26)? {
            record.status = Status::Blocked;
            record.reason = Some(gate);
            record.run_at = row.time_opt(27)?.or(record.run_at);
        } else if let Some(running) = self.running(id) {
            record.status = Status::Running;
            (record.failed, record.recoveries) = (running.job.failed, running.job.recoveries);
            record.attempt = running.job.attempt();
            (record.node, record.started_at) = (Some(running.node), Some(running.claimed_at));
            record.cancel_requested = row.get(34)?;
        }
        Ok(())
    }
}

/// The status of a job as SQL; the value is the list of ids that run.
const STATUS: &str = "CASE WHEN o.job IS NOT NULL THEN o.status WHEN s.job IS NOT NULL THEN s.kind \
                      WHEN g.job IS NOT NULL THEN 3 WHEN j.id IN (SELECT value FROM json_each(?)) THEN 5 ELSE 0 END";

/// Hides jobs whose time is over.
const VISIBLE_AT_2: &str = "(o.purge_at IS NULL OR o.purge_at > ?2)";

/// Which ids a list is about: those from `floor` on and below `below`.
#[derive(Clone, Copy, Default)]
struct Span {
    floor: Option<i64>,
    below: Option<i64>,
}

impl Span {
    fn below(before: Option<JobId>) -> Span {
        Span { floor: None, below: before.map(JobId::as_i64) }
    }
}

/// A table that has the jobs of some state, by id; the statement goes on with `AND`.
struct SparsePlace {
    sql: &'static str,
    /// The value it asks for.
    signature: Option<String>,
}

/// Where to look for jobs in the states of a filter, if they are few among many. Those that run are not among them: their
/// ids are at hand.
fn sparse_places(filter: &JobFilter) -> Option<Vec<SparsePlace>> {
    let mut places = Vec::new();
    for status in &filter.statuses {
        let (sql, signature) = match (status, filter.signature) {
            (Status::Running, _) => continue,
            (Status::Scheduled | Status::Retrying, _) => ("SELECT job FROM windlass_scheduled WHERE true", None),
            (Status::Blocked, _) => ("SELECT job FROM windlass_gated WHERE true", None),
            (Status::DeadLettered, None) => ("SELECT job FROM windlass_dead_letter WHERE true", None),
            (Status::DeadLettered, Some(signature)) => (
                "SELECT job FROM windlass_outcome WHERE status = 8 AND error ->> 'signature' = ?",
                Some(signature.to_string()),
            ),
            _ => return None,
        };
        places.push(SparsePlace { sql, signature });
    }
    (!filter.statuses.is_empty()).then_some(places)
}

/// A dead letter from a row of `read_job.sql`: its outcome has the error, so its past is not read.
fn letter(row: &Row<'_>) -> Done<Failing> {
    let error = row.error(22)?;
    let signature = error.as_ref().and_then(|error| error.signature);
    Ok(Failing {
        job: job_id(row.get(0)?),
        handler: row.text(2)?,
        status: Status::DeadLettered,
        at: row.time(14)?,
        signature,
        error: error.filter(|_| signature.is_none()),
    })
}

#[derive(Default)]
struct Conditions {
    parts: Vec<String>,
    values: Vec<Value>,
}

impl Conditions {
    fn add(&mut self, part: &str, value: impl Into<Value>) {
        self.parts.push(part.to_owned());
        self.values.push(value.into());
    }
}

/// A line of a job's history with the counts from then on.
struct EventRow {
    entry: HistoryEntry,
    failed: u16,
    recoveries: u16,
}

fn events(conn: &Connection, job: i64) -> Done<Vec<EventRow>> {
    let mut select = conn.prepare_cached(include_str!("sql/read_events.sql"))?;
    let mut rows = select.query([job])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        let mut entry = HistoryEntry::new(row.time(0)?, row.status(1)?, row.small(2)?);
        entry.node = row.get::<_, Option<i64>>(5)?.map(NodeId);
        entry.started_at = row.time_opt(6)?;
        entry.error = row.error(7)?;
        entry.note = row.get(8)?;
        events.push(EventRow { entry, failed: row.small(3)?, recoveries: row.small(4)? });
    }
    Ok(events)
}

/// The outcome of a dead letter, for its history when it is replayed.
pub(crate) fn outcome_entry(conn: &Connection, job: i64) -> Done<Option<(HistoryEntry, Option<JobError>)>> {
    let sql = "SELECT at, status, attempt, node, started_at, error, note FROM windlass_outcome WHERE job = ?1";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query([job])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let mut entry = HistoryEntry::new(row.time(0)?, row.status(1)?, row.small(2)?);
    entry.node = row.get::<_, Option<i64>>(3)?.map(NodeId);
    entry.started_at = row.time_opt(4)?;
    entry.note = row.get(6)?;
    Ok(Some((entry, row.error(5)?)))
}

/// How many jobs are in each status.
pub(crate) fn counts(conn: &Connection, scope: Scope) -> Done<Counts> {
    let tenant = scope.tenant();
    let mut counts = Counts::default();
    let mut select = conn.prepare_cached(include_str!("sql/read_counts.sql"))?;
    let mut rows = select.query([tenant.as_ref().map(tenant_bytes)])?;
    while let Some(row) = rows.next()? {
        // Sums come as floating point, which is exact far beyond what a file can hold.
        counts.add(row.status(0)?, row.get::<_, f64>(1)?.max(0.0) as u64);
    }
    counts.add(Status::Running, count_running(conn, tenant)?);
    Ok(counts)
}

/// How many jobs run. Leases do not say whose their jobs are, so one tenant's need their rows.
fn count_running(conn: &Connection, tenant: Option<TenantId>) -> Done<u64> {
    let mut leases = conn.prepare_cached("SELECT jobs FROM windlass_lease")?;
    let mut own = conn.prepare_cached("SELECT 1 FROM windlass_job WHERE id = ?1 AND tenant = ?2")?;
    let mut rows = leases.query([])?;
    let mut running = 0;
    while let Some(row) = rows.next()? {
        for job in unpack_leased(row.blob(0)?) {
            running += match &tenant {
                Some(tenant) => u64::from(own.exists(params![job.id, tenant_bytes(tenant)])?),
                None => 1,
            };
        }
    }
    Ok(running)
}

/// The pauses in force.
pub(crate) fn pauses(conn: &Connection) -> Done<Vec<Pause>> {
    let mut select = conn.prepare_cached("SELECT target, actor, reason, at FROM windlass_pause ORDER BY at, target")?;
    let mut rows = select.query([])?;
    let mut pauses = Vec::new();
    while let Some(row) = rows.next()? {
        if let Some(target) = PauseTarget::parse(&row.text(0)?) {
            pauses.push(Pause { target, by: row.text(1)?, reason: row.text(2)?, at: row.time(3)? });
        }
    }
    Ok(pauses)
}

/// The audit log, newest first.
pub(crate) fn audit_log(
    conn: &Connection,
    now: Timestamp,
    scope: Scope,
    filter: &AuditFilter,
) -> Done<Vec<AuditEntry>> {
    let limit = as_i64(if filter.limit == 0 { AUDIT_DEFAULT } else { filter.limit });
    let tenant = scope.tenant();
    let tenant = tenant.as_ref().map(tenant_bytes);
    let before = filter.before.map(|before| i64::try_from(before).unwrap_or(i64::MAX));
    let mut entries = Vec::new();
    if filter.action.as_deref() == Some(JOB_SUCCEEDED) {
        let job = match filter.target.as_deref().map(str::parse::<JobId>) {
            None => None,
            Some(Ok(id)) => Some(id.as_i64()),
            Some(Err(_)) => return Ok(entries),
        };
        let mut select = conn.prepare_cached(include_str!("sql/read_audit_succeeded.sql"))?;
        let mut rows = select.query(params![tenant, job, now.as_micros(), limit, before])?;
        while let Some(row) = rows.next()? {
            entries.push(AuditEntry {
                sequence: row.get::<_, i64>(2)? as u64,
                at: row.time(0)?,
                actor: SYSTEM.into(),
                tenant: Some(row.tenant(1)?),
                action: JOB_SUCCEEDED.into(),
                target: job_id(row.get(2)?).to_string(),
                detail: None,
            });
        }
        return Ok(entries);
    }
    let mut select = conn.prepare_cached(include_str!("sql/read_audit.sql"))?;
    let mut rows = select.query(params![tenant, filter.action, filter.target, limit, before])?;
    while let Some(row) = rows.next()? {
        let has_tenant = !matches!(row.get_ref(2)?, rusqlite::types::ValueRef::Null);
        entries.push(AuditEntry {
            sequence: row.get::<_, i64>(6)? as u64,
            at: row.time(0)?,
            actor: row.text(1)?,
            tenant: if has_tenant { Some(row.tenant(2)?) } else { None },
            action: row.text(3)?,
            target: row.text(4)?,
            detail: row.get(5)?,
        });
    }
    Ok(entries)
}

/// Queues that have ready jobs, with the oldest of each one's first chunks.
pub(crate) fn waiting_queues(conn: &Connection) -> Done<Vec<WaitingQueue>> {
    let queues = queues(conn)?;
    let mut line = conn.prepare_cached(include_str!("sql/read_line.sql"))?;
    let mut waiting = Vec::with_capacity(queues.len());
    for queue in queues {
        let mut rows = line.query([&queue])?;
        let mut oldest: Option<i64> = None;
        for _ in 0..FIRST_CHUNKS {
            let Some(row) = rows.next()? else { break };
            oldest = unpack_ids(row.blob(0)?).into_iter().chain(oldest).min();
        }
        drop(rows);
        waiting.extend(oldest.map(|id| WaitingQueue { queue, oldest: JobId::from_i64(id) }));
    }
    Ok(waiting)
}

/// The queues that have ready jobs.
pub(crate) fn queues(conn: &Connection) -> Done<Vec<String>> {
    let mut select = conn.prepare_cached(include_str!("sql/read_queues.sql"))?;
    Ok(select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
}

/// Chunks looked at for the oldest job of a queue: enough for a hint, whatever the queue holds.
const FIRST_CHUNKS: usize = 16;
