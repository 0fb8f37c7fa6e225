//! Which jobs a list, a group of failures or a bulk action means: [`JobFilter`], with the text that people write for it
//! in the API, on the command line and in the dashboard. Pure: a filter is a list of [`Condition`]s, each decided here by
//! [`Condition::matches`]; stores translate the same conditions and must agree. Never asks a clock: `parse` is given the
//! time that `1h` ago is counted from.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::config::{Limits, check_text};
use crate::flows::schedule::SCHEDULE_TAG;
use crate::model::clock::Timestamp;
use crate::model::error::InvalidInput;
use crate::model::id::JobId;
use crate::model::job::{BatchId, JobRecord, Status};
use crate::model::payload::Payload;
use crate::model::priority::Band;
use crate::model::tenant::TenantId;
use crate::operate::failures::Signature;
use crate::store::NodeId;
use crate::text::{parse_duration, parse_when};

/// Selects jobs. An empty filter selects all jobs; otherwise a job must meet every condition.
///
/// ```
/// use windlass_core::{JobFilter, Status, Timestamp};
/// let now = Timestamp::parse("2026-11-15T10:00:00Z").unwrap();
/// let filter = JobFilter::parse(r#"handler:mail.send status:retrying,dead error:"time out" created>2h"#, now).unwrap();
/// assert_eq!(filter.statuses, [Status::Retrying, Status::DeadLettered]);
/// assert_eq!(filter.created_after, Timestamp::parse("2026-11-15T08:00:00Z"));
/// assert_eq!(JobFilter::parse(&filter.to_string(), now), Ok(filter));
/// let error = JobFilter::parse("hanlder:mail.send", now).unwrap_err();
/// assert!(error.message.contains("did you mean `handler:`"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct JobFilter {
    /// This handler's.
    pub handler: Option<String>,
    /// In one of these states.
    pub statuses: Vec<Status>,
    /// Submitted at or after.
    pub created_after: Option<Timestamp>,
    /// Submitted before.
    pub created_before: Option<Timestamp>,
    /// Of this batch.
    pub batch: Option<BatchId>,
    /// With this label.
    pub tag: Option<String>,
    /// With this correlation id.
    pub correlation_id: Option<String>,
    /// Ended for this reason, such as `max_retries`.
    pub reason: Option<String>,
    /// Dead letters that have, or have not, been replayed.
    pub replayed: Option<bool>,
    /// This tenant's. Narrows the scope of a call and never widens it.
    pub tenant: Option<TenantId>,
    /// Submitted to this queue.
    pub queue: Option<String>,
    /// With a priority of this band.
    pub priority: Option<Band>,
    /// Whose last error contains this text in its stored code or message. ASCII case is ignored.
    pub error: Option<String>,
    /// Whose last error has this signature.
    pub signature: Option<Signature>,
    /// With this idempotency key or ordering key.
    pub key: Option<String>,
    /// Whose input has these values.
    pub inputs: Vec<InputTerm>,
    /// Held by this node, or run last by it.
    pub node: Option<NodeId>,
    /// Conditions that the fields above cannot express: prefixes, comparisons and negations.
    pub more: Vec<Condition>,
}

/// One condition of a filter: a test, possibly negated.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Selects jobs that fail the test, including those without a value: `-tag:a` selects jobs without tags.
    pub is_negated: bool,
    /// The test.
    pub test: Test,
}

/// The test of a condition. Exhaustive on purpose: a store that forgets a test must not compile.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// This job.
    Id(JobId),
    /// By the handler's name.
    Handler(Text),
    /// In one of these states.
    Status(Vec<Status>),
    /// With a label like this.
    Tag(Text),
    /// Of this tenant.
    Tenant(TenantId),
    /// By the queue it was submitted to.
    Queue(Text),
    /// With a priority of this band.
    Priority(Band),
    /// See [`JobFilter::error`].
    Error(String),
    /// See [`JobFilter::signature`].
    Signature(Signature),
    /// By its idempotency key or its ordering key.
    Key(Text),
    /// By its correlation id.
    Correlation(Text),
    /// Of this batch.
    Batch(BatchId),
    /// By the reason for which it ended or waits.
    Reason(Text),
    /// Whether it was replayed as another job.
    Replayed(bool),
    /// See [`JobFilter::node`].
    Node(NodeId),
    /// Submitted at or after.
    CreatedFrom(Timestamp),
    /// Submitted before.
    CreatedBefore(Timestamp),
    /// Ended at or after.
    EndedFrom(Timestamp),
    /// Ended before.
    EndedBefore(Timestamp),
    /// How [`JobRecord::attempt`] compares with a number.
    Attempt(Ordering, u16),
    /// How [`JobRecord::ran`] compares; jobs that have not run pass neither way.
    Ran(Took),
    /// How [`JobRecord::waited`] compares; where that is not known, a job passes neither way.
    Waited(Took),
    /// By a field of its input.
    Input(InputTerm),
}

/// How a text is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// Equal.
    Is(String),
    /// It begins like this.
    StartsWith(String),
}

/// How a duration compares with another. What has not ended is measured up to `as_of`, so that a filter means the same
/// jobs on every page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// Longer or shorter.
    pub is: Ordering,
    /// Than this.
    pub than: Duration,
    /// The time that running and waiting jobs are measured at.
    pub as_of: Timestamp,
}

impl Took {
    /// Durations beyond this would overflow what databases compare: a hundred years.
    const MOST: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

    fn matches(&self, took: Option<Duration>) -> bool {
        took.is_some_and(|took| took.cmp(&self.than) == self.is)
    }
}

impl Text {
    /// Whether `text` is like this.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Text::Is(wanted) => text == wanted,
            Text::StartsWith(start) => text.starts_with(start.as_str()),
        }
    }

    fn any<'a>(&self, texts: impl IntoIterator<Item = &'a String>) -> bool {
        texts.into_iter().any(|text| self.matches(text))
    }

    fn as_str(&self) -> &str {
        match self {
            Text::Is(text) | Text::StartsWith(text) => text,
        }
    }

    /// The same for what follows `start`, where anything does.
    fn after(&self, start: &str) -> Option<Text> {
        match self {
            Text::Is(text) => {
                text.strip_prefix(start).filter(|rest| !rest.is_empty()).map(|rest| Text::Is(rest.into()))
            }
            Text::StartsWith(text) => text.strip_prefix(start).map(|rest| Text::StartsWith(rest.into())),
        }
    }

    /// As it is typed: the star of a prefix stands outside of the quotes.
    fn written(&self) -> String {
        match self {
            Text::Is(text) => quoted(text, is_plain),
            Text::StartsWith(start) => {
                format!("{}*", if start.is_empty() { String::new() } else { quoted(start, is_plain) })
            }
        }
    }
}

