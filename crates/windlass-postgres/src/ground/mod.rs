//! What the rooms stand on: connections, types, migrations. Knows nothing of jobs.

pub(crate) mod connect;
pub(crate) mod functions;
pub(crate) mod migrate;
pub(crate) mod rows;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod tx;
pub(crate) mod types;
pub(crate) mod wake;
pub(crate) mod walls;
