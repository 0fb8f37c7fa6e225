//! Rows of a file that something other than Windlass has changed. Whatever a column holds, it costs at most the job whose
//! row it is: other jobs go on, and the file can be opened again.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::store::rooms::*;
use windlass_core::store::{
    BatchAsk, Claim, Dependents, FeedAsk, Fence, Finish, Finished, LeaseId, NewNode, ScheduleAsk, Submit, Transition,
};
use windlass_core::{
    IdGenerator, JobContext, JobError, JobFilter, JobId, JobService, JobSpec, NewJob, OperatorRight, Page, Payload,
    Priority, Scope, SecurityContext, Start, Status, SubmitOptions, TenantId, Timestamp,
};
use windlass_sqlite::SqliteStore;
use windlass_sqlite::rusqlite::Connection;

/// How long another job may take while something is wrong.
const GOES_ON: Duration = Duration::from_secs(8);

async fn nothing((): (), _: JobContext, (): ()) -> Result<(), JobError> {
    Ok(())
}

fn ctx() -> SecurityContext {
    SecurityContext::new(TenantId::ROOT)
}

async fn service(path: &std::path::Path, workers: bool) -> JobService {
    let store = SqliteStore::open(path).expect("opens");
    let jobs = JobService::builder(Arc::new(store)).function("h", (), nothing);
    let jobs = if workers { jobs } else { jobs.without_workers() };
    jobs.start().await.expect("starts")
}

async fn submit(jobs: &JobService) -> JobId {
    jobs.submit_named(&ctx(), "h", &(), SubmitOptions::new().tag("a")).await.expect("stored").id
}

/// RUN-4: a job whose row cannot be read is a dead letter alone; those of the same claim run, and it can be looked at.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_read_costs_one_job() {
    for (column, value) in [
        ("tags", "'{'"),
        ("tags", "'[null]'"),
        ("tags", "cast(x'ff' as text)"),
        ("spec", "'7'"),
        ("handler", "cast(x'ff' as text)"),
        ("payload", "cast(x'ff' as text)"),
        ("tenant", "x'00'"),
        ("correlation_id", "cast(x'ff' as text)"),
        ("queue", "cast(x'ff' as text)"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("jobs.db");
        let jobs = service(&path, false).await;
        let (spoilt, good) = (submit(&jobs).await, submit(&jobs).await);
        jobs.shutdown().await;
        drop(jobs);
        let file = Connection::open(&path).expect("opens");
        let sql = format!("UPDATE windlass_job SET {column} = {value} WHERE id = ?1");
        assert_eq!(file.execute(&sql, [spoilt.as_i64()]).expect("nothing refuses it"), 1);
        drop(file);
        let what = format!("{column} = {value}");
        let jobs = service(&path, true).await;
        let end = jobs.wait(&ctx(), good, GOES_ON).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(end.status, Status::Succeeded, "{what}");
        let end = jobs.wait(&ctx(), spoilt, GOES_ON).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        // Where a job was to go back to does not matter to one that is in a line.
        if column != "queue" {
            assert_eq!(end.status, Status::DeadLettered, "{what}");
            let record = jobs.get(&ctx(), spoilt).await.expect("can be read");
            assert_eq!(record.reason.as_deref(), Some("unreadable"), "{what}: {record:?}");
        }
        let next = submit(&jobs).await;
        assert_eq!(jobs.wait(&ctx(), next, GOES_ON).await.expect("ends").status, Status::Succeeded, "{what}");
        assert!(jobs.loops().iter().all(|health| health.panics == 0), "{what}: {:?}", jobs.loops());
        jobs.shutdown().await;
    }
}

const ALL: Scope = Scope::All(OperatorRight::assume());

/// What a column of a type could hold that Windlass would never write there. 1002 is a job that has ended.
fn nasty(of: &str) -> &'static [&'static str] {
    match of {
        "INTEGER" => &["-9223372036854775808", "9223372036854775807", "1002"],
        "TEXT" => &[
            "''",
            "cast(x'ff' as text)",
            "'{'",
            "'[null]'",
            r#"'{"handlers": [null, 7], "retention": "x", "queued": -1}'"#,
        ],
        "BLOB" => &["x''", "x'00'", "x'ffffffffffffffffffffffffffffffffffffffff'"],
        "REAL" => &["9e999", "-9e999"],
        other => panic!("nothing is known that would spoil a column of type {other}"),
    }
}

