//! Failures grouped by what went wrong: list the groups, try one again, cancel it. Called by `commands::run`. What makes
//! two failures the same is decided in the library.

use comfy_table::{Cell, Row};
use serde_json::json;
use windlass::Page;

use crate::args::{FailuresCommand, Global, GroupArgs};
use crate::backend::Backend;
use crate::commands::many::{self, Verb, parse_filter};
use crate::error::{CliError, Result};
use crate::output::{Out, number, plain};

/// Carries out one of the commands.
pub(crate) async fn run(global: &Global, backend: &dyn Backend, command: FailuresCommand, out: &Out) -> Result {
    match command {
        FailuresCommand::List { filter, limit } => list(global, backend, filter.as_deref(), limit, out).await,
        FailuresCommand::Retry(group) => {
            check_known(global, backend, &group).await?;
            many::run(global, backend, &Verb::Retry, &group.pick(), None, out).await
        }
        FailuresCommand::Cancel(group) => {
            check_known(global, backend, &group).await?;
            let verb = Verb::Cancel { reason: format!("failures {}", group.signature) };
            many::run(global, backend, &verb, &group.pick(), None, out).await
        }
    }
}

/// Refuses a signature that no failing job has: a typo must not look like a success.
async fn check_known(global: &Global, backend: &dyn Backend, group: &GroupArgs) -> Result {
    let filter = parse_filter(backend, group.pick().filter.as_deref()).await?;
    if backend.list(&filter, Page::first(1)).await?.is_empty() {
        let message = format!("no failures have the signature {}{}", group.signature, global.whose());
        return Err(CliError::NotFound(message));
    }
    Ok(())
}

async fn list(global: &Global, backend: &dyn Backend, filter: Option<&str>, limit: usize, out: &Out) -> Result {
    let filter = parse_filter(backend, filter).await?;
    let groups = backend.failures(&filter, limit).await?;
    if out.wants_json() {
        return out.json(&json!({ "groups": groups }));
    }
    if groups.is_empty() {
        out.say(format_args!("no failures{}", global.whose()));
        return Ok(());
    }
    let now = backend.now().await?;
    let mut table =
        out.table(&["SIGNATURE", "HANDLER", "CODE", "DEAD", "RETRYING", "LAST", "LATEST JOB", "WHAT WENT WRONG"]);
    for group in groups {
        let mut row = Row::from(vec![
            Cell::new(group.signature),
            Cell::new(plain(&group.handler)),
            Cell::new(plain(&group.code)),
            number(group.dead),
            number(group.retrying),
            Cell::new(out.time(group.last_at, now)),
            Cell::new(group.latest),
            Cell::new(plain(&group.message)),
        ]);
        row.max_height(1);
        table.add_row(row);
    }
    out.print_table(table, 7)
}
