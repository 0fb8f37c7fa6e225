//! Submitting, looking at and steering jobs from the command line, on a SQLite file.

use crate::common::Windlass;
use serde_json::json;

#[test]
fn a_submitted_job_is_listed_shown_and_explained() {
    let windlass = Windlass::new();
    let args = ["email.send", r#"{"to":"ann"}"#, "--tag", "mail", "--priority", "high", "--correlation-id", "req-1"];
    let id = windlass.submit(&args);

    let listed = windlass.json(&["list", "--tag", "mail", "--status", "pending", "--correlation-id", "req-1"]);
    assert_eq!(listed["jobs"][0]["id"], id.as_str());
    assert_eq!(listed["jobs"][0]["priority"], 10);
    assert_eq!(listed["next_before"], json!(null));

    let shown = windlass.json(&["show", &id, "--input", "--history"]);
    assert_eq!(shown["input"], json!({ "to": "ann" }));
    assert_eq!(shown["job"]["status"], "pending");
    assert_eq!(shown["job"]["spec"]["user"], "tester@here");
    assert_eq!(shown["history"][0]["status"], "pending");
    assert_eq!(shown["why"]["reason"], "no_node_has_handler");

    let why = windlass.run(&["why", &id]);
    assert_eq!((why.code, why.stdout.trim()), (0, "no live node has the handler `email.send`"));

    let audit = windlass.json(&["audit", "--action", "JOB_SUBMITTED"]);
    assert_eq!(audit["entries"][0]["target"], id.as_str());
    assert_eq!(audit["entries"][0]["actor"], "tester@here");
}

#[test]
fn submit_prints_the_id_alone_and_warns_on_stderr() {
    let windlass = Windlass::new();
    let ran = windlass.run(&["submit", "email.send"]);
    assert_eq!(ran.code, 0);
    assert!(ran.stdout.trim().parse::<u64>().is_ok(), "{ran:?}");
    assert!(ran.stderr.contains("no live node has the handler `email.send`"), "{ran:?}");
    let quiet = windlass.run(&["submit", "email.send", "--quiet"]);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn input_comes_from_the_line_a_file_or_stdin() {
    let windlass = Windlass::new();
    let file = windlass.path().join("input.json");
    std::fs::write(&file, "[1, 2]\n").expect("the file can be written");
    let given = windlass.submit(&["numbers.add", "-5"]);
    let from_file = windlass.submit(&["numbers.add", &format!("@{}", file.display())]);
    let from_stdin = windlass.run_with_input(&["submit", "numbers.add", "-", "--quiet"], r#"{"n": 3}"#).stdout;
    for (id, input) in [(given, json!(-5)), (from_file, json!([1, 2])), (from_stdin, json!({ "n": 3 }))] {
        assert_eq!(windlass.json(&["show", id.trim(), "--input"])["input"], input);
    }
}

/// SUB-13: a batch from the command line, which may be repeated.
#[test]
fn many_jobs_are_submitted_at_once_and_again() {
    let windlass = Windlass::new();
    let args = ["submit", "email.send", r#"[{"to":"ann"},{"to":"bob"}]"#, "--many", "--key", "night", "--quiet"];
    let first = windlass.run(&args);
    assert_eq!(first.code, 0, "{first:?}");
    let ids: Vec<&str> = first.stdout.lines().collect();
    assert_eq!(ids.len(), 2, "{first:?}");
    assert_eq!(windlass.json(&["show", ids[1], "--input"])["input"], json!({ "to": "bob" }));
    let again = windlass.run(&args);
    assert_eq!(again.stdout, first.stdout);
    let again = windlass.json(&args[..6]);
    assert_eq!(again["jobs"][0], json!({ "id": ids[0], "duplicate": true }));
    let one = windlass.run(&["submit", "email.send", "7", "--many"]);
    assert_eq!(one.code, 2, "{one:?}");
    assert!(one.stderr.contains("JSON array"), "{one:?}");
}

#[test]
fn a_second_submit_with_a_key_returns_the_first_job() {
    let windlass = Windlass::new();
    let first = windlass.submit(&["invoice.send", "--key", "invoice-7"]);
    let second = windlass.json(&["submit", "invoice.send", "--key", "invoice-7"]);
    assert_eq!(second, json!({ "id": first, "duplicate": true }));
    assert_eq!(windlass.json(&["stats"])["pending"], 1);
    assert_eq!(windlass.json(&["audit"])["entries"].as_array().map(Vec::len), Some(1), "nothing happened twice");
}

#[test]
fn a_job_with_a_delay_waits_for_it() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["reminder.send", "--delay", "1h30m"]);
    let at = windlass.submit(&["reminder.send", "--at", "2030-01-01T00:00:00Z"]);
    assert_eq!(windlass.json(&["show", &id])["why"]["reason"], "not_due");
    assert_eq!(windlass.json(&["show", &at])["why"]["at"], "2030-01-01T00:00:00Z");
    assert_eq!(windlass.json(&["list", "--status", "scheduled"])["jobs"].as_array().map(Vec::len), Some(2));
}

#[test]
fn jobs_of_one_ordering_key_wait_for_each_other() {
    let windlass = Windlass::new();
    let first = windlass.submit(&["order.ship", "--ordering-key", "customer-1"]);
    let second = windlass.submit(&["order.ship", "--ordering-key", "customer-1"]);
    let why = windlass.json(&["why", &second]);
    assert_eq!((&why["reason"], &why["by"]), (&json!("ordering_key_held"), &json!(first)));
    windlass.json(&["cancel", &first]);
    assert_eq!(windlass.json(&["show", &second])["job"]["status"], "pending");
}

#[test]
fn a_canceled_job_says_who_and_why_and_twice_is_the_same_as_once() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["email.send"]);
    let canceled = windlass.json(&["cancel", &id, "--reason", "sent twice"]);
    assert_eq!(canceled["results"], json!([{ "id": id, "result": "canceled" }]));
    let shown = windlass.json(&["show", &id]);
    assert_eq!((&shown["job"]["status"], &shown["job"]["reason"]), (&json!("canceled"), &json!("sent twice")));
    windlass.json(&["cancel", &id]);
    assert_eq!(windlass.json(&["audit", "--action", "job_canceled"])["entries"].as_array().map(Vec::len), Some(1));
}

