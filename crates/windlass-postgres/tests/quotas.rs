//! Quotas where several processes and other people's transactions share one database.

mod common;

use std::time::{Duration, Instant};

use uuid::Uuid;
use windlass_core::store::rooms::*;
use windlass_core::store::{Error, Submit};
use windlass_core::{JobService, NewJob, Quota, QuotaKind, Scope, SecurityContext, SubmitOptions, TenantId};
use windlass_postgres::{PgStore, submit_in};

const A: TenantId = TenantId(Uuid::from_u128(0xA));

async fn service(database: &common::Database) -> (PgStore, JobService) {
    let store = PgStore::connect(&database.url).await.expect("connects");
    let jobs = JobService::builder(std::sync::Arc::new(store.clone())).without_workers().start().await.expect("starts");
    (store, jobs)
}

async fn job(jobs: &JobService) -> NewJob {
    let ctx = SecurityContext::new(A);
    jobs.prepare_named(&ctx, "any", &1, SubmitOptions::new()).await.expect("prepared")
}

/// BEY-8.
#[tokio::test(flavor = "multi_thread")]
async fn another_node_keeps_to_a_quota_within_a_second_or_two() {
    let database = common::Database::fresh().await;
    let (store, jobs) = service(&database).await;
    let (_, other) = service(&database).await;
    let ctx = SecurityContext::new(A);
    other.submit_named(&ctx, "any", &1, SubmitOptions::new()).await.expect("no quota yet");
    jobs.operator(windlass_core::OperatorRight::assume())
        .set_quota(&ctx, Some(A), &Quota::new().queued(0))
        .await
        .expect("set");
    let set = Instant::now();
    let refused = loop {
        match other.submit_named(&ctx, "any", &1, SubmitOptions::new()).await {
            Err(error) => break error,
            Ok(_) => assert!(set.elapsed() < Duration::from_secs(10), "the other node never hears of it"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(refused.code(), "quota_exceeded");
    assert!(set.elapsed() < Duration::from_secs(3), "after {:?}", set.elapsed());
    // What came in before the other node had heard is put right: 5 are allowed beyond what there is.
    let there = store.tenant_uses(Scope::Tenant(A)).await.expect("uses")[0].queued;
    jobs.operator(windlass_core::OperatorRight::assume())
        .set_quota(&ctx, Some(A), &Quota::new().queued(there + 5))
        .await
        .expect("set");
    let client = database.client().await;
    jobs.submit_named(&ctx, "any", &1, SubmitOptions::new()).await.expect("fits");
    client.execute("update windlass.tenant_use set jobs = jobs - 3", &[]).await.expect("a count that is wrong");
    let corrected: i32 = client.query_one("select windlass.correct_use()", &[]).await.expect("runs").get(0);
    assert_eq!(corrected, 1);
    let counted: i64 = client
        .query_one("select jobs - (windlass.ended_of(tenant_id) - ended) from windlass.tenant_use", &[])
        .await
        .expect("one row")
        .get(0);
    assert_eq!(counted as u64, there + 1);
    jobs.shutdown().await;
    other.shutdown().await;
}

/// BEY-8, SUB-3: every way in is counted, and one that is refused undoes its statement.
#[tokio::test(flavor = "multi_thread")]
async fn submits_by_sql_and_in_transactions_keep_to_the_quota() {
    let database = common::Database::fresh().await;
    let (store, jobs) = service(&database).await;
    let ctx = SecurityContext::new(A);
    jobs.operator(windlass_core::OperatorRight::assume())
        .set_quota(&ctx, Some(A), &Quota::new().queued(4))
        .await
        .expect("set");
    let mut client = database.client().await;
    let sql = "select windlass.submit('any', '{}', tenant => $1)";
    client.query_one(sql, &[&A.0]).await.expect("the first of four");
    let tx = client.transaction().await.expect("begins");
    submit_in(&tx, &[job(&jobs).await, job(&jobs).await]).await.expect("two more");
    let other = database.client().await;
    other.query_one(sql, &[&A.0]).await.expect("an open transaction holds nobody up, and is not seen");
    tx.commit().await.expect("commits");
    // Four are there. Now every way is closed.
    let refused = client.query_one(sql, &[&A.0]).await.expect_err("refused");
    let db = refused.as_db_error().expect("by the database");
    assert_eq!(db.code().code(), "WQ001");
    assert!(db.detail().is_some_and(|detail| detail.contains("\"queued\"")), "{db:?}");
    let insert = "insert into windlass.job (tenant_id, handler) values ($1, 'any')";
    let refused = client.execute(insert, &[&A.0]).await.expect_err("refused");
    assert_eq!(refused.code().map(|code| code.code()), Some("WQ001"));
    let tx = client.transaction().await.expect("begins");
    match submit_in(&tx, &[job(&jobs).await]).await {
        Err(Error::QuotaExceeded(over)) => assert_eq!((over.quota, over.limit, over.room), (QuotaKind::Queued, 4, 0)),
        other => panic!("not refused: {other:?}"),
    }
    drop(tx);
    let mixed = vec![job(&jobs).await, NewJob { idempotency_key: Some("k".into()), ..job(&jobs).await }];
    match store.submit(Submit { jobs: mixed, lease: None }).await {
        Err(Error::QuotaExceeded(over)) => assert_eq!(over.room, 0),
        other => panic!("not refused: {other:?}"),
    }
    let used = store.tenant_uses(Scope::Tenant(A)).await.expect("uses");
    assert_eq!(used[0].queued, 4, "nothing of what was refused is stored");
    jobs.shutdown().await;
}
