//! What the memory store keeps beside jobs: keys, settings, webhooks, the audit log.

use std::collections::btree_map;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::entry::Entry;
use super::{DEFAULT_AUDIT_LIMIT, ENGINE, MemoryStore, State};
use crate::admin::access::ApiKey;
use crate::admin::webhook::Webhook;
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::Status;
use crate::model::tenant::{Scope, TenantId};
use crate::store::{ApiKeyRecord, AuditEntry, AuditFilter, DataKeyRecord, Records, Result, WebhookRecord, WrappedKey};

#[async_trait]
impl Records for MemoryStore {
    async fn data_keys(&self, scope: Scope) -> Result<Vec<DataKeyRecord>> {
        let covered = |key: &&DataKeyRecord| scope.covers(key.tenant);
        Ok(self.step(|state, _| state.data_keys.values().filter(covered).cloned().collect()))
    }

    async fn add_data_key(&self, tenant: TenantId, version: u32, wrapped: WrappedKey) -> Result<bool> {
        Ok(self.step(|state, now| {
            let new = DataKeyRecord { tenant, version, wrapped: Some(wrapped), created_at: now };
            match state.data_keys.entry((tenant, version)) {
                btree_map::Entry::Vacant(place) => {
                    place.insert(new);
                    true
                }
                btree_map::Entry::Occupied(_) => false,
            }
        }))
    }

    async fn rewrap_data_key(&self, tenant: TenantId, version: u32, old: &WrappedKey, new: WrappedKey) -> Result<bool> {
        Ok(self.step(|state, _| match state.data_keys.get_mut(&(tenant, version)) {
            Some(key) if key.wrapped.as_ref() == Some(old) => {
                key.wrapped = Some(new);
                true
            }
            _ => false,
        }))
    }

    async fn destroy_data_keys(&self, tenant: TenantId) -> Result<usize> {
        let of_tenant = (tenant, 0)..=(tenant, u32::MAX);
        Ok(self.step(|state, _| state.data_keys.range_mut(of_tenant).filter_map(|(_, key)| key.wrapped.take()).count()))
    }

    async fn add_api_key(&self, record: ApiKeyRecord) -> Result<ApiKey> {
        self.step(|state, now| {
            let key = state.access.add(record, now)?;
            let (tenant, detail) = ((!key.all_tenants).then_some(key.tenant), key.summary());
            state.write_audit(now, &key.created_by, tenant, "KEY_CREATED", &key.id, Some(detail));
            Ok(key)
        })
    }

    async fn api_keys(&self, scope: Scope) -> Result<Vec<ApiKey>> {
        Ok(self.step(|state, _| state.access.list(scope)))
    }

    async fn find_api_keys(&self, ids: &[String]) -> Result<Vec<ApiKeyRecord>> {
        Ok(self.step(|state, _| state.access.find(ids)))
    }

    async fn revoke_api_key(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        Ok(self.step(|state, now| match state.access.revoke(scope, id, now) {
            Some(key) => {
                let tenant = (!key.all_tenants).then_some(key.tenant);
                state.write_audit(now, by, tenant, "KEY_REVOKED", id, Some(key.summary()));
                true
            }
            None => false,
        }))
    }

    async fn note_api_key_uses(&self, uses: &[(String, Timestamp)]) -> Result<()> {
        self.step(|state, _| state.access.note_uses(uses));
        Ok(())
    }

    async fn setting(&self, name: &str) -> Result<Option<String>> {
        Ok(self.step(|state, now| state.access.setting(name, now)))
    }

    async fn set_setting_if_absent(&self, name: &str, value: &str) -> Result<String> {
        Ok(self.step(|state, now| state.access.set_if_absent(name, value, now)))
    }

    async fn put_setting(&self, name: &str, value: &str, keep: Duration) -> Result<()> {
        self.step(|state, now| state.access.put(name, value, now + keep, now));
        Ok(())
    }

    async fn settings(&self, prefix: &str, limit: usize) -> Result<Vec<(String, String)>> {
        Ok(self.step(|state, now| state.access.settings(prefix, limit, now)))
    }

    async fn add_webhook(&self, record: WebhookRecord) -> Result<Webhook> {
        self.step(|state, now| {
            let webhook = state.feed.add_webhook(record, now)?;
            state.audit_webhook(now, &webhook, &webhook.created_by, "WEBHOOK_ADDED");
            Ok(webhook)
        })
    }

    async fn webhooks(&self, scope: Scope) -> Result<Vec<WebhookRecord>> {
        Ok(self.step(|state, _| state.feed.webhooks(scope)))
    }

