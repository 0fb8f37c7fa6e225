//! Random lives of jobs, in a store and in a model of plain maps that are compared after every step. Called by the tests
//! of every store through [`run_model`]. The model shares no code with any store, and decides everything by itself.
//!
//! Times are chosen so that a store with a real clock gives the same answers: what is due "soon" is looked at only after
//! the wait for it, and what is due "late" never comes.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use anyhow::{Result, ensure};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use windlass_core::store::{
    Beat, CancelReply, Fence, Finish, Finished, Gate, LeaseId, NodeId, PauseTarget, ReplayReply, Submitted, Transition,
    suspect_queue,
};
use windlass_core::{JobFilter, JobId, JobRecord, Page, Priority, Scope, Status, TenantId, UniqueWithin};

use super::TestStore;
use super::rig::*;

/// How much is tried, and from which seed.
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    /// How many lives.
    pub cases: u32,
    /// How many steps each has at most.
    pub steps: usize,
    /// Where the random numbers start.
    pub seed: u64,
}

/// Names the seed of a run that shall be repeated.
const SEED_VARIABLE: &str = "WINDLASS_SEED";

/// How often a failing life is shortened: enough for a readable one, and not hours on a database.
const SHRINK_STEPS: u32 = 500;

impl Runs {
    /// `cases` lives of up to `steps` steps, from the seed in the variable `WINDLASS_SEED`, or from a new one.
    pub fn new(cases: u32, steps: usize) -> Runs {
        let seed = match std::env::var(SEED_VARIABLE) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE} is a number, not `{text}`")),
            Err(_) => rand::random(),
        };
        Runs { cases, steps, seed }
    }
}

/// Plays random lives on stores that `make_store` opens, each on a fresh one. Panics with the seed and the shortest life
/// found in which a store and the model disagree.
pub fn run_model<M, F>(make_store: M, runs: Runs)
where
    M: Fn() -> F,
    F: Future<Output = TestStore>,
{
    let runtime = super::runtime();
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&runs.seed.to_le_bytes());
    let config =
        Config { cases: runs.cases, max_shrink_iters: SHRINK_STEPS, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let outcome = runner.run(&life(runs.steps), |steps| {
        let played = runtime.block_on(async { play(Rig::new(make_store().await).await, &steps).await });
        played.map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, steps)) => {
            panic!("{why}\nin the life {steps:#?}\nrepeat it with {SEED_VARIABLE}={}", runs.seed)
        }
        Err(TestError::Abort(why)) => panic!("{why}\nrepeat it with {SEED_VARIABLE}={}", runs.seed),
    }
}

// ---- what can happen

/// One step of a life. Jobs, nodes and leases are picked by numbers that wrap around what is there.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        jobs: Vec<Shape>,
        born_leased: Option<usize>,
    },
    Claim {
        node: usize,
        max: usize,
    },
    Finish {
        attempt: usize,
        end: End,
    },
    /// A finish with a fence that was current once, or by a node that is not the holder.
    FinishStale {
        attempt: usize,
        end: End,
    },
    Cancel {
        job: usize,
    },
    Replay {
        job: usize,
    },
    Purge {
        job: usize,
    },
    Heartbeat {
        node: usize,
    },
    LoseNode {
        node: usize,
    },
    Leave {
        node: usize,
    },
    Pause {
        target: usize,
    },
    Resume {
        target: usize,
    },
    Promote,
    Expire,
    Clean,
}

