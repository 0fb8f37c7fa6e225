//! What a run of the matrix leaves for people and programs: `report.md`, `report.json`, and a picture of what happened in
//! each failed row. Called when rows have ended. Judges nothing: rows and the checker have.

mod timeline;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::check::{Facts, Violation};
use crate::history::History;
pub use timeline::timeline;

/// Everything about one run of the matrix.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed that everything random came from.
    pub seed: u64,
    /// `short`, `full` or `soak`.
    pub profile: String,
    /// How long it all took.
    pub duration_ms: u64,
    /// Every row that was asked for, in order.
    pub rows: Vec<RowResult>,
}

/// What became of one row on one store.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RowResult {
    /// `F17`.
    pub id: String,
    /// What is done to the system, in a few words.
    pub title: String,
    /// `P`, `N` or `W`.
    pub tier: String,
    /// `postgres` or `sqlite`; empty for a row that waits.
    pub store: String,
    /// The row's own seed, from the run's.
    pub seed: u64,
    /// Whether nothing was broken and every criterion was met.
    pub passed: bool,
    /// What the row waits for, if the feature it needs does not exist.
    pub waiting: Option<String>,
    /// Faults that were brought about.
    pub faults: u64,
    /// What happened, in numbers.
    pub facts: Facts,
    /// Promises that were broken.
    pub violations: Vec<Violation>,
    /// What the row wants besides, with what was measured.
    pub criteria: Vec<Criterion>,
    /// Why the row could not be run to its end.
    pub error: Option<String>,
    /// How long it took.
    pub duration_ms: u64,
    /// What was done when, line by line.
    pub schedule: Vec<String>,
}

/// Something a row wants besides the invariants.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Criterion {
    /// What is wanted.
    pub what: String,
    /// What was found.
    pub found: String,
    /// Whether it is as wanted.
    pub met: bool,
}

impl RowResult {
    /// Sets `passed` from everything that can speak against it.
    #[must_use]
    pub fn judged(mut self) -> RowResult {
        let broken = !self.violations.is_empty() || self.error.is_some();
        self.passed = self.waiting.is_none() && !broken && self.criteria.iter().all(|criterion| criterion.met);
        self
    }

    /// Whether it was run and something was wrong.
    pub fn failed(&self) -> bool {
        self.waiting.is_none() && !self.passed
    }

    /// The name of its picture.
    pub fn picture(&self) -> String {
        format!("{}-{}.svg", self.id, self.store)
    }
}

impl Report {
    /// Whether no row failed.
    pub fn passed(&self) -> bool {
        !self.rows.iter().any(RowResult::failed)
    }

    /// The facts of all rows together.
    pub fn facts(&self) -> Facts {
        let mut all = Facts::default();
        for row in &self.rows {
            all.add(&row.facts);
        }
        all
    }

