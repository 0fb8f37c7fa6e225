//! Rows in which the way between processes and PostgreSQL is slow, one-way, cut, or loses the answer that matters. Called
//! by `runner` through the matrix. The weather is made by `proxy`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::seq::SliceRandom;
use tokio_postgres::SimpleQueryMessage;
use windlass::store::CHUNK_JOBS;
use windlass_testkit::servers::{PgBouncer, PgBouncerOptions, StopMode};

use super::seen::{effects, most_recoveries, nodes_of, starts_of};
use crate::Profile;
use crate::child::{Load, Order, Settings, Todo};
use crate::event::{Event, What};
use crate::fleet::Under;
use crate::log::mono;
use crate::proxy::{self, Direction, Only, Protocol, Proxy, Then};
use crate::rig::{Rig, SOON, connect};
use crate::sabotage::Sabotage;

/// A listening connection is checked every 30 s and has 5 s to answer; the rest is for a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(40);

/// F05: only the connection that listens for wake-ups goes silent. Jobs are found by polling, and the silence is noticed.
pub(super) async fn deaf_listener(rig: &mut Rig) -> Result<()> {
    let proxy = rig.proxy().await?;
    let url = rig.url_through(proxy);
    rig.start(rig.settings.clone(), url, Under::default()).await?;
    let producer = rig.producer().await?;
    rig.submit(producer, vec![Order::default()], 1);
    rig.until("the first job to end", SOON, |events| effects(events) >= 1).await?;
    rig.fault("the listening connection is silent");
    rig.proxies[proxy].only(Only::Listener);
    rig.proxies[proxy].blackhole(Direction::Both);
    let connections = rig.proxies[proxy].counters().connections;
    let mut slowest = Duration::ZERO;
    let silent = Instant::now();
    let mut noticed = None;
    let mut submitted = 1;
    while silent.elapsed() < NOTICED_WITHIN && noticed.is_none() {
        submitted += 1;
        rig.submit(producer, vec![Order::default()], 1);
        let took = rig.until("a job to end without wake-ups", SOON, |events| effects(events) >= submitted).await?;
        slowest = slowest.max(took);
        noticed = (rig.proxies[proxy].counters().connections > connections).then(|| silent.elapsed());
        rig.go_on(Duration::from_millis(300)).await;
    }
    rig.demand_within("a job is picked up without wake-ups", slowest, Duration::from_secs(3));
    let noticed = noticed.unwrap_or(Duration::MAX);
    rig.demand_within("the silence is noticed", noticed.min(Duration::from_secs(3600)), NOTICED_WITHIN);
    rig.proxies[proxy].heal();
    rig.healed("the listening connection is silent");
    rig.quiet(SOON).await
}

