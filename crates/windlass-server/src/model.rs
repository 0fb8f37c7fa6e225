//! What goes over the wire: the types of requests and answers that several routes share. Requests refuse fields they do
//! not know; answers never hold a job's input or output but where the route is for that.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_core::{
    Callback, HistoryEntry, InvalidInput, JobError, JobFilter, JobId, JobRecord, Page, Phase, Priority, Progress,
    RetryPolicy, Start, Status, SubmitOptions, Timestamp, Unique, UniqueWithin,
};

use crate::problem::Problem;

/// A job, without its input and output.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Job {
    /// Its id, a decimal number.
    #[schema(value_type = String, example = "7341234567890123456")]
    id: JobId,
    /// The tenant that owns it.
    #[schema(value_type = String, format = Uuid)]
    tenant: String,
    /// The handler that runs it.
    handler: String,
    /// The queue it waits in.
    queue: String,
    /// Its status.
    #[schema(value_type = StatusName)]
    status: Status,
    /// Its priority: higher first.
    #[schema(value_type = i16)]
    priority: Priority,
    /// Number of attempts so far, including the running one.
    attempt: u16,
    /// Failed attempts.
    failed: u16,
    /// Nodes lost while they held it.
    recoveries: u16,
    /// When it was submitted.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it is due, if that is in the future or was in the future at its submit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// When its last attempt started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
    /// The node that holds it or ran it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<i64>,
    /// Whether a cancel was requested but is not complete yet.
    cancel_requested: bool,
    /// Its last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
    /// Why it ended or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The last progress it reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressBody>,
    /// Its cost so far, if any was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<CostSum>,
    /// Its batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    batch: Option<JobId>,
    /// Its labels.
    tags: Vec<String>,
    /// Groups it with other jobs of the same request.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    /// Its ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<String>,
    /// How its attempts are run.
    spec: SpecBody,
    /// For a replayed dead letter: by whom, when and as which job.
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<ReplayedBody>,
}

/// The status of a job.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code)]
pub(crate) enum StatusName {
    Pending,
    Scheduled,
    Retrying,
    Blocked,
    Suspended,
    Running,
    Succeeded,
    Canceled,
    DeadLettered,
}

/// Why an attempt failed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// A stable name for programs.
    pub(crate) code: String,
    /// For people.
    pub(crate) message: String,
    /// More data, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<serde_json::Value>,
    /// The consequence: `retryable`, `terminal`, `snooze`, `discard`, `retry_after`.
    #[schema(value_type = serde_json::Value)]
    kind: windlass_core::ErrorKind,
    /// Whether another attempt may succeed.
    retryable: bool,
}

/// The progress of a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ProgressBody {
    /// Counts the reports of a job; a stream can continue after it.
    pub(crate) sequence: u64,
    /// 0 to 100.
    percent: f32,
    /// What it is doing, for people.
    message: String,
    /// When it was reported.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// The cost of a job: all its attempts, plus what operators recorded.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct CostSum {
    /// Money, in cents.
    cents: i64,
    /// Any other unit.
    units: i64,
}

/// How a job's attempts are run; durations are milliseconds.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct SpecBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    retry: Option<RetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    deadline_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    nominal_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    parent: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    callback: Option<Callback>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    sealed: bool,
}

/// Marks a replayed dead letter.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ReplayedBody {
    by: String,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    #[schema(value_type = String)]
    as_job: JobId,
}

impl From<JobError> for ErrorBody {
    fn from(error: JobError) -> Self {
        let retryable = error.is_retryable();
        let JobError { code, message, details, kind, .. } = error;
        ErrorBody { code, message, details, kind, retryable }
    }
}

