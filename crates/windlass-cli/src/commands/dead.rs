//! Dead letters: list, show, replay, purge. Called by `commands::run`; what is done to several at once is in `many`.

use windlass::{JobFilter, JobId, Status};

use crate::args::{DeadCommand, DeadFilter, DeadListArgs, Global, ReplayArgs, ShowArgs};
use crate::backend::Backend;
use crate::commands::jobs;
use crate::commands::many::{self, Verb, parse_filter};
use crate::error::Result;
use crate::output::Out;

/// Carries out one of the commands.
pub(crate) async fn run(global: &Global, backend: &dyn Backend, command: DeadCommand, out: &Out) -> Result {
    match command {
        DeadCommand::List(args) => list(global, backend, &args, out).await,
        DeadCommand::Show { id } => show(backend, id, out).await,
        DeadCommand::Replay(args) => replay(global, backend, &args, out).await,
        DeadCommand::Purge(pick) => many::run(global, backend, &Verb::Purge, &pick, None, out).await,
    }
}

async fn list(global: &Global, backend: &dyn Backend, args: &DeadListArgs, out: &Out) -> Result {
    let mut filter = parse_filter(backend, args.filter.as_deref()).await?;
    filter.statuses = vec![Status::DeadLettered];
    filter.replayed = args.replayed.or(filter.replayed);
    narrow(&mut filter, &args.only);
    let jobs = backend.list(&filter, args.page.page()).await?;
    jobs::print_jobs(global, &jobs, args.page, backend.now().await?, out)
}

/// What options add to a filter; where both say something, the option counts.
fn narrow(filter: &mut JobFilter, only: &DeadFilter) {
    filter.handler = only.handler.clone().or(filter.handler.take());
    filter.reason = only.reason.clone().or(filter.reason.take());
    filter.tag = only.tag.clone().or(filter.tag.take());
}

async fn show(backend: &dyn Backend, id: JobId, out: &Out) -> Result {
    let job = backend.job(id).await?;
    if job.status != Status::DeadLettered {
        let message = format!("the job is {}, not a dead letter; see it with `windlass show {id}`", job.status);
        return Err(windlass::Error::Conflict { job: id, message }.into());
    }
    jobs::show(backend, &ShowArgs { id, input: true, history: true }, out).await
}

async fn replay(global: &Global, backend: &dyn Backend, args: &ReplayArgs, out: &Out) -> Result {
    let verb = Verb::Replay { as_new: args.as_new, stop_when_failing: args.stop_when_failing };
    let only = DeadFilter { handler: args.handler.clone(), reason: args.reason.clone(), tag: args.tag.clone() };
    let all = |filter: &mut JobFilter| narrow(filter, &only);
    let all: Option<&(dyn Fn(&mut JobFilter) + Sync)> = if args.all { Some(&all) } else { None };
    many::run(global, backend, &verb, &args.pick, all, out).await
}
