//! JSON Web Tokens: what is accepted, and every way to get around it (API-3, S02, S13).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use reqwest::Method;
use serde_json::{Value, json};
use windlass_server::{JwtConfig, JwtKeys};

use crate::rig::{Answer, OTHER, Rig, TENANT, Where};

const SECRET: &[u8] = b"a secret of at least thirty-two bytes";

/// Made for this test and used nowhere else.
const EC_KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgP46KabK9XTA+x99L
UjmHITEbiH8PO4wp5Rx18mUxejyhRANCAAQVGVxqF4h/5kb1uH6+fKzi6WbUG38u
ub8VNCIlSh1eTPGbTsVBOKTcwBTYXh54GW7BXLTvVsa28VtkHbJb3xYm
-----END PRIVATE KEY-----
";

/// Likewise.
const RSA_KEY: &str = include_str!("rsa.pem");

fn claims() -> Value {
    json!({
        "iss": "https://id.example", "aud": "windlass", "sub": "user-7", "exp": get_current_timestamp() + 60,
        "tenant_id": TENANT.to_string(), "scope": "windlass:read openid submit",
    })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().expect("an object").remove(name);
    claims
}

fn shared(claims: &Value) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(SECRET)).expect("a token")
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

async fn rig_with(config: JwtConfig) -> Rig {
    Rig::with(Where::Memory, |server| {
        server.jwt = vec![config];
        server.limits.failures = 10_000;
    })
    .await
}

async fn me(rig: &Rig, token: &str) -> Answer {
    Answer::of(rig.ask_as(token, Method::GET, "/me")).await
}

/// S02: a token is good only if everything about it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_with_a_shared_secret_is_checked_in_every_respect() {
    let config = JwtConfig::new("https://id.example", "windlass", &["HS256"], JwtKeys::Secret(SECRET.to_vec()));
    let rig = rig_with(config).await;
    let good = me(&rig, &shared(&claims())).await;
    assert_eq!((good.status, &good.body["rights"]), (200, &json!(["read", "submit"])), "{good:?}");
    assert_eq!((&good.body["user"], &good.body["tenant"]), (&json!("user-7"), &json!(TENANT.to_string())));
    assert_eq!((&good.body["method"], &good.body["all_tenants"]), (&json!("jwt"), &json!(false)));

    let now = get_current_timestamp();
    let bad_claims = [
        without("exp"),
        without("iss"),
        without("aud"),
        without("sub"),
        without("tenant_id"),
        with("exp", json!(now - 120)),
        with("exp", json!((now + 60).to_string())),
        with("exp", json!(null)),
        with("nbf", json!(now + 120)),
        with("nbf", json!("tomorrow")),
        with("iss", json!("https://evil.example")),
        with("aud", json!("somebody")),
        with("aud", json!([])),
        with("sub", json!("")),
        with("sub", json!(7)),
        with("tenant_id", json!("not-a-uuid")),
        with("tenant_id", json!(7)),
        with("scope", json!(7)),
    ];
    for claims in &bad_claims {
        me(&rig, &shared(claims)).await.is_problem(401, "unauthorized");
    }
    let token = shared(&claims());
    let (head, rest) = token.split_once('.').expect("three parts");
    let (body, signature) = rest.split_once('.').expect("three parts");
    let none = part(&json!({ "alg": "none", "typ": "JWT" }));
    let other_body = part(&with("tenant_id", json!(OTHER.to_string())));
    let other_key = EncodingKey::from_secret(b"another secret of thirty-two bytes");
    let mut crit = Header::new(Algorithm::HS256);
    crit.crit = Some(vec!["exp".to_owned()]);
    let attacks = [
        format!("{none}.{body}."),
        format!("{none}.{body}.{signature}"),
        format!("{}.{body}.{signature}", part(&json!({ "alg": "NONE" }))),
        format!("{head}.{other_body}.{signature}"),
        format!("{head}.{body}."),
        format!("{head}.{body}"),
        format!("{head}.{body}.{signature}.{signature}"),
        format!("{head}.{body}.{}", URL_SAFE_NO_PAD.encode([0u8; 32])),
        encode(&Header::new(Algorithm::HS256), &claims(), &other_key).expect("a token"),
        encode(&Header::new(Algorithm::HS512), &claims(), &EncodingKey::from_secret(SECRET)).expect("a token"),
        encode(&crit, &claims(), &EncodingKey::from_secret(SECRET)).expect("a token"),
        "..".to_owned(),
        "a.b.c".to_owned(),
    ];
    for token in &attacks {
        me(&rig, token).await.is_problem(401, "unauthorized");
    }
    let reader =
        Answer::of(rig.ask_as(&shared(&claims()), Method::POST, "/pauses").json(&json!({ "target": "all" }))).await;
    reader.is_problem(403, "forbidden");
}

/// S02, S13: public keys from a file; a token can choose a key of the set and nothing else, and new keys are found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_with_public_keys_are_checked_against_the_set() {
    let elliptic = EncodingKey::from_ec_pem(EC_KEY.as_bytes()).expect("a key");
    check_against_a_set(Algorithm::ES256, "ES256", elliptic, EC_KEY).await;
    let rsa = EncodingKey::from_rsa_pem(RSA_KEY.as_bytes()).expect("a key");
    check_against_a_set(Algorithm::RS256, "RS256", rsa, RSA_KEY).await;
}

