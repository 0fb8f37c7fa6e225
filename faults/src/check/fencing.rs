//! Who may write to a job, and when it is whose: I4, I5, I6, I9.

use std::collections::HashMap;

use super::Found;
use super::index::{Claim, Ended, Index, Life, Node, is_end};

pub(super) fn check(index: &Index<'_>, found: &mut Found) {
    leases_are_new(index, found);
    nodes_are_not_robbed(index, found);
    for (job, life) in &index.lives {
        stale_fences_are_refused(index, *job, life, found);
        ends_once(*job, life, found);
        held_by_one(index, *job, life, found);
    }
}

/// I4. A lease belongs to one claim, and a job never gets the same one again. (Leases are made by nodes, each by its own
/// clock, so between nodes they need not grow.)
fn leases_are_new(index: &Index<'_>, found: &mut Found) {
    let mut first: HashMap<i64, (u32, u64)> = HashMap::new();
    for claim in &index.claims {
        let this = (claim.proc, claim.asked);
        let of = *first.entry(claim.lease).or_insert(this);
        // One answer may be written down in parts.
        if of != this {
            let text = format!("lease {} was handed out by two claims, {of:?} and {this:?}", claim.lease);
            found.add("I4", claim.jobs.first().map(|held| held.job), claim.at, text);
        }
    }
    for (job, life) in &index.lives {
        let mut leases: Vec<_> = life.claims.iter().map(|claim| (claim.lease, claim.asked, claim.at)).collect();
        leases.sort_unstable();
        for pair in leases.windows(2).filter(|pair| pair[0].0 == pair[1].0 && pair[0].1 == pair[1].1) {
            let text = format!("job {job} was handed out twice under lease {}", pair[0].0);
            found.add("I4", *job, pair[1].2, text);
        }
    }
}

/// I5. Certainly stale is a lease when the write was asked after a newer claim of the job had been answered, after it
/// had been taken back from its holder or the holder had left, or after the attempt itself had been ended.
fn stale_fences_are_refused(index: &Index<'_>, job: i64, life: &Life<'_>, found: &mut Found) {
    let ends = life.finishes.iter().filter_map(|finish| {
        let (status, at) = finish.accepted()?;
        Some((finish.end.lease, finish.called, at, format!("`{status}`"), is_end(status)))
    });
    let writes = life.writes.iter().filter(|write| write.accepted);
    let writes = writes.map(|write| (write.lease, write.asked, write.at, write.what.to_owned(), false));
    for (lease, asked, at, what, ends_job) in ends.chain(writes) {
        if let Some(why) = certainly_stale(index, life, lease, asked, ends_job) {
            found.add("I5", job, at, format!("job {job}: {what} was accepted from lease {lease}, {why}"));
        }
    }
}

fn certainly_stale(index: &Index<'_>, life: &Life<'_>, lease: i64, asked: u64, ends_job: bool) -> Option<String> {
    let own = life.claim(lease)?;
    let newer = life.claims.iter().find(|claim| claim.lease != lease && own.at < claim.asked && claim.at < asked);
    if let Some(newer) = newer {
        return Some(format!("although lease {} had it already", newer.lease));
    }
    // A claim under way while its node is declared dead keeps its lease until the next look: only a job that was taken back,
    // or whose node has left, is certainly not its own any more.
    // From that node: a claim may be written down just before the recovery from another node that let it have the job.
    let taken_back = |(at, nodes): &(u64, &[i64])| nodes.contains(&own.node) && own.at < *at && *at < asked;
    let taken_back = life.recovered.iter().any(taken_back);
    let left = |node: &Node| node.left && node.gone.is_some_and(|gone| own.at < gone && gone < asked);
    if taken_back || index.nodes.get(&own.node).is_some_and(left) {
        return Some(format!("although its node {} was gone", own.node));
    }
    // Two ends of one attempt that both end the job are I6's.
    life.finishes.iter().find_map(|earlier| {
        let (status, at) = earlier.accepted()?;
        let over = earlier.end.lease == lease && at < asked && !(ends_job && is_end(status));
        over.then(|| format!("although that attempt had ended as `{status}`"))
    })
}

