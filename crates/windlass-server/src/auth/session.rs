//! Sessions of the dashboard: a signed cookie that says who has logged in, checked against the key behind it. The secret
//! that signs is kept in the store, so that every node accepts the sessions of the others; so is which of them were ended
//! by a logout, so that every node refuses those.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Form, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use tokio::sync::OnceCell;
use windlass_core::{Right, Rights, TenantId, Timestamp};

use crate::App;
use crate::auth::{AuthMethod, Caller, Principal, deep_link};
use crate::problem::Problem;

/// Sessions: their secret, the login links that are still good, and what the store has lately said of sessions and keys.
pub(crate) struct Sessions {
    secret: OnceCell<[u8; 32]>,
    links: Mutex<VecDeque<String>>,
    open: Lately,
    keys: Lately,
}

/// What was good when it was last looked at.
#[derive(Default)]
struct Lately(Mutex<HashMap<String, (Instant, bool)>>);

impl Lately {
    fn get(&self, name: &str) -> Option<bool> {
        self.0.lock().get(name).filter(|(at, _)| at.elapsed() < GOOD_FOR).map(|(_, good)| *good)
    }

    fn set(&self, name: &str, good: bool) {
        let mut known = self.0.lock();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(name.to_owned(), (Instant::now(), good));
    }
}

/// Where it is kept that a session was ended.
fn ended(session: &str) -> String {
    format!("server.session_ended.{session}")
}

/// Login links that are good at once; the oldest stops being good first.
const LINKS: usize = 16;

/// How long the answer whether a key or a session is still good is believed: well below the 5 seconds within which a
/// revoked key is refused everywhere.
const GOOD_FOR: Duration = Duration::from_secs(2);

/// Keys, and sessions, whose answer is remembered.
const REMEMBERED: usize = 1_000;

/// What the cookie says. Signed, not hidden: there is no secret in it.
#[derive(Serialize, Deserialize)]
struct Session {
    id: String,
    tenant: TenantId,
    all: bool,
    user: String,
    rights: String,
    key: Option<String>,
    until: Timestamp,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Sessions { secret: OnceCell::new(), links: Mutex::default(), open: Lately::default(), keys: Lately::default() }
    }

    /// Makes a link token that logs in the built-in administrator once.
    pub(crate) fn new_link(&self) -> String {
        let token = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        let mut links = self.links.lock();
        if links.len() >= LINKS {
            links.pop_front();
        }
        links.push_back(token.clone());
        token
    }

    fn has_link(&self, token: &str) -> bool {
        place_of(token, &self.links.lock()).is_some()
    }

    fn take_link(&self, token: &str) -> bool {
        let mut links = self.links.lock();
        place_of(token, &links).is_some_and(|place| links.remove(place).is_some())
    }

    /// Who the cookie says has logged in; nobody where it is not ours, too old, ended, or its key is gone.
    pub(crate) async fn read(&self, app: &App, headers: &HeaderMap) -> Result<Option<Principal>, Problem> {
        let Some(cookie) = cookie(headers, name(app)) else { return Ok(None) };
        let Some(session) = verify(self.secret(app).await?, cookie, app.service.now()) else { return Ok(None) };
        if !self.is_open(app, Some(&session.id)).await? || !self.key_is_good(app, session.key.as_deref()).await? {
            return Ok(None);
        }
        let method = if session.key.is_some() { AuthMethod::Session } else { AuthMethod::Local };
        // A link of a server that now lets in only who has a key is worth nothing any more.
        if method == AuthMethod::Local && app.config.auth != crate::Auth::Local {
            return Ok(None);
        }
        let rights = Rights::parse(&session.rights).unwrap_or_default();
        let Session { id, tenant, all: all_tenants, user, key, until, .. } = session;
        let (session, expires_at) = (Some(id), Some(until));
        Ok(Some(Principal { tenant, all_tenants, user, rights, method, key, session, expires_at }))
    }

    /// Whether a key can still be used; who has none needs none.
    pub(crate) async fn key_is_good(&self, app: &App, key: Option<&str>) -> Result<bool, Problem> {
        let Some(key) = key else { return Ok(true) };
        if let Some(good) = self.keys.get(key) {
            return Ok(good);
        }
        let good = app.key_is_good(key).await?;
        self.keys.set(key, good);
        Ok(good)
    }

    /// Whether nobody has ended a session, on any node; who has none needs none.
    pub(crate) async fn is_open(&self, app: &App, session: Option<&str>) -> Result<bool, Problem> {
        let Some(session) = session else { return Ok(true) };
        if let Some(open) = self.open.get(session) {
            return Ok(open);
        }
        let open = app.service.store().setting(&ended(session)).await?.is_none();
        self.open.set(session, open);
        Ok(open)
    }

    /// Ends a session on every node.
    async fn end(&self, app: &App, session: &Session) -> Result<(), Problem> {
        let left = session.until.since(app.service.now()) + CLOCKS;
        app.service.store().put_setting(&ended(&session.id), "", left).await?;
        self.open.set(&session.id, false);
        Ok(())
    }

    /// What signs for all servers of the installation.
    pub(crate) async fn secret(&self, app: &App) -> Result<&[u8; 32], Problem> {
        self.secret.get_or_try_init(|| app.session_secret()).await
    }

    /// The cookie of a new session, signed with `secret`.
    fn start(&self, app: &App, secret: &[u8; 32], principal: &Principal) -> HeaderValue {
        let session = Session {
            id: URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>()),
            tenant: principal.tenant,
            all: principal.all_tenants,
            user: principal.user.clone(),
            rights: principal.rights.to_string(),
            key: principal.key.clone(),
            until: app.service.now() + app.config.limits.session.min(LONGEST),
        };
        set_cookie(app, &sign(secret, &session), Some(app.config.limits.session.min(LONGEST)))
    }
}

