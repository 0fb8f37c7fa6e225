//! An environment of Python tools under `target`, made when first asked for and kept. Called by `clients` and
//! `schemathesis`. Never touches the Python packages of the system.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use windlass_testkit::servers::install_package;

use crate::step::{pass, works};

/// A virtual environment.
pub(crate) struct Venv {
    dir: PathBuf,
}

impl Venv {
    /// The environment of this repository, made if there is none.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let venv = Venv { dir: root.join("target/python") };
        // Debian keeps what makes environments in a package of its own.
        if !works(Command::new("python3").args(["-c", "import ensurepip, venv"])) {
            install_package("python3-venv", "PATH")?;
        }
        if !works(venv.program("python3").arg("--version")) {
            pass(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv.dir))?;
        }
        Ok(venv)
    }

    /// The same with a package of PyPI in it, given as pip reads it.
    pub(crate) fn with(self, package: &str) -> Result<Self> {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", package];
        pass(self.program("python3").args(pip))?;
        Ok(self)
    }

    /// One of its programs.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.dir.join("bin").join(name))
    }
}
