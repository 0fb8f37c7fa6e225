//! Carries out one command: opens what it needs and hands over to its family. Called by `main`. The families hold the
//! words and tables; what a job is and may become is decided in the library.

mod dead;
mod doctor;
mod jobs;
mod keys;
mod quota;
mod schema;
mod steer;
mod submit;
mod system;

use clap::CommandFactory;
use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command, Global};
use crate::connect::Place;
use crate::error::Result;
use crate::output::Out;

/// Runs what was asked for.
pub(crate) async fn run(cli: Cli, out: &mut Out) -> Result {
    let Cli { global, command } = cli;
    if let Command::Up(args) = &command {
        // It draws a picture, in which log lines have a place of their own.
        return crate::up::run(&global, args, out).await;
    }
    log_to_stderr(&global);
    // These work in a place of their own, never on the jobs that --db names.
    match &command {
        Command::Bench(args) => return crate::bench::run(&global, args, out).await,
        Command::BenchNode => return crate::bench::run_node(out).await,
        _ => {}
    }
    let place = Place::of(&global)?;
    match command {
        Command::Up(_) | Command::Bench(_) | Command::BenchNode => unreachable!("handled above"),
        Command::Submit(args) => submit::submit(&global, &place, args, out).await,
        Command::List(args) => jobs::list(&global, place.read().await?, &args, out).await,
        Command::Show(args) => jobs::show(&global, place.read().await?, &args, out).await,
        Command::Why { id } => jobs::why(&global, &*place.read().await?, id, out).await,
        Command::Cancel(args) => steer::cancel(&global, place.write().await?, &args, out).await,
        Command::Dead(command) => dead::run(&global, &place, command, out).await,
        Command::Pause(args) => steer::pause(&global, &place, &args, out).await,
        Command::Resume(args) => steer::resume(&global, &place, &args, out).await,
        Command::Pauses => system::pauses(&*place.read().await?, out).await,
        Command::Nodes => system::nodes(&*place.read().await?, out).await,
        Command::Tenants => quota::tenants(&global, &*place.read().await?, out).await,
        Command::Quota(command) => quota::run(&global, &place, command, out).await,
        Command::Audit(args) => system::audit(&global, &*place.read().await?, &args, out).await,
        Command::Stats => system::stats(&global, &*place.read().await?, out).await,
        Command::Keys(command) => keys::run(&global, &place, command, out).await,
        Command::Doctor(args) => doctor::run(&place, &args, out).await,
        Command::Migrate(args) => schema::migrate(&place, &args, out).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "windlass", &mut script);
            out.raw(&script)
        }
    }
}

/// What is logged: warnings by default, more with -v, as `RUST_LOG` says where it is set.
pub(crate) fn log_filter(global: &Global) -> EnvFilter {
    let default = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (_, 0) => "warn",
        (_, 1) => "info",
        _ => "debug",
    };
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default))
}

pub(crate) fn log_to_stderr(global: &Global) {
    let logs = tracing_subscriber::fmt().with_env_filter(log_filter(global)).with_writer(std::io::stderr);
    let logs = logs.with_ansi(!global.no_color && console::user_attended_stderr()).with_target(false);
    // Fails only if something logs already, which is what is wanted.
    let _ = logs.try_init();
}
