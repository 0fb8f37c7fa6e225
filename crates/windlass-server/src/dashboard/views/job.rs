//! The page of one job: what it is, why it does not run, what happened to it, what it carries, and what can be done with
//! it. Pure.

use maud::{Markup, html};
use windlass_core::{ErrorKind, HistoryEntry, JobError, JobRecord, NO_TIMEOUT, Status, Timestamp, Why};

use super::super::chart::{self, Stretch};
use super::super::components::{self, Act};
use super::super::shell::{Live, Page, Place, Shell};
use super::super::{format, urls};

/// What the page shows.
pub(crate) struct Job {
    /// The job.
    pub(crate) record: JobRecord,
    /// What happened to it, oldest first.
    pub(crate) history: Vec<HistoryEntry>,
    /// Why it does not run now; none once it has ended.
    pub(crate) why: Option<Why>,
    /// What it wrote while it ran, oldest first.
    pub(crate) logs: Vec<LogRow>,
    /// Lines that were dropped because there were too many.
    pub(crate) logs_dropped: u64,
    /// Its input.
    pub(crate) input: Input,
    /// The record as the API shows it.
    pub(crate) json: String,
    /// Commands that show it.
    pub(crate) commands: Vec<(&'static str, String)>,
}

/// A job's input, as far as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Input {
    /// The viewer may not see it.
    Forbidden,
    /// The viewer may ask for it; looking is written into the audit log.
    Offered,
    /// The viewer asked for it.
    Shown(String),
    /// The viewer asked for it, and it cannot be opened.
    Closed(String),
}

/// One line that a job wrote.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogRow {
    /// When.
    pub(crate) at: Timestamp,
    /// In which attempt.
    pub(crate) attempt: u16,
    /// How important it is.
    pub(crate) level: &'static str,
    /// What it says.
    pub(crate) message: String,
}

/// What can be done with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Cancel,
    Replay,
    RunNow,
    Reschedule,
    Reprioritise,
    Edit,
    Clone,
    Purge,
}

/// What can be done with a job as it is now. The service decides again when it is done.
pub(crate) fn allowed(job: &JobRecord) -> Vec<Action> {
    let mut actions = Vec::new();
    let waits = matches!(job.status, Status::Pending | Status::Scheduled | Status::Retrying | Status::Blocked);
    if job.status == Status::DeadLettered {
        actions.push(Action::Replay);
    }
    if matches!(job.status, Status::Scheduled | Status::Retrying) {
        actions.push(Action::RunNow);
    }
    if waits {
        actions.extend([Action::Edit, Action::Reschedule, Action::Reprioritise]);
    }
    actions.push(Action::Clone);
    match job.status.is_terminal() {
        true => actions.push(Action::Purge),
        false if !job.cancel_requested => actions.push(Action::Cancel),
        false => {}
    }
    actions
}

/// The page.
pub(crate) fn page(shell: &Shell, job: &Job) -> Markup {
    let record = &job.record;
    let content = html! {
        section.job-head #job-head data-live {
            div.job-title {
                (components::status(record.status))
                span.mono.handler { (record.handler) }
                @if record.cancel_requested && !record.status.is_terminal() { span.chip.warn { "cancel requested" } }
                @if record.replayed.is_some() { span.chip { "replayed" } }
                @if record.spec.sealed { span.chip title="Its payloads are stored encrypted" { (components::icon("lock")) "sealed" } }
            }
            @if shell.viewer.may.operate { (actions(shell, record)) }
        }
        div.job-columns {
            div.job-main {
                div #job-now data-live { (progress(record)) (why(shell, job)) (last_error(record)) }
                section.panel #timeline data-live {
                    header.panel-head { h2 { "Timeline" } div.panel-aside { (totals(shell, record)) } }
                    div.lifeline-box { (chart::lifeline(&stretches(record, &job.history, shell.now))) }
                    (timeline(shell, job))
                }
                section.panel #logs data-live { (logs(shell, job)) }
                section.panel #input { (input(shell, job)) }
                section.panel #result data-live { (result(record)) }
            }
            aside.job-side {
                section.panel #facts data-live { header.panel-head { h2 { "Facts" } } (facts(shell, record)) }
                section.panel #related { header.panel-head { h2 { "Related" } } (related(shell, record)) }
                section.panel { header.panel-head { h2 { "Commands" } } (commands(&job.commands)) }
                section.panel #raw data-live {
                    details { summary.panel-head { h2 { "JSON" } } (components::json(&job.json, "the job as JSON")) }
                }
            }
        }
    };
    let is_live = !record.status.is_terminal();
    let events = is_live.then(|| shell.urls.path(&format!("/api/v1/jobs/{}/events", record.id)));
    let live = Live { every_seconds: is_live.then_some(2), events };
    let title = format!("Job {}", record.id);
    let aside = components::copy(&record.id.to_string(), "the job's id");
    shell.page(Page { place: Place::Jobs, title: &title, aside, content, live })
}

