//! The walls between tenants (SEC-1), each way around them that is known, and the view that shows jobs without payload
//! (SEC-4). Every test connects as a login that is no superuser. The pitfalls and their tests are listed in
//! `docs/security.md`.

mod common;

use std::time::{Duration, Instant};

use common::Database;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;
use windlass_core::activity::Addition;
use windlass_core::store::rooms::*;
use windlass_core::store::{
    AuditFilter, CancelReply, Claim, Error, Fence, Finish, LeaseId, NewLine, NewNode, News, NodeId, Note, Noted,
    PauseTarget, ReplayReply, ReplayedAs, Submit, Transition,
};
use windlass_core::{
    ClaimedJob, Cost, IdGenerator, JobError, JobFilter, JobId, JobSpec, LogLevel, NewJob, Page, Payload, Priority,
    Progress, Scope, Start, Status, Sums, TenantId, Timestamp, Unique, UniqueWithin,
};
use windlass_postgres::{PgOptions, PgStore, Walls};
use windlass_testkit::servers::{PgBouncer, PgBouncerOptions, PostgresOptions, PostgresServer};

/// Everything: tests look at all that there is.
const ALL: Scope = Scope::All(windlass_core::OperatorRight::assume());

const A: TenantId = TenantId(Uuid::from_u128(0xa));
const B: TenantId = TenantId(Uuid::from_u128(0xb));
const KEEP: Duration = Duration::from_secs(3_600);

/// What only one tenant has written, in every text of its jobs.
fn canary(tenant: TenantId) -> &'static str {
    if tenant == A { "canary-of-a" } else { "canary-of-b" }
}

struct Rig {
    store: PgStore,
    client: Client,
    node: NodeId,
    ids: IdGenerator,
    database: Database,
}

impl Rig {
    async fn new() -> Rig {
        let database = Database::fresh().await;
        let store = PgStore::connect_with(quiet(&database.url)).await.expect("opens");
        assert_eq!(*store.walls(), Walls::Up);
        let lease = store.register(NewNode::default()).await.expect("registers");
        let ids = IdGenerator::new(lease.slot, lease.now);
        Rig { client: database.client().await, store, node: lease.node, ids, database }
    }

