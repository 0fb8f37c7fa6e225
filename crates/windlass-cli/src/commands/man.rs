//! Writes the manual pages, made from the same words as `--help`. Called by `commands::run`.

use std::path::Path;

use clap::CommandFactory;
use serde_json::json;

use crate::args::Cli;
use crate::error::{CliError, Result};
use crate::output::Out;

/// One page for the program and one for each command, named as `man` expects them.
pub(crate) fn write(directory: &Path, out: &Out) -> Result {
    let failed = |error: std::io::Error| CliError::Failed(format!("cannot write to {}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(failed)?;
    let mut root = Cli::command();
    root.build();
    let mut pages = Vec::new();
    collect(&root, "windlass", &mut pages);
    for (name, page) in &pages {
        let mut text = Vec::new();
        clap_mangen::Man::new(page.clone()).title(name.to_uppercase()).render(&mut text)?;
        std::fs::write(directory.join(format!("{name}.1")), text).map_err(failed)?;
    }
    if out.wants_json() {
        let names: Vec<_> = pages.iter().map(|(name, _)| format!("{name}.1")).collect();
        return out.json(&json!({ "directory": directory, "pages": names }));
    }
    out.line(format_args!("{} pages are in {}", pages.len(), directory.display()))
}

fn collect(command: &clap::Command, name: &str, pages: &mut Vec<(String, clap::Command)>) {
    pages.push((name.to_owned(), command.clone()));
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        collect(child, &format!("{name}-{}", child.get_name()), pages);
    }
}
