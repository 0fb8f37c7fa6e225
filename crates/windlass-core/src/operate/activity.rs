//! What happens to jobs, counted: totals of this process for metrics, and the past of the whole installation for
//! charts. The runtime tells a [`Tally`] of submits, starts and finishes, a batch at a time; every few seconds what has
//! come together is added to the store, in buckets. Never asks a store to count jobs.

use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};

use crate::model::clock::Timestamp;
use crate::model::error::InvalidInput;
use crate::model::job::{NewJob, Status};
use crate::model::priority::{Band, Priority};
use crate::model::tenant::{Scope, TenantId};
use crate::store::{Counts, Submitted};

/// What came together: how many jobs went which way, and how long they took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Sums {
    /// Jobs stored, callbacks included; duplicates are not.
    pub submitted: u64,
    /// Attempts begun.
    pub started: u64,
    /// Jobs that ended well.
    pub succeeded: u64,
    /// Attempts that failed, whatever became of their jobs.
    pub failed: u64,
    /// Failed attempts that are tried again.
    pub retried: u64,
    /// Jobs that ended as canceled.
    pub canceled: u64,
    /// Jobs that became dead letters.
    pub dead_lettered: u64,
    /// How long jobs were ready before their first attempt began.
    pub wait: Histogram,
    /// How long attempts ran.
    pub run: Histogram,
}

impl Sums {
    /// How many numbers [`Sums::values`] has.
    pub const VALUES: usize = 7 + 2 * (Histogram::BUCKETS + 1);

    /// Adds another one.
    pub fn merge(&mut self, other: &Sums) {
        let counters = [other.submitted, other.started, other.succeeded, other.failed, other.retried];
        let own = [&mut self.submitted, &mut self.started, &mut self.succeeded, &mut self.failed, &mut self.retried];
        for (own, other) in own.into_iter().zip(counters) {
            *own += other;
        }
        self.canceled += other.canceled;
        self.dead_lettered += other.dead_lettered;
        self.wait.merge(&other.wait);
        self.run.merge(&other.run);
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        *self == Sums::default()
    }

    /// The numbers that stores keep. Two of them are added number by number.
    pub fn values(&self) -> Vec<i64> {
        let counters = [
            self.submitted,
            self.started,
            self.succeeded,
            self.failed,
            self.retried,
            self.canceled,
            self.dead_lettered,
        ];
        let times =
            [&self.wait, &self.run].into_iter().flat_map(|times| [times.micros].into_iter().chain(times.buckets));
        counters.into_iter().chain(times).map(|n| i64::try_from(n).unwrap_or(i64::MAX)).collect()
    }

    /// From the numbers that stores keep; what is missing is 0.
    pub fn from_values(values: &[i64]) -> Sums {
        let mut values = values.iter().map(|n| u64::try_from(*n).unwrap_or(0));
        let mut next = || values.next().unwrap_or(0);
        let mut sums = Sums {
            submitted: next(),
            started: next(),
            succeeded: next(),
            failed: next(),
            retried: next(),
            canceled: next(),
            dead_lettered: next(),
            ..Sums::default()
        };
        for times in [&mut sums.wait, &mut sums.run] {
            times.micros = next();
            times.buckets = std::array::from_fn(|_| next());
        }
        sums
    }
}

/// How often something took how long, in fixed buckets. Two of them are added bucket by bucket, also from other nodes.
///
/// ```
/// use std::time::Duration;
/// use windlass_core::Histogram;
/// let mut times = Histogram::default();
/// (1..=100).for_each(|n| times.record(Duration::from_millis(n)));
/// let half = times.quantile(0.5).unwrap();
/// assert!(half > Duration::from_millis(40) && half < Duration::from_millis(60));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; Histogram::BUCKETS],
    micros: u64,
}

impl Histogram {
    /// The upper bounds of the buckets in seconds; the last bucket has none. Close together where starts are, and never
    /// changed: what is stored was counted by them.
    pub const BOUNDS: [f64; 21] = [
        0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
        600.0, 1800.0, 3600.0,
    ];

    /// How many buckets there are.
    pub const BUCKETS: usize = Histogram::BOUNDS.len() + 1;

    /// The same bounds in microseconds, because comparing whole numbers is what every start and finish does.
    const BOUNDS_MICROS: [u64; 21] = {
        let mut bounds = [0; 21];
        let mut n = 0;
        while n < bounds.len() {
            bounds[n] = (Histogram::BOUNDS[n] * 1e6) as u64;
            n += 1;
        }
        bounds
    };

