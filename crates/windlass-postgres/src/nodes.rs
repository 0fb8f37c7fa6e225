//! The processes that share the database.

use async_trait::async_trait;
use tokio_postgres::types::Type;
use windlass_core::store::{
    Beat, Error, Fence, LeaseId, NewNode, NodeId, NodeLease, NodeRecord, Nodes, Result, SLOT_QUARANTINE,
};
use windlass_core::{JobId, MachineSlot};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::{Json, JsonText, Time};

#[async_trait]
impl Nodes for PgStore {
    async fn register(&self, node: NewNode) -> Result<NodeLease> {
        register(self, node).await
    }

    async fn heartbeat(&self, node: NodeId, running: usize) -> Result<Beat> {
        let beat = heartbeat(self, node, running).await?;
        if beat == Beat::Fenced {
            self.let_go_all();
        }
        Ok(beat)
    }

    async fn deregister(&self, node: NodeId) -> Result<()> {
        deregister(self, node).await?;
        self.let_go_all();
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        nodes(self).await
    }
}

/// Gives a process an identity and a machine slot: `sql/nodes/register.sql`.
const REGISTER: &str = "select o_node, o_slot, o_now from windlass.register($1, make_interval(secs => $2))";

pub(crate) async fn register(store: &PgStore, node: NewNode) -> Result<NodeLease> {
    let info = serde_json::to_string(&node).map_err(|e| Error::Internal(format!("cannot write a node: {e}")))?;
    let info = JsonText(info.replace("\\u0000", ""));
    let params: [Param<'_>; 2] = [(&info, Type::JSON), (&SLOT_QUARANTINE.as_secs_f64(), Type::FLOAT8)];
    let rows = store.shared.pools.api.query(Access::Write, REGISTER, &params).await?;
    let Some(row) = rows.first() else {
        return Err(Error::Unavailable("all 1023 machine slots are in use or in quarantine".into()));
    };
    let registered_at = row.get::<_, Time>(2)?.0;
    // The caller counts on from this time: asked for by itself it is only a round trip old, whatever registering took.
    let now = store.store_time().await.unwrap_or(registered_at).max(registered_at);
    Ok(NodeLease { node: NodeId(row.get(0)?), slot: slot_of(row.get(1)?)?, now })
}

pub(crate) async fn heartbeat(store: &PgStore, node: NodeId, running: usize) -> Result<Beat> {
    let running = i32::try_from(running).unwrap_or(i32::MAX);
    let params: [Param<'_>; 2] = [(&node.0, Type::INT8), (&running, Type::INT4)];
    let rows =
        store.shared.pools.heartbeat.query(Access::Write, include_str!("sql/nodes/heartbeat.sql"), &params).await?;
    if rows.is_empty() {
        return Ok(Beat::Fenced);
    }
    let cancel = |row: &Row| {
        let (lease, job): (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
        Ok(lease.zip(job).map(|(lease, job)| Fence { job: JobId::from_i64(job), lease: LeaseId(lease) }))
    };
    Ok(Beat::Alive { cancels: readable(&rows, cancel).into_iter().flatten().collect() })
}

pub(crate) async fn held(store: &PgStore, node: NodeId) -> Result<Vec<Fence>> {
    let params: [Param<'_>; 1] = [(&node.0, Type::INT8)];
    let rows = store.shared.pools.maintain.query(Access::Read, include_str!("sql/nodes/held.sql"), &params).await?;
    Ok(readable(&rows, |row| Ok(Fence { job: JobId::from_i64(row.get(1)?), lease: LeaseId(row.get(0)?) })))
}

/// Ends a node: its jobs are released, its slot is quarantined: `sql/nodes/deregister.sql`; lease_node.
const DEREGISTER: &str = "select windlass.deregister($1, make_interval(secs => $2))";

pub(crate) async fn deregister(store: &PgStore, node: NodeId) -> Result<()> {
    let params: [Param<'_>; 2] = [(&node.0, Type::INT8), (&SLOT_QUARANTINE.as_secs_f64(), Type::FLOAT8)];
    store.shared.pools.api.query(Access::Write, DEREGISTER, &params).await?;
    Ok(())
}

pub(crate) async fn nodes(store: &PgStore) -> Result<Vec<NodeRecord>> {
    let rows = store.shared.pools.api.query(Access::Read, include_str!("sql/nodes/nodes.sql"), &[]).await?;
    let record = |row: &Row| {
        Ok(NodeRecord {
            node: NodeId(row.get(0)?),
            slot: slot_of(row.get(1)?)?,
            info: serde_json::from_str(row.get::<_, Json<'_>>(2)?.0).unwrap_or_default(),
            running: row.get::<_, i32>(3)?.max(0) as usize,
            started_at: row.get::<_, Time>(4)?.0,
            heartbeat_at: row.get::<_, Time>(5)?.0,
        })
    };
    Ok(readable(&rows, record))
}

/// A slot as it is stored. One that no process may have would make ids of another time.
pub(crate) fn slot_of(stored: i16) -> Result<MachineSlot> {
    let slot = u16::try_from(stored).unwrap_or(u16::MAX);
    MachineSlot::new(slot).map_err(|error| Error::Internal(format!("cannot read a node's slot: {error}")))
}
