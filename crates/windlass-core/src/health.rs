//! What can be wrong with an installation, as a store finds it by looking at itself (BEY-10). Made by stores, shown by
//! `windlass doctor` and by nodes that warn. Never changes anything.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

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