/// A job to submit.
#[derive(Clone, Debug)]
struct Shape {
    tenant: usize,
    handler: usize,
    priority: i16,
    start: When,
    key: Key,
    ordering: Option<usize>,
    expires: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Now,
    Soon,
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Key {
    None,
    Idempotency(usize),
    Unique(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Succeed,
    /// And let its time pass.
    SucceedBriefly,
    Retry(When),
    DeadLetter,
    Exhaust,
    Discard,
    Snooze(When),
    Release,
    Park,
    Route,
}

const TENANTS: [TenantId; 2] = [A, B];
const HANDLERS: [&str; 2] = ["mail", "report"];
const ROUTED: &str = "aside";

fn targets() -> [PauseTarget; 3] {
    [PauseTarget::All, PauseTarget::Handler(HANDLERS[0].into()), PauseTarget::Tenant(TENANTS[1])]
}

fn life(steps: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..=steps)
}

fn step() -> impl Strategy<Value = Step> {
    let pick = || 0_usize..64;
    let born_leased = prop::option::weighted(0.2, pick());
    prop_oneof![
        12 => (prop::collection::vec(shape(), 1..5), born_leased)
            .prop_map(|(jobs, born_leased)| Step::Submit { jobs, born_leased }),
        12 => (pick(), 1_usize..6).prop_map(|(node, max)| Step::Claim { node, max }),
        16 => (pick(), end()).prop_map(|(attempt, end)| Step::Finish { attempt, end }),
        3 => (pick(), end()).prop_map(|(attempt, end)| Step::FinishStale { attempt, end }),
        5 => pick().prop_map(|job| Step::Cancel { job }),
        4 => pick().prop_map(|job| Step::Replay { job }),
        2 => pick().prop_map(|job| Step::Purge { job }),
        2 => pick().prop_map(|node| Step::Heartbeat { node }),
        2 => pick().prop_map(|node| Step::LoseNode { node }),
        1 => pick().prop_map(|node| Step::Leave { node }),
        2 => pick().prop_map(|target| Step::Pause { target }),
        2 => pick().prop_map(|target| Step::Resume { target }),
        4 => Just(Step::Promote),
        1 => Just(Step::Expire),
        1 => Just(Step::Clean),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    let start = prop_oneof![6 => Just(When::Now), 2 => Just(When::Soon), 1 => Just(When::Late)];
    let key = prop_oneof![
        4 => Just(Key::None),
        1 => (0_usize..3).prop_map(Key::Idempotency),
        1 => (0_usize..2).prop_map(Key::Unique),
    ];
    let priority = prop::sample::select(vec![0, 0, 0, 20, 10, 5, -10]);
    let parts = (0_usize..2, 0_usize..2, priority, start, key, prop::option::weighted(0.3, 0_usize..2));
    (parts, prop::bool::weighted(0.1)).prop_map(|((tenant, handler, priority, start, key, ordering), expires)| {
        // Whether "soon" has come when a key is handed on is a matter of the real clock's speed.
        let start = if ordering.is_some() && start == When::Soon { When::Now } else { start };
        Shape { tenant, handler, priority, start, key, ordering, expires }
    })
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        4 => Just(End::Succeed),
        1 => Just(End::SucceedBriefly),
        3 => Just(End::Retry(When::Soon)),
        1 => Just(End::Retry(When::Late)),
        2 => Just(End::DeadLetter),
        1 => Just(End::Exhaust),
        1 => Just(End::Discard),
        1 => Just(End::Snooze(When::Soon)),
        1 => Just(End::Snooze(When::Late)),
        2 => Just(End::Release),
        2 => Just(End::Park),
        1 => Just(End::Route),
    ]
}

// ---- the model

/// What the model knows of a job.
#[derive(Clone, Debug)]
struct ModelJob {
    shape: Shape,
    place: Place,
    failed: u16,
    recoveries: u16,
    /// An attempt at it has begun.
    resumed: bool,
    /// The last attempt of an ended job.
    last_attempt: u16,
    cancel_requested: bool,
    /// It waits in a queue of its own choice, so that its priority cannot be compared with the others'.
    aside: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Ready,
    Scheduled { when: When, retrying: bool },
    BehindKey,
    Parked(PauseTarget),
    Running { node: NodeId, lease: LeaseId },
    Ended { status: Status, reason: Option<String> },
    Gone,
}

/// An attempt that a node has, or had.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    node: NodeId,
    fence: Fence,
    number: u16,
}

#[derive(Debug, Default)]
struct Model {
    jobs: BTreeMap<JobId, ModelJob>,
    nodes: Vec<NodeId>,
    pauses: BTreeSet<PauseTarget>,
    /// Every attempt there ever was.
    attempts: Vec<Attempt>,
}