/// F06: everything goes through PgBouncer in transaction mode, with two sessions for all.
pub(super) async fn pooled(rig: &mut Rig) -> Result<()> {
    let server = rig.server.as_ref().context("the row has a server of its own")?;
    let mut options = PgBouncerOptions::default();
    options.pool_size = 2;
    let bouncer = PgBouncer::start(server, options)?;
    let database = rig.url.rsplit_once('/').context("the URL names a database")?.1.to_owned();
    let pooled = bouncer.url(&database);
    let mut url = pooled.replacen("postgres@", "faults_node@", 1);
    if let Some((said, heard)) = rig.sabotage.and_then(Sabotage::instead) {
        let proxy = Proxy::start(&format!("127.0.0.1:{}", bouncer.port()), Protocol::Postgres, rig.seed()).await?;
        proxy.say_instead(said, heard);
        url = proxy.url(&url);
        rig.proxies.push(proxy);
    }
    rig.bouncer = Some(bouncer);
    rig.fault("two sessions for six processes");
    for _ in 0..2 {
        rig.start(rig.settings.clone(), url.clone(), Under::default()).await?;
    }
    for _ in 0..4 {
        let producer = rig.start(Settings { concurrency: None, ..rig.settings.clone() }, url.clone(), Under::default());
        let producer = producer.await?;
        let seed = rig.seed();
        rig.load(producer, Load { seed, pause_ms: 5, tenants: 6, ..Load::default() });
    }
    rig.go_on(Duration::from_secs(rig.profile.times(6, 60) as u64)).await;
    rig.quiet(Duration::from_secs(60)).await?;
    let refused = rig.count(|what| matches!(what, What::SubmitRefused { .. } | What::SubmitUnknown { .. }))?;
    rig.demand("no submit fails", format!("{refused} did"), refused == 0);
    let failed = rig.count(|what| matches!(what, What::FinishFailed { .. }))?;
    rig.demand("no finish fails", format!("{failed} did"), failed == 0);
    // The pooler's own sessions go before the last look at the server.
    let sql = rig.sql().await?;
    let locks: i64 = sql.query_one("select count(*) from pg_locks where locktype = 'advisory'", &[]).await?.get(0);
    rig.demand("no advisory lock is left", locks, locks == 0);
    // Whoever gets one of these sessions next must not find a tenant in it.
    let mut found = BTreeSet::new();
    for _ in 0..20 {
        let next = connect(&pooled).await?;
        let sql = "select coalesce(current_setting('windlass.tenant', true), '')";
        for message in next.simple_query(sql).await? {
            if let SimpleQueryMessage::Row(row) = message {
                found.insert(row.get(0).unwrap_or_default().to_owned());
            }
        }
    }
    found.remove("");
    rig.demand("no tenant is left in a session", format!("{found:?}"), found.is_empty());
    for process in &mut rig.processes {
        process.stop(SOON).await?;
    }
    rig.bouncer = None;
    Ok(())
}

/// F07: one of two nodes is cut off from the database in both directions for longer than its lease.
pub(super) async fn partitioned(rig: &mut Rig) -> Result<()> {
    let proxy = rig.proxy().await?;
    let url = rig.url_through(proxy);
    let cut_off = rig.start(rig.settings.clone(), url, Under::default()).await?;
    let seed = rig.seed();
    rig.fleet(1, Load { seed, job_ms: 400, ..Load::default() }).await?;
    let proc = rig.processes[cut_off].proc();
    let mut resumed = Duration::ZERO;
    for _ in 0..rig.profile.times(1, 5) {
        rig.go_on_for(800..1_600).await;
        rig.fault(format!("process {proc} is cut off"));
        rig.proxies[proxy].blackhole(Direction::Both);
        let lease = rig.settings.lease;
        rig.go_on(lease * rig.profile.times(3, 20) as u32).await;
        rig.proxies[proxy].heal();
        rig.healed(format!("process {proc} is cut off"));
        let claimed = |events: &[Event]| {
            events.iter().filter(|event| event.proc == proc && matches!(event.what, What::Claim { .. })).count()
        };
        let before = claimed(&rig.events()?);
        resumed = resumed.max(rig.until("the node to claim again", SOON, |events| claimed(events) > before).await?);
    }
    rig.demand_within("the node works again after healing", resumed, Duration::from_secs(10));
    rig.quiet(Duration::from_secs(60)).await
}