/// I6. Two accepted ends have a replay between them, which only dead letters get; and the last one is what the database
/// says.
fn ends_once(job: i64, life: &Life<'_>, found: &mut Found) {
    let mut ends: Vec<(u64, u64, &str)> = life
        .finishes
        .iter()
        .filter_map(|finish| finish.accepted().map(|(status, at)| (at, finish.called, status)))
        .filter(|(_, _, status)| is_end(status))
        .collect();
    ends.sort_unstable();
    // Replays that nobody was told of leave a trace in the steps.
    let dead_steps = life.steps.iter().filter(|step| step.status == "dead_lettered").count();
    let replays = life.replays.len().max(dead_steps);
    let dead = ends.iter().filter(|(_, _, status)| *status == "dead_lettered").count();
    if ends.len() > 1 && (ends.len() - dead > 1 || ends.len() > replays + 1) {
        let statuses: Vec<_> = ends.iter().map(|(_, _, status)| *status).collect();
        let text = format!("job {job} ended {} times ({}) with {replays} replays", ends.len(), statuses.join(", "));
        found.add("I6", job, ends.last().map(|(at, ..)| *at), text);
        return;
    }
    let (Some(last_called), Some(place)) = (ends.iter().map(|(_, called, _)| *called).max(), life.place()) else {
        return;
    };
    // Answers may come late: each end that was not answered before another was asked may be the last.
    let mut last = ends.iter().filter(|(at, ..)| *at >= last_called);
    let as_stored = last.clone().any(|(_, _, status)| *status == place.status);
    let replayed = last.clone().any(|(_, _, status)| *status == "dead_lettered") && replays >= ends.len();
    if let (false, false, Some((at, _, status))) = (as_stored, replayed, last.next()) {
        let text = format!("job {job} ended as `{status}`, and the database says `{}`", place.status);
        found.add("I6", job, *at, text);
    }
}

/// I9. Nobody got the job while another lease was surely still valid: its node lived on and nothing had been asked that
/// could have ended it.
fn held_by_one(index: &Index<'_>, job: i64, life: &Life<'_>, found: &mut Found) {
    for pair in life.claims.windows(2) {
        let (one, other) = (&pair[0], &pair[1]);
        if one.lease == other.lease {
            continue;
        }
        let in_order = one.at < other.asked;
        let accepted_later = accepted_after(life, one.lease, other.at);
        // In order, an end accepted later is I5's.
        let one_holds = holds_past(index, life, one, other.at) || (accepted_later && !in_order);
        // Without a known order, the second may be the older, answered late; then it must hold too.
        let other_holds = in_order || holds_past(index, life, other, other.at);
        if one_holds && other_holds && !(in_order && accepted_later) {
            let text = format!(
                "job {job} was given to lease {} of node {} while lease {} of node {} was valid",
                other.lease, other.node, one.lease, one.node
            );
            found.add("I9", job, other.at, text);
        }
    }
}

/// Whether a claim surely still held the job at a moment.
fn holds_past(index: &Index<'_>, life: &Life<'_>, claim: &Claim<'_>, at: u64) -> bool {
    let Some(node) = index.nodes.get(&claim.node) else { return false };
    let ended = life.finishes.iter().any(|finish| {
        finish.end.lease == claim.lease && finish.called <= at && !matches!(finish.answer, Ended::Failed)
    });
    !ended && !index.is_undone(claim, at) && node.lives_past(at) && node.gone.is_none_or(|gone| gone > at)
}

fn accepted_after(life: &Life<'_>, lease: i64, at: u64) -> bool {
    let ended = life.finishes.iter().any(|f| f.end.lease == lease && f.called > at && f.accepted().is_some());
    ended || life.writes.iter().any(|write| write.lease == lease && write.asked > at && write.accepted)
}

/// I9. A node is declared dead no sooner than its lease after it was last renewed. The renewal came after the heartbeat
/// before was answered, so that the time between is at most what is compared here.
fn nodes_are_not_robbed(index: &Index<'_>, found: &mut Found) {
    if index.history.rules.database_clock_jumps {
        return;
    }
    let lease = index.history.rules.lease_us;
    for (number, node) in index.nodes.iter().filter(|(_, node)| !node.left) {
        let Some(gone) = node.gone else { continue };
        let beats = &node.beats[..node.beats.partition_point(|beat| *beat < gone)];
        let Some(before) = beats.len().checked_sub(2).map(|n| beats[n]) else { continue };
        if gone - before < lease {
            let text = format!("node {number} was declared dead {} ms after a heartbeat", (gone - before) / 1000);
            found.add("I9", None, gone, text);
        }
    }
}
