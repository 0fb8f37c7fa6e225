//! Behaviours of running: RUN-1 to RUN-13.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use windlass_core::store::Store;
use windlass_core::*;

use super::*;

/// RUN-3: where the process has room, the write that stores a job also starts it. Nothing is claimed for it.
pub async fn a_job_starts_within_milliseconds_of_its_submit(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let (note, mut starts) = mpsc::unbounded_channel();
    let jobs = service(&counted).function("now", note, note_the_start).start().await.expect("starts");
    until("the node to have looked for the first time", || async { counting.calls("claim") > 0 }).await;
    let claims = counting.calls("claim");
    counting.hold_back("survey");
    assert_quick_starts(&jobs, &mut starts).await;
    counting.let_go("survey");
    let claims = counting.calls("claim") - claims;
    assert!(claims < STARTS / 4, "{claims} claims for {STARTS} jobs");
    jobs.shutdown().await;
}

/// RUN-3: a node with nothing to do asks whether there is anything, and for little else: what an idle installation costs is
/// what its nodes ask all day.
pub async fn a_quiet_node_asks_its_store_for_little(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let jobs = service(&counted).function("never", (), |(), _: JobContext, (): ()| async { Ok::<(), JobError>(()) });
    let jobs = jobs.configure(|config| {
        config.lease = Duration::from_secs(2);
        config.held_snapshot_after = Duration::from_millis(500);
    });
    let jobs = jobs.start().await.expect("starts");
    // Five seconds, in which a busy node looks four times for what it holds and ten times for snapshots.
    until("the node to look around", || async { counting.calls("survey") >= 25 }).await;
    for call in ["held", "held_snapshots"] {
        let calls = counting.calls(call);
        assert!((1..=2).contains(&calls), "{calls} times {call}");
    }
    for call in ["clean", "clean_activity", "sample_depth"] {
        let calls = counting.calls(call);
        assert!(calls <= 2, "{calls} times {call}");
    }
    jobs.shutdown().await;
}

/// RUN-3: a worker hears of what another process stores. Surveys, which would find it too, are held back. Not among the
/// behaviours of every store: the others have one process.
pub async fn a_job_of_another_process_starts_without_a_poll(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let (note, mut starts) = mpsc::unbounded_channel();
    let worker = service(&counted).function("now", note, note_the_start).start().await.expect("starts");
    let other = service(&store).without_workers().start().await.expect("starts");
    // It hears of nothing until it listens, which a node begins to do after its start.
    for _ in 0..STARTS {
        let surveys = counting.calls("survey");
        other.submit_named(&tenant(1), "now", &(), SubmitOptions::new()).await.expect("accepted");
        starts.recv().await.expect("it starts");
        if counting.calls("survey") == surveys {
            break;
        }
    }
    counting.hold_back("survey");
    assert_quick_starts(&other, &mut starts).await;
    counting.let_go("survey");
    worker.shutdown().await;
    other.shutdown().await;
}

async fn note_the_start(note: mpsc::UnboundedSender<Instant>, _: JobContext, (): ()) -> Result<(), JobError> {
    note.send(Instant::now()).map_err(|_| JobError::terminal("gone", "nobody measures any more"))
}

/// Jobs whose start is measured.
const STARTS: usize = 40;

/// A start takes some writes of time, not a pause between two looks (800 ms). Both are medians of the same seconds, in
/// turns, so that a busy machine slows both; the least is what threads need to wake one another on such a machine.
async fn assert_quick_starts(from: &JobService, starts: &mut mpsc::UnboundedReceiver<Instant>) {
    let ctx = tenant(1);
    let (mut waits, mut writes) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let begun = Instant::now();
        from.submit_named(&ctx, "now", &(), SubmitOptions::new()).await.expect("accepted");
        let started = tokio::time::timeout(SOON, starts.recv()).await.expect("it starts without a survey");
        waits.push(started.expect("the handler lives") - begun);
        let begun = Instant::now();
        let later = SubmitOptions::new().delay(Duration::from_secs(3_600));
        from.submit_named(&ctx, "now", &(), later).await.expect("accepted");
        writes.push(begun.elapsed());
    }
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let (wait, write) = (median(waits), median(writes));
    assert!(wait < 10 * write.max(Duration::from_millis(2)), "started after {wait:?}, a write takes {write:?}");
}

