//! Schedules over HTTP (TIM-2, API-2).

use reqwest::Method;
use serde_json::{Value, json};
use windlass::Right;

use crate::rig::{Answer, Rig, TENANT};

async fn put(rig: &Rig, name: &str, body: Value) -> Answer {
    Answer::of(rig.ask(Method::PUT, &format!("/schedules/{name}")).json(&body)).await
}

/// A schedule that does not fire while a test runs.
fn yearly() -> Value {
    json!({ "cron": "@yearly", "handler": "echo", "input": { "secret": 4711 } })
}

/// TIM-2, API-2: a schedule is created, changed by version, paused, resumed, listed by name and removed.
pub(crate) async fn a_schedule_is_created_changed_and_removed(rig: &Rig) {
    let full = json!({
        "cron": "30 2 * * *", "zone": "Europe/Berlin", "missed": { "all": 5 }, "overlap": "queue", "jitter_ms": 30_000,
        "handler": "echo", "input": 1, "queue": "reports", "priority": "high", "tags": ["sales"], "timeout_ms": 60_000,
        "retry": { "max_attempts": 2 }, "retention_ms": 86_400_000, "headers": { "team": "a" }, "version": 0,
    });
    let made = put(rig, "nightly", full.clone()).await;
    assert_eq!(made.status, 201, "{made:?}");
    for field in ["cron", "zone", "missed", "overlap", "jitter_ms", "queue", "tags", "timeout_ms", "retention_ms"] {
        assert_eq!(made.body[field], full[field], "{field}: {made:?}");
    }
    assert_eq!((&made.body["version"], &made.body["paused"]), (&json!(1), &json!(false)));
    assert_eq!(made.body["retry"]["max_attempts"], 2);
    assert!(made.body["next_at"].is_string() && made.body["last_at"].is_null(), "{made:?}");
    assert_eq!(rig.get("/schedules/nightly").await.body, made.body);
    put(rig, "nightly", full.clone()).await.is_problem(409, "schedule_changed");
    put(rig, "nightly", json!({ "cron": "@daily", "handler": "echo", "version": 7 }))
        .await
        .is_problem(409, "schedule_changed");
    put(rig, "other", json!({ "cron": "@daily", "handler": "echo", "version": 1 }))
        .await
        .is_problem(404, "schedule_not_found");
    let changed = put(rig, "nightly", json!({ "cron": "@daily", "handler": "echo", "version": 1 })).await;
    assert_eq!((changed.status, &changed.body["version"]), (200, &json!(2)), "{changed:?}");
    assert_eq!((&changed.body["zone"], &changed.body["missed"]), (&json!("UTC"), &json!("skip")), "{changed:?}");
    let content = rig.get("/schedules/nightly/input").await.body;
    assert_eq!(content, json!({ "input": 1, "headers": { "team": "a" } }), "what was omitted stays");
    let nulled = put(rig, "nightly", json!({ "cron": "@daily", "handler": "echo", "input": null })).await;
    assert_eq!(nulled.status, 200, "{nulled:?}");
    assert_eq!(rig.get("/schedules/nightly/input").await.body["input"], Value::Null);

    let paused = rig.post("/schedules/nightly/pause", json!({})).await;
    assert_eq!((&paused.body["paused"], &paused.body["next_at"]), (&json!(true), &Value::Null), "{paused:?}");
    let resumed = rig.post("/schedules/nightly/resume", json!({})).await;
    assert!(resumed.body["paused"] == false && resumed.body["next_at"].is_string(), "{resumed:?}");
    for name in ["a", "b", "with%20space%2Fand%20slash"] {
        assert_eq!(put(rig, name, yearly()).await.status, 201);
    }
    let first = rig.get("/schedules?limit=2").await.body;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["next"], "b");
    let second = rig.get("/schedules?limit=2&after=b").await.body;
    assert_eq!(names(&second), ["nightly", "with space/and slash"]);
    assert!(second["next"].is_null(), "{second}");
    assert_eq!(rig.get("/schedules/with%20space%2Fand%20slash").await.status, 200);
    assert_eq!(rig.delete("/schedules/nightly").await.status, 204);
    rig.delete("/schedules/nightly").await.is_problem(404, "schedule_not_found");
    rig.get("/schedules/nightly").await.is_problem(404, "schedule_not_found");
    let audit = rig.get("/audit?target=nightly").await.body;
    let actions: Vec<&str> = audit["entries"].as_array().expect("a list").iter().map(|e| text(&e["action"])).collect();
    let read = "SCHEDULE_INPUT_READ";
    let expected = ["SCHEDULE_REMOVED", "SCHEDULE_RESUMED", "SCHEDULE_PAUSED", read, "SCHEDULE_CHANGED", read];
    assert_eq!(actions[..6], expected, "{actions:?}");
}

