//! Decides what becomes of a job before and after an attempt. Pure: called by `run` with the job, what happened and the
//! store's time; the answer goes to `finish`. Never reads a clock, a random number or a store.

use std::time::Duration;

use crate::model::clock::Timestamp;
use crate::model::error::{ErrorKind, JobError, Reason};
use crate::model::job::ClaimedJob;
use crate::model::payload::Payload;
use crate::model::retry::RetryPolicy;
use crate::node::suspect::{Loss, is_guilty};
use crate::store::PauseTarget;

/// What an attempt came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The handler returned.
    Done(Option<Payload>),
    /// The handler failed, timed out or panicked.
    Failed(JobError),
    /// It stopped because its cancel had been requested.
    Canceled,
    /// It stopped because the node shuts down.
    Interrupted,
}

/// The rules that apply to a job, from its own options or its handler's.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// When it is retried.
    pub retry: RetryPolicy,
    /// How long it is kept after it has ended.
    pub keep: Duration,
    /// How long it is kept if it ends as a dead letter; absent for good.
    pub keep_dead: Option<Duration>,
    /// How many nodes may be lost with it before it is a dead letter, if it may be the cause.
    pub max_recoveries: u16,
}

/// How many nodes may be lost with a job: a crash or two happens, a third time the job is the likely cause.
pub const MAX_RECOVERIES: u16 = 3;

/// Decides whether a claimed job may start; if not, what becomes of it instead.
/// `loss` is what was noted when its node was lost the last time, for a job that was lost more than once.
pub fn before_attempt(job: &ClaimedJob, rules: &Rules, now: Timestamp, loss: Option<&Loss>) -> Option<Transition> {
    if let Some(what) = &job.unreadable {
        return Some(never_began(job, rules, JobError::of(Reason::Unreadable, what)));
    }
    if !job.resumed && job.spec.expires_at.is_some_and(|at| at <= now) {
        return Some(Transition::Cancel { reason: Reason::Expired.as_str().into(), keep: rules.keep });
    }
    if is_guilty(job.recoveries, rules.max_recoveries, loss) {
        let message = format!("{} nodes were lost while they ran this job", job.recoveries);
        return Some(never_began(job, rules, JobError::of(Reason::NodeUnavailable, message)));
    }
    if job.spec.deadline_at.is_some_and(|at| at <= now) {
        return Some(never_began(job, rules, JobError::of(Reason::Timeout, "the job's total deadline has passed")));
    }
    None
}

/// Decides what becomes of a job after an attempt that `ran` so long. `random` is in 0..1.
pub fn after_attempt(
    job: &ClaimedJob,
    outcome: Outcome,
    rules: &Rules,
    ran: Duration,
    now: Timestamp,
    random: f64,
) -> Transition {
    let error = match outcome {
        Outcome::Done(output) => return Transition::Succeed { output, keep: rules.keep },
        Outcome::Canceled => return Transition::Cancel { reason: Reason::Canceled.as_str().into(), keep: rules.keep },
        Outcome::Interrupted => return Transition::Release,
        Outcome::Failed(error) => error,
    };
    let at_least = match error.kind {
        ErrorKind::Snooze(delay) => return Transition::Snooze { delay },
        ErrorKind::Discard => return Transition::Cancel { reason: error.code, keep: rules.keep },
        ErrorKind::Terminal => return dead(rules, job.failed.saturating_add(1), &error.code.clone(), error),
        ErrorKind::RetryAfter(delay) => delay,
        ErrorKind::Retryable => Duration::ZERO,
    };
    let counted = if rules.retry.reset_after.is_some_and(|quiet| ran >= quiet) { 0 } else { job.failed };
    let failed = counted.saturating_add(1);
    if failed >= rules.retry.max_attempts {
        return dead(rules, failed, Reason::MaxRetries.as_str(), error);
    }
    let delay = rules.retry.delay_after(failed, random).max(at_least);
    let next = now + delay;
    let too_late = rules.retry.max_elapsed.is_some_and(|limit| next > job.created_at + limit)
        || job.spec.deadline_at.is_some_and(|at| next > at);
    if too_late {
        return dead(rules, failed, Reason::MaxRetries.as_str(), error);
    }
    Transition::Retry { failed, delay, error }
}

fn dead(rules: &Rules, failed: u16, reason: &str, error: JobError) -> Transition {
    Transition::DeadLetter { failed, reason: reason.to_owned(), error, keep: rules.keep_dead }
}