fn actions(shell: &Shell, job: &JobRecord) -> Markup {
    let id = job.id;
    let path = |what: &str| format!("/jobs/{id}/{what}");
    html! {
        div.actions {
            @for action in allowed(job) {
                @match action {
                    Action::Replay => (Act::new(shell, path("retry"), "Retry").icon("retry").primary()
                        .confirm("Run this dead letter again, with its attempts reset?")),
                    Action::RunNow => (Act::new(shell, path("run-now"), "Run now").icon("play").primary()
                        .confirm("Start it now instead of at its scheduled time?")),
                    Action::Cancel => (Act::new(shell, path("cancel"), "Cancel").icon("close").danger()
                        .confirm("Cancel this job? If it runs, it is asked to stop, and stopped after its grace period.")),
                    Action::Purge => (Act::new(shell, path("purge"), "Purge").icon("trash").danger()
                        .confirm("Remove this job permanently, with its history, input and result?")),
                    Action::Clone => { @if shell.viewer.may.submit { a.button href=(shell.urls.of_job(id, "clone")) { (components::icon("clone")) "Clone" } } },
                    Action::Edit => { a.button href=(shell.urls.of_job(id, "edit")) { (components::icon("edit")) "Edit" } },
                    Action::Reschedule => {
                        details.menu {
                            summary.button { (components::icon("clock")) "Reschedule" }
                            div.menu-box {
                                (Act::new(shell, path("reschedule"), "Reschedule").primary().fields(start_fields("", "")).confirm("Change its start?"))
                            }
                        }
                    },
                    Action::Reprioritise => {
                        details.menu {
                            summary.button { (components::icon("up")) "Priority" }
                            div.menu-box {
                                (Act::new(shell, path("priority"), "Set").primary()
                                    .fields(html! { label for="priority" { "Priority" } (components::priority_field("priority", &priority_value(job))) })
                                    .confirm("Change its priority?"))
                            }
                        }
                    },
                }
            }
        }
    }
}

/// When a job starts: a delay or a time.
pub(crate) fn start_fields(delay: &str, at: &str) -> Markup {
    html! {
        label { "In" input name="delay" value=(delay) placeholder="90s, 15m, 2h, 1d" maxlength="20" autocomplete="off"; }
        label { "or at (UTC)" input name="run_at" value=(at) placeholder="2026-11-17T08:00:00Z" maxlength="40" autocomplete="off"; }
    }
}

/// A priority as a form sends it.
pub(crate) fn priority_value(job: &JobRecord) -> String {
    let name = format::priority(job.priority);
    if windlass_core::Priority::parse(&name).is_some() { name } else { job.priority.0.to_string() }
}

fn progress(job: &JobRecord) -> Markup {
    let progress = job.progress.as_ref().filter(|_| !job.status.is_terminal());
    html! {
        @if let Some(progress) = progress {
            div.progress-box data-progress {
                progress max="100" value=(progress.percent.clamp(0.0, 100.0)) data-progress-bar {}
                span.progress-n data-progress-percent { (progress.percent.round()) "%" }
                span.progress-text data-progress-message { (progress.message) }
            }
        }
    }
}