/// RUN-2.
pub async fn handlers_run_on_threads_of_their_own(store: Arc<dyn Store>) {
    let where_am_i = |_: (), _, (): ()| async {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        Ok::<_, JobError>(name)
    };
    // Blocks a whole worker thread, as CPU-heavy work does.
    let block = |_: (), _, (): ()| async {
        std::thread::sleep(Duration::from_millis(300));
        Ok::<_, JobError>(())
    };
    let jobs = service(&store).function("where", (), where_am_i).function("block", (), block);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "where", &(), SubmitOptions::new()).await.expect("accepted").id;
    let name: String = jobs.wait_for(&ctx, job, SOON).await.expect("succeeds");
    assert!(name.starts_with("windlass-worker"), "ran on {name}");
    for _ in 0..4 {
        jobs.submit_named(&ctx, "block", &(), SubmitOptions::new()).await.expect("accepted");
    }
    until("the worker threads to be blocked", || async { jobs.running() >= 2 }).await;
    let job = jobs.submit_named(&ctx, "where", &(), SubmitOptions::new()).await.expect("submits go on");
    jobs.get(&ctx, job.id).await.expect("look-ups go on");
    jobs.shutdown().await;
}

/// RUN-4, RUN-13.
pub async fn a_job_longer_than_the_lease_runs_once(store: Arc<dyn Store>) {
    let ran = Counter::default();
    let long = |ran: Counter, _, (): ()| async move {
        ran.add();
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        Ok::<_, JobError>(())
    };
    let jobs = service(&store).function("long", ran.clone(), long).lease(Duration::from_millis(800));
    let jobs = jobs.start().await.expect("starts");
    let other = service(&store).function("long", ran.clone(), long).lease(Duration::from_millis(800));
    let other = other.start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "long", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait_for::<()>(&ctx, job, SOON).await.expect("succeeds");
    let record = jobs.get(&ctx, job).await.expect("kept");
    assert_eq!((ran.get(), record.attempt, record.recoveries), (1, 1, 0));
    jobs.shutdown().await;
    other.shutdown().await;
}

/// RUN-6.
pub async fn a_timeout_cancels_then_aborts_and_is_retried(store: Arc<dyn Store>) {
    let told = Counter::default();
    let slow = |told: Counter, ctx: JobContext, (): ()| async move {
        if ctx.attempt() == 1 {
            ctx.cancellation().cancelled().await;
            told.add();
            // Goes on regardless, so that it has to be aborted.
            std::future::pending::<()>().await;
        }
        Ok::<_, JobError>(ctx.attempt())
    };
    let options = HandlerOptions::new().timeout(Duration::from_millis(50)).retry(quick_retries(2));
    let jobs = service(&store).function_with("slow", options, told.clone(), slow).start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "slow", &(), SubmitOptions::new()).await.expect("accepted").id;
    assert_eq!(jobs.wait_for::<u16>(&ctx, job, SOON).await.expect("the second attempt succeeds"), 2);
    assert_eq!(told.get(), 1, "it was asked to stop first");
    let history = jobs.history(&ctx, job).await.expect("kept");
    let errors: Vec<_> = history.iter().filter_map(|entry| entry.error.as_ref()).collect();
    assert_eq!(errors.iter().map(|error| error.code.as_str()).collect::<Vec<_>>(), ["job_timeout"]);
    jobs.shutdown().await;
}

