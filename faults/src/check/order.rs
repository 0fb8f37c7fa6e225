//! When jobs run, and beside which others: I14, I15, I16, I18, I21.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::Found;
use super::index::{Claim, Index, Life, Start};

/// The clocks are compared once per run, and converted times are off by what they drift and by how long the comparison
/// took.
const CLOCK_SLACK_US: i64 = 250_000;
/// A node that has heard of a pause may have a claim under way.
const PAUSE_SLACK_US: u64 = 500_000;

pub(super) fn check(index: &Index<'_>, found: &mut Found) {
    nothing_starts_early(index, found);
    urgent_jobs_go_first(index, found);
    keys_run_in_order(index, found);
    limits_hold(index, found);
    pauses_hold(index, found);
}

/// I14. A handler is called when its job is due, by the database's clock.
fn nothing_starts_early(index: &Index<'_>, found: &mut Found) {
    if index.history.rules.database_clock_jumps {
        return;
    }
    for (job, life) in &index.lives {
        let Some(due) = life.job.and_then(|job| job.run_at) else { continue };
        for start in &life.starts {
            let early = due - index.database_time(start.at);
            if early > CLOCK_SLACK_US {
                found.add(
                    "I14",
                    *job,
                    start.at,
                    format!("job {job} was started {} ms before it was due", early / 1000),
                );
            }
        }
    }
}

/// I15. Counts, for each claim, the more urgent jobs of its queue that were surely ready when it was asked and surely not
/// taken when it was answered. At least so many: jobs that came and went during the claim make it smaller, never larger.
fn urgent_jobs_go_first(index: &Index<'_>, found: &mut Found) {
    let slack = index.history.rules.priority_slack;
    if slack == usize::MAX {
        return;
    }
    for (claim, passed_over) in inversions(index) {
        if passed_over > slack {
            let text = format!("lease {} passed over {passed_over} more urgent jobs, with {slack} allowed", claim.1);
            found.add("I15", claim.2, claim.0, text);
        }
    }
}

/// Jobs of one queue and priority: when each was surely ready, and when somebody first asked for it.
#[derive(Default)]
struct Waits {
    stored: Vec<u64>,
    asked: Vec<u64>,
}

/// Claims that passed over more urgent jobs: when, lease and least urgent job of each, and how many it passed over.
pub(super) fn inversions(index: &Index<'_>) -> Vec<((u64, i64, i64), usize)> {
    let mut ready: BTreeMap<(&str, i16), Waits> = BTreeMap::new();
    for life in index.lives.values() {
        let (Some(call), Some(first)) = (index.maker(life), life.claims.iter().min_by_key(|claim| claim.asked)) else {
            continue;
        };
        let Some((_, _, stored)) = call.acknowledged() else { continue };
        let plain = call.asked.delay_us == 0 && call.asked.ordering.is_none() && !call.asked.in_transaction;
        let paused = index.pauses.iter().any(|pause| {
            let meanwhile = pause.from < first.asked && stored < pause.until;
            meanwhile && pause.covers(&call.asked.handler, Some(call.asked.tenant))
        });
        if plain && !paused && stored < first.asked {
            let waits = ready.entry((&first.held.queue, first.held.priority)).or_default();
            waits.stored.push(stored);
            waits.asked.push(first.asked);
        }
    }
    for waits in ready.values_mut() {
        waits.stored.sort_unstable();
        waits.asked.sort_unstable();
    }
    let mut inversions = Vec::new();
    for claim in index.claims.iter().filter(|claim| !claim.born) {
        let mut lowest: HashMap<&str, (i16, i64)> = HashMap::new();
        for held in claim.jobs {
            let least = lowest.entry(&held.queue).or_insert((held.priority, held.job));
            *least = (*least).min((held.priority, held.job));
        }
        for (queue, (priority, job)) in lowest {
            let above = ready.range((queue, priority.saturating_add(1))..=(queue, i16::MAX));
            let passed_over: usize = above
                .filter(|((_, above), _)| *above > priority)
                .map(|(_, waits)| {
                    let waiting = waits.stored.partition_point(|at| *at < claim.asked);
                    waiting.saturating_sub(waits.asked.partition_point(|at| *at <= claim.at))
                })
                .sum();
            if passed_over > 0 {
                inversions.push(((claim.at, claim.lease, job), passed_over));
            }
        }
    }
    inversions
}

/// I16. A job of an ordering key is not started while an earlier one of its key has not ended. Earlier is one that had
/// started before, or that had been acknowledged before the other was asked for and was not to wait.
fn keys_run_in_order(index: &Index<'_>, found: &mut Found) {
    let mut keys: BTreeMap<(Uuid, &str), Vec<Ordered>> = BTreeMap::new();
    for (job, life) in &index.lives {
        let Some(call) = index.maker(life) else { continue };
        let Some(ordering) = &call.asked.ordering else { continue };
        let end = life.first_end(index.history.dump.mono);
        // A process that was stopped after a claim may still call the handler of a job that is not its own any more.
        let own = |start: &&Start| {
            let taken_back = |claim: &Claim<'_>| life.recovered.iter().any(|(at, _)| claim.at < *at && *at <= start.at);
            end.is_some_and(|end| start.at <= end) && !life.claim(start.lease).is_some_and(taken_back)
        };
        let ordered = Ordered {
            job: *job,
            called: call.called,
            stored: call.acknowledged().map(|(_, _, at)| at).filter(|_| call.asked.delay_us == 0),
            started: life.starts.iter().filter(own).map(|start| start.at).min(),
            // What may have ended at any time stands in nobody's way.
            ended: end.unwrap_or(0),
        };
        keys.entry((call.asked.tenant, ordering)).or_default().push(ordered);
    }
    for ((_, key), mut jobs) in keys {
        jobs.sort_unstable_by_key(|job| job.started.unwrap_or(u64::MAX));
        let wrong = started_beside(&jobs).or_else(|| started_before_an_earlier(&jobs));
        if let Some((job, started, other)) = wrong {
            let text = format!("job {job} of ordering key `{key}` was started while {other}, before it, had not ended");
            found.add("I16", job, started, text);
        }
    }
}

