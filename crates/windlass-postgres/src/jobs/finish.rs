//! Step 4: carries out what `lifecycle` decided about attempts, each only under its fence. Plain successes are one short
//! statement for whole parts of leases; anything else is one longer. Never decides: the lease row says what is accepted.

use std::borrow::Cow;
use std::collections::BTreeSet;

use foldhash::HashSet;
use serde_json::value::RawValue;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::JobId;
use windlass_core::Status;
use windlass_core::store::{AuditEntry, Error, Finish, Finished, NodeId, Result, Transition};

use crate::PgStore;
use crate::ground::connect::{Access, Param, is_ended_job};
use crate::ground::rows::Row;
use crate::ground::types::{Json, JsonText, micros};

/// Carries out transitions. Answers in order.
pub(crate) async fn finish(store: &PgStore, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
    let pool = &store.shared.pools.finish;
    let mut answers = vec![Finished::Fenced; finishes.len()];
    let (successes, mut others) = Successes::pick(store, node, &finishes);
    let mut split = false;
    if let Some(successes) = successes {
        match pool.query_one(Access::Write, &successes.sql(), &successes.params()).await {
            Ok(row) => {
                split = true;
                others.extend(successes.answers(&row, &mut answers)?);
            }
            // The other way finds out which, and lets go of it.
            Err(error) if is_ended_job(&error) => others.extend(&successes.sent),
            Err(error) => return Err(error),
        }
    }
    if !others.is_empty() {
        let batch = Batch::new(store, node, &finishes, others)?;
        let row = pool.query_one(Access::Write, &batch.sql(), &batch.params()).await;
        batch.answers(&row.map_err(|error| if split { partly_written(error) } else { error })?, &mut answers)?;
    }
    store.know_lines(finishes.iter().filter_map(|finish| finish.follow_up.as_deref()));
    store.know_routes(&finishes);
    let keys = store.let_go(&finishes, &answers);
    pass_on(store, keys).await;
    Ok(answers)
}

/// The successes have been committed: whoever repeats the call finds them fenced, and must know that they may be his.
fn partly_written(error: Error) -> Error {
    match error {
        Error::Unavailable(why) => Error::Unknown(format!("only a part was written: {why}")),
        other => other,
    }
}

/// Ordering keys to pass on: known ones, and jobs whose key this process does not know.
#[derive(Default)]
pub(crate) struct EndedKeys {
    pub(crate) tenants: Vec<Uuid>,
    pub(crate) keys: Vec<String>,
    pub(crate) unknown: Vec<i64>,
}

/// Gives ordering keys of ended jobs to the next ones: `sql/jobs/pass_on.sql`; gated_gate.
pub(crate) const PASS_ON_KEYS: &str = "select windlass.pass_on_keys($1, $2)";

/// The same for jobs whose key the caller does not know: `sql/jobs/pass_on.sql`.
const PASS_ON: &str = "select windlass.pass_on($1)";

