//! API keys (API-3) and settings. Called by the store's methods of the same names; what is made and revoked leaves a line
//! in the audit log, in the same transaction. Never sees a secret, only hashes.

use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::store::{API_KEYS_LISTED, ApiKeyRecord};
use windlass_core::{ApiKey, Rights, Scope, SecretHash, TenantId, Timestamp};

use crate::place::{self, Audit};
use crate::rows::{Columns, Done, as_i64, internal, tenant_bytes, to_json};
use crate::writer::State;

/// Keeps a new key.
pub(crate) fn add(conn: &Connection, state: &State, record: ApiKeyRecord) -> Done<ApiKey> {
    let ApiKeyRecord { mut key, hash } = record;
    key.created_at = state.now;
    let tenant = (!key.all_tenants).then_some(key.tenant);
    conn.prepare_cached(include_str!("sql/api_key_add.sql"))?.execute(params![
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
    let mut statement = conn.prepare_cached(include_str!("sql/api_key_list.sql"))?;
    let tenant = scope.tenant();
    let mut rows = statement.query(params![tenant.as_ref().map(tenant_bytes), as_i64(API_KEYS_LISTED)])?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        keys.push(key_of(row)?);
    }
    Ok(keys)
}

/// The keys with these ids.
pub(crate) fn find(conn: &Connection, ids: &[String]) -> Done<Vec<ApiKeyRecord>> {
    let mut statement = conn.prepare_cached(include_str!("sql/api_key_find.sql"))?;
    let mut rows = statement.query([to_json(&ids)?])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let hash = SecretHash::from_slice(row.blob(11)?).ok_or_else(|| internal("the hash of an API key is torn"))?;
        records.push(ApiKeyRecord { key: key_of(row)?, hash });
    }
    Ok(records)
}

/// Revokes a key, if it was not before.
pub(crate) fn revoke(conn: &Connection, state: &State, scope: Scope, id: &str, by: &str) -> Done<bool> {
    let mut statement = conn.prepare_cached(include_str!("sql/api_key_revoke.sql"))?;
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
    let mut statement = conn.prepare_cached(include_str!("sql/api_key_use.sql"))?;
    for (id, at) in uses {
        statement.execute(params![id, at.as_micros()])?;
    }
    Ok(())
}

/// A shared value.
pub(crate) fn setting(conn: &Connection, name: &str) -> Done<Option<String>> {
    let mut statement = conn.prepare_cached("SELECT value FROM windlass_setting WHERE name = ?1")?;
    Ok(statement.query_row([name], |row| row.get(0)).optional()?)
}

/// Keeps a shared value unless there is one.
pub(crate) fn set_setting_if_absent(conn: &Connection, name: &str, value: &str) -> Done<String> {
    let mut statement = conn.prepare_cached(include_str!("sql/setting_set.sql"))?;
    Ok(statement.query_row([name, value], |row| row.get(0))?)
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
