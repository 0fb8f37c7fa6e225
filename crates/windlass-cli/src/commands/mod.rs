//! Carries out one command: opens what it needs and hands over to its family. Called by `main`. The families hold the
//! words and tables; what a job is and may become is decided in the library.

mod access;
mod dead;
mod doctor;
mod edit;
mod failures;
mod follow;
mod healthy;
pub(crate) mod jobs;
mod keys;
mod man;
mod many;
mod profiles;
mod quota;
mod schedules;
mod schema;
mod steer;
mod submit;
mod system;
mod watch;

use std::path::Path;
use std::sync::Arc;

use clap::CommandFactory;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;
use windlass::JobId;

use crate::args::{CancelArgs, Cli, Command, Global, KeysCommand, PriorityArgs};
use crate::backend::{self, Backend};
use crate::commands::many::Verb;
use crate::connect::{DATA_DIR, Place};
use crate::error::{CliError, Result};
use crate::output::Out;
use crate::profile::{self, Profile, Profiles};
use crate::settings;

/// Runs what was asked for.
pub(crate) async fn run(cli: Cli, out: &mut Out) -> Result {
    let Cli { global: mut flags, command } = cli;
    // These need no place to work on, and must do while a profile is broken.
    match &command {
        Command::Completions { shell } => return completions(*shell, out),
        Command::Man { directory } => return man::write(directory, out),
        Command::Keys(KeysCommand::Generate { name }) => return keys::generate(name, out),
        _ => {}
    }
    let env = |name: &str| std::env::var(name).ok();
    if let Command::Profile(command) = command {
        return profiles::run(&flags, &profile::path(&env)?, command, out);
    }
    let bare = Global { db: None, url: None, profile: None, ..flags.clone() };
    if command.stays_here() && flags.url.is_none() {
        flags.db.get_or_insert_with(|| Place::in_directory(Path::new(DATA_DIR)).describe());
    }
    let global = complete(flags, &env)?;
    match &command {
        // It draws a picture, in which log lines have a place of their own.
        Command::Up(args) => {
            let bare = complete(bare, &env).ok();
            return crate::up::run(&global, bare.as_ref(), args, out).await;
        }
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
        Command::Healthy(args) => return healthy::run(&global, args, out).await,
        Command::Migrate(args) => return schema::migrate(&backend::place(&global, "migrate")?, args, out).await,
        Command::Backup { file } => return schema::backup(&backend::place(&global, "backup")?, file, out),
        Command::Login => return access::login(&global, out).await,
        _ => {}
    }
    if backend::is_exposed(&global) {
        out.warn("the API key is sent unencrypted; use https beyond this machine");
    }
    let backend = backend::open(&global)?;
    let named = command.jobs();
    let result = on_backend(&global, &backend, command, out).await;
    backend.close().await;
    match result {
        Err(error) if error.code() == "job_not_found" => Err(elsewhere(&global, &named, error).await),
        result => result,
    }
}

/// Says so where a job that was not found is another tenant's, to those who may know.
async fn elsewhere(global: &Global, named: &[JobId], error: CliError) -> CliError {
    if global.all_tenants {
        return error;
    }
    let everyone = Global { tenant: None, all_tenants: true, ..global.clone() };
    let Ok(backend) = backend::open(&everyone) else { return error };
    let mut found = None;
    for id in named.iter().take(LOOKED_FOR) {
        found = backend.job(*id).await.ok().filter(|job| job.tenant != global.tenant());
        if found.is_some() {
            break;
        }
    }
    backend.close().await;
    match found {
        Some(job) => {
            let (id, tenant) = (job.id, job.tenant);
            let message =
                format!("{error}; job {id} belongs to tenant {tenant}: add --all-tenants, or --tenant {tenant}");
            CliError::Some(error.code().to_owned(), message)
        }
        None => error,
    }
}

/// Jobs that are looked for in other tenants: one is enough for a hint.
const LOOKED_FOR: usize = 10;

/// Carries out a command that works the same on a database and on a server.
async fn on_backend(global: &Global, shared: &Arc<dyn Backend>, command: Command, out: &Out) -> Result {
    let backend = &**shared;
    match command {
        Command::Submit(args) => submit::submit(global, backend, args, out).await,
        Command::List(args) => jobs::list(global, backend, &args, out).await,
        Command::Show(args) => jobs::show(backend, &args, out).await,
        Command::Why { id } => jobs::why(global, backend, id, out).await,
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
        Command::Schedules(command) => schedules::run(global, backend, command, out).await,
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
        | Command::Healthy(_)
        | Command::Migrate(_)
        | Command::Backup { .. }
        | Command::Login
        | Command::Profile(_)
        | Command::Completions { .. }
        | Command::Man { .. } => unreachable!("handled before a place was opened"),
    }
}

/// The options with what the environment and the profile add.
fn complete(flags: Global, env: &dyn Fn(&str) -> Option<String>) -> Result<Global> {
    let name = flags.profile.clone().or_else(|| env("WINDLASS_PROFILE").filter(|name| !name.is_empty()));
    let profiles = match profile::path(env) {
        Ok(path) => Profiles::load(&path)?,
        // A service may have no home directory. Then there are no profiles, which matters only if one is named.
        Err(_) if name.is_none() => Profiles::default(),
        Err(error) => return Err(error),
    };
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

/// What is logged: warnings by default, more with -v, or what `RUST_LOG` sets: levels by target, such as
/// `windlass_core=debug,info`.
pub(crate) fn log_filter(global: &Global) -> Targets {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    log_filter_of(&wanted, global.quiet, global.verbose)
}

fn log_filter_of(wanted: &str, quiet: bool, verbose: u8) -> Targets {
    let default = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => LevelFilter::WARN,
        (_, 1) => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let wanted = Some(wanted.trim()).filter(|wanted| !wanted.is_empty());
    wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or_else(|| Targets::new().with_default(default))
}

pub(crate) fn log_to_stderr(global: &Global) {
    let logs = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(std::io::stderr);
    let logs = logs.with_ansi(!global.no_color && console::user_attended_stderr()).with_target(false);
    // Fails only if something logs already, which is what is wanted.
    let _ = logs.finish().with(log_filter(global)).try_init();
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn check(wanted: &str, quiet: bool, verbose: u8, target: &str, logged: Level) {
        let filter = log_filter_of(wanted, quiet, verbose);
        let level = |level: &Level| filter.would_enable(target, level);
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(levels.iter().rfind(|l| level(l)), Some(&logged), "`{wanted}` for {target}");
    }

    /// The options decide unless `RUST_LOG` does, and what cannot be read decides nothing.
    #[test]
    fn levels_come_from_the_environment_or_from_options() {
        check("", true, 2, "windlass_core", Level::ERROR);
        check("", false, 0, "windlass_core", Level::WARN);
        check(" ", false, 1, "hyper", Level::INFO);
        check("", false, 9, "windlass_core", Level::DEBUG);
        check("info", true, 0, "hyper", Level::INFO);
        check("windlass_core=trace,warn", false, 0, "windlass_core::node", Level::TRACE);
        check("windlass_core=trace,warn", false, 0, "hyper", Level::WARN);
        check("windlass_core=loud", false, 0, "windlass_core", Level::WARN);
    }
}
