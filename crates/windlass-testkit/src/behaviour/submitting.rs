//! Behaviours of submitting: SUB-1 to SUB-12.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::store::Store;
use windlass_core::*;

use super::*;

#[derive(Serialize, Deserialize)]
pub(crate) struct Add {
    pub(crate) a: i64,
    pub(crate) b: i64,
}

/// Adds two numbers; refuses negative ones when they are submitted.
pub(crate) struct Adder;

impl JobHandler for Adder {
    const ID: &'static str = "math.add";
    type Input = Add;
    type Output = i64;

    async fn execute(&self, _: &JobContext, input: Add) -> Result<i64, JobError> {
        Ok(input.a + input.b)
    }

    fn validate(&self, input: &Add) -> Result<(), InvalidInput> {
        if input.a < 0 { Err(InvalidInput::new("a", "is negative")) } else { Ok(()) }
    }
}

/// SUB-1, RUN-1, RUN-3.
pub async fn a_submitted_job_runs_and_its_result_can_be_read(store: Arc<dyn Store>) {
    let jobs = service(&store).handler(Adder).start().await.expect("starts");
    let ctx = tenant(1);
    let first = jobs.submit::<Adder>(&ctx, Add { a: 2, b: 3 }).await.expect("accepted");
    let second = jobs.submit::<Adder>(&ctx, Add { a: 20, b: 30 }).await.expect("accepted");
    assert!(second > first, "ids sort by time");
    assert_eq!(jobs.wait_for::<i64>(&ctx, first, SOON).await.expect("succeeds"), 5);
    assert_eq!(jobs.wait_for::<i64>(&ctx, second, SOON).await.expect("succeeds"), 50);
    assert_eq!(jobs.result::<i64>(&ctx, first).await.expect("readable"), Some(5));
    let record = jobs.get(&ctx, first).await.expect("kept");
    assert_eq!((record.status, record.attempt, record.handler.as_str()), (Status::Succeeded, 1, "math.add"));
    assert!(record.started_at >= Some(record.created_at - Duration::from_millis(100)));
    jobs.shutdown().await;
}

/// RUN-1.
pub async fn a_plain_function_is_a_handler_with_state(store: Arc<dyn Store>) {
    async fn greet(greeting: Arc<String>, ctx: JobContext, name: String) -> Result<String, JobError> {
        Ok(format!("{greeting}, {name} of {}!", ctx.tenant()))
    }
    let state = Arc::new("Hello".to_owned());
    let jobs = service(&store).function("greet", state, greet).start().await.expect("starts");
    let ctx = tenant(1);
    let job = jobs.submit_named(&ctx, "greet", "Ada", SubmitOptions::new()).await.expect("accepted");
    let greeting: String = jobs.wait_for(&ctx, job.id, SOON).await.expect("succeeds");
    assert_eq!(greeting, format!("Hello, Ada of {}!", ctx.tenant));
    jobs.shutdown().await;
}

/// SUB-2, RUN-8.
pub async fn options_reach_the_handler(store: Arc<dyn Store>) {
    async fn tell(_: (), ctx: JobContext, _: ()) -> Result<serde_json::Value, JobError> {
        Ok(serde_json::json!({
            "user": ctx.user(), "correlation": ctx.correlation_id(), "headers": ctx.headers(), "tags": ctx.tags(),
            "attempt": ctx.attempt(), "tenant": ctx.tenant(), "job": ctx.job_id(), "handler": ctx.handler(),
        }))
    }
    let jobs = service(&store).function("tell", (), tell).start().await.expect("starts");
    let ctx = tenant(1).with_correlation_id("request-9");
    let options = SubmitOptions::new().tag("red").header("trace", "abc").priority(Priority::HIGH);
    let options = options.timeout(Duration::from_secs(9)).retry(quick_retries(7));
    let job = jobs.submit_named(&ctx, "tell", &(), options).await.expect("accepted").id;
    let told: serde_json::Value = jobs.wait_for(&ctx, job, SOON).await.expect("succeeds");
    assert_eq!(
        told,
        serde_json::json!({
            "user": "user-1", "correlation": "request-9", "headers": { "trace": "abc" }, "tags": ["red"],
            "attempt": 1, "tenant": ctx.tenant, "job": job, "handler": "tell",
        })
    );
    let record = jobs.get(&ctx, job).await.expect("kept");
    assert_eq!((record.priority, record.tags), (Priority::HIGH, vec!["red".to_owned()]));
    assert_eq!(record.spec.timeout, Some(Duration::from_secs(9)));
    assert_eq!(record.spec.retry.map(|retry| retry.max_attempts), Some(7));
    jobs.shutdown().await;
}