fn names(page: &Value) -> Vec<&str> {
    page["schedules"].as_array().expect("a list").iter().map(|schedule| text(&schedule["name"])).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}"))
}

/// TIM-2: next runs are shown by the clocks of the schedule's zone and of the viewer's, over a night on which clocks change.
pub(crate) async fn next_runs_are_shown_in_two_zones(rig: &Rig) {
    let body = json!({ "cron": "0 0 3 29 3 *", "zone": "Europe/Berlin", "handler": "echo" });
    assert_eq!(put(rig, "spring", body).await.status, 201);
    let next = rig.get("/schedules/spring/next?count=3&zone=America/New_York").await;
    assert_eq!(next.status, 200, "{next:?}");
    assert_eq!((text(&next.body["zone"]), text(&next.body["viewer_zone"])), ("Europe/Berlin", "America/New_York"));
    let runs = next.body["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 3);
    for run in runs {
        let (at, local, viewer) = (text(&run["at"]), text(&run["local"]), text(&run["viewer"]));
        assert!(local[4..].starts_with("-03-29T03:00:00+0"), "{run}");
        assert!(viewer[4..].starts_with("-03-28T21:00:00-04:00") || viewer[4..].starts_with("-03-28T22:00:00-04:00"));
        let instant = |text: &str| text.parse::<jiff::Timestamp>().expect("a time");
        assert!(instant(at) == instant(local) && instant(at) == instant(viewer), "{run}");
    }
    assert_eq!(rig.get("/schedules/spring/next").await.body["runs"].as_array().map(Vec::len), Some(10));
    for bad in ["zone=Mars/Olympus", "zone=", "count=0", "count=1001"] {
        rig.get(&format!("/schedules/spring/next?{bad}")).await.is_problem(422, "invalid_input");
    }
    rig.get("/schedules/none/next").await.is_problem(404, "schedule_not_found");
}

/// TIM-2, API-2: a trigger starts a job now, which is among the schedule's runs and found by its filter.
pub(crate) async fn a_triggered_schedule_starts_a_job(rig: &Rig) {
    assert_eq!(put(rig, "by hand", yearly()).await.status, 201);
    assert_eq!(put(rig, "by handle", yearly()).await.status, 201);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let started = rig.post("/schedules/by%20hand/trigger", json!({})).await;
        assert_eq!((started.status, &started.body["duplicate"]), (201, &json!(false)), "{started:?}");
        ids.insert(0, text(&started.body["id"]).to_owned());
    }
    let done = rig.wait_for(&ids[0], "succeeded").await;
    assert!(done["spec"]["nominal_at"].is_string() && done["tags"] == json!(["schedule:by hand"]), "{done}");
    assert_eq!(rig.get(&format!("/jobs/{}/result", ids[0])).await.body["output"], json!({ "secret": 4711 }));
    let found = |page: &Value| -> Vec<String> {
        page["jobs"].as_array().expect("a list").iter().map(|job| text(&job["id"]).to_owned()).collect()
    };
    let first = rig.get("/schedules/by%20hand/runs?limit=2").await.body;
    assert_eq!(found(&first), ids[..2]);
    let rest = rig.get(&format!("/schedules/by%20hand/runs?limit=2&before={}", text(&first["next"]))).await.body;
    assert_eq!(found(&rest), ids[2..]);
    assert!(rig.get("/schedules/by%20handle/runs").await.body["jobs"].as_array().is_some_and(Vec::is_empty));

    let skips = json!({ "cron": "@yearly", "handler": "slow", "input": 1, "overlap": "skip" });
    assert_eq!(put(rig, "skips", skips).await.status, 201);
    let first = rig.post("/schedules/skips/trigger", json!({})).await;
    let again = rig.post("/schedules/skips/trigger", json!({})).await;
    assert_eq!((first.status, again.status, &again.body["duplicate"]), (201, 200, &json!(true)), "{again:?}");
    assert_eq!(first.body["id"], again.body["id"]);
    assert_eq!(rig.post(&format!("/jobs/{}/cancel", text(&first.body["id"])), json!({})).await.status, 200);
}