impl ModelJob {
    fn status(&self) -> Option<Status> {
        Some(match &self.place {
            Place::Ready => Status::Pending,
            Place::Scheduled { retrying: false, .. } => Status::Scheduled,
            Place::Scheduled { retrying: true, .. } => Status::Retrying,
            Place::BehindKey | Place::Parked(_) => Status::Blocked,
            Place::Running { .. } => Status::Running,
            Place::Ended { status, .. } => *status,
            Place::Gone => return None,
        })
    }

    fn is_live(&self) -> bool {
        self.status().is_some_and(|status| !status.is_terminal())
    }

    fn attempt(&self) -> u16 {
        match self.place {
            Place::Running { .. } => self.failed + self.recoveries + 1,
            Place::Ended { .. } => self.last_attempt,
            _ => self.failed + self.recoveries,
        }
    }

    fn reason(&self) -> Option<String> {
        match &self.place {
            Place::BehindKey => {
                Some(format!("key:{}", ordering_name(self.shape.ordering.expect("it waits behind a key"))))
            }
            Place::Parked(target) => Some(format!("pause:{}", target.name())),
            Place::Ended { reason, .. } => reason.clone(),
            _ => None,
        }
    }

    fn ordering_key(&self) -> Option<(usize, usize)> {
        self.shape.ordering.map(|key| (self.shape.tenant, key))
    }
}

impl Model {
    /// The job that a new one would be a duplicate of.
    fn duplicate_of(&self, shape: &Shape) -> Option<JobId> {
        let same = |job: &ModelJob| {
            (job.shape.tenant, job.shape.handler, job.shape.key) == (shape.tenant, shape.handler, shape.key)
                && match shape.key {
                    Key::None => false,
                    Key::Idempotency(_) => job.place != Place::Gone,
                    Key::Unique(_) => job.is_live(),
                }
        };
        self.jobs.iter().find(|(_, job)| same(job)).map(|(id, _)| *id)
    }

    /// Whether a live job other than `except` has taken the ordering key.
    fn is_held(&self, key: (usize, usize), except: JobId) -> bool {
        self.jobs.iter().any(|(id, job)| {
            *id != except && job.ordering_key() == Some(key) && job.is_live() && job.place != Place::BehindKey
        })
    }

    /// Where a job goes that may run: the line of its ordering key, its start time, or the ready ones.
    fn enter(&mut self, id: JobId) {
        let job = &self.jobs[&id];
        let held = job.ordering_key().is_some_and(|key| self.is_held(key, id));
        let job = self.jobs.get_mut(&id).expect("it is there");
        job.place = match job.shape.start {
            _ if held => Place::BehindKey,
            When::Now => Place::Ready,
            when => Place::Scheduled { when, retrying: false },
        };
    }

    /// Gives free ordering keys to the oldest that wait for them.
    fn hand_on_keys(&mut self) {
        let waiting: Vec<(JobId, (usize, usize))> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.place == Place::BehindKey)
            .filter_map(|(id, job)| job.ordering_key().map(|key| (*id, key)))
            .collect();
        for (id, key) in waiting {
            if !self.is_held(key, id) {
                let job = self.jobs.get_mut(&id).expect("it is there");
                // A start that has been waited for once is over, also for a job that was replayed.
                job.place = match job.shape.start {
                    When::Late if job.failed == 0 && !self.attempts.iter().any(|a| a.fence.job == id) => {
                        Place::Scheduled { when: When::Late, retrying: false }
                    }
                    _ => Place::Ready,
                };
            }
        }
    }

    fn end(&mut self, id: JobId, status: Status, reason: Option<&str>, last_attempt: u16) {
        let job = self.jobs.get_mut(&id).expect("it is there");
        job.place = Place::Ended { status, reason: reason.map(str::to_owned) };
        job.cancel_requested = false;
        job.last_attempt = last_attempt;
    }

    /// Takes jobs from a node that is gone: ready again, or canceled. Answers which are ready.
    fn take_from(&mut self, node: NodeId, lost: bool) -> BTreeSet<JobId> {
        let held: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, job)| matches!(job.place, Place::Running { node: holder, .. } if holder == node))
            .map(|(id, _)| *id)
            .collect();
        let mut ready = BTreeSet::new();
        for id in held {
            let job = self.jobs.get_mut(&id).expect("it is there");
            let attempt = job.attempt();
            if job.cancel_requested {
                self.end(id, Status::Canceled, Some(CANCEL_REASON), attempt);
                continue;
            }
            job.place = Place::Ready;
            job.recoveries += u16::from(lost);
            job.resumed = true;
            job.aside = job.recoveries > 0;
            ready.insert(id);
        }
        self.nodes.retain(|n| *n != node);
        ready
    }

    fn is_current(&self, attempt: &Attempt) -> bool {
        let holds = Place::Running { node: attempt.node, lease: attempt.fence.lease };
        self.jobs.get(&attempt.fence.job).is_some_and(|job| job.place == holds)
    }

    fn pick_job(&self, pick: usize) -> Option<JobId> {
        if self.jobs.is_empty() {
            return None;
        }
        self.jobs.keys().nth(pick % self.jobs.len()).copied()
    }

    fn pick_node(&self, pick: usize) -> NodeId {
        self.nodes[pick % self.nodes.len()]
    }
}