    /// Adds one.
    pub fn record(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[Histogram::BOUNDS_MICROS.partition_point(|bound| *bound < micros)] += 1;
        self.micros = self.micros.saturating_add(micros);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How long all of them took together.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// How many took at most so long, for each of the bounds.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        Histogram::BOUNDS.into_iter().zip(self.buckets).scan(0, |so_far, (bound, n)| {
            *so_far += n;
            Some((bound, *so_far))
        })
    }

    /// About how long the shortest part `q` (0 to 1) of them took at most, as if each bucket were evenly filled. Nothing
    /// where there are none. What is beyond the last bound counts as the last bound.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = (q.clamp(0.0, 1.0) * count as f64).max(1.0);
        let (mut before, mut lower) = (0.0, 0.0);
        for (bound, n) in Histogram::BOUNDS.into_iter().zip(self.buckets) {
            let here = n as f64;
            if before + here >= wanted {
                return Some(Duration::from_secs_f64(lower + (bound - lower) * (wanted - before) / here));
            }
            (before, lower) = (before + here, bound);
        }
        Some(Duration::from_secs_f64(lower))
    }

    /// Adds another one.
    pub fn merge(&mut self, other: &Histogram) {
        for (own, other) in self.buckets.iter_mut().zip(other.buckets) {
            *own += other;
        }
        self.micros = self.micros.saturating_add(other.micros);
    }
}

impl Serialize for Histogram {
    /// What charts show: how many, and three percentiles in milliseconds.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            count: u64,
            p50_ms: Option<f64>,
            p95_ms: Option<f64>,
            p99_ms: Option<f64>,
        }
        let part = |q| self.quantile(q).map(|took| took.as_secs_f64() * 1e3);
        Shown { count: self.count(), p50_ms: part(0.5), p95_ms: part(0.95), p99_ms: part(0.99) }.serialize(serializer)
    }
}

/// What this process has done with the jobs of one handler and band since it started. Reads as its [`Sums`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Totals {
    /// The handler, or [`OTHER`].
    pub handler: String,
    /// The band of the jobs' priority.
    pub priority: Band,
    /// What it did.
    pub sums: Sums,
}

impl std::ops::Deref for Totals {
    type Target = Sums;
    fn deref(&self) -> &Sums {
        &self.sums
    }
}

/// Stands for handlers beyond the bounds of this file, and for jobs whose handler is not known where they are counted.
pub const OTHER: &str = "(other)";

// ---- the past

/// How far back a chart goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Span {
    /// Five minutes, in steps of 10 s.
    #[serde(rename = "5m")]
    Minutes5,
    /// An hour, in steps of a minute.
    #[serde(rename = "1h")]
    Hour,
    /// A day, in steps of 10 minutes.
    #[serde(rename = "24h")]
    Day,
    /// A week, in steps of an hour.
    #[serde(rename = "7d")]
    Week,
}

impl Span {
    /// All, shortest first.
    pub const ALL: [Span; 4] = [Span::Minutes5, Span::Hour, Span::Day, Span::Week];

    /// Its name: `5m`, `1h`, `24h`, `7d`.
    pub fn as_str(self) -> &'static str {
        match self {
            Span::Minutes5 => "5m",
            Span::Hour => "1h",
            Span::Day => "24h",
            Span::Week => "7d",
        }
    }

    /// Reads a name.
    pub fn parse(text: &str) -> Result<Span, InvalidInput> {
        let known = Span::ALL.into_iter().find(|span| span.as_str() == text);
        known.ok_or_else(|| InvalidInput::new("span", "must be 5m, 1h, 24h or 7d"))
    }

    /// The buckets it is drawn from.
    pub fn resolution(self) -> Resolution {
        match self {
            Span::Minutes5 => Resolution::Seconds10,
            Span::Hour => Resolution::Minute,
            Span::Day => Resolution::Minutes10,
            Span::Week => Resolution::Hour,
        }
    }

    /// How many points it has.
    pub fn points(self) -> usize {
        match self {
            Span::Minutes5 => 30,
            Span::Hour => 60,
            Span::Day => 144,
            Span::Week => 168,
        }
    }

    /// When its first point begins.
    pub fn from(self, now: Timestamp) -> Timestamp {
        let step = self.resolution().step();
        self.resolution().bucket(now) - step * (self.points() as u32 - 1)
    }
}

