//! `windlass bench` as scripts use it: real runs with few jobs on each store, what they report, and that nothing stays
//! behind. How fast anything is is never asked: that depends on the machine.

use serde_json::Value;
use windlass_testkit::servers::{PostgresOptions, PostgresServer, is_full_tier};

use crate::common::{Ran, Windlass, bare, failed, finish};

/// Runs it with `--json` and reads its lines.
#[track_caller]
fn bench(args: &[&str]) -> Vec<Value> {
    let ran = finish(bare(&[&["bench", "--json", "--repeats", "1"], args].concat()));
    assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
    ran.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object per line")).collect()
}

/// Every scenario that takes a moment, with its jobs and the figures it must have on every store.
const QUICK: [(&str, &str, &[&str]); 6] = [
    ("submit", "300", &["jobs_per_second", "submit_p50_ms", "submit_max_ms"]),
    ("submit-bulk", "3000", &["jobs_per_second", "submit_p99_ms"]),
    ("drain", "3000", &["jobs_per_second"]),
    ("end-to-end", "300", &["jobs_per_second", "p50_ms", "p95_ms", "p99_ms", "max_ms", "submit_p50_ms"]),
    ("latency", "5", &["p50_ms", "p95_ms", "p99_ms", "max_ms", "submit_p50_ms"]),
    ("spawn", "3000", &["jobs_per_second", "submit_p50_ms"]),
];

/// Runs every quick scenario on a store; each must have its figures, and `also` those that the kind of store adds.
fn every_quick_scenario(store: &str, name: &str, also: &[(&str, &[&str])]) {
    for (scenario, jobs, figures) in QUICK {
        let reports = bench(&["--store", store, "--scenario", scenario, "--jobs", jobs]);
        let [report] = &reports[..] else { panic!("{scenario}: {reports:?}") };
        assert_eq!((&report["scenario"], &report["store"]), (&scenario.into(), &name.into()));
        assert_eq!(report["jobs"], jobs.parse::<u64>().expect("a number"));
        let also = also.iter().filter(|(of, _)| *of == scenario).flat_map(|(_, figures)| figures.iter());
        for key in figures.iter().chain(also) {
            assert!(report[key].as_f64().is_some_and(|value| value >= 0.0), "{scenario}: {key} in {report}");
        }
    }
}

#[test]
fn every_scenario_reports_its_figures_from_memory() {
    every_quick_scenario("memory", "memory", &[]);
}

#[test]
fn a_file_is_measured_and_nothing_of_it_stays() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let store = format!("sqlite:{}", directory.path().join("bench.db").display());
    let raw: &[&str] = &["raw_jobs_per_second", "ratio_to_raw"];
    let also: [(&str, &[&str]); 6] = [
        ("submit", raw),
        ("submit-bulk", raw),
        ("drain", raw),
        ("drain", &["bytes_per_finished_job"]),
        ("end-to-end", raw),
        ("latency", &["raw_p50_ms", "ratio_to_raw"]),
    ];
    every_quick_scenario(&store, "sqlite", &also);
    let left: Vec<_> = directory.path().read_dir().expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_server_is_measured_in_a_database_that_is_gone_afterwards() {
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("a throwaway server");
    let raw: &[&str] = &["raw_jobs_per_second", "ratio_to_raw"];
    let costs: &[&str] =
        &["wal_bytes_per_job", "commits_per_job", "dead_tuples", "bytes_per_finished_job", "server_cpu_us_per_job"];
    let also: [(&str, &[&str]); 7] = [
        ("submit", raw),
        ("submit-bulk", raw),
        ("drain", raw),
        ("drain", costs),
        ("end-to-end", raw),
        ("end-to-end", costs),
        ("latency", &["raw_p50_ms", "ratio_to_raw"]),
    ];
    every_quick_scenario(&server.url("postgres"), "postgres", &also);
    assert_eq!(databases(&server), 0);

    let idle = bench(&["--store", &server.url("postgres"), "--scenario", "idle", "--seconds", "3"]);
    assert!(idle[0]["queries_per_second"].is_number() && idle[0]["cpu_ms_per_second"].is_number(), "{idle:?}");
    assert_eq!(databases(&server), 0);
}

#[test]
fn several_processes_share_a_server() {
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("a throwaway server");
    let url = server.url("postgres");
    for (scenario, figures) in [
        ("submit", &["jobs_per_second", "submit_p50_ms"][..]),
        ("drain", &["jobs_per_second", "cpu_us_per_job"]),
        ("end-to-end", &["jobs_per_second", "p50_ms", "submit_p50_ms"]),
        ("latency", &["p50_ms", "ratio_to_raw"]),
    ] {
        let jobs = if scenario == "latency" { "5" } else { "300" };
        let args = ["--store", &url, "--scenario", scenario, "--jobs", jobs, "--nodes", "2", "--no-raw"];
        let report = &bench(&args)[0];
        for key in figures {
            assert!(report[key].is_number(), "{scenario}: {key} in {report}");
        }
    }
    assert_eq!(databases(&server), 0);
}

