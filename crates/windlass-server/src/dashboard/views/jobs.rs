//! The list of jobs: tabs by status, the filter, columns, choosing rows for an action on many. Pure.

use maud::{Markup, html};
use windlass_core::{JobId, JobRecord, Status};

use super::super::components;
use super::super::shell::{Live, Page, Place, Shell};
use super::super::{format, urls};
use super::table::{self, Column};

/// What the list shows.
pub(crate) struct Jobs {
    /// The filter as typed.
    pub(crate) filter: String,
    /// What is wrong with it.
    pub(crate) problem: Option<String>,
    /// How many jobs each tab leads to; none where that is not known.
    pub(crate) tabs: Vec<(Status, Seen)>,
    /// The status that the filter asks for, if it is one.
    pub(crate) status: Option<Status>,
    /// The page.
    pub(crate) jobs: Vec<JobRecord>,
    /// The columns, as chosen in the address (empty: the usual ones).
    pub(crate) columns: String,
    /// Whether this is not the first page.
    pub(crate) is_later: bool,
    /// The last id of this page, if another follows.
    pub(crate) next: Option<JobId>,
    /// Terms to suggest.
    pub(crate) suggestions: Vec<String>,
}

/// How many jobs were seen of those that a tab leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) n: u64,
    /// There may be more, that nobody looked at.
    pub(crate) or_more: bool,
}

/// The tabs, in the order of a life.
pub(crate) const TABS: [Status; 8] = [
    Status::Pending,
    Status::Running,
    Status::Scheduled,
    Status::Retrying,
    Status::Blocked,
    Status::Succeeded,
    Status::Canceled,
    Status::DeadLettered,
];

/// The page.
pub(crate) fn page(shell: &Shell, list: &Jobs) -> Markup {
    let content = html! {
        (tabs(shell, list))
        (filter_bar(shell, "/jobs", &list.filter, &list.columns, &list.suggestions))
        @if let Some(problem) = &list.problem { (components::problem(problem)) }
        @else { (list_of(shell, list)) }
    };
    let live = Live { every_seconds: (!list.is_later).then_some(3), events: Some(shell.urls.path("/api/v1/events")) };
    shell.page(Page { place: Place::Jobs, title: "Jobs", aside: submit_button(shell), content, live })
}

fn submit_button(shell: &Shell) -> Markup {
    html! { @if shell.viewer.may.submit { a.button.primary href=(shell.urls.path("/submit")) { (components::icon("plus")) "Submit a job" } } }
}

fn tabs(shell: &Shell, list: &Jobs) -> Markup {
    let address = |status: Option<Status>| {
        shell.urls.query("/jobs", &[("q", &with_status(&list.filter, status)), ("cols", &list.columns)])
    };
    let is_all = !words_of(&list.filter).iter().any(|word| is_status(word));
    let seen = |status: Status| list.tabs.iter().find(|(of, _)| *of == status).map(|(_, seen)| *seen);
    html! {
        nav.tabs #tabs data-live aria-label="Status" {
            a href=(address(None)) aria-current=[is_all.then_some("true")] { "All" }
            @for status in TABS {
                a href=(address(Some(status))) class={ "s-" (status.as_str()) } aria-current=[(list.status == Some(status)).then_some("true")] {
                    span.dot {} (format::status(status))
                    @if let Some(seen) = seen(status) { " " span.n { (format::short(seen.n as f64)) @if seen.or_more { "+" } } }
                }
            }
        }
    }
}

/// The field with the filter, and the choice of columns.
pub(crate) fn filter_bar(shell: &Shell, path: &str, filter: &str, columns: &str, suggestions: &[String]) -> Markup {
    let chosen = Column::parse(columns, shell.viewer.tenant.is_none());
    html! {
        div.filter-row {
            form.filter method="get" action=(shell.urls.path(path)) role="search" data-filter {
                (components::icon("search"))
                input #filter type="search" name="q" value=(filter) autocomplete="off" spellcheck="false" autocapitalize="off"
                    list="filter-terms" aria-label="Filter" placeholder="handler:mail.* -status:succeeded error:\"time out\" created>1h attempt>1";
                datalist #filter-terms { @for term in suggestions { option value=(term) {} } }
                @if !columns.is_empty() { input type="hidden" name="cols" value=(columns); }
                button type="submit" { "Filter" }
                @if !filter.is_empty() { a.button.quiet href=(shell.urls.query(path, &[("cols", columns)])) title="Show all" { (components::icon("close")) } }
            }
            details.menu {
                summary.button title="Choose columns" { (components::icon("columns")) span.wide { "Columns" } }
                form.menu-box method="get" action=(shell.urls.path(path)) data-columns {
                    input type="hidden" name="q" value=(filter);
                    @for column in Column::ALL {
                        label.check { input type="checkbox" name="col" value=(column.key()) checked[chosen.contains(&column)]; (column.title()) }
                    }
                    div.buttons {
                        a.button.quiet href=(shell.urls.query(path, &[("q", filter)])) { "Usual" }
                        button.primary type="submit" { "Show" }
                    }
                }
            }
        }
    }
}

