//! Jobs for workers outside this process. They are claimed through the same gate as a node's own attempts and
//! held by the node that claimed them; whoever has the [`Ticket`] may report on them at any process of the installation.
//! The fence of the lease decides what is accepted, so a report is good until one has been committed, and no longer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::Limits;
use crate::life::context::{Attempt, JobContext, Stop, progress_message};
use crate::life::lifecycle::{Outcome, after_attempt};
use crate::life::submit::{check_name, check_no_suspects, check_unreserved};
use crate::model::error::{Error, InvalidInput, JobError, Reason};
use crate::model::id::JobId;
use crate::model::job::{ClaimedJob, JobRecord, Progress, Status};
use crate::model::payload::Payload;
use crate::model::tenant::{Scope, SecurityContext, TenantId};
use crate::node::Worker;
use crate::node::suspect::COHORTS_FROM;
use crate::operate::within::Within;
use crate::seal::Sealer;
use crate::service::JobService;
use crate::store::{self, Claim, Fence, Finished, LeaseId, NodeId, Note, Noted, Transition, suspect_queue};
use crate::trace;

/// A job claimed for a worker outside this process.
#[derive(Debug)]
pub struct CheckedOut {
    context: JobContext,
}

impl CheckedOut {
    /// The attempt, with the means to report progress and save checkpoints.
    pub fn context(&self) -> &JobContext {
        &self.context
    }

    /// The job's input.
    pub fn input(&self) -> &Payload {
        &self.context.attempt_state().job.payload
    }

    /// Fails the attempt when its worker is silent for this long: neither [renews](JobService::renew) nor reports. Returns a
    /// ticket that names the checkout in every process of the installation.
    pub fn hold_for(&self, silence: Duration) -> Ticket {
        let attempt = self.context.attempt_state();
        attempt.hold(silence);
        Ticket { hold_ms: u64::try_from(silence.as_millis()).unwrap_or(u64::MAX), ..self.ticket() }
    }

    fn ticket(&self) -> Ticket {
        let attempt = self.context.attempt_state();
        let ClaimedJob { id, lease, tenant, .. } = *attempt.job;
        Ticket { job: id, lease, node: attempt.node, attempt: attempt.job.attempt(), tenant, hold_ms: 0 }
    }
}

/// Names a checkout in every process of the installation. Its holder may report on the job, so sign it before it leaves
/// your program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ticket {
    /// The job.
    pub job: JobId,
    /// The lease it is held under.
    pub lease: LeaseId,
    /// The node that holds it.
    pub node: NodeId,
    /// The number of the attempt.
    pub attempt: u16,
    /// Whose job it is.
    pub tenant: TenantId,
    /// How long its worker may stay silent; 0 for as long as the node lives.
    pub hold_ms: u64,
}

impl Ticket {
    fn fence(&self) -> Fence {
        Fence { job: self.job, lease: self.lease }
    }

    /// Whether the job is still in the attempt that was checked out.
    fn is_running_in(&self, record: &JobRecord) -> bool {
        record.status == Status::Running && self.is_last_of(record)
    }

    fn is_last_of(&self, record: &JobRecord) -> bool {
        record.node == Some(self.node) && record.attempt == self.attempt
    }
}

/// Claims that one checkout makes where all that was claimed had to be turned away.
const ROUNDS: usize = 4;

/// How long a report is tried again while the store cannot be reached; after that its worker has to repeat it.
const REPORT_FOR: Duration = Duration::from_secs(60);

/// Waits between tries; the first is short because most outages are a lost connection.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

impl JobService {
    /// Claims at most `n` ready jobs of the caller's tenant in `queues` for a worker outside this process, which must
    /// report with [`JobService::mark_success`] or [`JobService::mark_failure`]. Jobs that are paused,
    /// expired, past their deadline or lost with too many nodes are not handed out; neither is any job while this node
    /// cannot save the results of others. The jobs are held as long as this node lives, or as
    /// [`CheckedOut::hold_for`] sets, and end at their deadline. Queues that begin with `windlass.` are rejected.
    pub async fn checkout(&self, ctx: &SecurityContext, queues: &[&str], n: usize) -> Result<Vec<CheckedOut>, Error> {
        self.within(ctx.scope()).checkout(queues, n).await
    }

