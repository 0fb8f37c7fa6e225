//! The audit log: who did what, newest first. Pure.

use maud::{Markup, html};
use windlass_core::JobId;
use windlass_core::store::AuditEntry;

use super::super::components;
use super::super::format;
use super::super::shell::{Live, Page, Place, Shell};

/// The entries that pass.
pub(crate) struct Audit {
    /// Only this action.
    pub(crate) action: String,
    /// Only this target.
    pub(crate) target: String,
    /// Newest first.
    pub(crate) entries: Vec<AuditEntry>,
    /// Where the next page begins, if there may be one.
    pub(crate) next: Option<String>,
    /// Whether this is not the first page.
    pub(crate) is_later: bool,
}

/// Actions to suggest.
const ACTIONS: [&str; 22] = [
    "JOB_SUBMITTED",
    "JOB_CANCELED",
    "JOB_REPLAYED",
    "JOB_PURGED",
    "JOB_EDITED",
    "JOB_EXHAUSTED_RETRIES",
    "JOB_FAILED",
    "JOB_SUCCEEDED",
    "INPUT_READ",
    "PAUSED",
    "RESUMED",
    "QUOTA_SET",
    "QUOTA_CLEARED",
    "KEY_CREATED",
    "KEY_REVOKED",
    "WEBHOOK_ADDED",
    "WEBHOOK_PAUSED",
    "WEBHOOK_RESUMED",
    "WEBHOOK_SWITCHED_OFF",
    "WEBHOOK_REMOVED",
    "COST_RECORDED",
    "KEYS_ROTATED",
];

/// The page.
pub(crate) fn page(shell: &Shell, audit: &Audit) -> Markup {
    let is_filtered = !audit.action.is_empty() || !audit.target.is_empty();
    let all = shell.viewer.tenant.is_none();
    let content = html! {
        div.filter-row {
            form.filter method="get" action=(shell.urls.path("/audit")) role="search" {
                (components::icon("search"))
                input #filter type="search" name="action" value=(audit.action) list="audit-actions" placeholder="action, such as JOB_CANCELED" aria-label="Action" autocomplete="off" spellcheck="false";
                input type="search" name="target" value=(audit.target) placeholder="target, such as a job id" aria-label="Target" autocomplete="off" spellcheck="false";
                datalist #audit-actions { @for action in ACTIONS { option value=(action) {} } }
                button type="submit" { "Filter" }
                @if is_filtered { a.button.quiet href=(shell.urls.path("/audit")) title="Show all" { (components::icon("close")) } }
            }
        }
        section.panel #audit data-live data-hold {
            @if audit.entries.is_empty() {
                @if is_filtered { (components::empty("search", "No entry matches this filter", html! { a href=(shell.urls.path("/audit")) { "Show all entries" } })) }
                @else { (components::empty("audit", "No entries yet", html! { "Cancels, replays, pauses and all other actions of people are recorded here, with the user." })) }
            }
            @else {
                div.scroll {
                    table.rows data-rows {
                        thead { tr { th scope="col" { "When" } th scope="col" { "Who" } th scope="col" { "What" } th scope="col" { "On" } @if all { th.wide scope="col" { "Tenant" } } th.wide scope="col" { "Detail" } } }
                        tbody {
                            @for entry in &audit.entries {
                                tr data-row=(entry.sequence) {
                                    td { (components::time(entry.at, shell.now)) }
                                    td { (entry.actor) }
                                    td { a.action href=(shell.urls.query("/audit", &[("action", &entry.action)])) { (entry.action) } }
                                    td.mono { (target(shell, &entry.target)) }
                                    @if all { td.wide { @if let Some(tenant) = entry.tenant { (components::tenant_link(shell, tenant)) } @else { span.faint { "all" } } } }
                                    td.wide { @if let Some(detail) = &entry.detail { (format::first_line(detail, 160)) } }
                                }
                            }
                        }
                    }
                }
            }
            (pager(shell, audit))
        }
    };
    let live = Live { every_seconds: (!audit.is_later).then_some(10), events: None };
    shell.page(Page { place: Place::Audit, title: "Audit", aside: html! {}, content, live })
}

/// Links to the next page and back to the first.
fn pager(shell: &Shell, audit: &Audit) -> Markup {
    let filter = [("action", audit.action.as_str()), ("target", audit.target.as_str())];
    html! {
        @if audit.is_later || audit.next.is_some() {
            nav.pager aria-label="Pages" {
                @if audit.is_later { a.button href=(shell.urls.query("/audit", &filter)) rel="first" { "Newest" } }
                @if let Some(next) = &audit.next {
                    a.button rel="next" href=(shell.urls.query("/audit", &[filter[0], filter[1], ("before", next)])) { "Older" }
                }
            }
        }
    }
}

/// What was acted on: a job as a link, anything else as text.
fn target(shell: &Shell, target: &str) -> Markup {
    html! {
        @match target.parse::<JobId>() {
            Ok(id) => (components::job_link(shell, id)),
            Err(_) => (format::first_line(target, 80)),
        }
    }
}
