//! The result in words: one table for people, with what is needed to repeat it, and one document for scripts. Pure;
//! called by `main`, which writes and prints what this returns.

use std::collections::BTreeMap;

use serde_json::json;

use crate::figures::{Run, Summary, is_windlass, metrics, summarise, times_better, windlass_on};
use crate::machine::{Machine, POSTGRES_SETTINGS};
use crate::plan::{Bench, MOST_JOBS, Peer, Store, drain_jobs, words};

/// Everything that was found out.
pub(crate) struct Results {
    pub(crate) date: String,
    pub(crate) command: String,
    pub(crate) repeats: usize,
    pub(crate) quick: bool,
    pub(crate) machine: Machine,
    pub(crate) postgres: String,
    pub(crate) peers: Vec<Measured>,
    pub(crate) runs: Vec<Run>,
}

/// A peer, and whether it could be built.
pub(crate) struct Measured {
    pub(crate) peer: &'static Peer,
    pub(crate) version: String,
    pub(crate) not_built: Option<String>,
}

impl Results {
    /// The figures of a bench, or why there are none.
    pub(crate) fn summary(&self, measured: &Measured, bench: Bench) -> Result<Summary, String> {
        if let Some(reason) = &measured.not_built {
            return Err(format!("does not build: {reason}"));
        }
        if let Some(reason) = crate::plan::left_out(measured.peer, bench) {
            return Err(reason.to_owned());
        }
        summarise(&self.runs, measured.peer.name, bench)
    }

    /// Windlass on the same kind of store, if it was measured.
    fn windlass(&self, store: Store, bench: Bench, metric: &str) -> Option<f64> {
        summarise(&self.runs, windlass_on(store), bench).ok()?.medians.get(metric).copied()
    }
}

/// The heading of each bench in the table.
fn heading(bench: Bench) -> &'static str {
    match bench {
        Bench::Bulk => "bulk /s",
        Bench::Enqueue16 => "one by one, 16 callers /s",
        Bench::Enqueue64 => "64 callers /s",
        Bench::Drain => "drain /s",
        Bench::Latency => "pickup p50 / p99 ms",
        Bench::Held => "held snapshot",
    }
}

/// The table: a row for each peer, in brackets how many times better Windlass does on the same kind of store.
pub(crate) fn table(results: &Results) -> String {
    let headings = Bench::ALL.map(heading).join(" | ");
    let mut text = format!("| peer | version | finished jobs | {headings} |\n|---|---|---|{}\n", "---:|".repeat(6));
    for measured in &results.peers {
        let cells = Bench::ALL.map(|bench| cell(results, measured, bench)).join(" | ");
        let name =
            if is_windlass(measured.peer) { format!("**{}**", measured.peer.name) } else { measured.peer.name.into() };
        text += &format!("| {name} | {} | {} | {cells} |\n", measured.version, measured.peer.finished);
    }
    text
}

fn cell(results: &Results, measured: &Measured, bench: Bench) -> String {
    let Ok(summary) = results.summary(measured, bench) else { return "–".to_owned() };
    let mark = if summary.unfinished > 0 || summary.repeated > 0 { " !" } else { "" };
    let figure = |metric: &'static str| -> String {
        let value = summary.medians.get(metric).copied().unwrap_or(f64::NAN);
        let text = match bench {
            Bench::Latency => milliseconds(value),
            Bench::Held => percent(value),
            _ => thousands(value),
        };
        let windlass = results.windlass(measured.peer.store, bench, metric).filter(|_| !is_windlass(measured.peer));
        match windlass.and_then(|windlass| times_better(bench, windlass, value)) {
            Some(ratio) => format!("{text} ({})", times(ratio)),
            None => text,
        }
    };
    match bench {
        Bench::Latency => format!("{} / {}{mark}", figure("p50_ms"), figure("p99_ms")),
        Bench::Held => format!("{}{mark}", figure("ratio")),
        _ => format!("{}{mark}", figure("jobs_per_second")),
    }
}

/// Which peers drain fewer jobs than the others, because they are slow or become slower the more are waiting.
fn fewer_jobs(results: &Results) -> String {
    let peers = results.peers.iter().map(|measured| measured.peer);
    let jobs = |peer: &Peer| thousands(drain_jobs(peer, results.quick) as f64);
    let fewer: Vec<String> = peers
        .filter(|peer| peer.runs.drain_jobs < MOST_JOBS)
        .map(|peer| format!("{} {}", peer.name, jobs(peer)))
        .collect();
    if fewer.is_empty() {
        String::new()
    } else {
        format!("Drained with fewer jobs than the others: {}.\n\n", fewer.join(", "))
    }
}

