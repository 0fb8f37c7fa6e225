//! Rows about much of something: long jobs, paused jobs, producers, wake-ups that nobody takes, a backlog that the planner
//! knows nothing of. Called by `runner` through the matrix.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::Client;
use windlass_testkit::servers::StopMode;

use super::seen::{accepted, acknowledged, failures, starts};
use super::sqlite::Disk;
use crate::child::{Command, LIMITED, Load, Order, Settings, Todo};
use crate::event::{Event, What};
use crate::fleet::Under;
use crate::rig::{Rig, SOON};

/// F03: producers with wake-ups store as many jobs as producers without.
pub(super) async fn wake_ups(rig: &mut Rig) -> Result<()> {
    let mut producers = HashMap::new();
    for listen in [true, false] {
        let settings = Settings { concurrency: None, listen, ..rig.settings.clone() };
        let mut pair = Vec::new();
        for _ in 0..2 {
            pair.push(rig.start(settings.clone(), rig.url.clone(), Under::default()).await?);
        }
        producers.insert(listen, pair);
    }
    rig.fault("32 callers at once, with wake-ups and without");
    let time = Duration::from_secs(rig.profile.times(2, 10) as u64);
    let mut best = HashMap::from([(true, 0.0_f64), (false, 0.0)]);
    for _ in 0..rig.profile.times(3, 5) {
        for listen in [true, false] {
            let before = acknowledged(&rig.events()?).len();
            for at in producers[&listen].clone() {
                let seed = rig.seed();
                rig.load(at, Load { seed, tasks: 16, pause_ms: 4, plain: true, job_ms: 0, ..Load::default() });
            }
            let began = Instant::now();
            rig.go_on(time).await;
            let rate = (acknowledged(&rig.events()?).len() - before) as f64 / began.elapsed().as_secs_f64();
            best.entry(listen).and_modify(|best| *best = best.max(rate));
            // A load that has ended is not taken up again by its process: the next round has a new one.
            rig.end_loads();
            for at in producers[&listen].clone() {
                rig.processes[at].stop(SOON).await?;
                rig.restart(at).await?;
            }
        }
    }
    let (with, without) = (best[&true], best[&false]);
    let found = format!("{with:.0} jobs/s with, {without:.0} without");
    rig.demand("wake-ups cost at most a tenth", found, with >= without * 0.9);
    rig.worker().await?;
    rig.quiet(Duration::from_secs(120)).await
}

/// F04: a session listens inside a transaction, so that no notification can be forgotten, until there is no room for more.
/// Nobody's commit fails for that, and jobs are found by polling.
pub(super) async fn unheard(rig: &mut Rig) -> Result<()> {
    let server = rig.server.as_mut().context("the row has a server of its own")?;
    tokio::task::block_in_place(|| server.stop(StopMode::Fast))?;
    let room = Disk::mount(server.data_dir().join("pg_notify"), 1)?;
    std::os::unix::fs::chown(&room.0, Some(owner(&server.data_dir())?), None)?;
    tokio::task::block_in_place(|| server.start_again())?;
    let seed = rig.seed();
    rig.fleet(1, Load { seed, transactions: true, ..Load::default() }).await?;
    rig.go_on(Duration::from_secs(1)).await;
    rig.fault("a session listens inside a transaction");
    let deaf = rig.sql().await?;
    deaf.batch_execute("listen windlass_wake; begin; select 1").await?;
    let flood = rig.sql().await?;
    let (began, mut refused) = (Instant::now(), None);
    while refused.is_none() && began.elapsed() < SOON {
        refused = flood
            .batch_execute("select pg_notify('flood', repeat('x', 7900) || n) from generate_series(1, 50) n")
            .await
            .err();
    }
    let Some(refused) = refused else { bail!("the queue of notifications has no end") };
    let usage: f64 = deaf.query_one("select pg_notification_queue_usage()", &[]).await?.get(0);
    rig.demand("the queue of notifications is full", format!("{usage:.6}, {refused}"), usage > 0.0);
    let (before, failed) = (rig.events()?.len(), failures(&rig.events()?));
    let starts_before = starts(&rig.events()?);
    rig.go_on(Duration::from_secs(rig.profile.times(6, 60) as u64)).await;
    let failed = failures(&rig.events()?) - failed;
    rig.demand("no commit of a caller fails", format!("{failed} did"), failed == 0);
    let begun = starts(&rig.events()?) - starts_before;
    rig.demand("jobs are found without wake-ups", format!("{begun} started"), begun > 0 && before > 0);
    // It could not even read what it has missed: that takes room too.
    drop(deaf);
    rig.healed("a session listens inside a transaction");
    rig.kept.push(Box::new(room));
    rig.quiet(Duration::from_secs(60)).await
}

