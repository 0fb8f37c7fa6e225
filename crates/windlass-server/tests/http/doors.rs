//! Who is let in and what every answer looks like: credentials, sessions, limits, headers (API-3, S02 to S05, S07, S11,
//! S16).

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use windlass::{MemoryStore, NewApiKey, Right, SecurityContext};
use windlass_server::{Auth, Config, Server};

use crate::rig::{Answer, Rig, TENANT, Where};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_let_in_without_a_good_credential() {
    let rig = Rig::start(Where::Memory).await;
    let url = format!("{}/api/v1/me", rig.url);
    let mut changed = rig.key.clone();
    let last = changed.pop().expect("a key has letters");
    changed.push(if last == 'a' { 'b' } else { 'a' });
    let bad: Vec<RequestBuilder> = vec![
        rig.client.get(&url),
        rig.client.get(&url).bearer_auth(""),
        rig.client.get(&url).bearer_auth("wl_live_x"),
        rig.client.get(&url).bearer_auth(&changed),
        rig.client.get(&url).bearer_auth(rig.key.to_uppercase()),
        rig.client.get(&url).bearer_auth("x".repeat(8_193)),
        rig.client.get(&url).basic_auth("user", Some(&rig.key)),
        rig.client.get(&url).header("authorization", rig.key.as_str()),
        rig.client.get(format!("{url}?access_token={}", rig.key)),
        rig.client.get(format!("{url}?key={}", rig.key)),
        rig.client.get(&url).header("cookie", "windlass_session=abc.def"),
    ];
    for request in bad {
        Answer::of(request).await.is_problem(401, "unauthorized");
    }
    let good = Answer::of(rig.client.get(&url).bearer_auth(&rig.key)).await;
    assert_eq!((good.status, &good.body["method"]), (200, &json!("key")));
    let ctx = SecurityContext::new(TENANT).with_user("t");
    let soon = rig.service.now() + std::time::Duration::from_millis(300);
    let new = NewApiKey::new("short", Rig::rights(&[Right::Read])).expires_at(soon);
    let (_, short) = rig.service.create_key(&ctx, new).await.expect("a key");
    let expired = async {
        while Answer::of(rig.ask_as(&short, Method::GET, "/me")).await.status != 401 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(5), expired).await.expect("a key expires");
}

/// S04.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_guesses_credentials_is_slowed_down() {
    let rig = Rig::with(Where::Memory, |config| {
        config.limits.failures = 3;
        config.limits.failure_every = std::time::Duration::from_secs(3_600);
    })
    .await;
    assert_eq!(rig.get("/me").await.status, 200);
    for _ in 0..3 {
        Answer::of(rig.ask_as("wl_live_guess", Method::GET, "/me")).await.is_problem(401, "unauthorized");
    }
    Answer::of(rig.ask_as("wl_live_guess", Method::GET, "/me")).await.is_problem(429, "rate_limited");
    rig.get("/me").await.is_problem(429, "rate_limited");
}

/// S05.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_required_credentials_stays_on_loopback() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let service = windlass::JobService::builder(store).start().await.expect("a service");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let mut config = Config::listen(address.parse().expect("an address"));
        config.auth = Auth::Local;
        let refused = Server::bind(service.clone(), config).await.err().expect("refused");
        assert!(matches!(refused, windlass_server::Error::NotLoopback(_)), "{refused}");
    }
    service.shutdown().await;
}

/// S20: who sends a head or a body a byte at a time is cut off, and holds nobody else up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_too_slowly_is_cut_off() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let rig = Rig::with(Where::Memory, |config| {
        config.limits.header_timeout = std::time::Duration::from_millis(300);
        config.limits.request_timeout = std::time::Duration::from_millis(600);
    })
    .await;
    let host = rig.url.trim_start_matches("http://").to_owned();
    let head = format!("POST /api/v1/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {}\r\n", rig.key);
    let body = format!("{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{");
    for (start, says) in [(head.as_str(), ""), (body.as_str(), "HTTP/1.1 504")] {
        let mut connection = tokio::net::TcpStream::connect(&host).await.expect("it listens");
        connection.write_all(start.as_bytes()).await.expect("it reads");
        let (mut reads, mut writes) = connection.into_split();
        let drip = async {
            while writes.write_all(b" ").await.is_ok() {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            std::future::pending().await
        };
        let mut answer = String::new();
        let ended = async { reads.read_to_string(&mut answer).await };
        let cut_off = tokio::time::timeout(std::time::Duration::from_secs(10), async {
            tokio::select! { ended = ended => ended.is_ok(), () = drip => false }
        });
        cut_off.await.expect("it is cut off");
        assert!(answer.starts_with(says), "{answer}");
        assert_eq!(rig.get("/me").await.status, 200, "others are served meanwhile");
    }
    assert_eq!(rig.jobs().await, 0);
}

fn local(config: &mut Config) {
    config.auth = Auth::Local;
}

