//! A system with little to do: `latency` and `idle`. Called by `bench::run`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::bench::Bench;
use crate::bench::figures::{Figure, Figures, times};
use crate::bench::load::{Meter, Noop, Work, caller, start_node, start_submitter, until_succeeded};
use crate::bench::node::{Node, Orders, each};
use crate::bench::place::Throwaway;
use crate::bench::probe::{self, Costs};
use crate::bench::raw::{PostgresInserts, SqliteInserts};
use crate::error::{CliError, Result};

/// Time between two jobs: long enough that the one before is done with in every store.
const PAUSE: Duration = Duration::from_millis(20);
/// Jobs before those that are measured: connections are made and plans cached by then.
const WARM_UP: u64 = 10;

/// One job every 20 ms on a node that has nothing else to do: from the call to submit to the start of the handler. With
/// more nodes than one, another process runs it. Between two jobs one committed INSERT is timed as the limit.
pub(crate) async fn latency(bench: &Bench) -> Result<Figures> {
    let place = bench.target.make().await?;
    let raw = Raw::open(&place, bench.payload_bytes).await?;
    let store = place.open().await?;
    let (meter, mut others) = (Meter::new(), Vec::new());
    let node = if bench.nodes > 1 {
        let orders = Orders { work: true, ..bench.orders(1, true) };
        others = Node::start_many(&place, bench.nodes - 1, &orders).await?;
        each(&mut others, "serve").await?;
        start_submitter(store).await?
    } else {
        start_node(store, bench.workers, &meter).await?
    };
    let submitted = Arc::new(AtomicU64::new(0));
    let _shown = bench.progress.show("one by one", bench.jobs + WARM_UP, submitted.clone());
    let (ctx, mut calls, mut inserts) = (caller(), times(), times());
    let mut ticks = tokio::time::interval(PAUSE / 2);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for n in 0..bench.jobs + WARM_UP {
        if n == WARM_UP {
            until_succeeded(&node, WARM_UP).await?;
            meter.forget();
            each(&mut others, "forget").await?;
        }
        ticks.tick().await;
        let insert = raw.one().await?;
        ticks.tick().await;
        let begun = Instant::now();
        node.submit::<Noop>(&ctx, Work::now(bench.payload_bytes)).await?;
        if n >= WARM_UP {
            calls.saturating_record(begun.elapsed().as_nanos() as u64);
            insert.into_iter().for_each(|insert| inserts.saturating_record(insert.as_nanos() as u64));
        }
        submitted.fetch_add(1, Ordering::Relaxed);
    }
    until_succeeded(&node, bench.jobs + WARM_UP).await?;
    let waits = if others.is_empty() { meter.waits() } else { Node::waits(&mut others).await? };
    Node::stop_all(others).await?;
    node.shutdown().await;
    let mut figures = Figures::default();
    figures.waits(&waits);
    figures.submits(&calls);
    if !inserts.is_empty() {
        figures.set(Figure::RawP50, inserts.value_at_quantile(0.5) as f64 / 1e6);
        figures.ratio(Figure::RatioToRaw, Figure::P50, Figure::RawP50);
    }
    Ok(figures)
}

/// One committed INSERT at a time, where there are statements.
enum Raw {
    Memory,
    Postgres(Box<PostgresInserts>),
    Sqlite(Arc<Mutex<SqliteInserts>>),
}

impl Raw {
    async fn open(place: &Throwaway, payload_bytes: usize) -> Result<Raw> {
        Ok(match (place.database(), place.file()) {
            (Some(database), _) => Raw::Postgres(Box::new(PostgresInserts::open(database.url, payload_bytes).await?)),
            (_, Some(file)) => Raw::Sqlite(Arc::new(Mutex::new(SqliteInserts::open(file, payload_bytes)?))),
            _ => Raw::Memory,
        })
    }

    async fn one(&self) -> Result<Option<Duration>> {
        match self {
            Raw::Memory => Ok(None),
            Raw::Postgres(inserts) => inserts.one().await.map(Some),
            Raw::Sqlite(inserts) => {
                let inserts = inserts.clone();
                let one = tokio::task::spawn_blocking(move || inserts.lock().one());
                one.await.map_err(|error| CliError::Failed(format!("an INSERT panicked: {error}")))?.map(Some)
            }
        }
    }
}

/// How long a node runs before it counts as idle: its start is done with by then.
const SETTLING: Duration = Duration::from_secs(3);

/// A node with nothing to do: what it asks of the store, and what it costs.
pub(crate) async fn idle(bench: &Bench) -> Result<Figures> {
    let place = bench.target.make().await?;
    // A new schema makes work for autovacuum, which the server counts like that of a node.
    drop(place.open().await?);
    place.settle().await?;
    place.vacuum().await?;
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
