//! What holds locks without saying anything: a transaction whose network has fallen silent. It costs the jobs it holds,
//! and nobody else's; a node that cannot save takes no more, says so, and can be stopped.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Database;
use tokio_postgres::Client;
use windlass_core::store::rooms::*;
use windlass_core::store::{Claim, LeaseId, NewNode, Submit};
use windlass_core::{
    IdGenerator, JobContext, JobError, JobId, JobService, JobSpec, NewJob, Payload, Priority, SecurityContext, Start,
    Status, SubmitOptions, TenantId,
};
use windlass_postgres::{PgOptions, PgStore};

const LEASE: Duration = Duration::from_secs(2);

async fn rest((): (), _: JobContext, millis: u64) -> Result<(), JobError> {
    tokio::time::sleep(Duration::from_millis(millis)).await;
    Ok(())
}

async fn store(database: &Database) -> PgStore {
    PgStore::connect_with(PgOptions::new(&database.url).expect("a URL")).await.expect("opens")
}

async fn service(database: &Database, concurrency: usize) -> JobService {
    let jobs = JobService::builder(Arc::new(store(database).await)).function("rest", (), rest);
    let jobs = jobs.concurrency(concurrency).lease(LEASE).configure(|config| {
        config.shutdown_deadline = Duration::from_secs(1);
        config.grace = Duration::from_secs(1);
    });
    jobs.start().await.expect("starts")
}

