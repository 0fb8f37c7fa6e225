//! Rows in which nodes die, stall, block, or are told to end. Called by `runner` through the matrix.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::seen::starts;
use crate::StoreKind;
use crate::child::{Load, Order, Todo};
use crate::event::{Event, What};
use crate::rig::{Rig, SOON};

/// F17: nodes are killed again and again while jobs run.
pub(super) async fn killed(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    let transactions = rig.store == StoreKind::Postgres;
    rig.fleet(2, Load { seed, job_ms: 300, transactions, ..Load::default() }).await?;
    for _ in 0..rig.profile.times(4, 100) {
        rig.go_on_for(300..900).await;
        let at = rig.any(&rig.workers());
        rig.kill_9(at);
        rig.restart(at).await?;
    }
    let killed = rig.faults;
    let claims = rig.count(|what| matches!(what, What::Claim { .. }))?;
    rig.demand("nodes were killed while they worked", format!("{killed} kills, {claims} claims"), claims > 0);
    rig.quiet(Duration::from_secs(60)).await
}

/// F18: a node stops for three leases; others take its jobs over; what it wants to write afterwards is refused.
pub(super) async fn frozen(rig: &mut Rig) -> Result<()> {
    let lease = rig.settings.lease;
    rig.worker().await?;
    rig.worker().await?;
    let producer = rig.producer().await?;
    let seed = rig.seed();
    rig.load(producer, Load { seed, ..Load::default() });
    // Handlers that go on whatever they are told, so that a zombie does try to write: some have ended when it goes on, the
    // others end within their grace.
    let deaf = |time: Duration| {
        let ms = u64::try_from(time.as_millis()).expect("a short time");
        Order { todo: Todo { ms, deaf: true, writes: true, ..Todo::default() }, ..Order::default() }
    };
    let times = [lease * 2, lease * 3 + rig.settings.grace / 2].repeat(3);
    let orders: Vec<Order> = times.into_iter().map(deaf).collect();
    for _ in 0..rig.profile.times(2, 10) {
        let before = rig.events()?.len();
        rig.submit(producer, orders.clone(), 1);
        rig.until("deaf jobs to be under way", SOON, |events| savers(&events[before..]).len() >= orders.len()).await?;
        // The node that has most of them.
        let savers = savers(&rig.events()?[before..]);
        let held = |at: &usize| savers.iter().filter(|proc| **proc == rig.processes[*at].proc()).count();
        let at = rig.workers().into_iter().max_by_key(held).expect("there are workers");
        rig.freeze(at, lease * 3).await;
        rig.go_on(Duration::from_secs(1)).await;
    }
    let dead = rig.count(|what| matches!(what, What::Beat { alive: false, .. }))?;
    rig.demand("a node that was stopped learns that it is dead", format!("{dead} times"), dead > 0);
    let told = rig.count(|what| matches!(what, What::Told { lease_lost: true, .. }))?;
    rig.demand("handlers are told that their lease is lost", format!("{told} times"), told > 0);
    rig.quiet(Duration::from_secs(60)).await
}

/// F18 where a file belongs to one process: nobody can take over, and the process goes on with what it has.
pub(super) async fn frozen_alone(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    let lease = rig.settings.lease;
    let at = rig.fleet(1, Load { seed, job_ms: 500, ..Load::default() }).await?;
    for _ in 0..rig.profile.times(1, 5) {
        rig.go_on_for(500..1_500).await;
        rig.freeze(at, lease * 3).await;
    }
    rig.go_on(Duration::from_secs(1)).await;
    rig.quiet(Duration::from_secs(60)).await
}

/// F19: handlers block every thread they can get for longer than the lease. Heartbeats go on.
pub(super) async fn blocked(rig: &mut Rig) -> Result<()> {
    let lease = rig.settings.lease;
    rig.worker().await?;
    let producer = rig.producer().await?;
    let ms = u64::try_from((lease * 5 / 2).as_millis())?;
    let todo = Todo { ms, blocks: true, ..Todo::default() };
    rig.fault("all threads of handlers are blocked");
    rig.submit(producer, vec![Order { todo, ..Order::default() }; 4], 4);
    rig.until("blocking jobs to start", SOON, |events| starts(events) >= 2).await?;
    rig.quiet(Duration::from_secs(60)).await?;
    rig.healed("all threads of handlers are blocked");
    let dead = rig.count(|what| matches!(what, What::Beat { alive: false, .. }))?;
    rig.demand("no node is declared dead", format!("{dead} were"), dead == 0);
    let recovered = rig.count(|what| matches!(what, What::Recovered { jobs, .. } if !jobs.is_empty()))?;
    rig.demand("no job is taken away", format!("{recovered} times"), recovered == 0);
    Ok(())
}