impl From<Test> for Condition {
    fn from(test: Test) -> Self {
        Condition { is_negated: false, test }
    }
}

impl Condition {
    /// Whether `record`, as the store keeps it, passes. Records do not carry inputs: of those see
    /// [`Condition::matches_input`]; here they pass.
    pub fn matches(&self, record: &JobRecord) -> bool {
        matches!(self.test, Test::Input(_)) || self.test.matches(record) != self.is_negated
    }

    /// Whether a job with this input passes, as far as the condition is about inputs.
    pub fn matches_input(&self, input: &Payload) -> bool {
        match &self.test {
            Test::Input(term) => term.matches(input) != self.is_negated,
            _ => true,
        }
    }

    /// Whether it is about inputs.
    pub fn asks_input(&self) -> bool {
        matches!(self.test, Test::Input(_))
    }

    fn terms(&self) -> usize {
        match &self.test {
            Test::Status(statuses) => statuses.len(),
            _ => 1,
        }
    }

    fn check(&self, max_bytes: usize) -> Result<(), InvalidInput> {
        match &self.test {
            Test::Handler(text) => check_text("handler", text.as_str(), max_bytes),
            Test::Tag(text) => check_text("tag", text.as_str(), max_bytes),
            Test::Queue(text) => check_text("queue", text.as_str(), max_bytes),
            Test::Key(text) => check_text("key", text.as_str(), max_bytes),
            Test::Correlation(text) => check_text("correlation_id", text.as_str(), max_bytes),
            Test::Reason(text) => check_text("reason", text.as_str(), max_bytes),
            Test::Error(text) => check_text("error", text, max_bytes),
            Test::Input(term) => term.check(max_bytes),
            Test::Status(statuses) if statuses.is_empty() => {
                Err(InvalidInput::new("status", "needs at least one status"))
            }
            Test::Ran(took) | Test::Waited(took) if took.than > Took::MOST => {
                Err(InvalidInput::new("filter", "a duration must be at most a hundred years"))
            }
            _ => Ok(()),
        }
    }
}

impl Test {
    fn matches(&self, record: &JobRecord) -> bool {
        let error = record.error.as_ref();
        match self {
            Test::Id(id) => record.id == *id,
            Test::Handler(text) => text.matches(&record.handler),
            Test::Status(statuses) => statuses.contains(&record.status),
            Test::Tag(text) => text.any(&record.tags),
            Test::Tenant(tenant) => record.tenant == *tenant,
            Test::Queue(text) => text.matches(&record.queue),
            Test::Priority(band) => record.priority.band() == *band,
            Test::Error(text) => {
                error.is_some_and(|error| has_text(&error.code, text) || has_text(&error.message, text))
            }
            Test::Signature(signature) => error.and_then(|error| error.signature) == Some(*signature),
            Test::Key(text) => text.any(record.ordering_key.iter().chain(&record.spec.idempotency_key)),
            Test::Correlation(text) => text.any(&record.correlation_id),
            Test::Batch(batch) => record.batch == Some(*batch),
            Test::Reason(text) => text.any(&record.reason),
            Test::Replayed(replayed) => record.replayed.is_some() == *replayed,
            Test::Node(node) => record.node == Some(*node),
            Test::CreatedFrom(at) => record.created_at >= *at,
            Test::CreatedBefore(at) => record.created_at < *at,
            Test::EndedFrom(at) => record.finished_at.is_some_and(|ended| ended >= *at),
            Test::EndedBefore(at) => record.finished_at.is_some_and(|ended| ended < *at),
            Test::Attempt(is, than) => record.attempt.cmp(than) == *is,
            Test::Ran(took) => took.matches(record.ran(took.as_of)),
            Test::Waited(took) => took.matches(record.waited(took.as_of)),
            // Records do not carry it; `Condition::matches_input` asks.
            Test::Input(_) => true,
        }
    }
}

impl fmt::Display for Condition {
    /// As it is typed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |text: &str| quoted(text, is_plain);
        let named = |name: &str, value: String| format!("{name}{value}");
        let than = |name: &str, is: Ordering, value: String| {
            let sign = match is {
                Ordering::Less => '<',
                Ordering::Equal => ':',
                Ordering::Greater => '>',
            };
            format!("{name}{sign}{value}")
        };
        let text = match &self.test {
            Test::Id(id) => named("id:", id.to_string()),
            Test::Handler(text) => named("handler:", text.written()),
            Test::Status(statuses) => {
                named("status:", statuses.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(","))
            }
            Test::Tag(text) => match text.after(SCHEDULE_TAG) {
                Some(schedule) => named("schedule:", schedule.written()),
                None => named("tag:", text.written()),
            },
            Test::Tenant(TenantId::ROOT) => "tenant:root".to_owned(),
            Test::Tenant(tenant) => named("tenant:", tenant.to_string()),
            Test::Queue(text) => named("queue:", text.written()),
            Test::Priority(band) => named("priority:", band.as_str().to_owned()),
            Test::Error(text) => named("error:", plain(text)),
            Test::Signature(signature) => named("signature:", signature.to_string()),
            Test::Key(text) => named("key:", text.written()),
            Test::Correlation(text) => named("correlation:", text.written()),
            Test::Batch(batch) => named("batch:", batch.0.to_string()),
            Test::Reason(text) => named("reason:", text.written()),
            Test::Replayed(replayed) => named("replayed:", if *replayed { "yes" } else { "no" }.to_owned()),
            Test::Node(node) => named("node:", node.0.to_string()),
            Test::CreatedFrom(at) => named("created>", at.to_string()),
            Test::CreatedBefore(at) => named("created<", at.to_string()),
            Test::EndedFrom(at) => named("ended>", at.to_string()),
            Test::EndedBefore(at) => named("ended<", at.to_string()),
            Test::Attempt(is, number) => than("attempt", *is, number.to_string()),
            Test::Ran(took) => than("ran", took.is, exactly(took.than)),
            Test::Waited(took) => than("waited", took.is, exactly(took.than)),
            Test::Input(term) => {
                let path: Vec<String> = term.path.iter().map(|step| quoted(step, is_plain_step)).collect();
                format!("input.{}:{}", path.join("."), plain(&term.value))
            }
        };
        write!(f, "{}{text}", if self.is_negated { "-" } else { "" })
    }
}

