//! Requests that are wrong in every way there is: a problem of the 400s for each, and nothing written (reliability.md,
//! S06, S07, S17).

use reqwest::Method;
use serde_json::json;

use crate::rig::{Answer, Rig};

/// No bad request is answered with an error of the server, and none leaves anything behind.
pub(crate) async fn bad_input_is_refused_and_writes_nothing(rig: &Rig) {
    let id = rig.submit("echo", json!(1), json!({ "delay_ms": 3_600_000 })).await;
    let before = rig.jobs().await;
    for body in bodies() {
        let request = rig.ask(Method::POST, "/jobs").header("content-type", "application/json").body(body.clone());
        let answer = Answer::of(request).await;
        let shown: String = body.chars().take(120).collect();
        assert!((400..500).contains(&answer.status), "{shown}: {answer:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{shown}: {answer:?}");
    }
    for path in paths(&id) {
        let answer = Answer::of(rig.ask(Method::GET, &path)).await;
        assert!((400..500).contains(&answer.status), "{path}: {answer:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{path}: {answer:?}");
    }
    for (method, path, body) in others(&id) {
        let answer = Answer::of(rig.ask_as(&rig.operator, method.clone(), &path).json(&body)).await;
        assert!((400..500).contains(&answer.status), "{method} {path} {body}: {answer:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{path}: {answer:?}");
    }
    assert_eq!(rig.jobs().await, before, "nothing was written");
    assert_eq!(rig.get(&format!("/jobs/{id}")).await.body["status"], "scheduled");
}

