//! The pages of schedules: all of a tenant, one with its next and last runs, and the form that creates or changes one. Pure.

use std::time::Duration;

use maud::{Markup, html};
use windlass_core::{JobRecord, Overlap, Priority, ScheduleState, Timestamp};

use super::super::components::{self, Act};
use super::super::shell::{Live, Page, Place, Shell};
use super::super::strip::{self, Day};
use super::super::urls::{encode, term};
use super::super::{format, urls};
use super::table::{self, Column};

/// A schedule and where it stands, without the input of its jobs.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) cron: String,
    pub(crate) zone: String,
    pub(crate) handler: String,
    pub(crate) missed: String,
    pub(crate) overlap: &'static str,
    pub(crate) jitter: Duration,
    pub(crate) queue: Option<String>,
    pub(crate) priority: Option<Priority>,
    pub(crate) tags: Vec<String>,
    pub(crate) timeout: Option<Duration>,
    /// The service whose code defines it.
    pub(crate) defined_by: Option<String>,
    pub(crate) version: u64,
    pub(crate) paused: bool,
    pub(crate) next_at: Option<Timestamp>,
    pub(crate) last_at: Option<Timestamp>,
    pub(crate) created_at: Timestamp,
    pub(crate) changed_at: Timestamp,
}

impl From<ScheduleState> for Shown {
    fn from(state: ScheduleState) -> Self {
        let schedule = state.schedule;
        Shown {
            missed: schedule.missed.to_string(),
            overlap: schedule.overlap.as_str(),
            jitter: schedule.jitter,
            priority: schedule.priority,
            timeout: schedule.spec.timeout,
            defined_by: schedule.defined_by().map(str::to_owned),
            name: schedule.name,
            cron: schedule.cron,
            zone: schedule.zone,
            handler: schedule.handler,
            queue: schedule.queue,
            tags: schedule.tags,
            version: state.version,
            paused: state.paused,
            next_at: state.next_at,
            last_at: state.last_at,
            created_at: state.created_at,
            changed_at: state.changed_at,
        }
    }
}

/// The schedules of a tenant.
pub(crate) struct Schedules {
    /// By name, each with its next 24 hours.
    pub(crate) schedules: Vec<(Shown, Option<Day>)>,
    /// Where the next page begins.
    pub(crate) next: Option<String>,
    /// Whether this is not the first page.
    pub(crate) is_later: bool,
    /// The form for a new one.
    pub(crate) form: Form,
}

/// Where a schedule's page is, or one of its actions.
pub(crate) fn path(name: &str, what: &str) -> String {
    format!("/schedules/{}{what}", encode(name))
}

/// The page.
pub(crate) fn list(shell: &Shell, page: &Schedules) -> Markup {
    let content = html! {
        @if shell.viewer.all_tenants && shell.viewer.tenant.is_none() {
            p.banner.note { (components::icon("info")) span { "These are the schedules of the root tenant. Choose a tenant to see its own." } }
        }
        section.panel #schedules data-live data-hold {
            @if page.schedules.is_empty() { (components::empty("schedules", "No schedules", html! { "A schedule starts a job again and again, at the times of a cron expression in a time zone." })) }
            @else {
                div.scroll {
                    table.rows data-rows {
                        thead { tr {
                            th scope="col" { "Schedule" } th scope="col" { "When" } th.wide.strip-column scope="col" { "Next 24 hours" }
                            th scope="col" { "Next run" } th.wide scope="col" { "Last run" } th.wide scope="col" { span.sr { "Actions" } }
                        } }
                        tbody { @for (schedule, day) in &page.schedules { (row(shell, schedule, day.as_ref())) } }
                    }
                }
                (pager(shell, page))
            }
        }
        @if shell.viewer.may.operate {
            section.panel.form-panel {
                header.panel-head { h2 { "Add a schedule" } }
                (fields(shell, &page.form))
            }
        }
    };
    let live = Live { every_seconds: Some(10), events: None };
    shell.page(Page { place: Place::Schedules, title: "Schedules", aside: html! {}, content, live })
}

