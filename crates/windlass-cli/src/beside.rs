//! Lets commands on this machine talk to the process that serves a SQLite file, because one process at a time may write to
//! it: a file beside the database says where it listens and has a key for it, for the owner alone. Written by `serve` and
//! `up`, read by `backend::open`. Whoever may read it may read the database anyway.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use windlass::{JobService, NewApiKey, OperatorRight, Rights, SecurityContext, TenantId};

use crate::connect::{Place, actor};
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

/// Says where this process serves the file, with a key for commands. Nothing to say where others can write, too.
pub(crate) async fn announce(service: &JobService, place: &Place, url: &str) -> Result {
    let Place::Sqlite(path) = place else { return Ok(()) };
    let api_key = match read(path) {
        Some(before) if service.check_key(before.api_key.reveal()).await?.is_some() => before.api_key,
        _ => make_key(service).await?,
    };
    let text = toml::to_string(&Beside { pid: std::process::id(), url: url.to_owned(), api_key });
    let text = text.map_err(|error| CliError::Failed(error.to_string()))?;
    let path = path_beside(path, "server");
    write_private(&path, text.as_bytes())
        .map_err(|error| CliError::Failed(format!("cannot write {}: {error}", path.display())))
}

/// One key for as long as the file lives: it is used again at the next start.
async fn make_key(service: &JobService) -> Result<Secret> {
    let ctx = SecurityContext::new(TenantId::ROOT).with_user(actor());
    let new = NewApiKey::new("commands on this machine", Rights::ALL).all_tenants().environment("local");
    let (_, secret) = service.operator(OperatorRight::assume()).create_key(&ctx, new).await?;
    Ok(Secret::new(secret))
}

/// The process that holds the file, if it serves it.
pub(crate) fn find(path: &Path) -> Option<Beside> {
    let beside = read(path)?;
    (holder(path) == Some(beside.pid)).then_some(beside)
}

/// The id of the key beside a file.
pub(crate) fn key_id(place: &Place) -> Option<String> {
    let Place::Sqlite(path) = place else { return None };
    // `wl_<where>_<id>_<secret>_<check>`
    read(path)?.api_key.reveal().split('_').nth(2).map(ToOwned::to_owned)
}

fn read(path: &Path) -> Option<Beside> {
    let text = std::fs::read_to_string(path_beside(path, "server")).ok()?;
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
