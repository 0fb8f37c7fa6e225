//! Submits that race: one key from many processes, and a transaction that commits after everyone else.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use windlass::{JobId, Payload, Status, SubmitOptions};

use crate::fleet::{Place, Process, Role, SOON, Settings, connect, root, wait_for, wait_until_all};

const PROCESSES: usize = 4;
const TASKS: usize = 16;

/// F31, SUB-6.
#[tokio::test]
async fn sixty_four_submits_of_one_key_from_four_processes_make_one_job_for_its_life() {
    let place = Place::postgres().await;
    let mut producers = Vec::new();
    for _ in 0..PROCESSES {
        producers.push(place.start_ready(Role::SubmitKeys { tasks: TASKS }, Settings::default()).await);
    }
    let mut race = Race { producers, answers: 0 };

    let (id, made) = race.submit("invoice-7").await;
    assert_eq!(made, 1, "one submit of 64 has made the job");

    let mut worker = place.start_ready(Role::Work, Settings::default()).await;
    let service = place.onlooker().await;
    wait_until_all(&**service.store(), &[id], Status::Succeeded, SOON).await;
    assert_eq!(race.submit("invoice-7").await, (id, 0), "the key is held by the job that has ended");

    service.purge(&root(), id).await.expect("purge");
    let (next, made) = race.submit("invoice-7").await;
    assert_eq!(made, 1, "the key is free again, for one job");
    assert_ne!(next, id);
    wait_until_all(&**service.store(), &[next], Status::Succeeded, SOON).await;
    worker.stop().await;
    assert_eq!(worker.log.said("effect").len(), 2);
    for mut producer in race.producers {
        producer.stop().await;
    }
}

struct Race {
    producers: Vec<Process>,
    answers: usize,
}

impl Race {
    /// Submits a key in all tasks of all processes. Answers with the one job all were given, and how many made it.
    async fn submit(&mut self, key: &str) -> (JobId, usize) {
        self.producers.iter_mut().for_each(|producer| producer.tell(key));
        self.answers += TASKS;
        let (word, all) = (format!("acked {key}"), self.answers);
        wait_for("every submit to be answered", SOON, async || {
            self.producers.iter().all(|producer| producer.log.said(&word).len() == all)
        })
        .await;
        let answers = self.producers.iter().flat_map(|producer| producer.log.said(&word).split_off(all - TASKS));
        let answers: Vec<String> = answers.collect();
        let ids: BTreeSet<&str> = answers.iter().map(|line| line.split(' ').next().expect("a job")).collect();
        assert_eq!(ids.len(), 1, "all were given one job: {answers:?}");
        let id = ids.first().expect("one job").parse().expect("a job");
        (id, answers.iter().filter(|line| line.ends_with(" false")).count())
    }
}

/// How many jobs overtake the late one.
const OVERTAKERS: usize = 1_000;

/// The poll interval, twice: a sweep for what was overtaken comes with every second poll at the latest. And a little.
const FOUND_WITHIN: Duration = Duration::from_millis(2 * 1_000 + 500);

/// F25, SUB-3: the late job has the lowest id and the first place in line, and nobody is told of the commit.
#[tokio::test]
async fn a_job_whose_transaction_commits_after_a_thousand_others_ran_is_still_found() {
    let place = Place::postgres().await;
    let mut worker = place.start_ready(Role::Work, Settings::default()).await;
    let service = place.onlooker().await;
    let client = connect(&place.url).await;
    client.batch_execute("begin").await.expect("begin");
    let row = client.query_one("select windlass.submit('note', '{}')", &[]).await.expect("submit");
    let late = JobId::from_i64(row.get(0));

    let payloads = (0..OVERTAKERS).map(|n| Ok(Payload::from_store(n.to_string()))).collect();
    let (_, others) =
        service.submit_payloads(&root(), "note", payloads, SubmitOptions::new(), false).await.expect("submit");
    let others: Vec<JobId> = others.into_iter().map(|submitted| submitted.expect("accepted").id).collect();
    wait_until_all(&**service.store(), &others, Status::Succeeded, SOON).await;
    assert!(!worker.log.has(&format!("started {late} 1")), "nobody sees a job before its transaction commits");

    client.batch_execute("commit").await.expect("commit");
    let committed = Instant::now();
    wait_until_all(&**service.store(), &[late], Status::Succeeded, FOUND_WITHIN).await;
    assert!(committed.elapsed() < FOUND_WITHIN);
    assert!(others.iter().all(|id| *id > late), "it is the oldest of all");
    worker.stop().await;
    assert_eq!(worker.log.said("effect").len(), OVERTAKERS + 1, "and everything ran once");
}
