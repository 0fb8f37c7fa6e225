//! Steers jobs and the whole: cancel, pause, resume. Called by `commands::run`. Every act is in the audit log with the
//! name of whoever ran the command.

use std::sync::Arc;

use serde_json::json;
use windlass::store::{CancelReply, Store};
use windlass::{JobId, OperatorRight};

use crate::args::{CancelArgs, Global, PauseArgs, ResumeArgs};
use crate::connect::{Place, caller, caller_of, with_service};
use crate::error::{CliError, Result};
use crate::output::{Out, plain};

/// Cancels each job by itself; what fails for one is said and does not keep the others.
pub(crate) async fn cancel(global: &Global, store: Arc<dyn Store>, args: &CancelArgs, out: &Out) -> Result {
    with_service(global, store.clone(), async |service| {
        let mut each = Each::new(out);
        for &id in &args.ids {
            let canceled = async {
                let ctx = caller_of(&*store, global, id).await?;
                Ok(service.cancel(&ctx, id, &args.reason).await?)
            };
            let said = canceled.await.map(|reply| match reply {
                CancelReply::Requested => ("requested", "it runs; its node has been asked to stop it"),
                CancelReply::AlreadyFinished(_) => ("canceled", "was canceled before"),
                _ => ("canceled", "canceled"),
            });
            each.report(id, said)?;
        }
        each.done("cancel")
    })
    .await
}

/// Says what became of each of several jobs, and remembers the first failure.
pub(crate) struct Each<'a> {
    out: &'a Out,
    results: Vec<serde_json::Value>,
    failed: Option<CliError>,
    failures: usize,
}

impl<'a> Each<'a> {
    pub(crate) fn new(out: &'a Out) -> Each<'a> {
        Each { out, results: Vec::new(), failed: None, failures: 0 }
    }

    /// One job: a word for programs and a sentence for people, or why it failed.
    pub(crate) fn report(&mut self, id: JobId, said: Result<(&str, &str)>) -> Result {
        match said {
            Ok((word, sentence)) => {
                self.results.push(json!({ "id": id, "result": word }));
                if !self.out.wants_json() {
                    self.out.line(format_args!("{id} {sentence}"))?;
                }
            }
            Err(error) => {
                let said = json!({ "code": error.code(), "message": error.to_string() });
                self.results.push(json!({ "id": id, "error": said }));
                self.failures += 1;
                // The first is told at the end, by whoever tells how the command ended.
                if self.failed.is_none() {
                    self.failed = Some(error);
                } else if !self.out.wants_json() {
                    self.out.error(&error);
                }
            }
        }
        Ok(())
    }

    /// Ends the report: fails if anything did, with the code of the first failure.
    pub(crate) fn done(self, verb: &str) -> Result {
        let asked = self.results.len();
        if self.out.wants_json() {
            self.out.json(&json!({ "results": self.results }))?;
        }
        match self.failed {
            None => Ok(()),
            Some(error) if asked == 1 => Err(error),
            Some(error) => {
                let message = format!("{error}; could not {verb} {} of {asked} jobs", self.failures);
                Err(CliError::Some(error.code(), message))
            }
        }
    }
}

/// Pauses everything, a handler or a tenant.
pub(crate) async fn pause(global: &Global, place: &Place, args: &PauseArgs, out: &Out) -> Result {
    let target = args.target.target()?;
    let store = place.write().await?;
    with_service(global, store, async |service| {
        service.pause(&caller(global), &target, &args.reason).await?;
        let pauses = service.operator(OperatorRight::assume()).pauses().await?;
        let pause = pauses.into_iter().find(|pause| pause.target == target);
        if out.wants_json() {
            return out.json(&json!({ "target": target.name(), "pause": pause }));
        }
        out.line(format_args!("{} is paused", plain(&target.name())))?;
        out.say(format_args!(
            "running jobs go on; end it with `windlass resume {}`",
            target.name().replacen(':', " ", 1)
        ));
        Ok(())
    })
    .await
}

/// Ends a pause.
pub(crate) async fn resume(global: &Global, place: &Place, args: &ResumeArgs, out: &Out) -> Result {
    let target = args.target.target()?;
    let store = place.write().await?;
    with_service(global, store, async |service| {
        if !service.resume(&caller(global), &target).await? {
            return Err(CliError::NotFound(format!("{} is not paused", plain(&target.name()))));
        }
        if out.wants_json() {
            return out.json(&json!({ "target": target.name(), "resumed": true }));
        }
        out.line(format_args!("{} is resumed", plain(&target.name())))
    })
    .await
}
