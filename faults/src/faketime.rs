//! Clocks that lie: the variables that make a process see another wall clock. Uses Debian's libfaketime, which is
//! installed if it is missing and this process is root. The monotonic clock is left alone.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use windlass_testkit::servers::install_package;

use crate::fleet::Under;

/// Where Debian and others keep the library.
const DIRECTORIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime",
    "/usr/lib/aarch64-linux-gnu/faketime",
    "/usr/lib/faketime",
    "/usr/lib64/faketime",
];

/// The library, installed first if need be.
pub fn library() -> Result<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| find_or_install().map_err(|error| format!("{error:#}")));
    match found {
        Ok(path) => Ok(path.clone()),
        Err(error) => bail!("{error}"),
    }
}

fn find_or_install() -> Result<PathBuf> {
    if let Some(path) = find() {
        return Ok(path);
    }
    install_package("faketime", "PATH")?;
    find().context("the package faketime is installed, but its library is not where it is expected")
}

fn find() -> Option<PathBuf> {
    let library = |dir: &&str| Path::new(dir).join("libfaketimeMT.so.1");
    DIRECTORIES.iter().map(library).find(|path| path.is_file())
}

/// A clock that is ahead by so much.
pub fn ahead(by: Duration) -> Result<Under> {
    shifted(&format!("+{}", by.as_secs()))
}

/// A clock that is behind by so much.
pub fn behind(by: Duration) -> Result<Under> {
    shifted(&format!("-{}", by.as_secs()))
}

fn shifted(offset: &str) -> Result<Under> {
    let variables = vec![
        ("LD_PRELOAD".to_owned(), library()?.display().to_string()),
        ("FAKETIME".to_owned(), offset.to_owned()),
        ("DONT_FAKE_MONOTONIC".to_owned(), "1".to_owned()),
    ];
    Ok(Under { variables, memory_bytes: None })
}
