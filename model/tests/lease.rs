//! The life of leases, in every order of events within the bounds that each test names.

use windlass_model::Sabotage;
use windlass_model::lease::{Action, Faults, Leases};
use windlass_model::{check, find, stuck};

/// Bounds under which different things can go wrong.
fn crashes() -> Leases {
    Leases { processes: 2, ready: 1, faults: Faults { crashes: 2, ..Faults::default() }, ..Leases::default() }
}

fn zombies() -> Leases {
    let faults = Faults { freezes: 1, ..Faults::default() };
    Leases { processes: 2, timed: 1, ready: 1, faults, ..Leases::default() }
}

fn silence() -> Leases {
    let faults = Faults { silences: 1, ..Faults::default() };
    Leases { processes: 2, timed: 1, ready: 1, faults, ..Leases::default() }
}

fn losses() -> Leases {
    let faults = Faults { losses: 2, ..Faults::default() };
    Leases { processes: 2, ready: 2, faults, ..Leases::default() }
}

fn born_leased() -> Leases {
    let faults = Faults { losses: 1, crashes: 1, ..Faults::default() };
    Leases { processes: 2, born_leased: 1, faults, ..Leases::default() }
}

fn deploys() -> Leases {
    let faults = Faults { shutdowns: 2, ..Faults::default() };
    Leases { processes: 2, ready: 1, born_leased: 1, faults, ..Leases::default() }
}

fn cancels() -> Leases {
    let faults = Faults { cancels: 1, losses: 1, crashes: 1, ..Faults::default() };
    Leases { processes: 1, ready: 2, faults, ..Leases::default() }
}

fn all_hold(name: &str, model: Leases) {
    check(name, model.clone());
    let stuck = stuck(name, &model, Action::is_fault, Leases::is_done);
    assert_eq!(stuck, None, "{name}: from here on some job can never end");
}

#[test]
fn crashes_lose_nothing_and_are_counted() {
    all_hold("crashes", crashes());
}

#[test]
fn a_process_that_was_frozen_changes_nothing() {
    all_hold("zombies", zombies());
}

#[test]
fn a_node_that_is_not_heard_stops_its_jobs_before_they_are_given_away() {
    all_hold("silence", silence());
}

#[test]
fn lost_answers_and_late_writes_change_nothing() {
    all_hold("losses", losses());
}

#[test]
fn a_job_born_leased_ends_once() {
    all_hold("born leased", born_leased());
}

#[test]
fn a_deploy_costs_nothing() {
    all_hold("deploys", deploys());
}

#[test]
fn a_cancel_and_a_finish_meet_on_one_row() {
    all_hold("cancels", cancels());
}

/// A sabotaged model violates the property; the shortest way there has so many steps.
fn caught(model: Leases, sabotage: Sabotage, property: &'static str) {
    find(&format!("{sabotage:?}"), Leases { sabotage: Some(sabotage), ..model }, property);
}

#[test]
fn each_sabotage_of_safety_is_found() {
    caught(zombies(), Sabotage::FencingOff, "a job ends at most once");
    caught(zombies(), Sabotage::FinishByJobAlone, "no stale fence is accepted");
    caught(crashes(), Sabotage::RecoveryNotCounted, "a job kills at most its maximum number of nodes");
    caught(silence(), Sabotage::ReaperTrustsTheNodesClock, "jobs are stopped before they are given away");
    caught(losses(), Sabotage::PartialFinishDropsTheRest, "every stored job is in one place");
    caught(deploys(), Sabotage::ReleaseCountsAnAttempt, "a release charges no attempt");
    caught(cancels(), Sabotage::CancelNotOnTheLease, "nothing succeeds after its cancel");
    caught(silence(), Sabotage::StopsOnlyAfterAFailedBeat, "jobs are stopped before they are given away");
    caught(zombies(), Sabotage::RenewedWhenAnswered, "jobs are stopped before they are given away");
    caught(silence(), Sabotage::StartsWhateverItClaimed, "no attempt of a former node continues without being stopped");
    caught(deploys(), Sabotage::LeavesDuringAClaim, "without a lost node no attempt is charged");
}

#[test]
fn each_sabotage_of_liveness_is_found() {
    for (name, model) in [("claim", losses()), ("submit", born_leased())] {
        let model = Leases { sabotage: Some(Sabotage::ForgetsUnknownWrites), ..model };
        let way = stuck(&format!("ForgetsUnknownWrites ({name})"), &model, Action::is_fault, Leases::is_done);
        assert!(way.is_some(), "a lease that nobody knows of is never ended");
    }
    let model = Leases { sabotage: Some(Sabotage::OrphansNotLookedFor), ..crashes() };
    let way = stuck("OrphansNotLookedFor", &model, Action::is_fault, Leases::is_done);
    assert!(way.is_some(), "a lease of a node that is gone is never ended");
}
