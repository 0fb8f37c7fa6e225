//! The data keys of tenants, unwrapped and held for a while: read from the store, made when a tenant has none. Called by
//! `seal`. One caller at a time asks for the keys of a tenant, the others wait for its answer; a failure is remembered
//! for a moment, so that an outage costs each caller little. Never holds a lock while it waits for store or provider.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::{Mutex, RwLock};

use super::envelope::{Envelope, Key};
use super::{DataKey, Encryption, KeyOf};
use crate::model::id::JobId;
use crate::model::tenant::{Scope, TenantId};
use crate::seal::{KeyError, Kind};
use crate::store::{DataKeyRecord, Store, WrappedKey};

/// Everything this process knows of data keys.
pub(crate) struct Vault {
    store: Arc<dyn Store>,
    options: Encryption,
    tenants: RwLock<HashMap<TenantId, Arc<Slot>>>,
}

/// The place of one tenant's keys.
#[derive(Default)]
struct Slot {
    known: RwLock<Option<(Arc<TenantKeys>, Instant)>>,
    /// Whoever holds it asks the store and the provider.
    asking: tokio::sync::Mutex<()>,
    failed: Mutex<Option<(KeyError, Instant)>>,
}

/// After a failure nobody asks again for this long.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How often a new key is offered to a store in which others make keys too.
const TRIES_TO_MAKE: usize = 5;

/// The keys of a tenant, as the store had them.
pub(crate) struct TenantKeys {
    tenant: TenantId,
    /// By version, lowest first.
    versions: Vec<Version>,
}

struct Version {
    version: u32,
    wrapped: Option<WrappedKey>,
    state: State,
}

#[derive(Clone)]
enum State {
    Usable(Arc<Key>),
    Destroyed,
    /// The provider did not unwrap it.
    Closed(KeyError),
}

impl Vault {
    pub(crate) fn new(store: Arc<dyn Store>, options: Encryption) -> Arc<Vault> {
        Arc::new(Vault { store, options, tenants: RwLock::default() })
    }

    /// Keys to seal with; makes the tenant's first one.
    pub(crate) async fn for_sealing(&self, tenant: TenantId) -> Result<Arc<TenantKeys>, KeyError> {
        let keys = self.obtain(tenant, TenantKeys::known_to_seal_or_not, true).await?;
        keys.current()?;
        Ok(keys)
    }

    /// Keys that may open what version `version` has sealed; what is wrong with that version is told by `open`.
    pub(crate) async fn for_opening(&self, tenant: TenantId, version: u32) -> Result<Arc<TenantKeys>, KeyError> {
        self.obtain(tenant, |keys, age| keys.known_to_open_or_not(version, age), false).await
    }

    /// Keys that are here and not too old; asks nobody.
    pub(crate) fn held(&self, tenant: TenantId) -> Option<Arc<TenantKeys>> {
        self.tenants.read().get(&tenant)?.held(self.options.refresh).map(|(keys, _)| keys)
    }

    /// Whether somebody asks for a tenant's keys, or has failed to a moment ago.
    pub(crate) fn is_busy_with(&self, tenant: TenantId) -> bool {
        let slot = self.slot(tenant);
        slot.asking.try_lock().is_err() || slot.failed_lately().is_some()
    }

    async fn obtain(
        &self,
        tenant: TenantId,
        good: impl Fn(&TenantKeys, Duration) -> bool,
        make: bool,
    ) -> Result<Arc<TenantKeys>, KeyError> {
        let held = |slot: &Slot| {
            let held = slot.held(self.options.refresh).filter(|(keys, age)| good(keys, *age));
            held.map(|(keys, _)| keys)
        };
        if let Some(keys) = self.tenants.read().get(&tenant).and_then(|slot| held(slot)) {
            return Ok(keys);
        }
        let slot = self.slot(tenant);
        let _turn = slot.asking.lock().await;
        // Somebody else may have asked meanwhile.
        if let Some(keys) = held(&slot) {
            return Ok(keys);
        }
        if let Some(error) = slot.failed_lately() {
            return Err(error);
        }
        let asked = tokio::time::timeout(self.options.timeout, self.ask(tenant, &slot, make)).await;
        let late = || KeyError::Unavailable(format!("no answer within {} ms", self.options.timeout.as_millis()));
        match asked.unwrap_or_else(|_| Err(late())) {
            Ok(keys) => {
                *slot.known.write() = Some((keys.clone(), Instant::now()));
                Ok(keys)
            }
            Err(error) => {
                *slot.failed.lock() = Some((error.clone(), Instant::now()));
                tracing::warn!(%tenant, %error, "the keys of a tenant could not be read");
                Err(error)
            }
        }
    }

