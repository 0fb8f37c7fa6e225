//! Calls of services on loopback (HND-2).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde_json::json;
use windlass_core::store::AuditFilter;
use windlass_core::{Error, HandlerOptions, JobError, JobService, MemoryStore, RetryPolicy, SecurityContext, TenantId};
use windlass_handlers::egress::Egress;
use windlass_handlers::http::{self, HttpCall, HttpInput, HttpReply};
use windlass_handlers::{Handlers, Secret};

const SOON: Duration = Duration::from_secs(30);

/// What a service was sent.
#[derive(Clone, Debug)]
struct Seen {
    headers: HeaderMap,
    body: String,
}

type Log = Arc<Mutex<Vec<Seen>>>;

async fn answer(State(log): State<Log>, uri: Uri, headers: HeaderMap, body: String) -> Response {
    let number = {
        let mut log = log.lock();
        log.push(Seen { headers: headers.clone(), body: body.clone() });
        log.len()
    };
    match uri.path() {
        "/echo" => format!("{body} {:?}", headers.get("authorization")).into_response(),
        "/long" => "x".repeat(100_000).into_response(),
        "/busy" if number < 3 => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "0")]).into_response(),
        "/bad" => (StatusCode::UNPROCESSABLE_ENTITY, format!("no {:?}", headers.get("authorization"))).into_response(),
        "/moved" => (StatusCode::FOUND, [("location", "http://127.0.0.1:1/")]).into_response(),
        "/slow" => {
            tokio::time::sleep(SOON * 4).await;
            StatusCode::OK.into_response()
        }
        _ => StatusCode::NO_CONTENT.into_response(),
    }
}

struct Rig {
    jobs: JobService,
    url: String,
    seen: Log,
    _place: tempfile::TempDir,
}

