//! When a schedule fires: a cron expression in a time zone, and what to do about the times that nobody was there for.
//! Pure: the times come in as arguments. Called by `schedule.rs`.

use std::fmt;
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Serialize};

use crate::model::clock::Timestamp;

/// How long an expression may be. The longest useful ones list every minute of an hour and are shorter.
pub const EXPRESSION_BYTES: usize = 256;

/// How long the name of a zone may be: the longest of the IANA database has 32 bytes.
pub const ZONE_BYTES: usize = 64;

/// A run that starts this late still counts as on time. Longer than a leader's death takes to be noticed.
pub const ON_TIME: Duration = Duration::from_secs(60);

/// How many missed runs are made up for at most, so that a year without a node does not flood the queues.
pub const MADE_UP_MAX: u32 = 100;

/// What becomes of the times at which no node was there to fire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Missed {
    /// They are skipped.
    #[default]
    Skip,
    /// The latest of them runs, once.
    Once,
    /// The latest ones run, at most this many, from 1 to [`MADE_UP_MAX`].
    All(u32),
}

impl Missed {
    /// Reads `skip`, `once` or `all:N`, as people write it.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "skip" => Some(Missed::Skip),
            "once" => Some(Missed::Once),
            _ => text.strip_prefix("all:")?.parse().ok().map(Missed::All),
        }
    }

    fn limit(self) -> usize {
        match self {
            Missed::Skip => 0,
            Missed::Once => 1,
            Missed::All(n) => n.min(MADE_UP_MAX) as usize,
        }
    }
}

impl fmt::Display for Missed {
    /// As [`Missed::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missed::Skip => f.write_str("skip"),
            Missed::Once => f.write_str("once"),
            Missed::All(n) => write!(f, "all:{n}"),
        }
    }
}

/// Why an expression or a zone was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadCalendar {
    /// The text cannot be read.
    #[error("cron expression `{expression}`: {reason}")]
    Expression {
        /// What was given, cut to [`EXPRESSION_BYTES`].
        expression: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It can be read, but no date fits.
    #[error("cron expression `{expression}` never fires")]
    NeverFires {
        /// What was given.
        expression: String,
    },
    /// The IANA database has no such zone.
    #[error("unknown time zone `{zone}`: use a name such as `Europe/Berlin` or `UTC`")]
    Zone {
        /// What was given, cut to [`ZONE_BYTES`].
        zone: String,
    },
}

/// A cron expression in a time zone.
///
/// Five fields (minute, hour, day of month, month, day of week) or six (seconds first), or a nickname such as `@daily`.
/// On the night when clocks go forward, a fixed time inside the gap fires at its end; on the night when they go back, a
/// fixed time fires once. Intervals (`*/30 * * * *`) run through both.
#[derive(Clone)]
pub struct Calendar {
    cron: Cron,
    zone: TimeZone,
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.cron.as_str(), self.zone.iana_name().unwrap_or("UTC"))
    }
}

impl Calendar {
    /// Reads an expression in a zone, and makes sure that it fires at some time after `now`.
    pub fn new(expression: &str, zone: &str, now: Timestamp) -> Result<Self, BadCalendar> {
        let calendar = Calendar { cron: parse(expression)?, zone: zone_of(zone)? };
        match calendar.next_after(now) {
            Some(_) => Ok(calendar),
            None => Err(BadCalendar::NeverFires { expression: expression.to_owned() }),
        }
    }

