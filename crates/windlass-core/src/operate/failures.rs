//! Failures that are alike: the signature of an error, and the groups of failing jobs that have the same one.
//! `run` signs errors on their way to the store; the service and the operator ask for groups. Only failures are signed,
//! so a job that succeeds pays nothing. Acting on a group is a bulk action with the filter `signature:…`.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::clock::Timestamp;
use crate::model::error::{Error, InvalidInput, JobError};
use crate::model::filter::JobFilter;
use crate::model::id::JobId;
use crate::model::job::{JobRecord, Page, Status};
use crate::model::tenant::{Scope, SecurityContext};
use crate::operate::within::Within;
use crate::seal::{Sealer, Seals};
use crate::service::JobService;
use crate::store::{self, Reads, Store, Transition};

/// What errors have in common that are one problem: a hash of handler, code and [normalised](normalise) message. Shown as
/// 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature(pub u64);

/// Failing jobs that have the same signature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FailureGroup {
    /// What they have in common.
    pub signature: Signature,
    /// Whose jobs they are.
    pub handler: String,
    /// The code of the error.
    pub code: String,
    /// The message without what differs.
    pub message: String,
    /// The message of the latest failure. As `[sealed]` where it cannot be opened here.
    pub sample: String,
    /// How many jobs, of those that were looked at.
    pub jobs: u64,
    /// Of them, dead letters that nobody has replayed.
    pub dead: u64,
    /// Of them, jobs that wait for their next attempt.
    pub retrying: u64,
    /// When the first of them failed.
    pub first_at: Timestamp,
    /// When the last of them failed.
    pub last_at: Timestamp,
    /// The last of them.
    pub latest: JobId,
}

/// A failing job as a store answers [`Store::failing`].
#[derive(Clone, Debug, PartialEq)]
pub struct Failing {
    /// The job.
    pub job: JobId,
    /// What runs it.
    pub handler: String,
    /// Dead-lettered or retrying.
    pub status: Status,
    /// When it ended, or when its last attempt started.
    pub at: Timestamp,
    /// What its last error is signed with.
    pub signature: Option<Signature>,
    /// Its last error, where that is not signed: something else than Windlass wrote it.
    pub error: Option<JobError>,
}

/// Dead letters, and as many retrying jobs, that are looked at for groups: the newest ones, so that a look costs the same
/// however much has failed over the years.
pub const FAILURES_LOOKED_AT: usize = 5_000;

impl JobService {
    /// The caller's failing jobs by what is wrong with them, the largest groups first: dead letters that nobody has
    /// replayed and jobs that wait for a retry, of those that pass `filter` the newest [`FAILURES_LOOKED_AT`] each.
    pub async fn failures(
        &self,
        ctx: &SecurityContext,
        filter: &JobFilter,
        limit: usize,
    ) -> Result<Vec<FailureGroup>, Error> {
        self.within(ctx.scope()).failures(filter, limit).await
    }
}

impl Within {
    /// The failing jobs of the scope by what is wrong with them, as [`JobService::failures`].
    pub async fn failures(&self, filter: &JobFilter, limit: usize) -> Result<Vec<FailureGroup>, Error> {
        self.limits().check_page(Page::first(limit))?;
        self.limits().check_filter(filter)?;
        look(&**self.store(), &self.worker().seals, self.scope(), filter, limit).await
    }
}

#[cfg(feature = "encryption")]
impl crate::seal::Opener {
    /// The failing jobs in a store by what is wrong with them, as [`JobService::failures`], for tools that only look.
    pub async fn failures(
        &self,
        store: &dyn Store,
        scope: Scope,
        filter: &JobFilter,
        limit: usize,
    ) -> Result<Vec<FailureGroup>, Error> {
        let limits = crate::config::Limits::default();
        limits.check_page(Page::first(limit))?;
        limits.check_filter(filter)?;
        look(store, self.seals(), scope, filter, limit).await
    }
}

