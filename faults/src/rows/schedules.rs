//! Rows about schedules: the node that fires dies or stalls between reading and writing, and pauses race with fires. Called
//! by `runner` through the matrix. The rows work out what had to fire; the checker compares (I20, I39).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use windlass::{Missed, Overlap};

use crate::StoreKind;
use crate::child::{Command, Timed, tenant};
use crate::event::{Event, What};
use crate::faketime;
use crate::fleet::Under;
use crate::history::Promised;
use crate::recorder::{CHANGE, FIRE};
use crate::rig::{Rig, SOON};

/// Longer than the lease of the node that fires (5 s): whoever is silent for so long is replaced.
const PAST_LEASE: Duration = Duration::from_secs(6);

/// The schedules of F29, each with its distance in seconds. No gap of the row is longer than a minute, so whatever a
/// schedule says about missed times, all are to be fired.
fn regular() -> [(Timed, i64); 3] {
    let once = Timed { missed: Missed::Once, ..Timed::new(1, "every 2", "*/2 * * * * *") };
    let queue = Timed { missed: Missed::All(10), overlap: Overlap::Queue, ..Timed::new(2, "every 3", "*/3 * * * * *") };
    [(Timed::new(0, "every 1", "* * * * * *"), 1), (once, 2), (queue, 3)]
}

/// F29: the node that fires is killed between reading and writing, again and again, and stopped there past its lease; and
/// an edit is worked out before a time is fired and written after it. Two of the four nodes have clocks that are an hour
/// off.
pub(super) async fn leader_lost(rig: &mut Rig) -> Result<()> {
    let hour = Duration::from_secs(3_600);
    for under in [Under::default(), Under::default(), faketime::ahead(hour)?, faketime::behind(hour)?] {
        rig.start(rig.settings.clone(), rig.url.clone(), under).await?;
    }
    let producer = rig.producer().await?;
    put(rig, producer, regular().map(|(timed, _)| timed).to_vec()).await?;
    for _ in 0..rig.profile.times(1, 20) {
        let at = fire_is_held(rig).await?;
        rig.kill_9(at);
        let since = rig.events()?.len();
        go_on(rig);
        rig.restart(at).await?;
        fires_since(rig, since).await?;
    }
    for _ in 0..rig.profile.times(1, 3) {
        zombie_fires(rig).await?;
    }
    for _ in 0..rig.profile.times(1, 5) {
        late_edit(rig, producer).await?;
    }
    settle(rig, producer).await
}

/// F29 where a file belongs to one process: it is killed there and starts again, and is stopped for a while.
pub(super) async fn leader_lost_alone(rig: &mut Rig) -> Result<()> {
    let at = rig.worker().await?;
    put(rig, at, regular().map(|(timed, _)| timed).to_vec()).await?;
    for _ in 0..rig.profile.times(1, 20) {
        fire_is_held(rig).await?;
        rig.kill_9(at);
        let since = rig.events()?.len();
        rig.restart(at).await?;
        fires_since(rig, since).await?;
    }
    for _ in 0..rig.profile.times(0, 3) {
        fire_is_held(rig).await?;
        rig.freeze(at, PAST_LEASE).await;
        let since = rig.events()?.len();
        go_on(rig);
        fires_since(rig, since).await?;
    }
    late_edit(rig, at).await?;
    settle(rig, at).await
}