impl From<Progress> for ProgressBody {
    fn from(progress: Progress) -> Self {
        let Progress { sequence, percent, message, updated_at } = progress;
        ProgressBody { sequence, percent, message, updated_at }
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<JobRecord> for Job {
    fn from(job: JobRecord) -> Self {
        let spec = job.spec;
        Job {
            id: job.id,
            tenant: job.tenant.to_string(),
            handler: job.handler,
            queue: job.queue,
            status: job.status,
            priority: job.priority,
            attempt: job.attempt,
            failed: job.failed,
            recoveries: job.recoveries,
            created_at: job.created_at,
            run_at: job.run_at,
            started_at: job.started_at,
            finished_at: job.finished_at,
            node: job.node.map(|node| node.0),
            cancel_requested: job.cancel_requested,
            error: job.error.map(ErrorBody::from),
            reason: job.reason,
            progress: job.progress.map(ProgressBody::from),
            cost: job.cost.map(|cost| CostSum { cents: cost.cents, units: cost.units }),
            batch: job.batch.map(|batch| batch.0),
            tags: job.tags,
            correlation_id: job.correlation_id,
            ordering_key: job.ordering_key,
            spec: SpecBody {
                timeout: spec.timeout.map(millis),
                retry: spec.retry,
                expires_at: spec.expires_at,
                deadline_at: spec.deadline_at,
                retention: spec.retention.map(millis),
                user: spec.user,
                service: spec.service,
                nominal_at: spec.nominal_at,
                idempotency_key: spec.idempotency_key,
                parent: spec.parent,
                callback: spec.callback,
                sealed: spec.sealed,
            },
            replayed: job.replayed.map(|r| ReplayedBody { by: r.by, at: r.at, as_job: r.as_job }),
        }
    }
}

/// A page of jobs, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobPage {
    /// The jobs; may be fewer than requested although there are more.
    pub(crate) jobs: Vec<Job>,
    /// Pass it as `before` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) next: Option<JobId>,
}

impl JobPage {
    /// A page, and where the next page starts.
    pub(crate) fn new(records: Vec<JobRecord>, next: Option<JobId>) -> Self {
        JobPage { jobs: records.into_iter().map(Job::from).collect(), next }
    }
}

/// One line of a job's history.
#[derive(Serialize, ToSchema)]
pub(crate) struct HistoryLine {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    #[schema(value_type = StatusName)]
    status: Status,
    attempt: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl From<HistoryEntry> for HistoryLine {
    fn from(entry: HistoryEntry) -> Self {
        HistoryLine {
            at: entry.at,
            status: entry.status,
            attempt: entry.attempt,
            node: entry.node.map(|node| node.0),
            started_at: entry.started_at,
            error: entry.error.map(ErrorBody::from),
            note: entry.note,
        }
    }
}

/// Which jobs a list shows.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only jobs of this handler.
    handler_id: Option<String>,
    /// Only jobs in one of these states, separated by commas.
    status: Option<String>,
    /// Only jobs submitted at or after this time (RFC 3339).
    created_after: Option<String>,
    /// Only jobs submitted before this time (RFC 3339).
    created_before: Option<String>,
    /// A filter, such as `handler:mail.send status:retrying tag:vip created>1h`.
    filter: Option<String>,
    /// Only jobs that ended for this reason.
    reason: Option<String>,
    /// Only dead letters that were, or were not, replayed.
    replayed: Option<bool>,
    /// Maximum number of jobs: 50 by default, at most 200.
    #[param(minimum = 1)]
    limit: Option<usize>,
    /// Number of jobs to skip.
    #[param(minimum = 0)]
    offset: Option<usize>,
    /// Only jobs older than this one: the `next` of the previous page.
    before: Option<String>,
}

impl ListQuery {
    /// The filter and the page that it asks for.
    pub(crate) fn read(self, now: Timestamp) -> Result<(JobFilter, Page), Problem> {
        let mut filter = parse_filter(self.filter.as_deref(), now)?;
        filter.handler = self.handler_id.or(filter.handler);
        if let Some(statuses) = self.status {
            let names = statuses.split(',').filter(|name| !name.is_empty());
            filter.statuses = names.map(Status::parse).collect::<Result<_, _>>()?;
        }
        filter.created_after = time("created_after", self.created_after)?.or(filter.created_after);
        filter.created_before = time("created_before", self.created_before)?.or(filter.created_before);
        filter.reason = self.reason.or(filter.reason);
        filter.replayed = self.replayed.or(filter.replayed);
        let page = Page {
            limit: self.limit.unwrap_or(Page::default().limit).min(Page::MAX),
            before: self.before.map(|id| job_id("before", &id)).transpose()?,
            offset: self.offset.unwrap_or(0),
        };
        if page.offset > OFFSET_MAX {
            let message = format!("must be at most {OFFSET_MAX}; use `next` for older pages");
            return Err(Problem::invalid("offset", message));
        }
        Ok((filter, page))
    }
}

/// Skipped jobs are read and thrown away, so that far pages cost more and more; following `next` does not.
const OFFSET_MAX: usize = 10_000;

/// Reads the grammar that the CLI and the dashboard use too.
pub(crate) fn parse_filter(text: Option<&str>, now: Timestamp) -> Result<JobFilter, Problem> {
    match text.map(str::trim).filter(|text| !text.is_empty()) {
        None => Ok(JobFilter::all()),
        Some(text) => Ok(JobFilter::parse(text, now)?),
    }
}

fn time(field: &str, text: Option<String>) -> Result<Option<Timestamp>, Problem> {
    let read = |text: String| {
        // A plus sign that was not escaped arrives as a space.
        Timestamp::parse(&text.replace(' ', "+"))
            .ok_or_else(|| Problem::invalid(field, "expected a time such as 2026-11-16T10:00:00Z"))
    };
    text.map(read).transpose()
}

/// Reads a job id from outside.
pub(crate) fn job_id(field: &str, text: &str) -> Result<JobId, Problem> {
    let plain = !text.is_empty() && text.len() <= 20 && text.bytes().all(|b| b.is_ascii_digit());
    let parsed = plain.then(|| text.parse().ok()).flatten();
    parsed.ok_or_else(|| Problem::invalid(field, "expected a job id, a decimal number"))
}

/// A priority: a name or a number, higher first.
#[derive(Clone, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum PriorityBody {
    /// `critical`, `high`, `normal` or `low`.
    Name(String),
    /// Any number of 16 bits.
    Number(i16),
}

