//! The small parts that pages are put together from: badges, times, buttons, empty states. Pure; called by every view.

use std::time::Duration;

use maud::{Markup, html};
use windlass_core::{JobId, Status, TenantId, Timestamp};

use super::shell::Shell;
use super::{format, urls};

/// A status as a coloured dot with its name.
pub(crate) fn status(status: Status) -> Markup {
    html! { span class={ "status s-" (status.as_str()) } { (format::status(status)) } }
}

/// A point in time, told from now; the exact one on hover. The script keeps it current.
pub(crate) fn time(at: Timestamp, now: Timestamp) -> Markup {
    html! { time datetime=(at) data-relative title=(format::absolute(at)) { (format::relative(at, now)) } }
}

/// A point in time to the second, in the zone of the page: UTC, or the viewer's where they have chosen it.
pub(crate) fn clock(at: Timestamp) -> Markup {
    html! { time datetime=(at) data-clock="full" { (format::absolute(at)) } }
}

/// Says in which zone the times beside it are; the script offers the viewer's.
pub(crate) fn zone() -> Markup {
    html! { span.zone { "Times in " span data-zone-name { "UTC" } " " button.quiet type="button" data-zone hidden {} } }
}

/// A time that may not have come, or a dash.
pub(crate) fn time_or_dash(at: Option<Timestamp>, now: Timestamp) -> Markup {
    html! { @if let Some(at) = at { (time(at, now)) } @else { span.faint { "–" } } }
}

/// A duration that may be unknown, or a dash.
pub(crate) fn duration_or_dash(duration: Option<Duration>) -> Markup {
    html! { @if let Some(duration) = duration { (format::duration(duration)) } @else { span.faint { "–" } } }
}

/// A job's id as a link to its page.
pub(crate) fn job_link(shell: &Shell, id: JobId) -> Markup {
    html! { a.mono href=(shell.urls.job(id)) { (id) } }
}

/// A handler's name as a link to its jobs.
pub(crate) fn handler_link(shell: &Shell, handler: &str) -> Markup {
    html! { a.mono.handler href=(shell.urls.jobs(&urls::term("handler", handler))) { (handler) } }
}

/// A tenant, short, as a link to its jobs.
pub(crate) fn tenant_link(shell: &Shell, tenant: TenantId) -> Markup {
    let full = tenant.to_string();
    html! { a.mono href=(shell.urls.jobs(&urls::term("tenant", &full))) title=(full) { (short_tenant(&full)) } }
}

/// The end of a tenant's id, which tells tenants apart better than the start (that is time in newer UUIDs).
pub(crate) fn short_tenant(tenant: &str) -> String {
    match TenantId::parse(tenant) {
        Ok(TenantId::ROOT) => "root".to_owned(),
        Ok(tenant) => {
            let text = tenant.to_string();
            format!("{}…{}", &text[..4], &text[text.len() - 6..])
        }
        Err(_) => tenant.to_owned(),
    }
}

/// A text from a job: a link only if the whole of it is an http(s) address.
pub(crate) fn linked(text: &str) -> Markup {
    let is_address = text.starts_with("https://") || text.starts_with("http://");
    let is_plain = text.len() <= 2_048 && !text.chars().any(|c| c.is_whitespace() || c.is_control());
    html! {
        @if is_address && is_plain { a.out href=(text) rel="noopener noreferrer nofollow" target="_blank" { (text) } }
        @else { (text) }
    }
}

/// A button that copies `text`; shown only with the script.
pub(crate) fn copy(text: &str, what: &str) -> Markup {
    html! {
        button.quiet.copy type="button" data-copy=(text) hidden title={ "Copy " (what) } aria-label={ "Copy " (what) } { (icon("copy")) }
    }
}

/// JSON as text, with a button to copy it.
pub(crate) fn json(text: &str, what: &str) -> Markup {
    html! { div.code { (copy(text, what)) pre tabindex="0" { code { (format::pretty(text)) } } } }
}

/// What a list shows when it has nothing: a sentence and what to do next.
pub(crate) fn empty(icon_name: &str, title: &str, text: Markup) -> Markup {
    html! { div.empty { (icon(icon_name)) h2 { (title) } p { (text) } } }
}

/// Something that went wrong with what the user typed.
pub(crate) fn problem(message: &str) -> Markup {
    html! { p.banner.bad role="alert" { (icon("failures")) span { (message) } } }
}

