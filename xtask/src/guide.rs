//! The guide: each chapter of `docs/guide` has one program among the examples, shows pieces of it and says what it prints.
//! Called by `examples`, which runs the programs and asks here whether they printed what their chapters say. Never runs
//! anything itself.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::examples::{self, Example};
use crate::readme::blocks;

/// Where the chapters are: `NN-some-name.md` is the chapter of the example `guide_NN_some_name`.
const DIRECTORY: &str = "docs/guide";
/// The table of contents, which has no program.
const CONTENTS: &str = "README.md";
/// How the names of the chapters' programs begin.
const PROGRAM: &str = "guide_";
/// Stands in what a chapter says is printed for what differs from run to run.
const VARIES: char = '…';

/// Every chapter with its program.
#[derive(Debug, Default)]
pub(crate) struct Guide {
    chapters: Vec<Chapter>,
    contents: String,
}

#[derive(Debug, Default)]
struct Chapter {
    /// The name of its file.
    file: String,
    text: String,
    /// The source of its program; none if no example has its name.
    program: Option<String>,
}

impl Guide {
    /// Reads the chapters and their programs.
    pub(crate) fn read(root: &Path) -> Result<Guide> {
        let examples = examples::all(root)?;
        let mut guide = Guide::default();
        for entry in fs::read_dir(root.join(DIRECTORY)).context("list the guide")? {
            let path = entry.context("list the guide")?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            if file == CONTENTS {
                guide.contents = text;
                continue;
            }
            let source = examples.iter().find(|example| example.name == program_of(&file)).map(|example| &example.path);
            let program = source.map(fs::read_to_string).transpose().context("read the program of a chapter")?;
            guide.chapters.push(Chapter { file, text, program });
        }
        let findings = guide.check(&examples);
        if !findings.is_empty() {
            bail!("the guide differs from its programs:\n{}", findings.join("\n"));
        }
        Ok(guide)
    }

    /// What is wrong with the guide.
    fn check(&self, examples: &[Example]) -> Vec<String> {
        let mut findings: Vec<String> = self.chapters.iter().flat_map(Chapter::check).collect();
        let is_shown = |name: &str| self.chapters.iter().any(|chapter| program_of(&chapter.file) == name);
        let programs = examples.iter().map(|example| &example.name).filter(|name| name.starts_with(PROGRAM));
        findings.extend(programs.filter(|name| !is_shown(name)).map(|name| format!("`{name}` has no chapter")));
        let is_listed = |chapter: &&Chapter| self.contents.contains(&format!("]({})", chapter.file));
        let unlisted = self.chapters.iter().filter(|chapter| !is_listed(chapter));
        findings.extend(unlisted.map(|chapter| format!("{CONTENTS} has no link to {}", chapter.file)));
        findings
    }

    /// Fails unless the program of a chapter has printed what the chapter says. Other examples may print anything.
    pub(crate) fn check_printed(&self, example: &str, said: &str) -> Result<()> {
        let Some(chapter) = self.chapters.iter().find(|chapter| program_of(&chapter.file) == example) else {
            return Ok(());
        };
        for block in blocks(&chapter.text).iter().filter(|block| block.language == "text") {
            if let Some(missing) = missing(&block.text, said) {
                bail!("{} says that it prints `{missing}`, but it printed:\n{said}", chapter.file);
            }
        }
        Ok(())
    }
}

impl Chapter {
    fn check(&self) -> Vec<String> {
        let name = program_of(&self.file);
        let Some(program) = &self.program else { return vec![format!("{}: no example is named `{name}`", self.file)] };
        let program = words(program);
        let blocks = blocks(&self.text);
        let of = |language: &'static str| blocks.iter().filter(move |block| block.language == language);
        let mut findings = Vec::new();
        for block in of("rust") {
            let piece = words(&block.text);
            if piece.is_empty() || !program.contains(&piece) {
                findings.push(format!("{}: this is not in its program:\n{}", self.file, block.text));
            }
        }
        for language in ["rust", "text"] {
            if of(language).next().is_none() {
                findings.push(format!("{}: it has no block of `{language}`", self.file));
            }
        }
        // Anything else that looks like Rust would not be compared with the program.
        for block in blocks.iter().filter(|block| block.language.starts_with("rust") && block.language != "rust") {
            findings.push(format!("{}: a block of `{}`; use `rust`", self.file, block.language));
        }
        if !self.text.contains(&format!("--example {name}\n")) {
            findings.push(format!("{}: it does not say how to run its program: `--example {name}`", self.file));
        }
        findings
    }
}

