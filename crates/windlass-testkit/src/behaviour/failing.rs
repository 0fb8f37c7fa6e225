//! Behaviours of failing: ERR-1 to ERR-5, ERR-7.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use windlass_core::store::Store;
use windlass_core::*;

use super::*;

/// ERR-1.
pub async fn failures_are_retried_until_success(store: Arc<dyn Store>) {
    let third_time = |_: (), ctx: JobContext, (): ()| async move {
        if ctx.attempt() < 3 { Err(JobError::retryable("not yet")) } else { Ok(ctx.attempt()) }
    };
    let options = HandlerOptions::new().retry(quick_retries(3));
    let jobs = service(&store).function_with("third", options, (), third_time).start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "third", &(), SubmitOptions::new()).await.expect("accepted").id;
    assert_eq!(jobs.wait_for::<u16>(&ctx, job, SOON).await.expect("succeeds"), 3);
    let record = jobs.get(&ctx, job).await.expect("kept");
    assert_eq!((record.status, record.attempt, record.failed), (Status::Succeeded, 3, 2));
    jobs.shutdown().await;
}

/// ERR-2.
pub async fn a_terminal_error_is_a_dead_letter_at_once(store: Arc<dyn Store>) {
    let ran = Counter::default();
    let refuse = |ran: Counter, _, (): ()| async move {
        ran.add();
        let details = serde_json::json!({ "mailbox": "full" });
        Err::<(), _>(JobError::terminal("rejected", "the server said no").with_details(details))
    };
    let jobs = service(&store).function("refuse", ran.clone(), refuse).start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "refuse", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait(&ctx, job, SOON).await.expect("ends");
    let record = jobs.get(&ctx, job).await.expect("kept");
    assert_eq!((record.status, record.reason.as_deref()), (Status::DeadLettered, Some("rejected")));
    let error = record.error.expect("kept");
    assert_eq!((error.code.as_str(), error.message.as_str()), ("rejected", "the server said no"));
    assert_eq!(error.details, Some(serde_json::json!({ "mailbox": "full" })));
    assert_eq!(ran.get(), 1);
    jobs.shutdown().await;
}

/// ERR-3.
pub async fn every_attempt_is_in_the_history(store: Arc<dyn Store>) {
    let fail = |_: (), ctx: JobContext, (): ()| async move {
        Err::<(), _>(JobError::retryable(format!("failure {}", ctx.attempt())))
    };
    let options = HandlerOptions::new().retry(quick_retries(3));
    let jobs = service(&store).function_with("fail", options, (), fail).start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "fail", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait(&ctx, job, SOON).await.expect("ends");
    let history = jobs.history(&ctx, job).await.expect("kept");
    let statuses: Vec<Status> = history.iter().map(|entry| entry.status).collect();
    assert_eq!(statuses, [Status::Pending, Status::Retrying, Status::Retrying, Status::DeadLettered]);
    for (n, entry) in history.iter().enumerate().skip(1) {
        let error = entry.error.as_ref().expect("each attempt's error is kept");
        assert_eq!((entry.attempt, error.message.as_str()), (n as u16, format!("failure {n}").as_str()));
        assert!(entry.node.is_some() && entry.started_at.is_some_and(|at| at <= entry.at));
    }
    assert!(history.is_sorted_by_key(|entry| entry.at));
    jobs.shutdown().await;
}

