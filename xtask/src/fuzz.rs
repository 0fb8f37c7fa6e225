//! `cargo xtask fuzz`: builds the fuzz targets with a nightly compiler and runs each for a while from its corpus. Called
//! by people and by the full tier of `test`. What a target finds is left in `fuzz/artifacts`; nothing is added to the
//! corpus by itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::step::{Verdict, pass, works};

/// What to fuzz.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each target runs.
    #[arg(long, value_name = "N", default_value_t = SECONDS)]
    seconds: u32,
    /// Which targets; all if none is named.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

impl Default for Arguments {
    fn default() -> Self {
        Arguments { seconds: SECONDS, targets: Vec::new() }
    }
}

/// Long enough to come back to what the corpus covers and to try a few hundred thousand variations of it.
const SECONDS: u32 = 10;

/// What the fuzzer needs to see which way an input takes. No address sanitizer: the parsers have no unsafe code.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Runs the targets; says so where there is no nightly compiler.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<Verdict> {
    if !works(nightly("rustc").arg("--version")) {
        return Ok(Verdict::Skipped("no nightly compiler is installed (`rustup toolchain install nightly`)".into()));
    }
    let fuzz = root.join("fuzz");
    let known = targets(&fuzz)?;
    for target in &arguments.targets {
        ensure!(known.contains(target), "there is no target {target}; known are {}", known.join(", "));
    }
    let host = host()?;
    // Named, so that build scripts and macros are built without the flags.
    let mut build = nightly("cargo");
    build.current_dir(&fuzz).args(["build", "--release", "--bins", "--target", &host]).env("RUSTFLAGS", FLAGS);
    pass(&mut build).context("build the fuzz targets, which need a C++ compiler besides a nightly one")?;
    let wanted = if arguments.targets.is_empty() { &known } else { &arguments.targets };
    for target in wanted {
        println!("-- {target}");
        let program = fuzz.join("target").join(&host).join("release").join(target);
        let found =
            || format!("the input is in fuzz/artifacts/{target}; put it into fuzz/corpus/{target} with its fix");
        pass(&mut fuzzer(&fuzz, &program, target, arguments.seconds)?).with_context(found)?;
    }
    Ok(Verdict::Passed)
}

/// One target: new inputs go to a directory that is not committed, the corpus is only read.
fn fuzzer(fuzz: &Path, program: &Path, target: &str, seconds: u32) -> Result<Command> {
    let (found, artifacts) = (fuzz.join("found").join(target), fuzz.join("artifacts").join(target));
    for directory in [&found, &artifacts] {
        std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    }
    let mut command = Command::new(program);
    command.current_dir(fuzz).arg(&found).arg(fuzz.join("corpus").join(target));
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-artifact_prefix={}/", artifacts.display()));
    // An input that takes seconds is a failure as well; what is longer than this is refused before it is parsed.
    command.args([
        "-timeout=5",
        "-max_len=6000",
        "-rss_limit_mb=2048",
        "-verbosity=0",
        "-print_funcs=0",
        "-print_final_stats=1",
    ]);
    Ok(command)
}

/// The targets are the files in `fuzz_targets`.
fn targets(fuzz: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for file in std::fs::read_dir(fuzz.join("fuzz_targets")).context("list the fuzz targets")? {
        let path: PathBuf = file.context("list the fuzz targets")?.path();
        names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// A program of the nightly toolchain, free of what cargo says to this one.
fn nightly(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", program]);
    for (name, _) in std::env::vars_os() {
        let inherited = name.as_encoded_bytes();
        if inherited.starts_with(b"CARGO_") && !inherited.starts_with(b"CARGO_HOME") || inherited == b"RUSTUP_TOOLCHAIN"
        {
            command.env_remove(name);
        }
    }
    command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTFLAGS");
    command
}

fn host() -> Result<String> {
    let output = nightly("rustc").arg("-vV").output().context("ask rustc for the host")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names its host")?.to_owned())
}
