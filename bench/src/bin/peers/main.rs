//! `cargo xtask bench --peers`: builds every peer, runs them all on one throwaway PostgreSQL and on files, in turns, and
//! writes one table. Never leaves a peer out without saying why, and never waits for one without a bound.

#![expect(clippy::print_stdout, reason = "a command that people run speaks on its standard output")]

mod build;
mod figures;
mod machine;
mod measure;
mod plan;
mod plot;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use windlass_bench::{DATABASE_VAR, DIRECTORY_VAR};
use windlass_testkit::servers::PostgresServer;

use build::Places;
use figures::Run;
use machine::Machine;
use plan::{Bench, PEERS, Peer};
use report::{Measured, Results};

/// What to measure. The same options as `cargo xtask bench`, which starts this program.
#[derive(Parser)]
#[command(name = "peers", about = "Measures Windlass and its peers with the same work")]
struct Arguments {
    /// Only these peers, by parts of their names.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these benches: bulk, enqueue-16, enqueue-64, drain, latency, held.
    #[arg(long, value_delimiter = ',')]
    benches: Vec<String>,
    /// How often every run is repeated.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Fewer jobs and shorter runs, to see that all works.
    #[arg(long)]
    quick: bool,
    /// Where the results go. By default `bench/results` for a whole measurement, `bench/target/results` for a part.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let places = Places::new();
    let peers = chosen(PEERS, &arguments.only)?;
    let benches = chosen_benches(&arguments.benches)?;
    let out = arguments.out.clone().unwrap_or_else(|| default_out(&places, arguments));
    fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let mut results = Results {
        date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
        command: command(arguments),
        repeats: arguments.repeats,
        quick: arguments.quick,
        machine: Machine::look(&places),
        postgres: "was not asked".to_owned(),
        peers: build_all(&places, &peers)?,
        runs: Vec::new(),
    };
    measure_all(&places, &benches, &out, &mut results)?;
    write(&out, &results)?;
    println!("\n{}", report::table(&results));
    println!("peers.md, peers.json and the plots are in {}", out.display());
    Ok(())
}

