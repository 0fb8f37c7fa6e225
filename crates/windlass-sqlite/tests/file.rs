//! The file itself: who may open it, what survives, and the application's transactions in it.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Bench, open, succeed};
use windlass_core::store::rooms::*;
use windlass_core::store::{CancelReply, Error, Fence, Finish, Finished, Store, Submit, suspect_queue};
use windlass_core::{
    Cost, JobContext, JobError, JobId, JobService, LogLevel, Scope, SecurityContext, Start, Status, SubmitOptions,
    TenantId,
};
use windlass_sqlite::{SqliteStore, TxError, migrations_sql, rusqlite};

/// Everything: tests look at all that there is.
const ALL: Scope = Scope::All(windlass_core::OperatorRight::assume());

#[tokio::test]
async fn a_second_opening_is_refused_with_a_way_out() {
    let b = Bench::new().await;
    let error = SqliteStore::open(b.path()).expect_err("refused");
    assert!(matches!(&error, Error::Refused(_)), "{error:?}");
    let message = error.to_string();
    assert!(message.contains("jobs.db") && message.contains("read-only"), "{message}");
    assert!(message.contains(&std::process::id().to_string()), "{message}");
    let linked = b.path().with_file_name("link.db");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(b.path(), &linked).expect("links");
        assert!(matches!(SqliteStore::open(&linked), Err(Error::Refused(_))), "under any name");
    }
}

#[tokio::test]
async fn a_read_only_opening_sees_what_is_committed_and_writes_nothing() {
    let b = Bench::new().await;
    let id = b.submit_one(b.job()).await;
    let reader = SqliteStore::open_read_only(b.path()).expect("opens");
    assert_eq!(reader.get(ALL, &[id]).await.expect("reads")[0].status, Status::Pending);
    let job = b.claim_one().await;
    b.finish(&job, succeed()).await;
    assert_eq!(reader.counts(ALL).await.expect("counts").get(Status::Succeeded), 1);
    let refused = reader.cancel(ALL, id, "ann", "").await.expect_err("refused");
    assert!(matches!(refused, Error::Refused(_)));
    assert!(reader.register(common::new_node()).await.is_err());
    let missing = SqliteStore::open_read_only(b.path().with_file_name("none.db"));
    assert!(matches!(missing, Err(Error::Unavailable(_))));
}

#[tokio::test]
async fn everything_goes_on_after_the_file_is_opened_again() {
    let b = Bench::new().await;
    let (held, waiting, mut later, mut first, mut second) = (b.job(), b.job(), b.job(), b.job(), b.job());
    later.start = Start::After(Duration::from_secs(5));
    (first.ordering_key, second.ordering_key) = (Some("k".into()), Some("k".into()));
    let ids = [held.id, waiting.id, later.id, first.id, second.id];
    b.submit(vec![held, waiting, later, first, second]).await;
    let withdrawn = b.submit_one(b.job()).await;
    assert_eq!(b.store.cancel(ALL, withdrawn, "ann", "").await.expect("cancels"), CancelReply::Canceled);
    let old = b.claim_one().await;
    assert_eq!(old.id, ids[0]);
    let old_node = b.node;

    let b = b.reopen().await;
    assert_eq!(b.finish_as(old_node, &old, succeed()).await, Finished::Fenced);
    let record = b.the(ids[0]).await;
    assert_eq!((record.status, record.recoveries), (Status::Pending, 1), "at once, without waiting for the lease");
    let suspects = b.claim_from(&suspect_queue("default", 1), 5).await;
    assert_eq!(suspects.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[0]]);
    let ready: Vec<JobId> = b.claim(10).await.iter().map(|job| job.id).collect();
    assert_eq!(ready, [ids[1], ids[3]]);
    b.advance(Duration::from_secs(5));
    assert_eq!(b.store.promote(10).await.expect("promotes").jobs, 1);
    assert_eq!(b.store.open_gates(10).await.expect("opens"), 0);
    let counts = b.store.counts(ALL).await.expect("counts");
    let seen = [Status::Pending, Status::Blocked, Status::Running, Status::Canceled].map(|s| counts.get(s));
    assert_eq!(seen, [1, 1, 3, 1]);
}

