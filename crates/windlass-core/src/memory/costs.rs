//! What jobs have cost, as the memory store keeps it: sums by day, and each record for a while. Used by `memory` for
//! finishes that carry a cost and for operators' records. Knows nothing of jobs but their names.

use std::collections::{BTreeMap, VecDeque};

use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::tenant::{Scope, TenantId};
use crate::operate::usage::{Cost, USAGE_EVENTS_KEPT, USAGE_KEPT, UsageEvent, UsageRow, day_of};

/// Every cost there is.
#[derive(Debug, Default)]
pub(super) struct Costs {
    /// By day, tenant and handler.
    by_day: BTreeMap<(String, TenantId, String), Sum>,
    events: VecDeque<UsageEvent>,
    recorded: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    jobs: u64,
    cents: i64,
    units: i64,
}

impl Costs {
    /// Records a cost. `ended` says that it came with the end of its job.
    pub(super) fn add(&mut self, tenant: TenantId, handler: &str, job: JobId, cost: Cost, ended: bool, at: Timestamp) {
        let Cost { cents, units } = cost;
        let sum = self.by_day.entry((day_of(at), tenant, handler.to_owned())).or_default();
        sum.jobs += u64::from(ended);
        sum.cents = sum.cents.saturating_add(cents);
        sum.units = sum.units.saturating_add(units);
        self.recorded += 1;
        let sequence = self.recorded;
        self.events.push_back(UsageEvent { sequence, job, tenant, handler: handler.to_owned(), cents, units, at });
    }

    pub(super) fn by_day(&self, scope: Scope, from: &str, to: &str) -> Vec<UsageRow> {
        let within = |day: &str| from <= day && day <= to;
        let rows = self.by_day.iter().filter(|((day, tenant, _), _)| within(day) && scope.covers(*tenant));
        let row = |((day, tenant, handler), sum): (&(String, TenantId, String), &Sum)| UsageRow {
            tenant: *tenant,
            handler: handler.clone(),
            day: day.clone(),
            jobs: sum.jobs,
            cents: sum.cents,
            units: sum.units,
        };
        rows.map(row).collect()
    }

    pub(super) fn events(&self, scope: Scope, after: u64, limit: usize) -> Vec<UsageEvent> {
        let wanted = self.events.iter().filter(|event| event.sequence > after && scope.covers(event.tenant));
        wanted.take(limit).cloned().collect()
    }

    /// Forgets what is too old, at most `limit` of each.
    pub(super) fn clean(&mut self, limit: usize, now: Timestamp) {
        for _ in 0..limit {
            if self.events.front().is_none_or(|event| event.at + USAGE_EVENTS_KEPT > now) {
                break;
            }
            self.events.pop_front();
        }
        let oldest = day_of(now - USAGE_KEPT);
        for _ in 0..limit {
            if self.by_day.first_key_value().is_none_or(|((day, ..), _)| *day >= oldest) {
                break;
            }
            self.by_day.pop_first();
        }
    }
}
