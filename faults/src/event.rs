//! What happened, as the processes of a run wrote it down: one JSON line per event, each process into its own file,
//! outside the database under test. Written by `log`, read by the checker. Times are microseconds of the machine's
//! monotonic clock, which all processes share and no fake clock moves.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Which process, by its number in the run; 0 is the one that brings the faults about.
    pub proc: u32,
    /// When, by the monotonic clock.
    pub mono: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    // ---- submitting
    /// A submit is about to be called. `call` is unique within the run.
    SubmitCall {
        /// Ties the call to its answer.
        call: u64,
        /// What is asked for.
        asked: Asked,
    },
    /// It was acknowledged.
    SubmitOk {
        /// The call.
        call: u64,
        /// The job, or the one that has its key.
        job: i64,
        /// Whether it was there already.
        duplicate: bool,
    },
    /// It was refused, with nothing written.
    SubmitRefused {
        /// The call.
        call: u64,
        /// The code of the error.
        code: String,
    },
    /// It may have happened or not.
    SubmitUnknown {
        /// The call.
        call: u64,
        /// The code of the error.
        code: String,
    },
    /// The caller's own transaction, in which it submitted, has ended. The acknowledgement counts only if it committed.
    TransactionEnd {
        /// The call inside it.
        call: u64,
        /// How.
        end: TransactionEnd,
    },

    // ---- what a node asked of its store, and what the store answered
    /// A node got jobs, by a claim or because they were born on it.
    Claim {
        /// The node.
        node: i64,
        /// The fence of these jobs.
        lease: i64,
        /// When it asked; the event's own time is that of the answer.
        asked_at: u64,
        /// Whether the jobs were submitted by this process and started at commit.
        born: bool,
        /// How many it asked for at most.
        max: usize,
        /// What it got.
        jobs: Vec<Held>,
    },
    /// Ends of attempts are about to be written.
    FinishCall {
        /// Ties the call to its answer, within the process.
        batch: u64,
        /// What is to be written.
        ends: Vec<FinishEnd>,
    },
    /// The store's answer, in the order of the call.
    FinishReply {
        /// The call.
        batch: u64,
        /// The status of each accepted one; none where the fence was stale.
        replies: Vec<Option<String>>,
    },
    /// No answer: `written` says whether it may have happened (`None`) or surely has not (`Some(false)`).
    FinishFailed {
        /// The call.
        batch: u64,
        /// The code of the error.
        code: String,
        /// Whether the outcome is unknown.
        unknown: bool,
    },
    /// Progress or a checkpoint of a running attempt.
    Write {
        /// `progress` or `checkpoint`.
        what: String,
        /// The job.
        job: i64,
        /// The fence it named.
        lease: i64,
        /// When it was asked.
        asked_at: u64,
        /// Whether the store accepted it.
        accepted: bool,
    },
    /// A heartbeat was answered.
    Beat {
        /// The node.
        node: i64,
        /// False: the node has been declared dead.
        alive: bool,
    },
    /// Lost nodes were declared dead and their jobs made ready.
    Recovered {
        /// The nodes.
        nodes: Vec<i64>,
        /// Their jobs that are ready again.
        jobs: Vec<i64>,
    },
    /// A node ended in good order; what it still held was given back.
    Deregistered {
        /// The node.
        node: i64,
    },

    // ---- inside handlers
    /// A handler was called.
    Start {
        /// The job.
        job: i64,
        /// Its fence.
        lease: i64,
        /// The number of the attempt.
        attempt: u16,
        /// The tenant the handler sees.
        tenant: Uuid,
        /// The canary that its input carries: the tenant it was submitted for.
        canary: Option<Uuid>,
    },
    /// The job's effect on the world.
    Effect {
        /// The job.
        job: i64,
        /// Its fence.
        lease: i64,
        /// The number of the attempt.
        attempt: u16,
    },
    /// A handler was told to stop.
    Told {
        /// The job.
        job: i64,
        /// Its fence.
        lease: i64,
        /// Whether because the job belongs to someone else.
        lease_lost: bool,
    },
    /// A handler returned.
    End {
        /// The job.
        job: i64,
        /// Its fence.
        lease: i64,
        /// The number of the attempt.
        attempt: u16,
        /// How.
        how: End,
    },

    // ---- steering and looking
    /// A cancel is about to be called.
    CancelCall {
        /// The job.
        job: i64,
    },
    /// It was answered: `canceled`, `requested`, `finished`, `not_found`, or the code of an error.
    CancelReply {
        /// The job.
        job: i64,
        /// The answer.
        reply: String,
    },
    /// A replay of a dead letter was acknowledged: a new generation of the job starts.
    Replayed {
        /// The job.
        job: i64,
    },
    /// A pause is in force.
    Paused {
        /// `all`, `handler:…` or `tenant:…`.
        target: String,
    },
    /// A resume is about to be called.
    Resuming {
        /// The target.
        target: String,
    },
    /// A caller of `scope` was shown this job.
    Seen {
        /// The tenant that asked; none for an operator.
        scope: Option<Uuid>,
        /// The job.
        job: i64,
        /// Whose job it is.
        tenant: Uuid,
        /// The status it was shown in.
        status: String,
    },

    // ---- schedules
    /// A schedule is about to be stored: from here on it may start jobs.
    SchedulePut {
        /// Whose.
        tenant: Uuid,
        /// Its name.
        name: String,
    },
    /// It was acknowledged.
    ScheduleStored {
        /// Whose.
        tenant: Uuid,
        /// Its name.
        name: String,
        /// Its next nominal time, Unix microseconds.
        next_at: i64,
    },
    /// A pause of a schedule was acknowledged.
    SchedulePaused {
        /// Whose.
        tenant: Uuid,
        /// Its name.
        name: String,
        /// The jobs that it had started, read after the acknowledgement.
        runs: Vec<i64>,
    },
    /// A resume of a schedule is about to be called.
    ScheduleResuming {
        /// Whose.
        tenant: Uuid,
        /// Its name.
        name: String,
        /// The jobs that it had started, read before the call.
        runs: Vec<i64>,
    },
    /// A node got the lease of those who fire schedules, under an epoch that it did not have before.
    Leads {
        /// The node.
        node: i64,
        /// The epoch.
        epoch: u64,
    },
    /// The recorder holds a call of this process back, as the harness has asked.
    HeldBack {
        /// `fire` or `change_schedule`.
        call: String,
        /// What it is about to fire or change.
        schedules: Vec<String>,
    },
    /// A fire was answered.
    Fired {
        /// The epoch that it named.
        epoch: u64,
        /// When the store was asked.
        asked_at: u64,
        /// False: the lease was lost, and nothing was written.
        accepted: bool,
        /// The schedule and the nominal time (Unix microseconds) of each new job.
        times: Vec<(String, i64)>,
    },

    // ---- the run
    /// A process began.
    Up {
        /// Its process id.
        pid: u32,
        /// What it does.
        role: String,
    },
    /// A process ended in good order.
    Down,
    /// A fault was brought about.
    Fault {
        /// What.
        fault: String,
    },
    /// A fault is over.
    Healed {
        /// Which.
        fault: String,
    },
    /// Something a row wants to remember.
    Note {
        /// What.
        text: String,
    },
}

