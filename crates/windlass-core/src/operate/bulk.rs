//! Acting on every job that passes a filter: a preview, then one task that does it job by job, at a pace,
//! up to a cap, until it is done, stopped, or too many fail again. Called by the service's users and by `replay`; built
//! from the service's own calls, so that a bulk action does to each job exactly what the single one does. It runs in the
//! process where it was begun, and is kept in the store while it does, so that every process shows and stops it.

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

use crate::fair::may_enter;
use crate::model::clock::Timestamp;
use crate::model::error::{Error, InvalidInput};
use crate::model::filter::JobFilter;
use crate::model::id::JobId;
use crate::model::job::{JobRecord, Page, Status};
use crate::model::priority::Priority;
use crate::model::tenant::{Scope, SecurityContext, TenantId};
use crate::operate::edit::can_edit;
use crate::operate::look::SEARCHED_JOBS;
use crate::operate::within::Within;
use crate::service::JobService;
use crate::store::{AuditEntry, NodeId};

/// What to do with every selected job.
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
            let message = format!("{} does not apply to jobs that are {}", self.as_str(), asked.join(" or "));
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
    /// The maximum number of jobs, 1 to [`BulkOptions::MAX_CAP`]; the newest are taken.
    pub cap: usize,
    /// The maximum rate in jobs per second; `None` for as fast as the store allows.
    pub per_second: Option<f64>,
    /// For actions that make jobs run: when to stop because they fail again.
    pub stop_when_failing: Option<FailingLimit>,
}

/// When too many of the jobs that were put back to work have failed again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailingLimit {
    /// The maximum share of ended jobs that may fail again, 0 to 1.
    pub part: f64,
    /// Evaluated only after this many have ended.
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

    /// Sets the maximum rate in jobs per second.
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
            let message = format!("{} is out of range, 1 to {} are allowed", self.cap, BulkOptions::MAX_CAP);
            return Err(InvalidInput::new("cap", message));
        }
        if self.per_second.is_some_and(|rate| !(SLOWEST..=FASTEST).contains(&rate)) {
            return Err(InvalidInput::new("per_second", format!("must be {SLOWEST} to {FASTEST}")));
        }
        if self.stop_when_failing.is_some_and(|limit| !(0.0..=1.0).contains(&limit.part)) {
            return Err(InvalidInput::new("stop_when_failing", "must be 0 to 1"));
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
    /// Its id.
    pub id: BulkId,
    /// What is done.
    pub action: String,
    /// To which jobs.
    pub filter: String,
    /// By whom.
    pub by: String,
    /// To whose jobs; none for every tenant's.
    pub tenant: Option<TenantId>,
    /// The node that runs it.
    #[serde(default)]
    pub node: Option<NodeId>,
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
    /// Whether it still runs.
    pub state: BulkState,
    /// Why it ended, if not because it was done.
    pub error: Option<String>,
}

/// Whether a bulk action still runs.
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

/// A bulk action that runs in this process. It continues when this is dropped.
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
/// Of these, those that only operators of the whole installation may have. Of the others, a tenant has its share.
const RESERVED: usize = 2;
/// How long a bulk action is known to all processes after it was last heard of.
const KNOWN_FOR: Duration = Duration::from_secs(24 * 3600);
/// Bulk actions of all processes that are looked at: of one tenant, or of all for an operator.
const KNOWN: usize = 500;
/// How often one that runs is kept in the store, and looks whether it is to stop: as soon as people expect.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// After how long without a word the process of one that ran is taken for lost.
const LOST_AFTER: Duration = Duration::from_secs(30);

/// A bulk action as all processes know it.
#[derive(Serialize, Deserialize)]
struct Known {
    progress: BulkProgress,
    seen_at: Timestamp,
}