    /// Reads a tenant's keys, and makes one if there is none to seal with.
    async fn ask(&self, tenant: TenantId, slot: &Slot, make: bool) -> Result<Arc<TenantKeys>, KeyError> {
        let before = slot.known.read().as_ref().map(|(keys, _)| keys.clone());
        for _ in 0..TRIES_TO_MAKE {
            let records = self.store.data_keys(Scope::Tenant(tenant)).await?;
            let keys = self.unwrap_all(tenant, records, before.as_deref()).await;
            match keys.current() {
                Err(KeyError::Destroyed { .. }) if make => {}
                Err(error) if make => return Err(error),
                _ => return Ok(Arc::new(keys)),
            }
            // Another node may do the same: the store keeps one of the two, and both read that one.
            self.add_version(tenant, keys.newest() + 1).await?;
        }
        Err(KeyError::Unavailable("the store did not save the new data key".into()))
    }

    async fn unwrap_all(
        &self,
        tenant: TenantId,
        records: Vec<DataKeyRecord>,
        before: Option<&TenantKeys>,
    ) -> TenantKeys {
        let mut versions = Vec::with_capacity(records.len());
        for record in records {
            let state = match &record.wrapped {
                None => State::Destroyed,
                Some(wrapped) => match before.and_then(|keys| keys.unwrapped_before(record.version, wrapped)) {
                    Some(key) => State::Usable(key),
                    None => self.unwrap(KeyOf { tenant, version: record.version }, wrapped).await,
                },
            };
            versions.push(Version { version: record.version, wrapped: record.wrapped, state });
        }
        versions.sort_unstable_by_key(|version| version.version);
        TenantKeys { tenant, versions }
    }

    async fn unwrap(&self, of: KeyOf, wrapped: &WrappedKey) -> State {
        match self.options.provider.unwrap(of, wrapped).await {
            Ok(data_key) => State::Usable(Arc::new(Key::new(of, &data_key))),
            Err(error) => State::Closed(error),
        }
    }

    async fn add_version(&self, tenant: TenantId, version: u32) -> Result<bool, KeyError> {
        let wrapped = self.options.provider.wrap(KeyOf { tenant, version }, &DataKey::random()?).await?;
        Ok(self.store.add_data_key(tenant, version, wrapped).await?)
    }

    /// Makes a new version, which seals from now on. Answers its number.
    pub(crate) async fn rotate(&self, tenant: TenantId) -> Result<u32, KeyError> {
        let made = async {
            for _ in 0..TRIES_TO_MAKE {
                let records = self.store.data_keys(Scope::Tenant(tenant)).await?;
                let version = records.iter().map(|record| record.version).max().unwrap_or(0) + 1;
                if self.add_version(tenant, version).await? {
                    return Ok(version);
                }
            }
            Err(KeyError::Unavailable("other processes create data keys for this tenant at the same time".into()))
        };
        let version = self.bounded(made).await?;
        self.forget(tenant);
        Ok(version)
    }

    /// Wraps every data key with the provider's current key that is wrapped with another. Answers how many.
    pub(crate) async fn rewrap(&self) -> Result<usize, KeyError> {
        let provider = &self.options.provider;
        let current = self.bounded(provider.current()).await?;
        let mut rewrapped = 0;
        for DataKeyRecord { tenant, version, wrapped, .. } in self.store.data_keys(Scope::ENGINE).await? {
            let Some(old) = wrapped.filter(|wrapped| wrapped.kek != current) else { continue };
            let of = KeyOf { tenant, version };
            let new = async { provider.wrap(of, &provider.unwrap(of, &old).await?).await };
            let new = self.bounded(new).await?;
            // False: destroyed or wrapped anew by somebody else meanwhile, and that stands.
            rewrapped += usize::from(self.store.rewrap_data_key(tenant, version, &old, new).await?);
        }
        Ok(rewrapped)
    }

    async fn bounded<T>(&self, work: impl Future<Output = Result<T, KeyError>>) -> Result<T, KeyError> {
        let late = || KeyError::Unavailable(format!("no answer within {} ms", self.options.timeout.as_millis()));
        tokio::time::timeout(self.options.timeout, work).await.unwrap_or_else(|_| Err(late()))
    }

    /// Drops what is held of a tenant, so that the next use reads the store.
    pub(crate) fn forget(&self, tenant: TenantId) {
        self.tenants.write().remove(&tenant);
    }

