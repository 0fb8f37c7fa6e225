//! Rows in which a standby takes over without the last commits of its primary, and in which the old primary comes back.
//! Called by `runner` through the matrix. What was lost is declared in the rules; nothing else may be.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::Client;
use windlass_testkit::servers::PostgresServer;

use super::seen::accepted;
use crate::child::{Load, Order, Settings};
use crate::event::{Event, What};
use crate::fleet::Under;
use crate::history::Undone;
use crate::log::mono;
use crate::rig::{Rig, SOON, connect};

/// Jobs with keys that are submitted before replication stops, and as many after.
const KEYED: usize = 20;

/// F15: the standby is promoted without the tail. What is lost is exactly that; callers who repeat their submits heal it.
pub(super) async fn lost_tail(rig: &mut Rig) -> Result<()> {
    let over = fail_over(rig).await?;
    let lost = lost(rig, &over).await?;
    rig.demand("the failover loses something", format!("{} jobs", lost.tail), lost.tail > 0);
    rig.demand("nothing older than the tail is lost", format!("{} jobs", lost.older), lost.older == 0);
    rig.demand("nothing of the tail is left", format!("{} jobs", lost.kept), lost.kept == 0);

    rig.submit(over.producer, keyed("before"), 4);
    rig.submit(over.producer, keyed("tail"), 4);
    let again = |events: &[Event]| answers(events, over.to).len() >= 2 * KEYED;
    rig.until("repeated submits to be answered", SOON, again).await?;
    let answers = answers(&rig.events()?, over.to);
    let count =
        |of: &str, duplicate| answers.iter().filter(|(key, was)| key.starts_with(of) && **was == duplicate).count();
    let (kept, healed) = (count("before", true), count("tail", false));
    rig.demand("repeats of what survived are duplicates", format!("{kept} of {KEYED}"), kept == KEYED);
    rig.demand("repeats of what was lost are new jobs", format!("{healed} of {KEYED}"), healed == KEYED);
    rig.quiet(Duration::from_secs(60)).await
}

/// F16: the old primary comes back, and the address leads to it again and again. Nobody works on it.
pub(super) async fn split_brain(rig: &mut Rig) -> Result<()> {
    let mut over = fail_over(rig).await?;
    tokio::task::block_in_place(|| over.old.start_again())?;
    let old = connect(&over.old.url(rig.database())).await?;
    let before = fingerprint(&old).await?;
    let mut slowest = Duration::ZERO;
    for _ in 0..rig.profile.times(2, 20) {
        rig.fault("the address leads to the old primary");
        rig.proxies[over.proxy].retarget(&address(&over.old));
        rig.proxies[over.proxy].reset();
        rig.go_on_for(1_000..5_000).await;
        let new = rig.server.as_ref().context("the row has a server of its own")?;
        rig.proxies[over.proxy].retarget(&address(new));
        rig.proxies[over.proxy].reset();
        rig.healed("the address leads to the old primary");
        let before = accepted(&rig.events()?);
        slowest = slowest.max(rig.until("work to go on", SOON, |events| accepted(events) > before).await?);
    }
    let after = fingerprint(&old).await?;
    rig.demand("the old primary accepts nothing", format!("{before} → {after}"), before == after);
    let refused = rig.count(|what| matches!(what, What::SubmitRefused { code, .. } if code == "refused"))?;
    rig.demand("callers are told", format!("{refused} were refused"), refused > 0);
    rig.demand_within("work goes on with the new primary", slowest, Duration::from_secs(10));
    rig.quiet(Duration::from_secs(60)).await
}

/// A failover that is over.
struct Over {
    /// The primary that was killed.
    old: PostgresServer,
    proxy: usize,
    producer: usize,
    /// Until when every commit is on the standby too, from when none is, and when all its answers had been read.
    from: u64,
    stopped: u64,
    to: u64,
}

