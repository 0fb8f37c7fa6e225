//! Who is let in and what every answer looks like: credentials, sessions, limits, headers (API-3, S02 to S05, S07, S11,
//! S16).

use base64::Engine;
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use windlass::{MemoryStore, NewApiKey, Right, SecurityContext};
use windlass_server::{Auth, Config, Server};

use crate::rig::{Answer, Locked, Rig, SOON, TENANT, Where};

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

/// S04: guesses are answered with 429 after a few, and a good credential of the same address is let in all the same: by
/// header, by form and by link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_guesses_credentials_is_slowed_down_and_locks_nobody_out() {
    let rig = Rig::with(Where::Memory, |config| {
        config.auth = Auth::Local;
        config.limits.failures = 3;
        config.limits.failure_every = std::time::Duration::from_secs(3_600);
    })
    .await;
    for n in 0..3 {
        Answer::of(rig.ask_as(&format!("wl_live_guess{n}"), Method::GET, "/me")).await.is_problem(401, "unauthorized");
    }
    Answer::of(rig.ask_as("wl_live_guess", Method::GET, "/me")).await.is_problem(429, "rate_limited");
    assert_eq!(rig.get("/me").await.status, 200, "a good key");
    let login = |key: &str| {
        let form = rig.client.post(format!("{}/login", rig.url)).form_key(key);
        Answer::of(form.header("sec-fetch-site", "same-origin"))
    };
    login("wl_live_guess").await.is_problem(429, "rate_limited");
    assert_eq!(login(&rig.key).await.status, 303, "a good key in the form");
    Answer::of(rig.client.get(format!("{}/login/guess", rig.url))).await.is_problem(429, "rate_limited");
    let link = rig.login_link.clone().expect("a link");
    assert_eq!(Answer::of(rig.client.get(&link)).await.status, 303, "a good link");
}

/// API-3: who logs out on one server is logged out on all.
pub(crate) async fn a_logout_holds_on_every_server(rig: &Rig) {
    let second = rig.beside().await;
    let form = rig.client.post(format!("{}/login", rig.url)).form_key(&rig.key);
    let session = cookie(&Answer::of(form.header("sec-fetch-site", "same-origin")).await);
    let me = |rig: &Rig| Answer::of(rig.client.get(format!("{}/api/v1/me", rig.url)).header("cookie", &session));
    assert_eq!((me(rig).await.status, me(&second).await.status), (200, 200));
    let logout = rig.client.post(format!("{}/logout", rig.url)).header("cookie", &session);
    assert_eq!(Answer::of(logout.header("sec-fetch-site", "same-origin")).await.status, 303);
    me(rig).await.is_problem(401, "unauthorized");
    let gone = async {
        while me(&second).await.status != 401 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(5), gone).await.expect("it ends within 5 seconds");
    me(&rig.beside().await).await.is_problem(401, "unauthorized");
}

/// SEC-3: a client that takes nothing of what is sent to it loses its connection. The server has one place for a
/// connection, so another is served only once the first is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_never_reads_is_cut_off() {
    use tokio::io::AsyncWriteExt;
    let rig = Rig::with(Where::Memory, |config| {
        config.limits.connections = 1;
        config.limits.write_timeout = std::time::Duration::from_millis(500);
        config.limits.header_timeout = std::time::Duration::from_secs(600);
    })
    .await;
    let host = rig.url.trim_start_matches("http://").to_owned();
    let mut connection = tokio::net::TcpStream::connect(&host).await.expect("it listens");
    let request = format!("GET /api/v1/openapi.json HTTP/1.1\r\nHost: {host}\r\n\r\n");
    // Far more than the buffers of both ends hold.
    connection.write_all(request.repeat(400).as_bytes()).await.expect("it reads");
    let other = rig.client.get(format!("{}/healthz", rig.url)).send().await.expect("it is served in time");
    assert_eq!(other.status(), 200);
    drop(connection);
}

