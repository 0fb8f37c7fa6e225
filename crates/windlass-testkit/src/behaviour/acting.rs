//! Behaviours of acting on many jobs: BEY-2, BEY-3, BEY-6.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use windlass_core::store::{AuditFilter, Store};
use windlass_core::*;

use super::*;

fn filter(text: &str) -> JobFilter {
    JobFilter::parse(text, Timestamp::default()).expect("a filter")
}

/// Fails by its input until it is healthy: `smtp` by a network that is down, anything else by bad data.
async fn flaky(healthy: Arc<AtomicBool>, ctx: JobContext, input: String) -> Result<String, JobError> {
    if healthy.load(Ordering::SeqCst) {
        return Ok(input);
    }
    match input.as_str() {
        "smtp" => Err(JobError::retryable(format!("no route to 10.0.0.7 for job {}", ctx.job_id())).with_code("smtp")),
        text => Err(JobError::terminal("bad_data", format!("cannot read \"{text}\" at line 7"))),
    }
}

fn failing_service(store: &Arc<dyn Store>, healthy: &Arc<AtomicBool>) -> Builder {
    let once = HandlerOptions::new().retry(RetryPolicy::never());
    let later = HandlerOptions::new().retry(RetryPolicy::fixed(3, Duration::from_secs(3_600)));
    let builder = service(store).function_with("mail", once, healthy.clone(), flaky);
    builder.function_with("patient", later, healthy.clone(), flaky)
}

async fn submit(jobs: &JobService, ctx: &SecurityContext, handler: &str, input: &str) -> JobId {
    jobs.submit_named(ctx, handler, &input, SubmitOptions::new().tag("t")).await.expect("accepted").id
}

async fn until_counted(jobs: &JobService, ctx: &SecurityContext, status: Status, n: u64) {
    until(&format!("{n} jobs to be {status}"), || async {
        jobs.counts(ctx).await.is_ok_and(|counts| counts.get(status) == n)
    })
    .await;
}

/// The last entry of the audit log for a bulk action.
async fn audited(jobs: &JobService, ctx: &SecurityContext, action: &str) -> Vec<(String, String, String)> {
    let mut wanted = AuditFilter::default();
    wanted.action = Some(action.to_owned());
    let entries = jobs.audit_log(ctx, &wanted).await.expect("reads");
    entries.into_iter().map(|entry| (entry.actor, entry.target, entry.detail.unwrap_or_default())).collect()
}

