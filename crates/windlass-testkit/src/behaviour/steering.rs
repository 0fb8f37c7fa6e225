//! Behaviours of watching and steering, and of time: OPS-1 to OPS-10, TIM-1, TIM-3, BEY-1, BEY-4.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use windlass_core::store::{AuditFilter, CancelReply, PauseTarget, Store};
use windlass_core::*;

use super::*;

fn nothing(_: (), _: JobContext, (): ()) -> std::future::Ready<Result<(), JobError>> {
    std::future::ready(Ok(()))
}

/// OPS-1.
pub async fn lists_filter_and_page(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).function("b", (), nothing).without_workers();
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let mut ids = Vec::new();
    for n in 0..10 {
        let handler = if n % 2 == 0 { "a" } else { "b" };
        let options = SubmitOptions::new().tag(format!("t{}", n % 3)).correlation_id(format!("c{n}"));
        ids.push(jobs.submit_named(&ctx, handler, &(), options).await.expect("accepted").id);
    }
    jobs.submit_named(&tenant(2), "a", &(), SubmitOptions::new()).await.expect("accepted");
    let list = |filter: JobFilter, page: Page| {
        let (jobs, ctx) = (jobs.clone(), ctx.clone());
        async move {
            let records = jobs.list(&ctx, &filter, page).await.expect("lists");
            records.into_iter().map(|record| record.id).collect::<Vec<_>>()
        }
    };
    let newest_first: Vec<JobId> = ids.iter().rev().copied().collect();
    assert_eq!(list(JobFilter::all(), Page::default()).await, newest_first);
    assert_eq!(list(JobFilter::all().handler("a"), Page::default()).await.len(), 5);
    assert_eq!(list(JobFilter::all().tag("t0"), Page::default()).await, [ids[9], ids[6], ids[3], ids[0]]);
    let mut by_correlation = JobFilter::all();
    by_correlation.correlation_id = Some("c4".into());
    assert_eq!(list(by_correlation, Page::default()).await, [ids[4]]);
    let first = list(JobFilter::all(), Page::first(4)).await;
    let second = list(JobFilter::all(), Page::first(4).after(first[3])).await;
    assert_eq!([first, second].concat(), newest_first[..8]);
    assert_eq!(list(JobFilter::all(), Page { offset: 8, ..Page::first(4) }).await, newest_first[8..]);
    assert!(list(JobFilter::all().status(Status::Running), Page::default()).await.is_empty());
    // One of the four may be the other tenant's.
    assert_eq!(jobs.tick(4).await.expect("runs"), 4);
    let succeeded = list(JobFilter::all().status(Status::Succeeded), Page::default()).await.len();
    let pending = list(JobFilter::all().status(Status::Pending), Page::default()).await.len();
    assert!((3..=4).contains(&succeeded) && succeeded + pending == 10, "{succeeded} succeeded, {pending} pending");
    jobs.shutdown().await;
}

