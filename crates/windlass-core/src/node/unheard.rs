//! Leases that this node has asked for without hearing whether it got them. If it did, nobody here knows of the jobs, and
//! nobody else takes them while the node lives. `claim` and `submit` report such leases, `maintenance` gives back what they
//! hold. A shortcut only: what nobody reports is missed, and given back when it has been missed for long.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::store::{Error, LeaseId};

/// Leases of calls whose outcome is unknown.
#[derive(Default)]
pub(crate) struct Unheard(Mutex<HashMap<LeaseId, Instant>>);

/// Leases that are remembered: more than calls can fail until they are forgotten, one in tens of milliseconds. Beyond
/// them the long way is taken.
const MOST: usize = 1_000;

impl Unheard {
    /// Takes note of a call that has failed, if it may have been carried out. Its jobs will never run under this lease.
    pub(crate) fn report(&self, lease: LeaseId, error: &Error) {
        if !matches!(error, Error::Unknown(_)) {
            return;
        }
        let mut leases = self.0.lock();
        if leases.len() < MOST {
            leases.insert(lease, Instant::now());
        }
    }

    /// Whether there is anything to look for.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// The leases that were reported less than `patience` ago, and those of them that are `held` still. Others are
    /// forgotten: after so long a call has been carried out or never will be.
    pub(crate) fn leases(&self, patience: Duration, held: &HashSet<LeaseId>) -> HashSet<LeaseId> {
        let mut leases = self.0.lock();
        leases.retain(|lease, since| since.elapsed() < patience || held.contains(lease));
        leases.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_have_been_carried_out_is_looked_for() {
        let unheard = Unheard::default();
        unheard.report(LeaseId(1), &Error::Unavailable("no connection".into()));
        assert!(unheard.is_empty());
        unheard.report(LeaseId(2), &Error::Unknown("the answer was lost".into()));
        assert_eq!(unheard.leases(Duration::from_secs(60), &HashSet::new()), HashSet::from([LeaseId(2)]));
    }

    #[test]
    fn a_lease_is_looked_for_as_long_as_its_call_may_be_under_way() {
        let unheard = Unheard::default();
        unheard.report(LeaseId(1), &Error::Unknown("the answer was lost".into()));
        // Giving it back may fail for long: as long as the store says that it is held, it is.
        let held = HashSet::from([LeaseId(1)]);
        assert_eq!(unheard.leases(Duration::ZERO, &held), held);
        assert!(unheard.leases(Duration::ZERO, &HashSet::new()).is_empty());
        assert!(unheard.is_empty());
    }

    #[test]
    fn an_outage_fills_no_memory() {
        let unheard = Unheard::default();
        for lease in 0..2 * MOST {
            unheard.report(LeaseId(lease as i64), &Error::Unknown("the answer was lost".into()));
        }
        assert_eq!(unheard.leases(Duration::from_secs(60), &HashSet::new()).len(), MOST);
    }
}
