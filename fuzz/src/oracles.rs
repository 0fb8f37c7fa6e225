//! What must hold for any input to the parsers of outside text: one oracle per parser. Called by the fuzz targets, and on
//! every change by `crates/windlass/tests/parsers.rs`, which includes this file. Each takes any bytes and panics where a
//! promise does not hold; refusing an input is no failure.

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use windlass::store::{Gate, PauseTarget, SUSPECT_QUEUES};
use windlass::text::{parse_duration, parse_time, parse_when, show_duration, show_time};
use windlass::{
    Address, DataKey, Envelope, JobError, JobFilter, JobId, JobSpec, KeyOf, KeyProvider, Limits, LocalKeys, MAX_DEPTH,
    Payload, Priority, Rights, Status, SubmitOptions, TenantId, Timestamp, UniqueWithin, api_key_id, dedupe_key,
    normalise, signature,
};

/// Takes any bytes and panics where a promise does not hold.
pub type Oracle = fn(&[u8]);

/// Every oracle by the name of its target and of its directory in `corpus`.
pub const ORACLES: &[(&str, Oracle)] = &[
    ("payload", payload),
    ("content_key", content_key),
    ("redaction", redaction),
    ("options", options),
    ("spec", spec),
    ("ids", ids),
    ("words", words),
    ("gates", gates),
    ("times", times),
    ("address", address),
    ("envelope", envelope),
    ("keys", keys),
    ("filters", filters),
    ("messages", messages),
    ("tokens", tokens),
];

const MAX_BYTES: usize = 4_096;

/// Accepted exactly if it is JSON within the limits; what was accepted is carried unchanged, but for space around it, and
/// has no NUL.
pub fn payload(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let value = serde_json::from_str::<Value>(text);
    match Payload::check("input", text, MAX_BYTES) {
        Ok(payload) => {
            let text = text.trim_matches([' ', '\n', '\r', '\t']);
            assert_eq!(payload.as_str(), text);
            let value = value.expect("what is accepted is JSON");
            assert!(depth(&value) <= MAX_DEPTH && !has_nul(&value));
            assert_eq!(payload.decode::<Value>().expect("reads back"), value);
            let written = serde_json::to_string(&payload).expect("can be written");
            assert_eq!(written, text, "written as it came");
            assert!(!format!("{payload:?}").contains('{'));
        }
        Err(refused) => {
            let spelled_nul = text.contains("\\u0000") || text.contains('\0');
            if let Ok(value) = value {
                assert!(text.len() > MAX_BYTES || spelled_nul || depth(&value) > MAX_DEPTH, "refused: {refused}");
            }
        }
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => fields.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        _ => false,
    }
}

/// The same for the same content in any order and spacing, and never the same for different content.
pub fn content_key(data: &[u8]) {
    let Some(payload) = json(data) else { return };
    let key = dedupe_key("h", None, &payload);
    let canonical = key.strip_prefix("h::global::").expect("the key begins with handler and tenant");
    let again = Payload::check("input", canonical, usize::MAX).expect("the canonical form is JSON");
    assert_eq!(dedupe_key("h", None, &again), key, "the canonical form is its own canonical form");
    let value: Value = payload.decode().expect("JSON");
    assert_eq!(again.decode::<Value>().expect("JSON"), value, "the canonical form means the same");
    let reordered = Payload::from_store(backwards(payload.as_str().trim_matches([' ', '\n', '\r', '\t'])));
    assert_eq!(dedupe_key("h", None, &reordered), key, "the order of keys and spaces do not matter");
    let other = Payload::from_store(format!("[{}]", payload.as_str()));
    assert_ne!(dedupe_key("h", None, &other), key);
    assert_ne!(dedupe_key("h", Some(TenantId::ROOT), &payload), key);
}

/// The same JSON with the keys of objects in falling order, and spaces.
fn backwards(text: &str) -> String {
    match text.as_bytes().first() {
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).expect("an array");
            format!("[ {} ]", items.iter().map(|item| backwards(item.get())).collect::<Vec<_>>().join(" , "))
        }
        Some(b'{') => {
            let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).expect("an object");
            let field =
                |(key, value): (String, &RawValue)| format!("{} : {}", Value::from(key), backwards(value.get()));
            format!("{{ {} }}", fields.into_iter().rev().map(field).collect::<Vec<_>>().join(" , "))
        }
        _ => text.to_owned(),
    }
}

