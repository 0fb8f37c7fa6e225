//! Runs every example of the crates that have some, as a reader of the documentation would: each must end well, soon, and
//! without leaving anything in the repository, and print what its chapter of the guide says. Called by `test`, which has
//! built them, and by itself: `cargo xtask examples`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use windlass_testkit::servers::{PostgresOptions, PostgresServer};

use crate::guide::Guide;
use crate::step::{Verdict, pass, said_within};

/// Where the examples are.
const DIRECTORIES: [&str; 3] =
    ["crates/windlass/examples", "crates/windlass-handlers/examples", "crates/windlass-server/examples"];
/// Examples that serve until they are stopped.
const ENDLESS: [&str; 1] = ["dashboard"];
/// How long one may run: an example shows something and ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// The variable with the URL of an empty database of the example's own, as services usually read it.
const DATABASE_VAR: &str = "DATABASE_URL";

/// A program that shows something.
#[derive(Debug)]
pub(crate) struct Example {
    pub(crate) name: String,
    /// The file with its `main`.
    pub(crate) path: PathBuf,
}

/// Builds all of them, and runs them with a server that ends with this run.
pub(crate) fn build_and_run(root: &Path) -> Result<bool> {
    let own = std::env::current_exe().context("find the path of xtask")?;
    let built = own.parent().context("xtask lies in a directory")?.join("examples");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    pass(cargo.current_dir(root).args(["build", "--workspace", "--all-features", "--examples"]))?;
    let postgres = PostgresServer::start(PostgresOptions::fleeting())?;
    run(root, &built, &postgres, |command| command).map(|verdict| verdict == Verdict::Passed)
}

/// Runs all of them, built into `built`, with what `prepare` adds.
pub(crate) fn run(
    root: &Path,
    built: &Path,
    postgres: &PostgresServer,
    prepare: impl Fn(Command) -> Command,
) -> Result<Verdict> {
    let guide = Guide::read(root)?;
    let examples = all(root)?;
    let mut failed = Vec::new();
    for Example { name, .. } in &examples {
        let database = format!("example_{}", name.replace('-', "_"));
        postgres.create_database(&database)?;
        let mut command = prepare(Command::new(built.join(name)));
        command.env(DATABASE_VAR, postgres.url(&database));
        let start = Instant::now();
        match run_one(command).and_then(|said| guide.check_printed(name, &said)) {
            Ok(()) => println!("{name}: ended well after {:.1} s", start.elapsed().as_secs_f64()),
            Err(error) => {
                println!("{name}: {error:#}");
                failed.push(name.as_str());
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} examples failed: {}", failed.len(), examples.len(), failed.join(", "));
    }
    Ok(Verdict::Passed)
}

/// The examples that end by themselves.
pub(crate) fn all(root: &Path) -> Result<Vec<Example>> {
    let mut examples = Vec::new();
    for directory in DIRECTORIES {
        examples.extend(in_directory(&root.join(directory))?);
    }
    examples.retain(|example| !ENDLESS.contains(&example.name.as_str()));
    Ok(examples)
}

/// The examples cargo finds in a directory: a file each, or a directory with a `main.rs`.
fn in_directory(directory: &Path) -> Result<Vec<Example>> {
    let mut examples = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))? {
        let entry = entry.context("list the examples")?.path();
        let main = entry.join("main.rs");
        let path = if main.is_file() { main } else { entry.clone() };
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name = entry.file_stem().context("an example has a name")?.to_string_lossy().into_owned();
            examples.push(Example { name, path });
        }
    }
    examples.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(examples)
}

fn run_one(mut command: Command) -> Result<String> {
    // A directory of its own takes the files it makes.
    let place = tempfile::tempdir().context("make a directory for an example")?;
    command.current_dir(place.path());
    said_within(command, PATIENCE)
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
        let found = in_directory(place.path()).expect("list");
        assert_eq!(found.iter().map(|example| example.name.as_str()).collect::<Vec<_>>(), ["hello", "service"]);
        assert!(found[1].path.ends_with("service/main.rs"));
    }

    #[test]
    fn an_example_that_fails_is_reported_with_what_it_said() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out of coffee >&2; exit 3"]);
        let error = run_one(command).expect_err("it fails").to_string();
        assert!(error.contains("exit status: 3") && error.contains("out of coffee"), "{error}");
    }
}
