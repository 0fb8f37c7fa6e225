//! Step 2: takes ready jobs. Keeps in memory what makes a claim cheap: which lines there are, how far service has come
//! in each, and from where on a scan need look. All of it is a hint: a sweep every second finds what the hints hide.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashMapExt};
use parking_lot::Mutex;
use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::fair::{Line, Positions};
use windlass_core::store::{CHUNK_JOBS, Claim, Claimed, Error, LeaseId, Result, SUSPECT_QUEUES};
use windlass_core::{BatchId, ClaimedJob, JobId, NewJob, Payload, Priority, TenantId};

use crate::ground::connect::Access;
use crate::ground::rows::{Lenient, Row};
use crate::ground::types::{Json, Time, counter};
use crate::jobs::submit::rank_of;
use crate::{Held, PgStore};

/// Takes ready jobs under one new lease: `sql/jobs/claim.sql`. Chunks are served by ready_claim, jobs by the primary
/// key of their week.
const CLAIM: &str = "select * from windlass.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

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
            CLAIM,
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
                (&store.shared.quotas.quotas().has_caps(), Type::BOOL),
                (&claim.tenant.map(|tenant| tenant.0), Type::UUID),
            ],
        )
        .await?;
    let Some(about) = rows.first() else {
        // Nothing was asked for, or the node is not registered: it will learn that from its heartbeat.
        return Ok(Claimed { now: store.store_time().await?, jobs: Vec::new(), more: [false; 4] });
    };
    let publish = store.shared.lines.lock().learn(&claim, &plan, about, started.elapsed())?;
    if publish {
        store.sync_lines_soon();
    }
    let chunks = Chunk::all(&claim, about)?;
    let mut jobs: Vec<(usize, ClaimedJob, Held)> = Vec::with_capacity(rows.len());
    let places = places(&chunks, about.get(11)?);
    for row in &rows[1..] {
        // A job that is not among the claimed ones cannot be answered; were it so, it must not run.
        let Some((n, chunk, place)) = places.get(&row.get::<_, i64>(12)?) else { continue };
        let job = job(row, claim.lease, chunk);
        let held = Held {
            lease: job.lease,
            part: chunk.part,
            place: *place,
            tenant: chunk.tenant,
            priority: job.priority,
            ordering_key: job.ordering_key.clone(),
        };
        jobs.push((*n, job, held));
    }
    jobs.sort_unstable_by_key(|(n, ..)| *n);
    let (jobs, held): (Vec<ClaimedJob>, Vec<(JobId, Held)>) = jobs
        .into_iter()
        .map(|(_, job, held)| {
            let id = job.id;
            (job, (id, held))
        })
        .unzip();
    store.hold(held.into_iter());
    let more: i32 = about.get(1)?;
    Ok(Claimed { now: about.get::<_, Time>(0)?.0, jobs, more: std::array::from_fn(|band| more & (1 << band) != 0) })
}

/// Counts beyond what SQL can say are as good as no limit.
fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// What the jobs of one claimed chunk have in common.
struct Chunk<'a> {
    queue: &'a str,
    jobs: usize,
    tenant: Uuid,
    part: i16,
    failed: u16,
    recoveries: u16,
    resumed: bool,
}

impl<'a> Chunk<'a> {
    fn all(claim: &'a Claim, about: &Row) -> Result<Vec<Chunk<'a>>> {
        let line_queues: Vec<i32> = about.get::<_, Option<Vec<i32>>>(2)?.unwrap_or_default();
        let lines: Vec<i32> = about.get(4)?;
        let jobs: Vec<i32> = about.get(6)?;
        let tenants: Vec<Uuid> = about.get(7)?;
        let parts: Vec<i16> = about.get(8)?;
        let failed: Vec<i32> = about.get(9)?;
        let recoveries: Vec<i32> = about.get(10)?;
        let resumed: Vec<bool> = about.get(24)?;
        let queue = |line: i32| {
            let queue = *line_queues.get(line as usize - 1)?;
            claim.queues.get(queue as usize - 1).map(|(queue, _)| queue.as_str())
        };
        let chunk = |n: usize| Chunk {
            queue: queue(lines[n]).unwrap_or_default(),
            jobs: jobs[n] as usize,
            tenant: tenants[n],
            part: parts[n],
            failed: counter(failed[n]),
            recoveries: counter(recoveries[n]),
            resumed: resumed[n],
        };
        Ok((0..lines.len()).map(chunk).collect())
    }
}

/// Each claimed job with its number, its chunk, and its place in its part of the lease.
fn places<'a, 'b>(chunks: &'b [Chunk<'a>], ids: Vec<Option<i64>>) -> HashMap<i64, (usize, &'b Chunk<'a>, i16)> {
    let mut places = HashMap::with_capacity(ids.len());
    let (mut part, mut place) = (0, 0);
    let chunk_of = chunks.iter().flat_map(|chunk| std::iter::repeat_n(chunk, chunk.jobs));
    for (n, (id, chunk)) in ids.into_iter().zip(chunk_of).enumerate() {
        if chunk.part != part {
            (part, place) = (chunk.part, 0);
        }
        if let Some(id) = id {
            places.insert(id, (n, chunk, place));
        }
        place += 1;
    }
    places
}