/// Lets the next job of each key go on. After the commit and apart from it: whoever is just submitting with a key holds
/// its row, and a finish must not wait for that. What fails here is repaired by `open_gates`.
pub(crate) async fn pass_on(store: &PgStore, ended: EndedKeys) {
    let EndedKeys { tenants, keys, unknown } = ended;
    let mut opened = 0;
    let pool = &store.shared.pools.finish;
    if !keys.is_empty() {
        let params: [Param<'_>; 2] = [(&tenants, Type::UUID_ARRAY), (&keys, Type::TEXT_ARRAY)];
        opened += count(pool.query_one(Access::Write, PASS_ON_KEYS, &params).await);
    }
    if !unknown.is_empty() {
        let params: [Param<'_>; 1] = [(&unknown, Type::INT8_ARRAY)];
        opened += count(pool.query_one(Access::Write, PASS_ON, &params).await);
    }
    if opened > 0 {
        store.shared.wake.wake_all();
    }
}

fn count(answer: Result<Row>) -> i32 {
    match answer.and_then(|row| row.get::<_, Option<i32>>(0)) {
        Ok(opened) => opened.unwrap_or(0),
        Err(error) => {
            tracing::warn!(%error, "could not pass on an ordering key; maintenance will do it");
            0
        }
    }
}

/// Plain successes, those of one part of a lease side by side.
pub(crate) struct Successes<'a> {
    node: i64,
    /// The places in `finishes` of the jobs that are sent, part by part.
    sent: Vec<usize>,
    leases: Vec<i64>,
    parts: Vec<i16>,
    /// The first and last job of each part, counted from 1.
    lo: Vec<i32>,
    hi: Vec<i32>,
    id: Vec<i64>,
    ran: Vec<i64>,
    keep: Vec<i64>,
    output: Vec<Option<Json<'a>>>,
    /// The batch that counts each job; empty if none has one.
    batches: Vec<Option<i64>>,
    count_places: Vec<i32>,
    count_tenants: Vec<Uuid>,
    count_jobs: Vec<i64>,
    count_keep: Vec<i64>,
    /// Whether status events are kept with them.
    feed: bool,
}

/// From this many successes on, they are worth a statement, and a commit, of their own beside the other transitions.
const SPLIT_FROM: usize = 64;

/// Ends plain successes, by parts of leases: `sql/jobs/finish_succeeded.sql`; lease_pkey.
const SUCCEEDED: &str =
    "select windlass.finish_succeeded($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) as places";

/// What is written besides, of what is accepted: status events; the outcomes tell the attempts.
const SUCCEEDED_FEED: &str = ",
e as (
    insert into windlass.feed (id, status)
    select ($6)[j.n], 6 from f cross join unnest(f.places) p(place)
    cross join lateral generate_series(($4)[p.place], ($5)[p.place]) j(n))";

/// And the counts of batches, those of $14.
const SUCCEEDED_COUNTED: &str = ",
m as (
    insert into windlass.batch_delta (batch_id, succeeded, canceled, dead)
    select ($14)[j.n], count(*), 0, 0 from f cross join unnest(f.places) p(place)
    cross join lateral generate_series(($4)[p.place], ($5)[p.place]) j(n)
    where ($14)[j.n] is not null group by 1)";

/// A call with what is written besides in the same statement; its answer is `columns`.
fn besides(call: &'static str, columns: &str, more: &[&str]) -> Cow<'static, str> {
    match more.iter().all(|more| more.is_empty()) {
        true => Cow::Borrowed(call),
        false => Cow::Owned(format!("with f as materialized ({call}){}\nselect {columns} from f", more.concat())),
    }
}

impl<'a> Successes<'a> {
    /// The plain successes whose place in a lease is known, and the places of the other transitions.
    pub(crate) fn pick(store: &PgStore, node: NodeId, finishes: &'a [Finish]) -> (Option<Self>, Vec<usize>) {
        let places = store.places_of(finishes.iter().map(|finish| finish.fence));
        let is_plain = |finish: &Finish| {
            let extra = finish.follow_up.is_some() || finish.cost.is_some() || finish.audit;
            !extra && matches!(finish.transition, Transition::Succeed { .. })
        };
        let (mut sent, others): (Vec<usize>, Vec<usize>) =
            (0..finishes.len()).partition(|n| places[*n].is_some() && is_plain(&finishes[*n]));
        if sent.is_empty() || (!others.is_empty() && sent.len() < SPLIT_FROM) {
            return (None, (0..finishes.len()).collect());
        }
        // In the order of the lease, so that the server sees at once that a part has ended whole.
        let key = |n: &usize| {
            let (part, place) = places[*n].map_or((0, 0), |(part, place, _)| (part, place));
            (finishes[*n].fence.lease.0, part, place)
        };
        sent.sort_unstable_by_key(key);
        // A second finish of the same job in one call is fenced by the first.
        sent.dedup_by_key(|n| key(n));
        let mut successes = Successes {
            node: node.0,
            leases: Vec::new(),
            parts: Vec::new(),
            lo: Vec::new(),
            hi: Vec::new(),
            id: Vec::with_capacity(sent.len()),
            ran: Vec::with_capacity(sent.len()),
            keep: Vec::new(),
            output: Vec::new(),
            batches: Vec::new(),
            count_places: Vec::new(),
            count_tenants: Vec::new(),
            count_jobs: Vec::new(),
            count_keep: Vec::new(),
            feed: store.feed_wanted(),
            sent: Vec::new(),
        };
        for n in &sent {
            if let Some((part, _, tenant)) = places[*n] {
                successes.push(&finishes[*n], part, tenant);
            }
        }
        if successes.keep.iter().all(|keep| *keep == successes.keep[0]) {
            successes.keep.truncate(1);
            successes.count_keep.truncate(1);
        }
        successes.sent = sent;
        (Some(successes), others)
    }

    fn push(&mut self, finish: &'a Finish, part: i16, tenant: Uuid) {
        let Transition::Succeed { output, keep } = &finish.transition else { return };
        let lease = finish.fence.lease.0;
        set(&mut self.output, self.id.len(), output.as_ref().map(|output| Json(output.as_str())));
        set(&mut self.batches, self.id.len(), finish.batch.map(|batch| batch.0.as_i64()));
        self.id.push(finish.fence.job.as_i64());
        self.ran.push(micros(finish.ran));
        let keep = micros(*keep);
        let kept_alike = self.keep.last() == Some(&keep);
        self.keep.push(keep);
        let jobs = self.id.len() as i32;
        if (self.leases.last(), self.parts.last()) != (Some(&lease), Some(&part)) {
            self.leases.push(lease);
            self.parts.push(part);
            self.lo.push(jobs);
            self.hi.push(jobs);
        }
        if let Some(hi) = self.hi.last_mut() {
            *hi = jobs;
        }
        let place = self.leases.len() as i32;
        match (self.count_places.last(), self.count_tenants.last(), self.count_jobs.last_mut()) {
            (Some(last), Some(counted), Some(jobs)) if *last == place && *counted == tenant && kept_alike => *jobs += 1,
            _ => {
                self.count_keep.push(keep);
                self.count_places.push(place);
                self.count_tenants.push(tenant);
                self.count_jobs.push(1);
            }
        }
    }

    pub(crate) fn sql(&self) -> Cow<'static, str> {
        let feed = if self.feed { SUCCEEDED_FEED } else { "" };
        let counted = if self.batches.is_empty() { "" } else { SUCCEEDED_COUNTED };
        besides(SUCCEEDED, "places", &[feed, counted])
    }

    pub(crate) fn params(&self) -> Vec<Param<'_>> {
        let mut params: Vec<Param<'_>> = vec![
            (&self.node, Type::INT8),
            (&self.leases, Type::INT8_ARRAY),
            (&self.parts, Type::INT2_ARRAY),
            (&self.lo, Type::INT4_ARRAY),
            (&self.hi, Type::INT4_ARRAY),
            (&self.id, Type::INT8_ARRAY),
            (&self.ran, Type::INT8_ARRAY),
            (&self.keep, Type::INT8_ARRAY),
            (&self.output, Type::JSON_ARRAY),
            (&self.count_places, Type::INT4_ARRAY),
            (&self.count_tenants, Type::UUID_ARRAY),
            (&self.count_jobs, Type::INT8_ARRAY),
            (&self.count_keep, Type::INT8_ARRAY),
        ];
        if !self.batches.is_empty() {
            params.push((&self.batches, Type::INT8_ARRAY));
        }
        params
    }

    /// Notes what was accepted. Answers the places of the others: what became of them takes a closer look.
    pub(crate) fn answers(&self, row: &Row, answers: &mut [Finished]) -> Result<Vec<usize>> {
        let mut left: Vec<usize> = Vec::new();
        let mut accepted = vec![false; self.leases.len()];
        for place in row.get::<_, Vec<i32>>(0)? {
            mark(&mut accepted, place);
        }
        for (part, accepted) in accepted.into_iter().enumerate() {
            for n in &self.sent[self.lo[part] as usize - 1..self.hi[part] as usize] {
                match accepted {
                    true => answers[*n] = Finished::Accepted(Status::Succeeded),
                    false => left.push(*n),
                }
            }
        }
        Ok(left)
    }
}

