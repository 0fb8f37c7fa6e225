//! Everything that can be set on a service, with its default and the reason for it.

use std::time::Duration;

use crate::error::InvalidInput;
use crate::filter::JobFilter;
use crate::job::Page;
use crate::lifecycle::MAX_RECOVERIES;
use crate::payload::MAX_DEPTH;
use crate::priority::BandPolicy;

/// The settings of a service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Jobs this node runs at once. Handlers mostly wait for I/O, so far more than there are cores.
    pub concurrency: usize,
    /// Threads of the runtime that handlers run on, apart from the caller's (RUN-2).
    pub worker_threads: usize,
    /// How long the store waits for a silent node before it gives its jobs to others.
    pub lease: Duration,
    /// How often an idle node looks for work that nobody told it about.
    pub poll: Duration,
    /// How long a handler that was asked to stop may go on before it is aborted.
    pub grace: Duration,
    /// How long running jobs may go on at shutdown before they are handed back.
    pub shutdown_deadline: Duration,
    /// How long a job may wait while no live node has its handler.
    pub handler_missing_after: Duration,
    /// How long a sealed job waits whose key is not to be had, or which this node cannot open; then up to as much again,
    /// so that those who met one outage do not come back together (SEC-2).
    pub key_retry: Duration,
    /// How long ended jobs are kept where neither job nor handler says.
    pub retention: Duration,
    /// No job is kept shorter than this.
    pub retention_floor: Duration,
    /// How long replayed dead letters are kept.
    pub replayed_retention: Duration,
    /// How long an attempt may take where neither job nor handler says.
    pub timeout: Duration,
    /// How many nodes may be lost with a job before it is a dead letter.
    pub max_recoveries: u16,
    /// How the bands share capacity.
    pub bands: BandPolicy,
    /// What input is refused.
    pub limits: Limits,
    /// Non-restartable jobs that may wait (SUB-11).
    pub spawn_capacity: usize,
    /// Non-restartable jobs that run at once.
    pub spawn_concurrency: usize,
    /// Whether this node claims and runs jobs by itself; without, only `tick` and `checkout` do.
    pub workers: bool,
    /// Whether this node promotes, recovers and cleans.
    pub maintenance: bool,
    /// A snapshot that someone holds in the database longer than this is warned of, with its process id.
    pub held_snapshot_after: Duration,
    /// Queues to serve besides `default` and those of the handlers.
    pub queues: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            concurrency: 100,
            worker_threads: 2,
            lease: Duration::from_secs(10),
            poll: Duration::from_secs(1),
            grace: Duration::from_secs(5),
            shutdown_deadline: Duration::from_secs(30),
            handler_missing_after: Duration::from_secs(24 * 3600),
            key_retry: Duration::from_secs(5),
            retention: DEFAULT_RETENTION,
            retention_floor: Duration::from_secs(24 * 3600),
            replayed_retention: Duration::from_secs(30 * 24 * 3600),
            timeout: Duration::from_secs(300),
            max_recoveries: MAX_RECOVERIES,
            bands: BandPolicy::default(),
            limits: Limits::default(),
            spawn_capacity: 256,
            spawn_concurrency: 64,
            workers: true,
            maintenance: true,
            held_snapshot_after: Duration::from_secs(15),
            queues: Vec::new(),
        }
    }
}

/// How long ended jobs are kept unless something says otherwise.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);

/// The queue of handlers that name none.
pub const DEFAULT_QUEUE: &str = "default";

/// What input is refused, at the edge and before anything is written (SEC-3). Each has a hard maximum
/// ([`Limits::MOST`]); a service that is configured beyond it does not start. Limits of requests over HTTP (bodies,
/// headers, streams, timeouts) belong to whoever serves HTTP and are not here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a payload. What is larger belongs into an object store, and a reference to it into the payload.
    pub payload_bytes: usize,
    /// How deep a payload's JSON may nest.
    pub json_depth: usize,
    /// Bytes of an output or an error; longer ones are cut and marked.
    pub output_bytes: usize,
    /// Jobs in one bulk submit.
    pub batch_jobs: usize,
    /// Tags of a job.
    pub tags: usize,
    /// Bytes of a tag.
    pub tag_bytes: usize,
    /// Bytes of an idempotency, ordering or unique key, of a correlation id, of a user's name, and of a filter's texts.
    pub key_bytes: usize,
    /// Bytes of a handler or queue name.
    pub name_bytes: usize,
    /// Bytes of all headers of a job.
    pub header_bytes: usize,
    /// Bytes of what people write about an act: the reason of a cancel or a pause, an audit entry's parts.
    pub note_bytes: usize,
    /// The furthest a start may lie ahead.
    pub max_delay: Duration,
    /// Jobs on one page of a list.
    pub page_jobs: usize,
    /// Conditions of one filter; each wanted status is one.
    pub filter_terms: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            payload_bytes: 256 * 1024,
            json_depth: MAX_DEPTH,
            output_bytes: 64 * 1024,
            batch_jobs: 1_000,
            tags: 32,
            tag_bytes: 64,
            key_bytes: 256,
            name_bytes: 200,
            header_bytes: 16 * 1024,
            note_bytes: 4 * 1024,
            // Ten years: ahead of every plan, and far from the end of every date type.
            max_delay: Duration::from_secs(10 * 365 * 24 * 3600),
            page_jobs: Page::MAX,
            filter_terms: 16,
        }
    }
}

