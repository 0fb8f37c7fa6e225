//! F28: schedules in twelve zones over the nights when clocks change. Called by `runner` through the matrix. What had to
//! fire comes from a table of changes and a walk over every minute; no library of time zones takes part in it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rand::seq::IndexedRandom;
use windlass::Missed;
use windlass_testkit::servers::StopMode;

use super::schedules::{pause_of, pauses, stored};
use crate::StoreKind;
use crate::child::{Command, Timed, tenant};
use crate::faketime;
use crate::fleet::Under;
use crate::history::Promised;
use crate::rig::{Rig, SOON};

/// The database sleeps through the nights: schedules are stored before one, the clock is set behind it, and everything is
/// made up for. On PostgreSQL the server's clock is set, and its nodes keep theirs; on SQLite it is the process's.
pub(super) async fn through_the_nights(rig: &mut Rig) -> Result<()> {
    rig.rules.database_clock_jumps = true;
    // The clock goes on by months, and what was fired is looked at in the end.
    rig.settings.retention = Some(Duration::from_secs(800 * 86_400));
    for night in nights(rig) {
        let (from, to) = (night - AROUND, night + AROUND);
        let schedules = schedules(night);
        set_clock(rig, from).await?;
        let since = rig.events()?.len();
        let timed = schedules.iter().map(|(timed, _)| timed.clone()).collect();
        rig.processes[0].tell(&Command::PutSchedules(timed));
        let all = schedules.len();
        rig.until("schedules to be stored", SOON, |events| stored(&events[since..]).count() == all).await?;
        set_clock(rig, to).await?;
        all_have_passed(rig, &schedules, to).await?;
        let since = rig.events()?.len();
        let names: Vec<String> = schedules.iter().map(|(timed, _)| timed.name.clone()).collect();
        rig.processes[0].tell(&pause_of(0, &names));
        rig.until("all to be paused", SOON, |events| pauses(&events[since..]) == all).await?;
        rig.quiet(SOON * 2).await?;
        for (timed, kind) in schedules {
            let zone = ZONES.iter().find(|zone| zone.name == timed.zone).context("a zone of the table")?;
            let times = due(timed.missed, times(zone, kind, from, to)).into_iter().map(|at| at * 1_000_000).collect();
            rig.rules.promised.push(Promised { tenant: tenant(0).0, schedule: timed.name, times });
        }
    }
    Ok(())
}

/// Hours before and after the middle of a night. No expression has more times in it than are made up for.
const AROUND: i64 = 15 * 3_600;

/// Every night of the table, or one of each kind.
fn nights(rig: &mut Rig) -> Vec<i64> {
    if rig.profile != crate::Profile::Short {
        let mut all = [FORWARD.as_slice(), BACK.as_slice()].concat();
        all.sort_unstable();
        return all;
    }
    let mut two = [FORWARD.choose(&mut rig.rng), BACK.choose(&mut rig.rng)].map(|night| *night.expect("not empty"));
    two.sort_unstable();
    two.to_vec()
}

/// Six expressions in twelve zones, with everything made up for; and one of them by each policy.
fn schedules(night: i64) -> Vec<(Timed, Kind)> {
    let mut schedules = Vec::new();
    for zone in &ZONES {
        for (cron, kind) in KINDS {
            let name = format!("{night} {} {cron}", zone.name);
            let timed = Timed { zone: zone.name.into(), missed: Missed::All(100), ..Timed::new(0, name, cron) };
            schedules.push((timed, kind));
        }
    }
    for missed in [Missed::Skip, Missed::Once, Missed::All(5)] {
        let (cron, kind) = KINDS[0];
        let timed =
            Timed { zone: "Europe/Berlin".into(), missed, ..Timed::new(0, format!("{night} {missed:?}"), cron) };
        schedules.push((timed, kind));
    }
    schedules
}

/// Starts the only process again under another clock, on PostgreSQL the server.
async fn set_clock(rig: &mut Rig, at: i64) -> Result<()> {
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?;
    let off = Duration::from_secs((at - now).unsigned_abs());
    let clock = if at >= now { faketime::ahead(off)? } else { faketime::behind(off)? };
    rig.fault(format!("the clock of the database is set to {at}"));
    for process in &mut rig.processes {
        process.stop(SOON).await?;
    }
    let under = match rig.store {
        StoreKind::Sqlite => clock,
        StoreKind::Postgres => {
            let server = rig.server.as_mut().context("the row has a server of its own")?;
            server.set_variables(clock.variables);
            tokio::task::block_in_place(|| server.restart(StopMode::Fast))?;
            Under::default()
        }
    };
    if rig.processes.is_empty() {
        return rig.start(rig.settings.clone(), rig.url.clone(), under).await.map(drop);
    }
    rig.processes[0].under = under;
    rig.restart(0).await
}

