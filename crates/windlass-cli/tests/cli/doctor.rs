//! What `doctor` finds of processes and handlers, on a database and through a server (BEY-10, API-8).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass::{JobService, NewApiKey, OperatorRight, Right, Rights, SecurityContext, TenantId};
use windlass_server::{Config, Server};

use crate::common::{Ran, Windlass, bare, finish};

/// The longest that anything here is waited for.
const SOON: Duration = Duration::from_secs(20);

/// The findings of one check: level and message of each.
fn findings(report: &Value, check: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let checks = report["checks"].as_array().unwrap_or_else(|| panic!("no checks in {report}"));
    let of = checks.iter().filter(|found| found["check"] == check);
    of.map(|found| (text(&found["level"]), text(&found["message"]))).collect()
}

/// Runs it again until it ends with this code and its report is as wanted.
#[track_caller]
fn until(doctor: impl Fn() -> Ran, code: i32, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let ran = doctor();
        let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error} in {ran:?}"));
        if ran.code == code && wanted(&report) {
            return report;
        }
        assert!(began.elapsed() < SOON, "{ran:?}");
    }
}

/// Whether a check has one finding, of this level and with this text.
fn is_one(report: &Value, check: &str, level: &str, text: &str) -> bool {
    matches!(&findings(report, check)[..], [(found, message)] if found == level && message.contains(text))
}

/// A server in this process, whose loops a test can break, with a key for it.
struct InProcess {
    runtime: tokio::runtime::Runtime,
    service: JobService,
    url: String,
    key: String,
}

impl InProcess {
    fn start() -> InProcess {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let (service, url, key) = runtime.block_on(async {
            let store = windlass::open("memory:").await.expect("a store");
            let service = JobService::builder(store).start().await.expect("starts");
            let server = Server::bind(service.clone(), Config::listen("127.0.0.1:0".parse().expect("an address")));
            let server = server.await.expect("listens");
            let url = format!("http://{}", server.address());
            let new = NewApiKey::new("doctor", Rights::of([Right::Read])).all_tenants();
            let ctx = SecurityContext::new(TenantId::ROOT);
            let (_, key) = service.operator(OperatorRight::assume()).create_key(&ctx, new).await.expect("makes a key");
            tokio::spawn(server.run(std::future::pending()));
            (service, url, key)
        });
        InProcess { runtime, service, url, key }
    }

    fn doctor(&self) -> Ran {
        let mut command = bare(&["--url", &self.url, "--json", "doctor"]);
        command.env("WINDLASS_API_KEY", &self.key);
        finish(command)
    }
}

/// BEY-10, API-8: a loop that panics is found while it is down, and remembered afterwards.
#[test]
fn a_loop_that_is_down_fails_the_check_of_a_server() {
    let server = InProcess::start();
    let report = until(|| server.doctor(), 0, |_| true);
    assert!(is_one(&report, "ready", "ok", "") && is_one(&report, "loops", "ok", ""), "{report}");

    let _entered = server.runtime.enter();
    let task = server.service.supervisor().spawn_here("tested", || async { panic!("as the test wants") });
    let report = until(|| server.doctor(), 1, |report| !is_one(report, "loops", "ok", ""));
    assert!(is_one(&report, "loops", "fail", "the loop `tested` is down"), "{report}");
    assert!(is_one(&report, "loops", "fail", "as the test wants"), "{report}");
    assert_eq!(findings(&report, "ready"), [], "said once");
    // It has panicked, and is no trouble any more.
    task.abort();
    let report = until(|| server.doctor(), 0, |_| true);
    assert!(is_one(&report, "loops", "warn", "`tested` has panicked"), "{report}");
    assert!(is_one(&report, "ready", "ok", ""), "{report}");
}

/// BEY-10, API-8: a process that cannot save what its jobs come to is found by whoever looks at its file.
#[test]
fn a_process_that_saves_nothing_fails_the_check_of_its_file() {
    let windlass = Windlass::new();
    let mut up = windlass.up(&["--concurrency", "1"]);
    up.wait_for("a success", |counts| counts("succeeded") > 0);
    let doctor = || windlass.run(&["doctor", "--json"]);
    let report = until(doctor, 0, |_| true);
    assert!(is_one(&report, "ready", "ok", "") && is_one(&report, "loops", "ok", ""), "{report}");

    let other = windlass::sqlite::rusqlite::Connection::open(windlass.database()).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("nobody else may write from now on");
    let report = until(doctor, 1, |_| true);
    assert!(is_one(&report, "ready", "fail", "cannot be saved"), "{report}");
    other.execute_batch("ROLLBACK").expect("they may again");
    until(doctor, 0, |report| is_one(report, "ready", "ok", ""));
    assert_eq!(up.stop("INT").code, 0);
}

/// BEY-10: whatever keeps a job from running now, somebody must be able to run it later.
#[test]
fn blocked_and_scheduled_jobs_without_a_handler_are_found() {
    let windlass = Windlass::new();
    windlass.submit(&["mail.first", "--ordering-key", "ann"]);
    let behind = windlass.submit(&["mail.behind", "--ordering-key", "ann"]);
    assert_eq!(windlass.json(&["show", &behind])["job"]["status"], "blocked");
    windlass.submit(&["mail.later", "--delay", "1h"]);
    windlass.json(&["--tenant", "0190b3a2-7c1e-7000-8000-000000000001", "submit", "mail.later", "--delay", "2h"]);
    let check = |report: &Value| {
        let mut found = findings(report, "handlers");
        found.sort();
        let said = |jobs: &str, handler: &str, kind: &str| {
            ("warn".to_owned(), format!("{jobs} for `{handler}`, which no live node has ({kind})"))
        };
        let wanted = [
            said("1 job waits", "mail.behind", "1 blocked"),
            said("1 job waits", "mail.first", "1 ready"),
            said("2 jobs wait", "mail.later", "2 not due"),
        ];
        assert_eq!(found, wanted, "{report}");
    };
    check(&windlass.json(&["doctor"]));
    // Blocked work counts as work that waits, in a column of its own.
    let backlog = windlass.run(&["backlog"]).stdout;
    assert!(backlog.lines().any(|head| head.trim_end().ends_with("BLOCKED  RUNNING  PER SECOND")), "{backlog}");
    let blocked = |handler: &str| {
        let line = backlog.lines().find(|line| line.contains(handler)).unwrap_or_default();
        line.split_whitespace().rev().nth(2).map(str::to_owned)
    };
    assert_eq!(
        (blocked("mail.behind").as_deref(), blocked("mail.first").as_deref()),
        (Some("1"), Some("0")),
        "{backlog}"
    );
    let key = windlass.key(&["--rights", "read", "--all-tenants"]);
    let served = windlass.serve(&[]);
    check(&Windlass::through(&served, &key).json(&["doctor"]));
    assert_eq!(served.stop(), 0);
    assert_eq!(windlass.json(&["doctor"])["ok"], json!(true), "a warning is no failure");
}