/// SUB-4.
pub async fn many_jobs_are_submitted_in_order_with_one_batch(store: Arc<dyn Store>) {
    let jobs = service(&store).handler(Adder).start().await.expect("starts");
    let ctx = tenant(1);
    let inputs = (0..300).map(|n| Add { a: n, b: 1 }).collect();
    let batch = jobs.submit_many::<Adder>(&ctx, inputs, SubmitOptions::new()).await.expect("accepted");
    assert_eq!(batch.jobs.len(), 300);
    assert!(batch.jobs.is_sorted_by_key(|job| job.id) && batch.jobs.iter().all(|job| !job.duplicate));
    for n in [0usize, 150, 299] {
        let sum: i64 = jobs.wait_for(&ctx, batch.jobs[n].id, SOON).await.expect("succeeds");
        assert_eq!(sum, n as i64 + 1, "ids are in the order of the inputs");
    }
    let mut filter = JobFilter::all();
    filter.batch = Some(batch.batch);
    assert_eq!(jobs.list(&ctx, &filter, Page::first(200)).await.expect("lists").len(), 200);
    jobs.shutdown().await;
}

/// SUB-5, SUB-9.
pub async fn a_bad_batch_names_every_bad_item_and_stores_nothing(store: Arc<dyn Store>) {
    let jobs = service(&store).handler(Adder).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let inputs = [1, -1, 2, -2].map(|a| Add { a, b: 0 }).into();
    let error = jobs.submit_many::<Adder>(&ctx, inputs, SubmitOptions::new()).await.expect_err("refused");
    let Error::InvalidBatch(bad) = &error else { panic!("a batch error, not {error}") };
    assert_eq!(
        bad.iter().map(|item| (item.index, item.error.field.as_str())).collect::<Vec<_>>(),
        [(1, "a"), (3, "a")]
    );
    assert_eq!(error.code(), "invalid_input");
    let too_many = (0..1_001).map(|a| Add { a, b: 0 }).collect();
    let error = jobs.submit_many::<Adder>(&ctx, too_many, SubmitOptions::new()).await.expect_err("refused");
    assert!(matches!(error, Error::InvalidInput(InvalidInput { field, .. }) if field == "batch"));
    assert_eq!(jobs.counts(&ctx).await.expect("counts").unfinished(), 0, "nothing was written");
    jobs.shutdown().await;
}

/// SUB-5.
pub async fn a_partial_batch_stores_what_is_good(store: Arc<dyn Store>) {
    let jobs = service(&store).handler(Adder).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let inputs = [1, -1, 2].map(|a| Add { a, b: 0 }).into();
    let answers = jobs.submit_partial::<Adder>(&ctx, inputs, SubmitOptions::new()).await.expect("accepted");
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(jobs.counts(&ctx).await.expect("counts").get(Status::Pending), 2);
    jobs.shutdown().await;
}

/// SUB-4.
pub async fn concurrent_submits_are_coalesced(store: Arc<dyn Store>) {
    let jobs = service(&store).handler(Adder).start().await.expect("starts");
    let ctx = tenant(1);
    let submits = (0..500).map(|n| {
        let (jobs, ctx) = (jobs.clone(), ctx.clone());
        tokio::spawn(async move { jobs.submit::<Adder>(&ctx, Add { a: n, b: n }).await.map(|id| (n, id)) })
    });
    let mut ids = HashSet::new();
    for submit in submits.collect::<Vec<_>>() {
        let (n, id) = submit.await.expect("no panic").expect("accepted");
        assert!(ids.insert(id));
        assert_eq!(jobs.wait_for::<i64>(&ctx, id, SOON).await.expect("succeeds"), 2 * n, "each caller has its own job");
    }
    jobs.shutdown().await;
}

