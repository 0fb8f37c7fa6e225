//! Schema, health and shell completions from the command line.

use crate::common::Windlass;
use serde_json::{Value, json};

#[test]
fn migrate_says_from_where_to_where_and_is_repeatable() {
    let windlass = Windlass::new();
    let first = windlass.json(&["migrate"]);
    assert_eq!(first["from"], 0);
    assert!(first["to"].as_i64().is_some_and(|to| to > 0), "{first}");
    let second = windlass.json(&["migrate"]);
    assert_eq!(second["from"], first["to"]);
    assert!(windlass.run(&["migrate"]).stdout.contains("is up to date"));
}

#[test]
fn the_sql_of_a_schema_is_printed_without_connecting() {
    let windlass = Windlass::new();
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
    let windlass = Windlass::new();
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
