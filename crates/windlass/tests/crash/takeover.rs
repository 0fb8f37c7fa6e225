//! Jobs of processes that are killed, stopped, blocked or shut down: who takes them over, when, and at what cost.

use std::time::Duration;

use windlass::store::Store;
use windlass::{JobId, Reason, Status};

use crate::fleet::{Place, Process, Role, SOON, Settings, record, root, wait_for, wait_until_all};

/// Short, to be quick; long enough that a busy machine does not lose it.
const LEASE: Duration = Duration::from_secs(2);

/// What recovery may take beyond the lease (RUN-5).
const BEYOND: Duration = Duration::from_secs(1);

/// For the processes and the looks of the test itself.
const SLACK: Duration = Duration::from_millis(500);

/// F17, RUN-5, ERR-3.
#[tokio::test]
async fn a_job_of_a_killed_worker_is_taken_over_within_the_lease_and_a_second_on_postgres() {
    take_over_after_kill(Settings::lease(LEASE), LEASE).await;
}

/// F17, RUN-5: what is promised with nothing configured.
#[tokio::test]
async fn with_the_default_lease_a_job_is_taken_over_within_eleven_seconds_on_postgres() {
    take_over_after_kill(Settings::default(), Duration::from_secs(10)).await;
}

async fn take_over_after_kill(settings: Settings, lease: Duration) {
    let place = Place::postgres().await;
    let store = place.reader().await;
    let workers = [place.start_ready(Role::Work, settings).await, place.start_ready(Role::Work, settings).await];
    let id = place.submit(&[("hold", ())]).await[0];
    wait_for("the job to start", SOON, async || workers.iter().any(|worker| has_started(worker, id, 1))).await;
    let [first, second] = workers;
    let (mut victim, mut other) = if has_started(&first, id, 1) { (first, second) } else { (second, first) };

    victim.kill_9();
    let limit = lease + BEYOND + SLACK;
    wait_for("the other worker to take over", limit, async || has_started(&other, id, 2)).await;
    place.open_gate();
    wait_until_all(&*store, &[id], Status::Succeeded, SOON).await;
    other.stop().await;

    check_one_recovery(&*store, id, other.pid()).await;
    assert_eq!(effects(&victim, id) + effects(&other, id), 1);
    assert_eq!(other.log.said("accepted"), [format!("{id} succeeded")]);
    assert_eq!(victim.log.said("accepted"), [""; 0]);
}

/// F17, F37, RUN-5: a file has no other worker, but the next process on it.
#[tokio::test]
async fn a_job_of_a_killed_process_goes_on_when_the_file_is_opened_again_on_sqlite() {
    let place = Place::sqlite();
    let id = place.submit(&[("hold", ())]).await[0];
    let mut victim = place.start_ready(Role::Work, Settings::lease(LEASE)).await;
    wait_for("the job to start", SOON, async || has_started(&victim, id, 1)).await;

    victim.kill_9();
    let mut next = place.start_ready(Role::Work, Settings::lease(LEASE)).await;
    wait_for("the job to start again", LEASE + BEYOND + SLACK, async || has_started(&next, id, 2)).await;
    place.open_gate();
    let store = place.reader().await;
    wait_until_all(&*store, &[id], Status::Succeeded, SOON).await;
    next.stop().await;

    check_one_recovery(&*store, id, next.pid()).await;
    assert_eq!(effects(&victim, id) + effects(&next, id), 1);
}

async fn check_one_recovery(store: &dyn Store, id: JobId, by: u32) {
    let record = record(store, id).await;
    assert_eq!((record.status, record.attempt), (Status::Succeeded, 2));
    assert_eq!((record.recoveries, record.failed), (1, 0));
    assert_eq!(result_of(&record), (u64::from(by), 2));
    let history = store.history(root().scope(), id).await.expect("history");
    let lost: Vec<_> = history.iter().filter(|entry| entry.error.is_some()).collect();
    assert_eq!(lost.len(), 1, "{history:#?}");
    let error = lost[0].error.as_ref().expect("it has an error");
    assert_eq!((error.code.as_str(), lost[0].attempt), (Reason::NodeUnavailable.as_str(), 1));
    assert_eq!(history.iter().filter(|entry| entry.status.is_terminal()).count(), 1, "one result: {history:#?}");
}