fn why(shell: &Shell, job: &Job) -> Markup {
    let Some(why) = &job.why else { return html! {} };
    let nodes = shell.viewer.all_tenants.then(|| ("/nodes".to_owned(), "See the nodes".to_owned()));
    let (tone, link) = match why {
        Why::Finished { .. } => return html! {},
        Why::Running { .. } | Why::Turn { .. } | Why::Opening | Why::NotDue { .. } => ("note", None),
        Why::Paused { .. } => ("warn", Some(("/handlers".to_owned(), "See the pauses".to_owned()))),
        Why::OrderingKeyHeld { by: Some(by), .. } => ("note", Some((format!("/jobs/{by}"), format!("Job {by}")))),
        Why::NoNodeHasHandler { .. } => ("bad", nodes),
        Why::NodesAreFull { .. } => ("warn", nodes),
        Why::TenantAtCap { .. } => ("warn", Some(("/tenants".to_owned(), "See the tenants".to_owned()))),
        _ => ("note", None),
    };
    let asks = if job.record.status == Status::Running { "Now" } else { "Why it is not running" };
    html! {
        div class={ "why " (tone) } {
            h2 { (asks) }
            p {
                @match why {
                    Why::NotDue { at: Some(at), retry } => {
                        @if *retry { "It failed and will be retried " } @else { "It starts " } (components::time(*at, shell.now)) "."
                    }
                    Why::Running { node, since, cancel_requested } => {
                        "It is running" @if let Some(node) = node { " on node " (node.0) }
                        @if let Some(since) = since { ", started " (components::time(*since, shell.now)) }
                        @if *cancel_requested { ", and was asked to stop" } "."
                    }
                    other => { (sentence(&other.to_string())) }
                }
                @if let Some((path, text)) = link { " " a href=(shell.urls.path(&path)) { (text) } }
            }
        }
    }
}

fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", chars.as_str())
}

fn last_error(job: &JobRecord) -> Markup {
    let error = job.error.as_ref().filter(|_| job.status != Status::Succeeded);
    html! {
        @if let Some(error) = error {
            section.error-box {
                h2 { "Last error" }
                (error_parts(error))
                @if let Some(reason) = job.reason.as_ref().filter(|reason| **reason != error.code) { p.faint { "Ended because of " span.code-word { (reason) } } }
            }
        } @else if let Some(reason) = job.reason.as_ref().filter(|_| job.status == Status::Canceled) {
            section.error-box.calm { h2 { "Canceled" } p { span.code-word { (reason) } } }
        }
    }
}

/// An error with its causes, one below the other.
fn error_parts(error: &JobError) -> Markup {
    let follows = match error.kind {
        ErrorKind::Terminal => "not retried",
        ErrorKind::RetryAfter(_) => "retried, not before the time that the handler asked for",
        ErrorKind::Snooze(_) => "snoozed",
        ErrorKind::Discard => "discarded",
        _ => "retried while attempts are left",
    };
    html! {
        p.error-line { span.code-word { (error.code) } span.faint { (follows) } }
        @if !error.message.is_empty() {
            ol.chain { @for cause in causes(&error.message) { li { (cause) } } }
        }
        @if let Some(details) = &error.details {
            details { summary { "Details" } (components::json(&details.to_string(), "the details")) }
        }
    }
}

/// An error's message as its causes: Windlass joins them by `: ` (`JobError::from`). A message with line breaks is a
/// text of its own, such as a backtrace, and stays whole.
fn causes(message: &str) -> Vec<&str> {
    /// More than this is text with colons in it, not a chain of causes.
    const MOST: usize = 8;
    let parts: Vec<&str> = message.split(": ").collect();
    if message.contains('\n') || parts.len() > MOST { vec![message] } else { parts }
}

fn totals(shell: &Shell, job: &JobRecord) -> Markup {
    let end = job.finished_at.unwrap_or(shell.now);
    html! {
        span.faint {
            (format::counted(u64::from(job.attempt), "attempt", "attempts")) ", "
            (format::duration(end.since(job.created_at))) " in all"
        }
    }
}

