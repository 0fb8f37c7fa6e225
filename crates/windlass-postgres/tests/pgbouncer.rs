//! Everything a store promises also holds behind PgBouncer in transaction mode, where no two statements need share a
//! session. Runs in the full tier (`cargo xtask test --tier full`), which starts the pooler.

mod common;

use std::sync::Arc;

use windlass_postgres::{PgOptions, PgStore};
use windlass_testkit::conformance::{TestStore, cases, run_case};
use windlass_testkit::servers::{is_full_tier, test_pgbouncer_url};

async fn behind_the_pooler() -> TestStore {
    let pooler = test_pgbouncer_url().expect("the full tier starts a pooler");
    let database = common::Database::fresh().await;
    // Migrated directly; LISTEN needs a session, so it is off.
    drop(PgStore::connect(&database.url).await.expect("a fresh database can be opened"));
    let url = common::with_database(&pooler, &database.name);
    let options = PgOptions::new(&url).expect("a database URL").listen(false);
    let store = PgStore::connect_with(options).await.expect("the pooler lets us through");
    TestStore::new(Arc::new(store), tokio::time::sleep).keeping(database)
}

#[test]
fn every_promise_of_a_store_holds_behind_a_pooler_in_the_full_tier() {
    if !is_full_tier() {
        return;
    }
    for case in cases() {
        run_case(case.name, behind_the_pooler);
    }
}
