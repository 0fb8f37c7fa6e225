//! What the memory store keeps of the past, and what it can say of the jobs that wait: buckets of counts for charts,
//! backlogs by handler. Called by `memory` with its state locked. Moves no job.

use std::collections::BTreeMap;
use std::time::Duration;

use foldhash::HashMap;

use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::Status;
use crate::model::tenant::{Scope, TenantId};
use crate::operate::activity::{Addition, BLOCKED_LOOKED_AT, Resolution, Slice, Sums, Waiting};
use crate::operate::health::DEAD_LETTERS_COUNTED;
use crate::store::Counts;

use super::State;
use super::entry::{Entry, Place};

/// Buckets of counts.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// Under no tenant: those of all together.
    sums: BTreeMap<(Resolution, Timestamp, Option<TenantId>, String), Sums>,
    depths: BTreeMap<(Resolution, Timestamp), Counts>,
}

impl Past {
    pub(super) fn add(&mut self, at: Timestamp, additions: Vec<Addition>) {
        for Addition { tenant, handler, sums } in additions {
            for resolution in Resolution::ALL {
                let key = (resolution, resolution.bucket(at), tenant, handler.clone());
                self.sums.entry(key).or_default().merge(&sums);
            }
        }
    }

    pub(super) fn slices(&self, scope: Scope, resolution: Resolution, from: Timestamp) -> Vec<Slice> {
        let of_resolution =
            self.sums.range((resolution, from, None, String::new())..).take_while(|(key, _)| key.0 == resolution);
        let wanted = of_resolution.filter(|((_, _, tenant, _), _)| *tenant == scope.tenant());
        wanted
            .map(|((_, at, _, handler), sums)| Slice { at: *at, handler: handler.clone(), sums: sums.clone() })
            .collect()
    }

    /// Keeps the counts for buckets that have none yet.
    pub(super) fn sample(&mut self, now: Timestamp, counts: Counts) {
        for resolution in Resolution::ALL {
            self.depths.entry((resolution, resolution.bucket(now))).or_insert(counts);
        }
    }

    pub(super) fn depths(&self, resolution: Resolution, from: Timestamp) -> Vec<(Timestamp, Counts)> {
        let of_resolution = self.depths.range((resolution, from)..).take_while(|((own, _), _)| *own == resolution);
        of_resolution.map(|((_, at), counts)| (*at, *counts)).collect()
    }

    pub(super) fn clean(&mut self, now: Timestamp, limit: usize) -> usize {
        let is_over = |resolution: Resolution, at: Timestamp| at + resolution.keep() < now;
        let sums: Vec<_> =
            self.sums.keys().filter(|(resolution, at, ..)| is_over(*resolution, *at)).take(limit).cloned().collect();
        let depths: Vec<_> = self.depths.keys().filter(|(own, at)| is_over(*own, *at)).take(limit).copied().collect();
        sums.iter().for_each(|key| {
            self.sums.remove(key);
        });
        let room = limit - sums.len();
        depths.iter().take(room).for_each(|key| {
            self.depths.remove(key);
        });
        sums.len() + depths.len().min(room)
    }
}

/// Jobs of a line that are looked at for a backlog; how many of which handler the rest are is told by these.
const LOOKED_AT: usize = 1_000;

impl State {
    pub(super) fn backlog(&self, scope: Scope) -> Vec<Waiting> {
        let mut found: HashMap<(String, String), Waiting> = HashMap::default();
        for (queue, jobs, sample) in self.index.ready.samples(LOOKED_AT) {
            // Each job that is looked at stands for so many.
            let weight = jobs as f64 / sample.len().max(1) as f64;
            let mut of_line: HashMap<&str, (u64, Timestamp)> = HashMap::default();
            for entry in sample.iter().filter_map(|id| self.jobs.get(id)).filter(|e| scope.covers(e.job.tenant)) {
                let seen = of_line.entry(entry.job.handler.as_str()).or_insert((0, entry.ready_at));
                *seen = (seen.0 + 1, seen.1.min(entry.ready_at));
            }
            for (handler, (jobs, since)) in of_line {
                let waiting = waiting_of(&mut found, queue, handler);
                waiting.waiting += (jobs as f64 * weight).round() as u64;
                waiting.since = Some(waiting.since.map_or(since, |known| known.min(since)));
            }
        }
        for (lease, row) in &self.index.leases {
            let held = |id: &JobId| {
                self.jobs.get(id).filter(|e| matches!(e.place, Place::Leased { lease: l, .. } if l == *lease))
            };
            for entry in row.jobs.iter().filter_map(held).filter(|entry| scope.covers(entry.job.tenant)) {
                waiting_of(&mut found, &entry.job.queue, &entry.job.handler).running += 1;
            }
        }
        let behind_keys = self.index.ordering.values().flat_map(|line| line.waiting.iter().map(|(_, id)| id));
        let gated: Vec<&Entry> = self
            .index
            .parked
            .values()
            .flatten()
            .chain(behind_keys)
            .filter_map(|id| self.jobs.get(id))
            .map(Box::as_ref)
            .filter(|entry| scope.covers(entry.job.tenant))
            .collect();
        // Spread over all of them: the first ones would be those of one key or of the oldest handler.
        let every = gated.len() / BLOCKED_LOOKED_AT + 1;
        let weight = gated.len() as f64 / gated.iter().step_by(every).count().max(1) as f64;
        let mut blocked: HashMap<(&str, &str), u64> = HashMap::default();
        for entry in gated.iter().step_by(every) {
            *blocked.entry((&entry.job.queue, &entry.job.handler)).or_default() += 1;
        }
        for ((queue, handler), jobs) in blocked {
            waiting_of(&mut found, queue, handler).blocked += (jobs as f64 * weight).round() as u64;
        }
        found.into_values().collect()
    }

    pub(super) fn dead_letters(&self, now: Timestamp) -> u64 {
        let is_dead = |entry: &Entry| match &entry.place {
            Place::Ended(outcome) => {
                let is_there = outcome.purge_at.is_none_or(|at| at > now);
                outcome.status == Status::DeadLettered && outcome.replayed.is_none() && is_there
            }
            _ => false,
        };
        self.jobs.values().filter(|entry| is_dead(entry)).take(DEAD_LETTERS_COUNTED).count() as u64
    }

    pub(super) fn oldest_due(&self, now: Timestamp) -> Option<Duration> {
        let heads = self.index.ready.oldest();
        let ready = heads.iter().filter_map(|waiting| self.jobs.get(&waiting.oldest)).map(|entry| entry.ready_at);
        let due = self.index.scheduled.first().map(|(at, _)| *at).filter(|at| *at <= now);
        ready.chain(due).min().map(|since| now.since(since))
    }
}

fn waiting_of<'a>(found: &'a mut HashMap<(String, String), Waiting>, queue: &str, handler: &str) -> &'a mut Waiting {
    found.entry((queue.to_owned(), handler.to_owned())).or_insert_with(|| Waiting {
        queue: queue.to_owned(),
        handler: handler.to_owned(),
        waiting: 0,
        since: None,
        blocked: 0,
        running: 0,
    })
}
