//! `windlass healthy`, as an image without a shell asks it of the server beside it (API-8).

use serde_json::json;
use windlass_testkit::servers::{PostgresOptions, PostgresServer, StopMode, free_port};

use crate::common::{Windlass, bare, failed, finish};

/// API-8: a server is asked without a key, at its base path, and one that is not there is unavailable.
#[test]
fn a_server_says_whether_it_is_ready_to_anyone() {
    let windlass = Windlass::new();
    let served = windlass.serve(&["--base-path", "/jobs"]);
    let healthy = |args: &[&str]| finish(bare(&[&["--url", served.url.as_str()], args].concat()));
    let ready = healthy(&["healthy"]);
    assert_eq!((ready.code, ready.stdout.as_str()), (0, "ready\n"), "{ready:?}");
    let live = healthy(&["healthy", "--live", "--json"]);
    assert_eq!(live.code, 0, "{live:?}");
    let said: serde_json::Value = serde_json::from_str(&live.stdout).expect("JSON");
    assert_eq!(said, json!({ "server": served.url, "status": "alive" }));

    let nobody = format!("http://127.0.0.1:{}", free_port().expect("a port"));
    let error = failed(finish(bare(&["--url", &nobody, "--json", "healthy"])), 6, "unavailable");
    assert!(error["message"].as_str().is_some_and(|said| said.contains(&nobody)), "{error}");
}

/// API-8: a server whose database is away is alive, and not ready.
#[test]
fn a_server_without_its_database_is_alive_only() {
    let mut postgres = PostgresServer::start(PostgresOptions::fleeting()).expect("a throwaway server starts");
    postgres.create_database("healthy").expect("a database");
    let windlass = Windlass::on(postgres.url("healthy"));
    let served = windlass.serve(&["--migrate"]);
    let asked = |args: &[&str]| finish(bare(&[&["--json", "--url", served.url.as_str(), "healthy"], args].concat()));
    assert_eq!(asked(&[]).code, 0);
    postgres.stop(StopMode::Fast).expect("it stops");
    let refused = (0..100).map(|_| asked(&["--timeout", "10s"])).find(|ran| ran.code != 0).expect("it is not ready");
    let error = failed(refused, 6, "unavailable");
    assert!(error["message"].as_str().is_some_and(|said| said.contains("is not ready")), "{error}");
    assert_eq!(asked(&["--live"]).code, 0, "its process answers");
}

/// API-8: a server that listens elsewhere, or is mounted elsewhere, because of its environment is asked there, also where it
/// listens everywhere.
#[test]
fn the_check_asks_where_the_environment_says_that_the_server_listens() {
    let windlass = Windlass::new();
    let port = free_port().expect("a port");
    let mut serve = windlass.command(&["serve", "--json"]);
    serve.env("WINDLASS_LISTEN", format!("0.0.0.0:{port}")).env("WINDLASS_BASE_PATH", "/jobs/");
    let mut server =
        serve.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().expect("starts");
    let mut said = String::new();
    let output = server.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut said).expect("text");
    assert!(said.contains(&port.to_string()), "{said}");
    let healthy = |listen: String, path: &str| {
        let mut command = bare(&["healthy", "--json"]);
        command.env("WINDLASS_LISTEN", listen).env("WINDLASS_BASE_PATH", path);
        finish(command)
    };
    let found = healthy(format!("0.0.0.0:{port}"), "/jobs/");
    let elsewhere = healthy(format!("0.0.0.0:{port}"), "/elsewhere");
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    assert!(found.code == 0 && found.stdout.contains(&format!("http://127.0.0.1:{port}/jobs")), "{found:?}");
    failed(elsewhere, 6, "unavailable");
    failed(healthy("everywhere".to_owned(), ""), 2, "invalid_input");
}
