//! The leader's term and scheduled runs, in every order of events. Nothing of it is built yet.

use windlass_model::Sabotage;
use windlass_model::cron::{Action, Schedules};
use windlass_model::{check, find, stuck};

fn three_nodes() -> Schedules {
    Schedules { nodes: 3, due: 2, terms: 3, losses: 2, sabotage: None }
}

#[test]
fn each_nominal_time_is_fired_once_under_any_leader() {
    check("cron", three_nodes());
    let stuck = stuck("cron", &three_nodes(), Action::is_fault, Schedules::is_done);
    assert_eq!(stuck, None, "from here on some time is never fired");
}

#[test]
fn a_leader_that_writes_without_its_term_is_found() {
    let model = || Schedules { sabotage: Some(Sabotage::LeaderWritesWithoutItsTerm), ..three_nodes() };
    find("LeaderWritesWithoutItsTerm", model(), "no write of an older term is accepted");
    find("LeaderWritesWithoutItsTerm", model(), "the schedule does not go back");
}

#[test]
fn runs_without_a_unique_key_are_found() {
    let model = Schedules { sabotage: Some(Sabotage::CronWithoutUniqueKey), ..three_nodes() };
    find("CronWithoutUniqueKey", model, "a nominal time is fired at most once");
}
