//! Rows that something other than Windlass has written or changed. Whatever a column holds, it costs at most the job whose
//! row it is: no loop panics, and other jobs go on.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Database;
use tokio_postgres::Client;
use windlass_core::store::FeedAsk;
use windlass_core::store::rooms::*;
use windlass_core::{
    Config, JobContext, JobError, JobFilter, JobId, JobService, OperatorRight, Page, Scope, SecurityContext, Status,
    SubmitOptions, TenantId,
};
use windlass_postgres::{PgOptions, PgStore};
use windlass_testkit::conformance::looks::{Whole, look_at_everything};

const ALL: Scope = Scope::All(OperatorRight::assume());

/// How long another job may take while something is wrong: many times what it takes, and less than a lease.
const GOES_ON: Duration = Duration::from_secs(8);

async fn nothing((): (), _: JobContext, (): ()) -> Result<(), JobError> {
    Ok(())
}

/// A database, a store and a node on it, and a client of the administrator.
struct Rig {
    store: PgStore,
    jobs: JobService,
    client: Client,
    ctx: SecurityContext,
    _database: Database,
}

impl Rig {
    async fn new() -> Rig {
        Rig::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Rig {
        let database = Database::migrated().await;
        let options = PgOptions::new(&database.url).expect("a URL");
        let store = PgStore::connect_with(options).await.expect("opens");
        let jobs = JobService::builder(Arc::new(store.clone())).function("h", (), nothing).concurrency(8);
        let jobs = jobs.configure(change).start().await.expect("starts");
        let ctx = SecurityContext::new(TenantId::ROOT);
        Rig { client: database.client().await, store, jobs, ctx, _database: database }
    }

    /// The same, but nobody else recovers, expires and cleans: the test does.
    async fn without_maintenance() -> Rig {
        Rig::with(|config| config.maintenance = false).await
    }

    /// Whether a job that has nothing to do with it is stored and run.
    async fn goes_on(&self, after: &str) -> JobId {
        let job = self.jobs.submit_named(&self.ctx, "h", &(), SubmitOptions::new()).await;
        let job = job.unwrap_or_else(|error| panic!("{after}: a job is not stored: {error}"));
        let end = self.jobs.wait(&self.ctx, job.id, GOES_ON).await;
        let end = end.unwrap_or_else(|error| panic!("{after}: another job does not end: {error}"));
        assert_eq!(end.status, Status::Succeeded, "{after}");
        let panicked: Vec<_> = self.jobs.loops().into_iter().filter(|health| health.panics > 0).collect();
        assert!(panicked.is_empty(), "{after}: {panicked:?}");
        job.id
    }

    /// Stores a job by plain SQL, changed by `change` before anyone sees it.
    async fn spoilt(&mut self, change: &str) -> Result<JobId, tokio_postgres::Error> {
        let tx = self.client.transaction().await?;
        let id: i64 = tx.query_one("select windlass.submit('h', 'null')", &[]).await?.get(0);
        tx.execute(&format!("update windlass.job set {change} where id = {id}"), &[]).await?;
        tx.commit().await?;
        self.jobs.wake();
        Ok(JobId::from_i64(id))
    }
}

/// SUB-1, SUB-7: labels that no node could read, and times that nothing could be computed with, are refused by every way
/// into the database.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_could_read_is_refused() {
    let rig = Rig::new().await;
    for (sql, field) in [
        ("select windlass.submit('h', '{}', tags => array[null, 'a'])", "tags"),
        ("select windlass.submit('h', '{}', tags => array[array['a'], array['b']])", "tags"),
        ("select windlass.submit_many('h', '[1, 2]', tags => array[null::text])", "tags"),
        ("select * from windlass.submit_jobs('[{\"handler\": \"h\", \"tags\": [\"a\", null]}]')", "tags"),
        ("select * from windlass.submit_jobs('[{\"handler\": \"h\", \"tags\": [[\"a\"]]}]')", "tags"),
        ("select * from windlass.submit_jobs('[{\"handler\": \"h\", \"tags\": 7}]')", "tags"),
        ("select windlass.submit('h', '{}', spec => '[]')", "spec"),
        (r#"select windlass.submit('h', '{}', spec => '{"headers": {"a": "\u0000"}}')"#, "spec"),
        (r#"select windlass.submit('h', '{}', spec => '{"retention": "x"}')"#, "spec.retention"),
        (r#"select windlass.submit('h', '{}', spec => '{"retention": -1}')"#, "spec.retention"),
        (r#"select windlass.submit('h', '{}', spec => '{"timeout": 1.5}')"#, "spec.timeout"),
        (r#"select windlass.submit('h', '{}', spec => '{"sealed": "maybe"}')"#, "spec.sealed"),
        (r#"select windlass.submit('h', '{}', spec => '{"expires_at": "never"}')"#, "spec.expires_at"),
        (r#"select windlass.submit('h', '{}', spec => '{"deadline_at": "2020-13-01T00:00:00Z"}')"#, "spec.deadline_at"),
        (r#"select windlass.submit('h', '{}', spec => '{"retry": 7}')"#, "spec.retry"),
        (
            r#"select windlass.submit('h', '{}', spec => '{"retry": {"max_attempts": 70000}}')"#,
            "spec.retry.max_attempts",
        ),
        (r#"select windlass.submit('h', '{}', spec => '{"retry": {"multiplier": 1e400}}')"#, "spec.retry.multiplier"),
        (
            r#"select windlass.submit('h', '{}', spec => '{"retry": {"then": {"after": 3}}}')"#,
            "spec.retry.then.first_delay",
        ),
        (r#"select windlass.submit('h', '{}', spec => '{"headers": {"a": 7}}')"#, "spec.headers"),
        (r#"select windlass.submit_many('h', '[1]', spec => '{"callback": "later"}')"#, "spec.callback"),
        (r#"select windlass.submit_jobs('[{"handler": "h", "spec": {"retention": "x"}}]')"#, "spec.retention"),
        (r#"select windlass.submit_jobs_within('[{"handler": "h", "spec": {"parent": 7}}]')"#, "spec.parent"),
        (
            r#"insert into windlass.job (handler, spec) values ('h', null), ('h', '{"retention": "x"}')"#,
            "spec.retention",
        ),
        (r#"select windlass.submit_jobs('{"handler": "h"}')"#, "jobs"),
        (r#"select windlass.submit_jobs('[7]')"#, "jobs"),
        (r#"select windlass.submit_jobs('[{"handler": "h", "id": "x"}]')"#, "id"),
        (r#"select windlass.submit_jobs('[{"handler": "h", "tenant": "x"}]')"#, "tenant"),
        (r#"select windlass.submit_jobs('[{"handler": "h", "priority": "high"}]')"#, "priority"),
        (r#"select windlass.submit_jobs('[{"handler": "h", "start": {"after": "soon"}}]')"#, "start"),
        ("select windlass.submit('h', '{}', run_at => 'infinity')", "run_at"),
    ] {
        let refused = rig.client.query(sql, &[]).await.expect_err(sql);
        let refused = refused.as_db_error().expect("the server answers");
        assert_eq!(refused.code().code(), "22023", "{sql}: {refused}");
        assert!(refused.message().starts_with(&format!("windlass: invalid {field}: ")), "{sql}: {refused}");
    }
    for (columns, values) in [
        ("tags", "array[null, 'a']"),
        ("tags", "array[array['a']]"),
        ("run_at", "'infinity'::timestamptz"),
        ("created_at", "'-infinity'::timestamptz"),
    ] {
        let sql = format!("insert into windlass.job (handler, {columns}) values ('h', {values})");
        let refused = rig.client.query(&sql, &[]).await.expect_err(&sql);
        assert_eq!(refused.code().map(|code| code.code()), Some("23514"), "{sql}: {refused}");
    }
    let stored = rig.client.query_one("select count(*) from windlass.job", &[]).await.expect("counts");
    assert_eq!(stored.get::<_, i64>(0), 0);
    rig.goes_on("after the refusals").await;
    let good = "select windlass.submit('h', 'null', tags => array['a', 'b'])";
    let id: i64 = rig.client.query_one(good, &[]).await.expect(good).get(0);
    rig.jobs.wake();
    let end = rig.jobs.wait(&rig.ctx, JobId::from_i64(id), GOES_ON).await.expect("ends");
    assert_eq!(end.status, Status::Succeeded);
}

/// RUN-4, RUN-7: a job whose row cannot be read is a dead letter alone, with the column named; those of the same claim run,
/// and it can be read, listed and purged like any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_read_costs_one_job() {
    let mut rig = Rig::new().await;
    // As a version without them would have it, or a restore.
    for constraint in ["job_tags", "job_times"] {
        let sql = format!("alter table windlass.job drop constraint {constraint}");
        rig.client.batch_execute(&sql).await.expect("the owner may");
    }
    let mut spoilt = Vec::new();
    for (column, value) in [
        ("tags", "array[null, 'a']"),
        ("tags", "array[array['a'], array['b']]"),
        ("spec", "'{\"timeout\": \"soon\"}'"),
        ("spec", "'7'"),
    ] {
        rig.goes_on("before").await;
        let id = rig.spoilt(&format!("{column} = {value}")).await.expect("nothing refuses it now");
        let end = rig.jobs.wait(&rig.ctx, id, GOES_ON).await.expect("ends");
        assert_eq!(end.status, Status::DeadLettered, "{column} = {value}");
        let record = rig.jobs.get(&rig.ctx, id).await.expect("can be read");
        assert_eq!(record.reason.as_deref(), Some("unreadable"), "{record:?}");
        let error = record.error.expect("says why").message;
        assert!(error.contains(column), "{error}");
        spoilt.push(id);
        rig.goes_on(&format!("{column} = {value}")).await;
    }
    let mut filter = JobFilter::default();
    filter.statuses = vec![Status::DeadLettered];
    let listed = rig.store.find(ALL, &filter, Page::first(50), None).await.expect("lists").jobs;
    assert_eq!(listed.len(), spoilt.len());
    for id in spoilt {
        assert!(rig.jobs.history(&rig.ctx, id).await.expect("has a history").len() > 1);
        rig.jobs.purge(&rig.ctx, id).await.expect("can be purged");
    }
}

/// What a column of a type could hold that Windlass would never write there. 1002 is a job that has ended.
fn nasty(of: &str) -> &'static [&'static str] {
    match of {
        "text" => &["''", "'\u{1}{'", "repeat('x', 3000)"],
        "\"char\"" => &["'x'"],
        "boolean" => &["true", "false"],
        "text[]" => &["array[null, 'a']", "array[array['a']]", "'{}'"],
        "bigint[]" => &[
            "array[null::bigint]",
            "array[array[1::bigint]]",
            "'{}'",
            "array[9223372036854775807]",
            "array[1002::bigint]",
        ],
        "smallint[]" => &["array[null::int]", "array[array[1]]", "'{}'"],
        "timestamp with time zone[]" => &["array[null::timestamptz]", "array['infinity'::timestamptz]", "'{}'"],
        "uuid[]" => &["array[null::uuid]", "'{}'"],
        "bigint" => &["-9223372036854775808", "9223372036854775807", "0", "1002"],
        "integer" => &["-2147483648", "2147483647"],
        "smallint" => &["-32768", "32767"],
        "timestamp with time zone" | "date" => &["'infinity'", "'-infinity'"],
        "json" => &[
            "'[]'",
            "'null'",
            r#"'{"retention": "x", "sealed": "maybe", "expires_at": "never", "timeout": "x", "retry": 7, "code": []}'"#,
            r#"'{"retention": -1e300, "headers": {"a": "\u0000"}, "handlers": ["\ud800"]}'"#,
            r#"'{"handlers": [null, 7, ["a"]], "code": "node_unavailable", "details": {"ran_ms": "x"}}'"#,
        ],
        "uuid" => &["'eeeeeeee-ffff-ffff-ffff-ffffffffffff'"],
        "real" | "double precision" => &["'NaN'", "'infinity'"],
        "bytea" => &["'\\x'"],
        other => panic!("nothing is known that would spoil a column of type {other}"),
    }
}

/// One sample of many, as the looks of the test add some.
const OLDEST_DEPTH: &str =
    "resolution = 60 and at <= all (select at from windlass.depth where resolution = 60 and isfinite(at))";

/// The rows that are spoilt: of every table, the one that a predicate finds, and how it is made where it is not there.
/// Tenant 5 is nobody's but this test's; node 777 and its lease are alive when they are made.
const ROWS: [(&str, &str, &str); 44] = [
    ("activity", "handler = 'p'", "(at, tenant_id, resolution, handler, sums) values (now(), T, 60, 'p', '{1}')"),
    (
        "api_key",
        "name = 'p'",
        "(id, tenant_id, home, name, acts_as, rights, hash, created_by) values ('p', T, T, 'p', 'u', 'read', '\\x00', 'u')",
    ),
    ("audit", "target = 'p'", "(tenant_id, actor, action, target) values (T, 'u', 'PAUSED', 'p')"),
    (
        "batch",
        "id = 1010",
        "(id, tenant_id, name, key, callback, total, sealed_at, callback_job)
          values (1010, T, 'p', 'p', '{\"handler\": \"h\", \"input\": null}', 5, now(), 1007)",
    ),
    ("batch_delta", "batch_id = 1010 or dead = 3", "(batch_id, succeeded, canceled, dead) values (1010, 1, 1, 3)"),
    ("batch_part", "part = 3 or batch_id = 1010", "(batch_id, part, jobs) values (1010, 3, 5)"),
    ("checkpoint", "id = 1007", "(id, data) values (1007, '1')"),
    ("counter", "tenant_id = T", "(tenant_id, status, n, gone) values (T, 6, 5, 1)"),
    (
        "counter_delta",
        "T = any (tenants)",
        "(tenants, statuses, counts, untils) values (array[T], '{6}', '{1}', array[now() + interval '1 hour'])",
    ),
    ("counter_end", "tenant_id = T", "(until, tenant_id, status, n) values (now() + interval '1 hour', T, 6, 3)"),
    ("data_key", "tenant_id = T", "(tenant_id, version, kek, wrapped) values (T, 1, 'k', '\\x00')"),
    ("depth", OLDEST_DEPTH, "(at, resolution, counts) values (now(), 60, '{1,2}')"),
    ("edge", "parent_id = 1001 or child_id = 1005", "(parent_id, child_id) values (1001, 1005)"),
    (
        "event",
        "id = 1007",
        "(id, at, started_at, node_id, status, attempt, failed, recoveries, error) values (1007, now(), now(), 777, 0, 1, 0,
          1, '{\"code\": \"node_unavailable\", \"message\": \"m\", \"details\": {\"ran_ms\": 5, \"suspects\": 1}}')",
    ),
    ("expiry", "id = 1004", "(at, id) values (now() + interval '1 hour', 1004)"),
    ("feed", "id = 1002", "(id, status, attempt) values (1002, 8, 1)"),
    ("feed_reader", "true", "(id, until) values (1, now() + interval '1 hour')"),
    (
        "gated",
        "id = 1005",
        "(id, tenant_id, created_at, rank, queue, gate) values (1005, T, now(), 0, 'default', 'key:p')",
    ),
    ("job_cost", "id = 1007", "(id, cents, units) values (1007, 5, 5)"),
    ("job_key", "key = 'p'", "(kind, tenant_id, scope, key, id) values ('i', T, 'h', 'p', 1004)"),
    (
        "job_log",
        "id = 1007",
        "(id, sequence, lease_id, number, at, attempt, level, message) values (1007, 1, 778, 1, now(), 1, 3, 'm')",
    ),
    ("key_holder", "ordering_key = 'p'", "(tenant_id, ordering_key, id) values (T, 'p', 1004)"),
    ("holding", "name = 'p'", "(name, node_id, epoch, until, position) values ('p', 777, 1, now(), 5)"),
    ("lease", "lease_id = 778", "(lease_id, part, node_id, failed, recoveries, ids) values (778, 0, 777, 0, 1, '{1007}')"),
    ("line", "queue = 'p'", "(queue, rank, served) values ('p', 0, 5)"),
    ("node", "node_id = 777", "(node_id, slot, info) values (777, 900, '{\"handlers\": [\"p\"]}')"),
    (
        "outcome",
        "id = 1002",
        "(id, finished_at, started_at, status, attempt, failed, recoveries, reason, output, error)
          values (1002, now(), now(), 8, 1, 1, 0, 'max_retries', '1', '{\"code\": \"c\", \"message\": \"m\"}')",
    ),
    ("pause", "reason = 'p'", "(target, by, reason) values ('handler:p', 'u', 'p')"),
    ("progress", "id = 1007", "(id, sequence, percent, message, updated_at) values (1007, 1, 5, 'm', now())"),
    (
        "quota",
        "tenant_id = T",
        "(tenant_id, weight, queued, rate, burst, running, bytes) values (T, 2, 500, 5, 5, 5, 5000)",
    ),
    ("quota_version", "true", "(n) values (1)"),
    ("ready", "queue = 'p'", "(position, first, tenant_id, rank, queue, ids) values (5, 1003, T, 0, 'p', '{1003}')"),
    (
        "schedule",
        "id = 1009",
        "(tenant_id, name, id, version, spec, input, sealed, paused, next_at, last_at, created_at, changed_at)
          values (T, 'p', 1009, 1, '{}', 'null', false, false, now() - interval '1 minute', now(), now(), now())",
    ),
    (
        "scheduled",
        "id = 1004",
        "(run_at, id, tenant_id, kind, rank, queue) values (now() + interval '1 hour', 1004, T, 1, 0, 'default')",
    ),
    ("served", "name = 'p'", "(name, at) values ('p', now())"),
    ("setting", "name = 'p'", "(name, value, until) values ('p', 'v', now() + interval '1 hour')"),
    ("slot", "slot = 1000", "(slot) values (1000)"),
    ("tenant_line", "queue = 'p'", "(queue, rank, tenant_id, next) values ('p', 0, T, 500)"),
    (
        "tenant_use",
        "tenant_id = T",
        "(tenant_id, jobs, ended, bytes, counted_at, tokens, filled_at) values (T, 1, 1, 1, now(), 1, now())",
    ),
    ("tenant_use_delta", "tenant_id = T", "(tenant_id, jobs, bytes) values (T, 1, 1)"),
    ("usage", "handler = 'p'", "(day, tenant_id, handler, jobs, cents, units) values (now()::date, T, 'p', 1, 1, 1)"),
    (
        "usage_event",
        "handler = 'p'",
        "(sequence, id, tenant_id, handler, cents, units, at)
          values (nextval('windlass.usage_seq'), 1007, T, 'p', 1, 1, now())",
    ),
    (
        "webhook",
        "id = 'p'",
        "(id, tenant_id, url, events, secret, sealed, created_by)
          values ('p', T, 'http://x', '{6}', '\"s\"', false, 'u')",
    ),
    // Stored anew for each value, by a submit.
    ("job", "", ""),
];

/// Tables that are not rows of the engine's work: the version of the schema says which program may use it at all.
const NOT_READ: [&str; 2] = ["schema_version", "schema_object"];

/// Columns of which the database refuses every value here: statements compute with them.
const REFUSED: [(&str, &str); 23] = [
    ("batch", "created_at"),
    ("event", "at"),
    ("event", "failed"),
    ("event", "recoveries"),
    ("feed_reader", "id"),
    ("gated", "failed"),
    ("gated", "recoveries"),
    ("holding", "until"),
    ("job", "created_at"),
    ("lease", "claimed_at"),
    ("lease", "failed"),
    ("lease", "recoveries"),
    ("node", "heartbeat_at"),
    ("ready", "failed"),
    ("ready", "recoveries"),
    ("schedule", "created_at"),
    ("schedule", "changed_at"),
    ("scheduled", "run_at"),
    ("scheduled", "failed"),
    ("scheduled", "recoveries"),
    ("slot", "slot"),
    ("tenant_use", "tokens"),
    ("tenant_use", "filled_at"),
];

/// The jobs that the rows name, which never change.
const JOBS: &str = "begin;
    select set_config('windlass.packed', 'on', true);
    insert into windlass.job (id, handler, queue, tenant_id, payload, ordering_key, spec)
    select n, 'h', 'default', T, 'null', case when n = 1005 then 'p' end, case when n = 1007 then '{\"timeout\": 1000}'::json end
    from generate_series(1001, 1007) n on conflict do nothing;
    commit";

/// RUN-4, RUN-5, BEY-4, OPS-8: each column of each table, one after the other, holds what nobody would write. What the
/// database does not refuse costs no other job anything: others are stored, run, read, listed, expired, taken back from a
/// lost node and told of, and every look at the store answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_column_stops_other_jobs() {
    let rig = Rig::without_maintenance().await;
    rig.store.want_feed(Duration::from_secs(3_600)).await.expect("wants");
    rig.run(JOBS).await;
    // Compiling the view takes the server half a second each time.
    rig.run("set jit = off").await;
    let columns = "select c.relname, a.attname, format_type(a.atttypid, null), a.attnotnull
        from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'windlass'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
          and a.attnum > 0 and not a.attisdropped and a.attidentity = '' order by 1, a.attnum";
    let columns = rig.client.query(columns, &[]).await.expect("the catalog answers");
    let (mut never, mut tried) = (Vec::new(), 0);
    for row in columns {
        let (table, column, of, not_null): (String, String, String, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        if NOT_READ.contains(&table.as_str()) {
            continue;
        }
        let mut spoilt = 0;
        let null: &[&str] = if not_null { &[] } else { &["null"] };
        for value in nasty(&of).iter().chain(null) {
            tried += 1;
            let Some(Spoilt { place, job }) = rig.spoil(&table, &column, value).await else { continue };
            spoilt += 1;
            rig.all_goes_beside(&format!("{table}.{column} = {value}"), job).await;
            // What is wrong must be the next value and nothing else.
            rig.run(&format!("delete from windlass.{table} where ctid = '{place}'::tid")).await;
        }
        if spoilt == 0 {
            never.push((table, column));
        }
    }
    let never: Vec<(&str, &str)> = never.iter().map(|(table, column)| (table.as_str(), column.as_str())).collect();
    assert_eq!(never, REFUSED, "columns that could not be spoilt, {tried} values tried");
}

/// Rows that decide where everybody's jobs stand: those of the queue and the tenant that others use.
const LINES: [(&str, &str, &str); 3] = [
    (
        "ready",
        "queue = 'default' and first = 1003",
        "(position, first, tenant_id, rank, queue, ids) values (5, 1003, R, 0, 'default', '{1003}')",
    ),
    ("line", "queue = 'default' and rank = 0", "(queue, rank, served) values ('default', 0, 5)"),
    (
        "tenant_line",
        "queue = 'default' and rank = 0 and tenant_id = R",
        "(queue, rank, tenant_id, next) values ('default', 0, R, 500)",
    ),
];

/// How many jobs of one tenant are stored behind a spoilt row: some chunks, so that what is placed is counted on from there,
/// and more than the node has slots, so that chunks are split.
const CROWD: i64 = 300;

/// What is stored by SQL may stand before where this process looks, until it sweeps. Sweeps may take a twentieth of the time:
/// after one that took half a second on a busy machine, the next comes ten seconds later.
const CROWD_GOES_ON: Duration = Duration::from_secs(30);

/// RUN-4, ORD-3: a row of the line that others stand in holds what nobody would write. They are placed behind it, by the
/// library and by SQL, and run.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_place_in_a_line_stops_those_behind_it() {
    let rig = Rig::without_maintenance().await;
    for (table, is, make) in LINES {
        let columns = "select a.attname, format_type(a.atttypid, null) from pg_attribute a
            where a.attrelid = ('windlass.' || $1::text)::regclass and a.attnum > 0 and not a.attisdropped";
        for row in rig.client.query(columns, &[&table]).await.expect("the catalog answers") {
            let (column, of): (String, String) = (row.get(0), row.get(1));
            // A process remembers how far a line has come, so each column starts with a new one.
            let rig = Rig::without_maintenance().await;
            rig.store.want_feed(Duration::from_secs(3_600)).await.expect("wants");
            rig.run(JOBS).await;
            let ends: &[&str] = if of == "bigint" { &["4611686018427387900", "4611686018427387904"] } else { &[] };
            for value in nasty(&of).iter().chain(ends) {
                let Some(place) = rig.change(table, is, make, &column, value).await else { continue };
                let what = format!("{table}.{column} = {value}");
                rig.all_goes_on(&what).await;
                let crowd = "select max(id) from windlass.submit_many('h', (select json_agg(null::int)
                             from generate_series(1, $1::bigint))) id";
                let last: i64 = rig.client.query_one(crowd, &[&CROWD]).await.expect("stored").get(0);
                rig.jobs.wake();
                let end = rig.jobs.wait(&rig.ctx, JobId::from_i64(last), CROWD_GOES_ON).await;
                let end = end.unwrap_or_else(|error| panic!("{what}: the last of a crowd: {error}"));
                assert_eq!(end.status, Status::Succeeded, "{what}");
                rig.holds_nothing(&what).await;
                rig.run(&format!("delete from windlass.{table} where ctid = '{place}'::tid")).await;
            }
        }
    }
}

/// A row that is spoilt.
struct Spoilt {
    /// Its place in its table.
    place: String,
    /// Its job, if it is one's own row.
    job: Option<JobId>,
}

/// SQL of this file, in which T stands for the tenant of the spoilt rows, and R for the root.
fn of_tenant(sql: &str) -> String {
    let tenant = |word: &str| match word.trim_end_matches(|c: char| !c.is_alphanumeric()) {
        "T" => Some(TENANT),
        "R" => Some(ROOT),
        _ => None,
    };
    let words = sql.split_inclusive(|c: char| !c.is_alphanumeric());
    words.map(|word| tenant(word).map_or(word.to_owned(), |id| format!("'{id}'::uuid{}", &word[1..]))).collect()
}

const TENANT: &str = "00000000-0000-0000-0000-000000000005";
const ROOT: &str = "00000000-0000-0000-0000-000000000000";

/// A job that waits, and has expired.
const LATE: &str =
    "select windlass.submit('h', 'null', delay => '1 hour', spec => '{\"expires_at\": \"2020-01-01T00:00:00Z\"}')";

/// A job that a node held which is dead now.
const LOST: &str = "with j as (insert into windlass.job (handler, payload) select 'h', 'null'
               where set_config('windlass.packed', 'on', true) is not null returning id),
    n as (insert into windlass.node (slot, heartbeat_at, info)
          values (901, clock_timestamp() - interval '1 hour', '{\"handlers\": [\"h\"]}') returning node_id),
    l as (insert into windlass.lease (lease_id, part, node_id, failed, recoveries, ids)
          select j.id, 0, n.node_id, 0, 0, array[j.id] from j cross join n)
    select id from j";

/// How long nodes may be silent that the test asks about.
const LEASE: Duration = Duration::from_secs(10);

/// BEY-4, RUN-5, OPS-8, API-6: what a job carries is of a type that no node reads. Whatever step meets it (it has expired, it
/// was held by a node that was lost, with and without a cancel, a status event tells of it), the others go on, and it ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_spec_that_cannot_be_read_stops_no_step() {
    let rig = Rig::without_maintenance().await;
    rig.store.want_feed(Duration::from_secs(3_600)).await.expect("wants");
    for spec in [
        r#"{"retention": "x", "expires_at": "2020-01-01T00:00:00Z"}"#,
        r#"{"retention": -5, "sealed": "maybe"}"#,
        r#"{"retention": 1e999, "sealed": {}}"#,
        r#"{"retention": 5, "headers": {"a": "\u0000"}}"#,
        r#"{"sealed": "\ud800"}"#,
        "7",
        "[]",
    ] {
        let spoil = async |id: JobId| {
            let sql = "update windlass.job set spec = $1::text::json where id = $2";
            rig.client.execute(sql, &[&spec, &id.as_i64()]).await.expect("nothing refuses it");
        };
        let (late, lost, canceled) = (rig.id(LATE).await, rig.id(LOST).await, rig.id(LOST).await);
        let cancel =
            "update windlass.lease set canceled = array[$1::bigint], cancel_reasons = '{x}' where $1 = any (ids)";
        assert_eq!(rig.client.execute(cancel, &[&canceled.as_i64()]).await.expect("canceled"), 1);
        for id in [late, lost, canceled] {
            spoil(id).await;
        }
        rig.all_goes_on(spec).await;
        for (id, reason) in [(late, "expired"), (canceled, "x")] {
            let record = rig.jobs.get(&rig.ctx, id).await.expect("can be read");
            assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some(reason)), "{spec}");
        }
        let end = rig.jobs.wait(&rig.ctx, lost, GOES_ON).await.expect("ends");
        assert!(end.status.is_terminal(), "{spec}: {:?}", end.status);
        rig.all_goes_on(spec).await;
    }
}

impl Rig {
    async fn id(&self, sql: &str) -> JobId {
        let rows = self.client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        JobId::from_i64(rows.get(0))
    }

    async fn run(&self, sql: &str) {
        let sql = of_tenant(sql);
        self.client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Makes the row of a table that is spoilt, if it is not there, and changes one column. Returns where it is; nothing if
    /// the database refuses the value.
    async fn spoil(&self, table: &str, column: &str, value: &str) -> Option<Spoilt> {
        let (_, is, make) =
            ROWS.iter().find(|(name, ..)| *name == table).unwrap_or_else(|| panic!("no row of {table}"));
        let (is, job) = match table {
            "job" => {
                let stored = self.id("select windlass.submit('h', 'null')").await;
                (format!("id = {}", stored.as_i64()), Some(stored))
            }
            _ => ((*is).to_owned(), None),
        };
        self.change(table, &is, make, column, value).await.map(|place| Spoilt { place, job })
    }

    /// Makes the row of `table` that `is` says, if it is not there, and changes it before anybody else sees it.
    async fn change(&self, table: &str, is: &str, make: &str, column: &str, value: &str) -> Option<String> {
        self.run("begin").await;
        let there = self.query(&format!("select 1 from windlass.{table} where {is}")).await.expect("there");
        if there.is_empty() {
            self.run(&format!("insert into windlass.{table} {make}")).await;
        }
        let sql = format!("update windlass.{table} set {column} = {value} where {is} returning ctid::text");
        let changed = self.query(&sql).await.ok();
        self.run(if changed.is_some() { "commit" } else { "rollback" }).await;
        let changed = changed?;
        assert!(!changed.is_empty(), "{sql}: hits nothing");
        Some(changed[0].get(0))
    }

    /// Waits until the node holds no job any more: what it cannot end must not keep a slot. An id that is no job's stays in
    /// its lease until the node leaves: nothing runs, so nothing ends.
    async fn holds_nothing(&self, after: &str) {
        let started = Instant::now();
        loop {
            let held = "select l.ids::text from windlass.lease l
                        where exists (select 1 from windlass.job j where j.id = any (l.ids))";
            let held = self.query(held).await.expect("the leases can be read");
            let Some(row) = held.first() else { return };
            assert!(started.elapsed() < GOES_ON, "{after}: jobs {} are held", row.get::<_, String>(0));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn query(&self, sql: &str) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
        self.client.query(&of_tenant(sql), &[]).await
    }

    /// Everything that others want of the store.
    async fn all_goes_on(&self, after: &str) {
        self.all_goes_beside(after, None).await;
    }

    /// The same, with a look at a job that is spoilt itself.
    async fn all_goes_beside(&self, after: &str, job: Option<JobId>) {
        let store = &self.store;
        macro_rules! must {
            ($call:expr) => {
                $call.await.unwrap_or_else(|error| panic!("{after}: {}: {error}", stringify!($call)))
            };
        }
        let end = must!(store.feed_end());
        let (late, held) = (self.id(LATE).await, self.id(LOST).await);
        assert!(must!(store.expire(1_000)) >= 1, "{after}: nothing expires");
        let silent = must!(store.survey(LEASE, &[])).silent;
        let recovered = must!(store.recover(LEASE, &silent));
        assert!(recovered.jobs.contains(&held), "{after}: the job of a lost node is not taken back");
        must!(store.promote(1_000));
        must!(store.open_gates(1_000));
        must!(store.clean(1_000));
        let other = self.goes_on(after).await;
        let get = async |id| must!(self.jobs.get(&self.ctx, id));
        assert_eq!(get(late).await.reason.as_deref(), Some("expired"), "{after}");
        let told = must!(store.read_feed(&FeedAsk { after: end, gaps: Vec::new() }, 1_000));
        assert!(told.iter().any(|row| row.job == other && row.status == Status::Succeeded), "{after}: {told:?}");
        let listed = must!(store.find(ALL, &JobFilter::default(), Page::first(20), None)).jobs;
        assert!(listed.iter().any(|record| record.id == late), "{after}: a job is not listed");
        let node = must!(store.nodes()).into_iter().find(|node| !node.info.host.is_empty()).map(|node| node.node);
        let whole = Whole { job: other, node: node.unwrap_or_else(|| panic!("{after}: no node is listed")) };
        let spoilt: Vec<JobId> = (1_001..=1_007).map(JobId::from_i64).chain(job).collect();
        let looked = look_at_everything(store, whole, &spoilt).await;
        looked.unwrap_or_else(|why| panic!("{after}: {why}"));
        must!(self.client.query("select * from windlass.job_status_v", &[]));
    }
}
