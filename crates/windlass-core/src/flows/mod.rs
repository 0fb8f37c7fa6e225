//! Work that is more than one job: what time starts, jobs that wait for others, and batches.

pub mod batch;
pub mod calendar;
pub mod depend;
pub(crate) mod fire;
pub mod graph;
pub mod schedule;
pub(crate) mod settle;