/// SUB-6.
pub async fn sixty_four_submits_with_one_key_make_one_job(store: Arc<dyn Store>) {
    let ran = Counter::default();
    let count = |ran: Counter, _: JobContext, _: i64| async move { Ok::<_, JobError>(ran.add()) };
    let jobs = service(&store).function("count", ran.clone(), count).start().await.expect("starts");
    let ctx = tenant(1);
    for round in ["before it ends", "after it has ended"] {
        let submits = (0..64).map(|n| {
            let (jobs, ctx) = (jobs.clone(), ctx.clone());
            let options = SubmitOptions::new().idempotency_key("once");
            tokio::spawn(async move { jobs.submit_named(&ctx, "count", &n, options).await })
        });
        let mut answers = Vec::new();
        for submit in submits.collect::<Vec<_>>() {
            answers.push(submit.await.expect("no panic").expect("accepted"));
        }
        let ids: HashSet<JobId> = answers.iter().map(|answer| answer.id).collect();
        assert_eq!(ids.len(), 1, "one job, {round}");
        jobs.wait(&ctx, answers[0].id, SOON).await.expect("ends");
    }
    assert_eq!(ran.get(), 1);
    let id = jobs.list(&ctx, &JobFilter::all(), Page::default()).await.expect("lists")[0].id;
    jobs.purge(&ctx, id).await.expect("purged");
    let options = SubmitOptions::new().idempotency_key("once");
    let again = jobs.submit_named(&ctx, "count", &0, options).await.expect("accepted");
    assert!(!again.duplicate && again.id != id, "a purged job frees its key");
    jobs.shutdown().await;
}

/// SUB-7.
pub async fn equal_content_is_one_job_while_it_waits(store: Arc<dyn Store>) {
    let jobs = service(&store).handler(Adder).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let unique = || SubmitOptions::new().unique(UniqueWithin::Unfinished);
    let add = |a| Add { a, b: 0 };
    let first = jobs.submit_with::<Adder>(&ctx, add(1), unique()).await.expect("accepted");
    let same = jobs.submit_with::<Adder>(&ctx, add(1), unique()).await.expect("accepted");
    let other = jobs.submit_with::<Adder>(&ctx, add(2), unique()).await.expect("accepted");
    let elsewhere = jobs.submit_with::<Adder>(&tenant(2), add(1), unique()).await.expect("accepted");
    assert_eq!((same.id, same.duplicate), (first.id, true));
    assert!(!other.duplicate && !elsewhere.duplicate);
    while jobs.tick(10).await.expect("runs") > 0 {}
    let again = jobs.submit_with::<Adder>(&ctx, add(1), unique()).await.expect("accepted");
    assert!(!again.duplicate, "free once the first has ended");
    jobs.shutdown().await;
}