/// What a submit asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The caller's tenant.
    pub tenant: Uuid,
    /// The handler.
    pub handler: String,
    /// The idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key of a unique job, which holds until it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique: Option<String>,
    /// The ordering key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering: Option<String>,
    /// The priority.
    #[serde(default)]
    pub priority: i16,
    /// How long the start lies ahead.
    #[serde(default)]
    pub delay_us: u64,
    /// The most failures, where it differs from the run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u16>,
    /// Whether it is called inside a transaction of the caller's.
    #[serde(default)]
    pub in_transaction: bool,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransactionEnd {
    /// The server said so.
    Committed,
    /// The server said so, or it was never asked to commit.
    RolledBack,
    /// The answer to COMMIT was lost.
    Unknown,
}

/// A job that a node got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// The job.
    pub job: i64,
    /// The number of the coming attempt.
    pub attempt: u16,
    /// The failures so far.
    pub failed: u16,
    /// The recoveries so far.
    pub recoveries: u16,
    /// The queue of the job.
    pub queue: String,
    /// Its priority.
    pub priority: i16,
}

/// The end of an attempt, as a node asks the store to write it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishEnd {
    /// The job.
    pub job: i64,
    /// The fence.
    pub lease: i64,
    /// The number of the attempt.
    pub attempt: u16,
    /// `succeed`, `retry`, `dead_letter`, `cancel`, `snooze`, `release`, `park` or `route`.
    pub transition: String,
}

/// How a handler returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// With a result.
    Succeeded,
    /// With an error.
    Failed,
    /// It wants to run later.
    Snoozed,
    /// It was asked to stop and did.
    Stopped,
}