/// F30: pauses at times of chance, and while a fire is between reading and writing. After a pause was answered nothing
/// fires; a schedule that nobody pauses shows that others do.
pub(super) async fn paused(rig: &mut Rig) -> Result<()> {
    let nodes = if rig.store == StoreKind::Sqlite { 1 } else { 2 };
    for _ in 0..nodes {
        rig.worker().await?;
    }
    let producer = rig.producer().await?;
    let names: Vec<String> = (0..30).map(|n| format!("paused {n}")).collect();
    let mut schedules: Vec<Timed> = names.iter().map(|name| Timed::new(0, name, "* * * * * *")).collect();
    schedules.push(Timed::new(1, BEACON, "* * * * * *"));
    put(rig, producer, schedules).await?;
    let mut caught = 0;
    for round in 0..rig.profile.times(2, 40) {
        all_fire(rig, names.len() + 1).await?;
        let (seed, held) = (rig.seed(), round % 2 == 1);
        let since = rig.events()?.len();
        if held {
            fire_is_held(rig).await?;
            caught += held_names(&rig.events()?[since..]).filter(|name| names.contains(name)).count();
        }
        let since = rig.events()?.len();
        rig.fault(format!(
            "{} schedules are paused{}",
            names.len(),
            if held { " while they are about to fire" } else { "" }
        ));
        let within_ms = if held { 0 } else { 1_500 };
        rig.processes[producer].tell(&Command::PauseSchedules { tenant: 0, names: names.clone(), within_ms, seed });
        rig.until("all pauses to be answered", SOON, |events| pauses(&events[since..]) == names.len()).await?;
        let since = rig.events()?.len();
        go_on(rig);
        let beacons = |events: &[Event]| fired_by_name(events).get(BEACON).map_or(0, Vec::len);
        rig.until("others to fire", SOON, |events| beacons(&events[since..]) >= 2).await?;
        rig.processes[producer].tell(&Command::ResumeSchedules { tenant: 0, names: names.clone() });
    }
    rig.demand("schedules are paused between reading and firing", format!("{caught} were"), caught > 0);
    all_fire(rig, names.len() + 1).await?;
    let since = rig.events()?.len();
    rig.processes[producer].tell(&pause_of(0, &names));
    rig.processes[producer].tell(&pause_of(1, &[BEACON.to_owned()]));
    rig.until("the last pauses", SOON, |events| pauses(&events[since..]) > names.len()).await?;
    rig.quiet(SOON).await
}

/// The schedule that F30 does not pause.
const BEACON: &str = "beacon";

pub(super) fn pause_of(tenant: u8, names: &[String]) -> Command {
    Command::PauseSchedules { tenant, names: names.to_vec(), within_ms: 0, seed: 0 }
}

// ---- what the rows do

/// Stores schedules and waits until all are acknowledged and something fires.
async fn put(rig: &mut Rig, at: usize, schedules: Vec<Timed>) -> Result<()> {
    let (count, since) = (schedules.len(), rig.events()?.len());
    rig.processes[at].tell(&Command::PutSchedules(schedules));
    rig.until("schedules to be stored", SOON, |events| stored(&events[since..]).count() == count).await?;
    fires_since(rig, since).await
}

/// Holds the next fire of every node back, and waits until one has read what is due and is about to fire. Answers
/// which.
async fn fire_is_held(rig: &mut Rig) -> Result<usize> {
    let since = rig.events()?.len();
    for at in rig.workers() {
        rig.processes[at].tell(&Command::HoldBack(FIRE.into()));
    }
    let first = |events: &[Event]| held(&events[since..], FIRE).next();
    rig.until("a fire to be held back", SOON, |events| first(events).is_some()).await?;
    let proc = first(&rig.events()?).context("it was there")?;
    let at = rig.workers().into_iter().find(|at| rig.processes[*at].proc() == proc);
    at.context("a worker fires")
}

/// Lets every node fire.
fn go_on(rig: &mut Rig) {
    for at in rig.workers() {
        rig.processes[at].tell(&Command::LetGo(FIRE.into()));
    }
}

/// Waits until schedules have fired.
async fn fires_since(rig: &Rig, since: usize) -> Result<()> {
    rig.until("schedules to fire", SOON, |events| !fired_by_name(&events[since..]).is_empty()).await.map(drop)
}

/// Waits until each of this many schedules has fired, from now on.
async fn all_fire(rig: &Rig, schedules: usize) -> Result<()> {
    let since = rig.events()?.len();
    let all = |events: &[Event]| fired_by_name(&events[since..]).len() == schedules;
    rig.until("every schedule to fire", SOON, all).await.map(drop)
}

/// The node that fires is stopped past its lease between reading and writing. Another has read the same and is about to
/// fire when the first goes on; the first is refused.
async fn zombie_fires(rig: &mut Rig) -> Result<()> {
    let since = rig.events()?.len();
    let at = fire_is_held(rig).await?;
    let zombie = rig.processes[at].proc();
    // What it fired before it was held back.
    let fires = |events: &[Event]| {
        let of_zombie = events.iter().filter(|event| event.proc == zombie);
        let answers = of_zombie.filter_map(|event| match event.what {
            What::Fired { accepted, .. } => Some(accepted),
            _ => None,
        });
        answers.collect::<Vec<bool>>()
    };
    let before = fires(&rig.events()?).len();
    let fault = format!("process {zombie} is stopped while it is about to fire");
    rig.fault(fault.clone());
    rig.processes[at].signal(Signal::STOP);
    let other = |events: &[Event]| held(&events[since..], FIRE).any(|proc| proc != zombie);
    rig.until("another node to be about to fire", SOON, other).await?;
    rig.processes[at].signal(Signal::CONT);
    rig.healed(fault);
    rig.processes[at].tell(&Command::LetGo(FIRE.into()));
    rig.until("its fire to be answered", SOON, |events| fires(events).len() > before).await?;
    let accepted = fires(&rig.events()?)[before];
    rig.demand("a fire of a lease that was lost is refused", if accepted { "accepted" } else { "refused" }, !accepted);
    let since = rig.events()?.len();
    go_on(rig);
    fires_since(rig, since).await
}

