//! Idempotency, unique and ordering keys of the memory store.

use super::entry::{Job, KeyOf, Place, UniqueHolder};
use super::index::OrderingKey;
use super::{Join, State};
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::UniqueWithin;
use crate::model::tenant::TenantId;

impl State {
    /// The job that has an idempotency or unique key of `job`.
    pub(super) fn holder_of_keys(&self, job: &Job, now: Timestamp) -> Option<JobId> {
        self.idempotency_holder(job, now).or_else(|| self.unique_holder(job, now))
    }

    pub(super) fn idempotency_holder(&self, job: &Job, now: Timestamp) -> Option<JobId> {
        let key = job.idempotency_key()?;
        let holder = *self.idempotency.get(&key)?;
        self.jobs.get(&holder).is_some_and(|entry| !entry.is_hidden(now)).then_some(holder)
    }

    pub(super) fn unique_holder(&self, job: &Job, now: Timestamp) -> Option<JobId> {
        let holder = self.unique.get(&job.unique_key()?)?;
        let holds = match holder.until {
            Some(until) => now < until,
            None => self.jobs.get(&holder.id).is_some_and(|entry| !entry.status().is_terminal()),
        };
        holds.then_some(holder.id)
    }

    pub(super) fn take_keys(&mut self, job: &Job, now: Timestamp) {
        if let Some(key) = job.idempotency_key() {
            self.idempotency.insert(key, job.id);
        }
        if let (Some(key), Some(unique)) = (job.unique_key(), job.unique()) {
            let until = match unique.within {
                UniqueWithin::Unfinished => None,
                UniqueWithin::Window(window) => Some(now + window),
            };
            self.unique.insert(key, UniqueHolder { id: job.id, until });
        }
    }

    /// Frees the keys of a job that is removed. A window outlives its job.
    pub(super) fn free_keys(&mut self, job: &Job, now: Timestamp) {
        if let Some(key) = job.idempotency_key()
            && self.idempotency.get(&key) == Some(&job.id)
        {
            self.idempotency.remove(&key);
        }
        if let Some(key) = job.unique_key()
            && let Some(holder) = self.unique.get(&key).filter(|holder| holder.id == job.id)
        {
            match holder.until {
                Some(until) if now < until => {
                    self.unique_orphans.insert((until, job.id), key);
                }
                _ => {
                    self.unique.remove(&key);
                }
            }
        }
    }

    /// Lets a job hold an ordering key if nobody else does.
    pub(super) fn take_ordering_key(&mut self, tenant: TenantId, key: &str, id: JobId) -> bool {
        let new = || OrderingKey { holder: id, waiting: Default::default() };
        self.index.ordering.entry((tenant, key.to_owned())).or_insert_with(new).holder == id
    }

    /// Gives the ordering key that `ended` held to the next job by arrival.
    pub(super) fn pass_on(&mut self, key: KeyOf, ended: JobId, now: Timestamp) {
        loop {
            let Some(line) = self.index.ordering.get_mut(&key).filter(|line| line.holder == ended) else { return };
            let Some((_, next)) = line.waiting.pop_first() else {
                self.index.ordering.remove(&key);
                return;
            };
            // A job may have been parked behind a key that is not its own: it goes on without holding it.
            let holds = self.jobs.get(&next).is_some_and(|entry| entry.job.ordering_key() == Some(&key.1));
            if holds {
                line.holder = next;
            }
            self.unblock(next, now);
            if holds {
                return;
            }
        }
    }

    /// Makes a job ready whose gate has opened, or scheduled if its time has not come.
    pub(super) fn unblock(&mut self, id: JobId, now: Timestamp) {
        match self.jobs.get(&id).and_then(|entry| entry.run_at).filter(|at| *at > now) {
            Some(at) => self.relocate(id, Place::Scheduled { at, retrying: false }),
            None => self.make_ready(id, Join::Turn, now),
        }
    }
}
