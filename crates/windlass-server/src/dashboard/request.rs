//! One request for a page: who asks, for which tenant, with which query, and how the answer looks around its content.
//! Made from every request by axum; `pages` and `actions` get one each. Decides nothing about jobs.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use windlass_core::store::{Pause, PauseTarget};
use windlass_core::{JobFilter, JobId, Right, SecurityContext, TenantId, Within};

use super::notices::Notice;
use super::shell::{May, Shell, Theme, Viewer};
use super::urls::Urls;
use crate::App;
use crate::auth::{AuthMethod, Caller};
use crate::problem::Problem;

/// A request for a page.
#[derive(Clone)]
pub(crate) struct PageRequest {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) urls: Urls,
    pub(crate) query: Fields,
    /// The page was asked for again by the script, to put fresh parts in place.
    pub(crate) is_refresh: bool,
    /// How the browser reaches us, for commands to copy.
    pub(crate) origin: String,
    theme: Theme,
    tenant: Option<TenantId>,
    here: String,
}

/// The fields of a query or a form, in their order; names may repeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(pub(crate) Vec<(String, String)>);

/// Fields of a form; more is no form of ours.
const MAX_FIELDS: usize = 1_000;

impl Fields {
    /// The first value of a name, without spaces around it; empty if there is none.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.trim())
    }

    /// A value that may be left out.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        Some(self.get(name)).filter(|value| !value.is_empty())
    }

    /// Every value of a name.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }

    /// A number that may be left out.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        let read =
            |text: &str| text.replace(',', "").parse().map_err(|_| Problem::invalid(name, "is not a valid number"));
        self.given(name).map(read).transpose()
    }

    /// Whether the user has been asked and said yes.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.get("confirmed") == "1"
    }
}

/// A form that was sent.
pub(crate) struct Form(pub(crate) Fields);

impl<S: Send + Sync> FromRequest<S> for Form {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let form = axum::extract::Form::<Vec<(String, String)>>::from_request(request, state).await;
        let axum::extract::Form(fields) = form.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the form is larger than the server accepts")
            }
            _ => Problem::malformed("cannot read the form"),
        })?;
        match fields.len() > MAX_FIELDS {
            true => Err(Problem::malformed("the form has too many fields")),
            false => Ok(Form(Fields(fields))),
        }
    }
}

impl FromRequestParts<App> for PageRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        Ok(PageRequest::new(app, caller, parts))
    }
}

impl PageRequest {
    fn new(app: &App, caller: Caller, parts: &Parts) -> Self {
        let urls = Urls::new(&app.config.base_path);
        let query = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        let query = Fields(query.map(|query| query.0).unwrap_or_default());
        let tenant = cookie(&parts.headers, TENANT_COOKIE).and_then(|tenant| TenantId::parse(tenant).ok());
        let tenant = tenant.filter(|_| caller.principal.all_tenants);
        let caller = match tenant {
            Some(tenant) => caller.narrowed(tenant),
            None => caller,
        };
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
        let scheme = if app.config.secure_cookies() { "https" } else { "http" };
        PageRequest {
            theme: theme(&parts.headers),
            here: here(&urls, parts, &query),
            is_refresh: parts.headers.contains_key("windlass-refresh"),
            origin: format!("{scheme}://{host}{}", urls.base()),
            app: app.clone(),
            caller,
            urls,
            query,
            tenant,
        }
    }

    /// Who asks, as the service knows callers.
    pub(crate) fn context(&self) -> SecurityContext {
        self.caller.context()
    }

    /// The service within the scope of what the asker looks at.
    pub(crate) fn within(&self) -> Within {
        self.caller.within(&self.app)
    }

    /// What the asker may do here.
    pub(crate) fn may(&self) -> May {
        let may = |right| self.caller.principal.may(right);
        let changes = !self.app.config.read_only;
        May {
            submit: changes && may(Right::Submit),
            operate: changes && may(Right::Operate),
            admin: changes && may(Right::Admin),
            payload: may(Right::Payload),
        }
    }

    /// The pauses in force that may hold the jobs the asker sees.
    pub(crate) async fn pauses(&self) -> Result<Vec<Pause>, Problem> {
        Ok(self.within().pauses().await?)
    }

    /// What goes around the page. The pause of everything is said on every page.
    pub(crate) fn shell(&self, pauses: &[Pause]) -> Shell {
        let principal = &self.caller.principal;
        let all = principal.all_tenants;
        let own = (!all).then_some(principal.tenant);
        Shell {
            urls: self.urls.clone(),
            now: self.app.service.now(),
            theme: self.theme,
            viewer: Viewer {
                user: principal.user.clone(),
                tenant: own.or(self.tenant),
                all_tenants: all,
                may: self.may(),
                read_only: self.app.config.read_only,
                has_session: matches!(principal.method, AuthMethod::Session | AuthMethod::Local),
            },
            here: self.here.clone(),
            flash: Notice::read(&self.query).map(|notice| notice.sentence(self.query.number("n").ok().flatten())),
            paused: pauses.iter().find(|pause| pause.target == PauseTarget::All).cloned(),
        }
    }

    /// What goes around a page that shows no pauses of its own.
    pub(crate) async fn frame(&self) -> Result<Shell, Problem> {
        Ok(self.shell(&self.pauses().await?))
    }

