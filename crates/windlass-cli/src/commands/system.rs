//! Looks at the installation: nodes, pauses, the audit log, counts. Called by `commands::run` with a store that may be
//! read-only. Never writes.

use comfy_table::Cell;
use serde_json::json;
use windlass::Status;
use windlass::store::{AuditFilter, Counts, Store};

use crate::args::{AuditArgs, Global};
use crate::error::Result;
use crate::output::{Out, duration, number, plain};
use windlass::text::show_time;

/// Lists the registered processes.
pub(crate) async fn nodes(store: &dyn Store, out: &Out) -> Result {
    let (now, nodes) = (store.now().await?, store.nodes().await?);
    if out.wants_json() {
        return out.json(&json!({ "nodes": nodes }));
    }
    if nodes.is_empty() {
        out.say("no process is registered");
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
pub(crate) async fn pauses(store: &dyn Store, out: &Out) -> Result {
    let pauses = store.pauses().await?;
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
pub(crate) async fn audit(global: &Global, store: &dyn Store, args: &AuditArgs, out: &Out) -> Result {
    let mut filter = AuditFilter::default();
    filter.action = args.action.as_ref().map(|action| action.to_uppercase());
    filter.target.clone_from(&args.target);
    filter.limit = args.limit;
    let now = store.now().await?;
    let entries = store.audit_log(global.scope(), &filter).await?;
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
pub(crate) async fn stats(global: &Global, store: &dyn Store, out: &Out) -> Result {
    let counts = store.counts(global.scope()).await?;
    if out.wants_json() {
        return out.json(&counts_json(&counts));
    }
    let mut table = out.table(&["STATUS", "JOBS"]);
    for status in Status::ALL {
        table.add_row(vec![out.status(status), number(counts.get(status))]);
    }
    out.print_table(table, 0)?;
    if !global.all_tenants {
        out.say(format_args!("these are the jobs{}", global.whose()));
    }
    Ok(())
}

/// Each status with its count, in the order of a life.
fn counts_json(counts: &Counts) -> serde_json::Value {
    Status::ALL.iter().map(|status| (status.to_string(), json!(counts.get(*status)))).collect()
}
