//! Why a job is not running now, and when it will. Pure: `Store::whereabouts` has the facts, this decides what
//! they mean.

use serde::Serialize;

use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::Status;
use crate::node::suspect::COHORTS_FROM;
use crate::store::{Gate, NodeId, Pause, PauseTarget, Whereabouts};

/// The answer: one reason, in the order in which they have to go away.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
#[non_exhaustive]
pub enum Why {
    /// It has ended.
    Finished {
        /// How.
        status: Status,
        /// When.
        at: Option<Timestamp>,
    },
    /// It runs.
    Running {
        /// Where.
        node: Option<NodeId>,
        /// Since when.
        since: Option<Timestamp>,
        /// Whether it has been asked to stop.
        cancel_requested: bool,
    },
    /// Its start lies ahead.
    NotDue {
        /// When it starts.
        at: Option<Timestamp>,
        /// Whether it waits for a retry.
        retry: bool,
    },
    /// Somebody has paused it, its handler, its tenant or everything.
    Paused {
        /// What, by whom, why and since when.
        pause: Pause,
    },
    /// An earlier job holds its ordering key.
    OrderingKeyHeld {
        /// The key.
        key: String,
        /// Who holds it; unknown for the moment in which it changes hands.
        by: Option<JobId>,
    },
    /// No live node has its handler.
    NoNodeHasHandler {
        /// The handler.
        handler: String,
    },
    /// Its tenant has as many jobs running as it may.
    TenantAtCap {
        /// Jobs that run.
        running: u64,
        /// Jobs that may.
        limit: u64,
    },
    /// Every node that could run it is full.
    NodesAreFull {
        /// Jobs they run now.
        running: usize,
        /// Jobs they can run.
        capacity: usize,
    },
    /// It came back from a lost node; such jobs start a few at a time once they were lost again.
    Suspect {
        /// How many nodes were lost with it.
        recoveries: u16,
    },
    /// It waits for its turn and will start as soon as those before it have.
    Turn {
        /// How many ready jobs come before it, at most.
        ahead: u64,
    },
    /// It waits behind something that is about to open.
    Opening,
}

/// Reads the facts.
pub fn explain(facts: &Whereabouts) -> Why {
    let job = &facts.record;
    let paused = |target: &PauseTarget| facts.pauses.iter().find(|pause| pause.target == *target).cloned();
    match job.status {
        status if status.is_terminal() => return Why::Finished { status, at: job.finished_at },
        Status::Running => {
            let cancel_requested = job.cancel_requested;
            return Why::Running { node: job.node, since: job.started_at, cancel_requested };
        }
        Status::Scheduled | Status::Suspended => return Why::NotDue { at: job.run_at, retry: false },
        Status::Retrying => return Why::NotDue { at: job.run_at, retry: true },
        _ => {}
    }
    if let Some(Gate::OrderingKey(key)) = job.reason.as_deref().and_then(Gate::parse) {
        return Why::OrderingKeyHeld { key, by: facts.key_holder };
    }
    let targets = [PauseTarget::All, PauseTarget::Handler(job.handler.clone()), PauseTarget::Tenant(job.tenant)];
    if let Some(pause) = targets.iter().find_map(paused) {
        return Why::Paused { pause };
    }
    if job.status == Status::Blocked {
        return Why::Opening;
    }
    let able: Vec<_> =
        facts.nodes.iter().filter(|n| n.info.capacity > 0 && n.info.handlers.contains(&job.handler)).collect();
    if able.is_empty() {
        return Why::NoNodeHasHandler { handler: job.handler.clone() };
    }
    if let Some((running, limit)) = facts.cap.filter(|(running, limit)| running >= limit) {
        return Why::TenantAtCap { running, limit };
    }
    let (running, capacity) = able.iter().fold((0, 0), |(r, c), n| (r + n.running, c + n.info.capacity));
    if running >= capacity {
        return Why::NodesAreFull { running, capacity };
    }
    if job.recoveries >= COHORTS_FROM {
        return Why::Suspect { recoveries: job.recoveries };
    }
    Why::Turn { ahead: facts.ahead.unwrap_or(0) }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::Finished { status, at: Some(at) } => write!(f, "it ended as {status} at {at}"),
            Why::Finished { status, at: None } => write!(f, "it ended as {status}"),
            Why::Running { node, since, cancel_requested } => {
                write!(f, "it runs")?;
                node.map_or(Ok(()), |node| write!(f, " on node {}", node.0))?;
                since.map_or(Ok(()), |since| write!(f, " since {since}"))?;
                if *cancel_requested { write!(f, " and has been asked to stop") } else { Ok(()) }
            }
            Why::NotDue { at, retry } => {
                let what = if *retry { "it failed and is tried again" } else { "it starts" };
                match at {
                    Some(at) => write!(f, "{what} at {at}"),
                    None => write!(f, "{what} later"),
                }
            }
            Why::Paused { pause } => {
                write!(f, "{} is paused by {} since {}", pause.target.name(), pause.by, pause.at)?;
                if pause.reason.is_empty() { Ok(()) } else { write!(f, ": {}", pause.reason) }
            }
            Why::OrderingKeyHeld { key, by: Some(job) } => write!(f, "job {job} holds its ordering key `{key}`"),
            Why::OrderingKeyHeld { key, by: None } => write!(f, "its ordering key `{key}` is changing hands"),
            Why::NoNodeHasHandler { handler } => write!(f, "no live node has the handler `{handler}`"),
            Why::TenantAtCap { running, limit } => {
                write!(f, "its tenant may have {limit} jobs running, and {running} run")
            }
            Why::NodesAreFull { running, capacity } => {
                write!(f, "every node that has its handler is full ({running} of {capacity} slots)")
            }
            Why::Suspect { recoveries } => {
                write!(f, "{recoveries} nodes were lost with it; such jobs start a few at a time")
            }
            Why::Turn { ahead } => write!(f, "it waits for its turn; at most {ahead} jobs come before it"),
            Why::Opening => write!(f, "what it waited for is over; it becomes ready in a moment"),
        }
    }
}
