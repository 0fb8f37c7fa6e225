//! Steers the whole: pause, resume. Called by `commands::run`. Every act is in the audit log with the
//! name of whoever ran the command.

use serde_json::json;

use crate::args::{PauseArgs, ResumeArgs};
use crate::backend::Backend;
use crate::error::{CliError, Result};
use crate::output::{Out, plain};

/// Pauses everything, a handler or a tenant.
pub(crate) async fn pause(backend: &dyn Backend, args: &PauseArgs, out: &Out) -> Result {
    let target = args.target.target()?;
    let paused = backend.pause(&target, &args.reason, args.force).await;
    if paused.as_ref().is_err_and(|error| error.code() == "handler_not_found") {
        out.say(format_args!("use --force to pause it anyway, for future jobs"));
    }
    paused?;
    if out.wants_json() {
        let pause = backend.pauses().await?.into_iter().find(|pause| pause.target == target);
        return out.json(&json!({ "target": target.name(), "pause": pause }));
    }
    out.line(format_args!("{} is paused", plain(&target.name())))?;
    let resume = target.name().replacen(':', " ", 1);
    out.say(format_args!("running jobs continue; end the pause with `windlass resume {resume}`"));
    Ok(())
}

/// Ends a pause.
pub(crate) async fn resume(backend: &dyn Backend, args: &ResumeArgs, out: &Out) -> Result {
    let target = args.target.target()?;
    if !backend.resume(&target).await? {
        return Err(CliError::NotFound(format!("{} is not paused", plain(&target.name()))));
    }
    if out.wants_json() {
        return out.json(&json!({ "target": target.name(), "resumed": true }));
    }
    out.line(format_args!("{} is resumed", plain(&target.name())))
}