/// The end of a job without another attempt: nothing more has failed. The reason is the error's code.
pub(crate) fn never_began(job: &ClaimedJob, rules: &Rules, error: JobError) -> Transition {
    dead(rules, job.failed, &error.code.clone(), error)
}

/// What becomes of a job after an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Transition {
    /// It is done. Removed `keep` later.
    Succeed {
        /// What it returned.
        output: Option<Payload>,
        /// How long it is kept.
        keep: Duration,
    },
    /// It runs again after `delay`, as [`Status::Retrying`].
    Retry {
        /// The failures counted from now on.
        failed: u16,
        /// How long it waits, by the store's clock.
        delay: Duration,
        /// Why.
        error: JobError,
    },
    /// It will not run again by itself. Kept until replayed or purged, or for `keep`. The store also writes the audit entry of
    /// [`AuditEntry::action_of_dead_letter`], which stays whatever becomes of the job's row.
    DeadLetter {
        /// The failures counted in the end, the last one included.
        failed: u16,
        /// Why: `max_retries`, or the code of a terminal error.
        reason: String,
        /// The last error.
        error: JobError,
        /// How long it is kept; absent for good.
        keep: Option<Duration>,
    },
    /// It ends as canceled. Removed `keep` later.
    Cancel {
        /// Why: `canceled`, `expired`, `discarded`.
        reason: String,
        /// How long it is kept.
        keep: Duration,
    },
    /// It runs again after `delay`, as [`Status::Scheduled`]; nothing is charged.
    Snooze {
        /// How long it waits, by the store's clock.
        delay: Duration,
    },
    /// It is ready again at once, in front; nothing is charged.
    Release,
    /// It waits behind a gate, as [`Status::Blocked`]; nothing is charged.
    Park {
        /// Which.
        gate: Gate,
    },
    /// It is ready in another queue; nothing is charged.
    Route {
        /// Which.
        queue: String,
    },
}

/// What a job waits for, other than time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Gate {
    /// A pause of its handler or tenant.
    Pause(PauseTarget),
    /// An earlier job of its tenant with the same ordering key.
    OrderingKey(String),
    /// Other jobs that have to end first.
    Parents,
}

impl Gate {
    /// The text stores keep: `pause:…`, `key:…` or `parents:`.
    pub fn name(&self) -> String {
        match self {
            Gate::Pause(target) => format!("pause:{}", target.name()),
            Gate::OrderingKey(key) => format!("key:{key}"),
            Gate::Parents => "parents:".to_owned(),
        }
    }