/// A claimed job. What cannot be read of it is empty, and `unreadable` says what it is: the job must not run, and the
/// others of its claim must.
fn job(row: &Row, lease: LeaseId, chunk: &Chunk<'_>) -> ClaimedJob {
    let row = Lenient::new(row);
    let created_at = row.get::<_, Time>(16).0;
    let run_at = row.get::<_, Option<Time>>(17).map(|time| time.0);
    let spec = row.get::<_, Option<Json<'_>>>(22).map(Json::read).transpose().unwrap_or_else(|why| {
        row.fail(Error::Unreadable { column: "spec".into(), why });
        None
    });
    ClaimedJob {
        id: JobId::from_i64(row.get(12)),
        lease,
        tenant: TenantId(chunk.tenant),
        handler: row.get(13),
        queue: chunk.queue.to_owned(),
        priority: Priority(row.get(14)),
        payload: row.get::<_, Option<Json<'_>>>(15).map_or_else(Payload::null, Json::payload),
        failed: chunk.failed,
        recoveries: chunk.recoveries,
        created_at,
        ready_at: run_at.map_or(created_at, |at| at.max(created_at)),
        ordering_key: row.get(18),
        batch: row.get::<_, Option<i64>>(19).map(|id| BatchId(JobId::from_i64(id))),
        correlation_id: row.get(20),
        tags: row.get::<_, Option<Vec<String>>>(21).unwrap_or_default(),
        spec: spec.unwrap_or_default(),
        checkpoint: row.get::<_, Option<Json<'_>>>(23).map(Json::payload),
        resumed: chunk.resumed,
        unreadable: row.failure().map(|error| error.to_string()),
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

/// The queues of a claim, in an order that does not depend on whose turn it is.
fn names(claim: &Claim) -> Vec<String> {
    let mut names: Vec<String> = claim.queues.iter().map(|(queue, _)| queue.clone()).collect();
    names.sort_unstable();
    names
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
        let names = names(claim);
        // What one tenant has may stand anywhere; a look at its jobs alone says nothing of the others'.
        let alone = claim.tenant.is_some();
        let sweep = alone
            || self.swept.get(&names).is_none_or(|(at, cost)| at.elapsed() >= SWEEP_EVERY.max(*cost * SWEEP_SHARE));
        if sweep && !alone {
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
            let suspects = SUSPECT_QUEUES.iter().find_map(|kept| queue.strip_prefix(kept));
            let others = [Some(queue.as_str()), suspects]
                .into_iter()
                .flatten()
                .filter_map(|queue| self.known.get(queue))
                .flatten()
                .copied();
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
    fn learn(&mut self, claim: &Claim, plan: &Plan, about: &Row, took: Duration) -> Result<bool> {
        let queues: Option<Vec<i32>> = about.get(2)?;
        let ranks: Option<Vec<i16>> = about.get(3)?;
        let (queues, ranks) = (queues.unwrap_or_default(), ranks.unwrap_or_default());
        let line = |n: usize| {
            let queue = claim.queues.get((*queues.get(n)? as usize).checked_sub(1)?)?.0.clone();
            Some(Line { queue, priority: priority_of(*ranks.get(n)?) })
        };
        if plan.sweep {
            (0..queues.len()).filter_map(line).for_each(|line| self.know(&line));
        }
        if claim.tenant.is_some() {
            // Those before what was taken have not been served.
            return Ok(false);
        }
        if plan.sweep {
            self.swept.insert(names(claim), (Instant::now(), took));
        }
        let chunks: Vec<i32> = about.get(4)?;
        let positions: Vec<i64> = about.get(5)?;
        let jobs: Vec<i32> = about.get(6)?;
        let tenants: Vec<Uuid> = about.get(7)?;
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
        Ok(!chunks.is_empty() && self.is_old(PUBLISH_EVERY))
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

/// An exchange of positions under way. However it ends, also by a panic, the next one may begin.
struct Syncing(Arc<Mutex<Lines>>);

impl Syncing {
    fn begin(lines: &Arc<Mutex<Lines>>) -> Self {
        lines.lock().syncing = true;
        Syncing(lines.clone())
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        let mut lines = self.0.lock();
        (lines.syncing, lines.synced) = (false, Some(Instant::now()));
    }
}

fn priority_of(rank: i16) -> Priority {
    Priority((-i32::from(rank)).clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16)
}

/// Publishes how far service has come, and reads what others published: `sql/jobs/sync_lines.sql`.
const SYNC_LINES: &str = "select o_queue, o_rank, o_tenant, o_at from windlass.sync_lines($1, $2, $3, $4, $5, $6, $7)";

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
        let (store, syncing) = (self.clone(), Syncing::begin(&self.shared.lines));
        self.runtime().spawn(async move {
            let _syncing = syncing;
            if let Err(error) = store.sync_lines().await {
                tracing::debug!(%error, "could not publish positions; the next sweep corrects this");
            }
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
                SYNC_LINES,
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
            let line = Line { queue: row.get(0)?, priority: priority_of(row.get(1)?) };
            match row.get::<_, Option<Uuid>>(2)? {
                Some(tenant) => lines.positions.seen(&line, TenantId(tenant), row.get(3)?, 0),
                None => {
                    lines.positions.served(&line, row.get(3)?);
                    lines.know(&line);
                    lines.trail.entry(line).or_default().published = Some(row.get(3)?);
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

    /// A panic in an exchange must not be the last one: a process that only submits would never learn again where service
    /// stands.
    #[test]
    fn an_exchange_that_panics_is_followed_by_another() {
        let lines = Arc::new(Mutex::new(Lines::default()));
        let syncing = Syncing::begin(&lines);
        assert!(!lines.lock().is_old(Duration::ZERO), "one is under way");
        let exchange = std::thread::spawn(move || {
            let _syncing = syncing;
            panic!("as a bug would");
        });
        assert!(exchange.join().is_err());
        assert!(lines.lock().is_old(Duration::ZERO), "the next may begin");
        assert!(!lines.lock().is_old(Duration::from_secs(60)), "but not at once");
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
