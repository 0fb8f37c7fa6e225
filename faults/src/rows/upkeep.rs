//! Rows about what administrators do and forget: a replica that reads for hours, transaction ids that run out, a backup
//! that is restored. Called by `runner` through the matrix.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio_postgres::Client;
use windlass::health::{Finding, Level};
use windlass_testkit::servers::{PostgresServer, StopMode};

use super::seen::{accepted, failures, rate};
use crate::child::Load;
use crate::event::What;
use crate::history::Undone;
use crate::log::mono;
use crate::rig::{Rig, SOON, connect};

/// F02: a standby reads for long and tells its primary to keep what it sees; a slot that nobody reads keeps the log.
pub(super) async fn slow_replica(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    rig.fleet(2, Load { seed, tasks: 8, job_ms: 5, ..Load::default() }).await?;
    let primary = rig.server.as_ref().context("the row has a server of its own")?;
    let mut standby = tokio::task::block_in_place(|| PostgresServer::standby_of(primary))?;
    standby.set("hot_standby_feedback", "on");
    standby.set("wal_receiver_status_interval", "1s");
    tokio::task::block_in_place(|| standby.restart(StopMode::Fast))?;
    let before = rate(rig, Duration::from_secs(4)).await?;
    let sql = rig.sql().await?;
    rig.fault("a replica reads, and a slot is abandoned");
    sql.query("select pg_create_physical_replication_slot('abandoned', true)", &[]).await?;
    let reader = connect(&standby.url(rig.database())).await?;
    reader.batch_execute("begin isolation level repeatable read; select count(*) from windlass.job").await?;
    let held = "select exists (select 1 from pg_stat_replication where backend_xmin is not null)";
    until(&sql, "the primary to keep what the replica sees", held).await?;
    rig.go_on(Duration::from_secs(rig.profile.times(8, 1_800) as u64)).await;
    let found = told(&rig.findings().await?, |finding| finding.level > Level::Ok);
    rig.demand("doctor names the abandoned slot", &found, found.contains("`abandoned`"));
    rig.demand("doctor names the replica's snapshot", &found, found.contains("old snapshot"));
    let during = rate(rig, Duration::from_secs(4)).await?;
    rig.demand("throughput stays above half", format!("{before:.0} → {during:.0} jobs/s"), during >= before / 2.0);
    reader.batch_execute("rollback").await?;
    sql.query("select pg_drop_replication_slot('abandoned')", &[]).await?;
    rig.healed("a replica reads, and a slot is abandoned");
    rig.quiet(Duration::from_secs(60)).await
}

