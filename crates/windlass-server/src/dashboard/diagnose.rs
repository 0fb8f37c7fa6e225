//! What is broken now, and how the installation is: from facts to what the overview says. Pure; the overview's loader
//! brings the facts.

use std::time::Duration;

use windlass_core::store::{Counts, Pause, PauseTarget};
use windlass_core::{Backlog, FailureGroup, Health, TenantUse, Timestamp};

use super::urls::{encode, term};
use super::views::overview::{Level, Trouble, Vital};
use super::words;

/// Groups of failures that the overview looks at.
pub(crate) const GROUPS: usize = 20;

/// Of those, how many it names: the page of failures has the others.
const NAMED: usize = 5;

/// A failure is of now while it was last seen so long ago.
const RECENT: Duration = Duration::from_secs(3_600);

/// Jobs that are due and have not started for so long are worth a look, and for so long they are a problem.
const WAITS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];

/// Clocks further apart than this make logs hard to read; the queue goes by the store's alone.
const SKEW_MS: i64 = 1_000;

/// When the notification queue is full, commits fail.
const NOTIFY: [f64; 2] = [0.3, 0.7];

/// What is known.
pub(crate) struct Facts<'a> {
    pub(crate) now: Timestamp,
    pub(crate) counts: &'a Counts,
    pub(crate) pauses: &'a [Pause],
    pub(crate) groups: &'a [FailureGroup],
    pub(crate) backlog: &'a [Backlog],
    /// For who operates the installation.
    pub(crate) health: Option<&'a Health>,
    /// For who belongs to a tenant.
    pub(crate) usage: Option<&'a TenantUse>,
}

/// What needs somebody, worst first.
pub(crate) fn troubles(facts: &Facts<'_>) -> Vec<Trouble> {
    let mut troubles = Vec::new();
    troubles.extend(facts.health.into_iter().flat_map(|health| of_installation(facts, health)));
    troubles.extend(facts.pauses.iter().map(of_pause));
    let recent = facts.groups.iter().filter(|group| facts.now.since(group.last_at) <= RECENT);
    troubles.extend(recent.take(NAMED).map(of_failures));
    // Stable: within a level they stay in the order above.
    troubles.sort_by_key(|trouble| std::cmp::Reverse(trouble.level));
    troubles
}

fn of_installation(facts: &Facts<'_>, health: &Health) -> Vec<Trouble> {
    let trouble = |level, title: String, detail: String, link: &str| Trouble {
        level,
        title,
        detail,
        at: None,
        link: link.to_owned(),
    };
    let mut troubles = Vec::new();
    let live: Vec<_> = health.nodes.iter().filter(|node| !node.stale).collect();
    let capacity: usize = live.iter().map(|node| node.record.info.capacity).sum();
    if capacity == 0 && facts.counts.unfinished() > 0 {
        let waiting = words::counted(facts.counts.unfinished(), "job waits", "jobs wait");
        troubles.push(trouble(
            Level::Bad,
            "No node runs jobs".into(),
            format!("{waiting} until a process with workers starts"),
            "/nodes",
        ));
    }
    for node in health.nodes.iter().filter(|node| node.stale) {
        let detail = format!("last heard of {} ago; its jobs are taken over", words::about(node.age));
        troubles.push(trouble(Level::Bad, format!("{} is silent", node.record.info.host), detail, "/nodes"));
    }
    for waits in facts.backlog.iter().filter(|waits| waits.waiting > 0 && capacity > 0) {
        if !live.iter().any(|node| node.record.info.handlers.contains(&waits.handler)) {
            let jobs = words::counted(waits.waiting, "job waits", "jobs wait");
            let link = format!("/jobs?q={}", encode(&term("handler", &waits.handler)));
            troubles.push(trouble(
                Level::Bad,
                format!("No live node has {}", waits.handler),
                format!("{jobs} for it"),
                &link,
            ));
        }
    }
    if let Some(due) = health.oldest_due.filter(|due| *due >= WAITS[0] && !is_all_paused(facts)) {
        let level = if due >= WAITS[1] { Level::Bad } else { Level::Warn };
        let detail = format!("the oldest job that is due has waited for {}", words::duration(due));
        troubles.push(trouble(level, "Jobs wait long".into(), detail, "/handlers"));
    }
    for held in &health.held {
        troubles.push(trouble(
            Level::Warn,
            "Dead rows cannot be removed".into(),
            format!("{held}; to end it: {}", held.fix()),
            "",
        ));
    }
    if health.skew_ms.abs() > SKEW_MS {
        let skew = words::duration(Duration::from_millis(health.skew_ms.unsigned_abs()));
        let detail = format!("this process's clock and the store's are {skew} apart; due times go by the store's");
        troubles.push(trouble(Level::Warn, "A clock is wrong".into(), detail, ""));
    }
    if let Some(part) = health.notify_use.filter(|part| *part >= NOTIFY[0]) {
        let level = if part >= NOTIFY[1] { Level::Bad } else { Level::Warn };
        let detail =
            format!("{:.0}% full; some session listens and does not read. When it is full, commits fail", part * 100.0);
        troubles.push(trouble(level, "The notification queue fills up".into(), detail, ""));
    }
    troubles
}