/// How much of a limit is used.
pub(crate) fn meter(used: u64, limit: Option<u64>, write: impl Fn(u64) -> String) -> Markup {
    html! {
        @match limit {
            Some(limit) => {
                span.meter {
                    span { (write(used)) span.faint { " of " (write(limit)) } }
                    meter min="0" max=(limit.max(1)) low=(limit as f64 * 0.7) high=(limit as f64 * 0.9) optimum="0" value=(used.min(limit.max(1))) {}
                }
            }
            None => (write(used))
        }
    }
}

/// A form with one button that changes something. Asks first: by the script's dialog, or by a page of its own where the
/// script does not run (`routes::confirm`).
pub(crate) struct Act<'a> {
    shell: &'a Shell,
    path: String,
    label: &'a str,
    icon: Option<&'a str>,
    class: &'static str,
    confirm: Option<String>,
    hidden: Vec<(&'a str, String)>,
    fields: Option<Markup>,
}

impl<'a> Act<'a> {
    /// Posts to `path` of the dashboard.
    pub(crate) fn new(shell: &'a Shell, path: impl AsRef<str>, label: &'a str) -> Self {
        let path = shell.urls.path(path.as_ref());
        Act { shell, path, label, icon: None, class: "", confirm: None, hidden: Vec::new(), fields: None }
    }

    pub(crate) fn icon(mut self, icon: &'a str) -> Self {
        self.icon = Some(icon);
        self
    }

    pub(crate) fn danger(mut self) -> Self {
        self.class = "danger";
        self
    }

    pub(crate) fn primary(mut self) -> Self {
        self.class = "primary";
        self
    }

    pub(crate) fn confirm(mut self, question: impl Into<String>) -> Self {
        self.confirm = Some(question.into());
        self
    }

    pub(crate) fn hidden(mut self, name: &'a str, value: impl ToString) -> Self {
        self.hidden.push((name, value.to_string()));
        self
    }

    /// Comes back to this page.
    pub(crate) fn back(self) -> Self {
        let here = self.shell.here.clone();
        self.hidden("back", here)
    }

    /// Fields before the button.
    pub(crate) fn fields(mut self, fields: Markup) -> Self {
        self.fields = Some(fields);
        self
    }
}

impl maud::Render for Act<'_> {
    fn render(&self) -> Markup {
        let is_danger = self.class == "danger";
        html! {
            form.act method="post" action=(self.path) data-confirm=[self.confirm.as_deref()]
                data-confirm-yes=[self.confirm.is_some().then_some(self.label)] data-confirm-danger=[is_danger.then_some("")] {
                @for (name, value) in &self.hidden { input type="hidden" name=(name) value=(value); }
                @if let Some(fields) = &self.fields { (fields) }
                button class=(self.class) type="submit" { @if let Some(name) = self.icon { (icon(name)) } (self.label) }
            }
        }
    }
}

/// The choice of a priority.
pub(crate) fn priority_field(id: &str, chosen: &str) -> Markup {
    let names = ["critical", "high", "normal", "low"];
    html! {
        select id=(id) name="priority" {
            @for name in names { option value=(name) selected[name == chosen] { (name) } }
            @if !names.contains(&chosen) && !chosen.is_empty() { option value=(chosen) selected { (chosen) } }
        }
    }
}

