//! Slows down who guesses credentials: refused ones are counted by the address they come from and by the credential they
//! are for, each of which has so many that come back with time. Called by `auth` after a credential was refused, and never
//! before: a good one is let in whatever others have tried from the same address, or with its name.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::config::HttpLimits;
use crate::problem::Problem;

/// Refused credentials. Addresses and credentials are kept apart, so that who guesses many credentials cannot push out
/// the address they come from.
pub(crate) struct Attempts {
    pace: Pace,
    /// By address, or by the network of one where a single machine has a whole one.
    by_address: Mutex<Sources<IpAddr>>,
    /// By a hash of the part that names a credential.
    by_credential: Mutex<Sources<[u8; 16]>>,
}

/// How often a source may fail.
#[derive(Clone, Copy)]
struct Pace {
    allowed: u32,
    every: Duration,
}

/// Sources of one kind that have failed lately.
struct Sources<S> {
    known: HashMap<S, Failures>,
    /// Those that there is no room to know one by one, counted as one.
    others: Failures,
}

/// Sources of one kind that are known one by one. Where there is no room for another, those are forgotten whose failures
/// have all come back, then those that are not slowed down. If that is not enough, newcomers are counted as one: what an
/// attacker with so many addresses gains by one more is not worth more memory.
const SOURCES: usize = 10_000;

#[derive(Clone, Copy)]
struct Failures {
    count: f64,
    at: Instant,
}

impl Attempts {
    pub(crate) fn new(limits: &HttpLimits) -> Self {
        let pace = Pace { allowed: limits.failures.max(1), every: limits.failure_every };
        let now = Instant::now();
        Attempts { pace, by_address: Mutex::new(Sources::new(now)), by_credential: Mutex::new(Sources::new(now)) }
    }

    /// Counts a refused credential, and says what its caller is answered: what `usual` says, or that it failed too often.
    pub(crate) fn refuse(&self, address: Option<IpAddr>, credential: &str, usual: Problem) -> Problem {
        let name = Sha256::digest(name_of(credential));
        let name = std::array::from_fn(|n| name[n]);
        let now = Instant::now();
        let of_address = address.and_then(|address| self.by_address.lock().count(network(address), self.pace, now));
        let of_credential = self.by_credential.lock().count(name, self.pace, now);
        match of_address.max(of_credential) {
            Some(after) => Problem::slow_down("rate_limited", "too many rejected credentials; try again later", after),
            None => usual,
        }
    }
}

impl<S: Hash + Eq> Sources<S> {
    fn new(now: Instant) -> Self {
        Sources { known: HashMap::new(), others: Failures::none(now) }
    }

    /// Counts a failure, and says how long its source would have to wait to fail without being told so.
    fn count(&mut self, source: S, pace: Pace, now: Instant) -> Option<Duration> {
        let failures = match self.known.len() < SOURCES || self.known.contains_key(&source) || self.make_room(pace, now)
        {
            true => self.known.entry(source).or_insert(Failures::none(now)),
            false => &mut self.others,
        };
        let before = failures.left(pace, now);
        // Not beyond what is allowed, so that the wait has a bound.
        *failures = Failures { count: (before + 1.0).min(f64::from(pace.allowed) + 1.0), at: now };
        wait(before, pace)
    }

    /// Forgets sources that can be forgotten. False if there are none.
    fn make_room(&mut self, pace: Pace, now: Instant) -> bool {
        self.known.retain(|_, failures| failures.left(pace, now) > 0.0);
        if self.known.len() >= SOURCES {
            self.known.retain(|_, failures| wait(failures.left(pace, now), pace).is_some());
        }
        self.known.len() < SOURCES
    }
}

impl Failures {
    fn none(now: Instant) -> Self {
        Failures { count: 0.0, at: now }
    }

    /// Those that have not come back yet.
    fn left(self, pace: Pace, now: Instant) -> f64 {
        let back = now.saturating_duration_since(self.at).as_secs_f64() / pace.every.as_secs_f64().max(1e-3);
        (self.count - back).max(0.0)
    }
}

/// What names a credential: of an API key all but its secret, of anything else all of it.
fn name_of(credential: &str) -> &str {
    match windlass_core::api_key_id(credential) {
        Some(id) => id,
        None => credential,
    }
}

/// The address, or its network of 64 bits: whoever has one IPv6 address has as many as there are in it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

