//! Rows in which PostgreSQL itself stops, crashes, loses sessions, plans badly, or cannot clean up. Called by `runner`
//! through the matrix.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use windlass_testkit::servers::StopMode;

use super::seen::{accepted, rate};
use crate::child::{Load, Order, Todo};
use crate::event::{Event, What};
use crate::log::mono;
use crate::rig::{Rig, SOON};

/// F01: a session holds a snapshot open, so that nothing that is deleted can be cleaned up. Work goes on, and nodes say
/// who holds it.
pub(super) async fn held_snapshot(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    rig.settings.held_snapshot_after = Duration::from_secs(2);
    rig.fleet(2, Load { seed, tasks: 8, pause_ms: 10, job_ms: 5, ..Load::default() }).await?;
    let time = Duration::from_secs(rig.profile.times(9, 600) as u64);
    rig.go_on(Duration::from_secs(1)).await;
    let before = rate(rig, Duration::from_secs(3)).await?;
    let holder = rig.sql().await?;
    holder.batch_execute("begin isolation level repeatable read; select 1").await?;
    let pid: i32 = holder.query_one("select pg_backend_pid()", &[]).await?.get(0);
    rig.fault(format!("session {pid} holds a snapshot"));
    rig.go_on(time.saturating_sub(Duration::from_secs(3))).await;
    let mut during = rate(rig, Duration::from_secs(3)).await?;
    if during < before / 2.0 {
        // What a snapshot costs stays as long as it does; a disk that stood still for a moment does not.
        during = during.max(rate(rig, Duration::from_secs(5)).await?);
    }
    rig.demand("throughput stays above half", format!("{before:.0} → {during:.0} jobs/s"), during >= before / 2.0);
    let warned = rig.workers().into_iter().filter(|at| {
        let log = std::fs::read_to_string(rig.processes[*at].errors_file()).unwrap_or_default();
        log.lines().any(|line| line.contains("WARN") && line.contains(&pid.to_string()))
    });
    let warned = warned.count();
    rig.demand("nodes warn of it and name its process", format!("{warned} did"), warned > 0);
    holder.batch_execute("rollback").await?;
    rig.healed(format!("session {pid} holds a snapshot"));
    rig.quiet(SOON).await
}

/// F11: the planner is forbidden its good plans and has no statistics. No claim takes more than it asked for.
pub(super) async fn hostile_planner(rig: &mut Rig) -> Result<()> {
    let sql = rig.sql().await?;
    let database: String = sql.query_one("select current_database()", &[]).await?.get(0);
    let switches =
        ["hashjoin", "mergejoin", "indexscan", "indexonlyscan", "bitmapscan", "material", "sort", "nestloop"];
    // The worst for a claim: a nested loop that runs the limited subquery again for each row.
    let mut off: Vec<&str> = vec!["hashjoin", "mergejoin", "material"];
    for switch in switches {
        if rand::RngExt::random_bool(&mut rig.rng, 0.4) && switch != "nestloop" && !off.contains(&switch) {
            off.push(switch);
        }
    }
    for switch in &off {
        sql.batch_execute(&format!("alter database {database} set enable_{switch} = off")).await?;
    }
    sql.batch_execute(&format!("alter database {database} set plan_cache_mode = force_generic_plan")).await?;
    sql.batch_execute(&format!("alter database {database} set jit = off")).await?;
    rig.fault(format!("the planner may not use {}", off.join(", ")));
    let seed = rig.seed();
    rig.settings.concurrency = Some(5);
    let producer = rig.fleet(3, Load { seed, ..Load::default() }).await?;
    let todo = Todo { ms: 2, ..Todo::default() };
    rig.submit(producer, vec![Order { todo, ..Order::default() }; rig.profile.times(600, 20_000)], 32);
    rig.go_on(Duration::from_secs(4)).await;
    rig.quiet(Duration::from_secs(60)).await?;
    let (mut claims, mut greedy, mut slowest) = (0, 0, 0);
    for event in rig.events()?.iter() {
        if let What::Claim { max, jobs, born: false, asked_at, .. } = &event.what {
            claims += 1;
            greedy += usize::from(jobs.len() > *max);
            slowest = slowest.max(event.mono.saturating_sub(*asked_at));
        }
    }
    rig.demand("no claim takes more than it asked for", format!("{greedy} of {claims} did"), greedy == 0);
    rig.demand_within("a claim is answered", Duration::from_micros(slowest), Duration::from_secs(2));
    Ok(())
}

