//! The verbs that are for one job, for several, or for all that pass a filter: cancel, retry, replay, purge, run-now,
//! priority. Called by `commands::run` and its families. By filter, it says how many jobs are meant before it does
//! anything, and goes on only if that is confirmed.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Read};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use windlass::store::CancelReply;
use windlass::{
    BulkAction, BulkOptions, BulkProgress, BulkState, JobFilter, JobId, JobRecord, Page, Preview, Priority, Status,
};

use crate::args::{Global, PageArgs, Pick};
use crate::backend::Backend;
use crate::commands::jobs::print_jobs;
use crate::error::{CliError, Result};
use crate::output::{Out, plain};

/// How often a bulk action is asked how far it has come.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How many must have ended before a replay is judged by those that failed again.
const JUDGE_AFTER: usize = 5;
/// What is read of stdin: a hundred thousand ids.
const MOST_STDIN_BYTES: u64 = 4 << 20;

/// What is done to jobs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verb {
    Cancel { reason: String },
    Retry,
    RunNow,
    Priority(Priority),
    Replay { as_new: bool, stop_when_failing: Option<f64> },
    Purge,
}

impl Verb {
    /// As it is typed, and as it is told afterwards.
    fn words(&self) -> (&'static str, &'static str) {
        match self {
            Verb::Cancel { .. } => ("cancel", "canceled"),
            Verb::Retry => ("retry", "retried"),
            Verb::RunNow => ("start", "set to start now"),
            Verb::Priority(_) => ("change", "changed"),
            Verb::Replay { .. } => ("replay", "replayed"),
            Verb::Purge => ("purge", "purged"),
        }
    }

    fn action(&self) -> BulkAction {
        match self {
            Verb::Cancel { reason } => BulkAction::Cancel { reason: reason.clone() },
            Verb::Retry => BulkAction::Retry,
            Verb::RunNow => BulkAction::RunNow,
            Verb::Priority(priority) => BulkAction::Reprioritise(*priority),
            Verb::Replay { .. } => BulkAction::Replay,
            Verb::Purge => BulkAction::Purge,
        }
    }

    /// Does it to one job; answers a word for programs and a sentence for people.
    async fn act(&self, backend: &dyn Backend, id: JobId) -> Result<(&'static str, String)> {
        let again = |new: JobId| if new == id { "waits again".to_owned() } else { format!("replayed as {new}") };
        Ok(match self {
            Verb::Cancel { reason } => match backend.cancel(id, reason).await? {
                CancelReply::Requested => ("requested", "is running; its node was asked to stop it".to_owned()),
                CancelReply::AlreadyFinished(_) => ("canceled", "was already canceled".to_owned()),
                _ => ("canceled", "canceled".to_owned()),
            },
            Verb::Retry => ("retried", again(backend.retry(id).await?)),
            Verb::RunNow => {
                backend.edit(id, &windlass::Edit::new().run_now()).await?;
                ("started", "starts as soon as a worker is free".to_owned())
            }
            Verb::Priority(priority) => {
                backend.edit(id, &windlass::Edit::new().priority(*priority)).await?;
                ("changed", format!("has priority {}", priority.0))
            }
            Verb::Replay { as_new, .. } => ("replayed", again(backend.replay(id, *as_new).await?)),
            Verb::Purge => {
                backend.purge(id).await?;
                ("purged", "was removed".to_owned())
            }
        })
    }
}

/// Does it to the jobs that were picked. `also` narrows a filter further, or stands for one.
pub(crate) async fn run(
    global: &Global,
    backend: &dyn Backend,
    verb: &Verb,
    pick: &Pick,
    also: Option<&(dyn Fn(&mut JobFilter) + Sync)>,
    out: &Out,
) -> Result {
    if pick.filter.is_none() && also.is_none() {
        let ids = read_ids(&pick.ids)?;
        return by_id(global, backend, verb, pick, &ids, out).await;
    }
    let mut filter = parse_filter(backend, pick.filter.as_deref()).await?;
    if let Some(also) = also {
        also(&mut filter);
    }
    by_filter(global, backend, verb, pick, &filter, out).await
}

/// A filter as it was typed; none passes everything.
pub(crate) async fn parse_filter(backend: &dyn Backend, text: Option<&str>) -> Result<JobFilter> {
    match text {
        None => Ok(JobFilter::all()),
        Some(text) => Ok(JobFilter::parse(text, backend.now().await?)?),
    }
}

/// The ids that were typed, and those on stdin where `-` stands.
fn read_ids(given: &[String]) -> Result<Vec<JobId>> {
    let mut ids = Vec::new();
    for text in given {
        if text != "-" {
            ids.push(read_id(text)?);
            continue;
        }
        let mut text = String::new();
        std::io::stdin().lock().take(MOST_STDIN_BYTES).read_to_string(&mut text)?;
        for word in text.split_whitespace() {
            ids.push(read_id(word)?);
        }
    }
    if ids.is_empty() && given.is_empty() {
        return Err(CliError::Usage("give job ids, - to read ids from stdin, or --filter".to_owned()));
    }
    Ok(ids)
}