/// F18, RUN-4: `told` learns it from its cancellation token, `writes` from the write it makes.
#[tokio::test]
async fn a_worker_that_was_stopped_past_its_lease_can_write_nothing_and_is_told_on_postgres() {
    let place = Place::postgres().await;
    let store = place.reader().await;
    let mut stopped = place.start_ready(Role::Work, Settings::lease(LEASE)).await;
    let jobs = place.submit(&[("told", ()), ("writes", ())]).await;
    wait_for("both jobs to have saved a checkpoint", SOON, async || {
        jobs.iter().all(|id| stopped.log.has(&format!("saved {id}")))
    })
    .await;
    let stored =
        async || record(&*store, jobs[0]).await.progress.is_some_and(|progress| progress.message == "attempt 1");
    wait_for("progress to be stored", SOON, stored).await;
    let mut other = place.start_ready(Role::Work, Settings::lease(LEASE)).await;

    stopped.signal("STOP");
    wait_until_all(&*store, &jobs, Status::Succeeded, SOON).await;
    let before: Vec<_> = crate::fleet::records(&*store, &jobs).await;
    stopped.signal("CONT");
    wait_for("the stopped worker's jobs to end too", SOON, async || jobs.iter().all(|id| effects(&stopped, *id) == 1))
        .await;
    // It is of use again, as a new node.
    wait_for("the stopped worker to join again", SOON, async || {
        let nodes = store.nodes().await.expect("nodes");
        nodes.iter().filter(|node| [stopped.pid(), other.pid()].contains(&node.info.pid)).count() == 2
    })
    .await;
    // Everything it had to save is saved or refused when it has ended.
    stopped.stop().await;
    other.stop().await;

    for id in &jobs {
        assert_eq!(stopped.log.said(&format!("told {id}")), ["true"]);
        let refused = ["save_checkpoint", "checkpoint", "progress", "succeed", "retry", "snooze", "release"];
        assert_eq!(stopped.log.said(&format!("refused {id}")), refused);
    }
    assert_eq!(stopped.log.said("accepted"), [""; 0]);
    let mut accepted = other.log.said("accepted");
    accepted.sort_unstable();
    assert_eq!(accepted, [format!("{} succeeded", jobs[0]), format!("{} succeeded", jobs[1])]);
    let after = crate::fleet::records(&*store, &jobs).await;
    assert_eq!(after, before, "nothing that the stopped worker wrote has changed anything");
    for record in &after {
        assert_eq!((record.attempt, record.recoveries, record.failed), (2, 1, 0));
        assert_eq!(result_of(record), (u64::from(other.pid()), 2));
        let history = store.history(root().scope(), record.id).await.expect("history");
        assert_eq!(history.iter().filter(|entry| entry.status.is_terminal()).count(), 1, "{history:#?}");
    }
    // The last one before the stop or, if it lasted long enough to be saved, the other worker's; never a late one.
    let progress = after[0].progress.as_ref().expect("progress was reported");
    assert!(progress.message.starts_with("attempt "), "{progress:?}");
}

/// How long `block` blocks: three leases.
const BLOCKED: Duration = Duration::from_millis(3 * LEASE.as_millis() as u64);

