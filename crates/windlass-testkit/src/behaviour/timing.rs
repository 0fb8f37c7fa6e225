//! Behaviours of what time starts: schedules (TIM-2).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use windlass_core::store::{SCHEDULES_MAX, ScheduleChange, ScheduleChanged, ScheduleContent, ScheduleTo, Store};
use windlass_core::*;

use super::*;
use crate::servers::is_full_tier;

/// Every second: the shortest time that a schedule can fire in.
const SECONDLY: &str = "* * * * * *";
const TICK: HandlerRef<String, ()> = HandlerRef::new("tick");

type Seen = Arc<Mutex<Vec<Timestamp>>>;

async fn note(seen: Seen, ctx: JobContext, _: String) -> Result<(), JobError> {
    seen.lock().push(ctx.nominal_at().expect("a scheduled job knows what time it is for"));
    Ok(())
}

async fn runs(jobs: &JobService, ctx: &SecurityContext, name: &str) -> Vec<JobRecord> {
    jobs.schedules().runs(ctx, name, Page::first(100)).await.expect("a list")
}

/// TIM-2: a schedule starts a job at each of its times, once on all nodes together, until it is paused or removed.
pub async fn a_schedule_starts_a_job_at_each_of_its_times(store: Arc<dyn Store>) {
    let seen = Seen::default();
    let start = || service(&store).function(TICK, seen.clone(), note).start();
    let (jobs, other) = (start().await.expect("starts"), start().await.expect("starts"));
    let (ctx, schedules) = (tenant(1), jobs.schedules());
    let made = schedules.put(&ctx, Schedule::cron("beat", SECONDLY).starts(TICK, "x")).await.expect("stored");
    assert!(made.next_at.is_some() && !made.paused);
    until("three jobs have run", || async { seen.lock().len() >= 3 }).await;
    schedules.pause(&ctx, "beat").await.expect("it exists");
    until("what was fired has run", || async {
        runs(&jobs, &ctx, "beat").await.iter().all(|job| job.status == Status::Succeeded)
    })
    .await;
    let fired = runs(&jobs, &ctx, "beat").await.len();
    let nominal: BTreeSet<Timestamp> = seen.lock().iter().copied().collect();
    assert_eq!((nominal.len(), seen.lock().len()), (fired, fired), "each time once");
    assert!(nominal.iter().all(|at| at.as_millis() % 1_000 == 0), "the time it is for, not the time it ran");
    // Nothing fires while it is paused: a fixed wait shows what does not happen.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(runs(&jobs, &ctx, "beat").await.len(), fired);
    let by_hand = schedules.trigger(&ctx, "beat").await.expect("also while it is paused").id;
    jobs.wait(&ctx, by_hand, Duration::from_secs(20)).await.expect("it runs");
    assert_eq!(runs(&jobs, &ctx, "beat").await.len(), fired + 1);
    schedules.resume(&ctx, "beat").await.expect("it exists");
    until("it fires again", || async { runs(&jobs, &ctx, "beat").await.len() > fired + 1 }).await;
    assert_eq!(schedules.get(&tenant(2), "beat").await.expect_err("hidden").code(), "schedule_not_found");
    schedules.remove(&ctx, "beat").await.expect("it exists");
    assert_eq!(schedules.remove(&ctx, "beat").await.expect_err("gone").code(), "schedule_not_found");
    other.shutdown().await;
    jobs.shutdown().await;
}

