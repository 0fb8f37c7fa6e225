//! `cargo xtask bench`: with `--peers` starts the program that measures Windlass and other job queues with the same work;
//! all that it does is in `bench/`, so that this one stays small. With `--check` compares Windlass with its floors.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::floors;
use crate::step::{Verdict, pass};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build and measure Windlass and its peers, and write one table with plots (about 80 minutes for all).
    #[arg(long, required_unless_present = "check")]
    peers: bool,
    /// Measure the build of the profile `dist` and fail where its ratio to the raw statements is below bench/floors.json.
    #[arg(long, conflicts_with = "peers")]
    check: bool,
    /// Only these peers, by parts of their names.
    #[arg(long, value_name = "NAME,…")]
    only: Option<String>,
    /// Only these benches: bulk, enqueue-16, enqueue-64, drain, latency, held.
    #[arg(long, value_name = "BENCH,…")]
    benches: Option<String>,
    /// How often every run is repeated.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Fewer jobs and shorter runs, to see that all works.
    #[arg(long)]
    quick: bool,
    /// Where the results go. By default `bench/results` for a whole measurement, `bench/target/results` for a part.
    #[arg(long, value_name = "DIR")]
    out: Option<String>,
}

/// Runs it; false if it failed.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    if arguments.check {
        return floors::check(root);
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["run", "--quiet", "--package", "windlass-bench", "--bin", "peers", "--"]);
    cargo.args(["--repeats", &arguments.repeats.to_string()]);
    for (option, value) in [("--only", &arguments.only), ("--benches", &arguments.benches), ("--out", &arguments.out)] {
        cargo.args(value.iter().flat_map(|value| [option, value]));
    }
    if arguments.quick {
        cargo.arg("--quick");
    }
    pass(&mut cargo).map(|verdict| verdict == Verdict::Passed)
}
