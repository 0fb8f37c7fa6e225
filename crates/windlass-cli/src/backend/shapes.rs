//! What both kinds of places answer with, where the library has no type that is read as well as written. The names of the
//! fields are those of the HTTP API (docs/http.md), and `--json` prints them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass::{JobError, JobId, JobRecord, Payload, Progress, Quota, Status, TenantId, Timestamp};

/// What a watcher of one job sees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct View {
    /// Where the job is.
    pub(crate) status: Status,
    /// How far it has come.
    #[serde(default)]
    pub(crate) progress: Option<Progress>,
    /// What it returned, once it has succeeded.
    #[serde(default)]
    pub(crate) output: Option<Payload>,
    /// What went wrong last.
    #[serde(default)]
    pub(crate) error: Option<JobError>,
}

impl From<&JobRecord> for View {
    fn from(job: &JobRecord) -> View {
        View {
            status: job.status,
            progress: job.progress.clone(),
            output: job.output.clone(),
            error: job.error.clone(),
        }
    }
}

/// Why a job is not running now: the reason with its facts for programs, and a sentence for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Why(Value);

impl Why {
    /// The sentence.
    pub(crate) fn text(&self) -> &str {
        self.0["text"].as_str().unwrap_or_default()
    }
}

impl From<&windlass::Why> for Why {
    fn from(why: &windlass::Why) -> Why {
        let mut value = serde_json::json!(why);
        value["text"] = why.to_string().into();
        Why(value)
    }
}

/// A policy, and whose it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policy {
    /// The policy, if anything is limited.
    pub(crate) quota: Option<Quota>,
    /// Whether it is the tenant's own, not the default.
    pub(crate) own: bool,
}

/// A change of a job's status, with its place among all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// Counts the changes; whoever lost the thread goes on behind it.
    #[serde(default)]
    pub(crate) sequence: u64,
    /// The job.
    pub(crate) job: JobId,
    /// Whose it is.
    pub(crate) tenant: TenantId,
    /// What runs it.
    pub(crate) handler: String,
    /// Where it is now.
    pub(crate) status: Status,
    /// What went wrong, if something did.
    #[serde(default)]
    pub(crate) error: Option<JobError>,
    /// When.
    pub(crate) at: Timestamp,
}

/// Which changes are wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Those behind this one; from now on if nothing is said.
    pub(crate) after: Option<u64>,
    /// Only this handler's.
    pub(crate) handler: Option<String>,
    /// Only changes to one of these; all if there are none.
    pub(crate) statuses: Vec<Status>,
}

impl Wanted {
    /// Whether a change is among them.
    pub(crate) fn matches(&self, event: &Event) -> bool {
        self.handler.as_ref().is_none_or(|handler| *handler == event.handler)
            && (self.statuses.is_empty() || self.statuses.contains(&event.status))
    }
}

/// A handler that live nodes have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Handler {
    /// Its id.
    pub(crate) handler: String,
    /// How many nodes have it.
    pub(crate) nodes: usize,
    /// Whether it is paused.
    pub(crate) paused: bool,
}

/// How many jobs ended in one step of [`ENDED_OVER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Ended {
    pub(crate) succeeded: u64,
    pub(crate) canceled: u64,
    pub(crate) dead_lettered: u64,
}

/// How far back those steps go.
pub(crate) const ENDED_OVER: windlass::Span = windlass::Span::Minutes5;

/// How the process behind a place is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct Condition {
    /// Its loops that have panicked.
    pub(crate) loops: Vec<Loop>,
    /// Why it should not be sent work.
    pub(crate) troubles: Vec<String>,
}

/// A loop of a process.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Loop {
    /// What it does.
    pub(crate) name: String,
    /// How often it has panicked.
    pub(crate) panics: u64,
    /// Whether it does not run properly again.
    pub(crate) down: bool,
    /// What the last panic said.
    #[serde(default)]
    pub(crate) message: Option<String>,
}

/// What waits and runs of one handler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Backlog {
    /// The handler.
    #[serde(alias = "name")]
    pub(crate) handler: String,
    /// The queue where most of them wait.
    #[serde(default)]
    pub(crate) queue: String,
    /// About how many wait for a worker.
    pub(crate) waiting: u64,
    /// About how long the oldest of them has waited.
    pub(crate) oldest_wait_ms: u64,
    /// About how many are behind a pause or an earlier job of their key.
    #[serde(default)]
    pub(crate) blocked: u64,
    /// How many run.
    pub(crate) running: u64,
    /// How many attempts ended per second, lately.
    pub(crate) per_second: f64,
}
