//! A job that kills its process, among innocent ones: the test restarts the process as a supervisor does.

use std::time::{Duration, Instant};

use windlass::{JobFilter, JobId, Page, Reason, Status};

use crate::fleet::{Place, Process, Role, SOON, Settings, record, records, root, wait_for, wait_until_all};

/// With its jobs waiting in line, many start beside the poison.
const SETTINGS: Settings =
    Settings { lease: Some(Duration::from_secs(1)), concurrency: Some(8), grace: None, shutdown_deadline: None };

/// So many innocent jobs run beside the poison when it first kills its process.
const BESIDE: u64 = 5;
const INNOCENTS: usize = 30;
const INNOCENT_MILLIS: u64 = 100;

/// F20, RUN-5, ERR-4.
#[tokio::test]
async fn a_job_that_kills_its_process_three_times_is_a_dead_letter_and_the_innocent_ones_succeed_on_postgres() {
    poison_among_innocents(Place::postgres().await).await;
}

/// F20, RUN-5, ERR-4.
#[tokio::test]
async fn a_job_that_kills_its_process_three_times_is_a_dead_letter_and_the_innocent_ones_succeed_on_sqlite() {
    poison_among_innocents(Place::sqlite()).await;
}

async fn poison_among_innocents(place: Place) {
    let mut jobs = vec![("innocent", INNOCENT_MILLIS); INNOCENTS];
    // Late in the first claim, so that innocent jobs come back from the same lost process before it and after it.
    jobs.insert(BESIDE as usize + 1, ("poison", BESIDE));
    let mut ids = place.submit(&jobs).await;
    let poison = ids.remove(BESIDE as usize + 1);

    let mut ended: Vec<Process> = Vec::new();
    // Not waited for: it may be dead before it can say that it is ready.
    let mut worker = place.start(Role::Work, SETTINGS);
    let store = place.reader().await;
    let all: Vec<JobId> = ids.iter().copied().chain([poison]).collect();
    let deadline = Instant::now() + 2 * SOON;
    while records(&*store, &all).await.iter().filter(|record| record.status.is_terminal()).count() < all.len() {
        assert!(Instant::now() < deadline, "{:#?}", records(&*store, &[poison]).await);
        if worker.exited().is_some() {
            let next = place.start(Role::Work, SETTINGS);
            ended.push(std::mem::replace(&mut worker, next));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    worker.stop().await;

    wait_until_all(&*store, &ids, Status::Succeeded, Duration::ZERO).await;
    let letters =
        store.find(root().scope(), &JobFilter::all().status(Status::DeadLettered), Page::default(), None).await;
    let letters = letters.expect("list").jobs;
    assert_eq!(letters.iter().map(|letter| letter.id).collect::<Vec<_>>(), [poison]);
    assert_eq!(letters[0].reason.as_deref(), Some(Reason::NodeUnavailable.as_str()));
    assert_eq!((letters[0].recoveries, letters[0].failed), (3, 0));
    assert_eq!(ended.len(), 3, "it killed three processes and no more");
    let aborts: Vec<Vec<String>> = ended.iter().map(|process| process.log.said("aborts")).collect();
    assert!(aborts.iter().all(|aborts| aborts.len() == 1), "{aborts:?}");
    let beside: u64 = aborts[0][0].split_once(' ').expect("two numbers").1.parse().expect("a number");
    assert!(beside >= BESIDE, "innocent jobs were running beside it: {aborts:?}");
    let worst = records(&*store, &ids).await.iter().map(|record| record.recoveries).max();
    assert!(worst <= Some(2), "an innocent job is lost with the poison twice at most, and then kept apart from it");
}

/// Longer than any test: such a job is still running when a test looks.
const LONG_MILLIS: u64 = 600_000;

/// RUN-5: the jobs of a big node that was killed run again within the lease and ten seconds.
#[tokio::test]
async fn two_thousand_jobs_of_a_killed_node_run_again_within_the_lease_and_ten_seconds_on_postgres() {
    const JOBS: usize = 2_000;
    const LEASE: Duration = Duration::from_secs(3);
    let settings = Settings { lease: Some(LEASE), concurrency: Some(JOBS + 10), ..Settings::default() };
    let place = Place::postgres().await;
    place.submit(&vec![("innocent", LONG_MILLIS); JOBS]).await;
    let mut lost = place.start_ready(Role::Work, settings).await;
    wait_for("all jobs to run", 2 * SOON, async || lost.log.said("started").len() == JOBS).await;
    let next = place.start_ready(Role::Work, settings).await;
    lost.kill_9();
    let most = LEASE + Duration::from_secs(10);
    let took = wait_for("all jobs to run again", most, async || next.log.said("started").len() == JOBS).await;
    eprintln!("{JOBS} jobs of a killed node ran again after {took:?}, with a lease of {LEASE:?}");
}

/// F20, RUN-5, ERR-4: a job that kills its process late, among long jobs that never end by themselves.
#[tokio::test]
async fn a_job_that_kills_late_is_a_dead_letter_alone_on_postgres() {
    const INNOCENTS: usize = 24;
    let settings = Settings { lease: Some(Duration::from_secs(1)), concurrency: Some(64), ..Settings::default() };
    let place = Place::postgres().await;
    let mut jobs = vec![("innocent", LONG_MILLIS); INNOCENTS];
    jobs.insert(INNOCENTS / 2, ("slow_poison", 1_500));
    let mut ids = place.submit(&jobs).await;
    let poison = ids.remove(INNOCENTS / 2);
    let store = place.reader().await;
    let mut worker = place.start(Role::Work, settings);
    let mut killed = 0;
    let deadline = Instant::now() + 5 * SOON;
    loop {
        if worker.exited().is_some() {
            killed += 1;
            worker = place.start(Role::Work, settings);
        }
        let others = records(&*store, &ids).await;
        let run = others.iter().filter(|record| record.status == Status::Running).count();
        if record(&*store, poison).await.status == Status::DeadLettered && run == INNOCENTS {
            break;
        }
        let dead = others.iter().find(|record| record.status.is_terminal());
        assert!(dead.is_none(), "an innocent job has ended: {dead:#?}");
        assert!(Instant::now() < deadline, "{killed} killed, {run} run: {:#?}", record(&*store, poison).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // All of them, an eighth, alone; and the first time, when nothing was known.
    assert!((3..=5).contains(&killed), "it killed {killed} processes");
    eprintln!("a killer among {INNOCENTS} long jobs was found after {killed} processes");
}