/// An edit has read the clock and is not written before the time it has worked out was fired by another. The time is due
/// again then, and has its job already.
async fn late_edit(rig: &mut Rig, editor: usize) -> Result<()> {
    let since = rig.events()?.len();
    rig.fault("an edit of a schedule is held up");
    let (timed, _) = regular()[0].clone();
    let name = timed.name.clone();
    rig.processes[editor].tell(&Command::HoldBack(CHANGE.into()));
    rig.processes[editor].tell(&Command::PutSchedules(vec![timed]));
    rig.until("the edit to be held back", SOON, |events| held(&events[since..], CHANGE).next().is_some()).await?;
    let held_at = rig.events()?.len();
    let times = |events: &[Event]| fired_by_name(&events[held_at..]).get(name.as_str()).map_or(0, Vec::len);
    rig.until("its time to be fired", SOON, |events| times(events) >= 3).await?;
    rig.processes[editor].tell(&Command::LetGo(CHANGE.into()));
    rig.healed("an edit of a schedule is held up");
    rig.until("the edit to be stored", SOON, |events| stored(&events[since..]).count() == 1).await?;
    let edited = rig.events()?.len();
    rig.until("it to fire again", SOON, |events| fired_by_name(&events[edited..]).contains_key(name.as_str())).await?;
    Ok(())
}

/// Pauses the schedules of F29, waits until their jobs have ended, and promises the checker every time from the first one
/// to the last.
async fn settle(rig: &mut Rig, at: usize) -> Result<()> {
    all_fire(rig, regular().len()).await?;
    let since = rig.events()?.len();
    for (timed, _) in regular() {
        rig.processes[at].tell(&pause_of(timed.tenant, &[timed.name]));
    }
    rig.until("all to be paused", SOON, |events| pauses(&events[since..]) == regular().len()).await?;
    rig.quiet(SOON).await?;
    let (events, progress) = (rig.events()?, rig.progress().await?);
    for (timed, every) in regular() {
        let first = stored(&events).find(|(name, _)| *name == timed.name).context("it was stored")?.1;
        let last = progress.get(&timed.name).and_then(|(_, last)| *last).context("it has fired")?;
        let times: Vec<i64> = (first..=last).step_by(usize::try_from(every * SECOND)?).collect();
        let owed = format!("`{}` had {} times", timed.name, times.len());
        rig.demand("schedules fire while nodes are lost", owed, times.len() > 1);
        rig.rules.promised.push(Promised { tenant: tenant(timed.tenant).0, schedule: timed.name, times });
    }
    Ok(())
}

/// In microseconds.
const SECOND: i64 = 1_000_000;

// ---- what the rows read in events

/// The processes that have held calls of a kind back.
fn held(events: &[Event], kind: &str) -> impl Iterator<Item = u32> {
    let of_kind = move |event: &&Event| matches!(&event.what, What::HeldBack { call, .. } if call == kind);
    events.iter().filter(of_kind).map(|event| event.proc)
}

/// The schedules whose fires were held back.
fn held_names(events: &[Event]) -> impl Iterator<Item = &String> {
    let of_fire = events.iter().filter_map(|event| match &event.what {
        What::HeldBack { call, schedules } if call == FIRE => Some(schedules),
        _ => None,
    });
    of_fire.flatten()
}

/// Schedules that were acknowledged, with their next time.
pub(super) fn stored(events: &[Event]) -> impl Iterator<Item = (&str, i64)> {
    events.iter().filter_map(|event| match &event.what {
        What::ScheduleStored { name, next_at, .. } => Some((name.as_str(), *next_at)),
        _ => None,
    })
}

/// Pauses that were acknowledged.
pub(super) fn pauses(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event.what, What::SchedulePaused { .. })).count()
}

/// The times that were fired, by schedule.
fn fired_by_name(events: &[Event]) -> BTreeMap<&str, Vec<i64>> {
    let mut fired: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for event in events {
        let What::Fired { times, .. } = &event.what else { continue };
        for (name, time) in times {
            fired.entry(name).or_default().push(*time);
        }
    }
    fired
}