/// OPS-2.
pub async fn progress_is_streamed_and_resumable(store: Arc<dyn Store>) {
    let (first, second) = (Door::closed(), Door::closed());
    let steps = |(first, second): (Door, Door), ctx: JobContext, (): ()| async move {
        ctx.report_progress(10.0, "one");
        first.pass().await;
        ctx.report_progress(60.0, "two");
        second.pass().await;
        Ok::<_, JobError>(())
    };
    let runner = service(&store).function("steps", (first.clone(), second.clone()), steps);
    let runner = runner.start().await.expect("starts");
    // Watched from another node, through the store, and from the same one.
    let other = service(&store).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let job = runner.submit_named(&ctx, "steps", &(), SubmitOptions::new()).await.expect("accepted").id;
    for watcher in [&runner, &other] {
        let mut views = watcher.watch(&ctx, job, 0).await.expect("watched");
        let seen = loop {
            let view = views.next().await.expect("the job runs");
            if let Some(progress) = view.progress {
                break progress;
            }
        };
        assert_eq!((seen.percent, seen.message.as_str()), (10.0, "one"));
    }
    let mut views = other.watch(&ctx, job, 0).await.expect("watched");
    let one = loop {
        if let Some(progress) = views.next().await.expect("the job runs").progress {
            break progress;
        }
    };
    let mut resumed = other.watch(&ctx, job, one.sequence).await.expect("watched");
    first.open();
    let two = loop {
        if let Some(progress) = resumed.next().await.expect("the job runs").progress {
            break progress;
        }
    };
    assert!(two.sequence > one.sequence, "in order");
    assert_eq!(two.message, "two", "a resumed watcher does not see what it has seen");
    second.open();
    let last = resumed.collect::<Vec<_>>().await.pop().expect("the end is seen");
    assert_eq!(last.status, Status::Succeeded);
    assert!(runner.watch(&tenant(2), job, 0).await.is_err(), "other tenants see nothing");
    runner.shutdown().await;
    other.shutdown().await;
}

/// OPS-3.
pub async fn a_waiting_job_is_canceled_at_once(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let now = jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    let later = SubmitOptions::new().delay(Duration::from_secs(60));
    let later = jobs.submit_named(&ctx, "a", &(), later).await.expect("accepted").id;
    for id in [now, later] {
        assert_eq!(jobs.cancel(&tenant(2), id, "not mine").await.expect_err("hidden").code(), "job_not_found");
        assert_eq!(jobs.cancel(&ctx, id, "changed my mind").await.expect("canceled"), CancelReply::Canceled);
        let again = jobs.cancel(&ctx, id, "again").await.expect("twice is the same as once");
        assert_eq!(again, CancelReply::AlreadyFinished(Status::Canceled));
        let record = jobs.get(&ctx, id).await.expect("kept");
        assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("changed my mind")));
    }
    assert_eq!(jobs.tick(10).await.expect("runs"), 0);
    let done = jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.tick(1).await.expect("runs");
    assert_eq!(jobs.cancel(&ctx, done, "late").await.expect_err("over").code(), "already_finished");
    jobs.shutdown().await;
}

/// OPS-3.
pub async fn a_running_job_is_canceled_cooperatively_then_by_force(store: Arc<dyn Store>) {
    let door = Door::closed();
    let polite = |door: Door, ctx: JobContext, (): ()| async move {
        door.waiting.add();
        ctx.cancellation().cancelled().await;
        // Returns a result although it was canceled: it must not count.
        Ok::<_, JobError>("done anyway")
    };
    let stubborn = |door: Door, _, (): ()| async move {
        door.pass().await;
        Ok::<_, JobError>(())
    };
    let jobs = service(&store).function("polite", door.clone(), polite).function("stubborn", door.clone(), stubborn);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let mut ids = Vec::new();
    for handler in ["polite", "stubborn"] {
        ids.push(jobs.submit_named(&ctx, handler, &(), SubmitOptions::new()).await.expect("accepted").id);
    }
    until("both to run", || async { door.waiting.get() == 2 }).await;
    for id in ids {
        assert_eq!(jobs.cancel(&ctx, id, "stop").await.expect("asked"), CancelReply::Requested);
        assert_eq!(jobs.wait(&ctx, id, SOON).await.expect("ends").status, Status::Canceled);
        assert_eq!(jobs.get(&ctx, id).await.expect("kept").status, Status::Canceled);
    }
    jobs.shutdown().await;
}