/// A field of the input that equals a text. A string equals its content, a number the text it was written as, a boolean
/// `true` or `false`; `null`, objects, arrays and sealed inputs equal nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputTerm {
    /// From the outside in: keys of objects, and places in arrays, counted from 0.
    pub path: Vec<String>,
    /// The text.
    pub value: String,
}

impl InputTerm {
    /// Steps of a path: deeper fields are data, not something to look for jobs by.
    const STEPS: usize = 16;

    /// Whether `input`, as it is kept, has the value. Where a key is written twice, the last counts.
    pub fn matches(&self, input: &Payload) -> bool {
        // An escaped NUL is what PostgreSQL can keep but not take apart. Refused at the edge, so nothing is missed.
        if input.as_str().contains("\\u0000") {
            return false;
        }
        let Ok(mut at) = serde_json::from_str::<&RawValue>(input.as_str()) else { return false };
        for step in &self.path {
            let within = match at.get().as_bytes().first() {
                Some(b'{') => {
                    let fields = serde_json::from_str::<BTreeMap<String, &RawValue>>(at.get());
                    fields.ok().and_then(|fields| fields.get(step).copied())
                }
                Some(b'[') => {
                    let items = serde_json::from_str::<Vec<&RawValue>>(at.get());
                    items.ok().and_then(|items| items.get(step.parse::<usize>().ok()?).copied())
                }
                _ => None,
            };
            let Some(within) = within else { return false };
            at = within;
        }
        match at.get().as_bytes().first() {
            Some(b'"') => serde_json::from_str::<String>(at.get()).is_ok_and(|text| text == self.value),
            Some(b'{' | b'[' | b'n') | None => false,
            Some(_) => at.get() == self.value,
        }
    }

    fn check(&self, max_bytes: usize) -> Result<(), InvalidInput> {
        if self.path.is_empty() || self.path.len() > InputTerm::STEPS {
            let message = format!("a path of {} steps, 1 to {} are allowed", self.path.len(), InputTerm::STEPS);
            return Err(InvalidInput::new("input", message));
        }
        for step in &self.path {
            check_text("input", step, max_bytes)?;
            // Databases read these as places in an array too, each in its own way.
            let digits = step.trim_start().trim_start_matches(['+', '-']);
            let number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            if number && step.parse::<usize>().map(|n| n.to_string()).as_ref() != Ok(step) {
                let message = format!("`{}` is not an array index; indexes count from 0", step.escape_debug());
                return Err(InvalidInput::new("input", message));
            }
        }
        check_text("input", &self.value, max_bytes)
    }
}

impl JobFilter {
    /// The names that conditions begin with.
    pub const NAMES: [&str; 22] = {
        let mut names = ["input"; 22];
        let mut n = 0;
        while n < NAMES.len() {
            names[n] = NAMES[n];
            n += 1;
        }
        while n < NAMES.len() + COMPARED.len() {
            names[n] = COMPARED[n - NAMES.len()].0;
            n += 1;
        }
        names
    };

    /// Everything.
    pub fn all() -> Self {
        JobFilter::default()
    }

    /// Only jobs of `handler`.
    #[must_use]
    pub fn handler(mut self, handler: impl Into<String>) -> Self {
        self.handler = Some(handler.into());
        self
    }

    /// Also jobs in `status`.
    #[must_use]
    pub fn status(mut self, status: Status) -> Self {
        self.statuses.push(status);
        self
    }

