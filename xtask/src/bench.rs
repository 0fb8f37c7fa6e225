//! `cargo xtask bench --peers`: starts the program that measures Windlass and other job queues with the same work. All
//! that it does is in `bench/`; it is a program of its own so that this one stays small.

use std::process::Command;

use anyhow::Result;

use crate::step::{Verdict, pass};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build and measure Windlass and its peers, and write one table with plots (about 80 minutes for all).
    #[arg(long, required = true)]
    peers: bool,
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
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
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