/// A type that many inputs do not fit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Strict {
    number: u8,
    list: Vec<(bool, char)>,
    kind: Kind,
    time: Timestamp,
    id: JobId,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code)]
enum Kind {
    Debit,
    Credit { limit: i16 },
}

/// No error about JSON that does not fit a type shows a text from it.
pub fn redaction(data: &[u8]) {
    let Some(payload) = json(data) else { return };
    let Err(error) = windlass::fuzzing::decode::<Strict>(&payload, JobId::from_i64(1)) else { return };
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    let shown = format!("{error} {error:?} {source}");
    let mut texts = Vec::new();
    collect_texts(&payload.decode().expect("JSON"), &mut texts);
    for text in texts.iter().filter(|text| text.len() >= 6 && !could_be_our_own(text)) {
        assert!(!shown.contains(text.as_str()), "`{text}` is shown by: {shown}");
    }
}

/// Whether a text has only characters that occur in the messages themselves, so that it may be there by chance.
fn could_be_our_own(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || " `,_:\"{}()OES".contains(c))
}

fn collect_texts(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            texts.push(key.clone());
            collect_texts(value, texts);
        }),
        _ => {}
    }
}

/// Keys, tags, names and headers that were accepted are within the limits, and the job survives its way through JSON.
pub fn options(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut parts = text.split('\n');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let (handler, bits) = (part(), part());
    let wants = |n: usize| bits.as_bytes().get(n).is_some_and(|bit| bit % 2 == 1);
    let mut options = SubmitOptions::new();
    options.idempotency_key = wants(0).then(&mut part);
    options.ordering_key = wants(1).then(&mut part);
    options.queue = wants(2).then(&mut part);
    options.correlation_id = wants(3).then(&mut part);
    if wants(4) {
        let within = UniqueWithin::Window(Duration::from_millis(part().len() as u64));
        options = if wants(5) { options.unique_key(part(), within) } else { options.unique(within) };
    }
    if wants(6) {
        options = options.header(part(), part());
    }
    options.spec.sealed = wants(7);
    options.tags = parts.map(str::to_owned).collect();
    let limits = Limits::default();
    let job = match windlass::fuzzing::prepare(&handler, Payload::null(), options) {
        Ok(job) => job,
        Err(refused) => {
            let fields = [
                "handler",
                "queue",
                "idempotency_key",
                "ordering_key",
                "unique_key",
                "tags",
                "correlation_id",
                "headers",
            ];
            assert!(fields.contains(&refused.field.as_str()), "{refused}");
            return;
        }
    };
    let fits = |text: &str, max: usize| !text.is_empty() && text.len() <= max && !text.contains('\0');
    assert!(fits(&job.handler, limits.name_bytes) && fits(&job.queue, limits.name_bytes));
    for key in [&job.idempotency_key, &job.ordering_key, &job.correlation_id].into_iter().flatten() {
        assert!(fits(key, limits.key_bytes));
    }
    assert!(job.tags.len() <= limits.tags && job.tags.iter().all(|tag| fits(tag, limits.tag_bytes)));
    assert!(!SUSPECT_QUEUES.iter().any(|kept| job.queue.starts_with(kept)));
    assert!(!job.spec.sealed && job.tenant == TenantId::ROOT);
    let key = job.unique.as_ref().and_then(|unique| unique.key.as_ref());
    assert!(key.is_none_or(|key| key.starts_with(&format!("{handler}::{}::", TenantId::ROOT))));
    let text = serde_json::to_string(&job).expect("a job is JSON");
    assert_eq!(serde_json::from_str::<windlass::NewJob>(&text).expect("reads back"), job);
}

/// What stores keep as JSON reads back as it was written, whoever wrote it first.
pub fn spec(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(spec) = serde_json::from_str::<JobSpec>(text) {
        let written = serde_json::to_string(&spec).expect("a spec is JSON");
        let again: JobSpec = serde_json::from_str(&written).expect("reads back");
        assert_eq!(serde_json::to_string(&again).expect("JSON"), written);
        assert_eq!(spec.is_default(), written == "{}");
    }
    if let Ok(error) = serde_json::from_str::<JobError>(text) {
        let written = serde_json::to_string(&error).expect("an error is JSON");
        let again: JobError = serde_json::from_str(&written).expect("reads back");
        assert_eq!((again.code, again.message, again.kind), (error.code, error.message, error.kind));
    }
}

