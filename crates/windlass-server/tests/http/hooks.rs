//! Webhooks against a real receiver on loopback, which only a test allows (OPS-8).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::mpsc;
use windlass::RetryPolicy;

use crate::rig::{Answer, Rig, SOON, Where};

/// What the receiver was sent.
struct Told {
    headers: HeaderMap,
    body: String,
}

impl Told {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// A receiver that answers with each of `answers` in turn, then with 204.
async fn receiver(answers: Vec<(StatusCode, &'static str)>) -> (String, mpsc::UnboundedReceiver<Told>) {
    let (sender, told) = mpsc::unbounded_channel();
    let answers = Arc::new(std::sync::Mutex::new(answers.into_iter()));
    let router = axum::Router::new().route(
        "/hook",
        post(async move |State(sender): State<mpsc::UnboundedSender<Told>>, headers: HeaderMap, body: Bytes| {
            let body = String::from_utf8(body.to_vec()).expect("text");
            sender.send(Told { headers, body }).expect("the test listens");
            let next = answers.lock().expect("not poisoned").next();
            let (status, retry_after) = next.unwrap_or((StatusCode::NO_CONTENT, "0"));
            (status, [("retry-after", retry_after), ("location", "http://127.0.0.1:1/")])
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
    tokio::spawn(axum::serve(listener, router.with_state(sender)).into_future());
    (url, told)
}

async fn next(told: &mut mpsc::UnboundedReceiver<Told>) -> Told {
    tokio::time::timeout(SOON, told.recv()).await.expect("it is told in time").expect("the receiver lives")
}

/// OPS-8: signed as Standard Webhooks says, told again after a failure under the same id, paused by 410.
pub(crate) async fn a_webhook_is_told_signed_and_again_until_it_answers(rig: &Rig) {
    let answers = vec![
        (StatusCode::SERVICE_UNAVAILABLE, "1"),
        (StatusCode::TEMPORARY_REDIRECT, "1"),
        (StatusCode::OK, "0"),
        (StatusCode::GONE, "0"),
    ];
    let (url, mut told) = receiver(answers).await;
    let made = rig.post("/webhooks", json!({ "url": url, "events": ["succeeded"], "handler": "echo" })).await;
    assert_eq!(made.status, 201, "{made:?}");
    let secret = made.body["secret"].as_str().expect("a secret").to_owned();
    assert!(!rig.get("/webhooks").await.body.to_string().contains(&secret), "a secret is shown once");
    let id = rig.submit("echo", json!("what it carries"), json!({})).await;
    let first = next(&mut told).await;
    let message: Value = serde_json::from_str(&first.body).expect("JSON");
    assert_eq!((&message["type"], &message["data"]["job"]), (&json!("job.succeeded"), &json!(id)), "{message}");
    assert!(!first.body.contains("what it carries"), "events carry no payload");
    for told in [&first, &next(&mut told).await, &next(&mut told).await] {
        assert_eq!(told.header("webhook-id"), first.header("webhook-id"), "the same telling has the same id");
        let signed = format!("{}.{}.{}", told.header("webhook-id"), told.header("webhook-timestamp"), told.body);
        let key = STANDARD.decode(secret.strip_prefix("whsec_").expect("a prefix")).expect("base 64");
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("a key");
        mac.update(signed.as_bytes());
        let expected = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        assert_eq!(told.header("webhook-signature"), expected);
    }
    rig.submit("echo", json!(2), json!({})).await;
    let other = next(&mut told).await;
    assert_ne!(other.header("webhook-id"), first.header("webhook-id"));
    let paused = async {
        while rig.get("/webhooks").await.body["webhooks"][0]["paused"] != true {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, paused).await.expect("a receiver that is gone is told nothing more");
    let hook = made.body["webhook"]["id"].as_str().expect("an id");
    for act in ["pause", "resume"] {
        let foreign = rig.ask_as(&rig.other, reqwest::Method::POST, &format!("/webhooks/{hook}/{act}"));
        Answer::of(foreign).await.is_problem(404, "not_found");
    }
    let foreign = rig.ask_as(&rig.other, reqwest::Method::DELETE, &format!("/webhooks/{hook}"));
    Answer::of(foreign).await.is_problem(404, "not_found");
    assert_eq!(rig.delete(&format!("/webhooks/{hook}")).await.status, 204);
}

/// OPS-8: a receiver that keeps failing is told of an event as often as the policy says. Then its webhook is switched off:
/// what still waits for it is canceled, people see it, and once it is resumed it is told of what happens from then on.
pub(crate) async fn a_webhook_that_keeps_failing_is_switched_off_until_it_is_resumed(rig: &Rig) {
    let retry = RetryPolicy::default().attempts(3).first_delay(Duration::from_millis(10));
    let rig = rig.with_patience(retry).await;
    let (url, mut told) = receiver(vec![(StatusCode::INTERNAL_SERVER_ERROR, "0"); 3]).await;
    let made = rig.post("/webhooks", json!({ "url": url, "events": ["succeeded"], "handler": "echo" })).await;
    let hook = made.body["webhook"]["id"].as_str().expect("an id").to_owned();
    rig.submit("echo", json!(1), json!({})).await;
    let ids: Vec<String> = [next(&mut told).await, next(&mut told).await, next(&mut told).await]
        .iter()
        .map(|told| told.header("webhook-id").to_owned())
        .collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "three tries of one event: {ids:?}");
    let is_paused = async |wanted: bool| {
        let seen = async {
            while rig.get("/webhooks").await.body["webhooks"][0]["paused"] != wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, seen).await.unwrap_or_else(|_| panic!("its pause did not become {wanted}"));
    };
    is_paused(true).await;
    let delivery = rig.get("/jobs?handler_id=windlass.webhook").await.body["jobs"][0].clone();
    let delivery = rig.wait_for(delivery["id"].as_str().expect("an id"), "dead_lettered").await;
    assert_eq!((&delivery["failed"], &delivery["error"]["code"]), (&json!(3), &json!("receiver_refused")));
    let says = |page: &str, what: &str| page.contains(&format!("Webhook {hook} is {what}"));
    let overview = crate::pages::page(&rig, &rig.key, "/").await;
    assert!(says(&overview, "switched off") && overview.contains("the receiver returned 500"), "{overview}");
    let foreign = crate::pages::page(&rig, &rig.other, "/").await;
    assert!(!foreign.contains(&hook), "another tenant's webhook");
    // What is replayed while it is off is canceled, and what happens is not told.
    let replayed = format!("/jobs/{}/replay", delivery["id"].as_str().expect("an id"));
    assert_eq!(rig.post(&replayed, json!({})).await.status, 200);
    let canceled = rig.wait_for(delivery["id"].as_str().expect("an id"), "canceled").await;
    assert_eq!(canceled["reason"], "discarded", "{canceled}");
    let missed = rig.submit("echo", json!(2), json!({})).await;
    rig.wait_for(&missed, "succeeded").await;

    assert_eq!(rig.post(&format!("/webhooks/{hook}/resume"), json!({})).await.status, 204);
    is_paused(false).await;
    assert!(!says(&crate::pages::page(&rig, &rig.key, "/").await, ""), "nothing is wrong any more");
    let first = rig.submit("echo", json!(3), json!({})).await;
    let message: Value = serde_json::from_str(&next(&mut told).await.body).expect("JSON");
    assert_eq!(message["data"]["job"], first, "what happened while it was off is not told: {message}");
    assert_eq!(rig.post(&format!("/webhooks/{hook}/pause"), json!({})).await.status, 204);
    is_paused(true).await;
    let overview = crate::pages::page(&rig, &rig.key, "/").await;
    assert!(says(&overview, "paused"), "{overview}");
    rig.post("/webhooks/1/resume", json!({})).await.is_problem(404, "not_found");
    let mut actions = Vec::new();
    for entry in rig.get(&format!("/audit?target={hook}")).await.body["entries"].as_array().expect("entries") {
        actions.push(entry["action"].as_str().expect("an action").trim_start_matches("WEBHOOK_").to_owned());
    }
    assert_eq!(actions, ["PAUSED", "RESUMED", "PAUSED", "SWITCHED_OFF", "ADDED"]);
}

/// OPS-8: a name that nobody knows is refused, by the API and by the page, and nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_for_a_handler_that_nobody_knows_is_refused() {
    let rig = Rig::start(Where::Memory).await;
    let refused = rig.post("/webhooks", json!({ "url": "https://example.com/", "handler": "ehco" })).await;
    refused.is_problem(404, "handler_not_found");
    let detail = refused.body["detail"].as_str().expect("it says what is wrong");
    assert!(detail.contains("`ehco`") && detail.contains("echo"), "{detail}");
    let form = rig.client.post(format!("{}/webhooks", rig.url)).bearer_auth(&rig.key);
    let form = form.header("content-type", "application/x-www-form-urlencoded");
    let form = form.body("url=https://example.com/&handler=ehco").send().await.expect("an answer");
    assert_eq!(form.status(), 404);
    assert!(form.text().await.expect("a page").contains("unknown handler `ehco`"));
    assert_eq!(rig.get("/webhooks").await.body, json!({ "webhooks": [] }));
    for known in ["echo", "elsewhere"] {
        let made = rig.post("/webhooks", json!({ "url": "https://example.com/", "handler": known })).await;
        assert_eq!(made.status, 201, "{made:?}");
    }
}

/// S10: addresses inside are refused when the webhook is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_to_an_inner_address_is_refused() {
    let rig = Rig::with(Where::Memory, |config| config.webhook_egress = Default::default()).await;
    let inner = [
        "https://127.0.0.1/",
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "https://10.0.0.1/",
        "https://0x7f.1/",
    ];
    for url in inner.into_iter().chain(["http://example.com/", "https://user@example.com/", "https://example.com:22/"])
    {
        rig.post("/webhooks", json!({ "url": url })).await.is_problem(422, "invalid_input");
    }
    assert_eq!(rig.post("/webhooks", json!({ "url": "https://example.com/hook" })).await.status, 201);
}

/// OPS-8: a webhook whose address the deliverer refuses is switched off at its first event, with one dead letter, an event
/// and an audit entry; what happens after that makes no further ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_cannot_be_told_is_switched_off() {
    let store = windlass::open("memory:").await.expect("a store");
    let rig = Rig::delivering(store, windlass_server::Egress::default()).await;
    let made = rig.post("/webhooks", json!({ "url": "http://127.0.0.1:9/", "events": ["succeeded"] })).await;
    assert_eq!(made.status, 201, "this server allows what its deliverer does not: {made:?}");
    let hook = made.body["webhook"]["id"].as_str().expect("an id").to_owned();
    let switched_off = async {
        loop {
            rig.submit("echo", json!(1), json!({})).await;
            let hooks = rig.get("/webhooks").await;
            if hooks.body["webhooks"][0]["paused"] == true {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(crate::rig::SOON, switched_off).await.expect("it is switched off");
    let audit = rig.get("/audit?action=WEBHOOK_SWITCHED_OFF").await;
    let entries = audit.body["entries"].as_array().expect("a list");
    assert!(!entries.is_empty(), "{audit:?}");
    assert_eq!((&entries[0]["target"], &entries[0]["actor"]), (&json!(hook), &json!("windlass")));
    let detail = entries[0]["detail"].as_str().expect("it says why");
    assert!(detail.contains("not allowed") || detail.contains("not a public address"), "{detail}");
    let dead = || async { rig.get("/dead-letters?handler_id=windlass.webhook").await.body["jobs"].clone() };
    let before = dead().await.as_array().expect("a list").len();
    assert!((1..=16).contains(&before), "those that were under way at once: {before}");
    for n in 0..20 {
        let id = rig.submit("echo", json!(n), json!({})).await;
        rig.wait_for(&id, "succeeded").await;
    }
    assert_eq!(dead().await.as_array().expect("a list").len(), before);
}