fn ctx() -> SecurityContext {
    SecurityContext::new(TenantId::ROOT)
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

const HELD: &str = "select coalesce(sum(cardinality(ids)), 0)::bigint from windlass.lease";

/// A job that a node held which is dead now. Returns it with its lease.
async fn held_by_a_dead_node(store: &PgStore, client: &Client) -> (JobId, LeaseId) {
    let node = store.register(NewNode::default()).await.expect("registers");
    let ids = IdGenerator::new(node.slot, node.now);
    let job = NewJob {
        id: ids.next(),
        tenant: TenantId::ROOT,
        handler: "rest".into(),
        queue: format!("of-{}", node.node.0),
        priority: Priority::NORMAL,
        start: Start::Now,
        payload: Payload::from_store("1"),
        idempotency_key: None,
        unique: None,
        ordering_key: None,
        batch: None,
        tags: Vec::new(),
        correlation_id: None,
        spec: JobSpec::default(),
    };
    let (id, queue, lease) = (job.id, job.queue.clone(), LeaseId(ids.next().as_i64()));
    store.submit(Submit { jobs: vec![job], lease: None }).await.expect("submits");
    let claim = Claim { node: node.node, lease, queues: vec![(queue, 1)], max: 1, quota: [0; 4], tenant: None };
    assert_eq!(store.claim(claim).await.expect("claims").jobs.len(), 1);
    let dead = "update windlass.node set heartbeat_at = clock_timestamp() - interval '1 hour' where node_id = $1";
    client.execute(dead, &[&node.node.0]).await.expect("the owner may");
    (id, lease)
}

/// RUN-3, RUN-5: somebody holds the lease of a dead node. Healthy nodes start jobs, promote due ones and recover those of
/// other dead nodes as if nothing were the matter; when it is let go, its job comes back too.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_lease_of_a_dead_node_slows_nobody() {
    let database = Database::migrated().await;
    let (mut locker, client, raw) = (database.client().await, database.client().await, store(&database).await);
    let (stuck, lease) = held_by_a_dead_node(&raw, &client).await;
    let lock = locker.transaction().await.expect("begins");
    let locked = lock.query("select 1 from windlass.lease where lease_id = $1 for update", &[&lease.0]).await;
    assert_eq!(locked.expect("locks").len(), 1);
    let (other, _) = held_by_a_dead_node(&raw, &client).await;
    let jobs = service(&database, 4).await;
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    // Longer than the lease: that is how long the node must be seen silent.
    while began.elapsed() < Duration::from_secs(12) {
        let due = SubmitOptions::new().delay(Duration::from_millis(100));
        let asked = Instant::now();
        let job = jobs.submit_named(&ctx(), "rest", &1, due).await.expect("stored");
        jobs.wait(&ctx(), job.id, Duration::from_secs(20)).await.expect("ends");
        slowest = slowest.max(asked.elapsed());
    }
    // A poll is a second; a lock that anyone waits for would make it fifteen.
    assert!(slowest < Duration::from_secs(3), "a job took {slowest:?}");
    let left = count(&client, HELD).await;
    assert_eq!(left, 1, "the other dead node's job was taken back, the locked one was not");
    assert_ne!(jobs.get(&ctx(), other).await.expect("there").status, Status::Running);
    lock.rollback().await.expect("rolls back");
    let freed = Instant::now();
    while jobs.get(&ctx(), stuck).await.expect("there").status == Status::Running {
        assert!(freed.elapsed() < Duration::from_secs(10), "it is taken back once it can be");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    jobs.shutdown().await;
}

/// RUN-9: the server ends a handler's transaction that has fallen silent, with whatever it holds, and a transaction that
/// has ended its job even sooner. Both are set for the transaction alone, so a pooler hands on neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_transaction_is_ended_by_the_server() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let options = PgOptions::new(&database.url).expect("a URL").handler_idle(Duration::from_millis(300));
    let store = PgStore::connect_with(options).await.expect("opens");
    let node = store.register(NewNode::default()).await.expect("registers");
    let fence = windlass_core::store::Fence { job: JobId::from_i64(1), lease: LeaseId(1) };
    let tx = store.begin_job_tx(node.node, fence, TenantId::ROOT).await.expect("begins");
    let limit: String = tx.query_one("show idle_in_transaction_session_timeout", &[]).await.expect("answers").get(0);
    assert_eq!(limit, "300ms");
    let sql = "select current_setting('tcp_user_timeout') || ' ' || current_setting('tcp_keepalives_idle')";
    let silence: String = tx.query_one(sql, &[]).await.expect("answers").get(0);
    assert_eq!(silence, "10000 30", "the server notices a client that the network has swallowed");
    tx.batch_execute("create table silence (n int); insert into silence values (1)").await.expect("writes");
    let began = Instant::now();
    let idle = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%'";
    while count(&client, idle).await > 0 {
        assert!(began.elapsed() < Duration::from_secs(5), "the server has not ended it");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(tx.batch_execute("select 1").await.is_err(), "it has ended");
    drop(tx);
    let limit: String =
        client.query_one("show idle_in_transaction_session_timeout", &[]).await.expect("answers").get(0);
    assert_eq!(limit, "0", "nothing is set for sessions");
}

/// RUN-10: while ends cannot be saved, the node takes no more than it can run, says that it is not ready, and ends in time
/// when it is asked to. What was done is saved once that is possible.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_saves_nothing_takes_no_more() {
    let database = Database::migrated().await;
    let (mut locker, client) = (database.client().await, database.client().await);
    let jobs = service(&database, 4).await;
    let many = "select count(*) from windlass.submit_many('rest', (select json_agg(20) from generate_series(1, 2000)))";
    assert_eq!(count(&client, many).await, 2_000);
    jobs.wake();
    let lock = locker.transaction().await.expect("begins");
    lock.batch_execute("lock table windlass.outcome in share mode").await.expect("locks");
    let began = Instant::now();
    while jobs.troubles().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(10), "it does not notice that it saves nothing");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(jobs.troubles()[0].contains("cannot be saved"), "{:?}", jobs.troubles());
    // What it had claimed when it noticed may still end.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held = count(&client, HELD).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(count(&client, HELD).await, held, "it goes on claiming");
    lock.rollback().await.expect("rolls back");
    let began = Instant::now();
    while !jobs.troubles().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(10), "it does not notice that it saves again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let lock = locker.transaction().await.expect("begins");
    lock.batch_execute("lock table windlass.outcome in share mode").await.expect("locks");
    let began = Instant::now();
    jobs.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(25), "stopping took {:?}", began.elapsed());
    lock.rollback().await.expect("rolls back");
}