/// F42: the server stops at once, again and again, and recovers from its log.
pub(super) async fn immediate_stops(rig: &mut Rig) -> Result<()> {
    restarts(rig, rig.profile.times(3, 30), "stops at once", |server| server.stop(StopMode::Immediate)).await
}

/// F43: every process of the server is killed.
pub(super) async fn killed(rig: &mut Rig) -> Result<()> {
    let kill = |server: &mut windlass_testkit::servers::PostgresServer| {
        server.kill_9();
        Ok(())
    };
    restarts(rig, rig.profile.times(2, 20), "is killed", kill).await
}

async fn restarts(
    rig: &mut Rig,
    times: usize,
    how: &str,
    stop: impl Fn(&mut windlass_testkit::servers::PostgresServer) -> Result<()>,
) -> Result<()> {
    let seed = rig.seed();
    rig.fleet(2, Load { seed, transactions: true, ..Load::default() }).await?;
    let mut slowest = Duration::ZERO;
    for _ in 0..times {
        rig.go_on_for(800..1_500).await;
        rig.fault(format!("the server {how}"));
        rig.rules.crashes.push(mono());
        let server = rig.server.as_mut().context("the row has a server of its own")?;
        tokio::task::block_in_place(|| stop(server))?;
        rig.rules.crashes.push(mono());
        rig.go_on_for(0..800).await;
        let server = rig.server.as_mut().context("the row has a server of its own")?;
        tokio::task::block_in_place(|| server.start_again())?;
        rig.healed(format!("the server {how}"));
        let before = accepted(&rig.events()?);
        slowest = slowest.max(rig.until("work to go on", SOON, |events| accepted(events) > before).await?);
    }
    rig.demand_within("work goes on when the server is back", slowest, Duration::from_secs(5));
    rig.quiet(Duration::from_secs(60)).await
}

/// F44: sessions are ended at random, ten a second.
pub(super) async fn ended_sessions(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    rig.fleet(2, Load { seed, tasks: 8, transactions: true, ..Load::default() }).await?;
    rig.go_on(Duration::from_secs(1)).await;
    let time = Duration::from_secs(rig.profile.times(5, 120) as u64);
    let before = rate(rig, Duration::from_secs(4)).await?;
    let sql = rig.sql().await?;
    let victim = "select pg_terminate_backend(pid) from pg_stat_activity
                  where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
                  order by hashint4(pid + $1::int) limit 1";
    let (began, start) = (Instant::now(), accepted(&rig.events()?));
    while began.elapsed() < time {
        rig.fault("a session is ended");
        let chance = rand::RngExt::random_range(&mut rig.rng, 0..1_000_000);
        sql.query(victim, &[&chance]).await?;
        rig.go_on(Duration::from_millis(100)).await;
    }
    let during = (accepted(&rig.events()?) - start) as f64 / began.elapsed().as_secs_f64();
    rig.demand("throughput stays above half", format!("{before:.0} → {during:.0} jobs/s"), during >= before / 2.0);
    rig.quiet(Duration::from_secs(60)).await
}

/// F25: a transaction that submitted commits long after later jobs have run.
pub(super) async fn late_committer(rig: &mut Rig) -> Result<()> {
    rig.worker().await?;
    let producer = rig.producer().await?;
    rig.fault("transactions commit late");
    let late = Order { commits: Some(true), hold_ms: rig.profile.times(3_000, 30_000) as u64, ..Order::default() };
    rig.submit(producer, vec![late; 3], 3);
    rig.go_on(Duration::from_millis(300)).await;
    rig.submit(producer, vec![Order::default(); rig.profile.times(500, 10_000)], 32);
    let committed =
        |events: &[Event]| events.iter().filter(|event| matches!(event.what, What::TransactionEnd { .. })).count() >= 3;
    rig.until("the late commits", Duration::from_secs(60), committed).await?;
    rig.quiet(SOON).await?;
    let events = rig.events()?;
    let mut slowest = 0;
    for event in events.iter() {
        let What::TransactionEnd { call, .. } = event.what else { continue };
        let job = events.iter().find_map(|event| match event.what {
            What::SubmitOk { call: of, job, .. } if of == call => Some(job),
            _ => None,
        });
        let start = events.iter().find(|event| matches!(event.what, What::Start { job: of, .. } if Some(of) == job));
        let start = start.context("a late job never ran")?;
        slowest = slowest.max(start.mono.saturating_sub(event.mono));
    }
    rig.demand_within("a late job starts after its commit", Duration::from_micros(slowest), Duration::from_secs(3));
    Ok(())
}
