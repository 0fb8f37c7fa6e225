//! The one table of routes: each with the need its callers must meet. A route cannot be added without one.

mod api_keys;
mod edit;
mod hooks;
mod installation;
pub(crate) mod jobs;
mod many;
mod pauses;
mod quotas;
pub(crate) mod schedules;
mod system;
mod usage;
mod watch;
pub(crate) mod work;

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tower_http::catch_panic::{CatchPanicLayer, ResponseForPanic};
use tower_http::compression::CompressionLayer;
use utoipa::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;
use windlass_core::supervise::Supervisor;

use crate::App;
use crate::auth::{self, Need};
use crate::problem::{self, Problem};
use crate::{metrics, openapi};

/// Where the API begins.
pub(crate) const API: &str = "/api/v1";

/// Everything the server serves, under the base path.
pub(crate) fn router(app: &App) -> Router {
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
        .route("/api/jobs/tick", guarded(app, Need::OPERATE, post(work::tick)))
        .route("/metrics", metrics_route(app))
        .route("/login", post(auth::login))
        .route("/logout", post(auth::logout))
        .route("/login/links", guarded(app, Need::READ_ALL, post(auth::new_link)))
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
        async || {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "method not allowed; see the Allow header",
            )
        },
    )
}

/// Metrics tell of all tenants; open only where nobody but this machine can ask, and only if configured so.
fn metrics_route(app: &App) -> MethodRouter<App> {
    let open = app.config.open_metrics && app.config.listen.ip().is_loopback();
    if open { get(metrics::serve) } else { guarded(app, Need::READ_ALL, get(metrics::serve)) }
}

/// The routes of the API, each with what it needs. Nothing is served that is not in this table.
fn api(app: &App) -> Table {
    let table = Table { app: app.clone(), router: OpenApiRouter::with_openapi(Document::openapi()), needs: Vec::new() };
    let table = table.add(Need::ANY, routes!(system::me));
    of_administration(of_installation(of_schedules(of_jobs(table))))
}

/// One job and many: submit, look, steer.
fn of_jobs(table: Table) -> Table {
    table
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
}

/// What starts jobs again and again.
fn of_schedules(table: Table) -> Table {
    table
        .add(Need::READ, routes!(schedules::list))
        .add(Need::OPERATE, routes!(schedules::put))
        .add(Need::READ, routes!(schedules::show))
        .add(Need::PAYLOAD, routes!(schedules::input))
        .add(Need::OPERATE, routes!(schedules::remove))
        .add(Need::OPERATE, routes!(schedules::pause))
        .add(Need::OPERATE, routes!(schedules::resume))
        .add(Need::OPERATE, routes!(schedules::trigger))
        .add(Need::READ, routes!(schedules::next))
        .add(Need::READ, routes!(schedules::runs))
}

/// What happens, what it costs, and who works.
fn of_installation(table: Table) -> Table {
    table
        .add(Need::READ, routes!(usage::logs))
        .add(Need::OPERATE, routes!(usage::record))
        .add(Need::READ, routes!(usage::usage))
        .add(Need::READ, routes!(usage::events))
        .add(Need::READ, routes!(usage::activity))
        .add(Need::READ_ALL, routes!(usage::backlog))
        .add(Need::READ_ALL, routes!(usage::health))
        .add(Need::READ, routes!(installation::counts))
        .add(Need::READ_ALL, routes!(installation::nodes))
        .add(Need::READ, routes!(installation::handlers))
        .add(Need::READ, routes!(pauses::pauses))
        .add(Need::OPERATE, routes!(pauses::pause))
        .add(Need::OPERATE, routes!(pauses::resume))
        .add(Need::READ, routes!(installation::audit))
        .add(Need::READ_ALL, routes!(quotas::tenants))
        .add(Need::READ, routes!(quotas::quota))
        .add(Need::ADMIN_ALL, routes!(quotas::set_quota))
        .add(Need::ADMIN_ALL, routes!(quotas::clear_quota))
        .add(Need::OPERATE, routes!(work::tick))
        .add_while_awaited(Need::WORK, routes!(work::checkout))
        .add(Need::OPERATE, routes!(work::progress))
        .add(Need::OPERATE, routes!(work::success))
        .add(Need::OPERATE, routes!(work::failure))
}

