//! Judges a history: what must hold whatever faults there were. Called when a run has ended, with nothing but what its
//! processes wrote down and what the database holds. Strict in what is certain and silent in what is not: a reply that
//! never came may have happened or not, and a step lies anywhere between its call and its answer.

mod attempts;
mod facts;
mod fencing;
mod index;
mod keys;
mod order;
mod places;
mod schedules;
mod storing;
mod walls;

use serde::Serialize;

use crate::history::History;
pub use facts::Facts;
use index::Index;
pub use walls::check_outputs;

/// Everything that is wrong with a history, and what it amounts to.
pub fn check(history: &History) -> Verdict {
    let index = Index::new(history);
    let mut found = Found::default();
    storing::check(&index, &mut found);
    fencing::check(&index, &mut found);
    attempts::check(&index, &mut found);
    keys::check(&index, &mut found);
    order::check(&index, &mut found);
    walls::check(&index, &mut found);
    places::check(&index, &mut found);
    schedules::check(&index, &mut found);
    let facts = facts::gather(&index, &found.0);
    Verdict { violations: found.0, facts }
}

/// What the checker says.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// What was broken; empty for a good run.
    pub violations: Vec<Violation>,
    /// What happened, in numbers.
    pub facts: Facts,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which: its id in [`INVARIANTS`].
    pub invariant: &'static str,
    /// The job it is about.
    pub job: Option<i64>,
    /// What was seen, for people.
    pub text: String,
    /// When, by the monotonic clock, where there is such a moment.
    pub at: Option<u64>,
}

/// Whether an invariant can be broken at all yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum State {
    /// It is checked in every run.
    Checked,
    /// What it is about does not exist yet.
    Dormant(&'static str),
}

/// All invariants: id, what it means here, and whether it is checked. I27 to I40 are about flows, groups and schedules; those
/// that are missing have nothing to be about yet.
pub const INVARIANTS: [(&str, &str, State); 27] = [
    (
        "I1",
        "An acknowledged job is in the database at the end, in one place, or was removed on purpose.",
        State::Checked,
    ),
    ("I2", "Every job comes from a call, one job per call, and a rejected call stored nothing.", State::Checked),
    (
        "I3",
        "A job submitted in a caller's transaction exists exactly if the caller's own writes in it exist.",
        State::Checked,
    ),
    ("I4", "A lease is handed out once: no two claims share one, and no job gets the same one twice.", State::Checked),
    (
        "I5",
        "No result, progress or checkpoint is accepted from a lease that has ended or was replaced by a newer one.",
        State::Checked,
    ),
    ("I6", "A job ends at most once, until it is replayed, and an accepted result stays.", State::Checked),
    ("I7", "A job that succeeded had its effect, under the lease whose result was accepted.", State::Checked),
    (
        "I8",
        "Failures and lost nodes are counted, each once, and bounded; releases, snoozes and parking cost no attempt.",
        State::Checked,
    ),
    ("I9", "While a lease is valid, no other node gets its jobs, and its node is not declared dead.", State::Checked),
    (
        "I10",
        "After an acknowledged cancel a job neither starts nor ends in any other way, and its handler receives the cancel.",
        State::Checked,
    ),
    ("I11", "An idempotency key has one job, and all its callers get the id of that job.", State::Checked),
    (
        "I12",
        "After the first acknowledged submit, a key keeps its job through retries, crashes and restarts.",
        State::Checked,
    ),
    ("I13", "A unique key has one job that has not ended, at every instant.", State::Checked),
    ("I14", "No handler is called before its job is due by the database's clock.", State::Checked),
    (
        "I15",
        "A claim skips no ready job of its queue that is more urgent, beyond the slack that the run allows.",
        State::Checked,
    ),
    ("I16", "Jobs of one ordering key run one after the other, in the order they were submitted.", State::Checked),
    (
        "I17",
        "No handler, reader, row or output of one tenant ever contains an id or a canary of another.",
        State::Checked,
    ),
    (
        "I18",
        "No more attempts of a limited handler run at once than it allows, and no claim exceeds its bound.",
        State::Checked,
    ),
    (
        "I19",
        "Rates stay within their limits.",
        State::Dormant("there are no limits on how often jobs start; submit quotas have their own tests"),
    ),
    (
        "I20",
        "Schedules are fired by the holder of the newest epoch only, and not after the answer of a pause.",
        State::Checked,
    ),
    ("I21", "Paused jobs do not start, from one poll after the pause until it is resumed.", State::Checked),
    ("I22", "Every step of a job is allowed by the state machine, and a job is in one place.", State::Checked),
    (
        "I23",
        "Jobs that depend on others wait for them, and batch counts are correct.",
        State::Dormant("there are no dependencies and no batch counters yet"),
    ),
    ("I24", "The maintained counts of ended jobs equal a recount.", State::Checked),
    (
        "I25",
        "After the repair every due job ends, and no dead node keeps a job longer than three times its lease.",
        State::Checked,
    ),
    (
        "I26",
        "Connections, files, memory and tables return to their bounds, and no session leaves anything behind.",
        State::Checked,
    ),
    (
        "I39",
        "A schedule has one job for each nominal time, at the times that its calendar and its policy say, and no other.",
        State::Checked,
    ),
];

/// More of one kind say no more than this many.
const MOST_OF_A_KIND: usize = 50;

/// Violations as they are found.
#[derive(Default)]
struct Found(Vec<Violation>);

impl Found {
    fn add(&mut self, invariant: &'static str, job: impl Into<Option<i64>>, at: impl Into<Option<u64>>, text: String) {
        let so_far = self.0.iter().filter(|violation| violation.invariant == invariant).count();
        if so_far < MOST_OF_A_KIND {
            self.0.push(Violation { invariant, job: job.into(), text, at: at.into() });
        }
    }
}