/// Where a link is among those that are good.
fn place_of(token: &str, links: &VecDeque<String>) -> Option<usize> {
    links.iter().position(|link| bool::from(link.as_bytes().ct_eq(token.as_bytes())))
}

/// How far a node's idea of the store's time may be off: so much longer an ended session is remembered.
const CLOCKS: Duration = Duration::from_secs(60);

/// No session lasts longer, whatever is configured.
const LONGEST: Duration = Duration::from_secs(12 * 3600);

fn mac(secret: &[u8; 32], text: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("any length of key is allowed");
    mac.update(b"windlass session 1\0");
    mac.update(text.as_bytes());
    mac
}

fn sign(secret: &[u8; 32], session: &Session) -> String {
    let text = URL_SAFE_NO_PAD.encode(serde_json::to_vec(session).expect("a session is plain data"));
    let signature = URL_SAFE_NO_PAD.encode(mac(secret, &text).finalize().into_bytes());
    format!("{text}.{signature}")
}

fn verify(secret: &[u8; 32], cookie: &str, now: Timestamp) -> Option<Session> {
    let (text, signature) = cookie.split_once('.')?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    mac(secret, text).verify_slice(&signature).ok()?;
    let session: Session = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    (session.until > now).then_some(session)
}

/// The name says how the cookie may travel: `__Host-` binds it to https and to this host.
fn name(app: &App) -> &'static str {
    if app.config.secure_cookies() { "__Host-windlass" } else { "windlass_session" }
}

pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|value| value.split(';')).find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// `Strict`, so that no other site can make a browser send it at all.
fn set_cookie(app: &App, value: &str, lasts: Option<Duration>) -> HeaderValue {
    let seconds = lasts.map_or(0, |lasts| lasts.as_secs());
    let secure = if app.config.secure_cookies() { "; Secure" } else { "" };
    let text = format!("{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}", name(app));
    HeaderValue::from_str(&text).expect("a cookie is plain text")
}

/// A login by an API key, as the form of the login page sends it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    key: String,
}

/// Starts a session for who has an API key.
pub(crate) async fn login(State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let (address, headers) = (super::address(&app, &parts), parts.headers.clone());
    match try_login(&app, address, Request::from_parts(parts, body)).await {
        Ok(cookie) => enter(&app, &headers, cookie),
        Err(problem) => problem.into_response(),
    }
}

async fn try_login(app: &App, address: Option<std::net::IpAddr>, request: Request) -> Result<HeaderValue, Problem> {
    use axum::extract::FromRequest;
    from_our_page(request.method(), request.headers())?;
    let Form(form) = Form::<Login>::from_request(request, app)
        .await
        .map_err(|_| Problem::malformed("the request needs a form with the field `key`"))?;
    let principal = app.principal_of(form.key.trim()).await?.filter(|principal| principal.method == AuthMethod::Key);
    let Some(principal) = principal else {
        return Err(app.attempts.refuse(address, form.key.trim(), Problem::unauthorized()));
    };
    Ok(app.sessions.start(app, app.sessions.secret(app).await?, &principal))
}

/// A foreign page must not log a visitor in as somebody else either.
fn from_our_page(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let from = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match super::same_site(method, from("sec-fetch-site"), from("origin"), from("host")) {
        true => Ok(()),
        false => Err(Problem::new(StatusCode::FORBIDDEN, "cross_origin", "log in from the server's own page")),
    }
}