/// The reason that [`Rig::cancel`] gives.
const CANCEL_REASON: &str = "not needed";

fn ordering_name(key: usize) -> String {
    format!("customer-{key}")
}

// ---- playing

/// Plays a life on the store and on the model; an error says where they disagree.
async fn play(rig: Rig, steps: &[Step]) -> Result<()> {
    let mut model = Model { nodes: vec![rig.node, rig.another_node().await], ..Model::default() };
    for (n, step) in steps.iter().enumerate() {
        let told = async {
            take_step(&rig, &mut model, step).await?;
            // Stores open gates with the step or right after it; from here on they must be open.
            rig.open_gates().await;
            model.hand_on_keys();
            compare(&rig, &model).await
        };
        told.await.map_err(|error| error.context(format!("step {n}, {step:?}")))?;
    }
    compare_lists(&rig, &model).await
}

async fn take_step(rig: &Rig, model: &mut Model, step: &Step) -> Result<()> {
    match step {
        Step::Submit { jobs, born_leased } => submit(rig, model, jobs, *born_leased).await,
        Step::Claim { node, max } => claim(rig, model, model.pick_node(*node), *max).await,
        Step::Finish { attempt, end } => {
            let current: Vec<Attempt> = model.attempts.iter().filter(|a| model.is_current(a)).copied().collect();
            match current.get(attempt % current.len().max(1)) {
                Some(attempt) => finish_attempt(rig, model, *attempt, *end).await,
                None => Ok(()),
            }
        }
        Step::FinishStale { attempt, end } => {
            let Some(known) = model.attempts.get(attempt % model.attempts.len().max(1)) else { return Ok(()) };
            let another = model.nodes.iter().find(|node| **node != known.node).expect("there are two nodes");
            let stale = if model.is_current(known) { Attempt { node: *another, ..*known } } else { *known };
            let answer = rig.finish_as(stale.node, ending(model, stale, *end)).await;
            ensure!(answer == Finished::Fenced, "a stale finish was answered with {answer:?}");
            Ok(())
        }
        Step::Cancel { job } => cancel(rig, model, *job).await,
        Step::Replay { job } => replay(rig, model, *job).await,
        Step::Purge { job } => purge(rig, model, *job).await,
        Step::Heartbeat { node } => heartbeat(rig, model, model.pick_node(*node)).await,
        Step::LoseNode { node } => lose_node(rig, model, model.pick_node(*node)).await,
        Step::Leave { node } => {
            let node = model.pick_node(*node);
            rig.store().deregister(node).await?;
            model.take_from(node, false);
            model.nodes.push(rig.another_node().await);
            Ok(())
        }
        Step::Pause { target } => {
            let target = targets()[target % 3].clone();
            rig.store().pause(&target, "operator", "").await?;
            model.pauses.insert(target);
            Ok(())
        }
        Step::Resume { target } => {
            let target = targets()[target % 3].clone();
            let resumed = rig.store().resume(&target, "operator").await?;
            ensure!(resumed == model.pauses.remove(&target), "resume answered {resumed}");
            for job in model.jobs.values_mut().filter(|job| job.place == Place::Parked(target.clone())) {
                job.place = Place::Ready;
            }
            Ok(())
        }
        Step::Promote => promote(rig, model).await,
        Step::Expire => expire(rig, model).await,
        Step::Clean => {
            rig.clean().await;
            Ok(())
        }
    }
}

