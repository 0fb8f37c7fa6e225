//! Behaviours of submitting: SUB-1 to SUB-12.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use windlass_core::store::{AuditFilter, CancelReply, Store};
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

/// SUB-2, RUN-8, RUN-16.
pub async fn options_reach_the_handler(store: Arc<dyn Store>) {
    async fn tell(_: (), ctx: JobContext, _: ()) -> Result<serde_json::Value, JobError> {
        Ok(serde_json::json!({
            "user": ctx.user_id(), "service": ctx.service_id(), "nominal": ctx.nominal_at(),
            "correlation": ctx.correlation_id(), "headers": ctx.headers(), "tags": ctx.tags(),
            "attempt": ctx.attempt(), "tenant": ctx.tenant(), "job": ctx.job_id(), "handler": ctx.handler(),
        }))
    }
    let jobs = service(&store).function("tell", (), tell).configure(|config| config.service_id = Some("shop".into()));
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1).with_correlation_id("request-9");
    let nominal = Timestamp::from_millis(1_800_000_000_000);
    let options = SubmitOptions::new().tag("red").header("trace", "abc").priority(Priority::HIGH);
    let options = options.timeout(Duration::from_secs(9)).retry(quick_retries(7)).nominal_at(nominal);
    let job = jobs.submit_named(&ctx, "tell", &(), options).await.expect("accepted").id;
    let told: serde_json::Value = jobs.wait_for(&ctx, job, SOON).await.expect("succeeds");
    assert_eq!(
        told,
        serde_json::json!({
            "user": "user-1", "service": "shop", "nominal": nominal, "correlation": "request-9", "headers": { "trace": "abc" }, "tags": ["red"],
            "attempt": 1, "tenant": ctx.tenant, "job": job, "handler": "tell",
        })
    );
    let record = jobs.get(&ctx, job).await.expect("kept");
    assert_eq!((record.priority, record.tags), (Priority::HIGH, vec!["red".to_owned()]));
    assert_eq!(record.spec.timeout, Some(Duration::from_secs(9)));
    assert_eq!(record.spec.retry.map(|retry| retry.max_attempts), Some(7));
    // Who calls may say that it calls for another service.
    let ctx = ctx.with_service("billing");
    let job = jobs.submit_named(&ctx, "tell", &(), SubmitOptions::new()).await.expect("accepted").id;
    let told: serde_json::Value = jobs.wait_for(&ctx, job, SOON).await.expect("succeeds");
    assert_eq!((&told["service"], &told["nominal"]), (&serde_json::json!("billing"), &serde_json::Value::Null));
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

