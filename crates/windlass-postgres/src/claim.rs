//! Step 2: takes ready jobs. Keeps in memory what makes a claim cheap: which lines there are, how far service has come
//! in each, and from where on a scan need look. All of it is a hint: a sweep every second finds what the hints hide.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::fair::{Line, Positions};
use windlass_core::store::{CHUNK_JOBS, Claim, Claimed, LeaseId, Result};
use windlass_core::{BatchId, ClaimedJob, JobId, NewJob, Priority, TenantId};

use crate::connect::Access;
use crate::submit::rank_of;
use crate::types::{Json, Time, counter};
use crate::{Held, PgStore};

/// Takes at most `claim.max` jobs under one new lease.
pub(crate) async fn claim(store: &PgStore, claim: Claim) -> Result<Claimed> {
    let plan = store.shared.lines.lock().plan(&claim);
    let started = Instant::now();
    let queues: Vec<&str> = claim.queues.iter().map(|(queue, _)| queue.as_str()).collect();
    let limits: Vec<i32> = claim.queues.iter().map(|(_, limit)| count(*limit)).collect();
    let quota: Vec<i32> = claim.quota.iter().map(|jobs| count(*jobs)).collect();
    let rows = store
        .shared
        .pools
        .claim
        .query(
            Access::Write,
            include_str!("sql/claim.sql"),
            &[
                (&claim.node.0, Type::INT8),
                (&claim.lease.0, Type::INT8),
                (&count(claim.max), Type::INT4),
                (&quota, Type::INT4_ARRAY),
                (&queues, Type::TEXT_ARRAY),
                (&limits, Type::INT4_ARRAY),
                (&plan.queues, Type::INT4_ARRAY),
                (&plan.ranks, Type::INT2_ARRAY),
                (&plan.hints, Type::INT8_ARRAY),
                (&plan.chunk, Type::INT4),
                (&plan.sweep, Type::BOOL),
            ],
        )
        .await?;
    let Some(about) = rows.first() else {
        // Nothing was asked for, or the node is not registered: it will learn that from its heartbeat.
        return Ok(Claimed { now: store.store_time().await?, jobs: Vec::new(), more: [false; 4] });
    };
    let publish = store.shared.lines.lock().learn(&claim, &plan, about, started.elapsed());
    if publish {
        store.sync_lines_soon();
    }
    let queues = queues_of(&claim, about);
    let claimed = |row: &Row| {
        let n: i32 = row.get(8);
        let queue = queues.get(n as usize - 1).copied().unwrap_or_default();
        (n, job(row, claim.lease, queue))
    };
    let mut jobs: Vec<(i32, ClaimedJob)> = rows[1..].iter().map(claimed).collect();
    jobs.sort_unstable_by_key(|(n, _)| *n);
    let jobs: Vec<ClaimedJob> = jobs.into_iter().map(|(_, job)| job).collect();
    let held = |job: &ClaimedJob| Held {
        lease: job.lease,
        tenant: job.tenant.0,
        priority: job.priority,
        ordering_key: job.ordering_key.clone(),
    };
    store.hold(jobs.iter().map(|job| (job.id, held(job))));
    let more: i32 = about.get(1);
    Ok(Claimed { now: about.get::<_, Time>(0).0, jobs, more: std::array::from_fn(|band| more & (1 << band) != 0) })
}

/// Counts beyond what SQL can say are as good as no limit.
fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// The queue that each job was claimed from, in their order.
fn queues_of<'a>(claim: &'a Claim, about: &Row) -> Vec<&'a str> {
    let line_queues: Vec<i32> = about.get::<_, Option<Vec<i32>>>(2).unwrap_or_default();
    let chunks: Vec<i32> = about.get(4);
    let jobs: Vec<i32> = about.get(6);
    let queue = |line: i32| {
        let queue = *line_queues.get(line as usize - 1)?;
        claim.queues.get(queue as usize - 1).map(|(queue, _)| queue.as_str())
    };
    let chunks = chunks.into_iter().zip(jobs);
    chunks.flat_map(|(line, jobs)| std::iter::repeat_n(queue(line).unwrap_or_default(), jobs as usize)).collect()
}