/// RUN-15: a handler or a job can be without a timeout, and a policy without retries.
pub async fn an_attempt_without_a_timeout_takes_as_long_as_it_likes(store: Arc<dyn Store>) {
    let wait = |_: (), _: JobContext, ms: u64| async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Ok::<_, JobError>(())
    };
    let fail = |ran: Counter, _: JobContext, (): ()| async move {
        ran.add();
        Err::<(), _>(JobError::retryable("no"))
    };
    let ran = Counter::default();
    let jobs = service(&store)
        .configure(|config| config.timeout = Duration::from_millis(50))
        .function_with("patient", HandlerOptions::new().timeout(None).retry(RetryPolicy::never()), (), wait)
        .function_with("strict", HandlerOptions::new().retry(RetryPolicy::default().retries(0)), (), wait)
        .function("fail", ran.clone(), fail);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let submit = |handler: &'static str, options: SubmitOptions| {
        let (jobs, ctx) = (jobs.clone(), ctx.clone());
        async move {
            let id = jobs.submit_named(&ctx, handler, &400, options).await.expect("accepted").id;
            jobs.wait(&ctx, id, SOON).await.expect("ends").status
        }
    };
    assert_eq!(submit("patient", SubmitOptions::new()).await, Status::Succeeded, "the handler says so");
    assert_eq!(submit("strict", SubmitOptions::new().timeout(None)).await, Status::Succeeded, "the job says so");
    assert_eq!(submit("strict", SubmitOptions::new()).await, Status::DeadLettered, "the service's timeout holds");
    let deadline = SubmitOptions::new().deadline_at(jobs.now() + Duration::from_millis(100));
    assert_eq!(submit("patient", deadline).await, Status::DeadLettered, "a deadline holds all the same");
    let zero: RetryPolicy = serde_json::from_str(r#"{"max_attempts": 0}"#).expect("a policy");
    for policy in [RetryPolicy::never(), RetryPolicy::default().retries(0), zero] {
        let before = ran.get();
        let id = jobs.submit_named(&ctx, "fail", &(), SubmitOptions::new().retry(policy)).await.expect("accepted").id;
        assert_eq!(jobs.wait(&ctx, id, SOON).await.expect("ends").status, Status::DeadLettered);
        assert_eq!(ran.get(), before + 1, "one attempt");
    }
    jobs.shutdown().await;
}

/// RUN-6: a handler that never yields cannot be aborted, but its job does not hang with it.
pub async fn a_blocked_thread_is_written_off(store: Arc<dyn Store>) {
    let block = |_: (), _, (): ()| async {
        std::thread::sleep(Duration::from_secs(6));
        Ok::<_, JobError>(())
    };
    let options = HandlerOptions::new().timeout(Duration::from_millis(50)).retry(RetryPolicy::never());
    let jobs = service(&store).function_with("block", options, (), block).start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "block", &(), SubmitOptions::new()).await.expect("accepted").id;
    let begun = Instant::now();
    let view = jobs.wait(&ctx, job, SOON).await.expect("ends");
    assert_eq!((view.status, view.error.map(|e| e.code)), (Status::DeadLettered, Some("job_timeout".into())));
    assert!(begun.elapsed() < Duration::from_secs(6), "written off before the thread came back");
    jobs.shutdown().await;
}

/// RUN-7.
pub async fn a_panic_is_a_failed_attempt(store: Arc<dyn Store>) {
    let shaky = |_: (), ctx: JobContext, (): ()| async move {
        if ctx.attempt() == 1 {
            panic!("the sky is falling");
        }
        Ok::<_, JobError>(())
    };
    let options = HandlerOptions::new().retry(quick_retries(2));
    let jobs = service(&store).function_with("shaky", options, (), shaky).start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "shaky", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait_for::<()>(&ctx, job, SOON).await.expect("the second attempt succeeds");
    let history = jobs.history(&ctx, job).await.expect("kept");
    let error = history.iter().find_map(|entry| entry.error.clone()).expect("the panic is recorded");
    assert_eq!(error.code, "panic");
    assert!(error.message.contains("the sky is falling"));
    jobs.shutdown().await;
}