/// BEY-3: failures are grouped by what went wrong, and a group is replayed as one.
pub async fn failures_are_grouped_and_replayed_as_a_group(store: Arc<dyn Store>) {
    let healthy = Arc::new(AtomicBool::new(false));
    let jobs = failing_service(&store, &healthy).start().await.expect("starts");
    let (ctx, other) = (tenant(1), tenant(2));
    let mut down = Vec::new();
    for input in ["smtp", "x", "smtp", "y y", "smtp"] {
        let id = submit(&jobs, &ctx, "mail", input).await;
        // One after the other: the latest of a group is the one that ended last.
        until_status(&jobs, &ctx, id, Status::DeadLettered).await;
        down.extend((input == "smtp").then_some(id));
    }
    let waiting = submit(&jobs, &ctx, "patient", "smtp").await;
    let theirs = submit(&jobs, &other, "mail", "smtp").await;
    until_counted(&jobs, &ctx, Status::DeadLettered, 5).await;
    until_counted(&jobs, &other, Status::DeadLettered, 1).await;
    until_status(&jobs, &ctx, waiting, Status::Retrying).await;

    let groups = jobs.failures(&ctx, &JobFilter::all(), 10).await.expect("grouped");
    let told: Vec<_> = groups.iter().map(|group| (group.handler.as_str(), group.code.as_str(), group.jobs)).collect();
    assert_eq!(told, [("mail", "smtp", 3), ("mail", "bad_data", 2), ("patient", "smtp", 1)]);
    let (largest, patient) = (&groups[0], &groups[2]);
    assert_eq!(largest.message, "no route to <n>.<n>.<n>.<n> for job <n>");
    assert_eq!((largest.latest, largest.dead, largest.retrying), (down[2], 3, 0));
    assert_eq!(largest.sample, format!("no route to 10.0.0.7 for job {}", down[2]));
    assert!(largest.first_at <= largest.last_at);
    assert_eq!((patient.latest, patient.dead, patient.retrying), (waiting, 0, 1));
    assert_eq!(groups[1].message, "cannot read <text> at line <n>");
    assert_eq!(jobs.failures(&ctx, &filter("handler:patient"), 10).await.expect("grouped").len(), 1);
    assert_eq!(jobs.failures(&ctx, &JobFilter::all(), 1).await.expect("grouped").len(), 1);
    assert_eq!(jobs.failures(&ctx, &JobFilter::all(), 0).await.expect_err("no groups").code(), "invalid_input");
    let operator = jobs.operator(OperatorRight::assume());
    let everyone = operator.failures(&filter("handler:mail"), 10).await.expect("grouped");
    assert_eq!((everyone[0].jobs, everyone[0].signature), (4, largest.signature), "one problem of two tenants");

    healthy.store(true, Ordering::SeqCst);
    let group = JobFilter::all().signature(largest.signature);
    let end = jobs.bulk(&ctx, &group, BulkAction::Replay, BulkOptions::default()).await.expect("begins").wait().await;
    assert_eq!((end.state, end.total, end.done), (BulkState::Finished, 3, 3));
    for id in down {
        jobs.wait_for::<String>(&ctx, id, SOON).await.expect("succeeds");
    }
    let left = jobs.failures(&ctx, &JobFilter::all(), 10).await.expect("grouped");
    assert_eq!(left.iter().map(|group| group.jobs).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(jobs.status(&other, theirs).await.expect("kept"), Status::DeadLettered);
    jobs.shutdown().await;
}

/// BEY-6: what a filter names is shown, then acted on, counted and audited.
pub async fn a_bulk_action_does_what_its_preview_shows(store: Arc<dyn Store>) {
    let healthy = Arc::new(AtomicBool::new(true));
    let jobs = failing_service(&store, &healthy).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let mut wanted = Vec::new();
    for n in 0..30 {
        let id = submit(&jobs, &ctx, if n % 3 == 0 { "patient" } else { "mail" }, &format!("n{n}")).await;
        wanted.extend((n % 3 == 0).then_some(id));
    }
    let theirs = submit(&jobs, &tenant(2), "patient", "x").await;
    let action = BulkAction::Cancel { reason: "not needed".into() };
    let text = "handler:patient tag:t";
    let preview = jobs.preview(&ctx, &action.narrow(&filter(text)).expect("can be"), 100).await.expect("counts");
    assert_eq!((preview.jobs, preview.more, preview.sample.len()), (10, false, 10));
    let capped = jobs.preview(&ctx, &filter(text), 9).await.expect("counts");
    assert_eq!((capped.jobs, capped.more), (9, true));
    assert_eq!(preview.sample[0].id, wanted[9], "newest first");

    let bulk = jobs.bulk(&ctx, &filter(text), action.clone(), BulkOptions::default()).await.expect("begins");
    let end = bulk.wait().await;
    assert_eq!((end.state, end.done, end.failed, end.skipped, end.total), (BulkState::Finished, 10, 0, 0, 10));
    assert_eq!((end.action.as_str(), end.filter.as_str(), end.by.as_str()), ("cancel", text, "user-1"));
    for id in wanted {
        assert_eq!(jobs.status(&ctx, id).await.expect("kept"), Status::Canceled);
    }
    assert_eq!(jobs.status(&tenant(2), theirs).await.expect("kept"), Status::Pending);
    assert_eq!(jobs.counts(&ctx).await.expect("counts").get(Status::Pending), 20);
    let summary = "10 done, 0 failed, 0 skipped of 10".to_owned();
    assert_eq!(audited(&jobs, &ctx, "BULK_CANCELED").await, [("user-1".to_owned(), text.to_owned(), summary)]);
    assert_eq!(jobs.bulks(&ctx).await.expect("reads"), [end]);
    assert!(jobs.bulks(&tenant(2)).await.expect("reads").is_empty(), "another tenant's is not shown");
    assert!(!jobs.bulk_stop(&tenant(2), bulk.id()).await.expect("reads"), "nor stopped");

    let purge = jobs.bulk(&ctx, &filter("status:canceled"), BulkAction::Purge, BulkOptions::default().cap(4)).await;
    assert_eq!(purge.expect("begins").wait().await.done, 4);
    assert_eq!(jobs.preview(&ctx, &filter("status:canceled"), 100).await.expect("counts").jobs, 6);

    let refused = jobs.bulk(&ctx, &filter("status:succeeded"), action.clone(), BulkOptions::default()).await;
    assert_eq!(refused.expect_err("nothing to cancel").code(), "invalid_input");
    let refused = jobs.bulk(&ctx, &JobFilter::all(), action, BulkOptions::default().cap(100_001)).await;
    assert_eq!(refused.expect_err("too many").code(), "invalid_input");
    jobs.shutdown().await;
}

/// BEY-6, BEY-2: a bulk action keeps to its pace and can be stopped on its way.
pub async fn a_bulk_action_keeps_its_pace_and_can_be_stopped(store: Arc<dyn Store>) {
    let healthy = Arc::new(AtomicBool::new(true));
    let jobs = failing_service(&store, &healthy).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    for n in 0..40 {
        submit(&jobs, &ctx, "mail", &format!("n{n}")).await;
    }
    let action = BulkAction::Cancel { reason: "later".into() };
    let begun = Instant::now();
    let few = BulkOptions::default().cap(6).per_second(50.0);
    let end = jobs.bulk(&ctx, &JobFilter::all(), action.clone(), few).await.expect("begins").wait().await;
    assert_eq!((end.state, end.done, end.total), (BulkState::Finished, 6, 6));
    assert!(begun.elapsed() >= Duration::from_millis(100), "no faster than 50 per second");

    let slow = BulkOptions::default().per_second(20.0);
    let bulk = jobs.bulk(&ctx, &JobFilter::all(), action.clone(), slow).await.expect("begins");
    until("some to be done", || async { bulk.progress().done >= 2 }).await;
    assert!(jobs.bulk_stop(&ctx, bulk.id()).await.expect("stops"));
    let end = bulk.wait().await;
    assert_eq!(end.state, BulkState::Stopped);
    assert!((2..34).contains(&end.done), "{end:?}");
    assert!(end.ended_at.is_some_and(|at| at >= end.started_at));
    let left = jobs.counts(&ctx).await.expect("counts").get(Status::Pending);
    assert_eq!(left, 34 - end.done);
    assert_eq!(audited(&jobs, &ctx, "BULK_CANCELED").await.len(), 2);

    let very_slow = BulkOptions::default().per_second(0.01);
    let bulk = jobs.bulk(&ctx, &JobFilter::all(), action, very_slow).await.expect("begins");
    jobs.shutdown().await;
    assert_ne!(bulk.wait().await.state, BulkState::Running, "whoever waits is told");
}

/// BEY-6: a bulk action is shown and stopped by every process, and one whose process was lost is not shown as running.
pub async fn a_bulk_action_is_shown_and_stopped_by_every_process(store: Arc<dyn Store>) {
    let healthy = Arc::new(AtomicBool::new(true));
    let start = || failing_service(&store, &healthy).without_workers().start();
    let (here, there) = (start().await.expect("starts"), start().await.expect("starts"));
    let ctx = tenant(1);
    for n in 0..20 {
        submit(&here, &ctx, "mail", &format!("n{n}")).await;
    }
    let slow = BulkOptions::default().per_second(0.5);
    let action = BulkAction::Cancel { reason: "later".into() };
    let bulk = here.bulk(&ctx, &JobFilter::all(), action, slow).await.expect("begins");
    let seen = there.bulks(&ctx).await.expect("reads");
    assert_eq!(seen.iter().map(|seen| (seen.id, seen.state)).collect::<Vec<_>>(), [(bulk.id(), BulkState::Running)]);
    assert!(seen[0].node.is_some() && seen[0].node == bulk.progress().node, "it says where it runs");
    assert!(!there.bulk_stop(&tenant(2), bulk.id()).await.expect("reads"), "another tenant's is not stopped");
    assert!(there.bulk_stop(&ctx, bulk.id()).await.expect("stops"));
    let end = bulk.wait().await;
    assert_eq!(end.state, BulkState::Stopped, "{end:?}");
    until("the others to know its end", || async {
        there.bulk_progress(&ctx, bulk.id()).await.expect("reads").is_some_and(|seen| seen == end)
    })
    .await;
    assert_eq!(there.bulk_progress(&tenant(2), bulk.id()).await.expect("reads"), None);
    here.shutdown().await;
    there.shutdown().await;
}

/// BEY-6: a tenant that begins all the bulk actions it can leaves room for other tenants, and for the operator.
pub async fn a_tenant_has_a_share_of_the_bulk_actions(store: Arc<dyn Store>) {
    let healthy = Arc::new(AtomicBool::new(true));
    let jobs = failing_service(&store, &healthy).without_workers().start().await.expect("starts");
    let mut begun = Vec::new();
    for (n, may) in [(1, 3), (2, 1), (3, 1)] {
        let ctx = tenant(n);
        for _ in 0..20 {
            submit(&jobs, &ctx, "mail", "x").await;
        }
        let slow = || BulkOptions::default().per_second(0.01);
        let action = || BulkAction::Cancel { reason: String::new() };
        for at in 0..=may {
            match jobs.bulk(&ctx, &JobFilter::all(), action(), slow()).await {
                Ok(bulk) => begun.push(bulk),
                Err(error) => assert_eq!((error.code(), at), ("backpressure", may), "tenant {n}: {error}"),
            }
        }
    }
    assert_eq!(begun.len(), 5);
    let operator = jobs.operator(OperatorRight::assume());
    let action = BulkAction::Cancel { reason: String::new() };
    let by = SecurityContext::system();
    operator.bulk(&by, &JobFilter::all(), action, BulkOptions::default()).await.expect("has a reserve").wait().await;
    jobs.shutdown().await;
}

/// BEY-6: callers who go away while an action is begun take no place with them, and a replay that is waited for has a place
/// like any other action.
pub async fn a_bulk_action_whose_caller_goes_away_leaves_its_place(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let healthy = Arc::new(AtomicBool::new(true));
    let jobs = failing_service(&counted, &healthy).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    for _ in 0..20 {
        submit(&jobs, &ctx, "mail", "x").await;
    }
    let (all, slow) = (JobFilter::all(), || BulkOptions::default().per_second(0.01));
    let action = || BulkAction::Cancel { reason: String::new() };
    counting.hold_back("put_setting");
    for n in 1..=10 {
        let begin = jobs.bulk(&ctx, &all, action(), slow());
        tokio::select! {
            begun = begin => panic!("what it writes is held back: {begun:?}"),
            () = until("it to be written down", || async { counting.calls("put_setting") == n }) => {}
        }
    }
    counting.let_go("put_setting");
    let seen = jobs.bulks(&ctx).await.expect("reads");
    assert_eq!(seen.len(), 10);
    assert!(seen.iter().all(|bulk| bulk.state == BulkState::Failed), "{seen:?}");
    assert_eq!(seen[0].error.as_deref(), Some("its caller went away"));

    for _ in 0..3 {
        jobs.bulk(&ctx, &all, action(), slow()).await.expect("there is room");
    }
    let full = jobs.replay_many(&ctx, &all, Pace::default()).await.expect_err("three are the tenant's share");
    assert_eq!(full.code(), "backpressure");
    assert!(jobs.replay_many(&tenant(2), &all, Pace::default()).await.expect("has its own").replayed.is_empty());
    let others = jobs.bulks(&tenant(2)).await.expect("reads");
    assert_eq!(others.iter().map(|bulk| bulk.state).collect::<Vec<_>>(), [BulkState::Finished], "it is shown");
    jobs.shutdown().await;
}

/// BEY-2: put back to work, too many fail again, so the rest is left alone.
pub async fn a_bulk_replay_stops_when_too_many_fail_again(store: Arc<dyn Store>) {
    let healthy = Arc::new(AtomicBool::new(false));
    let jobs = failing_service(&store, &healthy).start().await.expect("starts");
    let ctx = tenant(1);
    for _ in 0..30 {
        submit(&jobs, &ctx, "mail", "smtp").await;
    }
    until_counted(&jobs, &ctx, Status::DeadLettered, 30).await;
    let careful = BulkOptions::default().per_second(50.0).stop_when_failing(0.5, 3);
    let end = jobs.bulk(&ctx, &filter("error:route"), BulkAction::Replay, careful).await.expect("begins").wait().await;
    assert_eq!(end.state, BulkState::Stopped, "{end:?}");
    assert!(end.failed_again >= 3 && (3..30).contains(&end.done), "it stopped long before the end: {end:?}");
    assert!(end.error.is_some_and(|why| why.contains("failed again")));
    jobs.shutdown().await;
}

/// BEY-6, SEC-1: an operator acts on every tenant's jobs, on each for its own tenant.
pub async fn an_operators_bulk_action_reaches_every_tenant(store: Arc<dyn Store>) {
    let healthy = Arc::new(AtomicBool::new(false));
    let jobs = failing_service(&store, &healthy).start().await.expect("starts");
    let tenants = [tenant(1), tenant(2), tenant(3)];
    for ctx in &tenants {
        submit(&jobs, ctx, "mail", "smtp").await;
        until_counted(&jobs, ctx, Status::DeadLettered, 1).await;
    }
    healthy.store(true, Ordering::SeqCst);
    let operator = jobs.operator(OperatorRight::assume());
    assert_eq!(operator.preview(&filter("status:dead"), 10).await.expect("counts").jobs, 3);
    let by = SecurityContext::system().with_user("ops");
    let two = [format!("tenant:{}", tenants[0].tenant), String::new()];
    for (text, done) in two.iter().zip([1, 2]) {
        let bulk = operator.bulk(&by, &filter(text), BulkAction::Replay, BulkOptions::default()).await.expect("begins");
        assert_eq!(bulk.wait().await.done, done);
    }
    for ctx in &tenants {
        until_counted(&jobs, ctx, Status::Succeeded, 1).await;
        let replays = audited(&jobs, ctx, "JOB_REPLAYED").await;
        assert_eq!(replays.len(), 1);
        assert_eq!(replays[0].0, "ops", "each tenant's log says who it was");
        assert!(
            jobs.bulks(ctx).await.expect("reads").is_empty() && audited(&jobs, ctx, "BULK_REPLAYED").await.is_empty()
        );
    }
    assert_eq!(operator.bulks().await.expect("reads").len(), 2);
    jobs.shutdown().await;
}