/// How long a source with `count` failures has to wait, if it has to.
fn wait(count: f64, pace: Pace) -> Option<Duration> {
    let over = count - (f64::from(pace.allowed) - 1.0);
    (over > 0.0).then(|| pace.every.mul_f64(over))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts() -> Attempts {
        Attempts::new(&HttpLimits { failures: 3, failure_every: Duration::from_secs(3600), ..HttpLimits::default() })
    }

    fn refused(attempts: &Attempts, address: Option<IpAddr>, credential: &str) -> u16 {
        attempts.refuse(address, credential, Problem::unauthorized()).status
    }

    /// S04.
    #[test]
    fn an_address_is_told_to_wait_after_its_failures_and_another_is_not() {
        let attempts = attempts();
        let (bad, good) = (Some(IpAddr::from([192, 0, 2, 1])), Some(IpAddr::from([192, 0, 2, 2])));
        let statuses: Vec<u16> = (0..5).map(|n| refused(&attempts, bad, &format!("guess {n}"))).collect();
        assert_eq!(statuses, [401, 401, 401, 429, 429]);
        assert_eq!(refused(&attempts, good, "another guess"), 401);
    }

    /// S04: many addresses that try one credential.
    #[test]
    fn a_credential_is_counted_wherever_it_is_tried() {
        let attempts = attempts();
        let status = |n| refused(&attempts, Some(IpAddr::from([192, 0, 2, n])), "one guess");
        assert_eq!((0..5).map(status).collect::<Vec<_>>(), [401, 401, 401, 429, 429]);
    }

    /// S04: one machine has as many IPv6 addresses as it likes.
    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        let attempts = attempts();
        let host = |network: u16, n: u16| Some(IpAddr::from([0x2001, 0xdb8, 0, network, n, n, n, n]));
        let statuses: Vec<u16> = (0..5).map(|n| refused(&attempts, host(1, n), &format!("guess {n}"))).collect();
        assert_eq!(statuses, [401, 401, 401, 429, 429]);
        assert_eq!(refused(&attempts, host(2, 0), "another guess"), 401);
    }

    /// S04: guesses are many, the address they come from is one.
    #[test]
    fn an_address_is_not_forgotten_however_many_credentials_it_guesses() {
        let attempts = attempts();
        let address = Some(IpAddr::from([192, 0, 2, 1]));
        let statuses: Vec<u16> = (0..SOURCES + 10).map(|n| refused(&attempts, address, &n.to_string())).collect();
        assert_eq!(statuses[..3], [401, 401, 401]);
        let free = statuses[3..].iter().position(|status| *status != 429);
        assert_eq!(free, None, "it is slowed down from its fourth guess on");
    }

    /// S04: addresses that have failed once make room for others before one that is slowed down does.
    #[test]
    fn an_address_that_is_slowed_down_is_not_forgotten_for_others() {
        let attempts = attempts();
        let address = |n: usize| Some(IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n as u32)));
        let guess = |n: usize| refused(&attempts, address(n), &format!("guess of {n}"));
        let slowed: Vec<u16> = (0..4).map(|n| refused(&attempts, address(0), &n.to_string())).collect();
        assert_eq!(slowed, [401, 401, 401, 429]);
        assert!((1..=2 * SOURCES).all(|n| guess(n) == 401), "each fails for the first time");
        assert_eq!(guess(0), 429);
    }

    /// S04: an attacker with more addresses than are remembered gains no free guesses by one more, and nothing grows.
    #[test]
    fn addresses_beyond_those_that_are_remembered_count_as_one() {
        let (pace, now) = (Pace { allowed: 3, every: Duration::from_secs(3600) }, Instant::now());
        let mut sources = Sources::new(now);
        for n in 0..SOURCES {
            let waits: Vec<bool> = (0..4).map(|_| sources.count(n, pace, now).is_some()).collect();
            assert_eq!(waits, [false, false, false, true]);
        }
        let newcomers: Vec<bool> = (0..5).map(|n| sources.count(SOURCES + n, pace, now).is_some()).collect();
        assert_eq!(newcomers, [false, false, false, true, true]);
        assert_eq!(sources.known.len(), SOURCES);
        assert!(sources.count(0, pace, now).is_some(), "none that is slowed down was forgotten");
        let later = now + 5 * pace.every;
        assert!(sources.count(SOURCES, pace, later).is_none(), "with time there is room again");
        assert_eq!(sources.known.len(), 1);
    }

    #[test]
    fn failures_come_back_one_by_one() {
        let pace = Pace { allowed: 3, every: Duration::from_secs(3) };
        assert_eq!(wait(2.0, pace), None);
        assert_eq!(wait(3.0, pace), Some(pace.every));
        assert_eq!(wait(2.5, pace), Some(pace.every / 2));
    }
}
