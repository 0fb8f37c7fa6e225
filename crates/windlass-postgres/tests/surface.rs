//! What only PostgreSQL offers: submitting from plain SQL and inside the user's transactions, completing a job in its
//! handler's transaction, migrations, and what remains after old weeks are dropped.

mod common;

use std::time::{Duration, Instant};

use common::Database;
use tokio_postgres::Client;
use windlass_core::store::rooms::*;
use windlass_core::store::{Claim, Error, Fence, Finish, Finished, LeaseId, NewNode, NodeId, Submit, Transition};
use windlass_core::{
    ClaimedJob, IdGenerator, JobId, JobSpec, NewJob, Payload, Priority, Scope, Start, Status, TenantId,
};
use windlass_postgres::{PgOptions, PgStore, submit_in};

/// Everything: tests look at all that there is.
const ALL: Scope = Scope::All(windlass_core::OperatorRight::assume());

const KEEP: Duration = Duration::from_secs(3_600);

struct Rig {
    store: PgStore,
    client: Client,
    node: NodeId,
    ids: IdGenerator,
    _database: Database,
}

impl Rig {
    async fn new() -> Rig {
        let database = Database::fresh().await;
        let options = PgOptions::new(&database.url).expect("a URL").listen(false);
        let store = PgStore::connect_with(options).await.expect("opens");
        let lease = store.register(NewNode::default()).await.expect("registers");
        let ids = IdGenerator::new(lease.slot, lease.now);
        Rig { client: database.client().await, store, node: lease.node, ids, _database: database }
    }

    fn job(&self) -> NewJob {
        NewJob {
            id: self.ids.next(),
            tenant: TenantId::ROOT,
            handler: "h".into(),
            queue: "default".into(),
            priority: Priority::NORMAL,
            start: Start::Now,
            payload: Payload::from_store("{\"a\": 1}"),
            idempotency_key: None,
            unique: None,
            ordering_key: None,
            batch: None,
            tags: Vec::new(),
            correlation_id: None,
            spec: JobSpec::default(),
        }
    }

    async fn submit(&self, jobs: Vec<NewJob>) -> Vec<JobId> {
        let submitted = self.store.submit(Submit { jobs, lease: None }).await.expect("submits");
        submitted.into_iter().map(|submitted| submitted.id).collect()
    }

    async fn claim(&self, max: usize) -> Vec<ClaimedJob> {
        let lease = LeaseId(self.ids.next().as_i64());
        let queues = vec![("default".to_owned(), max)];
        let claim = Claim { node: self.node, lease, queues, max, quota: [0; 4], tenant: None };
        self.store.claim(claim).await.expect("claims").jobs
    }

    async fn status(&self, id: JobId) -> Option<Status> {
        self.store.get(ALL, &[id]).await.expect("reads").first().map(|record| record.status)
    }

    async fn sql(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }
}

fn fence(job: &ClaimedJob) -> Fence {
    Fence { job: job.id, lease: job.lease }
}

fn succeed(job: &ClaimedJob) -> Finish {
    let transition = Transition::Succeed { output: None, keep: KEEP };
    Finish {
        fence: fence(job),
        attempt: job.attempt(),
        ran: Duration::ZERO,
        transition,
        follow_up: None,
        cost: None,
        audit: false,
        batch: None,
        resumed: true,
    }
}

/// SUB-3.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_come_in_from_plain_sql() {
    let rig = Rig::new().await;
    let one = rig.sql("select windlass.submit('h', '{\"to\": \"x\"}', tags => '{a,b}', idempotency_key => 'k')").await;
    let same = rig.sql("select windlass.submit('h', '{}', idempotency_key => 'k')").await;
    assert_eq!(one, same);
    let later = rig.sql("select windlass.submit('h', delay => '1 hour')").await;
    assert_eq!(rig.status(JobId::from_i64(later)).await, Some(Status::Scheduled));
    assert_eq!(rig.sql("select count(*) from windlass.submit_many('h', '[1, 2, 3]')").await, 3);
    rig.client
        .execute("insert into windlass.job (handler, payload) select 'h', '{}' from generate_series(1, 300)", &[])
        .await
        .expect("plain inserts work");
    let key = "insert into windlass.job (handler, ordering_key) values ('h', 'o'), ('h', 'o')";
    rig.client.execute(key, &[]).await.expect("plain inserts work");
    let claimed = rig.claim(1_000).await;
    assert_eq!(claimed.len(), 1 + 3 + 300 + 1, "one waits for its time, one behind its ordering key");
    let first = claimed.iter().find(|job| job.id.as_i64() == one).expect("claimed");
    assert_eq!(
        (first.payload.as_str(), first.tags.as_slice()),
        ("{\"to\": \"x\"}", &["a".to_owned(), "b".to_owned()][..])
    );
}

