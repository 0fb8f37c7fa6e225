//! Acting on every job that passes a filter (BEY-6, BEY-2): a preview, then one task that does it job by job, at a pace,
//! up to a cap, until it is done, stopped, or too many fail again. Called by the service's users and by `replay`; built
//! from the service's own calls, so that a bulk action does to each job exactly what the single one does.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Timestamp;
use crate::edit::can_edit;
use crate::error::{Error, InvalidInput};
use crate::filter::JobFilter;
use crate::id::JobId;
use crate::job::{JobRecord, Page, Status};
use crate::priority::Priority;
use crate::service::{JobService, Operator, SEARCHED_JOBS};
use crate::store::AuditEntry;
use crate::tenant::{Scope, SecurityContext, TenantId};

/// What is done to every job that passes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BulkAction {
    /// Cancels those that have not ended.
    Cancel {
        /// Why.
        reason: String,
    },
    /// Puts dead letters back to work, in place.
    Replay,
    /// Removes those that have ended.
    Purge,
    /// Starts those that wait for their time.
    RunNow,
    /// Gives those that wait another priority.
    Reprioritise(Priority),
    /// Puts failing jobs back to work: starts those that wait for a retry, replays dead letters.
    Retry,
}

impl BulkAction {
    /// The stable name.
    pub fn as_str(&self) -> &'static str {
        match self {
            BulkAction::Cancel { .. } => "cancel",
            BulkAction::Replay => "replay",
            BulkAction::Purge => "purge",
            BulkAction::RunNow => "run_now",
            BulkAction::Reprioritise(_) => "reprioritise",
            BulkAction::Retry => "retry",
        }
    }

    /// What the audit log calls it.
    fn audited_as(&self) -> &'static str {
        match self {
            BulkAction::Cancel { .. } => "BULK_CANCELED",
            BulkAction::Replay => "BULK_REPLAYED",
            BulkAction::Purge => "BULK_PURGED",
            BulkAction::RunNow => "BULK_RUN_NOW",
            BulkAction::Reprioritise(_) => "BULK_REPRIORITISED",
            BulkAction::Retry => "BULK_RETRIED",
        }
    }

    /// Whether it can be done to a job in `status`.
    fn suits(&self, status: Status) -> bool {
        match self {
            BulkAction::Cancel { .. } => !status.is_terminal(),
            BulkAction::Replay => status == Status::DeadLettered,
            BulkAction::Purge => status.is_terminal(),
            BulkAction::RunNow => matches!(status, Status::Scheduled | Status::Retrying),
            BulkAction::Reprioritise(_) => can_edit(status),
            BulkAction::Retry => matches!(status, Status::Retrying | Status::DeadLettered),
        }
    }

    /// Whether the jobs run because of it, so that failing again is a reason to stop.
    fn makes_jobs_run(&self) -> bool {
        matches!(self, BulkAction::Replay | BulkAction::Retry | BulkAction::RunNow)
    }

    /// The part of `filter` to which this can be done: what a preview of the action should be asked with. Refused where
    /// nothing is left.
    pub fn narrow(&self, filter: &JobFilter) -> Result<JobFilter, InvalidInput> {
        let asked = if filter.statuses.is_empty() { &Status::ALL[..] } else { &filter.statuses };
        let statuses: Vec<Status> = asked.iter().copied().filter(|status| self.suits(*status)).collect();
        if statuses.is_empty() {
            let asked: Vec<&str> = asked.iter().map(|status| status.as_str()).collect();
            let message = format!("{} is not for jobs that are {}", self.as_str(), asked.join(" or "));
            return Err(InvalidInput::new("status", message));
        }
        let mut narrowed = JobFilter { statuses, ..filter.clone() };
        // What is not a dead letter has not been replayed either, so that this leaves retrying jobs in.
        if matches!(self, BulkAction::Replay | BulkAction::Retry) {
            // A letter that was replayed as a new job is dealt with: to replay it too would do its work twice.
            narrowed.replayed = filter.replayed.or(Some(false));
        }
        Ok(narrowed)
    }
}

