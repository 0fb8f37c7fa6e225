//! The same work for every job queue: what a peer must be able to do, and the program that measures it. Used by the
//! peer programs (`peer-windlass` here, a crate each under `peers/`). Never decides what is run, how often or how it is
//! reported: that is the program `peers`.
//!
//! A peer program is called as `peer-x BENCH [key=value …]` and prints one line of JSON. It reads two variables:
//! [`DATABASE_VAR`] for peers on PostgreSQL and [`DIRECTORY_VAR`] for those that keep a file.

mod benches;
mod meter;
mod server;

use std::collections::HashMap;
use std::future::Future;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

pub use meter::hit;
pub use server::{clean_up, connect, run_sql_dir, warm_up};

/// The variable with the URL of a PostgreSQL server on which databases may be made and dropped. Ends in `/NAME`.
pub const DATABASE_VAR: &str = "PEER_DATABASE_URL";
/// The variable with the directory for the files of peers that keep files; the system's for temporary ones if not set.
pub const DIRECTORY_VAR: &str = "PEER_DIRECTORY";

/// A job queue as the benches see it: no-op jobs, numbered, with the payload `{"n": number}`.
pub trait Peer: Send + Sync + Sized + 'static {
    /// What it is called in results.
    const NAME: &'static str;
    /// Whether it lives in the PostgreSQL of [`DATABASE_VAR`].
    const POSTGRES: bool = true;
    /// Whether [`bulk`](Self::bulk) is a bulk call of the peer; otherwise it only fills the queue for other benches.
    const HAS_BULK: bool = true;

    /// An empty queue, without a worker.
    fn setup(settings: &Settings) -> impl Future<Output = Self>;

    /// Submits one job. Returns when the peer says that it is stored.
    fn enqueue(&self, number: u64) -> impl Future<Output = ()> + Send;

    /// Submits many jobs.
    fn bulk(&self, numbers: Range<u64>) -> impl Future<Output = ()> + Send;

    /// Starts the worker or workers, whose handler calls [`hit`], and returns at once.
    fn start(&self, settings: &Settings) -> impl Future<Output = ()> + Send;

    /// For peers on PostgreSQL: the query that counts the jobs not yet recorded as complete.
    fn remaining_sql(&self) -> String {
        String::new()
    }

    /// For peers that have no such query: that count, of `submitted` jobs.
    fn remaining(&self, submitted: u64) -> impl Future<Output = i64> + Send {
        async move { panic!("{} counts neither by query nor by call, of {submitted}", Self::NAME) }
    }
}

/// What one run is asked to do: `key=value` words of the command line, with defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The bench.
    pub bench: String,
    /// The URL of an empty database; empty for peers that need none.
    pub url: String,
    /// An empty directory of the run's own; not there for peers that need none.
    pub directory: PathBuf,
    words: Arc<HashMap<String, String>>,
}

impl Settings {
    /// A word as text.
    pub fn text(&self, key: &str, default: &str) -> String {
        self.words.get(key).cloned().unwrap_or_else(|| default.to_owned())
    }

    /// A word as a number.
    pub fn number(&self, key: &str, default: u64) -> u64 {
        let parse = |value: &String| value.parse().unwrap_or_else(|_| panic!("{key}={value} is not a number"));
        self.words.get(key).map_or(default, parse)
    }

    /// How many jobs the worker runs at once.
    pub fn concurrency(&self) -> usize {
        self.number("conc", 10) as usize
    }

    /// How many connections to the database a peer may use: enough for the bench at hand, and no more than a server
    /// with the usual settings accepts.
    pub fn connections(&self) -> u32 {
        let default = match self.bench.as_str() {
            "drain" | "held" => (self.concurrency() as u64 + 8).min(60),
            _ => 24,
        };
        self.number("pool", default) as u32
    }
}

/// The main function of a peer program.
#[expect(clippy::print_stdout, reason = "the result goes to the caller's pipe")]
pub fn run<P: Peer>() {
    let mut words = std::env::args().skip(1);
    let bench = words.next().expect("usage: peer-x bulk|enqueue|drain|latency|held [key=value ...]");
    let words: Vec<(String, String)> = words
        .map(|word| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).expect("key=value"))
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("start the runtime");
    let result = runtime.block_on(async move {
        let url = if P::POSTGRES { server::fresh_database().await } else { String::new() };
        let directory = if P::POSTGRES { PathBuf::new() } else { fresh_directory(P::NAME) };
        let settings = Settings { bench, url, directory, words: Arc::new(words.into_iter().collect()) };
        let mut result = benches::run::<P>(&settings).await;
        result["peer"] = json!(P::NAME);
        result["bench"] = json!(settings.bench);
        if P::POSTGRES {
            result["postgres"] = json!(server::version(&settings.url).await);
        }
        result
    });
    println!("{result}");
    // What peers do in the background need not come to an end.
    std::process::exit(0);
}

fn fresh_directory(name: &str) -> PathBuf {
    let base = std::env::var_os(DIRECTORY_VAR).map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = base.join(format!("peer-{name}"));
    remove(&directory);
    std::fs::create_dir_all(&directory).expect("make a directory for the run");
    directory
}

fn remove(directory: &Path) {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("remove the last run's files: {error}"),
        _ => {}
    }
}
