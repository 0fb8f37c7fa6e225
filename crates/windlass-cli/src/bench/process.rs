//! A node as a process, seen from outside: `waiting`, `sleepers` and `start`. Called by `bench::run`. Each starts this
//! binary again and asks the system about it.

use std::time::{Duration, Instant};

use windlass::SubmitOptions;

use crate::bench::figures::{Figure, Figures};
use crate::bench::load::{Nap, Sleep, caller, nanos, start_submitter};
use crate::bench::node::{Node, Orders, until_started};
use crate::bench::place::{Target, Throwaway};
use crate::bench::rates::FILL;
use crate::bench::{Bench, Outcome, probe};
use crate::error::{CliError, Result};

/// How long a process is given until its memory is read: longer than its polls and its first look at everything.
const SETTLING: Duration = Duration::from_secs(5);
/// Longer than a scenario takes.
const ASLEEP: Duration = Duration::from_secs(3_600);

/// Many jobs wait for a node whose slots are all taken: what they cost it in memory.
pub(crate) async fn waiting(bench: &Bench) -> Result<Outcome> {
    refuse_memory(bench, "waiting")?;
    let place = bench.target.make().await?;
    let orders = Orders { work: true, workers: SLOTS, ..bench.orders(1, true) };
    sleep_many(bench, &place, SLOTS as u64).await?;
    let before = memory_of_node(bench, &place, &orders, SLOTS as u64).await?.map(|(now, _)| now);
    sleep_many(bench, &place, bench.jobs).await?;
    let after = memory_of_node(bench, &place, &orders, SLOTS as u64).await?.map(|(now, _)| now);
    let mut figures = Figures::default();
    figures.set(Figure::MemoryBefore, before);
    figures.set(Figure::Memory, after);
    let grown = before.zip(after).map(|(before, after)| after - before);
    let passed = grown.is_some_and(|grown| grown < ALLOWED_GROWTH);
    Ok(Outcome::judged(figures, "a node uses at most 16 MiB more while the jobs wait", passed))
}

/// Jobs the node of `waiting` runs at once.
const SLOTS: usize = 100;
/// What two runs of the same process differ in, and less than a byte for each of a million jobs would be with a margin.
const ALLOWED_GROWTH: f64 = 16.0 * 1024.0 * 1024.0;

/// Many handlers run at once and sleep: what the process needs at most.
pub(crate) async fn sleepers(bench: &Bench) -> Result<Outcome> {
    refuse_memory(bench, "sleepers")?;
    let place = bench.target.make().await?;
    let at_once = usize::try_from(bench.jobs).unwrap_or(usize::MAX);
    let orders = Orders { work: true, workers: at_once, ..bench.orders(1, true) };
    sleep_many(bench, &place, bench.jobs).await?;
    let most = memory_of_node(bench, &place, &orders, bench.jobs).await?.map(|(_, most)| most);
    let mut figures = Figures::default();
    figures.set(Figure::Memory, most);
    let passed = most.is_some_and(|most| most <= 1024.0 * 1024.0 * 1024.0);
    Ok(Outcome::judged(figures, "all handlers run at once within 1 GiB", passed))
}

/// Starts a node, waits until so many jobs run in it, and answers its memory now and at most.
async fn memory_of_node(bench: &Bench, place: &Throwaway, orders: &Orders, running: u64) -> Result<Option<(f64, f64)>> {
    let mut nodes = Node::start_many(place, 1, orders).await?;
    nodes[0].ask("serve").await?;
    until_started(&mut nodes, running).await?;
    let _shown = bench.progress.wait("settling", SETTLING);
    tokio::time::sleep(SETTLING).await;
    let memory = nodes[0].pid().and_then(probe::memory);
    Node::stop_all(nodes).await?;
    place.settle().await?;
    Ok(memory)
}

/// Submits jobs that sleep until the node ends.
async fn sleep_many(bench: &Bench, place: &Throwaway, jobs: u64) -> Result {
    let service = start_submitter(place.open().await?).await?;
    let submitted = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let _shown = bench.progress.show("filling", jobs, submitted.clone());
    let ctx = caller();
    for first in (0..jobs).step_by(FILL as usize) {
        let naps = (first..jobs.min(first + FILL)).map(|_| Nap { at: nanos(), ms: ASLEEP.as_millis() as u64 });
        let naps: Vec<Nap> = naps.collect();
        submitted.fetch_add(naps.len() as u64, std::sync::atomic::Ordering::Relaxed);
        service.submit_many::<Sleep>(&ctx, naps, SubmitOptions::new()).await?;
    }
    service.shutdown().await;
    drop(service);
    place.settle().await
}

/// How long this binary takes from its start until its store is open: on a new file, and on one that is there.
pub(crate) async fn start(bench: &Bench) -> Result<Outcome> {
    refuse_memory(bench, "start")?;
    let place = bench.target.make().await?;
    let orders = Orders { work: true, ..bench.orders(1, true) };
    let begun = Instant::now();
    let mut node = Node::start(&place, &orders).await?;
    node.ask("serve").await?;
    let took = begun.elapsed().as_secs_f64() * 1e3;
    node.stop().await?;
    let mut figures = Figures::default();
    figures.set(Figure::StartMs, took);
    Ok(Outcome::judged(figures, "a process serves within 100 ms of its start", took < 100.0))
}

fn refuse_memory(bench: &Bench, scenario: &str) -> Result {
    match bench.target {
        Target::Memory => Err(CliError::invalid(
            "store",
            format!("{scenario} measures another process, which cannot use memory:; use sqlite:PATH or postgres://…"),
        )),
        _ => Ok(()),
    }
}