/// SEC-3: the server asks after clients that are silent. One that has vanished would otherwise hold its connection, and the
/// place of a stream, until the system gives it up.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_clients_are_asked_after() {
    let rig = Rig::start(Where::Memory).await;
    let host = rig.url.trim_start_matches("http://").to_owned();
    let connection = tokio::net::TcpStream::connect(&host).await.expect("it listens");
    let port = |address: std::net::SocketAddr| format!(":{:04X}", address.port());
    let (server, client) =
        (port(connection.peer_addr().expect("an address")), port(connection.local_addr().expect("an address")));
    // The server's end, as the system lists it: addresses, state, queues, and which timer runs for how long.
    let timer = || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
        let rows = table.lines().map(|row| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let of_server = |row: &Vec<String>| row.len() > 5 && row[1].ends_with(&server) && row[2].ends_with(&client);
        let row = rows.into_iter().find(of_server)?;
        let (kind, left) = row[5].split_once(':').expect("a timer");
        Some((kind.to_owned(), u64::from_str_radix(left, 16).expect("a number")))
    };
    const KEEPALIVE: &str = "02";
    let asked = async {
        loop {
            match timer() {
                Some((kind, hundredths)) if kind == KEEPALIVE => return hundredths,
                _ => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        }
    };
    let hundredths = tokio::time::timeout(SOON, asked).await.expect("a keepalive timer runs");
    assert!(hundredths <= 30 * 100, "{hundredths}");
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
    let page = rig.client.get(&link).header("accept", "text/html").send().await.expect("answers");
    assert_eq!(page.status(), 404);
    let page = page.text().await.expect("a page");
    assert!(page.contains("windlass login") && page.contains("API key"), "it says how to get in: {page}");
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

/// API-3: a login link is used up by a login and by nothing else: not by one that the store was too slow for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_link_outlives_a_login_that_came_to_nothing() {
    let server = crate::rig::postgres();
    let rig = Rig::with(Where::Postgres(&server, "login_link"), |config| {
        config.auth = Auth::Local;
        config.limits.request_timeout = std::time::Duration::from_secs(1);
    })
    .await;
    let link = rig.login_link.clone().expect("a link");
    // The secret that signs sessions cannot be stored.
    let database = server.url("login_link");
    let mut lock = Locked::for_writers(&server, &database, "windlass.setting").await;
    Answer::of(rig.client.get(&link)).await.is_problem(504, "timeout");
    lock.release().await;
    let login = async {
        loop {
            let answer = Answer::of(rig.client.get(&link)).await;
            if answer.status != 504 {
                return answer;
            }
        }
    };
    let login = tokio::time::timeout(SOON, login).await.expect("the store works again");
    assert_eq!(login.status, 303, "{login:?}");
    let me = Answer::of(rig.client.get(format!("{}/api/v1/me", rig.url)).header("cookie", cookie(&login))).await;
    assert_eq!(me.body["method"], "local", "{me:?}");
    Answer::of(rig.client.get(&link)).await.is_problem(404, "not_found");
}

/// API-3: a login leads to the page that was asked for before it, by the link and by the form, and never to another host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_leads_to_the_page_that_was_asked_for() {
    let rig = Rig::with(Where::Memory, local).await;
    let page = "/jobs?q=tag%3Aa";
    let refused = Answer::of(rig.client.get(format!("{}{page}", rig.url))).await;
    assert_eq!((refused.status, refused.header("location")), (303, "/login"), "{refused:?}");
    let kept = cookie(&refused);
    assert!(kept.starts_with("windlass_next=") && refused.header("set-cookie").contains("HttpOnly; SameSite=Strict"));
    let link = rig.login_link.clone().expect("a link");
    let entered = Answer::of(rig.client.get(&link).header("cookie", &kept)).await;
    assert_eq!((entered.status, entered.header("location")), (303, page), "{entered:?}");
    let set: Vec<_> = entered.headers.get_all("set-cookie").iter().filter_map(|value| value.to_str().ok()).collect();
    assert!(set[0].starts_with("windlass_next=;") && set[0].contains("Max-Age=0"), "it leads there once: {set:?}");
    assert!(set[1].starts_with("windlass_session="), "{set:?}");

    let key = rig.post("/keys", json!({ "name": "browser", "rights": ["read"] })).await;
    let secret = key.body["secret"].as_str().expect("a secret");
    let login = async |next: &str| {
        let form = rig.client.post(format!("{}/login", rig.url)).form_key(secret).header("origin", rig.url.as_str());
        let next = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(next);
        let answer = Answer::of(form.header("cookie", format!("windlass_next={next}"))).await;
        assert_eq!(answer.status, 303, "{answer:?}");
        answer.header("location").to_owned()
    };
    assert_eq!(login(page).await, page);
    for elsewhere in ["https://evil.example/", "//evil.example", "/\\evil.example", "jobs", "", "/a\r\nx: y", "/jobs/ä"]
    {
        assert_eq!(login(elsewhere).await, "/", "{elsewhere:?}");
    }

    // Led here by another site, a browser keeps a strict cookie back: the page asks once more, from our own address.
    let led = rig.client.get(format!("{}{page}", rig.url)).header("sec-fetch-site", "cross-site");
    let again = Answer::of(led.header("sec-fetch-dest", "document")).await;
    assert_eq!(again.status, 200);
    let text = again.body.as_str().expect("a page");
    assert!(text.contains("content=\"0; url=/jobs?q=tag%3Aa\"") && !text.contains("<script"), "{text}");
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
    assert!(text.contains("jobs_submitted_total{handler=\"echo\",priority=\"normal\"} 1\n"), "{text}");
    assert!(!text.contains(&TENANT.to_string()), "no metric names a tenant");
    let open = Rig::with(Where::Memory, |config| config.open_metrics = true).await;
    let answer = Answer::of(open.client.get(format!("{}/metrics", open.url))).await;
    assert_eq!(answer.status, 200, "open on loopback where it is configured so");
    let health = Answer::of(rig.ask_as(&rig.operator, Method::GET, "/health")).await;
    assert!(health.body["depth"].is_object() && health.body["nodes"].is_array(), "{health:?}");
}