/// How long the buckets are in which the past is kept. Every addition goes into one bucket of each, so that a chart of any
/// span reads few rows and nothing has to be made of them later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    /// 10 s, kept for a quarter of an hour.
    Seconds10,
    /// A minute, kept for two hours.
    Minute,
    /// 10 minutes, kept for 26 hours.
    Minutes10,
    /// An hour, kept for eight days.
    Hour,
}

impl Resolution {
    /// All, finest first.
    pub const ALL: [Resolution; 4] =
        [Resolution::Seconds10, Resolution::Minute, Resolution::Minutes10, Resolution::Hour];

    /// The length of a bucket in seconds, which is also the number stores keep.
    pub const fn seconds(self) -> i16 {
        match self {
            Resolution::Seconds10 => 10,
            Resolution::Minute => 60,
            Resolution::Minutes10 => 600,
            Resolution::Hour => 3_600,
        }
    }

    /// The length of a bucket.
    pub const fn step(self) -> Duration {
        Duration::from_secs(self.seconds() as u64)
    }

    /// How long buckets are kept: what the span needs that is drawn from them, and some more.
    pub const fn keep(self) -> Duration {
        Duration::from_secs(match self {
            Resolution::Seconds10 => 15 * 60,
            Resolution::Minute => 2 * 60 * 60,
            Resolution::Minutes10 => 26 * 60 * 60,
            Resolution::Hour => 8 * 24 * 60 * 60,
        })
    }

    /// When the bucket begins that a time is in.
    pub fn bucket(self, at: Timestamp) -> Timestamp {
        let step = i64::from(self.seconds()) * 1_000_000;
        Timestamp::from_micros(at.as_micros().div_euclid(step) * step)
    }
}

/// What is added to the past for one handler.
#[derive(Clone, Debug, PartialEq)]
pub struct Addition {
    /// Whose jobs; none for those of all tenants together, which operators read.
    pub tenant: Option<TenantId>,
    /// The handler.
    pub handler: String,
    /// What happened.
    pub sums: Sums,
}

/// What is kept of one handler in one bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// When the bucket begins.
    pub at: Timestamp,
    /// The handler.
    pub handler: String,
    /// What happened.
    pub sums: Sums,
}

/// One point of a chart. Reads as its [`Sums`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Point {
    /// When it begins.
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub sums: Sums,
    /// How many jobs were in each status, as last seen by then. Only for all tenants together.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "by_status")]
    pub depth: Option<Counts>,
}

impl std::ops::Deref for Point {
    type Target = Sums;
    fn deref(&self) -> &Sums {
        &self.sums
    }
}

/// How long a count by status may stand for those after it: a store need not keep it again while nothing changes.
pub const DEPTH_HOLDS: Duration = Duration::from_secs(10 * 60);

/// What happened over a span of time.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Activity {
    /// How long a point is.
    pub step: Duration,
    /// Evenly spaced, oldest first, empty ones included. The last one is not over.
    pub points: Vec<Point>,
    /// The whole span by handler, those that ran most first.
    pub by_handler: Vec<(String, Sums)>,
}

fn by_status<S: Serializer>(counts: &Option<Counts>, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(counts) = counts else { return serializer.serialize_none() };
    serializer.collect_map(Status::ALL.map(|status| (status.as_str(), counts.get(status))))
}

/// Puts what a store has kept into evenly spaced points. Pure.
pub fn arrange(slices: Vec<Slice>, depths: &[(Timestamp, Counts)], span: Span, now: Timestamp) -> Activity {
    let (step, from) = (span.resolution().step(), span.from(now));
    let mut points: Vec<Point> =
        (0..span.points() as u32).map(|n| Point { at: from + step * n, ..Point::default() }).collect();
    let mut by_handler: HashMap<String, Sums> = HashMap::default();
    for slice in slices {
        let place = (slice.at.as_micros() - from.as_micros()).div_euclid(step.as_micros() as i64);
        let Some(point) = usize::try_from(place).ok().and_then(|place| points.get_mut(place)) else { continue };
        point.sums.merge(&slice.sums);
        by_handler.entry(slice.handler).or_default().merge(&slice.sums);
    }
    for point in &mut points {
        let seen = depths.iter().filter(|(at, _)| *at < point.at + step).max_by_key(|(at, _)| *at);
        point.depth = seen.map(|(_, counts)| *counts);
    }
    let mut by_handler: Vec<(String, Sums)> = by_handler.into_iter().collect();
    by_handler.sort_by(|(a, x), (b, y)| (y.started, a).cmp(&(x.started, b)));
    Activity { step, points, by_handler }
}

