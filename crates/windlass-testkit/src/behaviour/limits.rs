//! Behaviours at the edge: what is too large is refused by name, at its limit and not before, and what comes back is
//! what went in (SEC-3, fault F41).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use windlass_core::store::{PauseTarget, Store};
use windlass_core::*;

use super::*;
use crate::hostile::hostile_payloads;

/// One call of the API.
type Called<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;
/// What one limit is tried with: a call whose input has the given size.
type Try<'a> = Box<dyn Fn(usize) -> Called<'a> + 'a>;

async fn echo(_: (), _: JobContext, input: Box<RawValue>) -> Result<Box<RawValue>, JobError> {
    Ok(input)
}

/// The field that a refusal names.
fn field_of(error: Error) -> String {
    match error {
        Error::InvalidInput(error) => error.field,
        Error::InvalidBatch(bad) => bad[0].error.field.clone(),
        other => panic!("refused, but not as invalid input: {other}"),
    }
}

fn filter(set: impl FnOnce(&mut JobFilter)) -> JobFilter {
    let mut filter = JobFilter::all();
    set(&mut filter);
    filter
}

/// SEC-3, SUB-9.
pub async fn every_limit_is_allowed_and_one_more_is_refused(store: Arc<dyn Store>) {
    let jobs = service(&store).function("echo", (), echo).remote_handler("x".repeat(200)).without_workers();
    let jobs = &jobs.start().await.expect("starts");
    let ctx = &tenant(1);
    let submit = |input: String, options: SubmitOptions| async move {
        let payload = Payload::check("input", input, jobs.config().limits.payload_bytes)?;
        jobs.submit_payloads(ctx, "echo", vec![Ok(payload)], options, false).await.map(drop)
    };
    let plain = move |options: SubmitOptions| submit("1".into(), options);
    let list = |filter: JobFilter, page: Page| async move { jobs.list(ctx, &filter, page).await.map(drop) };
    macro_rules! given {
        (|$n:ident| $call:expr) => {
            Box::new(move |$n: usize| Box::pin($call) as Called<'_>) as Try<'_>
        };
    }
    let limits = Limits::default();
    let years = limits.max_delay.as_secs() as usize;
    let table: Vec<(&str, usize, Try<'_>)> = vec![
        ("input", limits.payload_bytes, given!(|n| submit(format!("\"{}\"", "x".repeat(n - 2)), SubmitOptions::new()))),
        (
            "input",
            limits.json_depth,
            given!(|n| submit(format!("{}{}", "[".repeat(n), "]".repeat(n)), SubmitOptions::new())),
        ),
        (
            "batch",
            limits.batch_jobs,
            given!(|n| async move {
                let payloads = (0..n).map(|_| Ok(Payload::null())).collect();
                jobs.submit_payloads(ctx, "echo", payloads, SubmitOptions::new(), false).await.map(drop)
            }),
        ),
        ("tags", limits.tags, given!(|n| plain((0..n).fold(SubmitOptions::new(), |o, n| o.tag(n.to_string()))))),
        ("tags", limits.tag_bytes, given!(|n| plain(SubmitOptions::new().tag("x".repeat(n))))),
        ("idempotency_key", limits.key_bytes, given!(|n| plain(SubmitOptions::new().idempotency_key("x".repeat(n))))),
        ("ordering_key", limits.key_bytes, given!(|n| plain(SubmitOptions::new().ordering_key("x".repeat(n))))),
        (
            "unique_key",
            limits.key_bytes,
            given!(|n| plain(SubmitOptions::new().unique_key("x".repeat(n), UniqueWithin::Unfinished))),
        ),
        ("correlation_id", limits.key_bytes, given!(|n| plain(SubmitOptions::new().correlation_id("x".repeat(n))))),
        (
            "user",
            limits.key_bytes,
            given!(|n| async move {
                let ctx = ctx.clone().with_user("x".repeat(n));
                jobs.submit_named(&ctx, "echo", &1, SubmitOptions::new()).await.map(drop)
            }),
        ),
        ("queue", limits.name_bytes, given!(|n| plain(SubmitOptions::new().queue("x".repeat(n))))),
        (
            "handler",
            limits.name_bytes,
            given!(|n| async move {
                match jobs.submit_named(ctx, &"x".repeat(n), &1, SubmitOptions::new()).await {
                    // Only the longest is known; that a shorter one is not is no matter of its length.
                    Err(Error::HandlerNotFound(_)) => Ok(()),
                    other => other.map(drop),
                }
            }),
        ),
        ("headers", limits.header_bytes, given!(|n| plain(SubmitOptions::new().header("h", "x".repeat(n - 1))))),
        ("start", years, given!(|n| plain(SubmitOptions::new().delay(Duration::from_secs(n as u64))))),
        (
            "reason",
            limits.note_bytes,
            given!(|n| async move {
                jobs.pause(ctx, &PauseTarget::Tenant(ctx.tenant), &"x".repeat(n)).await?;
                jobs.resume(ctx, &PauseTarget::Tenant(ctx.tenant)).await.map(drop)
            }),
        ),
        ("limit", limits.page_jobs, given!(|n| list(JobFilter::all(), Page::first(n)))),
        (
            "filter",
            limits.filter_terms,
            given!(|n| list((1..n).fold(JobFilter::all().tag("t"), |f, _| f.status(Status::Pending)), Page::default())),
        ),
        ("tag", limits.key_bytes, given!(|n| list(JobFilter::all().tag("x".repeat(n)), Page::default()))),
        ("input", limits.key_bytes, given!(|n| list(JobFilter::all().input(["a"], "x".repeat(n)), Page::default()))),
        ("input", limits.key_bytes, given!(|n| list(JobFilter::all().input(["x".repeat(n)], "1"), Page::default()))),
        ("input", 16, given!(|n| list(JobFilter::all().input(vec!["a"; n], "1"), Page::default()))),
        ("error", limits.key_bytes, given!(|n| list(filter(|f| f.error = Some("x".repeat(n))), Page::default()))),
        ("queue", limits.key_bytes, given!(|n| list(filter(|f| f.queue = Some("x".repeat(n))), Page::default()))),
        ("key", limits.key_bytes, given!(|n| list(filter(|f| f.key = Some("x".repeat(n))), Page::default()))),
    ];
    for (field, limit, call) in table {
        call(limit - 1).await.unwrap_or_else(|error| panic!("{field}: one below {limit} is refused: {error}"));
        call(limit).await.unwrap_or_else(|error| panic!("{field}: {limit} itself is refused: {error}"));
        let before = jobs.counts(ctx).await.expect("counts").unfinished();
        let error = call(limit + 1).await.expect_err(&format!("{field}: one above {limit} is refused"));
        assert_eq!(error.code(), "invalid_input");
        assert_eq!(field_of(error), field);
        assert_eq!(jobs.counts(ctx).await.expect("counts").unfinished(), before, "{field}: nothing was written");
    }
    jobs.shutdown().await;
}

/// SEC-3.
pub async fn a_service_beyond_the_hard_maxima_does_not_start(store: Arc<dyn Store>) {
    let start = |bytes: usize| service(&store).configure(|config| config.limits.payload_bytes = bytes).start();
    let most = Limits::MOST.payload_bytes;
    match start(most + 1).await {
        Err(Error::InvalidInput(error)) => assert_eq!(error.field, "limits.payload_bytes"),
        other => panic!("a limit of {} bytes: {other:?}", most + 1),
    }
    let jobs = start(most).await.expect("the maximum itself is allowed");
    let input = "x".repeat(most - 2);
    let job = jobs.submit_named(&tenant(1), "any", &input, SubmitOptions::new()).await.expect("accepted");
    let kept = jobs.input(&tenant(1), job.id).await.expect("kept");
    assert_eq!(kept.as_str().len(), most);
    jobs.shutdown().await;
}

/// SEC-3.
pub async fn outputs_and_errors_are_kept_up_to_their_limit_and_marked_beyond(store: Arc<dyn Store>) {
    async fn write(_: (), _: JobContext, bytes: usize) -> Result<String, JobError> {
        Ok("x".repeat(bytes - 2))
    }
    async fn fail(_: (), _: JobContext, bytes: usize) -> Result<(), JobError> {
        Err(JobError::terminal("long", "x".repeat(bytes)))
    }
    let jobs = service(&store).function("write", (), write).function("fail", (), fail);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let most = Limits::default().output_bytes;
    for (bytes, whole) in [(most - 1, true), (most, true), (most + 1, false)] {
        let job = jobs.submit_named(&ctx, "write", &bytes, SubmitOptions::new()).await.expect("accepted");
        let output = jobs.wait(&ctx, job.id, SOON).await.expect("ends").output.expect("an output");
        assert_eq!(output.as_str().len() == bytes, whole, "{bytes} bytes of output");
        assert_eq!(output.as_str().contains("\"truncated\":true"), !whole, "{bytes} bytes of output");
        let job = jobs.submit_named(&ctx, "fail", &bytes, SubmitOptions::new()).await.expect("accepted");
        jobs.wait(&ctx, job.id, SOON).await.expect("ends");
        let error = jobs.get(&ctx, job.id).await.expect("kept").error.expect("an error");
        assert_eq!(error.message.len() == bytes, whole, "{bytes} bytes of error");
        assert_eq!(error.message.ends_with(&format!("[cut, {bytes} bytes]")), !whole, "{bytes} bytes of error");
    }
    jobs.shutdown().await;
}

/// SEC-3, SUB-9: fault F41.
pub async fn hostile_payloads_come_back_unchanged_or_are_refused(store: Arc<dyn Store>) {
    let jobs = service(&store).function("echo", (), echo).start().await.expect("starts");
    let ctx = tenant(1);
    let limit = jobs.config().limits.payload_bytes;
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for hostile in hostile_payloads() {
        match Payload::check_bytes("input", &hostile.bytes, limit) {
            Ok(payload) => good.push((hostile.name, payload)),
            Err(error) => bad.push((hostile.name, error)),
        }
    }
    let before = jobs.counts(&ctx).await.expect("counts");
    for (name, error) in &bad {
        assert_eq!(error.field, "input", "{name}");
        let mixed = vec![Ok(Payload::null()), Err(error.clone())];
        let refused = jobs.submit_payloads(&ctx, "echo", mixed, SubmitOptions::new(), false).await;
        assert_eq!(refused.expect_err(name).code(), "invalid_input", "{name}");
    }
    assert_eq!(jobs.counts(&ctx).await.expect("counts"), before, "nothing of a refused batch was written");
    // By both ways in: many plain ones at once, and each with a key of its own.
    let payloads = good.iter().map(|(_, payload)| Ok(payload.clone())).collect();
    let plain = jobs.submit_payloads(&ctx, "echo", payloads, SubmitOptions::new(), false).await.expect("accepted").1;
    for (n, ((name, payload), plain)) in good.iter().zip(plain).enumerate() {
        let keyed = SubmitOptions::new().idempotency_key(format!("hostile-{n}"));
        let keyed = jobs.submit_payloads(&ctx, "echo", vec![Ok(payload.clone())], keyed, false).await;
        let keyed = keyed.unwrap_or_else(|error| panic!("{name}, with a key: {error}")).1.remove(0).expect("accepted");
        for id in [plain.clone().expect("accepted").id, keyed.id] {
            let kept = jobs.input(&ctx, id).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(kept.as_str(), payload.as_str(), "{name}: the input");
            let view = jobs.wait(&ctx, id, SOON).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(view.status, Status::Succeeded, "{name}: {:?}", view.error);
            // A handler's raw output has no spaces around it.
            let output = jobs.get(&ctx, id).await.expect("kept").output.expect("an output");
            let cut = payload.as_str().len() > jobs.config().limits.output_bytes;
            assert!(cut || output.as_str() == payload.as_str().trim(), "{name}: the output");
        }
    }
    jobs.shutdown().await;
}