    /// From the text stores keep.
    pub fn parse(name: &str) -> Option<Gate> {
        match name.split_once(':')? {
            ("pause", target) => PauseTarget::parse(target).map(Gate::Pause),
            ("key", key) => Some(Gate::OrderingKey(key.to_owned())),
            ("parents", "") => Some(Gate::Parents),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::JobId;
    use crate::model::job::JobSpec;
    use crate::model::priority::Priority;
    use crate::model::tenant::TenantId;
    use crate::store::LeaseId;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const KEEP: Duration = Duration::from_secs(60);

    fn job(failed: u16, recoveries: u16, spec: JobSpec) -> ClaimedJob {
        ClaimedJob {
            id: JobId::from_i64(1),
            lease: LeaseId(1),
            tenant: TenantId::ROOT,
            handler: "h".into(),
            queue: "default".into(),
            priority: Priority::NORMAL,
            payload: Payload::null(),
            failed,
            recoveries,
            created_at: NOW,
            ready_at: NOW,
            ordering_key: None,
            batch: None,
            correlation_id: None,
            tags: Vec::new(),
            spec,
            checkpoint: None,
            resumed: failed > 0 || recoveries > 0,
            unreadable: None,
        }
    }

    fn rules() -> Rules {
        Rules {
            retry: RetryPolicy::default().without_jitter(),
            keep: KEEP,
            keep_dead: None,
            max_recoveries: MAX_RECOVERIES,
        }
    }

    fn check(failed: u16, outcome: Outcome, expected: Transition) {
        let decided = after_attempt(&job(failed, 0, JobSpec::default()), outcome, &rules(), Duration::ZERO, NOW, 0.0);
        assert_eq!(decided, expected);
    }

    #[test]
    fn a_failure_retries_with_a_growing_delay() {
        let error = JobError::retryable("io");
        let retry = |failed, secs| Transition::Retry {
            failed,
            delay: Duration::from_secs(secs),
            error: JobError::retryable("io"),
        };
        check(0, Outcome::Failed(error.clone()), retry(1, 1));
        check(1, Outcome::Failed(error), retry(2, 2));
    }

    #[test]
    fn the_last_failure_makes_a_dead_letter() {
        let error = JobError::retryable("io");
        let dead = Transition::DeadLetter { failed: 3, reason: "max_retries".into(), error: error.clone(), keep: None };
        check(2, Outcome::Failed(error), dead);
    }

    #[test]
    fn a_terminal_error_skips_the_retries() {
        let error = JobError::terminal("validation", "no");
        let dead = Transition::DeadLetter { failed: 2, reason: "validation".into(), error: error.clone(), keep: None };
        check(1, Outcome::Failed(error), dead);
    }

    #[test]
    fn snooze_discard_cancel_and_interrupt_cost_nothing() {
        let delay = Duration::from_secs(5);
        check(2, Outcome::Failed(JobError::snooze(delay)), Transition::Snooze { delay });
        check(2, Outcome::Interrupted, Transition::Release);
        check(0, Outcome::Canceled, Transition::Cancel { reason: "canceled".into(), keep: KEEP });
        let discarded = Transition::Cancel { reason: "discarded".into(), keep: KEEP };
        check(0, Outcome::Failed(JobError::discard("stale")), discarded);
        check(0, Outcome::Failed(JobError::cancelled()), Transition::Cancel { reason: "canceled".into(), keep: KEEP });
    }

    #[test]
    fn a_longer_wait_asked_for_by_the_handler_wins() {
        let error = JobError::retryable("busy").retry_after(Duration::from_secs(20));
        let expected = Transition::Retry { failed: 1, delay: Duration::from_secs(20), error: error.clone() };
        check(0, Outcome::Failed(error), expected);
    }

    #[test]
    fn a_long_quiet_run_starts_the_count_anew() {
        let mut rules = rules();
        rules.retry.reset_after = Some(Duration::from_secs(60));
        let failed = Outcome::Failed(JobError::retryable("io"));
        let job = job(2, 0, JobSpec::default());
        let decided = after_attempt(&job, failed, &rules, Duration::from_secs(61), NOW, 0.0);
        assert!(matches!(decided, Transition::Retry { failed: 1, .. }));
    }

    #[test]
    fn no_retry_is_planned_past_the_total_time() {
        let mut rules = rules();
        rules.retry.max_elapsed = Some(Duration::from_millis(500));
        let failed = Outcome::Failed(JobError::retryable("io"));
        let decided = after_attempt(&job(0, 0, JobSpec::default()), failed.clone(), &rules, Duration::ZERO, NOW, 0.0);
        assert!(matches!(decided, Transition::DeadLetter { .. }));
        let spec = JobSpec { deadline_at: Some(NOW + Duration::from_millis(500)), ..JobSpec::default() };
        let decided = after_attempt(&job(0, 0, spec), failed, &self::rules(), Duration::ZERO, NOW, 0.0);
        assert!(matches!(decided, Transition::DeadLetter { .. }));
    }

    #[test]
    fn expiry_counts_only_before_the_first_start() {
        let spec = JobSpec { expires_at: Some(NOW), ..JobSpec::default() };
        let expired = Some(Transition::Cancel { reason: "expired".into(), keep: KEEP });
        assert_eq!(before_attempt(&job(0, 0, spec.clone()), &rules(), NOW, None), expired);
        assert_eq!(before_attempt(&job(1, 0, spec), &rules(), NOW, None), None);
    }

    #[test]
    fn the_third_lost_node_makes_a_dead_letter() {
        let alone = Loss { ran_ms: 5, suspects: 1, outlived: false };
        let decide = |failed, recoveries, loss| {
            before_attempt(&job(failed, recoveries, JobSpec::default()), &rules(), NOW, Some(&loss))
        };
        assert_eq!(decide(0, 2, alone), None);
        let Some(Transition::DeadLetter { failed, reason, .. }) = decide(1, 3, alone) else { panic!("it ends") };
        assert_eq!((failed, reason.as_str()), (1, "node_unavailable"), "no attempt has failed for it");
        assert_eq!(decide(0, 3, Loss { suspects: 2, ..alone }), None, "another may have been the cause");
    }
}