async fn look(
    store: &dyn Store,
    seals: &Seals,
    scope: Scope,
    filter: &JobFilter,
    limit: usize,
) -> Result<Vec<FailureGroup>, Error> {
    let mut groups = group(store.failing(scope, filter, FAILURES_LOOKED_AT).await?);
    groups.truncate(limit);
    let latest: Vec<JobId> = groups.iter().map(|group| group.latest).collect();
    let mut records = store.get(scope, &latest).await?;
    seals.open_records(&mut records).await;
    let records: HashMap<JobId, JobRecord> = records.into_iter().map(|record| (record.id, record)).collect();
    // One that was replayed and has succeeded since has no error any more; then the group is shown without.
    let error_of = |id: JobId| records.get(&id).and_then(|record| record.error.as_ref());
    groups.iter_mut().for_each(|group| group.tell(error_of(group.latest)));
    Ok(groups)
}

/// What is known of a group from counting alone.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counted<'a> {
    signature: Signature,
    handler: &'a str,
    dead: u64,
    retrying: u64,
    first_at: Timestamp,
    last_at: Timestamp,
    latest: JobId,
}

/// Puts failing jobs together by signature, the largest group first, then the latest.
fn group(failing: Vec<Failing>) -> Vec<FailureGroup> {
    let mut groups: HashMap<Signature, Counted<'_>> = HashMap::new();
    for job in &failing {
        let unsigned = || job.error.as_ref().map(|error| signature(&job.handler, error));
        let Some(signature) = job.signature.or_else(unsigned) else { continue };
        let group = groups.entry(signature).or_insert(Counted {
            signature,
            handler: &job.handler,
            dead: 0,
            retrying: 0,
            first_at: job.at,
            last_at: job.at,
            latest: job.job,
        });
        match job.status {
            Status::DeadLettered => group.dead += 1,
            _ => group.retrying += 1,
        }
        group.first_at = group.first_at.min(job.at);
        if (job.at, job.job) > (group.last_at, group.latest) {
            (group.last_at, group.latest) = (job.at, job.job);
        }
    }
    let mut groups: Vec<FailureGroup> = groups.into_values().map(FailureGroup::from).collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.jobs, group.last_at, group.signature)));
    groups
}

impl From<Counted<'_>> for FailureGroup {
    fn from(counted: Counted<'_>) -> Self {
        FailureGroup {
            signature: counted.signature,
            handler: counted.handler.to_owned(),
            code: String::new(),
            message: String::new(),
            sample: String::new(),
            jobs: counted.dead + counted.retrying,
            dead: counted.dead,
            retrying: counted.retrying,
            first_at: counted.first_at,
            last_at: counted.last_at,
            latest: counted.latest,
        }
    }
}

impl FailureGroup {
    /// Adds what its latest error says.
    fn tell(&mut self, error: Option<&JobError>) {
        if let Some(error) = error {
            self.code = error.code.clone();
            self.message = normalise(&error.message);
            self.sample = error.message.clone();
        }
    }
}

/// What a store without a quicker way answers: pages of its lists.
pub(crate) async fn failing_by_lists<S: Reads + ?Sized>(
    store: &S,
    scope: Scope,
    filter: &JobFilter,
    newest: usize,
) -> store::Result<Vec<Failing>> {
    let mut failing = Vec::new();
    for status in [Status::DeadLettered, Status::Retrying] {
        let Some(filter) = failing_filter(filter, status) else { continue };
        let (mut page, mut left) = (Page::first(Page::MAX), newest);
        while left > 0 {
            page.limit = left.min(Page::MAX);
            let records = store.find(scope, &filter, page, None).await?.jobs;
            left = if records.len() < page.limit { 0 } else { left - records.len() };
            page.before = records.last().map(|record| record.id);
            failing.extend(records.into_iter().map(Failing::from));
        }
    }
    Ok(failing)
}

/// The filter of failing jobs in `status`; `None` if the filter wants none of them. For stores.
pub fn failing_filter(filter: &JobFilter, status: Status) -> Option<JobFilter> {
    if !filter.statuses.is_empty() && !filter.statuses.contains(&status) {
        return None;
    }
    let mut filter = JobFilter { statuses: vec![status], ..filter.clone() };
    if status == Status::DeadLettered {
        filter.replayed = Some(false);
    }
    Some(filter)
}

impl From<JobRecord> for Failing {
    fn from(record: JobRecord) -> Self {
        let at = record.finished_at.or(record.started_at).unwrap_or(record.created_at);
        let signature = record.error.as_ref().and_then(|error| error.signature);
        let error = record.error.filter(|_| signature.is_none());
        Failing { job: record.id, handler: record.handler, status: record.status, at, signature, error }
    }
}

