//! Looks at the installation: nodes, handlers, pauses, what waits, the audit log, counts, costs. Called by `commands::run`. Never writes.

use comfy_table::Cell;
use serde_json::json;
use windlass::Status;
use windlass::store::{AuditFilter, Counts};

use crate::args::{AuditArgs, Global, UsageArgs};
use crate::backend::{Backend, Handler};
use crate::error::{CliError, Result};
use crate::output::{Out, duration, number, plain};
use windlass::text::show_time;

/// Lists the registered processes.
pub(crate) async fn nodes(backend: &dyn Backend, out: &Out) -> Result {
    let (now, nodes) = (backend.now().await?, backend.nodes().await?);
    if out.wants_json() {
        return out.json(&json!({ "nodes": nodes }));
    }
    if nodes.is_empty() {
        out.say("no process is registered as a node");
        return Ok(());
    }
    let mut table = out.table(&["NODE", "HOST", "PID", "VERSION", "RUNNING", "STARTED", "HEARD OF", "HANDLERS"]);
    for node in nodes {
        table.add_row(vec![
            number(node.node.0),
            Cell::new(plain(&node.info.host)),
            number(node.info.pid),
            Cell::new(plain(&node.info.version)),
            number(format_args!("{}/{}", node.running, node.info.capacity)),
            Cell::new(out.time(node.started_at, now)),
            duration(now.since(node.heartbeat_at)),
            Cell::new(plain(&node.info.handlers.join(", "))),
        ]);
    }
    out.print_table(table, 7)
}

/// Lists the pauses in force.
pub(crate) async fn pauses(backend: &dyn Backend, out: &Out) -> Result {
    let pauses = backend.pauses().await?;
    if out.wants_json() {
        return out.json(&json!({ "pauses": pauses }));
    }
    if pauses.is_empty() {
        out.say("nothing is paused");
        return Ok(());
    }
    let mut table = out.table(&["PAUSED", "SINCE", "BY", "REASON"]);
    for pause in pauses {
        table.add_row(vec![
            Cell::new(plain(&pause.target.name())),
            Cell::new(show_time(pause.at)),
            Cell::new(plain(&pause.by)),
            Cell::new(plain(&pause.reason)),
        ]);
    }
    out.print_table(table, 3)
}

/// Reads the audit log.
pub(crate) async fn audit(global: &Global, backend: &dyn Backend, args: &AuditArgs, out: &Out) -> Result {
    let mut filter = AuditFilter::default();
    filter.action = args.action.as_ref().map(|action| action.to_uppercase());
    filter.target.clone_from(&args.target);
    filter.limit = args.limit;
    let now = backend.now().await?;
    let entries = backend.audit(&filter).await?;
    if out.wants_json() {
        return out.json(&json!({ "entries": entries }));
    }
    if entries.is_empty() {
        out.say(format_args!("no entries{}", global.whose()));
        return Ok(());
    }
    let mut table = out.table(&["WHEN", "WHO", "TENANT", "ACTION", "TARGET", "DETAIL"]);
    for entry in entries {
        table.add_row(vec![
            Cell::new(out.time(entry.at, now)),
            Cell::new(plain(&entry.actor)),
            Cell::new(entry.tenant.map(|tenant| out.tenant(tenant)).unwrap_or_else(|| "all".to_owned())),
            Cell::new(plain(&entry.action)),
            Cell::new(plain(&entry.target)),
            Cell::new(plain(&entry.detail.unwrap_or_default())),
        ]);
    }
    out.print_table(table, 5)
}

/// Counts jobs by status.
pub(crate) async fn stats(global: &Global, backend: &dyn Backend, out: &Out) -> Result {
    let counts = backend.counts().await?;
    if out.wants_json() {
        return out.json(&counts_json(&counts));
    }
    let mut table = out.table(&["STATUS", "JOBS"]);
    for status in Status::ALL {
        table.add_row(vec![out.status(status), number(counts.get(status))]);
    }
    out.print_table(table, 0)?;
    if !global.all_tenants {
        out.say(format_args!("counts only jobs{}", global.whose()));
    }
    Ok(())
}

/// Each status with its count, in the order of a life.
fn counts_json(counts: &Counts) -> serde_json::Value {
    Status::ALL.iter().map(|status| (status.to_string(), json!(counts.get(*status)))).collect()
}

/// Lists the handlers that live nodes have.
pub(crate) async fn handlers(backend: &dyn Backend, out: &Out) -> Result {
    let handlers = backend.handlers().await?;
    if out.wants_json() {
        return out.json(&json!({ "handlers": handlers }));
    }
    if handlers.is_empty() {
        out.say("no live node has a handler");
        return Ok(());
    }
    let mut table = out.table(&["HANDLER", "NODES", "STATE"]);
    for Handler { handler, nodes, paused } in handlers {
        let state = if paused { "paused" } else { "" };
        table.add_row(vec![Cell::new(plain(&handler)), number(nodes), Cell::new(state)]);
    }
    out.print_table(table, 0)
}

/// Says what waits for each handler.
pub(crate) async fn backlog(backend: &dyn Backend, out: &Out) -> Result {
    let backlog = backend.backlog().await?;
    if out.wants_json() {
        return out.json(&json!({ "backlog": backlog }));
    }
    if backlog.is_empty() {
        out.say("nothing waits and nothing runs");
        return Ok(());
    }
    let mut table = out.table(&["HANDLER", "QUEUE", "WAITING", "OLDEST WAITS", "BLOCKED", "RUNNING", "PER SECOND"]);
    for line in backlog {
        table.add_row(vec![
            Cell::new(plain(&line.handler)),
            Cell::new(plain(&line.queue)),
            number(line.waiting),
            duration(std::time::Duration::from_millis(line.oldest_wait_ms)),
            number(line.blocked),
            number(line.running),
            number(format_args!("{:.1}", line.per_second)),
        ]);
    }
    out.print_table(table, 0)
}

/// Days of usage where nothing else is said.
const USAGE_DAYS: i64 = 30;

/// Says what jobs have cost.
pub(crate) async fn usage(global: &Global, backend: &dyn Backend, args: &UsageArgs, out: &Out) -> Result {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let to = args.to.unwrap_or(today);
    let from = args.from.unwrap_or_else(|| to.saturating_sub(jiff::Span::new().days(USAGE_DAYS)));
    if from > to {
        return Err(CliError::invalid("from", format!("{from} is after {to}")));
    }
    let rows = backend.usage(from, to).await?;
    if out.wants_json() {
        return out.json(&json!({ "from": from.to_string(), "to": to.to_string(), "usage": rows }));
    }
    if rows.is_empty() {
        out.say(format_args!("no usage from {from} to {to}{}", global.whose()));
        return Ok(());
    }
    let mut table = out.table(&["DAY", "TENANT", "HANDLER", "JOBS", "CENTS", "UNITS"]);
    for row in rows {
        table.add_row(vec![
            Cell::new(&row.day),
            Cell::new(out.tenant(row.tenant)),
            Cell::new(plain(&row.handler)),
            number(row.jobs),
            number(row.cents),
            number(row.units),
        ]);
    }
    out.print_table(table, 2)
}