/// API-6: a handler that only callers name has no label of its own; one that a node has does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_named_by_what_nodes_have() {
    let rig = Rig::start(Where::Memory).await;
    // The second of each waits behind the first, which nobody runs.
    rig.submit("elsewhere", json!(1), json!({ "ordering_key": "k" })).await;
    rig.submit("elsewhere", json!(2), json!({ "ordering_key": "k" })).await;
    rig.submit("nowhere", json!(1), json!({ "ordering_key": "l" })).await;
    rig.submit("nowhere", json!(2), json!({ "ordering_key": "l" })).await;
    let id = rig.submit("echo", json!(1), json!({})).await;
    rig.wait_for(&id, "succeeded").await;
    let metrics = rig.client.get(format!("{}/metrics", rig.url)).bearer_auth(&rig.operator);
    let text = metrics.send().await.expect("an answer").text().await.expect("text");
    assert!(text.contains("jobs_submitted_total{handler=\"echo\",priority=\"normal\"} 1"), "{text}");
    assert!(text.contains("jobs_submitted_total{handler=\"(other)\",priority=\"normal\"} 4"), "{text}");
    assert!(text.contains("jobs_blocked{handler=\"(other)\",queue=\"(other)\"} 2\n"), "{text}");
    assert!(!text.contains("elsewhere") && !text.contains("nowhere"), "{text}");
}

/// API-8: a loop that panics again and again takes the process out of service, with its name, in the probe, in the metrics
/// and in the health.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_that_is_down_makes_the_server_not_ready() {
    let rig = Rig::start(Where::Memory).await;
    let get = |path: &str| rig.client.get(format!("{}{path}", rig.url));
    let task = rig.service.supervisor().spawn_here("tested", || async { panic!("as the test wants") });
    let began = std::time::Instant::now();
    let answer = loop {
        let answer = get("/readyz").send().await.expect("an answer");
        if answer.status() == 503 {
            break answer.text().await.expect("text");
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "still ready");
    };
    assert_eq!(answer, "the loop `tested` is down\n");
    let metrics = get("/metrics").bearer_auth(&rig.operator).send().await.expect("an answer");
    let text = metrics.text().await.expect("text");
    assert!(text.contains("windlass_loop_up{loop=\"tested\"} 0\n"), "{text}");
    assert!(text.contains("windlass_loop_up{loop=\"claim\"} 1\n"), "{text}");
    assert!(!text.contains("windlass_loop_panics_total{loop=\"tested\"} 0\n"), "{text}");
    task.abort();
    let began = std::time::Instant::now();
    while get("/readyz").send().await.expect("an answer").status() != 200 {
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "not ready again");
    }
    let health = Answer::of(rig.ask_as(&rig.operator, Method::GET, "/health")).await;
    assert_eq!(health.body["loops"][0]["name"], "tested", "{health:?}");
}

/// OPS-10: a worker that hangs up while its jobs are claimed holds none of them, and no attempt is spent. The claim waits for
/// a lock until the server has seen the end of the connection: there is room for one, and another is served after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_hangs_up_holds_no_job() {
    use tokio::io::AsyncWriteExt;
    let server = crate::rig::postgres();
    let rig = Rig::with(Where::Postgres(&server, "hangs_up"), |config| config.limits.connections = 1).await;
    let ctx = SecurityContext::new(TENANT).with_user("t");
    let options = windlass::SubmitOptions::new().queue("outside");
    let id = rig.service.submit_named(&ctx, "elsewhere", &1, options).await.expect("accepted").id;

    let database = server.url("hangs_up");
    let mut lock = Locked::for_writers(&server, &database, "windlass.lease").await;
    let host = rig.url.trim_start_matches("http://").to_owned();
    let mut worker = tokio::net::TcpStream::connect(&host).await.expect("it listens");
    let body = r#"{"queues":["outside"]}"#;
    let head = format!("POST /api/v1/checkout HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {}\r\n", rig.key);
    let request = format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    worker.write_all(request.as_bytes()).await.expect("it reads");
    lock.until_awaited().await;
    drop(worker);
    let alone = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(crate::rig::SOON).build();
    let other = alone.expect("a client").get(format!("{}/healthz", rig.url)).send().await.expect("it is served");
    assert_eq!(other.status(), 200);
    lock.release().await;

    let taken = async {
        loop {
            let taken = rig.service.checkout(&ctx, &["outside"], 1).await.expect("claims");
            if let Some(job) = taken.into_iter().next() {
                return job;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let job = tokio::time::timeout(crate::rig::SOON, taken).await.expect("the job is free again");
    assert_eq!((job.context().job_id(), job.context().attempt()), (id, 1), "no attempt was spent");
    rig.service.mark_success(&job, &()).await.expect("it is its job");
}