/// TIM-2: what happens while an earlier job has not ended is what the schedule says.
pub async fn overlapping_runs_follow_the_policy(store: Arc<dyn Store>) {
    let door = Door::closed();
    let waits = |door: Door, _: JobContext, _: String| async move {
        door.pass().await;
        Ok::<(), JobError>(())
    };
    let jobs = service(&store).function(TICK, door.clone(), waits).start().await.expect("starts");
    let ctx = tenant(1);
    for (name, overlap) in [("allow", Overlap::Allow), ("skip", Overlap::Skip), ("queue", Overlap::Queue)] {
        let schedule = Schedule::cron(name, "@yearly").overlap(overlap).starts(TICK, name);
        jobs.schedules().put(&ctx, schedule).await.expect("stored");
    }
    let trigger = async |name: &str| jobs.schedules().trigger(&ctx, name).await.expect("stored");
    let status = async |id: JobId| jobs.get(&ctx, id).await.expect("kept").status;
    let mut first = Vec::new();
    for name in ["allow", "skip", "queue"] {
        first.push(trigger(name).await.id);
    }
    for id in &first {
        until("the first run", || async { status(*id).await == Status::Running }).await;
    }
    let (beside, skipped, queued) = (trigger("allow").await, trigger("skip").await, trigger("queue").await);
    until("a second one beside it", || async { status(beside.id).await == Status::Running }).await;
    assert!(skipped.duplicate && skipped.id == first[1]);
    assert_eq!(status(queued.id).await, Status::Blocked);
    door.open();
    jobs.wait(&ctx, queued.id, Duration::from_secs(20)).await.expect("its turn comes");
    jobs.shutdown().await;
}

/// TIM-2: what could not fire is refused by its field, and nothing is written.
pub async fn a_schedule_that_cannot_fire_is_refused_by_field(store: Arc<dyn Store>) {
    let jobs = service(&store).function(TICK, Seen::default(), note).start().await.expect("starts");
    let ctx = tenant(1);
    let good = || Schedule::cron("good", "@daily").starts(TICK, "x");
    let long = "n".repeat(56);
    let bad = [
        ("name", Schedule::cron("", "@daily").starts(TICK, "x")),
        ("name", Schedule::cron(long, "@daily").starts(TICK, "x")),
        ("cron", Schedule::cron("x", "61 * * * *").starts(TICK, "x")),
        ("cron", Schedule::cron("x", "0 0 30 2 *").starts(TICK, "x")),
        ("zone", good().zone("Mars/Olympus")),
        ("missed", good().missed(Missed::All(0))),
        ("missed", good().missed(Missed::All(101))),
        ("jitter", good().jitter(Duration::from_secs(3_601))),
        ("tags", good().tag("t".repeat(300))),
        ("queue", good().queue("windlass.webhook")),
        ("handler", good().starts_named("windlass.webhook", Payload::null())),
        ("handler", Schedule::cron("x", "@daily")),
        ("handler", good().starts_named("nobody", Payload::null())),
        ("name", Schedule::cron("..", "@daily").starts(TICK, "x")),
    ];
    for (field, schedule) in bad {
        match jobs.schedules().put(&ctx, schedule.clone()).await {
            Err(Error::InvalidInput(error)) => assert_eq!(error.field, field, "{schedule:?}"),
            other => panic!("{field}: {other:?}"),
        }
    }
    assert!(jobs.schedules().list(&ctx, None, 10).await.expect("a list").is_empty());
    let first = jobs.schedules().put(&ctx, good()).await.expect("stored");
    let stale = jobs.schedules().put_if(&ctx, good(), Some(0)).await.expect_err("it exists");
    assert_eq!(stale.code(), "schedule_changed");
    jobs.schedules().put_if(&ctx, good(), Some(first.version)).await.expect("the version that was read");
    let gone = jobs.schedules().put_if(&ctx, Schedule::cron("x", "@daily").starts(TICK, "x"), Some(1)).await;
    assert_eq!(gone.expect_err("there is none").code(), "schedule_not_found");
    jobs.shutdown().await;
}