/// F66: nobody reaches the database for longer than any lease lasts, and the nodes come back one after the other. An outage
/// kills nobody (decision 8): no node is declared dead and no job is charged.
pub(super) async fn outage(rig: &mut Rig) -> Result<()> {
    let short = rig.profile == Profile::Short;
    // Long enough that those who come back last have time, on a machine on which other rows run too.
    let lease = Duration::from_secs(if short { 6 } else { 10 });
    let time = if short { lease * 5 / 2 } else { Duration::from_secs(60) };
    rig.set_lease(lease);
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let proxy = rig.proxy().await?;
        let url = rig.url_through(proxy);
        nodes.push((rig.start(rig.settings.clone(), url, Under::default()).await?, proxy));
    }
    let producer = rig.producer().await?;
    let seed = rig.seed();
    rig.load(producer, Load { seed, pause_ms: 40, ..Load::default() });
    let ms = u64::try_from((lease * 2).as_millis())?;
    let procs: Vec<u32> = nodes.iter().map(|(at, _)| rig.processes[*at].proc()).collect();
    let long = Order { todo: Todo { ms, ..Todo::default() }, ..Order::default() };
    rig.submit(producer, vec![long.clone(); 12], 4);
    let all_work =
        |events: &[Event], since: u64| procs.iter().all(|proc| !starts_of(events, Some(*proc), since).is_empty());
    rig.until("every node to run jobs", SOON, |events| all_work(events, 0)).await?;
    rig.go_on_for(500..1_500).await;

    rig.fault(format!("nobody reaches the database for {} s", time.as_secs()));
    for (n, (_, proxy)) in nodes.iter().enumerate() {
        // A network can be gone in two ways.
        match n % 2 {
            0 => rig.proxies[*proxy].blackhole(Direction::Both),
            _ => rig.proxies[*proxy].cut(),
        }
    }
    rig.go_on(time).await;
    let mut order = nodes.clone();
    order.shuffle(&mut rig.rng);
    for (n, (_, proxy)) in order.into_iter().enumerate() {
        // The first of them sees the others silent for long, by the clock of the database.
        rig.go_on(if n == 0 { Duration::ZERO } else { lease / 5 }).await;
        rig.proxies[proxy].heal();
    }
    rig.healed("nobody reaches the database");
    work_goes_on(rig, &procs, mono()).await?;

    if !short {
        rig.submit(producer, vec![long; 12], 4);
        rig.go_on(Duration::from_secs(3)).await;
        rig.fault(format!("the server is gone for {} s", time.as_secs()));
        let server = rig.server.as_mut().context("the row has a server of its own")?;
        tokio::task::block_in_place(|| server.stop(StopMode::Fast))?;
        rig.go_on(time).await;
        let server = rig.server.as_mut().context("the row has a server of its own")?;
        tokio::task::block_in_place(|| server.start_again())?;
        rig.healed("the server is gone");
        work_goes_on(rig, &procs, mono()).await?;
    }
    rig.quiet(Duration::from_secs(60)).await?;
    let events = rig.events()?;
    let stopped = rig.count(|what| matches!(what, What::Told { lease_lost: true, .. }))?;
    rig.demand("nodes stop their jobs when they are late", format!("{stopped} were stopped"), stopped > 0);
    let dead = rig.count(|what| matches!(what, What::Recovered { .. } | What::Beat { alive: false, .. }))?;
    rig.demand("no node is declared dead", format!("{dead} times"), dead == 0);
    let most = most_recoveries(&events);
    rig.demand("no job is charged a recovery", format!("{most} at most"), most == 0);
    let same = procs.iter().filter(|proc| nodes_of(&events, **proc).len() == 1).count();
    rig.demand("each node keeps its id", format!("{same} of {}", procs.len()), same == procs.len());
    Ok(())
}

/// Demands that every node starts jobs soon.
async fn work_goes_on(rig: &mut Rig, procs: &[u32], since: u64) -> Result<()> {
    let works = |events: &[Event]| procs.iter().all(|proc| !starts_of(events, Some(*proc), since).is_empty());
    let took = rig.until("every node to start jobs again", SOON, works).await?;
    rig.demand_within("every node starts jobs again", took, Duration::from_secs(5));
    Ok(())
}

/// F08: what processes send arrives, but the answers are lost, for a while, again and again.
pub(super) async fn one_way(rig: &mut Rig) -> Result<()> {
    let proxy = all_through_a_proxy(rig, false).await?;
    for _ in 0..rig.profile.times(3, 30) {
        rig.go_on_for(600..1_200).await;
        rig.fault("answers are lost");
        rig.proxies[proxy].blackhole(Direction::ToClient);
        rig.go_on_for(500..1_500).await;
        // What was lost stays lost: a real network would not deliver half an answer later.
        rig.proxies[proxy].reset();
        rig.proxies[proxy].heal();
        rig.healed("answers are lost");
    }
    rig.quiet(Duration::from_secs(90)).await
}