/// OPS-3.
pub async fn a_cancel_from_another_node_reaches_the_handler(store: Arc<dyn Store>) {
    let door = Door::closed();
    let polite = |door: Door, ctx: JobContext, (): ()| async move {
        door.waiting.add();
        ctx.cancellation().cancelled().await;
        Ok::<_, JobError>(())
    };
    let runner = service(&store).function("polite", door.clone(), polite).start().await.expect("starts");
    let other = service(&store).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let job = runner.submit_named(&ctx, "polite", &(), SubmitOptions::new()).await.expect("accepted").id;
    until("it to run", || async { door.waiting.get() == 1 }).await;
    assert_eq!(other.cancel(&ctx, job, "from afar").await.expect("asked"), CancelReply::Requested);
    assert_eq!(other.wait(&ctx, job, SOON).await.expect("ends").status, Status::Canceled);
    runner.shutdown().await;
    other.shutdown().await;
}

/// OPS-4.
pub async fn a_pause_holds_handler_tenant_or_everything(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).function("b", (), nothing).start().await.expect("starts");
    let (one, two) = (tenant(1), tenant(2));
    let targets = [PauseTarget::Handler("a".into()), PauseTarget::Tenant(one.tenant), PauseTarget::All];
    for target in targets {
        jobs.pause(&one, &target, "maintenance").await.expect("paused");
        let held = jobs.submit_named(&one, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
        let free = match &target {
            PauseTarget::Handler(_) => Some(("b", &one)),
            PauseTarget::Tenant(_) => Some(("a", &two)),
            _ => None,
        };
        if let Some((handler, ctx)) = free {
            let free = jobs.submit_named(ctx, handler, &(), SubmitOptions::new()).await.expect("accepted").id;
            jobs.wait_for::<()>(ctx, free, SOON).await.expect("others go on");
        }
        until("the pause to be named as the reason", || async {
            matches!(jobs.why(&one, held).await, Ok(Why::Paused { pause }) if pause.target == target)
        })
        .await;
        let status = jobs.status(&one, held).await.expect("kept");
        assert!(matches!(status, Status::Pending | Status::Blocked), "{status} while {} is paused", target.name());
        let pauses = jobs.pauses(&one).await.expect("reads");
        assert_eq!((pauses.len(), pauses[0].by.as_str(), pauses[0].reason.as_str()), (1, "user-1", "maintenance"));
        assert!(jobs.resume(&one, &target).await.expect("resumed"));
        assert!(!jobs.resume(&one, &target).await.expect("nothing to resume"));
        jobs.wait_for::<()>(&one, held, SOON).await.expect("runs once resumed");
    }
    // A pause that another node sets is in force here within a second.
    let other = service(&store).without_workers().start().await.expect("starts");
    other.pause(&one, &PauseTarget::All, "").await.expect("paused");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held = other.submit_named(&one, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(other.status(&one, held).await.expect("kept"), Status::Pending);
    other.resume(&one, &PauseTarget::All).await.expect("resumed");
    other.wait_for::<()>(&one, held, SOON).await.expect("runs once resumed");
    jobs.shutdown().await;
    other.shutdown().await;
}

/// OPS-5.
pub async fn operator_actions_are_in_the_audit_log(store: Arc<dyn Store>) {
    let fail = |_: (), _, (): ()| async { Err::<(), _>(JobError::retryable("no")) };
    let options = HandlerOptions::new().retry(RetryPolicy::never());
    let jobs = service(&store).function_with("fail", options, (), fail).function("ok", (), nothing);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let failed = jobs.submit_named(&ctx, "fail", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait(&ctx, failed, SOON).await.expect("ends");
    let ok = jobs.submit_named(&ctx, "ok", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait(&ctx, ok, SOON).await.expect("ends");
    let later = SubmitOptions::new().delay(Duration::from_secs(60));
    let later = jobs.submit_named(&ctx, "ok", &(), later).await.expect("accepted").id;
    jobs.cancel(&ctx, later, "no need").await.expect("canceled");
    jobs.replay(&ctx, failed).await.expect("replayed");
    jobs.wait(&ctx, failed, SOON).await.expect("ends");
    jobs.purge(&ctx, ok).await.expect("purged");
    jobs.audit(&ctx, "JOB_SUBMITTED", &later.to_string(), None).await.expect("written");
    let log = jobs.audit_log(&ctx, &AuditFilter::default()).await.expect("reads");
    for (action, actor) in [
        ("JOB_EXHAUSTED_RETRIES", "windlass"),
        ("JOB_CANCELED", "user-1"),
        ("JOB_REPLAYED", "user-1"),
        ("JOB_PURGED", "user-1"),
        ("JOB_SUBMITTED", "user-1"),
    ] {
        let entry = log.iter().find(|entry| entry.action == action);
        assert_eq!(entry.map(|entry| entry.actor.as_str()), Some(actor), "{action} in {log:?}");
    }
    assert!(log.is_sorted_by(|newer, older| newer.at >= older.at), "newest first");
    assert!(jobs.audit_log(&tenant(2), &AuditFilter::default()).await.expect("reads").is_empty());
    jobs.pause(&ctx, &PauseTarget::Handler("ok".into()), "").await.expect("paused");
    let all = jobs.operator(OperatorRight::assume()).audit_log(&AuditFilter::default()).await.expect("reads");
    assert!(all.iter().any(|entry| entry.action == "PAUSED" && entry.target == "handler:ok"));
    jobs.shutdown().await;
}

/// OPS-7.
pub async fn ended_jobs_are_removed_after_their_retention(store: Arc<dyn Store>) {
    let short = HandlerOptions::new().retention(Duration::from_millis(150));
    let jobs = service(&store).function_with("short", short, (), nothing).function("long", (), nothing);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let short = jobs.submit_named(&ctx, "short", &(), SubmitOptions::new()).await.expect("accepted").id;
    let long = jobs.submit_named(&ctx, "long", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait(&ctx, long, SOON).await.expect("ends");
    until("the short-lived one to go", || async { jobs.get(&ctx, short).await.is_err() }).await;
    assert_eq!(jobs.status(&ctx, long).await.expect("kept"), Status::Succeeded);
    jobs.shutdown().await;
    let floored = service(&store).function("kept", (), nothing);
    let floored = floored.configure(|config| config.retention_floor = Duration::from_secs(24 * 3600));
    let floored = floored.start().await.expect("starts");
    let options = SubmitOptions::new().retention(Duration::from_millis(1));
    let job = floored.submit_named(&ctx, "kept", &(), options).await.expect("accepted").id;
    floored.wait(&ctx, job, SOON).await.expect("ends");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(floored.status(&ctx, job).await.expect("the floor holds"), Status::Succeeded);
    floored.shutdown().await;
}

/// OPS-8.
pub async fn subscribers_see_status_events_of_their_tenant(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).start().await.expect("starts");
    let (one, two) = (tenant(1), tenant(2));
    let mut mine = jobs.events(&one);
    let mut all = jobs.operator(OperatorRight::assume()).events();
    let theirs = jobs.submit_named(&two, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait(&two, theirs, SOON).await.expect("ends");
    let own = jobs.submit_named(&one, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    let seen = [mine.next().await.expect("an event"), mine.next().await.expect("an event")];
    assert_eq!(
        seen.each_ref().map(|event| (event.job, event.status)),
        [(own, Status::Running), (own, Status::Succeeded)]
    );
    assert_eq!((seen[1].handler.as_str(), seen[1].tenant), ("a", one.tenant));
    assert_eq!(all.next().await.expect("an event").job, theirs);
    jobs.shutdown().await;
}

/// OPS-9.
pub async fn tick_runs_at_most_n_jobs_in_the_callers_process(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    for _ in 0..5 {
        jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted");
    }
    assert_eq!(jobs.tick(3).await.expect("runs"), 3);
    assert_eq!(jobs.counts(&ctx).await.expect("counts").get(Status::Succeeded), 3);
    assert_eq!(jobs.tick(3).await.expect("runs"), 2);
    assert_eq!(jobs.tick(3).await.expect("runs"), 0);
    jobs.shutdown().await;
}

/// OPS-9: what a tick has claimed runs to its end, also where whoever asked for it has gone.
pub async fn a_tick_that_is_dropped_leaves_no_job_behind(store: Arc<dyn Store>) {
    let door = Door::closed();
    let waits = |door: Door, _: JobContext, (): ()| async move {
        door.pass().await;
        Ok(())
    };
    let jobs = service(&store).function("waits", door.clone(), waits).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let id = jobs.submit_named(&ctx, "waits", &(), SubmitOptions::new()).await.expect("accepted").id;
    let tick = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.tick(1).await }
    });
    until_status(&jobs, &ctx, id, Status::Running).await;
    tick.abort();
    assert!(tick.await.expect_err("dropped").is_cancelled());
    door.open();
    until_status(&jobs, &ctx, id, Status::Succeeded).await;
    jobs.shutdown().await;
}

/// OPS-10.
pub async fn jobs_can_be_checked_out_and_marked_by_hand(store: Arc<dyn Store>) {
    let jobs = service(&store).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let mut ids = Vec::new();
    for n in 0..3 {
        let options = SubmitOptions::new().retry(RetryPolicy::never());
        ids.push(jobs.submit_named(&ctx, "outside", &n, options).await.expect("accepted").id);
    }
    let mut taken = jobs.checkout(&[DEFAULT_QUEUE], 2).await.expect("claims");
    assert_eq!(taken.iter().map(|job| job.context().job_id()).collect::<Vec<_>>(), ids[..2]);
    assert_eq!(taken[1].input().as_str(), "1");
    let (second, first) = (taken.pop().expect("two"), taken.pop().expect("two"));
    jobs.mark_success(first, &"fine").await.expect("saved");
    jobs.mark_failure(second, JobError::retryable("broken")).await.expect("saved");
    assert_eq!(jobs.wait_for::<String>(&ctx, ids[0], SOON).await.expect("succeeded"), "fine");
    assert_eq!(jobs.status(&ctx, ids[1]).await.expect("kept"), Status::DeadLettered);
    let third = jobs.checkout(&[DEFAULT_QUEUE], 5).await.expect("claims").pop().expect("one is left");
    jobs.cancel(&ctx, ids[2], "stop").await.expect("asked");
    let _ = jobs.mark_success(third, &"too late").await;
    assert_eq!(jobs.status(&ctx, ids[2]).await.expect("kept"), Status::Canceled, "no completion after a cancel");
    jobs.shutdown().await;
}

/// TIM-1, TIM-3.
pub async fn a_delayed_job_starts_when_it_is_due(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).start().await.expect("starts");
    let ctx = tenant(1);
    let delay = Duration::from_millis(400);
    let begun = Instant::now();
    let after = SubmitOptions::new().delay(delay);
    let after = jobs.submit_named(&ctx, "a", &(), after).await.expect("accepted").id;
    let at = SubmitOptions::new().run_at(jobs.now() + delay);
    let at = jobs.submit_named(&ctx, "a", &(), at).await.expect("accepted").id;
    assert_eq!(jobs.status(&ctx, after).await.expect("kept"), Status::Scheduled);
    assert!(matches!(jobs.why(&ctx, at).await, Ok(Why::NotDue { at: Some(_), retry: false })));
    for id in [after, at] {
        jobs.wait(&ctx, id, SOON).await.expect("ends");
        let record = jobs.get(&ctx, id).await.expect("kept");
        let started = record.started_at.expect("started");
        let due = record.run_at.expect("was delayed");
        assert!(started + Duration::from_millis(5) >= due, "not early: due {due}, started {started}");
    }
    assert!(begun.elapsed() >= delay);
    assert!(begun.elapsed() < delay + Duration::from_secs(3), "not late: {:?}", begun.elapsed());
    jobs.shutdown().await;
}

/// BEY-1.
pub async fn why_names_what_a_job_waits_for(store: Arc<dyn Store>) {
    let door = Door::closed();
    let hold = |door: Door, _, (): ()| async move {
        door.pass().await;
        Ok::<_, JobError>(())
    };
    let jobs = service(&store).function("hold", door.clone(), hold).remote_handler("elsewhere").concurrency(1);
    let jobs = jobs.lease(Duration::from_millis(900)).start().await.expect("starts");
    let ctx = tenant(1);
    let submit = |handler: &'static str, options: SubmitOptions| {
        let (jobs, ctx) = (jobs.clone(), ctx.clone());
        async move { jobs.submit_named(&ctx, handler, &(), options).await.expect("accepted").id }
    };
    let keyed = || SubmitOptions::new().ordering_key("k");
    let holder = submit("hold", keyed()).await;
    until("the holder to run", || async { door.waiting.get() == 1 }).await;
    let behind = submit("hold", keyed()).await;
    let full = submit("hold", SubmitOptions::new()).await;
    let retry = submit("hold", SubmitOptions::new().delay(Duration::from_secs(60))).await;
    let nobody = submit("elsewhere", SubmitOptions::new()).await;
    let why = |id| {
        let (jobs, ctx) = (jobs.clone(), ctx.clone());
        async move { jobs.why(&ctx, id).await.expect("explained") }
    };
    assert!(matches!(why(holder).await, Why::Running { cancel_requested: false, .. }));
    assert_eq!(why(behind).await, Why::OrderingKeyHeld { key: "k".into(), by: Some(holder) });
    assert!(matches!(why(retry).await, Why::NotDue { at: Some(_), retry: false }));
    assert_eq!(why(nobody).await, Why::NoNodeHasHandler { handler: "elsewhere".into() });
    // The node's own count of running jobs arrives with its next heartbeat.
    until("the node to be known as full", || async { matches!(why(full).await, Why::NodesAreFull { .. }) }).await;
    assert!(why(full).await.to_string().contains("full (1 of 1 slots)"));
    assert_eq!(jobs.why(&tenant(2), full).await.expect_err("hidden").code(), "job_not_found");
    door.open();
    jobs.wait(&ctx, full, SOON).await.expect("ends");
    assert!(matches!(why(full).await, Why::Finished { status: Status::Succeeded, .. }));
    jobs.shutdown().await;
}