/// A job's life as stretches of waiting and running, from its history.
pub(crate) fn stretches(job: &JobRecord, history: &[HistoryEntry], now: Timestamp) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut at = job.created_at;
    let mut wait = ("s-pending", "waited".to_owned());
    for entry in history {
        if let Some(started) = entry.started_at.filter(|started| *started >= at) {
            stretches.push(Stretch { from: at, to: started, class: wait.0, what: wait.1.clone() });
            let class = if entry.error.is_some() && entry.status != Status::DeadLettered {
                "s-retrying"
            } else {
                class_of(entry.status)
            };
            let what = format!("attempt {}: {}", entry.attempt, format::status(entry.status));
            stretches.push(Stretch { from: started, to: entry.at, class, what });
        } else if entry.at > at {
            stretches.push(Stretch { from: at, to: entry.at, class: wait.0, what: wait.1.clone() });
        }
        at = entry.at.max(at);
        wait = match entry.status {
            Status::Running => ("s-running", format!("attempt {} runs", entry.attempt)),
            Status::Retrying => ("s-wait", "waited for its retry".to_owned()),
            Status::Scheduled => ("s-scheduled", "waited for its scheduled time".to_owned()),
            Status::Blocked => ("s-blocked", "was blocked".to_owned()),
            _ => ("s-pending", "waited".to_owned()),
        };
    }
    if !job.status.is_terminal() && now > at {
        stretches.push(Stretch { from: at, to: now, class: wait.0, what: wait.1 });
    }
    stretches.retain(|stretch| stretch.to > stretch.from);
    stretches
}

fn class_of(status: Status) -> &'static str {
    match status {
        Status::Succeeded => "s-succeeded",
        Status::Canceled => "s-canceled",
        Status::DeadLettered => "s-dead_lettered",
        Status::Retrying => "s-retrying",
        _ => "s-running",
    }
}

fn timeline(shell: &Shell, job: &Job) -> Markup {
    html! {
        ol.timeline {
            @for (index, entry) in job.history.iter().enumerate() {
                li class={ "s-" (entry.status.as_str()) } {
                    span.dot {}
                    div.event {
                        div.event-line {
                            b { (happening(index, entry)) }
                            @if let Some(node) = entry.node { span.faint { "node " (node.0) } }
                            @if let Some(started) = entry.started_at { span.faint { "ran " (format::duration(entry.at.since(started))) } }
                            span.event-time { (components::time(entry.at, shell.now)) }
                        }
                        @if let Some(note) = &entry.note { p.event-note { (note) } }
                        @if let Some(error) = &entry.error {
                            details.event-error {
                                summary { span.code-word { (error.code) } " " (format::first_line(&error.message, 140)) }
                                (error_parts(error))
                            }
                        }
                    }
                }
            }
            @if job.history.is_empty() { li.faint { "Its history has been removed." } }
        }
    }
}

/// What happened, with the attempt it belongs to: the numbers are those of `show --history` and of the API.
fn happening(index: usize, entry: &HistoryEntry) -> String {
    let ended_one = entry.started_at.is_some() || entry.error.is_some();
    match (entry.status, entry.attempt) {
        (Status::Pending, _) if index == 0 => "Submitted".to_owned(),
        (status, _) if index == 0 => format!("Submitted, {}", format::status(status)),
        (Status::Running, attempt) => format!("Attempt {attempt} started"),
        (Status::Retrying, attempt) => format!("Attempt {attempt} failed"),
        (Status::DeadLettered, 0) => "Became a dead letter".to_owned(),
        (Status::DeadLettered, attempt) => format!("Attempt {attempt} failed, dead letter"),
        (Status::Succeeded, attempt) => format!("Attempt {attempt} succeeded"),
        (Status::Canceled, 0) => "Canceled".to_owned(),
        (Status::Canceled, attempt) if ended_one => format!("Attempt {attempt} canceled"),
        (Status::Canceled, attempt) => format!("Canceled after attempt {attempt}"),
        (Status::Pending, 0) => "Ready again".to_owned(),
        (Status::Pending, attempt) if entry.error.is_some() => format!("Attempt {attempt} lost, ready again"),
        (Status::Pending, attempt) => format!("Ready again after attempt {attempt}"),
        (status, attempt) => {
            let text = sentence(format::status(status)).trim_end_matches('.').to_owned();
            if attempt == 0 { text } else { format!("{text} after attempt {attempt}") }
        }
    }
}

