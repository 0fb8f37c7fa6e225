//! What people do to jobs: cancel, replay, edit, purge, pause.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::Result;
use super::base::Base;
use crate::life::lifecycle::Gate;
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::{NewJob, Status};
use crate::model::tenant::{Scope, TenantId};
use crate::operate::edit::Edit;

/// What people do to jobs: cancel, replay, edit, purge, pause.
#[async_trait]
pub trait Steering: Base {
    /// Cancels a job: at once while it waits; by a request that its node carries out while it runs.
    async fn cancel(&self, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply>;

    /// Puts a dead letter back to work in place, with no failures and no recoveries counted. Marks it replayed.
    async fn replay(&self, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply>;

    /// Stores `job` in place of a dead letter of the same tenant, within its quotas, and marks the dead letter as replayed
    /// by it, in one step; the letter is purged after `keep`. Happens once: after that, nothing is stored and the answer
    /// is the first one's job.
    async fn replay_as(&self, scope: Scope, id: JobId, by: &str, job: NewJob, keep: Duration) -> Result<ReplayedAs>;

    /// Changes a waiting job: input, priority and start, as [`after_edit`](crate::operate::edit::after_edit) decides, with an
    /// entry in its history and `JOB_EDITED` in the audit log. Under the lock of its place: a claim has the job before,
    /// or all of the edit. Larger input is counted against a quota, never refused.
    async fn edit(&self, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply>;

    /// Removes an ended job now. False if it is not there or has not ended.
    async fn purge(&self, scope: Scope, id: JobId, by: &str) -> Result<bool>;

    /// Stops starting jobs of `target`, until it is resumed. Running ones go on. Pausing twice keeps the first.
    async fn pause(&self, target: &PauseTarget, by: &str, reason: &str) -> Result<()>;

    /// Ends a pause; false if there was none. Jobs it parked become ready again (also by [`super::Store::open_gates`]).
    async fn resume(&self, target: &PauseTarget, by: &str) -> Result<bool>;

    /// The pauses in force.
    async fn pauses(&self) -> Result<Vec<Pause>>;
}

/// What a cancel did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReply {
    /// It waited and is canceled now.
    Canceled,
    /// It runs; its node has been asked, and no completion is accepted any more.
    Requested,
    /// It had ended before.
    AlreadyFinished(Status),
    /// There is no such job in the scope.
    NotFound,
}

/// What a replay did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayReply {
    /// The job waits again.
    Replayed,
    /// It is not a dead letter.
    NotDead(Status),
    /// There is no such job in the scope.
    NotFound,
}

/// What a replay as another job did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayedAs {
    /// The job that was handed in is stored.
    New(JobId),
    /// It has been replayed before, as this job. Nothing was written.
    Before(JobId),
    /// It is not a dead letter.
    NotDead(Status),
    /// There is no such job in the scope.
    NotFound,
}

/// What an edit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditReply {
    /// The job waits as edited, in this status.
    Edited(Status),
    /// It was to start now but waits behind this gate. Nothing was written.
    Blocked(Gate),
    /// It runs or has ended. Nothing was written.
    NotWaiting(Status),
    /// There is no such job in the scope.
    NotFound,
}

/// What can be paused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseTarget {
    /// Everything: the online gate.
    All,
    /// One handler.
    Handler(String),
    /// One tenant.
    Tenant(TenantId),
}

impl PauseTarget {
    /// The text stores keep: `all`, `handler:…`, `tenant:…`.
    pub fn name(&self) -> String {
        match self {
            PauseTarget::All => "all".to_owned(),
            PauseTarget::Handler(handler) => format!("handler:{handler}"),
            PauseTarget::Tenant(tenant) => format!("tenant:{tenant}"),
        }
    }

    /// From the text stores keep.
    pub fn parse(name: &str) -> Option<PauseTarget> {
        match name.split_once(':') {
            None if name == "all" => Some(PauseTarget::All),
            Some(("handler", handler)) if !handler.is_empty() => Some(PauseTarget::Handler(handler.to_owned())),
            Some(("tenant", tenant)) => TenantId::parse(tenant).ok().map(PauseTarget::Tenant),
            _ => None,
        }
    }
}

/// A pause in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// What is paused.
    pub target: PauseTarget,
    /// By whom.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub at: Timestamp,
}

/// The calls of [`Steering`](crate::store::Steering), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! steering_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Steering:
            cancel(scope: $crate::Scope, id: $crate::JobId, by: &str, reason: &str) -> $crate::store::Result<$crate::store::CancelReply>;
            replay(scope: $crate::Scope, id: $crate::JobId, by: &str) -> $crate::store::Result<$crate::store::ReplayReply>;
            replay_as(scope: $crate::Scope, id: $crate::JobId, by: &str, job: $crate::NewJob, keep: ::std::time::Duration) -> $crate::store::Result<$crate::store::ReplayedAs>;
            edit(scope: $crate::Scope, id: $crate::JobId, by: &str, edit: &$crate::Edit) -> $crate::store::Result<$crate::store::EditReply>;
            purge(scope: $crate::Scope, id: $crate::JobId, by: &str) -> $crate::store::Result<bool>;
            pause(target: &$crate::store::PauseTarget, by: &str, reason: &str) -> $crate::store::Result<()>;
            resume(target: &$crate::store::PauseTarget, by: &str) -> $crate::store::Result<bool>;
            pauses() -> $crate::store::Result<Vec<$crate::store::Pause>>;
        }
    };
}