    /// Reads a filter. Conditions on inputs tell what inputs hold, so they need the right to see them.
    pub(crate) fn filter(&self, text: &str) -> Result<JobFilter, Problem> {
        let filter = JobFilter::parse(text, self.app.service.now())?;
        crate::routes::jobs::allow_filter(&self.caller, &filter)?;
        Ok(filter)
    }

    /// The page that a list goes on after.
    pub(crate) fn before(&self) -> Result<Option<JobId>, Problem> {
        let read = |id: &str| id.parse().map_err(|_| Problem::malformed("`before` is not the id of a job"));
        self.query.given("before").map(read).transpose()
    }

    /// Goes to a page and says there what was done.
    pub(crate) fn done(&self, to: &str, notice: Notice, n: Option<u64>) -> Response {
        let to = if self.urls.is_own(to) { to.to_owned() } else { self.urls.path("/") };
        let mark = if to.contains('?') { '&' } else { '?' };
        let count = n.map(|n| format!("&n={n}")).unwrap_or_default();
        see(&format!("{to}{mark}did={}{count}", notice.code()))
    }

    /// The page that a form came from, if it is one of ours.
    pub(crate) fn back(&self, form: &Fields) -> String {
        let back = form.get("back");
        if self.urls.is_own(back) { back.to_owned() } else { self.urls.path("/") }
    }
}

/// What goes around a page of somebody who may not be known.
pub(crate) fn bare_shell(app: &App, headers: &HeaderMap) -> Shell {
    let viewer = Viewer {
        user: String::new(),
        tenant: None,
        all_tenants: false,
        may: May::default(),
        read_only: false,
        has_session: false,
    };
    let urls = Urls::new(&app.config.base_path);
    let here = urls.path("/");
    Shell { urls, now: app.service.now(), theme: theme(headers), viewer, here, flash: None, paused: None }
}

/// Goes to another page after a form.
pub(crate) fn see(to: &str) -> Response {
    match HeaderValue::from_str(to) {
        Ok(to) => (StatusCode::SEE_OTHER, [(header::LOCATION, to)]).into_response(),
        Err(_) => Problem::malformed("the address to go back to is not plain text").into_response(),
    }
}

/// Whether pages are dark or light. Holds no authority, so the script may set it.
pub(crate) const THEME_COOKIE: &str = "windlass_theme";

/// The tenant that an operator of all tenants looks at. Narrows what they see and never widens it.
pub(crate) const TENANT_COOKIE: &str = "windlass_tenant";

/// A cookie of the dashboard's own.
pub(crate) fn cookie_header(urls: &Urls, name: &str, value: &str) -> HeaderValue {
    /// A year: a choice of looks, not a credential.
    const LASTS: u32 = 31_536_000;
    let lasts = if value.is_empty() { 0 } else { LASTS };
    let text = format!("{name}={value}; Path={}; Max-Age={lasts}; SameSite=Strict", urls.cookie_path());
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""))
}

fn theme(headers: &HeaderMap) -> Theme {
    Theme::parse(cookie(headers, THEME_COOKIE).unwrap_or_default())
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|value| value.split(';')).find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// The page to come back to after an action: this one without what the last action said. An action itself has no page;
/// what is wrong with it is said over the overview.
fn here(urls: &Urls, parts: &Parts, query: &Fields) -> String {
    let pairs: Vec<(&str, &str)> = query
        .0
        .iter()
        .filter(|(name, _)| !["did", "n"].contains(&name.as_str()))
        .map(|(n, v)| (n.as_str(), v.as_str()))
        .collect();
    // Names of query fields are ours; a foreign one could hold anything.
    let plain = pairs.iter().all(|(name, _)| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
    // Mounted below a path, the router has taken that path off already.
    let path = parts.uri.path();
    let path = path.strip_prefix(urls.base()).filter(|_| !urls.base().is_empty()).unwrap_or(path);
    let path = if path.starts_with('/') { path } else { "/" };
    urls.query(path, if plain { &pairs } else { &[] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_forms_send_them() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let fields = Fields(vec![pair("id", "1"), pair("id", "2"), pair("n", " 1,200 "), pair("bad", "x")]);
        assert_eq!(fields.all("id"), ["1", "2"]);
        assert_eq!(fields.number::<u64>("n").expect("a number"), Some(1_200));
        assert!(fields.number::<u64>("bad").is_err());
        assert_eq!(fields.number::<u64>("absent").expect("none is fine"), None);
        assert!(!fields.is_confirmed());
    }

    #[test]
    fn the_page_to_come_back_to_is_one_of_ours() {
        let check = |base: &str, uri: &str, expected: &str| {
            let (parts, ()) = axum::http::Request::builder().uri(uri).body(()).expect("a request").into_parts();
            let query = Fields(axum::extract::Query::try_from_uri(&parts.uri).map(|q| q.0).unwrap_or_default());
            let urls = Urls::new(base);
            assert_eq!(here(&urls, &parts, &query), expected);
            assert!(urls.is_own(expected));
        };
        check("", "/jobs?q=a%20b&did=canceled&n=3", "/jobs?q=a%20b");
        check("/ops", "/jobs?q=x", "/ops/jobs?q=x");
        check("/ops", "/ops/jobs?q=x", "/ops/jobs?q=x");
        check("", "/jobs?%3Cb%3E=1", "/jobs");
    }
}
