//! What the store does when things go wrong: a full disk, a killed process, a busy writer, a request that fails among
//! others; and that the hot statements keep their plans.
#![allow(clippy::print_stdout, reason = "the child process tells its parent what was acknowledged")]

mod common;

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{Bench, succeed};
use windlass_core::store::rooms::*;
use windlass_core::store::{Claim, Error, Finished, NewNode, Submit, suspect_queue};
use windlass_core::{IdGenerator, JobId, Payload, Scope, Status};
use windlass_sqlite::{SqliteOptions, SqliteStore, SqliteTx, TxError, rusqlite};

/// Everything: tests look at all that there is.
const ALL: Scope = Scope::All(windlass_core::OperatorRight::assume());

/// Set for the process that is to be killed: the file it works on.
const CHILD_FILE: &str = "WINDLASS_TEST_CHILD_FILE";

#[tokio::test]
async fn a_full_disk_is_told_and_loses_nothing() {
    let b = Bench::new().await;
    let kept = b.submit_one(b.job()).await;
    // SQLite's own limit on the size of a file fails as a full disk does.
    let limit = |more: i64| {
        move |tx: &SqliteTx<'_>| {
            let used: i64 = tx.query_row("PRAGMA page_count", [], |row| row.get(0))?;
            tx.query_row(&format!("PRAGMA max_page_count = {}", used + more), [], |_| Ok(()))
        }
    };
    b.store.transaction(limit(8)).await.expect("limits");
    let mut big = Vec::new();
    for _ in 0..200 {
        let mut job = b.job();
        job.payload = Payload::from_store(format!("\"{}\"", "x".repeat(4_000)));
        big.push(job);
    }
    let first_big = big[0].id;
    let full = b.store.submit(Submit { jobs: big.clone(), lease: None }).await;
    assert!(matches!(full, Err(Error::Full(_))), "{full:?}");
    assert!(b.record(first_big).await.is_none(), "all or none");
    assert_eq!(b.claim_one().await.id, kept, "and what was there still works");
    b.store.transaction(limit(100_000)).await.expect("limits");
    b.submit(big).await;
    assert_eq!(b.claim(1_000).await.len(), 200);
}

#[tokio::test]
async fn a_request_that_fails_takes_no_other_down() {
    let b = Bench::new().await;
    b.submit((0..10).map(|_| b.job()).collect()).await;
    let first = b.claim_one().await;
    let reused = || Claim {
        node: b.node,
        lease: first.lease,
        queues: vec![("default".into(), 5)],
        max: 5,
        quota: [0; 4],
        tenant: None,
    };
    let (bad, good, worse) = tokio::join!(
        b.store.claim(reused()),
        b.store.submit(Submit { jobs: vec![b.job()], lease: None }),
        b.store.claim(reused())
    );
    assert!(matches!((&bad, &worse), (Err(Error::Internal(_)), Err(Error::Internal(_)))), "a lease is never reused");
    assert!(!good.expect("submits")[0].duplicate);
    assert_eq!(b.claim(100).await.len(), 10, "what the failed claims had taken is still there");
    assert_eq!(b.finish(&first, succeed()).await, Finished::Accepted(Status::Succeeded));
}

#[tokio::test]
async fn a_busy_writer_is_told_apart_from_a_failed_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions { deadline: Duration::from_secs(1), ..SqliteOptions::default() };
    let store = Arc::new(SqliteStore::open_with(dir.path().join("jobs.db"), options).expect("opens"));
    let (release, held) = std::sync::mpsc::channel::<()>();
    let blocking = store.clone();
    let slow =
        tokio::spawn(async move { blocking.transaction(move |_| held.recv().map_err(|_| "nobody released it")).await });
    let unknown = slow.await.expect("ends");
    assert!(matches!(unknown, Err(TxError::Store(Error::Unknown(_)))), "{unknown:?}");
    let error = store.register(NewNode::default()).await.expect_err("too late");
    assert!(matches!(error, Error::Unknown(_)), "{error:?}");
    if rusqlite::version_number() >= 3_051_003 {
        store.nodes().await.expect("readers do not wait for the writer");
    }
    release.send(()).expect("the closure waits");
    // The request that was answered with `Unknown` was carried out; this one stands behind it.
    store.heartbeat(windlass_core::store::NodeId(1), 0).await.expect("the writer goes on");
    assert_eq!(store.nodes().await.expect("reads").len(), 1);
}