    async fn pause_webhook(&self, scope: Scope, id: &str, paused: bool, by: &str) -> Result<bool> {
        Ok(self.step(|state, now| {
            let Some((webhook, changed)) = state.feed.pause_webhook(scope, id, paused, now) else { return false };
            if changed {
                let action = if paused { "WEBHOOK_PAUSED" } else { "WEBHOOK_RESUMED" };
                state.audit_webhook(now, &webhook, by, action);
            }
            true
        }))
    }

    async fn remove_webhook(&self, scope: Scope, id: &str, by: &str) -> Result<bool> {
        Ok(self.step(|state, now| {
            let Some(webhook) = state.feed.remove_webhook(scope, id) else { return false };
            state.audit_webhook(now, &webhook, by, "WEBHOOK_REMOVED");
            true
        }))
    }

    async fn audit(&self, entry: AuditEntry) -> Result<()> {
        self.step(|state, now| state.push_audit(AuditEntry { at: now, ..entry }));
        Ok(())
    }

    async fn audit_log(&self, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        Ok(self.step(|state, now| state.audit_log(scope, filter, now)))
    }
}

impl State {
    pub(super) fn audit_log(&self, scope: Scope, filter: &AuditFilter, now: Timestamp) -> Vec<AuditEntry> {
        let limit = if filter.limit == 0 { DEFAULT_AUDIT_LIMIT } else { filter.limit };
        if filter.action.as_deref() == Some(AuditEntry::SUCCEEDED) {
            return self.successes(scope, filter, limit, now);
        }
        let passes = |entry: &&AuditEntry| {
            entry.tenant.map_or(scope.tenant().is_none(), |tenant| scope.covers(tenant))
                && filter.action.as_ref().is_none_or(|action| *action == entry.action)
                && filter.target.as_ref().is_none_or(|target| *target == entry.target)
                && filter.before.is_none_or(|before| entry.sequence < before)
        };
        self.audit.iter().rev().filter(passes).take(limit).cloned().collect()
    }

    /// Audit entries of jobs that ended well, from their outcomes and from the log, by job.
    pub(super) fn successes(
        &self,
        scope: Scope,
        filter: &AuditFilter,
        limit: usize,
        now: Timestamp,
    ) -> Vec<AuditEntry> {
        let success = |entry: &Entry| {
            let outcome = entry.outcome().filter(|outcome| outcome.status == Status::Succeeded)?;
            Some(AuditEntry {
                sequence: entry.job.id.as_i64() as u64,
                at: outcome.at,
                actor: ENGINE.to_owned(),
                tenant: Some(entry.job.tenant),
                action: AuditEntry::SUCCEEDED.to_owned(),
                target: entry.job.id.to_string(),
                detail: None,
            })
        };
        let ids: Vec<JobId> = match filter.target.as_deref() {
            Some(target) => target.parse().into_iter().collect(),
            None => self.jobs.keys().rev().copied().collect(),
        };
        let older = |entry: &AuditEntry| filter.before.is_none_or(|before| entry.sequence < before);
        let visible = ids.into_iter().filter_map(|id| self.visible(scope, id, now));
        let mut found: Vec<AuditEntry> = visible.filter_map(success).filter(older).take(limit).collect();
        let written = self.audit.iter().filter(|entry| entry.action == AuditEntry::SUCCEEDED && entry.actor == ENGINE);
        let written = written.filter(|entry| filter.target.as_ref().is_none_or(|target| *target == entry.target));
        let written = written.filter(|entry| entry.tenant.is_some_and(|tenant| scope.covers(tenant)));
        let by_job = |entry: &AuditEntry| {
            let job: JobId = entry.target.parse().ok()?;
            Some(AuditEntry { sequence: job.as_i64() as u64, ..entry.clone() })
        };
        found.extend(written.filter_map(by_job).filter(older));
        found.sort_by_key(|entry| std::cmp::Reverse(entry.sequence));
        found.dedup_by_key(|entry| entry.sequence);
        found.truncate(limit);
        found
    }

    pub(super) fn audit_webhook(&mut self, now: Timestamp, webhook: &Webhook, by: &str, action: &str) {
        self.write_audit(now, by, Some(webhook.tenant), action, &webhook.id, Some(webhook.url.clone()));
    }

    pub(super) fn write_audit(
        &mut self,
        now: Timestamp,
        actor: &str,
        tenant: Option<TenantId>,
        action: &str,
        target: impl fmt::Display,
        detail: Option<String>,
    ) {
        let (actor, action, target) = (actor.to_owned(), action.to_owned(), target.to_string());
        self.push_audit(AuditEntry { sequence: 0, at: now, actor, tenant, action, target, detail });
    }

    pub(super) fn push_audit(&mut self, entry: AuditEntry) {
        let sequence = self.audit.len() as u64 + 1;
        self.audit.push(AuditEntry { sequence, ..entry });
    }
}