/// Transitions of any kind as parallel arrays. Columns that no transition of the batch uses are empty.
pub(crate) struct Batch<'a> {
    node: i64,
    /// The places of the transitions that are sent, in `finishes`.
    sent: Vec<usize>,
    leases: Vec<i64>,
    lease: Vec<i64>,
    id: Vec<i64>,
    attempt: Vec<i32>,
    ran: Vec<i64>,
    op: Vec<i16>,
    keep: Vec<Option<i64>>,
    output: Vec<Option<Json<'a>>>,
    failed: Vec<Option<i32>>,
    delay: Vec<Option<i64>>,
    text: Vec<Option<String>>,
    error: Vec<Option<JsonText>>,
    /// Set for a job no attempt at which has begun.
    fresh: Vec<Option<bool>>,
    follow: Option<JsonText>,
    /// The batch that counts each job; empty if none has one.
    batches: Vec<Option<i64>>,
    /// What attempts have cost; without it, nothing of that is sent.
    cost: Option<JsonText>,
    /// Whether status events are kept with them.
    feed: bool,
}

/// What the SQL calls the transitions.
mod op {
    pub(super) const SUCCEED: i16 = 0;
    pub(super) const RETRY: i16 = 1;
    pub(super) const DEAD_LETTER: i16 = 2;
    pub(super) const CANCEL: i16 = 3;
    pub(super) const SNOOZE: i16 = 4;
    pub(super) const RELEASE: i16 = 5;
    pub(super) const PARK: i16 = 6;
    pub(super) const ROUTE: i16 = 7;
}

