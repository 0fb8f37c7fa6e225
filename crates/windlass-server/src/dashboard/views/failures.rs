//! Failures, grouped by what they have in common, and the dead letters one by one. Pure.

use maud::{Markup, html};
use windlass_core::{JobId, Timestamp};

use super::super::components;
use super::super::shell::{Live, Page, Place, Shell};
use super::super::{format, urls};
use super::jobs::{self, Jobs};
use super::table::{self, Column};

/// The groups.
pub(crate) struct Failures {
    /// The filter as typed.
    pub(crate) filter: String,
    /// What is wrong with it.
    pub(crate) problem: Option<String>,
    /// The groups, latest first.
    pub(crate) groups: Vec<Group>,
    /// Terms to suggest.
    pub(crate) suggestions: Vec<String>,
}

/// Failures that have handler, code and shape of message in common.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// What they have in common, as a filter's value.
    pub(crate) signature: String,
    /// Whose failures.
    pub(crate) handler: String,
    /// The code of the error.
    pub(crate) code: String,
    /// The shape of its message.
    pub(crate) message: String,
    /// The latest message.
    pub(crate) sample: String,
    /// Jobs that are dead letters.
    pub(crate) dead: u64,
    /// Jobs that wait for a retry.
    pub(crate) retrying: u64,
    /// When it was seen first.
    pub(crate) first_at: Timestamp,
    /// When it was seen last.
    pub(crate) last_at: Timestamp,
    /// The latest job.
    pub(crate) latest: JobId,
}

/// The page of groups.
pub(crate) fn page(shell: &Shell, failures: &Failures) -> Markup {
    let content = html! {
        p.lead { "Jobs that wait for a retry, and dead letters that were not replayed, grouped by handler, code and the shape of the message." }
        (filter(shell, &failures.filter, &failures.suggestions))
        @if let Some(problem) = &failures.problem { (components::problem(problem)) }
        @else {
            section.groups #groups data-live data-hold data-rows {
                @if failures.groups.is_empty() {
                    @if failures.filter.trim().is_empty() { div.panel { (components::empty("check", "Nothing fails", html! { "No job waits for a retry, and no dead letter needs attention." })) } }
                    @else { div.panel { (components::empty("search", "No failure matches this filter", html! { a href=(shell.urls.path("/failures")) { "Show all failures" } })) } }
                }
                @for group in &failures.groups { (one(shell, group)) }
            }
        }
    };
    let live = Live { every_seconds: Some(10), events: None };
    shell.page(Page { place: Place::Failures, title: "Failures", aside: html! {}, content, live })
}

fn filter(shell: &Shell, filter: &str, suggestions: &[String]) -> Markup {
    html! {
        div.filter-row {
            form.filter method="get" action=(shell.urls.path("/failures")) role="search" data-filter {
                (components::icon("search"))
                input #filter type="search" name="q" value=(filter) autocomplete="off" spellcheck="false" list="filter-terms" aria-label="Filter" placeholder="handler:mail.send error:\"time out\" created>2026-11-01";
                datalist #filter-terms { @for term in suggestions { option value=(term) {} } }
                button type="submit" { "Filter" }
                @if !filter.is_empty() { a.button.quiet href=(shell.urls.path("/failures")) title="Show all" { (components::icon("close")) } }
            }
        }
    }
}

