//! Every route against every role (S08), and the three descriptions of the API against one another (S12): the router,
//! the OpenAPI document and docs/http.md.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};
use windlass::Right;

use crate::rig::{Answer, Rig, TENANT, Where};

/// What docs/http.md says that a route needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Documented {
    rights: Vec<Right>,
    all_tenants: bool,
}

/// The tables of docs/http.md, up to the routes outside the API.
fn documented() -> BTreeMap<(String, String), Documented> {
    let text = include_str!("../../../../docs/http.md");
    let tables = text.split("## Outside").next().expect("there is a text");
    let mut routes = BTreeMap::new();
    for line in tables.lines().filter(|line| line.starts_with("| `")) {
        let mut columns = line.split('|').skip(1);
        let (route, need) = (columns.next().unwrap_or_default(), columns.next().unwrap_or_default());
        let Some((method, path)) = route.split('`').nth(1).and_then(|route| route.split_once(' ')) else { continue };
        let need = need.split('(').next().unwrap_or_default();
        let words: Vec<&str> = need.split([',', ' ']).filter(|word| !word.is_empty()).collect();
        let rights = Right::ALL.into_iter().filter(|right| words.contains(&right.as_str())).collect();
        let all_tenants = words.contains(&"all");
        routes.insert((method.to_lowercase(), path.to_owned()), Documented { rights, all_tenants });
    }
    routes
}

fn operations(document: &Value) -> BTreeMap<(String, String), Value> {
    let mut operations = BTreeMap::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("operations") {
            operations.insert((method.clone(), path.clone()), operation.clone());
        }
    }
    operations
}

/// S12, API-2: the page people read, the document programs read and the router agree on every route and on what it needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_is_documented_and_every_documented_route_answers() {
    let rig = Rig::start(Where::Memory).await;
    let document = rig.get("/openapi.json").await.body;
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.")), "{}", document["openapi"]);
    let (documented, operations) = (documented(), operations(&document));
    let (left, right): (Vec<_>, Vec<_>) = (documented.keys().collect(), operations.keys().collect());
    assert_eq!(left, right, "docs/http.md and the OpenAPI document have the same routes");
    for (route, need) in &documented {
        let mut expected: Vec<&str> = need.rights.iter().map(|right| right.as_str()).collect();
        if need.all_tenants {
            expected.push("all_tenants");
        }
        let operation = &operations[route];
        assert_eq!(operation["x-rights"], json!(expected), "{route:?}");
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{route:?} has no summary");
        assert!(operation["operationId"].is_string() && operation["responses"]["default"].is_object(), "{route:?}");
        let answer = send(&rig, &rig.operator, route).await;
        let unrouted = answer.body["detail"] == "there is no such page or route" || answer.status == 405;
        assert!(!unrouted && answer.status < 500, "{route:?}: {answer:?}");
    }
    let ids: std::collections::BTreeSet<_> = operations.values().map(|o| o["operationId"].to_string()).collect();
    assert_eq!(ids.len(), operations.len(), "operation ids are unique");
    let references = document.to_string();
    for reference in references.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(document["components"]["schemas"][name].is_object(), "the schema {name} is missing");
    }
    let page = rig.client.get(format!("{}/docs", rig.url)).send().await.expect("a page").text().await.expect("text");
    for (_, path) in operations.keys() {
        assert!(page.contains(path), "{path} is not on the page");
    }
    assert!(!page.contains("http://") && !page.contains("https://"), "the page needs nothing from elsewhere");
    assert!(!page.contains("<script") && !page.contains("style=\""), "nothing is inline");
}

/// A request with placeholders: enough to get past the guard, or not.
async fn send(rig: &Rig, key: &str, (method, path): &(String, String)) -> Answer {
    let path = path
        .replace("{id}", "1")
        .replace("{tenant}", "default")
        .replace("{token}", "none")
        .replace("{target}", "all")
        .replace("{name}", "nightly")
        .replace("{signature}", "0123456789abcdef");
    let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
    let mut request = rig.client.request(method.clone(), format!("{}/api/v1{path}", rig.url));
    if !key.is_empty() {
        request = request.bearer_auth(key);
    }
    if method != Method::GET {
        request = request.json(&json!({}));
    }
    let response = request.send().await.expect("an answer");
    match response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream") {
        // A stream that is open is an answer; its events never end.
        true => Answer { status: 200, headers: response.headers().clone(), body: Value::Null },
        false => Answer::read(response).await,
    }
}

/// S08: each role on each route, with one right at a time, in one tenant and over all. What is not allowed is refused,
/// and what is allowed is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_may_do_what_is_documented_and_nothing_else() {
    let rig = Rig::with(Where::Memory, |config| {
        config.limits.streams = 10_000;
        config.limits.streams_per_principal = 10_000;
        config.limits.failures = 10_000;
    })
    .await;
    let mut keys = Vec::new();
    for right in Right::ALL {
        keys.push((right, false, rig.new_key(TENANT, Rig::rights(&[right])).await));
        keys.push((right, true, rig.operator_key(Rig::rights(&[right])).await));
    }
    for (route, need) in documented() {
        let nobody = send(&rig, "", &route).await;
        nobody.is_problem(401, "unauthorized");
        assert!(nobody.header("www-authenticate").starts_with("Bearer"));
        for (right, all_tenants, key) in &keys {
            let rights = Rig::rights(&[*right]);
            let allowed = need.rights.iter().all(|needed| rights.allow(*needed)) && (*all_tenants || !need.all_tenants);
            let answer = send(&rig, key, &route).await;
            let who = format!("{} {}", right.as_str(), if *all_tenants { "of all tenants" } else { "of one tenant" });
            match allowed {
                // Who may call it can still ask for what only operators of all tenants may have.
                true => assert!(answer.status != 401 && answer.status < 500, "{who} {route:?}: {answer:?}"),
                false => assert_eq!(answer.status, 403, "{who} {route:?}: {answer:?}"),
            }
            let in_handler = [("delete", "/pauses/{target}"), ("get", "/tenants/{tenant}/quota")];
            if allowed && !in_handler.contains(&(route.0.as_str(), route.1.as_str())) {
                assert_ne!(answer.status, 403, "{who} {route:?}: {answer:?}");
            }
        }
    }
}
