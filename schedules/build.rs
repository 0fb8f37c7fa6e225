//! Copies the code of windlass-core for the tests of this crate, with what it takes from the system replaced by what the
//! scheduler controls (`src/simulated.rs`), and with places where a test may switch a mistake on. The code itself knows
//! nothing of this. A place that is not found stops the build: then the code has changed and this list must follow.

use std::fs;
use std::path::{Path, PathBuf};

/// What stands for the system in the copy.
const SIMULATED: [(&str, &str); 8] = [
    ("tokio::", "crate::simulated::"),
    ("std::sync::atomic", "crate::simulated::atomic"),
    ("std::time::", "crate::simulated::clock::"),
    ("std::thread", "crate::simulated::thread"),
    ("parking_lot::", "crate::simulated::locks::"),
    ("foldhash::", "crate::simulated::maps::"),
    ("rand::random", "crate::simulated::random"),
    ("#[cfg(test)]", "#[cfg(any())]"),
];

/// Bounds that are changed, so that few jobs reach them and two writers compete; and one that time, which passes here as
/// the scheduler likes, must not reach: file, text, replacement.
const BOUNDS: [(&str, &str, &str); 4] = [
    ("life/submitter.rs", "const JOBS_PER_WRITE: usize = 1_000;", "pub(crate) const JOBS_PER_WRITE: usize = 6;"),
    ("memory/mod.rs", "fn writers(&self) -> usize {\n        1", "fn writers(&self) -> usize {\n        2"),
    ("life/finish.rs", "const FINISHES_PER_WRITE: usize = 2_000;", "pub(crate) const FINISHES_PER_WRITE: usize = 3;"),
    (
        "service.rs",
        "LAST_WRITES: Duration = Duration::from_secs(10);",
        "LAST_WRITES: Duration = Duration::from_secs(1 << 30);",
    ),
];

/// Mistakes that a test can switch on: file, text, replacement.
const SABOTAGES: [(&str, &str, &str); 5] = [
    (
        "life/submitter.rs",
        "next = waiting.recv() => next,",
        "next = async {
            let next = waiting.recv().await;
            // Taken, but lost if the patience ends before it is handed over.
            if crate::simulated::is(crate::simulated::Sabotage::TakesBeforeItKeeps) {
                crate::simulated::switch().await;
            }
            next
        } => next,",
    ),
    (
        "life/finish.rs",
        "let none = self.unsaved.none.notified();",
        "if crate::simulated::is(crate::simulated::Sabotage::LooksBeforeItSubscribes) {
            if self.unsaved.jobs.load(Ordering::Acquire) == 0 {
                return;
            }
            self.unsaved.none.notified().await;
            continue;
        }
        let none = self.unsaved.none.notified();",
    ),
    (
        "service.rs",
        "worker.finisher().flush().await;\n        };",
        "if !crate::simulated::is(crate::simulated::Sabotage::LeavesWithoutSaving) {
                worker.finisher().flush().await;
            }
        };",
    ),
    // The same one: leaving early shows only while a save takes its time.
    (
        "life/finish.rs",
        "let saved = self.supervisor.run_once(\"finish\", self.store.finish(group.node, finishes)).await;",
        "if crate::simulated::is(crate::simulated::Sabotage::LeavesWithoutSaving) {
            for _ in 0..100 {
                crate::simulated::switch().await;
            }
        }
        let saved = self.supervisor.run_once(\"finish\", self.store.finish(group.node, finishes)).await;",
    ),
    (
        "operate/lookup.rs",
        "find(|record| record.id == id)",
        "find(|record| record.id == id || crate::simulated::is(crate::simulated::Sabotage::AnswersWithTheFirst))",
    ),
];

fn main() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/windlass-core/src");
    let to =
        PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names a directory for what is built")).join("core");
    println!("cargo::rerun-if-changed={}", from.display());
    println!("cargo::rerun-if-changed=build.rs");
    // What was copied before may have moved since.
    if to.exists() {
        fs::remove_dir_all(&to).expect("the directory of built things can be written to");
    }
    copy(&from, &to, Path::new(""));
}

fn copy(from: &Path, to: &Path, below: &Path) {
    fs::create_dir_all(to.join(below)).expect("the directory of built things can be written to");
    for entry in fs::read_dir(from.join(below)).expect("windlass-core is part of this repository") {
        let path = below.join(entry.expect("a directory can be read to its end").file_name());
        if from.join(&path).is_dir() {
            copy(from, to, &path);
        } else {
            let text = fs::read_to_string(from.join(&path)).expect("the code is text");
            fs::write(to.join(&path), adapt(&path, text)).expect("the directory of built things can be written to");
        }
    }
}

fn adapt(path: &Path, mut text: String) -> String {
    for (file, place, replacement) in BOUNDS.iter().chain(&SABOTAGES) {
        if path == Path::new(file) {
            let found = text.matches(place).count();
            assert_eq!(found, 1, "`{place}` is {found} times in {file}: the list in schedules/build.rs must follow");
            text = text.replace(place, replacement);
        }
    }
    for (system, simulated) in SIMULATED {
        text = text.replace(system, simulated);
    }
    if path.starts_with("memory") {
        text = calls_take_time(&text);
    }
    if path == Path::new("lib.rs") {
        // Included in the middle of a file, where a text about the whole file may not stand.
        text = text.replace("//!", "//");
    }
    text
}

/// Each call of the store becomes a place where others go on, and may fail.
fn calls_take_time(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        lines.push(line.to_owned());
        let name = line.strip_prefix("    async fn ").and_then(|rest| rest.split_once('(')).map(|(name, _)| name);
        if let Some(name) = name.filter(|_| line.ends_with('{') && line.contains("-> Result<")) {
            lines.push(format!("        crate::simulated::store_call(\"{name}\").await?;"));
            match name {
                "submit" => lines.push("        crate::simulated::wrote(\"submit\", submit.jobs.len());".into()),
                "finish" => lines.push("        crate::simulated::wrote(\"finish\", finishes.len());".into()),
                _ => {}
            }
        }
    }
    lines.join("\n")
}
