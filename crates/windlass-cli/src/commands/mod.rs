//! Carries out one command: opens what it needs and hands over to its family. Called by `main`. The families hold the
//! words and tables; what a job is and may become is decided in the library.

mod access;
mod dead;
mod doctor;
mod edit;
mod failures;
mod follow;
mod jobs;
mod keys;
mod man;
mod many;
mod profiles;
mod quota;
mod schema;
mod steer;
mod submit;
mod system;
mod watch;

use std::sync::Arc;

use clap::CommandFactory;
use tracing_subscriber::EnvFilter;

use crate::args::{CancelArgs, Cli, Command, Global, KeysCommand, PriorityArgs};
use crate::backend::{self, Backend};
use crate::commands::many::Verb;
use crate::error::Result;
use crate::output::Out;
use crate::profile::{self, Profile, Profiles};
use crate::settings;

/// Runs what was asked for.
pub(crate) async fn run(cli: Cli, out: &mut Out) -> Result {
    let Cli { global: flags, command } = cli;
    // These need no place to work on, and must do while a profile is broken.
    match &command {
        Command::Completions { shell } => return completions(*shell, out),
        Command::Man { directory } => return man::write(directory, out),
        Command::Keys(KeysCommand::Generate { name }) => return keys::generate(name, out),
        _ => {}
    }
    let env = |name: &str| std::env::var(name).ok();
    let path = profile::path(&env)?;
    if let Command::Profile(command) = command {
        return profiles::run(&flags, &path, command, out);
    }
    let global = complete(flags, &env, &path)?;
    match &command {
        // It draws a picture, in which log lines have a place of their own.
        Command::Up(args) => return crate::up::run(&global, args, out).await,
        _ => log_to_stderr(&global),
    }
    match &command {
        // These work in a place of their own, never on the jobs that --db names.
        Command::Bench(args) => return crate::bench::run(&global, args, out).await,
        Command::BenchNode => return crate::bench::run_node(out).await,
        // These look at the database itself, whatever serves it, or are for it alone.
        Command::Serve(args) => return crate::serve::run(&global, args, out).await,
        Command::Keys(command) => return keys::run(&global, &backend::place(&global, "keys")?, command, out).await,
        Command::Doctor(args) => return doctor::run(&global, args, out).await,
        Command::Migrate(args) => return schema::migrate(&backend::place(&global, "migrate")?, args, out).await,
        _ => {}
    }
    if backend::is_exposed(&global) {
        out.warn("the API key travels unencrypted; use https beyond this machine");
    }
    let backend = backend::open(&global)?;
    let result = on_backend(&global, &backend, command, out).await;
    backend.close().await;
    result
}

/// Carries out a command that works the same on a database and on a server.
async fn on_backend(global: &Global, shared: &Arc<dyn Backend>, command: Command, out: &Out) -> Result {
    let backend = &**shared;
    match command {
        Command::Submit(args) => submit::submit(global, backend, args, out).await,
        Command::List(args) => jobs::list(global, backend, &args, out).await,
        Command::Show(args) => jobs::show(backend, &args, out).await,
        Command::Why { id } => jobs::why(backend, id, out).await,
        Command::Watch(args) => watch::watch(backend, &args, out).await,
        Command::Logs(args) => follow::logs(backend, &args, out).await,
        Command::Events(args) => follow::events(backend, &args, out).await,
        Command::Top(args) => crate::top::run(global, shared, &args, out).await,
        Command::Cancel(CancelArgs { pick, reason }) => {
            many::run(global, backend, &Verb::Cancel { reason }, &pick, None, out).await
        }
        Command::Retry(pick) => many::run(global, backend, &Verb::Retry, &pick, None, out).await,
        Command::RunNow(pick) => many::run(global, backend, &Verb::RunNow, &pick, None, out).await,
        Command::Priority(PriorityArgs { priority, pick }) => {
            many::run(global, backend, &Verb::Priority(priority), &pick, None, out).await
        }
        Command::Reschedule(args) => edit::reschedule(backend, &args, out).await,
        Command::Edit(args) => edit::edit(backend, &args, out).await,
        Command::Clone(args) => edit::clone(backend, &args, out).await,
        Command::Failures(command) => failures::run(global, backend, command, out).await,
        Command::Dead(command) => dead::run(global, backend, command, out).await,
        Command::Pause(args) => steer::pause(backend, &args, out).await,
        Command::Resume(args) => steer::resume(backend, &args, out).await,
        Command::Pauses => system::pauses(backend, out).await,
        Command::Nodes => system::nodes(backend, out).await,
        Command::Handlers => system::handlers(backend, out).await,
        Command::Backlog => system::backlog(backend, out).await,
        Command::Usage(args) => system::usage(global, backend, &args, out).await,
        Command::ApiKey(command) => access::api_keys(global, backend, command, out).await,
        Command::Webhook(command) => access::webhooks(global, backend, command, out).await,
        Command::Tenants => quota::tenants(backend, out).await,
        Command::Quota(command) => quota::run(global, backend, command, out).await,
        Command::Audit(args) => system::audit(global, backend, &args, out).await,
        Command::Stats => system::stats(global, backend, out).await,
        Command::Up(_)
        | Command::Serve(_)
        | Command::Bench(_)
        | Command::BenchNode
        | Command::Keys(_)
        | Command::Doctor(_)
        | Command::Migrate(_)
        | Command::Profile(_)
        | Command::Completions { .. }
        | Command::Man { .. } => unreachable!("handled before a place was opened"),
    }
}

/// The options with what the environment and the profile add.
fn complete(flags: Global, env: &dyn Fn(&str) -> Option<String>, path: &std::path::Path) -> Result<Global> {
    let profiles = Profiles::load(path)?;
    let name = flags.profile.clone().or_else(|| env("WINDLASS_PROFILE").filter(|name| !name.is_empty()));
    let chosen = match name.or_else(|| profiles.current.clone()) {
        Some(name) => profiles.named(&name)?.clone(),
        None => Profile::default(),
    };
    settings::complete(flags, env, &chosen)
}

fn completions(shell: clap_complete::Shell, out: &Out) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "windlass", &mut script);
    out.raw(&script)
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
