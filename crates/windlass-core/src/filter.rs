//! Which jobs a list, a group of failures or a bulk action means: [`JobFilter`], with the text that people write for it
//! in the API, on the command line and in the dashboard. Pure: stores carry filters out, and must agree with
//! [`JobFilter::matches`]. Never asks a clock: `parse` is given the time that `1h` ago is counted from.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::config::{Limits, check_text};
use crate::error::InvalidInput;
use crate::failures::Signature;
use crate::id::JobId;
use crate::job::{BatchId, JobRecord, Status};
use crate::payload::Payload;
use crate::priority::Band;
use crate::store::NodeId;
use crate::tenant::TenantId;
use crate::text::parse_when;

/// Which jobs (OPS-1, BEY-6). Empty means all; a job must pass every condition.
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
    /// Whose last error has this text in its code or message, as it is kept. The case of the letters a to z is ignored.
    pub error: Option<String>,
    /// Whose last error has this signature.
    pub signature: Option<Signature>,
    /// With this idempotency key or ordering key.
    pub key: Option<String>,
    /// Whose input has these values.
    pub inputs: Vec<InputTerm>,
    /// Held by this node, or run last by it.
    pub node: Option<NodeId>,
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
                let message = format!("`{}` is not a place in an array; they count from 0", step.escape_debug());
                return Err(InvalidInput::new("input", message));
            }
        }
        check_text("input", &self.value, max_bytes)
    }
}

impl JobFilter {
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

    /// How many conditions it has; each wanted status is one.
    pub fn terms(&self) -> usize {
        let set = [
            self.handler.is_some(),
            self.created_after.is_some(),
            self.created_before.is_some(),
            self.batch.is_some(),
            self.tag.is_some(),
            self.correlation_id.is_some(),
            self.reason.is_some(),
            self.replayed.is_some(),
            self.tenant.is_some(),
            self.queue.is_some(),
            self.priority.is_some(),
            self.error.is_some(),
            self.signature.is_some(),
            self.key.is_some(),
            self.node.is_some(),
        ];
        self.statuses.len() + self.inputs.len() + set.into_iter().filter(|set| *set).count()
    }

    /// Whether `record`, as the store keeps it, passes all but the conditions on its input, which records do not carry.
    /// Stores that filter in SQL must agree with this and with [`JobFilter::matches_input`].
    pub fn matches(&self, record: &JobRecord) -> bool {
        let key = |key: &String| {
            record.ordering_key.as_ref() == Some(key) || record.spec.idempotency_key.as_ref() == Some(key)
        };
        let error = record.error.as_ref();
        self.handler.as_ref().is_none_or(|h| *h == record.handler)
            && (self.statuses.is_empty() || self.statuses.contains(&record.status))
            && self.created_after.is_none_or(|t| record.created_at >= t)
            && self.created_before.is_none_or(|t| record.created_at < t)
            && self.batch.is_none_or(|b| record.batch == Some(b))
            && self.tag.as_ref().is_none_or(|t| record.tags.contains(t))
            && self.correlation_id.as_ref().is_none_or(|c| record.correlation_id.as_ref() == Some(c))
            && self.reason.as_ref().is_none_or(|r| record.reason.as_ref() == Some(r))
            && self.replayed.is_none_or(|r| record.replayed.is_some() == r)
            && self.tenant.is_none_or(|t| record.tenant == t)
            && self.queue.as_ref().is_none_or(|q| *q == record.queue)
            && self.priority.is_none_or(|band| record.priority.band() == band)
            && self.error.as_ref().is_none_or(|text| {
                error.is_some_and(|error| has_text(&error.code, text) || has_text(&error.message, text))
            })
            && self.signature.is_none_or(|s| error.and_then(|error| error.signature) == Some(s))
            && self.key.as_ref().is_none_or(key)
            && self.node.is_none_or(|node| record.node == Some(node))
    }

    /// Whether a job's input, as the store keeps it, passes.
    pub fn matches_input(&self, input: &Payload) -> bool {
        self.inputs.iter().all(|term| term.matches(input))
    }

