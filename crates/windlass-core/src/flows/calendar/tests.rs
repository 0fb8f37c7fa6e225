//! Calendars against an oracle that walks every minute of the nights when clocks change.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZoneDatabase};
use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).expect("a time")
}

fn calendar(expression: &str, zone: &str) -> Calendar {
    Calendar::new(expression, zone, at("2026-01-01T00:00:00Z")).expect("a calendar")
}

fn between(calendar: &Calendar, from: &str, to: &str) -> Vec<String> {
    let to = at(to);
    std::iter::successors(calendar.next_after(at(from)), |at| calendar.next_after(*at))
        .take_while(|at| *at <= to)
        .map(|at| at.to_string())
        .collect()
}

/// TIM-2: the table of nights in New York: a time in the gap fires once at its end, a time that comes twice fires once,
/// and an interval runs through both.
#[test]
fn both_nights_in_new_york() {
    let gap = ("2026-03-08T05:00:00Z", "2026-03-08T09:00:00Z");
    let overlap = ("2026-11-01T04:00:00Z", "2026-11-01T08:00:00Z");
    let half_past_two = calendar("30 2 * * *", "America/New_York");
    assert_eq!(between(&half_past_two, gap.0, gap.1), ["2026-03-08T07:00:00Z"]);
    let half_past_one = calendar("30 1 * * *", "America/New_York");
    assert_eq!(between(&half_past_one, overlap.0, overlap.1), ["2026-11-01T05:30:00Z"]);
    let halves = calendar("*/30 * * * *", "America/New_York");
    assert_eq!(between(&halves, gap.0, gap.1).len(), 8);
    assert_eq!(between(&halves, overlap.0, overlap.1).len(), 8);
}

/// The nights of 2026 when clocks change in twelve zones, as days around each.
const ZONES: [(&str, &[&str]); 12] = [
    ("America/New_York", &["2026-03-08", "2026-11-01"]),
    ("America/Sao_Paulo", &["2026-02-15"]),
    ("America/St_Johns", &["2026-03-08", "2026-11-01"]),
    ("America/Santiago", &["2026-04-05", "2026-09-06"]),
    ("Europe/Berlin", &["2026-03-29", "2026-10-25"]),
    ("Europe/London", &["2026-03-29", "2026-10-25"]),
    ("Africa/Cairo", &["2026-04-24", "2026-10-30"]),
    ("Asia/Beirut", &["2026-03-29", "2026-10-25"]),
    ("Asia/Kolkata", &["2026-03-29"]),
    ("Australia/Lord_Howe", &["2026-04-05", "2026-10-04"]),
    ("Australia/Sydney", &["2026-04-05", "2026-10-04"]),
    ("Pacific/Auckland", &["2026-04-05", "2026-09-27"]),
];

/// Fixed times first; the others are intervals.
const FIXED: [(&str, i8, i8); 3] = [("30 2 * * *", 2, 30), ("0 0 * * *", 0, 0), ("30 1 * * *", 1, 30)];
const INTERVALS: [&str; 3] = ["*/30 * * * *", "0 * * * *", "15 */2 * * *"];

fn window(day: &str, zone: &TimeZone) -> (jiff::Timestamp, jiff::Timestamp) {
    let noon: DateTime = format!("{day}T12:00:00").parse().expect("a day");
    let noon = noon.to_zoned(zone.clone()).expect("noon is never in a gap").timestamp();
    let hours = jiff::SignedDuration::from_hours(36);
    (noon - hours, noon + hours)
}