    /// How many checked-out jobs this node holds: of one tenant, and of all others.
    pub fn checked_out(&self, tenant: TenantId) -> (usize, usize) {
        let held = self.worker().running_attempts().into_iter().filter(|attempt| attempt.checked_out());
        held.fold((0, 0), |(own, others), attempt| match attempt.job.tenant == tenant {
            true => (own + 1, others),
            false => (own, others + 1),
        })
    }

    /// Reports that a checked-out job is done. It may be repeated until it has been saved.
    pub async fn mark_success<T: Serialize + ?Sized>(&self, job: &CheckedOut, output: &T) -> Result<(), Error> {
        let output = Payload::encode("output", output, self.limits().output_bytes)?;
        self.report(job.ticket(), Outcome::Done(Some(output))).await
    }

    /// Reports that a checked-out job has failed; it is retried by its policy.
    pub async fn mark_failure(&self, job: &CheckedOut, error: JobError) -> Result<(), Error> {
        self.report(job.ticket(), Outcome::Failed(error)).await
    }

    /// The same as [`JobService::mark_success`], also for a job that another process of the installation holds.
    pub async fn report_success(&self, ticket: Ticket, output: Payload) -> Result<(), Error> {
        self.report(ticket, Outcome::Done(Some(output))).await
    }

    /// The same as [`JobService::mark_failure`], also for a job that another process of the installation holds.
    pub async fn report_failure(&self, ticket: Ticket, error: JobError) -> Result<(), Error> {
        self.report(ticket, Outcome::Failed(error)).await
    }

    /// Saves the progress of a checked-out job and keeps its worker alive; also for a job that another process holds. Fails
    /// with [`Error::LeaseLost`] if the worker no longer has the job or a cancel was requested.
    pub async fn renew(&self, ticket: Ticket, percent: f32, message: &str) -> Result<(), Error> {
        let (worker, message) = (self.worker().clone(), progress_message(message.to_owned()));
        let renewing = async move { worker.renew(&ticket, percent, message).await };
        self.apart(&self.worker().handlers, "renew", renewing).await
    }

    async fn report(&self, ticket: Ticket, outcome: Outcome) -> Result<(), Error> {
        let worker = self.worker().clone();
        let reporting = async move { worker.report(&ticket, &outcome).await };
        self.apart(&self.worker().handlers, "report", reporting).await
    }
}

impl Within {
    /// Claims jobs of the scope for a worker outside this process, as [`JobService::checkout`].
    pub async fn checkout(&self, queues: &[&str], n: usize) -> Result<Vec<CheckedOut>, Error> {
        queues.iter().try_for_each(|queue| check_polled(queue, self.limits()))?;
        let (worker, of) = (self.worker().clone(), self.scope().tenant());
        let queues: Vec<String> = queues.iter().map(|queue| (*queue).to_owned()).collect();
        // Were it dropped in the middle, this node would hold jobs that nobody knows of.
        let take = async move { worker.check_out(of, &queues, n).await };
        Ok(self.service().apart(&self.worker().handlers, "checkout", take).await?.arrived())
    }
}

/// Queues that workers outside may ask for. Jobs of the engine itself, such as deliveries to webhooks, are not for them;
/// the queues of suspects are looked at with the queue that they belong to.
fn check_polled(queue: &str, limits: &Limits) -> Result<(), InvalidInput> {
    check_name("queue", queue, limits.name_bytes)?;
    check_unreserved("queue", queue)?;
    check_no_suspects(queue)
}