/// SUB-3: a payload may be json, jsonb or a literal; each is stored as it came.
#[tokio::test(flavor = "multi_thread")]
async fn payloads_from_sql_may_be_jsonb() {
    let rig = Rig::new().await;
    let calls = [
        ("submit('h', jsonb_build_object('to', 'ada'))", r#"{"to": "ada"}"#),
        ("submit('h', json_build_object('to', 'bob'))", r#"{"to" : "bob"}"#),
        ("submit('h', '{\"to\":  \"eve\"}')", r#"{"to":  "eve"}"#),
        ("submit('h', '{}'::text)", "{}"),
        ("submit('h')", "{}"),
        ("submit_many('h', jsonb_build_array(jsonb_build_object('to', 'mia')))", r#"{"to": "mia"}"#),
    ];
    for (call, payload) in calls {
        let id = rig.sql(&format!("select windlass.{call}")).await;
        let job = rig.claim(10).await.into_iter().find(|job| job.id.as_i64() == id).expect(call);
        assert_eq!(job.payload.as_str(), payload, "{call}");
    }
}

/// SUB-13: from SQL, item i of a batch with a key has the key `key:i`.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_a_key_can_be_repeated_from_sql() {
    let rig = Rig::new().await;
    let ids =
        "select array_agg(id order by id)::text from windlass.submit_many('h', '[1, 2]', idempotency_key => 'b') id";
    let first: String = rig.client.query_one(ids, &[]).await.expect("submits").get(0);
    let again: String = rig.client.query_one(ids, &[]).await.expect("submits").get(0);
    assert_eq!(first, again);
    assert_eq!(rig.sql("select count(*) from windlass.job").await, 2);
    let one = rig.sql("select windlass.submit('h', idempotency_key => 'b:1')").await;
    assert!(first.ends_with(&format!("{one}}}")), "{first}");
    // The limit is one of the caller's key, without the number.
    let keyed = async |key: String| {
        let sql = format!("select count(*) from windlass.submit_many('h', '[1, 2]', idempotency_key => '{key}')");
        rig.client.query_one(sql.as_str(), &[]).await
    };
    assert_eq!(keyed("x".repeat(256)).await.expect("allowed").get::<_, i64>(0), 2);
    for key in ["x".repeat(257), String::new(), "windlass.webhook:1".to_owned()] {
        let refused = keyed(key.clone()).await.expect_err("refused");
        let refused = refused.as_db_error().expect("by the database");
        assert_eq!(refused.column(), Some("idempotency_key"), "{key}: {refused}");
    }
    assert_eq!(rig.sql("select count(*) from windlass.job").await, 4, "what is refused leaves nothing");
}

/// OPS-7: what is kept without a time of its own is kept as long as core says.
#[tokio::test(flavor = "multi_thread")]
async fn the_default_retention_is_cores() {
    let rig = Rig::new().await;
    let keep = windlass_core::DEFAULT_RETENTION.as_micros() as i64;
    assert_eq!(rig.sql("select windlass.keep_of(null)").await, keep);
    assert_eq!(rig.sql("select windlass.keep_of('{\"timeout\": 5}')").await, keep);
    assert_eq!(rig.sql("select windlass.keep_of('{\"retention\": 90000}')").await, 90_000_000);
}

/// SUB-3, SUB-9.
#[tokio::test(flavor = "multi_thread")]
async fn bad_input_from_sql_is_refused_with_the_reason() {
    let rig = Rig::new().await;
    for (sql, reason) in [
        ("select windlass.submit('')", "invalid handler"),
        ("select windlass.submit(repeat('h', 201))", "invalid handler"),
        ("select windlass.submit('h', null)", "invalid payload"),
        ("select windlass.submit('h', to_json(repeat('x', 5000000)))", "invalid payload"),
        ("select windlass.submit('h', priority => 40000)", "invalid priority"),
        ("select windlass.submit('h', delay => '-1 s')", "invalid delay"),
        ("select windlass.submit('h', idempotency_key => repeat('k', 257))", "invalid idempotency_key"),
        ("select windlass.submit_many('h', '{}')", "invalid payloads"),
        ("select windlass.submit('windlass.webhook', '{}')", "invalid handler"),
        ("select windlass.submit('h', idempotency_key => 'windlass.webhook:1:2')", "invalid idempotency_key"),
        ("select windlass.submit('h', ordering_key => 'windlass.x')", "invalid ordering_key"),
        ("select windlass.submit('h', queue => 'windlass.webhook')", "invalid queue"),
        ("select windlass.submit_many('windlass.webhook', '[1]')", "invalid handler"),
        ("insert into windlass.job (handler, payload) values ('h', '{}'), ('windlass.x', '{}')", "invalid handler"),
        ("insert into windlass.job (handler) values ('')", "invalid handler"),
    ] {
        let error = rig.client.simple_query(sql).await.expect_err("refused");
        let message = error.as_db_error().expect("answered").message();
        assert!(message.contains(reason), "{sql}: {message}");
    }
    assert_eq!(rig.sql("select count(*) from windlass.job").await, 0);
}

/// SUB-3, SUB-8: names and keys of the engine are refused by the functions that take many jobs as JSON too. The engine's own
/// jobs, which the library stores, have them.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_the_engine_are_refused_in_jobs_given_as_json() {
    let rig = Rig::new().await;
    for function in ["submit_jobs", "submit_jobs_within"] {
        for (job, field) in [
            (r#"{"handler": "windlass.webhook"}"#, "handler"),
            (r#"{"handler": "h", "queue": "windlass.webhook"}"#, "queue"),
            (r#"{"handler": "h", "idempotency_key": "windlass.webhook:1:2"}"#, "idempotency_key"),
            (r#"{"handler": "h", "ordering_key": "windlass.x"}"#, "ordering_key"),
            (r#"{"handler": "h", "unique": {"key": "windlass.x", "within": "unfinished"}}"#, "unique_key"),
        ] {
            let sql = format!("select windlass.{function}('[{{\"handler\": \"h\"}}, {job}]')");
            let error = rig.client.simple_query(&sql).await.expect_err(&sql);
            let error = error.as_db_error().expect("answered");
            assert_eq!((error.code().code(), error.column()), ("22023", Some(field)), "{sql}: {error}");
        }
    }
    assert_eq!(rig.sql("select count(*) from windlass.job").await, 0);
    let own = |job: NewJob| NewJob { handler: "windlass.webhook".into(), queue: "windlass.webhook".into(), ..job };
    let keyed = NewJob { idempotency_key: Some("windlass.webhook:1:2".into()), ..own(rig.job()) };
    assert_eq!(rig.submit(vec![keyed, own(rig.job())]).await.len(), 2);
    assert_eq!(rig.sql("select count(*) from windlass.job where handler = 'windlass.webhook'").await, 2);
}

/// SUB-3.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_exists_exactly_if_the_users_transaction_commits() {
    let mut rig = Rig::new().await;
    let (kept, undone) = (rig.job(), rig.job());
    let forged = NewJob { handler: "windlass.webhook".into(), ..rig.job() };
    let transaction = rig.client.transaction().await.expect("begins");
    submit_in(&transaction, std::slice::from_ref(&undone)).await.expect("submits");
    // A job need not have been made by the service; the engine's own names are refused all the same, before any write.
    let refused = submit_in(&transaction, &[forged]).await.expect_err("refused");
    assert!(matches!(refused, Error::InvalidInput(bad) if bad.field == "handler"));
    transaction.rollback().await.expect("rolls back");
    let transaction = rig.client.transaction().await.expect("begins");
    submit_in(&transaction, std::slice::from_ref(&kept)).await.expect("submits");
    assert_eq!(rig.store.get(ALL, &[kept.id]).await.expect("reads").len(), 0);
    transaction.commit().await.expect("commits");
    assert_eq!(rig.status(kept.id).await, Some(Status::Pending));
    assert_eq!(rig.status(undone.id).await, None);
    let claimed = rig.claim(10).await;
    assert_eq!(claimed.iter().map(|job| job.id).collect::<Vec<_>>(), [kept.id]);
}

/// RUN-9.
#[tokio::test(flavor = "multi_thread")]
async fn a_handlers_writes_and_its_success_commit_together() {
    let rig = Rig::new().await;
    rig.client.batch_execute("create table effect (job bigint, tenant text)").await.expect("created");
    rig.submit(vec![rig.job(), rig.job(), rig.job()]).await;
    let jobs = rig.claim(3).await;
    let effect = "insert into effect select $1, current_setting('app.tenant_id')";

    let tx = rig.store.begin_job_tx(rig.node, fence(&jobs[0]), jobs[0].tenant).await.expect("begins");
    tx.execute(effect, &[&jobs[0].id.as_i64()]).await.expect("writes");
    // Another finish of the same lease is not held up by the open transaction, and both are kept.
    let other = rig.store.finish(rig.node, vec![succeed(&jobs[1])]).await.expect("finishes");
    assert_eq!(other, [Finished::Accepted(Status::Succeeded)]);
    assert!(tx.complete(succeed(&jobs[0])).await.expect("completes"));

    let tx = rig.store.begin_job_tx(rig.node, fence(&jobs[0]), jobs[0].tenant).await.expect("begins");
    tx.execute(effect, &[&jobs[0].id.as_i64()]).await.expect("writes");
    assert!(!tx.complete(succeed(&jobs[0])).await.expect("is fenced"), "a job ends only once");

    let tx = rig.store.begin_job_tx(rig.node, fence(&jobs[2]), jobs[2].tenant).await.expect("begins");
    tx.execute(effect, &[&jobs[2].id.as_i64()]).await.expect("writes");
    drop(tx);

    assert_eq!(rig.sql("select count(*) from effect").await, 1, "only the completed one left a trace");
    assert_eq!(rig.status(jobs[0].id).await, Some(Status::Succeeded));
    assert_eq!(rig.status(jobs[2].id).await, Some(Status::Running));
    let tenants = "select count(*) from effect where tenant = '00000000-0000-0000-0000-000000000000'";
    assert_eq!(rig.sql(tenants).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_committer_is_found() {
    let mut rig = Rig::new().await;
    let late = rig.job();
    let transaction = rig.client.transaction().await.expect("begins");
    submit_in(&transaction, std::slice::from_ref(&late)).await.expect("submits");
    let deadline = Instant::now() + Duration::from_secs(4);
    // Service goes on for longer than hints lag behind.
    while Instant::now() < deadline {
        let ids = rig.store.submit(Submit { jobs: (0..50).map(|_| rig_job(&rig.ids)).collect(), lease: None }).await;
        assert_eq!(ids.expect("submits").len(), 50);
        let lease = LeaseId(rig.ids.next().as_i64());
        let claim =
            Claim { node: rig.node, lease, queues: vec![("default".into(), 50)], max: 50, quota: [0; 4], tenant: None };
        let jobs = rig.store.claim(claim).await.expect("claims").jobs;
        rig.store.finish(rig.node, jobs.iter().map(succeed).collect()).await.expect("finishes");
    }
    transaction.commit().await.expect("commits");
    let committed = Instant::now();
    loop {
        let claimed = rig.claim(1_000).await;
        if claimed.iter().any(|job| job.id == late.id) {
            break;
        }
        assert!(committed.elapsed() < Duration::from_secs(10), "a sweep finds it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn rig_job(ids: &IdGenerator) -> NewJob {
    NewJob {
        id: ids.next(),
        tenant: TenantId::ROOT,
        handler: "h".into(),
        queue: "default".into(),
        priority: Priority::NORMAL,
        start: Start::Now,
        payload: Payload::null(),
        idempotency_key: None,
        unique: None,
        ordering_key: None,
        batch: None,
        tags: Vec::new(),
        correlation_id: None,
        spec: JobSpec::default(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_with_an_ordering_key_holds_up_no_finish() {
    let mut rig = Rig::new().await;
    let keyed = |job: NewJob| NewJob { ordering_key: Some("o".into()), ..job };
    let first = keyed(rig.job());
    let second = keyed(rig.job());
    rig.submit(vec![first.clone()]).await;
    let held = rig.claim(1).await;
    let transaction = rig.client.transaction().await.expect("begins");
    submit_in(&transaction, std::slice::from_ref(&second)).await.expect("submits");
    let started = Instant::now();
    let finished = rig.store.finish(rig.node, vec![succeed(&held[0])]).await.expect("finishes");
    assert_eq!(finished, [Finished::Accepted(Status::Succeeded)]);
    assert!(started.elapsed() < Duration::from_secs(5));
    transaction.commit().await.expect("commits");
    assert_eq!(rig.status(second.id).await, Some(Status::Blocked));
    assert_eq!(rig.store.open_gates(10).await.expect("opens"), 1);
    assert_eq!(rig.status(second.id).await, Some(Status::Pending));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_week_is_dropped_and_its_survivors_stay() {
    let rig = Rig::new().await;
    rig.submit(vec![rig.job(), rig.job(), rig.job()]).await;
    let jobs = rig.claim(2).await;
    let finishes = jobs.iter().map(succeed).enumerate().map(|(n, finish)| match n {
        0 => Finish { transition: Transition::Succeed { output: None, keep: Duration::ZERO }, ..finish },
        _ => finish,
    });
    rig.store.finish(rig.node, finishes.collect()).await.expect("finishes");
    let waiting = rig.store.find(ALL, &Default::default(), Default::default(), None).await.expect("lists").jobs;
    assert_eq!(waiting.len(), 2, "one is over already");
    let week = "select windlass.drop_week(date_trunc('week', now() at time zone 'UTC')::date, 10000)::int::bigint";
    assert_eq!(rig.sql(week).await, 1);
    assert_eq!(rig.sql("select count(*) from windlass.job").await, 2);
    assert_eq!(rig.status(jobs[1].id).await, Some(Status::Succeeded));
    let rest = rig.claim(10).await;
    assert_eq!(rest.len(), 1);
    let finished = rig.store.finish(rig.node, vec![succeed(&rest[0])]).await.expect("finishes");
    assert_eq!(finished, [Finished::Accepted(Status::Succeeded)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_run_once_whoever_comes_first_and_newer_schemas_are_refused() {
    let database = Database::fresh().await;
    let before = PgStore::schema_status(&database.url).await.expect("asks");
    assert_eq!(before.found, 0);
    let options = || PgOptions::new(&database.url).expect("a URL").listen(false);
    let unmigrated = PgStore::connect_with(options().migrate(false)).await.expect_err("nothing there");
    assert!(matches!(unmigrated, Error::Refused(message) if message.contains("windlass migrate")));
    let all = futures_util::future::join_all((0..4).map(|_| PgStore::connect_with(options()))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert!(PgStore::schema_status(&database.url).await.expect("asks").is_current());
    let client = database.client().await;
    client.batch_execute("insert into windlass.schema_version values (99, 'from the future')").await.expect("written");
    let refused = PgStore::connect_with(options()).await.expect_err("newer");
    assert!(matches!(refused, Error::Refused(message) if message.contains("99")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_migrations_make_the_same_schema() {
    let database = Database::fresh().await;
    let client = database.client().await;
    client.batch_execute(&windlass_postgres::migrations_sql()).await.expect("the SQL runs by hand");
    let options = PgOptions::new(&database.url).expect("a URL").migrate(false).listen(false);
    PgStore::connect_with(options).await.expect("the schema is the one it wants");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_server_is_unavailable_and_comes_back() {
    let rig = Rig::new().await;
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid()";
    rig.client.simple_query(end).await.expect("ends all connections");
    // A connection that died while idle may be noticed only by the first call; the next one gets a new connection.
    let first = rig.store.now().await;
    assert!(first.is_ok() || matches!(first, Err(Error::Unavailable(_))), "{first:?}");
    rig.store.now().await.expect("reconnects");
    let nowhere = PgStore::connect("postgres://nobody@127.0.0.1:1/nothing").await.expect_err("nobody is there");
    assert!(matches!(nowhere, Error::Unavailable(_)), "{nowhere:?}");
}

/// Not a benchmark: it prints what one connection does here, so that a change of plans or round trips is seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_drained() {
    const JOBS: usize = 20_000;
    const BATCH: usize = 1_000;
    let rig = Rig::new().await;
    let started = Instant::now();
    for _ in 0..JOBS / BATCH {
        rig.submit((0..BATCH).map(|_| rig.job()).collect()).await;
    }
    let submitted = started.elapsed();
    let started = Instant::now();
    let (mut drained, mut claiming) = (0, Duration::ZERO);
    while drained < JOBS {
        let claim = Instant::now();
        let jobs = rig.claim(BATCH).await;
        claiming += claim.elapsed();
        assert!(!jobs.is_empty(), "{drained} of {JOBS} drained");
        let finished = rig.store.finish(rig.node, jobs.iter().map(succeed).collect()).await.expect("finishes");
        drained += finished.iter().filter(|finished| matches!(finished, Finished::Accepted(_))).count();
    }
    let rate = |time: Duration| (JOBS as f64 / time.as_secs_f64()).round();
    let all = started.elapsed();
    eprintln!(
        "submitted {}/s, claimed {}/s, finished {}/s",
        rate(submitted),
        rate(claiming),
        rate(all.saturating_sub(claiming))
    );
    assert_eq!(rig.store.counts(ALL).await.expect("counts").get(Status::Succeeded), JOBS as u64);
}
