//! The PostgreSQL store keeps every promise of a store, and the service's promises on it.

mod common;

use std::sync::Arc;
use std::time::Duration;

use windlass_core::store::Store;
use windlass_postgres::PgStore;
use windlass_testkit::conformance::TestStore;
use windlass_testkit::conformance::model::{Runs, run_model};
use windlass_testkit::servers::is_full_tier;

async fn fresh_store() -> TestStore {
    let database = common::Database::migrated().await;
    let url = database.url.clone();
    let store: Arc<dyn Store> = Arc::new(PgStore::connect(&url).await.expect("a database can be opened"));
    // The database's own clock cannot be moved: it is waited for, with a margin for rounding.
    TestStore::new(store, |by| tokio::time::sleep(by + Duration::from_millis(2)))
        .reopened_by(move || {
            let url = url.clone();
            async move {
                let store = PgStore::connect(&url).await.expect("the database can be opened again");
                Arc::new(store) as Arc<dyn Store>
            }
        })
        .keeping(database)
}

windlass_testkit::conformance_tests!(fresh_store);

#[test]
fn random_lives_agree_with_the_model() {
    // A life takes seconds on a server.
    let lives = if is_full_tier() { 30 } else { 8 };
    run_model(fresh_store, Runs::new(lives, 60));
}

async fn fresh() -> (Arc<dyn Store>, common::Database) {
    let database = common::Database::migrated().await;
    let store = PgStore::connect(&database.url).await.expect("a database can be opened");
    (Arc::new(store), database)
}

windlass_testkit::behaviour_tests!(fresh);

/// RUN-3: between processes, too.
#[test]
fn a_job_of_another_process_starts_without_a_poll() {
    windlass_testkit::behaviour::check(async {
        let (store, _database) = fresh().await;
        windlass_testkit::behaviour::a_job_of_another_process_starts_without_a_poll(store).await;
    });
}

windlass_testkit::sealed_behaviour_tests!(fresh);
