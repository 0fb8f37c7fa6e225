//! Authenticates and authorises callers: one guard in front of every route. Called by the router only; handlers get a
//! [`Caller`] that has passed it. Never looks at what a request wants to do beyond the need its route declares.

mod attempts;
mod deep_link;
mod jwt;
mod session;

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use windlass_core::{JobId, OperatorRight, Right, Rights, Scope, SecurityContext, TenantId, Timestamp, Within};

pub(crate) use attempts::Attempts;
pub(crate) use jwt::Issuer;
pub(crate) use session::{Sessions, login, login_once, logout, new_link};

use crate::App;
use crate::problem::{Problem, RequestId};

/// An authenticated caller and its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Principal {
    /// The tenant it belongs to.
    pub tenant: TenantId,
    /// Whether it operates the whole installation.
    pub all_tenants: bool,
    /// Its name, for audit entries and submitted jobs.
    pub user: String,
    /// Its rights.
    pub rights: Rights,
    /// How it authenticated.
    pub method: AuthMethod,
    /// The API key behind it, if there is one.
    pub key: Option<String>,
    /// The session it uses, if it uses one.
    pub session: Option<String>,
    /// When its credential expires, if that is known in advance.
    pub expires_at: Option<Timestamp>,
}

/// How a principal authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuthMethod {
    /// With an API key.
    Key,
    /// With a JSON Web Token.
    Jwt,
    /// With a session of the dashboard.
    Session,
    /// With the one-time link of a server on this machine, or with its [`LocalKey`](crate::LocalKey).
    Local,
}

impl AuthMethod {
    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            AuthMethod::Key => "key",
            AuthMethod::Jwt => "jwt",
            AuthMethod::Session => "session",
            AuthMethod::Local => "local",
        }
    }
}

impl Principal {
    /// The built-in administrator of the whole installation, let in by what only this machine has.
    pub(crate) fn administrator(user: String) -> Self {
        Principal {
            tenant: TenantId::ROOT,
            all_tenants: true,
            user,
            rights: Rights::ALL,
            method: AuthMethod::Local,
            key: None,
            session: None,
            expires_at: None,
        }
    }

    /// Whether it has `right`.
    pub fn may(&self, right: Right) -> bool {
        self.rights.allow(right)
    }

    /// The tenant whose share of the server's places it uses; `None` for a principal of all tenants.
    pub(crate) fn share(&self) -> Option<TenantId> {
        (!self.all_tenants).then_some(self.tenant)
    }

    /// It, as the service knows callers.
    pub fn context(&self) -> SecurityContext {
        SecurityContext::new(self.tenant).with_user(self.user.clone())
    }
}

/// What a route needs of who calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Every one of these.
    pub(crate) rights: &'static [Right],
    /// Of the whole installation.
    pub(crate) all_tenants: bool,
}

impl Need {
    pub(crate) const ANY: Need = Need { rights: &[], all_tenants: false };
    pub(crate) const READ: Need = Need { rights: &[Right::Read], all_tenants: false };
    pub(crate) const SUBMIT: Need = Need { rights: &[Right::Submit], all_tenants: false };
    pub(crate) const OPERATE: Need = Need { rights: &[Right::Operate], all_tenants: false };
    pub(crate) const CLONE: Need = Need { rights: &[Right::Submit, Right::Operate], all_tenants: false };
    pub(crate) const ADMIN: Need = Need { rights: &[Right::Admin], all_tenants: false };
    pub(crate) const PAYLOAD: Need = Need { rights: &[Right::Payload], all_tenants: false };
    pub(crate) const READ_ALL: Need = Need { rights: &[Right::Read], all_tenants: true };
    pub(crate) const WORK: Need = Need { rights: &[Right::Operate, Right::Payload], all_tenants: false };
    pub(crate) const ADMIN_ALL: Need = Need { rights: &[Right::Admin], all_tenants: true };

    /// Whether it allows a change.
    fn changes(self) -> bool {
        self.rights.iter().any(|right| !matches!(right, Right::Read | Right::Payload))
    }

    /// Says what is missing.
    fn check(self, principal: &Principal, read_only: bool) -> Result<(), Problem> {
        if let Some(right) = self.rights.iter().find(|right| !principal.may(**right)) {
            return Err(Problem::forbidden(format!("this needs the right `{}`", right.as_str())));
        }
        if self.all_tenants && !principal.all_tenants {
            return Err(Problem::forbidden("this needs a credential for all tenants"));
        }
        match read_only && self.changes() {
            true => Err(Problem::forbidden("this server is read-only")),
            false => Ok(()),
        }
    }
}

/// A principal with one request: the tenant it acts for, and the id of the request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The principal.
    pub principal: Principal,
    /// The one tenant that a principal of all tenants has named.
    acting: Option<TenantId>,
    /// The id that the caller gave the request; submitted jobs get it as correlation id.
    correlation_id: Option<String>,
}