/// Ends attempts in any way: `sql/jobs/finish.sql`; lease_pkey, and the jobs' primary key.
const FINISH: &str =
    "select o_n, o_status from windlass.finish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";

/// The same where some of them have cost something: `sql/jobs/finish_costed.sql`.
const COSTED: &str = "select o_n, o_status from windlass.finish_costed($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, \
    $13, $14, $15, $16)";

/// What is written besides, of what is accepted: status events.
const FINISH_FEED: &str = ",
e as (
    insert into windlass.feed (id, status, attempt)
    select ($4)[u.n], u.status, ($5)[u.n] from f cross join unnest(f.o_n, f.o_status) u(n, status) order by u.n)";

/// And the counts of batches, those of the parameter that takes the place of `$B`.
const FINISH_COUNTED: &str = ",
m as (
    insert into windlass.batch_delta (batch_id, succeeded, canceled, dead)
    select ($B)[u.n], count(*) filter (where u.status = 6), count(*) filter (where u.status = 7),
           count(*) filter (where u.status = 8)
    from f cross join unnest(f.o_n, f.o_status) u(n, status)
    where ($B)[u.n] is not null and u.status in (6, 7, 8) group by 1)";

impl<'a> Batch<'a> {
    /// The transitions of `finishes` at these places.
    pub(crate) fn new(store: &PgStore, node: NodeId, finishes: &'a [Finish], places: Vec<usize>) -> Result<Self> {
        // A second finish of the same job in one call is fenced by the first.
        let mut seen = HashSet::default();
        let sent: Vec<usize> = places.into_iter().filter(|n| seen.insert(finishes[*n].fence)).collect();
        let leases: BTreeSet<i64> = sent.iter().map(|n| finishes[*n].fence.lease.0).collect();
        let size = sent.len();
        let mut batch = Batch {
            node: node.0,
            leases: leases.into_iter().collect(),
            lease: Vec::with_capacity(size),
            id: Vec::with_capacity(size),
            attempt: Vec::with_capacity(size),
            ran: Vec::with_capacity(size),
            op: Vec::with_capacity(size),
            keep: Vec::with_capacity(size),
            output: Vec::new(),
            failed: Vec::new(),
            delay: Vec::new(),
            text: Vec::new(),
            error: Vec::new(),
            fresh: Vec::new(),
            follow: None,
            batches: Vec::new(),
            cost: None,
            feed: store.feed_wanted(),
            sent,
        };
        let mut follow_ups = Vec::new();
        let mut costs = Vec::new();
        for place in 0..size {
            let finish = &finishes[batch.sent[place]];
            batch.push(place, finish)?;
            set(&mut batch.batches, place, finish.batch.map(|batch| batch.0.as_i64()));
            if let Some(job) = &finish.follow_up {
                follow_ups.push(FollowUp { n: place + 1, job: raw(job.as_ref())? });
            }
            if let Some(windlass_core::Cost { cents, units }) = finish.cost {
                costs.push(Costed { n: place + 1, cents, units });
            }
        }
        if !follow_ups.is_empty() {
            batch.follow = Some(JsonText(raw(&follow_ups)?.get().to_owned()));
        }
        if !costs.is_empty() {
            batch.cost = Some(JsonText(raw(&costs)?.get().to_owned()));
        }
        Ok(batch)
    }

    fn push(&mut self, place: usize, finish: &'a Finish) -> Result<()> {
        self.lease.push(finish.fence.lease.0);
        self.id.push(finish.fence.job.as_i64());
        self.attempt.push(i32::from(finish.attempt));
        self.ran.push(micros(finish.ran));
        let (op, keep) = match &finish.transition {
            Transition::Succeed { output, keep } => {
                set(&mut self.output, place, output.as_ref().map(|output| Json(output.as_str())));
                set(&mut self.text, place, finish.audit.then(|| AuditEntry::SUCCEEDED.to_owned()));
                (op::SUCCEED, Some(*keep))
            }
            Transition::Retry { failed, delay, error } => {
                set(&mut self.failed, place, Some(i32::from(*failed)));
                set(&mut self.delay, place, Some(micros(*delay)));
                set(&mut self.error, place, Some(JsonText(raw(error)?.get().to_owned())));
                (op::RETRY, None)
            }
            Transition::DeadLetter { failed, reason, error, keep } => {
                set(&mut self.failed, place, Some(i32::from(*failed)));
                set(&mut self.text, place, Some(reason.clone()));
                set(&mut self.error, place, Some(JsonText(raw(error)?.get().to_owned())));
                (op::DEAD_LETTER, *keep)
            }
            Transition::Cancel { reason, keep } => {
                set(&mut self.text, place, Some(reason.clone()));
                (op::CANCEL, Some(*keep))
            }
            Transition::Snooze { delay } => {
                set(&mut self.delay, place, Some(micros(*delay)));
                (op::SNOOZE, None)
            }
            Transition::Release => (op::RELEASE, None),
            Transition::Park { gate } => {
                set(&mut self.text, place, Some(gate.name()));
                (op::PARK, None)
            }
            Transition::Route { queue } => {
                set(&mut self.text, place, Some(queue.clone()));
                (op::ROUTE, None)
            }
        };
        set(&mut self.fresh, place, (!finish.resumed).then_some(true));
        self.op.push(op);
        self.keep.push(keep.map(micros));
        Ok(())
    }

