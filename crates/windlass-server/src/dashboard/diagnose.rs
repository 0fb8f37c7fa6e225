//! What is broken now, and how the installation is: from facts to what the overview says. Pure; the overview's loader
//! brings the facts.

use std::time::Duration;

use windlass_core::store::{AuditEntry, Counts, Pause, PauseTarget};
use windlass_core::{
    Backlog, FailureGroup, Health, Status, TenantUse, Timestamp, WEBHOOK_SWITCHED_OFF, WEBHOOK_SWITCHED_OFF_BY,
};

use super::format;
use super::urls::{encode, term};
use super::views::overview::{Level, Trouble, Vital};

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
    /// Webhooks that are told nothing now.
    pub(crate) hooks: &'a [HookOff],
    /// For who operates the installation.
    pub(crate) health: Option<&'a Health>,
    /// For who belongs to a tenant.
    pub(crate) usage: Option<&'a TenantUse>,
}

/// A webhook that is told nothing now. Its address is not for everyone who sees the overview.
#[derive(Clone, Debug)]
pub(crate) struct HookOff {
    pub(crate) id: String,
    /// What the audit log says last about why.
    pub(crate) last: Option<AuditEntry>,
    /// Whether who asks may see to it.
    pub(crate) may_resume: bool,
}

/// Entries of the audit log, the newest ones about a webhook, that say why it is off: where Windlass has switched it off, its
/// pause stands above the reason.
pub(crate) const WHY_OFF: usize = 2;

/// The entry that says why a webhook is off, from the newest about it.
pub(crate) fn why_off(newest: Vec<AuditEntry>) -> Option<AuditEntry> {
    let is_own_pause = |entry: &AuditEntry| entry.action == "WEBHOOK_PAUSED" && entry.actor == WEBHOOK_SWITCHED_OFF_BY;
    let reason = match newest.as_slice() {
        [pause, before, ..] if is_own_pause(pause) && before.action == WEBHOOK_SWITCHED_OFF => 1,
        _ => 0,
    };
    newest.into_iter().nth(reason)
}

/// What needs somebody, worst first.
pub(crate) fn troubles(facts: &Facts<'_>) -> Vec<Trouble> {
    let mut troubles = Vec::new();
    troubles.extend(facts.health.into_iter().flat_map(|health| of_installation(facts, health)));
    troubles.extend(facts.pauses.iter().map(|pause| of_pause(facts, pause)));
    troubles.extend(facts.hooks.iter().map(of_hook));
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
    let mut troubles = of_process(health);
    let live: Vec<_> = health.nodes.iter().filter(|node| !node.stale).collect();
    let capacity: usize = live.iter().map(|node| node.record.info.capacity).sum();
    if capacity == 0 && facts.counts.unfinished() > 0 {
        let blocked = facts.counts.get(Status::Blocked);
        let waiting = waiting(facts.counts.unfinished() - blocked, blocked);
        troubles.push(trouble(
            Level::Bad,
            "No node runs jobs".into(),
            format!("{waiting}, until a process with workers starts"),
            "/nodes",
        ));
    }
    for node in health.nodes.iter().filter(|node| node.stale) {
        let detail = format!("last heartbeat {} ago; other nodes take over its jobs", format::about(node.age));
        troubles.push(trouble(Level::Bad, format!("{} is silent", node.record.info.host), detail, "/nodes"));
    }
    for waits in facts.backlog.iter().filter(|waits| waits.waiting + waits.blocked > 0 && capacity > 0) {
        if !live.iter().any(|node| node.record.info.handlers.contains(&waits.handler)) {
            let jobs = waiting(waits.waiting, waits.blocked);
            let link = format!("/jobs?q={}", encode(&term("handler", &waits.handler)));
            troubles.push(trouble(Level::Bad, format!("No live node has {}", waits.handler), jobs, &link));
        }
    }
    if let Some(due) = health.oldest_due.filter(|due| *due >= WAITS[0] && !is_all_paused(facts)) {
        let level = if due >= WAITS[1] { Level::Bad } else { Level::Warn };
        let detail = format!("the oldest job that is due has waited for {}", format::duration(due));
        troubles.push(trouble(level, "Jobs wait too long".into(), detail, "/handlers"));
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
        let skew = format::duration(Duration::from_millis(health.skew_ms.unsigned_abs()));
        let detail =
            format!("this process's clock and the store's clock differ by {skew}; due times use the store's clock");
        troubles.push(trouble(Level::Warn, "A clock is wrong".into(), detail, ""));
    }
    if let Some(part) = health.notify_use.filter(|part| *part >= NOTIFY[0]) {
        let level = if part >= NOTIFY[1] { Level::Bad } else { Level::Warn };
        let detail =
            format!("{:.0}% full; a session listens but does not read. When it is full, commits fail", part * 100.0);
        troubles.push(trouble(level, "The notification queue is filling up".into(), detail, ""));
    }
    troubles
}

