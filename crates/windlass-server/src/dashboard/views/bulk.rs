//! Acting on many jobs: a preview that says what would happen to how many, and how far a running action has come. Pure.

use maud::{Markup, html};
use windlass_core::{JobId, JobRecord};

use super::super::components::{self, Act};
use super::super::format;
use super::super::shell::{Live, Page, Place, Shell};
use super::table::{self, Column};

/// What is about to happen.
pub(crate) struct Preview {
    /// What is done: the name of a [`Choice`].
    pub(crate) action: String,
    /// The jobs by a filter.
    pub(crate) filter: String,
    /// The jobs that were chosen by hand; empty where the filter chooses.
    pub(crate) chosen: Vec<JobId>,
    /// How many there are, up to the cap.
    pub(crate) jobs: u64,
    /// Whether there are more than the cap.
    pub(crate) more: bool,
    /// Some of them.
    pub(crate) sample: Vec<JobRecord>,
    /// How many are done at most.
    pub(crate) cap: usize,
    /// Where to go back to.
    pub(crate) back: String,
    /// What is wrong with the request.
    pub(crate) problem: Option<String>,
}

/// What can be done to many jobs at once.
pub(crate) struct Choice {
    /// Its name in forms and in the API.
    pub(crate) name: &'static str,
    /// Its name on buttons.
    pub(crate) label: &'static str,
    /// What it does.
    pub(crate) what: &'static str,
    /// Whether it cannot be undone.
    pub(crate) is_final: bool,
}

/// All of them.
pub(crate) const CHOICES: [Choice; 6] = [
    Choice {
        name: "replay",
        label: "Replay",
        what: "Runs dead letters again, with their attempts reset.",
        is_final: false,
    },
    Choice { name: "retry", label: "Retry", what: "Runs retrying jobs now and replays dead letters.", is_final: false },
    Choice { name: "run_now", label: "Run now", what: "Starts scheduled and retrying jobs now.", is_final: false },
    Choice {
        name: "reprioritise",
        label: "Change the priority",
        what: "Changes the priority of waiting jobs.",
        is_final: false,
    },
    Choice {
        name: "cancel",
        label: "Cancel",
        what: "Ends waiting jobs, and asks running ones to stop.",
        is_final: true,
    },
    Choice {
        name: "purge",
        label: "Purge",
        what: "Removes ended jobs permanently, with their history, input and result.",
        is_final: true,
    },
];

/// The preview.
pub(crate) fn preview(shell: &Shell, preview: &Preview) -> Markup {
    let choice = CHOICES.iter().find(|choice| choice.name == preview.action);
    let n =
        if preview.more { format!("more than {}", format::count(preview.jobs)) } else { format::count(preview.jobs) };
    let content = html! {
        @if let Some(problem) = &preview.problem { (components::problem(problem)) }
        section.panel.form-panel {
            form.form method="get" action=(shell.urls.path("/bulk")) data-autosubmit {
                @for id in &preview.chosen { input type="hidden" name="id" value=(id); }
                input type="hidden" name="q" value=(preview.filter);
                input type="hidden" name="back" value=(preview.back);
                @if preview.chosen.is_empty() { input type="hidden" name="scope" value="filter"; }
                fieldset.choices {
                    legend { "What to do" }
                    @for choice in &CHOICES {
                        label.choice { input type="radio" name="action" value=(choice.name) checked[choice.name == preview.action]; span { b { (choice.label) } " " span.faint { (choice.what) } } }
                    }
                }
                @if preview.chosen.is_empty() {
                    label for="cap" { "At most" }
                    input #cap.short type="number" name="cap" min="1" max="100000" value=(preview.cap);
                }
                div.buttons { button type="submit" { "Preview" } }
            }
        }
        @if preview.problem.is_none() {
            section.panel {
                header.panel-head { h2 { (n) " " @if preview.jobs == 1 && !preview.more { "job" } @else { "jobs" } } div.panel-aside { span.mono.faint { @if preview.chosen.is_empty() { @if preview.filter.trim().is_empty() { "all jobs" } @else { (preview.filter) } } @else { "selected by hand" } } } }
                @if preview.sample.is_empty() { (components::empty("search", "No job matches", html! { "Nothing would happen." })) }
                @else {
                    (table::table(shell, &preview.sample, &[Column::Status, Column::Id, Column::Handler, Column::Attempt, Column::Created, Column::Note], false))
                    @if preview.jobs as usize > preview.sample.len() || preview.more { p.panel-empty { "and others" } }
                }
            }
            @if let Some(choice) = choice.filter(|_| preview.jobs > 0) { (go(shell, preview, choice)) }
        }
    };
    shell.page(Page {
        place: Place::Elsewhere,
        title: "Act on many jobs",
        aside: html! {},
        content,
        live: Live::default(),
    })
}

