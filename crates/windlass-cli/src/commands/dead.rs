//! Dead letters: list, show, replay by id or by filter, purge. Called by `commands::run`. A replay by filter says how
//! many it means before it does anything.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::store::Store;
use windlass::{JobFilter, JobId, JobRecord, JobService, Pace, Page, SecurityContext, Status, TenantId};

use crate::args::{DeadCommand, DeadFilter, DeadListArgs, Global, ReplayArgs, ShowArgs};
use crate::commands::jobs;
use crate::commands::steer::Each;
use crate::connect::{Place, actor, caller_of, find, opener, with_service};
use crate::error::{CliError, Result};
use crate::output::{Out, plain};

/// Carries out one of the commands.
pub(crate) async fn run(global: &Global, place: &Place, command: DeadCommand, out: &Out) -> Result {
    match command {
        DeadCommand::List(args) => list(global, place.read().await?, &args, out).await,
        DeadCommand::Show { id } => show(global, place.read().await?, id, out).await,
        DeadCommand::Replay(args) if args.all => replay_all(global, place.write().await?, &args, out).await,
        DeadCommand::Replay(args) => replay_ids(global, place.write().await?, &args, out).await,
        DeadCommand::Purge { ids } => purge(global, place.write().await?, &ids, out).await,
    }
}

async fn list(global: &Global, store: Arc<dyn Store>, args: &DeadListArgs, out: &Out) -> Result {
    let filter = letters(&args.filter, args.replayed);
    let mut jobs = store.list(global.scope(), &filter, args.page.page()).await?;
    opener(global, &store)?.open_records(&mut jobs).await;
    jobs::print_jobs(global, &jobs, args.page, store.now().await?, out)
}

fn letters(wanted: &DeadFilter, replayed: Option<bool>) -> JobFilter {
    let mut filter = JobFilter::all().status(Status::DeadLettered);
    filter.handler.clone_from(&wanted.handler);
    filter.reason.clone_from(&wanted.reason);
    filter.tag.clone_from(&wanted.tag);
    filter.replayed = replayed;
    filter
}

async fn show(global: &Global, store: Arc<dyn Store>, id: JobId, out: &Out) -> Result {
    let job = find(&*store, global, id).await?;
    if job.status != Status::DeadLettered {
        let message = format!("it is {}, not a dead letter; see it with `windlass show {id}`", job.status);
        return Err(windlass::Error::Conflict { job: id, message }.into());
    }
    jobs::show(global, store, &ShowArgs { id, input: true, history: true }, out).await
}

async fn replay_ids(global: &Global, store: Arc<dyn Store>, args: &ReplayArgs, out: &Out) -> Result {
    with_service(global, store.clone(), async |service| {
        let mut each = Each::new(out);
        let mut ticks = ticks(args.rate);
        for &id in args.ids.iter().take(args.limit) {
            tick(&mut ticks).await;
            let replayed = async {
                let ctx = caller_of(&*store, global, id).await?;
                replay_one(service, &ctx, id, args.as_new).await
            };
            let replayed = replayed.await;
            let sentence = match &replayed {
                Ok(new) if *new != id => format!("replayed as {new}"),
                _ => "waits again".to_owned(),
            };
            each.report(id, replayed.map(|_| ("replayed", sentence.as_str())))?;
        }
        each.done("replay")
    })
    .await
}

/// Replays one dead letter; answers as which job.
async fn replay_one(service: &JobService, ctx: &SecurityContext, id: JobId, as_new: bool) -> Result<JobId> {
    if as_new {
        return Ok(service.replay_as_new(ctx, id, None).await?);
    }
    service.replay(ctx, id).await?;
    Ok(id)
}

