//! The steps of a job's life, in their order: submit, claim, run, decide, finish.

pub(crate) mod submit;
pub(crate) mod submitter;
pub(crate) mod claim;
pub(crate) mod run;
pub(crate) mod handler;
pub(crate) mod handler_ref;
pub(crate) mod context;
pub mod lifecycle;
pub(crate) mod finish;
pub mod notes;
pub(crate) mod logs;
pub(crate) mod spawn;
pub(crate) mod checkout;