fn pager(shell: &Shell, page: &Schedules) -> Markup {
    html! {
        @if page.is_later || page.next.is_some() {
            div.pager {
                @if page.is_later { a.button href=(shell.urls.path("/schedules")) { "First" } }
                @if let Some(next) = &page.next { a.button href=(shell.urls.query("/schedules", &[("after", next)])) rel="next" { "Next" } }
            }
        }
    }
}

fn row(shell: &Shell, schedule: &Shown, day: Option<&Day>) -> Markup {
    let own = shell.urls.path(&path(&schedule.name, ""));
    html! {
        tr data-href=(own) {
            td { a href=(own) { b { (schedule.name) } } (chips(schedule)) div.row-note.mono { (schedule.handler) } }
            td { span.mono { (schedule.cron) } div.row-note { (schedule.zone) } }
            td.wide.strip-column { @if let Some(day) = day.filter(|_| !schedule.paused) { (strip::bar(day)) } @else { span.faint { "–" } } }
            td { (next_run(schedule, shell.now)) }
            td.wide { (components::time_or_dash(schedule.last_at, shell.now)) }
            td.row-act.wide { @if shell.viewer.may.operate { div.buttons { (actions(shell, schedule)) } } }
        }
    }
}

/// What is special about a schedule.
fn chips(schedule: &Shown) -> Markup {
    html! {
        @if schedule.paused { span.chip.warn { "paused" } }
        @else if schedule.next_at.is_none() { span.chip.bad { "never fires again" } }
        @if let Some(service) = &schedule.defined_by { span.chip title={ "Defined by the code of " (service) } { "in code" } }
    }
}

fn next_run(schedule: &Shown, now: Timestamp) -> Markup {
    components::time_or_dash(schedule.next_at.filter(|_| !schedule.paused), now)
}

fn actions(shell: &Shell, schedule: &Shown) -> Markup {
    let name = &schedule.name;
    html! {
        @if schedule.paused { (Act::new(shell, path(name, "/resume"), "Resume").icon("play").back().confirm(format!("Let {name} fire again, from its next time on?"))) }
        @else { (Act::new(shell, path(name, "/pause"), "Pause").icon("pause").back().confirm(format!("Fire nothing of {name} until it is resumed?"))) }
        (Act::new(shell, path(name, "/trigger"), "Run now").back().confirm(format!("Start a job of {name} now?")))
    }
}

/// One schedule.
pub(crate) struct Schedule {
    pub(crate) schedule: Shown,
    /// The week, in its zone.
    pub(crate) days: Vec<Day>,
    /// Its next times.
    pub(crate) next: Vec<Timestamp>,
    /// The jobs it started last, newest first.
    pub(crate) runs: Vec<JobRecord>,
}

/// The page.
pub(crate) fn one(shell: &Shell, page: &Schedule) -> Markup {
    let schedule = &page.schedule;
    let content = html! {
        div.job-head {
            div.job-title #schedule-state data-live { span.mono { (schedule.cron) } span.faint { (schedule.zone) } (chips(schedule)) }
            @if shell.viewer.may.operate {
                div.actions {
                    (actions(shell, schedule))
                    a.button href=(shell.urls.path(&path(&schedule.name, "/edit"))) { (components::icon("edit")) "Change" }
                    (Act::new(shell, path(&schedule.name, "/remove"), "Remove").icon("trash").danger().confirm(format!("Remove {}? Jobs that it has started stay.", schedule.name)))
                }
            }
        }
        div.job-columns {
            div.job-main {
                section.panel #schedule-week data-live {
                    header.panel-head { h2 { "This week" } span.hint { "in " (schedule.zone) } }
                    @if schedule.paused { p.strip-note { "Paused: nothing fires until it is resumed." } }
                    (strip::days(&page.days))
                }
                (next_runs(shell, page))
                (runs(shell, page))
            }
            div.job-side { (facts(shell, schedule)) }
        }
    };
    let live = Live { every_seconds: Some(10), events: None };
    shell.page(Page { place: Place::Schedules, title: &schedule.name, aside: html! {}, content, live })
}

