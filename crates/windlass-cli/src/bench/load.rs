//! The load that scenarios put on a service: a handler that does nothing but note when it started, and callers that
//! submit. Used by every scenario. Everything goes through the public API, as a user's program would.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use windlass::store::Store;
use windlass::{
    JobContext, JobError, JobHandler, JobService, OperatorRight, SecurityContext, Status, SubmitOptions, TenantId,
};

use crate::bench::figures::times;
use crate::error::{CliError, Result};

/// The input of every job: when submit was called, and padding up to the wanted size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    at: u64,
    pad: String,
}

/// What the JSON of a job has besides its padding.
const FRAME_BYTES: usize = r#"{"at":1234567890123456789,"pad":""}"#.len();

impl Work {
    /// A job that is submitted now, of about so many bytes.
    pub(crate) fn now(payload_bytes: usize) -> Work {
        Work::late(payload_bytes, Duration::ZERO)
    }

    /// A job that should have been submitted so long ago: its wait counts from then.
    pub(crate) fn late(payload_bytes: usize, late: Duration) -> Work {
        Work {
            at: nanos().saturating_sub(late.as_nanos() as u64),
            pad: "x".repeat(payload_bytes.saturating_sub(FRAME_BYTES)),
        }
    }
}

/// The time as every process of this machine has it. Should someone set the clock during a run, its waits are wrong.
pub(crate) fn nanos() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The handler: notes that and when a job started.
pub(crate) struct Noop(pub(crate) Arc<Meter>);

impl JobHandler for Noop {
    const ID: &'static str = "bench.noop";
    type Input = Work;
    type Output = ();

    async fn execute(&self, _: &JobContext, work: Work) -> std::result::Result<(), JobError> {
        self.0.started(work.at);
        Ok(())
    }
}

/// A handler that waits as one does that talks to others: notes its start, then sleeps.
pub(crate) struct Sleep(pub(crate) Arc<Meter>);

/// The input of a sleeping job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Nap {
    pub(crate) at: u64,
    pub(crate) ms: u64,
}

impl JobHandler for Sleep {
    const ID: &'static str = "bench.sleep";
    type Input = Nap;
    type Output = ();

    async fn execute(&self, _: &JobContext, nap: Nap) -> std::result::Result<(), JobError> {
        self.0.started(nap.at);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(nap.ms)) => {}
            () = self.0.released.notified() => {}
        }
        Ok(())
    }
}

/// What the handlers of this process have seen.
#[derive(Debug)]
pub(crate) struct Meter {
    released: Notify,
    started: Arc<AtomicU64>,
    goal: AtomicU64,
    reached: Notify,
    /// Several, so that handlers on different threads do not wait for one another.
    waits: [Mutex<Histogram<u64>>; 4],
}

/// If no job starts for this long, something is wrong and waiting on would hide it.
const STALLED: Duration = Duration::from_secs(60);

impl Meter {
    pub(crate) fn new() -> Arc<Meter> {
        Arc::new(Meter {
            released: Notify::new(),
            started: Arc::default(),
            goal: AtomicU64::new(u64::MAX),
            reached: Notify::new(),
            waits: std::array::from_fn(|_| Mutex::new(times())),
        })
    }

    fn started(&self, submitted_at: u64) {
        let wait = nanos().saturating_sub(submitted_at);
        let free = self.waits.iter().find_map(|waits| waits.try_lock());
        free.unwrap_or_else(|| self.waits[0].lock()).saturating_record(wait);
        let started = self.started.fetch_add(1, Ordering::AcqRel) + 1;
        if started >= self.goal.load(Ordering::Acquire) {
            self.reached.notify_one();
        }
    }

    /// Lets those that sleep end.
    pub(crate) fn release(&self) {
        self.released.notify_waiters();
    }

    /// How many have started, as it grows.
    pub(crate) fn count(&self) -> Arc<AtomicU64> {
        self.started.clone()
    }

    /// How long jobs waited so far.
    pub(crate) fn waits(&self) -> Histogram<u64> {
        let mut all = times();
        for waits in &self.waits {
            all.add(&*waits.lock()).expect("they have the same digits");
        }
        all
    }

    /// Forgets how long jobs waited so far: they were for warming up.
    pub(crate) fn forget(&self) {
        self.waits.iter().for_each(|waits| waits.lock().reset());
    }

