//! Submitting and reading jobs over HTTP (API-1, API-2).

use reqwest::Method;
use serde_json::json;

use crate::rig::{Answer, Rig};

/// API-1, API-2: submit, status without payload, result, history, input by right, conditional reads.
pub(crate) async fn a_job_is_submitted_watched_and_read(rig: &Rig) {
    let secret = json!({ "card": "4111-secret", "big": 9007199254740993u64 });
    let new = json!({ "handler": "echo", "input": secret, "options": { "tags": ["vip"], "priority": "high" } });
    let answer = Answer::of(rig.ask(Method::POST, "/jobs").header("x-request-id", "req-7").json(&new)).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.body["duplicate"], false);
    let id = answer.body["id"].as_str().expect("an id").to_owned();
    assert_eq!(answer.header("location"), format!("/api/v1/jobs/{id}"));

    let job = rig.wait_for(&id, "succeeded").await;
    assert_eq!((&job["handler"], &job["priority"], &job["tags"]), (&json!("echo"), &json!(10), &json!(["vip"])));
    assert_eq!(job["correlation_id"], "req-7", "the request id travels with the job");
    assert!(!job.to_string().contains("4111-secret"), "status never shows what a job carries: {job}");
    // What Rust reads back from a store can be read from here too.
    let record: windlass::JobRecord = serde_json::from_value(job).expect("a record");
    assert_eq!(record.spec.user.as_deref(), Some("test"), "the key acts under its own name");

    let result = rig.get(&format!("/jobs/{id}/result")).await;
    assert_eq!((result.status, &result.body["output"]), (200, &secret), "{result:?}");
    let history = rig.get(&format!("/jobs/{id}/history")).await;
    let last = history.body["history"].as_array().and_then(|lines| lines.last()).expect("a line").clone();
    assert_eq!(last["status"], "succeeded");
    assert_eq!(rig.get(&format!("/jobs/{id}/why")).await.body["reason"], "finished");

    let first = rig.get(&format!("/jobs/{id}")).await;
    let tag = first.header("etag").to_owned();
    let again = rig.ask(Method::GET, &format!("/jobs/{id}")).header("if-none-match", &tag);
    let again = Answer::of(again).await;
    assert_eq!((again.status, again.header("etag")), (304, tag.as_str()));

    let input = rig.get(&format!("/jobs/{id}/input")).await;
    assert_eq!((input.status, &input.body["input"]), (200, &secret));
    let reader = rig.new_key(crate::rig::TENANT, Rig::rights(&[windlass::Right::Admin])).await;
    let refused = Answer::of(rig.ask_as(&reader, Method::GET, &format!("/jobs/{id}/input"))).await;
    refused.is_problem(403, "forbidden");
    let audit = rig.get("/audit?action=INPUT_READ").await;
    assert_eq!(audit.body["entries"][0]["target"], id.as_str(), "{audit:?}");
}

/// SUB-6 over HTTP.
pub(crate) async fn a_key_makes_repeating_a_submit_safe(rig: &Rig) {
    let body = json!({ "handler": "echo", "input": 1 });
    let submit = || Answer::of(rig.ask(Method::POST, "/jobs").header("idempotency-key", "order-7").json(&body));
    let (first, second) = (submit().await, submit().await);
    assert_eq!((first.status, second.status), (201, 200), "{second:?}");
    assert_eq!(first.body["id"], second.body["id"]);
    assert_eq!(second.body["duplicate"], true);
    let other = rig.ask_as(&rig.other, Method::POST, "/jobs").header("idempotency-key", "order-7").json(&body);
    assert_eq!(Answer::of(other).await.status, 201, "another tenant's key is another key");
    let contradicts = json!({ "handler": "echo", "input": 1, "options": { "idempotency_key": "order-8" } });
    let request = rig.ask(Method::POST, "/jobs").header("idempotency-key", "order-7").json(&contradicts);
    Answer::of(request).await.is_problem(422, "invalid_input");
}