/// The sweep by start: what started before is in the way until it has ended.
fn started_beside(jobs: &[Ordered]) -> Option<(i64, u64, i64)> {
    let mut in_the_way: Option<(u64, i64)> = None;
    for job in jobs {
        let started = job.started?;
        if let Some((ended, other)) = in_the_way
            && started < ended
        {
            return Some((job.job, started, other));
        }
        in_the_way = in_the_way.max(Some((job.ended, job.job)));
    }
    None
}

/// The sweep by submit: what was acknowledged before the other was asked for is in the way until it has ended.
fn started_before_an_earlier(jobs: &[Ordered]) -> Option<(i64, u64, i64)> {
    let mut by_stored: Vec<(u64, &Ordered)> = jobs.iter().filter_map(|job| Some((job.stored?, job))).collect();
    by_stored.sort_unstable_by_key(|(stored, _)| *stored);
    let mut by_called: Vec<&Ordered> = jobs.iter().collect();
    by_called.sort_unstable_by_key(|job| job.called);
    let mut earlier = by_stored.into_iter().peekable();
    let mut in_the_way: Option<(u64, i64)> = None;
    for job in by_called {
        while let Some((_, before)) = earlier.next_if(|(stored, _)| *stored < job.called) {
            in_the_way = in_the_way.max(Some((before.ended, before.job)));
        }
        if let (Some((ended, other)), Some(started)) = (in_the_way, job.started)
            && started < ended
        {
            return Some((job.job, started, other));
        }
    }
    None
}

struct Ordered {
    job: i64,
    called: u64,
    stored: Option<u64>,
    started: Option<u64>,
    ended: u64,
}

/// I18. Counts attempts of a limited handler that surely ran at once: from their start to their return, or to when
/// someone else asked for the job. A claim never gets more than it asked for.
fn limits_hold(index: &Index<'_>, found: &mut Found) {
    for claim in index.claims.iter().filter(|claim| !claim.born && claim.jobs.len() > claim.max) {
        let text =
            format!("lease {} got {} jobs where at most {} were asked for", claim.lease, claim.jobs.len(), claim.max);
        found.add("I18", None, claim.at, text);
    }
    for (handler, limit) in &index.history.rules.handler_limits {
        let lives = index.lives.iter().filter(|(_, life)| index.handler(life) == Some(handler));
        // Ends before starts at the same moment.
        let mut edges: Vec<(u64, bool, i64)> = Vec::new();
        for (job, life) in lives {
            for (from, until) in attempts(life) {
                edges.extend([(from, true, *job), (until, false, *job)]);
            }
        }
        edges.sort_unstable();
        let mut running = 0_usize;
        for (at, begins, job) in edges {
            if !begins {
                running -= 1;
                continue;
            }
            running += 1;
            if running > *limit {
                found.add(
                    "I18",
                    job,
                    at,
                    format!("{running} attempts of `{handler}` ran at once, with {limit} allowed"),
                );
                break;
            }
        }
    }
}

/// The attempts of a job whose handlers returned, as long as they surely held it.
fn attempts(life: &Life<'_>) -> Vec<(u64, u64)> {
    let mut attempts = Vec::new();
    for start in &life.starts {
        let Some((returned, ..)) = life.ends.iter().find(|(at, lease, _)| *lease == start.lease && *at >= start.at)
        else {
            continue;
        };
        let told = life.told.iter().filter(|(_, lease, lost)| *lease == start.lease && *lost).map(|(at, ..)| *at);
        let taken = life.claims.iter().filter(|claim| claim.lease != start.lease && claim.at > start.at);
        let until = told.chain(taken.map(|claim| claim.asked)).fold(*returned, u64::min);
        if until > start.at {
            attempts.push((start.at, until));
        }
    }
    attempts
}

/// I21. What a node claims after it has had time to hear of a pause is not started until the resume is called. (It may be
/// claimed, and is then parked.)
fn pauses_hold(index: &Index<'_>, found: &mut Found) {
    // Once for the look that was under way, once for the next.
    let heard = 2 * index.history.rules.poll_us + PAUSE_SLACK_US;
    for pause in &index.pauses {
        for (job, life) in &index.lives {
            let Some(handler) = index.handler(life) else { continue };
            if !pause.covers(handler, index.tenant(life)) {
                continue;
            }
            for start in life.starts.iter().filter(|start| start.at < pause.until) {
                let claimed =
                    life.claim(start.lease).is_some_and(|claim| claim.asked > pause.from.saturating_add(heard));
                if claimed {
                    let text = format!("job {job} was claimed and started while `{}` was paused", pause.target);
                    found.add("I21", *job, start.at, text);
                }
            }
        }
    }
}