impl PriorityBody {
    pub(crate) fn read(&self) -> Result<Priority, InvalidInput> {
        let unknown = || InvalidInput::new("priority", "expected critical, high, normal, low or a number");
        match self {
            PriorityBody::Name(name) => Priority::parse(name).ok_or_else(unknown),
            PriorityBody::Number(number) => Ok(Priority(*number)),
        }
    }
}

/// How a job is submitted. Every field is optional.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// A second submit with this key returns the first job's id.
    idempotency_key: Option<String>,
    /// Its priority.
    priority: Option<PriorityBody>,
    /// Starts this long after the submit.
    delay_ms: Option<u64>,
    /// Starts at this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// The time limit of each attempt; 0 means no limit.
    timeout_ms: Option<u64>,
    /// Overrides the handler's retry policy.
    retry: Option<RetryBody>,
    /// Cancels the job if it has not started by this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// Ends the job if it has not succeeded by this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    deadline_at: Option<Timestamp>,
    /// The time the job is for, such as the time of a schedule; it does not affect when the job starts.
    #[schema(value_type = Option<String>, format = DateTime)]
    nominal_at: Option<Timestamp>,
    /// How long the ended job is stored.
    retention_ms: Option<u64>,
    /// Jobs of one tenant with the same key run one at a time, in order of submission.
    ordering_key: Option<String>,
    /// Allows at most one such job that has not ended, or one submit within a time window.
    unique: Option<UniqueBody>,
    /// Labels to find it by.
    #[serde(default)]
    tags: Vec<String>,
    /// Groups it with other jobs.
    correlation_id: Option<String>,
    /// The queue it waits in.
    queue: Option<String>,
    /// Headers that are stored with it.
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// When a failed job runs again; durations are milliseconds.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryBody {
    /// Maximum number of attempts, including the first; 1 or 0 means no retries.
    max_attempts: Option<u16>,
    /// The delay after the first failure.
    first_delay: Option<u64>,
    /// The maximum delay.
    max_delay: Option<u64>,
    /// Each delay is the previous one times this factor.
    multiplier: Option<f64>,
    /// The random fraction of each delay, 0 to 1.
    jitter: Option<f64>,
    /// No retry starts later than this after the submit.
    max_elapsed: Option<u64>,
    /// An attempt that ran this long before it failed resets the count.
    reset_after: Option<u64>,
    /// Other delays after a number of failures.
    then: Option<PhaseBody>,
}

