//! Encryption of payloads at rest: what a user sets up, and who keeps the keys that wrap keys. The parts:
//! `envelope` seals and opens one text, `vault` has the data keys of tenants, `provider` the shipped providers.
//! Called by `seal`, which knows which texts of a job are sealed. Never writes a key anywhere unwrapped.

mod envelope;
mod provider;
mod vault;

pub use envelope::Envelope;
pub use provider::{EnvKeys, FileKeys, LocalKeys};
pub(crate) use vault::{TenantKeys, Vault};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rand::TryRng;
use zeroize::Zeroizing;

use crate::model::tenant::TenantId;
use crate::seal::KeyError;
use crate::store::WrappedKey;

/// Encrypts what jobs carry before a store sees it (feature `encryption`): input, output, checkpoint, error texts and
/// progress messages, with a data key of the tenant. Set it with [`Builder::encryption`](crate::Builder::encryption) on
/// every node.
///
/// ```
/// use std::sync::Arc;
/// use windlass_core::{Encryption, JobContext, JobError, JobService, LocalKeys, MemoryStore, SecurityContext};
/// use windlass_core::{SubmitOptions, TenantId};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// // From a file: `FileKeys::new("windlass.keys")`; from the environment: `EnvKeys::new("WINDLASS_KEYS")`.
/// let keys = LocalKeys::parse("2026-11:ucLyDBCqlDzWLCdMIGcHFFQbbNFJpRvXVuBTFF4VHgA=")?;
/// let length = |_: (), _: JobContext, text: String| async move { Ok::<_, JobError>(text.len()) };
/// let jobs = JobService::builder(Arc::new(MemoryStore::new()))
///     .encryption(Encryption::new(keys))
///     .function("length", (), length)
///     .start()
///     .await?;
///
/// let ctx = SecurityContext::new(TenantId::ROOT);
/// let job = jobs.submit_named(&ctx, "length", "4111 1111 1111 1111", SubmitOptions::new()).await?;
/// let kept = jobs.store().input(ctx.scope(), job.id).await?.expect("it is kept");
/// assert!(!kept.as_str().contains("4111"), "the store sees only sealed text");
/// assert_eq!(jobs.input(&ctx, job.id).await?.as_str(), "\"4111 1111 1111 1111\"");
/// # jobs.shutdown().await;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Clone)]
pub struct Encryption {
    pub(crate) provider: Arc<dyn KeyProvider>,
    pub(crate) timeout: Duration,
    pub(crate) refresh: Duration,
    pub(crate) tenants: usize,
}

impl Encryption {
    /// Encryption with data keys that `provider` wraps.
    pub fn new(provider: impl KeyProvider) -> Self {
        Encryption {
            provider: Arc::new(provider),
            // Key services answer in tens of milliseconds; longer than this is an outage.
            timeout: Duration::from_secs(5),
            refresh: Duration::from_secs(300),
            tenants: 10_000,
        }
    }

    /// How long the provider and the store may take to hand out a key; 5 s unless set.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long keys are used before the store is asked again: so long a rotation or a destruction on another node may
    /// go unnoticed here. 5 minutes unless set.
    #[must_use]
    pub fn refresh_after(mut self, age: Duration) -> Self {
        self.refresh = age;
        self
    }

    /// The keys of how many tenants are held in memory at most; 10,000 unless set.
    #[must_use]
    pub fn tenants_held(mut self, tenants: usize) -> Self {
        self.tenants = tenants.max(1);
        self
    }
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encryption").field("refresh", &self.refresh).finish_non_exhaustive()
    }
}

/// Keeps the key-encryption keys: wraps data keys and unwraps them again. It is asked once per data key and process,
/// and again when the wrapping has changed; calls that take longer than [`Encryption::timeout`] count as failed.
///
/// Shipped are [`FileKeys`], [`EnvKeys`] and [`LocalKeys`]. A key service is a few lines:
///
/// ```
/// use windlass_core::{async_trait, DataKey, KeyError, KeyOf, KeyProvider, store::WrappedKey};
/// # #[derive(Clone)] struct Client;
/// # impl Client {
/// #     async fn encrypt(&self, _: &str, secret: &[u8], _: String) -> Result<Vec<u8>, std::io::Error> { Ok(secret.to_vec()) }
/// #     async fn decrypt(&self, _: &str, sealed: &[u8], _: String) -> Result<Vec<u8>, std::io::Error> { Ok(sealed.to_vec()) }
/// # }
/// /// The transit engine of a key service; each tenant's keys are bound to the tenant by the context it is given.
/// struct KeyService { client: Client, key: String }
///
/// #[async_trait]
/// impl KeyProvider for KeyService {
///     async fn current(&self) -> Result<String, KeyError> {
///         Ok(self.key.clone())
///     }
///     async fn wrap(&self, of: KeyOf, data_key: &DataKey) -> Result<WrappedKey, KeyError> {
///         let bytes = self.client.encrypt(&self.key, data_key.expose(), of.to_string()).await;
///         let bytes = bytes.map_err(|error| KeyError::Unavailable(error.to_string()))?;
///         Ok(WrappedKey { kek: self.key.clone(), bytes })
///     }
///     async fn unwrap(&self, of: KeyOf, wrapped: &WrappedKey) -> Result<DataKey, KeyError> {
///         let bytes = self.client.decrypt(&wrapped.kek, &wrapped.bytes, of.to_string()).await;
///         let bytes = bytes.map_err(|error| KeyError::Unavailable(error.to_string()))?;
///         DataKey::from_slice(&bytes).ok_or(KeyError::Damaged)
///     }
/// }
/// ```
#[async_trait]
pub trait KeyProvider: Send + Sync + 'static {
    /// The name of the key that new data keys are wrapped with. Data keys wrapped with another are wrapped anew by
    /// [`Within::rewrap_keys`](crate::Within::rewrap_keys).
    async fn current(&self) -> Result<String, KeyError>;

    /// Wraps a data key with the current key.
    async fn wrap(&self, of: KeyOf, data_key: &DataKey) -> Result<WrappedKey, KeyError>;

    /// Unwraps a data key with the key named in it. [`KeyError::Unavailable`] where trying again may help.
    async fn unwrap(&self, of: KeyOf, wrapped: &WrappedKey) -> Result<DataKey, KeyError>;
}

/// Whose data key, and which version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyOf {
    /// The tenant.
    pub tenant: TenantId,
    /// Counts from 1.
    pub version: u32,
}

impl fmt::Display for KeyOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.version)
    }
}

/// 32 secret bytes. Wiped from memory when dropped, and never shown.
pub struct DataKey(Zeroizing<[u8; KEY_BYTES]>);

pub(crate) const KEY_BYTES: usize = 32;

impl DataKey {
    /// A new one, from the operating system's random numbers.
    pub fn random() -> Result<DataKey, KeyError> {
        let mut key = DataKey(Zeroizing::new([0; KEY_BYTES]));
        rand::rngs::SysRng.try_fill_bytes(&mut key.0[..]).map_err(|error| {
            KeyError::Unavailable(format!("the operating system returned no random numbers: {error}"))
        })?;
        Ok(key)
    }

    /// From bytes; `None` unless there are 32.
    pub fn from_slice(bytes: &[u8]) -> Option<DataKey> {
        let mut key = DataKey(Zeroizing::new([0; KEY_BYTES]));
        (bytes.len() == KEY_BYTES).then(|| key.0.copy_from_slice(bytes))?;
        Some(key)
    }

    /// The secret, to wrap it.
    pub fn expose(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey([redacted])")
    }
}
