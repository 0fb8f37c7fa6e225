//! Behaviours of running: RUN-1 to RUN-13.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::store::Store;
use windlass_core::*;

use super::*;

/// RUN-3. The limit is far above what an idle machine needs and far below the poll interval set here.
pub async fn a_job_starts_within_milliseconds_of_its_submit(store: Arc<dyn Store>) {
    let started = |_: (), _, (): ()| async { Ok::<_, JobError>(()) };
    let slow_poll = |config: &mut Config| config.poll = Duration::from_secs(30);
    let jobs = service(&store).function("now", (), started).configure(slow_poll).start().await.expect("starts");
    let ctx = tenant(1);
    for _ in 0..20 {
        let begun = Instant::now();
        let job = jobs.submit_named(&ctx, "now", &(), SubmitOptions::new()).await.expect("accepted").id;
        jobs.wait(&ctx, job, SOON).await.expect("ends");
        assert!(begun.elapsed() < Duration::from_secs(3), "it waited for a poll: {:?}", begun.elapsed());
    }
    jobs.shutdown().await;
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