fn one(shell: &Shell, group: &Group) -> Markup {
    let signature = urls::term("signature", &group.signature);
    let jobs = shell.urls.jobs(&signature);
    let bulk = |action: &str, filter: &str| {
        shell.urls.query("/bulk", &[("q", filter), ("scope", "filter"), ("action", action), ("back", &shell.here)])
    };
    let dead = format!("{signature} status:dead_lettered");
    let retrying = format!("{signature} status:retrying");
    html! {
        article.panel.group tabindex="-1" data-href=(jobs) {
            div.group-main {
                div.group-line {
                    (components::handler_link(shell, &group.handler))
                    span.code-word { (group.code) }
                }
                a.group-message href=(jobs) { @if group.message.is_empty() { "(no message)" } @else { (format::first_line(&group.message, 240)) } }
                @if group.sample != group.message { p.group-sample { (format::first_line(&group.sample, 240)) } }
                p.group-times {
                    "first " (components::time(group.first_at, shell.now)) " · last " (components::time(group.last_at, shell.now))
                    " · latest " (components::job_link(shell, group.latest))
                }
            }
            div.group-side {
                dl.group-counts {
                    div.s-dead_lettered { dt { span.dot {} "dead" } dd { (format::count(group.dead)) } }
                    div.s-retrying { dt { span.dot {} "retrying" } dd { (format::count(group.retrying)) } }
                }
                @if shell.viewer.may.operate {
                    div.buttons {
                        a.button.primary href=(bulk("retry", &signature)) { (components::icon("retry")) "Retry all…" }
                        @if group.dead > 0 { a.button href=(bulk("purge", &dead)) { (components::icon("trash")) "Discard…" } }
                        @if group.retrying > 0 { a.button href=(bulk("cancel", &retrying)) { (components::icon("close")) "Cancel…" } }
                    }
                }
            }
        }
    }
}

/// The page of dead letters.
pub(crate) fn dead(shell: &Shell, list: &Jobs, with_replayed: bool) -> Markup {
    let columns = match list.columns.is_empty() {
        true => dead_columns(shell.viewer.tenant.is_none()),
        false => Column::parse(&list.columns, shell.viewer.tenant.is_none()),
    };
    let whole = format!("{} status:dead_lettered replayed:no", list.filter);
    let other = if with_replayed { "" } else { "all" };
    let older = list.next.map(|next| {
        shell.urls.query(
            "/dead",
            &[("q", &list.filter), ("show", if with_replayed { "all" } else { "" }), ("before", &next.to_string())],
        )
    });
    let content = html! {
        p.lead { "Jobs that will not be retried automatically. They are stored with their errors until someone replays or purges them." }
        (jobs::filter_bar(shell, "/dead", &list.filter, &list.columns, &list.suggestions))
        @if let Some(problem) = &list.problem { (components::problem(problem)) }
        @else {
            div.between {
                a href=(shell.urls.query("/dead", &[("q", &list.filter), ("show", other)])) { @if with_replayed { "Hide replayed ones" } @else { "Show replayed ones too" } }
                @if shell.viewer.may.operate && !list.jobs.is_empty() {
                    a.button.primary href=(shell.urls.query("/bulk", &[("q", whole.trim()), ("scope", "filter"), ("action", "replay"), ("back", &shell.here)])) { (components::icon("retry")) "Replay all of these…" }
                }
            }
            @if shell.viewer.may.operate && !list.jobs.is_empty() { (jobs::bulk_bar(shell, whole.trim())) }
            section.panel #list data-live data-hold {
                @if list.jobs.is_empty() { (no_letters(list)) }
                @else { (table::table(shell, &list.jobs, &columns, shell.viewer.may.operate)) }
                @if list.is_later || older.is_some() {
                    nav.pager aria-label="Pages" {
                        @if list.is_later { a.button href=(shell.urls.query("/dead", &[("q", &list.filter)])) { "Newest" } }
                        @if let Some(older) = older { a.button rel="next" href=(older) { "Older" } }
                    }
                }
            }
        }
    };
    let live = Live { every_seconds: (!list.is_later).then_some(10), events: None };
    shell.page(Page { place: Place::Dead, title: "Dead letters", aside: html! {}, content, live })
}

fn dead_columns(all_tenants: bool) -> Vec<Column> {
    let columns = [Column::Id, Column::Handler, Column::Tenant, Column::Attempt, Column::Ended, Column::Note];
    columns.into_iter().filter(|column| all_tenants || *column != Column::Tenant).collect()
}

fn no_letters(list: &Jobs) -> Markup {
    match list.filter.trim().is_empty() {
        true => components::empty(
            "check",
            "No dead letters",
            html! { "Every job has succeeded, is waiting, or was canceled." },
        ),
        false => components::empty("search", "No dead letter matches this filter", html! { "Remove a condition." }),
    }
}