async fn submit(rig: &Rig, model: &mut Model, shapes: &[Shape], born_leased: Option<usize>) -> Result<()> {
    let soon = rig.now().await + SOON;
    let born_leased = born_leased.map(|node| (model.pick_node(node), rig.new_lease()));
    let mut expected = Vec::new();
    let mut jobs = Vec::new();
    for shape in shapes {
        let mut job = rig.job().tenant(TENANTS[shape.tenant]).handler(HANDLERS[shape.handler]);
        job = job.priority(Priority(shape.priority));
        job = match shape.start {
            When::Now => job,
            When::Soon => job.after(SOON),
            When::Late => job.after(HOUR),
        };
        job = match shape.key {
            Key::None => job,
            Key::Idempotency(key) => job.key(&format!("key-{key}")),
            // As the service makes them: a unique key names its handler.
            Key::Unique(key) => {
                job.unique(&format!("{}::unique-{key}", HANDLERS[shape.handler]), UniqueWithin::Unfinished)
            }
        };
        if let Some(key) = shape.ordering {
            job = job.ordered(&ordering_name(key));
        }
        if shape.expires {
            job = job.expires_at(soon);
        }
        let id = job.id();
        let plain = job.0.is_plain() && shape.start == When::Now;
        jobs.push(job);
        if let Some(id) = model.duplicate_of(shape) {
            expected.push(Submitted { id, duplicate: true });
            continue;
        }
        expected.push(Submitted { id, duplicate: false });
        let fresh = ModelJob {
            shape: shape.clone(),
            place: Place::BehindKey,
            failed: 0,
            recoveries: 0,
            last_attempt: 0,
            cancel_requested: false,
            aside: false,
            resumed: false,
        };
        model.jobs.insert(id, fresh);
        match born_leased {
            Some((node, lease)) if plain => start(model, id, node, lease),
            _ => model.enter(id),
        }
    }
    let answers = match born_leased {
        Some((node, lease)) => rig.submit_leased(jobs, node, lease).await,
        None => rig.submit_all(jobs).await,
    };
    ensure!(answers == expected, "the submit was answered with {answers:?}, expected {expected:?}");
    Ok(())
}

/// A node takes a job, in the model.
fn start(model: &mut Model, id: JobId, node: NodeId, lease: LeaseId) {
    let job = model.jobs.get_mut(&id).expect("it is there");
    job.place = Place::Running { node, lease };
    let number = job.attempt();
    model.attempts.push(Attempt { node, fence: Fence { job: id, lease }, number });
}

async fn claim(rig: &Rig, model: &mut Model, node: NodeId, max: usize) -> Result<()> {
    let suspects = [QUEUE, ROUTED].map(|queue| [suspect_queue(queue, 1), suspect_queue(queue, 2)]);
    let queues: Vec<&str> =
        [QUEUE, ROUTED].into_iter().chain(suspects.as_flattened().iter().map(String::as_str)).collect();
    let claimed = rig.claim_from(node, &queues, max).await;
    let ready: BTreeMap<JobId, &ModelJob> =
        model.jobs.iter().filter(|(_, job)| job.place == Place::Ready).map(|(id, job)| (*id, job)).collect();
    ensure!(
        claimed.len() == max.min(ready.len()),
        "{} of {} ready jobs claimed, max {max}",
        claimed.len(),
        ready.len()
    );
    for job in &claimed {
        let Some(known) = ready.get(&job.id) else { anyhow::bail!("job {} was claimed and is not ready", job.id) };
        let (told, expected) =
            ((job.failed, job.recoveries, job.resumed), (known.failed, known.recoveries, known.resumed));
        ensure!(told == expected, "job {} was claimed with {told:?}, expected {expected:?}", job.id);
        ensure!(job.priority.0 == known.shape.priority && job.tenant == TENANTS[known.shape.tenant], "{}", job.id);
    }
    if ready.values().all(|job| !job.aside) {
        let mut best: Vec<i16> = ready.values().map(|job| job.shape.priority).collect();
        best.sort_unstable_by_key(|priority| std::cmp::Reverse(*priority));
        let taken: Vec<i16> = claimed.iter().map(|job| job.priority.0).collect();
        ensure!(taken == best[..taken.len()], "priorities {taken:?} were claimed, waiting were {best:?}");
    }
    for job in &claimed {
        start(model, job.id, node, job.lease);
    }
    Ok(())
}