/// TIM-2: schedules of the code are what the code of the last start says; those of people are left alone.
pub async fn schedules_of_the_code_are_kept_in_step(store: Arc<dyn Store>) {
    let ctx = SecurityContext::system();
    let start = async |schedules: Vec<Schedule>| {
        let builder = service(&store).function(TICK, Seen::default(), note);
        let builder = schedules.into_iter().fold(builder, |builder, schedule| builder.schedule(schedule));
        builder.start().await.expect("starts")
    };
    let named = |name: &str, cron: &str| Schedule::cron(name, cron).starts(TICK, "x");
    let jobs = start(vec![named("a", "@daily"), named("b", "@daily")]).await;
    jobs.schedules().put(&ctx, named("by hand", "@daily")).await.expect("stored");
    let first = jobs.schedules().get(&ctx, "a").await.expect("from the code");
    jobs.shutdown().await;
    let jobs = start(vec![named("a", "@daily"), named("c", "@hourly")]).await;
    let names = jobs.schedules().list(&ctx, None, 10).await.expect("a list");
    let names: Vec<&str> = names.iter().map(|state| state.schedule.name.as_str()).collect();
    assert_eq!(names, ["a", "by hand", "c"]);
    let again = jobs.schedules().get(&ctx, "a").await.expect("still there");
    assert_eq!((again.id, again.version), (first.id, first.version), "what has not changed is not written");
    jobs.shutdown().await;
}

/// How many schedules lie idle: as many as a tenant may have in the full tier, fewer with every change, since to store them
/// takes most of the time.
fn idle_schedules() -> usize {
    if is_full_tier() { SCHEDULES_MAX } else { 1_000 }
}

/// TIM-2: idle schedules cost no call of the store: nodes learn from the survey when the next one is due.
pub async fn idle_schedules_cost_no_call(store: Arc<dyn Store>) {
    const SCHEDULE_CALLS: [&str; 5] = ["schedules", "due_schedules", "change_schedule", "fire", "hold"];
    let counting = Counting::around(&store);
    let counted: Arc<dyn Store> = counting.clone();
    put_idle(&store).await;
    let jobs = service(&counted).function(TICK, Seen::default(), note);
    // A short lease means frequent surveys.
    let jobs = jobs.lease(Duration::from_secs(2)).start().await.expect("starts");
    until("a survey", || async { counting.calls("survey") >= 1 }).await;
    let before = SCHEDULE_CALLS.map(|call| counting.calls(call));
    let surveys = counting.calls("survey");
    until("ten surveys", || async { counting.calls("survey") >= surveys + 10 }).await;
    assert_eq!(SCHEDULE_CALLS.map(|call| counting.calls(call)), before, "{SCHEDULE_CALLS:?}");
    // One that is due does cost calls, so those would have been counted.
    jobs.schedules().put(&tenant(2), Schedule::cron("beat", SECONDLY).starts(TICK, "x")).await.expect("stored");
    until("it is fired", || async { counting.calls("fire") >= 1 }).await;
    assert!(counting.calls("due_schedules") >= 1 && counting.calls("hold") >= 1);
    jobs.shutdown().await;
}

/// Stores idle schedules as the service would, many at a time.
async fn put_idle(store: &Arc<dyn Store>) {
    let next_at = Some(store.now().await.expect("the time") + Duration::from_secs(180 * 24 * 3600));
    let ids = Arc::new(AtomicUsize::new(1));
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let (store, ids) = (store.clone(), ids.clone());
        writers.spawn(async move {
            loop {
                let n = ids.fetch_add(1, Ordering::Relaxed);
                if n > idle_schedules() {
                    return;
                }
                let changed = store.change_schedule(idle(n, next_at)).await.expect("stored");
                assert!(matches!(changed, ScheduleChanged::Done(_)), "{changed:?}");
            }
        });
    }
    writers.join_all().await;
}

/// A schedule of one of ten tenants.
fn idle(n: usize, next_at: Option<Timestamp>) -> ScheduleChange {
    let spec = serde_json::json!({ "cron": "@yearly", "handler": TICK.id() });
    let spec = Payload::encode("spec", &spec, usize::MAX).expect("JSON");
    let id = JobId::from_i64(i64::try_from(n).expect("a small number"));
    let to = ScheduleTo::Put(Box::new(ScheduleContent { id, spec, input: Payload::null(), sealed: false, next_at }));
    let tenant = tenant(u128::try_from(10 + n % 10).expect("a small number")).tenant;
    ScheduleChange { tenant, name: format!("idle {n}"), expect: Some(0), to, actor: "test".into() }
}

/// Writes under way at once: enough to share commits.
const WRITERS: usize = 64;
