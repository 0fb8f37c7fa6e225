//! The file in which a process of a run writes what it does, a line at a time. One line is one write, so that what is
//! written is there even if the process is killed right after. Written by every process; never read by the one that
//! writes it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::event::{Event, What};

/// A process's own file of events. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Log {
    proc: u32,
    file: Arc<File>,
}

impl Log {
    /// Opens the file of process `proc`, or makes it.
    pub fn open(path: &Path, proc: u32) -> Result<Log> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        Ok(Log { proc, file: Arc::new(file) })
    }

    /// Writes what has just happened.
    pub fn note(&self, what: What) {
        let event = Event { proc: self.proc, mono: mono(), what };
        let mut line = serde_json::to_vec(&event).expect("an event is JSON");
        line.push(b'\n');
        (&*self.file).write_all(&line).expect("the file of events can be written");
    }

    /// The number of this process.
    pub fn proc(&self) -> u32 {
        self.proc
    }
}

/// Microseconds of the machine's monotonic clock, the same in every process.
pub fn mono() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).expect("the clock started at zero") * 1_000_000
        + u64::try_from(now.tv_nsec).expect("never negative") / 1_000
}
