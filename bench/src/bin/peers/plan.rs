//! What is measured: every peer, how it is made, and the words of each of its runs. Read by `main`; nothing here acts.
//! The words are the best found among the settings that a peer's documentation offers, on two cores; what they mean is
//! said at the top of each peer's program.

/// A job queue, or a reference to compare with.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) made: Made,
    pub(crate) store: Store,
    /// What becomes of a finished job: a peer that deletes it has less to write than one that keeps it.
    pub(crate) finished: &'static str,
    pub(crate) runs: Runs,
}

/// How the program of a peer comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// A program of this crate.
    Here,
    /// The crate of that name in `peers/`, around a published one.
    Cargo { directory: &'static str, package: &'static str },
    /// A script in `peers/node`, around the published package of the same name.
    Node { script: &'static str },
}

/// Where jobs live. Ratios are to Windlass on the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Postgres,
    /// A file of the process's own: SQLite, or what the peer has instead.
    File,
}

/// The words of a peer's runs.
pub(crate) struct Runs {
    /// For every run.
    pub(crate) all: &'static str,
    pub(crate) bulk: &'static str,
    pub(crate) drain: &'static str,
    /// Jobs to drain: as many as a peer gets through in well under the cap.
    pub(crate) drain_jobs: u64,
    pub(crate) latency: &'static str,
    pub(crate) held: &'static str,
}

/// What is measured of each peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bench {
    Bulk,
    Enqueue16,
    Enqueue64,
    Drain,
    Latency,
    Held,
}

impl Made {
    /// Whether one build makes both.
    pub(crate) fn is_built_with(self, other: Made) -> bool {
        self == other || matches!((self, other), (Made::Node { .. }, Made::Node { .. }))
    }
}

impl Bench {
    pub(crate) const ALL: [Bench; 6] =
        [Bench::Bulk, Bench::Enqueue16, Bench::Enqueue64, Bench::Drain, Bench::Latency, Bench::Held];

    /// The name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Bench::Bulk => "bulk",
            Bench::Enqueue16 => "enqueue-16",
            Bench::Enqueue64 => "enqueue-64",
            Bench::Drain => "drain",
            Bench::Latency => "latency",
            Bench::Held => "held",
        }
    }
}

/// The most jobs a drain has.
pub(crate) const MOST_JOBS: u64 = 200_000;
/// What a quick one has of them: one in so many.
const QUICK_SHARE: u64 = 4;

/// Why a peer is not asked for a bench, if it is not.
pub(crate) fn left_out(peer: &Peer, bench: Bench) -> Option<&'static str> {
    (bench == Bench::Held && peer.store == Store::File).then_some("is not on PostgreSQL")
}

/// The command line of a run: the bench, as the programs call it, and its words.
pub(crate) fn words(peer: &Peer, bench: Bench, quick: bool) -> Vec<String> {
    let runs = &peer.runs;
    let pick = |full: &str, fast: &str| if quick { fast.to_owned() } else { full.to_owned() };
    let (bench, size, own) = match bench {
        Bench::Bulk => ("bulk", pick("n=200000 cap=20", "n=50000 cap=5"), runs.bulk),
        Bench::Enqueue16 => ("enqueue", pick("n=30000 sub=16 cap=10", "n=10000 sub=16 cap=3"), ""),
        Bench::Enqueue64 => ("enqueue", pick("n=60000 sub=64 cap=10", "n=20000 sub=64 cap=3"), ""),
        Bench::Drain => {
            let (jobs, cap) = (drain_jobs(peer, quick), if quick { 15 } else { 60 });
            ("drain", format!("n={jobs} cap={cap}"), runs.drain)
        }
        Bench::Latency => ("latency", pick("n=200 gap=20", "n=50 gap=20"), runs.latency),
        Bench::Held => ("held", pick("before=10 during=30", "before=2 during=6"), runs.held),
    };
    let words = [bench, &size, runs.all, own].map(str::split_whitespace);
    words.into_iter().flatten().map(str::to_owned).collect()
}

/// How many jobs a peer drains.
pub(crate) fn drain_jobs(peer: &Peer, quick: bool) -> u64 {
    if quick { (peer.runs.drain_jobs / QUICK_SHARE).max(1_000) } else { peer.runs.drain_jobs }
}

/// How long a run may take before it is killed, in seconds: its own cap, the time to fill the queue before, and a
/// start on a busy machine.
pub(crate) fn patience(bench: Bench) -> u64 {
    match bench {
        Bench::Bulk | Bench::Enqueue16 | Bench::Enqueue64 | Bench::Latency => 90,
        Bench::Drain | Bench::Held => 180,
    }
}

