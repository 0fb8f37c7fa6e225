//! Everything that can be set on the server, with its default and the reason for it. Read by `server`, `state` and
//! `auth`; never changed once the server runs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use windlass_core::{Rights, TenantId};

use crate::egress::Egress;

/// How the server listens, whom it lets in and what it allows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where it listens. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The path everything is served under, such as `/jobs`; empty for the root.
    pub base_path: String,
    /// Who is let in.
    pub auth: Auth,
    /// Refuses everything that changes something, whoever asks.
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
    /// Takes the caller's address from the last entry of `X-Forwarded-For`: only behind a proxy that sets it.
    pub trust_forwarded: bool,
    /// Which addresses webhooks may have. The node that delivers has the last word
    /// ([`webhooks::register_with`](crate::webhooks::register_with)).
    pub webhook_egress: Egress,
    /// Lets JWKS documents be fetched from private addresses.
    pub allow_private_jwks: bool,
    /// Part of the text of new API keys, so that a leaked one says where it belongs: `live`, `test`.
    pub environment: String,
}

/// Who is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Only who has an API key, a token of a configured issuer, or a session.
    Required,
    /// The same, and a built-in administrator by a login link that works once. Refuses to listen beyond loopback.
    Local,
}

/// Bounds of requests and streams (SEC-3).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpLimits {
    /// The largest request body.
    pub body_bytes: usize,
    /// All header names and values of a request together.
    pub header_bytes: usize,
    /// How long a request may take until its answer begins. Streams go on after that.
    pub request_timeout: Duration,
    /// How long a client may take to send the head of a request.
    pub header_timeout: Duration,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// Event streams at once on this node.
    pub streams: usize,
    /// Event streams at once of one principal.
    pub streams_per_principal: usize,
    /// How long a session lasts after its login.
    pub session: Duration,
    /// Failed logins that one address may have at once; they come back one every [`HttpLimits::failure_every`].
    pub failures: u32,
    /// How often one more failure is allowed.
    pub failure_every: Duration,
    /// How long requests under way are waited for when the server ends.
    pub drain: Duration,
    /// Jobs that workers outside the process may hold through this server at once.
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
            connections: 4_096,
            streams: 100,
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
    /// The algorithms it signs with: `HS256`, `RS256`, `ES256`, `EdDSA` and their longer kin. Nothing a token says of
    /// itself counts. `HS…` needs a secret, all others a set of public keys.
    pub algorithms: Vec<String>,
    /// Where its keys come from.
    pub keys: JwtKeys,
    /// The claim that names the tenant (a UUID).
    pub tenant_claim: String,
    /// Tenants by the value of the claim, where it is not a UUID itself.
    pub tenants: Vec<(String, TenantId)>,
    /// The tenant of tokens that have no such claim; `None` refuses them.
    pub default_tenant: Option<TenantId>,
    /// The claim that lists rights: a text with spaces or commas, or an array. Names that are no right are passed over.
    pub rights_claim: String,
    /// Rights of tokens without that claim.
    pub default_rights: Rights,
    /// The claim that, when it is `true`, makes a principal of all tenants; `None` never does.
    pub all_tenants_claim: Option<String>,
}

/// The keys of an issuer.
#[derive(Clone)]
#[non_exhaustive]
pub enum JwtKeys {
    /// A shared secret, for `HS…` only. At least 32 bytes.
    Secret(Vec<u8>),
    /// A file with a JWKS document, read again when a token names a key it does not have.
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
    /// An issuer whose tokens name their tenant in `tenant_id` and their rights in `scope`.
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
        }
    }
}

impl Config {
    /// The defaults on another address.
    pub fn listen(listen: SocketAddr) -> Self {
        Config { listen, ..Config::default() }
    }

    /// Whether cookies are for https only.
    pub(crate) fn secure_cookies(&self) -> bool {
        self.https.unwrap_or(!self.listen.ip().is_loopback())
    }

    /// Says what makes no sense.
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
