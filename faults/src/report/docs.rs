//! The table of `docs/FAULTS.md`: every row of the matrix with its last result. Written by `--docs`; a row that was not run
//! keeps the line it had. Nothing outside the two marks is touched.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{Report, RowResult, cell, time};
use crate::rows::{ROWS, State};

const BEGIN: &str = "<!-- results: written by `cargo xtask faults --docs docs/FAULTS.md` -->\n";
const END: &str = "<!-- end of results -->";
const HEAD: &str = "| row | tier | store | what happens | last result | seed | time |\n|---|---|---|---|---|--:|--:|\n";

/// Puts the results of a run into the page.
pub fn update(page: &Path, report: &Report) -> Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| format!("read {}", page.display()))?;
    let (before, rest) = text.split_once(BEGIN).context("the page has no place for results")?;
    let (table, after) = rest.split_once(END).context("the results have no end")?;
    let mut lines = known(table);
    for row in ROWS {
        let stores: Vec<&str> = match row.state {
            State::Waits(_) => vec![""],
            State::Runs(_) => row.stores.iter().map(|store| store.name()).collect(),
        };
        for store in stores {
            let key = (row.id.to_owned(), store.to_owned());
            let result = match (&row.state, lines.remove(&key)) {
                (State::Waits(reason), _) => format!("waits for {reason} | | |"),
                (State::Runs(_), Some(known)) => known,
                (State::Runs(_), None) => "not run yet | | |".to_owned(),
            };
            let head = format!("| {} | {:?} | {store} | {} | ", row.id, row.tier, cell(row.title));
            lines.insert(key, head + &result);
        }
    }
    for row in report.rows.iter().filter(|row| row.waiting.is_none()) {
        let line =
            lines.get_mut(&(row.id.clone(), row.store.clone())).context("a result of a row that is not there")?;
        *line = format!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            row.id,
            row.tier,
            row.store,
            cell(&row.title),
            result(row, &report.profile),
            report.seed,
            time(row.duration_ms * 1_000)
        );
    }
    let lines: String = lines.values().map(|line| format!("{line}\n")).collect();
    let page_text = format!("{before}{BEGIN}{HEAD}{lines}{END}{after}");
    std::fs::write(page, page_text).with_context(|| format!("write {}", page.display()))
}

/// The last three cells of each line that is there, by row and store.
fn known(table: &str) -> BTreeMap<(String, String), String> {
    let mut known = BTreeMap::new();
    for line in table.lines().filter(|line| line.starts_with("| F")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if let [id, _, store, _, result, seed, time] = cells[..] {
            known.insert((id.to_owned(), store.to_owned()), format!("{result} | {seed} | {time} |"));
        }
    }
    known
}

fn result(row: &RowResult, profile: &str) -> String {
    let jobs = row.facts.submitted;
    match row.passed {
        true => format!("passed ({profile}: {} faults, {jobs} jobs)", row.faults),
        false => format!("**failed** ({profile})"),
    }
}

/// Whether a page can take results, before hours are spent on them.
pub fn check(page: &Path) -> Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| format!("read {}", page.display()))?;
    ensure!(text.contains(BEGIN) && text.contains(END), "{} has no place for results", page.display());
    Ok(())
}
