//! The race between a pause and claims under way, in every order of events.

use windlass_model::Sabotage;
use windlass_model::pause::{Action, Pauses};
use windlass_model::{check, find, stuck};

fn two_nodes() -> Pauses {
    Pauses { nodes: 2, rounds: 2, sabotage: None }
}

#[test]
fn nothing_starts_once_the_next_look_must_have_told_and_nothing_stays_parked() {
    check("pause", two_nodes());
    let stuck = stuck("pause", &two_nodes(), Action::is_fault, Pauses::is_done);
    assert_eq!(stuck, None, "from here on the job can never end");
}

#[test]
fn a_pause_ignored_by_claims_in_flight_is_found() {
    let model = || Pauses { sabotage: Some(Sabotage::PauseIgnoredByClaimsInFlight), ..two_nodes() };
    find("PauseIgnoredByClaimsInFlight", model(), "no node starts what it knows to be paused");
    find("PauseIgnoredByClaimsInFlight", model(), "nothing starts once the next poll must have seen the pause");
}

#[test]
fn gates_that_are_not_opened_again_are_found() {
    let model = Pauses { sabotage: Some(Sabotage::GatesNotOpenedAgain), ..two_nodes() };
    let way = stuck("GatesNotOpenedAgain", &model, Action::is_fault, Pauses::is_done);
    assert!(way.is_some(), "a parked job never ends");
}
