//! What is stored beside jobs: keys of callers and of sealed jobs, settings, webhooks, the audit log.

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod data_keys;
pub(crate) mod webhooks;

use std::time::Duration;

use async_trait::async_trait;
use windlass_core::store::{
    ApiKeyRecord, AuditEntry, AuditFilter, DataKeyRecord, Records, Result, WebhookRecord, WrappedKey,
};
use windlass_core::{ApiKey, Scope, TenantId, Timestamp, Webhook};

use crate::SqliteStore;

#[async_trait]
impl Records for SqliteStore {
    async fn data_keys(&self, scope: Scope) -> Result<Vec<DataKeyRecord>> {
        self.read(move |conn, _| data_keys::list(conn, scope)).await
    }

    async fn add_data_key(&self, tenant: TenantId, version: u32, wrapped: WrappedKey) -> Result<bool> {
        self.write(move |conn, state| data_keys::add(conn, state, tenant, version, &wrapped)).await
    }

    async fn rewrap_data_key(&self, tenant: TenantId, version: u32, old: &WrappedKey, new: WrappedKey) -> Result<bool> {
        let old = old.clone();
        self.write(move |conn, _| data_keys::rewrap(conn, tenant, version, &old, &new)).await
    }

    async fn destroy_data_keys(&self, tenant: TenantId) -> Result<usize> {
        self.write(move |conn, _| data_keys::destroy(conn, tenant)).await
    }

    async fn add_api_key(&self, record: ApiKeyRecord) -> Result<ApiKey> {
        self.write(move |conn, state| access::add(conn, state, record)).await
    }

    async fn api_keys(&self, scope: Scope) -> Result<Vec<ApiKey>> {
        self.read(move |conn, _| access::list(conn, scope)).await
    }

    async fn find_api_keys(&self, ids: &[String]) -> Result<Vec<ApiKeyRecord>> {
        let ids = ids.to_vec();
        self.read(move |conn, _| access::find(conn, &ids)).await
    }

    async fn revoke_api_key(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        let (id, by) = (id.to_owned(), by.to_owned());
        self.write(move |conn, state| access::revoke(conn, state, scope, &id, &by)).await
    }

    async fn note_api_key_uses(&self, uses: &[(String, Timestamp)]) -> Result<()> {
        let uses = uses.to_vec();
        self.write(move |conn, _| access::note_uses(conn, &uses)).await
    }

    async fn setting(&self, name: &str) -> Result<Option<String>> {
        let (secrets, name) = (self.secrets.clone(), name.to_owned());
        self.read(move |conn, now| match access::setting(conn, &name, now)? {
            Some(value) => Ok(Some(value)),
            None => Ok(secrets.get(&name)?),
        })
        .await
    }

    async fn set_setting_if_absent(&self, name: &str, value: &str) -> Result<String> {
        let (secrets, name, value) = (self.secrets.clone(), name.to_owned(), value.to_owned());
        self.write(move |conn, state| match access::setting(conn, &name, state.now)? {
            Some(kept) => Ok(kept),
            None => Ok(secrets.set_if_absent(&name, &value)?),
        })
        .await
    }

    async fn put_setting(&self, name: &str, value: &str, keep: Duration) -> Result<()> {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.write(move |conn, state| access::put_setting(conn, &name, &value, state.now + keep, state.now)).await
    }

    async fn settings(&self, prefix: &str, limit: usize) -> Result<Vec<(String, String)>> {
        let prefix = prefix.to_owned();
        self.read(move |conn, now| access::settings(conn, &prefix, limit, now)).await
    }

    async fn add_webhook(&self, record: WebhookRecord) -> Result<Webhook> {
        self.write(move |conn, state| webhooks::add_webhook(conn, state, record)).await
    }

    async fn webhooks(&self, scope: Scope) -> Result<Vec<WebhookRecord>> {
        self.read(move |conn, _| webhooks::webhooks(conn, scope)).await
    }

    async fn pause_webhook(&self, scope: Scope, id: &str, paused: bool, by: &str) -> Result<bool> {
        let (id, by) = (id.to_owned(), by.to_owned());
        self.write(move |conn, state| webhooks::pause_webhook(conn, state, scope, &id, paused, &by)).await
    }

    async fn remove_webhook(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        let (id, by) = (id.to_owned(), by.to_owned());
        self.write(move |conn, state| webhooks::remove_webhook(conn, state, scope, &id, &by)).await
    }

    async fn audit(&self, entry: AuditEntry) -> Result<()> {
        self.write(move |conn, state| audit::audit(conn, state, &entry)).await
    }

    async fn audit_log(&self, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        let filter = filter.clone();
        self.read(move |conn, now| audit::audit_log(conn, now, scope, &filter)).await
    }
}