/// What is wrong with the process that answers: why it should be sent no work, and what has panicked in it.
fn of_process(health: &Health) -> Vec<Trouble> {
    let trouble = |level, title, detail| Trouble { level, title, detail, at: None, link: String::new() };
    let mut troubles = Vec::new();
    for why in &health.troubles {
        let detail = "its readiness probe fails until this is resolved".to_owned();
        troubles.push(trouble(Level::Bad, format!("This server is not ready: {why}"), detail));
    }
    for panicked in health.loops.iter().filter(|of| of.panics > 0) {
        let times = format::counted(panicked.panics, "time", "times");
        let said = panicked.message.as_deref().map(|said| format!(": {}", format::first_line(said, 120)));
        let detail = format!("{times} since this server started{}; please report it", said.unwrap_or_default());
        let level = if panicked.down { Level::Bad } else { Level::Warn };
        troubles.push(trouble(level, format!("`{}` has panicked", panicked.name), detail));
    }
    troubles
}

/// How many jobs wait for a worker, and how many for something else.
fn waiting(waiting: u64, blocked: u64) -> String {
    format!("{}{}", format::counted(waiting, "job waits", "jobs wait"), and_blocked(blocked))
}

fn and_blocked(blocked: u64) -> String {
    if blocked == 0 { String::new() } else { format!(", {} blocked", format::count(blocked)) }
}

/// How many jobs a pause holds, as far as that can be told: of a tenant's jobs nobody counts those behind an earlier one
/// of their key apart.
fn held_by(facts: &Facts<'_>, pause: &Pause) -> Option<u64> {
    match &pause.target {
        PauseTarget::All => Some(facts.counts.get(Status::Blocked)),
        PauseTarget::Handler(handler) => {
            let of_handler = facts.backlog.iter().find(|waits| waits.handler == *handler);
            Some(of_handler.map_or(0, |waits| waits.blocked))
        }
        PauseTarget::Tenant(_) => None,
    }
}

fn is_all_paused(facts: &Facts<'_>) -> bool {
    facts.pauses.iter().any(|pause| pause.target == PauseTarget::All)
}

fn of_pause(facts: &Facts<'_>, pause: &Pause) -> Trouble {
    let (level, what, link) = match &pause.target {
        PauseTarget::All => (Level::Bad, "Everything".to_owned(), "/handlers"),
        PauseTarget::Handler(handler) => (Level::Warn, handler.clone(), "/handlers"),
        PauseTarget::Tenant(tenant) => (Level::Warn, format!("Tenant {tenant}"), "/tenants"),
    };
    let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
    Trouble {
        level,
        title: format!("{what} is paused"),
        detail: format!("by {}{reason}{}", pause.by, and_blocked(held_by(facts, pause).unwrap_or(0))),
        at: Some(pause.at),
        link: link.to_owned(),
    }
}

