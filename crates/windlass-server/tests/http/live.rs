//! Server-sent events: following a job, coming back, and how streams end (OPS-2).

use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::rig::{Answer, Locked, Rig, SOON, Where};

/// One event of a stream.
#[derive(Debug)]
struct Sent {
    name: String,
    id: Option<u64>,
    data: Value,
}

/// Reads events as they come.
struct Stream {
    response: Response,
    text: String,
}

impl Stream {
    async fn open(rig: &Rig, path: &str, after: Option<u64>) -> Stream {
        let mut request = rig.ask(Method::GET, path);
        if let Some(after) = after {
            request = request.header("last-event-id", after.to_string());
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Stream { response, text: String::new() }
    }

    /// The next event, or nothing when the stream has ended cleanly.
    async fn next(&mut self) -> Option<Sent> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned))
                };
                let (name, id, data) = (field("event"), field("id"), field("data"));
                self.text = rest.to_owned();
                let (Some(name), Some(data)) = (name, data) else { continue };
                let data = serde_json::from_str(&data).expect("JSON");
                return Some(Sent { name, id: id.and_then(|id| id.parse().ok()), data });
            }
            let chunk = tokio::time::timeout(SOON, self.response.chunk()).await.expect("something comes in time");
            match chunk.expect("the stream does not break") {
                Some(chunk) => self.text.push_str(std::str::from_utf8(&chunk).expect("text")),
                None => return None,
            }
        }
    }
}

/// OPS-2: status and progress in order, to the end; coming back goes on after the last one seen.
pub(crate) async fn a_job_is_followed_to_its_end(rig: &Rig) {
    let id = rig.submit("slow", json!({}), json!({})).await;
    let mut stream = Stream::open(rig, &format!("/jobs/{id}/events"), None).await;
    let mut seen = 0;
    while seen < 2 {
        let event = stream.next().await.expect("it has not ended");
        if event.data["progress"]["sequence"].is_u64() || event.name == "progress" {
            let sequence = event.id.expect("an id");
            assert!(sequence > 0);
            seen += 1;
        }
    }
    drop(stream);
    let mut stream = Stream::open(rig, &format!("/jobs/{id}/events"), Some(1_000_000_002)).await;
    let (mut last, mut names) = (1_000_000_002, Vec::new());
    let mut end = None;
    while let Some(event) = stream.next().await {
        if event.name == "progress" {
            let sequence = event.data["sequence"].as_u64().expect("a sequence");
            assert!(sequence > last, "{sequence} after {last}");
            assert_eq!(event.id, Some(sequence));
            last = sequence;
        }
        if event.name == "status" {
            end = Some(event.data["status"].clone());
        }
        names.push(event.name);
    }
    assert_eq!(end, Some(json!("succeeded")), "{names:?}");
    assert_eq!(names.last().map(String::as_str), Some("end"), "the stream ends by itself");
    let bad = rig.ask(Method::GET, &format!("/jobs/{id}/events")).header("last-event-id", "x");
    Answer::of(bad).await.is_problem(422, "invalid_input");
}

/// OPS-8: every change of status on any node, by one stream that goes on where it was left.
pub(crate) async fn status_events_are_followed_and_resumed(rig: &Rig) {
    let mut stream = Stream::open(rig, "/events?status=succeeded&handler_id=echo", None).await;
    let first = rig.submit("echo", json!(1), json!({})).await;
    let foreign = rig.ask_as(&rig.other, Method::POST, "/jobs").json(&json!({ "handler": "echo", "input": 1 }));
    assert_eq!(Answer::of(foreign).await.status, 201);
    let event = stream.next().await.expect("it goes on");
    assert_eq!((event.name.as_str(), &event.data["job"]), ("job", &json!(first)), "{event:?}");
    assert_eq!((&event.data["status"], &event.data["handler"]), (&json!("succeeded"), &json!("echo")));
    let seen = event.id.expect("an id");
    drop(stream);
    let second = rig.submit("echo", json!(2), json!({})).await;
    rig.wait_for(&second, "succeeded").await;
    let mut stream = Stream::open(rig, "/events?status=succeeded&handler_id=echo", Some(seen)).await;
    let event = stream.next().await.expect("it goes on");
    assert_eq!(event.data["job"], second.as_str(), "what happened in between is told, and nothing twice or of others");
}

/// A server that ends closes its streams in good order, and at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_ends_its_streams_cleanly() {
    let mut rig = Rig::start(Where::Memory).await;
    let id = rig.submit("echo", json!(1), json!({ "delay_ms": 3_600_000 })).await;
    let mut stream = Stream::open(&rig, &format!("/jobs/{id}/events"), None).await;
    assert_eq!(stream.next().await.expect("the status now").data["status"], "scheduled");
    let started = std::time::Instant::now();
    rig.end().await;
    assert!(started.elapsed() < Duration::from_secs(5), "nothing is waited for");
    let end = stream.next().await;
    assert!(end.is_none_or(|event| event.name == "end"), "the stream is over, not broken");
}

