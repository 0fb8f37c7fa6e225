//! Submits one job from the command line, and may wait for it. Called by `commands::run`. Makes the SQLite file if there
//! is none: a job may be stored before anything runs.

use std::io::Read;

use serde_json::json;
use serde_json::value::RawValue;
use windlass::store::Store;
use windlass::{JobId, JobService, SecurityContext, Status, SubmitOptions};

use crate::args::{Global, SubmitArgs};
use crate::commands::jobs::shown_output;
use crate::connect::{Place, caller, with_service};
use crate::error::{CliError, Result};
use crate::output::Out;

/// Stores the job, says so in the audit log, and waits if asked to.
pub(crate) async fn submit(global: &Global, place: &Place, args: SubmitArgs, out: &Out) -> Result {
    if global.all_tenants {
        return Err(CliError::invalid("all_tenants", "a job belongs to one tenant; name it with --tenant"));
    }
    let input = read_input(args.input.as_deref())?;
    if *place == Place::Memory {
        return Err(CliError::invalid("db", "memory: is gone with its process, and the job with it"));
    }
    let store = place.make().await?;
    let ctx = caller(global);
    with_service(global, store.clone(), async |service| {
        let submitted = service.submit_named(&ctx, &args.handler, &*input, options(&args)).await?;
        if !submitted.duplicate {
            let detail = Some(format!("handler {}", args.handler));
            service.audit(&ctx, "JOB_SUBMITTED", &submitted.id.to_string(), detail).await?;
        }
        warn_without_node(&*store, &args.handler, out).await?;
        if args.wait {
            return wait(service, &ctx, &args, submitted.id, submitted.duplicate, out).await;
        }
        if out.wants_json() {
            return out.json(&submitted);
        }
        if submitted.duplicate {
            out.say("a job with this key is there already; nothing was stored");
        }
        out.line(submitted.id)
    })
    .await
}

fn options(args: &SubmitArgs) -> SubmitOptions {
    let mut options = SubmitOptions::new();
    options.idempotency_key.clone_from(&args.key);
    options.priority = args.priority;
    options.ordering_key.clone_from(&args.ordering_key);
    options.tags.clone_from(&args.tags);
    options.correlation_id.clone_from(&args.correlation_id);
    options.queue.clone_from(&args.queue);
    options.spec.timeout = args.timeout;
    options.spec.expires_at = args.expires_at;
    match (args.delay, args.at) {
        (Some(delay), _) => options.delay(delay),
        (None, Some(at)) => options.run_at(at),
        (None, None) => options,
    }
}

/// The input as JSON text: given, in a file, or on stdin.
fn read_input(given: Option<&str>) -> Result<Box<RawValue>> {
    // One byte more than is accepted is enough to be refused, so a huge file is not read in full.
    let most = windlass::Limits::default().payload_bytes as u64 + 1;
    let text = match given {
        None => "null".to_owned(),
        Some("-") => {
            let mut text = String::new();
            let read = std::io::stdin().lock().take(most).read_to_string(&mut text);
            read.map_err(|error| CliError::invalid("input", format!("stdin cannot be read: {error}")))?;
            text
        }
        Some(given) => match given.strip_prefix('@') {
            None => given.to_owned(),
            Some(path) => {
                let mut text = String::new();
                let read = std::fs::File::open(path).and_then(|file| file.take(most).read_to_string(&mut text));
                read.map_err(|error| CliError::invalid("input", format!("{path} cannot be read: {error}")))?;
                text
            }
        },
    };
    if text.len() as u64 >= most {
        return Err(CliError::invalid("input", format!("more than {} bytes", most - 1)));
    }
    // A word without quotes is the usual slip, and the shell eats one pair.
    RawValue::from_string(text.trim().to_owned())
        .map_err(|error| CliError::invalid("input", format!("not JSON: {error} (text needs quotes: '\"text\"')")))
}

async fn warn_without_node(store: &dyn Store, handler: &str, out: &Out) -> Result {
    let nodes = store.nodes().await?;
    let able = nodes.iter().any(|node| node.info.capacity > 0 && node.info.handlers.iter().any(|id| id == handler));
    if !able {
        out.warn(format_args!("no live node has the handler `{handler}`; the job waits until one has"));
    }
    Ok(())
}

async fn wait(
    service: &JobService,
    ctx: &SecurityContext,
    args: &SubmitArgs,
    id: JobId,
    duplicate: bool,
    out: &Out,
) -> Result {
    out.say(format_args!("job {id} is stored; waiting for it"));
    let view = service.wait(ctx, id, args.wait_timeout).await?;
    if out.wants_json() {
        let ended = json!({
            "id": id, "duplicate": duplicate, "status": view.status, "output": view.output, "error": view.error,
        });
        out.json(&ended)?;
    } else if view.status == Status::Succeeded {
        out.line(view.output.as_ref().map_or_else(|| "null".to_owned(), shown_output))?;
    }
    if view.status == Status::Succeeded {
        return Ok(());
    }
    let error = view.error.unwrap_or_else(|| windlass::JobError::terminal(view.status.as_str(), "it did not succeed"));
    Err(windlass::Error::JobFailed { job: id, status: view.status, error: Box::new(error) }.into())
}
