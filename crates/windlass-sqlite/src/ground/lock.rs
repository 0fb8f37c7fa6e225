//! Keeps a second process off a file: an advisory lock on a file beside it, which the system releases however the
//! process ends. Taken when a store is opened for writing and held by the writer thread, which removes the file at its
//! end. Whoever gets a lock looks whether the file still has its name: one that was removed or replaced is no lock.
//!
//! A writer holds the lock exclusively. A shared lock is that of someone who looks whether there is a writer, or of
//! somebody who wants to keep us out: it is waited for briefly, and then the file is replaced by a new one.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use windlass_core::store::{Error, Result};

use crate::ground::private::{beside, open_private};

/// How long a shared lock is waited for: a look whether there is a writer takes microseconds.
const PATIENCE: Duration = Duration::from_millis(10);
/// How often, before the file is replaced. More than as often again means that others replace it all the time.
const LOOKS: usize = 20;

/// A held lock; dropping it gives the file to others.
#[derive(Debug)]
pub(crate) struct FileLock {
    file: File,
    path: PathBuf,
}

impl FileLock {
    /// Takes the lock of the database at `path`, or says who has it.
    pub(crate) fn take(path: &Path) -> Result<FileLock> {
        let lock = beside(path, ".lock");
        let cannot = |e: std::io::Error| Error::Unavailable(format!("cannot lock {}: {e}", path.display()));
        for look in 0..2 * LOOKS {
            let mut file = open_private(&lock).map_err(cannot)?;
            make_private(&file);
            let fresh = match hold(&file).map_err(cannot)? {
                Hold::Ours => is_at(&file, &lock).then_some(file),
                Hold::Writer => return Err(taken(path, &lock, &mut file)),
                Hold::Readers if look >= LOOKS => replace(&file, &lock).map_err(cannot)?,
                Hold::Readers => {
                    drop(file);
                    std::thread::sleep(PATIENCE);
                    None
                }
            };
            if let Some(mut file) = fresh {
                // Who has it is for people and for commands that look for a server; a lock without it is still one.
                let _ = file.set_len(0).and_then(|()| file.rewind());
                let _ = write!(file, "{}", std::process::id());
                return Ok(FileLock { file, path: lock });
            }
        }
        let lock = lock.display();
        Err(Error::Unavailable(format!("cannot lock {}: another program keeps locking {lock}", path.display())))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Still locked: whoever has opened this file meanwhile will find that it has lost its name.
        if CAN_COMPARE && is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Who has a lock.
enum Hold {
    Ours,
    Writer,
    /// Somebody shares it, and now we do, too.
    Readers,
}

fn hold(file: &File) -> std::io::Result<Hold> {
    match file.try_lock() {
        Ok(()) => return Ok(Hold::Ours),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    match file.try_lock_shared() {
        Ok(()) => Ok(Hold::Readers),
        Err(TryLockError::WouldBlock) => Ok(Hold::Writer),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Puts a new file, locked by us, in the place of one that nobody has locked to write. We share the lock of the old one
/// meanwhile, so nobody can become a writer by it. Of two who try, one has the lock of the new file; the other comes back
/// and finds a writer.
fn replace(old: &File, lock: &Path) -> std::io::Result<Option<File>> {
    if !CAN_COMPARE {
        return Ok(None);
    }
    let path = beside(lock, ".new");
    let fresh = open_private(&path)?;
    if fresh.try_lock().is_err() || !is_at(&fresh, &path) {
        return Ok(None);
    }
    if !is_at(old, lock) {
        std::fs::remove_file(&path)?;
        return Ok(None);
    }
    tracing::warn!("another program has a shared lock on {}; replacing it with a new file", lock.display());
    std::fs::rename(&path, lock)?;
    Ok(Some(fresh))
}

fn taken(path: &Path, lock: &Path, file: &mut File) -> Error {
    // A handful of digits; the bound keeps a strange file from being read in full.
    let mut holder = String::new();
    let _ = file.take(20).read_to_string(&mut holder);
    let path = path.display();
    Error::Refused(match holder.trim().parse::<u32>() {
        Ok(pid) if is_alive(pid) => format!(
            "{path} is in use by process {pid}, and only one process at a time may write to it: stop that process, send requests to it, or open the file read-only"
        ),
        _ => format!(
            "{path} is locked by an unknown program: find it with `lsof {}`; stop it, or open the file read-only",
            lock.display()
        ),
    })
}

/// Whether there is such a process, as far as this system can be asked.
fn is_alive(pid: u32) -> bool {
    !cfg!(target_os = "linux") || Path::new(&format!("/proc/{pid}")).exists()
}

/// Takes from others what an earlier version, or somebody, has given them. Fails where the file is another user's, whose
/// business it is.
fn make_private(file: &File) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if file.metadata().is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
            let _ = file.set_permissions(std::fs::Permissions::from_mode(0o600));
        }
    }
    #[cfg(not(unix))]
    let _ = file;
}

/// Whether files can be told apart: without that none is removed or replaced.
const CAN_COMPARE: bool = cfg!(unix);

/// Whether the open file is the one with this name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |found: std::fs::Metadata| (found.dev(), found.ino());
    matches!((file.metadata().map(id), path.metadata().map(id)), (Ok(open), Ok(named)) if open == named)
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}
