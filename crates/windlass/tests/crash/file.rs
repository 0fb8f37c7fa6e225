//! A SQLite file whose process is killed while it writes, and one that a second process opens.

use windlass::JobId;

use crate::fleet::{Place, Process, Role, SOON, Settings, open, records, wait_for};

const KILLS: usize = 10;

/// Submits that are acknowledged before each kill, at least.
const ACKED_PER_KILL: usize = 50;

const PRODUCER: Role = Role::Submit { tasks: 8, keys: false };

/// F37, SUB-1.
#[tokio::test]
async fn every_acknowledged_job_survives_ten_kills_of_its_process_and_the_file_is_whole() {
    let place = Place::sqlite();
    let mut acked: Vec<JobId> = Vec::new();
    for kill in 1..=KILLS {
        let mut producer = place.start_ready(PRODUCER, Settings::default()).await;
        wait_for("submits to be acknowledged", SOON, async || acknowledged(&producer).len() >= ACKED_PER_KILL).await;
        producer.kill_9();
        acked.extend(acknowledged(&producer));
        assert_eq!(producer.log.said("failed"), [""; 0]);

        let store = open(&place.url).await;
        assert_eq!(records(&*store, &acked).await.len(), acked.len(), "after {kill} kills");
        drop(store);
        assert_eq!(integrity(&place), "ok", "after {kill} kills");
    }
    let mut distinct = acked.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), acked.len(), "no id was given twice, also not across kills");
}

/// F39.
#[tokio::test]
async fn a_second_process_is_refused_a_file_in_use_and_the_first_goes_on() {
    let place = Place::sqlite();
    let mut first = place.start_ready(PRODUCER, Settings::default()).await;
    wait_for("submits to be acknowledged", SOON, async || !acknowledged(&first).is_empty()).await;

    let mut second = place.start(Role::Open, Settings::default());
    second.ends_well().await;
    let lines = second.log.lines();
    let holder = format!("is in use by process {}", first.pid());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("refused refused "), "{lines:?}");
    assert!(lines[0].contains(&place.file().display().to_string()) && lines[0].contains(&holder), "{lines:?}");

    let so_far = acknowledged(&first).len();
    wait_for("the first process to go on", SOON, async || acknowledged(&first).len() > so_far + ACKED_PER_KILL).await;
    first.stop().await;
    let (acked, store) = (acknowledged(&first), open(&place.url).await);
    assert_eq!(records(&*store, &acked).await.len(), acked.len());
    assert_eq!(first.log.said("failed"), [""; 0]);
    drop(store);
    assert_eq!(integrity(&place), "ok");
}

fn acknowledged(producer: &Process) -> Vec<JobId> {
    let acked = producer.log.said("acked -");
    acked.iter().map(|id| id.parse().expect("a job")).collect()
}

/// What SQLite itself says about the file.
fn integrity(place: &Place) -> String {
    let conn = rusqlite::Connection::open(place.file()).expect("open the file");
    conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("check the file")
}