/// Signs the error of a transition. The signature of a sealed job is keyed by its tenant's data key, because a plain hash
/// would let whoever reads the store try out messages; without the key it tells only handler and code.
pub(crate) fn sign(handler: &str, sealed: bool, sealer: Option<&Sealer>, mut transition: Transition) -> Transition {
    if let Transition::Retry { error, .. } | Transition::DeadLetter { error, .. } = &mut transition {
        make_storable(error);
        let told = match (sealed, sealer) {
            (false, _) => Some(signature(handler, error)),
            (true, Some(sealer)) => keyed_signature(handler, error, sealer),
            (true, None) => None,
        };
        error.signature = Some(told.unwrap_or_else(|| hash(&[handler, &error.code])));
    }
    transition
}

/// PostgreSQL keeps NUL in JSON but cannot read such JSON any more; an error is worth more without it than lost.
fn make_storable(error: &mut JobError) {
    for text in [&mut error.code, &mut error.message] {
        if text.contains('\0') {
            *text = text.replace('\0', "\u{fffd}");
        }
    }
    if error.details.as_ref().is_some_and(|details| details.to_string().contains("\\u0000")) {
        error.details = Some(serde_json::json!({ "removed": "the details had a NUL character" }));
    }
}

/// The signature of an error of `handler`'s.
///
/// ```
/// use windlass_core::{JobError, signature};
/// let one = signature("mail.send", &JobError::retryable("no route to 10.0.0.7 after 3000 ms"));
/// let two = signature("mail.send", &JobError::retryable("no route to 10.0.0.9 after 2873 ms"));
/// assert_eq!(one, two);
/// assert_ne!(one, signature("sms.send", &JobError::retryable("no route to 10.0.0.7 after 3000 ms")));
/// ```
pub fn signature(handler: &str, error: &JobError) -> Signature {
    hash(&[handler, &error.code, &normalise(&error.message)])
}

fn keyed_signature(handler: &str, error: &JobError, sealer: &Sealer) -> Option<Signature> {
    let content = ["signature", handler, &error.code, &normalise(&error.message)].join("\0");
    // Whatever letters the key is written in: the hash only brings it to size.
    Some(hash(&[&sealer.content_key(&content).ok()?]))
}

/// FNV-1a with 64 bits: it must be the same in every version and on every machine, and nothing more.
fn hash(parts: &[&str]) -> Signature {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        // No UTF-8 text has this byte, so it tells where a part ends.
        for byte in part.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    Signature(hash)
}

/// Bytes of a message that count: what comes after is seldom what went wrong, and normalising costs by the byte.
const NORMALISED_BYTES: usize = 2 * 1024;

/// A message without what differs from one failure to the next: quoted text, paths and addresses, UUIDs, hexadecimal
/// numbers and all other numbers.
///
/// ```
/// use windlass_core::normalise;
/// let message = "user 42: cannot open \"/srv/in/7.csv\" (request 0190b3a2-7c1e-7000-8000-000000000001)";
/// assert_eq!(normalise(message), "user <n>: cannot open <text> (request <uuid>)");
/// ```
pub fn normalise(message: &str) -> String {
    let end = (0..=NORMALISED_BYTES.min(message.len())).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
    let mut rest = message[..end].trim();
    let mut normal = String::with_capacity(rest.len());
    while let Some(first) = rest.chars().next() {
        if first.is_whitespace() {
            normal.push(' ');
            rest = rest.trim_start();
        } else if let Some(after) = skip_quoted(rest, &normal) {
            normal.push_str("<text>");
            rest = after;
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || is_quote(c)).unwrap_or(rest.len());
            // A quote that opens nothing is a letter like others.
            let end = if end == 0 { first.len_utf8() } else { end };
            push_word(&mut normal, &rest[..end]);
            rest = &rest[end..];
        }
    }
    normal
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\'' | '`')
}

/// What follows the quoted text at the start, if there is one. An apostrophe within a word quotes nothing.
fn skip_quoted<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let quote = text.chars().next().filter(|c| is_quote(*c))?;
    if quote == '\'' && before.ends_with(char::is_alphanumeric) {
        return None;
    }
    let inside = &text[1..];
    let closes = |at: &usize| quote != '\'' || !inside[at + 1..].starts_with(char::is_alphanumeric);
    let end = inside.match_indices(quote).map(|(at, _)| at).find(closes)?;
    Some(&inside[end + 1..])
}

