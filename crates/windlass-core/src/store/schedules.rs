//! Schedules, and what they start. A schedule fires in the transaction that stores its jobs, so that each nominal time is
//! fired once whoever dies in between.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use super::base::Base;
use super::jobs::Submitted;
use super::records::AuditEntry;
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::NewJob;
use crate::model::payload::Payload;
use crate::model::tenant::{Scope, TenantId};

/// Schedules, and what they start.
#[async_trait]
pub trait Schedules: Base {
    /// Schedules in the scope, by tenant and name.
    async fn schedules(&self, scope: Scope, ask: ScheduleAsk) -> Result<Vec<ScheduleRecord>>;

    /// Changes one schedule with its line in the audit log, or nothing. Every change gives it a new version.
    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChanged>;

    /// Schedules whose next time has come, the longest due first, at most `limit`; without those that are paused.
    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules>;

    /// Fires schedules, if the lease [`SCHEDULER`] is still held under `epoch`: for each that has the version and the due
    /// time it was read with, stores its jobs and its next time in one transaction. Tenants' quotas hold as for a submit,
    /// and then nothing of the call is written. Answers in order, or `None` if the lease is lost.
    async fn fire(&self, epoch: u64, firings: Vec<Firing>) -> Result<Option<Vec<Fired>>>;
}

/// The lease of the node that fires schedules.
pub const SCHEDULER: &str = "schedules";

/// How many schedules a tenant may have: far more than people look after, few enough that a loop cannot fill the table.
pub const SCHEDULES_MAX: usize = 10_000;

/// Which schedules to read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleAsk {
    /// Only the one with this name.
    pub name: Option<String>,
    /// Those after this one, in the order of tenant and name.
    pub after: Option<(TenantId, String)>,
    /// How many at most.
    pub limit: usize,
}

impl ScheduleAsk {
    /// The first `limit` ones.
    pub fn page(limit: usize) -> Self {
        ScheduleAsk { name: None, after: None, limit }
    }

    /// The one of each tenant in the scope that has this name.
    pub fn named(name: impl Into<String>) -> Self {
        ScheduleAsk { name: Some(name.into()), after: None, limit: SCHEDULES_MAX }
    }
}

/// A schedule as a store has it.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleRecord {
    /// Never reused; the keys of its jobs begin with it.
    pub id: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Unique within the tenant.
    pub name: String,
    /// Grows with every change, and not when it fires.
    pub version: u64,
    /// What the service knows of it, as JSON.
    pub spec: Payload,
    /// The input of its jobs, as JSON or its envelope.
    pub input: Payload,
    /// Whether the input is sealed.
    pub sealed: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// Its next nominal time; `None` if it never fires again.
    pub next_at: Option<Timestamp>,
    /// The last nominal time that was fired.
    pub last_at: Option<Timestamp>,
    /// When it was created, by the store's clock.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub changed_at: Timestamp,
}

/// A change of one schedule.
#[derive(Clone, Debug)]
pub struct ScheduleChange {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its name.
    pub name: String,
    /// The version that it must have, 0 if it must not exist; `None` whatever it has.
    pub expect: Option<u64>,
    /// What to make of it.
    pub to: ScheduleTo,
    /// Who changes it, for the audit log.
    pub actor: String,
}

impl ScheduleChange {
    /// What the schedule becomes; `None` if it is not the one that is meant. What is removed comes back as it was. Pure:
    /// every store decides by this.
    pub fn apply(&self, found: Option<&ScheduleRecord>, now: Timestamp) -> Option<ScheduleRecord> {
        let version = found.map_or(0, |record| record.version);
        if self.expect.is_some_and(|expect| expect != version) {
            return None;
        }
        let new = |content: &ScheduleContent| ScheduleRecord {
            id: content.id,
            tenant: self.tenant,
            name: self.name.clone(),
            version: 0,
            spec: Payload::null(),
            input: Payload::null(),
            sealed: false,
            paused: false,
            next_at: None,
            last_at: None,
            created_at: now,
            changed_at: now,
        };
        let mut record = match (found, &self.to) {
            (Some(record), ScheduleTo::Removed) => return Some(record.clone()),
            (Some(record), _) => record.clone(),
            (None, ScheduleTo::Put(content)) => new(content),
            (None, _) => return None,
        };
        record.version += 1;
        record.changed_at = now;
        match &self.to {
            ScheduleTo::Put(content) => {
                record.spec = content.spec.clone();
                record.input = content.input.clone();
                record.sealed = content.sealed;
                record.next_at = content.next_at;
            }
            ScheduleTo::Paused => record.paused = true,
            ScheduleTo::Resumed { next_at } => {
                record.paused = false;
                record.next_at = *next_at;
            }
            ScheduleTo::Removed => {}
        }
        Some(record)
    }

