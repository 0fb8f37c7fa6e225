//! The handlers: how busy each is, what waits for it, and pausing it. Pure.

use std::time::Duration;

use maud::{Markup, html};
use windlass_core::store::Pause;

use super::super::components::{self, Act};
use super::super::shell::{Live, Page, Place, Shell};
use super::super::{format, urls};

/// All handlers that nodes have, that jobs wait for, or that did something lately.
pub(crate) struct Handlers {
    /// In order of name.
    pub(crate) handlers: Vec<Handler>,
    /// Pauses of tenants and of everything, which hold jobs of any handler.
    pub(crate) other_pauses: Vec<Pause>,
    /// The time that rates look back.
    pub(crate) span: &'static str,
}

/// One handler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handler {
    /// Its name.
    pub(crate) name: String,
    /// How many live nodes have it.
    pub(crate) nodes: usize,
    /// Jobs that wait for it, about; unknown where it shares a queue.
    pub(crate) waiting: Option<u64>,
    /// Jobs of it that are blocked, about.
    pub(crate) blocked: u64,
    /// How long the oldest of those that wait has waited.
    pub(crate) oldest: Option<Duration>,
    /// Jobs it runs now.
    pub(crate) running: Option<u64>,
    /// Attempts that ended each second, over the last minutes.
    pub(crate) per_second: f64,
    /// Jobs that ended well in that time.
    pub(crate) succeeded: u64,
    /// Attempts that failed in that time.
    pub(crate) failed: u64,
    /// The 95th percentile of waits.
    pub(crate) wait_p95: Option<Duration>,
    /// The 95th percentile of run times.
    pub(crate) run_p95: Option<Duration>,
    /// How many of it one node runs at once, where that is limited.
    pub(crate) limit: Option<usize>,
    /// Its pause, if it is paused.
    pub(crate) pause: Option<Pause>,
}

/// The page.
pub(crate) fn page(shell: &Shell, page: &Handlers) -> Markup {
    let may_pause = shell.viewer.may.operate && shell.viewer.all_tenants;
    let content = html! {
        @for pause in &page.other_pauses { (paused(shell, pause, may_pause)) }
        section.panel #handlers data-live data-hold {
            @if page.handlers.is_empty() { (components::empty("handlers", "No handlers", html! { "No node has registered a handler, and no job waits for one. A handler is code that runs one kind of job." })) }
            @else {
                div.scroll {
                    table.rows data-rows {
                        thead { tr {
                            th scope="col" { "Handler" } th.num scope="col" { "Nodes" } th.num scope="col" { "Waiting" } th.num.wide scope="col" { "Oldest" }
                            th.num scope="col" { "Running" } th.num scope="col" { "Jobs/s" } th.num.wide scope="col" { "Done, " (page.span) } th.num.wide scope="col" { "Failed, " (page.span) }
                            th.num.wide scope="col" { "Wait p95" } th.num.wide scope="col" { "Run p95" } th scope="col" { span.sr { "Actions" } }
                        } }
                        tbody { @for handler in &page.handlers { (row(shell, handler, may_pause)) } }
                    }
                }
            }
        }
    };
    let live = Live { every_seconds: Some(5), events: None };
    shell.page(Page { place: Place::Handlers, title: "Handlers", aside: html! {}, content, live })
}

fn row(shell: &Shell, handler: &Handler, may_pause: bool) -> Markup {
    let target = format!("handler:{}", handler.name);
    let number = |n: Option<u64>| html! { @match n { Some(0) => span.faint { "0" }, Some(n) => (format::count(n)), None => span.faint { "–" } } };
    html! {
        tr data-href=(shell.urls.jobs(&urls::term("handler", &handler.name))) {
            td {
                (components::handler_link(shell, &handler.name))
                @if let Some(limit) = handler.limit { span.chip title="At once on one node" { "at most " (limit) } }
                @if let Some(pause) = &handler.pause { div.row-note.warn-text { (components::icon("pause")) "paused by " (pause.by) " " (components::time(pause.at, shell.now)) @if !pause.reason.is_empty() { ": " (pause.reason) } } }
            }
            td.num { @if handler.nodes == 0 { span.bad-text title="No live node has it" { "none" } } @else { (handler.nodes) } }
            td.num { (number(handler.waiting)) @if handler.blocked > 0 { div.row-note { "+ " (format::count(handler.blocked)) " blocked" } } }
            td.num.wide { (components::duration_or_dash(handler.oldest)) }
            td.num { (number(handler.running)) }
            td.num { @if handler.per_second > 0.0 { (format::short(handler.per_second)) } @else { span.faint { "0" } } }
            td.num.wide { @if handler.succeeded > 0 { (format::count(handler.succeeded)) } @else { span.faint { "0" } } }
            td.num.wide { @if handler.failed > 0 { span.bad-text { (format::count(handler.failed)) } } @else { span.faint { "0" } } }
            td.num.wide { (components::duration_or_dash(handler.wait_p95)) }
            td.num.wide { (components::duration_or_dash(handler.run_p95)) }
            td.row-act { @if may_pause { (pause_or_resume(shell, &target, &handler.name, handler.pause.is_some())) } }
        }
    }
}

/// The button that resumes what is paused, or the menu that pauses what is not.
pub(crate) fn pause_or_resume(shell: &Shell, target: &str, name: &str, is_paused: bool) -> Markup {
    html! {
        @if is_paused { (Act::new(shell, "/resume", "Resume").icon("play").hidden("target", target).back().confirm(format!("Start jobs of {name} again?"))) }
        @else {
            details.menu.right {
                summary.button.quiet title="Pause" aria-label={ "Pause " (name) } { (components::icon("pause")) }
                div.menu-box {
                    (Act::new(shell, "/pause", "Pause").danger().hidden("target", target).back()
                        .fields(html! { label { "Why" input name="reason" maxlength="200" placeholder="the mail server is down"; } })
                        .confirm(format!("Start no more jobs of {name} until someone resumes them? Running jobs continue.")))
                }
            }
        }
    }
}

fn paused(shell: &Shell, pause: &Pause, may_resume: bool) -> Markup {
    let target = pause.target.name();
    html! {
        div.banner.warn {
            (components::icon("pause"))
            span { b.mono { (target) } " is paused by " (pause.by) ", " (components::time(pause.at, shell.now)) @if !pause.reason.is_empty() { ": " (pause.reason) } }
            @if may_resume { (Act::new(shell, "/resume", "Resume").icon("play").hidden("target", &target).back().confirm("Start its jobs again?")) }
        }
    }
}
