//! How the schema follows the program: what a fresh database holds is written down in `src/sql/schema.txt`, functions are
//! applied again when their text differs, and never by an older release.

mod common;

use std::path::Path;

use windlass_core::health::{Checkup, Level};
use windlass_core::store::Error;
use windlass_core::store::rooms::*;
use windlass_postgres::{PgOptions, PgStore};

/// Leaves `rank_of` as another text would have created it.
const OTHER_TEXT: &str = "
    create or replace function windlass.rank_of(p_priority smallint) returns smallint language sql immutable as
    $$ select 7::smallint $$;
    update windlass.schema_object set digest = 'of another text' where name = 'file jobs/line.sql';
    select windlass.note_schema();";

const RANK: &str = "select windlass.rank_of(3::smallint)";

/// BEY-17: all tests here run on each of these versions (`cargo xtask postgres`), and on the one that was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_of_a_version_that_is_tested() {
    let database = common::Database::fresh().await;
    let sql = "select current_setting('server_version_num')::int / 10000";
    let version: i32 = database.client().await.query_one(sql, &[]).await.expect("answers").get(0);
    assert!((15..=18).contains(&version), "PostgreSQL {version} is not tested");
    if let Some(programs) = std::env::var_os(windlass_testkit::servers::POSTGRES_BIN_VAR) {
        let program = Path::new(&programs).join("postgres");
        let said = std::process::Command::new(program).arg("--version").output().expect("it runs").stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.contains(&format!(" {version}.")), "the tests run on {version}, not on {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_whose_text_differs_is_applied_again() {
    let database = common::Database::fresh().await;
    let options = || PgOptions::new(&database.url).expect("a URL").listen(false);
    drop(PgStore::connect_with(options()).await.expect("migrates"));
    let client = database.client().await;
    client.batch_execute(OTHER_TEXT).await.expect("written");
    let status = PgStore::schema_status(&database.url).await.expect("asks");
    assert_eq!((status.found, status.functions, status.is_current()), (status.wanted, 1, false));
    let refused = PgStore::connect_with(options().migrate(false)).await.expect_err("it must be migrated first");
    assert!(matches!(&refused, Error::Refused(message) if message.contains("windlass migrate")), "{refused}");
    let store = PgStore::connect_with(options()).await.expect("migrates");
    assert_eq!(client.query_one(RANK, &[]).await.expect("a rank").get::<_, i16>(0), -3);
    assert!(PgStore::schema_status(&database.url).await.expect("asks").is_current());
    let drift = store.examine(&Checkup::default()).await.expect("examined");
    assert!(drift.iter().any(|finding| finding.check == "drift" && finding.level == Level::Ok), "{drift:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_functions_of_a_newer_release_stay() {
    let database = common::Database::fresh().await;
    let options = || PgOptions::new(&database.url).expect("a URL").listen(false);
    drop(PgStore::connect_with(options()).await.expect("migrates"));
    let client = database.client().await;
    let newer = "update windlass.schema_object set digest = '999.0.0' where name = 'release'";
    client.batch_execute(&format!("{newer}; {OTHER_TEXT}")).await.expect("written");
    assert!(PgStore::schema_status(&database.url).await.expect("asks").is_current());
    for migrate in [true, false] {
        drop(PgStore::connect_with(options().migrate(migrate)).await.expect("works with them"));
        assert_eq!(client.query_one(RANK, &[]).await.expect("a rank").get::<_, i16>(0), 7);
    }
}

/// Bodies are not checked while functions are applied, because they may be in any order.
#[tokio::test(flavor = "multi_thread")]
async fn the_body_of_every_function_is_checked() {
    let database = common::Database::fresh().await;
    let options = PgOptions::new(&database.url).expect("a URL").listen(false);
    drop(PgStore::connect_with(options).await.expect("migrates"));
    let client = database.client().await;
    let functions = "select p.oid::regprocedure::text, l.lanname::text, p.oid from pg_proc p
                     join pg_language l on l.oid = p.prolang where p.pronamespace = 'windlass'::regnamespace";
    let functions = client.query(functions, &[]).await.expect("functions");
    assert!(functions.len() > 50);
    for function in functions {
        let (name, language, oid): (String, String, u32) = (function.get(0), function.get(1), function.get(2));
        let validator = if language == "sql" { "fmgr_sql_validator" } else { "plpgsql_validator" };
        let checked = client.query(&format!("select {validator}({oid})"), &[]).await;
        assert!(checked.is_ok(), "{name}: {checked:?}");
    }
}

/// A change of the schema is seen where it is read: in the difference of one file. `sql/schema.txt` is what a release is
/// compared with.
#[tokio::test(flavor = "multi_thread")]
async fn the_written_schema_is_the_one_of_a_fresh_database() {
    let database = common::Database::fresh().await;
    let options = PgOptions::new(&database.url).expect("a URL").listen(false);
    drop(PgStore::connect_with(options).await.expect("migrates"));
    let client = database.client().await;
    // Names are printed with their schema.
    client.batch_execute("set search_path = ''").await.expect("set");
    let rows = client.query(include_str!("sql/schema.sql"), &[]).await.expect("the catalog");
    let found: String = rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sql/schema.txt");
    if std::env::var_os("WINDLASS_WRITE_SCHEMA").is_some() {
        std::fs::write(&page, &found).expect("the file can be written");
    }
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    let first = found.lines().zip(written.lines()).position(|(found, written)| found != written);
    let first = first.unwrap_or(found.lines().count().min(written.lines().count()));
    assert!(
        found == written,
        "src/sql/schema.txt is out of date from line {} on: write it anew with WINDLASS_WRITE_SCHEMA=1, and read what changed\n\
         found   {:?}\nwritten {:?}",
        first + 1,
        found.lines().nth(first),
        written.lines().nth(first)
    );
}