fn job(row: &Row, lease: LeaseId, queue: &str) -> ClaimedJob {
    let created_at = row.get::<_, Time>("created_at").0;
    let run_at = row.get::<_, Option<Time>>("run_at").map(|time| time.0);
    ClaimedJob {
        id: JobId::from_i64(row.get("id")),
        lease,
        tenant: TenantId(row.get("tenant_id")),
        handler: row.get("handler"),
        queue: queue.to_owned(),
        priority: Priority(row.get("priority")),
        payload: row.get::<_, Json<'_>>("payload").payload(),
        failed: counter(row.get("failed")),
        recoveries: counter(row.get("recoveries")),
        created_at,
        ready_at: run_at.map_or(created_at, |at| at.max(created_at)),
        ordering_key: row.get("ordering_key"),
        batch: row.get::<_, Option<i64>>("batch_id").map(|id| BatchId(JobId::from_i64(id))),
        correlation_id: row.get("correlation_id"),
        tags: row.get::<_, Option<Vec<String>>>("tags").unwrap_or_default(),
        spec: row.get::<_, Option<Json<'_>>>("spec").map(Json::spec).unwrap_or_default(),
        checkpoint: row.get::<_, Option<Json<'_>>>("checkpoint").map(Json::payload),
    }
}

/// How far a hint stays behind service. Longer than any own transaction takes from choosing a position to its commit;
/// what commits later still (a user's transaction) is found by a sweep.
const HINT_LAG: Duration = Duration::from_secs(2);
/// How often a claim looks at everything, so that nothing hidden waits longer. Shorter than a poll, so that each look of
/// an idle node is a sweep.
const SWEEP_EVERY: Duration = Duration::from_millis(800);
/// Where sweeps are slow (an old snapshot keeps dead rows), they may take this part of the time: 1 in 20.
const SWEEP_SHARE: u32 = 20;
/// How often service is published.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);
/// Tenants this many jobs ahead of service are published, so that SQL submits keep to their turn.
const FAR_AHEAD: i64 = CHUNK_JOBS as i64;
/// How many of them at once; the rest follows the next time.
const FAR_AHEAD_MAX: usize = 1_000;
/// Queue lists whose sweeps are remembered; a process has a handful.
const REMEMBERED_SWEEPS: usize = 256;
/// Ranks remembered per queue; beyond that a sweep finds them.
const KNOWN_RANKS: usize = 32;
const NAMED: [Priority; 4] = [Priority::CRITICAL, Priority::HIGH, Priority::NORMAL, Priority::LOW];

/// What this process knows about lines.
#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) positions: Positions,
    /// Ranks beyond the named ones that have been seen in a queue.
    known: HashMap<String, BTreeSet<i16>>,
    /// How far service had come in a line, over the last seconds.
    trail: HashMap<Line, Trail>,
    swept: HashMap<Vec<String>, (Instant, Duration)>,
    /// Jobs per chunk, lately.
    chunk: f32,
    synced: Option<Instant>,
    syncing: bool,
}

#[derive(Default)]
struct Trail {
    served: VecDeque<(Instant, i64)>,
    published: Option<i64>,
}

/// What a claim looks at.
struct Plan {
    queues: Vec<i32>,
    ranks: Vec<i16>,
    hints: Vec<i64>,
    chunk: i32,
    sweep: bool,
}

impl Lines {
    /// Takes note that there may be jobs in a line.
    pub(crate) fn know(&mut self, line: &Line) {
        if NAMED.contains(&line.priority) {
            return;
        }
        let rank = rank_of(line.priority);
        match self.known.get_mut(&line.queue) {
            Some(ranks) if ranks.len() < KNOWN_RANKS => drop(ranks.insert(rank)),
            Some(_) => {}
            None => drop(self.known.insert(line.queue.clone(), BTreeSet::from([rank]))),
        }
    }

    fn plan(&mut self, claim: &Claim) -> Plan {
        let names: Vec<String> = claim.queues.iter().map(|(queue, _)| queue.clone()).collect();
        let sweep =
            self.swept.get(&names).is_none_or(|(at, cost)| at.elapsed() >= SWEEP_EVERY.max(*cost * SWEEP_SHARE));
        if sweep {
            if self.swept.len() >= REMEMBERED_SWEEPS {
                self.swept.clear();
            }
            self.swept.insert(names, (Instant::now(), Duration::ZERO));
        }
        // Jobs take their priorities along when they go from one queue to another: suspects from their own queue, what a
        // node routes elsewhere from any queue it claims from.
        let routed = claim.queues.iter().filter_map(|(queue, _)| self.known.get(queue)).flatten();
        let routed: BTreeSet<i16> = routed.copied().take(KNOWN_RANKS).collect();
        let mut lines = Vec::new();
        for (n, (queue, _)) in claim.queues.iter().enumerate() {
            let named = NAMED.map(rank_of);
            let known = [Some(queue.as_str()), queue.strip_prefix("suspect:")];
            let others = known.into_iter().flatten().filter_map(|queue| self.known.get(queue)).flatten().copied();
            let ranks: BTreeSet<i16> = named.into_iter().chain(others).chain(routed.iter().copied()).collect();
            lines.extend(ranks.into_iter().map(|rank| (priority_of(rank).band(), n as i32 + 1, rank)));
        }
        lines.sort_unstable();
        let hints = lines.iter().map(|(_, queue, rank)| {
            self.hint(&Line { queue: claim.queues[*queue as usize - 1].0.clone(), priority: priority_of(*rank) })
        });
        Plan {
            hints: hints.collect(),
            queues: lines.iter().map(|line| line.1).collect(),
            ranks: lines.iter().map(|line| line.2).collect(),
            chunk: (self.chunk.round() as i32).clamp(1, CHUNK_JOBS as i32),
            sweep,
        }
    }