fn logs(shell: &Shell, job: &Job) -> Markup {
    html! {
        header.panel-head {
            h2 { "Log" }
            div.panel-aside { @if !job.logs.is_empty() { (components::zone()) } @if job.logs_dropped > 0 { span.faint { (format::counted(job.logs_dropped, "older line", "older lines")) " dropped" } } }
        }
        @if job.logs.is_empty() { p.panel-empty { "It has logged nothing. Handlers log with " code { "ctx.log(…)" } " or with " code { "tracing" } "." } }
        @else {
            ol.log {
                @for (index, line) in job.logs.iter().enumerate() {
                    @if index > 0 && job.logs[index - 1].attempt != line.attempt { li.log-break { "attempt " (line.attempt) } }
                    li class={ "log-" (line.level) } {
                        time datetime=(line.at) title=(format::absolute(line.at)) data-clock="seconds" { (format::clock_seconds(line.at)) }
                        span.log-level { (line.level) }
                        span.log-text { (line.message) }
                    }
                }
            }
        }
        @let _ = shell;
    }
}

fn input(shell: &Shell, job: &Job) -> Markup {
    let id = job.record.id;
    html! {
        header.panel-head { h2 { "Input" } }
        @match &job.input {
            Input::Forbidden => p.panel-empty { "You do not have the right to see inputs." },
            Input::Offered => {
                p.panel-empty {
                    a.button href=(shell.urls.query(&format!("/jobs/{id}"), &[("show", "input")])) { (components::icon("eye")) "Show the input" }
                    span.faint { "Access is recorded in the audit log." }
                }
            }
            Input::Shown(text) => (components::json(text, "the input")),
            Input::Closed(why) => (components::problem(why)),
        }
    }
}

fn result(job: &JobRecord) -> Markup {
    html! {
        header.panel-head { h2 { "Result" } }
        @match (&job.output, job.status) {
            (Some(output), _) if output.is_sealed() => p.panel-empty { "It is sealed and cannot be opened here." },
            (Some(output), _) => (components::json(output.as_str(), "the result")),
            (None, Status::Succeeded) => p.panel-empty { "It returned nothing." },
            (None, status) if status.is_terminal() => p.panel-empty { "It has no result." },
            _ => p.panel-empty { "It has not ended yet." },
        }
    }
}

fn facts(shell: &Shell, job: &JobRecord) -> Markup {
    let now = shell.now;
    let spec = &job.spec;
    html! {
        dl.facts {
            dt { "Tenant" } dd { (components::tenant_link(shell, job.tenant)) (components::copy(&job.tenant.to_string(), "the tenant")) }
            dt { "Queue" } dd.mono { (job.queue) }
            dt { "Priority" } dd { (format::priority(job.priority)) }
            dt { "Attempt" } dd { (job.attempt) @if job.failed > 0 { span.faint { ", " (job.failed) " failed" } } @if job.recoveries > 0 { span.faint { ", " (format::counted(u64::from(job.recoveries), "node lost", "nodes lost")) } } }
            dt { "Submitted" } dd { (components::time(job.created_at, now)) }
            @if let Some(at) = job.run_at { dt { "Due" } dd { (components::time(at, now)) } }
            @if let Some(at) = job.started_at { dt { "Started" } dd { (components::time(at, now)) } }
            @if let Some(at) = job.finished_at { dt { "Ended" } dd { (components::time(at, now)) } }
            @if let Some(waited) = job.waited(now) { dt { "Waited" } dd { (format::duration(waited)) } }
            @if let Some(ran) = job.ran(now) { dt { "Ran" } dd { (format::duration(ran)) } }
            @if let Some(node) = job.node { dt { "Node" } dd { (node.0) } }
            @if let Some(cost) = job.cost { dt { "Cost" } dd { (cost) } }
            @if let Some(timeout) = spec.timeout {
                dt { "Timeout" }
                dd { @if timeout == NO_TIMEOUT { "none" } @else { (format::duration(timeout)) } }
            }
            @if let Some(retry) = &spec.retry { dt { "Attempts" } dd { "at most " (retry.max_attempts) } }
            @if let Some(at) = spec.expires_at { dt { "Expires" } dd { (components::time(at, now)) } }
            @if let Some(at) = spec.deadline_at { dt { "Deadline" } dd { (components::time(at, now)) } }
            @if let Some(at) = spec.nominal_at { dt { "Nominal time" } dd { (components::time(at, now)) } }
            @if let Some(user) = &spec.user { dt { "By" } dd { (user) } }
            @if let Some(service) = &spec.service { dt { "Service" } dd { (service) } }
            @if let Some(key) = &spec.idempotency_key { dt { "Key" } dd.mono { (key) } }
            @if !job.tags.is_empty() { dt { "Tags" } dd { @for tag in &job.tags { a.tag href=(shell.urls.jobs(&urls::term("tag", tag))) { (tag) } } } }
            @if shell.viewer.may.payload { @for (name, value) in &spec.headers { dt.mono { (name) } dd { (components::linked(value)) } } }
        }
    }
}