/// The cookie that an answer sets.
fn cookie(answer: &Answer) -> String {
    answer.header("set-cookie").split(';').next().expect("a cookie").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_login_link_works_once_and_its_session_only_from_our_own_pages() {
    let rig = Rig::with(Where::Memory, local).await;
    let link = rig.login_link.clone().expect("a link");
    let first = Answer::of(rig.client.get(&link)).await;
    assert_eq!((first.status, first.header("location")), (303, "/"), "{first:?}");
    let set = first.header("set-cookie");
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(set.contains(part), "{set}");
    }
    Answer::of(rig.client.get(&link)).await.is_problem(404, "not_found");
    let session = cookie(&first);
    let me = Answer::of(rig.client.get(format!("{}/api/v1/me", rig.url)).header("cookie", &session)).await;
    assert_eq!((&me.body["method"], &me.body["all_tenants"]), (&json!("local"), &json!(true)), "{me:?}");

    let submit = || {
        let request = rig.client.post(format!("{}/api/v1/jobs", rig.url)).header("cookie", &session);
        request.json(&json!({ "handler": "echo", "input": 1 }))
    };
    Answer::of(submit()).await.is_problem(403, "cross_origin");
    Answer::of(submit().header("sec-fetch-site", "cross-site")).await.is_problem(403, "cross_origin");
    Answer::of(submit().header("origin", "https://evil.example")).await.is_problem(403, "cross_origin");
    Answer::of(submit().header("origin", "null")).await.is_problem(403, "cross_origin");
    assert_eq!(Answer::of(submit().header("sec-fetch-site", "same-origin")).await.status, 201);
    assert_eq!(Answer::of(submit().header("origin", rig.url.as_str())).await.status, 201);

    let logout = rig.client.post(format!("{}/logout", rig.url)).header("cookie", &session);
    Answer::of(logout.try_clone().expect("no body")).await.is_problem(403, "cross_origin");
    assert_eq!(Answer::of(logout.header("sec-fetch-site", "same-origin")).await.status, 303);
    let after = rig.client.get(format!("{}/api/v1/me", rig.url)).header("cookie", &session);
    Answer::of(after).await.is_problem(401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_by_key_has_its_rights_and_ends_with_it() {
    let rig = Rig::with(Where::Memory, |config| config.https = Some(true)).await;
    let made = rig.post("/keys", json!({ "name": "browser", "rights": ["read"] })).await;
    let (id, secret) = (&made.body["key"]["id"], made.body["secret"].as_str().expect("a secret"));
    let login = |key: &str| {
        let form = rig.client.post(format!("{}/login", rig.url)).body(format!("key={key}"));
        form.header("content-type", "application/x-www-form-urlencoded").header("sec-fetch-site", "same-origin")
    };
    Answer::of(login("wl_live_wrong")).await.is_problem(401, "unauthorized");
    let foreign =
        rig.client.post(format!("{}/login", rig.url)).form_key(secret).header("origin", "http://evil.example");
    Answer::of(foreign).await.is_problem(403, "cross_origin");
    let answer = Answer::of(login(secret)).await;
    assert_eq!(answer.status, 303, "{answer:?}");
    assert!(answer.header("set-cookie").starts_with("__Host-windlass="), "{answer:?}");
    assert!(answer.header("set-cookie").contains("; Secure"));
    let session = cookie(&answer);
    let me = || Answer::of(rig.client.get(format!("{}/api/v1/me", rig.url)).header("cookie", &session));
    let answer = me().await;
    assert_eq!((&answer.body["method"], &answer.body["rights"]), (&json!("session"), &json!(["read"])), "{answer:?}");
    assert_eq!(rig.delete(&format!("/keys/{}", id.as_str().expect("an id"))).await.status, 204);
    let gone = async {
        while me().await.status != 401 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(5), gone).await.expect("it ends within 5 seconds");
}

/// A form with a key, as a browser sends it.
trait FormKey {
    fn form_key(self, key: &str) -> Self;
}

impl FormKey for RequestBuilder {
    fn form_key(self, key: &str) -> Self {
        self.header("content-type", "application/x-www-form-urlencoded").body(format!("key={key}"))
    }
}

/// S11: what browsers are told, with every kind of answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_carries_the_safe_headers() {
    let rig = Rig::start(Where::Memory).await;
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
        form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
    for path in ["/healthz", "/api/v1/me", "/api/v1/jobs", "/nowhere", "/docs", "/api/v1/openapi.json", "/metrics"] {
        let answer = Answer::of(rig.client.get(format!("{}{path}", rig.url)).bearer_auth(&rig.key)).await;
        assert_eq!(answer.header("content-security-policy"), policy, "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(answer.header("cross-origin-opener-policy"), "same-origin", "{path}");
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
        assert!(!answer.headers.contains_key("access-control-allow-origin"), "{path}");
        assert!(!answer.headers.contains_key("server"), "{path}");
    }
}

/// S07: bodies and heads at their bounds, media types, methods, unknown routes: a problem for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_or_of_the_wrong_kind_is_a_problem() {
    let rig = Rig::start(Where::Memory).await;
    let json = |body: String| rig.ask(Method::POST, "/jobs").header("content-type", "application/json").body(body);
    let padded = |bytes: usize| format!("{}{}", " ".repeat(bytes - 2), "{}");
    Answer::of(json(padded(8 * 1024 * 1024 + 1))).await.is_problem(413, "too_large");
    Answer::of(json(padded(8 * 1024 * 1024))).await.is_problem(422, "invalid_input");
    let head = |bytes: usize| Answer::of(rig.ask(Method::GET, "/me").header("x-filler", "x".repeat(bytes)));
    head(17 * 1024).await.is_problem(431, "too_large");
    assert_eq!(head(15 * 1024).await.status, 200);
    let text = rig.ask(Method::POST, "/jobs").header("content-type", "text/plain").body("{}");
    Answer::of(text).await.is_problem(415, "unsupported_media_type");
    Answer::of(rig.ask(Method::PUT, "/jobs")).await.is_problem(405, "method_not_allowed");
    Answer::of(rig.ask(Method::GET, "/nope")).await.is_problem(404, "not_found");
    Answer::of(rig.client.get(format!("{}/nope", rig.url))).await.is_problem(404, "not_found");
    let compressed = rig.client.get(format!("{}/api/v1/openapi.json", rig.url)).header("accept-encoding", "gzip");
    assert_eq!(Answer::of_head(compressed).await, "gzip");
}

impl Answer {
    /// How an answer is encoded.
    async fn of_head(request: RequestBuilder) -> String {
        let response = request.send().await.expect("an answer");
        response.headers().get("content-encoding").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_changes_nothing_whoever_asks() {
    let rig = Rig::with(Where::Memory, |config| config.read_only = true).await;
    Answer::of(rig.ask_as(&rig.operator, Method::POST, "/jobs").json(&json!({ "handler": "echo", "input": 1 })))
        .await
        .is_problem(403, "forbidden");
    rig.post("/pauses", json!({ "target": format!("tenant:{TENANT}") })).await.is_problem(403, "forbidden");
    assert_eq!(rig.get("/jobs").await.status, 200);
    assert_eq!(rig.get("/me").await.body["read_only"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_served_under_the_base_path() {
    let rig = Rig::with(Where::Memory, |config| config.base_path = "/tools/jobs".to_owned()).await;
    let get = |path: &str| Answer::of(rig.client.get(format!("{}{path}", rig.url)).bearer_auth(&rig.key));
    assert_eq!(get("/tools/jobs/healthz").await.status, 200);
    assert_eq!(get("/tools/jobs/api/v1/me").await.status, 200);
    get("/api/v1/me").await.is_problem(404, "not_found");
    let document = get("/tools/jobs/api/v1/openapi.json").await;
    assert_eq!(document.body["servers"][0]["url"], "/tools/jobs/api/v1");
}

/// API-8, API-6: liveness and readiness apart, and metrics for who may see all tenants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_are_open_and_metrics_are_not() {
    let rig = Rig::start(Where::Memory).await;
    let get = |path: &str| rig.client.get(format!("{}{path}", rig.url));
    assert_eq!(Answer::of(get("/healthz")).await.status, 200);
    assert_eq!(Answer::of(get("/readyz")).await.status, 200);
    Answer::of(get("/metrics")).await.is_problem(401, "unauthorized");
    Answer::of(get("/metrics").bearer_auth(&rig.key)).await.is_problem(403, "forbidden");
    let id = rig.submit("echo", json!(1), json!({})).await;
    rig.wait_for(&id, "succeeded").await;
    let metrics = get("/metrics").bearer_auth(&rig.operator).send().await.expect("an answer");
    assert_eq!(metrics.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = metrics.text().await.expect("text");
    let names = [
        "jobs_submitted_total",
        "jobs_completed_total",
        "jobs_failed_total",
        "jobs_retried_total",
        "job_retries_total",
        "jobs_cancelled_total",
        "jobs_dead_lettered_total",
        "jobs_dlq_size",
        "jobs_duration_seconds",
        "jobs_wait_duration_seconds",
        "jobs_processing_seconds",
        "jobs_queue_depth",
        "jobs_cleaned_total",
    ];
    for name in names {
        assert!(text.contains(&format!("# TYPE {name} ")), "{name} is missing");
    }
    assert!(text.contains("jobs_submitted_total{handler=\"echo\",priority=\"normal\"} 1\n"), "{text}");
    assert!(!text.contains(&TENANT.to_string()), "no metric names a tenant");
    let open = Rig::with(Where::Memory, |config| config.open_metrics = true).await;
    let answer = Answer::of(open.client.get(format!("{}/metrics", open.url))).await;
    assert_eq!(answer.status, 200, "open on loopback where it is configured so");
    let health = Answer::of(rig.ask_as(&rig.operator, Method::GET, "/health")).await;
    assert!(health.body["depth"].is_object() && health.body["nodes"].is_array(), "{health:?}");
}
