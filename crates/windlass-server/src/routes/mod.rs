//! The one table of routes: each with the need its callers must meet. A route cannot be added without one.

mod edit;
mod hooks;
pub(crate) mod jobs;
mod keys;
mod look;
mod many;
mod system;
mod usage;
mod watch;
pub(crate) mod work;

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use utoipa::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use crate::App;
use crate::auth::{self, Need};
use crate::problem::{self, Problem};
use crate::{metrics, openapi};

/// Where the API begins.
pub(crate) const API: &str = "/api/v1";

/// Everything the server serves, under the base path.
pub(crate) fn router(app: &App) -> Router {
    app.checkouts.look_after(&app.service, app.ending.clone());
    let table = api(app);
    let (api, document) = table.router.split_for_parts();
    let document = openapi::complete(&document, &table.needs, &app.config.base_path);
    let page = openapi::page(&document, &app.config.base_path);
    // Bytes are cheap to clone for every request; the document is some hundred kilobytes.
    let document = Bytes::from(document.to_string());
    let json = HeaderValue::from_static("application/json");
    let mut routes = Router::new()
        .nest(API, api)
        .route(&format!("{API}/openapi.json"), get(async move || ([(header::CONTENT_TYPE, json)], document)))
        .route("/docs", get(async move || page))
        .route("/docs/style.css", get(async || ([(header::CONTENT_TYPE, "text/css")], openapi::STYLE)))
        .route("/healthz", get(system::live))
        .route("/readyz", get(system::ready))
        .route("/api/jobs/tick", guarded(app, Need::OPERATE_ALL, post(work::tick)))
        .route("/metrics", metrics_route(app))
        .route("/login", post(auth::login))
        .route("/logout", post(auth::logout))
        .route("/login/{token}", get(auth::login_once));
    if app.config.dashboard {
        routes = routes.merge(crate::dashboard::router(app));
    }
    let routes = answer_all(routes.with_state(app.clone()));
    let routes = match app.config.base_path.as_str() {
        "" => routes,
        // As a service, so that the base itself answers with and without a slash at its end.
        base => answer_all(Router::new().nest_service(base, routes)),
    };
    finish(app, routes)
}

/// Says what is wrong with a request that no route is for.
fn answer_all(routes: Router) -> Router {
    routes.fallback(async || Problem::not_found("there is no such page or route")).method_not_allowed_fallback(
        async || Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this route has other methods"),
    )
}

/// Metrics tell of all tenants; open only where nobody but this machine can ask, and only if configured so.
fn metrics_route(app: &App) -> MethodRouter<App> {
    let open = app.config.open_metrics && app.config.listen.ip().is_loopback();
    if open { get(metrics::serve) } else { guarded(app, Need::READ_ALL, get(metrics::serve)) }
}

/// The routes of the API, each with what it needs. Nothing is served that is not in this table.
fn api(app: &App) -> Table {
    Table { app: app.clone(), router: OpenApiRouter::with_openapi(Document::openapi()), needs: Vec::new() }
        .add(Need::ANY, routes!(system::me))
        .add(Need::SUBMIT, routes!(jobs::submit))
        .add(Need::SUBMIT, routes!(jobs::submit_batch))
        .add(Need::READ, routes!(jobs::list))
        .add(Need::READ, routes!(jobs::show))
        .add(Need::READ, routes!(jobs::result))
        .add(Need::PAYLOAD, routes!(jobs::input))
        .add(Need::READ, routes!(jobs::history))
        .add(Need::READ, routes!(jobs::why))
        .add(Need::READ, routes!(watch::job))
        .add(Need::READ, routes!(watch::feed))
        .add(Need::OPERATE, routes!(jobs::cancel))
        .add(Need::OPERATE, routes!(jobs::replay))
        .add(Need::OPERATE, routes!(jobs::purge))
        .add(Need::OPERATE, routes!(edit::retry))
        .add(Need::OPERATE, routes!(edit::run_now))
        .add(Need::OPERATE, routes!(edit::reschedule))
        .add(Need::OPERATE, routes!(edit::priority))
        .add(Need::OPERATE, routes!(edit::change))
        .add(Need::CLONE, routes!(edit::clone))
        .add(Need::OPERATE, routes!(many::preview))
        .add(Need::OPERATE, routes!(many::bulk))
        .add(Need::READ, routes!(many::bulks))
        .add(Need::OPERATE, routes!(many::stop))
        .add(Need::READ, routes!(many::failures))
        .add(Need::OPERATE, routes!(many::retry_group))
        .add(Need::OPERATE, routes!(many::replay))
        .add(Need::READ, routes!(jobs::dead_letters))
        .add(Need::READ, routes!(usage::logs))
        .add(Need::OPERATE, routes!(usage::record))
        .add(Need::READ, routes!(usage::usage))
        .add(Need::READ, routes!(usage::events))
        .add(Need::READ, routes!(usage::activity))
        .add(Need::READ_ALL, routes!(usage::backlog))
        .add(Need::READ_ALL, routes!(usage::health))
        .add(Need::READ, routes!(look::counts))
        .add(Need::READ_ALL, routes!(look::nodes))
        .add(Need::READ, routes!(look::handlers))
        .add(Need::READ, routes!(look::pauses))
        .add(Need::OPERATE, routes!(look::pause))
        .add(Need::OPERATE, routes!(look::resume))
        .add(Need::READ, routes!(look::audit))
        .add(Need::READ_ALL, routes!(look::tenants))
        .add(Need::READ, routes!(look::quota))
        .add(Need::ADMIN_ALL, routes!(look::set_quota))
        .add(Need::ADMIN_ALL, routes!(look::clear_quota))
        .add(Need::OPERATE_ALL, routes!(work::tick))
        .add(Need::WORK_ALL, routes!(work::checkout))
        .add(Need::OPERATE_ALL, routes!(work::progress))
        .add(Need::OPERATE_ALL, routes!(work::success))
        .add(Need::OPERATE_ALL, routes!(work::failure))
        .add(Need::ADMIN, routes!(keys::list))
        .add(Need::ADMIN, routes!(keys::create))
        .add(Need::ADMIN, routes!(keys::revoke))
        .add(Need::ADMIN, routes!(hooks::list))
        .add(Need::ADMIN, routes!(hooks::create))
        .add(Need::ADMIN, routes!(hooks::remove))
}