async fn check_against_a_set(algorithm: Algorithm, name: &str, key: EncodingKey, pem: &str) {
    let mut jwk = Jwk::from_encoding_key(&key, algorithm).expect("a public key");
    jwk.common.key_id = Some("key-1".to_owned());
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("jwks.json");
    let set = serde_json::to_string(&JwkSet { keys: vec![jwk] }).expect("a set");
    std::fs::write(&path, &set).expect("written");
    let mut config = JwtConfig::new("https://id.example", "windlass", &[name], JwtKeys::File(path.clone()));
    config.tenants = vec![("acme".to_owned(), OTHER)];
    config.all_tenants_claim = Some("operator".to_owned());
    let rig = rig_with(config).await;
    let signed = |kid: Option<&str>, claims: &Value| {
        let mut header = Header::new(algorithm);
        header.kid = kid.map(str::to_owned);
        encode(&header, claims, &key).expect("a token")
    };
    let good = me(&rig, &signed(Some("key-1"), &claims())).await;
    assert_eq!((good.status, &good.body["user"]), (200, &json!("user-7")), "{good:?}");
    let mapped = me(&rig, &signed(Some("key-1"), &with("tenant_id", json!("acme")))).await;
    assert_eq!(mapped.body["tenant"], OTHER.to_string());
    let operator = me(&rig, &signed(Some("key-1"), &with("operator", json!(true)))).await;
    assert_eq!(operator.body["all_tenants"], true);

    me(&rig, &signed(None, &claims())).await.is_problem(401, "unauthorized");
    for kid in ["key-2", "", "../../etc/passwd", "key-1' or '1'='1", "http://evil.example/keys"] {
        me(&rig, &signed(Some(kid), &claims())).await.is_problem(401, "unauthorized");
    }
    // The classic: the public key as the secret of a shared one.
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("key-1".to_owned());
    for secret in [set.as_bytes(), pem.as_bytes()] {
        let forged = encode(&header, &claims(), &EncodingKey::from_secret(secret)).expect("a token");
        me(&rig, &forged).await.is_problem(401, "unauthorized");
    }
}

/// What makes no sense, or would be unsafe, is refused when the server starts and not when a token comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsafe_issuers_are_refused_at_the_start() {
    let store = std::sync::Arc::new(windlass::MemoryStore::new());
    let service = windlass::JobService::builder(store).start().await.expect("a service");
    let secret = || JwtKeys::Secret(SECRET.to_vec());
    let url = |url: &str| JwtKeys::Url(url.to_owned());
    let cases = [
        (vec![], secret()),
        (vec!["none"], secret()),
        (vec!["HS256"], JwtKeys::Secret(b"short".to_vec())),
        (vec!["RS256"], secret()),
        (vec!["HS256", "RS256"], secret()),
        (vec!["HS256"], JwtKeys::File("/nowhere".into())),
        (vec!["RS256", "HS256"], url("https://id.example/keys")),
        (vec!["RS256"], url("http://id.example/keys")),
        (vec!["RS256"], url("https://127.0.0.1/keys")),
        (vec!["RS256"], url("https://169.254.169.254/keys")),
        (vec!["RS256"], url("file:///etc/passwd")),
    ];
    for (algorithms, keys) in cases {
        let shown = format!("{algorithms:?} {keys:?}");
        let mut config = windlass_server::Config::listen(([127, 0, 0, 1], 0).into());
        config.jwt = vec![JwtConfig::new("https://id.example", "windlass", &algorithms, keys)];
        assert!(windlass_server::Server::bind(service.clone(), config).await.is_err(), "{shown}");
    }
    service.shutdown().await;
}

/// S13: a set by address is fetched when a key is unknown, and not again for every token that invents one; a set that is
/// too large, or somewhere else, is not taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_by_address_is_fetched_rarely_and_within_bounds() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    let key = EncodingKey::from_ec_pem(EC_KEY.as_bytes()).expect("a key");
    let mut jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).expect("a public key");
    jwk.common.key_id = Some("key-1".to_owned());
    let set = serde_json::to_string(&JwkSet { keys: vec![jwk] }).expect("a set");
    let huge = format!("{}{}", " ".repeat(256 * 1024), set);
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let good = set.clone();
    let router = axum::Router::new()
        .route(
            "/good",
            axum::routing::get(async move || {
                counter.fetch_add(1, Ordering::Relaxed);
                good
            }),
        )
        .route("/huge", axum::routing::get(async move || huge))
        .route("/moved", axum::routing::get(async || axum::response::Redirect::temporary("/good")))
        .route("/slow", axum::routing::get(std::future::pending::<String>));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(axum::serve(listener, router).into_future());
    let signed = |kid: &str| {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(kid.to_owned());
        encode(&header, &claims(), &key).expect("a token")
    };
    for (path, expected) in [("good", 200), ("huge", 401), ("moved", 401), ("slow", 401)] {
        let keys = JwtKeys::Url(format!("{url}/{path}"));
        let rig = Rig::with(Where::Memory, |server| {
            server.jwt = vec![JwtConfig::new("https://id.example", "windlass", &["ES256"], keys)];
            server.allow_private_jwks = true;
            server.limits.failures = 10_000;
        })
        .await;
        assert_eq!(me(&rig, &signed("key-1")).await.status, expected, "{path}");
        if path == "good" {
            for n in 0..20 {
                me(&rig, &signed(&format!("invented-{n}"))).await.is_problem(401, "unauthorized");
            }
            assert_eq!(me(&rig, &signed("key-1")).await.status, 200);
            assert_eq!(asked.load(Ordering::Relaxed), 1, "once a minute at most");
        }
    }
}