/// SUB-13: every input of a batch with a key has a key of its own, and repeating the batch returns the same jobs.
pub async fn a_batch_with_a_key_can_be_repeated(store: Arc<dyn Store>) {
    let jobs = service(&store).handler(Adder).start().await.expect("starts");
    let ctx = tenant(1);
    let inputs = |n: i64| (0..n).map(|n| Add { a: n, b: 1 }).collect::<Vec<_>>();
    let keyed = || SubmitOptions::new().idempotency_key("night");
    let first = jobs.submit_many::<Adder>(&ctx, inputs(3), keyed()).await.expect("accepted");
    assert!(first.jobs.iter().all(|job| !job.duplicate), "{first:?}");
    let again = jobs.submit_many::<Adder>(&ctx, inputs(4), keyed()).await.expect("accepted");
    let ids = |batch: &Batch| batch.jobs.iter().map(|job| job.id).collect::<Vec<_>>();
    assert_eq!(ids(&again)[..3], ids(&first));
    assert_eq!(again.jobs.iter().map(|job| job.duplicate).collect::<Vec<_>>(), [true, true, true, false]);
    let one = jobs.submit_with::<Adder>(&ctx, Add { a: 9, b: 9 }, SubmitOptions::new().idempotency_key("night:1"));
    assert_eq!(one.await.expect("answered").id, first.jobs[1].id, "its key is `key:i`");
    let bad = jobs.submit_many::<Adder>(&ctx, inputs(2), SubmitOptions::new().idempotency_key("")).await;
    assert_eq!(bad.expect_err("refused").code(), "invalid_input");
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

/// SUB-4: while the writers are busy, whoever comes waits for the same next write.
pub async fn concurrent_submits_are_coalesced(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let jobs = service(&counted).handler(Adder).start().await.expect("starts");
    let ctx = tenant(1);
    counting.hold_back("submit");
    let submit = |n| Box::pin(jobs.submit::<Adder>(&ctx, Add { a: n, b: n }));
    let mut submits: Vec<_> = (0..500).map(submit).collect();
    begin_all(&mut submits).await;
    until("the first of them to reach the store", || async { counting.calls("submit") > 0 }).await;
    counting.let_go("submit");
    let mut ids = HashSet::new();
    for (n, id) in futures_util::future::join_all(submits).await.into_iter().enumerate() {
        let id = id.expect("accepted");
        assert!(ids.insert(id));
        let sum = jobs.wait_for::<i64>(&ctx, id, SOON).await.expect("succeeds");
        assert_eq!(sum, 2 * n as i64, "each caller has its own job");
    }
    // Each writer may have begun with some of them; the next write takes all others.
    let writes = counting.calls("submit");
    assert!(writes <= store.writers() + 1, "{writes} writes for 500 submits by {} writers", store.writers());
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
    while tick(&jobs, 10).await.expect("runs") > 0 {}
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

/// SUB-9, OPS-8: what begins with `windlass.` is the engine's own. Were it anybody's, a caller could forge what webhooks
/// are told, or keep them from being told by taking the keys of the deliveries to come.
pub async fn names_of_the_engine_are_refused_wherever_a_caller_can_give_one(store: Arc<dyn Store>) {
    let nothing = |_: (), _: JobContext, _: serde_json::Value| async { Ok::<_, JobError>(()) };
    let deliver = |_: (), _: JobContext, _: WebhookDelivery| async { Ok::<_, JobError>(()) };
    let field = |error: Error| match error {
        Error::InvalidInput(bad) => bad.field,
        other => other.code().to_owned(),
    };
    let taken = service(&store).function("windlass.webhook", (), nothing).start().await.expect_err("refused");
    assert_eq!(field(taken), "handler");
    let queue = HandlerOptions::new().queue("windlass.webhook");
    let taken = service(&store).function_with("a", queue, (), nothing).start().await.expect_err("refused");
    assert_eq!(field(taken), "queue");

    let jobs = service(&store).function("a", (), nothing).webhook_handler(HandlerOptions::new(), (), deliver);
    let jobs = jobs.without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let new = SubmitOptions::new;
    let cases = [
        (WEBHOOK_HANDLER, new(), "handler"),
        ("windlass.anything", new(), "handler"),
        ("a", new().queue(WEBHOOK_HANDLER), "queue"),
        ("a", new().idempotency_key("windlass.webhook:1:2"), "idempotency_key"),
        ("a", new().ordering_key("windlass.x"), "ordering_key"),
        ("a", new().unique_key("windlass.x", UniqueWithin::Unfinished), "unique_key"),
    ];
    for (handler, options, bad) in cases {
        let one = jobs.submit_named(&ctx, handler, &(), options.clone()).await.expect_err("refused");
        assert_eq!(field(one), bad, "{handler}");
        let prepared = jobs.prepare_named(&ctx, handler, &(), options.clone()).await.expect_err("refused");
        assert_eq!(field(prepared), bad, "{handler} in a transaction");
        let payloads = vec![Payload::encode("input", &(), 16)];
        let many = jobs.submit_payloads(&ctx, handler, payloads, options, true).await.expect_err("refused");
        assert_eq!(field(many), bad, "{handler} in a batch");
    }
    for queue in [WEBHOOK_HANDLER, "windlass.anything", "suspect:windlass.webhook", "suspect-again:windlass.webhook"] {
        let own = jobs.checkout(&ctx, &["a", queue], 1).await.expect_err("refused");
        let all = jobs.operator(OperatorRight::assume()).checkout(&[queue], 1).await.expect_err("refused");
        assert_eq!((field(own), field(all)), ("queue".to_owned(), "queue".to_owned()), "{queue} for workers outside");
    }
    assert_eq!(jobs.counts(&ctx).await.expect("counts").unfinished(), 0, "nothing was written");
    let ok = new().queue("windlass").idempotency_key("my.windlass.key").ordering_key("windlass");
    jobs.submit_named(&ctx, "a", &(), ok).await.expect("only the prefix is reserved");
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
    assert!(error.to_string().contains("panicked: boom"), "with its message: {error}");
    let endless = |_| async {
        std::future::pending::<()>().await;
        Ok(())
    };
    let error = jobs.spawn(&ctx, "endless", endless).expect("taken").join().await.expect_err("timed out");
    assert!(error.to_string().contains("job_timeout"), "{error}");
    jobs.shutdown().await;
}

/// A handler whose jobs run in memory; the input says how.
struct Fleeting {
    ran: Counter,
    door: Door,
}

impl JobHandler for Fleeting {
    const ID: &'static str = "fleeting";
    type Input = String;
    type Output = u16;

    fn options(&self) -> HandlerOptions {
        HandlerOptions::new().restartable(false).retry(quick_retries(2))
    }

    async fn execute(&self, ctx: &JobContext, how: String) -> Result<u16, JobError> {
        self.ran.add();
        match how.as_str() {
            "hold" => {
                ctx.report_progress(40.0, "holding");
                self.door.pass().await;
            }
            "stubborn" if ctx.attempt() == 1 => return Err(JobError::retryable("once more")),
            "fail" => return Err(JobError::terminal("bad", "never")),
            "panic" => panic!("the sky is falling"),
            "sleep" => tokio::time::sleep(Duration::from_secs(60)).await,
            _ => {}
        }
        ctx.record_cost(Cost::new(5, 0));
        Ok(ctx.attempt())
    }

    async fn on_failure(&self, ctx: &JobContext, _: String, error: JobError) -> Result<(), JobError> {
        if error.code == "bad" && ctx.parent().is_some() {
            self.ran.add();
        }
        Ok(())
    }
}

/// RUN-14, SUB-11: jobs of a handler that is not restartable run in memory, and every call serves them as it serves
/// stored ones.
pub async fn jobs_that_are_not_restartable_are_served_by_the_same_calls(store: Arc<dyn Store>) {
    let (ran, door) = (Counter::default(), Door::closed());
    let jobs = service(&store).handler(Fleeting { ran: ran.clone(), door: door.clone() }).configure(|config| {
        config.spawn_capacity = 4;
        config.spawn_concurrency = 2;
    });
    let jobs = jobs.start().await.expect("starts");
    let (ctx, other) = (tenant(1), tenant(2));
    let submit = async |how: &str, options: SubmitOptions| {
        jobs.submit_with::<Fleeting>(&ctx, how.to_owned(), options).await.expect("taken")
    };
    let new = SubmitOptions::new;

    let mut events = jobs.events(&ctx);
    let held = submit("hold", new().idempotency_key("k").tag("red")).await;
    until("it to run", || async { door.waiting.get() == 1 }).await;
    let record = jobs.get(&ctx, held.id).await.expect("known");
    assert_eq!((record.status, record.attempt, record.tags.as_slice()), (Status::Running, 1, &["red".to_owned()][..]));
    assert_eq!(record.progress.map(|progress| progress.percent), Some(40.0));
    assert!(matches!(jobs.get(&other, held.id).await, Err(Error::NotFound(_))), "other tenants see nothing");
    assert!(matches!(jobs.watch(&other, held.id, 0).await, Err(Error::NotFound(_))));
    assert_eq!(jobs.result::<u16>(&ctx, held.id).await.expect("known"), None, "not yet");
    let again = submit("hold", new().idempotency_key("k")).await;
    assert_eq!((again.id, again.duplicate), (held.id, true), "while it runs");
    let theirs = jobs.submit_with::<Fleeting>(&other, "quick".into(), new().idempotency_key("k")).await.expect("taken");
    assert!(!theirs.duplicate, "another tenant's key is another key");
    assert!(matches!(jobs.wait(&ctx, held.id, Duration::from_millis(20)).await, Err(Error::Timeout(_))));
    let views = jobs.watch(&ctx, held.id, 0).await.expect("watched");
    door.open();
    let views: Vec<_> = tokio::time::timeout(SOON, views.collect()).await.expect("the stream ends with the job");
    assert_eq!(views.first().and_then(|view| view.progress.as_ref()).map(|p| p.percent), Some(40.0));
    assert_eq!(views.last().map(|view| view.status), Some(Status::Succeeded));
    assert_eq!(jobs.result::<u16>(&ctx, held.id).await.expect("ended"), Some(1));
    let again = submit("hold", new().idempotency_key("k")).await;
    assert_eq!((again.id, again.duplicate), (held.id, true), "and after it has ended");
    assert_eq!(jobs.get(&ctx, held.id).await.expect("known").cost, Some(Cost::new(5, 0)));
    assert!(matches!(jobs.cancel(&ctx, held.id, "").await, Err(Error::AlreadyFinished { .. })));
    let seen = async {
        let mut seen = Vec::new();
        while seen.last() != Some(&Status::Succeeded) {
            let event = events.next().await.expect("the service runs");
            seen.extend((event.job == held.id).then_some(event.status));
        }
        seen
    };
    assert_eq!(tokio::time::timeout(SOON, seen).await.expect("told"), [Status::Running, Status::Succeeded]);

    let stubborn = submit("stubborn", new()).await.id;
    assert_eq!(jobs.wait_for::<u16>(&ctx, stubborn, SOON).await.expect("succeeds"), 2, "failures are retried");
    let panicked = submit("panic", new().retry(RetryPolicy::never())).await.id;
    let view = jobs.wait(&ctx, panicked, SOON).await.expect("ends");
    let error = view.error.expect("why");
    assert!(error.code == "panic" && error.message.contains("the sky is falling"), "{error}");
    let slow = submit("sleep", new().timeout(Duration::from_millis(30)).retry(RetryPolicy::never())).await.id;
    let view = jobs.wait(&ctx, slow, SOON).await.expect("ends");
    assert_eq!((view.status, view.error.map(|error| error.code)), (Status::DeadLettered, Some("job_timeout".into())));
    let running = submit("sleep", new()).await.id;
    until_status(&jobs, &ctx, running, Status::Running).await;
    assert_eq!(jobs.cancel(&ctx, running, "").await.expect("asked"), CancelReply::Requested);
    assert_eq!(jobs.wait(&ctx, running, SOON).await.expect("ends").status, Status::Canceled);
    let later = submit("quick", new().delay(Duration::from_secs(60))).await.id;
    assert_eq!(jobs.status(&ctx, later).await.expect("known"), Status::Scheduled);
    assert_eq!(jobs.cancel(&ctx, later, "").await.expect("canceled"), CancelReply::Canceled);
    assert_eq!(jobs.status(&ctx, later).await.expect("known"), Status::Canceled, "at once, while it waits");
    let before = ran.get();
    let failed = submit("fail", new()).await.id;
    assert_eq!(jobs.wait(&ctx, failed, SOON).await.expect("ends").status, Status::DeadLettered);
    until("its callback", || async { ran.get() == before + 2 }).await;

    let too_many = vec!["sleep".to_owned(); 20];
    let full = jobs.submit_many::<Fleeting>(&ctx, too_many, new()).await.expect_err("full");
    assert_eq!(full.code(), "backpressure", "all or none");
    for options in [new().ordering_key("o"), new().unique(UniqueWithin::Unfinished), new().queue("q")] {
        let refused = jobs.submit_with::<Fleeting>(&ctx, "quick".into(), options).await.expect_err("refused");
        assert_eq!(refused.code(), "invalid_input", "what only a store can promise");
    }
    let stored = jobs.prepare::<Fleeting>(&ctx, "quick".into(), new()).await.expect_err("refused");
    assert_eq!(stored.code(), "invalid_input", "it cannot be stored in a transaction");

    let totals = jobs.totals();
    let of = totals.iter().find(|totals| totals.handler == "fleeting").expect("counted");
    assert_eq!((of.retried, of.canceled), (1, 2), "{of:?}");
    assert!(of.succeeded >= 3 && of.dead_lettered == 3 && of.submitted >= 8, "{of:?}");
    nothing_is_written(&jobs, &store).await;
    jobs.shutdown().await;
}

/// Neither a job nor anything about one.
async fn nothing_is_written(jobs: &JobService, store: &Arc<dyn Store>) {
    let all = jobs.operator(OperatorRight::assume());
    assert_eq!(all.counts().await.expect("counts"), Default::default(), "nothing was written");
    assert_eq!(all.list(&JobFilter::all(), Page::default()).await.expect("lists"), []);
    assert_eq!(all.audit_log(&AuditFilter::default()).await.expect("reads"), []);
    let far = "9999-12-31";
    let scope = Scope::All(OperatorRight::assume());
    assert_eq!(store.usage_by_day(scope, "2000-01-01", far).await.expect("reads"), [], "no cost either");
}

/// RUN-14, SUB-11: a spawned closure has what a stored job has: result, wait, watch, timeout, key, metrics.
pub async fn spawned_closures_are_served_by_the_same_calls(store: Arc<dyn Store>) {
    let jobs = service(&store).start().await.expect("starts");
    let ctx = tenant(1).with_correlation_id("request-9");
    let door = Door::closed();
    let spawn = |options: SubmitOptions| {
        let door = door.clone();
        jobs.spawn_with(&ctx, "closure", options, |ctx: JobContext| async move {
            ctx.report_progress(70.0, ctx.correlation_id().unwrap_or_default());
            door.pass().await;
            Ok(vec![1, 2, 3])
        })
    };
    let first = spawn(SubmitOptions::new().idempotency_key("once").header("h", "v")).expect("taken");
    until("it to run", || async { door.waiting.get() == 1 }).await;
    let second = spawn(SubmitOptions::new().idempotency_key("once")).expect("known");
    assert_eq!((second.id, second.duplicate, first.duplicate), (first.id, true, false));
    let record = jobs.get(&ctx, first.id).await.expect("known");
    assert_eq!(record.spec.headers.get("h").map(String::as_str), Some("v"));
    assert_eq!(record.progress.expect("reported").message, "request-9");
    let waited = tokio::spawn({
        let (jobs, ctx, id) = (jobs.clone(), ctx.clone(), first.id);
        async move { jobs.wait_for::<Vec<i32>>(&ctx, id, SOON).await }
    });
    let views = jobs.watch(&ctx, first.id, 0).await.expect("watched");
    door.open();
    let id = first.id;
    assert_eq!(first.join().await.expect("succeeds"), [1, 2, 3]);
    assert_eq!(waited.await.expect("joins").expect("succeeds"), [1, 2, 3]);
    let views: Vec<_> = tokio::time::timeout(SOON, views.collect()).await.expect("the stream ends");
    assert_eq!(views.last().map(|view| view.status), Some(Status::Succeeded));
    assert_eq!(jobs.result::<Vec<i32>>(&ctx, id).await.expect("kept"), Some(vec![1, 2, 3]));
    assert_eq!(second.join().await.expect_err("it has its own owner").code(), "conflict");
    let limit = SubmitOptions::new().timeout(Duration::from_millis(30));
    let endless = jobs.spawn_with(&ctx, "endless", limit, |_| async {
        std::future::pending::<()>().await;
        Ok(())
    });
    let error = endless.expect("taken").join().await.expect_err("timed out");
    assert!(error.to_string().contains("job_timeout"), "{error}");
    let totals = jobs.totals();
    let of = |handler: &str| totals.iter().find(|of| of.handler == handler).expect("counted").sums.clone();
    assert_eq!((of("closure").submitted, of("closure").succeeded), (1, 1));
    assert_eq!((of("endless").dead_lettered, of("endless").failed), (1, 1));
    nothing_is_written(&jobs, &store).await;
    jobs.shutdown().await;
}

/// SUB-11, RUN-14: however often they fail, no more jobs are in memory than may wait and run.
pub async fn jobs_in_memory_keep_their_place_until_they_end(store: Arc<dyn Store>) {
    let tried = Counter::default();
    let fail = |tried: Counter, _: JobContext, (): ()| async move {
        tried.add();
        Err::<(), _>(JobError::retryable("not yet"))
    };
    let later = HandlerOptions::new().restartable(false).retry(RetryPolicy::fixed(3, Duration::from_secs(3_600)));
    let jobs = service(&store).function_with("fail", later, tried.clone(), fail).configure(|config| {
        config.spawn_capacity = 2;
        config.spawn_concurrency = 1;
    });
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let submit = || jobs.submit_named(&ctx, "fail", &(), SubmitOptions::new());
    let mut ids = Vec::new();
    for n in 1..=3 {
        ids.push(submit().await.expect("there is room").id);
        until("it to wait for its retry", || async { tried.get() == n }).await;
        until_status(&jobs, &ctx, ids[n - 1], Status::Retrying).await;
    }
    assert_eq!(submit().await.expect_err("three have not ended").code(), "backpressure");
    jobs.cancel(&ctx, ids[0], "not needed").await.expect("canceled");
    until("its place to be free", || async { submit().await.is_ok() }).await;
    jobs.shutdown().await;
}

/// RUN-14, BEY-4: expiry is about the first start, in memory too.
pub async fn a_job_in_memory_that_has_begun_does_not_expire(store: Arc<dyn Store>) {
    const WAIT: Duration = Duration::from_millis(600);
    let fail_once = |_: (), ctx: JobContext, (): ()| async move {
        match ctx.attempt() {
            1 => Err(JobError::retryable("not yet")),
            attempt => Ok(attempt),
        }
    };
    let retried = HandlerOptions::new().restartable(false).retry(RetryPolicy::fixed(3, WAIT));
    let jobs = service(&store).function_with("a", retried, (), fail_once).start().await.expect("starts");
    let ctx = tenant(1);
    let soon = || SubmitOptions::new().expires_at(jobs.now() + WAIT / 2);
    let begun = jobs.submit_named(&ctx, "a", &(), soon()).await.expect("accepted").id;
    let never_begun = jobs.submit_named(&ctx, "a", &(), soon().delay(WAIT)).await.expect("accepted").id;
    assert_eq!(jobs.wait_for::<u16>(&ctx, begun, SOON).await.expect("its second attempt is not too late"), 2);
    let view = jobs.wait(&ctx, never_begun, SOON).await.expect("ends");
    assert_eq!(view.status, Status::Canceled);
    jobs.shutdown().await;
}

/// RUN-14, ERR-9: what nobody would ever claim is not stored.
pub async fn a_dead_letter_is_not_stored_for_a_handler_in_memory(store: Arc<dyn Store>) {
    let refuse = |_: (), _: JobContext, (): ()| async { Err::<(), _>(JobError::terminal("no", "never")) };
    let accept = |_: (), _: JobContext, (): ()| async { Ok::<_, JobError>(()) };
    let ctx = tenant(1);
    let before = service(&store).function("a", (), refuse).start().await.expect("starts");
    let id = before.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    assert_eq!(before.wait(&ctx, id, SOON).await.expect("ends").status, Status::DeadLettered);
    before.shutdown().await;

    let in_memory = HandlerOptions::new().restartable(false);
    let jobs = service(&store).function_with("a", in_memory, (), accept).start().await.expect("starts");
    assert_eq!(jobs.replay_as_new(&ctx, id, None).await.expect_err("refused").code(), "conflict");
    assert_eq!(jobs.counts(&ctx).await.expect("counts").unfinished(), 0, "nothing was stored");
    assert!(jobs.get(&ctx, id).await.expect("kept").replayed.is_none(), "nor is it marked");
    let copy = jobs.clone_job(&ctx, id, None).await.expect("runs in memory");
    assert_eq!(jobs.wait(&ctx, copy, SOON).await.expect("ends").status, Status::Succeeded);
    jobs.replay(&ctx, id).await.expect("in place");
    assert_eq!(jobs.wait(&ctx, id, SOON).await.expect("ends").status, Status::Succeeded);
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

/// SUB-12: those who wait share the looks at the store, however many they are.
pub async fn many_waiters_share_one_look(store: Arc<dyn Store>) {
    const WAITERS: usize = 200;
    /// The pause between two looks at jobs that run elsewhere.
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let door = Door::closed();
    let hold = |door: Door, _, n: usize| async move {
        door.pass().await;
        Ok::<_, JobError>(n)
    };
    // Another service runs the jobs, so that nothing reaches the waiters in process.
    let runner = service(&store).function("hold", door.clone(), hold);
    let runner = runner.configure(|config| config.concurrency = 300).start().await.expect("starts");
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    let waiter = service(&counted).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let submit = |n| {
        let (waiter, ctx) = (&waiter, &ctx);
        async move { waiter.submit_named(ctx, "hold", &n, SubmitOptions::new()).await.expect("accepted").id }
    };
    let ids = futures_util::future::join_all((0..WAITERS).map(submit)).await;
    until("all to run", || async { door.waiting.get() == WAITERS }).await;

    counting.hold_back("get");
    let began = Instant::now();
    let before = counting.calls("get");
    let mut waits: Vec<_> = ids.iter().map(|id| Box::pin(waiter.wait_for::<usize>(&ctx, *id, SOON))).collect();
    begin_all(&mut waits).await;
    counting.let_go("get");
    let end_them = async {
        until("some looks at running jobs", || async { counting.calls("get") > before + 5 }).await;
        door.open();
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(waits), end_them);
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.expect("succeeds"), n);
    }
    // One look for all in each pause, and two for the look-up with which each wait begins.
    let looks = counting.calls("get") - before;
    let pauses = began.elapsed().as_millis() / LOOK_EVERY.as_millis();
    assert!(looks as u128 <= pauses + 4, "{looks} looks of {WAITERS} waiters in {pauses} pauses");
    waiter.shutdown().await;
    runner.shutdown().await;
}
