//! The matrix: every row of faults with its tier, the stores it is for, and the function that brings it about; rows whose
//! feature does not exist yet say what they wait for. Read by `runner`; `docs/FAULTS.md` shows it with its last results.

mod failover;
mod jobs;
mod load;
mod locks;
mod network;
mod nights;
mod nodes;
mod resources;
mod schedules;
mod seen;
mod server;
mod soup;
mod sqlite;
mod tabs;
mod upkeep;

use std::pin::Pin;

use anyhow::Result;

use crate::StoreKind;
use crate::StoreKind::{Postgres, Sqlite};
use crate::rig::Rig;

/// One fault.
pub struct Row {
    /// `F01` to `F69`; F53 to F64 are kept for others.
    pub id: &'static str,
    /// What happens.
    pub title: &'static str,
    /// When it runs.
    pub tier: Tier,
    /// On which stores.
    pub stores: &'static [StoreKind],
    /// What it cannot do without.
    pub needs: &'static [Need],
    /// How it is brought about, or what it waits for.
    pub state: State,
}

/// When a row runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// With every change.
    P,
    /// In the full profile.
    N,
    /// In the soak.
    W,
}

/// What a row cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A PostgreSQL server that nobody else uses, with fsync on.
    OwnServer,
    /// To be root, for mounts.
    Root,
    /// Control groups that take processor time and disk away.
    Groups,
    /// The library that fakes clocks.
    FakeTime,
    /// A machine without other rows, because it measures speed.
    Alone,
}

