//! Test helpers for Windlass. `conformance` is the suite every store runs; store crates hold only the call to it.
//! Never used by production code.

pub mod conformance;