#[test]
fn one_bad_id_does_not_keep_the_others_from_being_canceled() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["email.send"]);
    let ran = windlass.run(&["cancel", "12345", &id]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("could not cancel 1 of 2 jobs"), "{ran:?}");
    assert_eq!(windlass.json(&["show", &id])["job"]["status"], "canceled");
}

#[test]
fn pages_follow_each_other_without_gap_or_overlap() {
    let windlass = Windlass::new();
    let mut ids: Vec<String> = (0..5).map(|_| windlass.submit(&["email.send"])).collect();
    ids.reverse();
    let mut seen: Vec<String> = Vec::new();
    let mut before: Option<String> = None;
    loop {
        let mut args = vec!["list", "--limit", "2"];
        args.extend(before.iter().flat_map(|id| ["--before", id.as_str()]));
        let page = windlass.json(&args);
        seen.extend(
            page["jobs"].as_array().expect("jobs").iter().map(|job| job["id"].as_str().expect("id").to_owned()),
        );
        match page["next_before"].as_str() {
            Some(next) => before = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    let skipped = windlass.json(&["list", "--offset", "4"]);
    assert_eq!(skipped["jobs"][0]["id"], ids[4].as_str());
}

#[test]
fn a_list_can_be_limited_to_a_time() {
    let windlass = Windlass::new();
    windlass.submit(&["email.send"]);
    let found = |args: &[&str]| windlass.json(args)["jobs"].as_array().map(Vec::len);
    assert_eq!(found(&["list", "--created-after", "1h"]), Some(1));
    assert_eq!(found(&["list", "--created-before", "1h"]), Some(0));
    assert_eq!(found(&["list", "--created-after", "2100-01-01T00:00:00Z"]), Some(0));
}

#[test]
fn tenants_do_not_see_each_other_but_operators_see_all() {
    let windlass = Windlass::new();
    let tenant = "0190b3a2-7c1e-7000-8000-000000000001";
    let id = windlass.submit(&["email.send", "--tenant", tenant]);
    windlass.fails(&["show", &id], 3, "job_not_found");
    windlass.fails(&["cancel", &id], 3, "job_not_found");
    assert_eq!(windlass.json(&["show", &id, "--tenant", tenant])["job"]["tenant"], tenant);
    assert_eq!(windlass.json(&["list", "--all-tenants"])["jobs"][0]["id"], id.as_str());
    windlass.json(&["cancel", &id, "--all-tenants"]);
    assert_eq!(windlass.json(&["stats", "--tenant", tenant])["canceled"], 1);
    assert_eq!(windlass.json(&["stats"])["canceled"], 0);
}

#[test]
fn a_pause_holds_jobs_until_it_is_resumed() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["email.send"]);
    windlass.json(&["pause", "handler", "email.send", "--reason", "mail server is down"]);
    let why = windlass.run(&["why", &id]).stdout;
    assert!(
        why.contains("handler:email.send is paused by tester@here") && why.contains("mail server is down"),
        "{why}"
    );
    let pauses = windlass.json(&["pauses"]);
    assert_eq!(pauses["pauses"][0]["by"], "tester@here");
    let resumed = windlass.json(&["resume", "handler", "email.send"]);
    assert_eq!(resumed, json!({ "target": "handler:email.send", "resumed": true }));
    assert_eq!(windlass.json(&["pauses"])["pauses"], json!([]));
    windlass.fails(&["resume", "handler", "email.send"], 3, "not_found");
    for target in [&["all"][..], &["tenant", "0190b3a2-7c1e-7000-8000-000000000001"]] {
        windlass.json(&[&["pause"], target].concat());
        windlass.json(&[&["resume"], target].concat());
    }
}