/// ERR-4.
pub async fn dead_letters_are_listed_replayed_and_purged(store: Arc<dyn Store>) {
    let healthy = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let work = |healthy: Arc<std::sync::atomic::AtomicBool>, ctx: JobContext, n: i64| async move {
        match healthy.load(std::sync::atomic::Ordering::SeqCst) {
            true => Ok((n, ctx.attempt(), ctx.parent())),
            false => Err(JobError::retryable("down")),
        }
    };
    let options = HandlerOptions::new().retry(RetryPolicy::never());
    let jobs = service(&store).function_with("work", options, healthy.clone(), work).start().await.expect("starts");
    let ctx = tenant(1);
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(jobs.submit_named(&ctx, "work", &n, SubmitOptions::new()).await.expect("accepted").id);
    }
    for id in &ids {
        jobs.wait(&ctx, *id, SOON).await.expect("ends");
    }
    let mut filter = JobFilter::all().handler("work");
    filter.reason = Some("max_retries".into());
    let letters = jobs.dead_letters(&ctx, filter, Page::default()).await.expect("lists");
    assert_eq!(letters.iter().map(|letter| letter.id).collect::<Vec<_>>(), [ids[3], ids[2], ids[1], ids[0]]);
    assert!(jobs.dead_letters(&tenant(2), JobFilter::all(), Page::default()).await.expect("lists").is_empty());
    healthy.store(true, std::sync::atomic::Ordering::SeqCst);

    jobs.replay(&ctx, ids[0]).await.expect("replayed in place");
    let (n, attempt, _): (i64, u16, Option<JobId>) = jobs.wait_for(&ctx, ids[0], SOON).await.expect("succeeds");
    assert_eq!((n, attempt), (0, 1), "with a clean count");
    assert_eq!(jobs.replay(&ctx, ids[0]).await.expect_err("not dead any more").code(), "conflict");

    let edited = Payload::check("input", "77", 100).expect("valid");
    let new = jobs.replay_as_new(&ctx, ids[1], Some(edited)).await.expect("replayed as new");
    let (n, _, parent): (i64, u16, Option<JobId>) = jobs.wait_for(&ctx, new, SOON).await.expect("succeeds");
    assert_eq!((n, parent), (77, Some(ids[1])));
    assert_eq!(jobs.replay_as_new(&ctx, ids[1], None).await.expect("answered"), new, "it happens once");
    let replayed = jobs.get(&ctx, ids[1]).await.expect("kept").replayed.expect("marked");
    assert_eq!((replayed.by.as_str(), replayed.as_job), ("user-1", new));

    let mut not_yet = JobFilter::all();
    not_yet.replayed = Some(false);
    let report = jobs.replay_many(&ctx, &not_yet, Pace::default()).await.expect("replays");
    assert_eq!(report.replayed, [ids[3], ids[2]]);
    jobs.wait_for::<serde_json::Value>(&ctx, ids[2], SOON).await.expect("succeeds");

    jobs.purge(&ctx, ids[1]).await.expect("purged");
    assert_eq!(jobs.get(&ctx, ids[1]).await.expect_err("gone").code(), "job_not_found");
    jobs.shutdown().await;
}

/// ERR-4.
pub async fn a_paced_replay_stops_when_too_many_fail_again(store: Arc<dyn Store>) {
    let fail = |_: (), _, (): ()| async { Err::<(), _>(JobError::terminal("still_down", "no")) };
    let jobs = service(&store).function("fail", (), fail).start().await.expect("starts");
    let ctx = tenant(1);
    let mut ids = Vec::new();
    for _ in 0..30 {
        ids.push(jobs.submit_named(&ctx, "fail", &(), SubmitOptions::new()).await.expect("accepted").id);
    }
    for id in ids {
        jobs.wait(&ctx, id, SOON).await.expect("ends");
    }
    let pace = Pace::default().per_second(50.0).stop_when_failing(0.5, 3);
    let begun = std::time::Instant::now();
    let report = jobs.replay_many(&ctx, &JobFilter::all(), pace).await.expect("replays");
    assert!(report.stopped && report.failed_again >= 3, "{report:?}");
    assert!((3..30).contains(&report.replayed.len()), "it stopped long before the end: {}", report.replayed.len());
    let least = Duration::from_millis(20) * (report.replayed.len() as u32 - 1);
    assert!(begun.elapsed() >= least, "no faster than 50 per second");
    jobs.shutdown().await;
}

/// Counts what its callbacks were told.
struct Called {
    log: Arc<Mutex<Vec<String>>>,
}

impl JobHandler for Called {
    const ID: &'static str = "called";
    type Input = i64;
    type Output = i64;

    fn options(&self) -> HandlerOptions {
        HandlerOptions::new().retry(quick_retries(2))
    }

    async fn execute(&self, _: &JobContext, n: i64) -> Result<i64, JobError> {
        if n < 0 { Err(JobError::retryable("negative")) } else { Ok(n * 2) }
    }

