//! Load that makes queues collapse: `held-snapshot`, `backlog`, `unanalysed`, `tenants`, `bands`, `notify` and
//! `retention`. Called by `bench::run`. Each measures the same load without and with the stress in one run, and has a
//! pass line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use uuid::Uuid;
use windlass::postgres::{PgOptions, PgStore};
use windlass::store::Store;
use windlass::{JobService, Priority, SecurityContext, SubmitOptions, TenantId};

use crate::bench::figures::{Figure, Figures, Window, times};
use crate::bench::load::{Meter, Nap, Noop, Sleep, Submits, Work, caller, nanos, start_node, start_submitter};
use crate::bench::place::{Database, Throwaway, connect, failed};
use crate::bench::rates::FILL;
use crate::bench::{Bench, Outcome, rates};
use crate::error::{CliError, Result};

/// Jobs to find the highest rate with: a few seconds of them are enough.
const PROBE_JOBS: u64 = 40_000;
/// Jobs that the flooded node runs at once, and how long each takes: its slots are always full, its processors are not.
const FLOOD_SLOTS: usize = 100;
const FLOOD_MS: u64 = 20;
/// What is offered beside a flood: a trickle that an idle system does not notice.
const TRICKLE: f64 = 100.0;

/// A process that submits and a process that works. On PostgreSQL with a store each, so that jobs are claimed and not
/// born with the node that submits them; other stores belong to one process, which does both.
struct Pair {
    submitter: JobService,
    node: JobService,
    meter: Arc<Meter>,
}

impl Pair {
    async fn open(place: &Throwaway, workers: usize) -> Result<Pair> {
        let meter = Meter::new();
        // What floods is not what is measured.
        let builder =
            JobService::builder(place.open().await?).handler(Noop(meter.clone())).handler(Sleep(Meter::new()));
        let node = builder.concurrency(workers).start().await?;
        let submitter = match place.database() {
            Some(_) => start_submitter(place.open().await?).await?,
            None => node.clone(),
        };
        Ok(Pair { submitter, node, meter })
    }

    async fn close(self, place: &Throwaway) -> Result {
        self.submitter.shutdown().await;
        self.node.shutdown().await;
        drop(self);
        place.settle().await
    }

    /// As fast as it goes: jobs a second from the first submit to the last start.
    async fn highest_rate(&self, bench: &Bench, jobs: u64) -> Result<f64> {
        let before = self.meter.count().load(Ordering::Acquire);
        let submits = Submits { jobs, taken: Arc::default(), ..bench.submits(1) };
        let _shown = bench.progress.show("as fast as it goes", jobs, submits.taken.clone());
        let begun = Instant::now();
        submits.run(&self.submitter).await?;
        self.meter.until(before + jobs).await?;
        Ok(jobs as f64 / begun.elapsed().as_secs_f64())
    }

    /// Offers jobs at a steady rate, whatever becomes of them, and looks at what starts.
    async fn offer(&self, bench: &Bench, doing: &str, offer: Offer) -> Result<Offered> {
        let (begun, sent, count) = (Instant::now(), Arc::new(AtomicU64::new(0)), self.meter.count());
        let _shown = bench.progress.wait(doing, offer.time);
        let mut callers = JoinSet::new();
        for _ in 0..bench.submitters {
            callers.spawn(call(self.submitter.clone(), offer, begun, sent.clone(), bench.payload_bytes));
        }
        self.meter.forget();
        let (first, mut last) = (count.load(Ordering::Acquire), count.load(Ordering::Acquire));
        let (mut windows, mut waits) = (Vec::new(), times());
        let mut at = Duration::ZERO;
        while at < offer.time {
            let next = (at + offer.window).min(offer.time);
            tokio::time::sleep_until((begun + next).into()).await;
            let (now, some) = (count.load(Ordering::Acquire), self.meter.take_waits());
            windows.push(Window {
                stressed: offer.stressed,
                second: at.as_secs(),
                jobs_per_second: (now - last) as f64 / (next - at).as_secs_f64(),
                p99_ms: (!some.is_empty()).then(|| some.value_at_quantile(0.99) as f64 / 1e6),
            });
            waits.add(&some).expect("they have the same digits");
            (last, at) = (now, next);
        }
        let rate = (last - first) as f64 / offer.time.as_secs_f64();
        while let Some(called) = callers.join_next().await {
            called.map_err(|error| CliError::Failed(format!("a caller panicked: {error}")))??;
        }
        // What is still waiting belongs to this load, not to the next.
        self.meter.until(first + sent.load(Ordering::Acquire).min(offer.jobs())).await?;
        waits.add(self.meter.take_waits()).expect("they have the same digits");
        Ok(Offered { rate, waits, windows })
    }
}

