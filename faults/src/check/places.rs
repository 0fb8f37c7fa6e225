//! What the database holds is a state that can be: I22, I24, I25, I26.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::Found;
use super::index::{Index, Life, is_end};
use crate::history::{Job, Place};

/// Longer than any read takes: a status shown after this was read after the one before.
const READ_TAKES_US: u64 = 10_000_000;

pub(super) fn check(index: &Index<'_>, found: &mut Found) {
    for (job, life) in &index.lives {
        places_are_real(*job, life, found);
        steps_are_legal(*job, life, found);
        ended_jobs_stay_ended(*job, life, found);
    }
    counts_are_right(index, found);
    everything_ended(index, found);
    resources_are_back(index, found);
}

/// I22. A job is in one place, in a status of that place.
fn places_are_real(job: i64, life: &Life<'_>, found: &mut Found) {
    if life.places.len() > 1 {
        let tables: Vec<_> = life.places.iter().map(|place| place.table.as_str()).collect();
        found.add("I22", job, None, format!("job {job} is in {} places: {}", tables.len(), tables.join(", ")));
    }
    for place in &life.places {
        let real = match place.table.as_str() {
            "ready" => place.status == "pending",
            "scheduled" => matches!(place.status.as_str(), "scheduled" | "retrying"),
            "gated" => place.status == "blocked",
            "lease" => place.status == "running",
            "outcome" => is_end(&place.status),
            _ => false,
        };
        if !real {
            found.add("I22", job, None, format!("job {job} is `{}` in `{}`", place.status, place.table));
        }
    }
}

/// I22. What a finish led to is what its transition leads to, or canceled, and kept steps follow one another legally.
fn steps_are_legal(job: i64, life: &Life<'_>, found: &mut Found) {
    for finish in &life.finishes {
        let Some((status, at)) = finish.accepted() else { continue };
        let to: &[&str] = match finish.end.transition.as_str() {
            "succeed" => &["succeeded", "canceled"],
            "retry" => &["retrying", "canceled"],
            "dead_letter" => &["dead_lettered", "canceled"],
            "cancel" => &["canceled"],
            "snooze" => &["scheduled", "canceled"],
            // What is given back may find its gate open or closed.
            "release" | "park" | "route" => &["pending", "blocked", "scheduled", "canceled"],
            _ => &[],
        };
        if !to.contains(&status) {
            found.add("I22", job, at, format!("job {job}: `{}` led to `{status}`", finish.end.transition));
        }
    }
    for pair in life.steps.windows(2) {
        let (from, to) = (pair[0].status.as_str(), pair[1].status.as_str());
        // Not every step is kept, so that only what nothing may follow tells. A dead letter goes on when it is replayed.
        if matches!(from, "succeeded" | "canceled") && from != to {
            found.add("I22", job, None, format!("job {job} went from `{from}` to `{to}`"));
        }
    }
}

/// I22. After an accepted end, nobody gets the job, and nobody who looks later is shown anything else. (Dead letters may
/// be replayed.)
fn ended_jobs_stay_ended(job: i64, life: &Life<'_>, found: &mut Found) {
    for finish in &life.finishes {
        let Some((status, at)) = finish.accepted() else { continue };
        let final_end = is_end(status) && !(status == "dead_lettered" && life.was_replayed());
        if final_end && let Some(claim) = life.claims.iter().find(|claim| claim.asked > at) {
            found.add("I22", job, claim.at, format!("job {job} was claimed after it had ended as `{status}`"));
        }
    }
    for (n, seen) in life.seen.iter().enumerate() {
        if !matches!(seen.status, "succeeded" | "canceled") {
            continue;
        }
        let later = &life.seen[n + 1..];
        let changed = later.iter().find(|later| later.at > seen.at + READ_TAKES_US && later.status != seen.status);
        if let Some(later) = changed {
            let text = format!("job {job} was shown as `{}` and later as `{}`", seen.status, later.status);
            found.add("I22", job, later.at, text);
            return;
        }
    }
}