/// Adds a word without what differs in it.
fn push_word(normal: &mut String, word: &str) {
    let core = word.trim_start_matches(['(', '[', '{', '<', '=']).trim_end_matches(|c| ")]}>,;:.!?".contains(c));
    if is_path(core) {
        let start = core.as_ptr() as usize - word.as_ptr() as usize;
        normal.push_str(&word[..start]);
        normal.push_str("<path>");
        normal.push_str(&word[start + core.len()..]);
        return;
    }
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let run = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
        if run >= UUID_LENGTH && is_uuid(&rest.as_bytes()[..UUID_LENGTH]) {
            normal.push_str("<uuid>");
            rest = &rest[UUID_LENGTH..];
            continue;
        }
        let run = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        if run == 0 {
            normal.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            push_run(normal, &rest[..run]);
            rest = &rest[run..];
        }
    }
}

/// Adds letters and digits: as a hexadecimal number, or with each row of digits as a number.
fn push_run(normal: &mut String, run: &str) {
    let digits = run.strip_prefix("0x").or_else(|| run.strip_prefix("0X"));
    let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    let long_hex = run.len() >= HEX_LENGTH && is_hex(run) && run.bytes().any(|b| b.is_ascii_digit());
    let prefixed = digits.is_some_and(|digits| !digits.is_empty() && is_hex(digits));
    if prefixed || (long_hex && !run.bytes().all(|b| b.is_ascii_digit())) {
        normal.push_str("<hex>");
        return;
    }
    let mut within_number = false;
    for c in run.chars() {
        match (c.is_ascii_digit(), within_number) {
            (true, false) => normal.push_str("<n>"),
            (true, true) => {}
            (false, _) => normal.push(c),
        }
        within_number = c.is_ascii_digit();
    }
}

/// Hexadecimal numbers without a prefix are at least as long as a short commit id; shorter ones may be words.
const HEX_LENGTH: usize = 7;
const UUID_LENGTH: usize = 36;

fn is_uuid(text: &[u8]) -> bool {
    text.iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    })
}

/// A path of a file system or an address: begins like one, or has at least two separators.
fn is_path(word: &str) -> bool {
    let drive =
        word.len() > 3 && word.is_char_boundary(1) && (word[1..].starts_with(":\\") || word[1..].starts_with(":/"));
    let begins =
        ["/", "./", "../", "~/", "\\\\"].iter().any(|start| word.len() > start.len() && word.starts_with(start));
    drive || begins || word.contains("://") || word.matches(['/', '\\']).count() >= 2
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Signature {
    type Err = InvalidInput;
    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| digits).map(Signature);
        number.ok_or_else(|| {
            InvalidInput::new("signature", format!("`{}` is not 16 hexadecimal digits", text.escape_debug()))
        })
    }
}

impl Serialize for Signature {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| serde::de::Error::custom("expected a signature of 16 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn check(message: &str, expected: &str) {
        assert_eq!(normalise(message), expected, "{message}");
    }

    /// BEY-3.
    #[test]
    fn what_differs_from_failure_to_failure_is_folded() {
        check("timeout after 3000 ms", "timeout after <n> ms");
        check("connect 10.0.0.7:5432: refused", "connect <n>.<n>.<n>.<n>:<n>: refused");
        check("user42 has no mailbox", "user<n> has no mailbox");
        check("no key 'abc d' in `x`, \"y\"", "no key <text> in <text>, <text>");
        check("can't open it, isn't there", "can't open it, isn't there");
        check("open /var/lib/x/7.csv: no such file", "open <path>: no such file");
        check("(C:\\temp\\a.txt) and ../b", "(<path>) and <path>");
        check("GET https://api.example.com/v1/users/7?x=1, 503", "GET <path>, <n>");
        check("0xdeadbeef at commit 1a2b3c4d", "<hex> at commit <hex>");
        check("job 0190b3a2-7c1e-7000-8000-000000000001-x", "job <uuid>-x");
        check("  lines\n\tof   text  ", "lines of text");
        check("and/or is a word, facade too", "and/or is a word, facade too");
        check("a \" that opens nothing 1", "a \" that opens nothing <n>");
        check("Füße 3", "Füße <n>");
        check("", "");
    }

