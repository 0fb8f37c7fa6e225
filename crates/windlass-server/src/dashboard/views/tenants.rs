//! The tenants: what each uses of what it may, pausing one, and its quota. Pure.

use maud::{Markup, html};
use windlass_core::store::Pause;
use windlass_core::{Quota, TenantUse};

use super::super::components::{self, Act};
use super::super::format;
use super::super::shell::{Live, Page, Place, Shell};
use super::handlers;

/// Every tenant that has unfinished jobs or a policy of its own; for who may see one tenant only, that one.
pub(crate) struct Tenants {
    /// What each uses.
    pub(crate) uses: Vec<TenantUse>,
    /// The pauses of tenants.
    pub(crate) pauses: Vec<Pause>,
    /// The policy of tenants that have none of their own.
    pub(crate) default: Option<Quota>,
    /// Whether tenants were left out because there are too many for a page.
    pub(crate) more: bool,
}

/// The page.
pub(crate) fn page(shell: &Shell, page: &Tenants) -> Markup {
    let (may, all) = (shell.viewer.may, shell.viewer.all_tenants);
    let content = html! {
        section.panel #tenants data-live data-hold {
            @if page.uses.is_empty() { (components::empty("tenants", "No tenant has jobs now", html! { "Tenants appear here while they have unfinished jobs or their own quota." })) }
            @else {
                div.scroll {
                    table.rows data-rows {
                        thead { tr {
                            th scope="col" { "Tenant" } th scope="col" { "Unfinished" } th scope="col" { "Running" } th.wide scope="col" { "Payloads" }
                            th.num.wide scope="col" { "Submits/s" } th.num.wide scope="col" { "Weight" } th.wide scope="col" { "Policy" } th scope="col" { span.sr { "Actions" } }
                        } }
                        tbody { @for used in &page.uses { (row(shell, page, used)) } }
                    }
                }
                @if page.more { p.panel-empty { "More tenants have jobs; the busiest are shown." } }
            }
        }
        @if all && may.admin {
            section.panel.form-panel {
                header.panel-head { h2 { "Set a quota" } }
                (Act::new(shell, "/tenants/quota", "Set the quota").primary().back().fields(quota_fields(page.default.as_ref())).confirm("Set this quota? Every node applies it within a second; jobs that are already stored stay."))
            }
        }
    };
    let live = Live { every_seconds: Some(10), events: None };
    shell.page(Page { place: Place::Tenants, title: "Tenants", aside: html! {}, content, live })
}

fn row(shell: &Shell, page: &Tenants, used: &TenantUse) -> Markup {
    let quota = used.quota.clone().unwrap_or_default();
    let tenant = used.tenant.to_string();
    let target = format!("tenant:{tenant}");
    let pause = page.pauses.iter().find(|pause| pause.target.name() == target);
    html! {
        tr data-href=(shell.urls.jobs(&super::super::urls::term("tenant", &tenant))) {
            td {
                (components::tenant_link(shell, used.tenant)) (components::copy(&tenant, "the tenant"))
                @if let Some(pause) = pause { div.row-note.warn-text { (components::icon("pause")) "paused by " (pause.by) " " (components::time(pause.at, shell.now)) @if !pause.reason.is_empty() { ": " (pause.reason) } } }
            }
            td { (components::meter(used.queued, quota.queued, format::count)) }
            td { (components::meter(used.running, quota.running, format::count)) }
            td.wide { @match used.bytes { Some(n) => (components::meter(n, quota.bytes, format::bytes)), None => span.faint { "–" } } }
            td.num.wide { @match quota.submit_rate { Some(rate) => { (format::short(rate.per_second)) span.faint { " burst " (format::count(rate.burst)) } }, None => span.faint { "–" } } }
            td.num.wide { (quota.weight.unwrap_or(1)) }
            td.wide { @if used.own { "own" } @else if used.quota.is_some() { span.faint { "default" } } @else { span.faint { "none" } } }
            td.row-act {
                div.buttons {
                    @if used.own && shell.viewer.may.admin && shell.viewer.all_tenants {
                        (Act::new(shell, "/tenants/quota/clear", "Clear quota").hidden("tenant", &tenant).back().confirm("Remove its own quota? Then the default quota applies."))
                    }
                    @if shell.viewer.may.operate { (handlers::pause_or_resume(shell, &target, "this tenant", pause.is_some())) }
                }
            }
        }
    }
}

fn quota_fields(default: Option<&Quota>) -> Markup {
    let field = |label: &str, name: &str, placeholder: &str| html! { label { (label) input.short name=(name) inputmode="decimal" placeholder=(placeholder) maxlength="20" autocomplete="off"; } };
    html! {
        label { "Tenant" input.mono name="tenant" placeholder="UUID, or default" required maxlength="40" autocomplete="off"; }
        div.field-row {
            (field("Weight", "weight", "1"))
            (field("Unfinished jobs", "queued", "no limit"))
            (field("Running jobs", "running", "no limit"))
            (field("Payload bytes", "bytes", "no limit"))
            (field("Submits a second", "per_second", "no limit"))
            (field("Burst", "burst", "one second's worth"))
        }
        @if default.is_some() { p.hint { "A tenant's own quota replaces the default completely." } }
    }
}