async fn replay_all(global: &Global, store: Arc<dyn Store>, args: &ReplayArgs, out: &Out) -> Result {
    // What was replayed as a new job is dealt with; replaying it again would do its work twice.
    let filter = letters(&args.filter(), Some(false));
    let found = collect(global, &*store, &filter, args.limit).await?;
    if found.is_empty() {
        if out.wants_json() {
            out.json(&json!({ "replayed": [], "failed_again": 0, "stopped": false }))?;
        }
        out.say(format_args!("no such dead letters{}", global.whose()));
        return Ok(());
    }
    confirm(&found, args, out)?;
    with_service(global, store, async |service| {
        let (mut replayed, mut failed_again, mut stopped) = (Vec::new(), 0, false);
        if args.as_new {
            let mut ticks = ticks(args.rate);
            for letter in &found {
                tick(&mut ticks).await;
                let ctx = SecurityContext::new(letter.tenant).with_user(actor());
                replayed.push(service.replay_as_new(&ctx, letter.id, None).await?);
            }
        } else {
            let tenants: BTreeSet<TenantId> = found.iter().map(|letter| letter.tenant).collect();
            for tenant in tenants {
                let ctx = SecurityContext::new(tenant).with_user(actor());
                let report = service.replay_many(&ctx, &filter, pace(args, args.limit - replayed.len())).await?;
                replayed.extend(report.replayed);
                failed_again += report.failed_again;
                stopped |= report.stopped;
                if stopped || replayed.len() >= args.limit {
                    break;
                }
            }
        }
        if out.wants_json() {
            out.json(&json!({ "replayed": replayed, "failed_again": failed_again, "stopped": stopped }))?;
        } else {
            out.line(format_args!("{} dead letters replayed", replayed.len()))?;
        }
        if stopped {
            let message = format!("stopped: {failed_again} of {} replayed jobs failed again", replayed.len());
            return Err(CliError::Failed(message));
        }
        Ok(())
    })
    .await
}

/// The letters that a filter means, at most `limit`.
async fn collect(global: &Global, store: &dyn Store, filter: &JobFilter, limit: usize) -> Result<Vec<JobRecord>> {
    let mut found: Vec<JobRecord> = Vec::new();
    let mut page = Page::first(Page::MAX);
    while found.len() < limit {
        page.limit = Page::MAX.min(limit - found.len());
        let letters = store.list(global.scope(), filter, page).await?;
        let Some(last) = letters.last() else { break };
        page = page.after(last.id);
        found.extend(letters);
    }
    Ok(found)
}

/// Says how many dead letters are meant, and goes on only if that is confirmed.
fn confirm(found: &[JobRecord], args: &ReplayArgs, out: &Out) -> Result {
    let handlers: BTreeSet<String> = found.iter().map(|letter| plain(&letter.handler)).collect();
    let handlers = handlers.into_iter().collect::<Vec<_>>().join(", ");
    let most = if found.len() == args.limit { " (the limit)" } else { "" };
    let what = format!("{} dead letters{most} of {handlers}", found.len());
    if args.yes {
        out.say(format_args!("replaying {what}"));
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(CliError::Usage(format!("this would replay {what}; confirm with --yes")));
    }
    match out.ask(&format!("Replay {what}?"))? {
        true => Ok(()),
        false => Err(CliError::Failed("nothing was replayed".to_owned())),
    }
}

fn pace(args: &ReplayArgs, limit: usize) -> Pace {
    let pace = Pace::default().limit(limit);
    let pace = args.rate.map_or(pace.clone(), |rate| pace.per_second(rate));
    let judge_after = Pace::default().judge_after;
    args.stop_when_failing.map_or(pace.clone(), |part| pace.stop_when_failing(part, judge_after))
}

fn ticks(rate: Option<f64>) -> Option<tokio::time::Interval> {
    rate.map(|rate| tokio::time::interval(Duration::from_secs_f64(1.0 / rate)))
}

async fn tick(ticks: &mut Option<tokio::time::Interval>) {
    if let Some(ticks) = ticks {
        ticks.tick().await;
    }
}

async fn purge(global: &Global, store: Arc<dyn Store>, ids: &[JobId], out: &Out) -> Result {
    with_service(global, store.clone(), async |service| {
        let mut each = Each::new(out);
        for &id in ids {
            let purged = async {
                let ctx = caller_of(&*store, global, id).await?;
                Ok(service.purge(&ctx, id).await?)
            };
            each.report(id, purged.await.map(|()| ("purged", "is gone")))?;
        }
        each.done("purge")
    })
    .await
}