/// The peers whose names contain one of the words; all if there are none.
fn chosen(peers: &'static [Peer], only: &[String]) -> Result<Vec<&'static Peer>> {
    if let Some(word) = only.iter().find(|word| !peers.iter().any(|peer| peer.name.contains(word.as_str()))) {
        let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
        bail!("no peer has `{word}` in its name; there are: {}", names.join(", "));
    }
    let wanted = |peer: &&Peer| only.is_empty() || only.iter().any(|word| peer.name.contains(word.as_str()));
    Ok(peers.iter().filter(wanted).collect())
}

fn chosen_benches(only: &[String]) -> Result<Vec<Bench>> {
    let find = |name: &String| Bench::ALL.into_iter().find(|bench| bench.name() == name);
    if let Some(name) = only.iter().find(|name| find(name).is_none()) {
        bail!("there is no bench `{name}`; there are: {}", Bench::ALL.map(Bench::name).join(", "));
    }
    Ok(Bench::ALL.into_iter().filter(|bench| only.is_empty() || only.iter().any(|name| name == bench.name())).collect())
}

/// A part of a measurement, or a quick one, must not take the place of a whole one.
fn default_out(places: &Places, arguments: &Arguments) -> PathBuf {
    let whole = arguments.only.is_empty() && arguments.benches.is_empty() && !arguments.quick;
    if whole { places.bench.join("results") } else { places.target().join("results") }
}

/// The command line that repeats this.
fn command(arguments: &Arguments) -> String {
    let mut line = "cargo xtask bench --peers".to_owned();
    for (option, values) in [("--only", &arguments.only), ("--benches", &arguments.benches)] {
        if !values.is_empty() {
            line += &format!(" {option} {}", values.join(","));
        }
    }
    line += &format!(" --repeats {}", arguments.repeats);
    if arguments.quick {
        line += " --quick";
    }
    line
}

fn build_all(places: &Places, peers: &[&'static Peer]) -> Result<Vec<Measured>> {
    let mut measured: Vec<Measured> = Vec::new();
    for peer in peers {
        let earlier = measured.iter().find(|other| other.peer.made.is_built_with(peer.made));
        let not_built = match earlier {
            Some(earlier) => earlier.not_built.clone(),
            None => {
                println!("building {}", peer.name);
                build::build(places, peer.made)?.err()
            }
        };
        if let Some(reason) = &not_built {
            println!("  {} does not build: {reason}", peer.name);
        }
        measured.push(Measured { peer, version: machine::version(places, peer), not_built });
    }
    Ok(measured)
}

/// Every bench of every peer, in turns, so that a change of the machine's speed meets all alike.
fn measure_all(places: &Places, benches: &[Bench], out: &Path, results: &mut Results) -> Result<()> {
    let server = PostgresServer::start(machine::postgres_options())?;
    println!("warming up PostgreSQL");
    windlass_bench::warm_up(&server.admin_url());
    let built: Vec<&'static Peer> =
        results.peers.iter().filter(|measured| measured.not_built.is_none()).map(|measured| measured.peer).collect();
    let wanted = |peer: &Peer, bench: Bench| plan::left_out(peer, bench).is_none();
    let turns: Vec<(usize, Bench, &'static Peer)> = (1..=results.repeats)
        .flat_map(|repeat| benches.iter().map(move |bench| (repeat, *bench)))
        .flat_map(|(repeat, bench)| built.iter().map(move |peer| (repeat, bench, *peer)))
        .filter(|(_, bench, peer)| wanted(peer, *bench))
        .collect();
    for (number, (repeat, bench, peer)) in (1..).zip(&turns) {
        let words = plan::words(peer, *bench, results.quick);
        let mut program = build::program(places, peer);
        windlass_bench::clean_up(&server.admin_url());
        let files = tempfile::tempdir().context("make a directory for files of a run")?;
        program.args(&words).env(DATABASE_VAR, server.admin_url()).env(DIRECTORY_VAR, files.path());
        let end = measure::run(&mut program, Duration::from_secs(plan::patience(*bench)))?;
        println!("[{number}/{}] {} {}: {}", turns.len(), bench.name(), peer.name, in_short(*bench, &end));
        if let Some(version) = end.as_ref().ok().and_then(|figures| figures["postgres"].as_str()) {
            results.postgres = version.to_owned();
        }
        let (figures, failure) = match end {
            Ok(figures) => (Some(figures), None),
            Err(reason) => (None, Some(reason)),
        };
        results.runs.push(Run {
            peer: peer.name,
            bench: *bench,
            repeat: *repeat,
            words: words.join(" "),
            figures,
            failure,
        });
        // After every run: whoever stops a long measurement keeps what it has found.
        write(out, results)?;
    }
    Ok(())
}

fn in_short(bench: Bench, end: &Result<serde_json::Value, String>) -> String {
    let figures = match end {
        Ok(figures) => figures,
        Err(reason) => return reason.clone(),
    };
    if let Some(reason) = figures["skipped"].as_str() {
        return reason.to_owned();
    }
    let mut parts: Vec<String> =
        figures::metrics(bench).iter().map(|metric| format!("{metric} {}", figures[metric])).collect();
    for flaw in ["unfinished", "repeated"] {
        if figures[flaw].as_u64().is_some_and(|count| count > 0) {
            parts.push(format!("{flaw} {}", figures[flaw]));
        }
    }
    parts.join(", ")
}

fn write(out: &Path, results: &Results) -> Result<()> {
    let mut plots = Vec::new();
    for (file, title, svg) in plot::plots(results) {
        put(out, &file, &svg)?;
        plots.push((file, title));
    }
    put(out, "peers.md", &report::page(results, &plots))?;
    let document = serde_json::to_string_pretty(&report::document(results)).context("write the results as JSON")?;
    put(out, "peers.json", &(document + "\n"))
}

fn put(out: &Path, name: &str, text: &str) -> Result<()> {
    fs::write(out.join(name), text).with_context(|| format!("write {}", out.join(name).display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn peers_are_chosen_by_parts_of_their_names() {
        let names = |only: &[&str]| -> Vec<&str> {
            chosen(PEERS, &words(only)).expect("known").iter().map(|peer| peer.name).collect()
        };
        assert_eq!(names(&["apalis"]), ["apalis-postgres", "apalis-sqlite"]);
        assert_eq!(names(&[]).len(), PEERS.len());
        let error = chosen(PEERS, &words(&["sidekiq"])).err().expect("unknown").to_string();
        assert!(error.contains("`sidekiq`") && error.contains("underway"), "{error}");
    }

    #[test]
    fn benches_are_chosen_by_name_and_keep_their_order() {
        assert_eq!(chosen_benches(&words(&["drain", "bulk"])).expect("known"), [Bench::Bulk, Bench::Drain]);
        assert!(chosen_benches(&words(&["nap"])).is_err());
    }

    #[test]
    fn a_part_does_not_take_the_place_of_a_whole_measurement() {
        let out = |line: &[&str]| {
            let arguments = Arguments::parse_from([&["peers"], line].concat());
            default_out(&Places::new(), &arguments).strip_prefix(Places::new().bench).expect("inside").to_owned()
        };
        assert_eq!(out(&[]), Path::new("results"));
        for part in [&["--quick"][..], &["--only", "awa"], &["--benches", "drain"]] {
            assert_eq!(out(part), Path::new("target/results"), "{part:?}");
        }
    }

    #[test]
    fn the_command_can_be_repeated() {
        let line = ["peers", "--only", "awa,fang", "--repeats", "2", "--quick", "--out", "/somewhere"];
        let arguments = Arguments::parse_from(line);
        assert_eq!(command(&arguments), "cargo xtask bench --peers --only awa,fang --repeats 2 --quick");
    }
}
