//! Changing a job that waits: its input, its priority, when it starts. Called by operators through the service;
//! stores carry it out under the lock of the job's place. Never touches a job that runs or has ended.

use std::fmt;

use crate::life::submit::{RESERVED, check_input, check_start};
use crate::model::clock::Timestamp;
use crate::model::error::Error;
use crate::model::id::JobId;
use crate::model::job::{Start, Status};
use crate::model::payload::Payload;
use crate::model::priority::Priority;
use crate::model::tenant::SecurityContext;
use crate::operate::steer::engines_own;
use crate::seal::{KeyError, Kind};
use crate::service::JobService;
use crate::store::{EditReply, Gate, PauseTarget};

/// Changes to a waiting job; a field that is `None` stays as it is.
///
/// ```
/// use windlass_core::{Edit, Priority};
/// let edit = Edit::new().priority(Priority::HIGH).run_now();
/// assert_eq!(edit.to_string(), "priority 10, start now");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Edit {
    /// The new input. Keys derived from the old input stay the same.
    pub input: Option<Payload>,
    /// The new priority: the job takes its tenant's next turn among the jobs of that priority.
    pub priority: Option<Priority>,
    /// The new start. [`Start::Now`] fails for a blocked job, because an edit does not open its gate.
    pub start: Option<Start>,
}

impl Edit {
    /// Changes nothing yet.
    pub fn new() -> Self {
        Edit::default()
    }

    /// Replaces the input.
    #[must_use]
    pub fn input(mut self, input: Payload) -> Self {
        self.input = Some(input);
        self
    }

    /// Replaces the priority.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Replaces the start.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = Some(start);
        self
    }

    /// Starts as soon as a worker is free.
    #[must_use]
    pub fn run_now(self) -> Self {
        self.start(Start::Now)
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Edit::default()
    }
}

/// What changes, for the history and the audit log. Says of the input only that it did.
impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.start.map(|start| match start {
            Start::Now => "start now".to_owned(),
            Start::After(delay) => format!("start in {} ms", delay.as_millis()),
            Start::At(at) => format!("start at {at}"),
        });
        let parts = [
            self.input.as_ref().map(|_| "input".to_owned()),
            self.priority.map(|p| format!("priority {}", p.0)),
            start,
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Where a waiting job goes that is given another start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// It is ready.
    Ready,
    /// It waits for this time, as scheduled, or as retrying if it was.
    Until(Timestamp),
    /// It stays behind its gate, and waits for this time after that.
    Behind(Option<Timestamp>),
    /// It cannot start now: its gate is closed.
    Refused,
}

/// Decides where a waiting job goes that is to start at `start`. Pure; stores that decide in SQL must agree with this.
/// A job behind an ordering key keeps its place in the line, and one that waits for others waits on. One that is parked by a pause has none: given a time, it
/// waits for that, and is parked again if it is still paused then.
pub fn after_edit(status: Status, gate: Option<&Gate>, start: Start, now: Timestamp) -> Move {
    let due = match start {
        Start::Now => None,
        Start::After(delay) => Some(now + delay),
        Start::At(at) => Some(at),
    };
    let due = due.filter(|due| *due > now);
    match (status, due) {
        (Status::Blocked, None) if start == Start::Now => Move::Refused,
        (Status::Blocked, due) if due.is_none() || matches!(gate, Some(Gate::OrderingKey(_) | Gate::Parents)) => {
            Move::Behind(due)
        }
        (_, Some(due)) => Move::Until(due),
        (_, None) => Move::Ready,
    }
}

/// Whether a job in this status waits, so that it can be edited.
pub fn can_edit(status: Status) -> bool {
    matches!(status, Status::Pending | Status::Scheduled | Status::Retrying | Status::Blocked)
}

impl JobService {
    /// Changes a waiting job. A node claims it either before the edit or with all of it. Fails with [`Error::Conflict`] if
    /// the job runs or has ended. The new input is checked and encrypted as in a submit; it counts against the tenant's
    /// byte quota, but an edit never fails because of the quota.
    pub async fn edit(&self, ctx: &SecurityContext, id: JobId, edit: Edit) -> Result<(), Error> {
        let edit = self.check_edit(ctx, id, edit).await?;
        let worker = self.worker();
        let refused = |message: String| Err(Error::Conflict { job: id, message });
        match worker.store.edit(ctx.scope(), id, ctx.actor(), &edit).await? {
            EditReply::Edited(_) => {
                worker.jobs_are_ready();
                // It may be due earlier than anything known.
                worker.wake_maintenance.notify_one();
                Ok(())
            }
            EditReply::Blocked(gate) => refused(format!("it cannot start now: {}", closed(&gate))),
            EditReply::NotWaiting(status) => refused(format!("only waiting jobs can be edited; the job is {status}")),
            EditReply::NotFound => Err(Error::NotFound(id)),
        }
    }

