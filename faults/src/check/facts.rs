//! What a run amounts to, in numbers for people: gathered from the index and the violations, shown by `report`. Judges
//! nothing.

use serde::{Deserialize, Serialize};

use super::Violation;
use super::index::{Answer, Ended, Index, Life};
use super::order;

/// Numbers of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Submits that were acknowledged as new jobs.
    pub submitted: u64,
    /// Submits that were acknowledged as duplicates.
    pub duplicates: u64,
    /// Submits whose outcome the caller was not told.
    pub unknown: u64,
    /// Submits that were refused.
    pub refused: u64,
    /// Jobs in the database at the end.
    pub stored: u64,
    /// Claims that were answered, and jobs in them.
    pub claims: u64,
    /// Jobs handed out by claims and births.
    pub handed_out: u64,
    /// Calls of handlers.
    pub started: u64,
    /// Effects on the world.
    pub effects: u64,
    /// Jobs that had more than one effect: allowed, since handlers run at least once.
    pub repeated_effects: u64,
    /// Ends of attempts that were accepted.
    pub accepted: u64,
    /// Ends that were refused because the fence was stale.
    pub fenced: u64,
    /// Ends whose outcome the node was not told.
    pub unknown_ends: u64,
    /// Accepted from stale fences: 0 in a good run.
    pub accepted_stale: u64,
    /// Lost jobs: 0 in a good run.
    pub lost: u64,
    /// Jobs taken back from lost nodes.
    pub recoveries: u64,
    /// From the last sign of life of a lost process to the next call of its job's handler, at the longest.
    pub longest_recovery_us: u64,
    /// Attempts that began, by the machine's clock, while an earlier attempt of the same job was still inside its handler.
    pub overlaps: u64,
    /// Claims that passed over more urgent jobs.
    pub inversions: u64,
    /// The most that one claim passed over.
    pub worst_inversion: u64,
    /// Acknowledged cancels.
    pub cancels: u64,
    /// Acknowledged replays.
    pub replays: u64,
    /// Events that were read.
    pub events: u64,
}

impl Facts {
    /// Adds up the facts of several runs; the longest and worst stay the longest and worst.
    pub fn add(&mut self, other: &Facts) {
        let Facts {
            submitted,
            duplicates,
            unknown,
            refused,
            stored,
            claims,
            handed_out,
            started,
            effects,
            repeated_effects,
            accepted,
            fenced,
            unknown_ends,
            accepted_stale,
            lost,
            recoveries,
            longest_recovery_us,
            overlaps,
            inversions,
            worst_inversion,
            cancels,
            replays,
            events,
        } = other;
        self.submitted += submitted;
        self.duplicates += duplicates;
        self.unknown += unknown;
        self.refused += refused;
        self.stored += stored;
        self.claims += claims;
        self.handed_out += handed_out;
        self.started += started;
        self.effects += effects;
        self.repeated_effects += repeated_effects;
        self.accepted += accepted;
        self.fenced += fenced;
        self.unknown_ends += unknown_ends;
        self.accepted_stale += accepted_stale;
        self.lost += lost;
        self.recoveries += recoveries;
        self.longest_recovery_us = self.longest_recovery_us.max(*longest_recovery_us);
        self.overlaps += overlaps;
        self.inversions += inversions;
        self.worst_inversion = self.worst_inversion.max(*worst_inversion);
        self.cancels += cancels;
        self.replays += replays;
        self.events += events;
    }
}

pub(super) fn gather(index: &Index<'_>, violations: &[Violation]) -> Facts {
    let mut facts = Facts { events: index.history.events.len() as u64, ..Facts::default() };
    for call in index.calls.values() {
        match call.answer {
            _ if call.acknowledged().is_some_and(|(_, duplicate, _)| duplicate) => facts.duplicates += 1,
            _ if call.acknowledged().is_some() => facts.submitted += 1,
            Answer::Refused => facts.refused += 1,
            Answer::Unknown => facts.unknown += 1,
            // In a transaction that was rolled back, or whose end is not known.
            Answer::Ok { .. } => {}
        }
    }
    facts.stored = index.history.dump.jobs.len() as u64;
    facts.claims = index.claims.iter().filter(|claim| !claim.born).count() as u64;
    for life in index.lives.values() {
        facts.handed_out += life.claims.len() as u64;
        facts.started += life.starts.len() as u64;
        facts.effects += life.effects.len() as u64;
        facts.repeated_effects += u64::from(life.effects.len() > 1);
        facts.recoveries += life.recovered.len() as u64;
        facts.replays += life.replays.len() as u64;
        facts.overlaps += overlaps(life);
        let acknowledged = |cancel: &&super::index::Cancel<'_>| {
            cancel.reply.is_some_and(|(reply, _)| matches!(reply, "canceled" | "requested"))
        };
        facts.cancels += life.cancels.iter().filter(acknowledged).count() as u64;
        facts.longest_recovery_us = facts.longest_recovery_us.max(longest_recovery(index, life));
        for finish in &life.finishes {
            match finish.answer {
                Ended::Accepted { .. } => facts.accepted += 1,
                Ended::Fenced => facts.fenced += 1,
                Ended::Unknown => facts.unknown_ends += 1,
                Ended::Failed => {}
            }
        }
    }
    let inversions = order::inversions(index);
    facts.inversions = inversions.len() as u64;
    facts.worst_inversion = inversions.iter().map(|(_, passed_over)| *passed_over as u64).max().unwrap_or(0);
    let count = |invariant| violations.iter().filter(|violation| violation.invariant == invariant).count() as u64;
    facts.lost = count("I1");
    facts.accepted_stale = count("I5");
    facts
}

/// Starts while an earlier attempt had neither returned nor been told to stop, by the machine's clock.
fn overlaps(life: &Life<'_>) -> u64 {
    let mut starts = life.starts.clone();
    starts.sort_by_key(|start| start.at);
    let mut overlaps = 0;
    let mut busy_until = 0;
    for start in starts {
        overlaps += u64::from(start.at < busy_until);
        let returned = life.ends.iter().find(|(_, lease, _)| *lease == start.lease).map(|(at, ..)| *at);
        let told = life.told.iter().find(|(_, lease, _)| *lease == start.lease).map(|(at, ..)| *at);
        if let Some(end) = returned.into_iter().chain(told).min() {
            busy_until = busy_until.max(end);
        }
    }
    overlaps
}

/// From the last sign of a process that held the job and lost it to the next start elsewhere.
fn longest_recovery(index: &Index<'_>, life: &Life<'_>) -> u64 {
    let recovered = life.claims.windows(2).filter(|pair| pair[1].held.recoveries > pair[0].held.recoveries);
    let times = recovered.filter_map(|pair| {
        let started = life.starts.iter().find(|start| start.lease == pair[1].lease)?.at;
        let silent = index.procs.get(&pair[0].proc)?.last_sign_before(pair[1].at)?;
        Some(started.saturating_sub(silent))
    });
    times.max().unwrap_or(0)
}
