//! JSON Web Tokens of configured issuers. What is accepted is decided by the configuration alone: issuer,
//! audience, algorithms and keys. A token can choose nothing but which of the issuer's keys signed it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Header, Validation, decode, decode_header};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use windlass_core::{Right, Rights, TenantId, Timestamp};

use crate::Egress;
use crate::auth::{AuthMethod, Principal};
use crate::config::{Config, JwtConfig, JwtKeys};

/// An issuer with the keys that are known of it.
pub(crate) struct Issuer {
    config: JwtConfig,
    algorithms: Vec<Algorithm>,
    client: Option<(reqwest::Client, reqwest::Url)>,
    keys: Mutex<Known>,
    fetching: tokio::sync::Mutex<()>,
}

/// The keys that are known of an issuer, and when they were asked for last.
#[derive(Default)]
struct Known {
    set: Option<Arc<JwkSet>>,
    fetched: Option<Instant>,
    asked: Option<Instant>,
}

/// How old a fetched set may be before it is fetched again beside the requests that use it.
const FRESH: Duration = Duration::from_secs(10 * 60);

/// How often a set may be asked for: tokens with invented key ids must not become requests to the issuer.
const ASK_EVERY: Duration = Duration::from_secs(60);

/// The largest set that is read.
const SET_BYTES: usize = 256 * 1024;

/// How long a fetch may take.
const FETCH: Duration = Duration::from_secs(5);

/// A time that is as good as never, and still a time.
const FAR_AHEAD_MS: f64 = 4e12;

/// How far clocks may be apart.
const LEEWAY_SECONDS: u64 = 30;

impl Issuer {
    /// Checks what is configured: unknown algorithms, a secret beside public keys and short secrets are refused here and
    /// not when the first token comes.
    pub(crate) fn new(config: &JwtConfig, server: &Config) -> Result<Self, crate::Error> {
        let bad = |what: String| crate::Error::Config(format!("issuer `{}`: {what}", config.issuer));
        let read = |name: &String| name.parse::<Algorithm>().map_err(|_| bad(format!("unknown algorithm `{name}`")));
        let algorithms = config.algorithms.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let shared =
            |algorithm: &Algorithm| matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512);
        if algorithms.is_empty() {
            return Err(bad("at least one algorithm is needed".to_owned()));
        }
        match &config.keys {
            JwtKeys::Secret(secret) if secret.len() < 32 => {
                return Err(bad("the secret must have at least 32 bytes".to_owned()));
            }
            JwtKeys::Secret(_) if !algorithms.iter().all(shared) => {
                return Err(bad("a shared secret works only with HS algorithms".to_owned()));
            }
            JwtKeys::File(_) | JwtKeys::Url(_) if algorithms.iter().any(shared) => {
                return Err(bad("public keys do not work with HS algorithms".to_owned()));
            }
            _ => {}
        }
        let client = match &config.keys {
            JwtKeys::Url(url) => {
                let egress = if server.allow_private_jwks { Egress::anywhere() } else { Egress::default() };
                let url = egress.check(url).map_err(|error| bad(error.to_string()))?;
                Some((egress.client(FETCH).map_err(|error| bad(error.to_string()))?, url))
            }
            _ => None,
        };
        Ok(Issuer { config: config.clone(), algorithms, client, keys: Mutex::default(), fetching: Default::default() })
    }

    /// Whether a token says that it comes from here, which proves nothing yet.
    pub(crate) fn is_named_in(&self, token: &str) -> bool {
        let claims = token.split('.').nth(1).and_then(|claims| URL_SAFE_NO_PAD.decode(claims).ok());
        let claims = claims.and_then(|claims| serde_json::from_slice::<Map<String, Value>>(&claims).ok());
        claims.is_some_and(|claims| claims.get("iss").and_then(Value::as_str) == Some(self.config.issuer.as_str()))
    }

    /// Whose token it is, if it is this issuer's and good.
    pub(crate) async fn principal(&self, token: &str) -> Option<Principal> {
        let header = decode_header(token).ok()?;
        let key = self.key(&header).await?;
        let claims = verify(token, &header, &key, &self.algorithms, &self.config)?;
        principal_of(&claims, &self.config)
    }

    async fn key(&self, header: &Header) -> Option<DecodingKey> {
        if let JwtKeys::Secret(secret) = &self.config.keys {
            return Some(DecodingKey::from_secret(secret));
        }
        let kid = header.kid.as_deref()?;
        let (known, stale) = {
            let known = self.keys.lock();
            (known.set.clone(), known.fetched.is_none_or(|at| at.elapsed() > FRESH))
        };
        if !stale && let Some(jwk) = known.as_ref().and_then(|set| find(set, kid)) {
            return DecodingKey::from_jwk(jwk).ok();
        }
        let set = self.refresh(kid).await?;
        DecodingKey::from_jwk(find(&set, kid)?).ok()
    }

    /// Asks for the set again, at most so often, and answers with the newest that is known.
    async fn refresh(&self, kid: &str) -> Option<Arc<JwkSet>> {
        let _one = self.fetching.lock().await;
        let known = {
            let mut known = self.keys.lock();
            let fresh = known.fetched.is_some_and(|at| at.elapsed() <= FRESH);
            let has = known.set.as_ref().is_some_and(|set| find(set, kid).is_some());
            if (fresh && has) || known.asked.is_some_and(|at| at.elapsed() < ASK_EVERY) {
                return known.set.clone();
            }
            known.asked = Some(Instant::now());
            known.set.clone()
        };
        match self.fetch().await {
            Ok(set) => {
                let set = Arc::new(set);
                let mut known = self.keys.lock();
                known.set = Some(set.clone());
                known.fetched = Some(Instant::now());
                Some(set)
            }
            Err(error) => {
                let issuer = &self.config.issuer;
                tracing::warn!(issuer, "could not fetch the keys of {issuer}; the previous keys stay in use: {error}");
                known
            }
        }
    }

    async fn fetch(&self) -> Result<JwkSet, String> {
        let text = match (&self.config.keys, &self.client) {
            (JwtKeys::File(path), _) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
                read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?
            }
            (_, Some((client, url))) => get(client, url.clone()).await?,
            _ => return Err("the configuration has no URL or file to fetch from".to_owned()),
        };
        if text.len() > SET_BYTES {
            return Err(format!("the key set is larger than {SET_BYTES} bytes"));
        }
        serde_json::from_slice(&text).map_err(|error| format!("cannot read the key set: {error}"))
    }
}

