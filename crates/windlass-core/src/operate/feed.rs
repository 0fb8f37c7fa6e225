//! Status events of every node as one stream that can be resumed: the store keeps them while somebody reads, one
//! loop in each process reads on for all who follow. Called by the service's users and by `webhook`. What happens in this
//! process alone is told sooner by `watch`. Never writes an event: the stores do, with the change itself.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::stream::{Stream, unfold};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use crate::model::error::Error;
use crate::model::tenant::{Scope, SecurityContext};
use crate::node::Worker;
use crate::operate::watch::JobEvent;
use crate::operate::within::Within;
use crate::service::JobService;
use crate::store::{self, FeedAsk, FeedRow};

/// A status event with its place in the feed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FeedEvent {
    /// Grows with time. To resume after this event, follow the feed `after` it.
    pub sequence: u64,
    /// What happened.
    pub event: JobEvent,
}

/// Status events as they come.
pub type Feed = Pin<Box<dyn Stream<Item = FeedEvent> + Send>>;

impl JobService {
    /// Status events of the caller's tenant from every node: ends of attempts, cancels, replays, recoveries. Starts
    /// now, or after an event seen before, as far back as the store has them (an hour, or 100,000 events). Each event comes
    /// at least once and in order, except that an event whose write took longer than a second may come late. If nobody has
    /// read for a minute, other nodes start writing events within about a second.
    pub async fn feed(&self, ctx: &SecurityContext, after: Option<u64>) -> Result<Feed, Error> {
        self.within(ctx.scope()).feed(after).await
    }
}

impl Within {
    /// Status events of the scope, as [`JobService::feed`].
    pub async fn feed(&self, after: Option<u64>) -> Result<Feed, Error> {
        follow(self.worker(), self.scope(), after).await
    }
}

/// How long events are wanted after a reader was last heard of. Longer than a client takes to come back.
pub(crate) const WANTED_FOR: Duration = Duration::from_secs(60);

/// How often a reader is heard of.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(20);

/// How often the feed is read while somebody follows it.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(200);

/// Events in one read; after a full one the next follows at once.
pub(crate) const POLL_EVENTS: usize = 1_000;

/// Events that a follower may be behind before it reads for itself.
const BUFFER: usize = 4_096;

/// How far back the loop starts, so that those who began to follow just before it miss nothing.
const OVERLAP: u64 = 1_000;

/// How long a missing sequence holds up those after it: writes take milliseconds, and one that was undone leaves a gap
/// for ever.
const HOLD: Duration = Duration::from_secs(1);

/// How long a missing sequence is looked for: longer than a statement may take.
const GIVE_UP: Duration = Duration::from_secs(30);

/// Gaps that are remembered; beyond it the oldest are given up.
const GAPS_MAX: usize = 1_000;

/// How long the keys of a sealed error are waited for. A failure to get them is remembered, so that an outage costs
/// this once a second, and not for every event.
const KEYS_WITHIN: Duration = Duration::from_millis(250);

/// How long a follower waits after a failed read.
const AFTER_ERROR: Duration = Duration::from_secs(1);

// ---- the loop of a process

/// What the loop has read, for all who follow.
pub(crate) struct Feeds {
    seen: broadcast::Sender<Arc<Seen>>,
    wanted: Notify,
}

/// One row of the feed. Without an event if its job is gone; followers still have to know that it was there.
struct Seen {
    sequence: u64,
    event: Option<JobEvent>,
}

impl Default for Feeds {
    fn default() -> Self {
        Feeds { seen: broadcast::channel(BUFFER).0, wanted: Notify::new() }
    }
}

impl Feeds {
    fn has_followers(&self) -> bool {
        self.seen.receiver_count() > 0
    }
}

