//! What is seen of the whole: totals of this process, charts of the past, what waits, and how the
//! installation is. Called by programs that show it, and by the node, which adds what it has counted to the store
//! now and then. Never touches a job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::life::context::Attempt;
use crate::model::clock::{Clock, SystemClock, Timestamp};
use crate::model::error::Error;
use crate::model::job::{ClaimedJob, JobRecord, Status};
use crate::model::priority::Priority;
use crate::model::tenant::{Scope, SecurityContext, TenantId};
use crate::node::Worker;
use crate::node::supervise::LoopHealth;
use crate::operate::activity::{
    Activity, Addition, Backlog, Counted, DEPTH_HOLDS, EndedAttempt, OTHER, Resolution, Slice, Span, Totals, arrange,
    backlog,
};
use crate::operate::health::{Health, NodeHealth};
use crate::operate::within::Within;
use crate::service::JobService;
use crate::store;

/// How often what was counted is added to the store. Half a bucket of the finest resolution: a point of a chart is late
/// by no more than that.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// How long the end of a service waits for the last of it: charts are worth less than a quick end.
const LAST_SAVE: Duration = Duration::from_secs(1);

/// How often jobs are counted by status: once for each bucket of the finest resolution.
pub(crate) const DEPTH_EVERY: Duration = Duration::from_secs(10);

/// A count by status takes at most this part of the time, however many jobs wait: the next one is so many times later
/// than the last one took.
const DEPTH_PAUSE: u32 = 100;

/// How long a look at the health of the installation holds for others who ask.
const HEALTH_HOLDS: Duration = Duration::from_secs(2);

/// The same where looking takes long: so many times what it took, and at most so long.
const HEALTH_PAUSE: u32 = 10;
const HEALTH_HOLDS_AT_MOST: Duration = Duration::from_secs(60);

/// Rows of the past that are removed in one step.
const CLEAN_STEP: usize = 5_000;

/// Steps of that in a row while there is more: far more than nodes can add meanwhile.
const CLEAN_STEPS: usize = 4;

/// A look at the installation.
pub(crate) struct Seen {
    at: Instant,
    holds: Duration,
    health: Health,
}

// ---- counting

impl Worker {
    pub(crate) fn count_started(&self, job: &ClaimedJob) {
        // Later attempts were ready at a time that stores do not keep.
        let waited = (job.attempt() == 1).then(|| self.now().since(job.ready_at));
        self.tally.started(counted(job), waited);
    }

    /// Counts a job that its handler has completed in a transaction of its own.
    pub(crate) fn count_completed(&self, attempt: &Attempt) {
        let job = &attempt.job;
        let callback = self.registry.get(&job.handler).is_some_and(|handler| handler.callbacks.on_success);
        let ended = EndedAttempt {
            status: Status::Succeeded,
            failed: false,
            ran: attempt.started.elapsed(),
            follow_up: callback && job.spec.callback.is_none(),
        };
        self.tally.ended(std::iter::once((counted(job), ended)));
    }

    pub(crate) fn count_canceled(&self, tenant: TenantId, record: Option<&JobRecord>) {
        let handler = record.map_or(OTHER, |record| &record.handler);
        let priority = record.map_or(Priority::NORMAL, |record| record.priority);
        self.tally.canceled(Counted { tenant, handler, priority }, 1);
    }

    /// Counts jobs that expired while they waited. Whose they were is not said.
    pub(crate) fn count_expired(&self, jobs: usize) {
        if jobs > 0 {
            let job = Counted { tenant: TenantId::ROOT, handler: OTHER, priority: Priority::NORMAL };
            self.tally.canceled(job, jobs as u64);
        }
    }

    // ---- saving

