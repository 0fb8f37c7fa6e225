//! Where a ready chunk stands in its queue, so that one tenant's million jobs do not hold up another tenant's one.
//! Start-time fair queueing: a position counts jobs; each tenant's chunks follow one another by their size, and
//! a tenant with nothing waiting starts where service is now. Claims just take the lowest positions. Pure; each store
//! keeps one, and losing it costs fairness for a moment, never a job.

use foldhash::HashMap;

use crate::model::priority::Priority;
use crate::model::tenant::TenantId;
use crate::quota::Quotas;

/// A line of chunks that are served in order of position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// The queue.
    pub queue: String,
    /// The priority within it.
    pub priority: Priority,
}

/// Positions of all lines.
#[derive(Debug, Default)]
pub struct Positions {
    lines: HashMap<Line, LineState>,
    shares: Shares,
}

/// How many jobs of a tenant share one position: a tenant of weight 4 gets four turns for another's one.
#[derive(Clone, Debug, Default)]
struct Shares {
    default: Option<u32>,
    own: HashMap<TenantId, u32>,
}

impl Shares {
    fn of(&self, tenant: TenantId) -> i64 {
        if self.own.is_empty() && self.default.is_none() {
            return 1;
        }
        self.own.get(&tenant).copied().or(self.default).unwrap_or(1).max(1).into()
    }
}

#[derive(Debug, Default)]
struct LineState {
    served: i64,
    /// Where each tenant's next chunk stands; only tenants that are ahead of service.
    next: HashMap<TenantId, i64>,
    /// Jobs that share a position with the next one, of tenants that have more than one turn.
    sharing: HashMap<TenantId, i64>,
}

/// Tenants remembered per line before those that have been served are dropped.
const REMEMBERED_TENANTS: usize = 10_000;

/// No position is beyond it: more jobs than there will ever be, and what is added to it still fits. A row of the store may
/// say anything, and whoever is placed behind it is placed here at the latest.
const FARTHEST: i64 = 1 << 62;

impl Positions {
    /// The position of a new chunk of `jobs` jobs.
    pub fn place(&mut self, line: &Line, tenant: TenantId, jobs: usize) -> i64 {
        let share = self.shares.of(tenant);
        let state = self.state(line);
        let planned = state.next.get(&tenant).copied().unwrap_or(0);
        let at = planned.max(state.served);
        let mut places = count(jobs);
        if share > 1 {
            // What has been served no longer shares.
            let sharing = if planned < at { 0 } else { state.sharing.get(&tenant).copied().unwrap_or(0) };
            places = places.saturating_add(sharing);
            state.sharing.insert(tenant, places % share);
            places /= share;
        }
        state.next.insert(tenant, at.saturating_add(places).min(FARTHEST));
        if state.next.len() > REMEMBERED_TENANTS {
            let served = state.served;
            state.next.retain(|_, next| *next > served);
            let LineState { next, sharing, .. } = state;
            sharing.retain(|tenant, _| next.contains_key(tenant));
        }
        at
    }

    /// Takes note of the tenants' shares. What has a position keeps it.
    pub fn set_shares(&mut self, quotas: &Quotas) {
        self.shares = Shares {
            default: quotas.default.as_ref().and_then(|quota| quota.weight),
            own: quotas.own.iter().map(|(tenant, quota)| (*tenant, quota.weight.unwrap_or(1))).collect(),
        };
    }

    /// The position of a chunk that goes in front, because its jobs have waited before.
    pub fn front(&mut self, line: &Line) -> i64 {
        self.state(line).served
    }

    /// Takes note that service has reached `position`.
    pub fn served(&mut self, line: &Line, position: i64) {
        let state = self.state(line);
        state.served = state.served.max(position.min(FARTHEST));
    }

    /// Takes note of a chunk found in the store: where service is no later than, and where its tenant's next one goes.
    pub fn seen(&mut self, line: &Line, tenant: TenantId, position: i64, jobs: usize) {
        let next = self.state(line).next.entry(tenant).or_insert(0);
        *next = (*next).max(position.saturating_add(count(jobs)).min(FARTHEST));
    }

    /// How far service has come in each line.
    pub fn lines(&self) -> impl Iterator<Item = (&Line, i64)> {
        self.lines.iter().map(|(line, state)| (line, state.served))
    }

