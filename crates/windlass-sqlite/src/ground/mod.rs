//! What the rooms stand on: connections, types, migrations. Knows nothing of jobs.

pub(crate) mod backup;
pub(crate) mod lock;
pub(crate) mod migrate;
pub(crate) mod place;
pub(crate) mod private;
pub(crate) mod readers;
pub(crate) mod rows;
pub(crate) mod secrets;
pub(crate) mod tx;
pub(crate) mod writer;
