//! Who may come in from outside and who is told: API keys, login links and webhooks. Called by `commands::run`. A secret is printed once,
//! when it is made, and nowhere else.

use comfy_table::Cell;
use serde_json::json;
use windlass::{NewApiKey, Start};

use crate::args::{ApiKeyCommand, ApiKeyCreateArgs, Global, WebhookCommand};
use crate::backend::{self, Backend};
use crate::error::{CliError, Result};
use crate::output::{Out, plain};
use windlass::text::show_time;

/// Makes, lists and revokes API keys.
pub(crate) async fn api_keys(global: &Global, backend: &dyn Backend, command: ApiKeyCommand, out: &Out) -> Result {
    match command {
        ApiKeyCommand::Create(args) => create(global, backend, &args, out).await,
        ApiKeyCommand::List => list(global, backend, out).await,
        ApiKeyCommand::Revoke { ids } => revoke(backend, &ids, out).await,
    }
}

async fn create(global: &Global, backend: &dyn Backend, args: &ApiKeyCreateArgs, out: &Out) -> Result {
    let mut new = NewApiKey::new(&args.name, args.rights);
    new.user.clone_from(&args.user);
    new.all_tenants = global.all_tenants;
    new.expires_at = match args.expires {
        None | Some(Start::Now) => None,
        Some(Start::At(at)) => Some(at),
        Some(Start::After(later)) => Some(backend.now().await? + later),
    };
    let (key, secret) = backend.create_key(new).await?;
    if out.wants_json() {
        return out.json(&json!({ "key": key, "secret": secret }));
    }
    let whose = if key.all_tenants { "every tenant".to_owned() } else { format!("tenant {}", key.tenant) };
    out.say(format_args!(
        "created key {} for {whose} with the rights {}; its secret is shown only now:",
        key.id, key.rights
    ));
    out.line(secret)
}

async fn list(global: &Global, backend: &dyn Backend, out: &Out) -> Result {
    let keys = backend.api_keys().await?;
    if out.wants_json() {
        return out.json(&json!({ "keys": keys }));
    }
    if keys.is_empty() {
        out.say(format_args!("no API keys{}", global.whose()));
        return Ok(());
    }
    let now = backend.now().await?;
    let mut table = out.table(&["ID", "NAME", "TENANT", "USER", "RIGHTS", "STATE", "LAST USED"]);
    for key in keys {
        let state = match (key.revoked_at, key.expires_at) {
            (Some(at), _) => format!("revoked {}", out.time(at, now)),
            (None, Some(at)) if at <= now => format!("expired {}", show_time(at)),
            (None, Some(at)) => format!("until {}", show_time(at)),
            (None, None) => "valid".to_owned(),
        };
        table.add_row(vec![
            Cell::new(&key.id),
            Cell::new(plain(&key.name)),
            Cell::new(if key.all_tenants { "all".to_owned() } else { out.tenant(key.tenant) }),
            Cell::new(plain(&key.user)),
            Cell::new(key.rights),
            Cell::new(state),
            Cell::new(key.last_used_at.map(|at| out.time(at, now)).unwrap_or_default()),
        ]);
    }
    out.print_table(table, 1)
}

async fn revoke(backend: &dyn Backend, ids: &[String], out: &Out) -> Result {
    for id in ids {
        if !backend.revoke_key(id).await? {
            return Err(CliError::NotFound(format!("there is no API key with the id `{}`", id.escape_debug())));
        }
        if !out.wants_json() {
            out.line(format_args!("{id} is revoked"))?;
        }
    }
    if out.wants_json() {
        return out.json(&json!({ "revoked": ids }));
    }
    Ok(())
}

/// Prints a link that opens the dashboard once.
pub(crate) async fn login(global: &Global, out: &Out) -> Result {
    let link = backend::login_link(global).await?;
    if out.wants_json() {
        return out.json(&json!({ "login": link }));
    }
    out.say("this link opens the dashboard once, on this machine:");
    out.line(link)
}

/// Adds, lists, pauses, resumes and removes webhooks.
pub(crate) async fn webhooks(global: &Global, backend: &dyn Backend, command: WebhookCommand, out: &Out) -> Result {
    match command {
        WebhookCommand::Add { to, events, handler } => {
            let added = backend.add_webhook(&to, &events, handler.as_deref()).await;
            if added.as_ref().is_err_and(|error| error.code() == "handler_not_found") {
                out.say("without --handler the webhook gets events of every handler; for a new handler, start its node first");
            }
            let (webhook, secret) = added?;
            if out.wants_json() {
                return out.json(&json!({ "webhook": webhook, "secret": secret }));
            }
            out.say(format_args!(
                "added webhook {}; the secret that signs its requests is shown only now:",
                webhook.id
            ));
            out.line(secret)
        }
        WebhookCommand::List => list_webhooks(global, backend, out).await,
        WebhookCommand::Pause { id } => set_paused(backend, &id, true, out).await,
        WebhookCommand::Resume { id } => set_paused(backend, &id, false, out).await,
        WebhookCommand::Remove { id } => {
            if !backend.remove_webhook(&id).await? {
                return Err(no_webhook(&id));
            }
            if out.wants_json() {
                return out.json(&json!({ "removed": id }));
            }
            out.line(format_args!("{id} is removed"))
        }
    }
}

async fn set_paused(backend: &dyn Backend, id: &str, paused: bool, out: &Out) -> Result {
    if !backend.pause_webhook(id, paused).await? {
        return Err(no_webhook(id));
    }
    if out.wants_json() {
        return out.json(&json!({ "webhook": id, "paused": paused }));
    }
    out.line(format_args!("{id} is {}", if paused { "paused" } else { "resumed" }))
}

fn no_webhook(id: &str) -> CliError {
    CliError::NotFound(format!("there is no webhook with the id `{}`", id.escape_debug()))
}

async fn list_webhooks(global: &Global, backend: &dyn Backend, out: &Out) -> Result {
    let webhooks = backend.webhooks().await?;
    if out.wants_json() {
        return out.json(&json!({ "webhooks": webhooks }));
    }
    if webhooks.is_empty() {
        out.say(format_args!("no webhooks{}", global.whose()));
        return Ok(());
    }
    let mut table = out.table(&["ID", "TENANT", "EVENTS", "HANDLER", "ADDED", "STATE", "URL"]);
    for hook in webhooks {
        let events = hook.events.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        table.add_row(vec![
            Cell::new(&hook.id),
            Cell::new(out.tenant(hook.tenant)),
            Cell::new(if events.is_empty() { "all".to_owned() } else { events }),
            Cell::new(hook.handler.as_deref().map(plain).unwrap_or_default()),
            Cell::new(show_time(hook.created_at)),
            Cell::new(if hook.paused { "paused" } else { "on" }),
            Cell::new(plain(&hook.url)),
        ]);
    }
    out.print_table(table, 6)
}
