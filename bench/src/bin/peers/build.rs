//! Makes the program of every peer: the crates in `peers/` by cargo with their committed locks, all with the release
//! profile that a user's own workspace has unless it says otherwise, and the Node packages by npm. Called by `main`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::measure;
use crate::plan::{Made, Peer};

/// How long one build may take: the largest needs about four minutes on two cores, with an empty cache.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// Where things are.
pub(crate) struct Places {
    /// The crate `windlass-bench`.
    pub(crate) bench: PathBuf,
}

impl Places {
    pub(crate) fn new() -> Self {
        Places { bench: PathBuf::from(env!("CARGO_MANIFEST_DIR")) }
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.bench.join("target")
    }

    pub(crate) fn peer(&self, directory: &str) -> PathBuf {
        self.bench.join("peers").join(directory)
    }

    fn release(&self, program: &str) -> PathBuf {
        self.target().join("release").join(format!("{program}{}", std::env::consts::EXE_SUFFIX))
    }
}

/// Builds the program of a peer, or says why it cannot be built.
pub(crate) fn build(places: &Places, made: Made) -> Result<Result<(), String>> {
    let mut command = match made {
        Made::Here => {
            let mut cargo = cargo(places, &places.bench);
            cargo.args(["--package", "windlass-bench", "--bin", "peer-windlass"]);
            // The profile of this workspace does not reach its users: what they get is the default, as for every peer.
            cargo.env("CARGO_PROFILE_RELEASE_LTO", "false").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
            cargo
        }
        Made::Cargo { directory, .. } => cargo(places, &places.peer(directory)),
        Made::Node { .. } => {
            let mut npm = Command::new("npm");
            npm.current_dir(places.peer("node")).args(["ci", "--no-audit", "--no-fund"]);
            npm
        }
    };
    measure::build(&mut command, PATIENCE)
}

fn cargo(places: &Places, directory: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(directory).env("CARGO_TARGET_DIR", places.target());
    // What cargo says about this package to this process is not for the builds of others.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"CARGO_PKG_")) {
        cargo.env_remove(name);
    }
    cargo.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
    cargo.args(["build", "--release", "--locked", "--quiet"]);
    cargo
}

/// The command that runs a peer, without its words.
pub(crate) fn program(places: &Places, peer: &Peer) -> Command {
    match peer.made {
        Made::Here => Command::new(places.release("peer-windlass")),
        Made::Cargo { directory, .. } => Command::new(places.release(&format!("peer-{directory}"))),
        Made::Node { script } => {
            let node = places.peer("node");
            // The Node of the lock file: the system's may be older than the peers allow.
            let mut command = Command::new(node.join("node_modules/.bin/node"));
            command.arg(node.join(format!("{script}.mjs")));
            command
        }
    }
}