fn list_of(shell: &Shell, list: &Jobs) -> Markup {
    let columns = Column::parse(&list.columns, shell.viewer.tenant.is_none());
    html! {
        @if shell.viewer.may.operate { (bulk_bar(shell, &list.filter)) }
        section.panel #list data-live data-hold {
            @if list.jobs.is_empty() { (nothing(shell, list)) }
            @else { (table::table(shell, &list.jobs, &columns, shell.viewer.may.operate)) }
            (pager(shell, "/jobs", list))
        }
    }
}

/// What can be done with the rows that are chosen, or with everything that passes the filter.
pub(crate) fn bulk_bar(shell: &Shell, filter: &str) -> Markup {
    html! {
        form.bulk-bar #bulk method="get" action=(shell.urls.path("/bulk")) data-bulk {
            input type="hidden" name="q" value=(filter);
            input type="hidden" name="back" value=(shell.here);
            span.bulk-count data-bulk-count { "Selected rows:" }
            @for (action, label, icon) in [("retry", "Retry", "retry"), ("run_now", "Run now", "play"), ("cancel", "Cancel", "close"), ("purge", "Purge", "trash")] {
                button type="submit" name="action" value=(action) { (components::icon(icon)) (label) }
            }
            button.quiet type="button" data-bulk-clear hidden { "Clear" }
            a.bulk-all href=(shell.urls.query("/bulk", &[("q", filter), ("scope", "filter"), ("back", &shell.here)])) {
                @if filter.trim().is_empty() { "Act on all jobs…" } @else { "Act on all that match the filter…" }
            }
        }
    }
}

fn pager(shell: &Shell, path: &str, list: &Jobs) -> Markup {
    let (filter, columns) = (list.filter.as_str(), list.columns.as_str());
    html! {
        @if list.is_later || list.next.is_some() {
            nav.pager aria-label="Pages" {
                @if list.is_later { a.button href=(shell.urls.query(path, &[("q", filter), ("cols", columns)])) rel="first" { "Newest" } }
                @if let Some(next) = list.next {
                    a.button rel="next" href=(shell.urls.query(path, &[("q", filter), ("cols", columns), ("before", &next.to_string())])) { "Older" }
                }
            }
        }
    }
}

fn nothing(shell: &Shell, list: &Jobs) -> Markup {
    let all = shell.urls.query("/jobs", &[("cols", &list.columns)]);
    match (list.filter.trim().is_empty(), list.is_later) {
        _ if list.next.is_some() => components::empty(
            "search",
            "No matches so far",
            html! { "None of the newest jobs matches. Older ones may." },
        ),
        (_, true) => components::empty("jobs", "No older jobs", html! { "This is the end of the list." }),
        (false, _) => components::empty(
            "search",
            "No job matches this filter",
            html! { "Remove a condition, or " a href=(all) { "show all jobs" } "." },
        ),
        (true, _) => components::empty(
            "jobs",
            "No jobs",
            html! {
                "Jobs appear here as they are submitted."
                @if shell.viewer.may.submit { " " a href=(shell.urls.path("/submit")) { "Submit one" } "." }
            },
        ),
    }
}

/// The filter with its status replaced. Works on the text, so that a filter with a mistake in it keeps its other terms.
pub(crate) fn with_status(filter: &str, status: Option<Status>) -> String {
    let mut terms: Vec<String> = words_of(filter).into_iter().filter(|word| !is_status(word)).collect();
    terms.extend(status.map(|status| urls::term("status", status.as_str())));
    terms.join(" ")
}

/// Whether a term asks for statuses, or for any but these.
fn is_status(word: &str) -> bool {
    word.strip_prefix('-').unwrap_or(word).starts_with("status:")
}

/// The terms of a filter as they were typed: split at spaces, but not inside quotes.
fn words_of(filter: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for c in filter.chars() {
        if c.is_whitespace() && !quoted {
            words.push(std::mem::take(&mut word));
            continue;
        }
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        word.push(c);
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tab_changes_the_status_and_nothing_else() {
        let filter = r#"handler:a status:retrying,dead error:"a status:b \" c" tag:x"#;
        assert_eq!(with_status(filter, None), r#"handler:a error:"a status:b \" c" tag:x"#);
        assert_eq!(with_status("", Some(Status::Running)), "status:running");
        assert_eq!(with_status("status:pending", Some(Status::DeadLettered)), "status:dead_lettered");
        assert_eq!(with_status("-status:succeeded tag:x", Some(Status::Succeeded)), "tag:x status:succeeded");
    }

    #[test]
    fn columns_come_in_their_own_order_and_unknown_ones_are_left_out() {
        assert_eq!(Column::parse("ran,status,nonsense", false), vec![Column::Status, Column::Ran]);
        assert_eq!(Column::parse("", false), Column::usual(false));
        assert!(Column::parse("", true).contains(&Column::Tenant), "of every tenant: say whose it is");
        let keys: Vec<&str> = Column::ALL.iter().map(|column| column.key()).collect();
        assert_eq!(Column::parse(&keys.join(","), false), Column::ALL.to_vec());
    }
}
