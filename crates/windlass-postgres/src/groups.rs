//! Batches and jobs that wait for others. Counts of a batch change by deltas, written by whatever ends a job and added up
//! here; what becomes of a job is decided in core, from outcomes that stay.

use std::collections::HashMap;

use async_trait::async_trait;
use serde_json::json;
use tokio_postgres::types::Type;
use windlass_core::flows::depend::Parent;
use windlass_core::store::{
    BATCH_KEPT, BATCHES_MAX, BatchAsk, BatchCounts, BatchOpened, BatchRecord, Completion, Dependent, Dependents, Edge,
    Error, Groups, NewBatch, NewPart, PartAdded, Result, Settlement, Submitted, Transition,
};
use windlass_core::{BatchId, JobId, JobSpec, OperatorRight, Scope, Status, TenantId};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::{Json, JsonText, Time, micros, seconds, sequence, tenant};
use crate::jobs::finish::storable;
use crate::jobs::submit::to_json;

/// From this many changes on, the counts of a batch are added up although it is not complete, so that reading them stays
/// cheap.
const FOLD_FROM: i64 = 256;

/// Creates a batch: `sql/groups/open_batch.sql`; batch_key.
const OPEN: &str = "select windlass.open_batch($1, $2, $3, $4, $5, $6)";

/// Adds a part: `sql/groups/add_part.sql`; batch_part_pkey.
const ADD_PART: &str = "select o_code, o_jobs, o_ids, o_duplicate from windlass.add_part($1, $2, $3, $4)";

/// Seals a batch: `sql/groups/add_part.sql`.
const SEAL: &str = "select windlass.seal_batch($1, $2)";

/// Adds up changes of counts: `sql/groups/fold.sql`; batch_delta_of, batch_sealed.
const FOLD: &str = "select windlass.fold_batches($1, $2)";

/// Completes a batch: `sql/groups/fold.sql`.
const COMPLETE: &str = "select windlass.complete_batch($1, $2)";

/// Removes old batches: `sql/groups/fold.sql`; batch_completed.
const CLEAN: &str = "select windlass.clean_batches(make_interval(secs => $1), $2)";

/// Carries out what was decided: `sql/groups/settle.sql`; gated_id.
const SETTLE: &str = "select windlass.settle($1, $2, $3, $4, $5, $6)";

#[async_trait]
impl Groups for PgStore {
    async fn open_batch(&self, batch: NewBatch) -> Result<BatchOpened> {
        let (name, key) = (storable(&batch.name), batch.key.as_deref().map(storable));
        let callback = batch.callback.as_ref().map(|callback| Json(callback.as_str()));
        let (id, max) = (batch.id.0.as_i64(), BATCHES_MAX as i32);
        let params: [Param<'_>; 6] = [
            (&id, Type::INT8),
            (&batch.tenant.0, Type::UUID),
            (&name, Type::TEXT),
            (&key, Type::TEXT),
            (&callback, Type::JSON),
            (&max, Type::INT4),
        ];
        let row = self.shared.pools.api.query_one(Access::Write, OPEN, &params).await?;
        let Some(id) = row.get::<_, Option<i64>>(0)? else { return Ok(BatchOpened::TooMany) };
        let found = list(self, Scope::Tenant(batch.tenant), &one(BatchId(JobId::from_i64(id)))).await?.pop();
        let (record, _) = found.ok_or_else(|| Error::Internal(format!("batch {id} is gone")))?;
        Ok(BatchOpened::Open(Box::new(record)))
    }

