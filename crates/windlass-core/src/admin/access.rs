//! Which external callers are accepted, and what they may do: rights and API keys. Called by the service's users, above
//! all by the server, which asks [`JobService::check_key`] with every request. Keeps no secret: a store has only the
//! SHA-256 of a key. Never decides about one route; it says which rights a caller has.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;
use rand::TryRng;
use serde::de::Deserializer;
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::Notify;

use crate::config::check_text;
use crate::life::submit::check_name;
use crate::model::clock::Timestamp;
use crate::model::error::{Error, InvalidInput};
use crate::model::tenant::{Scope, SecurityContext, TenantId};
use crate::node::Worker;
use crate::operate::within::Within;
use crate::seal::KeyError;
use crate::service::JobService;
use crate::store::{ApiKeyRecord, Store};

// ---- rights

/// Something a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// See jobs, without their payloads.
    Read,
    /// Submit jobs.
    Submit,
    /// Cancel, replay, purge, pause, edit. Includes [`Right::Read`].
    Operate,
    /// Keys, webhooks, quotas. Includes all but [`Right::Payload`].
    Admin,
    /// See inputs, outputs and logs. No other right includes it.
    Payload,
}

impl Right {
    /// Every right.
    pub const ALL: [Right; 5] = [Right::Read, Right::Submit, Right::Operate, Right::Admin, Right::Payload];

    /// The name.
    pub fn as_str(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Submit => "submit",
            Right::Operate => "operate",
            Right::Admin => "admin",
            Right::Payload => "payload",
        }
    }

    /// From the name.
    pub fn parse(text: &str) -> Result<Right, InvalidInput> {
        let known = || Right::ALL.map(Right::as_str).join(", ");
        let found = Right::ALL.into_iter().find(|right| right.as_str() == text.trim());
        found.ok_or_else(|| {
            InvalidInput::new(
                "rights",
                format!("unknown right `{}`; known rights are {}", text.escape_debug(), known()),
            )
        })
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a caller may do: a set of rights. Nothing by default.
///
/// ```
/// use windlass_core::{Right, Rights};
/// let rights = Rights::parse("submit,operate").unwrap();
/// assert!(rights.allow(Right::Read), "the right to operate includes the right to read");
/// assert!(!rights.allow(Right::Payload) && !rights.allow(Right::Admin));
/// assert_eq!(rights.to_string(), "submit,operate");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Rights {
    /// No right at all.
    pub const NONE: Rights = Rights(0);

    /// Every right.
    pub const ALL: Rights = Rights(0b1_1111);

    /// These rights.
    pub fn of(rights: impl IntoIterator<Item = Right>) -> Rights {
        rights.into_iter().fold(Rights::NONE, Rights::with)
    }

    /// One more.
    #[must_use]
    pub fn with(self, right: Right) -> Rights {
        Rights(self.0 | right.bit())
    }

    /// From names with commas between them.
    pub fn parse(text: &str) -> Result<Rights, InvalidInput> {
        text.split(',').map(Right::parse).collect::<Result<Vec<_>, _>>().map(Rights::of)
    }

    /// Whether the set allows it, by itself or because a right of the set includes it.
    pub fn allow(self, right: Right) -> bool {
        let has = |right: Right| self.0 & right.bit() != 0;
        let included = match right {
            Right::Read => has(Right::Operate) || has(Right::Admin),
            Right::Submit | Right::Operate => has(Right::Admin),
            Right::Admin | Right::Payload => false,
        };
        has(right) || included
    }

    /// Whether this set allows everything that `others` allow. Callers may only grant rights that their own set covers.
    pub fn cover(self, others: Rights) -> bool {
        Right::ALL.into_iter().all(|right| self.allow(right) || !others.allow(right))
    }

    /// The rights by themselves, in order.
    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(move |right| self.0 & right.bit() != 0)
    }

    /// Whether nothing is allowed.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(Right::as_str).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rights({self})")
    }
}