async fn get(client: &reqwest::Client, url: reqwest::Url) -> Result<Vec<u8>, String> {
    let mut response = client.get(url).send().await.map_err(|error| error.to_string())?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(format!("the issuer returned {}", response.status()));
    }
    let mut text = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| error.to_string())? {
        text.extend_from_slice(&chunk);
        if text.len() > SET_BYTES {
            return Err(format!("the key set is larger than {SET_BYTES} bytes"));
        }
    }
    Ok(text)
}

/// The key with an id, if it is one for signatures. Shared secrets have no place in a public set.
fn find<'a>(set: &'a JwkSet, kid: &str) -> Option<&'a Jwk> {
    let signs = |jwk: &&Jwk| !matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption));
    let public = |jwk: &&Jwk| !matches!(jwk.algorithm, jsonwebtoken::jwk::AlgorithmParameters::OctetKey(_));
    set.find(kid).filter(signs).filter(public)
}

/// The claims of a token that is good in every respect.
fn verify(
    token: &str,
    header: &Header,
    key: &DecodingKey,
    algorithms: &[Algorithm],
    config: &JwtConfig,
) -> Option<Map<String, Value>> {
    // Extensions that we do not understand must be refused, and we understand none.
    if header.crit.is_some() || !algorithms.contains(&header.alg) {
        return None;
    }
    let family: AlgorithmFamily = key.family();
    let allowed: Vec<Algorithm> = algorithms.iter().copied().filter(|algorithm| algorithm.family() == family).collect();
    if allowed.is_empty() {
        return None;
    }
    let mut validation = Validation::new(allowed[0]);
    validation.algorithms = allowed;
    validation.set_issuer(&[&config.issuer]);
    validation.set_audience(&[&config.audience]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.validate_nbf = true;
    validation.leeway = LEEWAY_SECONDS;
    decode::<Map<String, Value>>(token, key, &validation).ok().map(|data| data.claims)
}

/// Who the claims speak of. Pure.
fn principal_of(claims: &Map<String, Value>, config: &JwtConfig) -> Option<Principal> {
    let user = claims.get("sub")?.as_str().filter(|user| !user.is_empty() && user.len() <= 256)?;
    let tenant = match claims.get(&config.tenant_claim) {
        Some(value) => tenant_of(value.as_str()?, config)?,
        None => config.default_tenant?,
    };
    let rights = match claims.get(&config.rights_claim) {
        Some(Value::String(text)) => rights_of(text.split([' ', ','])),
        Some(Value::Array(names)) => rights_of(names.iter().filter_map(Value::as_str)),
        Some(_) => return None,
        None => config.default_rights,
    };
    let all_tenants =
        config.all_tenants_claim.as_ref().is_some_and(|name| claims.get(name) == Some(&Value::Bool(true)));
    let millis = (claims.get("exp")?.as_f64()? + LEEWAY_SECONDS as f64) * 1e3;
    Some(Principal {
        tenant,
        all_tenants,
        user: user.to_owned(),
        rights,
        method: AuthMethod::Jwt,
        key: None,
        session: None,
        expires_at: Some(Timestamp::from_millis(millis.min(FAR_AHEAD_MS) as i64)),
    })
}

fn tenant_of(value: &str, config: &JwtConfig) -> Option<TenantId> {
    let mapped = config.tenants.iter().find(|(name, _)| name == value).map(|(_, tenant)| *tenant);
    mapped.or_else(|| TenantId::parse(value).ok())
}

/// Rights by their names, also behind a prefix as in `windlass:read`.
fn rights_of<'a>(names: impl Iterator<Item = &'a str>) -> Rights {
    let own = |name: &'a str| Right::parse(name.strip_prefix("windlass:").unwrap_or(name)).ok();
    Rights::of(names.filter_map(own))
}
