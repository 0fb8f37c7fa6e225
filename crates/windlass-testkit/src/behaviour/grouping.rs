//! Behaviours of work that is more than one job: batches (FLW-4), jobs that wait for others and graphs of them (FLW-3).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use windlass_core::store::Store;
use windlass_core::*;

use super::*;

const ROW: HandlerRef<u32, ()> = HandlerRef::new("row");
const DONE: HandlerRef<BatchDone<String>, ()> = HandlerRef::new("done");
const STEP: HandlerRef<String, ()> = HandlerRef::new("step");

/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(20);

type Seen<T> = Arc<Mutex<Vec<T>>>;

/// Rows that are odd fail for good.
async fn row(_: (), _: JobContext, n: u32) -> Result<(), JobError> {
    if n % 2 == 1 { Err(JobError::terminal("odd", "an odd row")) } else { Ok(()) }
}

async fn done(seen: Seen<BatchDone<String>>, _: JobContext, done: BatchDone<String>) -> Result<(), JobError> {
    seen.lock().push(done);
    Ok(())
}

/// Notes its input, and fails for good where that asks for it.
async fn step(seen: Seen<String>, _: JobContext, name: String) -> Result<(), JobError> {
    let fails = name.starts_with("bad");
    seen.lock().push(name);
    if fails { Err(JobError::terminal("bad", "as asked")) } else { Ok(()) }
}

/// FLW-4: jobs are added in parts, a repeated part adds nothing, and when all have ended the callback runs once with the
/// counts. Replaying a member changes the counts and calls nobody again.
pub async fn a_batch_calls_back_once_when_all_have_ended(store: Arc<dyn Store>) {
    let seen = Seen::default();
    let start = || service(&store).function(ROW, (), row).function(DONE, seen.clone(), done).start();
    let (jobs, other) = (start().await.expect("starts"), start().await.expect("starts"));
    let acme = jobs.of(tenant(1));
    let open =
        async || batch_of(&acme, "import").key("people.csv").then(DONE, "people.csv").open().await.expect("opens");
    let batch = open().await;
    assert_eq!(open().await.id(), batch.id(), "found again by its key");
    assert_eq!(batch.add(0, ROW, 0..50).await.expect("added").stored.len(), 50);
    assert!(batch.add(0, ROW, 0..9).await.expect("answered").repeated);
    assert_eq!(batch.add(1, ROW, 50..100).await.expect("added").jobs, 50);
    batch.seal().await.expect("seals");
    assert_eq!(batch.add(2, ROW, [1]).await.expect_err("sealed").code(), "batch_sealed");
    let status = batch.wait(LONG).await.expect("it is complete");
    assert_eq!((status.counts.total, status.counts.succeeded, status.counts.dead), (100, 50, 50));
    jobs.wait(&tenant(1), status.callback_job.expect("stored"), LONG).await.expect("it runs");
    let called = seen.lock().clone();
    assert_eq!(called.len(), 1, "{called:?}");
    assert_eq!((called[0].of.as_str(), called[0].counts), ("people.csv", status.counts));
    let dead = JobFilter::all().status(Status::DeadLettered);
    let dead = jobs.list(&tenant(1), &dead, Page::first(1)).await.expect("lists")[0].id;
    jobs.replay(&tenant(1), dead).await.expect("replays");
    until("it has failed again", || async {
        jobs.status(&tenant(1), dead).await.expect("it is there") == Status::DeadLettered
    })
    .await;
    assert_eq!(batch.status().await.expect("reads").counts, status.counts);
    let foreign = jobs.batches().get(&tenant(2), batch.id()).await.expect_err("another tenant's");
    assert_eq!(foreign.code(), "batch_not_found");
    assert_eq!(seen.lock().len(), 1);
    other.shutdown().await;
    jobs.shutdown().await;
}

/// FLW-4: a batch is watched until it is complete, and canceled as a whole: what has not started ends, and the callback
/// still runs.
pub async fn a_batch_is_watched_and_canceled(store: Arc<dyn Store>) {
    let seen = Seen::default();
    let jobs = service(&store).function(ROW, (), row).function(DONE, seen.clone(), done).start().await.expect("starts");
    let ctx = tenant(1);
    let acme = jobs.of(ctx.clone());
    let batch = batch_of(&acme, "slow").then(DONE, "x").open().await.expect("opens");
    let later = SubmitOptions::new().delay(Duration::from_secs(3_600));
    batch.add_with(0, ROW, 0..10, later).await.expect("added");
    let mut watched = Box::pin(jobs.batches().watch(&ctx, batch.id()));
    assert_eq!(watched.next().await.expect("a status").expect("reads").counts.total, 10);
    let cancel = jobs.batches().cancel(&ctx, batch.id(), "not wanted").await.expect("begins");
    cancel.wait().await;
    let last =
        tokio::time::timeout(LONG, watched.fold(None, |_, status| async { Some(status) })).await.expect("it ends");
    let last = last.expect("a status").expect("reads");
    assert_eq!((last.counts.canceled, last.completed_at.is_some()), (10, true));
    until("the callback has run", || async { seen.lock().len() == 1 }).await;
    jobs.shutdown().await;
}