/// How far a bulk action goes, and how fast.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BulkOptions {
    /// At most so many jobs, 1 to [`BulkOptions::MAX_CAP`]; the newest.
    pub cap: usize,
    /// So many per second; `None` means as fast as the store takes it.
    pub per_second: Option<f64>,
    /// For actions that make jobs run: when to stop because they fail again.
    pub stop_when_failing: Option<FailingLimit>,
}

/// When too many of the jobs that were put back to work have failed again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailingLimit {
    /// More than this part of those that have ended, 0 to 1.
    pub part: f64,
    /// Judged only once so many have ended.
    pub after: usize,
}

impl BulkOptions {
    /// The largest cap: what takes longer than some minutes should be asked for in parts, each looked at before.
    pub const MAX_CAP: usize = 100_000;

    /// At most `cap` jobs.
    #[must_use]
    pub fn cap(mut self, cap: usize) -> Self {
        self.cap = cap;
        self
    }

    /// So many per second.
    #[must_use]
    pub fn per_second(mut self, rate: f64) -> Self {
        self.per_second = Some(rate);
        self
    }

    /// Stops when more than this part fails again, judged once `after` have ended.
    #[must_use]
    pub fn stop_when_failing(mut self, part: f64, after: usize) -> Self {
        self.stop_when_failing = Some(FailingLimit { part, after });
        self
    }

    fn check(&self) -> Result<(), InvalidInput> {
        if self.cap == 0 || self.cap > BulkOptions::MAX_CAP {
            let message = format!("{} is not in 1 to {}", self.cap, BulkOptions::MAX_CAP);
            return Err(InvalidInput::new("cap", message));
        }
        if self.per_second.is_some_and(|rate| !(SLOWEST..=FASTEST).contains(&rate)) {
            return Err(InvalidInput::new("per_second", format!("not in {SLOWEST} to {FASTEST}")));
        }
        if self.stop_when_failing.is_some_and(|limit| !(0.0..=1.0).contains(&limit.part)) {
            return Err(InvalidInput::new("stop_when_failing", "not in 0 to 1"));
        }
        Ok(())
    }
}

impl Default for BulkOptions {
    fn default() -> Self {
        BulkOptions { cap: 1_000, per_second: None, stop_when_failing: None }
    }
}

/// Slower than one in a quarter of an hour is better done by a schedule.
const SLOWEST: f64 = 0.001;
/// Faster than this the timer is what limits; leave the rate out.
const FASTEST: f64 = 10_000.0;

/// What a bulk action would act on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Preview {
    /// How many jobs pass, up to the cap.
    pub jobs: u64,
    /// Whether there are more than the cap.
    pub more: bool,
    /// The newest of them.
    pub sample: Vec<JobRecord>,
}

/// Jobs shown of a preview: enough to see that the filter means what was meant.
const SAMPLE: usize = 10;

/// Names a bulk action. Unique in the cluster, shown as a decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BulkId(pub JobId);

impl fmt::Display for BulkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for BulkId {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(BulkId)
    }
}

/// How far a bulk action has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BulkProgress {
    /// Which.
    pub id: BulkId,
    /// What is done.
    pub action: String,
    /// To which jobs.
    pub filter: String,
    /// By whom.
    pub by: String,
    /// To whose jobs; none for every tenant's.
    pub tenant: Option<TenantId>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Jobs it was done to.
    pub done: u64,
    /// Jobs it could not be done to, because of an error.
    pub failed: u64,
    /// Jobs that had moved on, so that there was nothing to do.
    pub skipped: u64,
    /// How many passed when it began, up to the cap.
    pub total: u64,
    /// Of those that were put back to work, how many have failed again, as last looked.
    pub failed_again: u64,
    /// Whether it goes on.
    pub state: BulkState,
    /// Why it ended, if not because it was done.
    pub error: Option<String>,
}