impl Caller {
    /// The caller as the service knows it, in its own tenant or in the one it has named.
    pub fn context(&self) -> SecurityContext {
        self.in_tenant(self.acting.unwrap_or(self.principal.tenant))
    }

    /// The right over all tenants, if the caller has it and has not selected one tenant.
    pub fn operator(&self) -> Option<OperatorRight> {
        (self.principal.all_tenants && self.acting.is_none()).then(OperatorRight::assume)
    }

    /// The jobs the caller may see: of all tenants if it may and has not selected one, else of its tenant.
    pub fn scope(&self) -> Scope {
        self.operator().map_or_else(|| self.context().scope(), Scope::All)
    }

    /// The service within the caller's scope.
    pub(crate) fn within(&self, app: &App) -> Within {
        app.service.within(self.scope())
    }

    /// The service within all that the caller may reach: every tenant for operators, also while one tenant is selected.
    pub(crate) fn within_reach(&self, app: &App) -> Within {
        match self.principal.all_tenants {
            true => app.service.operator(OperatorRight::assume()),
            false => self.within(app),
        }
    }

    /// The caller in the tenant of a job it may see.
    pub(crate) async fn context_of(&self, app: &App, job: JobId) -> Result<SecurityContext, Problem> {
        Ok(self.within(app).caller_of(&self.context(), job).await?)
    }

    pub(crate) fn in_tenant(&self, tenant: TenantId) -> SecurityContext {
        let mut ctx = SecurityContext::new(tenant).with_user(self.principal.user.clone());
        ctx.correlation_id = self.correlation_id.clone();
        ctx
    }

    /// The caller limited to one tenant. Only operators of all tenants can choose one; for others nothing changes.
    #[must_use]
    pub(crate) fn narrowed(mut self, tenant: TenantId) -> Self {
        if self.principal.all_tenants {
            self.acting = Some(tenant);
        }
        self
    }

    /// Fails if the caller lacks `right`.
    pub(crate) fn require(&self, right: Right) -> Result<(), Problem> {
        match self.principal.may(right) {
            true => Ok(()),
            false => Err(Problem::forbidden(format!("this needs the right `{}`", right.as_str()))),
        }
    }

    /// Fails if the caller does not operate the whole installation.
    pub(crate) fn require_all(&self) -> Result<(), Problem> {
        match self.principal.all_tenants {
            true => Ok(()),
            false => Err(Problem::forbidden("this needs a credential for all tenants")),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(Problem::unauthorized)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(Caller::from_request_parts(parts, state).await?.principal)
    }
}

/// Lets a request of the API pass that has what its route needs.
pub(crate) async fn guard(State((app, need)): State<(App, Need)>, request: Request, next: Next) -> Response {
    match admit(&app, need, request).await {
        Ok(request) => answer(&app, request, next).await,
        Err((problem, _)) => problem.into_response(),
    }
}

/// The same for a route that gives back by itself what it has taken when nobody waits for its answer any more: it ends with
/// its connection, and with its time.
pub(crate) async fn guard_while_awaited(
    State((app, need)): State<(App, Need)>,
    request: Request,
    next: Next,
) -> Response {
    match admit(&app, need, request).await {
        Ok(request) => next.run(request).await,
        Err((problem, _)) => problem.into_response(),
    }
}

/// The same for pages: who is not logged in is sent to the login.
pub(crate) async fn guard_page(State((app, need)): State<(App, Need)>, request: Request, next: Next) -> Response {
    let (asked, headers) = (request.uri().clone(), request.headers().clone());
    match admit(&app, need, request).await {
        Ok(request) => answer(&app, request, next).await,
        Err((problem, Method::GET)) if problem.status == 401 => deep_link::to_login(&app, &asked, &headers),
        Err((problem, _)) => problem.into_response(),
    }
}

/// Answers a request. What may change something is carried out to its end once all of it is there.
async fn answer(app: &App, request: Request, next: Next) -> Response {
    match request.method().is_safe() {
        true => next.run(request).await,
        false => change(app, request, next).await.unwrap_or_else(IntoResponse::into_response),
    }
}

async fn change(app: &App, request: Request, next: Next) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let caller = parts.extensions.get::<Caller>().expect("`admit` has put it there");
    // Before the body is read: what is refused costs no memory.
    let place = app.enter(caller.principal.share())?;
    let body = crate::extract::body(Request::from_parts(parts.clone(), body), app).await?;
    app.carry_out(place, next.run(Request::from_parts(parts, body.into()))).await
}

