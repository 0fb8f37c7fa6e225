//! Behaviours of watching and steering, and of time: OPS-1 to OPS-10, TIM-1, TIM-3, BEY-1, BEY-4.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use windlass_core::store::{AuditEntry, AuditFilter, CancelReply, PauseTarget, Store};
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
    assert_eq!(tick(&jobs, 4).await.expect("runs"), 4);
    let succeeded = list(JobFilter::all().status(Status::Succeeded), Page::default()).await.len();
    let pending = list(JobFilter::all().status(Status::Pending), Page::default()).await.len();
    assert!((3..=4).contains(&succeeded) && succeeded + pending == 10, "{succeeded} succeeded, {pending} pending");
    jobs.shutdown().await;
}

/// OPS-1: while the store is asked, whoever comes waits for the same next query.
pub async fn concurrent_look_ups_share_one_query(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let jobs = service(&counted).function("a", (), nothing).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let submit = || async { jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted").id };
    let ids = futures_util::future::join_all((0..300).map(|_| submit())).await;
    let before = counting.calls("get");
    counting.hold_back("get");
    let mut asked: Vec<_> = ids.iter().map(|id| Box::pin(jobs.get(&ctx, *id))).collect();
    begin_all(&mut asked).await;
    until("the first of them to reach the store", || async { counting.calls("get") > before }).await;
    counting.let_go("get");
    for (id, record) in ids.iter().zip(futures_util::future::join_all(asked).await) {
        assert_eq!(record.expect("kept").id, *id, "each caller has its own job");
    }
    let queries = counting.calls("get") - before;
    assert!(queries <= 2, "{queries} queries for 300 look-ups");
    jobs.shutdown().await;
}

/// OPS-2.
pub async fn progress_is_streamed_and_resumable(store: Arc<dyn Store>) {
    let begun = store.now().await.expect("the store's time");
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
        assert!(seen.updated_at.since(begun) < Duration::from_secs(60), "with when it was reported: {seen:?}");
        assert!(seen.updated_at + Duration::from_secs(1) > begun, "{seen:?}");
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
    assert_eq!(tick(&jobs, 10).await.expect("runs"), 0);
    let done = jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    tick(&jobs, 1).await.expect("runs");
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

/// OPS-4, SEC-1: a caller pauses and resumes its own tenant; what holds the jobs of others takes the operator's right.
pub async fn a_tenant_pauses_itself_and_nobody_else(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).start().await.expect("starts");
    let (one, two) = (tenant(1), tenant(2));
    let own = PauseTarget::Tenant(one.tenant);
    let others = [PauseTarget::All, PauseTarget::Handler("a".into()), PauseTarget::Tenant(two.tenant)];
    for target in &others {
        let paused = jobs.pause(&one, target, "mine").await.expect_err("refused");
        assert_eq!(paused.code(), "forbidden", "{}", target.name());
        jobs.operator(OperatorRight::assume()).pause(&two, target, "upgrade").await.expect("paused");
        let resumed = jobs.resume(&one, target).await.expect_err("refused");
        assert_eq!(resumed.code(), "forbidden", "{}", target.name());
    }
    assert_eq!(jobs.operator(OperatorRight::assume()).pauses().await.expect("reads").len(), 3, "all are in force");
    jobs.pause(&one, &own, "mine").await.expect("paused");
    assert!(jobs.resume(&one, &own).await.expect("resumed"));
    let nul = PauseTarget::Handler("a\0b".into());
    let bad = jobs.operator(OperatorRight::assume()).resume(&one, &nul).await.expect_err("refused");
    assert_eq!(bad.code(), "invalid_input");
    jobs.shutdown().await;
}

/// SEC-1: within a tenant's scope there is that tenant only; within the scope of all, a job is found with its tenant.
pub async fn a_scope_reaches_its_own_jobs_only(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).start().await.expect("starts");
    let (one, two) = (tenant(1), tenant(2));
    let id = jobs.submit_named(&one, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait(&one, id, SOON).await.expect("ends");
    let (all, theirs) = (jobs.operator(OperatorRight::assume()), jobs.within(two.scope()));
    assert_eq!(all.input(id).await.expect("reads").as_str(), "null");
    assert!(!all.history(id).await.expect("reads").is_empty());
    let caller = all.caller_of(&two, id).await.expect("found");
    assert_eq!((caller.tenant, caller.actor()), (one.tenant, "user-2"), "the job's tenant, and who acts");
    let hidden = [
        theirs.get(id).await.map(drop),
        theirs.input(id).await.map(drop),
        theirs.history(id).await.map(drop),
        theirs.logs(id, 0).await.map(drop),
        theirs.why(id).await.map(drop),
        theirs.wait(id, SOON).await.map(drop),
    ];
    for refused in hidden {
        assert_eq!(refused.expect_err("not theirs").code(), "job_not_found");
    }
    let quota = Quota::default();
    for refused in [theirs.set_quota(&two, None, &quota).await, theirs.quotas().await.map(drop)] {
        assert_eq!(refused.expect_err("of the whole installation").code(), "forbidden");
    }
    jobs.shutdown().await;
}

/// OPS-5: what a person submits or looks at by hand is in the audit log, in the job's tenant, whoever acts.
pub async fn what_people_do_by_hand_is_in_the_audit_log(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).start().await.expect("starts");
    let (one, two) = (tenant(1), tenant(2));
    let keyed = || SubmitOptions::new().idempotency_key("k");
    let id = jobs.submit_by_hand(&one, "a", &(), keyed()).await.expect("accepted").id;
    assert!(jobs.submit_by_hand(&one, "a", &(), keyed()).await.expect("accepted").duplicate, "and leaves no entry");
    let inputs = ["null", "null"].map(|text| Payload::check("input", text, 100)).to_vec();
    let many = jobs.submit_many_by_hand(&one, "a", inputs, SubmitOptions::new()).await.expect("accepted");
    let batch = jobs.get(&one, many[0].id).await.expect("kept").batch.expect("they are one batch").0;
    let all = jobs.operator(OperatorRight::assume());
    assert_eq!(all.read_input(&two, id).await.expect("reads").as_str(), "null");
    assert!(jobs.read_input(&two, id).await.is_err(), "not theirs, and no entry");
    let log = jobs.audit_log(&one, &AuditFilter::default()).await.expect("reads");
    let entries: Vec<(&str, &str, String)> =
        log.iter().rev().map(|entry| (entry.action.as_str(), entry.actor.as_str(), entry.target.clone())).collect();
    let expected = [
        ("JOB_SUBMITTED", "user-1", id.to_string()),
        ("JOB_SUBMITTED", "user-1", format!("batch:{batch}")),
        ("INPUT_READ", "user-2", id.to_string()),
    ];
    assert_eq!(entries, expected);
    assert!(jobs.audit_log(&two, &AuditFilter::default()).await.expect("reads").is_empty());
    jobs.shutdown().await;
}

