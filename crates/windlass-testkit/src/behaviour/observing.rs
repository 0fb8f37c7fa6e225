//! Behaviours of counting and looking at the whole: API-6, API-7, API-8, BEY-14.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::store::{PauseTarget, Store};
use windlass_core::*;

use super::*;

/// Fails with `retryable` below its last attempt, or for good, as its input says.
async fn as_told(_: (), ctx: JobContext, how: String) -> Result<(), JobError> {
    match how.as_str() {
        "retry" if ctx.attempt() == 1 => Err(JobError::retryable("once more")),
        "refuse" => Err(JobError::terminal("refused", "never")),
        _ => Ok(()),
    }
}

/// What happened to the jobs of a handler in this process, all bands together.
fn totals(jobs: &JobService, handler: &str) -> Sums {
    let mut sums = Sums::default();
    jobs.totals().iter().filter(|totals| totals.handler == handler).for_each(|totals| sums.merge(&totals.sums));
    sums
}

/// API-6: every way of a job is counted once, by handler and band, in this process and in the past of the installation.
pub async fn what_happens_to_jobs_is_counted(store: Arc<dyn Store>) {
    let options = HandlerOptions::new().retry(quick_retries(3));
    let jobs = service(&store).function_with("told", options, (), as_told).start().await.expect("starts");
    let (ctx, other) = (tenant(1), tenant(2));
    let mut ids = Vec::new();
    for how in ["well", "well", "retry", "refuse"] {
        ids.push(jobs.submit_named(&ctx, "told", how, SubmitOptions::new()).await.expect("accepted").id);
    }
    let high = SubmitOptions::new().priority(Priority::HIGH).idempotency_key("once");
    for _ in 0..2 {
        jobs.submit_named(&other, "told", "well", high.clone()).await.expect("accepted");
    }
    let later = SubmitOptions::new().delay(Duration::from_secs(3_600));
    let canceled = jobs.submit_named(&ctx, "told", "well", later).await.expect("accepted").id;
    jobs.cancel(&ctx, canceled, "not needed").await.expect("cancels");
    for id in ids {
        jobs.wait(&ctx, id, SOON).await.expect("ends");
    }
    until("everything to be counted", || async {
        let sums = totals(&jobs, "told");
        (sums.succeeded, sums.dead_lettered, sums.canceled) == (4, 1, 1)
    })
    .await;
    let sums = totals(&jobs, "told");
    assert_eq!((sums.submitted, sums.started), (6, 6), "a duplicate is no submit, a retry is a start");
    assert_eq!((sums.failed, sums.retried), (2, 1));
    assert_eq!((sums.wait.count(), sums.run.count()), (5, 6), "only a first start tells how long a job waited");
    let of_band = |band: Band| jobs.totals().into_iter().find(|totals| totals.priority == band).expect("counted");
    assert_eq!((of_band(Band::High).submitted, of_band(Band::High).succeeded), (1, 1));

    let everyone = jobs.operator(OperatorRight::assume());
    for span in [Span::Minutes5, Span::Hour, Span::Day, Span::Week] {
        let activity = everyone.activity(span).await.expect("reads");
        assert_eq!(activity.points.len(), span.points());
        let seen = |count: fn(&Sums) -> u64| activity.points.iter().map(|point| count(point)).sum::<u64>();
        assert_eq!((seen(|sums| sums.submitted), seen(|sums| sums.succeeded)), (6, 4), "{span:?}");
        assert_eq!((activity.by_handler.len(), activity.by_handler[0].0.as_str()), (1, "told"));
    }
    jobs.shutdown().await;

    // Another process sees it, too, and a tenant only its own part.
    let jobs = service(&store).without_workers().start().await.expect("starts");
    let seen = async |ctx: &SecurityContext| {
        let activity = jobs.activity(ctx, Span::Hour).await.expect("reads");
        activity
            .points
            .iter()
            .map(|point| (point.submitted, point.dead_lettered))
            .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    };
    assert_eq!((seen(&ctx).await, seen(&other).await), ((5, 1), (1, 0)));
    assert_eq!(seen(&tenant(3)).await, (0, 0));
    let own = jobs.activity(&ctx, Span::Hour).await.expect("reads");
    assert!(own.points.iter().all(|point| point.depth.is_none()), "how many there are of everyone's is not a tenant's");
    jobs.shutdown().await;
}

/// API-6: how many jobs were in each status is kept by whoever does maintenance.
pub async fn charts_show_how_many_jobs_wait(store: Arc<dyn Store>) {
    let jobs = service(&store).function("told", (), as_told).start().await.expect("starts");
    let ctx = tenant(1);
    let later = SubmitOptions::new().delay(Duration::from_secs(3_600));
    jobs.submit_named(&ctx, "told", "well", later).await.expect("accepted");
    let everyone = jobs.operator(OperatorRight::assume());
    until("a node to count", || async {
        let activity = everyone.activity(Span::Minutes5).await.expect("reads");
        activity.points.last().is_some_and(|point| point.depth.is_some())
    })
    .await;
    jobs.shutdown().await;
}

