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
    // ERR-9: it happens once.
    let again = rig.post(&format!("/jobs/{id}/replay"), json!({ "as_new": true })).await;
    assert_eq!((again.status, again.body["id"].as_str()), (200, Some(new.as_str())), "{again:?}");
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

pub(crate) async fn finished(rig: &Rig, id: &str, done: u64) {
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
    // A misspelt handler is not paused in silence, while what was meant runs on.
    let pause = |body: Value| Answer::of(rig.ask_as(&rig.operator, Method::POST, "/pauses").json(&body));
    let unknown = pause(json!({ "target": "handler:ehco" })).await;
    unknown.is_problem(404, "handler_not_found");
    assert!(unknown.body["detail"].as_str().is_some_and(|detail| detail.contains("echo")), "{unknown:?}");
    assert_eq!(rig.get("/pauses").await.body["pauses"], json!([]), "nothing was written");
    let form = rig.client.post(format!("{}/pause", rig.url)).bearer_auth(&rig.operator);
    let form = form.header("content-type", "application/x-www-form-urlencoded");
    let page = form.body("target=handler%3Aehco&reason=x&confirmed=1").send().await.expect("an answer");
    assert_eq!(page.status(), 404, "nor from a page");
    assert_eq!(pause(json!({ "target": "handler:ehco", "force": true })).await.status, 204);
    let resume = rig.ask_as(&rig.operator, Method::DELETE, "/pauses/handler:ehco");
    assert_eq!(Answer::of(resume).await.status, 204);
    let own = format!("tenant:{TENANT}");
    assert_eq!(rig.post("/pauses", json!({ "target": own, "reason": "lunch" })).await.status, 204);
    let id = rig.submit("echo", json!(1), json!({})).await;
    // A worker may have taken it, and turns it away.
    let held = rig.wait_for(&id, "blocked").await;
    assert_eq!(held["failed"], 0, "{held}");
    assert_eq!(rig.get(&format!("/jobs/{id}/why")).await.body["reason"], "paused");
    // Blocked work is shown beside what waits: in the backlog and on the page of handlers.
    let backlog = Answer::of(rig.ask_as(&rig.operator, Method::GET, "/backlog")).await;
    let of_echo = backlog.body["backlog"].as_array().and_then(|all| all.iter().find(|one| one["handler"] == "echo"));
    assert_eq!(of_echo.map(|one| (&one["waiting"], &one["blocked"])), Some((&json!(0), &json!(1))), "{backlog:?}");
    let page = Answer::of(rig.client.get(format!("{}/handlers", rig.url)).bearer_auth(&rig.key)).await;
    assert!(page.body.as_str().is_some_and(|page| page.contains("+ 1 blocked")), "{page:?}");
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

async fn take(rig: &Rig, key: &str, n: usize) -> Vec<Value> {
    let wanted = json!({ "queues": ["outside"], "max": 10 });
    let mut jobs = Vec::new();
    while jobs.len() < n {
        let taken = Answer::of(rig.ask_as(key, Method::POST, "/checkout").json(&wanted)).await;
        assert_eq!(taken.status, 200, "{taken:?}");
        jobs.extend(taken.body["jobs"].as_array().expect("jobs").clone());
    }
    jobs
}

fn token(job: &Value) -> &str {
    job["token"].as_str().expect("a token")
}

/// OPS-10 over HTTP: check out, renew and report; a report that is repeated is answered as before, another is refused.
pub(crate) async fn a_worker_outside_takes_jobs_and_reports(rig: &Rig) {
    let options = json!({ "queue": "outside" });
    let good = rig.submit("elsewhere", json!({ "n": 1 }), options.clone()).await;
    let bad = rig.submit("elsewhere", json!({ "n": 2 }), options).await;
    let nothing = Answer::of(rig.ask_as(&rig.other, Method::POST, "/checkout").json(&json!({ "queues": ["outside"] })));
    assert_eq!(nothing.await.body["jobs"], json!([]), "another tenant's jobs are not handed out");
    let jobs = take(rig, &rig.key, 2).await;
    let job = |id: &str| jobs.iter().find(|job| job["id"] == id).expect("it was taken");
    assert_eq!(job(&good)["input"], json!({ "n": 1 }));
    let path = |id: &str, what: &str| format!("/checkouts/{}/{what}", token(job(id)));
    let half = json!({ "percent": 50, "message": "half" });
    let foreign = Answer::of(rig.ask_as(&rig.other, Method::POST, &path(&good, "progress")).json(&half)).await;
    foreign.is_problem(404, "not_found");
    let renewed = rig.post(&path(&good, "progress"), half).await;
    assert_eq!(renewed.status, 200, "{renewed:?}");
    assert_eq!(rig.get(&format!("/jobs/{good}")).await.body["progress"]["message"], "half");
    let output = json!({ "output": { "ok": true } });
    for _ in 0..2 {
        let done = rig.post(&path(&good, "success"), output.clone()).await;
        assert_eq!(done.status, 204, "{done:?}");
    }
    rig.wait_for(&good, "succeeded").await;
    assert_eq!(rig.get(&format!("/jobs/{good}/result")).await.body["output"], json!({ "ok": true }));
    rig.post(&path(&good, "failure"), json!({ "message": "no" })).await.is_problem(409, "lease_lost");
    rig.post("/checkouts/none/success", json!({})).await.is_problem(404, "not_found");

    let failure = json!({ "message": "no paper", "code": "printer", "retryable": false });
    assert_eq!(rig.post(&path(&bad, "failure"), failure).await.status, 204);
    let dead = rig.wait_for(&bad, "dead_lettered").await;
    assert_eq!(dead["error"]["code"], "printer");
    rig.post("/checkout", json!({ "max": 101 })).await.is_problem(422, "invalid_input");
}

/// OPS-10, S07: whatever tenants hold, there are checkouts left for who operates all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_has_a_reserve_of_checkouts() {
    let rig = Rig::with(crate::rig::Where::Memory, |config| config.limits.checkouts = 20).await;
    let batch = json!({ "handler": "elsewhere", "inputs": vec![1; 30], "options": { "queue": "outside" } });
    let hold_all = async |key: &str| {
        let wanted = json!({ "queues": ["outside"] });
        let mut held = 0;
        let full = async {
            loop {
                let taken = Answer::of(rig.ask_as(key, Method::POST, "/checkout").json(&wanted)).await;
                match taken.status {
                    200 => held += taken.body["jobs"].as_array().expect("jobs").len(),
                    _ => return taken.is_problem(429, "backpressure"),
                }
            }
        };
        tokio::time::timeout(crate::rig::SOON, full).await.expect("there is a bound");
        held
    };
    let mut by_tenants = Vec::new();
    for n in 1..=8 {
        let key = rig.new_key(windlass::TenantId(uuid::Uuid::from_u128(n)), windlass::Rights::ALL).await;
        let stored = Answer::of(rig.ask_as(&key, Method::POST, "/jobs/batch").json(&batch)).await;
        assert_eq!(stored.status, 201, "{stored:?}");
        by_tenants.push(hold_all(&key).await);
    }
    assert_eq!(by_tenants, [9, 4, 2, 1, 1, 1, 0, 0], "each has half of what the others leave of 18");
    assert_eq!(hold_all(&rig.operator).await, 2, "the reserve");
}

