//! The keys of sealed jobs: status, rotate, rewrap, destroy, generate. Called by `commands::run`. Never shows a key but a
//! new one that was asked for.

use std::io::IsTerminal;

use comfy_table::Cell;
use serde_json::json;
use windlass::store::DataKeyRecord;
use windlass::{LocalKeys, OperatorRight};

use crate::args::{Global, KeysCommand};
use crate::connect::{Place, caller, with_service};
use crate::error::{CliError, Result};
use crate::output::{Out, number, plain};
use windlass::text::show_time;

/// Carries out one of the commands.
pub(crate) async fn run(global: &Global, place: &Place, command: &KeysCommand, out: &Out) -> Result {
    match command {
        KeysCommand::Generate { .. } => unreachable!("needs no place"),
        KeysCommand::Status => status(global, place, out).await,
        KeysCommand::Rotate => rotate(global, place, out).await,
        KeysCommand::Rewrap => rewrap(global, place, out).await,
        KeysCommand::Destroy { yes } => destroy(global, place, *yes, out).await,
    }
}

/// Makes a key for a key file.
pub(crate) fn generate(name: &str, out: &Out) -> Result {
    let line = LocalKeys::generate(name).map_err(windlass::Error::from)?;
    // Read back, so that no name is written that a key file could not hold.
    LocalKeys::parse(&line).map_err(|error| CliError::invalid("name", error.message))?;
    if out.wants_json() { out.json(&json!({ "line": line })) } else { out.line(line) }
}

async fn status(global: &Global, place: &Place, out: &Out) -> Result {
    let keys = place.read().await?.data_keys(global.scope()).await?;
    if out.wants_json() {
        let shown = |key: &DataKeyRecord| {
            json!({
                "tenant": key.tenant, "version": key.version, "created_at": key.created_at,
                "kek": key.wrapped.as_ref().map(|wrapped| &wrapped.kek), "destroyed": key.wrapped.is_none(),
            })
        };
        return out.json(&json!({ "keys": keys.iter().map(shown).collect::<Vec<_>>() }));
    }
    if keys.is_empty() {
        out.say(format_args!("no data keys{}", global.whose()));
        return Ok(());
    }
    let mut table = out.table(&["TENANT", "VERSION", "CREATED", "WRAPPED BY"]);
    for key in keys {
        let wrapped_by = key.wrapped.map_or_else(|| "destroyed".to_owned(), |wrapped| plain(&wrapped.kek));
        table.add_row(vec![
            Cell::new(key.tenant),
            number(key.version),
            Cell::new(show_time(key.created_at)),
            Cell::new(wrapped_by),
        ]);
    }
    out.print_table(table, 3)
}

async fn rotate(global: &Global, place: &Place, out: &Out) -> Result {
    one_tenant(global)?;
    with_service(global, place.write().await?, async |service| {
        let version = service.rotate_keys(&caller(global)).await?;
        if out.wants_json() {
            return out.json(&json!({ "tenant": global.tenant(), "version": version }));
        }
        out.line(format_args!("tenant {} now seals with version {version}", global.tenant()))
    })
    .await
}

async fn rewrap(global: &Global, place: &Place, out: &Out) -> Result {
    with_service(global, place.write().await?, async |service| {
        let rewrapped = service.operator(OperatorRight::assume()).rewrap_keys(&caller(global)).await?;
        if out.wants_json() {
            return out.json(&json!({ "rewrapped": rewrapped }));
        }
        out.line(format_args!("rewrapped {rewrapped} data keys; older keys in the key file are no longer needed"))
    })
    .await
}

async fn destroy(global: &Global, place: &Place, yes: bool, out: &Out) -> Result {
    one_tenant(global)?;
    let tenant = global.tenant();
    let what = format!("the data keys of tenant {tenant}, and with them all payloads of its sealed jobs");
    if !yes {
        if !std::io::stdin().is_terminal() {
            return Err(CliError::Usage(format!("this would destroy {what}; confirm with --yes")));
        }
        if !out.ask(&format!("Destroy {what}?"))? {
            return Err(CliError::Failed("nothing was destroyed".to_owned()));
        }
    }
    with_service(global, place.write().await?, async |service| {
        let destroyed = service.destroy_keys(&caller(global)).await?;
        if out.wants_json() {
            return out.json(&json!({ "tenant": tenant, "destroyed": destroyed }));
        }
        out.line(format_args!("destroyed {destroyed} data keys of tenant {tenant}"))
    })
    .await
}

fn one_tenant(global: &Global) -> Result {
    if global.all_tenants {
        return Err(CliError::invalid("all_tenants", "keys belong to one tenant; name it with --tenant"));
    }
    Ok(())
}
