//! One job per key: I11, I12, I13.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::Found;
use super::index::Index;

/// Tenant, handler and key.
type Name<'a> = (Uuid, &'a str, &'a str);

pub(super) fn check(index: &Index<'_>, found: &mut Found) {
    keys_have_one_job(index, found);
    held_keys_are_right(index, found);
    duplicates_have_a_reason(index, found);
    unique_jobs_are_alone(index, found);
}

/// I11 and I12. All callers of a key are told one job, until that job is removed. Callers at the same time are I11's; a
/// caller who came after another had been answered is I12's.
fn keys_have_one_job(index: &Index<'_>, found: &mut Found) {
    let mut told: BTreeMap<Name<'_>, Vec<(u64, u64, i64)>> = BTreeMap::new();
    for call in index.calls.values() {
        let (Some(key), Some((job, _, at))) = (&call.asked.key, call.acknowledged()) else { continue };
        let name = (call.asked.tenant, call.asked.handler.as_str(), key.as_str());
        told.entry(name).or_default().push((at, call.called, job));
    }
    let mut stored: BTreeMap<Name<'_>, BTreeSet<i64>> = BTreeMap::new();
    for job in &index.history.dump.jobs {
        let Some(call) = job.call.and_then(|call| index.calls.get(&call)) else { continue };
        if let (Some(key), None) = (&call.asked.key, job.parent) {
            stored.entry((call.asked.tenant, &call.asked.handler, key)).or_default().insert(job.job);
        }
    }
    for (name, calls) in &mut told {
        calls.sort_unstable();
        let (first_at, _, first) = calls[0];
        let other = calls.iter().find(|(_, _, job)| *job != first);
        if let Some((at, called, job)) = other
            && !index.purged.contains(&first)
        {
            let invariant = if *called > first_at { "I12" } else { "I11" };
            let text = format!("key `{}` of `{}` was answered with jobs {first} and {job}", name.2, name.1);
            found.add(invariant, *job, *at, text);
            stored.remove(name);
        }
    }
    for (name, jobs) in stored {
        if jobs.len() > 1 {
            let text = format!("key `{}` of `{}` has {} jobs: {jobs:?}", name.2, name.1, jobs.len());
            found.add("I11", jobs.last().copied(), None, text);
        }
    }
}

/// I11: a key is held once, by a job that was submitted with it. I12: it is held as long as its job is there.
fn held_keys_are_right(index: &Index<'_>, found: &mut Found) {
    let dump = &index.history.dump;
    let mut held: BTreeMap<Name<'_>, i64> = BTreeMap::new();
    for key in dump.keys.iter().filter(|key| key.kind == "i") {
        if let Some(other) = held.insert((key.tenant, &key.scope, &key.key), key.job) {
            let text = format!("key `{}` of `{}` is held by jobs {other} and {}", key.key, key.scope, key.job);
            found.add("I11", key.job, None, text);
        }
    }
    for job in &dump.jobs {
        let Some(call) = job.call.and_then(|call| index.calls.get(&call)) else { continue };
        let (Some(key), None) = (&call.asked.key, job.parent) else { continue };
        let holder = held.get(&(call.asked.tenant, call.asked.handler.as_str(), key.as_str()));
        if holder.is_none() {
            found.add("I12", job.job, None, format!("job {} is there, and its key `{key}` is held by nobody", job.job));
        }
    }
}

/// I11. Who asked without a key cannot be a duplicate.
fn duplicates_have_a_reason(index: &Index<'_>, found: &mut Found) {
    for (number, call) in &index.calls {
        let Some((job, true, at)) = call.acknowledged() else { continue };
        if call.asked.key.is_none() && call.asked.unique.is_none() {
            found.add("I11", job, at, format!("call {number} has no key and was answered as a duplicate of job {job}"));
        }
    }
}

/// I13. Of a unique key, no two jobs have not ended at the same time. A job is surely there from its acknowledgement to
/// the first call that can have ended it; what is uncertain counts as absent.
fn unique_jobs_are_alone(index: &Index<'_>, found: &mut Found) {
    let mut spans: BTreeMap<Name<'_>, BTreeMap<i64, (u64, u64)>> = BTreeMap::new();
    for call in index.calls.values() {
        let (Some(unique), Some((job, _, at))) = (&call.asked.unique, call.acknowledged()) else { continue };
        let Some(end) = index.lives.get(&job).and_then(|life| life.first_end(index.history.dump.mono)) else {
            continue;
        };
        let name = (call.asked.tenant, call.asked.handler.as_str(), unique.as_str());
        let span = spans.entry(name).or_default().entry(job).or_insert((at, end));
        // Duplicates are told later of the same job.
        span.0 = span.0.min(at);
    }
    for (name, jobs) in spans {
        let mut spans: Vec<_> = jobs.into_iter().map(|(job, (from, until))| (from, until, job)).collect();
        spans.sort_unstable();
        let mut longest: Option<(u64, i64)> = None;
        for (from, until, job) in spans {
            if let Some((open, other)) = longest
                && from < open
                && from < until
            {
                let text = format!("unique key `{}` had jobs {other} and {job} at once", name.2);
                found.add("I13", job, from, text);
            }
            longest = longest.max(Some((until, job)));
        }
    }
}
