//! The leader's term and scheduled runs, with pauses and edits, in every order of events (TIM-2).

use windlass_model::Sabotage;
use windlass_model::cron::{Action, Schedules};
use windlass_model::{check, find, stuck};

/// Leaders that come and go.
fn leaders() -> Schedules {
    Schedules { nodes: 3, due: 2, terms: 3, losses: 2, pauses: 0, edits: 0, sabotage: None }
}

/// People who change the schedule while two nodes fire it.
fn changes() -> Schedules {
    Schedules { nodes: 2, due: 2, terms: 2, losses: 1, pauses: 1, edits: 2, sabotage: None }
}

#[test]
fn each_nominal_time_is_fired_once_under_any_leader() {
    check("cron, leaders", leaders());
    let stuck = stuck("cron, leaders", &leaders(), Action::is_fault, Schedules::is_done);
    assert_eq!(stuck, None, "from here on some time is never fired");
}

#[test]
fn each_nominal_time_is_fired_once_whoever_edits_or_pauses() {
    check("cron, changes", changes());
    let stuck = stuck("cron, changes", &changes(), Action::is_fault, Schedules::is_done);
    assert_eq!(stuck, None, "from here on some time is never fired");
}

#[test]
fn a_leader_that_writes_without_its_term_is_found() {
    let model = Schedules { sabotage: Some(Sabotage::LeaderWritesWithoutItsTerm), ..leaders() };
    find("LeaderWritesWithoutItsTerm", model, "no write of an older term is accepted");
}

/// The due time that is compared keeps leaders from firing twice; only an edit that arrives late sets it back.
#[test]
fn runs_without_a_unique_key_are_found() {
    let sabotage = Some(Sabotage::CronWithoutUniqueKey);
    check("CronWithoutUniqueKey, without edits", Schedules { sabotage, ..leaders() });
    find("CronWithoutUniqueKey", Schedules { sabotage, ..changes() }, "a nominal time is fired at most once");
}

#[test]
fn a_pause_that_only_readers_see_is_found() {
    let model = Schedules { sabotage: Some(Sabotage::PauseOnlyWhenRead), ..changes() };
    find("PauseOnlyWhenRead", model, "nothing fires after the answer of a pause");
}

#[test]
fn a_fire_that_does_not_compare_the_version_is_found() {
    let model = Schedules { sabotage: Some(Sabotage::FireWithoutVersion), ..changes() };
    find("FireWithoutVersion", model, "what was read before an edit is not fired after it");
}

#[test]
fn edits_that_overwrite_each_other_are_found() {
    let model = Schedules { sabotage: Some(Sabotage::EditsOverwrite), ..changes() };
    find("EditsOverwrite", model, "no edit undoes one that it has not seen");
}