    async fn on_success(&self, ctx: &JobContext, n: i64, doubled: i64) -> Result<(), JobError> {
        assert!(ctx.parent().is_some());
        self.log.lock().push(format!("{n} gave {doubled}"));
        if n == 7 { Err(JobError::retryable("the callback fails")) } else { Ok(()) }
    }

    async fn on_failure(&self, _: &JobContext, n: i64, error: JobError) -> Result<(), JobError> {
        self.log.lock().push(format!("{n} failed: {}", error.message));
        Ok(())
    }
}

/// Has only one of the two callbacks.
struct OnlySorry(Counter);

impl JobHandler for OnlySorry {
    const ID: &'static str = "only_sorry";
    type Input = bool;
    type Output = ();

    async fn execute(&self, _: &JobContext, good: bool) -> Result<(), JobError> {
        if good { Ok(()) } else { Err(JobError::terminal("bad", "no")) }
    }

    async fn on_failure(&self, _: &JobContext, _: bool, _: JobError) -> Result<(), JobError> {
        self.0.add();
        Ok(())
    }
}

/// OPS-12: a callback is called because it is written, and an outcome without one costs no job.
pub async fn callbacks_need_no_flag_and_cost_nothing_where_there_is_none(store: Arc<dyn Store>) {
    let sorry = Counter::default();
    let jobs = service(&store).handler(OnlySorry(sorry.clone())).start().await.expect("starts");
    let ctx = tenant(1);
    for good in [true, true, false] {
        let id = jobs.submit::<OnlySorry>(&ctx, good).await.expect("accepted");
        jobs.wait(&ctx, id, SOON).await.expect("ends");
    }
    until("the callback to be called", || async { sorry.get() == 1 }).await;
    until("everything to end", || async { jobs.counts(&ctx).await.is_ok_and(|counts| counts.unfinished() == 0) }).await;
    let all = jobs.list(&ctx, &JobFilter::all(), Page::default()).await.expect("lists");
    assert_eq!(all.len(), 4, "three jobs and one callback");
    jobs.shutdown().await;
}

/// ERR-5.
pub async fn callbacks_run_exactly_once(store: Arc<dyn Store>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let jobs = service(&store).handler(Called { log: log.clone() }).start().await.expect("starts");
    let ctx = tenant(1);
    let mut ids = Vec::new();
    for n in [5, -1, 7] {
        ids.push(jobs.submit::<Called>(&ctx, n).await.expect("accepted"));
    }
    until("three callbacks", || async { log.lock().len() >= 3 }).await;
    until("everything to end", || async { jobs.counts(&ctx).await.is_ok_and(|counts| counts.unfinished() == 0) }).await;
    let mut told = log.lock().clone();
    told.sort_unstable();
    assert_eq!(told, ["-1 failed: negative", "5 gave 10", "7 gave 14"], "each exactly once");
    assert_eq!(jobs.status(&ctx, ids[2]).await.expect("kept"), Status::Succeeded, "a failing callback changes nothing");
    let letters = jobs.dead_letters(&ctx, JobFilter::all(), Page::default()).await.expect("lists");
    let failed_callback = letters.iter().find(|letter| letter.spec.parent == Some(ids[2]));
    assert!(
        failed_callback.is_some_and(|letter| letter.error.as_ref().is_some_and(|e| e.message.contains("callback")))
    );
    jobs.shutdown().await;
}

/// An error of a handler's own, which decides its code.
enum MailError {
    Busy { seconds: u64 },
    NoMailbox,
}

impl From<MailError> for JobError {
    fn from(error: MailError) -> Self {
        match error {
            MailError::Busy { seconds } => {
                JobError::new("busy", "the server is busy").with_details(serde_json::json!({ "seconds": seconds }))
            }
            MailError::NoMailbox => JobError::new("no_mailbox", "there is no such mailbox").with_retryable(false),
        }
    }
}

