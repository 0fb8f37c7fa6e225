//! Dead letters from the command line: what the demo's failing handler leaves behind is listed, shown, replayed, purged.

use crate::common::Windlass;
use serde_json::json;

#[test]
fn a_dead_letter_is_listed_and_shown_with_its_errors() {
    let windlass = Windlass::with_demo_jobs();
    let listed =
        windlass.json(&["dead", "list", "--all-tenants", "--handler", "demo.flaky", "--reason", "max_retries"]);
    let letter = &listed["jobs"][0];
    assert_eq!((&letter["status"], &letter["attempt"]), (&json!("dead_lettered"), &json!(3)));
    let shown = windlass.json(&["dead", "show", letter["id"].as_str().expect("an id"), "--all-tenants"]);
    assert_eq!(shown["input"]["failures"], 3);
    let history = shown["history"].as_array().expect("a history");
    let failures = history.iter().filter(|entry| entry["error"]["code"] == "upstream").count();
    assert_eq!(failures, 3, "one for each attempt: {shown}");
    assert_eq!(windlass.json(&["dead", "list", "--all-tenants", "--replayed"])["jobs"], json!([]));
}

#[test]
fn a_replayed_letter_waits_again() {
    let windlass = Windlass::with_demo_jobs();
    let id = windlass.any("dead_lettered");
    let replayed = windlass.json(&["dead", "replay", &id, "--all-tenants"]);
    assert_eq!(replayed["results"], json!([{ "id": id, "result": "replayed" }]));
    let shown = windlass.json(&["show", &id, "--all-tenants"]);
    assert_eq!((&shown["job"]["status"], &shown["job"]["failed"]), (&json!("pending"), &json!(0)));
    let audit = windlass.json(&["audit", "--all-tenants", "--action", "JOB_REPLAYED"]);
    assert_eq!((&audit["entries"][0]["target"], &audit["entries"][0]["actor"]), (&json!(id), &json!("tester@here")));
}

#[test]
fn a_letter_replayed_as_a_new_job_is_marked_and_left_out_of_the_next_replay() {
    let windlass = Windlass::with_demo_jobs();
    let id = windlass.any("dead_lettered");
    let ran = windlass.run(&["dead", "replay", &id, "--as-new", "--all-tenants"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let new = ran.stdout.trim().rsplit(' ').next().expect("the new id").to_owned();
    // ERR-9: it happens once.
    let second = windlass.run(&["dead", "replay", &id, "--as-new", "--all-tenants"]);
    assert_eq!((second.code, second.stdout.trim().rsplit(' ').next()), (0, Some(new.as_str())), "{second:?}");
    let letter = windlass.json(&["show", &id, "--all-tenants"]);
    assert_eq!(letter["job"]["replayed"]["as_job"], new.as_str());
    let job = windlass.json(&["show", &new, "--all-tenants", "--input"]);
    assert_eq!((&job["job"]["spec"]["parent"], &job["input"]["failures"]), (&json!(id), &json!(3)));
    let again = windlass.json(&["dead", "list", "--all-tenants", "--replayed", "false"]);
    assert!(again["jobs"].as_array().expect("jobs").iter().all(|job| job["id"] != id.as_str()), "{again}");
}

#[test]
fn a_replay_by_filter_says_how_many_and_wants_a_yes() {
    let windlass = Windlass::with_demo_jobs();
    let all = ["dead", "replay", "--all", "--handler", "demo.flaky", "--all-tenants"];
    let error = windlass.fails(&all, 2, "usage");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("dead letter") && message.contains("of demo.flaky"), "{message}");
    assert!(message.contains("--yes"), "{message}");
    let letters = || {
        let letters =
            windlass.json(&["dead", "list", "--handler", "demo.flaky", "--replayed", "false", "--all-tenants"]);
        letters["jobs"].as_array().expect("jobs").len()
    };
    let before = letters();
    assert!(before > 0, "nothing was replayed without a yes");

    let replayed = windlass.json(&[&all[..], &["--yes", "--rate", "100/s", "--stop-when-failing", "0.5"]].concat());
    assert_eq!((&replayed["done"], &replayed["state"]), (&json!(before), &json!("finished")));
    assert_eq!(letters(), 0);
    assert_eq!(windlass.json(&[&all[..], &["--yes"]].concat())["done"], 0);
}

#[test]
fn a_purged_letter_is_gone() {
    let windlass = Windlass::with_demo_jobs();
    let id = windlass.any("dead_lettered");
    assert_eq!(windlass.json(&["dead", "purge", &id, "--all-tenants"])["results"][0]["result"], "purged");
    windlass.fails(&["show", &id, "--all-tenants"], 3, "job_not_found");
}

#[test]
fn what_is_not_a_dead_letter_is_a_conflict() {
    let windlass = Windlass::with_demo_jobs();
    let succeeded = windlass.any("succeeded");
    windlass.fails(&["dead", "replay", &succeeded, "--all-tenants"], 4, "conflict");
    windlass.fails(&["dead", "replay", &succeeded, "--as-new", "--all-tenants"], 4, "conflict");
    windlass.fails(&["dead", "show", &succeeded, "--all-tenants"], 4, "conflict");
    windlass.fails(&["cancel", &succeeded, "--all-tenants"], 4, "already_finished");
    let waiting = windlass.submit(&["email.send"]);
    windlass.fails(&["dead", "purge", &waiting], 4, "conflict");
}