fn of_hook(hook: &HookOff) -> Trouble {
    let switched_off = hook.last.as_ref().filter(|last| last.action == WEBHOOK_SWITCHED_OFF);
    let (level, what, detail) = match (switched_off, &hook.last) {
        (Some(last), _) => {
            let why = format::first_line(last.detail.as_deref().unwrap_or_default(), 120);
            (Level::Bad, "switched off", format!("{why}; events are not delivered until someone resumes it"))
        }
        (None, Some(last)) => (Level::Warn, "paused", format!("by {}", last.actor)),
        (None, None) => (Level::Warn, "paused", "events are not delivered".to_owned()),
    };
    Trouble {
        level,
        title: format!("Webhook {} is {what}", hook.id),
        detail,
        at: hook.last.as_ref().map(|last| last.at),
        link: if hook.may_resume { "/webhooks".to_owned() } else { String::new() },
    }
}

fn of_failures(group: &FailureGroup) -> Trouble {
    let counts = [(group.dead, "dead"), (group.retrying, "retrying")];
    let counts: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", format::count(*n))).collect();
    let message = if group.message.is_empty() { &group.code } else { &group.message };
    Trouble {
        level: if group.dead > 0 { Level::Bad } else { Level::Warn },
        title: format!("{}: {}", group.handler, format::first_line(message, 120)),
        detail: counts.join(", "),
        at: Some(group.last_at),
        link: format!("/jobs?q={}", encode(&term("signature", &group.signature.to_string()))),
    }
}

/// How the installation is; for who belongs to one tenant, what that uses.
pub(crate) fn vitals(facts: &Facts<'_>) -> Vec<Vital> {
    match (facts.health, facts.usage) {
        (Some(health), _) => of_store(facts, health),
        (None, Some(used)) => of_tenant(used),
        (None, None) => Vec::new(),
    }
}

fn vital(name: &str, value: String, level: Level, note: &str) -> Vital {
    Vital { name: name.to_owned(), value, level, note: note.to_owned() }
}

fn of_store(facts: &Facts<'_>, health: &Health) -> Vec<Vital> {
    let size = health.bytes.map(|bytes| format!(", {}", format::bytes(bytes))).unwrap_or_default();
    let mut vitals = vec![
        vital("Store", format!("{}{size}", health.store), Level::Good, "The database that stores the jobs"),
        nodes_up(health),
        oldest_due(facts, health),
        this_server(health),
        vital(
            "Clock skew",
            format!("{} ms", health.skew_ms),
            level(false, health.skew_ms.abs() > SKEW_MS),
            "The difference between the store's clock and this process's clock",
        ),
    ];
    vitals.extend(health.pools.iter().map(|pool| {
        vital(
            &format!("Pool {}", pool.name),
            format!("{} of {}", pool.used, pool.max),
            level(false, pool.max > 0 && pool.used >= pool.max),
            "Connections in use; when all are in use, calls wait",
        )
    }));
    vitals.extend(of_rows(health));
    vitals
}

fn level(bad: bool, warn: bool) -> Level {
    match (bad, warn) {
        (true, _) => Level::Bad,
        (false, true) => Level::Warn,
        (false, false) => Level::Good,
    }
}

fn nodes_up(health: &Health) -> Vital {
    let stale = health.nodes.iter().filter(|node| node.stale).count();
    let up = health.nodes.len() - stale;
    let note = if stale > 0 { "Some send no heartbeats" } else { "Processes that send heartbeats" };
    vital("Nodes up", up.to_string(), level(up == 0, stale > 0), note)
}

