//! Saves, chooses, lists and removes profiles. Called by `commands::run`. Shows whether a profile has a key, never the key.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::path::Path;

use comfy_table::Cell;
use serde_json::json;

use crate::args::{Global, ProfileAddArgs, ProfileCommand};
use crate::connect::Place;
use crate::error::{CliError, Result};
use crate::output::Out;
use crate::profile::{Profile, Profiles};
use crate::secret::Secret;

/// A key is some hundred characters; more than this is something else.
const MOST_KEY_BYTES: u64 = 4_096;

/// Carries out one of the commands on the file at `path`. `flags` are the options as they were typed, without what the
/// environment or a profile would add.
pub(crate) fn run(flags: &Global, path: &Path, command: ProfileCommand, out: &Out) -> Result {
    let profiles = Profiles::load(path)?;
    match command {
        ProfileCommand::Add(args) => add(flags, profiles, path, &args, out),
        ProfileCommand::Use { name, .. } => choose(profiles, path, name, out),
        ProfileCommand::List => list(&profiles, out),
        ProfileCommand::Remove { name } => remove(profiles, path, &name, out),
    }
}

fn add(flags: &Global, mut profiles: Profiles, path: &Path, args: &ProfileAddArgs, out: &Out) -> Result {
    if flags.url.is_none() && flags.db.is_none() {
        return Err(CliError::Usage("name a server with --url or a database with --db".to_owned()));
    }
    if profiles.profiles.contains_key(&args.name) && !args.force {
        let message = format!("the profile `{}` already exists; replace it with --force", args.name);
        return Err(CliError::Some("conflict".to_owned(), message));
    }
    crate::backend::check_address(flags)?;
    let profile = Profile {
        url: flags.url.clone(),
        db: flags.db.clone(),
        tenant: flags.tenant.map(|tenant| tenant.to_string()),
        api_key: if flags.url.is_some() { read_key(args, out)? } else { None },
        key_file: flags.key_file.as_deref().map(std::path::absolute).transpose()?,
    };
    let has_key = profile.api_key.is_some();
    profiles.profiles.insert(args.name.clone(), profile);
    if args.choose {
        profiles.current = Some(args.name.clone());
    }
    profiles.save(path)?;
    if out.wants_json() {
        return out.json(&json!({ "profile": args.name, "api_key": has_key, "current": profiles.current }));
    }
    out.line(format_args!("saved {} in {}", args.name, path.display()))?;
    if flags.url.is_some() && !has_key {
        out.warn("the server will reject requests without an API key; to add one, save the profile again with --force");
    }
    Ok(())
}

/// The key from the environment, from stdin or from whoever sits at the terminal.
fn read_key(args: &ProfileAddArgs, out: &Out) -> Result<Option<Secret>> {
    let text = if args.api_key_stdin {
        let mut text = String::new();
        let read = std::io::stdin().lock().take(MOST_KEY_BYTES).read_to_string(&mut text);
        read.map_err(|error| CliError::invalid("api_key", format!("cannot read stdin: {error}")))?;
        text
    } else if let Some(key) = std::env::var("WINDLASS_API_KEY").ok().filter(|key| !key.is_empty()) {
        key
    } else if std::io::stdin().is_terminal() && !out.wants_json() {
        out.ask_secret("API key (empty for none): ")?
    } else {
        String::new()
    };
    let key = text.trim();
    if key.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(CliError::invalid("api_key", "the key must be one word"));
    }
    Ok((!key.is_empty()).then(|| Secret::new(key.to_owned())))
}

fn choose(mut profiles: Profiles, path: &Path, name: Option<String>, out: &Out) -> Result {
    if let Some(name) = &name {
        profiles.named(name)?;
    }
    profiles.current = name;
    profiles.save(path)?;
    if out.wants_json() {
        return out.json(&json!({ "current": profiles.current }));
    }
    match &profiles.current {
        Some(name) => out.line(format_args!("{name} is now the default profile")),
        None => out.line("there is no default profile now"),
    }
}

fn list(profiles: &Profiles, out: &Out) -> Result {
    let place = |profile: &Profile| match (&profile.url, &profile.db) {
        (Some(url), _) => url.clone(),
        // Without the password that may be in it.
        (None, Some(db)) => Place::parse(db).map_or_else(|error| error.to_string(), |place| place.describe()),
        (None, None) => String::new(),
    };
    let is_current = |name: &str| profiles.current.as_deref() == Some(name);
    if out.wants_json() {
        let shown = profiles.profiles.iter().map(|(name, profile)| {
            let shown = json!({
                "place": place(profile), "tenant": profile.tenant, "api_key": profile.api_key.is_some(),
                "key_file": profile.key_file, "current": is_current(name),
            });
            (name, shown)
        });
        return out.json(&json!({ "profiles": shown.collect::<BTreeMap<_, _>>() }));
    }
    if profiles.profiles.is_empty() {
        out.say("there are no profiles; save one with `windlass profile add`");
        return Ok(());
    }
    let mut table = out.table(&["NAME", "USED", "PLACE", "TENANT", "API KEY"]);
    for (name, profile) in &profiles.profiles {
        table.add_row(vec![
            Cell::new(name),
            Cell::new(if is_current(name) { "yes" } else { "" }),
            Cell::new(place(profile)),
            Cell::new(profile.tenant.as_deref().unwrap_or_default()),
            Cell::new(if profile.api_key.is_some() { "yes" } else { "" }),
        ]);
    }
    out.print_table(table, 2)
}

fn remove(mut profiles: Profiles, path: &Path, name: &str, out: &Out) -> Result {
    profiles.named(name)?;
    profiles.profiles.remove(name);
    profiles.current = profiles.current.take().filter(|current| current != name);
    profiles.save(path)?;
    if out.wants_json() {
        return out.json(&json!({ "removed": name }));
    }
    out.line(format_args!("removed {name}"))
}