/// RUN-8.
pub async fn a_checkpoint_survives_the_attempt(store: Arc<dyn Store>) {
    let count = |_: (), ctx: JobContext, (): ()| async move {
        let from: u32 = ctx.checkpoint()?.unwrap_or(0);
        for step in from..10 {
            if ctx.attempt() == 1 && step == 5 {
                return Err(JobError::retryable("interrupted at five"));
            }
            ctx.save_checkpoint(&(step + 1)).await?;
        }
        Ok((from, ctx.checkpoint::<u32>()?))
    };
    let options = HandlerOptions::new().retry(quick_retries(2));
    let jobs = service(&store).function_with("count", options, (), count).start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "count", &(), SubmitOptions::new()).await.expect("accepted").id;
    let (from, to): (u32, Option<u32>) = jobs.wait_for(&ctx, job, SOON).await.expect("succeeds");
    assert_eq!((from, to), (5, Some(10)), "the second attempt went on where the first stopped");
    jobs.shutdown().await;
}

/// RUN-10.
pub async fn shutdown_hands_running_jobs_back_without_cost(store: Arc<dyn Store>) {
    let door = Door::closed();
    let hold = |door: Door, ctx: JobContext, (): ()| async move {
        tokio::select! {
            () = door.pass() => Ok::<_, JobError>(ctx.attempt()),
            () = ctx.cancellation().cancelled() => Err(JobError::retryable("told to stop")),
        }
    };
    let impatient = |config: &mut Config| config.shutdown_deadline = Duration::from_millis(50);
    let first = service(&store).function("hold", door.clone(), hold).configure(impatient);
    let first = first.start().await.expect("starts");
    let ctx = tenant(1);
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(first.submit_named(&ctx, "hold", &(), SubmitOptions::new()).await.expect("accepted").id);
    }
    until("all five to run", || async { door.waiting.get() == 5 }).await;
    first.shutdown().await;
    door.open();
    let second = service(&store).function("hold", door.clone(), hold).start().await.expect("starts");
    for id in ids {
        assert_eq!(second.wait_for::<u16>(&ctx, id, SOON).await.expect("succeeds"), 1, "no attempt was charged");
        let record = second.get(&ctx, id).await.expect("kept");
        assert_eq!((record.failed, record.recoveries), (0, 0));
    }
    second.shutdown().await;
}

/// RUN-11.
pub async fn no_more_jobs_run_than_the_node_and_the_handler_allow(store: Arc<dyn Store>) {
    #[derive(Clone, Default)]
    struct Gauge {
        now: Counter,
        most: Arc<std::sync::atomic::AtomicUsize>,
    }
    let measure = |gauge: Gauge, _, (): ()| async move {
        let now = gauge.now.add();
        gauge.most.fetch_max(now, std::sync::atomic::Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(5)).await;
        gauge.now.remove();
        Ok::<_, JobError>(())
    };
    let (narrow, wide) = (Gauge::default(), Gauge::default());
    let jobs = service(&store)
        .concurrency(6)
        .function_with("narrow", HandlerOptions::new().concurrency(2), narrow.clone(), measure)
        .function("wide", wide.clone(), measure);
    let jobs = jobs.start().await.expect("starts");
    // A process that does not know of the limit puts jobs into the common queue; they must obey it too.
    let stranger = service(&store).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let mut ids = Vec::new();
    for n in 0..60 {
        let (handler, from) = match n % 3 {
            0 => ("narrow", &jobs),
            1 => ("narrow", &stranger),
            _ => ("wide", &jobs),
        };
        ids.push(from.submit_named(&ctx, handler, &(), SubmitOptions::new()).await.expect("accepted").id);
    }
    for id in ids {
        jobs.wait_for::<()>(&ctx, id, SOON).await.expect("succeeds");
    }
    let most = |gauge: &Gauge| gauge.most.load(std::sync::atomic::Ordering::SeqCst);
    assert!((1..=2).contains(&most(&narrow)), "{} at once, 2 allowed", most(&narrow));
    assert!((1..=6).contains(&most(&wide)), "{} at once, 6 allowed", most(&wide));
    jobs.shutdown().await;
    stranger.shutdown().await;
}