/// Jobs that were begun for a worker outside, on their way to it. Given back if they do not arrive: the caller has gone,
/// or the checkout has panicked.
struct OnTheirWay {
    worker: Arc<Worker>,
    jobs: Vec<CheckedOut>,
}

impl OnTheirWay {
    fn arrived(mut self) -> Vec<CheckedOut> {
        std::mem::take(&mut self.jobs)
    }
}

impl Drop for OnTheirWay {
    fn drop(&mut self) {
        let unwanted = std::mem::take(&mut self.jobs);
        if !unwanted.is_empty() {
            let worker = self.worker.clone();
            self.worker.handlers.spawn(async move { worker.release_checkouts(unwanted).await });
        }
    }
}

/// The lease of a checkout, until each of its jobs has been begun or turned away. If that never happens, what nobody has
/// begun is given back soon.
struct Unsorted<'a> {
    worker: &'a Worker,
    lease: Option<LeaseId>,
}

impl Drop for Unsorted<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease {
            self.worker.unheard.report(lease, &store::Error::Unknown("the checkout was not finished".into()));
        }
    }
}

/// What a report needs to know of an attempt.
struct Reported {
    job: Box<ClaimedJob>,
    sealer: Option<Sealer>,
    ran: Duration,
    /// The attempt, where this process holds it.
    here: Option<Arc<Attempt>>,
}

impl Worker {
    async fn check_out(
        self: &Arc<Self>,
        of: Option<TenantId>,
        queues: &[String],
        n: usize,
    ) -> Result<OnTheirWay, Error> {
        let mut taken = OnTheirWay { worker: self.clone(), jobs: Vec::new() };
        for _ in 0..ROUNDS {
            if self.stopping.is_cancelled() {
                return Err(Error::ShutDown);
            }
            if self.all_paused() || !self.is_renewed() || self.saves_nothing() {
                break;
            }
            let claimed = self.check_out_some(of, queues, n, &mut taken.jobs).await?;
            if claimed == 0 || !taken.jobs.is_empty() {
                break;
            }
        }
        Ok(taken)
    }

    /// One claim. Returns how many jobs it brought, whatever became of them.
    async fn check_out_some(
        self: &Arc<Self>,
        of: Option<TenantId>,
        queues: &[String],
        n: usize,
        checked_out: &mut Vec<CheckedOut>,
    ) -> Result<usize, Error> {
        let membership = self.membership();
        let lease = LeaseId(membership.ids.next().as_i64());
        queues.iter().for_each(|queue| self.served(queue));
        // Also jobs that came back from a lost node, and as many as of the others: they cannot end this process.
        let suspects = queues.iter().flat_map(|queue| [1, COHORTS_FROM].map(|lost| suspect_queue(queue, lost)));
        let queues = queues.iter().cloned().chain(suspects).map(|queue| (queue, n)).collect();
        let claim = Claim { node: membership.node, lease, queues, max: n, quota: [0; 4], tenant: of };
        let claimed = self.claim(claim).await?;
        let mut unsorted = Unsorted { worker: self, lease: Some(lease) };
        self.saw_time(claimed.now);
        let losses = self.losses(&claimed.jobs).await;
        let (node, jobs) = (membership.node, claimed.jobs.len());
        for mut job in claimed.jobs {
            self.served(&job.handler);
            let rules = self.rules(&job);
            // The claim may have been answered late, or everything was paused meanwhile.
            let may_start = self.may_start(node) && !self.all_paused();
            let loss = if job.recoveries < COHORTS_FROM { Some(None) } else { losses.get(&job.id).copied() };
            let turned_away = match loss.filter(|_| may_start) {
                Some(loss) => self.hold_back(&job, &rules, loss.as_ref()),
                None => Some(Transition::Release),
            };
            match (self.open(&mut job, &rules, turned_away.as_ref()).await, turned_away) {
                (Err(transition), _) => self.hand_back(&job, node, transition, None).await,
                (Ok(sealer), Some(transition)) => {
                    self.hand_back(&job, node, transition, sealer.as_ref()).await;
                }
                (Ok(sealer), None) => {
                    let context = self.begin(Box::new(job), node, rules.keep, sealer);
                    context.attempt_state().check_out();
                    self.tell_started(context.attempt_state());
                    checked_out.push(CheckedOut { context });
                }
            }
        }
        unsorted.lease = None;
        Ok(jobs)
    }

