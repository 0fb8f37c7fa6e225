//! The steps of a run: each is announced, timed and remembered, and the run ends with a line for each. Used by `test`.
//! Knows nothing about what a step does.

use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail};

/// Everything that a run has done so far.
pub(crate) struct Steps {
    keep_going: bool,
    strict: bool,
    done: Vec<(&'static str, Verdict, Duration)>,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It found nothing wrong.
    Passed,
    /// It found something wrong, or could not be carried out.
    Failed,
    /// It was left out, because of this.
    Skipped(String),
    /// A tool of a version that this repository names could not be installed. Left out, but for a strict run, which it fails.
    Uninstalled(String),
}

impl Steps {
    /// No steps yet. With `keep_going` a failed step does not stop the following ones; with `strict` a tool that could not
    /// be installed is a failure.
    pub(crate) fn new(keep_going: bool, strict: bool) -> Self {
        Steps { keep_going, strict, done: Vec::new() }
    }

    /// Carries out a step, unless an earlier one has failed and the run stops at the first failure.
    pub(crate) fn step(&mut self, name: &'static str, act: impl FnOnce() -> Result<Verdict>) {
        if self.failed() && !self.keep_going {
            self.done.push((name, Verdict::Skipped("an earlier step failed".into()), Duration::ZERO));
            return;
        }
        println!("==> {name}");
        let start = Instant::now();
        let verdict = act().unwrap_or_else(|error| {
            println!("{error:#}");
            Verdict::Failed
        });
        let verdict = match verdict {
            Verdict::Uninstalled(why) if self.strict => {
                println!("{why}");
                Verdict::Failed
            }
            verdict => verdict,
        };
        let took = start.elapsed();
        println!("==> {name}: {verdict} after {:.1} s\n", took.as_secs_f64());
        self.done.push((name, verdict, took));
    }

    /// Whether any step has failed.
    pub(crate) fn failed(&self) -> bool {
        self.done.iter().any(|(_, verdict, _)| *verdict == Verdict::Failed)
    }

    /// One line for each step, and one for all.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        for (name, verdict, took) in &self.done {
            text += &format!("{name:<12} {:>7.1} s  {verdict}\n", took.as_secs_f64());
        }
        let failed: Vec<&str> =
            self.done.iter().filter(|(_, verdict, _)| *verdict == Verdict::Failed).map(|(name, ..)| *name).collect();
        if failed.is_empty() { text + "all steps passed" } else { text + "failed steps: " + &failed.join(", ") }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Passed => f.write_str("passed"),
            Verdict::Failed => f.write_str("FAILED"),
            Verdict::Skipped(reason) | Verdict::Uninstalled(reason) => write!(f, "skipped: {reason}"),
        }
    }
}

/// Runs a command that speaks for itself; its failure is the step's.
pub(crate) fn pass(command: &mut Command) -> Result<Verdict> {
    let line = describe(command);
    println!("$ {line}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("run `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(Verdict::Passed)
}

/// How often a running program is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs a program that must end well within a time, and returns all that it has said.
pub(crate) fn said_within(mut command: Command, patience: Duration) -> Result<String> {
    // Into a file, because a pipe that nobody reads would block it.
    let file = tempfile::NamedTempFile::new().context("make a file for the output")?;
    let output = file.reopen().context("open the file for the output")?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = command.spawn().context("could not be started")?;
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            child.wait()?;
            break None;
        }
        thread::sleep(LOOK_EVERY);
    };
    let said = String::from_utf8_lossy(&fs::read(file.path()).unwrap_or_default()).into_owned();
    match status {
        Some(status) if status.success() => Ok(said),
        Some(status) => bail!("failed ({status}):\n{said}"),
        None => bail!("still ran after {patience:?} and was killed:\n{said}"),
    }
}

/// Whether a command can be run at all; what it says does not matter.
pub(crate) fn works(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn describe(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_run(keep_going: bool) -> (Vec<&'static str>, Steps) {
        let mut run = Vec::new();
        let mut steps = Steps::new(keep_going, false);
        steps.step("first", || Ok(Verdict::Passed));
        steps.step("second", || bail!("broken"));
        steps.step("third", || {
            run.push("third");
            Ok(Verdict::Passed)
        });
        (run, steps)
    }

    #[test]
    fn the_first_failure_ends_the_run() {
        let (run, steps) = names_run(false);
        assert!(run.is_empty());
        assert!(steps.failed());
        assert!(steps.summary().ends_with("skipped: an earlier step failed\nfailed steps: second"));
    }

    #[test]
    fn keep_going_runs_what_follows_a_failure() {
        let (run, steps) = names_run(true);
        assert_eq!(run, ["third"]);
        assert!(steps.failed());
    }

    #[test]
    fn a_skipped_step_is_not_a_failure() {
        let mut steps = Steps::new(false, true);
        steps.step("only", || Ok(Verdict::Skipped("not installed".into())));
        assert!(!steps.failed());
        assert!(steps.summary().ends_with("skipped: not installed\nall steps passed"));
    }

    /// The full tier promises that every check was made.
    #[test]
    fn a_tool_that_cannot_be_installed_fails_a_strict_run_only() {
        let run = |strict| {
            let mut steps = Steps::new(false, strict);
            steps.step("only", || Ok(Verdict::Uninstalled("no network".into())));
            steps.failed()
        };
        assert_eq!((run(false), run(true)), (false, true));
    }
}
