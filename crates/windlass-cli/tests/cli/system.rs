//! Schema, health and shell completions from the command line.

use crate::common::Windlass;
use serde_json::{Value, json};

#[test]
fn migrate_says_from_where_to_where_and_is_repeatable() {
    let windlass = Windlass::missing();
    let first = windlass.json(&["migrate"]);
    assert_eq!(first["from"], 0);
    assert!(first["to"].as_i64().is_some_and(|to| to > 0), "{first}");
    let second = windlass.json(&["migrate"]);
    assert_eq!(second["from"], first["to"]);
    assert!(windlass.run(&["migrate"]).stdout.contains("is up to date"));
}

#[test]
fn the_sql_of_a_schema_is_printed_without_connecting() {
    let windlass = Windlass::missing();
    let sqlite = windlass.run(&["migrate", "--sql"]);
    assert_eq!(sqlite.code, 0);
    assert!(sqlite.stdout.contains("CREATE TABLE windlass_job"), "{sqlite:?}");
    assert!(!windlass.database().exists());
    let postgres = windlass.run(&["migrate", "--sql", "--db", "postgres://nobody@127.0.0.1:1/none"]);
    assert_eq!(postgres.code, 0);
    assert!(postgres.stdout.to_lowercase().contains("create table"), "{postgres:?}");
    assert_ne!(sqlite.stdout, postgres.stdout);
}

#[test]
fn doctor_finds_what_is_wrong_and_says_what_to_do() {
    let windlass = Windlass::missing();
    let missing = windlass.run(&["doctor", "--json"]);
    assert_eq!(missing.code, 1);
    let report: Value = serde_json::from_str(&missing.stdout).expect("a report although it failed");
    assert_eq!((&report["ok"], level(&report, "store")), (&json!(false), "fail"));

    windlass.json(&["migrate"]);
    windlass.json(&["pause", "all", "--reason", "upgrade"]);
    let report = windlass.json(&["doctor"]);
    assert_eq!(report["ok"], true);
    for (check, expected) in [("store", "ok"), ("schema", "ok"), ("clock", "ok"), ("nodes", "warn"), ("pauses", "warn")]
    {
        assert_eq!(level(&report, check), expected, "{check}: {report}");
    }
    let people = windlass.run(&["doctor"]).stdout;
    assert!(people.contains("windlass resume all"), "{people}");

    let demo = Windlass::with_demo_jobs();
    assert_eq!(level(&demo.json(&["doctor"]), "dead"), "warn");
}

fn level<'a>(report: &'a Value, check: &str) -> &'a str {
    let checks = report["checks"].as_array().expect("checks");
    let found = checks.iter().find(|found| found["check"] == check);
    found.and_then(|found| found["level"].as_str()).unwrap_or_else(|| panic!("no {check} in {report}"))
}

#[test]
fn completions_know_the_commands() {
    let windlass = Windlass::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = windlass.run(&["completions", shell]);
        assert!(ran.code == 0 && ran.stdout.contains("doctor"), "{shell}");
    }
}

#[test]
fn every_command_explains_itself() {
    let windlass = Windlass::new();
    let help = windlass.run(&["--help"]);
    assert_eq!(help.code, 0);
    let listed = help.stdout.split("Commands:").nth(1).and_then(|text| text.split("\n\n").next()).expect("a list");
    let commands: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        let ran = windlass.run(&[command, "--help"]);
        assert!(ran.code == 0 && ran.stdout.contains("Usage: windlass"), "{command}: {ran:?}");
    }
}