// ---- what waits

/// What waits and runs of one handler: what an autoscaler goes by. Read from the heads of lines and a sample of
/// chunks, so that it costs the same however many jobs wait; exact while few do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Backlog {
    /// The handler.
    pub handler: String,
    /// The queue where most of them wait; the handler's jobs in other queues are counted, too.
    pub queue: String,
    /// About how many jobs are ready and wait for a worker.
    pub waiting: u64,
    /// About how long the oldest of them has waited.
    #[serde(rename = "oldest_wait_ms", serialize_with = "millis")]
    pub oldest_wait: Duration,
    /// About how many are blocked: behind a pause, or behind an earlier job of their ordering key.
    pub blocked: u64,
    /// How many run.
    pub running: u64,
    /// How many attempts ended per second, over the last minute.
    pub per_second: f64,
}

fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_millis() as u64)
}

/// What a store sees of the jobs of one handler in one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Where they wait, or were taken from.
    pub queue: String,
    /// What runs them.
    pub handler: String,
    /// About how many are ready.
    pub waiting: u64,
    /// Since about when the oldest of them could run.
    pub since: Option<Timestamp>,
    /// About how many are behind a gate.
    pub blocked: u64,
    /// How many run.
    pub running: u64,
}

/// Blocked jobs whose handlers a store looks up for a backlog; how many of which handler the rest are is told by these.
pub const BLOCKED_LOOKED_AT: usize = 20_000;

/// How long a look at the rate of a handler goes back.
const RATE_OVER: Duration = Duration::from_secs(60);

/// Puts what waits together with how fast it goes. Pure. `slices` are of [`Resolution::Seconds10`].
pub(crate) fn backlog(waiting: Vec<Waiting>, slices: &[Slice], now: Timestamp) -> Vec<Backlog> {
    // The bucket that is not over would make the rate of a minute too low.
    let until = Resolution::Seconds10.bucket(now);
    let recent = slices.iter().filter(|slice| slice.at < until && slice.at >= until - RATE_OVER);
    let mut rates: HashMap<&str, u64> = HashMap::default();
    for slice in recent {
        *rates.entry(slice.handler.as_str()).or_default() += slice.sums.run.count();
    }
    let mut most: HashMap<String, u64> = HashMap::default();
    let mut handlers: HashMap<String, Backlog> = HashMap::default();
    for seen in waiting {
        let per_second = rates.get(seen.handler.as_str()).map_or(0.0, |n| *n as f64 / RATE_OVER.as_secs_f64());
        let entry = handlers.entry(seen.handler.clone()).or_insert_with(|| Backlog {
            handler: seen.handler.clone(),
            queue: seen.queue.clone(),
            waiting: 0,
            oldest_wait: Duration::ZERO,
            blocked: 0,
            running: 0,
            per_second,
        });
        entry.waiting += seen.waiting;
        entry.blocked += seen.blocked;
        entry.running += seen.running;
        entry.oldest_wait = entry.oldest_wait.max(seen.since.map_or(Duration::ZERO, |since| now.since(since)));
        let most = most.entry(seen.handler).or_default();
        if seen.waiting > *most {
            (*most, entry.queue) = (seen.waiting, seen.queue);
        }
    }
    let mut backlog: Vec<Backlog> = handlers.into_values().collect();
    let most_first = |of: &Backlog| std::cmp::Reverse((of.waiting + of.blocked, of.waiting));
    backlog.sort_by(|a, b| (most_first(a), &a.handler).cmp(&(most_first(b), &b.handler)));
    backlog
}

// ---- counting in this process

/// Handlers that are counted by name. More than an installation has; names can come from callers, and every name is a
/// set of time series in somebody's metrics database.
const HANDLERS: usize = 1_000;

/// Tenants and handlers with changes since the last time they were handed over. Each becomes a row of every
/// [`Resolution`]; what is beyond goes to [`OTHER`] of the root tenant.
const ROWS: usize = 500;

/// What this process has counted. One lock for a batch of jobs, and no text is copied for a job whose handler is known.
pub(crate) struct Tally(Mutex<Book>);

#[derive(Default)]
struct Book {
    names: Vec<Arc<str>>,
    by_name: HashMap<Arc<str>, usize>,
    /// By handler, then by band; made when something is counted.
    totals: Vec<[Option<Box<Sums>>; 4]>,
    /// What is not handed over yet.
    rows: Vec<(TenantId, usize, Box<Sums>)>,
    by_key: HashMap<(TenantId, usize), usize>,
    /// The row of the job before: most batches are of one tenant and handler.
    last: Option<(TenantId, usize, usize)>,
    cleaned: u64,
}

