//! What stands beside jobs and is looked after by administrators: API keys, data keys, webhooks.

pub(crate) mod access;
#[cfg(feature = "encryption")]
pub(crate) mod data_keys;
pub(crate) mod webhook;
