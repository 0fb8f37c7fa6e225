//! `cargo xtask clients`: the TypeScript and Python clients against a running server, whether their types are what its
//! OpenAPI document says, and whether the first steps of their READMEs work as they are written. Called by people and by `test`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use windlass_testkit::servers::install_package;

use crate::python::Venv;
use crate::readme;
use crate::server::Server;
use crate::step::{Verdict, pass, works};

/// The oldest Node.js whose `fetch`, streams and test runner the TypeScript client uses.
const NODE: u32 = 20;

/// What the first steps of a client's README print last.
const FIRST_STEPS: &str = "pages written: 3";

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write the types anew from the server's document, then test.
    #[arg(long)]
    generate: bool,
    /// Also check the Python client's types with mypy, which is installed into an environment under `target`.
    #[arg(long)]
    types: bool,
}

/// Builds the server and tests both clients against it; false if one failed.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    let windlass = crate::build_windlass(root)?;
    let clients = Clients { root, windlass: &windlass, types: arguments.types };
    if arguments.generate {
        let server = Server::start(&windlass)?;
        pass(&mut clients.generate(&server))?;
    }
    for verdict in [clients.python()?, clients.typescript()?] {
        println!("{verdict}");
    }
    Ok(true)
}

/// What the tests of clients need to know.
pub(crate) struct Clients<'a> {
    /// The repository.
    pub(crate) root: &'a Path,
    /// The program to test against.
    pub(crate) windlass: &'a Path,
    /// Whether types are checked by tools that must be fetched first.
    pub(crate) types: bool,
}

impl Clients<'_> {
    /// The Python client: its types are current, and it does what it says.
    pub(crate) fn python(&self) -> Result<Verdict> {
        if !works(Command::new("python3").arg("--version")) {
            install_package("python3", "PATH")?;
        }
        let server = Server::start(self.windlass)?;
        let client = self.root.join("clients/python");
        pass(self.generate(&server).arg("--check"))?;
        let mut tests = Command::new("python3");
        tests.current_dir(&client).args(["-m", "unittest", "discover", "--top-level-directory", "."]);
        tests.args(["--start-directory", "tests"]).env("PYTHONPATH", "src");
        // Compiled files would lie among the sources.
        tests.env("PYTHONDONTWRITEBYTECODE", "1");
        told(&mut tests, &server)?;
        // What its first steps need of the system.
        Venv::of(self.root)?;
        readme::follow(&client, self.windlass, FIRST_STEPS)?;
        if self.types {
            let mypy = Venv::of(self.root)?.with("mypy==2.4.1")?;
            pass(mypy.program("mypy").current_dir(&client).args(["src"]))?;
        }
        Ok(Verdict::Passed)
    }

    /// The TypeScript client: it compiles, and does what it says.
    pub(crate) fn typescript(&self) -> Result<Verdict> {
        if node_version().is_none_or(|version| version < NODE) || !works(Command::new("npm").arg("--version")) {
            return Ok(Verdict::Skipped(format!("Node.js {NODE} or newer with npm is not installed")));
        }
        let client = self.root.join("clients/typescript");
        let npm = || {
            let mut npm = Command::new("npm");
            npm.current_dir(&client);
            npm
        };
        pass(npm().args(["ci", "--no-audit", "--no-fund", "--prefer-offline"]))?;
        let server = Server::start(self.windlass)?;
        told(npm().arg("test"), &server)?;
        readme::follow(&client, self.windlass, FIRST_STEPS)?;
        Ok(Verdict::Passed)
    }

    fn generate(&self, server: &Server) -> Command {
        let mut generate = Command::new("python3");
        generate.current_dir(self.root).arg("clients/generate.py").arg(format!("{}/api/v1/openapi.json", server.url));
        generate
    }
}

/// Runs tests that are told where the server is; what it said is shown if they fail.
fn told(tests: &mut Command, server: &Server) -> Result<Verdict> {
    tests.env("WINDLASS_URL", &server.url).env("WINDLASS_API_KEY", &server.key);
    pass(tests).with_context(|| format!("the server said:\n{}", server.log()))
}

fn node_version() -> Option<u32> {
    let output = Command::new("node").arg("--version").output().ok()?;
    major(std::str::from_utf8(&output.stdout).ok()?)
}

/// The first number of a version such as `v20.20.2`.
fn major(version: &str) -> Option<u32> {
    version.trim().trim_start_matches('v').split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read() {
        assert_eq!([major("v20.20.2\n"), major("9.1"), major("")], [Some(20), Some(9), None]);
    }
}