/// A steady load.
#[derive(Clone, Copy)]
struct Offer {
    /// Jobs a second.
    rate: f64,
    time: Duration,
    window: Duration,
    /// Whether this is the load with the stress, for the report.
    stressed: bool,
    /// How many tenants share it.
    tenants: u64,
    priority: Priority,
}

impl Offer {
    fn jobs(&self) -> u64 {
        (self.rate * self.time.as_secs_f64()) as u64
    }
}

/// What became of a steady load.
struct Offered {
    rate: f64,
    waits: Histogram<u64>,
    windows: Vec<Window>,
}

impl Offered {
    fn wait(&self, quantile: f64) -> Option<f64> {
        (!self.waits.is_empty()).then(|| self.waits.value_at_quantile(quantile) as f64 / 1e6)
    }
}

/// Lateness of a caller that is the timer's, not the store's.
const TIMER: Duration = Duration::from_millis(3);

/// One caller of a steady load: takes the next job, waits until it is due, submits it. A caller that comes late because
/// the store was slow lets the wait count from when the job was due.
async fn call(service: JobService, offer: Offer, begun: Instant, sent: Arc<AtomicU64>, payload_bytes: usize) -> Result {
    loop {
        let n = sent.fetch_add(1, Ordering::AcqRel);
        if n >= offer.jobs() {
            return Ok(());
        }
        let due = begun + Duration::from_secs_f64(n as f64 / offer.rate);
        tokio::time::sleep_until(due.into()).await;
        let late = Some(due.elapsed()).filter(|late| *late > TIMER).unwrap_or_default();
        let ctx = tenant(if offer.tenants > 1 { rand::random_range(1..offer.tenants) } else { 0 });
        let options = SubmitOptions::new().priority(offer.priority);
        service.submit_with::<Noop>(&ctx, Work::late(payload_bytes, late), options).await?;
    }
}

fn tenant(n: u64) -> SecurityContext {
    SecurityContext::new(TenantId(Uuid::from_u128(n.into())))
}

/// The outcome of the same load without and with the stress.
fn compare(without: &Offered, with: &Offered, goal: &'static str, passes: impl Fn(f64, f64) -> bool) -> Outcome {
    let mut figures = Figures::default();
    figures.set(Figure::JobsPerSecond, with.rate);
    figures.set(Figure::BaselineJobsPerSecond, without.rate);
    figures.ratio(Figure::RatioToBaseline, Figure::JobsPerSecond, Figure::BaselineJobsPerSecond);
    figures.waits(&with.waits);
    figures.set(Figure::BaselineP50, without.wait(0.50));
    figures.set(Figure::BaselineP99, without.wait(0.99));
    figures.ratio(Figure::P99RatioToBaseline, Figure::P99, Figure::BaselineP99);
    let ratio = |figure| figures.get(figure).unwrap_or(f64::NAN);
    let passed = passes(ratio(Figure::RatioToBaseline), ratio(Figure::P99RatioToBaseline));
    let windows = without.windows.iter().chain(&with.windows).copied().collect();
    Outcome { windows, ..Outcome::judged(figures, goal, passed) }
}

/// Someone holds a snapshot open, so that nothing dead can be cleaned: half of the highest rate without and with it.
pub(crate) async fn held_snapshot(bench: &Bench) -> Result<Outcome> {
    let place = bench.target.make().await?;
    let database = postgres(&place, "held-snapshot")?;
    let pair = Pair::open(&place, bench.workers).await?;
    let rate = pair.highest_rate(bench, bench.jobs.min(PROBE_JOBS)).await? / 2.0;
    let without = pair.offer(bench, "without", steady(bench, rate, false)).await?;
    let holder = connect(database.url).await?;
    let snapshot = "begin isolation level repeatable read; select 1 from windlass.job limit 1";
    holder.batch_execute(snapshot).await.map_err(failed)?;
    let with = pair.offer(bench, "held", steady(bench, rate, true)).await?;
    holder.batch_execute("rollback").await.map_err(failed)?;
    drop(holder);
    pair.close(&place).await?;
    let goal = "the rate is at least 95 %, and the wait p99 at most 2 times, of the same load without the snapshot";
    Ok(compare(&without, &with, goal, |rate, p99| rate >= 0.95 && p99 <= 2.0))
}