/// Whether a bulk action goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BulkState {
    /// It does.
    Running,
    /// All is done.
    Finished,
    /// Somebody stopped it, or too many jobs failed again.
    Stopped,
    /// The store failed, or the process ended.
    Failed,
}

impl BulkState {
    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            BulkState::Running => "running",
            BulkState::Finished => "finished",
            BulkState::Stopped => "stopped",
            BulkState::Failed => "failed",
        }
    }
}

/// A bulk action under way in this process. It goes on when this is dropped.
#[derive(Clone, Debug)]
pub struct Bulk(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    progress: watch::Sender<BulkProgress>,
    stop: CancellationToken,
}

impl Bulk {
    /// Its name.
    pub fn id(&self) -> BulkId {
        self.0.progress.borrow().id
    }

    /// How far it has come.
    pub fn progress(&self) -> BulkProgress {
        self.0.progress.borrow().clone()
    }

    /// Ends it before its next job. Twice is the same as once.
    pub fn stop(&self) {
        self.0.stop.cancel();
    }

    /// Waits until it has ended.
    pub async fn wait(&self) -> BulkProgress {
        let mut progress = self.0.progress.subscribe();
        // The sender is held by this handle, so there is always an answer.
        let _ = progress.wait_for(|progress| progress.state != BulkState::Running).await;
        self.progress()
    }
}

/// The bulk actions of a process: those that run, and the last that have ended.
#[derive(Debug, Default)]
pub(crate) struct Bulks(Mutex<VecDeque<Bulk>>);

/// Bulk actions that are remembered.
const KEPT: usize = 100;
/// Bulk actions that run at once in a process; each keeps a connection busy.
const AT_ONCE: usize = 8;

impl Bulks {
    /// Takes one in, unless too many run.
    fn admit(&self, bulk: &Bulk) -> Result<(), Error> {
        let mut kept = self.0.lock();
        let runs = |bulk: &Bulk| bulk.0.progress.borrow().state == BulkState::Running;
        if kept.iter().filter(|bulk| runs(bulk)).count() >= AT_ONCE {
            return Err(Error::Backpressure("the list of bulk actions"));
        }
        kept.push_back(bulk.clone());
        // Fewer than that run, so there is one that has ended.
        if kept.len() > KEPT
            && let Some(oldest) = kept.iter().position(|bulk| !runs(bulk))
        {
            kept.remove(oldest);
        }
        Ok(())
    }

    /// Those that act within the scope, newest first.
    fn within(&self, scope: Scope) -> Vec<Bulk> {
        let covers = |bulk: &Bulk| match bulk.0.progress.borrow().tenant {
            Some(tenant) => scope.covers(tenant),
            None => scope.tenant().is_none(),
        };
        self.0.lock().iter().rev().filter(|bulk| covers(bulk)).cloned().collect()
    }
}

impl JobService {
    /// What a bulk action with this filter would act on, counted up to `cap`. Ask with the filter that
    /// [`BulkAction::narrow`] answers, so that only jobs are counted to which the action can be done.
    pub async fn preview(&self, ctx: &SecurityContext, filter: &JobFilter, cap: usize) -> Result<Preview, Error> {
        self.preview_within(ctx.scope(), filter, cap).await
    }

    /// Begins to do `action` to every job of the caller's that passes, newest first, and answers at once. The same as
    /// doing it to each of them by hand, with an entry in the audit log for the whole when it has ended.
    pub async fn bulk(
        &self,
        ctx: &SecurityContext,
        filter: &JobFilter,
        action: BulkAction,
        options: BulkOptions,
    ) -> Result<Bulk, Error> {
        self.bulk_within(ctx.scope(), ctx, filter, action, options).await
    }

    /// The bulk actions on the caller's jobs that this process runs, and the last that have ended; newest first.
    pub fn bulks(&self, ctx: &SecurityContext) -> Vec<BulkProgress> {
        self.bulk_list().within(ctx.scope()).iter().map(Bulk::progress).collect()
    }