impl Rig {
    async fn start() -> Rig {
        let seen = Log::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let app = Router::new().fallback(answer).with_state(seen.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let place = tempfile::tempdir().expect("a directory");
        std::fs::write(place.path().join("key"), "s3cr3t-canary\n").expect("writes");
        let key = Secret::file(place.path().join("key"));
        let retry = HandlerOptions::new().retry(RetryPolicy::fixed(3, Duration::from_millis(10)));
        let handler = HttpCall::new().egress(Egress::anywhere()).options(retry).keep_bytes(1000);
        let handler =
            handler.secret("here", key.clone().for_host("127.0.0.1")).secret("there", key.for_host("a.example"));
        let jobs = JobService::builder(Arc::new(MemoryStore::new())).http(handler).start().await.expect("starts");
        Rig { jobs, url, seen, _place: place }
    }

    async fn call(&self, input: HttpInput) -> Result<HttpReply, JobError> {
        match http::HANDLER.submit(&self.jobs, input).await.expect("accepted").wait(SOON).await {
            Ok(reply) => Ok(reply),
            Err(Error::JobFailed { error, .. }) => Err(*error),
            Err(other) => panic!("the job did not end: {other}"),
        }
    }

    fn post(&self, path: &str) -> HttpInput {
        HttpInput::post(format!("{}{path}", self.url), json!({ "order": 7 }))
    }
}

/// HND-2: method, headers, body and signature arrive; the response is kept up to a bound.
#[tokio::test]
async fn a_request_arrives_as_it_was_described() {
    let rig = Rig::start().await;
    let reply = rig.call(rig.post("/").header("x-shop", "7").sign_with("here")).await.expect("succeeds");
    assert_eq!((reply.status, reply.body.as_str(), reply.cut), (204, "", false));
    let seen = rig.seen.lock()[0].clone();
    assert_eq!(seen.body, r#"{"order":7}"#);
    for header in ["x-shop", "idempotency-key", "webhook-id", "webhook-timestamp", "webhook-signature"] {
        assert!(seen.headers.contains_key(header), "{header}");
    }
    assert_eq!(seen.headers["content-type"], "application/json");
    let reply = rig.call(HttpInput::new("GET", format!("{}/long", rig.url))).await.expect("succeeds");
    assert_eq!((reply.body.len(), reply.cut), (1000, true));
    rig.jobs.shutdown().await;
}

/// HND-2: retried by status class, with one key for all attempts.
#[tokio::test]
async fn a_busy_service_is_called_again_and_a_refusal_is_not() {
    let rig = Rig::start().await;
    assert_eq!(rig.call(rig.post("/busy")).await.expect("the third time").status, 204);
    let keys: Vec<_> = rig.seen.lock().iter().map(|seen| seen.headers["idempotency-key"].clone()).collect();
    assert!(keys.len() == 3 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    let error = rig.call(rig.post("/bad")).await.expect_err("refused");
    assert_eq!((error.code.as_str(), error.is_retryable()), ("http_422", false));
    assert_eq!(rig.seen.lock().len(), 4);
    let error = rig.call(rig.post("/moved")).await.expect_err("not followed");
    assert_eq!((error.code.as_str(), error.is_retryable()), ("http_302", false));
    let accepted = HttpInput { accept: vec![422], ..rig.post("/bad") };
    assert_eq!(rig.call(accepted).await.expect("accepted").status, 422);
    rig.jobs.shutdown().await;
}

/// HND-2: a secret is sent and never seen: not in the input, the output, the error or the audit log, also if the service
/// sends it back; and it goes to no other host and for no other tenant.
#[tokio::test]
async fn secrets_stay_secret() {
    let rig = Rig::start().await;
    let with_key = |path: &str, name: &str| rig.post(path).secret_header("authorization", "Bearer ", name);
    let reply = rig.call(with_key("/echo", "here")).await.expect("succeeds");
    assert_eq!(rig.seen.lock()[0].headers["authorization"], "Bearer s3cr3t-canary");
    assert!(reply.body.contains("[secret]") && !reply.body.contains("canary"), "{reply:?}");
    let error = rig.call(with_key("/bad", "here")).await.expect_err("refused");
    assert!(!format!("{error:?}").contains("canary"), "{error:?}");
    let error = rig.call(with_key("/echo", "there")).await.expect_err("another host");
    assert_eq!(error.code, "secret_denied");
    let acme = TenantId::parse("0199a1a0-0000-7000-8000-000000000001").expect("a UUID");
    let other = http::HANDLER.submit(&rig.jobs.of(acme), with_key("/echo", "here")).await.expect("accepted");
    let error = other.wait(SOON).await.expect_err("another tenant").to_string();
    assert!(error.contains("secret_denied"), "{error}");
    let log = rig.jobs.audit_log(&SecurityContext::new(TenantId::ROOT), &AuditFilter::default()).await.expect("reads");
    assert!(!format!("{log:?}").contains("canary"));
    rig.jobs.shutdown().await;
}

/// HND-2: a service that does not respond costs its timeout, and an inner address is not called.
#[tokio::test]
async fn a_call_is_bounded_and_stays_outside() {
    let rig = Rig::start().await;
    let begun = Instant::now();
    let slow = HttpInput { timeout_ms: Some(100), ..rig.post("/slow") };
    assert_eq!(rig.call(slow).await.expect_err("too slow").code, "unreachable");
    assert!(begun.elapsed() < SOON);
    let handler = HttpCall::new();
    let jobs = JobService::builder(Arc::new(MemoryStore::new())).http(handler).start().await.expect("starts");
    for url in [rig.url.as_str(), "https://127.0.0.1/", "https://169.254.169.254/latest/meta-data"] {
        let refused = http::HANDLER.submit(&jobs, HttpInput::new("GET", url)).await;
        assert!(matches!(refused, Err(Error::InvalidInput(ref error)) if error.field == "url"), "{url}");
    }
    jobs.shutdown().await;
    rig.jobs.shutdown().await;
}
