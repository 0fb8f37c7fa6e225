//! The wrapped data keys of tenants. Called by the store. Never sees a key that is not wrapped.

use rusqlite::{Connection, params};
use windlass_core::store::{DataKeyRecord, WrappedKey};
use windlass_core::{Scope, TenantId};

use crate::ground::rows::{Columns, Done, readable, tenant_bytes, unreadable};
use crate::ground::writer::State;

/// The data keys of a scope.
pub(crate) fn list(conn: &Connection, scope: Scope) -> Done<Vec<DataKeyRecord>> {
    let mut statement = conn.prepare_cached(include_str!("../sql/key_list.sql"))?;
    let mut rows = statement.query([scope.tenant().as_ref().map(tenant_bytes)])?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        let record = || {
            let version: i64 = row.get(1)?;
            let kek: String = row.get(2)?;
            let wrapped: Option<Vec<u8>> = row.get(3)?;
            Ok(DataKeyRecord {
                tenant: row.tenant(0)?,
                version: u32::try_from(version).map_err(|_| unreadable("version", format!("it is {version}")))?,
                wrapped: wrapped.map(|bytes| WrappedKey { kek, bytes }),
                created_at: row.time(4)?,
            })
        };
        keys.extend(readable(record())?);
    }
    Ok(keys)
}

/// Keeps a new version.
pub(crate) fn add(conn: &Connection, state: &State, tenant: TenantId, version: u32, key: &WrappedKey) -> Done<bool> {
    let mut statement = conn.prepare_cached(include_str!("../sql/key_add.sql"))?;
    let now = state.now.as_micros();
    Ok(statement.execute(params![tenant_bytes(&tenant), version, key.kek, key.bytes, now])? == 1)
}

/// Replaces one wrapping by another.
pub(crate) fn rewrap(
    conn: &Connection,
    tenant: TenantId,
    version: u32,
    old: &WrappedKey,
    new: &WrappedKey,
) -> Done<bool> {
    let mut statement = conn.prepare_cached(include_str!("../sql/key_rewrap.sql"))?;
    let changed = statement.execute(params![tenant_bytes(&tenant), version, old.kek, old.bytes, new.kek, new.bytes])?;
    Ok(changed == 1)
}

/// Removes the keys of a tenant, and overwrites where they were in the file.
pub(crate) fn destroy(conn: &Connection, tenant: TenantId) -> Done<usize> {
    // Otherwise SQLite leaves what it removes in the free part of the page.
    set_secure_delete(conn, true)?;
    let destroyed = conn.prepare_cached(include_str!("../sql/key_destroy.sql"))?.execute([tenant_bytes(&tenant)]);
    set_secure_delete(conn, false)?;
    Ok(destroyed?)
}

/// The pragma answers with a row, which `pragma_update` does not expect.
fn set_secure_delete(conn: &Connection, on: bool) -> Done<()> {
    Ok(conn.query_row(if on { "PRAGMA secure_delete = ON" } else { "PRAGMA secure_delete = OFF" }, [], |_| Ok(()))?)
}
