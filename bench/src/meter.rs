//! Which jobs the handler has seen, when and how often. Written by every peer's handler, read by the benches.
//! One per process, because handlers of some peers are plain functions without state.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The most jobs of one run: a minute of the fastest peer, at one byte each.
pub(crate) const MOST: u64 = 1 << 23;

static SEEN: OnceLock<Vec<AtomicU8>> = OnceLock::new();
static DISTINCT: AtomicU64 = AtomicU64::new(0);
static REPEATED: AtomicU64 = AtomicU64::new(0);
static STARTS: OnceLock<Vec<OnceLock<Instant>>> = OnceLock::new();

/// What the no-op handler does: notes that job `number` has started.
pub fn hit(number: u64) {
    if let Some(start) = STARTS.get().and_then(|starts| starts.get(number as usize)) {
        let _ = start.set(Instant::now());
    }
    if seen()[number as usize].swap(1, Relaxed) == 0 {
        DISTINCT.fetch_add(1, Relaxed);
    } else {
        REPEATED.fetch_add(1, Relaxed);
    }
}

/// Makes room before the clock runs.
pub(crate) fn prepare() {
    seen();
}

/// Notes the start of every job below `count` from now on.
pub(crate) fn note_starts(count: u64) {
    STARTS.get_or_init(|| (0..count).map(|_| OnceLock::new()).collect());
}

pub(crate) fn start_of(number: u64) -> Option<Instant> {
    STARTS.get()?.get(number as usize)?.get().copied()
}

/// How many jobs have started.
pub(crate) fn started() -> u64 {
    DISTINCT.load(Relaxed)
}

/// How many starts were of jobs that had started before.
pub(crate) fn repeated() -> u64 {
    REPEATED.load(Relaxed)
}

fn seen() -> &'static [AtomicU8] {
    SEEN.get_or_init(|| (0..MOST).map(|_| AtomicU8::new(0)).collect())
}