/// BEY-4.
pub async fn expired_and_overdue_jobs_do_not_start(store: Arc<dyn Store>) {
    let ran = Counter::default();
    let count = |ran: Counter, _, (): ()| async move {
        ran.add();
        Err::<(), _>(JobError::retryable("again"))
    };
    let options = HandlerOptions::new().retry(RetryPolicy::fixed(100, Duration::from_millis(20)));
    let jobs = service(&store).function_with("count", options, ran.clone(), count).start().await.expect("starts");
    let ctx = tenant(1);
    jobs.pause(&ctx, &PauseTarget::All, "").await.expect("paused");
    let soon = jobs.now() + Duration::from_millis(200);
    let expired = SubmitOptions::new().expires_at(soon);
    let expired = jobs.submit_named(&ctx, "count", &(), expired).await.expect("accepted").id;
    until_status(&jobs, &ctx, expired, Status::Canceled).await;
    assert_eq!(jobs.get(&ctx, expired).await.expect("kept").reason.as_deref(), Some("expired"));
    assert_eq!(ran.get(), 0, "it never started");
    jobs.resume(&ctx, &PauseTarget::All).await.expect("resumed");
    let deadline = SubmitOptions::new().deadline_at(jobs.now() + Duration::from_millis(300));
    let overdue = jobs.submit_named(&ctx, "count", &(), deadline).await.expect("accepted").id;
    let view = jobs.wait(&ctx, overdue, SOON).await.expect("ends");
    assert_eq!(view.status, Status::DeadLettered, "a deadline over all attempts");
    assert!((1..100).contains(&ran.get()), "{} attempts", ran.get());
    jobs.shutdown().await;
}
