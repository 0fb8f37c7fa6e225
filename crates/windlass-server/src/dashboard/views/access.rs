//! Who may come in and who is told: API keys and webhooks. Pure. A secret is shown once, by the page that answers its
//! making, and never again.

use maud::{Markup, html};
use windlass_core::{Status, TenantId, Timestamp};

use super::super::components::{self, Act};
use super::super::format;
use super::super::shell::{Live, Page, Place, Shell};

/// The keys.
pub(crate) struct Keys {
    /// Newest first.
    pub(crate) keys: Vec<Key>,
    /// A key that was just made: its name and its secret.
    pub(crate) fresh: Option<(String, String)>,
    /// What was wrong with the last try.
    pub(crate) problem: Option<String>,
}

/// One key, without its secret.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) tenant: TenantId,
    pub(crate) all_tenants: bool,
    pub(crate) user: String,
    pub(crate) rights: String,
    pub(crate) created_at: Timestamp,
    pub(crate) created_by: String,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) revoked_at: Option<Timestamp>,
    pub(crate) last_used_at: Option<Timestamp>,
}

/// The page of keys.
pub(crate) fn keys(shell: &Shell, page: &Keys) -> Markup {
    let content = html! {
        @if let Some((name, secret)) = &page.fresh { (fresh(&format!("The key {name}"), secret)) }
        @if let Some(problem) = &page.problem { (components::problem(problem)) }
        section.panel #keys {
            @if page.keys.is_empty() { (components::empty("keys", "No keys", html! { "A key gives a program or a person access, with the rights you choose." })) }
            @else {
                div.scroll {
                    table.rows data-rows {
                        thead { tr {
                            th scope="col" { "Name" } th scope="col" { "Rights" } th.wide scope="col" { "Tenant" } th.wide scope="col" { "User" }
                            th.wide scope="col" { "Made" } th scope="col" { "Last used" } th scope="col" { "Until" } th scope="col" { span.sr { "Actions" } }
                        } }
                        tbody { @for key in &page.keys { (key_row(shell, key)) } }
                    }
                }
            }
        }
        section.panel.form-panel {
            header.panel-head { h2 { "Create a key" } }
            form.form method="post" action=(shell.urls.path("/keys")) {
                input type="hidden" name="confirmed" value="1";
                label { "Name" input name="name" required maxlength="100" placeholder="billing service" autocomplete="off"; }
                label { "User, as recorded in the audit log" input name="user" maxlength="100" placeholder="the name" autocomplete="off"; }
                fieldset {
                    legend { "Rights" }
                    @for (right, what) in [("read", "see jobs, without inputs"), ("submit", "submit jobs"), ("operate", "cancel, retry, edit, pause"), ("admin", "keys, webhooks, quotas; includes the three above"), ("payload", "see inputs")] {
                        label.check { input type="checkbox" name="right" value=(right) checked[right == "read"]; b { (right) } span.faint { (what) } }
                    }
                }
                @if shell.viewer.all_tenants {
                    label { "Tenant" input.mono name="tenant" maxlength="40" placeholder="UUID; empty for the root tenant" autocomplete="off"; }
                    label.check { input type="checkbox" name="all_tenants" value="1"; "every tenant" }
                }
                label { "Valid for" select name="days" { option value="30" { "30 days" } option value="90" selected { "90 days" } option value="365" { "a year" } option value="" { "ever" } } }
                div.buttons { button.primary type="submit" { "Create the key" } }
            }
        }
    };
    shell.page(Page { place: Place::Keys, title: "Keys", aside: html! {}, content, live: Live::default() })
}

fn key_row(shell: &Shell, key: &Key) -> Markup {
    let is_over = key.revoked_at.is_some() || key.expires_at.is_some_and(|at| at <= shell.now);
    html! {
        tr.over[is_over] {
            td { b { (key.name) } div.row-note.mono { (key.id) } }
            td { @for right in key.rights.split(',') { span.chip { (right) } } }
            td.wide { @if key.all_tenants { "every tenant" } @else { (components::tenant_link(shell, key.tenant)) } }
            td.wide { (key.user) }
            td.wide { (components::time(key.created_at, shell.now)) " by " (key.created_by) }
            td { @match key.last_used_at { Some(at) => (components::time(at, shell.now)), None => span.faint { "never" } } }
            td { @match (key.revoked_at, key.expires_at) { (Some(at), _) => { span.bad-text { "revoked " (components::time(at, shell.now)) } }, (None, Some(at)) => (components::time(at, shell.now)), (None, None) => span.faint { "it is revoked" } } }
            td.row-act { @if !is_over { (Act::new(shell, "/keys/revoke", "Revoke").danger().hidden("id", &key.id).hidden("tenant", key.tenant).confirm(format!("Revoke the key {}? Servers reject it within five seconds.", key.name))) } }
        }
    }
}