/// OPS-4: a handler is paused that somebody has or had, or that a job of any tenant is for. Any other name is refused and
/// nothing is written, unless the pause is forced.
pub async fn a_handler_that_nobody_knows_is_paused_only_by_force(store: Arc<dyn Store>) {
    let gone = service(&store).function("gone", (), nothing).start().await.expect("starts");
    gone.shutdown().await;
    let jobs = service(&store).function("here", (), nothing).remote_handler("elsewhere").without_workers();
    let jobs = jobs.start().await.expect("starts");
    let asks = service(&store).without_workers().start().await.expect("starts");
    let (ctx, operator) = (tenant(1), asks.operator(OperatorRight::assume()));
    let pause = async |handler: &str| operator.pause(&ctx, &PauseTarget::Handler(handler.into()), "").await;
    for unknown in ["heer", "elsewhere", "Gone"] {
        let refused = pause(unknown).await.expect_err("refused");
        assert_eq!(refused.code(), "handler_not_found", "{unknown}");
        assert!(matches!(&refused, Error::HandlerUnknown { handler, .. } if handler == unknown), "{refused}");
    }
    assert!(operator.pauses().await.expect("reads").is_empty());
    assert!(operator.audit_log(&AuditFilter::default()).await.expect("reads").iter().all(|e| e.action != "PAUSED"));
    jobs.submit_named(&tenant(2), "elsewhere", &(), SubmitOptions::new()).await.expect("accepted");
    for known in ["elsewhere", "gone"] {
        pause(known).await.expect("paused");
    }
    operator.force_pause(&ctx, &PauseTarget::Handler("heer".into()), "").await.expect("paused");
    assert_eq!(operator.pauses().await.expect("reads").len(), 3);
    jobs.shutdown().await;
    asks.shutdown().await;
}