/// F20: jobs that kill their process, whatever restarts it, end as dead letters; all others succeed.
pub(super) async fn poisoned(rig: &mut Rig) -> Result<()> {
    rig.settings.lease = Duration::from_secs(2);
    rig.rules.lease_us = 2_000_000;
    let workers = if rig.store == StoreKind::Sqlite { 1 } else { 2 };
    for _ in 0..workers {
        rig.worker().await?;
    }
    let producer = rig.producer().await?;
    let innocent = Order { todo: Todo { ms: 200, ..Todo::default() }, ..Order::default() };
    let mut poisons = vec!["abort", "overflow"];
    if rig.profile != crate::Profile::Short {
        poisons.push("memory");
        for worker in rig.workers() {
            // Enough for a node, far too little for one that hoards.
            rig.processes[worker].under.memory_bytes = Some(4 << 30);
        }
    }
    let mut restarts = 0;
    for how in poisons.clone() {
        let todo = Todo { kills: Some(how.into()), ..Todo::default() };
        let poison = Order { todo, key: Some(format!("poison {how}")), ..Order::default() };
        let mut orders = vec![innocent.clone(); 15];
        orders.push(poison);
        rig.fault(format!("a job kills its process: {how}"));
        rig.submit(producer, orders, 1);
        // What a supervisor does.
        let (began, restarts_before, mut quiet) = (Instant::now(), restarts, 0);
        while quiet < 5 {
            ensure!(began.elapsed() < Duration::from_secs(60), "poison goes round: {restarts} restarts");
            for at in 0..rig.processes.len() {
                if rig.processes[at].exited()?.is_some() {
                    restarts += 1;
                    rig.restart(at).await?;
                }
            }
            let idle = restarts > restarts_before && rig.unfinished().await? == 0;
            quiet = if idle { quiet + 1 } else { 0 };
            rig.go_on(Duration::from_millis(200)).await;
        }
    }
    // Each poison kills at most once for each recovery, and once more.
    let most = poisons.len() * (usize::from(rig.rules.max_recoveries) + 1);
    rig.demand("the process is restarted a bounded number of times", restarts, restarts > 0 && restarts <= most);
    rig.quiet(Duration::from_secs(30)).await
}

/// F32: nodes that look after the store stall in the middle and go on after others did the same work.
pub(super) async fn stalled_maintenance(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    let lease = rig.settings.lease;
    rig.fleet(3, Load { seed, ..Load::default() }).await?;
    for _ in 0..rig.profile.times(4, 40) {
        rig.go_on_for(100..400).await;
        let at = rig.any(&rig.workers());
        rig.freeze(at, lease * 3 / 2).await;
    }
    rig.quiet(Duration::from_secs(60)).await
}

/// F33: nodes are told to end, one after the other, while they run many jobs. Nothing is charged.
pub(super) async fn rolled(rig: &mut Rig) -> Result<()> {
    rig.settings.concurrency = Some(120);
    rig.settings.shutdown_deadline = Duration::from_millis(800);
    let workers = if rig.store == StoreKind::Sqlite { 1 } else { 2 };
    for _ in 0..workers {
        rig.worker().await?;
    }
    let producer = rig.producer().await?;
    let todo = Todo { ms: 2_500, ..Todo::default() };
    let rounds = rig.profile.times(3, 10);
    rig.submit(producer, vec![Order { todo, ..Order::default() }; 100 * rounds.min(5)], 16);
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let before = rig.count(|what| matches!(what, What::Start { .. }))?;
        rig.until("jobs to run", SOON, |events| starts(events) > before + 20 || ended(events) >= 100).await?;
        let at = rig.any(&rig.workers());
        rig.fault(format!("SIGTERM to process {}", rig.processes[at].proc()));
        rig.processes[at].signal(Signal::TERM);
        longest = longest.max(rig.processes[at].ended(SOON).await?);
        rig.restart(at).await?;
    }
    let patience = rig.settings.shutdown_deadline + rig.settings.grace + Duration::from_secs(3);
    rig.demand_within("a node ends", longest, patience);
    rig.quiet(Duration::from_secs(60)).await?;
    let charged = rig.events()?.iter().map(charged).sum::<usize>();
    rig.demand("no attempt is charged", format!("{charged} were"), charged == 0);
    Ok(())
}

/// The processes whose checkpoints the store has accepted, one for each.
fn savers(events: &[Event]) -> Vec<u32> {
    let checkpoint = |what: &What| matches!(what, What::Write { what, accepted: true, .. } if what == "checkpoint");
    events.iter().filter(|event| checkpoint(&event.what)).map(|event| event.proc).collect()
}

fn ended(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event.what, What::End { .. })).count()
}

/// Jobs of a claim that were failed or recovered before.
fn charged(event: &Event) -> usize {
    match &event.what {
        What::Claim { jobs, .. } => jobs.iter().filter(|job| job.failed + job.recoveries > 0).count(),
        _ => 0,
    }
}
