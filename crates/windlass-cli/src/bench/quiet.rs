//! A system with little to do: `latency` and `idle`. Called by `bench::run`.

use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::bench::figures::{Figure, Figures, times};
use crate::bench::load::{Meter, Noop, Work, caller, start_node, until_succeeded};
use crate::bench::place::Throwaway;
use crate::bench::probe::{self, Costs};
use crate::error::Result;

/// Time between two jobs: long enough that the one before is done with in every store.
const PAUSE: Duration = Duration::from_millis(20);
/// Jobs before those that are measured: connections are made and plans cached by then.
const WARM_UP: u64 = 10;

/// One job every 20 ms on a node that has nothing else to do: from the call to submit to the start of the handler.
pub(crate) async fn latency(bench: &Bench) -> Result<Figures> {
    let place = bench.target.make().await?;
    let node_meter = Meter::new();
    let store = place.open().await?;
    let node = start_node(store.clone(), bench.workers, &node_meter).await?;
    let _shown = bench.progress.show("one by one", bench.jobs + WARM_UP, node_meter.count());
    let (ctx, mut calls) = (caller(), times());
    let mut ticks = tokio::time::interval(PAUSE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for n in 0..bench.jobs + WARM_UP {
        if n == WARM_UP {
            node_meter.until(WARM_UP).await?;
            node_meter.forget();
        }
        ticks.tick().await;
        let begun = Instant::now();
        node.submit::<Noop>(&ctx, Work::now(bench.payload_bytes)).await?;
        if n >= WARM_UP {
            calls.saturating_record(begun.elapsed().as_nanos() as u64);
        }
    }
    node_meter.until(bench.jobs + WARM_UP).await?;
    until_succeeded(&node, bench.jobs + WARM_UP).await?;
    node.shutdown().await;
    let mut figures = Figures::default();
    figures.waits(&node_meter.waits());
    figures.submits(&calls);
    Ok(figures)
}

/// How long a node runs before it counts as idle: its start is done with by then.
const SETTLING: Duration = Duration::from_secs(3);

/// A node with nothing to do: what it asks of the store, and what it costs.
pub(crate) async fn idle(bench: &Bench) -> Result<Figures> {
    let place = bench.target.make().await?;
    // Servers count what a connection did at the latest when it ends. So a short life is counted and a long one, and
    // what the long one did more is what an idle node does.
    let (short, _) = live(bench, &place, Duration::ZERO).await?;
    let (long, cpu) = live(bench, &place, bench.seconds).await?;
    let mut figures = Figures::default();
    if place.database().is_some() {
        let queries = probe::difference(short, long);
        figures.set(Figure::QueriesPerSecond, queries.map(|queries| queries / bench.seconds.as_secs_f64()));
    }
    figures.set(Figure::CpuPerSecond, cpu.map(|cpu| cpu.as_secs_f64() * 1e3 / bench.seconds.as_secs_f64()));
    Ok(figures)
}

/// A node's life with so much idle time in it: the transactions of all of it, and the CPU of the idle time.
async fn live(bench: &Bench, place: &Throwaway, idle: Duration) -> Result<(Option<f64>, Option<Duration>)> {
    let mut costs = Costs::open(place).await?;
    let before = costs.commits().await?;
    let node = start_node(place.open().await?, bench.workers, &Meter::new()).await?;
    tokio::time::sleep(SETTLING).await;
    costs.start().await?;
    let _shown = bench.progress.wait("idle", idle);
    tokio::time::sleep(idle).await;
    costs.stop().await?;
    node.shutdown().await;
    drop(node);
    place.settle().await?;
    Ok((probe::difference(before, costs.commits().await?), costs.cpu()))
}