/// SUB-4, SUB-5 over HTTP.
pub(crate) async fn a_batch_is_stored_whole_or_in_part(rig: &Rig) {
    let before = rig.jobs().await;
    let bad = json!({ "handler": "number", "inputs": [1, "two", 3, {}] });
    let answer = rig.post("/jobs/batch", bad).await;
    answer.is_problem(422, "invalid_input");
    let places: Vec<_> = answer.body["errors"].as_array().expect("errors").iter().map(|e| e["index"].clone()).collect();
    assert_eq!(places, [json!(1), json!(3)], "every bad item is named");
    assert_eq!(rig.jobs().await, before, "nothing is stored when any is bad");

    let partial = json!({ "handler": "number", "inputs": [1, "two", 3], "partial": true });
    let answer = rig.post("/jobs/batch", partial).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let jobs = answer.body["jobs"].as_array().expect("answers");
    assert!(jobs[0]["id"].is_string() && jobs[2]["id"].is_string());
    assert_eq!(jobs[1]["error"]["index"], 1);
    let batch = answer.body["batch"].as_str().expect("a batch");
    let listed = rig.get(&format!("/jobs?filter=batch:{batch}")).await;
    assert_eq!(listed.body["jobs"].as_array().map(Vec::len), Some(2), "{listed:?}");
}

/// SUB-13 over HTTP: by the option or by the header, repeating a batch answers with the same jobs.
pub(crate) async fn a_batch_with_a_key_can_be_repeated(rig: &Rig) {
    let ids = |answer: &Answer| -> Vec<String> {
        let jobs = answer.body["jobs"].as_array().unwrap_or_else(|| panic!("{answer:?}"));
        jobs.iter().map(|job| job["id"].as_str().expect("an id").to_owned()).collect()
    };
    let options = json!({ "delay_ms": 3_600_000, "idempotency_key": "batch" });
    let first = rig.post("/jobs/batch", json!({ "handler": "echo", "inputs": [1, 2], "options": options })).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(ids(&first).iter().collect::<std::collections::HashSet<_>>().len(), 2, "each is a job of its own");
    let body = json!({ "handler": "echo", "inputs": [1, 2], "options": { "delay_ms": 3_600_000 } });
    let again = rig.ask(Method::POST, "/jobs/batch").header("idempotency-key", "batch").json(&body);
    let again = Answer::of(again).await;
    assert_eq!(ids(&again), ids(&first));
    assert_eq!(again.body["jobs"][1]["duplicate"], true);
}

/// SUB-9, API-3: who may only submit can neither make jobs of Windlass itself nor take the keys of those.
pub(crate) async fn a_submitter_cannot_use_names_of_the_engine(rig: &Rig) {
    let key = rig.new_key(crate::rig::TENANT, Rig::rights(&[windlass::Right::Submit])).await;
    let submit = |path: &str, body: serde_json::Value| rig.ask_as(&key, Method::POST, path).json(&body);
    let before = rig.jobs().await;
    let event = json!({
        "job": "1", "tenant": crate::rig::TENANT, "handler": "echo", "status": "succeeded", "attempt": 1,
        "at": "2026-11-15T10:00:00Z",
    });
    let delivery = json!({ "webhook": "1", "sequence": 1, "event": event });
    let taken = json!({ "idempotency_key": "windlass.webhook:1:2" });
    let cases = [
        (submit("/jobs", json!({ "handler": "windlass.webhook", "input": delivery })), "handler"),
        (submit("/jobs/batch", json!({ "handler": "windlass.webhook", "inputs": [delivery] })), "handler"),
        (submit("/jobs", json!({ "handler": "echo", "input": 1, "options": taken })), "idempotency_key"),
        (submit("/jobs/batch", json!({ "handler": "echo", "inputs": [1], "options": taken })), "idempotency_key"),
        (
            submit("/jobs", json!({ "handler": "echo", "input": 1 })).header("idempotency-key", "windlass.x"),
            "idempotency_key",
        ),
    ];
    for (request, field) in cases {
        let refused = Answer::of(request).await;
        refused.is_problem(422, "invalid_input");
        assert_eq!(refused.body["errors"][0]["field"], field, "{refused:?}");
    }
    assert_eq!(rig.jobs().await, before, "nothing was written");
    let own = json!({ "handler": "echo", "input": 1, "options": { "idempotency_key": "mine" } });
    assert_eq!(Answer::of(submit("/jobs", own)).await.status, 201, "its own names are its own");
}

