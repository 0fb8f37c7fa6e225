//! Decides what becomes of a job before and after an attempt. Pure: called by `run` with the job, what happened and the
//! store's time; the answer goes to `finish`. Never reads a clock, a random number or a store.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::{ErrorKind, JobError, Reason};
use crate::job::ClaimedJob;
use crate::payload::Payload;
use crate::retry::RetryPolicy;
use crate::store::Transition;

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
    /// How many nodes may be lost with it before it is a dead letter.
    pub max_recoveries: u16,
}

/// How many nodes may be lost with a job: a crash or two happens, a third time the job is the likely cause.
pub const MAX_RECOVERIES: u16 = 3;

/// Decides whether a claimed job may start; if not, what becomes of it instead.
pub fn before_attempt(job: &ClaimedJob, rules: &Rules, now: Timestamp) -> Option<Transition> {
    let never_started = job.failed == 0 && job.recoveries == 0;
    if never_started && job.spec.expires_at.is_some_and(|at| at <= now) {
        return Some(Transition::Cancel { reason: Reason::Expired.as_str().into(), keep: rules.keep });
    }
    if job.recoveries >= rules.max_recoveries {
        let message = format!("{} nodes were lost while they ran this job", job.recoveries);
        return Some(dead(Reason::NodeUnavailable.as_str(), JobError::of(Reason::NodeUnavailable, message)));
    }
    if job.spec.deadline_at.is_some_and(|at| at <= now) {
        return Some(dead(
            Reason::Timeout.as_str(),
            JobError::of(Reason::Timeout, "the job's total deadline has passed"),
        ));
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
        ErrorKind::Terminal => return dead(&error.code.clone(), error),
        ErrorKind::RetryAfter(delay) => delay,
        ErrorKind::Retryable => Duration::ZERO,
    };
    let counted = if rules.retry.reset_after.is_some_and(|quiet| ran >= quiet) { 0 } else { job.failed };
    let failed = counted.saturating_add(1);
    if failed >= rules.retry.max_attempts {
        return dead(Reason::MaxRetries.as_str(), error);
    }
    let delay = rules.retry.delay_after(failed, random).max(at_least);
    let next = now + delay;
    let too_late = rules.retry.max_elapsed.is_some_and(|limit| next > job.created_at + limit)
        || job.spec.deadline_at.is_some_and(|at| next > at);
    if too_late {
        return dead(Reason::MaxRetries.as_str(), error);
    }
    Transition::Retry { failed, delay, error }
}

fn dead(reason: &str, error: JobError) -> Transition {
    Transition::DeadLetter { reason: reason.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::JobId;
    use crate::job::JobSpec;
    use crate::priority::Priority;
    use crate::store::LeaseId;
    use crate::tenant::TenantId;

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
        }
    }

    fn rules() -> Rules {
        Rules { retry: RetryPolicy::default().without_jitter(), keep: KEEP, max_recoveries: MAX_RECOVERIES }
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
        check(2, Outcome::Failed(error.clone()), Transition::DeadLetter { reason: "max_retries".into(), error });
    }

    #[test]
    fn a_terminal_error_skips_the_retries() {
        let error = JobError::terminal("validation", "no");
        check(0, Outcome::Failed(error.clone()), Transition::DeadLetter { reason: "validation".into(), error });
    }

    #[test]
    fn snooze_discard_cancel_and_interrupt_cost_nothing() {
        let delay = Duration::from_secs(5);
        check(2, Outcome::Failed(JobError::snooze(delay)), Transition::Snooze { delay });
        check(2, Outcome::Interrupted, Transition::Release);
        check(0, Outcome::Canceled, Transition::Cancel { reason: "canceled".into(), keep: KEEP });
        let discarded = Transition::Cancel { reason: "discarded".into(), keep: KEEP };
        check(0, Outcome::Failed(JobError::discard("stale")), discarded);
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
        assert_eq!(before_attempt(&job(0, 0, spec.clone()), &rules(), NOW), expired);
        assert_eq!(before_attempt(&job(1, 0, spec), &rules(), NOW), None);
    }

    #[test]
    fn the_third_lost_node_makes_a_dead_letter() {
        assert_eq!(before_attempt(&job(0, 2, JobSpec::default()), &rules(), NOW), None);
        let decided = before_attempt(&job(0, 3, JobSpec::default()), &rules(), NOW);
        assert!(matches!(decided, Some(Transition::DeadLetter { reason, .. }) if reason == "node_unavailable"));
    }
}
