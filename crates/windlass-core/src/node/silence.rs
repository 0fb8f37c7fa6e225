//! Decides which silent nodes are dead, by two clocks: the store's, which compares heartbeats, and this process's own,
//! which must have seen the same heartbeat for nearly as long. Pure: `maintenance` passes in what a survey lists and hands
//! the verdict to [`Store::recover`](crate::store::Store::recover), which compares the heartbeat once more.
//!
//! One clock is not enough. After an outage, or a jump of the store's clock, every heartbeat is old, and the first node
//! that is back would declare all others dead.

use std::time::{Duration, Instant};

use foldhash::HashMap;

use crate::model::clock::Timestamp;
use crate::store::{NodeId, Silent};

/// What this process has seen of nodes that are silent.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// The heartbeat of each, with when it was first seen.
    seen: HashMap<NodeId, (Timestamp, Instant)>,
    /// When the last look that was answered began.
    looked: Option<Instant>,
}

/// The longest time between two answered looks, for leases so short that a third of them is less: a busy machine must not
/// keep the dead alive. Looks are at most 0.8 s apart.
const TOUCH_LEAST: Duration = Duration::from_secs(2);

impl Silence {
    /// Takes in a look at the store that was asked for and answered at these times. Returns who is dead by this process's
    /// clock.
    pub(crate) fn look(
        &mut self,
        silent: &[Silent],
        asked: Instant,
        answered: Instant,
        lease: Duration,
    ) -> Vec<Silent> {
        if self.looked.is_some_and(|looked| answered.saturating_duration_since(looked) > longest_gap(lease)) {
            // While this process was out of touch, others may have been too, and could not renew themselves.
            self.seen.clear();
        }
        self.looked = Some(asked);
        let before = std::mem::take(&mut self.seen);
        let first = |node: &Silent| before.get(&node.node).filter(|(beat, _)| *beat == node.heartbeat_at);
        self.seen = silent
            .iter()
            .map(|node| (node.node, (node.heartbeat_at, first(node).map_or(answered, |(_, since)| *since))))
            .collect();
        let is_dead = |node: &&Silent| {
            let (_, since) = self.seen[&node.node];
            asked.saturating_duration_since(since) >= lease.mul_f64(SEEN_FOR)
        };
        silent.iter().filter(is_dead).copied().collect()
    }
}

/// For which part of the lease a heartbeat must have been seen unchanged. A survey lists a node after a tenth of the lease;
/// what is left makes up for the time between two looks, so that the dead are found within the lease and a second.
const SEEN_FOR: f64 = 0.8;

/// How long this process may be out of touch with the store without others being suspected of the same: a node renews
/// itself every third of its lease, so an outage of a third leaves it a third to come back.
fn longest_gap(lease: Duration) -> Duration {
    (lease / 3).max(TOUCH_LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn silent(node: i64, beat: i64) -> Silent {
        Silent { node: NodeId(node), heartbeat_at: Timestamp::from_millis(beat) }
    }

    /// Looks once a second, each answered at once, until one says that somebody is dead.
    fn dead_after(silence: &mut Silence, from: Instant, listed: impl Fn(u64) -> Vec<Silent>) -> Option<u64> {
        (0..60).find(|second| {
            let at = from + Duration::from_secs(*second);
            !silence.look(&listed(*second), at, at, LEASE).is_empty()
        })
    }

    #[test]
    fn a_node_that_stays_silent_is_dead_after_eight_tenths_of_the_lease() {
        assert_eq!(dead_after(&mut Silence::default(), Instant::now(), |_| vec![silent(1, 5)]), Some(8));
    }

    #[test]
    fn a_node_that_beats_now_and_then_lives() {
        let beats = |second: u64| vec![silent(1, (second / 7) as i64)];
        assert_eq!(dead_after(&mut Silence::default(), Instant::now(), beats), None);
    }

    #[test]
    fn after_an_outage_everybody_has_time_to_beat() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let (one, other) = (silent(1, 5), silent(2, 5));
        assert_eq!(silence.look(&[one, other], start, start, LEASE), []);
        let back = start + Duration::from_secs(60);
        assert_eq!(silence.look(&[one, other], back, back, LEASE), [], "nobody could beat meanwhile");
        // One of them comes back, the other does not.
        let dead = dead_after(&mut silence, back + Duration::from_secs(1), |_| vec![other]);
        assert_eq!(dead, Some(7));
    }

    /// A look that takes long is a gap as well: nobody knows when it was carried out.
    #[test]
    fn a_look_that_was_answered_late_begins_anew() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        silence.look(&[silent(1, 5)], at(0), at(0), LEASE);
        assert_eq!(silence.look(&[silent(1, 5)], at(1), at(30), LEASE), []);
        assert_eq!(silence.look(&[silent(1, 5)], at(31), at(31), LEASE), [], "seen for a second");
    }

    #[test]
    fn a_short_lease_is_not_kept_alive_by_slow_looks() {
        let (mut silence, start, lease) = (Silence::default(), Instant::now(), Duration::from_secs(1));
        let mut at = start;
        let dead = (0..5).any(|_| {
            at += Duration::from_millis(900);
            !silence.look(&[silent(1, 5)], at, at + Duration::from_millis(200), lease).is_empty()
        });
        assert!(dead);
    }
}