    /// Writes `report.md` and `report.json` into a directory, which is made if need be.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let json = serde_json::to_string_pretty(self).context("write the report as JSON")?;
        for (name, text) in [("report.md", self.markdown(dir)), ("report.json", json + "\n")] {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// The report for people. Shows the pictures that are in `dir`.
    pub fn markdown(&self, dir: &Path) -> String {
        let mut text = String::new();
        self.verdict(&mut text);
        self.table(&mut text);
        for row in self.rows.iter().filter(|row| row.failed()) {
            self.failure(row, dir, &mut text);
        }
        self.waiting(&mut text);
        text
    }

    fn verdict(&self, text: &mut String) {
        let count = |which: fn(&RowResult) -> bool| self.rows.iter().filter(|row| which(row)).count();
        let (passed, failed) = (count(|row| row.passed), count(RowResult::failed));
        let waiting = count(|row| row.waiting.is_some());
        let faults: u64 = self.rows.iter().map(|row| row.faults).sum();
        let facts = self.facts();
        let _ = writeln!(text, "# Faults: {failed} failed, {passed} passed, {waiting} waiting\n");
        let _ = writeln!(
            text,
            "Seed {}, profile {}, {}. {} faults; {} jobs submitted, {} lost; {} ends of attempts accepted, {} of them from \
             stale fences; {} recoveries, the longest {}.\n",
            self.seed,
            self.profile,
            time(self.duration_ms * 1000),
            thousands(faults),
            thousands(facts.submitted),
            thousands(facts.lost),
            thousands(facts.accepted),
            thousands(facts.accepted_stale),
            thousands(facts.recoveries),
            time(facts.longest_recovery_us),
        );
    }

    fn table(&self, text: &mut String) {
        let run: Vec<_> = self.rows.iter().filter(|row| row.waiting.is_none()).collect();
        if run.is_empty() {
            return;
        }
        text.push_str("| row | store | result | faults | jobs | unknown | fenced | longest recovery | time | what |\n");
        text.push_str("|---|---|---|--:|--:|--:|--:|--:|--:|---|\n");
        for row in run {
            let recovery = match row.facts.longest_recovery_us {
                0 => "–".to_owned(),
                longest => time(longest),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {recovery} | {} | {} |",
                row.id,
                row.store,
                if row.passed { "passed" } else { "**failed**" },
                thousands(row.faults),
                thousands(row.facts.submitted),
                thousands(row.facts.unknown),
                thousands(row.facts.fenced),
                time(row.duration_ms * 1000),
                cell(&row.title),
            );
        }
        text.push('\n');
    }

    fn failure(&self, row: &RowResult, dir: &Path, text: &mut String) {
        /// More of them say no more; all are in the JSON.
        const SHOWN: usize = 10;
        let _ = writeln!(text, "## {} on {}: {}\n", row.id, row.store, row.title);
        let _ = writeln!(text, "Run it again with `cargo xtask faults --seed {} --only {}`.\n", self.seed, row.id);
        if let Some(error) = &row.error {
            let _ = writeln!(text, "- could not be run to its end: {error}");
        }
        for violation in row.violations.iter().take(SHOWN) {
            let _ = writeln!(text, "- **{}** {}", violation.invariant, violation.text);
        }
        if row.violations.len() > SHOWN {
            let _ = writeln!(text, "- and {} more in `report.json`", row.violations.len() - SHOWN);
        }
        for criterion in row.criteria.iter().filter(|criterion| !criterion.met) {
            let _ = writeln!(text, "- wanted: {}; found: {}", criterion.what, criterion.found);
        }
        if dir.join(row.picture()).exists() {
            let _ = writeln!(text, "\n![What happened in {}]({})", row.id, row.picture());
        }
        if !row.schedule.is_empty() {
            let _ = writeln!(text, "\n```text\n{}\n```", row.schedule.join("\n"));
        }
        text.push('\n');
    }

    fn waiting(&self, text: &mut String) {
        let waiting: Vec<_> = self.rows.iter().filter_map(|row| Some((row, row.waiting.as_ref()?))).collect();
        if waiting.is_empty() {
            return;
        }
        text.push_str("## Waiting for what they test\n\n| row | store | what | waits for |\n|---|---|---|---|\n");
        for (row, reason) in waiting {
            let _ = writeln!(text, "| {} | {} | {} | {} |", row.id, row.store, cell(&row.title), cell(reason));
        }
    }
}

/// Draws what happened in a row into the report's directory, and answers where.
pub fn draw(dir: &Path, row: &RowResult, history: &History) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let path = dir.join(row.picture());
    fs::write(&path, timeline(row, history)).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// A time for people, from microseconds.
fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{} ms", us / 1_000),
        1_000_000..60_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ => format!("{} min {} s", us / 60_000_000, us / 1_000_000 % 60),
    }
}

fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A text that does not break its table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        let times = [900, 2_500, 1_240_000, 331_000_000].map(time);
        assert_eq!(times, ["900 µs", "2 ms", "1.2 s", "5 min 31 s"]);
    }
}
