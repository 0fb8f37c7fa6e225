//! `windlass up` where there is no terminal: plain lines, counts that go on after a restart, and an orderly end.

use crate::common::{Windlass, count};

#[test]
fn jobs_succeed_and_counts_go_on_after_a_restart() {
    let windlass = Windlass::new();
    let first = windlass.run(&["up", "--for", "4", "--listen", "127.0.0.1:0"]);
    assert_eq!(first.code, 0, "{first:?}");
    let mut lines = first.stdout.lines();
    let database = format!("sqlite:{}", windlass.database().display());
    assert!(lines.next().is_some_and(|line| line.contains(&database)), "{first:?}");
    let lines: Vec<&str> = lines.collect();
    let succeeded: Vec<u64> = lines.iter().map(|line| count(line, "succeeded")).collect();
    assert!(succeeded.is_sorted() && succeeded.first() < succeeded.last(), "{succeeded:?}");
    assert!(lines[0].starts_with("pending=") && lines[0].ends_with("/s"), "{lines:?}");
    assert!(first.stderr.contains("stopped after"), "{first:?}");

    let between = windlass.json(&["stats", "--all-tenants"])["succeeded"].as_u64().expect("a count");
    assert!(between >= *succeeded.last().expect("lines"), "what ended while stopping counts too");
    let mut again = windlass.up(&[]);
    let line = again.wait_for("more successes", |counts| counts("succeeded") > between);
    assert!(count(&line, "succeeded") > between);
    assert_eq!(again.stop("INT").code, 0);
}

#[test]
fn a_long_job_goes_on_from_its_checkpoint_after_a_restart() {
    let windlass = Windlass::new();
    let report = ["list", "--all-tenants", "--handler", "demo.report"];
    let mut up = windlass.up(&[]);
    up.wait_for("three seconds of work", |counts| counts("succeeded") > 30);
    assert_eq!(up.stop("INT").code, 0);
    let stopped = windlass.json(&report);
    let job = &stopped["jobs"][0];
    assert_eq!(job["status"], "pending", "handed back, not failed: {job}");
    assert_eq!(job["failed"], 0, "stopping costs no attempt: {job}");
    let id = job["id"].as_str().expect("an id").to_owned();
    let percent = |job: &serde_json::Value| job["progress"]["percent"].as_f64().unwrap_or(0.0);

    let mut again = windlass.up(&["--no-color"]);
    again.wait_for("it runs again", |counts| counts("running") > 0);
    let shown = windlass.json(&["show", &id, "--all-tenants"]);
    assert!(percent(&shown["job"]) >= percent(job), "it does not start over: {shown}");
    assert_eq!(again.stop("TERM").code, 0);
}

#[test]
fn while_it_runs_other_commands_look_and_write_through_it() {
    let windlass = Windlass::new();
    let mut up = windlass.up(&[]);
    up.wait_for("a success", |counts| counts("succeeded") > 0);
    assert!(!windlass.json(&["list", "--all-tenants"])["jobs"].as_array().expect("jobs").is_empty());
    assert_eq!(windlass.json(&["nodes"])["nodes"][0]["info"]["capacity"], 16);
    assert_eq!(windlass.run(&["doctor"]).code, 0);
    // One process at a time writes to the file, so these go through the one that has it.
    let id = windlass.submit(&["demo.reminder", r#"{"note":"tea"}"#, "--delay", "1h"]);
    assert_eq!(windlass.json(&["cancel", &id])["results"][0]["result"], "canceled");
    assert_eq!(windlass.json(&["show", &id])["job"]["status"], "canceled");
    let waited = windlass.json(&["submit", "demo.reminder", r#"{"note":"tea"}"#, "--wait"]);
    assert_eq!((&waited["status"], &waited["output"]), (&"succeeded".into(), &"reminded of tea".into()));
    windlass.fails(&["up", "--for", "1", "--listen", "127.0.0.1:0"], 4, "refused");
    assert_eq!(up.stop("INT").code, 0);
    // What it left behind is not believed once it is gone.
    assert_eq!(windlass.json(&["show", &id])["job"]["status"], "canceled");
    windlass.submit(&["demo.reminder", r#"{"note":"more tea"}"#]);
}

#[test]
fn it_says_where_the_dashboard_is_and_the_link_works_once() {
    let windlass = Windlass::new();
    let mut up = windlass.up(&["--json"]);
    let said: serde_json::Value = serde_json::from_str(&up.line()).expect("an object");
    let link = said["login"].as_str().expect("a link");
    let path = link.strip_prefix(said["address"].as_str().expect("an address")).expect("a path of the same server");
    let host = said["address"].as_str().and_then(|url| url.strip_prefix("http://")).expect("a host");
    let get = |path: &str| crate::common::http_get(host, path);
    let first = get(path);
    assert!(first.starts_with("HTTP/1.1 303") && first.to_lowercase().contains("set-cookie"), "{first}");
    assert!(!get(path).starts_with("HTTP/1.1 303"), "it works once");
    assert!(get("/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(up.stop("INT").code, 0);
}

#[test]
fn a_reader_that_goes_away_ends_it_in_order() {
    let windlass = Windlass::new();
    let mut command = windlass.command(&["up", "--for", "60", "--listen", "127.0.0.1:0"]);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().expect("it starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    // Nothing is left behind as running.
    assert_eq!(windlass.json(&["stats", "--all-tenants"])["running"], 0);
    assert_eq!(windlass.json(&["nodes"])["nodes"], serde_json::json!([]));
}

#[test]
fn without_the_demo_it_only_keeps_the_store_in_order() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["email.send"]);
    let ran = windlass.run(&["up", "--no-demo", "--for", "1", "--json", "--listen", "127.0.0.1:0"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(windlass.json(&["show", &id])["job"]["status"], "pending");
}

#[test]
fn the_data_directory_is_made_where_it_is_wanted() {
    let windlass = Windlass::new();
    let directory = windlass.path().join("deep/down");
    let ran =
        windlass.run(&["up", "--for", "0", "--listen", "127.0.0.1:0", "--data", &directory.display().to_string()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(directory.join("windlass.db").exists());
}
