//! What rows count in the events of their processes. Called by rows; judges nothing, which the checker does.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::event::{Event, What};
use crate::rig::Rig;

/// Ends that the store has accepted.
pub(super) fn accepted(events: &[Event]) -> usize {
    let of = |event: &Event| match &event.what {
        What::FinishReply { replies, .. } => replies.iter().flatten().count(),
        _ => 0,
    };
    events.iter().map(of).sum()
}

/// Jobs whose submit was acknowledged, in order.
pub(super) fn acknowledged(events: &[Event]) -> Vec<i64> {
    let job = |event: &Event| match event.what {
        What::SubmitOk { job, .. } => Some(job),
        _ => None,
    };
    events.iter().filter_map(job).collect()
}

/// Submits that were not acknowledged.
pub(super) fn failures(events: &[Event]) -> usize {
    let failed = |what: &What| matches!(what, What::SubmitRefused { .. } | What::SubmitUnknown { .. });
    events.iter().filter(|event| failed(&event.what)).count()
}

/// Attempts that began.
pub(super) fn starts(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event.what, What::Start { .. })).count()
}

/// Effects that handlers had.
pub(super) fn effects(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event.what, What::Effect { .. })).count()
}

/// Jobs that end in a second, measured over `time`.
pub(super) async fn rate(rig: &Rig, time: Duration) -> Result<f64> {
    let before = accepted(&rig.events()?);
    let began = Instant::now();
    tokio::time::sleep(time).await;
    Ok((accepted(&rig.events()?) - before) as f64 / began.elapsed().as_secs_f64())
}

/// Jobs that were started since then, by one process or by any.
pub(super) fn starts_of(events: &[Event], proc: Option<u32>, since: u64) -> Vec<i64> {
    let job = |event: &Event| match event.what {
        What::Start { job, .. } if event.mono >= since && proc.is_none_or(|proc| proc == event.proc) => Some(job),
        _ => None,
    };
    events.iter().filter_map(job).collect()
}

/// The nodes that a process has been, in order of time: more than one if it was declared dead.
pub(super) fn nodes_of(events: &[Event], proc: u32) -> Vec<i64> {
    let node = |event: &Event| match event.what {
        What::Claim { node, .. } | What::Beat { node, .. } if event.proc == proc => Some(node),
        _ => None,
    };
    let mut nodes: Vec<i64> = events.iter().filter_map(node).collect();
    nodes.dedup();
    nodes
}

/// The node that a process is.
pub(super) fn node_of(events: &[Event], proc: u32) -> Option<i64> {
    nodes_of(events, proc).pop()
}

/// The most recoveries that a claimed job has had.
pub(super) fn most_recoveries(events: &[Event]) -> u16 {
    let most = |event: &Event| match &event.what {
        What::Claim { jobs, .. } => jobs.iter().map(|job| job.recoveries).max(),
        _ => None,
    };
    events.iter().filter_map(most).max().unwrap_or(0)
}

/// Jobs whose end as a dead letter the store has accepted.
pub(super) fn dead_letters(events: &[Event]) -> BTreeSet<i64> {
    let (mut asked, mut dead) = (HashMap::new(), BTreeSet::new());
    for event in events {
        match &event.what {
            What::FinishCall { batch, ends } => drop(asked.insert((event.proc, *batch), ends)),
            What::FinishReply { batch, replies } => {
                let Some(ends) = asked.remove(&(event.proc, *batch)) else { continue };
                let accepted = ends.iter().zip(replies).filter(|(_, reply)| reply.as_deref() == Some("dead_lettered"));
                dead.extend(accepted.map(|(end, _)| end.job));
            }
            _ => {}
        }
    }
    dead
}
