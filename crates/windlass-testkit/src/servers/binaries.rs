//! Finds the programs of a server on this machine, or installs the Debian package of it when that is allowed. Called by
//! `postgres`, `pgbouncer` and `chromium`. Never downloads anything but packages of the system, never starts a service.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::process::is_root;

/// The variable that names the directory of the PostgreSQL programs to use, for tests against a certain version.
pub const POSTGRES_BIN_VAR: &str = "WINDLASS_POSTGRES_BIN";
/// Where Debian, Red Hat and Homebrew keep one directory per version.
const VERSIONED_ROOTS: [(&str, &str); 4] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql@"),
    ("/usr/local/opt", "postgresql@"),
];
/// What a directory must hold to be of use.
const POSTGRES_PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_ctl"];

/// The directory that holds the programs of a PostgreSQL server, installed first if need be.
pub(super) fn postgres() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(POSTGRES_BIN_VAR).map(PathBuf::from) {
        ensure!(has_postgres(&dir), "{POSTGRES_BIN_VAR}: {} holds no PostgreSQL server", dir.display());
        return Ok(dir);
    }
    if let Some(dir) = find_postgres() {
        return Ok(dir);
    }
    install_package("postgresql", POSTGRES_BIN_VAR)?;
    find_postgres().context("the package postgresql is installed, but its programs are not where they are expected")
}

/// The pgbouncer program, installed first if need be.
pub(super) fn pgbouncer() -> Result<PathBuf> {
    if let Some(program) = find_pgbouncer() {
        return Ok(program);
    }
    install_package("pgbouncer", "PATH")?;
    find_pgbouncer().context("the package pgbouncer is installed, but its program is not where it is expected")
}

fn find_postgres() -> Option<PathBuf> {
    versioned_dirs().into_iter().chain(path_dirs()).find(|dir| has_postgres(dir))
}

/// A program of PostgreSQL that is installed on this machine, of the newest version that has it.
pub(super) fn postgres_program(name: &str) -> Option<PathBuf> {
    versioned_dirs().into_iter().chain(path_dirs()).map(|dir| dir.join(name)).find(|program| program.is_file())
}

fn find_pgbouncer() -> Option<PathBuf> {
    // Debian keeps it in a directory that is on root's PATH only.
    let dirs = [PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")].into_iter().chain(path_dirs());
    dirs.map(|dir| dir.join("pgbouncer")).find(|program| program.is_file())
}

/// The directories of installed versions, newest first.
fn versioned_dirs() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (root, prefix) in VERSIONED_ROOTS {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let version = name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(|v| v.parse::<f32>().ok());
            found.extend(version.map(|version| (version, entry.path().join("bin"))));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, dir)| dir).collect()
}

pub(super) fn path_dirs() -> Vec<PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

fn has_postgres(dir: &Path) -> bool {
    POSTGRES_PROGRAMS.iter().all(|program| dir.join(program).is_file()) && !is_script(&dir.join("postgres"))
}

/// A wrapper script may start the server as a child of its own; signals and `kill -9` would then hit the script.
fn is_script(program: &Path) -> bool {
    let mut start = [0; 2];
    fs::File::open(program).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!"
}

/// Installs Debian's `package` if this process is root; else says how to do it by hand, or which variable to set.
pub fn install_package(package: &str, or_set: &str) -> Result<()> {
    let by_hand = format!(
        "{package} is not installed: run `apt-get install {package}` as root (or install it as your system does), \
         or name the directory of its programs in {or_set}"
    );
    ensure!(is_root() && Path::new("/usr/bin/apt-get").exists(), by_hand);
    eprintln!("installing {package} ...");
    // What apt says goes to our stderr, so that an install that fails or hangs can be understood.
    let status = Command::new("sh")
        .args(["-c", INSTALL_SCRIPT, "install", package])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .context("run apt-get")?;
    if !status.success() {
        bail!("apt-get could not install {package} ({status}). {by_hand}");
    }
    Ok(())
}

/// Installs the package `$1` without starting a service and without making a cluster. What it tells dpkg for that lies in
/// two files of the system, removed by the trap however the script ends; a file that was there before is left alone.
const INSTALL_SCRIPT: &str = r#"
set -eu
policy=/usr/sbin/policy-rc.d
clusters=/etc/postgresql-common/createcluster.d/windlass-tests.conf
made=
trap 'rm -f $made' EXIT
trap 'exit 1' HUP INT TERM
if [ ! -e "$policy" ]; then
    made="$policy"
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
fi
if [ ! -e "$clusters" ]; then
    made="$made $clusters"
    mkdir -p "${clusters%/*}"
    echo 'create_main_cluster = false' > "$clusters"
fi
apt-get -q -o DPkg::Lock::Timeout=300 update
apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$1"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapper_scripts_are_not_taken_for_a_server() {
        let dir = tempfile::tempdir().expect("temp dir");
        for program in POSTGRES_PROGRAMS {
            fs::write(dir.path().join(program), "\x7fELF").expect("write");
        }
        assert!(has_postgres(dir.path()));
        fs::write(dir.path().join("postgres"), "#!/bin/sh\n").expect("write");
        assert!(!has_postgres(dir.path()));
    }
}
