//! How values become columns and back, and what SQLite's errors mean to a caller. Used by every step.
//! Never runs a statement.

use rusqlite::types::ValueRef;
use rusqlite::{Row, ffi};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;
use windlass_core::store::{self, suspect_queue};
use windlass_core::{JobError, JobId, Payload, Priority, Status, TenantId, Timestamp};

/// Why a step failed, before a caller's error is made of it.
#[derive(Debug)]
pub(crate) enum Fault {
    Sql(rusqlite::Error),
    Store(store::Error),
}

/// The result of a step.
pub(crate) type Done<T> = Result<T, Fault>;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sql(error)
    }
}

impl From<store::Error> for Fault {
    fn from(error: store::Error) -> Self {
        Fault::Store(error)
    }
}

impl From<Fault> for store::Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Sql(error) => sql_error(&error),
            Fault::Store(error) => error,
        }
    }
}

/// A fault that only a bug, or a file someone else has changed, can cause.
pub(crate) fn internal(message: impl Into<String>) -> Fault {
    Fault::Store(store::Error::Internal(message.into()))
}

/// A column that holds what Windlass does not write.
pub(crate) fn unreadable(column: impl Into<String>, why: impl Into<String>) -> Fault {
    Fault::Store(store::Error::Unreadable { column: column.into(), why: why.into() })
}

impl Fault {
    /// Whether a row could not be read, which says nothing about any other row.
    pub(crate) fn is_unreadable(&self) -> bool {
        match self {
            Fault::Sql(error) => matches!(sql_error(error), store::Error::Unreadable { .. }),
            Fault::Store(error) => matches!(error, store::Error::Unreadable { .. }),
        }
    }
}

