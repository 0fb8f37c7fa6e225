//! Runs every example of the crates `windlass` and `windlass-handlers` as a reader of the documentation would: each must end well, soon, and
//! without leaving anything in the repository. Called by `test`, which has built them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use windlass_testkit::servers::PostgresServer;

use crate::step::{Verdict, said_within};

/// Where the examples are.
const DIRECTORIES: [&str; 2] = ["crates/windlass/examples", "crates/windlass-handlers/examples"];
/// How long one may run: an example shows something and ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// The variable with the URL of an empty database of the example's own, as services usually read it.
const DATABASE_VAR: &str = "DATABASE_URL";

/// Runs all of them, built into `built`, with what `prepare` adds.
pub(crate) fn run(
    root: &Path,
    built: &Path,
    postgres: &PostgresServer,
    prepare: impl Fn(Command) -> Command,
) -> Result<Verdict> {
    let mut names = Vec::new();
    for directory in DIRECTORIES {
        names.extend(self::names(&root.join(directory))?);
    }
    if names.is_empty() {
        return Ok(Verdict::Skipped(format!("{} hold none", DIRECTORIES.join(", "))));
    }
    let mut failed = Vec::new();
    for name in &names {
        let database = format!("example_{}", name.replace('-', "_"));
        postgres.create_database(&database)?;
        let mut command = prepare(Command::new(built.join(name)));
        command.env(DATABASE_VAR, postgres.url(&database));
        let start = Instant::now();
        match run_one(command) {
            Ok(()) => println!("{name}: ended well after {:.1} s", start.elapsed().as_secs_f64()),
            Err(error) => {
                println!("{name}: {error:#}");
                failed.push(name.as_str());
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} examples failed: {}", failed.len(), names.len(), failed.join(", "));
    }
    Ok(Verdict::Passed)
}

/// The examples cargo finds in a directory: a file each, or a directory with a `main.rs`.
fn names(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    if !directory.is_dir() {
        return Ok(names);
    }
    for entry in fs::read_dir(directory).context("list the examples")? {
        let path = entry.context("list the examples")?.path();
        let is_example = path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file();
        names.extend(path.file_stem().filter(|_| is_example).map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

fn run_one(mut command: Command) -> Result<()> {
    // A directory of its own takes the files it makes.
    let place = tempfile::tempdir().context("make a directory for an example")?;
    command.current_dir(place.path());
    said_within(command, PATIENCE).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_with_a_main_are_examples() {
        let place = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(place.path().join("service")).expect("make");
        fs::create_dir_all(place.path().join("data")).expect("make");
        for file in ["hello.rs", "notes.md", "service/main.rs"] {
            fs::write(place.path().join(file), "").expect("write");
        }
        assert_eq!(names(place.path()).expect("list"), ["hello", "service"]);
        assert!(names(&place.path().join("missing")).expect("no directory, no examples").is_empty());
    }

    #[test]
    fn an_example_that_fails_is_reported_with_what_it_said() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out of coffee >&2; exit 3"]);
        let error = run_one(command).expect_err("it fails").to_string();
        assert!(error.contains("exit status: 3") && error.contains("out of coffee"), "{error}");
    }
}
