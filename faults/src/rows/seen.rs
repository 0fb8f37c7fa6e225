//! What rows count in the events of their processes. Called by rows; judges nothing, which the checker does.

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
