//! Times and durations as people write and read them. Called by the command line to read options and to print.
//! Never asks a clock.

use std::time::Duration;

use crate::config::NO_TIMEOUT;
use crate::model::clock::Timestamp;
use jiff::{Span, SpanRelativeTo};

/// A time as given on the command line: a point, or so long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This time.
    At(Timestamp),
    /// This long before now.
    Ago(Duration),
}

impl When {
    /// The point in time it means at `now`.
    pub fn at(self, now: Timestamp) -> Timestamp {
        match self {
            When::At(at) => at,
            When::Ago(ago) => now - ago,
        }
    }
}

/// Reads `500ms`, `30s`, `5m`, `1h30m`, `2d`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let written = "write it like 500ms, 30s, 5m, 1h30m or 2d";
    let span: Span =
        text.trim().parse().map_err(|_| format!("`{}` is not a duration; {written}", text.escape_debug()))?;
    let duration = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| format!("`{}` has no fixed length; {written}", text.escape_debug()))?;
    Duration::try_from(duration).map_err(|_| format!("`{}` is negative; {written}", text.escape_debug()))
}

/// Reads how long an attempt may take: a duration, or `none` (or `0`) for as long as it likes.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "none" | "0" => Ok(NO_TIMEOUT),
        text => parse_duration(text),
    }
}

/// Reads RFC 3339.
pub fn parse_time(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text.trim())
        .ok_or_else(|| format!("`{}` is not a time; write it like 2026-11-15T10:00:00Z", text.escape_debug()))
}

/// Reads a time, or a duration that means so long ago.
pub fn parse_when(text: &str) -> Result<When, String> {
    if let Ok(at) = parse_time(text) {
        return Ok(When::At(at));
    }
    parse_duration(text).map(When::Ago).map_err(|_| {
        format!("`{}` is not a time; write 2026-11-15T10:00:00Z, or 2h for two hours ago", text.escape_debug())
    })
}

/// A time to the second, in UTC: `2026-11-15 10:00:03Z`. The commands read it back.
pub fn show_time(at: Timestamp) -> String {
    let text = Timestamp::from_millis(at.as_millis().div_euclid(1_000) * 1_000).to_string();
    text.replacen('T', " ", 1)
}

/// A duration in at most two units: `12 ms`, `3.4 s`, `5 m 12 s`, `2 h 3 m`, `9 d 4 h`.
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.as_millis() == 0 && !duration.is_zero() => "<1 ms".to_owned(),
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_millis() as f64 / 1_000.0),
        60..3_600 => format!("{} m {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<u64, &str>) {
        match (parse_duration(text), expected) {
            (Ok(read), Ok(millis)) => assert_eq!(read, Duration::from_millis(millis), "{text}"),
            (Err(message), Err(part)) => assert!(message.contains(part), "{text}: {message}"),
            (read, _) => panic!("{text}: {read:?}"),
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        check("500ms", Ok(500));
        check("30s", Ok(30_000));
        check("1h30m", Ok(5_400_000));
        check("2d", Ok(172_800_000));
        check("0s", Ok(0));
    }

    #[test]
    fn bad_durations_say_what_would_be_right() {
        check("-5s", Err("negative"));
        check("5", Err("not a duration"));
        check("soon", Err("30s"));
        check("", Err("not a duration"));
        check("1 month", Err("no fixed length"));
    }

    #[test]
    fn a_time_may_be_given_as_so_long_ago() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        assert_eq!(parse_when("1h").map(|when| when.at(now)), Ok(now - Duration::from_secs(3_600)));
        assert_eq!(parse_when(&show_time(now)).map(|when| when.at(now)), Ok(now));
        assert!(parse_when("yesterday").is_err());
    }

    #[test]
    fn durations_are_shown_in_two_units_at_most() {
        let shown = |millis| show_duration(Duration::from_millis(millis));
        assert_eq!([shown(0), shown(12), shown(3_400)], ["0 ms", "12 ms", "3.4 s"]);
        assert_eq!([shown(312_000), shown(7_380_000), shown(792_000_000)], ["5 m 12 s", "2 h 3 m", "9 d 4 h"]);
    }
}
