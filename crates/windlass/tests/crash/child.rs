//! What the processes of the tests do: run jobs, submit, cancel, open. Each writes what it does into its own log, a line
//! at a time and never into the store under test. Called by the test `child` alone.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use windlass::store::{CancelReply, Finish, Finished, Note, Noted, Store, Transition};
use windlass::{
    Builder, Error, JobContext, JobError, JobId, JobService, OperatorRight, Payload, Progress, Status, SubmitOptions,
    Timestamp,
};

use crate::fleet::{Role, Settings, Task, onlooker, open, root};

pub(crate) fn run(task: Task) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be built").block_on(async {
        let log = Notes::open(&task);
        match task.role {
            Role::Work => work(task, log).await,
            Role::Submit { tasks, keys } => submit(task, log, tasks, keys).await,
            Role::SubmitKeys { tasks } => submit_keys(task, log, tasks).await,
            Role::Cancel => cancel(task, log).await,
            Role::Open => match windlass::open(&task.url).await {
                Ok(_) => log.note("opened"),
                Err(error) => log.note(format!("refused {} {error}", error.code())),
            },
        }
    });
}

/// The log. A line is one write to the file, so what is written is there even if the process is killed right after.
#[derive(Clone)]
struct Notes(Arc<File>);

impl Notes {
    fn open(task: &Task) -> Notes {
        Notes(Arc::new(OpenOptions::new().append(true).open(&task.log).expect("open the log")))
    }

    fn note(&self, line: impl std::fmt::Display) {
        (&*self.0).write_all(format!("{line}\n").as_bytes()).expect("write the log");
    }
}

/// The lines of the process's input; ends when the parent closes it or is gone.
fn input() -> mpsc::UnboundedReceiver<String> {
    let (send, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

// ---- running jobs

async fn work(task: Task, log: Notes) {
    let store = open(&task.url).await;
    let hands = Hands { log: log.clone(), gate: task.gate, innocents: Arc::default(), store: store.clone() };
    let service = JobService::builder(store)
        .function("hold", hands.clone(), hold)
        .function("deaf", hands.clone(), deaf)
        .function("note", hands.clone(), note)
        .function("told", hands.clone(), told)
        .function("writes", hands.clone(), writes)
        .function("block", hands.clone(), block)
        .function("innocent", hands.clone(), innocent)
        .function("poison", hands.clone(), poison)
        .function("slow_poison", hands.clone(), slow_poison)
        .function("race", hands, race);
    let service = with_settings(service, task.settings).start().await.expect("start a worker");
    let mut events = service.operator(OperatorRight::assume()).events();
    let events_log = log.clone();
    tokio::spawn(async move {
        // Only results that the store has accepted are told.
        while let Some(event) = events.next().await {
            if event.status.is_terminal() {
                events_log.note(format!("accepted {} {}", event.job, event.status));
            }
        }
    });
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).expect("a signal");
    let mut lines = input();
    log.note("ready");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = lines.recv() => {}
    }
    service.shutdown().await;
    log.note("stopped");
}

fn with_settings(builder: Builder, settings: Settings) -> Builder {
    builder.configure(|config| {
        config.lease = settings.lease.unwrap_or(config.lease);
        config.concurrency = settings.concurrency.unwrap_or(config.concurrency);
        config.grace = settings.grace.unwrap_or(config.grace);
        config.shutdown_deadline = settings.shutdown_deadline.unwrap_or(config.shutdown_deadline);
    })
}

/// What the handlers share.
#[derive(Clone)]
struct Hands {
    log: Notes,
    gate: PathBuf,
    /// Innocent jobs that run in this process now.
    innocents: Arc<AtomicUsize>,
    /// What a handler must not do is done past its context.
    store: Arc<dyn Store>,
}

impl Hands {
    fn started(&self, ctx: &JobContext) {
        self.log.note(format!("started {} {}", ctx.job_id(), ctx.attempt()));
    }

    /// Has the effect of the job, and returns its result: which process had it, in which attempt.
    fn effect(&self, ctx: &JobContext) -> Result<Value, JobError> {
        self.log.note(format!("effect {} {}", ctx.job_id(), ctx.attempt()));
        Ok(json!({ "pid": std::process::id(), "attempt": ctx.attempt() }))
    }