fn read_id(text: &str) -> Result<JobId> {
    let wrong = |_| CliError::invalid("id", format!("`{}` is not a job id; job ids are decimal numbers", plain(text)));
    text.parse().map_err(wrong)
}

/// Each job by itself; what fails for one is said and does not keep the others.
async fn by_id(global: &Global, backend: &dyn Backend, verb: &Verb, pick: &Pick, ids: &[JobId], out: &Out) -> Result {
    if pick.dry_run {
        let mut jobs = Vec::new();
        for &id in ids {
            jobs.push(backend.job(id).await?);
        }
        let preview = (jobs.len() as u64, false);
        return print_preview(global, backend, verb, preview, &jobs, out).await;
    }
    let mut each = Each::new(out);
    let mut ticks = pick.rate.map(|rate| tokio::time::interval(Duration::from_secs_f64(1.0 / rate)));
    for &id in ids {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        each.report(id, verb.act(backend, id).await)?;
    }
    each.done(verb.words().0)
}

/// Says what became of each of several jobs, and remembers the first failure.
struct Each<'a> {
    out: &'a Out,
    results: Vec<serde_json::Value>,
    failed: Option<CliError>,
    failures: usize,
}

impl<'a> Each<'a> {
    fn new(out: &'a Out) -> Each<'a> {
        Each { out, results: Vec::new(), failed: None, failures: 0 }
    }

    /// One job: a word for programs and a sentence for people, or why it failed.
    fn report(&mut self, id: JobId, said: Result<(&'static str, String)>) -> Result {
        match said {
            Ok((word, sentence)) => {
                self.results.push(json!({ "id": id, "result": word }));
                if !self.out.wants_json() {
                    self.out.line(format_args!("{id} {sentence}"))?;
                }
            }
            Err(error) => {
                let said = json!({ "code": error.code(), "message": error.to_string() });
                self.results.push(json!({ "id": id, "error": said }));
                self.failures += 1;
                // The first is told at the end, by whoever tells how the command ended.
                if self.failed.is_none() {
                    self.failed = Some(error);
                } else if !self.out.wants_json() {
                    self.out.error(&error);
                }
            }
        }
        Ok(())
    }

    /// Ends the report: fails if anything did, with the code of the first failure.
    fn done(self, verb: &str) -> Result {
        let asked = self.results.len();
        if self.out.wants_json() {
            self.out.json(&json!({ "results": self.results }))?;
        }
        match self.failed {
            None => Ok(()),
            Some(error) if asked == 1 => Err(error),
            Some(error) => {
                let message = format!("{error}; could not {verb} {} of {asked} jobs", self.failures);
                Err(CliError::Some(error.code().to_owned(), message))
            }
        }
    }
}

/// All that pass: first how many they are, then the question, then the deed.
async fn by_filter(
    global: &Global,
    backend: &dyn Backend,
    verb: &Verb,
    pick: &Pick,
    filter: &JobFilter,
    out: &Out,
) -> Result {
    let (action, filter) = (verb.action(), verb.action().narrow(filter)?);
    let preview = backend.preview(&filter, pick.limit).await?;
    if pick.dry_run {
        let counted = (preview.jobs, preview.more);
        return print_preview(global, backend, verb, counted, &preview.sample, out).await;
    }
    if preview.jobs == 0 {
        if out.wants_json() {
            out.json(&json!({ "state": "finished", "total": 0, "done": 0, "failed": 0, "skipped": 0 }))?;
        }
        out.say(format_args!("no jobs found{}", global.whose()));
        return Ok(());
    }
    confirm(verb, &preview, pick, &filter, out)?;
    if let Verb::Replay { as_new: true, .. } = verb {
        // There is no bulk action for it: each is a submit of its own.
        let ids = collect(backend, &filter, pick.limit).await?;
        return by_id(global, backend, verb, pick, &ids, out).await;
    }
    let mut options = BulkOptions::default().cap(pick.limit);
    options.per_second = pick.rate;
    if let Verb::Replay { stop_when_failing: Some(part), .. } = verb {
        options = options.stop_when_failing(*part, JUDGE_AFTER);
    }
    let begun = backend.bulk(&action, &filter, &options, preview.jobs).await?;
    let ended = follow(backend, begun, verb, out).await?;
    conclude(verb, &ended, out)
}

/// Says which jobs are meant, and does nothing.
async fn print_preview(
    global: &Global,
    backend: &dyn Backend,
    verb: &Verb,
    (jobs, more): (u64, bool),
    sample: &[JobRecord],
    out: &Out,
) -> Result {
    let (word, _) = verb.words();
    if out.wants_json() {
        return out.json(&json!({ "dry_run": true, "verb": word, "jobs": jobs, "more": more, "sample": sample }));
    }
    if jobs > 0 {
        // One more than there are, so that no next page is offered.
        let page = PageArgs { limit: sample.len() + 1, before: None, offset: 0 };
        print_jobs(global, sample, page, backend.now().await?, out)?;
    }
    let shown = if jobs > sample.len() as u64 { ", the newest of them above" } else { "" };
    let more = if more { " and more beyond the limit" } else { "" };
    out.say(format_args!("this would {word} {jobs} {}{more}{shown}; nothing was changed", noun(false, jobs)));
    Ok(())
}

/// Says how many jobs are meant, and goes on only if that is confirmed.
fn confirm(verb: &Verb, preview: &Preview, pick: &Pick, filter: &JobFilter, out: &Out) -> Result {
    let what = describe(preview, filter);
    let (word, done) = verb.words();
    if pick.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(CliError::Usage(format!("this would {word} {what}; confirm with --yes")));
    }
    let mut letters = word.chars();
    let question: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    match out.ask(&format!("{question} {what}?"))? {
        true => Ok(()),
        false => Err(CliError::Failed(format!("nothing was {done}"))),
    }
}

/// `12 dead letters of email.send`, as far as the sample tells.
fn describe(preview: &Preview, filter: &JobFilter) -> String {
    let noun = noun(filter.statuses == [Status::DeadLettered], preview.jobs);
    let handlers: BTreeSet<String> = preview.sample.iter().map(|job| plain(&job.handler)).collect();
    let others = if preview.jobs > preview.sample.len() as u64 && filter.handler.is_none() { ", …" } else { "" };
    let handlers = handlers.into_iter().collect::<Vec<_>>().join(", ");
    let most = if preview.more { " (the limit; there are more)" } else { "" };
    format!("{} {noun}{most} of {handlers}{others}", preview.jobs)
}

fn noun(dead: bool, jobs: u64) -> &'static str {
    match (dead, jobs) {
        (true, 1) => "dead letter",
        (true, _) => "dead letters",
        (false, 1) => "job",
        (false, _) => "jobs",
    }
}

