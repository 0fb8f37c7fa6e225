//! Follows one job until it has ended: a bar on a terminal, a line for each change in a pipe, an object with --json. Called
//! by `commands::run`; `submit --wait` waits the same way. Never changes the job.

use std::time::Duration;

use futures_util::StreamExt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use windlass::{JobError, JobId, Status};

use crate::args::WatchArgs;
use crate::backend::{Backend, View};
use crate::commands::jobs::shown_output;
use crate::error::{CliError, Result};
use crate::output::{Out, plain};

/// How often the bar moves while nothing is heard: the eye takes what stands still for stuck.
const STEADY: Duration = Duration::from_millis(120);

/// Watches, and fails if the job does.
pub(crate) async fn watch(backend: &dyn Backend, args: &WatchArgs, out: &Out) -> Result {
    let id = args.id;
    let view = if out.wants_json() {
        until_ended(backend, id, args.timeout, |view| out.json(&view_json(id, view))).await?
    } else if out.is_terminal() {
        let handler = backend.job(id).await?.handler;
        let bar = Bar::new(&handler, out);
        until_ended(backend, id, args.timeout, |view| {
            bar.show(view);
            Ok(())
        })
        .await?
    } else {
        until_ended(backend, id, args.timeout, |view| out.line(line(view))).await?
    };
    if !out.wants_json() && view.status == Status::Succeeded {
        let output = view.output.as_ref().map_or_else(|| "null".to_owned(), shown_output);
        out.line(format_args!("succeeded: {}", plain(&output)))?;
    }
    judge(id, view)
}

/// Follows a job to its end and hands on each change.
pub(crate) async fn until_ended(
    backend: &dyn Backend,
    id: JobId,
    at_most: Option<Duration>,
    mut each: impl FnMut(&View) -> Result,
) -> Result<View> {
    let follow = async {
        let mut views = backend.watch(id).await?;
        while let Some(view) = views.next().await {
            let view = view?;
            each(&view)?;
            if view.status.is_terminal() {
                return Ok(view);
            }
        }
        Err(CliError::Unavailable(format!("no more events arrive for job {id}; the job continues")))
    };
    match at_most {
        None => follow.await,
        Some(at_most) => match tokio::time::timeout(at_most, follow).await {
            Ok(ended) => ended,
            Err(_) => Err(windlass::Error::Timeout(format!("job {id}")).into()),
        },
    }
}

/// Whether the job did what it was to do.
pub(crate) fn judge(id: JobId, view: View) -> Result {
    if view.status == Status::Succeeded {
        return Ok(());
    }
    let error = view.error.unwrap_or_else(|| JobError::terminal(view.status.as_str(), "the job did not succeed"));
    Err(windlass::Error::JobFailed { job: id, status: view.status, error: Box::new(error) }.into())
}

fn view_json(id: JobId, view: &View) -> serde_json::Value {
    let mut value = json!(view);
    value["id"] = json!(id);
    value
}

/// A change in one line.
fn line(view: &View) -> String {
    let progress = view.progress.as_ref().filter(|_| view.status == Status::Running);
    match (progress, &view.error) {
        (Some(progress), _) => format!("{} {:.0} % {}", view.status, progress.percent, plain(&progress.message)),
        (None, Some(error)) if view.status != Status::Succeeded => {
            format!("{} {}", view.status, plain(&error.to_string()))
        }
        _ => view.status.to_string(),
    }
}

/// A bar on the terminal, gone when dropped: what remains is the last line.
struct Bar(ProgressBar);

impl Bar {
    fn new(handler: &str, out: &Out) -> Bar {
        // On stderr, as all talk: what a job returned is the data.
        let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr());
        let template = "{spinner} {prefix}  {bar:30}  {pos:>3} %  {wide_msg}";
        let template =
            if out.has_color() { template.replace("{bar:30}", "{bar:30.cyan/dim}") } else { template.into() };
        let style = ProgressStyle::with_template(&template).expect("the template is a constant");
        bar.set_style(style.progress_chars("━━─"));
        bar.set_prefix(plain(handler));
        bar.enable_steady_tick(STEADY);
        Bar(bar)
    }

    fn show(&self, view: &View) {
        if let Some(progress) = &view.progress {
            self.0.set_position(progress.percent.clamp(0.0, 100.0) as u64);
        }
        self.0.set_message(match &view.progress {
            Some(progress) if view.status == Status::Running => plain(&progress.message),
            _ => line(view),
        });
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
