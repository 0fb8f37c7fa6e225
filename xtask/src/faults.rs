//! `cargo xtask faults`: builds the fault harness and hands its arguments on. Called by people; `cargo xtask test` runs the
//! harness that it has built itself.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::step::{Verdict, pass};

/// What the harness is told; `cargo xtask faults --help` lists it.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Builds and runs it; false if a row failed.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["run", "--quiet", "--package", "windlass-faults", "--"]).args(&arguments.arguments);
    Ok(matches!(pass(&mut cargo)?, Verdict::Passed))
}
