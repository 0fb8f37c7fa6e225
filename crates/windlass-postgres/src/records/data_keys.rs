//! The wrapped data keys of tenants. Called by the service. Never sees a key that is not wrapped.

use tokio_postgres::types::Type;
use windlass_core::store::{DataKeyRecord, Error, Result, WrappedKey};
use windlass_core::{Scope, TenantId};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::Time;
use crate::ground::types::tenant;

pub(crate) async fn list(store: &PgStore, scope: Scope) -> Result<Vec<DataKeyRecord>> {
    let params: [Param<'_>; 1] = [(&tenant(scope), Type::UUID)];
    let rows =
        store.shared.pools.api.query(Access::Read, include_str!("../sql/records/data_keys.sql"), &params).await?;
    let record = |row: &Row| {
        let (kek, wrapped): (String, Option<Vec<u8>>) = (row.get(2)?, row.get(3)?);
        let version: i32 = row.get(1)?;
        Ok(DataKeyRecord {
            tenant: TenantId(row.get(0)?),
            version: u32::try_from(version)
                .map_err(|_| Error::Internal(format!("a data key has version {version}")))?,
            wrapped: wrapped.map(|bytes| WrappedKey { kek, bytes }),
            created_at: row.get::<_, Time>(4)?.0,
        })
    };
    Ok(readable(&rows, record))
}

pub(crate) async fn add(store: &PgStore, tenant: TenantId, version: u32, key: WrappedKey) -> Result<bool> {
    let params: [Param<'_>; 4] =
        [(&tenant.0, Type::UUID), (&column(version)?, Type::INT4), (&key.kek, Type::TEXT), (&key.bytes, Type::BYTEA)];
    let sql = include_str!("../sql/records/add_data_key.sql");
    Ok(store.shared.pools.api.query(Access::Write, sql, &params).await?.len() == 1)
}

pub(crate) async fn rewrap(
    store: &PgStore,
    tenant: TenantId,
    version: u32,
    old: &WrappedKey,
    new: WrappedKey,
) -> Result<bool> {
    let params: [Param<'_>; 6] = [
        (&tenant.0, Type::UUID),
        (&column(version)?, Type::INT4),
        (&old.kek, Type::TEXT),
        (&old.bytes, Type::BYTEA),
        (&new.kek, Type::TEXT),
        (&new.bytes, Type::BYTEA),
    ];
    let sql = include_str!("../sql/records/rewrap_data_key.sql");
    Ok(store.shared.pools.api.query(Access::Write, sql, &params).await?.len() == 1)
}

pub(crate) async fn destroy(store: &PgStore, tenant: TenantId) -> Result<usize> {
    let params: [Param<'_>; 1] = [(&tenant.0, Type::UUID)];
    let sql = include_str!("../sql/records/destroy_data_keys.sql");
    Ok(store.shared.pools.api.query(Access::Write, sql, &params).await?.len())
}

fn column(version: u32) -> Result<i32> {
    i32::try_from(version).map_err(|_| Error::Internal(format!("version {version} of a data key is too large")))
}
