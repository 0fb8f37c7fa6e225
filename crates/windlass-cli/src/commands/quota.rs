//! What tenants may use and use: `tenants`, and `quota` to show, set and clear policies. Called by `commands::run`. Every
//! change is in the audit log with the name of whoever ran the command.

use comfy_table::Cell;
use serde_json::json;
use windlass::{Quota, SubmitRate, TenantId, TenantUse};

use crate::args::{Global, QuotaCommand, QuotaSetArgs};
use crate::backend::Backend;
use crate::error::{CliError, Result};
use crate::output::{Out, number};

/// Lists what every tenant uses of what it may.
pub(crate) async fn tenants(backend: &dyn Backend, out: &Out) -> Result {
    let uses = backend.tenants().await?;
    if out.wants_json() {
        return out.json(&json!({ "tenants": uses }));
    }
    if uses.is_empty() {
        out.say("no tenant has unfinished jobs or its own policy");
        return Ok(());
    }
    let mut table = out.table(&["TENANT", "UNFINISHED", "RUNNING", "BYTES", "RATE", "WEIGHT", "POLICY"]);
    for used in uses {
        table.add_row(row(&used, out));
    }
    out.print_table(table, 0)
}

fn row(used: &TenantUse, out: &Out) -> Vec<Cell> {
    let quota = used.quota.clone().unwrap_or_default();
    let policy = match (&used.quota, used.own) {
        (None, _) => "none",
        (Some(_), true) => "own",
        (Some(_), false) => "default",
    };
    vec![
        Cell::new(out.tenant(used.tenant)),
        number(of(used.queued, quota.queued)),
        number(of(used.running, quota.running)),
        number(used.bytes.map_or("-".to_owned(), |bytes| of(bytes, quota.bytes))),
        number(quota.submit_rate.map_or("-".to_owned(), show_rate)),
        number(quota.weight.unwrap_or(1)),
        Cell::new(policy),
    ]
}

/// `3/10`, or `3` where there is no limit.
fn of(used: u64, limit: Option<u64>) -> String {
    limit.map_or_else(|| used.to_string(), |limit| format!("{used}/{limit}"))
}

fn show_rate(rate: SubmitRate) -> String {
    format!("{}/s, {} at once", rate.per_second, rate.burst)
}

/// Shows, sets or clears policies.
pub(crate) async fn run(global: &Global, backend: &dyn Backend, command: QuotaCommand, out: &Out) -> Result {
    match command {
        QuotaCommand::Show(of) => show(backend, of.target(global), out).await,
        QuotaCommand::Set(args) => set(backend, args.of.target(global), &args, out).await,
        QuotaCommand::Clear(of) => clear(backend, of.target(global), out).await,
    }
}

async fn show(backend: &dyn Backend, target: Option<TenantId>, out: &Out) -> Result {
    let policy = backend.quota(target).await?;
    if out.wants_json() {
        return out.json(&json!({ "of": name(target), "own": policy.own, "quota": policy.quota }));
    }
    match &policy.quota {
        None => out.line(format_args!("{}: nothing is limited", name(target))),
        Some(quota) => {
            let from = if target.is_some() && !policy.own { " (the default policy)" } else { "" };
            out.line(format_args!("{}: {}{from}", name(target), describe(quota)))
        }
    }
}

async fn set(backend: &dyn Backend, target: Option<TenantId>, args: &QuotaSetArgs, out: &Out) -> Result {
    let quota = args.quota()?;
    backend.set_quota(target, Some(&quota)).await?;
    if out.wants_json() {
        return out.json(&json!({ "of": name(target), "quota": quota }));
    }
    out.line(format_args!("{}: {}", name(target), describe(&quota)))?;
    out.say("every node applies this within about a second; jobs that are already stored stay");
    Ok(())
}

async fn clear(backend: &dyn Backend, target: Option<TenantId>, out: &Out) -> Result {
    let policy = backend.quota(target).await?;
    if policy.quota.is_none() || (target.is_some() && !policy.own) {
        return Err(CliError::NotFound(format!("{} has no own policy", name(target))));
    }
    backend.set_quota(target, None).await?;
    if out.wants_json() {
        return out.json(&json!({ "of": name(target), "cleared": true }));
    }
    out.line(format_args!("{}: the policy is cleared", name(target)))
}

fn name(target: Option<TenantId>) -> String {
    target.map_or_else(|| "default".to_owned(), |tenant| format!("tenant {tenant}"))
}

/// A policy in words.
fn describe(quota: &Quota) -> String {
    let said = [
        quota.queued.map(|jobs| format!("{jobs} unfinished jobs")),
        quota.submit_rate.map(|rate| format!("{} submitted", show_rate(rate))),
        quota.running.map(|jobs| format!("{jobs} running")),
        quota.bytes.map(|bytes| format!("{bytes} bytes of payloads")),
        quota.weight.map(|weight| format!("weight {weight}")),
    ];
    let said: Vec<String> = said.into_iter().flatten().collect();
    if said.is_empty() { "nothing is limited".to_owned() } else { said.join(", ") }
}
