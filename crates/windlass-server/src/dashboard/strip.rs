//! The calendar strip of a schedule: one bar for each day, marked where it fires. Pure. Drawn as the other charts are:
//! colours come from the stylesheet, and the list of next runs beside it has the same times as text.

use std::time::Duration;

use maud::{Markup, html};
use windlass_core::flows::calendar::local_time;
use windlass_core::{Calendar, Timestamp};

/// Parts of a day that are marked or not: half hours. Also the most searches that a day costs, however often it fires.
const SLOTS: usize = 48;

/// How wide a part is drawn; the picture is stretched to its box.
const SLOT_WIDTH: usize = 10;

/// Days of the strip on the page of a schedule.
pub(crate) const DAYS: usize = 7;

/// A day, or any other 24 hours, with the parts in which a schedule fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Day {
    /// What stands beside it, such as `Wed 18 Nov`.
    pub(crate) label: String,
    /// Whether it fires in each part.
    pub(crate) fires: [bool; SLOTS],
    /// How many parts have passed already.
    pub(crate) past: usize,
}

/// The next 24 hours from now.
pub(crate) fn next_day(calendar: &Calendar, now: Timestamp) -> Day {
    let until = now + Duration::from_secs(24 * 3_600);
    Day { label: "Next 24 hours".to_owned(), fires: fires(calendar, now, until, now), past: 0 }
}

/// This day and the next ones, as the calendar on the wall of the schedule's zone has them: with 23 or 25 hours on the
/// days on which clocks change.
pub(crate) fn week(calendar: &Calendar, zone: &str, now: Timestamp) -> Vec<Day> {
    let Some(first) = midnight(zone, now) else { return Vec::new() };
    let start_of = |day: usize| first.checked_add(jiff::Span::new().days(day as i64)).ok();
    let mut days = Vec::with_capacity(DAYS);
    for day in 0..DAYS {
        let (Some(from), Some(to)) = (start_of(day), start_of(day + 1)) else { break };
        let at = |zoned: &jiff::Zoned| Timestamp::from_micros(zoned.timestamp().as_microsecond());
        let label = from.strftime("%a %-d %b").to_string();
        let (from, to) = (at(&from), at(&to));
        let past = if now > from { slot_of(now, from, to) } else { 0 };
        days.push(Day { label, fires: fires(calendar, from, to, now), past });
    }
    days
}

fn midnight(zone: &str, now: Timestamp) -> Option<jiff::Zoned> {
    let zone = jiff::tz::TimeZoneDatabase::bundled().get(zone).ok()?;
    jiff::Timestamp::from_microsecond(now.as_micros()).ok()?.to_zoned(zone).start_of_day().ok()
}

/// In which parts of a time it fires from now on. Looks once for each part, not once for each run.
fn fires(calendar: &Calendar, from: Timestamp, to: Timestamp, now: Timestamp) -> [bool; SLOTS] {
    let mut marked = [false; SLOTS];
    let mut after = now.max(from - Duration::from_micros(1));
    for _ in 0..SLOTS {
        let Some(run) = calendar.next_after(after).filter(|run| *run < to) else { break };
        let slot = slot_of(run, from, to);
        marked[slot] = true;
        // Goes on with the last moment of this part: the first of the next one may be a run.
        let length = to.since(from) / SLOTS as u32;
        after = (from + length * (slot as u32 + 1) - Duration::from_micros(1)).max(run);
    }
    marked
}

fn slot_of(at: Timestamp, from: Timestamp, to: Timestamp) -> usize {
    let (since, length) = (at.since(from).as_micros(), to.since(from).as_micros().max(1));
    usize::try_from(since * SLOTS as u128 / length).unwrap_or(SLOTS).min(SLOTS - 1)
}