/// A row of every table, T standing for a tenant. Node 777 is gone when the file is opened, and with it its lease.
const ROWS: &str = r#"
    INSERT INTO windlass_job (id, tenant, handler, queue, priority, created_at, born, ordering_key, tags, spec, payload)
        SELECT value, T, 'p', 'p', 0, 1, 0, iif(value IN (1004, 1005), 'k', NULL), '["t"]', '{"timeout": 1000}', 'null'
        FROM generate_series(1001, 1008);
    INSERT INTO windlass_job_tag VALUES ('t', 1004);
    INSERT INTO windlass_job_key (kind, tenant, handler, key, job) VALUES (0, T, 'p', 'p', 1004);
    INSERT INTO windlass_key_holder VALUES (T, 'k', 1004);
    INSERT INTO windlass_ready (queue, rank, position, tenant, jobs, failed, recoveries, resumed, ready_at, ids)
        VALUES ('p', 0, 5, T, 1, 0, 0, 0, 1, x'eb03000000000000');
    INSERT INTO windlass_withdrawn VALUES (1008, T);
    INSERT INTO windlass_scheduled VALUES (1004, 9000000000000000, 1, T, 'p', 0, 0, 0, 0);
    INSERT INTO windlass_gated VALUES (1005, 1, 'key:k', T, 'p', 0, NULL, 0, 0, 0);
    INSERT INTO windlass_lease VALUES (778, 777, 1, x'ef0300000000000000000100');
    INSERT INTO windlass_cancel VALUES (1006, 778, 'r');
    INSERT INTO windlass_outcome (job, status, at, attempt, failed, recoveries, reason, error)
        VALUES (1002, 8, 1, 1, 1, 0, 'r', '{"code": "c", "message": "m", "kind": "terminal"}');
    INSERT INTO windlass_dead_letter (job) VALUES (1002);
    INSERT INTO windlass_event (job, at, status, attempt, failed, recoveries, node, error)
        VALUES (1007, 1, 0, 1, 0, 1, 777, '{"code": "node_unavailable", "message": "m", "kind": "retryable"}');
    INSERT INTO windlass_checkpoint VALUES (1007, '1');
    INSERT INTO windlass_progress VALUES (1007, 1, 5.0, 'm', 1);
    INSERT INTO windlass_expiry VALUES (1004, 9000000000000000);
    INSERT INTO windlass_pause VALUES ('handler:p', 'u', 'r', 1);
    INSERT INTO windlass_audit (at, actor, tenant, action, target) VALUES (1, 'u', T, 'PAUSED', 'p');
    INSERT INTO windlass_counter VALUES (T, 8, 1, 0);
    INSERT INTO windlass_node VALUES (777, 900, '{"handlers": ["p"]}', 0, 1, 1);
    INSERT INTO windlass_served VALUES ('p', 1);
    INSERT INTO windlass_slot VALUES (901, 9000000000000000);
    INSERT INTO windlass_mark VALUES ('job', 1);
    INSERT INTO windlass_data_key VALUES (T, 1, 'k', x'00', 1);
    INSERT INTO windlass_quota VALUES (T, '{"running": 5, "queued": 50}');
    INSERT INTO windlass_tenant_use VALUES (T, 1, 1, 1.0, 1);
    INSERT INTO windlass_job_log VALUES (1007, 1, 778, 1, 1, 1, 3, 'm');
    INSERT INTO windlass_usage VALUES ('2026-01-01', T, 'p', 1, 1, 1);
    INSERT INTO windlass_usage_event (job, tenant, handler, cents, units, at) VALUES (1007, T, 'p', 1, 1, 1);
    INSERT INTO windlass_job_cost VALUES (1007, 1, 1);
    INSERT INTO windlass_activity VALUES (60, T, 1, 'p', x'0100000000000000');
    INSERT INTO windlass_depth VALUES (60, 1, x'0100000000000000');
    INSERT INTO windlass_api_key (id, tenant, home, name, acts_as, rights, hash, created_at, created_by)
        VALUES ('p', T, T, 'p', 'u', 'read', zeroblob(32), 1, 'u');
    INSERT INTO windlass_setting VALUES ('p', 'v', 9000000000000000);
    INSERT INTO windlass_feed (job, status, attempt, at) VALUES (1002, 8, 1, 1);
    INSERT INTO windlass_feed_reader VALUES (1, 9000000000000000);
    INSERT INTO windlass_webhook (id, tenant, url, events, secret, sealed, created_at, created_by, active_since)
        VALUES ('p', T, 'http://x', '["succeeded"]', '"s"', 0, 1, 'u', 1);
    INSERT INTO windlass_holding VALUES ('p', 777, 1, 1, 5);
    INSERT INTO windlass_batch (id, tenant, name, key, callback, parts, total, created_at, sealed_at, callback_job)
        VALUES (1010, T, 'p', 'p', '{"handler": "h", "input": null}', 1, 5, 1, 1, 1007);
    INSERT INTO windlass_batch_part VALUES (1010, 3, 5);
    INSERT INTO windlass_edge VALUES (1001, 1005);
    INSERT INTO windlass_schedule VALUES (T, 'p', 1009, 1, '{}', 'null', 0, 0, 1, 1, 1, 1);
