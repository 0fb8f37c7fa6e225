//! The same commands on a server: what they print and how they exit is the same as on a database (API-4), a key opens what
//! its rights say, and what goes wrong on the way is told.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::common::{Windlass, bare, failed, finish};

/// Does a bit of everything, and answers with what was printed: each step with its exit code and JSON. What cannot be the
/// same twice (ids and times) is replaced by its place in order.
fn scenario(windlass: &Windlass) -> Vec<(String, i32, Value)> {
    let first =
        windlass.submit(&["email.send", r#"{"to":"ann"}"#, "--key", "k1", "--tag", "vip", "--priority", "high"]);
    let second = windlass.submit(&["email.send", r#"{"to":"bob"}"#, "--delay", "1h", "--correlation-id", "req-1"]);
    let mut names = BTreeMap::from([(first.clone(), "FIRST"), (second.clone(), "SECOND")]);
    let mut steps = Vec::new();
    let mut step = |args: &[&str]| {
        let ran = windlass.run(&[args, &["--json"]].concat());
        let text = if ran.code == 0 { &ran.stdout } else { ran.stderr.lines().last().unwrap_or_default() };
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{args:?}: {error} in {ran:?}"));
        steps.push((args.join(" "), ran.code, value.clone()));
        value
    };
    step(&["submit", "email.send", "null", "--key", "k1"]);
    step(&["show", &first, "--input", "--history"]);
    step(&["why", &second]);
    step(&["list"]);
    step(&["list", "--filter", "tag:vip status:pending input.to:ann"]);
    step(&["list", "--status", "scheduled", "--limit", "1"]);
    step(&["list", "--filter", "hanlder:x"]);
    step(&["stats"]);
    step(&["edit", &second, "--input", r#"{"to":"eve","n":12345678901234567890}"#]);
    step(&["show", &second, "--input"]);
    step(&["reschedule", &second, "--at", "2030-01-01T00:00:00Z"]);
    step(&["priority", "low", &second]);
    step(&["run-now", &second]);
    step(&["cancel", &first, "--reason", "sent twice"]);
    step(&["cancel", &first]);
    step(&["show", &first]);
    step(&["edit", &first, "--priority", "1"]);
    step(&["cancel", "12345"]);
    step(&["retry", &second]);
    step(&["dead", "replay", &second]);
    step(&["dead", "purge", &second]);
    step(&["dead", "list"]);
    step(&["pause", "handler", "email.send", "--reason", "mail is down"]);
    step(&["pauses"]);
    step(&["resume", "handler", "email.send"]);
    step(&["resume", "handler", "email.send"]);
    step(&["quota", "set", "--queued", "100", "--rate", "50/s"]);
    step(&["quota", "show"]);
    step(&["tenants", "--tenant", "00000000-0000-0000-0000-000000000000"]);
    step(&["quota", "clear"]);
    step(&["quota", "clear"]);
    step(&["failures", "list"]);
    step(&["cancel", "--filter", "handler:email.send", "--dry-run"]);
    step(&["cancel", "--filter", "handler:email.send"]);
    step(&["dead", "purge", "--filter", "status:canceled", "--yes"]);
    step(&["submit", "", "null"]);
    step(&["submit", "email.send", "null", "--key="]);
    step(&["show", "12345"]);
    step(&["usage", "--from", "2026-01-01", "--to", "2026-01-31"]);
    let added = step(&["webhook", "add", "https://example.com/hook", "--event", "dead_lettered"]);
    let hook = added["webhook"]["id"].as_str().expect("an id").to_owned();
    names.insert(hook.clone(), "HOOK");
    names.insert(added["secret"].as_str().expect("a secret").to_owned(), "SECRET");
    assert_eq!(step(&["webhook", "pause", &hook])["paused"], true);
    assert_eq!(step(&["webhook", "list"])["webhooks"][0]["paused"], true);
    assert_eq!(step(&["webhook", "resume", &hook])["paused"], false);
    assert_eq!(step(&["webhook", "list"])["webhooks"][0]["paused"], false);
    step(&["webhook", "resume", "12345"]);
    step(&["webhook", "remove", &hook]);
    schedules(&mut step, &mut names);
    step(&["audit", "--limit", "200"]);
    let clone = step(&["clone", &second]);
    names.insert(clone["id"].as_str().expect("an id").to_owned(), "CLONE");
    for (args, _, value) in &mut steps {
        same(value, &names);
        names.iter().for_each(|(id, name)| *args = args.replace(id, name));
    }
    steps
}

/// The part of it that is about schedules (TIM-2).
fn schedules(step: &mut impl FnMut(&[&str]) -> Value, names: &mut BTreeMap<String, &'static str>) {
    let put = ["schedules", "put", "nightly", "0 0 1 1 *", "email.send"];
    let options =
        ["--zone", "Europe/Berlin", "--missed", "all:5", "--overlap", "skip", "--jitter", "30s", "--tag", "a"];
    step(&[&put[..], &[r#"{"to":"ann"}"#], &options[..], &["--expect", "0"]].concat());
    step(&[&put[..], &["--expect", "0"]].concat());
    step(&[&put[..], &["--expect", "1", "--queue", "reports", "--priority", "high", "--timeout", "5m"]].concat());
    step(&["schedules", "put", "a/b c", "@daily", "email.send"]);
    step(&["schedules", "put", "bad", "0 0 30 2 *", "email.send"]);
    step(&["schedules", "put", "bad", "@daily", "email.send", "--zone", "Mars/Olympus"]);
    step(&["schedules", "put", "bad", "@daily", "email.send", "--missed", "all:101"]);
    step(&["schedules", "put", "bad", "@daily", "email.send", "--jitter", "2h"]);
    step(&["schedules", "put", &"n".repeat(56), "@daily", "email.send"]);
    step(&["schedules", "list", "--limit", "1"]);
    step(&["schedules", "list", "--after", "a/b c"]);
    step(&["schedules", "show", "nightly", "--input"]);
    step(&["schedules", "show", "a/b c"]);
    step(&["schedules", "next", "nightly", "--count", "3", "--zone", "America/New_York"]);
    step(&["schedules", "next", "nightly", "--zone", "Mars/Olympus"]);
    step(&["schedules", "pause", "nightly"]);
    let started = step(&["schedules", "trigger", "a/b c"]);
    names.insert(started["id"].as_str().expect("an id").to_owned(), "TRIGGERED");
    step(&["schedules", "runs", "a/b c"]);
    step(&["schedules", "runs", "nightly"]);
    step(&["schedules", "resume", "nightly"]);
    step(&["schedules", "remove", "nightly"]);
    for act in ["remove", "pause", "resume", "trigger", "next", "runs", "show"] {
        step(&["schedules", act, "nightly"]);
    }
}

/// Replaces ids by their names, and times and what else is new every time by a word.
fn same(value: &mut Value, names: &BTreeMap<String, &str>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| same(item, names)),
        Value::Object(fields) => {
            // Of a bulk action: named by the process that runs it.
            fields.remove("by");
            if fields.contains_key("action") && fields.contains_key("state") {
                fields.remove("id");
                // Which node carries a bulk action out: the command's own, or the server's.
                fields.remove("node");
            }
            fields.values_mut().for_each(|field| same(field, names));
        }
        Value::String(text) => {
            for (id, name) in names {
                *text = text.replace(id, name);
            }
            let is_time = |word: &&str| {
                word.len() >= 20 && word.ends_with('Z') && word.as_bytes()[4] == b'-' && !word.starts_with("2030")
            };
            let times: Vec<String> = text.split(' ').filter(is_time).map(ToOwned::to_owned).collect();
            times.iter().for_each(|time| *text = text.replace(time, "TIME"));
        }
        _ => {}
    }
}

/// API-4: every command, on a database and on a server.
#[test]
fn a_server_and_a_database_print_the_same() {
    let direct = scenario(&Windlass::new());
    let windlass = Windlass::new();
    let key = windlass.key(&["--rights", "admin,payload", "--user", "tester@here", "--all-tenants"]);
    let served = windlass.serve(&[]);
    let through = scenario(&Windlass::through(&served, &key));
    for (on_database, on_server) in direct.iter().zip(&through) {
        // The server's log also has who made the key and who read an input; a submit over HTTP is an application's, and
        // only one on the database itself is an operator's.
        if on_database.0.starts_with("audit") {
            let actions = |value: &Value| -> Vec<Value> {
                let entries = value["entries"].as_array().expect("entries").iter();
                let differ = ["KEY_CREATED", "INPUT_READ", "JOB_SUBMITTED"];
                let of_jobs = entries.filter(|entry| !differ.iter().any(|action| entry["action"] == *action));
                of_jobs.map(|entry| json!([entry["action"], entry["target"], entry["actor"]])).collect()
            };
            assert_eq!(actions(&on_database.2), actions(&on_server.2));
            continue;
        }
        assert_eq!(on_database, on_server);
    }
    assert_eq!(direct.len(), through.len());
    assert_eq!(served.stop(), 0);
}

#[test]
fn a_key_opens_what_its_rights_say_until_it_is_revoked() {
    let windlass = Windlass::new();
    let admin = windlass.key(&["--rights", "admin", "--all-tenants"]);
    let reader = windlass.key(&["--rights", "read"]);
    let id = windlass.submit(&["email.send", r#"{"to":"ann"}"#]);
    let served = windlass.serve(&[]);
    let (admin, reader) = (Windlass::through(&served, &admin), Windlass::through(&served, &reader));
    assert_eq!(reader.json(&["show", &id])["job"]["status"], "pending");
    reader.fails(&["cancel", &id], 5, "forbidden");
    reader.fails(&["show", &id, "--input"], 5, "forbidden");
    admin.fails(&["show", &id, "--input"], 5, "forbidden");
    reader.fails(&["list", "--all-tenants"], 5, "unauthorized");
    reader.fails(&["api-key", "list"], 5, "forbidden");
    let keys = admin.json(&["api-key", "list", "--all-tenants"]);
    let of_reader = keys["keys"].as_array().expect("keys").iter().find(|key| key["rights"] == json!(["read"]));
    let of_reader = of_reader.expect("the key is listed")["id"].as_str().expect("an id").to_owned();
    assert_eq!(admin.json(&["api-key", "revoke", &of_reader, "--all-tenants"]), json!({ "revoked": [of_reader] }));
    // Within seconds: the server may remember a key for that long.
    let refused = (0..100).any(|_| reader.run(&["stats"]).code == 5);
    assert!(refused, "a revoked key still opens");
    admin.fails(&["api-key", "revoke", "nobody", "--all-tenants"], 3, "not_found");
}

#[test]
fn a_server_that_is_read_only_says_so() {
    let windlass = Windlass::new();
    let key = windlass.key(&["--rights", "admin", "--all-tenants"]);
    let id = windlass.submit(&["email.send"]);
    let served = windlass.serve(&["--read-only", "--base-path", "/jobs"]);
    assert!(served.url.ends_with("/jobs"), "{}", served.url);
    let through = Windlass::through(&served, &key);
    assert_eq!(through.json(&["show", &id])["job"]["status"], "pending");
    through.fails(&["cancel", &id], 5, "forbidden");
    assert_eq!(served.said["login"], json!(null));
}

#[test]
fn what_goes_wrong_on_the_way_is_told() {
    let windlass = Windlass::new();
    // A port that was free a moment ago: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let url = format!("http://127.0.0.1:{port}");
    let gone = failed(finish(bare(&["stats", "--json", "--url", &url])), 6, "unavailable");
    assert!(gone["message"].as_str().is_some_and(|said| said.contains(&url)), "{gone}");

    let served = windlass.serve(&[]);
    let without = failed(finish(bare(&["stats", "--json", "--url", &served.url])), 5, "unauthorized");
    assert!(without["message"].as_str().is_some_and(|said| said.contains("WINDLASS_API_KEY")), "{without}");
    let wrong = Windlass::through(&served, "wl_live_nobody_knows_this");
    let refused = wrong.run(&["stats", "-v"]);
    assert!(refused.code == 5 && !refused.stderr.contains("nobody_knows"), "{refused:?}");

    for args in [&["keys", "status"][..], &["migrate"], &["serve"], &["up"]] {
        let error = failed(finish(bare(&[args, &["--json", "--url", &served.url]].concat())), 2, "usage");
        assert!(error["message"].as_str().is_some_and(|said| said.contains("--db")), "{error}");
    }
    let both = ["stats", "--json", "--url", &served.url, "--db", "sqlite:x.db"];
    failed(finish(bare(&both)), 2, "usage");
    let beyond = windlass.fails(&["serve", "--listen", "0.0.0.0:0", "--auth", "local"], 2, "invalid_input");
    assert_eq!(beyond["field"], "listen");
}

#[test]
fn events_come_over_a_server_one_object_per_line() {
    let windlass = Windlass::new();
    let key = windlass.key(&["--rights", "admin", "--all-tenants"]);
    let served = windlass.serve(&[]);
    let through = Windlass::through(&served, &key);
    let mut following = through.command(&["events", "--follow", "--limit", "2", "--status", "canceled"]);
    let child = following.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    // Canceled until they are heard of: nobody says when the follower has begun to listen.
    let mut canceled = Vec::new();
    let events = std::thread::spawn(move || child.wait_with_output().expect("it ends"));
    for _ in 0..200 {
        if events.is_finished() {
            break;
        }
        let id = through.submit(&["email.send"]);
        through.json(&["cancel", &id]);
        canceled.push(id);
    }
    let output = events.join().expect("no panic");
    let events: Vec<Value> = String::from_utf8(output.stdout)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object per line"))
        .collect();
    assert_eq!(events.len(), 2);
    for event in &events {
        assert_eq!((&event["status"], &event["handler"]), (&json!("canceled"), &json!("email.send")));
        assert!(canceled.iter().any(|id| event["job"] == id.as_str()), "{event}");
    }
    assert!(events[0]["sequence"].as_u64() < events[1]["sequence"].as_u64());
    let after = events[0]["sequence"].to_string();
    let again = through.run(&["events", "--after", &after, "--limit", "1", "--status", "canceled"]);
    assert!(again.stdout.contains(&format!("\"sequence\":{}", events[1]["sequence"])), "{again:?}");
}

/// OPS-5: the audit log says which key acted, not who once made it; on a database it says who and where.
#[test]
fn a_key_acts_under_its_own_name() {
    let windlass = Windlass::new();
    let made = windlass.json(&["api-key", "create", "nightly import", "--rights", "operate,submit"]);
    assert_eq!((&made["key"]["user"], &made["key"]["created_by"]), (&json!("nightly import"), &json!("tester@here")));
    let served = windlass.serve(&[]);
    let through = Windlass::through(&served, made["secret"].as_str().expect("a secret"));
    let id = through.submit(&["email.send"]);
    through.json(&["cancel", &id]);
    drop(served);
    assert_eq!(windlass.json(&["show", &id])["job"]["spec"]["user"], "nightly import");
    let audit = windlass.json(&["audit", "--action", "JOB_CANCELED"]);
    assert_eq!(audit["entries"][0]["actor"], "nightly import");
}

/// OPS-8: a misspelt handler is not taken in silence for a webhook that would never be called, on a database or on a server.
#[test]
fn a_webhook_for_a_handler_that_nobody_knows_is_refused() {
    let direct = Windlass::new();
    let windlass = Windlass::new();
    let key = windlass.key(&["--rights", "admin", "--user", "tester@here"]);
    let served = windlass.serve(&[]);
    for windlass in [direct, Windlass::through(&served, &key)] {
        let add = |handler: &'static str| ["webhook", "add", "https://example.com/hook", "--handler", handler];
        let unknown = windlass.fails(&add("email.sned"), 3, "handler_not_found");
        assert!(unknown["message"].as_str().is_some_and(|said| said.contains("email.sned")), "{unknown}");
        assert!(windlass.run(&add("email.sned")).stderr.contains("--handler"));
        assert_eq!(windlass.json(&["webhook", "list"])["webhooks"], serde_json::json!([]));
        windlass.submit(&["email.send"]);
        assert_eq!(windlass.json(&add("email.send"))["webhook"]["handler"], "email.send");
        assert_eq!(windlass.fails(&add("windlass.webhook"), 2, "invalid_input")["field"], "handler");
    }
}