/// The finish that a step means.
fn ending(model: &Model, attempt: Attempt, end: End) -> Finish {
    let delay = |when| if when == When::Soon { SOON } else { HOUR };
    let job = model.jobs.get(&attempt.fence.job);
    let failed = job.map_or(0, |job| job.failed) + 1;
    // Parked and routed ones were turned away before they began.
    let resumed = job.is_none_or(|job| job.resumed) || !matches!(end, End::Park | End::Route);
    let transition = match end {
        End::Succeed => succeed(),
        End::SucceedBriefly => succeed_briefly(),
        End::Retry(when) => retry(failed, delay(when)),
        End::DeadLetter => dead_after(failed, "validation"),
        End::Exhaust => dead_after(failed, "max_retries"),
        End::Discard => Transition::Cancel { reason: "discarded".into(), keep: HOUR },
        End::Snooze(when) => Transition::Snooze { delay: delay(when) },
        End::Release => Transition::Release,
        End::Park => match model.pauses.first() {
            Some(target) => Transition::Park { gate: Gate::Pause(target.clone()) },
            None => Transition::Release,
        },
        End::Route => Transition::Route { queue: ROUTED.into() },
    };
    Finish {
        fence: attempt.fence,
        attempt: attempt.number,
        ran: RAN,
        transition,
        follow_up: None,
        cost: None,
        audit: false,
        batch: None,
        resumed,
    }
}

async fn finish_attempt(rig: &Rig, model: &mut Model, attempt: Attempt, end: End) -> Result<()> {
    let id = attempt.fence.job;
    // Where a suspect is routed to is not the model's concern.
    let suspect = model.jobs[&id].recoveries > 0;
    let end = if suspect && matches!(end, End::Route) { End::Release } else { end };
    let finish = ending(model, attempt, end);
    let (pause, resumed) = (model.pauses.first().cloned(), finish.resumed);
    let answer = rig.finish_as(attempt.node, finish).await;
    if model.jobs[&id].cancel_requested {
        model.end(id, Status::Canceled, Some(CANCEL_REASON), attempt.number);
    } else {
        let job = model.jobs.get_mut(&id).expect("it is there");
        (job.aside, job.resumed) = (suspect, resumed);
        match end {
            End::Succeed | End::SucceedBriefly => model.end(id, Status::Succeeded, None, attempt.number),
            End::DeadLetter | End::Exhaust => {
                job.failed += 1;
                let reason = if end == End::Exhaust { "max_retries" } else { "validation" };
                model.end(id, Status::DeadLettered, Some(reason), attempt.number);
            }
            End::Discard => model.end(id, Status::Canceled, Some("discarded"), attempt.number),
            End::Retry(when) => {
                job.failed += 1;
                job.place = Place::Scheduled { when, retrying: true };
            }
            End::Snooze(when) => job.place = Place::Scheduled { when, retrying: false },
            End::Release => job.place = Place::Ready,
            End::Park => job.place = pause.map_or(Place::Ready, Place::Parked),
            End::Route => {
                job.place = Place::Ready;
                job.aside = true;
            }
        }
    }
    let expected = Finished::Accepted(model.jobs[&id].status().expect("it was just ended"));
    ensure!(answer == expected, "the finish was answered with {answer:?}, expected {expected:?}");
    if matches!(end, End::SucceedBriefly) {
        // Time passes at once, so that it makes no difference how fast the store's clock is.
        rig.advance(PAST_SOON).await;
        model.jobs.get_mut(&id).expect("it is there").place = Place::Gone;
    }
    Ok(())
}

