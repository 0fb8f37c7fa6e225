//! What jobs cost: handlers and operators record it, stores add it up by tenant, handler and day, and keep each
//! record for a while as a feed for other systems. Never decides what anything costs.

use serde::{Deserialize, Serialize};

use crate::model::clock::Timestamp;
use crate::model::error::{Error, InvalidInput};
use crate::model::id::JobId;
use crate::model::tenant::{SecurityContext, TenantId};
use crate::operate::within::Within;
use crate::service::JobService;

/// What a job has cost. Both may be negative: a refund.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Money, in hundredths.
    pub cents: i64,
    /// Anything else that is counted: tokens, pages, seconds.
    pub units: i64,
}

impl Cost {
    /// The most that one attempt or one operator records, either way; what is more is cut. So that sums of many fit.
    pub const MAX: i64 = 1_000_000_000_000;

    /// So many cents and units.
    pub fn new(cents: i64, units: i64) -> Self {
        Cost { cents, units }.bounded()
    }

    /// Both costs together.
    #[must_use]
    pub fn plus(self, other: Cost) -> Self {
        let cents = self.cents.saturating_add(other.cents);
        Cost { cents, units: self.units.saturating_add(other.units) }.bounded()
    }

    /// Whether cents and units are both 0.
    pub fn is_zero(&self) -> bool {
        *self == Cost::default()
    }

    fn bounded(self) -> Self {
        let bound = |n: i64| n.clamp(-Cost::MAX, Cost::MAX);
        Cost { cents: bound(self.cents), units: bound(self.units) }
    }
}

/// For people: `12.50, 3 units`.
impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, cents) = (if self.cents < 0 { "-" } else { "" }, self.cents.unsigned_abs());
        match (self.cents, self.units) {
            (0, units) if units != 0 => write!(f, "{units} units"),
            (_, 0) => write!(f, "{sign}{}.{:02}", cents / 100, cents % 100),
            (_, units) => write!(f, "{sign}{}.{:02}, {units} units", cents / 100, cents % 100),
        }
    }
}

/// What the jobs of one tenant and handler have cost on one day, by the store's clock in UTC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// Whose jobs.
    pub tenant: TenantId,
    /// Their handler.
    pub handler: String,
    /// The day, as `2026-11-16`.
    pub day: String,
    /// Jobs that ended on that day with a cost.
    pub jobs: u64,
    /// The sum of cents, of attempts that did not end their job and of operators' records, too.
    pub cents: i64,
    /// The sum of units.
    pub units: i64,
}

/// One cost that was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageEvent {
    /// Rises from one to the next, so that a reader can go on where it stopped and misses nothing.
    pub sequence: u64,
    /// The job.
    pub job: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What ran it.
    pub handler: String,
    /// Cents.
    pub cents: i64,
    /// Units.
    pub units: i64,
    /// When it was recorded.
    pub at: Timestamp,
}

/// How long usage events are kept: long enough for another system to be down for weeks.
pub const USAGE_EVENTS_KEPT: std::time::Duration = std::time::Duration::from_secs(90 * 24 * 60 * 60);

/// How long daily sums are kept: two years and a bit, for whoever compares a month with that of the year before.
pub const USAGE_KEPT: std::time::Duration = std::time::Duration::from_secs(800 * 24 * 60 * 60);

/// Usage events in one answer at most.
pub const USAGE_PAGE: usize = 1_000;

/// Days in one answer at most: all that are kept.
const USAGE_DAYS: u64 = USAGE_KEPT.as_secs() / (24 * 60 * 60);

/// The day of a time, in UTC.
pub fn day_of(at: Timestamp) -> String {
    let day = at.as_micros().div_euclid(24 * 60 * 60 * 1_000_000);
    // Every time that a store's clock tells has a year of four digits.
    Timestamp::from_micros(day.saturating_mul(24 * 60 * 60 * 1_000_000)).to_string().chars().take(10).collect()
}

impl JobService {
    /// Records what a job has cost, whatever its status: for costs that are known later than its attempts. Audited as
    /// `COST_RECORDED`.
    pub async fn record_cost(&self, ctx: &SecurityContext, id: JobId, cost: Cost) -> Result<(), Error> {
        if cost.is_zero() {
            return Err(InvalidInput::new("cost", "cents and units are both 0").into());
        }
        match self.worker().store.record_cost(ctx.scope(), id, ctx.actor(), cost.bounded()).await? {
            true => Ok(()),
            false => Err(Error::NotFound(id)),
        }
    }

    /// What the caller's jobs have cost from the day of `from` to that of `to`, by day and handler.
    pub async fn usage_by_day(
        &self,
        ctx: &SecurityContext,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<UsageRow>, Error> {
        self.within(ctx.scope()).usage_by_day(from, to).await
    }

    /// The caller's costs one by one, those after `after` only, at most `limit` ([`USAGE_PAGE`]): a feed for other
    /// systems. Kept for 90 days.
    pub async fn usage_events(
        &self,
        ctx: &SecurityContext,
        after: u64,
        limit: usize,
    ) -> Result<Vec<UsageEvent>, Error> {
        self.within(ctx.scope()).usage_events(after, limit).await
    }
}

impl Within {
    /// What the jobs of the scope have cost from the day of `from` to that of `to`, by day and handler.
    pub async fn usage_by_day(&self, from: Timestamp, to: Timestamp) -> Result<Vec<UsageRow>, Error> {
        if to < from || to.since(from).as_secs() / (24 * 60 * 60) > USAGE_DAYS {
            return Err(InvalidInput::new("to", format!("must be 0 to {USAGE_DAYS} days after `from`")).into());
        }
        Ok(self.store().usage_by_day(self.scope(), &day_of(from), &day_of(to)).await?)
    }

    /// The costs of the scope one by one, as [`JobService::usage_events`].
    pub async fn usage_events(&self, after: u64, limit: usize) -> Result<Vec<UsageEvent>, Error> {
        Ok(self.store().usage_events(self.scope(), after, limit.clamp(1, USAGE_PAGE)).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_that_of_utc() {
        let check = |time: &str, day: &str| assert_eq!(day_of(Timestamp::parse(time).expect("a time")), day);
        check("2026-11-16T00:00:00Z", "2026-11-16");
        check("2026-11-16T23:59:59.999999Z", "2026-11-16");
        check("2026-11-17T00:30:00+02:00", "2026-11-16");
        check("1969-12-31T23:00:00Z", "1969-12-31");
    }

    #[test]
    fn costs_add_up_within_their_bounds() {
        assert_eq!(Cost::new(3, 5).plus(Cost::new(-1, 2)), Cost { cents: 2, units: 7 });
        let much = Cost::new(i64::MAX, i64::MIN);
        assert_eq!(much.plus(much), Cost { cents: Cost::MAX, units: -Cost::MAX });
        assert!(Cost::new(1, 1).plus(Cost::new(-1, -1)).is_zero());
    }
}