/// ERR-8, ERR-2: code, message and details of a handler's own errors are kept as they are, its word on retrying counts,
/// and errors of its own and of others convert by `?`.
pub async fn a_handlers_own_errors_are_kept_as_it_names_them(store: Arc<dyn Store>) {
    fn send(to: &str) -> Result<(), MailError> {
        match to {
            "busy" => Err(MailError::Busy { seconds: 7 }),
            _ => Err(MailError::NoMailbox),
        }
    }
    let mail = |_: (), ctx: JobContext, to: String| async move {
        match to.as_str() {
            "number" => drop("seven".parse::<u8>()?),
            "stop" => {
                ctx.cancellation().cancelled().await;
                return Err(JobError::cancelled());
            }
            "leave" => return Err(JobError::cancelled()),
            "busy" if ctx.attempt() == 2 => {}
            to => send(to)?,
        }
        Ok(())
    };
    let options = HandlerOptions::new().retry(quick_retries(2));
    let jobs = service(&store).function_with("mail", options, (), mail).start().await.expect("starts");
    let ctx = tenant(1);
    let submit = async |to: &str| jobs.submit_named(&ctx, "mail", to, SubmitOptions::new()).await.expect("accepted").id;
    let failures = async |id: JobId| -> Vec<JobError> {
        let history = jobs.history(&ctx, id).await.expect("kept");
        history.into_iter().filter_map(|entry| entry.error).collect()
    };

    let busy = submit("busy").await;
    assert_eq!(jobs.wait(&ctx, busy, SOON).await.expect("ends").status, Status::Succeeded, "it was retried");
    let error = failures(busy).await.remove(0);
    assert_eq!((error.code.as_str(), error.message.as_str()), ("busy", "the server is busy"));
    assert_eq!(error.details, Some(serde_json::json!({ "seconds": 7 })));

    let nowhere = submit("nowhere").await;
    assert_eq!(jobs.wait(&ctx, nowhere, SOON).await.expect("ends").status, Status::DeadLettered);
    let record = jobs.get(&ctx, nowhere).await.expect("kept");
    assert_eq!((record.failed, record.error.expect("why").code.as_str()), (1, "no_mailbox"), "no retry was wanted");

    let number = submit("number").await;
    assert_eq!(jobs.wait(&ctx, number, SOON).await.expect("ends").status, Status::DeadLettered);
    let record = jobs.get(&ctx, number).await.expect("kept");
    let error = record.error.expect("why");
    assert_eq!((record.failed, error.code.as_str()), (2, "processing"), "any error is retried");
    assert_eq!(error.message, "invalid digit found in string");

    let stopped = submit("stop").await;
    until_status(&jobs, &ctx, stopped, Status::Running).await;
    jobs.cancel(&ctx, stopped, "not needed").await.expect("asked");
    let left = submit("leave").await;
    for (id, reason) in [(stopped, "not needed"), (left, "canceled")] {
        assert_eq!(jobs.wait(&ctx, id, SOON).await.expect("ends").status, Status::Canceled);
        assert_eq!(jobs.get(&ctx, id).await.expect("kept").reason.as_deref(), Some(reason));
    }
    jobs.shutdown().await;
}

/// ERR-7.
pub async fn a_handler_can_snooze_and_discard(store: Arc<dyn Store>) {
    let naps = Counter::default();
    let nap = |naps: Counter, ctx: JobContext, (): ()| async move {
        match naps.add() {
            1..=3 => Err(JobError::snooze(Duration::from_millis(5))),
            _ => Ok(ctx.attempt()),
        }
    };
    let give_up = |_: (), _, (): ()| async { Err::<(), _>(JobError::discard("nobody wants it")) };
    let once = HandlerOptions::new().retry(RetryPolicy::never());
    let jobs = service(&store).function_with("nap", once, naps.clone(), nap).function("give_up", (), give_up);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "nap", &(), SubmitOptions::new()).await.expect("accepted").id;
    assert_eq!(jobs.wait_for::<u16>(&ctx, job, SOON).await.expect("succeeds"), 1, "naps cost no attempt");
    assert_eq!(naps.get(), 4);
    let job = jobs.submit_named(&ctx, "give_up", &(), SubmitOptions::new()).await.expect("accepted").id;
    assert_eq!(jobs.wait(&ctx, job, SOON).await.expect("ends").status, Status::Canceled);
    assert_eq!(jobs.get(&ctx, job).await.expect("kept").reason.as_deref(), Some("discarded"));
    assert!(jobs.dead_letters(&ctx, JobFilter::all(), Page::default()).await.expect("lists").is_empty());
    jobs.shutdown().await;
}