/// A row, unless it cannot be read: then it is left out, because it must not hide the others.
pub(crate) fn readable<T>(read: Done<T>) -> Done<Option<T>> {
    match read {
        Err(fault) if fault.is_unreadable() => {
            let error = store::Error::from(fault);
            tracing::error!(%error, "skipped an unreadable row: {error}");
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Reads as much of a row as can be read, for jobs that people or maintenance must still be able to get at.
#[derive(Default)]
pub(crate) struct Lenient(std::cell::OnceCell<store::Error>);

impl Lenient {
    /// What was read, or `otherwise` if it could not be.
    pub(crate) fn or<T>(&self, otherwise: T, read: Done<T>) -> T {
        read.unwrap_or_else(|fault| {
            // The first is what people are told.
            let _ = self.0.set(fault.into());
            otherwise
        })
    }

    /// What could not be read, if anything.
    pub(crate) fn failure(self) -> Option<store::Error> {
        self.0.into_inner()
    }
}

/// What an error of SQLite means to a caller, where it is certain that nothing was written.
pub(crate) fn sql_error(error: &rusqlite::Error) -> store::Error {
    let message = error.to_string();
    let of = |column: String| store::Error::Unreadable { column, why: message.clone() };
    let failure = match error {
        rusqlite::Error::SqliteFailure(failure, _) => failure,
        rusqlite::Error::InvalidColumnType(_, name, _) => return of(name.clone()),
        rusqlite::Error::FromSqlConversionFailure(n, ..) | rusqlite::Error::IntegralValueOutOfRange(n, _) => {
            return of(n.to_string());
        }
        rusqlite::Error::Utf8Error(n, ..) => return of(n.to_string()),
        _ => return store::Error::Internal(message),
    };
    match failure.code {
        ffi::ErrorCode::DiskFull => store::Error::Full(message),
        ffi::ErrorCode::SystemIoFailure
        | ffi::ErrorCode::DatabaseBusy
        | ffi::ErrorCode::DatabaseLocked
        | ffi::ErrorCode::CannotOpen
        | ffi::ErrorCode::OperationInterrupted
        | ffi::ErrorCode::OutOfMemory => store::Error::Unavailable(message),
        ffi::ErrorCode::ReadOnly | ffi::ErrorCode::PermissionDenied => store::Error::Refused(message),
        _ => store::Error::Internal(message),
    }
}

/// The same error again, because everyone in a failed group is told.
pub(crate) fn same_error(error: &store::Error) -> store::Error {
    use store::Error::*;
    match error {
        Unavailable(message) => Unavailable(message.clone()),
        Unknown(message) => Unknown(message.clone()),
        Full(message) => Full(message.clone()),
        InvalidInput(error) => InvalidInput(error.clone()),
        QuotaExceeded(error) => QuotaExceeded(error.clone()),
        Refused(message) => Refused(message.clone()),
        Unreadable { .. } => error.clone(),
        other => Internal(other.to_string()),
    }
}

/// Ids as a chunk keeps them.
pub(crate) fn pack_ids(ids: &[i64]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Ids from a chunk.
pub(crate) fn unpack_ids(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id)).collect()
}

/// A job as its lease keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leased {
    pub(crate) id: i64,
    pub(crate) failed: u16,
    pub(crate) recoveries: u16,
}

impl Leased {
    /// The number of the attempt that holds it.
    pub(crate) fn attempt(&self) -> u16 {
        self.failed.saturating_add(self.recoveries).saturating_add(1)
    }
}

/// Jobs as a lease keeps them: 12 bytes each.
pub(crate) fn pack_leased(jobs: &[Leased]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(jobs.len() * 12);
    for job in jobs {
        bytes.extend_from_slice(&job.id.to_le_bytes());
        bytes.extend_from_slice(&job.failed.to_le_bytes());
        bytes.extend_from_slice(&job.recoveries.to_le_bytes());
    }
    bytes
}

/// Jobs from a lease.
pub(crate) fn unpack_leased(bytes: &[u8]) -> Vec<Leased> {
    let one = |b: &[u8; 12]| Leased {
        id: i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
        failed: u16::from_le_bytes([b[8], b[9]]),
        recoveries: u16::from_le_bytes([b[10], b[11]]),
    };
    bytes.as_chunks::<12>().0.iter().map(one).collect()
}

/// Where a job waits: in its own queue, or among the suspects once a node was lost with it.
pub(crate) fn home_queue(queue: &str, recoveries: u16) -> String {
    if recoveries > 0 { suspect_queue(queue, recoveries) } else { queue.to_owned() }
}

/// A list of ids for `json_each`.
pub(crate) fn json_ids(ids: &[i64]) -> String {
    let numbers: Vec<String> = ids.iter().map(i64::to_string).collect();
    format!("[{}]", numbers.join(","))
}

/// JSON of a value that always has one.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Done<String> {
    serde_json::to_string(value).map_err(|e| internal(format!("cannot write a value as JSON: {e}")))
}

/// A value from JSON the store wrote.
pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Done<T> {
    serde_json::from_str(text).map_err(|e| unreadable("JSON", e.to_string()))
}

