//! Behaviours of the feed of status events and of webhooks: OPS-8.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use windlass_core::store::{AuditFilter, Store};
use windlass_core::*;

use super::*;

async fn nothing(_: (), _: JobContext, _: ()) -> Result<(), JobError> {
    Ok(())
}

async fn fail(_: (), _: JobContext, why: String) -> Result<(), JobError> {
    Err(JobError::terminal("bad", why))
}

/// The next event, soon.
async fn next(feed: &mut Feed) -> FeedEvent {
    tokio::time::timeout(SOON, feed.next()).await.expect("an event comes soon").expect("the feed goes on")
}

/// Submits jobs on `jobs` until `feed` tells of one: then the node of `jobs` knows that events are wanted.
async fn until_told(jobs: &JobService, ctx: &SecurityContext, feed: &mut Feed) {
    loop {
        jobs.submit_named(ctx, "a", &(), SubmitOptions::new()).await.expect("accepted");
        if tokio::time::timeout(Duration::from_millis(500), feed.next()).await.is_ok() {
            break;
        }
    }
    while tokio::time::timeout(Duration::from_millis(500), feed.next()).await.is_ok() {}
}

/// OPS-8: what happens on one node is told on every other, each tenant its own, in order.
pub async fn the_feed_of_one_node_tells_what_happens_on_another(store: Arc<dyn Store>) {
    let runs = service(&store).function("a", (), nothing).function("b", (), fail).start().await.expect("starts");
    let reads = service(&store).without_workers().start().await.expect("starts");
    let (one, two) = (tenant(1), tenant(2));
    let mut mine = reads.feed(&one, None).await.expect("follows");
    let mut all = reads.operator(OperatorRight::assume()).feed(None).await.expect("follows");
    until_told(&runs, &two, &mut all).await;

    let theirs = runs.submit_named(&two, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    let told = next(&mut all).await;
    assert_eq!((told.event.job, told.event.status, told.event.tenant), (theirs, Status::Succeeded, two.tenant));
    let own = runs.submit_named(&one, "b", &"no mailbox", SubmitOptions::new()).await.expect("accepted").id;
    let told = next(&mut mine).await;
    assert_eq!((told.event.job, told.event.status, told.event.attempt), (own, Status::DeadLettered, 1));
    assert_eq!((told.event.handler.as_str(), told.event.tenant), ("b", one.tenant));
    assert_eq!(told.event.error.expect("it failed").message, "no mailbox");
    assert_eq!(next(&mut all).await.sequence, told.sequence);
    let waiting = SubmitOptions::new().delay(Duration::from_secs(600));
    let later = reads.submit_named(&one, "a", &(), waiting).await.expect("accepted").id;
    reads.cancel(&one, later, "not needed").await.expect("canceled");
    let canceled = next(&mut mine).await;
    assert_eq!((canceled.event.job, canceled.event.status), (later, Status::Canceled));
    assert!(canceled.sequence > told.sequence);
    runs.shutdown().await;
    reads.shutdown().await;
    assert!(mine.next().await.is_none(), "it ends with the service");
}

/// OPS-8: who comes back goes on after the last event seen, on any node, and misses nothing in between.
pub async fn the_feed_goes_on_after_the_last_event_seen(store: Arc<dyn Store>) {
    let jobs = service(&store).function("a", (), nothing).start().await.expect("starts");
    let ctx = tenant(1);
    let mut feed = jobs.feed(&ctx, None).await.expect("follows");
    let mut seen = Vec::new();
    for _ in 0..3 {
        jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted");
        seen.push(next(&mut feed).await);
    }
    drop(feed);
    let inputs = (0..1_500).map(|_| Payload::encode("input", &(), 16)).collect::<Vec<_>>();
    for inputs in inputs.chunks(500) {
        jobs.submit_payloads(&ctx, "a", inputs.to_vec(), SubmitOptions::new(), false).await.expect("accepted");
    }
    until("all to end", || async {
        jobs.counts(&ctx).await.is_ok_and(|counts| counts.get(Status::Succeeded) == 1_503)
    })
    .await;
    let elsewhere = service(&store).without_workers().start().await.expect("starts");
    let mut again = elsewhere.feed(&ctx, Some(seen[0].sequence)).await.expect("follows");
    let mut told = Vec::new();
    while told.len() < 1_502 {
        told.push(next(&mut again).await);
    }
    assert_eq!(told[..2], seen[1..], "from the one after");
    assert!(told.is_sorted_by_key(|event| event.sequence));
    let mut ids: Vec<JobId> = told.iter().map(|event| event.event.job).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1_502, "each once");
    let last = jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    assert_eq!(next(&mut again).await.event.job, last, "and goes on as it comes");
    let mut from_nowhere = elsewhere.feed(&ctx, Some(u64::MAX)).await.expect("follows");
    let last = jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted").id;
    assert_eq!(next(&mut from_nowhere).await.event.job, last);
    jobs.shutdown().await;
    elsewhere.shutdown().await;
}