fn go(shell: &Shell, preview: &Preview, choice: &Choice) -> Markup {
    let by_filter = preview.chosen.is_empty();
    html! {
        section.panel.form-panel {
            header.panel-head { h2 { (choice.label) " " (format::counted(preview.jobs, "job", "jobs")) } }
            form.form method="post" action=(shell.urls.path("/bulk")) data-confirm={ (choice.label) " " (format::counted(preview.jobs, "job", "jobs")) "? " (choice.what) }
                data-confirm-yes=(choice.label) data-confirm-danger=[choice.is_final.then_some("")] {
                @for id in &preview.chosen { input type="hidden" name="id" value=(id); }
                input type="hidden" name="q" value=(preview.filter);
                input type="hidden" name="action" value=(choice.name);
                input type="hidden" name="expected" value=(preview.jobs);
                input type="hidden" name="cap" value=(preview.cap);
                input type="hidden" name="back" value=(preview.back);
                @if choice.name == "cancel" { label for="reason" { "Why" } input #reason name="reason" maxlength="200" placeholder="wrong template" ; }
                @if choice.name == "reprioritise" { label for="bulk-priority" { "Priority" } (components::priority_field("bulk-priority", "normal")) }
                @if by_filter && ["retry", "replay", "run_now"].contains(&choice.name) {
                    fieldset {
                        legend { "Pace" }
                        label { "Jobs a second" input.short type="number" name="per_second" min="0.1" max="10000" step="0.1" placeholder="no limit"; }
                        label { "Stop when more than this percentage fails again" input.short type="number" name="stop_when_failing" min="0" max="100" placeholder="never"; }
                    }
                }
                div.buttons {
                    a.button href=(preview.back) { "Back" }
                    button class=(if choice.is_final { "danger" } else { "primary" }) type="submit" { (choice.label) " " (format::counted(preview.jobs, "job", "jobs")) }
                }
            }
        }
    }
}

/// How far an action on many jobs has come.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// Its id.
    pub(crate) id: String,
    /// What is done.
    pub(crate) action: String,
    /// To which jobs.
    pub(crate) filter: String,
    /// Jobs done.
    pub(crate) done: u64,
    /// Jobs that could not be done.
    pub(crate) failed: u64,
    /// Jobs that were not in a state for it any more.
    pub(crate) skipped: u64,
    /// Jobs in all.
    pub(crate) total: u64,
    /// `running`, `finished`, `stopped` or `failed`.
    pub(crate) state: String,
    /// Why it failed.
    pub(crate) error: Option<String>,
}

/// The page of one.
pub(crate) fn running(shell: &Shell, bulk: &Running) -> Markup {
    let is_running = bulk.state == "running";
    let seen = bulk.done + bulk.failed + bulk.skipped;
    let content = html! {
        section.panel.form-panel #bulk-progress data-live {
            header.panel-head { h2 { (bulk.action) } div.panel-aside { span class={ "chip " (tone(&bulk.state)) } { (bulk.state) } } }
            div.progress-box {
                progress max=(bulk.total.max(1)) value=(seen.min(bulk.total.max(1))) {}
                span.progress-n { (format::count(seen)) span.faint { " of " (format::count(bulk.total)) } }
            }
            dl.facts {
                dt { "Done" } dd { (format::count(bulk.done)) }
                dt { "Skipped" } dd { (format::count(bulk.skipped)) span.faint { " skipped because their state had changed" } }
                dt { "Failed" } dd { (format::count(bulk.failed)) }
                dt { "Filter" } dd.mono { @if bulk.filter.trim().is_empty() { "all jobs" } @else { (bulk.filter) } }
            }
            @if let Some(error) = &bulk.error { (components::problem(error)) }
            div.buttons {
                a.button href=(shell.urls.jobs(&bulk.filter)) { "See the jobs" }
                @if is_running && shell.viewer.may.operate {
                    (Act::new(shell, format!("/bulk/{}/stop", bulk.id), "Stop").danger().confirm("Stop after the current job?"))
                }
            }
        }
    };
    let live = Live { every_seconds: is_running.then_some(1), events: None };
    shell.page(Page { place: Place::Elsewhere, title: "Action on many jobs", aside: html! {}, content, live })
}

fn tone(state: &str) -> &'static str {
    match state {
        "running" => "busy",
        "finished" => "good",
        "stopped" => "warn",
        _ => "bad",
    }
}
