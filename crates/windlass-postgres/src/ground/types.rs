//! How values cross the wire that `tokio-postgres` does not know: the store's timestamps and JSON as text. Used by every
//! module that reads or writes rows. Never parses JSON: payloads stay the text they came as.

use bytes::{BufMut, BytesMut};
use std::error::Error;
use std::fmt;
use std::time::Duration;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;
use windlass_core::Scope;
use windlass_core::{JobError, JobSpec, Payload, Timestamp};

/// Microseconds between 1970 and 2000, where PostgreSQL counts from.
const EPOCH_2000: i64 = 946_684_800_000_000;
/// The earliest and latest times that PostgreSQL keeps (4713 BC, AD 294276), with room for the change of epoch.
const EARLIEST: i64 = -210_866_803_200_000_000;
const LATEST: i64 = i64::MAX - EPOCH_2000 - 1;

/// A `timestamptz`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Timestamp);

impl<'a> FromSql<'a> for Time {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        Ok(Time(Timestamp::from_micros(micros.saturating_add(EPOCH_2000))))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

impl ToSql for Time {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_i64(self.0.as_micros().clamp(EARLIEST + EPOCH_2000, LATEST) - EPOCH_2000);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

/// JSON as its text.
#[derive(Clone, Copy)]
pub(crate) struct Json<'a>(pub(crate) &'a str);

impl fmt::Debug for Json<'_> {
    /// Only the size: the driver logs parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json({} bytes)", self.0.len())
    }
}

impl<'a> FromSql<'a> for Json<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Json(std::str::from_utf8(raw)?))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSON
    }
}

impl ToSql for Json<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSON
    }

    to_sql_checked!();
}

/// JSON text that the statement owns.
#[derive(Clone)]
pub(crate) struct JsonText(pub(crate) String);

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Json(&self.0), f)
    }
}

impl ToSql for JsonText {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        Json(&self.0).to_sql(ty, out)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSON
    }

    to_sql_checked!();
}

impl Json<'_> {
    pub(crate) fn payload(self) -> Payload {
        Payload::from_store(self.0)
    }

    /// What a job carries besides its input, for an attempt; why not, if it cannot be read: a job must not run without
    /// what its submitter asked for.
    pub(crate) fn read(self) -> Result<JobSpec, String> {
        serde_json::from_str(self.0).map_err(|error| error.to_string())
    }

    /// The same for people. Rows that something else wrote may hold anything: what cannot be read is left out.
    pub(crate) fn spec(self) -> JobSpec {
        serde_json::from_str(self.0).unwrap_or_default()
    }

    pub(crate) fn error(self) -> JobError {
        serde_json::from_str(self.0).unwrap_or_else(|_| JobError::retryable(self.0))
    }
}

/// Durations go over as microseconds; a thousand years stand for anything longer, which timestamps could not hold.
pub(crate) fn micros(duration: Duration) -> i64 {
    const LONGEST: u128 = 1_000 * 365 * 24 * 60 * 60 * 1_000_000;
    duration.as_micros().min(LONGEST) as i64
}

/// Attempts and failures are counted in 16 bits; rows hold more because SQL adds them up.
pub(crate) fn counter(stored: i32) -> u16 {
    stored.clamp(0, i32::from(u16::MAX)) as u16
}

/// Seconds for `make_interval`; a thousand years stand for anything longer.
pub(crate) fn seconds(duration: Duration) -> f64 {
    micros(duration) as f64 / 1e6
}

/// Sequences and terms count up from 1; a row that someone has changed may say anything.
pub(crate) fn sequence(column: i64) -> u64 {
    u64::try_from(column).unwrap_or(0)
}

pub(crate) fn column(sequence: u64) -> i64 {
    i64::try_from(sequence).unwrap_or(i64::MAX)
}

pub(crate) fn tenant(scope: Scope) -> Option<Uuid> {
    scope.tenant().map(|tenant| tenant.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_can_be_written() {
        for micros in [i64::MIN, -1, 0, 1_800_000_000_000_000, i64::MAX] {
            let mut out = BytesMut::new();
            Time(Timestamp::from_micros(micros)).to_sql(&Type::TIMESTAMPTZ, &mut out).expect("written");
            let back = Time::from_sql(&Type::TIMESTAMPTZ, &out).expect("read");
            if (0..=1_800_000_000_000_000).contains(&micros) {
                assert_eq!(back.0.as_micros(), micros);
            }
        }
    }

    #[test]
    fn any_duration_can_be_written() {
        assert_eq!(micros(Duration::from_millis(5)), 5_000);
        assert!(micros(Duration::MAX) > 0);
    }
}
