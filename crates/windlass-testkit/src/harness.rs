//! For testing your own handlers: a service in memory whose time stands still until you move it, and whose jobs
//! run when you say so, in your test's own task. Built from the public API only.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_core::store::Submitted;
use windlass_core::{
    Builder, Error, JobFilter, JobHandler, JobRecord, JobService, ManualClock, MemoryStore, OperatorRight, Page,
    SecurityContext, Status, SubmitOptions, TenantId, Timestamp,
};

/// A service under test.
///
/// ```
/// use std::time::Duration;
/// use windlass_core::{JobContext, JobError, SubmitOptions};
/// use windlass_testkit::Harness;
///
/// async fn remind(_: (), ctx: JobContext, whom: String) -> Result<String, JobError> {
///     if ctx.attempt() == 1 { return Err(JobError::retryable("the line is busy")) }
///     Ok(format!("reminded {whom}"))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), windlass_core::Error> {
/// let test = Harness::start(|service| service.function("remind", (), remind)).await?;
/// let options = SubmitOptions::new().delay(Duration::from_secs(3600));
/// let job = test.submit("remind", "Ada", options).await?;
///
/// test.assert_submitted("remind", |whom: &String| whom == "Ada").await;
/// assert_eq!(test.drain().await?, 0, "nothing is due yet");
/// test.advance(Duration::from_secs(3600));
/// assert_eq!(test.drain().await?, 1, "the first attempt");
/// test.advance(Duration::from_secs(30));
/// assert_eq!(test.drain().await?, 1, "the retry");
/// assert_eq!(test.output::<String>(job.id).await?, "reminded Ada");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Harness {
    /// The service, for anything the shortcuts here do not cover.
    pub service: JobService,
    /// The caller of the shortcuts.
    pub ctx: SecurityContext,
    clock: ManualClock,
}

/// Where a harness's clock starts: a Friday noon, far from any change of clocks.
const START: Timestamp = Timestamp::from_millis(1_799_409_600_000);

/// Jobs one step of a drain runs at most.
const STEP: usize = 100;

/// A drain that has run so many jobs will not end by itself: jobs submit jobs without end.
const ENDLESS: usize = 100_000;

impl Harness {
    /// Starts a service in memory with what `add` registers. Nothing runs until it is told to.
    pub async fn start(add: impl FnOnce(Builder) -> Builder) -> Result<Harness, Error> {
        let clock = ManualClock::at(START);
        let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
        let builder = JobService::builder(store).without_workers().configure(|config| {
            // Time jumps here, and nobody else is there to take over.
            config.maintenance = false;
            config.lease = Duration::from_secs(365 * 24 * 3600);
        });
        let service = add(builder).start().await?;
        Ok(Harness { service, ctx: SecurityContext::new(TenantId::ROOT).with_user("test"), clock })
    }

    /// Submits a job.
    pub async fn submit<I: Serialize + ?Sized>(
        &self,
        handler: &str,
        input: &I,
        options: SubmitOptions,
    ) -> Result<Submitted, Error> {
        self.service.submit_named(&self.ctx, handler, input, options).await
    }

    /// Submits a job, runs whatever is ready until it has ended, and returns its output; time moves on by itself over
    /// the waits of its retries.
    pub async fn run<H: JobHandler>(&self, input: H::Input) -> Result<H::Output, Error> {
        let id = self.service.submit::<H>(&self.ctx, input).await?;
        while !self.service.status(&self.ctx, id).await?.is_terminal() {
            if self.drain().await? == 0 {
                self.advance(Duration::from_secs(1));
            }
        }
        self.output(id).await
    }

    /// Runs what is ready, and what that makes ready, until nothing is. Returns how many attempts ran.
    pub async fn drain(&self) -> Result<usize, Error> {
        let mut ran = 0;
        loop {
            self.service.store().expire(STEP).await?;
            self.service.store().open_gates(STEP).await?;
            match self.service.operator(OperatorRight::assume()).tick(STEP).await? {
                0 => return Ok(ran),
                step => ran += step,
            }
            assert!(ran < ENDLESS, "the jobs submit new ones without end");
        }
    }

    /// Moves time forward. Jobs that become due run with the next drain.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// The time of the service.
    pub fn now(&self) -> Timestamp {
        windlass_core::Clock::now(&self.clock)
    }