/// A secret, once.
fn fresh(what: &str, secret: &str) -> Markup {
    html! {
        section.panel.fresh role="status" {
            (components::icon("keys"))
            div {
                h2 { (what) }
                p { "Copy it now: it is not shown again and cannot be recovered." }
                p.secret { code { (secret) } (components::copy(secret, "the secret")) }
            }
        }
    }
}

/// The webhooks.
pub(crate) struct Webhooks {
    /// Newest first.
    pub(crate) hooks: Vec<Hook>,
    /// A webhook that was just added: its address and its signing secret.
    pub(crate) fresh: Option<(String, String)>,
    /// What was wrong with the last try.
    pub(crate) problem: Option<String>,
    /// Handlers to suggest.
    pub(crate) handlers: Vec<String>,
}

/// One webhook, without its secret.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    pub(crate) id: String,
    pub(crate) tenant: TenantId,
    pub(crate) url: String,
    pub(crate) events: Vec<Status>,
    pub(crate) handler: Option<String>,
    pub(crate) created_at: Timestamp,
    pub(crate) created_by: String,
    pub(crate) paused: bool,
}

/// The page of webhooks.
pub(crate) fn webhooks(shell: &Shell, page: &Webhooks) -> Markup {
    let all = shell.viewer.tenant.is_none();
    let content = html! {
        @if let Some((url, secret)) = &page.fresh { (fresh(&format!("The secret that signs requests to {url}"), secret)) }
        @if let Some(problem) = &page.problem { (components::problem(problem)) }
        section.panel #webhooks {
            @if page.hooks.is_empty() { (components::empty("webhooks", "No webhooks", html! { "A webhook receives a signed POST when jobs change their status. Deliveries are jobs themselves, retried until they arrive." })) }
            @else {
                div.scroll {
                    table.rows data-rows {
                        thead { tr { th scope="col" { "Address" } th scope="col" { "Of" } th.wide scope="col" { "Handler" } @if all { th.wide scope="col" { "Tenant" } } th.wide scope="col" { "Added" } th scope="col" { span.sr { "Actions" } } } }
                        tbody {
                            @for hook in &page.hooks {
                                tr {
                                    td { span.mono.break { (hook.url) } @if hook.paused { span.chip.warn { "paused" } } div.row-note.mono { (hook.id) } }
                                    td { @if hook.events.is_empty() { "every change" } @else { @for status in &hook.events { (components::status(*status)) " " } } }
                                    td.wide { @match &hook.handler { Some(handler) => (components::handler_link(shell, handler)), None => span.faint { "any" } } }
                                    @if all { td.wide { (components::tenant_link(shell, hook.tenant)) } }
                                    td.wide { (components::time(hook.created_at, shell.now)) " by " (hook.created_by) }
                                    td.row-act {
                                        @if hook.paused { (Act::new(shell, "/webhooks/resume", "Resume").hidden("id", &hook.id).hidden("tenant", hook.tenant).confirm("Send events to this webhook from now on?")) }
                                        @else { (Act::new(shell, "/webhooks/pause", "Pause").hidden("id", &hook.id).hidden("tenant", hook.tenant).confirm("Send nothing to this webhook until it is resumed? Deliveries that become due until then are canceled.")) }
                                        (Act::new(shell, "/webhooks/remove", "Remove").danger().hidden("id", &hook.id).hidden("tenant", hook.tenant).confirm("Remove this webhook? Deliveries that still wait are canceled.")) }
                                }
                            }
                        }
                    }
                }
            }
        }
        section.panel.form-panel {
            header.panel-head { h2 { "Add a webhook" } }
            form.form method="post" action=(shell.urls.path("/webhooks")) {
                input type="hidden" name="confirmed" value="1";
                label { "Address" input type="url" name="url" required maxlength="2000" placeholder="https://" autocomplete="off"; }
                fieldset.inline-checks {
                    legend { "When a job is" }
                    @for status in [Status::Succeeded, Status::DeadLettered, Status::Canceled, Status::Retrying, Status::Running] {
                        label.check { input type="checkbox" name="event" value=(status.as_str()) checked[matches!(status, Status::Succeeded | Status::DeadLettered)]; (format::status(status)) }
                    }
                }
                label { "Only for the handler" input.mono name="handler" maxlength="200" placeholder="any" list="hook-handlers" autocomplete="off"; }
                datalist #hook-handlers { @for handler in &page.handlers { option value=(handler) {} } }
                @if shell.viewer.all_tenants { label { "Tenant" input.mono name="tenant" maxlength="40" placeholder="UUID; empty for the root tenant" autocomplete="off"; } }
                div.buttons { button.primary type="submit" { "Add the webhook" } }
            }
        }
    };
    shell.page(Page { place: Place::Webhooks, title: "Webhooks", aside: html! {}, content, live: Live::default() })
}
