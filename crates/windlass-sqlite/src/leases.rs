//! What only one node does at a time.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::Timestamp;
use windlass_core::store::{HOLDERS_LISTED, Holder, Lease, Leases, NodeId, Result};

use crate::SqliteStore;
use crate::ground::rows::{Done, column, sequence};
use crate::ground::writer::State;

#[async_trait]
impl Leases for SqliteStore {
    async fn hold(&self, name: &str, node: NodeId, time: Duration) -> Result<Option<Lease>> {
        let name = name.to_owned();
        self.write(move |conn, state| hold(conn, state, &name, node, time)).await
    }

    async fn let_go(&self, name: &str, epoch: u64) -> Result<bool> {
        let name = name.to_owned();
        self.write(move |conn, _| {
            let mut update = conn.prepare_cached(include_str!("sql/let_go.sql"))?;
            Ok(update.execute(params![name, column(epoch)])? == 1)
        })
        .await
    }

    async fn advance(&self, name: &str, epoch: u64, position: u64) -> Result<bool> {
        let name = name.to_owned();
        self.write(move |conn, _| {
            let mut update = conn.prepare_cached(include_str!("sql/advance.sql"))?;
            Ok(update.execute(params![name, column(epoch), column(position)])? == 1)
        })
        .await
    }

    async fn holders(&self, prefix: &str) -> Result<Vec<Holder>> {
        let prefix = prefix.to_owned();
        self.read(move |conn, now| holders(conn, &prefix, now)).await
    }
}

fn hold(conn: &Connection, state: &State, name: &str, node: NodeId, time: Duration) -> Done<Option<Lease>> {
    let mut statement = conn.prepare_cached(include_str!("sql/hold.sql"))?;
    let until = (state.now + time).as_micros();
    Ok(statement.query_row(params![name, node.0, state.now.as_micros(), until], lease).optional()?)
}

fn holders(conn: &Connection, prefix: &str, now: Timestamp) -> Done<Vec<Holder>> {
    let mut statement = conn.prepare_cached(include_str!("sql/holders.sql"))?;
    let holder = |row: &Row<'_>| {
        let (node, until) = (NodeId(row.get(3)?), Timestamp::from_micros(row.get(4)?));
        Ok(Holder { name: row.get(2)?, node, until, lease: lease(row)? })
    };
    let rows = statement.query_map(params![prefix, now.as_micros(), HOLDERS_LISTED as i64], holder)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn lease(row: &Row<'_>) -> rusqlite::Result<Lease> {
    Ok(Lease { epoch: sequence(row.get(0)?), position: row.get::<_, Option<i64>>(1)?.map(sequence) })
}