#[tokio::test]
async fn new_chunks_stand_behind_those_found_in_the_file() {
    let b = Bench::new().await;
    b.submit((0..300).map(|_| b.job()).collect()).await;
    let first: Vec<_> = b.claim(10).await.iter().map(|job| job.id).collect();
    b.store.deregister(b.node).await.expect("deregisters");
    let b = b.reopen().await;
    let last = b.submit_one(b.job()).await;
    let order: Vec<_> = b.claim(1_000).await.iter().map(|job| job.id).collect();
    assert_eq!((order.len(), &order[..10]), (301, &first[..]), "those that were released come first");
    assert_eq!(order.last(), Some(&last));
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused() {
    let b = Bench::new().await;
    let (path, clock) = (b.path(), b.clock.clone());
    let dir = path.parent().expect("a directory").to_owned();
    let copy = dir.join("newer.db");
    let target = copy.display().to_string();
    b.store.transaction(move |tx| tx.execute_batch("CREATE TABLE mine (x)")).await.expect("commits");
    drop(b.store);
    std::fs::copy(&path, &copy).expect("copies");
    let conn = rusqlite::Connection::open(&copy).expect("opens");
    conn.execute("INSERT INTO windlass_schema (version) VALUES (99)", []).expect("writes");
    drop(conn);
    let error = open(&copy, &clock).expect_err("refused");
    let (message, known) = (error.to_string(), format!("at most {}", windlass_sqlite::SCHEMA_VERSION));
    assert!(matches!(error, Error::Refused(_)) && message.contains("99") && message.contains(&known), "{message}");
    assert!(message.contains(&target) || message.contains("newer.db"));
    assert!(matches!(SqliteStore::open_read_only(&copy), Err(Error::Refused(_))));
    assert!(migrations_sql().contains("CREATE TABLE windlass_job "));
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("letter.txt");
    std::fs::write(&path, "dear reader, ".repeat(1_000)).expect("writes");
    let error = SqliteStore::open(&path).expect_err("refused");
    assert!(error.to_string().contains("letter.txt"), "{error}");
    assert_eq!(std::fs::read(&path).expect("reads").len(), 13_000, "and left as it was");
}

/// SUB-3.
#[tokio::test]
async fn jobs_and_business_writes_commit_together_or_not_at_all() {
    let b = Bench::new().await;
    let make = "CREATE TABLE invoice (number INTEGER)";
    b.store.transaction(move |tx| tx.execute_batch(make)).await.expect("commits");
    let invoices = async || {
        let count = |tx: &windlass_sqlite::SqliteTx<'_>| tx.query_row("SELECT count(*) FROM invoice", [], |r| r.get(0));
        b.store.transaction::<i64, rusqlite::Error, _>(count).await.expect("reads")
    };

    let job = b.job();
    let (id, jobs) = (job.id, vec![job]);
    let stored = b
        .store
        .transaction(move |tx| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
            tx.execute("INSERT INTO invoice VALUES (1)", [])?;
            Ok(tx.submit(&jobs)?)
        })
        .await
        .expect("commits");
    assert_eq!(stored[0].id, id);
    assert_eq!((b.the(id).await.status, invoices().await), (Status::Pending, 1));
    tokio::time::timeout(Duration::from_secs(5), b.store.wait_for_wake()).await.expect("rung");

    // A job need not have been made by the service; the engine's own names are refused all the same.
    let forged = vec![windlass_core::NewJob { handler: "windlass.webhook".into(), ..b.job() }];
    let refused = b.store.transaction(move |tx| tx.submit(&forged)).await.expect_err("refused");
    assert!(matches!(refused, TxError::Rejected(Error::InvalidInput(bad)) if bad.field == "handler"));

    let jobs = vec![b.job()];
    let rejected_id = jobs[0].id;
    let rejected = b
        .store
        .transaction(move |tx| {
            tx.execute("INSERT INTO invoice VALUES (2)", []).map_err(|_| "sql")?;
            tx.submit(&jobs).map_err(|_| "store")?;
            Err::<(), _>("changed my mind")
        })
        .await;
    assert!(matches!(rejected, Err(TxError::Rejected("changed my mind"))));
    let jobs = vec![b.job()];
    let panicked = b
        .store
        .transaction(move |tx| -> Result<(), ()> {
            tx.execute("INSERT INTO invoice VALUES (3)", []).expect("writes");
            tx.submit(&jobs).expect("stores");
            panic!("out of paper")
        })
        .await;
    assert!(matches!(panicked, Err(TxError::Panicked(message)) if message == "out of paper"));
    assert!(b.record(rejected_id).await.is_none());
    assert_eq!((b.claim(10).await.len(), invoices().await), (1, 1));
}

