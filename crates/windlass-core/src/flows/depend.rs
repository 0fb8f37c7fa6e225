//! Jobs that wait for others: what they wait for, and what becomes of one when those have ended (pure). `settle.rs` asks
//! the store and carries it out; `graph.rs` submits many at once.

use serde::{Deserialize, Serialize};

use crate::model::error::{InvalidInput, JobError, Reason};
use crate::model::id::JobId;
use crate::model::job::{BatchId, Status, SubmitOptions};

/// How many jobs and batches one job may wait for. Whoever needs more puts them into a batch.
pub const PARENTS_MAX: usize = 100;

/// What happens to a job when one that it waits for did not succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum IfFailed {
    /// It is canceled with the reason `parent_failed`.
    #[default]
    Cancel,
    /// It runs all the same, when the others have ended too.
    Run,
    /// It becomes a dead letter with the reason `parent_failed`.
    Fail,
}

/// What a job waits for before it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct After {
    /// The jobs and batches, at most [`PARENTS_MAX`].
    pub of: Vec<JobId>,
    /// Whether the first that succeeds is enough.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub any: bool,
    /// What happens if they did not succeed.
    pub if_failed: IfFailed,
}

/// How a job or batch that another one waits for stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// It has not ended.
    Unfinished,
    /// It has succeeded; of a batch, all its jobs have.
    Succeeded,
    /// It has ended in another way.
    Failed,
    /// It is not stored any more, so nobody knows how it ended.
    Gone,
}

impl Parent {
    /// A job in this status.
    pub fn of(status: Status) -> Self {
        match status {
            Status::Succeeded => Parent::Succeeded,
            status if status.is_terminal() => Parent::Failed,
            _ => Parent::Unfinished,
        }
    }
}

/// What becomes of a job that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// It goes on.
    Open,
    /// It is canceled because of this parent.
    Cancel(JobId),
    /// It is a dead letter because of this parent.
    Fail(JobId),
}

/// Decides by how its parents stand, given in the order of [`After::of`]; `None` if it waits on. What has been decided
/// stays right: a parent that has ended is never unfinished again, except by a replay, which comes too late.
pub fn decide(after: &After, parents: &[Parent]) -> Option<Decided> {
    let failed = after.of.iter().zip(parents).find(|(_, parent)| matches!(parent, Parent::Failed | Parent::Gone));
    let waits = parents.contains(&Parent::Unfinished);
    if after.any && parents.contains(&Parent::Succeeded) {
        return Some(Decided::Open);
    }
    match (failed, after.if_failed) {
        (None, _) if waits => None,
        (None, _) => Some(Decided::Open),
        (Some(_), _) if waits && (after.any || after.if_failed == IfFailed::Run) => None,
        (Some(_), IfFailed::Run) => Some(Decided::Open),
        (Some((parent, _)), IfFailed::Cancel) => Some(Decided::Cancel(*parent)),
        (Some((parent, _)), IfFailed::Fail) => Some(Decided::Fail(*parent)),
    }
}

/// The error of a job that fails because of its parent.
pub(crate) fn parent_failed(parent: JobId) -> JobError {
    JobError::of(Reason::ParentFailed, format!("{parent}, which it waited for, did not succeed"))
}

impl After {
    /// Refuses nothing to wait for, too much, and a name twice.
    pub(crate) fn check(&self) -> Result<(), InvalidInput> {
        if self.of.is_empty() || self.of.len() > PARENTS_MAX {
            let message = format!("{} jobs and batches, 1 to {PARENTS_MAX} are allowed", self.of.len());
            return Err(InvalidInput::new("after", message));
        }
        let mut seen = self.of.clone();
        seen.sort_unstable();
        match seen.windows(2).find(|two| two[0] == two[1]) {
            Some(two) => Err(InvalidInput::new("after", format!("{} is named twice", two[0]))),
            None => Ok(()),
        }
    }
}

impl SubmitOptions {
    /// Starts the job when all of these have succeeded. [`SubmitOptions::if_failed`] says what happens otherwise.
    ///
    /// ```
    /// use windlass_core::{IfFailed, JobId, SubmitOptions};
    /// # let (extract, load) = (JobId::from_i64(1), JobId::from_i64(2));
    /// let options = SubmitOptions::new().after([extract, load]).if_failed(IfFailed::Run);
    /// assert_eq!(options.spec.after.expect("waits").of, [extract, load]);
    /// ```
    #[must_use]
    pub fn after(self, jobs: impl IntoIterator<Item = JobId>) -> Self {
        self.wait_for(jobs, false)
    }

