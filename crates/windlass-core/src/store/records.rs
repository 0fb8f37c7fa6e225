//! What is stored beside jobs: data keys, API keys, settings, webhooks, the audit log.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::Result;
use super::base::Base;
use crate::admin::access::{ApiKey, SecretHash};
use crate::admin::webhook::Webhook;
use crate::model::clock::Timestamp;
use crate::model::error::Reason;
use crate::model::payload::Payload;
use crate::model::tenant::{Scope, TenantId};

/// What is stored beside jobs: data keys, API keys, settings, webhooks, the audit log.
#[async_trait]
pub trait Records: Base {
    /// The data keys of the scope's tenants, destroyed ones included.
    async fn data_keys(&self, scope: Scope) -> Result<Vec<DataKeyRecord>>;

    /// Keeps a new version of a tenant's data key. False if that version has been there, destroyed or not.
    async fn add_data_key(&self, tenant: TenantId, version: u32, wrapped: WrappedKey) -> Result<bool>;

    /// Replaces the wrapping `old` of a data key by `new`. False if that is not its wrapping any more.
    async fn rewrap_data_key(&self, tenant: TenantId, version: u32, old: &WrappedKey, new: WrappedKey) -> Result<bool>;

    /// Removes the data keys of a tenant for good, and keeps only that there were such versions. Answers how many.
    async fn destroy_data_keys(&self, tenant: TenantId) -> Result<usize>;

    /// Keeps a new API key, made now by its `created_by`, with an audit entry `KEY_CREATED` in the same step. Answers
    /// with the key as it is kept.
    async fn add_api_key(&self, record: ApiKeyRecord) -> Result<ApiKey>;

    /// The API keys of the scope, also revoked and expired ones, newest first, at most [`API_KEYS_LISTED`]. Those for
    /// all tenants are in [`Scope::All`] only.
    async fn api_keys(&self, scope: Scope) -> Result<Vec<ApiKey>>;

    /// The API keys with these ids, of every tenant, with their hashes; in any order.
    async fn find_api_keys(&self, ids: &[String]) -> Result<Vec<ApiKeyRecord>>;

    /// Revokes an API key for good, with an audit entry `KEY_REVOKED` in the same step. False if the scope has none
    /// with this id, or it was revoked before.
    async fn revoke_api_key(&self, scope: Scope, id: &str, by: &str) -> Result<bool>;

    /// Notes when API keys were used. A time that is not later than the one kept changes nothing.
    async fn note_api_key_uses(&self, uses: &[(String, Timestamp)]) -> Result<()>;

    /// A small value that all processes share, such as the secret of a server's cookies; `None` once its time is over.
    async fn setting(&self, name: &str) -> Result<Option<String>>;

    /// Keeps a value unless there is one. Answers with the one that is kept: of many who call at once, all get the same.
    async fn set_setting_if_absent(&self, name: &str, value: &str) -> Result<String>;

    /// Keeps a value for so long, in place of the one that is there.
    async fn put_setting(&self, name: &str, value: &str, keep: Duration) -> Result<()>;

    /// The values kept for a time that is not over whose names begin with `prefix`, with their names; from the last name
    /// on, at most `limit`. A value that is kept for good is not listed.
    async fn settings(&self, prefix: &str, limit: usize) -> Result<Vec<(String, String)>>;

    /// Keeps a webhook, made now by its `created_by`, with an audit entry `WEBHOOK_ADDED`.
    async fn add_webhook(&self, record: WebhookRecord) -> Result<Webhook>;

    /// The webhooks of the scope, oldest first.
    async fn webhooks(&self, scope: Scope) -> Result<Vec<WebhookRecord>>;

    /// Pauses a webhook or lets it go on, active since now, with an audit entry `WEBHOOK_PAUSED` or `WEBHOOK_RESUMED`
    /// where that changes anything. False if the scope has none with this id.
    async fn pause_webhook(&self, scope: Scope, id: &str, paused: bool, by: &str) -> Result<bool>;

    /// Removes a webhook, with an audit entry `WEBHOOK_REMOVED`. False if the scope has none with this id.
    async fn remove_webhook(&self, scope: Scope, id: &str, by: &str) -> Result<bool>;

    /// Adds an entry to the audit log.
    async fn audit(&self, entry: AuditEntry) -> Result<()>;

    /// The audit log, newest first.
    async fn audit_log(&self, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>>;
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its place in the log, set by the store when it is written: larger is newer. Successes that are asked for by their
    /// action have the job's id.
    #[serde(default, skip_serializing)]
    pub sequence: u64,
    /// When; set by the store when it is written.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// In which tenant; none for the whole installation.
    pub tenant: Option<TenantId>,
    /// What: `JOB_SUBMITTED`, `JOB_EDITED`, `JOB_CANCELED`, `JOB_EXHAUSTED_RETRIES`, `JOB_FAILED`, `JOB_REPLAYED`, `JOB_PURGED`,
    /// `PAUSED`, `RESUMED`, `QUOTA_SET`, `QUOTA_CLEARED`, `COST_RECORDED`, `JOB_SUCCEEDED`, `KEY_CREATED`,
    /// `KEY_REVOKED`, `WEBHOOK_ADDED`, `WEBHOOK_PAUSED`, `WEBHOOK_RESUMED`, `WEBHOOK_SWITCHED_OFF`,
    /// `WEBHOOK_REMOVED`, …; handlers add their own, such as `EMAIL_SENT`.
    pub action: String,
    /// On what: a job id, a pause target, a filter.
    pub target: String,
    /// Anything more.
    pub detail: Option<String>,
}

impl AuditEntry {
    /// The action of a job that ended well.
    pub const SUCCEEDED: &'static str = "JOB_SUCCEEDED";

