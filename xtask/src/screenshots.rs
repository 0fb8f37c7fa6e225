//! `cargo xtask screenshots`: every page of the dashboard in light, dark and phone width, taken by the walk of the browser
//! tests. Called by people who want to look at it, or to renew the pictures of the documentation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use windlass_testkit::servers::{ChromeDriver, SCREENSHOTS_VAR};

use crate::step::{Verdict, pass};

/// The pictures that the documentation shows.
const SHOWN: [&str; 4] = ["overview-light.png", "overview-dark.png", "job-dark.png", "failures-phone.png"];

/// Where pictures go.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The directory for the pictures [default: target/screenshots]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Copy those that the documentation shows into docs/images.
    #[arg(long)]
    docs: bool,
}

/// Takes them; false if a page is not right.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    let directory = arguments.out.clone().unwrap_or_else(|| root.join("target/screenshots"));
    fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
    let directory = fs::canonicalize(&directory)?;
    ChromeDriver::install()?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["test", "--package", "windlass-server", "--test", "browser", "--", "--nocapture"]);
    // Of the scenarios only the walk over all pages.
    cargo.env("WINDLASS_SCENARIOS", "every_page").env(SCREENSHOTS_VAR, &directory);
    if pass(&mut cargo)? != Verdict::Passed {
        return Ok(false);
    }
    println!("the pictures are in {}", directory.display());
    if arguments.docs {
        let images = root.join("docs/images");
        fs::create_dir_all(&images).context("make docs/images")?;
        for name in SHOWN {
            fs::copy(directory.join(name), images.join(name)).with_context(|| format!("copy {name}"))?;
            println!("docs/images/{name}");
        }
    }
    Ok(true)
}
