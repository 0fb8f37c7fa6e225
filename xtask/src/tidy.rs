//! `cargo xtask tidy`: refuses what no compiler refuses and every reader would trip over. The checks are pure functions
//! from a file to findings; only `run` reads the disk. Never changes a file.

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::house::House;

/// The largest file that belongs into a repository: more is data, which is made or fetched where it is needed.
const LARGEST_FILE: u64 = 1024 * 1024;
/// What the README promises to work from a clean clone.
const README_COMMANDS: [&str; 2] = ["cargo run --release -- up", "cargo xtask test"];

/// What no file may hold, with the reason. Written in two parts so that this file may.
const REFUSED_EVERYWHERE: [(&str, &str); 1] = [(concat!("FIX", "ME"), "fix it, or open an issue and name it")];

/// What no Rust file may hold, with the reason.
const REFUSED_IN_RUST: [(&str, &str); 4] = [
    (concat!("to", "do!("), "an unfinished path: finish it"),
    (concat!("unimpl", "emented!("), "an unfinished path: finish it"),
    (concat!("#[ig", "nore"), "a test that does not run proves nothing: repair or remove it"),
    (concat!("d", "bg!("), "a leftover of debugging"),
];

/// How the ids of requirements begin. Tests cite them and `docs/requirements.md` lists them; they say nothing to a user.
const REQUIREMENTS: [&str; 13] =
    ["API-", "BEY-", "CLU-", "ERR-", "FLW-", "HND-", "NFR-", "OPS-", "ORD-", "RUN-", "SEC-", "SUB-", "TIM-"];
/// Sources that hold tests only, though they lie beside sources that users read.
const SUITES: [&str; 2] = ["crates/windlass-testkit/src/conformance", "crates/windlass-testkit/src/behaviour"];

/// Directories of people, which exist on one machine only.
const HOMES: [&str; 2] = [concat!("/ho", "me/"), concat!("/ro", "ot/")];

/// Checks every file of the repository and prints what is wrong; fails if anything is.
pub(crate) fn run(root: &Path) -> Result<()> {
    let files = files(root)?;
    let mut findings = Vec::new();
    for path in &files {
        let full = root.join(path);
        // A file that is tracked but deleted in the work tree has nothing to check.
        let Ok(meta) = fs::symlink_metadata(&full) else { continue };
        if !meta.is_file() {
            continue;
        }
        if meta.len() > LARGEST_FILE {
            findings.push(Finding::new(path, 1, format!("{} bytes, at most {LARGEST_FILE} are allowed", meta.len())));
            continue;
        }
        let bytes = fs::read(&full).with_context(|| format!("read {}", path.display()))?;
        // What is not UTF-8 is not text: pictures and such.
        if let Ok(text) = String::from_utf8(bytes) {
            findings.extend(check(path, &text, &|target| root.join(target).exists()));
        }
    }
    if !files.iter().any(|path| path == Path::new("README.md")) {
        findings.push(Finding::new(Path::new("README.md"), 1, "there is none".into()));
    }
    let of_house = House::read(root)?.check();
    for finding in findings.iter().map(ToString::to_string).chain(of_house.iter().cloned()) {
        println!("{finding}");
    }
    let found = findings.len() + of_house.len();
    if found > 0 {
        bail!("{found} findings in {} files", files.len());
    }
    println!("{} files are tidy", files.len());
    Ok(())
}

/// Something wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    path: PathBuf,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &Path, line: usize, message: String) -> Self {
        Finding { path: path.to_owned(), line, message }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

