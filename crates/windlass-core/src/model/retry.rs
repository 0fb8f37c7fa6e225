//! When a failed job runs again. Pure: the random number and the attempt come in as arguments.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How often and how fast a job is retried.
///
/// Attempts and retries: each run of a handler is an attempt, and a retry is an attempt after the first. A policy counts
/// attempts: five retries are `max_attempts: 6`, written [`retries(5)`](RetryPolicy::retries). No retries are one attempt,
/// written [`never()`](RetryPolicy::never), `retries(0)`, or `max_attempts` of 1 or 0. Only failed attempts count:
/// one that was released, snoozed or lost with its node does not.
///
/// ```
/// use std::time::Duration;
/// use windlass_core::RetryPolicy;
/// let policy = RetryPolicy::default().without_jitter();
/// assert_eq!(policy.delay_after(1, 0.5), Duration::from_secs(1));
/// assert_eq!(policy.delay_after(2, 0.5), Duration::from_secs(2));
/// assert_eq!(policy.delay_after(60, 0.5), Duration::from_secs(30), "capped, and no overflow");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Attempts in all, the first included; 1 or 0 for no retries.
    pub max_attempts: u16,
    /// Wait after the first failure.
    #[serde(with = "millis")]
    pub first_delay: Duration,
    /// No wait is longer.
    #[serde(with = "millis")]
    pub max_delay: Duration,
    /// Each wait is this many times the one before.
    pub multiplier: f64,
    /// The part of each wait that is random, 0 to 1; it spreads the retries of jobs that failed together.
    pub jitter: f64,
    /// After this many failures the phase after it applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Box<Phase>>,
    /// No retry starts later than this after the job was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "option_millis")]
    pub max_elapsed: Option<Duration>,
    /// An attempt that ran at least this long before it failed resets the count: it is a new problem.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "option_millis")]
    pub reset_after: Option<Duration>,
}

/// A later phase of a policy: after `after` failures, wait by these numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// How many failures the phase before it covers.
    pub after: u16,
    /// The first wait of this phase.
    #[serde(with = "millis")]
    pub first_delay: Duration,
    /// No wait of this phase is longer.
    #[serde(with = "millis")]
    pub max_delay: Duration,
    /// Each wait is this many times the one before.
    pub multiplier: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            max_attempts: 3,
            first_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(30),
            multiplier: 2.0,
            jitter: 0.2,
            then: None,
            max_elapsed: None,
            reset_after: None,
        }
    }
}

impl RetryPolicy {
    /// No retries: one attempt.
    pub fn never() -> Self {
        RetryPolicy { max_attempts: 1, ..RetryPolicy::default() }
    }

    /// `attempts` in all, `delay` apart.
    pub fn fixed(attempts: u16, delay: Duration) -> Self {
        let base = RetryPolicy { max_attempts: attempts, first_delay: delay, max_delay: delay, ..Self::default() };
        RetryPolicy { multiplier: 1.0, ..base }.without_jitter()
    }

    /// Five retries, after 1, 2, 4, 8 and 16 s; with more retries no wait is longer than 60 s.
    pub fn seconds_to_a_minute() -> Self {
        RetryPolicy::default().retries(5).max_delay(Duration::from_secs(60)).without_jitter()
    }

    /// Three retries, after 10, 20 and 40 s; with more retries each wait is twice the one before.
    pub fn tens_of_seconds() -> Self {
        let (first, longest) = (Duration::from_secs(10), Duration::from_secs(24 * 3600));
        RetryPolicy::default().retries(3).first_delay(first).max_delay(longest).without_jitter()
    }

    /// Five retries from 100 ms on, twice as long each time, with jitter, within 30 s of the submit; an attempt that ran
    /// for five minutes resets the count.
    pub fn milliseconds_for_half_a_minute() -> Self {
        RetryPolicy::default()
            .retries(5)
            .first_delay(Duration::from_millis(100))
            .max_elapsed(Duration::from_secs(30))
            .reset_after(Duration::from_secs(5 * 60))
    }

    /// Sets how many retries there are after the first attempt.
    #[must_use]
    pub fn retries(self, retries: u16) -> Self {
        self.attempts(retries.saturating_add(1))
    }

    /// Sets how many attempts there are in all, at least one.
    #[must_use]
    pub fn attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Sets the wait after the first failure.
    #[must_use]
    pub fn first_delay(mut self, delay: Duration) -> Self {
        self.first_delay = delay;
        self
    }