#[tokio::test]
async fn a_closure_that_ends_the_transaction_is_found_out() {
    let b = Bench::new().await;
    for sql in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN"] {
        let result = b.store.transaction(move |tx| tx.execute_batch(sql)).await;
        assert!(matches!(result, Err(TxError::Store(Error::Refused(_)))), "{sql}: {result:?}");
    }
    let id = b.submit_one(b.job()).await;
    assert_eq!(b.claim_one().await.id, id, "the writer goes on");
}

/// RUN-9.
#[tokio::test]
async fn a_job_completes_with_the_writes_of_its_handler() {
    let b = Bench::new().await;
    b.store.transaction(|tx| tx.execute_batch("CREATE TABLE sent (job TEXT)")).await.expect("commits");
    b.submit((0..3).map(|_| b.job()).collect()).await;
    let jobs = b.claim(3).await;
    let completion = |n: usize| Finish {
        fence: Fence { job: jobs[n].id, lease: jobs[n].lease },
        attempt: jobs[n].attempt(),
        ran: Duration::from_secs(1),
        transition: succeed(),
        follow_up: None,
        cost: None,
        audit: false,
        batch: None,
        resumed: true,
    };
    let send = |tx: &windlass_sqlite::SqliteTx<'_>| tx.execute("INSERT INTO sent VALUES ('x')", []);
    let sent = async || {
        let count = |tx: &windlass_sqlite::SqliteTx<'_>| tx.query_row("SELECT count(*) FROM sent", [], |r| r.get(0));
        b.store.transaction::<i64, rusqlite::Error, _>(count).await.expect("reads")
    };
    b.store.complete_in(b.node, completion(0), send).await.expect("commits");
    assert_eq!((b.the(jobs[0].id).await.status, sent().await), (Status::Succeeded, 1));

    let again = b.store.complete_in(b.node, completion(0), send).await;
    assert!(matches!(again, Err(TxError::LeaseLost(id)) if id == jobs[0].id));
    b.store.cancel(ALL, jobs[1].id, "ann", "").await.expect("cancels");
    let canceled = b.store.complete_in(b.node, completion(1), send).await;
    assert!(matches!(canceled, Err(TxError::CancelRequested(_))));
    let failing = |tx: &windlass_sqlite::SqliteTx<'_>| {
        tx.execute("INSERT INTO sent VALUES ('y')", []).expect("writes");
        Err::<(), _>("no")
    };
    assert!(matches!(b.store.complete_in(b.node, completion(2), failing).await, Err(TxError::Rejected("no"))));
    assert_eq!((b.the(jobs[2].id).await.status, sent().await), (Status::Running, 1), "nothing else was kept");
    assert_eq!(b.finish(&jobs[2], succeed()).await, Finished::Accepted(Status::Succeeded));
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_at_once_share_transactions_and_nothing_is_lost() {
    let b = std::sync::Arc::new(Bench::new().await);
    let callers: Vec<_> = (0..32)
        .map(|_| {
            let b = b.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let jobs = vec![b.job()];
                    b.store.submit(Submit { jobs, lease: None }).await.expect("submits");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("ends");
    }
    let mut seen = std::collections::HashSet::new();
    loop {
        let jobs = b.claim(50).await;
        if jobs.is_empty() {
            break;
        }
        assert!(jobs.iter().all(|job| seen.insert(job.id)), "claimed twice");
        let done = jobs.iter().map(|job| common::finish(job, succeed())).collect();
        let answers = b.store.finish(b.node, done).await.expect("finishes");
        assert!(answers.iter().all(|answer| *answer == Finished::Accepted(Status::Succeeded)));
    }
    assert_eq!(seen.len(), 640);
}

/// RUN-10: nothing of a service that was shut down holds the file any more.
#[tokio::test]
async fn a_file_can_be_opened_again_as_soon_as_its_service_is_shut_down() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("jobs.db");
    let nothing = |_: (), _: JobContext, (): ()| async { Ok::<_, JobError>(()) };
    for _ in 0..10 {
        let store = Arc::new(SqliteStore::open(&path).expect("the file is free"));
        let jobs = JobService::builder(store).function("nothing", (), nothing).start().await.expect("starts");
        let ctx = SecurityContext::new(TenantId::ROOT);
        let job = jobs.submit_named(&ctx, "nothing", &(), SubmitOptions::new()).await.expect("accepted");
        jobs.wait_for::<()>(&ctx, job.id, Duration::from_secs(20)).await.expect("succeeds");
        jobs.shutdown().await;
    }
}