async fn cancel(rig: &Rig, model: &mut Model, pick: usize) -> Result<()> {
    let Some(id) = model.pick_job(pick) else { return Ok(()) };
    let job = model.jobs.get_mut(&id).expect("it is there");
    let expected = match &job.place {
        Place::Gone => CancelReply::NotFound,
        Place::Ended { status, .. } => CancelReply::AlreadyFinished(*status),
        Place::Running { .. } => {
            job.cancel_requested = true;
            CancelReply::Requested
        }
        _ => {
            let attempt = job.attempt();
            model.end(id, Status::Canceled, Some(CANCEL_REASON), attempt);
            CancelReply::Canceled
        }
    };
    let reply = rig.cancel(id).await;
    ensure!(reply == expected, "the cancel of {id} was answered with {reply:?}, expected {expected:?}");
    Ok(())
}

async fn replay(rig: &Rig, model: &mut Model, pick: usize) -> Result<()> {
    let Some(id) = model.pick_job(pick) else { return Ok(()) };
    if matches!(model.jobs[&id].shape.key, Key::Unique(_)) {
        // A replay may make a second unfinished job with the key; who holds it then is not defined.
        return Ok(());
    }
    let expected = match model.jobs[&id].status() {
        None => ReplayReply::NotFound,
        Some(Status::DeadLettered) => ReplayReply::Replayed,
        Some(status) => ReplayReply::NotDead(status),
    };
    let reply = rig.store().replay(EVERYONE, id, "operator").await?;
    ensure!(reply == expected, "the replay of {id} was answered with {reply:?}, expected {expected:?}");
    if reply == ReplayReply::Replayed {
        let job = model.jobs.get_mut(&id).expect("it is there");
        (job.failed, job.recoveries, job.aside, job.resumed) = (0, 0, false, true);
        let key = job.ordering_key();
        let held = key.is_some_and(|key| model.is_held(key, id));
        model.jobs.get_mut(&id).expect("it is there").place = if held { Place::BehindKey } else { Place::Ready };
    }
    Ok(())
}

async fn purge(rig: &Rig, model: &mut Model, pick: usize) -> Result<()> {
    let Some(id) = model.pick_job(pick) else { return Ok(()) };
    let purged = rig.store().purge(EVERYONE, id, "operator").await?;
    let expected = matches!(model.jobs[&id].place, Place::Ended { .. });
    ensure!(purged == expected, "the purge of {id} was answered with {purged}");
    if purged {
        model.jobs.get_mut(&id).expect("it is there").place = Place::Gone;
    }
    Ok(())
}

async fn heartbeat(rig: &Rig, model: &Model, node: NodeId) -> Result<()> {
    let Beat::Alive { cancels } = rig.store().heartbeat(node, 0).await? else {
        anyhow::bail!("node {} is alive and was fenced", node.0);
    };
    let told: BTreeSet<(JobId, LeaseId)> = cancels.iter().map(|fence| (fence.job, fence.lease)).collect();
    let asked = |(id, job): (&JobId, &ModelJob)| match job.place {
        Place::Running { node: holder, lease } if holder == node && job.cancel_requested => Some((*id, lease)),
        _ => None,
    };
    let expected: BTreeSet<(JobId, LeaseId)> = model.jobs.iter().filter_map(asked).collect();
    ensure!(told == expected, "the node was told of the cancels {told:?}, expected {expected:?}");
    Ok(())
}

async fn lose_node(rig: &Rig, model: &mut Model, lost: NodeId) -> Result<()> {
    rig.advance(PAST_LEASE).await;
    for node in model.nodes.iter().filter(|node| **node != lost) {
        rig.store().heartbeat(*node, 0).await?;
    }
    let recovered = rig.recover(LEASE).await;
    ensure!(recovered.nodes == [lost], "the nodes {:?} were declared dead, expected {lost:?}", recovered.nodes);
    let jobs: BTreeSet<JobId> = recovered.jobs.iter().copied().collect();
    let expected = model.take_from(lost, true);
    ensure!(jobs == expected, "the jobs {jobs:?} were recovered, expected {expected:?}");
    ensure!(rig.store().heartbeat(lost, 0).await? == Beat::Fenced, "a dead node is told so");
    model.nodes.push(rig.another_node().await);
    Ok(())
}

