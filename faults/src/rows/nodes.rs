//! Rows in which nodes die, stall, block, or are told to end. Called by `runner` through the matrix.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use windlass::suspect::RECOVERIES_BEYOND;

use super::seen::{dead_letters, starts, starts_of};
use crate::StoreKind;
use crate::child::{Command, Load, Order, Todo};
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
    // Each poison kills once for each recovery and once more, and a few times until it is known which of those beside it
    // was the cause.
    let most = poisons.len() * usize::from(rig.rules.max_recoveries + RECOVERIES_BEYOND);
    rig.demand("the process is restarted a bounded number of times", restarts, restarts > 0 && restarts <= most);
    rig.quiet(Duration::from_secs(30)).await
}

/// F67: a node with many long jobs dies of one of them, which kills whoever runs it after a second. Each time the others
/// run again soon, and in the end it alone is a dead letter.
pub(super) async fn poisoned_crowd(rig: &mut Rig) -> Result<()> {
    let many = rig.profile.times(200, 2_000);
    // A watch over a suspect is as long as the killer takes, and a lease more: the short size has a short one.
    let lease = Duration::from_secs(rig.profile.times(2, 10) as u64);
    rig.set_lease(lease);
    rig.settings.concurrency = Some(many + 10);
    rig.worker().await?;
    let producer = rig.producer().await?;
    // Longer than the row: at the end they are canceled.
    let long = Order { todo: Todo { ms: 3_600_000, ..Todo::default() }, ..Order::default() };
    rig.submit(producer, vec![long; many], 64);
    rig.until("all jobs to run", SOON * 2, |events| starts(events) >= many).await?;
    let crowd: BTreeSet<i64> = starts_of(&rig.events()?, None, 0).into_iter().collect();
    ensure!(crowd.len() == many, "each job has started once");
    rig.fault("a job kills its process after a second");
    let todo = Todo { ms: 1_000, kills: Some("abort".into()), ..Todo::default() };
    rig.submit(producer, vec![Order { todo, ..Order::default() }], 1);
    // It runs on the node that has the others; the next one takes them over.
    rig.until("the poison to run", SOON, |events| starts(events) > many).await?;
    rig.worker().await?;

    let (began, at_most) = (Instant::now(), SOON * rig.profile.times(4, 20) as u32);
    let (mut first, mut waits, mut since) = (None::<Instant>, Vec::new(), None::<Instant>);
    loop {
        ensure!(began.elapsed() < at_most, "poison goes round: {} processes were killed", waits.len());
        for at in rig.workers() {
            if rig.processes[at].exited()?.is_some() {
                // Whoever was still waiting waited at least until here.
                waits.extend(since.map(|since| since.elapsed()));
                (first, since) = (first.or(Some(Instant::now())), Some(Instant::now()));
                rig.restart(at).await?;
            }
        }
        let events = rig.events()?;
        let run = running(&events, &rig.workers().iter().map(|at| rig.processes[*at].proc()).collect::<Vec<_>>());
        if crowd.is_subset(&run) {
            waits.extend(since.take().map(|since| since.elapsed()));
            if !dead_letters(&events).is_empty() {
                break;
            }
        }
        rig.go_on(Duration::from_millis(20)).await;
    }
    let took = first.context("it has killed")?.elapsed();
    let waited = waits.iter().map(|wait| format!("{:.1}", wait.as_secs_f64())).collect::<Vec<_>>().join(", ");
    rig.healed(format!("a job kills its process after a second: {many} jobs waited {waited} s, {took:.1?} in all"));
    // Lost once, all of them run again at once; lost more often, in cohorts of an eighth, each for a watch (decision 7).
    let at_once = waits.first().copied().unwrap_or_default();
    rig.demand_within(format!("the other {many} jobs run again"), at_once, lease + Duration::from_secs(10));
    let longest = waits.iter().max().copied().unwrap_or_default();
    let watches = 8 * (Duration::from_secs(1) + lease.min(Duration::from_secs(4)));
    let what = format!("after each of {} kills they run again ({waited} s)", waits.len());
    rig.demand_within(what, longest, lease + watches + Duration::from_secs(5));
    let events = rig.events()?;
    let innocent = dead_letters(&events).intersection(&crowd).count();
    rig.demand("the poison alone is a dead letter", format!("{innocent} others are"), innocent == 0);
    rig.processes[producer].tell(&Command::Cancel { tenant: 0, jobs: crowd.into_iter().collect() });
    rig.quiet(Duration::from_secs(60)).await?;
    let dead = dead_letters(&rig.events()?).len();
    rig.demand("there is one dead letter in the end", dead, dead == 1);
    Ok(())
}

/// The jobs that run on one of these processes: their last start was there, and they have not returned since.
fn running(events: &[Event], procs: &[u32]) -> BTreeSet<i64> {
    let mut run = HashMap::new();
    for event in events {
        match event.what {
            What::Start { job, .. } => drop(run.insert(job, event.proc)),
            What::End { job, .. } if run.get(&job) == Some(&event.proc) => drop(run.remove(&job)),
            _ => {}
        }
    }
    run.into_iter().filter(|(_, proc)| procs.contains(proc)).map(|(job, _)| job).collect()
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