/// RUN-9, OPS-6, BEY-7: what an attempt has cost is recorded in the handler's own transaction, and what it said before
/// that is kept.
#[tokio::test]
async fn costs_and_lines_of_a_job_that_ends_in_its_own_transaction_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Arc::new(SqliteStore::open(directory.path().join("jobs.db")).expect("opens"));
    store.transaction(|tx| tx.execute_batch("CREATE TABLE sent (cents INTEGER)")).await.expect("commits");
    async fn send(_: (), ctx: JobContext, cents: i64) -> Result<i64, JobError> {
        ctx.log(LogLevel::Info, format!("sends {cents}"));
        ctx.record_cost(Cost::new(cents, 1));
        windlass_sqlite::complete(&ctx, &cents, move |tx| tx.execute("INSERT INTO sent VALUES (?1)", [cents])).await?;
        Ok(cents)
    }
    let jobs = JobService::builder(store).function("send", (), send).start().await.expect("starts");
    let ctx = SecurityContext::new(TenantId::ROOT);
    let id = jobs.submit_named(&ctx, "send", &7_i64, SubmitOptions::new()).await.expect("accepted").id;
    assert_eq!(jobs.wait_for::<i64>(&ctx, id, Duration::from_secs(20)).await.expect("succeeds"), 7);
    let lines = jobs.logs(&ctx, id, 0).await.expect("reads");
    assert_eq!(lines.iter().map(|line| line.message.as_str()).collect::<Vec<_>>(), ["sends 7"]);
    let costs = jobs.usage_events(&ctx, 0, 10).await.expect("reads");
    assert_eq!(costs.iter().map(|cost| (cost.job, cost.cents)).collect::<Vec<_>>(), [(id, 7)]);
    jobs.shutdown().await;
}

