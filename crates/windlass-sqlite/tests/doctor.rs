//! What a SQLite store finds when it looks at its file.

use std::io::{Seek, SeekFrom, Write};

use windlass_core::health::{Checkup, Finding, Level};
use windlass_core::store::rooms::*;
use windlass_sqlite::{SqliteStore, rusqlite};

async fn found(store: &SqliteStore, check: &str) -> Finding {
    let findings = store.examine(&Checkup::default()).await.expect("examines");
    findings.into_iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("nothing about {check}"))
}

/// BEY-10.
#[tokio::test]
async fn a_sound_file_is_found_sound() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = SqliteStore::open(directory.path().join("jobs.db")).expect("opens");
    for check in ["sqlite", "journal", "integrity", "log"] {
        assert_eq!(found(&store, check).await.level, Level::Ok, "{check}");
    }
    #[cfg(target_os = "linux")]
    assert!(found(&store, "disk").await.message.contains("MB are free"));
}

/// BEY-10.
#[tokio::test]
async fn another_journal_mode_and_a_damaged_file_are_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("jobs.db");
    drop(SqliteStore::open(&path).expect("opens"));
    let conn = rusqlite::Connection::open(&path).expect("opens");
    conn.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).expect("someone changes the mode");
    // A table of pages that can be damaged without touching the schema.
    let fill = "CREATE TABLE filler (t TEXT); CREATE INDEX filler_t ON filler (t);
                INSERT INTO filler SELECT hex(randomblob(400)) FROM windlass_schema, (VALUES (1), (2), (3), (4), (5), (6));
                INSERT INTO filler SELECT t || 'x' FROM filler; INSERT INTO filler SELECT t || 'y' FROM filler;";
    conn.execute_batch(fill).expect("filled");
    let pages: u32 = conn.query_row("PRAGMA page_count", [], |row| row.get(0)).expect("pages");
    drop(conn);
    let store = SqliteStore::open_read_only(&path).expect("opens for reading");
    assert_eq!(found(&store, "journal").await.level, Level::Fail);
    assert_eq!(found(&store, "integrity").await.level, Level::Ok);
    drop(store);
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("opens");
    file.seek(SeekFrom::Start(u64::from(pages - 1) * 4_096)).expect("seeks");
    file.write_all(&[0xA5; 4_096]).expect("the disk damages a page");
    drop(file);
    let store = SqliteStore::open_read_only(&path).expect("opens for reading");
    let finding = found(&store, "integrity").await;
    assert!(finding.level == Level::Fail && finding.message.contains("damaged"), "{finding:?}");
}