/// BEY-14: an autoscaler sees what waits and runs by handler, and how fast it goes.
pub async fn a_backlog_shows_what_waits_and_runs(store: Arc<dyn Store>) {
    let door = Door::closed();
    let wait = |door: Door, _: JobContext, (): ()| async move {
        door.pass().await;
        Ok::<_, JobError>(())
    };
    let jobs = service(&store).function("waits", door.clone(), wait).concurrency(2).start().await.expect("starts");
    let ctx = tenant(1);
    for _ in 0..5 {
        jobs.submit_named(&ctx, "waits", &(), SubmitOptions::new()).await.expect("accepted");
    }
    let everyone = jobs.operator(OperatorRight::assume());
    until("two to run and three to wait", || async {
        let backlog = everyone.backlog().await.expect("reads");
        backlog.iter().any(|of| (of.handler.as_str(), of.waiting, of.running) == ("waits", 3, 2))
    })
    .await;
    let own = jobs.backlog(&ctx).await.expect("reads");
    assert_eq!((own.len(), own[0].waiting, own[0].running), (1, 3, 2));
    assert!(jobs.backlog(&tenant(2)).await.expect("reads").is_empty(), "a tenant sees its own");
    door.open();
    until("all to run", || async { everyone.backlog().await.expect("reads").is_empty() }).await;
    jobs.shutdown().await;
}

/// BEY-14, OPS-4: what a pause holds back stays in the backlog, as blocked.
pub async fn a_paused_handler_has_a_backlog(store: Arc<dyn Store>) {
    let target = PauseTarget::Handler("waits".into());
    store.pause(&target, "op", "broken").await.expect("pauses");
    let jobs = service(&store).function("waits", (), |(), _: JobContext, (): ()| async { Ok::<_, JobError>(()) });
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    for _ in 0..3 {
        jobs.submit_named(&ctx, "waits", &(), SubmitOptions::new()).await.expect("accepted");
    }
    until("three to be blocked", || async {
        let backlog = jobs.backlog(&ctx).await.expect("reads");
        backlog.iter().any(|of| (of.handler.as_str(), of.waiting, of.blocked) == ("waits", 0, 3))
    })
    .await;
    store.resume(&target, "op").await.expect("resumes");
    until("all to run", || async { jobs.backlog(&ctx).await.expect("reads").is_empty() }).await;
    jobs.shutdown().await;
}

/// API-8: depth, running jobs and the state of each node, and what the store says of itself.
pub async fn health_shows_depth_nodes_and_the_store(store: Arc<dyn Store>) {
    let door = Door::closed();
    let wait = |door: Door, _: JobContext, (): ()| async move {
        door.pass().await;
        Ok::<_, JobError>(())
    };
    let jobs = service(&store).function("waits", door.clone(), wait).concurrency(1).start().await.expect("starts");
    let ctx = tenant(1);
    for _ in 0..3 {
        jobs.submit_named(&ctx, "waits", &(), SubmitOptions::new()).await.expect("accepted");
    }
    until("one to run", || async { jobs.running() == 1 }).await;
    let health = jobs.health().await.expect("tells");
    assert_eq!((health.depth.get(Status::Pending), health.depth.get(Status::Running)), (2, 1));
    assert_eq!((health.active, health.stale), (1, 0));
    assert_eq!((health.nodes.len(), health.nodes[0].stale), (1, false));
    assert!(health.nodes[0].age < Duration::from_secs(10) && health.oldest_due.is_some());
    assert!(health.skew_ms.abs() < 60_000, "{} ms", health.skew_ms);
    assert!(health.pools.iter().all(|pool| pool.used <= pool.max));
    let again = jobs.health().await.expect("tells");
    assert_eq!(again.at, health.at, "those who ask at once share a look");
    door.open();
    jobs.shutdown().await;
}

/// API-7: a trace that a caller hands over travels with the job and with its callback.
pub async fn a_trace_travels_with_the_job(store: Arc<dyn Store>) {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let (seen, mut traces) = tokio::sync::mpsc::unbounded_channel();
    struct Traced(tokio::sync::mpsc::UnboundedSender<Option<String>>);
    impl JobHandler for Traced {
        const ID: &'static str = "traced";
        type Input = ();
        type Output = ();
        async fn execute(&self, ctx: &JobContext, (): ()) -> Result<(), JobError> {
            let _ = self.0.send(ctx.headers().get("traceparent").cloned());
            Ok(())
        }
        async fn on_success(&self, ctx: &JobContext, (): (), (): ()) -> Result<(), JobError> {
            let _ = self.0.send(ctx.headers().get("traceparent").cloned());
            Ok(())
        }
    }
    let jobs = service(&store).handler(Traced(seen)).start().await.expect("starts");
    let options = SubmitOptions::new().header("traceparent", TRACE);
    jobs.submit_with::<Traced>(&tenant(1), (), options).await.expect("accepted");
    for of in ["the job", "its callback"] {
        let trace = tokio::time::timeout(super::SOON, traces.recv()).await.expect("runs").expect("told");
        assert_eq!(trace.as_deref().map(|trace| &trace[..36]), Some(&TRACE[..36]), "{of} is part of the trace");
    }
    jobs.shutdown().await;
}
