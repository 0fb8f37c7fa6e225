//! Behaviours of order, priority and fairness: ORD-1 to ORD-4.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use windlass_core::store::Store;
use windlass_core::*;

use super::*;

type Log = Arc<Mutex<Vec<String>>>;

/// Writes down what runs, in order, on a node with one slot.
fn logging(store: &Arc<dyn Store>, log: &Log) -> Builder {
    let write = |log: Log, _, what: String| async move {
        log.lock().push(what);
        Ok::<_, JobError>(())
    };
    service(store).function("log", log.clone(), write).concurrency(1).without_workers()
}

async fn submit(jobs: &JobService, ctx: &SecurityContext, what: String, options: SubmitOptions) {
    jobs.submit_named(ctx, "log", &what, options).await.expect("accepted");
}

async fn run_all(jobs: &JobService) {
    while tick(jobs, 1).await.expect("runs") > 0 {}
}

/// ORD-1.
pub async fn a_higher_priority_starts_first(store: Arc<dyn Store>) {
    let log = Log::default();
    let jobs = logging(&store, &log).start().await.expect("starts");
    let ctx = tenant(1);
    for (name, priority) in [("3", 3), ("9", 9), ("5", 5), ("0", 0)] {
        submit(&jobs, &ctx, name.into(), SubmitOptions::new().priority(Priority(priority))).await;
    }
    run_all(&jobs).await;
    assert_eq!(*log.lock(), ["9", "5", "3", "0"], "within a band, the higher number first");
    jobs.shutdown().await;
}

/// ORD-2.
pub async fn bands_share_capacity_and_low_is_not_starved(store: Arc<dyn Store>) {
    let log = Log::default();
    let jobs = logging(&store, &log).start().await.expect("starts");
    let ctx = tenant(1);
    let bands = [
        ("low", Priority::LOW),
        ("normal", Priority::NORMAL),
        ("high", Priority::HIGH),
        ("critical", Priority::CRITICAL),
    ];
    for (name, priority) in bands {
        for _ in 0..40 {
            submit(&jobs, &ctx, name.into(), SubmitOptions::new().priority(priority)).await;
        }
    }
    for _ in 0..50 {
        assert_eq!(tick(&jobs, 1).await.expect("runs"), 1);
    }
    let count = |name: &str| log.lock().iter().filter(|ran| *ran == name).count();
    let shares = ["critical", "high", "normal", "low"].map(count);
    assert_eq!(shares, [20, 15, 10, 5], "fifty starts share 4:3:2:1");
    jobs.shutdown().await;
}

/// ORD-2.
pub async fn a_deep_queue_does_not_hold_up_another(store: Arc<dyn Store>) {
    let log = Log::default();
    let write = |log: Log, _, what: String| async move {
        log.lock().push(what);
        Ok::<_, JobError>(())
    };
    let narrow = HandlerOptions::new().concurrency(1);
    let jobs = logging(&store, &log).function_with("narrow", narrow, log.clone(), write);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    for n in 0..60 {
        submit(&jobs, &ctx, n.to_string(), SubmitOptions::new()).await;
    }
    let few = SubmitOptions::new();
    jobs.submit_named(&ctx, "narrow", &"narrow".to_owned(), few).await.expect("accepted");
    for _ in 0..30 {
        assert_eq!(tick(&jobs, 1).await.expect("runs"), 1);
    }
    assert!(log.lock().iter().any(|ran| ran == "narrow"), "another queue came first {} times", log.lock().len());
    jobs.shutdown().await;
}

/// ORD-2.
pub async fn strict_bands_serve_the_best_first(store: Arc<dyn Store>) {
    let log = Log::default();
    let jobs = logging(&store, &log).bands(BandPolicy::Strict).start().await.expect("starts");
    let ctx = tenant(1);
    for (name, priority) in [("low", Priority::LOW), ("normal", Priority::NORMAL), ("critical", Priority::CRITICAL)] {
        for _ in 0..3 {
            submit(&jobs, &ctx, name.into(), SubmitOptions::new().priority(priority)).await;
        }
    }
    run_all(&jobs).await;
    let expected: Vec<&str> = [["critical"; 3], ["normal"; 3], ["low"; 3]].concat();
    assert_eq!(*log.lock(), expected);
    jobs.shutdown().await;
}

/// ORD-3.
pub async fn a_flood_of_one_tenant_does_not_hold_up_another(store: Arc<dyn Store>) {
    let log = Log::default();
    let jobs = logging(&store, &log).start().await.expect("starts");
    let (flood, other) = (tenant(1), tenant(2));
    for _ in 0..300 {
        submit(&jobs, &flood, "flood".into(), SubmitOptions::new()).await;
    }
    assert_eq!(tick(&jobs, 1).await.expect("runs"), 1);
    submit(&jobs, &other, "other".into(), SubmitOptions::new()).await;
    for _ in 0..5 {
        tick(&jobs, 1).await.expect("runs");
    }
    let place = log.lock().iter().position(|ran| ran == "other");
    assert!(place.is_some_and(|place| place <= 4), "the other tenant's job ran at place {place:?} of 300");
    jobs.shutdown().await;
}

/// ORD-4. Nodes look for work by themselves about once a second; a line of a key does not wait for that.
pub async fn the_next_of_an_ordering_key_starts_when_the_one_before_has_ended(store: Arc<dyn Store>) {
    let jobs = service(&store).function("note", (), |(), _: JobContext, _: u64| async { Ok::<_, JobError>(()) });
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let options = SubmitOptions::new().ordering_key("customer-7");
    let line = jobs.submit_payloads(&ctx, "note", super::quotas::inputs(40), options, false).await.expect("accepted").1;
    let last = line.into_iter().last().expect("forty jobs").expect("accepted").id;
    // By looks alone it would take half a minute.
    let view = jobs.wait(&ctx, last, Duration::from_secs(12)).await.expect("ends in time");
    assert_eq!(view.status, Status::Succeeded);
    jobs.shutdown().await;
}

/// ORD-4.
pub async fn an_ordering_key_runs_one_at_a_time_in_order(store: Arc<dyn Store>) {
    #[derive(Clone, Default)]
    struct Seen {
        order: Log,
        overlap: Counter,
        now: Counter,
    }
    let note = |seen: Seen, ctx: JobContext, what: String| async move {
        if seen.now.add() > 1 {
            seen.overlap.add();
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        seen.now.remove();
        if what == "2" && ctx.attempt() == 1 {
            return Err(JobError::retryable("once"));
        }
        seen.order.lock().push(what);
        Ok(())
    };
    let seen = Seen::default();
    let options = HandlerOptions::new().retry(quick_retries(3));
    let make = || service(&store).function_with("note", options.clone(), seen.clone(), note);
    let (one, two) = (make().start().await.expect("starts"), make().start().await.expect("starts"));
    let ctx = tenant(1);
    let mut last = None;
    for n in 0..20 {
        let from = if n % 2 == 0 { &one } else { &two };
        let options = SubmitOptions::new().ordering_key("customer-7");
        last = Some(from.submit_named(&ctx, "note", &n.to_string(), options).await.expect("accepted").id);
    }
    one.wait_for::<()>(&ctx, last.expect("twenty were submitted"), SOON).await.expect("succeeds");
    let expected: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(*seen.order.lock(), expected, "in order of submission, through a retry, over two nodes");
    assert_eq!(seen.overlap.get(), 0, "never two at once");
    one.shutdown().await;
    two.shutdown().await;
}