/// TIM-2: every bad field is refused by its name, and nothing is written.
pub(crate) async fn a_bad_schedule_is_refused_by_its_field(rig: &Rig) {
    let with = |field: &str, value: Value| {
        let mut body = yearly();
        body[field] = value;
        body
    };
    let bad = [
        ("cron", with("cron", json!("0 0 30 2 *"))),
        ("cron", with("cron", json!("61 * * * *"))),
        ("cron", with("cron", json!("@reboot"))),
        ("cron", with("cron", json!(""))),
        ("cron", with("cron", json!("*".repeat(300)))),
        ("zone", with("zone", json!("Mars/Olympus"))),
        ("zone", with("zone", json!(""))),
        ("missed", with("missed", json!({ "all": 0 }))),
        ("missed", with("missed", json!({ "all": 101 }))),
        ("missed", with("missed", json!("sometimes"))),
        ("overlap", with("overlap", json!("sometimes"))),
        ("jitter_ms", with("jitter_ms", json!(3_600_001))),
        ("handler", with("handler", json!("nobody"))),
        ("handler", with("handler", json!(""))),
        ("handler", with("handler", json!("windlass.webhook"))),
        ("queue", with("queue", json!("windlass.webhook"))),
        ("priority", with("priority", json!("urgent"))),
        ("tags", with("tags", json!(["t".repeat(65)]))),
        ("timeout_ms", with("timeout_ms", json!(u64::MAX))),
        ("retry.jitter", with("retry", json!({ "jitter": 2 }))),
        ("retention_ms", with("retention_ms", json!(u64::MAX))),
        ("input", with("input", json!("x".repeat(300 * 1024)))),
        ("body", with("jitter_ms", json!(-1))),
        ("body", with("missed", json!({ "all": "five" }))),
        ("body", with("tenant", json!("00000000-0000-0000-0000-00000000000b"))),
        ("body", with("defined_by", json!("code"))),
        ("body", json!({ "handler": "echo" })),
        ("body", json!([])),
    ];
    for (field, body) in bad {
        let answer = put(rig, "bad", body.clone()).await;
        answer.is_problem(422, "invalid_input");
        assert_eq!(answer.body["errors"][0]["field"], field, "{body}: {answer:?}");
    }
    for name in ["n".repeat(56).as_str(), "%00"] {
        let answer = put(rig, name, yearly()).await;
        answer.is_problem(422, "invalid_input");
        assert_eq!(answer.body["errors"][0]["field"], "name", "{answer:?}");
    }
    for path in ["/schedules?limit=0", "/schedules?limit=201", "/schedules/x/runs?before=abc"] {
        rig.get(path).await.is_problem(422, "invalid_input");
    }
    for path in ["/schedules?nope=1", "/schedules?limit=x", "/schedules/x/next?count=-1"] {
        rig.get(path).await.is_problem(400, "invalid_input");
    }
    assert_eq!(rig.get("/schedules").await.body, json!({ "schedules": [] }), "nothing was written");
    assert_eq!(put(rig, &"n".repeat(55), yearly()).await.status, 201);
}

