//! How an installation is: what can be wrong with it, as a store finds it by looking at itself, and what people
//! watch while it works. Made by stores, shown by `windlass doctor`, by the server and by nodes that warn. Never
//! changes anything.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::model::clock::Timestamp;
use crate::model::job::Status;
use crate::node::supervise::LoopHealth;
use crate::store::{Counts, NodeRecord};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: a stable word.
    pub check: String,
    /// How bad it is.
    pub level: Level,
    /// One sentence.
    pub message: String,
    /// What to do about it, a command where there is one; nothing where all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing to do.
    Ok,
    /// It works, and should be looked after.
    Warn,
    /// It does not work, or data is in danger.
    Fail,
}

impl Finding {
    /// All is well.
    pub fn ok(check: &str, message: impl Into<String>) -> Self {
        Finding { check: check.to_owned(), level: Level::Ok, message: message.into(), fix: None }
    }

    /// Something to look after.
    pub fn warn(check: &str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Finding { check: check.to_owned(), level: Level::Warn, message: message.into(), fix: Some(fix.into()) }
    }

    /// Something that is broken.
    pub fn fail(check: &str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Finding { check: check.to_owned(), level: Level::Fail, message: message.into(), fix: Some(fix.into()) }
    }
}

/// Something that keeps the store from removing dead rows: every table grows and every scan gets slower until it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HeldSnapshot {
    /// `session`, `prepared` or `slot`.
    pub kind: String,
    /// The session's process id in the database, the transaction's or the slot's name.
    pub name: String,
    /// The program that holds it, as it calls itself.
    pub application: String,
    /// The role it is connected as.
    pub user: String,
    /// What it does: `active`, `idle in transaction`, …
    pub state: String,
    /// How long it has been held; nothing where the database does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Duration>,
    /// How long ago its last statement began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_since: Option<Duration>,
}

impl HeldSnapshot {
    /// Something of this kind and name; the rest is set by its fields.
    pub fn new(kind: &str, name: impl Into<String>) -> Self {
        HeldSnapshot {
            kind: kind.to_owned(),
            name: name.into(),
            application: String::new(),
            user: String::new(),
            state: String::new(),
            held: None,
            query_since: None,
        }
    }

    /// What ends it.
    pub fn fix(&self) -> String {
        let quoted = self.name.replace('\'', "''");
        match self.kind.as_str() {
            "session" => format!("select pg_terminate_backend({quoted});"),
            "prepared" => format!("rollback prepared '{quoted}'; -- or commit it"),
            _ => format!("select pg_drop_replication_slot('{quoted}'); -- if nobody needs it any more"),
        }
    }
}

impl fmt::Display for HeldSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.as_str() {
            "session" => {
                write!(f, "session {} ({}, role {}, {})", self.name, named(&self.application), self.user, self.state)?;
            }
            "prepared" => write!(f, "prepared transaction `{}` (role {})", self.name, self.user)?,
            _ => write!(f, "replication slot `{}` ({})", self.name, self.state)?,
        }
        match self.held {
            Some(held) => write!(f, " has held an old snapshot for {} s", held.as_secs())?,
            None => write!(f, " holds an old snapshot")?,
        }
        match self.query_since {
            Some(since) => write!(f, ", its last statement began {} s ago", since.as_secs()),
            None => Ok(()),
        }
    }
}

fn named(application: &str) -> &str {
    if application.is_empty() { "no application name" } else { application }
}

/// What to look for in a checkup.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checkup {
    /// Snapshots held longer than this are named.
    pub held_after: Duration,
    /// The lease of nodes; what a node that is silent for three times as long still holds is stuck.
    pub lease: Duration,
}

impl Default for Checkup {
    fn default() -> Self {
        Checkup { held_after: Duration::from_secs(60), lease: Duration::from_secs(10) }
    }
}

/// How an installation is at one moment. Shared by those who ask within a few seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// When it was looked at, by the store's clock.
    pub at: Timestamp,
    /// The store: `memory`, `sqlite`, `postgres`.
    pub store: &'static str,
    /// How many jobs of all tenants are in each status.
    #[serde(serialize_with = "by_status")]
    pub depth: Counts,
    /// Jobs that run.
    pub active: u64,
    /// Jobs that a node said it ran before it fell silent, for longer than the lease: they are about to be recovered.
    pub stale: u64,
    /// Every registered process.
    pub nodes: Vec<NodeHealth>,
    /// What keeps the store from removing dead rows.
    pub held: Vec<HeldSnapshot>,
    /// How far the store's clock is ahead of this process's, in milliseconds. Due times go by the store's.
    pub skew_ms: i64,
    /// The loops of this process that have panicked; those that are down make it not ready.
    pub loops: Vec<LoopHealth>,
    /// Why this process should not be sent work, if it should not.
    pub troubles: Vec<String>,
    /// What the store says of itself.
    #[serde(flatten)]
    pub vitals: Vitals,
}

impl std::ops::Deref for Health {
    type Target = Vitals;
    fn deref(&self) -> &Vitals {
        &self.vitals
    }
}

/// A registered process, and when it was last heard of.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NodeHealth {
    /// The process.
    #[serde(flatten)]
    pub record: NodeRecord,
    /// How long ago its last heartbeat was.
    #[serde(rename = "age_ms", serialize_with = "millis")]
    pub age: Duration,
    /// Whether that is longer than the lease.
    pub stale: bool,
}

impl NodeHealth {
    /// How a node is at `now`. Pure.
    pub fn of(record: NodeRecord, now: Timestamp, lease: Duration) -> NodeHealth {
        let age = now.since(record.heartbeat_at);
        NodeHealth { record, age, stale: age > lease }
    }
}

/// What a store says of itself while it works. What does not exist in a store is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Vitals {
    /// Dead rows in the tables of the queue, as the database estimates them: claims walk over them.
    pub dead_rows: Option<u64>,
    /// The part of the notification queue that is in use, 0 to 1. When it is full, commits fail.
    pub notify_use: Option<f64>,
    /// Connections in use, by what they are for.
    pub pools: Vec<PoolUse>,
    /// How long the oldest job has been due that has not started; nothing where none is.
    #[serde(rename = "oldest_due_ms", serialize_with = "option_millis")]
    pub oldest_due: Option<Duration>,
    /// How many dead letters nobody has replayed or purged, up to [`DEAD_LETTERS_COUNTED`].
    pub dead_letters: u64,
    /// How large the database is.
    pub bytes: Option<u64>,
}

/// Dead letters are counted so far and no further, because they can be many and are counted one by one.
pub const DEAD_LETTERS_COUNTED: usize = 100_000;

/// How much of a pool of connections is in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolUse {
    /// What they are for.
    pub name: String,
    /// In use now.
    pub used: usize,
    /// How many there may be.
    pub max: usize,
}

fn by_status<S: Serializer>(counts: &Counts, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Status::ALL.map(|status| (status.as_str(), counts.get(status))))
}

fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_millis() as u64)
}

fn option_millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_millis() as u64).serialize(serializer)
}
