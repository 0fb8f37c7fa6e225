//! The report says what a reader needs first, how to run a failure again, and draws what happened.

use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;
use windlass_faults::check::{Facts, Violation};
use windlass_faults::event::{End, Event, What};
use windlass_faults::history::History;
use windlass_faults::report::{Criterion, Report, RowResult, draw, timeline};

fn row(id: &str) -> RowResult {
    let facts =
        Facts { submitted: 1234, started: 1300, recoveries: 7, longest_recovery_us: 2_300_000, ..Facts::default() };
    RowResult {
        id: id.into(),
        title: "kill -9 of a worker <in the middle> of a job".into(),
        store: "postgres".into(),
        seed: 77,
        faults: 20,
        facts,
        duration_ms: 8_400,
        schedule: vec!["0.50 s kill worker 2".into(), "1.10 s start worker 3".into()],
        ..RowResult::default()
    }
}

fn broken(invariant: &'static str, job: i64, at: u64) -> Violation {
    let text = format!("job {job}: `succeeded` was accepted from lease 41, although lease 42 had it already");
    Violation { invariant, job: Some(job), text, at: Some(at) }
}

fn failed() -> RowResult {
    let violations = vec![broken("I5", 17, 4_100_000)];
    let criterion = Criterion { what: "restart after a kill".into(), found: "14.2 s".into(), met: false };
    RowResult { violations, criteria: vec![criterion], ..row("F17") }.judged()
}

/// Workers that run short and long attempts; one is killed, one is stopped and comes back as a zombie.
fn history() -> History {
    let mut rng = StdRng::seed_from_u64(7);
    let mut events = Vec::new();
    let mut say = |proc: u32, mono: u64, what: What| events.push(Event { proc, mono, what });
    say(0, 0, What::Up { pid: 100, role: "nemesis".into() });
    for proc in 1..=4_u32 {
        say(proc, 100_000 * u64::from(proc), What::Up { pid: 4000 + proc, role: "worker".into() });
        let until = if proc == 2 { 3_000_000 } else { 9_000_000 };
        for slot in 0..3 {
            let mut at = 500_000 + rng.random_range(0..200_000);
            while at < until {
                let took = rng.random_range(5_000..400_000);
                let job = rng.random_range(1..1000);
                let (lease, attempt, tenant) = (at as i64 + slot, 1, Uuid::from_u128(1));
                let returns = at + took < until;
                say(proc, at, What::Start { job, lease, attempt, tenant, canary: None });
                let how = if rng.random_bool(0.1) { End::Failed } else { End::Succeeded };
                if returns {
                    say(proc, at + took, What::End { job, lease, attempt, how });
                }
                at += took + rng.random_range(1_000..30_000);
            }
        }
    }
    say(0, 3_000_000, What::Fault { fault: "kill worker 2".into() });
    say(0, 3_200_000, What::Fault { fault: "stop worker 3".into() });
    say(0, 5_600_000, What::Healed { fault: "stop worker 3".into() });
    say(0, 6_000_000, What::Fault { fault: "latency 50 ms ± 20 ms".into() });
    say(0, 8_000_000, What::Healed { fault: "latency 50 ms ± 20 ms".into() });
    for (proc, from, until) in [(3, 3_150_000, 5_900_000), (4, 4_100_000, 4_900_000)] {
        let (job, lease, attempt, tenant) = (17, i64::from(proc), 1, Uuid::from_u128(1));
        say(proc, from, What::Start { job, lease, attempt, tenant, canary: None });
        say(proc, until, What::End { job, lease, attempt, how: End::Succeeded });
    }
    say(3, 5_950_000, What::FinishReply { batch: 1, replies: vec![None] });
    events.sort_by_key(|event| event.mono);
    History { events, ..History::default() }
}

#[test]
fn a_report_begins_with_the_verdict_and_says_how_to_run_a_failure_again() {
    let waiting = RowResult { waiting: Some("schedules".into()), ..row("F28") }.judged();
    let report = Report {
        seed: 42,
        profile: "short".into(),
        duration_ms: 331_000,
        rows: vec![row("F07").judged(), failed(), waiting],
    };
    assert!(!report.passed());
    let dir = tempfile::tempdir().unwrap();
    draw(dir.path(), &report.rows[1], &history()).unwrap();
    report.write(dir.path()).unwrap();
    let text = std::fs::read_to_string(dir.path().join("report.md")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("# Faults: 1 failed, 1 passed, 1 waiting"));
    let summary = lines.nth(1).unwrap();
    assert!(
        summary.starts_with("Seed 42, profile short, 5 min 31 s. 60 faults; 3,702 jobs submitted, 0 lost;"),
        "{summary}"
    );
    assert!(summary.ends_with("the longest 2.3 s."), "{summary}");
    for part in [
        "`cargo xtask faults --seed 42 --only F17`",
        "- **I5** job 17: `succeeded` was accepted",
        "- wanted: restart after a kill; found: 14.2 s",
        "![What happened in F17](F17-postgres.svg)",
        "0.50 s kill worker 2",
        "| F28 | postgres | kill -9 of a worker <in the middle> of a job | schedules |",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(dir.path().join("report.json")).unwrap()).unwrap();
    assert_eq!(json["rows"][1]["violations"][0]["invariant"], "I5");
    assert_eq!(json["rows"][1]["passed"], false);
}

#[test]
fn a_row_passes_only_if_nothing_speaks_against_it() {
    assert!(row("F01").judged().passed);
    let error = RowResult { error: Some("no server".into()), ..row("F01") }.judged();
    assert!(!error.passed && error.failed());
    let waiting = RowResult { waiting: Some("cron".into()), ..row("F01") }.judged();
    assert!(!waiting.passed && !waiting.failed());
}

#[test]
fn a_timeline_has_a_lane_per_process_a_band_per_fault_and_a_flag_per_broken_promise() {
    let svg = timeline(&failed(), &history());
    assert_eq!(svg.matches(r#"class="lane""#).count(), 5);
    // One more of each is in the key.
    assert_eq!(svg.matches(r#"class="band""#).count(), 3);
    assert_eq!(svg.matches(r#"class="flag""#).count(), 1);
    assert_eq!(svg.matches(r#"class="fenced""#).count(), 2);
    assert_eq!(svg.matches("succeeded suspect").count(), 2, "both attempts of the job in question stand out");
    assert!(svg.contains("1 worker · pid 4001") && svg.contains("kill worker 2"));
    assert!(svg.contains("&lt;in the middle&gt;") && !svg.contains("<in the middle>"));
    // Kept for people who want to look at it.
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("timeline.svg"), svg).unwrap();
}

#[test]
fn a_hundred_thousand_attempts_are_still_a_picture_and_no_events_none() {
    let mut events = Vec::new();
    for n in 0..100_000_i64 {
        let (job, lease, attempt, tenant) = (n, n, 1, Uuid::from_u128(1));
        let at = n as u64 * 100;
        events.push(Event { proc: 1, mono: at, what: What::Start { job, lease, attempt, tenant, canary: None } });
        events.push(Event { proc: 1, mono: at + 90, what: What::End { job, lease, attempt, how: End::Succeeded } });
    }
    let svg = timeline(&row("F01").judged(), &History { events, ..History::default() });
    assert!(svg.len() < 200_000, "{} bytes", svg.len());
    assert!(timeline(&row("F01"), &History::default()).ends_with("</svg>\n"));
}
