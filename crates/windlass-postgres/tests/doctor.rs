//! What a PostgreSQL store finds when it looks at itself, with each thing brought about that can be.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::health::{Checkup, Finding, Level};
use windlass_core::store::NewNode;
use windlass_core::store::rooms::*;
use windlass_core::{JobService, SecurityContext, SubmitOptions};
use windlass_postgres::PgStore;

/// The findings of a check, worst first.
async fn found(store: &PgStore, check: &str) -> Vec<Finding> {
    let mut checkup = Checkup::default();
    checkup.held_after = Duration::from_millis(200);
    let mut findings = store.examine(&checkup).await.expect("examines");
    findings.retain(|finding| finding.check == check);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

/// BEY-10.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_holds_a_snapshot_is_named_by_its_pid() {
    let database = common::Database::fresh().await;
    let store = PgStore::connect(&database.url).await.expect("connects");
    let client = database.client().await;
    client.batch_execute("set application_name = 'nightly report'").await.expect("set");
    let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await.expect("a pid").get(0);
    client.batch_execute("begin isolation level repeatable read; select 1").await.expect("a snapshot");
    tokio::time::sleep(Duration::from_millis(400)).await;
    let finding = found(&store, "snapshots").await.remove(0);
    assert_eq!(finding.level, Level::Warn);
    let role: String = client.query_one("select current_user::text", &[]).await.expect("a role").get(0);
    for part in [&format!("session {pid} "), "nightly report", &format!("role {role}"), "idle in transaction"] {
        assert!(finding.message.contains(part), "`{part}` in {}", finding.message);
    }
    assert_eq!(finding.fix, Some(format!("select pg_terminate_backend({pid});")));
    client.batch_execute("rollback").await.expect("rolled back");
    assert!(
        found(&store, "snapshots").await.iter().all(|finding| !finding.message.contains(&format!("session {pid} ")))
    );
}

/// BEY-10: fault F01, a warning within thirty seconds that names the pid.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_node_warns_of_a_held_snapshot() {
    let database = common::Database::fresh().await;
    let store = Arc::new(PgStore::connect(&database.url).await.expect("connects"));
    let jobs = JobService::builder(store).configure(|config| config.held_snapshot_after = Duration::from_secs(1));
    let jobs = jobs.start().await.expect("starts");
    let client = database.client().await;
    let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await.expect("a pid").get(0);
    client.batch_execute("begin isolation level repeatable read; select 1").await.expect("a snapshot");
    let began = Instant::now();
    while !jobs.held_snapshots().iter().any(|held| held.name == pid.to_string()) {
        assert!(began.elapsed() < Duration::from_secs(30), "no warning after thirty seconds");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    client.batch_execute("rollback").await.expect("rolled back");
    while !jobs.held_snapshots().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "still warned of");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    jobs.shutdown().await;
}

/// BEY-10.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_in_the_schema_is_named() {
    let database = common::Database::fresh().await;
    let store = PgStore::connect(&database.url).await.expect("connects");
    let client = database.client().await;
    assert_eq!(found(&store, "drift").await[0].level, Level::Ok, "{:?}", found(&store, "drift").await);
    client
        .batch_execute(
            "create or replace function windlass.rank_of(p_priority smallint) returns smallint language sql immutable as
             $$ select p_priority $$;
             drop index windlass.gated_gate;
             alter table windlass.pause add column extra int;
             alter table windlass.job disable trigger pack;
             select windlass.make_weeks(5);",
        )
        .await
        .expect("someone changes the schema");
    let finding = found(&store, "drift").await.remove(0);
    assert_eq!(finding.level, Level::Fail);
    for part in [
        "function windlass.rank_of(smallint) was changed",
        "index windlass.gated_gate is missing",
        "table windlass.pause was changed",
        "trigger pack on windlass.job was changed",
    ] {
        assert!(finding.message.contains(part), "`{part}` in {}", finding.message);
    }
    assert!(!finding.message.contains("job_p2"), "weeks come and go: {}", finding.message);
}

/// BEY-10: a process that is killed after the migrations, before it raises the walls, leaves no warning behind: whoever
/// comes next raises them, and the schema is known as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_cut_off_leaves_no_drift() {
    let database = common::Database::fresh().await;
    let all = windlass_postgres::migrations_sql();
    let (cut, _) = all.split_once("select windlass.raise_walls();").expect("the walls come last");
    database.client().await.batch_execute(&format!("{cut} commit;")).await.expect("migrates");
    let store = PgStore::connect(&database.url).await.expect("connects");
    assert_eq!(found(&store, "drift").await[0].level, Level::Ok, "{:?}", found(&store, "drift").await);
}

