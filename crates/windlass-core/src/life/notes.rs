//! What histories and the audit log say about a job. Called by stores when they carry a step out, so that all of them
//! say the same. Never reads a store.

use crate::model::error::{JobError, Reason};
use crate::model::id::JobId;

/// The history's note on a job that was canceled while it waited.
pub fn canceled(by: &str, reason: &str) -> String {
    with_reason(format!("canceled by {by}"), reason)
}

/// The history's note on a running job whose cancel was requested.
pub fn cancel_requested(by: &str, reason: &str) -> String {
    with_reason(format!("cancel requested by {by}"), reason)
}

/// The detail of `JOB_EXHAUSTED_RETRIES`. The code and no more: the message may be sealed, or hold what a tenant wrote.
pub fn exhausted(error: &JobError) -> &str {
    &error.code
}

/// The detail of `JOB_REPLAYED` where another job took the dead letter's place.
pub fn replayed_as(job: JobId) -> String {
    format!("as {job}")
}

/// What ended an attempt whose node was lost. The same for every node, so that such failures are one group.
pub fn node_lost() -> JobError {
    JobError::of(Reason::NodeUnavailable, "the node that ran the job was lost")
}

fn with_reason(note: String, reason: &str) -> String {
    if reason.is_empty() { note } else { format!("{note}: {reason}") }
}