    /// Starts the job when the first of these has succeeded.
    #[must_use]
    pub fn after_any(self, jobs: impl IntoIterator<Item = JobId>) -> Self {
        self.wait_for(jobs, true)
    }

    /// Starts the job when every job of the batch has succeeded.
    #[must_use]
    pub fn after_batch(self, batch: BatchId) -> Self {
        self.wait_for([batch.0], false)
    }

    /// What happens to the job if what it waits for does not succeed.
    #[must_use]
    pub fn if_failed(mut self, policy: IfFailed) -> Self {
        self.spec.after.get_or_insert_default().if_failed = policy;
        self
    }

    fn wait_for(mut self, of: impl IntoIterator<Item = JobId>, any: bool) -> Self {
        let after = self.spec.after.get_or_insert_default();
        after.of.extend(of);
        after.any |= any;
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(n: usize, any: bool, if_failed: IfFailed) -> After {
        After { of: (1..=n as i64).map(JobId::from_i64).collect(), any, if_failed }
    }

    #[track_caller]
    fn check(any: bool, if_failed: IfFailed, parents: &[Parent], expected: Option<Decided>) {
        assert_eq!(decide(&after(parents.len(), any, if_failed), parents), expected);
    }

    const FIRST: JobId = JobId::from_i64(1);

    #[test]
    fn all_must_succeed() {
        use Parent::*;
        check(false, IfFailed::Cancel, &[Succeeded, Unfinished], None);
        check(false, IfFailed::Cancel, &[Succeeded, Succeeded], Some(Decided::Open));
        check(false, IfFailed::Cancel, &[Failed, Unfinished], Some(Decided::Cancel(FIRST)));
        check(false, IfFailed::Fail, &[Gone, Unfinished], Some(Decided::Fail(FIRST)));
        check(false, IfFailed::Run, &[Failed, Unfinished], None);
        check(false, IfFailed::Run, &[Failed, Succeeded], Some(Decided::Open));
    }

    #[test]
    fn the_first_success_is_enough_where_any_will_do() {
        use Parent::*;
        check(true, IfFailed::Cancel, &[Unfinished, Succeeded], Some(Decided::Open));
        check(true, IfFailed::Cancel, &[Failed, Unfinished], None);
        check(true, IfFailed::Cancel, &[Failed, Gone], Some(Decided::Cancel(FIRST)));
        check(true, IfFailed::Run, &[Failed, Failed], Some(Decided::Open));
        check(true, IfFailed::Fail, &[Failed, Failed], Some(Decided::Fail(FIRST)));
    }

    #[test]
    fn bad_lists_are_refused() {
        assert_eq!(after(0, false, IfFailed::Run).check().expect_err("empty").field, "after");
        assert!(after(PARENTS_MAX, false, IfFailed::Run).check().is_ok());
        assert!(after(PARENTS_MAX + 1, false, IfFailed::Run).check().is_err());
        let twice = After { of: vec![FIRST, FIRST], ..After::default() };
        assert!(twice.check().expect_err("twice").to_string().contains("named twice"));
    }

    fn parent() -> impl Strategy<Value = Parent> {
        prop_oneof![Just(Parent::Unfinished), Just(Parent::Succeeded), Just(Parent::Failed), Just(Parent::Gone)]
    }

    fn policy() -> impl Strategy<Value = IfFailed> {
        prop_oneof![Just(IfFailed::Cancel), Just(IfFailed::Run), Just(IfFailed::Fail)]
    }

    proptest! {
        /// FLW-3: a job whose parents have all ended is decided; what is decided stays so as more of them end; and it
        /// opens without a success only where the policy says so.
        #[test]
        fn a_decision_comes_and_stays(
            parents in prop::collection::vec(parent(), 1..6),
            ends in prop::collection::vec(prop_oneof![Just(Parent::Succeeded), Just(Parent::Failed)], 6),
            any in any::<bool>(),
            if_failed in policy(),
        ) {
            let after = after(parents.len(), any, if_failed);
            let ended: Vec<Parent> = parents
                .iter()
                .zip(&ends)
                .map(|(parent, end)| if *parent == Parent::Unfinished { *end } else { *parent })
                .collect();
            let (now, later) = (decide(&after, &parents), decide(&after, &ended));
            prop_assert!(later.is_some());
            if let Some(now) = now {
                prop_assert_eq!(
                    std::mem::discriminant(&now),
                    std::mem::discriminant(&later.expect("decided")),
                );
            }
            let good = ended.iter().filter(|parent| **parent == Parent::Succeeded).count();
            let enough = if any { good > 0 } else { good == ended.len() };
            prop_assert_eq!(later == Some(Decided::Open), enough || if_failed == IfFailed::Run);
        }
    }
}