/// RUN-4: the lease of one running job is locked by something else. Its end waits; those of other jobs are saved.
#[tokio::test(flavor = "multi_thread")]
async fn one_locked_lease_keeps_no_other_end() {
    let database = Database::migrated().await;
    let (mut locker, client) = (database.client().await, database.client().await);
    let jobs = service(&database, 8).await;
    let held = jobs.submit_named(&ctx(), "rest", &1_500, SubmitOptions::new()).await.expect("stored").id;
    while count(&client, HELD).await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let lock = locker.transaction().await.expect("begins");
    let lease = "select 1 from windlass.lease where ids @> array[$1::bigint] for update";
    assert_eq!(lock.query(lease, &[&held.as_i64()]).await.expect("locks").len(), 1);
    // From before its end until well after it.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        let job = jobs.submit_named(&ctx(), "rest", &1, SubmitOptions::new()).await.expect("stored");
        jobs.wait(&ctx(), job.id, Duration::from_secs(6)).await.expect("another job ends");
    }
    assert_eq!(jobs.get(&ctx(), held).await.expect("there").status, Status::Running);
    lock.rollback().await.expect("rolls back");
    assert_eq!(jobs.wait(&ctx(), held, Duration::from_secs(10)).await.expect("ends").status, Status::Succeeded);
    jobs.shutdown().await;
}