impl Worker {
    /// Reads the feed while somebody follows it, until the node stops.
    pub(crate) async fn read_feed_when_wanted(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            if !self.feeds.has_followers() {
                tokio::select! {
                    () = self.feeds.wanted.notified() => {}
                    () = self.stopped.cancelled() => {}
                }
                continue;
            }
            if let Err(error) = self.read_feed_on().await {
                tracing::warn!(%error, "could not read the feed, trying again");
                self.rest(AFTER_ERROR).await;
            }
        }
    }

    async fn read_feed_on(&self) -> store::Result<()> {
        let end = self.store.feed_end().await?;
        let mut order = Order::starting_after(end.saturating_sub(OVERLAP));
        let mut renewed: Option<Instant> = None;
        while self.feeds.has_followers() && !self.stopped.is_cancelled() {
            if renewed.is_none_or(|at| at.elapsed() >= RENEW_EVERY) {
                self.store.want_feed(WANTED_FOR).await?;
                renewed = Some(Instant::now());
            }
            let rows = self.store.read_feed(&order.ask(), POLL_EVENTS).await?;
            let is_full = rows.len() >= POLL_EVENTS;
            for row in rows {
                if order.take_in(row.sequence, (), Instant::now()) {
                    let _ = self.feeds.seen.send(Arc::new(self.seen(row).await));
                }
            }
            order.release(Instant::now());
            if !is_full {
                self.rest(POLL_EVERY).await;
            }
        }
        Ok(())
    }

    async fn seen(&self, row: FeedRow) -> Seen {
        Seen { sequence: row.sequence, event: self.event_of(row).await }
    }

    /// The event of a row, unless its job is gone. Nobody waits here for keys for long: what they seal stays marked.
    pub(crate) async fn event_of(&self, row: FeedRow) -> Option<JobEvent> {
        let FeedRow { job, status, attempt, at, of, .. } = row;
        let mut of = of?;
        if of.sealed
            && let Some(error) = &mut of.error
        {
            self.seals.open_error_within(KEYS_WITHIN, of.tenant, job, error).await;
        }
        Some(JobEvent { job, tenant: of.tenant, handler: of.handler, status, attempt, error: of.error, at })
    }

    pub(crate) async fn rest(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.stopped.cancelled() => {}
        }
    }
}

// ---- followers

async fn follow(worker: &Arc<Worker>, scope: Scope, after: Option<u64>) -> Result<Feed, Error> {
    // Subscribe before looking: what the loop reads in between would otherwise be missed until a gap shows it.
    let seen = worker.feeds.seen.subscribe();
    worker.feeds.wanted.notify_one();
    worker.store.want_feed(WANTED_FOR).await?;
    let end = worker.store.feed_end().await?;
    let follower = Follower {
        worker: Arc::downgrade(worker),
        stopped: worker.stopped.clone(),
        scope,
        seen,
        // A sequence that was never given out is from another store; then there is nothing to go on from.
        order: Order::starting_after(after.unwrap_or(end).min(end)),
        ready: VecDeque::new(),
        behind: true,
    };
    Ok(Box::pin(unfold(follower, |mut follower| async { follower.next().await.map(|event| (event, follower)) })))
}

/// A follower. The loop passes new events on; a follower that starts, lags or misses an event reads the store itself.
struct Follower {
    worker: Weak<Worker>,
    stopped: CancellationToken,
    scope: Scope,
    seen: broadcast::Receiver<Arc<Seen>>,
    order: Order<Arc<Seen>>,
    ready: VecDeque<FeedEvent>,
    behind: bool,
}

