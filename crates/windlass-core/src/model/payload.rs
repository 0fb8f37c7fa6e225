//! JSON that comes from outside: checked once at the edge, then carried as text. Also the content key of a job.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::model::error::InvalidInput;
use crate::model::tenant::TenantId;

/// JSON text that has been checked: it parses, is not too deep and has no NUL.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(Text);

/// `null` is what most handlers return and many take, so it costs nothing.
#[derive(Clone)]
enum Text {
    Null,
    Json(Arc<str>),
    /// As it is kept, because it could not be opened here.
    Sealed(Arc<str>),
}

impl Text {
    fn as_str(&self) -> &str {
        match self {
            Text::Null => "null",
            Text::Json(text) | Text::Sealed(text) => text,
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Text {}

impl Payload {
    /// JSON `null`.
    pub fn null() -> Self {
        Payload(Text::Null)
    }

    /// Serializes `value`. Fails if it cannot be JSON or exceeds a limit of `field`.
    pub fn encode<T: Serialize + ?Sized>(field: &str, value: &T, max_bytes: usize) -> Result<Self, InvalidInput> {
        let text = serde_json::to_string(value).map_err(|e| InvalidInput::new(field, e.to_string()))?;
        if text == "null" {
            return Ok(Payload::null());
        }
        // What serde wrote is JSON; size, depth and NUL are still open.
        Payload::check(field, text, max_bytes)
    }

    /// Checks JSON text from outside and keeps it without the surrounding space. Fails if it is not JSON or exceeds a
    /// limit of `field`.
    pub fn check(field: &str, text: impl Into<Arc<str>>, max_bytes: usize) -> Result<Self, InvalidInput> {
        let text = text.into();
        if text.len() > max_bytes {
            let message = format!("{} bytes, at most {max_bytes} are allowed", text.len());
            return Err(InvalidInput::new(field, message));
        }
        // PostgreSQL cannot store NUL in text, so no store accepts it. The escape must have an odd backslash before it,
        // but refusing the rare text that spells it out is simpler than being exact.
        if text.contains("\\u0000") || text.contains('\0') {
            return Err(InvalidInput::new(field, "contains a NUL character"));
        }
        if nesting(&text) > MAX_DEPTH {
            return Err(InvalidInput::new(field, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        serde_json::from_str::<Checked>(&text).map_err(|e| InvalidInput::new(field, format!("not JSON: {e}")))?;
        // Space around the value is not part of it: where a job travels as JSON itself, it is gone.
        let value = text.trim_matches([' ', '\t', '\r', '\n']);
        let text = if value.len() == text.len() { text } else { value.into() };
        Ok(Payload(Text::Json(text)))
    }

    /// Checks JSON bytes from outside; also fails if they are not UTF-8.
    pub fn check_bytes(field: &str, bytes: &[u8], max_bytes: usize) -> Result<Self, InvalidInput> {
        // By length first: what is refused anyway need not be read.
        if bytes.len() > max_bytes {
            let message = format!("{} bytes, at most {max_bytes} are allowed", bytes.len());
            return Err(InvalidInput::new(field, message));
        }
        let text = std::str::from_utf8(bytes).map_err(|e| InvalidInput::new(field, format!("not UTF-8: {e}")))?;
        Payload::check(field, text, max_bytes)
    }

    /// Takes text from a store without checking it again.
    pub fn from_store(text: impl Into<Arc<str>>) -> Self {
        Payload(Text::Json(text.into()))
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether it is JSON `null`.
    pub fn is_null(&self) -> bool {
        self.as_str() == "null"
    }

    /// Whether it is encrypted and could not be decrypted here; then [`Payload::as_str`] shows nothing of the content.
    pub fn is_sealed(&self) -> bool {
        matches!(self.0, Text::Sealed(_))
    }

    pub(crate) fn marked_sealed(&self) -> Payload {
        Payload(Text::Sealed(self.as_str().into()))
    }

    /// Deserializes it as `T`. The error names the mismatch and its position, but not the content.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        if self.is_sealed() {
            return Err(serde::de::Error::custom("it is sealed, and its key is not at hand"));
        }
        decode_redacted(self.as_str())
    }
}

impl fmt::Debug for Payload {
    /// Only the size: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.as_str().len())
    }
}

impl Serialize for Payload {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(self.as_str()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Payload::from_store(raw.get()))
    }
}

/// Reads JSON as `T`; the error shows nothing of the text.
pub(crate) fn decode_redacted<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text).map_err(|error| serde::de::Error::custom(redacted(&error)))
}

/// What an error of serde_json says, without the values it quotes: they come from payloads, and errors end up in logs.
pub(crate) fn redacted(error: &serde_json::Error) -> String {
    let place = format!("at line {} column {}", error.line(), error.column());
    if !error.is_data() {
        // Errors of syntax quote nothing.
        return error.to_string();
    }
    let text = error.to_string();
    // What the type expects comes last. The quoted value may contain the same words, so the last ones count.
    let expected = text.rsplit_once(", expected ").map(|(_, expected)| format!(", expected {expected}"));
    let expected = expected.map(|expected| expected.split(" at line ").next().unwrap_or_default().to_owned());
    let what = match text.split_once(' ').map(|(first, _)| first) {
        // The type of the value: all before what is quoted.
        Some("invalid") if text.starts_with("invalid type: ") || text.starts_with("invalid value: ") => {
            Some(text.split(['"', '`', ',']).next().unwrap_or_default().trim_end())
        }
        Some("invalid") if text.starts_with("invalid length ") => Some("invalid length"),
        Some("unknown") if text.starts_with("unknown variant ") => Some("unknown variant"),
        Some("unknown") if text.starts_with("unknown field ") => Some("unknown field"),
        // The field's name is the type's own.
        Some("missing") if text.starts_with("missing field ") => text.split(" at line ").next(),
        _ => None,
    };
    match (what, expected) {
        (Some(what), Some(expected)) => format!("{what}{expected} {place}"),
        (Some(what), None) => format!("{what} {place}"),
        // Written by the type's own code, which may have quoted anything.
        (None, _) => format!("it does not fit the type {place}"),
    }
}

/// How deep JSON may nest; deeper texts make parsers recurse without need.
pub const MAX_DEPTH: usize = 64;

/// The deepest nesting of brackets outside strings.
pub(crate) fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Walks JSON without building it, and refuses numbers that no store can keep.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = Checked;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_bool<E>(self, _: bool) -> Result<Checked, E> {
                Ok(Checked)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Checked, E> {
                Ok(Checked)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Checked, E> {
                Ok(Checked)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Checked, E> {
                Ok(Checked)
            }
            fn visit_str<E>(self, _: &str) -> Result<Checked, E> {
                Ok(Checked)
            }
            fn visit_unit<E>(self) -> Result<Checked, E> {
                Ok(Checked)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Checked, A::Error> {
                while seq.next_element::<Checked>()?.is_some() {}
                Ok(Checked)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Checked, A::Error> {
                // Keys too: half a surrogate pair in one is text that no store can take apart.
                while map.next_entry::<Checked, Checked>()?.is_some() {}
                Ok(Checked)
            }
        }
        deserializer.deserialize_any(Walk)
    }
}

/// The content key of a job: `<handler>::<tenant|global>::<sorted JSON>`, the same for any order of object keys.
///
/// ```
/// use windlass_core::{dedupe_key, Payload};
/// let a = Payload::check("input", r#"{"b":1,"a":[2,{"d":4,"c":3}]}"#, 1_000).unwrap();
/// assert_eq!(dedupe_key("mail.send", None, &a), r#"mail.send::global::{"a":[2,{"c":3,"d":4}],"b":1}"#);
/// ```
pub fn dedupe_key(handler: &str, tenant: Option<TenantId>, payload: &Payload) -> String {
    // Text that a store kept and nobody checked may be anything: it is its own content.
    let sorted = sorted_json(payload.as_str()).unwrap_or_else(|_| payload.as_str().to_owned());
    match tenant {
        Some(tenant) => format!("{handler}::{tenant}::{sorted}"),
        None => format!("{handler}::global::{sorted}"),
    }
}

/// The same JSON with sorted keys and no spaces. Numbers stay as they are written: as floating point, integers of twenty
/// digits that differ would be equal, and a job would be taken for another one's duplicate.
fn sorted_json(text: &str) -> serde_json::Result<String> {
    let text = text.trim_matches([' ', '\n', '\r', '\t']);
    match text.as_bytes().first() {
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            let items: Vec<String> = items.iter().map(|item| sorted_json(item.get())).collect::<Result<_, _>>()?;
            Ok(format!("[{}]", items.join(",")))
        }
        Some(b'{') => {
            let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
            let field = |(key, value): (String, &RawValue)| {
                Ok(format!("{}:{}", serde_json::to_string(&key)?, sorted_json(value.get())?))
            };
            let fields: Vec<String> = fields.into_iter().map(field).collect::<serde_json::Result<_>>()?;
            Ok(format!("{{{}}}", fields.join(",")))
        }
        // One spelling for text that can be escaped in several ways.
        Some(b'"') => serde_json::to_string(&serde_json::from_str::<String>(text)?),
        _ => serde_json::from_str::<&RawValue>(text).map(|value| value.get().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Payload::check("input", text, 1_000).expect_err("refused").message
    }

    #[test]
    fn bad_json_is_refused_with_the_reason() {
        assert!(refused("{\"a\":").contains("not JSON"));
        assert!(refused("{\"a\":1e400}").contains("not JSON"));
        assert!(refused("\"a\\u0000b\"").contains("NUL"));
        assert!(refused(&"[".repeat(65)).contains("deeper"));
        assert!(refused(r#"{"\ud800":1}"#).contains("not JSON"), "half a pair in a key");
        assert!(refused(r#"["\udc00"]"#).contains("not JSON"), "half a pair in a value");
        let bytes = Payload::check_bytes("input", b"\"\xff\"", 1_000).expect_err("refused").message;
        assert!(bytes.contains("not UTF-8"), "{bytes}");
        assert!(refused(&format!("\"{}\"", "x".repeat(1_000))).contains("at most 1000"));
    }

    #[test]
    fn the_limits_themselves_are_allowed() {
        assert!(Payload::check("input", format!("{}{}", "[".repeat(64), "]".repeat(64)), 1_000).is_ok());
        assert!(Payload::check("input", format!("\"{}\"", "x".repeat(998)), 1_000).is_ok());
    }

    /// SUB-7: numbers that floating point cannot tell apart are different contents.
    #[test]
    fn long_numbers_keep_their_digits_in_content_keys() {
        let key = |text: &str| dedupe_key("h", None, &Payload::from_store(text));
        assert_ne!(key("18446744073709551616"), key("18446744073709551617"));
        assert_ne!(key("[0.10955168446744173709551615]"), key("[0.10955168446744175]"));
        assert_eq!(key(r#" {"b": "\u0061", "a": 1.0 } "#), r#"h::global::{"a":1.0,"b":"a"}"#);
    }

    /// SEC-2: what does not fit is told without quoting it.
    #[test]
    fn errors_show_nothing_of_what_could_not_be_read() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only read into")]
        struct Card {
            number: u64,
            kind: Kind,
        }
        #[derive(Debug, Deserialize)]
        enum Kind {
            Debit,
        }
        let shown = |text: &str| Payload::from_store(text).decode::<Card>().expect_err("does not fit").to_string();
        for (text, expected) in [
            (r#"{"number":"CANARY, expected CANARY"}"#, "invalid type: string, expected u64"),
            (r#"{"number":1,"kind":"CANARY"}"#, "unknown variant, expected `Debit`"),
            (r#"{"CANARY":1}"#, "unknown field, expected `number` or `kind`"),
            (r#"{"number":1}"#, "missing field `kind`"),
            (r#"{"number":-7}"#, "invalid value: integer, expected u64"),
            (r#"["CANARY at line 1", expected "#, "invalid type: string, expected u64"),
        ] {
            let shown = shown(text);
            assert!(shown.contains(expected) && !shown.contains("CANARY") && !shown.contains("-7"), "{shown}");
        }
        let own = Payload::from_store("\"CANARY\"").decode::<crate::Timestamp>().expect_err("no time").to_string();
        assert!(!own.contains("CANARY"), "{own}");
    }

    #[test]
    fn only_space_around_the_value_is_lost() {
        let kept = |text: &str| Payload::check("input", text, 1_000).expect("accepted").as_str().to_owned();
        assert_eq!(kept(" \r\n{ \"a\" :\t1e5 }\t"), "{ \"a\" :\t1e5 }");
        assert_eq!(kept("123456789012345678901234567890"), "123456789012345678901234567890");
    }

    #[test]
    fn payloads_stay_out_of_debug_output() {
        assert_eq!(format!("{:?}", Payload::from_store("\"secret\"")), "Payload(8 bytes)");
    }
}
