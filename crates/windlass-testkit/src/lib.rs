//! Being written.

#[cfg(unix)]
pub mod servers;