impl Known {
    /// How far it has come, as far as is known at `now`. Pure.
    fn progress_at(self, now: Timestamp) -> BulkProgress {
        let mut progress = self.progress;
        if progress.state == BulkState::Running && now.since(self.seen_at) >= LOST_AFTER {
            progress.state = BulkState::Failed;
            progress.ended_at = Some(self.seen_at);
            progress.error = Some("the process that ran it was lost".to_owned());
        }
        progress
    }
}

/// Where a bulk action is kept. Names of the same length, so that they sort by age.
fn place_among(places: &str, id: BulkId) -> String {
    format!("{places}{:020}", id.0.as_i64())
}

/// Where those on a tenant's jobs are kept once more: among the newest of all, a busy tenant's would hide them.
fn places_of(tenant: TenantId) -> String {
    format!("bulk_of.{tenant}.")
}

/// Where it is kept that one is to stop.
fn stop_of(id: BulkId) -> String {
    format!("bulk_stop.{id}")
}

const PLACES: &str = "bulk.";

impl Bulks {
    /// Takes one in, unless too many run. It runs until what is returned is dropped.
    fn admit(&self, bulk: &Bulk, stopping: &CancellationToken) -> Result<Ended, Error> {
        let mut kept = self.0.lock();
        let runs = |bulk: &Bulk| bulk.0.progress.borrow().state == BulkState::Running;
        let of = |bulk: &Bulk| bulk.0.progress.borrow().tenant;
        let running = kept.iter().filter(|bulk| runs(bulk)).count();
        let own = kept.iter().filter(|running| runs(running) && of(running) == of(bulk)).count();
        let may = match of(bulk) {
            None => running < AT_ONCE,
            Some(_) => may_enter(own, running - own, AT_ONCE - RESERVED),
        };
        if !may {
            return Err(Error::Backpressure("the list of bulk actions"));
        }
        kept.push_back(bulk.clone());
        // Fewer than that run, so there is one that has ended.
        if kept.len() > KEPT
            && let Some(oldest) = kept.iter().position(|bulk| !runs(bulk))
        {
            kept.remove(oldest);
        }
        Ok(Ended { bulk: bulk.clone(), stopping: stopping.clone() })
    }

    /// Those that act within the scope, newest first.
    fn within(&self, scope: Scope) -> Vec<Bulk> {
        let covered = |bulk: &&Bulk| covers(scope, bulk.0.progress.borrow().tenant);
        self.0.lock().iter().rev().filter(covered).cloned().collect()
    }
}

/// Whether an action on the jobs of a tenant, or on those of all, is the scope's to see and stop.
fn covers(scope: Scope, tenant: Option<TenantId>) -> bool {
    match tenant {
        Some(tenant) => scope.covers(tenant),
        None => scope.tenant().is_none(),
    }
}

impl JobService {
    /// What a bulk action with this filter would act on, counted up to `cap`. Pass the filter that
    /// [`BulkAction::narrow`] returns, so that only jobs are counted to which the action applies.
    pub async fn preview(&self, ctx: &SecurityContext, filter: &JobFilter, cap: usize) -> Result<Preview, Error> {
        self.within(ctx.scope()).preview(filter, cap).await
    }

    /// Starts `action` on every job of the caller's tenant that the filter selects, newest first, and returns at once. Each
    /// job is treated like in a single call; one audit entry for the whole is written at the end.
    pub async fn bulk(
        &self,
        ctx: &SecurityContext,
        filter: &JobFilter,
        action: BulkAction,
        options: BulkOptions,
    ) -> Result<Bulk, Error> {
        self.within(ctx.scope()).bulk(ctx, filter, action, options).await
    }

    /// The bulk actions on the caller's jobs, of every process: those that run, and those that ended within a day; newest
    /// first.
    pub async fn bulks(&self, ctx: &SecurityContext) -> Result<Vec<BulkProgress>, Error> {
        self.within(ctx.scope()).bulks().await
    }

    /// How far a bulk action on the caller's jobs has come, whichever process runs it.
    pub async fn bulk_progress(&self, ctx: &SecurityContext, id: BulkId) -> Result<Option<BulkProgress>, Error> {
        self.within(ctx.scope()).bulk_progress(id).await
    }