    async fn add_part(&self, part: NewPart) -> Result<PartAdded> {
        let json = to_json(&part.jobs.iter().collect::<Vec<_>>())?;
        let (json, batch, number) = (Json(&json), part.batch.0.as_i64(), i64::from(part.part));
        let params: [Param<'_>; 4] =
            [(&part.tenant.0, Type::UUID), (&batch, Type::INT8), (&number, Type::INT8), (&json, Type::JSON)];
        let row = self.shared.pools.submit.query_one(Access::Write, ADD_PART, &params).await?;
        match row.get::<_, i32>(0)? {
            0 => {
                let (ids, duplicates): (Vec<i64>, Vec<bool>) = (row.get(2)?, row.get(3)?);
                self.know_lines(&part.jobs);
                let stored = |(id, duplicate)| Submitted { id: JobId::from_i64(id), duplicate };
                Ok(PartAdded::Added(ids.into_iter().zip(duplicates).map(stored).collect()))
            }
            1 => Ok(PartAdded::Repeated(sequence(row.get::<_, Option<i64>>(1)?.unwrap_or(0)))),
            -2 => Ok(PartAdded::Sealed),
            _ => Ok(PartAdded::NotFound),
        }
    }

    async fn seal_batch(&self, tenant: TenantId, batch: BatchId) -> Result<Option<BatchRecord>> {
        let params: [Param<'_>; 2] = [(&tenant.0, Type::UUID), (&batch.0.as_i64(), Type::INT8)];
        if !self.shared.pools.api.query_one(Access::Write, SEAL, &params).await?.get::<_, bool>(0)? {
            return Ok(None);
        }
        Ok(list(self, Scope::Tenant(tenant), &one(batch)).await?.pop().map(|(record, _)| record))
    }

    async fn batches(&self, scope: Scope, ask: &BatchAsk) -> Result<Vec<BatchRecord>> {
        Ok(list(self, scope, ask).await?.into_iter().map(|(record, _)| record).collect())
    }

    async fn fold_batches(&self, batches: &[BatchId], limit: usize) -> Result<Vec<BatchRecord>> {
        fold_batches(self, batches, limit).await
    }

    async fn complete_batch(&self, completion: Completion) -> Result<bool> {
        let callback = completion.job.as_deref().map(|job| to_json(&[job])).transpose()?;
        let callback = callback.as_deref().map(Json);
        let params: [Param<'_>; 2] = [(&completion.batch.0.as_i64(), Type::INT8), (&callback, Type::JSON)];
        let done = self.shared.pools.maintain.query_one(Access::Write, COMPLETE, &params).await?.get(0)?;
        self.know_lines(completion.job.as_deref());
        Ok(done)
    }

    async fn dependents(&self, which: &Dependents, limit: usize) -> Result<Vec<Dependent>> {
        dependents(self, which, limit).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Option<Status>>> {
        settle(self, &settlements).await
    }

    async fn edges(&self, of: &[JobId], limit: usize) -> Result<Vec<Edge>> {
        let (ids, limit) = (numbers(of), i64::try_from(limit).unwrap_or(i64::MAX));
        let params: [Param<'_>; 2] = [(&ids, Type::INT8_ARRAY), (&limit, Type::INT8)];
        let rows = self.shared.pools.api.query(Access::Read, include_str!("sql/groups/edges.sql"), &params).await?;
        let edge = |row: &Row| Ok(Edge { parent: JobId::from_i64(row.get(0)?), child: JobId::from_i64(row.get(1)?) });
        rows.iter().map(edge).collect()
    }
}

fn one(batch: BatchId) -> BatchAsk {
    BatchAsk { ids: Some(vec![batch]), before: None, limit: 1 }
}

fn numbers(ids: &[JobId]) -> Vec<i64> {
    ids.iter().map(|id| id.as_i64()).collect()
}

/// Batches, each with how many changes of its counts are not folded.
async fn list(store: &PgStore, scope: Scope, ask: &BatchAsk) -> Result<Vec<(BatchRecord, i64)>> {
    let ids = ask.ids.as_ref().map(|ids| ids.iter().map(|id| id.0.as_i64()).collect::<Vec<_>>());
    let (before, limit) = (ask.before.map(|id| id.0.as_i64()), i64::try_from(ask.limit).unwrap_or(i64::MAX));
    let params: [Param<'_>; 4] =
        [(&tenant(scope), Type::UUID), (&ids, Type::INT8_ARRAY), (&before, Type::INT8), (&limit, Type::INT8)];
    let rows = store.shared.pools.api.query(Access::Read, include_str!("sql/groups/list.sql"), &params).await?;
    Ok(readable(&rows, |row| Ok((record(row)?, row.get(14)?))))
}

async fn fold_batches(store: &PgStore, batches: &[BatchId], limit: usize) -> Result<Vec<BatchRecord>> {
    let mut ids: Vec<i64> = batches.iter().map(|id| id.0.as_i64()).collect();
    if ids.is_empty() {
        ids = fold(store, &ids, limit).await?;
    }
    let ask = |ids: &[i64]| BatchAsk {
        ids: Some(ids.iter().map(|id| BatchId(JobId::from_i64(*id))).collect()),
        before: None,
        limit: ids.len(),
    };
    let found = list(store, Scope::All(OperatorRight::assume()), &ask(&ids)).await?;
    let many: Vec<i64> =
        found.iter().filter(|(_, deltas)| *deltas >= FOLD_FROM).map(|(record, _)| record.id.0.as_i64()).collect();
    if !many.is_empty() {
        fold(store, &many, limit).await?;
    }
    Ok(found.into_iter().map(|(record, _)| record).filter(BatchRecord::is_due).take(limit).collect())
}

async fn fold(store: &PgStore, ids: &[i64], limit: usize) -> Result<Vec<i64>> {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let params: [Param<'_>; 2] = [(&ids, Type::INT8_ARRAY), (&limit, Type::INT4)];
    store.shared.pools.maintain.query_one(Access::Write, FOLD, &params).await?.get(0)
}

/// Removes batches whose time is over.
pub(crate) async fn clean(store: &PgStore, limit: usize) -> Result<()> {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let params: [Param<'_>; 2] = [(&seconds(BATCH_KEPT), Type::FLOAT8), (&limit, Type::INT4)];
    store.shared.pools.maintain.query_one(Access::Write, CLEAN, &params).await.map(drop)
}

async fn dependents(store: &PgStore, which: &Dependents, limit: usize) -> Result<Vec<Dependent>> {
    let (mut of, mut these, mut after) = (Vec::new(), Vec::new(), None);
    match which {
        Dependents::Of(parents) => of = numbers(parents),
        Dependents::These(jobs) => these = numbers(jobs),
        Dependents::After(job) => after = Some(job.as_i64()),
    }
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let params: [Param<'_>; 4] =
        [(&of, Type::INT8_ARRAY), (&these, Type::INT8_ARRAY), (&after, Type::INT8), (&limit, Type::INT8)];
    let pool = &store.shared.pools.maintain;
    let rows = pool.query(Access::Read, include_str!("sql/groups/dependents.sql"), &params).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        // A spec that cannot be read says nothing: the job goes on, and the node that claims it finds out.
        let spec = row.get::<_, Option<Json<'_>>>(3)?.and_then(|spec| serde_json::from_str::<JobSpec>(spec.0).ok());
        found.push(Dependent {
            job: JobId::from_i64(row.get(0)?),
            tenant: TenantId(row.get(1)?),
            handler: row.get(2)?,
            spec: spec.unwrap_or_default(),
            parents: Vec::new(),
        });
    }
    let mut ids: Vec<i64> = found.iter().flat_map(parents_of).map(|id| id.as_i64()).collect();
    ids.sort_unstable();
    ids.dedup();
    let params: [Param<'_>; 1] = [(&ids, Type::INT8_ARRAY)];
    let rows = pool.query(Access::Read, include_str!("sql/groups/parents.sql"), &params).await?;
    let mut stand = HashMap::with_capacity(rows.len());
    for row in &rows {
        stand.insert(row.get::<_, i64>(0)?, parent(row.get(1)?));
    }
    for dependent in &mut found {
        let stands = |id: &JobId| stand.get(&id.as_i64()).copied().unwrap_or(Parent::Gone);
        dependent.parents = parents_of(dependent).iter().map(stands).collect();
    }
    Ok(found)
}

fn parents_of(dependent: &Dependent) -> &[JobId] {
    dependent.spec.after.as_deref().map(|after| after.of.as_slice()).unwrap_or_default()
}

/// What `sql/groups/parents.sql` says.
fn parent(code: i16) -> Parent {
    match code {
        -2 => Parent::Gone,
        code => Status::from_code(code).map_or(Parent::Unfinished, Parent::of),
    }
}

async fn settle(store: &PgStore, settlements: &[Settlement]) -> Result<Vec<Option<Status>>> {
    let size = settlements.len();
    let (mut ids, mut statuses) = (Vec::with_capacity(size), Vec::with_capacity(size));
    let (mut keeps, mut reasons, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    let mut follow = Vec::new();
    for (n, settlement) in settlements.iter().enumerate() {
        let (status, keep, reason, error) = match &settlement.end {
            None => (None, None, None, None),
            Some(Transition::Cancel { reason, keep }) => {
                (Some(Status::Canceled.code()), Some(micros(*keep)), Some(storable(reason)), None)
            }
            Some(Transition::DeadLetter { reason, error, keep, .. }) => {
                let error = serde_json::to_string(error).map_err(|error| Error::Internal(error.to_string()))?;
                let keep = keep.map(micros);
                (Some(Status::DeadLettered.code()), keep, Some(storable(reason)), Some(JsonText(error)))
            }
            Some(other) => return Err(Error::Internal(format!("{other:?} does not end a job"))),
        };
        ids.push(settlement.job.as_i64());
        statuses.push(status);
        keeps.push(keep);
        reasons.push(reason);
        errors.push(error);
        follow.extend(settlement.follow_up.as_ref().map(|job| json!({ "n": n + 1, "job": job })));
    }
    let follow = (!follow.is_empty()).then(|| JsonText(serde_json::Value::from(follow).to_string()));
    let params: [Param<'_>; 6] = [
        (&ids, Type::INT8_ARRAY),
        (&statuses, Type::INT2_ARRAY),
        (&keeps, Type::INT8_ARRAY),
        (&reasons, Type::TEXT_ARRAY),
        (&errors, Type::JSON_ARRAY),
        (&follow, Type::JSON),
    ];
    let row = store.shared.pools.maintain.query_one(Access::Write, SETTLE, &params).await?;
    let settled: Vec<Option<i16>> = row.get(0)?;
    store.shared.wake.wake_all();
    Ok(settled.into_iter().map(|code| code.and_then(Status::from_code)).collect())
}

fn record(row: &Row) -> Result<BatchRecord> {
    let time = |at: Option<Time>| at.map(|Time(at)| at);
    Ok(BatchRecord {
        id: BatchId(JobId::from_i64(row.get(0)?)),
        tenant: TenantId(row.get(1)?),
        name: row.get(2)?,
        key: row.get(3)?,
        callback: row.get::<_, Option<Json<'_>>>(4)?.map(|callback| callback.payload()),
        parts: sequence(row.get(5)?),
        counts: BatchCounts {
            total: sequence(row.get(6)?),
            succeeded: sequence(row.get(7)?),
            canceled: sequence(row.get(8)?),
            dead: sequence(row.get(9)?),
        },
        created_at: row.get::<_, Time>(10)?.0,
        sealed_at: time(row.get(11)?),
        completed_at: time(row.get(12)?),
        callback_job: row.get::<_, Option<i64>>(13)?.map(JobId::from_i64),
    })
}
