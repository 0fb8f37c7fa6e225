//! Test helpers for Windlass: what every store must do (`conformance`), what the service promises on every store
//! (`behaviour`), and throwaway servers to run both on. Never used by production code.

pub mod behaviour;
pub mod conformance;
#[cfg(unix)]
pub mod servers;