/// OPS-4.
pub async fn a_pause_holds_handler_tenant_or_everything(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).function("b", (), nothing).start().await.expect("starts");
    let (one, two) = (tenant(1), tenant(2));
    let operator = jobs.operator(OperatorRight::assume());
    let targets = [PauseTarget::Handler("a".into()), PauseTarget::Tenant(one.tenant), PauseTarget::All];
    for target in targets {
        operator.pause(&one, &target, "maintenance").await.expect("paused");
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
        assert!(operator.resume(&one, &target).await.expect("resumed"));
        assert!(!operator.resume(&one, &target).await.expect("nothing to resume"));
        jobs.wait_for::<()>(&one, held, SOON).await.expect("runs once resumed");
    }
    // A pause that another node sets is in force here within a second.
    let other = service(&store).without_workers().start().await.expect("starts");
    let afar = other.operator(OperatorRight::assume());
    afar.pause(&one, &PauseTarget::All, "").await.expect("paused");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held = other.submit_named(&one, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(other.status(&one, held).await.expect("kept"), Status::Pending);
    afar.resume(&one, &PauseTarget::All).await.expect("resumed");
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
    let log = jobs.audit_log(&ctx, &AuditFilter::default()).await.expect("reads");
    for (action, actor) in [
        ("JOB_EXHAUSTED_RETRIES", "windlass"),
        ("JOB_CANCELED", "user-1"),
        ("JOB_REPLAYED", "user-1"),
        ("JOB_PURGED", "user-1"),
    ] {
        let entry = log.iter().find(|entry| entry.action == action);
        assert_eq!(entry.map(|entry| entry.actor.as_str()), Some(actor), "{action} in {log:?}");
    }
    assert!(log.is_sorted_by(|newer, older| newer.at >= older.at), "newest first");
    assert!(jobs.audit_log(&tenant(2), &AuditFilter::default()).await.expect("reads").is_empty());
    let operator = jobs.operator(OperatorRight::assume());
    operator.pause(&ctx, &PauseTarget::Handler("ok".into()), "").await.expect("paused");
    let all = operator.audit_log(&AuditFilter::default()).await.expect("reads");
    let paused = all.iter().find(|entry| entry.action == "PAUSED" && entry.target == "handler:ok");
    assert_eq!(paused.map(|entry| entry.actor.as_str()), Some("user-1"), "{all:?}");
    jobs.shutdown().await;
}

/// BEY-4: a deadline ends an attempt when it has come, and not before.
pub async fn an_attempt_runs_until_its_deadline(store: Arc<dyn Store>) {
    let run = |_: (), ctx: JobContext, ms: u64| async move {
        tokio::select! {
            () = ctx.cancellation().cancelled() => Err(JobError::retryable("stopped")),
            () = tokio::time::sleep(Duration::from_millis(ms)) => Ok(()),
        }
    };
    let options = HandlerOptions::new().retry(RetryPolicy::never());
    let jobs = service(&store).function_with("run", options, (), run).start().await.expect("starts");
    let ctx = tenant(1);
    let deadline = || SubmitOptions::new().deadline_at(jobs.now() + Duration::from_secs(4));
    let early = jobs.submit_named(&ctx, "run", &3_200, deadline()).await.expect("accepted").id;
    let late = jobs.submit_named(&ctx, "run", &60_000, deadline()).await.expect("accepted").id;
    jobs.wait_for::<()>(&ctx, early, SOON).await.expect("it ends before the deadline, and is let to");
    let view = jobs.wait(&ctx, late, SOON).await.expect("ends");
    assert_eq!((view.status, view.error.map(|error| error.code)), (Status::DeadLettered, Some("job_timeout".into())));
    jobs.shutdown().await;
}

