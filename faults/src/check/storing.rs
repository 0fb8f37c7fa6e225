//! What was submitted is what is there: I1, I2, I3.

use std::collections::{BTreeMap, BTreeSet};

use super::Found;
use super::index::{Answer, Index};
use crate::event::TransactionEnd;

pub(super) fn check(index: &Index<'_>, found: &mut Found) {
    nothing_lost(index, found);
    nothing_invented(index, found);
    transactions_are_whole(index, found);
}

/// I1. What was acknowledged, or given to anybody, is in the dump in one place, or was removed on purpose. Callers'
/// transactions are I3's.
fn nothing_lost(index: &Index<'_>, found: &mut Found) {
    for (number, call) in index.calls.iter().filter(|(_, call)| !call.asked.in_transaction) {
        let Some((job, duplicate, at)) = call.acknowledged() else { continue };
        match index.lives.get(&job).and_then(|life| life.job) {
            None if !index.purged.contains(&job) => {
                found.add("I1", job, at, format!("call {number} was answered with job {job}, which is gone"));
            }
            Some(stored) if !duplicate && stored.call.is_some_and(|call| call != *number) => {
                let other = stored.call.unwrap_or_default();
                let text = format!("call {number} was answered with job {job} as new, which is that of call {other}");
                found.add("I1", job, at, text);
            }
            _ => {}
        }
    }
    for (job, life) in &index.lives {
        let told = life.calls.iter().any(|call| index.calls.get(call).is_some_and(|c| c.acknowledged().is_some()));
        let given = life.claims.first().map(|claim| claim.at);
        if life.job.is_none() && !told && given.is_some() && !index.purged.contains(job) {
            found.add("I1", *job, given, format!("job {job} was claimed and is gone"));
        }
        if life.job.is_none() && !told && given.is_none() && !life.places.is_empty() {
            found.add("I2", *job, None, format!("job {job} has a place and no row"));
        }
        if life.job.is_some() && life.places.is_empty() && !index.purged.contains(job) {
            found.add("I1", *job, None, format!("job {job} has a row but is nowhere: it will never run"));
        }
    }
}

/// I2. Every job in the dump was asked for: by one call that was not refused, by another job, by a schedule, or as a note
/// says.
fn nothing_invented(index: &Index<'_>, found: &mut Found) {
    let mut made: BTreeMap<u64, i64> = BTreeMap::new();
    for job in &index.history.dump.jobs {
        let id = job.job;
        let Some(call) = job.call else {
            let parent = job.parent.is_some_and(|parent| {
                index.purged.contains(&parent) || index.lives.get(&parent).is_some_and(|life| life.job.is_some())
            });
            let scheduled = job.schedule.as_deref().is_some_and(|name| index.schedules.contains(&(job.tenant, name)));
            if !parent && !scheduled && !index.declared.contains(&id) {
                found.add("I2", id, None, format!("job {id} ({}) has no origin", job.handler));
            }
            continue;
        };
        let Some(asked) = index.calls.get(&call) else {
            found.add("I2", id, None, format!("job {id} names call {call}, which nobody made"));
            continue;
        };
        if asked.answer == Answer::Refused && !asked.asked.in_transaction {
            found.add("I2", id, asked.called, format!("call {call} was refused, and job {id} is there all the same"));
        }
        if asked.asked.handler != job.handler {
            let text = format!("job {id} is for `{}`, call {call} was for `{}`", job.handler, asked.asked.handler);
            found.add("I2", id, asked.called, text);
        }
        // A replay as a new job has the same input; its parent tells.
        if job.parent.is_none()
            && let Some(first) = made.insert(call, id)
        {
            found.add("I2", id, asked.called, format!("call {call} made two jobs, {first} and {id}"));
        }
    }
}

/// I3. A caller's transaction is all there or not at all: its job and the row that the caller wrote beside it.
fn transactions_are_whole(index: &Index<'_>, found: &mut Found) {
    let dump = &index.history.dump;
    let rows: BTreeSet<u64> = dump.side_rows.iter().copied().collect();
    let jobs: BTreeMap<u64, i64> = dump.jobs.iter().filter_map(|job| Some((job.call?, job.job))).collect();
    for (number, call) in index.calls.iter().filter(|(_, call)| call.asked.in_transaction) {
        let (told, duplicate) = match call.answer {
            Answer::Ok { job, duplicate, .. } => (Some(job), duplicate),
            Answer::Refused | Answer::Unknown => (None, false),
        };
        let stored = jobs.get(number).copied();
        let purged = told.is_some_and(|job| index.purged.contains(&job));
        let there = stored.is_some() || purged;
        let row = rows.contains(number);
        let mut wrong = |text: String| found.add("I3", stored.or(told), call.called, text);
        match call.end.map(|(end, _)| end) {
            Some(TransactionEnd::RolledBack) if stored.is_some() => {
                wrong(format!("the transaction of call {number} was rolled back, and its job is there"));
            }
            Some(TransactionEnd::Committed) if told.is_some() && !duplicate && !there => {
                wrong(format!("the transaction of call {number} was committed, and its job is not there"));
            }
            // With rows beside jobs in use, each has its other half. A duplicate has another call's job, and after a
            // purge the absence of a job whose id was never told says nothing.
            _ if rows.is_empty() || duplicate || call.answer == Answer::Refused => {}
            _ if stored.is_some() && !row => {
                wrong(format!("the job of call {number} is there without its caller's row"))
            }
            _ if row && !there && index.purged.is_empty() => {
                wrong(format!("the caller's row of call {number} is there without its job"));
            }
            _ => {}
        }
    }
}
