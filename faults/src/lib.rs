//! Faults on real processes and real databases, and a checker of what happened. `cargo xtask faults` runs it; nothing
//! here is part of what users get.

pub mod check;
pub mod event;
pub mod history;
pub mod proxy;
pub mod report;
