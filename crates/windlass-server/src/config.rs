//! Everything that can be set on the server, with its default and the reason for it. Read by `server`, `state` and
//! `auth`; never changed once the server runs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;
use windlass_core::{Rights, TenantId};

use crate::Egress;
use crate::auth::Principal;

/// How the server listens, authenticates callers and limits requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The address to listen on. Port 0 chooses a free port.
    pub listen: SocketAddr,
    /// The path prefix of all routes, such as `/jobs`; empty for the root.
    pub base_path: String,
    /// How callers authenticate.
    pub auth: Auth,
    /// Rejects every request that changes something, from every caller.
    pub read_only: bool,
    /// Whether the dashboard is served beside the API.
    pub dashboard: bool,
    /// Bounds of requests and streams.
    pub limits: HttpLimits,
    /// Accepts JSON Web Tokens of these issuers.
    pub jwt: Vec<JwtConfig>,
    /// Whether browsers reach the server over https. `None`: yes, unless it listens on loopback.
    pub https: Option<bool>,
    /// Serves `/metrics` without a credential. Only honoured on loopback.
    pub open_metrics: bool,
    /// Takes the caller's address from the last entry of `X-Forwarded-For`. Use it only behind a proxy that sets this
    /// header.
    pub trust_forwarded: bool,
    /// Which addresses webhooks may have. The node that delivers decides in the end
    /// ([`webhooks::register_with`](crate::webhooks::register_with)).
    pub webhook_egress: Egress,
    /// Allows fetching JWKS documents from private addresses.
    pub allow_private_jwks: bool,
    /// Part of the text of new API keys, so that a leaked key shows where it belongs: `live`, `test`.
    pub environment: String,
    /// Gives commands on this machine access for as long as the server runs.
    pub local_key: Option<LocalKey>,
}

/// A secret that is not in the store: its holder operates the whole installation with every right until the server
/// ends. Put it only into a file that only the owner of the process may read.
#[derive(Clone)]
pub struct LocalKey {
    secret: String,
    user: String,
}

impl LocalKey {
    /// Creates a key. Its calls act as `user`.
    pub fn generate(user: impl Into<String>) -> Self {
        LocalKey { secret: format!("wll_{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())), user: user.into() }
    }

    /// The secret that its calls send.
    pub fn reveal(&self) -> &str {
        &self.secret
    }

    /// The caller, if the call sent this key.
    pub(crate) fn principal(&self, token: &str) -> Option<Principal> {
        let same = bool::from(self.secret.as_bytes().ct_eq(token.as_bytes()));
        same.then(|| Principal::administrator(self.user.clone()))
    }
}

impl std::fmt::Debug for LocalKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalKey").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How callers authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// With an API key, a token of a configured issuer, or a session.
    Required,
    /// The same, and a built-in administrator with a login link that works once. The server listens only on loopback.
    Local,
}

/// Bounds of requests and streams.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpLimits {
    /// The largest request body.
    pub body_bytes: usize,
    /// All header names and values of a request together.
    pub header_bytes: usize,
    /// How long a request may take until its response starts. Streams continue after that.
    pub request_timeout: Duration,
    /// How long a client may take to send the head of a request.
    pub header_timeout: Duration,
    /// How long a client may read nothing before its connection is closed.
    pub write_timeout: Duration,
    /// Maximum number of connections; more wait to be accepted. Also the maximum number of requests in progress that
    /// may change something, including those whose callers have disconnected; more get 503. Nine tenths of these are
    /// for tenants: a tenant gets at most half of what the others leave. The last tenth is reserved for operators of
    /// the whole installation.
    pub connections: usize,
    /// Maximum number of event streams on this node. Nine tenths are for tenants: a tenant gets at most half of what
    /// the others leave. The last tenth is reserved for operators of the whole installation.
    pub streams: usize,
    /// Maximum number of event streams of one principal.
    pub streams_per_principal: usize,
    /// How long a session lasts after its login.
    pub session: Duration,
    /// How many rejected credentials one address (for IPv6, its 64-bit network) and one credential may have before they
    /// get 429. One more is allowed every [`HttpLimits::failure_every`]. A valid credential is never rejected because
    /// of them.
    pub failures: u32,
    /// How often one more failure is allowed.
    pub failure_every: Duration,
    /// How long a shutdown waits for requests in progress.
    pub drain: Duration,
    /// Maximum number of jobs that external workers may hold through this server. Nine tenths are for tenants: a tenant
    /// gets at most half of what the others leave. The last tenth is reserved for operators of the whole installation.
    pub checkouts: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits {
            // Room for a thousand ordinary jobs in one batch.
            body_bytes: 8 * 1024 * 1024,
            header_bytes: 16 * 1024,
            request_timeout: Duration::from_secs(15),
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            connections: 4_096,
            streams: 200,
            streams_per_principal: 10,
            session: Duration::from_secs(12 * 3600),
            failures: 20,
            failure_every: Duration::from_secs(3),
            drain: Duration::from_secs(10),
            checkouts: 10_000,
        }
    }
}