    /// The output of a job that has succeeded.
    pub async fn output<T: DeserializeOwned>(&self, id: windlass_core::JobId) -> Result<T, Error> {
        self.service.wait_for(&self.ctx, id, Duration::ZERO).await
    }

    /// The inputs submitted to a handler so far, oldest first, whatever became of the jobs.
    pub async fn submitted<I: DeserializeOwned>(&self, handler: &str) -> Result<Vec<I>, Error> {
        let mut inputs = Vec::new();
        for record in self.jobs_of(handler).await? {
            let input = self.service.input(&self.ctx, record.id).await?;
            inputs.push(input.decode().map_err(|source| Error::Output { job: record.id, source })?);
        }
        Ok(inputs)
    }

    /// Fails unless a job with an input that `matches` was submitted to the handler.
    pub async fn assert_submitted<I: DeserializeOwned + std::fmt::Debug>(
        &self,
        handler: &str,
        matches: impl Fn(&I) -> bool,
    ) {
        let inputs: Vec<I> = self.submitted(handler).await.expect("the inputs can be read");
        assert!(inputs.iter().any(matches), "no such job was submitted to `{handler}`; these were: {inputs:?}");
    }

    /// Fails if any job was submitted to the handler.
    pub async fn assert_none_submitted(&self, handler: &str) {
        let jobs = self.jobs_of(handler).await.expect("the jobs can be listed");
        assert!(jobs.is_empty(), "{} jobs were submitted to `{handler}`", jobs.len());
    }

    /// Fails unless every job has ended as succeeded.
    pub async fn assert_all_succeeded(&self) {
        let counts = self.service.counts(&self.ctx).await.expect("the jobs can be counted");
        let others = Status::ALL.into_iter().filter(|status| *status != Status::Succeeded && counts.get(*status) > 0);
        let others: Vec<String> = others.map(|status| format!("{} {status}", counts.get(status))).collect();
        assert!(others.is_empty(), "not all jobs have succeeded: {}", others.join(", "));
    }

    /// The jobs of a handler, oldest first.
    async fn jobs_of(&self, handler: &str) -> Result<Vec<JobRecord>, Error> {
        let filter = JobFilter::all().handler(handler);
        let mut page = Page::first(Page::MAX);
        let mut jobs: Vec<JobRecord> = Vec::new();
        loop {
            let next = self.service.list(&self.ctx, &filter, page).await?;
            let Some(last) = next.last() else { break };
            page = page.after(last.id);
            jobs.extend(next);
        }
        jobs.reverse();
        Ok(jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::{JobContext, JobError};

    struct Third;

    impl JobHandler for Third {
        const ID: &'static str = "third";
        type Input = u16;
        type Output = u16;

        async fn execute(&self, ctx: &JobContext, input: u16) -> Result<u16, JobError> {
            if ctx.attempt() < 3 { Err(JobError::retryable("not yet")) } else { Ok(input * 2) }
        }
    }

    /// BEY-11.
    #[tokio::test]
    async fn an_inline_run_moves_time_over_its_retries() {
        let test = Harness::start(|service| service.handler(Third)).await.expect("starts");
        let begun = test.now();
        assert_eq!(test.run::<Third>(21).await.expect("succeeds"), 42);
        assert!(test.now().since(begun) >= Duration::from_secs(2), "two retries with their waits");
        test.assert_all_succeeded().await;
        test.assert_none_submitted("other").await;
    }

    /// BEY-11.
    #[tokio::test]
    async fn submitted_inputs_can_be_asserted() {
        let test = Harness::start(|service| service.handler(Third)).await.expect("starts");
        for n in [3u16, 1, 2] {
            test.submit("third", &n, SubmitOptions::new()).await.expect("accepted");
        }
        assert_eq!(test.submitted::<u16>("third").await.expect("reads"), [3, 1, 2]);
        test.assert_submitted("third", |n: &u16| *n == 2).await;
    }

    /// BEY-11.
    #[tokio::test]
    #[should_panic(expected = "no such job was submitted to `third`; these were: [1]")]
    async fn a_missing_submit_fails_and_says_what_there_was() {
        let test = Harness::start(|service| service.handler(Third)).await.expect("starts");
        test.submit("third", &1u16, SubmitOptions::new()).await.expect("accepted");
        test.assert_submitted("third", |n: &u16| *n == 2).await;
    }
}
