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

use crate::PgStore;

#[async_trait]
impl Records for PgStore {
    async fn data_keys(&self, scope: Scope) -> Result<Vec<DataKeyRecord>> {
        data_keys::list(self, scope).await
    }

    async fn add_data_key(&self, tenant: TenantId, version: u32, wrapped: WrappedKey) -> Result<bool> {
        data_keys::add(self, tenant, version, wrapped).await
    }

    async fn rewrap_data_key(&self, tenant: TenantId, version: u32, old: &WrappedKey, new: WrappedKey) -> Result<bool> {
        data_keys::rewrap(self, tenant, version, old, new).await
    }

    async fn destroy_data_keys(&self, tenant: TenantId) -> Result<usize> {
        data_keys::destroy(self, tenant).await
    }

    async fn add_api_key(&self, record: ApiKeyRecord) -> Result<ApiKey> {
        access::add(self, record).await
    }

    async fn api_keys(&self, scope: Scope) -> Result<Vec<ApiKey>> {
        access::list(self, scope).await
    }

    async fn find_api_keys(&self, ids: &[String]) -> Result<Vec<ApiKeyRecord>> {
        access::find(self, ids).await
    }

    async fn revoke_api_key(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        access::revoke(self, scope, id, by).await
    }

    async fn note_api_key_uses(&self, uses: &[(String, Timestamp)]) -> Result<()> {
        access::note_uses(self, uses).await
    }

    async fn setting(&self, name: &str) -> Result<Option<String>> {
        access::setting(self, name).await
    }

    async fn set_setting_if_absent(&self, name: &str, value: &str) -> Result<String> {
        access::set_setting_if_absent(self, name, value).await
    }

    async fn put_setting(&self, name: &str, value: &str, keep: Duration) -> Result<()> {
        access::put_setting(self, name, value, keep).await
    }

    async fn settings(&self, prefix: &str, limit: usize) -> Result<Vec<(String, String)>> {
        access::settings(self, prefix, limit).await
    }

    async fn add_webhook(&self, record: WebhookRecord) -> Result<Webhook> {
        webhooks::add_webhook(self, record).await
    }

    async fn webhooks(&self, scope: Scope) -> Result<Vec<WebhookRecord>> {
        webhooks::webhooks(self, scope).await
    }

    async fn pause_webhook(&self, scope: Scope, id: &str, paused: bool, by: &str) -> Result<bool> {
        webhooks::pause_webhook(self, scope, id, paused, by).await
    }

    async fn remove_webhook(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        webhooks::remove_webhook(self, scope, id, by).await
    }

    async fn audit(&self, entry: AuditEntry) -> Result<()> {
        audit::audit(self, entry).await
    }

    async fn audit_log(&self, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        audit::audit_log(self, scope, filter).await
    }
}
