//! The memory store against what the service promises.

use std::sync::Arc;

use windlass_core::MemoryStore;
use windlass_core::store::Store;

async fn fresh() -> (Arc<dyn Store>, ()) {
    (Arc::new(MemoryStore::new()), ())
}

windlass_testkit::behaviour_tests!(fresh);