/// SUB-8, SUB-9, SUB-10.
pub async fn bad_input_is_refused_by_field_and_nothing_is_written(store: Arc<dyn Store>) {
    let jobs = service(&store).handler(Adder).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    assert_eq!(SecurityContext::parse("not-a-tenant", "u").expect_err("refused").field, "tenant");
    let add = || Add { a: 1, b: 1 };
    let refused = |result: Result<windlass_core::store::Submitted, Error>| match result.expect_err("refused") {
        Error::InvalidInput(error) => error.field,
        other => other.code().to_owned(),
    };
    let with = |options| jobs.submit_with::<Adder>(&ctx, add(), options);
    assert_eq!(refused(with(SubmitOptions::new().idempotency_key("x".repeat(257))).await), "idempotency_key");
    assert_eq!(refused(with(SubmitOptions::new().ordering_key("\0")).await), "ordering_key");
    assert_eq!(refused(with(SubmitOptions::new().delay(Duration::MAX)).await), "start");
    let named = |handler: &'static str, input: serde_json::Value| {
        let (jobs, ctx) = (jobs.clone(), ctx.clone());
        async move { jobs.submit_named(&ctx, handler, &input, SubmitOptions::new()).await }
    };
    assert_eq!(refused(named("math.add", serde_json::json!({ "a": "one" })).await), "input");
    assert_eq!(refused(named("math.add", serde_json::json!("x".repeat(300_000))).await), "input");
    assert_eq!(refused(named("math.add", serde_json::json!("a\u{0}b")).await), "input");
    let deep = (0..100).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
    assert_eq!(refused(named("math.add", deep).await), "input");
    assert_eq!(refused(named("nobody.has.this", serde_json::json!({})).await), "handler_not_found");
    assert_eq!(refused(named("", serde_json::json!({})).await), "handler");
    let error = jobs.list(&ctx, &JobFilter::all(), Page::first(201)).await.expect_err("refused");
    assert!(matches!(error, Error::InvalidInput(InvalidInput { field, .. }) if field == "limit"));
    assert_eq!(jobs.counts(&ctx).await.expect("counts").unfinished(), 0, "nothing was written");
    jobs.shutdown().await;
}

/// SUB-10.
pub async fn an_unknown_handler_is_refused_unless_another_node_has_it(store: Arc<dyn Store>) {
    let ctx = tenant(1);
    let web = service(&store).function("web.only", (), |_: (), _, (): ()| async { Ok::<_, JobError>(()) });
    let web = web.remote_handler("declared.elsewhere").start().await.expect("starts");
    let submit = |handler: &'static str| {
        let (web, ctx) = (web.clone(), ctx.clone());
        async move { web.submit_named(&ctx, handler, &Add { a: 1, b: 2 }, SubmitOptions::new()).await }
    };
    assert!(matches!(submit("math.add").await, Err(Error::HandlerNotFound(_))));
    assert!(submit("declared.elsewhere").await.is_ok());
    let other = service(&store).handler(Adder).start().await.expect("starts");
    let job = submit("math.add").await.expect("the other node has it").id;
    assert_eq!(web.wait_for::<i64>(&ctx, job, SOON).await.expect("the other node runs it"), 3);
    web.shutdown().await;
    other.shutdown().await;
}

/// SUB-11.
pub async fn spawned_closures_have_status_cancel_and_backpressure(store: Arc<dyn Store>) {
    let small = service(&store).configure(|config| {
        config.spawn_capacity = 2;
        config.spawn_concurrency = 1;
    });
    let jobs = small.start().await.expect("starts");
    let ctx = tenant(1);
    let door = Door::closed();
    let not_serializable = std::rc::Rc::new(1);
    assert_eq!(*not_serializable, 1);
    let held = {
        let door = door.clone();
        let code = |ctx: JobContext| async move {
            ctx.report_progress(10.0, "holding");
            door.pass().await;
            Ok("done".to_owned())
        };
        jobs.spawn(&ctx, "hold", code).expect("taken")
    };
    until("the closure to run", || async { door.waiting.get() == 1 }).await;
    let record = jobs.get(&ctx, held.id).await.expect("known");
    assert_eq!((record.status, record.progress.map(|p| p.percent)), (Status::Running, Some(10.0)));
    assert!(matches!(jobs.get(&tenant(2), held.id).await, Err(Error::NotFound(_))), "other tenants see nothing");
    let quick = || jobs.spawn(&ctx, "quick", |_| async { Ok(()) });
    // One more may be in the dispatcher's hand, waiting for the slot.
    let mut waiting: Vec<Spawned<()>> = Vec::new();
    let error = loop {
        match quick() {
            Ok(spawned) => waiting.push(spawned),
            Err(error) => break error,
        }
    };
    assert!((2..=3).contains(&waiting.len()), "the channel holds two, not {}", waiting.len());
    assert_eq!(error.code(), "backpressure");
    let canceled = waiting.pop().expect("one waits");
    jobs.cancel(&ctx, canceled.id, "not needed").await.expect("canceled");
    door.open();
    assert_eq!(held.join().await.expect("succeeds"), "done");
    assert_eq!(canceled.join().await.expect_err("canceled").code(), "job_canceled");
    for quick in waiting {
        quick.join().await.expect("succeeds");
    }
    assert_eq!(jobs.counts(&ctx).await.expect("counts"), Default::default(), "nothing was written");
    jobs.shutdown().await;
}