    /// A bulk action on the caller's jobs that this process runs or remembers.
    pub fn bulk_by_id(&self, ctx: &SecurityContext, id: BulkId) -> Option<Bulk> {
        self.bulk_list().within(ctx.scope()).into_iter().find(|bulk| bulk.id() == id)
    }

    /// Ends a bulk action of this process before its next job; false if there is none such.
    pub fn bulk_stop(&self, ctx: &SecurityContext, id: BulkId) -> bool {
        self.bulk_by_id(ctx, id).inspect(Bulk::stop).is_some()
    }

    async fn preview_within(&self, scope: Scope, filter: &JobFilter, cap: usize) -> Result<Preview, Error> {
        BulkOptions::default().cap(cap).check()?;
        self.limits().check_filter(filter)?;
        let counted = self.store().count(scope, filter, cap + 1).await?;
        let mut sample = self.store().list(scope, filter, Page::first(SAMPLE)).await?;
        self.worker().seals.open_records(&mut sample).await;
        Ok(Preview { jobs: counted.min(cap as u64), more: counted > cap as u64, sample })
    }

    async fn bulk_within(
        &self,
        scope: Scope,
        by: &SecurityContext,
        filter: &JobFilter,
        action: BulkAction,
        options: BulkOptions,
    ) -> Result<Bulk, Error> {
        let run = self.begin_bulk(scope, by, filter, action, options).await?;
        let bulk = run.bulk.clone();
        self.bulk_list().admit(&bulk)?;
        // Apart from the caller, who may be a request that ends; the engine's own runtime is for what must not wait.
        self.worker().handlers.spawn(run.run());
        Ok(bulk)
    }

    /// Checks a bulk action and makes it ready to go.
    async fn begin_bulk(
        &self,
        scope: Scope,
        by: &SecurityContext,
        filter: &JobFilter,
        action: BulkAction,
        options: BulkOptions,
    ) -> Result<Run, Error> {
        options.check()?;
        if let BulkAction::Cancel { reason } = &action {
            self.limits().check_note("reason", reason)?;
        }
        let narrowed = action.narrow(filter)?;
        self.limits().check_filter(filter)?;
        let total = self.store().count(scope, &narrowed, options.cap).await?;
        let progress = BulkProgress {
            id: BulkId(self.worker().next_id()),
            action: action.as_str().to_owned(),
            filter: filter.to_string(),
            by: by.actor().to_owned(),
            tenant: scope.tenant(),
            started_at: self.now(),
            ended_at: None,
            done: 0,
            failed: 0,
            skipped: 0,
            total,
            failed_again: 0,
            state: BulkState::Running,
            error: None,
        };
        let shared = Shared { progress: watch::Sender::new(progress), stop: CancellationToken::new() };
        Ok(Run {
            service: self.clone(),
            scope,
            by: by.clone(),
            filter: narrowed,
            action,
            options,
            bulk: Bulk(Arc::new(shared)),
            judged: Judged::default(),
            acted_on: Vec::new(),
        })
    }

    /// Does a bulk action within the caller's own task, and answers with the jobs it was done to.
    pub(crate) async fn bulk_here(
        &self,
        ctx: &SecurityContext,
        filter: &JobFilter,
        action: BulkAction,
        options: BulkOptions,
    ) -> Result<(BulkProgress, Vec<JobId>), Error> {
        let mut run = self.begin_bulk(ctx.scope(), ctx, filter, action, options).await?;
        let end = run.go().await;
        let acted_on = std::mem::take(&mut run.acted_on);
        if let Err(error) = end {
            run.end(BulkState::Failed, Some(error.to_string())).await;
            return Err(error);
        }
        Ok((run.bulk.progress(), acted_on))
    }
}

impl Operator {
    /// What a bulk action on every tenant's jobs would act on, as [`JobService::preview`].
    pub async fn preview(&self, filter: &JobFilter, cap: usize) -> Result<Preview, Error> {
        self.service().preview_within(self.scope(), filter, cap).await
    }

