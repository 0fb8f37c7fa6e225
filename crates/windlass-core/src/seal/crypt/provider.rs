//! The shipped key providers: keys in a file, in the environment, or given by the program. All three wrap with
//! XChaCha20-Poly1305. Never log, show or write a key.

use std::fmt;
use std::path::PathBuf;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::envelope::{cipher, decrypt, encrypt};
use super::{DataKey, KeyOf, KeyProvider};
use crate::model::error::InvalidInput;
use crate::seal::KeyError;
use crate::store::WrappedKey;

/// Key-encryption keys in this process's memory: `name:base64` of 32 bytes each, one per line or separated by commas.
/// The first wraps new data keys; the others still unwrap. `#` begins a comment.
///
/// ```
/// use windlass_core::LocalKeys;
/// assert!(LocalKeys::parse("2026-11:ucLyDBCqlDzWLCdMIGcHFFQbbNFJpRvXVuBTFF4VHgA=").is_ok());
/// assert!(LocalKeys::parse("2026-11:c2hvcnQ=").is_err());
/// ```
pub struct LocalKeys(Vec<(String, DataKey)>);

/// A name longer than this is a mistake, most likely a key.
const NAME_BYTES: usize = 64;

impl LocalKeys {
    /// Reads keys. The errors name the line, never what is in it.
    pub fn parse(text: &str) -> Result<LocalKeys, InvalidInput> {
        let mut keys: Vec<(String, DataKey)> = Vec::new();
        for (n, line) in (1..).zip(text.split(['\n', ','])) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let bad = |why: &str| InvalidInput::new("keys", format!("entry {n}: {why}"));
            let (name, secret) = line.split_once(':').ok_or_else(|| bad("not of the form name:base64"))?;
            let (name, secret) = (name.trim(), secret.trim());
            if name.is_empty() || name.len() > NAME_BYTES || name.contains(char::is_control) {
                return Err(bad("the name is empty, too long or has control characters"));
            }
            let bytes = Zeroizing::new(STANDARD.decode(secret).map_err(|_| bad("the key is not base64"))?);
            let key = DataKey::from_slice(&bytes).ok_or_else(|| bad("the key is not 32 bytes long"))?;
            if keys.iter().any(|(known, _)| known == name) {
                return Err(bad("the name is used twice"));
            }
            keys.push((name.to_owned(), key));
        }
        if keys.is_empty() {
            return Err(InvalidInput::new("keys", "no key is given; write each as `name:base64` of 32 random bytes"));
        }
        Ok(LocalKeys(keys))
    }

    /// A line for a key file: a new random key under `name`.
    pub fn generate(name: &str) -> Result<String, KeyError> {
        Ok(format!("{name}:{}", STANDARD.encode(DataKey::random()?.expose())))
    }

    /// The names, current first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    fn wrap_with_current(&self, of: KeyOf, data_key: &DataKey) -> WrappedKey {
        let (kek, key) = &self.0[0];
        let bytes = encrypt(&cipher(key.expose()), &bound_to(of, kek), data_key.expose());
        WrappedKey { kek: kek.clone(), bytes }
    }

    fn unwrap_with_named(&self, of: KeyOf, wrapped: &WrappedKey) -> Result<DataKey, KeyError> {
        let named = self.0.iter().find(|(name, _)| *name == wrapped.kek);
        // Not for good: whoever has the key can put it back.
        let (kek, key) = named.ok_or_else(|| {
            KeyError::Unavailable(format!("key `{}`, which wraps the data key of {of}, was not found", wrapped.kek))
        })?;
        let bytes = Zeroizing::new(decrypt(&cipher(key.expose()), &bound_to(of, kek), &wrapped.bytes)?);
        DataKey::from_slice(&bytes).ok_or(KeyError::Damaged)
    }
}

/// What a wrapped key belongs to; the name is last because its length varies.
fn bound_to(of: KeyOf, kek: &str) -> Vec<u8> {
    let mut bound = b"windlass key".to_vec();
    bound.extend_from_slice(of.tenant.0.as_bytes());
    bound.extend_from_slice(&of.version.to_be_bytes());
    bound.extend_from_slice(kek.as_bytes());
    bound
}

impl fmt::Debug for LocalKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalKeys").field(&self.names().collect::<Vec<_>>()).finish()
    }
}

#[async_trait]
impl KeyProvider for LocalKeys {
    async fn current(&self) -> Result<String, KeyError> {
        Ok(self.0[0].0.clone())
    }

    async fn wrap(&self, of: KeyOf, data_key: &DataKey) -> Result<WrappedKey, KeyError> {
        Ok(self.wrap_with_current(of, data_key))
    }

    async fn unwrap(&self, of: KeyOf, wrapped: &WrappedKey) -> Result<DataKey, KeyError> {
        self.unwrap_with_named(of, wrapped)
    }
}

/// [`LocalKeys`] in an environment variable, read when the program starts.
#[derive(Debug)]
pub struct EnvKeys(LocalKeys);