    /// Refuses what is too much or cannot be asked of a store.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), InvalidInput> {
        let terms = self.terms();
        if terms > limits.filter_terms {
            return Err(InvalidInput::new("filter", format!("{terms} conditions, at most {}", limits.filter_terms)));
        }
        let texts = [
            ("handler", &self.handler),
            ("tag", &self.tag),
            ("correlation_id", &self.correlation_id),
            ("reason", &self.reason),
            ("queue", &self.queue),
            ("error", &self.error),
            ("key", &self.key),
        ];
        for (field, text) in texts {
            check_text(field, text.as_deref().unwrap_or(""), limits.key_bytes)?;
        }
        self.inputs.iter().try_for_each(|term| term.check(limits.key_bytes))
    }

    /// Reads the text of a filter: conditions with spaces between them, all of which must hold. `now` is the time that
    /// `created<1h` counts from. The grammar is in `docs/filters.md`.
    pub fn parse(text: &str, now: Timestamp) -> Result<JobFilter, InvalidInput> {
        if text.len() > MAX_BYTES {
            return Err(refused(format!("{} bytes, at most {MAX_BYTES} are allowed", text.len())));
        }
        let mut filter = JobFilter::default();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let (term, after) = Term::read(rest)?;
            filter.add(term, now)?;
            rest = after.trim_start();
        }
        filter.check(&Limits::MOST)?;
        Ok(filter)
    }

    fn add(&mut self, term: Term<'_>, now: Timestamp) -> Result<(), InvalidInput> {
        let Term { name, path, sign, value } = term;
        if !path.is_empty() {
            self.inputs.push(InputTerm { path, value });
            return Ok(());
        }
        let bad = |error: InvalidInput| refused(format!("{name}: {}", error.message));
        match (name, sign) {
            ("handler", ':') => once(name, &mut self.handler, value),
            ("status", ':') => {
                if !self.statuses.is_empty() {
                    return Err(twice("status"));
                }
                for word in value.split(',') {
                    let status = Status::parse(word).map_err(bad)?;
                    if !self.statuses.contains(&status) {
                        self.statuses.push(status);
                    }
                }
                Ok(())
            }
            ("tag", ':') => once(name, &mut self.tag, value),
            ("tenant", ':') => once(name, &mut self.tenant, TenantId::parse(&value).map_err(bad)?),
            ("queue", ':') => once(name, &mut self.queue, value),
            ("priority", ':') => once(name, &mut self.priority, band(&value)?),
            ("error", ':') => once(name, &mut self.error, value),
            ("signature", ':') => once(name, &mut self.signature, value.parse().map_err(bad)?),
            ("key", ':') => once(name, &mut self.key, value),
            ("correlation", ':') => once(name, &mut self.correlation_id, value),
            ("batch", ':') => {
                let id = value.parse::<JobId>().map_err(|_| not_a("batch", &value, "the id of a batch"))?;
                once(name, &mut self.batch, BatchId(id))
            }
            ("reason", ':') => once(name, &mut self.reason, value),
            ("replayed", ':') => once(name, &mut self.replayed, yes_or_no(&value)?),
            ("node", ':') => {
                let id = value.parse().map_err(|_| not_a("node", &value, "the number of a node"))?;
                once(name, &mut self.node, NodeId(id))
            }
            ("created", '>') => once("created>", &mut self.created_after, time(&value, now)?),
            ("created", '<') => once("created<", &mut self.created_before, time(&value, now)?),
            ("created", _) => Err(refused("write created>2026-11-01, created>2h or created<2h (ago)")),
            (name, sign) if NAMES.contains(&name) => Err(refused(format!("write {name}: and not {name}{sign}"))),
            ("input", _) => Err(refused("write which field, such as input.user.id:42")),
            (name, _) => Err(unknown(name)),
        }
    }
}

impl fmt::Display for JobFilter {
    /// The text that [`JobFilter::parse`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statuses: Vec<&str> = self.statuses.iter().map(|status| status.as_str()).collect();
        let texts = [
            ("handler:", self.handler.clone()),
            ("status:", (!statuses.is_empty()).then(|| statuses.join(","))),
            ("tag:", self.tag.clone()),
            ("tenant:", self.tenant.map(|tenant| tenant.to_string())),
            ("queue:", self.queue.clone()),
            ("priority:", self.priority.map(|band| band.as_str().to_owned())),
            ("error:", self.error.clone()),
            ("signature:", self.signature.map(|signature| signature.to_string())),
            ("key:", self.key.clone()),
            ("correlation:", self.correlation_id.clone()),
            ("batch:", self.batch.map(|batch| batch.0.to_string())),
            ("reason:", self.reason.clone()),
            ("replayed:", self.replayed.map(|replayed| if replayed { "yes" } else { "no" }.to_owned())),
            ("node:", self.node.map(|node| node.0.to_string())),
            ("created>", self.created_after.map(|at| at.to_string())),
            ("created<", self.created_before.map(|at| at.to_string())),
        ];
        let texts = texts.into_iter().filter_map(|(name, value)| Some(format!("{name}{}", quoted(&value?, is_plain))));
        let inputs = self.inputs.iter().map(|term| {
            let path: Vec<String> = term.path.iter().map(|step| quoted(step, is_plain_step)).collect();
            format!("input.{}:{}", path.join("."), quoted(&term.value, is_plain))
        });
        f.write_str(&texts.chain(inputs).collect::<Vec<_>>().join(" "))
    }
}

/// Bytes of a filter's text: all conditions there can be with texts of their full length, and some more for quoting.
const MAX_BYTES: usize = 64 * 1024;

