//! The form that submits a job. Pure.

use maud::{Markup, html};

use super::super::components;
use super::super::shell::{Live, Page, Place, Shell};
use super::job;

/// The form as it was filled in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Form {
    pub(crate) handler: String,
    pub(crate) input: String,
    pub(crate) priority: String,
    pub(crate) delay: String,
    pub(crate) run_at: String,
    pub(crate) idempotency_key: String,
    pub(crate) ordering_key: String,
    pub(crate) tags: String,
    pub(crate) queue: String,
    pub(crate) timeout: String,
    pub(crate) tenant: String,
    /// What was wrong with the last try.
    pub(crate) problem: Option<String>,
    /// Handlers that live nodes have.
    pub(crate) handlers: Vec<String>,
}

/// The page.
pub(crate) fn page(shell: &Shell, form: &Form) -> Markup {
    let text = |label: &str, name: &str, value: &str, placeholder: &str| {
        html! { label { (label) input name=(name) value=(value) placeholder=(placeholder) maxlength="256" autocomplete="off" spellcheck="false"; } }
    };
    let is_open =
        [&form.delay, &form.run_at, &form.idempotency_key, &form.ordering_key, &form.tags, &form.queue, &form.timeout]
            .iter()
            .any(|value| !value.is_empty());
    let content = html! {
        @if let Some(problem) = &form.problem { (components::problem(problem)) }
        section.panel.form-panel {
            form.form method="post" action=(shell.urls.path("/submit")) data-submit {
                label for="handler" { "Handler" }
                input #handler.mono name="handler" value=(form.handler) required list="handlers" maxlength="200" placeholder="mail.send" autocomplete="off" spellcheck="false" autofocus[form.handler.is_empty()];
                datalist #handlers { @for handler in &form.handlers { option value=(handler) {} } }
                @if !form.handlers.is_empty() && form.handlers.len() <= 12 {
                    div.suggest { @for handler in &form.handlers { button.tag type="button" hidden data-fill="handler" data-value=(handler) { (handler) } } }
                }
                label for="job-input" { "Input" }
                textarea #job-input.mono name="input" rows="10" spellcheck="false" placeholder="{}" data-json { (form.input) }
                p.hint { "JSON, as the handler expects it. Empty means " code { "null" } "." }
                label for="job-priority" { "Priority" }
                (components::priority_field("job-priority", if form.priority.is_empty() { "normal" } else { &form.priority }))
                @if shell.viewer.all_tenants {
                    label for="job-tenant" { "Tenant" }
                    input #job-tenant.mono name="tenant" value=(form.tenant) maxlength="40" placeholder="UUID; empty for the root tenant" autocomplete="off";
                }
                details open[is_open] {
                    summary { "More: start, keys, tags, timeout" }
                    fieldset { legend { "Start" } (job::start_fields(&form.delay, &form.run_at)) }
                    div.field-row {
                        (text("Idempotency key", "idempotency_key", &form.idempotency_key, "invoice-7"))
                        (text("Ordering key", "ordering_key", &form.ordering_key, "customer-42"))
                        (text("Tags", "tags", &form.tags, "vip, import"))
                        (text("Queue", "queue", &form.queue, "the handler's timeout"))
                        (text("Timeout", "timeout", &form.timeout, "5m"))
                    }
                }
                div.buttons { button.primary type="submit" { "Submit the job" } }
            }
        }
    };
    shell.page(Page { place: Place::Submit, title: "Submit a job", aside: html! {}, content, live: Live::default() })
}