impl FromStr for Rights {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Rights, InvalidInput> {
        Rights::parse(text)
    }
}

impl Serialize for Rights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Rights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rights, D::Error> {
        Vec::<Right>::deserialize(deserializer).map(Rights::of)
    }
}

// ---- keys

/// An API key, without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ApiKey {
    /// Its public part, which stands in the secret too.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// The tenant that its calls act for.
    pub tenant: TenantId,
    /// Whether its calls may also act on every tenant's jobs.
    pub all_tenants: bool,
    /// The user that its calls act as.
    pub user: String,
    /// What its calls may do.
    pub rights: Rights,
    /// When it was created.
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: String,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// When someone ended it.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to about a minute.
    pub last_used_at: Option<Timestamp>,
}

impl ApiKey {
    /// A key with nothing but its names. Stores fill in the rest.
    pub fn new(id: impl Into<String>, name: impl Into<String>, tenant: TenantId) -> ApiKey {
        ApiKey {
            id: id.into(),
            name: name.into(),
            tenant,
            all_tenants: false,
            user: String::new(),
            rights: Rights::NONE,
            created_at: Timestamp::default(),
            created_by: String::new(),
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
        }
    }

    /// Whether it is valid at `now`.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| now < at)
    }

    /// The context of its calls.
    pub fn context(&self) -> SecurityContext {
        SecurityContext::new(self.tenant).with_user(&self.user)
    }

    /// What the audit log says of it besides its id.
    pub fn summary(&self) -> String {
        format!("{} ({})", self.name, self.rights)
    }

    /// Whether it is among the keys of a scope. One for all tenants is the operators', whatever tenant it acts for.
    pub fn is_in(&self, scope: Scope) -> bool {
        match scope {
            Scope::All(_) => true,
            Scope::Tenant(_) => !self.all_tenants && scope.covers(self.tenant),
        }
    }
}

/// A key to create.
///
/// ```
/// use windlass_core::{NewApiKey, Right, Rights};
/// let key = NewApiKey::new("nightly import", Rights::of([Right::Submit])).user("importer");
/// # let _ = key;
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NewApiKey {
    /// What people call it.
    pub name: String,
    /// The user that its calls act as; the key's own name unless set.
    pub user: Option<String>,
    /// What its calls may do.
    pub rights: Rights,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// Whether its calls may act on every tenant's jobs. Only the scope of all tenants makes such keys.
    pub all_tenants: bool,
    /// The environment, a visible part of the secret: `live`, `test`.
    pub environment: String,
}

impl NewApiKey {
    /// A key for one tenant that does not expire.
    pub fn new(name: impl Into<String>, rights: Rights) -> NewApiKey {
        NewApiKey {
            name: name.into(),
            user: None,
            rights,
            expires_at: None,
            all_tenants: false,
            environment: "live".to_owned(),
        }
    }

    /// Names the user that its calls act as.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Ends it at a time.
    #[must_use]
    pub fn expires_at(mut self, at: Timestamp) -> Self {
        self.expires_at = Some(at);
        self
    }

    /// Lets its calls act on every tenant's jobs.
    #[must_use]
    pub fn all_tenants(mut self) -> Self {
        self.all_tenants = true;
        self
    }

    /// Sets the environment.
    #[must_use]
    pub fn environment(mut self, environment: impl Into<String>) -> Self {
        self.environment = environment.into();
        self
    }

    fn check(&self, name_bytes: usize, key_bytes: usize, now: Timestamp) -> Result<(), InvalidInput> {
        check_name("name", &self.name, name_bytes)?;
        if let Some(user) = &self.user {
            check_name("user", user, key_bytes)?;
        }
        if self.rights.is_empty() {
            return Err(InvalidInput::new("rights", "a key needs at least one right"));
        }
        if self.expires_at.is_some_and(|at| at <= now) {
            return Err(InvalidInput::new("expires_at", "must be in the future"));
        }
        if !is_environment(&self.environment) {
            let message = format!("must be 1 to {ENVIRONMENT_MAX} lower-case letters and digits");
            return Err(InvalidInput::new("environment", message));
        }
        check_text("environment", &self.environment, ENVIRONMENT_MAX)
    }
}

