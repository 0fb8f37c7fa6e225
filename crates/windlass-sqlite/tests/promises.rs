//! The SQLite store keeps every promise of a store, and the service's promises on it.

use std::sync::Arc;

use windlass_core::store::Store;
use windlass_core::{ManualClock, Timestamp};
use windlass_sqlite::{SqliteOptions, SqliteStore};
use windlass_testkit::conformance::TestStore;
use windlass_testkit::conformance::model::{Runs, run_model};

/// Some day in 2027; ids and delays count from it.
const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// The suite restarts a store under a node that lives on, so that node keeps what it holds.
fn options(clock: &ManualClock) -> SqliteOptions {
    SqliteOptions { clock: Arc::new(clock.clone()), recover_on_open: false, ..SqliteOptions::default() }
}

fn moved_by(clock: ManualClock, store: Arc<dyn Store>) -> TestStore {
    TestStore::new(store, move |by| {
        clock.advance(by);
        async {}
    })
}

/// A file, with connections for reading.
async fn in_a_file() -> TestStore {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("jobs.db");
    let clock = ManualClock::at(START);
    let open = {
        let clock = clock.clone();
        move || Arc::new(SqliteStore::open_with(&path, options(&clock)).expect("opens")) as Arc<dyn Store>
    };
    moved_by(clock, open()).reopened_by(move || std::future::ready(open())).keeping(directory)
}

/// Everything on the writer's connection, as with a SQLite that is too old for more.
async fn on_one_connection() -> TestStore {
    let clock = ManualClock::at(START);
    let store = SqliteStore::open_in_memory(options(&clock)).expect("opens");
    moved_by(clock, Arc::new(store))
}

windlass_testkit::conformance_tests!(in_a_file);

mod one_connection {
    windlass_testkit::conformance_tests!(super::on_one_connection);
}

#[test]
fn random_lives_in_a_file_agree_with_the_model() {
    run_model(in_a_file, Runs::new(40, 80));
}

#[test]
fn random_lives_on_one_connection_agree_with_the_model() {
    run_model(on_one_connection, Runs::new(300, 80));
}

async fn fresh() -> (Arc<dyn Store>, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = SqliteStore::open(directory.path().join("jobs.db")).expect("opens");
    (Arc::new(store), directory)
}

windlass_testkit::behaviour_tests!(fresh);
windlass_testkit::sealed_behaviour_tests!(fresh);
