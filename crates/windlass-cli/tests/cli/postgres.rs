//! The same commands on PostgreSQL, where they may also write beside a process that runs jobs.

use windlass_testkit::servers::{PostgresOptions, PostgresServer};

use crate::common::{Windlass, bare, failed, finish};

#[test]
fn commands_steer_a_running_process_through_the_server() {
    let server = PostgresServer::start(PostgresOptions::new()).expect("a throwaway server");
    server.create_database("cli").expect("a database");
    let windlass = Windlass::on(server.url("cli"));

    // What is not there is unavailable: it may come. A password that is wrong stays wrong.
    let missing = Windlass::on(server.url("nowhere")).fails(&["list"], 6, "unavailable");
    assert!(missing["message"].as_str().is_some_and(|said| said.contains("nowhere")), "{missing}");
    let (scheme, rest) = server.url("cli").split_once("://").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a URL");
    let (_, host) = rest.split_once('@').expect("a user");
    let stranger = Windlass::on(format!("{scheme}://stranger@{host}")).fails(&["list"], 6, "unavailable");
    assert!(stranger["message"].as_str().is_some_and(|said| said.contains("stranger")), "{stranger}");

    // Looking makes nothing, also not a schema; submitting neither.
    windlass.fails(&["submit", "email.send"], 4, "refused");
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
    let mut findings: Vec<String> =
        health["checks"].as_array().expect("checks").iter().map(|f| f.to_string()).collect();
    let told = findings.len();
    findings.sort();
    findings.dedup();
    assert_eq!(findings.len(), told, "each finding once: {health}");
    let walls = health["checks"].as_array().expect("checks").iter().filter(|f| f["check"] == "walls").count();
    assert_eq!(walls, 1, "{health}");
    assert_eq!(
        windlass.json(&["nodes"])["nodes"].as_array().map(Vec::len),
        Some(1),
        "commands leave when they are done"
    );
    assert_eq!(up.stop("TERM").code, 0);
}

/// API-3: a database does not say who serves it, so another link of `up` needs what `up` says: its address and a key.
#[test]
fn a_login_link_of_up_on_a_server_needs_its_address_and_a_key() {
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("a throwaway server");
    server.create_database("login").expect("a database");
    let windlass = Windlass::on(server.url("login"));
    let mut up = windlass.up(&["--json", "--no-demo"]);
    let said: serde_json::Value = serde_json::from_str(&up.line()).expect("an object");
    let url = said["address"].as_str().expect("an address");
    let refused = windlass.fails(&["login"], 2, "usage");
    assert!(refused["message"].as_str().is_some_and(|said| said.contains("--url")), "{refused}");
    let key = windlass.key(&["--rights", "admin,payload", "--all-tenants"]);
    let mut login = bare(&["--url", url, "login"]);
    login.env("WINDLASS_API_KEY", key);
    let ran = finish(login);
    assert!(ran.code == 0 && ran.stdout.starts_with(&format!("{url}/login/")), "{ran:?}");
    assert_eq!(up.stop("INT").code, 0);
}

#[test]
fn a_url_that_cannot_be_read_is_wrong_input() {
    let ran = finish(bare(&["list", "--json", "--db", "postgres://ann:hunter2@localhost:port/app"]));
    assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    assert_eq!(failed(ran, 2, "invalid_input")["field"], "db");
}