fn owner(path: &std::path::Path) -> Result<u32> {
    Ok(std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(path)?))
}

/// F12: millions wait and have ended, and the planner has never counted them. Claims stay as fast as on an empty table.
pub(super) async fn unanalysed(rig: &mut Rig) -> Result<()> {
    let many = rig.profile.times(100_000, 5_000_000);
    rig.fault(format!("{many} jobs wait and as many have ended, without statistics"));
    let sql = rig.sql().await?;
    let tables = "select format('alter table %s set (autovacuum_enabled = off)', c.oid::regclass) from pg_class c
                  where c.relnamespace = 'windlass'::regnamespace and c.relkind = 'r'";
    for row in sql.query(tables, &[]).await? {
        sql.batch_execute(row.get(0)).await?;
    }
    fill(&sql, many).await?;
    let seed = rig.seed();
    rig.fleet(2, Load { seed, tasks: 8, ..Load::default() }).await?;
    rig.go_on(Duration::from_secs(rig.profile.times(8, 60) as u64)).await;
    let mut claims: Vec<u64> = rig.events()?.iter().filter_map(claim_time).collect();
    claims.sort_unstable();
    let p99 = claims.get(claims.len() * 99 / 100).copied().context("there were claims")?;
    let at_most = rig.profile.times(60, 20) as u64;
    rig.demand_within("99 of 100 claims are answered", Duration::from_micros(p99), Duration::from_millis(at_most));
    rig.end_loads();
    take_away(&sql).await?;
    rig.healed("the backlog");
    rig.quiet(Duration::from_secs(60)).await
}

/// Jobs made by one statement.
const STEP: usize = 10_000;
/// A queue and a handler that no node has.
const NOBODY: &str = "nobody";

/// Makes so many jobs that wait in a queue nobody serves, their chunks among those that are served, and as many that have
/// ended, one of twenty badly.
pub(super) async fn fill(sql: &Client, many: usize) -> Result<()> {
    let waiting = format!(
        "select count(*) from windlass.submit_many('{NOBODY}', (select json_agg('{{}}'::json) from generate_series(1, {STEP})),
                                                   queue => '{NOBODY}')"
    );
    let ended = format!(
        "begin; set local windlass.packed = 'on';
         with j as (insert into windlass.job (handler, queue) select '{NOBODY}', '{NOBODY}' from generate_series(1, 2048)
                    on conflict do nothing returning id)
         insert into windlass.outcome (id, finished_at, purge_at, status, attempt, failed, recoveries, reason, error)
         select id, clock_timestamp(), case when id % 20 > 0 then clock_timestamp() + interval '7 days' end,
                case when id % 20 > 0 then 6 else 8 end, 1, (id % 20 = 0)::integer, 0,
                case when id % 20 = 0 then 'max_retries' end, case when id % 20 = 0 then '{FAILED}'::json end from j;
         commit"
    );
    for _ in 0..many / STEP {
        sql.batch_execute(&waiting).await?;
        for _ in 0..STEP / 2_048 {
            sql.batch_execute(&ended).await?;
        }
    }
    Ok(())
}

/// What went wrong with those that ended badly.
const FAILED: &str = r#"{"code": "upstream", "message": "the other side said no", "signature": "00000000000000aa"}"#;

/// Takes away what [`fill`] has made: the checker knows only of jobs that someone has asked for.
pub(super) async fn take_away(sql: &Client) -> Result<()> {
    let outcomes =
        format!("delete from windlass.outcome o using windlass.job j where j.id = o.id and j.queue = '{NOBODY}'");
    sql.batch_execute(&outcomes).await?;
    for table in ["ready", "job"] {
        sql.batch_execute(&format!("delete from windlass.{table} where queue = '{NOBODY}'")).await?;
    }
    Ok(())
}

