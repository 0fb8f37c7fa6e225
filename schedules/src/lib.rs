//! Runs the real code of submit, finish, look-up and shutdown under `shuttle`, which decides at every step who goes on:
//! at random or by priorities, from a seed that it prints when something fails. `build.rs` copies windlass-core with the
//! system replaced by `simulated`; the tests are in the files named after what they test. Nothing else uses this crate.
#![cfg(test)]
#![allow(
    dead_code,
    unused,
    unexpected_cfgs,
    missing_docs,
    unreachable_pub,
    private_interfaces,
    clippy::all,
    reason = "a copy, checked where it is written"
)]

include!(concat!(env!("OUT_DIR"), "/core/lib.rs"));

mod simulated;

mod finishing;
mod looking_up;
mod shutting_down;
mod submitting;
