//! `watch`: follows a job to its end and exits as the job ended (API-4).

use crate::common::Windlass;

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
