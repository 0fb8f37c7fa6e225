//! Work that is more than one job: what time starts.

pub mod calendar;
pub(crate) mod fire;
pub mod schedule;