/// Waits until no schedule is due any more.
async fn all_have_passed(rig: &Rig, schedules: &[(Timed, Kind)], to: i64) -> Result<()> {
    let began = Instant::now();
    loop {
        let progress = rig.progress().await?;
        let next = |timed: &Timed| progress.get(&timed.name).and_then(|(next, _)| *next);
        let left = schedules.iter().filter(|(timed, _)| next(timed).is_none_or(|at| at <= to * 1_000_000)).count();
        if left == 0 {
            return Ok(());
        }
        ensure!(began.elapsed() < SOON * 2, "{left} schedules are still due");
        rig.go_on(Duration::from_millis(100)).await;
    }
}

// ---- what had to fire

/// A zone in 2026: its offset from UTC in minutes on the first of January, and each change: when, in Unix seconds, and the
/// offset from then on. From the IANA database of 2025.
struct Zone {
    name: &'static str,
    offset: i64,
    changes: &'static [(i64, i64)],
}

const ZONES: [Zone; 12] = [
    Zone { name: "America/New_York", offset: -300, changes: &[(1_772_953_200, -240), (1_793_512_800, -300)] },
    Zone { name: "America/Sao_Paulo", offset: -180, changes: &[] },
    Zone { name: "America/St_Johns", offset: -210, changes: &[(1_772_947_800, -150), (1_793_507_400, -210)] },
    Zone { name: "America/Santiago", offset: -180, changes: &[(1_775_358_000, -240), (1_788_667_200, -180)] },
    Zone { name: "Europe/Berlin", offset: 60, changes: &[(1_774_746_000, 120), (1_792_890_000, 60)] },
    Zone { name: "Europe/London", offset: 0, changes: &[(1_774_746_000, 60), (1_792_890_000, 0)] },
    Zone { name: "Africa/Cairo", offset: 120, changes: &[(1_776_981_600, 180), (1_793_307_600, 120)] },
    Zone { name: "Asia/Beirut", offset: 120, changes: &[(1_774_735_200, 180), (1_792_875_600, 120)] },
    Zone { name: "Asia/Kolkata", offset: 330, changes: &[] },
    Zone { name: "Australia/Lord_Howe", offset: 660, changes: &[(1_775_314_800, 630), (1_791_041_400, 660)] },
    Zone { name: "Australia/Sydney", offset: 660, changes: &[(1_775_318_400, 600), (1_791_043_200, 660)] },
    Zone { name: "Pacific/Auckland", offset: 780, changes: &[(1_775_311_200, 720), (1_790_431_200, 780)] },
];

/// The middles of nights in which clocks go forward: 7 minutes past an hour of UTC, so that no expression has a time within
/// the minutes that a busy machine takes to start processes. One night may have changes of several zones.
const FORWARD: [i64; 6] = [
    1_772_950_020, // 8 March: New York, St. John's
    1_774_742_820, // 29 March: Beirut, Berlin, London
    1_776_982_020, // 24 April: Cairo
    1_788_667_620, // 6 September: Santiago
    1_790_431_620, // 27 September: Auckland
    1_791_043_620, // 4 October: Lord Howe, Sydney
];

/// The same for nights in which clocks go back.
const BACK: [i64; 4] = [
    1_775_336_820, // 5 April: Auckland, Lord Howe, Sydney, Santiago
    1_792_883_220, // 25 October: Beirut, Berlin, London
    1_793_308_020, // 30 October: Cairo
    1_793_509_620, // 1 November: St. John's, New York
];

/// What an expression means in local minutes of a day.
#[derive(Clone, Copy)]
enum Kind {
    /// All minutes for which this holds, through both halves of a night.
    Interval(fn(i64) -> bool),
    /// Once a day at this minute: at the end of a gap that it lies in, and at the first of two.
    Fixed(i64),
}

const KINDS: [(&str, Kind); 6] = [
    ("*/30 * * * *", Kind::Interval(|minute| minute % 30 == 0)),
    ("0 * * * *", Kind::Interval(|minute| minute % 60 == 0)),
    ("15 */2 * * *", Kind::Interval(|minute| minute % 120 == 15)),
    ("30 2 * * *", Kind::Fixed(150)),
    ("0 0 * * *", Kind::Fixed(0)),
    ("30 1 * * *", Kind::Fixed(90)),
];