    fn job(&self, tenant: TenantId) -> NewJob {
        let word = canary(tenant);
        NewJob {
            id: self.ids.next(),
            tenant,
            handler: "h".into(),
            queue: "default".into(),
            priority: Priority::NORMAL,
            start: Start::Now,
            payload: Payload::from_store(format!("{{\"secret\": \"{word}\"}}")),
            idempotency_key: None,
            unique: None,
            ordering_key: None,
            batch: None,
            tags: vec![word.into()],
            correlation_id: Some(word.into()),
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

    async fn finish(&self, job: &ClaimedJob, transition: Transition) {
        let finish = Finish {
            fence: fence(job),
            attempt: job.attempt(),
            ran: Duration::ZERO,
            transition,
            follow_up: None,
            cost: None,
            audit: false,
            batch: None,
            resumed: true,
        };
        self.store.finish(self.node, vec![finish]).await.expect("finishes");
    }

    /// Jobs of both tenants in every place, each text with the canary of its tenant. Answers the places by job.
    async fn populate(&self) -> Vec<(TenantId, Status, JobId)> {
        let mut places = Vec::new();
        for tenant in [A, B] {
            let ids = self.submit((0..4).map(|_| self.job(tenant)).collect()).await;
            let jobs = self.claim(4).await;
            assert_eq!(jobs.len(), 4);
            let error = || JobError::retryable(canary(tenant)).with_code(canary(tenant));
            let progress = Progress {
                sequence: 1,
                percent: 50.0,
                message: canary(tenant).into(),
                updated_at: Timestamp::default(),
            };
            let report = Note { fence: fence(&jobs[0]), what: Noted::Progress(progress) };
            self.store.note(self.node, vec![report]).await.expect("reports");
            let line =
                NewLine { number: 1, at: jobs[0].created_at, level: LogLevel::Info, message: canary(tenant).into() };
            let report = Note { fence: fence(&jobs[0]), what: Noted::Log { attempt: 1, lines: vec![line] } };
            self.store.note(self.node, vec![report]).await.expect("keeps lines");
            let cost = Cost::new(7, 1);
            let recorded = self.store.record_cost(Scope::Tenant(tenant), jobs[0].id, canary(tenant), cost).await;
            assert!(recorded.expect("records"));
            let checkpoint = Payload::from_store(format!("\"{}\"", canary(tenant)));
            let note = Note { fence: fence(&jobs[0]), what: Noted::Checkpoint(checkpoint) };
            self.store.note(self.node, vec![note]).await.expect("saves");
            let output = Some(Payload::from_store(format!("\"{}\"", canary(tenant))));
            self.finish(&jobs[1], Transition::Succeed { output, keep: KEEP }).await;
            let dead = Transition::DeadLetter { failed: 1, error: error(), reason: "max_retries".into(), keep: None };
            self.finish(&jobs[2], dead).await;
            let retry = Transition::Retry { delay: KEEP, failed: 1, error: error() };
            self.finish(&jobs[3], retry).await;
            let later = NewJob { start: Start::After(KEEP), ..self.job(tenant) };
            let keyed = || NewJob {
                ordering_key: Some(format!("order-{}", canary(tenant))),
                idempotency_key: Some(self.ids.next().to_string()),
                queue: "elsewhere".into(),
                ..self.job(tenant)
            };
            let waiting = self
                .submit(vec![later, keyed(), keyed(), NewJob { queue: "elsewhere".into(), ..self.job(tenant) }])
                .await;
            let canceled = self.submit(vec![NewJob { queue: "elsewhere".into(), ..self.job(tenant) }]).await;
            let reply = self.store.cancel(Scope::Tenant(tenant), canceled[0], canary(tenant), canary(tenant)).await;
            assert_eq!(reply.expect("cancels"), CancelReply::Canceled);
            self.store.pause(&PauseTarget::Tenant(tenant), canary(tenant), canary(tenant)).await.expect("pauses");
            places.extend([
                (tenant, Status::Running, jobs[0].id),
                (tenant, Status::Succeeded, jobs[1].id),
                (tenant, Status::DeadLettered, jobs[2].id),
                (tenant, Status::Retrying, jobs[3].id),
                (tenant, Status::Scheduled, waiting[0]),
                (tenant, Status::Pending, waiting[1]),
                (tenant, Status::Blocked, waiting[2]),
                (tenant, Status::Pending, waiting[3]),
                (tenant, Status::Canceled, canceled[0]),
            ]);
            assert!(ids.contains(&jobs[0].id));
        }
        let sums = Sums::from_values(&[1]);
        let own =
            [A, B].map(|tenant| Addition { tenant: Some(tenant), handler: canary(tenant).into(), sums: sums.clone() });
        let all = Addition { tenant: None, handler: "everyone".into(), sums: sums.clone() };
        let now = self.store.now().await.expect("time");
        self.store.add_activity(now, own.into_iter().chain([all]).collect()).await.expect("adds");
        self.client.execute("select windlass.fold_counters(1000)", &[]).await.expect("folds");
        places
    }

    /// Runs a statement behind the wall of a tenant, as `psql` would.
    async fn behind(
        &mut self,
        tenant: Option<TenantId>,
        sql: &str,
    ) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
        let transaction = self.client.transaction().await.expect("begins");
        transaction.batch_execute("set local role windlass_app").await.expect("the login is a member");
        if let Some(tenant) = tenant {
            let set = "select set_config('windlass.tenant', $1, true)";
            transaction.query_typed(set, &[(&tenant.to_string(), Type::TEXT)]).await.expect("sets");
        }
        transaction.query(sql, &[]).await
    }

    async fn behind_refused(&mut self, sql: &str) {
        let transaction = self.client.transaction().await.expect("begins");
        let open = format!("set local role windlass_app; set local windlass.tenant = '{A}'");
        transaction.batch_execute(&open).await.expect("the login is a member");
        let error = transaction.batch_execute(sql).await.expect_err(sql);
        assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{sql}: {error:?}");
    }

    async fn names(&self, sql: &str) -> Vec<String> {
        self.client.query(sql, &[]).await.expect("reads").iter().map(|row| row.get(0)).collect()
    }
}

fn quiet(url: &str) -> PgOptions {
    PgOptions::new(url).expect("a URL").listen(false)
}

fn fence(job: &ClaimedJob) -> Fence {
    Fence { job: job.id, lease: job.lease }
}

/// SEC-1: a statement without any predicate shows the rows of one tenant, in every table that can be read at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_predicate_shows_one_tenants_rows() {
    let mut rig = Rig::new().await;
    rig.populate().await;
    let readable = "select c.oid::regclass::text from pg_class c where relnamespace = 'windlass'::regnamespace
                    and relkind in ('r', 'p', 'v') and has_table_privilege('windlass_app', c.oid, 'select') order by 1";
    let readable = rig.names(readable).await;
    assert!(readable.len() >= 12, "{readable:?}");
    for table in readable {
        let all = format!("select coalesce(string_agg(t::text, ' '), ''), count(*) from {table} t");
        let rows = rig.behind(Some(A), &all).await.expect("reads");
        let (text, rows): (String, i64) = (rows[0].get(0), rows[0].get(1));
        assert!(rows > 0, "{table} has rows of the tenant");
        let foreign = [canary(B), &B.to_string()].iter().any(|word| text.contains(word));
        assert!(!foreign, "{table}: {text}");
        let everyone: i64 = rig.client.query_one(&all, &[]).await.expect("reads").get(1);
        assert!(everyone > rows, "{table}: the engine sees more");
    }
    let job = "select count(*), count(distinct tenant_id), min(tenant_id::text) from windlass.job";
    let row = &rig.behind(Some(A), job).await.expect("reads")[0];
    assert_eq!((row.get(0), row.get(1), row.get(2)), (9_i64, 1_i64, A.to_string()));
}