/// What the table leaves out or only marks, a line each.
fn remarks(results: &Results) -> Vec<String> {
    let mut remarks = Vec::new();
    for measured in &results.peers {
        let name = measured.peer.name;
        if let Some(reason) = &measured.not_built {
            remarks.push(format!("{name} does not build: {reason}"));
            continue;
        }
        for bench in Bench::ALL {
            match results.summary(measured, bench) {
                // Said once, in the text below the table.
                Err(_) if crate::plan::left_out(measured.peer, bench).is_some() => {}
                Err(reason) => remarks.push(format!("{name}, {}: {reason}", bench.name())),
                Ok(summary) => {
                    remarks.extend(flaws(&summary).map(|flaws| format!("{name}, {}: {flaws}", bench.name())))
                }
            }
        }
    }
    remarks
}

fn flaws(summary: &Summary) -> Option<String> {
    let unfinished = (summary.unfinished > 0)
        .then(|| format!("{} of {} jobs were not done in time", summary.unfinished, summary.jobs));
    let repeated =
        (summary.repeated > 0).then(|| format!("{} starts of jobs that had started before", summary.repeated));
    let flaws: Vec<String> = unfinished.into_iter().chain(repeated).collect();
    (!flaws.is_empty()).then(|| flaws.join(", "))
}

/// The page `peers.md`; `plots` are the files of pictures beside it, with their titles.
pub(crate) fn page(results: &Results, plots: &[(String, String)]) -> String {
    let Machine { processor, cores, memory_gib, system, kernel, rustc, windlass_commit } = &results.machine;
    let settings: Vec<String> = POSTGRES_SETTINGS.iter().map(|(name, value)| format!("`{name} = {value}`")).collect();
    let kind = if results.quick { " (quick: fewer jobs, shorter runs; for looking, not for quoting)" } else { "" };
    let mut text = format!(
        "# Windlass and its peers{kind}\n\n\
         Written by `{}` on {}; `bench/README.md` says what is timed.\n\n\
         - machine: {processor}, {cores} cores shared by client and server, {memory_gib} GiB; {system}, {kernel}\n\
         - PostgreSQL {}: {}, otherwise its defaults\n\
         - {rustc}; every Rust peer with the default release profile; Windlass at {windlass_commit}\n\
         - medians of {} interleaved repeats, a fresh database or file for each run\n\n{}\n",
        results.command,
        results.date,
        results.postgres,
        settings.join(", "),
        results.repeats,
        table(results),
    );
    text += &fewer_jobs(results);
    text += "In brackets: how many times better Windlass does on the same kind of store (PostgreSQL, or a file of the \
             process); below 1, the peer is ahead. *Held snapshot* is the rate while another transaction holds its \
             snapshot, as a share of the rate before, on PostgreSQL only. `!` marks a run that is not clean, `–` one \
             without figures:\n\n";
    let remarks = remarks(results);
    text += &if remarks.is_empty() {
        "- none\n".to_owned()
    } else {
        remarks.iter().map(|remark| format!("- {remark}\n")).collect::<String>()
    };
    for (file, title) in plots {
        text += &format!("\n![{title}]({file})\n");
    }
    text += "\n## Settings\n\n| peer | bench | words | jobs | median | lowest | highest | runs |\n|---|---|---|---:|---:|---:|---:|---:|\n";
    for measured in &results.peers {
        for bench in Bench::ALL {
            let Ok(summary) = results.summary(measured, bench) else { continue };
            let value = |value: f64| match bench {
                Bench::Latency => format!("{} ms", milliseconds(value)),
                Bench::Held => percent(value),
                _ => format!("{} /s", thousands(value)),
            };
            let median = summary.medians.get(metrics(bench)[0]).copied().unwrap_or(f64::NAN);
            let held = match bench {
                Bench::Held => format!(
                    " ({} then {} /s)",
                    thousands(summary.medians.get("free_per_second").copied().unwrap_or(f64::NAN)),
                    thousands(summary.medians.get("held_per_second").copied().unwrap_or(f64::NAN))
                ),
                _ => String::new(),
            };
            text += &format!(
                "| {} | {} | `{}` | {} | {}{held} | {} | {} | {} |\n",
                measured.peer.name,
                bench.name(),
                words(measured.peer, bench, results.quick)[1..].join(" "),
                thousands(summary.jobs as f64),
                value(median),
                value(summary.lowest),
                value(summary.highest),
                summary.runs,
            );
        }
    }
    text
}

/// The document `peers.json`.
pub(crate) fn document(results: &Results) -> serde_json::Value {
    let settings: BTreeMap<&str, &str> = POSTGRES_SETTINGS.into();
    let peers: Vec<serde_json::Value> = results.peers.iter().map(|measured| peer_document(results, measured)).collect();
    json!({
        "date": results.date,
        "command": results.command,
        "quick": results.quick,
        "repeats": results.repeats,
        "machine": results.machine,
        "postgres_version": results.postgres,
        "postgres_settings": settings,
        "peers": peers,
        "runs": results.runs,
    })
}