/// What is wrong with one text file; `exists` answers for paths from the root of the repository.
fn check(path: &Path, text: &str, exists: &dyn Fn(&Path) -> bool) -> Vec<Finding> {
    let kind = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    let mut findings = Vec::new();
    let mut find = |line, message: String| findings.push(Finding::new(path, line, message));
    let mut shown_to_users = is_shown_to_users(path);
    for (number, line) in (1..).zip(text.lines()) {
        // Tests stand at the end of a file.
        let opens_tests = ["#[cfg(test)]", "#[cfg(all(test,"].iter().any(|cfg| line.trim_start().starts_with(cfg));
        shown_to_users &= !opens_tests;
        if let Some(id) = requirement_in_docs(line).filter(|_| shown_to_users) {
            find(number, format!("`{id}…` in documentation of users: say it in words, cite the id in the test"));
        }
        let in_rust: &[_] = if kind == "rs" { &REFUSED_IN_RUST } else { &[] };
        for (word, reason) in REFUSED_EVERYWHERE.iter().chain(in_rust) {
            if line.contains(word) {
                find(number, format!("`{word}`: {reason}"));
            }
        }
        for home in HOMES {
            if names_path(line, home) {
                find(number, format!("`{home}…` is a path of one machine"));
            }
        }
    }
    let first = text.lines().next().unwrap_or("");
    match kind {
        "rs" if !first.starts_with("//!") => find(1, "starts without `//!`: what it owns, who calls it".into()),
        "sql" if !first.starts_with("--") => find(1, "starts without `--`: what it does".into()),
        "md" => {
            for (number, target) in links(text) {
                if let Some(target) = relative(path, &target).filter(|target| !exists(target)) {
                    find(number, format!("link to `{}`, which does not exist", target.display()));
                }
            }
        }
        _ => {}
    }
    if path == Path::new("README.md") {
        for command in README_COMMANDS.iter().filter(|command| !text.contains(**command)) {
            find(1, format!("does not show `{command}`"));
        }
    }
    findings
}

/// Whether the doc comments of a file are read by users of a crate: all sources of crates but the tests.
fn is_shown_to_users(path: &Path) -> bool {
    let mut parts = path.components().map(|part| part.as_os_str().to_string_lossy());
    let is_source = parts.next().as_deref() == Some("crates") && parts.nth(1).as_deref() == Some("src");
    let is_test = path.ends_with("tests.rs") || SUITES.iter().any(|suite| path.starts_with(suite));
    is_source && !is_test && path.extension().is_some_and(|extension| extension == "rs")
}

/// The beginning of the id of a requirement that a doc comment names.
fn requirement_in_docs(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    let is_doc = line.starts_with("///") || line.starts_with("//!");
    let names = |id: &&str| {
        line.match_indices(*id).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + id.len()..].chars().next();
            !before.is_some_and(char::is_alphanumeric) && after.is_some_and(|c| c.is_ascii_digit())
        })
    };
    REQUIREMENTS.into_iter().find(names).filter(|_| is_doc)
}

/// Whether a line holds an absolute path that begins with `home`; one inside a URL or a longer path does not count.
fn names_path(line: &str, home: &str) -> bool {
    line.match_indices(home).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~}*>".contains(c))
    })
}

/// The targets of a Markdown text's links, with their lines. Code is left out.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    let mut fence: Option<&str> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => links.extend(links_in_line(trimmed).into_iter().map(|target| (number, target))),
        }
    }
    links
}

fn links_in_line(line: &str) -> Vec<String> {
    // Every second part lies between backticks.
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("_");
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let reference = prose.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim());
    inline.chain(reference).map(|target| target.trim_matches(['<', '>']).to_owned()).collect()
}

/// The path from the root of the repository that a link in `from` leads to; none if it leads elsewhere or into the same
/// file.
fn relative(from: &Path, target: &str) -> Option<PathBuf> {
    let path = target.split(['#', '?']).next().unwrap_or("");
    let is_url = target.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(|c| c.is_ascii_alphabetic()));
    if path.is_empty() || is_url {
        return None;
    }
    let start = if path.starts_with('/') { Path::new("") } else { from.parent().unwrap_or(Path::new("")) };
    let mut result = PathBuf::new();
    for component in start.join(path.trim_start_matches('/')).components() {
        match component {
            Component::ParentDir => _ = result.pop(),
            Component::Normal(name) => result.push(name),
            _ => {}
        }
    }
    Some(result)
}

/// The files of the repository: what git tracks or would track, or, where git cannot tell, all but what is built.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let git = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .stdin(Stdio::null())
        .output();
    if let Ok(output) = git
        && output.status.success()
    {
        let names = String::from_utf8(output.stdout).context("read the names of files")?;
        return Ok(names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect());
    }
    let mut files = Vec::new();
    walk(root, Path::new(""), &mut files)?;
    Ok(files)
}

