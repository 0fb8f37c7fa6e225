//! The PostgreSQL store keeps every promise of a store, and the service's promises on it. Each test has a database of
//! its own on the server that `cargo xtask test` starts; in the full tier also behind PgBouncer in transaction mode.

mod common;

use std::sync::Arc;

use windlass_core::store::Store;
use windlass_postgres::PgStore;
use windlass_testkit::conformance::TestStore;
use windlass_testkit::conformance::model::{Runs, run_model};

async fn fresh_store() -> TestStore {
    let database = common::Database::fresh().await;
    let store = PgStore::connect(&database.url).await.expect("connects");
    // The server's clock cannot be moved: time really passes.
    TestStore::new(Arc::new(store), tokio::time::sleep).keeping(database)
}

windlass_testkit::conformance_tests!(fresh_store);

#[test]
fn random_lives_agree_with_the_model() {
    run_model(fresh_store, Runs::new(6, 40));
}

async fn fresh() -> (Arc<dyn Store>, common::Database) {
    let database = common::Database::fresh().await;
    let store = PgStore::connect(&database.url).await.expect("connects");
    (Arc::new(store), database)
}

windlass_testkit::behaviour_tests!(fresh);