    /// Begins a bulk action on every tenant's jobs, as [`JobService::bulk`]. It acts on each job for the job's own tenant,
    /// in the name of `by`.
    pub async fn bulk(
        &self,
        by: &SecurityContext,
        filter: &JobFilter,
        action: BulkAction,
        options: BulkOptions,
    ) -> Result<Bulk, Error> {
        self.service().bulk_within(self.scope(), by, filter, action, options).await
    }

    /// Every bulk action that this process runs, and the last that have ended; newest first.
    pub fn bulks(&self) -> Vec<BulkProgress> {
        self.service().bulk_list().within(self.scope()).iter().map(Bulk::progress).collect()
    }

    /// Any bulk action that this process runs or remembers.
    pub fn bulk_by_id(&self, id: BulkId) -> Option<Bulk> {
        self.service().bulk_list().within(self.scope()).into_iter().find(|bulk| bulk.id() == id)
    }

    /// Ends any bulk action of this process before its next job; false if there is none such.
    pub fn bulk_stop(&self, id: BulkId) -> bool {
        self.bulk_by_id(id).inspect(Bulk::stop).is_some()
    }
}

/// A bulk action on its way.
struct Run {
    service: JobService,
    scope: Scope,
    by: SecurityContext,
    filter: JobFilter,
    action: BulkAction,
    options: BulkOptions,
    bulk: Bulk,
    judged: Judged,
    /// The jobs it was done to, for who wants to know them all.
    acted_on: Vec<JobId>,
}

/// The jobs that were put back to work last, by which it is judged whether too many fail again.
#[derive(Default)]
struct Judged {
    jobs: VecDeque<JobId>,
    looked_at: Option<std::time::Instant>,
}

/// Jobs that failing is judged by, the last ones: enough for any share, and few enough to read at each look.
const JUDGED_JOBS: usize = 200;
/// How often they are read: as often as a person would want to stop it.
const JUDGE_EVERY: Duration = Duration::from_millis(100);
/// Jobs acted on at once where no pace is asked for; more would take connections from others.
const WIDTH: usize = 8;
/// Errors in a row after which the store is taken for down.
const MAX_ERRORS: u64 = 10;

/// What became of one job.
enum Acted {
    Done(JobId),
    Skipped,
    Failed(Error),
}

impl Run {
    fn run(mut self) -> impl Future<Output = ()> + Send {
        // Whoever waits is told, also where the runtime ends under it, be it before the first step.
        let ended = Ended(self.bulk.clone());
        async move {
            if let Err(error) = self.go().await {
                tracing::warn!(bulk = %self.bulk.id(), %error, "bulk action {} failed", self.bulk.id());
                self.end(BulkState::Failed, Some(error.to_string())).await;
            }
            drop(ended);
        }
    }

    /// Page by page, newest first: the keyset moves on, so that no job is met twice whatever becomes of it.
    async fn go(&mut self) -> Result<(), Error> {
        let mut ticks = self.options.per_second.map(|rate| tokio::time::interval(Duration::from_secs_f64(1.0 / rate)));
        let width = if ticks.is_some() || self.judges() { 1 } else { WIDTH };
        let (mut page, mut left, mut errors) = (Page::first(Page::MAX), self.options.cap, 0);
        while left > 0 {
            page.limit = left.min(Page::MAX);
            // Portion by portion, so that no statement takes long however rare the jobs are.
            let found = self.service.store().search(self.scope, &self.filter, page, SEARCHED_JOBS).await?;
            for some in found.jobs.chunks(width) {
                if let Some(ticks) = &mut ticks {
                    tokio::select! {
                        _ = ticks.tick() => {}
                        () = self.bulk.0.stop.cancelled() => {}
                        () = self.service.worker().stopping.cancelled() => {}
                    }
                }
                if let Some(why) = self.why_stop().await? {
                    self.end(BulkState::Stopped, Some(why)).await;
                    return Ok(());
                }
                left -= some.len();
                for acted in join_all(some.iter().map(|job| self.act(job))).await {
                    errors = if matches!(acted, Acted::Failed(_)) { errors + 1 } else { 0 };
                    let gives_up = errors >= MAX_ERRORS;
                    if let Some(error) = self.note(acted).filter(|_| gives_up) {
                        return Err(error);
                    }
                }
            }
            let Some(next) = found.next else { break };
            page = page.after(next);
        }
        if self.judges() {
            self.look_at_judged().await?;
        }
        self.end(BulkState::Finished, None).await;
        Ok(())
    }