/// SEC-1: no tenant, and what a transaction that had one leaves behind, shows nothing and is no error.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_tenant_there_is_nothing_to_see() {
    let mut rig = Rig::new().await;
    rig.populate().await;
    let count = "select (select count(*) from windlass.job) + (select count(*) from windlass.outcome)
                 + (select count(*) from windlass.job_status_v) + (select count(*) from windlass.running())
                 + (select count(*) from windlass.deltas(null)) + (select count(*) from windlass.audit),
                 current_setting('windlass.tenant', true)";
    let never = rig.behind(None, count).await.expect("no error");
    assert_eq!((never[0].get(0), never[0].get::<_, Option<&str>>(1)), (0_i64, None));
    assert!(rig.behind(Some(A), count).await.expect("reads")[0].get::<_, i64>(0) > 0);
    let after = rig.behind(None, count).await.expect("no error");
    assert_eq!((after[0].get(0), after[0].get::<_, Option<&str>>(1)), (0_i64, Some("")), "empty, not null");
}

/// SEC-1: the tenants' role reads, and does nothing else: no write, no TRUNCATE, no COPY, no call of the engine, no
/// table whose rows hold several tenants.
#[tokio::test(flavor = "multi_thread")]
async fn the_tenants_role_can_only_read() {
    let mut rig = Rig::new().await;
    rig.populate().await;
    let tables = "select oid::regclass::text from pg_class where relnamespace = 'windlass'::regnamespace
                  and relkind in ('r', 'p') order by 1";
    for table in rig.names(tables).await {
        rig.behind_refused(&format!("insert into {table} default values")).await;
        rig.behind_refused(&format!("delete from {table}")).await;
        rig.behind_refused(&format!("truncate {table}")).await;
        rig.behind_refused(&format!("copy {table} from stdin")).await;
        rig.behind_refused(&format!("lock table {table} in share row exclusive mode")).await;
        rig.behind_refused(&format!("alter table {table} disable row level security")).await;
    }
    for table in [
        "lease",
        "counter_delta",
        "node",
        "slot",
        "line",
        "tenant_line",
        "job_key",
        "checkpoint",
        "expiry",
        "setting",
        "api_key",
        "depth",
    ] {
        rig.behind_refused(&format!("select * from windlass.{table}")).await;
    }
    // A forged row, and someone else's job moved into the own tenant.
    rig.behind_refused(&format!("insert into windlass.job (handler, tenant_id) values ('h', '{B}')")).await;
    rig.behind_refused(&format!("update windlass.job set tenant_id = '{A}'")).await;
    for call in [
        "submit('h')".to_owned(),
        format!("cancel('{B}', 1, '', '', '', '')"),
        "claim(1, 1, 1, '{}', '{}', '{}', '{}', '{}', '{}', 1, true)".into(),
        "purge(null, 1, '')".into(),
        "raise_walls()".into(),
        "make_weeks(1)".into(),
    ] {
        rig.behind_refused(&format!("select windlass.{call}")).await;
    }
    rig.behind_refused("set local session authorization postgres").await;
    rig.behind_refused("copy (select 1) to program 'true'").await;
    // Reading in bulk is reading: COPY TO obeys the policies.
    let transaction = rig.client.transaction().await.expect("begins");
    let open = format!("set local role windlass_app; set local windlass.tenant = '{A}'");
    transaction.batch_execute(&open).await.expect("opens");
    let copied = transaction.copy_out("copy (select tenant_id from windlass.job) to stdout").await.expect("copies");
    let lines: Vec<bytes::Bytes> = futures_util::TryStreamExt::try_collect(copied).await.expect("reads");
    assert_eq!(lines.len(), 9);
    assert!(lines.iter().all(|line| line.starts_with(A.to_string().as_bytes())));
}

