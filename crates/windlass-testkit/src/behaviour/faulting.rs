//! Behaviours of a process whose store or handlers panic, fail or hang: RUN-7, RUN-10, API-8.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use windlass_core::store::Store;
use windlass_core::*;

use super::*;

/// How long a write of a store takes that fails: longer than any pause of the node's loops.
const SLOW: Duration = Duration::from_millis(300);

async fn nothing(_: (), _: JobContext, (): ()) -> Result<(), JobError> {
    Ok(())
}

/// A job with a key, which may be submitted again: it is claimed, not born leased.
async fn submit(jobs: &JobService, ctx: &SecurityContext, key: &str) -> Result<JobId, Error> {
    let options = SubmitOptions::new().idempotency_key(key);
    Ok(jobs.submit_named(ctx, "a", &(), options).await?.id)
}

/// RUN-7, API-8: whichever call of the store panics, jobs still end, and health shows what has panicked.
pub async fn jobs_end_although_the_store_panics(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let jobs = service(&counted).function("a", (), nothing).lease(Duration::from_millis(900));
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let mut events = jobs.events(&ctx);
    let calls =
        [("submit", "submit"), ("claim", "claim"), ("get", "lookup"), ("finish", "finish"), ("heartbeat", "heartbeat")];
    for (call, name) in calls {
        assert_eq!(panics(&jobs, name), 0);
        counting.panic_once(call);
        let id = match submit(&jobs, &ctx, call).await {
            Ok(id) => id,
            Err(error) => {
                assert_eq!((call, error.code()), ("submit", "unknown_outcome"), "{error}");
                submit(&jobs, &ctx, call).await.expect("it may be repeated with its key")
            }
        };
        until_status(&jobs, &ctx, id, Status::Succeeded).await;
        until("the panic to be shown", || async { panics(&jobs, name) == 1 }).await;
        assert_eq!(jobs.get(&ctx, id).await.expect("kept").failed, 0, "`{call}`: no attempt has failed");
        let told = async { while events.next().await.is_some_and(|e| (e.job, e.status) != (id, Status::Succeeded)) {} };
        assert!(tokio::time::timeout(SOON, told).await.is_ok(), "`{call}`: nobody was told that it succeeded");
    }
    until("the process to be ready again", || async { jobs.troubles().is_empty() }).await;
    jobs.shutdown().await;
}

/// RUN-7: what attempts came to is saved at last, also where the store fails and then panics when it is asked whether it
/// answers at all.
pub async fn ends_outlive_a_store_that_fails_and_panics(store: Arc<dyn Store>) {
    const JOBS: usize = 8;
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let ran = Counter::default();
    let count = |ran: Counter, _, (): ()| async move {
        ran.add();
        Ok::<_, JobError>(())
    };
    let jobs = service(&counted).function("a", ran.clone(), count).start().await.expect("starts");
    let ctx = tenant(1);
    // Once the clocks are compared, nobody else asks for the time for long.
    until("the clocks to be compared", || async { counting.calls("now") > 0 }).await;
    counting.hold_back("finish");
    let payloads = (0..JOBS).map(|_| Ok(Payload::null())).collect();
    jobs.submit_payloads(&ctx, "a", payloads, SubmitOptions::new(), false).await.expect("accepted");
    until("all to have run", || async { ran.get() == JOBS }).await;
    counting.fail_after("finish", Duration::ZERO);
    counting.panic_once("now");
    counting.let_go("finish");
    until("the store to panic", || async { panics(&jobs, "finish") == 1 }).await;
    counting.heal("finish");
    until("all to be saved", || async {
        jobs.counts(&ctx).await.is_ok_and(|counts| counts.get(Status::Succeeded) == JOBS as u64)
    })
    .await;
    assert_eq!(ran.get(), JOBS, "each ran once");
    jobs.shutdown().await;
}

/// RUN-7, API-8: a panic is not taken for a shutdown.
pub async fn a_call_that_panics_says_so_and_is_counted(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let jobs = service(&counted).function("a", (), nothing).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let id = submit(&jobs, &ctx, "k").await.expect("accepted");

    // Whether the node's own loop or the tick is what meets it: both promote. The loop goes on by itself.
    counting.hold_back("survey");
    until("a tick to panic", || async {
        counting.panic_once("promote");
        let ticked = jobs.tick(&tenant(2), 1).await;
        assert!(ticked.as_ref().is_ok_and(|ran| *ran == 0) || ticked.is_err_and(|e| e.code() == "internal_error"));
        panics(&jobs, "tick") == 1
    })
    .await;
    counting.heal("promote");
    counting.let_go("survey");

    let taken = jobs.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("claims");
    let ticket = taken[0].hold_for(Duration::from_secs(600));
    counting.panic_once("note");
    let renewed = jobs.renew(ticket, 10.0, "").await.expect_err("it panicked");
    assert_eq!((renewed.code(), panics(&jobs, "renew")), ("internal_error", 1));
    counting.panic_once("finish");
    let reported = jobs.mark_success(&taken[0], &"fine").await.expect_err("it panicked");
    assert_eq!((reported.code(), panics(&jobs, "report")), ("internal_error", 1));
    jobs.mark_success(&taken[0], &"fine").await.expect("it may be repeated");
    assert_eq!(jobs.status(&ctx, id).await.expect("kept"), Status::Succeeded);

    counting.panic_once("find");
    let bulk = jobs.bulk(&ctx, &JobFilter::all(), BulkAction::Purge, BulkOptions::default()).await.expect("begins");
    let end = bulk.wait().await;
    assert_eq!((end.state, end.error.as_deref()), (BulkState::Failed, Some("it panicked")));
    until("the panic to be shown", || async { panics(&jobs, "bulk") == 1 }).await;
    let again = jobs.bulk(&ctx, &JobFilter::all(), BulkAction::Purge, BulkOptions::default()).await.expect("begins");
    assert_eq!(again.wait().await.done, 1, "the next one works");
    jobs.shutdown().await;
}

