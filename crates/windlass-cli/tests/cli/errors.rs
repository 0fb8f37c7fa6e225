//! Every exit code, and what is said with it: the field that is wrong, what would be right, and never a password.

use crate::common::{Windlass, bare, failed, finish};

#[test]
fn wrong_input_is_refused_by_name_before_anything_is_made() {
    let windlass = Windlass::missing();
    let wrong: [(&[&str], &str); 15] = [
        (&["list", "--tenant", "acme"], "tenant"),
        (&["list", "--status", "paused-ish"], "status"),
        (&["list", "--limit", "0"], "limit"),
        (&["list", "--limit", "201"], "limit"),
        (&["list", "--created-after", "yesterday"], "created_after"),
        (&["submit", "email.send", "--delay", "-5s"], "delay"),
        (&["submit", "email.send", "--delay", "soon"], "delay"),
        (&["submit", "email.send", "--at", "tomorrow"], "at"),
        (&["submit", "email.send", "--priority", "urgent"], "priority"),
        (&["submit", "email.send", "not json"], "input"),
        (&["submit", "email.send", "@nowhere.json"], "input"),
        (&["submit", "email.send", "--all-tenants"], "all_tenants"),
        (&["show", "abc"], "id"),
        (&["pause", "tenant", "acme"], "tenant"),
        (&["dead", "replay", "--all", "--rate", "fast"], "rate"),
    ];
    for (args, field) in wrong {
        let error = windlass.fails(args, 2, "invalid_input");
        assert_eq!(error["field"], field, "{args:?}: {error}");
        assert!(!windlass.database().exists(), "{args:?} made a file");
    }
    // Checked by the service, once it is there.
    windlass.json(&["migrate"]);
    for (args, field) in [(["submit", "", "null"], "handler"), (["submit", "x", "--key="], "idempotency_key")] {
        assert_eq!(windlass.fails(&args, 2, "invalid_input")["field"], field);
    }
    for (args, field) in [
        (["submit", "windlass.webhook", "{}"], "handler"),
        (["submit", "x", "--key=windlass.webhook:1:2"], "idempotency_key"),
        (["submit", "x", "--ordering-key=windlass.x"], "ordering_key"),
    ] {
        assert_eq!(windlass.fails(&args, 2, "invalid_input")["field"], field, "{args:?}");
    }
}

#[test]
fn people_get_the_same_in_words() {
    let windlass = Windlass::new();
    let ran = windlass.run(&["submit", "email.send", "--delay", "-5s"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("--delay") && ran.stderr.contains("negative"), "{ran:?}");
    assert_eq!(ran.stdout, "");
    let ran = windlass.run(&["list", "--tenant", "acme"]);
    assert!(ran.stderr.contains("--tenant") && ran.stderr.contains("`acme` is not a UUID"), "{ran:?}");
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    let windlass = Windlass::new();
    windlass.fails(&["lst"], 2, "usage");
    windlass.fails(&["show"], 2, "usage");
    windlass.fails(&["list", "--before"], 2, "invalid_input");
}

#[test]
fn an_unknown_job_is_not_found() {
    let windlass = Windlass::new();
    windlass.submit(&["email.send"]);
    for args in [&["show", "12345"][..], &["why", "12345"], &["cancel", "12345"], &["dead", "replay", "12345"]] {
        let error = windlass.fails(args, 3, "job_not_found");
        assert!(error["message"].as_str().is_some_and(|said| said.contains("12345")), "{error}");
    }
}

#[test]
fn a_missing_database_is_not_found_and_not_made() {
    let windlass = Windlass::missing();
    let readers: [&[&str]; 11] = [
        &["list"],
        &["stats"],
        &["nodes"],
        &["pauses"],
        &["audit"],
        &["show", "1"],
        &["dead", "list"],
        &["cancel", "1"],
        &["submit", "email.send"],
        &["api-key", "create", "ci", "--rights", "submit"],
        &["serve", "--listen", "127.0.0.1:0"],
    ];
    for args in readers {
        let error = windlass.fails(args, 3, "not_found");
        assert!(error["message"].as_str().is_some_and(|said| said.contains("windlass migrate")), "{error}");
        assert!(!windlass.database().exists(), "{args:?} made a file");
    }
}

#[test]
fn a_server_that_is_not_there_is_unavailable_and_its_password_stays_secret() {
    // A port that was free a moment ago: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let url = format!("postgres://ann:hunter2@127.0.0.1:{port}/app");
    for args in [&["list"][..], &["submit", "email.send"]] {
        let ran = finish(bare(&[args, &["--json", "--db", &url]].concat()));
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
        failed(ran, 6, "unavailable");
    }
}

#[test]
fn a_wait_that_is_too_short_times_out_and_the_job_stays() {
    let windlass = Windlass::new();
    let args = ["submit", "email.send", "--wait", "--wait-timeout", "50ms"];
    let error = windlass.fails(&args, 6, "job_timeout");
    assert!(error["message"].as_str().is_some_and(|said| said.contains("did not finish in time")), "{error}");
    assert_eq!(windlass.json(&["stats"])["pending"], 1);
}

#[test]
fn an_unknown_kind_of_database_is_named_without_its_password() {
    for url in ["mysql://root:hunter2@localhost/app", "jobs.db", "sqlite:"] {
        let ran = finish(bare(&["list", "--json", "--db", url]));
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
        assert_eq!(failed(ran, 2, "invalid_input")["field"], "db");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let windlass = Windlass::new();
    windlass.submit(&["email.send"]);
    let mut command = windlass.command(&["completions", "bash"]);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_file_that_is_no_database_fails_clearly() {
    let windlass = Windlass::new();
    std::fs::write(windlass.database(), "this is not a database, but it is long enough to be looked at")
        .expect("writes");
    let ran = windlass.run(&["list"]);
    assert_ne!(ran.code, 0);
    assert!(ran.stderr.contains("error:"), "{ran:?}");
}

/// OPS-8: a webhook that no deliverer would tell is refused while it can be corrected, and nothing is kept.
#[test]
fn a_webhook_that_cannot_be_told_is_refused_at_once() {
    let windlass = Windlass::with_demo_jobs();
    for url in ["http://example.org/hook", "https://127.0.0.1/hook", "https://10.0.0.1/hook"] {
        let refused = windlass.fails(&["webhook", "add", url], 2, "invalid_input");
        assert!(refused.to_string().contains("https and a public address"), "{refused}");
    }
    assert_eq!(windlass.json(&["webhook", "list"])["webhooks"], serde_json::json!([]));
}