/// FLW-3: a graph is stored in one call and runs in order; what waits for a failed job ends as its policy says, and with it
/// what waits for that.
pub async fn a_graph_runs_in_order(store: Arc<dyn Store>) {
    let seen = Seen::default();
    let start = || service(&store).function(STEP, seen.clone(), step).start();
    let (jobs, other) = (start().await.expect("starts"), start().await.expect("starts"));
    let ctx = tenant(1);
    let acme = jobs.of(ctx.clone());
    let graph = graph_by(&acme).add("a", STEP, "a").add("b", STEP, "b").add("c", STEP, "c").add("bad", STEP, "bad");
    let graph = graph.add("never", STEP, "never").add("nor", STEP, "nor").add("still", STEP, "still");
    let graph = graph.add("fails", STEP, "fails").after("b", ["a"]).after("c", ["a", "b"]).after("never", ["bad"]);
    let graph = graph.after("nor", ["never"]).after("still", ["bad", "c"]).if_failed("still", IfFailed::Run);
    let ids = graph.after("fails", ["bad"]).if_failed("fails", IfFailed::Fail).submit().await.expect("stored");
    for (name, status) in [
        ("c", Status::Succeeded),
        ("still", Status::Succeeded),
        ("never", Status::Canceled),
        ("nor", Status::Canceled),
        ("fails", Status::DeadLettered),
    ] {
        let end = jobs.wait(&ctx, ids[name], LONG).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(end.status, status, "{name}");
    }
    let ran = seen.lock().clone();
    let place = |name: &str| ran.iter().position(|seen| seen == name);
    assert!(place("a") < place("b") && place("b") < place("c") && place("c") < place("still"), "{ran:?}");
    assert_eq!((place("never"), place("nor"), place("fails")), (None, None, None));
    let never = jobs.get(&ctx, ids["never"]).await.expect("it is there");
    assert_eq!(never.reason.as_deref(), Some("parent_failed"));
    let read = jobs.graph_of(&ctx, ids["a"]).await.expect("reads");
    assert_eq!((read.jobs.len(), read.edges.len(), read.cut), (8, 8, false));
    assert_eq!(jobs.graph_of(&tenant(2), ids["a"]).await.expect_err("another tenant's").code(), "job_not_found");
    other.shutdown().await;
    jobs.shutdown().await;
}

/// FLW-3, SUB-2: a job may wait for any of several, for a batch, and for what has ended already; what is not there, another
/// tenant's, or a cycle is refused and nothing is written.
pub async fn jobs_wait_for_what_is_there(store: Arc<dyn Store>) {
    let seen = Seen::default();
    let jobs = service(&store).function(STEP, seen.clone(), step).start().await.expect("starts");
    let ctx = tenant(1);
    let acme = jobs.of(ctx.clone());
    let ended = STEP.submit(&acme, "first").await.expect("stored");
    ended.wait(LONG).await.expect("it runs");
    let bad = STEP.submit(&acme, "bad").await.expect("stored").id();
    jobs.wait(&ctx, bad, LONG).await.expect("it ends");
    let any = SubmitOptions::new().after_any([bad, ended.id()]);
    STEP.submit_with(&acme, "any", any).await.expect("stored").wait(LONG).await.expect("one is enough");
    let batch = batch_of(&acme, "one").open().await.expect("opens");
    let waits = SubmitOptions::new().after_batch(batch.id());
    let waits = STEP.submit_with(&acme, "after the batch", waits).await.expect("stored");
    assert_eq!(waits.status().await.expect("reads"), Status::Blocked);
    batch.add(0, STEP, ["member".to_owned()]).await.expect("added");
    batch.seal().await.expect("seals");
    waits.wait(LONG).await.expect("it runs when the batch is complete");

    let theirs = STEP.submit(&jobs.of(tenant(2)), "theirs").await.expect("stored").id();
    let before = jobs.list(&ctx, &JobFilter::all(), Page::first(100)).await.expect("lists").len();
    for missing in [theirs, JobId::from_i64(7)] {
        let refused = STEP.submit_with(&acme, "x", SubmitOptions::new().after([missing])).await.expect_err("refused");
        assert!(matches!(&refused, Error::InvalidInput(bad) if bad.field == "after"), "{refused}");
    }
    let cycle = graph_by(&acme).add("a", STEP, "a").add("b", STEP, "b").after("a", ["b"]).after("b", ["a"]);
    let cycle = cycle.submit().await.expect_err("refused").to_string();
    assert!(cycle.contains("a → b → a") || cycle.contains("b → a → b"), "{cycle}");
    let unknown = graph_by(&acme).add("a", STEP, "a").after("a", ["x"]).submit().await.expect_err("refused");
    assert_eq!(unknown.code(), "invalid_input");
    assert_eq!(jobs.list(&ctx, &JobFilter::all(), Page::first(100)).await.expect("lists").len(), before);
    jobs.shutdown().await;
}
