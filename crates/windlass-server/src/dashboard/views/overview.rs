//! The first page: how many jobs are where, what is broken now, how the last minutes to days went, and how the database
//! is. Pure.

use maud::{Markup, html};
use windlass_core::store::Counts;
use windlass_core::{Status, Timestamp};

use super::super::chart::Chart;
use super::super::components::{self, Act};
use super::super::shell::{Live, Page, Place, Shell};
use super::super::{format, urls};

/// What the overview shows.
pub(crate) struct Overview {
    /// How many jobs are in each status.
    pub(crate) counts: Counts,
    /// The time that the charts look back: one of [`SPANS`].
    pub(crate) span: String,
    /// The charts.
    pub(crate) charts: Vec<Chart>,
    /// What needs somebody, worst first.
    pub(crate) troubles: Vec<Trouble>,
    /// How the database and the nodes are.
    pub(crate) vitals: Vec<Vital>,
    /// The busiest handlers of that time.
    pub(crate) busiest: Vec<Busy>,
}

/// The times that charts look back.
pub(crate) const SPANS: [&str; 4] = ["5m", "1h", "24h", "7d"];

/// Something that needs somebody.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    /// How bad it is.
    pub(crate) level: Level,
    /// What it is, in a few words.
    pub(crate) title: String,
    /// More about it.
    pub(crate) detail: String,
    /// When it was last seen or began.
    pub(crate) at: Option<Timestamp>,
    /// Where to see to it: a path of the dashboard with its query; empty where only the database can tell.
    pub(crate) link: String,
}

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Nothing to do.
    Good,
    /// Worth a look.
    Warn,
    /// Broken.
    Bad,
}

impl Level {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Level::Good => "good",
            Level::Warn => "warn",
            Level::Bad => "bad",
        }
    }
}

/// One value of the health strip.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Vital {
    /// What was measured.
    pub(crate) name: String,
    /// The value.
    pub(crate) value: String,
    /// Whether it is well.
    pub(crate) level: Level,
    /// What it means, and what to do where it is not well.
    pub(crate) note: String,
}

/// A handler and what it did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Busy {
    /// Its name.
    pub(crate) handler: String,
    /// Jobs that ended well.
    pub(crate) succeeded: u64,
    /// Attempts that failed.
    pub(crate) failed: u64,
    /// The 95th percentile of run times.
    pub(crate) run_p95: Option<std::time::Duration>,
    /// The 95th percentile of waits.
    pub(crate) wait_p95: Option<std::time::Duration>,
}

/// The tiles, in the order of a life.
const TILES: [Status; 8] = [
    Status::Pending,
    Status::Blocked,
    Status::Running,
    Status::Scheduled,
    Status::Retrying,
    Status::Succeeded,
    Status::Canceled,
    Status::DeadLettered,
];

/// The page.
pub(crate) fn page(shell: &Shell, overview: &Overview) -> Markup {
    let is_empty = Status::ALL.iter().all(|status| overview.counts.get(*status) == 0);
    let content = html! {
        @if is_empty { (no_jobs(shell)) }
        section.tiles #tiles data-live aria-label="Jobs by status" {
            @for status in TILES { (tile(shell, status, overview.counts.get(status))) }
        }
        div.columns {
            section.panel.grow #broken data-live {
                header.panel-head { h2 { "Problems now" } }
                (broken(shell, &overview.troubles))
            }
            section.panel #health data-live {
                header.panel-head { h2 { "Health" } }
                (vitals(&overview.vitals))
            }
        }
        div.section-head {
            h2 { "Activity" }
            p.hint { (components::zone()) " · A click on a chart shows the jobs of that time." }
            nav.spans aria-label="Time" {
                @for span in SPANS {
                    a href=(shell.urls.query("/", &[("span", span)])) aria-current=[(span == overview.span).then_some("true")] { (span) }
                }
            }
        }
        section.charts #charts data-live { @for chart in &overview.charts { div.panel { (chart.render(&shell.urls)) } } }
        @if !overview.busiest.is_empty() { (busiest(shell, overview)) }
    };
    let live = Live { every_seconds: Some(5), events: Some(shell.urls.path("/api/v1/events")) };
    shell.page(Page { place: Place::Overview, title: "Overview", aside: actions(shell), content, live })
}