/// RUN-3, RUN-5, BEY-4: somebody holds a row of each table that maintenance writes to. Due jobs start as often as ever, and
/// what is not held (another lost node, another expired job) is looked after; what is held is when it is let go.
#[tokio::test(flavor = "multi_thread")]
async fn locked_rows_hold_up_no_step_of_maintenance() {
    /// Longer than every step that finds work takes to come round.
    const HELD_FOR: Duration = Duration::from_secs(8);
    let database = Database::migrated().await;
    let (mut locker, client, raw) = (database.client().await, database.client().await, store(&database).await);
    let (stuck, _) = held_by_a_dead_node(&raw, &client).await;
    let (lost, _) = held_by_a_dead_node(&raw, &client).await;
    let expired =
        "select windlass.submit('rest', '1', delay => '1 hour', spec => '{\"expires_at\": \"2020-01-01T00:00:00Z\"}')";
    let (late, later) = (count(&client, expired).await, count(&client, expired).await);
    let rows =
        "insert into windlass.counter (tenant_id, status, n) values ('00000000-0000-0000-0000-000000000000', 6, 1);
        insert into windlass.quota (tenant_id, queued) values ('00000000-0000-0000-0000-000000000005', 5);
        update windlass.quota_version set n = n + 1;
        insert into windlass.tenant_use (tenant_id, jobs, ended, bytes, tokens, filled_at)
            values ('00000000-0000-0000-0000-000000000005', 7, 0, 0, 0, now());
        insert into windlass.served (name, at) values ('rest', now() - interval '1 year');
        insert into windlass.holding (name, node_id, epoch, until) values ('windlass.webhooks', 1, 1, now());
        insert into windlass.outcome (id, finished_at, purge_at, status, attempt, failed, recoveries)
            values (7, now(), now() - interval '1 day', 6, 1, 0, 0);
        insert into windlass.usage (day, tenant_id, handler, jobs, cents, units)
            values ('2000-01-01', '00000000-0000-0000-0000-000000000000', 'rest', 1, 1, 1)";
    client.batch_execute(rows).await.expect("the owner may");
    let lock = locker.transaction().await.expect("begins");
    let locks = format!(
        "select 1 from windlass.slot s join windlass.node n on n.node_id = s.node_id join windlass.lease l on l.node_id = n.node_id
             where l.ids @> array[{stuck}::bigint] for update of s;
         select 1 from windlass.scheduled where id = {late} for update;
         select 1 from windlass.counter for update; select 1 from windlass.served for update;
         select 1 from windlass.tenant_use for update; select 1 from windlass.holding for update;
         select 1 from windlass.outcome for update; select 1 from windlass.usage for update;
         select 1 from windlass.line for update",
        stuck = stuck.as_i64()
    );
    lock.batch_execute(&locks).await.expect("locks");
    let jobs = service(&database, 4).await;
    let rounds = async |time: Duration| {
        let (began, mut rounds) = (Instant::now(), 0_u32);
        while began.elapsed() < time {
            let due = SubmitOptions::new().delay(Duration::from_millis(20));
            let job = jobs.submit_named(&ctx(), "rest", &1, due).await.expect("stored");
            jobs.wait(&ctx(), job.id, Duration::from_secs(30)).await.expect("ends");
            rounds += 1;
        }
        rounds
    };
    let held = rounds(HELD_FOR).await;
    let status = async |id: JobId| jobs.get(&ctx(), id).await.expect("there").status;
    assert_eq!(status(JobId::from_i64(later)).await, Status::Canceled, "what nobody holds expires");
    assert_ne!(status(lost).await, Status::Running, "what nobody holds is taken back");
    assert_eq!((status(stuck).await, status(JobId::from_i64(late)).await), (Status::Running, Status::Scheduled));
    lock.rollback().await.expect("rolls back");
    let free = rounds(HELD_FOR / 2).await * 2;
    assert!(held * 2 >= free, "{held} jobs while rows were held, {free} in the same time without");
    let freed = Instant::now();
    while status(stuck).await == Status::Running || status(JobId::from_i64(late)).await == Status::Scheduled {
        assert!(freed.elapsed() < Duration::from_secs(10), "what was held is looked after when it is let go");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    jobs.shutdown().await;
}

/// BEY-4, OPS-3: a step that fails keeps none of the others: gates open although nothing can be expired.
#[tokio::test(flavor = "multi_thread")]
async fn gates_open_while_expiring_fails() {
    let database = Database::migrated().await;
    let client = database.client().await;
    let broken = "create or replace function windlass.expire(p_limit int) returns int language plpgsql as
        $$ begin raise exception 'as a bug would'; end $$";
    client.batch_execute(broken).await.expect("the owner may");
    let pause = "insert into windlass.pause (target, by, reason) values ('handler:rest', 'u', 'r')";
    client.batch_execute(pause).await.expect("paused");
    let jobs = service(&database, 4).await;
    let job = jobs.submit_named(&ctx(), "rest", &1, SubmitOptions::new()).await.expect("stored").id;
    let began = Instant::now();
    while jobs.get(&ctx(), job).await.expect("there").status != Status::Blocked {
        assert!(began.elapsed() < Duration::from_secs(10), "it is not parked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // By nobody who would open the gate himself.
    client.batch_execute("delete from windlass.pause").await.expect("resumed");
    assert_eq!(jobs.wait(&ctx(), job, Duration::from_secs(20)).await.expect("ends").status, Status::Succeeded);
    jobs.shutdown().await;
}

/// RUN-4, F68: a lease stays locked while jobs in it end one after the other. The first of their ends has to try, until its
/// write gives the lock up (2 s); the later ones wait for the lease, and what other jobs came to is saved meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn later_ends_of_a_locked_lease_slow_no_other_end() {
    const HELD_JOBS: usize = 8;
    const SLOW: Duration = Duration::from_millis(1_500);
    let database = Database::migrated().await;
    let (mut locker, client) = (database.client().await, database.client().await);
    let jobs = service(&database, 4 * HELD_JOBS).await;
    // Stored in one write, so that one claim takes them, or one lease is born with them.
    let millis = (0..HELD_JOBS).map(|n| Ok(Payload::from_store((1_000 + 1_000 * n).to_string())));
    let stored = jobs.submit_payloads(&ctx(), "rest", millis.collect(), SubmitOptions::new(), false).await;
    let held = stored.expect("stored").1.into_iter().map(|job| job.expect("good").id);
    let held: Vec<JobId> = held.collect();
    while count(&client, HELD).await < HELD_JOBS as i64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let lock = locker.transaction().await.expect("begins");
    let locked = lock.query("select ids from windlass.lease for update", &[]).await.expect("locks");
    assert_eq!(locked.iter().map(|row| row.get::<_, Vec<i64>>(0).len()).sum::<usize>(), HELD_JOBS);
    assert!(locked.len() <= HELD_JOBS / 4, "they are in {} leases", locked.len());
    // From before the first of their ends until after the last.
    let (began, mut slow) = (Instant::now(), Vec::new());
    while began.elapsed() < Duration::from_secs(2 + HELD_JOBS as u64) {
        let asked = Instant::now();
        let job = jobs.submit_named(&ctx(), "rest", &1, SubmitOptions::new()).await.expect("stored");
        jobs.wait(&ctx(), job.id, Duration::from_secs(8)).await.expect("another job ends");
        slow.extend(Some(asked.elapsed()).filter(|took| *took > SLOW));
    }
    assert!(slow.len() <= locked.len(), "{} locked leases, and other jobs took {slow:?}", locked.len());
    for job in &held {
        assert_eq!(jobs.get(&ctx(), *job).await.expect("there").status, Status::Running);
    }
    lock.rollback().await.expect("rolls back");
    for job in held {
        assert_eq!(jobs.wait(&ctx(), job, Duration::from_secs(10)).await.expect("ends").status, Status::Succeeded);
    }
    jobs.shutdown().await;
}

/// RUN-5, RUN-10: jobs were claimed for a node whose answer it never got, and nothing reported that. They used to stay
/// running, without ever starting, for as long as the write of any other end was repeated: for hours, when a silent
/// transaction held the lease of that end.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_lease_keeps_no_job_that_the_node_never_heard_of() {
    const UNHEARD: i64 = 283;
    let database = Database::migrated().await;
    let (mut locker, client, raw) = (database.client().await, database.client().await, store(&database).await);
    let options = PgOptions::new(&database.url).expect("a URL").deadline(Duration::from_secs(1));
    let slow = PgStore::connect_with(options).await.expect("opens");
    let jobs = JobService::builder(Arc::new(slow)).function("rest", (), rest).concurrency(500).lease(LEASE);
    let jobs = jobs.start().await.expect("starts");
    let held = jobs.submit_named(&ctx(), "rest", &3_000, SubmitOptions::new()).await.expect("stored").id;
    while count(&client, HELD).await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let node = client.query_one("select node_id from windlass.lease", &[]).await.expect("it runs").get(0);
    let lock = locker.transaction().await.expect("begins");
    let locked = lock.query("select 1 from windlass.lease for update", &[]).await.expect("locks");
    assert_eq!(locked.len(), 1);
    // Into a queue that the node does not look at, so that only this claim takes them.
    let many = "select count(*) from windlass.submit_many('rest',
        (select json_agg(1) from generate_series(1, $1::int)), queue => 'unheard')";
    let stored: i64 = client.query_one(many, &[&(UNHEARD as i32)]).await.expect("stored").get(0);
    assert_eq!(stored, UNHEARD);
    let queues = vec![("unheard".to_owned(), UNHEARD as usize)];
    let (node, lease) = (windlass_core::store::NodeId(node), LeaseId(1));
    let claim = Claim { node, lease, queues, max: UNHEARD as usize, quota: [0; 4], tenant: None };
    assert_eq!(raw.claim(claim).await.expect("claims").jobs.len(), UNHEARD as usize);
    let waiting = "select coalesce(sum(cardinality(ids)), 0)::bigint from windlass.lease where lease_id = $1";
    let began = Instant::now();
    while client.query_one(waiting, &[&lease.0]).await.expect("answers").get::<_, i64>(0) > 0 {
        assert!(began.elapsed() < Duration::from_secs(40), "they are held and nobody runs them");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(
        jobs.get(&ctx(), held).await.expect("there").status,
        Status::Running,
        "its end still waits for the lock"
    );
    lock.rollback().await.expect("rolls back");
    assert_eq!(jobs.wait(&ctx(), held, Duration::from_secs(10)).await.expect("ends").status, Status::Succeeded);
    assert_eq!(jobs.get(&ctx(), held).await.expect("there").failed, 0);
    jobs.shutdown().await;
}