/// OPS-7: also jobs that never ran go by their handler, canceled or expired while they wait.
pub async fn ended_jobs_are_removed_after_their_retention(store: Arc<dyn Store>) {
    let short = HandlerOptions::new().retention(Duration::from_millis(150));
    let jobs = service(&store).function_with("short", short, (), nothing).function("long", (), nothing);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let short = jobs.submit_named(&ctx, "short", &(), SubmitOptions::new()).await.expect("accepted").id;
    let long = jobs.submit_named(&ctx, "long", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait(&ctx, long, SOON).await.expect("ends");
    let waits = SubmitOptions::new().delay(Duration::from_secs(3600));
    let canceled = jobs.submit_named(&ctx, "short", &(), waits.clone()).await.expect("accepted").id;
    jobs.cancel(&ctx, canceled, "not needed").await.expect("canceled");
    let soon = jobs.now() + Duration::from_millis(50);
    let expired = jobs.submit_named(&ctx, "short", &(), waits.expires_at(soon)).await.expect("accepted").id;
    for (what, job) in [("short-lived", short), ("canceled", canceled), ("expired", expired)] {
        until(&format!("the {what} one to go"), || async { jobs.get(&ctx, job).await.is_err() }).await;
    }
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

/// OPS-13: dead letters are kept for good, unless the service or their handler says how long. What is removed then is counted
/// with the other jobs that were cleaned.
pub async fn dead_letters_live_as_long_as_handler_or_service_say(store: Arc<dyn Store>) {
    async fn refuse(_: (), _: JobContext, _: ()) -> Result<(), JobError> {
        Err(JobError::terminal("no", "never"))
    }
    let brief = Duration::from_millis(150);
    let own = HandlerOptions::new().retention(brief).dead_letter_retention(Duration::from_secs(3600));
    let ctx = tenant(1);
    let become_letter = async |jobs: &JobService, handler: &str| {
        let id = jobs.submit_named(&ctx, handler, &(), SubmitOptions::new()).await.expect("accepted").id;
        assert_eq!(jobs.wait(&ctx, id, SOON).await.expect("ends").status, Status::DeadLettered);
        id
    };
    let jobs = service(&store).function_with("plain", HandlerOptions::new().retention(brief), (), refuse);
    let jobs = jobs.start().await.expect("starts");
    let kept = become_letter(&jobs, "plain").await;
    jobs.shutdown().await;

    let jobs = service(&store).function("plain", (), refuse).function_with("own", own, (), refuse);
    let jobs = jobs.configure(|config| config.dead_letter_retention = Some(brief)).start().await.expect("starts");
    let (own, gone) = (become_letter(&jobs, "own").await, become_letter(&jobs, "plain").await);
    until("the short-lived one to go", || async { jobs.get(&ctx, gone).await.is_err() }).await;
    for letter in [kept, own] {
        assert_eq!(jobs.status(&ctx, letter).await.expect("kept"), Status::DeadLettered);
    }
    jobs.shutdown().await;
    // A service cleans when it starts, and then now and then.
    let jobs = service(&store).start().await.expect("starts");
    until("it to be cleaned", || async { jobs.total_cleaned() == 1 }).await;
    jobs.shutdown().await;
}

/// OPS-11: a handler that asks for it leaves an entry of each success in the audit log, also when the job is gone; one that
/// does not ask leaves none.
pub async fn successes_stay_in_the_audit_log_where_a_handler_asks(store: Arc<dyn Store>) {
    let brief = HandlerOptions::new().retention(Duration::from_millis(150));
    let jobs = service(&store).function_with("asked", brief.clone().audit_success(true), (), nothing);
    let jobs = jobs.function_with("plain", brief, (), nothing).start().await.expect("starts");
    let ctx = tenant(1);
    let mut ran = Vec::new();
    for handler in ["asked", "plain"] {
        let id = jobs.submit_named(&ctx, handler, &(), SubmitOptions::new()).await.expect("accepted").id;
        jobs.wait(&ctx, id, SOON).await.expect("ends");
        ran.push(id);
    }
    for id in &ran {
        until("it to go", || async { jobs.get(&ctx, *id).await.is_err() }).await;
    }
    let mut filter = AuditFilter::default();
    filter.action = Some(AuditEntry::SUCCEEDED.to_owned());
    let log = jobs.audit_log(&ctx, &filter).await.expect("reads");
    assert_eq!(log.iter().map(|entry| entry.target.clone()).collect::<Vec<_>>(), [ran[0].to_string()]);
    jobs.shutdown().await;
}

/// OPS-11: what a handler did outside stays in its tenant's audit log, and it cannot say what only the engine may.
pub async fn a_handler_writes_entries_of_its_own_into_the_audit_log(store: Arc<dyn Store>) {
    async fn send(_: (), ctx: JobContext, action: String) -> Result<(), JobError> {
        Ok(ctx.audit(&action, "to one recipient").await?)
    }
    let never = HandlerOptions::new().retry(RetryPolicy::never());
    let jobs = service(&store).function_with("send", never, (), send).start().await.expect("starts");
    let (one, two) = (tenant(1), tenant(2));
    let submit = async |action: &str| {
        let id = jobs.submit_named(&one, "send", &action, SubmitOptions::new()).await.expect("accepted").id;
        (id, jobs.wait(&one, id, SOON).await.expect("ends").status)
    };
    let (id, status) = submit("EMAIL_SENT").await;
    assert_eq!(status, Status::Succeeded);
    assert_eq!(submit("JOB_SUCCEEDED").await.1, Status::DeadLettered);
    let mut filter = AuditFilter::default();
    filter.action = Some("EMAIL_SENT".to_owned());
    let log = jobs.audit_log(&one, &filter).await.expect("reads");
    let seen: Vec<_> = log.iter().map(|entry| (entry.target.clone(), entry.tenant, entry.detail.as_deref())).collect();
    assert_eq!(seen, [(id.to_string(), Some(one.tenant), Some("to one recipient"))]);
    assert!(jobs.audit_log(&two, &filter).await.expect("reads").is_empty());
    jobs.shutdown().await;
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
    assert_eq!(tick(&jobs, 3).await.expect("runs"), 3);
    assert_eq!(jobs.counts(&ctx).await.expect("counts").get(Status::Succeeded), 3);
    assert_eq!(tick(&jobs, 3).await.expect("runs"), 2);
    assert_eq!(tick(&jobs, 3).await.expect("runs"), 0);
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
        async move { tick(&jobs, 1).await }
    });
    until_status(&jobs, &ctx, id, Status::Running).await;
    tick.abort();
    assert!(tick.await.expect_err("dropped").is_cancelled());
    door.open();
    until_status(&jobs, &ctx, id, Status::Succeeded).await;
    jobs.shutdown().await;
}

/// OPS-9, SEC-1.
pub async fn a_tick_runs_the_callers_jobs_only(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).without_workers().start().await.expect("starts");
    let (one, two) = (tenant(1), tenant(2));
    // Many of the other tenant's before and after: they are passed over, and none of them is held up.
    let theirs: Vec<()> = vec![(); 300];
    let payloads = theirs.iter().map(|()| Ok(Payload::null())).collect();
    jobs.submit_payloads(&two, "a", payloads, SubmitOptions::new(), false).await.expect("accepted");
    let own = jobs.submit_named(&one, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    assert_eq!(jobs.tick(&one, 10).await.expect("runs"), 1);
    assert_eq!(jobs.status(&one, own).await.expect("kept"), Status::Succeeded);
    assert_eq!(jobs.tick(&one, 10).await.expect("runs"), 0);
    assert_eq!(jobs.counts(&two).await.expect("counts").get(Status::Pending), 300);
    assert_eq!(jobs.tick(&two, 10).await.expect("runs"), 10);
    jobs.shutdown().await;
}

