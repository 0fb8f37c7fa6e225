//! What only one node does at a time.

use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::types::Type;
use windlass_core::store::{HOLDERS_LISTED, Holder, Lease, Leases, NodeId, Result};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::Row;
use crate::ground::types::{Time, column, seconds, sequence};

#[async_trait]
impl Leases for PgStore {
    async fn hold(&self, name: &str, node: NodeId, time: Duration) -> Result<Option<Lease>> {
        let params: [Param<'_>; 3] = [(&name, Type::TEXT), (&node.0, Type::INT8), (&seconds(time), Type::FLOAT8)];
        let hold = include_str!("sql/leases/hold.sql");
        let rows = self.shared.pools.maintain.query(Access::Write, hold, &params).await?;
        rows.first().map(lease).transpose()
    }

    async fn let_go(&self, name: &str, epoch: u64) -> Result<bool> {
        let params: [Param<'_>; 2] = [(&name, Type::TEXT), (&column(epoch), Type::INT8)];
        let let_go = include_str!("sql/leases/let_go.sql");
        Ok(!self.shared.pools.maintain.query(Access::Write, let_go, &params).await?.is_empty())
    }

    async fn advance(&self, name: &str, epoch: u64, position: u64) -> Result<bool> {
        let params: [Param<'_>; 3] =
            [(&name, Type::TEXT), (&column(epoch), Type::INT8), (&column(position), Type::INT8)];
        let advance = include_str!("sql/leases/advance.sql");
        Ok(!self.shared.pools.maintain.query(Access::Write, advance, &params).await?.is_empty())
    }

    async fn holders(&self, prefix: &str) -> Result<Vec<Holder>> {
        let params: [Param<'_>; 2] = [(&prefix, Type::TEXT), (&(HOLDERS_LISTED as i64), Type::INT8)];
        let holders = include_str!("sql/leases/holders.sql");
        let rows = self.shared.pools.maintain.query(Access::Read, holders, &params).await?;
        rows.iter().map(holder).collect()
    }
}

fn lease(row: &Row) -> Result<Lease> {
    Ok(Lease { epoch: sequence(row.get(0)?), position: row.get::<_, Option<i64>>(1)?.map(sequence) })
}

fn holder(row: &Row) -> Result<Holder> {
    let Time(until) = row.get(4)?;
    Ok(Holder { name: row.get(2)?, node: NodeId(row.get(3)?), until, lease: lease(row)? })
}
