//! Rows in which somebody holds a lease that others wait for: a handler's transaction whose connection has fallen silent,
//! a session that never ends. Called by `runner` through the matrix.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::seen::{node_of, starts_of};
use crate::child::{EFFECT_TABLE, Load, Order, Todo, WAITING};
use crate::event::{Event, What};
use crate::fleet::Under;
use crate::log::mono;
use crate::rig::{Rig, SOON};

/// How long the server keeps a transaction of the engine that has fallen silent (docs/operations.md).
const ENGINE_IDLE: Duration = Duration::from_secs(10);

/// How long it keeps that of a handler in this row, instead of five minutes.
const HANDLER_IDLE: Duration = Duration::from_secs(4);

/// What a busy machine adds to a time that a server or a node keeps.
const SLACK: Duration = Duration::from_secs(3);

/// How long a node that is told to end waits for ends that cannot be saved (docs/operations.md).
const UNSAVED_AT_END: Duration = Duration::from_secs(10);

/// F68: the connection of a handler's own transaction falls silent: while the handler waits in it, between the end of the
/// job and the commit, and once more while the node is told to end.
pub(super) async fn silent_handler(rig: &mut Rig) -> Result<()> {
    rig.settings.handler_idle = HANDLER_IDLE;
    let proxy = rig.proxy().await?;
    let at = rig.start(rig.settings.clone(), rig.url_through(proxy), Under::default()).await?;
    let producer = rig.producer().await?;
    let seed = rig.seed();
    // Both go to the same node, so that they share leases.
    rig.load(producer, Load { seed, plain: true, ..Load::default() });
    let completes = Todo { completes: true, ..Todo::default() };
    let idles = Todo { ms: 300, idles: true, ..completes.clone() };
    // A handler's own statement has no deadline but that of its attempt.
    let idle = Order { todo: idles, timeout_ms: Some(3_000), ..Order::default() };
    let complete = Order { todo: completes, ..Order::default() };
    let mut ordered = 0;
    for _ in 0..rig.profile.times(1, 6) {
        for (text, order, bound) in [(WAITING, &idle, HANDLER_IDLE), (FINISH, &complete, ENGINE_IDLE)] {
            rig.go_on_for(300..800).await;
            let (silenced, since) = (rig.proxies[proxy].counters().silenced, mono());
            let fault = format!("the connection falls silent after `{text}`");
            rig.fault(fault.clone());
            rig.proxies[proxy].silence_after(text);
            rig.submit(producer, vec![order.clone(); BESIDE], BESIDE);
            ordered += BESIDE;
            falls_silent(rig, proxy, silenced).await?;
            let free = transactions_end(rig).await?;
            let what = format!("after `{text}` the server ends the transaction");
            rig.demand_within(what, free, bound + SLACK);
            let (gap, ends) = longest_gap(&rig.events()?, rig.processes[at].proc(), since);
            rig.demand_within(
                format!("meanwhile the node ends other jobs ({ends}), one"),
                gap,
                rig.settings.deadline + SLACK,
            );
            rig.proxies[proxy].heal();
            rig.healed(fault);
        }
    }
    // And while the node is told to end.
    let silenced = rig.proxies[proxy].counters().silenced;
    rig.fault("the connection falls silent, and SIGTERM");
    rig.proxies[proxy].silence_after(FINISH);
    rig.submit(producer, vec![complete; BESIDE], BESIDE);
    ordered += BESIDE;
    falls_silent(rig, proxy, silenced).await?;
    rig.processes[at].signal(Signal::TERM);
    let took = rig.processes[at].ended(SOON * 2).await?;
    let bound = rig.settings.shutdown_deadline + rig.settings.grace + UNSAVED_AT_END + SLACK;
    rig.demand_within("a node that is told to end meanwhile ends", took, bound);
    rig.proxies[proxy].heal();
    rig.healed("the connection falls silent, and SIGTERM");
    rig.restart(at).await?;
    rig.quiet(Duration::from_secs(60)).await?;
    let sql = format!("select count(*), count(distinct job) from {EFFECT_TABLE}");
    let row = rig.sql().await?.query_one(&sql, &[]).await?;
    let (rows, jobs): (i64, i64) = (row.get(0), row.get(1));
    let once = usize::try_from(rows)? == ordered && rows == jobs;
    rig.demand(
        "each job has its effect in the database once",
        format!("{rows} rows of {jobs} of {ordered} jobs"),
        once,
    );
    Ok(())
}

/// The statement that ends a job, and from which on its transaction holds the lease.
const FINISH: &str = "windlass.finish";

/// Jobs that end in transactions of their own at the same time: they share a lease, and more than there are connections.
const BESIDE: usize = 12;

