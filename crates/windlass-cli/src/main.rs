//! The `windlass` command: reads what was asked, runs it, and turns the outcome into an exit code. Knows neither stores
//! nor tables: `commands`, `up` and `bench` do the work, `output` talks, `error` decides what an exit code means.

mod args;
mod backend;
mod bench;
mod beside;
mod commands;
mod connect;
mod error;
mod handlers;
mod output;
mod profile;
mod secret;
mod serve;
mod settings;
mod top;
mod up;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::error::CliError;
use crate::output::Out;

/// Jobs are made on one thread and dropped on another, which the system's allocator does under a lock.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let mut out = Out::new(&cli.global);
    let result = tokio::runtime::Builder::new_multi_thread()
        // The engine of a service brings its own threads; this runtime only waits for answers.
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(CliError::from)
        .and_then(|runtime| runtime.block_on(commands::run(cli, &mut out)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            out.error(&error);
            error.exit_code().into()
        }
    }
}

/// Answers a command line that cannot be run: help and version are answers, everything else is a refusal.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || !std::env::args_os().any(|arg| arg == "--json") {
        // Printing may fail when nobody reads any more, which is no reason for another exit code.
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    let error = CliError::from_clap(error);
    output::print_json_error(&error);
    error.exit_code().into()
}