/// TIM-2: twelve zones and six expressions over both nights are what walking every minute gives.
#[test]
fn every_zone_agrees_with_walking_every_minute() {
    let mut checked = 0;
    for (name, days) in ZONES {
        let zone = TimeZoneDatabase::bundled().get(name).expect("a zone");
        for day in days {
            let (from, to) = window(day, &zone);
            for (expression, hour, minute) in FIXED {
                let wanted = fixed_times(&zone, from, to, hour, minute);
                assert_eq!(found(expression, name, from, to), wanted, "{expression} in {name} around {day}");
                checked += 1;
            }
            for expression in INTERVALS {
                let wanted = interval_times(&zone, from, to, expression);
                assert_eq!(found(expression, name, from, to), wanted, "{expression} in {name} around {day}");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 6 * ZONES.iter().map(|(_, days)| days.len()).sum::<usize>());
}

fn found(expression: &str, zone: &str, from: jiff::Timestamp, to: jiff::Timestamp) -> BTreeSet<jiff::Timestamp> {
    let calendar = calendar(expression, zone);
    let micros = |at: Timestamp| jiff::Timestamp::from_microsecond(at.as_micros()).expect("in range");
    std::iter::successors(calendar.next_after(Timestamp::from_micros(from.as_microsecond())), |at| {
        calendar.next_after(*at)
    })
    .map(micros)
    .take_while(|at| *at <= to)
    .collect()
}

/// One time per day: in a gap its end, of two the first.
fn fixed_times(
    zone: &TimeZone,
    from: jiff::Timestamp,
    to: jiff::Timestamp,
    hour: i8,
    minute: i8,
) -> BTreeSet<jiff::Timestamp> {
    let first = from.to_zoned(zone.clone()).date();
    (0..5)
        .map(|days| first.checked_add(jiff::Span::new().days(days)).expect("a day").at(hour, minute, 0, 0))
        .map(|civil| match zone.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).expect("in range"),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(civil).expect("in range"),
            AmbiguousOffset::Gap { after, .. } => {
                // The end of the gap is the change of the zone's offset, the first one after a time well before it.
                let early = after.to_timestamp(civil).expect("in range") - jiff::SignedDuration::from_hours(6);
                zone.following(early).next().expect("a gap is a transition").timestamp()
            }
        })
        .filter(|at| *at > from && *at <= to)
        .collect()
}

/// Every minute whose local time fits.
fn interval_times(
    zone: &TimeZone,
    from: jiff::Timestamp,
    to: jiff::Timestamp,
    expression: &str,
) -> BTreeSet<jiff::Timestamp> {
    let fits = |at: &jiff::Timestamp| {
        let local = at.to_zoned(zone.clone());
        match expression {
            "*/30 * * * *" => local.minute() % 30 == 0,
            "0 * * * *" => local.minute() == 0,
            _ => local.minute() == 15 && local.hour() % 2 == 0,
        }
    };
    let minute = jiff::SignedDuration::from_mins(1);
    std::iter::successors(Some(from + minute), |at| Some(*at + minute))
        .take_while(|at| *at <= to)
        .filter(fits)
        .collect()
}

/// TIM-2: what cannot be read, never fires or is unknown is refused by name.
#[test]
fn bad_calendars_are_refused_by_name() {
    let now = at("2026-01-01T00:00:00Z");
    let refused = |expression: &str, zone: &str| Calendar::new(expression, zone, now).expect_err("refused");
    for expression in ["", "* * *", "61 * * * *", "* * * * * * 2027", "@never", "0 25 * * *", "a b c d e"] {
        assert!(matches!(refused(expression, "UTC"), BadCalendar::Expression { .. }), "{expression}");
    }
    assert!(matches!(refused(&"1,".repeat(200), "UTC"), BadCalendar::Expression { .. }));
    assert_eq!(refused("0 0 30 2 *", "UTC").to_string(), "cron expression `0 0 30 2 *` never fires");
    for zone in ["", "Mars/Olympus", "Europe/../Berlin", &"x".repeat(65)] {
        assert!(matches!(refused("@daily", zone), BadCalendar::Zone { .. }), "{zone}");
    }
}

/// TIM-2: five fields, six, and the usual nicknames.
#[test]
fn the_usual_spellings_are_read() {
    let midnight = ["2026-05-02T00:00:00Z"];
    for expression in ["0 0 * * *", "0 0 0 * * *", "@daily", "@midnight", "@Daily"] {
        let times = between(&calendar(expression, "UTC"), "2026-05-01T00:00:00Z", "2026-05-02T00:00:00Z");
        assert_eq!(times, midnight, "{expression}");
    }
    for expression in ["@hourly", "@weekly", "@monthly", "@yearly", "@annually", "0 9 * * MON-FRI", "0 0 29 2 *"] {
        calendar(expression, "Europe/Berlin");
    }
}