    /// The first nominal time after `at`.
    pub fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        self.search(at, |cron, from| cron.find_next_occurrence(from, false))
    }

    /// The last nominal time before `at`.
    fn before(&self, at: Timestamp) -> Option<Timestamp> {
        self.search(at, |cron, from| cron.find_previous_occurrence(from, false))
    }

    /// Searches on until what was found is right. The library takes the end of every gap for a fixed time in it, also
    /// where that time lies before the gap: `30 1 * * *` would fire at 3:00 in New York in March.
    fn search(
        &self,
        at: Timestamp,
        step: impl Fn(&Cron, &jiff::Zoned) -> Result<jiff::Zoned, croner::errors::CronError>,
    ) -> Option<Timestamp> {
        let mut from = jiff::Timestamp::from_microsecond(at.as_micros()).ok()?.to_zoned(self.zone.clone());
        loop {
            from = step(&self.cron, &from).ok()?;
            if self.cron.is_time_matching(&from).ok()? || self.fits_in_gap_before(&from) {
                return Some(Timestamp::from_micros(from.timestamp().as_microsecond()));
            }
        }
    }

    /// Whether `at` ends a gap that a time of the expression lies in.
    fn fits_in_gap_before(&self, at: &jiff::Zoned) -> bool {
        let (end, just_before) = (at.timestamp(), at.timestamp() - jiff::SignedDuration::from_nanos(1));
        // Read as times of UTC, which has no gaps: the local times that the clocks jumped over.
        let skipped_from = self.zone.to_offset(just_before).to_datetime(end).to_zoned(TimeZone::UTC);
        let skipped_to = at.datetime().to_zoned(TimeZone::UTC);
        match (skipped_from, skipped_to) {
            (Ok(from), Ok(to)) => self.cron.find_next_occurrence(&from, true).is_ok_and(|found| found < to),
            _ => false,
        }
    }

    /// The nominal times from `from` to `to`, both included, latest first, at most `max`.
    fn latest(&self, from: Timestamp, to: Timestamp, max: usize) -> Vec<Timestamp> {
        let ceiling =
            Timestamp::from_micros(to.as_micros().div_euclid(SECOND).saturating_add(1).saturating_mul(SECOND));
        std::iter::successors(self.before(ceiling), |at| self.before(*at))
            .take_while(|at| *at >= from)
            .take(max)
            .collect()
    }
}

const SECOND: i64 = 1_000_000;

/// What a schedule whose next nominal time is `due` does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Nominal times to fire, oldest first.
    pub fire: Vec<Timestamp>,
    /// The first nominal time that is still ahead.
    pub next: Option<Timestamp>,
    /// Whether times were missed that are not fired.
    pub skipped: bool,
}

/// Decides what to fire: every nominal time that is at most [`ON_TIME`] old, and of the older ones what `missed` says.
pub fn plan(calendar: &Calendar, missed: Missed, due: Timestamp, now: Timestamp) -> Plan {
    if now < due {
        return Plan { fire: Vec::new(), next: Some(due), skipped: false };
    }
    let on_time_from = due.max(now - ON_TIME);
    // An expression has at most one time a second.
    let mut fire = calendar.latest(on_time_from, now, ON_TIME.as_secs() as usize + 1);
    let mut skipped = false;
    if due < on_time_from {
        let until = Timestamp::from_micros(on_time_from.as_micros() - 1);
        let late = calendar.latest(due, until, missed.limit() + 1);
        skipped = late.len() > missed.limit();
        fire.extend(late.into_iter().take(missed.limit()));
    }
    fire.reverse();
    Plan { fire, next: calendar.next_after(now), skipped }
}

fn parse(expression: &str) -> Result<Cron, BadCalendar> {
    let bad = |reason: String| BadCalendar::Expression { expression: cut(expression, EXPRESSION_BYTES), reason };
    if expression.len() > EXPRESSION_BYTES {
        return Err(bad(format!("it has {} bytes, at most {EXPRESSION_BYTES} are allowed", expression.len())));
    }
    let text = expression.trim();
    let fields = match text.to_ascii_lowercase().as_str() {
        "@midnight" => "@daily",
        nickname if nickname.starts_with('@') && !NICKNAMES.contains(&nickname) => {
            return Err(bad(format!("unknown nickname; there are {}, @midnight", NICKNAMES.join(", "))));
        }
        _ => text,
    };
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(fields).map_err(|error| bad(error.to_string()))
}

const NICKNAMES: [&str; 6] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@hourly"];

/// The zone of a name. The database is the one that was built in, so that all nodes of a build agree on every night.
fn zone_of(name: &str) -> Result<TimeZone, BadCalendar> {
    let unknown = || BadCalendar::Zone { zone: cut(name, ZONE_BYTES) };
    if name.is_empty() || name.len() > ZONE_BYTES {
        return Err(unknown());
    }
    TimeZoneDatabase::bundled().get(name).map_err(|_| unknown())
}

/// A time as the clocks of a zone show it, with their offset: `2026-11-16T03:00:00+01:00`.
pub fn local_time(at: Timestamp, zone: &str) -> Result<String, BadCalendar> {
    let zone = zone_of(zone)?;
    // Beyond what the library can place in a zone lies no time that a schedule can fire at.
    let Ok(instant) = jiff::Timestamp::from_microsecond(at.as_micros()) else { return Ok(at.to_string()) };
    Ok(instant.to_zoned(zone).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
}

fn cut(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

#[cfg(test)]
mod tests;