/// TIM-2: another tenant neither sees nor changes a schedule; an operator of all tenants reaches it by naming the tenant.
pub(crate) async fn schedules_belong_to_their_tenant(rig: &Rig) {
    assert_eq!(put(rig, "mine", yearly()).await.status, 201);
    let before = rig.get("/schedules/mine").await.body;
    let paths = ["", "/input", "/next", "/runs"].map(|path| (Method::GET, path));
    let acts = ["/pause", "/resume", "/trigger"].map(|path| (Method::POST, path));
    for (method, path) in paths.into_iter().chain(acts).chain([(Method::DELETE, "")]) {
        let foreign = rig.ask_as(&rig.other, method, &format!("/schedules/mine{path}"));
        Answer::of(foreign).await.is_problem(404, "schedule_not_found");
    }
    let theirs = rig.ask_as(&rig.other, Method::PUT, "/schedules/mine");
    let theirs = Answer::of(theirs.json(&json!({ "cron": "@daily", "handler": "number", "input": 7 }))).await;
    assert_eq!((theirs.status, &theirs.body["version"]), (201, &json!(1)), "one of its own: {theirs:?}");
    assert_eq!(rig.get("/schedules/mine").await.body, before);
    assert_eq!(Answer::of(rig.ask_as(&rig.other, Method::DELETE, "/schedules/mine")).await.status, 204);
    assert_eq!(rig.get("/schedules/mine").await.body, before);
    Answer::of(rig.ask_as(&rig.operator, Method::GET, "/schedules/mine")).await.is_problem(404, "schedule_not_found");
    let named = rig.ask_as(&rig.operator, Method::GET, "/schedules/mine").header("Windlass-Tenant", TENANT.to_string());
    assert_eq!(Answer::of(named).await.body, before);
}

/// API-2: the input of a schedule is shown to those only who may see payloads, and by no other route.
pub(crate) async fn the_input_of_a_schedule_needs_its_right(rig: &Rig) {
    assert_eq!(put(rig, "quiet", yearly()).await.status, 201);
    let operator = rig.new_key(TENANT, Rig::rights(&[Right::Operate])).await;
    let as_operator = |method, path: &str| rig.ask_as(&operator, method, &format!("/schedules{path}"));
    Answer::of(as_operator(Method::GET, "/quiet/input")).await.is_problem(403, "forbidden");
    let kept = as_operator(Method::PUT, "/quiet").json(&json!({ "cron": "@daily", "handler": "echo" }));
    let mut shown = vec![Answer::of(kept).await];
    for (method, path) in [(Method::GET, ""), (Method::GET, "/quiet"), (Method::POST, "/quiet/pause")] {
        shown.push(Answer::of(as_operator(method, path)).await);
    }
    shown.push(Answer::of(as_operator(Method::GET, "/quiet/runs")).await);
    for answer in shown {
        assert!(answer.status == 200 && !answer.body.to_string().contains("4711"), "{answer:?}");
    }
    assert_eq!(rig.get("/schedules/quiet/input").await.body["input"], json!({ "secret": 4711 }));
}