/// The names of conditions that have one value; `created` and `input` are written differently.
const NAMES: [&str; 14] = [
    "handler",
    "status",
    "tag",
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

/// One condition as it is written.
struct Term<'a> {
    name: &'a str,
    /// The rest of the name, for `input`.
    path: Vec<String>,
    /// `:`, `<` or `>`.
    sign: char,
    value: String,
}

impl<'a> Term<'a> {
    /// Reads the condition that `text` begins with, and answers what follows.
    fn read(text: &'a str) -> Result<(Term<'a>, &'a str), InvalidInput> {
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
        let (value, rest) = read_text(&rest[sign.len_utf8()..], is_plain)?;
        if !rest.is_empty() && !rest.starts_with(char::is_whitespace) {
            return Err(refused(format!("{name}{sign}… is followed by `{}` without a space", first_word(rest))));
        }
        if !path.is_empty() && sign != ':' {
            return Err(refused("fields of the input are compared by `:` only"));
        }
        Ok((Term { name, path, sign, value }, rest))
    }
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
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().escape_debug().to_string()
}

fn refused(message: impl Into<String>) -> InvalidInput {
    InvalidInput::new("filter", message)
}

fn twice(name: &str) -> InvalidInput {
    refused(format!("{name} is given twice"))
}

fn not_a(name: &str, value: &str, what: &str) -> InvalidInput {
    refused(format!("{name}: `{}` is not {what}", value.escape_debug()))
}

fn once<T>(name: &str, field: &mut Option<T>, value: T) -> Result<(), InvalidInput> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(twice(name)),
    }
}

/// A word that says nothing of what it is: suggests what it may be.
fn bare(word: &str, rest: &str) -> InvalidInput {
    if word.is_empty() {
        return refused(format!("`{}` is not a condition; write one like handler:mail.send", first_word(rest)));
    }
    let shown = word.escape_debug();
    let name = match () {
        () if NAMES.contains(&word) => return refused(format!("{word} has no value; write {word}:…")),
        () if word == "created" => return refused("created has no value; write created>2h or created<2026-11-01"),
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
    let others = ["created", "input"];
    let near = |known: &&&str| distance(name, known) <= known.len().div_ceil(3);
    let nearest = NAMES.iter().chain(&others).filter(near).min_by_key(|known| distance(name, known));
    let shown = name.escape_debug();
    match nearest {
        Some(known @ &"created") => refused(format!("there is no condition `{shown}`; did you mean `{known}>`?")),
        Some(known @ &"input") => refused(format!("there is no condition `{shown}`; did you mean `{known}.field:`?")),
        Some(known) => refused(format!("there is no condition `{shown}`; did you mean `{known}:`?")),
        None => {
            let known = NAMES.join(", ");
            refused(format!("there is no condition `{shown}`; there are {known}, created> and <, input.field"))
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
fn time(value: &str, now: Timestamp) -> Result<Timestamp, InvalidInput> {
    let day = Timestamp::parse(&format!("{value}T00:00:00Z"));
    let at = match day {
        Some(day) => day,
        None => parse_when(value).map_err(|message| refused(format!("created: {message}")))?.at(now),
    };
    match Timestamp::parse(&at.to_string()) {
        Some(at) => Ok(at),
        None => Err(not_a("created", value, "a time there can be")),
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
        };
        assert_eq!(filter.terms(), 19);
        check(text, filter.clone());
        check(&filter.to_string(), filter);
        check("  ", JobFilter::all());
        check("status:dead,DEAD_LETTERED", JobFilter::all().status(Status::DeadLettered));
        check(r"handler:C:\x", JobFilter::all().handler(r"C:\x"));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        check_refused("mail.send", "did you mean `handler:mail.send`?");
        check_refused("handler:a dead", "did you mean `status:dead`?");
        check_refused("0190b3a2-7c1e-7000-8000-000000000001", "did you mean `tenant:0190");
        check_refused("high", "did you mean `priority:high`?");
        check_refused("hanlder:x", "did you mean `handler:`?");
        check_refused("state:dead", "did you mean `status:`?");
        check_refused("creatd>1h", "did you mean `created>`?");
        check_refused("zzzzzzzz:1", "there are handler, status");
        check_refused("status:dead,maybe", "known are pending");
        check_refused("tag:a tag:b", "tag is given twice");
        check_refused("status:dead status:running", "status is given twice");
        check_refused("created:1h", "created>2026-11-01");
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
        (texts, statuses, times(), times(), inputs, ids, rest).prop_map(
            |(
                (handler, tag, correlation_id, reason, queue, error, key),
                statuses,
                after,
                before,
                inputs,
                ids,
                rest,
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
            },
        )
    }

    proptest! {
        /// BEY-6: what a filter shows is what can be typed.
        #[test]
        fn what_is_shown_is_read_back(filter in any_filter()) {
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
