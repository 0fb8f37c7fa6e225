//! The pages: plain data in, HTML out. Pure, so that each page is tested without a server. Filled and called by `routes`.
//! Everything that comes from a job is text to them: nothing here writes markup that it did not make itself.

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod bulk;
pub(crate) mod failures;
pub(crate) mod handlers;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod login;
pub(crate) mod nodes;
pub(crate) mod overview;
pub(crate) mod problem;
pub(crate) mod schedules;
pub(crate) mod submit;
pub(crate) mod table;
pub(crate) mod tenants;

#[cfg(test)]
mod tests;