    /// Only jobs with the label `tag`.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Only jobs of `tenant`.
    #[must_use]
    pub fn tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = Some(tenant);
        self
    }

    /// Only jobs whose last error has `signature`.
    #[must_use]
    pub fn signature(mut self, signature: Signature) -> Self {
        self.signature = Some(signature);
        self
    }

    /// Only jobs whose input has `value` at `path`, such as `["user", "id"]`.
    #[must_use]
    pub fn input<S: Into<String>>(mut self, path: impl IntoIterator<Item = S>, value: impl Into<String>) -> Self {
        self.inputs.push(InputTerm { path: path.into_iter().map(Into::into).collect(), value: value.into() });
        self
    }

    /// Also this condition.
    #[must_use]
    pub fn and(mut self, condition: impl Into<Condition>) -> Self {
        self.more.push(condition.into());
        self
    }

    /// Every condition, those of the fields first. What stores carry out.
    pub fn conditions(&self) -> Vec<Condition> {
        let is = |text: &String| Text::Is(text.clone());
        let statuses = (!self.statuses.is_empty()).then(|| Test::Status(self.statuses.clone()));
        let tests = [
            self.handler.as_ref().map(|text| Test::Handler(is(text))),
            statuses,
            self.tag.as_ref().map(|text| Test::Tag(is(text))),
            self.tenant.map(Test::Tenant),
            self.queue.as_ref().map(|text| Test::Queue(is(text))),
            self.priority.map(Test::Priority),
            self.error.clone().map(Test::Error),
            self.signature.map(Test::Signature),
            self.key.as_ref().map(|text| Test::Key(is(text))),
            self.correlation_id.as_ref().map(|text| Test::Correlation(is(text))),
            self.batch.map(Test::Batch),
            self.reason.as_ref().map(|text| Test::Reason(is(text))),
            self.replayed.map(Test::Replayed),
            self.node.map(Test::Node),
            self.created_after.map(Test::CreatedFrom),
            self.created_before.map(Test::CreatedBefore),
        ];
        let inputs = self.inputs.iter().cloned().map(Test::Input);
        let own = tests.into_iter().flatten().chain(inputs).map(Condition::from);
        own.chain(self.more.iter().cloned()).collect()
    }

    /// How many conditions it has; each wanted status is one.
    pub fn terms(&self) -> usize {
        self.conditions().iter().map(Condition::terms).sum()
    }

    /// The only job that can pass, where the filter names it: then nothing has to be walked through.
    pub fn only_id(&self) -> Option<JobId> {
        self.more.iter().find_map(|condition| match condition {
            Condition { is_negated: false, test: Test::Id(id) } => Some(*id),
            _ => None,
        })
    }

    /// Before which time every job that can pass was submitted, as far as the filter says. A job ends after its submit.
    pub fn submitted_before(&self) -> Option<Timestamp> {
        let ended = self.more.iter().filter_map(|condition| match condition {
            Condition { is_negated: false, test: Test::EndedBefore(at) } => Some(*at),
            _ => None,
        });
        self.created_before.into_iter().chain(ended).min()
    }

    /// Whether it tests inputs, which needs the right to see them.
    pub fn asks_input(&self) -> bool {
        !self.inputs.is_empty() || self.more.iter().any(Condition::asks_input)
    }

    /// Whether `record`, as the store keeps it, passes all but the conditions on its input, which records do not carry.
    /// For one job; for many take [`JobFilter::conditions`] once.
    pub fn matches(&self, record: &JobRecord) -> bool {
        self.conditions().iter().all(|condition| condition.matches(record))
    }

    /// Whether a job's input, as the store keeps it, passes.
    pub fn matches_input(&self, input: &Payload) -> bool {
        self.conditions().iter().all(|condition| condition.matches_input(input))
    }

    /// Rejects filters that exceed a limit or that no store can evaluate.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), InvalidInput> {
        let terms = self.terms();
        if terms > limits.filter_terms {
            return Err(InvalidInput::new("filter", format!("{terms} conditions, at most {}", limits.filter_terms)));
        }
        self.conditions().iter().try_for_each(|condition| condition.check(limits.key_bytes))
    }

    /// Reads the text of a filter: conditions with spaces between them, all of which must hold. `now` is the time that
    /// `created<1h` counts from. The grammar is in `docs/filters.md`.
    pub fn parse(text: &str, now: Timestamp) -> Result<JobFilter, InvalidInput> {
        if text.len() > MAX_BYTES {
            return Err(refused(format!("{} bytes, at most {MAX_BYTES} are allowed", text.len())));
        }
        let mut filter = JobFilter::default();
        let mut given = Vec::new();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let (term, after) = Term::read(rest)?;
            let may_repeat = term.is_negated || term.name == "input";
            if !may_repeat && given.contains(&(term.name, term.sign)) {
                let sign = if term.sign == ':' { String::new() } else { term.sign.to_string() };
                return Err(refused(format!("{}{sign} is given twice", term.name)));
            }
            given.push((term.name, term.sign));
            filter.add(term.condition(now)?);
            rest = after.trim_start();
        }
        filter.check(&Limits::MOST)?;
        Ok(filter)
    }

    /// Adds a condition: to its field where there is one.
    fn add(&mut self, condition: Condition) {
        let Condition { is_negated, test } = condition;
        match test {
            _ if is_negated => self.more.push(Condition { is_negated, test }),
            Test::Handler(Text::Is(text)) => self.handler = Some(text),
            Test::Status(statuses) => self.statuses = statuses,
            // That of a schedule leaves the field to another one: both can be asked for at once.
            Test::Tag(Text::Is(text)) if !text.starts_with(SCHEDULE_TAG) => self.tag = Some(text),
            Test::Tenant(tenant) => self.tenant = Some(tenant),
            Test::Queue(Text::Is(text)) => self.queue = Some(text),
            Test::Priority(band) => self.priority = Some(band),
            Test::Error(text) => self.error = Some(text),
            Test::Signature(signature) => self.signature = Some(signature),
            Test::Key(Text::Is(text)) => self.key = Some(text),
            Test::Correlation(Text::Is(text)) => self.correlation_id = Some(text),
            Test::Batch(batch) => self.batch = Some(batch),
            Test::Reason(Text::Is(text)) => self.reason = Some(text),
            Test::Replayed(replayed) => self.replayed = Some(replayed),
            Test::Node(node) => self.node = Some(node),
            Test::CreatedFrom(at) => self.created_after = Some(at),
            Test::CreatedBefore(at) => self.created_before = Some(at),
            Test::Input(term) => self.inputs.push(term),
            test => self.more.push(test.into()),
        }
    }
}

impl fmt::Display for JobFilter {
    /// The text that [`JobFilter::parse`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions: Vec<String> = self.conditions().iter().map(Condition::to_string).collect();
        f.write_str(&conditions.join(" "))
    }
}

/// Bytes of a filter's text: all conditions there can be with texts of their full length, and some more for quoting.
const MAX_BYTES: usize = 64 * 1024;

/// The names of conditions that have one value.
const NAMES: [&str; 16] = [
    "id",
    "handler",
    "status",
    "tag",
    "schedule",
    "tenant",
    "queue",
    "priority",
    "error",
    "signature",
    "key",
    "correlation",
    "batch",
    "reason",
    "replayed",
    "node",
];

/// The names of conditions that compare, each with two that can be copied.
const COMPARED: [(&str, &str); 5] = [
    ("created", "created>2h or created<2026-11-01"),
    ("ended", "ended>2h or ended<2026-11-01"),
    ("attempt", "attempt>2 or attempt<5"),
    ("ran", "ran>10s or ran<5m"),
    ("waited", "waited>10s or waited<5m"),
];

/// One condition as it is written.
struct Term<'a> {
    is_negated: bool,
    name: &'a str,
    /// The rest of the name, for `input`.
    path: Vec<String>,
    /// `:`, `<` or `>`.
    sign: char,
    value: String,
    /// Ended by a star: any text that begins with the value.
    is_prefix: bool,
}

impl<'a> Term<'a> {
    /// Reads the condition that `text` begins with, and answers what follows.
    fn read(text: &'a str) -> Result<(Term<'a>, &'a str), InvalidInput> {
        let (is_negated, text) = match text.strip_prefix('-') {
            Some(negated) => (true, negated),
            None => (false, text),
        };
        let end = text.find(|c: char| c.is_whitespace() || ":<>\"".contains(c)).unwrap_or(text.len());
        let (mut name, mut rest) = text.split_at(end);
        let mut path = Vec::new();
        if name.starts_with("input.") {
            (name, rest) = text.split_at("input".len());
            while let Some(step) = rest.strip_prefix('.') {
                let (step, after) = read_text(step, is_plain_step)?;
                path.push(step);
                rest = after;
            }
        }
        let Some(sign) = rest.chars().next().filter(|c| ":<>".contains(*c)) else {
            let word = &text[..text.len() - rest.len()];
            return Err(if path.is_empty() { bare(word, rest) } else { refused(format!("{word} has no value")) });
        };
        let typed = &rest[sign.len_utf8()..];
        let (mut value, mut rest) = read_text(typed, is_plain)?;
        let is_prefix = match typed.starts_with('"') {
            true => rest.starts_with('*'),
            false => value.ends_with('*'),
        };
        match (is_prefix, typed.starts_with('"')) {
            (true, true) => rest = &rest[1..],
            (true, false) => drop(value.pop()),
            _ => {}
        }
        if !rest.is_empty() && !rest.starts_with(char::is_whitespace) {
            return Err(refused(format!("{name}{sign}… is followed by `{}` without a space", first_word(rest))));
        }
        if !path.is_empty() && sign != ':' {
            return Err(refused("fields of the input are compared by `:` only"));
        }
        Ok((Term { is_negated, name, path, sign, value, is_prefix }, rest))
    }

