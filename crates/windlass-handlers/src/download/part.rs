//! The unfinished file of a download: opened where the last attempt left it, written in chunks, named when it is whole.
//! Called by the download handler on threads that may block. Never decides what belongs into the file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cap_std::fs::{Dir, OpenOptions};
use sha2::{Digest, Sha256};
use windlass_core::{JobError, JobId};

use crate::root::{HIDDEN, Root, disk};

/// How long an unfinished file that nobody writes to is kept: longer than any retry waits, short enough that what
/// canceled jobs leave does not fill a disk.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Directories of tenants looked through for what is left, when a process starts.
const DIRECTORIES_SWEPT: usize = 10_000;
/// Read at once when a file is checked.
const READ: usize = 256 * 1024;

/// An unfinished file, locked against every other attempt.
pub(crate) struct Part {
    pub(crate) bytes: u64,
    file: File,
    hash: Option<Sha256>,
}

/// Where a download goes.
#[derive(Clone)]
pub(crate) struct Target {
    dir: Arc<Dir>,
    part: String,
    to: String,
}

impl Target {
    /// The file `to` of a tenant's directory, written by one job. The directories above it are created.
    pub(crate) fn open(dir: Arc<Dir>, job: JobId, to: &str) -> Result<Target, JobError> {
        let failed = |error: io::Error| disk("create the directory of the file", &error);
        dir.create_dir_all(HIDDEN).map_err(failed)?;
        if let Some(parent) = Path::new(to).parent().filter(|parent| !parent.as_os_str().is_empty()) {
            dir.create_dir_all(parent).map_err(failed)?;
        }
        match dir.symlink_metadata(to) {
            Ok(found) if found.is_dir() => Err(JobError::terminal("bad_path", "there is a directory of this name")),
            _ => Ok(Target { dir, part: format!("{HIDDEN}/{job}.part"), to: to.to_owned() }),
        }
    }

    /// Opens the unfinished file with at most the first `keep` of its bytes, and counts them into the digest.
    pub(crate) fn part(&self, keep: u64, with_digest: bool) -> Result<Part, JobError> {
        let failed = |error: io::Error| disk("open the unfinished file", &error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = self.dir.open_with(&self.part, &options).map_err(failed)?.into_std();
        lock(&file)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(JobError::terminal("bad_path", "the unfinished file is not a plain file"));
        }
        let mut part = Part { bytes: 0, file, hash: None };
        part.keep(found.len().min(keep), with_digest)?;
        Ok(part)
    }

    /// Gives the file its name, for good: both the file and the directories are on the disk when this returns.
    pub(crate) fn finish(&self, part: &Part) -> Result<(), JobError> {
        let failed = |error: io::Error| disk("name the file", &error);
        part.file.sync_all().map_err(failed)?;
        self.dir.rename(&self.part, &self.dir, &self.to).map_err(failed)?;
        sync_directories(&self.dir, &self.to).map_err(failed)
    }

    /// Whether an earlier attempt has given the file its name already: the unfinished one is gone, and what has the name
    /// is as long, and has the digest, that was checked.
    pub(crate) fn is_finished(&self, bytes: u64, digest: Option<&str>) -> Result<bool, JobError> {
        let failed = |error: io::Error| disk("look at the file", &error);
        let Ok(mut file) = self.dir.open(&self.to).map(cap_std::fs::File::into_std) else { return Ok(false) };
        let found = file.metadata().map_err(failed)?;
        if self.dir.symlink_metadata(&self.part).is_ok() || !found.is_file() || found.len() != bytes {
            return Ok(false);
        }
        let Some(digest) = digest else { return Ok(true) };
        let mut hash = Sha256::new();
        read_into(&mut file, bytes, &mut hash).map_err(failed)?;
        Ok(hex(hash).eq_ignore_ascii_case(digest))
    }

    /// Removes the unfinished file.
    pub(crate) fn remove(&self) {
        let _ = self.dir.remove_file(&self.part);
    }
}

impl Part {
    /// Cuts the file after its first `bytes`, and counts these into a new digest.
    pub(crate) fn keep(&mut self, bytes: u64, with_digest: bool) -> Result<(), JobError> {
        let failed = |error: io::Error| disk("cut the unfinished file", &error);
        self.file.set_len(bytes).map_err(failed)?;
        let mut hash = with_digest.then(Sha256::new);
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        match &mut hash {
            Some(hash) => read_into(&mut self.file, bytes, hash).map_err(failed)?,
            None => drop(self.file.seek(SeekFrom::Start(bytes)).map_err(failed)?),
        }
        (self.bytes, self.hash) = (bytes, hash);
        Ok(())
    }