    /// Gives jobs back that were claimed for a caller who has gone away: no attempt at them has begun. One that cannot be
    /// given back keeps none of the others.
    async fn release_checkouts(&self, unwanted: Vec<CheckedOut>) {
        for job in unwanted {
            let attempt = job.context.attempt_state();
            if self.ended(attempt) {
                let (status, failed) = trace::end_of(&Transition::Release);
                trace::record_end(&attempt.span, status, failed);
                let sealer = attempt.sealer.as_ref();
                let release = self.hand_back(&attempt.job, attempt.node, Transition::Release, sealer);
                let _ = self.supervisor.run_once("checkout", release).await;
            }
        }
    }

    /// Saves what came of a checked-out job; again while the store cannot be reached.
    async fn report(&self, ticket: &Ticket, outcome: &Outcome) -> Result<(), Error> {
        let (begun, mut wait) = (Instant::now(), FIRST_RETRY);
        loop {
            let answer = self.report_once(ticket, outcome).await;
            let again = matches!(&answer, Err(Error::Store(error)) if error.is_transient());
            if !again || begun.elapsed() >= REPORT_FOR || self.stopped.is_cancelled() {
                return answer;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LAST_RETRY);
        }
    }

    async fn report_once(&self, ticket: &Ticket, outcome: &Outcome) -> Result<(), Error> {
        let Some(reported) = self.reported(ticket).await? else {
            return self.reported_before(ticket, outcome).await;
        };
        let Reported { job, sealer, ran, here } = reported;
        if let Some(attempt) =
            here.as_deref().filter(|attempt| self.has_unsaved_progress(job.id) || attempt.has_logged())
        {
            attempt.link.flush(attempt).await;
        }
        let rules = self.rules(&job);
        let transition = after_attempt(&job, outcome.clone(), &rules, ran, self.now(), rand::random());
        let end = trace::end_of(&transition);
        let cost = here.as_deref().and_then(Attempt::cost);
        let ended = self.ended_with(&job, ticket.node, ran, transition, sealer.as_ref(), cost);
        let finished = self.finisher().save_now(ended).await?;
        if let Some(attempt) = &here {
            // By the commit only: until then the report can be repeated.
            self.ended(attempt);
            trace::record_end(&attempt.span, end.0, end.1);
        }
        match finished {
            Finished::Accepted(Status::Canceled) if matches!(outcome, Outcome::Done(_)) => {
                Err(Error::AlreadyFinished { job: job.id, status: Status::Canceled })
            }
            Finished::Accepted(_) => Ok(()),
            Finished::Fenced => self.reported_before(ticket, outcome).await,
        }
    }

    /// The attempt of a checkout: from memory where this process holds it, else from the store. `None` if it is over.
    async fn reported(&self, ticket: &Ticket) -> Result<Option<Reported>, Error> {
        if let Some(attempt) = self.attempt_under(ticket.fence()) {
            let (job, sealer, ran) = (attempt.job.clone(), attempt.sealer.clone(), attempt.started.elapsed());
            return Ok(Some(Reported { job, sealer, ran, here: Some(attempt) }));
        }
        let record = self.record_of(ticket).await?;
        if !ticket.is_running_in(&record) {
            return Ok(None);
        }
        let ran = record.started_at.map_or(Duration::ZERO, |at| self.now().since(at));
        let input = self.store.input(Scope::ENGINE, ticket.job).await?.ok_or(Error::NotFound(ticket.job))?;
        let mut job = claimed_again(record, ticket.lease, input);
        let sealer = self.seals.open_job(&mut job).await;
        let sealer = sealer.map_err(|source| Error::Sealed { job: ticket.job, source })?;
        Ok(Some(Reported { job: Box::new(job), sealer, ran, here: None }))
    }