/// Every peer, in the order of the table: Windlass, the queues, the references.
pub(crate) const PEERS: &[Peer] = &[
    Peer {
        name: "windlass-postgres",
        made: Made::Here,
        store: Store::Postgres,
        finished: "kept",
        runs: Runs {
            all: "store=postgres",
            bulk: "sub=2",
            drain: "conc=2000",
            drain_jobs: MOST_JOBS,
            latency: "conc=100",
            held: "conc=2000 backlog=20000",
        },
    },
    Peer {
        name: "awa",
        made: Made::Cargo { directory: "awa", package: "awa" },
        store: Store::Postgres,
        finished: "kept",
        runs: Runs {
            all: "",
            bulk: "sub=2 batch=5000",
            drain: "conc=200 claimers=2 claim=128",
            drain_jobs: 50_000,
            latency: "conc=10",
            held: "conc=200 claimers=2 claim=128",
        },
    },
    Peer {
        name: "underway",
        made: Made::Cargo { directory: "underway", package: "underway" },
        store: Store::Postgres,
        finished: "kept",
        // Every dequeue sorts the whole backlog, so the rate falls with it.
        runs: Runs {
            all: "",
            bulk: "sub=2 batch=5000",
            drain: "conc=50 poll_ms=10",
            drain_jobs: 4_000,
            latency: "conc=10",
            held: "conc=50 poll_ms=10 backlog=500 batch=250",
        },
    },
    Peer {
        name: "graphile_worker",
        made: Made::Cargo { directory: "graphile_worker", package: "graphile_worker" },
        store: Store::Postgres,
        finished: "deleted",
        runs: Runs {
            all: "",
            bulk: "sub=2 batch=5000",
            drain: "conc=500 lq=5000 batch_ms=5",
            drain_jobs: MOST_JOBS,
            latency: "conc=10",
            held: "conc=500 lq=5000 batch_ms=5 backlog=20000",
        },
    },
    Peer {
        name: "apalis-postgres",
        made: Made::Cargo { directory: "apalis-postgres", package: "apalis-postgres" },
        store: Store::Postgres,
        finished: "kept",
        runs: Runs {
            all: "",
            bulk: "sub=2 batch=5000",
            drain: "conc=1000 fetch=1000 lock=0 poll_ms=50 workers=4",
            drain_jobs: 100_000,
            latency: "conc=10 fetch=10",
            held: "conc=1000 fetch=1000 lock=0 poll_ms=50 workers=4 backlog=10000",
        },
    },
    Peer {
        name: "sqlxmq",
        made: Made::Cargo { directory: "sqlxmq", package: "sqlxmq" },
        store: Store::Postgres,
        finished: "deleted",
        runs: Runs {
            all: "",
            bulk: "",
            drain: "conc=400 pool=40",
            drain_jobs: 20_000,
            latency: "conc=32",
            held: "conc=400 pool=40 backlog=2000 batch=500",
        },
    },
    Peer {
        name: "fang",
        made: Made::Cargo { directory: "fang", package: "fang" },
        store: Store::Postgres,
        finished: "deleted",
        runs: Runs {
            all: "",
            bulk: "",
            drain: "conc=10 sleep_ms=20",
            drain_jobs: 4_000,
            latency: "conc=10 sleep_ms=10",
            held: "conc=10 sleep_ms=20 backlog=500 batch=100",
        },
    },
    Peer {
        name: "pgqrs",
        made: Made::Cargo { directory: "pgqrs", package: "pgqrs" },
        store: Store::Postgres,
        finished: "kept",
        runs: Runs {
            all: "",
            bulk: "sub=2 batch=5000",
            drain: "conc=4 fetch=1000 poll_ms=10",
            drain_jobs: MOST_JOBS,
            latency: "conc=2 fetch=100 poll_ms=5",
            held: "conc=4 fetch=1000 poll_ms=10 backlog=10000",
        },
    },
    Peer {
        name: "rustqueue-postgres",
        made: Made::Cargo { directory: "rustqueue", package: "rustqueue" },
        store: Store::Postgres,
        finished: "kept",
        runs: Runs {
            all: "store=postgres",
            bulk: "sub=2 batch=1000",
            drain: "conc=4 fetch=1000",
            drain_jobs: 5_000,
            latency: "conc=1 fetch=100",
            held: "conc=4 fetch=1000",
        },
    },
    Peer {
        name: "graphile-worker (Node)",
        made: Made::Node { script: "graphile-worker" },
        store: Store::Postgres,
        finished: "deleted",
        runs: Runs {
            all: "",
            bulk: "sub=2 batch=5000",
            drain: "conc=24 lq=1000 batch_ms=0",
            drain_jobs: MOST_JOBS,
            latency: "conc=10",
            held: "conc=24 lq=1000 batch_ms=0",
        },
    },
    Peer {
        name: "pg-boss (Node)",
        made: Made::Node { script: "pg-boss" },
        store: Store::Postgres,
        finished: "kept",
        runs: Runs {
            all: "",
            bulk: "sub=2 batch=5000",
            drain: "conc=4 fetch=1000 burst=1",
            drain_jobs: MOST_JOBS,
            latency: "conc=10 notify=1",
            held: "conc=4 fetch=1000 burst=1 backlog=10000",
        },
    },
    Peer {
        name: "windlass-sqlite",
        made: Made::Here,
        store: Store::File,
        finished: "kept",
        runs: Runs {
            all: "store=sqlite",
            bulk: "sub=2",
            drain: "conc=2000",
            drain_jobs: MOST_JOBS,
            latency: "conc=100",
            held: "",
        },
    },
    Peer {
        name: "apalis-sqlite",
        made: Made::Cargo { directory: "apalis-sqlite", package: "apalis-sqlite" },
        store: Store::File,
        finished: "kept",
        // An acknowledgement costs more the more jobs its worker has done, so the rate falls with the jobs.
        runs: Runs {
            all: "sync=full",
            bulk: "",
            drain: "conc=100 fetch=100 poll_ms=50",
            drain_jobs: 4_000,
            latency: "conc=10 poll_ms=5",
            held: "",
        },
    },
    Peer {
        name: "effectum",
        made: Made::Cargo { directory: "effectum", package: "effectum" },
        store: Store::File,
        finished: "kept",
        // The rate falls with the backlog.
        runs: Runs {
            all: "",
            bulk: "sub=2 batch=5000",
            drain: "conc=200",
            drain_jobs: 20_000,
            latency: "conc=10",
            held: "",
        },
    },
    Peer {
        name: "rustqueue",
        made: Made::Cargo { directory: "rustqueue", package: "rustqueue" },
        store: Store::File,
        finished: "kept",
        runs: Runs {
            all: "store=redb flush_ms=1",
            bulk: "sub=2 batch=5000",
            drain: "conc=2 fetch=1000",
            drain_jobs: MOST_JOBS,
            latency: "conc=1 fetch=100",
            held: "",
        },
    },
    Peer {
        name: "pgmq (reference)",
        made: Made::Cargo { directory: "pgmq", package: "pgmq" },
        store: Store::Postgres,
        finished: "deleted",
        runs: Runs {
            all: "",
            bulk: "sub=2 batch=5000",
            drain: "conc=2 fetch=1000",
            drain_jobs: MOST_JOBS,
            latency: "conc=1 poll_ms=5",
            held: "conc=2 fetch=1000 poll_ms=5 backlog=10000",
        },
    },
    Peer {
        name: "raw, kept (reference)",
        made: Made::Cargo { directory: "raw", package: "tokio-postgres" },
        store: Store::Postgres,
        finished: "kept",
        runs: Runs {
            all: "done=update",
            bulk: "sub=2 batch=5000",
            drain: "conc=2",
            drain_jobs: MOST_JOBS,
            latency: "conc=1",
            held: "conc=2 backlog=10000",
        },
    },
    Peer {
        name: "raw, deleted (reference)",
        made: Made::Cargo { directory: "raw", package: "tokio-postgres" },
        store: Store::Postgres,
        finished: "deleted",
        runs: Runs {
            all: "done=delete",
            bulk: "sub=2 batch=5000",
            drain: "conc=2",
            drain_jobs: MOST_JOBS,
            latency: "conc=1",
            held: "conc=2 backlog=10000",
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> &'static Peer {
        PEERS.iter().find(|peer| peer.name == name).expect("in the plan")
    }

    #[test]
    fn a_run_is_told_its_size_then_its_settings() {
        let drain = words(peer("underway"), Bench::Drain, false);
        assert_eq!(drain, ["drain", "n=4000", "cap=60", "conc=50", "poll_ms=10"]);
        let bulk = words(peer("windlass-sqlite"), Bench::Bulk, true);
        assert_eq!(bulk, ["bulk", "n=50000", "cap=5", "store=sqlite", "sub=2"]);
    }

    #[test]
    fn every_word_is_a_pair() {
        for (peer, bench) in PEERS.iter().flat_map(|peer| Bench::ALL.map(|bench| (peer, bench))) {
            let words = words(peer, bench, true);
            assert!(words[1..].iter().all(|word| word.split_once('=').is_some()), "{words:?}");
        }
    }

    #[test]
    fn only_peers_on_postgres_are_asked_to_bear_a_held_snapshot() {
        assert!(left_out(peer("effectum"), Bench::Held).is_some());
        assert!(left_out(peer("awa"), Bench::Held).is_none());
        assert!(PEERS.iter().all(|peer| left_out(peer, Bench::Drain).is_none()));
    }

    #[test]
    fn names_are_not_shared() {
        let mut names: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PEERS.len());
    }
}