async fn falls_silent(rig: &Rig, proxy: usize, before: u64) -> Result<()> {
    let began = Instant::now();
    while rig.proxies[proxy].counters().silenced == before {
        ensure!(began.elapsed() < SOON, "no connection fell silent");
        rig.go_on(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Waits until no session is idle in a transaction for longer than a moment; answers how long it took.
async fn transactions_end(rig: &Rig) -> Result<Duration> {
    let sql = rig.sql().await?;
    let idle = "select count(*) from pg_stat_activity where datname = current_database()
                and state like 'idle in transaction%' and clock_timestamp() - state_change > interval '900 milliseconds'";
    let began = Instant::now();
    rig.go_on(Duration::from_secs(1)).await;
    while sql.query_one(idle, &[]).await?.get::<_, i64>(0) > 0 {
        ensure!(began.elapsed() < SOON * 2, "a silent transaction stays");
        rig.go_on(Duration::from_millis(50)).await;
    }
    Ok(began.elapsed())
}

/// The longest time in which a node ended no job since then, and how many it ended.
fn longest_gap(events: &[Event], proc: u32, since: u64) -> (Duration, usize) {
    let (mut last, mut longest, mut ends) = (since, 0, 0);
    for event in events.iter().filter(|event| event.proc == proc && event.mono > since) {
        if matches!(&event.what, What::FinishReply { replies, .. } if replies.iter().any(Option::is_some)) {
            longest = longest.max(event.mono - last);
            (last, ends) = (event.mono, ends + 1);
        }
    }
    (Duration::from_micros(longest.max(mono() - last)), ends)
}

/// F69: somebody holds a lease of a dead node for long. Healthy nodes start jobs as before, other dead nodes are recovered,
/// and what is held comes back when it is let go.
pub(super) async fn held_lease(rig: &mut Rig) -> Result<()> {
    /// Jobs that each of the nodes has that are killed.
    const LONG: usize = 10;
    let lease = rig.settings.lease;
    rig.settings.concurrency = Some(LONG);
    let long = Order { todo: Todo { ms: 2_000, ..Todo::default() }, ..Order::default() };
    let producer = rig.producer().await?;
    let mut killed = Vec::new();
    for n in 1..=2 {
        let at = rig.worker().await?;
        rig.submit(producer, vec![Order { todo: Todo { ms: 600_000, ..Todo::default() }, ..long.clone() }; LONG], LONG);
        rig.until("long jobs to run", SOON, |events| starts_of(events, None, 0).len() >= n * LONG).await?;
        killed.push(at);
    }
    rig.settings.concurrency = Some(40);
    let healthy = rig.worker().await?;
    let before = start_times(rig, producer, healthy).await?;
    // The jobs of the dead, in the order in which they will be missed.
    let events = rig.events()?;
    let procs: Vec<u32> = killed.iter().map(|at| rig.processes[*at].proc()).collect();
    let jobs: Vec<Vec<i64>> = procs.iter().map(|proc| starts_of(&events, Some(*proc), 0)).collect();
    let node = node_of(&events, procs[0]).context("it has claimed")?;
    let holder = rig.sql().await?;
    holder.batch_execute("begin").await?;
    let held = holder.query("select 1 from windlass.lease where node_id = $1 for update", &[&node]).await?.len();
    ensure!(held > 0, "the node has a lease");
    let fault = format!("somebody holds the leases of process {}", procs[0]);
    rig.fault(fault.clone());
    let since = mono();
    for at in killed {
        rig.kill_9(at);
    }
    let again = |events: &[Event], of: &[i64]| {
        let started = starts_of(events, None, since);
        of.iter().all(|job| started.contains(job))
    };
    let took = rig.until("jobs of the other to start again", SOON, |events| again(events, &jobs[1])).await?;
    rig.demand_within("jobs of another dead node run again", took, lease + Duration::from_secs(5));
    let during = start_times(rig, producer, healthy).await?;
    let found = format!("{:.1} ms → {:.1} ms", before.as_secs_f64() * 1e3, during.as_secs_f64() * 1e3);
    let most = (before * 3).max(QUICK);
    rig.demand("healthy nodes start jobs as quickly, at most three times as late", found, during <= most);
    // Longer than nodes look again and again, in the full size.
    rig.go_on(Duration::from_secs(rig.profile.times(2, 130) as u64)).await;
    let early = starts_of(&rig.events()?, None, since).iter().filter(|job| jobs[0].contains(job)).count();
    rig.demand("nobody starts what is held", format!("{early} of {LONG}"), early == 0);
    holder.batch_execute("rollback").await?;
    rig.healed(fault);
    let took = rig.until("held jobs to start again", SOON * 2, |events| again(events, &jobs[0])).await?;
    let within = Duration::from_secs(rig.profile.times(3, 33) as u64);
    rig.demand_within("what was held runs again when it is let go", took, within);
    let stuck: Vec<i64> = jobs.concat();
    rig.processes[producer].tell(&crate::child::Command::Cancel { tenant: 0, jobs: stuck });
    rig.quiet(SOON).await
}

/// What is quick on a busy machine, whatever it was before.
const QUICK: Duration = Duration::from_millis(100);

/// How long a job waits for its start on a node, the median of some.
async fn start_times(rig: &mut Rig, producer: usize, at: usize) -> Result<Duration> {
    const JOBS: usize = 25;
    let since = mono();
    let proc = rig.processes[at].proc();
    for n in 1..=JOBS {
        rig.submit(producer, vec![Order::default()], 1);
        let started = |events: &[Event]| starts_of_others(events, proc, since).len() >= n;
        rig.until("a job to start", SOON, started).await?;
    }
    let events = rig.events()?;
    let mut times = starts_of_others(&events, proc, since);
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// How long each job waited that was acknowledged after `since` and started on a process.
fn starts_of_others(events: &[Event], proc: u32, since: u64) -> Vec<Duration> {
    let stored = |event: &Event| match event.what {
        What::SubmitOk { job, .. } if event.mono >= since => Some((job, event.mono)),
        _ => None,
    };
    let stored: std::collections::HashMap<i64, u64> = events.iter().filter_map(stored).collect();
    let waited = |event: &Event| match event.what {
        What::Start { job, .. } if event.proc == proc => {
            stored.get(&job).map(|at| Duration::from_micros(event.mono.saturating_sub(*at)))
        }
        _ => None,
    };
    events.iter().filter_map(waited).collect()
}