    /// Acts on one job as its own tenant would.
    async fn act(&self, job: &JobRecord) -> Acted {
        let ctx = SecurityContext { tenant: job.tenant, ..self.by.clone() };
        let done = match &self.action {
            BulkAction::Cancel { reason } => self.service.cancel(&ctx, job.id, reason).await.map(drop),
            BulkAction::Replay => self.service.replay(&ctx, job.id).await,
            BulkAction::Purge => self.service.purge(&ctx, job.id).await,
            BulkAction::RunNow => self.service.run_now(&ctx, job.id).await,
            BulkAction::Reprioritise(priority) => self.service.reprioritise(&ctx, job.id, *priority).await,
            BulkAction::Retry if job.status == Status::DeadLettered => self.service.replay(&ctx, job.id).await,
            BulkAction::Retry => self.service.run_now(&ctx, job.id).await,
        };
        match done {
            Ok(()) => Acted::Done(job.id),
            // Somebody else has acted on it meanwhile, or it has moved on by itself.
            Err(Error::Conflict { .. } | Error::NotFound(_) | Error::AlreadyFinished { .. }) => Acted::Skipped,
            Err(error) => Acted::Failed(error),
        }
    }

    /// Counts what became of a job. Answers with the error, if there was one.
    fn note(&mut self, acted: Acted) -> Option<Error> {
        let progress = &self.bulk.0.progress;
        match acted {
            Acted::Done(id) => {
                self.acted_on.push(id);
                self.judged.jobs.push_back(id);
                if self.judged.jobs.len() > JUDGED_JOBS {
                    self.judged.jobs.pop_front();
                }
                progress.send_modify(|progress| progress.done += 1);
                None
            }
            Acted::Skipped => {
                progress.send_modify(|progress| progress.skipped += 1);
                None
            }
            Acted::Failed(error) => {
                progress.send_modify(|progress| {
                    progress.failed += 1;
                    progress.error = Some(error.to_string());
                });
                Some(error)
            }
        }
    }

    fn judges(&self) -> bool {
        self.action.makes_jobs_run() && self.options.stop_when_failing.is_some()
    }

    /// Why it must not go on, if so.
    async fn why_stop(&mut self) -> Result<Option<String>, Error> {
        if self.bulk.0.stop.is_cancelled() {
            return Ok(Some("it was stopped".to_owned()));
        }
        if self.service.worker().stopping.is_cancelled() {
            return Ok(Some("the service shuts down".to_owned()));
        }
        let due = self.judged.looked_at.is_none_or(|at| at.elapsed() >= JUDGE_EVERY);
        if !self.judges() || !due {
            return Ok(None);
        }
        let too_many = self.look_at_judged().await?;
        Ok(too_many.then(|| format!("{} of the jobs failed again", self.bulk.progress().failed_again)))
    }

    /// Looks at what became of the jobs that were put back to work. Answers whether too many have failed again.
    async fn look_at_judged(&mut self) -> Result<bool, Error> {
        let Some(limit) = self.options.stop_when_failing else { return Ok(false) };
        self.judged.looked_at = Some(std::time::Instant::now());
        let ids: Vec<JobId> = self.judged.jobs.iter().copied().collect();
        let records = self.service.store().get(self.scope, &ids).await?;
        let failed = |record: &&JobRecord| matches!(record.status, Status::DeadLettered | Status::Retrying);
        let ended = |record: &&JobRecord| record.status.is_terminal() || record.status == Status::Retrying;
        let (failed, ended) = (records.iter().filter(failed).count(), records.iter().filter(ended).count());
        self.bulk.0.progress.send_modify(|progress| progress.failed_again = failed as u64);
        Ok(ended >= limit.after.max(1) && failed as f64 > limit.part * ended as f64)
    }

