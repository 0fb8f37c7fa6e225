//! The lines of ready jobs of the memory store: per queue, by priority, then by position, then by id. Used by `memory`
//! for every job that becomes ready or is claimed. Knows ids and positions only, never the jobs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use crate::fair::{Line, Positions};
use crate::model::id::JobId;
use crate::model::priority::{Band, Priority};
use crate::model::tenant::TenantId;
use crate::quota::Quotas;
use crate::store::WaitingQueue;

/// Every ready job.
#[derive(Debug, Default)]
pub(super) struct Ready {
    queues: HashMap<String, BTreeMap<Reverse<Priority>, ReadyLine>>,
    positions: Positions,
}

/// The ready jobs of one queue and priority.
#[derive(Debug)]
struct ReadyLine {
    line: Line,
    jobs: BTreeSet<(i64, JobId)>,
}

impl Ready {
    /// Where `jobs` more jobs of `tenant` stand: in the tenant's turn, the first at the position returned, each other
    /// one behind the one before.
    pub(super) fn turn(&mut self, queue: &str, priority: Priority, tenant: TenantId, jobs: usize) -> i64 {
        let line = line_of(&mut self.queues, queue, priority);
        self.positions.place(&line.line, tenant, jobs)
    }

    /// Where a job stands that has waited before.
    pub(super) fn front(&mut self, queue: &str, priority: Priority) -> i64 {
        let line = line_of(&mut self.queues, queue, priority);
        self.positions.front(&line.line)
    }

    /// Adds jobs at consecutive positions.
    pub(super) fn insert(&mut self, queue: &str, priority: Priority, position: i64, ids: impl Iterator<Item = JobId>) {
        let line = line_of(&mut self.queues, queue, priority);
        line.jobs.extend((position..).zip(ids));
    }

    /// Takes a job out of its line.
    pub(super) fn remove(&mut self, queue: &str, priority: Priority, position: i64, id: JobId) {
        let Some(lines) = self.queues.get_mut(queue) else { return };
        let Some(line) = lines.get_mut(&Reverse(priority)) else { return };
        line.jobs.remove(&(position, id));
        if line.jobs.is_empty() {
            lines.remove(&Reverse(priority));
        }
    }

    /// Takes note of the tenants' shares.
    pub(super) fn set_shares(&mut self, quotas: &Quotas) {
        self.positions.set_shares(quotas);
    }

    /// The same as `take`, passing over the jobs that `may` refuses. Without `in_turn`, those passed over keep their turn:
    /// service has not come further because of what was taken.
    pub(super) fn take_allowed(
        &mut self,
        queue: &str,
        band: Band,
        max: usize,
        taken: &mut Vec<JobId>,
        in_turn: bool,
        mut may: impl FnMut(JobId) -> bool,
    ) -> usize {
        let Some(lines) = self.queues.get_mut(queue) else { return 0 };
        let mut left = max;
        for line in lines.iter_mut().filter(|(priority, _)| priority.0.band() == band).map(|(_, line)| line) {
            let allowed: Vec<(i64, JobId)> = line.jobs.iter().filter(|(_, id)| may(*id)).take(left).copied().collect();
            left -= allowed.len();
            for (position, id) in allowed {
                line.jobs.remove(&(position, id));
                if in_turn {
                    self.positions.served(&line.line, position);
                }
                taken.push(id);
            }
        }
        lines.retain(|_, line| !line.jobs.is_empty());
        max - left
    }

    /// Takes the first jobs of a band out of a queue, at most `max`.
    pub(super) fn take(&mut self, queue: &str, band: Band, max: usize, taken: &mut Vec<JobId>) -> usize {
        let Some(lines) = self.queues.get_mut(queue) else { return 0 };
        let mut left = max;
        let mut emptied = false;
        for (priority, line) in lines.iter_mut() {
            if left == 0 || priority.0.band() > band {
                break;
            }
            if priority.0.band() < band {
                continue;
            }
            let mut reached = None;
            while left > 0 {
                let Some((position, id)) = line.jobs.pop_first() else { break };
                reached = Some(position);
                taken.push(id);
                left -= 1;
            }
            if let Some(position) = reached {
                self.positions.served(&line.line, position);
            }
            emptied |= line.jobs.is_empty();
        }
        if emptied {
            lines.retain(|_, line| !line.jobs.is_empty());
        }
        max - left
    }

    /// Which bands have jobs in a queue that `may` allows.
    pub(super) fn bands(&self, queue: &str, may: impl Fn(JobId) -> bool) -> [bool; 4] {
        let mut bands = [false; 4];
        for (priority, line) in self.queues.get(queue).into_iter().flatten() {
            bands[priority.0.band().index()] |= line.jobs.iter().any(|(_, id)| may(*id));
        }
        bands
    }

    /// Each queue that has jobs, with the oldest of those that stand first.
    pub(super) fn oldest(&self) -> Vec<WaitingQueue> {
        let oldest =
            |lines: &BTreeMap<_, ReadyLine>| lines.values().filter_map(|l| l.jobs.first()).map(|(_, id)| *id).min();
        self.queues
            .iter()
            .filter_map(|(queue, lines)| Some(WaitingQueue { queue: queue.clone(), oldest: oldest(lines)? }))
            .collect()
    }

    /// Each line with its queue, its length and some of its jobs, at most `each`, the first included.
    pub(super) fn samples(&self, each: usize) -> impl Iterator<Item = (&str, usize, Vec<JobId>)> {
        self.queues.iter().flat_map(move |(queue, lines)| {
            lines.values().map(move |line| {
                let every = line.jobs.len() / each.max(1) + 1;
                (queue.as_str(), line.jobs.len(), line.jobs.iter().step_by(every).map(|(_, id)| *id).collect())
            })
        })
    }

    /// How many jobs of its queue stand before a job.
    pub(super) fn ahead(&self, queue: &str, priority: Priority, position: i64, id: JobId) -> u64 {
        let Some(lines) = self.queues.get(queue) else { return 0 };
        let urgent: usize = lines.range(..Reverse(priority)).map(|(_, line)| line.jobs.len()).sum();
        let same = lines.get(&Reverse(priority)).map_or(0, |line| line.jobs.range(..(position, id)).count());
        (urgent + same) as u64
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queues.values().flat_map(|lines| lines.values()).map(|line| line.jobs.len()).sum()
    }
}

fn line_of<'a>(
    queues: &'a mut HashMap<String, BTreeMap<Reverse<Priority>, ReadyLine>>,
    queue: &str,
    priority: Priority,
) -> &'a mut ReadyLine {
    if !queues.contains_key(queue) {
        queues.insert(queue.to_owned(), BTreeMap::new());
    }
    let lines = queues.get_mut(queue).expect("just inserted");
    lines
        .entry(Reverse(priority))
        .or_insert_with(|| ReadyLine { line: Line { queue: queue.to_owned(), priority }, jobs: BTreeSet::new() })
}