pub(super) fn claim_time(event: &Event) -> Option<u64> {
    match &event.what {
        What::Claim { born: false, asked_at, .. } => Some(event.mono.saturating_sub(*asked_at)),
        _ => None,
    }
}

/// F22: a handler is paused while many of its jobs come due, then resumed. Other queues hardly notice.
pub(super) async fn resumed(rig: &mut Rig) -> Result<()> {
    // Knows which queue a handler has.
    let knows = rig.worker().await?;
    let producer = rig.producer().await?;
    rig.fault("the handler is paused");
    rig.processes[producer].tell(&Command::Pause("handler:work".into()));
    rig.until("the pause", SOON, |events| events.iter().any(|event| matches!(event.what, What::Paused { .. }))).await?;
    let many = rig.profile.times(2_000, 20_000);
    let due = Order { todo: Todo { ms: 1, ..Todo::default() }, delay_ms: 500, ..Order::default() };
    rig.submit(producer, vec![due; many], 32);
    rig.until("all to be stored", Duration::from_secs(120), |events| acknowledged(events).len() >= many).await?;
    let baseline = others_wait(rig, knows).await?;
    rig.processes[producer].tell(&Command::Resume("handler:work".into()));
    rig.healed("the handler is paused");
    let during = others_wait(rig, knows).await?;
    let left = rig.unfinished().await?;
    let found = format!("{:.0} → {:.0} ms, {left} left", baseline.as_secs_f64() * 1e3, during.as_secs_f64() * 1e3);
    let bound = (baseline * 2).max(Duration::from_millis(1_000));
    rig.demand("jobs of other queues wait at most twice as long or a second", found, during <= bound);
    rig.quiet(Duration::from_secs(120)).await
}

/// How long jobs of another queue wait at most for their start.
async fn others_wait(rig: &mut Rig, producer: usize) -> Result<Duration> {
    let before = starts_of(&rig.events()?, LIMITED).len();
    for n in 1..=10 {
        rig.submit(producer, vec![Order { limited: true, ..Order::default() }], 1);
        rig.until("a job of another queue", SOON, |events| starts_of(events, LIMITED).len() >= before + n).await?;
    }
    Ok(starts_of(&rig.events()?, LIMITED).into_iter().skip(before).max().unwrap_or_default())
}

/// How long each started job of a handler had waited, in the order of their starts. One that starts before its caller has
/// written down the answer has not waited.
fn starts_of(events: &[Event], handler: &str) -> Vec<Duration> {
    let (mut calls, mut stored) = (HashSet::new(), HashMap::new());
    for event in events {
        match &event.what {
            What::SubmitCall { call, asked } if asked.handler == handler => drop(calls.insert(*call)),
            What::SubmitOk { call, job, .. } if calls.contains(call) => drop(stored.insert(*job, event.mono)),
            _ => {}
        }
    }
    let wait = |event: &Event| match &event.what {
        What::Start { job, .. } => stored.get(job).map(|at| Duration::from_micros(event.mono.saturating_sub(*at))),
        _ => None,
    };
    events.iter().filter_map(wait).collect()
}

/// F26: many long jobs run on one node while another is stopped with some. Only those are taken over.
pub(super) async fn long_jobs(rig: &mut Rig) -> Result<()> {
    let lease = rig.settings.lease;
    let many = rig.profile.times(150, 1_000);
    rig.settings.concurrency = Some(many);
    let stays = rig.worker().await?;
    let producer = rig.producer().await?;
    let ms = u64::try_from((lease * 4).as_millis())?;
    let long = Order { todo: Todo { ms, ..Todo::default() }, ..Order::default() };
    rig.submit(producer, vec![long.clone(); many], 16);
    rig.until("long jobs to run", SOON, |events| starts(events) >= many).await?;
    rig.settings.concurrency = Some(10);
    let stops = rig.worker().await?;
    rig.submit(producer, vec![long; 10], 4);
    rig.until("ten more to run", SOON, |events| starts(events) >= many + 10).await?;
    let (stays, stopped) = (rig.processes[stays].proc(), rig.processes[stops].proc());
    let name = format!("process {stopped} is stopped");
    rig.fault(name.clone());
    rig.processes[stops].signal(rustix::process::Signal::STOP);
    let taken = rig.until("its jobs to be taken over", SOON, |events| recovered(events).len() >= 10).await?;
    rig.demand_within("stuck jobs are taken over", taken, lease + Duration::from_secs(4));
    let untouched: HashSet<i64> = held_by(&rig.events()?, stays);
    let touched = recovered(&rig.events()?).iter().filter(|job| untouched.contains(job)).count();
    rig.demand("long jobs of a live node are not touched", format!("{touched} were"), touched == 0);
    rig.processes[stops].signal(rustix::process::Signal::CONT);
    rig.healed(name);
    rig.quiet(Duration::from_secs(120)).await
}