/// A count for a column; what does not fit is more than any file holds.
pub(crate) fn as_i64(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Typed columns of a row.
pub(crate) trait Columns {
    fn tenant(&self, index: usize) -> Done<TenantId>;
    fn time(&self, index: usize) -> Done<Timestamp>;
    fn time_opt(&self, index: usize) -> Done<Option<Timestamp>>;
    fn status(&self, index: usize) -> Done<Status>;
    fn small(&self, index: usize) -> Done<u16>;
    fn priority(&self, index: usize) -> Done<Priority>;
    fn text(&self, index: usize) -> Done<String>;
    fn error(&self, index: usize) -> Done<Option<JobError>>;
    fn payload_opt(&self, index: usize) -> Done<Option<Payload>>;
    fn blob(&self, index: usize) -> Done<&[u8]>;
    /// JSON, or the default where there is none.
    fn json_or_default<T: DeserializeOwned + Default>(&self, index: usize) -> Done<T>;
}

impl Columns for Row<'_> {
    fn tenant(&self, index: usize) -> Done<TenantId> {
        let uuid = Uuid::from_slice(self.blob(index)?).map_err(|_| unreadable("tenant", "not a UUID"))?;
        Ok(TenantId(uuid))
    }

    fn time(&self, index: usize) -> Done<Timestamp> {
        Ok(Timestamp::from_micros(self.get(index)?))
    }

    fn time_opt(&self, index: usize) -> Done<Option<Timestamp>> {
        Ok(self.get::<_, Option<i64>>(index)?.map(Timestamp::from_micros))
    }

    fn status(&self, index: usize) -> Done<Status> {
        let code: i64 = self.get(index)?;
        let status = i16::try_from(code).ok().and_then(Status::from_code);
        status.ok_or_else(|| unreadable("status", format!("unknown status {code}")))
    }

    fn small(&self, index: usize) -> Done<u16> {
        Ok(u16::try_from(self.get::<_, i64>(index)?.max(0)).unwrap_or(u16::MAX))
    }

    fn priority(&self, index: usize) -> Done<Priority> {
        let raw: i64 = self.get(index)?;
        Ok(Priority(raw.clamp(i64::from(i16::MIN), i64::from(i16::MAX)) as i16))
    }

    fn text(&self, index: usize) -> Done<String> {
        Ok(self.get(index)?)
    }

    fn error(&self, index: usize) -> Done<Option<JobError>> {
        self.get::<_, Option<String>>(index)?.map(|text| from_json(&text)).transpose()
    }

    fn payload_opt(&self, index: usize) -> Done<Option<Payload>> {
        Ok(self.get::<_, Option<String>>(index)?.map(Payload::from_store))
    }

    fn blob(&self, index: usize) -> Done<&[u8]> {
        match self.get_ref(index)? {
            ValueRef::Blob(bytes) => Ok(bytes),
            other => Err(unreadable(column_name(self, index), format!("expected bytes, found {}", other.data_type()))),
        }
    }

    fn json_or_default<T: DeserializeOwned + Default>(&self, index: usize) -> Done<T> {
        match self.get_ref(index)? {
            ValueRef::Null => Ok(T::default()),
            ValueRef::Text(text) => {
                serde_json::from_slice(text).map_err(|e| unreadable(column_name(self, index), e.to_string()))
            }
            other => Err(unreadable(column_name(self, index), format!("expected text, found {}", other.data_type()))),
        }
    }
}

fn column_name(row: &Row<'_>, index: usize) -> String {
    row.as_ref().column_name(index).map_or_else(|_| index.to_string(), ToOwned::to_owned)
}

/// An id from a column.
pub(crate) fn job_id(raw: i64) -> JobId {
    JobId::from_i64(raw)
}

/// A tenant as a column keeps it.
pub(crate) fn tenant_bytes(tenant: &TenantId) -> &[u8] {
    tenant.0.as_bytes()
}

/// Sequences and terms count up from 1; a file that was changed may say anything.
pub(crate) fn sequence(column: i64) -> u64 {
    u64::try_from(column).unwrap_or(0)
}

pub(crate) fn column(sequence: u64) -> i64 {
    i64::try_from(sequence).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let ids = [1, -5, i64::MAX];
        assert_eq!(unpack_ids(&pack_ids(&ids)), ids);
        let jobs =
            [Leased { id: i64::MIN, failed: 3, recoveries: 700 }, Leased { id: 9, failed: u16::MAX, recoveries: 0 }];
        assert_eq!(unpack_leased(&pack_leased(&jobs)), jobs);
        assert!(unpack_ids(&[1, 2, 3]).is_empty(), "a torn id is no id");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_as_far_as_they_go(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let (ids, leased) = (unpack_ids(&bytes), unpack_leased(&bytes));
            proptest::prop_assert_eq!(pack_ids(&ids), &bytes[..bytes.len() / 8 * 8]);
            proptest::prop_assert_eq!(pack_leased(&leased), &bytes[..bytes.len() / 12 * 12]);
            // A file that was changed may say anything; counting on from it must not overflow.
            proptest::prop_assert!(leased.iter().all(|job| job.attempt() >= 1));
        }
    }
}