/// How late a delayed job may start on a machine that needs no time to store and start it (TIM-1).
const EXACT_TO: Duration = Duration::from_millis(50);

async fn submit_outside(jobs: &JobService, ctx: &SecurityContext, options: SubmitOptions) -> JobId {
    let options = options.retry(RetryPolicy::fixed(3, Duration::from_millis(10)));
    jobs.submit_named(ctx, "outside", &"input", options).await.expect("accepted").id
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
    let taken = jobs.checkout(&ctx, &[DEFAULT_QUEUE], 2).await.expect("claims");
    assert_eq!(taken.iter().map(|job| job.context().job_id()).collect::<Vec<_>>(), ids[..2]);
    assert_eq!(taken[1].input().as_str(), "1");
    jobs.mark_success(&taken[0], &"fine").await.expect("saved");
    jobs.mark_failure(&taken[1], JobError::retryable("broken")).await.expect("saved");
    assert_eq!(jobs.wait_for::<String>(&ctx, ids[0], SOON).await.expect("succeeded"), "fine");
    assert_eq!(jobs.status(&ctx, ids[1]).await.expect("kept"), Status::DeadLettered);
    jobs.mark_success(&taken[0], &"fine").await.expect("what was saved may be said again");
    let changed = jobs.mark_failure(&taken[0], JobError::retryable("after all")).await;
    assert_eq!(changed.expect_err("it has succeeded").code(), "lease_lost");
    let third = jobs.checkout(&ctx, &[DEFAULT_QUEUE], 5).await.expect("claims").pop().expect("one is left");
    jobs.cancel(&ctx, ids[2], "stop").await.expect("asked");
    let late = jobs.mark_success(&third, &"too late").await;
    assert_eq!(late.expect_err("it is canceled").code(), "already_finished");
    assert_eq!(jobs.status(&ctx, ids[2]).await.expect("kept"), Status::Canceled, "no completion after a cancel");
    assert_eq!(jobs.running(), 0);
    jobs.shutdown().await;
}

/// OPS-10, SEC-1.
pub async fn a_checkout_hands_out_the_callers_jobs_only(store: Arc<dyn Store>) {
    let jobs = service(&store).without_workers().start().await.expect("starts");
    let (one, two) = (tenant(1), tenant(2));
    let theirs = [submit_outside(&jobs, &two, SubmitOptions::new()).await];
    let own = submit_outside(&jobs, &one, SubmitOptions::new()).await;
    let taken = jobs.checkout(&one, &[DEFAULT_QUEUE], 10).await.expect("claims");
    assert_eq!(taken.iter().map(|job| job.context().job_id()).collect::<Vec<_>>(), [own]);
    assert!(jobs.checkout(&tenant(3), &[DEFAULT_QUEUE], 10).await.expect("claims").is_empty());
    let all = jobs.operator(OperatorRight::assume()).checkout(&[DEFAULT_QUEUE], 10).await.expect("claims");
    assert_eq!(all.iter().map(|job| job.context().job_id()).collect::<Vec<_>>(), theirs);
    jobs.shutdown().await;
}

/// OPS-10, OPS-4, BEY-4: pauses, expiry and deadlines hold for workers outside as they do for nodes.
pub async fn what_must_not_start_is_not_checked_out(store: Arc<dyn Store>) {
    let jobs = service(&store).configure(|config| config.maintenance = false).without_workers();
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let take = || async { jobs.checkout(&ctx, &[DEFAULT_QUEUE], 10).await.expect("claims") };
    let soon = jobs.now() + Duration::from_millis(100);
    let expired = submit_outside(&jobs, &ctx, SubmitOptions::new().expires_at(soon)).await;
    let overdue = submit_outside(&jobs, &ctx, SubmitOptions::new().deadline_at(soon)).await;
    until("their time to be over", || async { jobs.store().now().await.expect("answers") > soon }).await;
    assert!(take().await.is_empty());
    until_status(&jobs, &ctx, expired, Status::Canceled).await;
    until_status(&jobs, &ctx, overdue, Status::DeadLettered).await;

    let handler = PauseTarget::Handler("outside".into());
    for target in [handler, PauseTarget::Tenant(ctx.tenant), PauseTarget::All] {
        let id = submit_outside(&jobs, &ctx, SubmitOptions::new()).await;
        let operator = jobs.operator(OperatorRight::assume());
        operator.pause(&ctx, &target, "not now").await.expect("paused");
        assert!(take().await.is_empty(), "{target:?}");
        if target != PauseTarget::All {
            // It was taken and put behind the pause; were the pause over before that is saved, nobody here would see it.
            until_status(&jobs, &ctx, id, Status::Blocked).await;
        }
        operator.resume(&ctx, &target).await.expect("resumed");
        let taken = parking_lot::Mutex::new(Vec::new());
        until("it to be handed out again", || async {
            let some = take().await;
            taken.lock().extend(some);
            !taken.lock().is_empty()
        })
        .await;
        let taken = taken.into_inner();
        assert_eq!(taken[0].context().job_id(), id);
        jobs.mark_success(&taken[0], &()).await.expect("saved");
    }
    jobs.shutdown().await;
}

