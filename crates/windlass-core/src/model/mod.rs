//! What a job is: its values and the rules that hold for them alone. Nothing here knows a store, a node or a runtime.

pub(crate) mod clock;
pub(crate) mod id;
pub(crate) mod tenant;
pub(crate) mod payload;
pub(crate) mod priority;
pub(crate) mod retry;
pub(crate) mod error;
pub(crate) mod job;
pub mod filter;
pub(crate) mod sensitive;
