//! Processes: their identity, machine slot, sign of life and end. Called by the store's `register`, `heartbeat`,
//! `deregister` and `recover`, and when a file is opened. Never judges whether a process is alive: its row says so.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, params};
use windlass_core::store::{
    Beat, Error, Fence, LeaseId, NewNode, NodeId, NodeLease, NodeRecord, Nodes, Recovered, Result, SERVED_KEPT,
    SLOT_QUARANTINE, Silent,
};
use windlass_core::{JobId, MachineSlot, Timestamp};

use crate::SqliteStore;
use crate::ground::rows::{Columns, Done, Lenient, as_i64, from_json, job_id, readable, to_json, unreadable};
use crate::ground::writer::State;
use crate::jobs::finish;

#[async_trait]
impl Nodes for SqliteStore {
    async fn register(&self, node: NewNode) -> Result<NodeLease> {
        self.write(move |conn, state| register(conn, state, &node)).await
    }

    async fn heartbeat(&self, node: NodeId, running: usize) -> Result<Beat> {
        self.write(move |conn, state| heartbeat(conn, state, node, running)).await
    }

    async fn deregister(&self, node: NodeId) -> Result<()> {
        self.write(move |conn, state| deregister(conn, state, node)).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.read(|conn, _| nodes(conn)).await
    }
}

/// Gives a process its identity and a slot.
pub(crate) fn register(conn: &Connection, state: &State, node: &NewNode) -> Done<NodeLease> {
    conn.execute("DELETE FROM windlass_slot WHERE free_at <= ?1", [state.now.as_micros()])?;
    let mut free = conn.prepare(include_str!("sql/node_free_slot.sql"))?;
    let mut rows = free.query(params![state.now.as_micros(), MachineSlot::DATABASE.get()])?;
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
    Ok(NodeLease { node: NodeId(id), slot: slot_of(slot)?, now: after.map_or(state.now, |t| t.max(state.now)) })
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
        finish::free_node(conn, state, node, None)?;
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

/// Declares those of `silent` dead that have not been renewed since, and not for `lease`.
pub(crate) fn recover(conn: &Connection, state: &mut State, lease: Duration, silent: &[Silent]) -> Done<Recovered> {
    let mut dead = Vec::new();
    for seen in silent {
        let late = seen.heartbeat_at <= state.now - lease || seen.heartbeat_at > state.now;
        let sql = "SELECT 1 FROM windlass_node WHERE node = ?1 AND heartbeat_at = ?2";
        if late && conn.prepare_cached(sql)?.exists(params![seen.node.0, seen.heartbeat_at.as_micros()])? {
            dead.push(*seen);
        }
    }
    bury(conn, state, lease, &dead)
}

/// Frees what every process held that is registered: whoever opens the file has its lock, so none of them lives.
pub(crate) fn bury_all(conn: &Connection, state: &mut State, lease: Duration) -> Done<Recovered> {
    let mut select = conn.prepare_cached("SELECT node, heartbeat_at FROM windlass_node ORDER BY node")?;
    let silent = |row: &rusqlite::Row<'_>| {
        Ok(Silent { node: NodeId(row.get(0)?), heartbeat_at: Timestamp::from_micros(row.get(1)?) })
    };
    let dead = select.query_map([], silent)?.collect::<rusqlite::Result<Vec<_>>>()?;
    bury(conn, state, lease, &dead)
}

fn bury(conn: &Connection, state: &mut State, lease: Duration, dead: &[Silent]) -> Done<Recovered> {
    let mut recovered = Recovered::default();
    for Silent { node, heartbeat_at } in dead {
        let jobs = finish::free_node(conn, state, *node, Some((*heartbeat_at, lease)))?;
        remove(conn, *node, *heartbeat_at)?;
        recovered.nodes.push(*node);
        recovered.jobs.extend(jobs.into_iter().map(job_id));
    }
    Ok(recovered)
}

/// When handlers and queues were last served, after noting that `served` are.
pub(crate) fn last_served(
    conn: &Connection,
    state: &State,
    served: &[String],
    asked: &[String],
) -> Done<Vec<Option<Timestamp>>> {
    conn.execute("DELETE FROM windlass_served WHERE at < ?1", [(state.now - SERVED_KEPT).as_micros()])?;
    let note = "INSERT INTO windlass_served (name, at) VALUES (?1, ?2) \
                ON CONFLICT (name) DO UPDATE SET at = max(at, excluded.at)";
    for name in served {
        conn.prepare_cached(note)?.execute(params![name, state.now.as_micros()])?;
    }
    let last = |name: &String| {
        let sql = include_str!("sql/node_last_served.sql");
        let at: Option<i64> =
            conn.prepare_cached(sql)?.query_row(params![name, state.now.as_micros()], |row| row.get(0))?;
        Ok(at.map(Timestamp::from_micros))
    };
    asked.iter().map(last).collect()
}

/// Removes a node's row; its slot rests from its last sign of life on, and from then on its handlers may be missing.
fn remove(conn: &Connection, node: NodeId, last_alive: Timestamp) -> Done<()> {
    conn.execute(include_str!("sql/node_leaves.sql"), params![node.0, last_alive.as_micros()])?;
    let sql = "INSERT OR REPLACE INTO windlass_slot (slot, free_at) SELECT slot, ?2 FROM windlass_node WHERE node = ?1";
    conn.execute(sql, params![node.0, (last_alive + SLOT_QUARANTINE).as_micros()])?;
    conn.execute("DELETE FROM windlass_node WHERE node = ?1", [node.0])?;
    Ok(())
}

/// A slot as it is stored. One that no process may have would make ids of another time.
fn slot_of(stored: u16) -> Done<MachineSlot> {
    MachineSlot::new(stored).map_err(|error| unreadable("slot", error.to_string()))
}

/// Every registered process, newest first.
pub(crate) fn nodes(conn: &Connection) -> Done<Vec<NodeRecord>> {
    let sql = "SELECT node, slot, info, running, started_at, heartbeat_at FROM windlass_node ORDER BY node DESC";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query([])?;
    let mut nodes = Vec::new();
    while let Some(row) = rows.next()? {
        let record = || {
            Ok(NodeRecord {
                node: NodeId(row.get(0)?),
                slot: slot_of(row.small(1)?)?,
                info: Lenient::default().or(NewNode::default(), row.text(2).and_then(|info| from_json(&info))),
                running: usize::try_from(row.get::<_, i64>(3)?).unwrap_or(0),
                started_at: row.time(4)?,
                heartbeat_at: row.time(5)?,
            })
        };
        nodes.extend(readable(record())?);
    }
    Ok(nodes)
}