/// Waits until it has ended, with a bar on a terminal. Ctrl-C stops it where it is.
async fn follow(backend: &dyn Backend, begun: BulkProgress, verb: &Verb, out: &Out) -> Result<BulkProgress> {
    let target = match out.is_terminal() && !out.wants_json() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(begun.total), target);
    let style = ProgressStyle::with_template("{prefix}  {bar:30}  {pos} of {len}  {msg}");
    bar.set_style(style.expect("the template is a constant").progress_chars("━━─"));
    bar.set_prefix(verb.words().1);
    let mut progress = begun;
    let mut stopping = false;
    while progress.state == BulkState::Running {
        bar.set_position(progress.done + progress.failed + progress.skipped);
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = tokio::signal::ctrl_c(), if !stopping => {
                stopping = true;
                bar.set_message("stopping");
                backend.bulk_stop(progress.id).await?;
            }
        }
        progress = backend.bulk_progress(progress.id).await?;
    }
    bar.finish_and_clear();
    Ok(progress)
}

/// Tells how it ended; fails unless all went well.
fn conclude(verb: &Verb, ended: &BulkProgress, out: &Out) -> Result {
    let (word, done) = verb.words();
    if out.wants_json() {
        out.json(ended)?;
    } else {
        let noun = noun(matches!(verb, Verb::Replay { .. }), ended.done);
        let skipped = if ended.skipped > 0 {
            format!(", {} skipped because their state had changed", ended.skipped)
        } else {
            String::new()
        };
        out.line(format_args!("{} {noun} {done}{skipped}", ended.done))?;
    }
    let why = ended.error.as_deref().map(|error| format!(": {}", plain(error))).unwrap_or_default();
    match ended.state {
        BulkState::Finished if ended.failed == 0 => Ok(()),
        BulkState::Finished => {
            Err(CliError::Failed(format!("could not {word} {} of {} jobs{why}", ended.failed, ended.total)))
        }
        BulkState::Stopped => {
            Err(CliError::Failed(format!("stopped after {} of {} jobs{why}", ended.done, ended.total)))
        }
        _ => Err(CliError::Failed(format!("ended after {} of {} jobs{why}", ended.done, ended.total))),
    }
}

/// The jobs that a filter means, at most `limit`.
async fn collect(backend: &dyn Backend, filter: &JobFilter, limit: usize) -> Result<Vec<JobId>> {
    let mut found: Vec<JobId> = Vec::new();
    let mut page = Page::first(Page::MAX);
    while found.len() < limit {
        page.limit = Page::MAX.min(limit - found.len());
        let jobs = backend.list(filter, page).await?;
        let Some(last) = jobs.last() else { break };
        page = page.after(last.id);
        found.extend(jobs.iter().map(|job| job.id));
    }
    Ok(found)
}
