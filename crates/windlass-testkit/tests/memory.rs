//! The memory store keeps every promise of a store, and the service's promises on it.

use std::sync::Arc;

use windlass_core::memory::MemoryStore;
use windlass_core::store::Store;
use windlass_core::{ManualClock, Timestamp};
use windlass_testkit::conformance::TestStore;
use windlass_testkit::conformance::model::{Runs, run_model};

/// Some day in 2027; ids and delays count from it.
const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

async fn fresh_store() -> TestStore {
    let clock = ManualClock::at(START);
    let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
    TestStore::new(store, move |by| {
        clock.advance(by);
        async {}
    })
}

windlass_testkit::conformance_tests!(fresh_store);

#[test]
fn random_lives_agree_with_the_model() {
    run_model(fresh_store, Runs::new(400, 80));
}

async fn fresh() -> (Arc<dyn Store>, ()) {
    (Arc::new(MemoryStore::new()), ())
}

windlass_testkit::behaviour_tests!(fresh);
windlass_testkit::sealed_behaviour_tests!(fresh);
