//! What attempts did and what they cost: I7, I8, I10.

use windlass::suspect::RECOVERIES_BEYOND;

use super::Found;
use super::index::{Claim, Ended, Index, Life};

pub(super) fn check(index: &Index<'_>, found: &mut Found) {
    let undisturbed = nobody_was_lost(index);
    for (job, life) in &index.lives {
        success_had_an_effect(index, *job, life, found);
        bounds_hold(index, *job, life, found);
        costs_are_counted(index, *job, life, undisturbed, found);
        canceled_stays_canceled(index, *job, life, found);
    }
}

/// I7. Success means that the handler did its work under that lease. Callbacks and rows made by other means count only
/// where their handler wrote anything down at all.
fn success_had_an_effect(index: &Index<'_>, job: i64, life: &Life<'_>, found: &mut Found) {
    if index.maker(life).is_none() && life.starts.is_empty() {
        return;
    }
    for finish in &life.finishes {
        let Some(("succeeded", at)) = finish.accepted() else { continue };
        let lease = finish.end.lease;
        if !life.effects.iter().any(|(_, under)| *under == lease) {
            found.add("I7", job, at, format!("job {job} succeeded under lease {lease} without an effect"));
            return;
        }
    }
    // Where the answer was lost, it is not known which lease it was.
    let succeeded = life.place().is_some_and(|place| place.status == "succeeded");
    if succeeded && life.effects.is_empty() {
        found.add("I7", job, None, format!("job {job} has succeeded and never had an effect"));
    }
}

/// I8. Nothing starts beyond its bounds, and nothing is kept beyond them.
fn bounds_hold(index: &Index<'_>, job: i64, life: &Life<'_>, found: &mut Found) {
    let rules = &index.history.rules;
    let asked = index.maker(life).and_then(|call| call.asked.max_attempts);
    // A job that ran beside others may be lost a few times more until it is known not to be the cause.
    let most_recoveries = rules.max_recoveries + RECOVERIES_BEYOND;
    let most_failures = asked.unwrap_or(rules.max_attempts);
    for start in &life.starts {
        let Some(claim) = life.claim(start.lease) else { continue };
        let (failed, recoveries) = (claim.held.failed, claim.held.recoveries);
        if failed >= most_failures {
            let text = format!("job {job} was started after {failed} of {most_failures} failures");
            found.add("I8", job, start.at, text);
        } else if recoveries >= most_recoveries {
            let text = format!("job {job} was started after {recoveries} of {most_recoveries} recoveries");
            found.add("I8", job, start.at, text);
        } else if start.attempt > most_failures + most_recoveries {
            let text = format!("attempt {} of job {job}, with {most_failures} at most", start.attempt);
            found.add("I8", job, start.at, text);
        }
    }
    let Some(place) = life.place() else { return };
    if place.failed > most_failures {
        found.add("I8", job, None, format!("job {job} has failed {} of {most_failures} times", place.failed));
    }
    // A node can be lost between the claim of a job that has had its recoveries and the end that it would have written.
    let lost_at_the_end = life.claims.iter().filter(|claim| claim.held.recoveries >= most_recoveries).count();
    if usize::from(place.recoveries) > usize::from(most_recoveries) + lost_at_the_end {
        found.add("I8", job, None, format!("job {job} has {} of {most_recoveries} recoveries", place.recoveries));
    }
}

/// I8. From one claim to the next the counts change by what happened in between, and by nothing else.
fn costs_are_counted(index: &Index<'_>, job: i64, life: &Life<'_>, undisturbed: bool, found: &mut Found) {
    // A replay starts the counts anew at a moment that is not known.
    if life.was_replayed() {
        return;
    }
    for pair in life.claims.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        if before.at >= after.asked || before.lease == after.lease || index.is_undone(before, after.at) {
            continue;
        }
        let (old, new) = (before.held, after.held);
        let failed_as = |allowed: &[u16]| allowed.contains(&new.failed);
        let wrong = match between(index, life, before, after.at) {
            Between::Unknown => None,
            Between::Ended("retry") => (!failed_as(&[old.failed + 1, 1]))
                .then(|| format!("{} failures became {} by a retry", old.failed, new.failed)),
            Between::Ended(transition) if !failed_as(&[old.failed]) => {
                Some(format!("{} failures became {} by a {transition}", old.failed, new.failed))
            }
            Between::Ended(transition) if undisturbed && new.recoveries != old.recoveries => {
                Some(format!("{} recoveries became {} by a {transition}", old.recoveries, new.recoveries))
            }
            Between::GivenBack if !failed_as(&[old.failed]) || (undisturbed && new.recoveries != old.recoveries) => {
                Some("a node that left in good order charged for it".to_owned())
            }
            Between::Lost if new.recoveries <= old.recoveries => {
                Some(format!("a lost node was not counted: {} recoveries before and after", old.recoveries))
            }
            Between::Lost if !failed_as(&[old.failed]) => {
                Some(format!("{} failures became {} by a lost node", old.failed, new.failed))
            }
            Between::Ended(_) | Between::GivenBack | Between::Lost => None,
        };
        if let Some(wrong) = wrong {
            let text = format!("job {job}, from lease {} to {}: {wrong}", before.lease, after.lease);
            found.add("I8", job, after.at, text);
        }
    }
    lost_at_the_end(index, job, life, found);
}

