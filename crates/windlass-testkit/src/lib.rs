//! Test helpers for Windlass. For users: [`Harness`], which runs your handlers inline with time in your hand. For
//! Windlass itself: what every store must do (`conformance`), what the service promises on every store (`behaviour`),
//! and throwaway servers to run both on. Never used by production code.

pub mod behaviour;
pub mod conformance;
mod harness;
pub mod hostile;
#[cfg(unix)]
pub mod servers;

pub use harness::Harness;

/// The README of this crate, compiled as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