const DAY: i64 = 24 * 60;

impl Zone {
    /// The local time of a moment, in minutes since 1970.
    fn local(&self, at: i64) -> i64 {
        let change = self.changes.iter().rfind(|(from, _)| *from <= at);
        at.div_euclid(60) + change.map_or(self.offset, |(_, offset)| *offset)
    }
}

/// The nominal times after `from` and up to `to`, in Unix seconds: every minute is looked at.
fn times(zone: &Zone, kind: Kind, from: i64, to: i64) -> Vec<i64> {
    let mut times: Vec<i64> = Vec::new();
    for at in (from + 1..=to).filter(|at| at % 60 == 0) {
        let (before, local) = (zone.local(at - 60) + 1, zone.local(at));
        let fires = match kind {
            Kind::Interval(holds) => holds(local.rem_euclid(DAY)),
            // Clocks that went forward have passed the minutes from `before` on; those that went back come to `local` again.
            Kind::Fixed(minute) if before < local => (before..=local).any(|passed| passed.rem_euclid(DAY) == minute),
            Kind::Fixed(minute) => local.rem_euclid(DAY) == minute && !is_second(zone, at),
        };
        if fires {
            times.push(at);
        }
    }
    times
}

/// Whether the clocks have shown the local time of this moment before.
fn is_second(zone: &Zone, at: i64) -> bool {
    zone.changes.iter().any(|(change, _)| *change <= at && zone.local(change - 60) >= zone.local(at))
}

/// What a policy leaves of times that were all missed.
fn due(missed: Missed, times: Vec<i64>) -> Vec<i64> {
    let kept = match missed {
        Missed::Once => 1,
        Missed::All(n) => n as usize,
        _ => 0,
    };
    times[times.len().saturating_sub(kept)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fired(zone: &str, cron: &str, from: i64, to: i64) -> Vec<i64> {
        let zone = ZONES.iter().find(|zone_of| zone_of.name == zone).expect("a zone");
        let (_, kind) = KINDS.into_iter().find(|(expression, _)| *expression == cron).expect("an expression");
        times(zone, kind, from, to)
    }

    /// TIM-2: the table of New York: half past two fires once at three, half past one fires once, and every half hour runs
    /// through both nights.
    #[test]
    fn the_table_of_new_york() {
        const GAP: i64 = 1_772_953_200;
        const OVERLAP: i64 = 1_793_512_800;
        let around = |change: i64, cron: &str| fired("America/New_York", cron, change - 7_200, change + 7_200);
        assert_eq!(around(GAP, "30 2 * * *"), [GAP]);
        assert_eq!(around(GAP, "30 1 * * *"), [GAP - 1_800]);
        assert_eq!(around(OVERLAP, "30 1 * * *"), [OVERLAP - 1_800]);
        assert_eq!((around(GAP, "*/30 * * * *").len(), around(OVERLAP, "*/30 * * * *").len()), (8, 8));
    }

    #[test]
    fn midnight_in_a_gap_is_its_end() {
        let cairo = 1_776_981_600;
        assert_eq!(fired("Africa/Cairo", "0 0 * * *", cairo - 3_600, cairo + 3_600), [cairo]);
    }

    #[test]
    fn policies_leave_the_latest() {
        assert_eq!(due(Missed::Skip, vec![1, 2, 3]), [0; 0]);
        assert_eq!(due(Missed::Once, vec![1, 2, 3]), [3]);
        assert_eq!(due(Missed::All(2), vec![1, 2, 3]), [2, 3]);
    }

    /// Each night has its changes inside, and no more times than are made up for.
    #[test]
    fn every_change_is_in_a_night() {
        let nights: Vec<i64> = FORWARD.into_iter().chain(BACK).collect();
        for zone in &ZONES {
            for (change, _) in zone.changes {
                let near = |night: &&i64| (change - **night).abs() < AROUND - 7_200;
                assert_eq!(nights.iter().filter(near).count(), 1, "{} at {change}", zone.name);
            }
        }
        for night in nights {
            assert_eq!(night % 3_600, 420, "seven minutes past");
            assert!(times(&ZONES[0], KINDS[0].1, night - AROUND, night + AROUND).len() < 100);
        }
    }
}
