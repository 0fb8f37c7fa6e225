//! Webhooks against a real receiver on loopback, which only a test allows (OPS-8).

use std::sync::Arc;

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
    let foreign = rig.ask_as(&rig.other, reqwest::Method::DELETE, &format!("/webhooks/{hook}"));
    Answer::of(foreign).await.is_problem(404, "not_found");
    assert_eq!(rig.delete(&format!("/webhooks/{hook}")).await.status, 204);
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