    pub(crate) fn sql(&self) -> Cow<'static, str> {
        let (call, next) = if self.cost.is_some() { (COSTED, "$17") } else { (FINISH, "$16") };
        let feed = if self.feed { FINISH_FEED } else { "" };
        let counted = if self.batches.is_empty() { String::new() } else { FINISH_COUNTED.replace("$B", next) };
        besides(call, "o_n, o_status", &[feed, &counted])
    }

    pub(crate) fn params(&self) -> Vec<Param<'_>> {
        let mut params: Vec<Param<'_>> = vec![
            (&self.node, Type::INT8),
            (&self.leases, Type::INT8_ARRAY),
            (&self.lease, Type::INT8_ARRAY),
            (&self.id, Type::INT8_ARRAY),
            (&self.attempt, Type::INT4_ARRAY),
            (&self.ran, Type::INT8_ARRAY),
            (&self.op, Type::INT2_ARRAY),
            (&self.keep, Type::INT8_ARRAY),
            (&self.output, Type::JSON_ARRAY),
            (&self.failed, Type::INT4_ARRAY),
            (&self.delay, Type::INT8_ARRAY),
            (&self.text, Type::TEXT_ARRAY),
            (&self.error, Type::JSON_ARRAY),
            (&self.fresh, Type::BOOL_ARRAY),
            (&self.follow, Type::JSON),
        ];
        if let Some(cost) = &self.cost {
            params.push((cost, Type::JSON));
        }
        if !self.batches.is_empty() {
            params.push((&self.batches, Type::INT8_ARRAY));
        }
        params
    }

    /// Notes what became of the transitions; what is not mentioned was fenced.
    pub(crate) fn answers(&self, row: &Row, answers: &mut [Finished]) -> Result<()> {
        let places: Vec<i32> = row.get(0)?;
        let statuses: Vec<i16> = row.get(1)?;
        for (place, status) in places.into_iter().zip(statuses) {
            let sent = usize::try_from(place - 1).ok().and_then(|place| self.sent.get(place));
            let (Some(n), Some(status)) = (sent, Status::from_code(status)) else { continue };
            answers[*n] = Finished::Accepted(status);
        }
        Ok(())
    }
}

/// A job to store if the transition at place `n`, counted from 1, is accepted.
#[derive(serde::Serialize)]
struct FollowUp {
    n: usize,
    job: Box<RawValue>,
}

/// What the attempt at place `n`, counted from 1, has cost.
#[derive(serde::Serialize)]
struct Costed {
    n: usize,
    cents: i64,
    units: i64,
}

fn raw<T: serde::Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>> {
    serde_json::value::to_raw_value(value)
        .map_err(|error| Error::Internal(format!("cannot write a transition: {error}")))
}

/// Sets a value of a column that is empty until it has one.
fn set<T>(column: &mut Vec<Option<T>>, place: usize, value: Option<T>) {
    if value.is_some() {
        column.resize_with(place, || None);
        column.push(value);
    }
}

/// Marks a place that an answer names, counted from 1.
pub(crate) fn mark(places: &mut [bool], place: i32) {
    if let Some(marked) = usize::try_from(place - 1).ok().and_then(|place| places.get_mut(place)) {
        *marked = true;
    }
}

/// PostgreSQL keeps no NUL in text; a message that has one is worth more without it than lost.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The ordering keys to pass on once these jobs have ended.
pub(crate) fn ended(ids: impl IntoIterator<Item = JobId>) -> EndedKeys {
    EndedKeys { unknown: ids.into_iter().map(JobId::as_i64).collect(), ..EndedKeys::default() }
}