/// OPS-10, BEY-12: a token is good at every server of the installation.
pub(crate) async fn a_worker_outside_reports_at_any_server(rig: &Rig) {
    let second = rig.beside().await;
    let id = rig.submit("elsewhere", json!(1), json!({ "queue": "outside" })).await;
    let jobs = take(rig, &rig.key, 1).await;
    let ask = |path: &str, body: Value| {
        let path = format!("/checkouts/{}/{path}", token(&jobs[0]));
        Answer::of(second.ask_as(&rig.key, Method::POST, &path).json(&body))
    };
    assert_eq!(ask("progress", json!({ "percent": 10 })).await.status, 200);
    let done = ask("success", json!({ "output": "there" })).await;
    assert_eq!(done.status, 204, "{done:?}");
    assert_eq!(rig.wait_for(&id, "succeeded").await["attempt"], 1);
    // Bulk actions too: begun here, shown and stopped there.
    rig.submit("echo", json!(1), json!({ "delay_ms": 3_600_000 })).await;
    rig.submit("echo", json!(2), json!({ "delay_ms": 3_600_000 })).await;
    let slow = json!({ "action": "cancel", "filter": "status:scheduled", "confirm": 2, "per_second": 0.01 });
    let begun = rig.post("/jobs/bulk", slow).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    let bulk = begun.body["id"].as_str().expect("an id").to_owned();
    let seen = Answer::of(second.ask_as(&rig.key, Method::GET, "/bulks")).await;
    let seen = seen.body["bulks"].as_array().expect("a list").iter().find(|seen| seen["id"] == bulk.as_str()).cloned();
    assert_eq!(seen.expect("it is shown")["node"], begun.body["node"]);
    let stop = second.ask_as(&rig.key, Method::POST, &format!("/bulks/{bulk}/stop"));
    assert_eq!(Answer::of(stop).await.status, 204);
    let stopped = async {
        loop {
            let bulks = rig.get("/bulks").await.body["bulks"].clone();
            let own = bulks.as_array().expect("a list").iter().find(|own| own["id"] == bulk.as_str()).cloned();
            if own.expect("it is shown")["state"] == "stopped" {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(crate::rig::SOON, stopped).await.expect("it is stopped");
}

/// OPS-9, at both of its paths: the caller's own jobs, and no others.
pub(crate) async fn a_tick_runs_what_is_ready(rig: &Rig) {
    let rig = &rig.without_workers().await;
    for n in 0..3 {
        rig.submit("echo", json!(n), json!({})).await;
    }
    let succeeded = || async {
        let jobs = rig.get("/jobs?status=succeeded").await;
        jobs.body["jobs"].as_array().map(Vec::len)
    };
    let tick = || Answer::of(rig.ask_as(&rig.operator, Method::POST, "/tick").json(&json!({ "max": 2 })));
    assert_eq!(succeeded().await, Some(0), "nothing runs by itself");
    let foreign = Answer::of(rig.ask_as(&rig.other, Method::POST, "/tick")).await;
    assert_eq!((foreign.status, &foreign.body["ran"]), (200, &json!(0)), "{foreign:?}");
    let pause = json!({ "target": format!("tenant:{}", crate::rig::TENANT) });
    assert_eq!(rig.post("/pauses", pause).await.status, 204);
    assert_eq!(rig.post("/tick", json!({ "max": 5 })).await.status, 200);
    assert_eq!(succeeded().await, Some(0), "pauses hold here too");
    assert_eq!(rig.delete(&format!("/pauses/tenant:{}", crate::rig::TENANT)).await.status, 204);
    let first = tick().await;
    assert_eq!((first.status, &first.body["ran"]), (200, &json!(2)), "{first:?}");
    assert_eq!(succeeded().await, Some(2));
    let own_path = Answer::of(rig.client.post(format!("{}/api/jobs/tick", rig.url)).bearer_auth(&rig.operator)).await;
    assert_eq!((own_path.status, &own_path.body["ran"]), (200, &json!(1)), "{own_path:?}");
    assert_eq!(succeeded().await, Some(3));
    assert_eq!(tick().await.body["ran"], json!(0));
    Answer::of(rig.client.post(format!("{}/api/jobs/tick", rig.url))).await.is_problem(401, "unauthorized");
    let reader = rig.new_key(crate::rig::TENANT, Rig::rights(&[windlass::Right::Read])).await;
    Answer::of(rig.ask_as(&reader, Method::POST, "/tick")).await.is_problem(403, "forbidden");
}

/// OPS-10: a report whose connection drops while the store is slow is saved all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_is_saved_although_its_connection_drops() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = crate::rig::postgres();
    let rig = Rig::start(crate::rig::Where::Postgres(&server, "dropped_report")).await;
    let id = rig.submit("elsewhere", json!(1), json!({ "queue": "outside" })).await;
    let jobs = take(&rig, &rig.key, 1).await;
    let progress = json!({ "percent": 10, "message": "begun" });
    assert_eq!(rig.post(&format!("/checkouts/{}/progress", token(&jobs[0])), progress).await.status, 200);
    // Until it is ended, nothing that is held can be finished.
    let mut slow = server.program("psql");
    slow.arg(server.url("dropped_report")).arg("-qAt").stdin(std::process::Stdio::piped());
    let mut slow = slow.stdout(std::process::Stdio::piped()).spawn().expect("psql starts");
    let mut say = slow.stdin.take().expect("a pipe");
    std::io::Write::write_all(
        &mut say,
        b"begin; lock table windlass.lease in access exclusive mode; select 'locked';\n",
    )
    .expect("psql reads");
    let mut locked = [0; 6];
    std::io::Read::read_exact(slow.stdout.as_mut().expect("a pipe"), &mut locked).expect("psql answers");
    let host = rig.url.trim_start_matches("http://").to_owned();
    let mut connection = tokio::net::TcpStream::connect(&host).await.expect("it listens");
    let body = r#"{"output":"kept"}"#;
    let head = format!(
        "POST /api/v1/checkouts/{}/success HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        token(&jobs[0]),
        rig.key,
        body.len()
    );
    connection.write_all(head.as_bytes()).await.expect("it reads");
    let waits = tokio::time::timeout(std::time::Duration::from_millis(500), connection.read_u8()).await;
    assert!(waits.is_err(), "the report waits for the store");
    drop(connection);
    drop(say);
    slow.wait().expect("psql ends, and with it the lock");
    let job = rig.wait_for(&id, "succeeded").await;
    assert_eq!(job["attempt"], 1, "it did not run again: {job}");
    assert_eq!(rig.get(&format!("/jobs/{id}/result")).await.body["output"], "kept");
}

/// OPS-10: a report that takes longer than a request may is answered with 504, and saved all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_is_saved_although_its_time_is_over() {
    let server = crate::rig::postgres();
    let place = crate::rig::Where::Postgres(&server, "late_report");
    let rig = Rig::with(place, |config| config.limits.request_timeout = std::time::Duration::from_secs(2)).await;
    let id = rig.submit("elsewhere", json!(1), json!({ "queue": "outside" })).await;
    let jobs = take(&rig, &rig.key, 1).await;
    let database = server.url("late_report");
    let mut lock = crate::rig::Locked::for_all(&server, &database, "windlass.lease").await;
    let late = rig.post(&format!("/checkouts/{}/success", token(&jobs[0])), json!({ "output": "kept" })).await;
    late.is_problem(504, "timeout");
    lock.release().await;
    let job = rig.wait_for(&id, "succeeded").await;
    assert_eq!(job["attempt"], 1, "it did not run again: {job}");
    assert_eq!(rig.get(&format!("/jobs/{id}/result")).await.body["output"], "kept");
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

/// OPS-6, OPS-14, BEY-7 over HTTP.
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
    let job = rig.get(&format!("/jobs/{id}")).await;
    assert_eq!(job.body["cost"], json!({ "cents": 12, "units": 2 }), "{job:?}");
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