/// API-1: filters, limits that are clamped, offset and keyset pages.
pub(crate) async fn jobs_are_listed_by_filter_and_page(rig: &Rig) {
    let inputs: Vec<u32> = (0..7).collect();
    let options = json!({ "delay_ms": 3_600_000, "tags": ["page"] });
    let answer = rig.post("/jobs/batch", json!({ "handler": "echo", "inputs": inputs, "options": options })).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    rig.submit("number", json!(1), json!({ "delay_ms": 3_600_000 })).await;

    let ids = |answer: &Answer| -> Vec<String> {
        let jobs = answer.body["jobs"].as_array().unwrap_or_else(|| panic!("{answer:?}"));
        jobs.iter().map(|job| job["id"].as_str().expect("an id").to_owned()).collect()
    };
    let all = rig.get("/jobs?handler_id=echo&status=scheduled&limit=100000").await;
    let all = ids(&all);
    assert_eq!(all.len(), 7, "a limit above the maximum is the maximum");
    assert!(all.windows(2).all(|pair| pair[0].parse::<u64>().ok() > pair[1].parse::<u64>().ok()), "newest first");
    let first = rig.get("/jobs?filter=tag:page&limit=3").await;
    let next = first.body["next"].as_str().expect("there is more").to_owned();
    let second = rig.get(&format!("/jobs?filter=tag:page&limit=3&before={next}")).await;
    let third = rig.get("/jobs?filter=tag:page&limit=3&offset=6").await;
    let paged = [ids(&first), ids(&second), ids(&third)].concat();
    assert_eq!(paged, all);
    assert!(third.body.get("next").is_none(), "the last page says so");
    let none = rig.get("/jobs?status=running,succeeded&status=dead&handler_id=echo").await;
    assert!(ids(&none).is_empty());
    let past = rig.get("/jobs?created_before=2020-01-01T00:00:00Z").await;
    assert!(ids(&past).is_empty());
    rig.get("/jobs?handler=echo").await.is_problem(400, "invalid_input");
    rig.get("/jobs?limit=0").await.is_problem(422, "invalid_input");
    rig.get("/jobs?created_after=yesterday").await.is_problem(422, "invalid_input");
    rig.get("/jobs?filter=handle:echo").await.is_problem(422, "invalid_input");
    let oracle = rig.new_key(crate::rig::TENANT, Rig::rights(&[windlass::Right::Read])).await;
    let guess = rig.ask_as(&oracle, Method::GET, "/jobs?filter=input.card:4111");
    Answer::of(guess).await.is_problem(403, "forbidden");
}

