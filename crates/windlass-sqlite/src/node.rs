//! Processes: their identity, machine slot, sign of life and end. Called by the store's `register`, `heartbeat`,
//! `deregister` and `recover`, and when a file is opened. Never judges whether a process is alive: its row says so.

use std::time::Duration;

use rusqlite::{Connection, params};
use windlass_core::store::{
    Beat, Error, Fence, LeaseId, NewNode, NodeId, NodeLease, NodeRecord, Recovered, SLOT_QUARANTINE,
};
use windlass_core::{JobId, MachineSlot, Timestamp};

use crate::finish;
use crate::rows::{Columns, Done, as_i64, from_json, job_id, to_json};
use crate::writer::State;

/// Gives a process its identity and a slot.
pub(crate) fn register(conn: &Connection, state: &State, node: &NewNode) -> Done<NodeLease> {
    conn.execute("DELETE FROM windlass_slot WHERE free_at <= ?1", [state.now.as_micros()])?;
    let mut free = conn.prepare(include_str!("sql/node_free_slot.sql"))?;
    let mut rows = free.query(params![state.now.as_micros(), MachineSlot::DATABASE.0])?;
    let Some(row) = rows.next()? else {
        return Err(Error::Unavailable("every machine slot is taken or in quarantine".into()).into());
    };
    let slot = row.small(0)?;
    drop(rows);
    let sql = include_str!("sql/node_register.sql");
    let id = conn.query_row(sql, params![slot, to_json(node)?, state.now.as_micros()], |row| row.get(0))?;
    let largest: Option<i64> = conn.query_row(include_str!("sql/node_largest_id.sql"), [], |row| row.get(0))?;
    // An id's time may lie ahead of the clock: a busy generator borrows, and the machine's clock may have been set back
    // since. Starting after it keeps ids from coming again.
    let after = largest.map(|id| job_id(id).created() + Duration::from_millis(1));
    Ok(NodeLease { node: NodeId(id), slot: MachineSlot(slot), now: after.map_or(state.now, |t| t.max(state.now)) })
}

/// Whether a process is registered and has not been declared dead.
pub(crate) fn is_alive(conn: &Connection, node: NodeId) -> Done<bool> {
    Ok(conn.prepare_cached("SELECT 1 FROM windlass_node WHERE node = ?1")?.exists([node.0])?)
}

/// Notes a sign of life and tells the node what it has to cancel.
pub(crate) fn heartbeat(conn: &Connection, state: &State, node: NodeId, running: usize) -> Done<Beat> {
    let sql = "UPDATE windlass_node SET heartbeat_at = ?2, running = ?3 WHERE node = ?1";
    if conn.prepare_cached(sql)?.execute(params![node.0, state.now.as_micros(), as_i64(running)])? == 0 {
        return Ok(Beat::Fenced);
    }
    let mut select = conn.prepare_cached(include_str!("sql/node_cancels.sql"))?;
    let fence = |row: &rusqlite::Row<'_>| Ok(Fence { job: JobId::from_i64(row.get(0)?), lease: LeaseId(row.get(1)?) });
    let cancels = select.query_map([node.0], fence)?.collect::<rusqlite::Result<_>>()?;
    Ok(Beat::Alive { cancels })
}

/// Ends a node cleanly: what it holds costs nothing.
pub(crate) fn deregister(conn: &Connection, state: &mut State, node: NodeId) -> Done<()> {
    if is_alive(conn, node)? {
        finish::free_node(conn, state, node, false)?;
        remove(conn, node, state.now)?;
    }
    Ok(())
}

/// The jobs that a node holds.
pub(crate) fn held(conn: &Connection, node: NodeId) -> Done<Vec<Fence>> {
    let mut fences = Vec::new();
    for (lease, held) in finish::leases_of(conn, node)? {
        fences.extend(held.jobs.iter().map(|job| Fence { job: job_id(job.id), lease }));
    }
    Ok(fences)
}

/// Declares nodes dead that were last heard of at `silent_since` or before.
pub(crate) fn recover(conn: &Connection, state: &mut State, silent_since: Timestamp) -> Done<Recovered> {
    let sql = "SELECT node, heartbeat_at FROM windlass_node WHERE heartbeat_at <= ?1 ORDER BY node";
    let mut select = conn.prepare_cached(sql)?;
    let silent = select
        .query_map([silent_since.as_micros()], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
    let mut recovered = Recovered::default();
    for (node, heartbeat_at) in silent {
        let jobs = finish::free_node(conn, state, NodeId(node), true)?;
        remove(conn, NodeId(node), Timestamp::from_micros(heartbeat_at))?;
        recovered.nodes.push(NodeId(node));
        recovered.jobs.extend(jobs.into_iter().map(job_id));
    }
    Ok(recovered)
}

/// Removes a node's row; its slot rests from its last sign of life on.
fn remove(conn: &Connection, node: NodeId, last_alive: Timestamp) -> Done<()> {
    let sql = "INSERT OR REPLACE INTO windlass_slot (slot, free_at) SELECT slot, ?2 FROM windlass_node WHERE node = ?1";
    conn.execute(sql, params![node.0, (last_alive + SLOT_QUARANTINE).as_micros()])?;
    conn.execute("DELETE FROM windlass_node WHERE node = ?1", [node.0])?;
    Ok(())
}

/// Every registered process, newest first.
pub(crate) fn nodes(conn: &Connection) -> Done<Vec<NodeRecord>> {
    let sql = "SELECT node, slot, info, running, started_at, heartbeat_at FROM windlass_node ORDER BY node DESC";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query([])?;
    let mut nodes = Vec::new();
    while let Some(row) = rows.next()? {
        nodes.push(NodeRecord {
            node: NodeId(row.get(0)?),
            slot: MachineSlot(row.small(1)?),
            info: from_json(&row.text(2)?)?,
            running: usize::try_from(row.get::<_, i64>(3)?).unwrap_or(0),
            started_at: row.time(4)?,
            heartbeat_at: row.time(5)?,
        });
    }
    Ok(nodes)
}
