//! Fires schedules: one node at a time plans what is due and stores its jobs. Times come from the store; a node computes
//! only. Called by the node as one of its loops.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::DEFAULT_QUEUE;
use crate::flows::calendar::{Plan, plan};
use crate::flows::schedule::{Schedule, SchedulePart};
use crate::model::clock::Timestamp;
use crate::model::error::Error;
use crate::model::job::NewJob;
use crate::node::Worker;
use crate::operate::activity::Histogram;
use crate::seal::Kind;
use crate::store::{self, Fired, Firing, SCHEDULER, ScheduleRecord};

/// How long the lease holds: this long nobody fires after a scheduler was lost.
const HOLD_FOR: Duration = Duration::from_secs(5);

/// How often the lease is renewed while something is about to come due.
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// The lease is taken when something is due within this time: longer than from one survey to the next, so that whoever
/// fires is there before the time has come.
pub(crate) const AHEAD: Duration = Duration::from_secs(2);

/// Schedules that one transaction fires at most, so that it stays short.
const FIRED_AT_ONCE: usize = 100;

/// What one process has fired of schedules since it started.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CronTotals {
    /// Jobs that were stored for a nominal time.
    pub fired: u64,
    /// How often a schedule came due and skipped times: missed ones that its policy skips, or for want of quota.
    pub missed: u64,
    /// How long after their nominal time jobs were stored.
    pub late: Histogram,
}

/// What a due schedule starts, and whether it skips missed times.
#[derive(Clone)]
struct Planned {
    firing: Firing,
    skipped: bool,
}