/// The SHA-256 of a secret. The secrets hashed here are 32 random bytes, which nobody can guess, so a slow hash
/// would only cost time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecretHash(pub [u8; 32]);

impl SecretHash {
    /// The hash of a secret.
    pub fn of(secret: &str) -> SecretHash {
        SecretHash(Sha256::digest(secret.as_bytes()).into())
    }

    /// From the bytes a store saved; `None` unless there are 32.
    pub fn from_slice(bytes: &[u8]) -> Option<SecretHash> {
        bytes.try_into().ok().map(SecretHash)
    }

    /// Whether both are the same, in a time that tells nothing about where they differ.
    pub fn is_same(&self, other: &SecretHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash([redacted])")
    }
}

impl JobService {
    /// Makes a key for the caller's tenant, and answers with its secret, which nobody can read again. Audited as
    /// `KEY_CREATED`. Whoever makes keys for others uses [`Within::create_key_as`], which knows the
    /// maker's rights.
    pub async fn create_key(&self, ctx: &SecurityContext, new: NewApiKey) -> Result<(ApiKey, String), Error> {
        self.within(ctx.scope()).create_key(ctx, new).await
    }

    /// The keys of the caller's tenant, newest first, at most [`API_KEYS_LISTED`](crate::store::API_KEYS_LISTED).
    pub async fn api_keys(&self, ctx: &SecurityContext) -> Result<Vec<ApiKey>, Error> {
        self.within(ctx.scope()).api_keys().await
    }

    /// Revokes a key of the caller's tenant: at once in this process, within three seconds on every node. Returns false if no
    /// such key exists or it was revoked before. Audited as `KEY_REVOKED`.
    pub async fn revoke_key(&self, ctx: &SecurityContext, id: &str) -> Result<bool, Error> {
        self.within(ctx.scope()).revoke_key(ctx, id).await
    }

    /// The key that a secret belongs to, if the key is valid now. Costs one query about every three seconds per key in use;
    /// attempts with unknown secrets cost at most one query at a time in all.
    pub async fn check_key(&self, secret: &str) -> Result<Option<ApiKey>, Error> {
        let worker = self.worker();
        worker.api_keys.check(&*worker.store, secret, worker.now()).await
    }
}

impl Within {
    /// Makes a key for the tenant of `ctx`, as [`JobService::create_key`]. One for all tenants needs the scope of all.
    pub async fn create_key(&self, ctx: &SecurityContext, new: NewApiKey) -> Result<(ApiKey, String), Error> {
        if new.all_tenants && self.scope().tenant().is_some() {
            return Err(InvalidInput::new("all_tenants", "only an operator can create a key for all tenants").into());
        }
        make_key(self.worker(), ctx, new).await
    }

    /// Makes a key in the name of a caller whose own rights are `maker`: as [`Within::create_key`], but never with rights
    /// that its maker lacks ([`Error::Forbidden`]).
    pub async fn create_key_as(
        &self,
        ctx: &SecurityContext,
        maker: Rights,
        new: NewApiKey,
    ) -> Result<(ApiKey, String), Error> {
        if !maker.cover(new.rights) {
            return Err(Error::Forbidden("a key cannot have rights that its creator lacks".to_owned()));
        }
        self.create_key(ctx, new).await
    }

    /// The keys of the scope, newest first, at most [`API_KEYS_LISTED`](crate::store::API_KEYS_LISTED).
    pub async fn api_keys(&self) -> Result<Vec<ApiKey>, Error> {
        Ok(self.store().api_keys(self.scope()).await?)
    }

