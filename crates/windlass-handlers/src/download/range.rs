//! Decides what to ask a file server for, and what to do with what it sends. Pure: no request is made here and
//! no file is touched.

use reqwest::StatusCode;
use serde::{Deserialize, Serialize};

/// What an attempt saves about a download under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Saved {
    /// From where; a job whose input was edited starts over.
    pub(crate) url: String,
    /// How many bytes are on the disk for certain.
    pub(crate) bytes: u64,
    /// How many there are, if the server has said so.
    pub(crate) total: Option<u64>,
    /// What tells this version of the file from another: a strong `ETag`, else `Last-Modified`.
    pub(crate) validator: Option<String>,
    /// Whether it was put together from several responses.
    pub(crate) pieced: bool,
    /// Whether all of it is there, has been checked and only needs its name.
    pub(crate) checked: bool,
}

/// What to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// All of it.
    Whole,
    /// What is missing, if it is still the same file.
    From { byte: u64, if_range: Option<String> },
}

/// What a response says, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) length: Option<u64>,
    pub(crate) range: Option<String>,
    pub(crate) etag: Option<String>,
    pub(crate) modified: Option<String>,
    /// Several parts in one response, which nobody asked for.
    pub(crate) multipart: bool,
    /// The bytes are compressed, although they were asked for as they are.
    pub(crate) encoded: bool,
}

/// What to do with a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It has the whole file: forget what is there.
    Whole { total: Option<u64> },
    /// It goes on where the file on the disk ends.
    Append { total: Option<u64> },
    /// Everything is there already.
    Complete,
    /// What is there does not belong to what the server has now: ask for all of it.
    Restart,
    /// The server refuses.
    Refused,
    /// The server does not do what HTTP says.
    Broken(&'static str),
}

/// What to ask for, with `kept` bytes on the disk. Without anything that tells versions apart, only a digest of the
/// whole can show that two pieces belong together.
pub(crate) fn ask(saved: &Saved, kept: u64, has_digest: bool) -> Ask {
    match &saved.validator {
        _ if kept == 0 => Ask::Whole,
        Some(validator) => Ask::From { byte: kept, if_range: Some(validator.clone()) },
        None if has_digest => Ask::From { byte: kept, if_range: None },
        None => Ask::Whole,
    }
}

/// What a response to `ask` means.
pub(crate) fn decide(ask: &Ask, saved: &Saved, status: StatusCode, said: &Said) -> Next {
    if said.encoded && status.is_success() {
        return Next::Broken("it compressed the file although it was asked not to");
    }
    match (ask, status) {
        (_, StatusCode::OK) => Next::Whole { total: said.length },
        (Ask::Whole, StatusCode::PARTIAL_CONTENT) => Next::Broken("it sent a part although it was asked for the whole"),
        (Ask::From { byte, .. }, StatusCode::PARTIAL_CONTENT) => part(*byte, saved, said),
        (Ask::From { byte, .. }, StatusCode::RANGE_NOT_SATISFIABLE) => {
            // Nothing is missing if the file ends where ours does, and has not become another one meanwhile.
            let total = said.range.as_deref().and_then(|range| range.strip_prefix("bytes */")?.trim().parse().ok());
            let same = total == Some(*byte) && saved.total.is_none_or(|known| Some(known) == total);
            if same && !other_version(saved, said) { Next::Complete } else { Next::Restart }
        }
        (_, status) if status.is_success() => Next::Broken("it returned a status that no file comes with"),
        _ => Next::Refused,
    }
}

/// A part must be the one that was asked for, of the file that was begun.
fn part(byte: u64, saved: &Saved, said: &Said) -> Next {
    let Some(range) = said.range.as_deref().and_then(content_range) else { return Next::Restart };
    let brings = range.last.checked_sub(range.first).and_then(|n| n.checked_add(1));
    let fits = range.first == byte
        && brings.is_some()
        && said.length.is_none_or(|length| Some(length) == brings)
        && range.total.is_none_or(|total| range.last < total)
        && (range.total.is_none() || saved.total.is_none() || range.total == saved.total);
    match fits && !said.multipart && !other_version(saved, said) {
        true => Next::Append { total: range.total.or(saved.total) },
        false => Next::Restart,
    }
}

/// A server that ignores `If-Range` may still say which version it sends.
fn other_version(saved: &Saved, said: &Said) -> bool {
    match (&saved.validator, validator(said)) {
        (Some(before), Some(now)) => before.starts_with('"') == now.starts_with('"') && *before != now,
        _ => false,
    }
}

/// What tells this version from others. A weak `ETag` does not: two versions that look alike may have it.
pub(crate) fn validator(said: &Said) -> Option<String> {
    let strong = said.etag.as_ref().filter(|etag| etag.starts_with('"') && etag.len() >= 2 && etag.ends_with('"'));
    strong.or(said.modified.as_ref()).cloned()
}

#[derive(Debug, PartialEq, Eq)]
struct ContentRange {
    first: u64,
    last: u64,
    total: Option<u64>,
}