#[test]
fn two_builds_are_compared_in_turns() {
    let program = windlass_testkit::servers::windlass_bin();
    let program = program.to_str().expect("a path that can be written");
    let args = ["--scenario", "submit,latency", "--jobs", "20", "--repeats", "3", "--against", program];
    let ran = finish(bare(&[&["bench", "--json"], &args[..]].concat()));
    assert_eq!(ran.code, 0, "{ran:?}");
    let reports: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for (report, figure) in reports.iter().zip(["jobs_per_second", "p50_ms"]) {
        for key in [figure, "other_build", "ratio_to_other_build"] {
            assert!(report[key].as_f64().is_some_and(|value| value > 0.0), "{key} in {report}");
        }
        assert!(report["ratio_spread"].is_number(), "{report}");
    }
    assert_eq!(reports.len(), 2);

    let not_windlass = finish(bare(&["bench", "--scenario", "submit", "--jobs", "1", "--against", "/bin/true"]));
    assert_eq!(not_windlass.code, 1, "{not_windlass:?}");
    assert!(not_windlass.stderr.contains("/bin/true did not measure submit"), "{not_windlass:?}");
}

/// Two builds are compared by a figure that the store has: a file counts no queries.
#[test]
fn idle_nodes_of_two_builds_are_compared_on_a_file() {
    let program = windlass_testkit::servers::windlass_bin();
    let program = program.to_str().expect("a path that can be written");
    let directory = tempfile::TempDir::new().expect("a directory");
    let store = format!("sqlite:{}", directory.path().join("idle.db").display());
    let args = ["--scenario", "idle", "--seconds", "1", "--store", &store, "--against", program];
    let report = &bench(&args)[0];
    assert!(report["cpu_ms_per_second"].is_number() && report["other_build"].is_number(), "{report}");
    assert_eq!(report["better"], serde_json::json!({ "ratio_to_other_build": "lower" }));
}

/// SEC-2: the password of a database is on no command line, where every user of the machine could read it.
#[cfg(unix)]
#[test]
fn a_password_is_not_on_the_command_line_of_the_builds_that_are_compared() {
    use std::os::unix::fs::PermissionsExt;
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("a throwaway server");
    let directory = tempfile::TempDir::new().expect("a directory");
    let (wrapper, seen) = (directory.path().join("windlass"), directory.path().join("seen"));
    // The program itself, after its command line was written down.
    let program = windlass_testkit::servers::windlass_bin();
    let script = format!("#!/bin/sh\necho \"$@\" >> {}\nexec {} \"$@\"\n", seen.display(), program.display());
    std::fs::write(&wrapper, script).expect("writes");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("may");
    let compare = |user: &str| {
        let url = format!("postgres://{user}@127.0.0.1:{}/postgres", server.port());
        let args = ["bench", "--json", "--repeats", "1", "--scenario", "submit", "--jobs", "20", "--against"];
        let mut command = bare(&args);
        command.arg(&wrapper).env("WINDLASS_BENCH_STORE", &url);
        let ran = finish(command);
        assert_eq!(ran.code, 0, "{ran:?}");
        let report: Value = serde_json::from_str(ran.stdout.trim()).expect("JSON");
        let better = &report["better"]["ratio_to_other_build"];
        assert_eq!((&report["store"], better), (&"postgres".into(), &"higher".into()));
        std::fs::read_to_string(&seen).expect("it was started")
    };
    let said = compare("postgres:hunter2");
    assert!(said.contains("--scenario submit") && !said.contains("hunter2") && !said.contains("--store"), "{said}");
    // Where there is none, builds that are older than the variable are told too.
    assert!(compare("postgres").contains("--store postgres://postgres@127.0.0.1"));
}

/// Runs a stress: whether it passes depends on the machine, that it is judged does not.
#[track_caller]
fn stress(args: &[&str], figures: &[&str]) -> Value {
    let ran = finish(bare(&[&["bench", "--json", "--scenario"], args].concat()));
    let report: Value = serde_json::from_str(ran.stdout.trim()).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let passed = report["passed"].as_bool().unwrap_or_else(|| panic!("{ran:?}"));
    assert_eq!(ran.code, if passed { 0 } else { 1 }, "{ran:?}");
    assert!(report["goal"].is_string(), "{report}");
    for key in figures {
        assert!(report[key].is_number(), "{key} in {report}");
    }
    report
}