    /// Starts a scheduled or retrying job as soon as a worker is free.
    pub async fn run_now(&self, ctx: &SecurityContext, id: JobId) -> Result<(), Error> {
        self.edit(ctx, id, Edit::new().run_now()).await
    }

    /// Changes the start of a waiting job.
    pub async fn reschedule(&self, ctx: &SecurityContext, id: JobId, start: Start) -> Result<(), Error> {
        self.edit(ctx, id, Edit::new().start(start)).await
    }

    /// Changes the priority of a waiting job.
    pub async fn reprioritise(&self, ctx: &SecurityContext, id: JobId, priority: Priority) -> Result<(), Error> {
        self.edit(ctx, id, Edit::new().priority(priority)).await
    }

    /// Checks an edit as a submit is checked, and seals the input of a sealed job.
    async fn check_edit(&self, ctx: &SecurityContext, id: JobId, mut edit: Edit) -> Result<Edit, Error> {
        let limits = &self.config().limits;
        if edit.is_empty() {
            return Err(crate::InvalidInput::new("edit", "must change the input, the priority or the start").into());
        }
        if let Some(start) = edit.start {
            check_start(start, self.now(), limits)?;
        }
        let Some(input) = &edit.input else { return Ok(edit) };
        check_input(input, limits)?;
        let record = self.get(ctx, id).await?;
        let refused = |message: &str| Error::Conflict { job: id, message: message.to_owned() };
        if record.handler.starts_with(RESERVED) {
            return Err(engines_own(id));
        }
        if record.spec.callback.is_some() {
            return Err(refused("it is a callback, whose input is that of the job it follows"));
        }
        let worker = self.worker();
        if let Some(registered) = worker.registry.get(&record.handler) {
            registered.code.check(input)?;
        }
        match (worker.seals.sealer(ctx.tenant).await?, record.spec.sealed) {
            (None, false) => {}
            (Some(sealer), true) => edit.input = Some(sealer.seal(id, Kind::Input, input)),
            (None, true) => return Err(Error::Sealed { job: id, source: KeyError::NotConfigured }),
            // What its earlier attempts left is open, and a job is sealed as a whole or not at all.
            (Some(_), false) => return Err(refused("it was stored unsealed; clone it to give it another input")),
        }
        Ok(edit)
    }
}

/// Why a gate is closed, for people.
fn closed(gate: &Gate) -> String {
    match gate {
        Gate::OrderingKey(key) => format!("an earlier job has its ordering key `{key}`"),
        Gate::Parents => "jobs that it waits for have not ended".to_owned(),
        Gate::Pause(PauseTarget::All) => "everything is paused".to_owned(),
        Gate::Pause(target) => format!("{} is paused", target.name()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    #[test]
    fn a_start_moves_a_job_but_opens_no_gate() {
        let key = Gate::OrderingKey("k".into());
        let pause = Gate::Pause(PauseTarget::All);
        let soon = NOW + Duration::from_secs(1);
        let past = Start::At(NOW - Duration::from_secs(1));
        let check = |status, gate: Option<&Gate>, start, expected| {
            assert_eq!(after_edit(status, gate, start, NOW), expected, "{status} {gate:?} {start:?}");
        };
        for status in [Status::Pending, Status::Scheduled, Status::Retrying] {
            check(status, None, Start::Now, Move::Ready);
            check(status, None, past, Move::Ready);
            check(status, None, Start::After(Duration::ZERO), Move::Ready);
            check(status, None, Start::At(soon), Move::Until(soon));
        }
        for gate in [&key, &pause] {
            check(Status::Blocked, Some(gate), Start::Now, Move::Refused);
            check(Status::Blocked, Some(gate), past, Move::Behind(None));
        }
        check(Status::Blocked, Some(&key), Start::At(soon), Move::Behind(Some(soon)));
        check(Status::Blocked, Some(&pause), Start::At(soon), Move::Until(soon));
    }

    #[test]
    fn an_edit_says_what_changes_and_nothing_of_the_input() {
        let input = Payload::from_store("\"secret\"");
        let edit = Edit::new().input(input).priority(Priority(7)).start(Start::After(Duration::from_secs(2)));
        assert_eq!(edit.to_string(), "input, priority 7, start in 2000 ms");
        assert!(!edit.is_empty() && Edit::new().is_empty());
    }
}
