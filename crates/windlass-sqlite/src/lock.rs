//! Keeps a second process off a file: an advisory lock on a file beside it, which the system releases however the
//! process ends. Taken when a store is opened for writing and held by the writer thread. Never removed, because a new
//! file under the same name would be a different lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use windlass_core::store::{Error, Result};

/// A held lock; dropping it gives the file to others.
#[derive(Debug)]
pub(crate) struct FileLock(#[expect(dead_code, reason = "held for its lock")] File);

impl FileLock {
    /// Takes the lock of the database at `path`, or says who has it.
    pub(crate) fn take(path: &Path) -> Result<FileLock> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        let cannot = |e: std::io::Error| Error::Unavailable(format!("cannot lock {}: {e}", path.display()));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(Path::new(&beside))
            .map_err(cannot)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken(path, &mut file)),
            Err(TryLockError::Error(e)) => return Err(cannot(e)),
        }
        // Who has it is for people only, so failing to write it down is no reason to stop.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id()));
        Ok(FileLock(file))
    }
}

fn taken(path: &Path, file: &mut File) -> Error {
    // A handful of digits; the bound keeps a strange file from being read in full.
    let mut holder = String::new();
    let _ = file.take(20).read_to_string(&mut holder);
    let holder = match holder.trim().parse::<u32>() {
        Ok(pid) => format!("process {pid}"),
        Err(_) => "another process".to_owned(),
    };
    Error::Refused(format!(
        "{} is in use by {holder}, and one process at a time may write to it: stop that process, talk to it instead, or open the file read-only",
        path.display()
    ))
}
