//! Looks at the file and the disk it is on. Called by the store's `examine`, on a connection of the readers or on
//! the writer's. Never writes.

use std::path::Path;

use rusqlite::Connection;
use windlass_core::health::Finding;

use crate::ground::private::privacy;
use crate::ground::rows::Done;

/// Before this version, SQLite could corrupt a file in WAL mode that two connections use.
const SAFE_VERSION: i32 = 3_051_003;
/// A log this long is kept from being written back, by a reader that does not end. It is cut back to 64 MB otherwise.
const LOG_BYTES: u64 = 256 << 20;
/// Less room than this is soon used up.
const ROOM_WARN: u64 = 1 << 30;
const ROOM_FAIL: u64 = 64 << 20;
/// A larger file takes too long to be read whole.
const CHECKED_BYTES: u64 = 2 << 30;
/// Problems of a damaged file that are told.
const PROBLEMS: usize = 3;

/// What can be said of an open store.
pub(crate) fn examine(conn: &Connection, path: &Path) -> Done<Vec<Finding>> {
    let mut findings = vec![version(), journal(conn)?];
    if path.is_file() {
        findings.push(integrity(conn, path)?);
        findings.push(log(path));
        findings.push(privacy(path));
        #[cfg(target_os = "linux")]
        findings.extend(disk::findings(path));
    }
    Ok(findings)
}

fn version() -> Finding {
    let version = rusqlite::version();
    match rusqlite::version_number() >= SAFE_VERSION {
        true => Finding::ok("sqlite", format!("library version {version}")),
        false => Finding::warn(
            "sqlite",
            format!("library version {version} can corrupt a file in WAL mode when two connections use it"),
            "build with SQLite 3.51.3 or newer; until then open the file only with windlass",
        ),
    }
}

fn journal(conn: &Connection) -> Done<Finding> {
    let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    Ok(match mode.as_str() {
        "wal" | "memory" => {
            Finding::ok("journal", format!("mode `{mode}`; Windlass itself writes with synchronous = FULL"))
        }
        _ => Finding::fail(
            "journal",
            format!("mode `{mode}` instead of `wal`: someone has changed it"),
            "stop all programs that use the file; the next `windlass up` sets it again",
        ),
    })
}

fn integrity(conn: &Connection, path: &Path) -> Done<Finding> {
    let bytes = path.metadata().map_or(0, |file| file.len());
    if bytes > CHECKED_BYTES {
        let message = format!("the file has {} MB and was only checked in part", bytes >> 20);
        return Ok(Finding::ok("integrity", message));
    }
    let mut check = conn.prepare(&format!("PRAGMA quick_check({PROBLEMS})"))?;
    let read = |check: &mut rusqlite::Statement<'_>| -> rusqlite::Result<Vec<String>> {
        check.query_map([], |row| row.get(0))?.collect()
    };
    let problems = match read(&mut check) {
        // What is too damaged to be checked is an answer, too.
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ffi::ErrorCode::DatabaseCorrupt) => {
            vec![error.to_string()]
        }
        problems => problems?,
    };
    Ok(match problems.as_slice() {
        [fine] if fine == "ok" => Finding::ok("integrity", "the file is not damaged"),
        problems => {
            let fix =
                "stop all programs that use the file, keep a copy, and restore a backup, or try: sqlite3 FILE .recover";
            Finding::fail("integrity", format!("the file is damaged: {}", problems.join("; ")), fix)
        }
    })
}

fn log(path: &Path) -> Finding {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    let bytes = Path::new(&name).metadata().map_or(0, |file| file.len());
    match bytes > LOG_BYTES {
        true => Finding::warn(
            "log",
            format!("the write-ahead log has {} MB: a reader keeps it from being written back", bytes >> 20),
            "end programs that read the file for a long time",
        ),
        false => Finding::ok("log", format!("the write-ahead log has {} MB", bytes >> 20)),
    }
}

/// The disk, where the system can be asked about it.
#[cfg(target_os = "linux")]
mod disk {
    use super::*;

    /// What `statfs` calls file systems on which locks and memory maps are not what SQLite needs.
    const NETWORK: &[(i64, &str)] = &[
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x0102_1997, "9p"),
        (0x00c3_6400, "Ceph"),
        (0x5346_414f, "AFS"),
    ];

    pub(super) fn findings(path: &Path) -> Vec<Finding> {
        let Ok(disk) = rustix::fs::statfs(path) else { return Vec::new() };
        let free = disk.f_bavail.saturating_mul(disk.f_bsize.unsigned_abs());
        vec![room(free), network(disk.f_type & 0xffff_ffff)]
    }

    pub(super) fn room(free: u64) -> Finding {
        let message = format!("{} MB are free on the disk", free >> 20);
        let fix = "free disk space: remove other files, or shorten the retention";
        match free {
            free if free < ROOM_FAIL => Finding::fail("disk", message, fix),
            free if free < ROOM_WARN => Finding::warn("disk", message, fix),
            _ => Finding::ok("disk", message),
        }
    }

    pub(super) fn network(kind: i64) -> Finding {
        match NETWORK.iter().find(|(known, _)| *known == kind) {
            Some((_, name)) => Finding::fail(
                "file system",
                format!("the file is on {name}, where file locks are not reliable"),
                "move it to a local disk, or use PostgreSQL",
            ),
            None => Finding::ok("file system", "local"),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use windlass_core::health::Level;

    /// BEY-10.
    #[test]
    fn a_full_disk_and_a_network_file_system_are_found() {
        assert_eq!(disk::room(10 << 20).level, Level::Fail);
        assert_eq!(disk::room(500 << 20).level, Level::Warn);
        assert_eq!(disk::room(50 << 30).level, Level::Ok);
        assert_eq!(disk::network(0x6969).level, Level::Fail);
        assert_eq!(disk::network(0xef53).level, Level::Ok, "ext4");
    }
}