"#;

/// Says which program may use the file at all.
const NOT_READ: [&str; 1] = ["windlass_schema"];

/// Columns of which the file refuses every value here.
const REFUSED: [(&str, &str); 1] = [("windlass_feed_reader", "one")];

/// RUN-4, RUN-5, BEY-4, OPS-8: each column of each table, one after the other, holds what nobody would write. The file can be
/// opened, and others' jobs are stored, run, read, listed, expired, taken back and told of.
#[tokio::test(flavor = "multi_thread")]
async fn no_column_stops_other_jobs() {
    spoil_tables(|table| table < HALF).await;
}

/// The same for the other tables.
#[tokio::test(flavor = "multi_thread")]
async fn no_column_of_a_later_table_stops_other_jobs() {
    spoil_tables(|table| table >= HALF).await;
}

/// Two tests, because each value costs some waits for the disk.
const HALF: &str = "windlass_job_key";

async fn spoil_tables(wanted: impl Fn(&str) -> bool) {
    let dir = tempfile::tempdir().expect("a directory");
    let template = dir.path().join("template.db");
    drop(SqliteStore::open(&template).expect("opens"));
    let file = Connection::open(&template).expect("opens");
    let rows = ROWS
        .replace("FROM generate_series(1001, 1008)", SERIES)
        .replace(" T,", TENANT)
        .replace("(T,", &format!("({TENANT}"))
        .replace(" T)", &TENANT.replace(',', ")"));
    file.execute_batch(&rows).expect("the rows are as Windlass writes them");
    let columns = "SELECT m.name, c.name, c.type, c.\"notnull\" OR c.pk > 0 FROM sqlite_schema m \
                   JOIN pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name LIKE 'windlass_%' ORDER BY 1, c.cid";
    let mut select = file.prepare(columns).expect("a statement");
    let columns: Vec<(String, String, String, bool)> = select
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .and_then(Iterator::collect)
        .expect("the schema can be read");
    drop(select);
    file.close().expect("closes");
    let (mut never, path) = (Vec::new(), dir.path().join("jobs.db"));
    for (table, column, of, not_null) in &columns {
        if NOT_READ.contains(&table.as_str()) || !wanted(table) {
            continue;
        }
        let (mut spoilt, null): (usize, &[&str]) = (0, if *not_null { &[] } else { &["NULL"] });
        for value in nasty(of).iter().chain(null) {
            std::fs::copy(&template, &path).expect("copied");
            let file = Connection::open(&path).expect("opens");
            let sql = format!("UPDATE {table} SET {column} = {value} WHERE rowid_of_one");
            let sql = match table.as_str() {
                // One of them: the others are what other rows name.
                "windlass_job" => sql.replace("rowid_of_one", "id = 1007"),
                _ => sql.replace(" WHERE rowid_of_one", ""),
            };
            let Ok(changed) = file.execute(&sql, []) else { continue };
            assert!(changed >= 1, "{sql}: hits nothing");
            file.close().expect("closes");
            spoilt += 1;
            all_goes_on(&path, &format!("{table}.{column} = {value}")).await;
        }
        if spoilt == 0 {
            never.push((table.as_str(), column.as_str()));
        }
    }
    let refused: Vec<_> = REFUSED.into_iter().filter(|(table, _)| wanted(table)).collect();
    assert_eq!(never, refused, "columns that could not be spoilt");
}

const SERIES: &str = "FROM json_each('[1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008]')";
const TENANT: &str = " x'00000000000000000000000000000005',";