    /// Ends a bulk action before its next job, within about a second where another process runs it; returns false if no
    /// such action exists.
    pub async fn bulk_stop(&self, ctx: &SecurityContext, id: BulkId) -> Result<bool, Error> {
        self.within(ctx.scope()).bulk_stop(id).await
    }

    /// Lets every process know how far a bulk action has come.
    async fn tell_bulk(&self, progress: BulkProgress) -> Result<(), Error> {
        let (id, tenant, known) = (progress.id, progress.tenant, Known { progress, seen_at: self.now() });
        let text = serde_json::to_string(&known).expect("progress is plain data");
        if let Some(tenant) = tenant {
            self.store().put_setting(&place_among(&places_of(tenant), id), &text, KNOWN_FOR).await?;
        }
        Ok(self.store().put_setting(&place_among(PLACES, id), &text, KNOWN_FOR).await?)
    }

    /// Gives a bulk action one of the places, and lets every process know of it: nobody else could stop it otherwise. It has
    /// ended when what is returned is dropped.
    async fn admit_bulk(&self, bulk: &Bulk) -> Result<Ended, Error> {
        let ended = self.bulk_list().admit(bulk, &self.worker().stopping)?;
        self.tell_bulk(bulk.progress()).await?;
        Ok(ended)
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
            node: Some(self.worker().membership().node),
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
        let ended = self.admit_bulk(&run.bulk).await?;
        run.go_and_tell(ended).await?;
        Ok((run.bulk.progress(), run.acted_on))
    }
}

impl Within {
    /// What a bulk action within the scope would act on, as [`JobService::preview`].
    pub async fn preview(&self, filter: &JobFilter, cap: usize) -> Result<Preview, Error> {
        BulkOptions::default().cap(cap).check()?;
        self.limits().check_filter(filter)?;
        let counted = self.store().count(self.scope(), filter, cap + 1).await?;
        let mut sample = self.store().find(self.scope(), filter, Page::first(SAMPLE.min(cap)), None).await?.jobs;
        self.worker().seals.open_records(&mut sample).await;
        Ok(Preview { jobs: counted.min(cap as u64), more: counted > cap as u64, sample })
    }

    /// Begins a bulk action within the scope, as [`JobService::bulk`]. It acts on each job for the job's own tenant, in the
    /// name of `by`.
    pub async fn bulk(
        &self,
        by: &SecurityContext,
        filter: &JobFilter,
        action: BulkAction,
        options: BulkOptions,
    ) -> Result<Bulk, Error> {
        let run = self.service().begin_bulk(self.scope(), by, filter, action, options).await?;
        let bulk = run.bulk.clone();
        let ended = self.service().admit_bulk(&bulk).await?;
        // Apart from the caller, who may be a request that ends; the engine's own runtime is for what must not wait.
        self.worker().handlers.spawn(run.run(ended));
        Ok(bulk)
    }

    /// The bulk actions on jobs of the scope, as [`JobService::bulks`].
    pub async fn bulks(&self) -> Result<Vec<BulkProgress>, Error> {
        let mut bulks: Vec<BulkProgress> =
            self.service().bulk_list().within(self.scope()).iter().map(Bulk::progress).collect();
        let places = self.scope().tenant().map_or_else(|| PLACES.to_owned(), places_of);
        for (_, known) in self.store().settings(&places, KNOWN).await? {
            let Ok(known) = serde_json::from_str::<Known>(&known) else { continue };
            if covers(self.scope(), known.progress.tenant) && bulks.iter().all(|bulk| bulk.id != known.progress.id) {
                bulks.push(known.progress_at(self.now()));
            }
        }
        bulks.sort_by_key(|bulk| std::cmp::Reverse(bulk.id));
        Ok(bulks)
    }