/// F19, RUN-2, RUN-13.
#[tokio::test]
async fn handlers_that_block_every_thread_do_not_cost_the_lease_on_postgres() {
    let place = Place::postgres().await;
    let store = place.reader().await;
    let mut blocked = place.start_ready(Role::Work, Settings::lease(LEASE)).await;
    // Two threads, four jobs: two block, the others wait for a thread.
    let jobs = place.submit(&[("block", BLOCKED.as_millis() as u64); 4]).await;
    wait_for("two jobs to block", SOON, async || blocked.log.said("started").len() == 2).await;
    wait_until_all(&*store, &jobs, Status::Running, SOON).await;
    // A second worker would recover them, were the first one silent.
    let mut other = place.start_ready(Role::Work, Settings::lease(LEASE)).await;
    wait_until_all(&*store, &jobs, Status::Succeeded, 4 * BLOCKED).await;
    blocked.stop().await;
    other.stop().await;
    assert_eq!(other.log.said("started"), [""; 0]);
    check_first_attempts(&*store, &jobs).await;
}

/// F19, RUN-2, RUN-13.
#[tokio::test]
async fn handlers_that_block_every_thread_do_not_cost_the_lease_on_sqlite() {
    let place = Place::sqlite();
    let jobs = place.submit(&[("block", BLOCKED.as_millis() as u64); 4]).await;
    let mut blocked = place.start_ready(Role::Work, Settings::lease(LEASE)).await;
    let store = place.reader().await;
    wait_until_all(&*store, &jobs, Status::Succeeded, 4 * BLOCKED).await;
    blocked.stop().await;
    assert_eq!(blocked.log.said("started").len(), jobs.len());
    check_first_attempts(&*store, &jobs).await;
}

/// F33, RUN-10: with the default lease, so that only a release explains how soon the other worker has the jobs.
#[tokio::test]
async fn a_worker_that_is_terminated_hands_its_jobs_over_at_once_and_free_on_postgres() {
    let place = Place::postgres().await;
    let store = place.reader().await;
    let (grace, shutdown_deadline) = (Some(Duration::from_millis(300)), Some(Duration::from_millis(100)));
    let settings = Settings { grace, shutdown_deadline, ..Settings::default() };
    let mut leaving = place.start_ready(Role::Work, settings).await;
    let mut jobs = place.submit(&[("hold", ()); 20]).await;
    // This one does not stop when it is asked to.
    jobs.extend(place.submit(&[("deaf", ())]).await);
    wait_for("all jobs to start", SOON, async || jobs.iter().all(|id| has_started(&leaving, *id, 1))).await;
    let mut staying = place.start_ready(Role::Work, Settings::default()).await;

    leaving.signal("TERM");
    let soon = Duration::from_secs(5);
    wait_for("the other worker to have them", soon, async || jobs.iter().all(|id| has_started(&staying, *id, 1))).await;
    leaving.ends_well().await;
    place.open_gate();
    wait_until_all(&*store, &jobs, Status::Succeeded, SOON).await;
    staying.stop().await;
    check_first_attempts(&*store, &jobs).await;
    assert_eq!(leaving.log.said("effect"), [""; 0]);
    let history = store.history(root().scope(), jobs[0]).await.expect("history");
    assert!(history.iter().all(|entry| entry.error.is_none()), "a release is no failure: {history:#?}");
}

async fn check_first_attempts(store: &dyn Store, jobs: &[JobId]) {
    for record in crate::fleet::records(store, jobs).await {
        let counted = (record.status, record.attempt, record.failed, record.recoveries);
        assert_eq!(counted, (Status::Succeeded, 1, 0, 0), "{record:#?}");
    }
}

fn has_started(worker: &Process, id: JobId, attempt: u16) -> bool {
    worker.log.has(&format!("started {id} {attempt}"))
}

fn effects(worker: &Process, id: JobId) -> usize {
    worker.log.said(&format!("effect {id}")).len()
}

/// Which process returned the result, in which attempt.
fn result_of(record: &windlass::JobRecord) -> (u64, u64) {
    let output: serde_json::Value = record.output.as_ref().expect("an output").decode().expect("JSON");
    (output["pid"].as_u64().expect("a pid"), output["attempt"].as_u64().expect("an attempt"))
}
