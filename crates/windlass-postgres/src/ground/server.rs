//! Which server a connection leads to, and whether it is still the right one. After a failover the old primary may come
//! back on its old address and accept writes that nobody will ever see; a store that has seen the new one refuses it.
//! Called by `connect` for every new connection. Never stores anything: a server cannot testify about itself.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error as PgError};
use windlass_core::store::{Error, Result};

/// The place of a server in the history of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Given to the data when it was made; copies keep it.
    system: i64,
    /// Counts the promotions.
    timeline: i32,
}

/// One row, read from shared memory and one small file. The name of the current log file begins with the timeline, and is
/// right from the moment of a promotion on; the control file would tell it only after the next checkpoint.
const ASK: &str = "select (pg_control_system()).system_identifier,
       ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int";

impl Server {
    /// Asks who answers; nothing where the server will not tell, as some that are hosted by others.
    pub(crate) async fn ask(client: &Client) -> std::result::Result<Option<Server>, PgError> {
        let none: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 0] = [];
        match client.query_typed(ASK, &none).await {
            Ok(rows) => Ok(rows.first().map(|row| Server { system: row.get(0), timeline: row.get(1) })),
            Err(error) if will_not_tell(error.code()) => {
                tracing::debug!(%error, "the server does not report its timeline; a failover to an older one cannot be detected");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn will_not_tell(code: Option<&SqlState>) -> bool {
    matches!(
        code,
        Some(
            &SqlState::INSUFFICIENT_PRIVILEGE
                | &SqlState::UNDEFINED_FUNCTION
                | &SqlState::FEATURE_NOT_SUPPORTED
                | &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
        )
    )
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timeline {} of system {}", self.timeline, self.system.cast_unsigned())
    }
}

/// The newest server that a store has seen. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Servers(Arc<Mutex<Option<Server>>>);

impl Servers {
    /// Accepts a server that is at least as new as any before, and remembers it.
    pub(crate) fn admit(&self, server: Option<Server>) -> Result<()> {
        let Some(server) = server else { return Ok(()) };
        let mut newest = self.0.lock();
        match *newest {
            Some(known) if known.system != server.system => Err(Error::Refused(format!(
                "the address now leads to a different server ({server}, before {known}): \
                 restart this process if the database was moved on purpose"
            ))),
            Some(known) if known.timeline > server.timeline => Err(Error::Refused(format!(
                "the server is an old primary after a failover ({server}, but {known} is in use): \
                 its writes would be lost. Stop it, or let it follow the new primary"
            ))),
            Some(known) if known == server => Ok(()),
            known => {
                if let Some(known) = known {
                    tracing::warn!(%known, now = %server, "failover: commits that were not replicated are lost");
                }
                *newest = Some(server);
                Ok(())
            }
        }
    }

    /// Whether a connection that was admitted once may still be used.
    pub(crate) fn is_current(&self, server: Option<Server>) -> bool {
        server.is_none() || *self.0.lock() == server
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(system: i64, timeline: i32) -> Option<Server> {
        Some(Server { system, timeline })
    }

    #[test]
    fn a_server_that_was_left_behind_is_refused() {
        let servers = Servers::default();
        assert!(servers.admit(at(7, 1)).is_ok());
        assert!(servers.admit(at(7, 3)).is_ok());
        assert!(!servers.is_current(at(7, 1)), "connections to the old one are not used any more");
        assert!(servers.is_current(at(7, 3)));
        let refused = servers.admit(at(7, 2)).expect_err("older");
        assert!(matches!(&refused, Error::Refused(why) if why.contains("timeline 2") && why.contains("timeline 3")));
        assert!(servers.admit(at(7, 3)).is_ok(), "the right one is still the right one");
    }

    #[test]
    fn other_data_behind_the_same_address_is_refused() {
        let servers = Servers::default();
        assert!(servers.admit(at(-7, 1)).is_ok());
        let refused = servers.admit(at(8, 9)).expect_err("another").to_string();
        assert!(
            refused.contains("different server") && refused.contains(&(-7_i64).cast_unsigned().to_string()),
            "{refused}"
        );
    }

    #[test]
    fn a_server_that_does_not_tell_is_used() {
        let servers = Servers::default();
        assert!(servers.admit(at(7, 2)).is_ok());
        assert!(servers.admit(None).is_ok() && servers.is_current(None));
    }
}