/// How long jobs wait that could start, and whether something holds the others.
fn oldest_due(facts: &Facts<'_>, health: &Health) -> Vital {
    let oldest = health.oldest_due;
    let blocked = health.depth.get(Status::Blocked);
    let wait = match (oldest, blocked) {
        (Some(oldest), _) => format::duration(oldest),
        (None, 0) => "nothing waits".to_owned(),
        (None, _) => "none".to_owned(),
    };
    let long = |at: Duration| oldest.is_some_and(|due| due >= at);
    // Whatever else runs, what a pause holds does not.
    let is_held = blocked > 0 && facts.pauses.iter().any(|pause| held_by(facts, pause) != Some(0));
    // Behind a key a job runs; where none does, a pause or a job that never ends holds them all.
    let held_up = oldest.is_none() && blocked > 0 && health.active == 0;
    let note = match is_held {
        true => "How long the oldest due job has waited for a worker. A pause blocks jobs",
        false => "How long the oldest due job has waited for a worker",
    };
    let level = level(long(WAITS[1]), long(WAITS[0]) || held_up || is_held);
    vital("Oldest due", format!("{wait}{}", and_blocked(blocked)), level, note)
}

fn this_server(health: &Health) -> Vital {
    let panics: u64 = health.loops.iter().map(|of| of.panics).sum();
    let (ready, panicked) = (health.troubles.is_empty(), format::counted(panics, "panic", "panics"));
    let state = if ready { "ready" } else { "not ready" };
    let state = if panics == 0 { state.to_owned() } else { format!("{state}, {panicked}") };
    vital("This server", state, level(!ready, panics > 0), "Whether the process that serves this page can do its work")
}