/// The load of a whole scenario, in ten windows at most.
fn steady(bench: &Bench, rate: f64, stressed: bool) -> Offer {
    let window = (bench.seconds / 10).max(Duration::from_secs(1));
    Offer { rate, time: bench.seconds, window, stressed, tenants: 1, priority: Priority::NORMAL }
}

/// Statistics are never gathered and nothing is ever vacuumed: the highest rate without and with that.
pub(crate) async fn unanalysed(bench: &Bench) -> Result<Outcome> {
    let mut rates = Vec::new();
    for stressed in [false, true] {
        let place = bench.target.make().await?;
        let database = postgres(&place, "unanalysed")?;
        let client = connect(database.url).await?;
        if stressed {
            let sql = "do $$ declare t regclass; begin
                for t in select c.oid::regclass from pg_class c join pg_namespace n on n.oid = c.relnamespace
                         where n.nspname = 'windlass' and c.relkind = 'r' loop
                    execute format('alter table %s set (autovacuum_enabled = off)', t);
                end loop; end $$";
            client.batch_execute(sql).await.map_err(failed)?;
        } else {
            client.batch_execute("vacuum analyze").await.map_err(failed)?;
        }
        let pair = Pair::open(&place, bench.workers).await?;
        let first = pair.highest_rate(bench, bench.jobs / 2).await?;
        if !stressed {
            client.batch_execute("vacuum analyze").await.map_err(failed)?;
        }
        let second = pair.highest_rate(bench, bench.jobs / 2).await?;
        rates.push(2.0 / (1.0 / first + 1.0 / second));
        drop(client);
        pair.close(&place).await?;
    }
    let goal = "the rate is at least 90 % of that on tables that are vacuumed and analysed";
    Ok(compare_rates(rates[0], rates[1], goal, 0.90))
}

fn compare_rates(without: f64, with: f64, goal: &'static str, at_least: f64) -> Outcome {
    let mut figures = Figures::default();
    figures.set(Figure::JobsPerSecond, with);
    figures.set(Figure::BaselineJobsPerSecond, without);
    figures.ratio(Figure::RatioToBaseline, Figure::JobsPerSecond, Figure::BaselineJobsPerSecond);
    let passed = figures.get(Figure::RatioToBaseline).is_some_and(|ratio| ratio >= at_least);
    Outcome::judged(figures, goal, passed)
}

/// Many jobs wait, as many have ended and a fifth of them is scheduled: how fast the first of them are taken and ended,
/// compared with a store that holds nothing else.
pub(crate) async fn backlog(bench: &Bench) -> Result<Outcome> {
    let measured = bench.jobs.min(BACKLOG_MEASURED);
    let alone = {
        let place = bench.target.make().await?;
        fill(bench, &place, "filling", measured, SubmitOptions::new()).await?;
        drain_some(bench, &place, measured).await?
    };
    let place = bench.target.make().await?;
    fill(bench, &place, "filling: to be ended", bench.jobs, SubmitOptions::new()).await?;
    drain_some(bench, &place, bench.jobs).await?;
    let day = SubmitOptions::new().delay(Duration::from_secs(24 * 3600));
    fill(bench, &place, "filling: scheduled", bench.jobs / 5, day).await?;
    fill(bench, &place, "filling: waiting", bench.jobs, SubmitOptions::new()).await?;
    let deep = drain_some(bench, &place, measured).await?;
    let goal = "jobs are accepted and ended at 90 % of the rate of an otherwise empty store";
    Ok(compare_rates(alone, deep, goal, 0.90))
}

/// Jobs timed in a backlog: a few seconds of them.
const BACKLOG_MEASURED: u64 = 200_000;

async fn fill(bench: &Bench, place: &Throwaway, doing: &str, jobs: u64, options: SubmitOptions) -> Result {
    let service = start_submitter(place.open().await?).await?;
    let (ctx, done) = (caller(), Arc::new(AtomicU64::new(0)));
    let _shown = bench.progress.show(doing, jobs, done.clone());
    for first in (0..jobs).step_by(FILL as usize) {
        let works: Vec<Work> = (first..jobs.min(first + FILL)).map(|_| Work::now(bench.payload_bytes)).collect();
        done.fetch_add(works.len() as u64, Ordering::Relaxed);
        service.submit_many::<Noop>(&ctx, works, options.clone()).await?;
    }
    service.shutdown().await;
    drop(service);
    place.settle().await
}