impl EnvKeys {
    /// Reads the variable called `name`.
    pub fn new(name: &str) -> Result<EnvKeys, InvalidInput> {
        let text = std::env::var(name).map(Zeroizing::new);
        let text = text.map_err(|_| InvalidInput::new("keys", format!("the variable {name} is not set")))?;
        LocalKeys::parse(&text).map(EnvKeys)
    }
}

#[async_trait]
impl KeyProvider for EnvKeys {
    async fn current(&self) -> Result<String, KeyError> {
        self.0.current().await
    }

    async fn wrap(&self, of: KeyOf, data_key: &DataKey) -> Result<WrappedKey, KeyError> {
        self.0.wrap(of, data_key).await
    }

    async fn unwrap(&self, of: KeyOf, wrapped: &WrappedKey) -> Result<DataKey, KeyError> {
        self.0.unwrap(of, wrapped).await
    }
}

/// [`LocalKeys`] in a file. It is read at every use, which is rare, so that a new key takes effect without a restart
/// and no key-encryption key stays in memory.
#[derive(Clone, Debug)]
pub struct FileKeys(PathBuf);

impl FileKeys {
    /// The keys in the file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> FileKeys {
        FileKeys(path.into())
    }

    /// Reads the file once, to see at the start whether it is right.
    pub fn check(&self) -> Result<(), InvalidInput> {
        self.read().map(drop)
    }

    fn read(&self) -> Result<LocalKeys, InvalidInput> {
        let text = std::fs::read_to_string(&self.0).map(Zeroizing::new);
        let text = text.map_err(|error| InvalidInput::new("keys", format!("{}: {error}", self.0.display())))?;
        let named = |bad: InvalidInput| InvalidInput::new("keys", format!("{}: {}", self.0.display(), bad.message));
        LocalKeys::parse(&text).map_err(named)
    }

    /// Reading a file may block: on a network file system for long.
    async fn keys(&self) -> Result<LocalKeys, KeyError> {
        let file = self.clone();
        let read = tokio::task::spawn_blocking(move || file.read()).await;
        let read = read.map_err(|_| KeyError::Unavailable("the key file could not be read".into()))?;
        read.map_err(|bad| KeyError::Unavailable(bad.message))
    }
}

#[async_trait]
impl KeyProvider for FileKeys {
    async fn current(&self) -> Result<String, KeyError> {
        self.keys().await?.current().await
    }

    async fn wrap(&self, of: KeyOf, data_key: &DataKey) -> Result<WrappedKey, KeyError> {
        Ok(self.keys().await?.wrap_with_current(of, data_key))
    }

    async fn unwrap(&self, of: KeyOf, wrapped: &WrappedKey) -> Result<DataKey, KeyError> {
        self.keys().await?.unwrap_with_named(of, wrapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tenant::TenantId;
    use uuid::Uuid;

    const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const NEW: &str = "new:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";

    fn of(tenant: u128, version: u32) -> KeyOf {
        KeyOf { tenant: TenantId(Uuid::from_u128(tenant)), version }
    }

    #[test]
    fn a_wrapped_key_opens_for_its_tenant_and_version_only() {
        let keys = LocalKeys::parse(&format!("{NEW}\n{OLD} # until spring")).expect("two keys");
        assert_eq!(keys.names().collect::<Vec<_>>(), ["new", "old"]);
        let secret = DataKey::random().expect("random");
        let wrapped = keys.wrap_with_current(of(1, 1), &secret);
        assert_eq!(wrapped.kek, "new");
        assert_eq!(keys.unwrap_with_named(of(1, 1), &wrapped).expect("opens").expose(), secret.expose());
        assert_eq!(keys.unwrap_with_named(of(2, 1), &wrapped).expect_err("another tenant"), KeyError::Damaged);
        assert_eq!(keys.unwrap_with_named(of(1, 2), &wrapped).expect_err("another version"), KeyError::Damaged);
        let without = LocalKeys::parse(OLD).expect("one key");
        assert!(without.unwrap_with_named(of(1, 1), &wrapped).expect_err("not there").is_transient());
    }

    /// SEC-2: what is wrong with a key file is told without a key.
    #[test]
    fn bad_keys_are_refused_without_showing_them() {
        for text in ["", "# nothing", "c2VjcmV0", "a:c2VjcmV0", "a:not base64!", &format!("{OLD},{OLD}"), ":AAEC"] {
            let error = LocalKeys::parse(text).expect_err("refused").to_string();
            assert!(!error.contains("c2VjcmV0") && !error.contains("AAEC"), "{error}");
        }
        let shown = format!("{:?}", LocalKeys::parse(OLD).expect("one key"));
        assert_eq!(shown, "LocalKeys([\"old\"])");
        assert_eq!(format!("{:?}", DataKey::from_slice(&[7; 32])), "Some(DataKey([redacted]))");
    }

    #[test]
    fn a_generated_line_can_be_read() {
        let line = LocalKeys::generate("2026-11").expect("random");
        assert!(LocalKeys::parse(&line).is_ok());
    }
}