/// A later phase of a retry policy.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PhaseBody {
    after: u16,
    first_delay: u64,
    max_delay: u64,
    multiplier: f64,
}

/// Uniqueness by content or by a key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UniqueBody {
    /// The key; without a key, the content decides.
    key: Option<String>,
    /// How long it holds; without a window, until the job has ended.
    window_ms: Option<u64>,
}

/// No duration from outside is longer: ten years, as for delays. Stores add durations to times.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Waits that grow faster are a mistake.
const MULTIPLIER_MAX: f64 = 1_000.0;

/// Reads a duration from outside.
pub(crate) fn duration(field: &str, ms: u64) -> Result<Duration, InvalidInput> {
    let duration = Duration::from_millis(ms);
    match duration <= LONGEST {
        true => Ok(duration),
        false => Err(InvalidInput::new(field, "must be at most ten years")),
    }
}

pub(crate) fn optional(field: &str, ms: Option<u64>) -> Result<Option<Duration>, InvalidInput> {
    ms.map(|ms| duration(field, ms)).transpose()
}

/// Reads when a job starts from the two fields that say so.
pub(crate) fn start(run_at: Option<Timestamp>, delay_ms: Option<u64>) -> Result<Option<Start>, InvalidInput> {
    match (run_at, delay_ms) {
        (Some(_), Some(_)) => Err(InvalidInput::new("run_at", "give `run_at` or `delay_ms`, not both")),
        (Some(at), None) => Ok(Some(Start::At(at))),
        (None, Some(ms)) => Ok(Some(Start::After(duration("delay_ms", ms)?))),
        (None, None) => Ok(None),
    }
}

impl RetryBody {
    pub(crate) fn read(self) -> Result<RetryPolicy, InvalidInput> {
        let mut policy = RetryPolicy::default();
        policy.max_attempts = self.max_attempts.unwrap_or(policy.max_attempts);
        policy.first_delay = optional("retry.first_delay", self.first_delay)?.unwrap_or(policy.first_delay);
        policy.max_delay = optional("retry.max_delay", self.max_delay)?.unwrap_or(policy.max_delay);
        policy.multiplier = self.multiplier.unwrap_or(policy.multiplier);
        policy.jitter = self.jitter.unwrap_or(policy.jitter);
        policy.max_elapsed = optional("retry.max_elapsed", self.max_elapsed)?;
        policy.reset_after = optional("retry.reset_after", self.reset_after)?;
        if let Some(then) = self.then {
            policy = policy.then(Phase {
                after: then.after,
                first_delay: duration("retry.then.first_delay", then.first_delay)?,
                max_delay: duration("retry.then.max_delay", then.max_delay)?,
                multiplier: then.multiplier,
            });
        }
        if !(0.0..=1.0).contains(&policy.jitter) {
            return Err(InvalidInput::new("retry.jitter", "must be 0 to 1"));
        }
        let multipliers = [Some(policy.multiplier), policy.then.as_ref().map(|phase| phase.multiplier)];
        if multipliers.into_iter().flatten().any(|multiplier| !(1.0..=MULTIPLIER_MAX).contains(&multiplier)) {
            return Err(InvalidInput::new("retry.multiplier", format!("must be 1 to {MULTIPLIER_MAX}")));
        }
        Ok(policy)
    }
}