    /// Adds to the end of the file.
    pub(crate) fn append(&mut self, chunk: &[u8]) -> Result<(), JobError> {
        self.file.write_all(chunk).map_err(|error| disk("write the file", &error))?;
        self.bytes += chunk.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(chunk);
        }
        Ok(())
    }

    /// Returns when all that was written is on the disk.
    pub(crate) fn sync(&self) -> Result<(), JobError> {
        self.file.sync_data().map_err(|error| disk("write the file", &error))
    }

    /// The digest of all that is there, if it was asked for.
    pub(crate) fn digest(&self) -> Option<String> {
        self.hash.clone().map(hex)
    }
}

/// A new name is on the disk when its directory is, and that one's name when the directory above it is.
#[cfg(unix)]
fn sync_directories(dir: &Dir, file: &str) -> io::Result<()> {
    Path::new(file).ancestors().skip(1).try_for_each(|above| {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        dir.open(above)?.sync_all()
    })
}

#[cfg(not(unix))]
fn sync_directories(_: &Dir, _: &str) -> io::Result<()> {
    Ok(())
}

/// An attempt that lost its lease may still write; two writers would mix their bytes.
#[cfg(unix)]
fn lock(file: &File) -> Result<(), JobError> {
    use rustix::fs::{FlockOperation, flock};
    let in_use = |_| JobError::new("file_in_use", "another attempt of this job still writes the file");
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(in_use)
}

#[cfg(not(unix))]
fn lock(_: &File) -> Result<(), JobError> {
    Ok(())
}

fn read_into(file: &mut File, bytes: u64, hash: &mut Sha256) -> io::Result<()> {
    let mut left = file.take(bytes);
    let mut buffer = vec![0; READ];
    loop {
        match left.read(&mut buffer)? {
            0 => return Ok(()),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Removes unfinished files that nobody has written to for long. Returns how many.
pub(crate) fn sweep(root: &Root, now: SystemTime) -> io::Result<usize> {
    let mut removed = 0;
    for dir in root.all(DIRECTORIES_SWEPT)? {
        let Ok(hidden) = dir.open_dir(HIDDEN) else { continue };
        for entry in hidden.entries()? {
            let entry = entry?;
            let written = entry.metadata()?.modified()?.into_std();
            if now.duration_since(written).is_ok_and(|age| age > KEPT) && hidden.remove_file(entry.file_name()).is_ok()
            {
                removed += 1;
            }
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::TenantId;

    fn target(root: &Path) -> Target {
        let dir = Root::open(root).expect("opens").of(TenantId::ROOT).expect("opens");
        Target::open(dir, JobId::from_i64(7), "a/b.bin").expect("a target")
    }

    /// HND-1: what is beyond the checkpoint is not trusted, and the digest covers what is kept.
    #[test]
    fn a_part_is_opened_where_it_was_saved() {
        let place = tempfile::tempdir().expect("a directory");
        let target = target(place.path());
        let mut part = target.part(0, false).expect("opens");
        part.append(b"hello world").expect("writes");
        drop(part);
        let mut part = target.part(5, true).expect("opens");
        assert_eq!(part.bytes, 5);
        part.append(b"!").expect("writes");
        let digest = "ce06092fb948d9ffac7d1a376e404b26b7575bcc11ee05a4615fef4fec3a308b";
        assert_eq!(part.digest().as_deref(), Some(digest), "of `hello!`");
        target.finish(&part).expect("named");
        assert_eq!(std::fs::read(place.path().join("a/b.bin")).expect("reads"), b"hello!");
        assert!(target.is_finished(6, Some(digest)).expect("looks"));
        assert!(!target.is_finished(6, Some(&digest.replace('c', "d"))).expect("looks"));
        assert!(!target.is_finished(5, None).expect("looks"));
    }

    /// HND-1: a second attempt does not write while the first may.
    #[cfg(unix)]
    #[test]
    fn two_attempts_do_not_write_one_file() {
        let place = tempfile::tempdir().expect("a directory");
        let target = target(place.path());
        let first = target.part(0, false).expect("opens");
        let error = target.part(0, false).err().expect("refused");
        assert_eq!((error.code.as_str(), error.is_retryable()), ("file_in_use", true));
        drop(first);
        assert!(target.part(0, false).is_ok());
    }

    #[test]
    fn only_what_nobody_writes_to_is_swept() {
        let place = tempfile::tempdir().expect("a directory");
        drop(target(place.path()).part(0, false).expect("opens"));
        let root = Root::open(place.path()).expect("opens");
        let now = SystemTime::now();
        assert_eq!(sweep(&root, now + KEPT / 2).expect("sweeps"), 0);
        assert_eq!(sweep(&root, now + KEPT * 2).expect("sweeps"), 1);
    }
}