    /// What it means.
    fn condition(self, now: Timestamp) -> Result<Condition, InvalidInput> {
        let Term { is_negated, name, path, sign, value, is_prefix } = self;
        if is_negated && let Some((_, such)) = COMPARED.iter().find(|(compared, _)| *compared == name) {
            return Err(refused(format!("-{name}: a comparison is not negated, turn its sign round: {such}")));
        }
        let takes_prefix = ["handler", "tag", "schedule", "queue", "key", "correlation", "reason"];
        if is_prefix
            && (!path.is_empty() || !takes_prefix.contains(&name))
            && (NAMES.contains(&name) || name == "input")
        {
            let known = takes_prefix.join(", ");
            let message =
                format!("{name}: a star at the end means a prefix, which only {known} support; quote a literal star");
            return Err(refused(message));
        }
        let test = match path.is_empty() {
            true => test(name, sign, value, is_prefix, now)?,
            false => Test::Input(InputTerm { path, value }),
        };
        Ok(Condition { is_negated, test })
    }
}

fn test(name: &str, sign: char, value: String, is_prefix: bool, now: Timestamp) -> Result<Test, InvalidInput> {
    let bad = |error: InvalidInput| refused(format!("{name}: {}", error.message));
    let text = |value: String| if is_prefix { Text::StartsWith(value) } else { Text::Is(value) };
    let is = match sign {
        '<' => Ordering::Less,
        '>' => Ordering::Greater,
        _ => Ordering::Equal,
    };
    let took = |value: &str| -> Result<Took, InvalidInput> {
        let than = parse_duration(value).map_err(|message| refused(format!("{name}: {message}")))?;
        // Stores keep microseconds.
        let than = Duration::new(than.as_secs(), than.subsec_micros() * 1_000);
        Ok(Took { is, than, as_of: now })
    };
    Ok(match (name, sign) {
        ("id", ':') => Test::Id(value.parse().map_err(|_| not_a("id", &value, "the id of a job"))?),
        ("handler", ':') => Test::Handler(text(value)),
        ("status", ':') => Test::Status(statuses(&value).map_err(bad)?),
        ("tag", ':') => Test::Tag(text(value)),
        ("schedule", ':') => Test::Tag(text(format!("{SCHEDULE_TAG}{value}"))),
        ("tenant", ':') if value == "root" => Test::Tenant(TenantId::ROOT),
        ("tenant", ':') => Test::Tenant(TenantId::parse(&value).map_err(bad)?),
        ("queue", ':') => Test::Queue(text(value)),
        ("priority", ':') => Test::Priority(band(&value)?),
        ("error", ':') => Test::Error(value),
        ("signature", ':') => Test::Signature(value.parse().map_err(bad)?),
        ("key", ':') => Test::Key(text(value)),
        ("correlation", ':') => Test::Correlation(text(value)),
        ("batch", ':') => {
            let id = value.parse::<JobId>().map_err(|_| not_a("batch", &value, "the id of a batch"))?;
            Test::Batch(BatchId(id))
        }
        ("reason", ':') => Test::Reason(text(value)),
        ("replayed", ':') => Test::Replayed(yes_or_no(&value)?),
        ("node", ':') => Test::Node(NodeId(value.parse().map_err(|_| not_a("node", &value, "the number of a node"))?)),
        ("created", '>') => Test::CreatedFrom(time(name, &value, now)?),
        ("created", '<') => Test::CreatedBefore(time(name, &value, now)?),
        ("ended", '>') => Test::EndedFrom(time(name, &value, now)?),
        ("ended", '<') => Test::EndedBefore(time(name, &value, now)?),
        ("attempt", _) => {
            let number = value.parse().map_err(|_| not_a("attempt", &value, "the number of an attempt"))?;
            Test::Attempt(is, number)
        }
        ("ran", '<' | '>') => Test::Ran(took(&value)?),
        ("waited", '<' | '>') => Test::Waited(took(&value)?),
        (name, sign) if NAMES.contains(&name) => return Err(refused(format!("write {name}: and not {name}{sign}"))),
        ("input", _) => return Err(refused("write which field, such as input.user.id:42")),
        (name, _) => {
            let such = COMPARED.iter().find(|(compared, _)| *compared == name);
            return Err(such.map_or_else(|| unknown(name), |(_, such)| refused(format!("write {such}"))));
        }
    })
}

/// The statuses of a list, each once.
fn statuses(list: &str) -> Result<Vec<Status>, InvalidInput> {
    let mut statuses = Vec::new();
    for word in list.split(',') {
        let status = Status::parse(word)?;
        if !statuses.contains(&status) {
            statuses.push(status);
        }
    }
    Ok(statuses)
}

/// Reads a text in quotes, or all that may stand without them.
fn read_text(text: &str, plain: fn(char) -> bool) -> Result<(String, &str), InvalidInput> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|c| !plain(c)).unwrap_or(text.len());
        if end == 0 {
            return Err(refused("a value is missing; an empty one is written \"\""));
        }
        return Ok((text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &quoted[at + 1..])),
            '\\' => match chars.next() {
                Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                _ => return Err(refused("within quotes, \\ stands before \" or \\ only")),
            },
            c => value.push(c),
        }
    }
    Err(refused("a quote is not closed"))
}

/// What a value may have without quotes.
fn is_plain(c: char) -> bool {
    !c.is_whitespace() && c != '"'
}

/// What a step of a path may have without quotes.
fn is_plain_step(c: char) -> bool {
    is_plain(c) && !".:<>".contains(c)
}

