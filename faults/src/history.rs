//! A whole run: the events of all processes and what the database holds at the end. Read from the run's directory;
//! given to the checker, which sees nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::event::Event;

/// What the checker judges.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// In order of time.
    pub events: Vec<Event>,
    /// The tables at the end.
    pub dump: Dump,
    /// What the run's settings promise.
    pub rules: Rules,
}

/// The settings that the promises depend on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// The most failures of a job that does not say otherwise.
    pub max_attempts: u16,
    /// The most recoveries.
    pub max_recoveries: u16,
    /// How long a silent node keeps its jobs.
    pub lease_us: u64,
    /// How often nodes look for work and for pauses.
    pub poll_us: u64,
    /// Jobs of one handler that run at once in the whole run, where that is limited.
    pub handler_limits: Vec<(String, usize)>,
    /// How far the machine's wall clock (Unix time) is ahead of its monotonic one.
    pub wall_minus_mono_us: i64,
    /// How far the database's clock is ahead of the machine's wall clock.
    pub database_minus_wall_us: i64,
    /// Whether the database's clock was set while the run was under way: what it says then cannot be compared.
    pub database_clock_jumps: bool,
    /// How many more urgent jobs a claim may pass over, because they were stored while it was under way or for a band's
    /// share.
    pub priority_slack: usize,
    /// Whether every job was to have ended when the dump was taken.
    pub quiet: bool,
    /// What resources may be held when all processes have ended.
    pub bounds: Vec<Bound>,
    /// When the server crashed, by the monotonic clock. It does not wait for the disk when jobs are claimed, so a crash
    /// undoes claims of its last moment: their jobs are handed out again, and the first end is refused.
    pub crashes: Vec<u64>,
    /// Times, by the monotonic clock, in which the store spoke for itself alone: a failover has undone what it said.
    /// `undone` takes it out of the events before the check.
    pub undone: Vec<Undone>,
    /// The nominal times that schedules had to fire, where the row knows them.
    pub promised: Vec<Promised>,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            max_attempts: 3,
            max_recoveries: 3,
            lease_us: 10_000_000,
            poll_us: 1_000_000,
            handler_limits: Vec::new(),
            wall_minus_mono_us: 0,
            database_minus_wall_us: 0,
            database_clock_jumps: false,
            priority_slack: usize::MAX,
            quiet: true,
            bounds: Vec::new(),
            crashes: Vec::new(),
            undone: Vec::new(),
            promised: Vec::new(),
        }
    }
}

/// What a schedule had to fire: its calendar and its policy, worked out by the row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promised {
    /// Whose.
    pub tenant: Uuid,
    /// The schedule.
    pub schedule: String,
    /// Every nominal time, Unix microseconds.
    pub times: Vec<i64>,
}

/// A time of which a failover has left nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    /// What was acknowledged before is safe.
    pub from_us: u64,
    /// When the server that acknowledged it was gone.
    pub to_us: u64,
}

/// Something that must have gone back to a bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// What, such as `sessions` or `open files of worker 3`.
    pub what: String,
    /// What was measured.
    pub measured: f64,
    /// The most there may be.
    pub at_most: f64,
}

/// What the database holds at the end, read by statements of the harness's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dump {
    /// When it was taken, by the monotonic clock.
    pub mono: u64,
    /// Every job.
    pub jobs: Vec<Job>,
    /// Where jobs are: exactly one for each job.
    pub places: Vec<Place>,
    /// Every step that the store kept, in order.
    pub steps: Vec<Step>,
    /// Idempotency and unique keys that are held: kind (`i` or `u`), tenant, key, job.
    pub keys: Vec<Key>,
    /// The maintained count of each ended status, by tenant, as the store would tell it.
    pub counters: Vec<Counter>,
    /// Jobs whose time was over when the counts were read, but whose rows are still there.
    #[serde(default)]
    pub hidden: Vec<i64>,
    /// Jobs that were purged or cleaned on purpose.
    pub purged: Vec<i64>,
    /// Rows that callers wrote in the transactions in which they submitted: the call of each.
    pub side_rows: Vec<u64>,
    /// Session-level leftovers that must not be there: advisory locks, sessions idle in a transaction.
    pub leftovers: Vec<String>,
}