/// F09: the answers of commits are held, then the connection is reset: it happened, and nobody knows.
pub(super) async fn lost_commits(rig: &mut Rig) -> Result<()> {
    let proxy = all_through_a_proxy(rig, true).await?;
    let rounds = rig.profile.times(25, 200);
    for _ in 0..rounds {
        rig.fault("the answer of a commit is lost");
        let hold = Duration::from_millis(rand::RngExt::random_range(&mut rig.rng, 20..150));
        rig.proxies[proxy].hold_next(1, proxy::What::Commit, hold, Then::Reset);
        rig.go_on_for(100..250).await;
    }
    rig.proxies[proxy].heal();
    let held = rig.proxies[proxy].counters().held;
    rig.demand("answers of commits were lost", held, held as usize >= rounds / 2);
    let began = Instant::now();
    rig.quiet(Duration::from_secs(90)).await?;
    // A node that only waits until it has missed its jobs for long would take this long at least.
    let missed = rig.settings.deadline + rig.settings.lease;
    rig.demand_within("what lost answers have left behind is run", began.elapsed(), missed);
    let unknown = rig.count(|what| matches!(what, What::SubmitUnknown { .. }))?;
    rig.demand("submits of unknown outcome are called unknown", format!("{unknown} were"), unknown > 0);
    Ok(())
}

/// F10: callers drop their calls at any moment.
pub(super) async fn dropped_calls(rig: &mut Rig) -> Result<()> {
    rig.worker().await?;
    let producer = rig.producer().await?;
    let seed = rig.seed();
    rig.fault("calls are dropped within 2 ms");
    rig.load(producer, Load { seed, tasks: 8, pause_ms: 10, drops: true, ..Load::default() });
    rig.go_on(Duration::from_secs(rig.profile.times(4, 60) as u64)).await;
    rig.end_loads();
    rig.healed("calls are dropped within 2 ms");
    if rig.store == crate::StoreKind::Postgres {
        rig.go_on(Duration::from_secs(1)).await;
        let sql = "select count(*) from pg_stat_activity
                   where datname = current_database() and state like 'idle in transaction%'";
        let idle: i64 = rig.sql().await?.query_one(sql, &[]).await?.get(0);
        rig.demand("no session is idle in a transaction a second later", idle, idle == 0);
    }
    // The connections are as good as before.
    let before = rig.count(|what| matches!(what, What::SubmitOk { .. }))?;
    rig.submit(producer, vec![Order::default(); 50], 8);
    let acknowledged = |events: &[Event]| {
        events.iter().filter(|event| matches!(event.what, What::SubmitOk { .. })).count() >= before + 50
    };
    let took = rig.until("submits after the storm", SOON, acknowledged).await?;
    rig.demand_within("50 submits after the storm are acknowledged", took, Duration::from_secs(5));
    rig.quiet(Duration::from_secs(60)).await
}

/// F48: a slow network that drops connections and delivers in pieces.
pub(super) async fn bad_weather(rig: &mut Rig) -> Result<()> {
    let proxy = all_through_a_proxy(rig, false).await?;
    for (mean, jitter) in [(50, 30), (200, 100)] {
        rig.fault(format!("{mean} ms of latency, 5 % of connections reset each second, small packets"));
        rig.proxies[proxy].latency(Duration::from_millis(mean), Duration::from_millis(jitter));
        rig.proxies[proxy].reset_share(0.05);
        rig.proxies[proxy].split(97);
        let before = rig.count(|what| matches!(what, What::Effect { .. }))?;
        rig.go_on(Duration::from_secs(rig.profile.times(5, 60) as u64)).await;
        let effects = rig.count(|what| matches!(what, What::Effect { .. }))? - before;
        rig.demand(format!("work goes on with {mean} ms of latency"), format!("{effects} effects"), effects > 0);
    }
    rig.proxies[proxy].heal();
    rig.healed("bad weather");
    rig.quiet(Duration::from_secs(90)).await
}