/// SEC-1, RUN-8: what a handler begins transactions with leads to no call of the store that knows no tenant.
#[tokio::test]
async fn a_handler_cannot_reach_the_store() {
    async fn reach(_: (), ctx: JobContext, (): ()) -> Result<bool, JobError> {
        let transactions = ctx.transactions().ok_or_else(|| JobError::terminal("none", "SQLite has transactions"))?;
        let shared = transactions.is::<Arc<SqliteStore>>() || transactions.is::<Arc<dyn Store>>();
        Ok(transactions.is::<SqliteStore>() || shared)
    }
    let directory = tempfile::tempdir().expect("a directory");
    let store = Arc::new(SqliteStore::open(directory.path().join("jobs.db")).expect("opens"));
    let jobs = JobService::builder(store).function("reach", (), reach).start().await.expect("starts");
    let ctx = SecurityContext::new(TenantId::ROOT);
    let id = jobs.submit_named(&ctx, "reach", &(), SubmitOptions::new()).await.expect("accepted").id;
    assert!(!jobs.wait_for::<bool>(&ctx, id, Duration::from_secs(20)).await.expect("succeeds"), "it has the store");
    jobs.shutdown().await;
}

/// The mode of a file, without its kind.
#[cfg(unix)]
fn mode(path: &std::path::Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().unwrap_or_else(|e| panic!("{}: {e}", path.display())).permissions().mode() & 0o777
}