/// API-5: every form of the pages works without a script, asks before it acts, and shows again what was wrong.
pub(crate) async fn schedules_are_managed_on_pages_without_a_script(rig: &Rig) {
    let send = async |path: &str, body: &str| {
        let form = rig.client.post(format!("{}{path}", rig.url)).bearer_auth(&rig.key);
        let form = form.header("content-type", "application/x-www-form-urlencoded").body(body.to_owned());
        let answer = form.send().await.expect("an answer");
        let to = answer.headers().get("location").map(|to| to.to_str().expect("text").to_owned());
        (answer.status().as_u16(), to.unwrap_or_default(), answer.text().await.expect("a page"))
    };
    let page = async |path: &str| crate::pages::page(rig, &rig.key, path).await;
    assert!(page("/schedules").await.contains("No schedules"));
    let bad = "version=0&name=a%2Fb&cron=0+0+30+2+*&handler=echo&input=%7B%22n%22%3A1%7D";
    let (status, _, again) = send("/schedules", bad).await;
    assert_eq!(status, 422);
    assert!(
        again.contains("never fires") && again.contains("0 0 30 2 *") && again.contains("{&quot;n&quot;:1}"),
        "{again}"
    );
    let good = bad.replace("0+0+30+2+*", "0+3+*+*+*&zone=Europe/Berlin&missed=all&missed_all=7&jitter=30s&tags=x,+y");
    let (status, to, _) = send("/schedules", &good).await;
    assert_eq!((status, to.as_str()), (303, "/schedules/a%2Fb?did=schedule_added"));
    assert_eq!(send("/schedules", &good).await.0, 409, "it exists");
    let one = page("/schedules/a%2Fb").await;
    assert!(one.contains("Europe/Berlin") && one.matches("<svg class=\"strip\"").count() == 7, "{one}");
    let edit = page("/schedules/a%2Fb/edit").await;
    assert!(
        edit.contains("value=\"30s\"") && edit.contains("value=\"7\"") && edit.contains("&quot;n&quot;: 1"),
        "{edit}"
    );
    let change = good.replace("version=0", "version=1").replace("0+3+*", "0+4+*");
    assert_eq!(send("/schedules", &change).await.0, 303);
    assert_eq!(send("/schedules", &change).await.0, 409, "the version is another one now");
    assert_eq!(rig.get("/schedules/a%2Fb/input").await.body["input"], json!({ "n": 1 }));
    let (status, _, question) = send("/schedules/a%2Fb/pause", "").await;
    assert!(status == 200 && question.contains("Do this now?"), "{question}");
    assert_eq!(rig.get("/schedules/a%2Fb").await.body["paused"], false, "not before it is confirmed");
    assert_eq!(send("/schedules/a%2Fb/pause", "confirmed=1").await.0, 303);
    assert!(page("/schedules").await.contains("paused"));
    assert_eq!(send("/schedules/a%2Fb/resume", "confirmed=1").await.0, 303);
    let (status, to, _) = send("/schedules/a%2Fb/trigger", "confirmed=1").await;
    assert!(status == 303 && to.starts_with("/jobs/"), "{to}");
    let run = to.trim_start_matches("/jobs/").split('?').next().expect("an id");
    assert!(page("/schedules/a%2Fb").await.contains(run), "the run is linked");
    assert_eq!(rig.get("/jobs?filter=schedule:a/b").await.body["jobs"][0]["id"], run);
    assert_eq!(send("/schedules/a%2Fb/remove", "confirmed=1").await.0, 303);
    assert!(page("/schedules").await.contains("No schedules"));
    let reader = rig.new_key(TENANT, Rig::rights(&[Right::Read])).await;
    let shown = crate::pages::page(rig, &reader, "/schedules").await;
    assert!(!shown.contains("Add a schedule"), "{shown}");
}

/// API-6, TIM-2: what schedules fire is counted, with how late it was.
pub(crate) async fn what_schedules_fire_is_counted(rig: &Rig) {
    assert_eq!(put(rig, "beat", json!({ "cron": "* * * * * *", "handler": "echo" })).await.status, 201);
    let value = async |name: &str| {
        let request = rig.client.get(format!("{}/metrics", rig.url)).bearer_auth(&rig.operator);
        let text = request.send().await.expect("an answer").text().await.expect("text");
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name).to_owned();
        line.split(' ').nth(1).expect("a value").parse::<f64>().expect("a number")
    };
    let fired = async {
        while value("cron_fired_total").await < 1.0 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(crate::rig::SOON, fired).await.expect("it fires");
    assert!(value("cron_late_seconds_count").await >= 1.0);
    assert_eq!(value("cron_missed_total").await, 0.0);
    let runs = rig.get("/schedules/beat/runs").await.body;
    assert!(runs["jobs"][0]["spec"]["nominal_at"].is_string(), "{runs}");
    assert!(rig.get("/schedules/beat").await.body["last_at"].is_string());
}
