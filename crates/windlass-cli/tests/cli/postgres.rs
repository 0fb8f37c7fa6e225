//! The same commands on PostgreSQL, where they may also write beside a process that runs jobs.

use windlass_testkit::servers::{PostgresOptions, PostgresServer};

use crate::common::{Windlass, bare, failed, finish};

#[test]
fn commands_steer_a_running_process_through_the_server() {
    let server = PostgresServer::start(PostgresOptions::new()).expect("a throwaway server");
    server.create_database("cli").expect("a database");
    let windlass = Windlass::on(server.url("cli"));

    // Looking makes nothing, also not a schema.
    let error = windlass.fails(&["list"], 4, "refused");
    assert!(error["message"].as_str().is_some_and(|said| said.contains("windlass migrate")), "{error}");
    assert_eq!(windlass.run(&["doctor"]).code, 1);
    let migrated = windlass.json(&["migrate"]);
    assert!(migrated["from"] == 0 && migrated["to"].as_i64() > Some(0), "{migrated}");
    assert_eq!(windlass.json(&["migrate"])["from"], migrated["to"]);

    let mut up = windlass.up(&[]);
    up.wait_for("a success", |counts| counts("succeeded") > 0);
    let picture = r#"{"picture":"cat","width":320}"#;
    let done = windlass.run(&["submit", "demo.thumbnail", picture, "--wait", "--quiet"]);
    assert_eq!((done.code, done.stdout.trim()), (0, r#""cat-320.webp""#), "{done:?}");
    let hopeless = r#"{"service":"mail","failures":9}"#;
    let error = windlass.fails(&["submit", "demo.flaky", hopeless, "--wait", "--quiet"], 1, "handler_error");
    assert!(error["message"].as_str().is_some_and(|said| said.contains("mail answered 503")), "{error}");
    let letters = windlass.json(&["dead", "list"]);
    let letter = letters["jobs"][0]["id"].as_str().expect("a dead letter").to_owned();
    windlass.json(&["dead", "replay", &letter]);
    windlass.json(&["pause", "handler", "demo.report", "--reason", "enough"]);
    // Every node hears of a pause within a second; until then a job may still start.
    let held = (0..50).find_map(|_| {
        let report = windlass.submit(&["demo.report", r#"{"month":"May","pages":2}"#]);
        let paused = windlass.json(&["why", &report])["reason"] == "paused";
        windlass.json(&["cancel", &report]);
        paused.then_some(report)
    });
    let held = held.expect("the pause takes hold");
    assert_eq!(windlass.json(&["show", &held])["job"]["status"], "canceled");
    windlass.json(&["resume", "handler", "demo.report"]);
    let health = windlass.json(&["doctor"]);
    assert_eq!(health["ok"], true, "{health}");
    assert_eq!(
        windlass.json(&["nodes"])["nodes"].as_array().map(Vec::len),
        Some(1),
        "commands leave when they are done"
    );
    assert_eq!(up.stop("TERM").code, 0);
}

#[test]
fn a_url_that_cannot_be_read_is_wrong_input() {
    let ran = finish(bare(&["list", "--json", "--db", "postgres://ann:hunter2@localhost:port/app"]));
    assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    assert_eq!(failed(ran, 2, "invalid_input")["field"], "db");
}