/// A job's own row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub job: i64,
    /// Whose it is.
    pub tenant: Uuid,
    /// Its handler.
    pub handler: String,
    /// The call that submitted it, from its input; none for callbacks and rows made by SQL.
    pub call: Option<u64>,
    /// The tenant that its input names.
    pub canary: Option<Uuid>,
    /// Its ordering key.
    pub ordering: Option<String>,
    /// Its priority.
    pub priority: i16,
    /// When it was stored, Unix microseconds of the database.
    pub created_at: i64,
    /// When it is due, if that lay ahead.
    pub run_at: Option<i64>,
    /// The job it follows: a callback or a replay.
    pub parent: Option<i64>,
    /// The schedule that has started it.
    #[serde(default)]
    pub schedule: Option<String>,
    /// The nominal time it is for, Unix microseconds.
    #[serde(default)]
    pub nominal: Option<i64>,
}

/// Where a job is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The job.
    pub job: i64,
    /// The table: `ready`, `scheduled`, `gated`, `lease` or `outcome`.
    pub table: String,
    /// The status that follows from it.
    pub status: String,
    /// The attempts that have begun, where the table tells.
    pub attempt: u16,
    /// The failures.
    pub failed: u16,
    /// The recoveries.
    pub recoveries: u16,
    /// The lease that holds it.
    pub lease: Option<i64>,
    /// When that lease was taken, or the job ended; Unix microseconds of the database.
    pub at: Option<i64>,
    /// Why it ended, where that is kept.
    pub reason: Option<String>,
}

/// A step that the store kept of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The job.
    pub job: i64,
    /// The status it went to.
    pub status: String,
    /// The attempt.
    pub attempt: u16,
    /// The failures from then on.
    pub failed: u16,
    /// The recoveries from then on.
    pub recoveries: u16,
}

/// A held key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// `i` for idempotency, `u` for unique.
    pub kind: String,
    /// Whose.
    pub tenant: Uuid,
    /// The handler, for idempotency keys.
    pub scope: String,
    /// The key.
    pub key: String,
    /// Who holds it.
    pub job: i64,
}

/// A maintained count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    /// Whose.
    pub tenant: Uuid,
    /// Of which status.
    pub status: String,
    /// How many.
    pub count: i64,
}

/// Reads the events of every file `*.events` in a directory, each line once: rows ask many times a second, and to read
/// everything anew each time would take the processor away from what is measured.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    /// How far each file was read: bytes and lines.
    read: BTreeMap<PathBuf, (u64, usize)>,
    events: Arc<Vec<Event>>,
}

impl Reader {
    /// Of this directory, with nothing read yet.
    pub fn new(dir: &Path) -> Reader {
        Reader { dir: dir.to_owned(), read: BTreeMap::new(), events: Arc::default() }
    }

    /// All events so far, in order of time. The last line of a process that was killed may be cut short; any other line
    /// that cannot be read is an error.
    pub fn events(&mut self) -> Result<Arc<Vec<Event>>> {
        let mut new = Vec::new();
        for entry in fs::read_dir(&self.dir).with_context(|| format!("read {}", self.dir.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "events") {
                let (bytes, lines) = self.read.entry(path.clone()).or_default();
                read_more(&path, bytes, lines, &mut new).with_context(|| format!("read {}", path.display()))?;
            }
        }
        if !new.is_empty() {
            let events = Arc::make_mut(&mut self.events);
            events.append(&mut new);
            events.sort_by_key(|event| event.mono);
        }
        Ok(self.events.clone())
    }
}

/// Reads the whole lines behind `bytes`.
fn read_more(path: &Path, bytes: &mut u64, lines: &mut usize, events: &mut Vec<Event>) -> Result<()> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(*bytes))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    for line in text[..whole].split_inclusive(|byte| *byte == b'\n') {
        *lines += 1;
        events.push(serde_json::from_slice(line).with_context(|| format!("line {lines}"))?);
    }
    *bytes += whole as u64;
    Ok(())
}