async fn until(sql: &Client, what: &str, condition: &str) -> Result<()> {
    let began = Instant::now();
    while !sql.query_one(condition, &[]).await?.get::<_, bool>(0) {
        ensure!(began.elapsed() < SOON, "waited {SOON:?} for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// F24: the server is so short of transaction ids that it refuses to write, until it is vacuumed.
pub(super) async fn out_of_transactions(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    rig.fleet(2, Load { seed, ..Load::default() }).await?;
    rig.go_on(Duration::from_secs(2)).await;
    let sql = rig.sql().await?;
    let oldest: i64 = sql.query_one("select min(datfrozenxid::text::bigint) from pg_database", &[]).await?.get(0);
    // Within three million of the end the server refuses; it keeps these for whoever repairs it.
    let next = oldest + (1 << 31) - 2_000_000;
    rig.fault(format!("the next transaction is {next}"));
    let server = rig.server.as_mut().context("the row has a server of its own")?;
    server.set("autovacuum", "off");
    tokio::task::block_in_place(|| skip_transactions(server, next))?;
    let before = failures(&rig.events()?);
    rig.until("callers to be told", SOON, |events| failures(events) > before).await?;
    let found = told(&rig.findings().await?, |finding| finding.check == "xids" && finding.level == Level::Fail);
    rig.demand("doctor says that transaction ids run out", &found, !found.is_empty());
    rig.go_on(Duration::from_secs(3)).await;
    vacuum(rig).await?;
    rig.healed("transactions ran out");
    let before = accepted(&rig.events()?);
    let took = rig.until("work to go on", Duration::from_secs(60), |events| accepted(events) > before).await?;
    let strange = |what: &What| matches!(what, What::SubmitUnknown { code, .. } if code == "internal_error");
    let strange = rig.count(strange)?;
    rig.demand("callers are told that the store is not available", format!("{strange} were told else"), strange == 0);
    rig.demand_within("work goes on after a vacuum", took, Duration::from_secs(15));
    rig.quiet(Duration::from_secs(60)).await
}

fn skip_transactions(server: &mut PostgresServer, next: i64) -> Result<()> {
    /// Transactions in one file of the commit log.
    const IN_A_FILE: i64 = 1 << 20;
    server.stop(StopMode::Fast)?;
    // The state of the transactions around it: none of them has committed.
    let file = server.data_dir().join("pg_xact").join(format!("{:04X}", next / IN_A_FILE));
    std::fs::write(&file, vec![0; 256 << 10])?;
    let owner = std::fs::metadata(server.data_dir())?;
    std::os::unix::fs::chown(&file, Some(std::os::unix::fs::MetadataExt::uid(&owner)), None)?;
    let mut reset = server.program("pg_resetwal");
    let output = reset.args(["-x", &next.to_string(), "-D"]).arg(server.data_dir()).output()?;
    ensure!(output.status.success(), "pg_resetwal: {}", String::from_utf8_lossy(&output.stderr));
    server.start_again()
}

/// Freezes every database, as whoever is on call would.
async fn vacuum(rig: &Rig) -> Result<()> {
    let server = rig.server.as_ref().context("the row has a server of its own")?;
    let admin = connect(&server.admin_url()).await?;
    for row in admin.query("select datname from pg_database where datallowconn", &[]).await? {
        let client = connect(&server.url(row.get(0))).await?;
        client.batch_execute("vacuum (freeze)").await.context("vacuum")?;
    }
    // The one that nobody may connect to is frozen by nobody else.
    let _ = admin.batch_execute("update pg_database set datallowconn = true where datname = 'template0'").await;
    let client = connect(&server.url("template0")).await?;
    client.batch_execute("vacuum (freeze)").await.context("vacuum")?;
    Ok(())
}

/// What doctor found of a kind, for people.
fn told(findings: &[Finding], wanted: impl Fn(&Finding) -> bool) -> String {
    let said: Vec<&str> = findings.iter().filter(|found| wanted(found)).map(|found| found.message.as_str()).collect();
    said.join("; ")
}

/// F51: a backup is taken while nodes work, everything is lost, and the backup is restored: a dump first, then the files of
/// the server with its log up to a chosen point.
pub(super) async fn restored(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    let load = Load { seed, job_ms: 300, transactions: true, ..Load::default() };
    let archive = std::env::temp_dir().join(format!("windlass-archive-{}", std::process::id()));
    std::fs::create_dir_all(&archive)?;
    let primary = rig.server.as_mut().context("the row has a server of its own")?;
    tokio::task::block_in_place(|| primary.archive_to(&archive))?;
    rig.fleet(2, load.clone()).await?;
    from_a_dump(rig).await?;
    to_a_point_in_time(rig, &archive).await?;
    std::fs::remove_dir_all(&archive)?;
    rig.quiet(Duration::from_secs(60)).await
}

/// A dump is restored under another name.
async fn from_a_dump(rig: &mut Rig) -> Result<()> {
    rig.go_on(Duration::from_secs(2)).await;
    let from = mono();
    let (file, old) =
        (std::env::temp_dir().join(format!("windlass-{}.dump", std::process::id())), rig.database().to_owned());
    let server = rig.server.take().context("the row has a server of its own")?;
    tokio::task::block_in_place(|| run(&server, "pg_dump", &["-Fc", "-f", &file.display().to_string(), &old]))?;
    rig.go_on(Duration::from_secs(1)).await;
    lose_everything_since(rig, from);
    server.create_database("restored")?;
    tokio::task::block_in_place(|| run(&server, "pg_restore", &["-d", "restored", &file.display().to_string()]))?;
    std::fs::remove_file(&file)?;
    rig.stay_on(server, "restored");
    go_on_with_the_backup(rig).await
}

/// A copy of the server's files is brought up to a point that was named, and goes on from there.
async fn to_a_point_in_time(rig: &mut Rig, archive: &std::path::Path) -> Result<()> {
    let server = rig.server.take().context("the row has a server of its own")?;
    let backup = tokio::task::block_in_place(|| PostgresServer::backup_of(&server))?;
    let sql = rig.sql().await?;
    rig.go_on(Duration::from_secs(1)).await;
    let from = mono();
    let point = "select pg_walfile_name(pg_create_restore_point('before'))";
    let file: String = sql.query_one(point, &[]).await?.get(0);
    rig.go_on(Duration::from_secs(1)).await;
    // What is archived is whole files only; this ends the one with the point in it.
    sql.query("select pg_switch_wal()", &[]).await?;
    let archived = format!("select coalesce(last_archived_wal >= '{file}', false) from pg_stat_archiver");
    until(&sql, "the log to be archived", &archived).await?;
    lose_everything_since(rig, from);
    let database = rig.database().to_owned();
    drop(sql);
    drop(server);
    let restored = tokio::task::block_in_place(|| backup.recover_to("before", archive))?;
    rig.stay_on(restored, &database);
    let sql = rig.sql().await?;
    until(&sql, "the server to have recovered", "select not pg_is_in_recovery()").await?;
    go_on_with_the_backup(rig).await
}

/// Kills every process. What happened after `from` will not have happened.
fn lose_everything_since(rig: &mut Rig, from: u64) {
    rig.fault("everything after the backup is lost");
    for process in &mut rig.processes {
        process.kill_9();
    }
    rig.rules.undone.push(Undone { from_us: from, to_us: mono() });
}

async fn go_on_with_the_backup(rig: &mut Rig) -> Result<()> {
    rig.healed("everything after the backup is lost");
    for at in 0..rig.processes.len() {
        rig.processes[at].task.url = rig.url.clone();
        rig.restart(at).await?;
    }
    let before = accepted(&rig.events()?);
    let took = rig.until("work to go on", SOON, |events| accepted(events) > before).await?;
    rig.demand_within("work goes on with the backup", took, Duration::from_secs(15));
    rig.go_on(Duration::from_secs(rig.profile.times(3, 30) as u64)).await;
    let found = told(&rig.findings().await?, |finding| finding.level == Level::Fail);
    rig.demand("doctor finds nothing broken", if found.is_empty() { "nothing" } else { &found }, found.is_empty());
    Ok(())
}

/// Runs a program of PostgreSQL against the server.
fn run(server: &PostgresServer, name: &str, args: &[&str]) -> Result<()> {
    let mut program = server.program(name);
    program.args(["--no-password", "-h", "127.0.0.1", "-U", "postgres", "-p", &server.port().to_string()]);
    let output = program.args(args).output().with_context(|| format!("run {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
