//! Prints what goes on: the log of one job, and changes of status of all of them. Called by `commands::run`. Ends when the
//! job has ended, when as much has come as was wanted, or never.

use std::time::Duration;

use futures_util::StreamExt;
use windlass::{JobId, LogLine};

use crate::args::{EventsArgs, LogsArgs};
use crate::backend::{Backend, Event, Wanted};
use crate::error::Result;
use crate::output::{Out, plain, status_style};
use windlass::text::show_time;

/// How often the log of a running job is read.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Without --follow, events end when none has come for this long: those that are kept come at once.
const QUIET: Duration = Duration::from_secs(2);

/// Prints the lines of a job.
pub(crate) async fn logs(backend: &dyn Backend, args: &LogsArgs, out: &Out) -> Result {
    let mut after = args.after;
    loop {
        // Asked before the lines are read: what is logged last is not missed.
        let ended = !args.follow || backend.job(args.id).await?.status.is_terminal();
        let lines = backend.logs(args.id, after).await?;
        for line in &lines {
            print_line(line, out)?;
            after = after.max(line.sequence);
        }
        if ended {
            if after == 0 && !out.wants_json() {
                out.say("the job has logged nothing");
            }
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn print_line(line: &LogLine, out: &Out) -> Result {
    if out.wants_json() {
        return out.line(serde_json::to_string(line)?);
    }
    let at = out.paint(&console::Style::new().dim(), show_time(line.at));
    out.line(format_args!("{at} {:<5} {}", line.level.to_string(), plain(&line.message)))
}

/// Prints changes of status.
pub(crate) async fn events(backend: &dyn Backend, args: &EventsArgs, out: &Out) -> Result {
    // Who does not follow wants to see what was there before.
    let after = args.after.or((!args.follow).then_some(0));
    let wanted = Wanted { after, handler: args.handler.clone(), statuses: args.statuses.clone() };
    let mut events = backend.events(wanted).await?;
    let mut left = args.limit.unwrap_or(usize::MAX);
    while left > 0 {
        let next = match args.follow {
            true => events.next().await,
            false => match tokio::time::timeout(QUIET, events.next()).await {
                Ok(next) => next,
                Err(_) => return Ok(()),
            },
        };
        let Some(event) = next else { return Ok(()) };
        print_event(&event?, out)?;
        left -= 1;
    }
    Ok(())
}

/// Programs get an object per line, also without --json: in a pipe nobody else reads. People get a sentence.
fn print_event(event: &Event, out: &Out) -> Result {
    if out.wants_json() || !out.is_terminal() {
        return out.line(serde_json::to_string(event)?);
    }
    let at = out.paint(&console::Style::new().dim(), show_time(event.at));
    let status = out.paint(&status_style(event.status), format_args!("{:<13}", event.status.as_str()));
    let error = event.error.as_ref().map(|error| plain(&error.to_string())).unwrap_or_default();
    let job: JobId = event.job;
    out.line(format_args!("{at} {job} {status} {}  {error}", plain(&event.handler)))
}