/// SEC-1: every table is behind the wall, also weeks that are made later; nothing runs with someone else's rights but
/// two functions that answer for one tenant; no key is unique across tenants; no foreign key can be probed.
#[tokio::test(flavor = "multi_thread")]
async fn the_catalog_has_no_hole() {
    let rig = Rig::new().await;
    rig.client.execute("select windlass.make_weeks(5)", &[]).await.expect("makes weeks");
    let open = "select oid::regclass::text from pg_class where relnamespace = 'windlass'::regnamespace
                and relkind in ('r', 'p') and not (relrowsecurity and relforcerowsecurity
                and relowner = 'windlass_engine'::regrole)";
    assert_eq!(rig.names(open).await, [""; 0], "not forced");
    let weeks = "select relname::text from pg_class where relkind = 'r' and relname ~ '^(job|outcome)_p[0-9]+$'";
    assert_eq!(rig.names(weeks).await.len(), 12);
    let unruled = "select attrelid::regclass::text from pg_attribute a join pg_class c on c.oid = a.attrelid
                   where relnamespace = 'windlass'::regnamespace and relkind in ('r', 'p') and not relispartition
                   and attname = 'tenant_id' and not exists (select 1 from pg_policy p where polrelid = c.oid
                   and polname = 'app' and polcmd = 'r' and pg_get_expr(polqual, polrelid) = '(tenant_id = windlass.tenant())')";
    assert_eq!(rig.names(unruled).await, [""; 0], "a tenant's rows without its policy");
    // What each table without a tenant is for, so that a new one is thought about.
    let others =
        "select relname::text from pg_class c where relnamespace = 'windlass'::regnamespace and relkind in ('r', 'p')
                  and not relispartition and not exists (select 1 from pg_attribute where attrelid = c.oid
                  and attname = 'tenant_id') and has_table_privilege('windlass_app', c.oid, 'select') order by 1";
    assert_eq!(
        rig.names(others).await,
        ["event", "job_cost", "job_log", "outcome", "pause", "progress"],
        "read through the job they belong to"
    );
    let policies = "select polname || ' of ' || polrelid::regclass from pg_policy where polrelid in
                    (select oid from pg_class where relnamespace = 'windlass'::regnamespace)
                    and not (polname = 'engine' and polroles = array['windlass_engine'::regrole::oid])
                    and not (polname = 'app' and polroles = array['windlass_app'::regrole::oid] and polcmd = 'r')";
    assert_eq!(rig.names(policies).await, [""; 0], "policies for anyone else");
    let definers =
        "select proname::text from pg_proc where pronamespace = 'windlass'::regnamespace and prosecdef order by 1";
    assert_eq!(rig.names(definers).await, ["own_deltas", "own_running"]);
    let unsafe_definers =
        "select proname::text from pg_proc where pronamespace = 'windlass'::regnamespace and prosecdef
        and not (proowner = 'windlass_engine'::regrole and 'search_path=pg_catalog, pg_temp' = any (proconfig)
                 and prosrc like '%v_tenant uuid := windlass.tenant()%')";
    assert_eq!(rig.names(unsafe_definers).await, [""; 0]);
    let public = "select proname::text from pg_proc p where pronamespace = 'windlass'::regnamespace
                  and has_function_privilege('public', p.oid, 'execute')";
    assert_eq!(rig.names(public).await, [""; 0], "callable by anyone");
    let views =
        "select relname::text from pg_class where relnamespace = 'windlass'::regnamespace and relkind in ('v', 'm')
                 and not coalesce('security_invoker=true' = any (reloptions), false)";
    assert_eq!(rig.names(views).await, [""; 0], "views with their owner's rights");
    let keys =
        "select conname::text from pg_constraint where connamespace = 'windlass'::regnamespace and contype = 'f'";
    assert_eq!(rig.names(keys).await, [""; 0], "foreign keys are checked without policies");
    // Unique over something a tenant chooses, and without the tenant: ids are made by nodes and the numbers of usage events
    // by the database, everything else is not.
    let oracles = "select i.indexrelid::regclass::text from pg_index i join pg_class c on c.oid = i.indrelid
        where c.relnamespace = 'windlass'::regnamespace and i.indisunique and not c.relispartition
          and not exists (select 1 from pg_attribute a where a.attrelid = i.indrelid and a.attnum = any (i.indkey)
                          and a.attname in ('tenant_id', 'id', 'lease_id', 'node_id', 'slot', 'version', 'target',
                                            'batch_id', 'child_id'))
          and c.relname not in ('line', 'schema_object', 'setting', 'depth', 'usage_event', 'feed', 'holding', 'served')";
    assert_eq!(rig.names(oracles).await, [""; 0], "a duplicate would tell of another tenant");
    let roles = "select rolname::text from pg_roles where rolname in ('windlass_app', 'windlass_engine')
                 and (rolsuper or rolbypassrls or rolcanlogin or rolcreaterole or rolcreatedb or rolreplication)";
    assert_eq!(rig.names(roles).await, [""; 0], "roles with more rights than they need");
}

/// SEC-1: row-level security binds the owner of the tables too.
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_sees_only_what_its_policy_shows() {
    let mut rig = Rig::new().await;
    rig.populate().await;
    let transaction = rig.client.transaction().await.expect("begins");
    let count = "select count(*) from windlass.job";
    assert_eq!(transaction.query_one(count, &[]).await.expect("reads").get::<_, i64>(0), 18);
    transaction
        .batch_execute("drop policy engine on windlass.job; set local role windlass_engine")
        .await
        .expect("drops");
    assert_eq!(transaction.query_one(count, &[]).await.expect("reads").get::<_, i64>(0), 0);
}

