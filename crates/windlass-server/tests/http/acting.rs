//! Acting on jobs and steering the installation over HTTP (API-2, BEY-2, BEY-5, BEY-6, BEY-8, OPS-4, OPS-9, OPS-10).

use reqwest::Method;
use serde_json::{Value, json};

use crate::rig::{Answer, OTHER, Rig, TENANT};

/// BEY-5, OPS-3.
pub(crate) async fn a_waiting_job_is_changed_and_canceled(rig: &Rig) {
    let id = rig.submit("echo", json!("old"), json!({ "delay_ms": 3_600_000 })).await;
    let patch = rig.ask(Method::PATCH, &format!("/jobs/{id}")).json(&json!({ "input": "new", "priority": "critical" }));
    assert_eq!(Answer::of(patch).await.status, 204);
    let later = rig.post(&format!("/jobs/{id}/reschedule"), json!({ "delay_ms": 7_200_000 })).await;
    assert_eq!(later.status, 204, "{later:?}");
    let priority = rig.post(&format!("/jobs/{id}/priority"), json!({ "priority": 15 })).await;
    assert_eq!(priority.status, 204, "{priority:?}");
    assert_eq!(rig.get(&format!("/jobs/{id}")).await.body["priority"], 15);
    let clone =
        Answer::of(rig.ask(Method::POST, &format!("/jobs/{id}/clone")).json(&json!({ "input": "clone" }))).await;
    assert_eq!(clone.status, 201, "{clone:?}");
    let clone = clone.body["id"].as_str().expect("an id").to_owned();
    assert_eq!(Answer::of(rig.ask(Method::POST, &format!("/jobs/{id}/run-now"))).await.status, 204);
    rig.wait_for(&id, "succeeded").await;
    assert_eq!(rig.get(&format!("/jobs/{id}/result")).await.body["output"], "new");
    let ended = rig.ask(Method::PATCH, &format!("/jobs/{id}")).json(&json!({ "priority": 1 }));
    Answer::of(ended).await.is_problem(409, "conflict");
    Answer::of(rig.ask(Method::POST, &format!("/jobs/{id}/retry"))).await.is_problem(409, "conflict");
    let finished = rig.post(&format!("/jobs/{id}/cancel"), json!({})).await;
    finished.is_problem(409, "already_finished");
    assert_eq!(finished.body["job_status"], "succeeded");
    let job = rig.get(&format!("/jobs/{clone}")).await.body;
    assert_eq!(job["spec"]["parent"], id.as_str());
}

/// ERR-4 over HTTP.
pub(crate) async fn dead_letters_are_replayed_and_purged(rig: &Rig) {
    let id = rig.submit("fail", json!(1), json!({})).await;
    rig.wait_for(&id, "dead_lettered").await;
    let letters = rig.get("/dead-letters").await;
    assert_eq!(letters.body["jobs"][0]["id"], id.as_str(), "{letters:?}");
    let replayed = rig.post(&format!("/jobs/{id}/replay"), json!({})).await;
    assert_eq!((replayed.status, &replayed.body["id"]), (200, &json!(id)));
    rig.wait_for(&id, "dead_lettered").await;
    let as_new = rig.post(&format!("/jobs/{id}/replay"), json!({ "input": 2 })).await;
    assert_eq!(as_new.status, 200, "{as_new:?}");
    let new = as_new.body["id"].as_str().expect("an id").to_owned();
    assert_ne!(new, id);
    rig.wait_for(&new, "dead_lettered").await;
    assert_eq!(rig.get(&format!("/jobs/{id}")).await.body["replayed"]["as_job"], new.as_str());
    assert_eq!(rig.delete(&format!("/jobs/{id}")).await.status, 204);
    rig.get(&format!("/jobs/{id}")).await.is_problem(404, "job_not_found");
    let waiting = rig.submit("echo", json!(1), json!({ "delay_ms": 3_600_000 })).await;
    rig.delete(&format!("/jobs/{waiting}")).await.is_problem(409, "conflict");
}