    async fn record_of(&self, ticket: &Ticket) -> Result<JobRecord, Error> {
        let record = self.store.get(Scope::ENGINE, &[ticket.job]).await?.pop();
        record.filter(|record| record.tenant == ticket.tenant).ok_or(Error::NotFound(ticket.job))
    }

    /// A report that comes again after it was saved is answered as the first was.
    async fn reported_before(&self, ticket: &Ticket, outcome: &Outcome) -> Result<(), Error> {
        let record = self.record_of(ticket).await?;
        match settled(&record, ticket, outcome) {
            true => Ok(()),
            false if record.status == Status::Canceled && ticket.is_last_of(&record) => {
                Err(Error::AlreadyFinished { job: ticket.job, status: Status::Canceled })
            }
            false => Err(Error::LeaseLost(ticket.job)),
        }
    }

    async fn renew(&self, ticket: &Ticket, percent: f32, message: String) -> Result<(), Error> {
        let lost = || Error::LeaseLost(ticket.job);
        let record = self.record_of(ticket).await?;
        if !ticket.is_running_in(&record) {
            return Err(lost());
        }
        if record.cancel_requested {
            // Its worker stops because of this answer, so the job has ended.
            self.report(ticket, &Outcome::Canceled).await?;
            return Err(lost());
        }
        // Whichever process was told last, the next number is higher.
        let first = u64::from(ticket.attempt) * crate::life::context::PROGRESS_PER_ATTEMPT + 1;
        let sequence = record.progress.map_or(first, |progress| (progress.sequence + 1).max(first));
        let percent = if percent.is_finite() { percent.clamp(0.0, 100.0) } else { 0.0 };
        let progress = Progress { sequence, percent, message, updated_at: self.now() };
        let told = progress.clone();
        let progress = match record.spec.sealed {
            true => match self.seals.sealer(ticket.tenant).await? {
                Some(sealer) => sealer.seal_progress(ticket.job, progress),
                None => return Err(Error::Keys(crate::seal::KeyError::NotConfigured)),
            },
            false => progress,
        };
        let note = Note { fence: ticket.fence(), what: Noted::Progress(progress) };
        if self.store.note(ticket.node, vec![note]).await? != [true] {
            return Err(lost());
        }
        self.watchers.progress(ticket.job, &told);
        if let Some(attempt) = self.attempt_under(ticket.fence()) {
            attempt.renewed(sequence);
        }
        Ok(())
    }

    /// Ends checkouts whose workers are silent, were told to stop, or have reported elsewhere, and those whose deadline has
    /// passed.
    pub(crate) async fn look_after_checkouts(&self) -> store::Result<()> {
        let (now, mut silent) = (Instant::now(), Vec::new());
        for attempt in self.running_attempts().into_iter().filter(|attempt| attempt.checked_out()) {
            let stopped = attempt.stopped_since().is_some_and(|since| since.elapsed() >= self.config.grace);
            match attempt.stop() {
                // Others have the job, or it has ended.
                Stop::LeaseLost | Stop::Completed => drop(self.ended(&attempt)),
                Stop::Canceled if stopped => self.end_checkout(&attempt, Outcome::Canceled).await,
                Stop::None if attempt.job.spec.deadline_at.is_some_and(|at| at <= self.now()) => {
                    let error = JobError::of(Reason::Timeout, "the job's total deadline has passed");
                    self.end_checkout(&attempt, Outcome::Failed(error)).await;
                }
                _ if attempt.is_silent(now) => silent.push(attempt),
                _ => {}
            }
        }
        if silent.is_empty() {
            return Ok(());
        }
        // Another process may have been told that the worker is still at it.
        let ids: Vec<JobId> = silent.iter().map(|attempt| attempt.job.id).collect();
        let records = self.store.get(Scope::ENGINE, &ids).await?;
        for attempt in silent {
            let record = records.iter().find(|record| record.id == attempt.job.id);
            let held = record.filter(|record| record.status == Status::Running && record.node == Some(attempt.node));
            let Some(record) = held else {
                self.ended(&attempt);
                continue;
            };
            let sequence = record.progress.as_ref().map_or(0, |progress| progress.sequence);
            if !attempt.heard_of(sequence) {
                let error = JobError::of(Reason::NodeUnavailable, "its worker did not report in time");
                self.end_checkout(&attempt, Outcome::Failed(error)).await;
            }
        }
        Ok(())
    }