#[test]
fn a_stress_is_compared_with_the_same_load_without_it() {
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("a throwaway server");
    let url = server.url("postgres");
    let ratios = ["jobs_per_second", "baseline_jobs_per_second", "ratio_to_baseline"];
    let waits = ["ratio_to_baseline", "p99_ms", "baseline_p99_ms", "p99_ratio_to_baseline"];
    // One of each kind for every change, all of them in the full tier.
    let some = |all: [&'static str; 3]| if is_full_tier() { all.to_vec() } else { all[..1].to_vec() };
    for scenario in some(["notify", "backlog", "unanalysed"]) {
        stress(&[scenario, "--store", &url, "--jobs", "2000"], &ratios);
    }
    for scenario in some(["tenants", "bands", "held-snapshot"]) {
        let report = stress(&[scenario, "--store", &url, "--jobs", "2000", "--seconds", "2"], &waits);
        let windows = report["windows"].as_array().expect("windows");
        let stressed = |wanted: bool| windows.iter().filter(move |window| window["stressed"] == wanted).count();
        assert!(stressed(false) == 2 && stressed(true) == 2, "{report}");
    }
    let cleaned = ["worst_second_ratio_to_baseline", "left_over"];
    stress(&["retention", "--store", &url, "--jobs", "2000", "--seconds", "3"], &[&waits[..], &cleaned].concat());
    assert_eq!(databases(&server), 0);
}

#[test]
fn a_process_is_measured_from_outside() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let store = format!("sqlite:{}", directory.path().join("bench.db").display());
    stress(&["waiting", "--store", &store, "--jobs", "2000"], &["baseline_memory_bytes", "memory_bytes"]);
    stress(&["sleepers", "--store", &store, "--jobs", "500"], &["memory_bytes"]);
    stress(&["start", "--store", &store, "--repeats", "1"], &["start_ms"]);
    assert_eq!(directory.path().read_dir().expect("it is there").count(), 0);
}

/// Databases of measurements on the server.
fn databases(server: &PostgresServer) -> usize {
    ask(server, "select datname from pg_database").iter().filter(|name| name.contains("windlass_bench")).count()
}

/// The first column of what a server answers.
fn ask(server: &PostgresServer, sql: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let connected = tokio_postgres::connect(&server.admin_url(), tokio_postgres::NoTls).await;
        let (client, connection) = connected.expect("it is up");
        tokio::spawn(connection);
        let rows = client.simple_query(sql).await.expect("it answers");
        let row = |message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        rows.into_iter().filter_map(row).collect()
    })
}

#[test]
fn ctrl_c_ends_a_run_and_leaves_nothing() {
    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("a throwaway server");
    let mut command = bare(&["bench", "--store", &server.url("postgres"), "--scenario", "idle", "--seconds", "600"]);
    let child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("starts");
    let began = std::time::Instant::now();
    while databases(&server) == 0 {
        assert!(began.elapsed().as_secs() < 30, "no database was made");
    }
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("there is a kill command").success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(databases(&server), 0);
}

#[test]
fn several_scenarios_are_a_line_each_and_a_table_for_people() {
    let args = ["--scenario", "submit,drain", "--jobs", "200"];
    let scenarios: Vec<Value> = bench(&args).iter().map(|report| report["scenario"].clone()).collect();
    assert_eq!(scenarios, ["submit", "drain"]);
    let table = finish(bare(&[&["bench", "--repeats", "1"], &args[..]].concat()));
    let rate = table.stdout.lines().find(|line| line.starts_with("jobs/s")).unwrap_or_else(|| panic!("{table:?}"));
    assert_eq!(rate.split_whitespace().count(), 3, "{rate}");
    assert_eq!(table.stderr, "", "no progress where nobody looks");
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    let wrong: [(&[&str], &str); 11] = [
        (&["--scenario", "warp"], "scenario"),
        (&["--jobs", "0"], "jobs"),
        (&["--workers", "0"], "workers"),
        (&["--store", "mysql://ann:hunter2@localhost/app"], "store"),
        (&["--store", "sqlite:"], "store"),
        (&["--payload-bytes", "1000000"], "payload_bytes"),
        (&["--batch", "1"], "batch"),
        (&["--nodes", "2"], "nodes"),
        (&["--nodes", "0"], "nodes"),
        (&["--scenario", "held-snapshot"], "store"),
        (&["--scenario", "sleepers"], "store"),
    ];
    for (args, field) in wrong {
        let ran: Ran = finish(bare(&[&["bench", "--json"], args].concat()));
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
        assert_eq!(failed(ran, 2, "invalid_input")["field"], field, "{args:?}");
    }
}

#[test]
fn a_file_that_exists_is_refused_and_kept() {
    let windlass = Windlass::new();
    windlass.json(&["migrate"]);
    let before = std::fs::read(windlass.database()).expect("it is there");
    let store = format!("sqlite:{}", windlass.database().display());
    let error = failed(finish(bare(&["bench", "--json", "--store", &store])), 4, "refused");
    assert!(error["message"].as_str().is_some_and(|said| said.contains("exists")), "{error}");
    assert_eq!(std::fs::read(windlass.database()).expect("it is still there"), before);
}

#[test]
fn a_server_that_cannot_be_used_says_why() {
    // A port that was free a moment ago: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let url = format!("postgres://ann:hunter2@127.0.0.1:{port}/app");
    let ran = finish(bare(&["bench", "--json", "--store", &url]));
    assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    failed(ran, 6, "unavailable");

    let server = PostgresServer::start(PostgresOptions::fleeting()).expect("a throwaway server");
    ask(&server, "create role weak login");
    let url = format!("postgres://weak@127.0.0.1:{}/postgres", server.port());
    let ran = finish(bare(&["bench", "--json", "--store", &url]));
    let error = failed(ran, 5, "unauthorized");
    assert!(error["message"].as_str().is_some_and(|said| said.contains("createdb")), "{error}");
}