    /// Tenants that are more than `ahead` jobs ahead of service in a line, with where their next chunk goes.
    pub fn far_ahead(&self, line: &Line, ahead: i64) -> Vec<(TenantId, i64)> {
        let Some(state) = self.lines.get(line) else { return Vec::new() };
        let far = state.next.iter().filter(|(_, next)| next.saturating_sub(state.served) > ahead);
        far.map(|(tenant, next)| (*tenant, *next)).collect()
    }

    fn state(&mut self, line: &Line) -> &mut LineState {
        if !self.lines.contains_key(line) {
            self.lines.insert(line.clone(), LineState::default());
        }
        self.lines.get_mut(line).expect("just inserted")
    }
}

fn count(jobs: usize) -> i64 {
    i64::try_from(jobs).unwrap_or(FARTHEST)
}

/// Whether a tenant that has `own` of some `places` may take one more while others have `others`: it may have at most half
/// of what they leave, and always one if there is any. So whatever one tenant takes, there is room for the next. Pure.
pub fn may_enter(own: usize, others: usize, places: usize) -> bool {
    let left = places.saturating_sub(others);
    own < left && own < (left / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn line() -> Line {
        Line { queue: "default".into(), priority: Priority::NORMAL }
    }

    fn tenant(n: u128) -> TenantId {
        TenantId(Uuid::from_u128(n))
    }

    #[test]
    fn one_tenant_is_served_in_order() {
        let mut positions = Positions::default();
        let at: Vec<i64> = (0..4).map(|_| positions.place(&line(), tenant(1), 128)).collect();
        assert_eq!(at, [0, 128, 256, 384]);
    }

    #[test]
    fn a_light_tenant_starts_where_service_is() {
        let mut positions = Positions::default();
        for _ in 0..1_000 {
            positions.place(&line(), tenant(1), 128);
        }
        positions.served(&line(), 512);
        assert_eq!(positions.place(&line(), tenant(2), 1), 512);
        assert_eq!(positions.place(&line(), tenant(1), 1), 128_000, "the heavy one stays behind its own work");
    }

    #[test]
    fn a_share_of_four_gets_four_turns_for_one() {
        let mut positions = Positions::default();
        let mut quotas = Quotas::default();
        quotas.own.insert(tenant(1), crate::quota::Quota::new().weight(4));
        positions.set_shares(&quotas);
        let heavy: Vec<i64> = (0..8).map(|_| positions.place(&line(), tenant(1), 1)).collect();
        let light: Vec<i64> = (0..2).map(|_| positions.place(&line(), tenant(2), 1)).collect();
        assert_eq!((heavy, light), (vec![0, 0, 0, 0, 1, 1, 1, 1], vec![0, 1]));
        assert_eq!(positions.place(&line(), tenant(1), 128), 2);
        assert_eq!(positions.place(&line(), tenant(1), 128), 34, "a chunk of 128 takes 32 positions");
        positions.served(&line(), 1_000);
        assert_eq!(positions.place(&line(), tenant(1), 1), 1_000);
    }

    #[test]
    fn credit_is_not_saved_up_while_idle() {
        let mut positions = Positions::default();
        positions.place(&line(), tenant(1), 1);
        positions.served(&line(), 10_000);
        assert_eq!(positions.place(&line(), tenant(1), 1), 10_000);
    }

    #[test]
    fn a_position_at_the_end_of_numbers_stops_nobody() {
        for position in [i64::MAX, FARTHEST, i64::MIN] {
            let mut positions = Positions::default();
            let mut quotas = Quotas::default();
            quotas.own.insert(tenant(2), crate::quota::Quota::new().weight(u32::MAX));
            positions.set_shares(&quotas);
            positions.seen(&line(), tenant(1), position, usize::MAX);
            positions.seen(&line(), tenant(2), position, 1);
            positions.served(&line(), position);
            for tenant in [tenant(1), tenant(2), tenant(3)] {
                for _ in 0..3 {
                    assert!((0..=FARTHEST).contains(&positions.place(&line(), tenant, usize::MAX)), "{position}");
                }
            }
            assert!((0..=FARTHEST).contains(&positions.front(&line())), "{position}");
            positions.far_ahead(&line(), 128);
        }
    }
}
