//! Two tenants whose every text carries a word of their own (SEC-1, invariant I17): whatever one of them calls, the
//! other's word, id or job is in no answer, no error, no event; and what handlers were given is in no log at all. Runs on
//! every store through the public service. Never looks behind the service's back.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use windlass::store::{AuditFilter, PauseTarget, Store};
use windlass::*;

/// Everything that is logged in this process, as far as it has a canary in it.
static LOGGED: Mutex<String> = Mutex::new(String::new());

const SOON: Duration = Duration::from_secs(30);

/// Begins to keep logs of every level, also those of libraries.
fn keep_logs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        struct Keep;
        impl std::io::Write for Keep {
            fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
                let text = String::from_utf8_lossy(line);
                if text.contains("canary") {
                    LOGGED.lock().expect("no writer panics").push_str(&text);
                }
                Ok(line.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false).with_writer(|| Keep).init();
    });
}

/// What the job is to do, and the word that everything it says has in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Work {
    does: String,
    word: String,
}

async fn work(door: Arc<tokio::sync::Notify>, ctx: JobContext, work: Work) -> Result<String, JobError> {
    let Work { does, word } = work;
    ctx.report_progress(50.0, format!("progress-{word}"));
    ctx.save_checkpoint(&format!("checkpoint-{word}")).await?;
    match does.as_str() {
        "succeed" => Ok(format!("output-{word}")),
        "die" => Err(JobError::terminal(format!("code-{word}"), format!("error-{word}"))),
        "retry" => Err(JobError::retryable(format!("error-{word}")).retry_after(Duration::from_secs(3_600))),
        "panic" => panic!("panic-{word}"),
        _ => {
            tokio::select! {
                () = door.notified() => {}
                () = ctx.cancellation().cancelled() => {}
            }
            Ok(format!("output-{word}"))
        }
    }
}

/// A tenant, its word, and everything it has been told.
struct Tenant {
    ctx: SecurityContext,
    word: String,
    jobs: Vec<JobId>,
    told: String,
}

impl Tenant {
    fn new(letter: char) -> Tenant {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let word = format!("canary-{letter}-{n}-{}", std::process::id());
        let ctx = SecurityContext::new(TenantId(Uuid::new_v4())).with_user(format!("user-{word}"));
        Tenant { ctx, word, jobs: Vec::new(), told: String::new() }
    }

    fn hears(&mut self, what: &impl std::fmt::Debug) {
        self.told.push_str(&format!("{what:?}\n"));
    }

    /// A record with its output, which its Debug leaves out.
    fn reads(&mut self, record: &JobRecord) {
        self.hears(record);
        self.told.push_str(&serde_json::to_string(record).expect("a record can be written"));
    }

    async fn submit(&mut self, jobs: &JobService, does: &str, options: SubmitOptions) -> JobId {
        let input = Work { does: does.into(), word: format!("payload-{}", self.word) };
        let word = &self.word;
        let options = options.tag(format!("tag-{word}")).correlation_id(format!("correlation-{word}"));
        let options = options
            .header(format!("header-{word}"), word.clone())
            .idempotency_key(format!("{does}-{}", self.jobs.len()));
        let submitted = jobs.submit_named(&self.ctx, "work", &input, options).await.expect("accepted");
        assert!(!submitted.duplicate, "another tenant's key is none of this one's");
        self.jobs.push(submitted.id);
        submitted.id
    }
}

