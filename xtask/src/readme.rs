//! Follows the first steps of a client's README word for word, as a newcomer does: in a directory beside a checkout, against
//! a running server. Called by `clients`. Knows no client: blocks for a shell are run, the others are saved as they say.
//! Reads the fenced blocks of a page, also for `guide`.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::server::Server;
use crate::step::said_within;

/// How long all steps may take: they fetch packages from a registry.
const PATIENCE: Duration = Duration::from_secs(300);
/// The line that starts a server, which has been started already when the steps are followed.
const START: &str = "windlass up";
/// The line with the address that a server has when nothing else listens there.
const ADDRESS: &str = "export WINDLASS_URL=http://127.0.0.1:7878";

/// Follows the steps in `client`, a directory of the repository, with the given program. They must print `wanted`.
pub(crate) fn follow(client: &Path, windlass: &Path, wanted: &str) -> Result<()> {
    let place = tempfile::tempdir().context("make a directory beside a checkout")?;
    let name = client.file_name().context("a client has a name")?;
    copy(client, &place.path().join("windlass/clients").join(name))?;
    let app = place.path().join("app");
    fs::create_dir(&app).context("make a directory for the steps")?;
    // Where `up` keeps its data when it is started there.
    let server = Server::start_in(windlass, &app.join("windlass-data"))?;
    let text = fs::read_to_string(client.join("README.md")).context("read the README")?;
    let steps = read(&text)?;
    for (file, code) in &steps.files {
        fs::write(app.join(file), code).with_context(|| format!("save {file}"))?;
    }
    let script = place.path().join("steps.sh");
    fs::write(&script, steps.script(&server.url)?).context("save the steps")?;
    let mut shell = Command::new("sh");
    shell.arg("-ex").arg(&script).current_dir(&app).env("PATH", path_with(windlass)?);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"WINDLASS_")) {
        shell.env_remove(name);
    }
    // A profile of whoever runs this would name another place.
    shell.env("WINDLASS_CONFIG", place.path().join("profiles.toml"));
    println!("$ the first steps of {}", client.join("README.md").display());
    let said = said_within(shell, PATIENCE).with_context(|| format!("the server said:\n{}", server.log()))?;
    ensure!(said.contains(wanted), "the first steps did not print {wanted:?}:\n{said}");
    Ok(())
}

/// What a README tells to do.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    /// Files to save, with their names.
    files: Vec<(String, String)>,
    /// What to type, in order.
    typed: String,
}

impl Steps {
    /// What is run: all that is typed, but the server is there already, at its own address.
    fn script(&self, url: &str) -> Result<String> {
        let count = |start: &str| self.typed.lines().filter(|line| line.starts_with(start)).count();
        ensure!(count(START) == 1 && count(ADDRESS) == 1, "the steps start one server and name its address once");
        let lines = self.typed.lines().filter(|line| !line.starts_with(START));
        Ok(lines.map(|line| line.replace(ADDRESS, &format!("export WINDLASS_URL={url}")) + "\n").collect())
    }
}

/// Takes the blocks: `sh` is typed, any other is saved under the name that the line before it gives in backticks.
fn read(text: &str) -> Result<Steps> {
    let mut steps = Steps::default();
    for Block { language, text, before } in blocks(text) {
        if language == "sh" {
            steps.typed += &text;
            continue;
        }
        let name = before.split('`').nth(1);
        let name = name.with_context(|| format!("the line before a block of {language} names its file: {before}"))?;
        steps.files.push((name.to_owned(), text));
    }
    Ok(steps)
}

/// A fenced block of a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    /// What the opening fence says, such as `rust`.
    pub(crate) language: &'a str,
    /// What is between the fences, each line with its end.
    pub(crate) text: String,
    /// The last line before it that is not empty.
    pub(crate) before: &'a str,
}

/// The fenced blocks of a page, in order.
pub(crate) fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            before = if line.is_empty() { before } else { line };
            continue;
        };
        let text = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
        blocks.push(Block { language, text, before });
    }
    blocks
}

/// The path of programs with the one that users have installed.
fn path_with(windlass: &Path) -> Result<OsString> {
    let own = windlass.parent().context("windlass lies in a directory")?.to_owned();
    let others = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&others))).context("make a path of programs")
}

/// Copies the files of a fresh checkout, without what builds have left.
fn copy(from: &Path, to: &Path) -> Result<()> {
    const LEFT_BY_BUILDS: [&str; 5] = ["node_modules", "dist", "build", "__pycache__", ".mypy_cache"];
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry.with_context(|| format!("list {}", from.display()))?;
        let name = entry.file_name();
        let left = |text: &str| LEFT_BY_BUILDS.contains(&text) || text.ends_with(".egg-info");
        match (name.to_str().is_some_and(left), entry.file_type()?.is_dir()) {
            (true, _) => {}
            (false, true) => copy(&entry.path(), &to.join(&name))?,
            (false, false) => {
                fs::copy(entry.path(), to.join(&name)).with_context(|| format!("copy {}", entry.path().display()))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Install:\n\n```sh\nnpm install x\n```\n\nSave this as `first.mjs`:\n\n```js\nlet a = 1;\n\nlet b;\n```\n\n\
                        ```sh\nwindlass up   # elsewhere\nexport WINDLASS_URL=http://127.0.0.1:7878\nnode first.mjs\n```\n";

    #[test]
    fn blocks_are_typed_or_saved() {
        let steps = read(TEXT).expect("it reads");
        assert_eq!(steps.files, [("first.mjs".to_owned(), "let a = 1;\n\nlet b;\n".to_owned())]);
        let script = steps.script("http://127.0.0.1:1").expect("it starts a server");
        assert_eq!(script, "npm install x\nexport WINDLASS_URL=http://127.0.0.1:1\nnode first.mjs\n");
    }

    #[test]
    fn a_block_without_a_file_and_steps_without_a_server_are_refused() {
        assert!(read("Look:\n\n```js\n1\n```\n").is_err());
        assert!(Steps::default().script("http://127.0.0.1:1").is_err());
    }
}