/// Ends a session.
pub(crate) async fn logout(State(app): State<App>, method: Method, headers: HeaderMap) -> Response {
    if let Err(problem) = from_our_page(&method, &headers) {
        return problem.into_response();
    }
    if let Ok(secret) = app.sessions.secret(&app).await
        && let Some(session) = cookie(&headers, name(&app)).and_then(|cookie| verify(secret, cookie, app.service.now()))
    {
        // To its end: who hangs up is logged out all the same.
        if let Err(problem) = end(&app, session).await {
            return problem.into_response();
        }
    }
    let mut response = Redirect::to(&format!("{}/login", app.config.base_path)).into_response();
    response.headers_mut().insert(header::SET_COOKIE, set_cookie(&app, "", None));
    response
}

async fn end(app: &App, session: Session) -> Result<(), Problem> {
    let place = app.enter((!session.all).then_some(session.tenant))?;
    let here = app.clone();
    app.carry_out(place, async move { here.sessions.end(&here, &session).await }).await?
}

/// Logs in the built-in administrator by a link that works once.
pub(crate) async fn login_once(State(app): State<App>, Path(token): Path<String>, parts: Parts) -> Response {
    match try_link(&app, &token, &parts).await {
        Ok(cookie) => enter(&app, &parts.headers, cookie),
        Err(problem) => problem.into_response(),
    }
}

async fn try_link(app: &App, token: &str, parts: &Parts) -> Result<HeaderValue, Problem> {
    let refused = || {
        let detail = "this login link is invalid or has already been used; `windlass login` prints a new one";
        app.attempts.refuse(super::address(app, parts), token, Problem::not_found(detail))
    };
    let local = parts.extensions.get::<ConnectInfo<std::net::SocketAddr>>();
    let local = local.is_none_or(|ConnectInfo(peer)| peer.ip().to_canonical().is_loopback());
    if app.config.auth != crate::Auth::Local || !local || !app.sessions.has_link(token) {
        return Err(refused());
    }
    // All that can fail or take time comes before the link is taken: after that nothing is waited for.
    let secret = app.sessions.secret(app).await?;
    match app.sessions.take_link(token) {
        true => Ok(app.sessions.start(app, secret, &Principal::administrator("local".to_owned()))),
        false => Err(refused()),
    }
}

/// A path that logs in once.
#[derive(Serialize)]
pub(crate) struct Link {
    path: String,
}

/// Makes a login link, for who has every right anyway: the link has them all.
pub(crate) async fn new_link(State(app): State<App>, caller: Caller) -> Result<axum::Json<Link>, Problem> {
    caller.require_all()?;
    caller.require(Right::Admin)?;
    caller.require(Right::Payload)?;
    if app.config.auth != crate::Auth::Local {
        let detail = "this server has no login links; log in on its page with an API key";
        return Err(Problem::new(StatusCode::CONFLICT, "conflict", detail));
    }
    Ok(axum::Json(Link { path: format!("{}/login/{}", app.config.base_path, app.sessions.new_link()) }))
}

/// Goes on with the session that has begun.
fn enter(app: &App, headers: &HeaderMap, cookie: HeaderValue) -> Response {
    let mut response = deep_link::follow(app, headers);
    response.headers_mut().append(header::SET_COOKIE, cookie);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 32] = [7; 32];
    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn session(until: Timestamp) -> Session {
        Session {
            id: "a".into(),
            tenant: TenantId::ROOT,
            all: false,
            user: "u".into(),
            rights: "read".into(),
            key: None,
            until,
        }
    }

    #[test]
    fn a_cookie_is_read_back_until_it_expires() {
        let cookie = sign(&SECRET, &session(NOW + Duration::from_secs(1)));
        assert_eq!(verify(&SECRET, &cookie, NOW).expect("good").user, "u");
        assert!(verify(&SECRET, &cookie, NOW + Duration::from_secs(1)).is_none());
    }

    #[test]
    fn a_cookie_that_was_changed_is_nobodys() {
        let cookie = sign(&SECRET, &session(NOW + Duration::from_secs(1)));
        let (text, signature) = cookie.split_once('.').expect("two parts");
        let mut admin = session(NOW + Duration::from_secs(1));
        admin.rights = "admin".into();
        let forged = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&admin).expect("serializes"));
        let bad = [
            format!("{forged}.{signature}"),
            format!("{text}."),
            text.to_owned(),
            format!("{text}.{}", URL_SAFE_NO_PAD.encode([0; 32])),
            sign(&[8; 32], &session(NOW + Duration::from_secs(1))),
            String::new(),
        ];
        assert!(bad.iter().all(|cookie| verify(&SECRET, cookie, NOW).is_none()));
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1; windlass_session=x.y; b=2"));
        assert_eq!(cookie(&headers, "windlass_session"), Some("x.y"));
        assert_eq!(cookie(&headers, "session"), None);
    }
}
