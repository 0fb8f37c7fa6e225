//! Behaviours of sealed jobs: SEC-2.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use windlass_core::store::{Store, Submit, WrappedKey};
use windlass_core::*;

use super::*;

/// Key-encryption keys of tests, by name; the first named one is current.
pub(crate) fn keys(names: &str) -> LocalKeys {
    let line = |name: &str| match name {
        "first" => "first:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "second" => "second:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=",
        other => panic!("no key {other}"),
    };
    LocalKeys::parse(&names.split(',').map(line).collect::<Vec<_>>().join("\n")).expect("keys")
}

fn sealing(store: &Arc<dyn Store>) -> Builder {
    service(store).encryption(Encryption::new(keys("first")))
}

/// What must never be seen.
const SECRET: &str = "kanarienvogel-4711";

/// Everything the store says of a tenant's jobs, as it keeps it.
async fn all_that_is_kept(store: &Arc<dyn Store>, ctx: &SecurityContext) -> String {
    let mut seen = String::new();
    for record in store.find(ctx.scope(), &JobFilter::all(), Page::first(Page::MAX), None).await.expect("lists").jobs {
        let input = store.input(ctx.scope(), record.id).await.expect("reads").expect("kept");
        let history = store.history(ctx.scope(), record.id).await.expect("reads");
        seen.push_str(&serde_json::to_string(&(&record, input, history)).expect("JSON"));
    }
    let audit = store.audit_log(ctx.scope(), &Default::default()).await.expect("reads");
    seen + &serde_json::to_string(&audit).expect("JSON")
}

struct Careful {
    told: Arc<Mutex<Vec<String>>>,
}

impl JobHandler for Careful {
    const ID: &'static str = "careful";
    type Input = String;
    type Output = String;

    fn options(&self) -> HandlerOptions {
        HandlerOptions::new().retry(quick_retries(2))
    }

    async fn execute(&self, ctx: &JobContext, input: String) -> Result<String, JobError> {
        ctx.report_progress(50.0, format!("at {input}"));
        match (ctx.attempt(), ctx.checkpoint::<String>()?) {
            (1, None) => {
                ctx.save_checkpoint(&format!("saved {input}")).await?;
                let details = serde_json::json!({ "input": input });
                Err(JobError::retryable(format!("cannot do {input}")).with_details(details))
            }
            (_, Some(saved)) if !input.starts_with("bad") => Ok(format!("{saved}, done {input}")),
            _ => Err(JobError::retryable(format!("never {input}"))),
        }
    }

    async fn on_success(&self, _: &JobContext, input: String, output: String) -> Result<(), JobError> {
        self.told.lock().push(format!("{input} gave {output}"));
        Ok(())
    }

    async fn on_failure(&self, _: &JobContext, input: String, error: JobError) -> Result<(), JobError> {
        self.told.lock().push(format!("{input} failed: {}", error.message));
        Ok(())
    }
}

/// SEC-2.
pub async fn a_sealed_job_lives_like_any_other_and_the_store_sees_nothing(store: Arc<dyn Store>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let jobs = sealing(&store).handler(Careful { told: told.clone() }).start().await.expect("starts");
    let ctx = tenant(1);
    let good = jobs.submit::<Careful>(&ctx, SECRET.to_owned()).await.expect("accepted");
    let bad = jobs.submit::<Careful>(&ctx, format!("bad {SECRET}")).await.expect("accepted");

    let output: String = jobs.wait_for(&ctx, good, SOON).await.expect("succeeds");
    assert_eq!(output, format!("saved {SECRET}, done {SECRET}"));
    assert_eq!(jobs.input(&ctx, good).await.expect("opens").as_str(), format!("\"{SECRET}\""));
    let record = jobs.get(&ctx, good).await.expect("kept");
    assert_eq!(record.output.expect("kept").decode::<String>().expect("opens"), output);
    assert_eq!(record.progress.expect("kept").message, format!("at {SECRET}"));
    let history = jobs.history(&ctx, good).await.expect("kept");
    let failure = history.iter().find_map(|entry| entry.error.as_ref()).expect("one attempt failed");
    assert_eq!(failure.message, format!("cannot do {SECRET}"));
    assert_eq!(failure.details, Some(serde_json::json!({ "input": SECRET })));

    assert_eq!(jobs.wait(&ctx, bad, SOON).await.expect("ends").status, Status::DeadLettered);
    let letters = jobs.dead_letters(&ctx, JobFilter::all(), Page::default()).await.expect("lists");
    assert_eq!(letters[0].error.as_ref().expect("kept").message, format!("never bad {SECRET}"));
    until("both callbacks", || async { told.lock().len() == 2 }).await;
    told.lock().sort_unstable();
    let expected = [format!("bad {SECRET} failed: never bad {SECRET}"), format!("{SECRET} gave {output}")];
    assert_eq!(*told.lock(), expected);

    let again = jobs.replay_as_new(&ctx, bad, None).await.expect("replayed");
    assert_eq!(jobs.input(&ctx, again).await.expect("opens").as_str(), format!("\"bad {SECRET}\""));
    until("everything to end", || async { jobs.counts(&ctx).await.is_ok_and(|counts| counts.unfinished() == 0) }).await;
    let kept = all_that_is_kept(&store, &ctx).await;
    assert!(kept.contains("wls1:1:") && kept.contains("careful"), "the store has the jobs: {kept}");
    assert!(!kept.contains("kanarienvogel"), "the store has seen a secret: {kept}");
    jobs.shutdown().await;
}