/// Both tenants use every call; afterwards each has heard its own word and never the other's.
async fn nobody_hears_of_another(store: Arc<dyn Store>) {
    keep_logs();
    let door = Arc::new(tokio::sync::Notify::new());
    let jobs = JobService::builder(store)
        .function("work", door.clone(), work)
        .configure(|config| config.poll = Duration::from_millis(100));
    let jobs = jobs.start().await.expect("starts");
    let mut tenants = [Tenant::new('a'), Tenant::new('b')];
    let mut events: Vec<_> = tenants.iter().map(|tenant| jobs.events(&tenant.ctx)).collect();

    for tenant in &mut tenants {
        let word = tenant.word.clone();
        for does in ["succeed", "die", "retry", "panic", "wait"] {
            tenant.submit(&jobs, does, SubmitOptions::new().retry(RetryPolicy::fixed(1, Duration::ZERO))).await;
        }
        let retried = tenant.submit(&jobs, "retry", SubmitOptions::new()).await;
        tenant.submit(&jobs, "succeed", SubmitOptions::new().delay(Duration::from_secs(3_600))).await;
        tenant.submit(&jobs, "wait", SubmitOptions::new().ordering_key("the same in both")).await;
        tenant.submit(&jobs, "wait", SubmitOptions::new().ordering_key("the same in both")).await;
        let unwanted = tenant.submit(&jobs, "wait", SubmitOptions::new().delay(Duration::from_secs(60))).await;
        jobs.cancel(&tenant.ctx, unwanted, &format!("reason-{word}")).await.expect("canceled");
        jobs.audit(&tenant.ctx, "LOOKED", &format!("target-{word}"), Some(format!("detail-{word}")))
            .await
            .expect("noted");
        jobs.operator(OperatorRight::assume())
            .pause(&tenant.ctx, &PauseTarget::Tenant(TenantId(Uuid::new_v4())), &format!("other-{word}"))
            .await
            .expect("paused");
        let ctx = tenant.ctx.clone();
        until("a retry is waited for", || async {
            jobs.get(&ctx, retried).await.is_ok_and(|record| record.status == Status::Retrying)
        })
        .await;
    }
    for tenant in &tenants {
        jobs.pause(&tenant.ctx, &PauseTarget::Tenant(tenant.ctx.tenant), &format!("pause-{}", tenant.word))
            .await
            .expect("paused");
    }
    for n in [0, 1] {
        let theirs = tenants[1 - n].jobs.clone();
        ask_everything(&jobs, &mut tenants[n], &theirs).await;
    }
    door.notify_waiters();
    for (tenant, events) in tenants.iter_mut().zip(&mut events) {
        while let Some(Some(event)) = events.next().now_or_never() {
            tenant.hears(&event);
        }
    }

    let foreign = |other: &Tenant| {
        let mut words = vec![other.word.clone(), other.ctx.tenant.to_string()];
        words.extend(other.jobs.iter().map(JobId::to_string));
        words
    };
    for (tenant, other) in [(&tenants[0], &tenants[1]), (&tenants[1], &tenants[0])] {
        let kinds = "output error code progress tag correlation reason target detail user header payload pause";
        for kind in kinds.split(' ') {
            assert!(tenant.told.contains(&format!("{kind}-")), "no {kind} was read");
        }
        for word in foreign(other) {
            let line = tenant.told.lines().find(|line| line.contains(&word));
            assert!(line.is_none(), "{word} was told to another tenant: {}", line.unwrap_or_default());
        }
    }
    // The log is really kept; what handlers were given and gave is not in it, nor is any key, tag or header. The correlation
    // id is: it is there to tie log lines together (API-7).
    tracing::trace!("the log has canary-of-the-test");
    let logged = LOGGED.lock().expect("no writer panics").clone();
    assert!(logged.contains("canary-of-the-test"));
    for tenant in &tenants {
        let logged = logged.replace(&format!("correlation-{}", tenant.word), "");
        let line = logged.lines().find(|line| line.contains(&tenant.word));
        assert!(line.is_none(), "logged: {}", line.unwrap_or_default());
    }
    jobs.shutdown().await;
}

