//! Pages for what cannot be shown or done, and the page that asks before something is done. Pure.

use maud::{Markup, html};

use super::super::components;
use super::super::shell::{Live, Page, Place, Shell};

/// Something that cannot be shown or done.
pub(crate) struct Problem {
    /// The status of the answer.
    pub(crate) status: u16,
    /// What went wrong, for people.
    pub(crate) message: String,
    /// What ties it to the log.
    pub(crate) request: Option<String>,
    /// Where to go back to.
    pub(crate) back: Option<String>,
}

/// The page.
pub(crate) fn page(shell: &Shell, problem: &Problem) -> Markup {
    let (title, ..) = words_for(problem.status);
    let content = told(shell, problem);
    shell.page(Page { place: Place::Elsewhere, title, aside: html! {}, content, live: Live::default() })
}

/// The same for who is not known.
pub(crate) fn bare(shell: &Shell, problem: &Problem) -> Markup {
    let (title, ..) = words_for(problem.status);
    shell.bare(title, html! { h1 { (title) } (told(shell, problem)) })
}

fn told(shell: &Shell, problem: &Problem) -> Markup {
    let (_, icon, next) = words_for(problem.status);
    html! {
        section.panel.problem {
            (components::icon(icon))
            div {
                p.problem-status { (problem.status) }
                p.problem-text { (problem.message) }
                @if !next.is_empty() { p.faint { (next) } }
                @if let Some(request) = &problem.request { p.faint { "Request " span.mono { (request) } (components::copy(request, "the request's id")) } }
                div.buttons {
                    @if let Some(back) = &problem.back { a.button.primary href=(back) { "Back" } }
                    a.button href=(shell.urls.path("/")) { "Overview" }
                }
            }
        }
    }
}

fn words_for(status: u16) -> (&'static str, &'static str, &'static str) {
    match status {
        403 => ("Not allowed", "lock", "Ask the person who gave you your key for the right to do this."),
        404 => ("Not found", "search", "It may have been purged, or belong to another tenant."),
        409 => ("It has changed in the meantime", "info", ""),
        400 | 422 => ("This is not possible", "info", ""),
        413 => ("Too large", "info", ""),
        429 => ("Too much at once", "clock", "Try again in a moment."),
        503 | 504 => (
            "Not available now",
            "clock",
            "The store does not respond. Nothing was changed unless the message says otherwise; try again in a moment.",
        ),
        _ => ("Something went wrong", "failures", "The server's log has details under the request id."),
    }
}

/// Asks before something is done, for browsers without the script.
pub(crate) struct Confirm {
    /// Where the answer goes: a path of the dashboard.
    pub(crate) path: String,
    /// What was asked for, to be sent again.
    pub(crate) fields: Vec<(String, String)>,
    /// Where to go back to.
    pub(crate) back: String,
}

/// The page.
pub(crate) fn confirm(shell: &Shell, confirm: &Confirm) -> Markup {
    let content = html! {
        section.panel.problem {
            (components::icon("info"))
            div {
                p.problem-text { "Do this now?" }
                p.mono { (confirm.path) }
                @for (name, value) in confirm.fields.iter().filter(|(name, _)| name != "back") { p.faint { (name) ": " (value) } }
                form.act method="post" action=(shell.urls.path(&confirm.path)) {
                    @for (name, value) in &confirm.fields { input type="hidden" name=(name) value=(value); }
                    input type="hidden" name="confirmed" value="1";
                    div.buttons { a.button href=(confirm.back) { "No" } button.primary type="submit" { "Yes" } }
                }
            }
        }
    };
    shell.page(Page {
        place: Place::Elsewhere,
        title: "Are you sure?",
        aside: html! {},
        content,
        live: Live::default(),
    })
}
