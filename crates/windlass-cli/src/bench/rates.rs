//! How many jobs a second: `submit`, `submit-bulk`, `drain`, `end-to-end` and `spawn`. Called by `bench::run`, once for
//! each repeat, each time in a fresh place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use windlass::store::Store;
use windlass::{Error, JobService};

use crate::args::Scenario;
use crate::bench::Bench;
use crate::bench::figures::{Figure, Figures, times};
use crate::bench::load::{Meter, Submits, caller, start_node, start_submitter, until_succeeded};
use crate::bench::node::{Node, Orders, each, until_started};
use crate::bench::place::{Target, Throwaway};
use crate::bench::probe::{self, Costs};
use crate::bench::raw::{self, RawLoad};
use crate::error::{CliError, Result};

/// Callers submit and nobody works: jobs a second and how long a call takes.
pub(crate) async fn submit(bench: &Bench, batch: u64) -> Result<Figures> {
    let place = bench.target.make().await?;
    let mut costs = Costs::open(&place).await?;
    if bench.nodes > 1 {
        let mut nodes = Node::start_many(&place, bench.nodes, &bench.orders(batch, false)).await?;
        each(&mut nodes, "serve").await?;
        costs.start().await?;
        let begun = Instant::now();
        let calls = Node::submit_all(&mut nodes, bench.jobs).await?;
        let took = begun.elapsed();
        costs.stop().await?;
        Node::stop_all(nodes).await?;
        let mut figures = Figures::default();
        figures.rate(bench.jobs, took);
        figures.submits(&calls);
        costs.close(bench.jobs, &mut figures).await?;
        return Ok(figures);
    }
    let service = start_submitter(place.open().await?).await?;
    let submits = bench.submits(batch);
    let _shown = bench.progress.show("submitting", bench.jobs, submits.taken.clone());

    costs.start().await?;
    let begun = Instant::now();
    let calls = submits.run(&service).await?;
    let took = begun.elapsed();
    costs.stop().await?;

    service.shutdown().await;
    drop(service);
    let mut figures = Figures::default();
    figures.rate(bench.jobs, took);
    figures.submits(&calls);
    costs.close(bench.jobs, &mut figures).await?;
    Ok(figures)
}

/// Jobs wait, then a node comes and runs them all. Timed from its start to the last saved outcome.
pub(crate) async fn drain(bench: &Bench) -> Result<Figures> {
    let place = bench.target.make().await?;
    let empty = probe::bytes(&place).await?;
    fill(bench, place.open().await?).await?;
    place.settle().await?;
    let mut costs = Costs::open(&place).await?;
    if bench.nodes > 1 {
        let mut figures = on_nodes(bench, &place, costs, false).await?;
        set_bytes(&place, empty, bench.jobs, &mut figures).await?;
        return Ok(figures);
    }
    let (store, meter) = (place.open().await?, Meter::new());
    let _shown = bench.progress.show("draining", bench.jobs, meter.count());

    costs.start().await?;
    let begun = Instant::now();
    let node = start_node(store, bench.workers, &meter).await?;
    meter.until(bench.jobs).await?;
    until_succeeded(&node, bench.jobs).await?;
    let took = begun.elapsed();
    costs.stop().await?;

    node.shutdown().await;
    drop(node);
    let mut figures = Figures::default();
    figures.rate(bench.jobs, took);
    costs.close(bench.jobs, &mut figures).await?;
    set_bytes(&place, empty, bench.jobs, &mut figures).await?;
    Ok(figures)
}

/// Jobs in one call where jobs are only wanted to be there: the most that is allowed.
pub(crate) const FILL: u64 = 1_000;

pub(crate) async fn fill(bench: &Bench, store: Arc<dyn Store>) -> Result {
    let service = start_submitter(store).await?;
    let submits = Submits { submitters: 2, ..bench.submits(FILL) };
    let _shown = bench.progress.show("filling", bench.jobs, submits.taken.clone());
    submits.run(&service).await?;
    service.shutdown().await;
    Ok(())
}

/// Callers submit and a node works, both in this process, until all has ended.
pub(crate) async fn end_to_end(bench: &Bench) -> Result<Figures> {
    let place = bench.target.make().await?;
    let empty = probe::bytes(&place).await?;
    let mut costs = Costs::open(&place).await?;
    if bench.nodes > 1 {
        let mut figures = on_nodes(bench, &place, costs, true).await?;
        set_bytes(&place, empty, bench.jobs, &mut figures).await?;
        return Ok(figures);
    }
    let meter = Meter::new();
    let node = start_node(place.open().await?, bench.workers, &meter).await?;
    let _shown = bench.progress.show("submitting and running", bench.jobs, meter.count());

    costs.start().await?;
    let begun = Instant::now();
    let calls = bench.submits(1).run(&node).await?;
    meter.until(bench.jobs).await?;
    until_succeeded(&node, bench.jobs).await?;
    let took = begun.elapsed();
    costs.stop().await?;

    node.shutdown().await;
    drop(node);
    let mut figures = Figures::default();
    figures.rate(bench.jobs, took);
    figures.waits(&meter.waits());
    figures.submits(&calls);
    costs.close(bench.jobs, &mut figures).await?;
    set_bytes(&place, empty, bench.jobs, &mut figures).await?;
    Ok(figures)
}

