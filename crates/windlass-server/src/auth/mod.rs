//! Who asks, and whether they may: one guard in front of every route. Called by the router only; handlers get a
//! [`Caller`] that has passed it. Never looks at what a request wants to do beyond the need its route declares.

mod attempts;
mod jwt;
mod session;

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use windlass_core::{JobId, OperatorRight, Right, Rights, SecurityContext, TenantId};

pub(crate) use attempts::Attempts;
pub(crate) use jwt::Issuer;
pub(crate) use session::{Sessions, login, login_once, logout};

use crate::App;
use crate::problem::{Problem, RequestId};

/// An authenticated caller and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Principal {
    /// The tenant it belongs to.
    pub tenant: TenantId,
    /// Whether it operates the whole installation.
    pub all_tenants: bool,
    /// Its name, for audit entries and submitted jobs.
    pub user: String,
    /// What it may do.
    pub rights: Rights,
    /// How it has shown who it is.
    pub method: AuthMethod,
    /// The API key behind it, if there is one.
    pub key: Option<String>,
}

/// How a principal has shown who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuthMethod {
    /// By an API key.
    Key,
    /// By a JSON Web Token.
    Jwt,
    /// By a session of the dashboard.
    Session,
    /// By the one-time link of a server on this machine.
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
    /// Whether it may do what `right` stands for.
    pub fn may(&self, right: Right) -> bool {
        self.rights.allow(right)
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
    pub(crate) const OPERATE_ALL: Need = Need { rights: &[Right::Operate], all_tenants: true };
    pub(crate) const WORK_ALL: Need = Need { rights: &[Right::Operate, Right::Payload], all_tenants: true };
    pub(crate) const ADMIN_ALL: Need = Need { rights: &[Right::Admin], all_tenants: true };

    /// Whether it allows a change.
    fn changes(self) -> bool {
        self.rights.iter().any(|right| !matches!(right, Right::Read | Right::Payload))
    }

    /// Says what is missing.
    fn check(self, principal: &Principal, read_only: bool) -> Result<(), Problem> {
        if let Some(right) = self.rights.iter().find(|right| !principal.may(**right)) {
            return Err(Problem::forbidden(format!("the right `{}` is needed", right.as_str())));
        }
        if self.all_tenants && !principal.all_tenants {
            return Err(Problem::forbidden("a credential of all tenants is needed"));
        }
        match read_only && self.changes() {
            true => Err(Problem::forbidden("this server is read-only")),
            false => Ok(()),
        }
    }
}

/// A principal with one request: for whom it acts, and what ties the request together.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Who.
    pub principal: Principal,
    /// The one tenant that a principal of all tenants has named.
    acting: Option<TenantId>,
    /// The id that the caller gave the request: what is submitted with it carries it on.
    correlation_id: Option<String>,
}

impl Caller {
    /// The caller as the service knows it, in its own tenant or in the one it has named.
    pub fn context(&self) -> SecurityContext {
        self.in_tenant(self.acting.unwrap_or(self.principal.tenant))
    }

    /// The right over all tenants, where the caller has it and has not named one tenant.
    pub fn operator(&self) -> Option<OperatorRight> {
        (self.principal.all_tenants && self.acting.is_none()).then(OperatorRight::assume)
    }

    /// The caller in the tenant of a job it may see.
    pub(crate) async fn context_of(&self, app: &App, job: JobId) -> Result<SecurityContext, Problem> {
        let Some(right) = self.operator() else { return Ok(self.context()) };
        Ok(self.in_tenant(app.service.operator(right).get(job).await?.tenant))
    }

    pub(crate) fn in_tenant(&self, tenant: TenantId) -> SecurityContext {
        let mut ctx = SecurityContext::new(tenant).with_user(self.principal.user.clone());
        ctx.correlation_id = self.correlation_id.clone();
        ctx
    }

    /// The caller looking at one tenant only, which who operates all tenants may choose; for others nothing changes.
    #[must_use]
    pub(crate) fn narrowed(mut self, tenant: TenantId) -> Self {
        if self.principal.all_tenants {
            self.acting = Some(tenant);
        }
        self
    }

    /// Refuses what `right` does not allow.
    pub(crate) fn require(&self, right: Right) -> Result<(), Problem> {
        match self.principal.may(right) {
            true => Ok(()),
            false => Err(Problem::forbidden(format!("the right `{}` is needed", right.as_str()))),
        }
    }

    /// Refuses callers that do not operate the whole installation.
    pub(crate) fn require_all(&self) -> Result<(), Problem> {
        match self.principal.all_tenants {
            true => Ok(()),
            false => Err(Problem::forbidden("a credential of all tenants is needed")),
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
        Ok(request) => next.run(request).await,
        Err((problem, _)) => problem.into_response(),
    }
}

/// The same for pages: who is not logged in is sent to the login.
pub(crate) async fn guard_page(State((app, need)): State<(App, Need)>, request: Request, next: Next) -> Response {
    match admit(&app, need, request).await {
        Ok(request) => next.run(request).await,
        Err((problem, Method::GET)) if problem.status == 401 => {
            Redirect::to(&format!("{}/login", app.config.base_path)).into_response()
        }
        Err((problem, _)) => problem.into_response(),
    }
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
        app.attempts.check(address)?;
        let token = credential.to_str().ok().and_then(bearer);
        let principal = match token {
            Some(token) => app.principal_of(token).await?,
            None => None,
        };
        return principal.ok_or_else(|| {
            app.attempts.failed(address);
            Problem::unauthorized()
        });
    }
    let Some(principal) = app.sessions.read(app, headers).await? else { return Err(Problem::unauthorized()) };
    let from = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match same_site(method, from("sec-fetch-site"), from("origin"), from("host")) {
        true => Ok(principal),
        false => {
            let detail = "a session may only be used from the server's own pages";
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
        false => Err(Problem::forbidden("the credential belongs to another tenant than the header names")),
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