fn peer_document(results: &Results, measured: &Measured) -> serde_json::Value {
    let bench_document = |bench: Bench| {
        let summary = results.summary(measured, bench);
        let metric = metrics(bench)[0];
        let windlass = results.windlass(measured.peer.store, bench, metric);
        let own = summary.as_ref().ok().and_then(|summary| summary.medians.get(metric).copied());
        json!({
            "words": words(measured.peer, bench, results.quick).join(" "),
            "summary": summary.as_ref().ok(),
            "reason": summary.as_ref().err(),
            "windlass_times_better": windlass.zip(own).and_then(|(windlass, own)| times_better(bench, windlass, own)),
        })
    };
    let benches: BTreeMap<&str, serde_json::Value> =
        Bench::ALL.map(|bench| (bench.name(), bench_document(bench))).into();
    json!({
        "name": measured.peer.name,
        "version": measured.version,
        "store": if measured.peer.store == Store::Postgres { "postgres" } else { "file" },
        "finished_jobs": measured.peer.finished,
        "not_built": measured.not_built,
        "benches": benches,
    })
}

/// `12,345`, or with a decimal below ten.
pub(crate) fn thousands(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value != 0.0 && value.abs() < 10.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(crate) fn milliseconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// `3.2×`: enough digits to compare, no more.
fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 10.0 => format!("{}×", thousands(ratio)),
        ratio if ratio >= 1.0 => format!("{ratio:.1}×"),
        ratio => format!("{ratio:.2}×"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PEERS;

    fn run(peer: &'static str, bench: Bench, figures: serde_json::Value) -> Run {
        Run { peer, bench, repeat: 1, words: String::new(), figures: Some(figures), failure: None }
    }

    fn measured(name: &str, not_built: Option<&str>) -> Measured {
        let peer = PEERS.iter().find(|peer| peer.name == name).expect("in the plan");
        Measured { peer, version: "1.0.0".into(), not_built: not_built.map(str::to_owned) }
    }

    fn results() -> Results {
        let text = String::new;
        Results {
            date: "2026-01-02".into(),
            command: "cargo xtask bench --peers".into(),
            repeats: 1,
            quick: false,
            machine: Machine {
                processor: "P".into(),
                cores: 2,
                memory_gib: 4,
                system: text(),
                kernel: text(),
                rustc: text(),
                windlass_commit: text(),
            },
            postgres: "15".into(),
            peers: vec![
                measured("windlass-postgres", None),
                measured("fang", None),
                measured("awa", Some("error: no linker")),
            ],
            runs: vec![
                run("windlass-postgres", Bench::Drain, json!({"n": 9, "jobs_per_second": 50_000.0})),
                run("windlass-postgres", Bench::Latency, json!({"n": 9, "p50_ms": 2.0, "p99_ms": 4.0})),
                run("fang", Bench::Drain, json!({"n": 9, "jobs_per_second": 160.0, "unfinished": 3})),
                run("fang", Bench::Latency, json!({"n": 9, "p50_ms": 7.0, "p99_ms": 22.0})),
                run("fang", Bench::Bulk, json!({"skipped": "has no bulk call"})),
            ],
        }
    }

    #[test]
    fn a_row_carries_figures_and_ratios() {
        let table = table(&results());
        assert!(
            table.contains("| **windlass-postgres** | 1.0.0 | kept | – | – | – | 50,000 | 2.00 / 4.00 | – |"),
            "{table}"
        );
        let fang = "| fang | 1.0.0 | deleted | – | – | – | 160 (312×) ! | 7.00 (3.5×) / 22.0 (5.5×) | – |";
        assert!(table.contains(fang), "{table}");
    }

    #[test]
    fn nothing_is_dropped_silently() {
        let page = page(&results(), &[("drain.svg".into(), "Drain".into())]);
        for line in [
            "- awa does not build: error: no linker\n",
            "- fang, bulk: has no bulk call\n",
            "fewer jobs than the others: fang 4,000, awa 50,000.\n",
            "- fang, drain: 3 of 9 jobs were not done in time\n",
            "- windlass-postgres, held: was not run\n",
            "![Drain](drain.svg)\n",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }

    #[test]
    fn the_document_names_the_reason_for_every_hole() {
        let document = document(&results());
        assert_eq!(document["peers"][1]["benches"]["bulk"]["reason"], "has no bulk call");
        assert_eq!(document["peers"][1]["benches"]["drain"]["windlass_times_better"], 312.5);
        assert_eq!(document["peers"][2]["not_built"], "error: no linker");
        assert_eq!(document["runs"][0]["bench"], "drain");
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(["0", "7.5", "42", "1,234", "1,234,567"], [0.0, 7.5, 42.0, 1234.4, 1_234_567.0].map(thousands));
        assert_eq!(["0.51×", "1.0×", "9.9×", "1,200×"], [0.512, 1.0, 9.94, 1200.0].map(times));
        assert_eq!((milliseconds(1.234), milliseconds(51.62)), ("1.23".into(), "51.6".into()));
        assert_eq!(percent(0.987), "99 %");
    }
}