fn bodies() -> Vec<String> {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let nested = format!("{}1{}", "[".repeat(65), "]".repeat(65));
    let long = "x".repeat(300 * 1024);
    let with = |options: &str| format!(r#"{{"handler": "echo", "input": 1, "options": {options}}}"#);
    let mut bodies: Vec<String> = [
        "",
        " ",
        "null",
        "1",
        "[]",
        "{",
        "{}",
        "{\"handler\": \"echo\"}",
        "not json",
        "\u{feff}{}",
        "{'a': 1}",
        r#"{"handler": "echo", "input": 1} trailing"#,
        r#"{"handler": "echo", "input": 1, "input": 2}"#,
        r#"{"handler": "echo", "input": 01}"#,
        r#"{"handler": "echo", "input": NaN}"#,
        r#"{"handler": "", "input": 1}"#,
        r#"{"handler": 7, "input": 1}"#,
        r#"{"handler": "echo\u0000", "input": 1}"#,
        r#"{"handler": "echo", "input": "\u0000"}"#,
        r#"{"handler": "echo", "input": "\ud800"}"#,
        r#"{"handler": "echo", "input": 1, "tenant": "00000000-0000-0000-0000-00000000000b"}"#,
        r#"{"handler": "echo", "input": 1, "status": "succeeded"}"#,
        r#"{"handler": "echo", "input": 1, "id": "1"}"#,
        r#"{"handler": "echo'; drop table job; --", "input": 1}"#,
        r#"{"handler": "windlass.webhook", "input": {"webhook": "1", "sequence": 1}}"#,
        r#"{"handler": "number", "input": "not a number"}"#,
        r#"{"handler": "number", "input": 4294967296}"#,
    ]
    .map(str::to_owned)
    .into();
    bodies.extend([
        format!(r#"{{"handler": "echo", "input": {deep}}}"#),
        format!(r#"{{"handler": "echo", "input": {nested}}}"#),
        format!(r#"{{"handler": "echo", "input": "{long}"}}"#),
        format!(r#"{{"handler": "{}", "input": 1}}"#, "h".repeat(201)),
    ]);
    let options = [
        "7",
        "[]",
        r#"{"tenant": "x"}"#,
        r#"{"priority": 99999}"#,
        r#"{"priority": "urgent"}"#,
        r#"{"delay_ms": -1}"#,
        r#"{"delay_ms": 1.5}"#,
        r#"{"delay_ms": 18446744073709551615}"#,
        r#"{"run_at": "soon"}"#,
        r#"{"run_at": "9999-12-31T23:59:59Z"}"#,
        r#"{"delay_ms": 1, "run_at": "2027-01-01T00:00:00Z"}"#,
        r#"{"timeout_ms": 99999999999999999}"#,
        r#"{"retry": {"max_attempts": 70000}}"#,
        r#"{"retry": {"multiplier": 1e400}}"#,
        r#"{"retry": {"jitter": 2}}"#,
        r#"{"retry": {"first_delay": 99999999999999999}}"#,
        r#"{"retry": {"what": 1}}"#,
        r#"{"tags": "vip"}"#,
        r#"{"tags": [""]}"#,
        r#"{"queue": ""}"#,
        r#"{"queue": "suspect:default"}"#,
        r#"{"queue": "windlass.webhook"}"#,
        r#"{"ordering_key": "windlass.x"}"#,
        r#"{"idempotency_key": "windlass.webhook:1:2"}"#,
        r#"{"ordering_key": ""}"#,
        r#"{"idempotency_key": ""}"#,
        r#"{"headers": {"": "x"}}"#,
        r#"{"headers": {"a": 1}}"#,
        r#"{"headers": {"a": "\u0000"}}"#,
        r#"{"unique": {"window_ms": 99999999999999999}}"#,
        r#"{"unique": 1}"#,
        r#"{"correlation_id": ""}"#,
    ];
    bodies.extend(options.map(with));
    bodies.push(with(&format!(r#"{{"tags": {:?}}}"#, vec!["t"; 33])));
    bodies.push(with(&format!(r#"{{"tags": ["{}"]}}"#, "t".repeat(65))));
    bodies.push(with(&format!(r#"{{"idempotency_key": "{}"}}"#, "k".repeat(257))));
    bodies.push(with(&format!(r#"{{"headers": {{"a": "{}"}}}}"#, "v".repeat(17 * 1024))));
    bodies
}

fn paths(id: &str) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/jobs/abc",
        "/jobs/-1",
        "/jobs/1e3",
        "/jobs/0x10",
        "/jobs/+1",
        "/jobs/99999999999999999999",
        "/jobs/1%20or%201=1",
        "/jobs/%00",
        "/jobs/%ff",
        "/jobs/..%2f..%2fetc%2fpasswd",
        "/jobs?limit=-1",
        "/jobs?limit=abc",
        "/jobs?limit=0",
        "/jobs?offset=-1",
        "/jobs?offset=999999999",
        "/jobs?status=nope",
        "/jobs?before=abc",
        "/jobs?created_after=2026-13-01T00:00:00Z",
        "/jobs?unknown=1",
        "/jobs?limit=1&limit=2",
        "/jobs?filter=%22",
        "/jobs?filter=nope:1",
        "/jobs?filter=status:nope",
        "/jobs?filter=justaword",
        "/jobs?filter=created%3Enever",
        "/jobs?replayed=perhaps",
        "/jobs?handler_id=%00",
        "/jobs?tag=%00",
        "/jobs?correlation_id=%00",
        "/jobs?filter=handler:%00",
        "/jobs?filter=error:%22%00%22",
        "/jobs/bulk/%00",
        "/audit?action=%00",
        "/audit?target=%00",
        "/usage?from=%00",
        "/failures?filter=tag:%00",
        "/activity?since=%00",
        "/audit?limit=x",
        "/audit?nope=1",
        "/audit?before=x",
        "/failures?limit=x",
        "/tenants/nobody/quota",
        "/events?after=x",
        "/nope",
        "/jobs/1/nope",
    ]
    .map(str::to_owned)
    .into();
    paths.push(format!("/jobs/{id}/events?after=-1"));
    paths.push(format!("/jobs?filter={}", "tag:a%20".repeat(17)));
    paths.push(format!("/jobs?handler_id={}", "h".repeat(300)));
    paths.push(format!("/jobs?filter=tag:{}", "h".repeat(300)));
    paths
}

fn others(id: &str) -> Vec<(Method, String, serde_json::Value)> {
    let job = |path: &str| format!("/jobs/{id}{path}");
    vec![
        (Method::PATCH, job(""), json!({ "status": "succeeded" })),
        (Method::PATCH, job(""), json!({ "tenant": "x" })),
        (Method::PATCH, job(""), json!({ "attempt": 3 })),
        (Method::PATCH, job(""), json!({ "priority": {} })),
        (Method::PATCH, job(""), json!([])),
        (Method::POST, job("/cancel"), json!({ "reason": "x".repeat(5_000) })),
        (Method::POST, job("/cancel"), json!({ "reason": "\0" })),
        (Method::POST, job("/cancel"), json!({ "by": "somebody else" })),
        (Method::POST, job("/reschedule"), json!({})),
        (Method::POST, job("/reschedule"), json!({ "run_at": "2126-01-01T00:00:00Z" })),
        (Method::POST, job("/priority"), json!({})),
        (Method::POST, job("/clone"), json!({ "input": "x".repeat(300 * 1024) })),
        (Method::POST, job("/replay"), json!({})),
        (Method::DELETE, job(""), json!({})),
        (Method::POST, "/jobs/batch".into(), json!({ "handler": "echo", "inputs": [] })),
        (Method::POST, "/jobs/batch".into(), json!({ "handler": "echo", "inputs": vec![1; 1_001] })),
        (Method::POST, "/jobs/batch".into(), json!({ "handler": "echo", "inputs": 1 })),
        (
            Method::POST,
            "/jobs/batch".into(),
            json!({ "handler": "echo", "inputs": [1], "options": { "idempotency_key": "" } }),
        ),
        (
            Method::POST,
            "/jobs/batch".into(),
            json!({ "handler": "echo", "inputs": [1], "options": { "idempotency_key": "k".repeat(257) } }),
        ),
        (Method::DELETE, "/pauses/handler:%00".into(), json!({})),
        (Method::DELETE, "/pauses/handler:a%00b".into(), json!({})),
        (Method::POST, "/pauses".into(), json!({ "target": "handler:\0" })),
        (Method::POST, "/pauses".into(), json!({ "target": "all", "reason": "\0" })),
        (Method::DELETE, "/keys/%00".into(), json!({})),
        (Method::POST, "/keys".into(), json!({ "name": "\0", "rights": ["read"] })),
        (Method::DELETE, "/webhooks/%00".into(), json!({})),
        (Method::POST, "/failures/%00/retry".into(), json!({ "confirm": 1 })),
        (Method::POST, "/checkout".into(), json!({ "queues": ["\0"] })),
        (Method::POST, "/checkouts/%00/success".into(), json!({})),
        (Method::POST, "/jobs/bulk".into(), json!({ "action": "cancel", "filter": "", "confirm": 9, "reason": "\0" })),
        (Method::POST, "/jobs/bulk".into(), json!({ "action": "cancel", "filter": "status:scheduled" })),
        (Method::POST, "/jobs/bulk".into(), json!({ "action": "explode", "filter": "", "confirm": 1 })),
        (Method::POST, "/jobs/bulk".into(), json!({ "action": "cancel", "filter": "", "confirm": 0 })),
        (
            Method::POST,
            "/jobs/bulk".into(),
            json!({ "action": "cancel", "filter": "", "confirm": 9, "per_second": -1 }),
        ),
        (Method::POST, "/jobs/bulk".into(), json!({ "action": "cancel", "filter": "", "confirm": 9, "cap": 0 })),
        (Method::POST, "/jobs/bulk/preview".into(), json!({ "filter": "", "cap": 100_001 })),
        (Method::POST, "/failures/nothex/retry".into(), json!({ "confirm": 1 })),
        (Method::POST, "/pauses".into(), json!({ "target": "" })),
        (Method::POST, "/pauses".into(), json!({ "target": "handler:" })),
        (Method::POST, "/pauses".into(), json!({ "target": format!("handler:{}", "h".repeat(300)) })),
        (Method::PUT, "/tenants/default/quota".into(), json!({ "submit_rate": { "per_second": -1, "burst": 1 } })),
        (Method::PUT, "/tenants/default/quota".into(), json!({ "bytes": u64::MAX })),
        (Method::PUT, "/tenants/x/quota".into(), json!({})),
        (Method::POST, "/tick".into(), json!({ "max": 0 })),
        (Method::POST, "/checkout".into(), json!({ "hold_ms": 1 })),
        (Method::POST, "/checkout".into(), json!({ "queues": [""] })),
        (Method::POST, "/checkouts/none/success".into(), json!({})),
        (Method::POST, "/keys".into(), json!({ "name": "", "rights": ["read"] })),
        (Method::POST, "/keys".into(), json!({ "name": "x", "rights": ["everything"] })),
        (Method::POST, "/keys".into(), json!({ "name": "x", "rights": ["read"], "tenant": "nobody" })),
        (
            Method::POST,
            "/keys".into(),
            json!({ "name": "x", "rights": ["read"], "expires_at": "2020-01-01T00:00:00Z" }),
        ),
        (Method::DELETE, "/keys/none".into(), json!({})),
    ]
}
