//! A PostgreSQL server that dies under load, again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass::{JobFilter, JobId, Page, Status};
use windlass_testkit::servers::{PostgresOptions, PostgresServer, StopMode};

use crate::fleet::{Place, Process, Role, SOON, Settings, root, wait_for, wait_until_all};

/// Submits that each producer has acknowledged before each death, at least.
const ACKED_PER_ROUND: usize = 100;

/// How soon everything goes on once the server is back (F42).
const GOES_ON_WITHIN: Duration = Duration::from_secs(5);

/// F42, SUB-1, SUB-6, RUN-5.
#[tokio::test]
async fn what_was_acknowledged_survives_a_server_that_dies_three_times_under_load() {
    let mut server = PostgresServer::start(PostgresOptions::new()).expect("a PostgreSQL server starts");
    server.create_database("jobs").expect("create a database");
    let place = Place::at(server.url("jobs"));
    place.migrate().await;
    let worker = place.start_ready(Role::Work, Settings::default()).await;
    let producer = Role::Submit { tasks: 2, keys: true };
    let mut producers = [
        place.start_ready(producer, Settings::default()).await,
        place.start_ready(producer, Settings::default()).await,
    ];

    for round in 1..=3 {
        wait_for("submits to be acknowledged", SOON, async || {
            producers.iter().all(|producer| producer.log.said("acked").len() >= round * ACKED_PER_ROUND)
        })
        .await;
        server.stop(StopMode::Immediate).expect("stop");
        let before: Vec<usize> = producers.iter().map(|producer| producer.log.said("acked").len()).collect();
        let effects = worker.log.said("effect").len();
        server.start_again().expect("start again");
        wait_for("both producers to go on", GOES_ON_WITHIN, async || {
            producers.iter().zip(&before).all(|(producer, before)| producer.log.said("acked").len() > *before)
        })
        .await;
        wait_for("the worker to go on", GOES_ON_WITHIN, async || worker.log.said("effect").len() > effects).await;
    }
    for producer in &mut producers {
        producer.stop().await;
    }

    let failures: BTreeSet<String> = producers.iter().flat_map(failure_codes).collect();
    let allowed = BTreeSet::from(["unavailable".to_owned(), "unknown_outcome".to_owned()]);
    assert!(!failures.is_empty(), "the producers noticed nothing");
    assert!(failures.is_subset(&allowed), "{failures:?}");

    let acked: BTreeMap<String, JobId> = producers.iter().flat_map(acknowledged).collect();
    let ids: BTreeSet<JobId> = acked.values().copied().collect();
    assert_eq!(ids.len(), acked.len(), "every key has a job of its own");
    let store = place.reader().await;
    let all: Vec<JobId> = ids.iter().copied().collect();
    wait_until_all(&*store, &all, Status::Succeeded, SOON).await;
    assert_eq!(jobs_in(&*store).await, ids, "and there is no job beside those that were acknowledged");
    let worked: BTreeSet<String> = worker.log.said("effect").iter().map(|line| first_word(line)).collect();
    assert!(all.iter().all(|id| worked.contains(&id.to_string())), "every job has had its effect");
}

fn failure_codes(producer: &Process) -> Vec<String> {
    let failed = producer.log.said("failed");
    failed.iter().map(|line| line.rsplit_once(' ').expect("a key and a code").1.to_owned()).collect()
}

fn acknowledged(producer: &Process) -> Vec<(String, JobId)> {
    let parse = |line: &String| {
        let (key, id) = line.rsplit_once(' ').expect("a key and a job");
        (key.to_owned(), id.parse().expect("a job"))
    };
    producer.log.said("acked").iter().map(parse).collect()
}

async fn jobs_in(store: &dyn windlass::store::Store) -> BTreeSet<JobId> {
    let mut ids = BTreeSet::new();
    let mut page = Page::first(Page::MAX);
    loop {
        let records = store.find(root().scope(), &JobFilter::all(), page, None).await.expect("list").jobs;
        let Some(last) = records.last() else { return ids };
        page = page.after(last.id);
        ids.extend(records.iter().map(|record| record.id));
    }
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}
