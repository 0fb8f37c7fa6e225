//! One verb for one job, for several and for all that pass a filter (BEY-6), and what can be changed of a waiting job
//! (BEY-5), from the command line.

use crate::common::Windlass;
use serde_json::json;

#[test]
fn a_filter_is_counted_previewed_confirmed_and_then_acted_on() {
    let windlass = Windlass::new();
    for n in 0..3 {
        windlass.submit(&["email.send", &format!(r#"{{"user":{{"id":{n}}}}}"#), "--tag", "news"]);
    }
    let other = windlass.submit(&["report.build"]);
    let filter = ["cancel", "--filter", "handler:email.send tag:news"];
    let error = windlass.fails(&filter, 2, "usage");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("3 jobs of email.send") && message.contains("--yes"), "{message}");
    let preview = windlass.json(&[&filter[..], &["--dry-run"]].concat());
    assert_eq!((&preview["jobs"], &preview["more"]), (&json!(3), &json!(false)));
    assert_eq!(preview["sample"].as_array().map(Vec::len), Some(3));
    assert_eq!(windlass.json(&["stats"])["pending"], 4, "nothing was done so far");

    let one = windlass.json(&["cancel", "--filter", "input.user.id:1", "--yes"]);
    assert_eq!((&one["done"], &one["state"]), (&json!(1), &json!("finished")));
    let rest = windlass.json(&[&filter[..], &["--yes", "--limit", "1"]].concat());
    assert_eq!(rest["done"], 1, "never more than the limit");
    windlass.json(&[&filter[..], &["--yes"]].concat());
    assert_eq!(windlass.json(&["stats"])["canceled"], 3);
    assert_eq!(windlass.json(&["show", &other])["job"]["status"], "pending");
    assert_eq!(windlass.json(&[&filter[..], &["--yes"]].concat())["total"], 0, "none is left");
}

#[test]
fn ids_may_come_on_stdin() {
    let windlass = Windlass::new();
    let ids: Vec<String> = (0..3).map(|_| windlass.submit(&["email.send"])).collect();
    let ran = windlass.run_with_input(&["cancel", "-", "--json"], &ids.join("\n"));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(windlass.json(&["stats"])["canceled"], 3);
    let ran = windlass.run_with_input(&["cancel", "-", "--json"], "12 abc");
    assert_eq!(ran.code, 2, "{ran:?}");
    windlass.fails(&["cancel"], 2, "usage");
    windlass.fails(&["cancel", &ids[0], "--filter", "tag:x"], 2, "usage");
}

#[test]
fn a_wrong_filter_says_what_was_meant() {
    let windlass = Windlass::new();
    windlass.submit(&["email.send"]);
    for args in [&["list", "--filter", "hanlder:x"][..], &["cancel", "--filter", "hanlder:x", "--yes"]] {
        let error = windlass.fails(args, 2, "invalid_input");
        assert!(error["message"].as_str().is_some_and(|said| said.contains("handler:")), "{error}");
    }
    let found = windlass.json(&["list", "--filter", "handler:email.send status:pending created>1h"]);
    assert_eq!(found["jobs"].as_array().map(Vec::len), Some(1));
    assert_eq!(windlass.json(&["list", "--filter", "handler:email.send", "--handler", "x"])["jobs"], json!([]));
    // A filter may begin with a minus, which is no option.
    let found = windlass.json(&["list", "--filter", "-status:succeeded handler:email.* attempt<1"]);
    assert_eq!(found["jobs"].as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!(windlass.json(&["list", "--filter", "-handler:email.*"])["jobs"], json!([]));
}

#[test]
fn a_waiting_job_is_edited_rescheduled_started_and_cloned() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["email.send", r#"{"to":"ann"}"#, "--delay", "1h"]);
    let edited = windlass.json(&["edit", &id, "--input", r#"{"to":"bob"}"#, "--priority", "high"]);
    assert_eq!((&edited["edited"], &edited["job"]["priority"]), (&json!(true), &json!(10)));
    assert_eq!(windlass.json(&["show", &id, "--input"])["input"], json!({ "to": "bob" }));
    windlass.json(&["reschedule", &id, "--at", "2030-01-01T00:00:00Z"]);
    assert_eq!(windlass.json(&["why", &id])["at"], "2030-01-01T00:00:00Z");
    assert_eq!(windlass.json(&["run-now", &id])["results"][0]["result"], "started");
    assert_eq!(windlass.json(&["show", &id])["job"]["status"], "pending");
    assert_eq!(windlass.json(&["priority", "low", &id])["results"][0]["result"], "changed");
    let clone = windlass.json(&["clone", &id, r#"{"to":"eve"}"#]);
    assert_eq!(clone["of"], id.as_str());
    let shown = windlass.json(&["show", clone["id"].as_str().expect("an id"), "--input"]);
    assert_eq!((&shown["job"]["spec"]["parent"], &shown["input"]["to"]), (&json!(id), &json!("eve")));

    windlass.json(&["cancel", &id]);
    for args in [&["edit", &id, "--priority", "1"][..], &["reschedule", &id, "--delay", "1h"], &["run-now", &id]] {
        windlass.fails(args, 4, "conflict");
    }
    windlass.fails(&["edit", &id], 2, "usage");
    windlass.fails(&["reschedule", &id], 2, "usage");
    windlass.fails(&["edit", &id, "--input", "not json"], 2, "invalid_input");
}

#[test]
fn failures_are_grouped_and_a_group_is_tried_again_at_once() {
    let windlass = Windlass::with_demo_jobs();
    let groups = windlass.json(&["failures", "list", "--all-tenants"]);
    let group = &groups["groups"][0];
    assert_eq!((&group["handler"], &group["code"]), (&json!("demo.flaky"), &json!("upstream")));
    let signature = group["signature"].as_str().expect("a signature");
    let jobs = group["jobs"].as_u64().expect("a count");
    let retry = ["failures", "retry", signature, "--all-tenants"];
    windlass.fails(&retry, 2, "usage");
    let retried = windlass.json(&[&retry[..], &["--yes"]].concat());
    assert_eq!(retried["done"], jobs);
    let left = windlass.json(&["failures", "list", "--all-tenants", "--filter", &format!("signature:{signature}")]);
    assert_eq!(left["groups"], json!([]));
    let table = windlass.run(&["failures", "list", "--all-tenants"]);
    assert_eq!(table.code, 0, "{table:?}");
    windlass.fails(&["failures", "retry", "xyz"], 2, "invalid_input");
}

#[test]
fn a_dead_letter_is_retried_by_id_and_what_runs_well_is_a_conflict() {
    let windlass = Windlass::with_demo_jobs();
    let dead = windlass.any("dead_lettered");
    assert_eq!(windlass.json(&["retry", &dead, "--all-tenants"])["results"][0]["result"], "retried");
    assert_eq!(windlass.json(&["show", &dead, "--all-tenants"])["job"]["status"], "pending");
    windlass.fails(&["retry", &windlass.any("succeeded"), "--all-tenants"], 4, "conflict");
}

/// BEY-3: a signature that nothing has is not found, whatever was to be done.
#[test]
fn a_group_of_failures_that_is_not_there_is_not_found() {
    let windlass = Windlass::with_demo_jobs();
    for verb in ["retry", "cancel"] {
        windlass.fails(&["failures", verb, "00000000deadbeef", "--yes", "--all-tenants"], 3, "not_found");
        windlass.fails(&["failures", verb, "00000000deadbeef", "--dry-run", "--all-tenants"], 3, "not_found");
    }
    let groups = windlass.json(&["failures", "list", "--all-tenants"]);
    let known = groups["groups"][0]["signature"].as_str().expect("a group");
    assert_eq!(windlass.json(&["failures", "retry", known, "--yes", "--all-tenants"])["state"], "finished");
}

/// BEY-6: what is shown beforehand is what would be done.
#[test]
fn a_dry_run_shows_no_more_than_its_limit() {
    let windlass = Windlass::new();
    for _ in 0..5 {
        windlass.submit(&["email.send"]);
    }
    let args = ["cancel", "--filter", "handler:email.send", "--dry-run", "--limit", "3"];
    let preview = windlass.json(&args);
    assert_eq!((&preview["jobs"], &preview["more"]), (&json!(3), &json!(true)), "{preview}");
    assert_eq!(preview["sample"].as_array().map(Vec::len), Some(3), "{preview}");
    let shown = windlass.run(&args);
    assert_eq!(shown.stdout.matches("email.send").count(), 3, "{shown:?}");
}