/// S07: streams are bounded, and a place comes back when a stream goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_beyond_the_bound_are_refused_until_one_ends() {
    let rig = Rig::with(Where::Memory, |config| config.limits.streams_per_principal = 2).await;
    let id = rig.submit("echo", json!(1), json!({ "delay_ms": 3_600_000 })).await;
    let path = format!("/jobs/{id}/events");
    let first = Stream::open(&rig, &path, None).await;
    let _second = Stream::open(&rig, &path, None).await;
    rig.get(&path).await.is_problem(429, "backpressure");
    drop(first);
    let free = async {
        while rig.ask(Method::GET, &path).send().await.expect("an answer").status() != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, free).await.expect("the place comes back");
}

/// API-3: a stream ends within five seconds of its key's being revoked, its token's end, and its session's logout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_what_its_caller_has_shown() {
    use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
    let secret = [7_u8; 32];
    let keys = windlass_server::JwtKeys::Secret(secret.to_vec());
    let issuer = windlass_server::JwtConfig::new("https://id.example", "windlass", &["HS256"], keys);
    let rig = Rig::with(Where::Memory, |config| config.jwt = vec![issuer]).await;
    let made = rig.post("/keys", json!({ "name": "watcher", "rights": ["read"] })).await;
    let (id, key) = (made.body["key"]["id"].as_str().expect("an id"), made.body["secret"].as_str().expect("a secret"));
    let login = rig.client.post(format!("{}/login", rig.url)).header("sec-fetch-site", "same-origin");
    let login = login.header("content-type", "application/x-www-form-urlencoded").body(format!("key={}", rig.key));
    let login = login.send().await.expect("an answer");
    let session = login.headers()["set-cookie"].to_str().expect("text").split(';').next().expect("a cookie").to_owned();
    // Tokens are good for 30 seconds longer than they say, because clocks differ.
    let claims = json!({
        "iss": "https://id.example", "aud": "windlass", "sub": "ann", "exp": get_current_timestamp() - 27,
        "tenant_id": crate::rig::TENANT.to_string(), "scope": "read",
    });
    let token = encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(&secret)).expect("a token");
    let events = || rig.client.get(format!("{}/api/v1/events", rig.url));
    let open = async |request: reqwest::RequestBuilder| {
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        Stream { response, text: String::new() }
    };
    let mut by_token = open(events().bearer_auth(&token)).await;
    let mut by_key = open(events().bearer_auth(key)).await;
    let mut by_session = open(events().header("cookie", &session)).await;
    let mut good = open(events().bearer_auth(&rig.key)).await;
    assert_eq!(rig.delete(&format!("/keys/{id}")).await.status, 204);
    let logout = rig.client.post(format!("{}/logout", rig.url)).header("cookie", &session);
    assert_eq!(logout.header("sec-fetch-site", "same-origin").send().await.expect("an answer").status(), 303);
    let ends = futures_util::future::join3(by_token.next(), by_key.next(), by_session.next());
    let (by_token, by_key, by_session) = tokio::time::timeout(Duration::from_secs(5), ends).await.expect("they end");
    assert!(by_token.is_none() && by_key.is_none() && by_session.is_none());
    let id = rig.submit("echo", json!(1), json!({})).await;
    assert_eq!(good.next().await.expect("it goes on").data["job"], id.as_str());
}

/// API-3: a stream ends when its key expires, also while the store does not say what has become of the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_at_its_expiry_while_the_store_hangs() {
    use windlass::{NewApiKey, Right, SecurityContext};
    let server = crate::rig::postgres();
    let rig = Rig::start(Where::Postgres(&server, "expires")).await;
    let ctx = SecurityContext::new(crate::rig::TENANT).with_user("t");
    let expires_at = rig.service.now() + Duration::from_secs(5);
    let new = NewApiKey::new("short", Rig::rights(&[Right::Read])).expires_at(expires_at);
    let (_, key) = rig.service.create_key(&ctx, new).await.expect("a key");
    let response = rig.ask_as(&key, Method::GET, "/events").send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    let mut stream = Stream { response, text: String::new() };
    let database = server.url("expires");
    let _lock = Locked::for_all(&server, &database, "windlass.api_key").await;
    assert!(rig.service.now() < expires_at, "the store hangs before the key expires");
    let end = tokio::time::timeout(Duration::from_secs(10), stream.next()).await.expect("it ends in time");
    assert!(end.is_none(), "{end:?}");
    assert!(rig.service.now() >= expires_at, "and not before its time");
}