/// Who may call, and who is told.
fn of_administration(table: Table) -> Table {
    table
        .add(Need::ADMIN, routes!(api_keys::list))
        .add(Need::ADMIN, routes!(api_keys::create))
        .add(Need::ADMIN, routes!(api_keys::revoke))
        .add(Need::ADMIN, routes!(hooks::list))
        .add(Need::ADMIN, routes!(hooks::create))
        .add(Need::ADMIN, routes!(hooks::remove))
        .add(Need::ADMIN, routes!(hooks::pause))
        .add(Need::ADMIN, routes!(hooks::resume))
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
    fn add(self, need: Need, routes: UtoipaMethodRouter<App>) -> Self {
        let guard = |app: &App, methods| guarded(app, need, methods);
        self.put(need, routes, guard)
    }

    /// Adds a route that ends with its connection, for what a caller who is gone must not hold.
    fn add_while_awaited(self, need: Need, routes: UtoipaMethodRouter<App>) -> Self {
        let guard = |app: &App, methods: MethodRouter<App>| {
            methods.route_layer(from_fn_with_state((app.clone(), need), auth::guard_while_awaited))
        };
        self.put(need, routes, guard)
    }

    fn put(
        mut self,
        need: Need,
        (schemas, paths, methods): UtoipaMethodRouter<App>,
        guard: impl FnOnce(&App, MethodRouter<App>) -> MethodRouter<App>,
    ) -> Self {
        for (path, item) in &paths.paths {
            let methods = [("get", &item.get), ("put", &item.put), ("post", &item.post), ("delete", &item.delete)];
            let methods = methods.into_iter().chain([("patch", &item.patch)]).filter(|(_, op)| op.is_some());
            self.needs.extend(methods.map(|(method, _)| (method.to_owned(), path.clone(), need)));
        }
        self.router = self.router.routes((schemas, paths, guard(&self.app, methods)));
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
        .layer(CatchPanicLayer::custom(Panicked(app.service.supervisor().clone())))
        .layer(from_fn_with_state(app.clone(), crate::dashboard::for_people))
        .layer(from_fn(problem::complete))
        .layer(from_fn_with_state(app.clone(), safe_headers))
        .layer(CompressionLayer::new().gzip(true))
}

/// Answers for a request that takes too long. What it writes goes on, as where the connection is lost
/// ([`auth::guard`](crate::auth::guard)).
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

/// Answers for a request that panicked, and counts it among what panics in this process.
#[derive(Clone)]
struct Panicked(Supervisor);

impl ResponseForPanic for Panicked {
    type ResponseBody = Body;

    fn response_for_panic(&mut self, panic: Box<dyn std::any::Any + Send>) -> Response {
        self.0.note_panic("request", &*panic);
        Problem::internal().into_response()
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt;
    use windlass_core::{JobService, MemoryStore, NewApiKey, Rights, SecurityContext, TenantId};

    use super::*;
    use crate::{Config, LocalKey};

    /// The longest that anything here is waited for.
    const SOON: Duration = Duration::from_secs(10);

    /// Routes with one that changes something: it begins, waits until it may go on, and ends as it is told to.
    struct Acts {
        app: App,
        routes: Router,
        begun: Arc<Semaphore>,
        go_on: CancellationToken,
    }

    impl Acts {
        async fn start(connections: usize, end: fn() -> StatusCode) -> Acts {
            let service = JobService::builder(Arc::new(MemoryStore::new())).start().await.expect("starts");
            let mut config = Config::listen(([127, 0, 0, 1], 0).into());
            config.limits.connections = connections;
            config.local_key = Some(LocalKey::generate("tester"));
            let app = App::new(service, config).expect("a good configuration");
            let (begun, go_on) = (Arc::new(Semaphore::new(0)), CancellationToken::new());
            let (begins, goes_on) = (begun.clone(), go_on.clone());
            let act = async move || {
                begins.add_permits(1);
                goes_on.cancelled().await;
                end()
            };
            let routes = Router::new().route("/act", guarded(&app, Need::OPERATE, post(act)));
            Acts { routes: finish(&app, routes.with_state(app.clone())), app, begun, go_on }
        }

        fn operator(&self) -> &str {
            self.app.config.local_key.as_ref().expect("it was configured").reveal()
        }

        async fn tenant(&self, n: u128) -> String {
            let ctx = SecurityContext::new(TenantId(uuid::Uuid::from_u128(n))).with_user("tester");
            let new = NewApiKey::new("test", Rights::ALL);
            self.app.service.create_key(&ctx, new).await.expect("a key").1
        }

        fn call(&self, key: &str) -> impl Future<Output = Response> + Send + 'static {
            let request = Request::builder().method("POST").uri("/act");
            let request = request.header(header::AUTHORIZATION, format!("Bearer {key}")).body(Body::from("{}"));
            let answer = self.routes.clone().oneshot(request.expect("a request"));
            async { answer.await.expect("an answer") }
        }

        async fn ask(&self, key: &str) -> Response {
            tokio::time::timeout(SOON, self.call(key)).await.expect("an answer in time")
        }

        /// Asks, and hangs up as soon as it has begun.
        async fn ask_and_hang_up(&self, key: &str) {
            let asked = tokio::spawn(self.call(key));
            let begun = tokio::time::timeout(SOON, self.begun.acquire()).await;
            begun.expect("it begins in time").expect("it is never closed").forget();
            asked.abort();
            assert!(asked.await.is_err(), "it has not been answered");
        }

        fn panics(&self) -> Option<u64> {
            self.app.service.loops().iter().find(|of| of.name == "request").map(|of| of.panics)
        }
    }

    /// SEC-3, S07: what callers who have gone away asked for uses up no more than there may be connections.
    #[tokio::test]
    async fn requests_that_go_on_without_their_callers_are_bounded() {
        let acts = Acts::start(3, || StatusCode::OK).await;
        for _ in 0..3 {
            acts.ask_and_hang_up(acts.operator()).await;
        }
        let refused = acts.ask(acts.operator()).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        acts.go_on.cancel();
        let served = async {
            while acts.ask(acts.operator()).await.status() != StatusCode::OK {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, served).await.expect("the places come back");
        acts.app.service.shutdown().await;
    }

    /// SEC-3, S07: a tenant cannot take all places for requests, and some are kept for who operates all tenants.
    #[tokio::test]
    async fn requests_of_a_tenant_leave_room_for_others() {
        let acts = Acts::start(10, || StatusCode::OK).await;
        let mut places = Vec::new();
        for n in 1..=5 {
            let key = acts.tenant(n).await;
            let mut taken = 0;
            while places.iter().sum::<usize>() + taken < 10 {
                tokio::select! {
                    biased;
                    begun = acts.begun.acquire() => begun.expect("it is never closed").forget(),
                    answer = acts.call(&key) => {
                        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
                        break;
                    }
                }
                taken += 1;
            }
            places.push(taken);
        }
        assert_eq!(places, [4, 2, 1, 1, 1], "each has half of what the others leave of nine");
        acts.ask_and_hang_up(acts.operator()).await;
        assert_eq!(acts.ask(acts.operator()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        acts.go_on.cancel();
        acts.app.service.shutdown().await;
    }

    /// API-8: a panic is counted once, whether or not somebody is left to be answered.
    #[tokio::test]
    async fn a_panic_is_counted_although_its_caller_has_gone() {
        let acts = Acts::start(3, || panic!("as the test wants")).await;
        acts.ask_and_hang_up(acts.operator()).await;
        acts.go_on.cancel();
        let counted = async {
            while acts.panics().is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, counted).await.expect("it is counted");
        assert_eq!(acts.panics(), Some(1));
        assert_eq!(acts.ask(acts.operator()).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(acts.panics(), Some(2));
        acts.app.service.shutdown().await;
    }

    /// API-8: a panic in a request is answered for, and seen in health and metrics.
    #[tokio::test]
    async fn a_request_that_panics_is_answered_for_and_counted() {
        let service = JobService::builder(Arc::new(MemoryStore::new())).start().await.expect("starts");
        let app = App::new(service.clone(), Config::listen(([127, 0, 0, 1], 0).into())).expect("a good configuration");
        let panics = async || -> StatusCode { panic!("as the test wants") };
        let mut routes = finish(&app, Router::new().route("/boom", get(panics)));
        for n in 1..=2 {
            let request = Request::builder().uri("/boom").body(Body::empty()).expect("a request");
            let answer = tower::Service::call(&mut routes, request).await.expect("an answer");
            assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
            let loops = service.loops();
            let counted = loops.iter().find(|of| of.name == "request").expect("it is counted");
            assert_eq!((counted.panics, counted.message.as_deref()), (n, Some("as the test wants")));
            assert!(!counted.down, "other requests are served");
        }
        service.shutdown().await;
    }
}
