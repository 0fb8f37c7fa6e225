//! The SQLite store keeps every promise of a store, and the service's promises on it.

use std::sync::Arc;

use windlass_core::store::Store;
use windlass_core::{ManualClock, Timestamp};
use windlass_sqlite::{SqliteOptions, SqliteStore};
use windlass_testkit::conformance::TestStore;
use windlass_testkit::conformance::model::{Runs, run_model};

/// Some day in 2027; ids and delays count from it.
const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

async fn fresh_store() -> TestStore {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let clock = ManualClock::at(START);
    let mut options = SqliteOptions::default();
    options.clock = Arc::new(clock.clone());
    let store = SqliteStore::open_with(directory.path().join("jobs.db"), options).expect("opens");
    TestStore::new(Arc::new(store), move |by| {
        clock.advance(by);
        async {}
    })
    .keeping(directory)
}

windlass_testkit::conformance_tests!(fresh_store);

#[test]
fn random_lives_agree_with_the_model() {
    run_model(fresh_store, Runs::new(60, 60));
}

async fn fresh() -> (Arc<dyn Store>, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = SqliteStore::open(directory.path().join("jobs.db")).expect("opens");
    (Arc::new(store), directory)
}

windlass_testkit::behaviour_tests!(fresh);