fn runs(shell: &Shell, page: &Schedule) -> Markup {
    let columns = [Column::Status, Column::Id, Column::Handler, Column::Created, Column::Ran, Column::Note];
    let all = shell.urls.jobs(&term("schedule", &page.schedule.name));
    html! {
        section.panel #schedule-runs data-live data-hold {
            header.panel-head { h2 { "Last runs" } @if !page.runs.is_empty() { a href=(all) { "All of them" } } }
            @if page.runs.is_empty() { (components::empty("jobs", "No runs yet", html! { "Jobs that this schedule starts are shown here." })) }
            @else { (table::table(shell, &page.runs, &columns, false)) }
        }
    }
}

fn next_runs(shell: &Shell, page: &Schedule) -> Markup {
    let zone = &page.schedule.zone;
    html! {
        section.panel #schedule-next data-live data-hold {
            header.panel-head { h2 { "Next runs" } span.hint { (components::zone()) } }
            @if page.next.is_empty() { p.strip-note { "It never fires again." } }
            @else {
                div.scroll {
                    table.rows data-rows {
                        thead { tr { th scope="col" { (zone) } th scope="col" { span data-zone-name { "UTC" } } th.wide scope="col" { "From now" } } }
                        tbody { @for at in &page.next { tr data-row=(at) { td.mono { (strip::shown_in(*at, zone)) } td { (components::clock(*at)) } td.wide { (components::time(*at, shell.now)) } } } }
                    }
                }
            }
        }
    }
}

fn facts(shell: &Shell, schedule: &Shown) -> Markup {
    html! {
        section.panel {
            header.panel-head { h2 { "Facts" } }
            dl.facts {
                dt { "Handler" } dd { (components::handler_link(shell, &schedule.handler)) }
                dt { "Missed times" } dd { (schedule.missed) }
                dt { "Overlap" } dd { (schedule.overlap) }
                @if !schedule.jitter.is_zero() { dt { "Jitter" } dd { (format::duration(schedule.jitter)) } }
                @if let Some(queue) = &schedule.queue { dt { "Queue" } dd.mono { (queue) } }
                @if let Some(priority) = schedule.priority { dt { "Priority" } dd { (format::priority(priority)) } }
                @if !schedule.tags.is_empty() { dt { "Tags" } dd { @for tag in &schedule.tags { a.tag href=(shell.urls.jobs(&urls::term("tag", tag))) { (tag) } } } }
                @if let Some(timeout) = schedule.timeout { dt { "Timeout" } dd { (format::duration(timeout)) } }
                @if let Some(service) = &schedule.defined_by { dt { "Defined by" } dd { "the code of " (service) "; its next start undoes changes made here" } }
                dt { "Last time" } dd { (components::time_or_dash(schedule.last_at, shell.now)) }
                dt { "Created" } dd { (components::time(schedule.created_at, shell.now)) }
                dt { "Changed" } dd { (components::time(schedule.changed_at, shell.now)) " (version " (schedule.version) ")" }
            }
        }
    }
}

/// The form as it was filled in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Form {
    pub(crate) name: String,
    pub(crate) cron: String,
    pub(crate) zone: String,
    pub(crate) handler: String,
    /// None where it stays as it is, because it must not be shown.
    pub(crate) input: Option<String>,
    pub(crate) missed: String,
    /// How many missed runs are made up for, with `all`.
    pub(crate) missed_all: String,
    pub(crate) overlap: String,
    pub(crate) jitter: String,
    pub(crate) queue: String,
    pub(crate) priority: String,
    pub(crate) tags: String,
    pub(crate) timeout: String,
    /// The version that is changed; 0 for a new one.
    pub(crate) version: u64,
    /// What was wrong with the last try.
    pub(crate) problem: Option<String>,
    /// Handlers that live nodes have.
    pub(crate) handlers: Vec<String>,
}