/// RUN-12.
pub async fn a_job_waits_for_a_node_that_has_its_handler(store: Arc<dyn Store>) {
    let nothing = |_: (), _, (): ()| async { Ok::<_, JobError>(()) };
    let one = service(&store).function("one", (), nothing).remote_handler("two").start().await.expect("starts");
    let ctx = tenant(1);
    let job = one.submit_named(&ctx, "two", &(), SubmitOptions::new()).await.expect("kept for others").id;
    let own = one.submit_named(&ctx, "one", &(), SubmitOptions::new()).await.expect("accepted").id;
    one.wait_for::<()>(&ctx, own, SOON).await.expect("others are not held up");
    until("the node to put it aside", || async {
        matches!(one.why(&ctx, job).await, Ok(Why::NoNodeHasHandler { handler }) if handler == "two")
    })
    .await;
    let two = service(&store).function("two", (), nothing).start().await.expect("starts");
    two.wait_for::<()>(&ctx, job, SOON).await.expect("runs where the handler is");
    assert_eq!(two.get(&ctx, job).await.expect("kept").attempt, 1, "being put aside costs nothing");
    one.shutdown().await;
    two.shutdown().await;
}

/// RUN-12.
pub async fn a_job_nobody_can_run_becomes_a_dead_letter(store: Arc<dyn Store>) {
    let nothing = |_: (), _, (): ()| async { Ok::<_, JobError>(()) };
    let impatient = |config: &mut Config| config.handler_missing_after = Duration::from_millis(300);
    let jobs = service(&store).function("one", (), nothing).remote_handler("gone").configure(impatient);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "gone", &(), SubmitOptions::new()).await.expect("kept").id;
    let view = jobs.wait(&ctx, job, SOON).await.expect("ends");
    assert_eq!((view.status, view.error.map(|e| e.code)), (Status::DeadLettered, Some("handler_missing".into())));
    jobs.shutdown().await;
}

/// API-10: also one that calls webhooks, as `windlass serve` does.
pub async fn a_process_without_handlers_claims_nothing(store: Arc<dyn Store>) {
    let nothing = |_: (), _, (): ()| async { Ok::<_, JobError>(()) };
    let deliver = |_: (), _, _: WebhookDelivery| async { Ok::<_, JobError>(()) };
    let server = service(&store).webhook_handler(HandlerOptions::new().concurrency(4), (), deliver);
    let server = server.start().await.expect("starts");
    let ctx = tenant(1);
    let job = server.submit_named(&ctx, "own", &(), SubmitOptions::new()).await.expect("kept for others").id;
    // Far longer than any look for work takes to come round.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.tick(&ctx, 10).await.expect("ticks"), 0, "there is nothing that it could run");
    let waiting = store.waiting_queues().await.expect("looks");
    let queues: Vec<&str> = waiting.iter().map(|waiting| waiting.queue.as_str()).collect();
    assert_eq!(queues, ["default"], "it is where it was submitted to");
    let worker = service(&store).function("own", (), nothing).start().await.expect("starts");
    worker.wait_for::<()>(&ctx, job, SOON).await.expect("runs where the handler is");
    server.shutdown().await;
    worker.shutdown().await;
}

