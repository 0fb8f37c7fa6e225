//! The login page. Pure.

use maud::{Markup, html};

use super::super::components;
use super::super::shell::Shell;

/// What the page says.
pub(crate) struct Login {
    /// Why the last try failed.
    pub(crate) problem: Option<String>,
    /// Whether the server lets people in by a link that it prints when it starts.
    pub(crate) is_local: bool,
}

/// The page.
pub(crate) fn page(shell: &Shell, login: &Login) -> Markup {
    shell.bare(
        "Log in",
        html! {
            section.panel.login {
                h1.brand { (components::icon("windlass")) "Windlass" }
                @if let Some(problem) = &login.problem { (components::problem(problem)) }
                form.form method="post" action=(shell.urls.path("/login")) {
                    label for="key" { "API key" }
                    input #key.mono type="password" name="key" required autofocus autocomplete="current-password" placeholder="wl_…" spellcheck="false";
                    div.buttons { button.primary type="submit" { "Log in" } }
                }
                @if login.is_local {
                    p.hint { "This server also prints a login link at its start, which works once; " code { "windlass login" } " prints another." }
                } @else {
                    p.hint { "No key? The operator of this server can create one with " code { "windlass api-key create" } "." }
                }
            }
        },
    )
}
