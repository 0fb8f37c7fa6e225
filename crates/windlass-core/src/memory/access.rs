//! What the memory store keeps besides jobs for callers from outside: API keys and settings. Used by `memory`, which
//! writes the audit entries. Never sees a secret.

use std::collections::BTreeMap;

use crate::admin::access::ApiKey;
use crate::model::clock::Timestamp;
use crate::model::tenant::Scope;
use crate::store::{API_KEYS_LISTED, ApiKeyRecord, Error, Result};

#[derive(Default)]
pub(super) struct Access {
    /// In the order in which they were made.
    keys: Vec<ApiKeyRecord>,
    /// With when their time is over, if ever.
    settings: BTreeMap<String, (String, Option<Timestamp>)>,
}

impl Access {
    pub(super) fn setting(&self, name: &str, now: Timestamp) -> Option<String> {
        let (value, until) = self.settings.get(name)?;
        until.is_none_or(|until| until > now).then(|| value.clone())
    }

    pub(super) fn set_if_absent(&mut self, name: &str, value: &str, now: Timestamp) -> String {
        if let Some(kept) = self.setting(name, now) {
            return kept;
        }
        self.settings.insert(name.to_owned(), (value.to_owned(), None));
        value.to_owned()
    }

    /// Also forgets what is over.
    pub(super) fn put(&mut self, name: &str, value: &str, until: Timestamp, now: Timestamp) {
        self.settings.retain(|_, (_, until)| until.is_none_or(|until| until > now));
        self.settings.insert(name.to_owned(), (value.to_owned(), Some(until)));
    }

    pub(super) fn settings(&self, prefix: &str, limit: usize, now: Timestamp) -> Vec<(String, String)> {
        let live = self
            .settings
            .iter()
            .rev()
            .filter(|(name, (_, until))| name.starts_with(prefix) && until.is_some_and(|until| until > now));
        live.take(limit).map(|(name, (value, _))| (name.clone(), value.clone())).collect()
    }

    pub(super) fn add(&mut self, mut record: ApiKeyRecord, now: Timestamp) -> Result<ApiKey> {
        if self.keys.iter().any(|known| known.key.id == record.key.id) {
            return Err(Error::Internal(format!("an API key with the id {} already exists", record.key.id)));
        }
        record.key.created_at = now;
        self.keys.push(record.clone());
        Ok(record.key)
    }

    pub(super) fn list(&self, scope: Scope) -> Vec<ApiKey> {
        let keys = self.keys.iter().rev().map(|record| &record.key);
        keys.filter(|key| key.is_in(scope)).take(API_KEYS_LISTED).cloned().collect()
    }

    pub(super) fn find(&self, ids: &[String]) -> Vec<ApiKeyRecord> {
        self.keys.iter().filter(|record| ids.contains(&record.key.id)).cloned().collect()
    }

    /// The key, if it was not revoked before.
    pub(super) fn revoke(&mut self, scope: Scope, id: &str, now: Timestamp) -> Option<ApiKey> {
        let mut keys = self.keys.iter_mut().map(|record| &mut record.key);
        let key = keys.find(|key| key.id == id && key.is_in(scope) && key.revoked_at.is_none())?;
        key.revoked_at = Some(now);
        Some(key.clone())
    }

    pub(super) fn note_uses(&mut self, uses: &[(String, Timestamp)]) {
        for (id, at) in uses {
            if let Some(record) = self.keys.iter_mut().find(|record| record.key.id == *id) {
                record.key.last_used_at = record.key.last_used_at.max(Some(*at));
            }
        }
    }
}