/// Where [`OTHER`] stands in the list of names.
const OTHER_NAME: usize = 0;

/// Which job is counted.
#[derive(Clone, Copy)]
pub(crate) struct Counted<'a> {
    pub(crate) tenant: TenantId,
    pub(crate) handler: &'a str,
    pub(crate) priority: Priority,
}

/// What an ended attempt did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedAttempt {
    /// Where its job is now.
    pub(crate) status: Status,
    /// Whether it failed.
    pub(crate) failed: bool,
    /// How long it ran; nothing for a job that was turned away before it began.
    pub(crate) ran: Duration,
    /// Whether a callback was stored with it.
    pub(crate) follow_up: bool,
}

impl Tally {
    /// Nothing yet. The handlers of this process have a place of their own whatever names callers come up with.
    pub(crate) fn new(handlers: &[String]) -> Tally {
        let mut book = Book::default();
        book.name(OTHER);
        handlers.iter().for_each(|handler| {
            book.name(handler);
        });
        Tally(Mutex::new(book))
    }

    /// Counts jobs that were stored.
    pub(crate) fn submitted<'a>(&self, jobs: impl Iterator<Item = Counted<'a>>) {
        let mut book = self.0.lock();
        for job in jobs {
            book.add(job, |sums| sums.submitted += 1);
        }
    }

    /// Counts an attempt that begins. Only for a first one it is known since when its job was ready.
    pub(crate) fn started(&self, job: Counted<'_>, waited: Option<Duration>) {
        self.0.lock().add(job, |sums| {
            sums.started += 1;
            if let Some(waited) = waited {
                sums.wait.record(waited);
            }
        });
    }

    /// Counts attempts that ended and were saved.
    pub(crate) fn ended<'a>(&self, attempts: impl Iterator<Item = (Counted<'a>, EndedAttempt)>) {
        let mut book = self.0.lock();
        for (job, attempt) in attempts {
            book.add(job, |sums| sums.count(attempt));
        }
    }

    /// Counts waiting jobs that were canceled.
    pub(crate) fn canceled(&self, job: Counted<'_>, jobs: u64) {
        self.0.lock().add(job, |sums| sums.canceled += jobs);
    }

    /// Counts removed jobs.
    pub(crate) fn cleaned(&self, jobs: usize) {
        self.0.lock().cleaned += jobs as u64;
    }

    /// How many ended jobs this process has removed.
    pub(crate) fn total_cleaned(&self) -> u64 {
        self.0.lock().cleaned
    }

    /// What was counted since this process started.
    pub(crate) fn totals(&self) -> Vec<Totals> {
        let book = self.0.lock();
        let of = |handler: &Arc<str>, bands: &[Option<Box<Sums>>; 4]| {
            let of_band = |band: Band| {
                let sums = bands[band.index()].as_deref()?.clone();
                Some(Totals { handler: handler.to_string(), priority: band, sums })
            };
            Band::ALL.into_iter().filter_map(of_band).collect::<Vec<_>>()
        };
        book.names.iter().zip(&book.totals).flat_map(|(handler, bands)| of(handler, bands)).collect()
    }

    /// Takes what is to be handed over to the store: for each tenant and handler, and for all tenants together.
    pub(crate) fn take(&self) -> Vec<Addition> {
        let (rows, names) = {
            let mut book = self.0.lock();
            book.by_key.clear();
            book.last = None;
            (std::mem::take(&mut book.rows), book.names.clone())
        };
        additions(&rows, &names)
    }

    /// What would be handed over now, of the scope.
    pub(crate) fn unsaved(&self, scope: Scope) -> Vec<Addition> {
        let book = self.0.lock();
        let mut additions = additions(&book.rows, &book.names);
        additions.retain(|addition| addition.tenant == scope.tenant());
        additions
    }

    /// Takes back what could not be handed over.
    pub(crate) fn put_back(&self, additions: &[Addition]) {
        let mut book = self.0.lock();
        for addition in additions {
            let Some(tenant) = addition.tenant else { continue };
            let handler = book.name(&addition.handler);
            let row = book.row(tenant, handler);
            book.rows[row].2.merge(&addition.sums);
        }
    }
}

