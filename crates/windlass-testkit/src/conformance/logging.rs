//! What a store promises about the log lines of jobs (BEY-7): in order, under their fence, each once, the newest only.
//! Run by every store through `conformance_tests!`.

use windlass_core::store::{NewLine, Note, Noted, Transition};
use windlass_core::{ClaimedJob, JobId, LOG_LINES, LogLevel, LogLine, Progress, Scope};

use super::rig::*;

/// BEY-7, SEC-1: lines of all attempts are one row that a reader can follow; they stay when the job has ended, and go
/// with it.
pub(super) async fn log_lines_are_kept_in_order_over_attempts(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let id = job.id;
    assert!(lines(&rig, id, 0).await.is_empty());
    assert!(say(&rig, &job, 1..=2).await);
    assert!(say(&rig, &job, 3..=3).await);
    let first = lines(&rig, id, 0).await;
    assert_eq!(sequences(&first), [1, 2, 3]);
    assert_eq!((first[1].message.as_str(), first[1].level, first[1].attempt), ("line 2", LogLevel::Warn, 1));
    assert_eq!(lines(&rig, id, 2).await, first[2..], "a reader goes on where it stopped");
    // Number 4 was dropped by the node.
    assert!(say(&rig, &job, 5..=5).await);
    assert_eq!(sequences(&lines(&rig, id, 3).await), [5], "a gap tells of it");
    rig.end(&job, retry(1, SOON)).await;
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let again = rig.claim_one().await;
    assert!(say(&rig, &again, 1..=2).await);
    let second = lines(&rig, id, 5).await;
    assert_eq!((sequences(&second), second[0].attempt), (vec![6, 7], 2));
    rig.end(&again, succeed()).await;
    assert_eq!(sequences(&lines(&rig, id, 0).await), [1, 2, 3, 5, 6, 7]);
    let other = rig.store().logs(Scope::Tenant(B), id, 0).await.expect("logs");
    assert!(other.is_empty(), "another tenant's lines are not there");
    assert!(rig.store().purge(EVERYONE, id, "ann").await.expect("purge"));
    assert!(lines(&rig, id, 0).await.is_empty());
    assert!(lines(&rig, rig.job().id(), 0).await.is_empty());
}

/// BEY-7: a write that is repeated because its answer was lost adds nothing, and a released job goes on.
pub(super) async fn a_repeated_report_of_lines_adds_nothing(rig: Rig) {
    let job = rig.running(rig.job()).await;
    assert!(say(&rig, &job, 1..=3).await);
    assert!(say(&rig, &job, 1..=3).await);
    assert!(say(&rig, &job, 2..=4).await);
    assert_eq!(sequences(&lines(&rig, job.id, 0).await), [1, 2, 3, 4]);
    rig.end(&job, windlass_core::store::Transition::Release).await;
    let again = rig.claim_one().await;
    assert_eq!(again.attempt(), 1, "a release uses up no attempt");
    assert!(say(&rig, &again, 1..=2).await);
    assert_eq!(sequences(&lines(&rig, job.id, 0).await), [1, 2, 3, 4, 5, 6]);
}

/// BEY-7: of too many lines the newest stay; other jobs do not notice.
pub(super) async fn only_the_newest_lines_are_kept(rig: Rig) {
    let other = rig.running(rig.job()).await;
    assert!(say(&rig, &other, 1..=2).await);
    let job = rig.running(rig.job()).await;
    assert!(say(&rig, &job, 1..=150).await);
    assert!(say(&rig, &job, 151..=230).await);
    let kept = lines(&rig, job.id, 0).await;
    assert_eq!(kept.len(), LOG_LINES);
    assert_eq!(sequences(&kept), (31..=230).collect::<Vec<u64>>());
    assert_eq!(kept.last().expect("it has lines").message, "line 230");
    assert_eq!(sequences(&lines(&rig, other.id, 0).await), [1, 2]);
}

/// BEY-7, RUN-4: only who holds the job can add to its lines; in one call each job is judged by itself.
pub(super) async fn lines_under_a_lost_lease_are_refused(rig: Rig) {
    let lost = rig.running(rig.job()).await;
    let other = rig.another_node().await;
    assert_eq!(rig.store().note(other, vec![report(&lost, 1..=1)]).await.expect("noted"), [false]);
    rig.end(&lost, succeed()).await;
    let held = rig.running(rig.job()).await;
    let reports = vec![report(&lost, 1..=1), report(&held, 1..=2)];
    assert_eq!(rig.store().note(rig.node, reports).await.expect("noted"), [false, true]);
    assert!(lines(&rig, lost.id, 0).await.is_empty());
    assert_eq!(lines(&rig, held.id, 0).await.len(), 2);
    assert!(rig.store().note(rig.node, Vec::new()).await.expect("noted").is_empty());
}

/// BEY-7, RUN-4, RUN-8, OPS-2: notes of all kinds go in one call, each judged by its own fence; of two of one kind about
/// one job, the last counts.
pub(super) async fn notes_of_all_kinds_are_kept_by_one_call(rig: Rig) {
    let lost = rig.running(rig.job()).await;
    rig.end(&lost, succeed()).await;
    let (one, two) = (rig.running(rig.job()).await, rig.running(rig.job()).await);
    let progress = |job: &ClaimedJob, sequence| Note {
        fence: fence(job),
        what: Noted::Progress(Progress { sequence, percent: 5.0, message: "m".into(), updated_at: job.created_at }),
    };
    let checkpoint = |job: &ClaimedJob, text| Note { fence: fence(job), what: Noted::Checkpoint(payload(text)) };
    let notes = vec![
        progress(&lost, 1),
        checkpoint(&one, "1"),
        report(&two, 1..=2),
        progress(&one, 1),
        checkpoint(&lost, "9"),
        progress(&one, 2),
        checkpoint(&one, "2"),
        report(&one, 1..=1),
        report(&lost, 1..=1),
    ];
    let kept = rig.store().note(rig.node, notes).await.expect("noted");
    assert_eq!(kept, [false, true, true, true, false, true, true, true, false]);
    assert_eq!(rig.record(one.id).await.progress.map(|progress| progress.sequence), Some(2));
    assert_eq!((rig.record(two.id).await.progress, rig.record(lost.id).await.progress), (None, None));
    let told = async |job: &ClaimedJob| lines(&rig, job.id, 0).await.len();
    assert_eq!((told(&one).await, told(&two).await, told(&lost).await), (1, 2, 0));
    rig.end(&one, Transition::Release).await;
    assert_eq!(rig.claim_one().await.checkpoint, Some(payload("2")));
}

// ---- words of these cases

fn report(job: &ClaimedJob, numbers: std::ops::RangeInclusive<u64>) -> Note {
    let line = |number: u64| NewLine {
        number,
        at: job.created_at,
        level: if number == 2 { LogLevel::Warn } else { LogLevel::Info },
        message: format!("line {number}"),
    };
    Note { fence: fence(job), what: Noted::Log { attempt: job.attempt(), lines: numbers.map(line).collect() } }
}

async fn say(rig: &Rig, job: &ClaimedJob, numbers: std::ops::RangeInclusive<u64>) -> bool {
    rig.store().note(rig.node, vec![report(job, numbers)]).await.expect("noted") == [true]
}

async fn lines(rig: &Rig, id: JobId, after: u64) -> Vec<LogLine> {
    rig.store().logs(EVERYONE, id, after).await.expect("logs")
}

fn sequences(lines: &[LogLine]) -> Vec<u64> {
    lines.iter().map(|line| line.sequence).collect()
}