/// Several processes work until all has ended, and submit it first if it is not there.
async fn on_nodes(bench: &Bench, place: &Throwaway, mut costs: Costs<'_>, submit: bool) -> Result<Figures> {
    let orders = Orders { work: true, ..bench.orders(1, true) };
    let mut nodes = Node::start_many(place, bench.nodes, &orders).await?;
    let looking = start_submitter(place.open().await?).await?;
    let mut figures = Figures::default();
    if submit {
        each(&mut nodes, "serve").await?;
    }
    costs.start().await?;
    let begun = Instant::now();
    if submit {
        figures.submits(&Node::submit_all(&mut nodes, bench.jobs).await?);
    } else {
        each(&mut nodes, "serve").await?;
    }
    until_started(&mut nodes, bench.jobs).await?;
    until_succeeded(&looking, bench.jobs).await?;
    let took = begun.elapsed();
    costs.stop().await?;

    figures.rate(bench.jobs, took);
    let waits = Node::waits(&mut nodes).await?;
    if submit {
        figures.waits(&waits);
    }
    Node::stop_all(nodes).await?;
    looking.shutdown().await;
    drop(looking);
    costs.close(bench.jobs, &mut figures).await?;
    Ok(figures)
}

/// The raw statements of a scenario, in a place of their own: jobs a second, or nothing where there are no statements.
pub(crate) async fn raw(bench: &Bench) -> Result<Option<f64>> {
    use Scenario::{Drain, EndToEnd, Submit, SubmitBulk};
    let has_raw = matches!(bench.scenario, Submit | SubmitBulk | Drain | EndToEnd);
    if bench.target == Target::Memory || !has_raw {
        return Ok(None);
    }
    let place = bench.target.make().await?;
    let batch = if bench.scenario == SubmitBulk { bench.batch } else { 1 };
    let load = RawLoad {
        jobs: bench.jobs,
        submitters: bench.submitters,
        batch,
        workers: bench.workers,
        payload_bytes: bench.payload_bytes,
    };
    let took = match bench.scenario {
        Submit | SubmitBulk => raw::submit(&place, &load).await?,
        Drain => {
            fill(bench, place.open().await?).await?;
            place.settle().await?;
            raw::drain(&place, &load).await?
        }
        EndToEnd => raw::end_to_end(&place, &load).await?,
        _ => None,
    };
    Ok(took.map(|took| bench.jobs as f64 / took.as_secs_f64()))
}

async fn set_bytes(place: &Throwaway, empty: Option<f64>, jobs: u64, figures: &mut Figures) -> Result {
    if place.file().is_some() || place.database().is_some() {
        let left = probe::difference(empty, probe::bytes(place).await?);
        figures.set(Figure::BytesPerFinishedJob, left.map(|bytes| bytes / jobs as f64));
    }
    Ok(())
}

/// Closures that cannot be stored, from several callers. Whoever meets backpressure asks again.
pub(crate) async fn spawn(bench: &Bench) -> Result<Figures> {
    let place = bench.target.make().await?;
    let mut costs = Costs::open(&place).await?;
    let builder = JobService::builder(place.open().await?).configure(|config| {
        config.spawn_capacity = SPAWNED_WAITING;
        config.spawn_concurrency = bench.workers;
    });
    let service = builder.start().await?;
    let (taken, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let _shown = bench.progress.show("spawning", bench.jobs, ended.clone());

    costs.start().await?;
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..bench.submitters {
        callers.spawn(spawn_some(service.clone(), bench.jobs, taken.clone(), ended.clone()));
    }
    let mut waits = times();
    while let Some(called) = callers.join_next().await {
        let some = called.map_err(|error| CliError::Failed(format!("a caller panicked: {error}")))??;
        waits.add(&some).expect("they have the same digits");
    }
    while ended.load(Ordering::Acquire) < bench.jobs {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = begun.elapsed();
    costs.stop().await?;

    service.shutdown().await;
    drop(service);
    let mut figures = Figures::default();
    figures.rate(bench.jobs, took);
    figures.submits(&waits);
    costs.close(bench.jobs, &mut figures).await?;
    Ok(figures)
}

/// Spawned jobs that may wait. Enough that callers seldom meet backpressure.
const SPAWNED_WAITING: usize = 16_384;

/// Spawns until none are left; answers with how long the calls took.
async fn spawn_some(
    service: JobService,
    jobs: u64,
    taken: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
) -> Result<hdrhistogram::Histogram<u64>> {
    let (ctx, mut calls) = (caller(), times());
    while taken.fetch_add(1, Ordering::AcqRel) < jobs {
        let begun = Instant::now();
        loop {
            let ended = ended.clone();
            let spawned = service.spawn(&ctx, "bench.spawned", move |_| async move {
                ended.fetch_add(1, Ordering::AcqRel);
                Ok(())
            });
            match spawned {
                Ok(_) => break,
                // A moment, as the error asks for: asking again at once would take the time of those that run.
                Err(Error::Backpressure(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) => return Err(error.into()),
            }
        }
        calls.saturating_record(begun.elapsed().as_nanos() as u64);
    }
    Ok(calls)
}
