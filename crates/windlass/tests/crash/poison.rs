//! A job that kills its process, among innocent ones: the test restarts the process as a supervisor does.

use std::time::{Duration, Instant};

use windlass::{JobFilter, JobId, Page, Reason, Status};

use crate::fleet::{Place, Process, Role, SOON, Settings, records, root, wait_until_all};

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
    let letters = store.list(root().scope(), &JobFilter::all().status(Status::DeadLettered), Page::default()).await;
    let letters = letters.expect("list");
    assert_eq!(letters.iter().map(|letter| letter.id).collect::<Vec<_>>(), [poison]);
    assert_eq!(letters[0].reason.as_deref(), Some(Reason::NodeUnavailable.as_str()));
    assert_eq!((letters[0].recoveries, letters[0].failed), (3, 0));
    assert_eq!(ended.len(), 3, "it killed three processes and no more");
    let aborts: Vec<Vec<String>> = ended.iter().map(|process| process.log.said("aborts")).collect();
    assert!(aborts.iter().all(|aborts| aborts.len() == 1), "{aborts:?}");
    let beside: u64 = aborts[0][0].split_once(' ').expect("two numbers").1.parse().expect("a number");
    assert!(beside >= BESIDE, "innocent jobs were running beside it: {aborts:?}");
    let worst = records(&*store, &ids).await.iter().map(|record| record.recoveries).max();
    assert_eq!(worst, Some(1), "an innocent job is lost with the poison once, and then kept apart from it");
}
