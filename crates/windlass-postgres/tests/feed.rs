//! What only a database in which transactions overlap can show of the feed of status events, and how it is kept small
//! (OPS-8).

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Database;
use futures_util::StreamExt;
use windlass_core::store::Feed as _;
use windlass_core::store::rooms::*;
use windlass_core::store::{FEED_EVENTS_KEPT, FeedAsk};
use windlass_core::{
    Feed, FeedEvent, JobContext, JobError, JobId, JobService, SecurityContext, Status, SubmitOptions, TenantId,
};
use windlass_postgres::PgStore;

/// How long anything that should happen soon is waited for.
const SOON: Duration = Duration::from_secs(20);

async fn nothing(_: (), _: JobContext, _: ()) -> Result<(), JobError> {
    Ok(())
}

async fn next(feed: &mut Feed) -> FeedEvent {
    tokio::time::timeout(SOON, feed.next()).await.expect("an event comes soon").expect("the feed goes on")
}

async fn submit(jobs: &JobService, ctx: &SecurityContext) -> JobId {
    jobs.submit_named(ctx, "a", &(), SubmitOptions::new()).await.expect("accepted").id
}

/// OPS-8: a transaction has its place in the feed before it commits. Those after it do not wait for it for long, and it
/// is told when it does commit; one that is rolled back leaves only a gap.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_commits_late_is_told_late_and_not_lost() {
    let database = Database::fresh().await;
    let store = Arc::new(PgStore::connect(&database.url).await.expect("opens"));
    let jobs = JobService::builder(store).function("a", (), nothing).start().await.expect("starts");
    let ctx = SecurityContext::new(TenantId::ROOT);
    let mut feed = jobs.feed(&ctx, None).await.expect("follows");
    let first = submit(&jobs, &ctx).await;
    assert_eq!(next(&mut feed).await.event.job, first);

    let mut client = database.client().await;
    let late = client.transaction().await.expect("begins");
    let insert = "insert into windlass.feed (id, status, attempt) values ($1, 7, 1)";
    late.execute(insert, &[&first.as_i64()]).await.expect("writes");
    let mut doomed = database.client().await;
    let doomed = doomed.transaction().await.expect("begins");
    doomed.execute(insert, &[&first.as_i64()]).await.expect("writes");
    let second = submit(&jobs, &ctx).await;
    let told = next(&mut feed).await;
    assert_eq!((told.event.job, told.event.status), (second, Status::Succeeded), "nobody waits for the late one");
    doomed.rollback().await.expect("rolls back");
    late.commit().await.expect("commits");
    let late = next(&mut feed).await;
    assert_eq!((late.event.job, late.event.status), (first, Status::Canceled));
    assert!(late.sequence < told.sequence);
    let third = submit(&jobs, &ctx).await;
    assert_eq!(next(&mut feed).await.event.job, third);
    jobs.shutdown().await;
}

/// OPS-8: status events are kept for an hour, and not too many of them, whatever comes.
#[tokio::test(flavor = "multi_thread")]
async fn old_events_and_too_many_are_removed() {
    let database = Database::fresh().await;
    let store = PgStore::connect(&database.url).await.expect("opens");
    let client = database.client().await;
    let insert = "insert into windlass.feed (id, status, at) select n, 6, clock_timestamp() - $1::text::interval
                  from generate_series(1, $2) n";
    client.execute(insert, &[&"61 minutes", &50]).await.expect("writes");
    client.execute(insert, &[&"59 minutes", &200]).await.expect("writes");
    store.clean(10).await.expect("cleans");
    let rows = store.read_feed(&FeedAsk::default(), 1_000).await.expect("reads");
    assert_eq!((rows.len(), rows[0].sequence), (200, 51));
    client.execute(insert, &[&"1 minute", &(FEED_EVENTS_KEPT as i32)]).await.expect("writes");
    store.clean(10).await.expect("cleans");
    let left: i64 = client.query_one("select count(*) from windlass.feed", &[]).await.expect("counts").get(0);
    assert_eq!(left, FEED_EVENTS_KEPT as i64);
    assert_eq!(store.feed_end().await.expect("reads"), 250 + FEED_EVENTS_KEPT);
}