fn quoted(text: &str, plain: fn(char) -> bool) -> String {
    // A star at the end would mean a prefix.
    if !text.is_empty() && text.chars().all(plain) && !text.ends_with('*') {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A duration in the largest unit that tells it exactly, down to the microseconds that stores keep.
fn exactly(duration: Duration) -> String {
    let micros = duration.as_micros();
    let units = [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
    match units.into_iter().find(|(_, length)| micros > 0 && micros.is_multiple_of(*length)) {
        Some((unit, length)) => format!("{}{unit}", micros / length),
        None => format!("{micros}us"),
    }
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().escape_debug().to_string()
}

fn refused(message: impl Into<String>) -> InvalidInput {
    InvalidInput::new("filter", message)
}

fn not_a(name: &str, value: &str, what: &str) -> InvalidInput {
    refused(format!("{name}: `{}` is not {what}", value.escape_debug()))
}

/// A word that says nothing of what it is: suggests what it may be.
fn bare(word: &str, rest: &str) -> InvalidInput {
    if word.is_empty() {
        return refused(format!("`{}` is not a condition; write one like handler:mail.send", first_word(rest)));
    }
    if let Some((name, such)) = COMPARED.iter().find(|(compared, _)| *compared == word) {
        return refused(format!("{name} has no value; write {such}"));
    }
    let shown = word.escape_debug();
    let name = match () {
        () if NAMES.contains(&word) => return refused(format!("{word} has no value; write {word}:…")),
        () if word.bytes().all(|byte| byte.is_ascii_digit()) => "id",
        () if Status::parse(word).is_ok() => "status",
        () if TenantId::parse(word).is_ok() => "tenant",
        () if Band::parse(word).is_some() => "priority",
        () if word.len() == 16 && word.parse::<Signature>().is_ok() => "signature",
        () => "handler",
    };
    refused(format!("`{shown}` is not a condition; did you mean `{name}:{shown}`?"))
}

/// A name that there is not: suggests the nearest.
fn unknown(name: &str) -> InvalidInput {
    let compared = COMPARED.map(|(compared, _)| compared);
    let near = |known: &&&str| distance(name, known) <= known.len().div_ceil(3);
    let nearest =
        NAMES.iter().chain(&compared).chain(&["input"]).filter(near).min_by_key(|known| distance(name, known));
    let shown = name.escape_debug();
    match nearest.copied() {
        Some("input") => refused(format!("there is no condition `{shown}`; did you mean `input.field:`?")),
        Some(known) if compared.contains(&known) => {
            refused(format!("there is no condition `{shown}`; did you mean `{known}>`?"))
        }
        Some(known) => refused(format!("there is no condition `{shown}`; did you mean `{known}:`?")),
        None => {
            let (known, compared) = (NAMES.join(", "), compared.join(", "));
            refused(format!("there is no condition `{shown}`; there are {known}, {compared} with > or <, input.field"))
        }
    }
}

/// How many letters must be changed, added or left out to make one word of the other; swapped ones count as one.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(32).collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(rows[i - 2][j - 2] + 1);
            }
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

fn band(value: &str) -> Result<Band, InvalidInput> {
    Band::parse(value).ok_or_else(|| not_a("priority", value, "critical, high, normal or low"))
}

fn yes_or_no(value: &str) -> Result<bool, InvalidInput> {
    match value.to_ascii_lowercase().as_str() {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err(not_a("replayed", value, "yes or no")),
    }
}

/// A time, a day, or so long ago.
fn time(name: &str, value: &str, now: Timestamp) -> Result<Timestamp, InvalidInput> {
    let day = Timestamp::parse(&format!("{value}T00:00:00Z"));
    let at = match day {
        Some(day) => day,
        None => parse_when(value).map_err(|message| refused(format!("{name}: {message}")))?.at(now),
    };
    match Timestamp::parse(&at.to_string()) {
        Some(at) => Ok(at),
        None => Err(not_a(name, value, "a time there can be")),
    }
}

/// Whether `text` has `part` in it. Only the case of a to z is ignored: that is what every store can do alike.
fn has_text(text: &str, part: &str) -> bool {
    text.to_ascii_lowercase().contains(&part.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn check(text: &str, expected: JobFilter) {
        assert_eq!(JobFilter::parse(text, NOW), Ok(expected), "{text}");
    }

    fn check_refused(text: &str, part: &str) {
        let error = JobFilter::parse(text, NOW).expect_err(text);
        assert!(error.message.contains(part), "{text}: {}", error.message);
    }

    /// BEY-6.
    #[test]
    fn every_condition_can_be_written() {
        let text = "handler:mail.send status:retrying,dead tag:vip tenant:0190b3a2-7c1e-7000-8000-000000000001 queue:q \
                    priority:high error:\"time out\" signature:00ff00ff00ff00ff key:order-7 correlation:abc batch:17 \
                    reason:max_retries replayed:no node:12 created>2026-11-01 created<1h input.user.id:42 \
                    input.\"a.b\".0:\"x \\\"y\\\" \\\\\"";
        let filter = JobFilter {
            handler: Some("mail.send".into()),
            statuses: vec![Status::Retrying, Status::DeadLettered],
            created_after: Timestamp::parse("2026-11-01T00:00:00Z"),
            created_before: Some(NOW - std::time::Duration::from_secs(3_600)),
            batch: Some(BatchId(JobId::from_i64(17))),
            tag: Some("vip".into()),
            correlation_id: Some("abc".into()),
            reason: Some("max_retries".into()),
            replayed: Some(false),
            tenant: TenantId::parse("0190b3a2-7c1e-7000-8000-000000000001").ok(),
            queue: Some("q".into()),
            priority: Some(Band::High),
            error: Some("time out".into()),
            signature: Some(Signature(0x00ff_00ff_00ff_00ff)),
            key: Some("order-7".into()),
            inputs: vec![
                InputTerm { path: vec!["user".into(), "id".into()], value: "42".into() },
                InputTerm { path: vec!["a.b".into(), "0".into()], value: "x \"y\" \\".into() },
            ],
            node: Some(NodeId(12)),
            more: Vec::new(),
        };
        assert_eq!(filter.terms(), 19);
        check(text, filter.clone());
        check(&filter.to_string(), filter);
        check("  ", JobFilter::all());
        check("status:dead,DEAD_LETTERED", JobFilter::all().status(Status::DeadLettered));
        check(r"handler:C:\x", JobFilter::all().handler(r"C:\x"));
    }

    /// BEY-6: what goes beyond one value for each name.
    #[test]
    fn prefixes_comparisons_and_opposites_can_be_written() {
        let is = |text: &str| Text::Is(text.into());
        let begins = |text: &str| Text::StartsWith(text.into());
        let took = |is, seconds| Took { is, than: Duration::from_secs(seconds), as_of: NOW };
        let not = |test| Condition { is_negated: true, test };
        let all = JobFilter::all;
        check("id:17", all().and(Test::Id(JobId::from_i64(17))));
        check("tenant:root", all().tenant(TenantId::ROOT));
        check("handler:demo.*", all().and(Test::Handler(begins("demo."))));
        check("handler:\"a b\"*", all().and(Test::Handler(begins("a b"))));
        check("handler:\"demo.*\"", all().handler("demo.*"));
        check("key:*", all().and(Test::Key(begins(""))));
        check(
            "-handler:demo.* -handler:a",
            all().and(not(Test::Handler(begins("demo.")))).and(not(Test::Handler(is("a")))),
        );
        check("-status:succeeded,dead", all().and(not(Test::Status(vec![Status::Succeeded, Status::DeadLettered]))));
        check("-error:\"time out\"", all().and(not(Test::Error("time out".into()))));
        check(
            "-input.user.id:42",
            all().and(not(Test::Input(InputTerm { path: vec!["user".into(), "id".into()], value: "42".into() }))),
        );
        check(
            "attempt>2 attempt<5",
            all().and(Test::Attempt(Ordering::Greater, 2)).and(Test::Attempt(Ordering::Less, 5)),
        );
        check("attempt:3", all().and(Test::Attempt(Ordering::Equal, 3)));
        check("ran>1m30s", all().and(Test::Ran(took(Ordering::Greater, 90))));
        let shown = |text: &str| JobFilter::parse(text, NOW).map(|filter| filter.to_string());
        assert_eq!(shown("ran>1m30s waited<48h"), Ok("ran>90s waited<2d".to_owned()));
        assert_eq!(shown("ran>1500ns waited<0s"), Ok("ran>1us waited<0us".to_owned()));
        check("waited<5m", all().and(Test::Waited(took(Ordering::Less, 300))));
        check("ended>1h", all().and(Test::EndedFrom(NOW - Duration::from_secs(3_600))));
        assert_eq!(JobFilter::parse("-status:succeeded,dead id:7", NOW).map(|filter| filter.terms()), Ok(3));
    }

    /// TIM-2: the jobs of a schedule have its tag, and are found by its name.
    #[test]
    fn a_schedule_is_a_condition_of_its_own() {
        let (all, tag) = (JobFilter::all, |text: &str| Test::Tag(Text::Is(text.into())));
        check("schedule:nightly", all().and(tag("schedule:nightly")));
        check("schedule:\"by hand\" tag:vip", all().tag("vip").and(tag("schedule:by hand")));
        check("schedule:night*", all().and(Test::Tag(Text::StartsWith("schedule:night".into()))));
        check("schedule:*", all().and(Test::Tag(Text::StartsWith("schedule:".into()))));
        check("-schedule:a", all().and(Condition { is_negated: true, test: tag("schedule:a") }));
        let shown = |text: &str| JobFilter::parse(text, NOW).map(|filter| filter.to_string());
        assert_eq!(shown("tag:schedule:nightly"), Ok("schedule:nightly".to_owned()));
        assert_eq!(shown("schedule:nightly tag:vip"), Ok("tag:vip schedule:nightly".to_owned()));
        check_refused("schedule:a schedule:b", "schedule is given twice");
    }

    #[test]
    fn only_what_is_certain_shortens_a_walk() {
        let read = |text: &str| JobFilter::parse(text, NOW).expect(text);
        assert_eq!(read("id:7").only_id(), Some(JobId::from_i64(7)));
        assert_eq!(read("-id:7").only_id(), None);
        let ago = |seconds| Some(NOW - Duration::from_secs(seconds));
        assert_eq!(read("created<1h ended<2h").submitted_before(), ago(7_200));
        assert_eq!(read("created<1h").submitted_before(), ago(3_600));
        assert_eq!(read("ended>2h").submitted_before(), None);
        assert!(read("-input.a:1").asks_input() && read("input.a:1").asks_input() && !read("-tag:a").asks_input());
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        check_refused("mail.send", "did you mean `handler:mail.send`?");
        check_refused("handler:a dead", "did you mean `status:dead`?");
        check_refused("0190b3a2-7c1e-7000-8000-000000000001", "did you mean `tenant:0190");
        check_refused("high", "did you mean `priority:high`?");
        check_refused("17", "did you mean `id:17`?");
        check_refused("id:x", "is not the id of a job");
        check_refused("handler:a handler:b*", "handler is given twice");
        check_refused("attempt>1 attempt>2", "attempt> is given twice");
        check_refused("-created>1h", "turn its sign round");
        check_refused("-attempt:1", "turn its sign round");
        check_refused("error:x*", "a star at the end means a prefix");
        check_refused("input.a:x*", "a star at the end means a prefix");
        check_refused("ran:5s", "ran>10s");
        check_refused("ran>soon", "is not a duration");
        check_refused("waited>200000d", "a hundred years");
        check_refused("attempt>-1", "is not the number of an attempt");
        check_refused("atempt>1", "did you mean `attempt>`?");
        check_refused("waited", "waited>10s");
        check_refused("-", "is not a condition");
        check_refused("--tag:a", "there is no condition `-tag`");
        check_refused("hanlder:x", "did you mean `handler:`?");
        check_refused("state:dead", "did you mean `status:`?");
        check_refused("creatd>1h", "did you mean `created>`?");
        check_refused("zzzzzzzz:1", "there are id, handler, status");
        check_refused("status:dead,maybe", "known are pending");
        check_refused("tag:a tag:b", "tag is given twice");
        check_refused("status:dead status:running", "status is given twice");
        check_refused("created:1h", "created>2h");
        check_refused("handler>x", "write handler: and not handler>");
        check_refused("handler:", "a value is missing");
        check_refused("handler: x", "a value is missing");
        check_refused("handler:\"x", "not closed");
        check_refused("handler:\"x\\n\"", "\\ stands before");
        check_refused("handler:\"x\"y", "without a space");
        check_refused("handler:x\"y\"", "without a space");
        check_refused("handler", "handler has no value");
        check_refused("input:7", "input.user.id:42");
        check_refused("input.a", "has no value");
        check_refused("input.:7", "a value is missing");
        check_refused("input.a>7", "by `:` only");
        check_refused("input.items.-1:7", "count from 0");
        check_refused("input.items.01:7", "count from 0");
        check_refused("priority:5", "critical, high, normal or low");
        check_refused("signature:xyz", "16 hexadecimal digits");
        check_refused("created>soon", "is not a time");
        check_refused("created<99999999999h", "");
        check_refused(&"input.a:1 ".repeat(65), "at most 64");
        check_refused("\"quoted\"", "is not a condition");
        check_refused("handler:a\0b", "NUL");
    }

    #[test]
    fn a_field_of_the_input_is_compared_by_its_text() {
        let input = Payload::from_store(
            r#" {"user": {"id": 42, "name": "Ann \u0041", "ok": true, "no": null}, "n": 1.50, "items": [{"sku": "a"}, 7],
                 "big": 123456789012345678901234567890, "twice": 1, "twice": 2} "#,
        );
        let has =
            |path: &[&str], value: &str| JobFilter::all().input(path.iter().copied(), value).matches_input(&input);
        assert!(has(&["user", "id"], "42") && has(&["user", "name"], "Ann A") && has(&["user", "ok"], "true"));
        assert!(has(&["n"], "1.50") && !has(&["n"], "1.5"), "numbers are as they are written");
        assert!(has(&["big"], "123456789012345678901234567890"));
        assert!(has(&["items", "0", "sku"], "a") && has(&["items", "1"], "7") && !has(&["items", "2"], "7"));
        assert!(has(&["twice"], "2") && !has(&["twice"], "1"), "the last counts");
        assert!(!has(&["user", "no"], "null") && !has(&["user"], "{}") && !has(&["user", "id", "x"], "42"));
        assert!(!has(&["nothing"], "42"));
        let sealed = Payload::from_store("\"wls1:AAAA\"");
        assert!(!JobFilter::all().input(["user"], "wls1:AAAA").matches_input(&sealed));
    }

    fn any_filter() -> impl Strategy<Value = JobFilter> {
        let text = || proptest::option::of("[ -~\u{a0}-\u{ff}\n]{0,12}");
        let times = || {
            proptest::option::of((-60_000_000_000_000_000i64..200_000_000_000_000_000).prop_map(Timestamp::from_micros))
        };
        let step = "[ -~]{0,6}".prop_filter("no odd places", |step| {
            InputTerm { path: vec![step.clone()], value: String::new() }.check(99).is_ok()
        });
        let inputs = proptest::collection::vec((proptest::collection::vec(step, 1..4), "[ -~]{0,6}"), 0..3);
        let statuses = proptest::sample::subsequence(Status::ALL.to_vec(), 0..9).prop_shuffle();
        let texts = (text(), text(), text(), text(), text(), text(), text());
        let ids = (
            proptest::option::of(any::<i64>()),
            proptest::option::of(any::<u128>()),
            proptest::option::of(any::<i64>()),
        );
        let rest =
            (proptest::option::of(any::<u64>()), proptest::option::of(0..4usize), proptest::option::of(any::<bool>()));
        let more = proptest::collection::vec(any_more(), 0..4);
        (texts, statuses, times(), times(), inputs, ids, rest, more).prop_map(
            |(
                (handler, tag, correlation_id, reason, queue, error, key),
                statuses,
                after,
                before,
                inputs,
                ids,
                rest,
                more,
            )| JobFilter {
                handler,
                statuses,
                created_after: after,
                created_before: before,
                batch: ids.0.map(|id| BatchId(JobId::from_i64(id))),
                tag,
                correlation_id,
                reason,
                replayed: rest.2,
                tenant: ids.1.map(|id| TenantId(uuid::Uuid::from_u128(id))),
                queue,
                priority: rest.1.map(|band| Band::ALL[band]),
                error,
                signature: rest.0.map(Signature),
                key,
                inputs: inputs.into_iter().map(|(path, value)| InputTerm { path, value }).collect(),
                node: ids.2.map(NodeId),
                more,
            },
        )
    }

    /// Conditions that have no field of their own. Positive ones could name the same twice, which is refused.
    fn any_more() -> impl Strategy<Value = Condition> {
        let text = ("[ -~\u{a0}-\u{ff}\n]{0,8}", any::<bool>()).prop_map(|(text, begins)| match begins {
            true => Text::StartsWith(text),
            false => Text::Is(text),
        });
        let statuses = proptest::sample::subsequence(Status::ALL.to_vec(), 1..9).prop_shuffle();
        let input = ("[a-z.:\" ]{1,6}", "[ -~]{0,6}").prop_map(|(step, value)| InputTerm { path: vec![step], value });
        let test = prop_oneof![
            any::<i64>().prop_map(|id| Test::Id(JobId::from_i64(id))),
            text.clone().prop_map(Test::Handler),
            text.clone().prop_map(Test::Tag),
            text.clone().prop_map(Test::Key),
            text.prop_map(Test::Reason),
            statuses.prop_map(Test::Status),
            "[ -~]{0,8}".prop_map(Test::Error),
            input.prop_map(Test::Input),
            any::<bool>().prop_map(Test::Replayed),
        ];
        test.prop_map(|test| Condition { is_negated: true, test })
    }

    proptest! {
        /// BEY-6: what a filter shows is what can be typed.
        #[test]
        fn what_is_shown_is_read_back(filter in any_filter()) {
            prop_assert_eq!(JobFilter::parse(&filter.to_string(), NOW), Ok(filter));
        }

        /// BEY-6: comparisons too, whatever their numbers.
        #[test]
        fn comparisons_are_read_back(attempt in any::<u16>(), micros in 0u64..1_000_000_000_000_000, less in any::<bool>()) {
            let is = if less { Ordering::Less } else { Ordering::Greater };
            let took = Took { is, than: Duration::from_micros(micros), as_of: NOW };
            let filter = JobFilter::all().and(Test::Attempt(is, attempt)).and(Test::Ran(took)).and(Test::Waited(took));
            prop_assert_eq!(JobFilter::parse(&filter.to_string(), NOW), Ok(filter));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[ -~]{0,40}") {
            if let Ok(filter) = JobFilter::parse(&text, NOW) {
                prop_assert_eq!(JobFilter::parse(&filter.to_string(), NOW), Ok(filter));
            }
        }
    }
}