/// ERR-10: a job older than the limit is not given up because a look falls into a restart of its workers.
pub async fn an_old_job_survives_a_restart_of_its_workers(store: Arc<dyn Store>) {
    let nothing = |_: (), _, (): ()| async { Ok::<_, JobError>(()) };
    let limit = |config: &mut Config| config.handler_missing_after = Duration::from_secs(4);
    let keeper = service(&store).function("one", (), nothing).remote_handler("two").configure(limit);
    let keeper = keeper.start().await.expect("starts");
    let worker = service(&store).function("two", (), nothing).start().await.expect("starts");
    let ctx = tenant(1);
    let later = SubmitOptions::new().delay(Duration::from_millis(4_500));
    let job = keeper.submit_named(&ctx, "two", &(), later).await.expect("accepted").id;
    let before = keeper.now() + Duration::from_secs(4);
    until("the job to be older than the limit", || async { keeper.now() > before }).await;
    worker.shutdown().await;
    let in_queue = |queue: &'static str| {
        let store = store.clone();
        async move { store.waiting_queues().await.is_ok_and(|waiting| waiting.iter().any(|w| w.queue == queue)) }
    };
    until("the job to wait for its handler", || in_queue("two")).await;
    // Longer than it takes until a look at missing handlers comes round.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let worker = service(&store).function("two", (), nothing).start().await.expect("starts");
    let view = worker.wait(&ctx, job, SOON).await.expect("ends");
    assert_eq!(view.status, Status::Succeeded, "{:?}", view.error);
    worker.shutdown().await;
    keeper.shutdown().await;
}

/// ERR-10, OPS-10.
pub async fn jobs_that_workers_outside_take_are_not_given_up(store: Arc<dyn Store>) {
    let nothing = |_: (), _, (): ()| async { Ok::<_, JobError>(()) };
    let impatient = |config: &mut Config| config.handler_missing_after = Duration::from_secs(1);
    let keeper = service(&store).function("one", (), nothing).remote_handler("out").configure(impatient);
    let keeper = keeper.start().await.expect("starts");
    let ctx = tenant(1);
    let mut jobs = Vec::new();
    for _ in 0..8 {
        jobs.push(keeper.submit_named(&ctx, "out", &(), SubmitOptions::new()).await.expect("kept").id);
    }
    // A slow worker: the last of them waits three times the limit.
    let mut done = 0;
    while done < jobs.len() {
        for job in keeper.checkout(&ctx, &["out"], 1).await.expect("polls") {
            keeper.mark_success(&job, &()).await.expect("reports");
            done += 1;
        }
        let ended = keeper.counts(&ctx).await.expect("counts").get(Status::DeadLettered);
        assert_eq!(ended, 0, "given up although they are polled for");
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    keeper.shutdown().await;
}

/// ERR-10, OPS-10: whoever polls chooses the names. Only those by which jobs wait are kept.
pub async fn names_that_nothing_waits_by_are_not_written_down(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let impatient = |config: &mut Config| config.handler_missing_after = Duration::from_secs(8);
    let jobs = service(&counted).without_workers().configure(impatient).start().await.expect("starts");
    let (ctx, poller) = (tenant(1), tenant(2));
    jobs.submit_named(&ctx, "out", &(), SubmitOptions::new().queue("waits")).await.expect("kept");
    let names: Vec<String> = (0..30).map(|n| format!("made-up-{n}")).chain(["waits".to_owned()]).collect();
    let queues: Vec<&str> = names.iter().map(String::as_str).collect();
    until("what waits to be written down", || async {
        // Another tenant's worker: it takes nothing, but it asks.
        assert!(jobs.checkout(&poller, &queues, 1).await.expect("polls").is_empty());
        let looks = counting.calls("last_served");
        until("a look", || async { counting.calls("last_served") > looks }).await;
        store.last_served(&[], &names[30..]).await.expect("reads")[0].is_some()
    })
    .await;
    let served = store.last_served(&[], &names[..30]).await.expect("reads");
    assert_eq!(served, vec![None; 30]);
    jobs.shutdown().await;
}
