//! Schedules from the command line (TIM-2, API-4).

use crate::common::Windlass;

const PUT: [&str; 6] = ["schedules", "put", "nightly", "30 2 * * *", "report.write", "--zone=Europe/Berlin"];

#[test]
fn a_schedule_is_put_shown_changed_and_removed() {
    let windlass = Windlass::new();
    let put = windlass.run(&[&PUT[..], &["--missed", "once", "--jitter", "30s", "--tag", "sales"]].concat());
    assert!(put.code == 0 && put.stdout.starts_with("nightly is created; fires next 20"), "{put:?}");
    let list = windlass.run(&["schedules", "list"]).stdout;
    let row = list.lines().find(|line| line.starts_with("nightly")).unwrap_or_else(|| panic!("{list}"));
    assert!(row.contains("30 2 * * *") && row.contains("Europe/Berlin") && row.ends_with("on"), "{row}");
    let shown = windlass.run(&["schedules", "show", "nightly", "--input"]).stdout;
    for line in ["cron        30 2 * * * (Europe/Berlin)", "missed      once", "jitter      30", "input       null"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let changed = windlass.run(&["schedules", "put", "nightly", "@daily", "report.write", "7", "--expect", "1"]);
    assert!(changed.stdout.starts_with("nightly is changed"), "{changed:?}");
    windlass.fails(&["schedules", "put", "nightly", "@daily", "report.write", "--expect", "1"], 4, "schedule_changed");
    assert_eq!(windlass.json(&["schedules", "show", "nightly", "--input"])["input"], 7);
    assert_eq!(windlass.run(&["schedules", "pause", "nightly"]).stdout, "nightly is paused\n");
    assert!(windlass.run(&["schedules", "list"]).stdout.contains("paused"));
    assert_eq!(windlass.run(&["schedules", "resume", "nightly"]).stdout, "nightly is resumed\n");
    assert_eq!(windlass.run(&["schedules", "remove", "nightly"]).stdout, "nightly is removed\n");
    windlass.fails(&["schedules", "show", "nightly"], 3, "schedule_not_found");
    let none = windlass.run(&["schedules", "list"]);
    assert!(none.code == 0 && none.stdout.is_empty() && none.stderr.contains("no schedules"), "{none:?}");
}

#[test]
fn next_runs_are_shown_in_the_zone_of_the_schedule_and_of_the_viewer() {
    let windlass = Windlass::new();
    let spring = ["schedules", "put", "spring", "0 30 2 29 3 *", "report.write", "--zone", "Europe/Berlin"];
    assert_eq!(windlass.run(&spring).code, 0);
    let mut command = windlass.command(&["schedules", "next", "spring", "--count", "2"]);
    command.env("TZ", "Asia/Kathmandu");
    let next = crate::common::finish(command);
    assert_eq!(next.code, 0, "{next:?}");
    let lines: Vec<&str> = next.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{next:?}");
    assert!(lines[0].contains("Europe/Berlin") && lines[0].contains("Asia/Kathmandu"), "{next:?}");
    assert!(lines[1].contains("-03-29 0") && lines[1].contains("+05:45"), "{next:?}");
    windlass.fails(&["schedules", "next", "spring", "--zone", "Mars/Olympus"], 2, "invalid_input");
    assert_eq!(windlass.fails(&["schedules", "next", "spring", "--count", "0"], 2, "invalid_input")["field"], "count");
}

#[test]
fn a_trigger_starts_a_job_that_is_among_the_runs() {
    let windlass = Windlass::new();
    assert_eq!(windlass.run(&PUT).code, 0);
    let id = windlass.run(&["schedules", "trigger", "nightly"]).stdout.trim().to_owned();
    let runs = windlass.json(&["schedules", "runs", "nightly"]);
    assert_eq!(runs["jobs"][0]["id"], id.as_str(), "{runs}");
    assert_eq!(runs["jobs"][0]["tags"][0], "schedule:nightly");
    assert!(windlass.run(&["schedules", "runs", "nightly"]).stdout.contains(&id));
}

#[test]
fn a_bad_schedule_is_wrong_input_and_nothing_is_written() {
    let windlass = Windlass::new();
    let long = "n".repeat(56);
    let put = |args: &[&'static str]| [&["schedules", "put", "bad"], args].concat();
    let bad = [
        ("cron", put(&["0 0 30 2 *", "h"])),
        ("cron", put(&["@reboot", "h"])),
        ("zone", put(&["@daily", "h", "--zone", "Mars/Olympus"])),
        ("missed", put(&["@daily", "h", "--missed", "all:0"])),
        ("missed", put(&["@daily", "h", "--missed", "sometimes"])),
        ("overlap", put(&["@daily", "h", "--overlap", "sometimes"])),
        ("jitter", put(&["@daily", "h", "--jitter", "61m"])),
        ("handler", put(&["@daily", "windlass.webhook"])),
        ("input", put(&["@daily", "h", "{not json"])),
        ("name", vec!["schedules", "put", &long, "@daily", "h"]),
        ("all_tenants", vec!["schedules", "list", "--all-tenants"]),
    ];
    for (field, args) in bad {
        assert_eq!(windlass.fails(&args, 2, "invalid_input")["field"], field, "{args:?}");
    }
    assert_eq!(windlass.json(&["schedules", "list"])["schedules"], serde_json::json!([]));
}