/// The names in a directory, sorted.
fn names(directory: &std::path::Path) -> Vec<String> {
    let files = std::fs::read_dir(directory).expect("reads");
    let mut names: Vec<_> = files.map(|file| file.expect("reads").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

/// Another program that has locked a file.
struct Locked(std::process::Child);

impl Locked {
    fn by(how: &str, path: &std::path::Path) -> Locked {
        use std::io::Read;
        let mut program = std::process::Command::new("flock");
        program.arg(how).arg(path).args(["sh", "-c", "echo; exec sleep 600"]).stdout(std::process::Stdio::piped());
        let mut program = program.spawn().expect("there is flock(1)");
        program.stdout.take().expect("piped").read_exact(&mut [0]).expect("it has the lock");
        Locked(program)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// SEC-2: jobs and secrets are not for other users of the machine.
#[cfg(unix)]
#[tokio::test]
async fn the_files_are_for_their_owner_alone() {
    let b = Bench::new().await;
    let kept = b.store.set_setting_if_absent("server.session_secret", "a secret of servers").await.expect("kept");
    let directory = b.path().parent().expect("a directory").to_owned();
    let found = names(&directory);
    assert_eq!(found, ["jobs.db", "jobs.db-shm", "jobs.db-wal", "jobs.db.lock", "jobs.db.secrets"]);
    for name in found {
        assert_eq!(mode(&directory.join(&name)), 0o600, "{name}");
    }
    let text = |name: &str| String::from_utf8_lossy(&std::fs::read(directory.join(name)).expect("reads")).into_owned();
    assert!(text("jobs.db.secrets").contains(&kept));
    assert!(!text("jobs.db").contains(&kept) && !text("jobs.db-wal").contains(&kept), "a copy does not hold it");
    let b = b.reopen().await;
    assert_eq!(b.store.setting("server.session_secret").await.expect("reads"), Some(kept));
}

/// SEC-2, BEY-10.
#[cfg(unix)]
#[tokio::test]
async fn files_that_others_may_read_are_found() {
    use std::os::unix::fs::PermissionsExt;
    use windlass_core::health::Level;
    let b = Bench::new().await;
    let chmod = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    let directory = b.path().parent().expect("a directory").to_owned();
    let found = || windlass_sqlite::privacy(b.path());
    assert_eq!(found().level, Level::Ok, "{:?}", found());
    chmod(&directory.join("jobs.db-wal"), 0o644);
    let finding = found();
    assert_eq!(finding.level, Level::Warn);
    assert!(finding.fix.is_some_and(|fix| fix.contains("chmod 600") && fix.contains("jobs.db-wal")));
    chmod(&directory.join("jobs.db-wal"), 0o600);
    chmod(&directory, 0o777);
    assert_eq!(found().level, Level::Warn, "others may put another file in its place");
    chmod(&directory, 0o1777);
    assert_eq!(found().level, Level::Ok, "the sticky bit keeps them from it");
    let examined = b.store.examine(&windlass_core::health::Checkup::default()).await.expect("examines");
    assert!(examined.iter().any(|finding| finding.check == "files"));
}

/// SEC-2: whoever can read the lock file can lock it; that neither keeps us out nor blames a process that is gone.
#[cfg(unix)]
#[tokio::test]
async fn a_shared_lock_of_somebody_else_keeps_nobody_out() {
    let b = Bench::new().await;
    let (path, lock) = (b.path(), b.path().with_file_name("jobs.db.lock"));
    drop(b.store);
    std::fs::write(&lock, "999999999").expect("what a process that is gone has left");
    let foreign = Locked::by("--shared", &lock);
    let store = SqliteStore::open(&path).expect("opens beside a shared lock");
    assert!(matches!(SqliteStore::open(&path), Err(Error::Refused(_))), "and there is still one writer at most");
    drop(foreign);
    assert!(matches!(SqliteStore::open(&path), Err(Error::Refused(_))));
    drop(store);

    std::fs::write(&lock, "999999999").expect("writes");
    let _foreign = Locked::by("--exclusive", &lock);
    let refused = SqliteStore::open(&path).expect_err("it may be a writer").to_string();
    assert!(!refused.contains("999999999") && refused.contains("lsof"), "{refused}");
}

/// What is copied after an orderly end is one file.
#[tokio::test]
async fn closing_leaves_one_file() {
    let b = Bench::new().await;
    b.submit((0..300).map(|_| b.job()).collect()).await;
    let directory = b.path().parent().expect("a directory").to_owned();
    let log = directory.join("jobs.db-wal");
    assert!(log.metadata().expect("there is a log").len() > 100_000);
    drop(b.store);
    assert_eq!(names(&directory), ["jobs.db"]);

    // Also beside another process that reads: closing alone would leave the log as it is.
    let b = Bench::new().await;
    b.submit((0..300).map(|_| b.job()).collect()).await;
    let reader = rusqlite::Connection::open(b.path()).expect("opens");
    let count = |reader: &rusqlite::Connection| -> i64 {
        reader.query_row("SELECT count(*) FROM windlass_job", [], |row| row.get(0)).expect("counts")
    };
    assert_eq!(count(&reader), 300);
    let log = b.path().with_file_name("jobs.db-wal");
    drop(b.store);
    assert_eq!(log.metadata().expect("the reader keeps it").len(), 0);
    assert_eq!(count(&reader), 300);
}

/// A copy is whole while jobs are written, and goes on where it was made.
#[tokio::test]
async fn a_backup_is_made_while_jobs_are_written() {
    let b = Bench::new().await;
    let id = b.submit_one(b.job()).await;
    let (path, copy) = (b.path(), b.path().with_file_name("copy.db"));
    let copying = tokio::task::spawn_blocking({
        let (path, copy) = (path.clone(), copy.clone());
        move || windlass_sqlite::backup(path, copy)
    });
    while !copying.is_finished() {
        b.submit(vec![b.job(), b.job()]).await;
    }
    let bytes = copying.await.expect("no panic").expect("copies");
    assert_eq!(copy.metadata().expect("it is there").len(), bytes);
    #[cfg(unix)]
    assert_eq!(mode(&copy), 0o600);
    assert!(matches!(windlass_sqlite::backup(&path, &copy), Err(Error::Refused(_))), "nothing is overwritten");
    let restored = open(&copy, &b.clock).expect("opens");
    let counts = restored.counts(ALL).await.expect("counts").get(Status::Pending);
    assert!(counts % 2 == 1, "one job, and each pair whole or not at all: {counts}");
    assert!(restored.get(ALL, &[id]).await.expect("reads").len() == 1);
    let missing = windlass_sqlite::backup(path.with_file_name("none.db"), path.with_file_name("other.db"));
    assert!(missing.is_err() && !path.with_file_name("other.db").exists());
}
