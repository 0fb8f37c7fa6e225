//! Schedules fire when they must, once, and nobody fires who may not: I20, I39.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::Found;
use super::index::Index;
use crate::event::What;

pub(super) fn check(index: &Index<'_>, found: &mut Found) {
    only_the_holder_fires(index, found);
    nothing_fires_while_paused(index, found);
    fired_times_are_those_promised(index, found);
}

/// I20. A fire that is asked after somebody was given a newer epoch is refused. One that was asked before may be accepted:
/// the store decides which of the two comes first.
fn only_the_holder_fires(index: &Index<'_>, found: &mut Found) {
    let leads: Vec<(u64, u64)> = index
        .history
        .events
        .iter()
        .filter_map(|event| match event.what {
            What::Leads { epoch, .. } => Some((event.mono, epoch)),
            _ => None,
        })
        .collect();
    for event in &index.history.events {
        let What::Fired { epoch, asked_at, accepted: true, .. } = &event.what else { continue };
        if let Some((_, newer)) = leads.iter().find(|(at, newer)| newer > epoch && at < asked_at) {
            let text = format!("process {} fired under epoch {epoch}, and epoch {newer} had begun", event.proc);
            found.add("I20", None, event.mono, text);
        }
    }
}

/// I20. From the answer of a pause to the call of its resume, or to the end, a schedule starts no job.
fn nothing_fires_while_paused(index: &Index<'_>, found: &mut Found) {
    let mut paused: BTreeMap<(Uuid, &str), BTreeSet<i64>> = BTreeMap::new();
    let mut compare = |name: &str, before: BTreeSet<i64>, after: &BTreeSet<i64>, at: Option<u64>| {
        if let Some(job) = after.difference(&before).next() {
            found.add("I20", *job, at, format!("schedule `{name}` has started job {job} after its pause was answered"));
        }
    };
    for event in &index.history.events {
        match &event.what {
            What::SchedulePaused { tenant, name, runs } => {
                paused.insert((*tenant, name), runs.iter().copied().collect());
            }
            What::ScheduleResuming { tenant, name, runs } => {
                if let Some(before) = paused.remove(&(*tenant, name.as_str())) {
                    compare(name, before, &runs.iter().copied().collect(), Some(event.mono));
                }
            }
            _ => {}
        }
    }
    for ((tenant, name), before) in paused {
        let started = |job: &&crate::history::Job| job.tenant == tenant && job.schedule.as_deref() == Some(name);
        let after = index.history.dump.jobs.iter().filter(started).map(|job| job.job).collect();
        compare(name, before, &after, None);
    }
}

/// I39. Of one schedule there is one job for a nominal time, and where a row knows the times, they are all there and there
/// are no others.
fn fired_times_are_those_promised(index: &Index<'_>, found: &mut Found) {
    let mut fired: BTreeMap<(Uuid, &str), BTreeMap<i64, i64>> = BTreeMap::new();
    for job in &index.history.dump.jobs {
        let (Some(schedule), Some(nominal), None) = (&job.schedule, job.nominal, job.parent) else { continue };
        if let Some(first) = fired.entry((job.tenant, schedule)).or_default().insert(nominal, job.job) {
            let text = format!("schedule `{schedule}` has jobs {first} and {} for the time {nominal}", job.job);
            found.add("I39", job.job, None, text);
        }
    }
    for promised in &index.history.rules.promised {
        let name = promised.schedule.as_str();
        let fired = fired.remove(&(promised.tenant, name)).unwrap_or_default();
        let wanted: BTreeSet<i64> = promised.times.iter().copied().collect();
        for time in wanted.iter().filter(|time| !fired.contains_key(time)) {
            found.add("I39", None, None, format!("schedule `{name}` has not fired for the time {time}"));
        }
        for (time, job) in fired.iter().filter(|(time, _)| !wanted.contains(time)) {
            let text = format!("schedule `{name}` has fired job {job} for {time}, which is none of its times");
            found.add("I39", *job, None, text);
        }
    }
}
