//! Everything that can be set on a service, with its default and the reason for it.

use std::time::Duration;

use crate::lifecycle::MAX_RECOVERIES;
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
            queues: Vec::new(),
        }
    }
}

/// How long ended jobs are kept unless something says otherwise.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);

/// The queue of handlers that name none.
pub const DEFAULT_QUEUE: &str = "default";

/// What input is refused, at the edge and before anything is written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a payload.
    pub payload_bytes: usize,
    /// Bytes of an output or an error; longer ones are cut and marked.
    pub output_bytes: usize,
    /// Jobs in one bulk submit.
    pub batch_jobs: usize,
    /// Tags of a job.
    pub tags: usize,
    /// Bytes of a tag.
    pub tag_bytes: usize,
    /// Bytes of an idempotency, ordering or unique key.
    pub key_bytes: usize,
    /// Bytes of a handler or queue name.
    pub name_bytes: usize,
    /// Bytes of all headers of a job.
    pub header_bytes: usize,
    /// The furthest a start may lie ahead.
    pub max_delay: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            payload_bytes: 256 * 1024,
            output_bytes: 64 * 1024,
            batch_jobs: 1_000,
            tags: 32,
            tag_bytes: 64,
            key_bytes: 256,
            name_bytes: 200,
            header_bytes: 16 * 1024,
            // Ten years: ahead of every plan, and far from the end of every date type.
            max_delay: Duration::from_secs(10 * 365 * 24 * 3600),
        }
    }
}