    /// Sets the longest wait.
    #[must_use]
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.max_delay = delay;
        self
    }

    /// Makes every wait exact.
    #[must_use]
    pub fn without_jitter(mut self) -> Self {
        self.jitter = 0.0;
        self
    }

    /// After `phase.after` failures, continues with the delays of `phase`.
    #[must_use]
    pub fn then(mut self, phase: Phase) -> Self {
        self.then = Some(Box::new(phase));
        self
    }

    /// Starts no retry later than this after the submit.
    #[must_use]
    pub fn max_elapsed(mut self, limit: Duration) -> Self {
        self.max_elapsed = Some(limit);
        self
    }

    /// Resets the count after an attempt that ran at least this long.
    #[must_use]
    pub fn reset_after(mut self, quiet: Duration) -> Self {
        self.reset_after = Some(quiet);
        self
    }

    /// The wait after the `failures`-th failure; `random` is in 0..1.
    pub fn delay_after(&self, failures: u16, random: f64) -> Duration {
        let (first, cap, multiplier, step) = match &self.then {
            Some(phase) if failures > phase.after => {
                (phase.first_delay, phase.max_delay, phase.multiplier, failures - phase.after)
            }
            _ => (self.first_delay, self.max_delay, self.multiplier, failures),
        };
        // The exponent is capped so that no policy overflows; the result is capped anyway.
        let factor = multiplier.max(1.0).powi(i32::from(step.saturating_sub(1).min(64)));
        let full = (first.as_secs_f64() * factor).min(cap.as_secs_f64());
        let jitter = self.jitter.clamp(0.0, 1.0);
        Duration::from_secs_f64(full * (1.0 - jitter * random.clamp(0.0, 1.0)))
    }
}

/// Durations as whole milliseconds in JSON.
pub(crate) mod millis {
    use super::*;

    pub(crate) fn serialize<S: serde::Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_millis)
    }
}

/// The same for durations that may be absent.
pub(crate) mod option_millis {
    use super::*;

    pub(crate) fn serialize<S: serde::Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        d.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(d)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(policy: &RetryPolicy, failures: std::ops::RangeInclusive<u16>) -> Vec<u64> {
        failures.map(|n| policy.delay_after(n, 0.0).as_secs()).collect()
    }

    /// ERR-1: the waits of every retry that a preset allows, and no more retries than it says.
    #[test]
    fn presets_reproduce_known_schedules() {
        let retries = |policy: &RetryPolicy| seconds(policy, 1..=policy.max_attempts - 1);
        assert_eq!(retries(&RetryPolicy::seconds_to_a_minute()), [1, 2, 4, 8, 16]);
        assert_eq!(
            seconds(&RetryPolicy::seconds_to_a_minute(), 6..=8),
            [32, 60, 60],
            "the cap, for those who add some"
        );
        assert_eq!(retries(&RetryPolicy::tens_of_seconds()), [10, 20, 40]);
        let quick = RetryPolicy::milliseconds_for_half_a_minute();
        let waits: Vec<u128> = (1..quick.max_attempts).map(|n| quick.delay_after(n, 0.0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600]);
        assert!(quick.delay_after(1, 1.0) < quick.delay_after(1, 0.0), "with jitter");
        assert_eq!(
            (quick.max_elapsed, quick.reset_after),
            (Some(Duration::from_secs(30)), Some(Duration::from_secs(300)))
        );
        assert_eq!(RetryPolicy::default().retries(u16::MAX).max_attempts, u16::MAX);
    }

    #[test]
    fn a_second_phase_starts_its_own_count() {
        let gentle = Phase {
            after: 3,
            first_delay: Duration::from_secs(60),
            max_delay: Duration::from_secs(600),
            multiplier: 2.0,
        };
        assert_eq!(seconds(&RetryPolicy::default().then(gentle), 1..=6), [1, 2, 4, 60, 120, 240]);
    }

    #[test]
    fn jitter_only_shortens_and_stays_within_its_part() {
        let policy = RetryPolicy { jitter: 0.5, ..RetryPolicy::default() };
        assert_eq!(policy.delay_after(1, 1.0), Duration::from_millis(500));
        assert_eq!(policy.delay_after(1, 0.0), Duration::from_secs(1));
    }

    #[test]
    fn a_policy_survives_json_and_fills_gaps_with_defaults() {
        let policy = RetryPolicy::tens_of_seconds().max_elapsed(Duration::from_secs(9));
        let text = serde_json::to_string(&policy).expect("serializes");
        assert_eq!(serde_json::from_str::<RetryPolicy>(&text).expect("parses"), policy);
        assert_eq!(serde_json::from_str::<RetryPolicy>("{}").expect("parses"), RetryPolicy::default());
    }
}
