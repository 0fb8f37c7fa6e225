//! Reads jobs back: records, lists, histories, counts, and what `why` needs. Called by the store's reading methods, on a
//! connection of the readers or on the writer's. Never writes. What is past its time is invisible here at once.

use std::cmp::Ordering;
use std::collections::HashMap;

use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};
use windlass_core::failures::{Failing, failing_filter};
use windlass_core::filter::{Condition, Test, Text, Took};
use windlass_core::store::{
    Counts, Error, Gate, LeaseId, NodeId, Reads, Result, WaitingQueue, Whereabouts, suspect_queue,
};
use windlass_core::{
    BatchId, Cost, Found, HistoryEntry, JobError, JobFilter, JobId, JobRecord, LogLine, Page, Payload, Progress,
    Replayed, Scope, Status, TenantId, Timestamp,
};

use crate::ground::rows::{
    Columns, Done, Leased, Lenient, as_i64, job_id, json_ids, readable, tenant_bytes, unpack_ids, unpack_leased,
};
use crate::steering::pauses;
use crate::tenancy::quota;
use crate::{SqliteStore, nodes};

#[async_trait]
impl Reads for SqliteStore {
    async fn get(&self, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>> {
        let ids = ids.to_vec();
        self.read(move |conn, now| Reader::new(conn, now)?.get(scope, &ids)).await
    }

    async fn input(&self, scope: Scope, id: JobId) -> Result<Option<Payload>> {
        self.read(move |conn, now| Reader::new(conn, now)?.input(scope, id)).await
    }

    async fn find(&self, scope: Scope, filter: &JobFilter, page: Page, look_at: Option<usize>) -> Result<Found> {
        let filter = filter.clone();
        self.read(move |conn, now| {
            let reader = Reader::new(conn, now)?;
            match look_at {
                Some(look_at) => reader.search(scope, &filter, page, look_at),
                None => Ok(Found::new(reader.list(scope, &filter, page)?, page.limit, None)),
            }
        })
        .await
    }

    async fn count(&self, scope: Scope, filter: &JobFilter, cap: usize) -> Result<u64> {
        let filter = filter.clone();
        self.read(move |conn, now| Reader::new(conn, now)?.count(scope, &filter, cap)).await
    }

    async fn failing(&self, scope: Scope, filter: &JobFilter, newest: usize) -> Result<Vec<Failing>> {
        let filter = filter.clone();
        self.read(move |conn, now| Reader::new(conn, now)?.failing(scope, &filter, newest)).await
    }

    async fn history(&self, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>> {
        self.read(move |conn, now| Reader::new(conn, now)?.history(scope, id)).await
    }

    async fn logs(&self, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>> {
        self.read(move |conn, now| crate::jobs::note::lines(conn, now, scope, id, after)).await
    }

    async fn counts(&self, scope: Scope) -> Result<Counts> {
        self.read(move |conn, now| counts(conn, now, scope)).await
    }

    async fn whereabouts(&self, scope: Scope, id: JobId) -> Result<Option<Whereabouts>> {
        self.read(move |conn, now| Reader::new(conn, now)?.whereabouts(scope, id)).await
    }
}

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
            let lease = || Ok((LeaseId(row.get(0)?), NodeId(row.get(1)?), row.time(2)?, unpack_leased(row.blob(3)?)));
            let Some((lease, node, claimed_at, jobs)) = readable(lease())? else { continue };
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
        if filter.only_id().is_some() {
            return Ok(None);
        }
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
        let asked = filter.conditions();
        let (conditions, values) = self.conditions(scope, filter, &asked, span);
        let sql = format!("{} WHERE {conditions} ORDER BY j.id DESC", include_str!("sql/read_job.sql"));
        // Not kept: there are as many texts as filters, and they would push out the statements that matter.
        let mut select = self.conn.prepare(&sql)?;
        let mut rows = select.query(params_from_iter(values))?;
        let of_inputs: Vec<&Condition> = asked.iter().filter(|condition| condition.asks_input()).collect();
        let of_the_past: Vec<&Condition> = asked.iter().filter(|condition| asks_past(&condition.test)).collect();
        while let Some(row) = rows.next()? {
            let payload = if of_inputs.is_empty() { None } else { Some(self.payload(row.get(0)?)?) };
            let record = if of_the_past.is_empty() { None } else { Some(self.record(row)?) };
            let passes = payload.iter().all(|input| of_inputs.iter().all(|condition| condition.matches_input(input)))
                && record.iter().all(|record| of_the_past.iter().all(|condition| condition.matches(record)));
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

    /// The filter in SQL, as far as SQL can say it. Agrees with [`Condition::matches`].
    fn conditions(&self, scope: Scope, filter: &JobFilter, asked: &[Condition], span: Span) -> (String, Vec<Value>) {
        let mut all = Conditions::default();
        all.add("(o.purge_at IS NULL OR o.purge_at > ?)", self.now.as_micros());
        if let Some(tenant) = scope.tenant() {
            all.add("j.tenant = ?", tenant_bytes(&tenant).to_vec());
        }
        if let Some(below) = span.below {
            all.add("j.id < ?", below);
        }
        if let Some(floor) = span.floor {
            all.add("j.id >= ?", floor);
        }
        if let Some(places) = sparse_places(filter) {
            let mut all_places = vec!["SELECT value FROM json_each(?)".to_owned()];
            all.values.push(json_ids(&self.running_ids()).into());
            for place in places {
                // Within the span already here, because all that the places have is read before the first job.
                all_places.push(format!("{} AND job < ? AND job >= ?", place.sql));
                all.values.extend(place.signature.map(Value::from));
                let (below, floor) = (span.below.unwrap_or(i64::MAX), span.floor.unwrap_or(i64::MIN));
                all.values.extend([Value::from(below), Value::from(floor)]);
            }
            all.parts.push(format!("j.id IN ({})", all_places.join(" UNION ALL ")));
        }
        for condition in asked {
            match (self.passes(&condition.test), condition.is_negated) {
                (Some((part, values)), is_negated) => {
                    all.parts.push(if is_negated { format!("({part}) IS NOT TRUE") } else { part });
                    all.values.extend(values);
                }
                (None, false) => self.ask_past(&condition.test, &mut all),
                // What cannot pass the test passes its opposite: nothing to leave out.
                (None, true) => {}
            }
        }
        (all.parts.join(" AND "), all.values)
    }

    /// A test in SQL, if SQL can say it as the other stores do; null counts as not passed.
    fn passes(&self, test: &Test) -> Option<(String, Vec<Value>)> {
        let one = |part: &str, value: Value| Some((part.to_owned(), vec![value]));
        match test {
            Test::Id(id) => one("j.id = ?", id.as_i64().into()),
            Test::Handler(text) => Some(like("j.handler", text)),
            Test::Queue(text) => Some(like("j.queue", text)),
            Test::Correlation(text) => Some(like("j.correlation_id", text)),
            Test::Reason(text) => Some(like("coalesce(o.reason, g.gate)", text)),
            Test::Key(text) => {
                let (ordering, mut values) = like("j.ordering_key", text);
                let (idempotency, value) = like("(j.spec ->> 'idempotency_key')", text);
                values.extend(value);
                Some((format!("({ordering} OR {idempotency})"), values))
            }
            Test::Tag(text) => {
                let (tag, values) = like("tag", text);
                Some((format!("j.id IN (SELECT job FROM windlass_job_tag WHERE {tag})"), values))
            }
            Test::Tenant(tenant) => one("j.tenant = ?", tenant_bytes(tenant).to_vec().into()),
            Test::Batch(batch) => one("j.batch = ?", batch.0.as_i64().into()),
            Test::CreatedFrom(at) => one("j.created_at >= ?", at.as_micros().into()),
            Test::CreatedBefore(at) => one("j.created_at < ?", at.as_micros().into()),
            Test::EndedFrom(at) => one("o.at >= ?", at.as_micros().into()),
            Test::EndedBefore(at) => one("o.at < ?", at.as_micros().into()),
            Test::Priority(band) => {
                let (lowest, highest) = band.priorities();
                let values = vec![i64::from(lowest.0).into(), i64::from(highest.0).into()];
                Some(("j.priority BETWEEN ? AND ?".to_owned(), values))
            }
            Test::Status(statuses) => {
                let codes: Vec<String> = statuses.iter().map(|status| status.code().to_string()).collect();
                one(&format!("{STATUS} IN ({})", codes.join(",")), json_ids(&self.running_ids()).into())
            }
            Test::Replayed(true) => Some(("d.replayed_at IS NOT NULL".to_owned(), Vec::new())),
            Test::Replayed(false) => Some(("d.replayed_at IS NULL".to_owned(), Vec::new())),
            Test::Error(_)
            | Test::Signature(_)
            | Test::Node(_)
            | Test::Attempt(..)
            | Test::Ran(_)
            | Test::Waited(_)
            | Test::Input(_) => None,
        }
    }

    /// Leaves out jobs that cannot pass; what is left is asked one by one.
    fn ask_past(&self, test: &Test, all: &mut Conditions) {
        let past = "EXISTS (SELECT 1 FROM windlass_event e WHERE e.job = j.id AND";
        match test {
            Test::Error(_) => all.parts.push(format!("(o.error IS NOT NULL OR {past} e.error IS NOT NULL))")),
            Test::Signature(signature) => {
                let part = format!("(o.error ->> 'signature' = ? OR {past} e.error ->> 'signature' = ?))");
                all.add(&part, signature.to_string());
                all.values.push(signature.to_string().into());
            }
            Test::Node(node) => {
                let held: Vec<i64> =
                    self.running.iter().filter(|(_, at)| at.node == *node).map(|(id, _)| *id).collect();
                let part = format!("(o.node = ? OR {past} e.node = ?) OR j.id IN (SELECT value FROM json_each(?)))");
                all.add(&part, node.0);
                all.values.extend([Value::from(node.0), Value::from(json_ids(&held))]);
            }
            // Most jobs have ended, and their outcome says it.
            Test::Attempt(is, than) => {
                all.add(&format!("(o.job IS NULL OR o.attempt {} ?)", sign(*is)), i64::from(*than));
            }
            Test::Ran(Took { is, than, .. }) => {
                let micros = i64::try_from(than.as_micros()).unwrap_or(i64::MAX);
                let part = "(o.job IS NULL OR o.started_at IS NULL OR max(o.at - o.started_at, 0)";
                all.add(&format!("{part} {} ?)", sign(*is)), micros);
            }
            Test::Waited(_) => all.parts.push("(o.job IS NULL OR o.attempt <= 1)".to_owned()),
            _ => {}
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
        let (pauses, nodes) = (pauses(self.conn)?, nodes::nodes(self.conn)?);
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
        let own = [record.queue.clone(), suspect_queue(&record.queue, record.recoveries)];
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
    /// What cannot be read of a job is empty, and its error says so: one that someone else has spoilt can still be found,
    /// canceled and purged.
    fn record(&self, row: &Row<'_>) -> Done<JobRecord> {
        match self.whole_record(row) {
            Err(fault) if fault.is_unreadable() => self.spoilt_record(row, fault.into()),
            read => read,
        }
    }

    fn spoilt_record(&self, row: &Row<'_>, error: Error) -> Done<JobRecord> {
        let (id, lenient) = (row.get(0)?, Lenient::default());
        let tenant = lenient.or(TenantId::ROOT, row.tenant(1));
        let (handler, queue) = (lenient.or(String::new(), row.text(2)), lenient.or(String::new(), row.text(3)));
        let created_at = lenient.or(Timestamp::default(), row.time(5));
        let mut record = JobRecord::new(job_id(id), tenant, handler, queue, created_at);
        lenient.or((), self.tell_place(id, row, &mut record));
        record.error = Some(JobError::terminal(error.code(), error));
        Ok(record)
    }

    fn whole_record(&self, row: &Row<'_>) -> Done<JobRecord> {
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
            let updated_at = row.time_opt(35)?.unwrap_or_default();
            record.progress = Some(Progress { sequence, percent, message: row.text(30)?, updated_at });
        }
        if let Some(cents) = row.get::<_, Option<i64>>(36)? {
            record.cost = Some(Cost { cents, units: row.get(37)? });
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

/// Whether a test is asked of each row, because only the whole story of a job tells.
fn asks_past(test: &Test) -> bool {
    use Test::{Attempt, Error, Node, Ran, Signature, Waited};
    matches!(test, Error(_) | Signature(_) | Node(_) | Attempt(..) | Ran(_) | Waited(_))
}

/// A text compared in SQL.
fn like(column: &str, text: &Text) -> (String, Vec<Value>) {
    match text {
        Text::Is(text) => (format!("{column} = ?"), vec![text.clone().into()]),
        Text::StartsWith(start) => (format!("instr({column}, ?) = 1"), vec![start.clone().into()]),
    }
}

fn sign(is: Ordering) -> &'static str {
    match is {
        Ordering::Less => "<",
        Ordering::Equal => "=",
        Ordering::Greater => ">",
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
pub(crate) fn counts(conn: &Connection, now: Timestamp, scope: Scope) -> Done<Counts> {
    let tenant = scope.tenant();
    let mut counts = Counts::default();
    let mut select = conn.prepare_cached(include_str!("sql/read_counts.sql"))?;
    let mut rows = select.query(params![tenant.as_ref().map(tenant_bytes), now.as_micros()])?;
    while let Some(row) = rows.next()? {
        // Sums come as floating point, which is exact far beyond what a file can hold.
        let Some(status) = readable(row.status(0))? else { continue };
        counts.add(status, row.get::<_, f64>(1)?.max(0.0) as u64);
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
    let mut rows = select.query([])?;
    let mut queues = Vec::new();
    while let Some(row) = rows.next()? {
        queues.extend(readable(row.text(0))?);
    }
    Ok(queues)
}

/// Chunks looked at for the oldest job of a queue: enough for a hint, whatever the queue holds.
const FIRST_CHUNKS: usize = 16;