    /// The action of the entry that a dead letter leaves, for good: the last retry failed, or nothing was worth retrying.
    pub fn action_of_dead_letter(reason: &str) -> &'static str {
        if reason == Reason::MaxRetries.as_str() { "JOB_EXHAUSTED_RETRIES" } else { "JOB_FAILED" }
    }
}

/// Which audit entries to read.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct AuditFilter {
    /// Only this action. `JOB_SUCCEEDED` finds every success while its job is kept, from the outcomes, and those that have
    /// an entry of their own for as long as the log is kept. Without this, only those of the second kind are found.
    pub action: Option<String>,
    /// Only this target.
    pub target: Option<String>,
    /// Only what is older than the entry with this [sequence](AuditEntry::sequence): the next page.
    pub before: Option<u64>,
    /// At most so many; 0 means 50.
    pub limit: usize,
}

/// A data key, encrypted by a key that the store never sees.
#[derive(Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// The name of the key that wraps it.
    pub kek: String,
    /// What only the key provider understands.
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for WrappedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WrappedKey({:?}, {} bytes)", self.kek, self.bytes.len())
    }
}

/// One version of a tenant's data key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataKeyRecord {
    /// Whose it is.
    pub tenant: TenantId,
    /// Counts from 1 and is never used again.
    pub version: u32,
    /// The key; `None` once it is destroyed.
    pub wrapped: Option<WrappedKey>,
    /// When it was made.
    pub created_at: Timestamp,
}

/// How many API keys a list shows at most: far more than people look after, and few enough for one answer.
pub const API_KEYS_LISTED: usize = 1_000;

/// An API key as a store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiKeyRecord {
    /// The key.
    pub key: ApiKey,
    /// The hash of its secret.
    pub hash: SecretHash,
}

/// A webhook as a store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookRecord {
    /// The webhook.
    pub webhook: Webhook,
    /// The secret that signs, as a JSON string or its envelope.
    pub secret: Payload,
    /// Whether the secret is sealed.
    pub sealed: bool,
}

/// The calls of [`Records`](crate::store::Records), for a macro that makes something of each. See [`forward_calls`](crate::forward_calls).
#[macro_export]
macro_rules! records_calls {
    ($with:ident! $($more:tt)*) => {
        $with! { $($more)* Records:
            data_keys(scope: $crate::Scope) -> $crate::store::Result<Vec<$crate::store::DataKeyRecord>>;
            add_data_key(tenant: $crate::TenantId, version: u32, wrapped: $crate::store::WrappedKey) -> $crate::store::Result<bool>;
            rewrap_data_key(tenant: $crate::TenantId, version: u32, old: &$crate::store::WrappedKey, new: $crate::store::WrappedKey) -> $crate::store::Result<bool>;
            destroy_data_keys(tenant: $crate::TenantId) -> $crate::store::Result<usize>;
            add_api_key(record: $crate::store::ApiKeyRecord) -> $crate::store::Result<$crate::ApiKey>;
            api_keys(scope: $crate::Scope) -> $crate::store::Result<Vec<$crate::ApiKey>>;
            find_api_keys(ids: &[String]) -> $crate::store::Result<Vec<$crate::store::ApiKeyRecord>>;
            revoke_api_key(scope: $crate::Scope, id: &str, by: &str) -> $crate::store::Result<bool>;
            note_api_key_uses(uses: &[(String, $crate::Timestamp)]) -> $crate::store::Result<()>;
            setting(name: &str) -> $crate::store::Result<Option<String>>;
            set_setting_if_absent(name: &str, value: &str) -> $crate::store::Result<String>;
            put_setting(name: &str, value: &str, keep: ::std::time::Duration) -> $crate::store::Result<()>;
            settings(prefix: &str, limit: usize) -> $crate::store::Result<Vec<(String, String)>>;
            add_webhook(record: $crate::store::WebhookRecord) -> $crate::store::Result<$crate::Webhook>;
            webhooks(scope: $crate::Scope) -> $crate::store::Result<Vec<$crate::store::WebhookRecord>>;
            pause_webhook(scope: $crate::Scope, id: &str, paused: bool, by: &str) -> $crate::store::Result<bool>;
            remove_webhook(scope: $crate::Scope, id: &str, by: &str) -> $crate::store::Result<bool>;
            audit(entry: $crate::store::AuditEntry) -> $crate::store::Result<()>;
            audit_log(scope: $crate::Scope, filter: &$crate::store::AuditFilter) -> $crate::store::Result<Vec<$crate::store::AuditEntry>>;
        }
    };
}