/// SEC-1: every scoped read of the store, and every scoped write, is of one tenant; also if a function of the engine
/// forgets to look.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_call_for_one_tenant_touches_nothing_of_another() {
    let rig = Rig::new().await;
    let places = rig.populate().await;
    let own = Scope::Tenant(A);
    let theirs: Vec<JobId> = places.iter().filter(|(tenant, ..)| *tenant == B).map(|(.., id)| *id).collect();
    assert!(rig.store.get(own, &theirs).await.expect("reads").is_empty());
    for (tenant, status, id) in &places {
        let record = rig.store.get(Scope::Tenant(*tenant), &[*id]).await.expect("reads").pop().expect("its own");
        assert_eq!(record.status, *status);
        let listed =
            rig.store.find(own, &JobFilter::all().status(*status), Page::default(), None).await.expect("lists").jobs;
        assert!(!listed.is_empty() && listed.iter().all(|record| record.tenant == A && record.status == *status));
        if *tenant == B {
            assert!(rig.store.history(own, *id).await.expect("reads").is_empty());
            assert!(rig.store.input(own, *id).await.expect("reads").is_none());
            assert!(rig.store.whereabouts(own, *id).await.expect("reads").is_none());
        }
    }
    let counts = rig.store.counts(own).await.expect("counts");
    let expected = [(Status::Running, 1), (Status::Pending, 2), (Status::Succeeded, 1), (Status::Canceled, 1)];
    assert!(expected.iter().all(|(status, n)| counts.get(*status) == *n), "{counts:?}");
    let log = rig.store.audit_log(own, &AuditFilter::default()).await.expect("reads");
    assert!(!log.is_empty() && log.iter().all(|entry| entry.tenant == Some(A)));

    // The engine's own functions forget whose job it is: the wall does not.
    let forgetful = "create or replace function windlass.purge(p_tenant uuid, p_id bigint, p_by text) returns boolean
        language plpgsql as $$ begin delete from windlass.job where id = p_id; return true; end $$;
        create or replace function windlass.cancel(
            p_tenant uuid, p_id bigint, p_by text, p_reason text, p_canceled_note text, p_requested_note text
        ) returns int language sql as 'select -3';
        create or replace function windlass.replay(p_tenant uuid, p_id bigint, p_by text) returns int language sql as 'select 8';
        create or replace function windlass.replay_as(
            p_tenant uuid, p_id bigint, p_by text, p_job json, p_keep bigint, out o_code int, out o_id bigint)
        language sql as 'select 8, p_id'";
    rig.client.batch_execute(forgetful).await.expect("replaces");
    for id in theirs {
        assert!(!rig.store.purge(own, id, "eve").await.expect("answers"));
        assert_eq!(rig.store.cancel(own, id, "eve", "").await.expect("answers"), CancelReply::NotFound);
        assert_eq!(rig.store.replay(own, id, "eve").await.expect("answers"), ReplayReply::NotFound);
        let replayed = rig.store.replay_as(own, id, "eve", rig.job(A), KEEP).await.expect("answers");
        assert_eq!(replayed, ReplayedAs::NotFound);
    }
    let left: i64 = rig.client.query_one("select count(*) from windlass.job", &[]).await.expect("reads").get(0);
    assert_eq!(left, 18);
    let mine = places[0].2;
    assert_eq!(
        rig.store.cancel(own, mine, "ann", "").await.expect("answers"),
        CancelReply::Canceled,
        "its own goes through"
    );
}

/// SEC-1: no key of one tenant is taken for another, so that a duplicate tells nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_keys_in_two_tenants_do_not_meet() {
    let rig = Rig::new().await;
    let keyed = |tenant| NewJob {
        idempotency_key: Some("same".into()),
        unique: Some(Unique { key: Some("same".into()), within: UniqueWithin::Unfinished }),
        ordering_key: Some("same".into()),
        ..rig.job(tenant)
    };
    let submitted =
        rig.store.submit(Submit { jobs: vec![keyed(A), keyed(B), keyed(A)], lease: None }).await.expect("submits");
    let duplicates: Vec<bool> = submitted.iter().map(|submitted| submitted.duplicate).collect();
    assert_eq!(duplicates, [false, false, true]);
    assert_eq!(rig.claim(10).await.len(), 2, "neither waits for the other's ordering key");
}