    /// How far a bulk action of the scope has come, as [`JobService::bulk_progress`].
    pub async fn bulk_progress(&self, id: BulkId) -> Result<Option<BulkProgress>, Error> {
        if let Some(bulk) = self.service().bulk_list().within(self.scope()).into_iter().find(|bulk| bulk.id() == id) {
            return Ok(Some(bulk.progress()));
        }
        let Some(known) = self.store().setting(&place_among(PLACES, id)).await? else { return Ok(None) };
        let known =
            serde_json::from_str::<Known>(&known).ok().filter(|known| covers(self.scope(), known.progress.tenant));
        Ok(known.map(|known| known.progress_at(self.now())))
    }

    /// Ends a bulk action of the scope, as [`JobService::bulk_stop`].
    pub async fn bulk_stop(&self, id: BulkId) -> Result<bool, Error> {
        if let Some(bulk) = self.service().bulk_list().within(self.scope()).into_iter().find(|bulk| bulk.id() == id) {
            bulk.stop();
            return Ok(true);
        }
        let Some(progress) = self.bulk_progress(id).await? else { return Ok(false) };
        if progress.state == BulkState::Running {
            self.store().put_setting(&stop_of(id), "", KNOWN_FOR).await?;
        }
        Ok(true)
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
    /// Runs it to its end on a task of its own. `ended` tells whoever waits, also where the runtime ends under it, be it
    /// before the first step.
    async fn run(mut self, ended: Ended) {
        let (supervisor, id) = (self.service.supervisor().clone(), self.bulk.id());
        // A panic is counted here, and told by `ended`.
        if let Ok(Err(error)) = supervisor.run_once("bulk", self.go_and_tell(ended)).await {
            tracing::warn!(bulk = %id, %error, "bulk action {id} failed");
        }
    }

    /// Does it, while every process is told how far it has come.
    async fn go_and_tell(&mut self, ended: Ended) -> Result<(), Error> {
        let telling = tell_on(self.service.clone(), self.bulk.clone());
        let going = async {
            let _ended = ended;
            let done = self.go().await;
            if let Err(error) = &done {
                self.end(BulkState::Failed, Some(error.to_string())).await;
            }
            done
        };
        futures_util::future::join(going, telling).await.0
    }

    /// Page by page, newest first: the keyset moves on, so that no job is met twice whatever becomes of it.
    async fn go(&mut self) -> Result<(), Error> {
        let mut ticks = self.options.per_second.map(|rate| tokio::time::interval(Duration::from_secs_f64(1.0 / rate)));
        let width = if ticks.is_some() || self.judges() { 1 } else { WIDTH };
        let (mut page, mut left, mut errors) = (Page::first(Page::MAX), self.options.cap, 0);
        while left > 0 {
            page.limit = left.min(Page::MAX);
            // Portion by portion, so that no statement takes long however rare the jobs are.
            let found = self.service.store().find(self.scope, &self.filter, page, Some(SEARCHED_JOBS)).await?;
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
            BulkAction::Retry => self.service.retry_from(&ctx, job.id, job.status).await,
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

/// Lets every process know how far a bulk action has come until it has ended, and stops it when one of them wants that.
async fn tell_on(service: JobService, bulk: Bulk) {
    let mut progress = bulk.0.progress.subscribe();
    loop {
        let ended = progress.wait_for(|progress| progress.state != BulkState::Running);
        let has_ended = tokio::time::timeout(TELL_EVERY, ended).await.is_ok();
        let told = service.tell_bulk(bulk.progress()).await;
        if let Err(error) = told {
            tracing::debug!(bulk = %bulk.id(), %error, "other processes do not know how far a bulk action has come");
        }
        if has_ended {
            return;
        }
        if matches!(service.store().setting(&stop_of(bulk.id())).await, Ok(Some(_))) {
            bulk.stop();
        }
    }
}

/// Marks a bulk action as failed if it was dropped on its way, so that its place is free again.
struct Ended {
    bulk: Bulk,
    stopping: CancellationToken,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let why = match (std::thread::panicking(), self.stopping.is_cancelled()) {
            (true, _) => "it panicked",
            (false, true) => "the service was shut down",
            (false, false) => "its caller went away",
        };
        self.bulk.0.progress.send_if_modified(|progress| {
            let dropped = progress.state == BulkState::Running;
            if dropped {
                progress.state = BulkState::Failed;
                progress.error = Some(why.to_owned());
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
        assert!(refused.message.contains("cancel does not apply to jobs that are succeeded"), "{}", refused.message);
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
        let service = service().await;
        let run = begun(&service, &tenant(1)).await;
        let bulk = run.bulk.clone();
        let ended = service.admit_bulk(&bulk).await.expect("there is room");
        drop(run.run(ended));
        let end = tokio::time::timeout(Duration::from_secs(5), bulk.wait()).await.expect("it is told");
        assert_eq!(end.state, BulkState::Failed);
        service.shutdown().await;
    }

    async fn service() -> JobService {
        let service = JobService::builder(Arc::new(crate::MemoryStore::new())).without_workers();
        service.start().await.expect("starts")
    }

    fn tenant(n: u128) -> SecurityContext {
        SecurityContext::new(TenantId(uuid::Uuid::from_u128(n)))
    }

    async fn begun(service: &JobService, ctx: &SecurityContext) -> Run {
        let (all, options) = (JobFilter::all(), BulkOptions::default());
        service.begin_bulk(ctx.scope(), ctx, &all, BulkAction::Purge, options).await.expect("it can be done")
    }

    /// BEY-6: a tenant's own actions are listed, however many others have begun since.
    #[tokio::test]
    async fn a_busy_tenant_hides_no_actions_of_others() {
        let service = service().await;
        let (quiet, busy) = (begun(&service, &tenant(1)).await, begun(&service, &tenant(2)).await);
        let own = BulkProgress { state: BulkState::Finished, ..quiet.bulk.progress() };
        service.tell_bulk(own.clone()).await.expect("kept");
        for n in 1..=KNOWN as i64 {
            let id = BulkId(JobId::from_i64(busy.bulk.id().0.as_i64() + n));
            service.tell_bulk(BulkProgress { id, ..busy.bulk.progress() }).await.expect("kept");
        }
        assert_eq!(service.bulks(&tenant(1)).await.expect("reads"), [own]);
        assert_eq!(service.bulks(&tenant(2)).await.expect("reads").len(), KNOWN);
        let everyone = service.operator(crate::OperatorRight::assume()).bulks().await.expect("reads");
        assert_eq!(everyone.len(), KNOWN, "the newest of all");
        service.shutdown().await;
    }

    /// BEY-6: an action whose process was not heard of for long has failed, as of when it was last heard of.
    #[tokio::test]
    async fn an_action_of_a_lost_process_is_not_shown_as_running() {
        let service = service().await;
        let progress = begun(&service, &tenant(1)).await.bulk.progress();
        let at = |seen_at: Timestamp, now: Timestamp| {
            let known = Known { progress: progress.clone(), seen_at };
            known.progress_at(now)
        };
        let seen_at = progress.started_at + Duration::from_secs(1);
        assert_eq!(at(seen_at, seen_at + LOST_AFTER - Duration::from_millis(1)), progress, "it may yet be heard of");
        let lost = at(seen_at, seen_at + LOST_AFTER);
        assert_eq!((lost.state, lost.ended_at), (BulkState::Failed, Some(seen_at)));
        assert!(lost.error.is_some_and(|why| why.contains("was lost")));
        let done = BulkProgress { state: BulkState::Finished, ended_at: Some(seen_at), ..progress.clone() };
        let known = Known { progress: done.clone(), seen_at };
        assert_eq!(known.progress_at(seen_at + KNOWN_FOR), done, "what has ended stays as it is");
        service.shutdown().await;
    }
}