/// One issuer of JSON Web Tokens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JwtConfig {
    /// The `iss` claim.
    pub issuer: String,
    /// The `aud` claim that tokens must have.
    pub audience: String,
    /// The algorithms it signs with: `HS256`, `RS256`, `ES256`, `EdDSA` and their longer variants. The token itself
    /// cannot choose another one. `HS…` needs a secret, all others a set of public keys.
    pub algorithms: Vec<String>,
    /// The source of its keys.
    pub keys: JwtKeys,
    /// The claim that names the tenant (a UUID).
    pub tenant_claim: String,
    /// Tenants by the value of the claim, where it is not a UUID itself.
    pub tenants: Vec<(String, TenantId)>,
    /// The tenant of tokens without that claim; `None` rejects them.
    pub default_tenant: Option<TenantId>,
    /// The claim that lists rights: a text with spaces or commas, or an array. Unknown names are ignored.
    pub rights_claim: String,
    /// Rights of tokens without that claim.
    pub default_rights: Rights,
    /// If this claim is `true`, the token is for all tenants; `None` disables this.
    pub all_tenants_claim: Option<String>,
}

/// The keys of an issuer.
#[derive(Clone)]
#[non_exhaustive]
pub enum JwtKeys {
    /// A shared secret, for `HS…` only. At least 32 bytes.
    Secret(Vec<u8>),
    /// A file with a JWKS document; it is read again when a token names an unknown key.
    File(PathBuf),
    /// An https address of a JWKS document.
    Url(String),
}

impl std::fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JwtKeys::Secret(_) => f.write_str("Secret(…)"),
            JwtKeys::File(path) => f.debug_tuple("File").field(path).finish(),
            JwtKeys::Url(url) => f.debug_tuple("Url").field(url).finish(),
        }
    }
}

impl JwtConfig {
    /// Creates an issuer whose tokens have their tenant in `tenant_id` and their rights in `scope`.
    pub fn new(issuer: impl Into<String>, audience: impl Into<String>, algorithms: &[&str], keys: JwtKeys) -> Self {
        JwtConfig {
            issuer: issuer.into(),
            audience: audience.into(),
            algorithms: algorithms.iter().map(|algorithm| (*algorithm).to_owned()).collect(),
            keys,
            tenant_claim: "tenant_id".to_owned(),
            tenants: Vec::new(),
            default_tenant: None,
            rights_claim: "scope".to_owned(),
            default_rights: Rights::default(),
            all_tenants_claim: None,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 7878)),
            base_path: String::new(),
            auth: Auth::Required,
            read_only: false,
            dashboard: true,
            limits: HttpLimits::default(),
            jwt: Vec::new(),
            https: None,
            open_metrics: false,
            trust_forwarded: false,
            webhook_egress: Egress::default(),
            allow_private_jwks: false,
            environment: "live".to_owned(),
            local_key: None,
        }
    }
}

impl Config {
    /// Returns the defaults with another address.
    pub fn listen(listen: SocketAddr) -> Self {
        Config { listen, ..Config::default() }
    }

    /// Whether cookies are sent over https only.
    pub(crate) fn secure_cookies(&self) -> bool {
        self.https.unwrap_or(!self.listen.ip().is_loopback())
    }

    /// Returns an error for invalid settings.
    pub(crate) fn check(&self) -> Result<(), crate::Error> {
        let base = &self.base_path;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if !base.is_empty() && (!base.starts_with('/') || base.ends_with('/') || !base.chars().all(plain)) {
            return Err(crate::Error::Config(format!("base path `{base}` must look like `/jobs`")));
        }
        if self.auth == Auth::Local && !self.listen.ip().is_loopback() {
            return Err(crate::Error::NotLoopback(self.listen));
        }
        Ok(())
    }
}