impl Options {
    /// The options as the service knows them. The key of the header and that of the body must not contradict.
    pub(crate) fn read(self, key: Option<String>) -> Result<SubmitOptions, InvalidInput> {
        let mut options = SubmitOptions::new();
        options.idempotency_key = match (self.idempotency_key, key) {
            (Some(body), Some(header)) if body != header => {
                return Err(InvalidInput::new("idempotency_key", "the header and the body have different keys"));
            }
            (body, header) => body.or(header),
        };
        options.priority = self.priority.map(|priority| priority.read()).transpose()?;
        options.start = start(self.run_at, self.delay_ms)?.unwrap_or_default();
        options.spec.timeout = optional("timeout_ms", self.timeout_ms)?;
        options.spec.retry = self.retry.map(RetryBody::read).transpose()?;
        options.spec.expires_at = self.expires_at;
        options.spec.deadline_at = self.deadline_at;
        options.spec.nominal_at = self.nominal_at;
        options.spec.retention = optional("retention_ms", self.retention_ms)?;
        options.ordering_key = self.ordering_key;
        options.unique = match self.unique {
            None => None,
            Some(unique) => Some(Unique {
                key: unique.key,
                within: match optional("unique.window_ms", unique.window_ms)? {
                    Some(window) => UniqueWithin::Window(window),
                    None => UniqueWithin::Unfinished,
                },
            }),
        };
        options.tags = self.tags;
        options.correlation_id = self.correlation_id;
        options.queue = self.queue;
        options.spec.headers = self.headers;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, header: Option<&str>) -> Result<SubmitOptions, String> {
        let options: Options = serde_json::from_str(json).map_err(|error| error.to_string())?;
        options.read(header.map(str::to_owned)).map_err(|error| error.field)
    }

    #[test]
    fn options_become_those_of_the_service() {
        let json = r#"{"priority": "high", "delay_ms": 1500, "tags": ["a"], "unique": {"window_ms": 5},
            "retry": {"max_attempts": 7, "first_delay": 20}, "headers": {"k": "v"}}"#;
        let options = read(json, Some("once")).expect("good");
        assert_eq!(options.priority, Some(Priority::HIGH));
        assert_eq!(options.start, Start::After(Duration::from_millis(1500)));
        assert_eq!(options.idempotency_key.as_deref(), Some("once"));
        let retry = options.spec.retry.expect("set");
        assert_eq!((retry.max_attempts, retry.first_delay), (7, Duration::from_millis(20)));
        assert_eq!(options.unique.expect("set").within, UniqueWithin::Window(Duration::from_millis(5)));
    }

    /// S06: nothing that the caller may not set can be slipped in.
    #[test]
    fn options_that_are_unknown_or_contradict_are_refused() {
        for field in ["tenant", "tenant_id", "status", "attempt", "user", "sealed", "parent", "callback", "batch"] {
            let json = format!(r#"{{"{field}": "x"}}"#);
            assert!(read(&json, None).expect_err("refused").contains("unknown field"), "{field}");
        }
        assert_eq!(read(r#"{"idempotency_key": "a"}"#, Some("b")), Err("idempotency_key".into()));
        assert_eq!(read(r#"{"delay_ms": 1, "run_at": "2027-01-01T00:00:00Z"}"#, None), Err("run_at".into()));
        assert_eq!(read(r#"{"timeout_ms": 18446744073709551615}"#, None), Err("timeout_ms".into()));
        assert_eq!(read(r#"{"priority": "urgent"}"#, None), Err("priority".into()));
    }
}
