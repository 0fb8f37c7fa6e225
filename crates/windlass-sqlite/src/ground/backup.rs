//! Copies a database while it is in use (`windlass backup`). Works on the file itself with a connection of its own, so
//! that it needs neither the store nor the process that has it open. Never stops that process from writing.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use windlass_core::store::{Error, Result};

use crate::ground::migrate;
use crate::ground::private::{beside, create_private};
use crate::ground::rows::sql_error;
use crate::{BUSY_TIMEOUT, name_file};

/// Copies a consistent snapshot of the database `from` into the new file `to`, and returns its size in bytes. Only the
/// owner may read the copy, and it is either complete or absent. Fails if `to` exists. Blocks until it is done.
///
/// When a store opens the copy, it continues from that moment: jobs that ran then are recovered as after a crash. The
/// copy does not contain secrets of servers ([`Store::setting`](windlass_core::store::Store::setting)): users must log
/// in again.
pub fn backup(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
    let (from, to) = (from.as_ref(), to.as_ref());
    if to.exists() {
        return Err(exists(to));
    }
    // Of its own: another backup into the same file must not get half of this one.
    let unfinished = beside(to, &format!(".{}-{}.part", std::process::id(), BACKUPS.fetch_add(1, Ordering::Relaxed)));
    let copied = copy(from, &unfinished).and_then(|bytes| {
        let moved = move_new(&unfinished, to).and_then(|()| sync_directory(to));
        moved.map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => exists(to),
            _ => Error::Unavailable(format!("cannot create {}: {e}", to.display())),
        })?;
        Ok(bytes)
    });
    if copied.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    copied
}

/// Backups of this process so far.
static BACKUPS: AtomicU64 = AtomicU64::new(0);

fn exists(to: &Path) -> Error {
    Error::Refused(format!("{} already exists; name a new file", to.display()))
}

/// Gives a file its name, unless something has it by now: a copy takes long, and what came meanwhile is not ours.
fn move_new(from: &Path, to: &Path) -> std::io::Result<()> {
    match std::fs::hard_link(from, to) {
        Ok(()) => std::fs::remove_file(from),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
        // Some file systems know no second names.
        Err(_) => rename_new(from, to),
    }
}

#[cfg(target_os = "linux")]
fn rename_new(from: &Path, to: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

#[cfg(not(target_os = "linux"))]
fn rename_new(_: &Path, to: &Path) -> std::io::Result<()> {
    Err(std::io::Error::new(
        ErrorKind::Unsupported,
        format!("the file system of {} does not support links", to.display()),
    ))
}

/// Copies all pages in one step: a reader of a file with a log sees one moment however long it takes, and the writer
/// goes on meanwhile.
fn copy(from: &Path, to: &Path) -> Result<u64> {
    let shown = from.display().to_string();
    let of_source = |e: rusqlite::Error| name_file(&shown, sql_error(&e));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source = Connection::open_with_flags(from, flags).map_err(of_source)?;
    source.busy_timeout(BUSY_TIMEOUT).map_err(of_source)?;
    migrate::check(&source, &shown)?;
    let cannot = |e: std::io::Error| Error::Unavailable(format!("cannot write {}: {e}", to.display()));
    let file = create_private(to).map_err(cannot)?;
    {
        let of_copy = |e: rusqlite::Error| name_file(&to.display().to_string(), sql_error(&e));
        let mut copy = Connection::open(to).map_err(of_copy)?;
        let backup = Backup::new(&source, &mut copy).map_err(of_copy)?;
        match backup.step(ALL_PAGES).map_err(of_copy)? {
            StepResult::Done => {}
            _ => return Err(Error::Unavailable(format!("{shown} is locked by another program"))),
        }
    }
    file.sync_all().map_err(cannot)?;
    file.metadata().map(|found| found.len()).map_err(cannot)
}

/// What SQLite takes for all pages that are left.
const ALL_PAGES: std::ffi::c_int = -1;

/// A name is on disk when its directory is.
fn sync_directory(file: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::File::open(directory)?.sync_all()?;
    }
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_came_meanwhile_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let (copy, taken, free) = (directory.path().join("c"), directory.path().join("t"), directory.path().join("f"));
        std::fs::write(&copy, "copy").expect("writes");
        std::fs::write(&taken, "somebody's").expect("writes");
        for refused in [move_new(&copy, &taken), rename_new(&copy, &taken)] {
            let kind = refused.expect_err("it is taken").kind();
            assert!(matches!(kind, ErrorKind::AlreadyExists | ErrorKind::Unsupported), "{kind}");
        }
        assert_eq!(std::fs::read_to_string(&taken).expect("reads"), "somebody's");
        move_new(&copy, &free).expect("it is free");
        assert_eq!((std::fs::read_to_string(&free).expect("reads").as_str(), copy.exists()), ("copy", false));
    }
}