/// The same for a job that was taken from its last holder and waits.
fn lost_at_the_end(index: &Index<'_>, job: i64, life: &Life<'_>, found: &mut Found) {
    let (Some(last), Some(place)) = (life.claims.last(), life.place()) else { return };
    let waits = matches!(place.table.as_str(), "ready" | "scheduled" | "gated");
    let lost = between(index, life, last, u64::MAX) == Between::Lost;
    if waits && lost && place.recoveries <= last.held.recoveries {
        let text = format!("job {job} was taken from lease {} and is ready without a recovery", last.lease);
        found.add("I8", job, None, text);
    }
}

/// How a lease ended.
#[derive(PartialEq)]
enum Between<'a> {
    /// By this transition.
    Ended(&'a str),
    /// Its node left in good order.
    GivenBack,
    /// Its node was lost.
    Lost,
    Unknown,
}

fn between<'a>(index: &Index<'_>, life: &Life<'a>, claim: &Claim<'_>, until: u64) -> Between<'a> {
    let mut own = life.finishes.iter().filter(|finish| finish.end.lease == claim.lease && finish.called <= until);
    if own.clone().any(|finish| finish.answer == Ended::Unknown) {
        return Between::Unknown;
    }
    if let Some(finish) = own.find(|finish| finish.accepted().is_some()) {
        return Between::Ended(&finish.end.transition);
    }
    if index.nodes.get(&claim.node).is_some_and(|node| node.left) {
        return Between::GivenBack;
    }
    // A process that was killed while it left may have given its jobs back without writing it down.
    let leaving = index
        .procs
        .get(&claim.proc)
        .is_some_and(|proc| proc.down || proc.last_release.is_some_and(|release| release >= claim.at));
    if leaving { Between::Unknown } else { Between::Lost }
}

/// Whether no process was killed and no answer was lost, so that every change is accounted for.
fn nobody_was_lost(index: &Index<'_>) -> bool {
    let finishes = index.lives.values().flat_map(|life| &life.finishes);
    let all_down = index.procs.values().filter(|proc| proc.up).all(|proc| proc.down);
    let recovered = index.lives.values().any(|life| !life.recovered.is_empty());
    all_down && !recovered && finishes.into_iter().all(|finish| finish.answer != Ended::Unknown)
}

/// I10. After a cancel was acknowledged the job does not start, ends as canceled and no other way, and a handler that
/// runs on is told.
fn canceled_stays_canceled(index: &Index<'_>, job: i64, life: &Life<'_>, found: &mut Found) {
    let acknowledged = life.cancels.iter().filter_map(|cancel| match cancel.reply? {
        (reply @ ("canceled" | "requested"), at) => Some((reply, at)),
        _ => None,
    });
    let Some((reply, at)) = acknowledged.min_by_key(|(_, at)| *at) else { return };
    for finish in &life.finishes {
        if let Some((status, when)) = finish.accepted()
            && finish.called > at
            && status != "canceled"
        {
            let text = format!("job {job}: `{status}` was accepted after its cancel had been answered `{reply}`");
            found.add("I10", job, when, text);
            return;
        }
    }
    if reply == "canceled"
        && let Some(claim) = life.claims.iter().find(|claim| claim.asked > at)
    {
        found.add("I10", job, claim.at, format!("job {job} was claimed after it had been canceled"));
        return;
    }
    if let Some(place) = life.place()
        && place.status != "canceled"
        && (place.table != "lease" || reply == "canceled")
    {
        let text = format!("the cancel of job {job} was answered `{reply}`, and it is `{}`", place.status);
        found.add("I10", job, at, text);
        return;
    }
    if reply == "requested" {
        handlers_are_told(index, job, life, at, found);
    }
}

/// A handler that returned by itself a whole lease after its node had heard of the cancel was not told.
fn handlers_are_told(index: &Index<'_>, job: i64, life: &Life<'_>, at: u64, found: &mut Found) {
    for (ended, lease, _) in &life.ends {
        let Some(claim) = life.claim(*lease) else { continue };
        let Some(node) = index.nodes.get(&claim.node) else { continue };
        // The second heartbeat answered after the cancel was surely asked after it.
        let heard = node.beats.get(node.beats.partition_point(|beat| *beat <= at) + 1);
        let told = life.told.iter().any(|(_, under, _)| under == lease);
        let late = heard.is_some_and(|heard| *ended > heard + index.history.rules.lease_us);
        let ran_then = life.starts.iter().any(|start| start.lease == *lease && start.at < at);
        if late && ran_then && !told {
            let text = format!("job {job} ran on under lease {lease} and was not told of its cancel");
            found.add("I10", job, *ended, text);
        }
    }
}