/// `bytes 0-499/1234`, or with `*` where the total is not known.
fn content_range(text: &str) -> Option<ContentRange> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some(ContentRange { first: first.trim().parse().ok()?, last: last.trim().parse().ok()?, total })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn begun() -> Saved {
        Saved { bytes: 100, total: Some(1000), validator: Some("\"v1\"".into()), ..Saved::default() }
    }

    fn from_100() -> Ask {
        Ask::From { byte: 100, if_range: Some("\"v1\"".into()) }
    }

    fn said(range: &str) -> Said {
        Said { range: Some(range.into()), ..Said::default() }
    }

    fn check(ask: &Ask, status: u16, said: &Said, next: Next) {
        let status = StatusCode::from_u16(status).expect("a status");
        assert_eq!(decide(ask, &begun(), status, said), next, "{status} {said:?}");
    }

    /// HND-1: only what can be told apart from another version is resumed.
    #[test]
    fn what_is_asked_for_depends_on_what_can_be_trusted() {
        assert_eq!(ask(&begun(), 0, true), Ask::Whole, "nothing is there");
        assert_eq!(ask(&begun(), 100, false), from_100());
        let unknown = Saved { validator: None, ..begun() };
        assert_eq!(ask(&unknown, 100, false), Ask::Whole, "nothing would show a mixture");
        assert_eq!(ask(&unknown, 100, true), Ask::From { byte: 100, if_range: None }, "the digest shows it");
    }

    /// HND-1: 206 goes on, 200 starts over, 416 is the end or a change.
    #[test]
    fn responses_to_a_range_are_told_apart() {
        let whole = Said { length: Some(900), ..Said::default() };
        check(&from_100(), 206, &said("bytes 100-999/1000"), Next::Append { total: Some(1000) });
        check(&from_100(), 206, &said("bytes 100-199/1000"), Next::Append { total: Some(1000) });
        check(&from_100(), 206, &said("bytes 100-999/*"), Next::Append { total: Some(1000) });
        check(&from_100(), 200, &whole, Next::Whole { total: Some(900) });
        check(&from_100(), 416, &said("bytes */1000"), Next::Restart);
        check(&from_100(), 416, &said("bytes */50"), Next::Restart);
        check(&from_100(), 416, &Said::default(), Next::Restart);
        let done = Saved { bytes: 1000, ..begun() };
        let ask = Ask::From { byte: 1000, if_range: None };
        let status = StatusCode::RANGE_NOT_SATISFIABLE;
        assert_eq!(decide(&ask, &done, status, &said("bytes */1000")), Next::Complete);
        let changed = Said { etag: Some("\"v2\"".into()), ..said("bytes */1000") };
        assert_eq!(decide(&ask, &done, status, &changed), Next::Restart);
    }

    /// HND-1: a part that is another one than was asked for is not used.
    #[test]
    fn a_server_that_lies_about_a_part_is_asked_for_the_whole() {
        for range in [
            "bytes 0-999/1000",
            "bytes 99-999/1000",
            "bytes 101-999/1000",
            "bytes 100-999/2000",
            "bytes 100-1000/1000",
            "bytes 100-99/1000",
            "bytes 100-18446744073709551615/*x",
            "bytes=100-999/1000",
            "100-999/1000",
            "bytes */1000",
            "",
        ] {
            check(&from_100(), 206, &said(range), Next::Restart);
        }
        check(&from_100(), 206, &Said::default(), Next::Restart);
        check(&from_100(), 206, &Said { length: Some(3), ..said("bytes 100-999/1000") }, Next::Restart);
        check(&from_100(), 206, &Said { multipart: true, ..said("bytes 100-999/1000") }, Next::Restart);
        check(&from_100(), 206, &Said { etag: Some("\"v2\"".into()), ..said("bytes 100-999/1000") }, Next::Restart);
        let same = Said { etag: Some("\"v1\"".into()), length: Some(900), ..said("bytes 100-999/1000") };
        check(&from_100(), 206, &same, Next::Append { total: Some(1000) });
    }

    #[test]
    fn the_whole_is_taken_as_it_is_and_nothing_else() {
        check(&Ask::Whole, 200, &Said { length: Some(5), ..Said::default() }, Next::Whole { total: Some(5) });
        check(&Ask::Whole, 404, &Said::default(), Next::Refused);
        check(&Ask::Whole, 503, &Said::default(), Next::Refused);
        check(&Ask::Whole, 304, &Said::default(), Next::Refused);
        for (status, said) in [(206, said("bytes 0-9/10")), (204, Said::default())] {
            let next = decide(&Ask::Whole, &begun(), StatusCode::from_u16(status).expect("a status"), &said);
            assert!(matches!(next, Next::Broken(_)), "{status}: {next:?}");
        }
        let packed = Said { encoded: true, ..Said::default() };
        assert!(matches!(decide(&Ask::Whole, &begun(), StatusCode::OK, &packed), Next::Broken(_)));
    }

    #[test]
    fn only_what_is_strong_tells_versions_apart() {
        let with = |etag: &str, modified: Option<&str>| {
            validator(&Said { etag: Some(etag.into()), modified: modified.map(Into::into), ..Said::default() })
        };
        assert_eq!(with("\"a\"", Some("Mon")), Some("\"a\"".into()));
        assert_eq!(with("W/\"a\"", Some("Mon")), Some("Mon".into()));
        assert_eq!(with("W/\"a\"", None), None);
        assert_eq!(with("a", None), None);
        assert_eq!(with("\"", None), None);
    }

    proptest! {
        /// HND-1: whatever a server says, bytes are appended only where the file ends.
        #[test]
        fn nothing_is_appended_elsewhere(
            kept in 1u64..5000,
            range in "(bytes |)[0-9]{0,5}-[0-9]{0,20}/([0-9]{0,6}|\\*)",
            status in 200u16..600,
            length in proptest::option::of(0u64..6000),
        ) {
            let saved = Saved { bytes: kept, ..begun() };
            let ask = ask(&saved, kept, false);
            let said = Said { length, ..said(&range) };
            let status = StatusCode::from_u16(status).expect("a status");
            if let Next::Append { .. } = decide(&ask, &saved, status, &said) {
                let first = content_range(&range).map(|range| range.first);
                prop_assert_eq!((status.as_u16(), first), (206, Some(kept)));
            }
        }
    }
}
