//! The HTTP API, live events, metrics and dashboard of Windlass. Mounted in a program's own axum router or served by
//! `windlass serve`. Does nothing that the public Rust API cannot do, and writes no SQL.

pub mod dashboard;