/// Two workers and a producer, all behind one proxy; with `both`, the first worker submits too, so that jobs are born on it.
async fn all_through_a_proxy(rig: &mut Rig, both: bool) -> Result<usize> {
    let proxy = rig.proxy().await?;
    let url = rig.url_through(proxy);
    for n in 0..2 {
        let worker = rig.start(rig.settings.clone(), url.clone(), Under::default()).await?;
        if both && n == 0 {
            let seed = rig.seed();
            rig.load(worker, Load { seed, tasks: 2, ..Load::default() });
        }
    }
    let settings = Settings { concurrency: None, ..rig.settings.clone() };
    let producer = rig.start(settings, url, Under::default()).await?;
    let seed = rig.seed();
    rig.load(producer, Load { seed, transactions: true, ..Load::default() });
    Ok(proxy)
}

/// How many jobs of others may start while a job of a tenant waits that has nothing else: a chunk, because writes that are
/// under way at the same time may be committed out of their order, and the rounds of claims that are under way.
const NOISE_BEFORE: usize = CHUNK_JOBS + 3 * NOISY_SLOTS;

/// Slots for both tenants.
const NOISY_SLOTS: usize = 4;

/// F50: one tenant submits thousands of jobs, another a few. The few do not wait behind the many.
pub(super) async fn noisy_tenant(rig: &mut Rig) -> Result<()> {
    rig.settings.concurrency = Some(NOISY_SLOTS);
    rig.worker().await?;
    let producer = rig.producer().await?;
    let noise = Order { tenant: 0, todo: Todo { ms: 20, ..Todo::default() }, ..Order::default() };
    let quiet = Order { tenant: 1, ..noise.clone() };
    let many = rig.profile.times(1_500, 100_000);
    rig.fault(format!("a tenant submits {many} jobs"));
    rig.submit(producer, vec![noise; many], 64);
    let stored =
        |events: &[Event]| events.iter().filter(|event| matches!(event.what, What::SubmitOk { .. })).count() >= many;
    rig.until("the noise to be stored", Duration::from_secs(120), stored).await?;
    let others = crate::child::tenant(1).0;
    let of_others = move |what: &What| matches!(what, What::Start { tenant, .. } if *tenant == others);
    for n in 1..=10 {
        rig.submit(producer, vec![quiet.clone()], 1);
        let began = |events: &[Event]| events.iter().filter(|event| of_others(&event.what)).count() >= n;
        rig.until("a quiet tenant's job to start", SOON, began).await?;
    }
    let left = rig.unfinished().await?;
    rig.demand("the noise is still there when the quiet tenant's jobs are done", left, left > 0);
    // By what the processes wrote down: what the harness sees of it comes later when the machine is busy.
    let events = rig.events()?;
    let mut slowest = Duration::ZERO;
    let mut most_before = 0;
    for start in events.iter().filter(|event| of_others(&event.what)) {
        let What::Start { job, .. } = start.what else { continue };
        let stored = |event: &&Event| matches!(event.what, What::SubmitOk { job: stored, .. } if stored == job);
        let stored = events.iter().find(stored).context("what started was stored")?.mono;
        let waited = stored..start.mono;
        let before = |event: &&Event| waited.contains(&event.mono) && matches!(event.what, What::Start { .. });
        most_before = most_before.max(events.iter().filter(before).count());
        slowest = slowest.max(Duration::from_micros(start.mono.saturating_sub(stored)));
    }
    let most = format!("at most {NOISE_BEFORE} of {many} jobs of the noise start while a quiet tenant's job waits");
    rig.demand(most, most_before, most_before <= NOISE_BEFORE);
    rig.demand_within("a quiet tenant's job starts", slowest, Duration::from_secs(2));
    rig.quiet(Duration::from_secs(90)).await
}