    /// A position below which nothing live is expected in a line: never above what was published, because that is where
    /// others put what goes in front.
    fn hint(&self, line: &Line) -> i64 {
        let Some(trail) = self.trail.get(line) else { return i64::MIN };
        let lagging = trail.served.iter().rev().find(|(at, _)| at.elapsed() >= HINT_LAG).map(|(_, served)| *served);
        match (lagging, trail.published) {
            (Some(served), Some(published)) => served.min(published),
            _ => i64::MIN,
        }
    }

    /// Takes note of what a claim found; whether it is time to publish.
    fn learn(&mut self, claim: &Claim, plan: &Plan, about: &Row, took: Duration) -> bool {
        let queues: Option<Vec<i32>> = about.get(2);
        let ranks: Option<Vec<i16>> = about.get(3);
        let (queues, ranks) = (queues.unwrap_or_default(), ranks.unwrap_or_default());
        let line = |n: usize| {
            let queue = claim.queues.get((*queues.get(n)? as usize).checked_sub(1)?)?.0.clone();
            Some(Line { queue, priority: priority_of(*ranks.get(n)?) })
        };
        if plan.sweep {
            (0..queues.len()).filter_map(line).for_each(|line| self.know(&line));
            let names: Vec<String> = claim.queues.iter().map(|(queue, _)| queue.clone()).collect();
            self.swept.insert(names, (Instant::now(), took));
        }
        let chunks: Vec<i32> = about.get(4);
        let positions: Vec<i64> = about.get(5);
        let jobs: Vec<i32> = about.get(6);
        let tenants: Vec<Uuid> = about.get(7);
        for (n, chunk) in chunks.iter().enumerate() {
            let Some(line) = line((*chunk - 1) as usize) else { continue };
            self.positions.served(&line, positions[n]);
            self.positions.seen(&line, TenantId(tenants[n]), positions[n], jobs[n] as usize);
            let served = self.positions.front(&line);
            self.trail.entry(line).or_default().note(served);
        }
        if !chunks.is_empty() {
            let average = jobs.iter().sum::<i32>() as f32 / jobs.len() as f32;
            self.chunk = if self.chunk == 0.0 { average } else { self.chunk * 0.8 + average * 0.2 };
        }
        !chunks.is_empty() && self.is_old(PUBLISH_EVERY)
    }

    /// Whether the last exchange with the others is this old.
    fn is_old(&self, age: Duration) -> bool {
        !self.syncing && self.synced.is_none_or(|at| at.elapsed() >= age)
    }
}

impl Trail {
    fn note(&mut self, served: i64) {
        /// How finely the trail is kept.
        const STEP: Duration = Duration::from_millis(250);
        match self.served.back_mut() {
            Some((at, last)) if at.elapsed() < STEP => *last = served,
            _ => self.served.push_back((Instant::now(), served)),
        }
        // One that is old enough to be a hint stays; those before it say less.
        while self.served.get(1).is_some_and(|(at, _)| at.elapsed() >= HINT_LAG) {
            self.served.pop_front();
        }
    }
}

fn priority_of(rank: i16) -> Priority {
    Priority((-i32::from(rank)).clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16)
}