#[test]
fn acknowledged_jobs_survive_a_kill_and_the_file_is_free_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("jobs.db");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut acknowledged = HashSet::new();
    for round in 1..=5 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["child_of_the_kill_test", "--exact", "--nocapture"])
            .env(CHILD_FILE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let enough = acknowledged.len() + 40 * round;
        while acknowledged.len() < enough {
            let line = lines.next().expect("it goes on").expect("readable");
            acknowledged.extend(line.strip_prefix("id ").map(|id| id.parse::<JobId>().expect("an id")));
        }
        let refused = SqliteStore::open(&path).expect_err("another process has it");
        assert!(matches!(&refused, Error::Refused(message) if message.contains(&child.id().to_string())), "{refused}");
        child.kill().expect("killed");
        child.wait().expect("ended");
        // What it said before it died was acknowledged, too.
        for line in lines.map_while(Result::ok) {
            acknowledged.extend(line.strip_prefix("id ").and_then(|id| id.parse::<JobId>().ok()));
        }
        runtime.block_on(async {
            let store = SqliteStore::open(&path).expect("free at once");
            let all: Vec<JobId> = acknowledged.iter().copied().collect();
            let found = store.get(ALL, &all).await.expect("reads");
            assert_eq!(found.len(), all.len(), "round {round}");
            assert!(found.iter().all(|job| matches!(job.status, Status::Pending | Status::Succeeded)));
            let check = |tx: &SqliteTx<'_>| tx.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
            assert_eq!(store.transaction(check).await.expect("checks"), "ok");
        });
    }
}

/// Does nothing by itself: the test above runs it in a process of its own, which it kills.
#[tokio::test]
async fn child_of_the_kill_test() {
    let Some(path) = std::env::var_os(CHILD_FILE) else { return };
    let store = SqliteStore::open(path).expect("opens");
    let node = store.register(NewNode::default()).await.expect("registers");
    let ids = IdGenerator::new(node.slot, node.now);
    // A bound, in case nobody kills it.
    for lease in 0..100_000 {
        let jobs: Vec<_> = (0..3).map(|_| common::job(&ids)).collect();
        let stored = store.submit(Submit { jobs, lease: None }).await.expect("submits");
        for job in stored {
            println!("id {}", job.id);
        }
        let queues = vec![("default".into(), 2), (suspect_queue("default", 1), 1)];
        let lease = windlass_core::store::LeaseId(node.node.0 << 32 | lease);
        let claim = Claim { node: node.node, lease, queues, max: 2, quota: [0; 4], tenant: None };
        let jobs = store.claim(claim).await.expect("claims").jobs;
        let done = jobs.iter().take(1).map(|job| common::finish(job, succeed())).collect();
        store.finish(node.node, done).await.expect("finishes");
    }
}

#[tokio::test]
async fn hot_statements_walk_their_index() {
    let b = Bench::new().await;
    b.submit((0..500).map(|_| b.job()).collect()).await;
    let plans = [
        (include_str!("../src/sql/claim_ready.sql"), "windlass_ready_in_line"),
        (include_str!("../src/sql/claim_job.sql"), "INTEGER PRIMARY KEY"),
        (include_str!("../src/sql/finish_lease.sql"), "INTEGER PRIMARY KEY"),
        (include_str!("../src/sql/submit_key_find.sql"), "sqlite_autoindex_windlass_job_key_1"),
        (include_str!("../src/sql/maintain_due.sql"), "windlass_scheduled_by_due"),
        (include_str!("../src/sql/gate_next.sql"), "windlass_gated_by_gate"),
        (include_str!("../src/sql/read_events.sql"), "windlass_event_by_job"),
        (
            "SELECT job FROM windlass_outcome WHERE purge_at <= ?1 ORDER BY purge_at LIMIT ?2",
            "windlass_outcome_by_purge",
        ),
    ];
    for analyzed in [false, true] {
        for (sql, index) in plans {
            let plan = b.store.transaction(move |tx| explain(tx, sql)).await.expect("explains");
            assert!(plan.contains(index), "{sql}\nplan: {plan}");
            assert!(!plan.contains("TEMP B-TREE") && !plan.contains("SCAN windlass_job"), "{sql}\nplan: {plan}");
        }
        if !analyzed {
            b.store.transaction(|tx| tx.execute_batch("ANALYZE")).await.expect("analyzes");
        }
    }
}

fn explain(tx: &SqliteTx<'_>, sql: &str) -> rusqlite::Result<String> {
    let mut statement = tx.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
    let values = vec![rusqlite::types::Null; statement.parameter_count()];
    let lines = statement.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3))?;
    Ok(lines.collect::<rusqlite::Result<Vec<_>>>()?.join("; "))
}