fn related(shell: &Shell, job: &JobRecord) -> Markup {
    let jobs = |name: &str, value: &str| shell.urls.jobs(&urls::term(name, value));
    let nothing = job.spec.parent.is_none()
        && job.batch.is_none()
        && job.ordering_key.is_none()
        && job.correlation_id.is_none()
        && job.replayed.is_none();
    html! {
        @if nothing { p.panel-empty { "It is not related to other jobs." } }
        @else {
            dl.facts {
                @if let Some(parent) = job.spec.parent { dt { @if job.spec.callback.is_some() { "Callback of" } @else { "Parent" } } dd { (components::job_link(shell, parent)) } }
                @if let Some(replayed) = &job.replayed { dt { "Replayed as" } dd { (components::job_link(shell, replayed.as_job)) span.faint { " by " (replayed.by) ", " (components::time(replayed.at, shell.now)) } } }
                @if let Some(batch) = job.batch { dt { "Batch" } dd { a.mono href=(jobs("batch", &batch.0.to_string())) { (batch.0) } } }
                @if let Some(key) = &job.ordering_key { dt { "Ordering key" } dd { a.mono href=(jobs("key", key)) { (key) } } }
                @if let Some(id) = &job.correlation_id { dt { "Correlation" } dd { a.mono href=(jobs("correlation", id)) { (id) } } }
            }
        }
    }
}

