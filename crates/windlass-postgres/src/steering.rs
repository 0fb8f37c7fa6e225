//! What people do to jobs: cancel, replay, edit, purge, pause, resume, and the audit log of it. Called by the service. Never
//! waits for a running job: its lease row is marked, and its node carries the cancel out.

pub(crate) mod edit;

use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::edit::Edit;
use windlass_core::store::{
    CancelReply, EditReply, Error, Pause, PauseTarget, ReplayReply, ReplayedAs, Result, Steering,
};
use windlass_core::{JobId, NewJob, Scope, Status, notes};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::{Json, Time, micros, tenant};
use crate::jobs::finish::{ended, pass_on, storable};

#[async_trait]
impl Steering for PgStore {
    async fn cancel(&self, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply> {
        cancel(self, scope, id, by, reason).await
    }

    async fn replay(&self, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply> {
        replay(self, scope, id, by).await
    }

    async fn replay_as(&self, scope: Scope, id: JobId, by: &str, job: NewJob, keep: Duration) -> Result<ReplayedAs> {
        replay_as(self, scope, id, by, job, keep).await
    }

    async fn edit(&self, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply> {
        edit::edit(self, scope, id, by, edit).await
    }

    async fn purge(&self, scope: Scope, id: JobId, by: &str) -> Result<bool> {
        purge(self, scope, id, by).await
    }

    async fn pause(&self, target: &PauseTarget, by: &str, reason: &str) -> Result<()> {
        pause(self, target, by, reason).await
    }

    async fn resume(&self, target: &PauseTarget, by: &str) -> Result<bool> {
        resume(self, target, by).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        pauses(self).await
    }
}

/// What the functions of `sql/steering/` answer besides a status.
mod code {
    pub(super) const NOT_FOUND: i32 = -1;
    pub(super) const TOO_FAST: i32 = -2;
    pub(super) const CANCELED: i32 = -3;
    pub(super) const REQUESTED: i32 = -4;
    pub(super) const NOT_ENDED: i32 = -5;
    pub(super) const BLOCKED: i32 = -6;
    pub(super) const BEFORE: i32 = -7;
}

/// How many jobs a resume makes ready itself; the rest follows in maintenance.
const RESUMED_AT_ONCE: i32 = 10_000;

/// Cancels job $2 of tenant $1 (null for all): `sql/steering/cancel.sql`.
const CANCEL: &str = "select windlass.cancel($1, $2, $3, $4, $5, $6)";

pub(crate) async fn cancel(store: &PgStore, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply> {
    let (by, reason) = (storable(by), storable(reason));
    let params: [Param<'_>; 6] = [
        (&tenant(scope), Type::UUID),
        (&id.as_i64(), Type::INT8),
        (&by, Type::TEXT),
        (&reason, Type::TEXT),
        (&notes::canceled(&by, &reason), Type::TEXT),
        (&notes::cancel_requested(&by, &reason), Type::TEXT),
    ];
    let Some(row) = store.within(scope).write(id, CANCEL, &params).await? else {
        return Ok(CancelReply::NotFound);
    };
    match row.get::<_, i32>(0)? {
        code::NOT_FOUND => Ok(CancelReply::NotFound),
        code::CANCELED => {
            pass_on(store, ended([id])).await;
            Ok(CancelReply::Canceled)
        }
        code::REQUESTED => Ok(CancelReply::Requested),
        code::TOO_FAST => Err(Error::Unavailable(format!("cannot cancel job {id}: its state changes too fast"))),
        status => Ok(CancelReply::AlreadyFinished(status_of(status)?)),
    }
}

/// Puts a dead letter back to work in place: `sql/steering/replay.sql`.
const REPLAY: &str = "select windlass.replay($1, $2, $3)";

pub(crate) async fn replay(store: &PgStore, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply> {
    let params: [Param<'_>; 3] =
        [(&tenant(scope), Type::UUID), (&id.as_i64(), Type::INT8), (&storable(by), Type::TEXT)];
    let Some(row) = store.within(scope).write(id, REPLAY, &params).await? else {
        return Ok(ReplayReply::NotFound);
    };
    match row.get::<_, i32>(0)? {
        code::NOT_FOUND => Ok(ReplayReply::NotFound),
        code::NOT_ENDED => {
            let records = crate::reads::get(store, scope, &[id]).await?;
            Ok(records.first().map_or(ReplayReply::NotFound, |record| ReplayReply::NotDead(record.status)))
        }
        status => match status_of(status)? {
            Status::DeadLettered => Ok(ReplayReply::Replayed),
            status => Ok(ReplayReply::NotDead(status)),
        },
    }
}

/// Stores a job in place of a dead letter, once: `sql/steering/replay_as.sql`.
const REPLAY_AS: &str = "select o_code, o_id from windlass.replay_as($1, $2, $3, $4, $5)";

pub(crate) async fn replay_as(
    store: &PgStore,
    scope: Scope,
    id: JobId,
    by: &str,
    job: NewJob,
    keep: Duration,
) -> Result<ReplayedAs> {
    let json = serde_json::to_string(&job)
        .map_err(|error| Error::Internal(format!("cannot write job {}: {error}", job.id)))?;
    let params: [Param<'_>; 5] = [
        (&tenant(scope), Type::UUID),
        (&id.as_i64(), Type::INT8),
        (&storable(by), Type::TEXT),
        (&Json(&json), Type::JSON),
        (&micros(keep), Type::INT8),
    ];
    let Some(row) = store.within(scope).write(id, REPLAY_AS, &params).await? else {
        return Ok(ReplayedAs::NotFound);
    };
    let as_job = row.get::<_, Option<i64>>(1)?.map(JobId::from_i64);
    match (row.get::<_, i32>(0)?, as_job) {
        (code::NOT_FOUND, _) => Ok(ReplayedAs::NotFound),
        (code::BEFORE, Some(as_job)) => Ok(ReplayedAs::Before(as_job)),
        (code::NOT_ENDED, _) => {
            let records = crate::reads::get(store, scope, &[id]).await?;
            Ok(records.first().map_or(ReplayedAs::NotFound, |record| ReplayedAs::NotDead(record.status)))
        }
        (status, as_job) => match (status_of(status)?, as_job) {
            (Status::DeadLettered, Some(as_job)) => {
                store.know_lines(std::iter::once(&job));
                Ok(ReplayedAs::New(as_job))
            }
            (status, _) => Ok(ReplayedAs::NotDead(status)),
        },
    }
}

/// Removes an ended job now: `sql/steering/purge.sql`.
const PURGE: &str = "select windlass.purge($1, $2, $3)";

pub(crate) async fn purge(store: &PgStore, scope: Scope, id: JobId, by: &str) -> Result<bool> {
    let params: [Param<'_>; 3] =
        [(&tenant(scope), Type::UUID), (&id.as_i64(), Type::INT8), (&storable(by), Type::TEXT)];
    let row = store.within(scope).write(id, PURGE, &params).await?;
    row.map_or(Ok(false), |row| row.get(0))
}

/// Pauses a target; pausing twice keeps the first: `sql/steering/pause.sql`.
const PAUSE: &str = "select windlass.pause($1, $2, $3, $4)";

pub(crate) async fn pause(store: &PgStore, target: &PauseTarget, by: &str, reason: &str) -> Result<()> {
    let params: [Param<'_>; 4] = [
        (&target.name(), Type::TEXT),
        (&tenant_of(target), Type::UUID),
        (&storable(by), Type::TEXT),
        (&storable(reason), Type::TEXT),
    ];
    store.shared.pools.api.query(Access::Write, PAUSE, &params).await?;
    Ok(())
}

/// Ends a pause: `sql/steering/pause.sql`.
const RESUME: &str = "select windlass.resume($1, $2, $3)";

pub(crate) async fn resume(store: &PgStore, target: &PauseTarget, by: &str) -> Result<bool> {
    let params: [Param<'_>; 3] =
        [(&target.name(), Type::TEXT), (&tenant_of(target), Type::UUID), (&storable(by), Type::TEXT)];
    let resumed: bool = store.shared.pools.api.query_one(Access::Write, RESUME, &params).await?.get(0)?;
    if resumed {
        // In a transaction of its own: the pause is over whether or not its jobs are released at once.
        let params: [Param<'_>; 1] = [(&RESUMED_AT_ONCE, Type::INT4)];
        if let Err(error) = store.shared.pools.api.query(Access::Write, crate::upkeep::OPEN_PAUSES, &params).await {
            tracing::warn!(%error, "could not release the jobs of an ended pause; maintenance will do it");
        }
    }
    Ok(resumed)
}

const PAUSES: &str = include_str!("sql/steering/pauses.sql");

pub(crate) async fn pauses(store: &PgStore) -> Result<Vec<Pause>> {
    let rows = store.shared.pools.api.query(Access::Read, PAUSES, &[]).await?;
    Ok(pauses_of(rows))
}

/// The pauses that may hold jobs of a scope.
pub(crate) async fn pauses_within(store: &PgStore, scope: Scope) -> Result<Vec<Pause>> {
    Ok(pauses_of(store.within(scope).query(PAUSES, &[]).await?))
}

fn pauses_of(rows: Vec<Row>) -> Vec<Pause> {
    let pause = |row: &Row| {
        let target = PauseTarget::parse(row.get(0)?);
        let (by, reason, at) = (row.get(1)?, row.get(2)?, row.get::<_, Time>(3)?.0);
        Ok(target.map(|target| Pause { target, by, reason, at }))
    };
    readable(&rows, pause).into_iter().flatten().collect()
}

fn tenant_of(target: &PauseTarget) -> Option<Uuid> {
    match target {
        PauseTarget::Tenant(tenant) => Some(tenant.0),
        _ => None,
    }
}

fn status_of(code: i32) -> Result<Status> {
    i16::try_from(code)
        .ok()
        .and_then(Status::from_code)
        .ok_or_else(|| Error::Internal(format!("unknown status {code}")))
}