/// RUN-10, API-8, OPS-9, OPS-10: a node takes no job by any way while what others came to cannot be saved, also while a
/// repeated write hangs.
pub async fn a_node_that_cannot_save_takes_no_more_jobs(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let ran = Counter::default();
    let count = |ran: Counter, _, (): ()| async move {
        ran.add();
        Ok::<_, JobError>(())
    };
    let jobs = service(&counted).function("a", ran.clone(), count).concurrency(1).start().await.expect("starts");
    let ctx = tenant(1);
    counting.fail_after("finish", SLOW);
    let first = submit(&jobs, &ctx, "first").await.expect("accepted");
    until("its end to be repeated", || async { counting.calls("finish") >= 2 }).await;
    let claims = counting.calls("claim");
    let second = jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    until("several repeats", || async {
        assert!(!jobs.troubles().is_empty(), "it is not ready, also while the store hangs");
        assert_eq!(jobs.tick(&ctx, 1).await.expect("looks"), 0);
        assert!(jobs.checkout(&ctx, &[DEFAULT_QUEUE], 1).await.expect("looks").is_empty());
        counting.calls("finish") >= 6
    })
    .await;
    assert_eq!((ran.get(), counting.calls("claim")), (1, claims), "nothing was taken meanwhile");
    counting.heal("finish");
    for id in [first, second] {
        until_status(&jobs, &ctx, id, Status::Succeeded).await;
    }
    assert_eq!(ran.get(), 2, "each ran once");
    until("it to be ready", || async { jobs.troubles().is_empty() }).await;
    jobs.shutdown().await;
}

/// RUN-10, API-8: one end that cannot be saved is a trouble too, once nothing has been saved for a lease; while other ends
/// are saved it is none.
pub async fn a_node_that_saves_nothing_for_a_lease_says_so(store: Arc<dyn Store>) {
    const LEASE: Duration = Duration::from_secs(2);
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let jobs = service(&counted).function("a", (), nothing).concurrency(100).lease(LEASE);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    counting.fail_after("finish", Duration::ZERO);
    let ended = std::time::Instant::now();
    let id = submit(&jobs, &ctx, "k").await.expect("accepted");
    until("its end to be repeated", || async { counting.calls("finish") >= 2 }).await;
    until("the node to say so", || async {
        let troubles = jobs.troubles();
        assert!(troubles.is_empty() || ended.elapsed() >= LEASE, "after {:?}: {troubles:?}", ended.elapsed());
        troubles.iter().any(|trouble| trouble.contains("cannot be saved"))
    })
    .await;
    counting.heal("finish");
    until_status(&jobs, &ctx, id, Status::Succeeded).await;
    until("it to be ready", || async { jobs.troubles().is_empty() }).await;
    jobs.shutdown().await;
}

/// What a handler holds that panics when it is dropped.
struct Explosive;

impl Drop for Explosive {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// RUN-7, SUB-11: what the handler itself cannot catch is its failure all the same, and costs nobody else anything.
pub async fn a_handler_that_panics_while_it_is_dropped_fails_its_attempt(store: Arc<dyn Store>) {
    let hang = |_: (), _: JobContext, (): ()| async {
        let _explosive = Explosive;
        std::future::pending::<Result<(), JobError>>().await
    };
    let once = || HandlerOptions::new().retry(RetryPolicy::never()).timeout(Duration::from_millis(50));
    let jobs = service(&store).function_with("stored", once(), (), hang);
    let jobs = jobs.function_with("fleeting", once().restartable(false), (), hang).start().await.expect("starts");
    let ctx = tenant(1);
    for handler in ["stored", "fleeting"] {
        let id = jobs.submit_named(&ctx, handler, &(), SubmitOptions::new()).await.expect("accepted").id;
        let view = jobs.wait(&ctx, id, SOON).await.expect("ends");
        let code = view.error.map(|error| error.code);
        assert_eq!((view.status, code.as_deref()), (Status::DeadLettered, Some("job_timeout")), "{handler}");
    }
    assert_eq!(jobs.running(), 0);
    jobs.shutdown().await;
}
