//! Faults on real processes and real databases, and a checker of what happened. `cargo xtask faults` runs it; nothing
//! here is part of what users get.

pub mod cgroup;
pub mod check;
pub mod child;
pub mod dump;
pub mod event;
pub mod faketime;
pub mod fleet;
pub mod history;
pub mod log;
pub mod proxy;
pub mod recorder;
pub mod report;
pub mod rig;
pub mod rows;
pub mod runner;
pub mod sabotage;
pub mod undone;

/// What jobs are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// A PostgreSQL database.
    Postgres,
    /// A SQLite file.
    Sqlite,
}

impl StoreKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Postgres => "postgres",
            StoreKind::Sqlite => "sqlite",
        }
    }
}

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Profile {
    /// What every change runs: minutes.
    Short,
    /// Every night: an hour or more.
    Full,
    /// Every week: hours.
    Soak,
}

impl Profile {
    /// How often something is done.
    pub fn times(self, short: usize, longer: usize) -> usize {
        match self {
            Profile::Short => short,
            Profile::Full | Profile::Soak => longer,
        }
    }
}
