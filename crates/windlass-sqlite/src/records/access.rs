//! API keys and settings. Called by the store's methods of the same names; what is made and revoked leaves a line
//! in the audit log, in the same transaction. Never sees a secret, only hashes.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use windlass_core::store::{API_KEYS_LISTED, ApiKeyRecord};
use windlass_core::{ApiKey, Rights, Scope, SecretHash, TenantId, Timestamp};

use crate::ground::place::{self, Audit};
use crate::ground::rows::{Columns, Done, as_i64, readable, tenant_bytes, to_json, unreadable};
use crate::ground::writer::State;

/// Keeps a new key.
pub(crate) fn add(conn: &Connection, state: &State, record: ApiKeyRecord) -> Done<ApiKey> {
    let ApiKeyRecord { mut key, hash } = record;
    key.created_at = state.now;
    let tenant = (!key.all_tenants).then_some(key.tenant);
    conn.prepare_cached(include_str!("../sql/api_key_add.sql"))?.execute(params![
        key.id,
        tenant.as_ref().map(tenant_bytes),
        tenant_bytes(&key.tenant),
        key.name,
        key.user,
        key.rights.to_string(),
        hash.0,
        key.created_at.as_micros(),
        key.created_by,
        key.expires_at.map(Timestamp::as_micros)
    ])?;
    audit(conn, state, &key, &key.created_by, "KEY_CREATED")?;
    Ok(key)
}

/// The keys of a scope.
pub(crate) fn list(conn: &Connection, scope: Scope) -> Done<Vec<ApiKey>> {
    let mut statement = conn.prepare_cached(include_str!("../sql/api_key_list.sql"))?;
    let tenant = scope.tenant();
    let mut rows = statement.query(params![tenant.as_ref().map(tenant_bytes), as_i64(API_KEYS_LISTED)])?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        keys.extend(readable(key_of(row))?);
    }
    Ok(keys)
}

/// The keys with these ids.
pub(crate) fn find(conn: &Connection, ids: &[String]) -> Done<Vec<ApiKeyRecord>> {
    let mut statement = conn.prepare_cached(include_str!("../sql/api_key_find.sql"))?;
    let mut rows = statement.query([to_json(&ids)?])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let record = || {
            let hash =
                SecretHash::from_slice(row.blob(11)?).ok_or_else(|| unreadable("hash", "it has the wrong length"))?;
            Ok(ApiKeyRecord { key: key_of(row)?, hash })
        };
        records.extend(readable(record())?);
    }
    Ok(records)
}

/// Revokes a key, if it was not before.
pub(crate) fn revoke(conn: &Connection, state: &State, scope: Scope, id: &str, by: &str) -> Done<bool> {
    let mut statement = conn.prepare_cached(include_str!("../sql/api_key_revoke.sql"))?;
    let tenant = scope.tenant();
    let mut rows = statement.query(params![tenant.as_ref().map(tenant_bytes), id, state.now.as_micros()])?;
    let Some(row) = rows.next()? else { return Ok(false) };
    let mut key = ApiKey::new(id, row.text(1)?, TenantId::ROOT);
    match row.get::<_, Option<Vec<u8>>>(0)? {
        Some(_) => key.tenant = row.tenant(0)?,
        None => key.all_tenants = true,
    }
    key.rights = Rights::parse(&row.text(2)?).unwrap_or_default();
    drop(rows);
    audit(conn, state, &key, by, "KEY_REVOKED")?;
    Ok(true)
}

/// Notes when keys were used.
pub(crate) fn note_uses(conn: &Connection, uses: &[(String, Timestamp)]) -> Done<()> {
    let mut statement = conn.prepare_cached(include_str!("../sql/api_key_use.sql"))?;
    for (id, at) in uses {
        statement.execute(params![id, at.as_micros()])?;
    }
    Ok(())
}

/// A shared value that is kept for a time.
pub(crate) fn setting(conn: &Connection, name: &str, now: Timestamp) -> Done<Option<String>> {
    let mut statement = conn.prepare_cached("SELECT value FROM windlass_setting WHERE name = ?1 AND until > ?2")?;
    Ok(statement.query_row(params![name, now.as_micros()], |row| row.get(0)).optional()?)
}

/// Keeps a shared value until its time is over, and forgets those whose time is.
pub(crate) fn put_setting(conn: &Connection, name: &str, value: &str, until: Timestamp, now: Timestamp) -> Done<()> {
    conn.prepare_cached("DELETE FROM windlass_setting WHERE until <= ?1")?.execute([now.as_micros()])?;
    conn.prepare_cached(include_str!("../sql/setting_put.sql"))?.execute(params![name, value, until.as_micros()])?;
    Ok(())
}

/// The shared values that are kept for a time, whose names begin with a prefix.
pub(crate) fn settings(conn: &Connection, prefix: &str, limit: usize, now: Timestamp) -> Done<Vec<(String, String)>> {
    let mut statement = conn.prepare_cached(include_str!("../sql/setting_list.sql"))?;
    let mut rows = statement.query(params![prefix, now.as_micros(), as_i64(limit)])?;
    let mut settings = Vec::new();
    while let Some(row) = rows.next()? {
        settings.extend(readable((|| Ok((row.text(0)?, row.text(1)?)))())?);
    }
    Ok(settings)
}

fn key_of(row: &Row<'_>) -> Done<ApiKey> {
    let mut key = ApiKey::new(row.text(0)?, row.text(3)?, row.tenant(2)?);
    key.all_tenants = row.get::<_, Option<Vec<u8>>>(1)?.is_none();
    key.user = row.text(4)?;
    // Rights that cannot be read allow nothing.
    key.rights = Rights::parse(&row.text(5)?).unwrap_or_default();
    key.created_at = row.time(6)?;
    key.created_by = row.text(7)?;
    key.expires_at = row.time_opt(8)?;
    key.revoked_at = row.time_opt(9)?;
    key.last_used_at = row.time_opt(10)?;
    Ok(key)
}

fn audit(conn: &Connection, state: &State, key: &ApiKey, by: &str, action: &str) -> Done<()> {
    let tenant = (!key.all_tenants).then_some(key.tenant);
    let entry = Audit { actor: by, tenant, action, target: &key.id, detail: Some(&key.summary()) };
    place::audit(conn, state.now, &entry)
}
