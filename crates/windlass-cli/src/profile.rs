//! Named places to work on, kept in a file of the user's own: which server or database, whose jobs, with which API key.
//! Read by `settings` for every command, changed by `commands::profiles`. Never prints a key.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{CliError, Result};
use crate::secret::Secret;

/// The file: every profile, and the one that is used where none is named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profiles {
    /// The profile that `profile use` has chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    /// All of them, by name.
    #[serde(default)]
    pub(crate) profiles: BTreeMap<String, Profile>,
}

/// One place to work on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Profile {
    /// A server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// A database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) db: Option<String>,
    /// Whose jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    /// The key for the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api_key: Option<Secret>,
    /// The file with the keys of sealed jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<PathBuf>,
}

/// A file of more than this is not one of ours.
const MOST_BYTES: u64 = 1 << 20;

impl Profiles {
    /// Reads the file; one that is not there holds none.
    pub(crate) fn load(path: &Path) -> Result<Profiles> {
        let broken = |why: &dyn std::fmt::Display| {
            CliError::invalid("profile", format!("cannot read the profiles in {}: {why}", path.display()))
        };
        let found = match std::fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Profiles::default()),
            Err(error) => return Err(broken(&error)),
        };
        if found.len() > MOST_BYTES {
            return Err(broken(&"the file is too large"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| broken(&error))?;
        // What the parser says quotes the line, which may be the one with the key.
        let profiles: Profiles = toml::from_str(&text).map_err(|error| broken(&error.message()))?;
        if profiles.profiles.values().any(|profile| profile.api_key.is_some()) {
            check_private(path, &found)?;
        }
        Ok(profiles)
    }

    /// Writes the file, for its owner alone. Whoever reads meanwhile sees the old one or the new one.
    pub(crate) fn save(&self, path: &Path) -> Result {
        let failed = |error: std::io::Error| CliError::Failed(format!("cannot write {}: {error}", path.display()));
        let text = toml::to_string(self).map_err(|error| CliError::Failed(error.to_string()))?;
        let directory = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory).map_err(failed)?;
        write_private(path, text.as_bytes()).map_err(failed)
    }

    /// The profile with this name.
    pub(crate) fn named(&self, name: &str) -> Result<&Profile> {
        self.profiles.get(name).ok_or_else(|| {
            let known = self.profiles.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "there are none".to_owned() } else { format!("there are {known}") };
            CliError::NotFound(format!("there is no profile `{}`; {known}", name.escape_debug()))
        })
    }
}

/// Writes a file that only its owner may read, in place of what was there.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&unfinished).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let moved = written.and_then(|()| std::fs::rename(&unfinished, path));
    if moved.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    moved
}

/// Refuses keys that others on the machine can read.
#[cfg(unix)]
fn check_private(path: &Path, found: &std::fs::Metadata) -> Result {
    use std::os::unix::fs::PermissionsExt;
    if found.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    let path = path.display();
    Err(CliError::NotAllowed(format!("{path} contains keys, but other users may read it; run `chmod 600 {path}`")))
}

#[cfg(not(unix))]
fn check_private(_: &Path, _: &std::fs::Metadata) -> Result {
    Ok(())
}

/// Where the file is: as WINDLASS_CONFIG says, else in the user's directory of settings.
pub(crate) fn path(env: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf> {
    let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let within = |name: &str, rest: &str| set(name).map(|directory| directory.join(rest));
    set("WINDLASS_CONFIG")
        .or_else(|| within("XDG_CONFIG_HOME", "windlass/profiles.toml"))
        .or_else(|| within("HOME", ".config/windlass/profiles.toml"))
        .or_else(|| within("APPDATA", "windlass/profiles.toml"))
        .ok_or_else(|| {
            CliError::Failed("there is no home directory; set WINDLASS_CONFIG to the file for profiles".to_owned())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_back() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("deep/profiles.toml");
        let profile = Profile {
            url: Some("https://jobs.example.org".to_owned()),
            api_key: Some(Secret::new("wl_live_x".to_owned())),
            ..Profile::default()
        };
        let saved =
            Profiles { current: Some("prod".to_owned()), profiles: BTreeMap::from([("prod".to_owned(), profile)]) };
        saved.save(&path).expect("it can be written");
        assert_eq!(Profiles::load(&path).expect("it can be read"), saved);
        assert!(!format!("{saved:?}").contains("wl_live_x"), "a key is not printed by accident");
    }

    #[cfg(unix)]
    #[test]
    fn keys_that_others_may_read_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("profiles.toml");
        std::fs::write(&path, "[profiles.a]\napi_key = \"x\"\n").expect("writes");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("may");
        assert_eq!(Profiles::load(&path).expect_err("refused").code(), "unauthorized");
    }

    #[test]
    fn the_file_is_where_the_environment_says() {
        let at = |name: &'static str, value: &'static str| {
            path(&move |asked| (asked == name).then(|| value.to_owned())).expect("a place")
        };
        assert_eq!(at("WINDLASS_CONFIG", "/etc/w.toml").into_os_string(), "/etc/w.toml");
        assert_eq!(at("XDG_CONFIG_HOME", "/x").into_os_string(), "/x/windlass/profiles.toml");
        assert_eq!(at("HOME", "/somewhere/ann").into_os_string(), "/somewhere/ann/.config/windlass/profiles.toml");
        assert!(path(&|_| None).is_err());
    }

    #[test]
    fn a_broken_file_is_named_without_what_it_says() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("profiles.toml");
        std::fs::write(&path, "[profiles.a]\napi_key = hunter2\n").expect("writes");
        let error = Profiles::load(&path).expect_err("no TOML").to_string();
        assert!(error.contains("profiles.toml") && !error.contains("hunter2"), "{error}");
    }
}