/// OPS-10, BEY-12: a worker reports where it likes, and the fence of its lease decides.
pub async fn a_checkout_is_reported_on_at_any_node(store: Arc<dyn Store>) {
    let start = || service(&store).lease(Duration::from_millis(900)).without_workers().start();
    let (here, there) = (start().await.expect("starts"), start().await.expect("starts"));
    let ctx = tenant(1);
    let hold = Duration::from_secs(60);
    let mut tickets = Vec::new();
    for _ in 0..3 {
        let id = submit_outside(&here, &ctx, SubmitOptions::new()).await;
        let taken = here.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("claims");
        assert_eq!(taken[0].context().job_id(), id);
        tickets.push(taken[0].hold_for(hold));
    }
    let [good, bad, left] = tickets[..] else { panic!("three") };
    there.renew(good, 50.0, "half").await.expect("held");
    let progress = here.get(&ctx, good.job).await.expect("kept").progress.expect("reported");
    assert_eq!((progress.percent, progress.message.as_str()), (50.0, "half"));
    let output = || Payload::encode("output", &"fine", 100).expect("small");
    there.report_success(good, output()).await.expect("saved");
    assert_eq!(here.wait_for::<String>(&ctx, good.job, SOON).await.expect("succeeded"), "fine");
    here.report_success(good, output()).await.expect("what was saved may be said again, anywhere");
    assert_eq!(there.renew(good, 60.0, "").await.expect_err("it has ended").code(), "lease_lost");
    there.report_failure(bad, JobError::terminal("printer", "no paper")).await.expect("saved");
    until_status(&here, &ctx, bad.job, Status::DeadLettered).await;
    until("the node that held them to know", || async { here.running() == 1 }).await;

    // The node that holds the last one goes: its job is another's now, and the first worker's report is refused.
    here.shutdown().await;
    let again = there.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("claims");
    assert_eq!(again[0].context().job_id(), left.job);
    assert_eq!(there.report_success(left, output()).await.expect_err("another has it").code(), "lease_lost");
    there.mark_success(&again[0], &"second").await.expect("saved");
    assert_eq!(there.wait_for::<String>(&ctx, left.job, SOON).await.expect("succeeded"), "second");
    there.shutdown().await;
}