#[test]
fn what_is_missed_follows_the_policy() {
    let hourly = calendar("0 * * * *", "UTC");
    let due = at("2026-05-01T01:00:00Z");
    let now = at("2026-05-01T05:30:00Z");
    let fired = |missed| plan(&hourly, missed, due, now).fire.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(fired(Missed::Skip).is_empty());
    assert_eq!(fired(Missed::Once), ["2026-05-01T05:00:00Z"]);
    assert_eq!(fired(Missed::All(2)), ["2026-05-01T04:00:00Z", "2026-05-01T05:00:00Z"]);
    assert_eq!(fired(Missed::All(100)).len(), 5);
    assert!(plan(&hourly, Missed::All(2), due, now).skipped);
    assert!(!plan(&hourly, Missed::All(5), due, now).skipped);
    // A run that is a little late is not missed.
    let late = plan(&hourly, Missed::Skip, due, due + Duration::from_secs(59));
    assert_eq!((late.fire, late.next), (vec![due], Some(at("2026-05-01T02:00:00Z"))));
}

proptest! {
    /// Whatever is due whenever: fired times are nominal, in order, from `due` to now, all that are on time are among them,
    /// and none comes twice when the plan is carried on.
    #[test]
    fn a_plan_fires_each_time_once(
        expression in prop::sample::select(&["* * * * *", "*/7 * * * *", "30 2 * * *", "*/10 * * * * *", "0 0 1 * *"][..]),
        zone in prop::sample::select(&["UTC", "Europe/Berlin", "Australia/Lord_Howe"][..]),
        missed in prop_oneof![Just(Missed::Skip), Just(Missed::Once), (1u32..=100).prop_map(Missed::All)],
        start in 1_770_000_000_000i64..1_800_000_000_000,
        pauses in prop::collection::vec(0u64..200_000, 1..6),
    ) {
        let calendar = calendar(expression, zone);
        let mut now = Timestamp::from_millis(start);
        let mut due = calendar.next_after(now).expect("it fires");
        let mut last = None;
        for pause in pauses {
            now = now + Duration::from_secs(pause);
            let plan = plan(&calendar, missed, due, now);
            for time in &plan.fire {
                prop_assert!(*time >= due && *time <= now && last < Some(*time));
                prop_assert_eq!(calendar.next_after(*time - Duration::from_secs(1)), Some(*time));
                last = Some(*time);
            }
            let on_time = std::iter::successors(Some(due), |at| calendar.next_after(*at))
                .skip_while(|at| *at < now - ON_TIME).take_while(|at| *at <= now).count();
            let fired_on_time = plan.fire.iter().filter(|at| **at >= now - ON_TIME).count();
            prop_assert_eq!(fired_on_time, on_time);
            prop_assert!(plan.fire.len() - fired_on_time <= missed.limit());
            due = plan.next.expect("it fires again");
            prop_assert!(due > now);
        }
    }
}

/// People and forms write the policy in words, and read it back as they wrote it.
#[test]
fn policies_for_missed_runs_are_read_as_they_are_written() {
    for missed in [Missed::Skip, Missed::Once, Missed::All(1), Missed::All(100)] {
        assert_eq!(Missed::parse(&missed.to_string()), Some(missed));
    }
    for bad in ["", "all", "all:", "all:x", "all:-1", "Skip", "never"] {
        assert_eq!(Missed::parse(bad), None, "{bad}");
    }
}

#[test]
fn a_time_is_shown_by_the_clocks_of_a_zone() {
    let at = Timestamp::parse("2026-03-29T01:00:00Z").expect("a time");
    assert_eq!(local_time(at, "Europe/Berlin").expect("a zone"), "2026-03-29T03:00:00+02:00");
    assert_eq!(local_time(at, "UTC").expect("a zone"), "2026-03-29T01:00:00+00:00");
    assert_eq!(local_time(at, "Asia/Kathmandu").expect("a zone"), "2026-03-29T06:45:00+05:45");
    assert!(matches!(local_time(at, "Mars/Olympus"), Err(BadCalendar::Zone { .. })));
}