/// Everything that others want of the store.
async fn all_goes_on(path: &std::path::Path, after: &str) {
    macro_rules! must {
        ($call:expr) => {
            $call.await.unwrap_or_else(|error| panic!("{after}: {}: {error}", stringify!($call)))
        };
    }
    let store = SqliteStore::open(path).unwrap_or_else(|error| panic!("{after}: the file cannot be opened: {error}"));
    let node = must!(store.register(NewNode::default()));
    let ids = IdGenerator::new(node.slot, node.now);
    let job = |spec: JobSpec, start: Start| NewJob {
        id: ids.next(),
        tenant: TenantId::ROOT,
        handler: "h".into(),
        queue: "default".into(),
        priority: Priority::NORMAL,
        start,
        payload: Payload::null(),
        idempotency_key: None,
        unique: None,
        ordering_key: None,
        batch: None,
        tags: Vec::new(),
        correlation_id: None,
        spec,
    };
    must!(store.want_feed(GOES_ON));
    let end = must!(store.feed_end());
    let mut late = JobSpec::default();
    late.expires_at = Some(Timestamp::from_millis(1));
    let (plain, held) = (job(JobSpec::default(), Start::Now), job(JobSpec::default(), Start::Now));
    let late = job(late, Start::After(Duration::from_secs(3_600)));
    let (plain_id, held_id, late_id) = (plain.id, held.id, late.id);
    must!(store.submit(Submit { jobs: vec![plain, late], lease: None }));
    let take = async |node, max| {
        let lease = LeaseId(ids.next().as_i64());
        let queues = vec![("default".to_owned(), max)];
        must!(store.claim(Claim { node, lease, queues, max, quota: [0; 4], tenant: None })).jobs
    };
    let claimed = take(node.node, 1).await;
    assert_eq!(claimed.iter().map(|job| job.id).collect::<Vec<_>>(), [plain_id], "{after}: another job is not claimed");
    let finish = Finish {
        fence: Fence { job: plain_id, lease: claimed[0].lease },
        attempt: 1,
        ran: Duration::ZERO,
        transition: Transition::Succeed { output: None, keep: GOES_ON },
        follow_up: None,
        cost: None,
        audit: false,
        batch: None,
        resumed: true,
    };
    let finished = must!(store.finish(node.node, vec![finish]));
    assert_eq!(finished, [Finished::Accepted(Status::Succeeded)], "{after}");
    // A node that is lost with a job, as recovery sees it.
    let lost = must!(store.register(NewNode::default()));
    must!(store.submit(Submit { jobs: vec![held], lease: None }));
    assert_eq!(take(lost.node, 1).await.len(), 1, "{after}");
    must!(store.heartbeat(node.node, 0));
    let silent = must!(store.survey(Duration::ZERO, &[])).silent;
    let recovered = must!(store.recover(Duration::ZERO, &silent));
    assert!(recovered.jobs.contains(&held_id), "{after}: the job of a lost node is not taken back");
    must!(store.expire(100));
    must!(store.promote(100));
    must!(store.open_gates(100));
    must!(store.clean(100));
    let status = async |id: JobId| must!(store.get(ALL, &[id])).first().map(|record| record.status);
    assert_eq!(status(plain_id).await, Some(Status::Succeeded), "{after}");
    assert_eq!(status(late_id).await, Some(Status::Canceled), "{after}: it does not expire");
    let told = must!(store.read_feed(&FeedAsk { after: end, gaps: Vec::new() }, 100));
    assert!(told.iter().any(|row| row.job == plain_id && row.status == Status::Succeeded), "{after}: {told:?}");
    let listed = must!(store.find(ALL, &JobFilter::default(), Page::first(20), None)).jobs;
    assert!(listed.iter().any(|record| record.id == plain_id), "{after}: a job is not listed");
    must!(store.survey(GOES_ON, &["default".to_owned()]));
    must!(store.nodes());
    must!(store.counts(ALL));
    must!(store.vitals());
    must!(store.backlog(ALL));
    must!(store.waiting_queues());
    must!(store.last_served(&["h".to_owned()], &["p".to_owned(), "q".to_owned()]));
    must!(store.pauses());
    must!(store.api_keys(ALL));
    must!(store.settings("", 10));
    must!(store.data_keys(ALL));
    must!(store.webhooks(ALL));
    must!(store.schedules(ALL, ScheduleAsk::page(10)));
    must!(store.due_schedules(10));
    must!(store.batches(ALL, &BatchAsk { limit: 10, ..BatchAsk::default() }));
    must!(store.fold_batches(&[], 10));
    must!(store.dependents(&Dependents::After(JobId::from_i64(0)), 10));
    must!(store.edges(&[JobId::from_i64(1001)], 10));
    must!(store.quotas());
    must!(store.tenant_uses(ALL));
    let last = must!(store.register(NewNode::default()));
    must!(store.deregister(last.node));
}
