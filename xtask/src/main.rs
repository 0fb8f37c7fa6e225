//! The automation of this repository: `cargo xtask test`, `faults`, `tidy`, `bench` and `fuzz`. Called by people and by
//! `.ci/run`.
//! Nothing here is part of what users get.

#![expect(clippy::print_stdout, reason = "a command that people run speaks on its standard output")]

mod bench;
mod examples;
mod faults;
mod floors;
mod fuzz;
mod step;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The automation of the Windlass repository")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Checks everything: format, lints, tidiness, tests on throwaway servers, examples, dependencies.
    Test(test::Arguments),
    /// Brings faults about on real processes and databases, and checks what happened; see docs/FAULTS.md.
    Faults(faults::Arguments),
    /// Checks what no compiler does: leftovers, paths of one machine, first lines, links of the documentation.
    Tidy,
    /// Measures Windlass: beside other job queues with the same work, or against its own floors; see bench/README.md.
    Bench(bench::Arguments),
    /// Feeds random input to everything that is read from outside, each target for some seconds; needs nightly Rust.
    Fuzz(fuzz::Arguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything passed; an error means that it could not even be tried.
fn run(arguments: Arguments) -> Result<bool> {
    let root = repository_root()?;
    match arguments.task {
        Task::Test(arguments) => test::run(&root, &arguments),
        Task::Faults(arguments) => faults::run(&root, &arguments),
        Task::Tidy => tidy::run(&root).map(|()| true),
        Task::Bench(arguments) => bench::run(&root, &arguments),
        Task::Fuzz(arguments) => {
            let verdict = fuzz::run(&root, &arguments)?;
            println!("fuzz: {verdict}");
            Ok(verdict != step::Verdict::Failed)
        }
    }
}

fn repository_root() -> Result<PathBuf> {
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the repository")?;
    Ok(parent.to_owned())
}