/// Ids read back from what they are shown as.
pub fn ids(data: &[u8]) {
    if let Some(raw) = data.first_chunk::<8>() {
        let id = JobId::from_i64(i64::from_le_bytes(*raw));
        assert_eq!(id.to_string().parse::<JobId>(), Ok(id));
        assert_eq!(JobId::from_parts(id.created(), id.machine(), id.sequence()), id);
        let json = serde_json::to_string(&id).expect("JSON");
        assert_eq!(serde_json::from_str::<JobId>(&json).expect("reads back"), id);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(id) = text.parse::<JobId>() {
        assert_eq!(id.to_string().parse::<JobId>(), Ok(id));
    }
    match TenantId::parse(text) {
        Ok(tenant) => assert_eq!(TenantId::parse(&tenant.to_string()), Ok(tenant)),
        Err(error) => assert_eq!(error.field, "tenant"),
    }
}

/// Words with a meaning: every name and alias of a status, in any case, and priorities.
pub fn words(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Status::parse(text) {
        Ok(status) => {
            assert_eq!(Status::parse(status.as_str()), Ok(status));
            assert_eq!(Status::parse(&text.to_ascii_uppercase()), Ok(status));
            assert_eq!(serde_json::from_str::<Status>(&format!("\"{status}\"")).expect("its name"), status);
        }
        Err(error) => {
            assert!(error.field == "status" && Status::ALL.iter().all(|s| error.message.contains(s.as_str())))
        }
    }
    if let Some(priority) = Priority::parse(text) {
        assert_eq!(Priority::parse(&priority.0.to_string()), Some(priority));
    }
}

/// What is taken for the secret of an API key has its shape, to the last letter: nothing may stand before, behind or in it.
/// Rights that were read are written as what is read as the same ones.
pub fn tokens(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(id) = api_key_id(text) {
        assert!(text.is_ascii() && text.starts_with("wl_") && text.len() <= 128 && id.len() == 12, "{text}");
        assert_eq!(text.matches('_').count(), 4, "{text}");
        assert_eq!(text.split('_').nth(2), Some(id));
        for other in [format!(" {text}"), format!("{text} "), text[1..].to_owned(), text[..text.len() - 1].to_owned()] {
            assert_eq!(api_key_id(&other), None, "{other}");
        }
    }
    if let Ok(rights) = Rights::parse(text) {
        assert_eq!(Rights::parse(&rights.to_string()), Ok(rights), "{rights}");
        assert!(rights.cover(rights) && Rights::ALL.cover(rights));
    }
}

/// What is read as a filter is shown as text that is read as the same filter; what is not is refused as `filter`, or by
/// the name of the condition whose text is too long. Any payload can be asked.
pub fn filters(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let now = Timestamp::from_millis(1_800_000_000_000);
    match JobFilter::parse(text, now) {
        Ok(filter) => {
            assert_eq!(JobFilter::parse(&filter.to_string(), now), Ok(filter.clone()), "{filter}");
            assert!(filter.terms() <= Limits::MOST.filter_terms);
            let _ = filter.matches_input(&Payload::from_store(text));
        }
        Err(error) => assert!(!error.field.is_empty() && !error.message.is_empty()),
    }
}

/// A normalised message has no number left, and is the same for messages that differ in a number alone.
pub fn messages(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let normal = normalise(text);
    assert!(!normal.contains(|c: char| c.is_ascii_digit()), "{normal}");
    let numbered = |n: u32| JobError::retryable(format!("{n} {text}"));
    if text.len() < 1_000 {
        assert_eq!(signature("h", &numbered(7)), signature("h", &numbered(1_234)));
    }
}

/// Gates and pauses read back from the text that stores keep.
pub fn gates(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(gate) = Gate::parse(text) {
        assert_eq!(Gate::parse(&gate.name()), Some(gate));
    }
    if let Some(target) = PauseTarget::parse(text) {
        assert_eq!(PauseTarget::parse(&target.name()), Some(target.clone()));
        assert_eq!(Gate::parse(&format!("pause:{}", target.name())), Some(Gate::Pause(target)));
    }
    let key = Gate::OrderingKey(text.to_owned());
    assert_eq!(Gate::parse(&key.name()), Some(key), "any ordering key is a gate");
}

/// Times and durations as the command line reads and shows them.
pub fn times(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let now = Timestamp::from_millis(1_800_000_000_000);
    if let Ok(duration) = parse_duration(text) {
        assert!(!show_duration(duration).is_empty());
        // Longer ones do not fit into the largest unit that can be written.
        if duration.as_millis() < 600_000_000_000_000 {
            let millis = Duration::from_millis(duration.as_millis() as u64);
            assert_eq!(parse_duration(&format!("{}ms", millis.as_millis())), Ok(millis));
        }
        assert!(parse_when(text).expect("a duration is so long ago").at(now) <= now);
    }
    if let Ok(at) = parse_time(text) {
        assert_eq!(parse_time(&at.to_string()), Ok(at));
        let second = Timestamp::from_millis(at.as_millis().div_euclid(1_000) * 1_000);
        assert_eq!(parse_time(&show_time(at)), Ok(second), "what is shown can be typed");
        assert_eq!(parse_when(text).map(|when| when.at(now)), Ok(at));
        let json = serde_json::to_string(&at).expect("JSON");
        assert_eq!(serde_json::from_str::<Timestamp>(&json).expect("reads back"), at);
    }
}

/// No password of a URL is shown, neither by the address nor by the error.
pub fn address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(address) = Address::parse(text) {
        assert_eq!(format!("{address:?}"), address.to_string());
        if matches!(address, Address::Memory | Address::Sqlite(_)) {
            assert_eq!(Address::parse(&address.to_string()), Ok(address));
        }
    }
    // A password that is nowhere else in the URL, around whatever the input puts there.
    let password = format!("pw-{}-7f3a", text.replace(['/', '?', '#', '@', ':', '%'], ""));
    for url in [
        format!("postgres://ann:{password}@db/app"),
        format!("postgres://ann@db/app?password={password}"),
        format!("postgresql://ann:{password}@db/app?sslmode={password}"),
    ] {
        let shown = Address::parse(&url).expect("a URL").to_string();
        assert!(shown.contains("ann@db/app") && !shown.contains(&password) && !shown.contains("7f3a"), "{shown}");
    }
    let wrong = Address::parse(&format!("{text}ann:{password}@db/app"));
    let shown = wrong.map_or_else(|error| error.to_string(), |address| address.to_string());
    assert!(!shown.contains(&password) || text.starts_with("sqlite:") || text.starts_with("postgres"), "{shown}");
}

