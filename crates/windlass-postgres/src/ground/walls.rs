//! Walls between tenants: what a tenant reads runs as the role `windlass_app`, which sees the rows of one tenant,
//! whatever the statement says. Called by `read` and `steer` with the caller's scope, and when a store connects. Never
//! sets anything for longer than a transaction: behind PgBouncer the next client has the same session.

use uuid::Uuid;
use windlass_core::store::Result;
use windlass_core::{JobId, Scope};

use crate::PgStore;
use crate::ground::connect::{Access, ENGINE_IDLE, Param, Pool, begin};
use crate::ground::rows::Row;

/// Whether row-level security separates tenants in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Walls {
    /// Yes: a tenant's reads run as a role that sees one tenant, and row-level security is forced.
    Up,
    /// No, for this reason: tenants are separated only by the scope of every call and the predicate in every statement.
    Down(String),
}

/// How the walls stand. An engine's statement, as every one in this file that names no tenant.
pub(crate) async fn look(pool: &Pool) -> Result<Walls> {
    let row = pool.query_one(Access::Read, "select windlass.walls()", &[]).await?;
    Ok(match row.get::<_, &str>(0)? {
        "up" => {
            // Refused here, with what to do, rather than at the first read: whether this login may go behind the wall.
            pool.query_behind(&opening(Uuid::nil()), Access::Read, "select 1", &[]).await?;
            Walls::Up
        }
        reason => Walls::Down(reason.to_owned()),
    })
}

/// Runs statements for a scope.
pub(crate) struct Within<'a> {
    pool: &'a Pool,
    /// Whose wall they are behind; the engine's statements, and all of them while there are no walls, are behind none.
    tenant: Option<Uuid>,
}

impl PgStore {
    /// Statements that see what `scope` covers.
    pub(crate) fn within(&self, scope: Scope) -> Within<'_> {
        let walls = self.shared.walls == Walls::Up;
        let tenant = scope.tenant().filter(|_| walls).map(|tenant| tenant.0);
        Within { pool: &self.shared.pools.api, tenant }
    }

    /// Statements of the engine itself, which see everything and name what they look for.
    pub(crate) fn engine(&self) -> Within<'_> {
        Within { pool: &self.shared.pools.api, tenant: None }
    }
}

impl Within<'_> {
    /// Reads.
    pub(crate) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        match self.tenant {
            None => self.pool.query_behind(OPENING, Access::Read, sql, params).await,
            Some(tenant) => self.pool.query_behind(&opening(tenant), Access::Read, sql, params).await,
        }
    }

    /// Writes to one job. The tables are the engine's to write; behind a wall it first has to show the job, and no row is
    /// the answer where it does not.
    pub(crate) async fn write(&self, job: JobId, sql: &str, params: &[Param<'_>]) -> Result<Option<Row>> {
        let rows = match self.tenant {
            None => self.pool.query(Access::Write, sql, params).await?,
            Some(tenant) => self.pool.query_behind(&opening_for_write(tenant, job), Access::Write, sql, params).await?,
        };
        Ok(rows.into_iter().next())
    }
}

/// Begins a transaction of the engine that reads. Without the server's compiler: statements that look at much and answer
/// with little seem expensive to it, and compiling them takes many times as long as running them.
const OPENING: &str = "begin read only; set local jit = off; set local idle_in_transaction_session_timeout = 10000";

/// Begins a transaction that reads as a tenant. A UUID is only digits and hyphens, so it can stand in the text.
fn opening(tenant: Uuid) -> String {
    format!("{OPENING}; set local role windlass_app; set local windlass.tenant = '{tenant}'")
}

/// Begins a transaction of the engine, if the tenant can see the job.
fn opening_for_write(tenant: Uuid, job: JobId) -> String {
    format!(
        "{begin}; set local role windlass_app; set local windlass.tenant = '{tenant}'; \
         select windlass.check_own({job}); set local role none",
        begin = begin(ENGINE_IDLE),
        job = job.as_i64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEC-1: what is set ends with its transaction.
    #[test]
    fn nothing_is_set_for_a_session() {
        let tenant = Uuid::from_u128(1);
        for opening in [OPENING.to_owned(), opening(tenant), opening_for_write(tenant, JobId::from_i64(-7))] {
            let statements: Vec<&str> = opening.split(';').map(str::trim).collect();
            assert!(statements[0].starts_with("begin"));
            assert!(
                statements.iter().all(|sql| !sql.starts_with("set ") || sql.starts_with("set local ")),
                "{opening}"
            );
        }
    }
}