/// The name of a chapter's program.
fn program_of(file: &str) -> String {
    format!("{PROGRAM}{}", file.trim_end_matches(".md").replace('-', "_"))
}

/// A text with one space between its words: a piece of a program may be indented differently.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first line of `wanted` that `said` does not have, after the lines before it.
fn missing<'a>(wanted: &'a str, said: &str) -> Option<&'a str> {
    let mut said = said.lines();
    wanted.lines().find(|pattern| !said.any(|line| fits(line, pattern)))
}

/// Whether a line is the pattern, with anything where the pattern has [`VARIES`].
fn fits(line: &str, pattern: &str) -> bool {
    match pattern.split_once(VARIES) {
        None => line == pattern,
        Some((start, rest)) => line.strip_prefix(start).is_some_and(|line| {
            line.char_indices().map(|(at, _)| at).chain([line.len()]).any(|at| fits(&line[at..], rest))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM_TEXT: &str = "fn main() {\n    let a = 1;\n    println!(\"{a}\");\n}\n";

    fn chapter(text: &str) -> Chapter {
        let end = "\n```sh\ncargo run --example guide_01_one\n```\n";
        Chapter { file: "01-one.md".into(), text: format!("{text}{end}"), program: Some(PROGRAM_TEXT.into()) }
    }

    /// The guide as it is in the repository.
    #[test]
    fn every_piece_of_the_guide_is_in_its_program() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository");
        let guide = Guide::read(root).expect("nothing differs");
        assert!(!guide.chapters.is_empty());
    }

    #[test]
    fn pieces_may_be_indented_differently_but_not_changed() {
        let printed = "```text\n1\n```\n";
        assert!(chapter(&format!("```rust\nlet a = 1;\nprintln!(\"{{a}}\");\n```\n{printed}")).check().is_empty());
        for (wrong, says) in [
            ("```rust\nlet a = 2;\n```\n", "let a = 2;"),
            ("```rust\n\n```\n", "is not in its program"),
            ("```rust,ignore\nlet b = 1;\n```\n", "`rust,ignore`"),
            ("", "no block of `rust`"),
        ] {
            let findings = chapter(&format!("{wrong}{printed}")).check();
            assert!(findings.iter().any(|finding| finding.contains(says)), "{wrong:?}: {findings:?}");
        }
    }

    #[test]
    fn a_chapter_has_a_program_and_a_program_a_chapter() {
        let example = |name: &str| Example { name: name.into(), path: Default::default() };
        let text = "```rust\nlet a = 1;\n```\n```text\n1\n```\n";
        let guide = Guide { chapters: vec![chapter(text)], contents: "[One](01-one.md)".into() };
        assert!(guide.check(&[example("guide_01_one"), example("drain")]).is_empty());
        assert_eq!(guide.check(&[example("guide_02_two")]), ["`guide_02_two` has no chapter"]);
        let lost = Guide { chapters: vec![Chapter { program: None, ..chapter(text) }], ..Guide::default() };
        let findings = lost.check(&[]);
        assert_eq!(findings[0], "01-one.md: no example is named `guide_01_one`");
        assert_eq!(findings[1], "README.md has no link to 01-one.md");
    }

    #[test]
    fn what_is_printed_may_vary_only_where_the_chapter_says_so() {
        let guide = Guide { chapters: vec![chapter("```text\nfirst\njob … ended\n```\n")], ..Guide::default() };
        let check = |said: &str| guide.check_printed("guide_01_one", said).map_err(|error| error.to_string());
        assert_eq!(check("first\nmore\njob 7 of 8 ended\n"), Ok(()));
        assert!(check("job 7 ended\nfirst\n").is_err_and(|error| error.contains("`job … ended`")), "another order");
        assert!(check("first\njob 7 ended badly\n").is_err());
        assert!(check("the first\njob 7 ended\n").is_err_and(|error| error.contains("`first`")));
        assert!(guide.check_printed("drain", "").is_ok(), "no chapter says what it prints");
    }
}