impl Book {
    fn add(&mut self, job: Counted<'_>, count: impl Fn(&mut Sums)) {
        let same = self.last.filter(|(tenant, name, _)| *tenant == job.tenant && *self.names[*name] == *job.handler);
        let (name, row) = match same {
            Some((_, name, row)) => (name, row),
            None => {
                let name = self.name(job.handler);
                let row = self.row(job.tenant, name);
                // Only where it is what it is called: the next job may not belong to the others.
                if *self.names[name] == *job.handler && self.rows[row].0 == job.tenant && self.rows[row].1 == name {
                    self.last = Some((job.tenant, name, row));
                }
                (name, row)
            }
        };
        count(self.totals[name][job.priority.band().index()].get_or_insert_default());
        count(&mut self.rows[row].2);
    }

    fn name(&mut self, handler: &str) -> usize {
        if let Some(known) = self.by_name.get(handler) {
            return *known;
        }
        if self.names.len() > HANDLERS {
            return OTHER_NAME;
        }
        let name: Arc<str> = handler.into();
        self.names.push(name.clone());
        self.totals.push(Default::default());
        self.by_name.insert(name, self.names.len() - 1);
        self.names.len() - 1
    }

    fn row(&mut self, tenant: TenantId, name: usize) -> usize {
        if let Some(known) = self.by_key.get(&(tenant, name)) {
            return *known;
        }
        let (tenant, name) = if self.rows.len() < ROWS { (tenant, name) } else { (TenantId::ROOT, OTHER_NAME) };
        if let Some(known) = self.by_key.get(&(tenant, name)) {
            return *known;
        }
        self.rows.push((tenant, name, Box::default()));
        self.by_key.insert((tenant, name), self.rows.len() - 1);
        self.rows.len() - 1
    }
}

impl Sums {
    fn count(&mut self, attempt: EndedAttempt) {
        match attempt.status {
            Status::Succeeded => self.succeeded += 1,
            Status::Canceled => self.canceled += 1,
            Status::DeadLettered => self.dead_lettered += 1,
            Status::Retrying => self.retried += 1,
            _ => {}
        }
        self.failed += u64::from(attempt.failed);
        self.submitted += u64::from(attempt.follow_up);
        if !attempt.ran.is_zero() {
            self.run.record(attempt.ran);
        }
    }
}

/// Rows as they are handed over, in the order of their keys: two nodes that write the same rows in different orders would
/// wait for each other.
fn additions(rows: &[(TenantId, usize, Box<Sums>)], names: &[Arc<str>]) -> Vec<Addition> {
    let mut whole: HashMap<usize, Sums> = HashMap::default();
    for (_, name, sums) in rows {
        whole.entry(*name).or_default().merge(sums);
    }
    let whole = whole.into_iter().map(|(name, sums)| Addition { tenant: None, handler: names[name].to_string(), sums });
    let own = rows.iter().map(|(tenant, name, sums)| Addition {
        tenant: Some(*tenant),
        handler: names[*name].to_string(),
        sums: (**sums).clone(),
    });
    let mut additions: Vec<Addition> = whole.chain(own).collect();
    additions.sort_by(|a, b| (a.tenant, &a.handler).cmp(&(b.tenant, &b.handler)));
    additions
}

/// Those of `jobs` that were stored.
pub(crate) fn stored<'a>(jobs: &'a [Named], answers: &'a [Submitted]) -> impl Iterator<Item = Counted<'a>> {
    jobs.iter().zip(answers).filter(|(_, answer)| !answer.duplicate).map(|(job, _)| Counted {
        tenant: job.tenant,
        handler: &job.handler,
        priority: job.priority,
    })
}

/// What is needed of a job to count it, kept while the store has the job itself. Jobs of one batch share their name.
pub(crate) struct Named {
    tenant: TenantId,
    handler: Arc<str>,
    priority: Priority,
}