    /// How long jobs waited since the last time this was asked.
    pub(crate) fn take_waits(&self) -> Histogram<u64> {
        let mut all = times();
        for waits in &self.waits {
            let mut waits = waits.lock();
            all.add(&*waits).expect("they have the same digits");
            waits.reset();
        }
        all
    }

    /// Waits until so many jobs have started here.
    pub(crate) async fn until(&self, jobs: u64) -> Result {
        self.goal.store(jobs, Ordering::Release);
        let mut before = self.started.load(Ordering::Acquire);
        while before < jobs {
            let waited = tokio::time::timeout(STALLED, self.reached.notified()).await;
            let now = self.started.load(Ordering::Acquire);
            if waited.is_err() && now == before {
                return Err(CliError::Failed(format!(
                    "no job has started for {STALLED:?}; {now} of {jobs} had started"
                )));
            }
            before = now;
        }
        Ok(())
    }
}

/// The caller of every scenario that needs only one.
pub(crate) fn caller() -> SecurityContext {
    SecurityContext::new(TenantId::ROOT)
}

/// A process that submits and runs nothing.
pub(crate) async fn start_submitter(store: Arc<dyn Store>) -> Result<JobService> {
    let builder = JobService::builder(store).handler(Noop(Meter::new())).handler(Sleep(Meter::new()));
    Ok(builder.without_workers().start().await?)
}

/// A process that runs `workers` jobs at once.
pub(crate) async fn start_node(store: Arc<dyn Store>, workers: usize, meter: &Arc<Meter>) -> Result<JobService> {
    Ok(JobService::builder(store).handler(Noop(meter.clone())).concurrency(workers).start().await?)
}

/// What to submit.
#[derive(Clone, Debug)]
pub(crate) struct Submits {
    pub(crate) jobs: u64,
    /// Callers at once.
    pub(crate) submitters: usize,
    /// Jobs in each call: one by itself, more in bulk.
    pub(crate) batch: u64,
    pub(crate) payload_bytes: usize,
    /// How many have been handed out to callers, as it grows.
    pub(crate) taken: Arc<AtomicU64>,
}

impl Submits {
    /// Submits all, each caller one call after another and each call until it is durable. Answers with how long the
    /// calls took.
    pub(crate) async fn run(&self, service: &JobService) -> Result<Histogram<u64>> {
        let mut callers = JoinSet::new();
        for _ in 0..self.submitters {
            callers.spawn(self.clone().call(service.clone()));
        }
        let mut all = times();
        while let Some(called) = callers.join_next().await {
            let took = called.map_err(|error| CliError::Failed(format!("a caller panicked: {error}")))??;
            all.add(&took).expect("they have the same digits");
        }
        Ok(all)
    }

    async fn call(self, service: JobService) -> Result<Histogram<u64>> {
        let ctx = caller();
        let mut calls = times();
        loop {
            let first = self.taken.fetch_add(self.batch, Ordering::AcqRel);
            let jobs = self.jobs.saturating_sub(first).min(self.batch);
            if jobs == 0 {
                return Ok(calls);
            }
            let begun = Instant::now();
            if self.batch == 1 {
                service.submit::<Noop>(&ctx, Work::now(self.payload_bytes)).await?;
            } else {
                let inputs = (0..jobs).map(|_| Work::now(self.payload_bytes)).collect();
                service.submit_many::<Noop>(&ctx, inputs, SubmitOptions::new()).await?;
            }
            calls.saturating_record(begun.elapsed().as_nanos() as u64);
        }
    }
}

/// Waits until so many jobs of all tenants have succeeded, once they have started.
pub(crate) async fn until_succeeded(service: &JobService, jobs: u64) -> Result {
    let begun = Instant::now();
    loop {
        let succeeded = service.operator(OperatorRight::assume()).counts().await?.get(Status::Succeeded);
        if succeeded >= jobs {
            return Ok(());
        }
        if begun.elapsed() > STALLED {
            return Err(CliError::Failed(format!("{succeeded} of {jobs} jobs have succeeded after {STALLED:?}")));
        }
        // Often enough that the wait adds nothing to a run of seconds, seldom enough to cost the store nothing.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