    async fn end_checkout(&self, attempt: &Arc<Attempt>, outcome: Outcome) {
        if self.ended(attempt) {
            self.conclude(attempt, &self.rules(&attempt.job), outcome).await;
        }
    }

    /// Forgets checkouts that the store says this node does not hold any more: they were reported on elsewhere. `known`
    /// are those that were here before the store was asked.
    pub(crate) fn forget_checkouts(&self, known: &[Arc<Attempt>], held: &[Fence]) {
        for attempt in known.iter().filter(|attempt| !held.contains(&attempt.fence())) {
            self.ended(attempt);
        }
    }
}

/// Whether a job is where this report of the attempt would have brought it. Pure.
fn settled(record: &JobRecord, ticket: &Ticket, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Done(_) => record.status == Status::Succeeded && ticket.is_last_of(record),
        Outcome::Failed(_) => match record.status {
            Status::DeadLettered => ticket.is_last_of(record),
            Status::Retrying => record.attempt == ticket.attempt,
            _ => false,
        },
        Outcome::Canceled => record.status == Status::Canceled,
        Outcome::Interrupted => false,
    }
}

/// A job as it was claimed, from how it is read back.
fn claimed_again(record: JobRecord, lease: LeaseId, payload: Payload) -> ClaimedJob {
    ClaimedJob {
        id: record.id,
        lease,
        tenant: record.tenant,
        handler: record.handler,
        queue: record.queue,
        priority: record.priority,
        payload,
        failed: record.failed,
        recoveries: record.recoveries,
        created_at: record.created_at,
        ready_at: record.created_at,
        ordering_key: record.ordering_key,
        batch: record.batch,
        correlation_id: record.correlation_id,
        tags: record.tags,
        spec: record.spec,
        checkpoint: None,
        resumed: true,
        unreadable: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::Timestamp;

    /// OPS-10: what a repeated report is answered with depends on what came of the attempt, not of a later one.
    #[test]
    fn a_report_is_settled_by_its_own_attempt_only() {
        let ticket = Ticket {
            job: JobId::from_i64(1),
            lease: LeaseId(2),
            node: NodeId(3),
            attempt: 1,
            tenant: TenantId::ROOT,
            hold_ms: 0,
        };
        let job = |status, attempt, node| {
            let mut record =
                JobRecord::new(ticket.job, ticket.tenant, "h".into(), "q".into(), Timestamp::from_millis(0));
            (record.status, record.attempt, record.node) = (status, attempt, Some(NodeId(node)));
            record
        };
        let done = Outcome::Done(None);
        let failed = Outcome::Failed(JobError::retryable("no"));
        assert!(settled(&job(Status::Succeeded, 1, 3), &ticket, &done));
        assert!(!settled(&job(Status::Succeeded, 2, 3), &ticket, &done), "a later attempt's");
        assert!(!settled(&job(Status::Succeeded, 1, 4), &ticket, &done), "another node's");
        assert!(!settled(&job(Status::Succeeded, 1, 3), &ticket, &failed), "it says something else");
        assert!(settled(&job(Status::Retrying, 1, 3), &ticket, &failed));
        assert!(!settled(&job(Status::Running, 2, 3), &ticket, &failed));
    }
}