    #[test]
    fn handler_code_and_problem_tell_signatures_apart() {
        let of = |handler: &str, code: &str, message: &str| signature(handler, &JobError::terminal(code, message));
        assert_eq!(of("h", "c", "7 apples"), of("h", "c", "8 apples"));
        let all = [of("h", "c", "x"), of("g", "c", "x"), of("h", "d", "x"), of("h", "c", "y"), of("hc", "", "x")];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        // Stored with dead letters for years: it must never change.
        assert_eq!(of("mail.send", "processing", "no route to 10.0.0.7").to_string(), GOLDEN);
    }

    const GOLDEN: &str = "93b70a2ba4d00a27";

    #[test]
    fn signatures_are_read_back() {
        let signature = Signature(0xff);
        assert_eq!(signature.to_string(), "00000000000000ff");
        assert_eq!("00000000000000FF".parse(), Ok(signature));
        let json = serde_json::to_string(&signature).expect("text");
        assert_eq!(serde_json::from_str::<Signature>(&json).expect("read"), signature);
        for bad in ["", "ff", "+0000000000000ff", "00000000000000ff0"] {
            assert!(bad.parse::<Signature>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_error_of_a_failure_is_signed_and_kept_without_nul() {
        let error = JobError::retryable("a\0b").with_details(serde_json::json!(["\0"]));
        let transition = Transition::Retry { failed: 1, delay: Duration::ZERO, error };
        let Transition::Retry { error, .. } = sign("h", false, None, transition) else { panic!("it stays a retry") };
        assert_eq!(error.signature, Some(signature("h", &JobError::retryable("a\u{fffd}b"))));
        assert!(!serde_json::to_string(&error).expect("JSON").contains("\\u0000"));
        let letter = Transition::DeadLetter {
            failed: 1,
            reason: "x".into(),
            error: JobError::terminal("x", "secret 7"),
            keep: None,
        };
        let Transition::DeadLetter { error, .. } = sign("h", true, None, letter) else { panic!("it stays dead") };
        let other = Transition::DeadLetter {
            failed: 1,
            reason: "x".into(),
            error: JobError::terminal("x", "another"),
            keep: None,
        };
        let Transition::DeadLetter { error: other, .. } = sign("h", true, None, other) else { panic!("it stays dead") };
        assert_eq!(error.signature, other.signature, "without keys, nothing of a sealed job's message is told");
    }

    fn failing(job: i64, status: Status, at: i64, signature: u64) -> Failing {
        let (job, at) = (JobId::from_i64(job), Timestamp::from_millis(at));
        Failing { job, handler: "h".into(), status, at, signature: Some(Signature(signature)), error: None }
    }

    #[test]
    fn groups_are_counted_and_the_largest_comes_first() {
        let mut unsigned = failing(9, Status::DeadLettered, 50, 0);
        (unsigned.signature, unsigned.error) = (None, Some(JobError::retryable("foreign 7")));
        let jobs = vec![
            failing(1, Status::DeadLettered, 10, 7),
            failing(2, Status::Retrying, 30, 8),
            failing(3, Status::Retrying, 20, 8),
            failing(4, Status::DeadLettered, 15, 8),
            unsigned,
        ];
        let groups = group(jobs);
        let told: Vec<_> =
            groups.iter().map(|group| (group.jobs, group.dead, group.retrying, group.latest.as_i64())).collect();
        assert_eq!(told, [(3, 1, 2, 2), (1, 1, 0, 9), (1, 1, 0, 1)]);
        assert_eq!((groups[0].first_at.as_millis(), groups[0].last_at.as_millis()), (15, 30));
        assert_eq!(groups[1].signature, signature("h", &JobError::retryable("foreign 8")));
    }

    proptest! {
        #[test]
        fn any_message_can_be_normalised(message in "\\PC{0,200}") {
            let normal = normalise(&message);
            prop_assert!(!normal.contains(|c: char| c.is_ascii_digit()), "{normal}");
        }

        #[test]
        fn numbers_make_no_difference(n in any::<u32>(), m in any::<u32>()) {
            let message = |n: u32| format!("row {n} of [{n}] failed: code={n}, at {n}.{n}s");
            prop_assert_eq!(normalise(&message(n)), normalise(&message(m)));
        }
    }
}