fn walk(root: &Path, below: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(root.join(below)).with_context(|| format!("list {}", below.display()))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if !entry.file_type()?.is_dir() {
            files.push(path);
        } else if entry.file_name() != ".git" && path != Path::new("target") {
            walk(root, &path, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "//! Owns something.\n";

    /// The lines and messages found in `text` as the file `path`, when only `docs/there.md` exists beside it.
    fn check(path: &str, text: &str) -> Vec<(usize, String)> {
        let exists = |target: &Path| target == Path::new("docs/there.md");
        let findings = super::check(Path::new(path), text, &exists);
        findings.into_iter().map(|finding| (finding.line, finding.message)).collect()
    }

    fn refused(path: &str, text: &str, line: usize, word: &str) {
        let findings = check(path, text);
        assert!(matches!(&findings[..], [(at, message)] if *at == line && message.contains(word)), "{findings:?}");
    }

    #[test]
    fn leftovers_are_refused() {
        for (word, _) in REFUSED_IN_RUST.iter().chain(&REFUSED_EVERYWHERE) {
            refused("src/a.rs", &format!("{HEADER}fn a() {{}}\n    {word}\n"), 3, word);
        }
        refused("a.toml", &format!("# {}\n", REFUSED_EVERYWHERE[0].0), 1, REFUSED_EVERYWHERE[0].0);
        assert_eq!(check("notes.txt", REFUSED_IN_RUST[0].0), []);
    }

    #[test]
    fn paths_of_one_machine_are_refused() {
        for home in HOMES {
            refused("a.toml", &format!("dir = \"{home}me/work\"\n"), 1, home);
            assert_eq!(check("a.toml", &format!("url = \"https://example.com{home}page\"\n")), []);
        }
    }

    #[test]
    fn ids_of_requirements_stay_out_of_what_users_read() {
        let cites = format!("{HEADER}/// Stores a job ({}1).\nfn submit() {{}}\n", REQUIREMENTS[0]);
        refused("crates/a/src/b/c.rs", &cites, 2, REQUIREMENTS[0]);
        for fine in ["crates/a/src/b/tests.rs", "crates/a/tests/b.rs", "crates/windlass-testkit/src/behaviour/a.rs"] {
            assert_eq!(check(fine, &cites), [], "{fine}");
        }
        let in_a_test = format!("{HEADER}#[cfg(test)]\nmod tests {{\n    /// {}2.\n}}\n", REQUIREMENTS[0]);
        assert_eq!(check("crates/a/src/b.rs", &in_a_test), []);
        assert_eq!(check("crates/a/src/b.rs", &format!("{HEADER}/// RSA-{}\n", REQUIREMENTS[0])), []);
    }

    #[test]
    fn files_say_first_what_they_are() {
        refused("src/a.rs", "fn main() {}\n", 1, "//!");
        refused("src/empty.rs", "", 1, "//!");
        refused("sql/claim.sql", "SELECT 1;\n", 1, "--");
        assert_eq!(check("src/a.rs", HEADER), []);
        assert_eq!(check("sql/claim.sql", "-- Claims jobs.\nSELECT 1;\n"), []);
    }

    #[test]
    fn the_readme_shows_both_commands() {
        refused("README.md", "Run `cargo xtask test`.\n", 1, "cargo run --release -- up");
        assert_eq!(check("README.md", "`cargo xtask test`, `cargo run --release -- up`\n"), []);
        assert_eq!(check("crates/windlass/README.md", "Nothing.\n"), []);
    }

    #[test]
    fn links_lead_somewhere() {
        refused("docs/a.md", "\nSee [it](missing.md).\n", 2, "docs/missing.md");
        refused("docs/a.md", "[it]: ../missing.md\n", 1, "`missing.md`");
        refused("docs/decisions/a.md", "[a](../there.md) and [b](../../there.md#part \"title\")\n", 1, "`there.md`");
        for fine in [
            "[it](there.md#part)",
            "[it](/docs/there.md)",
            "[here](#part)",
            "[away](https://example.com/missing.md)",
            "`[code](missing.md)`",
            "```text\n[code](missing.md)\n```",
        ] {
            assert_eq!(check("docs/a.md", fine), [], "{fine}");
        }
    }
}
