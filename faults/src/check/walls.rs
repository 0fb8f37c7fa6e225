//! Tenants see nothing of each other: I17, in what was written down, in the database, and in captured output.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use uuid::Uuid;

use super::index::Index;
use super::{Found, Violation};

/// I17. Whose a job is, is the same to the caller, the row, the handler, the input's canary and every reader.
pub(super) fn check(index: &Index<'_>, found: &mut Found) {
    for (job, life) in &index.lives {
        let stored = life.job.map(|job| job.tenant);
        for start in &life.starts {
            let names = [start.canary, stored].into_iter().flatten();
            if let Some(other) = names.into_iter().find(|tenant| *tenant != start.tenant) {
                let text = format!("the handler of job {job} saw tenant {}, and it is {other}'s", start.tenant);
                found.add("I17", *job, start.at, text);
            }
        }
        for seen in &life.seen {
            if let Some(scope) = seen.scope
                && scope != seen.tenant
            {
                found.add(
                    "I17",
                    *job,
                    seen.at,
                    format!("tenant {scope} was shown job {job} of tenant {}", seen.tenant),
                );
            }
            if let Some(stored) = stored
                && seen.tenant != stored
            {
                found.add("I17", *job, seen.at, format!("job {job} of {stored} was shown as {}'s", seen.tenant));
            }
        }
        if let Some(row) = life.job
            && let Some(canary) = row.canary
            && canary != row.tenant
        {
            found.add("I17", *job, None, format!("job {job} of {} carries the canary of {canary}", row.tenant));
        }
        for call in life.calls.iter().filter_map(|call| index.calls.get(call)) {
            if let (Some(stored), Some((_, _, at))) = (stored, call.acknowledged())
                && call.asked.tenant != stored
            {
                let text = format!("a submit of {} was answered with job {job} of {stored}", call.asked.tenant);
                found.add("I17", *job, at, text);
            }
        }
    }
}

/// I17 over files of captured output, such as logs, metrics and pages. A file (or a directory of files) whose name
/// contains a tenant's id is that tenant's, and may hold no canary of another; any other file may hold none at all.
pub fn check_outputs(dir: &Path, canaries: &[(Uuid, String)]) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    let mut files = Vec::new();
    list(dir, &mut files, 0)?;
    for path in files {
        let name = path.strip_prefix(dir).unwrap_or(&path).display().to_string();
        let foreign: Vec<_> = canaries.iter().filter(|(tenant, _)| !name.contains(&tenant.to_string())).collect();
        let file = fs::File::open(&path).with_context(|| format!("read {}", path.display()))?;
        for (number, line) in BufReader::new(file).split(b'\n').enumerate() {
            let line = line.with_context(|| format!("read {}", path.display()))?;
            let text = String::from_utf8_lossy(&line);
            for (tenant, canary) in foreign.iter().filter(|(_, canary)| text.contains(canary.as_str())) {
                let text = format!("{name} line {} holds the canary `{canary}` of tenant {tenant}", number + 1);
                violations.push(Violation { invariant: "I17", job: None, text, at: None });
            }
        }
    }
    Ok(violations)
}

/// Deeper than any output is kept.
const DEEPEST: usize = 8;

fn list(dir: &Path, files: &mut Vec<PathBuf>, depth: usize) -> Result<()> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        entries.push(entry?.path());
    }
    entries.sort();
    for path in entries {
        if path.is_dir() && depth < DEEPEST {
            list(&path, files, depth + 1)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}