    fn slot(&self, tenant: TenantId) -> Arc<Slot> {
        let mut tenants = self.tenants.write();
        if let Some(slot) = tenants.get(&tenant) {
            return slot.clone();
        }
        if tenants.len() >= self.options.tenants {
            // Seldom enough to look at all: each time costs a call to the store besides.
            let oldest = tenants.iter().min_by_key(|(_, slot)| slot.known.read().as_ref().map(|(_, at)| *at));
            if let Some(oldest) = oldest.map(|(tenant, _)| *tenant) {
                tenants.remove(&oldest);
            }
        }
        tenants.entry(tenant).or_default().clone()
    }
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault").field("tenants", &self.tenants.read().len()).finish_non_exhaustive()
    }
}

impl Slot {
    /// The keys and their age.
    fn held(&self, younger_than: Duration) -> Option<(Arc<TenantKeys>, Duration)> {
        let known = self.known.read();
        let (keys, age) = known.as_ref().map(|(keys, at)| (keys, at.elapsed()))?;
        (age < younger_than).then(|| (keys.clone(), age))
    }

    fn failed_lately(&self) -> Option<KeyError> {
        let failed = self.failed.lock();
        failed.as_ref().filter(|(_, at)| at.elapsed() < ASK_AGAIN_AFTER).map(|(error, _)| error.clone())
    }
}

impl TenantKeys {
    /// Seals a text of a job with the newest version.
    pub(crate) fn seal(&self, job: JobId, kind: Kind, text: &str) -> String {
        let key = self.current().expect("keys that cannot seal are not handed out for sealing");
        key.seal(job, kind, text).to_string()
    }

    /// Opens a text of a job.
    pub(crate) fn open(&self, job: JobId, kind: Kind, envelope: &Envelope) -> Result<String, KeyError> {
        let destroyed = KeyError::Destroyed { tenant: self.tenant, version: envelope.version };
        match self.state(envelope.version) {
            Some(State::Usable(key)) => key.open(job, kind, envelope),
            Some(State::Closed(error)) => Err(error.clone()),
            Some(State::Destroyed) | None => Err(destroyed),
        }
    }

    /// A stand-in for a content key that shows nothing of the content. From the oldest key that is left, so that a
    /// rotation does not make equal contents differ.
    pub(crate) fn content_key(&self, content: &str) -> Result<String, KeyError> {
        let left = self.versions.iter().find(|version| !matches!(version.state, State::Destroyed));
        match left.map(|version| &version.state) {
            Some(State::Usable(key)) => Ok(key.content_key(content)),
            Some(State::Closed(error)) => Err(error.clone()),
            Some(State::Destroyed) | None => Err(self.none_left()),
        }
    }

    /// The newest version, if it can seal.
    fn current(&self) -> Result<&Key, KeyError> {
        match self.versions.last().map(|version| &version.state) {
            Some(State::Usable(key)) => Ok(key),
            Some(State::Closed(error)) => Err(error.clone()),
            Some(State::Destroyed) | None => Err(self.none_left()),
        }
    }

    fn none_left(&self) -> KeyError {
        KeyError::Destroyed { tenant: self.tenant, version: self.newest() }
    }

    fn newest(&self) -> u32 {
        self.versions.last().map_or(0, |version| version.version)
    }

    fn state(&self, version: u32) -> Option<&State> {
        self.versions.iter().find(|known| known.version == version).map(|known| &known.state)
    }

    /// Whether asking again would tell no more about the newest version. What could not be unwrapped a moment ago is not
    /// tried again at once.
    fn known_to_seal_or_not(&self, age: Duration) -> bool {
        match self.current() {
            Ok(_) => true,
            Err(KeyError::Destroyed { .. }) => false,
            Err(_) => age < ASK_AGAIN_AFTER,
        }
    }

    /// The same for a version that has sealed something. A version above all that are known is a new one: to take it for
    /// a destroyed one would end jobs that others can read.
    fn known_to_open_or_not(&self, version: u32, age: Duration) -> bool {
        match self.state(version) {
            Some(State::Usable(_) | State::Destroyed) => true,
            Some(State::Closed(_)) => age < ASK_AGAIN_AFTER,
            None => version < self.newest(),
        }
    }

    fn unwrapped_before(&self, version: u32, wrapped: &WrappedKey) -> Option<Arc<Key>> {
        let same = self.versions.iter().find(|known| known.version == version)?;
        match &same.state {
            State::Usable(key) if same.wrapped.as_ref() == Some(wrapped) => Some(key.clone()),
            _ => None,
        }
    }
}

impl std::fmt::Debug for TenantKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantKeys").field("tenant", &self.tenant).field("newest", &self.newest()).finish()
    }
}