/// Runs a node until so many jobs have started: jobs a second.
async fn drain_some(bench: &Bench, place: &Throwaway, jobs: u64) -> Result<f64> {
    let (store, meter) = (place.open().await?, Meter::new());
    let _shown = bench.progress.show("draining", jobs, meter.count());
    let begun = Instant::now();
    let node = start_node(store, bench.workers, &meter).await?;
    meter.until(jobs).await?;
    let took = begun.elapsed();
    node.shutdown().await;
    drop(node);
    place.settle().await?;
    Ok(jobs as f64 / took.as_secs_f64())
}

/// One of many tenants floods: what the others wait, without and with the flood.
pub(crate) async fn tenants(bench: &Bench) -> Result<Outcome> {
    let trickle = |stressed| Offer { rate: TRICKLE, tenants: TENANTS, ..steady(bench, TRICKLE, stressed) };
    flooded(bench, tenant(TENANTS), trickle, "the other tenants' wait p99 is at most 2 times that of an idle system")
        .await
}

/// Tenants that have jobs; one more floods.
const TENANTS: u64 = 10_000;

/// Ordinary jobs flood: what critical ones wait, without and with the flood.
pub(crate) async fn bands(bench: &Bench) -> Result<Outcome> {
    let critical = |stressed| Offer { priority: Priority::CRITICAL, ..steady(bench, TRICKLE, stressed) };
    flooded(bench, caller(), critical, "a critical job's wait p99 is at most 2 times that of an idle system").await
}

/// A trickle without and with a flood of `flooder`, on a node whose slots the flood keeps full.
async fn flooded(
    bench: &Bench,
    flooder: SecurityContext,
    trickle: impl Fn(bool) -> Offer,
    goal: &'static str,
) -> Result<Outcome> {
    let place = bench.target.make().await?;
    let pair = Pair::open(&place, FLOOD_SLOTS).await?;
    let without = pair.offer(bench, "idle", trickle(false)).await?;
    // More than can be run in the time, so that there is always more.
    let jobs = (bench.seconds.as_secs() + 5) * (FLOOD_SLOTS as u64 * 1_000 / FLOOD_MS);
    for first in (0..jobs).step_by(FILL as usize) {
        let naps = (first..jobs.min(first + FILL)).map(|_| Nap { at: nanos(), ms: FLOOD_MS }).collect();
        pair.submitter.submit_many::<Sleep>(&flooder, naps, SubmitOptions::new()).await?;
    }
    let with = pair.offer(bench, "flooded", trickle(true)).await?;
    // What is left of the flood goes with its place.
    pair.close(&place).await?;
    Ok(compare(&without, &with, goal, |_, p99| p99 <= 2.0))
}

/// Callers submit as fast as it goes while another node listens for wake-ups, and while nobody notifies or listens.
pub(crate) async fn notify(bench: &Bench) -> Result<Outcome> {
    let mut rates = [Vec::new(), Vec::new()];
    // Interleaved, because they are compared with each other.
    for _ in 0..NOTIFY_ROUNDS {
        for (on, rates) in [false, true].into_iter().zip(&mut rates) {
            let place = bench.target.make().await?;
            let database = postgres(&place, "notify")?;
            let open = || async {
                let options = PgOptions::new(database.url)?.listen(on);
                Ok::<Arc<dyn Store>, CliError>(Arc::new(PgStore::connect_with(options).await?))
            };
            let submitter = start_submitter(open().await?).await?;
            let listener = start_submitter(open().await?).await?;
            let submits = bench.submits(1);
            let _shown = bench.progress.show(if on { "waking" } else { "silent" }, bench.jobs, submits.taken.clone());
            let begun = Instant::now();
            submits.run(&submitter).await?;
            rates.push(bench.jobs as f64 / begun.elapsed().as_secs_f64());
            submitter.shutdown().await;
            listener.shutdown().await;
        }
    }
    let [silent, waking] = rates.map(|rates| rates.iter().sum::<f64>() / rates.len() as f64);
    let goal = "jobs are submitted at 90 % of the rate without wake-ups";
    Ok(compare_rates(silent, waking, goal, 0.90))
}

const NOTIFY_ROUNDS: usize = 3;