    /// Ends a key of the scope, as [`JobService::revoke_key`].
    pub async fn revoke_key(&self, ctx: &SecurityContext, id: &str) -> Result<bool, Error> {
        revoke(self.worker(), self.scope(), ctx, id).await
    }
}

async fn make_key(worker: &Worker, ctx: &SecurityContext, new: NewApiKey) -> Result<(ApiKey, String), Error> {
    let limits = &worker.config.limits;
    new.check(limits.name_bytes, limits.key_bytes, worker.now())?;
    let id = base62::<ID_CHARS>(&random::<ID_BYTES>()?);
    let secret = secret_of(&new.environment, &id, &random::<SECRET_BYTES>()?);
    let mut key = ApiKey::new(id, new.name, ctx.tenant);
    key.all_tenants = new.all_tenants;
    key.user = new.user.unwrap_or_else(|| key.name.clone());
    key.rights = new.rights;
    key.expires_at = new.expires_at;
    key.created_by = ctx.actor().to_owned();
    let key = worker.store.add_api_key(ApiKeyRecord { key, hash: SecretHash::of(&secret) }).await?;
    Ok((key, secret))
}

async fn revoke(worker: &Worker, scope: Scope, ctx: &SecurityContext, id: &str) -> Result<bool, Error> {
    check_text("id", id, worker.config.limits.key_bytes)?;
    let revoked = worker.store.revoke_api_key(scope, id, ctx.actor()).await;
    // Also after an error: the write may have happened.
    worker.api_keys.forget(id);
    Ok(revoked?)
}

// ---- the secret: wl_<environment>_<id>_<32 random bytes>_<checksum>

const ID_BYTES: usize = 9;
const ID_CHARS: usize = 12;
const SECRET_BYTES: usize = 32;
/// 62^43 is more than 2^256.
const SECRET_CHARS: usize = 43;
/// 62^6 is more than 2^32.
const CHECKSUM_CHARS: usize = 6;
const ENVIRONMENT_MAX: usize = 16;
/// Longer than any secret: what is longer is not looked at.
const SECRET_MAX: usize = 128;

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| KeyError::Unavailable(format!("the operating system returned no random numbers: {error}")))?;
    Ok(bytes)
}

