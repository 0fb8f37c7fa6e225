//! The five benches. Called by `run`; the same code for every Rust peer, and the same steps as `peers/node/harness.mjs`.
//! A bench returns figures and never judges them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::server::{self, HeldSnapshot};
use crate::{Peer, Settings, meter};

/// How often a state that nothing announces is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long the queue may take to fill before a drain.
const FILLING: Duration = Duration::from_secs(90);
/// How much longer than its cap a drain may take to record what its handlers have done.
const RECORDING: Duration = Duration::from_secs(5);

pub(crate) async fn run<P: Peer>(settings: &Settings) -> Value {
    let peer = Arc::new(P::setup(settings).await);
    match settings.bench.as_str() {
        "bulk" => bulk(settings, peer).await,
        "enqueue" => enqueue(settings, peer).await,
        "drain" => drain(settings, peer).await,
        "latency" => latency(settings, peer).await,
        "held" => held(settings, peer).await,
        other => panic!("there is no bench {other}"),
    }
}

/// `n` jobs by the peer's bulk call, from `sub` callers, `batch` jobs a call; what has not begun after `cap` seconds is
/// left out.
async fn bulk<P: Peer>(settings: &Settings, peer: Arc<P>) -> Value {
    if !P::HAS_BULK {
        return json!({"skipped": "has no bulk call"});
    }
    let count = settings.number("n", 100_000);
    let begun = Instant::now();
    let done = fill(settings, &peer, count, Duration::from_secs(settings.number("cap", 20))).await;
    let seconds = begun.elapsed().as_secs_f64();
    json!({"n": done, "seconds": seconds, "jobs_per_second": rate(done, seconds)})
}

/// `n` jobs one by one from `sub` callers at once; what is not done after `cap` seconds is left out.
async fn enqueue<P: Peer>(settings: &Settings, peer: Arc<P>) -> Value {
    let (count, callers) = (settings.number("n", 20_000), settings.number("sub", 16));
    let cap = Duration::from_secs(settings.number("cap", 30));
    for caller in 0..callers {
        peer.enqueue(meter::MOST - 1 - caller).await; // connections and statements are warm afterwards
    }
    let next = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let call = |peer: Arc<P>, next: Arc<AtomicU64>| async move {
        let mut done = 0;
        while begun.elapsed() < cap {
            let number = next.fetch_add(1, Relaxed);
            if number >= count {
                break;
            }
            peer.enqueue(number).await;
            done += 1;
        }
        done
    };
    let calls: Vec<_> = (0..callers).map(|_| tokio::spawn(call(peer.clone(), next.clone()))).collect();
    let mut done = 0;
    for call in calls {
        done += call.await.expect("a caller");
    }
    let seconds = begun.elapsed().as_secs_f64();
    json!({"n": done, "seconds": seconds, "jobs_per_second": rate(done, seconds)})
}

/// From the start of the worker until all of `n` waiting jobs are recorded as complete in the store, or `cap` seconds.
async fn drain<P: Peer>(settings: &Settings, peer: Arc<P>) -> Value {
    let count = settings.number("n", 20_000);
    let cap = Duration::from_secs(settings.number("cap", 60));
    meter::prepare();
    let filled = fill(settings, &peer, count, FILLING).await;
    assert!(filled == count, "only {filled} of {count} jobs were submitted in {FILLING:?}");
    let store = Counter::new(settings, &peer).await;
    if let Some(admin) = &store.admin {
        server::rest(admin).await;
    }
    let begun = Instant::now();
    peer.start(settings).await;
    while meter::started() < count && begun.elapsed() < cap {
        sleep(LOOK_EVERY).await;
    }
    let unfinished = store.wait_for_none(&peer, count, begun + cap + RECORDING).await;
    let seconds = begun.elapsed().as_secs_f64();
    sleep(Duration::from_millis(300)).await; // a job that runs twice runs for the second time about now
    json!({"n": count, "seconds": seconds, "jobs_per_second": rate(count.saturating_sub(unfinished), seconds),
           "unfinished": unfinished, "repeated": meter::repeated()})
}

/// An idle worker, and one job each `gap` milliseconds: from the call that submits it to the start of its handler.
async fn latency<P: Peer>(settings: &Settings, peer: Arc<P>) -> Value {
    /// Jobs before the measured ones.
    const WARM: u64 = 3;
    /// How long a job may take to start before it counts as lost.
    const PATIENCE: Duration = Duration::from_secs(30);
    let (count, gap) = (settings.number("n", 200), settings.number("gap", 20));
    meter::prepare();
    meter::note_starts(count);
    peer.start(settings).await;
    sleep(Duration::from_secs(1)).await;
    for number in count..count + WARM {
        peer.enqueue(number).await;
    }
    sleep(Duration::from_secs(3)).await; // workers that poll are between two polls again
    let mut tick = tokio::time::interval(Duration::from_millis(gap));
    let mut calls = Vec::new();
    for number in 0..count {
        tick.tick().await;
        let peer = peer.clone();
        calls.push(tokio::spawn(async move {
            let begun = Instant::now();
            peer.enqueue(number).await;
            (number, begun)
        }));
    }
    let mut sent = Vec::new();
    for call in calls {
        sent.push(call.await.expect("a caller"));
    }
    let deadline = Instant::now() + PATIENCE;
    while (0..count).any(|number| meter::start_of(number).is_none()) && Instant::now() < deadline {
        sleep(LOOK_EVERY).await;
    }
    let wait = |(number, begun): &(u64, Instant)| {
        Some(meter::start_of(*number)?.saturating_duration_since(*begun).as_secs_f64() * 1e3)
    };
    let mut waits: Vec<f64> = sent.iter().filter_map(wait).collect();
    waits.sort_by(f64::total_cmp);
    json!({"n": count, "p50_ms": quantile(&waits, 0.5), "p95_ms": quantile(&waits, 0.95),
           "p99_ms": quantile(&waits, 0.99), "max_ms": quantile(&waits, 1.0),
           "unfinished": count - waits.len() as u64, "repeated": meter::repeated()})
}