/// Jobs flow at half of the highest rate while a week of a million ended ones is dropped, and others are removed one by
/// one.
pub(crate) async fn retention(bench: &Bench) -> Result<Outcome> {
    let place = bench.target.make().await?;
    let database = postgres(&place, "retention")?;
    rates::fill(bench, place.open().await?).await?;
    drain_some(bench, &place, bench.jobs).await?;
    let pair = Pair::open(&place, bench.workers).await?;
    let rate = pair.highest_rate(bench, bench.jobs.min(PROBE_JOBS)).await? / 2.0;
    let by_second = |stressed| Offer { window: Duration::from_secs(1), ..steady(bench, rate, stressed) };
    let without = pair.offer(bench, "without", by_second(false)).await?;
    let store = place.open().await?;
    make_old(database, bench.jobs).await?;
    let cleaning = tokio::spawn(clean(store));
    let with = pair.offer(bench, "cleaning", by_second(true)).await?;
    cleaning.abort();
    let left = left_over(database).await?;
    pair.close(&place).await?;
    let worst = with.windows.iter().map(|window| window.jobs_per_second).fold(f64::INFINITY, f64::min) / without.rate;
    let goal = "no second is more than 10 % below the rate without the stress, and all jobs are removed in time";
    let mut outcome = compare(&without, &with, goal, |_, _| left == 0 && worst >= 0.9);
    outcome.figures.set(Figure::WorstSecond, worst);
    outcome.figures.set(Figure::LeftOver, left as f64);
    Ok(outcome)
}

/// Ended jobs that should be gone by now.
async fn left_over(database: Database<'_>) -> Result<i64> {
    let client = connect(database.url).await?;
    let sql = "select count(*) from windlass.outcome where purge_at <= now()";
    Ok(client.query_one(sql, &[]).await.map_err(failed)?.get(0))
}

/// Removes everything that is over, as maintenance does, only without its pauses.
async fn clean(store: Arc<dyn Store>) -> Result {
    /// As much at a time as maintenance does.
    const STEP: usize = 5_000;
    while store.clean(STEP).await? > 0 {}
    Ok(())
}

/// Makes the ended jobs over: half of them become a week that lies three weeks back, the rest are past their time.
async fn make_old(database: Database<'_>, jobs: u64) -> Result {
    let client = connect(database.url).await?;
    let sql = format!(
        "set windlass.packed = 'on';
        do $$ declare
            d date := date_trunc('week', now() at time zone 'UTC')::date - 28;
            n text := to_char(d, 'YYYYMMDD');
        begin
            execute format('create table windlass.%I partition of windlass.job for values from (%s) to (%s)',
                'job_p' || n, windlass.week_bound(d), windlass.week_bound(d + 7));
            execute format('create table windlass.%I partition of windlass.outcome for values from (%s) to (%s)',
                'outcome_p' || n, windlass.week_bound(d), windlass.week_bound(d + 7));
            insert into windlass.job (id, created_at, handler, payload)
                select windlass.week_bound(d) + k, now() - interval '28 days', 'bench.noop', '{{}}'
                from generate_series(1, {jobs}) k;
            insert into windlass.outcome (id, finished_at, purge_at, status, attempt, failed, recoveries)
                select windlass.week_bound(d) + k, now() - interval '28 days', now() - interval '14 days', 6, 1, 0, 0
                from generate_series(1, {jobs}) k;
        end $$;
        update windlass.outcome set purge_at = now() - interval '1 hour' where purge_at > now();
        vacuum analyze"
    );
    // One by one: vacuum does not run inside a transaction, which several statements at once would be.
    for statement in split(&sql) {
        client.batch_execute(statement).await.map_err(failed)?;
    }
    Ok(())
}

/// The statements of a script whose only semicolons before a line end are at top level or inside `$$`.
fn split(script: &str) -> Vec<&str> {
    let mut statements = Vec::new();
    let (mut from, mut inside) = (0, false);
    for (at, _) in script.char_indices() {
        if script[at..].starts_with("$$") {
            inside = !inside;
        }
        if !inside && script[at..].starts_with(';') {
            statements.push(&script[from..at]);
            from = at + 1;
        }
    }
    statements.push(&script[from..]);
    statements
}

fn postgres<'a>(place: &'a Throwaway, scenario: &str) -> Result<Database<'a>> {
    let missing = || CliError::invalid("store", format!("{scenario} needs PostgreSQL; use postgres://…"));
    place.database().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_split_between_its_statements() {
        assert_eq!(split("set a; do $$ b; c; $$; d"), ["set a", " do $$ b; c; $$", " d"]);
    }
}
