//! Keeps what belongs to a database from other users of the machine: files are created for their owner alone, and files
//! that others may read are reported. Called by `lib`, `lock` and `secrets` when they create a file, and by `examine`.
//! Never changes the mode of a database that is there already: its owner may have chosen it.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use windlass_core::health::Finding;

/// What stands beside a database: SQLite's own two files, ours, and the one of the command line.
const BESIDE: [&str; 5] = ["-wal", "-shm", ".lock", ".secrets", ".server"];

/// Opens a file for writing, and creates it for its owner alone (mode 0600) where it is not there.
pub(crate) fn open_private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Creates a file for its owner alone, in the place of one that a crash has left. Never opens what is there: others may have
/// put it there, to read what is written.
pub(crate) fn create_private(path: &Path) -> std::io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Reads a file with secrets beside a database. Fails if the file is a link, or if its owner is not this user, the
/// owner of the database or root: in a directory that others may write to, someone else may have put it there.
pub fn read_beside(database: impl AsRef<Path>, ending: &str) -> std::io::Result<String> {
    let (database, mut text) = (database.as_ref(), String::new());
    let path = beside(database, ending);
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        // Nor does a pipe that somebody put there keep us waiting.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits() as i32);
    }
    let mut file = options.open(&path)?;
    check_owner(&file, database)?;
    std::io::Read::read_to_string(&mut file, &mut text)?;
    Ok(text)
}

#[cfg(unix)]
fn check_owner(file: &File, database: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let found = file.metadata()?;
    let trusted =
        [Some(rustix::process::geteuid().as_raw()), database.metadata().ok().map(|found| found.uid()), Some(0)];
    if found.is_file() && trusted.contains(&Some(found.uid())) {
        return Ok(());
    }
    let message = format!("another user ({}) created it, so it is not trusted; remove it", found.uid());
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, message))
}

#[cfg(not(unix))]
fn check_owner(_: &File, _: &Path) -> std::io::Result<()> {
    Ok(())
}

/// The path of a file that stands beside a database.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Checks whether other users of this machine may read the database at `path` or replace it. Show the finding when a
/// process starts to serve the database.
pub fn privacy(path: impl AsRef<Path>) -> Finding {
    let path = path.as_ref();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let files = std::iter::once(path.clone()).chain(BESIDE.iter().map(|ending| beside(&path, ending)));
    let exposed: Vec<PathBuf> = files.filter(|file| allows(file, OTHERS_ANY)).collect();
    if !exposed.is_empty() {
        let names = exposed.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" ");
        let message = format!("other users of this machine may read {names}, and with them every job");
        return Finding::warn("files", message, format!("run `chmod 600 {names}`"));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // With the sticky bit, as `/tmp` has it, nobody can replace another user's files.
    if allows(directory, OTHERS_WRITE) && !allows(directory, STICKY) {
        let directory = directory.display();
        let message =
            format!("other users of this machine may replace the database, because they may write to {directory}");
        return Finding::warn("files", message, format!("run `chmod go-w {directory}`"));
    }
    Finding::ok("files", "only the owner may read the files")
}

/// Any right of the group or of others.
const OTHERS_ANY: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Whether a file has one of these mode bits; one that is not there has none.
#[cfg(unix)]
fn allows(path: &Path, bits: u32) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|file| file.permissions().mode() & bits != 0)
}

#[cfg(not(unix))]
fn allows(_: &Path, _: u32) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// SEC-2.
    #[test]
    fn secrets_of_others_are_not_read() {
        use std::os::unix::fs::{chown, symlink};
        let directory = tempfile::tempdir().expect("a directory");
        let database = directory.path().join("jobs.db");
        let (secrets, other) = (beside(&database, ".secrets"), directory.path().join("other"));
        std::fs::write(&database, "").expect("writes");
        std::fs::write(&secrets, "mine").expect("writes");
        assert_eq!(read_beside(&database, ".secrets").expect("ours"), "mine");
        // Only root can give a file away.
        if rustix::process::geteuid().is_root() {
            chown(&secrets, Some(65_534), None).expect("root may");
            let refused = read_beside(&database, ".secrets").expect_err("of somebody else");
            assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");
            chown(&database, Some(65_534), None).expect("root may");
            assert_eq!(read_beside(&database, ".secrets").expect("of the owner of the database"), "mine");
        }
        std::fs::rename(&secrets, &other).expect("moves");
        symlink(&other, &secrets).expect("links");
        read_beside(&database, ".secrets").expect_err("a link");
    }

    #[test]
    fn a_new_file_is_never_one_that_was_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, target) = (directory.path().join("new"), directory.path().join("theirs"));
        std::fs::write(&target, "theirs").expect("writes");
        std::os::unix::fs::symlink(&target, &path).expect("links");
        std::io::Write::write_all(&mut create_private(&path).expect("creates"), b"secret").expect("writes");
        assert_eq!(std::fs::read_to_string(&target).expect("reads"), "theirs");
        assert_eq!(std::fs::read_to_string(&path).expect("reads"), "secret");
    }
}