fn actions(shell: &Shell) -> Markup {
    html! {
        @if shell.viewer.may.operate && shell.viewer.all_tenants && shell.paused.is_none() {
            details.menu {
                summary.button { (components::icon("pause")) "Pause everything" }
                div.menu-box {
                    (Act::new(shell, "/pause", "Pause everything").danger().hidden("target", "all").back()
                        .fields(html! { label { "Why" input name="reason" maxlength="200" placeholder="deploy of the database" required; } })
                        .confirm("Start no more jobs, of any handler or tenant, until someone resumes them? Running jobs continue."))
                }
            }
        }
    }
}

fn tile(shell: &Shell, status: Status, n: u64) -> Markup {
    let link = shell.urls.jobs(&urls::term("status", status.as_str()));
    html! {
        a class={ "tile s-" (status.as_str()) @if n == 0 { " none" } } href=(link) {
            span.tile-name { span.dot {} (format::status(status)) }
            span.tile-n { (format::count(n)) }
        }
    }
}

fn broken(shell: &Shell, troubles: &[Trouble]) -> Markup {
    html! {
        @if troubles.is_empty() { p.all-well { (components::icon("check")) "None. Jobs run, nodes are up, the database is healthy." } }
        @else {
            ul.troubles {
                @for trouble in troubles {
                    li class=(trouble.level.class()) {
                        @if trouble.link.is_empty() { div.trouble { (words_of(trouble)) } }
                        @else { a.trouble href=(shell.urls.path(&trouble.link)) { (words_of(trouble)) } }
                        @if let Some(at) = trouble.at { (components::time(at, shell.now)) }
                    }
                }
            }
        }
    }
}

fn words_of(trouble: &Trouble) -> Markup {
    html! { span.trouble-title { (trouble.title) } span.trouble-detail { (trouble.detail) } }
}

fn vitals(vitals: &[Vital]) -> Markup {
    html! {
        dl.vitals {
            @for vital in vitals {
                div class=(vital.level.class()) title=(vital.note) {
                    dt { (vital.name) }
                    dd { (vital.value) }
                    @if vital.level != Level::Good { dd.vital-note { (vital.note) } }
                }
            }
        }
    }
}

fn busiest(shell: &Shell, overview: &Overview) -> Markup {
    html! {
        section.panel #busiest data-live data-hold {
            header.panel-head { h2 { "Handlers, last " (overview.span) } div.panel-aside { a href=(shell.urls.path("/handlers")) { "All handlers" } } }
            div.scroll {
                table.rows data-rows {
                    thead { tr { th scope="col" { "Handler" } th.num scope="col" { "Succeeded" } th.num scope="col" { "Failed attempts" } th.num scope="col" { "Wait p95" } th.num scope="col" { "Run p95" } } }
                    tbody {
                        @for busy in &overview.busiest {
                            tr data-href=(shell.urls.jobs(&urls::term("handler", &busy.handler))) {
                                td { (components::handler_link(shell, &busy.handler)) }
                                td.num { (format::count(busy.succeeded)) }
                                td.num { @if busy.failed > 0 { span.bad-text { (format::count(busy.failed)) } } @else { span.faint { "0" } } }
                                td.num { (components::duration_or_dash(busy.wait_p95)) }
                                td.num { (components::duration_or_dash(busy.run_p95)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What to do where there is no job: none was submitted yet, or all are gone. Nothing here can tell the two apart.
fn no_jobs(shell: &Shell) -> Markup {
    html! {
        section.panel.welcome {
            (components::icon("windlass"))
            div {
                h2 { "No jobs" }
                p { "There are no jobs now. Submit one here, from your program, from the command line, or with plain SQL; this page shows it live." }
                div.buttons {
                    @if shell.viewer.may.submit { a.button.primary href=(shell.urls.path("/submit")) { (components::icon("plus")) "Submit a job" } }
                    a.button href=(shell.urls.path("/docs")) { "API" }
                }
            }
        }
    }
}
