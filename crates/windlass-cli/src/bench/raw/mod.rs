//! The physical limit: the rows of a scenario written by plain statements alone, with no service, no handlers and no
//! coalescing between callers. Called by `rates` and `quiet`, in the same run and on the same kind of place. Writes what
//! the stores write (jobs, ready chunks, leases, outcomes, counters) by the shortest statements that do, so the ratio to
//! it says what everything else costs.

mod postgres;
mod sqlite;

use std::time::Duration;

use windlass::{IdGenerator, MachineSlot, Timestamp};

use crate::bench::place::Throwaway;
use crate::error::{CliError, Result};

pub(crate) use crate::bench::raw::postgres::Inserts as PostgresInserts;
pub(crate) use crate::bench::raw::sqlite::Inserts as SqliteInserts;

/// What to write.
#[derive(Clone, Debug)]
pub(crate) struct RawLoad {
    pub(crate) jobs: u64,
    /// Callers whose jobs are written together: all that wait when a writer is free.
    pub(crate) submitters: usize,
    /// Jobs in one call; more than one is a batch with an id of its own.
    pub(crate) batch: u64,
    /// Jobs in one claim.
    pub(crate) workers: usize,
    pub(crate) payload_bytes: usize,
}

/// Jobs in a chunk of the ready queue and in a part of a lease, as the stores keep them.
const CHUNK: usize = windlass::store::CHUNK_JOBS;
/// The most that one claim takes, as in the service.
const CLAIM: usize = 2_000;

/// Writes jobs as `submit` does. Nothing for memory, which has no statements.
pub(crate) async fn submit(place: &Throwaway, load: &RawLoad) -> Result<Option<Duration>> {
    match (place.database(), place.file()) {
        (Some(database), _) => postgres::submit(database.url, load).await.map(Some),
        (_, Some(file)) => blocking(file, load, sqlite::submit).await.map(Some),
        _ => Ok(None),
    }
}

/// Claims and ends jobs that wait, as `drain` does.
pub(crate) async fn drain(place: &Throwaway, load: &RawLoad) -> Result<Option<Duration>> {
    match (place.database(), place.file()) {
        (Some(database), _) => postgres::drain(database.url, load).await.map(Some),
        (_, Some(file)) => blocking(file, load, sqlite::drain).await.map(Some),
        _ => Ok(None),
    }
}

/// Writes jobs under a lease and ends them, as `end-to-end` does.
pub(crate) async fn end_to_end(place: &Throwaway, load: &RawLoad) -> Result<Option<Duration>> {
    match (place.database(), place.file()) {
        (Some(database), _) => postgres::end_to_end(database.url, load).await.map(Some),
        (_, Some(file)) => blocking(file, load, sqlite::end_to_end).await.map(Some),
        _ => Ok(None),
    }
}

async fn blocking(
    file: &std::path::Path,
    load: &RawLoad,
    run: fn(&std::path::Path, &RawLoad) -> Result<Duration>,
) -> Result<Duration> {
    let (file, load) = (file.to_owned(), load.clone());
    let run = tokio::task::spawn_blocking(move || run(&file, &load));
    run.await.map_err(|error| CliError::Failed(format!("the raw statements panicked: {error}")))?
}

/// Ids of the current week, of a machine slot that no node is given first.
fn ids() -> IdGenerator {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    IdGenerator::new(MachineSlot::new(1_022).expect("the last slot"), Timestamp::from_millis(now.as_millis() as i64))
}

/// A measurement that did not do its work is worth nothing.
fn check_count(what: &str, found: i64, wanted: u64) -> Result {
    if found == wanted as i64 {
        return Ok(());
    }
    Err(CliError::Failed(format!("the raw statements left {found} {what}, expected {wanted}")))
}
