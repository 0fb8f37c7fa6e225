//! How many jobs fit: the node's slots, the limits of handlers, and from which queues how many may be taken. Called by
//! `claim`, `run` and the submitter; decides nothing about a job.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Worker;
use crate::config::DEFAULT_QUEUE;

impl Worker {
    /// Takes up to `want` slots.
    pub(crate) fn take_slots(&self, want: usize) -> usize {
        self.slots.take(want)
    }

    /// Gives slots back.
    pub(crate) fn free_slots(&self, slots: usize) {
        if slots > 0 {
            self.slots.give(slots);
            self.freed.notify_one();
        }
    }

    /// Whether nothing is under way: no claim, no leased submit, no attempt that has begun or is about to. Attempts that
    /// were written off do not count; nobody knows when they end.
    pub(crate) fn is_quiet(&self) -> bool {
        let in_use = self.config.concurrency.saturating_sub(self.slots.free());
        in_use <= self.overrun.load(Ordering::Acquire)
    }

    /// How many more jobs of a handler may run here; `None` without a limit.
    pub(crate) fn handler_room(&self, handler: &str) -> Option<usize> {
        let limit = self.registry.get(handler)?.options.concurrency?;
        Some(limit.saturating_sub(self.in_use.get(handler)?.load(Ordering::Acquire)))
    }

    /// Counts a job of a limited handler in or out.
    pub(crate) fn count_handler(&self, handler: &str, by: isize) {
        if let Some(in_use) = self.in_use.get(handler) {
            if by > 0 {
                in_use.fetch_add(by as usize, Ordering::AcqRel);
            } else {
                let before = in_use.fetch_sub(by.unsigned_abs(), Ordering::AcqRel);
                if self.registry.get(handler).is_some_and(|handler| handler.options.concurrency == Some(before)) {
                    // The claim loop has left its queue out while it was full.
                    self.wake.notify_one();
                }
            }
        }
    }

    /// The queues with what may be taken from each. The common ones, and now and then (`all`) also those where jobs are
    /// put that others could not run, or that came back from a lost node. None that only others have handlers for: a
    /// process without handlers of users leaves the shared queues alone.
    pub(crate) fn queues(&self, room: usize, all: bool) -> Vec<(String, usize)> {
        let mut queues: Vec<(String, usize)> = Vec::new();
        let add = |queues: &mut Vec<(String, usize)>, queue: &str, room: usize| {
            if room > 0 && !queues.iter().any(|(known, _)| known == queue) {
                queues.push((queue.to_owned(), room));
            }
        };
        if self.registry.has_users() {
            add(&mut queues, DEFAULT_QUEUE, room);
            self.config.queues.iter().for_each(|queue| add(&mut queues, queue, room));
        }
        for (id, handler) in self.registry.iter() {
            match self.handler_room(id) {
                Some(limit) => add(&mut queues, id, limit.min(room)),
                None => {
                    add(&mut queues, handler.queue(id), room);
                    if all {
                        add(&mut queues, id, room);
                    }
                }
            }
        }
        if all {
            self.add_suspects(&mut queues);
        }
        queues
    }
}

/// How many more jobs fit.
pub(super) struct Slots(pub(super) AtomicUsize);

impl Slots {
    fn take(&self, want: usize) -> usize {
        let mut taken = 0;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            taken = free.min(want);
            Some(free - taken)
        });
        taken
    }

    fn free(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    fn give(&self, slots: usize) {
        self.0.fetch_add(slots, Ordering::AcqRel);
    }
}