async fn fail_over(rig: &mut Rig) -> Result<Over> {
    let proxy = rig.proxy().await?;
    let url = rig.url_through(proxy);
    for _ in 0..2 {
        rig.start(rig.settings.clone(), url.clone(), Under::default()).await?;
    }
    let producer = rig.start(Settings { concurrency: None, ..rig.settings.clone() }, url, Under::default()).await?;
    let seed = rig.seed();
    rig.load(producer, Load { seed, ..Load::default() });
    let primary = rig.server.as_ref().context("the row has a server of its own")?;
    let standby = tokio::task::block_in_place(|| PostgresServer::standby_of(primary))?;
    let follower = connect(&standby.admin_url()).await?;
    rig.submit(producer, keyed("before"), 4);
    rig.until("jobs with keys", SOON, |events| answers(events, 0).len() >= KEYED).await?;
    rig.go_on(Duration::from_secs(1)).await;

    let sql = rig.sql().await?;
    let from = mono();
    follows(&sql, &follower).await?;
    let sender: i32 = sql.query_one("select pid from pg_stat_replication", &[]).await?.get(0);
    rig.fault("replication stops");
    let pid = Pid::from_raw(sender).context("a process id")?;
    kill_process(pid, Signal::STOP).context("stop the sender of the log")?;
    let stopped = mono();
    // Whatever happens next, only the primary knows of it: jobs with keys, and a node that registers.
    rig.submit(producer, keyed("tail"), 4);
    rig.until("jobs with keys", SOON, |events| answers(events, 0).len() >= 2 * KEYED).await?;
    let at = rig.any(&rig.workers());
    rig.kill_9(at);
    rig.restart(at).await?;
    rig.go_on_for(1_000..2_000).await;

    rig.fault("the primary is killed");
    rig.server.as_mut().context("the row has a server of its own")?.kill_9();
    rig.fault("the standby is promoted");
    follower.query_one("select pg_promote(true, 60)", &[]).await.context("promote")?;
    // Answers of the old primary may be read a moment after its death; the new one has given none yet.
    let to = mono();
    rig.rules.undone.push(Undone { from_us: from, to_us: to });
    let database = rig.database().to_owned();
    rig.proxies[proxy].retarget(&address(&standby));
    let old = rig.stay_on(standby, &database).context("there was a primary")?;
    rig.healed("the primary is killed");
    let before = accepted(&rig.events()?);
    let took = rig.until("work to go on", SOON, |events| accepted(events) > before).await?;
    rig.demand_within("work goes on after the failover", took, Duration::from_secs(15));
    Ok(Over { old, proxy, producer, from, stopped, to })
}

/// Waits until the standby has all that the primary has committed by now.
async fn follows(primary: &Client, follower: &Client) -> Result<()> {
    let at: String = primary.query_one("select pg_current_wal_flush_lsn()::text", &[]).await?.get(0);
    let sql = format!("select coalesce(pg_last_wal_receive_lsn() >= '{at}'::pg_lsn, false)");
    let started = Instant::now();
    while !follower.query_one(&sql, &[]).await?.get::<_, bool>(0) {
        ensure!(started.elapsed() < SOON, "the standby does not follow");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Acknowledged jobs that are gone or not, by when they were acknowledged.
struct Lost {
    /// Acknowledged before anything could be lost, and gone.
    older: usize,
    /// Acknowledged while nothing was replicated, and gone.
    tail: usize,
    /// The same, and there.
    kept: usize,
}

async fn lost(rig: &Rig, over: &Over) -> Result<Lost> {
    /// Between the commit and the line in the book.
    const SLACK_US: u64 = 500_000;
    let rows = rig.sql().await?.query("select id from windlass.job", &[]).await?;
    let there: std::collections::HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
    let mut lost = Lost { older: 0, tail: 0, kept: 0 };
    for event in rig.events()?.iter() {
        let What::SubmitOk { job, duplicate: false, .. } = event.what else { continue };
        if event.mono < over.from {
            lost.older += usize::from(!there.contains(&job));
        } else if event.mono > over.stopped + SLACK_US && event.mono < over.to {
            lost.tail += usize::from(!there.contains(&job));
            lost.kept += usize::from(there.contains(&job));
        }
    }
    Ok(lost)
}

fn keyed(name: &str) -> Vec<Order> {
    let order = |n| Order { key: Some(format!("{name} {n}")), until_acknowledged: true, ..Order::default() };
    (0..KEYED).map(order).collect()
}

/// The last answer for each of the row's keys after a time: whether it was a duplicate.
fn answers(events: &[Event], after: u64) -> HashMap<String, bool> {
    let mut keys = HashMap::new();
    let mut answers = HashMap::new();
    for event in events.iter().filter(|event| event.mono > after) {
        match &event.what {
            What::SubmitCall { call, asked } => {
                let key = asked.key.as_ref().filter(|key| key.starts_with("before ") || key.starts_with("tail "));
                keys.extend(key.map(|key| (*call, key.clone())));
            }
            What::SubmitOk { call, duplicate, .. } => {
                answers.extend(keys.get(call).map(|key| (key.clone(), *duplicate)));
            }
            _ => {}
        }
    }
    answers
}

/// Changes with everything that anyone writes.
async fn fingerprint(client: &Client) -> Result<String> {
    let sql = "select (select count(*) from windlass.job) || ' jobs, ' || (select count(*) from windlass.outcome) ||
                      ' ended, ' || (select count(*) from windlass.lease) || ' leases, ' ||
                      (select count(*) from windlass.node) || ' nodes, last heartbeat ' ||
                      (select max(heartbeat_at) from windlass.node)";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

fn address(server: &PostgresServer) -> String {
    format!("127.0.0.1:{}", server.port())
}