/// The names of a batch. A name is copied once for each row of jobs with the same handler.
pub(crate) fn names_of(jobs: &[NewJob]) -> Vec<Named> {
    let mut last: Option<Arc<str>> = None;
    let mut name = |handler: &str| match &last {
        Some(known) if **known == *handler => known.clone(),
        _ => last.insert(handler.into()).clone(),
    };
    jobs.iter().map(|job| Named { tenant: job.tenant, handler: name(&job.handler), priority: job.priority }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_003_500);

    fn tenant(n: u128) -> TenantId {
        TenantId(Uuid::from_u128(n))
    }

    fn job(tenant_number: u128, handler: &str) -> Counted<'_> {
        Counted { tenant: tenant(tenant_number), handler, priority: Priority::NORMAL }
    }

    fn slice(ago: u64, handler: &str, succeeded: u64) -> Slice {
        let at = Resolution::Seconds10.bucket(NOW - Duration::from_secs(ago));
        Slice { at, handler: handler.to_owned(), sums: Sums { succeeded, started: succeeded, ..Sums::default() } }
    }

    #[test]
    fn a_time_falls_into_the_bucket_at_or_above_it() {
        let mut times = Histogram::default();
        for micros in [0, 500, 501, 1_000, 3_600_000_000, 3_600_000_001] {
            times.record(Duration::from_micros(micros));
        }
        let cumulative: Vec<(f64, u64)> = times.cumulative().collect();
        assert_eq!(cumulative[0], (0.0005, 2));
        assert_eq!(cumulative[1], (0.001, 4));
        assert_eq!(cumulative[20], (3600.0, 5));
        assert_eq!(times.count(), 6);
    }

    #[test]
    fn quantiles_lie_within_the_bucket_that_has_them() {
        assert_eq!(Histogram::default().quantile(0.5), None);
        let mut times = Histogram::default();
        (0..99).for_each(|_| times.record(Duration::from_millis(15)));
        times.record(Duration::from_secs(100_000));
        let median = times.quantile(0.5).expect("some");
        assert!(median > Duration::from_millis(10) && median <= Duration::from_millis(20), "{median:?}");
        assert_eq!(times.quantile(1.0), Some(Duration::from_secs(3_600)), "beyond the last bound");
        assert!(times.quantile(0.0).expect("some") <= Duration::from_millis(20));
    }

    #[test]
    fn sums_read_back_from_the_numbers_that_stores_keep() {
        let mut sums = Sums { submitted: 1, started: 2, succeeded: 3, failed: 4, retried: 5, ..Sums::default() };
        (sums.canceled, sums.dead_lettered) = (6, 7);
        sums.wait.record(Duration::from_millis(3));
        sums.run.record(Duration::from_secs(7));
        assert_eq!(sums.values().len(), Sums::VALUES);
        assert_eq!(Sums::from_values(&sums.values()), sums);
        assert_eq!(Sums::from_values(&sums.values()[..3]).succeeded, 3, "a shorter row of an older version");
        let twice: Vec<i64> = sums.values().iter().map(|n| n * 2).collect();
        let mut merged = sums.clone();
        merged.merge(&sums);
        assert_eq!(Sums::from_values(&twice), merged, "numbers are added one by one");
    }

    #[test]
    fn points_are_evenly_spaced_and_empty_ones_are_there() {
        let slices =
            vec![slice(0, "a", 1), slice(20, "a", 2), slice(20, "b", 5), slice(290, "b", 7), slice(320, "c", 9)];
        let mut seen = Counts::default();
        seen.add(Status::Pending, 4);
        let depths = [(Resolution::Seconds10.bucket(NOW - Duration::from_secs(100)), seen)];
        let activity = arrange(slices, &depths, Span::Minutes5, NOW);
        assert_eq!(activity.points.len(), 30);
        assert!(activity.points.windows(2).all(|two| two[1].at.since(two[0].at) == Duration::from_secs(10)));
        assert_eq!(activity.points[29].at, Resolution::Seconds10.bucket(NOW));
        let succeeded: Vec<u64> = activity.points.iter().map(|point| point.succeeded).collect();
        assert_eq!((succeeded[29], succeeded[28], succeeded[27]), (1, 0, 7));
        assert_eq!((succeeded[0], succeeded.iter().sum::<u64>()), (7, 15));
        let handlers: Vec<&str> = activity.by_handler.iter().map(|(handler, _)| handler.as_str()).collect();
        assert!(!handlers.contains(&"c"), "before the span: {handlers:?}");
        assert_eq!(activity.points[18].depth, None, "nobody had looked");
        assert!(activity.points[19].depth.is_some() && activity.points[29].depth.is_some(), "the last look holds");
    }

    #[test]
    fn every_span_reads_what_is_kept_for_it() {
        for span in Span::ALL {
            assert_eq!(Span::parse(span.as_str()).expect("known"), span);
            let back = NOW.since(span.from(NOW));
            assert!(back <= span.resolution().keep(), "{span:?} goes back {back:?}");
            assert_eq!(arrange(Vec::new(), &[], span, NOW).points.len(), span.points());
        }
        assert!(Span::parse("1y").is_err());
    }

    #[test]
    fn what_is_counted_is_in_the_totals_and_handed_over_once() {
        let tally = Tally::new(&["mail".to_owned()]);
        tally.submitted([job(1, "mail"), job(1, "mail"), job(2, "mail")].into_iter());
        tally.started(job(1, "mail"), Some(Duration::from_millis(2)));
        let end =
            EndedAttempt { status: Status::Retrying, failed: true, ran: Duration::from_millis(5), follow_up: false };
        tally.ended([(job(1, "mail"), end)].into_iter());
        tally.canceled(Counted { priority: Priority::HIGH, ..job(2, "mail") }, 1);

        let totals = tally.totals();
        assert_eq!(totals.len(), 2, "one for each band with something");
        assert_eq!((totals[0].priority, totals[0].canceled), (Band::High, 1));
        assert_eq!((totals[1].submitted, totals[1].failed, totals[1].retried), (3, 1, 1));
        assert_eq!((totals[1].wait.count(), totals[1].run.count()), (1, 1));

        let rows = tally.take();
        let of = |tenant: Option<TenantId>| rows.iter().find(|row| row.tenant == tenant).expect("there").sums.clone();
        assert_eq!((of(None).submitted, of(None).canceled), (3, 1));
        assert_eq!((of(Some(tenant(1))).submitted, of(Some(tenant(2))).submitted), (2, 1));
        assert!(tally.take().is_empty(), "nothing is handed over twice");
        tally.put_back(&rows);
        assert_eq!(tally.take(), rows, "unless it was given back");
        assert_eq!(tally.totals(), totals);
    }

    #[test]
    fn a_tenant_sees_only_its_own_unsaved_part() {
        let tally = Tally::new(&[]);
        tally.submitted([job(1, "a"), job(2, "b")].into_iter());
        let own = tally.unsaved(Scope::Tenant(tenant(1)));
        assert_eq!(own.iter().map(|row| row.handler.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(tally.unsaved(Scope::ENGINE).len(), 2);
    }

    /// API-6: cardinality is bounded, and a handler of this process keeps its name whatever callers come up with.
    #[test]
    fn names_and_rows_are_bounded_and_nothing_is_lost() {
        let tally = Tally::new(&["own".to_owned()]);
        let names: Vec<String> = (0..3 * HANDLERS).map(|n| format!("made-up-{n}")).collect();
        tally.submitted(names.iter().map(|name| job(1, name)));
        tally.submitted((0..3 * ROWS as u128).map(|n| job(n, "own")));
        let totals = tally.totals();
        assert!(totals.len() <= HANDLERS + 1);
        assert_eq!(totals.iter().map(|total| total.submitted).sum::<u64>(), 3 * (HANDLERS + ROWS) as u64);
        let of = |name: &str| totals.iter().find(|total| total.handler == name).map(|total| total.submitted);
        assert_eq!(of("own"), Some(3 * ROWS as u64));
        assert!(of(OTHER).is_some_and(|others| others >= 2 * HANDLERS as u64 - 1));
        let rows = tally.take();
        let own = rows.iter().filter(|row| row.tenant.is_some());
        assert!(own.clone().count() <= ROWS + 1);
        assert_eq!(own.map(|row| row.sums.submitted).sum::<u64>(), 3 * (HANDLERS + ROWS) as u64);
    }

    #[test]
    fn a_backlog_has_one_row_for_each_handler() {
        let seen = |queue: &str, waiting, ago, running| Waiting {
            queue: queue.to_owned(),
            handler: "h".to_owned(),
            waiting,
            since: Some(NOW - Duration::from_secs(ago)),
            blocked: 2 * running,
            running,
        };
        let mut recent = slice(20, "h", 0);
        (0..120).for_each(|_| recent.sums.run.record(Duration::from_millis(1)));
        let mut unfinished = slice(0, "h", 0);
        (0..50).for_each(|_| unfinished.sums.run.record(Duration::from_millis(1)));
        let backlog = backlog(
            vec![seen("default", 3, 10, 1), seen("h", 40, 30, 0)],
            &[recent, unfinished, slice(90, "h", 5)],
            NOW,
        );
        assert_eq!(backlog.len(), 1);
        assert_eq!((backlog[0].queue.as_str(), backlog[0].waiting, backlog[0].running), ("h", 43, 1));
        assert_eq!((backlog[0].oldest_wait, backlog[0].per_second), (Duration::from_secs(30), 2.0));
        assert_eq!(backlog[0].blocked, 2);
    }
}
