//! Step 4: carries out what `lifecycle` decided about attempts, each only under its fence. All plain successes is one
//! short statement; anything else one longer. Never decides: the lease row says what is accepted.

use std::collections::{BTreeSet, HashSet};

use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::Status;
use windlass_core::store::{Error, Fence, Finish, Finished, NodeId, ProgressReport, Result, Transition};
use windlass_core::{JobId, Payload};

use crate::PgStore;
use crate::connect::{Access, Param};
use crate::types::{Json, JsonText, micros};

/// Carries out transitions. Answers in order.
pub(crate) async fn finish(store: &PgStore, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
    if finishes.is_empty() {
        return Ok(Vec::new());
    }
    let batch = Batch::new(store, node, &finishes)?;
    let row = store.shared.pools.finish.query_one(Access::Write, batch.sql(), &batch.params()).await?;
    let answers = batch.answers(&row, finishes.len());
    store.know_lines(finishes.iter().filter_map(|finish| finish.follow_up.as_deref()));
    store.know_routes(&finishes);
    let keys = store.let_go(&finishes, &answers);
    pass_on(store, keys).await;
    Ok(answers)
}

/// Ordering keys to pass on: known ones, and jobs whose key this process does not know.
#[derive(Default)]
pub(crate) struct EndedKeys {
    pub(crate) tenants: Vec<Uuid>,
    pub(crate) keys: Vec<String>,
    pub(crate) unknown: Vec<i64>,
}

/// Lets the next job of each key go on. After the commit and apart from it: whoever is just submitting with a key holds
/// its row, and a finish must not wait for that. What fails here is repaired by `open_gates`.
pub(crate) async fn pass_on(store: &PgStore, ended: EndedKeys) {
    let EndedKeys { tenants, keys, unknown } = ended;
    let mut opened = 0;
    let pool = &store.shared.pools.finish;
    if !keys.is_empty() {
        let params: [Param<'_>; 2] = [(&tenants, Type::UUID_ARRAY), (&keys, Type::TEXT_ARRAY)];
        opened += count(pool.query_one(Access::Write, include_str!("sql/pass_on_keys.sql"), &params).await);
    }
    if !unknown.is_empty() {
        let params: [Param<'_>; 1] = [(&unknown, Type::INT8_ARRAY)];
        opened += count(pool.query_one(Access::Write, include_str!("sql/pass_on.sql"), &params).await);
    }
    if opened > 0 {
        store.shared.wake.wake_all();
    }
}

fn count(answer: Result<Row>) -> i32 {
    match answer {
        Ok(row) => row.get::<_, Option<i32>>(0).unwrap_or(0),
        Err(error) => {
            tracing::warn!(%error, "an ordering key was not passed on; maintenance will do it");
            0
        }
    }
}

/// The transitions as parallel arrays. Columns that no transition of the batch uses are empty.
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
    tenant: Vec<Option<Uuid>>,
    keep: Vec<Option<i64>>,
    output: Vec<Option<Json<'a>>>,
    failed: Vec<Option<i32>>,
    delay: Vec<Option<i64>>,
    text: Vec<Option<String>>,
    error: Vec<Option<JsonText>>,
    follow: Option<JsonText>,
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

impl<'a> Batch<'a> {
    pub(crate) fn new(store: &PgStore, node: NodeId, finishes: &'a [Finish]) -> Result<Self> {
        // A second finish of the same job in one call is fenced by the first.
        let mut seen = HashSet::new();
        let sent: Vec<usize> = (0..finishes.len()).filter(|n| seen.insert(finishes[*n].fence)).collect();
        let leases: BTreeSet<i64> = finishes.iter().map(|finish| finish.fence.lease.0).collect();
        let size = sent.len();
        let mut batch = Batch {
            node: node.0,
            leases: leases.into_iter().collect(),
            lease: Vec::with_capacity(size),
            id: Vec::with_capacity(size),
            attempt: Vec::with_capacity(size),
            ran: Vec::with_capacity(size),
            op: Vec::with_capacity(size),
            tenant: store.tenants_of(sent.iter().map(|n| finishes[*n].fence)),
            keep: Vec::with_capacity(size),
            output: Vec::new(),
            failed: Vec::new(),
            delay: Vec::new(),
            text: Vec::new(),
            error: Vec::new(),
            follow: None,
            sent,
        };
        let mut follow_ups = Vec::new();
        for place in 0..size {
            let finish = &finishes[batch.sent[place]];
            batch.push(place, finish)?;
            if let Some(job) = &finish.follow_up {
                follow_ups.push(FollowUp { n: place + 1, job: raw(job.as_ref())? });
            }
        }
        if !follow_ups.is_empty() {
            batch.follow = Some(JsonText(raw(&follow_ups)?.get().to_owned()));
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
                (op::SUCCEED, Some(*keep))
            }
            Transition::Retry { failed, delay, error } => {
                set(&mut self.failed, place, Some(i32::from(*failed)));
                set(&mut self.delay, place, Some(micros(*delay)));
                set(&mut self.error, place, Some(JsonText(raw(error)?.get().to_owned())));
                (op::RETRY, None)
            }
            Transition::DeadLetter { reason, error } => {
                set(&mut self.text, place, Some(reason.clone()));
                set(&mut self.error, place, Some(JsonText(raw(error)?.get().to_owned())));
                (op::DEAD_LETTER, None)
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
        self.op.push(op);
        self.keep.push(keep.map(micros));
        Ok(())
    }

    fn all_succeeded(&self) -> bool {
        self.follow.is_none() && self.op.iter().all(|op| *op == op::SUCCEED)
    }

    pub(crate) fn sql(&self) -> &'static str {
        match self.all_succeeded() {
            true => include_str!("sql/finish_succeeded.sql"),
            false => include_str!("sql/finish.sql"),
        }
    }

    pub(crate) fn params(&self) -> Vec<Param<'_>> {
        let mut params: Vec<Param<'_>> = vec![
            (&self.node, Type::INT8),
            (&self.leases, Type::INT8_ARRAY),
            (&self.lease, Type::INT8_ARRAY),
            (&self.id, Type::INT8_ARRAY),
            (&self.attempt, Type::INT4_ARRAY),
            (&self.ran, Type::INT8_ARRAY),
        ];
        if self.all_succeeded() {
            params.push((&self.tenant, Type::UUID_ARRAY));
            params.push((&self.keep, Type::INT8_ARRAY));
            params.push((&self.output, Type::JSON_ARRAY));
            return params;
        }
        params.push((&self.op, Type::INT2_ARRAY));
        params.push((&self.keep, Type::INT8_ARRAY));
        params.push((&self.output, Type::JSON_ARRAY));
        params.push((&self.failed, Type::INT4_ARRAY));
        params.push((&self.delay, Type::INT8_ARRAY));
        params.push((&self.text, Type::TEXT_ARRAY));
        params.push((&self.error, Type::JSON_ARRAY));
        params.push((&self.follow, Type::JSON));
        params
    }

    /// What became of each of the `total` transitions.
    pub(crate) fn answers(&self, row: &Row, total: usize) -> Vec<Finished> {
        let mut answers = vec![Finished::Fenced; total];
        let places: Vec<i32> = row.get(0);
        let statuses: Vec<i16> = row.get(1);
        for (place, status) in places.into_iter().zip(statuses) {
            let (Some(n), Some(status)) = (self.sent.get(place as usize - 1), Status::from_code(status)) else {
                continue;
            };
            answers[*n] = Finished::Accepted(status);
        }
        answers
    }
}

