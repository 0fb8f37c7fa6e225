//! Payloads that someone may send by mistake or on purpose (fault F41): one list for every place that takes JSON from
//! outside. Whoever takes one must hand it back unchanged or refuse it with a typed error; never panic, never keep half.

/// One payload from outside, with a name for messages.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// What is unusual about it.
    pub name: String,
    /// What arrives.
    pub bytes: Vec<u8>,
}

/// How many mutations of a good document are in the list. All come from one seed, so the list is always the same.
const MUTATIONS: u64 = 64;

/// Every hostile payload. The largest has 10 MB.
pub fn hostile_payloads() -> Vec<Hostile> {
    let mut list: Vec<Hostile> = Vec::new();
    let mut add = |name: &str, bytes: &[u8]| list.push(Hostile { name: name.to_owned(), bytes: bytes.to_vec() });
    for (name, text) in TEXTS {
        add(name, text.as_bytes());
    }
    for (name, bytes) in BYTES {
        add(name, bytes);
    }
    for depth in [63, 64, 65, 100_000] {
        add(&format!("{depth} arrays"), format!("{}{}", "[".repeat(depth), "]".repeat(depth)).as_bytes());
        add(&format!("{depth} objects"), format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth)).as_bytes());
    }
    add("a million open brackets", "[".repeat(1_000_000).as_bytes());
    add("10 MB of text", format!("\"{}\"", "x".repeat(10_000_000)).as_bytes());
    add("10 MB of spaces", format!("{}1", " ".repeat(10_000_000)).as_bytes());
    add(
        "many keys",
        format!("{{{}}}", (0..5_000).map(|n| format!("\"{n}\":0")).collect::<Vec<_>>().join(",")).as_bytes(),
    );
    add("a number of ten thousand digits", "7".repeat(10_000).as_bytes());
    add("a fraction of ten thousand digits", format!("0.{}", "3".repeat(10_000)).as_bytes());
    for n in 0..MUTATIONS {
        add(&format!("mutation {n}"), &mutated(n));
    }
    list
}

const TEXTS: &[(&str, &str)] = &[
    ("an escaped NUL", r#""a\u0000b""#),
    ("an escaped NUL in a key", r#"{"a\u0000b":1}"#),
    ("a NUL byte", "\"a\0b\""),
    ("a backslash before u0000", r#""\\u0000""#),
    ("control characters", "\"\u{1}\u{7f}\""),
    ("a number beyond a double", "1e400"),
    ("a negative number beyond a double", "{\"n\":-1e400}"),
    ("a number next to zero", "1e-400"),
    ("a number beyond 2^53", "9007199254740993"),
    ("a number beyond 2^64", "[123456789012345678901234567890]"),
    ("minus zero", "-0"),
    ("more digits than a double has", "0.1000000000000000055511151231257827"),
    ("an exponent in capitals", "1E5"),
    ("a leading zero", "01"),
    ("a hexadecimal number", "0x10"),
    ("not a number", "NaN"),
    ("infinity", "-Infinity"),
    ("half a surrogate pair, high", r#""\ud800""#),
    ("half a surrogate pair, low", r#""\udc00""#),
    ("half a surrogate pair in a key", r#"{"\ud800":1}"#),
    ("a surrogate pair the wrong way round", r#""\udc00\ud800""#),
    ("a whole surrogate pair", r#""\ud83d\ude00""#),
    ("an escape that is none", r#""\x41""#),
    ("a short escape", r#""\u12""#),
    ("nothing", ""),
    ("only spaces", " \t\r\n"),
    ("a byte order mark", "\u{feff}{}"),
    ("spaces around", " \n{ \"a\" :\t1 }\r\n"),
    ("two documents", "{} {}"),
    ("a trailing comma", "[1,]"),
    ("a comment", "{/* a */}"),
    ("single quotes", "{'a':1}"),
    ("an unfinished string", "\"abc"),
    ("an unfinished object", "{\"a\":"),
    ("the same key twice", r#"{"a":1,"a":2}"#),
    ("an empty key", r#"{"":0}"#),
    ("a key that means something elsewhere", r#"{"__proto__":{"x":1},"constructor":null}"#),
    ("SQL in text", r#"{"a":"'; drop table windlass.job; --","b":"$1 %s {} :name ?"}"#),
    ("backslashes", r#""\\\"\/\b\f\n\r\t\\""#),
    ("right to left and invisible", "\"\u{202e}abc\u{200b}\u{2066}\""),
    ("the last characters there are", "\"\u{ffff}\u{10ffff}\u{fdd0}\""),
    ("letters that look alike", "\"раураl é e\u{301}\""),
    ("a line end of JavaScript", "\"\u{2028}\u{2029}\""),
    ("plain text", "hello"),
    ("HTML", "\"<script>alert(1)</script>\""),
    ("null", "null"),
    ("an empty string", "\"\""),
];

const BYTES: &[(&str, &[u8])] = &[
    ("a byte that is never UTF-8", b"\"\xff\""),
    ("an overlong NUL", b"\"\xc0\x80\""),
    ("half a character", b"\"\xe2\x82\""),
    ("a surrogate as bytes", b"\"\xed\xa0\x80\""),
    ("beyond the last character", b"\"\xf4\x90\x80\x80\""),
    ("UTF-16", b"\"\x00a\x00\""),
];

/// A good document with some bytes changed, doubled or cut.
fn mutated(seed: u64) -> Vec<u8> {
    let mut bytes =
        r#"{"to":"ada@example.org","n":[1,2.5e3,null,true],"deep":{"a":{"b":"\u00e9\n"}}}"#.as_bytes().to_vec();
    // A linear congruential generator is enough to spread the changes, and needs no dependency.
    let mut state = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    for _ in 0..=next(4) {
        let at = next(bytes.len());
        match next(4) {
            0 => bytes[at] = next(256) as u8,
            1 => bytes.truncate(at),
            2 => bytes.insert(at, next(256) as u8),
            _ => bytes.extend_from_within(at..),
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_the_same_every_time_and_holds_both_kinds() {
        let (first, second) = (hostile_payloads(), hostile_payloads());
        assert!(first.iter().zip(&second).all(|(a, b)| a.bytes == b.bytes) && first.len() == second.len());
        let check =
            |hostile: &&Hostile| windlass_core::Payload::check_bytes("input", &hostile.bytes, 256 * 1024).is_ok();
        let good = first.iter().filter(check).count();
        assert!(good > 20 && first.len() - good > 40, "{good} of {} are good", first.len());
    }
}
