//! `watch`: follows a job to its end and exits as the job ended (API-4).

use crate::common::Windlass;
use windlass::store::rooms::*;

#[test]
fn a_watched_job_is_followed_to_its_end() {
    let windlass = Windlass::new();
    let mut up = windlass.up(&[]);
    up.wait_for("a success", |counts| counts("succeeded") > 0);
    let id = windlass.submit(&["demo.report", r#"{"month":"May","pages":3}"#]);
    let watched = windlass.run(&["watch", &id, "--json", "--timeout", "60s"]);
    assert_eq!(watched.code, 0, "{watched:?}");
    let lines: Vec<serde_json::Value> =
        watched.stdout.lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect();
    let last = lines.last().expect("at least one");
    assert_eq!((&last["id"], &last["status"], &last["output"]), (&id.into(), &"succeeded".into(), &3.into()));
    let percents: Vec<f64> = lines.iter().filter_map(|line| line["progress"]["percent"].as_f64()).collect();
    assert!(percents.len() > 1 && percents.is_sorted(), "progress is seen as it goes: {percents:?}");

    // It fails every time; told in words where nobody is a program.
    let failing = windlass.submit(&["demo.flaky", r#"{"service":"mail","failures":3}"#]);
    let watched = windlass.run(&["watch", &failing, "--timeout", "60s"]);
    assert_eq!(watched.code, 1, "{watched:?}");
    assert!(watched.stdout.contains("retrying") && watched.stderr.contains("mail answered 503"), "{watched:?}");
    assert_eq!(up.stop("INT").code, 0);
}

#[test]
fn a_job_that_does_not_end_in_time_goes_on() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["email.send"]);
    windlass.fails(&["watch", &id, "--timeout", "50ms"], 6, "job_timeout");
    windlass.json(&["cancel", &id]);
    windlass.fails(&["watch", &id], 1, "job_canceled");
    windlass.fails(&["watch", "12345"], 3, "job_not_found");
}

#[test]
fn the_screen_of_top_is_for_terminals() {
    let windlass = Windlass::new();
    windlass.submit(&["email.send"]);
    windlass.fails(&["top"], 2, "usage");
}

/// Runs `top` until its screen has shown a text, does something, and ends it.
fn while_top_shows<T>(windlass: &Windlass, wanted: &str, act: impl FnOnce() -> T) -> T {
    while_top(windlass, &[("", wanted)], act)
}

/// The same after several keys, each typed once the text before it was shown.
fn while_top<T>(windlass: &Windlass, steps: &[(&str, &str)], act: impl FnOnce() -> T) -> T {
    use std::io::{Read, Write};
    let mut command = crate::common::Terminal::run(&windlass.command(&["top", "--every", "200ms"]));
    let mut top = command.stdin(std::process::Stdio::piped()).spawn().expect("starts");
    let (mut screen, mut keys) = (top.stdout.take().expect("piped"), top.stdin.take().expect("piped"));
    let mut bytes = [0; 4_096];
    for (typed, wanted) in steps {
        keys.write_all(typed.as_bytes()).expect("it reads");
        keys.flush().expect("it reads");
        let mut seen = String::new();
        while !seen.contains(wanted) {
            let read = screen.read(&mut bytes).expect("it draws");
            assert!(read > 0, "it ended early: {seen}");
            seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }
    let did = act();
    top.kill().expect("kills");
    top.wait().expect("ends");
    did
}

/// API-8: who only looks takes no part: neither nodes nor autoscalers count a terminal.
#[test]
fn top_is_not_a_node() {
    let windlass = Windlass::new();
    windlass.submit(&["email.send"]);
    // Drawn after the first look at everything that it shows.
    let nodes = while_top_shows(&windlass, "email.send", || windlass.json(&["nodes"]));
    assert_eq!(nodes["nodes"], serde_json::json!([]));
}

/// API-8: acting takes a moment and no lasting part: after each key the terminal is no node again, and the file is free.
#[test]
fn top_is_not_a_node_after_it_has_acted() {
    let windlass = Windlass::new();
    let ids = [windlass.submit(&["email.send"]), windlass.submit(&["email.send"])];
    let cancel = [("2", "email.send"), ("c", "?"), ("y", "canceled"), ("j", ""), ("c", "?"), ("y", "canceled")];
    while_top(&windlass, &cancel, || {
        let began = std::time::Instant::now();
        let is_done = |id: &String| windlass.json(&["show", id])["job"]["status"] == "canceled";
        while !ids.iter().all(is_done) || windlass.json(&["nodes"])["nodes"] != serde_json::json!([]) {
            assert!(began.elapsed().as_secs() < 10, "{}", windlass.json(&["nodes"]));
        }
        // One process at a time writes to the file, and `top` is not the one.
        windlass.submit(&["email.send"]);
    });
}

/// OPS-7: `top` shows how many jobs ended per second although none of them is kept any more, on a database and through a
/// server.
#[test]
fn rates_of_top_need_no_kept_jobs() {
    use windlass::activity::{Addition, Resolution};

    let with_ended_jobs = || {
        let windlass = Windlass::new();
        tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let store = windlass::sqlite::SqliteStore::open(windlass.database()).expect("opens");
            let mut sums = windlass::Sums::default();
            sums.succeeded = 146;
            let add = |tenant| Addition { tenant, handler: "email.send".to_owned(), sums: sums.clone() };
            let now = store.now().await.expect("has a clock");
            // The last step that is over; it counts for ten seconds more.
            let at = Resolution::Seconds10.bucket(now) - Resolution::Seconds10.step();
            store.add_activity(at, vec![add(None), add(Some(windlass::TenantId::ROOT))]).await.expect("adds");
        });
        windlass
    };
    while_top_shows(&with_ended_jobs(), "7.3 ", || ());
    let windlass = with_ended_jobs();
    let key = windlass.key(&["--rights", "read"]);
    let served = windlass.serve(&[]);
    while_top_shows(&Windlass::through(&served, &key), "7.3 ", || ());
    assert_eq!(served.stop(), 0);
}