/// SEC-2: the job says whether it is sealed, not the shape of its payload.
pub async fn a_payload_that_looks_sealed_is_taken_as_it_is(store: Arc<dyn Store>) {
    let echo = |_: (), _, text: String| async move { Ok::<_, JobError>(text) };
    let looks_sealed = "wls1:1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let ctx = tenant(1);
    let plain = service(&store).function("echo", (), echo).start().await.expect("starts");
    let mut options = SubmitOptions::new();
    options.spec.sealed = true;
    let job = plain.submit_named(&ctx, "echo", looks_sealed, options.clone()).await.expect("accepted").id;
    assert_eq!(plain.wait_for::<String>(&ctx, job, SOON).await.expect("succeeds"), looks_sealed);
    plain.shutdown().await;

    let jobs = sealing(&store).function("echo", (), echo).start().await.expect("starts");
    assert_eq!(jobs.input(&ctx, job).await.expect("reads").as_str(), format!("\"{looks_sealed}\""));
    assert_eq!(jobs.result::<String>(&ctx, job).await.expect("reads").as_deref(), Some(looks_sealed));
    let job = jobs.submit_named(&ctx, "echo", looks_sealed, options).await.expect("accepted").id;
    assert_eq!(jobs.wait_for::<String>(&ctx, job, SOON).await.expect("succeeds"), looks_sealed);
    assert_eq!(jobs.input(&ctx, job).await.expect("reads").as_str(), format!("\"{looks_sealed}\""));
    jobs.shutdown().await;
}

/// SEC-2, SUB-7: equal content is found under a key that only the tenant's keys can make, also after a rotation.
pub async fn sealed_jobs_are_unique_by_content_without_showing_it(store: Arc<dyn Store>) {
    let door = Door::closed();
    let wait = |door: Door, _, _: serde_json::Value| async move {
        door.pass().await;
        Ok::<_, JobError>(())
    };
    let jobs = sealing(&store).function("wait", door.clone(), wait).start().await.expect("starts");
    let ctx = tenant(1);
    let unique = || SubmitOptions::new().unique(UniqueWithin::Unfinished);
    let (input, same) = (serde_json::json!({ "a": SECRET, "b": 1 }), serde_json::json!({ "b": 1, "a": SECRET }));
    let prepared = jobs.prepare_named(&ctx, "wait", &input, unique()).await.expect("prepared");
    let key = prepared.unique.expect("unique").key.expect("set");
    assert!(key.starts_with("wait::") && key.contains("hmac-sha256:") && !key.contains("kanarienvogel"), "{key}");
    let first = jobs.submit_named(&ctx, "wait", &input, unique()).await.expect("accepted");
    jobs.rotate_keys(&ctx).await.expect("rotated");
    let second = jobs.submit_named(&ctx, "wait", &same, unique()).await.expect("accepted");
    assert_eq!((second.id, second.duplicate), (first.id, true));
    let other = jobs.submit_named(&tenant(2), "wait", &same, unique()).await.expect("accepted");
    assert!(!other.duplicate, "another tenant's content is its own");
    door.open();
    jobs.shutdown().await;
}