/// The form as a page of its own.
pub(crate) fn form(shell: &Shell, form: &Form) -> Markup {
    let title = if form.version == 0 { "Add a schedule".to_owned() } else { format!("Change {}", form.name) };
    let content = html! {
        @if let Some(problem) = &form.problem { (components::problem(problem)) }
        section.panel.form-panel { (fields(shell, form)) }
    };
    shell.page(Page { place: Place::Schedules, title: &title, aside: html! {}, content, live: Live::default() })
}

fn fields(shell: &Shell, form: &Form) -> Markup {
    let is_new = form.version == 0;
    let text = |label: &str, name: &str, value: &str, placeholder: &str| {
        html! { label { (label) input name=(name) value=(value) placeholder=(placeholder) maxlength="256" autocomplete="off" spellcheck="false"; } }
    };
    let is_open = [&form.jitter, &form.queue, &form.tags, &form.timeout].iter().any(|value| !value.is_empty());
    html! {
        form.form method="post" action=(shell.urls.path("/schedules")) {
            input type="hidden" name="version" value=(form.version);
            label for="schedule-name" { "Name" }
            input #schedule-name name="name" value=(form.name) required readonly[!is_new] maxlength="55" placeholder="nightly" autocomplete="off" spellcheck="false";
            div.field-row {
                label { "Cron expression" input.mono name="cron" value=(form.cron) required maxlength="256" placeholder="0 3 * * *" autocomplete="off" spellcheck="false"; }
                label { "Time zone" input name="zone" value=(form.zone) maxlength="64" placeholder="UTC" autocomplete="off" spellcheck="false"; }
            }
            p.hint { "Minute, hour, day of month, month, day of week; six fields begin with seconds. Or " code { "@hourly" } ", " code { "@daily" } ", " code { "@weekly" } ", " code { "@monthly" } ", " code { "@yearly" } "." }
            label for="schedule-handler" { "Handler" }
            input #schedule-handler.mono name="handler" value=(form.handler) required list="schedule-handlers" maxlength="200" placeholder="report.write" autocomplete="off" spellcheck="false";
            datalist #schedule-handlers { @for handler in &form.handlers { option value=(handler) {} } }
            @if let Some(input) = &form.input {
                label for="schedule-input" { "Input" }
                textarea #schedule-input.mono name="input" rows="5" spellcheck="false" placeholder="null" data-json { (input) }
            } @else { p.hint { "You may not see the input; it stays as it is." } }
            div.field-row {
                label { "While an earlier job runs" select name="overlap" { @for overlap in Overlap::ALL { option value=(overlap.as_str()) selected[overlap.as_str() == form.overlap] { (words_for(overlap)) } } } }
                label { "Missed times" select name="missed" { @for (value, words) in [("skip", "skip them"), ("once", "run the latest once"), ("all", "run the latest ones")] { option value=(value) selected[value == form.missed] { (words) } } } }
                label { "At most, of the latest" input type="number" name="missed_all" value=(form.missed_all) min="1" max="100" placeholder="10"; }
            }
            details open[is_open] {
                summary { "More: jitter, queue, priority, tags, timeout" }
                div.field-row {
                    (text("Jitter", "jitter", &form.jitter, "30s"))
                    (text("Queue", "queue", &form.queue, "the handler's own"))
                    (text("Priority", "priority", &form.priority, "the handler's own"))
                    (text("Tags", "tags", &form.tags, "sales, nightly"))
                    (text("Timeout", "timeout", &form.timeout, "5m"))
                }
            }
            div.buttons { button.primary type="submit" { @if is_new { "Add the schedule" } @else { "Save" } } }
        }
    }
}

fn words_for(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Skip => "skip this time",
        Overlap::Queue => "wait for it",
        _ => "start another beside it",
    }
}