/// BEY-6, BEY-3, S09: nothing is done to more jobs than were seen.
pub(crate) async fn many_jobs_are_acted_on_after_a_confirmed_preview(rig: &Rig) {
    let inputs: Vec<u32> = (0..5).collect();
    let batch = json!({ "handler": "fail", "inputs": inputs });
    assert_eq!(rig.post("/jobs/batch", batch).await.status, 201);
    let groups = async {
        loop {
            let groups = rig.get("/failures").await.body["groups"].clone();
            if groups[0]["dead"] == 5 {
                return groups;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let groups = tokio::time::timeout(crate::rig::SOON, groups).await.expect("all five become dead letters");
    assert_eq!(groups.as_array().map(Vec::len), Some(1), "one signature: {groups}");
    let signature = groups[0]["signature"].as_str().expect("a signature").to_owned();

    let filter = json!({ "filter": "handler:fail status:dead", "action": "purge" });
    let preview = rig.post("/jobs/bulk/preview", filter).await;
    assert_eq!((&preview.body["jobs"], &preview.body["more"]), (&json!(5), &json!(false)), "{preview:?}");
    let purge = |confirm: Value| {
        let mut body = json!({ "action": "purge", "filter": "handler:fail status:dead" });
        if !confirm.is_null() {
            body["confirm"] = confirm;
        }
        rig.post("/jobs/bulk", body)
    };
    purge(Value::Null).await.is_problem(422, "invalid_input");
    purge(json!(4)).await.is_problem(409, "count_changed");
    assert_eq!(rig.get("/dead-letters").await.body["jobs"].as_array().map(Vec::len), Some(5), "nothing was done");

    let retry = rig.post(&format!("/failures/{signature}/retry"), json!({ "confirm": 5 })).await;
    assert_eq!(retry.status, 202, "{retry:?}");
    finished(rig, retry.body["id"].as_str().expect("an id"), 5).await;
    for job in rig.get("/jobs?handler_id=fail").await.body["jobs"].as_array().expect("jobs") {
        rig.wait_for(job["id"].as_str().expect("an id"), "dead_lettered").await;
    }
    let foreign = rig.ask_as(&rig.other, Method::GET, "/bulks");
    assert_eq!(Answer::of(foreign).await.body["bulks"].as_array().map(Vec::len), Some(0));
    let replay = rig.post("/dead-letters/replay", json!({ "confirm": 5, "limit": 2 })).await;
    assert_eq!(replay.status, 202, "{replay:?}");
    finished(rig, replay.body["id"].as_str().expect("an id"), 2).await;
    for job in rig.get("/jobs?handler_id=fail").await.body["jobs"].as_array().expect("jobs") {
        rig.wait_for(job["id"].as_str().expect("an id"), "dead_lettered").await;
    }
    let purged = purge(json!(5)).await;
    assert_eq!(purged.status, 202, "{purged:?}");
    finished(rig, purged.body["id"].as_str().expect("an id"), 5).await;
    assert_eq!(rig.get("/jobs?handler_id=fail").await.body["jobs"].as_array().map(Vec::len), Some(0));
    rig.post("/bulks/1/stop", json!({})).await.is_problem(404, "not_found");
}

async fn finished(rig: &Rig, id: &str, done: u64) {
    let wait = async {
        loop {
            let bulks = rig.get("/bulks").await.body["bulks"].clone();
            let bulk =
                bulks.as_array().expect("a list").iter().find(|bulk| bulk["id"] == id).expect("it is known").clone();
            if bulk["state"] != "running" {
                return bulk;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let bulk = tokio::time::timeout(crate::rig::SOON, wait).await.expect("it ends");
    assert_eq!((&bulk["state"], &bulk["done"]), (&json!("finished"), &json!(done)), "{bulk}");
}

/// OPS-4 over HTTP, and who may pause what.
pub(crate) async fn pauses_hold_jobs_until_they_are_resumed(rig: &Rig) {
    rig.post("/pauses", json!({ "target": "all" })).await.is_problem(403, "forbidden");
    rig.post("/pauses", json!({ "target": "handler:echo" })).await.is_problem(403, "forbidden");
    rig.post("/pauses", json!({ "target": format!("tenant:{OTHER}") })).await.is_problem(403, "forbidden");
    rig.post("/pauses", json!({ "target": "everything" })).await.is_problem(422, "invalid_input");
    let own = format!("tenant:{TENANT}");
    assert_eq!(rig.post("/pauses", json!({ "target": own, "reason": "lunch" })).await.status, 204);
    let id = rig.submit("echo", json!(1), json!({})).await;
    let why = rig.get(&format!("/jobs/{id}/why")).await;
    assert!(["paused", "opening", "running"].contains(&why.body["reason"].as_str().unwrap_or_default()), "{why:?}");
    let pauses = rig.get("/pauses").await;
    assert_eq!(pauses.body["pauses"][0]["reason"], "lunch");
    let foreign = Answer::of(rig.ask_as(&rig.other, Method::GET, "/pauses")).await;
    assert_eq!(foreign.body["pauses"].as_array().map(Vec::len), Some(0), "another tenant's pause is its own affair");
    assert_eq!(rig.delete(&format!("/pauses/{own}")).await.status, 204);
    rig.delete(&format!("/pauses/{own}")).await.is_problem(404, "not_found");
    rig.wait_for(&id, "succeeded").await;
    // The audit log, a page of one entry at a time.
    let mut actions = Vec::new();
    let mut next = String::new();
    loop {
        let page = rig.get(&format!("/audit?target={own}&limit=1{next}")).await;
        actions.extend(page.body["entries"].as_array().expect("entries").iter().map(|entry| entry["action"].clone()));
        let Some(before) = page.body["next"].as_str() else { break };
        next = format!("&before={before}");
    }
    assert_eq!(actions, [json!("RESUMED"), json!("PAUSED")]);
}

/// BEY-8 over HTTP.
pub(crate) async fn quotas_are_set_and_refuse_what_is_beyond(rig: &Rig) {
    let path = format!("/tenants/{TENANT}/quota");
    let set = rig.ask_as(&rig.operator, Method::PUT, &path).json(&json!({ "queued": 2 }));
    assert_eq!(Answer::of(set).await.status, 204);
    let tenant_itself = rig.ask(Method::PUT, &path).json(&json!({ "queued": 1_000 }));
    Answer::of(tenant_itself).await.is_problem(403, "forbidden");
    let bad = rig.ask_as(&rig.operator, Method::PUT, &path).json(&json!({ "weight": 0 }));
    Answer::of(bad).await.is_problem(422, "invalid_input");
    let body = json!({ "handler": "echo", "inputs": [1, 2, 3], "options": { "delay_ms": 3_600_000 } });
    let over = async {
        // Nodes follow a new policy within about a second.
        loop {
            let answer = rig.post("/jobs/batch", body.clone()).await;
            if answer.status != 201 {
                return answer;
            }
            let purge = json!({ "action": "cancel", "filter": "handler:echo", "confirm": 3 });
            let _ = rig.post("/jobs/bulk", purge).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let over = tokio::time::timeout(crate::rig::SOON, over).await.expect("the quota comes into force");
    over.is_problem(429, "quota_exceeded");
    assert_eq!((&over.body["quota"]["kind"], &over.body["quota"]["limit"]), (&json!("queued"), &json!(2)));
    let own = rig.get(&path).await;
    assert_eq!((own.status, &own.body["quota"]["queued"]), (200, &json!(2)), "{own:?}");
    let foreign = Answer::of(rig.ask_as(&rig.other, Method::GET, &path)).await;
    foreign.is_problem(404, "not_found");
    let cleared = rig.ask_as(&rig.operator, Method::DELETE, &path);
    assert_eq!(Answer::of(cleared).await.status, 204);
}

/// OPS-10 over HTTP: check out, renew, report, and a second report is refused.
pub(crate) async fn a_worker_outside_takes_jobs_and_reports(rig: &Rig) {
    let options = json!({ "queue": "outside" });
    let good = rig.submit("elsewhere", json!({ "n": 1 }), options.clone()).await;
    let bad = rig.submit("elsewhere", json!({ "n": 2 }), options).await;
    let take = json!({ "queues": ["outside"], "max": 10 });
    Answer::of(rig.ask(Method::POST, "/checkout").json(&take)).await.is_problem(403, "forbidden");
    let operator = |path: &str, body: &Value| Answer::of(rig.ask_as(&rig.operator, Method::POST, path).json(body));
    let mut jobs = Vec::new();
    while jobs.len() < 2 {
        let taken = operator("/checkout", &take).await;
        assert_eq!(taken.status, 200, "{taken:?}");
        jobs.extend(taken.body["jobs"].as_array().expect("jobs").clone());
    }
    let job = |id: &str| jobs.iter().find(|job| job["id"] == id).expect("it was taken");
    assert_eq!(job(&good)["input"], json!({ "n": 1 }));
    let token = job(&good)["token"].as_str().expect("a token").to_owned();
    let renewed = operator(&format!("/checkouts/{token}/progress"), &json!({ "percent": 50, "message": "half" })).await;
    assert_eq!(renewed.status, 200, "{renewed:?}");
    let done = operator(&format!("/checkouts/{token}/success"), &json!({ "output": { "ok": true } })).await;
    assert_eq!(done.status, 204, "{done:?}");
    rig.wait_for(&good, "succeeded").await;
    assert_eq!(rig.get(&format!("/jobs/{good}/result")).await.body["output"], json!({ "ok": true }));
    operator(&format!("/checkouts/{token}/success"), &json!({})).await.is_problem(404, "not_found");

    let token = job(&bad)["token"].as_str().expect("a token").to_owned();
    let failure = json!({ "message": "no paper", "code": "printer", "retryable": false });
    assert_eq!(operator(&format!("/checkouts/{token}/failure"), &failure).await.status, 204);
    let dead = rig.wait_for(&bad, "dead_lettered").await;
    assert_eq!(dead["error"]["code"], "printer");
    operator("/checkout", &json!({ "max": 101 })).await.is_problem(422, "invalid_input");
}

/// OPS-9, at both of its paths.
pub(crate) async fn a_tick_runs_what_is_ready(rig: &Rig) {
    let answer = Answer::of(rig.ask_as(&rig.operator, Method::POST, "/tick").json(&json!({ "max": 5 }))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body["ran"].is_u64());
    let own_path = rig.client.post(format!("{}/api/jobs/tick", rig.url)).bearer_auth(&rig.operator);
    assert_eq!(Answer::of(own_path).await.status, 200);
    Answer::of(rig.client.post(format!("{}/api/jobs/tick", rig.url))).await.is_problem(401, "unauthorized");
    rig.post("/tick", json!({})).await.is_problem(403, "forbidden");
}

/// API-3: keys over HTTP, never with more rights than their maker, and gone within seconds of being revoked.
pub(crate) async fn keys_are_made_used_and_revoked(rig: &Rig) {
    let made = rig.post("/keys", json!({ "name": "ci", "rights": ["read"], "user": "robot" })).await;
    assert_eq!(made.status, 201, "{made:?}");
    let secret = made.body["secret"].as_str().expect("a secret").to_owned();
    let me = Answer::of(rig.ask_as(&secret, Method::GET, "/me")).await;
    assert_eq!((&me.body["user"], &me.body["rights"]), (&json!("robot"), &json!(["read"])), "{me:?}");
    assert_eq!(me.body["tenant"], TENANT.to_string());
    let id = made.body["key"]["id"].as_str().expect("an id").to_owned();
    let listed = rig.get("/keys").await;
    assert!(!listed.body.to_string().contains(&secret), "a secret is shown once");
    assert!(listed.body["keys"].as_array().expect("keys").iter().any(|key| key["id"] == id.as_str()));
    let foreign = Answer::of(rig.ask_as(&rig.other, Method::DELETE, &format!("/keys/{id}"))).await;
    foreign.is_problem(404, "not_found");

    let limited = rig.new_key(TENANT, Rig::rights(&[windlass::Right::Admin])).await;
    let more = json!({ "name": "more", "rights": ["payload"] });
    Answer::of(rig.ask_as(&limited, Method::POST, "/keys").json(&more)).await.is_problem(403, "forbidden");
    let everywhere = json!({ "name": "all", "rights": ["read"], "all_tenants": true });
    rig.post("/keys", everywhere).await.is_problem(403, "forbidden");
    let elsewhere = json!({ "name": "other", "rights": ["read"], "tenant": OTHER.to_string() });
    rig.post("/keys", elsewhere).await.is_problem(403, "forbidden");

    assert_eq!(rig.delete(&format!("/keys/{id}")).await.status, 204);
    let gone = async {
        while Answer::of(rig.ask_as(&secret, Method::GET, "/me")).await.status != 401 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(5), gone).await.expect("refused within 5 seconds");
}

/// OPS-6, BEY-7 over HTTP.
pub(crate) async fn costs_and_logs_are_kept_with_a_job(rig: &Rig) {
    let id = rig.submit("talks", json!(null), json!({})).await;
    rig.wait_for(&id, "succeeded").await;
    let logs = rig.get(&format!("/jobs/{id}/logs")).await;
    assert_eq!(logs.body["lines"][0]["message"], "hello from the job", "{logs:?}");
    let none = rig.get(&format!("/jobs/{id}/logs?after=1")).await;
    assert_eq!(none.body["lines"].as_array().map(Vec::len), Some(0));
    let later = rig.post(&format!("/jobs/{id}/cost"), json!({ "cents": 7 })).await;
    assert_eq!(later.status, 204, "{later:?}");
    rig.post(&format!("/jobs/{id}/cost"), json!({})).await.is_problem(422, "invalid_input");
    let usage = rig.get("/usage").await;
    let row = &usage.body["usage"][0];
    assert_eq!((&row["handler"], &row["cents"], &row["units"]), (&json!("talks"), &json!(12), &json!(2)), "{usage:?}");
    let events = async {
        loop {
            let events = rig.get("/usage/events").await;
            if events.body["events"].as_array().is_some_and(|events| events.len() == 2) {
                return events;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let events = tokio::time::timeout(crate::rig::SOON, events).await.expect("both costs are told");
    let last = events.body["events"][1]["sequence"].as_u64().expect("a sequence");
    let after = rig.get(&format!("/usage/events?after={last}")).await;
    assert_eq!(after.body["events"].as_array().map(Vec::len), Some(0));
    let foreign = Answer::of(rig.ask_as(&rig.other, Method::GET, "/usage")).await;
    assert_eq!(foreign.body["usage"].as_array().map(Vec::len), Some(0));
    rig.get("/usage?from=yesterday").await.is_problem(422, "invalid_input");
    let activity = rig.get("/activity?span=5m").await;
    assert!(activity.body["points"].as_array().is_some_and(|points| points.len() > 10), "{activity:?}");
    rig.get("/activity?span=1y").await.is_problem(422, "invalid_input");
}