/// The request with its caller, or why not and with which method it was tried.
async fn admit(app: &App, need: Need, request: Request) -> Result<Request, (Problem, Method)> {
    let (mut parts, body) = request.into_parts();
    match caller(app, need, &parts).await {
        Ok(caller) => {
            parts.extensions.insert(caller);
            Ok(Request::from_parts(parts, body))
        }
        Err(problem) => Err((problem, parts.method)),
    }
}

async fn caller(app: &App, need: Need, parts: &Parts) -> Result<Caller, Problem> {
    let principal = authenticate(app, &parts.method, &parts.headers, address(app, parts)).await?;
    need.check(&principal, app.config.read_only)?;
    let acting = acting(&parts.headers, &principal)?;
    let correlation_id = parts.extensions.get::<RequestId>().filter(|id| id.given).map(|id| id.id.clone());
    Ok(Caller { principal, acting, correlation_id })
}

/// Finds out who asks: by the `Authorization` header if there is one, else by the session cookie.
async fn authenticate(
    app: &App,
    method: &Method,
    headers: &HeaderMap,
    address: Option<IpAddr>,
) -> Result<Principal, Problem> {
    if let Some(credential) = headers.get(header::AUTHORIZATION) {
        let token = credential.to_str().ok().and_then(bearer);
        let principal = match token {
            Some(token) => app.principal_of(token).await?,
            None => None,
        };
        let refused = || app.attempts.refuse(address, token.unwrap_or_default(), Problem::unauthorized());
        return principal.ok_or_else(refused);
    }
    let Some(principal) = app.sessions.read(app, headers).await? else { return Err(Problem::unauthorized()) };
    let from = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match same_site(method, from("sec-fetch-site"), from("origin"), from("host")) {
        true => Ok(principal),
        false => {
            let detail = "a session cookie is accepted only from the server's own pages";
            Err(Problem::new(axum::http::StatusCode::FORBIDDEN, "cross_origin", detail))
        }
    }
}

/// The longest token that is looked at.
const TOKEN_BYTES: usize = 8 * 1024;

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= TOKEN_BYTES).then_some(token)
}

/// Whether a request with a cookie comes from our own pages (reliability.md 8.8). Browsers say so by `Sec-Fetch-Site`;
/// old ones by `Origin`, which must be the host that was asked.
pub(crate) fn same_site(method: &Method, site: Option<&str>, origin: Option<&str>, host: Option<&str>) -> bool {
    if method.is_safe() {
        return true;
    }
    match (site, origin) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => {
            let of_origin = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            matches!((of_origin, host), (Some(of_origin), Some(host)) if of_origin.eq_ignore_ascii_case(host))
        }
        (None, None) => false,
    }
}

/// The tenant that the header names, which only a principal of all tenants may choose.
fn acting(headers: &HeaderMap, principal: &Principal) -> Result<Option<TenantId>, Problem> {
    let Some(named) = headers.get("windlass-tenant") else { return Ok(None) };
    let tenant = TenantId::parse(named.to_str().unwrap_or_default())?;
    match principal.all_tenants || tenant == principal.tenant {
        true => Ok(Some(tenant)),
        false => Err(Problem::forbidden("the credential belongs to a different tenant than the header names")),
    }
}

/// Where a request comes from, as far as it can be told.
pub(crate) fn address(app: &App, parts: &Parts) -> Option<IpAddr> {
    if app.config.trust_forwarded {
        let forwarded = parts.headers.get_all("x-forwarded-for").iter().next_back()?.to_str().ok()?;
        return forwarded.rsplit(',').next()?.trim().parse().ok();
    }
    parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S16: what a foreign page can send is refused, whatever it looks like.
    #[test]
    fn unsafe_methods_need_our_own_origin() {
        let post = |site, origin, host| same_site(&Method::POST, site, origin, host);
        let host = Some("jobs.example:8080");
        assert!(post(Some("same-origin"), None, host));
        assert!(post(Some("none"), None, host));
        assert!(post(None, Some("http://jobs.example:8080"), host));
        assert!(post(None, Some("https://JOBS.example:8080"), host));
        for site in ["cross-site", "same-site", "", "SAME-ORIGIN"] {
            assert!(!post(Some(site), Some("http://jobs.example:8080"), host), "{site}");
        }
        let foreign = ["null", "http://evil.example", "http://jobs.example", "https://jobs.example:8080.evil.example"];
        for origin in foreign {
            assert!(!post(None, Some(origin), host), "{origin}");
        }
        assert!(!post(None, None, host) && !post(None, Some("http://"), None));
        assert!(same_site(&Method::GET, Some("cross-site"), None, host), "reading is up to SameSite");
    }

    #[test]
    fn only_bearer_tokens_of_sane_length_are_looked_at() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("Bearer "), None);
        assert_eq!(bearer(&format!("Bearer {}", "x".repeat(TOKEN_BYTES + 1))), None);
    }
}
