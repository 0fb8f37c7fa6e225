//! A cancel from one process against the finish of another.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windlass::store::Store;
use windlass::{JobId, Status};

use crate::fleet::{Place, Role, SOON, Settings, record, root, wait_for};

const ROUNDS: u64 = 100;

/// When the first race is decided: after everyone has been told.
const HEAD_START: Duration = Duration::from_secs(2);

/// From race to race.
const APART: Duration = Duration::from_millis(10);

/// The cancel comes from so much before the finish to so much after it, a little later with each round.
const SPREAD: Duration = Duration::from_millis(10);

/// OPS-3, RUN-4.
#[tokio::test]
async fn a_cancel_and_a_finish_from_two_processes_have_one_winner_in_a_hundred_races() {
    let place = Place::postgres().await;
    let mut worker = place.start_ready(Role::Work, Settings::default()).await;
    let mut canceler = place.start_ready(Role::Cancel, Settings::default()).await;
    let first = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970") + HEAD_START;
    let ends: Vec<Duration> = (0..ROUNDS).map(|round| first + APART * round as u32).collect();
    let inputs: Vec<(&str, u64)> = ends.iter().map(|end| ("race", end.as_micros() as u64)).collect();
    let jobs = place.submit(&inputs).await;
    for (round, (id, end)) in jobs.iter().zip(&ends).enumerate() {
        let cancel = *end - SPREAD + SPREAD * 2 * round as u32 / ROUNDS as u32;
        canceler.tell(&format!("{id} {}", cancel.as_micros()));
    }
    let store = place.reader().await;
    wait_for("every cancel to be answered", SOON, async || canceler.log.said("reply").len() == jobs.len()).await;
    wait_for("every job to end", SOON, async || {
        crate::fleet::records(&*store, &jobs).await.iter().all(|record| record.status.is_terminal())
    })
    .await;
    canceler.stop().await;
    worker.stop().await;

    let reply = |line: String| line.split_once(' ').map(|(id, reply)| (id.parse().expect("a job"), reply.to_owned()));
    let replies: BTreeMap<JobId, String> = canceler.log.said("reply").into_iter().filter_map(reply).collect();
    let mut winners: BTreeMap<Status, usize> = BTreeMap::new();
    for id in jobs {
        let expected = match replies[&id].as_str() {
            // It ran, and no completion is accepted any more; or it had not started.
            "requested" | "canceled" => Status::Canceled,
            "too_late" => Status::Succeeded,
            reply => panic!("job {id}: {reply}"),
        };
        check_one_end(&*store, id, expected).await;
        // What the worker was told agrees: it never heard of a success that a cancel had come before.
        let heard = worker.log.said(&format!("accepted {id}"));
        let told = |status: Status| heard.iter().filter(|line| **line == status.as_str()).count();
        assert_eq!(heard.len(), 1, "job {id}: {heard:?}");
        assert_eq!(told(expected), 1, "job {id}: {heard:?}");
        *winners.entry(expected).or_default() += 1;
    }
    assert_eq!(winners.len(), 2, "each has won some: {winners:?}");
}

async fn check_one_end(store: &dyn Store, id: JobId, expected: Status) {
    let record = record(store, id).await;
    assert_eq!(record.status, expected, "{record:#?}");
    assert_eq!(record.output.is_some(), expected == Status::Succeeded, "{record:#?}");
    let history = store.history(root().scope(), id).await.expect("history");
    let ends: Vec<Status> = history.iter().map(|entry| entry.status).filter(|status| status.is_terminal()).collect();
    assert_eq!(ends, [expected], "{history:#?}");
}