/// SEC-2, SEC-1: sealed text that was moved to another tenant or job fails to open; the job is a dead letter at once.
pub async fn sealed_text_of_another_tenant_or_job_does_not_open(store: Arc<dyn Store>) {
    let ran = Counter::default();
    let count = |ran: Counter, _, _: String| async move {
        ran.add();
        Ok::<_, JobError>(())
    };
    let jobs = sealing(&store).function("count", ran.clone(), count).start().await.expect("starts");
    let (ctx, other) = (tenant(1), tenant(2));
    let own = jobs.submit_named(&other, "count", SECRET, SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait(&other, own, SOON).await.expect("ends");
    let prepared = jobs.prepare_named(&ctx, "count", SECRET, SubmitOptions::new()).await.expect("prepared");
    let mut stolen = jobs.prepare_named(&other, "count", "mine", SubmitOptions::new()).await.expect("prepared");
    stolen.payload = prepared.payload.clone();
    let mut moved = jobs.prepare_named(&ctx, "count", "another", SubmitOptions::new()).await.expect("prepared");
    moved.payload = prepared.payload.clone();
    let ids = [(other.clone(), stolen.id), (ctx.clone(), moved.id)];
    store.submit(Submit { jobs: vec![stolen, moved], lease: None }).await.expect("stored");
    jobs.wake();
    for (ctx, id) in ids {
        jobs.wait(&ctx, id, SOON).await.expect("ends");
        let record = jobs.get(&ctx, id).await.expect("kept");
        assert_eq!((record.status, record.reason.as_deref()), (Status::DeadLettered, Some("seal_broken")));
        let error = jobs.input(&ctx, id).await.expect_err("sealed");
        assert_eq!(error.code(), "seal_broken", "{error}");
    }
    assert_eq!(ran.get(), 1, "only the tenant's own job ran");
    jobs.shutdown().await;
}

/// SEC-2.
pub async fn keys_rotate_and_are_wrapped_anew_without_touching_jobs(store: Arc<dyn Store>) {
    let echo = |_: (), _, text: String| async move { Ok::<_, JobError>(text) };
    let ctx = tenant(1);
    let jobs = sealing(&store).function("echo", (), echo).start().await.expect("starts");
    let mut ids = Vec::new();
    for expected in 1..=3 {
        let job = jobs.submit_named(&ctx, "echo", SECRET, SubmitOptions::new()).await.expect("accepted").id;
        assert_eq!(jobs.wait_for::<String>(&ctx, job, SOON).await.expect("succeeds"), SECRET);
        let kept = store.input(ctx.scope(), job).await.expect("reads").expect("kept");
        assert!(kept.as_str().starts_with(&format!("\"wls1:{expected}:")), "new jobs use the new version");
        ids.push((job, kept));
        assert_eq!(jobs.rotate_keys(&ctx).await.expect("rotated"), expected + 1);
    }
    jobs.shutdown().await;

    // Another process with another current key-encryption key: it opens all, wraps anew, and then needs the old no more.
    let both = service(&store).encryption(Encryption::new(keys("second,first"))).start().await.expect("starts");
    assert_eq!(both.operator(OperatorRight::assume()).rewrap_keys(&ctx).await.expect("rewrapped"), 4);
    assert_eq!(both.operator(OperatorRight::assume()).rewrap_keys(&ctx).await.expect("nothing to do"), 0);
    both.shutdown().await;
    let new = service(&store).encryption(Encryption::new(keys("second"))).start().await.expect("starts");
    for (job, kept) in ids {
        assert_eq!(new.result::<String>(&ctx, job).await.expect("opens").as_deref(), Some(SECRET));
        let after = store.input(ctx.scope(), job).await.expect("reads").expect("kept");
        assert_eq!(after, kept, "jobs are not touched");
    }
    let keks: Vec<String> =
        new.keys(&ctx).await.expect("lists").into_iter().filter_map(|key| key.wrapped).map(|w| w.kek).collect();
    assert_eq!(keks, ["second"; 4]);
    let actions: Vec<String> = new
        .operator(OperatorRight::assume())
        .audit_log(&Default::default())
        .await
        .expect("reads")
        .into_iter()
        .map(|entry| entry.action)
        .collect();
    assert!(
        actions.iter().any(|a| a == "KEYS_ROTATED") && actions.iter().any(|a| a == "KEYS_REWRAPPED"),
        "{actions:?}"
    );
    new.shutdown().await;
}

/// SEC-2: without its keys a tenant's jobs are unreadable for good; those to run end at once, with a reason, and once.
pub async fn destroyed_keys_make_dead_letters(store: Arc<dyn Store>) {
    let ran = Counter::default();
    let echo = |ran: Counter, _, text: String| async move {
        ran.add();
        Ok::<_, JobError>(text)
    };
    let jobs = sealing(&store).function("echo", ran.clone(), echo).start().await.expect("starts");
    let (ctx, other) = (tenant(1), tenant(2));
    let done = jobs.submit_named(&ctx, "echo", SECRET, SubmitOptions::new()).await.expect("accepted").id;
    let of_other = jobs.submit_named(&other, "echo", SECRET, SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait_for::<String>(&ctx, done, SOON).await.expect("succeeds");
    jobs.wait_for::<String>(&other, of_other, SOON).await.expect("succeeds");
    let later = SubmitOptions::new().delay(Duration::from_millis(300));
    let waiting = jobs.submit_named(&ctx, "echo", SECRET, later).await.expect("accepted").id;
    assert_eq!(jobs.destroy_keys(&ctx).await.expect("destroyed"), 1);

    jobs.wait(&ctx, waiting, SOON).await.expect("ends");
    let record = jobs.get(&ctx, waiting).await.expect("kept");
    assert_eq!((record.status, record.reason.as_deref()), (Status::DeadLettered, Some("key_destroyed")));
    assert!(record.error.expect("kept").message.contains("destroyed"));
    let error = jobs.result::<String>(&ctx, done).await.expect_err("unreadable");
    assert!(matches!(error, Error::Sealed { source: KeyError::Destroyed { .. }, .. }), "{error:?}");
    assert_eq!(jobs.input(&ctx, done).await.expect_err("unreadable").code(), "key_destroyed");
    assert!(jobs.get(&ctx, done).await.expect("kept").output.expect("kept").is_sealed());
    assert_eq!(jobs.result::<String>(&other, of_other).await.expect("opens").as_deref(), Some(SECRET));
    assert_eq!(ran.get(), 2);

    let new = jobs.submit_named(&ctx, "echo", SECRET, SubmitOptions::new()).await.expect("accepted").id;
    assert_eq!(jobs.wait_for::<String>(&ctx, new, SOON).await.expect("a new key was made"), SECRET);
    let versions: Vec<(u32, bool)> =
        jobs.keys(&ctx).await.expect("lists").iter().map(|key| (key.version, key.wrapped.is_some())).collect();
    assert_eq!(versions, [(1, false), (2, true)], "no version is used again");
    jobs.shutdown().await;
}

/// A provider that can be out of order.
struct Moody {
    keys: LocalKeys,
    mood: Arc<AtomicU8>,
}

const WELL: u8 = 0;
const FAILING: u8 = 1;
const HANGING: u8 = 2;

impl Moody {
    async fn mood(&self) -> Result<(), KeyError> {
        match self.mood.load(Ordering::SeqCst) {
            WELL => Ok(()),
            FAILING => Err(KeyError::Unavailable("the key service answers 503".into())),
            _ => std::future::pending().await,
        }
    }
}

#[async_trait]
impl KeyProvider for Moody {
    async fn current(&self) -> Result<String, KeyError> {
        self.keys.current().await
    }

    async fn wrap(&self, of: KeyOf, data_key: &DataKey) -> Result<WrappedKey, KeyError> {
        self.mood().await?;
        self.keys.wrap(of, data_key).await
    }

    async fn unwrap(&self, of: KeyOf, wrapped: &WrappedKey) -> Result<DataKey, KeyError> {
        self.mood().await?;
        self.keys.unwrap(of, wrapped).await
    }
}

/// SEC-2: submits fail at once with a typed error, or after the timeout; stored jobs wait at no cost and run when the
/// provider is back; a tenant whose keys are held notices nothing.
pub async fn a_failing_key_provider_delays_and_loses_nothing(store: Arc<dyn Store>) {
    let echo = |_: (), ctx: JobContext, text: String| async move { Ok::<_, JobError>((ctx.attempt(), text)) };
    let mood = Arc::new(AtomicU8::new(WELL));
    let encryption = || {
        let provider = Moody { keys: keys("first"), mood: mood.clone() };
        Encryption::new(provider).timeout(Duration::from_millis(300))
    };
    let submitter = service(&store).encryption(encryption()).without_workers().start().await.expect("starts");
    let (ctx, other) = (tenant(1), tenant(2));
    let job = submitter.submit_named(&ctx, "echo", SECRET, SubmitOptions::new()).await.expect("accepted").id;

    mood.store(FAILING, Ordering::SeqCst);
    let error = submitter.submit_named(&other, "echo", SECRET, SubmitOptions::new()).await.expect_err("no key");
    assert!(matches!(&error, Error::Keys(cause) if cause.is_transient()), "{error:?}");
    assert_eq!(error.code(), "key_unavailable");
    submitter.submit_named(&ctx, "echo", SECRET, SubmitOptions::new()).await.expect("its key is held");
    let worker = service(&store).encryption(encryption()).function("echo", (), echo).start().await.expect("starts");
    until_status(&worker, &ctx, job, Status::Scheduled).await;
    mood.store(HANGING, Ordering::SeqCst);
    let begun = std::time::Instant::now();
    let third = tenant(3);
    let error = submitter.submit_named(&third, "echo", SECRET, SubmitOptions::new()).await.expect_err("no key");
    assert!(error.to_string().contains("300 ms") && begun.elapsed() < SOON / 2, "{error}");

    mood.store(WELL, Ordering::SeqCst);
    let (attempt, text): (u16, String) = worker.wait_for(&ctx, job, SOON).await.expect("succeeds");
    assert_eq!((attempt, text.as_str()), (1, SECRET), "waiting for keys costs no attempt");
    until("the other tenant's key", || async {
        submitter.submit_named(&other, "echo", SECRET, SubmitOptions::new()).await.is_ok()
    })
    .await;
    worker.shutdown().await;
    submitter.shutdown().await;
}

/// SEC-2.
pub async fn a_node_without_keys_leaves_sealed_jobs_to_others(store: Arc<dyn Store>) {
    let echo = |_: (), _, text: String| async move { Ok::<_, JobError>(text) };
    let submitter = sealing(&store).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let job = submitter.submit_named(&ctx, "echo", SECRET, SubmitOptions::new()).await.expect("accepted").id;
    let plain = service(&store).function("echo", (), echo).start().await.expect("starts");
    until_status(&plain, &ctx, job, Status::Scheduled).await;
    assert_eq!(plain.input(&ctx, job).await.expect_err("sealed").code(), "sealed");
    let worker = sealing(&store).function("echo", (), echo).start().await.expect("starts");
    assert_eq!(worker.wait_for::<String>(&ctx, job, SOON).await.expect("succeeds"), SECRET);
    let shown = plain.get(&ctx, job).await.expect("kept").output.expect("kept");
    assert!(shown.is_sealed() && shown.decode::<String>().is_err());
    let error = plain.result::<String>(&ctx, job).await.expect_err("sealed");
    assert!(matches!(error, Error::Sealed { source: KeyError::NotConfigured, .. }), "{error:?}");
    for service in [worker, plain, submitter] {
        service.shutdown().await;
    }
}

/// SEC-2, BEY-3: sealed failures of a tenant are one group where they are alike, and their signatures cannot be guessed.
pub async fn sealed_failures_are_grouped_without_showing_their_messages(store: Arc<dyn Store>) {
    let fail =
        |_: (), _, n: u32| async move { Err::<(), _>(JobError::terminal("broken", format!("{SECRET} number {n}"))) };
    let jobs = sealing(&store).function("fail", (), fail).start().await.expect("starts");
    let (ctx, other) = (tenant(1), tenant(2));
    for (ctx, n) in [(&ctx, 1), (&ctx, 2), (&other, 3)] {
        let id = jobs.submit_named(ctx, "fail", &n, SubmitOptions::new()).await.expect("accepted").id;
        jobs.wait(ctx, id, SOON).await.expect("ends");
    }
    let groups = jobs.failures(&ctx, &JobFilter::all(), 10).await.expect("grouped");
    assert_eq!(groups.len(), 1);
    assert_eq!((groups[0].jobs, groups[0].sample.as_str()), (2, format!("{SECRET} number 2").as_str()));
    assert_eq!(groups[0].message, normalise(&groups[0].sample));
    let plain = signature("fail", &JobError::terminal("broken", &groups[0].sample));
    assert_ne!(groups[0].signature, plain, "whoever reads the store cannot try out messages");
    let theirs = jobs.failures(&other, &JobFilter::all(), 10).await.expect("grouped");
    assert_ne!(theirs[0].signature, groups[0].signature, "nor compare tenants");
    let found = jobs.list(&ctx, &JobFilter::all().signature(groups[0].signature), Page::default()).await;
    assert_eq!(found.expect("lists").len(), 2);
    assert!(!all_that_is_kept(&store, &ctx).await.contains("kanarienvogel"));
    jobs.shutdown().await;
}