fn is_all_paused(facts: &Facts<'_>) -> bool {
    facts.pauses.iter().any(|pause| pause.target == PauseTarget::All)
}

fn of_pause(pause: &Pause) -> Trouble {
    let (level, what, link) = match &pause.target {
        PauseTarget::All => (Level::Bad, "Everything".to_owned(), "/handlers"),
        PauseTarget::Handler(handler) => (Level::Warn, handler.clone(), "/handlers"),
        PauseTarget::Tenant(tenant) => (Level::Warn, format!("Tenant {tenant}"), "/tenants"),
    };
    let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
    Trouble {
        level,
        title: format!("{what} is paused"),
        detail: format!("by {}{reason}", pause.by),
        at: Some(pause.at),
        link: link.to_owned(),
    }
}

fn of_failures(group: &FailureGroup) -> Trouble {
    let counts = [(group.dead, "dead"), (group.retrying, "retrying")];
    let counts: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", words::count(*n))).collect();
    let message = if group.message.is_empty() { &group.code } else { &group.message };
    Trouble {
        level: if group.dead > 0 { Level::Bad } else { Level::Warn },
        title: format!("{}: {}", group.handler, words::first_line(message, 120)),
        detail: counts.join(", "),
        at: Some(group.last_at),
        link: format!("/jobs?q={}", encode(&term("signature", &group.signature.to_string()))),
    }
}

/// How the installation is; for who belongs to one tenant, what that uses.
pub(crate) fn vitals(facts: &Facts<'_>) -> Vec<Vital> {
    match (facts.health, facts.usage) {
        (Some(health), _) => of_store(health),
        (None, Some(used)) => of_tenant(used),
        (None, None) => Vec::new(),
    }
}

fn vital(name: &str, value: String, level: Level, note: &str) -> Vital {
    Vital { name: name.to_owned(), value, level, note: note.to_owned() }
}

fn of_store(health: &Health) -> Vec<Vital> {
    let stale = health.nodes.iter().filter(|node| node.stale).count();
    let up = health.nodes.len() - stale;
    let level = |bad: bool, warn: bool| {
        if bad {
            Level::Bad
        } else if warn {
            Level::Warn
        } else {
            Level::Good
        }
    };
    let size = health.bytes.map(|bytes| format!(", {}", words::bytes(bytes))).unwrap_or_default();
    let mut vitals = vec![
        vital("Store", format!("{}{size}", health.store), Level::Good, "Where jobs are kept"),
        vital(
            "Nodes up",
            up.to_string(),
            level(up == 0, stale > 0),
            if stale > 0 { "Some have fallen silent" } else { "Processes that send heartbeats" },
        ),
    ];
    let oldest = health.oldest_due;
    let wait = oldest.map_or("nothing waits".to_owned(), words::duration);
    let long = |at: Duration| oldest.is_some_and(|due| due >= at);
    vitals.push(vital(
        "Oldest due",
        wait,
        level(long(WAITS[1]), long(WAITS[0])),
        "How long the oldest due job has waited for a worker",
    ));
    vitals.push(vital(
        "Clock skew",
        format!("{} ms", health.skew_ms),
        level(false, health.skew_ms.abs() > SKEW_MS),
        "The store's clock against this process's",
    ));
    for pool in &health.pools {
        vitals.push(vital(
            &format!("Pool {}", pool.name),
            format!("{} of {}", pool.used, pool.max),
            level(false, pool.max > 0 && pool.used >= pool.max),
            "Connections in use; when all are, calls wait",
        ));
    }
    if let Some(rows) = health.dead_rows {
        vitals.push(vital(
            "Dead rows",
            words::short(rows as f64),
            Level::Good,
            "Rows that the database still has to remove",
        ));
    }
    if let Some(part) = health.notify_use {
        vitals.push(vital(
            "Notify queue",
            format!("{:.1}%", part * 100.0),
            level(part >= NOTIFY[1], part >= NOTIFY[0]),
            "When it is full, commits fail",
        ));
    }
    let held = health.held.len();
    if health.dead_rows.is_some() || held > 0 {
        let value = if held == 0 { "none".to_owned() } else { held.to_string() };
        vitals.push(vital(
            "Held snapshots",
            value,
            level(false, held > 0),
            "Old transactions that keep dead rows from being removed",
        ));
    }
    vitals
}

fn of_tenant(used: &TenantUse) -> Vec<Vital> {
    let quota = used.quota.clone().unwrap_or_default();
    let against = |name: &str, n: u64, limit: Option<u64>, note: &str| {
        let level = match limit {
            Some(limit) if n >= limit => Level::Bad,
            Some(limit) if n as f64 >= limit as f64 * 0.9 => Level::Warn,
            _ => Level::Good,
        };
        let value = limit.map_or(words::count(n), |limit| format!("{} of {}", words::count(n), words::count(limit)));
        vital(name, value, level, note)
    };
    vec![
        against("Unfinished", used.queued, quota.queued, "Jobs that have not ended, against your quota"),
        against("Running", used.running, quota.running, "Jobs that run, against your quota"),
    ]
}
