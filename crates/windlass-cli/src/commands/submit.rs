//! Submits one job from the command line, and may wait for it, or many at once. Called by `commands::run`. Never creates a
//! database or a schema: `migrate` and `up` do.

use std::io::Read;

use serde_json::json;
use serde_json::value::RawValue;
use windlass::store::Submitted;
use windlass::{Status, SubmitOptions};

use crate::args::{Global, SubmitArgs};
use crate::backend::Backend;
use crate::commands::jobs::shown_output;
use crate::commands::watch;
use crate::error::{CliError, Result};
use crate::output::Out;

/// Stores the job, and waits if asked to.
pub(crate) async fn submit(global: &Global, backend: &dyn Backend, args: SubmitArgs, out: &Out) -> Result {
    if global.all_tenants {
        return Err(CliError::invalid("all_tenants", "a job belongs to one tenant; name it with --tenant"));
    }
    let input = read_input(args.input.as_deref())?;
    if args.many {
        return submit_many(backend, &args, &input, out).await;
    }
    let submitted = backend.submit(&args.handler, input, options(&args)).await?;
    warn_without_node(backend, &args.handler, out).await;
    if args.wait {
        return wait(backend, &args, submitted, out).await;
    }
    if out.wants_json() {
        return out.json(&submitted);
    }
    if submitted.duplicate {
        out.say("a job with this key already exists; nothing was stored");
    }
    out.line(submitted.id)
}

async fn submit_many(backend: &dyn Backend, args: &SubmitArgs, input: &RawValue, out: &Out) -> Result {
    let inputs: Vec<Box<RawValue>> = serde_json::from_str(input.get())
        .map_err(|_| CliError::invalid("input", "with --many the input must be a JSON array with one item per job"))?;
    let submitted = backend.submit_many(&args.handler, inputs, options(args)).await?;
    warn_without_node(backend, &args.handler, out).await;
    if out.wants_json() {
        return out.json(&json!({ "jobs": submitted }));
    }
    let duplicates = submitted.iter().filter(|submitted| submitted.duplicate).count();
    if duplicates > 0 {
        out.say(format_args!("{duplicates} of {} jobs already existed and were not stored again", submitted.len()));
    }
    submitted.iter().try_for_each(|submitted| out.line(submitted.id))
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
pub(crate) fn read_input(given: Option<&str>) -> Result<Box<RawValue>> {
    // One byte more than is accepted is enough to be refused, so a huge file is not read in full.
    let most = windlass::Limits::default().payload_bytes as u64 + 1;
    let text = match given {
        None => "null".to_owned(),
        Some("-") => {
            let mut text = String::new();
            let read = std::io::stdin().lock().take(most).read_to_string(&mut text);
            read.map_err(|error| CliError::invalid("input", format!("cannot read stdin: {error}")))?;
            text
        }
        Some(given) => match given.strip_prefix('@') {
            None => given.to_owned(),
            Some(path) => {
                let mut text = String::new();
                let read = std::fs::File::open(path).and_then(|file| file.take(most).read_to_string(&mut text));
                read.map_err(|error| CliError::invalid("input", format!("cannot read {path}: {error}")))?;
                text
            }
        },
    };
    if text.len() as u64 >= most {
        return Err(CliError::invalid("input", format!("longer than the maximum of {} bytes", most - 1)));
    }
    // A word without quotes is the usual slip, and the shell eats one pair.
    RawValue::from_string(text.trim().to_owned())
        .map_err(|error| CliError::invalid("input", format!("not JSON: {error} (text needs quotes: '\"text\"')")))
}

/// The job is stored, so whoever may not see the nodes is not told of a failure.
async fn warn_without_node(backend: &dyn Backend, handler: &str, out: &Out) {
    let Ok(nodes) = backend.nodes().await else { return };
    let able = nodes.iter().any(|node| node.info.capacity > 0 && node.info.handlers.iter().any(|id| id == handler));
    if !able {
        out.warn(format_args!("no live node has the handler `{handler}`; the job waits until one starts"));
    }
}

async fn wait(backend: &dyn Backend, args: &SubmitArgs, submitted: Submitted, out: &Out) -> Result {
    let Submitted { id, duplicate } = submitted;
    out.say(format_args!("job {id} is stored; waiting for it"));
    let view = watch::until_ended(backend, id, Some(args.wait_timeout), |_| Ok(())).await?;
    if out.wants_json() {
        let ended = json!({
            "id": id, "duplicate": duplicate, "status": view.status, "output": view.output, "error": view.error,
        });
        out.json(&ended)?;
    } else if view.status == Status::Succeeded {
        out.line(view.output.as_ref().map_or_else(|| "null".to_owned(), shown_output))?;
    }
    watch::judge(id, view)
}
