//! How numbers, times and durations are written for people. Pure; called by every view. The script writes relative times
//! in the same words (`assets/dashboard.js`).

use std::time::Duration;

use windlass_core::{Band, Priority, Status, Timestamp};

/// A count with thousands set apart: `1,204,331`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun: `1 job`, `12 jobs`.
pub(crate) fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// A number that fits beside an axis: `950`, `1.2k`, `3M`.
pub(crate) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v >= 100.0 || v == 0.0 || v.fract() == 0.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

/// Bytes: `812 B`, `1.4 KiB`, `3 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    const KIB: f64 = 1024.0;
    let n = n as f64;
    match n {
        n if n < KIB => format!("{n} B"),
        n if n < KIB * KIB => format!("{} KiB", short(n / KIB)),
        n if n < KIB * KIB * KIB => format!("{} MiB", short(n / KIB / KIB)),
        n => format!("{} GiB", short(n / KIB / KIB / KIB)),
    }
}

/// A duration in the two units that matter: `480 µs`, `12 ms`, `1.4 s`, `2 min 5 s`, `3 h 12 min`, `5 d 4 h`.
pub(crate) fn duration(duration: Duration) -> String {
    let (secs, micros) = (duration.as_secs(), duration.as_micros());
    let two = |big: u64, big_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big} {big_unit}"),
        _ => format!("{big} {big_unit} {small} {small_unit}"),
    };
    match secs {
        0 if micros == 0 => "0 s".to_owned(),
        0 if micros < 1_000 => format!("{micros} µs"),
        0 => format!("{} ms", short(micros as f64 / 1_000.0)),
        1..60 => format!("{} s", short((micros as f64 / 100_000.0).round() / 10.0)),
        60..3_600 => two(secs / 60, "min", secs % 60, "s"),
        3_600..86_400 => two(secs / 3_600, "h", secs % 3_600 / 60, "min"),
        _ => two(secs / 86_400, "d", secs % 86_400 / 3_600, "h"),
    }
}

/// A duration as a form takes it, to the millisecond: `30s`, `1500ms`, `2h`.
pub(crate) fn typed(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let whole = |(_, length): &(&str, u128)| millis.is_multiple_of(*length);
    let (unit, length) = units.into_iter().find(whole).expect("every number is a multiple of 1");
    format!("{}{unit}", millis / length)
}

/// A duration in its largest unit only: `12 s`, `5 min`, `3 h`, `2 d`.
pub(crate) fn about(duration: Duration) -> String {
    match duration.as_secs() {
        secs @ 0..60 => format!("{secs} s"),
        secs @ 60..3_600 => format!("{} min", secs / 60),
        secs @ 3_600..86_400 => format!("{} h", secs / 3_600),
        secs => format!("{} d", secs / 86_400),
    }
}

/// When something was or will be, seen from `now`: `5 s ago`, `in 3 min`, `now`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    let (ago, ahead) = (now.since(at), at.since(now));
    match (ago.as_secs(), ahead.as_secs()) {
        (0, 0) => "now".to_owned(),
        (0, _) => format!("in {}", about(ahead)),
        _ => format!("{} ago", about(ago)),
    }
}

/// An absolute time to the second, in UTC: `2026-11-16 21:04:11 UTC`.
pub(crate) fn absolute(at: Timestamp) -> String {
    match jiff::Timestamp::from_millisecond(at.as_millis()) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => at.to_string(),
    }
}

/// The time of day, in UTC.
pub(crate) fn clock(at: Timestamp) -> String {
    strftime(at, "%H:%M")
}

/// The time of day to the second, in UTC.
pub(crate) fn clock_seconds(at: Timestamp) -> String {
    strftime(at, "%H:%M:%S")
}

/// The day, in UTC.
pub(crate) fn day(at: Timestamp) -> String {
    strftime(at, "%b %-d")
}

fn strftime(at: Timestamp, format: &str) -> String {
    jiff::Timestamp::from_millisecond(at.as_millis())
        .map_or_else(|_| at.to_string(), |time| time.strftime(format).to_string())
}

/// The name of a status for people.
pub(crate) fn status(status: Status) -> &'static str {
    match status {
        Status::DeadLettered => "dead letter",
        other => other.as_str(),
    }
}

/// A priority by its name where it has one, else its band with the number.
pub(crate) fn priority(priority: Priority) -> String {
    match priority {
        Priority::CRITICAL => "critical".to_owned(),
        Priority::HIGH => "high".to_owned(),
        Priority::NORMAL => "normal".to_owned(),
        Priority::LOW => "low".to_owned(),
        Priority(number) => format!("{} ({number})", band(priority.band())),
    }
}