/// Whether a row can run.
pub enum State {
    /// By this function.
    Runs(for<'a> fn(&'a mut Rig) -> Running<'a>),
    /// Not before this exists.
    Waits(&'static str),
}

/// A row under way.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

macro_rules! runs {
    ($function:path) => {
        State::Runs(|rig| Box::pin($function(rig)))
    };
}

const BOTH: &[StoreKind] = &[Postgres, Sqlite];
const PG: &[StoreKind] = &[Postgres];
const LITE: &[StoreKind] = &[Sqlite];

/// The matrix.
pub const ROWS: &[Row] = &[
    Row {
        id: "F01",
        title: "a session holds a snapshot open",
        tier: Tier::P,
        stores: PG,
        needs: &[Need::Alone],
        state: runs!(server::held_snapshot),
    },
    Row {
        id: "F02",
        title: "a replica reads for long, and a slot is abandoned",
        tier: Tier::W,
        stores: PG,
        needs: &[Need::OwnServer, Need::Alone],
        state: runs!(upkeep::slow_replica),
    },
    Row {
        id: "F03",
        title: "many producers with wake-ups and without",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::Alone],
        state: runs!(load::wake_ups),
    },
    Row {
        id: "F04",
        title: "a session listens inside a transaction until notifications have no room",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::OwnServer, Need::Root],
        state: runs!(load::unheard),
    },
    Row {
        id: "F05",
        title: "the listening connection goes silent",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(network::deaf_listener),
    },
    Row {
        id: "F06",
        title: "PgBouncer in transaction mode, two sessions for six processes",
        tier: Tier::P,
        stores: PG,
        needs: &[Need::OwnServer],
        state: runs!(network::pooled),
    },
    Row {
        id: "F07",
        title: "a node is cut off from the database",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(network::partitioned),
    },
    Row {
        id: "F08",
        title: "answers of the database are lost, questions arrive",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(network::one_way),
    },
    Row {
        id: "F09",
        title: "the answer of a commit is lost",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(network::lost_commits),
    },
    Row {
        id: "F10",
        title: "callers drop their calls at any moment",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(network::dropped_calls),
    },
    Row {
        id: "F11",
        title: "the planner is forbidden its good plans",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(server::hostile_planner),
    },
    Row {
        id: "F12",
        title: "a large backlog that was never analysed",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::OwnServer, Need::Alone],
        state: runs!(load::unanalysed),
    },
    Row {
        id: "F13",
        title: "clocks that are an hour off",
        tier: Tier::P,
        stores: BOTH,
        needs: &[Need::FakeTime],
        state: runs!(jobs::wrong_clocks),
    },
    Row {
        id: "F14",
        title: "the database's clock is set forward and back",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::OwnServer, Need::FakeTime],
        state: runs!(load::database_clock),
    },
    Row {
        id: "F15",
        title: "a standby takes over without the last commits",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::OwnServer],
        state: runs!(failover::lost_tail),
    },
    Row {
        id: "F16",
        title: "the old primary comes back after a failover",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::OwnServer],
        state: runs!(failover::split_brain),
    },
    Row {
        id: "F17",
        title: "kill -9 of a node in the middle of jobs",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(nodes::killed),
    },
    Row {
        id: "F18",
        title: "a node is stopped past its lease, then goes on",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(nodes::frozen),
    },
    Row {
        id: "F18",
        title: "a process is stopped past its lease, then goes on",
        tier: Tier::P,
        stores: LITE,
        needs: &[],
        state: runs!(nodes::frozen_alone),
    },
    Row {
        id: "F19",
        title: "handlers block every thread",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(nodes::blocked),
    },
    Row {
        id: "F20",
        title: "jobs that kill their process",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(nodes::poisoned),
    },
    Row {
        id: "F21",
        title: "inputs that no handler can read",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(jobs::unreadable),
    },
    Row {
        id: "F22",
        title: "many jobs come due while their handler is paused",
        tier: Tier::N,
        stores: BOTH,
        needs: &[],
        state: runs!(load::resumed),
    },
    Row {
        id: "F23",
        title: "everything that jobs call fails for minutes",
        tier: Tier::N,
        stores: BOTH,
        needs: &[],
        state: State::Waits("a circuit breaker"),
    },
    Row {
        id: "F24",
        title: "the server runs out of transaction ids",
        tier: Tier::W,
        stores: PG,
        needs: &[Need::OwnServer],
        state: runs!(upkeep::out_of_transactions),
    },
    Row {
        id: "F25",
        title: "a transaction that submitted commits late",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(server::late_committer),
    },
    Row {
        id: "F26",
        title: "many long jobs, and a stopped node with some more",
        tier: Tier::N,
        stores: PG,
        needs: &[],
        state: runs!(load::long_jobs),
    },
    Row {
        id: "F27",
        title: "many cancel, replay, pause and finish the same jobs",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(jobs::crowd),
    },
    Row {
        id: "F28",
        title: "schedules of twelve zones over nights in which clocks change",
        tier: Tier::P,
        stores: PG,
        needs: &[Need::OwnServer, Need::FakeTime],
        state: runs!(nights::through_the_nights),
    },
    Row {
        id: "F28",
        title: "schedules of twelve zones over nights in which clocks change",
        tier: Tier::P,
        stores: LITE,
        needs: &[Need::FakeTime],
        state: runs!(nights::through_the_nights),
    },
    Row {
        id: "F29",
        title: "the node that fires schedules is killed or stopped between reading and firing",
        tier: Tier::P,
        stores: PG,
        needs: &[Need::FakeTime],
        state: runs!(schedules::leader_lost),
    },
    Row {
        id: "F29",
        title: "the process that fires schedules is killed between reading and firing",
        tier: Tier::P,
        stores: LITE,
        needs: &[],
        state: runs!(schedules::leader_lost_alone),
    },
    Row {
        id: "F30",
        title: "a pause of a schedule races with its fire",
        tier: Tier::N,
        stores: BOTH,
        needs: &[],
        state: runs!(schedules::paused),
    },
    Row {
        id: "F31",
        title: "64 submits with one key",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(jobs::same_key),
    },
    Row {
        id: "F32",
        title: "a node that looks after the store stalls and goes on",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(nodes::stalled_maintenance),
    },
    Row {
        id: "F33",
        title: "nodes are told to end while they run many jobs",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(nodes::rolled),
    },
    Row {
        id: "F34",
        title: "two connections for 200 handlers that hold transactions",
        tier: Tier::N,
        stores: PG,
        needs: &[],
        state: runs!(resources::few_connections),
    },
    Row {
        id: "F35",
        title: "a dashboard with twenty tabs on ten million jobs",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::OwnServer, Need::Alone],
        state: runs!(tabs::twenty_tabs),
    },
    Row {
        id: "F36",
        title: "two versions on one schema",
        tier: Tier::N,
        stores: PG,
        needs: &[],
        state: State::Waits("a first release"),
    },
    Row {
        id: "F37",
        title: "kill -9 of the writer of a file",
        tier: Tier::P,
        stores: LITE,
        needs: &[],
        state: runs!(sqlite::killed),
    },
    Row {
        id: "F38",
        title: "the disk under a file is full",
        tier: Tier::P,
        stores: LITE,
        needs: &[Need::Root],
        state: runs!(sqlite::disk_full),
    },
    Row {
        id: "F39",
        title: "two processes open one file",
        tier: Tier::P,
        stores: LITE,
        needs: &[],
        state: runs!(sqlite::two_processes),
    },
    Row {
        id: "F40",
        title: "a reader that never ends keeps the log from shrinking",
        tier: Tier::N,
        stores: LITE,
        needs: &[],
        state: runs!(sqlite::long_reader),
    },
    Row {
        id: "F41",
        title: "hostile inputs: no JSON, too deep, too large, hard to keep",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(jobs::hostile),
    },
    Row {
        id: "F42",
        title: "the server stops at once and starts again",
        tier: Tier::P,
        stores: PG,
        needs: &[Need::OwnServer],
        state: runs!(server::immediate_stops),
    },
    Row {
        id: "F43",
        title: "every process of the server is killed",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::OwnServer],
        state: runs!(server::killed),
    },
    Row {
        id: "F44",
        title: "sessions are ended at random",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(server::ended_sessions),
    },
    Row {
        id: "F45",
        title: "the disk under the server is full",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::Root],
        state: runs!(resources::disk_full),
    },
    Row {
        id: "F46",
        title: "the server's disk is slow",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::OwnServer, Need::Groups],
        state: runs!(resources::slow_disk),
    },
    Row {
        id: "F47",
        title: "the server has a tenth of a processor",
        tier: Tier::N,
        stores: PG,
        needs: &[Need::OwnServer, Need::Groups],
        state: runs!(resources::little_processor),
    },
    Row {
        id: "F48",
        title: "a slow network that drops connections",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(network::bad_weather),
    },
    Row {
        id: "F49",
        title: "nodes of a cluster cannot reach each other",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: State::Waits("messages between nodes"),
    },
    Row {
        id: "F50",
        title: "one tenant submits thousands of jobs, another a few",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(network::noisy_tenant),
    },
    Row {
        id: "F51",
        title: "a backup is restored",
        tier: Tier::W,
        stores: PG,
        needs: &[Need::OwnServer],
        state: runs!(upkeep::restored),
    },
    Row {
        id: "F52",
        title: "everything at random, for a long time",
        tier: Tier::W,
        stores: PG,
        needs: &[Need::OwnServer],
        state: runs!(soup::soup),
    },
    Row {
        id: "F52",
        title: "everything at random, for a long time",
        tier: Tier::W,
        stores: LITE,
        needs: &[],
        state: runs!(soup::soup),
    },
    Row {
        id: "F65",
        title: "something else writes into the rows of waiting jobs",
        tier: Tier::P,
        stores: BOTH,
        needs: &[],
        state: runs!(jobs::spoilt),
    },
    Row {
        id: "F66",
        title: "nobody reaches the database for longer than any lease",
        tier: Tier::P,
        stores: PG,
        needs: &[Need::OwnServer],
        state: runs!(network::outage),
    },
    Row {
        id: "F67",
        title: "one of many jobs of a node kills whoever runs it",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(nodes::poisoned_crowd),
    },
    Row {
        id: "F68",
        title: "the connection of a handler's own transaction falls silent",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(locks::silent_handler),
    },
    Row {
        id: "F69",
        title: "somebody holds a lease of a dead node",
        tier: Tier::P,
        stores: PG,
        needs: &[],
        state: runs!(locks::held_lease),
    },
];
