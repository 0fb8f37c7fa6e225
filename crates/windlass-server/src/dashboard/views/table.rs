//! The table of jobs that lists, previews and dead letters share, and the columns that it can show. Pure.

use maud::{Markup, html};
use windlass_core::{JobRecord, Status, Timestamp};

use super::super::components;
use super::super::shell::Shell;
use super::super::{format, urls};

/// What a row can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Status,
    Id,
    Handler,
    Tenant,
    Queue,
    Priority,
    Attempt,
    Created,
    Waited,
    Ran,
    Ended,
    Node,
    Tags,
    Note,
}

impl Column {
    /// All, in the order in which they stand.
    pub(crate) const ALL: [Column; 14] = [
        Column::Status,
        Column::Id,
        Column::Handler,
        Column::Tenant,
        Column::Queue,
        Column::Priority,
        Column::Attempt,
        Column::Created,
        Column::Waited,
        Column::Ran,
        Column::Ended,
        Column::Node,
        Column::Tags,
        Column::Note,
    ];

    /// Those of a list that nobody has changed.
    pub(crate) fn usual(all_tenants: bool) -> Vec<Column> {
        let usual = |column: &Column| match column {
            Column::Tenant => all_tenants,
            Column::Queue | Column::Priority | Column::Ended | Column::Node | Column::Tags => false,
            _ => true,
        };
        Column::ALL.into_iter().filter(usual).collect()
    }

    /// From names with commas between them, in the usual order; unknown ones are left out, and none at all means the
    /// usual ones.
    pub(crate) fn parse(names: &str, all_tenants: bool) -> Vec<Column> {
        let wanted: Vec<&str> = names.split(',').map(str::trim).collect();
        let chosen: Vec<Column> = Column::ALL.into_iter().filter(|column| wanted.contains(&column.key())).collect();
        if chosen.is_empty() { Column::usual(all_tenants) } else { chosen }
    }

    /// Its name in addresses.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Column::Status => "status",
            Column::Id => "id",
            Column::Handler => "handler",
            Column::Tenant => "tenant",
            Column::Queue => "queue",
            Column::Priority => "priority",
            Column::Attempt => "attempt",
            Column::Created => "created",
            Column::Waited => "waited",
            Column::Ran => "ran",
            Column::Ended => "ended",
            Column::Node => "node",
            Column::Tags => "tags",
            Column::Note => "note",
        }
    }

    /// Its heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Column::Status => "Status",
            Column::Id => "Job",
            Column::Handler => "Handler",
            Column::Tenant => "Tenant",
            Column::Queue => "Queue",
            Column::Priority => "Priority",
            Column::Attempt => "Attempt",
            Column::Created => "Submitted",
            Column::Waited => "Waited",
            Column::Ran => "Ran",
            Column::Ended => "Ended",
            Column::Node => "Node",
            Column::Tags => "Tags",
            Column::Note => "Details",
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Column::Attempt | Column::Waited | Column::Ran)
    }

    fn cell(self, shell: &Shell, job: &JobRecord) -> Markup {
        let now = shell.now;
        match self {
            Column::Status => components::status(job.status),
            Column::Id => components::job_link(shell, job.id),
            Column::Handler => html! { span.mono.handler { (job.handler) } },
            Column::Tenant => components::tenant_link(shell, job.tenant),
            Column::Queue => html! { span.mono { (job.queue) } },
            Column::Priority => html! { (format::priority(job.priority)) },
            Column::Attempt => html! { (job.attempt) },
            Column::Created => components::time(job.created_at, now),
            Column::Waited => components::duration_or_dash(job.waited(now)),
            Column::Ran => components::duration_or_dash(job.ran(now)),
            Column::Ended => components::time_or_dash(job.finished_at, now),
            Column::Node => html! { @if let Some(node) = job.node { (node.0) } @else { span.faint { "–" } } },
            Column::Tags => {
                html! { @for tag in &job.tags { a.tag href=(shell.urls.jobs(&urls::term("tag", tag))) { (tag) } } }
            }
            Column::Note => note(job, now),
        }
    }
}

/// The table. With `selectable`, each row can be chosen for the form `bulk`.
pub(crate) fn table(shell: &Shell, jobs: &[JobRecord], columns: &[Column], selectable: bool) -> Markup {
    html! {
        div.scroll {
            table.rows.jobs data-rows {
                thead {
                    tr {
                        @if selectable { th.pick { input type="checkbox" data-pick-all hidden aria-label="Select all on this page"; } }
                        @for column in columns { th class={ "c-" (column.key()) @if column.is_number() { " num" } } scope="col" { (column.title()) } }
                    }
                }
                tbody {
                    @for job in jobs {
                        tr data-href=(shell.urls.job(job.id)) {
                            @if selectable {
                                td.pick { input type="checkbox" name="id" value=(job.id) form="bulk" aria-label={ "Select job " (job.id) }; }
                            }
                            @for column in columns {
                                td class={ "c-" (column.key()) @if column.is_number() { " num" } } { (column.cell(shell, job)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// One line on what a job does, waits for or failed with.
fn note(job: &JobRecord, now: Timestamp) -> Markup {
    let error = job.error.as_ref().filter(|_| job.status != Status::Succeeded);
    html! {
        @if job.cancel_requested && !job.status.is_terminal() { span.chip.warn { "cancel requested" } " " }
        @match (job.status, &job.progress, error) {
            (Status::Running, Some(progress), _) => {
                span.progress-line {
                    progress max="100" value=(progress.percent.clamp(0.0, 100.0)) {}
                    span.num { (progress.percent.round()) "%" }
                    span.faint { (format::first_line(&progress.message, 60)) }
                }
            }
            (Status::Scheduled | Status::Suspended, _, _) => { "starts " (components::time_or_dash(job.run_at, now)) }
            (Status::Retrying, _, Some(error)) => {
                span.code-word { (error.code) } " " (format::first_line(&error.message, 90))
                span.faint { ", again " (components::time_or_dash(job.run_at, now)) }
            }
            (_, _, Some(error)) => { span.code-word { (error.code) } " " (format::first_line(&error.message, 110)) }
            _ => { @if let Some(reason) = &job.reason { span.faint { (format::first_line(reason, 110)) } } }
        }
        @if job.replayed.is_some() { " " span.chip { "replayed" } }
    }
}
