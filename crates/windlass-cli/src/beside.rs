//! Lets commands on this machine talk to the process that serves a SQLite file, because one process at a time may write to
//! it: a file beside the database says where it listens and has a key for it, for the owner alone. Written by `serve` and
//! `up`, removed when they end, read by `backend::open`. Whoever may read it may read the database anyway.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use windlass_server::LocalKey;

use crate::connect::Place;
use crate::error::{CliError, Result};
use crate::profile::write_private;
use crate::secret::Secret;

/// The process that serves a file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// Its process id: what another one has left behind is not believed.
    pid: u32,
    /// Where it listens.
    pub(crate) url: String,
    /// What it lets us in with.
    pub(crate) api_key: Secret,
}

/// What was said, taken back when dropped.
pub(crate) struct Announced(PathBuf);

impl Drop for Announced {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Says where this process serves the file, with the key that opens it. Nothing to say where others can write, too.
pub(crate) fn announce(place: &Place, url: &str, key: &LocalKey) -> Result<Option<Announced>> {
    let Place::Sqlite(path) = place else { return Ok(None) };
    let api_key = Secret::new(key.reveal().to_owned());
    let text = toml::to_string(&Beside { pid: std::process::id(), url: url.to_owned(), api_key });
    let text = text.map_err(|error| CliError::Failed(error.to_string()))?;
    let path = path_beside(path, "server");
    write_private(&path, text.as_bytes())
        .map_err(|error| CliError::Failed(format!("cannot write {}: {error}", path.display())))?;
    Ok(Some(Announced(path)))
}

/// The process that holds the file, if it serves it.
pub(crate) fn find(path: &Path) -> Option<Beside> {
    let beside = read(path)?;
    (holder(path) == Some(beside.pid)).then_some(beside)
}

fn read(path: &Path) -> Option<Beside> {
    // In a directory of everyone, somebody else may say that it serves the file: what is told to it would be lost.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let text = windlass::sqlite::read_beside(path, ".server").ok()?;
    toml::from_str(&text).ok()
}

/// The process that has the file open for writing, as it wrote it down itself.
fn holder(path: &Path) -> Option<u32> {
    let lock = path_beside(path, "lock");
    match File::open(&lock).ok()?.try_lock_shared() {
        Err(TryLockError::WouldBlock) => std::fs::read_to_string(&lock).ok()?.trim().parse().ok(),
        _ => None,
    }
}

/// A file beside the database, under whatever name the database was given.
fn path_beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).into_os_string();
    name.push(format!(".{ending}"));
    name.into()
}
