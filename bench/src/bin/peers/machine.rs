//! What a result needs to be understood and repeated: the machine, the versions, the settings of the server. Called by
//! `main`. Never takes anything that names a person, a host or a directory.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use windlass_testkit::servers::PostgresOptions;

use crate::build::Places;
use crate::plan::{Made, Peer};

/// The machine and what all runs share.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) system: String,
    pub(crate) kernel: String,
    pub(crate) rustc: String,
    pub(crate) windlass_commit: String,
}

/// What differs from PostgreSQL's own defaults, besides the first two, which are on in both. Checkpoints are kept out of
/// the runs by the size of the log, each run begins with one, and files of the log are used again.
pub(crate) const POSTGRES_SETTINGS: [(&str, &str); 6] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("shared_buffers", "1GB"),
    ("min_wal_size", "2GB"),
    ("max_wal_size", "8GB"),
    ("max_connections", "200"),
];

pub(crate) fn postgres_options() -> PostgresOptions {
    POSTGRES_SETTINGS.iter().fold(PostgresOptions::new(), |options, (name, value)| options.setting(*name, *value))
}

impl Machine {
    pub(crate) fn look(places: &Places) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processor = field(&read("/proc/cpuinfo"), "model name", ':').unwrap_or_else(|| "unknown".to_owned());
        let memory_kib = field(&read("/proc/meminfo"), "MemTotal", ':').unwrap_or_default();
        let memory_kib: u64 = memory_kib.trim_end_matches(" kB").parse().unwrap_or(0);
        let system = field(&read("/etc/os-release"), "PRETTY_NAME", '=').unwrap_or_else(|| std::env::consts::OS.into());
        let commit = said(Command::new("git").current_dir(&places.bench).args(["rev-parse", "--short", "HEAD"]));
        let changes = said(Command::new("git").current_dir(&places.bench).args(["status", "--porcelain", "../crates"]));
        let changed = if changes.is_empty() { "" } else { " with changes" };
        Machine {
            processor,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: (memory_kib + (1 << 19)) >> 20,
            system,
            kernel: said(Command::new("uname").arg("-sr")),
            rustc: said(Command::new("rustc").arg("--version")),
            windlass_commit: format!("{commit}{changed}"),
        }
    }
}

/// The version of what a peer measures, from its lock file.
pub(crate) fn version(places: &Places, peer: &Peer) -> String {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let version = match peer.made {
        Made::Here => locked_crate(&read(&places.bench.join("../Cargo.lock")), "windlass"),
        Made::Cargo { directory, package } => locked_crate(&read(&places.peer(directory).join("Cargo.lock")), package),
        Made::Node { script } => locked_package(&read(&places.peer("node").join("package-lock.json")), script),
    };
    version.unwrap_or_else(|| "unknown".to_owned())
}

/// The version of a crate in the text of a `Cargo.lock`; the newest if there are several.
fn locked_crate(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines();
    let mut last = None;
    while lines.any(|line| line == name) {
        let version = lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')?;
        last = Some(version.to_owned()); // cargo sorts them
    }
    last
}

/// The version of a package in the text of a `package-lock.json`.
fn locked_package(lock: &str, package: &str) -> Option<String> {
    let lock: serde_json::Value = serde_json::from_str(lock).ok()?;
    Some(lock["packages"][format!("node_modules/{package}")]["version"].as_str()?.to_owned())
}

/// The value of the first line `name<separator>value`.
fn field(text: &str, name: &str, separator: char) -> Option<String> {
    let pairs = text.lines().filter_map(|line| line.split_once(separator));
    let mut values = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().trim_matches('"'));
    values.next().map(str::to_owned)
}

fn said(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PEERS;

    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock = "[[package]]\nname = \"awa-core\"\nversion = \"9.0.0\"\n\n[[package]]\nname = \"awa\"\n\
                    version = \"0.6.9\"\nsource = \"registry\"\n";
        assert_eq!(locked_crate(lock, "awa").as_deref(), Some("0.6.9"));
        assert_eq!(locked_crate(lock, "fang"), None);
        let lock = r#"{"packages": {"node_modules/pg-boss": {"version": "12.35.0"}}}"#;
        assert_eq!(locked_package(lock, "pg-boss").as_deref(), Some("12.35.0"));
        assert_eq!(locked_package("", "pg-boss"), None);
    }

    #[test]
    fn every_peer_has_a_locked_version() {
        let places = Places::new();
        for peer in PEERS {
            assert_ne!(version(&places, peer), "unknown", "{}", peer.name);
        }
    }

    #[test]
    fn fields_are_read_by_their_whole_name() {
        let text = "MemTotalHuge: 1 kB\nMemTotal:       24 kB\n";
        assert_eq!(field(text, "MemTotal", ':').as_deref(), Some("24 kB"));
        assert_eq!(field("PRETTY_NAME=\"A B\"\n", "PRETTY_NAME", '=').as_deref(), Some("A B"));
        assert_eq!(field("", "MemTotal", ':'), None);
    }
}
