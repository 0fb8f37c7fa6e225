//! Changes one waiting job, and submits a job again as a new one. Called by `commands::run`. What may be changed is
//! decided in the library.

use serde_json::json;
use windlass::{Edit, Limits, Payload, Start};

use crate::args::{CloneArgs, EditArgs, RescheduleArgs};
use crate::backend::Backend;
use crate::commands::submit::read_input;
use crate::error::{CliError, Result};
use crate::output::Out;
use windlass::text::show_time;

/// Lets a waiting job start at another time.
pub(crate) async fn reschedule(backend: &dyn Backend, args: &RescheduleArgs, out: &Out) -> Result {
    let Some(start) = args.start.start() else {
        return Err(CliError::Usage("give the new start with --delay or --at".to_owned()));
    };
    change(backend, args.id, Edit::new().start(start), out).await
}

/// Changes whatever is named.
pub(crate) async fn edit(backend: &dyn Backend, args: &EditArgs, out: &Out) -> Result {
    let mut edit = Edit::new();
    edit.priority = args.priority;
    edit.start = if args.now { Some(Start::Now) } else { args.start.start() };
    if let Some(input) = &args.input {
        edit.input = Some(read_payload(input)?);
    }
    if edit.is_empty() {
        return Err(CliError::Usage(
            "give at least one change: --input, --priority, --delay, --at or --now".to_owned(),
        ));
    }
    change(backend, args.id, edit, out).await
}

async fn change(backend: &dyn Backend, id: windlass::JobId, edit: Edit, out: &Out) -> Result {
    backend.edit(id, &edit).await?;
    let job = backend.job(id).await?;
    if out.wants_json() {
        return out.json(&json!({ "id": id, "edited": true, "job": job }));
    }
    let when = job.run_at.filter(|_| edit.start.is_some()).map(|at| format!(", due {}", show_time(at)));
    out.line(format_args!("{id} is {}, with priority {}{}", job.status, job.priority.0, when.unwrap_or_default()))
}

/// Submits a job again as a new one.
pub(crate) async fn clone(backend: &dyn Backend, args: &CloneArgs, out: &Out) -> Result {
    let input = args.input.as_deref().map(read_payload).transpose()?;
    let new = backend.clone_job(args.id, input).await?;
    if out.wants_json() {
        return out.json(&json!({ "id": new, "of": args.id }));
    }
    out.line(new)
}

/// An input as it was given, in a file, or on stdin.
fn read_payload(given: &str) -> Result<Payload> {
    let text = read_input(Some(given))?;
    Ok(Payload::check("input", text.get(), Limits::default().payload_bytes)?)
}
