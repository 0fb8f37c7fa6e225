//! Everything that can be set on a service, with its default and the reason for it.

use std::time::Duration;

use crate::life::lifecycle::MAX_RECOVERIES;
use crate::model::error::InvalidInput;
use crate::model::filter::JobFilter;
use crate::model::job::Page;
use crate::model::payload::MAX_DEPTH;
use crate::model::priority::BandPolicy;

/// The settings of a service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Jobs this node runs at once. Most handlers wait for I/O, so the default is far above the number of cores.
    pub concurrency: usize,
    /// Threads of the runtime that runs handlers. It is separate from the caller's runtime.
    pub worker_threads: usize,
    /// How long the store waits for a silent node before it gives its jobs to others.
    pub lease: Duration,
    /// How often an idle node polls the store for jobs it received no wake-up for.
    pub poll: Duration,
    /// How long a handler may continue after it was asked to stop; then it is aborted.
    pub grace: Duration,
    /// How long running jobs may continue at shutdown before they are returned to the queue.
    pub shutdown_deadline: Duration,
    /// How long a job may wait while no live node has its handler and no external worker takes it. Counted from the
    /// time the last such node or worker left, by the store's clock, regardless of the job's age.
    pub handler_missing_after: Duration,
    /// How long an encrypted job waits when its key is unavailable. A random delay of up to the same length is added, so
    /// that jobs delayed by one outage do not all return at once.
    pub key_retry: Duration,
    /// How long ended jobs are kept if neither the job nor its handler sets a retention.
    pub retention: Duration,
    /// The minimum retention: no ended job is removed earlier.
    pub retention_floor: Duration,
    /// How long dead letters are kept that are neither replayed nor purged, if their handler sets nothing; forever by
    /// default. At least [`retention_floor`](Config::retention_floor).
    pub dead_letter_retention: Option<Duration>,
    /// How long replayed dead letters are kept.
    pub replayed_retention: Duration,
    /// The timeout of an attempt if neither the job nor its handler sets one; [`NO_TIMEOUT`] for none.
    pub timeout: Duration,
    /// How many nodes may be lost while they run a job before it becomes a dead letter, if no other job can be the cause.
    /// If it ran beside others, finding the cause takes a few more ([`suspect`](crate::suspect)).
    pub max_recoveries: u16,
    /// How the bands share capacity.
    pub bands: BandPolicy,
    /// Limits on input.
    pub limits: Limits,
    /// The maximum number of non-restartable jobs that wait for a slot, their start or their next attempt. Memory holds at
    /// most this number plus [`spawn_concurrency`](Config::spawn_concurrency).
    pub spawn_capacity: usize,
    /// The maximum number of non-restartable jobs that run at once.
    pub spawn_concurrency: usize,
    /// Whether this node claims and runs jobs by itself; if not, only `tick` and `checkout` do.
    pub workers: bool,
    /// Whether this node does maintenance: promotes due jobs, recovers jobs of lost nodes, removes old jobs.
    pub maintenance: bool,
    /// A database snapshot held longer than this causes a warning that names its process id.
    pub held_snapshot_after: Duration,
    /// The name of the service this process belongs to; stored with the jobs it submits. None by default.
    pub service_id: Option<String>,
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
            dead_letter_retention: None,
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
            service_id: None,
            queues: Vec::new(),
        }
    }
}

/// The default retention of ended jobs.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);

/// No timeout: an attempt may run without a limit. Written as 0 in HTTP and SQL.
pub const NO_TIMEOUT: Duration = Duration::ZERO;

/// The queue of handlers that do not name one.
pub const DEFAULT_QUEUE: &str = "default";

/// Limits on input, checked before anything is written. Each has a hard maximum ([`Limits::MOST`]); a service configured
/// above it does not start. Limits of HTTP requests (bodies, headers, streams, timeouts) belong to the HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a payload. Put larger data into an object store and a reference to it into the payload.
    pub payload_bytes: usize,
    /// How deep a payload's JSON may nest.
    pub json_depth: usize,
    /// Bytes of an output or an error; longer ones are truncated and marked.
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
    /// Bytes of a note: the reason of a cancel or a pause, the parts of an audit entry.
    pub note_bytes: usize,
    /// How far in the future a start may be.
    pub max_delay: Duration,
    /// Jobs on one page of a list.
    pub page_jobs: usize,
    /// Conditions of one filter; each status counts as one.
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
                let message = format!("{value} is out of range, 1 to {most} are allowed");
                return Err(InvalidInput::new(format!("limits.{name}"), message));
            }
        }
        Ok(())
    }

    pub(crate) fn check_page(&self, page: Page) -> Result<(), InvalidInput> {
        if page.limit == 0 || page.limit > self.page_jobs {
            return Err(InvalidInput::new(
                "limit",
                format!("{} is out of range, 1 to {} are allowed", page.limit, self.page_jobs),
            ));
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