impl Follower {
    async fn next(&mut self) -> Option<FeedEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            match self.behind {
                true => self.catch_up().await?,
                false => self.hear().await?,
            }
            for seen in self.order.release(Instant::now()) {
                let event = seen.event.as_ref().filter(|event| self.scope.covers(event.tenant)).cloned();
                self.ready.extend(event.map(|event| FeedEvent { sequence: seen.sequence, event }));
            }
        }
    }

    /// Takes in what the loop tells next, or waits until a gap has held things up for long enough.
    async fn hear(&mut self) -> Option<()> {
        let held_until = self.order.held_until();
        let overdue = async {
            match held_until {
                Some(at) => tokio::time::sleep(at.saturating_duration_since(Instant::now())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            seen = self.seen.recv() => match seen {
                Ok(seen) => {
                    self.order.take_in(seen.sequence, seen, Instant::now());
                }
                Err(broadcast::error::RecvError::Lagged(_)) => self.behind = true,
                Err(broadcast::error::RecvError::Closed) => return None,
            },
            // The loop may have begun after the gap, and never have looked for it.
            () = overdue => self.behind = true,
            () = self.stopped.cancelled() => return None,
        }
        Some(())
    }

    /// Reads for itself, as far as one read goes.
    async fn catch_up(&mut self) -> Option<()> {
        let worker = self.worker.upgrade()?;
        match worker.store.read_feed(&self.order.ask(), POLL_EVENTS).await {
            Ok(rows) => {
                self.behind = rows.len() >= POLL_EVENTS;
                for row in rows {
                    let seen = worker.seen(row).await;
                    self.order.take_in(seen.sequence, Arc::new(seen), Instant::now());
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a follower could not read the feed, trying again");
                worker.rest(AFTER_ERROR).await;
            }
        }
        (!self.stopped.is_cancelled()).then_some(())
    }
}

// ---- order

/// Puts what was read into order, once each. A transaction gets its sequence before it commits, so a later one may be
/// seen first: what is missing holds up the rest for a moment, and is looked for a while longer.
pub(crate) struct Order<T> {
    /// The largest sequence seen.
    seen: u64,
    /// What is missing below, in order.
    gaps: VecDeque<Gap>,
    /// What waits for something missing before it.
    held: BTreeMap<u64, T>,
}

#[derive(Clone, Copy)]
struct Gap {
    first: u64,
    last: u64,
    since: Instant,
}

impl<T> Order<T> {
    pub(crate) fn starting_after(sequence: u64) -> Order<T> {
        Order { seen: sequence, gaps: VecDeque::new(), held: BTreeMap::new() }
    }

    /// What to read next.
    pub(crate) fn ask(&self) -> FeedAsk {
        FeedAsk { after: self.seen, gaps: self.gaps.iter().map(|gap| (gap.first, gap.last)).collect() }
    }

    /// Takes one in; false if it was seen before or was given up.
    pub(crate) fn take_in(&mut self, sequence: u64, item: T, now: Instant) -> bool {
        if sequence > self.seen {
            if sequence > self.seen + 1 {
                self.gaps.push_back(Gap { first: self.seen + 1, last: sequence - 1, since: now });
            }
            self.seen = sequence;
        } else if !self.fill(sequence) {
            return false;
        }
        while self.gaps.len() > GAPS_MAX {
            self.gaps.pop_front();
        }
        self.held.insert(sequence, item);
        true
    }

    fn fill(&mut self, sequence: u64) -> bool {
        let Some(at) = self.gaps.iter().position(|gap| (gap.first..=gap.last).contains(&sequence)) else {
            return false;
        };
        let gap = self.gaps[at];
        self.gaps.remove(at);
        if sequence < gap.last {
            self.gaps.insert(at, Gap { first: sequence + 1, ..gap });
        }
        if sequence > gap.first {
            self.gaps.insert(at, Gap { last: sequence - 1, ..gap });
        }
        true
    }

    /// What nothing holds up any more, in order.
    pub(crate) fn release(&mut self, now: Instant) -> Vec<T> {
        self.gaps.retain(|gap| now.saturating_duration_since(gap.since) < GIVE_UP);
        let held_up_from = self.holding(now).map(|gap| gap.first).min();
        let rest = held_up_from.map(|first| self.held.split_off(&first)).unwrap_or_default();
        std::mem::replace(&mut self.held, rest).into_values().collect()
    }

    fn holding(&self, now: Instant) -> impl Iterator<Item = &Gap> {
        self.gaps.iter().filter(move |gap| now.saturating_duration_since(gap.since) < HOLD)
    }

    /// When something that waits now need not wait any longer.
    fn held_until(&self) -> Option<Instant> {
        let first = *self.held.first_key_value()?.0;
        self.gaps.iter().filter(|gap| gap.first < first).map(|gap| gap.since + HOLD).max()
    }

    /// Everything up to here was released or is given up: whoever starts after it again misses nothing.
    pub(crate) fn settled(&self) -> u64 {
        let missing = self.gaps.front().map(|gap| gap.first - 1);
        let held = self.held.first_key_value().map(|(sequence, _)| sequence - 1);
        missing.into_iter().chain(held).min().unwrap_or(self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes in sequences and answers what is released at `now`.
    fn take(order: &mut Order<u64>, sequences: &[u64], now: Instant) -> Vec<u64> {
        for sequence in sequences {
            order.take_in(*sequence, *sequence, now);
        }
        order.release(now)
    }

    #[test]
    fn what_comes_in_order_is_passed_on_at_once() {
        let (mut order, now) = (Order::starting_after(7), Instant::now());
        assert_eq!(take(&mut order, &[8, 9], now), [8, 9]);
        assert_eq!(take(&mut order, &[9, 8, 7, 3], now), [0; 0], "once each, and nothing from before");
        assert_eq!((order.ask(), order.settled()), (FeedAsk { after: 9, gaps: vec![] }, 9));
    }

    #[test]
    fn a_gap_holds_up_what_is_behind_it_until_it_is_filled() {
        let (mut order, now) = (Order::starting_after(0), Instant::now());
        assert_eq!(take(&mut order, &[1, 4, 6], now), [1]);
        assert_eq!(order.ask(), FeedAsk { after: 6, gaps: vec![(2, 3), (5, 5)] });
        assert_eq!(order.settled(), 1);
        assert_eq!(take(&mut order, &[3], now), [0; 0]);
        assert_eq!(take(&mut order, &[2], now), [2, 3, 4]);
        assert_eq!((order.settled(), order.held_until()), (4, Some(now + HOLD)));
        assert_eq!(take(&mut order, &[5], now), [5, 6]);
        assert_eq!(order.held_until(), None);
    }

    #[test]
    fn a_gap_that_stays_is_passed_by_and_what_comes_late_still_comes() {
        let (mut order, start) = (Order::starting_after(0), Instant::now());
        assert_eq!(take(&mut order, &[3], start), [0; 0]);
        assert_eq!(take(&mut order, &[], start + HOLD), [3]);
        assert_eq!(order.ask().gaps, [(1, 2)], "still looked for");
        assert_eq!(order.settled(), 0);
        assert_eq!(take(&mut order, &[2], start + HOLD * 2), [2]);
        assert_eq!(take(&mut order, &[], start + GIVE_UP), [0; 0]);
        assert_eq!((order.ask(), order.settled()), (FeedAsk { after: 3, gaps: vec![] }, 3));
        assert_eq!(take(&mut order, &[1], start + GIVE_UP), [0; 0], "given up");
    }

    #[test]
    fn gaps_are_bounded() {
        let (mut order, now) = (Order::starting_after(0), Instant::now());
        let even: Vec<u64> = (1..=3 * GAPS_MAX as u64).map(|n| 2 * n).collect();
        take(&mut order, &even, now);
        assert_eq!(order.ask().gaps.len(), GAPS_MAX);
    }

    proptest::proptest! {
        /// Whatever the order in which they are seen, all come out, once each; in order if none is later than the hold.
        #[test]
        fn nothing_is_lost_or_doubled(mut seen in proptest::collection::vec(1u64..60, 1..120)) {
            let (mut order, now) = (Order::starting_after(0), Instant::now());
            let mut released = Vec::new();
            for sequence in &seen {
                released.extend(take(&mut order, &[*sequence], now));
            }
            proptest::prop_assert!(released.is_sorted());
            released.extend(take(&mut order, &[], now + HOLD));
            seen.sort_unstable();
            seen.dedup();
            released.sort_unstable();
            proptest::prop_assert_eq!(released, seen);
        }
    }
}