/// A load that never ends: a feeder keeps about `backlog` jobs waiting while the worker runs, first for `before` seconds
/// without and then for `during` seconds with a transaction that holds its snapshot. What counts is the rate in the last
/// `before` seconds of each, because what cannot be removed piles up over time.
async fn held<P: Peer>(settings: &Settings, peer: Arc<P>) -> Value {
    if !P::POSTGRES {
        return json!({"skipped": "is not on PostgreSQL"});
    }
    /// How long the worker may take to get going.
    const WARM: Duration = Duration::from_secs(2);
    let before = Duration::from_secs(settings.number("before", 10));
    let during = Duration::from_secs(settings.number("during", 30)).max(before);
    meter::prepare();
    let submitted = Arc::new(AtomicU64::new(0));
    feed_once(settings, &peer, &submitted).await;
    server::rest(&server::connect(&settings.url).await).await;
    peer.start(settings).await;
    let feeder = tokio::spawn(feed(settings.clone(), peer.clone(), submitted.clone()));
    sleep(WARM).await;
    let free = rate_over(before).await;
    let snapshot = HeldSnapshot::take(&settings.url).await;
    sleep(during - before).await;
    let burdened = rate_over(before).await;
    let was_held = snapshot.is_held().await;
    feeder.abort();
    drop(snapshot);
    if !was_held {
        return json!({"skipped": "the server ended the transaction that held the snapshot"});
    }
    json!({"n": submitted.load(Relaxed), "seconds": during.as_secs_f64(), "free_per_second": free,
           "held_per_second": burdened, "ratio": burdened / free, "repeated": meter::repeated()})
}

async fn rate_over(window: Duration) -> f64 {
    let (from, begun) = (meter::started(), Instant::now());
    sleep(window).await;
    rate(meter::started() - from, begun.elapsed().as_secs_f64())
}

/// Keeps the backlog up until it is aborted or no number is left.
async fn feed<P: Peer>(settings: Settings, peer: Arc<P>, submitted: Arc<AtomicU64>) {
    while submitted.load(Relaxed) + settings.number("backlog", BACKLOG) < meter::MOST {
        if submitted.load(Relaxed).saturating_sub(meter::started()) < settings.number("backlog", BACKLOG) {
            feed_once(&settings, &peer, &submitted).await;
        } else {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The jobs that wait in `held`, unless a peer needs more or fewer.
const BACKLOG: u64 = 5_000;

async fn feed_once<P: Peer>(settings: &Settings, peer: &Arc<P>, submitted: &AtomicU64) {
    let batch = settings.number("batch", 1_000).min(settings.number("backlog", BACKLOG));
    let first = submitted.load(Relaxed);
    peer.bulk(first..first + batch).await;
    submitted.store(first + batch, Relaxed);
}

/// Submits the jobs below `count` in bulk, until `cap` has passed; how many it were.
async fn fill<P: Peer>(settings: &Settings, peer: &Arc<P>, count: u64, cap: Duration) -> u64 {
    let (callers, batch) = (settings.number("sub", 1), settings.number("batch", 1_000));
    let next = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let call = |peer: Arc<P>, next: Arc<AtomicU64>| async move {
        let mut done = 0;
        while begun.elapsed() < cap {
            let first = next.fetch_add(batch, Relaxed);
            if first >= count {
                break;
            }
            let numbers = first..count.min(first + batch);
            done += numbers.end - numbers.start;
            peer.bulk(numbers).await;
        }
        done
    };
    let calls: Vec<_> = (0..callers).map(|_| tokio::spawn(call(peer.clone(), next.clone()))).collect();
    let mut done = 0;
    for call in calls {
        done += call.await.expect("a caller");
    }
    done
}

/// Counts what the store has not recorded as complete.
struct Counter {
    admin: Option<tokio_postgres::Client>,
    sql: String,
}

impl Counter {
    async fn new<P: Peer>(settings: &Settings, peer: &Arc<P>) -> Self {
        let admin = if P::POSTGRES { Some(server::connect(&settings.url).await) } else { None };
        Counter { admin, sql: peer.remaining_sql() }
    }

    /// How many of `submitted` jobs are left at the deadline, or none before.
    async fn wait_for_none<P: Peer>(&self, peer: &Arc<P>, submitted: u64, deadline: Instant) -> u64 {
        loop {
            let left = match &self.admin {
                Some(admin) if !self.sql.is_empty() => server::count(admin, &self.sql).await,
                _ => peer.remaining(submitted).await,
            };
            if left <= 0 || Instant::now() >= deadline {
                return left.max(0) as u64;
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

fn rate(jobs: u64, seconds: f64) -> f64 {
    (jobs as f64 / seconds).round()
}

/// The smallest value that at least this share of the sorted values does not exceed, in hundredths.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = ((sorted.len() as f64 * share).ceil() as usize).max(1);
    sorted.get(rank - 1).map(|value| (value * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), Some(100.0));
        assert_eq!(quantile(&values, 0.99), Some(198.0));
        assert_eq!(quantile(&values, 1.0), Some(200.0));
        assert_eq!(quantile(&[7.126], 0.5), Some(7.13));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
