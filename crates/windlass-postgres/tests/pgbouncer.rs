//! Everything a store promises also holds behind PgBouncer in transaction mode, where no two statements need share a
//! session. `cargo xtask test` starts the pooler.

mod common;

use std::sync::Arc;

use windlass_postgres::{PgOptions, PgStore};
use windlass_testkit::conformance::{Case, TestStore, cases, run_case};
use windlass_testkit::servers::{is_full_tier, test_pgbouncer_url};

async fn behind_the_pooler() -> TestStore {
    let pooler = test_pgbouncer_url();
    let database = common::Database::fresh().await;
    // Migrated directly; LISTEN needs a session, so it is off.
    drop(PgStore::connect(&database.url).await.expect("a fresh database can be opened"));
    let url = common::with_database(&pooler, &database.name);
    let options = PgOptions::new(&url).expect("a database URL").listen(false);
    let store = PgStore::connect_with(options).await.expect("the pooler lets us through");
    TestStore::new(Arc::new(store), tokio::time::sleep).keeping(database)
}

/// What a pooler can break: a lease that has one winner rests on locks and fences of one transaction, and the walls between
/// tenants on a role and a setting of one. The short tier runs the cases that show these, the full tier all of them.
#[test]
fn the_promises_of_a_store_hold_behind_a_pooler() {
    let breakable = |case: &Case| case.requirements.iter().any(|id| ["RUN-4", "SEC-1"].contains(id));
    let mut ran = 0;
    for case in cases().iter().filter(|case| is_full_tier() || breakable(case)) {
        eprintln!("{}", case.name);
        run_case(case.name, behind_the_pooler);
        ran += 1;
    }
    assert!(ran > 10, "only {ran} cases ran");
}