    async fn gate_opens(&self) {
        while !self.gate.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Waits for the gate, but stops when asked.
async fn hold(hands: Hands, ctx: JobContext, _: Value) -> Result<Value, JobError> {
    hands.started(&ctx);
    tokio::select! {
        () = hands.gate_opens() => hands.effect(&ctx),
        () = ctx.cancellation().cancelled() => Err(JobError::retryable("asked to stop")),
    }
}

/// Waits for the gate whatever it is asked.
async fn deaf(hands: Hands, ctx: JobContext, _: Value) -> Result<Value, JobError> {
    hands.started(&ctx);
    hands.gate_opens().await;
    hands.effect(&ctx)
}

async fn note(hands: Hands, ctx: JobContext, _: Value) -> Result<Value, JobError> {
    hands.started(&ctx);
    hands.effect(&ctx)
}

/// The first attempt does nothing until it is told that it has lost its job, then tries every write there is.
async fn told(hands: Hands, ctx: JobContext, _: Value) -> Result<Value, JobError> {
    hands.started(&ctx);
    ctx.save_checkpoint(&json!({ "attempt": ctx.attempt() })).await?;
    ctx.report_progress(10.0 * f32::from(ctx.attempt()), format!("attempt {}", ctx.attempt()));
    hands.log.note(format!("saved {}", ctx.job_id()));
    if ctx.attempt() == 1 {
        ctx.cancellation().cancelled().await;
        hands.log.note(format!("told {} {}", ctx.job_id(), ctx.lease_lost()));
        write_anyway(&hands, &ctx).await;
    }
    hands.effect(&ctx)
}

/// The first attempt writes on and on until a write is refused, and then tries the others.
async fn writes(hands: Hands, ctx: JobContext, _: Value) -> Result<Value, JobError> {
    hands.started(&ctx);
    for n in 0_u64.. {
        if let Err(error) = ctx.save_checkpoint(&n).await {
            hands.log.note(format!("told {} {}", ctx.job_id(), ctx.lease_lost() && error.code() == "lease_lost"));
            write_anyway(&hands, &ctx).await;
            break;
        }
        hands.log.note(format!("saved {}", ctx.job_id()));
        if ctx.attempt() > 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    hands.effect(&ctx)
}

/// Every write of an attempt, past the service and straight to the store, as a broken runtime would do it.
async fn write_anyway(hands: &Hands, ctx: &JobContext) {
    let id = ctx.job_id();
    if let Err(Error::LeaseLost(job)) = ctx.save_checkpoint(&"late").await {
        hands.log.note(format!("refused {job} save_checkpoint"));
    }
    let store = &hands.store;
    let late = || Payload::from_store("\"late\"");
    let (node, fence) = (ctx.node(), ctx.fence());
    let checkpoint = Note { fence, what: Noted::Checkpoint(late()) };
    if store.note(node, vec![checkpoint]).await.expect("an answer") == [false] {
        hands.log.note(format!("refused {id} checkpoint"));
    }
    let progress =
        Progress { sequence: u64::MAX >> 1, percent: 99.0, message: "late".into(), updated_at: Timestamp::default() };
    if store.note(node, vec![Note { fence, what: Noted::Progress(progress) }]).await.expect("an answer") == [false] {
        hands.log.note(format!("refused {id} progress"));
    }
    let ends = [
        ("succeed", Transition::Succeed { output: Some(late()), keep: Duration::from_secs(60) }),
        ("retry", Transition::Retry { failed: 1, delay: Duration::ZERO, error: JobError::retryable("late") }),
        ("snooze", Transition::Snooze { delay: Duration::from_secs(60) }),
        ("release", Transition::Release),
    ];
    for (name, transition) in ends {
        let finish = Finish {
            fence,
            attempt: ctx.attempt(),
            ran: ctx.elapsed(),
            transition,
            follow_up: None,
            cost: None,
            audit: false,
            batch: None,
            resumed: true,
        };
        if store.finish(node, vec![finish]).await.expect("an answer") == [Finished::Fenced] {
            hands.log.note(format!("refused {id} {name}"));
        }
    }
}

/// Blocks its thread for so many milliseconds.
async fn block(hands: Hands, ctx: JobContext, millis: u64) -> Result<Value, JobError> {
    hands.started(&ctx);
    std::thread::sleep(Duration::from_millis(millis));
    hands.effect(&ctx)
}

/// A job like any other, of so many milliseconds.
async fn innocent(hands: Hands, ctx: JobContext, millis: u64) -> Result<Value, JobError> {
    hands.started(&ctx);
    hands.innocents.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(millis)).await;
    hands.innocents.fetch_sub(1, Ordering::SeqCst);
    hands.effect(&ctx)
}

/// Takes its whole process along; the first time, when so many innocent jobs run beside it.
async fn poison(hands: Hands, ctx: JobContext, beside: usize) -> Result<Value, JobError> {
    hands.started(&ctx);
    while ctx.attempt() == 1 && hands.innocents.load(Ordering::SeqCst) < beside {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    hands.log.note(format!("aborts {} {}", ctx.attempt(), hands.innocents.load(Ordering::SeqCst)));
    std::process::abort();
}

/// Takes its whole process along after so many milliseconds.
async fn slow_poison(hands: Hands, ctx: JobContext, millis: u64) -> Result<Value, JobError> {
    hands.started(&ctx);
    tokio::time::sleep(Duration::from_millis(millis)).await;
    hands.log.note(format!("aborts {} {}", ctx.attempt(), hands.innocents.load(Ordering::SeqCst)));
    std::process::abort();
}

/// Ends at a certain time.
async fn race(hands: Hands, ctx: JobContext, at_micros: u64) -> Result<Value, JobError> {
    hands.started(&ctx);
    until(at_micros).await;
    hands.effect(&ctx)
}

/// Waits until so many microseconds after 1970. All processes of a test have one clock.
async fn until(at_micros: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    tokio::time::sleep(Duration::from_micros(at_micros).saturating_sub(now)).await;
}

// ---- submitting

async fn submit(task: Task, log: Notes, tasks: usize, keys: bool) {
    let service = onlooker(open(&task.url).await).await;
    let (stopping, stop) = tokio::sync::watch::channel(false);
    let mut submitters = JoinSet::new();
    for n in 0..tasks {
        let (service, log, stop) = (service.clone(), log.clone(), stop.clone());
        submitters.spawn(async move {
            for count in 0_u64.. {
                if *stop.borrow() {
                    return;
                }
                let key = keys.then(|| format!("{}-{n}-{count}", std::process::id()));
                submit_until_acknowledged(&service, &log, key).await;
            }
        });
    }
    let mut lines = input();
    log.note("ready");
    while lines.recv().await.is_some() {}
    stopping.send_replace(true);
    submitters.join_all().await;
    service.shutdown().await;
}

/// One submit; with a key, again and again until it is known to have happened.
async fn submit_until_acknowledged(service: &JobService, log: &Notes, key: Option<String>) {
    loop {
        let mut options = SubmitOptions::new();
        options.idempotency_key = key.clone();
        let name = key.as_deref().unwrap_or("-");
        match service.submit_named(&root(), "note", &json!({}), options).await {
            Ok(submitted) => return log.note(format!("acked {name} {}", submitted.id)),
            Err(error) => log.note(format!("failed {name} {}", error.code())),
        }
        if key.is_none() {
            return;
        }
        // As any caller would: not as fast as possible while the server is away.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn submit_keys(task: Task, log: Notes, tasks: usize) {
    let service = onlooker(open(&task.url).await).await;
    let mut lines = input();
    log.note("ready");
    while let Some(key) = lines.recv().await {
        let together = Arc::new(tokio::sync::Barrier::new(tasks));
        let mut submitters = JoinSet::new();
        for n in 0..tasks {
            let (service, log, together, key) = (service.clone(), log.clone(), together.clone(), key.clone());
            submitters.spawn(async move {
                together.wait().await;
                let options = SubmitOptions::new().idempotency_key(&*key);
                // Each with an input of its own: the first one counts, the others are neither merged nor kept.
                let input = json!({ "pid": std::process::id(), "n": n });
                match service.submit_named(&root(), "note", &input, options).await {
                    Ok(submitted) => log.note(format!("acked {key} {} {}", submitted.id, submitted.duplicate)),
                    Err(error) => log.note(format!("failed {key} {}", error.code())),
                }
            });
        }
        submitters.join_all().await;
    }
    service.shutdown().await;
}

// ---- canceling

async fn cancel(task: Task, log: Notes) {
    let service = onlooker(open(&task.url).await).await;
    let mut lines = input();
    log.note("ready");
    let mut cancels = JoinSet::new();
    while let Some(line) = lines.recv().await {
        let (id, at) = line.split_once(' ').expect("a job and a time");
        let (id, at): (JobId, u64) = (id.parse().expect("a job"), at.parse().expect("a time"));
        let (service, log) = (service.clone(), log.clone());
        cancels.spawn(async move {
            until(at).await;
            let reply = match service.cancel(&root(), id, "not wanted").await {
                Ok(CancelReply::Requested) => "requested",
                Ok(CancelReply::Canceled) => "canceled",
                Err(Error::AlreadyFinished { status: Status::Succeeded, .. }) => "too_late",
                other => panic!("cancel of job {id}: {other:?}"),
            };
            log.note(format!("reply {id} {reply}"));
        });
    }
    cancels.join_all().await;
    service.shutdown().await;
}