/// What the document holds besides its routes.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(Problem)))]
struct Document;

/// The routes with what each needs.
struct Table {
    app: App,
    router: OpenApiRouter<App>,
    needs: openapi::Needs,
}

impl Table {
    fn add(mut self, need: Need, (schemas, paths, methods): UtoipaMethodRouter<App>) -> Self {
        for (path, item) in &paths.paths {
            let methods = [("get", &item.get), ("put", &item.put), ("post", &item.post), ("delete", &item.delete)];
            let methods = methods.into_iter().chain([("patch", &item.patch)]).filter(|(_, op)| op.is_some());
            self.needs.extend(methods.map(|(method, _)| (method.to_owned(), path.clone(), need)));
        }
        self.router = self.router.routes((schemas, paths, guarded(&self.app, need, methods)));
        self
    }
}

fn guarded(app: &App, need: Need, methods: MethodRouter<App>) -> MethodRouter<App> {
    methods.route_layer(from_fn_with_state((app.clone(), need), auth::guard))
}

/// Puts a page of the dashboard behind what it needs; who is not logged in is sent to the login.
pub(crate) fn page(app: &App, need: Need, methods: MethodRouter<App>) -> MethodRouter<App> {
    methods.route_layer(from_fn_with_state((app.clone(), need), auth::guard_page))
}

/// What holds for every request, from the outside in.
fn finish(app: &App, routes: Router) -> Router {
    routes
        .layer(DefaultBodyLimit::max(app.config.limits.body_bytes))
        .layer(from_fn_with_state(app.clone(), in_time))
        .layer(from_fn_with_state(app.clone(), small_head))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(app.clone(), crate::dashboard::for_people))
        .layer(from_fn(problem::complete))
        .layer(from_fn_with_state(app.clone(), safe_headers))
        .layer(CompressionLayer::new().gzip(true))
}

/// Answers for a request that takes too long. What it was about to write is written or not, as with a lost connection.
async fn in_time(State(app): State<App>, request: Request, next: Next) -> Response {
    let at_most: Duration = app.config.limits.request_timeout;
    tokio::time::timeout(at_most, next.run(request)).await.unwrap_or_else(|_| {
        Problem::new(StatusCode::GATEWAY_TIMEOUT, "timeout", "the request took too long").into_response()
    })
}

async fn small_head(State(app): State<App>, request: Request, next: Next) -> Response {
    let headers: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if headers + target > app.config.limits.header_bytes {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Problem::new(status, "too_large", "the headers are larger than the server accepts").into_response();
    }
    next.run(request).await
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> Response {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "a request panicked: {text}");
    Problem::internal().into_response()
}

/// What browsers may do with our answers (reliability.md 8.8).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

async fn safe_headers(State(app): State<App>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Assets say themselves how long they last; data must not stay behind in a browser.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if app.config.https == Some(true) {
        let value = HeaderValue::from_static("max-age=31536000");
        headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
    }
    response
}

/// Answers with `body`, or with nothing where the client has that already.
pub(crate) fn conditional(headers: &HeaderMap, status: StatusCode, body: &impl Serialize) -> Response {
    let body = serde_json::to_vec(body).expect("an answer is plain data");
    let digest = Sha256::digest(&body);
    // Weak, because the answer may be compressed on its way.
    let tag = digest[..12].iter().fold(String::from("W/\""), |tag, byte| tag + &format!("{byte:02x}")) + "\"";
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known.flat_map(|value| value.split(',')).any(|known| known.trim() == tag || known.trim() == "*");
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
    };
    let tag = HeaderValue::from_str(&tag).expect("a tag is plain text");
    response.headers_mut().insert(header::ETAG, tag);
    // Kept by the client, but asked about every time.
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    response
}