impl PgStore {
    /// Takes note of where these jobs wait or will wait.
    pub(crate) fn know_lines<'a>(&self, jobs: impl IntoIterator<Item = &'a NewJob>) {
        let unusual = jobs.into_iter().filter(|job| !NAMED.contains(&job.priority));
        for job in unusual {
            self.shared.lines.lock().know(&Line { queue: job.queue.clone(), priority: job.priority });
        }
    }

    /// Exchanges positions in the background, if the last time is a while ago: for processes that only submit.
    pub(crate) fn refresh_lines_if_old(&self) {
        if self.shared.lines.lock().is_old(SWEEP_EVERY) {
            self.sync_lines_soon();
        }
    }

    fn sync_lines_soon(&self) {
        let store = self.clone();
        self.shared.lines.lock().syncing = true;
        self.runtime().spawn(async move {
            if let Err(error) = store.sync_lines().await {
                tracing::debug!(%error, "positions were not published; sweeps make up for it");
            }
            let mut lines = store.shared.lines.lock();
            lines.syncing = false;
            lines.synced = Some(Instant::now());
        });
    }

    /// Publishes how far service has come here and learns how far it has come elsewhere.
    pub(crate) async fn sync_lines(&self) -> Result<()> {
        let mut served: Vec<(Line, i64)> = Vec::new();
        let mut ahead: Vec<(Line, Uuid, i64)> = Vec::new();
        {
            let lines = self.shared.lines.lock();
            for (line, at) in lines.positions.lines() {
                if at > 0 && lines.trail.get(line).is_none_or(|trail| trail.published != Some(at)) {
                    served.push((line.clone(), at));
                }
                let room = FAR_AHEAD_MAX.saturating_sub(ahead.len());
                let far = lines.positions.far_ahead(line, FAR_AHEAD);
                ahead.extend(far.into_iter().take(room).map(|(tenant, next)| (line.clone(), tenant.0, next)));
            }
        }
        let queues: Vec<&str> = served.iter().map(|(line, _)| line.queue.as_str()).collect();
        let ranks: Vec<i16> = served.iter().map(|(line, _)| rank_of(line.priority)).collect();
        let at: Vec<i64> = served.iter().map(|(_, at)| *at).collect();
        let tenant_queues: Vec<&str> = ahead.iter().map(|(line, _, _)| line.queue.as_str()).collect();
        let tenant_ranks: Vec<i16> = ahead.iter().map(|(line, _, _)| rank_of(line.priority)).collect();
        let tenants: Vec<Uuid> = ahead.iter().map(|(_, tenant, _)| *tenant).collect();
        let next: Vec<i64> = ahead.iter().map(|(_, _, next)| *next).collect();
        let rows = self
            .shared
            .pools
            .api
            .query(
                Access::Write,
                include_str!("sql/sync_lines.sql"),
                &[
                    (&queues, Type::TEXT_ARRAY),
                    (&ranks, Type::INT2_ARRAY),
                    (&at, Type::INT8_ARRAY),
                    (&tenant_queues, Type::TEXT_ARRAY),
                    (&tenant_ranks, Type::INT2_ARRAY),
                    (&tenants, Type::UUID_ARRAY),
                    (&next, Type::INT8_ARRAY),
                ],
            )
            .await?;
        let mut lines = self.shared.lines.lock();
        for row in &rows {
            let line = Line { queue: row.get(0), priority: priority_of(row.get(1)) };
            match row.get::<_, Option<Uuid>>(2) {
                Some(tenant) => lines.positions.seen(&line, TenantId(tenant), row.get(3), 0),
                None => {
                    lines.positions.served(&line, row.get(3));
                    lines.know(&line);
                    lines.trail.entry(line).or_default().published = Some(row.get(3));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line { queue: "default".into(), priority: Priority::NORMAL }
    }

    #[test]
    fn a_line_without_a_trail_is_scanned_from_the_front() {
        let mut lines = Lines::default();
        assert_eq!(lines.hint(&line()), i64::MIN);
        lines.trail.entry(line()).or_default().note(500);
        assert_eq!(lines.hint(&line()), i64::MIN, "too fresh, and not published");
    }

    #[test]
    fn a_hint_lags_behind_service_and_never_passes_what_was_published() {
        let mut lines = Lines::default();
        let long_ago = Instant::now().checked_sub(HINT_LAG * 2).expect("the machine has been up for seconds");
        let trail = lines.trail.entry(line()).or_default();
        trail.served.push_back((long_ago, 100));
        trail.note(900);
        assert_eq!(lines.hint(&line()), i64::MIN);
        lines.trail.get_mut(&line()).expect("there").published = Some(60);
        assert_eq!(lines.hint(&line()), 60);
        lines.trail.get_mut(&line()).expect("there").published = Some(700);
        assert_eq!(lines.hint(&line()), 100);
    }
}
