//! API keys and settings. Called by the service; what is made and revoked leaves a line in the audit log, in the
//! same statement. Never sees a secret, only hashes, and those only to compare.

use std::time::Duration;

use tokio_postgres::types::Type;
use uuid::Uuid;
use windlass_core::store::{API_KEYS_LISTED, ApiKeyRecord, Error, Result};
use windlass_core::{ApiKey, Rights, Scope, SecretHash, TenantId, Timestamp};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::Time;
use crate::ground::types::tenant;
use crate::jobs::finish::storable;

pub(crate) async fn add(store: &PgStore, record: ApiKeyRecord) -> Result<ApiKey> {
    let ApiKeyRecord { mut key, hash } = record;
    let of = (!key.all_tenants).then_some(key.tenant.0);
    let params: [Param<'_>; 10] = [
        (&key.id, Type::TEXT),
        (&of, Type::UUID),
        (&key.tenant.0, Type::UUID),
        (&storable(&key.name), Type::TEXT),
        (&storable(&key.user), Type::TEXT),
        (&key.rights.to_string(), Type::TEXT),
        (&hash.0.as_slice(), Type::BYTEA),
        (&key.expires_at.map(Time), Type::TIMESTAMPTZ),
        (&storable(&key.created_by), Type::TEXT),
        (&storable(&key.summary()), Type::TEXT),
    ];
    let sql = include_str!("../sql/records/api_key_add.sql");
    let row = store.shared.pools.api.query_one(Access::Write, sql, &params).await?;
    key.created_at = row.get::<_, Time>(0)?.0;
    Ok(key)
}

pub(crate) async fn list(store: &PgStore, scope: Scope) -> Result<Vec<ApiKey>> {
    let params: [Param<'_>; 2] = [(&tenant(scope), Type::UUID), (&(API_KEYS_LISTED as i64), Type::INT8)];
    let rows = store.within(scope).query(include_str!("../sql/records/api_key_list.sql"), &params).await?;
    Ok(readable(&rows, key_of))
}

pub(crate) async fn find(store: &PgStore, ids: &[String]) -> Result<Vec<ApiKeyRecord>> {
    let params: [Param<'_>; 1] = [(&ids, Type::TEXT_ARRAY)];
    let sql = include_str!("../sql/records/api_key_find.sql");
    let rows = store.shared.pools.api.query(Access::Read, sql, &params).await?;
    let record = |row: &Row| {
        let hash = SecretHash::from_slice(row.get(11)?);
        let hash = hash.ok_or_else(|| Error::Internal("the hash of an API key has the wrong length".into()))?;
        Ok(ApiKeyRecord { key: key_of(row)?, hash })
    };
    Ok(readable(&rows, record))
}

pub(crate) async fn revoke(store: &PgStore, scope: Scope, id: &str, by: &str) -> Result<bool> {
    let params: [Param<'_>; 3] =
        [(&tenant(scope), Type::UUID), (&storable(id), Type::TEXT), (&storable(by), Type::TEXT)];
    let sql = include_str!("../sql/records/api_key_revoke.sql");
    Ok(store.shared.pools.api.query_one(Access::Write, sql, &params).await?.get::<_, i64>(0)? == 1)
}

pub(crate) async fn note_uses(store: &PgStore, uses: &[(String, Timestamp)]) -> Result<()> {
    let ids: Vec<&str> = uses.iter().map(|(id, _)| id.as_str()).collect();
    let times: Vec<Time> = uses.iter().map(|(_, at)| Time(*at)).collect();
    let params: [Param<'_>; 2] = [(&ids, Type::TEXT_ARRAY), (&times, Type::TIMESTAMPTZ_ARRAY)];
    store.shared.pools.maintain.query(Access::Write, include_str!("../sql/records/api_key_use.sql"), &params).await?;
    Ok(())
}

pub(crate) async fn setting(store: &PgStore, name: &str) -> Result<Option<String>> {
    let params: [Param<'_>; 1] = [(&name, Type::TEXT)];
    let rows = store.shared.pools.api.query(Access::Read, include_str!("../sql/records/setting.sql"), &params).await?;
    rows.first().map(|row| row.get(0)).transpose()
}

pub(crate) async fn set_setting_if_absent(store: &PgStore, name: &str, value: &str) -> Result<String> {
    let params: [Param<'_>; 2] = [(&name, Type::TEXT), (&value, Type::TEXT)];
    let sql = include_str!("../sql/records/setting_set.sql");
    store.shared.pools.api.query_one(Access::Write, sql, &params).await?.get(0)
}

pub(crate) async fn put_setting(store: &PgStore, name: &str, value: &str, keep: Duration) -> Result<()> {
    let seconds = keep.as_secs_f64();
    let params: [Param<'_>; 3] = [(&name, Type::TEXT), (&value, Type::TEXT), (&seconds, Type::FLOAT8)];
    store.shared.pools.api.query(Access::Write, include_str!("../sql/records/setting_put.sql"), &params).await?;
    Ok(())
}

pub(crate) async fn settings(store: &PgStore, prefix: &str, limit: usize) -> Result<Vec<(String, String)>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let params: [Param<'_>; 2] = [(&prefix, Type::TEXT), (&limit, Type::INT8)];
    let rows =
        store.shared.pools.api.query(Access::Read, include_str!("../sql/records/setting_list.sql"), &params).await?;
    Ok(readable(&rows, |row| Ok((row.get(0)?, row.get(1)?))))
}

fn key_of(row: &Row) -> Result<ApiKey> {
    let time = |column: usize| Ok::<_, Error>(row.get::<_, Option<Time>>(column)?.map(|Time(at)| at));
    let mut key = ApiKey::new(row.get::<_, String>(0)?, row.get::<_, String>(3)?, TenantId(row.get(2)?));
    key.all_tenants = row.get::<_, Option<Uuid>>(1)?.is_none();
    key.user = row.get(4)?;
    // Rights that cannot be read allow nothing.
    key.rights = Rights::parse(row.get(5)?).unwrap_or_default();
    key.created_at = row.get::<_, Time>(6)?.0;
    key.created_by = row.get(7)?;
    key.expires_at = time(8)?;
    key.revoked_at = time(9)?;
    key.last_used_at = time(10)?;
    Ok(key)
}