/// A day as one bar.
pub(crate) fn bar(day: &Day) -> Markup {
    let halves = day.fires.iter().filter(|fires| **fires).count();
    let what = match halves {
        0 => format!("{}: no runs", day.label),
        n => format!("{}: runs in {n} of {SLOTS} half hours", day.label),
    };
    html! {
        svg.strip viewBox={ "0 0 " (SLOTS * SLOT_WIDTH) " 10" } preserveAspectRatio="none" role="img" aria-label=(what) {
            @if day.past > 0 { rect.strip-past x="0" y="0" width=(day.past * SLOT_WIDTH) height="10" {} }
            @for quarter in 1..4 { rect.strip-grid x=(quarter * SLOTS / 4 * SLOT_WIDTH) y="0" width="1" height="10" {} }
            @for (slot, _) in day.fires.iter().enumerate().filter(|(_, fires)| **fires) {
                rect.strip-run x=(slot * SLOT_WIDTH + 1) y="0" width=(SLOT_WIDTH - 2) height="10" {}
            }
        }
    }
}

/// Several days below one another, with the hours above them.
pub(crate) fn days(days: &[Day]) -> Markup {
    html! {
        div.strips {
            span {} div.strip-hours aria-hidden="true" { span { "0:00" } span { "6:00" } span { "12:00" } span { "18:00" } span { "24:00" } }
            @for day in days { span.strip-day { (day.label) } (bar(day)) }
        }
    }
}

/// A time by the clocks of a zone, as people read it.
pub(crate) fn shown_in(at: Timestamp, zone: &str) -> String {
    match local_time(at, zone) {
        Ok(local) => local.replacen('T', " ", 1),
        Err(_) => at.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).expect("a time")
    }

    fn calendar(cron: &str, zone: &str, now: Timestamp) -> Calendar {
        Calendar::new(cron, zone, now).expect("it fires")
    }

    fn marked(day: &Day) -> Vec<usize> {
        day.fires.iter().enumerate().filter(|(_, fires)| **fires).map(|(slot, _)| slot).collect()
    }

    #[test]
    fn runs_are_marked_where_they_fall() {
        let now = at("2026-11-18T10:00:00Z");
        let day = next_day(&calendar("0 11,13 * * *", "UTC", now), now);
        assert_eq!(marked(&day), [2, 6]);
        let often = next_day(&calendar("* * * * * *", "UTC", now), now);
        assert_eq!(marked(&often).len(), SLOTS, "every part, at one search each");
        let seldom = next_day(&calendar("@yearly", "UTC", now), now);
        assert_eq!(marked(&seldom), [0; 0]);
        let half_hourly = next_day(&calendar("*/30 * * * *", "UTC", now), now);
        assert_eq!(marked(&half_hourly), (1..SLOTS).collect::<Vec<_>>(), "the run at 10:00 has passed");
    }

    #[test]
    fn a_week_is_that_of_the_schedules_zone() {
        let now = at("2026-10-23T23:00:00Z");
        let week = week(&calendar("0 6 * * *", "Europe/Berlin", now), "Europe/Berlin", now);
        let labels: Vec<&str> = week.iter().map(|day| day.label.as_str()).collect();
        assert_eq!(labels[..3], ["Sat 24 Oct", "Sun 25 Oct", "Mon 26 Oct"]);
        assert_eq!((week.len(), week[0].past), (DAYS, 2), "an hour of it has passed");
        assert_eq!(marked(&week[0]), [12]);
        // The day on which clocks go back has 25 hours: 6:00 is its eighth.
        assert_eq!(marked(&week[1]), [13]);
        assert_eq!(marked(&week[2]), [12]);
    }

    #[test]
    fn what_has_passed_today_is_not_marked() {
        let now = at("2026-11-18T12:00:00Z");
        let week = week(&calendar("0 * * * *", "UTC", now), "UTC", now);
        assert_eq!(marked(&week[0]), (13..24).map(|hour| hour * 2).collect::<Vec<_>>());
        assert_eq!(marked(&week[1]), (0..24).map(|hour| hour * 2).collect::<Vec<_>>());
    }
}
