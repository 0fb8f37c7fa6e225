//! Looks at the database itself: who holds old snapshots, what of the schema was changed, and which settings are
//! weak. Called by the store's `examine` and `held_snapshots`. Reads catalogs and statistics only.

use std::time::Duration;

use tokio_postgres::types::Type;
use windlass_core::health::{Checkup, DEAD_LETTERS_COUNTED, Finding, HeldSnapshot, Vitals};
use windlass_core::store::{Error, Result};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::seconds;

/// From this age of the oldest transaction id on, vacuum should be looked after; at two thousand million writes stop.
const XID_WARN: i64 = 500_000_000;
const XID_FAIL: i64 = 1_500_000_000;
/// Dead rows in a table of the queue that are worth a word: claims walk over them.
const DEAD_ROWS: i64 = 100_000;
/// The part of the notification queue that is worth a word; when it is full, commits fail.
const NOTIFICATIONS_WARN: f64 = 0.1;
const NOTIFICATIONS_FAIL: f64 = 0.5;
/// A snapshot held this long has made the queue slow, if there is any work.
const HELD_FAIL: Duration = Duration::from_secs(600);
/// The oldest server that the tests run on.
const SERVER_LEAST: i32 = 150_000;
/// Log kept for a slot that nobody reads from which on the disk is in danger.
const SLOT_FAIL: i64 = 10 << 30;
/// Objects that are named when the schema has drifted; the rest is counted.
const DRIFT_NAMED: usize = 5;

