//! Paced replay of dead letters: so many first, so many per second, and a stop when too many fail again.
//! Called by the service's users who want to wait for it; the pacing is that of `bulk`.

use crate::model::error::Error;
use crate::model::filter::JobFilter;
use crate::model::id::JobId;
use crate::model::tenant::SecurityContext;
use crate::operate::bulk::{BulkAction, BulkOptions, BulkState};
use crate::service::JobService;

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
    /// Replays the caller's dead letters that pass `filter`, newest first, at the given pace: the bulk action
    /// [`BulkAction::Replay`], waited for.
    pub async fn replay_many(
        &self,
        ctx: &SecurityContext,
        filter: &JobFilter,
        pace: Pace,
    ) -> Result<ReplayReport, Error> {
        let filter = JobFilter { statuses: Vec::new(), ..filter.clone() };
        let (end, replayed) = self.bulk_here(ctx, &filter, BulkAction::Replay, pace.into()).await?;
        let stopped = end.state == BulkState::Stopped;
        Ok(ReplayReport { replayed, failed_again: end.failed_again as usize, stopped })
    }
}

impl From<Pace> for BulkOptions {
    fn from(pace: Pace) -> Self {
        let mut options = BulkOptions::default().cap(pace.limit.clamp(1, BulkOptions::MAX_CAP));
        options.per_second = pace.per_second;
        match pace.max_failing < 1.0 {
            true => options.stop_when_failing(pace.max_failing, pace.judge_after),
            false => options,
        }
    }
}