/// A number of any length in base 62, filled up with zeros to `CHARS`, or its last digits.
pub(crate) fn base62<const CHARS: usize>(bytes: &[u8]) -> String {
    let mut number = bytes.to_vec();
    let mut digits = [b'0'; CHARS];
    for digit in digits.iter_mut().rev() {
        let mut rest = 0u32;
        for byte in &mut number {
            let part = (rest << 8) | u32::from(*byte);
            *byte = (part / 62) as u8;
            rest = part % 62;
        }
        *digit = DIGITS[rest as usize];
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

fn secret_of(environment: &str, id: &str, random: &[u8; SECRET_BYTES]) -> String {
    let text = format!("wl_{environment}_{id}_{}", base62::<SECRET_CHARS>(random));
    let checksum = checksum(&text);
    format!("{text}_{checksum}")
}

/// So that a typo, or another text that looks like a secret, is told apart without asking anybody. Protects nothing.
fn checksum(text: &str) -> String {
    base62::<CHECKSUM_CHARS>(&Sha256::digest(text.as_bytes())[..4])
}

/// The public id in a well-formed secret of an [`ApiKey`], which may be written into logs. Does not tell whether
/// such a key exists.
pub fn api_key_id(secret: &str) -> Option<&str> {
    if secret.len() > SECRET_MAX {
        return None;
    }
    let (text, sum) = secret.rsplit_once('_')?;
    let mut parts = text.split('_');
    let (Some("wl"), Some(environment), Some(id), Some(body), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let is_base62 = |part: &str, chars| part.len() == chars && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let well_formed = is_environment(environment)
        && is_base62(id, ID_CHARS)
        && is_base62(body, SECRET_CHARS)
        && checksum(text) == sum;
    well_formed.then_some(id)
}

fn is_environment(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=ENVIRONMENT_MAX).contains(&text.len()) && text.bytes().all(plain)
}

// ---- checking

/// How long an answer of the store is good for: a revoked key is refused everywhere within five seconds, with room for
/// a slow look.
const KNOWN_FOR: Duration = Duration::from_secs(3);

/// Answers kept; more keys than that in use at once only cost more looks.
const KNOWN_MAX: usize = 10_000;

/// Ids that may wait for a look. Beyond it someone is trying, and everybody is told to come back.
const WANTED_MAX: usize = 1_000;

/// Ids in one look.
const IDS_PER_LOOK: usize = 500;

/// How often the use of a key is noted, at most.
const USE_EVERY: Duration = Duration::from_secs(60);

/// How long uses are gathered before they are written.
const GATHER_USES: Duration = Duration::from_secs(1);

/// Looks keys up: what was answered lately from memory, the rest in one query at a time for all who ask.
#[derive(Default)]
pub(crate) struct KeyCheck {
    known: Mutex<HashMap<String, Known>>,
    wanted: Mutex<HashSet<String>>,
    looking: tokio::sync::Mutex<()>,
    /// How often a key was revoked here.
    forgets: AtomicU64,
    uses: Mutex<Uses>,
    used: Notify,
}

/// What the store said of an id. `None` is an answer too: ids that do not exist are not asked for again and again.
#[derive(Clone)]
struct Known {
    record: Option<Arc<ApiKeyRecord>>,
    until: Instant,
}

#[derive(Default)]
struct Uses {
    noted: HashMap<String, Instant>,
    unsaved: HashMap<String, Timestamp>,
}

impl KeyCheck {
    async fn check(&self, store: &dyn Store, secret: &str, now: Timestamp) -> Result<Option<ApiKey>, Error> {
        let Some(id) = api_key_id(secret) else { return Ok(None) };
        let Some(record) = self.find(store, id).await? else { return Ok(None) };
        if !SecretHash::of(secret).is_same(&record.hash) || !record.key.is_valid(now) {
            return Ok(None);
        }
        self.note_use(id, now);
        Ok(Some(record.key.clone()))
    }

    async fn find(&self, store: &dyn Store, id: &str) -> Result<Option<Arc<ApiKeyRecord>>, Error> {
        if let Some(known) = self.remembered(id) {
            return Ok(known.record);
        }
        self.want(id)?;
        let _one_at_a_time = self.looking.lock().await;
        // Whoever looked before may have looked for this one too.
        if let Some(known) = self.remembered(id) {
            return Ok(known.record);
        }
        let ids = self.take_wanted(id);
        let until = Instant::now() + KNOWN_FOR;
        let forgets = self.forgets.load(Ordering::Acquire);
        let mut found: HashMap<String, Arc<ApiKeyRecord>> = HashMap::default();
        for record in store.find_api_keys(&ids).await? {
            found.insert(record.key.id.clone(), Arc::new(record));
        }
        let answer = found.get(id).cloned();
        // What was read while a key was revoked here may be from before: it is read again.
        if self.forgets.load(Ordering::Acquire) == forgets {
            self.remember(ids.into_iter().map(|id| (found.remove(&id), id)), until);
        }
        Ok(answer)
    }

    fn remembered(&self, id: &str) -> Option<Known> {
        self.known.lock().get(id).filter(|known| Instant::now() < known.until).cloned()
    }

    fn remember(&self, answers: impl Iterator<Item = (Option<Arc<ApiKeyRecord>>, String)>, until: Instant) {
        let mut known = self.known.lock();
        if known.len() + IDS_PER_LOOK > KNOWN_MAX {
            let now = Instant::now();
            known.retain(|_, known| now < known.until);
        }
        if known.len() + IDS_PER_LOOK > KNOWN_MAX {
            // Ids that do not exist first: they are what somebody makes up.
            known.retain(|_, known| known.record.is_some());
        }
        if known.len() + IDS_PER_LOOK > KNOWN_MAX {
            known.clear();
        }
        known.extend(answers.map(|(record, id)| (id, Known { record, until })));
    }

    pub(crate) fn forget(&self, id: &str) {
        self.forgets.fetch_add(1, Ordering::AcqRel);
        self.known.lock().remove(id);
    }

    fn want(&self, id: &str) -> Result<(), Error> {
        let mut wanted = self.wanted.lock();
        if wanted.len() >= WANTED_MAX && !wanted.contains(id) {
            return Err(Error::Backpressure("the look-up of API keys"));
        }
        wanted.insert(id.to_owned());
        Ok(())
    }

    /// The ids of the next look: `id`, and as many of those that wait as fit.
    fn take_wanted(&self, id: &str) -> Vec<String> {
        let mut wanted = self.wanted.lock();
        wanted.remove(id);
        let mut ids: Vec<String> = wanted.iter().take(IDS_PER_LOOK - 1).cloned().collect();
        for id in &ids {
            wanted.remove(id);
        }
        ids.push(id.to_owned());
        ids
    }

    fn note_use(&self, id: &str, at: Timestamp) {
        let mut uses = self.uses.lock();
        let recent = |noted: &Instant| noted.elapsed() < USE_EVERY;
        if uses.noted.get(id).is_some_and(recent) {
            return;
        }
        if uses.noted.len() >= KNOWN_MAX {
            uses.noted.retain(|_, noted| recent(noted));
        }
        uses.noted.insert(id.to_owned(), Instant::now());
        uses.unsaved.insert(id.to_owned(), at);
        self.used.notify_one();
    }

    fn take_uses(&self) -> Vec<(String, Timestamp)> {
        std::mem::take(&mut self.uses.lock().unsaved).into_iter().collect()
    }
}

impl Worker {
    /// Writes when keys were last used, until the node stops. A use that could not be written is noted a minute later.
    pub(crate) async fn save_key_uses(self: Arc<Self>) {
        while !self.stopped.is_cancelled() {
            tokio::select! {
                () = self.api_keys.used.notified() => {}
                () = self.stopped.cancelled() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(GATHER_USES) => {}
                () = self.stopped.cancelled() => {}
            }
            let uses = self.api_keys.take_uses();
            for uses in uses.chunks(IDS_PER_LOOK) {
                if let Err(error) = self.store.note_api_key_uses(uses).await {
                    tracing::debug!(%error, keys = uses.len(), "the use of API keys was not written");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Records;

    #[test]
    fn rights_read_back_and_include_one_another() {
        for right in Right::ALL {
            assert_eq!(Right::parse(right.as_str()), Ok(right));
            assert!(Rights::ALL.allow(right) && !Rights::NONE.allow(right));
        }
        let rights = Rights::parse(" read , payload").expect("two rights");
        assert_eq!((rights.to_string().as_str(), rights.allow(Right::Operate)), ("read,payload", false));
        assert_eq!(serde_json::to_string(&rights).expect("JSON"), r#"["read","payload"]"#);
        assert_eq!(serde_json::from_str::<Rights>(r#"["read","payload"]"#).expect("read"), rights);
        assert!(!Rights::of([Right::Admin]).allow(Right::Payload), "payloads are a right of their own");
        assert!(Rights::of([Right::Admin]).cover(Rights::parse("read,submit,operate").expect("rights")));
        assert!(!Rights::of([Right::Operate]).cover(Rights::of([Right::Submit])));
        for bad in ["", "root", "read,,submit"] {
            assert!(Rights::parse(bad).expect_err(bad).message.contains("payload"), "names what there is");
        }
    }

    #[test]
    fn numbers_in_base_62_are_filled_up() {
        assert_eq!(base62::<3>(&[0]), "000");
        assert_eq!(base62::<3>(&[61]), "00z");
        assert_eq!(base62::<3>(&[1, 0]), "048");
        assert_eq!(base62::<SECRET_CHARS>(&[0xff; 32]).len(), SECRET_CHARS);
        assert_ne!(base62::<SECRET_CHARS>(&[0xff; 32]).as_bytes()[0], b'0', "all of it fits");
    }

    /// API-3: a typo never reaches the store.
    #[test]
    fn a_secret_is_read_only_as_it_was_made() {
        let secret = secret_of("live", "0123456789ab", &[7; 32]);
        assert_eq!(api_key_id(&secret), Some("0123456789ab"));
        for (at, byte) in secret.bytes().enumerate() {
            let other = if byte == b'x' { "y" } else { "x" };
            let changed = format!("{}{other}{}", &secret[..at], &secret[at + 1..]);
            assert_eq!(api_key_id(&changed), None, "{changed}");
            assert_eq!(api_key_id(&secret[..at]), None);
        }
        for bad in ["", "wl_", "wl_live_0123456789ab", &format!("{secret}x"), &"wl_".repeat(60)] {
            assert_eq!(api_key_id(bad), None, "{bad}");
        }
    }

    #[test]
    fn two_secrets_are_not_alike() {
        let one = random::<SECRET_BYTES>().expect("random");
        let two = random::<SECRET_BYTES>().expect("random");
        assert_ne!(one, two);
        assert!(!SecretHash(one).is_same(&SecretHash(two)) && SecretHash(one).is_same(&SecretHash(one)));
        assert_eq!(format!("{:?}", SecretHash(one)), "SecretHash([redacted])");
    }

    /// S03: how long a comparison takes does not tell how much of a secret was right. The same measure tells two kinds of
    /// wrong secrets apart by a comparison that ends at the first difference, so it would notice.
    #[test]
    fn the_time_of_a_comparison_tells_nothing() {
        let ends_early = |one: &SecretHash, two: &SecretHash| one.0.iter().zip(&two.0).all(|(one, two)| one == two);
        assert!(is_always_told_apart(ends_early), "the measure sees nothing");
        assert!(!is_always_told_apart(SecretHash::is_same));
    }

    /// Whether every one of a few measures tells wrong secrets apart by where they are wrong: noise of the machine makes
    /// one that does, a leak makes all of them.
    fn is_always_told_apart(same: impl Fn(&SecretHash, &SecretHash) -> bool) -> bool {
        /// Nobody mistakes noise for a difference at ten standard errors; what ends early lies beyond a hundred.
        const TOLD: f64 = 10.0;
        (0..5).all(|_| welch(timed(&same)).abs() > TOLD)
    }

    /// How long comparisons take, in nanoseconds: with secrets that are wrong from their first byte on, and with ones
    /// that are wrong in the last. In random order, so that whatever else the machine does falls on both alike.
    fn timed(same: impl Fn(&SecretHash, &SecretHash) -> bool) -> [Vec<f64>; 2] {
        const SAMPLES: usize = 4_000;
        /// Comparisons in one sample, so that it is longer than the clock's step.
        const EACH: usize = 50;
        let right = SecretHash([7; 32]);
        let wrong = [0, 31].map(|at| {
            let mut wrong = right;
            wrong.0[at] = 0;
            wrong
        });
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..SAMPLES {
            let kind = usize::from(rand::random::<bool>());
            let began = std::time::Instant::now();
            for _ in 0..EACH {
                std::hint::black_box(same(std::hint::black_box(&right), std::hint::black_box(&wrong[kind])));
            }
            times[kind].push(began.elapsed().as_nanos() as f64);
        }
        times
    }

    /// Welch's t of two samples, each without its slowest tenth: those were interrupted.
    fn welch(samples: [Vec<f64>; 2]) -> f64 {
        let [one, two] = samples.map(|mut sample| {
            sample.sort_by(f64::total_cmp);
            sample.truncate(sample.len() * 9 / 10);
            let n = sample.len() as f64;
            let mean = sample.iter().sum::<f64>() / n;
            let variance = sample.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (n - 1.0);
            (mean, variance / n)
        });
        // A clock with large steps may show no variance at all.
        (one.0 - two.0) / (one.1 + two.1).max(f64::MIN_POSITIVE).sqrt()
    }

    #[test]
    fn a_key_ends_when_it_expires_or_is_revoked() {
        let now = Timestamp::from_millis(1_000);
        let key = ApiKey::new("k", "n", TenantId::ROOT);
        assert!(key.is_valid(now));
        assert!(!ApiKey { expires_at: Some(now), ..key.clone() }.is_valid(now));
        assert!(ApiKey { expires_at: Some(now + Duration::from_micros(1)), ..key.clone() }.is_valid(now));
        assert!(!ApiKey { revoked_at: Some(now), ..key }.is_valid(now));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_keeps_what_exists() {
        let check = KeyCheck::default();
        let until = Instant::now() + KNOWN_FOR;
        let hash = SecretHash([0; 32]);
        let real = Arc::new(ApiKeyRecord { key: ApiKey::new("real", "n", TenantId::ROOT), hash });
        check.remember([(Some(real), "real".to_owned())].into_iter(), until);
        for round in 0..60 {
            check.remember((0..IDS_PER_LOOK).map(|n| (None, format!("{round}-{n}"))), until);
        }
        assert!(check.known.lock().len() <= KNOWN_MAX);
        assert!(check.remembered("real").is_some_and(|known| known.record.is_some()));
        assert!(check.remembered("59-0").is_some_and(|known| known.record.is_none()));
    }

    /// API-3: the id is public; only the rest of the secret proves anything.
    #[tokio::test]
    async fn the_right_id_with_another_secret_opens_nothing() {
        let (store, check) = (crate::MemoryStore::new(), KeyCheck::default());
        let id = "0123456789ab";
        let right = secret_of("live", id, &[1; 32]);
        let now = Timestamp::from_millis(1_000);
        let key = ApiKey::new(id, "n", TenantId::ROOT);
        store.add_api_key(ApiKeyRecord { key, hash: SecretHash::of(&right) }).await.expect("kept");
        assert!(check.check(&store, &right, now).await.expect("answers").is_some());
        for wrong in [secret_of("live", id, &[2; 32]), secret_of("test", id, &[1; 32])] {
            assert_eq!(api_key_id(&wrong), Some(id));
            assert_eq!(check.check(&store, &wrong, now).await.expect("answers"), None);
        }
        let unknown = secret_of("live", "no0such0key0", &[1; 32]);
        assert_eq!(check.check(&store, &unknown, now).await.expect("answers"), None);
    }

    /// Of many who look at once, one asks for all; beyond the bound they are told to come back.
    #[test]
    fn looks_are_shared_and_bounded() {
        let check = KeyCheck::default();
        for n in 0..WANTED_MAX {
            check.want(&format!("{n}")).expect("there is room");
        }
        check.want("0").expect("waits already");
        assert!(matches!(check.want("one more"), Err(Error::Backpressure(_))));
        let (first, second) = (check.take_wanted("0"), check.take_wanted("again"));
        assert_eq!((first.len(), second.len()), (IDS_PER_LOOK, IDS_PER_LOOK));
        assert!(first.contains(&"0".to_owned()) && second.contains(&"again".to_owned()));
        assert!(first.iter().all(|id| !second.contains(id)));
    }

    #[test]
    fn a_use_is_noted_once_a_minute() {
        let check = KeyCheck::default();
        let now = Timestamp::from_millis(1_000);
        check.note_use("k", now);
        check.note_use("k", now + Duration::from_secs(1));
        assert_eq!(check.take_uses(), [("k".to_owned(), now)]);
        assert_eq!(check.take_uses(), []);
    }
}