fn recovered(events: &[Event]) -> Vec<i64> {
    let jobs = |event: &Event| match &event.what {
        What::Recovered { jobs, .. } => jobs.clone(),
        _ => Vec::new(),
    };
    events.iter().flat_map(jobs).collect()
}

/// Jobs that a process started first.
fn held_by(events: &[Event], proc: u32) -> HashSet<i64> {
    let mut first = HashMap::new();
    for event in events {
        if let What::Start { job, .. } = event.what {
            first.entry(job).or_insert(event.proc);
        }
    }
    first.into_iter().filter(|(_, of)| *of == proc).map(|(job, _)| job).collect()
}

/// F14: the database's clock is set forward and back, and a node dies just before it goes back.
pub(super) async fn database_clock(rig: &mut Rig) -> Result<()> {
    let hour = Duration::from_secs(3_600);
    rig.rules.database_clock_jumps = true;
    let seed = rig.seed();
    let load = Load { seed, job_ms: 400, ..Load::default() };
    let producer = rig.fleet(2, load.clone()).await?;
    rig.go_on_for(1_500..2_500).await;
    set_clock(rig, crate::faketime::ahead(hour)?).await?;
    rig.go_on_for(1_500..2_500).await;

    // By the clock that goes back, what was to wait a second would wait an hour; that is as it should be.
    rig.end_loads();
    let began = Instant::now();
    while rig.unfinished().await? > 0 {
        ensure!(began.elapsed() < SOON, "jobs do not end while the clock is ahead");
        rig.go_on(Duration::from_millis(100)).await;
    }
    let before = starts(&rig.events()?);
    let todo = Todo { ms: 4_000, ..Todo::default() };
    rig.submit(producer, vec![Order { todo, ..Order::default() }; 12], 4);
    rig.until("jobs to run", SOON, |events| starts(events) >= before + 12).await?;
    // Its last heartbeat lies in the future when the clock has gone back.
    let busy = rig.events()?.iter().rfind(|event| matches!(event.what, What::Start { .. })).map(|event| event.proc);
    let victim = rig.workers().into_iter().find(|at| Some(rig.processes[*at].proc()) == busy);
    let victim = victim.context("a worker runs the last job")?;
    rig.kill_9(victim);
    let before = recovered(&rig.events()?).len();
    set_clock(rig, Under::default()).await?;
    let taken = rig.until("its jobs to be taken over", SOON, |events| recovered(events).len() > before).await?;
    rig.demand_within("jobs of a node that died before are taken over", taken, rig.settings.lease * 2 + SETTLE);
    rig.restart(victim).await?;

    // The producer has been told that it is enough; a new one takes its place.
    rig.processes[producer].stop(SOON).await?;
    rig.restart(producer).await?;
    rig.load(producer, load);
    rig.go_on_for(1_500..2_500).await;
    set_clock(rig, crate::faketime::behind(hour)?).await?;
    rig.go_on_for(1_500..2_500).await;
    set_clock(rig, Under::default()).await?;
    rig.quiet(Duration::from_secs(60)).await
}

/// What a busy machine takes to start processes and sessions again.
const SETTLE: Duration = Duration::from_secs(5);

/// Starts the server again with another clock and waits until work goes on.
async fn set_clock(rig: &mut Rig, clock: Under) -> Result<()> {
    rig.fault(format!("the database's clock is set: {:?}", clock.variables.get(1).map(|(_, value)| value)));
    let server = rig.server.as_mut().context("the row has a server of its own")?;
    server.set_variables(clock.variables);
    tokio::task::block_in_place(|| server.restart(StopMode::Fast))?;
    let before = accepted(&rig.events()?);
    let took = rig.until("work to go on", SOON, |events| accepted(events) > before).await?;
    rig.demand_within("work goes on after the clock was set", took, Duration::from_secs(15));
    Ok(())
}