#[test]
fn tables_are_for_people_and_hold_one_line_per_job_in_a_pipe() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["email.send"]);
    let ran = windlass.run(&["list"]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{ran:?}");
    assert!(lines[0].starts_with("ID") && lines[0].contains("HANDLER") && lines[1].starts_with(&id), "{ran:?}");
    assert!(!ran.stdout.contains('\u{1b}'), "no colours in a pipe: {ran:?}");
    let stats = windlass.run(&["stats"]).stdout;
    assert!(stats.lines().any(|line| line.split_whitespace().eq(["pending", "1"])), "{stats}");
}

#[test]
fn text_from_outside_cannot_steer_the_terminal() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["email.send", "--tag", "a\u{1b}[2Jb"]);
    let shown = windlass.run(&["show", &id]).stdout;
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}

/// API-4: whoever may look at every tenant's jobs hears whose it is; nobody else hears that it exists.
#[test]
fn a_job_of_another_tenant_is_not_found_with_a_hint() {
    let windlass = Windlass::new();
    let tenant = "0190b3a2-7c1e-7000-8000-000000000001";
    let id = windlass.submit(&["email.send", "--tenant", tenant]);
    for verb in ["show", "why", "cancel", "watch", "logs", "retry", "run-now"] {
        let error = windlass.fails(&[verb, &id], 3, "job_not_found");
        let said = error["message"].as_str().expect("a message");
        assert!(said.contains("--all-tenants") && said.contains(&format!("--tenant {tenant}")), "{verb}: {said}");
    }
    let nowhere = windlass.fails(&["show", "12345"], 3, "job_not_found").to_string();
    assert!(!nowhere.contains("--all-tenants"), "{nowhere}");
    assert_eq!(windlass.json(&["show", &id, "--all-tenants"])["job"]["status"], "pending");

    let (all, own) = (windlass.key(&["--rights", "read", "--all-tenants"]), windlass.key(&["--rights", "read"]));
    let served = windlass.serve(&[]);
    let hinted = Windlass::through(&served, &all).fails(&["show", &id], 3, "job_not_found").to_string();
    assert!(hinted.contains("--all-tenants"), "{hinted}");
    let silent = Windlass::through(&served, &own).fails(&["show", &id], 3, "job_not_found").to_string();
    assert!(!silent.contains("tenant"), "{silent}");
}

