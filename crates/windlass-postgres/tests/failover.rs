//! A store whose primary fails over goes on with the new one, and does not go back to the old one.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};
use windlass_core::store::rooms::*;
use windlass_core::store::{Error, NewNode};
use windlass_postgres::{PgOptions, PgStore};
use windlass_testkit::servers::{PostgresOptions, PostgresServer};

async fn client(server: &PostgresServer, database: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(database), NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// Repeats a call until it ends as wanted: connections that a kill has cut are noticed one by one.
async fn until<T>(what: &str, call: impl AsyncFn() -> Result<T, Error>, wanted: impl Fn(&Result<T, Error>) -> bool) {
    let started = Instant::now();
    loop {
        let answer = call().await;
        if wanted(&answer) {
            return;
        }
        let last = answer.err().map(|error| error.to_string());
        assert!(started.elapsed() < Duration::from_secs(20), "{what} did not happen; last: {last:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn end_sessions(server: &PostgresServer) {
    let all = "select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'";
    client(server, "jobs").await.query(all, &[]).await.expect("end sessions");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_a_failover_left_behind_is_refused() {
    let mut old = PostgresServer::start(PostgresOptions::new()).expect("a server");
    old.create_database("jobs").expect("create");
    let new = PostgresServer::standby_of(&old).expect("a standby");
    // The old one first, as a list of addresses usually stays.
    let both = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/jobs", old.port(), new.port());
    let options = PgOptions::new(&both).expect("options").listen(false).deadline(Duration::from_secs(5));
    let store = PgStore::connect_with(options).await.expect("connect");
    let follower = client(&new, "postgres").await;
    let at: String = {
        let sql = "select pg_current_wal_flush_lsn()::text";
        client(&old, "jobs").await.query_one(sql, &[]).await.expect("ask").get(0)
    };
    let follows = format!("select pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
    let started = Instant::now();
    while !follower.query_one(&follows, &[]).await.expect("ask").get::<_, bool>(0) {
        assert!(started.elapsed() < Duration::from_secs(20), "the standby does not follow");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    old.kill_9();
    follower.query_one("select pg_promote(true, 20)", &[]).await.expect("promote");
    until("work on the new primary", async || store.register(NewNode::default()).await, Result::is_ok).await;

    old.start_again().expect("the old primary comes back");
    end_sessions(&new).await;
    let refused = |answer: &Result<_, Error>| matches!(answer, Err(Error::Refused(why)) if why.contains("old primary after a failover (timeline 1"));
    until("a refusal", async || store.register(NewNode::default()).await, refused).await;
    let nodes = "select count(*) from windlass.node";
    let on_old: i64 = client(&old, "jobs").await.query_one(nodes, &[]).await.expect("ask").get(0);
    assert_eq!(on_old, 0, "the old primary accepted a node");

    old.kill_9();
    until("work again once the old one is gone", async || store.register(NewNode::default()).await, Result::is_ok)
        .await;
}