/// OPS-8: a webhook is told of what it asked for by a job of its own for each event, once, whatever node dispatches.
pub async fn a_webhook_is_told_by_one_job_for_each_event(store: Arc<dyn Store>) {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel::<WebhookDelivery>();
    let deliver = |tell: tokio::sync::mpsc::UnboundedSender<WebhookDelivery>, _: JobContext, input: WebhookDelivery| async move {
        tell.send(input).map_err(|_| JobError::retryable("the test is over"))
    };
    let peek = |_: (), ctx: JobContext, id: String| async move {
        ctx.switch_off_webhook(&id, "a handler that is not its own").await?;
        Ok::<_, JobError>(ctx.webhook(&id).await?.is_some())
    };
    let jobs = service(&store)
        .function("a", (), nothing)
        .function("b", (), fail)
        .function("peek", (), peek)
        .webhook_handler(HandlerOptions::new(), tell, deliver)
        .start()
        .await
        .expect("starts");
    // Dispatches too, if it is the first to ask.
    let other = service(&store).without_workers().start().await.expect("starts");
    let (ctx, foreign) = (tenant(1), tenant(2));
    let new = NewWebhook::new("https://example.com/hook").events([Status::DeadLettered]);
    let (hook, secret) = jobs.add_webhook(&ctx, new).await.expect("added");
    assert!(secret.starts_with("whsec_"));
    assert_eq!(other.webhook(&ctx, &hook.id).await.expect("reads"), Some((hook.clone(), secret)));
    assert_eq!(jobs.webhook(&foreign, &hook.id).await.expect("reads"), None);
    assert_eq!(jobs.webhooks(&ctx).await.expect("lists"), std::slice::from_ref(&hook));
    let peeked = jobs.submit_named(&ctx, "peek", &hook.id, SubmitOptions::new()).await.expect("accepted").id;
    assert!(!jobs.wait_for::<bool>(&ctx, peeked, SOON).await.expect("ends"), "the secret is for who delivers");
    assert_eq!(jobs.webhooks(&ctx).await.expect("lists"), std::slice::from_ref(&hook), "nobody else switches it off");

    let mut failed = Vec::new();
    let first = loop {
        // Until there is a dispatcher, nobody is told: its cursor begins with it.
        failed.push(jobs.submit_named(&ctx, "b", &"x", SubmitOptions::new()).await.expect("accepted").id);
        if let Ok(first) = tokio::time::timeout(Duration::from_secs(1), told.recv()).await {
            break first.expect("told");
        }
    };
    assert!(failed.contains(&first.event.job));
    while tokio::time::timeout(Duration::from_secs(2), told.recv()).await.is_ok() {}

    jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted");
    jobs.submit_named(&foreign, "b", &"theirs", SubmitOptions::new()).await.expect("accepted");
    let failed = jobs.submit_named(&ctx, "b", &"no mailbox", SubmitOptions::new()).await.expect("accepted").id;
    let delivery = tokio::time::timeout(SOON, told.recv()).await.expect("soon").expect("told");
    assert_eq!((delivery.webhook.as_str(), delivery.event.job), (hook.id.as_str(), failed));
    assert_eq!(delivery.event.error.as_ref().expect("it failed").message, "no mailbox");
    let more = tokio::time::timeout(Duration::from_secs(2), told.recv()).await;
    assert!(more.is_err(), "told once, and of nothing else: {more:?}");
    // The engine's own deliveries can be looked at, run again and read, but nobody gives them another input.
    let sent = JobFilter::all().handler(WEBHOOK_HANDLER);
    let sent = jobs.list(&ctx, &sent, Page::default()).await.expect("lists")[0].id;
    let forged = Some(Payload::encode("input", &delivery, 10_000).expect("small"));
    assert!(matches!(jobs.clone_job(&ctx, sent, forged).await, Err(Error::Conflict { .. })));
    jobs.clone_job(&ctx, sent, None).await.expect("the same again");
    assert_eq!(tokio::time::timeout(SOON, told.recv()).await.expect("soon").expect("told").sequence, delivery.sequence);

    assert!(jobs.remove_webhook(&ctx, &hook.id).await.expect("removes"));
    assert_eq!(jobs.webhooks(&ctx).await.expect("lists"), []);
    let bad = jobs.add_webhook(&ctx, NewWebhook::new("file:///etc/passwd")).await;
    assert!(matches!(bad, Err(Error::InvalidInput(bad)) if bad.field == "url"));
    jobs.shutdown().await;
    other.shutdown().await;
}