/// An envelope has one spelling, which is also the inside of a JSON string.
pub fn envelope(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(envelope) = Envelope::parse(text) else { return };
    let written = envelope.to_string();
    assert!(text == written || text == format!("\"{written}\""), "{text} is not {written}");
    assert_eq!(serde_json::to_string(&written).expect("JSON"), format!("\"{written}\""));
    assert_eq!(Envelope::parse(&written), Some(envelope));
}

/// A key file is read or refused without showing a key, and what its keys wrap they unwrap, for the same owner only.
pub fn keys(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let keys = match LocalKeys::parse(text) {
        Ok(keys) => keys,
        Err(error) => {
            let secrets = text.split(['\n', ',', ':', ' ', '\t', '#']).filter(|part| part.len() >= 12);
            let shown = error.to_string();
            secrets.for_each(|secret| assert!(!shown.contains(secret), "{shown}"));
            return;
        }
    };
    assert!(keys.names().count() > 0);
    let shown = format!("{keys:?}");
    for line in text.split(['\n', ',']) {
        let secret = line.split('#').next().unwrap_or_default().split_once(':').map(|(_, secret)| secret.trim());
        assert!(secret.is_none_or(|secret| secret.is_empty() || !shown.contains(secret)), "{shown}");
    }
    let secret = DataKey::from_slice(&[7; 32]).expect("32 bytes");
    let of = KeyOf { tenant: TenantId::ROOT, version: 1 };
    let wrapped = ready(keys.wrap(of, &secret)).expect("wraps");
    assert_eq!(ready(keys.unwrap(of, &wrapped)).expect("unwraps").expose(), secret.expose());
    assert!(ready(keys.unwrap(KeyOf { version: 2, ..of }, &wrapped)).is_err());
    let mut changed = wrapped.clone();
    let at = data.len() % changed.bytes.len();
    changed.bytes[at] ^= 1;
    assert!(ready(keys.unwrap(of, &changed)).is_err());
    changed.bytes.truncate(at);
    assert!(ready(keys.unwrap(of, &changed)).is_err());
}

fn json(data: &[u8]) -> Option<Payload> {
    Payload::check("input", std::str::from_utf8(data).ok()?, MAX_BYTES).ok()
}

/// The answer of a provider that waits for nothing.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("keys in memory wait for nothing"),
    }
}