pub(crate) async fn held_snapshots(store: &PgStore, longer_than: Duration) -> Result<Vec<HeldSnapshot>> {
    let params: [Param<'_>; 1] = [(&seconds(longer_than), Type::FLOAT8)];
    let sql = include_str!("../sql/insight/held_snapshots.sql");
    let rows = store.shared.pools.api.query(Access::Read, sql, &params).await?;
    let time = |row: &Row, column: usize| {
        let secs: Option<f64> = row.get(column)?;
        Ok::<_, Error>(secs.map(|secs| Duration::try_from_secs_f64(secs.max(0.0)).unwrap_or_default()))
    };
    let held = |row: &Row| {
        let mut held = HeldSnapshot::new(row.get(0)?, row.get::<_, String>(1)?);
        held.application = row.get(2)?;
        held.user = row.get(3)?;
        held.state = row.get(4)?;
        held.held = time(row, 5)?;
        held.query_since = time(row, 6)?;
        Ok(held)
    };
    Ok(readable(&rows, held))
}

/// How the database is, for those who watch it.
pub(crate) async fn vitals(store: &PgStore) -> Result<Vitals> {
    let params: [Param<'_>; 1] = [(&(DEAD_LETTERS_COUNTED as i64), Type::INT8)];
    let row =
        store.shared.pools.api.query_one(Access::Read, include_str!("../sql/insight/vitals.sql"), &params).await?;
    let mut vitals = Vitals::default();
    vitals.dead_rows = Some(row.get::<_, i64>(0)?.max(0) as u64);
    vitals.notify_use = Some(row.get(1)?);
    vitals.bytes = Some(row.get::<_, i64>(2)?.max(0) as u64);
    vitals.dead_letters = row.get::<_, i64>(3)?.max(0) as u64;
    let oldest: Option<f64> = row.get(4)?;
    vitals.oldest_due = oldest.map(|secs| Duration::try_from_secs_f64(secs.max(0.0)).unwrap_or_default());
    vitals.pools = store.shared.pools.uses();
    Ok(vitals)
}

pub(crate) async fn examine(store: &PgStore, checkup: &Checkup) -> Result<Vec<Finding>> {
    let api = &store.shared.pools.api;
    let params: [Param<'_>; 1] = [(&seconds(checkup.lease), Type::FLOAT8)];
    let row = api.query_one(Access::Read, include_str!("../sql/insight/examine.sql"), &params).await?;
    let server = Server::of(&row)?;
    let mut findings = snapshots(&held_snapshots(store, checkup.held_after).await?, checkup.held_after, &server);
    findings.push(drift(store, &server).await?);
    findings.extend(server.findings());
    findings.push(dead_rows(store).await?);
    if !server.recovery {
        let slots = api.query(Access::Read, include_str!("../sql/insight/idle_slots.sql"), &[]).await?;
        findings.extend(idle_slots(&readable(&slots, |row| Ok((row.get(0)?, row.get(1)?)))));
    }
    // Others than superusers may not see how logins are checked; then there is nothing to say.
    if let Ok(rows) = api.query(Access::Read, include_str!("../sql/insight/weak_logins.sql"), &[]).await {
        findings.extend(readable(&rows, |row| {
            let (line, kind, method): (i32, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(Finding::warn(
                "logins",
                format!("line {line} of pg_hba.conf accepts `{kind}` connections with `{method}`"),
                "use scram-sha-256 in that line, then: select pg_reload_conf();",
            ))
        }));
    }
    Ok(findings)
}

fn snapshots(held: &[HeldSnapshot], after: Duration, server: &Server) -> Vec<Finding> {
    let mut findings: Vec<Finding> = held
        .iter()
        .map(|held| match held.held.is_some_and(|held| held >= HELD_FAIL) {
            true => Finding::fail("snapshots", held.to_string(), held.fix()),
            false => Finding::warn("snapshots", held.to_string(), held.fix()),
        })
        .collect();
    if !server.sees_sessions {
        let message = "this role cannot see the snapshots of other roles' sessions";
        findings.push(Finding::warn("snapshots", message, "grant pg_read_all_stats to the role of --db"));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("snapshots", format!("no session holds one for longer than {} s", after.as_secs())));
    }
    findings
}

/// Slots that nobody reads: the log that is kept for them fills the disk sooner or later.
fn idle_slots(slots: &[(String, i64)]) -> Vec<Finding> {
    if slots.is_empty() {
        return vec![Finding::ok("slots", "every replication slot has a reader")];
    }
    let finding = |(slot, kept): &(String, i64)| {
        let message = format!(
            "no one reads the replication slot `{slot}`, and the server keeps {} MiB of log for it",
            kept >> 20
        );
        let fix = HeldSnapshot::new("slot", slot.clone()).fix();
        match *kept >= SLOT_FAIL {
            true => Finding::fail("slots", message, fix),
            false => Finding::warn("slots", message, fix),
        }
    };
    slots.iter().map(finding).collect()
}

/// What of the schema was changed, removed or added since the last migration: `sql/ground/schema.sql`.
const SCHEMA_DRIFT: &str = "select o_name, o_change from windlass.schema_drift()";

async fn drift(store: &PgStore, server: &Server) -> Result<Finding> {
    match &server.noted_on {
        None => {
            let message = "the migrations stored no digests, so nothing can be compared";
            return Ok(Finding::warn("drift", message, "select windlass.note_schema(); -- if you trust the schema"));
        }
        Some(major) if *major != (server.version / 10_000).to_string() => {
            let message = format!("the digests are from PostgreSQL {major}, which prints the schema differently");
            return Ok(Finding::warn("drift", message, "select windlass.note_schema(); -- if you trust the schema"));
        }
        Some(_) => {}
    }
    let rows = store.shared.pools.api.query(Access::Read, SCHEMA_DRIFT, &[]).await?;
    if rows.is_empty() {
        return Ok(Finding::ok("drift", "the schema is as the migrations created it"));
    }
    let named = &rows[..rows.len().min(DRIFT_NAMED)];
    let change = |row: &Row| Ok(format!("{} {}", row.get::<_, String>(0)?, row.get::<_, String>(1)?));
    let mut changes = readable(named, change);
    if rows.len() > DRIFT_NAMED {
        changes.push(format!("and {} more", rows.len() - DRIFT_NAMED));
    }
    let fix = "restore the definitions that `windlass migrate --sql` prints; if the change is intended: \
               select windlass.note_schema();";
    Ok(Finding::fail("drift", changes.join("; "), fix))
}

async fn dead_rows(store: &PgStore) -> Result<Finding> {
    let params: [Param<'_>; 1] = [(&DEAD_ROWS, Type::INT8)];
    let rows =
        store.shared.pools.api.query(Access::Read, include_str!("../sql/insight/dead_rows.sql"), &params).await?;
    Ok(match rows.first() {
        None => Finding::ok("dead rows", format!("no table has {DEAD_ROWS} dead rows")),
        Some(row) => {
            let (table, dead, live): (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let message = format!("table windlass.{table} has {dead} dead rows and {live} live ones");
            let fix = format!("end the session that holds a snapshot, then: vacuum windlass.{table};");
            Finding::warn("dead rows", message, fix)
        }
    })
}

/// What the server says of itself.
struct Server {
    version: i32,
    recovery: bool,
    xid_age: i64,
    mxid_age: i64,
    notifications: f64,
    fsync: bool,
    full_page_writes: bool,
    synchronous_commit: String,
    autovacuum: bool,
    connections_max: i32,
    connections: i32,
    superuser: bool,
    sees_sessions: bool,
    exposed: bool,
    log_parameter_max_length: String,
    log_statement: String,
    log_min_duration: String,
    roles: i32,
    row_security: bool,
    weeks_missing: i32,
    stuck: i64,
    unsaved: i64,
    noted_on: Option<String>,
}

impl Server {
    fn of(row: &Row) -> Result<Server> {
        Ok(Server {
            version: row.get("version")?,
            recovery: row.get("recovery")?,
            xid_age: row.get("xid_age")?,
            mxid_age: row.get("mxid_age")?,
            notifications: row.get("notifications")?,
            fsync: row.get("fsync")?,
            full_page_writes: row.get("full_page_writes")?,
            synchronous_commit: row.get("synchronous_commit")?,
            autovacuum: row.get("autovacuum")?,
            connections_max: row.get("connections_max")?,
            connections: row.get("connections")?,
            superuser: row.get("superuser")?,
            sees_sessions: row.get("sees_sessions")?,
            exposed: row.get("exposed")?,
            log_parameter_max_length: row.get("log_parameter_max_length")?,
            log_statement: row.get("log_statement")?,
            log_min_duration: row.get("log_min_duration")?,
            roles: row.get("roles")?,
            row_security: row.get("row_security")?,
            weeks_missing: row.get("weeks_missing")?,
            stuck: row.get("stuck")?,
            unsaved: row.get("unsaved")?,
            noted_on: row.get("noted_on")?,
        })
    }

    /// What follows from it. Pure.
    fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![
            self.server(),
            age("xids", "transaction ids", self.xid_age),
            age("multixacts", "multixact ids", self.mxid_age),
            self.notifications(),
            self.connections(),
            self.weeks(),
            self.stuck(),
            self.unsaved(),
            self.walls(),
        ];
        findings.extend(self.durability());
        findings.extend(self.privacy());
        findings
    }

    fn server(&self) -> Finding {
        let version = format!("PostgreSQL {}.{}", self.version / 10_000, self.version % 10_000);
        match (self.recovery, self.version < SERVER_LEAST) {
            (true, _) => Finding::fail("server", format!("{version} is a replica"), "name the primary with --db"),
            (_, true) => Finding::fail(
                "server",
                format!("{version} is older than the versions that Windlass is tested with"),
                "upgrade to 15 or newer",
            ),
            _ => Finding::ok("server", version),
        }
    }

    fn notifications(&self) -> Finding {
        let part = format!("{:.1} % of the notification queue is in use", self.notifications * 100.0);
        let fix = "end the session that listens inside a transaction: \
                   select pid from pg_stat_activity where state = 'idle in transaction' and query ilike 'listen%';";
        match self.notifications {
            used if used >= NOTIFICATIONS_FAIL => Finding::fail("notify", part, fix),
            used if used >= NOTIFICATIONS_WARN => Finding::warn("notify", part, fix),
            _ => Finding::ok("notify", part),
        }
    }

    fn connections(&self) -> Finding {
        let (used, max) = (self.connections, self.connections_max);
        match used * 5 >= max * 4 {
            true => {
                let message = format!("{used} of {max} connections are in use; a node needs about twenty");
                Finding::warn("connections", message, "raise max_connections, or put PgBouncer in front")
            }
            false => Finding::ok("connections", format!("{used} of {max} are in use")),
        }
    }

    fn weeks(&self) -> Finding {
        match self.weeks_missing {
            0 => Finding::ok("partitions", "the partitions of this and the next week exist"),
            n => {
                let message = format!(
                    "{n} partitions of this and the next week are missing; their jobs go to the default partition"
                );
                Finding::warn("partitions", message, "select windlass.make_weeks(2);")
            }
        }
    }

    fn stuck(&self) -> Finding {
        match self.stuck {
            0 => Finding::ok("leases", "no dead node holds jobs"),
            n => {
                let message = format!("{n} jobs are held by nodes that have been silent for three leases");
                Finding::fail("leases", message, "start a node with maintenance on: it recovers them within seconds")
            }
        }
    }

    fn unsaved(&self) -> Finding {
        match self.unsaved {
            0 => Finding::ok("saving", "every node runs the jobs that it has held for a minute"),
            n => {
                let message = format!(
                    "live nodes have held {n} jobs for a minute or more without running them: their results cannot be saved"
                );
                let fix = "select pid, state, xact_start from pg_stat_activity where state = 'idle in transaction'; then \
                           end the sessions that lock their leases, or restart the nodes whose /readyz is not 200";
                Finding::fail("saving", message, fix)
            }
        }
    }

    fn walls(&self) -> Finding {
        match (self.roles >= 2, self.row_security) {
            (true, true) => Finding::ok("walls", "row-level security separates tenants"),
            (roles, _) => {
                let why = if roles { "it is not forced on windlass.job" } else { "its roles do not exist" };
                let fix = "run `windlass migrate` as a role that may create roles";
                Finding::warn("walls", format!("row-level security is off: {why}"), fix)
            }
        }
    }

    /// Settings on which durability rests.
    fn durability(&self) -> Vec<Finding> {
        let set = |name: &str, value: &str| format!("alter system set {name} = {value}; select pg_reload_conf();");
        let mut findings = Vec::new();
        if !self.fsync {
            let message = "fsync is off: a crash of the machine can destroy the database";
            findings.push(Finding::fail("durability", message, set("fsync", "on")));
        }
        if !self.full_page_writes {
            let message = "full_page_writes is off: a crash of the machine can corrupt pages";
            findings.push(Finding::fail("durability", message, set("full_page_writes", "on")));
        }
        if self.synchronous_commit == "off" {
            let message = "synchronous_commit is off: a crash can lose acknowledged jobs";
            findings.push(Finding::fail("durability", message, set("synchronous_commit", "on")));
        }
        if !self.autovacuum {
            let message = "autovacuum is off: the queue gets slower and slower";
            findings.push(Finding::fail("vacuum", message, set("autovacuum", "on")));
        }
        if findings.is_empty() {
            findings
                .push(Finding::ok("durability", "fsync, full_page_writes, synchronous_commit and autovacuum are on"));
        }
        findings
    }

    /// Settings on which secrets rest.
    fn privacy(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.superuser {
            let message = "the role of --db is a superuser, which bypasses every restriction";
            findings.push(Finding::warn("role", message, "connect as a role that owns only the schema `windlass`"));
        }
        if self.exposed {
            let message = "the connection to the server crosses a network unencrypted";
            findings.push(Finding::warn("network", message, "add sslmode=verify-full to the URL of --db"));
        }
        let logs = self.log_statement != "none" || self.log_min_duration != "-1";
        if logs && self.log_parameter_max_length != "0" {
            let message = "the server's log may contain payloads, as statement parameters";
            let fix = "alter system set log_parameter_max_length = 0; select pg_reload_conf();";
            findings.push(Finding::warn("logs", message, fix));
        }
        findings
    }
}

fn age(check: &str, what: &str, age: i64) -> Finding {
    let message = format!("the oldest {what} are {age} old");
    let fix = "end the sessions that hold snapshots (see above), then: vacuum freeze;";
    match age {
        age if age >= XID_FAIL => Finding::fail(check, message, fix),
        age if age >= XID_WARN => Finding::warn(check, message, fix),
        _ => Finding::ok(check, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::health::Level;

    fn healthy() -> Server {
        Server {
            version: 150_004,
            recovery: false,
            xid_age: 1_000,
            mxid_age: 1,
            notifications: 0.0,
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".into(),
            autovacuum: true,
            connections_max: 97,
            connections: 10,
            superuser: false,
            sees_sessions: true,
            exposed: false,
            log_parameter_max_length: "-1".into(),
            log_statement: "none".into(),
            log_min_duration: "-1".into(),
            roles: 2,
            row_security: true,
            weeks_missing: 0,
            stuck: 0,
            unsaved: 0,
            noted_on: Some("15".into()),
        }
    }

    /// The worst finding of a check; `Ok` where nothing was found.
    fn level(server: &Server, check: &str) -> Level {
        let findings = server.findings();
        findings.iter().filter(|finding| finding.check == check).map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    /// BEY-10: what cannot be brought about in a test's database follows from what the server says.
    #[test]
    fn each_weakness_of_a_server_is_found_and_comes_with_a_fix() {
        assert!(healthy().findings().iter().all(|finding| finding.level == Level::Ok));
        let sick: [(&str, Level, Server); 18] = [
            ("server", Level::Fail, Server { version: 140_011, ..healthy() }),
            ("server", Level::Fail, Server { recovery: true, ..healthy() }),
            ("xids", Level::Warn, Server { xid_age: XID_WARN, ..healthy() }),
            ("xids", Level::Fail, Server { xid_age: XID_FAIL, ..healthy() }),
            ("multixacts", Level::Warn, Server { mxid_age: XID_WARN, ..healthy() }),
            ("notify", Level::Warn, Server { notifications: 0.2, ..healthy() }),
            ("notify", Level::Fail, Server { notifications: 0.6, ..healthy() }),
            ("connections", Level::Warn, Server { connections: 90, ..healthy() }),
            ("partitions", Level::Warn, Server { weeks_missing: 2, ..healthy() }),
            ("leases", Level::Fail, Server { stuck: 3, ..healthy() }),
            ("saving", Level::Fail, Server { unsaved: 3, ..healthy() }),
            ("walls", Level::Warn, Server { roles: 0, ..healthy() }),
            ("durability", Level::Fail, Server { fsync: false, ..healthy() }),
            ("durability", Level::Fail, Server { synchronous_commit: "off".into(), ..healthy() }),
            ("vacuum", Level::Fail, Server { autovacuum: false, ..healthy() }),
            ("role", Level::Warn, Server { superuser: true, ..healthy() }),
            ("network", Level::Warn, Server { exposed: true, ..healthy() }),
            ("logs", Level::Warn, Server { log_statement: "all".into(), ..healthy() }),
        ];
        for (check, expected, server) in sick {
            assert_eq!(level(&server, check), expected, "{check}");
            let bad = server.findings().into_iter().filter(|finding| finding.level != Level::Ok);
            assert!(bad.clone().count() == 1 && bad.clone().all(|finding| finding.fix.is_some()), "{check}");
        }
    }

    #[test]
    fn a_slot_that_nobody_reads_is_named_with_what_it_keeps() {
        assert_eq!(idle_slots(&[])[0].level, Level::Ok);
        let found = idle_slots(&[("standby_2".into(), SLOT_FAIL), ("old".into(), 5 << 20)]);
        assert_eq!(found.iter().map(|finding| finding.level).collect::<Vec<_>>(), [Level::Fail, Level::Warn]);
        assert!(found[1].message.contains("`old`") && found[1].message.contains("5 MiB"), "{}", found[1].message);
        assert!(found[1].fix.as_deref().is_some_and(|fix| fix.contains("pg_drop_replication_slot('old')")));
    }
}