/// OPS-10, BEY-12: silence beyond the hold costs an attempt; a renewal counts wherever it was heard.
pub async fn a_silent_worker_fails_its_attempt_unless_another_node_heard_of_it(store: Arc<dyn Store>) {
    let start = || service(&store).without_workers().start();
    let (here, there) = (start().await.expect("starts"), start().await.expect("starts"));
    let ctx = tenant(1);
    let hold = Duration::from_secs(3);
    let mut tickets = Vec::new();
    for _ in 0..2 {
        submit_outside(&here, &ctx, SubmitOptions::new()).await;
        tickets.push(here.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("claims")[0].hold_for(hold));
    }
    let [alive, silent] = tickets[..] else { panic!("two") };
    let failed = |id| {
        let (here, ctx) = (here.clone(), ctx.clone());
        async move { here.get(&ctx, id).await.expect("kept").failed }
    };
    let mut renewals = 0;
    while failed(silent.job).await == 0 {
        there.renew(alive, 10.0, "still at it").await.expect("it is held");
        renewals += 1;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(renewals > 5, "the silent one failed after {renewals} renewals, not at once");
    assert_eq!(failed(alive.job).await, 0);
    there.report_success(alive, Payload::null()).await.expect("saved");
    let error = here.get(&ctx, silent.job).await.expect("kept").error.expect("it says why");
    assert_eq!(error.code, "node_unavailable");
    let late = there.report_success(silent, Payload::null()).await;
    assert_eq!(late.expect_err("too late").code(), "lease_lost");
    here.shutdown().await;
    there.shutdown().await;
}

/// OPS-10, OPS-3.
pub async fn a_canceled_checkout_ends_when_its_worker_hears_of_it(store: Arc<dyn Store>) {
    let start = || service(&store).without_workers().start();
    let (here, there) = (start().await.expect("starts"), start().await.expect("starts"));
    let ctx = tenant(1);
    let id = submit_outside(&here, &ctx, SubmitOptions::new()).await;
    let ticket = here.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("claims")[0].hold_for(Duration::from_secs(60));
    assert_eq!(here.cancel(&ctx, id, "stop").await.expect("asked"), CancelReply::Requested);
    assert_eq!(there.renew(ticket, 10.0, "").await.expect_err("it is to stop").code(), "lease_lost");
    until_status(&here, &ctx, id, Status::Canceled).await;

    // One that says nothing more is ended after its grace.
    let id = submit_outside(&here, &ctx, SubmitOptions::new()).await;
    let _ticket = here.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("claims")[0].hold_for(Duration::from_secs(600));
    here.cancel(&ctx, id, "stop").await.expect("asked");
    until_status(&here, &ctx, id, Status::Canceled).await;
    here.shutdown().await;
    there.shutdown().await;
}

/// OPS-10, BEY-4: a deadline holds for workers outside while they work, too.
pub async fn a_checkout_ends_with_its_deadline(store: Arc<dyn Store>) {
    let jobs = service(&store).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let deadline = SubmitOptions::new().deadline_at(jobs.now() + Duration::from_secs(3));
    let id = submit_outside(&jobs, &ctx, deadline).await;
    let ticket = jobs.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("claims")[0].hold_for(Duration::from_secs(600));
    until_status(&jobs, &ctx, id, Status::DeadLettered).await;
    let error = jobs.get(&ctx, id).await.expect("kept").error.expect("it says why");
    assert_eq!(error.code, "job_timeout", "{error}");
    assert_eq!(jobs.running(), 0);
    let late = jobs.report_success(ticket, Payload::null()).await;
    assert_eq!(late.expect_err("too late").code(), "lease_lost");
    jobs.shutdown().await;
}

/// Knows whether a task was woken.
#[derive(Default)]
struct Woken(std::sync::atomic::AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// A checkout of one job whose caller goes away after the job was sent and before it has looked.
async fn checkout_that_nobody_receives(jobs: &JobService, ctx: &SecurityContext, counting: &Counting) {
    counting.hold_back("claim");
    let woken = Arc::new(Woken::default());
    let mut checkout = std::pin::pin!(jobs.checkout(ctx, &[DEFAULT_QUEUE], 1));
    let waker = woken.clone().into();
    let polled = checkout.as_mut().poll(&mut std::task::Context::from_waker(&waker));
    assert!(polled.is_pending(), "the claim is held back");
    counting.let_go("claim");
    until("the jobs to be sent", || async { woken.0.load(std::sync::atomic::Ordering::SeqCst) }).await;
    assert_eq!(jobs.running(), 1, "it was begun");
}

/// OPS-10, BEY-4: a caller that goes away before it has looked at what was sent to it leaves no job behind, and none that
/// counts as started.
pub async fn a_checkout_that_nobody_receives_is_given_back(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let jobs = service(&counted).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let id = submit_outside(&jobs, &ctx, SubmitOptions::new()).await;
    checkout_that_nobody_receives(&jobs, &ctx, &counting).await;
    until_status(&jobs, &ctx, id, Status::Pending).await;
    assert_eq!(jobs.running(), 0);
    let again = jobs.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("claims");
    assert_eq!(again.iter().map(|job| job.context().job_id()).collect::<Vec<_>>(), [id]);
    assert_eq!(again[0].context().attempt(), 1, "it cost nothing");
    jobs.mark_success(&again[0], &()).await.expect("saved");
    let soon = SubmitOptions::new().expires_at(jobs.now() + Duration::from_secs(2));
    let id = submit_outside(&jobs, &ctx, soon).await;
    checkout_that_nobody_receives(&jobs, &ctx, &counting).await;
    until_status(&jobs, &ctx, id, Status::Canceled).await;
    assert_eq!(jobs.get(&ctx, id).await.expect("kept").reason.as_deref(), Some("expired"));
    jobs.shutdown().await;
}

/// OPS-10, RUN-7: what a checkout has begun or only claimed when it panics is given back.
pub async fn a_checkout_that_panics_gives_its_jobs_back(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let keys = || Encryption::new(sealing::keys("first"));
    let plain = service(&store).without_workers().start().await.expect("starts");
    let sealing = service(&store).encryption(keys()).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let open = submit_outside(&plain, &ctx, SubmitOptions::new()).await;
    let sealed = submit_outside(&sealing, &ctx, SubmitOptions::new()).await;
    let jobs = service(&counted).encryption(keys()).without_workers().start().await.expect("starts");
    // Meets the second job, when the first has begun.
    counting.panic_once("data_keys");
    let error = jobs.checkout(&ctx, &[DEFAULT_QUEUE], 2).await.expect_err("it panicked");
    assert_eq!((error.code(), panics(&jobs, "checkout")), ("internal_error", 1), "{error}");
    for id in [open, sealed] {
        until_status(&jobs, &ctx, id, Status::Pending).await;
    }
    assert_eq!(jobs.running(), 0);

    counting.panic_once("claim");
    let error = jobs.checkout(&ctx, &[DEFAULT_QUEUE], 2).await.expect_err("it panicked");
    assert_eq!(error.code(), "unknown_outcome", "{error}");
    for id in [open, sealed] {
        until_status(&jobs, &ctx, id, Status::Pending).await;
    }
    let taken = jobs.checkout(&ctx, &[DEFAULT_QUEUE], 2).await.expect("claims");
    assert_eq!(taken.len(), 2);
    for service in [jobs, plain, sealing] {
        service.shutdown().await;
    }
}

/// OPS-10, RUN-5: the limit of recoveries holds for workers outside as it does for nodes.
pub async fn a_job_that_too_many_nodes_were_lost_with_is_not_checked_out(store: Arc<dyn Store>) {
    let start = || {
        let builder = service(&store).lease(Duration::from_millis(600)).without_workers();
        builder.configure(|config| config.max_recoveries = 2).start()
    };
    let keeper = start().await.expect("starts");
    let ctx = tenant(1);
    let id = submit_outside(&keeper, &ctx, SubmitOptions::new()).await;
    for lost in 1..=2 {
        let node = start().await.expect("starts");
        let taken = node.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("claims");
        assert_eq!(taken.len(), 1, "lost with {} nodes so far", lost - 1);
        // Without a word: its lease runs out.
        drop((taken, node));
        until("it to be recovered", || async {
            let record = keeper.get(&ctx, id).await.expect("kept");
            record.recoveries == lost && record.status == Status::Pending
        })
        .await;
    }
    assert!(keeper.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("claims").is_empty());
    until_status(&keeper, &ctx, id, Status::DeadLettered).await;
    assert_eq!(keeper.get(&ctx, id).await.expect("kept").error.expect("why").code, "node_unavailable");
    keeper.shutdown().await;
}

/// TIM-1, TIM-3: exact to tens of milliseconds, beside what it takes on this machine to store and start any job.
pub async fn a_delayed_job_starts_when_it_is_due(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let jobs = service(&counted).function("a", (), nothing).start().await.expect("starts");
    let ctx = tenant(1);
    let delay = Duration::from_millis(400);
    let begun = Instant::now();
    let after = SubmitOptions::new().delay(delay);
    let after = jobs.submit_named(&ctx, "a", &(), after).await.expect("accepted").id;
    let at = SubmitOptions::new().run_at(jobs.now() + delay);
    let at = jobs.submit_named(&ctx, "a", &(), at).await.expect("accepted").id;
    assert_eq!(jobs.status(&ctx, after).await.expect("kept"), Status::Scheduled);
    assert!(matches!(jobs.why(&ctx, at).await, Ok(Why::NotDue { at: Some(_), retry: false })));
    // Surveys find what is due as well, but late: they are held back, so that only the timer is left.
    counting.hold_back("survey");
    let mut slowest = Duration::ZERO;
    for n in 0..5 {
        // With a key, so that it is claimed like those that are due.
        let (begun, keyed) = (Instant::now(), SubmitOptions::new().idempotency_key(format!("at once {n}")));
        let id = jobs.submit_named(&ctx, "a", &(), keyed).await.expect("accepted").id;
        jobs.wait(&ctx, id, SOON).await.expect("ends");
        slowest = slowest.max(begun.elapsed());
    }
    let late = EXACT_TO + 4 * slowest;
    for id in [after, at] {
        jobs.wait(&ctx, id, SOON).await.expect("ends");
        let record = jobs.get(&ctx, id).await.expect("kept");
        let started = record.started_at.expect("started");
        let due = record.run_at.expect("was delayed");
        assert!(started + Duration::from_millis(5) >= due, "not early: due {due}, started {started}");
        assert!(started <= due + late, "late by more than {late:?}: due {due}, started {started}");
    }
    assert!(begun.elapsed() >= delay);
    counting.let_go("survey");
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
    let operator = jobs.operator(OperatorRight::assume());
    operator.pause(&ctx, &PauseTarget::All, "").await.expect("paused");
    let soon = jobs.now() + Duration::from_millis(200);
    let expired = SubmitOptions::new().expires_at(soon);
    let expired = jobs.submit_named(&ctx, "count", &(), expired).await.expect("accepted").id;
    until_status(&jobs, &ctx, expired, Status::Canceled).await;
    assert_eq!(jobs.get(&ctx, expired).await.expect("kept").reason.as_deref(), Some("expired"));
    assert_eq!(ran.get(), 0, "it never started");
    operator.resume(&ctx, &PauseTarget::All).await.expect("resumed");
    let deadline = SubmitOptions::new().deadline_at(jobs.now() + Duration::from_millis(300));
    let overdue = jobs.submit_named(&ctx, "count", &(), deadline).await.expect("accepted").id;
    let view = jobs.wait(&ctx, overdue, SOON).await.expect("ends");
    assert_eq!(view.status, Status::DeadLettered, "a deadline over all attempts");
    assert!((1..100).contains(&ran.get()), "{} attempts", ran.get());
    jobs.shutdown().await;
}