/// SEC-1: what others are woken with says nothing of whose job it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_notification_says_nothing_of_a_tenant() {
    let rig = Rig::new().await;
    let config: Config = rig.database.url.parse().expect("a URL");
    let (listener, mut connection) = config.connect(NoTls).await.expect("connects");
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(Ok(message)) = futures_util::StreamExt::next(&mut messages).await {
            if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                let _ = sender.send((notification.channel().to_owned(), notification.payload().to_owned()));
            }
        }
    });
    listener.batch_execute("listen windlass_wake").await.expect("listens");
    let loud = PgStore::connect(&rig.database.url).await.expect("connects");
    loud.submit(Submit { jobs: vec![rig.job(B)], lease: None }).await.expect("submits");
    loud.wake_others(News::Ready);
    let (channel, payload) =
        tokio::time::timeout(Duration::from_secs(20), heard.recv()).await.expect("heard").expect("open");
    assert_eq!(channel, "windlass_wake");
    let speaker = Uuid::parse_str(&payload).expect("the process that speaks, as a random UUID");
    assert!(speaker != A.0 && speaker != B.0 && speaker.get_version_num() == 4);
}

/// SEC-4: the view shows each job where it is, without anything that the tenant handed in or got back.
#[tokio::test(flavor = "multi_thread")]
async fn the_view_shows_where_jobs_are_and_no_payload() {
    let mut rig = Rig::new().await;
    let places = rig.populate().await;
    let columns =
        "select attname::text from pg_attribute where attrelid = 'windlass.job_status_v'::regclass and attnum > 0
                   order by attnum";
    let expected = "id tenant_id handler queue status priority attempt correlation_id batch_id created_at run_at started_at \
                    finished_at updated_at progress progress_message error_code error_kind reason";
    assert_eq!(rig.names(columns).await.join(" "), expected);
    let view = "select id, tenant_id::text, status, attempt, progress, error_code, started_at is not null
                from windlass.job_status_v order by id";
    let rows = rig.behind(Some(A), view).await.expect("reads");
    assert_eq!(rows.len(), 9);
    for row in rows {
        let id = JobId::from_i64(row.get(0));
        let record = rig.store.get(Scope::Tenant(A), &[id]).await.expect("reads").pop().expect("there");
        assert_eq!(row.get::<_, String>(1), A.to_string());
        assert_eq!(row.get::<_, String>(2), record.status.to_string());
        assert_eq!(row.get::<_, i32>(3), i32::from(record.attempt), "{}", record.status);
        assert_eq!(row.get::<_, Option<f32>>(4), record.progress.map(|progress| progress.percent));
        assert_eq!(row.get::<_, Option<String>>(5), record.error.map(|error| error.code));
        assert_eq!(row.get::<_, bool>(6), record.started_at.is_some(), "{}", record.status);
    }
    assert_eq!(rig.client.query(view, &[]).await.expect("reads").len(), places.len(), "the engine sees all");
}

/// SEC-4: an entity of SeaORM reads the view, scoped by tenant as platforms do it, and behind the wall without.
#[cfg(feature = "seaorm")]
#[tokio::test(flavor = "multi_thread")]
async fn an_entity_of_seaorm_reads_the_view() {
    use sea_orm::sea_query::ExprTrait;
    use sea_orm::{ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter, TransactionTrait};

    mod job_status_v {
        use sea_orm::entity::prelude::*;

        #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
        #[sea_orm(table_name = "job_status_v", schema_name = "windlass")]
        pub(super) struct Model {
            #[sea_orm(primary_key, auto_increment = false)]
            pub id: i64,
            // As text, because this build of SeaORM has no UUIDs; with its feature `with-uuid` it is a `Uuid`.
            #[sea_orm(select_as = "text")]
            pub tenant_id: String,
            pub handler: String,
            pub status: String,
            pub attempt: i32,
            pub error_code: Option<String>,
        }

        #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
        pub(super) enum Relation {}

        impl ActiveModelBehavior for ActiveModel {}
    }

    let rig = Rig::new().await;
    let places = rig.populate().await;
    let orm = sea_orm::Database::connect(&rig.database.url).await.expect("connects");
    let of_tenant = job_status_v::Column::TenantId.into_expr().cast_as("text").eq(A.to_string());
    let scoped = job_status_v::Entity::find().filter(of_tenant).all(&orm).await.expect("reads");
    assert_eq!(scoped.len(), 9);
    for row in &scoped {
        let place = places.iter().find(|(.., id)| id.as_i64() == row.id).expect("one of them");
        assert_eq!((row.tenant_id.clone(), row.status.clone()), (A.to_string(), place.1.to_string()));
    }
    let tx = orm.begin().await.expect("begins");
    tx.execute_unprepared("set local role windlass_app").await.expect("a member");
    tx.execute_unprepared(&format!("set local windlass.tenant = '{B}'")).await.expect("sets");
    let walled = job_status_v::Entity::find().all(&tx).await.expect("reads");
    assert!(walled.len() == 9 && walled.iter().all(|row| row.tenant_id == B.to_string()));
    let foreign = job_status_v::Entity::find_by_id(scoped[0].id).one(&tx).await.expect("reads");
    assert_eq!(foreign, None);
}

