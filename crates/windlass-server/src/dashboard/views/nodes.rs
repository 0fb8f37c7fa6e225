//! The nodes: who is there, how busy, and who has fallen silent. Pure.

use std::time::Duration;

use maud::{Markup, html};
use windlass_core::store::NodeRecord;

use super::super::components;
use super::super::format;
use super::super::shell::{Live, Page, Place, Shell};
use super::overview::Level;

/// The registered processes.
pub(crate) struct Nodes {
    /// Newest first.
    pub(crate) nodes: Vec<NodeRecord>,
    /// How long the store waits for a silent node.
    pub(crate) lease: Duration,
    /// The version of this process; nodes of another one are marked.
    pub(crate) version: String,
}

/// How a node is, by the age of its last sign of life.
pub(crate) fn level(age: Duration, lease: Duration) -> Level {
    match age {
        age if age >= lease => Level::Bad,
        age if age >= lease / 2 => Level::Warn,
        _ => Level::Good,
    }
}

/// The page.
pub(crate) fn page(shell: &Shell, page: &Nodes) -> Markup {
    let (running, capacity) =
        page.nodes.iter().fold((0, 0), |(r, c), node| (r + node.running as u64, c + node.info.capacity as u64));
    let content = html! {
        section.panel #nodes data-live data-hold {
            header.panel-head { h2 { (format::counted(page.nodes.len() as u64, "process", "processes")) } div.panel-aside { span.faint { (format::count(running)) " of " (format::counted(capacity, "slot", "slots")) " busy" } } }
            @if page.nodes.is_empty() { (components::empty("nodes", "No node is up", html! { "Jobs wait until a process with workers starts." })) }
            @else {
                div.scroll {
                    table.rows data-rows {
                        thead { tr {
                            th scope="col" { "Node" } th scope="col" { "Heartbeat" } th scope="col" { "Running" } th.wide scope="col" { "Version" }
                            th.num.wide scope="col" { "Slot" } th.wide scope="col" { "Up since" } th scope="col" { "Handlers" }
                        } }
                        tbody { @for node in &page.nodes { (row(shell, page, node)) } }
                    }
                }
            }
        }
    };
    let live = Live { every_seconds: Some(3), events: None };
    shell.page(Page { place: Place::Nodes, title: "Nodes", aside: html! {}, content, live })
}

fn row(shell: &Shell, page: &Nodes, node: &NodeRecord) -> Markup {
    let age = shell.now.since(node.heartbeat_at);
    let level = level(age, page.lease);
    let info = &node.info;
    html! {
        tr data-row=(node.node.0) {
            td { b { (info.host) } div.row-note { "node " (node.node.0) ", pid " (info.pid) } }
            td { span class={ "pulse " (level.class()) } { (format::about(age)) } @if level == Level::Bad { div.row-note.bad-text { "silent; other nodes take over its jobs" } } }
            td { @if info.capacity == 0 { span.faint { "submits only" } } @else { (components::meter(node.running as u64, Some(info.capacity as u64), format::count)) } }
            td.wide { (info.version) @if info.version != page.version { span.chip.warn { "other version" } } }
            td.num.wide { (node.slot.get()) }
            td.wide { (components::time(node.started_at, shell.now)) }
            td {
                @if info.handlers.is_empty() { span.faint { "none" } }
                @else if info.handlers.len() <= 4 { (names(shell, &info.handlers)) }
                @else { details { summary { (format::counted(info.handlers.len() as u64, "handler", "handlers")) } (names(shell, &info.handlers)) } }
            }
        }
    }
}

fn names(shell: &Shell, handlers: &[String]) -> Markup {
    html! { div.names { @for handler in handlers { (components::handler_link(shell, handler)) } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_silent_once_its_lease_is_over() {
        let levels = [0, 4, 5, 9, 10, 60].map(|secs| level(Duration::from_secs(secs), Duration::from_secs(10)));
        use Level::*;
        assert_eq!(levels, [Good, Good, Warn, Warn, Bad, Bad]);
    }
}