    /// What the audit log says of it.
    pub fn audit(&self, existed: bool, now: Timestamp) -> AuditEntry {
        let action = match self.to {
            ScheduleTo::Put(_) if existed => "SCHEDULE_CHANGED",
            ScheduleTo::Put(_) => "SCHEDULE_CREATED",
            ScheduleTo::Paused => "SCHEDULE_PAUSED",
            ScheduleTo::Resumed { .. } => "SCHEDULE_RESUMED",
            ScheduleTo::Removed => "SCHEDULE_REMOVED",
        };
        AuditEntry {
            sequence: 0,
            at: now,
            actor: self.actor.clone(),
            tenant: Some(self.tenant),
            action: action.to_owned(),
            target: self.name.clone(),
            detail: None,
        }
    }
}

/// What to make of a schedule.
#[derive(Clone, Debug)]
pub enum ScheduleTo {
    /// Created, or with another spec and input; it keeps its id and whether it is paused.
    Put(Box<ScheduleContent>),
    /// Paused: when this is answered, it fires no more.
    Paused,
    /// Fires again, from this time on.
    Resumed {
        /// Its next nominal time.
        next_at: Option<Timestamp>,
    },
    /// Gone.
    Removed,
}

/// What a schedule is put with.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleContent {
    /// Its id, if it is new.
    pub id: JobId,
    /// See [`ScheduleRecord::spec`].
    pub spec: Payload,
    /// See [`ScheduleRecord::input`].
    pub input: Payload,
    /// Whether the input is sealed, under the id that the schedule has.
    pub sealed: bool,
    /// Its next nominal time.
    pub next_at: Option<Timestamp>,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum ScheduleChanged {
    /// Done; this is the schedule now, or as it was if it was removed.
    Done(Box<ScheduleRecord>),
    /// It has another version, or does not exist. Nothing was written.
    Differs(Option<Box<ScheduleRecord>>),
    /// The tenant has [`SCHEDULES_MAX`] already.
    TooMany,
}

/// What is due.
#[derive(Clone, Debug, PartialEq)]
pub struct DueSchedules {
    /// The store's time.
    pub now: Timestamp,
    /// What is due.
    pub due: Vec<ScheduleRecord>,
    /// How long until the next one after these is due; `None` if there is none.
    pub next_in: Option<Duration>,
}

/// One schedule to fire.
#[derive(Clone, Debug)]
pub struct Firing {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its name.
    pub name: String,
    /// The version it was read with.
    pub version: u64,
    /// The due time it was read with.
    pub due: Timestamp,
    /// The last nominal time that is fired, if any is.
    pub last_at: Option<Timestamp>,
    /// Its next nominal time.
    pub next_at: Option<Timestamp>,
    /// What it starts.
    pub jobs: Vec<NewJob>,
}

/// What became of one firing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fired {
    /// Its jobs are stored, or others have their keys.
    Stored(Vec<Submitted>),
    /// It was fired, changed or paused since it was read. Nothing was stored.
    Changed,
}

/// The calls of [`Schedules`](crate::store::Schedules), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! schedules_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Schedules:
            schedules(scope: $crate::Scope, ask: $crate::store::ScheduleAsk) -> $crate::store::Result<Vec<$crate::store::ScheduleRecord>>;
            change_schedule(change: $crate::store::ScheduleChange) -> $crate::store::Result<$crate::store::ScheduleChanged>;
            due_schedules(limit: usize) -> $crate::store::Result<$crate::store::DueSchedules>;
            fire(epoch: u64, firings: Vec<$crate::store::Firing>) -> $crate::store::Result<Option<Vec<$crate::store::Fired>>>;
        }
    };
}