/// SEC-1: what a tenant reads is found by indexes, also behind the wall, and takes about as long.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_behind_the_wall_uses_the_indexes() {
    let mut rig = Rig::new().await;
    let many = format!(
        "insert into windlass.job (handler, queue, tenant_id) select 'h', 'cold', (array['{A}', '{B}'])[1 + n % 2]::uuid
         from generate_series(1, 40000) n;
         insert into windlass.outcome (id, finished_at, purge_at, status, attempt, failed, recoveries)
         select id, now(), now() + interval '1 day', 6, 1, 0, 0 from windlass.job;
         insert into windlass.event (id, at, status, attempt, failed, recoveries)
         select id, now(), 0, 1, 0, 1 from windlass.job; delete from windlass.ready"
    );
    rig.client.batch_execute(&many).await.expect("fills");
    let sample = format!("select id from windlass.job where tenant_id = '{A}' order by id limit 200");
    let ids: Vec<i64> = rig.client.query(&sample, &[]).await.expect("reads").iter().map(|row| row.get(0)).collect();
    let records = include_str!("../src/sql/reads/records.sql").replace("$2", &format!("'{A}'"));
    let list = format!("select j.id from windlass.job j where j.tenant_id = '{A}' order by (j.id + 0) desc limit 50");
    let view = format!("select * from windlass.job_status_v where id = {}", ids[0]);
    for analysed in [false, true] {
        if analysed {
            rig.client.batch_execute("analyze windlass.job, windlass.outcome, windlass.event").await.expect("analyses");
        }
        for sql in [records.replace("$1", &format!("'{{{}}}'::bigint[]", ids[0])), list.clone(), view.clone()] {
            let rows = rig.behind(Some(A), &format!("explain {sql}")).await.expect("explains");
            let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            // A week without rows is read whole where that is known.
            let scanned = plan.iter().filter(|line| !line.contains("(cost=0.00..0.00 ")).any(|line| {
                ["job", "outcome", "event", "progress"]
                    .iter()
                    .any(|table| line.contains(&format!("Seq Scan on {table}")))
            });
            assert!(!scanned, "analysed {analysed}:\n{}", plan.join("\n"));
        }
    }
    // Not a benchmark: it prints what the wall costs one get, next to the same statement without it.
    let ids: Vec<JobId> = ids.into_iter().map(JobId::from_i64).collect();
    let mut spent = [Vec::new(), Vec::new()];
    for id in ids.iter().cycle().take(3 * ids.len()) {
        for (spent, scope) in spent.iter_mut().zip([ALL, Scope::Tenant(A)]) {
            let started = Instant::now();
            assert_eq!(rig.store.get(scope, &[*id]).await.expect("reads").len(), 1);
            spent.push(started.elapsed());
        }
    }
    // Medians of calls in turns: whatever else the machine does meets both.
    let each = spent.map(|mut spent| {
        spent.sort_unstable();
        spent[spent.len() / 2]
    });
    let ratio = each[1].as_secs_f64() / each[0].as_secs_f64();
    eprintln!("one get: {:?} as the engine, {:?} behind the wall, {ratio:.2} times", each[0], each[1]);
    assert!(ratio < 6.0, "a wall must not make a point read slow: {ratio:.2} times");
}