impl Worker {
    /// Fires what comes due, until the node stops. Nothing is asked of the store while nothing is about to come due.
    pub(crate) async fn fire_schedules(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            let due = *self.chores.schedule_due.lock();
            let rest = match due.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(left) if left <= AHEAD => match self.fire_due().await {
                    Ok(rest) => rest,
                    Err(error) => {
                        tracing::warn!(%error, "could not fire schedules, trying again");
                        RENEW_EVERY
                    }
                },
                Some(left) => left - AHEAD,
                None => Duration::MAX,
            };
            tokio::select! {
                () = tokio::time::sleep(rest.min(Duration::from_secs(3600))) => {}
                () = self.wake_scheduler.notified() => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    /// Fires what is due, if this node holds the lease. Answers how long it may rest.
    async fn fire_due(&self) -> store::Result<Duration> {
        let Some(lease) = self.store.hold(SCHEDULER, self.membership().node, HOLD_FOR).await? else {
            return Ok(RENEW_EVERY);
        };
        loop {
            let found = self.store.due_schedules(FIRED_AT_ONCE).await?;
            *self.chores.schedule_due.lock() = found.next_in.map(|left| Instant::now() + left);
            if found.due.is_empty() {
                return Ok(found.next_in.unwrap_or(Duration::MAX).min(RENEW_EVERY));
            }
            let mut planned = Vec::with_capacity(found.due.len());
            for record in &found.due {
                planned.push(self.firing(record, found.now).await);
            }
            // Nothing fired: the lease is lost, or others change these. Asking again at once would not help either.
            if !self.fire(lease.epoch, planned, found.now).await? {
                return Ok(RENEW_EVERY);
            }
        }
    }

    /// False if none of them was fired.
    async fn fire(&self, epoch: u64, planned: Vec<Planned>, now: Timestamp) -> store::Result<bool> {
        let firings = planned.iter().map(|planned| planned.firing.clone()).collect();
        match self.store.fire(epoch, firings).await {
            Ok(Some(fired)) => Ok(self.note_fired(&planned, &fired, now)),
            Ok(None) => Ok(false),
            // One tenant's quota must not keep the others': each by itself, and whoever has no room misses this time.
            Err(store::Error::QuotaExceeded(_)) => {
                let mut any = false;
                for mut planned in planned {
                    let firing = &mut planned.firing;
                    let fired = match self.store.fire(epoch, vec![firing.clone()]).await {
                        Err(store::Error::QuotaExceeded(quota)) => {
                            tracing::warn!(schedule = firing.name, tenant = %firing.tenant, "not started: {quota}");
                            (firing.jobs, firing.last_at) = (Vec::new(), None);
                            planned.skipped = true;
                            self.store.fire(epoch, vec![planned.firing.clone()]).await?
                        }
                        fired => fired?,
                    };
                    let Some(fired) = fired else { return Ok(false) };
                    any |= self.note_fired(&[planned], &fired, now);
                }
                Ok(any)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether any was fired.
    fn note_fired(&self, planned: &[Planned], fired: &[Fired], now: Timestamp) -> bool {
        let (mut any, mut stored) = (false, false);
        let mut totals = self.chores.cron.lock();
        for (Planned { firing, skipped }, fired) in planned.iter().zip(fired) {
            if let Fired::Stored(jobs) = fired {
                any = true;
                totals.missed += u64::from(*skipped);
                let new = firing.jobs.iter().zip(jobs).filter(|(_, stored)| !stored.duplicate);
                for nominal in new.filter_map(|(job, _)| job.spec.nominal_at) {
                    stored = true;
                    totals.fired += 1;
                    totals.late.record(now.since(nominal));
                }
                tracing::debug!(schedule = firing.name, tenant = %firing.tenant, jobs = jobs.len(), "fired a schedule");
            }
        }
        drop(totals);
        if stored {
            self.jobs_are_ready();
        }
        any
    }

    /// What a due schedule starts. One that cannot be read or computed starts nothing and is not due again, so that it
    /// does not hold up the others.
    async fn firing(&self, record: &ScheduleRecord, now: Timestamp) -> Planned {
        let due = record.next_at.unwrap_or(now);
        let mut firing = Firing {
            tenant: record.tenant,
            name: record.name.clone(),
            version: record.version,
            due,
            last_at: None,
            next_at: None,
            jobs: Vec::new(),
        };
        match self.planned(record, due, now).await {
            Ok((plan, jobs)) => {
                firing.last_at = plan.fire.last().copied();
                firing.next_at = plan.next;
                firing.jobs = jobs;
                Planned { firing, skipped: plan.skipped }
            }
            Err(error) => {
                tracing::error!(schedule = record.name, tenant = %record.tenant, %error, "a schedule cannot fire");
                Planned { firing, skipped: true }
            }
        }
    }

    async fn planned(
        &self,
        record: &ScheduleRecord,
        due: Timestamp,
        now: Timestamp,
    ) -> Result<(Plan, Vec<NewJob>), Error> {
        let schedule = self.schedule_of(record).await?;
        let planned = plan(&schedule.calendar(due - Duration::from_secs(1))?, schedule.missed, due, now);
        if planned.skipped {
            tracing::warn!(schedule = record.name, tenant = %record.tenant, "a schedule has missed times that it skips");
        }
        let registered = self.registry.get(&schedule.handler);
        let queue = registered.map_or(DEFAULT_QUEUE, |registered| registered.queue(&schedule.handler));
        let part = SchedulePart { id: record.id, tenant: record.tenant, queue, limits: &self.config.limits };
        let sealer = self.seals.sealer(record.tenant).await?;
        let mut jobs = Vec::with_capacity(planned.fire.len());
        for nominal in &planned.fire {
            let mut job = schedule.job(&part, self.next_id(), *nominal, now)?;
            if let Some(sealer) = &sealer {
                sealer.seal_new(&mut job);
            }
            jobs.push(job);
        }
        Ok((planned, jobs))
    }

    /// The schedule of a record, with its input opened.
    pub(crate) async fn schedule_of(&self, record: &ScheduleRecord) -> Result<Schedule, Error> {
        let unreadable = |error| store::Error::Internal(format!("schedule {} cannot be read: {error}", record.name));
        let mut schedule: Schedule = record.spec.decode().map_err(unreadable)?;
        schedule.name.clone_from(&record.name);
        schedule.input = match record.sealed {
            true => self.seals.open(record.tenant, record.id, Kind::Schedule, &record.input).await?,
            false => record.input.clone(),
        };
        Ok(schedule)
    }
}