impl Limits {
    /// The hard maxima. A payload beyond 4 MiB makes every batch it is in slow; keys and names beyond theirs are refused
    /// by the stores' own checks; JSON beyond its depth makes parsers recurse; delays beyond ninety years leave the range
    /// of intervals that SQL can add up.
    pub const MOST: Limits = Limits {
        payload_bytes: 4 * 1024 * 1024,
        json_depth: MAX_DEPTH,
        output_bytes: 4 * 1024 * 1024,
        batch_jobs: 10_000,
        tags: 256,
        tag_bytes: 256,
        key_bytes: 256,
        name_bytes: 200,
        header_bytes: 256 * 1024,
        note_bytes: 64 * 1024,
        max_delay: Duration::from_secs(90 * 365 * 24 * 3600),
        page_jobs: Page::MAX,
        filter_terms: 64,
    };

    /// Every limit with its name, for messages and tables. `max_delay` counts seconds.
    pub fn all(&self) -> [(&'static str, u64); 13] {
        [
            ("payload_bytes", self.payload_bytes as u64),
            ("json_depth", self.json_depth as u64),
            ("output_bytes", self.output_bytes as u64),
            ("batch_jobs", self.batch_jobs as u64),
            ("tags", self.tags as u64),
            ("tag_bytes", self.tag_bytes as u64),
            ("key_bytes", self.key_bytes as u64),
            ("name_bytes", self.name_bytes as u64),
            ("header_bytes", self.header_bytes as u64),
            ("note_bytes", self.note_bytes as u64),
            ("max_delay", self.max_delay.as_secs() + u64::from(self.max_delay.subsec_nanos() > 0)),
            ("page_jobs", self.page_jobs as u64),
            ("filter_terms", self.filter_terms as u64),
        ]
    }

    /// Refuses limits that are beyond their hard maximum, or so low that nothing could be done.
    pub fn check(&self) -> Result<(), InvalidInput> {
        for ((name, value), (_, most)) in self.all().into_iter().zip(Limits::MOST.all()) {
            if value == 0 || value > most {
                let message = format!("{value} is not in 1 to {most}");
                return Err(InvalidInput::new(format!("limits.{name}"), message));
            }
        }
        Ok(())
    }

    pub(crate) fn check_page(&self, page: Page) -> Result<(), InvalidInput> {
        if page.limit == 0 || page.limit > self.page_jobs {
            return Err(InvalidInput::new("limit", format!("{} is not in 1 to {}", page.limit, self.page_jobs)));
        }
        Ok(())
    }

    pub(crate) fn check_filter(&self, filter: &JobFilter) -> Result<(), InvalidInput> {
        filter.check(self)
    }

    /// What people write about an act.
    pub(crate) fn check_note(&self, field: &str, note: &str) -> Result<(), InvalidInput> {
        check_text(field, note, self.note_bytes)
    }
}

/// Text that may be empty: not too long, no NUL.
pub(crate) fn check_text(field: &str, text: &str, max_bytes: usize) -> Result<(), InvalidInput> {
    if text.len() > max_bytes {
        return Err(InvalidInput::new(field, format!("{} bytes, at most {max_bytes} are allowed", text.len())));
    }
    if text.contains('\0') {
        return Err(InvalidInput::new(field, "contains a NUL character"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every limit by itself, one above its hard maximum, at it, and at nothing.
    #[test]
    fn a_limit_is_allowed_up_to_its_hard_maximum_and_not_beyond() {
        type Set = fn(&mut Limits, usize);
        let sets: [(&str, Set); 13] = [
            ("payload_bytes", |limits, n| limits.payload_bytes = n),
            ("json_depth", |limits, n| limits.json_depth = n),
            ("output_bytes", |limits, n| limits.output_bytes = n),
            ("batch_jobs", |limits, n| limits.batch_jobs = n),
            ("tags", |limits, n| limits.tags = n),
            ("tag_bytes", |limits, n| limits.tag_bytes = n),
            ("key_bytes", |limits, n| limits.key_bytes = n),
            ("name_bytes", |limits, n| limits.name_bytes = n),
            ("header_bytes", |limits, n| limits.header_bytes = n),
            ("note_bytes", |limits, n| limits.note_bytes = n),
            ("max_delay", |limits, n| limits.max_delay = Duration::from_secs(n as u64)),
            ("page_jobs", |limits, n| limits.page_jobs = n),
            ("filter_terms", |limits, n| limits.filter_terms = n),
        ];
        for ((name, set), (_, most)) in sets.into_iter().zip(Limits::MOST.all()) {
            let check = |n: usize| {
                let mut limits = Limits::default();
                set(&mut limits, n);
                limits.check().map_err(|error| error.field)
            };
            assert_eq!(check(most as usize), Ok(()), "{name} at its maximum");
            assert_eq!(check(1), Ok(()), "{name} at 1");
            assert_eq!(check(most as usize + 1), Err(format!("limits.{name}")));
            assert_eq!(check(0), Err(format!("limits.{name}")));
        }
    }

    #[test]
    fn the_defaults_are_within_the_maxima() {
        assert_eq!(Limits::default().check(), Ok(()));
    }
}