/// SUB-11.
pub async fn a_spawned_closure_can_panic_and_time_out(store: Arc<dyn Store>) {
    let quick = service(&store).configure(|config| {
        config.timeout = Duration::from_millis(50);
        config.grace = Duration::from_millis(10);
    });
    let jobs = quick.start().await.expect("starts");
    let ctx = tenant(1);
    async fn boom(_: JobContext) -> Result<(), JobError> {
        panic!("boom")
    }
    let error = jobs.spawn(&ctx, "boom", boom).expect("taken").join().await.expect_err("panicked");
    assert!(error.to_string().contains("panic"), "{error}");
    let endless = |_| async {
        std::future::pending::<()>().await;
        Ok(())
    };
    let error = jobs.spawn(&ctx, "endless", endless).expect("taken").join().await.expect_err("timed out");
    assert!(error.to_string().contains("job_timeout"), "{error}");
    jobs.shutdown().await;
}

/// SUB-12.
pub async fn submit_and_wait_returns_the_typed_output_and_error(store: Arc<dyn Store>) {
    let fail = |_: (), _, (): ()| async { Err::<(), _>(JobError::terminal("no_luck", "never works")) };
    let jobs = service(&store).handler(Adder).function("fail", (), fail).start().await.expect("starts");
    let ctx = tenant(1);
    let keyed = || SubmitOptions::new().idempotency_key("sum");
    let sum = jobs.submit_and_wait::<Adder>(&ctx, Add { a: 1, b: 2 }, keyed(), SOON).await.expect("succeeds");
    let again = jobs.submit_and_wait::<Adder>(&ctx, Add { a: 9, b: 9 }, keyed(), SOON).await.expect("the first's");
    assert_eq!((sum, again), (3, 3), "a waiter that comes again gets the same job's result");
    let job = jobs.submit_named(&ctx, "fail", &(), SubmitOptions::new()).await.expect("accepted").id;
    let error = jobs.wait_for::<()>(&ctx, job, SOON).await.expect_err("fails");
    let Error::JobFailed { status: Status::DeadLettered, error, .. } = error else { panic!("{error}") };
    assert_eq!(error.code, "no_luck");
    jobs.shutdown().await;
}

/// SUB-12.
pub async fn many_waiters_share_one_look(store: Arc<dyn Store>) {
    let door = Door::closed();
    let hold = |door: Door, _, n: usize| async move {
        door.pass().await;
        Ok::<_, JobError>(n)
    };
    // Another service runs the jobs, so that nothing reaches the waiters in process.
    let runner = service(&store).function("hold", door.clone(), hold);
    let runner = runner.configure(|config| config.concurrency = 300).start().await.expect("starts");
    let waiter = service(&store).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let waits = (0..200usize).map(|n| {
        let (waiter, ctx) = (waiter.clone(), ctx.clone());
        tokio::spawn(async move {
            let job = waiter.submit_named(&ctx, "hold", &n, SubmitOptions::new()).await.expect("accepted");
            waiter.wait_for::<usize>(&ctx, job.id, SOON).await
        })
    });
    let waits: Vec<_> = waits.collect();
    until("all to run", || async { door.waiting.get() == 200 }).await;
    door.open();
    for (n, wait) in waits.into_iter().enumerate() {
        assert_eq!(wait.await.expect("no panic").expect("succeeds"), n);
    }
    waiter.shutdown().await;
    runner.shutdown().await;
}