    /// Adds what was counted to the store now and then, until the node stops. Asks nothing of it while nothing happens.
    pub(crate) async fn save_activity_now_and_then(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            tokio::select! {
                () = tokio::time::sleep(SAVE_EVERY) => {}
                () = self.stopped.cancelled() => return,
            }
            self.save_activity().await;
        }
    }

    pub(crate) async fn save_activity_before_the_end(&self) {
        let _ = tokio::time::timeout(LAST_SAVE, self.save_activity()).await;
    }

    async fn save_activity(&self) {
        let additions = self.tally.take();
        if additions.is_empty() {
            return;
        }
        *self.chores.counted.lock() = Some(Instant::now());
        match self.store.add_activity(self.now(), additions.clone()).await {
            Ok(()) => {}
            // It may be there: better a gap in a chart than jobs that never were.
            Err(error @ store::Error::Unknown(_)) => tracing::debug!(%error, "a part of the past may be lost"),
            Err(error) => {
                tracing::debug!(%error, "what was counted could not be saved, it will be tried again");
                self.tally.put_back(&additions);
            }
        }
    }

    /// Counts jobs by status for charts. Answers when to do it again.
    pub(crate) async fn sample_depth(&self) -> store::Result<Duration> {
        if !self.config.maintenance {
            return Ok(DEPTH_EVERY);
        }
        let began = Instant::now();
        self.store.sample_depth().await?;
        Ok(DEPTH_EVERY.max(began.elapsed() * DEPTH_PAUSE))
    }

    /// Removes what of the past nobody can ask for any more.
    pub(crate) async fn clean_activity(&self) -> store::Result<()> {
        for _ in 0..CLEAN_STEPS {
            if self.store.clean_activity(CLEAN_STEP).await? < CLEAN_STEP {
                break;
            }
        }
        Ok(())
    }

    // ---- reading

    async fn activity(&self, scope: Scope, span: Span) -> Result<Activity, Error> {
        let (resolution, now) = (span.resolution(), self.now());
        let slices = self.slices(scope, resolution, span.from(now), now).await?;
        let depths = match scope {
            // A count from before the first point holds for it.
            Scope::All(_) => self.store.depths(resolution, span.from(now) - resolution.step() - DEPTH_HOLDS).await?,
            Scope::Tenant(_) => Vec::new(),
        };
        Ok(arrange(slices, &depths, span, now))
    }

    /// What the store has kept, and what this process has not handed over yet.
    async fn slices(
        &self,
        scope: Scope,
        resolution: Resolution,
        from: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<Slice>, Error> {
        let mut slices = self.store.activity(scope, resolution, from).await?;
        let own = |Addition { handler, sums, .. }| Slice { at: resolution.bucket(now), handler, sums };
        // After the look: what is handed over in between is missing for a moment, and not there twice.
        slices.extend(self.tally.unsaved(scope).into_iter().map(own));
        Ok(slices)
    }

    async fn backlog(&self, scope: Scope) -> Result<Vec<Backlog>, Error> {
        let waiting = self.store.backlog(scope).await?;
        let now = self.now();
        let slices = self.slices(scope, Resolution::Seconds10, rate_from(now), now).await?;
        Ok(backlog(waiting, &slices, now))
    }

    async fn health(&self) -> Result<Health, Error> {
        let mut seen = self.seen.lock().await;
        if let Some(seen) = seen.as_ref().filter(|seen| seen.at.elapsed() < seen.holds) {
            return Ok(seen.health.clone());
        }
        let began = Instant::now();
        let health = self.look_at_health().await?;
        let holds = (began.elapsed() * HEALTH_PAUSE).clamp(HEALTH_HOLDS, HEALTH_HOLDS_AT_MOST);
        *seen = Some(Seen { at: Instant::now(), holds, health: health.clone() });
        Ok(health)
    }

    /// How far the store's clock is ahead of this machine's, in milliseconds.
    pub(crate) async fn clock_skew_ms(&self) -> crate::store::Result<i64> {
        let asked = SystemClock.now();
        let now = self.store.now().await?;
        Ok(skew_ms(now, asked, SystemClock.now()))
    }

    /// How the loops of the node and of its store are.
    pub(crate) fn loops(&self) -> Vec<LoopHealth> {
        let mut loops = self.supervisor.loops();
        loops.extend(self.store.loops());
        loops
    }

    /// Why the node should not be sent work.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let down = self.loops().into_iter().filter(|health| health.down);
        let mut troubles: Vec<String> = down.map(|health| format!("the loop `{}` is down", health.name)).collect();
        if self.saves_nothing() {
            troubles.push(format!("the ends of {} jobs cannot be saved", self.finisher().stuck()));
        }
        troubles
    }

    async fn look_at_health(&self) -> Result<Health, Error> {
        let skew_ms = self.clock_skew_ms().await?;
        let now = self.store.now().await?;
        let nodes = self.store.nodes().await?;
        let nodes: Vec<NodeHealth> =
            nodes.into_iter().map(|node| NodeHealth::of(node, now, self.config.lease)).collect();
        let depth = self.store.counts(Scope::ENGINE).await?;
        let vitals = self.store.vitals().await?;
        let held = self.held.lock().clone();
        Ok(Health {
            at: now,
            store: self.store.name(),
            depth,
            active: depth.get(Status::Running),
            stale: nodes.iter().filter(|node| node.stale).map(|node| node.record.running as u64).sum(),
            nodes,
            held,
            skew_ms,
            loops: self.loops().into_iter().filter(|health| health.panics > 0).collect(),
            troubles: self.troubles(),
            vitals,
        })
    }
}