/// A job to store if the transition at place `n`, counted from 1, is accepted.
#[derive(serde::Serialize)]
struct FollowUp {
    n: usize,
    job: Box<RawValue>,
}

fn raw<T: serde::Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>> {
    serde_json::value::to_raw_value(value)
        .map_err(|error| Error::Internal(format!("a transition cannot be written: {error}")))
}

/// Sets a value of a column that is empty until it has one.
fn set<T>(column: &mut Vec<Option<T>>, place: usize, value: Option<T>) {
    if value.is_some() {
        column.resize_with(place, || None);
        column.push(value);
    }
}

/// Keeps the latest progress of each job that is still held.
pub(crate) async fn report_progress(store: &PgStore, node: NodeId, reports: Vec<ProgressReport>) -> Result<Vec<bool>> {
    if reports.is_empty() {
        return Ok(Vec::new());
    }
    let leases: BTreeSet<i64> = reports.iter().map(|report| report.fence.lease.0).collect();
    let leases: Vec<i64> = leases.into_iter().collect();
    let lease: Vec<i64> = reports.iter().map(|report| report.fence.lease.0).collect();
    let id: Vec<i64> = reports.iter().map(|report| report.fence.job.as_i64()).collect();
    let sequence: Vec<i64> = reports.iter().map(|report| report.progress.sequence as i64).collect();
    let percent: Vec<f32> = reports.iter().map(|report| report.progress.percent).collect();
    let message: Vec<String> = reports.iter().map(|report| storable(&report.progress.message)).collect();
    let params: [Param<'_>; 7] = [
        (&node.0, Type::INT8),
        (&leases, Type::INT8_ARRAY),
        (&lease, Type::INT8_ARRAY),
        (&id, Type::INT8_ARRAY),
        (&sequence, Type::INT8_ARRAY),
        (&percent, Type::FLOAT4_ARRAY),
        (&message, Type::TEXT_ARRAY),
    ];
    let sql = include_str!("sql/report_progress.sql");
    let row = store.shared.pools.finish.query_one(Access::Write, sql, &params).await?;
    let mut kept = vec![false; reports.len()];
    for place in row.get::<_, Vec<i32>>(0) {
        kept[place as usize - 1] = true;
    }
    Ok(kept)
}

/// PostgreSQL keeps no NUL in text; a message that has one is worth more without it than lost.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Keeps a checkpoint of a job that is still held.
pub(crate) async fn save_checkpoint(store: &PgStore, node: NodeId, fence: Fence, data: Payload) -> Result<bool> {
    let params: [Param<'_>; 4] = [
        (&node.0, Type::INT8),
        (&fence.lease.0, Type::INT8),
        (&fence.job.as_i64(), Type::INT8),
        (&Json(data.as_str()), Type::JSON),
    ];
    let sql = include_str!("sql/save_checkpoint.sql");
    Ok(store.shared.pools.finish.query_one(Access::Write, sql, &params).await?.get(0))
}

/// The ordering keys to pass on once these jobs have ended.
pub(crate) fn ended(ids: impl IntoIterator<Item = JobId>) -> EndedKeys {
    EndedKeys { unknown: ids.into_iter().map(JobId::as_i64).collect(), ..EndedKeys::default() }
}