/// S01, API-1: a job of another tenant is 404 for everything, and an operator of all tenants finds it.
pub(crate) async fn another_tenants_job_does_not_exist(rig: &Rig) {
    let id = rig.submit("echo", json!(1), json!({ "delay_ms": 3_600_000 })).await;
    let tries = [
        (Method::GET, "", None),
        (Method::GET, "/result", None),
        (Method::GET, "/input", None),
        (Method::GET, "/history", None),
        (Method::GET, "/why", None),
        (Method::GET, "/events", None),
        (Method::POST, "/cancel", None),
        (Method::POST, "/replay", None),
        (Method::POST, "/retry", None),
        (Method::POST, "/run-now", None),
        (Method::POST, "/reschedule", Some(json!({ "delay_ms": 1 }))),
        (Method::POST, "/priority", Some(json!({ "priority": "high" }))),
        (Method::POST, "/clone", None),
        (Method::PATCH, "", Some(json!({ "priority": 5 }))),
        (Method::DELETE, "", None),
        (Method::GET, "/logs", None),
        (Method::POST, "/cost", Some(json!({ "cents": 1 }))),
    ];
    let document = rig.get("/openapi.json").await.body;
    for (path, operations) in document["paths"].as_object().expect("paths") {
        let Some(of_job) = path.strip_prefix("/jobs/{id}") else { continue };
        for method in operations.as_object().expect("operations").keys() {
            let tried = |(m, path, _): &(Method, &str, _)| *path == of_job && m.as_str().eq_ignore_ascii_case(method);
            assert!(tries.iter().any(tried), "{method} {path} is not tried below");
        }
    }
    for (method, path, body) in tries {
        let mut request = rig.ask_as(&rig.other, method.clone(), &format!("/jobs/{id}{path}"));
        if let Some(body) = &body {
            request = request.json(body);
        }
        let answer = Answer::of(request).await;
        assert_eq!((answer.status, &answer.body["code"]), (404, &json!("job_not_found")), "{method} {path} {answer:?}");
    }
    let list = Answer::of(rig.ask_as(&rig.other, Method::GET, "/jobs")).await;
    assert_eq!(list.body["jobs"].as_array().map(Vec::len), Some(0));
    let job = rig.get(&format!("/jobs/{id}")).await;
    assert_eq!((job.status, &job.body["status"]), (200, &json!("scheduled")), "nobody has touched it");
    let header = rig.ask_as(&rig.other, Method::GET, "/jobs").header("windlass-tenant", crate::rig::TENANT.to_string());
    Answer::of(header).await.is_problem(403, "forbidden");

    let seen = Answer::of(rig.ask_as(&rig.operator, Method::GET, &format!("/jobs/{id}"))).await;
    assert_eq!(seen.status, 200, "{seen:?}");
    let narrowed = rig.ask_as(&rig.operator, Method::GET, &format!("/jobs/{id}"));
    let narrowed = narrowed.header("windlass-tenant", crate::rig::OTHER.to_string());
    Answer::of(narrowed).await.is_problem(404, "job_not_found");
}

/// API-1: results of failed and canceled jobs carry the documented codes; unfinished ones answer 202.
pub(crate) async fn a_job_that_ended_badly_says_why(rig: &Rig) {
    let dead = rig.submit("fail", json!(7), json!({})).await;
    let job = rig.wait_for(&dead, "dead_lettered").await;
    assert_eq!(job["error"]["code"], "bad_address");
    let result = rig.get(&format!("/jobs/{dead}/result")).await;
    assert_eq!((result.status, &result.body["error"]["code"]), (200, &json!("bad_address")), "{result:?}");

    let waiting = rig.submit("echo", json!(1), json!({ "delay_ms": 3_600_000 })).await;
    let early = rig.get(&format!("/jobs/{waiting}/result")).await;
    assert_eq!((early.status, &early.body["status"]), (202, &json!("scheduled")));
    let canceled = rig.post(&format!("/jobs/{waiting}/cancel"), json!({ "reason": "not wanted" })).await;
    assert_eq!(canceled.body["outcome"], "canceled");
    let again = Answer::of(rig.ask(Method::POST, &format!("/jobs/{waiting}/cancel"))).await;
    assert_eq!((again.status, &again.body["outcome"]), (200, &json!("already_finished")), "twice is the same as once");
    let result = rig.get(&format!("/jobs/{waiting}/result")).await;
    assert_eq!(result.body["error"]["code"], "job_canceled");
    rig.get("/jobs/1/result").await.is_problem(404, "job_not_found");
    let unknown = rig.post("/jobs", json!({ "handler": "nobody.has.it", "input": 1 })).await;
    unknown.is_problem(404, "handler_not_found");
}
