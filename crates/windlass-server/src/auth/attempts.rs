//! Slows down who guesses credentials: each address has so many failures, which come back with time. Called by `auth`
//! before a credential is looked at and after it was refused. Knows nothing of users, so nobody can be locked out of
//! an account from elsewhere.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::HttpLimits;
use crate::problem::Problem;

/// Failures by address.
pub(crate) struct Attempts {
    allowed: u32,
    every: Duration,
    by_address: Mutex<HashMap<IpAddr, Failures>>,
}

/// Addresses that are remembered; beyond it, those whose failures have all come back are forgotten, and then all. An
/// attacker with so many addresses is not stopped by counting them.
const ADDRESSES: usize = 10_000;

#[derive(Clone, Copy)]
struct Failures {
    count: f64,
    at: Instant,
}

impl Attempts {
    pub(crate) fn new(limits: &HttpLimits) -> Self {
        Attempts { allowed: limits.failures.max(1), every: limits.failure_every, by_address: Mutex::default() }
    }

    /// Refuses an address that has failed too often.
    pub(crate) fn check(&self, address: Option<IpAddr>) -> Result<(), Problem> {
        let Some(address) = address else { return Ok(()) };
        let by_address = self.by_address.lock();
        let count = by_address.get(&address).map_or(0.0, |failures| self.left(*failures, Instant::now()));
        match wait(count, self.allowed, self.every) {
            None => Ok(()),
            Some(after) => Err(Problem::slow_down("rate_limited", "too many credentials were refused", after)),
        }
    }

    /// Counts a refused credential.
    pub(crate) fn failed(&self, address: Option<IpAddr>) {
        let Some(address) = address else { return };
        let now = Instant::now();
        let mut by_address = self.by_address.lock();
        if by_address.len() >= ADDRESSES && !by_address.contains_key(&address) {
            by_address.retain(|_, failures| self.left(*failures, now) > 0.0);
            if by_address.len() >= ADDRESSES {
                by_address.clear();
            }
        }
        let failures = by_address.entry(address).or_insert(Failures { count: 0.0, at: now });
        *failures = Failures { count: self.left(*failures, now) + 1.0, at: now };
    }

    fn left(&self, failures: Failures, now: Instant) -> f64 {
        let back = now.saturating_duration_since(failures.at).as_secs_f64() / self.every.as_secs_f64().max(1e-3);
        (failures.count - back).max(0.0)
    }
}

/// How long an address with `count` failures has to wait, if it has to.
fn wait(count: f64, allowed: u32, every: Duration) -> Option<Duration> {
    let over = count - (f64::from(allowed) - 1.0);
    (over > 0.0).then(|| every.mul_f64(over))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S04.
    #[test]
    fn an_address_is_refused_after_its_failures_and_another_is_not() {
        let limits = HttpLimits { failures: 3, failure_every: Duration::from_secs(3600), ..HttpLimits::default() };
        let attempts = Attempts::new(&limits);
        let (bad, good) = (Some(IpAddr::from([192, 0, 2, 1])), Some(IpAddr::from([192, 0, 2, 2])));
        for _ in 0..3 {
            assert!(attempts.check(bad).is_ok());
            attempts.failed(bad);
        }
        let refused = attempts.check(bad).expect_err("three are enough");
        assert_eq!((refused.status, refused.code.as_str()), (429, "rate_limited"));
        assert!(attempts.check(good).is_ok());
    }

    #[test]
    fn failures_come_back_one_by_one() {
        let every = Duration::from_secs(3);
        assert_eq!(wait(2.0, 3, every), None);
        assert_eq!(wait(3.0, 3, every), Some(every));
        assert_eq!(wait(2.5, 3, every), Some(every / 2));
    }
}