/// The name of a band.
pub(crate) fn band(band: Band) -> &'static str {
    match band {
        Band::Critical => "critical",
        Band::High => "high",
        Band::Normal => "normal",
        Band::Low => "low",
    }
}

/// The first line of a text, cut to `chars` characters with an ellipsis where something was left out.
pub(crate) fn first_line(text: &str, chars: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    let cut: String = line.chars().take(chars).collect();
    if cut.len() < text.trim_end().len() { format!("{}…", cut.trim_end()) } else { cut }
}

/// JSON with line breaks, for reading. Numbers keep every digit: the text is indented as it stands, never read into
/// floats. Given only what a `Payload` has checked.
pub(crate) fn pretty(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let mut chars = json.chars().peekable();
    let line = |text: &mut String, depth: usize| {
        text.push('\n');
        (0..depth.min(MAX_INDENT)).for_each(|_| text.push_str("  "));
    };
    while let Some(c) = chars.next() {
        if in_string {
            text.push(c);
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            '"' => {
                in_string = true;
                text.push(c);
            }
            '{' | '[' => {
                text.push(c);
                while chars.next_if(|next| next.is_whitespace()).is_some() {}
                match chars.next_if(|next| *next == '}' || *next == ']') {
                    Some(end) => text.push(end),
                    None => {
                        depth += 1;
                        line(&mut text, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            c if c.is_whitespace() => {}
            c => text.push(c),
        }
    }
    text
}

/// Deeper levels are not indented further, so that hostile nesting cannot blow a small text up.
const MAX_INDENT: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands_set_apart() {
        let counts = [0, 7, 999, 1_000, 1_204_331].map(count);
        assert_eq!(counts, ["0", "7", "999", "1,000", "1,204,331"]);
        assert_eq!(counted(1, "job", "jobs"), "1 job");
        assert_eq!(counted(0, "job", "jobs"), "0 jobs");
    }

    #[test]
    fn short_numbers_keep_what_matters() {
        let shorts = [0.0, 0.25, 9.5, 950.0, 1_200.0, 12_340.0, 3e6, 2.5e9].map(short);
        assert_eq!(shorts, ["0", "0.25", "9.5", "950", "1.2k", "12.3k", "3M", "2.5G"]);
    }

    #[test]
    fn durations_are_typed_as_they_are_read() {
        for text in ["30s", "1500ms", "2h", "90m", "3d"] {
            assert_eq!(typed(windlass_core::text::parse_duration(text).expect("a duration")), text);
        }
    }

    #[test]
    fn durations_use_the_two_units_that_matter() {
        let of = |micros| duration(Duration::from_micros(micros));
        assert_eq!([of(0), of(480), of(12_000), of(1_250)], ["0 s", "480 µs", "12 ms", "1.25 ms"]);
        assert_eq!([of(1_440_000), of(125_000_000), of(60_000_000)], ["1.4 s", "2 min 5 s", "1 min"]);
        assert_eq!([of(11_520_000_000), of(446_400_000_000)], ["3 h 12 min", "5 d 4 h"]);
    }

    #[test]
    fn times_are_told_from_now() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let told = |secs: i64| relative(Timestamp::from_millis(now.as_millis() + secs * 1_000), now);
        assert_eq!([told(0), told(-5), told(-125), told(-7_300)], ["now", "5 s ago", "2 min ago", "2 h ago"]);
        assert_eq!([told(9), told(200_000)], ["in 9 s", "in 2 d"]);
        assert_eq!(absolute(now), "2027-01-15 08:00:00 UTC");
    }

    #[test]
    fn pretty_json_keeps_every_digit_and_every_string() {
        let json = r#"{"id":12345678901234567890,"text":"a{b}\",[c]","list":[1,{}],"empty":[ ]}"#;
        let lines = "{\n  \"id\": 12345678901234567890,\n  \"text\": \"a{b}\\\",[c]\",\n  \"list\": [\n    1,\n    {}\n  ],\n  \"empty\": []\n}";
        assert_eq!(pretty(json), lines);
        assert_eq!(pretty("12.30"), "12.30");
    }

    #[test]
    fn first_lines_say_when_something_was_left_out() {
        assert_eq!(first_line("short", 10), "short");
        assert_eq!(first_line("two\nlines", 10), "two…");
        assert_eq!(first_line("ééééé", 3), "ééé…");
    }
}
