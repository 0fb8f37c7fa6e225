//! Paced replay of dead letters (ERR-4, BEY-2): so many first, so many per second, and a stop when too many fail again.
//! Called by the service's users; built from its public calls.

use std::time::Duration;

use crate::error::Error;
use crate::id::JobId;
use crate::job::{JobFilter, Page, Status};
use crate::service::JobService;
use crate::tenant::SecurityContext;

/// How fast dead letters are replayed, and when to stop.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Pace {
    /// At most so many in all.
    pub limit: usize,
    /// So many per second; `None` means as fast as they can be stored.
    pub per_second: Option<f64>,
    /// Stop when more than this part of those that have ended failed again, 0 to 1.
    pub max_failing: f64,
    /// Judge only once so many have ended.
    pub judge_after: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { limit: 1_000, per_second: None, max_failing: 1.0, judge_after: 5 }
    }
}

impl Pace {
    /// At most `limit` dead letters.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// So many per second.
    #[must_use]
    pub fn per_second(mut self, rate: f64) -> Self {
        self.per_second = (rate.is_finite() && rate > 0.0).then_some(rate);
        self
    }

    /// Stops when more than this part fails again, judged once `after` have ended.
    #[must_use]
    pub fn stop_when_failing(mut self, part: f64, after: usize) -> Self {
        self.max_failing = part.clamp(0.0, 1.0);
        self.judge_after = after.max(1);
        self
    }
}

/// What a replay of many did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Dead letters put back to work.
    pub replayed: Vec<JobId>,
    /// Of those, how many have failed again so far.
    pub failed_again: usize,
    /// Whether it stopped because too many failed again.
    pub stopped: bool,
}

impl JobService {
    /// Replays the caller's dead letters that pass `filter`, oldest page last, at the given pace.
    pub async fn replay_many(
        &self,
        ctx: &SecurityContext,
        filter: &JobFilter,
        pace: Pace,
    ) -> Result<ReplayReport, Error> {
        let mut report = ReplayReport::default();
        let mut page = Page::first(Page::MAX.min(pace.limit.max(1)));
        let mut ticks = pace.per_second.map(|rate| tokio::time::interval(Duration::from_secs_f64(1.0 / rate)));
        while report.replayed.len() < pace.limit {
            let letters = self.dead_letters(ctx, filter.clone(), page).await?;
            let Some(last) = letters.last() else { break };
            page = page.after(last.id);
            for letter in letters {
                if report.replayed.len() >= pace.limit {
                    break;
                }
                if let Some(ticks) = &mut ticks {
                    ticks.tick().await;
                }
                if self.too_many_fail(ctx, &pace, &mut report).await? {
                    report.stopped = true;
                    return Ok(report);
                }
                match self.replay(ctx, letter.id).await {
                    Ok(()) => report.replayed.push(letter.id),
                    // Somebody else replayed or purged it meanwhile.
                    Err(Error::Conflict { .. } | Error::NotFound(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.too_many_fail(ctx, &pace, &mut report).await?;
        Ok(report)
    }

    async fn too_many_fail(
        &self,
        ctx: &SecurityContext,
        pace: &Pace,
        report: &mut ReplayReport,
    ) -> Result<bool, Error> {
        if pace.max_failing >= 1.0 {
            return Ok(false);
        }
        let (mut ended, mut failed) = (0, 0);
        for ids in report.replayed.chunks(Page::MAX) {
            for record in self.store().get(ctx.scope(), ids).await? {
                ended += usize::from(record.status.is_terminal() || record.status == Status::Retrying);
                failed += usize::from(matches!(record.status, Status::DeadLettered | Status::Retrying));
            }
        }
        report.failed_again = failed;
        Ok(ended >= pace.judge_after && failed as f64 > pace.max_failing * ended as f64)
    }
}