/// OPS-8: a webhook is added for a handler that somebody has or had, or that a job of its tenant is for. For any other name
/// it would never be told anything: it is refused and nothing is written.
pub async fn a_webhook_for_a_handler_that_nobody_knows_is_refused(store: Arc<dyn Store>) {
    let gone = service(&store).function("gone", (), nothing).start().await.expect("starts");
    gone.shutdown().await;
    let jobs = service(&store).function("here", (), nothing).remote_handler("elsewhere");
    let impatient = |config: &mut Config| config.handler_missing_after = Duration::from_secs(8);
    let jobs = jobs.configure(impatient).start().await.expect("starts");
    let asks = service(&store).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    jobs.submit_named(&tenant(2), "elsewhere", &(), SubmitOptions::new()).await.expect("accepted");
    // A node misses the handler; that nobody has it does not make it known.
    let missed = ["windlass.missed:elsewhere".to_owned()];
    let noted = async || store.last_served(&[], &missed).await.expect("looks")[0].is_some();
    until("the handler is missed", noted).await;
    let add = async |handler: &str| {
        asks.add_webhook(&ctx, NewWebhook::new("https://example.com/hook").handler(handler)).await
    };
    for unknown in ["heer", "elsewhere", "Gone"] {
        let refused = add(unknown).await.expect_err("refused");
        assert_eq!(refused.code(), "handler_not_found", "{unknown}");
        let names =
            matches!(&refused, Error::HandlerUnknown { handler, live } if handler == unknown && *live == ["here"]);
        assert!(names, "{refused:?}");
    }
    assert_eq!(asks.webhooks(&ctx).await.expect("lists"), []);
    let log = asks.operator(OperatorRight::assume()).audit_log(&AuditFilter::default()).await.expect("reads");
    assert!(log.iter().all(|entry| entry.action != "WEBHOOK_ADDED"), "{log:?}");
    jobs.submit_named(&ctx, "elsewhere", &(), SubmitOptions::new()).await.expect("accepted");
    for known in ["here", "elsewhere", "gone"] {
        add(known).await.expect("added");
    }
    let declared = NewWebhook::new("https://example.com/hook").handler("elsewhere");
    jobs.add_webhook(&tenant(3), declared).await.expect("this process has declared it");
    jobs.shutdown().await;
    asks.shutdown().await;
}

/// OPS-8: a webhook that Windlass has switched off has an entry in the audit log that says why, whichever call to the store
/// fails on the way.
pub async fn a_webhook_is_never_off_without_the_reason(store: Arc<dyn Store>) {
    let counting = Counting::around(&store);
    let deliver = |_: (), ctx: JobContext, delivery: WebhookDelivery| async move {
        ctx.switch_off_webhook(&delivery.webhook, "nobody is there").await?;
        Err::<(), _>(JobError::discard("nobody is there"))
    };
    let once = HandlerOptions::new().retry(RetryPolicy::never());
    let jobs = service(&(counting.clone() as Arc<dyn Store>)).function("a", (), nothing);
    let jobs = jobs.webhook_handler(once, (), deliver).start().await.expect("starts");
    for (fails, ctx) in [("audit", tenant(1)), ("pause_webhook", tenant(2))] {
        let (hook, _) = jobs.add_webhook(&ctx, NewWebhook::new("https://example.com/hook")).await.expect("added");
        let seen = async || {
            let paused = jobs.webhooks(&ctx).await.expect("lists")[0].paused;
            let mut filter = AuditFilter::default();
            filter.target = Some(hook.id.clone());
            let log = jobs.audit_log(&ctx, &filter).await.expect("reads");
            (paused, log.into_iter().find(|entry| entry.action == WEBHOOK_SWITCHED_OFF))
        };
        counting.fail_after(fails, Duration::ZERO);
        let is_dead = JobFilter::all().handler(WEBHOOK_HANDLER).status(Status::DeadLettered);
        until("a delivery to fail at the store", || async {
            jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted");
            !jobs.list(&ctx, &is_dead, Page::default()).await.expect("lists").is_empty()
        })
        .await;
        let (paused, entry) = seen().await;
        assert!(!paused, "{fails} fails: off, and the log says {entry:?}");
        counting.heal(fails);
        until("the next delivery to switch it off", || async {
            jobs.submit_named(&ctx, "a", &(), SubmitOptions::new()).await.expect("accepted");
            seen().await.0
        })
        .await;
        let entry = seen().await.1.expect("the log says so");
        let why = entry.detail.unwrap_or_default();
        assert!(entry.actor == WEBHOOK_SWITCHED_OFF_BY && why.contains("nobody is there"), "{}: {why}", entry.actor);
    }
    jobs.shutdown().await;
}