fn counted(job: &ClaimedJob) -> Counted<'_> {
    Counted { tenant: job.tenant, handler: &job.handler, priority: job.priority }
}

/// How far a clock is ahead that answered between two times of ours: nothing while its answer may be right. Pure.
fn skew_ms(theirs: Timestamp, asked: Timestamp, answered: Timestamp) -> i64 {
    let theirs = theirs.as_millis();
    theirs - theirs.clamp(asked.as_millis(), answered.as_millis().max(asked.as_millis()))
}

impl JobService {
    /// What this process has done since it started, by handler and band. Jobs that a transaction of the caller's
    /// or plain SQL has stored are counted from their start on.
    pub fn totals(&self) -> Vec<Totals> {
        let mut totals = self.worker().tally.totals();
        for local in self.local().totals() {
            let same = |of: &&mut Totals| of.handler == local.handler && of.priority == local.priority;
            match totals.iter_mut().find(same) {
                Some(of) => of.sums.merge(&local.sums),
                None => totals.push(local),
            }
        }
        totals
    }

    /// How many ended jobs this process has removed because their retention was over.
    pub fn total_cleaned(&self) -> u64 {
        self.worker().tally.total_cleaned()
    }

    /// What this process has fired of schedules.
    pub fn cron_totals(&self) -> crate::CronTotals {
        self.worker().chores.cron.lock().clone()
    }

    /// What happened to the caller's jobs, on all nodes, in evenly spaced points.
    pub async fn activity(&self, ctx: &SecurityContext, span: Span) -> Result<Activity, Error> {
        self.within(ctx.scope()).activity(span).await
    }

    /// What of the caller's jobs waits and runs, by handler.
    pub async fn backlog(&self, ctx: &SecurityContext) -> Result<Vec<Backlog>, Error> {
        self.within(ctx.scope()).backlog().await
    }

    /// How the installation is. For operators: it counts every tenant's jobs. Those who ask within a few seconds
    /// share one look at the store.
    pub async fn health(&self) -> Result<Health, Error> {
        self.worker().health().await
    }
}

#[cfg(feature = "encryption")]
impl crate::seal::Opener {
    /// What waits in a store for each handler, as [`JobService::backlog`], for tools that only look.
    pub async fn backlog(&self, store: &dyn store::Store, scope: Scope) -> Result<Vec<Backlog>, Error> {
        let (waiting, now) = (store.backlog(scope).await?, store.now().await?);
        let slices = store.activity(scope, Resolution::Seconds10, rate_from(now)).await?;
        Ok(backlog(waiting, &slices, now))
    }
}

/// From when on the past is looked at for a rate.
fn rate_from(now: Timestamp) -> Timestamp {
    Resolution::Seconds10.bucket(now) - Resolution::Seconds10.step() * 6
}

impl Within {
    /// What happened to the jobs of the scope, on all nodes, in evenly spaced points.
    pub async fn activity(&self, span: Span) -> Result<Activity, Error> {
        self.worker().activity(self.scope(), span).await
    }

    /// What waits and runs of the scope, by handler.
    pub async fn backlog(&self) -> Result<Vec<Backlog>, Error> {
        self.worker().backlog(self.scope()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_wrong_only_beyond_the_time_its_answer_took() {
        let at = Timestamp::from_millis;
        assert_eq!(skew_ms(at(1_005), at(1_000), at(1_010)), 0);
        assert_eq!(skew_ms(at(3_010), at(1_000), at(1_010)), 2_000);
        assert_eq!(skew_ms(at(400), at(1_000), at(1_010)), -600);
    }
}
