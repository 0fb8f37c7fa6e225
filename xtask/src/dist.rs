//! `cargo xtask dist`: what people get who do not compile. Builds the stripped binary of the profile `dist`, writes its manual
//! pages and completions, the root file system of the container image, an archive and checksums, and runs the binary with an
//! empty environment, as a machine without Rust does. Called by people who make a release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::step::pass;

/// Shells that completions are written for, with the name under which each looks for them.
const SHELLS: [(&str, &str); 3] = [("bash", "windlass.bash"), ("zsh", "_windlass"), ("fish", "windlass.fish")];

pub(crate) fn run(root: &Path) -> Result<bool> {
    let binary = build(root)?;
    let version = said(alone(&binary).arg("--version"))?;
    let version = version.split_whitespace().nth(1).context("`windlass --version` names a version")?.to_owned();
    let name = format!("windlass-{version}-{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let out = target(&binary)?.join("release-files");
    let files = out.join(&name);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("empty {}", out.display()))?;
    }
    place(&binary, &files.join("bin/windlass"))?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(root.join(file), files.join(file)).with_context(|| format!("copy {file}"))?;
    }
    let pages = files.join("share/man/man1");
    fs::create_dir_all(&pages)?;
    pass(alone(&binary).arg("man").arg(&pages))?;
    let completions = files.join("share/completions");
    fs::create_dir_all(&completions)?;
    for (shell, file) in SHELLS {
        fs::write(completions.join(file), said(alone(&binary).args(["completions", shell]))?)?;
    }
    let archive = format!("{name}.tar.gz");
    pass(tar(&out, "0").args(["--create", "--gzip", "--file", &archive, &name]))?;
    // What the Dockerfile copies into the image: the program, and a directory for a SQLite file that its user may write.
    let image = out.join("rootfs");
    place(&binary, &image.join("usr/local/bin/windlass"))?;
    fs::create_dir_all(image.join("data"))?;
    pass(tar(&out, "0").args(["--create", "--file", "rootfs.tar", "--directory", "rootfs", "usr"]))?;
    pass(tar(&out, IMAGE_USER).args([
        "--append",
        "--file",
        "rootfs.tar",
        "--mode=750",
        "--directory",
        "rootfs",
        "data",
    ]))?;
    let sums = said(Command::new("sha256sum").current_dir(&out).args([&archive, "rootfs.tar"]))?;
    fs::write(out.join("SHA256SUMS"), &sums)?;
    try_archive(&out, &archive, &name)?;
    println!("{sums}{}", out.display());
    Ok(true)
}

/// The user of the container image, which owns its data.
const IMAGE_USER: &str = "65532";

/// Packs in an order, with times and owners, that do not depend on the machine: the same files give the same checksum.
fn tar(directory: &Path, owner: &str) -> Command {
    let mut tar = Command::new("tar");
    tar.current_dir(directory).args(["--sort=name", "--mtime=@0", "--numeric-owner"]);
    tar.arg(format!("--owner={owner}")).arg(format!("--group={owner}"));
    tar
}

/// Does what somebody does who has downloaded the files: checks the sums, unpacks, looks for what is promised, runs it.
fn try_archive(out: &Path, archive: &str, name: &str) -> Result<()> {
    pass(Command::new("sha256sum").current_dir(out).args(["--check", "--strict", "SHA256SUMS"]))?;
    let place = tempfile::tempdir()?;
    pass(Command::new("tar").current_dir(place.path()).args(["--extract", "--gzip", "--file"]).arg(out.join(archive)))?;
    let files = place.path().join(name);
    for file in ["share/man/man1/windlass.1", "share/man/man1/windlass-up.1", "LICENSE-MIT"] {
        ensure!(files.join(file).is_file(), "{archive} has no {file}");
    }
    for (_, file) in SHELLS {
        let script = fs::read_to_string(files.join("share/completions").join(file))?;
        ensure!(script.contains("windlass"), "{file} does not complete windlass");
    }
    try_it(&files.join("bin/windlass"))?;
    try_it(&out.join("rootfs/usr/local/bin/windlass"))
}

/// Builds the binary of a profile that takes its time over speed and size.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    pass(cargo.current_dir(root).args(["build", "--locked", "--profile", "dist", "--package", "windlass-cli"]))?;
    let own = std::env::current_exe().context("find the path of xtask")?;
    let target = own.ancestors().nth(2).context("xtask lies in a target directory")?;
    Ok(target.join("dist").join(format!("windlass{}", std::env::consts::EXE_SUFFIX)))
}

fn target(binary: &Path) -> Result<PathBuf> {
    Ok(binary.parent().context("a program lies in a directory")?.to_owned())
}

/// The program without anything of this environment: no path, no home, no variable of a toolchain.
fn alone(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    command.env_clear();
    command
}

/// Runs the program with an empty environment: a job is stored in a new file and found again.
fn try_it(binary: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let db = format!("sqlite:{}", dir.path().join("jobs.db").display());
    let windlass = |args: &[&str]| {
        let mut command = alone(binary);
        command.current_dir(dir.path()).arg("--db").arg(&db).args(args);
        command
    };
    pass(&mut windlass(&["migrate"]))?;
    let id = said(&mut windlass(&["-q", "submit", "mail.send", "{\"to\": \"ada\"}"]))?;
    let shown = said(&mut windlass(&["show", id.trim()]))?;
    ensure!(shown.contains("mail.send"), "the job is not found again: {shown}");
    Ok(())
}

fn place(binary: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file lies in a directory")?)?;
    fs::copy(binary, to).with_context(|| format!("write {}", to.display()))?;
    Ok(())
}

/// What a command prints.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
