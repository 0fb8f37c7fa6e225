//! The one table of routes: each with the need its callers must meet. A route cannot be added without one.

mod system;

use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use crate::App;
use crate::auth::{self, Need};
use crate::problem::{self, Problem};

/// Where the API begins.
pub(crate) const API: &str = "/api/v1";

/// Everything the server serves, under the base path.
pub(crate) fn router(app: &App) -> Router {
    let (api, _document) = api(app).split_for_parts();
    let mut routes = Router::new()
        .nest(API, api)
        .route("/healthz", get(system::live))
        .route("/readyz", get(system::ready))
        .route("/login", post(auth::login))
        .route("/logout", post(auth::logout))
        .route("/login/{token}", get(auth::login_once));
    if app.config.dashboard {
        routes = routes.merge(crate::dashboard::router(app));
    }
    let routes = match app.config.base_path.as_str() {
        "" => routes,
        base => Router::new().nest(base, routes),
    };
    finish(app, routes.with_state(app.clone()))
}

/// The routes of the API.
fn api(app: &App) -> OpenApiRouter<App> {
    Table { app: app.clone(), router: OpenApiRouter::new(), needs: Vec::new() }
        .add(Need::ANY, routes!(system::me))
        .router
}

/// The routes with what each needs.
struct Table {
    app: App,
    router: OpenApiRouter<App>,
    needs: Vec<(String, Need)>,
}

impl Table {
    fn add(mut self, need: Need, (schemas, paths, methods): UtoipaMethodRouter<App>) -> Self {
        self.needs.extend(paths.paths.keys().map(|path| (path.clone(), need)));
        let methods = methods.route_layer(from_fn_with_state((self.app.clone(), need), auth::guard));
        self.router = self.router.routes((schemas, paths, methods));
        self
    }
}

/// Puts a page of the dashboard behind what it needs; who is not logged in is sent to the login.
#[allow(dead_code)]
pub(crate) fn page(app: &App, need: Need, methods: MethodRouter<App>) -> MethodRouter<App> {
    methods.route_layer(from_fn_with_state((app.clone(), need), auth::guard_page))
}

/// What holds for every request, from the outside in.
fn finish(app: &App, routes: Router) -> Router {
    routes
        .fallback(async || Problem::not_found("there is no such page or route"))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this route has other methods")
        })
        .layer(DefaultBodyLimit::max(app.config.limits.body_bytes))
        .layer(from_fn_with_state(app.clone(), in_time))
        .layer(from_fn_with_state(app.clone(), small_head))
        .layer(CatchPanicLayer::custom(panicked))
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