/// BEY-10: leases of nodes that are gone, weeks that are missing, dead rows, and what a role may not see.
#[tokio::test(flavor = "multi_thread")]
async fn stuck_leases_missing_weeks_and_weak_roles_are_found() {
    let database = common::Database::fresh().await;
    let store = PgStore::connect(&database.url).await.expect("connects");
    let client = database.client().await;
    for check in ["leases", "partitions", "dead rows", "xids", "multixacts", "notify"] {
        assert_eq!(found(&store, check).await[0].level, Level::Ok, "{check}");
    }
    let says = "select current_setting('fsync')::bool, (select rolsuper from pg_roles where rolname = current_user)";
    let row = client.query_one(says, &[]).await.expect("settings");
    let (fsync, superuser): (bool, bool) = (row.get(0), row.get(1));
    let unsafe_disk = found(&store, "durability").await.iter().any(|finding| finding.message.contains("fsync is off"));
    assert_eq!((unsafe_disk, !found(&store, "role").await.is_empty()), (!fsync, superuser));
    let jobs =
        JobService::builder(Arc::new(store.clone())).without_workers().configure(|config| config.maintenance = false);
    let jobs = jobs.start().await.expect("starts");
    jobs.submit_named(&SecurityContext::system(), "any", &1, SubmitOptions::new()).await.expect("accepted");
    client
        .batch_execute(
            "insert into windlass.lease (lease_id, part, node_id, claimed_at, failed, recoveries, ids)
             select 1, 0, -1, clock_timestamp() - interval '1 hour', 0, 0, array[id] from windlass.job;
             do $$ declare t text; begin
                 for t in select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
                          where i.inhparent = 'windlass.outcome'::regclass and c.relname like 'outcome\\_p%' loop
                     execute format('drop table windlass.%I', t);
                 end loop;
             end $$",
        )
        .await
        .expect("a node is lost and weeks are dropped");
    let leases = found(&store, "leases").await.remove(0);
    assert_eq!(leases.level, Level::Fail);
    assert!(leases.message.starts_with("1 jobs"), "{}", leases.message);
    let weeks = found(&store, "partitions").await.remove(0);
    assert!(weeks.level == Level::Warn && weeks.message.starts_with("2 partitions of this"), "{}", weeks.message);
    jobs.shutdown().await;
}

/// BEY-10, RUN-10: a live node that has held jobs for long without running them saves nothing, and the doctor sees it.
#[tokio::test(flavor = "multi_thread")]
async fn a_live_node_that_saves_nothing_is_found() {
    let database = common::Database::migrated().await;
    let store = PgStore::connect(&database.url).await.expect("connects");
    let client = database.client().await;
    let node = store.register(NewNode::default()).await.expect("registers").node.0;
    assert_eq!(found(&store, "saving").await[0].level, Level::Ok);
    let lease = async |id: i64, ids: &[i64], held_for: &str| {
        let sql = format!(
            "insert into windlass.lease (lease_id, part, node_id, claimed_at, failed, recoveries, ids)
             values ($1, 0, $2, clock_timestamp() - interval '{held_for}', 0, 0, $3)"
        );
        client.execute(&sql, &[&id, &node, &ids]).await.expect("the owner may");
    };
    lease(1, &[7, 8], "10 seconds").await;
    assert_eq!(found(&store, "saving").await[0].level, Level::Ok, "an end may take a moment to be saved");
    lease(2, &[1, 2, 3], "1 hour").await;
    let saving = found(&store, "saving").await.remove(0);
    assert_eq!(saving.level, Level::Fail);
    assert!(saving.message.contains(" 3 jobs "), "{}", saving.message);
    assert!(saving.fix.is_some_and(|fix| fix.contains("idle in transaction")));
    assert_eq!(found(&store, "leases").await[0].level, Level::Ok, "the node is not dead");
    let runs = |jobs: i32| format!("update windlass.node set running = {jobs} where node_id = {node}");
    client.batch_execute(&runs(2)).await.expect("the owner may");
    assert!(found(&store, "saving").await[0].message.contains(" 1 jobs "), "two of them run");
    client.batch_execute(&runs(3)).await.expect("the owner may");
    assert_eq!(found(&store, "saving").await[0].level, Level::Ok, "long jobs are no trouble");
}