/// Every read there is, and every error, also with the other tenant's ids.
async fn ask_everything(jobs: &JobService, me: &mut Tenant, theirs: &[JobId]) {
    let ctx = me.ctx.clone();
    for status in Status::ALL.map(Some).into_iter().chain([None]) {
        let mut filter = JobFilter::all();
        filter.statuses.extend(status);
        for record in jobs.list(&ctx, &filter, Page::default()).await.expect("lists") {
            me.reads(&record);
        }
    }
    let filters: [fn(&mut JobFilter); 4] = [
        |filter| filter.handler = Some("work".into()),
        |filter| filter.reason = Some("key:the same in both".into()),
        |filter| filter.replayed = Some(false),
        |filter| filter.created_after = Some(Timestamp::from_micros(0)),
    ];
    for narrow in filters {
        let mut filter = JobFilter::all();
        narrow(&mut filter);
        for record in jobs.list(&ctx, &filter, Page::first(100)).await.expect("lists") {
            me.reads(&record);
        }
    }
    for letter in jobs.dead_letters(&ctx, JobFilter::all(), Page::default()).await.expect("lists") {
        me.reads(&letter);
    }
    for text in
        ["", "error:e", "status:dead,retrying,pending,running", "node:1", "input.secret:x", "tag:t priority:normal"]
    {
        let filter = JobFilter::parse(text, Timestamp::default()).expect(text);
        for record in jobs.search(&ctx, &filter, Page::default()).await.expect("searches").jobs {
            me.reads(&record);
        }
        me.hears(&jobs.preview(&ctx, &filter, 100).await.expect("counts"));
        me.hears(&jobs.failures(&ctx, &filter, 100).await.expect("groups"));
    }
    me.hears(&jobs.bulks(&ctx).await.expect("reads"));
    me.hears(&jobs.counts(&ctx).await.expect("counts"));
    assert_eq!(jobs.counts(&ctx).await.expect("counts").unfinished(), 5, "its own, not all");
    me.hears(&jobs.audit_log(&ctx, &AuditFilter::default()).await.expect("reads"));
    let mut succeeded = AuditFilter::default();
    succeeded.action = Some("JOB_SUCCEEDED".into());
    me.hears(&jobs.audit_log(&ctx, &succeeded).await.expect("reads"));
    me.hears(&jobs.pauses(&ctx).await.expect("reads"));
    me.hears(&jobs.nodes().await.expect("reads"));
    for id in me.jobs.clone() {
        let record = jobs.get(&ctx, id).await.expect("its own");
        me.reads(&record);
        me.hears(&jobs.history(&ctx, id).await.expect("its own"));
        me.hears(&jobs.why(&ctx, id).await.expect("its own"));
        me.told.push_str(jobs.input(&ctx, id).await.expect("its own").as_str());
        me.hears(&jobs.result::<String>(&ctx, id).await);
        let mut views = jobs.watch(&ctx, id, 0).await.expect("its own");
        me.hears(&views.next().await);
    }
    // Errors name what was asked for and nothing of what is there.
    for id in theirs {
        let missing = [
            jobs.get(&ctx, *id).await.map(drop),
            jobs.history(&ctx, *id).await.map(drop),
            jobs.why(&ctx, *id).await.map(drop),
            jobs.input(&ctx, *id).await.map(drop),
            jobs.result::<String>(&ctx, *id).await.map(drop),
            jobs.watch(&ctx, *id, 0).await.map(drop),
            jobs.cancel(&ctx, *id, "mine now").await.map(drop),
            jobs.replay(&ctx, *id).await,
            jobs.replay_as_new(&ctx, *id, None).await.map(drop),
            jobs.purge(&ctx, *id).await,
        ];
        for answer in missing {
            let error = answer.expect_err("another tenant's");
            assert!(matches!(error, Error::NotFound(_)), "{error:?}");
            assert_eq!(error.to_string(), Error::NotFound(*id).to_string());
        }
    }
}

async fn until<F: Future<Output = bool>>(what: &str, mut probe: impl FnMut() -> F) {
    let wait = async {
        while !probe().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("waited for: {what}"));
}

/// SEC-1.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_hears_of_another_in_memory() {
    nobody_hears_of_another(Arc::new(MemoryStore::new())).await;
}

/// SEC-1.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_hears_of_another_in_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = sqlite::SqliteStore::open(directory.path().join("jobs.db")).expect("opens");
    nobody_hears_of_another(Arc::new(store)).await;
}

/// SEC-1.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_hears_of_another_on_a_server() {
    let admin = windlass_testkit::servers::test_postgres_url();
    let config: tokio_postgres::Config = admin.parse().expect("a URL");
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    let name = format!("windlass_canary_{}", std::process::id());
    client.batch_execute(&format!("create database {name}")).await.expect("the role may create databases");
    let (base, _) = admin.rsplit_once('/').expect("a database in the URL");
    let store = postgres::PgStore::connect(&format!("{base}/{name}")).await.expect("connects");
    nobody_hears_of_another(Arc::new(store)).await;
    client.batch_execute(&format!("drop database {name} with (force)")).await.expect("drops");
}