async fn promote(rig: &Rig, model: &mut Model) -> Result<()> {
    rig.advance(PAST_SOON).await;
    let promoted = rig.promote().await;
    let mut expected = 0;
    for job in model.jobs.values_mut() {
        if matches!(job.place, Place::Scheduled { when: When::Soon, .. }) {
            job.place = Place::Ready;
            expected += 1;
        }
    }
    ensure!(promoted == expected, "{promoted} jobs were promoted, expected {expected}");
    Ok(())
}

async fn expire(rig: &Rig, model: &mut Model) -> Result<()> {
    rig.advance(PAST_SOON).await;
    let expired = rig.expire().await;
    let waits = |job: &ModelJob| job.is_live() && !matches!(job.place, Place::Running { .. });
    let over = |job: &ModelJob| job.shape.expires && waits(job) && !job.resumed;
    let due: Vec<JobId> = model.jobs.iter().filter(|(_, job)| over(job)).map(|(id, _)| *id).collect();
    ensure!(expired == due.len(), "{expired} jobs expired, expected {}", due.len());
    due.into_iter().for_each(|id| model.end(id, Status::Canceled, Some("expired"), 0));
    Ok(())
}

// ---- comparing

/// Every job that ever was, one by one.
async fn compare(rig: &Rig, model: &Model) -> Result<()> {
    let ids: Vec<JobId> = model.jobs.keys().copied().collect();
    let records = rig.store().get(EVERYONE, &ids).await?;
    let records: BTreeMap<JobId, JobRecord> = records.into_iter().map(|record| (record.id, record)).collect();
    for (id, job) in &model.jobs {
        let record = records.get(id);
        ensure!(
            record.map(|record| record.status) == job.status(),
            "job {id} is {:?}, expected {:?}",
            record.map(|record| record.status),
            job.status()
        );
        let Some(record) = record else { continue };
        let told = (record.recoveries, record.attempt, record.cancel_requested);
        let expected = (job.recoveries, job.attempt(), job.cancel_requested);
        ensure!(told == expected, "job {id}: recoveries, attempt, cancel are {told:?}, expected {expected:?}");
        ensure!(record.failed == job.failed, "job {id} failed {} times, expected {}", record.failed, job.failed);
        if record.status.is_terminal() || record.status == Status::Blocked {
            let reason = job.reason();
            ensure!(record.reason == reason, "job {id}: reason {:?}, expected {reason:?}", record.reason);
        }
    }
    Ok(())
}

/// Lists, counts and pauses, when a life is over.
async fn compare_lists(rig: &Rig, model: &Model) -> Result<()> {
    for (tenant, scope) in TENANTS.iter().map(|tenant| Scope::Tenant(*tenant)).enumerate() {
        let jobs = || model.jobs.iter().filter(|(_, job)| job.shape.tenant == tenant);
        let mut listed = Vec::new();
        let mut page = Page::first(Page::MAX);
        loop {
            let records = rig.store().find(scope, &JobFilter::all(), page, None).await?.jobs;
            let Some(last) = records.last() else { break };
            page = page.after(last.id);
            listed.extend(records.iter().map(|record| record.id));
        }
        let visible: Vec<JobId> = jobs().filter(|(_, job)| job.status().is_some()).map(|(id, _)| *id).collect();
        ensure!(listed == newest_first(visible.clone()), "listed are {listed:?}, expected {visible:?}");
        let counts = rig.store().counts(scope).await?;
        for status in Status::ALL {
            let expected = jobs().filter(|(_, job)| job.status() == Some(status)).count() as u64;
            ensure!(counts.get(status) == expected, "{} jobs are {status}, expected {expected}", counts.get(status));
        }
    }
    let pauses: BTreeSet<PauseTarget> = rig.store().pauses().await?.into_iter().map(|pause| pause.target).collect();
    ensure!(pauses == model.pauses, "the pauses are {pauses:?}, expected {:?}", model.pauses);
    Ok(())
}