/// I24. The maintained counts are what a recount of the jobs that can be seen gives: purged ones, and those whose time is
/// over, are not counted.
fn counts_are_right(index: &Index<'_>, found: &mut Found) {
    let dump = &index.history.dump;
    let mut excess: BTreeMap<(Uuid, &str), i64> = BTreeMap::new();
    for counter in &dump.counters {
        *excess.entry((counter.tenant, &counter.status)).or_default() += counter.count;
    }
    let hidden: BTreeSet<i64> = dump.hidden.iter().copied().collect();
    for place in dump.places.iter().filter(|place| is_end(&place.status) && !hidden.contains(&place.job)) {
        let Some(row) = index.lives.get(&place.job).and_then(|life| life.job) else { continue };
        *excess.entry((row.tenant, &place.status)).or_default() -= 1;
    }
    for ((tenant, status), excess) in excess.into_iter().filter(|(_, excess)| *excess != 0) {
        let text = format!("the count of `{status}` of tenant {tenant} is off by {excess}");
        found.add("I24", None, None, text);
    }
}

/// I25. After healing everything that was due has ended; and whether or not it was to, nobody who has long been dead
/// holds a job.
fn everything_ended(index: &Index<'_>, found: &mut Found) {
    let (dump, rules) = (&index.history.dump, &index.history.rules);
    let waits = |row: &Job, place: &Place| {
        let later = row.run_at.is_some_and(|at| at > index.database_time(dump.mono));
        let paused =
            index.pauses.iter().any(|pause| pause.until == u64::MAX && pause.covers(&row.handler, Some(row.tenant)));
        (later && place.table == "scheduled") || (paused && matches!(place.table.as_str(), "ready" | "gated"))
    };
    let live = dump.places.iter().filter(|place| !is_end(&place.status));
    let live: Vec<_> = live.filter_map(|place| Some((place, index.lives.get(&place.job)?.job?))).collect();
    let held_keys: BTreeSet<_> = live
        .iter()
        .filter(|(place, row)| waits(row, place))
        .filter_map(|(_, row)| Some((row.tenant, row.ordering.as_deref()?)))
        .collect();
    for (place, row) in live {
        let behind = row.ordering.as_deref().is_some_and(|key| held_keys.contains(&(row.tenant, key)));
        if rules.quiet && !waits(row, place) && !(behind && place.table == "gated") {
            let text = format!("job {} ({}) has not ended: it is `{}`", place.job, row.handler, place.status);
            found.add("I25", place.job, None, text);
        } else if place.table == "lease" && held_by_the_dead(index, place) {
            let text = format!("job {} is held by a node that has long been silent", place.job);
            found.add("I25", place.job, None, text);
        }
    }
}

fn held_by_the_dead(index: &Index<'_>, place: &Place) -> bool {
    let dumped = index.history.dump.mono;
    let claim = index.lives.get(&place.job).zip(place.lease).and_then(|(life, lease)| life.claim(lease));
    let sign = claim.map(|claim| {
        let beat = index.nodes.get(&claim.node).and_then(|node| node.beats.last());
        beat.map_or(claim.at, |beat| claim.at.max(*beat))
    });
    sign.is_some_and(|sign| dumped.saturating_sub(sign) > 3 * index.history.rules.lease_us)
}

/// I26. What was measured is within its bounds, and no session has left anything.
fn resources_are_back(index: &Index<'_>, found: &mut Found) {
    for bound in
        index.history.rules.bounds.iter().filter(|bound| bound.measured > bound.at_most || bound.measured.is_nan())
    {
        let text = format!("{}: {} where at most {} may be", bound.what, bound.measured, bound.at_most);
        found.add("I26", None, None, text);
    }
    for leftover in &index.history.dump.leftovers {
        found.add("I26", None, None, format!("left behind: {leftover}"));
    }
}