    /// Writes the audit entry and tells everyone that it has ended.
    async fn end(&self, state: BulkState, why: Option<String>) {
        let now = self.service.now();
        let progress = self.bulk.progress();
        let BulkProgress { done, failed, skipped, total, .. } = progress;
        let mut detail = format!("{done} done, {failed} failed, {skipped} skipped of {total}");
        if let Some(why) = &why {
            detail.push_str(": ");
            detail.push_str(why);
        }
        let entry = AuditEntry {
            sequence: 0,
            at: now,
            actor: progress.by,
            tenant: self.scope.tenant(),
            action: self.action.audited_as().to_owned(),
            target: progress.filter,
            detail: Some(detail),
        };
        // Each job has its own entry; only the summary is missing then.
        if let Err(error) = self.service.store().audit(entry).await {
            tracing::warn!(bulk = %progress.id, %error, "bulk action {} could not be audited", progress.id);
        }
        self.bulk.0.progress.send_modify(|progress| {
            progress.state = state;
            progress.ended_at = Some(now);
            progress.error = why.or(progress.error.take());
        });
    }
}

/// Marks a bulk action as failed if it was dropped on its way.
struct Ended(Bulk);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.0.progress.send_if_modified(|progress| {
            let dropped = progress.state == BulkState::Running;
            if dropped {
                progress.state = BulkState::Failed;
                progress.error = Some("the service was shut down".to_owned());
            }
            dropped
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_narrowed_to_jobs_it_can_be_done_to() {
        let cancel = BulkAction::Cancel { reason: String::new() };
        let narrowed = |action: &BulkAction, filter: JobFilter| action.narrow(&filter).map(|filter| filter.statuses);
        use Status::*;
        assert_eq!(narrowed(&BulkAction::Replay, JobFilter::all()), Ok(vec![DeadLettered]));
        assert_eq!(narrowed(&BulkAction::Purge, JobFilter::all()), Ok(vec![Succeeded, Canceled, DeadLettered]));
        assert_eq!(narrowed(&cancel, JobFilter::all().status(Running).status(Succeeded)), Ok(vec![Running]));
        let refused = narrowed(&cancel, JobFilter::all().status(Succeeded)).expect_err("nothing to cancel");
        assert!(refused.message.contains("cancel is not for jobs that are succeeded"), "{}", refused.message);
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let field = |options: BulkOptions| options.check().map_err(|error| error.field);
        assert_eq!(field(BulkOptions::default()), Ok(()));
        assert_eq!(field(BulkOptions::default().cap(0)), Err("cap".into()));
        assert_eq!(field(BulkOptions::default().cap(BulkOptions::MAX_CAP + 1)), Err("cap".into()));
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9] {
            assert_eq!(field(BulkOptions::default().per_second(rate)), Err("per_second".into()), "{rate}");
        }
        assert_eq!(field(BulkOptions::default().stop_when_failing(1.5, 1)), Err("stop_when_failing".into()));
    }

    /// BEY-6: a runtime that ends before the first step drops the action; whoever waits for it must not wait for ever.
    #[tokio::test]
    async fn an_action_that_never_takes_a_step_is_told_as_failed() {
        let service = JobService::builder(std::sync::Arc::new(crate::MemoryStore::new())).without_workers();
        let service = service.start().await.expect("starts");
        let ctx = SecurityContext::new(crate::TenantId::ROOT);
        let (all, options) = (JobFilter::all(), BulkOptions::default());
        let run =
            service.begin_bulk(ctx.scope(), &ctx, &all, BulkAction::Purge, options).await.expect("it can be done");
        let bulk = run.bulk.clone();
        drop(run.run());
        let end = tokio::time::timeout(Duration::from_secs(5), bulk.wait()).await.expect("it is told");
        assert_eq!(end.state, BulkState::Failed);
        service.shutdown().await;
    }
}