/// SEC-2: other users of the machine get neither the jobs nor what lets them in, and people hear of it where they could.
#[cfg(unix)]
#[test]
fn files_are_for_their_owner_alone_and_others_are_told_of() {
    use std::os::unix::fs::PermissionsExt;
    let windlass = Windlass::new();
    let (data, mode) = (windlass.path().join("deep/data"), |path: &std::path::Path| {
        path.metadata().unwrap_or_else(|e| panic!("{}: {e}", path.display())).permissions().mode() & 0o777
    });
    let mut up = windlass.up_in(&data, &[]);
    up.wait_for("a job", |counts| counts("succeeded") > 0);
    assert_eq!((mode(&data), mode(data.parent().expect("a parent"))), (0o700, 0o700));
    for file in std::fs::read_dir(&data).expect("reads") {
        let file = file.expect("reads").path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    let ended = up.stop("INT");
    assert!(!ended.stderr.contains("other users"), "{ended:?}");

    let database = data.join("windlass.db");
    std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    let ended = windlass.run(&["up", "--data", &data.display().to_string(), "--for", "0", "--listen", "127.0.0.1:0"]);
    assert!(ended.code == 0 && ended.stderr.contains("other users of this machine may read"), "{ended:?}");
    assert!(ended.stderr.contains(&format!("chmod 600 {}", database.display())), "{ended:?}");
    let db = format!("sqlite:{}", database.display());
    let doctor = windlass.json(&["--db", &db, "doctor"]);
    let found = doctor["checks"].as_array().expect("checks").iter().find(|check| check["check"] == "files");
    assert_eq!(found.expect("it looks at the files")["level"], "warn");
}

/// A copy of the file while `up` writes to it, and what it takes to go on from the copy.
#[test]
fn a_backup_is_made_beside_a_running_process_and_restored() {
    let windlass = Windlass::new();
    let copy = windlass.path().join("copy.db");
    let copy_path = copy.display().to_string();
    let mut up = windlass.up(&[]);
    up.wait_for("some successes", |counts| counts("succeeded") > 10);
    let said = windlass.json(&["backup", &copy_path]);
    assert_eq!(said["bytes"].as_u64(), Some(copy.metadata().expect("it is there").len()), "{said}");
    windlass.fails(&["backup", &copy_path], 4, "refused");
    assert_eq!(up.stop("INT").code, 0);

    // Restored by putting it in the place of the database.
    let succeeded =
        |windlass: &Windlass| windlass.json(&["stats", "--all-tenants"])["succeeded"].as_u64().expect("a count");
    let before = succeeded(&windlass);
    std::fs::rename(&copy, windlass.database()).expect("moves");
    let restored = succeeded(&windlass);
    assert!(restored > 10 && restored <= before, "{restored} of {before}");
    assert_eq!(windlass.run(&["doctor"]).code, 0);
    let mut up = windlass.up(&[]);
    up.wait_for("it goes on", |counts| counts("succeeded") > restored);
    assert_eq!(up.stop("INT").code, 0);

    Windlass::missing().fails(&["backup", "other.db"], 3, "not_found");
    let postgres = windlass.fails(&["backup", "x.dump", "--db", "postgres://nobody@127.0.0.1:1/none"], 2, "usage");
    assert!(postgres["message"].as_str().is_some_and(|said| said.contains("pg_dump")), "{postgres}");
}

/// Only `migrate`, `up` and a server that is told so change a schema: also an older one, also a file of somebody else.
#[test]
fn other_commands_create_no_schema() {
    let windlass = Windlass::missing();
    std::fs::write(windlass.database(), "").expect("an empty file is a SQLite database without tables");
    for args in [&["submit", "email.send"][..], &["list"], &["pause", "all"], &["serve", "--listen", "127.0.0.1:0"]] {
        let refused = windlass.fails(args, 4, "refused");
        assert!(
            refused["message"].as_str().is_some_and(|said| said.contains("`windlass migrate`")),
            "{args:?}: {refused}"
        );
        assert_eq!(windlass.database().metadata().expect("there").len(), 0, "{args:?} wrote to it");
    }
    drop(windlass.serve(&["--migrate"]));
    windlass.submit(&["email.send"]);

    // As the version before has left it.
    let execute = |sql: &str| {
        let file = windlass::sqlite::rusqlite::Connection::open(windlass.database()).expect("opens");
        file.execute_batch(sql).expect("runs");
    };
    execute("DELETE FROM windlass_schema WHERE version = (SELECT max(version) FROM windlass_schema)");
    let older = windlass::sqlite::schema_version(windlass.database()).expect("has one");
    for args in [&["submit", "email.send"][..], &["list"], &["pause", "all"], &["serve", "--listen", "127.0.0.1:0"]] {
        let refused = windlass.fails(args, 4, "refused");
        assert!(
            refused["message"].as_str().is_some_and(|said| said.contains("`windlass migrate`")),
            "{args:?}: {refused}"
        );
        assert_eq!(windlass::sqlite::schema_version(windlass.database()).expect("has one"), older, "{args:?}");
    }
}

/// BEY-10: what waits for a handler that no live node has is found: a typo, or a deploy that took it away.
#[test]
fn doctor_finds_jobs_that_nobody_can_run() {
    let windlass = Windlass::new();
    assert_eq!(level(&windlass.json(&["doctor"]), "handlers"), "ok");
    windlass.submit(&["email.sned"]);
    windlass.submit(&["email.sned"]);
    let report = windlass.json(&["doctor"]);
    assert_eq!(level(&report, "handlers"), "warn");
    let found = report["checks"].as_array().expect("checks").iter().find(|found| found["check"] == "handlers");
    let said = found.and_then(|found| found["message"].as_str()).expect("a message");
    assert!(said.contains("2 jobs wait for `email.sned`"), "{said}");
}
