//! Job ids: 64-bit snowflakes that sort by time, and the generator that makes them. Called by `submit` and by tests.
//! Never asks a clock of the machine: it starts from the store's time and counts on with monotonic time.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::model::clock::Timestamp;
use crate::model::error::InvalidInput;

/// 2025-01-01T00:00:00Z, the zero of the time part of ids.
pub const ID_EPOCH: Timestamp = Timestamp::from_millis(1_735_689_600_000);
const MACHINE_BITS: u32 = 10;
const SEQUENCE_BITS: u32 = 12;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;

/// The id of a job: 42 bits of milliseconds since 2025, 10 bits of machine slot, 12 bits of sequence.
///
/// A decimal string in JSON and URLs, because browsers round integers above 2^53.
///
/// ```
/// use windlass_core::JobId;
/// let id: JobId = "123456789012345".parse().unwrap();
/// assert_eq!(serde_json::to_string(&id).unwrap(), "\"123456789012345\"");
/// assert_eq!(id.sequence(), (123456789012345_u64 & 4095) as u16);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u64);

impl JobId {
    /// From the number stored in a database.
    pub const fn from_i64(raw: i64) -> Self {
        JobId(raw as u64)
    }

    /// The number as databases store it.
    pub const fn as_i64(self) -> i64 {
        self.0 as i64
    }

    /// Puts an id together from its parts.
    pub fn from_parts(created: Timestamp, slot: MachineSlot, sequence: u16) -> Self {
        let ms = (created.as_millis() - ID_EPOCH.as_millis()).max(0) as u64;
        JobId(ms << (MACHINE_BITS + SEQUENCE_BITS) | (slot.0 as u64) << SEQUENCE_BITS | sequence as u64 & SEQUENCE_MASK)
    }

    /// When the id was created, to the millisecond (a busy generator borrows from the following ones).
    pub const fn created(self) -> Timestamp {
        Timestamp::from_millis((self.0 >> (MACHINE_BITS + SEQUENCE_BITS)) as i64 + ID_EPOCH.as_millis())
    }

    /// The machine slot of the process that created it.
    pub const fn machine(self) -> MachineSlot {
        MachineSlot((self.0 >> SEQUENCE_BITS) as u16 & 1023)
    }

    /// Its number within the millisecond.
    pub const fn sequence(self) -> u16 {
        (self.0 & SEQUENCE_MASK) as u16
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for JobId {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(JobId)
    }
}

impl Serialize for JobId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| serde::de::Error::custom("expected a job id as a decimal string"))
    }
}

/// The machine part of ids, 0 to 1023, leased from the store by every process that submits. 1023 is the database's own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct MachineSlot(u16);

impl MachineSlot {
    /// The first.
    pub const FIRST: MachineSlot = MachineSlot(0);
    /// The slot of ids that the database creates itself (plain SQL submits); never leased.
    pub const DATABASE: MachineSlot = MachineSlot(1023);

    /// A slot that a process may have: 0 to 1022. Others would reach into the time of their ids.
    pub fn new(slot: u16) -> Result<MachineSlot, InvalidInput> {
        match slot < MachineSlot::DATABASE.0 {
            true => Ok(MachineSlot(slot)),
            false => Err(InvalidInput::new("slot", format!("{slot} is out of range, 0 to 1022 are allowed"))),
        }
    }

    /// Its number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for MachineSlot {
    type Error = InvalidInput;

    fn try_from(slot: u16) -> Result<MachineSlot, InvalidInput> {
        MachineSlot::new(slot)
    }
}

impl From<MachineSlot> for u16 {
    fn from(slot: MachineSlot) -> u16 {
        slot.0
    }
}

/// Creates ids for one machine slot. When a millisecond is full it borrows from the next one; when the clock steps back
/// it continues from its last id. It never repeats an id and never blocks.
#[derive(Debug)]
pub struct IdGenerator {
    slot: MachineSlot,
    started: Instant,
    base_ms: u64,
    /// Milliseconds and sequence as one number, so that an overflow of the sequence carries into the milliseconds.
    last_tick: AtomicU64,
}

impl IdGenerator {
    /// A generator that continues after `now`, the store's time at registration.
    pub fn new(slot: MachineSlot, now: Timestamp) -> Self {
        let base_ms = (now.as_millis() - ID_EPOCH.as_millis()).max(0) as u64;
        IdGenerator { slot, started: Instant::now(), base_ms, last_tick: AtomicU64::new(base_ms << SEQUENCE_BITS) }
    }

    /// The next id.
    pub fn next(&self) -> JobId {
        self.next_at(self.base_ms + self.started.elapsed().as_millis() as u64)
    }

    fn next_at(&self, now_ms: u64) -> JobId {
        let floor = now_ms << SEQUENCE_BITS;
        let previous = self
            .last_tick
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(floor.max(last + 1)))
            .expect("the update always returns a value");
        let tick = floor.max(previous + 1);
        let (ms, sequence) = (tick >> SEQUENCE_BITS, tick & SEQUENCE_MASK);
        JobId(ms << (MACHINE_BITS + SEQUENCE_BITS) | (self.slot.0 as u64) << SEQUENCE_BITS | sequence)
    }
}

/// One incarnation of a process. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub i64);

/// One claimed batch: the fence of its jobs. Created by the node, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub i64);

/// What a write to a running job must name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The job.
    pub job: JobId,
    /// The lease it is held under.
    pub lease: LeaseId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// SUB-1: a slot that does not fit its ten bits would change the time of its ids.
    #[test]
    fn a_slot_beyond_the_last_is_refused() {
        assert_eq!(MachineSlot::new(1_022).map(MachineSlot::get), Ok(1_022));
        for slot in [1_023, 1_024, u16::MAX] {
            assert!(MachineSlot::new(slot).is_err(), "{slot}");
            assert!(serde_json::from_str::<MachineSlot>(&slot.to_string()).is_err(), "{slot}");
        }
        assert_eq!(serde_json::to_string(&MachineSlot::FIRST).expect("writes"), "0");
    }

    #[test]
    fn parts_read_back() {
        let created = Timestamp::from_millis(1_800_000_000_123);
        let id = JobId::from_parts(created, MachineSlot(777), 4095);
        assert_eq!((id.created(), id.machine(), id.sequence()), (created, MachineSlot(777), 4095));
        assert_eq!(JobId::from_i64(id.as_i64()), id);
    }

    #[test]
    fn a_full_millisecond_borrows_from_the_next() {
        let ids = IdGenerator::new(MachineSlot(1), ID_EPOCH);
        let mut last = ids.next_at(5);
        for _ in 0..10_000 {
            let next = ids.next_at(5);
            assert!(next > last);
            last = next;
        }
        assert!(last.created() > ID_EPOCH + std::time::Duration::from_millis(5));
    }

    proptest! {
        #[test]
        fn ids_never_repeat_however_the_clock_moves(times in prop::collection::vec(0u64..1_000, 1..2_000)) {
            let ids = IdGenerator::new(MachineSlot(3), ID_EPOCH);
            let mut last = None;
            for ms in times {
                let id = ids.next_at(ms);
                prop_assert!(Some(id) > last);
                last = Some(id);
            }
        }
    }

    #[test]
    fn threads_share_a_generator_without_repeats() {
        let ids = IdGenerator::new(MachineSlot(9), ID_EPOCH);
        let mut all: Vec<JobId> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..20_000).map(|_| ids.next()).collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect()
        });
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 80_000);
    }
}