/// BEY-1: of a dead letter, `why` says what made it one, what went wrong last and what to do next.
#[test]
fn why_of_a_dead_letter_says_what_went_wrong_and_what_to_do() {
    let windlass = Windlass::with_demo_jobs();
    let id = windlass.any("dead_lettered");
    let why = windlass.run(&["why", &id, "--all-tenants"]).stdout;
    let lines: Vec<&str> = why.lines().collect();
    assert!(lines[0].contains("dead letter since") && lines[0].contains("max_retries, after 3 attempts"), "{why}");
    assert!(lines[1].starts_with("last error: upstream: ") && lines[1].contains("answered 503"), "{why}");
    assert!(lines[2].contains(&format!("`windlass --all-tenants dead replay {id}`")), "{why}");
    let json = windlass.json(&["why", &id, "--all-tenants"]);
    assert_eq!(json["error"]["code"], "upstream", "{json}");
    assert_eq!(json["next"], format!("windlass --all-tenants dead replay {id}"));
    windlass.json(&["dead", "replay", &id, "--as-new", "--all-tenants"]);
    let after = windlass.run(&["why", &id, "--all-tenants"]).stdout;
    assert!(after.contains("replayed as") && !after.contains("retry it with"), "{after}");
}

/// OPS-4: a misspelt handler is not paused in silence, while what was meant runs on.
#[test]
fn a_handler_that_nobody_knows_is_paused_only_by_force() {
    let windlass = Windlass::new();
    windlass.submit(&["email.send"]);
    let unknown = windlass.fails(&["pause", "handler", "email.sned"], 3, "handler_not_found");
    assert!(unknown["message"].as_str().is_some_and(|said| said.contains("email.sned")), "{unknown}");
    assert!(windlass.run(&["pause", "handler", "email.sned"]).stderr.contains("--force"));
    // The operator's check looks at every tenant's jobs, whichever the command is run for.
    let other = "00000000-0000-0000-0000-0000000000ab";
    windlass.submit(&["of.another", "--tenant", other]);
    windlass.json(&["pause", "handler", "of.another"]);
    windlass.json(&["resume", "handler", "of.another"]);
    assert_eq!(windlass.json(&["pauses"])["pauses"], json!([]));
    windlass.json(&["pause", "handler", "email.send"]);
    windlass.json(&["pause", "handler", "of.tomorrow", "--force"]);
    assert_eq!(windlass.json(&["pauses"])["pauses"].as_array().map(Vec::len), Some(2));
}

/// RUN-15: an attempt without a timeout takes as long as it likes, whichever way that is said. While `up` has the file, what
/// is submitted goes over HTTP, as `timeout_ms: 0`.
#[test]
fn a_job_may_have_no_timeout() {
    let windlass = Windlass::new();
    let mut up = windlass.up(&[]);
    up.wait_for("a success", |counts| counts("succeeded") > 0);
    let report =
        ["submit", "demo.report", r#"{"month":"May","pages":2}"#, "--wait", "--wait-timeout", "60s", "--timeout"];
    let timed = |timeout: &'static str| [&report[..], &[timeout]].concat();
    let late = windlass.run(&[&timed("1ms")[..], &["--json"]].concat());
    assert!(late.code != 0 && late.stdout.contains("timeout"), "{late:?}");
    for none in ["none", "0", "0s"] {
        assert_eq!(windlass.json(&timed(none))["status"], "succeeded", "{none}");
    }
    assert_eq!(up.stop("INT").code, 0);
}
