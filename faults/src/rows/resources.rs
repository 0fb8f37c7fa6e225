//! Rows in which PostgreSQL has too little of something: room on its disk, speed of its disk, processor time, and
//! connections for those who want them. Called by `runner` through the matrix.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use windlass_testkit::servers::{PostgresOptions, PostgresServer, StopMode};

use super::seen::{accepted, acknowledged, failures, starts};
use super::sqlite::Disk;
use crate::cgroup::Group;
use crate::child::{Load, Order, Todo};
use crate::event::{Event, What};
use crate::rig::{Rig, SOON};

/// F45: the disk under the server is full. Callers are told; what was acknowledged is there when the disk has grown.
pub(super) async fn disk_full(rig: &mut Rig) -> Result<()> {
    /// Room for an empty cluster and a little more than two segments of its log.
    const MEGABYTES: u32 = 140;
    let disk = Disk::mount(std::env::temp_dir().join(format!("windlass-disk-{}", std::process::id())), MEGABYTES)?;
    let data = disk.0.join("data");
    std::fs::create_dir(&data).context("make a directory for the data")?;
    let options = PostgresOptions::new()
        .data_dir(data)
        .setting("shared_buffers", "16MB")
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "48MB");
    let server = tokio::task::block_in_place(|| PostgresServer::start(options))?;
    rig.move_to(server).await?;
    let seed = rig.seed();
    rig.fleet(2, Load { seed, tasks: 8, pause_ms: 4, ..Load::default() }).await?;
    rig.go_on(Duration::from_secs(2)).await;
    for round in 1..=rig.profile.times(1, 5) {
        rig.fault("the disk is filled");
        fill(&disk.0.join("ballast"), 3 << 20)?;
        let before = failures(&rig.events()?);
        let full = |events: &[Event]| failures(events) > before;
        let told = rig.until("callers to be told", Duration::from_secs(60), full).await;
        rig.demand("callers are told that the disk is full", told.is_ok(), told.is_ok());
        rig.go_on_for(1_000..3_000).await;
        std::fs::remove_file(disk.0.join("ballast"))?;
        disk.grow(MEGABYTES + u32::try_from(round)? * 120)?;
        let server = rig.server.as_mut().context("the row has a server of its own")?;
        // It may have ended by itself, or be in the middle of that.
        tokio::task::block_in_place(|| server.stop(StopMode::Immediate).and_then(|()| server.start_again()))?;
        rig.healed("the disk is filled");
        let before = accepted(&rig.events()?);
        let took = rig.until("work to go on", SOON, |events| accepted(events) > before).await?;
        rig.demand_within("work goes on when there is room", took, Duration::from_secs(15));
    }
    rig.kept.push(Box::new(disk));
    rig.quiet(Duration::from_secs(90)).await
}

/// Fills a disk but for a little.
fn fill(ballast: &std::path::Path, left: u64) -> Result<()> {
    let file = std::fs::File::create(ballast)?;
    let stat = rustix::fs::fstatvfs(&file)?;
    let free = stat.f_bavail * stat.f_frsize;
    let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free.saturating_sub(left).max(1));
    Ok(())
}

/// F46: the server's disk writes a megabyte a second, fifty times a second. No lease is lost for that.
pub(super) async fn slow_disk(rig: &mut Rig) -> Result<()> {
    let server = rig.server.as_ref().context("the row has a server of its own")?;
    let group = Group::of_disk(&server.data_dir(), 1 << 20, 50)?;
    starved(rig, group, "the disk writes 1 MB a second").await
}

/// F47: the server has a tenth of a processor.
pub(super) async fn little_processor(rig: &mut Rig) -> Result<()> {
    starved(rig, Group::of_processor(10)?, "the server has a tenth of a processor").await
}

async fn starved(rig: &mut Rig, group: Group, how: &str) -> Result<()> {
    let seed = rig.seed();
    rig.settings.lease = Duration::from_secs(6);
    rig.rules.lease_us = 6_000_000;
    rig.fleet(2, Load { seed, tasks: 8, pause_ms: 5, ..Load::default() }).await?;
    rig.go_on(Duration::from_secs(2)).await;
    rig.fault(how);
    let taken = Instant::now();
    group.take(rig.server.as_ref().context("the row has a server of its own")?)?;
    let before = acknowledged(&rig.events()?).len();
    rig.go_on(Duration::from_secs(rig.profile.times(15, 300) as u64)).await;
    let during = acknowledged(&rig.events()?).len() - before;
    let (found, holds) = group.held_back(taken.elapsed())?;
    rig.demand("the limit holds the server back", found, holds);
    rig.demand("submits are acknowledged meanwhile", during, during > 0);
    drop(group);
    rig.healed(how);
    keeps_leases(rig)?;
    rig.quiet(Duration::from_secs(90)).await
}

/// F34: two connections for two hundred handlers that each hold a transaction. Heartbeats do not wait behind them.
pub(super) async fn few_connections(rig: &mut Rig) -> Result<()> {
    rig.settings.concurrency = Some(200);
    rig.settings.connections = 2;
    rig.settings.deadline = Duration::from_secs(10);
    rig.worker().await?;
    let producer = rig.producer().await?;
    let todo = Todo { ms: 30, holds: true, ..Todo::default() };
    let many = rig.profile.times(400, 5_000);
    rig.fault("two connections for 200 handlers");
    // One that gets no connection in time fails, as it would anywhere; that is not what is tested.
    rig.submit(producer, vec![Order { todo, max_attempts: Some(100), ..Order::default() }; many], 32);
    let running = |events: &[Event]| starts(events) >= 200;
    rig.until("many handlers at once", SOON, running).await?;
    rig.quiet(Duration::from_secs(120)).await?;
    rig.healed("two connections for 200 handlers");
    keeps_leases(rig)?;
    let late = longest_silence(&rig.events()?);
    rig.demand_within("a heartbeat follows the one before", late, rig.settings.lease * 2 / 3);
    Ok(())
}

fn keeps_leases(rig: &mut Rig) -> Result<()> {
    let dead = rig.count(|what| matches!(what, What::Beat { alive: false, .. }))?;
    rig.demand("no node is declared dead", format!("{dead} were"), dead == 0);
    let lost = rig.count(|what| matches!(what, What::Told { lease_lost: true, .. }))?;
    rig.demand("no lease is lost", format!("{lost} were"), lost == 0);
    Ok(())
}

/// The longest time between two heartbeats of a process.
fn longest_silence(events: &[Event]) -> Duration {
    let mut last = std::collections::HashMap::new();
    let mut longest = 0;
    for event in events.iter().filter(|event| matches!(event.what, What::Beat { alive: true, .. })) {
        let before = last.insert(event.proc, event.mono);
        longest = longest.max(before.map_or(0, |before| event.mono - before));
    }
    Duration::from_micros(longest)
}