fn commands(commands: &[(&'static str, String)]) -> Markup {
    html! {
        dl.commands {
            @for (name, command) in commands {
                dt { (name) } dd { code { (command) } (components::copy(command, &format!("the {name} command"))) }
            }
        }
    }
}

/// The form that changes a waiting job, or makes a new one like it.
pub(crate) struct Change {
    /// The job.
    pub(crate) record: JobRecord,
    /// Whether a new job is made.
    pub(crate) is_clone: bool,
    /// The input to begin with; none where the viewer may not see it.
    pub(crate) input: Option<String>,
    /// The priority to begin with.
    pub(crate) priority: String,
    /// The delay and the time to begin with.
    pub(crate) start: (String, String),
    /// What was wrong with the last try.
    pub(crate) problem: Option<String>,
}

/// The page with that form.
pub(crate) fn change(shell: &Shell, change: &Change) -> Markup {
    let job = &change.record;
    let (title, button, path) = match change.is_clone {
        true => (format!("Clone job {}", job.id), "Submit the clone", "clone"),
        false => (format!("Edit job {}", job.id), "Save", "edit"),
    };
    let content = html! {
        @if let Some(problem) = &change.problem { (components::problem(problem)) }
        section.panel.form-panel {
            form.form method="post" action=(shell.urls.of_job(job.id, path)) {
                input type="hidden" name="confirmed" value="1";
                p { (components::status(job.status)) " " span.mono.handler { (job.handler) } }
                @match &change.input {
                    Some(input) => {
                        label for="job-input" { "Input" }
                        textarea #job-input.mono name="input" rows="14" spellcheck="false" { (format::pretty(input)) }
                        p.hint { "JSON. It stays the same if you do not change it." }
                    }
                    None => p.hint { "The input stays the same; you do not have the right to see it." },
                }
                @if !change.is_clone {
                    label for="job-priority" { "Priority" } (components::priority_field("job-priority", &change.priority))
                    fieldset { legend { "Start" } (start_fields(&change.start.0, &change.start.1)) p.hint { "Empty: no change." } }
                }
                div.buttons {
                    a.button href=(shell.urls.job(job.id)) { "Back" }
                    button.primary type="submit" { (button) }
                }
            }
        }
    };
    shell.page(Page { place: Place::Jobs, title: &title, aside: html! {}, content, live: Live::default() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use windlass_core::{JobId, TenantId};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn record(status: Status) -> JobRecord {
        let created = NOW - Duration::from_secs(100);
        let mut job = JobRecord::new(JobId::from_i64(7), TenantId::ROOT, "mail.send".into(), "default".into(), created);
        job.status = status;
        job
    }

    #[test]
    fn only_what_the_status_allows_is_offered() {
        use Action::*;
        let cases: [(Status, &[Action]); 8] = [
            (Status::Pending, &[Edit, Reschedule, Reprioritise, Clone, Cancel]),
            (Status::Scheduled, &[RunNow, Edit, Reschedule, Reprioritise, Clone, Cancel]),
            (Status::Retrying, &[RunNow, Edit, Reschedule, Reprioritise, Clone, Cancel]),
            (Status::Blocked, &[Edit, Reschedule, Reprioritise, Clone, Cancel]),
            (Status::Running, &[Clone, Cancel]),
            (Status::Succeeded, &[Clone, Purge]),
            (Status::Canceled, &[Clone, Purge]),
            (Status::DeadLettered, &[Replay, Clone, Purge]),
        ];
        for (status, expected) in cases {
            assert_eq!(allowed(&record(status)), expected, "{status}");
        }
        let mut asked = record(Status::Running);
        asked.cancel_requested = true;
        assert_eq!(allowed(&asked), [Clone], "a second cancel changes nothing");
    }

    #[test]
    fn a_life_is_waiting_and_running_in_turn() {
        let at = |secs: u64| NOW - Duration::from_secs(100 - secs);
        let mut job = record(Status::Succeeded);
        job.finished_at = Some(at(60));
        let mut failed = HistoryEntry::new(at(15), Status::Retrying, 1);
        failed.started_at = Some(at(10));
        failed.error = Some(JobError::retryable("down"));
        let mut ended = HistoryEntry::new(at(60), Status::Succeeded, 2);
        ended.started_at = Some(at(45));
        let history = [HistoryEntry::new(at(0), Status::Pending, 0), failed, ended];
        let told: Vec<(u64, &str)> =
            stretches(&job, &history, NOW).iter().map(|s| (s.to.since(s.from).as_secs(), s.class)).collect();
        assert_eq!(told, [(10, "s-pending"), (5, "s-retrying"), (30, "s-wait"), (15, "s-succeeded")]);
    }

    /// API-5: no line of the timeline hides which attempt it belongs to.
    #[test]
    fn every_attempt_has_its_number() {
        let entry = |status, attempt| HistoryEntry::new(NOW, status, attempt);
        let mut lost = entry(Status::Pending, 2);
        lost.error = Some(JobError::retryable("its node is gone"));
        let mut stopped = entry(Status::Canceled, 2);
        stopped.started_at = Some(NOW);
        let told = [
            (lost, "Attempt 2 lost, ready again"),
            (stopped, "Attempt 2 canceled"),
            (entry(Status::Canceled, 2), "Canceled after attempt 2"),
            (entry(Status::Canceled, 0), "Canceled"),
            (entry(Status::Pending, 2), "Ready again after attempt 2"),
            (entry(Status::Pending, 0), "Ready again"),
            (entry(Status::Scheduled, 2), "Scheduled after attempt 2"),
            (entry(Status::Retrying, 2), "Attempt 2 failed"),
            (entry(Status::DeadLettered, 0), "Became a dead letter"),
        ];
        for (entry, expected) in told {
            assert_eq!(happening(1, &entry), expected);
        }
    }

    #[test]
    fn a_running_job_runs_until_now() {
        let job = record(Status::Running);
        let history = [
            HistoryEntry::new(job.created_at, Status::Pending, 0),
            HistoryEntry::new(NOW - Duration::from_secs(40), Status::Running, 1),
        ];
        let told: Vec<(u64, &str)> =
            stretches(&job, &history, NOW).iter().map(|s| (s.to.since(s.from).as_secs(), s.class)).collect();
        assert_eq!(told, [(60, "s-pending"), (40, "s-running")]);
    }

    #[test]
    fn causes_stand_below_each_other_and_texts_stay_whole() {
        assert_eq!(
            causes("could not send: connection refused: os error 111"),
            ["could not send", "connection refused", "os error 111"]
        );
        assert_eq!(causes("panicked:\n at a: b"), ["panicked:\n at a: b"]);
    }
}