/// What only some databases have: dead rows, a queue of notifications, snapshots that are held.
fn of_rows(health: &Health) -> Vec<Vital> {
    let mut vitals = Vec::new();
    if let Some(rows) = health.dead_rows {
        vitals.push(vital(
            "Dead rows",
            format::short(rows as f64),
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
        let value = limit.map_or(format::count(n), |limit| format!("{} of {}", format::count(n), format::count(limit)));
        vital(name, value, level, note)
    };
    vec![
        against("Unfinished", used.queued, quota.queued, "Jobs that have not ended, against your quota"),
        against("Running", used.running, quota.running, "Jobs that run, against your quota"),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass_core::{JobService, MemoryStore};

    use super::*;

    /// How an installation is that has just been started.
    async fn health() -> Health {
        let service = JobService::builder(Arc::new(MemoryStore::new())).start().await.expect("starts");
        let health = service.health().await.expect("looks");
        service.shutdown().await;
        health
    }

    fn check(health: &Health, pauses: &[Pause], backlog: &[Backlog]) -> (Vec<Trouble>, Vec<Vital>) {
        let counts = health.depth;
        let facts = Facts {
            now: health.at,
            counts: &counts,
            pauses,
            groups: &[],
            backlog,
            hooks: &[],
            health: Some(health),
            usage: None,
        };
        (troubles(&facts), vitals(&facts))
    }

    fn vital_of<'a>(vitals: &'a [Vital], name: &str) -> (&'a str, Level) {
        let vital = vitals.iter().find(|vital| vital.name == name).expect("a vital of the name");
        (&vital.value, vital.level)
    }

    fn of(handler: &str, waiting: u64, blocked: u64) -> Backlog {
        let mut backlog = Backlog::default();
        (backlog.handler, backlog.waiting, backlog.blocked) = (handler.to_owned(), waiting, blocked);
        backlog
    }

    /// OPS-8: who reads that a webhook is off reads why, not that Windlass has paused it.
    #[test]
    fn a_webhook_is_off_for_the_reason_below_its_pause() {
        let entry = |(actor, action): &(&str, &str)| AuditEntry {
            sequence: 0,
            at: Timestamp::default(),
            actor: (*actor).to_owned(),
            tenant: None,
            action: (*action).to_owned(),
            target: "7".into(),
            detail: None,
        };
        let check = |newest: &[(&str, &str)]| why_off(newest.iter().map(entry).collect()).map(|why| why.action);
        let (paused, off) = ("WEBHOOK_PAUSED", WEBHOOK_SWITCHED_OFF);
        assert_eq!(check(&[("windlass", paused), ("windlass", off)]).as_deref(), Some(off));
        assert_eq!(check(&[("windlass", off), ("windlass", paused)]).as_deref(), Some(off), "two deliveries at once");
        assert_eq!(check(&[("ann", paused), ("windlass", off)]).as_deref(), Some(paused), "ann was quicker");
        assert_eq!(check(&[("windlass", paused)]).as_deref(), Some(paused));
        assert_eq!(check(&[]), None);
    }

    fn pause(target: PauseTarget) -> Pause {
        Pause { target, by: "ann".into(), reason: "deploy".into(), at: Timestamp::default() }
    }

    /// API-5, API-8: what a pause holds is never all right, whatever else runs.
    #[tokio::test]
    async fn blocked_jobs_are_shown_and_a_pause_that_holds_them_warns() {
        let mut health = health().await;
        assert_eq!(vital_of(&check(&health, &[], &[]).1, "Oldest due"), ("nothing waits", Level::Good));
        health.depth.add(Status::Blocked, 1_200);
        health.active = 5;
        let backlog = [of("mail", 0, 1_200), of("images", 0, 0)];
        assert_eq!(vital_of(&check(&health, &[], &backlog).1, "Oldest due"), ("none, 1,200 blocked", Level::Good));
        let of_mail = [pause(PauseTarget::Handler("mail".into()))];
        let (troubles, vitals) = check(&health, &of_mail, &backlog);
        assert_eq!(vital_of(&vitals, "Oldest due"), ("none, 1,200 blocked", Level::Warn));
        let said = troubles.iter().find(|trouble| trouble.title == "mail is paused").expect("it is said");
        assert_eq!(said.detail, "by ann: deploy, 1,200 blocked");
        let of_others = [pause(PauseTarget::Handler("images".into()))];
        assert_eq!(vital_of(&check(&health, &of_others, &backlog).1, "Oldest due").1, Level::Good, "it holds nothing");
        assert_eq!(vital_of(&check(&health, &[pause(PauseTarget::All)], &backlog).1, "Oldest due").1, Level::Warn);
        health.vitals.oldest_due = Some(Duration::from_secs(2));
        assert_eq!(vital_of(&check(&health, &of_mail, &backlog).1, "Oldest due").0, "2 s, 1,200 blocked");
        health.active = 0;
        health.vitals.oldest_due = None;
        assert_eq!(vital_of(&check(&health, &[], &backlog).1, "Oldest due").1, Level::Warn, "nothing runs at all");
    }

    /// API-5: jobs that nobody can run are named also where all of them are blocked.
    #[tokio::test]
    async fn blocked_jobs_of_a_handler_that_nobody_has_are_a_trouble() {
        let health = health().await;
        let (troubles, _) = check(&health, &[], &[of("gone", 0, 3)]);
        let capacity: usize = health.nodes.iter().map(|node| node.record.info.capacity).sum();
        assert!(capacity > 0, "the service runs jobs");
        assert_eq!(troubles[0].title, "No live node has gone");
        assert_eq!(troubles[0].detail, "0 jobs wait, 3 blocked");
    }

    /// API-5, API-8.
    #[tokio::test]
    async fn panics_and_what_makes_a_process_not_ready_are_shown() {
        let service = JobService::builder(Arc::new(MemoryStore::new())).start().await.expect("starts");
        service.supervisor().note_panic("tested", &"as the test wants");
        let mut health = service.health().await.expect("looks");
        service.shutdown().await;
        let (troubles, vitals) = check(&health, &[], &[]);
        assert_eq!(vital_of(&vitals, "This server"), ("ready, 1 panic", Level::Warn));
        assert_eq!((troubles[0].title.as_str(), troubles[0].level), ("`tested` has panicked", Level::Warn));
        assert!(troubles[0].detail.contains("as the test wants"), "{:?}", troubles[0]);
        health.troubles.push("the ends of 3 jobs cannot be saved".to_owned());
        let (troubles, vitals) = check(&health, &[], &[]);
        assert_eq!(vital_of(&vitals, "This server"), ("not ready, 1 panic", Level::Bad));
        assert_eq!(troubles[0].title, "This server is not ready: the ends of 3 jobs cannot be saved");
    }
}