/// A line drawing of 16 by 16, in the colour of the text around it.
pub(crate) fn icon(name: &str) -> Markup {
    let path = match name {
        "windlass" => "M2.5 3.5v9M13.5 3.5v9M2.5 8h11M5.5 5.5h5v5h-5zM7 5.5v5M9 5.5v5M8 10.5v3.5",
        "overview" => "M2.5 2.5h4.5v6h-4.5zM9 2.5h4.5v3.5h-4.5zM9 8h4.5v5.5h-4.5zM2.5 10.5h4.5v3h-4.5z",
        "jobs" => "M2.5 4h1M2.5 8h1M2.5 12h1M6 4h7.5M6 8h7.5M6 12h7.5",
        "failures" => "M8 2.5l6 10.5h-12zM8 6.5v3M8 11.2v.3",
        "dead" => "M2.5 5.5h11v8h-11zM1.8 2.5h12.4v3h-12.4zM6.3 8l3.4 3.4M9.7 8l-3.4 3.4",
        "handlers" => "M5.5 4.5l-3.5 3.5 3.5 3.5M10.5 4.5l3.5 3.5-3.5 3.5",
        "schedules" => "M2.5 3.5h11v10h-11zM2.5 6.5h11M5.5 2v3M10.5 2v3M5.5 9h1M9.5 9h1M5.5 11.3h1",
        "tenants" => "M2.5 13.5v-8l5-3v11M7.5 6.5h6v7M1.5 13.5h13M5 6.5v.5M5 9.5v.5M10.5 9v.5M10.5 11.5v.3",
        "nodes" => "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.5M5 11h.5",
        "audit" => "M3.5 2.5h9v11h-9zM5.5 5.5h5M5.5 8h5M5.5 10.5h3",
        "keys" => "M8.5 7.5l5-5M11.5 4.5l1.5 1.5M10 6l1.2 1.2M9 10a3 3 0 1 1-6 0 3 3 0 0 1 6 0z",
        "webhooks" => {
            "M6.8 9.2a2.8 2.8 0 0 0 4 0l2-2a2.8 2.8 0 0 0-4-4l-1 1M9.2 6.8a2.8 2.8 0 0 0-4 0l-2 2a2.8 2.8 0 0 0 4 4l1-1"
        }
        "plus" => "M8 3v10M3 8h10",
        "docs" => {
            "M8 4.2c-1.2-1-3-1.2-5.5-1.2v9.5c2.5 0 4.3.2 5.5 1.2 1.2-1 3-1.2 5.5-1.2v-9.5c-2.5 0-4.3.2-5.5 1.2zM8 4.2v9.5"
        }
        "user" => "M10.5 5.5a2.5 2.5 0 1 1-5 0 2.5 2.5 0 0 1 5 0zM3 13.5c.5-2.5 2.5-3.5 5-3.5s4.5 1 5 3.5",
        "logout" => "M9.5 2.5h-6v11h6M6.5 8h8M12 5.5l2.5 2.5-2.5 2.5",
        "auto" => "M2 3h12v8h-12zM5.5 13.5h5M8 11v2.5",
        "light" => {
            "M10.5 8a2.5 2.5 0 1 1-5 0 2.5 2.5 0 0 1 5 0zM8 1.5v1.5M8 13v1.5M1.5 8h1.5M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1"
        }
        "dark" => "M13.2 9.8a5.5 5.5 0 0 1-7-7 5.5 5.5 0 1 0 7 7z",
        "pause" => "M5.5 3.5v9M10.5 3.5v9",
        "play" => "M5 3l8 5-8 5z",
        "copy" => "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
        "menu" => "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
        "search" => "M11 7a4 4 0 1 1-8 0 4 4 0 0 1 8 0zM10 10l3.5 3.5",
        "check" => "M3 8.5l3.5 3.5 6.5-7.5",
        "close" => "M4 4l8 8M12 4l-8 8",
        "lock" => "M3.5 7h9v6.5h-9zM5.5 7v-2a2.5 2.5 0 0 1 5 0v2",
        "retry" => "M13 8a5 5 0 1 1-1.5-3.5M13 2.5v3h-3",
        "clock" => "M13.5 8a5.5 5.5 0 1 1-11 0 5.5 5.5 0 0 1 11 0zM8 5v3l2 2",
        "edit" => "M3 13l.5-3 7-7 2.5 2.5-7 7z",
        "clone" => "M3.5 3.5h9v9h-9zM8 5.5v5M5.5 8h5",
        "trash" => "M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.5 9h6l.5-9M7 7v4M9 7v4",
        "up" => "M8 13v-10M4 7l4-4 4 4",
        "columns" => "M2.5 3h11v10h-11zM6.2 3v10M9.8 3v10",
        "eye" => {
            "M1.5 8c1.5-3 4-4.5 6.5-4.5s5 1.5 6.5 4.5c-1.5 3-4 4.5-6.5 4.5s-5-1.5-6.5-4.5zM9.5 8a1.5 1.5 0 1 1-3 0 1.5 1.5 0 0 1 3 0z"
        }
        "info" => "M13.5 8a5.5 5.5 0 1 1-11 0 5.5 5.5 0 0 1 11 0zM8 7.5v3.5M8 5v.3",
        _ => "M8 8h.1",
    };
    html! {
        svg.icon viewBox="0 0 16 16" aria-hidden="true" focusable="false" { path d=(path) {} }
    }
}