async fn connect(url: &str) -> Client {
    let config: Config = url.parse().expect("a URL");
    let (client, connection) = config.connect(NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

/// SEC-1: who may not make the roles works without walls and is told so; a privileged migration raises them, and
/// everyone goes on. Who is no member is told what to grant.
#[tokio::test(flavor = "multi_thread")]
async fn walls_come_with_the_right_to_make_roles() {
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("starts");
    let admin = connect(&server.admin_url()).await;
    let login = |user: &str, database: &str| format!("postgres://{user}@127.0.0.1:{}/{database}", server.port());
    admin.batch_execute("create role plain login").await.expect("creates");
    admin.batch_execute("create role stranger login").await.expect("creates");
    admin.batch_execute("create database plain owner plain").await.expect("creates");

    let store = PgStore::connect_with(quiet(&login("plain", "plain"))).await.expect("works without roles");
    let Walls::Down(reason) = store.walls() else { panic!("up without roles") };
    assert!(reason.contains("do not exist"), "{reason}");
    let lease = store.register(NewNode::default()).await.expect("registers");
    let ids = IdGenerator::new(lease.slot, lease.now);
    let job = |tenant| NewJob {
        id: ids.next(),
        tenant,
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
    };
    let (mine, theirs) = (job(A), job(B));
    let (mine_id, theirs_id) = (mine.id, theirs.id);
    store.submit(Submit { jobs: vec![mine, theirs], lease: None }).await.expect("submits");
    let found = store.get(Scope::Tenant(A), &[mine_id, theirs_id]).await.expect("reads");
    assert_eq!(found.iter().map(|record| record.id).collect::<Vec<_>>(), [mine_id], "by the predicate");

    let raised = PgStore::connect_with(quiet(&server.url("plain"))).await.expect("migrates");
    assert_eq!(*raised.walls(), Walls::Up);
    // The process that runs goes on, and the next one is behind the walls.
    assert_eq!(store.get(Scope::Tenant(A), &[mine_id, theirs_id]).await.expect("reads").len(), 1);
    store.submit(Submit { jobs: vec![job(A)], lease: None }).await.expect("submits");
    let again = PgStore::connect_with(quiet(&login("plain", "plain"))).await.expect("opens");
    assert_eq!(*again.walls(), Walls::Up);
    assert_eq!(again.counts(Scope::Tenant(A)).await.expect("counts").unfinished(), 2);
    let refused =
        PgStore::connect_with(quiet(&login("stranger", "plain")).migrate(false)).await.expect_err("no member");
    assert!(matches!(&refused, Error::Refused(message) if message.contains("windlass_engine")), "{refused:?}");
    // A member of the engine alone would fail at the first read of a tenant: it is told when it connects.
    admin.batch_execute("grant windlass_engine to stranger").await.expect("grants");
    let refused = PgStore::connect_with(quiet(&login("stranger", "plain"))).await.expect_err("half a member");
    assert!(matches!(&refused, Error::Refused(message) if message.contains("windlass_app")), "{refused:?}");
    admin.batch_execute("grant windlass_app to stranger").await.expect("grants");
    let member =
        PgStore::connect_with(quiet(&login("stranger", "plain"))).await.expect("a member makes weeks and reads");
    assert_eq!(member.counts(Scope::Tenant(A)).await.expect("counts").unfinished(), 2);
}

/// SEC-1: a login that may make roles raises the walls by itself, also in several databases at once.
#[tokio::test(flavor = "multi_thread")]
async fn databases_that_migrate_at_once_make_the_roles_once() {
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("starts");
    let names: Vec<String> = (0..4).map(|n| format!("d{n}")).collect();
    let admin = connect(&server.admin_url()).await;
    admin.batch_execute("create role maker login createrole").await.expect("creates");
    for name in &names {
        admin.batch_execute(&format!("create database {name} owner maker")).await.expect("creates");
    }
    let urls: Vec<String> =
        names.iter().map(|name| format!("postgres://maker@127.0.0.1:{}/{name}", server.port())).collect();
    let opened = futures_util::future::join_all(urls.iter().map(|url| PgStore::connect_with(quiet(url)))).await;
    for store in opened {
        assert_eq!(*store.expect("opens").walls(), Walls::Up);
    }
}

/// SEC-1: the role that `deploy/compose/roles.sh` creates is no superuser, and its tenants are kept apart.
#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_the_compose_file_raises_the_walls() {
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("starts");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/compose/roles.sh");
    let mut first_start = std::process::Command::new("sh");
    first_start.arg(script).env("PGHOST", "127.0.0.1").env("PGPORT", server.port().to_string());
    let ran = first_start.env("WINDLASS_PASSWORD", "it's $secret").output().expect("a shell");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let url = format!("postgres://windlass@127.0.0.1:{}/windlass", server.port());
    let store = PgStore::connect_with(quiet(&url)).await.expect("migrates");
    assert_eq!(*store.walls(), Walls::Up);
    let rights =
        connect(&url).await.query_typed("select rolsuper from pg_roles where rolname = current_user", &[]).await;
    assert!(!rights.expect("reads")[0].get::<_, bool>(0), "no superuser");
}

/// SEC-1: behind PgBouncer in transaction mode nobody inherits a tenant or a role from the session's last user.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_tenant_stays_in_a_pooled_session() {
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("starts");
    server.create_database("pooled").expect("creates");
    let mut options = PgBouncerOptions::default();
    // Every client has the same session.
    options.pool_size = 1;
    let pooler = PgBouncer::start(&server, options).expect("starts");
    let store = PgStore::connect_with(quiet(&pooler.url("pooled"))).await.expect("opens");
    assert_eq!(*store.walls(), Walls::Up);
    let other = connect(&pooler.url("pooled")).await;
    let state =
        "select current_user::text, current_setting('role'), coalesce(current_setting('windlass.tenant', true), '')";
    for _ in 0..20 {
        store.counts(Scope::Tenant(A)).await.expect("counts");
        store.cancel(Scope::Tenant(A), JobId::from_i64(1), "ann", "").await.expect("answers");
        let row = &other.query_typed(state, &[]).await.expect("reads")[0];
        let seen: (String, String, String) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(seen, ("postgres".into(), "none".into(), String::new()));
    }
}
